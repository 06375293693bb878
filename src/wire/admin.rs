//! Changes of many jobs at once: the filter, the change and its result.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::bulk::ItemError;
use super::check::{Checks, Invalid, MAX_BULK_ITEMS, MAX_TEXT_BYTES};
use super::job::{Job, JobAnswer};
use crate::clock::Timestamp;
use crate::job::{Actor, InvalidName, JobId, JobState, Kind, Owner, QueueName, Then, WorkerId};
use crate::manager::{BulkAction, BulkOrder, BulkSelection};
use crate::query::kql::{Expression, KqlError, Plan, Zone};
use crate::query::{Filter, Query};

/// The most values of one part of a filter.
pub const MAX_FILTER_VALUES: usize = 100;

/// Selects jobs for a bulk change: those that satisfy every part. A part that is left out is satisfied by any job.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BulkFilter {
    /// Selects the jobs in one of these states. States in which the change is impossible are ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 6)]
    pub states: Vec<JobState>,
    /// Selects the jobs of these queues (at most 100).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<QueueName>, max_items = 100, example = json!(["reports"]))]
    pub queues: Vec<String>,
    /// Selects the jobs of these kinds (at most 100).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Kind>, max_items = 100)]
    pub kinds: Vec<String>,
    /// Selects the jobs of these owners (at most 100).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Owner>, max_items = 100)]
    pub owners: Vec<String>,
    /// Selects the jobs that this KQL query matches.
    #[schema(example = "error.code: timeout and finished_at >= now-1d")]
    pub kql: Option<String>,
    /// The time zone of the query's days and of its times without a zone. UTC by default. It does not count as a part
    /// of the filter.
    #[schema(example = "Europe/Berlin")]
    pub time_zone: Option<String>,
    /// Selects the running jobs whose lease this worker holds.
    #[schema(value_type = Option<WorkerId>)]
    pub worker_id: Option<String>,
    /// Selects the jobs that are, or are not, flagged as orphans.
    pub orphaned: Option<bool>,
    /// Selects only these jobs, by id (at most 1,000).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<JobId>, max_items = 1000)]
    pub ids: Vec<String>,
    /// Selects every job. Required when no other part of the filter is given.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

impl BulkFilter {
    /// Returns whether the filter has no part.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        Self { all: false, time_zone: None, ..self.clone() } == Self::default()
    }

    /// Checks every part. The query's `now` is the time given here.
    ///
    /// # Errors
    /// Every part that is wrong, and a filter without any part that does not set `all`.
    pub fn into_selection(self, now: Timestamp) -> Result<BulkSelection, Invalid> {
        let mut checks = Checks::default();
        let zone = self.time_zone.as_deref().map_or(Some(Zone::default()), Zone::parse);
        if zone.is_none() {
            checks.fault("filter.time_zone", "is not one, such as `Europe/Berlin` or `+02:00`");
        }
        let zone = zone.unwrap_or_default();
        let query = self.kql.as_deref().and_then(|text| match Expression::parse_in(text, zone) {
            Ok(expression) => Some(Query { expression: Arc::new(expression), now }),
            Err(error) => {
                checks.fault("filter.kql", KqlError::render(&error));
                None
            }
        });
        // A query that matches every job does not count as a part.
        let finds_all = |query: &Query| matches!(query.expression.plan(), Plan::All);
        let parts = Self { kql: self.kql.clone().filter(|_| !query.as_ref().is_some_and(finds_all)), ..self.clone() };
        match (parts.is_empty(), self.all) {
            (true, false) => {
                checks.fault("filter", "has no part, which would mean every job; say `\"all\": true` if so")
            }
            (false, true) => checks.fault("filter.all", "cannot stand beside other parts"),
            (true, true) | (false, false) => {}
        }
        let filter = Filter {
            query,
            states: self.states,
            queues: checks.names("filter.queues", &self.queues, MAX_FILTER_VALUES),
            kinds: checks.names("filter.kinds", &self.kinds, MAX_FILTER_VALUES),
            owners: checks.names("filter.owners", &self.owners, MAX_FILTER_VALUES),
            worker_id: checks.optional_name("filter.worker_id", self.worker_id.as_deref()),
            orphaned: self.orphaned,
            ..Filter::default()
        };
        // A job that is named by its id is asked for.
        let filter = if self.ids.is_empty() { filter.of_users(self.kql.as_deref()) } else { filter };
        let ids: Vec<JobId> = checks.names("filter.ids", &self.ids, MAX_BULK_ITEMS);
        checks.finish(Some(BulkSelection { filter, ids }))
    }
}

/// A change of many jobs: to cancel them, to retry them, or to release them from their workers.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"filter": {"queues": ["reports"]}, "reason": "wrong month", "dry_run": false}))]
pub struct BulkChange {
    /// Selects the jobs. Jobs whose state does not allow the change are ignored.
    pub filter: BulkFilter,
    /// The reason, which is recorded in each job's history; at most 4 KiB. Not needed for a dry run.
    #[schema(min_length = 1, max_length = 4096)]
    pub reason: Option<String>,
    /// What happens to released jobs; `requeue` by default. Allowed only for a release.
    pub then: Option<Then>,
    /// Whether the call only counts the jobs and shows a few of them. True by default, so that a call that forgets it
    /// changes nothing.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub dry_run: bool,
    /// The most jobs that this call processes. By default, as many as it can within about ten seconds.
    #[schema(minimum = 1)]
    pub max_jobs: Option<u64>,
    /// The `next_cursor` of the call before, from which this call continues.
    pub cursor: Option<String>,
}

const fn yes() -> bool {
    true
}

/// A checked bulk change, for the manager.
pub(crate) struct Ordered {
    pub(crate) action: BulkAction,
    pub(crate) selection: BulkSelection,
    /// The change to carry out; `None` in a dry run.
    pub(crate) order: Option<BulkOrder>,
    pub(crate) max_jobs: usize,
    pub(crate) cursor: Option<String>,
}

impl BulkChange {
    /// Checks every field. `then` is allowed only when the action is a release.
    ///
    /// # Errors
    /// Every field that is wrong.
    pub(crate) fn into_order(self, action: BulkAction, actor: Actor, now: Timestamp) -> Result<Ordered, Invalid> {
        let mut checks = Checks::default();
        let selection = checks.part(self.filter.into_selection(now));
        let reason = self.reason.unwrap_or_default();
        checks.text("reason", &reason, MAX_TEXT_BYTES);
        if !self.dry_run && reason.trim().is_empty() {
            checks.fault("reason", "must say why: it stands in the history of every job");
        }
        if self.dry_run && self.cursor.is_some() {
            checks.fault("cursor", "has no place in a dry run, which looks at all jobs");
        }
        let action = match (action, self.then) {
            (BulkAction::Release(default), then) => BulkAction::Release(then.unwrap_or(default)),
            (action, None) => action,
            (action, Some(_)) => {
                checks.fault("then", "stands only in a release");
                action
            }
        };
        let max_jobs = checks.within("max_jobs", self.max_jobs.unwrap_or(u64::MAX), 1..=u64::MAX);
        Ok(Ordered {
            action,
            selection: checks.finish(selection)?,
            order: (!self.dry_run).then_some(BulkOrder { action, actor, reason }),
            max_jobs: usize::try_from(max_jobs).unwrap_or(usize::MAX),
            cursor: self.cursor,
        })
    }
}

impl Checks {
    /// Checks a list of names of any type.
    fn names<T>(&mut self, field: &str, texts: &[String], max: usize) -> Vec<T>
    where
        T: std::str::FromStr<Err = InvalidName>,
    {
        self.count(field, texts.len(), max);
        let named = texts.iter().take(max).enumerate();
        named.filter_map(|(index, text)| self.name(&format!("{field}[{index}]"), text)).collect()
    }
}

/// The result of a bulk change, or of its dry run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = BulkReport)]
pub struct BulkReport<'a> {
    /// Whether the call was a dry run, which changes nothing.
    pub dry_run: bool,
    /// The number of jobs found: all of them in a dry run, else those that this call processed. A dry run's number may
    /// have changed by the time of the change.
    #[schema(example = 1200)]
    pub matched: u64,
    /// Up to 20 of the jobs, youngest first; only in a dry run.
    #[schema(value_type = Vec<Job>)]
    pub sample: Vec<JobAnswer<'a>>,
    /// The number of jobs changed.
    pub changed: u64,
    /// The number of jobs left alone, because they no longer matched or were already as requested.
    pub skipped: u64,
    /// The number of jobs that could not be changed.
    pub failed_total: u64,
    /// The jobs that could not be changed (at most 100).
    pub failed: Vec<ChangeFailure>,
    /// Whether all jobs were processed. If false, the time was up or `max_jobs` was reached.
    pub done: bool,
    /// The cursor with which the next call continues; null when all jobs were processed.
    pub next_cursor: Option<String>,
}

/// A job that could not be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeFailure {
    /// The job's id.
    #[schema(value_type = JobId)]
    pub id: String,
    /// Why the job could not be changed.
    pub error: ItemError,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(filter: BulkFilter) -> Vec<String> {
        let invalid = filter.into_selection(Timestamp::default()).expect_err("a fault");
        invalid.errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn a_filter_that_means_every_job_has_to_say_so() {
        assert_eq!(faults(BulkFilter::default()), ["filter"]);
        assert!(BulkFilter { all: true, ..BulkFilter::default() }.into_selection(Timestamp::default()).is_ok());
        let both = BulkFilter { all: true, queues: vec!["q".to_owned()], ..BulkFilter::default() };
        assert_eq!(faults(both), ["filter.all"]);
    }

    #[test]
    fn a_query_is_a_part_unless_it_finds_every_job() {
        let asked = |kql: &str| BulkFilter { kql: Some(kql.to_owned()), ..BulkFilter::default() };
        assert!(asked("state: failed").into_selection(Timestamp::default()).is_ok_and(|it| it.filter.query.is_some()));
        for everything in ["*", "*: *", " "] {
            assert_eq!(faults(asked(everything)), ["filter"], "{everything:?}");
        }
        assert_eq!(faults(asked("stat: failed")), ["filter.kql"]);
        let zoned = |kql: &str, zone: &str| BulkFilter { time_zone: Some(zone.to_owned()), ..asked(kql) };
        assert!(zoned("run_at: 2030-01-31", "Europe/Berlin").into_selection(Timestamp::default()).is_ok());
        assert_eq!(faults(zoned("run_at: 2030-01-31", "Mars/Olympus")), ["filter.time_zone"]);
        assert_eq!(faults(zoned("*", "Europe/Berlin")), ["filter"], "a zone is no part of a filter");
        assert_eq!(faults(BulkFilter { all: true, ..asked("state: failed") }), ["filter.all"]);
    }

    #[test]
    fn every_part_of_a_filter_is_checked() {
        let wrong = || vec!["ok".to_owned(), String::new()];
        let filter = BulkFilter {
            queues: wrong(),
            kinds: wrong(),
            owners: wrong(),
            ids: wrong(),
            worker_id: Some("a\nb".to_owned()),
            ..BulkFilter::default()
        };
        assert_eq!(
            faults(filter),
            ["filter.queues[1]", "filter.kinds[1]", "filter.owners[1]", "filter.worker_id", "filter.ids[1]"]
        );
        let many = BulkFilter { ids: vec!["x".to_owned(); MAX_BULK_ITEMS + 1], ..BulkFilter::default() };
        assert_eq!(faults(many), ["filter.ids"]);
    }

    #[test]
    fn an_order_that_forgets_to_say_so_changes_nothing() {
        let order: BulkChange = serde_json::from_str(r#"{"filter": {"queues": ["q"]}}"#).expect("an order");
        assert!(order.dry_run);
        let actor = Actor::system("test");
        assert!(
            order
                .clone()
                .into_order(BulkAction::Cancel, actor.clone(), Timestamp::default())
                .is_ok_and(|checked| checked.order.is_none())
        );
        let order = BulkChange { dry_run: false, reason: Some(" ".to_owned()), ..order };
        let refused =
            order.into_order(BulkAction::Cancel, actor, Timestamp::default()).map(|_| ()).expect_err("no reason");
        assert_eq!(refused.errors[0].field, "reason");
    }
}
