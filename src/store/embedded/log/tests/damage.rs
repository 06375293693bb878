//! What a crash does not leave is reported, and no frame is lost silently.

use super::*;

/// Asserts that no flipped bit in any file loses a frame silently: of each byte some are tried, each on its own.
fn assert_flips_are_found(folder: &Path, expected: &Expected, written: &Frames) {
    for path in files(folder) {
        let bytes = content(&path);
        for bit in (0..bytes.len() * 8).step_by(3) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            put(&path, &flipped);
            match visited(folder, expected) {
                (Ok(_), frames) => assert_eq!(&frames, written, "bit {bit} of {}", path.display()),
                (Err(damages), frames) => {
                    assert!(damages.iter().any(|it| it.path == path), "bit {bit} of {}: {damages:?}", path.display());
                    assert!(written.starts_with(&frames));
                }
            }
        }
        put(&path, &bytes);
    }
}

#[test]
pub(super) fn a_flipped_bit_loses_no_frame_silently() {
    let (folder, log) = log_of(7);
    assert_eq!(files(folder.path()).len(), 4);
    assert_flips_are_found(folder.path(), &expected(1, 0), &frames(1..8));
    log.close().expect("it closes");
    assert_flips_are_found(folder.path(), &expected(1, 0), &frames(1..8));
    assert_flips_are_found(folder.path(), &closed(7), &frames(1..8));
    let (log, _) = open(folder.path(), &closed(7));
    assert_flips_are_found(folder.path(), &expected(1, 0), &frames(1..8));
    log.close().expect("it closes");
    assert_flips_are_found(folder.path(), &closed(7), &frames(1..8));
}

#[test]
pub(super) fn a_flipped_bit_in_the_room_for_frames_does_no_harm() {
    let (folder, _log) = log_of(7);
    let path = &files(folder.path())[3];
    let (written, whole) = (content(path).len(), fs::read(path).expect("a segment is read"));
    for bit in (written * 8..written * 8 + 5_000).step_by(3).chain(whole.len() * 8 - 9..whole.len() * 8) {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        put(path, &flipped);
        let (found, visited) = intact(folder.path(), &expected(1, 7));
        assert_eq!(visited, frames(1..8), "bit {bit}");
        assert!(found.torn.is_some_and(|torn| torn.at == written as u64), "bit {bit}");
    }
}

#[test]
pub(super) fn a_flipped_bit_in_a_frame_is_found_though_the_next_is_torn() {
    let (folder, _log) = log_of(6);
    let path = &files(folder.path())[2];
    let whole = content(path);
    let at = 32 + overhead() + payload(5).len();
    for cut in at + 1..whole.len() {
        for bit in 32 * 8..at * 8 {
            let mut flipped = whole[..cut].to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            put(path, &flipped);
            assert!(visited(folder.path(), &expected(1, 0)).0.is_err(), "{cut} {bit}");
        }
    }
}

#[test]
pub(super) fn a_flipped_length_or_marker_is_found_though_a_sector_is_zero() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut log = Log::create(folder.path(), 1, large()).expect("a log");
    log.append(&[0; 2000]).expect("a frame is appended");
    let path = segment_path(folder.path(), 1);
    let whole = content(&path);
    for byte in (32..40).chain(whole.len() - 4..whole.len()) {
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[byte] ^= 1 << bit;
            put(&path, &flipped);
            assert_eq!(damages(folder.path(), &expected(1, 0))[0].path, path, "{byte} {bit}");
        }
    }
}

#[test]
pub(super) fn missing_empty_and_swapped_files_are_found() {
    for is_closed in [false, true] {
        let (folder, log) = log_of(7);
        if is_closed {
            log.close().expect("it closes");
        }
        let count = files(folder.path()).len();
        for expected in [Some(expected(1, 0)), is_closed.then_some(closed(7))].into_iter().flatten() {
            for at in 0..count {
                let copy = copy(folder.path());
                let path = &files(copy.path())[at];
                put(path, &[]);
                assert!(damages(copy.path(), &expected).iter().any(|damage| &damage.path == path));
                fs::remove_file(path).expect("it is removed");
                let name = if at == 0 { copy.path() } else { path };
                assert!(damages(copy.path(), &expected).iter().any(|damage| damage.path == name));
            }
            for (one, other) in (0..count).flat_map(|one| (0..one).map(move |other| (one, other))) {
                let copy = copy(folder.path());
                let (one, other) = (&files(copy.path())[one], &files(copy.path())[other]);
                let bytes = content(one);
                fs::rename(other, one).expect("it is renamed");
                put(other, &bytes);
                let damages = damages(copy.path(), &expected);
                assert!([one, other].iter().all(|path| damages.iter().any(|damage| &&damage.path == path)));
            }
        }
    }
}

#[test]
pub(super) fn a_segment_of_another_log_is_found() {
    let (folder, _log) = log_of(6);
    let other = tempfile::tempdir().expect("a folder");
    let mut log = Log::create(other.path(), 1, small()).expect("a log");
    for _ in 0..6 {
        log.append(&[b'x'; 24]).expect("a frame is appended");
    }
    fs::copy(&files(other.path())[1], &files(folder.path())[1]).expect("it is replaced");
    assert_eq!(damages(folder.path(), &expected(1, 0)).len(), 2);
}

#[test]
pub(super) fn what_no_rotation_leaves_is_damage() {
    let (folder, mut log) = log_of(4);
    let unfinished = content(&files(folder.path())[1]);
    append(&mut log, 5..6);
    let [old, next] = [files(folder.path())[1].clone(), files(folder.path())[2].clone()];
    let (finished, begun) = (content(&old), content(&next));
    let cases = [
        (&finished[..], &begun[..31]),
        (&finished[..], &[][..]),
        (&finished[..], &[0; 32][..]),
        (&unfinished[..], &begun[..]),
        (&unfinished[..], &begun[..33]),
        (&unfinished[..], &finished[..32]),
        (&unfinished[..], &[0; 33][..]),
        (&unfinished[..unfinished.len() - 1], &begun[..32]),
        (&unfinished[..unfinished.len() - 1], &[][..]),
        (&unfinished[..32], &begun[..32]),
    ];
    for (at, (before, after)) in cases.into_iter().enumerate() {
        put(&old, before);
        put(&next, after);
        assert!(!damages(folder.path(), &expected(1, 0)).is_empty(), "case {at}");
    }
    fs::remove_file(&next).expect("it is removed");
    put(&old, &finished);
    assert_eq!(damages(folder.path(), &expected(1, 0)), [Damage::missing(&next)]);
}

#[test]
pub(super) fn a_hole_in_the_last_frame_is_torn_and_one_before_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut log = Log::create(folder.path(), 1, large()).expect("a log");
    let end = [1000, 3000].map(|size| {
        log.append(&vec![b'x'; size]).expect("a frame is appended");
        log.bytes() as usize
    });
    let path = segment_path(folder.path(), 1);
    let whole = content(&path);
    for sector in 0..whole.len().div_ceil(512) {
        let mut hole = whole.clone();
        // What was written to the sector before stays.
        let from = end[0].max(sector * 512);
        let to = whole.len().min((sector + 1) * 512);
        match from < to {
            true => hole[from..to].fill(0),
            false => hole[sector * 512..to].fill(0),
        }
        put(&path, &hole);
        match from < to {
            true => assert_eq!(intact(folder.path(), &expected(1, 1)).0.last, 1, "sector {sector}"),
            false => assert_eq!(damages(folder.path(), &expected(1, 0))[0].path, path, "sector {sector}"),
        }
    }
}

#[test]
fn what_a_visitor_refuses_is_damage() {
    let (folder, _log) = log_of(4);
    let damages = read(folder.path(), &expected(1, 0), |number, _| match number {
        3 => Err("no".to_owned()),
        _ => Ok(()),
    });
    let damages = damages.err().expect("it is damaged");
    assert_eq!(damages, [Damage::of(&segment_path(folder.path(), 3), "the frame at byte 32 makes no sense: no")]);
}

#[test]
pub(super) fn a_log_that_is_closed_has_exactly_its_frames() {
    let (folder, log) = log_of(3);
    assert!(!damages(folder.path(), &closed(3)).is_empty());
    log.close().expect("it closes");
    assert_eq!(intact(folder.path(), &closed(3)).1, frames(1..4));
    assert!(!damages(folder.path(), &closed(2)).is_empty());
    assert!(!damages(folder.path(), &closed(4)).is_empty());
    drop(open(folder.path(), &closed(3)));
    assert!(!damages(folder.path(), &closed(3)).is_empty());
}
