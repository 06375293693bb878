//! Schedules when the clock is set back or forward by an hour.

use super::*;

cases! {
    a_clock_that_is_set_by_an_hour_performs_no_due_time_twice_and_leaves_none_out,
    a_clock_that_is_far_off_makes_no_trigger,
    a_trigger_that_was_made_before_the_clock_was_far_off_is_performed_when_it_is_not,
}

const HOUR: Duration = Duration::from_secs(3_600);

fn has_run(due: &DueTime) -> bool {
    matches!(due.outcome, Outcome::Fired | Outcome::Late)
}

async fn a_clock_that_is_set_by_an_hour_performs_no_due_time_twice_and_leaves_none_out(site: Site) {
    let site = site.by_steps_of(LONG_STEP);
    let scheduler = site.scheduler();
    let period = json!({"every_ms": 600_000, "anchor": Timestamp::from_millis(START).to_rfc3339()});
    let fields = json!({"action": job_action(), "period": period, "margin_of_error_ms": 7_200_000});
    let every = put(&scheduler, "every", fields).await;
    let cron = json!({"cron": "56 17 * * *"});
    let fields = json!({"action": job_action(), "period": cron, "margin_of_error_ms": 7_200_000});
    let nightly = put(&scheduler, "nightly", fields).await;
    let ran = |count: usize| move |found: &[DueTime]| found.iter().filter(|due| has_run(due)).count() >= count;
    site.until(&scheduler, &every, ran(2)).await;
    site.until(&scheduler, &nightly, ran(1)).await;

    site.clock.turn_back(HOUR);
    let next = scheduler.schedules().get(&every).await.expect("it is there").schedule.course.next_due_at;
    assert!(next > Some(site.clock.now()), "it says when it goes on: {next:?}");
    // Until the clock has come as far again and a while longer, by the clock; then it is set forward.
    site.pass_until(Timestamp::from_millis(START + 1_200_000));
    site.until(&scheduler, &every, ran(3)).await;
    site.clock.advance(HOUR);
    let found = site.until(&scheduler, &every, ran(8)).await;
    let once = scheduler.schedules().due_times(&nightly, (Some(Timestamp::from_millis(START)), site.clock.now()), 100);
    let once = once.await.expect("due times").items;
    scheduler.shutdown().await;

    assert_eq!(once.iter().filter(|due| has_run(due)).count(), 1, "{once:#?}");
    let due: Vec<i64> = found.iter().map(|due| due.due_at.as_millis() - START).collect();
    assert!(due.windows(2).all(|pair| pair[1] - pair[0] == 600_000), "none is left out: {due:?}");
    let mut submitted = BTreeMap::new();
    for job in site.jobs("work").await {
        let of = job.job.spec.due.clone().expect("a due time");
        *submitted.entry((of.schedule_id.to_string(), of.due_at)).or_insert(0) += 1;
    }
    assert!(submitted.values().all(|count| *count == 1), "none is performed twice: {submitted:#?}");
}

async fn a_clock_that_is_far_off_makes_no_trigger(site: Site) {
    let site = site.by_steps_of(LONG_STEP);
    let scheduler = site.scheduler();
    site.clock.be_far_off(true);
    let period = json!({"every_ms": 600_000, "anchor": Timestamp::from_millis(START).to_rfc3339()});
    let fields = json!({"action": job_action(), "period": period, "margin_of_error_ms": 7_200_000});
    let every = put(&scheduler, "every", fields).await;
    site.clock.advance(366 * 24 * HOUR);
    // Longer than a loader waits for a tick.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let next = scheduler.schedules().get(&every).await.expect("it is there").schedule.course.next_due_at;
    assert!(next < Some(Timestamp::from_millis(START + 3_600_000)), "{next:?}");
    assert!(site.jobs("work").await.is_empty());
    site.clock.turn_back(366 * 24 * HOUR);
    site.clock.be_far_off(false);
    site.until(&scheduler, &every, |found| found.iter().filter(|due| has_run(due)).count() >= 2).await;
    scheduler.shutdown().await;
}

/// Its due time is a year ago by a clock that is wrong, and has not come yet.
async fn a_trigger_that_was_made_before_the_clock_was_far_off_is_performed_when_it_is_not(site: Site) {
    let site = site.by_steps_of(LONG_STEP);
    let scheduler = site.scheduler();
    // There is always one that was made ahead of its due time.
    let period = json!({"every_ms": 8_000, "anchor": Timestamp::from_millis(START).to_rfc3339()});
    let fields = json!({"action": job_action(), "period": period, "margin_of_error_ms": 7_200_000});
    let every = put(&scheduler, "every", fields).await;
    site.until(&scheduler, &every, |found| found.iter().any(has_run)).await;
    let year = 366 * 24 * HOUR;
    site.clock.be_far_off(true);
    site.clock.advance(year);
    for _ in 0..30 {
        site.clock.advance(SHORT_STEP);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    site.clock.turn_back(year);
    site.clock.be_far_off(false);
    let found = site.until(&scheduler, &every, |found| found.iter().filter(|due| has_run(due)).count() >= 4).await;
    scheduler.shutdown().await;
    let missed: Vec<&DueTime> = found.iter().filter(|due| due.outcome == Outcome::Missed).collect();
    assert!(missed.is_empty(), "none is lost: {missed:#?}");
}
