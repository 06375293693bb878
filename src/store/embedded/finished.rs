//! Searches among the finished jobs that are in blocks.
//!
//! The columns of the blocks say which jobs can match, and often that they do. Where a query asks for what only the
//! stored job has, the stored jobs that the columns leave are looked up, block by block; once those were many, all
//! stored jobs are read in one pass in the order of their keys, which costs far less for each. No stored job is read
//! twice for one search.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use super::block::{Block, Blocks};
use super::budget::Budget;
use super::disk::Disk;
use super::groups::Groups;
use super::narrow::Narrowed;
use super::page::Sink;
use super::reader::Reader;
use super::state::View;
use super::stored;
use crate::job::{JobId, JobState};
use crate::query::{GroupField, Sort, SortKey};
use crate::store::{StoreError, Versioned};

/// How many times a look-up costs what a job costs when all are read one after the other: up to one in so many finished
/// jobs is looked up.
const LOOKUP_COST: u64 = 4;

/// How many jobs are looked up for a page before all are read: the first are often enough.
const LOOKUPS_FOR_A_PAGE: u64 = 8_192;

/// How many matches travel together from the threads that read, and how many such batches may wait.
const MATCHES_AT_ONCE: usize = 256;
const MATCHES_WAITING: usize = 4;

/// How many stored jobs a thread reads before it lets others go first.
const JOBS_BETWEEN_YIELDS: usize = 1_024;

/// The finished jobs that are in blocks at one moment, and which of them are wanted.
pub(super) struct Finished<'a> {
    pub(super) disk: &'a Disk,
    pub(super) view: &'a View,
    pub(super) blocks: &'a Blocks,
    /// The jobs that were found in memory, and so are not looked for here.
    pub(super) in_memory: &'a [Versioned],
    pub(super) wanted: &'a Narrowed,
    pub(super) budget: Budget,
}

impl Finished<'_> {
    /// Counts the matching jobs by group. The filter must be one that the columns decide on their own.
    pub(super) fn count(&self, by: &[GroupField], groups: &mut Groups) -> Result<(), StoreError> {
        if self.is_nothing() {
            return Ok(());
        }
        for (_, _, block) in self.blocks.candidates(self.wanted, Sort::default()) {
            self.budget.check()?;
            let reader = self.reader(block);
            let rows = reader.select(self.wanted)?;
            if by.is_empty() {
                groups.add(std::iter::empty(), rows.len() as u64);
            }
            if by.is_empty() || rows.is_empty() {
                continue;
            }
            let states = reader.states()?;
            let columns = by.iter().map(|field| reader.group(*field)).collect::<Result<Vec<_>, _>>()?;
            let mut values = Vec::with_capacity(by.len());
            for row in rows {
                values.clear();
                for column in &columns {
                    values.push(match column {
                        Some(names) => names.get(row as usize)?,
                        None => Some(JobState::as_str(states.get(row)?)),
                    });
                }
                groups.add(values.iter().copied(), 1);
            }
        }
        Ok(())
    }

    /// Hands every job that matches and is wanted to `sink`, until it wants no more: those first that could be the
    /// first in the order `sort`, which is one by fields that columns have.
    pub(super) fn walk(&self, sort: Sort, sink: &mut impl Sink) -> Result<(), StoreError> {
        if self.is_nothing() {
            return Ok(());
        }
        if let Some(ids) = &self.wanted.ids {
            return self.walk_ids(ids, sink);
        }
        let by_key = self.wanted.exact && sink.is_page();
        let most = if by_key || self.are_few()? {
            u64::MAX
        } else if sink.is_page() {
            LOOKUPS_FOR_A_PAGE
        } else {
            0
        };
        let mut looked_up = HashSet::new();
        for (first, last, block) in self.blocks.candidates(self.wanted, sort) {
            if !sink.may_want((first, i64::MIN), (last, i64::MAX)) {
                continue;
            }
            let reader = self.reader(block);
            let rows = reader.select(self.wanted)?;
            if rows.is_empty() {
                continue;
            }
            let (ranks, ids) = (reader.ranks(sort)?, reader.ids()?);
            let mut rows: Vec<_> = rows.into_iter().map(|row| (ranks(row), row)).collect();
            if !by_key {
                // The best first, so that no more are looked up than needed.
                rows.sort_unstable();
            }
            for (ranks, row) in rows {
                if !sink.may_want(ranks, ranks) {
                    continue;
                }
                let id = ids.get(row as usize)?;
                // The columns have the ids, so that a job is not read for an id that does not fit.
                if self.wanted.id_like.as_ref().is_some_and(|pattern| !pattern.matches(id.as_str())) {
                    continue;
                }
                let key = SortKey::new(ranks, id);
                if !sink.wants(&key) {
                    continue;
                }
                if by_key {
                    sink.take_key(key);
                    continue;
                }
                if looked_up.len() as u64 == most {
                    return self.walk_all(&looked_up, sink);
                }
                self.budget.check()?;
                let head = self.look_up(key.id())?;
                looked_up.insert(key.id().clone());
                if self.wanted.filter.matches(&head.job) && sink.take(&head).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn is_nothing(&self) -> bool {
        !self.wanted.may_be_finished() || self.blocks.list.is_empty()
    }

    /// Returns whether so few jobs remain after the columns that each is looked up.
    fn are_few(&self) -> Result<bool, StoreError> {
        let mut most = self.blocks.jobs() / LOOKUP_COST;
        for (_, _, block) in self.blocks.candidates(self.wanted, Sort::default()) {
            self.budget.check()?;
            match most.checked_sub(self.reader(block).select(self.wanted)?.len() as u64) {
                Some(left) => most = left,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn reader<'b>(&'b self, block: &'b Block) -> Reader<'b> {
        Reader { disk: self.disk, snapshot: &self.view.snapshot, block }
    }

    /// Reads a job that is in a block.
    pub(super) fn look_up(&self, id: &JobId) -> Result<Versioned, StoreError> {
        let found = self.disk.finished(self.view, id)?;
        found.ok_or_else(|| StoreError::Corrupt(format!("job {id} is in a block and is not stored")))
    }

    /// Returns the ids of the jobs in memory, which are among the stored ones as well.
    fn ids_in_memory(&self) -> impl Iterator<Item = &JobId> {
        self.in_memory.iter().map(|head| &head.job.id)
    }

    fn walk_ids(&self, ids: &[JobId], sink: &mut impl Sink) -> Result<(), StoreError> {
        let mut seen: HashSet<&JobId> = self.ids_in_memory().collect();
        for id in ids {
            if seen.insert(id)
                && let Some(head) = self.disk.finished(self.view, id)?
                && self.wanted.filter.matches(&head.job)
                && sink.take(&head).is_break()
            {
                break;
            }
        }
        Ok(())
    }

    /// Reads all stored jobs but for `looked_up` ones, in two threads.
    fn walk_all(&self, looked_up: &HashSet<JobId>, sink: &mut impl Sink) -> Result<(), StoreError> {
        let seen: HashSet<&str> = self.ids_in_memory().chain(looked_up).map(JobId::as_str).collect();
        // About as many finished jobs come before this id as after it, where ids rise with time as those do that the
        // manager makes.
        let middle = self.reader(&self.blocks.list[self.blocks.list.len() / 2]).ids()?.get(0)?;
        let middle = middle.as_str();
        let halves = [(Bound::Unbounded, Bound::Excluded(middle)), (Bound::Included(middle), Bound::Unbounded)];
        thread::scope(|scope| {
            let (sender, matches) = sync_channel(MATCHES_WAITING);
            let threads = halves.map(|range| {
                let (sender, seen) = (sender.clone(), &seen);
                scope.spawn(move || self.read_range(range, seen, &sender))
            });
            drop(sender);
            // The channel is gone when this ends early, which ends the threads.
            for head in matches.into_iter().flatten() {
                if sink.take(&head).is_break() {
                    break;
                }
            }
            for thread in threads {
                let read = thread.join();
                read.map_err(|_| StoreError::Unavailable("a read ended early".to_owned()))??;
            }
            Ok(())
        })
    }

    /// Reads the stored jobs of a range of ids and sends those that match.
    fn read_range(
        &self,
        range: (Bound<&str>, Bound<&str>),
        seen: &HashSet<&str>,
        matches: &SyncSender<Vec<Versioned>>,
    ) -> Result<(), StoreError> {
        let (mut found, mut read) = (Vec::with_capacity(MATCHES_AT_ONCE), 0);
        for (number, entry) in self.disk.all_finished(&self.view.snapshot, range).enumerate() {
            self.budget.check_at(number)?;
            let (key, value) = entry?;
            let id = stored::id_of(&key)?;
            if seen.contains(id.as_str()) || self.view.stale.contains(&id) {
                continue;
            }
            read += 1;
            found.extend(Some(stored::decode(&id, &value)?).filter(|head| self.wanted.filter.matches(&head.job)));
            if found.len() == MATCHES_AT_ONCE && matches.send(std::mem::take(&mut found)).is_err() {
                break;
            }
            if number % JOBS_BETWEEN_YIELDS == 0 {
                thread::yield_now();
            }
        }
        self.disk.has_read(read);
        drop(matches.send(found));
        Ok(())
    }
}
