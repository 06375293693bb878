//! Jobs of somebody else under the ids of triggers, of their jobs and of backfills, which anybody can work out.

use leasehold::job::{JobId, Kind};
use leasehold::manager::NewJob;
use leasehold::scheduler::NewBackfill;

use super::keeping::{DAY, remove_triggers};
use super::*;

cases! {
    jobs_under_the_ids_of_triggers_and_of_their_jobs_take_no_due_time,
    jobs_under_the_ids_of_backfilled_triggers_take_no_due_time,
}

const EVERY: Duration = Duration::from_secs(4);

fn after(count: u32) -> Timestamp {
    Timestamp::from_millis(START).plus(EVERY * count)
}

/// Submits jobs of somebody under these ids.
async fn take(site: &Site, ids: impl IntoIterator<Item = JobId>) {
    let new = || NewJob::new(QueueName::new("theirs").expect("a name"), Kind::new("k").expect("a kind"));
    let jobs: Vec<NewJob> = ids.into_iter().map(|id| NewJob { id: Some(id), ..new() }).collect();
    for submitted in site.manager.submit(&Caller::system("somebody"), jobs).await {
        submitted.expect("the id is free");
    }
}

fn fields(action: &Value) -> Value {
    let anchor = Timestamp::from_millis(START).to_rfc3339();
    json!({
        "action": action, "period": {"every_ms": EVERY.as_millis() as u64, "anchor": anchor},
        "margin_of_error_ms": 3_600_000, "overlap": "allow",
    })
}

/// The schedules, which nobody performs any more.
fn scheduler_less(site: &Site) -> Schedules {
    site.schedules_of(&site.manager)
}

fn has_run(due: &DueTime) -> bool {
    matches!(due.outcome, Outcome::Fired | Outcome::Late)
}

async fn jobs_under_the_ids_of_triggers_and_of_their_jobs_take_no_due_time(site: Site) {
    let name = id("s");
    let of_triggers: Vec<JobId> = (1..4).map(|count| trigger::id(&name, after(count))).collect();
    let of_jobs: Vec<JobId> = (3..6).map(|count| trigger::job_id(&name, after(count))).collect();
    take(&site, of_triggers.iter().chain(&of_jobs).cloned()).await;
    let scheduler = site.scheduler();
    // All outcomes outlive their triggers.
    let mut fields = fields(&job_action());
    fields["end_at"] = json!(after(7).to_rfc3339());
    let schedule = put(&scheduler, "s", fields).await;
    let found = site.until(&scheduler, &schedule, |found| found.iter().filter(|due| has_ended(due)).count() >= 6).await;
    scheduler.shutdown().await;
    let jobs = site.jobs("work").await;
    for due in found.iter().filter(|due| has_ended(due)) {
        assert!(has_run(due), "{due:#?}");
        let (trigger, job) = (due.trigger_id.as_ref().expect("a trigger"), due.job_id.as_ref().expect("a job"));
        assert!(!of_triggers.contains(trigger) && !of_jobs.contains(job), "{due:#?}");
        let of_it = jobs.iter().filter(|found| found.job.spec.due.as_ref().is_some_and(|of| of.due_at == due.due_at));
        assert_eq!(of_it.map(|found| &found.job.id).collect::<Vec<_>>(), [job], "one job of it");
    }
    let theirs = site.jobs("theirs").await;
    assert_eq!(theirs.len(), 6, "what somebody submitted is there");

    // Who removes it afterwards takes no outcome either.
    let caller = Caller::system("somebody");
    for job in &theirs {
        site.manager.cancel(&caller, &job.job.id, None).await.expect("cancelled");
    }
    let theirs: Vec<Versioned> = site.jobs("theirs").await;
    for removed in site.manager.remove(&theirs).await {
        removed.expect("removed");
    }
    let span = (Some(Timestamp::from_millis(START)), after(6));
    let after_all = scheduler_less(&site).due_times(&schedule, span, 100).await.expect("due times").items;
    assert_eq!(after_all, found[..after_all.len()], "they are told as before");

    // Nor is a job of somebody else told as theirs once the triggers are removed.
    take(&site, of_jobs.clone()).await;
    site.clock.advance(DAY * 2);
    remove_triggers(&site).await;
    let kept = scheduler_less(&site).due_times(&schedule, span, 100).await.expect("due times").items;
    for (kept, before) in kept.iter().zip(&after_all).filter(|(_, before)| has_run(before)) {
        assert_eq!((&kept.trigger_id, &kept.job_id), (&None, &before.job_id), "{kept:#?}");
    }
}

async fn jobs_under_the_ids_of_backfilled_triggers_take_no_due_time(site: Site) {
    let (name, receiver) = (id("s"), Receiver::listening().await);
    let before = |count: u32| Timestamp::from_millis(START).minus(EVERY * count);
    take(&site, (1..4).map(|count| trigger::backfilled_id(&name, before(count)))).await;
    let scheduler = site.scheduler();
    let definition = definition(&fields(&json!({"type": "http", "url": receiver.url()})));
    put_as(&scheduler, NewSchedule { id: name.clone(), definition, paused: true }).await;
    let new = NewBackfill { from: before(5), to: before(1), max_concurrent: 2, idempotency_key: None };
    let started = scheduler.schedules().backfill(&Caller::system("test"), &name, new).await.expect("started");
    for _ in 0..3_000 {
        if site.manager.get(&started.id).await.expect("it is there").versioned.job.state.name().is_final() {
            break;
        }
        site.clock.advance(SHORT_STEP);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let span = (Some(before(5)), before(1));
    let found = scheduler.schedules().due_times(&name, span, 100).await.expect("due times").items;
    scheduler.shutdown().await;
    assert_eq!(found.iter().filter(|due| has_run(due) && due.backfilled).count(), 5, "{found:#?}");
    let called = receiver.came().iter().map(|call| call.headers["idempotency-key"].clone()).collect::<Vec<_>>();
    assert_eq!(called.len(), 5);
    assert_eq!(site.jobs("theirs").await.len(), 3);
}
