//! How a [`StoredSchedule`] lies on disk, and by which keys it is found.
//!
//! It lies there as a job does ([`super::stored`]), with the schedule as JSON for its content: the fields that a
//! schedule does not have are left out of its serde form, which only a format that names its fields can read. The text
//! has the id as well, which must be that of the key.
//!
//! The log has one that was created or defined anew in the same way, and of any other all but its definition and its
//! creator ([`Rest`]): a schedule goes on whenever it is due, and its definition may have the body of a call.
//!
//! The keys of each [`Index`] are in the order in which schedules are listed by it, and each has the schedule's id, so
//! that no two schedules share one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::delta::is_same;
use super::error::Corrupt;
use super::stored::{decode_as, encode_as};
use crate::clock::Timestamp;
use crate::job::{Owner, ScheduleId};
use crate::schedule::{Schedule, SchedulePause};
use crate::store::StoredSchedule;

/// What schedules are found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Index {
    /// The id. The value is the schedule.
    Id,
    /// When it has to be looked at, and then the id. One that need not be, such as one that is paused, is not in it.
    Due,
    /// The owner, a zero byte, which no name has, and the id. One without an owner is not in it.
    Owner,
}

/// How many bytes of a key the time takes.
const TIME_BYTES: usize = 8;

impl Index {
    pub(super) const ALL: [Self; 3] = [Self::Id, Self::Due, Self::Owner];

    /// Returns the key under which a schedule is found; `None` when it is not found by this.
    pub(super) fn key(self, schedule: &Schedule) -> Option<Vec<u8>> {
        let id = schedule.id.as_str().as_bytes();
        match self {
            Self::Id => Some(id.to_vec()),
            Self::Due => schedule.load_at().map(|time| [&time_key(time)[..], id].concat()),
            Self::Owner => schedule.definition.owner.as_ref().map(|owner| owner_key(owner, Some(&schedule.id))),
        }
    }

    /// Returns the id in a key.
    ///
    /// # Errors
    /// [`Corrupt`] when it has none.
    pub(super) fn id_of(self, key: &[u8]) -> Result<ScheduleId, Corrupt> {
        let id = match self {
            Self::Id => Some(key),
            Self::Due => key.get(TIME_BYTES..),
            Self::Owner => key.iter().position(|byte| *byte == 0).map(|end| &key[end + 1..]),
        };
        let id = id.and_then(|id| std::str::from_utf8(id).ok()).and_then(|id| ScheduleId::new(id).ok());
        id.ok_or_else(|| Corrupt(format!("the key {:?} of a schedule", key.escape_ascii().to_string())))
    }
}

/// The keys of a schedule, in the order of [`Index::ALL`].
pub(super) type Keys = [Option<Vec<u8>>; 3];

/// Returns all keys of a schedule.
pub(super) fn keys(schedule: &Schedule) -> Keys {
    Index::ALL.map(|index| index.key(schedule))
}

/// Returns what the keys of [`Index::Due`] begin with at a time: the order of the bytes is that of the times.
pub(super) fn time_key(time: Timestamp) -> [u8; TIME_BYTES] {
    (time.as_millis().cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

/// Returns the key of an owner's schedule; without an id, what all keys of the owner begin with.
pub(super) fn owner_key(owner: &Owner, id: Option<&ScheduleId>) -> Vec<u8> {
    let id = id.map_or("", ScheduleId::as_str);
    [owner.as_str().as_bytes(), &[0], id.as_bytes()].concat()
}

/// Returns the JSON of a schedule.
///
/// # Errors
/// [`Corrupt`] when it cannot be written.
pub(super) fn text(schedule: &Schedule) -> Result<String, Corrupt> {
    let written = serde_json::to_string(schedule);
    written.map_err(|error| Corrupt(format!("the schedule {} cannot be written: {error}", schedule.id)))
}

/// Reads the JSON of a schedule.
///
/// # Errors
/// Why it is none.
pub(super) fn parse(text: &str) -> Result<Arc<Schedule>, String> {
    serde_json::from_str(text).map(Arc::new).map_err(|error| error.to_string())
}

/// All of a schedule but its id, its definition and its creator. A field that is added to the schedule does not compile
/// until it has its place here.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Rest {
    revision: u64,
    period_since: Timestamp,
    paused: Option<SchedulePause>,
    created_at: Timestamp,
    updated_at: Timestamp,
    /// How far the schedule has come, as JSON for the same reason as the whole.
    course: String,
}

impl Rest {
    /// Returns what `after` has beside its definition and its creator, if these are those that `before` has.
    ///
    /// # Errors
    /// [`Corrupt`] when it cannot be written.
    pub(super) fn since(before: Option<&Schedule>, after: &Schedule) -> Result<Option<Self>, Corrupt> {
        let Schedule { id, definition, revision, period_since, paused, created_at, created_by, updated_at, course } =
            after;
        let goes_on = |before: &Schedule| is_same(&before.definition, definition) && before.created_by == *created_by;
        if !before.is_some_and(goes_on) {
            return Ok(None);
        }
        let course = serde_json::to_string(course);
        Ok(Some(Self {
            revision: *revision,
            period_since: *period_since,
            paused: paused.clone(),
            created_at: *created_at,
            updated_at: *updated_at,
            course: course.map_err(|error| Corrupt(format!("the schedule {id} cannot be written: {error}")))?,
        }))
    }

    /// Returns the schedule with this, and the definition and the creator that it had before.
    ///
    /// # Errors
    /// Why it is none.
    pub(super) fn applied_to(self, before: &Schedule) -> Result<Schedule, String> {
        let Self { revision, period_since, paused, created_at, updated_at, course } = self;
        let course = serde_json::from_str(&course).map_err(|error| format!("the schedule {}: {error}", before.id))?;
        let Schedule { id, definition, created_by, .. } = before.clone();
        Ok(Schedule { id, definition, revision, period_since, paused, created_at, created_by, updated_at, course })
    }
}

/// Writes `stored` over what `buffer` held.
pub(super) fn encode(stored: &StoredSchedule, buffer: &mut Vec<u8>) -> Result<(), Corrupt> {
    encode_as(stored.version, text(&stored.schedule)?.as_str(), buffer)
}

/// Reads the schedule `id`.
pub(super) fn decode(id: &ScheduleId, bytes: &[u8]) -> Result<StoredSchedule, Corrupt> {
    let broken = |why: String| Corrupt(format!("the schedule {id}: {why}"));
    let (version, text) = decode_as::<&str>(bytes).map_err(broken)?;
    let schedule = parse(text).map_err(broken)?;
    match schedule.id == *id {
        true => Ok(StoredSchedule { schedule, version }),
        false => Err(broken(format!("it is the schedule {}", schedule.id))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;

    use super::super::arbitrary;
    use super::*;

    fn encoded(stored: &StoredSchedule) -> Vec<u8> {
        let mut buffer = b"what was there before".to_vec();
        encode(stored, &mut buffer).expect("every schedule can be written");
        buffer
    }

    proptest! {
        #[test]
        fn every_schedule_is_read_as_it_was_written(stored in arbitrary::schedule()) {
            let read = decode(&stored.schedule.id, &encoded(&stored));
            prop_assert_eq!(read.map_err(|Corrupt(what)| TestCaseError::fail(what))?, stored);
        }

        #[test]
        fn each_key_has_the_id(stored in arbitrary::schedule()) {
            for (index, key) in Index::ALL.into_iter().zip(keys(&stored.schedule)) {
                let id = key.map(|key| index.id_of(&key).map_err(|Corrupt(what)| TestCaseError::fail(what)));
                prop_assert!(id.transpose()?.is_none_or(|id| id == stored.schedule.id));
            }
        }

        #[test]
        fn keys_are_in_the_order_of_the_lists(one in arbitrary::schedule(), other in arbitrary::schedule()) {
            let (one, other) = (one.schedule, other.schedule);
            if let (Some(first), Some(second)) = (Index::Due.key(&one), Index::Due.key(&other)) {
                prop_assert_eq!(first.cmp(&second), (one.load_at(), &one.id).cmp(&(other.load_at(), &other.id)));
            }
            let owned = |schedule: &Schedule| schedule.definition.owner.clone();
            if let (Some(first), Some(second)) = (Index::Owner.key(&one), Index::Owner.key(&other)) {
                prop_assert_eq!(first.cmp(&second), (owned(&one), &one.id).cmp(&(owned(&other), &other.id)));
            }
        }

        #[test]
        fn a_schedule_cut_short_or_prolonged_is_reported(
            stored in arbitrary::schedule(),
            cut in any::<prop::sample::Index>(),
        ) {
            let (id, mut bytes) = (&stored.schedule.id, encoded(&stored));
            prop_assert!(decode(id, &bytes[..cut.index(bytes.len())]).is_err());
            bytes.push(0);
            prop_assert!(decode(id, &bytes).is_err());
        }
    }

    #[test]
    fn a_schedule_under_the_key_of_another_is_reported() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let stored = arbitrary::schedule().new_tree(&mut runner).expect("a schedule").current();
        let other = ScheduleId::new("another").expect("an id");
        let Err(Corrupt(what)) = decode(&other, &encoded(&stored)) else { panic!("it was read") };
        assert!(what.contains("the schedule another"), "{what}");
    }

    #[test]
    fn what_is_no_schedules_key_is_reported() {
        let cases = [
            (Index::Id, &b""[..]),
            (Index::Id, b"\xff"),
            (Index::Due, b"1234567"),
            (Index::Due, b"12345678"),
            (Index::Owner, b"owner"),
            (Index::Owner, b"owner\0"),
        ];
        for (index, key) in cases {
            assert!(index.id_of(key).is_err(), "{index:?} {key:?}");
        }
    }
}
