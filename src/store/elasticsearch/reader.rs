//! The batching reader: reads of many callers travel together, as writes do.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::context::Context;
use super::intake::{Intake, Piece, Room, Size};
use super::locate::Located;
use crate::job::JobId;
use crate::store::{StoreError, Versioned};

/// The most documents in one request.
const MAX_BATCH: Size = Size { items: 500, bytes: usize::MAX };
/// The most requests under way at once.
const IN_FLIGHT: usize = 2;

type Answer = Result<Vec<Option<Versioned>>, StoreError>;

/// The ids that one caller requested together.
struct Question {
    ids: Vec<JobId>,
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

    /// Reads jobs and returns them in the order requested.
    pub(super) async fn get(&self, ids: &[JobId]) -> Answer {
        let room = self.intake.room(ids.len())?;
        let mut waiting = Vec::new();
        for chunk in ids.chunks(MAX_BATCH.items) {
            let (reply, answer) = oneshot::channel();
            self.intake.put(Question { ids: chunk.to_vec(), reply, _room: Arc::clone(&room) })?;
            waiting.push(answer);
        }
        let mut jobs = Vec::with_capacity(ids.len());
        for answer in waiting {
            let stopped = |_| StoreError::Unavailable("the reader has stopped".to_owned());
            jobs.extend(answer.await.map_err(stopped)??);
        }
        Ok(jobs)
    }

    /// Closes the reader and waits until every waiting request is answered.
    pub(super) async fn close(&self) {
        self.intake.close().await;
    }
}

async fn answer(context: &Context, questions: Vec<Question>, deadline: Instant) {
    let ids: Vec<&JobId> = questions.iter().flat_map(|question| &question.ids).collect();
    match context.locator(deadline).locate(&ids).await {
        Ok(found) => {
            let mut found = found.into_iter().map(|found| found.map(Located::into_job));
            for Question { ids, reply, _room } in questions {
                // All documents are taken even after an error, since those of the next request come after them.
                let own: Vec<_> = found.by_ref().take(ids.len()).collect();
                let _gone = reply.send(own.into_iter().collect());
            }
        }
        Err(error) => {
            for question in questions {
                let _gone = question.reply.send(Err(error.clone()));
            }
        }
    }
}
