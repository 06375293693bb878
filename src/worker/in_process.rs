//! The service of a worker whose manager runs in the same process, and the workers of the system's own queues.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::service::{Beat, ClaimedJob, FinishAnswer, Finished, JobService, PieceAnswer, ServiceError};
use super::{Handler, NoOutput, StopHandle, Worker, WorkerConfig};
use crate::job::{Fence, JobId, Kind, Offers, QueueName, Refusal, WorkerId};
use crate::manager::{
    ClaimOrder, ClaimRequest, Claimed, Finish, Heartbeat, JobView, Manager, ManagerError, OutputPiece, Recall,
};

/// The lease of a job in such a queue. The job may take longer, since the worker sends heartbeats; it waits this long
/// when its process has died.
const LEASE: Duration = Duration::from_secs(10);
/// How long one claim from such a queue waits.
const WAIT: Duration = Duration::from_secs(20);
/// How long a handler may take to end after it was requested to.
const GRACE: Duration = Duration::from_secs(1);

/// A queue of the system's own, and how a process works on it.
pub(crate) struct SystemQueue {
    /// What the worker is called, beside its process.
    pub(crate) role: &'static str,
    pub(crate) queue: &'static str,
    /// How many jobs are run at once.
    pub(crate) slots: usize,
    /// How long jobs may take to end at a shutdown before they are released.
    pub(crate) drain: Duration,
}

impl SystemQueue {
    /// Works on the queue within this process until it is stopped, with a handler for each kind of its jobs.
    pub(crate) async fn work(
        self,
        manager: Manager,
        handlers: impl IntoIterator<Item = (&'static str, Arc<dyn Handler>)>,
        stop: StopHandle,
    ) {
        let Self { role, queue, slots, drain } = self;
        let name = format!("{}{role}-{}", QueueName::INTERNAL, Uuid::new_v4().simple());
        let Ok(worker_id) = WorkerId::new(name) else { return };
        let config = WorkerConfig {
            worker_id,
            queues: vec![QueueName::system(queue)],
            order: ClaimOrder::default(),
            slots,
            resources: BTreeMap::new(),
            labels: Offers::new(),
            lease: LEASE,
            wait: WAIT,
            drain_timeout: drain,
            grace: GRACE,
        };
        // None of the system's own kinds has output.
        let mut worker = Worker::new(Arc::new(manager), config).send_output_to(Arc::new(NoOutput));
        for (kind, handler) in handlers {
            worker = worker.handle(Kind::system(kind), handler);
        }
        if let Err(error) = worker.run(stop).await {
            tracing::error!(%error, queue, "nothing works on a queue of the system any more");
        }
    }
}

#[async_trait]
impl JobService for Manager {
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError> {
        delivered(Manager::claim(self, unnamed(request)).await)
    }

    async fn recover_claim(&self, _request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError> {
        Ok(Vec::new())
    }

    async fn heartbeat(&self, worker: &WorkerId, beats: &[Heartbeat]) -> Result<Vec<Beat>, ServiceError> {
        let answers = Manager::heartbeat(self, worker, beats.to_vec()).await;
        let beat = |answer| match answer {
            Ok(answer @ crate::manager::HeartbeatAnswer { .. }) => {
                Beat::Held { cancel_requested: answer.cancel_requested }
            }
            Err(ManagerError::Refused(Refusal::LeaseLost { .. }) | ManagerError::NotFound(_)) => Beat::Lost,
            Err(_) => Beat::Undecided,
        };
        Ok(answers.into_iter().map(beat).collect())
    }

    async fn put_output(&self, worker: &WorkerId, pieces: &[OutputPiece]) -> Result<Vec<PieceAnswer>, ServiceError> {
        let answer = |kept| match kept {
            Ok(()) => PieceAnswer::Kept,
            Err(error) => match service_error(error) {
                ServiceError::Unavailable(why) | ServiceError::Closing(why) => PieceAnswer::Again(why),
                ServiceError::Refused(_) => PieceAnswer::Refused,
            },
        };
        Ok(Manager::put_output(self, worker, pieces).await.into_iter().map(answer).collect())
    }

    async fn recalls(
        &self,
        worker: &WorkerId,
        leases: &[(JobId, Fence)],
        wait: Duration,
    ) -> Result<Vec<Recall>, ServiceError> {
        Manager::recalls(self, worker, leases, wait).await.map_err(service_error)
    }

    async fn finish(
        &self,
        worker: &WorkerId,
        finishes: &[Finish],
        next: Option<&ClaimRequest>,
    ) -> Result<Finished, ServiceError> {
        let (answers, next) = match next {
            None => (Manager::finish(self, worker, finishes.to_vec()).await, Ok(Vec::new())),
            Some(next) => {
                let (answers, claimed) = self.finish_and_claim(worker, finishes.to_vec(), unnamed(next)).await;
                (answers, delivered(claimed))
            }
        };
        let finish = |answer| match answer {
            Ok(crate::store::Versioned { job, .. }) => FinishAnswer::Accepted { state: Some(job.state.name()) },
            Err(ManagerError::Refused(Refusal::LeaseLost { .. }) | ManagerError::NotFound(_)) => FinishAnswer::Lost,
            Err(error) => match service_error(error) {
                ServiceError::Unavailable(why) | ServiceError::Closing(why) => FinishAnswer::Again(why),
                ServiceError::Refused(why) => FinishAnswer::Refused(why),
            },
        };
        Ok(Finished { answers: answers.into_iter().map(finish).collect(), next })
    }
}

/// Returns the claim without its name. No answer is lost within a process, so the claim needs none; a dropped call
/// without a name takes no job.
fn unnamed(request: &ClaimRequest) -> ClaimRequest {
    ClaimRequest { request_id: None, ..request.clone() }
}

/// Takes over the jobs of a claim.
pub(super) fn delivered(claimed: Result<Claimed, ManagerError>) -> Result<Vec<ClaimedJob>, ServiceError> {
    let claimed = claimed.map_err(service_error)?;
    let jobs = claimed.jobs().iter().map(claimed_job).collect();
    claimed.delivered();
    Ok(jobs)
}

fn claimed_job(view: &JobView) -> ClaimedJob {
    let job = &view.versioned.job;
    ClaimedJob {
        id: job.id.clone(),
        fence: job.fence,
        attempt: job.attempt.get(),
        queue: job.spec.queue.clone(),
        kind: job.spec.kind.clone(),
        payload: view.payload.clone(),
        timeout: job.spec.timeout,
        resources: job.spec.resources.clone(),
    }
}

fn service_error(error: ManagerError) -> ServiceError {
    match error {
        ManagerError::Contended { .. } | ManagerError::Store(_) | ManagerError::Unknown(_) => {
            ServiceError::Unavailable(error.to_string())
        }
        ManagerError::ShuttingDown => ServiceError::Closing(error.to_string()),
        ManagerError::NotFound(_)
        | ManagerError::Invalid { .. }
        | ManagerError::SubmissionDiffers(_)
        | ManagerError::VersionDiffers(_)
        | ManagerError::Duplicate(_)
        | ManagerError::Refused(_) => ServiceError::Refused(error.to_string()),
    }
}
