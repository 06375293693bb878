//! The filters of calls, and their query parameters.

use super::transport::Call;
use crate::clock::Timestamp;
use crate::manager::AuditEventName;
use crate::wire::JobState;

/// Selects the jobs that are listed or counted: those that satisfy every part. An empty part is satisfied by any job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobQuery {
    /// Selects only jobs in these states.
    pub states: Vec<JobState>,
    /// Selects only jobs in these queues.
    pub queues: Vec<String>,
    /// Selects only jobs of these kinds.
    pub kinds: Vec<String>,
    /// Selects only jobs that belong to these owners.
    pub owners: Vec<String>,
    /// Selects the jobs that this KQL query matches.
    pub kql: Option<String>,
    /// The time zone of the query's times without one, such as `Europe/Berlin`. Default: UTC.
    pub time_zone: Option<String>,
    /// The order: a field's name, with a leading `-` for the largest first. Default: `-created_at`. A count does not
    /// use it.
    pub sort: Option<String>,
    /// The size of a page, at most 1,000 jobs. Default: 100. A count does not use it.
    pub limit: Option<u64>,
    /// The `next_cursor` of the page before. A count does not use it.
    pub cursor: Option<String>,
}

/// Selects the jobs that are counted, and groups them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountQuery {
    /// The jobs that are counted.
    pub jobs: JobQuery,
    /// The fields that the jobs are grouped by.
    pub by: Vec<String>,
}

/// Selects the statistics that are returned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatsQuery {
    /// The jobs that the statistics are about.
    pub jobs: JobQuery,
    /// The fields that the jobs are grouped by.
    pub by: Vec<String>,
    /// The length of an interval, such as `1h`, each of which gets a row of its own.
    pub interval: Option<String>,
    /// The time field that puts a job in its interval. Default: `created_at`.
    pub time: Option<String>,
    /// The percentiles. Default: 50, 95 and 99.
    pub percentiles: Vec<f64>,
    /// What is added up over the jobs, such as `resources.gpus`.
    pub sums: Vec<String>,
}

/// Selects the running jobs that look orphaned: those that satisfy every part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrphanQuery {
    /// Selects only jobs in these queues.
    pub queues: Vec<String>,
    /// Selects only jobs of these kinds.
    pub kinds: Vec<String>,
    /// Selects only jobs that belong to these owners.
    pub owners: Vec<String>,
    /// Selects only jobs that this worker holds.
    pub worker: Option<String>,
    /// The size of a page, at most 1,000 jobs. Default: 100.
    pub limit: Option<u64>,
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// Selects the events of the audit that are listed: those that satisfy every part. An empty part is satisfied by any
/// event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// Selects events of these jobs.
    pub jobs: Vec<String>,
    /// Selects events of jobs in these queues.
    pub queues: Vec<String>,
    /// Selects events of jobs of these kinds.
    pub kinds: Vec<String>,
    /// Selects events of jobs that belong to these owners.
    pub owners: Vec<String>,
    /// Selects events with one of these names.
    pub events: Vec<AuditEventName>,
    /// Selects events that these workers, people or parts of the system caused.
    pub actors: Vec<String>,
    /// Selects transitions that these workers caused, whatever their tokens are called.
    pub workers: Vec<String>,
    /// Selects what happened at this time or later.
    pub from: Option<Timestamp>,
    /// Selects what happened at this time or earlier.
    pub to: Option<Timestamp>,
    /// The most events of a page, at most 1,000. Default: 100.
    pub limit: Option<u64>,
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl JobQuery {
    /// Adds the filter's parameters to a call.
    pub(super) fn filter(&self, call: Call) -> Call {
        call.each("state", self.states.iter().map(|state| state.as_str()))
            .each("queue", &self.queues)
            .each("kind", &self.kinds)
            .each("owner", &self.owners)
            .each("kql", &self.kql)
            .each("time_zone", &self.time_zone)
    }

    /// Adds the filter's, the order's and the page's parameters to a call.
    pub(super) fn page(&self, call: Call) -> Call {
        self.filter(call).each("sort", &self.sort).each("limit", self.limit).each("cursor", &self.cursor)
    }
}

impl StatsQuery {
    /// Adds the parameters to a call.
    pub(super) fn parameters(&self, call: Call) -> Call {
        let call = self.jobs.filter(call).each("by", &self.by).each("percentiles", &self.percentiles);
        call.each("interval", &self.interval).each("time", &self.time).each("sum", &self.sums)
    }
}

impl OrphanQuery {
    /// Adds the parameters to a call.
    pub(super) fn parameters(&self, call: Call) -> Call {
        let call = call.each("queue", &self.queues).each("kind", &self.kinds).each("owner", &self.owners);
        call.each("worker", &self.worker).each("limit", self.limit).each("cursor", &self.cursor)
    }
}

impl AuditQuery {
    /// Adds the parameters to a call.
    pub(super) fn parameters(&self, call: Call) -> Call {
        let call = call.each("job", &self.jobs).each("queue", &self.queues).each("kind", &self.kinds);
        let call = call.each("owner", &self.owners).each("event", self.events.iter().map(|event| event.as_str()));
        let call = call.each("actor", &self.actors).each("worker", &self.workers);
        let call = call.each("from", self.from).each("to", self.to);
        call.each("limit", self.limit).each("cursor", &self.cursor)
    }
}
