//! The answer to a refused request.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::FieldError;

/// A refused request: RFC 9457 problem details, with a stable `code` for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The kind of problem as a URI, which ends in `code`.
    #[serde(rename = "type")]
    #[schema(example = "urn:leasehold:problem:lease_lost")]
    pub kind: String,
    /// The kind of problem as a sentence.
    #[schema(example = "The lease is lost")]
    pub title: String,
    /// The HTTP status of the answer.
    #[schema(example = 409)]
    pub status: u16,
    /// What is wrong with this request.
    #[schema(example = "the lease is not the job's current one: the job is running, its fence is 3")]
    pub detail: String,
    /// The kind of problem as a stable word.
    #[schema(example = "lease_lost")]
    pub code: String,
    /// The fields of the request that are wrong; left out when there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// The job's current fence, when the request expected another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 3)]
    pub fence: Option<u64>,
    /// The job that holds the unique key, when it is in the way of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd5")]
    pub job_id: Option<String>,
    /// The id of the request, as in the `x-request-id` header and in the server's log.
    #[serde(default)]
    #[schema(example = "0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd5")]
    pub request_id: String,
}
