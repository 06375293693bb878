//! The audit: what happened to jobs, for good, apart from the jobs themselves.
//!
//! It only grows. Whoever keeps it reads the jobs' histories ([`crate::monitor`]) and hands them over in the form that
//! they are to be kept in; a store puts them where nobody changes them.

use serde_json::{Map, Value};

use crate::clock::Timestamp;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// Its name for good: handed over again it is the same entry.
    pub id: String,
    /// When it was; in the document as well.
    pub at: Timestamp,
    /// What is kept.
    pub document: Map<String, Value>,
}
