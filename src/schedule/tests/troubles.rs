use super::plans::{schedule, timetable};
use super::*;
use crate::job::Actor;
use ScheduleEventName::{ScheduleFailing, ScheduleMissed, SchedulePaused, ScheduleRecovered, ScheduleResumed};

fn at(second: i64) -> Timestamp {
    Timestamp::from_millis(second * 1_000)
}

/// Changes a schedule at a second, by the scheduler, when everybody or nobody wants to hear of it.
fn change<T>(
    schedule: &mut Schedule,
    second: i64,
    is_wanted: bool,
    change: impl Fn(&mut Schedule, &Occasion<'_>) -> T,
) -> T {
    let by = Actor::system(SCHEDULER);
    change(schedule, &Occasion { at: at(second), by: &by, is_wanted: &|_| is_wanted })
}

fn end(schedule: &mut Schedule, second: i64, end: TriggerEnd<'_>) -> bool {
    change(schedule, second, true, |schedule, occasion| schedule.note_end(end, occasion))
}

fn missed(first: i64, last: i64, count: u64) -> NotRunRange {
    NotRunRange { first: at(first), last: at(last), count, reason: NotRun::Missed }
}

fn events(schedule: &Schedule) -> Vec<ScheduleEventName> {
    schedule.course.outbox.notices.iter().map(|notice| notice.event).collect()
}

fn troubles(schedule: &Schedule) -> Vec<Trouble> {
    schedule.troubles().map(|(trouble, _)| trouble).collect()
}

const MINUTELY: &str = r#""period": {"every_ms": 60000}"#;
const REFUSED: TriggerEnd<'_> = TriggerEnd::Refused(Some("403 Forbidden"));
const GIVEN_UP: TriggerEnd<'_> = TriggerEnd::GivenUp("too late");

#[test]
fn a_schedule_is_failing_after_three_triggers_without_success_and_again_only_once_it_has_recovered() {
    let mut schedule = schedule("s", MINUTELY);
    for (second, ended) in [(60, REFUSED), (120, GIVEN_UP)] {
        assert!(end(&mut schedule, second, ended));
        assert_eq!((events(&schedule), troubles(&schedule)), (vec![], vec![]));
    }
    end(&mut schedule, 180, REFUSED);
    assert_eq!(events(&schedule), [ScheduleFailing]);
    assert_eq!(schedule.course.outbox.notices[0].reason.as_deref(), Some("403 Forbidden"));
    let course = &schedule.course;
    assert_eq!((course.failing_since, course.failures, course.errors), (Some(at(180)), 3, 2));
    for second in 4..9 {
        end(&mut schedule, second * 60, REFUSED);
    }
    assert_eq!(events(&schedule), [ScheduleFailing], "it is told of once");

    assert!(end(&mut schedule, 600, TriggerEnd::Succeeded));
    assert_eq!((events(&schedule), troubles(&schedule)), (vec![ScheduleFailing, ScheduleRecovered], vec![]));
    assert!(!end(&mut schedule, 660, TriggerEnd::Succeeded), "there is nothing to write");
    for second in 12..15 {
        end(&mut schedule, second * 60, GIVEN_UP);
    }
    assert_eq!(events(&schedule), [ScheduleRecovered, ScheduleFailing], "what it is like now comes last");
    assert!(schedule.paused.is_none());
}

#[test]
fn a_schedule_that_is_paused_after_fewer_errors_is_failing_by_then() {
    let mut schedule = schedule("s", &format!(r#"{MINUTELY}, "pause_after_errors": 2"#));
    end(&mut schedule, 60, REFUSED);
    end(&mut schedule, 120, GIVEN_UP);
    assert_eq!((events(&schedule), troubles(&schedule)), (vec![ScheduleFailing], vec![Trouble::Failing]));
    end(&mut schedule, 180, REFUSED);
    assert_eq!(events(&schedule), [ScheduleFailing, SchedulePaused], "what was given up is no error of the user's");
    assert_eq!(schedule.course.outbox.notices[1].reason.as_deref(), Some("2 errors in a row"));
    assert_eq!(troubles(&schedule), [Trouble::Failing, Trouble::Paused]);
    assert_eq!(schedule.revision, 2);
}

#[test]
fn the_end_of_a_pause_is_told_of_where_its_beginning_was() {
    let mut schedule = schedule("s", MINUTELY);
    let person = Actor::system("somebody");
    let pause = SchedulePause { at: at(1), by: person.clone(), reason: String::new() };
    schedule.paused = Some(pause);
    let timetable = timetable(&schedule.id, &schedule.definition);
    let occasion = |second| Occasion { at: at(second), by: &person, is_wanted: &|_| true };
    schedule.resume(&timetable, &occasion(2));
    assert_eq!((events(&schedule), troubles(&schedule)), (vec![], vec![]), "what people do is no trouble");
    assert_eq!((&schedule.course.not_run[..], schedule.course.next_due_at), (&[][..], Some(at(60))));

    change(&mut schedule, 3, true, |schedule, occasion| schedule.pause_by_system("why".to_owned(), occasion));
    assert_eq!((events(&schedule), troubles(&schedule)), (vec![SchedulePaused], vec![Trouble::Paused]));
    schedule.resume(&timetable, &occasion(130));
    assert_eq!((events(&schedule), troubles(&schedule)), (vec![SchedulePaused, ScheduleResumed], vec![]));
    let left_out = NotRunRange { reason: NotRun::Paused, ..missed(60, 120, 2) };
    assert_eq!((&schedule.course.not_run[..], schedule.course.next_due_at), (&[left_out][..], Some(at(180))));
    assert_eq!(schedule.course.missed_since, None, "what a pause leaves out is not missed");
    assert_eq!(schedule.course.outbox.notices[1].actor, person);
}

#[test]
fn what_nobody_wants_to_hear_of_is_recorded_and_not_announced() {
    let mut schedule = schedule("s", MINUTELY);
    change(&mut schedule, 60, false, |schedule, occasion| {
        schedule.note_missed(&missed(1, 9, 9), occasion);
        for _ in 0..3 {
            schedule.note_end(REFUSED, occasion);
        }
        schedule.pause_by_system("why".to_owned(), occasion);
    });
    assert_eq!(troubles(&schedule), [Trouble::Missed, Trouble::Failing, Trouble::Paused]);
    assert!(schedule.course.outbox.is_unused());
    assert_eq!(schedule.load_at(), None);
}

#[test]
fn missed_times_are_one_notice_until_it_is_handed_on() {
    let mut schedule = schedule("s", MINUTELY);
    let miss = |schedule: &mut Schedule, second, range| {
        change(schedule, second, true, |schedule, occasion| schedule.note_missed(&range, occasion));
    };
    miss(&mut schedule, 100, missed(60, 90, 30));
    miss(&mut schedule, 101, missed(50, 50, 1));
    miss(&mut schedule, 104, missed(91, 95, 5));
    let [notice] = &schedule.course.outbox.notices[..] else { panic!("{:?}", schedule.course.outbox) };
    assert_eq!(notice.missed, Some(MissedTimes { first: at(50), last: at(95), count: 36 }));
    assert_eq!((notice.event, notice.number), (ScheduleMissed, 3), "it is another event than those before it");
    assert_eq!(schedule.course.missed_since, Some(at(100)));
    assert_eq!(schedule.course.outbox.hand_on_at(), Some(at(105)), "later ones do not put it off");

    schedule.course.outbox.handed_on(at(105));
    assert_eq!(schedule.course.outbox.hand_on_at(), None);
    miss(&mut schedule, 106, missed(96, 96, 1));
    assert_eq!(schedule.course.outbox.notices[0].number, 4);
    assert_eq!(schedule.course.outbox.hand_on_at(), Some(at(165)), "it rests in between");
    schedule.course.outbox.put_off(at(165));
    assert_eq!(schedule.course.outbox.hand_on_at(), Some(at(225)));
}

#[test]
fn a_schedule_is_loaded_for_its_outbox_as_well_though_it_is_paused() {
    let mut schedule = schedule("s", MINUTELY);
    assert_eq!((schedule.next_due(), schedule.load_at()), (Some(at(60)), Some(at(60))));
    change(&mut schedule, 10, true, |schedule, occasion| schedule.note_missed(&missed(0, 0, 1), occasion));
    let hand_on_at = schedule.course.outbox.hand_on_at().expect("a notice");
    assert_eq!(schedule.load_at(), Some(hand_on_at.plus(LOADED_AHEAD)), "when loaders look so far ahead, it is time");
    change(&mut schedule, 11, true, |schedule, occasion| schedule.pause_by_system("why".to_owned(), occasion));
    assert_eq!((schedule.next_due(), schedule.load_at()), (None, Some(hand_on_at.plus(LOADED_AHEAD))));
    schedule.course.outbox.handed_on(at(20));
    assert_eq!(schedule.load_at(), None);
}
