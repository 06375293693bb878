//! The part of a query that a store can answer from its indexes instead of trying every job.

use std::collections::BTreeMap;

use super::pattern::Pattern;
use super::plan::{Clause, Plan, Target, Test};
use crate::clock::Timestamp;
use crate::job::JobState;

/// The fields whose texts can be bound.
const TEXTS: [&str; 6] = ["id", "state", "queue", "kind", "owner", "lease.worker_id"];
/// The fields whose times can be bound.
const TIMES: [&str; 4] = ["created_at", "updated_at", "run_at", "finished_at"];

/// Conditions that every job or schedule found by a query satisfies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The texts that a field can have, for each of [`TEXTS`] that is bound.
    texts: BTreeMap<&'static str, Vec<String>>,
    /// The span in which a time lies, for each of [`TIMES`] that is bound.
    spans: BTreeMap<&'static str, Span>,
    /// A pattern that the id matches, if the query says one.
    pub id_like: Option<Pattern>,
    /// Whether the query finds everything that satisfies all of these bounds.
    pub exact: bool,
}

/// A span of time from its first millisecond to its last; empty when the last comes before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first millisecond, in milliseconds since the epoch.
    pub first: i64,
    /// The last millisecond, in milliseconds since the epoch.
    pub last: i64,
}

impl Span {
    /// The span of all time.
    pub const ALWAYS: Self = Self { first: i64::MIN, last: i64::MAX };

    /// Returns the span of the time that belongs to both spans.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { first: self.first.max(other.first), last: self.last.min(other.last) }
    }

    /// Returns the shortest span that holds both spans.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// Returns whether the span contains no moment.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.first > self.last
    }

    /// Returns whether the span contains this moment, in milliseconds since the epoch.
    #[must_use]
    pub const fn contains(self, millis: i64) -> bool {
        self.first <= millis && millis <= self.last
    }
}

impl Bounds {
    /// Returns the texts of which whatever is found has one in the field; `None` if the field is not bound. Nothing has
    /// one of none.
    #[must_use]
    pub fn texts(&self, field: &str) -> Option<&[String]> {
        self.texts.get(field).map(Vec::as_slice)
    }

    /// Returns the span in which the time of the field lies, which is all time if the field is not bound.
    #[must_use]
    pub fn span(&self, field: &str) -> Span {
        self.spans.get(field).copied().unwrap_or(Span::ALWAYS)
    }

    /// Returns whether only jobs in a state that is not final can be found.
    #[must_use]
    pub fn only_live(&self) -> bool {
        let is_final = |state: &String| state.parse().is_ok_and(JobState::is_final);
        self.texts("state").is_some_and(|states| !states.iter().any(is_final))
    }

    /// Returns whether nothing can satisfy the bounds.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.values().any(Vec::is_empty) || self.spans.values().any(|span| span.is_empty())
    }

    pub(super) fn of(plan: &Plan, now: Timestamp) -> Self {
        let of = |plan: &Plan| Self::of(plan, now);
        match plan {
            Plan::All => Self::everything(),
            Plan::And(plans) => plans.iter().map(of).fold(Self::everything(), Self::and),
            Plan::Or(plans) => plans.iter().map(of).reduce(Self::or).unwrap_or_default(),
            Plan::Not(plan) => match &**plan {
                Plan::Fields(clauses) => Self::of_others(clauses),
                Plan::Not(plan) => of(plan),
                _ => Self::default(),
            },
            Plan::Fields(clauses) => {
                clauses.iter().map(|clause| Self::of_clause(clause, now)).reduce(Self::or).unwrap_or_default()
            }
            Plan::Nothing => Self::nothing(),
            Plan::InHistory(_) | Plan::Anywhere { .. } => Self::default(),
        }
    }

    fn everything() -> Self {
        Self { exact: true, ..Self::default() }
    }

    fn nothing() -> Self {
        Self::of_texts("id", Vec::new())
    }

    fn of_texts(field: &'static str, texts: Vec<String>) -> Self {
        Self { texts: [(field, texts)].into(), ..Self::everything() }
    }

    fn of_states(is_admitted: impl Fn(JobState) -> bool) -> Self {
        let states = JobState::ALL.into_iter().filter(|state| is_admitted(*state));
        Self::of_texts("state", states.map(|state| state.to_string()).collect())
    }

    fn of_clause(clause: &Clause, now: Timestamp) -> Self {
        let Target::Field(field) = clause.target else { return Self::default() };
        if matches!(clause.test, Test::Never) {
            return Self::nothing();
        }
        let mut bounds = match field.name {
            "state" => return Self::of_states(|state| clause.test.accepts_keyword(state.as_str())),
            "finished_at" => Self::of_states(JobState::is_final),
            "id" => Self { id_like: clause.test.pattern().cloned(), ..Self::default() },
            // Only a running job has any of these.
            name if is_of_running(name) => Self::of_states(|state| state == JobState::Running),
            _ => Self::default(),
        };
        let text = clause.test.only_text().filter(|_| TEXTS.contains(&field.name));
        let span = clause.test.span(now).filter(|_| TIMES.contains(&field.name));
        bounds.exact = text.is_some() || span.is_some();
        bounds.texts.extend(text.map(|text| (field.name, vec![text.to_owned()])));
        bounds.spans.extend(span.map(|span| (field.name, span)));
        bounds
    }

    /// Returns the bounds of the jobs that do not satisfy the clauses: the states are few enough to list the others.
    fn of_others(clauses: &[Clause]) -> Self {
        match clauses {
            [Clause { target: Target::Field(field), test, .. }] if field.name == "state" => {
                Self::of_states(|state| !test.accepts_keyword(state.as_str()))
            }
            _ => Self::default(),
        }
    }

    fn and(mut self, other: Self) -> Self {
        for (field, texts) in other.texts {
            let both = |own: &mut Vec<String>| own.retain(|text| texts.contains(text));
            self.texts.entry(field).and_modify(both).or_insert(texts);
        }
        for (field, span) in other.spans {
            self.spans.entry(field).and_modify(|own| *own = own.and(span)).or_insert(span);
        }
        self.id_like = self.id_like.or(other.id_like);
        self.exact &= other.exact;
        self
    }

    fn or(self, other: Self) -> Self {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        // Exact if both bind the same list and nothing else.
        let is_one_list = self.texts.len() == 1 && self.spans.is_empty() && other.spans.is_empty();
        let exact = self.exact && other.exact && is_one_list && self.texts.keys().eq(other.texts.keys());
        let either = |(field, own): (_, Vec<String>)| {
            let more: Vec<String> = other.texts(field)?.iter().filter(|text| !own.contains(text)).cloned().collect();
            Some((field, own.into_iter().chain(more).collect()))
        };
        let around = |(field, own): (_, Span)| Some((field, own.or(*other.spans.get(field)?)));
        Self {
            texts: self.texts.into_iter().filter_map(either).collect(),
            spans: self.spans.into_iter().filter_map(around).collect(),
            id_like: self.id_like.filter(|pattern| other.id_like.as_ref() == Some(pattern)),
            exact,
        }
    }
}

fn is_of_running(field: &str) -> bool {
    ["lease.", "progress.", "orphan."].iter().any(|group| field.starts_with(group))
        || ["cancel_requested_at", "overdue_at"].contains(&field)
}
