//! The file of when this member was rebuilt by itself, and of what had shown that it alone differed.
//!
//! It lies beside the database, so that it outlives one, and it is no part of the state.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::directory::Directory;
use super::super::error::Damage;
use super::super::last::Last;
use super::super::seal::{checked_json, read_checked_json};
use crate::clock::Timestamp;

const FILE: &str = "leasehold.rebuilds";
const HEADING: &str = "leasehold rebuilds 1";

/// How long after it was rebuilt a member that differs again is left as it is: what made it differ is still there.
const SEEN_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// How many rebuilds are kept.
const KEPT: usize = 16;

/// The content of the file, the last one at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rebuilds(pub(crate) Vec<Rebuild>);

/// What is known of a rebuild when the state is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rebuild {
    /// When it was, by the clock of this machine.
    pub(crate) at: Timestamp,
    /// The entry after which the states were compared.
    pub(crate) compared: u64,
    /// The sums over the states of all members then, in hexadecimal.
    pub(crate) sums: BTreeMap<u64, String>,
    /// The member whose state took the place of the own one, and the last entry that it had.
    pub(crate) from: u64,
    pub(crate) last: Last,
    /// The first documents that both had in the same version, and not the same.
    pub(crate) documents: Vec<Differs>,
}

/// A document that two members had in the same version, and not the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Differs {
    pub(crate) keyspace: String,
    pub(crate) key: String,
    /// The documents as they lay on both disks, in hexadecimal, as far as they are kept.
    pub(crate) own: String,
    pub(crate) other: String,
}

impl Rebuilds {
    /// Reads the file of a data directory, which may have none.
    ///
    /// # Errors
    /// A damage when it is not as it was written.
    pub(crate) fn read(directory: &Path) -> Result<Self, Damage> {
        read_checked_json(&directory.join(FILE), HEADING)
    }

    /// Returns the last rebuild, where that was too short a time ago for another one. A clock that was set back since
    /// shows no time at all.
    pub(crate) fn lately(&self, now: Timestamp) -> Option<&Rebuild> {
        self.0.last().filter(|last| now < last.at.plus(SEEN_FOR))
    }

    /// Adds a rebuild, durably.
    pub(crate) fn add(mut self, rebuild: Rebuild, directory: &Directory) -> io::Result<()> {
        self.0.push(rebuild);
        self.0.drain(..self.0.len().saturating_sub(KEPT));
        directory.write_whole(FILE, |_| self.encode())
    }

    /// Returns the bytes of the file.
    pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
        checked_json(HEADING, self)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn rebuild(at: Timestamp) -> Rebuild {
        let last = Last { number: 9, term: 2 };
        Rebuild { at, compared: 8, sums: BTreeMap::new(), from: 1, last, documents: Vec::new() }
    }

    #[test]
    fn a_member_that_was_rebuilt_is_so_again_a_day_later_and_not_before() {
        let at = Timestamp::from_millis(1_900_000_000_000);
        assert_eq!(Rebuilds::default().lately(at), None);
        let rebuilds = Rebuilds(vec![rebuild(at.minus(SEEN_FOR)), rebuild(at)]);
        let almost = at.plus(SEEN_FOR).minus(Duration::from_millis(1));
        for now in [at, almost, at.minus(Duration::from_secs(1)), Timestamp::from_millis(0)] {
            assert_eq!(rebuilds.lately(now), Some(&rebuild(at)), "{now}");
        }
        assert_eq!(rebuilds.lately(at.plus(SEEN_FOR)), None);
    }

    #[test]
    fn the_last_rebuilds_are_kept_and_one_that_cannot_be_read_is_no_none() {
        let place = tempfile::tempdir().expect("a folder");
        let directory = Directory::hold(place.path(), 0).expect("it is held");
        let at = |number: u64| Timestamp::from_millis(1_900_000_000_000 + number as i64);
        for number in 0..KEPT as u64 + 2 {
            let rebuilds = Rebuilds::read(place.path()).expect("as it was written");
            rebuilds.add(rebuild(at(number)), &directory).expect("written");
        }
        let kept = Rebuilds::read(place.path()).expect("as it was written");
        assert_eq!((kept.0.len(), kept.0[0].at), (KEPT, at(2)));
        fs::write(place.path().join(FILE), "{}").expect("written");
        assert!(Rebuilds::read(place.path()).is_err());
    }
}
