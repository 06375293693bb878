//! Overlaps with what goes on for longer than triggers are kept, or behind many that were not performed.

use leasehold::scheduler::Trigger;

use super::keeping::{DAY, remove_triggers};
use super::*;

cases! {
    [every_night_on_elasticsearch] a_job_is_overlapped_no_sooner_because_the_triggers_before_are_gone,
    [every_night_on_elasticsearch] a_job_is_overlapped_no_sooner_after_a_long_row_of_missed_triggers,
}

fn skipping(period: &Value, margin: Duration) -> Value {
    json!({
        "action": {"type": "job", "job": {"queue": "work", "kind": "k"}}, "overlap": "skip", "period": period,
        "margin_of_error_ms": margin.as_millis() as u64,
    })
}

async fn a_job_is_overlapped_no_sooner_because_the_triggers_before_are_gone(site: Site) {
    let site = site.by_steps_of(SHORT_STEP);
    let scheduler = site.scheduler();
    let distance = 3 * DAY;
    let period = json!({
        "every_ms": distance.as_millis() as u64, "anchor": Timestamp::from_millis(START).to_rfc3339(),
    });
    let names = ["skipping", "paused"];
    for name in names {
        put(&scheduler, name, skipping(&period, DAY)).await;
    }
    let all_ended = |number: usize| move |found: &[DueTime]| found.len() == number && found.iter().all(has_ended);
    // Nobody takes the jobs of the first triggers, so that they go on.
    let due = |number: u32| Timestamp::from_millis(START).plus(distance * number);
    site.pass_until(due(1));
    for name in names {
        site.until(&scheduler, &id(name), all_ended(1)).await;
    }
    // The second triggers are made ahead, and one is not performed since its schedule is paused.
    site.pass_until(due(2).minus(Duration::from_secs(5)));
    for name in names {
        site.until_made(&scheduler, &id(name), due(2)).await;
    }
    scheduler.schedules().pause(&Caller::system("test"), &id("paused"), String::new()).await.expect("paused");
    site.pass_until(due(2));
    for name in names {
        let found = site.until(&scheduler, &id(name), |found| all_ended(2)(found) && found[1].late_ms.is_some()).await;
        assert_eq!((found[1].outcome, found[1].trigger_id.is_some()), (Outcome::Skipped, true), "{name}: {found:#?}");
    }
    scheduler.schedules().resume(&Caller::system("test"), &id("paused")).await.expect("resumed");
    site.clock.advance(DAY + Duration::from_secs(1));
    let report = remove_triggers(&site).await;
    assert_eq!((report.removed, report.fault.is_none()), (4, true), "{report:?}");

    site.pass_until(due(3));
    for name in names {
        let found = site.until(&scheduler, &id(name), all_ended(3)).await;
        assert!(found[..2].iter().all(|due| due.trigger_id.is_none()), "{name}: {found:#?}");
        assert!(found[0].outcome.is_done(), "{name}: {found:#?}");
        assert!(found[1..].iter().all(|due| due.outcome == Outcome::Skipped), "{name}: {found:#?}");
    }
    scheduler.shutdown().await;
    assert_eq!(site.jobs("work").await.len(), 2, "one of each");
}

async fn a_job_is_overlapped_no_sooner_after_a_long_row_of_missed_triggers(site: Site) {
    // Those that are judged at once try again after some time.
    let site = site.by_steps_of(SHORT_STEP * 10);
    let scheduler = site.scheduler();
    // Half a minute of every hour, of which the first is in 13 minutes and 20 seconds.
    let name = put(&scheduler, "row", skipping(&json!({"cron": "0-29 0 * * * *"}), Duration::from_secs(300))).await;
    let at = |hours: i64, minutes: i64| Timestamp::from_millis(START + 800_000 + (hours * 60 + minutes) * 60_000);
    site.pass_until(at(0, 1));
    let all_ended = |number: usize| move |found: &[DueTime]| found.len() == number && found.iter().all(has_ended);
    site.until(&scheduler, &name, all_ended(30)).await;
    assert_eq!(site.jobs("work").await.len(), 1, "it goes on");
    scheduler.shutdown().await;

    // In the second hour the triggers are made, and nobody performs them in time.
    let store = site.engine.store();
    let found = store.schedules(std::slice::from_ref(&name)).await.expect("read").pop().flatten().expect("it is there");
    let mut schedule = (*found.schedule).clone();
    let table = schedule.timetable().expect("it can be read");
    for due in table.due_after(site.clock.now()).take(30) {
        let trigger = Trigger::of(&schedule, due, schedule.course.last_due_at).into_job(&schedule).expect("JSON");
        for submitted in site.manager.submit(&Caller::system("test"), vec![trigger]).await {
            submitted.expect("made");
        }
        schedule.course.last_due_at = Some(due);
    }
    schedule.course.next_due_at = schedule.course.last_due_at.and_then(|last| table.due_after(last).next());
    let write = ScheduleWrite::Replace { schedule: Arc::new(schedule), expected: found.version };
    assert!(store.write_schedules(vec![write]).await.iter().all(Result::is_ok));
    site.pass_until(at(1, 10));
    let scheduler = site.scheduler();
    let found = site.until(&scheduler, &name, all_ended(60)).await;
    assert_eq!(outcomes(&found[30..]), BTreeMap::from([("missed", 30)]));
    assert!(found[30..].iter().all(|due| due.trigger_id.is_some()), "{found:#?}");

    site.pass_until(at(2, 1));
    let found = site.until(&scheduler, &name, |found| found.len() > 60 && has_ended(&found[60])).await;
    scheduler.shutdown().await;
    assert_eq!(found[60].outcome, Outcome::Skipped, "{:#?}", &found[60..]);
    assert_eq!(site.jobs("work").await.len(), 1);
}
