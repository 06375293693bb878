//! The job as a document of the jobs index, and back.
//!
//! Field names are the API's. A document is written straight into the bulk request, so what is written borrows from the
//! job, and a payload goes in as it came. Reading is lenient about what is missing and may be missing, blind to fields
//! it does not know, and strict about the rest.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::write_id::WriteId;
use crate::clock::{Timestamp, rfc3339};
use crate::job::{
    Actor, Attempt, Body, BodyRef, EventName, Fence, Fingerprint, History, HistoryEntry, Job, JobError, JobId, JobSpec,
    JobState, Json, Kind, Lease, Notice, NoticeTarget, Orphan, OrphanPolicy, Oversight, Owner, Priority, Progress,
    QueueName, RequestId, RetryPolicy, Running, State, WorkerId,
};

/// How inline bodies are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyForm {
    /// As the JSON they are, where that is possible.
    Json,
    /// As a string that holds the JSON: for what JSON allows and Elasticsearch does not take, such as the same key twice in
    /// an object or a number of a thousand digits.
    Text,
}

/// What tells which write made a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteIds {
    /// The write that made it.
    pub(super) own: WriteId,
    /// The write that made what it replaced, where that is known.
    pub(super) previous: Option<WriteId>,
}

/// Appends `job` as one line of JSON, without the line's end.
pub(super) fn encode(buffer: &mut Vec<u8>, job: &Job, ids: WriteIds, form: BodyForm) -> Result<(), serde_json::Error> {
    serde_json::to_writer(buffer, &JobDocument::new(job, ids, form))
}

/// A document as it was read.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) job: Job,
    pub(super) write_id: Option<WriteId>,
    pub(super) previous_write_id: Option<WriteId>,
}

/// Reads a document.
pub(super) fn decode(source: &RawValue) -> Result<Decoded, serde_json::Error> {
    let stored: StoredDocument = serde_json::from_str(source.get())?;
    let (write_id, previous_write_id) = (stored.write_id, stored.previous_write_id);
    Ok(Decoded { job: stored.into_job()?, write_id, previous_write_id })
}

#[derive(Serialize)]
struct JobDocument<'a> {
    id: &'a str,
    queue: &'a str,
    kind: &'a str,
    state: &'static str,
    priority: i8,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
    #[serde(with = "rfc3339")]
    run_at: Timestamp,
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected_runtime_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<i64>,
    max_attempts: u32,
    attempt: u32,
    fence: u64,
    retry: RetryDocument,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    resources: &'a BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    orphan_policy: Option<OrphanPolicy>,
    #[serde(skip_serializing_if = "<[NoticeTarget]>::is_empty")]
    notify: &'a [NoticeTarget],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outbox: Vec<NoticeDocument<'a>>,
    /// How many notices there are, to search for.
    #[serde(skip_serializing_if = "Option::is_none")]
    untold: Option<usize>,
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    watch_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<LeaseDocument<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a Progress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    orphan: Option<OrphanDocument<'a>>,
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    cancel_requested_at: Option<Timestamp>,
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    overdue_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a JobError>,
    history: Vec<HistoryDocument<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    history_folded: u32,
    #[serde(with = "rfc3339")]
    created_at: Timestamp,
    #[serde(with = "rfc3339")]
    updated_at: Timestamp,
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    started_at: Option<Timestamp>,
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    finished_at: Option<Timestamp>,
    /// Derived, to search and to reckon by.
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_time_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_ref: Option<&'a BodyRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_ref: Option<&'a BodyRef>,
    write_id: WriteId,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_write_id: Option<WriteId>,
}

#[derive(Serialize, Deserialize)]
struct RetryDocument {
    base_ms: i64,
    factor: f64,
    max_ms: i64,
    jitter: f64,
}

#[derive(Serialize)]
struct LeaseDocument<'a> {
    worker_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(with = "rfc3339")]
    acquired_at: Timestamp,
    #[serde(with = "rfc3339")]
    heartbeat_at: Timestamp,
    #[serde(with = "rfc3339")]
    expires_at: Timestamp,
    term_ms: i64,
}

#[derive(Serialize)]
struct OrphanDocument<'a> {
    #[serde(with = "rfc3339")]
    flagged_at: Timestamp,
    reason: &'a str,
    held: bool,
}

#[derive(Serialize)]
struct HistoryDocument<'a> {
    #[serde(with = "rfc3339")]
    at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'static str>,
    to: &'static str,
    fence: u64,
    attempt: u32,
    event: EventName,
    actor: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

#[derive(Serialize)]
struct NoticeDocument<'a> {
    number: u32,
    entry: HistoryDocument<'a>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Whole milliseconds, as far as the index's `long` goes.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// The three ways a body is written; at most one is there.
type BodyFields<'a> = (Option<&'a Json>, Option<&'a str>, Option<&'a BodyRef>);

fn body_fields(body: &Body, form: BodyForm) -> BodyFields<'_> {
    match body {
        Body::Empty => (None, None, None),
        Body::Stored(reference) => (None, None, Some(reference)),
        // A line break between JSON's tokens would end the bulk request's line.
        Body::Inline(json) if form == BodyForm::Text || json.as_str().contains('\n') => {
            (None, Some(json.as_str()), None)
        }
        Body::Inline(json) => (Some(json), None, None),
    }
}

impl<'a> JobDocument<'a> {
    fn new(job: &'a Job, ids: WriteIds, form: BodyForm) -> Self {
        let spec = &*job.spec;
        let running = match &job.state {
            State::Running(running) => Some(&**running),
            _ => None,
        };
        let (payload, payload_text, payload_ref) = body_fields(&job.payload, form);
        let (result, result_text, result_ref) = body_fields(job.result(), form);
        Self {
            id: job.id.as_str(),
            queue: spec.queue.as_str(),
            kind: spec.kind.as_str(),
            state: job.state.name().as_str(),
            priority: spec.priority.get(),
            owner: spec.owner.as_ref().map(Owner::as_str),
            labels: &spec.labels,
            run_at: job.run_at,
            expires_at: job.expires_at,
            expected_runtime_ms: spec.expected_runtime.map(millis),
            timeout_ms: spec.timeout.map(millis),
            max_attempts: spec.max_attempts,
            attempt: job.attempt.get(),
            fence: job.fence.get(),
            retry: RetryDocument::from(&spec.retry),
            resources: &spec.resources,
            orphan_policy: spec.oversight.orphan_policy,
            notify: &spec.oversight.notify,
            outbox: job.outbox.iter().map(NoticeDocument::from).collect(),
            untold: Some(job.outbox.len()).filter(|count| *count > 0),
            watch_at: job.watch_at(),
            lease: running.map(|running| LeaseDocument::from(&running.lease)),
            progress: running.and_then(|running| running.progress.as_ref()),
            orphan: running.and_then(|running| running.orphan.as_ref()).map(OrphanDocument::from),
            cancel_requested_at: running.and_then(|running| running.cancel_requested_at),
            overdue_at: running.and_then(|running| running.overdue_at),
            error: job.error.as_ref(),
            history: job.history.entries().iter().map(HistoryDocument::from).collect(),
            history_folded: job.history.folded(),
            created_at: job.created_at,
            updated_at: job.updated_at,
            started_at: job.started_at,
            finished_at: job.finished_at(),
            wait_ms: job.wait().map(millis),
            run_time_ms: job.run_time().map(millis),
            fingerprint: spec.fingerprint.map(|fingerprint| format!("{:032x}", fingerprint.0)),
            payload,
            payload_text,
            payload_ref,
            result,
            result_text,
            result_ref,
            write_id: ids.own,
            previous_write_id: ids.previous,
        }
    }
}

impl From<&RetryPolicy> for RetryDocument {
    fn from(retry: &RetryPolicy) -> Self {
        Self { base_ms: millis(retry.base), factor: retry.factor, max_ms: millis(retry.max), jitter: retry.jitter }
    }
}

impl From<RetryDocument> for RetryPolicy {
    fn from(retry: RetryDocument) -> Self {
        Self { base: duration(retry.base_ms), factor: retry.factor, max: duration(retry.max_ms), jitter: retry.jitter }
    }
}

impl<'a> From<&'a Lease> for LeaseDocument<'a> {
    fn from(lease: &'a Lease) -> Self {
        Self {
            worker_id: lease.worker_id.as_str(),
            request_id: lease.request_id.as_ref().map(RequestId::as_str),
            acquired_at: lease.acquired_at,
            heartbeat_at: lease.heartbeat_at,
            expires_at: lease.expires_at,
            term_ms: millis(lease.term),
        }
    }
}

impl<'a> From<&'a Orphan> for OrphanDocument<'a> {
    fn from(orphan: &'a Orphan) -> Self {
        Self { flagged_at: orphan.flagged_at, reason: &orphan.reason, held: orphan.held }
    }
}

impl<'a> From<&'a HistoryEntry> for HistoryDocument<'a> {
    fn from(entry: &'a HistoryEntry) -> Self {
        Self {
            at: entry.at,
            from: entry.from.map(JobState::as_str),
            to: entry.to.as_str(),
            fence: entry.fence.get(),
            attempt: entry.attempt.get(),
            event: entry.event,
            actor: entry.actor.as_str(),
            reason: entry.reason.as_deref(),
        }
    }
}

impl<'a> From<&'a Notice> for NoticeDocument<'a> {
    fn from(notice: &'a Notice) -> Self {
        Self { number: notice.number, entry: HistoryDocument::from(&notice.entry) }
    }
}

/// The fields that are read. `default` marks what a job may lack.
#[derive(Deserialize)]
struct StoredDocument<'a> {
    id: JobId,
    queue: QueueName,
    kind: Kind,
    state: JobState,
    #[serde(default)]
    priority: i64,
    #[serde(default)]
    owner: Option<Owner>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(with = "rfc3339")]
    run_at: Timestamp,
    #[serde(with = "rfc3339::option", default)]
    expires_at: Option<Timestamp>,
    #[serde(default)]
    expected_runtime_ms: Option<i64>,
    #[serde(default)]
    timeout_ms: Option<i64>,
    max_attempts: u32,
    attempt: u32,
    fence: u64,
    retry: RetryDocument,
    #[serde(default)]
    resources: BTreeMap<String, u64>,
    #[serde(default)]
    orphan_policy: Option<OrphanPolicy>,
    #[serde(default)]
    notify: Vec<NoticeTarget>,
    #[serde(default)]
    outbox: Vec<StoredNotice>,
    #[serde(default)]
    lease: Option<StoredLease>,
    #[serde(default)]
    progress: Option<Progress>,
    #[serde(default)]
    orphan: Option<StoredOrphan>,
    #[serde(with = "rfc3339::option", default)]
    cancel_requested_at: Option<Timestamp>,
    #[serde(with = "rfc3339::option", default)]
    overdue_at: Option<Timestamp>,
    #[serde(default)]
    error: Option<JobError>,
    history: Vec<StoredHistoryEntry>,
    #[serde(default)]
    history_folded: u32,
    #[serde(with = "rfc3339")]
    created_at: Timestamp,
    #[serde(with = "rfc3339")]
    updated_at: Timestamp,
    #[serde(with = "rfc3339::option", default)]
    started_at: Option<Timestamp>,
    #[serde(with = "rfc3339::option", default)]
    finished_at: Option<Timestamp>,
    #[serde(borrow, default)]
    fingerprint: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "present")]
    payload: Option<Json>,
    #[serde(default)]
    payload_text: Option<String>,
    #[serde(default)]
    payload_ref: Option<BodyRef>,
    #[serde(default, deserialize_with = "present")]
    result: Option<Json>,
    #[serde(default)]
    result_text: Option<String>,
    #[serde(default)]
    result_ref: Option<BodyRef>,
    #[serde(default)]
    write_id: Option<WriteId>,
    #[serde(default)]
    previous_write_id: Option<WriteId>,
}

#[derive(Deserialize)]
struct StoredLease {
    worker_id: WorkerId,
    #[serde(default)]
    request_id: Option<RequestId>,
    #[serde(with = "rfc3339")]
    acquired_at: Timestamp,
    #[serde(with = "rfc3339")]
    heartbeat_at: Timestamp,
    #[serde(with = "rfc3339")]
    expires_at: Timestamp,
    term_ms: i64,
}

#[derive(Deserialize)]
struct StoredOrphan {
    #[serde(with = "rfc3339")]
    flagged_at: Timestamp,
    reason: String,
    #[serde(default)]
    held: bool,
}

#[derive(Deserialize)]
struct StoredHistoryEntry {
    #[serde(with = "rfc3339")]
    at: Timestamp,
    #[serde(default)]
    from: Option<JobState>,
    to: JobState,
    fence: u64,
    attempt: u32,
    event: EventName,
    actor: Actor,
    #[serde(default)]
    reason: Option<String>,
}

#[derive(Deserialize)]
struct StoredNotice {
    number: u32,
    entry: StoredHistoryEntry,
}

/// Keeps a body that is the JSON `null` apart from one that is not there.
pub(super) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

fn missing(what: &str) -> serde_json::Error {
    serde::de::Error::custom(what)
}

fn body(json: Option<Json>, text: Option<String>, reference: Option<BodyRef>) -> Result<Body, serde_json::Error> {
    Ok(match (reference, text, json) {
        (Some(reference), _, _) => Body::Stored(reference),
        (None, Some(text), _) => Body::Inline(Json::parse(text)?),
        (None, None, Some(json)) => Body::Inline(json),
        (None, None, None) => Body::Empty,
    })
}

impl StoredDocument<'_> {
    fn into_job(self) -> Result<Job, serde_json::Error> {
        let spec = JobSpec {
            queue: self.queue,
            kind: self.kind,
            priority: Priority::new(self.priority).ok_or_else(|| missing("a priority beyond −100 to 100"))?,
            owner: self.owner,
            labels: self.labels,
            expected_runtime: self.expected_runtime_ms.map(duration),
            timeout: self.timeout_ms.map(duration),
            max_attempts: self.max_attempts,
            retry: self.retry.into(),
            resources: self.resources,
            oversight: Oversight { orphan_policy: self.orphan_policy, notify: self.notify },
            fingerprint: self.fingerprint.map(|hex| fingerprint(&hex)).transpose()?,
        };
        let finished_at = || self.finished_at.ok_or_else(|| missing("a job at its end without `finished_at`"));
        let state = match self.state {
            JobState::Available => State::Available,
            JobState::Running => State::Running(Box::new(Running {
                lease: self.lease.ok_or_else(|| missing("a running job without `lease`"))?.into(),
                progress: self.progress,
                cancel_requested_at: self.cancel_requested_at,
                orphan: self.orphan.map(Orphan::from),
                overdue_at: self.overdue_at,
            })),
            JobState::Completed => State::Completed {
                finished_at: finished_at()?,
                result: body(self.result, self.result_text, self.result_ref)?,
            },
            JobState::Failed => State::Failed { finished_at: finished_at()? },
            JobState::Cancelled => State::Cancelled { finished_at: finished_at()? },
            JobState::Expired => State::Expired { finished_at: finished_at()? },
        };
        let entries = self.history.into_iter().map(HistoryEntry::from).collect();
        Ok(Job {
            id: self.id,
            spec: Arc::new(spec),
            payload: body(self.payload, self.payload_text, self.payload_ref)?,
            state,
            run_at: self.run_at,
            expires_at: self.expires_at,
            attempt: Attempt::new(self.attempt),
            fence: Fence::new(self.fence),
            error: self.error,
            history: History::from_parts(entries, self.history_folded),
            outbox: self.outbox.into_iter().map(Notice::from).collect(),
            created_at: self.created_at,
            updated_at: self.updated_at,
            started_at: self.started_at,
        })
    }
}

fn fingerprint(hex: &str) -> Result<Fingerprint, serde_json::Error> {
    u128::from_str_radix(hex, 16).map(Fingerprint).map_err(|_| missing("a `fingerprint` that is not hexadecimal"))
}

impl From<StoredLease> for Lease {
    fn from(lease: StoredLease) -> Self {
        Self {
            worker_id: lease.worker_id,
            request_id: lease.request_id,
            acquired_at: lease.acquired_at,
            heartbeat_at: lease.heartbeat_at,
            expires_at: lease.expires_at,
            term: duration(lease.term_ms),
        }
    }
}

impl From<StoredOrphan> for Orphan {
    fn from(orphan: StoredOrphan) -> Self {
        Self { flagged_at: orphan.flagged_at, reason: orphan.reason, held: orphan.held }
    }
}

impl From<StoredHistoryEntry> for HistoryEntry {
    fn from(entry: StoredHistoryEntry) -> Self {
        Self {
            at: entry.at,
            from: entry.from,
            to: entry.to,
            fence: Fence::new(entry.fence),
            attempt: Attempt::new(entry.attempt),
            event: entry.event,
            actor: entry.actor,
            reason: entry.reason,
        }
    }
}

impl From<StoredNotice> for Notice {
    fn from(notice: StoredNotice) -> Self {
        Self { number: notice.number, entry: notice.entry.into() }
    }
}

#[cfg(test)]
pub(super) mod tests;
