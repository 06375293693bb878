//! How the change of a job lies in the log: what has become different, and not the job again.
//!
//! A job that is new, or was finished before, is written whole. Of any other only the fields that differ are written;
//! of the history only what was added, and of a lease that was prolonged only its times. So a heartbeat takes some 40
//! bytes where the job takes several hundred.
//!
//! What is left out is the same bit by bit: the members compare sums over the bytes of documents, and `==` takes a zero
//! for its negative.
//!
//! A field that is added to the job does not compile until it has its place in [`Fields`].

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::Corrupt;
use super::stored::{self, BorrowedJob, More, OwnedJob};
use crate::clock::Timestamp;
use crate::job::{Attempt, Body, Fence, History, HistoryEntry, Hold, Job, JobError, JobId, Notice, Running, State};

/// Which parts of a job a change has.
#[derive(Clone, Copy, Default)]
struct Parts(u16);

impl Parts {
    const WHOLE: u16 = 1;
    const PAYLOAD: u16 = 1 << 1;
    const STATE: u16 = 1 << 2;
    /// The times of a lease that is otherwise the same.
    const LEASE: u16 = 1 << 3;
    const RUN_AT: u16 = 1 << 4;
    const EXPIRES_AT: u16 = 1 << 5;
    const ATTEMPT: u16 = 1 << 6;
    const FENCE: u16 = 1 << 7;
    const ERROR: u16 = 1 << 8;
    /// The entries that were added to the history.
    const ADDED: u16 = 1 << 9;
    const HISTORY: u16 = 1 << 10;
    const OUTBOX: u16 = 1 << 11;
    const CREATED_AT: u16 = 1 << 12;
    const STARTED_AT: u16 = 1 << 13;
    const HOLD: u16 = 1 << 14;
    const ALL: u16 = (1 << 15) - 1;
    /// What follows a whole job that has it.
    const MORE: u16 = 1 << 15;

    const fn has(self, part: u16) -> bool {
        self.0 & part != 0
    }
}

/// Appends the change from `before` to `after`, versions of the same job, to `buffer`.
///
/// # Errors
/// [`Corrupt`] when the job cannot be written.
pub(super) fn encode(before: Option<&Job>, after: &Job, buffer: &mut Vec<u8>) -> Result<(), Corrupt> {
    let mut writer = Writer { parts: Parts::default(), place: buffer.len(), buffer };
    writer.buffer.extend_from_slice(&[0; 2]);
    // A finished one may be on disk only, where nobody looks for it who reads the log.
    let is_same_spec = |before: &Job| Arc::ptr_eq(&before.spec, &after.spec) || before.spec.is_exactly(&after.spec);
    let is_base = |before: &&Job| !before.is_settled() && is_same_spec(before);
    match before.filter(is_base) {
        Some(before) => writer.put_difference(before, after)?,
        None => {
            writer.parts.0 = Parts::WHOLE;
            writer.append(&BorrowedJob(after))?;
            if let Some(more) = More::of(after) {
                writer.put(Parts::MORE, &more)?;
            }
        }
    }
    let (place, parts) = (writer.place, writer.parts.0);
    writer.buffer[place..place + 2].copy_from_slice(&parts.to_le_bytes());
    Ok(())
}

/// Returns whether two parts of documents are the same, which nearly always is one that is shared.
pub(super) fn is_same<T: PartialEq>(one: &Arc<T>, other: &Arc<T>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

struct Writer<'a> {
    parts: Parts,
    /// Where the parts are said.
    place: usize,
    buffer: &'a mut Vec<u8>,
}

impl Writer<'_> {
    fn append(&mut self, value: &impl Serialize) -> Result<(), Corrupt> {
        stored::append(value, self.buffer)
    }

    fn put<T: Serialize>(&mut self, part: u16, value: &T) -> Result<(), Corrupt> {
        self.parts.0 |= part;
        self.append(value)
    }

    fn put_changed<T: Serialize + PartialEq>(&mut self, part: u16, before: &T, after: &T) -> Result<(), Corrupt> {
        if before == after { Ok(()) } else { self.put(part, after) }
    }

    fn put_difference(&mut self, before: &Job, after: &Job) -> Result<(), Corrupt> {
        let Job {
            id: _,
            spec: _,
            payload,
            state,
            run_at,
            expires_at,
            attempt,
            fence,
            error,
            history,
            outbox,
            created_at,
            updated_at,
            started_at,
            hold,
        } = after;
        self.append(updated_at)?;
        self.put_changed(Parts::PAYLOAD, &before.payload, payload)?;
        match prolonged(&before.state, state) {
            Some(times) => self.put(Parts::LEASE, &LeaseTimes::since(*updated_at, times))?,
            None if before.state.is_exactly(state) => {}
            None => self.put(Parts::STATE, state)?,
        }
        self.put_changed(Parts::RUN_AT, &before.run_at, run_at)?;
        self.put_changed(Parts::EXPIRES_AT, &before.expires_at, expires_at)?;
        self.put_changed(Parts::ATTEMPT, &before.attempt, attempt)?;
        self.put_changed(Parts::FENCE, &before.fence, fence)?;
        self.put_changed(Parts::ERROR, &before.error, error)?;
        match added(&before.history, history) {
            Some([]) => {}
            Some(added) => self.put(Parts::ADDED, &added)?,
            None => self.put(Parts::HISTORY, history)?,
        }
        self.put_changed(Parts::OUTBOX, &before.outbox, outbox)?;
        self.put_changed(Parts::CREATED_AT, &before.created_at, created_at)?;
        self.put_changed(Parts::STARTED_AT, &before.started_at, started_at)?;
        self.put_changed(Parts::HOLD, &before.hold, hold)
    }
}

/// The times of a lease after a heartbeat, in milliseconds: the heartbeat after the job's last write, and the end after
/// the heartbeat.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct LeaseTimes(i64, i64);

impl LeaseTimes {
    fn since(updated_at: Timestamp, (heartbeat_at, expires_at): (Timestamp, Timestamp)) -> Self {
        let heartbeat = heartbeat_at.as_millis().wrapping_sub(updated_at.as_millis());
        Self(heartbeat, expires_at.as_millis().wrapping_sub(heartbeat_at.as_millis()))
    }

    fn after(self, updated_at: Timestamp) -> (Timestamp, Timestamp) {
        let heartbeat_at = updated_at.as_millis().wrapping_add(self.0);
        let expires_at = heartbeat_at.wrapping_add(self.1);
        (Timestamp::from_millis(heartbeat_at), Timestamp::from_millis(expires_at))
    }
}

/// Returns the times of the heartbeat and of the lease's end, if nothing else of a running job's state has changed.
fn prolonged(before: &State, after: &State) -> Option<(Timestamp, Timestamp)> {
    let (State::Running(before), State::Running(after)) = (before, after) else { return None };
    let times = (after.lease.heartbeat_at, after.lease.expires_at);
    let is_same = before.lease.worker_id == after.lease.worker_id && with_times(before, times).is_exactly(after);
    (before != after && is_same).then_some(times)
}

fn with_times(running: &Running, (heartbeat_at, expires_at): (Timestamp, Timestamp)) -> Running {
    let mut running = running.clone();
    (running.lease.heartbeat_at, running.lease.expires_at) = (heartbeat_at, expires_at);
    running
}

/// Returns the entries that make `after` of `before` when they are added; `None` when there are none that do.
fn added<'a>(before: &History, after: &'a History) -> Option<&'a [HistoryEntry]> {
    let count = after.len().checked_sub(before.len())?;
    let added = after.entries().get(after.entries().len().checked_sub(count)?..)?;
    // Without a fold, which is so in nearly every job, nothing needs to be copied.
    let kept = &after.entries()[..after.entries().len() - count];
    let is_so = if after.folded() == before.folded() {
        kept == before.entries()
    } else {
        with_entries(before, added.iter().cloned()) == *after
    };
    is_so.then_some(added)
}

fn with_entries(history: &History, entries: impl IntoIterator<Item = HistoryEntry>) -> History {
    let mut history = history.clone();
    entries.into_iter().for_each(|entry| history.push(entry));
    history
}

/// A change as the log has it, which can be read without the job.
#[derive(Debug)]
pub(super) enum Delta {
    /// The job as it is after the change.
    Whole(Box<Job>),
    /// The fields that differ.
    Fields(Box<Fields>),
}

/// The fields of a job that a change has; what is `None` stays.
#[derive(Debug)]
pub(super) struct Fields {
    updated_at: Timestamp,
    payload: Option<Body>,
    state: Option<State>,
    lease: Option<(Timestamp, Timestamp)>,
    run_at: Option<Timestamp>,
    expires_at: Option<Option<Timestamp>>,
    attempt: Option<Attempt>,
    fence: Option<Fence>,
    error: Option<Option<JobError>>,
    added: Option<Vec<HistoryEntry>>,
    history: Option<History>,
    outbox: Option<Vec<Notice>>,
    created_at: Option<Timestamp>,
    started_at: Option<Option<Timestamp>>,
    hold: Option<Option<Box<Hold>>>,
}

impl Delta {
    /// Reads a change of the job `id`, and returns what follows it.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub(super) fn decode<'b>(id: &JobId, bytes: &'b [u8]) -> Result<(Self, &'b [u8]), String> {
        let (parts, rest) = bytes.split_first_chunk::<2>().ok_or("it is cut short")?;
        let parts = Parts(u16::from_le_bytes(*parts));
        let mut reader = Reader { parts, rest };
        let known = if parts.has(Parts::WHOLE) { Parts::WHOLE | Parts::MORE } else { Parts::ALL };
        if parts.0 & !known != 0 {
            return Err(format!("it has parts that this version does not know: {:#x}", parts.0));
        }
        let change = if parts.has(Parts::WHOLE) {
            let OwnedJob(mut job) = reader.read()?;
            if parts.has(Parts::MORE) {
                reader.read::<More>()?.add_to(&mut job);
            }
            Self::Whole(Box::new(Job { id: id.clone(), ..job }))
        } else {
            Self::Fields(Box::new(Fields::decode(&mut reader)?))
        };
        Ok((change, reader.rest))
    }

    /// Returns the job as it is after the change. `before` is the job as it was, where there was one.
    ///
    /// # Errors
    /// Why the change cannot be one of that job.
    pub(super) fn applied_to(self, before: Option<&Job>) -> Result<Job, String> {
        match self {
            Self::Whole(job) => Ok(*job),
            Self::Fields(fields) => fields.applied_to(before.ok_or("the job that it changes does not exist")?),
        }
    }
}

struct Reader<'b> {
    parts: Parts,
    rest: &'b [u8],
}

impl Reader<'_> {
    fn read<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        stored::take(&mut self.rest)
    }

    fn part<T: DeserializeOwned>(&mut self, part: u16) -> Result<Option<T>, String> {
        self.parts.has(part).then(|| self.read()).transpose()
    }
}

impl Fields {
    /// In the order in which they are written.
    fn decode(reader: &mut Reader<'_>) -> Result<Self, String> {
        let updated_at = reader.read()?;
        Ok(Self {
            updated_at,
            payload: reader.part(Parts::PAYLOAD)?,
            lease: reader.part::<LeaseTimes>(Parts::LEASE)?.map(|times| times.after(updated_at)),
            state: reader.part(Parts::STATE)?,
            run_at: reader.part(Parts::RUN_AT)?,
            expires_at: reader.part(Parts::EXPIRES_AT)?,
            attempt: reader.part(Parts::ATTEMPT)?,
            fence: reader.part(Parts::FENCE)?,
            error: reader.part(Parts::ERROR)?,
            added: reader.part(Parts::ADDED)?,
            history: reader.part(Parts::HISTORY)?,
            outbox: reader.part(Parts::OUTBOX)?,
            created_at: reader.part(Parts::CREATED_AT)?,
            started_at: reader.part(Parts::STARTED_AT)?,
            hold: reader.part(Parts::HOLD)?,
        })
    }

    fn applied_to(self, before: &Job) -> Result<Job, String> {
        let state = match (self.state, self.lease, &before.state) {
            (Some(state), None, _) => state,
            (None, None, state) => state.clone(),
            (None, Some(times), State::Running(running)) => State::Running(Box::new(with_times(running, times))),
            _ => return Err(format!("it prolongs the lease of the job {}, which has none", before.id)),
        };
        let history = match (self.history, self.added) {
            (Some(history), _) => history,
            (None, added) => with_entries(&before.history, added.into_iter().flatten()),
        };
        Ok(Job {
            id: before.id.clone(),
            spec: Arc::clone(&before.spec),
            payload: self.payload.unwrap_or_else(|| before.payload.clone()),
            state,
            run_at: self.run_at.unwrap_or(before.run_at),
            expires_at: self.expires_at.unwrap_or(before.expires_at),
            attempt: self.attempt.unwrap_or(before.attempt),
            fence: self.fence.unwrap_or(before.fence),
            error: self.error.unwrap_or_else(|| before.error.clone()),
            history,
            outbox: self.outbox.unwrap_or_else(|| before.outbox.clone()),
            created_at: self.created_at.unwrap_or(before.created_at),
            updated_at: self.updated_at,
            started_at: self.started_at.unwrap_or(before.started_at),
            hold: self.hold.unwrap_or_else(|| before.hold.clone()),
        })
    }
}

#[cfg(test)]
mod tests;
