//! What of the end of a segment a crash can have cut short, and what is damage.
//!
//! A disk writes sectors whole or not at all. Of a sector that several writes go to, it may have got the first ones
//! only, and the rest of the sector is zero then or behind the end of the file.
//!
//! # Where each frame is synced before the next one
//! A crash can cut short what was written last only. What is broken at the end of a segment is taken for that, unless
//! something shows that it was written whole once:
//!
//! - it ends with the end marker and no sector of it is zero; or it is right but for its length or a marker, and no
//!   sector ends before its payload, with which these can have been lost;
//! - another frame or footer follows it, whole or only begun.
//!
//! What cannot be distinguished from a crash is damage to a last frame which has, besides, a sector of zeros in its
//! payload.
//!
//! # Where several frames are synced together
//! A crash leaves any of the sectors that were written since the last sync. So behind a frame that is broken there may
//! be whole ones, and all of them are cut off. What is broken was written whole once, and is damage, when
//!
//! - a whole frame behind it says that it was durable by then;
//! - a footer follows, whole or only begun: everything before it is synced first;
//! - it ends with the end marker, and no sector of it ends with a zero; or it is right but for its length or a marker,
//!   as above.
//!
//! What cannot be distinguished from a crash is damage to a frame of the last sync, a sector of which ends with a zero
//! besides.

use xxhash_rust::xxh3::Xxh3;

use super::record::{END, END_BYTES, FOOTER, FRAME, Format, Record, START_BYTES, is_left_of, is_start, u64_at};

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Checks that what is at `at`, behind the frame `last`, where neither a frame nor a footer is whole, is something that
/// a crash has cut short.
///
/// # Errors
/// What shows that it is damaged.
pub(super) fn check_torn(format: Format, bytes: &[u8], at: usize, last: u64) -> Result<(), String> {
    match format {
        Format::Single => check_single(bytes, at, last),
        Format::Batched => check_batched(bytes, at, last),
    }
}

fn check_batched(bytes: &[u8], at: usize, last: u64) -> Result<(), String> {
    if is_batched_whole(bytes, at) {
        return Err(format!("the frame at byte {at} is broken, and it was written whole"));
    }
    let mut later = at + 1;
    while let Some(step) = bytes[later.min(bytes.len())..].iter().position(|byte| [FRAME[0], FOOTER[0]].contains(byte))
    {
        later += step;
        let begins_footer = bytes[later..].starts_with(&FOOTER) && bytes[..later].ends_with(&END);
        let record = Record::parse(bytes, later).filter(|record| record.is_whole(bytes) && record.number > last);
        let shows_it = match &record {
            Some(record) if record.start == FRAME => record.batched().is_some_and(|(durable, _)| durable > last),
            _ => begins_footer || bytes[later..].starts_with(&FOOTER) && record.is_some(),
        };
        if shows_it {
            return Err(format!("the frame at byte {at} is broken, and was durable before that at byte {later}"));
        }
        later = record.map_or(later + 1, |record| record.next());
    }
    Ok(())
}

/// Returns whether the broken frame at `at`, of those that are synced together, was whole once.
fn is_batched_whole(bytes: &[u8], at: usize) -> bool {
    if let Some(record) = Record::parse(bytes, at) {
        let (start, end) = (&bytes[at..at + 4], &bytes[record.end..bytes.len().min(record.next())]);
        return ![FRAME, FOOTER].iter().any(|marker| is_left_of(start, marker)) || !is_left_of(end, &END);
    }
    // What begins where a frame ends may have lost any of its marker.
    let begins = |rest: &[u8]| {
        let marker = &rest[..rest.len().min(4)];
        [FRAME, FOOTER].iter().any(|start| is_left_of(marker, start))
    };
    let mut ends = at + START_BYTES + END_BYTES..=bytes.len();
    let first = ends.find(|end| bytes[..*end].ends_with(&END) && begins(&bytes[*end..]));
    first.is_some_and(|end| !has_cut_sector(bytes, at, end) || has_wrong_length(bytes, at, end - END_BYTES))
}

/// Returns whether a sector, of which only what is between `from` and `to` counts, ends with a zero.
fn has_cut_sector(bytes: &[u8], from: usize, to: usize) -> bool {
    (from / SECTOR..to / SECTOR).any(|sector| bytes[(sector + 1) * SECTOR - 1] == 0)
}

fn check_single(bytes: &[u8], at: usize, last: u64) -> Result<(), String> {
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
        let is_started = is_start(&record.start) || has_lost_start(at, &record.start, &[]);
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
    let is_right = u64_at(bytes, checked) == Some(hasher.digest());
    is_right && !has_lost_start(at, &bytes[at..at + 8], &length.to_le_bytes())
}

/// Returns whether `found`, of the frame at `at`, can be what a lost sector left of a marker and what follows it. The
/// sector ends before the payload: the number of a frame is not zero, and the checksum has that.
fn has_lost_start(at: usize, found: &[u8], follows: &[u8]) -> bool {
    let is_in_two = at / SECTOR < (at + START_BYTES) / SECTOR;
    is_in_two && [FRAME, FOOTER].iter().any(|marker| is_left_of(found, &[&marker[..], follows].concat()))
}

/// Returns whether a sector was not written, of which only what is between `from` and `to` counts.
fn has_hole(bytes: &[u8], from: usize, to: usize) -> bool {
    let sectors = from / SECTOR..to / SECTOR;
    sectors.into_iter().any(|sector| {
        let part = &bytes[from.max(sector * SECTOR)..(sector + 1) * SECTOR];
        part.iter().all(|byte| *byte == 0)
    })
}
