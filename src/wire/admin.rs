//! Changes of many jobs at once: the filter and the change.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{Checks, Invalid, MAX_BULK_ITEMS, MAX_TEXT_BYTES};
use super::edit::EditJob;
use super::selection::{finds_all, yes};
use crate::clock::Timestamp;
use crate::job::{Actor, IdempotencyKey, JobId, JobState, Kind, Owner, QueueName, Then, WorkerId};
use crate::manager::{BulkAction, BulkOrder, BulkSelection};
use crate::query::Filter;
use crate::query::table::Table;

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
        let zone = self.time_zone.as_deref();
        let query = checks.query(Table::Jobs, self.kql.as_deref(), zone, now);
        let kql = self.kql.clone().filter(|_| !query.as_ref().is_some_and(finds_all));
        checks.has_parts(Table::Jobs, !Self { kql, ..self.clone() }.is_empty(), self.all);
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

/// A change of many jobs: to cancel, retry, hold, edit, rerun or delete them, or to release them from their workers.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"filter": {"queues": ["reports"]}, "reason": "wrong month", "dry_run": false}))]
pub struct BulkChange {
    /// Selects the jobs. Jobs whose state does not allow the change are ignored.
    pub filter: BulkFilter,
    /// The reason, which is recorded in each job's history; at most 4 KiB. Not needed for a dry run or a rerun.
    #[schema(min_length = 1, max_length = 4096)]
    pub reason: Option<String>,
    /// What happens to released jobs; `requeue` by default. Allowed only for a release.
    pub then: Option<Then>,
    /// The change of each job's fields. Required for an edit, and allowed only there.
    pub edit: Option<EditJob>,
    /// The key of a rerun, 1 to 256 bytes: under the same key no job is run again twice. Required for a rerun, and
    /// allowed only there.
    #[schema(value_type = Option<IdempotencyKey>)]
    pub key: Option<String>,
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
        let is_rerun = matches!(action, BulkAction::Rerun(_));
        if !self.dry_run && !is_rerun && reason.trim().is_empty() {
            checks.fault("reason", "must say why: it stands in the history of every job");
        }
        checks.cursor_of(Table::Jobs, self.dry_run, self.cursor.as_deref());
        let action = match (action, self.then) {
            (BulkAction::Release(default), then) => BulkAction::Release(then.unwrap_or(default)),
            (action, None) => action,
            (action, Some(_)) => {
                checks.fault("then", "stands only in a release");
                action
            }
        };
        let action = match (action, self.edit) {
            (BulkAction::Edit(_), Some(edit)) => {
                let edit = checks.part(edit.into_edit().map(|(edit, _)| edit));
                BulkAction::Edit(Box::new(edit.unwrap_or_default()))
            }
            (action, edit) => {
                if matches!(action, BulkAction::Edit(_)) != edit.is_some() {
                    checks.fault("edit", "stands in an edit, and only there");
                }
                action
            }
        };
        let key = checks.optional_name::<IdempotencyKey>("key", self.key.as_deref());
        let action = match (action, key) {
            (BulkAction::Rerun(_), _) if self.dry_run => BulkAction::Rerun(String::new()),
            (BulkAction::Rerun(_), Some(key)) => BulkAction::Rerun(key.as_str().to_owned()),
            (action, key) => {
                if matches!(action, BulkAction::Rerun(_)) || key.is_some() {
                    checks.fault("key", "stands in a rerun, and only there");
                }
                action
            }
        };
        let max_jobs = checks.most("max_jobs", self.max_jobs);
        Ok(Ordered {
            selection: checks.finish(selection)?,
            order: (!self.dry_run).then_some(BulkOrder { action: action.clone(), actor, reason }),
            action,
            max_jobs,
            cursor: self.cursor,
        })
    }
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
