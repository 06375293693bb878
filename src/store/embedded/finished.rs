//! Searches among the finished jobs that are in blocks.
//!
//! The columns of the blocks say which of them can match, and often that they do. Where a query asks for what only a
//! record knows, the records of those are looked up one by one if they are few, and all records are read in the order
//! of their keys if they are many, which costs far less for each: never more records than there are finished jobs.

use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use fjall::Snapshot;

use super::best::{Best, Offered};
use super::block::{Block, Blocks, Column, Reader};
use super::disk::Disk;
use super::groups::Groups;
use super::narrow::{Narrowed, Rest};
use super::probe::Probe;
use super::record::Skim;
use crate::job::{JobId, JobState};
use crate::query::{Filter, GroupField, Sort};
use crate::store::{StoreError, Versioned};

/// Up to one in so many finished jobs is looked up by itself: a look-up costs about so many times what a record costs
/// when all are read one after the other.
const LOOKUP_COST: u64 = 4;

/// So many records are looked up for a page before all are read: the first are often enough.
const LOOKUPS_FOR_A_PAGE: u64 = 8_192;

/// How many matches travel together from the threads that read, and how many such batches may wait.
const MATCHES_AT_ONCE: usize = 256;
const MATCHES_WAITING: usize = 4;

/// After so many records a thread that reads lets others go first.
const RECORDS_BETWEEN_YIELDS: usize = 1_024;

/// The finished jobs that are in blocks at one moment, and what is asked of them.
pub(super) struct Finished<'a> {
    pub(super) disk: &'a Disk,
    pub(super) snapshot: &'a Arc<Snapshot>,
    pub(super) blocks: &'a Blocks,
    /// The jobs that were found in memory, and so are not looked for here.
    pub(super) in_memory: &'a [Versioned],
    pub(super) wanted: &'a Narrowed,
}

impl<'a> Finished<'a> {
    /// Offers every job that matches, as far as it can be among the best.
    pub(super) fn offer_all(&self, best: &mut Best<'_>) -> Result<(), StoreError> {
        if self.is_nothing() {
            return Ok(());
        }
        if let Some(ids) = &self.wanted.ids {
            return self.of_ids(ids).try_for_each(|head| best.offer_head(&head?));
        }
        let mut looked_up = HashSet::new();
        let most = match self.wanted.rest {
            Rest::OfRecord if !self.are_few()? => LOOKUPS_FOR_A_PAGE,
            _ => u64::MAX,
        };
        for (first, last, block) in self.blocks.candidates(self.wanted, best.sort()) {
            if !best.can_take(first, last) {
                continue;
            }
            self.offer_block(block, best, most, &mut looked_up)?;
            if looked_up.len() as u64 >= most {
                return self.read_all(&looked_up, |head| best.offer_head(head).map(ControlFlow::Continue));
            }
        }
        Ok(())
    }

    fn offer_block(
        &self,
        block: &'a Block,
        best: &mut Best<'_>,
        most: u64,
        looked_up: &mut HashSet<JobId>,
    ) -> Result<(), StoreError> {
        let reader = self.reader(block);
        let rows = reader.select(self.wanted)?;
        if rows.is_empty() {
            return Ok(());
        }
        let sort = best.sort();
        let (values, ids) = (reader.values(sort)?, reader.ids()?);
        let mut probe = self.probe(&reader)?;
        for row in rows {
            let ranks = sort.ranks(&values.get(row));
            let is_more_than_enough = looked_up.len() as u64 >= most;
            let judge = |id: &JobId| match (&self.wanted.rest, &mut probe) {
                (Rest::Nothing, _) => Ok(Offered::Id),
                (Rest::OfColumns, Some(probe)) => {
                    Ok(if self.wanted.filter.matches(probe.job(row)?) { Offered::Id } else { Offered::Not })
                }
                _ if is_more_than_enough => Ok(Offered::Not),
                _ => {
                    if most < u64::MAX {
                        looked_up.insert(id.clone());
                    }
                    let head = self.look_up(id)?;
                    Ok(if self.wanted.filter.matches(&head.job) { Offered::Head(head) } else { Offered::Not })
                }
            };
            best.offer(ranks, || ids.get(row as usize), judge)?;
        }
        Ok(())
    }

    /// Counts those that match, where their columns tell.
    pub(super) fn count(&self, by: &[GroupField], groups: &mut Groups) -> Result<(), StoreError> {
        if self.is_nothing() {
            return Ok(());
        }
        if self.wanted.ids.is_some() {
            return self.visit(|head| {
                groups.add(by.iter().map(|field| field.value(&head.job)), 1);
                ControlFlow::Continue(())
            });
        }
        for (_, _, block) in self.blocks.candidates(self.wanted, Sort::default()) {
            let reader = self.reader(block);
            let mut rows = reader.select(self.wanted)?;
            if let Some(mut probe) = self.probe(&reader)? {
                let mut kept = Vec::with_capacity(rows.len());
                for row in rows {
                    if self.wanted.filter.matches(probe.job(row)?) {
                        kept.push(row);
                    }
                }
                rows = kept;
            }
            self.count_rows(&reader, &rows, by, groups)?;
        }
        Ok(())
    }

    fn count_rows(
        &self,
        reader: &Reader<'_>,
        rows: &[u32],
        by: &[GroupField],
        groups: &mut Groups,
    ) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        if by.is_empty() {
            groups.add(std::iter::empty(), rows.len() as u64);
            return Ok(());
        }
        let states = reader.states()?;
        let column = |field: &GroupField| match field {
            GroupField::State => Ok(None),
            GroupField::Queue => reader.names(Column::Queue).map(Some),
            GroupField::Kind => reader.names(Column::Kind).map(Some),
            GroupField::Owner => reader.names(Column::Owner).map(Some),
        };
        let columns = by.iter().map(column).collect::<Result<Vec<_>, _>>()?;
        let mut values = Vec::with_capacity(by.len());
        for row in rows {
            values.clear();
            for column in &columns {
                values.push(match column {
                    Some(names) => names.get(*row as usize)?,
                    None => Some(JobState::as_str(states.get(*row)?)),
                });
            }
            groups.add(values.iter().copied(), 1);
        }
        Ok(())
    }

    /// Visits those that match, with their records, until `visit` has seen enough.
    pub(super) fn visit(&self, mut visit: impl FnMut(&Versioned) -> ControlFlow<()>) -> Result<(), StoreError> {
        if self.is_nothing() {
            return Ok(());
        }
        let filter = &self.wanted.filter;
        if let Some(ids) = &self.wanted.ids {
            for head in self.of_ids(ids) {
                if visit(&head?).is_break() {
                    break;
                }
            }
            return Ok(());
        }
        if !self.are_few()? {
            return self.read_all(&HashSet::new(), |head| Ok(visit(head)));
        }
        for block in &self.blocks.list {
            let reader = self.reader(block);
            let rows = reader.select(self.wanted)?;
            if rows.is_empty() {
                continue;
            }
            let ids = reader.ids()?;
            for row in rows {
                let head = self.look_up(&ids.get(row as usize)?)?;
                if filter.matches(&head.job) && visit(&head).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn is_nothing(&self) -> bool {
        !self.wanted.may_be_finished() || self.blocks.list.is_empty()
    }

    fn reader(&self, block: &'a Block) -> Reader<'a> {
        Reader { disk: self.disk, snapshot: self.snapshot, block }
    }

    fn probe(&self, reader: &Reader<'_>) -> Result<Option<Probe>, StoreError> {
        if self.wanted.rest == Rest::OfColumns { Probe::of(reader).map(Some) } else { Ok(None) }
    }

    /// Whether the columns leave so few that each is looked up.
    fn are_few(&self) -> Result<bool, StoreError> {
        let most = self.blocks.jobs() / LOOKUP_COST;
        let mut left = 0;
        for block in &self.blocks.list {
            left += self.reader(block).select(self.wanted)?.len() as u64;
            if left > most {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Those of these ids that match.
    fn of_ids(&self, ids: &'a [JobId]) -> impl Iterator<Item = Result<Versioned, StoreError>> {
        let distinct: HashSet<&JobId> = ids.iter().collect();
        let in_memory: HashSet<&JobId> = self.in_memory.iter().map(|head| &head.job.id).collect();
        let elsewhere = distinct.into_iter().filter(move |id| !in_memory.contains(id));
        let found = elsewhere.filter_map(|id| self.disk.finished(self.snapshot, id).transpose());
        found.filter(|head| head.as_ref().map_or(true, |head| self.wanted.filter.matches(&head.job)))
    }

    fn look_up(&self, id: &JobId) -> Result<Versioned, StoreError> {
        let found = self.disk.finished(self.snapshot, id)?;
        found.ok_or_else(|| StoreError::Corrupt(format!("job {id} is in a block and has no record")))
    }

    /// Reads all records, in two threads, and visits those that match but for `seen` ones.
    fn read_all(
        &self,
        seen: &HashSet<JobId>,
        mut visit: impl FnMut(&Versioned) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError> {
        let in_memory = self.in_memory.iter().map(|head| &head.job.id);
        let seen: HashSet<&str> = in_memory.chain(seen).map(JobId::as_str).collect();
        let middle = self.middle()?;
        let halves = match &middle {
            Some(middle) => vec![
                (Bound::Unbounded, Bound::Excluded(middle.as_str())),
                (Bound::Included(middle.as_str()), Bound::Unbounded),
            ],
            None => vec![(Bound::Unbounded, Bound::Unbounded)],
        };
        thread::scope(|scope| {
            let (sender, matches) = sync_channel(MATCHES_WAITING);
            let mut threads = Vec::with_capacity(halves.len());
            for range in halves {
                let (sender, seen) = (sender.clone(), &seen);
                let (disk, snapshot, filter) = (self.disk, self.snapshot, &self.wanted.filter);
                threads.push(scope.spawn(move || read_range(disk, snapshot, filter, range, seen, &sender)));
            }
            drop(sender);
            let mut visited = Ok(());
            // The channel is gone when this ends early, which ends the threads.
            for head in matches.into_iter().flatten() {
                match visit(&head) {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(())) => break,
                    Err(failure) => {
                        visited = Err(failure);
                        break;
                    }
                }
            }
            for thread in threads {
                let read = thread.join();
                read.map_err(|_| StoreError::Unavailable("a read ended early".to_owned()))??;
            }
            visited
        })
    }

    /// An id with about as many finished jobs before it as after it, where ids rise with time as those do that the
    /// manager makes.
    fn middle(&self) -> Result<Option<JobId>, StoreError> {
        let block = &self.blocks.list[self.blocks.list.len() / 2];
        Ok(Some(self.reader(block).ids()?.get(0)?))
    }
}

/// Reads the records of a range of ids and sends those that match.
fn read_range(
    disk: &Disk,
    snapshot: &Snapshot,
    filter: &Filter,
    range: (Bound<&str>, Bound<&str>),
    seen: &HashSet<&str>,
    matches: &SyncSender<Vec<Versioned>>,
) -> Result<(), StoreError> {
    let mut found = Vec::with_capacity(MATCHES_AT_ONCE);
    let (mut skim, mut read) = (Skim::new(filter), 0);
    for (number, entry) in disk.all_finished(snapshot, range).enumerate() {
        let (key, value) = entry?;
        let text = std::str::from_utf8(&key).map_err(|_| StoreError::Corrupt("the id of a finished job".to_owned()))?;
        if seen.contains(text) {
            continue;
        }
        read += 1;
        found.extend(skim.matching(text, &value)?);
        if found.len() == MATCHES_AT_ONCE && matches.send(std::mem::take(&mut found)).is_err() {
            break;
        }
        if number % RECORDS_BETWEEN_YIELDS == 0 {
            thread::yield_now();
        }
    }
    disk.has_read(read);
    drop(matches.send(found));
    Ok(())
}
