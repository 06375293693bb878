//! How the managers of one store share the jobs of a queue: by rendezvous hashing, each by as much as it has workers.
//!
//! For each partition every manager draws a number from its name and the partition, and divides it by its number of
//! workers for the queue; the least comes first. So all managers that know the same workers come to the same order
//! without a word, and a manager that comes, goes or changes moves only partitions of its own ("weighted distributed
//! hash tables", Schindelhauer and Schomaker, 2005).

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::job::{Job, Partition, PartitionSet, QueueName, RecordName};

/// A manager that runs, with the number of its workers by queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    pub(crate) name: RecordName,
    pub(crate) workers: BTreeMap<QueueName, u32>,
}

/// The managers of one store, as one of them knows them. Without any, all jobs are this manager's.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Members {
    own: Option<Member>,
    /// The own workers as this manager has told of them. Others may not know of all of them yet.
    told: BTreeMap<QueueName, u32>,
    others: Vec<Member>,
}

impl Members {
    pub(crate) fn new(own: Member, told: BTreeMap<QueueName, u32>, others: Vec<Member>) -> Self {
        Self { own: Some(own), told, others }
    }

    /// Returns whether each manager has as many workers for the queue as in `former`, so that the shares are the same.
    pub(super) fn share_alike(&self, former: &Self, queue: &QueueName) -> bool {
        let workers = |members: &Self| -> BTreeMap<RecordName, u32> {
            let with_workers = |member: &Member| Some((member.name.clone(), *member.workers.get(queue)?));
            members.own.iter().chain(&members.others).filter_map(with_workers).collect()
        };
        workers(self) == workers(former) && self.told.get(queue) == former.told.get(queue)
    }

    /// Returns the shares of the queue's partitions.
    pub(super) fn shares(&self, queue: &QueueName) -> Shares {
        let of_queue = |workers: &BTreeMap<QueueName, u32>| workers.get(queue).copied().filter(|workers| *workers > 0);
        let others: Vec<(&Member, u32)> =
            self.others.iter().filter_map(|other| Some((other, of_queue(&other.workers)?))).collect();
        // Returns how many come before this manager, if it counts with so many workers.
        let before = |partition, workers: Option<u32>| {
            let own = self.own.as_ref().zip(workers).map(|(own, workers)| draw(own, workers, partition));
            let comes_before = |other: &Member, workers| own.is_none_or(|own| draw(other, workers, partition) < own);
            others.iter().filter(|(other, workers)| comes_before(other, *workers)).count()
        };
        let settled = self.own.as_ref().and_then(|own| of_queue(&own.workers));
        let told = of_queue(&self.told);
        let (own, foreign): (Vec<Partition>, Vec<Partition>) =
            Partition::all().partition(|partition| before(*partition, settled) == 0);
        let comes_next = |partition: &&Partition| before(**partition, settled) == 1 || before(**partition, told) == 0;
        let next = foreign.iter().filter(comes_next).copied().collect();
        Shares { own: own.into_iter().collect(), next, foreign: foreign.into_iter().collect() }
    }
}

/// Returns the draw of a member for a partition: exponentially distributed, with the number of its workers as the rate.
fn draw(member: &Member, workers: u32, partition: Partition) -> f64 {
    let hash = xxh3_64_with_seed(member.name.as_str().as_bytes(), partition.get().into());
    // The upper 53 bits, as a number above 0 and below 1.
    let uniform = ((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -uniform.ln() / f64::from(workers)
}

/// The partitions of a queue, by how many managers with workers for the queue come before this one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shares {
    /// Those for which this manager comes first.
    pub(super) own: PartitionSet,
    /// Those for which it comes second, and so takes over what the first one leaves lying; and those that will be its
    /// own once the others know of all its workers.
    pub(super) next: PartitionSet,
    /// Those for which it does not come first.
    pub(super) foreign: PartitionSet,
}

impl Default for Shares {
    fn default() -> Self {
        Members::default().shares(&QueueName::system("any"))
    }
}

impl Shares {
    /// Returns whether this manager comes first for the job.
    pub(super) fn has(&self, job: &Job) -> bool {
        self.own.contains(job.partition())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: &str = "q";

    fn member(name: &str, workers: u32) -> Member {
        let workers = [(QueueName::system(QUEUE), workers)].into();
        Member { name: RecordName::new(name).expect("a name"), workers }
    }

    /// Returns the partitions that each of these managers has.
    fn own(members: &[Member]) -> Vec<PartitionSet> {
        let of = |own: &Member| {
            let others = members.iter().filter(|other| other.name != own.name).cloned().collect();
            Members::new(own.clone(), own.workers.clone(), others).shares(&QueueName::system(QUEUE)).own
        };
        members.iter().map(of).collect()
    }

    fn members(names: &[&str]) -> Vec<Member> {
        names.iter().map(|name| member(name, 10)).collect()
    }

    #[test]
    fn each_partition_has_one_manager_and_one_that_comes_next() {
        let all = members(&["a", "b", "c", "d"]);
        let shared = own(&all);
        for partition in Partition::all() {
            assert_eq!(shared.iter().filter(|own| own.contains(partition)).count(), 1, "{partition:?}");
        }
        assert!(shared.iter().all(|own| (32..=96).contains(&own.iter().count())), "{shared:?}");
        let shares =
            Members::new(all[0].clone(), all[0].workers.clone(), all[1..].to_vec()).shares(&QueueName::system(QUEUE));
        assert!(
            shares.next.iter().all(|partition| !shares.own.contains(partition) && shares.foreign.contains(partition))
        );
        assert_eq!(shares.own.iter().count() + shares.foreign.iter().count(), Partition::COUNT);
    }

    #[test]
    fn those_with_more_workers_have_more_and_those_without_none() {
        let shared = own(&[member("a", 30), member("b", 10), member("c", 0)]);
        let counts: Vec<usize> = shared.iter().map(|own| own.iter().count()).collect();
        assert!((160..=220).contains(&counts[0]), "{counts:?}");
        assert_eq!((counts[0] + counts[1], counts[2]), (Partition::COUNT, 0));
    }

    #[test]
    fn where_nobody_has_workers_each_has_all() {
        for own in own(&[member("a", 0), member("b", 0)]) {
            assert!(own.is_full());
        }
        assert!(Shares::default().own.is_full() && Shares::default().foreign.is_empty());
    }

    #[test]
    fn when_a_manager_goes_nothing_moves_but_what_it_had() {
        let (before, after) = (own(&members(&["a", "b", "c"])), own(&members(&["a", "b"])));
        for partition in Partition::all() {
            for manager in [0, 1] {
                let (had, has) = (before[manager].contains(partition), after[manager].contains(partition));
                assert!(has || !had, "{partition:?} left a manager that stayed");
                assert!(had || !has || before[2].contains(partition), "{partition:?} came from one that stayed");
            }
        }
    }
    #[test]
    fn managers_that_do_not_count_yet_reach_for_jobs_of_different_partitions() {
        let all = members(&["a", "b", "c"]);
        let shares = |own: &Member| {
            let others = all.iter().filter(|other| other.name != own.name).cloned().collect();
            let fresh = Member { workers: BTreeMap::new(), ..own.clone() };
            Members::new(fresh, own.workers.clone(), others).shares(&QueueName::system(QUEUE))
        };
        let shared: Vec<Shares> = all.iter().map(shares).collect();
        assert!(shared.iter().all(|shares| shares.own.is_empty()));
        for partition in Partition::all() {
            assert_eq!(shared.iter().filter(|shares| shares.next.contains(partition)).count(), 1, "{partition:?}");
        }
    }
}
