//! The output of attempts: what a job's commands wrote, kept beside the jobs and under weaker promises.
//!
//! The output of an attempt belongs to the claim that began it, so to its fence: attempt numbers come back after a
//! release. Each stream is cut into cells of [`CELL_BYTES`]. Of a long stream the first [`HEAD_CELLS`] and the last
//! [`TAIL_CELLS`] are kept: a cell of the tail takes the slot of the one before it by a whole tail, as in a ring. So an
//! attempt has at most [`SLOTS`] cells a stream, however much it writes, and each cell's place follows from job, fence,
//! stream and slot: neither reading nor removing an output needs a search.
//!
//! A cell is written with all that the writer knows of it, and is united with what is there, as far as the store can
//! do that at once: the one that ends later wins otherwise. So a repeated or late write changes nothing, and needs no
//! version to be read before it. Output shares neither log nor sync with jobs, and a crash of the store may lose the
//! last seconds of it; a stream whose end is known says so ([`OutputCell::is_end`]). What is missing amid a cell is a
//! gap of it, which a cell that has it fills ([`OutputCell::united`]).
//!
//! A job that is removed gives its id, and with it the fences, to the next job of that id. So a cell has the time at
//! which its job was created, and is not read as that of another job.

use std::ops::{Range, RangeInclusive};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::StoreError;
use crate::clock::Timestamp;
use crate::job::{Fence, JobId, words};

/// The length of a cell, in bytes.
pub const CELL_BYTES: u64 = 8 * 1024;
/// How many cells are kept of a stream's beginning: 64 KiB.
pub const HEAD_CELLS: u64 = 8;
/// How many cells are kept of a stream's end: 192 KiB, of which the last may not be full.
pub const TAIL_CELLS: u64 = 24;
/// The most cells that are kept of a stream.
pub const SLOTS: u64 = HEAD_CELLS + TAIL_CELLS;

/// The attempts of a job of which output is kept, by fences: that of earlier ones is removed when a later one begins.
pub(crate) const KEPT_FENCES: u64 = 50;

words! {
    /// One of the two streams that a command writes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Stream: "a stream of an output", "streams" {
        /// The command wrote it to standard output.
        Stdout = "stdout",
        /// The command wrote it to standard error.
        Stderr = "stderr",
    }
}

/// Returns the line that stands in the place of bytes that are left out, wherever an output is shown or kept as text.
pub(crate) fn left_out(bytes: u64) -> String {
    format!("\n[{bytes} bytes left out]\n")
}

/// The attempt that an output belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutputOf {
    /// The job.
    pub job: JobId,
    /// The fence of the claim that began the attempt.
    pub fence: Fence,
}

/// The place of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CellKey {
    /// The attempt that the cell's output is of.
    pub of: OutputOf,
    /// When the job was created: the id and the fence may have been those of another job before.
    pub created_at: Timestamp,
    /// The stream that the cell is a part of.
    pub stream: Stream,
    /// The number of the place among those of the stream, less than [`SLOTS`].
    pub slot: u64,
}

impl CellKey {
    /// Returns the place of the cell that has the byte at `offset` of a stream.
    #[must_use]
    pub fn at(of: &OutputOf, created_at: Timestamp, stream: Stream, offset: u64) -> Self {
        let cell = offset / CELL_BYTES;
        let slot = if cell < HEAD_CELLS { cell } else { HEAD_CELLS + (cell - HEAD_CELLS) % TAIL_CELLS };
        Self { of: of.clone(), created_at, stream, slot }
    }

    /// Returns the place of a cell of a stream.
    #[must_use]
    pub fn of_cell(of: &OutputOf, created_at: Timestamp, stream: Stream, cell: &OutputCell) -> Self {
        Self::at(of, created_at, stream, cell.number() * CELL_BYTES)
    }

    /// Returns the places of all cells that an attempt can have.
    pub fn all(of: &OutputOf, created_at: Timestamp) -> impl Iterator<Item = Self> {
        Stream::ALL.into_iter().flat_map(move |stream| (0..SLOTS).map(move |slot| (stream, slot))).map({
            let of = of.clone();
            move |(stream, slot)| Self { of: of.clone(), created_at, stream, slot }
        })
    }
}

/// A part of a stream that lies within one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputCell {
    /// Where the part begins, in bytes from the stream's beginning.
    pub offset: u64,
    /// The bytes, at most [`CELL_BYTES`]; none where a stream is empty.
    pub bytes: Vec<u8>,
    /// Whether the stream ends with this part.
    pub is_end: bool,
    /// What of the part is not known, in bytes from the stream's beginning, one after the other: zeros stand there.
    pub gaps: Vec<Range<u64>>,
}

impl OutputCell {
    /// Returns a part without gaps.
    #[must_use]
    pub fn whole(offset: u64, bytes: Vec<u8>, is_end: bool) -> Self {
        Self { offset, bytes, is_end, gaps: Vec::new() }
    }

    /// Returns where the part ends, in bytes from the stream's beginning.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    /// Returns a number that is greater for each cell that ends later, and at least one.
    #[must_use]
    pub fn rank(&self) -> u64 {
        2 * self.end() + u64::from(self.is_end) + 1
    }

    /// Returns the number of the cell in its stream, of which several share a place. The end of a stream belongs to the
    /// cell of its last byte.
    #[must_use]
    pub const fn number(&self) -> u64 {
        let place = if self.bytes.is_empty() { self.offset.saturating_sub(1) } else { self.offset };
        place / CELL_BYTES
    }

    /// Returns whether all of the cell up to the part's end is known.
    #[must_use]
    pub fn is_from_its_beginning(&self) -> bool {
        self.gaps.is_empty() && self.offset <= self.number() * CELL_BYTES
    }

    /// Returns whether the part lies within one cell, and its gaps within it, one after the other.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let end = self.offset.checked_add(self.bytes.len() as u64);
        let mut from = self.offset;
        let mut follows = |gap: &Range<u64>| {
            (from..gap.end).contains(&gap.start) && {
                from = gap.end;
                true
            }
        };
        end.is_some_and(|end| end - self.number() * CELL_BYTES <= CELL_BYTES)
            && self.gaps.iter().all(&mut follows)
            && from <= self.end()
    }

    /// Returns the bytes that are known, in pieces that do not touch, each with the place where it begins in the
    /// stream.
    #[must_use]
    pub fn pieces(&self) -> Vec<(u64, &[u8])> {
        let starts = std::iter::once(self.offset).chain(self.gaps.iter().map(|gap| gap.end));
        let ends = self.gaps.iter().map(|gap| gap.start).chain([self.end()]);
        let piece = |(from, to): (u64, u64)| (from, &self.bytes[self.place(from)..self.place(to)]);
        starts.zip(ends).filter(|(from, to)| from < to).map(piece).collect()
    }

    /// Returns where in the bytes the one at `offset` of the stream is.
    fn place(&self, offset: u64) -> usize {
        (offset - self.offset) as usize
    }

    /// Returns the cell with all that it and another one of the same place have. Of two that are not of the same part
    /// of the stream it is the later one.
    #[must_use]
    pub fn united(self, other: Self) -> Self {
        if self.number() != other.number() {
            return if self.number() > other.number() { self } else { other };
        }
        let (offset, end) = (self.offset.min(other.offset), self.end().max(other.end()));
        let is_end = [&self, &other].iter().any(|cell| cell.is_end && cell.end() == end);
        let mut united = Self::whole(offset, vec![0; (end - offset) as usize], is_end);
        let mut pieces = [self.pieces(), other.pieces()].concat();
        pieces.sort_by_key(|(from, _)| *from);
        let mut known = offset;
        for (from, bytes) in pieces {
            if from > known {
                united.gaps.push(known..from);
            }
            let place = united.place(from);
            united.bytes[place..place + bytes.len()].copy_from_slice(bytes);
            known = known.max(from + bytes.len() as u64);
        }
        // A stream may end behind what is known of it.
        if end > known {
            united.gaps.push(known..end);
        }
        united
    }
}

/// Keeps the output of attempts.
#[async_trait]
pub trait OutputStore: Send + Sync + 'static {
    /// Writes cells, each in its place: united with what is there, or, by a store that cannot do that at once, unless
    /// one of a higher rank is there.
    ///
    /// # Errors
    /// [`StoreError`] when not all were written; some may have been, and writing them again does no harm.
    async fn write(&self, cells: Vec<(CellKey, OutputCell)>) -> Result<(), StoreError>;

    /// Reads cells in real time and returns them in the order of `keys`; `None` where there is none.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read now.
    async fn read(&self, keys: &[CellKey]) -> Result<Vec<Option<OutputCell>>, StoreError>;

    /// Reads cells as [`read`](Self::read) does, but waits for no other member that may have more of them.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read now.
    async fn read_here(&self, keys: &[CellKey]) -> Result<Vec<Option<OutputCell>>, StoreError> {
        self.read(keys).await
    }

    /// Removes the output of jobs, of the attempts with these fences, as far as there is any.
    ///
    /// # Errors
    /// [`StoreError`] when not all could be removed.
    async fn remove(&self, attempts: &[(JobId, RangeInclusive<Fence>)]) -> Result<(), StoreError>;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_stream_takes_no_more_places_than_it_may_however_long_it_is() {
        let of = OutputOf { job: JobId::generate(), fence: Fence::new(3) };
        let slot = |offset| CellKey::at(&of, Timestamp::MIN, Stream::Stdout, offset).slot;
        assert_eq!((slot(0), slot(CELL_BYTES - 1), slot(CELL_BYTES)), (0, 0, 1));
        let tail_begins = HEAD_CELLS * CELL_BYTES;
        assert_eq!((slot(tail_begins - 1), slot(tail_begins)), (HEAD_CELLS - 1, HEAD_CELLS));
        assert_eq!(slot(tail_begins + TAIL_CELLS * CELL_BYTES), HEAD_CELLS);
        assert!((0..10_000).all(|cell| slot(cell * CELL_BYTES) < SLOTS));
        assert_eq!(CellKey::all(&of, Timestamp::MIN).count() as u64, 2 * SLOTS);
    }

    #[test]
    fn a_cell_gives_way_to_one_that_ends_later_or_is_known_to_be_the_end() {
        let cell = |bytes: &str, is_end| OutputCell::whole(10, bytes.into(), is_end).rank();
        assert!(cell("", false) < cell("a", false) && cell("a", false) < cell("a", true));
        assert!(cell("a", true) < cell("ab", false));
    }

    /// The stream of which all cells here are: each byte says its place.
    fn part(from: u64, to: u64, is_end: bool) -> OutputCell {
        OutputCell::whole(from, (from..to).map(|place| place as u8 | 1).collect(), is_end)
    }

    #[test]
    fn a_gap_is_between_what_is_known_and_is_filled_by_what_has_it() {
        let torn = part(0, 3, false).united(part(5, 8, true));
        assert_eq!(
            (torn.offset, torn.end(), torn.is_end, &*torn.gaps),
            (0, 8, true, &[Range { start: 3, end: 5 }][..])
        );
        assert_eq!(torn.pieces(), [(0, &part(0, 3, false).bytes[..]), (5, &part(5, 8, false).bytes[..])]);
        assert_eq!(torn.clone().united(part(2, 6, false)), part(0, 8, true));
        let longer = part(0, 9, false);
        assert_eq!(torn.united(longer.clone()), longer, "it does not end there");
    }

    #[test]
    fn of_two_parts_that_share_a_place_the_later_one_stays() {
        let (head, later) = (part(0, 3, false), OutputCell::whole(CELL_BYTES * 32, b"x".to_vec(), false));
        assert_eq!(head.clone().united(later.clone()), later);
        assert_eq!(later.clone().united(head), later);
    }

    proptest! {
        #[test]
        fn cells_are_united_in_any_order_and_as_often_as_they_come(
            parts in proptest::collection::vec((0..CELL_BYTES, 0..600_u64), 1..8),
            order in proptest::collection::vec(any::<proptest::sample::Index>(), 8..24),
            end in 0..CELL_BYTES,
        ) {
            let part = |&(from, length): &(u64, u64)| part(from, (from + length).min(CELL_BYTES), false);
            let unite = |cells: Vec<OutputCell>| cells.into_iter().reduce(OutputCell::united).expect("a cell");
            let mut cells: Vec<OutputCell> = parts.iter().map(part).collect();
            let last = cells.iter().map(OutputCell::end).max().expect("a cell").max(end);
            cells.push(OutputCell::whole(last, Vec::new(), true));
            let united = unite(cells.clone());
            prop_assert!(united.is_valid());
            prop_assert_eq!((united.is_end, united.end()), (true, last));
            let again = order.iter().map(|at| at.get(&cells).clone()).chain(cells.clone());
            prop_assert_eq!(&unite(again.collect()), &united);
            // Exactly the bytes that some part has are known.
            let places = |(from, bytes): (u64, &[u8])| from..from + bytes.len() as u64;
            let known: Vec<u64> = united.pieces().into_iter().flat_map(places).collect();
            let has = |place: &u64| cells.iter().any(|cell| (cell.offset..cell.end()).contains(place));
            prop_assert_eq!(known, (0..CELL_BYTES).filter(has).collect::<Vec<_>>());
            let is_right = |(from, bytes): &(u64, &[u8])| *bytes == part(&(*from, bytes.len() as u64)).bytes;
            prop_assert!(united.pieces().iter().all(is_right));
        }
    }
}
