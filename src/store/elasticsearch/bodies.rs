//! Bodies that are kept apart: written before the jobs that refer to them, removed after them.
//!
//! A body's id is fresh and its content never changes, so it is written without a condition: writing it twice is as
//! good as once, and an acknowledgement means what it says also for the second try.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::bulk::{Action, ItemOutcome, Lines, Target, chunks};
use super::context::{Context, Sent};
use super::document::holds_secrets;
use super::documents::{mget, parse_mget};
use super::encryption::{EncryptionKeys, SecretField};
use super::nodes::Nodes;
use crate::job::{Body, BodyId, BodyRef, Job, Json, NewBody};
use crate::store::StoreError;

/// The most bodies in one request.
const MAX_ITEMS: usize = 1_000;
/// The wait before rejected bodies are sent again.
const BACKOFF: Duration = Duration::from_millis(100);

/// A body as a document. The JSON is kept as a string, so that the index accepts any JSON and returns it unchanged.
#[derive(Serialize)]
pub(super) struct BodyDocument<'a> {
    job_id: &'a str,
    json: Cow<'a, str>,
}

impl<'a> BodyDocument<'a> {
    /// Returns the document of a body of this job, which is encrypted where it is a payload that may hold secrets.
    ///
    /// # Errors
    /// The body cannot be encrypted.
    pub(super) fn new(job: &'a Job, body: &'a NewBody, keys: &EncryptionKeys) -> Result<Self, String> {
        let (is_payload, json) = (job.payload == Body::Stored(body.reference), body.json.as_str());
        let json = match !keys.is_empty() && is_payload && holds_secrets(job, &body.json) {
            true => keys.encrypt(secret(&document_id(body.reference.id)), json)?,
            false => json.into(),
        };
        Ok(Self { job_id: job.id.as_str(), json })
    }
}

fn secret(id: &str) -> SecretField<'_> {
    SecretField { kind: "body", id, name: "json" }
}

#[derive(Deserialize)]
struct StoredBody {
    json: String,
}

/// Writes `bodies`, each for the job given with it, and returns for each whether it is durable.
pub(super) async fn store(
    shared: &Context,
    bodies: &[(&Job, &NewBody)],
    deadline: Instant,
) -> Vec<Result<(), StoreError>> {
    let mut results = Vec::with_capacity(bodies.len());
    for chunk in chunks(bodies, MAX_ITEMS, |(_, body)| body.json.bytes()) {
        results.extend(store_chunk(shared, chunk, deadline).await);
    }
    results
}

async fn store_chunk(shared: &Context, bodies: &[(&Job, &NewBody)], deadline: Instant) -> Vec<Result<(), StoreError>> {
    let mut results: Vec<Option<Result<(), StoreError>>> = vec![None; bodies.len()];
    let mut obstacle = String::new();
    loop {
        let open: Vec<usize> = (0..bodies.len()).filter(|index| results[*index].is_none()).collect();
        if open.is_empty() || Instant::now() >= deadline {
            break;
        }
        let chosen: Vec<&(&Job, &NewBody)> = open.iter().map(|index| &bodies[*index]).collect();
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

async fn send(shared: &Context, bodies: &[&(&Job, &NewBody)], deadline: Instant) -> Vec<ItemOutcome> {
    let mut lines = Lines::with_capacity(bodies.iter().map(|(_, body)| body.json.bytes() + 200).sum());
    for (job, body) in bodies {
        let id = document_id(body.reference.id);
        let document = BodyDocument::new(job, body, &shared.indices.encryption);
        let added = document.and_then(|document| {
            lines.add(&Action::Index(Target::any(&id)), Some(&document)).map_err(|error| error.to_string())
        });
        if let Err(why) = added {
            return vec![ItemOutcome::Invalid(why); bodies.len()];
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
    keys: &EncryptionKeys,
    deadline: Instant,
) -> Result<Vec<Option<Json>>, StoreError> {
    let mut bodies = Vec::with_capacity(references.len());
    for chunk in chunks(references, MAX_ITEMS, |reference| reference.bytes as usize) {
        let ids: Vec<String> = chunk.iter().map(|reference| document_id(reference.id)).collect();
        let reply = mget(nodes, index, &ids, deadline).await?;
        let mut found: HashMap<String, Json> = HashMap::with_capacity(ids.len());
        for document in parse_mget(&reply, ids.len())? {
            let Some(source) = document.source()? else { continue };
            let unreadable = |why: String| StoreError::Unreadable { what: format!("the body `{}`", document.id), why };
            let stored: StoredBody =
                serde_json::from_str(source.get()).map_err(|error| unreadable(error.to_string()))?;
            let json = keys.decrypt(secret(&document.id), stored.json.into()).map_err(unreadable)?;
            let json = Json::parse(json.into_owned()).map_err(|error| unreadable(error.to_string()))?;
            found.insert(document.id.clone(), json);
        }
        bodies.extend(ids.iter().map(|id| found.get(id).cloned()));
    }
    Ok(bodies)
}

fn document_id(body: BodyId) -> String {
    body.0.hyphenated().to_string()
}
