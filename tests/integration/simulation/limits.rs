//! Limits and unique keys while processes are killed and stand still, workers die, and answers are lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::job::{Concurrency, ConcurrencyKey, Conditions, Job, JobSpec, JobState, UniqueKey};
use leasehold::manager::NewLimit;
use leasehold::store::RecordKind;
use parking_lot::Mutex;
use rand::RngExt;
use tokio::time::sleep;

use super::crew::{Orders, at_work, caller, job, queue, spec, submit};
use super::{Plan, Site, each_seed, nothing, notices};
use crate::model_engine::Spoilt;

const PROCESSES: usize = 3;
const WORKERS: usize = 12;

/// How many jobs of each kind there are, and how many of them run at once.
const OF_THREE: usize = 12;
const THREE: u32 = 3;
const OF_ONE: usize = 8;
const OF_QUEUE: usize = 10;
const QUEUE_LIMIT: u32 = 2;
const JOBS: usize = OF_THREE + OF_ONE + OF_QUEUE;

/// How many submit under how many unique keys, and how often each.
const SUBMITTERS: usize = 3;
const KEYS: usize = 2;
const ROUNDS: usize = 12;

/// What runs or is live, by limit and by unique key.
#[derive(Default)]
struct Counts {
    running: BTreeMap<String, u32>,
    most: BTreeMap<String, u32>,
}

/// The limit that a job is under, and how many run under it; the unique key of one that is live.
fn limits_of(job: &Job) -> Vec<(String, u32)> {
    let mut limits = Vec::new();
    if job.state.name() == JobState::Running {
        limits.extend(job.spec.concurrency().map(|of| (format!("key:{:?}", of.key), of.max)));
        limits.extend((job.spec.queue == queue("narrow")).then(|| ("queue:narrow".to_owned(), QUEUE_LIMIT)));
    }
    let unique = job.spec.unique().filter(|_| !job.state.name().is_final());
    limits.extend(unique.map(|key| (format!("unique:{key:?}"), 1)));
    limits
}

impl Counts {
    /// Counts what a write changes, and says which limit it exceeds.
    fn see(&mut self, before: Option<&Arc<Job>>, after: Option<&Arc<Job>>) -> Result<(), String> {
        for (limit, _) in before.into_iter().flat_map(|job| limits_of(job)) {
            *self.running.entry(limit).or_default() -= 1;
        }
        for (limit, may) in after.into_iter().flat_map(|job| limits_of(job)) {
            let running = self.running.entry(limit.clone()).or_default();
            *running += 1;
            let most = self.most.entry(limit.clone()).or_default();
            *most = (*most).max(*running);
            if *running > may {
                let job = after.map(|job| job.id.clone());
                return Err(format!("{limit}: {running} at once where {may} may, with {job:?}"));
            }
        }
        Ok(())
    }
}

fn keyed(id: String, key: &str, max: u32) -> leasehold::manager::NewJob {
    let concurrency = Some(Concurrency { key: ConcurrencyKey::new(key).expect("a key"), max });
    let conditions = Conditions { concurrency, ..Conditions::default() }.stored();
    job(&id, JobSpec { conditions, ..spec("q") })
}

/// Submits jobs of unique keys, of which most are refused.
async fn submit_unique(site: Arc<Site>, number: usize) {
    let mut dice = site.dice(2_000 + number as u64);
    for round in 0..ROUNDS {
        sleep(Duration::from_millis(dice.random_range(50..600))).await;
        let unique = Some(UniqueKey::new(format!("u{}", dice.random_range(0..KEYS))).expect("a key"));
        let conditions = Conditions { unique, ..Conditions::default() }.stored();
        let new = job(&format!("unique-{number}-{round}"), JobSpec { conditions, ..spec("unique") });
        let process = site.process(number + round);
        // Refused while another one is live, or lost on the way.
        drop(process.call(process.manager.submit(&caller(), vec![new])).await);
    }
}

async fn set_limit(site: &Site) {
    let new = NewLimit { max_concurrent: Some(QUEUE_LIMIT), ..NewLimit::default() };
    let limit = "queue:narrow".parse().expect("a limit");
    for at in 0..100 {
        let process = site.process(at);
        if process.call(process.manager.set_limit(&caller(), &limit, new)).await.is_some_and(|set| set.is_ok()) {
            // Every manager knows of it before there is anything to run.
            return sleep(Duration::from_secs(6)).await;
        }
    }
    panic!("the limit cannot be set");
}

async fn no_limit_is_exceeded(plan: Plan) {
    let site = Site::new(plan, PROCESSES, nothing);
    let counts = Arc::new(Mutex::new(Counts::default()));
    let seen = Arc::clone(&counts);
    site.model.watch(move |before, after| seen.lock().see(before, after));
    set_limit(&site).await;
    let three = (0..OF_THREE).map(|number| keyed(format!("three-{number}"), "three", THREE));
    let one = (0..OF_ONE).map(|number| keyed(format!("one-{number}"), "one", 1));
    let narrow = (0..OF_QUEUE).map(|number| job(&format!("narrow-{number}"), spec("narrow")));
    let jobs: Vec<_> = three.chain(one).chain(narrow).collect();
    let orders = Orders {
        queues: ["q", "narrow", "unique"].map(queue).to_vec(),
        max_jobs: 2,
        works_ms: 400,
        dies: 12,
        named: false,
    };
    at_work(&site, WORKERS, &orders);
    submit(&site, &mut 0, &jobs).await;
    let submitters = (0..SUBMITTERS).map(|number| tokio::spawn(submit_unique(Arc::clone(&site), number)));
    let submitters: Vec<_> = submitters.collect();
    site.disturb(6).await;
    for submitter in submitters {
        submitter.await.expect("it submits to the end");
    }
    site.until("all jobs end", || site.left().is_empty()).await;
    let ended = site.model.jobs();
    let completed = ended.iter().filter(|job| job.state.name() == JobState::Completed && job.spec.unique().is_none());
    assert_eq!(completed.count(), JOBS, "no job is lost");
}

#[test]
fn no_limit_is_exceeded_at_any_moment_whatever_befalls_the_managers() {
    each_seed(no_limit_is_exceeded);
}

#[test]
fn a_store_that_writes_over_slots_of_others_lets_limits_be_exceeded() {
    notices(Spoilt::ConflictsOfRecords(RecordKind::Slots), no_limit_is_exceeded);
}

#[test]
fn a_store_that_writes_over_keys_of_others_lets_two_jobs_have_one() {
    notices(Spoilt::ConflictsOfRecords(RecordKind::Unique), no_limit_is_exceeded);
}

#[test]
fn a_store_that_writes_over_jobs_of_others_lets_limits_be_exceeded() {
    notices(Spoilt::ConflictsOfJobs, no_limit_is_exceeded);
}
