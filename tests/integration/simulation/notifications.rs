//! Notifications of the ends of jobs while processes are killed and stand still: of every end there is one delivery,
//! and it is tried. The receiver is at an address that may not be called, so that each delivery ends at once, without
//! a socket: as a dead letter.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use leasehold::executor::{HttpExecutor, Limits, TargetPolicy};
use leasehold::job::{EventName, Job, JobSpec, JobState, NoticeFormat, NoticeTarget, Oversight, QueueName};
use leasehold::notify::{Notifier, NotifyConfig, QUEUE};
use tokio::time::sleep;

use super::crew::{Orders, at_work, job, queue, spec, submit};
use super::{Plan, Process, Site, each_seed, notices};
use crate::model_engine::Spoilt;

const PROCESSES: usize = 2;
const WORKERS: usize = 4;
const JOBS: usize = 24;

/// Calls nobody: the receiver's address is a private one.
static EXECUTOR: LazyLock<HttpExecutor> = LazyLock::new(|| {
    let policy = TargetPolicy { allow_private: false, allow: Vec::new() };
    HttpExecutor::new(policy, Limits::default()).expect("an executor")
});

const URL: &str = "http://127.0.0.1:9/";

/// Starts the notifier of a process, which ends with it.
fn with_notifier(site: &Site, process: &Process) {
    let (handle, store, manager) = (Arc::clone(&process.handle), process.store(), process.manager.clone());
    let clock = Arc::clone(&site.clock);
    tokio::spawn(async move {
        while !handle.is_dead() {
            let config = NotifyConfig { concurrency: 8, ..NotifyConfig::default() };
            let starts = Notifier::start(manager.clone(), store.clone(), clock.clone(), EXECUTOR.clone(), config);
            if let Ok(notifier) = starts.await {
                handle.dies().await;
                drop(notifier);
            }
            sleep(Duration::from_millis(100)).await;
        }
    });
}

fn is_delivery(job: &Job) -> bool {
    job.spec.queue == QueueName::system(QUEUE)
}

async fn every_end_is_told(plan: Plan) {
    let site = Site::new(plan, PROCESSES, with_notifier);
    let target =
        NoticeTarget { url: URL.to_owned(), events: vec![EventName::Completed], format: NoticeFormat::CloudEvents };
    let oversight = Oversight { orphan_policy: None, notify: vec![target] };
    let told = || JobSpec { oversight: oversight.clone(), ..spec("q") };
    let jobs: Vec<_> = (0..JOBS).map(|number| job(&format!("told-{number}"), told())).collect();
    submit(&site, &mut 0, &jobs).await;
    let orders = Orders { queues: vec![queue("q")], max_jobs: 1, works_ms: 500, dies: 15, named: false };
    at_work(&site, WORKERS, &orders);
    site.disturb(6).await;
    let is_told = || {
        let jobs = site.model.jobs();
        let deliveries = jobs.iter().filter(|job| is_delivery(job)).count();
        deliveries >= JOBS && jobs.iter().all(|job| job.state.name().is_final() && job.outbox.is_empty())
    };
    site.until("every end is told", is_told).await;
    let jobs = site.model.jobs();
    let deliveries: Vec<&Arc<Job>> = jobs.iter().filter(|job| is_delivery(job)).collect();
    let of: BTreeSet<Option<&String>> = deliveries.iter().map(|job| job.spec.labels.get("job_id")).collect();
    assert_eq!((deliveries.len(), of.len()), (JOBS, JOBS), "each end has one delivery");
    assert!(deliveries.iter().all(|job| job.state.name() == JobState::Failed), "each was tried");
}

#[test]
fn no_end_stays_untold_whatever_befalls_the_processes() {
    each_seed(every_end_is_told);
}

#[test]
fn a_store_that_loses_writes_leaves_an_end_untold() {
    notices(Spoilt::LostWrites(40), every_end_is_told);
}
