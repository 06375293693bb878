//! The output of attempts: what a job's commands wrote, kept beside the jobs and under weaker promises.
//!
//! The output of an attempt belongs to the claim that began it, so to its fence: attempt numbers come back after a
//! release. Each stream is cut into cells of [`CELL_BYTES`]. Of a long stream the first [`HEAD_CELLS`] and the last
//! [`TAIL_CELLS`] are kept: a cell of the tail takes the slot of the one before it by a whole tail, as in a ring. So an
//! attempt has at most [`SLOTS`] cells a stream, however much it writes, and each cell's place follows from job, fence,
//! stream and slot: neither reading nor removing an output needs a search.
//!
//! A cell is written whole, and the one that ends later wins. So a repeated or late write changes nothing, and needs no
//! version to be read before it. Output shares neither log nor sync with jobs, and a crash of the store may lose the
//! last seconds of it; a stream whose end is known says so ([`OutputCell::is_end`]).

use std::ops::RangeInclusive;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::StoreError;
use crate::job::{Fence, JobId, words};

/// The length of a cell, in bytes.
pub const CELL_BYTES: u64 = 8 * 1024;
/// How many cells are kept of a stream's beginning: 64 KiB.
pub const HEAD_CELLS: u64 = 8;
/// How many cells are kept of a stream's end: 192 KiB, of which the last may not be full.
pub const TAIL_CELLS: u64 = 24;
/// The most cells that are kept of a stream.
pub const SLOTS: u64 = HEAD_CELLS + TAIL_CELLS;

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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    /// The stream that the cell is a part of.
    pub stream: Stream,
    /// The number of the place among those of the stream, less than [`SLOTS`].
    pub slot: u64,
}

impl CellKey {
    /// Returns the place of the cell that has the byte at `offset` of a stream.
    #[must_use]
    pub fn at(of: &OutputOf, stream: Stream, offset: u64) -> Self {
        let cell = offset / CELL_BYTES;
        let slot = if cell < HEAD_CELLS { cell } else { HEAD_CELLS + (cell - HEAD_CELLS) % TAIL_CELLS };
        Self { of: of.clone(), stream, slot }
    }

    /// Returns the places of all cells that an attempt can have.
    pub fn all(of: &OutputOf) -> impl Iterator<Item = Self> {
        Stream::ALL.into_iter().flat_map(move |stream| (0..SLOTS).map(move |slot| (stream, slot))).map({
            let of = of.clone();
            move |(stream, slot)| Self { of: of.clone(), stream, slot }
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
}

impl OutputCell {
    /// Returns where the part ends, in bytes from the stream's beginning.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    /// Returns a number that is greater for each cell that may take the place of this one, and at least one.
    #[must_use]
    pub fn rank(&self) -> u64 {
        Self::rank_of(self.end(), self.is_end)
    }

    /// Returns the rank of a cell that ends at this place of its stream, which may be the stream's end.
    pub(crate) fn rank_of(end: u64, is_end: bool) -> u64 {
        2 * end + u64::from(is_end) + 1
    }
}

/// Keeps the output of attempts.
#[async_trait]
pub trait OutputStore: Send + Sync + 'static {
    /// Writes cells, each in its place, unless one of a higher rank is there.
    ///
    /// # Errors
    /// [`StoreError`] when not all were written; some may have been, and writing them again does no harm.
    async fn write(&self, cells: Vec<(CellKey, OutputCell)>) -> Result<(), StoreError>;

    /// Reads cells in real time and returns them in the order of `keys`; `None` where there is none.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read now.
    async fn read(&self, keys: &[CellKey]) -> Result<Vec<Option<OutputCell>>, StoreError>;

    /// Removes the output of jobs, of the attempts with these fences, as far as there is any.
    ///
    /// # Errors
    /// [`StoreError`] when not all could be removed.
    async fn remove(&self, attempts: &[(JobId, RangeInclusive<Fence>)]) -> Result<(), StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_takes_no_more_places_than_it_may_however_long_it_is() {
        let of = OutputOf { job: JobId::generate(), fence: Fence::new(3) };
        let slot = |offset| CellKey::at(&of, Stream::Stdout, offset).slot;
        assert_eq!((slot(0), slot(CELL_BYTES - 1), slot(CELL_BYTES)), (0, 0, 1));
        let tail_begins = HEAD_CELLS * CELL_BYTES;
        assert_eq!((slot(tail_begins - 1), slot(tail_begins)), (HEAD_CELLS - 1, HEAD_CELLS));
        assert_eq!(slot(tail_begins + TAIL_CELLS * CELL_BYTES), HEAD_CELLS);
        assert!((0..10_000).all(|cell| slot(cell * CELL_BYTES) < SLOTS));
        assert_eq!(CellKey::all(&of).count() as u64, 2 * SLOTS);
    }

    #[test]
    fn a_cell_gives_way_to_one_that_ends_later_or_is_known_to_be_the_end() {
        let cell = |bytes: &str, is_end| OutputCell { offset: 10, bytes: bytes.into(), is_end }.rank();
        assert!(cell("", false) < cell("a", false) && cell("a", false) < cell("a", true));
        assert!(cell("a", true) < cell("ab", false));
    }
}
