//! How the managers of one store share the jobs of a queue: by rendezvous hashing, each by as much as it has workers.
//!
//! For each partition every manager draws a number from its name and the partition, and divides it by its number of
//! workers for the queue; the least comes first. So all managers that know the same workers come to the same order
//! without a word, and a manager that comes, goes or changes moves only partitions of its own ("weighted distributed
//! hash tables", Schindelhauer and Schomaker, 2005).

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::job::{Job, Kind, Partition, PartitionSet, QueueName, RecordName};

/// Every so many looks for others' jobs are for those of farther partitions, not for those that come to this manager
/// next: should several managers hang at once, nothing is forgotten.
const FAR_LOOK: u32 = 5;

/// A manager that runs, with the numbers of its workers by queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    pub(crate) name: RecordName,
    /// The workers that the manager has told of.
    pub(crate) workers: BTreeMap<QueueName, u32>,
    /// Those of them that the others are sure to know of. The manager itself goes by these.
    pub(crate) settled: BTreeMap<QueueName, u32>,
    /// The kinds that its workers for a queue take, where all of them name kinds.
    pub(crate) kinds: KindsByQueue,
}

/// The kinds that workers for a queue take, where all of them name kinds.
pub(crate) type KindsByQueue = BTreeMap<QueueName, Vec<Kind>>;

impl Member {
    /// Returns whether workers of the manager for a queue, if it has any, may take jobs of a kind.
    fn takes(&self, queue: &QueueName, kind: &Kind) -> bool {
        self.kinds.get(queue).is_none_or(|kinds| kinds.contains(kind))
    }
}

/// The managers of one store, as one of them knows them. Without any, all jobs are this manager's.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Members {
    own: Option<Member>,
    others: Vec<Member>,
}

impl Members {
    pub(crate) fn new(own: Member, others: Vec<Member>) -> Self {
        Self { own: Some(own), others }
    }

    /// Returns whether each manager has as many workers for the queue as in `former`, so that the shares are the same.
    pub(super) fn share_alike(&self, former: &Self, queue: &QueueName) -> bool {
        let workers = |members: &Self| -> BTreeMap<RecordName, [Option<u32>; 2]> {
            let of = |member: &Member| [&member.workers, &member.settled].map(|workers| workers.get(queue).copied());
            members.own.iter().chain(&members.others).map(|member| (member.name.clone(), of(member))).collect()
        };
        workers(self) == workers(former)
    }

    /// Returns the other manager that hands out the queue's jobs of a kind and a partition before all others; `None`
    /// when no other has workers for the queue that take the kind.
    pub(super) fn first_other(&self, queue: &QueueName, kind: &Kind, partition: Partition) -> Option<&RecordName> {
        let taking = self.others_with(queue).filter(|(other, _)| other.takes(queue, kind));
        let drawn = taking.map(|(other, workers)| (&other.name, draw(other, workers, partition)));
        drawn.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(name, _)| name)
    }

    /// Returns whether none of this manager's workers for the queue takes jobs of this kind, so that another manager is
    /// to be told of them.
    pub(super) fn leaves(&self, queue: &QueueName, kind: &Kind) -> bool {
        self.own.as_ref().is_some_and(|own| !own.takes(queue, kind))
    }

    /// Returns the other managers that have workers for the queue, with how many.
    pub(super) fn others_with(&self, queue: &QueueName) -> impl Iterator<Item = (&Member, u32)> {
        let with_workers = |other: &'_ Member| other.workers.get(queue).copied().filter(|workers| *workers > 0);
        self.others.iter().filter_map(move |other| Some((other, with_workers(other)?)))
    }

    /// Returns whether every other manager has workers for the queue.
    pub(super) fn all_others_take(&self, queue: &QueueName) -> bool {
        self.others.iter().all(|other| other.workers.get(queue).is_some_and(|workers| *workers > 0))
    }

    /// Returns the shares of the queue's partitions.
    ///
    /// While no manager is sure that the others know of its workers, as when many begin at once, each has what is its
    /// own both by equal shares, for which nobody need know of any workers, and by the workers that were told of: what
    /// is one manager's by the one is no other's, whoever of them knows of the workers already.
    pub(super) fn shares(&self, queue: &QueueName) -> Shares {
        let Some(own) = &self.own else { return Shares::default() };
        let of_queue = |workers: &BTreeMap<QueueName, u32>| workers.get(queue).copied().filter(|count| *count > 0);
        let (told, settled) = (of_queue(&own.workers), of_queue(&own.settled));
        let others: Vec<(&Member, Option<u32>)> =
            self.others.iter().map(|other| (other, of_queue(&other.workers))).collect();
        // Returns how many of the others come before this manager, if it counts with so many workers.
        let before = |partition, workers: Option<u32>| {
            let own = workers.map(|workers| draw(own, workers, partition));
            let comes_before = |other: &Member, count| own.is_none_or(|own| draw(other, count, partition) < own);
            others.iter().filter(|(other, count)| count.is_some_and(|count| comes_before(other, count))).count()
        };
        let comes_first_of_equals = |partition| {
            let own = draw(own, 1, partition);
            self.others.iter().all(|other| draw(other, 1, partition) > own)
        };
        let anybody_has_settled =
            settled.is_some() || self.others.iter().any(|other| of_queue(&other.settled).is_some());
        let anybody_has_workers = told.is_some() || others.iter().any(|(_, count)| count.is_some());
        let is_own = |partition| match anybody_has_settled {
            true => before(partition, settled) == 0,
            false => comes_first_of_equals(partition) && (!anybody_has_workers || before(partition, told) == 0),
        };
        let (first, rest): (Vec<Partition>, Vec<Partition>) =
            Partition::all().partition(|partition| is_own(*partition));
        let mut foreign: BTreeMap<usize, Vec<Partition>> = BTreeMap::new();
        for partition in rest {
            foreign.entry(before(partition, told)).or_default().push(partition);
        }
        Shares {
            own: first.into_iter().collect(),
            foreign: foreign.into_values().map(|some| some.into_iter().collect()).collect(),
        }
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
    /// The others, in the order in which this manager takes over what lies there: those that will be its own once the
    /// others know of all its workers, then those for which one other comes before it, then two, and so on. None is
    /// empty.
    foreign: Vec<PartitionSet>,
}

impl Default for Shares {
    fn default() -> Self {
        Self { own: Partition::all().collect(), foreign: Vec::new() }
    }
}

impl Shares {
    /// Returns whether this manager comes first for the job.
    pub(super) fn has(&self, job: &Job) -> bool {
        self.own.contains(job.partition())
    }

    /// Returns whether this manager comes first for all jobs.
    pub(super) fn has_all(&self) -> bool {
        self.foreign.is_empty()
    }

    /// Returns all partitions of others.
    pub(super) fn foreign(&self) -> PartitionSet {
        self.foreign.iter().flat_map(PartitionSet::iter).collect()
    }

    /// Returns the partitions of others that are looked at with the look of this number: mostly those that come to this
    /// manager next; every so often ([`FAR_LOOK`]) the farther ones, one after the other.
    pub(super) fn to_look_at(&self, look: u32) -> PartitionSet {
        let farther = self.foreign.get(1..).unwrap_or_default();
        let chosen = match look % FAR_LOOK == FAR_LOOK - 1 && !farther.is_empty() {
            true => farther.get((look / FAR_LOOK) as usize % farther.len()),
            false => self.foreign.first(),
        };
        chosen.copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: &str = "q";

    fn member(name: &str, workers: u32) -> Member {
        let workers: BTreeMap<_, _> = [(QueueName::system(QUEUE), workers)].into();
        Member {
            name: RecordName::new(name).expect("a name"),
            settled: workers.clone(),
            workers,
            kinds: KindsByQueue::new(),
        }
    }

    /// A manager of whose workers the others may not know yet.
    fn fresh(name: &str, workers: u32) -> Member {
        Member { settled: BTreeMap::new(), ..member(name, workers) }
    }

    /// Returns the shares of each of these managers.
    fn shares(members: &[Member]) -> Vec<Shares> {
        let of = |own: &Member| {
            let others = members.iter().filter(|other| other.name != own.name).cloned().collect();
            Members::new(own.clone(), others).shares(&QueueName::system(QUEUE))
        };
        members.iter().map(of).collect()
    }

    /// Returns the partitions that each of these managers has.
    fn own(members: &[Member]) -> Vec<PartitionSet> {
        shares(members).into_iter().map(|shares| shares.own).collect()
    }

    fn count(partitions: PartitionSet) -> usize {
        partitions.iter().count()
    }

    /// Returns how many of these managers have the partition.
    fn owners(own: &[PartitionSet], partition: Partition) -> usize {
        own.iter().filter(|own| own.contains(partition)).count()
    }

    fn members(names: &[&str]) -> Vec<Member> {
        names.iter().map(|name| member(name, 10)).collect()
    }

    #[test]
    fn each_partition_has_one_manager_and_one_at_every_later_place() {
        let shared = shares(&members(&["a", "b", "c", "d"]));
        for partition in Partition::all() {
            for place in 0..4 {
                let at_place = |shares: &&Shares| match place {
                    0 => shares.own.contains(partition),
                    place => shares.foreign[place - 1].contains(partition),
                };
                assert_eq!(shared.iter().filter(at_place).count(), 1, "{partition:?}, {place}");
            }
        }
        assert!(shared.iter().all(|shares| (32..=96).contains(&count(shares.own))), "{shared:?}");
        assert!(shared.iter().all(|shares| count(shares.own) + count(shares.foreign()) == Partition::COUNT));
    }

    #[test]
    fn those_that_come_next_are_looked_at_mostly_and_all_others_in_turn() {
        for shares in shares(&members(&["a", "b", "c", "d"])) {
            let looks: Vec<PartitionSet> = (0..3 * FAR_LOOK).map(|look| shares.to_look_at(look)).collect();
            let near = looks.iter().filter(|partitions| **partitions == shares.foreign[0]).count();
            assert_eq!(near as u32, 3 * (FAR_LOOK - 1) + 1 - u32::from(shares.foreign.len() > 2));
            let seen: PartitionSet = looks.iter().flat_map(PartitionSet::iter).collect();
            assert_eq!(seen, shares.foreign());
        }
        let two = &shares(&members(&["a", "b"]))[0];
        assert!((0..2 * FAR_LOOK).all(|look| two.to_look_at(look) == two.foreign()));
        assert!(Shares::default().to_look_at(0).is_empty());
    }

    #[test]
    fn those_with_more_workers_have_more_and_those_without_none() {
        let shared = own(&[member("a", 30), member("b", 10), member("c", 0)]);
        let counts: Vec<usize> = shared.iter().map(|own| own.iter().count()).collect();
        assert!((160..=220).contains(&counts[0]), "{counts:?}");
        assert_eq!((counts[0] + counts[1], counts[2]), (Partition::COUNT, 0));
    }

    #[test]
    fn where_nobody_has_workers_all_have_equal_shares() {
        let shared = own(&[member("a", 0), member("b", 0)]);
        assert!(Partition::all().all(|partition| owners(&shared, partition) == 1), "{shared:?}");
        assert!(Shares::default().own.is_full() && Shares::default().has_all());
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
    fn managers_to_which_workers_come_at_once_have_no_partition_twice_whoever_knows_of_the_others() {
        let [all, none] = [8, 0].map(|workers| ["a", "b", "c"].map(|name| fresh(name, workers)));
        // Each knows its own workers, and of the others' all or none.
        let of = |own: usize, known: &[Member; 3]| {
            let others = (0..3).filter(|other| *other != own).map(|other| known[other].clone()).collect();
            Members::new(all[own].clone(), others).shares(&QueueName::system(QUEUE)).own
        };
        for knowing in 0..8_usize {
            let known = |manager: usize| if knowing >> manager & 1 == 1 { &all } else { &none };
            let shared = [0, 1, 2].map(|manager| of(manager, known(manager)));
            assert!(shared.iter().all(|own| !own.is_empty()), "{shared:?}");
            assert!(Partition::all().all(|partition| owners(&shared, partition) <= 1), "{knowing}: {shared:?}");
        }
        // Of two that know each other, one goes by its workers already.
        let settled = member("a", 8);
        let shared = own(&[settled.clone(), fresh("b", 8)]);
        assert!(Partition::all().all(|partition| owners(&shared, partition) <= 1));
        let late = Members::new(fresh("b", 8), vec![fresh("a", 8)]).shares(&QueueName::system(QUEUE)).own;
        let shared = [own(&[settled, fresh("b", 8)])[0], late];
        assert!(Partition::all().all(|partition| owners(&shared, partition) <= 1));
    }

    #[test]
    fn what_will_be_its_own_comes_next_for_a_manager_that_is_new() {
        let shared = shares(&[member("a", 8), fresh("b", 8), fresh("c", 8)]);
        assert!(shared[1].own.is_empty() && shared[2].own.is_empty());
        let soon = shares(&[member("a", 8), member("b", 8), member("c", 8)]);
        assert_eq!([shared[1].foreign[0], shared[2].foreign[0]], [soon[1].own, soon[2].own]);
    }

    #[test]
    fn before_others_know_of_workers_each_has_what_is_its_own_both_by_them_and_by_equal_shares() {
        let new = own(&[fresh("a", 24), fresh("b", 8)]);
        let (equal, by_workers) = (own(&[member("a", 0), member("b", 0)]), own(&[member("a", 24), member("b", 8)]));
        for partition in Partition::all() {
            for manager in [0, 1] {
                let is_own = [&equal, &by_workers].iter().all(|own| own[manager].contains(partition));
                assert_eq!(new[manager].contains(partition), is_own, "{manager}: {partition:?}");
            }
        }
    }

    #[test]
    fn jobs_of_a_kind_are_left_to_managers_whose_workers_take_it() {
        let (queue, kind) = (QueueName::system(QUEUE), Kind::system("rare"));
        let only = |name: &str, kind: &'static str| {
            let kinds = [(queue.clone(), vec![Kind::system(kind)])].into();
            Member { kinds, ..member(name, 8) }
        };
        let members = Members::new(only("a", "usual"), vec![only("b", "usual"), only("c", "rare"), member("d", 0)]);
        assert!(members.leaves(&queue, &kind) && !members.leaves(&queue, &Kind::system("usual")));
        assert!(!Members::new(member("a", 8), Vec::new()).leaves(&queue, &kind), "its workers take any kind");
        for partition in Partition::all() {
            let first = |kind: &'static str| {
                members.first_other(&queue, &Kind::system(kind), partition).map(RecordName::as_str)
            };
            assert_eq!([first("rare"), first("usual"), first("none")], [Some("c"), Some("b"), None]);
        }
    }

    #[test]
    fn a_manager_without_workers_leaves_all_to_one_that_has_just_told_of_some() {
        let shared = own(&[member("a", 0), fresh("b", 8)]);
        assert!(shared[0].is_empty() && !shared[1].is_empty(), "{shared:?}");
    }
}
