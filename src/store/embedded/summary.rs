//! The short form of a finished job: what a block keeps of it, and what the first format kept in a keyspace of its own,
//! newest job first, which is still read to be taken over.

use serde::Deserialize;

use super::Corrupt;
use super::record::{decode_as, state_of};
use crate::clock::Timestamp;
use crate::job::{Job, JobState, Owner, Priority};
use crate::query::SortValues;

const FORMAT_V1: u8 = 1;

/// Bytes before the id in a key.
const TIME_BYTES: usize = 8;

/// A finished job, as far as filters and orders go.
#[derive(Debug, PartialEq)]
pub(super) struct Summary<'a> {
    pub(super) id: &'a str,
    pub(super) state: JobState,
    pub(super) queue: &'a str,
    pub(super) kind: &'a str,
    pub(super) owner: Option<&'a str>,
    pub(super) values: SortValues,
}

#[derive(Deserialize)]
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

impl<'a> Summary<'a> {
    /// That of a job.
    pub(super) fn of(job: &'a Job) -> Self {
        Self {
            id: job.id.as_str(),
            state: job.state.name(),
            queue: job.spec.queue.as_str(),
            kind: job.spec.kind.as_str(),
            owner: job.spec.owner.as_ref().map(Owner::as_str),
            values: SortValues::from(job),
        }
    }
}

#[cfg(test)]
mod tests;
