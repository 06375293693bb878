//! One property of all jobs of a block, row by row: what a search reads instead of the jobs.
//!
//! Numbers take as few bytes as the widest difference to the smallest of them needs, and none when all are equal.
//! Names are numbered in the order in which they come up, and only the numbers are kept for each row. Reading copies
//! nothing and never panics, whatever the bytes are.

use std::collections::HashMap;
use std::ops::Range;

use fjall::Slice;
use uuid::Uuid;

use super::error::Corrupt;
use crate::job::JobId;

/// Stands in for the length of a name that is missing.
const NO_NAME: u16 = u16::MAX;

const UUIDS: u8 = 0;
const TEXTS: u8 = 1;
const UUID_BYTES: usize = 16;
const OFFSET_BYTES: usize = 4;

/// A column of whole numbers.
pub(super) struct Ints {
    bytes: Slice,
    start: usize,
    width: usize,
    least: i64,
}

impl Ints {
    /// Before the first row: the width, and the smallest number.
    const HEAD: usize = 9;

    /// Writes a column behind what `buffer` holds.
    pub(super) fn encode(values: impl Iterator<Item = i64> + Clone, buffer: &mut Vec<u8>) {
        let least = values.clone().min().unwrap_or(0);
        let most = values.clone().max().unwrap_or(0);
        let width = match most.wrapping_sub(least).cast_unsigned() {
            0 => 0,
            span if u8::try_from(span).is_ok() => 1,
            span if u16::try_from(span).is_ok() => 2,
            span if u32::try_from(span).is_ok() => 4,
            _ => 8,
        };
        buffer.push(width);
        buffer.extend_from_slice(&least.to_le_bytes());
        for value in values {
            let offset = value.wrapping_sub(least).cast_unsigned().to_le_bytes();
            buffer.extend_from_slice(&offset[..usize::from(width)]);
        }
    }

    /// Reads a column with the given number of rows that begins at `start` and ends with `bytes`.
    pub(super) fn read(bytes: Slice, start: usize, rows: usize) -> Result<Self, Corrupt> {
        let head = bytes.get(start..).and_then(<[u8]>::split_first_chunk::<{ Self::HEAD }>);
        let Some(([width, least @ ..], rest)) = head else { return Err(broken("a column is cut short")) };
        let (width, least) = (usize::from(*width), i64::from_le_bytes(*least));
        if !matches!(width, 0 | 1 | 2 | 4 | 8) || rest.len() != rows * width {
            return Err(broken(&format!("a column of {rows} numbers has {} bytes of width {width}", rest.len())));
        }
        Ok(Self { bytes, start: start + Self::HEAD, width, least })
    }

    /// Returns the number in a row; for a row that does not exist, the smallest number of the column.
    pub(super) fn get(&self, row: usize) -> i64 {
        let offset = match self.width {
            1 => self.chunk(row).map(|[byte]| u64::from(byte)),
            2 => self.chunk(row).map(|chunk| u64::from(u16::from_le_bytes(chunk))),
            4 => self.chunk(row).map(|chunk| u64::from(u32::from_le_bytes(chunk))),
            8 => self.chunk(row).map(u64::from_le_bytes),
            _ => None,
        };
        self.least.wrapping_add(offset.unwrap_or(0).cast_signed())
    }

    fn chunk<const N: usize>(&self, row: usize) -> Option<[u8; N]> {
        self.bytes.get(self.start + row * N..)?.first_chunk().copied()
    }
}

/// A column of names, some of which may be missing.
pub(super) struct Names {
    bytes: Slice,
    names: Vec<Option<Range<usize>>>,
    codes: Ints,
}

impl Names {
    /// Writes a column over what `buffer` held.
    pub(super) fn encode<'a>(values: impl Iterator<Item = Option<&'a str>>, buffer: &mut Vec<u8>) {
        let mut known: HashMap<Option<&str>, i64> = HashMap::new();
        let mut names = Vec::new();
        let codes: Vec<i64> = values
            .map(|name| {
                *known.entry(name).or_insert_with(|| {
                    names.push(name);
                    names.len() as i64 - 1
                })
            })
            .collect();
        buffer.clear();
        buffer.extend_from_slice(&(names.len() as u32).to_le_bytes());
        for name in names {
            // Names are far shorter than that.
            let length = name.map_or(NO_NAME, |name| u16::try_from(name.len()).unwrap_or(NO_NAME - 1));
            buffer.extend_from_slice(&length.to_le_bytes());
            buffer.extend_from_slice(name.unwrap_or_default().as_bytes());
        }
        Ints::encode(codes.iter().copied(), buffer);
    }

    /// Reads a column of so many rows.
    pub(super) fn read(bytes: Slice, rows: usize) -> Result<Self, Corrupt> {
        let short = || broken("a column of names is cut short");
        let (count, _) = bytes.split_first_chunk::<4>().ok_or_else(short)?;
        let (count, mut at) = (u32::from_le_bytes(*count), 4);
        let mut names = Vec::new();
        for _ in 0..count {
            let length = bytes.get(at..).and_then(<[u8]>::first_chunk::<2>).ok_or_else(short)?;
            let length = u16::from_le_bytes(*length);
            at += 2;
            if length == NO_NAME {
                names.push(None);
                continue;
            }
            let end = at + usize::from(length);
            let name = bytes.get(at..end).ok_or_else(short)?;
            std::str::from_utf8(name).map_err(|error| broken(&format!("a name: {error}")))?;
            names.push(Some(at..end));
            at = end;
        }
        let codes = Ints::read(bytes.clone(), at, rows)?;
        Ok(Self { bytes, names, codes })
    }

    /// Returns the number of the name in a row.
    pub(super) fn code(&self, row: usize) -> usize {
        usize::try_from(self.codes.get(row)).unwrap_or(usize::MAX)
    }

    /// Returns all names, by number.
    pub(super) fn all(&self) -> impl Iterator<Item = Option<&str>> {
        self.names.iter().map(|range| range.clone().and_then(|range| std::str::from_utf8(&self.bytes[range]).ok()))
    }

    /// Returns the name in a row.
    pub(super) fn get(&self, row: usize) -> Result<Option<&str>, Corrupt> {
        let range = self.names.get(self.code(row)).ok_or_else(|| broken("a row names what has no number"))?;
        Ok(range.clone().and_then(|range| std::str::from_utf8(&self.bytes[range]).ok()))
    }
}

/// A column of job ids.
pub(super) struct Ids {
    bytes: Slice,
    rows: usize,
}

impl Ids {
    /// Writes a column over what `buffer` held.
    pub(super) fn encode(ids: &[&str], buffer: &mut Vec<u8>) {
        buffer.clear();
        let uuids: Option<Vec<[u8; UUID_BYTES]>> = ids.iter().map(|id| uuid_of(id)).collect();
        if let Some(uuids) = uuids {
            buffer.push(UUIDS);
            buffer.extend(uuids.iter().flatten());
            return;
        }
        buffer.push(TEXTS);
        let mut end = 0_u32;
        for id in ids {
            end += id.len() as u32;
            buffer.extend_from_slice(&end.to_le_bytes());
        }
        buffer.extend(ids.iter().flat_map(|id| id.bytes()));
    }

    /// Reads a column of so many rows.
    pub(super) fn read(bytes: Slice, rows: usize) -> Result<Self, Corrupt> {
        let long_enough = match bytes.first() {
            Some(&UUIDS) => bytes.len() == 1 + rows * UUID_BYTES,
            Some(&TEXTS) => bytes.len() > rows * OFFSET_BYTES,
            _ => false,
        };
        if long_enough { Ok(Self { bytes, rows }) } else { Err(broken("a column of ids is cut short")) }
    }

    /// Returns the id in a row.
    pub(super) fn get(&self, row: usize) -> Result<JobId, Corrupt> {
        let id = self.raw(row).ok_or_else(|| broken("a row has no id"))?;
        if self.has_uuids() {
            let uuid = Uuid::from_slice(id).map_err(|error| broken(&error.to_string()))?;
            return Ok(JobId::of_uuid(uuid));
        }
        let text = std::str::from_utf8(id).map_err(|error| broken(&format!("an id: {error}")))?;
        JobId::new(text).map_err(|error| broken(&format!("an id {error}")))
    }

    /// Returns whether a row's id is the given one.
    pub(super) fn is(&self, row: usize, id: &str) -> bool {
        if self.has_uuids() {
            return uuid_of(id).is_some_and(|uuid| self.raw(row) == Some(&uuid[..]));
        }
        self.raw(row) == Some(id.as_bytes())
    }

    fn has_uuids(&self) -> bool {
        self.bytes.first() == Some(&UUIDS)
    }

    fn raw(&self, row: usize) -> Option<&[u8]> {
        if row >= self.rows {
            return None;
        }
        if self.has_uuids() {
            return self.bytes.get(1 + row * UUID_BYTES..)?.get(..UUID_BYTES);
        }
        let end = |row: usize| {
            let offset = self.bytes.get(1 + row * OFFSET_BYTES..)?.first_chunk()?;
            Some(u32::from_le_bytes(*offset) as usize)
        };
        let start = if row == 0 { 0 } else { end(row - 1)? };
        self.bytes.get(1 + self.rows * OFFSET_BYTES..)?.get(start..end(row)?)
    }
}

/// Returns the UUID that an id is, if it is written as the manager writes ids.
fn uuid_of(id: &str) -> Option<[u8; UUID_BYTES]> {
    let uuid = Uuid::try_parse(id).ok()?;
    (uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == id).then(|| uuid.into_bytes())
}

fn broken(why: &str) -> Corrupt {
    Corrupt(format!("the columns of finished jobs: {why}"))
}

#[cfg(test)]
mod tests;
