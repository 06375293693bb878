//! An entry of the log: what a batch changes.
//!
//! ```text
//! entry  = term:varint batch?                     only the term when the entry begins it
//! batch  = last:varint item*                      last: the number of the batch's last write
//! item   = 0 job number:varint delta              a job that was written; the number is `last` minus the write's
//!        | 1 job                                  a job that was removed
//!        | 2 body:16 text | 3 body:16             a body that was written, or dropped
//!        | 4 record number:varint text | 5 record a record that was written, or removed
//!        | 6 number:varint text         a schedule that was written, as JSON, which has its id
//!        | 7 text                       the id of a schedule that was removed
//!        | 8 text number:varint rest    a schedule that was written with the definition that it had
//!        | 9 text                       the members of the group, what they have acknowledged, and the sum over the
//!                                       state of the leader after an entry, as JSON: alone, and `last` is 0
//! job    = 0 uuid:16 | 1 text
//! ```
//!
//! Whoever decided the batch knew the whole state, so that an entry says what has happened and not what was asked for:
//! who reads it decides nothing, and comes to the same state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::delta::{self, Delta};
use super::equality::compared::SumAt;
use super::error::Corrupt;
use super::machine::{Change, Changes, Effects, Heads};
use super::opened::Acknowledged;
use super::schedules::Rest;
use super::{records, schedules, stored};
use crate::job::{BodyId, JobId, Json, ScheduleId};
use crate::schedule::Schedule;
use crate::store::{Membership, Place, Record, RecordKey, StoredSchedule, Version, Versioned};

/// What an item is about, and what has become of it.
const JOB: u8 = 0;
const JOB_REMOVED: u8 = 1;
const BODY: u8 = 2;
const BODY_DROPPED: u8 = 3;
const RECORD: u8 = 4;
const RECORD_REMOVED: u8 = 5;
const SCHEDULE: u8 = 6;
const SCHEDULE_REMOVED: u8 = 7;
const SCHEDULE_REST: u8 = 8;
const MEMBERS: u8 = 9;

/// The `last` of an entry that writes no document.
const NO_WRITE: u64 = 0;

/// How the id of a job begins: one that is a UUID takes half the bytes.
const UUID: u8 = 0;
const TEXT: u8 = 1;

/// Returns the entry of what a batch changes.
///
/// # Errors
/// [`Corrupt`] when a document cannot be written.
pub(super) fn encode(effects: &Effects) -> Result<Vec<u8>, Corrupt> {
    let Version { primary_term, seq_no: last, .. } = effects.last;
    let mut entry = Vec::new();
    let buffer = &mut entry;
    stored::append(&(primary_term, last), buffer)?;
    for (id, change) in &effects.heads {
        put_job(id, change, last, buffer)?;
    }
    for (id, body) in &effects.bodies {
        buffer.push(if body.is_some() { BODY } else { BODY_DROPPED });
        buffer.extend_from_slice(id.0.as_bytes());
        if let Some(body) = body {
            stored::append(&body.as_str(), buffer)?;
        }
    }
    for (key, change) in &effects.records {
        put_record(key, change, last, buffer)?;
    }
    for (id, change) in &effects.schedules {
        put_schedule(id, change, last, buffer)?;
    }
    Ok(entry)
}

/// Appends the item of a job, in an entry whose last write has this number.
pub(super) fn put_job(id: &JobId, change: &Change<Versioned>, last: u64, buffer: &mut Vec<u8>) -> Result<(), Corrupt> {
    let Some(after) = &change.after else {
        buffer.push(JOB_REMOVED);
        return put_id(id, buffer);
    };
    buffer.push(JOB);
    put_id(id, buffer)?;
    stored::append(&last.wrapping_sub(after.version.seq_no), buffer)?;
    delta::encode(change.before.as_ref().map(|before| &*before.job), &after.job, buffer)
}

/// Appends the item of a record, as [`put_job`] does.
pub(super) fn put_record(
    key: &RecordKey,
    change: &Change<Record>,
    last: u64,
    buffer: &mut Vec<u8>,
) -> Result<(), Corrupt> {
    buffer.push(if change.after.is_some() { RECORD } else { RECORD_REMOVED });
    stored::append(&records::key(key), buffer)?;
    let Some(after) = &change.after else { return Ok(()) };
    stored::append(&(last.wrapping_sub(after.version.seq_no), after.body.as_str()), buffer)
}

/// Appends the item of a schedule, as [`put_job`] does.
pub(super) fn put_schedule(
    id: &ScheduleId,
    change: &Change<StoredSchedule>,
    last: u64,
    buffer: &mut Vec<u8>,
) -> Result<(), Corrupt> {
    let Some(after) = &change.after else {
        buffer.push(SCHEDULE_REMOVED);
        return stored::append(&id.as_str(), buffer);
    };
    let number = last.wrapping_sub(after.version.seq_no);
    match Rest::since(change.before.as_ref().map(|before| &*before.schedule), &after.schedule)? {
        Some(rest) => {
            buffer.push(SCHEDULE_REST);
            stored::append(&(id.as_str(), number, rest), buffer)
        }
        None => {
            buffer.push(SCHEDULE);
            stored::append(&(number, schedules::text(&after.schedule)?.as_str()), buffer)
        }
    }
}

/// Returns the entry that says who the members of the group are from then on, and more, which earlier versions pass
/// over.
///
/// # Errors
/// [`Corrupt`] when it cannot be written.
pub(super) fn encode_members(term: u64, members: &Membership, note: &Note) -> Result<Vec<u8>, Corrupt> {
    let mut entry = Vec::new();
    stored::append(&(term, NO_WRITE), &mut entry)?;
    entry.push(MEMBERS);
    let text =
        serde_json::to_string(&Group { members, note }).map_err(|error| Corrupt(format!("the members: {error}")))?;
    stored::append(&text, &mut entry)?;
    Ok(entry)
}

/// What an entry says of the group, as it is written.
#[derive(Serialize)]
struct Group<'e> {
    #[serde(flatten)]
    members: &'e Membership,
    #[serde(flatten)]
    note: &'e Note,
}

/// What an entry says beside the members of the group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// What the members of these numbers have acknowledged.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) acknowledged: BTreeMap<u64, Acknowledged>,
    /// The sum over the state of the leader after an entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sum: Option<SumAt>,
}

/// Returns whether this is an entry that says who the members of the group are.
pub(super) fn has_members(entry: &[u8]) -> bool {
    let mut rest = entry;
    stored::take::<(u64, u64)>(&mut rest).is_ok_and(|(_, last)| last == NO_WRITE) && rest.first() == Some(&MEMBERS)
}

fn put_id(id: &JobId, buffer: &mut Vec<u8>) -> Result<(), Corrupt> {
    // Only one that is spelled as it would be spelled again.
    match Uuid::try_parse(id.as_str()).ok().filter(|uuid| JobId::of_uuid(*uuid) == *id) {
        Some(uuid) => {
            buffer.push(UUID);
            buffer.extend_from_slice(uuid.as_bytes());
            Ok(())
        }
        None => {
            buffer.push(TEXT);
            stored::append(&id.as_str(), buffer)
        }
    }
}

/// An entry as it is read.
#[derive(Debug)]
pub(super) struct Entry {
    /// The term of the group in which it was proposed.
    pub(super) term: u64,
    /// The number of the batch's last write, where there is a batch.
    pub(super) last: Option<u64>,
    items: Vec<Item>,
    /// The members of the group from then on, where the entry says so.
    pub(super) members: Option<Membership>,
    /// What the entry says beside them.
    pub(super) note: Note,
}

#[derive(Debug)]
enum Item {
    Job(JobId, u64, Delta),
    JobRemoved(JobId),
    Body(BodyId, Option<Json>),
    Record(RecordKey, u64, Json),
    RecordRemoved(RecordKey),
    Schedule(u64, Arc<Schedule>),
    ScheduleRest(ScheduleId, u64, Rest),
    ScheduleRemoved(ScheduleId),
}

impl Entry {
    /// Reads an entry of the log from its bytes.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut reader = Reader { rest: bytes };
        let (term, items) = (reader.read()?, Vec::new());
        let mut entry = Self { term, last: None, items, members: None, note: Note::default() };
        if reader.rest.is_empty() {
            return Ok(entry);
        }
        let last = reader.read()?;
        match reader.rest.split_first() {
            Some((&MEMBERS, rest)) if last == NO_WRITE => {
                reader.rest = rest;
                let (text, failed) = (reader.read::<String>()?, |error| format!("the members: {error}"));
                entry.members = Some(serde_json::from_str(&text).map_err(failed)?);
                entry.note = serde_json::from_str(&text).map_err(failed)?;
            }
            _ => {
                entry.last = Some(last);
                while let Some((&tag, rest)) = reader.rest.split_first() {
                    reader.rest = rest;
                    entry.items.push(reader.item(tag, last)?);
                }
            }
        }
        Ok(entry)
    }

    /// Returns what the entry changes in the state that `heads` shows, where the last write has the number `last`.
    ///
    /// # Errors
    /// Why it cannot be the next entry after that state.
    pub(super) fn effects(self, heads: &impl Heads, last: u64) -> Result<Effects, String> {
        let seq_no = self.last.unwrap_or(last);
        let last = Version { place: Place::Main, primary_term: self.term, seq_no };
        let version = |seq_no| Version { seq_no, ..last };
        let (mut jobs, mut records, mut schedules) = (Changes::default(), Changes::default(), Changes::default());
        let (mut bodies, mut left) = (BTreeMap::new(), BTreeSet::new());
        let job_before = |id: &JobId, left: &mut BTreeSet<_>| {
            let before = heads.head(id).map_err(|error| error.to_string())?;
            if let Some(before) = &before {
                left.extend(heads.row(before).map_err(|error| error.to_string())?);
            }
            Ok::<_, String>(before)
        };
        let record_before = |key: &RecordKey| heads.record(key).map_err(|error| error.to_string());
        let schedule_before = |id: &ScheduleId| heads.schedule(id).map_err(|error| error.to_string());
        for item in self.items {
            match item {
                Item::Job(id, seq_no, delta) => {
                    let before = job_before(&id, &mut left)?;
                    let job = Arc::new(delta.applied_to(before.as_ref().map(|before| &*before.job))?);
                    jobs.insert(id, Change { before, after: Some(Versioned { job, version: version(seq_no) }) });
                }
                Item::JobRemoved(id) => {
                    let before = job_before(&id, &mut left)?;
                    jobs.insert(id, Change { before, after: None });
                }
                Item::Body(id, body) => drop(bodies.insert(id, body)),
                Item::Record(key, seq_no, body) => {
                    let after = Some(Record { key: key.clone(), body, version: version(seq_no) });
                    records.insert(key.clone(), Change { before: record_before(&key)?, after });
                }
                Item::RecordRemoved(key) => {
                    records.insert(key.clone(), Change { before: record_before(&key)?, after: None });
                }
                Item::Schedule(seq_no, schedule) => {
                    let (id, version) = (schedule.id.clone(), version(seq_no));
                    let before = schedule_before(&id)?;
                    schedules.insert(id, Change { before, after: Some(StoredSchedule { schedule, version }) });
                }
                Item::ScheduleRest(id, seq_no, rest) => {
                    let before = schedule_before(&id)?;
                    let missing = || format!("the schedule {id} that it changes does not exist");
                    let schedule = rest.applied_to(&before.as_ref().ok_or_else(missing)?.schedule)?;
                    let after = StoredSchedule { schedule: Arc::new(schedule), version: version(seq_no) };
                    schedules.insert(id, Change { before, after: Some(after) });
                }
                Item::ScheduleRemoved(id) => {
                    let before = schedule_before(&id)?;
                    schedules.insert(id, Change { before, after: None });
                }
            }
        }
        Ok(Effects { heads: jobs, left, bodies, records, schedules, last })
    }
}

struct Reader<'b> {
    rest: &'b [u8],
}

impl Reader<'_> {
    fn item(&mut self, tag: u8, last: u64) -> Result<Item, String> {
        Ok(match tag {
            JOB => {
                let id = self.id()?;
                let seq_no = last.wrapping_sub(self.read()?);
                let (delta, rest) = Delta::decode(&id, self.rest).map_err(|why| format!("the job {id}: {why}"))?;
                self.rest = rest;
                Item::Job(id, seq_no, delta)
            }
            JOB_REMOVED => Item::JobRemoved(self.id()?),
            BODY => Item::Body(BodyId(self.uuid()?), Some(self.read()?)),
            BODY_DROPPED => Item::Body(BodyId(self.uuid()?), None),
            RECORD => {
                let key = self.key()?;
                let (number, body): (u64, Json) = self.read()?;
                Item::Record(key, last.wrapping_sub(number), body)
            }
            RECORD_REMOVED => Item::RecordRemoved(self.key()?),
            SCHEDULE => {
                let (number, text): (u64, String) = self.read()?;
                let schedule = schedules::parse(&text).map_err(|why| format!("a schedule: {why}"))?;
                Item::Schedule(last.wrapping_sub(number), schedule)
            }
            SCHEDULE_REST => {
                let (id, number, rest) = self.read()?;
                Item::ScheduleRest(id, last.wrapping_sub(number), rest)
            }
            SCHEDULE_REMOVED => Item::ScheduleRemoved(self.read()?),
            other => return Err(format!("it has an item of the unknown kind {other}")),
        })
    }

    fn read<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        stored::take(&mut self.rest)
    }

    fn uuid(&mut self) -> Result<Uuid, String> {
        let (uuid, rest) = self.rest.split_first_chunk::<16>().ok_or("it is cut short")?;
        self.rest = rest;
        Ok(Uuid::from_bytes(*uuid))
    }

    fn id(&mut self) -> Result<JobId, String> {
        match self.read::<u8>()? {
            UUID => Ok(JobId::of_uuid(self.uuid()?)),
            TEXT => self.read(),
            other => Err(format!("the id of a job begins with {other}")),
        }
    }

    fn key(&mut self) -> Result<RecordKey, String> {
        records::key_of(&self.read::<Vec<u8>>()?).map_err(|error| error.0)
    }
}

#[cfg(test)]
mod tests;
