//! Jobs counted by group.

use std::collections::HashMap;

use super::state::Published;
use crate::job::{JobState, QueueName};
use crate::query::{Filter, Group, GroupField};

/// Counts by group. A group's name is its values one after the other, each ended by a character that no name has, so
/// that counting one more allocates nothing.
#[derive(Default)]
pub(super) struct Groups {
    counts: HashMap<String, u64>,
    name: String,
}

const PRESENT: char = '\u{1}';
const END: char = '\u{0}';

impl Groups {
    pub(super) fn add<'v>(&mut self, values: impl Iterator<Item = Option<&'v str>>, count: u64) {
        self.name.clear();
        for value in values {
            if let Some(value) = value {
                self.name.push(PRESENT);
                self.name.push_str(value);
            }
            self.name.push(END);
        }
        match self.counts.get_mut(&self.name) {
            Some(sum) => *sum += count,
            None => {
                self.counts.insert(self.name.clone(), count);
            }
        }
    }

    pub(super) fn add_counts(&mut self, published: &Published, filter: &Filter, by: &[GroupField]) {
        let wanted = |state: &JobState, queue: &QueueName| {
            (filter.states.is_empty() || filter.states.contains(state))
                && (filter.queues.is_empty() || filter.queues.contains(queue))
                && !(filter.without_system && queue.is_internal())
        };
        for (state, queue, count) in published.live.counts().chain(published.finished.counts()) {
            if wanted(&state, queue) {
                let value = |field: &GroupField| match field {
                    GroupField::State => Some(state.as_str()),
                    _ => Some(queue.as_str()),
                };
                self.add(by.iter().map(value), count);
            }
        }
    }

    /// Returns the groups, the largest first. Without a field, all jobs are one group, even when there are none.
    pub(super) fn most_first(self, by: &[GroupField]) -> Vec<Group> {
        if by.is_empty() {
            let count = self.counts.into_values().sum();
            return vec![Group { values: Vec::new(), count }];
        }
        let values = |name: &str| {
            name.split_terminator(END).map(|value| value.strip_prefix(PRESENT).map(str::to_owned)).collect()
        };
        let groups = self.counts.iter().map(|(name, count)| Group { values: values(name), count: *count });
        let mut groups: Vec<Group> = groups.collect();
        groups.sort_by(Group::most_first);
        groups
    }
}
