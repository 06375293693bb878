//! Due times within a pause.

use leasehold::schedule::NotRunRange;

use super::*;

cases! {
    what_is_due_in_a_pause_is_skipped_and_counted_once,
    what_was_due_in_a_pause_is_not_made_up_for_after_it,
    a_schedule_that_cannot_be_read_any_more_stays_paused,
}

fn after(seconds: u64) -> Timestamp {
    Timestamp::from_millis(START).plus(Duration::from_secs(seconds))
}

fn has_run(due: &DueTime) -> bool {
    matches!(due.outcome, Outcome::Fired | Outcome::Late)
}

/// A schedule that is due every ten seconds, and was so once. The next trigger is made.
async fn due_once(site: &Site, scheduler: &Running) -> ScheduleId {
    let period = json!({"every_ms": 10_000, "anchor": Timestamp::from_millis(START).to_rfc3339()});
    let fields = json!({"action": job_action(), "period": period, "margin_of_error_ms": 600_000});
    let name = put(scheduler, "s", fields).await;
    site.pass_until(after(10));
    site.until(scheduler, &name, |found| found.len() == 1 && has_ended(&found[0])).await;
    site.until_made(scheduler, &name, after(20)).await;
    name
}

fn paused(first: u64, last: u64, count: u64) -> NotRunRange {
    NotRunRange { first: after(first), last: after(last), count, reason: NotRun::Paused }
}

async fn what_is_due_in_a_pause_is_skipped_and_counted_once(site: Site) {
    let site = site.by_steps_of(SHORT_STEP);
    let (scheduler, caller) = (site.scheduler(), Caller::system("test"));
    let name = due_once(&site, &scheduler).await;
    scheduler.schedules().pause(&caller, &name, String::new()).await.expect("paused");
    site.pass_until(after(61));
    let all = |found: &[DueTime]| found.len() == 6 && found.iter().all(has_ended);
    let found = site.until(&scheduler, &name, all).await;
    let is_skipped =
        |due: &DueTime| (due.outcome, due.message.as_deref()) == (Outcome::Skipped, Some("the schedule was paused"));
    assert!(has_run(&found[0]) && found[1..].iter().all(is_skipped), "{found:#?}");
    let with_trigger: Vec<bool> = found.iter().map(|due| due.trigger_id.is_some()).collect();
    assert_eq!(with_trigger, [true, true, false, false, false, false], "one was made ahead");

    let resumed = scheduler.schedules().resume(&caller, &name).await.expect("resumed").schedule;
    assert_eq!(resumed.course.not_run, [paused(20, 60, 5)]);
    assert_eq!(site.until(&scheduler, &name, all).await, found, "it is told as before");
    // A pause in which nothing is due leaves nothing out, and the next one is told apart.
    scheduler.schedules().pause(&caller, &name, String::new()).await.expect("paused");
    let resumed = scheduler.schedules().resume(&caller, &name).await.expect("resumed").schedule;
    assert_eq!(resumed.course.not_run.len(), 1);
    site.pass_until(after(71));
    let goes_on = |found: &[DueTime]| found.len() == 7 && has_ended(&found[6]);
    let found = site.until(&scheduler, &name, goes_on).await;
    assert!(has_run(&found[6]), "{found:#?}");
    scheduler.schedules().pause(&caller, &name, String::new()).await.expect("paused");
    site.pass_until(after(91));
    let resumed = scheduler.schedules().resume(&caller, &name).await.expect("resumed").schedule;
    assert_eq!(resumed.course.not_run, [paused(20, 60, 5), paused(80, 90, 2)]);
    scheduler.shutdown().await;
}

async fn what_was_due_in_a_pause_is_not_made_up_for_after_it(site: Site) {
    let site = site.by_steps_of(SHORT_STEP);
    let (scheduler, caller) = (site.scheduler(), Caller::system("test"));
    let name = due_once(&site, &scheduler).await;
    // Nobody performs the trigger that was made ahead until the pause is over.
    let Running { scheduler: stopped, schedules } = scheduler;
    stopped.shutdown().await;
    schedules.pause(&caller, &name, String::new()).await.expect("paused");
    site.pass_until(after(25));
    schedules.resume(&caller, &name).await.expect("resumed");

    let scheduler = site.scheduler();
    site.pass_until(after(31));
    let found = site.until(&scheduler, &name, |found| found.len() == 3 && found.iter().all(has_ended)).await;
    scheduler.shutdown().await;
    assert_eq!((found[1].outcome, found[1].trigger_id.is_some()), (Outcome::Skipped, true), "{found:#?}");
    assert!(has_run(&found[2]), "{found:#?}");
    assert_eq!(site.jobs("work").await.len(), 2);
}

async fn a_schedule_that_cannot_be_read_any_more_stays_paused(site: Site) {
    let (scheduler, caller) = (site.scheduler(), Caller::system("test"));
    let name = put_unreadable(&site, "lost-zone", true).await;
    let refused = scheduler.schedules().resume(&caller, &name).await;
    let Err(ScheduleError::Unreadable(of, why)) = refused else { panic!("{refused:?}") };
    assert!(of == name && why.contains("period.time_zone"), "{why}");
    let schedule = scheduler.schedules().get(&name).await.expect("it is there").schedule;
    assert!(schedule.paused.is_some());
    scheduler.shutdown().await;
}
