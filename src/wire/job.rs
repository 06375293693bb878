//! A job, as the API gives it: [`Job`] for whoever reads it, [`JobOut`] for the server, which writes the very same
//! fields straight from what the manager holds. A test holds the two together.

use std::collections::BTreeMap;

use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use crate::clock::{Timestamp, rfc3339};
pub use crate::job::JobState;
use crate::job::{self, Body, EventName, Json, NoticeFormat, NoticeTarget, OrphanPolicy, State};
use crate::manager::JobView;
use crate::store::Versioned;

/// A job with all that is known of it. What it does not have is null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its name, unique in the installation.
    #[schema(example = "0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd5")]
    pub id: String,
    /// The line it waits in.
    #[schema(example = "reports")]
    pub queue: String,
    /// Its handler's name.
    #[schema(example = "render")]
    pub kind: String,
    /// Its input: any JSON. Left out of a list when it is kept apart from the job, which a long one is.
    #[serde(default)]
    #[schema(value_type = Option<Value>)]
    pub payload: Option<Json>,
    /// Where it stands.
    pub state: JobState,
    /// How urgent it is, from −100 to 100; higher goes first.
    #[schema(minimum = -100, maximum = 100)]
    pub priority: i8,
    /// Who it belongs to.
    pub owner: Option<String>,
    /// Whatever it is to be found by.
    pub labels: BTreeMap<String, String>,
    /// Not claimed before this time.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub run_at: Timestamp,
    /// Expires when not claimed by then.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// How long an attempt is expected to take.
    pub expected_runtime_ms: Option<u64>,
    /// How long an attempt may take at most.
    pub timeout_ms: Option<u64>,
    /// How many attempts it gets.
    pub max_attempts: u32,
    /// How many claims count against them.
    pub attempt: u32,
    /// How often it was ever claimed: the fencing token of its latest lease.
    pub fence: u64,
    /// How long to wait between attempts.
    pub retry: RetryPolicy,
    /// What it needs of a machine.
    pub resources: BTreeMap<String, u64>,
    /// What happens when its lease expires: `requeue`, `fail` or `flag`; the queue's rule when null.
    #[schema(value_type = Option<String>)]
    pub orphan_policy: Option<OrphanPolicy>,
    /// Who is told of its events.
    pub notify: Vec<NotifyTarget>,
    /// Who runs it; only a running job has one.
    pub lease: Option<Lease>,
    /// How far the work is, as its worker tells it.
    pub progress: Option<Progress>,
    /// Since when it looks abandoned, and why.
    pub orphan: Option<Orphan>,
    /// Since when its worker is asked to stop.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub cancel_requested_at: Option<Timestamp>,
    /// Since when its attempt is known to run for longer than expected.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub overdue_at: Option<Timestamp>,
    /// Its output: any JSON. Left out of a list when it is kept apart from the job.
    #[serde(default)]
    #[schema(value_type = Option<Value>)]
    pub result: Option<Json>,
    /// How the latest attempt failed, if it did.
    pub error: Option<JobError>,
    /// Every transition, oldest first; past 50 the first and the last 25.
    pub history: Vec<HistoryEntry>,
    /// How many transitions are missing from the middle of `history`.
    pub history_folded: u32,
    /// When it was submitted.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it was last written.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// When the latest attempt began.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// When it reached its final state.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
    /// Which writing of the job this is.
    pub version: Version,
}

/// The fields of a job as it is given, with dots for those inside of others. Labels, resources and bodies have any.
#[rustfmt::skip]
pub(crate) const JOB_FIELDS: &[&str] = &[
    "id", "queue", "kind", "payload", "state", "priority", "owner", "labels", "run_at", "expires_at",
    "expected_runtime_ms", "timeout_ms", "max_attempts", "attempt", "fence",
    "retry", "retry.base_ms", "retry.factor", "retry.max_ms", "retry.jitter",
    "resources", "orphan_policy", "notify", "notify.url", "notify.events", "notify.format",
    "lease", "lease.worker_id", "lease.fence", "lease.acquired_at", "lease.heartbeat_at", "lease.expires_at",
    "progress", "progress.percent", "progress.message", "orphan", "orphan.flagged_at", "orphan.reason", "orphan.held",
    "cancel_requested_at", "overdue_at", "result", "error", "error.code", "error.message",
    "history", "history.at", "history.from", "history.to", "history.fence", "history.attempt", "history.event",
    "history.actor", "history.reason", "history_folded", "created_at", "updated_at", "started_at", "finished_at",
    "version", "version.seq_no", "version.primary_term",
];

/// How long to wait before the next attempt: `base_ms × factor^(attempt − 1)`, at most `max_ms`, of which the share
/// `jitter` is left to chance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RetryPolicy {
    /// The wait after the first attempt.
    #[schema(example = 1000)]
    pub base_ms: u64,
    /// What each further wait is multiplied by.
    #[schema(example = 2.0)]
    pub factor: f64,
    /// The longest wait.
    #[schema(example = 600_000)]
    pub max_ms: u64,
    /// The share of the wait, from 0 to 1, that is left to chance.
    #[schema(example = 0.2)]
    pub jitter: f64,
}

/// A claim's term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// Who holds it.
    pub worker_id: String,
    /// The fencing token to show with every call about this claim.
    pub fence: u64,
    /// Since when.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub acquired_at: Timestamp,
    /// When its holder was last heard of.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub heartbeat_at: Timestamp,
    /// Until when it lasts without a heartbeat.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}

/// How far the work is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// From 0 to 100.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 100, example = 42.5)]
    pub percent: Option<f64>,
    /// In words.
    #[serde(default)]
    #[schema(example = "page 17 of 40")]
    pub message: Option<String>,
}

/// Why a running job looks abandoned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Orphan {
    /// Since when it is flagged.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub flagged_at: Timestamp,
    /// Why.
    pub reason: String,
    /// Whether it is left alone until a person decides.
    pub held: bool,
}

/// Somebody who is told of a job's events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NotifyTarget {
    /// Where to: an `http` or `https` URL.
    #[schema(example = "https://example.org/hook")]
    pub url: String,
    /// Of which: `completed`, `failed`, `cancelled`, `expired`, `orphaned`, `overdue`, `released`, `retried`. Of all of
    /// them when none is named.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub events: Vec<EventName>,
    /// In which form: `cloud_events`, `slack` or `alertmanager`. `cloud_events` when not said.
    #[serde(default)]
    #[schema(value_type = String)]
    pub format: NoticeFormat,
}

impl From<&NoticeTarget> for NotifyTarget {
    fn from(target: &NoticeTarget) -> Self {
        Self { url: target.url.clone(), events: target.events.clone(), format: target.format }
    }
}

impl From<NotifyTarget> for NoticeTarget {
    fn from(target: NotifyTarget) -> Self {
        Self { url: target.url, events: target.events, format: target.format }
    }
}

/// What went wrong in an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobError {
    /// A stable word for programs.
    #[schema(example = "exit")]
    pub code: String,
    /// A sentence for people.
    #[schema(example = "the program ended with status 2")]
    pub message: String,
}

/// One transition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryEntry {
    /// When.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// From which state; null for the submission.
    pub from: Option<JobState>,
    /// To which state.
    pub to: JobState,
    /// The fence after it.
    pub fence: u64,
    /// The attempts counted after it.
    pub attempt: u32,
    /// What happened, in a word: `submitted`, `claimed`, `retried`, …
    #[schema(value_type = String, example = "claimed")]
    pub event: EventName,
    /// Who did it.
    pub actor: String,
    /// Why, where there is more to say than the states do.
    pub reason: Option<String>,
}

/// Which writing of a job this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// The number of the write.
    pub seq_no: u64,
    /// The term in which it was written.
    pub primary_term: u64,
}

/// A payload or result on its way out.
#[derive(Clone, Copy)]
enum BodyOut<'a> {
    /// This, or null.
    Known(Option<&'a Json>),
    /// Kept apart and not looked up: the field is left out.
    Apart,
}

impl BodyOut<'_> {
    fn is_apart(&self) -> bool {
        matches!(self, Self::Apart)
    }
}

impl<'a> From<&'a Body> for BodyOut<'a> {
    fn from(body: &'a Body) -> Self {
        match body {
            Body::Empty => Self::Known(None),
            Body::Inline(json) => Self::Known(Some(json)),
            Body::Stored(_) => Self::Apart,
        }
    }
}

impl Serialize for BodyOut<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Known(Some(json)) => json.serialize(serializer),
            Self::Known(None) | Self::Apart => serializer.serialize_none(),
        }
    }
}

/// A job on its way out, written straight from the manager's view of it.
#[derive(Serialize)]
pub(crate) struct JobOut<'a> {
    id: &'a str,
    queue: &'a str,
    kind: &'a str,
    #[serde(skip_serializing_if = "BodyOut::is_apart")]
    payload: BodyOut<'a>,
    state: JobState,
    priority: i8,
    owner: Option<&'a str>,
    labels: &'a BTreeMap<String, String>,
    #[serde(with = "rfc3339")]
    run_at: Timestamp,
    #[serde(with = "rfc3339::option")]
    expires_at: Option<Timestamp>,
    expected_runtime_ms: Option<u64>,
    timeout_ms: Option<u64>,
    max_attempts: u32,
    attempt: u32,
    fence: u64,
    retry: RetryPolicy,
    resources: &'a BTreeMap<String, u64>,
    orphan_policy: Option<OrphanPolicy>,
    notify: Vec<NotifyTarget>,
    lease: Option<LeaseOut<'a>>,
    progress: Option<&'a job::Progress>,
    orphan: Option<OrphanOut<'a>>,
    #[serde(with = "rfc3339::option")]
    cancel_requested_at: Option<Timestamp>,
    #[serde(with = "rfc3339::option")]
    overdue_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "BodyOut::is_apart")]
    result: BodyOut<'a>,
    error: Option<&'a job::JobError>,
    history: HistoryOut<'a>,
    history_folded: u32,
    #[serde(with = "rfc3339")]
    created_at: Timestamp,
    #[serde(with = "rfc3339")]
    updated_at: Timestamp,
    #[serde(with = "rfc3339::option")]
    started_at: Option<Timestamp>,
    #[serde(with = "rfc3339::option")]
    finished_at: Option<Timestamp>,
    version: Version,
}

impl<'a> From<&'a JobView> for JobOut<'a> {
    fn from(view: &'a JobView) -> Self {
        let payload = BodyOut::Known(view.payload.as_ref());
        let result = BodyOut::Known(view.result.as_ref());
        Self { payload, result, ..Self::from(&view.versioned) }
    }
}

impl<'a> From<&'a Versioned> for JobOut<'a> {
    fn from(versioned: &'a Versioned) -> Self {
        let job = &*versioned.job;
        let spec = &*job.spec;
        let running = match &job.state {
            State::Running(running) => Some(running.as_ref()),
            _ => None,
        };
        Self {
            id: job.id.as_str(),
            queue: spec.queue.as_str(),
            kind: spec.kind.as_str(),
            payload: BodyOut::from(&job.payload),
            state: job.state.name(),
            priority: spec.priority.get(),
            owner: spec.owner.as_ref().map(job::Owner::as_str),
            labels: &spec.labels,
            run_at: job.run_at,
            expires_at: job.expires_at,
            expected_runtime_ms: spec.expected_runtime.map(millis),
            timeout_ms: spec.timeout.map(millis),
            max_attempts: spec.max_attempts,
            attempt: job.attempt.get(),
            fence: job.fence.get(),
            retry: spec.retry.into(),
            resources: &spec.resources,
            orphan_policy: spec.oversight.orphan_policy,
            notify: spec.oversight.notify.iter().map(NotifyTarget::from).collect(),
            lease: running.map(|running| LeaseOut::new(&running.lease, job.fence)),
            progress: running.and_then(|running| running.progress.as_ref()),
            orphan: running.and_then(|running| running.orphan.as_ref()).map(OrphanOut::from),
            cancel_requested_at: running.and_then(|running| running.cancel_requested_at),
            overdue_at: running.and_then(|running| running.overdue_at),
            result: BodyOut::from(job.result()),
            error: job.error.as_ref(),
            history: HistoryOut(job.history.entries()),
            history_folded: job.history.folded(),
            created_at: job.created_at,
            updated_at: job.updated_at,
            started_at: job.started_at,
            finished_at: job.finished_at(),
            version: Version { seq_no: versioned.version.seq_no, primary_term: versioned.version.primary_term },
        }
    }
}

impl From<job::RetryPolicy> for RetryPolicy {
    fn from(retry: job::RetryPolicy) -> Self {
        let job::RetryPolicy { base, factor, max, jitter } = retry;
        Self { base_ms: millis(base), factor, max_ms: millis(max), jitter }
    }
}

#[derive(Serialize)]
struct LeaseOut<'a> {
    worker_id: &'a str,
    fence: u64,
    #[serde(with = "rfc3339")]
    acquired_at: Timestamp,
    #[serde(with = "rfc3339")]
    heartbeat_at: Timestamp,
    #[serde(with = "rfc3339")]
    expires_at: Timestamp,
}

impl<'a> LeaseOut<'a> {
    fn new(lease: &'a job::Lease, fence: job::Fence) -> Self {
        Self {
            worker_id: lease.worker_id.as_str(),
            fence: fence.get(),
            acquired_at: lease.acquired_at,
            heartbeat_at: lease.heartbeat_at,
            expires_at: lease.expires_at,
        }
    }
}

#[derive(Serialize)]
struct OrphanOut<'a> {
    #[serde(with = "rfc3339")]
    flagged_at: Timestamp,
    reason: &'a str,
    held: bool,
}

impl<'a> From<&'a job::Orphan> for OrphanOut<'a> {
    fn from(orphan: &'a job::Orphan) -> Self {
        Self { flagged_at: orphan.flagged_at, reason: &orphan.reason, held: orphan.held }
    }
}

struct HistoryOut<'a>(&'a [job::HistoryEntry]);

impl Serialize for HistoryOut<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for entry in self.0 {
            list.serialize_element(&EntryOut {
                at: entry.at,
                from: entry.from,
                to: entry.to,
                fence: entry.fence.get(),
                attempt: entry.attempt.get(),
                event: entry.event,
                actor: entry.actor.as_str(),
                reason: entry.reason.as_deref(),
            })?;
        }
        list.end()
    }
}

#[derive(Serialize)]
struct EntryOut<'a> {
    #[serde(with = "rfc3339")]
    at: Timestamp,
    from: Option<JobState>,
    to: JobState,
    fence: u64,
    attempt: u32,
    event: EventName,
    actor: &'a str,
    reason: Option<&'a str>,
}

/// Whole milliseconds, which is all that a duration that came in as such has.
fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
