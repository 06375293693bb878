//! A server over HTTP as the service of a worker.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use http::{Method, StatusCode};

use super::transport::Repeat;
use crate::client::{Client, ClientError};
use crate::clock::millis;
use crate::job::{Fence, InvalidName, JobId, Kind, QueueName, WorkerId};
use crate::manager::{ClaimOrder, ClaimRequest, Finish, Heartbeat, Outcome, OutputPiece, QueueOrder, Recall};
use crate::wire;
use crate::worker::{Beat, ClaimedJob, FinishAnswer, Finished, JobService, PieceAnswer, ServiceError};

/// The code of the problem with which a server that is being stopped answers.
const SHUTTING_DOWN: &str = "shutting_down";

impl Client {
    /// Waits until attempts of a worker have to end early, for `wait` (at most a minute), and returns these.
    ///
    /// # Errors
    /// See [`ClientError`]; `no_such_route` from a server that does not know the call yet.
    pub async fn recalls(
        &self,
        worker_id: &str,
        held: &wire::AwaitRecalls,
        wait: Duration,
    ) -> Result<Vec<Recall>, ClientError> {
        let call = self.call(Method::POST, &["v1", "workers", worker_id, "recalls"], Repeat::Safe);
        let call = call.query("wait_ms", &millis(wait).to_string()).json(held)?.waiting(wait);
        Ok(self.send::<wire::RecallList>(call).await?.items)
    }
}

#[async_trait]
impl JobService for Client {
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError> {
        claim(self, request, request.max_jobs, request.wait).await
    }

    async fn recover_claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError> {
        claim(self, request, 1, Duration::ZERO).await
    }

    async fn heartbeat(&self, worker: &WorkerId, beats: &[Heartbeat]) -> Result<Vec<Beat>, ServiceError> {
        let leases = beats.iter().map(lease_beat).collect();
        let call = wire::HeartbeatJobs { worker_id: worker.as_str().to_owned(), leases };
        let answers = self.heartbeats(&call).await.map_err(service_error)?;
        Ok(answers.iter().map(beat).collect())
    }

    async fn put_output(&self, worker: &WorkerId, pieces: &[OutputPiece]) -> Result<Vec<PieceAnswer>, ServiceError> {
        let pieces = pieces.iter().map(wire::PieceOfOutput::from).collect();
        let call = wire::PutOutputs { worker_id: worker.as_str().to_owned(), pieces };
        Ok(self.put_outputs(&call).await.map_err(service_error)?.into_iter().map(piece_answer).collect())
    }

    async fn recalls(
        &self,
        worker: &WorkerId,
        leases: &[(JobId, Fence)],
        wait: Duration,
    ) -> Result<Vec<Recall>, ServiceError> {
        let lease = |(id, fence): &(JobId, Fence)| wire::HeldLease { id: id.as_str().to_owned(), fence: fence.get() };
        let held = wire::AwaitRecalls { leases: leases.iter().map(lease).collect() };
        Client::recalls(self, worker.as_str(), &held, wait).await.map_err(service_error)
    }

    /// The bulk call ends attempts and a call of its own releases a job, so the two kinds travel apart. The releases
    /// go first, so that jobs that come with the answer to the bulk call do not wait for them without heartbeats.
    async fn finish(
        &self,
        worker: &WorkerId,
        finishes: &[Finish],
        next: Option<&ClaimRequest>,
    ) -> Result<Finished, ServiceError> {
        let worker_id = worker.as_str().to_owned();
        let mut released = Vec::new();
        for finish in finishes {
            if let Outcome::Released { reason, delay } = &finish.outcome {
                released.push(release(self, &worker_id, finish, reason, *delay).await);
            }
        }
        let items: Vec<wire::Completion> = finishes.iter().filter_map(completion).collect();
        let ended = match items.is_empty() {
            true => wire::EndsAnswer { items: Vec::new(), next: None },
            false => {
                let call = wire::FinishJobs { worker_id, items, next: next.map(claim_next) };
                match self.finish_and_claim(&call).await {
                    Err(error) if knows_no_kinds(&error, "next.kinds") => {
                        let next = call.next.map(|next| wire::ClaimNext { kinds: Vec::new(), ..next });
                        self.finish_and_claim(&wire::FinishJobs { next, ..call }).await
                    }
                    ended => ended,
                }
                .map_err(service_error)?
            }
        };
        let (mut released, mut items) = (released.into_iter(), ended.items.into_iter());
        let answer = |finish: &Finish| match &finish.outcome {
            Outcome::Released { .. } => released.next(),
            Outcome::Completed { .. } | Outcome::Failed { .. } => items.next().map(finish_answer),
        };
        let too_few = || FinishAnswer::Again("the server answered fewer items than it was asked".to_owned());
        let answers = finishes.iter().map(answer).map(|answer| answer.unwrap_or_else(too_few)).collect();
        Ok(Finished { answers, next: ended.next.map_or(Ok(Vec::new()), next_jobs) })
    }
}

async fn claim(
    client: &Client,
    request: &ClaimRequest,
    max_jobs: usize,
    wait: Duration,
) -> Result<Vec<ClaimedJob>, ServiceError> {
    let (queue_order, queue_weights) = queue_order(&request.order);
    let call = wire::ClaimJobs {
        worker_id: request.worker_id.as_str().to_owned(),
        queues: request.queues.iter().map(|queue| queue.as_str().to_owned()).collect(),
        max_jobs: Some(max_jobs as u64),
        resources: request.resources.clone(),
        labels: request.labels.clone(),
        kinds: request.kinds.iter().map(|kind| kind.as_str().to_owned()).collect(),
        wait_ms: Some(millis(wait)),
        lease_ms: Some(millis(request.lease)),
        queue_order,
        queue_weights,
        request_id: request.request_id.as_ref().map(|id| id.as_str().to_owned()),
        repeated: request.repeated,
    };
    let claimed = match client.claim(&call).await {
        Err(error) if knows_no_kinds(&error, "kinds") => {
            client.claim(&wire::ClaimJobs { kinds: Vec::new(), ..call }).await
        }
        claimed => claimed,
    };
    claimed_jobs(claimed.map_err(service_error)?.jobs)
}

/// Returns whether a server refused a call since it is of a version whose claims name no kinds, as one may be while the
/// servers are upgraded. The call is made again without them: such a server hands out jobs of any kind, as it always
/// has.
fn knows_no_kinds(error: &ClientError, field: &str) -> bool {
    let ClientError::Problem { problem, .. } = error else { return false };
    problem.errors.iter().any(|fault| fault.field == field && fault.message.starts_with("unknown field"))
}

/// Returns the order in which a claim takes from its queues as it travels: the default is not named.
fn queue_order(order: &ClaimOrder) -> (Option<QueueOrder>, BTreeMap<String, u64>) {
    let word = Some(order.word()).filter(|word| *word != QueueOrder::default());
    let weights = order.weights().into_iter().flat_map(|weights| weights.iter());
    (word, weights.map(|(queue, weight)| (queue.as_str().to_owned(), u64::from(*weight))).collect())
}

fn claim_next(request: &ClaimRequest) -> wire::ClaimNext {
    let (queue_order, queue_weights) = queue_order(&request.order);
    wire::ClaimNext {
        queues: request.queues.iter().map(|queue| queue.as_str().to_owned()).collect(),
        max_jobs: Some(request.max_jobs as u64),
        resources: request.resources.clone(),
        labels: request.labels.clone(),
        kinds: request.kinds.iter().map(|kind| kind.as_str().to_owned()).collect(),
        wait_ms: Some(millis(request.wait)),
        lease_ms: Some(millis(request.lease)),
        queue_order,
        queue_weights,
        request_id: request.request_id.as_ref().map_or_else(String::new, |id| id.as_str().to_owned()),
        repeated: request.repeated,
    }
}

fn next_jobs(next: wire::NextJobs) -> Result<Vec<ClaimedJob>, ServiceError> {
    match next.error {
        None => claimed_jobs(next.jobs),
        Some(error) if error.code == SHUTTING_DOWN => Err(ServiceError::Closing(error.message)),
        Some(error) => Err(ServiceError::Unavailable(error.message)),
    }
}

fn claimed_jobs(jobs: Vec<wire::Job>) -> Result<Vec<ClaimedJob>, ServiceError> {
    let jobs: Result<Vec<ClaimedJob>, InvalidName> = jobs.into_iter().map(claimed_job).collect();
    jobs.map_err(|error| ServiceError::Refused(format!("the server's answer has a bad name: {error}")))
}

fn claimed_job(job: wire::Job) -> Result<ClaimedJob, InvalidName> {
    Ok(ClaimedJob {
        id: JobId::new(&job.id)?,
        fence: Fence::new(job.fence),
        attempt: job.attempt,
        queue: QueueName::new(&job.queue)?,
        kind: Kind::new(&job.kind)?,
        payload: job.payload.as_json().cloned(),
        timeout: job.timeout_ms.map(Duration::from_millis),
        resources: job.resources.into_owned(),
    })
}

fn lease_beat(beat: &Heartbeat) -> wire::LeaseBeat {
    let progress = beat.progress.clone();
    wire::LeaseBeat { id: beat.id.as_str().to_owned(), fence: beat.fence.get(), progress }
}

fn beat(item: &wire::HeartbeatItem) -> Beat {
    match (item.cancel_requested, StatusCode::from_u16(item.status)) {
        (Some(cancel_requested), _) => Beat::Held { cancel_requested },
        // 403 says of one lease that it was taken with a token of another name.
        (None, Ok(StatusCode::CONFLICT | StatusCode::NOT_FOUND | StatusCode::FORBIDDEN)) => Beat::Lost,
        (None, _) => Beat::Undecided,
    }
}

/// Returns the item for the bulk call; `None` for a release.
fn completion(finish: &Finish) -> Option<wire::Completion> {
    let ended = wire::Completion {
        id: finish.id.as_str().to_owned(),
        fence: finish.fence.get(),
        ..wire::Completion::default()
    };
    match &finish.outcome {
        Outcome::Completed { result } => Some(wire::Completion { result: result.clone(), ..ended }),
        Outcome::Failed { error, retryable, retry_after } => Some(wire::Completion {
            error: Some(error.clone()),
            retryable: Some(*retryable),
            retry_after_ms: retry_after.map(millis),
            ..ended
        }),
        Outcome::Released { .. } => None,
    }
}

async fn release(client: &Client, worker_id: &str, finish: &Finish, reason: &str, delay: Duration) -> FinishAnswer {
    let release = wire::ReleaseJob {
        worker_id: worker_id.to_owned(),
        fence: finish.fence.get(),
        reason: Some(reason.to_owned()),
        delay_ms: (!delay.is_zero()).then(|| millis(delay)),
    };
    match client.release(finish.id.as_str(), &release).await {
        Ok(job) => FinishAnswer::Accepted { state: Some(job.state) },
        Err(error) => match error.status() {
            Some(status) => refused(status, error.to_string()),
            None => FinishAnswer::Again(error.to_string()),
        },
    }
}

fn finish_answer(item: wire::CompletionItem) -> FinishAnswer {
    match item.error {
        None => FinishAnswer::Accepted { state: item.state },
        Some(error) => refused(item.status, error.message),
    }
}

fn piece_answer(item: wire::OutputItem) -> PieceAnswer {
    match (item.error, StatusCode::from_u16(item.status)) {
        (None, _) => PieceAnswer::Kept,
        (Some(error), Ok(status)) if may_pass(status) => PieceAnswer::Again(error.message),
        (Some(_), _) => PieceAnswer::Refused,
    }
}

fn refused(status: u16, why: String) -> FinishAnswer {
    match StatusCode::from_u16(status) {
        Ok(StatusCode::CONFLICT | StatusCode::NOT_FOUND) => FinishAnswer::Lost,
        Ok(status) if may_pass(status) => FinishAnswer::Again(why),
        Ok(_) => FinishAnswer::Refused(why),
        Err(_) => FinishAnswer::Again(why),
    }
}

fn service_error(error: ClientError) -> ServiceError {
    let why = error.to_string();
    match &error {
        ClientError::Usage(_) => ServiceError::Refused(why),
        ClientError::Problem { problem, .. } => match StatusCode::from_u16(problem.status) {
            Ok(status) if !may_pass(status) => ServiceError::Refused(why),
            _ if problem.code == SHUTTING_DOWN => ServiceError::Closing(why),
            _ => ServiceError::Unavailable(why),
        },
        // Servers that cannot serve, of which one may be stopped while another has not begun.
        ClientError::Servers(_) if error.code() == Some(SHUTTING_DOWN) => ServiceError::Closing(why),
        // Not a server's answer, but that of a proxy in front of it.
        ClientError::Servers(_)
        | ClientError::Decode { .. }
        | ClientError::Connect(_)
        | ClientError::Timeout(_)
        | ClientError::Broken(_) => ServiceError::Unavailable(why),
    }
}

fn may_pass(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
}
