//! Finished jobs in blocks, column by column: their index.
//!
//! A block holds what filters and orders ask of some thousand finished jobs, each property in a column of its own
//! ([`super::column`]), so that a search reads the few bytes a job that it needs and passes over blocks whose times or
//! names rule all of it out. A block is written once. A job that leaves it, since it was removed or started again, is
//! marked as dead in it, and the block goes with its last job.

use std::cmp::Reverse;
use std::sync::Arc;

use fjall::{Slice, Snapshot};

use super::Corrupt;
use super::column::{Ids, Ints, Names};
use super::disk::Disk;
use super::narrow::Narrowed;
use super::stored::{state_code, state_of};
use crate::clock::Timestamp;
use crate::job::{Job, JobState, Kind, Owner, Priority, QueueName};
use crate::query::kql::Span;
use crate::query::{Direction, GroupField, Sort, SortField, SortValues};
use crate::store::{StoreError, Versioned};

/// A column's number on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Column {
    /// What is kept of the block in memory as well: no column.
    Head = 0,
    CreatedAt = 1,
    UpdatedAt = 2,
    RunAt = 3,
    FinishedAt = 4,
    Priority = 5,
    State = 6,
    Queue = 7,
    Kind = 8,
    Owner = 9,
    Id = 10,
    /// The jobs that have left, a bit each; there only when there are some.
    Dead = 11,
}

impl Column {
    /// All that a block can have.
    pub(super) const ALL: [Self; 12] = [
        Self::Head,
        Self::CreatedAt,
        Self::UpdatedAt,
        Self::RunAt,
        Self::FinishedAt,
        Self::Priority,
        Self::State,
        Self::Queue,
        Self::Kind,
        Self::Owner,
        Self::Id,
        Self::Dead,
    ];
}

/// The columns of numbers that searches are ordered and bounded by.
const SPANS: [Column; 5] = [Column::CreatedAt, Column::UpdatedAt, Column::RunAt, Column::FinishedAt, Column::Priority];

/// The columns of names, and the field that each is of.
const NAMES: [(Column, GroupField); 3] =
    [(Column::Queue, GroupField::Queue), (Column::Kind, GroupField::Kind), (Column::Owner, GroupField::Owner)];

/// A block, as far as it is kept in memory: about a hundred bytes for thousands of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Its name.
    pub(super) number: u32,
    /// How many jobs there were when it was written.
    pub(super) rows: u32,
    /// How many of them have left.
    pub(super) dead: u32,
    /// The smallest and the largest number in each of [`SPANS`].
    spans: [Span; SPANS.len()],
}

/// All blocks, in the order of their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    pub(super) list: Vec<Block>,
}

/// A new block and its columns, to be written.
pub(super) struct NewBlock {
    pub(super) block: Block,
    pub(super) columns: Vec<(Column, Vec<u8>)>,
}

/// Jobs that leave a block.
pub(super) struct Leaving {
    pub(super) block: Block,
    /// The new bits; none when nobody is left.
    pub(super) dead: Option<Vec<u8>>,
}

impl Blocks {
    /// The number of the next block. Numbers come again when the last blocks are gone, which nothing minds.
    pub(super) fn next(&self) -> u32 {
        self.list.last().map_or(0, |block| block.number + 1)
    }

    /// Puts a block in its former version's place, or behind all others, or takes it out when all its jobs have left.
    pub(super) fn put(&mut self, block: Block) {
        match self.list.binary_search_by_key(&block.number, |block| block.number) {
            Ok(place) if block.dead >= block.rows => drop(self.list.remove(place)),
            Ok(place) => self.list[place] = block,
            Err(place) => self.list.insert(place, block),
        }
    }

    /// How many finished jobs are in blocks.
    pub(super) fn jobs(&self) -> u64 {
        self.list.iter().map(|block| u64::from(block.rows - block.dead)).sum()
    }

    /// The blocks in which a job created then could be.
    pub(super) fn created_at(&self, at: Timestamp) -> impl Iterator<Item = &Block> {
        // What was done lately is most likely to be touched again.
        self.list.iter().rev().filter(move |block| block.spans[0].contains(at.as_millis()))
    }

    /// The blocks in which a job that is asked for could be, those first whose best could be the best of all in the
    /// order, each with the ranks of its first and last in it.
    pub(super) fn candidates(&self, wanted: &Narrowed, sort: Sort) -> Vec<(i64, i64, &Block)> {
        let candidates = self.list.iter().filter(|block| block.may_have(wanted));
        let ranked = candidates.map(|block| {
            let (first, last) = block.ranks(sort);
            (first, last, block)
        });
        let mut blocks: Vec<_> = ranked.collect();
        blocks.sort_by_key(|(first, _, block)| (*first, Reverse(block.number)));
        blocks
    }
}

impl Block {
    fn may_have(&self, wanted: &Narrowed) -> bool {
        let asked = [wanted.created_at, wanted.updated_at, wanted.run_at, wanted.finished_at];
        asked.iter().zip(&self.spans).all(|(asked, there)| !asked.and(*there).is_empty())
    }

    /// Ranks that no job in the block comes before, and after.
    fn ranks(&self, sort: Sort) -> (i64, i64) {
        let (field, direction) = match sort {
            Sort::Dispatch => (SortField::Priority, Direction::Descending),
            Sort::By(field, direction) => (field, direction),
        };
        let span = match field {
            SortField::CreatedAt => self.spans[0],
            SortField::UpdatedAt => self.spans[1],
            SortField::RunAt => self.spans[2],
            SortField::FinishedAt => self.spans[3],
            SortField::Priority => self.spans[4],
            // No settled job has such a time.
            SortField::WatchAt => return (i64::MAX, i64::MAX),
            SortField::Other(_) => return (i64::MIN, i64::MAX),
        };
        match direction {
            Direction::Ascending => (span.first, span.last),
            Direction::Descending => (span.last.saturating_neg(), span.first.saturating_neg()),
        }
    }

    /// What is kept of it on disk.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + SPANS.len() * 16);
        bytes.extend_from_slice(&self.rows.to_le_bytes());
        bytes.extend_from_slice(&self.dead.to_le_bytes());
        for span in &self.spans {
            bytes.extend_from_slice(&span.first.to_le_bytes());
            bytes.extend_from_slice(&span.last.to_le_bytes());
        }
        bytes
    }

    /// Reads what is kept of the block `number`.
    pub(super) fn decode(number: u32, bytes: &[u8]) -> Result<Self, Corrupt> {
        let broken = || Corrupt(format!("the head of block {number} has {} bytes", bytes.len()));
        let (rows, rest) = bytes.split_first_chunk::<4>().ok_or_else(broken)?;
        let (dead, rest) = rest.split_first_chunk::<4>().ok_or_else(broken)?;
        let (numbers, left) = rest.as_chunks::<8>();
        if numbers.len() != 2 * SPANS.len() || !left.is_empty() {
            return Err(broken());
        }
        let number_at = |place: usize| i64::from_le_bytes(numbers[place]);
        let spans = std::array::from_fn(|span| Span { first: number_at(2 * span), last: number_at(2 * span + 1) });
        let (rows, dead) = (u32::from_le_bytes(*rows), u32::from_le_bytes(*dead));
        if dead > rows {
            return Err(broken());
        }
        Ok(Self { number, rows, dead, spans })
    }
}

impl NewBlock {
    /// A block of these jobs.
    pub(super) fn of(number: u32, heads: &[Versioned]) -> Self {
        let jobs = || heads.iter().map(|head| &*head.job);
        let mut columns = Vec::with_capacity(Column::ALL.len());
        let mut spans = [Span { first: 0, last: 0 }; SPANS.len()];
        for (span, column) in spans.iter_mut().zip(SPANS) {
            let values = jobs().map(|job| number_in(job, column));
            let range = values.clone().min().zip(values.clone().max());
            *span = range.map_or(*span, |(first, last)| Span { first, last });
            columns.push((column, ints(values)));
        }
        columns.push((Column::State, ints(jobs().map(|job| i64::from(state_code(job.state.name()))))));
        for (column, field) in NAMES {
            let mut names = Vec::new();
            Names::encode(jobs().map(|job| field.value(job)), &mut names);
            columns.push((column, names));
        }
        let mut ids = Vec::new();
        Ids::encode(&jobs().map(|job| job.id.as_str()).collect::<Vec<_>>(), &mut ids);
        columns.push((Column::Id, ids));
        let block = Block { number, rows: heads.len() as u32, dead: 0, spans };
        columns.push((Column::Head, block.encode()));
        Self { block, columns }
    }
}

fn ints(values: impl Iterator<Item = i64> + Clone) -> Vec<u8> {
    let mut bytes = Vec::new();
    Ints::encode(values, &mut bytes);
    bytes
}

fn number_in(job: &Job, column: Column) -> i64 {
    match column {
        Column::CreatedAt => job.created_at.as_millis(),
        Column::UpdatedAt => job.updated_at.as_millis(),
        Column::RunAt => job.run_at.as_millis(),
        // Every settled job has ended.
        Column::FinishedAt => job.finished_at().unwrap_or(job.updated_at).as_millis(),
        _ => i64::from(job.spec.priority.get()),
    }
}

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

    /// The column of names of a field; none for the state, which is no name.
    pub(super) fn group(&self, field: GroupField) -> Result<Option<Names>, StoreError> {
        let column = NAMES.into_iter().find(|(_, of)| *of == field);
        column.map(|(column, _)| self.names(column)).transpose()
    }

    fn names(&self, column: Column) -> Result<Names, StoreError> {
        Ok(Names::read(self.bytes(column)?, self.rows())?)
    }

    /// The ids.
    pub(super) fn ids(&self) -> Result<Ids, StoreError> {
        Ok(Ids::read(self.bytes(Column::Id)?, self.rows())?)
    }

    /// The states.
    pub(super) fn states(&self) -> Result<States, StoreError> {
        Ok(States(self.ints(Column::State)?))
    }

    fn dead(&self) -> Result<Option<Slice>, StoreError> {
        if self.block.dead == 0 { Ok(None) } else { self.bytes(Column::Dead).map(Some) }
    }

    /// The rows of those that satisfy all that their columns tell, in rising order.
    pub(super) fn select(&self, wanted: &Narrowed) -> Result<Vec<u32>, StoreError> {
        let mut rows: Vec<u32> = match self.dead()? {
            None => (0..self.block.rows).collect(),
            Some(dead) => (0..self.block.rows).filter(|row| !has_bit(&dead, *row)).collect(),
        };
        let filter = &wanted.filter;
        self.keep_named(&mut rows, Column::Queue, filter.queues.iter().map(QueueName::as_str))?;
        self.keep_named(&mut rows, Column::Kind, filter.kinds.iter().map(Kind::as_str))?;
        self.keep_named(&mut rows, Column::Owner, filter.owners.iter().map(Owner::as_str))?;
        if !filter.states.is_empty() && !rows.is_empty() {
            let states = self.ints(Column::State)?;
            let admitted: Vec<i64> = filter.states.iter().map(|state| i64::from(state_code(*state))).collect();
            rows.retain(|row| admitted.contains(&states.get(*row as usize)));
        }
        let asked = [wanted.created_at, wanted.updated_at, wanted.run_at, wanted.finished_at];
        for ((asked, there), column) in asked.into_iter().zip(self.block.spans).zip(SPANS) {
            let all_within = asked.and(there) == there;
            if !all_within && !rows.is_empty() {
                let times = self.ints(column)?;
                rows.retain(|row| asked.contains(times.get(*row as usize)));
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
        if wanted.clone().next().is_none() || rows.is_empty() {
            return Ok(());
        }
        let names = self.names(column)?;
        let is_wanted = |name: &str| wanted.clone().any(|wanted| wanted == name);
        let admitted: Vec<bool> = names.all().map(|name| name.is_some_and(is_wanted)).collect();
        if admitted.contains(&true) {
            rows.retain(|row| admitted.get(names.code(*row as usize)).copied().unwrap_or(false));
        } else {
            rows.clear();
        }
        Ok(())
    }

    /// What jobs are ordered by, as far as an order needs it.
    pub(super) fn values(&self, sort: Sort) -> Result<Values, StoreError> {
        let needed = |field| match sort {
            Sort::Dispatch => matches!(field, SortField::Priority | SortField::RunAt),
            Sort::By(by, _) => by == field,
        };
        let column = |field, column| if needed(field) { self.ints(column).map(Some) } else { Ok(None) };
        Ok(Values {
            created_at: column(SortField::CreatedAt, Column::CreatedAt)?,
            updated_at: column(SortField::UpdatedAt, Column::UpdatedAt)?,
            run_at: column(SortField::RunAt, Column::RunAt)?,
            finished_at: column(SortField::FinishedAt, Column::FinishedAt)?,
            priority: column(SortField::Priority, Column::Priority)?,
        })
    }

    /// The row of a job that is in the block and has not left it.
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

    /// What the block becomes when these rows, which are in it, leave it.
    pub(super) fn without(&self, rows: &[u32]) -> Result<Leaving, StoreError> {
        let mut dead = self.dead()?.map_or_else(Vec::new, |dead| dead.to_vec());
        dead.resize(self.rows().div_ceil(8), 0);
        for row in rows {
            dead[*row as usize / 8] |= 1 << (row % 8);
        }
        let block = Block { dead: dead.iter().map(|byte| byte.count_ones()).sum(), ..self.block.clone() };
        let is_empty = block.dead >= block.rows;
        Ok(Leaving { block, dead: (!is_empty).then_some(dead) })
    }
}

fn has_bit(bits: &[u8], row: u32) -> bool {
    bits.get(row as usize / 8).is_some_and(|byte| byte & (1 << (row % 8)) != 0)
}

/// The states of a block's jobs.
pub(super) struct States(Ints);

impl States {
    /// The state in a row.
    pub(super) fn get(&self, row: u32) -> Result<JobState, Corrupt> {
        let code = u8::try_from(self.0.get(row as usize)).unwrap_or(u8::MAX);
        state_of(code).map_err(|why| Corrupt(format!("a block of finished jobs: {why}")))
    }
}

/// What a block's jobs are ordered by.
pub(super) struct Values {
    created_at: Option<Ints>,
    updated_at: Option<Ints>,
    run_at: Option<Ints>,
    finished_at: Option<Ints>,
    priority: Option<Ints>,
}

impl Values {
    /// Those in a row; what was not asked for has no meaning.
    pub(super) fn get(&self, row: u32) -> SortValues {
        let number = |column: &Option<Ints>| column.as_ref().map_or(0, |column| column.get(row as usize));
        let time = |column| Timestamp::from_millis(number(column));
        SortValues {
            created_at: time(&self.created_at),
            updated_at: time(&self.updated_at),
            run_at: time(&self.run_at),
            finished_at: Some(time(&self.finished_at)),
            priority: Priority::new(number(&self.priority)).unwrap_or_default(),
            watch_at: None,
        }
    }
}
