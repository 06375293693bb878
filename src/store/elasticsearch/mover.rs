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
//! A job of which a stale copy may be left is not moved: later, nothing would say which of its copies is the job. One
//! that is moved long after its end goes to a later month's index than its own ([`months`]), so the copy that an
//! interrupted move may have left is looked for first.
//!
//! Each step also looks at a page of the bodies that are kept apart from their jobs ([`LeftBodies`]).
//!
//! What cannot be done stands in nobody's way. Each task goes over its documents from page to page with a cursor and
//! begins anew after the last page; a month that fails is left alone until then, and what failed is counted and told.
//!
//! Two movers at once do the same twice, which is as good as once.

use std::collections::{BTreeMap, BTreeSet, HashSet};
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
use super::fault::Fault;
use super::indices::Kind;
use super::left_bodies::LeftBodies;
use super::months::{self, Months};
use super::search::{Page, Scope, page};
use super::tombstone::{self, Destination, TombstoneDocument};
use super::write_id::WriteId;
use crate::clock::Timestamp;
use crate::job::{Job, JobId, JobState};
use crate::store::{Archived, StoreError, Version};

/// The most jobs, tombstones or copies that one request is about.
const MAX_PAGE: usize = 1_000;

/// The number of tasks that share the time of a step.
const TASKS: u32 = 4;

/// The mover of a store.
pub(super) struct Mover {
    /// How long after its end a settled job is moved.
    pub(super) move_after: Duration,
    /// How long a tombstone stays in the live index.
    pub(super) tombstone_after: Duration,
    /// The longest time that one of a step's tasks may take.
    pub(super) timeout: Duration,
    months: Months,
    /// The months to which jobs could not be moved since the last pass over all settled jobs has begun.
    unwell: Mutex<HashSet<Month>>,
    came_back: Cursor,
    tombstones: Cursor,
    settled: Cursor,
    left_bodies: LeftBodies,
}

/// The place in the order of a search after which the next page begins; `None` at its beginning.
type Cursor = Mutex<Option<Value>>;

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
            timeout: options.write_timeout / TASKS,
            months: Months::new(definitions.of(Kind::Archive)?),
            unwell: Mutex::default(),
            came_back: Cursor::default(),
            tombstones: Cursor::default(),
            settled: Cursor::default(),
            left_bodies: LeftBodies::default(),
        })
    }

    /// Does one step: handles one page of each task of the mover. A task that fails leaves the others to go on.
    pub(super) async fn step(&self, shared: &Context, now: Timestamp, limit: usize) -> Result<Archived, StoreError> {
        let limit = limit.min(MAX_PAGE);
        let pass = || Pass { mover: self, shared, now, limit, deadline: Instant::now() + self.timeout };
        let mut archived = Archived::default();
        let swept = pass().sweep_those_that_came_back(&mut archived).await;
        let cleared = pass().clear_tombstones(&mut archived).await;
        let moved = pass().move_settled(&mut archived).await;
        if let (Err(error), Err(_), Err(_)) = (&swept, &cleared, &moved) {
            return Err(error.clone());
        }
        let left = self.left_bodies.sweep(shared, now, limit, pass().deadline).await;
        let left = left.map(|removed| archived.bodies += removed);
        for failed in [swept, cleared, moved, left].into_iter().filter_map(Result::err) {
            archived.obstacle.get_or_insert(failed.to_string());
        }
        if archived.moved + archived.cleared > 0 {
            // The next step must not find the same jobs again, and searches should stop finding them soon.
            copies::refresh(shared, &shared.indices.jobs, pass().deadline).await?;
        }
        if !archived.more {
            self.unwell.lock().clear();
            if let Err(error) = self.months.look_after(shared, now, pass().deadline).await {
                archived.obstacle.get_or_insert(error.to_string());
            }
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
        Scope::new(&self.shared.nodes, &self.shared.indices.jobs, self.deadline)
    }

    /// Reads the page after the cursor, and moves the cursor on. Returns also whether there may be more.
    async fn next_page<T>(
        &self,
        cursor: &Cursor,
        mut body: Value,
        read: impl Fn(&RawDocument<'_>) -> Result<Option<T>, StoreError>,
    ) -> Result<(Vec<T>, bool), StoreError> {
        if let Some(after) = cursor.lock().take() {
            body["search_after"] = after;
        }
        let Page { hits, last, found } = self.live().page(&body, read).await?;
        let is_full = hits == self.limit;
        *cursor.lock() = last.filter(|_| is_full);
        Ok((found, is_full))
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
        let id = |hit: &RawDocument<'_>| Ok(JobId::new(&hit.id).ok());
        let (ids, _) = self.next_page(&self.mover.came_back, body, id).await?;
        self.sweep(&ids.iter().collect::<Vec<_>>(), archived).await.map(drop)
    }

    /// Removes tombstones that have stood long enough.
    async fn clear_tombstones(&self, archived: &mut Archived) -> Result<(), StoreError> {
        let until = self.now.minus(self.mover.tombstone_after).as_millis();
        let old = json!({ "bool": { "filter": [
            { "exists": { "field": tombstone::FIELD } },
            { "range": { tombstone::SINCE: { "lte": until, "format": "epoch_millis" } } },
        ] } });
        let mut body = page(&old, self.limit);
        body["sort"] = json!([{ tombstone::SINCE: "asc" }, { "id": "asc" }]);
        let read = |hit: &RawDocument<'_>| {
            let stored = self.shared.unreadable.stored(hit, &self.shared.indices)?;
            let (Some(Stored::Tombstone(tombstone)), Ok(id)) = (stored, JobId::new(&hit.id)) else { return Ok(None) };
            Ok(Some((id, tombstone.document.version, tombstone.destination)))
        };
        let (found, is_full): (Vec<(JobId, Version, Destination)>, bool) =
            self.next_page(&self.mover.tombstones, body, read).await?;
        archived.more |= is_full;
        // No copy of a removed job may outlive the tombstone that says so.
        let removed: Vec<&JobId> =
            found.iter().filter(|found| found.2 == Destination::Nowhere).map(|found| &found.0).collect();
        let left = self.sweep_or_leave(&removed, archived).await;
        let mut bulk = Lines::default();
        for (id, version, _) in found.iter().filter(|found| !left.contains(&found.0)) {
            bulk.delete(Target::at(id.as_str(), *version))?;
        }
        archived.cleared += self.send(bulk).await.iter().filter(|outcome| is_done(outcome)).count();
        Ok(())
    }

    /// Moves a page of settled jobs, month by month.
    async fn move_settled(&self, archived: &mut Archived) -> Result<(), StoreError> {
        let (mut found, is_full) = self.find_settled().await?;
        archived.more |= is_full;
        let came_back: Vec<&JobId> = found.iter().filter(|moving| moving.came_back).map(|moving| &moving.id).collect();
        let mut left = self.sweep_or_leave(&came_back, archived).await;
        left.append(&mut self.place_late(&mut found, archived).await);
        let mut by_month: BTreeMap<Month, Vec<Moving>> = BTreeMap::new();
        for moving in found {
            if left.contains(&moving.id) {
                archived.left += 1;
            } else {
                by_month.entry(moving.month).or_default().push(moving);
            }
        }
        for (month, jobs) in by_month {
            let before = archived.moved;
            if !self.mover.unwell.lock().contains(&month)
                && let Err(error) = self.move_to(month, &jobs, archived).await
            {
                archived.obstacle.get_or_insert(format!("the month {month}: {error}"));
                self.mover.unwell.lock().insert(month);
            }
            archived.left += jobs.len() - (archived.moved - before);
        }
        Ok(())
    }

    /// Gives jobs whose months are no longer written to another one, which is that of their copy when an interrupted
    /// move has left one. Returns the jobs of which one may be out of reach.
    async fn place_late(&self, found: &mut [Moving], archived: &mut Archived) -> BTreeSet<JobId> {
        let oldest = months::oldest_written(self.now);
        let late: Vec<&JobId> = found.iter().filter(|job| job.month < oldest).map(|job| &job.id).collect();
        if late.is_empty() {
            return BTreeSet::new();
        }
        let copies = match self.shared.locator(self.deadline).copies(&late).await {
            Ok(copies) => copies,
            Err(error) => {
                archived.obstacle.get_or_insert(error.to_string());
                return late.into_iter().cloned().collect();
            }
        };
        let mut left = BTreeSet::new();
        for job in found.iter_mut().filter(|job| job.month < oldest) {
            match copies.months.get(&job.id).and_then(|months| months.iter().max()) {
                Some(month) => job.month = *month,
                None if copies.unread.is_empty() => job.month = oldest,
                None => drop(left.insert(job.id.clone())),
            }
        }
        left
    }

    async fn find_settled(&self) -> Result<(Vec<Moving>, bool), StoreError> {
        let until = self.now.minus(self.mover.move_after).as_millis();
        let settled = json!({ "bool": {
            "filter": [
                { "terms": { "state": ended() } },
                { "range": { "finished_at": { "lte": until, "format": "epoch_millis" } } },
            ],
            "must_not": { "exists": { "field": "pending_notices" } },
        } });
        let mut body = page(&settled, self.limit);
        body["sort"] = json!([{ "finished_at": "asc" }, { "id": "asc" }]);
        let read = |hit: &RawDocument<'_>| {
            let Some(present) = self.shared.unreadable.job(hit, &self.shared.indices)? else { return Ok(None) };
            let job = &present.job;
            let (true, Some(finished_at)) = (job.is_settled(), job.finished_at()) else { return Ok(None) };
            Ok(Some(Moving {
                id: job.id.clone(),
                version: present.document.version,
                source: present.document.source.to_owned(),
                write_id: present.document.write_id,
                month: Month::of(finished_at),
                came_back: may_have_come_back(job),
            }))
        };
        self.next_page(&self.mover.settled, body, read).await
    }

    /// Moves jobs that ended in one month.
    async fn move_to(&self, month: Month, jobs: &[Moving], archived: &mut Archived) -> Result<(), StoreError> {
        self.mover.months.make(self.shared, month, self.deadline).await?;
        for chunk in chunks(jobs, MAX_PAGE, |moving| moving.source.get().len()) {
            self.move_chunk(month, chunk, archived).await?;
        }
        Ok(())
    }

    async fn move_chunk(&self, month: Month, chunk: &[Moving], archived: &mut Archived) -> Result<(), StoreError> {
        let copied = self.copy(month, chunk, archived).await?;
        if copied.is_empty() {
            return Ok(());
        }
        // Searches must find the copy before the job is hidden.
        copies::refresh(self.shared, &self.shared.indices.of_month(month), self.deadline).await?;
        let mut bulk = Lines::default();
        for moving in &copied {
            let ids = WriteIds { own: self.shared.ids.next(), previous: moving.write_id };
            let action = Action::Index(Target::at(moving.id.as_str(), moving.version));
            let destination = Destination::Month(moving.month);
            bulk.add(&action, Some(&TombstoneDocument::new(moving.id.clone(), destination, self.now, ids)))?;
        }
        let outcomes = self.send(bulk).await;
        archived.moved += outcomes.iter().filter(|outcome| is_done(outcome)).count();
        let is_changed = |(_, outcome): &(&&Moving, &ItemOutcome)| matches!(outcome, ItemOutcome::Conflict);
        let changed = copied.iter().zip(&outcomes).filter(is_changed).map(|(moving, _)| &moving.id);
        self.sweep(&changed.collect::<Vec<_>>(), archived).await.map(drop)
    }

    /// Copies jobs to their month. Returns those whose copy is acknowledged.
    ///
    /// # Errors
    /// The month's obstacle when it takes none of them.
    async fn copy<'m>(
        &self,
        month: Month,
        chunk: &'m [Moving],
        archived: &mut Archived,
    ) -> Result<Vec<&'m Moving>, StoreError> {
        let index = self.shared.indices.of_month(month);
        let mut bulk = Lines::default();
        for moving in chunk {
            let action = Action::Create(Target::any(moving.id.as_str()).in_index(&index));
            bulk.add(&action, Some(&*moving.source))?;
        }
        let (mut copied, mut there, mut obstacle) = (Vec::new(), Vec::new(), None);
        for (moving, outcome) in chunk.iter().zip(self.send(bulk).await) {
            match outcome {
                ItemOutcome::Done(_) => copied.push(moving),
                ItemOutcome::Conflict => there.push(moving),
                ItemOutcome::NotDone(why)
                | ItemOutcome::Invalid(why)
                | ItemOutcome::Denied(why)
                | ItemOutcome::Unsure(why) => obstacle = Some(why),
                ItemOutcome::OutOfOrder(Fault::Missing(_)) => {
                    obstacle = Some(format!("the index `{index}` was removed; the next run makes it anew"));
                }
                ItemOutcome::OutOfOrder(fault) | ItemOutcome::Withheld(fault) => obstacle = Some(fault.to_string()),
            }
        }
        if let Some(why) = obstacle {
            // The index may be gone.
            self.mover.months.forget(month);
            if copied.is_empty() && there.is_empty() {
                return Err(StoreError::Unavailable(why));
            }
        }
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
            let Some(present) = self.shared.unreadable.job(&document, &self.shared.indices)? else { continue };
            if present.document.write_id != moving.write_id {
                others.push(&moving.id);
                continue;
            }
            let target = Target::at(moving.id.as_str(), present.document.version).in_index(index);
            bulk.add(&Action::Index(target), Some(&*moving.source))?;
            same.push(*moving);
        }
        self.sweep(&others, archived).await?;
        let outcomes = self.send(bulk).await;
        Ok(same.into_iter().zip(outcomes).filter(|(_, outcome)| is_done(outcome)).map(|(moving, _)| moving).collect())
    }

    /// Removes stale copies of these jobs, and returns the jobs of which one may be left.
    async fn sweep(&self, ids: &[&JobId], archived: &mut Archived) -> Result<BTreeSet<JobId>, StoreError> {
        let swept = copies::sweep(self.shared, ids, self.deadline).await?;
        archived.stale += swept.removed;
        Ok(swept.left)
    }

    /// Removes stale copies as [`Pass::sweep`] does. When it fails, one of each job may be left.
    async fn sweep_or_leave(&self, ids: &[&JobId], archived: &mut Archived) -> BTreeSet<JobId> {
        self.sweep(ids, archived).await.unwrap_or_else(|error| {
            archived.obstacle.get_or_insert(error.to_string());
            ids.iter().map(|id| (*id).clone()).collect()
        })
    }

    async fn send(&self, lines: Lines) -> Vec<ItemOutcome> {
        let sent = self.shared.send(&self.shared.indices.jobs, lines, self.deadline).await;
        sent.into_iter().map(|sent| sent.outcome).collect()
    }
}

fn is_done(outcome: &ItemOutcome) -> bool {
    matches!(outcome, ItemOutcome::Done(_))
}

fn ended() -> Vec<&'static str> {
    JobState::ALL.into_iter().filter(|state| state.is_final()).map(JobState::as_str).collect()
}

/// Returns whether the job may have been started again after it had ended: its history says so, or has forgotten it.
fn may_have_come_back(job: &Job) -> bool {
    let restart = |from: JobState, to: JobState| from.is_final() && to == JobState::Available;
    job.history.folded() > 0
        || job.history.entries().iter().any(|entry| entry.from.is_some_and(|from| restart(from, entry.to)))
}
