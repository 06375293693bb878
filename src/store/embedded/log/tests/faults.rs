//! Writes and syncs that fail, and what was done to files, for a test that cuts the power somewhere in between.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

thread_local! {
    /// After how many writes and syncs some fail, how many, and how.
    static FAULT: Cell<(usize, usize, ErrorKind)> = const { Cell::new((usize::MAX, 0, ErrorKind::Other)) };
}

thread_local! {
    /// Whether there is no room for anything.
    static IS_FULL: Cell<bool> = const { Cell::new(false) };
}

/// Fills the disk, or makes room on it.
pub(in super::super::super) fn fill(is_full: bool) {
    IS_FULL.set(is_full);
}

/// Makes a write fail after a half of it, if it is to.
pub(in super::super) fn before_write(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let half = &bytes[..bytes.len() / 2];
    let full = || if IS_FULL.get() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) };
    fault().and_then(|()| full()).inspect_err(|_| file.write_all_at(half, at).expect("a half is written"))?;
    note_write(file, bytes, at);
    Ok(())
}

/// The numbers of the files that the disk does not sync for now.
static STALLED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// The files that the disk does not sync until this is dropped.
pub(in super::super::super) struct Stalled(BTreeSet<u64>);

impl Drop for Stalled {
    fn drop(&mut self) {
        STALLED.lock().retain(|file| !self.0.contains(file));
    }
}

/// Has the disk sync none of the files in a folder until what is returned is dropped, whichever thread waits for it.
pub(in super::super::super) fn stall(folder: &Path) -> Stalled {
    let files = fs::read_dir(folder).expect("a folder");
    let files: BTreeSet<u64> = files.map(|file| file.expect("a file").metadata().expect("its data").ino()).collect();
    STALLED.lock().extend(&files);
    Stalled(files)
}

/// Makes a sync fail or wait, if it is to.
pub(in super::super) fn before_sync(file: &File) -> io::Result<()> {
    let number = file.metadata()?.ino();
    while STALLED.lock().contains(&number) {
        thread::sleep(Duration::from_millis(2));
    }
    fault()?;
    note_sync(file);
    Ok(())
}

fn fault() -> io::Result<()> {
    let (after, count, kind) = FAULT.get();
    let is_failing = after == 0 && count > 0;
    FAULT.set(if is_failing { (0, count - 1, kind) } else { (after.saturating_sub(1), count, kind) });
    if is_failing { Err(kind.into()) } else { Ok(()) }
}

pub(super) fn fail(after: usize, count: usize, kind: ErrorKind) {
    FAULT.set((after, count, kind));
}

/// What was done to the files of a log, each by its number in the file system, and what its writer knew then.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Write {
        file: u64,
        at: usize,
        bytes: Vec<u8>,
    },
    Length {
        file: u64,
        length: usize,
    },
    Sync {
        file: u64,
    },
    /// The file is gone by the next step.
    Removal {
        file: u64,
    },
    /// The payloads that must be read from now on, and those that may be.
    Knows {
        must: Vec<Vec<u8>>,
        may: Vec<Vec<u8>>,
    },
}

thread_local! {
    pub(super) static STEPS: RefCell<Option<Vec<Step>>> = const { RefCell::new(None) };
}

pub(super) fn note(step: impl FnOnce() -> Step) {
    STEPS.with_borrow_mut(|steps| {
        if let Some(steps) = steps {
            steps.push(step());
        }
    });
}

fn number_of(file: &File) -> u64 {
    file.metadata().expect("a file").ino()
}

fn note_write(file: &File, bytes: &[u8], at: u64) {
    note(|| Step::Write { file: number_of(file), at: at as usize, bytes: bytes.to_vec() });
}

pub(in super::super) fn note_length(file: &File, length: u64) {
    note(|| Step::Length { file: number_of(file), length: length as usize });
}

pub(in super::super) fn note_removal(file: &File) {
    note(|| Step::Removal { file: number_of(file) });
}

fn note_sync(file: &File) {
    note(|| Step::Sync { file: number_of(file) });
}
