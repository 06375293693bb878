//! How far behind its due schedules a loader is, by shard.

use std::sync::LazyLock;

use metrics::Gauge;

use crate::clock::Timestamp;
use crate::job::Partition;
use crate::store::StoredSchedule;

/// How many partitions one shard has: with a series for each of the 256, the metrics of a process would double.
const PARTITIONS: usize = 4;
/// How many shards there are.
const COUNT: usize = 64;
/// The names of the shards.
pub static SHARDS: LazyLock<[String; COUNT]> = LazyLock::new(|| std::array::from_fn(|shard| format!("{shard:02}")));

/// The lag of each shard, as it is shown.
pub(super) struct Lags([Gauge; COUNT]);

impl Lags {
    pub(super) fn new() -> Self {
        Self(SHARDS.each_ref().map(|shard| metrics::gauge!("leasehold_loader_lag_seconds", "shard" => shard.as_str())))
    }

    /// Shows for how long the schedule of each shard had been due that has waited longest, of a page in the order in
    /// which schedules are loaded. What the page has not is due later, and what is not this process's is no lag of its.
    /// An outbox that waits is none either.
    pub(super) fn show(&self, page: &[StoredSchedule], now: Timestamp) {
        let mut lags = [None; COUNT];
        for found in page {
            let longest = &mut lags[shard_of(found.schedule.partition())];
            *longest = (*longest).max(found.schedule.next_due().map(|due| now.since(due)));
        }
        for (gauge, lag) in self.0.iter().zip(lags) {
            gauge.set(lag.unwrap_or_default());
        }
    }
}

fn shard_of(partition: Partition) -> usize {
    usize::from(partition.get()) / PARTITIONS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_is_in_a_shard_with_a_name() {
        let mut partitions = [0; COUNT];
        Partition::all().for_each(|partition| partitions[shard_of(partition)] += 1);
        assert_eq!(partitions, [PARTITIONS; COUNT]);
        assert_eq!([0, 9, 63].map(|shard| SHARDS[shard].as_str()), ["00", "09", "63"]);
    }
}
