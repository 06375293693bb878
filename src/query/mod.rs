//! What can be asked of a store: which jobs ([`Filter`]), in which order ([`sort`]), from where on ([`Cursor`]); and the
//! query language that people ask in ([`kql`]), on one table of [`fields`]; and which figures ([`stats`]).

pub mod fields;
pub mod kql;
pub mod sort;
pub mod stats;

use std::cmp::{Ordering, Reverse};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use sort::{Direction, Sort, SortField, SortKey, SortValue, SortValues};

use self::kql::Expression;
use crate::clock::Timestamp;
use crate::job::{Job, JobState, Kind, Owner, QueueName, RequestId, State, WorkerId};

/// A query, and the moment that it calls now: the same for all pages of a list's one search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The query.
    pub expression: Arc<Expression>,
    /// The moment.
    pub now: Timestamp,
}

/// Which jobs: all that satisfy every part. An empty list or `None` leaves a part open; a list is satisfied by any of
/// its members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In one of these states.
    pub states: Vec<JobState>,
    /// In one of these queues.
    pub queues: Vec<QueueName>,
    /// Of one of these kinds.
    pub kinds: Vec<Kind>,
    /// Belonging to one of these owners.
    pub owners: Vec<Owner>,
    /// Due at this time or before.
    pub run_at_most: Option<Timestamp>,
    /// Due after this time.
    pub run_after: Option<Timestamp>,
    /// With something to do for the monitor at this time or before ([`Job::watch_at`]).
    pub watch_at_most: Option<Timestamp>,
    /// Ended at this time or before.
    pub finished_at_most: Option<Timestamp>,
    /// Ended after this time.
    pub finished_after: Option<Timestamp>,
    /// Last written after this time.
    pub updated_after: Option<Timestamp>,
    /// Whether it is flagged as an orphan.
    pub orphaned: Option<bool>,
    /// Whether somebody is yet to be told of something that happened to it.
    pub untold: Option<bool>,
    /// As a query says.
    pub query: Option<Query>,
    /// Running under a lease of this worker.
    pub worker_id: Option<WorkerId>,
    /// Running under a lease taken by this claim call.
    pub request_id: Option<RequestId>,
}

impl Filter {
    /// Whether `job` is one of those asked for.
    #[must_use]
    pub fn matches(&self, job: &Job) -> bool {
        fn any<T: PartialEq>(wanted: &[T], value: Option<&T>) -> bool {
            wanted.is_empty() || value.is_some_and(|value| wanted.contains(value))
        }
        let lease = job.lease();
        any(&self.states, Some(&job.state.name()))
            && any(&self.queues, Some(&job.spec.queue))
            && any(&self.kinds, Some(&job.spec.kind))
            && any(&self.owners, job.spec.owner.as_ref())
            && self.run_at_most.is_none_or(|latest| job.run_at <= latest)
            && self.run_after.is_none_or(|earliest| job.run_at > earliest)
            && self.watch_at_most.is_none_or(|latest| job.watch_at().is_some_and(|at| at <= latest))
            && self.finished_at_most.is_none_or(|latest| job.finished_at().is_some_and(|at| at <= latest))
            && self.finished_after.is_none_or(|earliest| job.finished_at().is_some_and(|at| at > earliest))
            && self.updated_after.is_none_or(|earliest| job.updated_at > earliest)
            && self.orphaned.is_none_or(|orphaned| job.orphan().is_some() == orphaned)
            && self.untold.is_none_or(|untold| job.outbox.is_empty() != untold)
            && self.query.as_ref().is_none_or(|query| query.expression.matches(job, query.now))
            && self.worker_id.as_ref().is_none_or(|worker| lease.is_some_and(|lease| lease.worker_id == *worker))
            && (self.request_id.is_none() || lease.is_some_and(|lease| lease.request_id == self.request_id))
    }

    /// Whether no settled job ([`Job::is_settled`]) can match, and none that has ended unless its end is yet to be told
    /// of.
    #[must_use]
    pub fn only_live(&self) -> bool {
        self.worker_id.is_some()
            || self.request_id.is_some()
            || self.watch_at_most.is_some()
            || self.orphaned == Some(true)
            || self.untold == Some(true)
            || (!self.states.is_empty() && !self.states.iter().any(|state| state.is_final()))
    }
}

/// Where a list goes on: after the job with this key, in the order it was listed in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The order.
    pub sort: Sort,
    /// The last job of the page before.
    pub after: SortKey,
}

/// A search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    /// Which jobs.
    pub filter: Filter,
    /// In which order.
    pub sort: Sort,
    /// After which one; the cursor's own order must be `sort`.
    pub after: Option<SortKey>,
    /// How many at most.
    pub limit: usize,
}

/// A field that counts can be grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupField {
    /// The state.
    State,
    /// The queue.
    Queue,
    /// The kind.
    Kind,
    /// The owner; jobs without one are their own group.
    Owner,
}

impl GroupField {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::State, Self::Queue, Self::Kind, Self::Owner];

    /// Its name, the same in the API and in the index.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Queue => "queue",
            Self::Kind => "kind",
            Self::Owner => "owner",
        }
    }

    /// The job's group.
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

impl FromStr for GroupField {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|field| field.as_str() == text).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|field| field.as_str()).collect();
            format!("`{text}` cannot be grouped by; {} can", names.join(", "))
        })
    }
}

/// How many jobs there are in one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's values, one for each field asked for, in that order.
    pub values: Vec<Option<String>>,
    /// How many jobs are in it.
    pub count: u64,
}

impl Group {
    /// Orders groups: most jobs first, then by their values.
    #[must_use]
    pub fn most_first(&self, other: &Self) -> Ordering {
        (Reverse(self.count), &self.values).cmp(&(Reverse(other.count), &other.values))
    }
}

/// The order in which available jobs are handed out, as a key for an ordered map.
#[must_use]
pub fn dispatch_key(job: &Job) -> Option<SortKey> {
    (job.state == State::Available).then(|| Sort::Dispatch.key(job))
}
