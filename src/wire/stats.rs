//! Figures about jobs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::{Timestamp, rfc3339};
use crate::query::stats::{self, GroupBy, Percent, Stats, StatsRequest};

/// Figures about jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatsAnswer {
    /// Of all of them together.
    pub total: StatsFigures,
    /// Of each group and interval that has any; empty when neither was asked for. The earliest interval first, in it
    /// the group with the most jobs first.
    pub rows: Vec<StatsRow>,
}

/// Figures about the jobs of one group, in one interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatsRow {
    /// When the interval begins; null when none was asked for.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub at: Option<Timestamp>,
    /// The group: a value for each field asked for, null for jobs that lack it.
    #[schema(example = json!({"queue": "reports", "state": "completed"}))]
    pub by: BTreeMap<String, Option<String>>,
    /// What is told of it.
    #[serde(flatten)]
    pub figures: StatsFigures,
}

/// What is told of some jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatsFigures {
    /// How many there are.
    #[schema(example = 1200)]
    pub count: u64,
    /// How long their latest attempts let them wait after they were due.
    pub wait_ms: Durations,
    /// How long the attempts took that they ended with.
    pub run_time_ms: Durations,
}

/// How long something took, in milliseconds, over the jobs of which it is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Durations {
    /// Of how many jobs it is known.
    #[schema(example = 1100)]
    pub count: u64,
    /// The mean; null when it is known of none.
    pub mean: Option<f64>,
    /// The longest; null when it is known of none.
    pub max: Option<f64>,
    /// What so many in a hundred do not exceed, approximately; null when it is known of none.
    #[schema(example = json!({"50": 120.0, "95": 800.0, "99": 2400.0}))]
    pub percentiles: BTreeMap<String, Option<f64>>,
}

impl StatsAnswer {
    /// The answer to a request.
    pub(crate) fn new(request: &StatsRequest, stats: Stats) -> Self {
        let names: Vec<String> = request.by.iter().map(GroupBy::name).collect();
        let percentiles = request.percentiles.as_deref().unwrap_or_default();
        let row = |row: stats::StatsRow| StatsRow {
            at: row.at,
            by: names.iter().cloned().zip(row.values).collect(),
            figures: StatsFigures::new(row.figures, percentiles),
        };
        Self { total: StatsFigures::new(stats.total, percentiles), rows: stats.rows.into_iter().map(row).collect() }
    }
}

impl StatsFigures {
    fn new(figures: stats::Figures, percentiles: &[Percent]) -> Self {
        Self {
            count: figures.count,
            wait_ms: Durations::new(figures.wait, percentiles),
            run_time_ms: Durations::new(figures.run_time, percentiles),
        }
    }
}

impl Durations {
    fn new(durations: stats::Durations, percentiles: &[Percent]) -> Self {
        let names = percentiles.iter().map(Percent::to_string);
        Self {
            count: durations.count,
            mean: durations.mean,
            max: durations.max,
            percentiles: names.zip(durations.percentiles).collect(),
        }
    }
}
