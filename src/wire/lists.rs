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
    /// The jobs, in the order asked for. A `payload` or `result` that is kept apart from the job is left out.
    pub items: Vec<Job>,
    /// Where the next page begins; null when this is the last one.
    pub next_cursor: Option<String>,
}

/// A page of jobs of which only some fields were asked for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PartList {
    /// The jobs, in the order asked for, with those fields.
    pub items: Vec<Json>,
    /// Where the next page begins; null when this is the last one.
    pub next_cursor: Option<String>,
}

/// A page of jobs on its way out.
#[derive(Serialize)]
pub(crate) struct JobListOut<T> {
    pub(crate) items: Vec<T>,
    pub(crate) next_cursor: Option<String>,
}

/// How many jobs there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountAnswer {
    /// In all.
    #[schema(example = 1200)]
    pub total: u64,
    /// In each group, most first; empty when no grouping was asked for.
    pub groups: Vec<CountGroup>,
}

/// How many jobs there are in one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountGroup {
    /// The group: a value for each field asked for, null for jobs that lack it.
    #[schema(example = json!({"state": "available", "queue": "reports"}))]
    pub by: BTreeMap<String, Option<String>>,
    /// How many jobs are in it.
    #[schema(example = 1200)]
    pub count: u64,
}

impl CountAnswer {
    /// The answer to a count grouped by `fields`.
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
    /// `ok`.
    #[schema(example = "ok")]
    pub status: String,
}
