//! Schedules over each engine: jobs that are submitted and receivers on real sockets that are called. Time is the
//! test's own.

macro_rules! cases {
    ($($cases:tt)*) => {
        $crate::engines::on_both_engines! { |engine| super::Site::on(engine); $($cases)* }
    };
}

mod answers;
mod backfill;
mod bulk;
mod foreign;
mod keeping;
mod killed;
mod overlaps;
mod pauses;
mod places;
mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use axum::http::StatusCode;
use leasehold::clock::{Clock, ManualClock, Timestamp};
use leasehold::executor::{HttpExecutor, Limits, TargetPolicy};
use leasehold::job::{Due, JobState, QueueName, ScheduleId, State};
use leasehold::manager::{Caller, Manager, ManagerConfig};
use leasehold::query::{Filter, Search, Sort};
use leasehold::schedule::{Definition, NotRun, Overlap, Schedule};
use leasehold::scheduler::{
    DueTime, NewSchedule, Outcome, ScheduleError, Scheduler, SchedulerConfig, Schedules, Stored, trigger,
};
use leasehold::store::{ScheduleWrite, Store, Versioned, Write};
use leasehold::wire::PutSchedule;
use serde_json::{Value, json};

use crate::engines::Engine;
use crate::interference::{InterferedEngine, Interference};
use crate::notify::receiver::Receiver;

/// How far the clock goes on at a time.
const STEP: Duration = Duration::from_millis(500);
/// How far it goes on where minutes have to go by, in which nothing depends on the moment.
const LONG_STEP: Duration = Duration::from_secs(4);
/// How far it goes on where a test says itself what time it is, and waits for what follows.
pub(crate) const SHORT_STEP: Duration = Duration::from_millis(5);
/// The tries of a trigger for which a clock stands still.
const FIRST_TRIES: u32 = 3;
/// 2030-03-17T17:46:40Z
const START: i64 = 1_900_000_000_000;

struct Site {
    engine: Box<dyn Engine>,
    clock: Arc<ManualClock>,
    manager: Manager,
    /// How far the clock goes on while something is waited for, each time it is looked for.
    step: Duration,
    /// Whether it goes on by no more than a [`SHORT_STEP`] while the last trigger is under way for the first times
    /// ([`FIRST_TRIES`]), so that a slow machine uses up no margin. What one of several managers has forgotten is
    /// searched for again only as time goes on.
    stands_still: bool,
}

impl Site {
    fn on(engine: Box<dyn Engine>) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(START)));
        let manager = Manager::start(engine.store(), Arc::clone(&clock) as Arc<dyn Clock>, ManagerConfig::default());
        Self { engine, clock, manager, step: STEP, stands_still: false }
    }

    /// A site on which the clock goes on by so much while something is waited for.
    fn by_steps_of(self, step: Duration) -> Self {
        Self { step, ..self }
    }

    /// A site on which the clock goes on until something is due, and nearly stands still until that was taken up and
    /// has ended or waits to be tried again, in its [`FIRST_TRIES`].
    fn standing_still_when_due(self) -> Self {
        Self { stands_still: true, ..self }
    }

    fn scheduler(&self) -> Running {
        self.scheduler_of(&self.manager)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }

    fn scheduler_of(&self, manager: &Manager) -> Running {
        self.scheduler_over(self.engine.store(), manager)
    }

    fn scheduler_over(&self, store: Arc<dyn Store>, manager: &Manager) -> Running {
        let executor = HttpExecutor::new(policy(), Limits::default()).expect("an executor");
        let schedules = Schedules::new(manager.clone(), store, self.clock(), policy());
        Running { scheduler: Scheduler::start(&schedules, executor, SchedulerConfig::default()), schedules }
    }

    /// The schedules alone, which nobody performs.
    fn schedules_of(&self, manager: &Manager) -> Schedules {
        Schedules::new(manager.clone(), self.engine.store(), self.clock(), policy())
    }

    /// The jobs in a queue.
    async fn jobs(&self, queue: &str) -> Vec<Versioned> {
        self.engine.settle().await;
        let filter = Filter { queues: vec![QueueName::new(queue).expect("a name")], ..Filter::default() };
        let search = Search { filter, sort: Sort::default(), after: None, limit: 10_000 };
        self.engine.store().search(&search).await.expect("searched")
    }

    /// Lets time go on until the due times of a schedule since the start satisfy `enough`.
    async fn until(&self, scheduler: &Running, id: &ScheduleId, enough: impl Fn(&[DueTime]) -> bool) -> Vec<DueTime> {
        let mut found = Vec::new();
        for _ in 0..3_000 {
            let span = (Some(Timestamp::from_millis(START)), self.clock.now());
            found = scheduler.schedules().due_times(id, span, 1_000).await.expect("due times").items;
            if enough(&found) {
                return found;
            }
            let is_held = self.stands_still && is_under_way(&self.manager, &found, self.clock.now(), FIRST_TRIES).await;
            self.clock.advance(if is_held { SHORT_STEP } else { self.step });
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let triggers = self.jobs(trigger::QUEUE).await;
        panic!("at {:?} it never came to that: {found:#?}; {triggers:#?}", self.clock.now());
    }

    /// Lets time go on until a schedule is paused, and stand still while a trigger that is due has not ended: no call
    /// is under way, then, when the one that pauses the schedule ends.
    async fn until_paused(&self, scheduler: &Running, id: &ScheduleId) -> Arc<Schedule> {
        for _ in 0..3_000 {
            let stored = scheduler.schedules().get(id).await.expect("it is there").schedule;
            if stored.paused.is_some() {
                return stored;
            }
            let span = (Some(Timestamp::from_millis(START)), self.clock.now());
            let found = scheduler.schedules().due_times(id, span, 1_000).await.expect("due times").items;
            if found.iter().all(has_ended) {
                self.clock.advance(self.step);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{id} is not paused");
    }

    /// Lets time pass until a time.
    fn pass_until(&self, time: Timestamp) {
        self.clock.advance(time.since(self.clock.now()));
    }

    /// Lets time go on until the triggers of a schedule are made up to a due time.
    async fn until_made(&self, scheduler: &Running, id: &ScheduleId, due: Timestamp) {
        for _ in 0..3_000 {
            if scheduler.schedules().get(id).await.expect("it is there").schedule.course.last_due_at >= Some(due) {
                return;
            }
            self.clock.advance(self.step);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the trigger of {id} at {due} is not made");
    }
}

/// Whether the trigger of the last due time is to be made, is due or is being performed, in one of its first `tries`
/// tries. (One that was put off for minutes is not in the manager's memory, which is filled again only when time goes
/// on.)
pub(crate) async fn is_under_way(manager: &Manager, found: &[DueTime], now: Timestamp, tries: u32) -> bool {
    let Some(last) = found.last().filter(|due| !has_ended(due)) else { return false };
    let Some(trigger) = &last.trigger_id else { return true };
    let job = manager.get(trigger).await.expect("the trigger").versioned.job;
    match job.state {
        State::Available => job.run_at <= now && job.attempt.get() < tries,
        State::Running(_) => job.attempt.get() <= tries,
        _ => false,
    }
}

fn policy() -> TargetPolicy {
    TargetPolicy { allow_private: true, allow: Vec::new() }
}

/// A scheduler that runs, and its schedules.
struct Running {
    scheduler: Scheduler,
    schedules: Schedules,
}

impl Running {
    fn schedules(&self) -> &Schedules {
        &self.schedules
    }

    async fn shutdown(self) {
        self.scheduler.shutdown().await;
    }
}

pub(crate) fn definition(fields: &Value) -> Definition {
    let put: PutSchedule = serde_json::from_value(fields.clone()).expect("a schedule");
    put.into_definition().expect("a definition").1
}

pub(crate) fn id(text: &str) -> ScheduleId {
    ScheduleId::new(text).expect("an id")
}

async fn put(scheduler: &Running, name: &str, fields: Value) -> ScheduleId {
    put_as(scheduler, NewSchedule { id: id(name), definition: definition(&fields), paused: false }).await
}

async fn put_as(scheduler: &Running, new: NewSchedule) -> ScheduleId {
    let id = new.id.clone();
    scheduler.schedules().put(&Caller::system("test"), new, true, None).await.expect("stored");
    id
}

/// A job action into the queue `work`.
pub(crate) fn job_action() -> Value {
    json!({"type": "job", "job": {"queue": "work", "kind": "k", "payload": {"due": "{{due_at}}", "of": "{{schedule_id}}"}}})
}

fn ended(outcome: Outcome) -> bool {
    !matches!(outcome, Outcome::Waiting | Outcome::Running)
}

fn has_ended(due: &DueTime) -> bool {
    ended(due.outcome)
}

fn outcomes(found: &[DueTime]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for due in found {
        *counts.entry(due.outcome.as_str()).or_insert(0) += 1;
    }
    counts
}

cases! {
    a_job_is_submitted_once_for_every_due_time,
    a_call_names_its_trigger_and_its_answer_decides,
    a_call_that_is_driven_back_until_its_margin_is_over_has_failed,
    a_schedule_whose_calls_are_refused_again_and_again_is_paused,
    after_two_hours_of_downtime_what_is_within_its_margin_runs_and_the_rest_is_missed,
    a_pause_a_change_and_a_removal_hold_once_they_are_acknowledged,
    [every_night_on_elasticsearch] overlaps_are_judged_by_the_rule,
    two_schedulers_make_one_trigger_for_each_due_time,
    a_schedule_that_cannot_be_read_any_more_is_paused,
    a_schedule_is_stored_once_and_written_over_only_where_that_is_meant,
}

async fn a_job_is_submitted_once_for_every_due_time(site: Site) {
    let scheduler = site.scheduler();
    let period = json!({"every_ms": 2_000});
    let fields = json!({"action": job_action(), "period": period, "owner": "team-a", "margin_of_error_ms": 3_600_000});
    let schedule = put(&scheduler, "often", fields).await;
    let found =
        site.until(&scheduler, &schedule, |found| found.iter().filter(|due| ended(due.outcome)).count() >= 6).await;
    scheduler.shutdown().await;

    let due: Vec<i64> = found.iter().map(|due| due.due_at.as_millis()).collect();
    assert!(due.windows(2).all(|pair| pair[1] - pair[0] == 2_000), "{due:?}");
    let jobs = site.jobs("work").await;
    for due in found.iter().filter(|due| ended(due.outcome)) {
        assert!(matches!(due.outcome, Outcome::Fired | Outcome::Late), "{due:?}");
        let job_id = due.job_id.as_ref().expect("a job");
        let submitted: Vec<&Versioned> = jobs.iter().filter(|found| found.job.id == *job_id).collect();
        assert_eq!(submitted.len(), 1, "{due:?}");
        let job = &submitted[0].job;
        let of = Due { schedule_id: id("often"), due_at: due.due_at };
        assert_eq!(job.spec.due.as_deref(), Some(&of));
        let payload = site.manager.get(job_id).await.expect("the job").payload.expect("a payload");
        let payload: Value = serde_json::from_str(payload.as_str()).expect("JSON");
        assert_eq!(payload, json!({"due": due.due_at.to_rfc3339(), "of": "often"}));
        assert!(job.created_at >= due.due_at, "no job is there before it is due");
    }
}

async fn a_call_names_its_trigger_and_its_answer_decides(site: Site) {
    let site = site.by_steps_of(LONG_STEP).standing_still_when_due();
    let (scheduler, receiver) = (site.scheduler(), Receiver::listening().await);
    // Driven back twice, refused once, and taken from then on.
    receiver.answer_next([
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::OK,
        StatusCode::NOT_FOUND,
    ]);
    let action = json!({
        "type": "http", "url": receiver.url(), "headers": {"x-due": "{{due_at}}"}, "body": {"of": "{{schedule_id}}"},
    });
    let fields = json!({"action": action, "period": {"every_ms": 240_000}, "margin_of_error_ms": 230_000});
    let schedule = put(&scheduler, "caller", fields).await;
    let found =
        site.until(&scheduler, &schedule, |found| found.iter().filter(|due| ended(due.outcome)).count() >= 3).await;
    let errors = scheduler.schedules().get(&schedule).await.expect("the schedule").schedule.course.errors;
    scheduler.shutdown().await;

    let outcomes: Vec<Outcome> = found.iter().map(|due| due.outcome).collect();
    assert!(matches!(outcomes[0], Outcome::Late), "it was driven back and came late: {found:#?}");
    assert_eq!(outcomes[1], Outcome::Consumed, "{found:#?}");
    assert!(matches!(outcomes[2], Outcome::Fired | Outcome::Late), "{found:#?}");
    assert_eq!(errors, 0, "a success ends a row of errors");
    let came = receiver.came();
    let keys: Vec<&str> = came.iter().map(|call| call.headers["idempotency-key"].to_str().expect("text")).collect();
    assert_eq!(keys[0], keys[2], "each try has the key of its trigger");
    assert_ne!(keys[2], keys[3]);
    assert_eq!(keys[0], found[0].trigger_id.as_ref().expect("a trigger").as_str());
    let first = &came[0];
    assert_eq!(first.headers["x-due"].to_str().expect("text"), found[0].due_at.to_rfc3339());
    assert_eq!(first.headers["leasehold-schedule-id"], "caller");
    assert_eq!(came[2].headers["leasehold-attempt"], "3");
    assert!(first.headers["traceparent"].to_str().expect("text").starts_with("00-"));
    assert_eq!(&first.body[..], br#"{"of":"caller"}"#);
}

async fn a_call_that_is_driven_back_until_its_margin_is_over_has_failed(site: Site) {
    let site = site.by_steps_of(LONG_STEP).standing_still_when_due();
    let (scheduler, receiver) = (site.scheduler(), Receiver::listening().await);
    receiver.answer_always(StatusCode::SERVICE_UNAVAILABLE);
    let at = Timestamp::from_millis(START).plus(Duration::from_secs(5));
    let fields = json!({
        "action": {"type": "http", "url": receiver.url()}, "period": {"at": at.to_rfc3339()},
        "margin_of_error_ms": 600_000,
    });
    let schedule = put(&scheduler, "once", fields).await;
    let decided = |found: &[DueTime]| found.len() == 1 && ended(found[0].outcome);
    let found = site.until(&scheduler, &schedule, decided).await;
    scheduler.shutdown().await;
    assert_eq!(found[0].outcome, Outcome::Failed, "{found:?}");
    assert!(receiver.came().len() > 1, "it was tried again and again");
}

async fn a_schedule_whose_calls_are_refused_again_and_again_is_paused(site: Site) {
    let site = site.by_steps_of(LONG_STEP);
    let (scheduler, receiver) = (site.scheduler(), Receiver::listening().await);
    receiver.answer_always(StatusCode::FORBIDDEN);
    let fields = json!({
        "action": {"type": "http", "url": receiver.url()}, "period": {"every_ms": 30_000},
        "margin_of_error_ms": 600_000, "pause_after_errors": 3,
    });
    let schedule = put(&scheduler, "wrong", fields).await;
    let stored = site.until_paused(&scheduler, &schedule).await;
    let pause = stored.paused.as_ref().expect("it is paused");
    assert_eq!((pause.reason.as_str(), stored.course.errors), ("3 errors in a row", 3));
    let calls = receiver.came().len();
    for _ in 0..200 {
        site.clock.advance(STEP);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    scheduler.shutdown().await;
    assert_eq!(receiver.came().len(), calls, "it is called no more");
}

async fn after_two_hours_of_downtime_what_is_within_its_margin_runs_and_the_rest_is_missed(site: Site) {
    // Hardly any time goes by while the test waits, however slow the store is.
    let site = site.by_steps_of(SHORT_STEP);
    let scheduler = site.scheduler();
    let minute = 60_000;
    for (name, every, margin) in [
        ("minutely", minute, 10 * minute),
        ("hourly", 60 * minute, 10 * minute),
        ("patient", 30 * minute, 600 * minute),
    ] {
        let fields = json!({
            "action": job_action(), "margin_of_error_ms": margin,
            // An hour before the start: what follows is due at whole multiples from there.
            "period": {"every_ms": every, "anchor": Timestamp::from_millis(START).to_rfc3339()},
        });
        put(&scheduler, name, fields).await;
    }
    scheduler.shutdown().await;
    let down = Duration::from_secs(2 * 3_600 + 5 * 60);
    site.clock.advance(down);

    let scheduler = site.scheduler();
    let end = Timestamp::from_millis(START).plus(down);
    for (name, every, margin) in [
        ("minutely", minute, Some(10 * minute)),
        ("hourly", 60 * minute, Some(10 * minute)),
        ("patient", 30 * minute, None),
    ] {
        let expected = (down.as_millis() as i64) / every;
        let all = |found: &[DueTime]| {
            let of_then: Vec<&DueTime> = found.iter().filter(|due| due.due_at <= end).collect();
            of_then.len() as i64 == expected && of_then.iter().all(|due| ended(due.outcome))
        };
        let found = site.until(&scheduler, &id(name), all).await;
        let course = scheduler.schedules().get(&id(name)).await.expect("it is there").schedule.course.clone();
        let (mut ran, mut missed) = (0, 0);
        for due in found.iter().filter(|due| due.due_at <= end) {
            // Time goes on while the test waits, by less than half a minute.
            let late = end.since(due.due_at).as_millis() as i64;
            match due.outcome {
                Outcome::Late | Outcome::Fired => {
                    ran += 1;
                    assert!(margin.is_none_or(|margin| late <= margin), "{name}: {due:?}");
                }
                Outcome::Missed => {
                    missed += 1;
                    assert!(margin.is_some_and(|margin| late > margin - minute), "{name}: {due:?}");
                }
                other => panic!("{name}: {other}: {due:?} of {course:?}"),
            }
        }
        assert_eq!(ran + missed, expected, "{name}: each is accounted for");
        assert!(ran >= 1, "{name}: the latest runs");
        let noted: u64 = course.not_run.iter().map(|range| range.count).sum();
        assert_eq!(noted as i64, missed, "{name}: {:?}", course.not_run);
        assert!(course.not_run.len() < 10 && course.not_run.iter().all(|range| range.reason == NotRun::Missed));
    }
    scheduler.shutdown().await;
}

async fn a_pause_a_change_and_a_removal_hold_once_they_are_acknowledged(site: Site) {
    let scheduler = site.scheduler();
    let caller = Caller::system("test");
    // Their triggers are made ahead of time, and then everything changes.
    let fields = |every: u64| json!({"action": job_action(), "period": {"every_ms": every}});
    for name in ["paused", "changed", "removed"] {
        put(&scheduler, name, fields(5_000)).await;
    }
    for _ in 0..600 {
        if site.jobs(trigger::QUEUE).await.len() >= 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let made = site.jobs(trigger::QUEUE).await;
    assert!(made.len() >= 3 && made.iter().all(|found| found.job.state.name() == JobState::Available));
    scheduler.schedules().pause(&caller, &id("paused"), "a test".to_owned()).await.expect("paused");
    put(&scheduler, "changed", fields(3_600_000)).await;
    scheduler.schedules().remove(&caller, &id("removed"), None).await.expect("removed");
    let removed = scheduler.schedules().get(&id("removed")).await;
    assert!(matches!(removed, Err(ScheduleError::NotFound(_))), "{removed:?}");

    for _ in 0..60 {
        site.clock.advance(STEP);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let all_ended = async || site.jobs(trigger::QUEUE).await.iter().all(|found| found.job.state.name().is_final());
    for _ in 0..600 {
        if all_ended().await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(all_ended().await);
    assert_eq!(site.jobs("work").await, [], "none of them has run");

    // A paused schedule runs on request, and goes on once it is resumed.
    let asked = scheduler.schedules().run_now(&caller, &id("paused")).await.expect("a trigger");
    scheduler.schedules().resume(&caller, &id("paused")).await.expect("resumed");
    let fired = |found: &[DueTime]| found.iter().any(|due| matches!(due.outcome, Outcome::Fired | Outcome::Late));
    site.until(&scheduler, &id("paused"), fired).await;
    let asked = site.manager.wait(&asked, Duration::from_secs(20)).await.expect("it is there");
    assert_eq!(asked.versioned.job.state.name(), JobState::Completed);
    scheduler.shutdown().await;
}

async fn overlaps_are_judged_by_the_rule(site: Site) {
    // Each is to be judged before the next one is due.
    let site = site.by_steps_of(2 * STEP).standing_still_when_due();
    let scheduler = site.scheduler();
    for rule in Overlap::ALL {
        // Nobody takes the jobs, so that the first one has not ended when the others are due.
        let fields = json!({
            "action": {"type": "job", "job": {"queue": rule.as_str(), "kind": "k"}}, "overlap": rule,
            "period": {"every_ms": 10_000}, "margin_of_error_ms": 600_000,
        });
        put(&scheduler, rule.as_str(), fields).await;
        let decided = |found: &[DueTime]| match rule {
            Overlap::QueueOne => {
                let outcomes: Vec<_> = found.iter().skip(1).take(3).map(|due| due.outcome).collect();
                // The one that waits is taken up now and then, to see whether it still has to.
                found.len() >= 5 && outcomes == [Outcome::Waiting, Outcome::Skipped, Outcome::Skipped]
            }
            _ => found.len() >= 4 && found[..4].iter().all(|due| ended(due.outcome)),
        };
        let found = site.until(&scheduler, &id(rule.as_str()), decided).await;
        let counts = outcomes(&found[..4]);
        let is_open = |found: &&Versioned| !found.job.state.name().is_final();
        let mut jobs = site.jobs(rule.as_str()).await;
        // The one before is cancelled after the new one is made. Meanwhile time stands still.
        for _ in 0..300 {
            if rule != Overlap::CancelPrevious || jobs.iter().filter(is_open).count() == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            jobs = site.jobs(rule.as_str()).await;
        }
        let open = jobs.iter().filter(is_open).count();
        match rule {
            Overlap::Allow => assert!(open >= 4, "{counts:?}"),
            Overlap::Skip => assert_eq!((jobs.len(), counts["skipped"]), (1, 3), "{found:#?}"),
            Overlap::QueueOne => {
                assert_eq!((jobs.len(), counts["skipped"]), (1, 2), "{found:#?}");
            }
            Overlap::CancelPrevious => assert!(open == 1 && jobs.len() >= 4, "{open} of {}", jobs.len()),
        }
        if matches!(rule, Overlap::Skip | Overlap::QueueOne) {
            let course = scheduler.schedules().get(&id(rule.as_str())).await.expect("it is there");
            let noted: u64 = course.schedule.course.not_run.iter().map(|range| range.count).sum();
            assert!(noted >= 2, "{:?}", course.schedule.course);
        }
    }
    scheduler.shutdown().await;
}

async fn two_schedulers_make_one_trigger_for_each_due_time(site: Site) {
    let another =
        Manager::start(site.engine.store(), Arc::clone(&site.clock) as Arc<dyn Clock>, ManagerConfig::default());
    let (one, other) = (site.scheduler(), site.scheduler_of(&another));
    for number in 0..20 {
        let fields = json!({"action": job_action(), "period": {"every_ms": 3_000}, "margin_of_error_ms": 3_600_000});
        put(&one, &format!("s{number}"), fields).await;
    }
    let six = |found: &[DueTime]| found.iter().filter(|due| ended(due.outcome)).count() >= 6;
    for number in 0..20 {
        site.until(&one, &id(&format!("s{number}")), six).await;
    }
    one.shutdown().await;
    other.shutdown().await;
    let mut seen = BTreeMap::new();
    for found in site.jobs("work").await {
        *seen.entry(found.job.spec.due.clone().expect("it is of a schedule")).or_insert(0) += 1;
    }
    assert!(seen.len() >= 120 && seen.values().all(|count| *count == 1), "{seen:?}");
}

/// Stores a schedule in a time zone that there is not any more.
async fn put_unreadable(site: &Site, name: &str, is_paused: bool) -> ScheduleId {
    let start = Timestamp::from_millis(START).to_rfc3339();
    let mut fields = json!({
        "id": name, "revision": 1, "period_since": start, "created_at": start, "updated_at": start,
        "definition": {
            "action": job_action(), "period": {"cron": "@hourly", "time_zone": "Mars/Olympus"},
            "margin_of_error_ms": 60_000,
        },
        "course": {"next_due_at": start},
    });
    if is_paused {
        fields["paused"] = json!({"at": start, "by": "test"});
    }
    let schedule = Arc::new(serde_json::from_value::<Schedule>(fields).expect("a schedule"));
    for written in site.engine.store().write_schedules(vec![ScheduleWrite::Create { schedule }]).await {
        written.expect("stored");
    }
    site.engine.settle().await;
    id(name)
}

async fn a_schedule_that_cannot_be_read_any_more_is_paused(site: Site) {
    put_unreadable(&site, "lost-zone", false).await;
    let scheduler = site.scheduler();
    let mut pause = None;
    for _ in 0..600 {
        pause = scheduler.schedules().get(&id("lost-zone")).await.expect("it is there").schedule.paused.clone();
        if pause.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    scheduler.shutdown().await;
    let reason = pause.expect("it is paused").reason;
    assert!(reason.contains("period.time_zone"), "{reason}");
}

async fn a_schedule_is_stored_once_and_written_over_only_where_that_is_meant(site: Site) {
    let scheduler = site.scheduler();
    let (schedules, caller) = (scheduler.schedules(), Caller::system("test"));
    let new = |every: u64| NewSchedule {
        id: id("one"),
        definition: definition(&json!({"action": job_action(), "period": {"every_ms": every}})),
        paused: true,
    };
    let (first, stored) = schedules.put(&caller, new(60_000), false, None).await.expect("stored");
    assert_eq!((stored, first.schedule.revision), (Stored::Created, 1));
    let (_, again) = schedules.put(&caller, new(60_000), false, None).await.expect("the same one");
    assert_eq!(again, Stored::Unchanged);
    let differs = schedules.put(&caller, new(70_000), false, None).await;
    assert!(matches!(differs, Err(ScheduleError::Differs(_))), "{differs:?}");
    let tag = first.schedule.tag();
    let (second, stored) = schedules.put(&caller, new(70_000), true, Some(&tag)).await.expect("written over");
    assert_eq!((stored, second.schedule.revision), (Stored::Replaced, 2));
    let stale = schedules.put(&caller, new(80_000), true, Some(&tag)).await;
    assert!(matches!(stale, Err(ScheduleError::Changed(_))), "{stale:?}");
    let many = schedules.put_many(&caller, vec![new(80_000), new(80_000), new(90_000)]).await;
    let stored: Vec<Stored> = many.into_iter().map(|one| one.expect("stored").1).collect();
    assert_eq!(stored, [Stored::Replaced, Stored::Unchanged, Stored::Replaced], "each after the one before it");

    let never = definition(&json!({"action": job_action(), "period": {"at": "2020-01-01T00:00:00Z"}}));
    let new = NewSchedule { id: id("never"), definition: never, paused: false };
    let refused = schedules.put(&caller, new, false, None).await;
    assert!(matches!(&refused, Err(ScheduleError::Invalid(faults)) if faults[0].field == "period"), "{refused:?}");
    scheduler.shutdown().await;
}

/// Where a loader ends in the middle of its work.
#[derive(Default)]
struct Failing {
    triggers: AtomicUsize,
    schedules: AtomicUsize,
}

impl Interference for Failing {
    fn refuses(&self, write: &Write) -> bool {
        let is_trigger =
            matches!(write, Write::Create { job, .. } if job.spec.queue == QueueName::system(trigger::QUEUE));
        is_trigger && self.triggers.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }

    fn refuses_schedule(&self, write: &ScheduleWrite) -> bool {
        let is_advance = matches!(write, ScheduleWrite::Replace { .. });
        is_advance && self.schedules.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loader_that_fails_between_its_writes_makes_each_trigger_once() {
    let failing = Arc::new(Failing { triggers: AtomicUsize::new(7), schedules: AtomicUsize::new(11) });
    let site = Site::on(InterferedEngine::around(crate::engines::embedded().await, &failing));
    let scheduler = site.scheduler();
    for number in 0..5 {
        let fields = json!({"action": job_action(), "period": {"every_ms": 4_000}, "margin_of_error_ms": 600_000});
        put(&scheduler, &format!("s{number}"), fields).await;
    }
    let eight = |found: &[DueTime]| found.iter().filter(|due| ended(due.outcome)).count() >= 8;
    let mut due = 0;
    for number in 0..5 {
        let found = site.until(&scheduler, &id(&format!("s{number}")), eight).await;
        let done = found.iter().filter(|due| ended(due.outcome));
        assert!(done.clone().all(|due| matches!(due.outcome, Outcome::Fired | Outcome::Late)), "{found:#?}");
        due += done.count();
    }
    scheduler.shutdown().await;
    assert_eq!((failing.triggers.load(SeqCst), failing.schedules.load(SeqCst)), (0, 0), "it failed");
    let jobs = site.jobs("work").await;
    assert!(jobs.len() >= due, "{} jobs for {due} due times", jobs.len());
    let mut keys: Vec<_> = jobs.iter().map(|found| &found.job.spec.due).collect();
    keys.sort();
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "each due time has one job");
}
