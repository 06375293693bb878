//! Backfills: what was not performed is run, each due time once, and never more at once than is wanted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::http::StatusCode;
use leasehold::clock::{Clock as _, Timestamp};
use leasehold::job::{JobId, JobState, Priority, QueueName, ScheduleId, WorkerId};
use leasehold::manager::{Caller, ClaimOrder, ClaimRequest, Finish, Manager, Outcome as End};
use leasehold::scheduler::{
    BackfillReport, DueTime, NewBackfill, NewSchedule, Outcome, ScheduleError, Schedules, StartedBackfill, trigger,
};
use leasehold::store::record::RecordKind;
use leasehold::store::{Versioned, Write};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::keeping::{DAY, remove_triggers};
use super::{Running, SHORT_STEP, START, STEP, Site, definition, ended, has_ended, id, job_action, put, put_as};
use crate::interference::{InterferedEngine, Interference};
use crate::notify::receiver::Receiver;

cases! {
    due_times_from_before_a_schedule_are_run_once_and_so_many_at_once_as_is_wanted,
    [every_night_on_elasticsearch] a_call_that_failed_is_made_again_by_another_backfill_and_one_that_was_refused_is_not,
    [every_night_on_elasticsearch] what_was_performed_when_it_was_due_is_not_run_again,
    what_is_known_to_be_performed_from_its_schedule_alone_is_not_run_again,
    [every_night_on_elasticsearch] a_backfill_goes_on_wherever_its_process_ended,
    a_pause_lets_a_backfill_go_on_and_a_change_or_a_removal_stops_it,
    [every_night_on_elasticsearch] a_backfill_that_is_cancelled_makes_no_more,
    what_the_loader_has_not_come_to_is_left_to_it,
    the_same_backfill_is_found_while_it_is_under_way,
}

const MINUTE: i64 = 60_000;

/// A moment so many minutes after the start.
fn at(minutes: i64) -> Timestamp {
    Timestamp::from_millis(START + minutes * MINUTE)
}

/// The start, and whatever is a multiple of this distance before or after it.
fn every(millis: i64) -> Value {
    json!({"every_ms": millis, "anchor": at(0).to_rfc3339()})
}

fn between(from: i64, to: i64, max_concurrent: usize) -> NewBackfill {
    NewBackfill { from: at(from), to: at(to), max_concurrent, idempotency_key: None }
}

async fn ask(schedules: &Schedules, schedule: &ScheduleId, new: NewBackfill) -> StartedBackfill {
    schedules.backfill(&Caller::system("test"), schedule, new).await.expect("it is started")
}

/// Puts a schedule that is not due by itself, however long the test takes.
async fn put_paused(scheduler: &Running, name: &str, fields: Value) -> ScheduleId {
    put_as(scheduler, NewSchedule { id: id(name), definition: definition(&fields), paused: true }).await
}

/// The due times of a schedule from before the start.
async fn due_before(scheduler: &Running, schedule: &ScheduleId) -> Vec<DueTime> {
    let span = (Some(at(-60)), at(-1));
    scheduler.schedules().due_times(schedule, span, 1_000).await.expect("due times").items
}

impl Site {
    /// Runs the jobs in a queue to their ends, of which there are never more than so many at once.
    fn worker(&self, queue: &str, most: usize) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(work(self.manager.clone(), queue.to_owned(), most)))
    }

    /// Waits for the end of a backfill, while time goes on.
    async fn ended(&self, backfill: &JobId) -> Versioned {
        for _ in 0..1_500 {
            let found = self.manager.wait(backfill, Duration::from_millis(100)).await.expect("it is there");
            if found.versioned.job.state.name().is_final() {
                return found.versioned;
            }
            self.clock.advance(self.step);
        }
        let mut jobs = self.jobs(trigger::QUEUE).await;
        jobs.append(&mut self.jobs("work").await);
        let open = jobs.iter().map(|found| &found.job).filter(|job| !job.state.name().is_final());
        panic!("it has not ended: {:#?}", open.collect::<Vec<_>>());
    }

    /// Waits until a backfill is completed, and returns what it has done.
    async fn report(&self, backfill: &JobId) -> BackfillReport {
        let ended = self.ended(backfill).await;
        assert_eq!(ended.job.state.name(), JobState::Completed, "{ended:#?}");
        let result = self.manager.get(backfill).await.expect("it is there").result.expect("a result");
        serde_json::from_str(result.as_str()).expect("a report")
    }

    /// How many jobs a queue has for each due time.
    async fn by_due_time(&self, queue: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for found in self.jobs(queue).await {
            let due = found.job.spec.due.as_ref().expect("it is of a schedule");
            *counts.entry(due.due_at.to_rfc3339()).or_insert(0) += 1;
        }
        counts
    }

    async fn due_times(&self, scheduler: &Running, schedule: &ScheduleId) -> Vec<DueTime> {
        let span = (Some(at(0)), self.clock.now());
        scheduler.schedules().due_times(schedule, span, 1_000).await.expect("due times").items
    }
}

async fn work(manager: Manager, queue: String, most: usize) {
    let worker_id = WorkerId::new("worker").expect("an id");
    let claim = ClaimRequest {
        worker_id: worker_id.clone(),
        bearer: None,
        queues: vec![QueueName::new(queue).expect("a name")],
        max_jobs: 1_000,
        resources: BTreeMap::new(),
        labels: BTreeMap::new(),
        kinds: Vec::new(),
        wait: Duration::from_millis(200),
        lease: Duration::from_secs(3_600),
        order: ClaimOrder::default(),
        request_id: None,
        repeated: false,
    };
    loop {
        let Ok(claimed) = manager.claim(claim.clone()).await else { continue };
        let jobs: Vec<Versioned> = claimed.jobs().iter().map(|view| view.versioned.clone()).collect();
        claimed.delivered();
        // None of the next ones may come before these have ended.
        assert!(jobs.len() <= most, "{} at once", jobs.len());
        let end = |found: &Versioned| Finish {
            id: found.job.id.clone(),
            fence: found.job.fence,
            outcome: End::Completed { result: None },
        };
        let mut ends: Vec<Finish> = jobs.iter().map(end).collect();
        while !ends.is_empty() {
            let finished = manager.finish(&worker_id, ends.clone()).await.into_iter();
            ends = ends.into_iter().zip(finished).filter(|(_, done)| done.is_err()).map(|(end, _)| end).collect();
        }
    }
}

async fn due_times_from_before_a_schedule_are_run_once_and_so_many_at_once_as_is_wanted(site: Site) {
    let scheduler = site.scheduler();
    let fields = json!({"action": job_action(), "period": every(MINUTE), "owner": "team-a"});
    let schedule = put_paused(&scheduler, "young", fields).await;
    assert_eq!(due_before(&scheduler, &schedule).await, [], "it was not due before it was there");
    let worker = site.worker("work", 3);
    let started = ask(scheduler.schedules(), &schedule, between(-12, -1, 3)).await;
    assert_eq!((started.due, started.is_new), (12, true));
    let report = site.report(&started.id).await;
    let expected = BackfillReport { from: at(-12), to: at(-1), due: 12, performed: 12, ..BackfillReport::default() };
    assert_eq!(report, expected);

    let jobs = site.jobs("work").await;
    assert_eq!(jobs.len(), 12);
    for job in jobs.iter().map(|found| &found.job) {
        let due = job.spec.due.as_ref().expect("it is of a schedule").due_at.to_rfc3339();
        assert_eq!(job.spec.labels[trigger::BACKFILL_LABEL], started.id.as_str());
        let payload = site.manager.get(&job.id).await.expect("the job").payload.expect("a payload");
        assert_eq!(payload.as_str(), json!({"due": due, "of": "young"}).to_string());
    }
    let listed = due_before(&scheduler, &schedule).await;
    assert_eq!(listed.iter().map(|due| due.due_at).collect::<Vec<_>>(), (-12..=-1).map(at).collect::<Vec<_>>());
    for due in &listed {
        assert!(due.backfilled && due.outcome == Outcome::Fired, "{due:?}");
        let trigger = site.manager.get(due.trigger_id.as_ref().expect("a trigger")).await.expect("it is kept");
        assert_eq!(i64::from(trigger.versioned.job.spec.priority.get()), Priority::LOWEST, "who is due goes first");
        assert!(jobs.iter().any(|found| Some(&found.job.id) == due.job_id.as_ref()), "{due:?}");
    }

    // From long before, the list is come to in steps.
    let (mut next, mut found, mut steps) = (Some(at(-5_500)), Vec::new(), 0);
    while let Some(from) = next {
        let page = scheduler.schedules().due_times(&schedule, (Some(from), at(-1)), 5).await;
        let page = page.expect("due times");
        assert!(page.items.len() <= 5);
        (next, steps) = (page.next, steps + 1);
        found.extend(page.items);
    }
    assert!(steps >= 6, "{steps}");
    assert_eq!(found, listed);

    let again = ask(scheduler.schedules(), &schedule, between(-15, -1, 3)).await;
    let report = site.report(&again.id).await;
    assert_eq!((report.due, report.already, report.performed), (15, 12, 3), "{report:?}");
    let again = ask(scheduler.schedules(), &schedule, between(-15, -1, 3)).await;
    let report = site.report(&again.id).await;
    assert_eq!((report.already, report.performed), (15, 0), "{report:?}");
    assert!(site.by_due_time("work").await.values().all(|count| *count == 1));
    drop(worker);
    scheduler.shutdown().await;
}

async fn a_call_that_failed_is_made_again_by_another_backfill_and_one_that_was_refused_is_not(site: Site) {
    let site = site.by_steps_of(2 * STEP);
    let (scheduler, receiver) = (site.scheduler(), Receiver::listening().await);
    receiver.answer_always(StatusCode::SERVICE_UNAVAILABLE);
    let action = json!({"type": "http", "url": receiver.url()});
    let fields = json!({"action": action, "period": every(10 * MINUTE), "margin_of_error_ms": 120_000});
    let schedule = put_paused(&scheduler, "caller", fields).await;
    let first = ask(scheduler.schedules(), &schedule, between(-30, -10, 5)).await;
    let report = site.report(&first.id).await;
    assert_eq!((report.due, report.failed, report.failed_ids.len()), (3, 3, 3), "{report:?}");
    let came = receiver.came();
    assert!(came.len() > 3, "each was tried again: {}", came.len());
    assert!(came.iter().all(|call| call.headers["leasehold-backfill"] == "true"));
    let failed = due_before(&scheduler, &schedule).await;
    assert!(failed.iter().all(|due| due.backfilled && due.outcome == Outcome::Failed), "{failed:?}");

    receiver.answer_next([StatusCode::OK, StatusCode::NOT_FOUND, StatusCode::OK]);
    receiver.answer_as_told();
    let second = ask(scheduler.schedules(), &schedule, between(-30, -10, 1)).await;
    assert!(second.is_new && second.id != first.id);
    let report = site.report(&second.id).await;
    assert_eq!((report.performed, report.consumed, report.failed), (2, 1, 0), "{report:?}");
    let outcomes: Vec<Outcome> = due_before(&scheduler, &schedule).await.into_iter().map(|due| due.outcome).collect();
    assert_eq!(outcomes, [Outcome::Fired, Outcome::Consumed, Outcome::Fired]);
    let errors = scheduler.schedules().get(&schedule).await.expect("it is there").schedule.course.errors;
    assert_eq!(errors, 0, "what a backfill meets is not what the schedule meets");

    let calls = receiver.came().len();
    let third = ask(scheduler.schedules(), &schedule, between(-30, -10, 1)).await;
    assert_eq!(site.report(&third.id).await.already, 3);
    assert_eq!(receiver.came().len(), calls, "nothing is called again");
    scheduler.shutdown().await;
}

async fn what_was_performed_when_it_was_due_is_not_run_again(site: Site) {
    let scheduler = site.scheduler();
    let fields = json!({"action": job_action(), "period": every(MINUTE), "margin_of_error_ms": 5_000});
    let schedule = put(&scheduler, "gapped", fields).await;
    let two = |found: &[DueTime]| found.iter().filter(|due| ended(due.outcome)).count() >= 2;
    site.until(&scheduler, &schedule, two).await;
    scheduler.shutdown().await;
    // Nobody is there for some time, and what was due meanwhile is missed.
    site.clock.advance(Duration::from_secs(10 * 60));
    let scheduler = site.scheduler();
    let missed = |found: &[DueTime]| {
        let is_missed = |due: &DueTime| due.outcome == Outcome::Missed;
        let last = found.iter().rposition(is_missed).unwrap_or_default();
        found.iter().filter(|due| is_missed(due)).count() >= 8 && found[..last].iter().all(|due| ended(due.outcome))
    };
    let found = site.until(&scheduler, &schedule, missed).await;
    let last = found.iter().rev().find(|due| due.outcome == Outcome::Missed).expect("one was missed").due_at;
    let is_performed = |due: &&DueTime| due.due_at <= last && matches!(due.outcome, Outcome::Fired | Outcome::Late);
    let performed = found.iter().filter(is_performed).count() as u64;

    let worker = site.worker("work", 1_000);
    let new = NewBackfill { to: last, ..between(-1, 0, 2) };
    let started = ask(scheduler.schedules(), &schedule, new).await;
    let report = site.report(&started.id).await;
    assert!(report.performed >= 8 && report.failed == 0, "{report:?}");
    assert!(report.already >= performed && report.already + report.performed == report.due, "{report:?}");
    let counts = site.by_due_time("work").await;
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    for due in site.due_times(&scheduler, &schedule).await.iter().filter(|due| due.due_at <= last) {
        assert!(matches!(due.outcome, Outcome::Fired | Outcome::Late), "{due:?}");
        let was_performed = found.iter().any(|was| was.due_at == due.due_at && was.outcome != Outcome::Missed);
        assert_eq!(due.backfilled, !was_performed, "{due:?}");
    }
    drop(worker);
    scheduler.shutdown().await;
}

async fn what_is_known_to_be_performed_from_its_schedule_alone_is_not_run_again(site: Site) {
    let site = site.by_steps_of(SHORT_STEP);
    let (scheduler, receiver) = (site.scheduler(), Receiver::listening().await);
    let days = |days: u32| at(0).plus(DAY * days);
    let action = json!({"type": "http", "url": receiver.url()});
    let period = every(DAY.as_millis() as i64);
    let fields = json!({"action": action, "period": period, "margin_of_error_ms": DAY.as_millis() as u64 / 2});
    let schedule = put(&scheduler, "daily", fields).await;
    let all = |count: usize| move |found: &[DueTime]| found.len() == count && found.iter().all(has_ended);
    site.pass_until(days(1));
    site.until(&scheduler, &schedule, all(1)).await;
    scheduler.shutdown().await;
    // Nobody is there on the second day.
    site.pass_until(days(3));
    let scheduler = site.scheduler();
    let found = site.until(&scheduler, &schedule, all(3)).await;
    assert_eq!(found[1].outcome, Outcome::Missed, "{found:#?}");
    let ask = async || {
        let new = NewBackfill { to: days(3), ..between(0, 0, 2) };
        ask(scheduler.schedules(), &schedule, NewBackfill { from: days(1), ..new }).await
    };
    let report = site.report(&ask().await.id).await;
    assert_eq!((report.due, report.already, report.performed), (3, 2, 1), "{report:?}");

    site.pass_until(days(4).plus(DAY / 4));
    let before = site.until(&scheduler, &schedule, all(4)).await;
    let removed = remove_triggers(&site).await;
    assert!(removed.fault.is_none(), "{removed:?}");
    let after = site.due_times(&scheduler, &schedule).await;
    for (before, after) in before.iter().zip(&after).take(3) {
        assert_eq!(*after, DueTime { trigger_id: None, ..before.clone() });
    }
    assert_eq!(after.iter().map(|due| due.backfilled).collect::<Vec<_>>(), [false, true, false, false]);
    let calls = receiver.came().len();
    let report = site.report(&ask().await.id).await;
    assert_eq!((report.due, report.already), (3, 3), "{report:?}");
    assert_eq!(receiver.came().len(), calls, "nothing is called again");
    scheduler.shutdown().await;
}

async fn a_backfill_goes_on_wherever_its_process_ended(site: Site) {
    let mut scheduler = site.scheduler();
    let receiver = Receiver::listening().await;
    let fields = json!({"action": {"type": "http", "url": receiver.url()}, "period": every(MINUTE)});
    let schedule = put_paused(&scheduler, "long", fields).await;
    let started = ask(scheduler.schedules(), &schedule, between(-300, -1, 7)).await;
    for round in 0..12 {
        // Not a wait for something: the end's moment is what is left to chance.
        tokio::time::sleep(Duration::from_millis(20 + 17 * round)).await;
        scheduler.shutdown().await;
        scheduler = site.scheduler();
    }
    let report = site.report(&started.id).await;
    assert_eq!((report.due, report.performed, report.already), (300, 300, 0), "{report:?}");
    scheduler.shutdown().await;
    let mut called = BTreeMap::new();
    for call in receiver.came() {
        *called.entry(call.headers["leasehold-due-at"].to_str().expect("text").to_owned()).or_insert(0) += 1;
    }
    assert_eq!(called.len(), 300);
    assert!(called.values().all(|count| *count == 1), "each was called once: {called:?}");
}

async fn a_pause_lets_a_backfill_go_on_and_a_change_or_a_removal_stops_it(site: Site) {
    let scheduler = site.scheduler();
    let caller = Caller::system("test");
    let fields = |queue: &str| {
        let action = json!({"type": "job", "job": {"queue": queue, "kind": "k"}});
        json!({"action": action, "period": every(MINUTE)})
    };
    let mut started = Vec::new();
    for name in ["paused", "changed", "removed"] {
        let schedule = put_paused(&scheduler, name, fields(name)).await;
        started.push(ask(scheduler.schedules(), &schedule, between(-10, -1, 1)).await.id);
    }
    // Each has one job, which nobody takes yet.
    for name in ["paused", "changed", "removed"] {
        for _ in 0..600 {
            if !site.jobs(name).await.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(site.jobs(name).await.len(), 1, "{name}");
    }
    scheduler.schedules().resume(&caller, &id("paused")).await.expect("resumed");
    scheduler.schedules().pause(&caller, &id("paused"), String::new()).await.expect("paused again");
    put(&scheduler, "changed", fields("elsewhere")).await;
    scheduler.schedules().remove(&caller, &id("removed"), None).await.expect("removed");
    let workers = ["paused", "changed", "removed"].map(|name| site.worker(name, 1));

    let report = site.report(&started[0]).await;
    assert_eq!((report.performed, report.failed), (10, 0), "{report:?}");
    for (backfill, code) in [(&started[1], "schedule_changed"), (&started[2], "schedule_removed")] {
        let ended = site.ended(backfill).await.job;
        assert_eq!(ended.state.name(), JobState::Failed);
        let error = ended.error.as_ref().expect("an error");
        assert_eq!(error.code, code);
        assert!(error.message.contains("1 of 10 due times"), "{error:?}");
    }
    assert_eq!((site.jobs("changed").await.len(), site.jobs("removed").await.len()), (1, 1));
    assert_eq!(site.jobs("elsewhere").await, []);
    drop(workers);
    scheduler.shutdown().await;
}

async fn a_backfill_that_is_cancelled_makes_no_more(site: Site) {
    let scheduler = site.scheduler();
    let fields = json!({"action": job_action(), "period": every(MINUTE)});
    let schedule = put_paused(&scheduler, "cancelled", fields).await;
    let started = ask(scheduler.schedules(), &schedule, between(-100, -1, 2)).await;
    for _ in 0..600 {
        if site.jobs("work").await.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    site.manager.cancel(&Caller::system("test"), &started.id, None).await.expect("cancelled");
    let ended = site.ended(&started.id).await;
    assert_eq!(ended.job.state.name(), JobState::Cancelled, "{ended:?}");
    let worker = site.worker("work", 2);
    for job in site.jobs("work").await {
        site.manager.wait(&job.job.id, Duration::from_secs(20)).await.expect("it is there");
    }
    assert_eq!(site.jobs("work").await.len(), 2, "none was made after it");

    // Another one runs the rest.
    let another = ask(scheduler.schedules(), &schedule, between(-100, -1, 2)).await;
    assert!(another.is_new && another.id != started.id);
    let report = site.report(&another.id).await;
    assert_eq!((report.already, report.performed), (2, 98), "{report:?}");
    drop(worker);
    scheduler.shutdown().await;
}

async fn what_the_loader_has_not_come_to_is_left_to_it(site: Site) {
    let scheduler = site.scheduler();
    let fields = json!({"action": job_action(), "period": every(MINUTE), "margin_of_error_ms": 86_400_000});
    let schedule = put(&scheduler, "patient", fields).await;
    let schedules = scheduler.schedules().clone();
    scheduler.shutdown().await;
    site.clock.advance(Duration::from_secs(150 * 60));
    // Both find the same due times when they begin.
    let started = ask(&schedules, &schedule, between(-5, 150, 50)).await;
    let worker = site.worker("work", 1_000);
    let scheduler = site.scheduler();
    let report = site.report(&started.id).await;
    assert_eq!(report.due, report.already + report.performed, "{report:?}");
    let all = |found: &[DueTime]| found.len() >= 150 && found[..150].iter().all(|due| ended(due.outcome));
    site.until(&scheduler, &schedule, all).await;
    let counts = site.by_due_time("work").await;
    assert!(counts.len() >= 155 && counts.values().all(|count| *count == 1), "{counts:?}");
    assert_eq!(report.performed, 6, "those from before it was there: {report:?}");
    drop(worker);
    scheduler.shutdown().await;
}

async fn the_same_backfill_is_found_while_it_is_under_way(site: Site) {
    let scheduler = site.scheduler();
    let fields = json!({"action": job_action(), "period": every(MINUTE)});
    let schedule = put_paused(&scheduler, "once", fields).await;
    let schedules = scheduler.schedules();
    let keyed = |key: &str, to| NewBackfill { idempotency_key: key.parse().ok(), ..between(-10, to, 1) };
    let first = ask(schedules, &schedule, between(-10, -1, 1)).await;
    for max_concurrent in [1, 2] {
        let again = ask(schedules, &schedule, between(-10, -1, max_concurrent)).await;
        assert_eq!((&again.id, again.is_new), (&first.id, false));
    }
    let other = ask(schedules, &schedule, between(-10, -2, 1)).await;
    let under_key = ask(schedules, &schedule, keyed("mine", -1)).await;
    assert!(other.is_new && under_key.is_new && under_key.id != first.id);
    let worker = site.worker("work", 3);
    let mut performed = 0;
    for backfill in [&first.id, &other.id, &under_key.id] {
        performed += site.report(backfill).await.performed;
    }
    assert_eq!(performed, 10, "each due time is run by one of them");
    assert_eq!(site.jobs("work").await.len(), 10);

    let again = ask(schedules, &schedule, keyed("mine", -1)).await;
    assert_eq!((again.id, again.is_new), (under_key.id, false), "also after its end");
    let differs = schedules.backfill(&Caller::system("test"), &schedule, keyed("mine", -2)).await;
    assert!(matches!(differs, Err(ScheduleError::Manager(_))), "{differs:?}");
    let anew = ask(schedules, &schedule, between(-10, -1, 1)).await;
    assert!(anew.is_new && anew.id != first.id);
    assert_eq!(site.report(&anew.id).await.already, 10);
    for (new, field) in
        [(between(-1, -1, 1), "to"), (between(-1, 10_000, 1), "to"), (between(-60 * 24 * 3_650, -1, 1), "to")]
    {
        let refused = schedules.backfill(&Caller::system("test"), &schedule, new).await;
        assert!(matches!(&refused, Err(ScheduleError::Invalid(faults)) if faults[0].field == field), "{refused:?}");
    }
    drop(worker);
    scheduler.shutdown().await;
}

/// Where a backfill fails in the middle of its work.
#[derive(Default)]
struct Failing {
    triggers: AtomicUsize,
    writes: AtomicUsize,
}

impl Interference for Failing {
    fn refuses(&self, write: &Write) -> bool {
        let is_backfilled = write.job().spec.labels.contains_key(trigger::BACKFILL_LABEL);
        let is_one_of = |every: usize| is_backfilled && self.writes.fetch_add(1, SeqCst).is_multiple_of(every);
        is_one_of(5) && self.triggers.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_whose_writes_fail_again_and_again_runs_each_due_time_once() {
    let failing = Arc::new(Failing { triggers: AtomicUsize::new(20), writes: AtomicUsize::default() });
    let site = Site::on(InterferedEngine::around(crate::engines::embedded().await, &failing));
    let site = site.by_steps_of(Duration::from_secs(5));
    let scheduler = site.scheduler();
    let fields = json!({"action": job_action(), "period": every(MINUTE)});
    let schedule = put_paused(&scheduler, "unlucky", fields).await;
    let worker = site.worker("work", 4);
    let started = ask(scheduler.schedules(), &schedule, between(-100, -1, 4)).await;
    let report = site.report(&started.id).await;
    assert_eq!((report.due, report.performed, report.already), (100, 100, 0), "{report:?}");
    assert_eq!(failing.triggers.load(SeqCst), 0, "it failed");
    assert_eq!(site.jobs("work").await.len(), 100);
    drop(worker);
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_with_is_not_run_again_when_its_triggers_are_gone() {
    let site = Site::on(crate::engines::embedded().await);
    let (scheduler, receiver) = (site.scheduler(), Receiver::listening().await);
    let action = json!({"type": "http", "url": receiver.url()});
    let fields = json!({"action": action, "period": every(MINUTE), "margin_of_error_ms": 86_400_000});
    let schedule = put(&scheduler, "slow", fields).await;
    // The last one is driven back for as long as it takes.
    receiver.answer_next([StatusCode::OK; 9]);
    receiver.answer_then(StatusCode::SERVICE_UNAVAILABLE);
    let started = ask(scheduler.schedules(), &schedule, between(-10, -1, 1)).await;
    receiver.until(|receiver| receiver.came().len() >= 10, || {}).await;
    // A process that ends has written down how far its backfill has come every ten seconds.
    let store = site.engine.store();
    let mut records = Vec::new();
    for _ in 0..1_000 {
        records = store.records(RecordKind::Backfill).await.expect("readable");
        if !records.is_empty() {
            break;
        }
        site.clock.advance(Duration::from_millis(10));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(records.len(), 1);
    scheduler.shutdown().await;
    let triggers = site.jobs(trigger::QUEUE).await;
    let gone: Vec<Versioned> = triggers.into_iter().filter(|found| found.job.state.name().is_final()).collect();
    assert_eq!(gone.len(), 9);
    for removed in site.manager.remove(&gone).await {
        assert!(removed.expect("removed"));
    }
    receiver.answer_always(StatusCode::OK);
    let scheduler = site.scheduler();
    let report = site.report(&started.id).await;
    assert_eq!((report.performed, report.already, report.failed), (10, 0, 0), "{report:?}");
    let due = receiver.came().into_iter().filter(|call| call.answered.is_success());
    assert_eq!(due.count(), 10, "none was called again");

    // The record goes when another one begins.
    let another = ask(scheduler.schedules(), &schedule, between(-20, -11, 1)).await;
    site.report(&another.id).await;
    let left = store.records(RecordKind::Backfill).await.expect("readable");
    assert!(left.iter().all(|record| record.key.name.as_str() != started.id.as_str()), "{left:?}");
    scheduler.shutdown().await;
}
