//! Names for writes, by which a write whose answer was lost is recognized in what is stored.

use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_with::{DeserializeFromStr, SerializeDisplay};

use crate::job::{BodyId, Job};
use crate::store::Version;
use crate::store::recent::RecentMap;

/// The least number of writes that [`RecentWrites`] remembers.
const GENERATION: usize = 65_536;

/// The id of one write: the process's random number and a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, SerializeDisplay, DeserializeFromStr)]
pub(super) struct WriteId {
    process: u64,
    number: u64,
}

impl fmt::Display for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:x}", self.process, self.number)
    }
}

impl FromStr for WriteId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = |part| u64::from_str_radix(part, 16).map_err(|_| "a write id that is not hexadecimal");
        let (process, number) = text.split_once('-').ok_or("a write id without a `-`")?;
        Ok(Self { process: hex(process)?, number: hex(number)? })
    }
}

/// Generates the ids of writes.
#[derive(Debug)]
pub(super) struct WriteIdSource {
    process: u64,
    next: AtomicU64,
}

impl WriteIdSource {
    pub(super) fn new() -> Self {
        Self { process: rand::random(), next: AtomicU64::new(1) }
    }

    pub(super) fn next(&self) -> WriteId {
        WriteId { process: self.process, number: self.next.fetch_add(1, Ordering::Relaxed) }
    }
}

/// The write that made a version, and the version's bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownWrite {
    /// The id of the write that made the version.
    pub(super) write_id: WriteId,
    /// The bodies that the version refers to.
    pub(super) bodies: Box<[BodyId]>,
}

impl KnownWrite {
    /// Returns the entry for a write of `job`.
    pub(super) fn of_job(write_id: WriteId, job: &Job) -> Self {
        Self { write_id, bodies: job.stored_bodies().map(|body| body.id).collect() }
    }

    /// Returns the entry for a write of a document without bodies.
    pub(super) fn without_bodies(write_id: WriteId) -> Self {
        Self { write_id, bodies: Box::default() }
    }
}

/// The writes that made the versions which this process read or wrote lately. A version that is not remembered costs
/// the successor its `previous_write_id`, and with it, in the rare case, an answer *conflict* to a write that went
/// through and was built upon before its writer heard of it; and a body that the successor no longer refers to stays
/// behind.
#[derive(Debug, Default)]
pub(super) struct RecentWrites {
    hasher: RandomState,
    writes: Mutex<RecentMap<(u64, Version), KnownWrite, GENERATION>>,
}

impl RecentWrites {
    /// Remembers all of `writes`, each with its document's id and version.
    pub(super) fn remember(&self, writes: impl Iterator<Item = (impl Hash, Version, KnownWrite)>) {
        let mut recent = self.writes.lock();
        for (id, version, known) in writes {
            recent.insert((self.hasher.hash_one(id), version), known);
        }
    }

    /// Returns the write that made `version` of the document, if it is remembered.
    pub(super) fn get(&self, id: impl Hash, version: Version) -> Option<KnownWrite> {
        self.writes.lock().get(&(self.hasher.hash_one(id), version)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Place;

    #[test]
    fn a_write_id_reads_back_as_it_was_written() {
        let source = WriteIdSource::new();
        let (first, second) = (source.next(), source.next());
        assert_ne!(first, second);
        assert_eq!(first.to_string().parse(), Ok(first));
        assert!("".parse::<WriteId>().is_err());
        assert!("12-x".parse::<WriteId>().is_err());
    }

    #[test]
    fn recent_writes_are_remembered_and_their_number_is_bounded() {
        let (recent, source) = (RecentWrites::default(), WriteIdSource::new());
        let job = super::super::document::tests::available(crate::job::Body::Empty);
        let id = job.id.clone();
        let version = |seq_no| Version { place: Place::Main, primary_term: 1, seq_no };
        let count = 3 * GENERATION as u64;
        let written: Vec<(Version, WriteId)> = (0..count).map(|seq_no| (version(seq_no), source.next())).collect();
        recent.remember(written.iter().map(|(version, write_id)| (&id, *version, KnownWrite::of_job(*write_id, &job))));

        let (last, last_id) = written[written.len() - 1];
        assert_eq!(recent.get(&id, last).map(|known| known.write_id), Some(last_id));
        assert_eq!(recent.get(crate::job::JobId::new("b").expect("an id"), last), None);
        assert_eq!(recent.get(&id, version(0)), None);
        assert!(recent.writes.lock().iter().count() <= 2 * GENERATION);
    }
}
