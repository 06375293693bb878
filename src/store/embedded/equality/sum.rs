//! The sum over the documents of a state, by which members see that their states are equal.
//!
//! Each document has a hash (XXH3, 128 bits) of what it is, its key, and its bytes, with its version in them. The sum
//! of these modulo 2^128 depends on no order, so that a batch changes it by what it changes: the hash of each document
//! before it goes, and that after it is added. A sum and not an exclusive or, in which a document that is there twice
//! would not be seen. The hash has no secret, since nobody is kept out by it: it tells one mistake from none.
//!
//! The bytes are those that this version writes to disk, whichever version has written the document there. Where they
//! change, it is another [`FORM`]: members compare sums of the same one only. A body that lies apart from its job has a
//! part in it by its id and length, which its job knows: the sum costs no read, however large a body is that goes.
//!
//! Nothing that a member is set to, or that differs with when a member wrote its database, has a part in it: not the
//! blocks of the index of finished jobs, nor the index of schedules, which follow from the documents.

use std::ops::{AddAssign, SubAssign};

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use super::super::error::Corrupt;
use super::super::schedules::Index;
use super::super::{records, schedules, stored};
use crate::clock::Timestamp;
use crate::job::{BodyId, BodyRef, JobState, QueueName};
use crate::store::{Membership, Version};

/// What the hashes are of. One that is not the same for the same documents gets another number.
pub(crate) const FORM: u8 = 1;

/// What a part of a state is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Job = 1,
    Body = 2,
    Record = 3,
    Schedule = 4,
    /// The number of finished jobs in a state and queue.
    Finished = 5,
    /// The version given last, and the latest time of a change.
    Last = 6,
    /// The members of the group.
    Members = 7,
    /// What is in a body, which no sum has that members compare.
    Content = 8,
}

/// A sum of hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sum(pub(crate) u128);

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }
}

impl SubAssign for Sum {
    fn sub_assign(&mut self, other: Self) {
        self.0 = self.0.wrapping_sub(other.0);
    }
}

impl std::ops::Add for Sum {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl std::ops::Sub for Sum {
    type Output = Self;

    fn sub(mut self, other: Self) -> Self {
        self -= other;
        self
    }
}

impl Sum {
    /// Returns the hash of one part of a state.
    pub(crate) fn of(part: Part, key: &[u8], value: &[u8]) -> Self {
        Self(xxh3_128_with_seed(value, xxh3_64_with_seed(key, part as u64)))
    }

    /// Returns the sum with these halves.
    pub(crate) fn of_halves((high, low): (u64, u64)) -> Self {
        Self(u128::from(high) << 64 | u128::from(low))
    }

    /// Returns the numbers in which it is kept as of an entry: that of the entry, and its halves.
    pub(crate) fn as_of(self, entry: u64) -> [u64; 3] {
        [entry, (self.0 >> 64) as u64, self.0 as u64]
    }

    /// Returns the hash of a number of finished jobs; nothing for none.
    pub(crate) fn of_finished((state, queue): &(JobState, QueueName), count: u64) -> Self {
        let key = [&[stored::state_code(*state)], queue.as_str().as_bytes()].concat();
        if count == 0 { Self::default() } else { Self::of(Part::Finished, &key, &count.to_be_bytes()) }
    }

    /// Returns the hash of how far a state has come.
    pub(crate) fn of_last(last: Version, time: Timestamp) -> Self {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&last.primary_term.to_be_bytes());
        bytes[8..16].copy_from_slice(&last.seq_no.to_be_bytes());
        bytes[16..].copy_from_slice(&time.as_millis().to_be_bytes());
        Self::of(Part::Last, b"", &bytes)
    }

    /// Returns the hash of the members of a group.
    pub(crate) fn of_members(Membership { seats, identity, version }: &Membership) -> Self {
        let mut sum = Self::default();
        for (number, seat) in seats {
            let address = seat.address.as_deref().unwrap_or_default().as_bytes();
            let value = [&[u8::from(seat.votes)], &seat.directory.to_be_bytes()[..], address].concat();
            sum += Self::of(Part::Members, &number.to_be_bytes(), &value);
        }
        let identity = identity.map_or(0, |identity| identity.0.get());
        sum += Self::of(Part::Members, b"", &[&identity.to_be_bytes()[..], &version.to_be_bytes()].concat());
        sum
    }

    /// Returns the hash of a body that lies apart from its job, by its length: its content is no part of it.
    pub(super) fn of_body(BodyRef { id, bytes }: &BodyRef) -> Self {
        Self::of(Part::Body, id.0.as_bytes(), &bytes.to_be_bytes())
    }

    /// Returns the hash of what a keyspace of the database has under a key; `None` where the keyspace has no documents.
    ///
    /// # Errors
    /// [`Corrupt`] when it is no document.
    pub(crate) fn of_stored(keyspace: &str, key: &[u8], value: &[u8]) -> Result<Option<Self>, Corrupt> {
        let mut buffer = Vec::with_capacity(value.len());
        // An earlier version may have written other bytes for the same document.
        let part = match keyspace {
            "live" | "done" => {
                stored::encode(&stored::decode(&stored::id_of(key)?, value)?, &mut buffer)?;
                Part::Job
            }
            "records" => {
                records::encode(&records::decode(&records::key_of(key)?, value)?, &mut buffer)?;
                Part::Record
            }
            "schedules" => {
                schedules::encode(&schedules::decode(&Index::Id.id_of(key)?, value)?, &mut buffer)?;
                Part::Schedule
            }
            "bodies" => {
                let id = Uuid::from_slice(key).map_err(|error| Corrupt(error.to_string()))?;
                let bytes = u32::try_from(value.len()).map_err(|error| Corrupt(error.to_string()))?;
                return Ok(Some(Self::of_body(&BodyRef { id: BodyId(id), bytes })));
            }
            _ => return Ok(None),
        };
        Ok(Some(Self::of(part, key, &buffer)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::arbitrary;
    use super::super::super::golden::samples;
    use super::*;
    use crate::golden::{Files, check, hex_of};
    use crate::store::{Identity, Place, Seat};

    fn of_all(parts: &[(Part, &[u8], &[u8])]) -> Sum {
        parts.iter().fold(Sum::default(), |sum, (part, key, value)| sum + Sum::of(*part, key, value))
    }

    #[test]
    fn a_sum_depends_on_no_order_and_on_everything_else() {
        let (one, other) = ((Part::Job, &b"a"[..], &b"1"[..]), (Part::Job, &b"b"[..], &b"2"[..]));
        assert_eq!(of_all(&[one, other]), of_all(&[other, one]));
        assert_eq!(of_all(&[one, other]) - of_all(&[other]), of_all(&[one]));
        for different in [
            (Part::Record, &b"a"[..], &b"1"[..]),
            (Part::Job, b"", b"a1"),
            (Part::Job, b"a1", b""),
            (Part::Job, b"a", b"2"),
        ] {
            assert_ne!(of_all(&[one]), of_all(&[different]), "{different:?}");
        }
        assert_ne!(of_all(&[one, one]), Sum::default(), "what is there twice is there");
        let swapped = [(Part::Job, &b"a"[..], &b"2"[..]), (Part::Job, b"b", b"1")];
        assert_ne!(of_all(&[one, other]), of_all(&swapped));
    }

    #[test]
    fn what_is_no_document_has_no_hash() {
        for keyspace in ["recent", "blocks", "schedules_due", "schedules_owners", "meta"] {
            assert!(matches!(Sum::of_stored(keyspace, b"key", b"value"), Ok(None)), "{keyspace}");
        }
        assert!(Sum::of_stored("schedules", b"key", b"value").is_err());
    }

    #[test]
    fn no_count_is_the_same_as_none() {
        let group = (JobState::Failed, QueueName::new("reports").expect("a name"));
        assert_eq!(Sum::of_finished(&group, 0), Sum::default());
        assert_ne!(Sum::of_finished(&group, 1), Sum::of_finished(&group, 2));
    }

    /// Members of two versions compare sums: those of the same documents must stay as they are, or get another form.
    #[test]
    fn the_hashes_of_documents_are_as_recorded() {
        let mut hashes = Vec::new();
        let mut add = |name: String, sum: Sum| hashes.push((name, sum.0.to_be_bytes().to_vec()));
        let mut buffer = Vec::new();
        for (number, head) in samples(&arbitrary::head()).iter().enumerate() {
            stored::encode(head, &mut buffer).expect("writable");
            add(format!("job {number}"), Sum::of(Part::Job, head.job.id.as_str().as_bytes(), &buffer));
        }
        for (number, record) in samples(&arbitrary::record()).iter().enumerate() {
            records::encode(record, &mut buffer).expect("writable");
            add(format!("record {number}"), Sum::of(Part::Record, &records::key(&record.key), &buffer));
        }
        for (number, one) in samples(&arbitrary::schedule()).iter().enumerate() {
            schedules::encode(one, &mut buffer).expect("writable");
            let key = one.schedule.id.as_str().as_bytes();
            let sum = Sum::of(Part::Schedule, key, &buffer);
            assert_eq!(Sum::of_stored("schedules", key, &buffer).expect("a schedule"), Some(sum));
            add(format!("schedule {number}"), sum);
        }
        let reference = BodyRef { id: BodyId(Uuid::from_bytes([7; 16])), bytes: 7 };
        let body = Sum::of_body(&reference);
        assert_eq!(Sum::of_stored("bodies", &[7; 16], b"{\"a\":1}").expect("a body"), Some(body));
        add("body".to_owned(), body);
        let group = (JobState::Failed, QueueName::new("reports").expect("a name"));
        add("finished".to_owned(), Sum::of_finished(&group, 300));
        let version = Version { place: Place::Main, primary_term: 3, seq_no: 400 };
        add("last".to_owned(), Sum::of_last(version, Timestamp::from_millis(1_900_000_000_000)));
        let seat = Seat { votes: true, address: Some("http://10.0.0.8:7400".to_owned()), directory: 9 };
        let identity = std::num::NonZeroU64::new(10).map(Identity);
        let members = Membership { seats: [(4, seat)].into(), identity, version: 6 };
        add("members".to_owned(), Sum::of_members(&members));
        check("embedded/sum", &Files::from([("hashes.txt".to_owned(), hex_of(hashes))]));
    }
}
