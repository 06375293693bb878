//! What filters and orders of bulk changes have in common, whether of jobs or of schedules.

use std::str::FromStr;
use std::sync::Arc;

use super::check::Checks;
use crate::clock::Timestamp;
use crate::job::InvalidName;
use crate::query::Query;
use crate::query::kql::{Expression, Plan, Zone};
use crate::query::table::Table;

/// The default of `dry_run`: a call that forgets it changes nothing.
pub(super) const fn yes() -> bool {
    true
}

/// Returns whether a query matches everything. Then it does not count as a part of a filter.
pub(super) fn finds_all(query: &Query) -> bool {
    matches!(query.expression.plan(), Plan::All)
}

impl Checks {
    /// Checks the query of a filter and its time zone. The query's `now` is the time given here.
    pub(super) fn query(
        &mut self,
        table: Table,
        kql: Option<&str>,
        time_zone: Option<&str>,
        now: Timestamp,
    ) -> Option<Query> {
        let zone = time_zone.map_or(Some(Zone::default()), Zone::parse);
        if zone.is_none() {
            self.fault("filter.time_zone", "is not one, such as `Europe/Berlin` or `+02:00`");
        }
        match Expression::parse_about(table, kql?, zone.unwrap_or_default()) {
            Ok(expression) => Some(Query { expression: Arc::new(expression), now }),
            Err(error) => {
                self.fault("filter.kql", error.render());
                None
            }
        }
    }

    /// Checks that a filter has a part, or that it says that everything is meant.
    pub(super) fn has_parts(&mut self, table: Table, has_part: bool, all: bool) {
        match (has_part, all) {
            (false, false) => {
                let noun = table.noun();
                let problem = format!("has no part, which would mean every {noun}; say `\"all\": true` if so");
                self.fault("filter", problem);
            }
            (true, true) => self.fault("filter.all", "cannot stand beside other parts"),
            (false, true) | (true, false) => {}
        }
    }

    /// Checks that a dry run does not go on from anywhere.
    pub(super) fn cursor_of(&mut self, table: Table, dry_run: bool, cursor: Option<&str>) {
        if dry_run && cursor.is_some() {
            self.fault("cursor", format!("has no place in a dry run, which looks at all {}s", table.noun()));
        }
    }

    /// Checks how many items a call may process; by default there is no bound.
    pub(super) fn most(&mut self, field: &str, most: Option<u64>) -> usize {
        usize::try_from(self.within(field, most.unwrap_or(u64::MAX), 1..=u64::MAX)).unwrap_or(usize::MAX)
    }

    /// Checks a list of names of any type.
    pub(super) fn names<T: FromStr<Err = InvalidName>>(&mut self, field: &str, texts: &[String], max: usize) -> Vec<T> {
        self.count(field, texts.len(), max);
        let named = texts.iter().take(max).enumerate();
        named.filter_map(|(index, text)| self.name(&format!("{field}[{index}]"), text)).collect()
    }
}
