//! Lines while processes are killed and stand still, workers die, and answers are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold::job::{Conditions, Job, JobId, JobSpec, JobState, Ordered, OrderingKey, Priority};
use leasehold::manager::NewJob;
use leasehold::store::RecordKind;
use parking_lot::Mutex;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use super::crew::{Orders, at_work, job, queue, spec, submit};
use super::{Plan, Site, each_seed, nothing, notices};
use crate::model_engine::Spoilt;

const PROCESSES: usize = 3;
const WORKERS: usize = 8;
const KEYS: usize = 3;

/// How many submit at once, how often each does, and how many jobs of one key with each call.
const SUBMITTERS: usize = 3;
const CALLS: usize = 6;
const JOBS_PER_CALL: usize = 2;

/// The jobs of the keys, and in which order they have to run.
#[derive(Default)]
struct Course {
    /// Which jobs were accepted before one was submitted, which come first.
    before: BTreeMap<JobId, Vec<JobId>>,
    /// The jobs that were accepted, by key.
    accepted: BTreeMap<String, Vec<JobId>>,
    running: BTreeMap<OrderingKey, JobId>,
    ended: BTreeSet<JobId>,
    /// In which order jobs first ran.
    began: Vec<JobId>,
}

impl Course {
    /// Says what is wrong with a write.
    fn see(&mut self, before: Option<&Arc<Job>>, after: Option<&Arc<Job>>) -> Result<(), String> {
        let ran = before.is_some_and(|job| job.state.name() == JobState::Running);
        let Some(after) = after else { return Ok(()) };
        let Some(key) = after.spec.ordering_key() else { return Ok(()) };
        let runs = after.state.name() == JobState::Running;
        if ran && !runs {
            self.running.remove(key);
        }
        if after.state.name().is_final() {
            self.ended.insert(after.id.clone());
        }
        if ran || !runs {
            return Ok(());
        }
        if let Some(other) = self.running.insert(key.clone(), after.id.clone()) {
            return Err(format!("{} of {key:?} runs beside {other}", after.id));
        }
        if !self.began.contains(&after.id) {
            self.began.push(after.id.clone());
        }
        let earlier = self.before.get(&after.id).into_iter().flatten();
        let overtaken: Vec<&JobId> = earlier.filter(|job| !self.ended.contains(*job)).collect();
        match overtaken.is_empty() {
            true => Ok(()),
            false => Err(format!("{} of {key:?} has overtaken {overtaken:?}", after.id)),
        }
    }
}

fn ordered(id: &str, key: &str, dice: &mut StdRng) -> NewJob {
    let ordering = Some(Ordered::without_place(OrderingKey::new(key).expect("a key")));
    let conditions = Conditions { ordering, ..Conditions::default() }.stored();
    let priority = Priority::new(dice.random_range(0..5)).expect("a priority");
    job(id, JobSpec { conditions, priority, ..spec("q") })
}

/// Makes the calls of one submitter. Returns the jobs of each call that was answered at once, in their order.
async fn submit_all(site: Arc<Site>, course: Arc<Mutex<Course>>, number: usize) -> Vec<Vec<JobId>> {
    let (mut dice, mut at, mut at_once) = (site.dice(2_000 + number as u64), number, Vec::new());
    for call in 0..CALLS {
        let key = format!("key-{}", dice.random_range(0..KEYS));
        let name = |of_call| format!("j-{number}-{call}-{of_call}");
        let jobs: Vec<NewJob> = (0..JOBS_PER_CALL).map(|of_call| ordered(&name(of_call), &key, &mut dice)).collect();
        let ids: Vec<JobId> = jobs.iter().filter_map(|job| job.id.clone()).collect();
        {
            let mut course = course.lock();
            let before = course.accepted.get(&key).cloned().unwrap_or_default();
            course.before.extend(ids.iter().map(|id| (id.clone(), before.clone())));
        }
        let is_at_once = submit(&site, &mut at, &jobs).await;
        course.lock().accepted.entry(key).or_default().extend(ids.clone());
        at_once.extend(is_at_once.then_some(ids));
        sleep(Duration::from_millis(dice.random_range(0..600))).await;
    }
    at_once
}

async fn no_order_is_changed(plan: Plan) {
    let site = Site::new(plan, PROCESSES, nothing);
    let course = Arc::new(Mutex::new(Course::default()));
    let seen = Arc::clone(&course);
    site.model.watch(move |before, after| seen.lock().see(before, after));
    let orders = Orders { queues: vec![queue("q")], max_jobs: 2, works_ms: 200, dies: 20, named: false };
    at_work(&site, WORKERS, &orders);
    let submitter = |number| tokio::spawn(submit_all(Arc::clone(&site), Arc::clone(&course), number));
    let submitters: Vec<_> = (0..SUBMITTERS).map(submitter).collect();
    site.disturb(6).await;
    let mut at_once = Vec::new();
    for submitter in submitters {
        at_once.extend(submitter.await.expect("it submits to the end"));
    }
    site.until("all jobs end", || site.left().is_empty()).await;
    let jobs = site.model.jobs();
    let completed = jobs.iter().filter(|job| job.state.name() == JobState::Completed);
    assert_eq!(completed.count(), SUBMITTERS * CALLS * JOBS_PER_CALL, "no job is lost");
    let course = course.lock();
    let place = |id: &JobId| course.began.iter().position(|began| began == id);
    for call in at_once {
        assert!(call.is_sorted_by_key(place), "{call:?} are of one call, and ran in another order");
    }
}

#[test]
fn no_order_is_changed_whatever_befalls_the_managers() {
    each_seed(no_order_is_changed);
}

#[test]
fn a_store_that_writes_over_lines_of_others_changes_an_order() {
    notices(Spoilt::ConflictsOfRecords(RecordKind::Line), no_order_is_changed);
}

#[test]
fn a_store_that_writes_over_jobs_of_others_changes_an_order() {
    notices(Spoilt::ConflictsOfJobs, no_order_is_changed);
}
