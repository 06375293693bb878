//! The short form of a finished job: all that a filter or an order looks at, and nothing else.
//!
//! Summaries lie in a keyspace of their own, newest job first, so that the usual listing reads as many as it shows,
//! and any other search or count reads only these and then the few jobs that it found.

use serde::{Deserialize, Serialize};

use super::Corrupt;
use super::record::{decode_as, encode_as, state_code, state_of};
use crate::clock::Timestamp;
use crate::job::{Job, JobId, Kind, Owner, Priority, QueueName, StateName};
use crate::query::{Filter, GroupField, SortValues};

const FORMAT_V1: u8 = 1;

/// Bytes before the id in a key.
const TIME_BYTES: usize = 8;

/// A finished job, as far as filters and orders go.
#[derive(Debug, PartialEq)]
pub(super) struct Summary<'a> {
    pub(super) id: &'a str,
    pub(super) state: StateName,
    pub(super) queue: &'a str,
    pub(super) kind: &'a str,
    pub(super) owner: Option<&'a str>,
    pub(super) values: SortValues,
}

#[derive(Serialize, Deserialize)]
struct SummaryV1<'a> {
    state: u8,
    priority: i8,
    run_at: i64,
    updated_at: i64,
    finished_at: Option<i64>,
    queue: &'a str,
    kind: &'a str,
    owner: Option<&'a str>,
}

/// The key of a job's summary: newest first, then by id, as the usual listing goes.
pub(super) fn key(job: &Job) -> Vec<u8> {
    let mut key = Vec::with_capacity(TIME_BYTES + job.id.as_str().len());
    key.extend_from_slice(&key_prefix(job.created_at));
    key.extend_from_slice(job.id.as_str().as_bytes());
    key
}

/// What the keys of all jobs created at this time start with.
pub(super) fn key_prefix(created_at: Timestamp) -> [u8; TIME_BYTES] {
    // The sign bit turned makes the bytes rise with the number; all bits turned makes them fall.
    (!(created_at.as_millis().cast_unsigned() ^ (1 << 63))).to_be_bytes()
}

/// Writes the summary over what `buffer` held.
pub(super) fn encode(job: &Job, buffer: &mut Vec<u8>) -> Result<(), Corrupt> {
    let summary = SummaryV1 {
        state: state_code(job.state.name()),
        priority: job.spec.priority.get(),
        run_at: job.run_at.as_millis(),
        updated_at: job.updated_at.as_millis(),
        finished_at: job.finished_at().map(Timestamp::as_millis),
        queue: job.spec.queue.as_str(),
        kind: job.spec.kind.as_str(),
        owner: job.spec.owner.as_ref().map(Owner::as_str),
    };
    encode_as(FORMAT_V1, &summary, buffer)
}

/// Reads a summary without copying anything.
pub(super) fn decode<'a>(key: &'a [u8], value: &'a [u8]) -> Result<Summary<'a>, Corrupt> {
    let broken = |why: String| Corrupt(format!("the summary of a finished job: {why}"));
    let (time, id) = key.split_first_chunk::<TIME_BYTES>().ok_or_else(|| broken("its key is too short".to_owned()))?;
    let created_at = (!u64::from_be_bytes(*time) ^ (1 << 63)).cast_signed();
    let id = std::str::from_utf8(id).map_err(|error| broken(error.to_string()))?;
    let record: SummaryV1<'a> = decode_as(FORMAT_V1, value).map_err(broken)?;
    Ok(Summary {
        id,
        state: state_of(record.state).map_err(broken)?,
        queue: record.queue,
        kind: record.kind,
        owner: record.owner,
        values: SortValues {
            created_at: Timestamp::from_millis(created_at),
            updated_at: Timestamp::from_millis(record.updated_at),
            run_at: Timestamp::from_millis(record.run_at),
            finished_at: record.finished_at.map(Timestamp::from_millis),
            // A job that the monitor still has to do with is among the live ones.
            watch_at: None,
            priority: Priority::new(i64::from(record.priority))
                .ok_or_else(|| broken(format!("the priority {} is out of bounds", record.priority)))?,
        },
    })
}

impl Summary<'_> {
    /// [`Filter::matches`], for a finished job.
    pub(super) fn matches(&self, filter: &Filter) -> bool {
        !filter.only_live()
            && (filter.states.is_empty() || filter.states.contains(&self.state))
            && (filter.queues.is_empty() || filter.queues.iter().map(QueueName::as_str).any(|it| it == self.queue))
            && (filter.kinds.is_empty() || filter.kinds.iter().map(Kind::as_str).any(|it| it == self.kind))
            && (filter.owners.is_empty() || filter.owners.iter().map(Owner::as_str).any(|it| Some(it) == self.owner))
            && filter.run_at_most.is_none_or(|latest| self.values.run_at <= latest)
            && filter.run_after.is_none_or(|earliest| self.values.run_at > earliest)
            && filter.finished_at_most.is_none_or(|latest| self.values.finished_at.is_some_and(|at| at <= latest))
            && filter.finished_after.is_none_or(|earliest| self.values.finished_at.is_some_and(|at| at > earliest))
            && filter.updated_after.is_none_or(|earliest| self.values.updated_at > earliest)
    }

    /// [`GroupField::value`].
    pub(super) fn group(&self, field: GroupField) -> Option<&str> {
        match field {
            GroupField::State => Some(self.state.as_str()),
            GroupField::Queue => Some(self.queue),
            GroupField::Kind => Some(self.kind),
            GroupField::Owner => self.owner,
        }
    }

    /// The id, for the few that are wanted.
    pub(super) fn job_id(&self) -> Result<JobId, Corrupt> {
        JobId::new(self.id).map_err(|error| Corrupt(format!("the summary of a finished job: its id {error}")))
    }
}

#[cfg(test)]
mod tests;
