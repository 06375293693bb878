//! Which jobs a call is about, and how that is said in its address.

use super::transport::Call;
use crate::wire::JobState;

/// Which jobs are listed or counted: all that satisfy every part. An empty part is satisfied by any job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobQuery {
    /// In one of these states.
    pub states: Vec<JobState>,
    /// In one of these queues.
    pub queues: Vec<String>,
    /// Of one of these kinds.
    pub kinds: Vec<String>,
    /// Belonging to one of these owners.
    pub owners: Vec<String>,
    /// As this query in Kibana's language says.
    pub kql: Option<String>,
    /// Where the query's times without a zone are meant, such as `Europe/Berlin`; UTC when not said.
    pub time_zone: Option<String>,
    /// The order: a field's name, with a leading `-` for the largest first. `-created_at` when not said. Not used by
    /// a count.
    pub sort: Option<String>,
    /// How many on a page, at most 1,000. 100 when not said. Not used by a count.
    pub limit: Option<u64>,
    /// Where the page begins: the page before's `next_cursor`. Not used by a count.
    pub cursor: Option<String>,
}

/// Which jobs are counted, and by what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountQuery {
    /// Which jobs.
    pub jobs: JobQuery,
    /// Grouped by these fields.
    pub by: Vec<String>,
}

/// Which figures are asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatsQuery {
    /// About which jobs.
    pub jobs: JobQuery,
    /// Grouped by these fields.
    pub by: Vec<String>,
    /// With a row for each interval of this length, such as `1h`.
    pub interval: Option<String>,
    /// In which a job belongs by this time; `created_at` when not said.
    pub time: Option<String>,
    /// Which percentiles; 50, 95 and 99 when none is named.
    pub percentiles: Vec<f64>,
}

/// Which jobs that look abandoned are listed: all that satisfy every part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrphanQuery {
    /// In one of these queues.
    pub queues: Vec<String>,
    /// Of one of these kinds.
    pub kinds: Vec<String>,
    /// Belonging to one of these owners.
    pub owners: Vec<String>,
    /// Held by this worker.
    pub worker: Option<String>,
    /// How many on a page, at most 1,000. 100 when not said.
    pub limit: Option<u64>,
    /// Where the page begins: the page before's `next_cursor`.
    pub cursor: Option<String>,
}

impl JobQuery {
    /// Adds the filter's parameters.
    pub(super) fn filter(&self, call: Call) -> Call {
        call.each("state", self.states.iter().map(|state| state.as_str()))
            .each("queue", &self.queues)
            .each("kind", &self.kinds)
            .each("owner", &self.owners)
            .each("kql", &self.kql)
            .each("time_zone", &self.time_zone)
    }

    /// Adds the parameters of a page.
    pub(super) fn page(&self, call: Call) -> Call {
        self.filter(call).each("sort", &self.sort).each("limit", self.limit).each("cursor", &self.cursor)
    }
}

impl StatsQuery {
    /// Adds the parameters.
    pub(super) fn parameters(&self, call: Call) -> Call {
        let call = self.jobs.filter(call).each("by", &self.by).each("percentiles", &self.percentiles);
        call.each("interval", &self.interval).each("time", &self.time)
    }
}

impl OrphanQuery {
    /// Adds the parameters.
    pub(super) fn parameters(&self, call: Call) -> Call {
        let call = call.each("queue", &self.queues).each("kind", &self.kinds).each("owner", &self.owners);
        call.each("worker", &self.worker).each("limit", self.limit).each("cursor", &self.cursor)
    }
}
