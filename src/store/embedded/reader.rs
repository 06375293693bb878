//! Reads the columns of one block: which of its jobs a filter leaves, and what they are ordered by.

use std::ops::Deref;
use std::sync::Arc;

use fjall::{Slice, Snapshot};

use super::block::{Block, Column, NAMES, SPANS};
use super::column::{Ids, Ints, Names};
use super::disk::Disk;
use super::error::Corrupt;
use super::narrow::Narrowed;
use super::stored::{state_code, state_of};
use crate::clock::Timestamp;
use crate::job::{JobState, Kind, Owner, QueueName};
use crate::query::{GroupField, Sort, SortField};
use crate::store::StoreError;

/// Reads the columns of one block.
pub(super) struct Reader<'a> {
    pub(super) disk: &'a Disk,
    pub(super) snapshot: &'a Arc<Snapshot>,
    pub(super) block: &'a Block,
}

impl Reader<'_> {
    fn bytes(&self, column: Column) -> Result<Slice, StoreError> {
        let number = self.block.number;
        let found = self.disk.column(self.snapshot, column, number)?;
        found.ok_or_else(|| StoreError::Corrupt(format!("block {number} has no column {column:?}")))
    }

    fn rows(&self) -> usize {
        self.block.rows as usize
    }

    fn ints(&self, column: Column) -> Result<Ints, StoreError> {
        Ok(Ints::read(self.bytes(column)?, 0, self.rows())?)
    }

    /// Reads the column of names of a field; none for the state, which is no name.
    pub(super) fn group(&self, field: GroupField) -> Result<Option<Names>, StoreError> {
        let column = NAMES.into_iter().find(|(_, of)| *of == field);
        column.map(|(column, _)| self.names(column)).transpose()
    }

    fn names(&self, column: Column) -> Result<Names, StoreError> {
        Ok(Names::read(self.bytes(column)?, self.rows())?)
    }

    /// Reads the ids.
    pub(super) fn ids(&self) -> Result<Ids, StoreError> {
        Ok(Ids::read(self.bytes(Column::Id)?, self.rows())?)
    }

    /// Reads the states.
    pub(super) fn states(&self) -> Result<States, StoreError> {
        Ok(States(self.ints(Column::State)?))
    }

    fn dead(&self) -> Result<Option<Dead>, StoreError> {
        match &self.block.left {
            _ if self.block.dead == 0 => Ok(None),
            Some(bits) => Ok(Some(Dead::Since(Arc::clone(bits)))),
            None => self.bytes(Column::Dead).map(Dead::Stored).map(Some),
        }
    }

    /// Returns the rows of the jobs that match as far as their columns say, in rising order.
    pub(super) fn select(&self, wanted: &Narrowed) -> Result<Vec<u32>, StoreError> {
        let mut rows: Vec<u32> = match self.dead()? {
            None => (0..self.block.rows).collect(),
            Some(dead) => (0..self.block.rows).filter(|row| !has_bit(&dead, *row)).collect(),
        };
        let filter = &wanted.filter;
        self.keep_named(&mut rows, Column::Queue, filter.queues.iter().map(QueueName::as_str))?;
        if filter.without_system {
            self.keep(&mut rows, Column::Queue, |queue| !queue.starts_with(QueueName::INTERNAL))?;
        }
        self.keep_named(&mut rows, Column::Kind, filter.kinds.iter().map(Kind::as_str))?;
        self.keep_named(&mut rows, Column::Owner, filter.owners.iter().map(Owner::as_str))?;
        if !filter.states.is_empty() && !rows.is_empty() {
            let states = self.ints(Column::State)?;
            let admitted: Vec<i64> = filter.states.iter().map(|state| i64::from(state_code(*state))).collect();
            rows.retain(|row| admitted.contains(&states.get(*row as usize)));
        }
        for ((span, there), (column, _)) in wanted.spans.into_iter().zip(self.block.spans).zip(SPANS) {
            let all_within = span.and(there) == there;
            if !all_within && !rows.is_empty() {
                let times = self.ints(column)?;
                rows.retain(|row| span.contains(times.get(*row as usize)));
            }
        }
        Ok(rows)
    }

    fn keep_named<'n>(
        &self,
        rows: &mut Vec<u32>,
        column: Column,
        wanted: impl Iterator<Item = &'n str> + Clone,
    ) -> Result<(), StoreError> {
        if wanted.clone().next().is_none() {
            return Ok(());
        }
        self.keep(rows, column, |name| wanted.clone().any(|wanted| wanted == name))
    }

    /// Keeps the rows whose name in this column is wanted.
    fn keep(&self, rows: &mut Vec<u32>, column: Column, is_wanted: impl Fn(&str) -> bool) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let names = self.names(column)?;
        let admitted: Vec<bool> = names.all().map(|name| name.is_some_and(&is_wanted)).collect();
        match (admitted.contains(&true), admitted.contains(&false)) {
            // Every name of the block is wanted.
            (true, false) => {}
            (true, true) => rows.retain(|row| admitted.get(names.code(*row as usize)).copied().unwrap_or(false)),
            (false, _) => rows.clear(),
        }
        Ok(())
    }

    /// Reads the columns that an order goes by, and returns the function that gives a row's ranks ([`Sort::ranks`]).
    pub(super) fn ranks(&self, sort: Sort) -> Result<impl Fn(u32) -> (i64, i64) + use<>, StoreError> {
        let is_needed = |field| match sort {
            Sort::Dispatch => matches!(field, SortField::Priority | SortField::RunAt),
            Sort::By(by, _) => by == field,
        };
        let needed = SPANS.into_iter().filter(|(_, field)| is_needed(*field));
        let columns = needed.map(|(column, field)| Ok((field, self.ints(column)?)));
        let columns = columns.collect::<Result<Vec<_>, StoreError>>()?;
        Ok(move |row| {
            let column = |field| columns.iter().find(|(of, _)| *of == field);
            sort.ranks(|field| column(field).map(|(_, numbers)| numbers.get(row as usize)))
        })
    }

    /// Returns whether the job in a row has left the block.
    #[cfg(test)]
    pub(super) fn has_left(&self, row: u32) -> Result<bool, StoreError> {
        Ok(self.dead()?.is_some_and(|dead| has_bit(&dead, row)))
    }

    /// Returns the row of a job that is in the block and has not left it.
    pub(super) fn row_of(&self, id: &str, created_at: Timestamp) -> Result<Option<u32>, StoreError> {
        let times = self.ints(Column::CreatedAt)?;
        let ids = self.ids()?;
        let dead = self.dead()?;
        let is_it = |row: &u32| {
            times.get(*row as usize) == created_at.as_millis()
                && ids.is(*row as usize, id)
                && !dead.as_ref().is_some_and(|dead| has_bit(dead, *row))
        };
        Ok((0..self.block.rows).find(is_it))
    }

    /// Returns what the block becomes when these rows leave it.
    pub(super) fn without(&self, rows: &[u32]) -> Result<Block, StoreError> {
        Ok(self.block.without(rows.iter().copied(), self.dead()?.as_deref().unwrap_or_default()))
    }
}

/// The bits of the jobs that have left a block.
enum Dead {
    /// Since the store was opened.
    Since(Arc<[u8]>),
    Stored(Slice),
}

impl Deref for Dead {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Since(bits) => bits,
            Self::Stored(bits) => bits,
        }
    }
}

fn has_bit(bits: &[u8], row: u32) -> bool {
    bits.get(row as usize / 8).is_some_and(|byte| byte & (1 << (row % 8)) != 0)
}

/// The states of a block's jobs.
pub(super) struct States(Ints);

impl States {
    /// Returns the state in a row.
    pub(super) fn get(&self, row: u32) -> Result<JobState, Corrupt> {
        let code = u8::try_from(self.0.get(row as usize)).unwrap_or(u8::MAX);
        state_of(code).map_err(|why| Corrupt(format!("a block of finished jobs: {why}")))
    }
}
