//! What the manager knows and shows of its work: [`events`] (the live feed), [`workers`] (who asks for jobs), [`insight`]
//! and [`throughput`] (statistics of the last minutes), [`survey`] (counts of the store, taken periodically) and
//! [`explain`] (why a job does not run).

pub(super) mod events;
pub(super) mod explain;
pub(super) mod insight;
pub(super) mod survey;
pub(super) mod throughput;
pub(super) mod workers;
