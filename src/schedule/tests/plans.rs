use std::sync::Arc;

use super::*;
use crate::job::{Actor, ScheduleId};

pub(super) const SECOND: i64 = 1_000;
pub(super) const HOUR: i64 = 3_600 * SECOND;

pub(super) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A schedule that was created at the epoch.
pub(super) fn schedule(name: &str, fields: &str) -> Schedule {
    let text = format!(
        r#"{{"action": {{"type": "http", "url": "https://example.org/"}}, "margin_of_error_ms": 600000, {fields}}}"#
    );
    let definition: Definition = serde_json::from_str(&text).expect("a definition");
    let id = ScheduleId::new(name).expect("an id");
    let next_due_at = timetable(&id, &definition).due_after(at(0)).next();
    Schedule {
        id,
        definition: Arc::new(definition),
        revision: 1,
        period_since: at(0),
        paused: None,
        created_at: at(0),
        created_by: None,
        updated_at: at(0),
        course: Course { next_due_at, ..Course::default() },
    }
}

pub(super) fn timetable(id: &ScheduleId, definition: &Definition) -> Timetable {
    let mut faults = Vec::new();
    definition.timetable(id, &mut faults).unwrap_or_else(|| panic!("{faults:?}"))
}

fn planned(schedule: &Schedule, now: i64, ahead: i64, max: usize) -> Plan {
    plan(schedule, &timetable(&schedule.id, &schedule.definition), at(now), at(now + ahead), max)
}

#[test]
fn what_is_due_within_the_horizon_is_made_and_the_schedule_goes_on_behind_it() {
    let every_second = schedule("s", r#""period": {"every_ms": 1000}"#);
    let plan = planned(&every_second, 500, 3 * SECOND, 100);
    assert_eq!(plan.triggers, [at(1_000), at(2_000), at(3_000)]);
    assert_eq!((plan.course.next_due_at, plan.course.last_due_at), (Some(at(4_000)), Some(at(3_000))));
    assert_eq!((plan.missed, plan.course.not_run.len()), (None, 0));

    let fewer = planned(&every_second, 500, 3 * SECOND, 2);
    assert_eq!((fewer.triggers.len(), fewer.course.next_due_at), (2, Some(at(3_000))));
}

#[test]
fn a_due_time_is_missed_once_its_margin_is_over_and_not_at_its_end() {
    let hourly = schedule("s", r#""period": {"every_ms": 3600000}"#);
    let margin = 600 * SECOND;
    for (late, is_missed) in [(0, false), (margin - 1, false), (margin, false), (margin + 1, true)] {
        assert_eq!(hourly.is_too_late(at(HOUR), at(HOUR + late)), is_missed, "{late} ms");
        let plan = planned(&hourly, HOUR + late, 0, 100);
        assert_eq!((plan.triggers.is_empty(), plan.missed.is_some()), (is_missed, is_missed), "{late} ms");
    }
}

#[test]
fn after_a_long_time_what_is_past_its_margin_is_one_range() {
    let hourly = schedule("s", r#""period": {"every_ms": 3600000}"#);
    let plan = planned(&hourly, 100 * HOUR + 5 * 60 * SECOND, 0, 100);
    let range = NotRunRange { first: at(HOUR), last: at(99 * HOUR), count: 99, reason: NotRun::Missed };
    assert_eq!(plan.course.not_run, std::slice::from_ref(&range));
    assert_eq!((plan.triggers.len(), plan.missed), (0, Some(range)));

    let then = Schedule { course: plan.course, ..hourly };
    let plan = planned(&then, 100 * HOUR + 5 * 60 * SECOND, 0, 100);
    assert_eq!(plan.triggers, [at(100 * HOUR)], "five minutes are within its margin of ten");
    assert_eq!((plan.missed, plan.course.not_run.len()), (None, 1));

    let later = Schedule { course: plan.course, ..then };
    let plan = planned(&later, 200 * HOUR + 20 * 60 * SECOND, 0, 100);
    assert_eq!((plan.triggers.len(), plan.missed.map(|missed| missed.count)), (0, Some(100)), "twenty are not");
    assert_eq!(plan.course.not_run.len(), 2, "what ran parts the ranges");
    assert_eq!(plan.course.not_run[1].first, at(101 * HOUR));
}

#[test]
fn years_of_downtime_are_made_up_for_in_steps_without_losing_count() {
    let mut every_second = schedule("s", r#""period": {"every_ms": 1000}"#);
    let now = 30 * 24 * HOUR;
    let mut steps = 0;
    loop {
        let plan = planned(&every_second, now, 0, 1_000);
        every_second.course = plan.course;
        steps += 1;
        if every_second.course.next_due_at > Some(at(now)) {
            break;
        }
        assert!(steps < 1_000, "it comes to an end");
    }
    assert!(steps > 100, "no step is longer than it may be");
    let missed: u64 = every_second.course.not_run.iter().map(|range| range.count).sum();
    assert_eq!(missed, (now / SECOND - 600 - 1) as u64, "all but those of the last ten minutes");
    assert_eq!(every_second.course.not_run.len(), 1);
}

#[test]
fn a_spread_gives_each_schedule_its_own_place_and_all_of_them_a_level_stream() {
    let mut by_second = [0_u32; 60];
    for number in 0..6_000 {
        let name = format!("s{number}");
        let minutely = schedule(&name, r#""period": {"cron": "* * * * *"}, "spread_ms": 60000"#);
        let table = timetable(&minutely.id, &minutely.definition);
        let due: Vec<Timestamp> = table.due_after(at(0)).take(3).collect();
        assert!(due.windows(2).all(|pair| pair[1].since(pair[0]) == Duration::from_secs(60)), "{name}: {due:?}");
        assert!(due.iter().all(|due| table.is_due_at(*due)) && !table.is_due_at(due[0].plus(Duration::from_millis(1))));
        by_second[(due[0].as_millis() / SECOND % 60) as usize] += 1;
    }
    let (least, most) = (by_second.iter().min().expect("sixty"), by_second.iter().max().expect("sixty"));
    assert!(*least > 60 && *most < 145, "about a hundred in each second: {by_second:?}");
}

#[test]
fn nothing_is_due_before_the_start_from_the_end_on_or_while_it_is_paused() {
    let bounded = r#""period": {"every_ms": 1000},
        "start_at": "1970-01-01T00:00:05.000Z", "end_at": "1970-01-01T00:00:08.000Z""#;
    let bounded = schedule("s", bounded);
    let plan = planned(&bounded, 0, 60 * SECOND, 100);
    assert_eq!(plan.triggers, [at(5_000), at(6_000), at(7_000)]);
    assert_eq!(plan.course.next_due_at, None);

    let pause = SchedulePause { at: at(0), by: Actor::system("a person"), reason: String::new() };
    let paused = Schedule { paused: Some(pause), ..bounded };
    assert_eq!((paused.load_at(), planned(&paused, 0, 60 * SECOND, 100).triggers.len()), (None, 0));
}

#[test]
fn only_the_latest_ranges_are_kept_and_none_is_lost_from_the_count() {
    let mut course = Course::default();
    for number in 0..100 {
        let reason = if number % 2 == 0 { NotRun::Missed } else { NotRun::Overlap };
        let due = at(number * SECOND);
        course.add_not_run(NotRunRange { first: due, last: due, count: 1, reason });
    }
    assert_eq!(course.not_run.len(), MAX_RANGES);
    assert_eq!(course.not_run.iter().map(|range| range.count).sum::<u64>(), 100);
    assert_eq!((course.not_run[0].first, course.not_run[MAX_RANGES - 1].last), (at(0), at(99 * SECOND)));
}

#[test]
fn the_latest_due_times_are_found_however_rare_they_are() {
    for (every, count) in [(SECOND, 5), (HOUR, 5), (24 * HOUR, 3)] {
        let schedule = schedule("s", &format!(r#""period": {{"every_ms": {every}}}"#));
        let table = timetable(&schedule.id, &schedule.definition);
        let until = at(1_000 * HOUR + 1);
        let last: Vec<Timestamp> = table.last_until(until, count, at(0));
        let first = (until.as_millis() / every + 1 - count as i64) * every;
        assert_eq!(last, (0..count as i64).map(|number| at(first + number * every)).collect::<Vec<_>>());
        assert_eq!(table.last_until(at(2 * every), 100, at(0)), [at(every), at(2 * every)], "not before the start");
        assert!(table.last_until(until, 0, at(0)).is_empty());
    }
}

#[test]
fn the_latest_due_times_are_found_in_bounded_time_behind_long_gaps() {
    let year = 365 * 24 * HOUR;
    let ended = format!(r#""period": {{"every_ms": 1000}}, "end_at": "{}""#, at(year).to_rfc3339());
    let excluded = r#""period": {"every_ms": 1000}, "exclude": [{"from": "1970-12-01", "to": "1973-01-01"}]"#;
    for (fields, last) in [(ended.as_str(), at(year - SECOND)), (excluded, at(334 * 24 * HOUR - SECOND))] {
        let schedule = schedule("s", fields);
        let table = timetable(&schedule.id, &schedule.definition);
        let found = table.last_until(Timestamp::MAX.min(at(2 * year)), 100, at(0));
        assert_eq!((found.len(), found.last()), (100, Some(&last)), "{fields}");
    }
}

#[test]
fn what_was_missed_is_kept_whichever_becomes_known_first() {
    let mut course = Course::default();
    let missed = |first: i64, last: i64| {
        let count = (last - first + 1) as u64;
        NotRunRange { first: at(first * SECOND), last: at(last * SECOND), count, reason: NotRun::Missed }
    };
    course.add_not_run(missed(100, 100));
    course.add_not_run(missed(1, 90));
    course.add_not_run(missed(101, 101));
    assert_eq!(course.not_run.len(), 2);
    assert_eq!((course.not_run[0].first, course.not_run[0].last), (at(SECOND), at(90 * SECOND)));
    assert_eq!((course.not_run[1].first, course.not_run[1].last), (at(100 * SECOND), at(101 * SECOND)));
    assert_eq!(course.not_run.iter().map(|range| range.count).sum::<u64>(), 92);
}
