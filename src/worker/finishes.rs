//! Ends of attempts on their way to the service: gathered into batches, and repeated until the service has answered
//! each. A result is given up only when the service refuses it for good, or when the worker must stop at once and the
//! service stays unreachable.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff};
use tokio::sync::{mpsc, oneshot};

use super::backoff::{LONGEST, waits};
use super::handler::HandlerError;
use super::service::{FinishAnswer, JobService};
use super::stop::{Stop, StopListener};
use crate::job::WorkerId;
use crate::manager::Finish;

/// The most finishes in one call.
const MAX_BATCH: usize = 500;
/// The most finishes that wait for the next call; further attempts wait to report their end.
const MAX_PENDING: usize = 1000;
/// How long finishes are still sent after an immediate stop was requested.
const LAST_TRIES: Duration = Duration::from_secs(10);

/// A finish that the service has not answered yet.
struct PendingFinish {
    finish: Finish,
    answer: oneshot::Sender<FinishAnswer>,
}

/// Delivers finishes. Clones share one sender task, which ends when all are dropped and every finish is answered.
#[derive(Clone)]
pub(super) struct Finishes(mpsc::Sender<PendingFinish>);

impl Finishes {
    /// Starts the sender task.
    pub(super) fn start(service: Arc<dyn JobService>, worker: WorkerId, stop: StopListener) -> Self {
        let (sender, receiver) = mpsc::channel(MAX_PENDING);
        tokio::spawn(Sender { service, worker, receiver, waits: waits().build() }.run(stop));
        Self(sender)
    }

    /// Delivers one finish to the service, and returns its answer.
    pub(super) async fn finish(&self, finish: Finish) -> FinishAnswer {
        let answer = self.send(finish.clone()).await;
        let FinishAnswer::Refused(why) = answer else { return answer };
        tracing::error!(job = %finish.id, %why, "the service refuses how the attempt ended; the job fails instead");
        let message = format!("the service refused how the attempt ended: {why}");
        self.send(Finish { outcome: HandlerError::permanent("finish_refused", message).into(), ..finish }).await
    }

    async fn send(&self, finish: Finish) -> FinishAnswer {
        let (answer, answered) = oneshot::channel();
        let gone = || FinishAnswer::Again("the worker stopped before the service answered".to_owned());
        if self.0.send(PendingFinish { finish, answer }).await.is_err() {
            return gone();
        }
        answered.await.unwrap_or_else(|_| gone())
    }
}

struct Sender {
    service: Arc<dyn JobService>,
    worker: WorkerId,
    receiver: mpsc::Receiver<PendingFinish>,
    /// The waits between tries since the last batch that was delivered.
    waits: ExponentialBackoff,
}

impl Sender {
    async fn run(mut self, mut stop: StopListener) {
        let given_up = async move {
            stop.reached(Stop::Now).await;
            tokio::time::sleep(LAST_TRIES).await;
        };
        tokio::select! {
            () = self.send_all() => {}
            () = given_up => {}
        }
    }

    async fn send_all(&mut self) {
        let mut batch = Vec::new();
        loop {
            if batch.is_empty() && self.receiver.recv_many(&mut batch, MAX_BATCH).await == 0 {
                return;
            }
            while batch.len() < MAX_BATCH
                && let Ok(more) = self.receiver.try_recv()
            {
                batch.push(more);
            }
            batch = self.send_batch(batch).await;
            if batch.is_empty() {
                self.waits = waits().build();
            } else {
                tokio::time::sleep(self.waits.next().unwrap_or(LONGEST)).await;
            }
        }
    }

    /// Sends a batch once and returns what must be sent again.
    async fn send_batch(&self, batch: Vec<PendingFinish>) -> Vec<PendingFinish> {
        let finishes: Vec<Finish> = batch.iter().map(|pending| pending.finish.clone()).collect();
        let answers = match self.service.finish(&self.worker, &finishes).await {
            Ok(answers) => answers,
            Err(error) => {
                tracing::warn!(%error, finishes = finishes.len(), "ends of attempts not delivered; trying again");
                return batch;
            }
        };
        let mut again = Vec::new();
        let mut answers = answers.into_iter();
        for pending in batch {
            match answers.next() {
                Some(FinishAnswer::Again(why)) => {
                    tracing::debug!(job = %pending.finish.id, %why, "the end of an attempt is to be sent again");
                    again.push(pending);
                }
                // The receiver was dropped if the attempt's task ended with the runtime.
                Some(answer) => drop(pending.answer.send(answer)),
                None => again.push(pending),
            }
        }
        again
    }
}
