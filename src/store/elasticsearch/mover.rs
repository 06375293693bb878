//! The mover: keeps the live index small by moving settled jobs to the archive, a page at a time.
//!
//! A move is three conditional writes, any of which can be the last one done: the copy is created in its month and made
//! visible to searches; the job, if it is still the very writing that was copied, is replaced by a tombstone; the
//! tombstone goes when no write can be under way any more that met the job itself. After each of them the job is found
//! once, by the rules of [`super::archive`], and the next step goes on where the one before ended:
//!
//! - a copy is there already: if it is of the same writing it is confirmed by writing it once more, since what was read
//!   back may not be on every replica; if not, it is stale and goes;
//! - the job is no longer what was copied: the copy is stale and goes;
//! - a copy whose job came back to life before its tombstone was written is found by the job's history ([`sweep`]).
//!
//! Two movers at once do the same twice, which is as good as once.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::archive::Month;
use super::bulk::{Action, ItemOutcome, Lines, Target, chunks};
use super::context::Context;
use super::copies;
use super::definition::Definitions;
use super::document::WriteIds;
use super::documents::{RawDocument, Stored, mget_of, parse_mget};
use super::error::ConnectError;
use super::indices::Kind;
use super::nodes::Request;
use super::search::{Scope, page};
use super::tombstone::{self, Destination, TombstoneDocument};
use super::write_id::WriteId;
use crate::clock::Timestamp;
use crate::job::{Job, JobId, JobState};
use crate::store::{Archived, StoreError, Version};

/// The most jobs, tombstones or copies that one request is about.
const MAX_PAGE: usize = 1_000;

/// The mover of a store.
pub(super) struct Mover {
    /// How long after its end a settled job is moved.
    pub(super) move_after: Duration,
    /// How long a tombstone stays in the live index.
    pub(super) tombstone_after: Duration,
    /// The longest time that a step may take.
    pub(super) timeout: Duration,
    /// The definition of a month's index.
    month: Value,
    /// The months whose indices are known to exist.
    months: Mutex<HashSet<Month>>,
    /// The id after which the next step searches for jobs that came back.
    resume: Mutex<Option<String>>,
}

/// A job to be moved, as it was read.
struct Moving {
    id: JobId,
    version: Version,
    source: Box<RawValue>,
    write_id: Option<WriteId>,
    month: Month,
    came_back: bool,
}

impl Mover {
    pub(super) fn new(definitions: &Definitions<'_>) -> Result<Self, ConnectError> {
        let options = definitions.options;
        Ok(Self {
            move_after: options.move_after,
            tombstone_after: options.tombstone_after,
            timeout: options.write_timeout,
            month: definitions.of(Kind::Archive)?,
            months: Mutex::default(),
            resume: Mutex::default(),
        })
    }

    /// Does one step: handles one page of each task of the mover.
    pub(super) async fn step(&self, shared: &Context, now: Timestamp, limit: usize) -> Result<Archived, StoreError> {
        let limit = limit.min(MAX_PAGE);
        let pass = Pass { mover: self, shared, now, limit, deadline: Instant::now() + self.timeout };
        let mut archived = Archived::default();
        pass.sweep_those_that_came_back(&mut archived).await?;
        pass.clear_tombstones(&mut archived).await?;
        pass.move_settled(&mut archived).await?;
        if archived.moved + archived.cleared > 0 {
            // The next step must not find the same jobs again, and searches should stop finding them soon.
            copies::refresh(shared, &shared.indices.jobs, pass.deadline).await?;
        }
        if !archived.more {
            pass.drop_empty_months().await?;
        }
        Ok(archived)
    }
}

struct Pass<'a> {
    mover: &'a Mover,
    shared: &'a Context,
    now: Timestamp,
    limit: usize,
    deadline: Instant,
}

impl Pass<'_> {
    fn live(&self) -> Scope<'_> {
        Scope { nodes: &self.shared.nodes, index: &self.shared.indices.jobs, deadline: self.deadline }
    }

    /// Removes copies of live jobs that have ended before and were started again.
    async fn sweep_those_that_came_back(&self, archived: &mut Archived) -> Result<(), StoreError> {
        let came_back = json!({ "bool": { "filter": [
            { "terms": { "history.from": ended() } },
            { "term": { "history.to": JobState::Available.as_str() } },
        ] } });
        let came_back = json!({ "nested": { "path": "history", "query": came_back, "score_mode": "none" } });
        let mut body = page(&came_back, self.limit);
        body["sort"] = json!([{ "id": "asc" }]);
        body["_source"] = json!(false);
        if let Some(after) = self.mover.resume.lock().take() {
            body["search_after"] = json!([after]);
        }
        let ids = |hits: &[RawDocument<'_>]| Ok(hits.iter().filter_map(|hit| JobId::new(&hit.id).ok()).collect());
        let ids: Vec<JobId> = self.live().hits(&body, ids).await?;
        self.sweep(&ids.iter().collect::<Vec<_>>(), archived).await?;
        if ids.len() == self.limit {
            *self.mover.resume.lock() = ids.last().map(ToString::to_string);
        }
        Ok(())
    }

    /// Removes tombstones that have stood long enough.
    async fn clear_tombstones(&self, archived: &mut Archived) -> Result<(), StoreError> {
        let until = self.now.minus(self.mover.tombstone_after).as_millis();
        let old = json!({ "bool": { "filter": [
            { "exists": { "field": tombstone::FIELD } },
            { "range": { tombstone::SINCE: { "lte": until, "format": "epoch_millis" } } },
        ] } });
        let body = page(&old, self.limit);
        let indices = &self.shared.indices;
        let read = |hits: &[RawDocument<'_>]| {
            let mut found = Vec::with_capacity(hits.len());
            for hit in hits {
                let (Some(Stored::Tombstone(tombstone)), Ok(id)) = (hit.stored(indices)?, JobId::new(&hit.id)) else {
                    continue;
                };
                found.push((id, tombstone.document.version, tombstone.destination));
            }
            Ok(found)
        };
        let found: Vec<(JobId, Version, Destination)> = self.live().hits(&body, read).await?;
        archived.more |= found.len() == self.limit;
        // No copy of a removed job may outlive the tombstone that says so.
        let removed: Vec<&JobId> =
            found.iter().filter(|found| found.2 == Destination::Nowhere).map(|found| &found.0).collect();
        let keeps_removed = self.sweep(&removed, archived).await? > 0;
        let due = found.iter().filter(|found| !(keeps_removed && found.2 == Destination::Nowhere));
        let mut bulk = Lines::default();
        for (id, version, _) in due {
            bulk.delete(Target::at(id.as_str(), *version))?;
        }
        archived.cleared += self.send(bulk).await?.iter().filter(|outcome| is_done(outcome)).count();
        Ok(())
    }

    /// Moves a page of settled jobs.
    async fn move_settled(&self, archived: &mut Archived) -> Result<(), StoreError> {
        let found = self.find_settled().await?;
        let is_full = found.len() == self.limit;
        let before = archived.moved;
        let came_back: Vec<&JobId> = found.iter().filter(|moving| moving.came_back).map(|moving| &moving.id).collect();
        self.sweep(&came_back, archived).await?;
        for chunk in chunks(&found, MAX_PAGE, |moving| moving.source.get().len()) {
            self.move_chunk(chunk, archived).await?;
        }
        archived.more |= is_full && archived.moved > before;
        Ok(())
    }

    async fn find_settled(&self) -> Result<Vec<Moving>, StoreError> {
        let until = self.now.minus(self.mover.move_after).as_millis();
        let settled = json!({ "bool": {
            "filter": [
                { "terms": { "state": ended() } },
                { "range": { "finished_at": { "lte": until, "format": "epoch_millis" } } },
            ],
            "must_not": { "exists": { "field": "pending_notices" } },
        } });
        let mut body = page(&settled, self.limit);
        body["sort"] = json!([{ "finished_at": "asc" }]);
        let indices = &self.shared.indices;
        let read = |hits: &[RawDocument<'_>]| {
            let mut found = Vec::with_capacity(hits.len());
            for hit in hits {
                let Some(present) = hit.job(indices)? else { continue };
                let job = &present.job;
                let (true, Some(finished_at)) = (job.is_settled(), job.finished_at()) else { continue };
                found.push(Moving {
                    id: job.id.clone(),
                    version: present.document.version,
                    source: present.document.source.to_owned(),
                    write_id: present.document.write_id,
                    month: Month::of(finished_at),
                    came_back: came_back(job),
                });
            }
            Ok(found)
        };
        self.live().hits(&body, read).await
    }

    async fn move_chunk(&self, chunk: &[Moving], archived: &mut Archived) -> Result<(), StoreError> {
        let months: BTreeSet<Month> = chunk.iter().map(|moving| moving.month).collect();
        for month in &months {
            self.make_month(*month).await?;
        }
        let copied = self.copy(chunk, archived).await?;
        for month in &months {
            // Searches must find the copy before the job is hidden.
            copies::refresh(self.shared, &self.shared.indices.of_month(*month), self.deadline).await?;
        }
        let mut bulk = Lines::default();
        for moving in &copied {
            let ids = WriteIds { own: self.shared.ids.next(), previous: moving.write_id };
            let action = Action::Index(Target::at(moving.id.as_str(), moving.version));
            let destination = Destination::Month(moving.month);
            bulk.add(&action, Some(&TombstoneDocument::new(moving.id.clone(), destination, self.now, ids)))?;
        }
        let outcomes = self.send(bulk).await?;
        archived.moved += outcomes.iter().filter(|outcome| is_done(outcome)).count();
        let is_changed = |(_, outcome): &(&&Moving, &ItemOutcome)| matches!(outcome, ItemOutcome::Conflict);
        let changed = copied.iter().zip(&outcomes).filter(is_changed).map(|(moving, _)| &moving.id);
        self.sweep(&changed.collect::<Vec<_>>(), archived).await?;
        archived.left += chunk.len() - outcomes.iter().filter(|outcome| is_done(outcome)).count();
        Ok(())
    }

    /// Copies jobs to their months. Returns those whose copy is acknowledged.
    async fn copy<'m>(&self, chunk: &'m [Moving], archived: &mut Archived) -> Result<Vec<&'m Moving>, StoreError> {
        let mut bulk = Lines::default();
        for moving in chunk {
            let index = self.shared.indices.of_month(moving.month);
            let action = Action::Create(Target::any(moving.id.as_str()).in_index(&index));
            bulk.add(&action, Some(&*moving.source))?;
        }
        let outcomes = self.send(bulk).await?;
        if outcomes.iter().any(|outcome| !matches!(outcome, ItemOutcome::Done(_) | ItemOutcome::Conflict)) {
            // An index may be gone.
            self.mover.months.lock().clear();
        }
        let of = |wanted: fn(&ItemOutcome) -> bool| {
            chunk.iter().zip(&outcomes).filter(move |(_, outcome)| wanted(outcome)).map(|(moving, _)| moving)
        };
        let mut copied: Vec<&Moving> = of(is_done).collect();
        let there: Vec<&Moving> = of(|outcome| matches!(outcome, ItemOutcome::Conflict)).collect();
        if !there.is_empty() {
            copied.extend(self.confirm(&there, archived).await?);
        }
        Ok(copied)
    }

    /// Writes existing copies once more if they are of the same version; removes them if they are stale.
    async fn confirm<'m>(&self, there: &[&'m Moving], archived: &mut Archived) -> Result<Vec<&'m Moving>, StoreError> {
        let address = |moving: &&Moving| self.shared.indices.of_month(moving.month);
        let addresses: Vec<(String, &JobId)> = there.iter().map(|moving| (address(moving), &moving.id)).collect();
        let reply = mget_of(&self.shared.nodes, &addresses, self.deadline).await?;
        let (mut same, mut others) = (Vec::new(), Vec::new());
        let mut bulk = Lines::default();
        for ((moving, (index, _)), document) in there.iter().zip(&addresses).zip(parse_mget(&reply, addresses.len())?) {
            let Some(present) = document.job(&self.shared.indices)? else { continue };
            if present.document.write_id != moving.write_id {
                others.push(&moving.id);
                continue;
            }
            let target = Target::at(moving.id.as_str(), present.document.version).in_index(index);
            bulk.add(&Action::Index(target), Some(&*moving.source))?;
            same.push(*moving);
        }
        self.sweep(&others, archived).await?;
        let outcomes = self.send(bulk).await?;
        Ok(same.into_iter().zip(outcomes).filter(|(_, outcome)| is_done(outcome)).map(|(moving, _)| moving).collect())
    }

    /// Removes stale copies of these jobs, and returns how many copies may still exist.
    async fn sweep(&self, ids: &[&JobId], archived: &mut Archived) -> Result<usize, StoreError> {
        let swept = copies::sweep(self.shared, ids, self.deadline).await?;
        archived.stale += swept.removed;
        Ok(swept.left)
    }

    async fn send(&self, lines: Lines) -> Result<Vec<ItemOutcome>, StoreError> {
        self.shared.send(&self.shared.indices.jobs, lines, self.deadline).await
    }

    /// Makes a month's index if it is missing. The request has the whole definition, so that it does not depend on the
    /// template.
    async fn make_month(&self, month: Month) -> Result<(), StoreError> {
        if self.mover.months.lock().contains(&month) {
            return Ok(());
        }
        let index = self.shared.indices.of_month(month);
        let request = Request::put(index.clone(), Some(&self.mover.month));
        if self.shared.nodes.make(&request, self.deadline).await? {
            tracing::info!(index, "created the index");
        }
        self.mover.months.lock().insert(month);
        Ok(())
    }

    /// Removes the indices of past months that have no job left.
    async fn drop_empty_months(&self) -> Result<(), StoreError> {
        for month in self.empty_months().await? {
            self.drop_if_empty(month).await?;
        }
        Ok(())
    }

    async fn empty_months(&self) -> Result<Vec<Month>, StoreError> {
        let what = "filter_path=indices.*.primaries.docs.count";
        let path = format!("{}/_stats/docs?{what}", self.shared.indices.months());
        let stats = self.json(Request::get(path)).await?;
        let this_month = Month::of(self.now);
        let empty = |(index, stats): (&String, &Value)| {
            let month = self.shared.indices.month_of(index)?;
            let is_empty = stats["primaries"]["docs"]["count"] == 0;
            (is_empty && month < this_month).then_some(month)
        };
        Ok(stats["indices"].as_object().map(|indices| indices.iter().filter_map(empty).collect()).unwrap_or_default())
    }

    /// Removes a month's index unless it has a job. The index is closed to writes before the last check: later writes
    /// fail, and earlier ones are seen.
    async fn drop_if_empty(&self, month: Month) -> Result<(), StoreError> {
        let index = self.shared.indices.of_month(month);
        self.mover.months.lock().remove(&month);
        let closed = self.json(Request::put(format!("{index}/_block/write"), None)).await;
        let is_empty = match closed {
            Ok(_) => self.is_empty(&index).await,
            Err(error) => Err(error),
        };
        if let Ok(true) = is_empty {
            self.json(Request::delete(index.clone())).await?;
            tracing::info!(index, "removed the index of a month without jobs");
            return Ok(());
        }
        let open = json!({ "index.blocks.write": null });
        self.json(Request::put(format!("{index}/_settings"), Some(&open))).await?;
        is_empty.map(|_| ())
    }

    async fn is_empty(&self, index: &str) -> Result<bool, StoreError> {
        copies::refresh(self.shared, index, self.deadline).await?;
        let count = self.json(Request::get(format!("{index}/_count"))).await?;
        Ok(count["count"] == 0 && count["_shards"]["failed"] == 0)
    }

    async fn json(&self, request: Request) -> Result<Value, StoreError> {
        self.shared.nodes.json(&request, self.deadline).await
    }
}

fn is_done(outcome: &ItemOutcome) -> bool {
    matches!(outcome, ItemOutcome::Done(_))
}

fn ended() -> Vec<&'static str> {
    JobState::ALL.into_iter().filter(|state| state.is_final()).map(JobState::as_str).collect()
}

/// Returns whether the job was started again after it had ended.
fn came_back(job: &Job) -> bool {
    let restart = |from: JobState, to: JobState| from.is_final() && to == JobState::Available;
    job.history.entries().iter().any(|entry| entry.from.is_some_and(|from| restart(from, entry.to)))
}
