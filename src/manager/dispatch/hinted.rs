//! The jobs that were written here and that other managers of the store hand out first.

use std::collections::HashMap;

use super::Dispatch;
use crate::job::{Kind, Partition, QueueName, RecordName};
use crate::store::Versioned;

impl Dispatch {
    /// Adds jobs that were just written, and hands them to claims that wait for their queues. Returns those that are
    /// left to other managers, each with the one that hands it out first; among them those of this manager's own that
    /// none of its workers takes, since they are of other kinds.
    pub(in crate::manager) fn add_written(
        &self,
        written: impl IntoIterator<Item = Versioned>,
    ) -> Vec<(RecordName, Versioned)> {
        let (left, members) = self.add_or_leave(written);
        // Thousands of jobs of one call are of as many partitions at the most as there are.
        let mut first: HashMap<(QueueName, Kind, Partition), Option<RecordName>> = HashMap::new();
        let with_first = |written: Versioned| {
            let (queue, kind, partition) = (&written.job.spec.queue, &written.job.spec.kind, written.job.partition());
            let named = first.entry((queue.clone(), kind.clone(), partition));
            let name = named.or_insert_with(|| members.first_other(queue, kind, partition).cloned()).clone()?;
            Some((name, written))
        };
        left.into_iter().filter_map(with_first).collect()
    }
}
