//! Reads a log without changing it: which segments there are, and whether all is there that must be.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::super::error::Damage;
use super::super::seal::LogSeal;
use super::record::{Format, HEADER_BYTES, Header, is_left_of};
use super::segment::{Ending, Segment, first_frames};

/// What a log must have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// The number of the first frame that must be there. Frames before it may have been trimmed.
    pub(crate) first: u64,
    /// How far the log had come, at least. If it was closed, that was its last frame.
    pub(crate) sealed: LogSeal,
}

/// What was found in a log, and what opening it will do.
pub(crate) struct Found {
    /// The number of the last frame.
    pub(crate) last: u64,
    /// What a crash has cut short, which is to be cut off.
    pub(crate) torn: Option<Torn>,
    /// The file that a crash in a rotation left, which is to be removed.
    pub(crate) leftover: Option<PathBuf>,
    /// The first frame's number and the length of each segment, without the leftover one.
    pub(super) segments: Vec<(u64, u64)>,
    /// The last of these.
    pub(super) tail: Segment,
}

impl Found {
    /// Returns the number of the first frame of the segment that has this frame, or will have it.
    pub(crate) fn segment_of(&self, number: u64) -> u64 {
        let firsts = self.segments.iter().map(|(first, _)| *first);
        firsts.take_while(|first| *first <= number).last().unwrap_or(self.tail.first)
    }
}

/// The end of a segment that a crash has cut short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Torn {
    /// The path of the segment.
    pub(crate) path: PathBuf,
    /// The byte of the segment at which it begins.
    pub(crate) at: u64,
    /// Its length in bytes.
    pub(crate) bytes: u64,
}

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, at, bytes } = self;
        write!(
            f,
            "the last write to the log was cut short by a crash, and dropped: {bytes} bytes of {} from byte {at} on, \
             of which nothing was acknowledged",
            path.display()
        )
    }
}

/// Returns the path of the segment whose first frame is `first`.
pub(super) fn segment_path(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("{first:020}.log"))
}

/// Reads a log without changing it, and visits each of its frames from `expected.first` on, in order.
///
/// Segments all of whose frames are before that one are not looked into: a trim may have left any of them. Nor are
/// files that have other names than segments.
///
/// # Errors
/// What is damaged; at least one. Frames may have been visited before the damage was found.
pub(crate) fn read(
    folder: &Path,
    expected: &Expected,
    visit: impl FnMut(u64, &[u8]) -> Result<(), String>,
) -> Result<Found, Vec<Damage>> {
    read_segments(folder, expected, false, visit)
}

/// Reads a log, of which segments may be missing between others if it `has_gaps`.
fn read_segments(
    folder: &Path,
    expected: &Expected,
    has_gaps: bool,
    mut visit: impl FnMut(u64, &[u8]) -> Result<(), String>,
) -> Result<Found, Vec<Damage>> {
    let mut segments = list(folder).map_err(|error| vec![Damage::unreadable(folder, &error)])?;
    let start = start(folder, &segments, expected).map_err(|damage| vec![damage])?;
    let mut damages = Vec::new();
    let (mut leftover, mut tail) = (None, None);
    for at in start..segments.len() {
        let (first, _) = segments[at];
        let path = segment_path(folder, first);
        let before = tail.take();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                damages.push(Damage::unreadable(&path, &error));
                continue;
            }
        };
        if at + 1 == segments.len() && before.as_ref().is_some_and(|it| is_leftover(it, first, &bytes, expected)) {
            (leftover, tail) = (Some(path), before);
            segments.pop();
            break;
        }
        let is_undamaged = damages.is_empty();
        let visit = |number: u64, payload: &[u8]| match is_undamaged && number >= expected.first {
            true => visit(number, payload),
            false => Ok(()),
        };
        match Segment::parse(&bytes, first, visit) {
            Ok(segment) => {
                let before = before.filter(|before| !(has_gaps && is_gap(before, &segment)));
                damages.extend(before.and_then(|before| link_damage(folder, &before, &segment)));
                tail = Some(segment);
            }
            Err(what) => damages.push(Damage::of(&path, what)),
        }
    }
    damages.extend(tail.as_ref().and_then(|tail| end_damage(folder, tail, expected)));
    match tail {
        Some(tail) if damages.is_empty() => Ok(found(folder, segments, leftover, tail)),
        _ => Err(damages),
    }
}

/// Looks for damage in a log as far as can be said before it is known which frame must be the first. Until then a
/// segment that is missing may be one that was removed, beside an earlier one that could not be or is there again.
pub(crate) fn look_at(folder: &Path, sealed: LogSeal) -> Vec<Damage> {
    let first = list(folder).ok().and_then(|segments| Some(segments.first()?.0)).unwrap_or(sealed.segment);
    read_segments(folder, &Expected { first, sealed }, true, |_, _| Ok(())).err().unwrap_or_default()
}

/// Reads the frames of the segment that has the frame `number`, from the first of them to the frame `last`. What is
/// behind that may be written or cut off meanwhile, and is not looked at.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] when no segment has it; another error when it cannot be read.
pub(crate) fn frames(folder: &Path, number: u64, last: u64) -> io::Result<(u64, Vec<Bytes>)> {
    let segments = list(folder)?;
    let place = segments.partition_point(|(first, _)| *first <= number).checked_sub(1);
    let first = place.and_then(|place| segments.get(place)).map(|(first, _)| *first);
    let first = first.ok_or(io::ErrorKind::NotFound)?;
    let bytes = Bytes::from(fs::read(segment_path(folder, first))?);
    let frames = first_frames(&bytes, first, last).map_err(io::Error::other)?;
    let frames: Vec<Bytes> = frames.into_iter().map(|frame| bytes.slice_ref(frame)).collect();
    if number - first < frames.len() as u64 { Ok((first, frames)) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Looks for frames in the log of a store that is being created, which has none: they came to the disk before its seal
/// did, whose sync has lied then.
pub(crate) fn look_at_new(folder: &Path) -> Option<Damage> {
    let segments = list(folder).unwrap_or_default();
    let (first, _) = segments.into_iter().find(|(first, length)| *first > 1 || *length > HEADER_BYTES as u64)?;
    let what = "it has entries, and the seal says that the store is still being created";
    Some(Damage::of(&segment_path(folder, first), what))
}

fn found(folder: &Path, segments: Vec<(u64, u64)>, leftover: Option<PathBuf>, tail: Segment) -> Found {
    let path = segment_path(folder, tail.first);
    let torn = (tail.torn > 0).then_some(Torn { path, at: tail.length, bytes: tail.torn });
    Found { last: tail.last, torn, leftover, segments, tail }
}

/// Returns the first frame's number and the length of each segment, in their order.
fn list(folder: &Path) -> io::Result<Vec<(u64, u64)>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if let Some(first) = entry.file_name().to_str().and_then(first_of) {
            match entry.metadata() {
                Ok(metadata) => segments.push((first, metadata.len())),
                // It was removed since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

/// Returns the number of the first frame of the segment with this name, if it is one.
fn first_of(name: &str) -> Option<u64> {
    let number = name.strip_suffix(".log")?;
    let is_number = number.len() == 20 && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| number.parse().ok()).flatten().filter(|first| *first > 0)
}

/// Returns the index of the first segment that must be read.
fn start(folder: &Path, segments: &[(u64, u64)], expected: &Expected) -> Result<usize, Damage> {
    let after = segments.partition_point(|(first, _)| *first <= expected.first);
    let Some(start) = after.checked_sub(1) else {
        if (1..=expected.first).contains(&expected.sealed.segment) {
            return Err(Damage::missing(&segment_path(folder, expected.sealed.segment)));
        }
        let what = format!("the segment that has the entry {} is missing, and each one before it", expected.first);
        return Err(Damage::of(folder, what));
    };
    let path = segment_path(folder, segments[start].0);
    let is_last = after == segments.len();
    // A rotation that was cut short may have left it; whether that can be, only the one before it can say.
    if is_last && start > 0 && !has_header(&path).map_err(|error| Damage::unreadable(&path, &error))? {
        return Ok(start - 1);
    }
    Ok(start)
}

fn has_header(path: &Path) -> io::Result<bool> {
    let mut bytes = Vec::new();
    File::open(path)?.take(HEADER_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(Header::parse(&bytes).is_some())
}

/// Returns whether a crash in the rotation from `before` can have left the last segment.
fn is_leftover(before: &Segment, first: u64, bytes: &[u8], expected: &Expected) -> bool {
    let is_rotating = before.ending.is_none() && before.is_torn_rotation && before.has_frames();
    let (first_left, previous) = (before.last + 1, before.hasher.digest());
    let is_header = [Format::Single, Format::Batched].into_iter().any(|format| {
        let written = Header { format, first: first_left, previous };
        is_left_of(bytes, &written.encode())
    });
    is_rotating && !expected.sealed.is_closed && first == first_left && is_header
}

/// Returns whether all that is wrong between two segments is that others are missing.
fn is_gap(before: &Segment, segment: &Segment) -> bool {
    before.ending == Some(Ending::Rotated) && segment.first > before.last + 1
}

/// Returns what is wrong between two segments that follow each other.
fn link_damage(folder: &Path, before: &Segment, segment: &Segment) -> Option<Damage> {
    let (path, at) = (segment_path(folder, before.first), before.length);
    let next = segment_path(folder, before.last + 1);
    match before.ending {
        None => Some(Damage::of(&path, format!("it has no whole footer at byte {at}, and another segment follows"))),
        Some(Ending::Closed) => Some(Damage::of(&path, format!("its footer, at byte {at}, says that it is the last"))),
        Some(Ending::Rotated) if is_gap(before, segment) => Some(Damage::missing(&next)),
        Some(Ending::Rotated) => {
            let follows = segment.first == before.last + 1 && segment.previous == before.hasher.digest();
            let what = format!("its header, at byte 0, is not that of the segment after {}", path.display());
            (!follows).then(|| Damage::of(&segment_path(folder, segment.first), what))
        }
    }
}

/// Returns what is wrong with the end of the log.
fn end_damage(folder: &Path, tail: &Segment, expected: &Expected) -> Option<Damage> {
    let (path, at, last) = (segment_path(folder, tail.first), tail.length, tail.last);
    let must = expected.sealed.last.max(expected.first.saturating_sub(1));
    if tail.ending == Some(Ending::Rotated) {
        return Some(Damage::missing(&segment_path(folder, last + 1)));
    }
    if last < must || expected.sealed.is_closed && last != must {
        return Some(Damage::of(&path, format!("its frames end at byte {at} with {last}, and must end with {must}")));
    }
    let is_open = expected.sealed.is_closed && tail.ending.is_none();
    is_open.then(|| Damage::of(&path, format!("it has no whole footer at byte {at}, and the log was closed")))
}
