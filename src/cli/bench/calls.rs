//! The calls of the measuring clients and workers. Bodies are built once, and of the answers only what is needed is
//! read.

use bytes::Bytes;
use serde::Deserialize;

use super::target::Target;
use crate::cli::failure::Failure;
use crate::wire::BulkAnswer;

const JSON: &str = "application/json";
/// The most characters of a refusal of many jobs that are shown.
const SHOWN_CHARS: usize = 300;

impl Target {
    /// Submits one job.
    pub(super) async fn submit(&self, job: Bytes) -> Result<(), Failure> {
        self.client.post_bytes(&["v1", "jobs"], JSON, job).await?;
        Ok(())
    }

    /// Submits jobs, one per line. Fails when one is refused or known already.
    pub(super) async fn submit_bulk(&self, lines: Bytes) -> Result<(), Failure> {
        let answer = self.client.post_bytes(&["v1", "jobs", "bulk"], "application/x-ndjson", lines).await?;
        let refused = read::<BulkAnswer<Item>>(&answer)?.items.iter().filter(|item| item.status != 201).count();
        match refused {
            0 => Ok(()),
            _ => {
                let shown: String = String::from_utf8_lossy(&answer).chars().take(SHOWN_CHARS).collect();
                Err(Failure::Failed(format!("{refused} jobs of a bulk were refused: {shown}")))
            }
        }
    }

    /// Claims jobs with the body of [`claim_body`]. [`Claimed`] is read from the answer.
    pub(super) async fn claim(&self, body: &Bytes) -> Result<Bytes, Failure> {
        Ok(self.client.post_bytes(&["v1", "claims"], JSON, body.clone()).await?)
    }

    /// Completes a job that this worker claimed.
    pub(super) async fn complete(&self, worker: &str, job: &ClaimedJob<'_>) -> Result<(), Failure> {
        let body = Bytes::from(format!("{{\"worker_id\":\"{worker}\",\"fence\":{}}}", job.fence));
        self.client.post_bytes(&["v1", "jobs", job.id, "complete"], JSON, body).await?;
        Ok(())
    }

    /// Completes jobs that this worker claimed and, with the body of [`claim_next`], claims the next ones. [`Ended`] is
    /// read from the answer.
    pub(super) async fn complete_bulk(
        &self,
        worker: &str,
        jobs: &[ClaimedJob<'_>],
        next: Option<String>,
    ) -> Result<Bytes, Failure> {
        let items: Vec<String> =
            jobs.iter().map(|job| format!("{{\"id\":\"{}\",\"fence\":{}}}", job.id, job.fence)).collect();
        let next = next.map_or_else(String::new, |next| format!(",\"next\":{next}"));
        let body = format!("{{\"worker_id\":\"{worker}\",\"items\":[{}]{next}}}", items.join(","));
        Ok(self.client.post_bytes(&["v1", "completions"], JSON, Bytes::from(body)).await?)
    }
}

/// Returns the claim of the next jobs, under a name of its own. It does not wait, so that completions are counted in
/// time.
pub(super) fn claim_next(queue: &str, max_jobs: u32) -> String {
    let name = uuid::Uuid::new_v4().simple();
    format!("{{\"queues\":[\"{queue}\"],\"max_jobs\":{max_jobs},\"request_id\":\"{name}\"}}")
}

/// Returns the body of a claim, which is the same for every call of a worker.
pub(super) fn claim_body(worker: &str, queue: &str, max_jobs: u32, wait_ms: u32) -> Bytes {
    Bytes::from(format!(
        "{{\"worker_id\":\"{worker}\",\"queues\":[\"{queue}\"],\"max_jobs\":{max_jobs},\"wait_ms\":{wait_ms}}}"
    ))
}

/// The part of a claim's answer that is needed to complete the jobs.
#[derive(Deserialize)]
pub(super) struct Claimed<'a> {
    #[serde(borrow)]
    pub(super) jobs: Vec<ClaimedJob<'a>>,
}

/// The part of the answer to completions that is needed to count them and to go on.
#[derive(Deserialize)]
pub(super) struct Ended<'a> {
    items: Vec<Item>,
    #[serde(borrow)]
    next: Option<Claimed<'a>>,
}

impl<'a> Ended<'a> {
    /// Returns how many completions were accepted.
    pub(super) fn accepted(&self) -> u64 {
        self.items.iter().filter(|item| item.status == 200).count() as u64
    }

    /// Returns the next jobs, where they were claimed.
    pub(super) fn next(self) -> Vec<ClaimedJob<'a>> {
        self.next.map_or_else(Vec::new, |next| next.jobs)
    }
}

/// A job of a claim's answer.
#[derive(Deserialize)]
pub(super) struct ClaimedJob<'a> {
    pub(super) id: &'a str,
    pub(super) fence: u64,
    pub(super) payload: Payload,
}

/// The job's number, where it has one.
#[derive(Deserialize)]
pub(super) struct Payload {
    #[serde(default)]
    pub(super) n: u32,
}

/// Whether an item of a bulk call succeeded.
#[derive(Deserialize)]
struct Item {
    status: u16,
}

/// Parses an answer.
pub(super) fn read<'a, T: Deserialize<'a>>(answer: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(answer).map_err(|error| Failure::Failed(format!("the answer cannot be read: {error}")))
}
