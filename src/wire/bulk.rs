//! What a bulk call answers: an item for each that was asked, in the same order.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::JobState;
use super::work::HeartbeatAnswer;

/// The answer to a bulk call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkAnswer<T> {
    /// One for each that was asked, in order.
    pub items: Vec<T>,
}

/// Why one item of a bulk call was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ItemError {
    /// The kind of problem as a stable word.
    #[schema(example = "lease_lost")]
    pub code: String,
    /// What is wrong with this very item.
    pub message: String,
    /// The field at fault, where it is a matter of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

/// One submission of many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubmitItem {
    /// 201 when this submission made the job, 200 when an earlier one with the same key or id did; else as for a
    /// single call.
    #[schema(example = 201)]
    pub status: u16,
    /// The job, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ItemError>,
}

/// One sign of life of many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatItem {
    /// The job.
    pub id: String,
    /// As for a single call.
    #[schema(example = 200)]
    pub status: u16,
    /// The answer, when it was heard.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<HeartbeatAnswer>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ItemError>,
}

/// One end of an attempt of many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompletionItem {
    /// The job.
    pub id: String,
    /// As for a single call.
    #[schema(example = 200)]
    pub status: u16,
    /// Where the job is now, when it was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ItemError>,
}
