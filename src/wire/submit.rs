//! A job as a client submits it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::NotifyTarget;
use super::check::{Checks, Invalid, MAX_ATTEMPTS, MAX_RETRY_MS, MAX_RUNTIME_MS, RESERVED_IDS};
use crate::job::{self, JobSpec, Json, OrphanPolicy, Oversight, Priority};
use crate::manager::NewJob;

/// A job to be submitted. Only `queue` and `kind` must be said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "queue": "reports", "kind": "render", "payload": {"month": "2030-01"}, "priority": 10, "owner": "billing",
    "labels": {"customer": "17"}, "expected_runtime_ms": 60_000, "timeout_ms": 600_000, "max_attempts": 5,
}))]
pub struct SubmitJob {
    /// The client's own id for it; made by the server when there is none. Submitting the same job under the same id
    /// again gives the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub id: Option<String>,
    /// The client's key for this submission, so that it can be repeated: as the `Idempotency-Key` header, and the only
    /// way to give one to each line of a bulk submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub idempotency_key: Option<String>,
    /// The line it waits in.
    #[schema(min_length = 1, max_length = 256)]
    pub queue: String,
    /// Its handler's name.
    #[schema(min_length = 1, max_length = 256)]
    pub kind: String,
    /// Its input: any JSON of at most 1 MiB, carried as it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    pub payload: Option<Json>,
    /// How urgent it is; higher goes first. 0 when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -100, maximum = 100)]
    pub priority: Option<i64>,
    /// Who it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub owner: Option<String>,
    /// Whatever it is to be found by; at most 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Not before this time; now, when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub run_at: Option<String>,
    /// Not after this time, if not claimed by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    /// How long an attempt is expected to take; at most a year.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_622_400_000_u64)]
    pub expected_runtime_ms: Option<u64>,
    /// How long an attempt may take at most; at most a year.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_622_400_000_u64)]
    pub timeout_ms: Option<u64>,
    /// How many attempts it gets. 3 when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub max_attempts: Option<u64>,
    /// How long to wait between attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryOptions>,
    /// What it needs of a machine, by the resource's name: `cpu_millis`, `memory_mib`, `gpus`, …; at most 32.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, u64>,
    /// What happens when its lease expires: `requeue`, `fail` or `flag`. The queue's rule when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub orphan_policy: Option<OrphanPolicy>,
    /// Who is told of its events; at most 10.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<NotifyTarget>,
}

/// How long to wait between attempts; what is not said has its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryOptions {
    /// The wait after the first attempt. 1,000 when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 604_800_000)]
    pub base_ms: Option<u64>,
    /// What each further wait is multiplied by. 2 when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub factor: Option<f64>,
    /// The longest wait. 600,000 when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 604_800_000)]
    pub max_ms: Option<u64>,
    /// The share of the wait that is left to chance. 0.2 when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1)]
    pub jitter: Option<f64>,
}

impl SubmitJob {
    /// A job of which only the queue and the kind are said.
    #[must_use]
    pub fn new(queue: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { queue: queue.into(), kind: kind.into(), ..Self::default() }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// Every field that is wrong.
    pub fn into_new_job(self) -> Result<NewJob, Invalid> {
        let mut checks = Checks::default();
        let queue = checks.queue("queue", &self.queue);
        let kind = checks.name("kind", &self.kind);
        let id = checks.optional_name("id", self.id.as_deref());
        if let Some(reserved) = RESERVED_IDS.iter().find(|reserved| self.id.as_deref() == Some(**reserved)) {
            checks.fault("id", format!("`{reserved}` is the name of a call and cannot be an id"));
        }
        let owner = checks.optional_name("owner", self.owner.as_deref());
        // A key is no name of ours, but it obeys the same rules.
        checks.optional_name::<job::RequestId>("idempotency_key", self.idempotency_key.as_deref());
        let priority =
            checks.within("priority", self.priority.unwrap_or_default(), Priority::LOWEST..=Priority::HIGHEST);
        checks.body("payload", self.payload.as_ref());
        checks.labels(&self.labels);
        checks.resources(&self.resources);
        checks.notify("notify", &self.notify);
        let run_at = checks.time("run_at", self.run_at.as_deref());
        let expires_at = checks.time("expires_at", self.expires_at.as_deref());
        let mut runtime =
            |field, value: Option<u64>| value.map(|value| checks.millis(field, value, 1..=MAX_RUNTIME_MS));
        let expected_runtime = runtime("expected_runtime_ms", self.expected_runtime_ms);
        let timeout = runtime("timeout_ms", self.timeout_ms);
        let max_attempts = self.max_attempts.unwrap_or(u64::from(JobSpec::DEFAULT_MAX_ATTEMPTS));
        checks.within("max_attempts", max_attempts, 1..=MAX_ATTEMPTS);
        let retry = self.retry.unwrap_or_default().check(&mut checks);
        let ((queue, kind), priority) = checks.finish(queue.zip(kind).zip(Priority::new(priority)))?;
        Ok(NewJob {
            id,
            idempotency_key: self.idempotency_key,
            payload: self.payload,
            run_at,
            expires_at,
            spec: JobSpec {
                priority,
                owner,
                labels: self.labels,
                expected_runtime,
                timeout,
                max_attempts: u32::try_from(max_attempts).unwrap_or(u32::MAX),
                retry,
                resources: self.resources,
                oversight: Oversight { orphan_policy: self.orphan_policy, notify: self.notify },
                ..JobSpec::new(queue, kind)
            },
        })
    }
}

impl RetryOptions {
    fn check(self, checks: &mut Checks) -> job::RetryPolicy {
        let defaults = job::RetryPolicy::default();
        let millis = |checks: &mut Checks, field, value: Option<u64>, default: Duration| {
            value.map_or(default, |value| checks.millis(field, value, 0..=MAX_RETRY_MS))
        };
        let base = millis(checks, "retry.base_ms", self.base_ms, defaults.base);
        let max = millis(checks, "retry.max_ms", self.max_ms, defaults.max);
        if base > max {
            let longest = max.as_millis();
            checks.fault("retry.base_ms", format!("must not be longer than the longest wait, {longest} ms"));
        }
        let factor = checks.within("retry.factor", self.factor.unwrap_or(defaults.factor), 1.0..=100.0);
        let jitter = checks.within("retry.jitter", self.jitter.unwrap_or(defaults.jitter), 0.0..=1.0);
        job::RetryPolicy { base, factor, max, jitter }
    }
}
