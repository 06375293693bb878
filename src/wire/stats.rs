//! Statistics about jobs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::query::stats::{self, GroupBy, Percent, Stats, StatsRequest, SumOf};

/// Statistics about jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatsAnswer {
    /// The statistics of all matching jobs together.
    pub total: StatsFigures,
    /// The statistics of each group and interval that has jobs; empty when the request names neither. Earlier intervals
    /// come first, and within an interval the groups with the most jobs.
    pub rows: Vec<StatsRow>,
}

/// The statistics of one group of jobs in one interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatsRow {
    /// When the interval begins; null when the request names no interval.
    pub at: Option<Timestamp>,
    /// The values that the group's jobs share: one for each field of the grouping, null for jobs that lack the field.
    #[schema(example = json!({"queue": "reports", "state": "completed"}))]
    pub by: BTreeMap<String, Option<String>>,
    /// The statistics of these jobs.
    #[serde(flatten)]
    pub figures: StatsFigures,
}

/// The statistics of a set of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatsFigures {
    /// The number of jobs.
    #[schema(example = 1200)]
    pub count: u64,
    /// How long the jobs waited for their latest attempt, from when they were due, in milliseconds.
    pub wait_ms: Durations,
    /// How long the jobs' last attempts took, in milliseconds.
    pub run_time_ms: Durations,
    /// The sums that were requested, by name; absent when none was. A job that needs none of a resource adds nothing.
    /// Sums are exact up to 2^53.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(example = json!({"resources.gpus": 48.0}))]
    pub sums: BTreeMap<String, f64>,
}

/// The distribution of a duration over the jobs that have it, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Durations {
    /// The number of jobs that have this duration.
    #[schema(example = 1100)]
    pub count: u64,
    /// The mean in milliseconds; null when no job has this duration.
    pub mean: Option<f64>,
    /// The longest duration in milliseconds; null when no job has it.
    pub max: Option<f64>,
    /// The approximate percentiles in milliseconds, by percent; null when no job has this duration.
    #[schema(example = json!({"50": 120.0, "95": 800.0, "99": 2400.0}))]
    pub percentiles: BTreeMap<String, Option<f64>>,
}

impl StatsAnswer {
    /// Returns the answer to a request.
    pub(crate) fn new(request: &StatsRequest, stats: Stats) -> Self {
        let names: Vec<String> = request.by.iter().map(GroupBy::name).collect();
        let row = |row: stats::StatsRow| StatsRow {
            at: row.at,
            by: names.iter().cloned().zip(row.values).collect(),
            figures: StatsFigures::new(row.figures, request),
        };
        Self { total: StatsFigures::new(stats.total, request), rows: stats.rows.into_iter().map(row).collect() }
    }
}

impl StatsFigures {
    fn new(figures: stats::Figures, request: &StatsRequest) -> Self {
        let percentiles = request.percentiles.as_deref().unwrap_or_default();
        Self {
            sums: request.sums.iter().map(SumOf::name).zip(figures.sums).collect(),
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
