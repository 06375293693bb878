//! Bodies that are kept apart: written before the jobs that refer to them, removed after them.
//!
//! A body's id is fresh and its content never changes, so it is written without a condition: writing it twice is as
//! good as once, and an acknowledgement means what it says also for the second try.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::bulk::{Action, ItemOutcome, Lines, Target, chunks};
use super::context::{Context, Sent};
use super::documents::{mget, parse_mget};
use super::nodes::Nodes;
use crate::job::{BodyId, BodyRef, JobId, Json, NewBody};
use crate::store::StoreError;

/// The most bodies in one request.
const MAX_ITEMS: usize = 1_000;
/// The wait before rejected bodies are sent again.
const BACKOFF: Duration = Duration::from_millis(100);

/// A body as a document. The JSON is kept as a string, so that the index accepts any JSON and returns it unchanged.
#[derive(Serialize)]
pub(super) struct BodyDocument<'a> {
    job_id: &'a str,
    json: &'a str,
}

impl<'a> BodyDocument<'a> {
    /// Returns the document of a body of this job.
    pub(super) fn new(job: &'a JobId, body: &'a NewBody) -> Self {
        Self { job_id: job.as_str(), json: body.json.as_str() }
    }
}

#[derive(Deserialize)]
struct StoredBody {
    json: String,
}

/// Writes `bodies`, each for the job given with it, and returns for each whether it is durable.
pub(super) async fn store(
    shared: &Context,
    bodies: &[(&JobId, &NewBody)],
    deadline: Instant,
) -> Vec<Result<(), StoreError>> {
    let mut results = Vec::with_capacity(bodies.len());
    for chunk in chunks(bodies, MAX_ITEMS, |(_, body)| body.json.bytes()) {
        results.extend(store_chunk(shared, chunk, deadline).await);
    }
    results
}

async fn store_chunk(
    shared: &Context,
    bodies: &[(&JobId, &NewBody)],
    deadline: Instant,
) -> Vec<Result<(), StoreError>> {
    let mut results: Vec<Option<Result<(), StoreError>>> = vec![None; bodies.len()];
    let mut obstacle = String::new();
    loop {
        let open: Vec<usize> = (0..bodies.len()).filter(|index| results[*index].is_none()).collect();
        if open.is_empty() || Instant::now() >= deadline {
            break;
        }
        let chosen: Vec<&(&JobId, &NewBody)> = open.iter().map(|index| &bodies[*index]).collect();
        for (index, outcome) in open.into_iter().zip(send(shared, &chosen, deadline).await) {
            match outcome {
                ItemOutcome::Done(_) => results[index] = Some(Ok(())),
                ItemOutcome::Invalid(reason) => results[index] = Some(Err(StoreError::Corrupt(reason))),
                ItemOutcome::Denied(reason) => results[index] = Some(Err(StoreError::Unavailable(reason))),
                ItemOutcome::OutOfOrder(fault) | ItemOutcome::Withheld(fault) => {
                    results[index] = Some(Err(fault.into()));
                }
                ItemOutcome::NotDone(reason) | ItemOutcome::Unsure(reason) => obstacle = reason,
                ItemOutcome::Conflict => "a conflict without a condition".clone_into(&mut obstacle),
            }
        }
        if results.iter().any(Option::is_none) {
            sleep(BACKOFF.min(deadline.saturating_duration_since(Instant::now()))).await;
        }
    }
    let unavailable = || Err(StoreError::Unavailable(obstacle.clone()));
    results.into_iter().map(|result| result.unwrap_or_else(unavailable)).collect()
}

async fn send(shared: &Context, bodies: &[&(&JobId, &NewBody)], deadline: Instant) -> Vec<ItemOutcome> {
    let mut lines = Lines::with_capacity(bodies.iter().map(|(_, body)| body.json.bytes() + 200).sum());
    for (job_id, body) in bodies {
        let id = document_id(body.reference.id);
        if let Err(error) = lines.add(&Action::Index(Target::any(&id)), Some(&BodyDocument::new(job_id, body))) {
            return vec![ItemOutcome::Invalid(error.to_string()); bodies.len()];
        }
    }
    shared.send(&shared.indices.bodies, lines, deadline).await.into_iter().map(|sent| sent.outcome).collect()
}

/// Removes bodies that nothing refers to any more. This is tried once: a body left over takes up space and does no
/// harm.
pub(super) async fn remove(shared: &Context, bodies: &[BodyId]) {
    for chunk in bodies.chunks(MAX_ITEMS) {
        let mut lines = Lines::with_capacity(chunk.len() * 70);
        for body in chunk {
            // An id is always JSON; were it not, the body would stay behind.
            let _ = lines.delete(Target::any(&document_id(*body)));
        }
        let deadline = Instant::now() + shared.request_timeout;
        let sent = shared.send(&shared.indices.bodies, lines, deadline).await;
        let is_gone = |sent: &&Sent| matches!(sent.outcome, ItemOutcome::Done(_) | ItemOutcome::Conflict);
        let left = sent.len() - sent.iter().filter(is_gone).count();
        if left > 0 {
            metrics::counter!("leasehold_store_bodies_left_total").increment(left as u64);
            tracing::debug!(bodies = left, "bodies are left over");
        }
    }
}

/// Reads bodies in real time and returns them in the order requested.
pub(super) async fn read(
    nodes: &Nodes,
    index: &str,
    references: &[BodyRef],
    deadline: Instant,
) -> Result<Vec<Option<Json>>, StoreError> {
    let mut bodies = Vec::with_capacity(references.len());
    for chunk in chunks(references, MAX_ITEMS, |reference| reference.bytes as usize) {
        let ids: Vec<String> = chunk.iter().map(|reference| document_id(reference.id)).collect();
        let reply = mget(nodes, index, &ids, deadline).await?;
        let mut found: HashMap<String, Json> = HashMap::with_capacity(ids.len());
        for document in parse_mget(&reply, ids.len())? {
            let Some(source) = document.source()? else { continue };
            let unreadable = |error: serde_json::Error| StoreError::Unreadable {
                what: format!("the body `{}`", document.id),
                why: error.to_string(),
            };
            let stored: StoredBody = serde_json::from_str(source.get()).map_err(unreadable)?;
            found.insert(document.id.clone(), Json::parse(stored.json).map_err(unreadable)?);
        }
        bodies.extend(ids.iter().map(|id| found.get(id).cloned()));
    }
    Ok(bodies)
}

fn document_id(body: BodyId) -> String {
    body.0.hyphenated().to_string()
}
