//! Searches and counts: live jobs from memory, finished ones from their summaries, both as of one moment.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use fjall::Snapshot;

use super::Corrupt;
use super::disk::Disk;
use super::sorted;
use super::state::{Engine, Published};
use super::summary::{self, Summary};
use crate::clock::Timestamp;
use crate::job::{Job, JobId, QueueName, StateName};
use crate::query::{Direction, Filter, Group, GroupField, Search, Sort, SortField, SortKey, SortValues};
use crate::store::{StoreError, Versioned};

/// Whether a search is answered from the indexes in memory at once, without scanning anything.
pub(super) fn is_indexed(search: &Search) -> bool {
    let filter = &search.filter;
    is_dispatch(search)
        || is_watch(search)
        || filter.request_id.is_some()
        || filter.worker_id.is_some()
        || filter.untold == Some(true)
}

/// Whether a count is answered from the counts that are kept.
pub(super) fn is_counted(filter: &Filter, by: &[GroupField]) -> bool {
    let of_these = Filter { states: filter.states.clone(), queues: filter.queues.clone(), ..Filter::default() };
    *filter == of_these && by.iter().all(|field| matches!(field, GroupField::State | GroupField::Queue))
}

/// Finds jobs.
pub(super) fn search(engine: &Engine, search: &Search) -> Result<Vec<Versioned>, StoreError> {
    if search.limit == 0 {
        return Ok(Vec::new());
    }
    if !search.sort.is_kept() {
        return sorted::search(engine, search);
    }
    let mut best = Best::of(search);
    let snapshot = {
        let published = engine.published.read();
        if is_dispatch(search) {
            let line = published.live.dispatch(&search.filter, search.after.as_ref());
            let found = line.filter(|head| search.filter.matches(&head.job)).take(search.limit);
            return Ok(found.cloned().collect());
        }
        if is_watch(search) {
            let watched = published.live.watched(search.filter.watch_at_most, search.after.as_ref());
            let found = watched.filter(|head| search.filter.matches(&head.job)).take(search.limit);
            return Ok(found.cloned().collect());
        }
        for head in published.live.candidates(&search.filter) {
            if search.filter.matches(&head.job) {
                best.offer(&SortValues::from(&*head.job), head.job.id.as_str(), || {
                    Ok((head.job.id.clone(), Some(head.clone())))
                })?;
            }
        }
        Arc::clone(&published.snapshot)
    };
    if may_be_finished(&search.filter) {
        scan_finished(&engine.disk, &snapshot, search, &mut best)?;
    }
    best.found
        .into_iter()
        .map(|(key, live)| match live {
            Some(head) => Ok(head),
            None => engine
                .disk
                .finished(&snapshot, key.id())?
                .ok_or_else(|| StoreError::Corrupt(format!("job {} has a summary and no record", key.id()))),
        })
        .collect()
}

/// Counts jobs by group.
pub(super) fn count(engine: &Engine, filter: &Filter, by: &[GroupField]) -> Result<Vec<Group>, StoreError> {
    let mut groups = Groups::default();
    if is_counted(filter, by) {
        let published = engine.published.read();
        groups.add_counts(&published, filter, by);
        return Ok(groups.most_first(by));
    }
    if filter.asked.is_some() {
        for_each_match(engine, filter, |job| groups.add(by.iter().map(|field| field.value(job)), 1))?;
        return Ok(groups.most_first(by));
    }
    let snapshot = {
        let published = engine.published.read();
        for head in published.live.candidates(filter).filter(|head| filter.matches(&head.job)) {
            groups.add(by.iter().map(|field| field.value(&head.job)), 1);
        }
        Arc::clone(&published.snapshot)
    };
    if may_be_finished(filter) {
        for entry in engine.disk.summaries(&snapshot, ..) {
            let (key, value) = entry?;
            let summary = summary::decode(&key, &value)?;
            if summary.matches(filter) {
                groups.add(by.iter().map(|field| summary.group(*field)), 1);
            }
        }
    }
    Ok(groups.most_first(by))
}

/// Visits every job that matches, live and finished, in no order, all as of one moment. The lock is let go before the
/// first visit.
pub(super) fn for_each_match(engine: &Engine, filter: &Filter, mut visit: impl FnMut(&Job)) -> Result<(), StoreError> {
    each(engine, filter, |head| {
        visit(&head.job);
        ControlFlow::Continue(())
    })
}

/// The same, until `visit` has seen enough.
pub(super) fn each(
    engine: &Engine,
    filter: &Filter,
    mut visit: impl FnMut(&Versioned) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    let (live, snapshot) = {
        let published = engine.published.read();
        let live: Vec<Versioned> = published.live.candidates(filter).cloned().collect();
        (live, Arc::clone(&published.snapshot))
    };
    for head in live.iter().filter(|head| filter.matches(&head.job)) {
        if visit(head).is_break() {
            return Ok(());
        }
    }
    if !may_be_finished(filter) {
        return Ok(());
    }
    for entry in engine.disk.summaries(&snapshot, ..) {
        let (key, value) = entry?;
        let summary = summary::decode(&key, &value)?;
        if !summary.matches(filter) {
            continue;
        }
        let head = engine.disk.finished(&snapshot, &summary.job_id()?)?;
        if let Some(head) = head.filter(|head| filter.matches(&head.job))
            && visit(&head).is_break()
        {
            break;
        }
    }
    Ok(())
}

/// Available jobs in the order they are handed out.
fn is_dispatch(search: &Search) -> bool {
    search.sort == Sort::Dispatch
        && !search.filter.states.is_empty()
        && search.filter.states.iter().all(|state| *state == StateName::Available)
}

/// Jobs that the monitor has to look at, in the order of time.
fn is_watch(search: &Search) -> bool {
    search.filter.watch_at_most.is_some() && search.sort == Sort::By(SortField::WatchAt, Direction::Ascending)
}

fn may_be_finished(filter: &Filter) -> bool {
    !filter.only_live()
}

/// Offers every finished job that matches. In the two orders by creation time, which is that of the summaries, the
/// scan starts where the page does and ends as soon as nothing better can come.
fn scan_finished(disk: &Disk, snapshot: &Snapshot, search: &Search, best: &mut Best<'_>) -> Result<(), StoreError> {
    let page_start = search.after.as_ref().map(|after| after.ranks().0);
    match search.sort {
        Sort::By(SortField::CreatedAt, Direction::Descending) => {
            let from = page_start.map_or(Bound::Unbounded, |rank| Bound::Included(prefix_of(-rank)));
            offer_all(
                (disk, snapshot),
                disk.summaries(snapshot, (from, Bound::Unbounded)),
                search,
                best,
                Ordered::AsScanned,
            )
        }
        Sort::By(SortField::CreatedAt, Direction::Ascending) => {
            // Up to the keys of the next younger time; there is none beyond the first key.
            let until = page_start.and_then(|rank| u64::from_be_bytes(prefix_of(rank)).checked_add(1));
            let until = until.map_or(Bound::Unbounded, |next| Bound::Excluded(next.to_be_bytes()));
            // What was created later has not ended by then.
            let from = search
                .filter
                .finished_at_most
                .map_or(Bound::Unbounded, |latest| Bound::Included(prefix_of(latest.as_millis())));
            if let (Bound::Included(from), Bound::Excluded(until)) = (from, until)
                && from >= until
            {
                return Ok(());
            }
            offer_all((disk, snapshot), disk.summaries(snapshot, (from, until)).rev(), search, best, Ordered::AsScanned)
        }
        _ => offer_all((disk, snapshot), disk.summaries(snapshot, ..), search, best, Ordered::Otherwise),
    }
}

fn prefix_of(created_at: i64) -> [u8; 8] {
    summary::key_prefix(Timestamp::from_millis(created_at))
}

/// Whether a scan comes in the order that is wanted, but for the ids of jobs that are equal in it.
#[derive(PartialEq)]
enum Ordered {
    AsScanned,
    Otherwise,
}

/// Whether a finished job satisfies the part of a filter that its summary knows nothing of. That takes its record.
fn holds(disk: &Disk, snapshot: &Snapshot, summary: &Summary<'_>, filter: &Filter) -> Result<bool, StoreError> {
    if filter.asked.is_none() {
        return Ok(true);
    }
    let head = disk.finished(snapshot, &summary.job_id()?)?;
    Ok(head.is_some_and(|head| filter.matches(&head.job)))
}

fn offer_all(
    (disk, snapshot): (&Disk, &Snapshot),
    entries: impl Iterator<Item = Result<fjall::KvPair, StoreError>>,
    search: &Search,
    best: &mut Best<'_>,
    ordered: Ordered,
) -> Result<(), StoreError> {
    for entry in entries {
        let (key, value) = entry?;
        let summary = summary::decode(&key, &value)?;
        if ordered == Ordered::AsScanned && best.is_beyond(&summary.values) {
            return Ok(());
        }
        if summary.matches(&search.filter) && holds(disk, snapshot, &summary, &search.filter)? {
            best.offer(&summary.values, summary.id, || Ok((summary.job_id()?, None)))?;
        }
    }
    Ok(())
}

/// The first jobs after the cursor, of all that are offered, in any order.
struct Best<'a> {
    sort: Sort,
    after: Option<&'a SortKey>,
    limit: usize,
    /// The job itself where it is live; a finished one is read when it is known to be wanted.
    found: BTreeMap<SortKey, Option<Versioned>>,
}

impl<'a> Best<'a> {
    fn of(search: &'a Search) -> Self {
        Self { sort: search.sort, after: search.after.as_ref(), limit: search.limit, found: BTreeMap::new() }
    }

    /// Keeps a job if it is among the best; `job` is asked only then.
    fn offer(
        &mut self,
        values: &SortValues,
        id: &str,
        job: impl FnOnce() -> Result<(JobId, Option<Versioned>), Corrupt>,
    ) -> Result<(), Corrupt> {
        let ranks = self.sort.ranks(values);
        let before = |key: &SortKey| (ranks, id) < (key.ranks(), key.id().as_str());
        if self.after.is_some_and(|after| (ranks, id) <= (after.ranks(), after.id().as_str())) {
            return Ok(());
        }
        if self.worst().is_some_and(|worst| !before(worst)) {
            return Ok(());
        }
        let (id, head) = job()?;
        self.found.insert(SortKey::new(ranks, id), head);
        if self.found.len() > self.limit {
            self.found.pop_last();
        }
        Ok(())
    }

    /// Whether neither this job nor any that comes after it in the order can be among the best.
    fn is_beyond(&self, values: &SortValues) -> bool {
        self.worst().is_some_and(|worst| self.sort.ranks(values) > worst.ranks())
    }

    /// The last of the best, when there are as many as are wanted.
    fn worst(&self) -> Option<&SortKey> {
        (self.found.len() >= self.limit).then(|| self.found.last_key_value().map(|(key, _)| key)).flatten()
    }
}

/// Counts by group. A group's name is its values one after the other, each ended by a character that no name has, so
/// that counting one more allocates nothing.
#[derive(Default)]
struct Groups {
    counts: HashMap<String, u64>,
    name: String,
}

const PRESENT: char = '\u{1}';
const END: char = '\u{0}';

impl Groups {
    fn add<'v>(&mut self, values: impl Iterator<Item = Option<&'v str>>, count: u64) {
        self.name.clear();
        for value in values {
            if let Some(value) = value {
                self.name.push(PRESENT);
                self.name.push_str(value);
            }
            self.name.push(END);
        }
        match self.counts.get_mut(&self.name) {
            Some(sum) => *sum += count,
            None => {
                self.counts.insert(self.name.clone(), count);
            }
        }
    }

    fn add_counts(&mut self, published: &Published, filter: &Filter, by: &[GroupField]) {
        let wanted = |state: &StateName, queue: &QueueName| {
            (filter.states.is_empty() || filter.states.contains(state))
                && (filter.queues.is_empty() || filter.queues.contains(queue))
        };
        for (state, queue, count) in published.live.counts().chain(published.finished.counts()) {
            if wanted(&state, queue) {
                let value = |field: &GroupField| match field {
                    GroupField::State => Some(state.as_str()),
                    _ => Some(queue.as_str()),
                };
                self.add(by.iter().map(value), count);
            }
        }
    }

    /// With no field there is one group, of all there are, even of none.
    fn most_first(self, by: &[GroupField]) -> Vec<Group> {
        if by.is_empty() {
            let count = self.counts.into_values().sum();
            return vec![Group { values: Vec::new(), count }];
        }
        let values = |name: &str| {
            name.split_terminator(END).map(|value| value.strip_prefix(PRESENT).map(str::to_owned)).collect()
        };
        let groups = self.counts.iter().map(|(name, count)| Group { values: values(name), count: *count });
        let mut groups: Vec<Group> = groups.collect();
        groups.sort_by(Group::most_first);
        groups
    }
}
