//! Queues whose owners take turns.

use leasehold::job::Owner;
use leasehold::manager::{Fairness, JobOrder, QueueChange};

use super::*;

cases! {
    [every_night_on_elasticsearch] ten_jobs_behind_thousands_of_another_owner_are_among_the_next_two_rounds,
    [every_night_on_elasticsearch] ten_jobs_after_a_flood_that_takes_turns_already_are_among_the_next_two_rounds,
    without_fairness_the_owner_of_a_job_does_not_matter,
    owners_get_jobs_by_their_weights,
    a_job_that_waits_for_its_turn_says_so,
    owners_get_time_where_their_turns_are_expected_runtimes,
    shorter_jobs_go_first_and_a_long_one_is_not_starved,
    the_shortest_of_those_that_were_due_first_go_first_where_not_all_are_known,
}

/// More jobs than a manager keeps candidates of one queue.
const FLOOD: usize = 20_000;

fn of(owner: &str) -> NewJob {
    NewJob::of(JobSpec { owner: Some(Owner::new(owner).expect("a name")), ..spec() })
}

async fn flood(site: &Site, owner: &str, count: usize) {
    for some in (0..count).collect::<Vec<_>>().chunks(2_500) {
        for answer in site.manager.submit(&caller(), some.iter().map(|_| of(owner)).collect()).await {
            answer.expect("the job is taken");
        }
    }
}

async fn take_turns(site: &Site, weights: &[(&str, u32)]) {
    let weights = weights.iter().map(|(owner, weight)| (Owner::new(owner).expect("a name"), *weight)).collect();
    let change = QueueChange { fairness: Some(Fairness::Owner), weights: Some(weights), ..QueueChange::default() };
    site.manager.set_up_queue(&queue(), &change).await.expect("set");
}

/// Claims ten jobs at a time, and returns the owners of all.
async fn rounds(site: &Site, count: usize) -> Vec<String> {
    let mut owners = Vec::new();
    for _ in 0..count {
        let claimed = site.claim(ClaimRequest { wait: PATIENCE, ..claim(10) }).await;
        assert_eq!(claimed.len(), 10);
        owners
            .extend(claimed.iter().map(|found| found.job.spec.owner.as_ref().map_or(String::new(), Owner::to_string)));
    }
    owners
}

fn count(owners: &[String], owner: &str) -> usize {
    owners.iter().filter(|found| *found == owner).count()
}

async fn ten_jobs_behind_thousands_of_another_owner_are_among_the_next_two_rounds(site: Site) {
    flood(&site, "many", FLOOD).await;
    site.clock.advance(Duration::from_secs(1));
    flood(&site, "few", 10).await;
    site.engine.settle().await;
    assert_eq!(count(&rounds(&site, 1).await, "many"), 10);
    take_turns(&site, &[]).await;
    assert_eq!(count(&rounds(&site, 2).await, "few"), 10);
    assert_eq!(count(&rounds(&site, 1).await, "many"), 10);
}

async fn ten_jobs_after_a_flood_that_takes_turns_already_are_among_the_next_two_rounds(site: Site) {
    take_turns(&site, &[]).await;
    flood(&site, "many", FLOOD).await;
    site.engine.settle().await;
    assert_eq!(count(&rounds(&site, 1).await, "many"), 10);
    site.clock.advance(Duration::from_secs(1));
    flood(&site, "few", 10).await;
    site.engine.settle().await;
    assert_eq!(count(&rounds(&site, 2).await, "few"), 10);
}

async fn without_fairness_the_owner_of_a_job_does_not_matter(site: Site) {
    flood(&site, "many", 200).await;
    site.clock.advance(Duration::from_secs(1));
    flood(&site, "few", 10).await;
    site.engine.settle().await;
    assert_eq!(count(&rounds(&site, 20).await, "many"), 200);
    assert_eq!(count(&rounds(&site, 1).await, "few"), 10);
}

async fn owners_get_jobs_by_their_weights(site: Site) {
    flood(&site, "one", 300).await;
    flood(&site, "three", 300).await;
    take_turns(&site, &[("three", 3)]).await;
    site.engine.settle().await;
    let three = count(&rounds(&site, 20).await, "three");
    assert!((145..=155).contains(&three), "{three}");
}

async fn a_job_that_waits_for_its_turn_says_so(site: Site) {
    take_turns(&site, &[("few", 2)]).await;
    flood(&site, "many", 20).await;
    site.clock.advance(Duration::from_secs(1));
    site.submit(of("few")).await;
    site.clock.advance(Duration::from_secs(1));
    let last = site.submit(of("few")).await.versioned.job.id.clone();
    site.engine.settle().await;
    let why = site.manager.explain(&last).await.expect("explained");
    let turns = why.reasons.iter().find(|reason| reason.code == "fair_share").expect("it waits for its turn");
    assert_eq!((&turns.evidence["ahead_of_owner"], &turns.evidence["weight"]), (&1.into(), &2.into()));
    assert_eq!(why.reasons.iter().find(|reason| reason.code == "jobs_ahead"), None);
}

fn expecting(job: NewJob, seconds: u64) -> NewJob {
    let expected_runtime = Some(Duration::from_secs(seconds));
    NewJob { spec: JobSpec { expected_runtime, ..job.spec }, ..job }
}

async fn set(site: &Site, change: QueueChange) {
    site.manager.set_up_queue(&queue(), &change).await.expect("set");
}

async fn owners_get_time_where_their_turns_are_expected_runtimes(site: Site) {
    let jobs = (0..200).flat_map(|_| [expecting(of("long"), 600), of("usual")]);
    for answer in site.manager.submit(&caller(), jobs.collect()).await {
        answer.expect("the job is taken");
    }
    set(&site, QueueChange { fairness: Some(Fairness::OwnerRuntime), ..QueueChange::default() }).await;
    site.engine.settle().await;
    // A job that says nothing counts as a minute.
    let long = count(&rounds(&site, 11).await, "long");
    assert!((9..=11).contains(&long), "{long}");
}

/// Returns the expected runtimes of claimed jobs, in seconds.
fn seconds(claimed: &[Versioned]) -> Vec<u64> {
    claimed.iter().map(|found| found.job.spec.expected_runtime.map_or(60, |expected| expected.as_secs())).collect()
}

async fn shorter_jobs_go_first_and_a_long_one_is_not_starved(site: Site) {
    set(&site, QueueChange { order: Some(JobOrder::Shortest), ..QueueChange::default() }).await;
    for expected in [50, 10, 30] {
        site.submit(expecting(new_job(), expected)).await;
    }
    let urgent = Priority::new(1).expect("a priority");
    let urgent = NewJob::of(JobSpec { priority: urgent, ..spec() });
    site.submit(expecting(urgent, 1_000)).await;
    site.engine.settle().await;
    assert_eq!(seconds(&site.claim(ClaimRequest { wait: PATIENCE, ..claim(3) }).await), [1_000, 10, 30]);
    // The long one goes as if it had become due four times its expected runtime later. That is within the five minutes
    // after which a manager forgets a queue that nobody asks for.
    site.clock.advance(Duration::from_secs(170));
    let first = site.submit(expecting(new_job(), 5)).await.versioned.job.id.clone();
    site.clock.advance(Duration::from_secs(20));
    site.submit(expecting(new_job(), 5)).await;
    site.clock.advance(Duration::from_secs(20));
    let last = site.submit(expecting(new_job(), 5)).await.versioned.job.id.clone();
    site.engine.settle().await;
    let why = site.manager.explain(&last).await.expect("explained");
    let ahead = why.reasons.iter().find(|reason| reason.code == "jobs_ahead").expect("it waits for others");
    assert_eq!(ahead.evidence["ahead"], 3);
    assert!(ahead.message.ends_with("where shorter jobs go first."), "{}", ahead.message);
    let claimed = site.claim(ClaimRequest { wait: PATIENCE, ..claim(4) }).await;
    assert_eq!((&claimed[0].job.id, seconds(&claimed)), (&first, vec![5, 50, 5, 5]));
}

async fn the_shortest_of_those_that_were_due_first_go_first_where_not_all_are_known(site: Site) {
    set(&site, QueueChange { order: Some(JobOrder::Shortest), ..QueueChange::default() }).await;
    flood(&site, "many", FLOOD).await;
    site.clock.advance(Duration::from_secs(1));
    site.submit(expecting(new_job(), 1)).await;
    site.engine.settle().await;
    let claimed = site.claim(ClaimRequest { wait: PATIENCE, ..claim(10) }).await;
    assert_eq!(seconds(&claimed), [60; 10], "a thousand of the others come before it in the order of dispatch");
}
