//! The database's journals, read without being changed.
//!
//! The database reads a journal until something in it makes no sense, takes that for the end, and cuts the file there.
//! That is right for a batch that a crash cut short and loses everything behind a damaged one. So the journals are read
//! here first. A batch is synced before the next one begins, so that a crash can cut short the very last batch only:
//!
//! ```text
//! journal = batch* zeros                        zeros: space that was set aside when the file was created
//! batch   = 1 count:u32 number:u64 item* 3 checksum:u64 "FJL\3"
//! item    = 2 type:u8 compression:u8 keyspace:u64 key_length:u16 length:u32 stored_length:u32 key value
//!         | 4 keyspace:u64
//! ```
//!
//! Numbers are little-endian, the numbers of batches rise, and the checksum is XXH3 over the items.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::error::Damage;

/// How a whole batch ends.
const MAGIC: &[u8; 4] = b"FJL\x03";

/// The bytes in front of a batch's items, and behind them.
const START_BYTES: usize = 1 + 4 + 8;
const END_BYTES: usize = 1 + 8 + MAGIC.len();

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Batches are numbered one after the other, with the numbers left out that the database uses otherwise. So large a
/// step is none of those.
const MAX_STEP: u64 = 1 << 32;

/// The key under which each batch has the number of its last write.
pub(super) const SEQ_NO: &[u8] = b"seq_no";

/// What is in a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Journal {
    /// The length of its whole batches in bytes.
    pub(super) length: u64,
    /// The XXH3 checksum of these bytes.
    pub(super) checksum: u128,
    /// For each keyspace that it has items of, the number of the last batch with some.
    pub(super) keyspaces: BTreeMap<u64, u64>,
    /// The number of the last write that it has, if it has any.
    pub(super) seq_no: Option<u64>,
    /// The numbers of its first and its last batch, if it has any.
    pub(super) batches: Option<(u64, u64)>,
    /// Whether a batch follows that a crash has cut short.
    pub(super) is_torn: bool,
}

impl Journal {
    /// Reads a journal. `is_last` says that no later journal has a whole batch.
    ///
    /// # Errors
    /// What is damaged in it, and where.
    pub(super) fn read(path: &Path, is_last: bool) -> Result<Self, Damage> {
        let bytes = fs::read(path).map_err(|error| Damage::unreadable(path, &error))?;
        Self::parse(&bytes, is_last).map_err(|what| Damage::of(path, what))
    }

    fn parse(bytes: &[u8], is_last: bool) -> Result<Self, String> {
        let mut journal = Self::default();
        let mut at = 0;
        while let Some(batch) = Batch::parse(bytes, at) {
            let first = match journal.batches {
                None => batch.number,
                Some((_, last)) if !follows(batch.number, last) => {
                    return Err(format!("the number of the batch at byte {at} is wrong"));
                }
                Some((first, _)) => first,
            };
            journal.batches = Some((first, batch.number));
            journal.seq_no = batch.seq_no.or(journal.seq_no);
            for keyspace in batch.keyspaces {
                journal.keyspaces.insert(keyspace, batch.number);
            }
            at = batch.end;
        }
        journal.is_torn = is_torn(bytes, at, is_last)?;
        journal.length = at as u64;
        journal.checksum = xxh3_128(&bytes[..at]);
        Ok(journal)
    }
}

/// Returns whether a batch with this number can come after one with the number `last`.
pub(super) fn follows(number: u64, last: u64) -> bool {
    number.checked_sub(last).is_some_and(|step| (1..=MAX_STEP).contains(&step))
}

/// Returns whether a torn batch begins at `at`, where no whole one does; `false` when nothing does.
fn is_torn(bytes: &[u8], at: usize, is_last: bool) -> Result<bool, String> {
    let rest = without_zeros(&bytes[at..]);
    if rest.is_empty() {
        return Ok(false);
    }
    let broken = || Err(format!("the batch at byte {at} is broken, and it was written whole"));
    if !is_last {
        return broken();
    }
    match rest.windows(MAGIC.len()).filter(|window| window == MAGIC).count() {
        // It came as far as to its end, but for a few bytes.
        0 if Items::parse(bytes, at).is_some_and(|items| items.has_wrong_magic(bytes)) => broken(),
        0 => Ok(true),
        // The end of a batch may reach the disk before its middle.
        1 if rest.ends_with(MAGIC) && has_hole(bytes, at, at + rest.len()) => Ok(true),
        _ => broken(),
    }
}

/// Returns the bytes without the zeros at their end, of which there can be many.
fn without_zeros(mut bytes: &[u8]) -> &[u8] {
    const ZEROS: [u8; 1 << 12] = [0; 1 << 12];
    while let Some(rest) = bytes.strip_suffix(&ZEROS) {
        bytes = rest;
    }
    &bytes[..bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)]
}

/// Returns whether a part that a disk writes as one was not written.
fn has_hole(bytes: &[u8], from: usize, to: usize) -> bool {
    bytes[..to]
        .chunks(SECTOR)
        .skip(from / SECTOR)
        .any(|sector| sector.len() == SECTOR && sector.iter().all(|b| *b == 0))
}

/// A whole batch.
struct Batch {
    number: u64,
    keyspaces: Vec<u64>,
    seq_no: Option<u64>,
    end: usize,
}

impl Batch {
    fn parse(bytes: &[u8], at: usize) -> Option<Self> {
        let Items { number, keyspaces, seq_no, end, checksum } = Items::parse(bytes, at)?;
        let mut rest = Cursor { bytes, at: end };
        let is_whole = rest.byte()? == 3 && rest.u64()? == checksum && rest.take(MAGIC.len())? == MAGIC;
        is_whole.then_some(Self { number, keyspaces, seq_no, end: rest.at })
    }
}

/// A batch up to its last item.
struct Items {
    number: u64,
    keyspaces: Vec<u64>,
    seq_no: Option<u64>,
    /// Where the last item ends.
    end: usize,
    checksum: u64,
}

impl Items {
    fn parse(bytes: &[u8], at: usize) -> Option<Self> {
        let mut rest = Cursor { bytes, at };
        if rest.byte()? != 1 {
            return None;
        }
        let (count, number) = (rest.u32()?, rest.u64()?);
        let (mut keyspaces, mut seq_no) = (Vec::new(), None);
        for _ in 0..count {
            let keyspace = match rest.byte()? {
                2 => {
                    rest.take(2)?;
                    let keyspace = rest.u64()?;
                    let (key_length, length, stored) = (rest.u16()?, rest.u32()?, rest.u32()?);
                    let (key, value) = (rest.take(key_length as usize)?, rest.take(stored as usize)?);
                    if key == SEQ_NO && length == 8 {
                        seq_no = value.try_into().ok().map(u64::from_be_bytes);
                    }
                    keyspace
                }
                4 => rest.u64()?,
                _ => return None,
            };
            // A batch writes keyspace by keyspace, more or less.
            if !keyspaces.contains(&keyspace) {
                keyspaces.push(keyspace);
            }
        }
        let checksum = xxh3_64(&bytes[at + START_BYTES..rest.at]);
        Some(Self { number, keyspaces, seq_no, end: rest.at, checksum })
    }

    /// Returns whether the checksum that follows is right and what follows it is neither the end of a batch nor the
    /// beginning of that.
    fn has_wrong_magic(&self, bytes: &[u8]) -> bool {
        let mut rest = Cursor { bytes, at: self.end };
        if rest.byte() != Some(3) || rest.u64() != Some(self.checksum) {
            return false;
        }
        let found = &bytes[rest.at..bytes.len().min(self.end + END_BYTES)];
        let written = found.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        !MAGIC.starts_with(&found[..written])
    }
}

/// Reads numbers from bytes, one after the other; `None` behind their end.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }
}

#[cfg(test)]
mod tests;
