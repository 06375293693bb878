//! Kibana's query language (KQL), the one way to ask for jobs: `state: running and not owner: (team-a or team-b)`.
//!
//! An [`Expression`] is read once and then answered in two places with the same meaning: by [`Expression::matches`]
//! for a job in memory, and by the query that `store::elasticsearch::kql` makes of it. `docs/kql.md` describes the
//! language and names what is different from Kibana on purpose.
//!
//! In reading order: [`ast`] (what a query says), [`parse`] (from text to that), [`plan`] (which field is asked what),
//! `evaluate` (the answer for one job), [`bounds`] (what a store can look up); [`pattern`], [`date`], [`number`] and
//! [`words`] read the values; [`error`] says what is wrong and where.

pub mod ast;
pub mod bounds;
pub mod date;
pub mod error;
mod evaluate;
pub mod number;
pub mod parse;
pub mod pattern;
pub mod plan;
pub mod words;

use std::fmt;
use std::str::FromStr;

pub use ast::Node;
pub use bounds::{Bounds, Span};
pub use date::Zone;
pub use error::KqlError;
pub use plan::Plan;

use self::evaluate::Subject;
use crate::clock::Timestamp;
use crate::job::Job;

/// The longest query, in bytes.
pub const MAX_BYTES: usize = 16 * 1024;
/// How many levels of `and`, `or`, `not` and `{ }` may be inside one another: Elasticsearch takes no more than thirty,
/// of which the fields themselves need some.
pub const MAX_DEPTH: usize = 20;

/// A query that can be asked.
#[derive(Clone, Debug)]
pub struct Expression {
    text: Box<str>,
    zone: Zone,
    node: Node,
    plan: Plan,
}

impl Expression {
    /// Reads a query; times without a zone are in UTC.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Self, KqlError> {
        Self::parse_in(text, Zone::default())
    }

    /// Reads a query; times without a zone are in `zone`, and days begin there.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse_in(text: &str, zone: Zone) -> Result<Self, KqlError> {
        if text.len() > MAX_BYTES {
            return Err(KqlError::at(text, MAX_BYTES, format!("the query is longer than {MAX_BYTES} bytes")));
        }
        let node = parse::parse(text)?;
        if node.depth() > MAX_DEPTH {
            return Err(KqlError::at(text, 0, format!("the query is more than {MAX_DEPTH} levels deep")));
        }
        let plan = plan::bind(text, &node, zone)?;
        Ok(Self { text: text.into(), zone, node, plan })
    }

    /// The query as it was given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The zone of times without one.
    #[must_use]
    pub fn zone(&self) -> Zone {
        self.zone
    }

    /// What it says.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// What it asks of which field.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether `job` is one of those asked for, at the time `now`.
    #[must_use]
    pub fn matches(&self, job: &Job, now: Timestamp) -> bool {
        self.plan.holds(Subject::Job(job), now)
    }

    /// What all jobs that it finds at the time `now` have in common.
    #[must_use]
    pub fn bounds(&self, now: Timestamp) -> Bounds {
        Bounds::of(&self.plan, now)
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.zone == other.zone
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
