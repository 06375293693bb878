//! Schedules while the processes that load and perform them are killed and stand still. The actions submit jobs: calls
//! of URLs need sockets, and are tried in `hold`.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use leasehold::clock::Timestamp;
use leasehold::executor::{HttpExecutor, Limits, TargetPolicy};
use leasehold::job::{JobId, JobState, ScheduleId};
use leasehold::scheduler::{BackfillReport, NewBackfill, NewSchedule, Scheduler, SchedulerConfig, Schedules};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::crew::{Orders, at_work, caller, queue};
use super::{Plan, Process, START, Site, each_seed, notices};
use crate::model_engine::Spoilt;
use crate::scheduler::{definition, id};

const PROCESSES: usize = 2;

/// How many schedules there are, with what periods in milliseconds, and from when to when they are due: once all are
/// stored.
const PERIODS: [i64; 3] = [2_000, 3_000, 5_000];
const BEGIN: i64 = START + 30_000;
const END: i64 = BEGIN + 20_000;

/// How many due times a backfill runs, and how many at once.
const DUE_TIMES: u64 = 24;
const AT_ONCE: usize = 5;

/// Calls nobody.
static EXECUTOR: LazyLock<HttpExecutor> =
    LazyLock::new(|| HttpExecutor::new(policy(), Limits::default()).expect("an executor"));

fn policy() -> TargetPolicy {
    TargetPolicy { allow_private: false, allow: Vec::new() }
}

/// Submits a job that does not end by its lost attempts, as those of the crew do not.
fn job_action() -> Value {
    let mut action = crate::scheduler::job_action();
    action["job"]["max_attempts"] = json!(1_000);
    action
}

fn schedules(site: &Site, process: &Process) -> Schedules {
    Schedules::new(process.manager.clone(), process.store(), Arc::clone(&site.clock), policy())
}

/// Starts the scheduler of a process, which ends with it.
fn with_scheduler(site: &Site, process: &Process) {
    let config = SchedulerConfig { slots: 16, ..SchedulerConfig::default() };
    let scheduler = Scheduler::start(&schedules(site, process), EXECUTOR.clone(), config);
    let handle = Arc::clone(&process.handle);
    tokio::spawn(async move {
        handle.dies().await;
        drop(scheduler);
    });
}

/// The due times for which jobs were submitted.
type Submitted = Arc<Mutex<BTreeSet<(ScheduleId, Timestamp)>>>;

/// Watches which due times have jobs, each one and not before its time.
fn watch(site: &Site) -> Submitted {
    let submitted = Submitted::default();
    let seen = Arc::clone(&submitted);
    site.model.watch(move |before, after| {
        let (None, Some(job)) = (before, after) else { return Ok(()) };
        let Some(due) = job.spec.due.as_deref().filter(|_| job.spec.queue == queue("work")) else { return Ok(()) };
        if job.created_at < due.due_at {
            return Err(format!("{} is there before it is due: {due:?}", job.id));
        }
        match seen.lock().insert((due.schedule_id.clone(), due.due_at)) {
            true => Ok(()),
            false => Err(format!("{} is the second of {due:?}", job.id)),
        }
    });
    submitted
}

async fn put(site: &Site, name: &str, fields: &Value, paused: bool) -> ScheduleId {
    for at in 0..100 {
        let process = site.process(at);
        let new = NewSchedule { id: id(name), definition: definition(fields), paused };
        let schedules = schedules(site, &process);
        if process.call(schedules.put(&caller(), new, true, None)).await.is_some_and(|put| put.is_ok()) {
            return id(name);
        }
    }
    panic!("{name} cannot be stored");
}

async fn every_due_time_is_performed_once(plan: Plan) {
    let site = Site::new(plan, PROCESSES, with_scheduler);
    let submitted = watch(&site);
    let [begin, end] = [BEGIN, END].map(Timestamp::from_millis);
    let anchor = Timestamp::from_millis(START).to_rfc3339();
    for period in PERIODS {
        let fields = json!({
            "action": job_action(), "period": {"every_ms": period, "anchor": anchor}, "margin_of_error_ms": 3_600_000,
            "start_at": begin.to_rfc3339(), "end_at": end.to_rfc3339(),
        });
        put(&site, &format!("every-{period}"), &fields, false).await;
    }
    assert!(site.clock.now() < begin, "all are stored in time");
    sleep(begin.since(site.clock.now())).await;
    site.disturb(6).await;
    let due_times = |period: i64| {
        let due = (0..=(END - START) / period).map(move |number| START + number * period);
        let due = due.filter(|due| (BEGIN + 1..END).contains(due));
        due.map(move |due| (id(&format!("every-{period}")), Timestamp::from_millis(due)))
    };
    let expected: BTreeSet<(ScheduleId, Timestamp)> = PERIODS.into_iter().flat_map(due_times).collect();
    site.until("every due time has its job", || expected.is_subset(&submitted.lock())).await;
}

async fn a_backfill_runs_each_due_time(plan: Plan) {
    let site = Site::new(plan, PROCESSES, with_scheduler);
    let submitted = watch(&site);
    let orders = Orders { queues: vec![queue("work")], max_jobs: 2, works_ms: 200, dies: 0, named: false };
    at_work(&site, 3, &orders);
    let fields = json!({
        "action": job_action(), "period": {"every_ms": 60_000, "anchor": Timestamp::from_millis(START).to_rfc3339()},
        "margin_of_error_ms": 30_000,
    });
    let schedule = put(&site, "filled", &fields, true).await;
    let backfill = started(&site, &schedule).await;
    site.disturb(4).await;
    let ended = || site.model.jobs().into_iter().find(|job| job.id == backfill && job.state.name().is_final());
    site.until("the backfill ends", || ended().is_some()).await;
    assert_eq!(ended().map(|job| job.state.name()), Some(JobState::Completed));
    let report = report(&site, &backfill).await;
    assert_eq!((report.due, report.failed + report.consumed), (DUE_TIMES, 0), "{report:?}");
    assert_eq!(report.performed + report.already, DUE_TIMES, "{report:?}");
    assert_eq!(submitted.lock().len() as u64, DUE_TIMES);
}

/// Starts the backfill, under a key: a call whose answer is lost is made again.
async fn started(site: &Site, schedule: &ScheduleId) -> JobId {
    let minutes = |number: u64| Timestamp::from_millis(START - number as i64 * 60_000);
    for at in 0..100 {
        let process = site.process(at);
        let new = NewBackfill {
            from: minutes(DUE_TIMES),
            to: minutes(1),
            max_concurrent: AT_ONCE,
            idempotency_key: Some("once".parse().expect("a key")),
        };
        let schedules = schedules(site, &process);
        if let Some(Ok(started)) = process.call(schedules.backfill(&caller(), schedule, new)).await {
            assert_eq!(started.due, DUE_TIMES);
            return started.id;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("the backfill cannot be started");
}

async fn report(site: &Site, backfill: &JobId) -> BackfillReport {
    for at in 0..100 {
        let process = site.process(at);
        if let Some(Ok(found)) = process.call(process.manager.get(backfill)).await {
            let result = found.result.expect("a result");
            return serde_json::from_str(result.as_str()).expect("a report");
        }
    }
    panic!("the report cannot be read");
}

#[test]
fn every_due_time_has_one_job_whatever_befalls_the_processes() {
    each_seed(every_due_time_is_performed_once);
}

#[test]
fn a_backfill_runs_each_due_time_once_whatever_befalls_the_processes() {
    each_seed(a_backfill_runs_each_due_time);
}

#[test]
fn a_store_that_loses_writes_leaves_a_due_time_out() {
    notices(Spoilt::LostWrites(40), every_due_time_is_performed_once);
}

#[test]
fn a_store_that_loses_writes_leaves_a_due_time_of_a_backfill_out() {
    notices(Spoilt::LostWrites(40), a_backfill_runs_each_due_time);
}
