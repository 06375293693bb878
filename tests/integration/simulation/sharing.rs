//! Managers that share a queue, and come, go and hang, while jobs are submitted all the time.

use std::sync::Arc;
use std::time::Duration;

use leasehold::job::JobState;
use tokio::time::sleep;

use super::crew::{Orders, at_work, job, queue, spec, submit};
use super::duplicates::{check_executions, wrong_step};
use super::{Plan, Site, each_seed, nothing, notices};
use crate::model_engine::Spoilt;

const PROCESSES: usize = 3;
const WORKERS: usize = 6;

/// How many jobs are submitted, and how often.
const JOBS: usize = 80;
const EVERY: Duration = Duration::from_millis(150);

async fn submit_steadily(site: Arc<Site>) {
    for number in 0..JOBS {
        let site = Arc::clone(&site);
        tokio::spawn(async move { submit(&site, &mut 0, &[job(&format!("steady-{number}"), spec("q"))]).await });
        sleep(EVERY).await;
    }
}

async fn no_job_is_lost_or_doubled(plan: Plan) {
    let site = Site::new(plan, PROCESSES, nothing);
    site.model.watch(wrong_step);
    let orders = Orders { queues: vec![queue("q")], max_jobs: 3, works_ms: 150, dies: 0, named: true };
    let journal = at_work(&site, WORKERS, &orders);
    let submitting = tokio::spawn(submit_steadily(Arc::clone(&site)));
    site.disturb(3).await;
    site.start();
    site.disturb(3).await;
    submitting.await.expect("all are submitted");
    let completed = || site.model.jobs().iter().filter(|job| job.state.name() == JobState::Completed).count();
    site.until("all jobs are completed", || completed() == JOBS).await;
    check_executions(&site, &journal).await;
}

#[test]
fn managers_that_are_killed_frozen_and_added_lose_no_job_and_double_none() {
    each_seed(no_job_is_lost_or_doubled);
}

#[test]
fn a_store_that_writes_over_jobs_of_others_doubles_one() {
    notices(Spoilt::ConflictsOfJobs, no_job_is_lost_or_doubled);
}

#[test]
fn a_store_that_loses_writes_loses_a_job() {
    notices(Spoilt::LostWrites(40), no_job_is_lost_or_doubled);
}
