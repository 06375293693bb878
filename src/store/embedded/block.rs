//! Finished jobs in blocks, column by column: their index.
//!
//! A block holds what filters and orders need of some thousand finished jobs, each property in a column of its own
//! ([`super::column`]), so that a search reads the few bytes a job that it needs and passes over blocks whose times or
//! names rule all of it out. A block is written once. A job that leaves it, since it was removed or started again, is
//! marked as dead in it, and the block goes with its last job.

use std::cmp::Reverse;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::column::{Ids, Ints, Names};
use super::error::Corrupt;
use super::narrow::Narrowed;
use super::stored::state_code;
use crate::clock::Timestamp;
use crate::query::kql::Span;
use crate::query::{Direction, GroupField, Sort, SortField};
use crate::store::Versioned;

/// A column's number on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Column {
    /// The summary of the block that is kept in memory as well; not a column.
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
    /// The jobs that have left the block, one bit each; present only when there are some.
    Dead = 11,
}

impl Column {
    /// The numbers of all columns that a block can have.
    pub(super) const NUMBERS: RangeInclusive<u8> = Self::Head as u8..=Self::Dead as u8;
}

/// The columns of numbers that searches are ordered and bounded by, and the field that each is of.
pub(super) const SPANS: [(Column, SortField); 5] = [
    (Column::CreatedAt, SortField::CreatedAt),
    (Column::UpdatedAt, SortField::UpdatedAt),
    (Column::RunAt, SortField::RunAt),
    (Column::FinishedAt, SortField::FinishedAt),
    (Column::Priority, SortField::Priority),
];

/// The columns of names, and the field that each is of.
pub(super) const NAMES: [(Column, GroupField); 3] =
    [(Column::Queue, GroupField::Queue), (Column::Kind, GroupField::Kind), (Column::Owner, GroupField::Owner)];

/// A block, as far as it is kept in memory: about a hundred bytes for thousands of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The block's number.
    pub(super) number: u32,
    /// The number of jobs when the block was written.
    pub(super) rows: u32,
    /// The number of those jobs that have left the block.
    pub(super) dead: u32,
    /// The smallest and the largest number in each of [`SPANS`].
    pub(super) spans: [Span; SPANS.len()],
    /// Which jobs have left, one bit each, where some have left since the store was opened; otherwise the column says.
    pub(super) left: Option<Arc<[u8]>>,
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

impl Blocks {
    /// Returns the number of the next block. A number is used again after the last blocks are gone, which does no harm.
    pub(super) fn next(&self) -> u32 {
        self.list.last().map_or(0, |block| block.number + 1)
    }

    /// Puts a block in its former version's place, or behind all others, or takes it out when all its jobs have left.
    pub(super) fn put(&mut self, block: Block) {
        match self.list.binary_search_by_key(&block.number, |block| block.number) {
            Ok(place) if block.dead >= block.rows => drop(self.list.remove(place)),
            Ok(place) => self.list[place] = block,
            Err(_) if block.dead >= block.rows => {}
            Err(place) => self.list.insert(place, block),
        }
    }

    /// Returns the block with a number.
    pub(super) fn get(&self, number: u32) -> Option<&Block> {
        self.list.binary_search_by_key(&number, |block| block.number).ok().map(|place| &self.list[place])
    }

    /// Returns how many finished jobs are in blocks.
    pub(super) fn jobs(&self) -> u64 {
        self.list.iter().map(|block| u64::from(block.rows - block.dead)).sum()
    }

    /// Returns the blocks that may contain a job created at the given time.
    pub(super) fn created_at(&self, at: Timestamp) -> impl Iterator<Item = &Block> {
        // Jobs that finished lately are most likely to be changed again.
        self.list.iter().rev().filter(move |block| block.spans[0].contains(at.as_millis()))
    }

    /// Returns the blocks in which a job that is wanted could be, those first whose first job could be the first of all
    /// in the order, each with the ranks of its first and last in it.
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
    /// Returns the block after these rows have left it. `bits` are those that had left before.
    pub(super) fn without(&self, rows: impl IntoIterator<Item = u32>, bits: &[u8]) -> Self {
        let mut bits = bits.to_vec();
        bits.resize((self.rows as usize).div_ceil(8), 0);
        for row in rows {
            bits[row as usize / 8] |= 1 << (row % 8);
        }
        let dead = bits.iter().map(|byte| byte.count_ones()).sum();
        Self { dead, left: Some(bits.into()), ..self.clone() }
    }

    fn may_have(&self, wanted: &Narrowed) -> bool {
        wanted.spans.iter().zip(&self.spans).all(|(span, there)| !span.and(*there).is_empty())
    }

    /// Returns the ranks that no job in the block comes before, and after.
    fn ranks(&self, sort: Sort) -> (i64, i64) {
        let (field, direction) = match sort {
            Sort::Dispatch => (SortField::Priority, Direction::Descending),
            Sort::By(field, direction) => (field, direction),
        };
        let Some(place) = SPANS.iter().position(|(_, of)| *of == field) else {
            // No settled job has a value of the one other field that is kept.
            return if sort.is_kept() { (i64::MAX, i64::MAX) } else { (i64::MIN, i64::MAX) };
        };
        let span = self.spans[place];
        match direction {
            Direction::Ascending => (span.first, span.last),
            Direction::Descending => (span.last.saturating_neg(), span.first.saturating_neg()),
        }
    }

    /// Encodes the block's summary as it is kept on disk.
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

    /// Parses the summary of the block `number` as it is kept on disk.
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
        Ok(Self { number, rows, dead, spans, left: None })
    }
}

impl NewBlock {
    /// Makes a block of these jobs.
    pub(super) fn of(number: u32, heads: &[Versioned]) -> Self {
        let jobs = || heads.iter().map(|head| &*head.job);
        let mut columns = Vec::with_capacity(Column::NUMBERS.len());
        let mut spans = [Span { first: 0, last: 0 }; SPANS.len()];
        for (span, (column, field)) in spans.iter_mut().zip(SPANS) {
            // Every settled job has a value of each.
            let values = jobs().map(|job| field.kept_value(job).unwrap_or_default());
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
        let block = Block { number, rows: heads.len() as u32, dead: 0, spans, left: None };
        columns.push((Column::Head, block.encode()));
        Self { block, columns }
    }
}

fn ints(values: impl Iterator<Item = i64> + Clone) -> Vec<u8> {
    let mut bytes = Vec::new();
    Ints::encode(values, &mut bytes);
    bytes
}
