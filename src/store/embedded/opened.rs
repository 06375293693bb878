//! The file with the openings of a data directory, and with those of the other members' directories.
//!
//! This is kept in a file of its own: an earlier version writes the seal without what it does not know, and leaves the
//! file as it is.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::error::Damage;
use super::last::Last;
use super::seal::{checked_json, read_checked_json};

const FILE: &str = "leasehold.openings";
const HEADING: &str = "leasehold openings 1";

/// How many openings are kept.
const KEPT: usize = 64;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpeningsFile {
    pub(super) own: Numbers,
    /// The openings of the others as they were heard. Also of those that are no members any more: after a restart, the
    /// members may be those of earlier for a while.
    pub(super) others: BTreeMap<u64, Known>,
    /// Whether the directory lacks what it has acknowledged, as its leader knew.
    pub(super) went_back: bool,
    /// Which file it is itself.
    place: Option<Place>,
}

/// The openings of a directory, each with a random number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Numbers {
    /// How many there have been.
    pub(super) count: u64,
    /// The numbers of the last ones.
    pub(super) last: Vec<u64>,
}

/// The openings of another member's directory, as they were heard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) directory: u64,
    /// Messages count that come from the last of these.
    pub(super) openings: Numbers,
    /// An entry that is committed and that the member has acknowledged, as the log says.
    pub(super) acknowledged: Option<Last>,
}

/// What the log says of the directory of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Acknowledged {
    pub(super) directory: u64,
    /// The number of its last opening, and how many there have been.
    pub(super) opening: u64,
    pub(super) count: u64,
    /// An entry that is committed, and that the member has acknowledged.
    pub(super) entry: Last,
}

/// A file that no copy of it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    /// When it was created, in nanoseconds since the epoch.
    created: u64,
}

impl Numbers {
    /// Adds an opening, of which there have been `count` then.
    pub(super) fn go_on(&mut self, count: u64, number: u64) {
        self.count = count;
        self.last.push(number);
        self.keep_last();
    }

    /// Forgets all but the last ones.
    pub(super) fn keep_last(&mut self) {
        self.last.drain(..self.last.len().saturating_sub(KEPT));
    }

    /// Returns the number of the last one.
    pub(super) fn number(&self) -> Option<u64> {
        self.last.last().copied()
    }

    /// Returns whether these, of a directory of which others are known, cannot have come after those.
    pub(super) fn lack(&self, known: &Self) -> bool {
        // Else the last one that is known may have been long ago.
        let reach = known.count + self.last.len() as u64 > self.count;
        reach && known.number().is_some_and(|last| !self.last.contains(&last))
    }
}

impl Place {
    /// Returns the place of a file; `None` where the file system does not keep when a file was created.
    fn of(metadata: &fs::Metadata) -> Option<Self> {
        let since = metadata.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(Self { created: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) })
    }
}

impl OpeningsFile {
    /// Adds an opening of this directory.
    pub(super) fn open(&mut self, number: u64) {
        self.own.go_on(self.own.count + 1, number);
    }

    /// Returns whether the file, which was read from a data directory, was copied there. A file system that does not
    /// keep when a file was created may number its files otherwise at any time: then nobody knows.
    pub(super) fn is_copy(&self, directory: &Path) -> bool {
        let found = fs::metadata(directory.join(FILE)).ok().and_then(|found| Place::of(&found));
        self.place.zip(found).is_some_and(|(place, found)| place != found)
    }

    /// Reads the file of a data directory, which may not have one yet.
    ///
    /// # Errors
    /// A damage when it is not as it was written.
    pub(super) fn read(directory: &Path) -> Result<Self, Damage> {
        read_checked_json(&directory.join(FILE), HEADING)
    }

    /// Returns the bytes of the file.
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        checked_json(HEADING, self)
    }

    /// Writes the file durably, and whole or not at all.
    pub(super) fn write(&self, directory: &Directory) -> io::Result<()> {
        directory.write_whole(FILE, |file| {
            let place = Place::of(&file.metadata()?);
            Self { place, ..self.clone() }.encode()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: u64, last: impl IntoIterator<Item = u64>) -> Numbers {
        Numbers { count, last: last.into_iter().collect() }
    }

    #[test]
    fn the_last_openings_are_kept() {
        let mut all = Numbers::default();
        (1..=KEPT as u64 + 2).for_each(|number| all.go_on(number, number));
        assert_eq!(all, numbers(KEPT as u64 + 2, 3..=KEPT as u64 + 2));
    }

    #[test]
    fn openings_lack_a_known_one_only_where_they_reach_back_to_it() {
        let known = numbers(10, [9, 10]);
        assert!(!numbers(10, [9, 10]).lack(&known) && !numbers(12, [10, 11, 12]).lack(&known));
        assert!(numbers(10, [9, 11]).lack(&known), "another one was the tenth");
        assert!(numbers(3, [1, 2, 3]).lack(&known), "it is long before");
        assert!(numbers(13, [8, 9, 11, 12]).lack(&known));
        let later = KEPT as u64 + 10;
        assert!(!numbers(later, 11..=later).lack(&known), "it may have been before these");
        assert!(numbers(later - 1, 10..later).lack(&numbers(10, [9, 7])), "it would be among these");
    }

    #[test]
    fn a_copy_of_the_file_is_told_from_it() {
        let (place, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let directory = Directory::hold(place.path(), 0).expect("it is held");
        assert_eq!(OpeningsFile::read(place.path()).expect("none"), OpeningsFile::default());
        let mut file = OpeningsFile::default();
        for number in [5, 6] {
            file.open(number);
            file.write(&directory).expect("written");
            let read = OpeningsFile::read(place.path()).expect("as it was written");
            assert_eq!((&read.own, read.is_copy(place.path())), (&file.own, false));
            assert!(!OpeningsFile { place: None, ..read }.is_copy(place.path()));
        }
        fs::copy(place.path().join(FILE), other.path().join(FILE)).expect("copied");
        let copied = OpeningsFile::read(other.path()).expect("as it was written");
        assert!(copied.is_copy(other.path()) || copied.place.is_none());
        fs::write(other.path().join(FILE), b"{}").expect("written");
        assert!(OpeningsFile::read(other.path()).is_err());
    }
}
