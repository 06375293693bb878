//! Events of schedules over each engine, to receivers on real sockets. Time is the test's own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use leasehold::clock::{Clock, Timestamp};
use leasehold::executor::webhook::{EventData, ScheduleEvent};
use leasehold::executor::{HttpExecutor, Limits, TargetPolicy};
use leasehold::job::{Actor, NoticeFormat, Owner, QueueName, ScheduleId};
use leasehold::manager::Caller;
use leasehold::notify::{NewSubscription, Notifier, QUEUE};
use leasehold::query::kql::Expression;
use leasehold::schedule::{Schedule, ScheduleEventName, Trouble};
use leasehold::scheduler::{NewSchedule, ScheduleError, Scheduler, SchedulerConfig, Schedules};
use leasehold::store::{ScheduleWrite, Write};
use serde_json::{Value, json};

use super::receiver::Receiver;
use super::{STEP, all_for};
use crate::engines::Engine;
use crate::interference::{InterferedEngine, Interference};
use crate::program::DEADLINE;
use crate::scheduler::{SHORT_STEP, definition, id, is_under_way, job_action};
use ScheduleEventName::{ScheduleFailing, ScheduleMissed, SchedulePaused, ScheduleRecovered, ScheduleResumed};

const MINUTE: Duration = Duration::from_secs(60);

/// A notifier on a store, and schedules that it notifies receivers of.
struct Site {
    base: super::Site,
    notifier: Notifier,
    schedules: Schedules,
}

impl Site {
    async fn on(engine: Box<dyn Engine>) -> Self {
        let base = super::Site::on(engine);
        let (notifier, clock) = (base.notifier().await, Arc::clone(&base.clock) as Arc<dyn Clock>);
        let schedules = Schedules::new(base.manager.clone(), base.engine.store(), clock, policy());
        let schedules = schedules.notifying(notifier.of_schedules());
        Self { base, notifier, schedules }
    }

    fn scheduler(&self) -> Scheduler {
        let executor = HttpExecutor::new(policy(), Limits::default()).expect("an executor");
        Scheduler::start(&self.schedules, executor, SchedulerConfig::default())
    }

    async fn put(&self, name: &str, fields: Value) -> ScheduleId {
        let new = NewSchedule { id: id(name), definition: definition(&fields), paused: false };
        self.schedules.put(&Caller::system("test"), new, true, None).await.expect("stored");
        id(name)
    }

    async fn subscribe(&self, new: NewSubscription) {
        self.notifier.subscriptions().create(&Actor::system("admin"), new).await.expect("subscribed");
    }

    async fn get(&self, id: &ScheduleId) -> Arc<Schedule> {
        self.schedules.get(id).await.expect("it is there").schedule
    }

    /// Lets time go on until a schedule satisfies `enough`.
    async fn until_schedule(&self, id: &ScheduleId, enough: impl Fn(&Schedule) -> bool) -> Arc<Schedule> {
        for _ in 0..3_000 {
            let found = self.get(id).await;
            if enough(&found) {
                return found;
            }
            self.base.clock.advance(STEP);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("it never came to that: {:#?}", self.get(id).await);
    }

    /// Lets time go on until a receiver was told of the last of `events`; returns the events that it was told of.
    async fn until_told(&self, receiver: &Receiver, last: ScheduleEventName) -> Vec<ScheduleEvent> {
        let is_told = |receiver: &Receiver| told(receiver).iter().any(|event| event.event == last);
        receiver.until(is_told, || self.base.clock.advance(STEP)).await;
        told(receiver)
    }

    /// Lets time go on until a receiver was told that a schedule is failing, and nearly stand still while the first try
    /// of its last trigger is under way, so that a slow machine uses up no margin.
    async fn until_told_of_failing(&self, receiver: &Receiver, id: &ScheduleId) {
        let (manager, clock) = (&self.base.manager, &self.base.clock);
        let from = clock.now();
        let deadline = Instant::now() + 5 * DEADLINE;
        while !told(receiver).iter().any(|event| event.event == ScheduleFailing) {
            assert!(Instant::now() < deadline, "it is not told: {:#?}", self.get(id).await);
            let now = clock.now();
            let found = self.schedules.due_times(id, (Some(from), now), 1_000).await.expect("due times").items;
            // What one of several managers has forgotten is searched for again only as time goes on.
            clock.advance(if is_under_way(manager, &found, now, 1).await { SHORT_STEP } else { STEP });
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Lets time go on for longer than outboxes rest, until a schedule has told of everything.
    async fn told_all(&self, id: &ScheduleId) {
        let from = self.base.clock.now();
        let is_told = |schedule: &Schedule| schedule.course.outbox.notices.is_empty();
        self.until_schedule(id, |schedule| is_told(schedule) && self.base.clock.now().since(from) > 2 * MINUTE).await;
    }

    async fn shutdown(self, scheduler: Scheduler) {
        scheduler.shutdown().await;
        self.notifier.shutdown().await;
    }
}

fn policy() -> TargetPolicy {
    TargetPolicy { allow_private: true, allow: Vec::new() }
}

/// The events of schedules in the messages that a receiver got, in the order of their numbers.
fn told(receiver: &Receiver) -> Vec<ScheduleEvent> {
    let of_schedule = |data| match data {
        EventData::Schedule(event) => event,
        EventData::Job(event) => panic!("no event of a job is subscribed to: {event:?}"),
    };
    let mut told: Vec<ScheduleEvent> =
        receiver.taken().iter().map(|delivered| of_schedule(delivered.event().data)).collect();
    told.sort_by_key(|event| event.number);
    told
}

fn names(events: &[ScheduleEvent]) -> Vec<ScheduleEventName> {
    events.iter().map(|event| event.event).collect()
}

/// A subscription to all events of schedules.
fn of_schedules(receiver: &Receiver) -> NewSubscription {
    NewSubscription { events: ScheduleEventName::ALL.into_iter().map(Into::into).collect(), ..all_for(receiver) }
}

/// A job every hour, which may be fifty minutes late: what was due before the last hour of [`DOWNTIME`] is later than
/// that, and the last is not, however slow the store is.
fn hourly(site: &Site) -> Value {
    json!({
        "owner": "team-a", "action": job_action(), "margin_of_error_ms": 3_000_000,
        "period": {"every_ms": 3_600_000, "anchor": site.base.clock.now().to_rfc3339()},
    })
}

/// After so long, an hourly schedule has missed two due times, and the third is within its margin.
const DOWNTIME: Duration = Duration::from_secs(3 * 3_600 + 5 * 60);

/// A call every half minute.
fn calling(receiver: &Receiver) -> Value {
    json!({
        "action": {"type": "http", "url": receiver.url()}, "period": {"every_ms": 30_000},
        "margin_of_error_ms": 600_000,
    })
}

macro_rules! cases {
    ($($cases:tt)*) => {
        $crate::engines::on_both_engines! { |engine| super::Site::on(engine).await; $($cases)* }
    };
}

cases! {
    what_a_downtime_has_missed_is_told_of_once_and_then_that_it_is_over,
    what_nobody_has_subscribed_to_is_written_into_no_outbox,
    [every_night_on_elasticsearch] a_schedule_tells_whom_it_names_itself_that_it_is_failing_and_that_it_has_recovered,
    a_call_that_is_given_up_again_and_again_is_failing_too,
    [every_night_on_elasticsearch] an_alert_names_the_schedule_that_is_paused_and_ends_when_it_is_resumed,
    a_schedule_that_cannot_be_read_any_more_tells_of_its_pause,
    a_target_that_may_not_be_called_is_refused_with_the_schedule,
}

async fn what_a_downtime_has_missed_is_told_of_once_and_then_that_it_is_over(site: Site) {
    let receiver = Receiver::listening().await;
    let owners = vec![Owner::new("team-a").expect("a name")];
    site.subscribe(NewSubscription { owners, ..of_schedules(&receiver) }).await;
    let schedule = site.put("nightly", hourly(&site)).await;
    let from = site.base.clock.now();
    site.base.clock.advance(DOWNTIME);

    let scheduler = site.scheduler();
    site.until_told(&receiver, ScheduleRecovered).await;
    site.told_all(&schedule).await;
    let (events, in_trouble) = (told(&receiver), site.schedules.in_trouble());
    let stored = site.get(&schedule).await;
    site.shutdown(scheduler).await;
    assert_eq!(names(&events), [ScheduleMissed, ScheduleRecovered], "{events:#?}");
    assert_eq!(receiver.came().len(), 2, "each is told once");
    let missed = events[0].missed.as_ref().expect("what was missed");
    let hour = |number| from.plus(60 * MINUTE * number);
    assert_eq!((missed.first, missed.last, missed.count), (hour(1), hour(2), 2));
    let told_of = &events[0].schedule;
    assert_eq!((&told_of.id, told_of.owner.as_ref().map(Owner::as_str)), (&schedule, Some("team-a")));
    assert_eq!((stored.course.missed_since, in_trouble), (None, vec![]), "it is over");
}

async fn what_nobody_has_subscribed_to_is_written_into_no_outbox(site: Site) {
    let receiver = Receiver::listening().await;
    let query = Expression::parse("owner: team-a").expect("a query");
    let queues = vec![QueueName::new("work").expect("a name")];
    let owners = vec![Owner::new("team-b").expect("a name")];
    for new in [
        NewSubscription { query: Some(query), ..all_for(&receiver) },
        NewSubscription { queues, ..all_for(&receiver) },
        NewSubscription { owners, ..of_schedules(&receiver) },
        NewSubscription { events: [ScheduleResumed.into()].into(), ..all_for(&receiver) },
    ] {
        site.subscribe(new).await;
    }
    let schedule = site.put("nightly", hourly(&site)).await;
    site.base.clock.advance(DOWNTIME);
    let scheduler = site.scheduler();
    let stored = site.until_schedule(&schedule, |schedule| !schedule.course.not_run.is_empty()).await;
    site.until_schedule(&schedule, |schedule| schedule.course.missed_since.is_none()).await;
    site.shutdown(scheduler).await;
    assert!(stored.course.outbox.is_unused(), "{:?}", stored.course.outbox);
    assert!(receiver.came().is_empty());
}

async fn a_schedule_tells_whom_it_names_itself_that_it_is_failing_and_that_it_has_recovered(site: Site) {
    let (called, receiver, other) =
        (Receiver::listening().await, Receiver::listening().await, Receiver::listening().await);
    called.answer_next([StatusCode::FORBIDDEN; 5]);
    let mut fields = calling(&called);
    fields["notify"] = json!([
        {"url": receiver.url()},
        {"url": other.url(), "events": ["schedule_paused", "schedule_recovered"]},
    ]);
    let schedule = site.put("wrong", fields).await;
    let scheduler = site.scheduler();
    let in_trouble = [(schedule.clone(), Trouble::Failing)];
    let failing = site.until_schedule(&schedule, |_| site.schedules.in_trouble() == in_trouble).await;
    assert!(failing.course.failing_since.is_some(), "{:?}", failing.course);
    site.until_told(&receiver, ScheduleRecovered).await;
    site.until_told(&other, ScheduleRecovered).await;
    site.told_all(&schedule).await;
    let (events, others, in_trouble) = (told(&receiver), told(&other), site.schedules.in_trouble());
    site.shutdown(scheduler).await;
    assert_eq!(names(&events), [ScheduleFailing, ScheduleRecovered], "{events:#?}");
    assert!(events[0].reason.as_ref().is_some_and(|reason| reason.contains("403")), "{events:#?}");
    assert_eq!(names(&others), [ScheduleRecovered], "{others:#?}");
    assert_eq!(in_trouble, []);
}

async fn a_call_that_is_given_up_again_and_again_is_failing_too(site: Site) {
    let (called, receiver) = (Receiver::listening().await, Receiver::listening().await);
    called.answer_always(StatusCode::SERVICE_UNAVAILABLE);
    site.subscribe(of_schedules(&receiver)).await;
    let mut fields = calling(&called);
    fields["margin_of_error_ms"] = json!(15_000);
    let schedule = site.put("down", fields).await;
    let scheduler = site.scheduler();
    site.until_told_of_failing(&receiver, &schedule).await;
    let stored = site.get(&schedule).await;
    assert!(stored.course.failures >= 3 && stored.course.errors == 0, "{:?}", stored.course);
    called.answer_always(StatusCode::OK);
    let events = site.until_told(&receiver, ScheduleRecovered).await;
    site.shutdown(scheduler).await;
    // While its host is left alone, some triggers may not even begin.
    let of_failing = names(&events).into_iter().filter(|event| *event != ScheduleMissed);
    assert_eq!(of_failing.collect::<Vec<_>>(), [ScheduleFailing, ScheduleRecovered], "{events:#?}");
}

async fn an_alert_names_the_schedule_that_is_paused_and_ends_when_it_is_resumed(site: Site) {
    let (called, receiver) = (Receiver::listening().await, Receiver::listening().await);
    called.answer_always(StatusCode::FORBIDDEN);
    let events = [SchedulePaused.into(), ScheduleResumed.into()].into();
    let format = NoticeFormat::Alertmanager;
    site.subscribe(NewSubscription { events, format, ..all_for(&receiver) }).await;
    let mut fields = calling(&called);
    fields["pause_after_errors"] = json!(2);
    let schedule = site.put("wrong", fields).await;
    let scheduler = site.scheduler();
    receiver.until(|receiver| !receiver.came().is_empty(), || site.base.clock.advance(STEP)).await;
    called.answer_always(StatusCode::OK);
    assert_eq!(site.schedules.in_trouble().last(), Some(&(schedule.clone(), Trouble::Paused)));
    site.schedules.resume(&Caller::system("somebody"), &schedule).await.expect("resumed");
    receiver.until(|receiver| receiver.came().len() >= 2, || site.base.clock.advance(STEP)).await;
    site.shutdown(scheduler).await;

    let alerts: Vec<Value> =
        receiver.came().iter().map(|delivered| serde_json::from_slice(&delivered.body).expect("JSON")).collect();
    let labels = json!({"alertname": "LeaseholdSchedulePaused", "severity": "critical", "schedule": "wrong"});
    assert!(alerts.iter().all(|alerts| alerts[0]["labels"] == labels), "{alerts:#?}");
    assert_eq!(alerts[0][0]["annotations"]["description"], "2 errors in a row");
    let time = |alerts: &Value, field: &str| {
        Timestamp::parse_rfc3339(alerts[0][field].as_str().expect("a time")).expect("a time")
    };
    let resumed_at = time(&alerts[1], "startsAt");
    assert!(time(&alerts[0], "endsAt") > resumed_at, "{alerts:#?}");
    assert_eq!(time(&alerts[1], "endsAt"), resumed_at, "it ends what the first one has begun");
    assert_eq!(alerts[1][0]["annotations"]["actor"], "somebody");
}

async fn a_schedule_that_cannot_be_read_any_more_tells_of_its_pause(site: Site) {
    let receiver = Receiver::listening().await;
    site.subscribe(of_schedules(&receiver)).await;
    let fields = json!({
        "id": "lost-zone", "revision": 1, "period_since": "2030-01-01T00:00:00Z",
        "created_at": "2030-01-01T00:00:00Z", "updated_at": "2030-01-01T00:00:00Z",
        "definition": {
            "action": job_action(), "period": {"cron": "@hourly", "time_zone": "Mars/Olympus"},
            "margin_of_error_ms": 60_000,
        },
        "course": {"next_due_at": site.base.clock.now().to_rfc3339()},
    });
    let schedule = Arc::new(serde_json::from_value::<Schedule>(fields).expect("a schedule"));
    for written in site.base.engine.store().write_schedules(vec![ScheduleWrite::Create { schedule }]).await {
        written.expect("stored");
    }
    site.base.engine.settle().await;
    let scheduler = site.scheduler();
    let events = site.until_told(&receiver, SchedulePaused).await;
    site.told_all(&id("lost-zone")).await;
    let stored = site.get(&id("lost-zone")).await;
    site.shutdown(scheduler).await;
    assert_eq!(names(&events), [SchedulePaused]);
    assert!(events[0].reason.as_ref().is_some_and(|reason| reason.contains("time_zone")), "{events:?}");
    assert_eq!((receiver.came().len(), stored.revision), (1, 2), "it is paused once");
}

async fn a_target_that_may_not_be_called_is_refused_with_the_schedule(site: Site) {
    let clock = Arc::clone(&site.base.clock) as Arc<dyn Clock>;
    let policy = TargetPolicy { allow_private: false, allow: Vec::new() };
    let schedules = Schedules::new(site.base.manager.clone(), site.base.engine.store(), clock, policy);
    let mut fields = hourly(&site);
    fields["notify"] = json!([{"url": "https://example.org/"}, {"url": "http://127.0.0.1:1/"}]);
    let new = NewSchedule { id: id("inside"), definition: definition(&fields), paused: false };
    let refused = schedules.put(&Caller::system("test"), new, true, None).await;
    assert!(
        matches!(&refused, Err(ScheduleError::Invalid(faults)) if faults[0].field == "notify[1].url"),
        "{refused:?}"
    );
    site.notifier.shutdown().await;
}

/// Refuses so many writes that take notices out of outboxes, and deliveries.
#[derive(Default)]
struct Refused {
    taken_out: AtomicUsize,
    deliveries: AtomicUsize,
    /// How many deliveries were refused.
    refused: AtomicUsize,
}

impl Interference for Refused {
    fn refuses(&self, write: &Write) -> bool {
        let is_delivery = matches!(write, Write::Create { job, .. } if job.spec.queue == QueueName::system(QUEUE));
        let is_refused =
            is_delivery && self.deliveries.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        self.refused.fetch_add(is_refused.into(), SeqCst);
        is_refused
    }

    fn refuses_schedule(&self, write: &ScheduleWrite) -> bool {
        let takes_out = write.schedule().is_some_and(|schedule| {
            let outbox = &schedule.course.outbox;
            outbox.last_number > 0 && outbox.notices.is_empty()
        });
        takes_out && self.taken_out.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loader_that_ends_between_a_delivery_and_its_write_tells_of_the_event_once() {
    let refused = Arc::new(Refused { taken_out: AtomicUsize::new(3), ..Refused::default() });
    let site = Site::on(InterferedEngine::around(crate::engines::embedded().await, &refused)).await;
    let receiver = Receiver::listening().await;
    let events = [ScheduleMissed.into()].into();
    site.subscribe(NewSubscription { events, ..all_for(&receiver) }).await;
    let schedule = site.put("nightly", hourly(&site)).await;
    site.base.clock.advance(DOWNTIME);
    let scheduler = site.scheduler();
    site.until_told(&receiver, ScheduleMissed).await;
    site.told_all(&schedule).await;
    site.shutdown(scheduler).await;
    assert_eq!(refused.taken_out.load(SeqCst), 0, "writes were refused");
    assert_eq!(receiver.came().len(), 1, "it is one delivery however often it is submitted");
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_that_cannot_be_submitted_rest_and_keep_no_schedule_from_going_on() {
    let refused = Arc::new(Refused { deliveries: AtomicUsize::new(usize::MAX), ..Refused::default() });
    let site = Site::on(InterferedEngine::around(crate::engines::embedded().await, &refused)).await;
    let receiver = Receiver::listening().await;
    let (events, owners) = ([ScheduleMissed.into()].into(), vec![Owner::new("team-a").expect("a name")]);
    site.subscribe(NewSubscription { events, owners, ..all_for(&receiver) }).await;
    // More than a loader takes at a time.
    for number in 0..1_050 {
        site.put(&format!("late-{number}"), hourly(&site)).await;
    }
    site.base.clock.advance(DOWNTIME);
    let late = site.put("late", json!({"action": job_action(), "period": {"every_ms": 60_000}})).await;
    let from = site.base.clock.now();
    let scheduler = site.scheduler();
    let made = |schedule: &Schedule| schedule.course.last_due_at > Some(from.plus(3 * MINUTE));
    site.until_schedule(&late, made).await;
    let minutes = site.base.clock.now().since(from).as_secs().div_ceil(60) as usize;
    let tries = refused.refused.load(SeqCst);
    assert!((1..=1_050 * (minutes + 1)).contains(&tries), "{tries} tries in {minutes} minutes");

    refused.deliveries.store(0, SeqCst);
    let is_told = |receiver: &Receiver| receiver.taken().len() >= 1_050;
    receiver.until(is_told, || site.base.clock.advance(STEP)).await;
    let schedules: BTreeSet<String> = receiver.came().iter().map(|delivered| delivered.event().subject).collect();
    site.shutdown(scheduler).await;
    assert_eq!((receiver.came().len(), schedules.len()), (1_050, 1_050), "each tells once");
}
