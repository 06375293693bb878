//! Arbitrary jobs, for tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::job::{
    Actor, Attempt, Body, BodyId, BodyRef, Concurrency, ConcurrencyKey, Conditions, Due, EventName, Fence, Fingerprint,
    History, HistoryEntry, Hold, Job, JobError, JobId, JobSpec, JobState, Json, Kind, Lease, Notice, NoticeFormat,
    NoticeTarget, Ordered, OrderingKey, Orphan, OrphanPolicy, Oversight, Owner, Priority, Progress, QueueName,
    RecordName, RequestId, RetryPolicy, Running, ScheduleId, State, UniqueKey, WorkerId,
};
use crate::schedule::{
    Action, ActionType, Course, DatesText, Definition, KeptOutcome, Method, MissedTimes, NotRun, NotRunRange, Outcome,
    Overlap, PeriodText, Schedule, ScheduleEventName, ScheduleNotice, ScheduleNotifyTarget, ScheduleOutbox,
    SchedulePause,
};
use crate::store::{Place, Record, RecordKey, RecordKind, StoredSchedule, Version, Versioned};

/// Any job under any version.
pub(super) fn head() -> impl Strategy<Value = Versioned> {
    (job(), any::<u64>(), any::<u64>()).prop_map(|(job, primary_term, seq_no)| Versioned {
        job: Arc::new(job),
        version: Version { place: Place::Main, primary_term, seq_no },
    })
}

/// Any record under any version.
pub(super) fn record() -> impl Strategy<Value = Record> {
    let version = (any::<u64>(), any::<u64>());
    (record_key(), any::<i64>(), version).prop_map(|(key, body, (primary_term, seq_no))| Record {
        key,
        body: Json::of(&body).expect("JSON"),
        version: Version { place: Place::Main, primary_term, seq_no },
    })
}

/// The key of any record.
pub(super) fn record_key() -> impl Strategy<Value = RecordKey> {
    (prop::sample::select(RecordKind::ALL.to_vec()), name(RecordName::new))
        .prop_map(|(kind, name)| RecordKey::new(kind, name))
}

/// Any schedule under any version.
pub(super) fn schedule() -> impl Strategy<Value = StoredSchedule> {
    let notify = prop::collection::vec(notify_target(), 0..3);
    let definition = (option::of(name(Owner::new)), texts(), action(), period(), rules(), notify).prop_map(
        |(owner, labels, action, period, (numbers, overlap, (start_at, end_at), exclude), notify)| Definition {
            owner,
            labels,
            action,
            period,
            margin_of_error_ms: numbers.0,
            spread_ms: numbers.1,
            overlap,
            pause_after_errors: numbers.2,
            start_at,
            end_at,
            exclude,
            notify,
        },
    );
    let paused = (time(), name(Actor::new), ".*").prop_map(|(at, by, reason)| SchedulePause { at, by, reason });
    let rest = (any::<u64>(), time(), option::of(paused), (time(), option::of(name(Actor::new))), time(), course());
    (name(ScheduleId::new), definition, rest, any::<u64>(), any::<u64>()).prop_map(
        |(id, definition, rest, primary_term, seq_no)| {
            let (revision, period_since, paused, (created_at, created_by), updated_at, course) = rest;
            let definition = Arc::new(definition);
            let schedule =
                Schedule { id, definition, revision, period_since, paused, created_at, created_by, updated_at, course };
            let version = Version { place: Place::Main, primary_term, seq_no };
            StoredSchedule { schedule: Arc::new(schedule), version }
        },
    )
}

fn texts() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map(".*", ".*", 0..4)
}

fn action() -> impl Strategy<Value = Action> {
    let json = || option::of(any::<String>().prop_map(|text| Json::of(&text).expect("JSON")));
    let call = (any::<Option<String>>(), option::of(select(&Method::ALL[..])), option::of(texts()), json());
    (select(&ActionType::ALL[..]), json(), call, any::<Option<u64>>(), any::<Option<u16>>()).prop_map(
        |(kind, job, (url, method, headers, body), timeout_ms, expect_status)| Action {
            kind,
            job,
            url,
            method,
            headers,
            body,
            timeout_ms,
            expect_status,
        },
    )
}

fn period() -> impl Strategy<Value = PeriodText> {
    let text = any::<Option<String>>;
    (text(), text(), any::<Option<u64>>(), text(), text())
        .prop_map(|(cron, time_zone, every_ms, anchor, at)| PeriodText { cron, time_zone, every_ms, anchor, at })
}

type Rules = ((u64, u64, Option<u32>), Overlap, (Option<Timestamp>, Option<Timestamp>), Vec<DatesText>);

fn rules() -> impl Strategy<Value = Rules> {
    let dates = (any::<Option<String>>(), any::<Option<String>>(), any::<Option<String>>());
    let dates = dates.prop_map(|(date, from, to)| DatesText { date, from, to });
    let numbers = (any::<u64>(), any::<u64>(), any::<Option<u32>>());
    let times = (option::of(time()), option::of(time()));
    (numbers, select(&Overlap::ALL[..]), times, prop::collection::vec(dates, 0..3))
}

fn course() -> impl Strategy<Value = Course> {
    let range = (time(), time(), any::<u64>(), select(&NotRun::ALL[..]));
    let range = range.prop_map(|(first, last, count, reason)| NotRunRange { first, last, count, reason });
    let ranges = prop::collection::vec(range, 0..3);
    let times = || (option::of(time()), option::of(time()));
    let row = (any::<u32>(), any::<u32>());
    (times(), ranges, prop::collection::vec(kept(), 0..3), row, times(), outbox()).prop_map(
        |(due, not_run, kept, (errors, failures), (failing_since, missed_since), outbox)| Course {
            next_due_at: due.0,
            last_due_at: due.1,
            not_run,
            kept,
            errors,
            failures,
            failing_since,
            missed_since,
            outbox,
        },
    )
}

fn notify_target() -> impl Strategy<Value = ScheduleNotifyTarget> {
    let events = prop::collection::vec(select(&ScheduleEventName::ALL[..]), 0..3);
    let format = select(&NoticeFormat::ALL[..]);
    (".*", events, format).prop_map(|(url, events, format)| ScheduleNotifyTarget { url, events, format })
}

fn outbox() -> impl Strategy<Value = ScheduleOutbox> {
    let missed = (time(), time(), any::<u64>()).prop_map(|(first, last, count)| MissedTimes { first, last, count });
    let event = (any::<u64>(), select(&ScheduleEventName::ALL[..]), time());
    let notice = (event, name(Actor::new), any::<Option<String>>(), option::of(missed)).prop_map(
        |((number, event, at), actor, reason, missed)| ScheduleNotice { number, event, at, actor, reason, missed },
    );
    (prop::collection::vec(notice, 0..3), any::<u64>(), option::of(time()))
        .prop_map(|(notices, last_number, not_before)| ScheduleOutbox { notices, last_number, not_before })
}

fn kept() -> impl Strategy<Value = KeptOutcome> {
    let flags = (any::<bool>(), any::<bool>());
    (time(), select(&Outcome::ALL[..]), any::<Option<u64>>(), flags, any::<Option<String>>()).prop_map(
        |(due_at, outcome, late_ms, (has_job, backfilled), message)| KeptOutcome {
            due_at,
            outcome,
            late_ms,
            has_job,
            backfilled,
            message,
        },
    )
}

/// Any job.
pub(super) fn job() -> impl Strategy<Value = Job> {
    let places = (name(JobId::new), spec(), body(), state());
    let numbers = (time(), option::of(time()), any::<u32>(), any::<u64>(), time(), time(), option::of(time()));
    let notice = (any::<u32>(), entry()).prop_map(|(number, entry)| Notice { number, entry });
    let outbox = prop::collection::vec(notice, 0..3);
    let hold = option::of((time(), name(Actor::new), any::<Option<String>>()));
    let rest = (option::of((".*", ".*")), prop::collection::vec(entry(), 0..5), any::<u32>(), outbox, hold);
    (places, numbers, rest).prop_map(|((id, spec, payload, state), numbers, (error, entries, folded, outbox, hold))| {
        let (run_at, expires_at, attempt, fence, created_at, updated_at, started_at) = numbers;
        Job {
            id,
            spec: Arc::new(spec),
            payload,
            state,
            run_at,
            expires_at,
            hold: hold.map(|(at, by, reason)| Box::new(Hold { at, by, reason })),
            attempt: Attempt::new(attempt),
            fence: Fence::new(fence),
            error: error.map(|(code, message)| JobError { code, message }),
            history: History::from_parts(entries, folded),
            outbox,
            created_at,
            updated_at,
            started_at,
        }
    })
}

/// Names that are short often, so that two are equal now and then.
fn name<T: std::fmt::Debug, E>(make: fn(String) -> Result<T, E>) -> impl Strategy<Value = T> {
    prop_oneof!["[a-c]", "\\PC{1,60}"].prop_filter_map("a name", move |text| make(text).ok())
}

fn time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![0..5_i64, any::<i64>()].prop_map(Timestamp::from_millis)
}

fn number() -> impl Strategy<Value = f64> {
    prop::num::f64::NORMAL | prop::num::f64::ZERO | prop::num::f64::SUBNORMAL | prop::num::f64::INFINITE
}

fn spec() -> impl Strategy<Value = JobSpec> {
    let named = (name(QueueName::new), name(Kind::new), -100..=100_i64, option::of(name(Owner::new)));
    let labels = texts();
    let resources = prop::collection::btree_map(".*", any::<u64>(), 0..4);
    let times = (any::<Option<Duration>>(), any::<Option<Duration>>(), any::<u32>());
    let retry = (any::<Duration>(), number(), any::<Duration>(), number());
    let origin = option::of(name(JobId::new));
    let rest = (retry, any::<Option<u128>>(), oversight(), option::of(due()), conditions(), origin);
    let spec = (named, labels, resources, times, rest).prop_map(
        |(named, labels, resources, times, (retry, fingerprint, oversight, due, conditions, rerun_of))| JobSpec {
            queue: named.0,
            kind: named.1,
            priority: Priority::new(named.2).expect("within the bounds"),
            owner: named.3,
            labels,
            expected_runtime: times.0,
            timeout: times.1,
            max_attempts: times.2,
            retry: RetryPolicy { base: retry.0, factor: retry.1, max: retry.2, jitter: retry.3 },
            resources,
            oversight,
            due: due.map(Box::new),
            rerun_of,
            conditions: conditions.stored(),
            fingerprint: fingerprint.map(Fingerprint),
        },
    );
    // The stack of a test has no room for all that two jobs are made of.
    spec.boxed()
}

fn conditions() -> impl Strategy<Value = Conditions> {
    let texts = ["gpu", "!gpu", "hw = fpga", "os not in (linux, \"a b\")", "build >= 42.5"];
    let requires = prop::sample::subsequence(texts.to_vec(), 0..=texts.len());
    let parsed = |texts: Vec<&str>| texts.into_iter().map(|text| text.parse().expect("a requirement")).collect();
    let concurrency = option::of((name(ConcurrencyKey::new), 1..1_000_u32));
    let unique = option::of(name(UniqueKey::new));
    let ordering = option::of((name(OrderingKey::new), any::<u64>(), any::<u64>()));
    (requires, concurrency, unique, ordering).prop_map(move |(texts, concurrency, unique, ordering)| Conditions {
        requires: parsed(texts),
        concurrency: concurrency.map(|(key, max)| Concurrency { key, max }),
        unique,
        ordering: ordering.map(|(key, seq, first)| Ordered { key, seq, first }),
    })
}

fn due() -> impl Strategy<Value = Due> {
    (name(ScheduleId::new), time()).prop_map(|(schedule_id, due_at)| Due { schedule_id, due_at })
}

fn oversight() -> impl Strategy<Value = Oversight> {
    let events = prop::collection::vec(select(&EventName::ALL[..]), 0..3);
    let target = (".*", events, select(&NoticeFormat::ALL[..]));
    let target = target.prop_map(|(url, events, format)| NoticeTarget { url, events, format });
    let policy = option::of(select(&OrphanPolicy::ALL[..]));
    (policy, prop::collection::vec(target, 0..2))
        .prop_map(|(orphan_policy, notify)| Oversight { orphan_policy, notify })
}

fn body() -> impl Strategy<Value = Body> {
    let inline = prop_oneof![
        any::<String>().prop_map(|text| Json::of(&text)),
        Just("{\"a\": 1.0, \"b\": 1e400}".to_owned()).prop_map(Json::parse),
    ];
    prop_oneof![
        Just(Body::Empty),
        inline.prop_map(|json| Body::Inline(json.expect("JSON"))),
        (any::<u128>(), any::<u32>())
            .prop_map(|(id, bytes)| Body::Stored(BodyRef { id: BodyId(Uuid::from_u128(id)), bytes })),
    ]
}

fn state() -> impl Strategy<Value = State> {
    prop_oneof![
        Just(State::Available),
        running().prop_map(|running| State::Running(Box::new(running))),
        (time(), body()).prop_map(|(finished_at, result)| State::Completed { finished_at, result }),
        time().prop_map(|finished_at| State::Failed { finished_at }),
        time().prop_map(|finished_at| State::Cancelled { finished_at }),
        time().prop_map(|finished_at| State::Expired { finished_at }),
    ]
}

fn running() -> impl Strategy<Value = Running> {
    let worker = (name(WorkerId::new), option::of(name(Actor::new)));
    let lease = (worker, option::of(name(RequestId::new)), time(), time(), time(), any::<Duration>());
    let progress = option::of((option::of(number()), any::<Option<String>>()));
    let orphan = option::of((time(), ".*", any::<bool>()));
    let marks = (option::of(time()), option::of(time()));
    (lease, progress, marks, orphan).prop_map(|(lease, progress, (cancel_requested_at, overdue_at), orphan)| Running {
        lease: Lease {
            worker_id: lease.0.0,
            holder: lease.0.1,
            request_id: lease.1,
            acquired_at: lease.2,
            heartbeat_at: lease.3,
            expires_at: lease.4,
            term: lease.5,
        },
        progress: progress.map(|(percent, message)| Progress { percent, message }),
        cancel_requested_at,
        orphan: orphan.map(|(flagged_at, reason, held)| Orphan { flagged_at, reason, held }),
        overdue_at,
    })
}

fn entry() -> impl Strategy<Value = HistoryEntry> {
    let states = (option::of(0..6_usize), 0..6_usize);
    let by = (name(Actor::new), option::of(name(WorkerId::new)));
    let rest = (any::<u64>(), any::<u32>(), select(&EventName::ALL[..]), by, any::<Option<String>>());
    (time(), states, rest).prop_map(|(at, (from, to), (fence, attempt, event, (actor, worker_id), reason))| {
        HistoryEntry {
            at,
            from: from.map(|from| JobState::ALL[from]),
            to: JobState::ALL[to],
            fence: Fence::new(fence),
            attempt: Attempt::new(attempt),
            event,
            actor,
            worker_id,
            reason,
        }
    })
}
