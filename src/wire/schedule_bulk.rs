//! Changes of many schedules at once: the filter and the change.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{Checks, Invalid, MAX_BULK_ITEMS, MAX_TEXT_BYTES};
use super::selection::{finds_all, yes};
use crate::clock::Timestamp;
use crate::job::{Owner, ScheduleId};
use crate::query::ScheduleFilter;
use crate::query::table::Table;

/// Selects schedules for a bulk change: those that satisfy every part. A part that is left out is satisfied by any
/// schedule.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BulkScheduleFilter {
    /// Selects the schedules that this KQL query matches.
    #[schema(example = "labels.team: blue and action_type: http")]
    pub kql: Option<String>,
    /// The time zone of the query's days and of its times without a zone. UTC by default. It does not count as a part
    /// of the filter.
    #[schema(example = "Europe/Berlin")]
    pub time_zone: Option<String>,
    /// Selects the schedules of this owner.
    #[schema(value_type = Option<Owner>)]
    pub owner: Option<String>,
    /// Selects only these schedules, by id (at most 1,000).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<ScheduleId>, max_items = 1000)]
    pub ids: Vec<String>,
    /// Selects every schedule. Required when no other part of the filter is given.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// A change of many schedules: to pause them, to resume them, or to remove them.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"filter": {"owner": "billing"}, "reason": "a move", "dry_run": false}))]
pub struct BulkScheduleChange {
    /// Selects the schedules. Those that are already as requested are ignored.
    pub filter: BulkScheduleFilter,
    /// The reason of a pause, which is shown with each schedule; at most 4 KiB. Not needed for a dry run. Allowed only
    /// for a pause.
    #[schema(min_length = 1, max_length = 4096)]
    pub reason: Option<String>,
    /// Whether the call only counts the schedules and shows a few of them. True by default, so that a call that forgets
    /// it changes nothing.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub dry_run: bool,
    /// The most schedules that this call processes. By default, as many as it can within about ten seconds.
    #[schema(minimum = 1)]
    pub max_schedules: Option<u64>,
    /// The `next_cursor` of the call before, from which this call continues.
    #[schema(value_type = Option<ScheduleId>)]
    pub cursor: Option<String>,
}

/// A checked bulk change.
#[derive(Debug)]
pub(crate) struct OrderedSchedules {
    pub(crate) filter: ScheduleFilter,
    pub(crate) ids: Vec<ScheduleId>,
    /// The reason of a change to carry out; `None` in a dry run.
    pub(crate) reason: Option<String>,
    pub(crate) max_schedules: usize,
    pub(crate) after: Option<ScheduleId>,
}

impl BulkScheduleFilter {
    /// Checks every part. The query's `now` is the time given here.
    fn check(self, now: Timestamp, checks: &mut Checks) -> (ScheduleFilter, Vec<ScheduleId>) {
        let query = checks.query(Table::Schedules, self.kql.as_deref(), self.time_zone.as_deref(), now);
        // A query that is wrong counts as a part, so that the filter has one fault.
        let is_part = self.kql.is_some() && !query.as_ref().is_some_and(finds_all);
        checks.has_parts(Table::Schedules, is_part || self.owner.is_some() || !self.ids.is_empty(), self.all);
        let owner: Option<Owner> = checks.optional_name("filter.owner", self.owner.as_deref());
        let ids = checks.names("filter.ids", &self.ids, MAX_BULK_ITEMS);
        (ScheduleFilter { owner, query, paused: None }, ids)
    }
}

impl BulkScheduleChange {
    /// Checks every field. A reason is for a pause alone, which must have one unless it is a dry run.
    ///
    /// # Errors
    /// Every field that is wrong.
    pub(crate) fn into_order(self, is_pause: bool, now: Timestamp) -> Result<OrderedSchedules, Invalid> {
        let mut checks = Checks::default();
        let (filter, ids) = self.filter.check(now, &mut checks);
        if self.reason.is_some() && !is_pause {
            checks.fault("reason", "stands only in a pause");
        }
        let reason = self.reason.unwrap_or_default();
        checks.text("reason", &reason, MAX_TEXT_BYTES);
        if is_pause && !self.dry_run && reason.trim().is_empty() {
            checks.fault("reason", "must say why: it is shown with every schedule");
        }
        checks.cursor_of(Table::Schedules, self.dry_run, self.cursor.as_deref());
        let max_schedules = checks.most("max_schedules", self.max_schedules);
        let after: Option<ScheduleId> = checks.optional_name("cursor", self.cursor.as_deref());
        let reason = (!self.dry_run).then_some(reason);
        checks.finish(Some(OrderedSchedules { filter, ids, reason, max_schedules, after }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(change: &str, is_pause: bool) -> Result<OrderedSchedules, Vec<String>> {
        let change: BulkScheduleChange = serde_json::from_str(change).expect("a change");
        let checked = change.into_order(is_pause, Timestamp::default());
        checked.map_err(|invalid| invalid.errors.into_iter().map(|error| error.field).collect())
    }

    #[test]
    fn a_filter_that_means_every_schedule_has_to_say_so() {
        for filter in ["{}", r#"{"kql": "*"}"#, r#"{"kql": " ", "time_zone": "Europe/Berlin"}"#] {
            let faults = checked(&format!(r#"{{"filter": {filter}}}"#), false).expect_err(filter);
            assert_eq!(faults, ["filter"], "{filter}");
        }
        assert!(checked(r#"{"filter": {"all": true}}"#, false).is_ok());
        let faults = checked(r#"{"filter": {"all": true, "owner": "a"}}"#, false).expect_err("both");
        assert_eq!(faults, ["filter.all"]);
    }

    #[test]
    fn a_call_that_forgets_to_say_so_changes_nothing() {
        let dry = checked(r#"{"filter": {"owner": "a"}}"#, true).expect("an order");
        assert_eq!(dry.reason, None);
        let order = r#"{"filter": {"owner": "a"}, "dry_run": false}"#;
        assert_eq!(checked(order, true).expect_err("no reason"), ["reason"]);
        assert!(checked(order, false).is_ok_and(|order| order.reason.is_some()));
    }

    #[test]
    fn every_part_that_is_wrong_is_named() {
        let wrong = r#"{"filter": {"kql": "onwer: a", "time_zone": "Mars", "owner": "", "ids": ["a", ""]},
            "reason": "why", "max_schedules": 0, "cursor": ""}"#;
        let faults = checked(wrong, false).expect_err("faults");
        let fields = ["filter.time_zone", "filter.kql", "filter.owner", "filter.ids[1]"];
        assert_eq!(faults, [&fields[..], &["reason", "cursor", "max_schedules", "cursor"]].concat());
    }
}
