//! The id of a job as a person types it: whole, or its end as tables show it.

use super::failure::Failure;
use crate::client::{Client, ClientError, JobQuery};

/// The fewest characters of a short id. Fewer would often fit several jobs.
const LEAST: usize = 6;
/// The characters of a whole id that has a short form, which is a UUID.
const WHOLE: usize = 36;
/// How many jobs are named when a short id fits several.
const CANDIDATES: u64 = 10;

/// Returns the whole id of the job that `typed` names. What is the id of a job is that job; otherwise the only job
/// whose id ends so is found by the server. What cannot be the end of a UUID, and what fits no job, is returned as it
/// is.
pub(super) async fn resolve(client: &Client, typed: &str) -> Result<String, Failure> {
    let typed = typed.trim();
    if !may_be_short(typed) || is_known(client, typed).await? {
        return Ok(typed.to_owned());
    }
    let query = JobQuery { kql: Some(format!("id: *{typed}")), limit: Some(CANDIDATES + 1), ..JobQuery::default() };
    let ids = ["id", "kind", "queue"].map(str::to_owned);
    let found = client.job_parts(&query, &ids).await?.items;
    let found: Vec<Found> = found.iter().filter_map(|job| serde_json::from_str(job.as_str()).ok()).collect();
    match found.as_slice() {
        [] => Ok(typed.to_owned()),
        [one] => Ok(one.id.clone()),
        several => Err(Failure::Usage(ambiguous(typed, several))),
    }
}

/// Returns the whole ids, in the same order.
pub(super) async fn resolve_all(client: &Client, typed: &[String]) -> Result<Vec<String>, Failure> {
    let mut ids: Vec<String> = Vec::with_capacity(typed.len());
    for one in typed {
        ids.push(resolve(client, one).await?);
    }
    Ok(ids)
}

/// What is said of a job that a short id fits.
#[derive(serde::Deserialize)]
struct Found {
    id: String,
    kind: String,
    queue: String,
}

fn may_be_short(typed: &str) -> bool {
    (LEAST..WHOLE).contains(&typed.len()) && typed.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}

async fn is_known(client: &Client, id: &str) -> Result<bool, ClientError> {
    match client.job(id).await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some("not_found") => Ok(false),
        Err(error) => Err(error),
    }
}

fn ambiguous(typed: &str, found: &[Found]) -> String {
    let shown = usize::try_from(CANDIDATES).unwrap_or(usize::MAX);
    let jobs = found.iter().take(shown).map(|job| format!("\n  {} ({} in {})", job.id, job.kind, job.queue));
    let more = if found.len() > shown { "\n  \u{2026} and more" } else { "" };
    format!("several jobs have an id that ends in {typed}; give more of it:{}{more}", jobs.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_uuid_is_looked_for() {
        for short in ["bdad0cd5", "a6ac-bbdcbdad0cd5", "deadbeef"] {
            assert!(may_be_short(short), "{short}");
        }
        for whole in ["my-job", "abc", "0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd5", "nightly:7", "dead beef", ""] {
            assert!(!may_be_short(whole), "{whole}");
        }
    }
}
