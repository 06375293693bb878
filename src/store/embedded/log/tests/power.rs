//! A power cut leaves any of the sectors that were written since the last sync, and any beginning of each.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::super::segment::{Ending, encode_footer};
use super::faults::{STEPS, Step, note};
use super::*;

const SECTOR: usize = 512;

/// A file with what is durable of it, and what was done since.
#[derive(Default)]
struct Platter {
    durable: Vec<u8>,
    since: Vec<Step>,
}

impl Platter {
    fn sync(&mut self) {
        for step in self.since.drain(..) {
            match step {
                Step::Write { at, bytes, .. } => {
                    self.durable.resize(self.durable.len().max(at + bytes.len()), 0);
                    self.durable[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                Step::Length { length, .. } => self.durable.resize(length, 0),
                Step::Sync { .. } | Step::Removal { .. } | Step::Knows { .. } => {}
            }
        }
    }

    /// Returns what a power cut leaves of it.
    fn after_power_cut(&self, random: &mut StdRng) -> Vec<u8> {
        let ends = self.since.iter().map(|step| match step {
            Step::Write { at, bytes, .. } => at + bytes.len(),
            Step::Length { length, .. } => *length,
            Step::Sync { .. } | Step::Removal { .. } | Step::Knows { .. } => 0,
        });
        let (shortest, longest) = (self.durable.len(), ends.fold(self.durable.len(), usize::max));
        let shortest = self.since.iter().fold(shortest, |shortest, step| match step {
            Step::Length { length, .. } => shortest.min(*length),
            _ => shortest,
        });
        let mut left = self.durable.clone();
        left.resize(longest, 0);
        // Most often all that is lost is lost of one place, and sometimes of everywhere.
        let lost = random.random_range(0..=100);
        for sector in 0..longest.div_ceil(SECTOR) {
            let place = sector * SECTOR..longest.min((sector + 1) * SECTOR);
            let writes: Vec<_> = self.since.iter().filter_map(|step| part_of(step, &place)).collect();
            let is_lost = random.random_range(0..100) < lost;
            let whole = if is_lost { random.random_range(0..=writes.len()) } else { writes.len() };
            for (number, (from, bytes)) in writes.into_iter().take(whole + 1).enumerate() {
                // Where nothing else goes to a sector, it is written whole or not at all.
                let most = if FORMAT.get() == Format::Single { 0 } else { bytes.len() };
                let count = if number < whole { bytes.len() } else { random.random_range(0..=most) };
                left[from..from + count].copy_from_slice(&bytes[..count]);
            }
        }
        // The length goes to the disk by itself, before what is there or after it.
        let length = random.random_range(shortest..=longest);
        left.truncate(if random.random() { longest } else { length });
        left
    }
}

/// Returns what a write puts into a place of the file, and where.
fn part_of<'a>(step: &'a Step, place: &Range<usize>) -> Option<(usize, &'a [u8])> {
    let Step::Write { at, bytes, .. } = step else { return None };
    let (from, to) = (place.start.max(*at), place.end.min(at + bytes.len()));
    (from < to).then(|| (from, &bytes[from - at..to - at]))
}

/// What a log does, as a seed makes it up: messages of several frames, and the replacement of the last frames.
fn steps_of(random: &mut StdRng, folder: &Path) -> Vec<Step> {
    STEPS.set(Some(Vec::new()));
    let segment_bytes = if random.random() { 3_000 } else { 1 << 30 };
    let mut log = Log::create(folder, 1, Options { segment_bytes, ..small() }).expect("a log");
    let mut payloads: Vec<Vec<u8>> = Vec::new();
    for _ in 0..random.random_range(1..6) {
        let durable = payloads.clone();
        if random.random_range(0..4) == 0 && !payloads.is_empty() {
            payloads.truncate(random.random_range(0..=payloads.len()));
            note(|| Step::Knows { must: payloads.clone(), may: durable.clone() });
            log.cut_back(payloads.len() as u64).expect("it is cut");
            note(|| Step::Knows { must: payloads.clone(), may: payloads.clone() });
        }
        let must = payloads.clone();
        for _ in 0..random.random_range(1..12) {
            let length = [20, 20, 100, 600, 3_000][random.random_range(0..5)];
            let fill = if random.random() { b'x' } else { 0 };
            payloads.push((0..random.random_range(0..length)).map(|_| fill.max(random.random_range(0..9))).collect());
            note(|| Step::Knows { must: must.clone(), may: payloads.clone() });
            log.write(payloads.last().expect("one")).expect("a frame is written");
        }
        log.sync().expect("it is synced");
        note(|| Step::Knows { must: payloads.clone(), may: payloads.clone() });
    }
    STEPS.take().expect("steps")
}

/// Cuts the power somewhere. Returns what must be read and may be read then.
fn cut_power(steps: &[Step], random: &mut StdRng, folder: &Path) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut files, mut names) = (BTreeMap::<u64, Platter>::new(), BTreeMap::new());
    let (mut must, mut may, mut removed) = (Vec::new(), Vec::new(), None);
    // A log whose creation was cut short has nothing.
    for step in &steps[..random.random_range(2..=steps.len())] {
        // The folder is synced by then.
        removed.take().map(|file| files.remove(&file));
        match step {
            Step::Write { file, at, bytes } => {
                if *at == 0 {
                    // It may have the number of one that was removed.
                    files.remove(file);
                    names.insert(*file, Header::parse(bytes).expect("a header").first);
                }
                files.entry(*file).or_default().since.push(step.clone());
            }
            Step::Length { file, .. } => files.entry(*file).or_default().since.push(step.clone()),
            Step::Sync { file } => files.entry(*file).or_default().sync(),
            Step::Removal { file } => removed = Some(*file),
            Step::Knows { must: known, may: written } => (must, may) = (known.clone(), written.clone()),
        }
    }
    if let Some(removed) = removed.filter(|_| random.random()) {
        files.remove(&removed);
    }
    for (file, platter) in files {
        put(&segment_path(folder, names[&file]), &platter.after_power_cut(random));
    }
    (must, may)
}

#[test]
fn whatever_a_power_cut_leaves_all_that_was_synced_is_read() {
    let (mut replaced, mut removed) = (0, 0);
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        FORMAT.set(if seed % 4 == 0 { Format::Single } else { Format::Batched });
        let steps = steps_of(&mut random, tempfile::tempdir().expect("a folder").path());
        replaced += steps.iter().filter(|step| matches!(step, Step::Length { .. })).count();
        removed += steps.iter().filter(|step| matches!(step, Step::Removal { .. })).count();
        for cut in 0..30 {
            let folder = tempfile::tempdir().expect("a folder");
            let (must, may) = cut_power(&steps, &mut random, folder.path());
            let (found, frames) = match visited(folder.path(), &expected(1, must.len() as u64)) {
                (Ok(found), frames) => (found, frames),
                (Err(damages), _) => panic!("seed {seed}: {damages:?}"),
            };
            let read: Vec<Vec<u8>> = frames.into_iter().map(|(_, payload)| payload).collect();
            assert!(read.len() >= must.len() && may.starts_with(&read), "seed {seed}: {} of {}", read.len(), may.len());
            if cut > 0 {
                continue;
            }
            let mut log = Log::open(folder.path(), found, small()).expect("it opens");
            let last = log.append(b"the next").expect("a frame is appended");
            assert_eq!(last, read.len() as u64 + 1);
            assert_eq!(log.close().expect("it closes"), last);
            assert_eq!(intact(folder.path(), &closed(last)).0.last, last);
        }
    }
    assert!(replaced > 10 && removed > 5, "{replaced}, {removed} segments");
}

#[test]
fn several_frames_that_are_synced_together_are_not_told_from_damage_by_the_rule_for_single_ones() {
    let damaged = |format: Format| {
        let (durable, mut random) = ((format == Format::Batched).then_some(0), StdRng::seed_from_u64(7));
        let mut platter = Platter { durable: Header { format, first: 1, previous: 0 }.encode().into(), since: vec![] };
        for number in 1..10 {
            let mut bytes = Vec::new();
            append_frame(&mut bytes, number, durable, &[b'x'; 300]).expect("a frame");
            let at = platter.durable.len() + platter.since.len() * bytes.len();
            platter.since.push(Step::Write { file: 0, at, bytes });
        }
        let left = (0..200).map(|_| platter.after_power_cut(&mut random));
        left.filter(|left| Segment::parse(left, 1, |_, _| Ok(())).is_err()).count()
    };
    assert!(damaged(Format::Single) > 50, "{}", damaged(Format::Single));
    assert_eq!(damaged(Format::Batched), 0);
}

/// Returns a segment of one frame, which ends so many bytes behind the beginning of a sector, and what follows that:
/// the bytes of a frame with this payload, or of a footer without one.
fn at_byte(byte: usize, (format, first): (Format, u64), payload: Option<&[u8]>) -> (Vec<u8>, Vec<u8>) {
    let durable = |number: u64| (format == Format::Batched).then_some(number - 1);
    let mut synced: Vec<u8> = Header { format, first, previous: 0 }.encode().into();
    let overhead = if format == Format::Batched { 36 } else { 28 };
    append_frame(&mut synced, first, durable(first), &vec![b'x'; 2 * SECTOR + byte - HEADER_BYTES - overhead])
        .expect("a frame");
    assert_eq!(synced.len(), 2 * SECTOR + byte);
    let mut last = Vec::new();
    match payload {
        Some(payload) => append_frame(&mut last, first + 1, durable(first + 1), payload).expect("a frame"),
        None => {
            encode_footer(&mut last, first, xxhash_rust::xxh3::xxh3_64(&synced), Ending::Rotated).expect("a footer")
        }
    }
    (synced, last)
}

#[test]
fn a_sector_that_is_lost_wherever_a_frame_or_footer_begins_is_no_damage() {
    let payloads = [0, 5, 248, 256, 700].map(|length| vec![b'y'; length]);
    let payloads: Vec<Option<&[u8]>> = payloads.iter().map(|payload| Some(&payload[..])).chain([None]).collect();
    // The number of the frame behind it begins with a zero where it is 256.
    let kinds = [Format::Single, Format::Batched].map(|format| [(format, 1), (format, 255)]);
    for byte in 0..SECTOR {
        for (kind, payload) in kinds.iter().flatten().flat_map(|kind| payloads.iter().map(move |it| (*kind, *it))) {
            let (synced, last) = at_byte(byte, kind, payload);
            let (begin, end) = (synced.len(), synced.len() + last.len());
            let whole = [&synced[..], &last].concat();
            // A frame that was to be synced with it may follow.
            let mut next = whole.clone();
            if kind.0 == Format::Batched && payload.is_some() {
                append_frame(&mut next, kind.1 + 2, Some(kind.1), b"another").expect("a frame");
            }
            for (left, sector) in [whole, next].iter().flat_map(|written| lost(written, begin..end)) {
                let place = format!("{kind:?}, {:?} at byte {byte}, sector {sector}", payload.map(<[u8]>::len));
                let segment = Segment::parse(&left, kind.1, |_, _| Ok(()));
                let segment = segment.unwrap_or_else(|damage| panic!("{place}: {damage}"));
                assert_eq!((segment.last, segment.length as usize, segment.ending), (kind.1, begin, None), "{place}");
            }
        }
    }
}

/// Returns what is left where one of the sectors is lost that have something of this place, and which one that is.
fn lost(written: &[u8], place: Range<usize>) -> impl Iterator<Item = (Vec<u8>, usize)> {
    (place.start / SECTOR..place.end.div_ceil(SECTOR)).map(move |sector| {
        let mut left = written.to_vec();
        let end = left.len().min((sector + 1) * SECTOR);
        left[place.start.max(sector * SECTOR)..end].fill(0);
        (left, sector)
    })
}

#[test]
fn a_footer_that_a_process_wrote_as_it_was_killed_is_durable_before_the_next_frame() {
    let (folder, mut log) = log_of(2);
    // What begins the next segment, its sync, and the footer.
    fail(3, 1, ErrorKind::Other);
    log.append(&payload(3)).expect_err("the footer is not synced");
    drop(log);
    let (found, _) = intact(folder.path(), &expected(1, 2));
    assert_eq!((found.last, found.segments.len()), (2, 2), "the last segment has no frames");
    STEPS.set(Some(Vec::new()));
    let mut log = Log::open(folder.path(), found, small()).expect("it opens");
    append(&mut log, 3..4);
    let steps = STEPS.take().expect("steps");
    let ended = fs::metadata(&files(folder.path())[0]).expect("a segment").ino();
    let synced = steps.iter().position(|step| matches!(step, Step::Sync { file } if *file == ended));
    let written = steps.iter().position(|step| matches!(step, Step::Write { .. }));
    assert!(synced.is_some_and(|synced| Some(synced) < written), "{synced:?}, {written:?}");
    goes_on(folder.path(), 3);
}
