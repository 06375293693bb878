//! A job as the API returns it: the server writes [`JobAnswer`] straight from the manager's job, without copies of
//! texts and lists, and clients read it as [`Job`].

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use utoipa::{PartialSchema, ToSchema};

use super::described::{Labels, Resources};
use super::hidden::{self, Sight};
use crate::clock::{Timestamp, millis};
use crate::job::{
    self, Actor, Body, ConcurrencyKey, JobId, Json, Kind, OrderingKey, OrphanPolicy, Owner, QueueName, Requirement,
    ScheduleId, State, UniqueKey, WorkerId,
};
pub use crate::job::{
    HistoryEntry, Hold, JobError, JobState, NoticeTarget as NotifyTarget, Orphan, Progress, RetryPolicy,
};
use crate::manager::JobView;
use crate::store::Versioned;

/// A job as a client reads it.
pub type Job = JobAnswer<'static>;

/// A job. Fields that do not apply to it are null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Job)]
pub struct JobAnswer<'a> {
    /// The job's id, unique in the installation.
    #[schema(value_type = JobId, example = "0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd5")]
    pub id: Cow<'a, str>,
    /// The queue from which workers claim the job.
    #[schema(value_type = QueueName, example = "reports")]
    pub queue: Cow<'a, str>,
    /// The kind of work: the name of the handler that runs the job.
    #[schema(value_type = Kind, example = "render")]
    pub kind: Cow<'a, str>,
    /// The input of the work: any JSON. A list leaves it out when it is stored apart from the job, as long payloads
    /// are. The values of a command's `env` are shown to the worker that claims the job, and to administrators who ask.
    #[serde(default, skip_serializing_if = "JobBody::is_apart")]
    #[schema(value_type = Option<Value>)]
    pub payload: JobBody,
    /// The state of the job.
    pub state: JobState,
    /// How urgent the job is within its queue, from −100 to 100; higher goes first.
    #[schema(minimum = -100, maximum = 100)]
    pub priority: i8,
    /// The team or person that the job belongs to.
    #[schema(value_type = Option<Owner>)]
    pub owner: Option<Cow<'a, str>>,
    /// The labels that the job can be found by.
    #[schema(value_type = Labels)]
    pub labels: Cow<'a, BTreeMap<String, String>>,
    /// The earliest time at which the job can be claimed.
    pub run_at: Timestamp,
    /// The start deadline: the job expires when no worker has claimed it by then.
    pub expires_at: Option<Timestamp>,
    /// The note that the job is held, and so is not claimed; null when nobody holds it.
    #[serde(default)]
    #[schema(value_type = Option<Hold>)]
    pub hold: Option<Cow<'a, Hold>>,
    /// How long an attempt is expected to take, in milliseconds; a longer one is overdue.
    pub expected_runtime_ms: Option<u64>,
    /// How long an attempt may take at most, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The most attempts that the job gets.
    pub max_attempts: u32,
    /// The number of claims so far that count as attempts.
    pub attempt: u32,
    /// The number of claims so far, which is the fencing token of the job's latest lease.
    pub fence: u64,
    /// How long the job waits between attempts.
    pub retry: RetryPolicy,
    /// The resources that the job needs, by name.
    #[schema(value_type = Resources)]
    pub resources: Cow<'a, BTreeMap<String, u64>>,
    /// What the job requires of the labels that a worker offers, each in its normal form.
    #[schema(value_type = Vec<Requirement>)]
    pub requires: Cow<'a, [Requirement]>,
    /// The key of which only so many jobs run at once.
    #[schema(value_type = Option<ConcurrencyKey>)]
    pub concurrency_key: Option<Cow<'a, str>>,
    /// The most jobs of the key that run at once, unless a limit is set for the key.
    pub max_concurrent: Option<u32>,
    /// The key of which at most one job waits or runs.
    #[schema(value_type = Option<UniqueKey>)]
    pub unique_key: Option<Cow<'a, str>>,
    /// The key whose jobs run one after another.
    #[schema(value_type = Option<OrderingKey>)]
    pub ordering_key: Option<Cow<'a, str>>,
    /// The job's place in the line of its ordering key: it begins once all jobs with smaller ones have ended. It is
    /// another one after each retry on request.
    pub order_seq: Option<u64>,
    /// What happens when the job's lease expires. The queue's policy applies when null.
    pub orphan_policy: Option<OrphanPolicy>,
    /// The receivers of notifications about the job. Their addresses are shown to administrators who ask.
    #[schema(value_type = Vec<NotifyTarget>)]
    pub notify: Cow<'a, [NotifyTarget]>,
    /// The lease of the worker that runs the job; null unless the job is running.
    #[schema(value_type = Option<Lease>)]
    pub lease: Option<Lease<'a>>,
    /// The progress of the work that the worker last reported.
    #[schema(value_type = Option<Progress>)]
    pub progress: Option<Cow<'a, Progress>>,
    /// The flag of a running job that looks abandoned; null when the job is not flagged.
    #[schema(value_type = Option<Orphan>)]
    pub orphan: Option<Cow<'a, Orphan>>,
    /// When the cancellation of the running job was requested.
    pub cancel_requested_at: Option<Timestamp>,
    /// When the running attempt was found to take longer than expected.
    pub overdue_at: Option<Timestamp>,
    /// The output of the work: any JSON. A list leaves it out when it is stored apart from the job.
    #[serde(default, skip_serializing_if = "JobBody::is_apart")]
    #[schema(value_type = Option<Value>)]
    pub result: JobBody,
    /// How the latest attempt failed, if it did.
    #[schema(value_type = Option<JobError>)]
    pub error: Option<Cow<'a, JobError>>,
    /// The job's transitions, oldest first; beyond 50, the first 25 and the last 25.
    #[schema(value_type = Vec<HistoryEntry>)]
    pub history: Cow<'a, [HistoryEntry]>,
    /// The number of transitions that are left out of the middle of `history`.
    pub history_folded: u32,
    /// When the job was submitted.
    pub created_at: Timestamp,
    /// When the job was last written.
    pub updated_at: Timestamp,
    /// When the latest attempt began.
    pub started_at: Option<Timestamp>,
    /// When the job reached its final state.
    pub finished_at: Option<Timestamp>,
    /// The schedule that the job was made for.
    #[schema(value_type = Option<ScheduleId>)]
    pub schedule_id: Option<Cow<'a, str>>,
    /// The time at which the schedule was due.
    pub due_at: Option<Timestamp>,
    /// The ended job that this one runs again.
    #[serde(default)]
    #[schema(value_type = Option<JobId>)]
    pub rerun_of: Option<Cow<'a, str>>,
    /// The version of the job's document.
    pub version: Version,
}

/// The lease that a worker holds on a running job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Lease)]
pub struct Lease<'a> {
    /// The worker that holds the lease.
    #[schema(value_type = WorkerId)]
    pub worker_id: Cow<'a, str>,
    /// The name of the token that the lease was taken with: only calls with a token of this name, or an
    /// administrator's, change the lease. Left out for a lease without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Actor>)]
    pub holder: Option<Cow<'a, str>>,
    /// The fencing token that the worker sends with every call about this claim.
    pub fence: u64,
    /// When the lease was acquired.
    pub acquired_at: Timestamp,
    /// When the worker last sent a heartbeat.
    pub heartbeat_at: Timestamp,
    /// When the lease ends unless another heartbeat prolongs it.
    pub expires_at: Timestamp,
}

/// The version of a job's document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// The sequence number of the write.
    pub seq_no: u64,
    /// The term of the primary copy that took the write.
    pub primary_term: u64,
}

/// A payload or a result in an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum JobBody {
    /// The body; `None` when the job has none.
    Known(Option<Json>),
    /// The body is stored apart from the job and was not read: the field is left out.
    #[default]
    Apart,
}

impl JobBody {
    /// Returns the body, when there is one and it was read.
    #[must_use]
    pub const fn as_json(&self) -> Option<&Json> {
        match self {
            Self::Known(json) => json.as_ref(),
            Self::Apart => None,
        }
    }

    const fn is_apart(&self) -> bool {
        matches!(self, Self::Apart)
    }
}

impl From<&Body> for JobBody {
    fn from(body: &Body) -> Self {
        match body {
            Body::Empty => Self::Known(None),
            Body::Inline(json) => Self::Known(Some(json.clone())),
            Body::Stored(_) => Self::Apart,
        }
    }
}

impl Serialize for JobBody {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JobBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(Self::Known)
    }
}

impl<'a> JobAnswer<'a> {
    /// Returns a job with the bodies that were read with it.
    #[must_use]
    pub fn with_bodies(view: &'a JobView, sight: Sight) -> Self {
        let payload = JobBody::Known(view.payload.clone());
        let result = JobBody::Known(view.result.clone());
        Self { payload, result, ..Self::whole(&view.versioned) }.seen_by(sight)
    }

    /// Returns a job, without the bodies that are stored apart from it.
    #[must_use]
    pub fn of(versioned: &'a Versioned, sight: Sight) -> Self {
        Self::whole(versioned).seen_by(sight)
    }

    fn seen_by(self, sight: Sight) -> Self {
        match sight {
            Sight::Everything => self,
            Sight::Reader => {
                let payload = match self.payload {
                    JobBody::Known(Some(payload)) => JobBody::Known(Some(hidden::payload(&payload, &self.kind))),
                    none => none,
                };
                let notify = match self.notify {
                    Cow::Borrowed(targets) => hidden::targets(targets),
                    Cow::Owned(targets) => Cow::Owned(hidden::targets(&targets).into_owned()),
                };
                Self { payload, notify, ..self }
            }
            Sight::Course => Self {
                payload: JobBody::Apart,
                result: JobBody::Apart,
                owner: None,
                labels: Cow::Owned(BTreeMap::new()),
                hold: self.hold.map(|hold| Cow::Owned(Hold { reason: None, ..hold.into_owned() })),
                notify: Cow::Borrowed(&[]),
                progress: None,
                error: None,
                orphan: None,
                history: Cow::Borrowed(&[]),
                ..self
            },
        }
    }

    fn whole(versioned: &'a Versioned) -> Self {
        let job = &*versioned.job;
        let spec = &*job.spec;
        let running = match &job.state {
            State::Running(running) => Some(running.as_ref()),
            _ => None,
        };
        Self {
            id: job.id.as_str().into(),
            queue: spec.queue.as_str().into(),
            kind: spec.kind.as_str().into(),
            payload: JobBody::from(&job.payload),
            state: job.state.name(),
            priority: spec.priority.get(),
            owner: spec.owner.as_ref().map(|owner| owner.as_str().into()),
            labels: Cow::Borrowed(&spec.labels),
            run_at: job.run_at,
            expires_at: job.expires_at,
            hold: job.hold.as_deref().map(Cow::Borrowed),
            expected_runtime_ms: spec.expected_runtime.map(millis),
            timeout_ms: spec.timeout.map(millis),
            max_attempts: spec.max_attempts,
            attempt: job.attempt.get(),
            fence: job.fence.get(),
            retry: spec.retry,
            resources: Cow::Borrowed(&spec.resources),
            requires: Cow::Borrowed(spec.requires()),
            concurrency_key: spec.concurrency().map(|concurrency| concurrency.key.as_str().into()),
            max_concurrent: spec.concurrency().map(|concurrency| concurrency.max),
            unique_key: spec.unique().map(|key| key.as_str().into()),
            ordering_key: spec.ordering_key().map(|key| key.as_str().into()),
            order_seq: spec.ordering().map(|ordering| ordering.seq),
            orphan_policy: spec.oversight.orphan_policy,
            notify: Cow::Borrowed(&spec.oversight.notify),
            lease: running.map(|running| Lease::new(&running.lease, job.fence)),
            progress: running.and_then(|running| running.progress.as_ref()).map(Cow::Borrowed),
            orphan: running.and_then(|running| running.orphan.as_ref()).map(Cow::Borrowed),
            cancel_requested_at: running.and_then(|running| running.cancel_requested_at),
            overdue_at: running.and_then(|running| running.overdue_at),
            result: JobBody::from(job.result()),
            error: job.error.as_ref().map(Cow::Borrowed),
            history: Cow::Borrowed(job.history.entries()),
            history_folded: job.history.folded(),
            created_at: job.created_at,
            updated_at: job.updated_at,
            started_at: job.started_at,
            finished_at: job.finished_at(),
            schedule_id: spec.due.as_ref().map(|due| due.schedule_id.as_str().into()),
            due_at: spec.due.as_ref().map(|due| due.due_at),
            rerun_of: spec.rerun_of.as_ref().map(|id| id.as_str().into()),
            version: Version { seq_no: versioned.version.seq_no, primary_term: versioned.version.primary_term },
        }
    }
}

impl<'a> Lease<'a> {
    fn new(lease: &'a job::Lease, fence: job::Fence) -> Self {
        Self {
            worker_id: lease.worker_id.as_str().into(),
            holder: lease.holder.as_ref().map(|holder| holder.as_str().into()),
            fence: fence.get(),
            acquired_at: lease.acquired_at,
            heartbeat_at: lease.heartbeat_at,
            expires_at: lease.expires_at,
        }
    }
}

/// The names of a job's fields in an answer, from the schema of [`Job`], with dots between a field and its inner
/// fields. Labels, resources and bodies can have inner fields of any name.
pub(crate) static JOB_FIELDS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut parts = Vec::new();
    Job::schemas(&mut parts);
    let parts = parts.into_iter().map(|(name, schema)| (name, serde_json::json!(schema))).collect();
    let mut fields = Vec::new();
    collect_fields("", &serde_json::json!(Job::schema()), &parts, &mut fields);
    fields
});

/// Collects the properties of a schema and of all that it refers to.
fn collect_fields(prefix: &str, schema: &Value, parts: &HashMap<String, Value>, fields: &mut Vec<String>) {
    let inner = |schema: &Value, fields: &mut Vec<String>| collect_fields(prefix, schema, parts, fields);
    if let Some(part) = schema["$ref"].as_str().and_then(|path| parts.get(path.rsplit('/').next()?)) {
        inner(part, fields);
    }
    if let Some(variants) = schema["oneOf"].as_array() {
        variants.iter().for_each(|variant| inner(variant, fields));
    }
    if schema["items"].is_object() {
        inner(&schema["items"], fields);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        fields.push(name.clone());
        collect_fields(&name, property, parts, fields);
    }
}

#[cfg(test)]
mod tests;
