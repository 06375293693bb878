//! Searches of a store: a [`Filter`] selects the jobs, [`sort`] orders them, and a [`Cursor`] is the position at which
//! a list continues; a [`ScheduleFilter`] selects schedules. Users write queries in Kibana's language ([`kql`]) over
//! the [`table`] of [`fields`] of the one or the other; [`stats`] has counts and durations.

pub mod fields;
pub mod kql;
pub mod schedule_fields;
mod schedules;
pub mod sort;
pub mod stats;
pub mod table;

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use schedules::ScheduleFilter;
pub use sort::{Direction, Sort, SortField, SortKey, SortValue};

use self::kql::Expression;
use crate::clock::Timestamp;
use crate::job::{
    Job, JobState, Kind, LimitName, OrderingKey, Owner, PartitionSet, Priority, QueueName, RequestId, Requirement,
    State, WorkerId, words,
};

/// A KQL query with the time that its `now` stands for: the same for all pages of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The parsed query.
    pub expression: Arc<Expression>,
    /// The time that `now` stands for.
    pub now: Timestamp,
}

/// Selects the jobs that satisfy every part. An empty list or `None` selects every job; a list is satisfied by any of
/// its members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Selects jobs in one of these states.
    pub states: Vec<JobState>,
    /// Selects jobs in one of these queues.
    pub queues: Vec<QueueName>,
    /// Selects jobs of one of these kinds.
    pub kinds: Vec<Kind>,
    /// Selects jobs of one of these owners.
    pub owners: Vec<Owner>,
    /// Selects jobs that have no owner.
    pub without_owner: bool,
    /// Selects jobs that are due at this time or before.
    pub run_at_most: Option<Timestamp>,
    /// Selects jobs that are due after this time.
    pub run_after: Option<Timestamp>,
    /// Selects jobs that the monitor checks at this time or before ([`Job::watch_at`]).
    pub watch_at_most: Option<Timestamp>,
    /// Selects jobs that ended at this time or before.
    pub finished_at_most: Option<Timestamp>,
    /// Selects jobs that ended after this time.
    pub finished_after: Option<Timestamp>,
    /// Selects jobs that were last written after this time.
    pub updated_after: Option<Timestamp>,
    /// Selects jobs that are held, or those that are not.
    pub held: Option<bool>,
    /// Selects jobs that are flagged as orphans, or those that are not.
    pub orphaned: Option<bool>,
    /// Selects jobs with pending notices, or those without.
    pub pending_notices: Option<bool>,
    /// Selects the jobs that this KQL query matches.
    pub query: Option<Query>,
    /// Selects jobs that run under a lease of this worker.
    pub worker_id: Option<WorkerId>,
    /// Selects jobs that run under a lease which this claim request acquired.
    pub request_id: Option<RequestId>,
    /// Selects available jobs in these partitions.
    pub available_in: Option<PartitionSet>,
    /// Selects jobs that one of these limits is about.
    pub under: Vec<LimitName>,
    /// Leaves out jobs that one of these limits is about.
    pub not_under: Vec<LimitName>,
    /// Selects jobs of one of these ordering keys.
    pub in_line_of: Vec<OrderingKey>,
    /// Leaves out jobs of these ordering keys.
    pub not_in_line_of: Vec<OrderingKey>,
    /// Leaves out jobs that require one of these.
    pub not_requiring: Vec<Requirement>,
    /// Selects jobs of a higher priority than this.
    pub more_urgent_than: Option<Priority>,
    /// Leaves out the jobs of the system's own queues ([`QueueName::is_internal`]).
    pub without_system: bool,
}

impl Filter {
    /// Returns whether the filter selects `job`.
    #[must_use]
    pub fn matches(&self, job: &Job) -> bool {
        fn any<T: PartialEq>(wanted: &[T], value: Option<&T>) -> bool {
            wanted.is_empty() || value.is_some_and(|value| wanted.contains(value))
        }
        let lease = job.lease();
        any(&self.states, Some(&job.state.name()))
            && any(&self.queues, Some(&job.spec.queue))
            && !(self.without_system && job.spec.queue.is_internal())
            && any(&self.kinds, Some(&job.spec.kind))
            && any(&self.owners, job.spec.owner.as_ref())
            && !(self.without_owner && job.spec.owner.is_some())
            && self.run_at_most.is_none_or(|latest| job.run_at <= latest)
            && self.run_after.is_none_or(|earliest| job.run_at > earliest)
            && self.watch_at_most.is_none_or(|latest| job.watch_at().is_some_and(|at| at <= latest))
            && self.finished_at_most.is_none_or(|latest| job.finished_at().is_some_and(|at| at <= latest))
            && self.finished_after.is_none_or(|earliest| job.finished_at().is_some_and(|at| at > earliest))
            && self.updated_after.is_none_or(|earliest| job.updated_at > earliest)
            && self.held.is_none_or(|held| job.hold.is_some() == held)
            && self.orphaned.is_none_or(|orphaned| job.orphan().is_some() == orphaned)
            && self.pending_notices.is_none_or(|pending_notices| job.outbox.is_empty() != pending_notices)
            && self.query.as_ref().is_none_or(|query| query.expression.matches(job, query.now))
            && self.worker_id.as_ref().is_none_or(|worker| lease.is_some_and(|lease| lease.worker_id == *worker))
            && self.available_in.is_none_or(|set| job.state == State::Available && set.contains(job.partition()))
            && (self.under.is_empty() || job.limit_names().any(|name| self.under.contains(&name)))
            && (self.not_under.is_empty() || !job.limit_names().any(|name| self.not_under.contains(&name)))
            && any(&self.in_line_of, job.spec.ordering_key())
            && !job.spec.ordering_key().is_some_and(|key| self.not_in_line_of.contains(key))
            && (self.not_requiring.is_empty()
                || !job.spec.requires().iter().any(|required| self.not_requiring.contains(required)))
            && self.more_urgent_than.is_none_or(|than| job.spec.priority > than)
            && (self.request_id.is_none() || lease.is_some_and(|lease| lease.request_id == self.request_id))
    }

    /// Leaves out the jobs of the system's own queues, of which nobody wants to hear who does not ask for them: by a
    /// queue, by an id in the query, by a worker of the system, or by a query `kql` in which their names begin.
    #[must_use]
    pub fn of_users(self, kql: Option<&str>) -> Self {
        let ids = |query: &Query| {
            let bounds = query.expression.bounds(query.now);
            bounds.texts("id").is_some() || bounds.id_like.is_some()
        };
        let asked = !self.queues.is_empty()
            || self.worker_id.as_ref().is_some_and(WorkerId::is_internal)
            || kql.is_some_and(|kql| kql.contains(QueueName::INTERNAL))
            || self.query.as_ref().is_some_and(ids);
        Self { without_system: !asked, ..self }
    }

    /// Returns whether no settled job ([`Job::is_settled`]) can match, and no ended job unless it has pending notices.
    #[must_use]
    pub fn only_live(&self) -> bool {
        self.worker_id.is_some()
            || self.request_id.is_some()
            || self.available_in.is_some()
            || self.watch_at_most.is_some()
            || self.held == Some(true)
            || self.orphaned == Some(true)
            || self.pending_notices == Some(true)
            || (!self.states.is_empty() && !self.states.iter().any(|state| state.is_final()))
    }
}

/// The position at which a list continues: after the job with this key, in the order of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The order of the list.
    pub sort: Sort,
    /// The key of the last job on the page before.
    pub after: SortKey,
}

/// A search for jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    /// Selects the jobs of the answer.
    pub filter: Filter,
    /// The order of the jobs in the answer.
    pub sort: Sort,
    /// The key of `sort` after which the answer begins, if it does not begin with the first job.
    pub after: Option<SortKey>,
    /// The largest number of jobs in the answer.
    pub limit: usize,
}

words! {
    /// A field that counts can be grouped by without reading the jobs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum GroupField: "a field of such groups", "fields" {
        /// Groups by state.
        State = "state",
        /// Groups by queue.
        Queue = "queue",
        /// Groups by kind.
        Kind = "kind",
        /// Groups by owner; jobs without one are a group of their own.
        Owner = "owner",
    }
}

impl GroupField {
    /// Returns the job's value of this field; `None` if it has no value.
    #[must_use]
    pub fn value(self, job: &Job) -> Option<&str> {
        match self {
            Self::State => Some(job.state.name().as_str()),
            Self::Queue => Some(job.spec.queue.as_str()),
            Self::Kind => Some(job.spec.kind.as_str()),
            Self::Owner => job.spec.owner.as_ref().map(Owner::as_str),
        }
    }
}

/// The number of jobs in one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's values, one for each requested field, in the order of the request.
    pub values: Vec<Option<String>>,
    /// The number of jobs in the group.
    pub count: u64,
}

impl Group {
    /// Compares two groups: the one with the most jobs comes first, then the one with the smaller values.
    #[must_use]
    pub fn most_first(&self, other: &Self) -> Ordering {
        (Reverse(self.count), &self.values).cmp(&(Reverse(other.count), &other.values))
    }
}

/// Returns the job's key in the order in which available jobs are claimed; `None` for a job that is not available, or
/// is held.
#[must_use]
pub fn dispatch_key(job: &Job) -> Option<SortKey> {
    job.is_claimable().then(|| Sort::Dispatch.key(job))
}
