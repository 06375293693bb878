//! Kibana's query language (KQL), in which users select jobs: `state: running and not owner: (team-a or team-b)`, and
//! schedules: `paused: true and labels.team: blue`. A query is about the one or the other, by its [`Table`].
//!
//! An [`Expression`] is parsed once and then evaluated in two places with the same meaning: by [`Expression::matches`]
//! or [`Expression::matches_schedule`] in memory, and by Elasticsearch, for which `store::elasticsearch::kql` compiles
//! it. `docs/kql.md` describes the language and names the deliberate differences from Kibana.
//!
//! In reading order: [`ast`] (the syntax tree), [`parse`] (from text to the tree), [`plan`] (which field is compared
//! with what; [`phase`] for what stands for more than a field), `evaluate` (whether one job or schedule matches),
//! [`bounds`] (what a store can answer from its indexes). [`pattern`], [`date`], [`number`] and [`words`] parse the
//! values; [`error`] describes a mistake and its position, and `doubts` a value that its field cannot have.

pub mod ast;
pub mod bounds;
pub mod date;
mod doubts;
pub mod error;
mod evaluate;
pub mod number;
pub mod parse;
pub mod pattern;
pub mod phase;
pub mod plan;
pub mod words;

use std::fmt;
use std::str::FromStr;

pub use ast::Node;
pub use bounds::{Bounds, Span};
pub use date::Zone;
pub use error::KqlError;
pub use pattern::MAX_PATTERN;
pub use plan::Plan;

use self::evaluate::Subject;
use crate::clock::Timestamp;
use crate::job::Job;
use crate::query::table::Table;
use crate::schedule::Schedule;

/// The longest query, in bytes.
pub const MAX_BYTES: usize = 16 * 1024;
/// The deepest nesting of `and`, `or`, `not` and `{ }`. Elasticsearch accepts thirty levels, of which the fields
/// themselves need some.
pub const MAX_DEPTH: usize = 20;

/// A parsed query.
#[derive(Clone, Debug)]
pub struct Expression {
    text: Box<str>,
    zone: Zone,
    table: Table,
    node: Node,
    plan: Plan,
}

impl Expression {
    /// Parses a query about jobs; times without a zone are in UTC.
    ///
    /// # Errors
    /// [`KqlError`] describes the mistake and its position.
    pub fn parse(text: &str) -> Result<Self, KqlError> {
        Self::parse_about(Table::Jobs, text, Zone::default())
    }

    /// Parses a query about jobs; times without a zone are in `zone`, and days begin as they do there.
    ///
    /// # Errors
    /// [`KqlError`] describes the mistake and its position.
    pub fn parse_in(text: &str, zone: Zone) -> Result<Self, KqlError> {
        Self::parse_about(Table::Jobs, text, zone)
    }

    /// Parses a query for the fields of `table`; times without a zone are in `zone`, and days begin as they do there.
    ///
    /// # Errors
    /// [`KqlError`] describes the mistake and its position.
    pub fn parse_about(table: Table, text: &str, zone: Zone) -> Result<Self, KqlError> {
        if text.len() > MAX_BYTES {
            return Err(KqlError::at(text, MAX_BYTES, format!("the query is longer than {MAX_BYTES} bytes")));
        }
        let node = parse::parse(text)?;
        if node.depth() > MAX_DEPTH {
            return Err(KqlError::at(text, 0, format!("the query is more than {MAX_DEPTH} levels deep")));
        }
        let plan = plan::bind(text, &node, zone, table)?;
        Ok(Self { text: text.into(), zone, table, node, plan })
    }

    /// Returns the text of the query.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the zone of the times in the query that name none.
    #[must_use]
    pub fn zone(&self) -> Zone {
        self.zone
    }

    /// Returns the table of the fields that the query is about.
    #[must_use]
    pub fn table(&self) -> Table {
        self.table
    }

    /// Returns the syntax tree.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the plan, which says which field is compared with what.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns whether the query matches `job` at the time `now`.
    #[must_use]
    pub fn matches(&self, job: &Job, now: Timestamp) -> bool {
        self.plan.holds(Subject::Job(job), now)
    }

    /// Returns whether the query, which is about schedules, matches `schedule` at the time `now`.
    #[must_use]
    pub fn matches_schedule(&self, schedule: &Schedule, now: Timestamp) -> bool {
        self.plan.holds(Subject::Schedule(schedule), now)
    }

    /// Returns bounds that hold for every job or schedule that matches at the time `now`.
    #[must_use]
    pub fn bounds(&self, now: Timestamp) -> Bounds {
        Bounds::of(&self.plan, now)
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        (&self.text, self.zone, self.table) == (&other.text, other.zone, other.table)
    }
}

impl Eq for Expression {}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Expression {
    type Err = KqlError;
    fn from_str(text: &str) -> Result<Self, KqlError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests;
