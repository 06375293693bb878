//! Lists and counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::query::Group;

/// A page of a list. A list that has only one page never has a cursor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items of the page, in the order of the list.
    pub items: Vec<T>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
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

/// Who the caller is, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Me {
    /// The name of the token's holder; `anonymous` where the server has no tokens.
    #[schema(example = "ops")]
    pub name: String,
    /// The roles of the caller, among `read`, `submit`, `work` and `admin`. Who has `admin` may do all that others may.
    #[schema(example = json!(["read", "submit"]))]
    pub roles: Vec<String>,
}
