//! The hashes of the documents that were written last.
//!
//! A document that changes is most often one that was written a moment ago, as a job that is claimed and completed: its
//! hash before the change is the one that was added when it was written. No two documents have the same version,
//! whatever they are, so the version is all that a hash is found by.

use super::super::error::Corrupt;
use super::super::machine::{Change, Document, Effects};
use super::super::{records, schedules, stored};
use super::sum::{Part, Sum};

/// How many hashes are known, at 32 bytes each. Each version has one place; a later version takes it over.
const PLACES: usize = 1 << 15;

/// The hashes of documents by their versions, and what is needed to compute others.
#[derive(Debug, Default)]
pub(crate) struct Hashes {
    /// Empty until the first one comes.
    places: Vec<Place>,
    buffer: Vec<u8>,
}

/// The hash of the document with a version.
#[derive(Clone, Copy, Debug)]
struct Place {
    primary_term: u64,
    seq_no: u64,
    /// Those of [`Sum`], which would take more room as it is.
    halves: (u64, u64),
}

/// No document has this term.
const EMPTY: Place = Place { primary_term: u64::MAX, seq_no: 0, halves: (0, 0) };

impl Hashes {
    /// Returns by how much a batch changes the sum. Bodies come and go with the jobs that refer to them, so that none
    /// of them is read for it.
    ///
    /// # Errors
    /// [`Corrupt`] when a document cannot be written.
    pub(crate) fn of_effects(&mut self, effects: &Effects) -> Result<Sum, Corrupt> {
        let Effects { heads, left: _, bodies: _, records, schedules, last: _ } = effects;
        let mut sum = Sum::default();
        for (id, change) in heads {
            sum += self.of_change(Part::Job, id.as_str().as_bytes(), change, stored::encode)?;
            for body in change.before.iter().flat_map(|before| before.job.stored_bodies()) {
                sum -= Sum::of_body(body);
            }
            for body in change.after.iter().flat_map(|after| after.job.stored_bodies()) {
                sum += Sum::of_body(body);
            }
        }
        for (key, change) in records {
            sum += self.of_change(Part::Record, &records::key(key), change, records::encode)?;
        }
        for (id, change) in schedules {
            sum += self.of_change(Part::Schedule, id.as_str().as_bytes(), change, schedules::encode)?;
        }
        Ok(sum)
    }

    /// Returns by how much the change of a document changes the sum.
    fn of_change<T: Document>(
        &mut self,
        part: Part,
        key: &[u8],
        Change { before, after }: &Change<T>,
        encode: impl Fn(&T, &mut Vec<u8>) -> Result<(), Corrupt>,
    ) -> Result<Sum, Corrupt> {
        let mut sum = Sum::default();
        if let Some(before) = before {
            let known = self.known(before);
            let hash = known.map_or_else(|| self.compute(part, key, before, &encode), Ok)?;
            debug_assert_eq!(
                hash,
                self.compute(part, key, before, &encode)?,
                "a document has changed under its version"
            );
            sum -= hash;
        }
        if let Some(after) = after {
            let hash = self.compute(part, key, after, &encode)?;
            sum += hash;
            self.keep(after, hash);
        }
        Ok(sum)
    }

    fn compute<T>(
        &mut self,
        part: Part,
        key: &[u8],
        document: &T,
        encode: &impl Fn(&T, &mut Vec<u8>) -> Result<(), Corrupt>,
    ) -> Result<Sum, Corrupt> {
        encode(document, &mut self.buffer)?;
        Ok(Sum::of(part, key, &self.buffer))
    }

    fn known(&self, document: &impl Document) -> Option<Sum> {
        let version = document.version();
        let place = self.places.get(place_of(version.seq_no))?;
        let is_it = (place.primary_term, place.seq_no) == (version.primary_term, version.seq_no);
        is_it.then(|| Sum::of_halves(place.halves))
    }

    fn keep(&mut self, document: &impl Document, hash: Sum) {
        if self.places.is_empty() {
            self.places.resize(PLACES, EMPTY);
        }
        let version = document.version();
        let [_, high, low] = hash.as_of(0);
        let kept = Place { primary_term: version.primary_term, seq_no: version.seq_no, halves: (high, low) };
        if let Some(place) = self.places.get_mut(place_of(version.seq_no)) {
            *place = kept;
        }
    }
}

/// Returns the place of the hash of the document with this number. Batches give numbers that follow each other.
fn place_of(seq_no: u64) -> usize {
    seq_no as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Json, RecordName};
    use crate::store::{Place as StoredAt, Record, RecordKey, RecordKind, Version};

    fn record(primary_term: u64, seq_no: u64) -> Record {
        let key = RecordKey::new(RecordKind::Setting, RecordName::new("a").expect("a name"));
        let version = Version { place: StoredAt::Main, primary_term, seq_no };
        Record { key, body: Json::of(&seq_no).expect("JSON"), version }
    }

    #[test]
    fn a_hash_is_found_by_the_version_it_was_kept_for_and_no_other() {
        let mut hashes = Hashes::default();
        assert_eq!(hashes.known(&record(0, 0)), None);
        hashes.keep(&record(1, 7), Sum(70));
        hashes.keep(&record(1, 8), Sum(1 << 80));
        let later = 7 + PLACES as u64;
        assert_eq!(hashes.known(&record(1, 7)), Some(Sum(70)));
        assert_eq!(hashes.known(&record(1, 8)), Some(Sum(1 << 80)));
        for other in [record(2, 7), record(1, 9), record(1, later)] {
            assert_eq!(hashes.known(&other), None);
        }
        hashes.keep(&record(1, later), Sum(71));
        assert_eq!((hashes.known(&record(1, 7)), hashes.known(&record(1, later))), (None, Some(Sum(71))));
    }
}
