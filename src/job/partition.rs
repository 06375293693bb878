//! Partitions: the parts into which all jobs are cut, so that the managers of one store can share them.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use super::{Job, OrderingKey};

/// One of the [`Partition::COUNT`] parts of all jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(u8);

impl Partition {
    /// The number of partitions.
    pub const COUNT: usize = 256;

    /// Returns all partitions in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }

    /// Returns the partition of this id or key, which never changes: the lowest byte of its hash
    /// (XXH3).
    #[must_use]
    pub fn of(id: &str) -> Self {
        let [lowest, ..] = xxh3_64(id.as_bytes()).to_le_bytes();
        Self(lowest)
    }

    /// Returns the number of the partition, from 0 to 255.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl Job {
    /// Returns the partition of the job. All jobs of an ordering key are in one, so that one manager hands them out and
    /// hears of most of their ends.
    #[must_use]
    pub fn partition(&self) -> Partition {
        Partition::of(self.spec.ordering_key().map_or(self.id.as_str(), OrderingKey::as_str))
    }
}

/// A set of partitions.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PartitionSet([u64; Partition::COUNT / 64]);

impl PartitionSet {
    /// Returns whether the partition is in the set.
    #[must_use]
    pub fn contains(&self, partition: Partition) -> bool {
        let (word, bit) = place(partition);
        self.0[word] & bit != 0
    }

    /// Returns whether there is no partition in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether every partition is in the set.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.iter().all(|word| *word == u64::MAX)
    }

    /// Returns the partitions of the set in order.
    pub fn iter(&self) -> impl Iterator<Item = Partition> + use<'_> {
        Partition::all().filter(|partition| self.contains(*partition))
    }
}

impl FromIterator<Partition> for PartitionSet {
    fn from_iter<I: IntoIterator<Item = Partition>>(partitions: I) -> Self {
        let mut set = Self::default();
        for partition in partitions {
            let (word, bit) = place(partition);
            set.0[word] |= bit;
        }
        set
    }
}

impl fmt::Debug for PartitionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Partition::get)).finish()
    }
}

/// Returns the word and the bit that stand for a partition.
fn place(partition: Partition) -> (usize, u64) {
    (usize::from(partition.0) / 64, 1 << (partition.0 % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        let (none, odd): (PartitionSet, PartitionSet) =
            (PartitionSet::default(), Partition::all().filter(|partition| partition.get() % 2 == 1).collect());
        assert!(none.is_empty() && !none.is_full());
        assert!(Partition::all().all(|partition| odd.contains(partition) == (partition.get() % 2 == 1)));
        assert_eq!(odd.iter().count(), 128);
        let all: PartitionSet = Partition::all().collect();
        assert!(all.is_full() && all.iter().count() == Partition::COUNT);
    }
}
