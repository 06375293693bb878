//! A segment, and what is in the bytes of one.
//!
//! ```text
//! segment = header frame* footer? 00*
//! ```
//!
//! A footer has the number of the last frame, and as its payload the checksum of all bytes before it and a byte that
//! says why the segment ended ([`Ending`]). See [`record`](super::record) for the rest, and [`torn`](super::torn) for
//! what a crash leaves.

use std::io;

use xxhash_rust::xxh3::Xxh3;

use super::record::{FOOTER, Format, HEADER_BYTES, Header, Record, append, is_left_of};
use super::torn::check_torn;

/// Why a segment has a footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Another segment follows, which was made durable before the footer was written.
    Rotated = 1,
    /// The log was closed.
    Closed = 2,
}

/// Replaces the content of the buffer with the footer of a segment with this checksum.
pub(super) fn encode_footer(buffer: &mut Vec<u8>, last: u64, checksum: u64, ending: Ending) -> io::Result<()> {
    buffer.clear();
    append(buffer, FOOTER, last, [&checksum.to_le_bytes(), &[ending as u8]])
}

/// What is in a segment.
pub(super) struct Segment {
    pub(super) format: Format,
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
        let Header { format, first: found, previous } =
            Header::parse(bytes).ok_or("its header, at byte 0, is broken")?;
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
            visit(record.number, payload_of(format, &record, at)?)
                .map_err(|why| format!("the frame at byte {at} makes no sense: {why}"))?;
            (at, last) = (record.next(), record.number);
        }
        let mut hasher = Xxh3::new();
        hasher.update(&bytes[..at]);
        let (length, ending, torn) = (at as u64, None, 0);
        let mut segment = Self { format, first, previous, last, length, hasher, ending, torn, is_torn_rotation: false };
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
        let end = found.next();
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
        check_torn(self.format, bytes, at, self.last)?;
        let mut footer = Vec::new();
        let encoded = encode_footer(&mut footer, self.last, self.hasher.digest(), Ending::Rotated);
        self.torn = (bytes.len() - at) as u64;
        self.is_torn_rotation = encoded.is_ok() && is_left_of(&bytes[at..], &footer);
        Ok(())
    }
}

/// Returns the payload of a frame, which begins at `at`.
fn payload_of<'a>(format: Format, frame: &Record<'a>, at: usize) -> Result<&'a [u8], String> {
    match format {
        Format::Single => Ok(frame.payload),
        Format::Batched => {
            let batched = frame.batched().filter(|(durable, _)| *durable < frame.number);
            let (_, payload) = batched.ok_or_else(|| format!("the frame at byte {at} says that it was durable"))?;
            Ok(payload)
        }
    }
}

/// Returns the payloads of the frames of a segment up to its frame `last`, or up to its footer when that is before.
/// What is behind these is not looked at.
///
/// # Errors
/// What is damaged in the segment.
pub(super) fn first_frames(bytes: &[u8], first: u64, last: u64) -> Result<Vec<&[u8]>, String> {
    let header = Header::parse(bytes).filter(|header| header.first == first);
    let format = header.ok_or("its header, at byte 0, is broken")?.format;
    let (mut at, mut frames) = (HEADER_BYTES, Vec::new());
    for number in first..=last {
        match Record::parse(bytes, at).filter(|record| record.is_whole(bytes)) {
            Some(record) if record.start == FOOTER => break,
            Some(record) if record.number == number => {
                frames.push(payload_of(format, &record, at)?);
                at = record.next();
            }
            _ => return Err(format!("the frame at byte {at} is broken")),
        }
    }
    Ok(frames)
}

/// Returns the format, the length and the checksum of a segment up to its frame `last`, or up to its last frame when
/// that is before.
///
/// # Errors
/// What is damaged in the segment.
pub(super) fn beginning(bytes: &[u8], first: u64, last: u64) -> Result<(Format, u64, Xxh3), String> {
    let segment = Segment::parse(bytes, first, |_, _| Ok(()))?;
    let mut at = HEADER_BYTES;
    while at < segment.length as usize
        && let Some(frame) = Record::parse(bytes, at).filter(|frame| frame.number <= last)
    {
        at = frame.next();
    }
    let mut hasher = Xxh3::new();
    hasher.update(&bytes[..at]);
    Ok((segment.format, at as u64, hasher))
}
