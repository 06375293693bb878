//! A clock that is set back or forward by an hour: what compares stored times leaves nothing out and does nothing
//! twice.
//!
//! `ARCHITECTURE.md` lists what compares stored times; the tests of the audit, of events and of schedules stand with
//! those of each.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::clock::{AwakeClock, Clock};
use leasehold::job::{JobError, JobId, JobSpec, JobState, RetryPolicy};
use leasehold::manager::{ClaimRequest, Manager, ManagerConfig, NewJob, Outcome};
use leasehold::monitor::{MonitorConfig, Retention, Scan, Scans};

use super::{GRACE, LEASE, PATIENCE, Site, cases, claim, completed, config, manager, new_job, spec};

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

cases! {
    jobs_that_wait_when_the_clock_is_set_back_are_handed_out_at_once,
    a_wait_for_the_next_attempt_lasts_as_long_as_it_was_to_when_the_clock_is_set_back,
    a_time_that_somebody_has_named_stays_when_the_clock_is_set,
    the_lease_of_a_worker_that_died_before_the_clock_was_set_back_ends,
    nothing_is_removed_before_its_time_when_the_clock_is_set_back,
    nothing_is_removed_and_nothing_expires_by_a_clock_that_is_far_off,
    a_claim_expires_nothing_and_hands_out_nothing_before_its_time_by_a_clock_that_is_far_off,
    the_lease_of_a_dead_worker_ends_by_a_clock_that_is_far_off_where_it_is_awake_time,
    a_job_that_is_written_after_the_clock_was_set_back_has_the_time_of_then,
}

/// Claims a job; there is one.
async fn take(site: &Site) -> JobId {
    let claimed = site.manager.claim(ClaimRequest { wait: PATIENCE, ..claim("w", 1) }).await.expect("answered");
    let job = claimed.jobs().first().expect("a job").versioned.job.clone();
    claimed.delivered();
    job.id.clone()
}

async fn jobs_that_wait_when_the_clock_is_set_back_are_handed_out_at_once(site: Site) {
    let mut waiting = BTreeSet::new();
    for _ in 0..3 {
        waiting.insert(site.submit(new_job()).await);
    }
    assert!(waiting.remove(&take(&site).await));
    site.clock.turn_back(HOUR);
    // From memory, which a manager of several may forget at any time, and after a restart from the store.
    if site.store.is_exclusive() {
        assert!(waiting.remove(&take(&site).await));
    }
    // One that runs on would be left jobs of its partitions, for as long as the clock stands still.
    site.manager.retire().await;
    let manager = manager(&site.store, &site.clock);
    let scans = Scans::new(manager.clone(), &config(), site.store.is_exclusive());
    let site = Site { manager, ..site };
    let report = site.scan(&scans, Scan::Watch).await;
    assert_eq!(report.moved_up, waiting.len(), "{report:?}");
    site.engine.settle().await;
    while !waiting.is_empty() {
        assert!(waiting.remove(&take(&site).await));
    }
    let report = site.scan(&scans, Scan::Watch).await;
    assert_eq!((report.moved_up, report.recovered()), (0, 0), "once: {report:?}");
    site.clock.advance(2 * HOUR);
    assert_eq!(site.scan(&scans, Scan::Watch).await.moved_up, 0);
}

async fn a_wait_for_the_next_attempt_lasts_as_long_as_it_was_to_when_the_clock_is_set_back(site: Site) {
    let scans = site.scans(&config());
    let wait = 30 * SECOND;
    let retry = RetryPolicy { base: wait, factor: 1.0, max: wait, jitter: 0.0 };
    let claimed = site.submit_and_claim(NewJob::of(JobSpec { retry, ..spec() })).await;
    let error = JobError { code: "broken".to_owned(), message: String::new() };
    let failed = Outcome::Failed { error, retryable: true, retry_after: None };
    site.finish(&claimed, failed).await.expect("accepted");
    site.clock.turn_back(HOUR);
    assert_eq!(site.scan(&scans, Scan::Watch).await.moved_up, 1);
    let waiting = site.job(&claimed.job.id).await;
    assert_eq!(waiting.run_at, site.clock.now().plus(wait));
    assert_eq!(site.scan(&scans, Scan::Watch).await.moved_up, 0);
    site.clock.advance(wait);
    assert_eq!(take(&site).await, claimed.job.id);
}

async fn a_time_that_somebody_has_named_stays_when_the_clock_is_set(site: Site) {
    let scans = site.scans(&config());
    let run_at = Some(site.clock.now().plus(HOUR));
    let id = site.submit(NewJob { run_at, ..new_job() }).await;
    for back in [true, false] {
        if back {
            site.clock.turn_back(HOUR)
        } else {
            site.clock.advance(2 * HOUR)
        }
        assert_eq!(site.scan(&scans, Scan::Watch).await.moved_up, 0, "back: {back}");
        assert_eq!(Some(site.job(&id).await.run_at), run_at);
    }
    assert_eq!(take(&site).await, id);
}

/// Also where it is written for another reason first, which shows the time of then.
async fn the_lease_of_a_worker_that_died_before_the_clock_was_set_back_ends(site: Site) {
    if !site.store.is_exclusive() {
        return;
    }
    let (passed, start) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let seconds = Arc::clone(&passed);
    let monotonic = move || start + Duration::from_secs(seconds.load(Ordering::SeqCst));
    let clock = AwakeClock::timed_by(Arc::clone(&site.clock) as Arc<dyn Clock>, Arc::new(monotonic));
    let manager = Manager::start(Arc::clone(&site.store), Arc::new(clock), ManagerConfig::default());
    let site = Site { manager, ..site };
    let scans = site.scans(&config());
    let claimed = site.submit_and_claim(new_job()).await;
    site.clock.turn_back(HOUR);
    site.scan(&scans, Scan::Watch).await;
    let (mut flagged, mut recovered) = (None, None);
    for second in 1..=2 * LEASE.as_secs() {
        site.clock.advance(SECOND);
        passed.fetch_add(1, Ordering::SeqCst);
        let report = site.scan(&scans, Scan::Watch).await;
        flagged = flagged.or((report.flagged > 0).then_some(second));
        recovered = recovered.or((report.recovered() > 0).then_some(second));
    }
    assert_eq!((flagged, recovered), (Some(LEASE.as_secs()), Some(LEASE.as_secs() + GRACE.as_secs())));
    assert_eq!(site.job(&claimed.job.id).await.state.name(), JobState::Available);
}

async fn nothing_is_removed_before_its_time_when_the_clock_is_set_back(site: Site) {
    let retention = Retention::all(Some(2 * HOUR));
    let idempotency_window = SECOND;
    let scans = site.scans(&MonitorConfig { retention, idempotency_window, ..config() });
    let before = site.submit_and_claim(new_job()).await;
    site.finish(&before, completed()).await.expect("accepted");
    site.clock.turn_back(HOUR);
    let after = site.submit_and_claim(new_job()).await;
    site.finish(&after, completed()).await.expect("accepted");
    site.clock.advance(2 * HOUR - SECOND);
    assert_eq!(site.scan(&scans, Scan::Retention).await.removed, 0);
    site.clock.advance(SECOND);
    assert_eq!(site.scan(&scans, Scan::Retention).await.removed, 1);
    assert!(site.is_gone(&after.job.id).await && !site.is_gone(&before.job.id).await);
    site.clock.advance(HOUR);
    assert_eq!(site.scan(&scans, Scan::Retention).await.removed, 1, "as much later as the clock was ahead");
}

async fn nothing_is_removed_and_nothing_expires_by_a_clock_that_is_far_off(site: Site) {
    let retention = Retention::all(Some(2 * HOUR));
    let scans = site.scans(&MonitorConfig { retention, idempotency_window: SECOND, ..config() });
    let ended = site.submit_and_claim(new_job()).await;
    site.finish(&ended, completed()).await.expect("accepted");
    let expires_at = Some(site.clock.now().plus(HOUR));
    let waits = site.submit(NewJob { expires_at, ..new_job() }).await;
    site.clock.be_far_off(true);
    site.clock.advance(8_784 * HOUR);
    for scan in Scan::ALL {
        let report = site.scan(&scans, scan).await;
        assert_eq!((report.removed, report.expired, report.moved), (0, 0, 0), "{scan:?}");
    }
    site.clock.be_far_off(false);
    assert_eq!(site.scan(&scans, Scan::Watch).await.expired, 1, "as soon as the clock is not off");
    assert_eq!(site.scan(&scans, Scan::Retention).await.removed, 1);
    assert!(site.is_gone(&ended.job.id).await && !site.is_gone(&waits).await);
}

/// Neither of what was submitted before the clock was wrong, nor of what is submitted since.
async fn a_claim_expires_nothing_and_hands_out_nothing_before_its_time_by_a_clock_that_is_far_off(site: Site) {
    let (now, year) = (site.clock.now(), 8_784 * HOUR);
    let named = NewJob { run_at: Some(now.plus(72 * HOUR)), ..new_job() };
    let expiring = site.submit(NewJob { expires_at: Some(now.plus(HOUR)), ..new_job() }).await;
    let mut named = vec![site.submit(named.clone()).await, site.submit(named).await];
    let waiting = site.submit(new_job()).await;
    site.clock.be_far_off(true);
    site.clock.advance(year);
    named.push(site.submit(NewJob { run_at: Some(now.plus(96 * HOUR)), ..new_job() }).await);
    site.engine.settle().await;
    let only_one_is_taken = async |site: &Site| {
        let mut taken = vec![take(site).await];
        for _ in 0..4 {
            let claimed = site.manager.claim(claim("w", 10)).await.expect("answered");
            taken.extend(claimed.jobs().iter().map(|job| job.versioned.job.id.clone()));
            claimed.delivered();
            site.clock.advance(2 * SECOND);
        }
        assert_eq!(taken.len(), 1, "{taken:?}, of which {named:?} wait and {expiring} does");
        taken.remove(0)
    };
    assert_eq!(only_one_is_taken(&site).await, waiting);
    // From memory, and after a restart from the store.
    let waiting = site.submit(new_job()).await;
    site.engine.settle().await;
    site.manager.retire().await;
    let manager = manager(&site.store, &site.clock);
    let site = Site { manager, ..site };
    assert_eq!(only_one_is_taken(&site).await, waiting);
    assert_eq!(site.job(&waiting).await.state.name(), JobState::Running);
    assert_eq!(site.job(&expiring).await.state.name(), JobState::Available);
    site.clock.turn_back(year);
    site.clock.be_far_off(false);
    site.clock.advance(73 * HOUR);
    let mut left: BTreeSet<JobId> = named[..2].iter().cloned().collect();
    while !left.is_empty() {
        left.remove(&take(&site).await);
    }
}

/// Others have written its times, by clocks of their own, on a store that several processes write to.
async fn the_lease_of_a_dead_worker_ends_by_a_clock_that_is_far_off_where_it_is_awake_time(site: Site) {
    let scans = site.scans(&config());
    let claimed = site.submit_and_claim(new_job()).await;
    site.clock.be_far_off(true);
    site.clock.advance(LEASE + GRACE);
    let report = site.scan(&scans, Scan::Recovery).await;
    assert_eq!(report.recovered() == 1, site.store.is_exclusive(), "{report:?}");
    site.clock.be_far_off(false);
    site.scan(&scans, Scan::Recovery).await;
    assert_eq!(site.job(&claimed.job.id).await.state.name(), JobState::Available);
}

async fn a_job_that_is_written_after_the_clock_was_set_back_has_the_time_of_then(site: Site) {
    let claimed = site.submit_and_claim(new_job()).await;
    site.clock.turn_back(HOUR);
    let now = site.clock.now();
    site.beat(&claimed).await;
    let job = site.job(&claimed.job.id).await;
    let lease = job.lease().expect("it runs").clone();
    assert_eq!((job.updated_at, lease.heartbeat_at, lease.expires_at), (now, now, now.plus(LEASE)));
    site.finish(&claimed, completed()).await.expect("accepted");
    let job = site.job(&claimed.job.id).await;
    assert_eq!((job.state.name(), job.updated_at), (JobState::Completed, now));
}

/// More jobs than one page has.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_may_not_act_leaves_no_job_that_was_written_ahead_to_later_runs() {
    let site = Site::on(crate::engines::embedded().await).await;
    let count = 1_001;
    let submitted = site.manager.submit(&super::caller(), vec![new_job(); count]).await;
    assert!(submitted.iter().all(Result::is_ok));
    site.clock.turn_back(HOUR);
    let scans = site.scans(&config());
    let held = scans.run_while(Scan::Watch, site.clock.now(), &|| false).await.expect("the scan runs");
    assert_eq!(held.moved_up, 0);
    assert_eq!(site.scan(&scans, Scan::Watch).await.moved_up, count);
}

/// Jobs with named times are written ahead for as long as the clock is behind.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_ahead_is_looked_at_once_where_nothing_follows_from_it() {
    let site = Site::on(crate::engines::embedded().await).await;
    let run_at = Some(site.clock.now().plus(50 * HOUR));
    for _ in 0..3 {
        site.submit(NewJob { run_at, ..new_job() }).await;
    }
    site.clock.turn_back(2 * HOUR);
    let scans = site.scans(&config());
    let mut looked_at = Vec::new();
    for _ in 0..3 {
        looked_at.push(site.scan(&scans, Scan::Watch).await.looked_at);
        site.clock.advance(SECOND);
    }
    assert_eq!(looked_at, [3, 0, 0]);
    let waiting = site.submit(new_job()).await;
    site.clock.turn_back(HOUR);
    assert_eq!(site.scan(&scans, Scan::Watch).await.moved_up, 1, "the clock was set back once more");
    assert_eq!(take(&site).await, waiting);
}

/// Jobs of which each run can look at no more than so many, and which stay as they are, hide none that waits.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_with_named_times_do_not_hide_one_that_waits_when_the_clock_is_set_back() {
    let site = Site::on(crate::engines::embedded().await).await;
    let run_at = Some(site.clock.now().plus(50 * HOUR));
    for _ in 0..21 {
        let named = vec![NewJob { run_at, ..new_job() }; 1_000];
        assert!(site.manager.submit(&super::caller(), named).await.iter().all(Result::is_ok));
    }
    site.clock.advance(SECOND);
    let waiting = site.submit(new_job()).await;
    site.clock.turn_back(2 * HOUR);
    let manager = manager(&site.store, &site.clock);
    let site = Site { manager, ..site };
    let scans = site.scans(&config());
    let mut moved = 0;
    for _ in 0..3 {
        moved += site.scan(&scans, Scan::Watch).await.moved_up;
    }
    assert_eq!((moved, take(&site).await), (1, waiting));
}
