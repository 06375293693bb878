//! How a dispatch shares a queue with other managers.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::job::{Partition, RecordName};

/// A due job whose id is the first one after `name` of a partition that is, or is not, this manager's own.
fn of_share(bench: &Bench, is_own: bool, name: &str, priority: i64, after: i64) -> Versioned {
    let mut jobs = (0..).map(|number| job("a", &format!("{name}-{number}"), priority, after));
    let own = bench.dispatch.shared.board.lock().lane(&queue("a")).shares.own;
    jobs.find(|job| own.contains(job.job.partition()) == is_own).expect("endless")
}

/// A manager with settled workers for the queue `a`.
fn member(name: &str) -> Member {
    let workers: BTreeMap<_, _> = [(queue("a"), 4)].into();
    Member {
        name: RecordName::new(name).expect("a name"),
        settled: workers.clone(),
        workers,
        kinds: KindsByQueue::new(),
    }
}

/// A dispatch of one of two managers, both with workers for the queue `a`, that holds these jobs of its own.
fn shared(own: &[(&str, i64, i64)]) -> Bench {
    let bench = bench(100, Some(Duration::from_secs(1)));
    bench.dispatch.share(Members::new(member("this"), vec![member("that")]));
    bench.know(&["a"]);
    let own = own.iter().map(|(name, priority, after)| of_share(&bench, true, name, *priority, *after));
    bench.dispatch.add(own.collect::<Vec<_>>());
    bench
}

impl Bench {
    /// Looks for jobs of the other manager's partitions, of which these are found, and returns which are let in.
    fn look_elsewhere(&self, found: &[(&str, i64, i64)]) -> Vec<String> {
        let look = self.dispatch.begin_look_elsewhere(&queue("a")).expect("a look is due");
        assert!(self.dispatch.begin_look_elsewhere(&queue("a")).is_none(), "one look is enough for a while");
        let jobs: Vec<Versioned> =
            found.iter().map(|(name, priority, after)| of_share(self, false, name, *priority, *after)).collect();
        assert!(jobs.iter().all(|job| look.partitions.contains(job.job.partition())));
        let found = self.dispatch.may_go_first(&queue("a"), &look, jobs);
        self.dispatch.let_in(&queue("a"), found, |_| true);
        let board = self.dispatch.shared.board.lock();
        let let_in = board.lanes[&queue("a")].foreign.iter().map(|id| name_of(id.as_str())).collect::<BTreeSet<_>>();
        let_in.into_iter().collect()
    }

    fn take_names(&self, max_jobs: usize) -> Vec<String> {
        self.take(&["a"], max_jobs).iter().map(|id| name_of(id)).collect()
    }
}

fn name_of(id: &str) -> String {
    id.split('-').next().unwrap_or_default().to_owned()
}

#[test]
fn what_is_written_here_and_is_anothers_is_left_to_the_other() {
    let bench = shared(&[]);
    bench.dispatch.add([of_share(&bench, true, "own", 0, 0), of_share(&bench, false, "foreign", 0, -1)]);
    assert_eq!(bench.take_names(10), ["own"]);
}

#[tokio::test]
async fn what_is_written_here_is_handed_out_here_when_a_claim_waits_in_vain() {
    let bench = shared(&[]);
    let mut waiting = bench.wait(&["a"], 1);
    bench.dispatch.add([of_share(&bench, false, "foreign", 0, 0)]);
    assert_eq!(name_of(&offered(&mut waiting).await[0]), "foreign");
}

#[tokio::test]
async fn what_is_written_here_and_no_waiting_claim_meets_is_left_to_the_other() {
    let bench = shared(&[]);
    let _waiting = bench.wait_offering(&["a"], 1, &[], &[("hw", "gpu")]);
    let foreign = |requirement| requiring(of_share(&bench, false, "foreign", 0, 0), requirement);
    assert_eq!(bench.dispatch.add_written([foreign("hw = fpga")]).len(), 1);
    assert!(bench.dispatch.add_written([foreign("hw = gpu")]).is_empty());
}

#[tokio::test]
async fn others_are_helped_with_what_a_waiting_claim_meets() {
    let bench = shared(&[]);
    let _waiting = bench.wait(&["a"], 1);
    let look = bench.dispatch.begin_look_elsewhere(&queue("a")).expect("a look is due");
    let found = ["fpga", "any"].map(|name| of_share(&bench, false, name, 0, -1_000));
    let [fpga, any] = found;
    let found = bench.dispatch.may_go_first(&queue("a"), &look, vec![requiring(fpga, "hw = fpga"), any]);
    assert_eq!(ids(found).iter().map(|id| name_of(id)).collect::<Vec<_>>(), ["any"]);
}

#[test]
fn a_job_of_another_goes_first_when_it_is_more_urgent_or_has_waited_a_second_longer() {
    let bench = shared(&[("own", 0, 0)]);
    let found = [("urgent", 1, 0), ("older", 0, -1_000), ("young", 0, -999), ("idle", -1, -9_000)];
    assert_eq!(bench.look_elsewhere(&found), ["older", "urgent"]);
    assert_eq!(bench.take_names(10), ["urgent", "older", "own"]);
}

#[test]
fn without_own_jobs_what_another_left_lying_for_a_second_is_handed_out() {
    let bench = shared(&[]);
    assert_eq!(bench.look_elsewhere(&[("old", 0, -1_000), ("young", 9, -999)]), ["old"]);
}

#[tokio::test]
async fn a_claim_that_has_room_for_no_own_job_is_given_what_another_left_lying() {
    let bench = shared(&[("own", 5, -9_000)]);
    // Own jobs need memory, of which this worker has none.
    let own = bench.take(&["a"], 1).pop().expect("the own job");
    let mut needing = needing("a", &own, 1);
    needing.version.seq_no = 2;
    bench.dispatch.settle(&JobId::new(&own).expect("an id"), Some(needing));
    let mut waiting = bench.wait_with(&["a"], 1, &[("memory", 0)]);
    assert_eq!(bench.look_elsewhere(&[("old", 0, -1_000), ("young", 9, -999)]), ["old"]);
    assert_eq!(name_of(&offered(&mut waiting).await[0]), "old");
}

#[test]
fn what_was_let_in_is_dropped_by_the_next_look() {
    let bench = shared(&[]);
    assert_eq!(bench.look_elsewhere(&[("old", 0, -1_000)]), ["old"]);
    bench.clock.advance(Duration::from_secs(1));
    assert!(bench.look_elsewhere(&[]).is_empty());
    assert!(bench.take_names(10).is_empty());
}

#[test]
fn a_claim_that_does_not_wait_takes_any_job() {
    let bench = shared(&[]);
    let look = bench.dispatch.begin_reach_out(&queue("a"), &[]).expect("there is another manager");
    let found = bench.dispatch.may_go_first(&queue("a"), &look, vec![of_share(&bench, false, "foreign", 0, 0)]);
    bench.dispatch.let_in(&queue("a"), found, |_| true);
    assert_eq!(bench.take_names(10), ["foreign"]);
    assert!(self::bench(100, None).dispatch.begin_reach_out(&queue("a"), &[]).is_none(), "nobody else is there");
}

#[test]
fn who_loses_partitions_drops_their_jobs_and_who_gets_some_looks_for_theirs() {
    let bench = bench(100, Some(Duration::from_secs(1)));
    bench.know(&["a"]);
    bench.dispatch.add((0..64).map(|number| job("a", &format!("j{number}"), 0, 0)));
    bench.dispatch.share(Members::new(member("this"), vec![member("that")]));
    let lookup = bench.dispatch.begin_lookup(&queue("a")).expect("the share is searched for");
    let own = lookup.partitions.expect("not all");
    let kept = bench.take(&["a"], 100);
    assert!((1..64).contains(&kept.len()), "{kept:?}");
    assert!(kept.iter().all(|id| own.contains(job("a", id, 0, 0).job.partition())));
    bench.dispatch.share(Members::new(member("this"), Vec::new()));
    assert_eq!(bench.dispatch.begin_lookup(&queue("a")).expect("all is searched for").partitions, None);
}

#[test]
fn who_was_away_drops_all_it_knew() {
    let bench = shared(&[("own", 0, 0)]);
    bench.dispatch.forget();
    assert!(bench.take_names(10).is_empty());
    assert!(bench.dispatch.begin_lookup(&queue("a")).is_some());
}

/// Jobs of the other manager, the first so many in one partition and each of the rest in another.
fn foreign_jobs(bench: &Bench, in_one_partition: usize, others: usize) -> Vec<Versioned> {
    let own = bench.dispatch.shared.board.lock().lane(&queue("a")).shares.own;
    let foreign = Partition::all().filter(|partition| !own.contains(*partition));
    let wanted = foreign.enumerate().flat_map(|(place, partition)| {
        let count = if place == 0 { in_one_partition } else { 1 };
        (0..count).map(move |_| partition)
    });
    let mut ids = (0..).map(|number| job("a", &format!("j{number}"), 0, -5_000));
    let of = |partition| ids.find(|job| job.job.partition() == partition).expect("endless");
    wanted.take(in_one_partition + others).map(of).collect()
}

#[test]
fn others_are_helped_in_few_partitions_at_a_time() {
    let bench = shared(&[]);
    let jobs = foreign_jobs(&bench, 125, 20);
    let look = bench.dispatch.begin_look_elsewhere(&queue("a")).expect("a look is due");
    let chosen = bench.dispatch.may_go_first(&queue("a"), &look, jobs.clone());
    assert_eq!(chosen, jobs[..125]);
    assert_eq!(bench.dispatch.doubtful(&queue("a"), &chosen).len(), 125, "they are read again");
}

#[test]
fn others_are_helped_more_often_while_a_claim_waits_in_vain() {
    let bench = shared(&[]);
    bench.look_elsewhere(&[]);
    bench.clock.advance(Duration::from_millis(250));
    assert!(bench.dispatch.begin_look_elsewhere(&queue("a")).is_none());
    let _waiting = bench.wait(&["a"], 1);
    assert!(bench.dispatch.begin_look_elsewhere(&queue("a")).is_some());
    assert_eq!(bench.dispatch.plan().wake_at, Timestamp::from_millis(START + 500));
}

#[test]
fn a_partition_in_which_another_was_met_is_left_to_it_and_doubted_for_a_while() {
    let bench = shared(&[("met", 0, 0), ("other", 0, 0)]);
    let [met, other] = ["met", "other"].map(|name| of_share(&bench, true, name, 0, 0));
    assert_ne!(met.job.partition(), other.job.partition());
    let doubtful = || bench.dispatch.doubtful(&queue("a"), &[met.clone(), other.clone()]).len();
    assert_eq!(doubtful(), 0);
    bench.dispatch.yield_to_others(&met.job);
    assert_eq!(bench.take_names(10), ["other"]);
    assert_eq!(doubtful(), 1);
    bench.clock.advance(Duration::from_secs(3));
    assert_eq!(doubtful(), 0);
    let lookup = bench.dispatch.begin_lookup(&queue("a")).expect("it is searched for again");
    let found = LookupResult { due: vec![met.clone()], later: Vec::new() };
    bench.dispatch.end_lookup(&queue("a"), &lookup, found, |_| true);
    assert_eq!(bench.take_names(10), ["met"]);
}

#[test]
fn in_a_store_of_its_own_nothing_is_left_to_others() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let only = job("a", "only", 0, 0);
    bench.dispatch.add([only.clone()]);
    bench.dispatch.yield_to_others(&only.job);
    assert_eq!(bench.take(&["a"], 1), ["only"]);
}

#[test]
fn what_is_written_here_is_handed_out_here_when_it_is_more_urgent_than_the_own_jobs() {
    let bench = shared(&[("own", 0, 0)]);
    let written = [("urgent", 1, 0), ("equal", 0, -9_000), ("idle", -1, -9_000), ("soon", 9, 1)];
    bench.dispatch.add(written.map(|(name, priority, after)| of_share(&bench, false, name, priority, after)));
    bench.clock.advance(Duration::from_millis(1));
    assert_eq!(bench.take_names(10), ["urgent", "own"]);
}

#[test]
fn a_job_of_another_that_comes_after_missing_own_ones_is_not_let_in() {
    let bench = bench(2, Some(Duration::from_secs(1)));
    bench.dispatch.share(Members::new(member("this"), vec![member("that")]));
    bench.know(&["a"]);
    let own = [("first", -100), ("second", -90), ("dropped", -80)];
    bench.dispatch.add(own.map(|(name, after)| of_share(&bench, true, name, 0, after)));
    assert_eq!(bench.take_names(10), ["first", "second"]);
    assert_eq!(bench.look_elsewhere(&[("before", 0, -9_000), ("behind", -1, -9_000)]), ["before"]);
}

#[test]
fn a_job_of_another_that_a_claim_is_written_for_is_not_let_in_again() {
    let bench = shared(&[]);
    assert_eq!(bench.look_elsewhere(&[("old", 0, -1_000)]), ["old"]);
    assert_eq!(bench.take_names(10), ["old"]);
    bench.clock.advance(Duration::from_secs(1));
    assert!(bench.look_elsewhere(&[("old", 0, -1_000)]).is_empty());
    assert!(bench.take_names(10).is_empty());
}

#[test]
fn a_claim_that_does_not_wait_is_given_no_job_of_a_paused_queue() {
    let bench = shared(&[]);
    bench.pause(&["a"]);
    assert!(bench.dispatch.begin_reach_out(&queue("a"), &[]).is_none());
}

#[test]
fn while_the_managers_and_their_workers_stay_the_same_nothing_is_dropped_or_searched_for_again() {
    let bench = shared(&[("own", 0, 0)]);
    bench.dispatch.share(Members::new(member("this"), vec![member("that")]));
    assert!(bench.dispatch.begin_lookup(&queue("a")).is_none());
    assert_eq!(bench.take_names(10), ["own"]);
}

#[test]
fn several_partitions_in_which_others_were_met_are_doubted_at_a_time() {
    let bench = shared(&[]);
    let met = ["one", "another"].map(|name| of_share(&bench, true, name, 0, 0));
    assert_ne!(met[0].job.partition(), met[1].job.partition());
    bench.dispatch.yield_to_others(&met[0].job);
    bench.clock.advance(Duration::from_secs(2));
    bench.dispatch.yield_to_others(&met[1].job);
    assert_eq!(bench.dispatch.doubtful(&queue("a"), &met).len(), 2);
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(bench.dispatch.doubtful(&queue("a"), &met), [&met[1].job.id]);
}
