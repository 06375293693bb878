//! Ends of attempts on their way to the service: gathered into batches, and repeated until the service has answered
//! each. A result is given up only when the service refuses it for good, or when the worker must stop at once and the
//! service stays unreachable.
//!
//! The call that hands ends in also claims jobs for the slots of their attempts. Until it is answered it keeps its
//! claim and these slots, so that a repetition asks for the same jobs.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff};
use tokio::sync::{mpsc, oneshot};

use super::backoff::{LONGEST, waits};
use super::handler::HandlerError;
use super::service::{ClaimedJob, FinishAnswer, Finished, JobService, ServiceError};
use super::slots::Slots;
use super::stop::{Stop, StopListener};
use crate::job::WorkerId;
use crate::manager::{ClaimRequest, Finish};

/// The most finishes in one call.
const MAX_BATCH: usize = 500;
/// The most finishes that wait for the next call; further attempts wait to report their end.
const MAX_PENDING: usize = 1000;
/// How long finishes are still sent after an immediate stop was requested.
const LAST_TRIES: Duration = Duration::from_secs(10);

/// Claims and starts the jobs that follow those whose ends are delivered.
pub(super) trait NextJobs: Send + Sync {
    /// Returns a claim that offers the slots of attempts that have ended; `None` when they need no claim of their own.
    fn claim(&self, ended: &mut dyn Iterator<Item = Slots>) -> Option<NextClaim>;

    /// Starts the jobs that were claimed along with ends, and returns the slots that are left.
    fn start(self: Arc<Self>, claimed: Result<Vec<ClaimedJob>, ServiceError>, claim: NextClaim) -> Option<Slots>;
}

/// A claim that goes along with ends.
pub(super) struct NextClaim {
    pub(super) request: ClaimRequest,
    /// The slots that the claim offers.
    pub(super) slots: Slots,
}

impl NextClaim {
    /// Returns the same claim to be made again.
    pub(super) fn again(mut self) -> Self {
        self.request.repeated = true;
        self
    }
}

/// A finish that the service has not answered yet.
struct PendingFinish {
    finish: Finish,
    /// The slots of the attempt, unless the claim that goes along offers them.
    slots: Option<Slots>,
    answer: oneshot::Sender<FinishAnswer>,
}

/// Delivers finishes. Clones share one sender task, which ends when all are dropped and every finish is answered.
#[derive(Clone)]
pub(super) struct Finishes(mpsc::Sender<PendingFinish>);

impl Finishes {
    /// Starts the sender task.
    pub(super) fn start(
        service: Arc<dyn JobService>,
        worker: WorkerId,
        next_jobs: Weak<dyn NextJobs>,
        stop: StopListener,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(MAX_PENDING);
        tokio::spawn(
            Sender { service, worker, next_jobs, receiver, waits: waits().build(), unanswered: None }.run(stop),
        );
        Self(sender)
    }

    /// Delivers one finish to the service, and returns its answer. The slots of its attempt become free with the
    /// answer, or are those of the next job then.
    pub(super) async fn finish(&self, finish: Finish, slots: Option<Slots>) -> FinishAnswer {
        let answer = self.send(finish.clone(), slots).await;
        let FinishAnswer::Refused(why) = answer else { return answer };
        tracing::error!(job = %finish.id, %why, "the service refuses how the attempt ended; the job fails instead");
        let message = format!("the service refused how the attempt ended: {why}");
        self.send(Finish { outcome: HandlerError::permanent("finish_refused", message).into(), ..finish }, None).await
    }

    async fn send(&self, finish: Finish, slots: Option<Slots>) -> FinishAnswer {
        let (answer, answered) = oneshot::channel();
        let gone = || FinishAnswer::Again("the worker stopped before the service answered".to_owned());
        if self.0.send(PendingFinish { finish, slots, answer }).await.is_err() {
            return gone();
        }
        answered.await.unwrap_or_else(|_| gone())
    }
}

struct Sender {
    service: Arc<dyn JobService>,
    worker: WorkerId,
    /// Gone when no attempt is left.
    next_jobs: Weak<dyn NextJobs>,
    receiver: mpsc::Receiver<PendingFinish>,
    /// The waits between tries since the last batch that was delivered.
    waits: ExponentialBackoff,
    /// The claim of the last call, while it has no answer.
    unanswered: Option<NextClaim>,
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
    async fn send_batch(&mut self, mut batch: Vec<PendingFinish>) -> Vec<PendingFinish> {
        let next = self.unanswered.take().or_else(|| self.claim_next(&mut batch));
        let finishes: Vec<Finish> = batch.iter().map(|pending| pending.finish.clone()).collect();
        let request = next.as_ref().map(|next| &next.request);
        let Finished { answers, next: claimed } = match self.service.finish(&self.worker, &finishes, request).await {
            Ok(finished) => finished,
            Err(error) => {
                tracing::warn!(%error, finishes = finishes.len(), "ends of attempts not delivered; trying again");
                // A refusal may be that of the claim, and the ends are not to depend on it.
                self.unanswered = next.filter(|_| !matches!(error, ServiceError::Refused(_))).map(NextClaim::again);
                return batch;
            }
        };
        // The next jobs come first: an attempt that is answered may be the last one that the worker waits for.
        let mut left = next.and_then(|next| self.start_next(&answers, claimed, next));
        let mut again = Vec::new();
        let mut answers = answers.into_iter();
        for pending in batch {
            match answers.next() {
                Some(FinishAnswer::Again(why)) => {
                    tracing::debug!(job = %pending.finish.id, %why, "the end of an attempt is to be sent again");
                    again.push(pending);
                }
                Some(answer) => {
                    drop(pending.slots);
                    // The receiver was dropped if the attempt's task ended with the runtime.
                    let _ = pending.answer.send(answer);
                }
                None => again.push(pending),
            }
        }
        // An end that cannot be recorded keeps its slot, so that no more attempts run than ends can wait.
        for pending in again.iter_mut().filter(|pending| pending.slots.is_none()) {
            pending.slots = left.as_mut().and_then(|left| left.take(&BTreeMap::new()));
        }
        again
    }

    /// Starts the jobs of a claim that was answered, and returns the slots that are left.
    fn start_next(
        &mut self,
        answers: &[FinishAnswer],
        mut claimed: Result<Vec<ClaimedJob>, ServiceError>,
        next: NextClaim,
    ) -> Option<Slots> {
        // Without an accepted end no claim was made in this call, but an unanswered call before it may have taken jobs.
        if !answers.iter().any(|answer| matches!(answer, FinishAnswer::Accepted { .. })) {
            if answers.iter().any(|answer| matches!(answer, FinishAnswer::Again(_))) {
                self.unanswered = Some(next.again());
                return None;
            }
            claimed = Err(ServiceError::Unavailable("no end was accepted".to_owned()));
        }
        self.next_jobs.upgrade()?.start(claimed, next)
    }

    fn claim_next(&self, batch: &mut [PendingFinish]) -> Option<NextClaim> {
        let mut slots = batch.iter_mut().filter_map(|pending| pending.slots.take());
        self.next_jobs.upgrade()?.claim(&mut slots)
    }
}
