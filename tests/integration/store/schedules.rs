//! Schedules: documents of which there may be as many as jobs, compared and swapped as jobs are.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold::clock::Timestamp;
use leasehold::job::{Actor, Json, NoticeFormat, Owner, Partition, PartitionSet, ScheduleId};
use leasehold::query::ScheduleFilter;
use leasehold::schedule::{
    Action, ActionType, Course, DatesText, Definition, KeptOutcome, Method, MissedTimes, NotRun, NotRunRange, Outcome,
    Overlap, PeriodText, Schedule, ScheduleEventName, ScheduleNotice, ScheduleNotifyTarget, ScheduleOutbox,
    SchedulePause,
};
use leasehold::store::{
    DueSchedules, ListSchedules, ScheduleResult, ScheduleWrite, Store, StoreError, StoredSchedule, Version, WriteError,
};

use super::Engine;
use super::sample::{at, json, owner};

pub(crate) fn id(text: &str) -> ScheduleId {
    ScheduleId::new(text).expect("a schedule's id")
}

/// A schedule with nothing optional in it, which has to be looked at some milliseconds after the sample's time.
pub(crate) fn due(name: &str, offset: i64) -> Schedule {
    let (url, method, headers, body, timeout_ms, expect_status) = (None, None, None, None, None, None);
    let job = Some(json("{\"queue\": \"default\", \"kind\": \"sample\"}"));
    let definition = Definition {
        owner: None,
        labels: BTreeMap::new(),
        action: Action { kind: ActionType::Job, job, url, method, headers, body, timeout_ms, expect_status },
        period: PeriodText { every_ms: Some(60_000), ..PeriodText::default() },
        margin_of_error_ms: 60_000,
        spread_ms: 0,
        overlap: Overlap::Allow,
        pause_after_errors: None,
        start_at: None,
        end_at: None,
        exclude: Vec::new(),
        notify: Vec::new(),
    };
    Schedule {
        id: id(name),
        definition: Arc::new(definition),
        revision: 1,
        period_since: at(0),
        paused: None,
        created_at: at(0),
        created_by: None,
        updated_at: at(0),
        course: Course { next_due_at: Some(at(offset)), ..Course::default() },
    }
}

fn owned(schedule: Schedule, by: &str) -> Schedule {
    let definition = Definition { owner: Some(owner(by)), ..(*schedule.definition).clone() };
    Schedule { definition: Arc::new(definition), ..schedule }
}

pub(crate) fn paused(schedule: Schedule) -> Schedule {
    let by = Actor::new("tester").expect("an actor");
    Schedule { paused: Some(SchedulePause { at: at(1), by, reason: "a test".to_owned() }), ..schedule }
}

/// An outbox whose notice is about due times that were missed, some milliseconds after the sample's time.
fn outbox(offset: i64) -> ScheduleOutbox {
    let mut outbox = ScheduleOutbox::default();
    outbox.put(ScheduleNotice {
        number: 0,
        event: ScheduleEventName::ScheduleMissed,
        at: at(offset),
        actor: Actor::new("tester ü").expect("an actor"),
        reason: Some("\"why\"".to_owned()),
        missed: Some(MissedTimes { first: at(-9), last: at(-7), count: 2 }),
    });
    outbox
}

/// A schedule with everything that one can have, which calls a URL with a body of this text.
fn full(name: &str, body: &str) -> Schedule {
    let text = |text: &str| Some(text.to_owned());
    let texts = || BTreeMap::from([("ü \"a\"".to_owned(), String::new()), ("b.c".to_owned(), "🦀".to_owned())]);
    let action = Action {
        kind: ActionType::Http,
        job: Some(json("{\"queue\":\"q\",  \"payload\": {\"b\": 1.0, \"a\": 1e400}}")),
        url: text("https://example.org/?q={{due_at}}"),
        method: Some(Method::Put),
        headers: Some(texts()),
        body: Some(Json::of(&body).expect("JSON")),
        timeout_ms: Some(300_000),
        expect_status: Some(204),
    };
    let day = DatesText { date: text("2030-12-24"), from: None, to: None };
    let event = ScheduleEventName::ScheduleMissed;
    let target = ScheduleNotifyTarget {
        url: "https://example.org/ü".to_owned(),
        events: vec![event],
        format: NoticeFormat::Slack,
    };
    let days = DatesText { date: None, from: text("2030-12-24"), to: text("2031-01-01") };
    let definition = Definition {
        owner: Some(owner("team ü")),
        labels: texts(),
        action,
        period: PeriodText {
            cron: text("0 */5 8-18 * * MON-FRI"),
            time_zone: text("Europe/Berlin"),
            every_ms: Some(1_000),
            anchor: text("2030-01-01T00:00:00Z"),
            at: text("2030-01-01T00:00:00Z"),
        },
        margin_of_error_ms: 1,
        spread_ms: 1_000,
        overlap: Overlap::CancelPrevious,
        pause_after_errors: Some(3),
        start_at: Some(at(-5)),
        end_at: Some(at(1_000_000)),
        exclude: vec![day, days],
        notify: vec![target],
    };
    let range = |reason| NotRunRange { first: at(-9), last: at(-7), count: 2, reason };
    let kept = |late_ms, message: Option<&str>| KeptOutcome {
        due_at: at(-7),
        outcome: Outcome::Failed,
        late_ms,
        has_job: late_ms.is_some(),
        backfilled: late_ms.is_none(),
        message: message.map(str::to_owned),
    };
    let course = Course {
        next_due_at: Some(at(7)),
        last_due_at: Some(at(-7)),
        not_run: NotRun::ALL.map(range).to_vec(),
        kept: vec![kept(Some(7), Some("\u{201e}ü\u{201c} \"a\"\n")), kept(None, None)],
        errors: 2,
        failures: 3,
        failing_since: Some(at(-8)),
        missed_since: Some(at(-9)),
        outbox: outbox(9),
    };
    let definition = Arc::new(definition);
    paused(Schedule { definition, revision: 7, period_since: at(2), updated_at: at(3), course, ..due(name, 0) })
}

fn create(schedule: &Schedule) -> ScheduleWrite {
    ScheduleWrite::Create { schedule: Arc::new(schedule.clone()) }
}

fn replace(schedule: &Schedule, expected: Version) -> ScheduleWrite {
    ScheduleWrite::Replace { schedule: Arc::new(schedule.clone()), expected }
}

fn remove(name: &str, expected: Version) -> ScheduleWrite {
    ScheduleWrite::Remove { id: id(name), expected }
}

async fn write(engine: &impl Engine, write: ScheduleWrite) -> ScheduleResult {
    let mut answers = engine.store().write_schedules(vec![write]).await;
    assert_eq!(answers.len(), 1, "one write has one answer");
    answers.remove(0)
}

/// Creates schedules that do not exist yet, and returns them as they are stored.
pub(crate) async fn created(store: &(impl Store + ?Sized), schedules: &[Schedule]) -> Vec<StoredSchedule> {
    let answers = store.write_schedules(schedules.iter().map(create).collect()).await;
    assert_eq!(answers.len(), schedules.len(), "each write has an answer");
    let stored = schedules.iter().zip(answers).map(|(schedule, answer)| {
        let version = answer.expect("a new schedule is created");
        StoredSchedule { schedule: Arc::new(schedule.clone()), version }
    });
    stored.collect()
}

/// Fails when a read by id does not find one of these as it is.
pub(crate) async fn are_all(store: &(impl Store + ?Sized), stored: &[StoredSchedule]) {
    let ids: Vec<ScheduleId> = stored.iter().map(|stored| stored.schedule.id.clone()).collect();
    let found = store.schedules(&ids).await.expect("the store can be read");
    assert_eq!(found.iter().flatten().collect::<Vec<_>>(), stored.iter().collect::<Vec<_>>());
}

/// Fails when these, which are in the order of their ids, are not all that a read or a list finds in a store whose
/// searches see everything at once.
pub(crate) async fn are_all_there_is(store: &(impl Store + ?Sized), stored: &[StoredSchedule]) {
    are_all(store, stored).await;
    let list = ListSchedules { filter: ScheduleFilter::default(), after: None, limit: stored.len() + 1 };
    assert_eq!(store.list_schedules(&list).await.expect("the store can be searched"), stored);
    let mut expected = stored.to_vec();
    expected.sort_by_key(|stored| (stored.schedule.load_at(), stored.schedule.id.clone()));
    let due = DueSchedules { partitions: all_partitions(), until: Timestamp::MAX, limit: stored.len() + 1 };
    assert_eq!(store.due_schedules(&due).await.expect("the store can be searched"), expected);
}

async fn read(engine: &impl Engine, name: &str) -> Option<StoredSchedule> {
    let mut found = engine.store().schedules(&[id(name)]).await.expect("the store can be read");
    assert_eq!(found.len(), 1, "one id has one answer");
    found.remove(0)
}

/// What a conflict shows; fails when there was none.
fn conflict(answer: ScheduleResult) -> Option<StoredSchedule> {
    match answer {
        Err(WriteError::Conflict(current)) => current,
        other => panic!("expected a conflict, got {other:?}"),
    }
}

fn all_partitions() -> PartitionSet {
    Partition::all().collect()
}

async fn find_due(engine: &impl Engine, partitions: PartitionSet, until: i64, limit: usize) -> Vec<StoredSchedule> {
    engine.settle().await;
    let due = DueSchedules { partitions, until: at(until), limit };
    engine.store().due_schedules(&due).await.expect("the store can be searched")
}

/// The names of what is due until a time.
async fn due_names(engine: &impl Engine, until: i64) -> Vec<String> {
    names(&find_due(engine, all_partitions(), until, 1_000).await)
}

async fn list(engine: &impl Engine, owner: Option<Owner>, after: Option<&str>, limit: usize) -> Vec<StoredSchedule> {
    engine.settle().await;
    let filter = ScheduleFilter { owner, ..ScheduleFilter::default() };
    let list = ListSchedules { filter, after: after.map(id), limit };
    engine.store().list_schedules(&list).await.expect("the store can be searched")
}

async fn list_names(engine: &impl Engine) -> Vec<String> {
    names(&list(engine, None, None, 1_000).await)
}

fn names(schedules: &[StoredSchedule]) -> Vec<String> {
    schedules.iter().map(|stored| stored.schedule.id.to_string()).collect()
}

pub(crate) async fn create_refuses_an_existing_id_and_shows_its_schedule(engine: &impl Engine) {
    let stored = created(&**engine.store(), &[due("a", 1)]).await.remove(0);

    assert_eq!(conflict(write(engine, create(&due("a", 2))).await), Some(stored.clone()));

    assert_eq!(read(engine, "a").await, Some(stored));
}

pub(crate) async fn a_stale_version_conflicts_shows_the_schedule_and_changes_nothing(engine: &impl Engine) {
    let first = created(&**engine.store(), &[due("a", 1)]).await[0].version;
    let version = write(engine, replace(&due("a", 2), first)).await.expect("the version is current");
    let stored = StoredSchedule { schedule: Arc::new(due("a", 2)), version };

    assert_eq!(conflict(write(engine, replace(&due("a", 3), first)).await), Some(stored.clone()));
    assert_eq!(conflict(write(engine, remove("a", first)).await), Some(stored.clone()));

    assert_eq!(read(engine, "a").await, Some(stored.clone()));
    assert_eq!(find_due(engine, all_partitions(), 10, 10).await, [stored]);
}

pub(crate) async fn a_schedule_that_is_not_there_conflicts_with_nothing(engine: &impl Engine) {
    let other = created(&**engine.store(), &[due("other", 1)]).await[0].version;

    assert_eq!(conflict(write(engine, replace(&due("a", 1), other)).await), None);
    assert_eq!(conflict(write(engine, remove("a", other)).await), None);

    assert_eq!(read(engine, "a").await, None);
    assert_eq!(list_names(engine).await, ["other"]);
}

pub(crate) async fn versions_of_a_schedule_rise_and_are_never_given_again(engine: &impl Engine) {
    let mut seen: Vec<Version> = Vec::new();
    for _ in 0..4 {
        let first = created(&**engine.store(), &[due("a", 1)]).await[0].version;
        let second = write(engine, replace(&due("a", 2), first)).await.expect("the version is current");
        for version in [first, second] {
            assert!(seen.iter().all(|earlier| version > *earlier), "{version:?} does not follow {seen:?}");
            seen.push(version);
        }
        assert_eq!(write(engine, remove("a", second)).await.expect("the version is current"), second);
        assert_eq!(read(engine, "a").await, None);
    }
    let stored = created(&**engine.store(), &[due("a", 3)]).await.remove(0);
    for stale in seen {
        assert_eq!(conflict(write(engine, replace(&due("a", 4), stale)).await), Some(stored.clone()));
    }
}

pub(crate) async fn each_write_of_a_batch_of_schedules_is_answered_in_order(engine: &impl Engine) {
    let mut stored = created(&**engine.store(), &["a", "b", "c"].map(|name| due(name, 1))).await;
    let [a, stale, c] = [0, 1, 2].map(|place: usize| stored[place].version);
    let b = write(engine, replace(&due("b", 1), stale)).await.expect("the version is current");
    stored[1].version = b;
    let writes = vec![
        create(&due("d", 4)),
        replace(&due("a", 2), a),
        create(&due("b", 2)),
        remove("c", c),
        replace(&due("b", 3), stale),
        remove("missing", b),
        create(&due("e", 5)),
    ];

    let answers = engine.store().write_schedules(writes).await;

    let [Ok(d), Ok(new_a), Err(first), Ok(removed), Err(second), Err(third), Ok(e)] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!(*removed, c);
    for refused in [first, second] {
        assert!(matches!(refused, WriteError::Conflict(Some(now)) if *now == stored[1]), "{refused:?}");
    }
    assert!(matches!(third, WriteError::Conflict(None)), "{third:?}");
    let ids = ["e", "c", "a", "missing", "d", "b", "a"].map(id);
    let found = engine.store().schedules(&ids).await.expect("readable");
    let found: Vec<_> = found.iter().map(|found| found.as_ref().map(|found| found.version)).collect();
    assert_eq!(found, [Some(*e), None, Some(*new_a), None, Some(*d), Some(b), Some(*new_a)]);
    assert_eq!(list_names(engine).await, ["a", "b", "d", "e"]);
    assert_eq!(engine.store().write_schedules(Vec::new()).await.len(), 0);
    assert_eq!(engine.store().schedules(&[]).await.expect("readable"), []);
}

pub(crate) async fn of_two_writes_of_one_schedule_in_one_batch_one_wins(engine: &impl Engine) {
    let answers = engine.store().write_schedules(vec![create(&due("a", 1)), create(&due("a", 2))]).await;
    let won = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(won, 1, "{answers:?}");
    let stored = read(engine, "a").await.expect("one was created");

    let writes = vec![replace(&due("a", 3), stored.version), replace(&due("a", 4), stored.version)];
    let answers = engine.store().write_schedules(writes).await;
    let won = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(won, 1, "{answers:?}");
    let lost = answers.into_iter().find(Result::is_err).expect("one has lost");
    assert_eq!(conflict(lost), read(engine, "a").await);
}

pub(crate) async fn a_schedule_with_everything_comes_back_as_it_was(engine: &impl Engine) {
    let schedules = [full("full", "text"), due("plain", 1), full("large", &"0123456789".repeat(20 << 10))];
    let stored = created(&**engine.store(), &schedules).await;
    for stored in &stored {
        assert_eq!(read(engine, stored.schedule.id.as_str()).await.as_ref(), Some(stored));
    }
    let mut listed = stored.clone();
    listed.sort_by(|one, other| one.schedule.id.cmp(&other.schedule.id));
    assert_eq!(list(engine, None, None, 10).await, listed);

    let running = Schedule { paused: None, ..full("large", &"9876543210".repeat(20 << 10)) };
    let version = write(engine, replace(&running, stored[2].version)).await.expect("the version is current");
    let large = StoredSchedule { schedule: Arc::new(running), version };
    assert_eq!(read(engine, "large").await, Some(large.clone()));
    assert_eq!(find_due(engine, all_partitions(), 10, 10).await, [stored[1].clone(), large]);
}

pub(crate) async fn due_schedules_come_by_time_and_then_by_id(engine: &impl Engine) {
    let schedules = [due("b", 5), due("ü", 5), due("c", -7), due("a", 5), due("B", 5), due("d", 0), due("late", 11)];
    let stored = created(&**engine.store(), &schedules).await;

    assert_eq!(due_names(engine, 10).await, ["c", "d", "B", "a", "b", "ü"]);

    assert_eq!(due_names(engine, 11).await.last().map(String::as_str), Some("late"));
    assert_eq!(due_names(engine, 0).await, ["c", "d"]);
    assert_eq!(due_names(engine, -8).await, [""; 0]);
    assert_eq!(names(&find_due(engine, all_partitions(), 10, 3).await), ["c", "d", "B"]);
    assert_eq!(find_due(engine, all_partitions(), -7, 10).await, [stored[2].clone()]);
}

pub(crate) async fn due_schedules_are_of_the_partitions_asked_for(engine: &impl Engine) {
    let schedules: Vec<Schedule> = (0..100).map(|number| due(&format!("{number:02}"), 1_000 - number)).collect();
    created(&**engine.store(), &schedules).await;
    let odd: PartitionSet = Partition::all().filter(|partition| partition.get() % 2 == 1).collect();
    let mut expected: Vec<&Schedule> =
        schedules.iter().filter(|schedule| odd.contains(Partition::of(schedule.id.as_str()))).collect();
    expected.reverse();
    let expected: Vec<String> = expected.into_iter().map(|schedule| schedule.id.to_string()).collect();
    assert!((10..90).contains(&expected.len()), "the partitions are mixed: {}", expected.len());

    assert_eq!(names(&find_due(engine, odd, 2_000, 1_000).await), expected);
    assert_eq!(names(&find_due(engine, odd, 2_000, 5).await), expected[..5]);
    assert_eq!(find_due(engine, PartitionSet::default(), 2_000, 1_000).await, []);
}

pub(crate) async fn what_is_paused_or_has_no_next_due_time_is_not_due(engine: &impl Engine) {
    let never = |name: &str| Schedule { course: Course::default(), ..due(name, 0) };
    let schedules = [paused(due("paused", 1)), never("never"), due("due", 1), due("pauses", 1), due("ends", 1)];
    let stored = created(&**engine.store(), &schedules).await;
    assert_eq!(due_names(engine, 10).await, ["due", "ends", "pauses"]);

    let writes = vec![
        replace(&due("paused", 1), stored[0].version),
        replace(&paused(due("pauses", 1)), stored[3].version),
        replace(&never("ends"), stored[4].version),
    ];
    let answers = engine.store().write_schedules(writes).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");

    assert_eq!(due_names(engine, 10).await, ["due", "paused"]);
    assert_eq!(list_names(engine).await, ["due", "ends", "never", "paused", "pauses"]);
}

pub(crate) async fn a_schedule_that_comes_further_is_due_later(engine: &impl Engine) {
    let mut stored = created(&**engine.store(), &[due("a", 1), due("b", 2), due("c", 3)]).await;
    assert_eq!(due_names(engine, 10).await, ["a", "b", "c"]);
    for round in 1..4 {
        for StoredSchedule { schedule, version } in &mut stored {
            let next = schedule.course.next_due_at.map(|due| Timestamp::from_millis(due.as_millis() + 100));
            let course = Course { next_due_at: next, last_due_at: schedule.course.next_due_at, ..Course::default() };
            let next = Schedule { course, ..(**schedule).clone() };
            *version = write(engine, replace(&next, *version)).await.expect("the version is current");
            *schedule = Arc::new(next);
        }
        assert_eq!(due_names(engine, 100 * round).await, [""; 0]);
        assert_eq!(due_names(engine, 100 * round + 2).await, ["a", "b"]);
        assert_eq!(find_due(engine, all_partitions(), 1_000, 10).await, stored);
    }
}

pub(crate) async fn a_removed_schedule_is_in_no_list(engine: &impl Engine) {
    let schedules = ["a", "b", "c"].map(|name| owned(due(name, 1), "team"));
    let stored = created(&**engine.store(), &schedules).await;
    assert_eq!(due_names(engine, 10).await, ["a", "b", "c"]);

    assert!(write(engine, remove("b", stored[1].version)).await.is_ok());

    assert_eq!(read(engine, "b").await, None);
    let left = [stored[0].clone(), stored[2].clone()];
    assert_eq!(find_due(engine, all_partitions(), 10, 10).await, left);
    assert_eq!(list(engine, None, None, 10).await, left);
    assert_eq!(list(engine, Some(owner("team")), None, 10).await, left);
}

pub(crate) async fn schedules_are_listed_by_id_and_by_owner(engine: &impl Engine) {
    let of = |name: &str, by: Option<&str>| by.map_or_else(|| due(name, 1), |by| owned(due(name, 1), by));
    let schedules = [
        of("d", Some("team")),
        of("a/b", None),
        of("🦀", Some("team")),
        of("a", Some("team")),
        of("\"quoted\\\"", Some("team-a")),
        of("B", Some("team")),
        of("c", Some("tea")),
    ];
    let stored = created(&**engine.store(), &schedules).await;

    assert_eq!(list_names(engine).await, ["\"quoted\\\"", "B", "a", "a/b", "c", "d", "🦀"]);
    assert_eq!(names(&list(engine, None, Some("a"), 3).await), ["a/b", "c", "d"]);
    assert_eq!(names(&list(engine, None, Some("aa"), 1).await), ["c"]);
    assert_eq!(list(engine, None, Some("🦀"), 10).await, []);
    assert_eq!(names(&list(engine, Some(owner("team")), None, 10).await), ["B", "a", "d", "🦀"]);
    assert_eq!(names(&list(engine, Some(owner("team")), Some("a"), 1).await), ["d"]);
    assert_eq!(list(engine, Some(owner("team")), Some("🦀"), 10).await, []);
    assert_eq!(list(engine, Some(owner("team-a")), None, 10).await, [stored[4].clone()]);
    assert_eq!(list(engine, Some(owner("te")), None, 10).await, []);

    // It goes to another owner.
    assert!(write(engine, replace(&of("a", Some("tea")), stored[3].version)).await.is_ok());
    assert_eq!(names(&list(engine, Some(owner("team")), None, 10).await), ["B", "d", "🦀"]);
    assert_eq!(names(&list(engine, Some(owner("tea")), None, 10).await), ["a", "c"]);
}

pub(crate) async fn many_schedules_are_listed_page_by_page_once_each(engine: &impl Engine) {
    const SCHEDULES: i64 = 3_000;
    const PAGE: usize = 700;
    let make = |number: i64| {
        let team = if number % 3 == 0 { "team" } else { "others" };
        owned(due(&format!("{number:05}"), SCHEDULES - number), team)
    };
    let schedules: Vec<Schedule> = (0..SCHEDULES).map(make).collect();
    let stored = created(&**engine.store(), &schedules).await;
    let of_team: Vec<StoredSchedule> = stored.iter().step_by(3).cloned().collect();
    for (by, expected) in [(None, &stored), (Some(owner("team")), &of_team)] {
        let mut found: Vec<StoredSchedule> = Vec::new();
        loop {
            let after = found.last().map(|last| last.schedule.id.to_string());
            let page = list(engine, by.clone(), after.as_deref(), PAGE).await;
            let is_last = page.len() < PAGE;
            found.extend(page);
            if is_last {
                break;
            }
        }
        assert!(found == *expected, "{} of {} schedules", found.len(), expected.len());
    }
    let mut expected = stored;
    expected.reverse();
    let page = find_due(engine, all_partitions(), SCHEDULES, PAGE).await;
    assert!(page == expected[..PAGE], "{} of {PAGE} schedules", page.len());
}

pub(crate) async fn a_closed_store_refuses_schedules(engine: &impl Engine) {
    let store = &**engine.store();
    let version = created(store, &[due("a", 1)]).await[0].version;

    store.close().await;

    let refused = write(engine, replace(&due("a", 2), version)).await;
    assert!(matches!(refused, Err(WriteError::Refused(StoreError::Unavailable(_)))), "{refused:?}");
    assert!(matches!(store.schedules(&[id("a")]).await, Err(StoreError::Unavailable(_))));
    let due = DueSchedules { partitions: all_partitions(), until: at(10), limit: 10 };
    assert!(matches!(store.due_schedules(&due).await, Err(StoreError::Unavailable(_))));
    let list = ListSchedules { filter: ScheduleFilter::default(), after: None, limit: 10 };
    assert!(matches!(store.list_schedules(&list).await, Err(StoreError::Unavailable(_))));
}
