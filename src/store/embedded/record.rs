//! How a job lies on disk: a format byte, then the record in postcard.
//!
//! Records are types of their own, converted field by field from and to the job, so that a change of the job cannot
//! change what is on disk unnoticed. A record is never altered: a new shape is a new `RecordV…` with a new format byte
//! beside it.
//!
//! Reading never panics: whatever does not make a job is [`Corrupt`].

mod skim;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Corrupt;
use crate::clock::Timestamp;
use crate::job::{
    Actor, Attempt, Body, BodyId, BodyRef, EventName, Fence, Fingerprint, History, HistoryEntry, InvalidName, Job,
    JobError, JobId, JobSpec, JobState, Json, Kind, Lease, Notice, NoticeTarget, Orphan, OrphanPolicy, Oversight,
    Owner, Priority, Progress, QueueName, RequestId, RetryPolicy, Running, State, WorkerId,
};
use crate::store::{Place, Version, Versioned};

pub(super) use skim::Skim;

const FORMAT_V1: u8 = 1;

/// Writes `head` over what `buffer` held.
pub(super) fn encode(head: &Versioned, buffer: &mut Vec<u8>) -> Result<(), Corrupt> {
    encode_as(FORMAT_V1, &RecordV1::from(head), buffer)
}

/// Reads the head of the job `id`.
pub(super) fn decode(id: &JobId, bytes: &[u8]) -> Result<Versioned, Corrupt> {
    let broken = |why: String| Corrupt(format!("the record of job {id}: {why}"));
    let record: RecordV1<'_> = decode_as(FORMAT_V1, bytes).map_err(broken)?;
    record.into_head(id.clone()).map_err(broken)
}

/// Writes the format byte and the record over what `buffer` held.
pub(super) fn encode_as(format: u8, record: &impl Serialize, buffer: &mut Vec<u8>) -> Result<(), Corrupt> {
    buffer.clear();
    buffer.push(format);
    let written = postcard::to_extend(record, std::mem::take(buffer));
    *buffer = written.map_err(|error| Corrupt(format!("a record cannot be written: {error}")))?;
    Ok(())
}

/// Reads a record that must have this format, to the last byte.
pub(super) fn decode_as<'a, T: Deserialize<'a>>(format: u8, bytes: &'a [u8]) -> Result<T, String> {
    let Some((found, rest)) = bytes.split_first() else { return Err("it is empty".to_owned()) };
    if *found != format {
        return Err(format!("it has format {found}, this version reads {format}"));
    }
    match postcard::take_from_bytes(rest) {
        Ok((record, [])) => Ok(record),
        Ok((_, left)) => Err(format!("it has {} bytes too many", left.len())),
        Err(error) => Err(error.to_string()),
    }
}

/// The number of a state on disk.
pub(super) const fn state_code(state: JobState) -> u8 {
    match state {
        JobState::Available => 0,
        JobState::Running => 1,
        JobState::Completed => 2,
        JobState::Failed => 3,
        JobState::Cancelled => 4,
        JobState::Expired => 5,
    }
}

/// The state with this number on disk.
pub(super) fn state_of(code: u8) -> Result<JobState, String> {
    let known = JobState::ALL.into_iter().find(|state| state_code(*state) == code);
    known.ok_or_else(|| format!("no state has the number {code}"))
}

/// `H` is how the history is read.
#[derive(Serialize, Deserialize)]
#[serde(bound(serialize = "H: Serialize", deserialize = "H: Deserialize<'de>"))]
struct RecordV1<'a, H = Vec<EntryV1<'a>>> {
    primary_term: u64,
    seq_no: u64,
    #[serde(borrow)]
    spec: SpecV1<'a>,
    #[serde(borrow)]
    payload: BodyV1<'a>,
    #[serde(borrow)]
    state: StateV1<'a>,
    run_at: i64,
    expires_at: Option<i64>,
    attempt: u32,
    fence: u64,
    #[serde(borrow)]
    error: Option<ErrorV1<'a>>,
    history: H,
    folded: u32,
    #[serde(borrow)]
    outbox: Vec<(u32, EntryV1<'a>)>,
    created_at: i64,
    updated_at: i64,
    started_at: Option<i64>,
}

#[derive(Serialize, Deserialize)]
struct SpecV1<'a> {
    queue: &'a str,
    kind: &'a str,
    priority: i8,
    owner: Option<&'a str>,
    #[serde(borrow)]
    labels: Vec<(&'a str, &'a str)>,
    expected_runtime: Option<Duration>,
    timeout: Option<Duration>,
    max_attempts: u32,
    retry_base: Duration,
    retry_factor: f64,
    retry_max: Duration,
    retry_jitter: f64,
    #[serde(borrow)]
    resources: Vec<(&'a str, u64)>,
    orphan_policy: Option<OrphanPolicy>,
    notify: Cow<'a, [NoticeTarget]>,
    fingerprint: Option<[u8; 16]>,
}

#[derive(Serialize, Deserialize)]
enum BodyV1<'a> {
    Empty,
    Inline(&'a str),
    Stored { id: [u8; 16], bytes: u32 },
}

#[derive(Serialize, Deserialize)]
enum StateV1<'a> {
    Available,
    #[serde(borrow)]
    Running(RunningV1<'a>),
    Completed {
        finished_at: i64,
        #[serde(borrow)]
        result: BodyV1<'a>,
    },
    Failed {
        finished_at: i64,
    },
    Cancelled {
        finished_at: i64,
    },
    Expired {
        finished_at: i64,
    },
}

#[derive(Serialize, Deserialize)]
struct RunningV1<'a> {
    worker_id: &'a str,
    request_id: Option<&'a str>,
    acquired_at: i64,
    heartbeat_at: i64,
    expires_at: i64,
    term: Duration,
    #[serde(borrow)]
    progress: Option<ProgressV1<'a>>,
    cancel_requested_at: Option<i64>,
    #[serde(borrow)]
    orphan: Option<(i64, &'a str, bool)>,
    overdue_at: Option<i64>,
}

#[derive(Serialize, Deserialize)]
struct ProgressV1<'a> {
    percent: Option<f64>,
    message: Option<&'a str>,
}

#[derive(Serialize, Deserialize)]
struct ErrorV1<'a> {
    code: &'a str,
    message: &'a str,
}

#[derive(Serialize, Deserialize)]
struct EntryV1<'a> {
    at: i64,
    from: Option<u8>,
    to: u8,
    fence: u64,
    attempt: u32,
    event: EventName,
    actor: &'a str,
    reason: Option<&'a str>,
}

impl<'a> From<&'a Versioned> for RecordV1<'a> {
    fn from(head: &'a Versioned) -> Self {
        let job = &*head.job;
        Self {
            primary_term: head.version.primary_term,
            seq_no: head.version.seq_no,
            spec: SpecV1::from(&*job.spec),
            payload: BodyV1::from(&job.payload),
            state: StateV1::from(&job.state),
            run_at: job.run_at.as_millis(),
            expires_at: job.expires_at.map(Timestamp::as_millis),
            attempt: job.attempt.get(),
            fence: job.fence.get(),
            error: job.error.as_ref().map(|error| ErrorV1 { code: &error.code, message: &error.message }),
            history: job.history.entries().iter().map(EntryV1::from).collect(),
            folded: job.history.folded(),
            outbox: job.outbox.iter().map(|notice| (notice.number, EntryV1::from(&notice.entry))).collect(),
            created_at: job.created_at.as_millis(),
            updated_at: job.updated_at.as_millis(),
            started_at: job.started_at.map(Timestamp::as_millis),
        }
    }
}

impl RecordV1<'_> {
    fn into_head(self, id: JobId) -> Result<Versioned, String> {
        let history = self.history.into_iter().map(EntryV1::into_entry).collect::<Result<_, _>>()?;
        let notices = self.outbox.into_iter().map(|(number, entry)| Ok(Notice { number, entry: entry.into_entry()? }));
        let outbox = notices.collect::<Result<_, String>>()?;
        let job = Job {
            id,
            spec: Arc::new(self.spec.into_spec()?),
            payload: self.payload.into_body()?,
            state: self.state.into_state()?,
            run_at: Timestamp::from_millis(self.run_at),
            expires_at: self.expires_at.map(Timestamp::from_millis),
            attempt: Attempt::new(self.attempt),
            fence: Fence::new(self.fence),
            error: self.error.map(|error| JobError { code: error.code.to_owned(), message: error.message.to_owned() }),
            history: History::from_parts(history, self.folded),
            outbox,
            created_at: Timestamp::from_millis(self.created_at),
            updated_at: Timestamp::from_millis(self.updated_at),
            started_at: self.started_at.map(Timestamp::from_millis),
        };
        let version = Version { place: Place::MAIN, primary_term: self.primary_term, seq_no: self.seq_no };
        Ok(Versioned { job: Arc::new(job), version })
    }
}

impl<'a> From<&'a JobSpec> for SpecV1<'a> {
    fn from(spec: &'a JobSpec) -> Self {
        Self {
            queue: spec.queue.as_str(),
            kind: spec.kind.as_str(),
            priority: spec.priority.get(),
            owner: spec.owner.as_ref().map(Owner::as_str),
            labels: spec.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
            expected_runtime: spec.expected_runtime,
            timeout: spec.timeout,
            max_attempts: spec.max_attempts,
            retry_base: spec.retry.base,
            retry_factor: spec.retry.factor,
            retry_max: spec.retry.max,
            retry_jitter: spec.retry.jitter,
            resources: spec.resources.iter().map(|(name, amount)| (name.as_str(), *amount)).collect(),
            orphan_policy: spec.oversight.orphan_policy,
            notify: Cow::Borrowed(&spec.oversight.notify),
            fingerprint: spec.fingerprint.map(|fingerprint| fingerprint.0.to_be_bytes()),
        }
    }
}

impl SpecV1<'_> {
    fn into_spec(self) -> Result<JobSpec, String> {
        let labels: BTreeMap<_, _> =
            self.labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(JobSpec {
            queue: QueueName::new(self.queue).map_err(in_field("queue"))?,
            kind: Kind::new(self.kind).map_err(in_field("kind"))?,
            priority: Priority::new(i64::from(self.priority))
                .ok_or_else(|| format!("the priority {} is out of bounds", self.priority))?,
            owner: self.owner.map(Owner::new).transpose().map_err(in_field("owner"))?,
            labels,
            expected_runtime: self.expected_runtime,
            timeout: self.timeout,
            max_attempts: self.max_attempts,
            retry: RetryPolicy {
                base: self.retry_base,
                factor: self.retry_factor,
                max: self.retry_max,
                jitter: self.retry_jitter,
            },
            resources: self.resources.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect(),
            oversight: Oversight { orphan_policy: self.orphan_policy, notify: self.notify.into_owned() },
            fingerprint: self.fingerprint.map(|bytes| Fingerprint(u128::from_be_bytes(bytes))),
        })
    }
}

impl<'a> From<&'a Body> for BodyV1<'a> {
    fn from(body: &'a Body) -> Self {
        match body {
            Body::Empty => Self::Empty,
            Body::Inline(json) => Self::Inline(json.as_str()),
            Body::Stored(reference) => Self::Stored { id: *reference.id.0.as_bytes(), bytes: reference.bytes },
        }
    }
}

impl BodyV1<'_> {
    fn into_body(self) -> Result<Body, String> {
        Ok(match self {
            Self::Empty => Body::Empty,
            Self::Inline(text) => Body::Inline(Json::parse(text.to_owned()).map_err(|error| error.to_string())?),
            Self::Stored { id, bytes } => Body::Stored(BodyRef { id: BodyId(Uuid::from_bytes(id)), bytes }),
        })
    }
}

impl<'a> From<&'a State> for StateV1<'a> {
    fn from(state: &'a State) -> Self {
        match state {
            State::Available => Self::Available,
            State::Running(running) => Self::Running(RunningV1::from(&**running)),
            State::Completed { finished_at, result } => {
                Self::Completed { finished_at: finished_at.as_millis(), result: BodyV1::from(result) }
            }
            State::Failed { finished_at } => Self::Failed { finished_at: finished_at.as_millis() },
            State::Cancelled { finished_at } => Self::Cancelled { finished_at: finished_at.as_millis() },
            State::Expired { finished_at } => Self::Expired { finished_at: finished_at.as_millis() },
        }
    }
}

impl StateV1<'_> {
    fn into_state(self) -> Result<State, String> {
        Ok(match self {
            Self::Available => State::Available,
            Self::Running(running) => State::Running(Box::new(running.into_running()?)),
            Self::Completed { finished_at, result } => {
                State::Completed { finished_at: Timestamp::from_millis(finished_at), result: result.into_body()? }
            }
            Self::Failed { finished_at } => State::Failed { finished_at: Timestamp::from_millis(finished_at) },
            Self::Cancelled { finished_at } => State::Cancelled { finished_at: Timestamp::from_millis(finished_at) },
            Self::Expired { finished_at } => State::Expired { finished_at: Timestamp::from_millis(finished_at) },
        })
    }
}

impl<'a> From<&'a Running> for RunningV1<'a> {
    fn from(running: &'a Running) -> Self {
        let lease = &running.lease;
        Self {
            worker_id: lease.worker_id.as_str(),
            request_id: lease.request_id.as_ref().map(RequestId::as_str),
            acquired_at: lease.acquired_at.as_millis(),
            heartbeat_at: lease.heartbeat_at.as_millis(),
            expires_at: lease.expires_at.as_millis(),
            term: lease.term,
            progress: running
                .progress
                .as_ref()
                .map(|progress| ProgressV1 { percent: progress.percent, message: progress.message.as_deref() }),
            cancel_requested_at: running.cancel_requested_at.map(Timestamp::as_millis),
            orphan: running
                .orphan
                .as_ref()
                .map(|orphan| (orphan.flagged_at.as_millis(), orphan.reason.as_str(), orphan.held)),
            overdue_at: running.overdue_at.map(Timestamp::as_millis),
        }
    }
}

impl RunningV1<'_> {
    fn into_running(self) -> Result<Running, String> {
        let lease = Lease {
            worker_id: WorkerId::new(self.worker_id).map_err(in_field("worker_id"))?,
            request_id: self.request_id.map(RequestId::new).transpose().map_err(in_field("request_id"))?,
            acquired_at: Timestamp::from_millis(self.acquired_at),
            heartbeat_at: Timestamp::from_millis(self.heartbeat_at),
            expires_at: Timestamp::from_millis(self.expires_at),
            term: self.term,
        };
        Ok(Running {
            lease,
            progress: self
                .progress
                .map(|progress| Progress { percent: progress.percent, message: progress.message.map(str::to_owned) }),
            cancel_requested_at: self.cancel_requested_at.map(Timestamp::from_millis),
            orphan: self.orphan.map(|(at, reason, held)| Orphan {
                flagged_at: Timestamp::from_millis(at),
                reason: reason.to_owned(),
                held,
            }),
            overdue_at: self.overdue_at.map(Timestamp::from_millis),
        })
    }
}

impl<'a> From<&'a HistoryEntry> for EntryV1<'a> {
    fn from(entry: &'a HistoryEntry) -> Self {
        Self {
            at: entry.at.as_millis(),
            from: entry.from.map(state_code),
            to: state_code(entry.to),
            fence: entry.fence.get(),
            attempt: entry.attempt.get(),
            event: entry.event,
            actor: entry.actor.as_str(),
            reason: entry.reason.as_deref(),
        }
    }
}

impl EntryV1<'_> {
    fn into_entry(self) -> Result<HistoryEntry, String> {
        Ok(HistoryEntry {
            at: Timestamp::from_millis(self.at),
            from: self.from.map(state_of).transpose()?,
            to: state_of(self.to)?,
            fence: Fence::new(self.fence),
            attempt: Attempt::new(self.attempt),
            event: self.event,
            actor: Actor::new(self.actor).map_err(in_field("actor"))?,
            reason: self.reason.map(str::to_owned),
        })
    }
}

fn in_field(name: &'static str) -> impl Fn(InvalidName) -> String {
    move |error| format!("its {name} {error}")
}

#[cfg(test)]
mod tests;
