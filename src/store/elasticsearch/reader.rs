//! The batching reader: reads of many callers travel together, as writes do.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::context::Context;
use super::intake::{Intake, Piece, Room, Size};
use super::locate::Located;
use crate::clock::Timestamp;
use crate::job::JobId;
use crate::store::{Sought, StoreError, Versioned};

/// The most documents in one request.
const MAX_BATCH: Size = Size { items: 500, bytes: usize::MAX };
/// The most requests under way at once.
const IN_FLIGHT: usize = 2;

type Answer = Vec<Result<Option<Versioned>, StoreError>>;

/// The jobs that one caller looks for together.
struct Question {
    ids: Vec<(JobId, Option<Timestamp>)>,
    reply: oneshot::Sender<Answer>,
    _room: Room,
}

impl Piece for Question {
    fn size(&self) -> Size {
        Size { items: self.ids.len(), bytes: 0 }
    }
}

/// The batching reader of jobs.
pub(super) struct Reader {
    intake: Intake<Question>,
}

impl Reader {
    /// Starts a reader with a queue for `queue` documents.
    pub(super) fn start(context: Arc<Context>, queue: u32, timeout: Duration) -> Self {
        let intake = Intake::start(queue, MAX_BATCH, IN_FLIGHT, move |questions| {
            let context = Arc::clone(&context);
            async move { answer(&context, questions, Instant::now() + timeout).await }
        });
        Self { intake }
    }

    /// Reads jobs and returns an answer for each, in the order requested.
    pub(super) async fn look_up(&self, sought: &[Sought<'_>]) -> Answer {
        let failed = |error: &StoreError, count: usize| vec![Err(error.clone()); count];
        let room = match self.intake.room(sought.len()) {
            Ok(room) => room,
            Err(error) => return failed(&error, sought.len()),
        };
        let mut waiting = Vec::new();
        for chunk in sought.chunks(MAX_BATCH.items) {
            let (reply, answer) = oneshot::channel();
            let ids = chunk.iter().map(|sought| (sought.id.clone(), sought.since)).collect();
            let put = self.intake.put(Question { ids, reply, _room: Arc::clone(&room) });
            waiting.push((chunk.len(), put.map(|()| answer)));
        }
        let mut jobs = Vec::with_capacity(sought.len());
        for (count, answer) in waiting {
            let stopped = |_| StoreError::Unavailable("the reader has stopped".to_owned());
            match answer {
                Ok(answer) => jobs.extend(answer.await.map_err(stopped).unwrap_or_else(|error| failed(&error, count))),
                Err(error) => jobs.extend(failed(&error, count)),
            }
        }
        jobs
    }

    /// Closes the reader and waits until every waiting request is answered.
    pub(super) async fn close(&self) {
        self.intake.close().await;
    }
}

async fn answer(context: &Context, questions: Vec<Question>, deadline: Instant) {
    let all = questions.iter().flat_map(|question| &question.ids);
    let sought: Vec<Sought<'_>> = all.map(|(id, since)| Sought { id, since: *since }).collect();
    match context.locator(deadline).locate(&sought).await {
        Ok(found) => {
            let mut found = found.into_iter().map(|found| found.map(Located::into_job));
            for Question { ids, reply, _room } in questions {
                let _gone = reply.send(found.by_ref().take(ids.len()).collect());
            }
        }
        Err(error) => {
            for question in questions {
                let _gone = question.reply.send(question.ids.iter().map(|_| Err(error.clone())).collect());
            }
        }
    }
}
