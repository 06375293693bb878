//! The audit: what happened to jobs, for good, apart from the jobs themselves.
//!
//! The audit only grows. The monitor ([`crate::monitor`]) reads the jobs' histories and passes entries to the store in
//! their final form; the store keeps them unchanged.

use serde_json::{Map, Value};

use crate::clock::Timestamp;

/// One entry of the audit: an event in the life of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// The entry's permanent id: an entry added again under the same id is the same entry.
    pub id: String,
    /// When the event happened; the document holds this time too.
    pub at: Timestamp,
    /// The document that the audit keeps.
    pub document: Map<String, Value>,
}
