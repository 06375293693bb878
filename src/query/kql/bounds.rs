//! What of a query a store can look up instead of trying every job.

use super::plan::{Clause, Plan, Target, Test};
use crate::job::StateName;

/// What every job that a query finds has in common. `None` leaves a part open; an empty list is satisfied by no job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Its id is one of these.
    pub ids: Option<Vec<String>>,
    /// It is in one of these states.
    pub states: Option<Vec<StateName>>,
    /// It is in one of these queues.
    pub queues: Option<Vec<String>>,
    /// It is of one of these kinds.
    pub kinds: Option<Vec<String>>,
    /// It belongs to one of these owners.
    pub owners: Option<Vec<String>>,
}

impl Bounds {
    /// Whether only jobs in a state that is not final can be found.
    #[must_use]
    pub fn only_live(&self) -> bool {
        self.states.as_ref().is_some_and(|states| !states.iter().any(|state| state.is_final()))
    }

    pub(super) fn of(plan: &Plan) -> Self {
        match plan {
            Plan::And(plans) => plans.iter().map(Self::of).fold(Self::default(), Self::and),
            Plan::Or(plans) => plans.iter().map(Self::of).reduce(Self::or).unwrap_or_default(),
            Plan::Not(plan) => match &**plan {
                Plan::Fields(clauses) => Self::of_others(clauses),
                Plan::Not(plan) => Self::of(plan),
                _ => Self::default(),
            },
            Plan::Fields(clauses) => clauses.iter().map(Self::of_clause).reduce(Self::or).unwrap_or_default(),
            Plan::Nothing => Self { ids: Some(Vec::new()), ..Self::default() },
            Plan::All | Plan::InHistory(_) | Plan::Anywhere { .. } => Self::default(),
        }
    }

    fn of_clause(clause: &Clause) -> Self {
        let Target::Field(field) = clause.target else { return Self::default() };
        let texts = || clause.test.only_text().map(|text| vec![text.to_owned()]);
        match field.name {
            "id" => Self { ids: texts(), ..Self::default() },
            "queue" => Self { queues: texts(), ..Self::default() },
            "kind" => Self { kinds: texts(), ..Self::default() },
            "owner" => Self { owners: texts(), ..Self::default() },
            "state" => Self { states: Some(states(&clause.test)), ..Self::default() },
            // Only a running job has any of these.
            name if is_of_running(name) => Self { states: Some(vec![StateName::Running]), ..Self::default() },
            _ => Self::default(),
        }
    }

    /// Of what is not so: the states are few enough to be told apart.
    fn of_others(clauses: &[Clause]) -> Self {
        let [Clause { target: Target::Field(field), test, .. }] = clauses else { return Self::default() };
        if field.name != "state" {
            return Self::default();
        }
        let states = states(test);
        let others = StateName::ALL.into_iter().filter(|state| !states.contains(state)).collect();
        Self { states: Some(others), ..Self::default() }
    }

    fn and(self, other: Self) -> Self {
        fn both<T: PartialEq>(one: Option<Vec<T>>, other: Option<Vec<T>>) -> Option<Vec<T>> {
            match (one, other) {
                (Some(one), Some(other)) => Some(one.into_iter().filter(|value| other.contains(value)).collect()),
                (one, other) => one.or(other),
            }
        }
        Self {
            ids: both(self.ids, other.ids),
            states: both(self.states, other.states),
            queues: both(self.queues, other.queues),
            kinds: both(self.kinds, other.kinds),
            owners: both(self.owners, other.owners),
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
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        Self {
            ids: either(self.ids, other.ids),
            states: either(self.states, other.states),
            queues: either(self.queues, other.queues),
            kinds: either(self.kinds, other.kinds),
            owners: either(self.owners, other.owners),
        }
    }

    /// Whether no job can satisfy it.
    fn is_empty(&self) -> bool {
        let none = |list: &Option<Vec<String>>| list.as_ref().is_some_and(Vec::is_empty);
        none(&self.ids)
            || none(&self.queues)
            || none(&self.kinds)
            || none(&self.owners)
            || self.states.as_ref().is_some_and(Vec::is_empty)
    }
}

fn states(test: &Test) -> Vec<StateName> {
    StateName::ALL.into_iter().filter(|state| test.accepts_keyword(state.as_str())).collect()
}

fn is_of_running(field: &str) -> bool {
    ["lease.", "progress.", "orphan."].iter().any(|group| field.starts_with(group))
        || ["cancel_requested_at", "overdue_at"].contains(&field)
}
