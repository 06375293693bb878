//! The part of a query that a store can answer from its indexes instead of trying every job.

use super::plan::{Clause, Plan, Target, Test};
use crate::clock::Timestamp;
use crate::job::JobState;

/// Conditions that every job found by a query satisfies. `None` sets no bound; an empty list is satisfied by no job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The ids of the jobs.
    pub ids: Option<Vec<String>>,
    /// The states of the jobs.
    pub states: Option<Vec<JobState>>,
    /// The queues of the jobs.
    pub queues: Option<Vec<String>>,
    /// The kinds of the jobs.
    pub kinds: Option<Vec<String>>,
    /// The owners of the jobs.
    pub owners: Option<Vec<String>>,
    /// The workers that run the jobs.
    pub workers: Option<Vec<String>>,
    /// The span of time in which the jobs are or were due.
    pub run_at: Option<Span>,
    /// The span of time in which the jobs were submitted.
    pub created_at: Option<Span>,
    /// The span of time in which the jobs were last written.
    pub updated_at: Option<Span>,
    /// The span of time in which the jobs ended.
    pub finished_at: Option<Span>,
    /// Whether the query finds every job that satisfies all of these bounds.
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
    /// Returns whether only jobs in a state that is not final can be found.
    #[must_use]
    pub fn only_live(&self) -> bool {
        self.states.as_ref().is_some_and(|states| !states.iter().any(|state| state.is_final()))
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
        Self { ids: Some(Vec::new()), ..Self::everything() }
    }

    fn of_clause(clause: &Clause, now: Timestamp) -> Self {
        let Target::Field(field) = clause.target else { return Self::default() };
        if matches!(clause.test, Test::Never) {
            return Self::nothing();
        }
        let texts = clause.test.only_text().map(|text| vec![text.to_owned()]);
        let span = clause.test.span(now);
        let exact = texts.is_some() || span.is_some();
        let running = || Some(vec![JobState::Running]);
        match field.name {
            "id" => Self { ids: texts, exact, ..Self::default() },
            "queue" => Self { queues: texts, exact, ..Self::default() },
            "kind" => Self { kinds: texts, exact, ..Self::default() },
            "owner" => Self { owners: texts, exact, ..Self::default() },
            "state" => Self { states: Some(states(&clause.test)), exact: true, ..Self::default() },
            "run_at" => Self { run_at: span, exact, ..Self::default() },
            "created_at" => Self { created_at: span, exact, ..Self::default() },
            "updated_at" => Self { updated_at: span, exact, ..Self::default() },
            "finished_at" => {
                let ended = JobState::ALL.into_iter().filter(|state| state.is_final()).collect();
                Self { finished_at: span, states: Some(ended), exact, ..Self::default() }
            }
            "lease.worker_id" => Self { workers: texts, states: running(), exact, ..Self::default() },
            // Only a running job has any of these.
            name if is_of_running(name) => Self { states: running(), ..Self::default() },
            _ => Self::default(),
        }
    }

    /// Returns the bounds of the jobs that do not satisfy the clauses: the states are few enough to list the others.
    fn of_others(clauses: &[Clause]) -> Self {
        let [Clause { target: Target::Field(field), test, .. }] = clauses else { return Self::default() };
        if field.name != "state" {
            return Self::default();
        }
        let states = states(test);
        let others = JobState::ALL.into_iter().filter(|state| !states.contains(state)).collect();
        Self { states: Some(others), exact: true, ..Self::default() }
    }

    fn and(self, other: Self) -> Self {
        fn both<T: PartialEq>(one: Option<Vec<T>>, other: Option<Vec<T>>) -> Option<Vec<T>> {
            match (one, other) {
                (Some(one), Some(other)) => Some(one.into_iter().filter(|value| other.contains(value)).collect()),
                (one, other) => one.or(other),
            }
        }
        fn within(one: Option<Span>, other: Option<Span>) -> Option<Span> {
            match (one, other) {
                (Some(one), Some(other)) => Some(one.and(other)),
                (one, other) => one.or(other),
            }
        }
        Self {
            ids: both(self.ids, other.ids),
            states: both(self.states, other.states),
            queues: both(self.queues, other.queues),
            kinds: both(self.kinds, other.kinds),
            owners: both(self.owners, other.owners),
            workers: both(self.workers, other.workers),
            run_at: within(self.run_at, other.run_at),
            created_at: within(self.created_at, other.created_at),
            updated_at: within(self.updated_at, other.updated_at),
            finished_at: within(self.finished_at, other.finished_at),
            exact: self.exact && other.exact,
        }
    }

    fn or(self, other: Self) -> Self {
        fn either<T: PartialEq>(one: Option<Vec<T>>, other: Option<Vec<T>>) -> Option<Vec<T>> {
            let (mut one, other) = (one?, other?);
            for value in other {
                if !one.contains(&value) {
                    one.push(value);
                }
            }
            Some(one)
        }
        fn around(one: Option<Span>, other: Option<Span>) -> Option<Span> {
            Some(one?.or(other?))
        }
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        let exact = self.exact && other.exact && self.only_list().is_some_and(|list| Some(list) == other.only_list());
        Self {
            ids: either(self.ids, other.ids),
            states: either(self.states, other.states),
            queues: either(self.queues, other.queues),
            kinds: either(self.kinds, other.kinds),
            owners: either(self.owners, other.owners),
            workers: either(self.workers, other.workers),
            run_at: around(self.run_at, other.run_at),
            created_at: around(self.created_at, other.created_at),
            updated_at: around(self.updated_at, other.updated_at),
            finished_at: around(self.finished_at, other.finished_at),
            exact,
        }
    }

    /// Returns the index of the only list that is bound, if nothing else is.
    fn only_list(&self) -> Option<usize> {
        let spans = [self.run_at, self.created_at, self.updated_at, self.finished_at];
        let lists = [
            self.ids.is_some(),
            self.states.is_some(),
            self.queues.is_some(),
            self.kinds.is_some(),
            self.owners.is_some(),
            self.workers.is_some(),
        ];
        let mut bound = (0..lists.len()).filter(|list| lists[*list]);
        let only = bound.next().filter(|_| spans.iter().all(Option::is_none));
        only.filter(|_| bound.next().is_none())
    }

    /// Returns whether no job can satisfy the bounds.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let none = |list: &Option<Vec<String>>| list.as_ref().is_some_and(Vec::is_empty);
        let never = |span: Option<Span>| span.is_some_and(Span::is_empty);
        [&self.ids, &self.queues, &self.kinds, &self.owners, &self.workers].into_iter().any(none)
            || [self.run_at, self.created_at, self.updated_at, self.finished_at].into_iter().any(never)
            || self.states.as_ref().is_some_and(Vec::is_empty)
    }
}

fn states(test: &Test) -> Vec<JobState> {
    JobState::ALL.into_iter().filter(|state| test.accepts_keyword(state.as_str())).collect()
}

fn is_of_running(field: &str) -> bool {
    ["lease.", "progress.", "orphan."].iter().any(|group| field.starts_with(group))
        || ["cancel_requested_at", "overdue_at"].contains(&field)
}
