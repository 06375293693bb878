//! The format of a segment, and what is in the bytes of one.
//!
//! ```text
//! segment = header frame* footer? 00*
//! header  = "LHLOG\r\n\x01" first:u64 previous:u64 checksum:u64
//! frame   = F5 FA F6 F9 length:u32 number:u64 payload checksum:u64 FA F5 F9 F6
//! footer  = F7 FC FB FE length:u32 number:u64 payload checksum:u64 FA F5 F9 F6
//! ```
//!
//! Numbers are little-endian and checksums are XXH3. That of the header is over what is before it; that of a frame or
//! footer is over everything from its length to the end of its payload. `previous` is the checksum of the segment
//! before, or 0. A footer has the number of the last frame, and as its payload the checksum of all bytes before it and
//! a byte that says why the segment ended ([`Ending`]).
//!
//! No byte of a marker occurs in UTF-8, and none becomes zero when one bit of it is flipped.
//!
//! # Torn or damaged
//! Each frame is synced before the next one begins. So a crash can cut short what was written last only, and leaves of
//! it some of the sectors, the others being zero or behind the end of the file. What is broken at the end of a segment
//! is taken for that, unless something shows that it was written whole once:
//!
//! - it ends with the end marker and no sector of it is zero; or it is right but for its length or a marker;
//! - another frame or footer follows it, whole or only begun.
//!
//! What cannot be told from a crash is damage to a last frame which has, besides, a sector of zeros in its payload.

use std::io;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: [u8; 8] = *b"LHLOG\r\n\x01";
const FRAME: [u8; 4] = [0xF5, 0xFA, 0xF6, 0xF9];
const FOOTER: [u8; 4] = [0xF7, 0xFC, 0xFB, 0xFE];
const END: [u8; 4] = [0xFA, 0xF5, 0xF9, 0xF6];

/// The bytes of a header.
pub(super) const HEADER_BYTES: usize = 32;

/// The bytes of a frame before its payload, and behind it.
const START_BYTES: usize = 4 + 4 + 8;
const END_BYTES: usize = 8 + 4;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Why a segment has a footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Another segment follows, which was made durable before the footer was written.
    Rotated = 1,
    /// The log was closed.
    Closed = 2,
}

/// Returns the header of the segment whose first frame is `first`.
pub(super) fn header(first: u64, previous: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&first.to_le_bytes());
    header[16..24].copy_from_slice(&previous.to_le_bytes());
    let checksum = xxh3_64(&header[..24]);
    header[24..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Returns the `first` and `previous` of the header at the beginning of these bytes, if it is whole.
pub(super) fn parse_header(bytes: &[u8]) -> Option<(u64, u64)> {
    let (first, previous) = (u64_at(bytes, 8)?, u64_at(bytes, 16)?);
    bytes.starts_with(&header(first, previous)).then_some((first, previous))
}

/// Replaces the content of the buffer with a frame.
pub(super) fn encode_frame(buffer: &mut Vec<u8>, number: u64, payload: &[u8]) -> io::Result<()> {
    encode(buffer, FRAME, number, payload)
}

/// Replaces the content of the buffer with the footer of a segment with this checksum.
pub(super) fn encode_footer(buffer: &mut Vec<u8>, last: u64, checksum: u64, ending: Ending) -> io::Result<()> {
    let mut payload = [ending as u8; 9];
    payload[..8].copy_from_slice(&checksum.to_le_bytes());
    encode(buffer, FOOTER, last, &payload)
}

fn encode(buffer: &mut Vec<u8>, start: [u8; 4], number: u64, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len()).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    buffer.clear();
    buffer.extend_from_slice(&start);
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(&number.to_le_bytes());
    buffer.extend_from_slice(payload);
    let checksum = xxh3_64(&buffer[start.len()..]);
    buffer.extend_from_slice(&checksum.to_le_bytes());
    buffer.extend_from_slice(&END);
    Ok(())
}

/// What is in a segment.
pub(super) struct Segment {
    /// The number of its first frame, if it has one.
    pub(super) first: u64,
    /// The checksum of the segment before.
    pub(super) previous: u64,
    /// The number of its last frame; the one before `first` if it has none.
    pub(super) last: u64,
    /// The length of its header and its frames in bytes.
    pub(super) length: u64,
    /// The XXH3 of these bytes.
    pub(super) hasher: Xxh3,
    /// Why it ended; `None` if it has no footer.
    pub(super) ending: Option<Ending>,
    /// The bytes behind the frames of what a crash has cut short.
    pub(super) torn: u64,
    /// Whether these can be what a crash in a rotation left of the footer.
    pub(super) is_torn_rotation: bool,
}

impl Segment {
    /// Parses the segment that is named after the frame `first`, and visits its frames.
    ///
    /// # Errors
    /// What is damaged in it, and where.
    pub(super) fn parse(
        bytes: &[u8],
        first: u64,
        mut visit: impl FnMut(u64, &[u8]) -> Result<(), String>,
    ) -> Result<Self, String> {
        let (found, previous) = parse_header(bytes).ok_or("its header, at byte 0, is broken")?;
        // Neither a frame nor a footer ends with a zero.
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let bytes = &bytes[..written.max(HEADER_BYTES)];
        if found != first {
            return Err(format!("its header, at byte 8, says that its first frame is {found}"));
        }
        let (mut at, mut last) = (HEADER_BYTES, first.wrapping_sub(1));
        let mut footer = None;
        while let Some(record) = Record::parse(bytes, at).filter(|record| record.is_whole(bytes)) {
            if record.start == FOOTER {
                footer = Some(record);
                break;
            }
            // The last of all numbers is left out, so that there is always a next one.
            if record.number != last.wrapping_add(1) || record.number == u64::MAX {
                return Err(format!("the frame at byte {at} has the wrong number {}", record.number));
            }
            visit(record.number, record.payload)
                .map_err(|why| format!("the frame at byte {at} makes no sense: {why}"))?;
            (at, last) = (record.end + END.len(), record.number);
        }
        let mut hasher = Xxh3::new();
        hasher.update(&bytes[..at]);
        let mut segment =
            Self { first, previous, last, length: at as u64, hasher, ending: None, torn: 0, is_torn_rotation: false };
        match footer {
            Some(footer) => segment.ending = Some(segment.ending(&footer, bytes)?),
            None => segment.take_torn(bytes, at)?,
        }
        Ok(segment)
    }

    /// Returns whether it has frames.
    pub(super) fn has_frames(&self) -> bool {
        self.length > HEADER_BYTES as u64
    }

    fn ending(&self, found: &Record<'_>, bytes: &[u8]) -> Result<Ending, String> {
        let at = self.length;
        let end = found.end + END.len();
        if end < bytes.len() {
            return Err(format!("something follows its footer, at byte {end}"));
        }
        let mut footer = Vec::new();
        for ending in [Ending::Rotated, Ending::Closed] {
            let encoded = encode_footer(&mut footer, self.last, self.hasher.digest(), ending);
            if encoded.is_ok() && bytes.ends_with(&footer) && found.payload.len() == 9 {
                return Ok(ending);
            }
        }
        Err(format!("its footer, at byte {at}, is not that of its frames"))
    }

    fn take_torn(&mut self, bytes: &[u8], at: usize) -> Result<(), String> {
        check_torn(bytes, at, self.last)?;
        let mut footer = Vec::new();
        let encoded = encode_footer(&mut footer, self.last, self.hasher.digest(), Ending::Rotated);
        self.torn = (bytes.len() - at) as u64;
        self.is_torn_rotation = encoded.is_ok() && is_left_of(&bytes[at..], &footer);
        Ok(())
    }
}

/// Returns the length and the checksum of a segment up to its frame `last`, or up to its last frame when that is
/// before.
///
/// # Errors
/// What is damaged in the segment.
pub(super) fn beginning(bytes: &[u8], first: u64, last: u64) -> Result<(u64, Xxh3), String> {
    let segment = Segment::parse(bytes, first, |_, _| Ok(()))?;
    let mut at = HEADER_BYTES;
    while at < segment.length as usize
        && let Some(frame) = Record::parse(bytes, at).filter(|frame| frame.number <= last)
    {
        at = frame.end + END.len();
    }
    let mut hasher = Xxh3::new();
    hasher.update(&bytes[..at]);
    Ok((at as u64, hasher))
}

/// Returns whether `found` can be what a crash left of `written`.
pub(super) fn is_left_of(found: &[u8], written: &[u8]) -> bool {
    found.len() <= written.len() && found.iter().zip(written).all(|(found, written)| *found == 0 || found == written)
}

/// A frame or footer whose length and checksum are right.
struct Record<'a> {
    start: [u8; 4],
    number: u64,
    payload: &'a [u8],
    /// Where its end marker begins.
    end: usize,
}

impl<'a> Record<'a> {
    fn parse(bytes: &'a [u8], at: usize) -> Option<Self> {
        let start = array(bytes, at)?;
        let length = u32::from_le_bytes(array(bytes, at + 4)?) as usize;
        let number = u64_at(bytes, at + 8)?;
        let payload = bytes[at + START_BYTES..].get(..length)?;
        let checked = at + START_BYTES + length;
        let is_right = u64_at(bytes, checked)? == xxh3_64(&bytes[at + 4..checked]);
        is_right.then_some(Self { start, number, payload, end: checked + 8 })
    }

    fn is_whole(&self, bytes: &[u8]) -> bool {
        is_start(&self.start) && bytes[self.end..].starts_with(&END)
    }
}

/// Checks that what is at `at`, where neither a frame nor a footer is whole, is something that a crash has cut short.
fn check_torn(bytes: &[u8], at: usize, last: u64) -> Result<(), String> {
    if is_written_whole(bytes, at) {
        return Err(format!("the frame at byte {at} is broken, and it was written whole"));
    }
    let follows = (at + 1..bytes.len()).find(|later| {
        let rest = &bytes[*later..];
        let is_boundary = || bytes[..*later].ends_with(&END) && later - at >= START_BYTES + END_BYTES;
        let is_whole = || Record::parse(bytes, *later).is_some_and(|it| it.is_whole(bytes) && it.number >= last);
        match rest.first_chunk() {
            Some(start) => is_start(start) && (is_boundary() || is_whole()),
            None => [FRAME, FOOTER].iter().any(|start| start.starts_with(rest)) && is_boundary(),
        }
    });
    follows
        .map_or(Ok(()), |later| Err(format!("the frame at byte {at} is broken, and another follows at byte {later}")))
}

/// Returns whether the broken frame at `at`, which goes to the end of the bytes if it is the last, was whole once.
fn is_written_whole(bytes: &[u8], at: usize) -> bool {
    if let Some(record) = Record::parse(bytes, at) {
        let is_started = is_start(&record.start) || has_hole(bytes, at, at + 4);
        return !is_started || !END.starts_with(&bytes[record.end..]);
    }
    let Some(checked) = bytes.len().checked_sub(END_BYTES).filter(|checked| *checked >= at + START_BYTES) else {
        return false;
    };
    bytes.ends_with(&END) && (!has_hole(bytes, at, bytes.len()) || has_wrong_length(bytes, at, checked))
}

/// Returns whether the frame whose payload ends at `checked` is right but for its length.
fn has_wrong_length(bytes: &[u8], at: usize, checked: usize) -> bool {
    let length = u32::try_from(checked - at - START_BYTES).unwrap_or(u32::MAX);
    let mut hasher = Xxh3::new();
    hasher.update(&length.to_le_bytes());
    hasher.update(&bytes[at + 8..checked]);
    u64_at(bytes, checked) == Some(hasher.digest())
}

/// Returns whether a sector was not written, of which only what is between `from` and `to` counts.
fn has_hole(bytes: &[u8], from: usize, to: usize) -> bool {
    let sectors = from / SECTOR..to / SECTOR;
    sectors.into_iter().any(|sector| {
        let part = &bytes[from.max(sector * SECTOR)..(sector + 1) * SECTOR];
        part.iter().all(|byte| *byte == 0)
    })
}

fn is_start(marker: &[u8; 4]) -> bool {
    [FRAME, FOOTER].contains(marker)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}
