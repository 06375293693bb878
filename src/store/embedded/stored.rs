//! How a job lies on disk: a format byte, the job's version, and the job in postcard, all but its id, which is the key.
//!
//! The types below are what is on disk. They name every field of the job's and its specification's, so that a field
//! that is added there does not compile until it is added here, and serde derives both directions from them. The state
//! and small values, such as an entry of the history, are stored as they derive it themselves; a test holds the bytes
//! of jobs in every state, so that no change of theirs goes unnoticed either.
//!
//! Reading never panics: whatever does not make a job is [`Corrupt`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use postcard::ser_flavors::{Flavor, Size};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::Corrupt;
use crate::clock::Timestamp;
use crate::job::{
    Attempt, Body, Concurrency, Conditions, Due, Fence, Fingerprint, History, Hold, Job, JobError, JobId, JobSpec,
    JobState, Kind, Notice, Ordered, Oversight, Owner, Priority, QueueName, Requirement, RetryPolicy, State, UniqueKey,
};
use crate::store::{Place, Version, Versioned};

/// The format of what is stored. Another layout gets another number, so that the two are distinguished.
const FORMAT: u8 = 4;
/// The format of a job that has [`More`]. A version that does not know it reads all other jobs.
const FORMAT_WITH_MORE: u8 = 5;

/// A job to be written.
#[derive(Serialize)]
pub(super) struct BorrowedJob<'a>(#[serde(serialize_with = "StoredJob::serialize")] pub(super) &'a Job);

/// A job that was read, without [`More`].
#[derive(Deserialize)]
pub(super) struct OwnedJob(#[serde(deserialize_with = "StoredJob::deserialize")] pub(super) Job);

/// What few jobs have. It follows the job's other fields, and only where there is any of it, so that a job without it
/// lies on disk and in the log as it did before there was any: versions that do not know it read those jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct More {
    hold: Option<Box<Hold>>,
    rerun_of: Option<JobId>,
}

impl More {
    /// Returns what of it a job has; `None` when it has none.
    pub(super) fn of(job: &Job) -> Option<Self> {
        let more = Self { hold: job.hold.clone(), rerun_of: job.spec.rerun_of.clone() };
        (more != Self::default()).then_some(more)
    }

    /// Adds it to the job that was read before it.
    pub(super) fn add_to(self, job: &mut Job) {
        job.hold = self.hold;
        if self.rerun_of.is_some() {
            job.spec = JobSpec { rerun_of: self.rerun_of, ..(*job.spec).clone() }.shared();
        }
    }
}

/// Writes `head` over what `buffer` held.
pub(super) fn encode(head: &Versioned, buffer: &mut Vec<u8>) -> Result<(), Corrupt> {
    let job = BorrowedJob(&head.job);
    match More::of(&head.job) {
        None => encode_as(head.version, job, buffer),
        Some(more) => encode_in(FORMAT_WITH_MORE, head.version, (job, more), buffer),
    }
}

/// Reads the job `id`.
pub(super) fn decode(id: &JobId, bytes: &[u8]) -> Result<Versioned, Corrupt> {
    let read = match bytes.first() {
        Some(&FORMAT_WITH_MORE) => decode_content(bytes).map(|(version, (OwnedJob(mut job), more))| {
            More::add_to(more, &mut job);
            (version, job)
        }),
        _ => decode_as(bytes).map(|(version, OwnedJob(job))| (version, job)),
    };
    let (version, job) = read.map_err(|why| Corrupt(format!("the stored job {id}: {why}")))?;
    Ok(Versioned { job: Arc::new(Job { id: id.clone(), ..job }), version })
}

/// Reads a key that is a job's id.
pub(super) fn id_of(key: &[u8]) -> Result<JobId, Corrupt> {
    let id = std::str::from_utf8(key).ok().and_then(|id| JobId::new(id).ok());
    id.ok_or_else(|| Corrupt(format!("the id of a job: {:?}", key.escape_ascii().to_string())))
}

/// Writes the format, the version and the content over what `buffer` held.
pub(super) fn encode_as(version: Version, content: impl Serialize, buffer: &mut Vec<u8>) -> Result<(), Corrupt> {
    encode_in(FORMAT, version, content, buffer)
}

fn encode_in(format: u8, version: Version, content: impl Serialize, buffer: &mut Vec<u8>) -> Result<(), Corrupt> {
    let Version { primary_term, seq_no, .. } = version;
    buffer.clear();
    append(&(format, primary_term, seq_no, content), buffer)
}

/// Takes a value off the beginning of `rest`.
///
/// # Errors
/// Why there is none.
pub(super) fn take<T: DeserializeOwned>(rest: &mut &[u8]) -> Result<T, String> {
    let (value, left) = postcard::take_from_bytes(rest).map_err(|error| error.to_string())?;
    *rest = left;
    Ok(value)
}

/// Appends a value to what `buffer` holds.
pub(super) fn append(value: &impl Serialize, buffer: &mut Vec<u8>) -> Result<(), Corrupt> {
    let written = postcard::serialize_with_flavor(value, Appended(buffer));
    written.map_err(|error| Corrupt(format!("it cannot be written: {error}")))
}

/// Appends what is written to what a buffer holds, slice by slice: `postcard::to_extend` does it byte by byte.
struct Appended<'a>(&'a mut Vec<u8>);

impl Flavor for Appended<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Returns how many bytes [`append`] writes for a value.
pub(super) fn length(value: &impl Serialize) -> Result<usize, Corrupt> {
    let length = postcard::serialize_with_flavor(value, Size::default());
    length.map_err(|error| Corrupt(format!("it cannot be written: {error}")))
}

/// Reads a version and the content under it, to the last byte.
pub(super) fn decode_as<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(Version, T), String> {
    match bytes.first() {
        Some(&FORMAT) => {}
        Some(other) => return Err(format!("it has format {other}, this version reads {FORMAT}")),
        None => return Err("it is empty".to_owned()),
    }
    decode_content(bytes)
}

/// Does the same as [`decode_as`], whatever the format.
fn decode_content<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(Version, T), String> {
    match postcard::take_from_bytes::<(u8, u64, u64, T)>(bytes) {
        Ok(((_, primary_term, seq_no, content), [])) => {
            Ok((Version { place: Place::Main, primary_term, seq_no }, content))
        }
        Ok((_, left)) => Err(format!("it has {} bytes too many", left.len())),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the number of a state on disk.
pub(super) const fn state_code(state: JobState) -> u8 {
    state as u8
}

/// Returns the state with this number on disk.
pub(super) fn state_of(code: u8) -> Result<JobState, String> {
    JobState::ALL.get(usize::from(code)).copied().ok_or_else(|| format!("no state has the number {code}"))
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Job")]
pub(super) struct StoredJob {
    #[serde(skip, default = "JobId::first")]
    id: JobId,
    #[serde(serialize_with = "StoredSpec::serialize", deserialize_with = "shared_spec")]
    spec: Arc<JobSpec>,
    payload: Body,
    state: State,
    run_at: Timestamp,
    expires_at: Option<Timestamp>,
    attempt: Attempt,
    fence: Fence,
    error: Option<JobError>,
    history: History,
    outbox: Vec<Notice>,
    created_at: Timestamp,
    updated_at: Timestamp,
    started_at: Option<Timestamp>,
    /// Stored in [`More`], behind the other fields.
    #[serde(skip)]
    hold: Option<Box<Hold>>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "JobSpec")]
struct StoredSpec {
    queue: QueueName,
    kind: Kind,
    priority: Priority,
    owner: Option<Owner>,
    labels: BTreeMap<String, String>,
    expected_runtime: Option<Duration>,
    timeout: Option<Duration>,
    max_attempts: u32,
    retry: RetryPolicy,
    resources: BTreeMap<String, u64>,
    oversight: Oversight,
    due: Option<Box<Due>>,
    #[serde(serialize_with = "write_conditions", deserialize_with = "read_conditions")]
    conditions: Option<Box<Conditions>>,
    fingerprint: Option<Fingerprint>,
    /// Stored in [`More`], behind the other fields.
    #[serde(skip)]
    rerun_of: Option<JobId>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Conditions")]
struct StoredConditions {
    requires: Vec<Requirement>,
    concurrency: Option<Concurrency>,
    unique: Option<UniqueKey>,
    ordering: Option<Ordered>,
}

fn write_conditions<S: Serializer>(conditions: &Option<Box<Conditions>>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Borrowed<'a>(#[serde(serialize_with = "StoredConditions::serialize")] &'a Conditions);

    conditions.as_deref().map(Borrowed).serialize(serializer)
}

fn read_conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<Conditions>>, D::Error> {
    #[derive(Deserialize)]
    struct Owned(#[serde(deserialize_with = "StoredConditions::deserialize")] Conditions);

    Ok(Option::deserialize(deserializer)?.map(|Owned(conditions)| Box::new(conditions)))
}

fn shared_spec<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<JobSpec>, D::Error> {
    StoredSpec::deserialize(deserializer).map(JobSpec::shared)
}

#[cfg(test)]
mod tests;
