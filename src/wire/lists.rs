//! Lists and counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::Job;
use crate::job::Json;
use crate::query::Group;

/// A page of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// The jobs, in the requested order. A `payload` or `result` that is stored apart from its job is left out.
    pub items: Vec<Job>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// A page of jobs with selected fields.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PartList {
    /// The jobs, in the requested order, each with the selected fields.
    pub items: Vec<Json>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// A page of jobs as the server writes it.
#[derive(Serialize)]
pub(crate) struct JobListOut<T> {
    pub(crate) items: Vec<T>,
    pub(crate) next_cursor: Option<String>,
}

/// The number of jobs that match a query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountAnswer {
    /// The number of jobs in all groups together.
    #[schema(example = 1200)]
    pub total: u64,
    /// The groups, largest first; empty when the request names no grouping.
    pub groups: Vec<CountGroup>,
}

/// The number of jobs in one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountGroup {
    /// The values that the group's jobs share: one for each field of the grouping, null for jobs that lack the field.
    #[schema(example = json!({"state": "available", "queue": "reports"}))]
    pub by: BTreeMap<String, Option<String>>,
    /// The number of jobs in the group.
    #[schema(example = 1200)]
    pub count: u64,
}

impl CountAnswer {
    /// Returns the answer to a count grouped by `fields`.
    pub(crate) fn new(fields: &[String], groups: Vec<Group>) -> Self {
        let total = groups.iter().map(|group| group.count).sum();
        if fields.is_empty() {
            return Self { total, groups: Vec::new() };
        }
        let names = || fields.iter().cloned();
        let groups = groups
            .into_iter()
            .map(|group| CountGroup { by: names().zip(group.values).collect(), count: group.count })
            .collect();
        Self { total, groups }
    }
}

/// The answer of a health check that passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// The word `ok`.
    #[schema(example = "ok")]
    pub status: String,
}
