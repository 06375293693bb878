//! Which outcomes a schedule keeps of its triggers.

use super::plans::{HOUR, SECOND, at, schedule, timetable};
use super::*;

fn kept(due: i64, outcome: Outcome) -> KeptOutcome {
    KeptOutcome { due_at: at(due), outcome, late_ms: Some(1), has_job: true, backfilled: false, message: None }
}

fn not_run(first: i64, last: i64, count: u64, reason: NotRun) -> NotRunRange {
    NotRunRange { first: at(first), last: at(last), count, reason }
}

fn kept_from(schedule: &Schedule, now: i64) -> Option<Timestamp> {
    schedule.kept_from(&timetable(&schedule.id, &schedule.definition), at(now))
}

#[test]
fn the_last_ten_triggers_are_kept_and_what_is_not_due_yet_is_none_of_them() {
    let mut hourly = schedule("s", r#""period": {"every_ms": 3600000}"#);
    assert_eq!(kept_from(&hourly, 100 * HOUR), None, "nothing is known of a trigger");
    hourly.course.last_due_at = Some(at(9 * HOUR));
    assert_eq!(kept_from(&hourly, 100 * HOUR), None, "there were nine");
    hourly.course.last_due_at = Some(at(10 * HOUR));
    assert_eq!(kept_from(&hourly, 100 * HOUR), Some(at(HOUR)));
    hourly.course.last_due_at = Some(at(20 * HOUR));
    assert_eq!(kept_from(&hourly, 100 * HOUR), Some(at(11 * HOUR)));
    assert_eq!(kept_from(&hourly, 15 * HOUR), Some(at(6 * HOUR)));
    hourly.period_since = at(15 * HOUR);
    assert_eq!(kept_from(&hourly, 100 * HOUR), None, "those before have not the present period");
}

#[test]
fn what_did_not_run_takes_no_place_among_the_kept_however_much_it_is() {
    let mut every_second = schedule("s", r#""period": {"every_ms": 1000}"#);
    let course = &mut every_second.course;
    course.last_due_at = Some(at(40_000_000 * SECOND));
    course.add_not_run(not_run(12 * SECOND, 13 * SECOND, 2, NotRun::Missed));
    course.add_not_run(not_run(20 * SECOND, 20 * SECOND, 1, NotRun::Overlap));
    course.add_not_run(not_run(22 * SECOND, 40_000_000 * SECOND, 39_999_979, NotRun::Paused));
    // 21, 19 to 14, 11, 10, 9
    assert_eq!(kept_from(&every_second, 50_000_000 * SECOND), Some(at(9 * SECOND)));
}

#[test]
fn the_kept_are_in_order_each_once_and_no_more_than_ten() {
    let mut course = Course::default();
    for due in [5, 3, 4] {
        assert!(course.keep(kept(due, Outcome::Fired)), "{due}");
    }
    assert!(!course.keep(kept(4, Outcome::Failed)), "it is kept already");
    assert!((6..=12).all(|due| course.keep(kept(due, Outcome::Late))));
    let due = |course: &Course| course.kept.iter().map(|kept| kept.due_at.as_millis()).collect::<Vec<_>>();
    assert_eq!(due(&course), (3..=12).collect::<Vec<_>>());
    assert!(!course.keep(kept(2, Outcome::Fired)), "it is older than the last ten");
    assert!(course.keep(kept(13, Outcome::Fired)));
    assert_eq!(due(&course), (4..=13).collect::<Vec<_>>());
    assert_eq!(course.kept_at(at(4)), Some(&kept(4, Outcome::Fired)));
}

#[test]
fn of_what_was_not_performed_when_it_was_due_the_backfill_is_kept_whichever_is_told_first() {
    let by_backfill = |outcome| KeptOutcome { backfilled: true, ..kept(1, outcome) };
    for (when_due, backfilled, last) in [
        (kept(1, Outcome::Failed), by_backfill(Outcome::Fired), by_backfill(Outcome::Fired)),
        (kept(1, Outcome::Failed), by_backfill(Outcome::Failed), by_backfill(Outcome::Failed)),
        (kept(1, Outcome::Fired), by_backfill(Outcome::Failed), kept(1, Outcome::Fired)),
    ] {
        for told in [[&when_due, &backfilled], [&backfilled, &when_due]] {
            let mut course = Course::default();
            for outcome in told {
                course.keep(outcome.clone());
            }
            assert_eq!(course.kept, std::slice::from_ref(&last), "{told:?}");
            assert!(!told.into_iter().any(|outcome| course.keep(outcome.clone())), "told again: {told:?}");
        }
    }
}

#[test]
fn the_last_performed_one_before_a_removed_trigger_is_found_among_the_kept() {
    let mut course = Course::default();
    for (due, outcome) in [(1, Outcome::Fired), (2, Outcome::Skipped), (3, Outcome::Late), (4, Outcome::Failed)] {
        course.keep(kept(due, outcome));
    }
    assert_eq!(course.kept_before(at(5)), Some(at(3)));
    assert_eq!(course.kept_before(at(4)), Some(at(3)));
    assert_eq!(course.kept_before(at(3)), None, "it was performed itself");
    assert_eq!(course.kept_before(at(2)), Some(at(1)));
    assert_eq!(course.kept_before(at(0)), None);
    let by_backfill = KeptOutcome { backfilled: true, ..kept(4, Outcome::Fired) };
    assert!(course.keep(by_backfill));
    assert_eq!([5, 4].map(|due| course.kept_before(at(due))), [Some(at(3)); 2], "overlaps do not see backfills");
}

#[test]
fn what_did_not_run_is_passed_over_by_the_times_of_the_schedule() {
    let mut every_second = schedule("s", r#""period": {"every_ms": 1000}"#);
    let course = &mut every_second.course;
    course.last_due_at = Some(at(90 * SECOND));
    course.add_not_run(not_run(3 * SECOND, 20 * SECOND, 18, NotRun::Missed));
    course.add_not_run(not_run(21 * SECOND, 50 * SECOND, 30, NotRun::Overlap));
    course.add_not_run(not_run(60 * SECOND, 70 * SECOND, 11, NotRun::Paused));
    let table = timetable(&every_second.id, &every_second.definition);
    let before = |due: i64| every_second.may_have_run_before(&table, at(due * SECOND));
    assert_eq!([70, 60, 59, 51, 50, 21, 3].map(before), [59, 59, 58, 2, 2, 2, 2].map(|due| Some(at(due * SECOND))));
    assert_eq!([2, 1].map(before), [Some(at(SECOND)), None]);
}

#[test]
fn a_long_message_is_kept_cut_short() {
    let short = KeptOutcome { message: Some("ü".repeat(200)), ..kept(1, Outcome::Failed) };
    assert_eq!(short.clone().shortened(), short);
    let long = KeptOutcome { message: Some("ü".repeat(201)), ..short.clone() }.shortened();
    assert_eq!(long.message, Some(format!("{}…", "ü".repeat(200))));
}
