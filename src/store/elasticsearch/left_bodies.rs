//! Bodies to which no job refers: a crash between a body and its job leaves one behind, and so does a clearing that
//! failed.
//!
//! Nothing says of a body when it was written, and its job may be about to be. So a body goes once no job has referred
//! to it for so long that no write of such a job can be under way: a write that takes longer brings its bodies again
//! ([`is_due_again`]). What was seen is in the memory of one process, and another one waits as long again.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::bodies;
use super::context::Context;
use super::documents::RawDocument;
use super::locate::Located;
use super::search::{Page, Scope, page};
use crate::clock::Timestamp;
use crate::job::{BodyId, JobId};
use crate::store::{Sought, StoreError};

/// How long no job refers to a body before it is removed.
const LEFT_AFTER: Duration = Duration::from_secs(24 * 3600);

/// After so long a write brings its bodies again: one of them may have been removed.
const AGAIN_AFTER: Duration = Duration::from_secs(3600);

/// The most bodies that are remembered. Others are noted in a later round.
const MAX_NOTED: usize = 100_000;

/// Returns whether bodies that were written at a time have to be written again before a job that refers to them.
pub(super) fn is_due_again(written: Timestamp, now: Timestamp) -> bool {
    now.since(written) >= AGAIN_AFTER
}

/// What is known of the bodies to which no job refers.
#[derive(Default)]
pub(super) struct LeftBodies {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The job after whose bodies the next page begins, in the order of their ids.
    after: Option<Value>,
    /// When each body was found first that no job referred to then and since, and whether it was in this round.
    noted: HashMap<BodyId, Noted>,
}

struct Noted {
    since: Timestamp,
    in_this_round: bool,
}

impl Known {
    /// Takes note of a body to which no job refers. Returns whether it is to be removed.
    fn note(&mut self, body: BodyId, now: Timestamp) -> bool {
        if self.noted.len() >= MAX_NOTED && !self.noted.contains_key(&body) {
            return false;
        }
        let noted = self.noted.entry(body).or_insert(Noted { since: now, in_this_round: true });
        noted.in_this_round = true;
        // The clock was set back since.
        noted.since = noted.since.min(now);
        now.since(noted.since) >= LEFT_AFTER
    }

    /// Goes back to the first body, and forgets those that were gone in this round.
    fn begin_round(&mut self) {
        self.after = None;
        self.noted.retain(|_, noted| std::mem::take(&mut noted.in_this_round));
    }
}

/// A body that was found.
struct Found {
    body: BodyId,
    job: JobId,
    place: Value,
}

impl LeftBodies {
    /// Looks at the next bodies, `limit` at most, and removes those to which no job has referred for long enough.
    /// Returns how many.
    ///
    /// # Errors
    /// The error of the search, or of the look for the jobs: then the next page is looked at all the same.
    pub(super) async fn sweep(
        &self,
        shared: &Context,
        now: Timestamp,
        limit: usize,
        deadline: Instant,
    ) -> Result<usize, StoreError> {
        let found = self.next_page(shared, limit, deadline).await?;
        let jobs: HashSet<&JobId> = found.iter().map(|found| &found.job).collect();
        let jobs: Vec<&JobId> = jobs.into_iter().collect();
        let sought: Vec<Sought<'_>> = jobs.iter().map(|id| Sought::from(*id)).collect();
        let located = shared.locator(deadline).locate(&sought).await?;
        // The bodies of a job that is out of reach stay.
        let known: HashMap<&JobId, Vec<BodyId>> =
            jobs.into_iter().zip(located).filter_map(|(id, located)| Some((id, referred(located.ok()?)))).collect();
        let mut removed = Vec::new();
        {
            let mut seen = self.known.lock();
            for Found { body, job, .. } in &found {
                let Some(referred) = known.get(job) else { continue };
                if referred.contains(body) {
                    seen.noted.remove(body);
                } else if seen.note(*body, now) {
                    removed.push(*body);
                    seen.noted.remove(body);
                }
            }
        }
        bodies::remove(shared, &removed).await;
        Ok(removed.len())
    }

    /// Reads the next page of bodies, and moves on behind it: behind the last job of which it has all bodies.
    async fn next_page(&self, shared: &Context, limit: usize, deadline: Instant) -> Result<Vec<Found>, StoreError> {
        let mut body = page(&json!({ "match_all": {} }), limit);
        body["sort"] = json!([{ "job_id": "asc" }]);
        body["_source"] = json!(false);
        if let Some(after) = self.known.lock().after.clone() {
            body["search_after"] = after;
        }
        let scope = Scope::new(&shared.nodes, &shared.indices.bodies, deadline);
        let Page { hits, mut found, .. } = scope.page(&body, read).await?;
        let mut known = self.known.lock();
        if hits < limit {
            known.begin_round();
            return Ok(found);
        }
        // The last job may have more of them on the next page.
        let last = found.last().map(|found| found.job.clone());
        let whole = found.partition_point(|found| Some(&found.job) < last.as_ref());
        if whole > 0 {
            found.truncate(whole);
        }
        known.after = found.last().map(|found| found.place.clone());
        Ok(found)
    }
}

/// Reads a hit; `None` for what this program has not written.
fn read(hit: &RawDocument<'_>) -> Result<Option<Found>, StoreError> {
    let place: Option<Value> = hit.sort.map(RawValue::get).and_then(|sort| serde_json::from_str(sort).ok());
    let job = place.as_ref().and_then(|place| place.get(0)?.as_str()).and_then(|id| JobId::new(id).ok());
    let body = Uuid::parse_str(&hit.id).ok().map(BodyId);
    Ok(body.zip(job).zip(place).map(|((body, job), place)| Found { body, job, place }))
}

/// Returns the bodies to which a job refers; none where there is no such job.
fn referred(located: Located) -> Vec<BodyId> {
    let job = located.into_job();
    job.iter().flat_map(|found| found.job.stored_bodies()).map(|reference| reference.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: u64) -> Timestamp {
        Timestamp::from_millis(0).plus(Duration::from_secs(hours * 3600))
    }

    fn body(number: u128) -> BodyId {
        BodyId(Uuid::from_u128(number))
    }

    #[test]
    fn a_body_goes_once_nothing_has_referred_to_it_for_a_day() {
        let mut known = Known::default();
        assert!(!known.note(body(1), at(1)) && !known.note(body(1), at(24)));
        assert!(known.note(body(1), at(25)), "a day after it was found first");
        assert!(!known.note(body(2), at(25)), "another one was found now");
    }

    #[test]
    fn a_body_that_was_gone_for_a_round_is_noted_as_a_new_one() {
        let mut known = Known::default();
        known.note(body(1), at(0));
        known.begin_round();
        known.note(body(1), at(10));
        known.begin_round();
        known.begin_round();
        assert!(!known.note(body(1), at(30)) && known.noted.len() == 1);
    }

    #[test]
    fn a_body_that_was_noted_by_a_clock_that_was_ahead_waits_for_a_day_from_then() {
        let mut known = Known::default();
        known.note(body(1), at(100));
        assert!(!known.note(body(1), at(10)) && !known.note(body(1), at(33)));
        assert!(known.note(body(1), at(34)));
    }

    #[test]
    fn bodies_are_written_again_long_before_they_could_have_been_removed() {
        assert!(!is_due_again(at(0), at(0)) && is_due_again(at(0), at(1)));
        assert!(AGAIN_AFTER * 2 < LEFT_AFTER);
    }
}
