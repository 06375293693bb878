//! What workers executed, against what the store says that they did: how each job ended, and under whose lease.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold::job::{EventName, Job, JobState};
use tokio::time::sleep;

use super::crew::{Execution, Journal, Orders, at_work, job, queue, spec, submit};
use super::{Plan, Site, each_seed, nothing, notices};
use crate::model_engine::Spoilt;

const PROCESSES: usize = 2;
const WORKERS: usize = 6;
const JOBS: usize = 40;

/// Says what is wrong with a write of a job: its fence goes back, one lease gives way to another without a new fence,
/// or an end is not the last word.
pub(super) fn wrong_step(before: Option<&Arc<Job>>, after: Option<&Arc<Job>>) -> Result<(), String> {
    let Some(before) = before else { return Ok(()) };
    let Some(after) = after else { return Err(format!("{} is removed", before.id)) };
    let runs = |job: &Job| job.state.name() == JobState::Running;
    let begins = runs(after) && !runs(before);
    if after.fence < before.fence || (begins && after.fence == before.fence) {
        return Err(format!("{} was under {:?} and is under {:?}", before.id, before.fence, after.fence));
    }
    if before.state.name().is_final() && after.state != before.state {
        return Err(format!("{} had ended and is {}", before.id, after.state.name()));
    }
    let worker = |job: &Job| job.lease().map(|lease| lease.worker_id.clone());
    if runs(before) && runs(after) && worker(before) != worker(after) {
        return Err(format!("{} changed hands from {:?} to {:?}", before.id, worker(before), worker(after)));
    }
    Ok(())
}

/// What is wrong with a job that was executed so.
fn wrong_with(job: &Job, executions: &[&Execution]) -> Option<String> {
    let history = job.history.entries();
    let ends: Vec<_> = history.iter().filter(|entry| entry.event == EventName::Completed).collect();
    let [end] = ends.as_slice() else { return Some(format!("ended {} times", ends.len())) };
    if job.state.name() != JobState::Completed {
        return Some("did not stay as it ended".to_owned());
    }
    let is_the_one =
        |execution: &Execution| execution.fence == job.fence && end.actor.as_str() == execution.worker.as_str();
    if executions.iter().filter(|execution| is_the_one(execution)).count() != 1 {
        return Some("was completed by none of its workers, or by several".to_owned());
    }
    if executions.iter().any(|execution| execution.accepted == Some(true) && !is_the_one(execution)) {
        return Some("another completion was acknowledged".to_owned());
    }
    if executions.iter().any(|execution| execution.accepted == Some(false) && is_the_one(execution)) {
        return Some("the completion that holds was refused".to_owned());
    }
    let fences: BTreeSet<_> = executions.iter().map(|execution| execution.fence).collect();
    (fences.len() < executions.len()).then(|| "a fence has two owners".to_owned())
}

/// Compares every job, as it is in the end, with what the workers wrote down.
pub(super) async fn check_executions(site: &Site, journal: &Journal) {
    // The last workers hear of what they have done.
    sleep(Duration::from_secs(20)).await;
    let journal = journal.lock();
    for job in site.model.jobs() {
        let executions: Vec<&Execution> = journal.iter().filter(|execution| execution.job == job.id).collect();
        let wrong = wrong_with(&job, &executions);
        assert_eq!(wrong, None, "{}: {executions:#?} {:#?}", job.id, job.history.entries());
    }
}

async fn nothing_is_lost_or_ends_twice(plan: Plan) {
    let site = Site::new(plan, PROCESSES, nothing);
    site.model.watch(wrong_step);
    let jobs: Vec<_> = (0..JOBS).map(|number| job(&format!("job-{number}"), spec("q"))).collect();
    submit(&site, &mut 0, &jobs).await;
    // Jobs take up to the time of a lease, so that some leases end while their jobs are worked on.
    let orders = Orders { queues: vec![queue("q")], max_jobs: 2, works_ms: 1_500, dies: 15, named: false };
    let journal = at_work(&site, WORKERS, &orders);
    site.disturb(6).await;
    site.until("all jobs end", || site.left().is_empty()).await;
    check_executions(&site, &journal).await;
    assert_eq!(site.model.jobs().len(), JOBS);
}

#[test]
fn no_completion_is_acknowledged_twice_and_no_job_is_lost_whatever_befalls_the_managers() {
    each_seed(nothing_is_lost_or_ends_twice);
}

#[test]
fn a_store_that_writes_over_jobs_of_others_ends_one_twice() {
    notices(Spoilt::ConflictsOfJobs, nothing_is_lost_or_ends_twice);
}

#[test]
fn a_store_that_loses_writes_loses_an_end() {
    notices(Spoilt::LostWrites(40), nothing_is_lost_or_ends_twice);
}
