//! What was appended is read again, whatever step a crash or a full disk stops it at.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::error::Damage;
use super::super::seal::LogSeal;
use super::read::segment_path;
use super::record::{HEADER_BYTES, Header, append_frame};
use super::segment::Segment;
use super::{AppendError, Expected, Format, Found, Log, Options, ROOM_BYTES, look_at, read};
use faults::fail;

mod damage;
pub(in super::super) mod faults;
mod formats;
mod power;
mod removal;

thread_local! {
    /// The format in which this test writes.
    static FORMAT: Cell<Format> = const { Cell::new(Format::Single) };
}

/// Segments of two frames.
fn small() -> Options {
    Options { segment_bytes: 100, format: FORMAT.get() }
}

/// Segments that are never full.
fn large() -> Options {
    Options { segment_bytes: 1 << 30, ..small() }
}

/// How many bytes a frame has beside its payload.
fn overhead() -> usize {
    match FORMAT.get() {
        Format::Single => 28,
        Format::Batched => 36,
    }
}

type Frames = Vec<(u64, Vec<u8>)>;

fn expected(first: u64, last: u64) -> Expected {
    Expected { first, sealed: LogSeal { last, segment: 0, is_closed: false } }
}

fn closed(last: u64) -> Expected {
    Expected { first: 1, sealed: LogSeal { last, segment: 0, is_closed: true } }
}

/// Reads a log, and what was visited of it.
fn visited(folder: &Path, expected: &Expected) -> (Result<Found, Vec<Damage>>, Frames) {
    let mut frames = Vec::new();
    let found = read(folder, expected, |number, payload| {
        frames.push((number, payload.to_vec()));
        Ok(())
    });
    (found, frames)
}

fn intact(folder: &Path, expected: &Expected) -> (Found, Frames) {
    match visited(folder, expected) {
        (Ok(found), frames) => (found, frames),
        (Err(damages), _) => panic!("the log is damaged: {damages:?}"),
    }
}

fn damages(folder: &Path, expected: &Expected) -> Vec<Damage> {
    visited(folder, expected).0.err().expect("the log is damaged")
}

fn open(folder: &Path, expected: &Expected) -> (Log, Frames) {
    let (found, frames) = intact(folder, expected);
    (Log::open(folder, found, small()).expect("the log opens"), frames)
}

fn payload(number: u64) -> Vec<u8> {
    format!("the payload of frame {number}").into_bytes()
}

fn frames(numbers: Range<u64>) -> Frames {
    numbers.map(|number| (number, payload(number))).collect()
}

impl Log {
    /// Writes a frame and makes it durable. Returns its number.
    pub(in super::super) fn append(&mut self, payload: &[u8]) -> Result<u64, AppendError> {
        let number = self.write(payload)?;
        self.sync().map_err(AppendError::Failed)?;
        Ok(number)
    }
}

fn append(log: &mut Log, numbers: Range<u64>) {
    for number in numbers {
        assert_eq!(log.append(&payload(number)).expect("a frame is appended"), number);
    }
}

/// A log of frames from 1 to `last`, in segments of two frames.
fn log_of(last: u64) -> (TempDir, Log) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut log = Log::create(folder.path(), 1, small()).expect("a log");
    append(&mut log, 1..last + 1);
    (folder, log)
}

/// The segments of a log, in their order.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).expect("a folder").map(|it| it.expect("a file").path()).collect();
    files.sort();
    files
}

fn copy(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for file in files(folder) {
        fs::copy(&file, copy.path().join(file.file_name().expect("a name"))).expect("a copy");
    }
    copy
}

/// What was written to a segment, without the room behind it.
fn content(path: &Path) -> Vec<u8> {
    let mut bytes = fs::read(path).expect("a segment is read");
    let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(written.max(HEADER_BYTES));
    bytes
}

/// Writes a segment. A file system may sync one that is cut to nothing first, as `fs::write` does.
fn put(path: &Path, bytes: &[u8]) {
    let mut file = File::options().write(true).create(true).truncate(false).open(path).expect("a segment is opened");
    file.write_all(bytes).and_then(|()| file.set_len(bytes.len() as u64)).expect("a segment is written");
}

/// Opens a log, appends to it, and reads it once more.
fn goes_on(folder: &Path, last: u64) {
    let (mut log, found) = open(folder, &expected(1, last));
    assert_eq!((found, log.last()), (frames(1..last + 1), last));
    append(&mut log, last + 1..last + 4);
    assert_eq!(log.close().expect("the log closes"), last + 3);
    assert_eq!(intact(folder, &closed(last + 3)).1, frames(1..last + 4));
}

impl Log {
    /// Returns the length of all segments in bytes.
    fn bytes(&self) -> u64 {
        self.finished.iter().map(|(_, bytes)| bytes).sum::<u64>() + self.active.length
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), kept in 0..80_usize) {
        let (mut file, format) = (Vec::new(), FORMAT.get());
        append_frame(&mut file, 1, (format == Format::Batched).then_some(0), b"payload").expect("a frame");
        file.splice(..0, Header { format, first: 1, previous: 0 }.encode());
        file.truncate(kept);
        file.extend(&bytes);
        let mut count = 0;
        let parsed = Segment::parse(&file, 1, |number, payload| {
            count += 1;
            if (number, payload) == (1, b"payload") { Ok(()) } else { Err("it was never written".to_owned()) }
        });
        prop_assert!(count <= 1 && parsed.map_or(true, |segment| segment.last == count && segment.ending.is_none()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn what_was_appended_is_read(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..40),
        segment_bytes in 0..2000_u64,
        reopen_after in 1..20_usize,
        is_closed: bool,
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options { segment_bytes, ..small() };
        let mut log = Log::create(folder.path(), 1, options).expect("a log");
        for (at, payload) in payloads.iter().enumerate() {
            log.append(payload).expect("a frame is appended");
            if at % reopen_after == 0 {
                let last = if is_closed { log.close().expect("it closes") } else { at as u64 + 1 };
                let sealed = LogSeal { last, segment: 0, is_closed };
                let (found, _) = intact(folder.path(), &Expected { first: 1, sealed });
                log = Log::open(folder.path(), found, options).expect("it opens");
            }
        }
        let size: usize = files(folder.path()).iter().map(|file| content(file).len()).sum();
        prop_assert_eq!(log.bytes(), size as u64);
        let (_, frames) = intact(folder.path(), &expected(1, payloads.len() as u64));
        prop_assert!(frames.into_iter().eq((1..).zip(payloads)));
    }
}

#[test]
fn a_cut_at_any_byte_loses_only_the_frame_it_is_in() {
    for size in [0, 1, 40, 600, 1500, 4200] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut log = Log::create(folder.path(), 1, large()).expect("a log");
        append(&mut log, 1..3);
        let mut ends = vec![log.bytes()];
        for _ in 3..5 {
            log.append(&vec![b'x'; size]).expect("a frame is appended");
            ends.push(log.bytes());
        }
        let path = segment_path(folder.path(), 1);
        let bytes = content(&path);
        let mut copy = tempfile::tempdir().expect("a folder");
        // Within a long frame one cut is as the next: some are tried, and each byte where a frame begins or ends.
        let is_near_an_end = |cut: u64| ends.iter().any(|end| end.abs_diff(cut) < 64);
        for cut in (ends[0]..bytes.len() as u64).filter(|cut| is_near_an_end(*cut) || cut % 13 == 0 || cut % 97 == 0) {
            let last = 1 + ends.iter().filter(|end| **end <= cut).count() as u64;
            for is_filled in [false, true] {
                let mut torn = bytes[..cut as usize].to_vec();
                torn.resize(if is_filled { bytes.len() } else { cut as usize }, 0);
                put(&segment_path(copy.path(), 1), &torn);
                let (found, frames) = intact(copy.path(), &expected(1, last));
                assert_eq!((found.last, frames.len() as u64), (last, last));
                assert_eq!(found.torn.is_some(), !ends.contains(&cut));
                assert!(!damages(copy.path(), &expected(1, last + 1)).is_empty());
                if size < 600 || cut % 97 == 0 {
                    let mut log = Log::open(copy.path(), found, small()).expect("it opens");
                    assert_eq!(log.append(b"next").expect("a frame"), last + 1);
                    assert_eq!(intact(copy.path(), &expected(1, last + 1)).1.len() as u64, last + 1);
                    copy = tempfile::tempdir().expect("a folder");
                }
            }
        }
    }
}

#[test]
fn small_frames_are_written_over_zeros_which_go_with_the_segment() {
    let folder = tempfile::tempdir().expect("a folder");
    let length = |path: &Path| path.metadata().expect("a file").len();
    let mut log = Log::create(folder.path(), 1, large()).expect("a log");
    append(&mut log, 1..2);
    let path = segment_path(folder.path(), 1);
    assert_eq!(length(&path), ROOM_BYTES);
    append(&mut log, 2..1_001);
    assert_eq!(length(&path), log.bytes().next_multiple_of(ROOM_BYTES));
    log.append(&[b'x'; 3 * ROOM_BYTES as usize]).expect("a large frame is appended");
    assert_eq!(length(&path), log.bytes());
    let whole = fs::read(&path).expect("a segment is read");
    let bytes = log.bytes();
    log.close().expect("it closes");
    let closed_bytes = content(&path);
    assert_eq!(length(&path), closed_bytes.len() as u64);
    assert!(closed_bytes.len() as u64 > bytes);
    // A crash while it is closed may leave zeros behind the footer.
    put(&path, &[&closed_bytes[..], &[0; 5_000]].concat());
    assert_eq!(intact(folder.path(), &closed(1_001)).1.len(), 1_001);
    put(&path, &whole);
    append(&mut open(folder.path(), &expected(1, 1_001)).0, 1_002..1_003);
}

#[test]
fn a_rotation_that_was_cut_short_at_any_byte_is_undone() {
    let (folder, mut log) = log_of(4);
    let before = content(&files(folder.path())[1]);
    append(&mut log, 5..6);
    let (old, next) = (files(folder.path())[1].clone(), files(folder.path())[2].clone());
    let (finished, header) = (content(&old), content(&next)[..32].to_vec());
    for footer in before.len()..finished.len() {
        put(&old, &finished[..footer]);
        for length in if footer == before.len() { 0..33 } else { 32..33 } {
            for zeros in [0, 32 - length] {
                put(&next, &[&header[..length], &vec![0; zeros]].concat());
                let copy = copy(folder.path());
                assert!(intact(copy.path(), &expected(1, 4)).0.leftover.is_some());
                goes_on(copy.path(), 4);
                // All that is before may be trimmed.
                assert_eq!(intact(folder.path(), &expected(5, 4)).0.last, 4);
                let (mut log, _) = open(folder.path(), &expected(5, 4));
                append(&mut log, 5..6);
                assert_eq!(intact(folder.path(), &expected(5, 5)).1, frames(5..6));
                fs::remove_file(&next).expect("it is removed");
                put(&old, &finished[..footer]);
            }
        }
    }
}

#[test]
fn a_failure_at_any_step_loses_nothing() {
    for kind in [ErrorKind::Other, ErrorKind::StorageFull] {
        for step in 3..80 {
            let folder = tempfile::tempdir().expect("a folder");
            let mut acknowledged = 0;
            fail(step, usize::MAX, kind);
            let stopped = run(folder.path(), &mut acknowledged);
            fail(0, 0, kind);
            assert!(stopped.is_err() || step > 40, "step {step}");
            let (found, visited) = intact(folder.path(), &expected(1, acknowledged));
            assert!(found.last <= acknowledged + 1);
            assert_eq!(visited, frames(1..found.last + 1));
            goes_on(folder.path(), found.last);
        }
    }
}

/// Writes a log, opens it twice, and closes it; stops at the first error.
fn run(folder: &Path, acknowledged: &mut u64) -> Result<(), AppendError> {
    let mut log = Log::create(folder, 1, small()).map_err(AppendError::Failed)?;
    for is_closing in [true, false] {
        for _ in 0..5 {
            log.append(&payload(*acknowledged + 1)).inspect_err(|_| assert!(log.append(b"").is_err()))?;
            *acknowledged += 1;
        }
        if is_closing {
            log.close().map_err(AppendError::Failed)?;
        }
        let (found, _) = intact(folder, &expected(1, *acknowledged));
        log = Log::open(folder, found, small()).map_err(AppendError::Failed)?;
    }
    log.close().map(drop).map_err(AppendError::Failed)
}

#[test]
fn a_full_disk_leaves_nothing_and_is_tried_again() {
    for step in 0..20 {
        let (folder, mut log) = log_of(4);
        let mut has_failed = false;
        fail(step, 1, ErrorKind::StorageFull);
        while log.last() < 8 {
            let (number, bytes) = (log.last() + 1, log.bytes());
            match log.append(&payload(number)) {
                Ok(found) => assert_eq!(found, number),
                // Of a sync that failed, whatever its error, nobody knows what it wrote.
                Err(AppendError::Failed(_)) => {
                    has_failed = true;
                    break;
                }
                Err(AppendError::Full(_)) => {
                    assert!(log.bytes() >= bytes && log.last() == number - 1);
                    assert_eq!(intact(folder.path(), &expected(1, number - 1)).1, frames(1..number));
                }
            }
        }
        fail(0, 0, ErrorKind::Other);
        assert_eq!(log.append(&payload(log.last() + 1)).is_err(), has_failed, "step {step}");
        goes_on(folder.path(), intact(folder.path(), &expected(1, 4)).0.last);
    }
}

#[test]
fn a_write_that_cannot_be_taken_back_is_the_last() {
    let (folder, mut log) = log_of(3);
    fail(0, 2, ErrorKind::StorageFull);
    assert!(matches!(log.append(b"x"), Err(AppendError::Failed(_))));
    assert!(matches!(log.append(b"x"), Err(AppendError::Failed(_))));
    assert!(log.sync().is_err() && log.close().is_err());
    goes_on(folder.path(), 3);
}

#[test]
fn a_failed_sync_is_the_last() {
    let (_folder, mut log) = log_of(3);
    assert_eq!(log.write(b"x").expect("a frame is written"), 4);
    fail(0, 1, ErrorKind::StorageFull);
    assert!(log.sync().is_err());
    assert!(log.sync().is_err());
    assert!(matches!(log.write(b"x"), Err(AppendError::Failed(_))));
}

#[test]
fn trimming_keeps_what_is_needed_and_may_leave_holes() {
    let (folder, mut log) = log_of(7);
    let whole = copy(folder.path());
    let bytes = log.bytes();
    let trim = |log: &mut Log, before| {
        let removed = log.forget_before(before, 0);
        removed.iter().for_each(|path| fs::remove_file(path).expect("it can be removed"));
        removed.len()
    };
    assert_eq!(trim(&mut log, 2), 0);
    assert!(trim(&mut log, 6) > 0 && log.bytes() < bytes && log.first() == 5);
    assert_eq!(intact(folder.path(), &expected(6, 7)).1, frames(6..8));
    assert!(!damages(folder.path(), &expected(4, 7)).is_empty());
    assert!(trim(&mut log, u64::MAX) > 0);
    assert_eq!((files(folder.path()).len(), log.first()), (1, 7));
    assert_eq!(intact(folder.path(), &expected(8, 7)).0.last, 7);
    // Any of the removed ones may be there again.
    for kept in 0..8_u8 {
        let copy = copy(whole.path());
        for (at, path) in files(copy.path()).iter().take(3).enumerate().filter(|(at, _)| kept & (1 << at) == 0) {
            fs::remove_file(path).unwrap_or_else(|error| panic!("{at}: {error}"));
        }
        assert_eq!(look_at(copy.path(), LogSeal { last: 7, segment: 7, is_closed: false }), []);
        let (mut log, found) = open(copy.path(), &expected(7, 7));
        assert_eq!(found, frames(7..8));
        trim(&mut log, 8);
        assert_eq!(files(copy.path()).len(), 1);
        append(&mut log, 8..9);
        assert_eq!(intact(copy.path(), &expected(8, 8)).1, frames(8..9));
    }
}

#[test]
fn a_log_without_frames_goes_on_in_its_segment() {
    for is_closed in [false, true] {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = parent.path().join("a/log");
        let mut log = Log::create(&folder, 10, small()).expect("a log");
        assert_eq!(fs::metadata(&folder).expect("a folder").permissions().mode() & 0o777, 0o700);
        for _ in 0..3 {
            if is_closed {
                assert_eq!(log.close().expect("it closes"), 9);
            }
            log = open(&folder, &Expected { first: 10, sealed: LogSeal { last: 9, segment: 10, is_closed } }).0;
        }
        assert_eq!((log.first(), log.last(), files(&folder).len()), (10, 9, 1));
        assert_eq!(log.append(b"x").expect("a frame"), 10);
        assert_eq!(intact(&folder, &expected(10, 10)).0.segments.len(), 1);
        let mode = fs::metadata(segment_path(&folder, 10)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn a_log_that_is_cut_back_goes_on_from_there() {
    const LAST: u64 = 9;
    for number in 0..=LAST {
        let (folder, mut log) = log_of(LAST);
        log.cut_back(number).expect("it is cut");
        assert_eq!((log.last(), log.segment_of(number + 1)), (number, log.segment_of(u64::MAX)));
        assert_eq!(intact(folder.path(), &expected(1, number)).1, frames(1..number + 1));
        append(&mut log, number + 1..LAST + 4);
        log.cut_back(LAST + 2).expect("it is cut again");
        drop(log);
        goes_on(folder.path(), LAST + 2);
    }
}

#[test]
fn a_log_whose_cutting_back_ends_early_has_all_frames_up_to_some() {
    const LAST: u64 = 7;
    let mut stopped = 0;
    for number in 0..LAST {
        for after in 0.. {
            let (folder, mut log) = log_of(LAST);
            fail(after, 1, ErrorKind::Other);
            let cut = log.cut_back(number);
            fail(usize::MAX, 0, ErrorKind::Other);
            if cut.is_ok() {
                break;
            }
            stopped += 1;
            assert!(matches!(log.write(b"x"), Err(AppendError::Failed(_))), "it is to be opened again");
            drop(log);
            let (found, read) = intact(folder.path(), &expected(1, number));
            assert!((number..=LAST).contains(&found.last), "{number}, {after}: {}", found.last);
            assert_eq!(read, frames(1..found.last + 1));
            goes_on(folder.path(), found.last);
        }
    }
    assert!(stopped > 20, "{stopped}");
}

#[test]
fn the_frames_of_a_segment_are_read_by_one_of_their_numbers() {
    let (folder, log) = log_of(7);
    for number in 1..=7 {
        let (first, found) = super::read::frames(folder.path(), number, 7).expect("they are read");
        assert_eq!(first, log.segment_of(number));
        let found: Frames = (first..).zip(found.iter().map(|frame| frame.to_vec())).collect();
        assert!(found.iter().any(|(of, _)| *of == number));
        assert_eq!(found, frames(first..first + found.len() as u64));
    }
    for number in [0, 8] {
        let missing = super::read::frames(folder.path(), number, 7).expect_err("no segment has it");
        assert_eq!(missing.kind(), ErrorKind::NotFound, "{number}");
    }
}
