//! What is left of triggers when they are removed.

use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use leasehold::monitor::{MonitorConfig, Report, Scan, Scans};
use leasehold::scheduler::OutcomeKeeper;
use leasehold::store::Store;

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);
pub(super) const DAY: Duration = Duration::from_secs(24 * 3_600);

cases! {
    [every_night_on_elasticsearch] the_outcomes_of_the_last_ten_outlive_their_triggers,
}

/// Removes the triggers that ended a day ago or earlier, as the monitor does.
pub(super) async fn remove_triggers(site: &Site) -> Report {
    site.engine.settle().await;
    let queue_retention = [(QueueName::system(trigger::QUEUE), DAY)].into();
    let config = MonitorConfig { queue_retention, clock_skew: Some(Duration::ZERO), ..MonitorConfig::default() };
    let keeper = OutcomeKeeper::new(site.manager.clone(), site.engine.store());
    let scans = Scans::new(site.manager.clone(), &config, true).with_keeper(Arc::new(keeper));
    scans.run_once(Scan::Retention, site.clock.now()).await.expect("the scan runs")
}

fn every(distance: Duration) -> Value {
    json!({
        "action": job_action(), "margin_of_error_ms": 25 * DAY.as_millis() as u64,
        "period": {"every_ms": distance.as_millis() as u64, "anchor": Timestamp::from_millis(START).to_rfc3339()},
    })
}

async fn due_times(site: &Site, scheduler: &Running, id: &ScheduleId) -> Vec<DueTime> {
    let span = (Some(Timestamp::from_millis(START)), site.clock.now());
    scheduler.schedules().due_times(id, span, 1_000).await.expect("due times").items
}

async fn the_outcomes_of_the_last_ten_outlive_their_triggers(site: Site) {
    let site = site.by_steps_of(SHORT_STEP);
    let scheduler = site.scheduler();
    let (daily, hourly) = (id("daily"), id("hourly"));
    put(&scheduler, "daily", every(DAY)).await;
    put(&scheduler, "hourly", every(HOUR)).await;
    // The second time, the last ten are others.
    for (days, removed, first_kept) in [(14, 14 * 25, 6), (17, 3 * 25, 8)] {
        let all = |count: usize| move |found: &[DueTime]| found.len() == count && found.iter().all(has_ended);
        for days in [days, days + 1] {
            site.pass_until(Timestamp::from_millis(START).plus(DAY * days as u32));
            site.until(&scheduler, &hourly, all(days as usize * 24)).await;
            site.until(&scheduler, &daily, all(days as usize)).await;
        }
        // What ended a little after the day is a day old by then.
        site.clock.advance(HOUR / 2);
        let before = due_times(&site, &scheduler, &daily).await;
        let report = remove_triggers(&site).await;
        assert_eq!((report.removed, report.fault.is_none()), (removed, true), "{report:?}");
        let after = due_times(&site, &scheduler, &daily).await;
        for (number, (before, after)) in (1..).zip(before.iter().zip(&after)) {
            let expected = if number > days {
                before.clone()
            } else if number >= first_kept {
                DueTime { trigger_id: None, ..before.clone() }
            } else {
                let (trigger_id, job_id, late_ms, message) = (None, None, None, None);
                DueTime { outcome: Outcome::Removed, trigger_id, job_id, late_ms, message, ..before.clone() }
            };
            assert_eq!(*after, expected, "{number} of {days}");
        }
        assert!(after[days as usize - 1].outcome.is_done() && after[days as usize - 1].job_id.is_some(), "{after:#?}");
    }
    let found = due_times(&site, &scheduler, &hourly).await;
    let is_removed = |due: &DueTime| due.outcome == Outcome::Removed;
    assert!(found[..17 * 24].iter().all(is_removed) && !found[17 * 24..].iter().any(is_removed), "{found:#?}");
    let schedule = scheduler.schedules().get(&hourly).await.expect("it is there").schedule;
    assert_eq!(schedule.course.kept, [], "its last ten are not a day old");
    scheduler.shutdown().await;
}

/// Changes, refuses and spoils what a keeper deals with.
#[derive(Default)]
struct Meddling {
    changes: AtomicBool,
    refuses: AtomicBool,
    spoils: AtomicBool,
}

fn keeps(write: &ScheduleWrite) -> bool {
    write.schedule().is_some_and(|schedule| !schedule.course.kept.is_empty())
}

#[async_trait]
impl Interference for Meddling {
    async fn before_write_of_schedules(&self, store: &dyn Store, writes: &[ScheduleWrite]) {
        let Some(write) = writes.iter().find(|write| keeps(write)) else { return };
        if !self.changes.swap(false, SeqCst) {
            return;
        }
        let found = store.schedules(std::slice::from_ref(write.id())).await.expect("read").pop().flatten();
        let found = found.expect("it is there");
        let mut schedule = (*found.schedule).clone();
        schedule.course.errors = 7;
        let write = ScheduleWrite::Replace { schedule: Arc::new(schedule), expected: found.version };
        assert!(store.write_schedules(vec![write]).await.iter().all(Result::is_ok));
    }

    fn spoils_schedule(&self, schedule: &ScheduleId) -> bool {
        self.spoils.load(SeqCst) && *schedule == id("spoilt")
    }

    fn refuses_schedule(&self, write: &ScheduleWrite) -> bool {
        self.refuses.load(SeqCst) && keeps(write)
    }
}

/// A site with schedules of these names that were due on three days, the last of which is over, and what meddles with
/// it.
async fn with_triggers(names: &[&str]) -> (Site, Running, Arc<Meddling>) {
    let meddling = Arc::new(Meddling::default());
    let engine = InterferedEngine::around(crate::engines::embedded().await, &meddling);
    let site = Site::on(engine).by_steps_of(SHORT_STEP);
    let scheduler = site.scheduler();
    for name in names {
        put(&scheduler, name, every(DAY)).await;
    }
    site.clock.advance(DAY * 3);
    for name in names {
        site.until(&scheduler, &id(name), |found| found.len() == 3 && found.iter().all(has_ended)).await;
    }
    site.clock.advance(DAY);
    (site, scheduler, meddling)
}

async fn course(scheduler: &Running, name: &str) -> leasehold::schedule::Course {
    scheduler.schedules().get(&id(name)).await.expect("it is there").schedule.course.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_goes_over_no_change_of_others() {
    let (site, scheduler, meddling) = with_triggers(&["changed"]).await;
    meddling.changes.store(true, SeqCst);
    let report = remove_triggers(&site).await;
    assert_eq!((report.removed, report.fault.is_none()), (3, true), "{report:?}");
    let course = course(&scheduler, "changed").await;
    assert_eq!((course.errors, course.kept.len()), (7, 3));
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_whose_outcome_cannot_be_noted_stays() {
    let (site, scheduler, meddling) = with_triggers(&["refused"]).await;
    meddling.refuses.store(true, SeqCst);
    let report = remove_triggers(&site).await;
    assert_eq!((report.removed, report.fault.map(|(many, _)| many)), (0, Some(3)));
    assert!(course(&scheduler, "refused").await.kept.is_empty());
    meddling.refuses.store(false, SeqCst);
    assert_eq!(remove_triggers(&site).await.removed, 3);
    assert_eq!(course(&scheduler, "refused").await.kept.len(), 3);
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn triggers_of_schedules_that_cannot_be_read_or_are_gone_are_removed_all_the_same() {
    let names = ["a", "gone", "lost-zone", "spoilt", "z"];
    let (site, scheduler, meddling) = with_triggers(&names).await;
    scheduler.schedules().remove(&Caller::system("test"), &id("gone"), None).await.expect("removed");
    let found = scheduler.schedules().get(&id("lost-zone")).await.expect("it is there");
    let mut schedule = serde_json::to_value(&*found.schedule).expect("JSON");
    schedule["definition"]["period"] = json!({"cron": "@daily", "time_zone": "Mars/Olympus"});
    let schedule: Schedule = serde_json::from_value(schedule).expect("a schedule");
    let write = ScheduleWrite::Replace { schedule: Arc::new(schedule), expected: found.version };
    for written in site.engine.store().write_schedules(vec![write]).await {
        written.expect("stored");
    }
    meddling.spoils.store(true, SeqCst);
    let report = remove_triggers(&site).await;
    meddling.spoils.store(false, SeqCst);
    assert_eq!((report.removed, report.fault.is_none()), (3 * names.len(), true), "{report:?}");
    for (name, is_kept) in [("a", true), ("lost-zone", false), ("spoilt", false), ("z", true)] {
        assert_eq!(!course(&scheduler, name).await.kept.is_empty(), is_kept, "{name}");
    }
    scheduler.shutdown().await;
}
