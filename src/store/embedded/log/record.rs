//! The records of a segment: its header, its frames and its footer, as bytes.
//!
//! ```text
//! header  = "LHLOG\r\n" version first:u64 previous:u64 checksum:u64
//! frame   = F5 FA F6 F9 length:u32 number:u64 payload checksum:u64 FA F5 F9 F6       in version 1
//!         | F5 FA F6 F9 length:u32 number:u64 durable:u64 payload checksum:u64 FA F5 F9 F6   in version 2
//! footer  = F7 FC FB FE length:u32 number:u64 payload checksum:u64 FA F5 F9 F6
//! ```
//!
//! Numbers are little-endian and checksums are XXH3. That of the header is over what is before it; that of a frame or
//! footer is over everything from its length to the end of its payload. `length` is that of what is between the number
//! and the checksum. `durable` is the number of the last frame of the log that was durable when the frame was written.
//!
//! No byte of a marker occurs in UTF-8, and none becomes zero when one bit of it is flipped.

use std::io;

use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 7] = *b"LHLOG\r\n";
pub(super) const FRAME: [u8; 4] = [0xF5, 0xFA, 0xF6, 0xF9];
pub(super) const FOOTER: [u8; 4] = [0xF7, 0xFC, 0xFB, 0xFE];
pub(super) const END: [u8; 4] = [0xFA, 0xF5, 0xF9, 0xF6];

/// The bytes of a header.
pub(super) const HEADER_BYTES: usize = 32;

/// The bytes of a frame before its payload, and behind it; those of `durable` count as payload.
pub(super) const START_BYTES: usize = 4 + 4 + 8;
pub(super) const END_BYTES: usize = 8 + 4;

/// The version of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Each frame is synced before the next one is written.
    Single = 1,
    /// Several frames are written and then synced together. Each says until which all were durable before.
    Batched = 2,
}

/// What the header of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) format: Format,
    /// The number of the first frame.
    pub(super) first: u64,
    /// The checksum of the segment before, or 0.
    pub(super) previous: u64,
}

impl Header {
    /// Returns the header as bytes.
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..7].copy_from_slice(&MAGIC);
        header[7] = self.format as u8;
        header[8..16].copy_from_slice(&self.first.to_le_bytes());
        header[16..24].copy_from_slice(&self.previous.to_le_bytes());
        let checksum = xxh3_64(&header[..24]);
        header[24..].copy_from_slice(&checksum.to_le_bytes());
        header
    }

    /// Returns the header at the beginning of these bytes, if it is whole.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (first, previous) = (u64_at(bytes, 8)?, u64_at(bytes, 16)?);
        let of = |format| Self { format, first, previous };
        [Format::Single, Format::Batched].map(of).into_iter().find(|header| bytes.starts_with(&header.encode()))
    }
}

/// Appends a frame of a segment of [`Format::Single`] to the buffer, or, where `durable` says until which frame all are
/// durable, of one of [`Format::Batched`].
pub(super) fn append_frame(buffer: &mut Vec<u8>, number: u64, durable: Option<u64>, payload: &[u8]) -> io::Result<()> {
    let durable = durable.map(u64::to_le_bytes);
    append(buffer, FRAME, number, [durable.as_ref().map_or(&[][..], |durable| durable), payload])
}

/// Appends a frame or footer with a payload in two parts to the buffer.
pub(super) fn append(buffer: &mut Vec<u8>, start: [u8; 4], number: u64, payload: [&[u8]; 2]) -> io::Result<()> {
    let length = payload[0].len() + payload[1].len();
    let length = u32::try_from(length).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    buffer.extend_from_slice(&start);
    let checked = buffer.len();
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(&number.to_le_bytes());
    payload.iter().for_each(|part| buffer.extend_from_slice(part));
    let checksum = xxh3_64(&buffer[checked..]);
    buffer.extend_from_slice(&checksum.to_le_bytes());
    buffer.extend_from_slice(&END);
    Ok(())
}

/// A frame or footer whose length and checksum are right.
pub(super) struct Record<'a> {
    pub(super) start: [u8; 4],
    pub(super) number: u64,
    pub(super) payload: &'a [u8],
    /// Where its end marker begins.
    pub(super) end: usize,
}

impl<'a> Record<'a> {
    pub(super) fn parse(bytes: &'a [u8], at: usize) -> Option<Self> {
        let start = array(bytes, at)?;
        let length = u32::from_le_bytes(array(bytes, at + 4)?) as usize;
        let number = u64_at(bytes, at + 8)?;
        let payload = bytes[at + START_BYTES..].get(..length)?;
        let checked = at + START_BYTES + length;
        let is_right = u64_at(bytes, checked)? == xxh3_64(&bytes[at + 4..checked]);
        is_right.then_some(Self { start, number, payload, end: checked + 8 })
    }

    /// Returns whether its markers are there as well.
    pub(super) fn is_whole(&self, bytes: &[u8]) -> bool {
        is_start(&self.start) && bytes[self.end..].starts_with(&END)
    }

    /// Returns where it ends.
    pub(super) fn next(&self) -> usize {
        self.end + END.len()
    }

    /// Returns until which frame all were durable when this one of [`Format::Batched`] was written, and its payload.
    pub(super) fn batched(&self) -> Option<(u64, &'a [u8])> {
        let (durable, payload) = self.payload.split_first_chunk()?;
        Some((u64::from_le_bytes(*durable), payload))
    }
}

pub(super) fn is_start(marker: &[u8; 4]) -> bool {
    [FRAME, FOOTER].contains(marker)
}

/// Returns whether `found` can be what a crash left of `written`.
pub(super) fn is_left_of(found: &[u8], written: &[u8]) -> bool {
    found.len() <= written.len() && found.iter().zip(written).all(|(found, written)| *found == 0 || found == written)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}
