//! A disk that can lie: what of a data directory is really on it, and would be there after a power failure.
//!
//! The store writes to a directory as ever. After each of its steps a test says of which files the step's sync was
//! honest, and the [`Platter`] takes these over as they are then. What it has not taken over is lost when the power
//! fails. A step at a time is enough: what a crash leaves within one is tried elsewhere, in the tests of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// What a sync has done that has returned success.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sync {
    /// All that was written to the file is on the disk.
    Honest,
    /// Nothing is on the disk yet, and a later sync of the file brings it there: as a drive does whose cache ignores
    /// that it is to be written out.
    Held,
    /// What was written since the sync before is never on the disk, and what comes later is: as a kernel does that
    /// takes pages for clean which it could not write (Rebello et al., USENIX ATC 2020).
    Dropped,
    /// The same, where only whole sectors are not on the disk.
    DroppedSectors,
    /// The file has no name on the disk, whatever is written to it: the sync of its directory has lied.
    Nameless,
}

/// A part of a data directory, whose syncs can lie apart from those of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Log,
    Database,
    Seal,
    Format,
}

impl Part {
    pub(super) const ALL: [Self; 4] = [Self::Log, Self::Database, Self::Seal, Self::Format];

    fn of(path: &Path) -> Option<Self> {
        match path.iter().next()?.to_str()? {
            "log" => Some(Self::Log),
            "store" => Some(Self::Database),
            "leasehold.seal" => Some(Self::Seal),
            "leasehold.format" => Some(Self::Format),
            // What says nothing about jobs.
            _ => None,
        }
    }
}

/// What a disk writes as one.
const SECTOR: usize = 512;

/// What is in a file, or that it is a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Folder,
    File {
        /// Without the zeros at the end, of which a journal has many.
        bytes: Vec<u8>,
        length: u64,
    },
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Folder => &[],
            Self::File { bytes, .. } => bytes,
        }
    }
}

type Files = BTreeMap<PathBuf, Content>;

/// What is really on a disk.
#[derive(Debug, Default)]
pub(super) struct Platter {
    files: Files,
    /// The files as they were when they were synced last, be it by a lie.
    synced: Files,
    /// The parts of files that are never on the disk.
    holes: BTreeMap<PathBuf, Vec<Range<usize>>>,
    nameless: BTreeSet<PathBuf>,
}

impl Platter {
    /// Takes over what a step has written to a part of the directory `root` and synced, as far as `lies` says for each
    /// file that has changed; for all files at once in the database, where only its journal is synced time and again.
    pub(super) fn sync(&mut self, root: &Path, part: Part, mut lies: impl FnMut() -> Sync) {
        let now = read(root, part);
        let of_all = (part == Part::Database).then(&mut lies);
        if of_all == Some(Sync::Honest) {
            self.forget(&now, part, || true);
        }
        for (path, content) in now {
            let before = self.synced.insert(path.clone(), content.clone());
            if of_all.is_none() && before.as_ref() == Some(&content) {
                continue;
            }
            let is_new = before.is_none();
            let written = before.map_or(0, |before| before.bytes().len())..content.bytes().len();
            match of_all.unwrap_or_else(&mut lies) {
                Sync::Honest if self.nameless.contains(&path) => {}
                Sync::Honest => {
                    let content = self.with_holes(&path, content);
                    self.files.insert(path, content);
                }
                // The name came to the disk when the file was renamed, and nothing that is in it.
                Sync::Dropped | Sync::DroppedSectors if part == Part::Seal => {
                    self.files.insert(path, Content::File { bytes: Vec::new(), length: 0 });
                }
                Sync::Dropped => self.holes.entry(path).or_default().push(written),
                Sync::DroppedSectors => {
                    let whole = written.start.next_multiple_of(SECTOR)..written.end / SECTOR * SECTOR;
                    self.holes.entry(path).or_default().push(whole);
                }
                Sync::Nameless if is_new && part == Part::Log => drop(self.nameless.insert(path)),
                Sync::Held | Sync::Nameless => {}
            }
        }
    }

    /// Takes over that files of a part were removed, each of them if that `lasts`. Removals are not synced.
    pub(super) fn remove(&mut self, root: &Path, part: Part, lasts: impl FnMut() -> bool) {
        self.forget(&read(root, part), part, lasts);
    }

    fn forget(&mut self, now: &Files, part: Part, mut lasts: impl FnMut() -> bool) {
        let is_gone = |path: &PathBuf| Part::of(path) == Some(part) && !now.contains_key(path);
        self.synced.retain(|path, _| !is_gone(path));
        self.files.retain(|path, _| !is_gone(path) || !lasts());
    }

    /// Returns whether all files of a part of the directory are on the disk. There may be more.
    pub(super) fn has_all(&self, root: &Path, part: Part) -> bool {
        let now = read(root, part);
        now.iter().all(|(path, content)| *content == Content::Folder || self.files.get(path) == Some(content))
    }

    /// Returns whether a part of the directory has the files that are on the disk, and no others.
    pub(super) fn is_same(&self, root: &Path, part: Part) -> bool {
        let is_file =
            |(path, content): &(&PathBuf, &Content)| Part::of(path) == Some(part) && **content != Content::Folder;
        read(root, part).iter().filter(is_file).eq(self.files.iter().filter(is_file))
    }

    /// Returns whether there is any file on the disk.
    pub(super) fn has_files(&self) -> bool {
        self.files.values().any(|content| *content != Content::Folder)
    }

    /// Returns a directory as it is when the power is back.
    pub(super) fn after_power_failure(&mut self) -> TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (path, content) in &self.files {
            let path = directory.path().join(path);
            match content {
                Content::Folder => fs::create_dir_all(path).expect("creatable"),
                Content::File { bytes, length } => {
                    fs::create_dir_all(path.parent().expect("it is in a folder")).expect("creatable");
                    let mut file = File::create(path).expect("creatable");
                    file.write_all(bytes).and_then(|()| file.set_len(*length)).expect("writable");
                }
            }
        }
        // What was lost is not there to be synced later.
        *self = Self { synced: self.files.clone(), files: std::mem::take(&mut self.files), ..Self::default() };
        directory
    }

    fn with_holes(&self, path: &Path, mut content: Content) -> Content {
        if let Content::File { bytes, .. } = &mut content {
            for hole in self.holes.get(path).into_iter().flatten() {
                let end = hole.end.min(bytes.len());
                bytes.get_mut(hole.start..end).unwrap_or_default().fill(0);
            }
            trim(bytes);
        }
        content
    }
}

/// Reads the files of a part of a directory, by their paths in it.
fn read(root: &Path, part: Part) -> Files {
    let (mut found, mut folders) = (Files::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            let name = path.strip_prefix(root).expect("it is in there").to_owned();
            if Part::of(&name) != Some(part) {
                continue;
            }
            let content = if path.is_dir() { Content::Folder } else { content(&path) };
            if content == Content::Folder {
                folders.push(path);
            }
            found.insert(name, content);
        }
    }
    found
}

/// Reads a file as far as there is something in it.
fn content(path: &Path) -> Content {
    /// A journal has 64 MiB, and no test writes as many zeros on purpose.
    const PIECE: usize = 256 << 10;
    let mut file = File::open(path).expect("readable");
    let length = file.metadata().expect("readable").len();
    let (mut bytes, mut piece) = (Vec::new(), Vec::with_capacity(PIECE));
    loop {
        piece.clear();
        (&mut file).take(PIECE as u64).read_to_end(&mut piece).expect("readable");
        bytes.extend_from_slice(&piece);
        trim(&mut piece);
        if piece.is_empty() {
            break;
        }
    }
    trim(&mut bytes);
    Content::File { bytes, length }
}

/// Removes the zeros at the end.
fn trim(bytes: &mut Vec<u8>) {
    const ZEROS: [u8; 4 << 10] = [0; 4 << 10];
    while bytes.ends_with(&ZEROS) {
        bytes.truncate(bytes.len() - ZEROS.len());
    }
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
}
