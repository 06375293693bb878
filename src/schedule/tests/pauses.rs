//! Which due times a pause leaves out, and how many.

use super::plans::{HOUR, SECOND, at, schedule, timetable};
use super::*;
use crate::job::Actor;

const DAY: i64 = 24 * HOUR;

/// A schedule that was paused then.
fn paused(fields: &str, since: i64) -> Schedule {
    let pause = SchedulePause { at: at(since), by: Actor::system("a person"), reason: String::new() };
    let schedule = schedule("s", fields);
    let next_due_at = timetable(&schedule.id, &schedule.definition).due_after(at(since)).next();
    Schedule { paused: Some(pause), course: Course { next_due_at, ..Course::default() }, ..schedule }
}

fn left_out(schedule: &Schedule, now: i64) -> Option<(i64, i64, u64)> {
    let range = schedule.left_out(&timetable(&schedule.id, &schedule.definition), at(now))?;
    assert_eq!(range.reason, NotRun::Paused);
    Some((range.first.as_millis(), range.last.as_millis(), range.count))
}

#[test]
fn a_pause_leaves_out_what_is_due_after_it_and_up_to_now() {
    let hourly = paused(r#""period": {"every_ms": 3600000}"#, 5 * HOUR);
    assert_eq!(left_out(&hourly, 6 * HOUR - 1), None);
    assert_eq!(left_out(&hourly, 6 * HOUR), Some((6 * HOUR, 6 * HOUR, 1)));
    assert_eq!(left_out(&hourly, 100 * HOUR + 1), Some((6 * HOUR, 100 * HOUR, 95)));
    let within = |due: i64| hourly.is_in_pause(at(due), at(8 * HOUR));
    assert_eq!([5, 6, 8, 9].map(|hour| within(hour * HOUR)), [false, true, true, false]);

    let anew = Schedule { period_since: at(50 * HOUR), ..hourly.clone() };
    assert_eq!(left_out(&anew, 52 * HOUR), Some((51 * HOUR, 52 * HOUR, 2)), "what was due before has another period");
    let on = Schedule { paused: None, ..hourly };
    assert_eq!((left_out(&on, 100 * HOUR), on.is_in_pause(at(6 * HOUR), at(8 * HOUR))), (None, false));
}

#[test]
fn what_had_no_trigger_when_it_was_paused_is_left_out_and_what_had_one_is_counted_once() {
    let mut hourly = paused(r#""period": {"every_ms": 3600000}"#, 5 * HOUR);
    // The triggers of six and seven o'clock were made ahead.
    hourly.course.next_due_at = Some(at(8 * HOUR));
    assert_eq!(left_out(&hourly, 9 * HOUR), Some((6 * HOUR, 9 * HOUR, 4)));
    let six = NotRunRange { first: at(6 * HOUR), last: at(6 * HOUR), count: 1, reason: NotRun::Overlap };
    hourly.course.add_not_run(six);
    assert_eq!(left_out(&hourly, 9 * HOUR), Some((6 * HOUR, 9 * HOUR, 3)));
    assert_eq!(left_out(&hourly, 6 * HOUR), None, "it is known");
    // Nobody had made triggers for two hours.
    hourly.course = Course { next_due_at: Some(at(4 * HOUR)), ..Course::default() };
    assert_eq!(left_out(&hourly, 7 * HOUR), Some((4 * HOUR, 7 * HOUR, 4)));
    assert!(hourly.is_in_pause(at(4 * HOUR), at(7 * HOUR)) && !hourly.is_in_pause(at(3 * HOUR), at(7 * HOUR)));
}

#[test]
fn millions_of_due_times_are_counted_without_going_through_them() {
    let years = 40 * 365 * DAY;
    let every_second = (years / SECOND) as u64;
    for fields in [
        r#""period": {"every_ms": 1000}"#,
        r#""period": {"cron": "* * * * * *"}"#,
        r#""period": {"cron": "* * * * * *", "time_zone": "Europe/Berlin"}"#,
        r#""period": {"cron": "* * * * * *", "time_zone": "Australia/Lord_Howe"}, "spread_ms": 0"#,
    ] {
        let found = left_out(&paused(fields, 0), years);
        assert_eq!(found, Some((SECOND, years, every_second)), "{fields}");
    }
    let working = r#""period": {"cron": "0 9-16 * * MON-FRI", "time_zone": "Europe/Berlin"}"#;
    let (_, _, count) = left_out(&paused(working, 0), 28 * DAY).expect("some");
    assert_eq!(count, 4 * 5 * 8);
}

#[test]
fn excluded_days_bounds_and_a_spread_count_as_they_are_due() {
    for fields in [
        r#""period": {"every_ms": 7000000},
            "exclude": [{"from": "1970-01-03", "to": "1970-01-09"}, {"date": "1970-01-11"}]"#,
        r#""period": {"every_ms": 90000000, "time_zone": "Asia/Tokyo"}, "exclude": [{"date": "1970-01-05"}]"#,
        r#""period": {"cron": "*/7 3-20 * * *", "time_zone": "Europe/Berlin"}, "exclude": [{"date": "1970-01-04"}]"#,
        r#""period": {"cron": "*/7 3-20 * * *"}, "spread_ms": 86400000"#,
        r#""period": {"every_ms": 60000},
            "start_at": "1970-01-02T00:00:30.000Z", "end_at": "1970-01-09T00:00:00.000Z""#,
        r#""period": {"at": "1970-01-02T00:00:00.000Z"}"#,
    ] {
        for (since, now) in [(0, 30 * DAY), (5 * HOUR + 77, 12 * DAY + 12_345), (DAY - 1, DAY + 1)] {
            let schedule = paused(fields, since);
            let table = timetable(&schedule.id, &schedule.definition);
            let due: Vec<i64> =
                table.due_after(at(since)).map(Timestamp::as_millis).take_while(|due| *due <= now).collect();
            let expected = due.first().zip(due.last()).map(|(first, last)| (*first, *last, due.len() as u64));
            assert_eq!(left_out(&schedule, now), expected, "{fields} from {since} to {now}");
        }
    }
}
