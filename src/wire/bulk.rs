//! The answers to bulk calls: one item for each item of the call, in the same order, or a report where a filter selects
//! what is changed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::JobState;
use crate::clock::Timestamp;
use crate::job::JobId;

/// The answer to a bulk call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkAnswer<T> {
    /// One answer for each item of the call, in the same order.
    pub items: Vec<T>,
}

/// Why one item of a bulk call was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ItemError {
    /// The kind of problem as a stable word.
    #[schema(example = "lease_lost")]
    pub code: String,
    /// What is wrong with this item.
    pub message: String,
    /// The field that is wrong; left out when the problem is not a field's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub field: Option<String>,
}

/// The answer to one submission in a bulk call.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubmitItem {
    /// The status of this submission: 201 when it created the job, 200 when an earlier one with the same key or id did,
    /// otherwise the status of the refusal.
    #[schema(example = 201)]
    pub status: u16,
    /// The job's id; left out when there is no job.
    #[schema(value_type = JobId, required = false)]
    pub id: Option<String>,
    /// Why the submission was refused; left out when it was accepted.
    #[schema(nullable = false)]
    pub error: Option<ItemError>,
}

/// The answer to one piece of output in a bulk call.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputItem {
    /// The job's id, as the call names it.
    pub id: String,
    /// The status that a single call would have had.
    #[schema(example = 204)]
    pub status: u16,
    /// Why the piece was refused; left out when it is kept.
    #[schema(nullable = false)]
    pub error: Option<ItemError>,
}

/// The answer to one heartbeat in a bulk call.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatItem {
    /// The job's id, as the call names it.
    pub id: String,
    /// The status that a single call would have had.
    #[schema(example = 200)]
    pub status: u16,
    /// When the lease expires now; left out when the heartbeat was refused.
    #[schema(nullable = false)]
    pub lease_expires_at: Option<Timestamp>,
    /// Whether the worker is requested to stop the attempt; left out when the heartbeat was refused.
    #[schema(nullable = false)]
    pub cancel_requested: Option<bool>,
    /// Why the heartbeat was refused; left out when it was accepted.
    #[schema(nullable = false)]
    pub error: Option<ItemError>,
}

/// The answer to one completion or failure in a bulk call.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompletionItem {
    /// The job's id, as the call names it.
    pub id: String,
    /// The status that a single call would have had.
    #[schema(example = 200)]
    pub status: u16,
    /// The state of the job; left out when the call for it was refused.
    #[schema(nullable = false)]
    pub state: Option<JobState>,
    /// Why the completion or failure was refused; left out when it was accepted.
    #[schema(nullable = false)]
    pub error: Option<ItemError>,
}

/// The result of a change of many jobs or schedules, or of its dry run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BulkReport<T> {
    /// Whether the call was a dry run, which changes nothing.
    pub dry_run: bool,
    /// The number of items found: all of them in a dry run, else those that this call processed. A dry run's number may
    /// have changed by the time of the change.
    #[schema(example = 1200)]
    pub matched: u64,
    /// Up to 20 of the items, in the order in which they are changed; only in a dry run.
    pub sample: Vec<T>,
    /// The number of items changed.
    pub changed: u64,
    /// The number of items left alone, because they no longer matched or were already as requested.
    pub skipped: u64,
    /// The number of items that could not be changed.
    pub failed_total: u64,
    /// The items that could not be changed (at most 100).
    pub failed: Vec<ChangeFailure>,
    /// Whether all items were processed. If false, the time was up or the call's largest number was reached.
    pub done: bool,
    /// The cursor with which the next call continues; null when all items were processed.
    pub next_cursor: Option<String>,
}

impl<T> BulkReport<T> {
    /// Returns the report of a dry run.
    pub(crate) const fn previewed(matched: u64, sample: Vec<T>) -> Self {
        Self {
            dry_run: true,
            matched,
            sample,
            changed: 0,
            skipped: 0,
            failed_total: 0,
            failed: Vec::new(),
            done: true,
            next_cursor: None,
        }
    }
}

/// An item that could not be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeFailure {
    /// The item's id.
    pub id: String,
    /// Why the item could not be changed.
    pub error: ItemError,
}
