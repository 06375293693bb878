//! What the manager shows of its work: [`events`] (the live feed), [`workers`] (who claims jobs), [`queues`] (their
//! status), [`insight`] and [`throughput`] (statistics of the last minutes, in a [`sliding_window`]), [`survey`]
//! (counts of the store, taken periodically), [`starving`] and [`held_long`] (what these looks find to be amiss) and
//! [`explain`] (why a job does not run).

pub(super) mod events;
pub(super) mod explain;
mod held_long;
pub(super) mod insight;
pub(super) mod queues;
mod sliding_window;
pub(super) mod starving;
pub(super) mod survey;
pub(super) mod throughput;
pub(super) mod workers;

use crate::clock::Timestamp;
use crate::job::JobState;
use crate::manager::work::write::Acknowledged;
use events::Events;
use insight::Insight;
use starving::Starving;
use survey::Surveys;
use throughput::EndedJobs;
use workers::Workers;

/// The observations of one manager, in memory.
pub(super) struct Observations {
    pub(super) started_at: Timestamp,
    pub(super) events: Events,
    pub(super) insight: Insight,
    pub(super) surveys: Surveys,
    pub(super) starving: Starving,
    pub(super) ended: EndedJobs,
    pub(super) workers: Workers,
}

impl Observations {
    /// Creates empty observations. `shared_store` says whether other processes write to the store as well.
    pub(super) fn new(shared_store: bool, now: Timestamp) -> Self {
        Self {
            started_at: now,
            events: Events::new(shared_store),
            insight: Insight::new(now),
            surveys: Surveys::default(),
            starving: Starving::default(),
            ended: EndedJobs::default(),
            workers: Workers::default(),
        }
    }

    /// Counts acknowledged writes.
    pub(super) fn count(&self, writes: &[Acknowledged], now: Timestamp) {
        self.insight.written(writes, now);
        for (before, after) in writes.iter().filter_map(Acknowledged::change) {
            if after.state.name() == JobState::Running && before.state.name() != JobState::Running {
                self.starving.handed_out(after);
            }
            if after.state.name().is_final() && !before.state.name().is_final() {
                self.ended.count(&after.spec.queue, after.state.name(), now);
            }
        }
    }
}

#[cfg(test)]
mod tests;
