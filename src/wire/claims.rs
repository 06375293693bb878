//! Claims, by themselves and beside the ends of attempts.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::bulk::{CompletionItem, ItemError};
use super::check::{Checks, Invalid, LEASE_MS, MAX_CLAIMED_JOBS, MAX_CLAIMED_KINDS, MAX_CLAIMED_QUEUES, MAX_WAIT_MS};
use super::described::{QueueWeights, Resources, UserQueue, UserWorker};
use super::job::Job;
use crate::job::{Kind, OfferedLabels, QueueName, RequestId};
use crate::manager::{self, ClaimOrder, MAX_QUEUE_WEIGHT, QueueOrder};

/// The default length of a lease, in milliseconds.
pub const DEFAULT_LEASE_MS: u64 = 60_000;

/// A worker's request for jobs.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "worker_id": "host7:4711", "queues": ["reports"], "max_jobs": 10, "wait_ms": 20_000, "lease_ms": 60_000,
}))]
pub struct ClaimJobs {
    /// The worker's name, which no other worker may have.
    #[schema(value_type = UserWorker)]
    pub worker_id: String,
    /// The queues to claim from; 1 to 64.
    #[schema(value_type = Vec<UserQueue>, min_items = 1, max_items = 64)]
    pub queues: Vec<String>,
    /// The most jobs to claim, up to 1,000. 1 by default.
    #[schema(minimum = 1, maximum = 1000)]
    pub max_jobs: Option<u64>,
    /// The resources that the worker offers to these jobs together, by name; at most 32. Jobs that need more of a
    /// resource, or a resource that is not named here, are not claimed. When empty, the worker takes any job.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "serde_with::rust::maps_duplicate_key_is_error::deserialize"
    )]
    #[schema(value_type = Resources, example = json!({"memory_mib": 4096}))]
    pub resources: BTreeMap<String, u64>,
    /// The labels that the worker offers, by name; at most 64. Jobs whose `requires` they do not meet are not claimed.
    /// A name has 1 to 64 letters, digits, `_`, `-` or `.`, and a value at most 128 bytes.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "serde_with::rust::maps_duplicate_key_is_error::deserialize"
    )]
    #[schema(value_type = OfferedLabels, example = json!({"hw": "fpga", "build": "43"}))]
    pub labels: BTreeMap<String, String>,
    /// The kinds of the jobs to claim, at most 64. Jobs of other kinds are not claimed. When empty, the worker takes
    /// jobs of any kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Kind>, max_items = 64, example = json!(["report", "mail"]))]
    pub kinds: Vec<String>,
    /// How long to wait for the first job, at most 60,000 milliseconds. 0 by default.
    #[schema(minimum = 0, maximum = 60_000)]
    pub wait_ms: Option<u64>,
    /// How long each lease lasts without a heartbeat, from 100 to 86,400,000 milliseconds. 60,000 by default.
    #[schema(minimum = 100, maximum = 86_400_000)]
    pub lease_ms: Option<u64>,
    /// From which of the queues the call claims next: `dispatch` for the most urgent job of all, which is the default;
    /// `strict` for the queues in the order in which they are named, each before the next; `weighted` to let the queues
    /// take turns.
    #[schema(nullable = false)]
    pub queue_order: Option<QueueOrder>,
    /// The weights of queues that take turns: one gives so many jobs, from 1 to 1,000, for each of a queue that is not
    /// named here.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "serde_with::rust::maps_duplicate_key_is_error::deserialize"
    )]
    #[schema(value_type = QueueWeights, example = json!({"reports": 3}))]
    pub queue_weights: BTreeMap<String, u64>,
    /// The worker's name for this call, another one for each. The same call again returns those jobs of the first
    /// answer that the worker still holds, so that a lost answer loses no time, and takes no others.
    #[schema(value_type = Option<RequestId>)]
    pub request_id: Option<String>,
    /// Whether this call repeats one with the same `request_id` whose answer was lost. If true, jobs that another
    /// server claimed for it are found too. False by default.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
}

impl ClaimJobs {
    /// Checks every field, and returns the request in the types of the domain.
    ///
    /// # Errors
    /// Every field that is wrong, by name.
    pub fn into_claim(self) -> Result<manager::ClaimRequest, Invalid> {
        let mut checks = Checks::default();
        let worker_id = checks.worker(&self.worker_id);
        if self.queues.is_empty() {
            checks.fault("queues", "must name at least one queue");
        }
        checks.count("queues", self.queues.len(), MAX_CLAIMED_QUEUES);
        let named = self.queues.iter().take(MAX_CLAIMED_QUEUES).enumerate();
        let named: Vec<Option<QueueName>> =
            named.map(|(index, name)| checks.queue(&format!("queues[{index}]"), name)).collect();
        let (queues, order) = checks.queue_order(named, self.queue_order.unwrap_or_default(), &self.queue_weights);
        checks.resources(&self.resources);
        checks.offered(&self.labels);
        let mut kinds: Vec<Kind> = checks.names("kinds", &self.kinds, MAX_CLAIMED_KINDS);
        kinds.sort_unstable();
        kinds.dedup();
        let max_jobs = checks.within("max_jobs", self.max_jobs.unwrap_or(1), 1..=MAX_CLAIMED_JOBS);
        let wait = checks.millis("wait_ms", self.wait_ms.unwrap_or(0), 0..=MAX_WAIT_MS);
        let lease = checks.millis("lease_ms", self.lease_ms.unwrap_or(DEFAULT_LEASE_MS), LEASE_MS);
        let request_id = checks.optional_name("request_id", self.request_id.as_deref());
        let worker_id = checks.finish(worker_id)?;
        Ok(manager::ClaimRequest {
            worker_id,
            bearer: None,
            queues,
            max_jobs: usize::try_from(max_jobs).unwrap_or(usize::MAX),
            resources: self.resources,
            labels: self.labels,
            kinds,
            wait,
            lease,
            order,
            request_id,
            repeated: self.repeated,
        })
    }
}

/// The answer to a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClaimAnswer {
    /// The claimed jobs, now running, each with its `lease`; empty when none came in time.
    pub jobs: Vec<Job>,
}

// Apart from the worker the fields are those of `ClaimJobs`: what is flattened into a struct cannot refuse others.
/// A worker's request for its next jobs, made with the end of the last ones.
///
/// The ends are written at once, however long the claim waits. A call of which no end is accepted, or of which that is
/// unknown, takes no jobs.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"queues": ["reports"], "wait_ms": 20_000, "request_id": "host7-4711-18"}))]
pub struct ClaimNext {
    /// The queues to claim from; 1 to 64.
    #[schema(value_type = Vec<UserQueue>, min_items = 1, max_items = 64)]
    pub queues: Vec<String>,
    /// The most jobs to claim, up to 1,000. 1 by default.
    #[schema(minimum = 1, maximum = 1000)]
    pub max_jobs: Option<u64>,
    /// The resources that the worker offers to these jobs together, by name; at most 32. When empty, the worker takes
    /// any job.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "serde_with::rust::maps_duplicate_key_is_error::deserialize"
    )]
    #[schema(value_type = Resources, example = json!({"memory_mib": 4096}))]
    pub resources: BTreeMap<String, u64>,
    /// The labels that the worker offers, by name; at most 64. Jobs whose `requires` they do not meet are not claimed.
    /// A name has 1 to 64 letters, digits, `_`, `-` or `.`, and a value at most 128 bytes.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "serde_with::rust::maps_duplicate_key_is_error::deserialize"
    )]
    #[schema(value_type = OfferedLabels, example = json!({"hw": "fpga", "build": "43"}))]
    pub labels: BTreeMap<String, String>,
    /// The kinds of the jobs to claim, at most 64. Jobs of other kinds are not claimed. When empty, the worker takes
    /// jobs of any kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Kind>, max_items = 64, example = json!(["report", "mail"]))]
    pub kinds: Vec<String>,
    /// How long to wait for the first job, at most 60,000 milliseconds. 0 by default.
    #[schema(minimum = 0, maximum = 60_000)]
    pub wait_ms: Option<u64>,
    /// How long each lease lasts without a heartbeat, from 100 to 86,400,000 milliseconds. 60,000 by default.
    #[schema(minimum = 100, maximum = 86_400_000)]
    pub lease_ms: Option<u64>,
    /// From which of the queues the call claims next: `dispatch` for the most urgent job of all, which is the default;
    /// `strict` for the queues in the order in which they are named, each before the next; `weighted` to let the queues
    /// take turns.
    #[schema(nullable = false)]
    pub queue_order: Option<QueueOrder>,
    /// The weights of queues that take turns: one gives so many jobs, from 1 to 1,000, for each of a queue that is not
    /// named here.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "serde_with::rust::maps_duplicate_key_is_error::deserialize"
    )]
    #[schema(value_type = QueueWeights, example = json!({"reports": 3}))]
    pub queue_weights: BTreeMap<String, u64>,
    /// The worker's name for this claim, another one for each: the same call again, after a lost answer, gets the same
    /// answer.
    #[schema(value_type = RequestId)]
    pub request_id: String,
    /// Whether this call repeats one with the same `request_id` whose answer was lost. If true, jobs that another
    /// server claimed for it are found too. False by default.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
}

impl Checks {
    /// Checks from which of its queues a claim takes next. Returns the queues, each once, and the order. `named` are
    /// the names as they were given; `None` stands for one that is wrong.
    fn queue_order(
        &mut self,
        named: Vec<Option<QueueName>>,
        order: QueueOrder,
        weights: &BTreeMap<String, u64>,
    ) -> (Vec<QueueName>, ClaimOrder) {
        let mut queues: Vec<QueueName> = Vec::with_capacity(named.len());
        for (index, queue) in named.into_iter().enumerate().filter_map(|(index, queue)| Some((index, queue?))) {
            if !queues.contains(&queue) {
                queues.push(queue);
            } else if order != QueueOrder::Dispatch {
                self.fault(format!("queues[{index}]"), format!("`{queue}` is named before, and has one place only"));
            }
        }
        if order != QueueOrder::Weighted && !weights.is_empty() {
            self.fault("queue_weights", "needs `queue_order` to be `weighted`");
        }
        let order = match order {
            QueueOrder::Dispatch => {
                queues.sort();
                ClaimOrder::Dispatch
            }
            QueueOrder::Strict => ClaimOrder::Strict,
            QueueOrder::Weighted => ClaimOrder::Weighted(Arc::new(self.queue_weights(&queues, weights))),
        };
        (queues, order)
    }

    /// Checks the weights of a claim's queues, and returns one for each.
    fn queue_weights(&mut self, queues: &[QueueName], weights: &BTreeMap<String, u64>) -> manager::QueueWeights {
        self.count("queue_weights", weights.len(), MAX_CLAIMED_QUEUES);
        for (name, weight) in weights.iter().take(MAX_CLAIMED_QUEUES) {
            let field = format!("queue_weights.{name}");
            self.within(&field, *weight, 1..=u64::from(MAX_QUEUE_WEIGHT));
            if !queues.iter().any(|queue| queue.as_str() == name) {
                self.fault(field, "is none of the `queues` of the claim");
            }
        }
        let weight = |queue: &QueueName| weights.get(queue.as_str()).copied().unwrap_or(1);
        let narrow = |weight: u64| u32::try_from(weight).unwrap_or(MAX_QUEUE_WEIGHT);
        queues.iter().map(|queue| (queue.clone(), narrow(weight(queue)))).collect()
    }

    /// Checks the claim that a call makes beside ends. A bad name of the worker is a fault of the call itself.
    pub(super) fn next(&mut self, next: Option<ClaimNext>, worker_id: &str) -> Option<manager::ClaimRequest> {
        let next = next?;
        let claim = ClaimJobs {
            worker_id: worker_id.to_owned(),
            queues: next.queues,
            max_jobs: next.max_jobs,
            resources: next.resources,
            labels: next.labels,
            kinds: next.kinds,
            wait_ms: next.wait_ms,
            lease_ms: next.lease_ms,
            queue_order: next.queue_order,
            queue_weights: next.queue_weights,
            request_id: Some(next.request_id),
            repeated: next.repeated,
        };
        match claim.into_claim() {
            Ok(request) => Some(request),
            Err(invalid) => {
                for fault in invalid.errors.into_iter().filter(|fault| fault.field != "worker_id") {
                    self.fault(format!("next.{}", fault.field), fault.message);
                }
                None
            }
        }
    }
}

/// The answer to the claim of the next jobs.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NextJobs {
    /// The claimed jobs, now running, each with its `lease`; empty when none came in time.
    pub jobs: Vec<Job>,
    /// Why nothing could be claimed, though the ends are written; left out when that is not so.
    #[schema(nullable = false)]
    pub error: Option<ItemError>,
}

/// The answer to the end of an attempt with a `next`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobAndNext {
    /// The job after the call.
    pub job: Job,
    /// The answer to the claim of the next jobs.
    pub next: NextJobs,
}

/// The answer to the end of an attempt: the job after the call; with a `next`, the job and the next ones.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes an answer that is written from parts")]
pub(crate) enum EndAnswer {
    Next(JobAndNext),
    Job(Job),
}

/// The answer to the ends of many attempts.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EndsAnswer {
    /// One answer for each item of the call, in the same order.
    pub items: Vec<CompletionItem>,
    /// The answer to the claim of the next jobs; left out when the call made none.
    #[schema(nullable = false)]
    pub next: Option<NextJobs>,
}
