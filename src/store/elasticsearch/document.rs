//! The job as a document of the jobs index, and back.
//!
//! Field names are the API's. A document is written straight into the bulk request, so what is written borrows from the
//! job, and a payload goes in as it came. Reading is lenient about what is missing and may be missing, blind to fields
//! it does not know, and strict about the rest.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::encryption::{EncryptionKeys, SecretField};
use super::write_id::WriteId;
use crate::clock::Timestamp;
use crate::job::{
    Attempt, Body, BodyRef, Concurrency, ConcurrencyKey, Conditions, Due, Fence, Fingerprint, History, HistoryEntry,
    Hold, Job, JobError, JobId, JobSpec, JobState, Json, Kind, Lease, Notice, NoticeTarget, Ordered, OrderingKey,
    Orphan, OrphanPolicy, Oversight, Owner, Priority, Progress, QueueName, Requirement, RetryPolicy, Running,
    ScheduleId, State, UniqueKey,
};

/// The form in which inline bodies are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyForm {
    /// Bodies are written as JSON, where that is possible.
    Json,
    /// Bodies are written as a string that holds the JSON: for JSON that Elasticsearch does not accept, such as the
    /// same key twice in an object or a number of a thousand digits.
    Text,
}

/// The ids of the writes that made a document and its former version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteIds {
    /// The write that made it.
    pub(super) own: WriteId,
    /// The write that made the former version, if that is known.
    pub(super) previous: Option<WriteId>,
}

/// A document as it was read.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) job: Job,
    pub(super) write_id: Option<WriteId>,
    pub(super) previous_write_id: Option<WriteId>,
}

/// Reads a document, of which these keys decrypt what is encrypted.
pub(super) fn decode(source: &RawValue, keys: &EncryptionKeys) -> Result<Decoded, serde_json::Error> {
    let stored: JobDocument<'_> = serde_json::from_str(source.get())?;
    let (write_id, previous_write_id) = (stored.write_id, stored.previous_write_id);
    Ok(Decoded { job: stored.into_job(keys)?, write_id, previous_write_id })
}

/// Returns the document of a job as another process can read it. It does not say which write made it, and nothing in it
/// is encrypted: it lies in no index.
pub(super) fn pack(job: &Job) -> Result<Json, serde_json::Error> {
    Json::of(&JobDocument::new(job, None, BodyForm::Json))
}

/// Reads a document of [`pack`].
pub(super) fn unpack(document: &Json) -> Result<Job, serde_json::Error> {
    serde_json::from_str::<JobDocument<'_>>(document.as_str())?.into_job(&EncryptionKeys::default())
}

/// A job as it is written and read, on one line of JSON. A field of a job stands here, in [`JobDocument::new`], in
/// [`JobDocument::into_job`] and in the mapping.
#[serde_with::skip_serializing_none]
#[derive(Serialize, Deserialize)]
pub(super) struct JobDocument<'a> {
    id: JobId,
    queue: QueueName,
    kind: Kind,
    state: JobState,
    #[serde(default)]
    priority: i64,
    owner: Option<Owner>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: Cow<'a, BTreeMap<String, String>>,
    run_at: Timestamp,
    expires_at: Option<Timestamp>,
    hold: Option<Cow<'a, Hold>>,
    expected_runtime_ms: Option<i64>,
    timeout_ms: Option<i64>,
    max_attempts: u32,
    attempt: Attempt,
    fence: Fence,
    retry: RetryPolicy,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    resources: Cow<'a, BTreeMap<String, u64>>,
    #[serde(default, skip_serializing_if = "<[Requirement]>::is_empty")]
    requires: Cow<'a, [Requirement]>,
    concurrency_key: Option<ConcurrencyKey>,
    max_concurrent: Option<u32>,
    unique_key: Option<UniqueKey>,
    ordering_key: Option<OrderingKey>,
    order_seq: Option<u64>,
    order_first: Option<u64>,
    orphan_policy: Option<OrphanPolicy>,
    #[serde(default, skip_serializing_if = "Targets::is_empty")]
    notify: Targets<'a>,
    schedule_id: Option<ScheduleId>,
    due_at: Option<Timestamp>,
    rerun_of: Option<JobId>,
    #[serde(default, skip_serializing_if = "<[Notice]>::is_empty")]
    outbox: Cow<'a, [Notice]>,
    lease: Option<Cow<'a, Lease>>,
    progress: Option<Cow<'a, Progress>>,
    orphan: Option<Cow<'a, Orphan>>,
    cancel_requested_at: Option<Timestamp>,
    overdue_at: Option<Timestamp>,
    error: Option<Cow<'a, JobError>>,
    history: Cow<'a, [HistoryEntry]>,
    #[serde(default, skip_serializing_if = "is_zero")]
    history_folded: u32,
    created_at: Timestamp,
    updated_at: Timestamp,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    fingerprint: Option<String>,
    #[serde(default, deserialize_with = "present")]
    payload: Option<Json>,
    payload_text: Option<Cow<'a, str>>,
    payload_ref: Option<BodyRef>,
    #[serde(default, deserialize_with = "present")]
    result: Option<Json>,
    result_text: Option<Cow<'a, str>>,
    result_ref: Option<BodyRef>,
    write_id: Option<WriteId>,
    previous_write_id: Option<WriteId>,
    // Derived fields: written for searches and never read.
    /// The number of notices.
    #[serde(skip_deserializing, skip_serializing_if = "is_zero")]
    pending_notices: usize,
    /// Says of a held job that it is one.
    #[serde(skip_deserializing, skip_serializing_if = "std::ops::Not::not")]
    held: bool,
    #[serde(skip_deserializing)]
    partition: u8,
    #[serde(skip_deserializing)]
    watch_at: Option<Timestamp>,
    #[serde(skip_deserializing)]
    wait_ms: Option<i64>,
    #[serde(skip_deserializing)]
    run_time_ms: Option<i64>,
}

fn is_zero<N: Copy + Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

/// Returns a duration in whole milliseconds, capped at the largest `long`.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Deserializes a body so that the JSON `null` differs from a missing field.
pub(super) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

fn missing(what: &str) -> serde_json::Error {
    serde::de::Error::custom(what)
}

/// The receivers of notifications about a job, whose addresses may be secret.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Targets<'a> {
    /// The receivers as a list that anybody reads who reads the index.
    Plain(Cow<'a, [NoticeTarget]>),
    /// As an encrypted text, which is no list.
    Encrypted(Cow<'a, str>),
}

impl Default for Targets<'_> {
    fn default() -> Self {
        Self::Plain(Cow::Borrowed(&[]))
    }
}

impl Targets<'_> {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Plain(targets) if targets.is_empty())
    }

    fn decrypt(self, field: SecretField<'_>, keys: &EncryptionKeys) -> Result<Vec<NoticeTarget>, serde_json::Error> {
        match self {
            Self::Plain(targets) => Ok(targets.into_owned()),
            Self::Encrypted(encrypted) => serde_json::from_str(&keys.decrypt(field, encrypted).map_err(unusable)?),
        }
    }
}

/// The fields of a job's document that may be encrypted.
const PAYLOAD: &str = "payload";
const NOTIFY: &str = "notify";

fn secret<'a>(job: &'a JobId, name: &'static str) -> SecretField<'a> {
    SecretField { kind: "job", id: job.as_str(), name }
}

fn unusable(why: String) -> serde_json::Error {
    serde::de::Error::custom(why)
}

/// Returns whether a job's payload may hold secrets: it has the environment of a command, or is one of the system's
/// own, such as a delivery with the address of its receiver.
pub(super) fn holds_secrets(job: &Job, payload: &Json) -> bool {
    #[derive(Deserialize)]
    struct Command {
        env: Option<IgnoredAny>,
    }
    let text = payload.as_str();
    // A name can be written with escapes.
    let may_have = || text.trim_start().starts_with('{') && (text.contains("env") || text.contains('\\'));
    // One that has it twice is refused here, and has it.
    let has_env = || serde_json::from_str::<Command>(text).map_or(true, |command| command.env.is_some());
    job.spec.queue.is_internal() || (may_have() && has_env())
}

/// The three forms of a body in a document; at most one is set.
type BodyFields<'a> = (Option<Json>, Option<Cow<'a, str>>, Option<BodyRef>);

fn body_fields(body: &Body, form: BodyForm) -> BodyFields<'_> {
    match body {
        Body::Empty => (None, None, None),
        Body::Stored(reference) => (None, None, Some(*reference)),
        // A line break between JSON's tokens would end the bulk request's line.
        Body::Inline(json) if form == BodyForm::Text || json.as_str().contains('\n') => {
            (None, Some(json.as_str().into()), None)
        }
        Body::Inline(json) => (Some(json.clone()), None, None),
    }
}

fn body(fields: BodyFields<'_>) -> Result<Body, serde_json::Error> {
    Ok(match fields {
        (_, _, Some(reference)) => Body::Stored(reference),
        (_, Some(text), None) => Body::Inline(Json::parse(text.into_owned())?),
        (Some(json), None, None) => Body::Inline(json),
        (None, None, None) => Body::Empty,
    })
}

impl<'a> JobDocument<'a> {
    pub(super) fn new(job: &'a Job, ids: Option<WriteIds>, form: BodyForm) -> Self {
        let spec = &*job.spec;
        let running = match &job.state {
            State::Running(running) => Some(&**running),
            _ => None,
        };
        let (payload, payload_text, payload_ref) = body_fields(&job.payload, form);
        let (result, result_text, result_ref) = body_fields(job.result(), form);
        Self {
            id: job.id.clone(),
            queue: spec.queue.clone(),
            kind: spec.kind.clone(),
            state: job.state.name(),
            priority: spec.priority.get().into(),
            owner: spec.owner.clone(),
            labels: Cow::Borrowed(&spec.labels),
            run_at: job.run_at,
            expires_at: job.expires_at,
            hold: job.hold.as_deref().map(Cow::Borrowed),
            expected_runtime_ms: spec.expected_runtime.map(millis),
            timeout_ms: spec.timeout.map(millis),
            max_attempts: spec.max_attempts,
            attempt: job.attempt,
            fence: job.fence,
            retry: spec.retry,
            resources: Cow::Borrowed(&spec.resources),
            requires: Cow::Borrowed(spec.requires()),
            concurrency_key: spec.concurrency().map(|concurrency| concurrency.key.clone()),
            max_concurrent: spec.concurrency().map(|concurrency| concurrency.max),
            unique_key: spec.unique().cloned(),
            ordering_key: spec.ordering_key().cloned(),
            order_seq: spec.ordering().map(|ordering| ordering.seq),
            order_first: spec.ordering().map(|ordering| ordering.first),
            orphan_policy: spec.oversight.orphan_policy,
            notify: Targets::Plain(Cow::Borrowed(&spec.oversight.notify)),
            schedule_id: spec.due.as_ref().map(|due| due.schedule_id.clone()),
            due_at: spec.due.as_ref().map(|due| due.due_at),
            rerun_of: spec.rerun_of.clone(),
            outbox: Cow::Borrowed(&job.outbox),
            lease: running.map(|running| Cow::Borrowed(&running.lease)),
            progress: running.and_then(|running| running.progress.as_ref()).map(Cow::Borrowed),
            orphan: running.and_then(|running| running.orphan.as_ref()).map(Cow::Borrowed),
            cancel_requested_at: running.and_then(|running| running.cancel_requested_at),
            overdue_at: running.and_then(|running| running.overdue_at),
            error: job.error.as_ref().map(Cow::Borrowed),
            history: Cow::Borrowed(job.history.entries()),
            history_folded: job.history.folded(),
            created_at: job.created_at,
            updated_at: job.updated_at,
            started_at: job.started_at,
            finished_at: job.finished_at(),
            fingerprint: spec.fingerprint.map(|fingerprint| format!("{:032x}", fingerprint.0)),
            payload,
            payload_text,
            payload_ref,
            result,
            result_text,
            result_ref,
            write_id: ids.map(|ids| ids.own),
            previous_write_id: ids.and_then(|ids| ids.previous),
            pending_notices: job.outbox.len(),
            held: job.hold.is_some(),
            partition: job.partition().get(),
            watch_at: job.watch_at(),
            wait_ms: job.wait().map(millis),
            run_time_ms: job.run_time().map(millis),
        }
    }

    /// Encrypts what is secret in the document of this job, if there are keys.
    pub(super) fn encrypt(mut self, job: &Job, keys: &EncryptionKeys) -> Result<Self, serde_json::Error> {
        if keys.is_empty() {
            return Ok(self);
        }
        if let Body::Inline(json) = &job.payload
            && holds_secrets(job, json)
        {
            let encrypted = keys.encrypt(secret(&job.id, PAYLOAD), json.as_str()).map_err(unusable)?;
            (self.payload, self.payload_text) = (None, Some(Cow::Owned(encrypted.into_owned())));
        }
        if !job.spec.oversight.notify.is_empty() {
            let targets = serde_json::to_string(&job.spec.oversight.notify)?;
            let encrypted = keys.encrypt(secret(&job.id, NOTIFY), &targets).map_err(unusable)?;
            self.notify = Targets::Encrypted(Cow::Owned(encrypted.into_owned()));
        }
        Ok(self)
    }

    fn into_job(self, keys: &EncryptionKeys) -> Result<Job, serde_json::Error> {
        let notify = self.notify.decrypt(secret(&self.id, NOTIFY), keys)?;
        let decrypt = |text| keys.decrypt(secret(&self.id, PAYLOAD), text).map_err(unusable);
        let payload_text = self.payload_text.map(decrypt).transpose()?;
        let concurrency = self.concurrency_key.zip(self.max_concurrent).map(|(key, max)| Concurrency { key, max });
        let placed = self.ordering_key.zip(self.order_seq).zip(self.order_first);
        let ordering = placed.map(|((key, seq), first)| Ordered { key, seq, first });
        let due = self.schedule_id.zip(self.due_at).map(|(schedule_id, due_at)| Due { schedule_id, due_at });
        let spec = JobSpec {
            queue: self.queue,
            kind: self.kind,
            priority: Priority::new(self.priority).ok_or_else(|| missing("a priority beyond −100 to 100"))?,
            owner: self.owner,
            labels: self.labels.into_owned(),
            expected_runtime: self.expected_runtime_ms.map(duration),
            timeout: self.timeout_ms.map(duration),
            max_attempts: self.max_attempts,
            retry: self.retry,
            resources: self.resources.into_owned(),
            oversight: Oversight { orphan_policy: self.orphan_policy, notify },
            due: due.map(Box::new),
            rerun_of: self.rerun_of,
            conditions: Conditions {
                requires: self.requires.into_owned(),
                concurrency,
                unique: self.unique_key,
                ordering,
            }
            .stored(),
            fingerprint: self.fingerprint.as_deref().map(fingerprint).transpose()?,
        };
        let finished_at = || self.finished_at.ok_or_else(|| missing("a job at its end without `finished_at`"));
        let state = match self.state {
            JobState::Available => State::Available,
            JobState::Running => State::Running(Box::new(Running {
                lease: self.lease.ok_or_else(|| missing("a running job without `lease`"))?.into_owned(),
                progress: self.progress.map(Cow::into_owned),
                cancel_requested_at: self.cancel_requested_at,
                orphan: self.orphan.map(Cow::into_owned),
                overdue_at: self.overdue_at,
            })),
            JobState::Completed => State::Completed {
                finished_at: finished_at()?,
                result: body((self.result, self.result_text, self.result_ref))?,
            },
            JobState::Failed => State::Failed { finished_at: finished_at()? },
            JobState::Cancelled => State::Cancelled { finished_at: finished_at()? },
            JobState::Expired => State::Expired { finished_at: finished_at()? },
        };
        Ok(Job {
            id: self.id,
            spec: spec.shared(),
            payload: body((self.payload, payload_text, self.payload_ref))?,
            state,
            run_at: self.run_at,
            expires_at: self.expires_at,
            hold: self.hold.map(|hold| Box::new(hold.into_owned())),
            attempt: self.attempt,
            fence: self.fence,
            error: self.error.map(Cow::into_owned),
            history: History::from_parts(self.history.into_owned(), self.history_folded),
            outbox: self.outbox.into_owned(),
            created_at: self.created_at,
            updated_at: self.updated_at,
            started_at: self.started_at,
        })
    }
}

fn fingerprint(hex: &str) -> Result<Fingerprint, serde_json::Error> {
    u128::from_str_radix(hex, 16).map(Fingerprint).map_err(|_| missing("a `fingerprint` that is not hexadecimal"))
}

#[cfg(test)]
pub(super) mod tests;
