//! The audit: what happened to jobs, for good, apart from the jobs themselves.
//!
//! The audit only grows. The monitor ([`crate::monitor`]) reads the jobs' histories and passes entries to the store in
//! their final form; the store keeps them unchanged. It knows two fields of them alone, `event.id` and `@timestamp`;
//! whoever searches names the others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::StoreError;
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

/// Selects entries of the audit: those that satisfy every part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditSearch {
    /// Selects what happened at this time or later.
    pub from: Option<Timestamp>,
    /// Selects what happened at this time or earlier.
    pub to: Option<Timestamp>,
    /// Selects entries of which each of these fields, named with dots, has one of these values, which are at least one.
    pub terms: Vec<(&'static str, Vec<String>)>,
    /// The place after which the page begins; `None` for the first page.
    pub after: Option<AuditPlace>,
    /// The most entries of the page.
    pub limit: usize,
}

impl AuditSearch {
    /// Returns whether a document is selected.
    #[must_use]
    pub fn selects(&self, at: Timestamp, document: &Map<String, Value>) -> bool {
        let in_time = self.from.is_none_or(|from| from <= at) && self.to.is_none_or(|to| at <= to);
        let has = |(field, values): &(&str, Vec<String>)| {
            text(document, field).is_some_and(|text| values.iter().any(|value| value == text))
        };
        in_time && self.terms.iter().all(has)
    }
}

/// Returns the refusal of a place that another store has said.
pub(super) fn of_another_store() -> StoreError {
    StoreError::Unsupported("the cursor is of the audit of another store: begin again with the first page")
}

/// Returns the text of a field, which is named with dots.
#[must_use]
pub fn text<'a>(document: &'a Map<String, Value>, field: &str) -> Option<&'a str> {
    let mut names = field.split('.');
    let first = document.get(names.next()?)?;
    names.try_fold(first, |value, name| value.get(name))?.as_str()
}

/// The place of an entry among those that a store returns, in its own order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AuditPlace {
    /// The place in an order by time, with what decides between entries of one time.
    InTime {
        /// The time, in milliseconds since the epoch.
        at: i64,
        /// The number of the event in its job's history.
        sequence: i64,
        /// The id of the entry.
        id: String,
    },
    /// The place among files that were written one entry after the other.
    InFiles {
        /// The month that the files are of: `2030-01`.
        month: String,
        /// How many bytes of each file are still to be read, by who wrote it.
        left: BTreeMap<String, u64>,
    },
}

/// A page of the audit. It may have fewer entries than it could have although there is a next one: a store may end a
/// page where it has read enough.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditPage {
    /// The entries, the newest first. An entry that the store has twice is on a page once.
    pub entries: Vec<AuditEntry>,
    /// The place after which the next page begins; `None` on the last page.
    pub next: Option<AuditPlace>,
    /// Whether the store has an audit, which may be empty.
    pub is_there: bool,
}
