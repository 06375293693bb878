//! What is removed, and what is kept.

use std::time::Duration;

use leasehold::job::{JobId, JobSpec, JobState, NoticeTarget, Oversight};
use leasehold::manager::{NewJob, Outcome};
use leasehold::monitor::{MonitorConfig, Retention, Scan};

use super::{Site, caller, cases, completed, config, new_job, spec};

const DAY: Duration = Duration::from_secs(24 * 3600);

cases! {
    ended_jobs_are_removed_once_they_are_older_than_their_state_is_kept,
    nothing_is_removed_within_the_idempotency_window,
    what_is_kept_for_ever_stays,
    a_job_that_was_started_again_stays_though_a_search_still_shows_its_end,
    a_job_whose_end_is_yet_to_be_told_of_stays,
}

async fn complete(site: &Site, job: NewJob) -> JobId {
    let claimed = site.submit_and_claim(job).await;
    site.finish(&claimed, completed()).await.expect("accepted");
    claimed.job.id.clone()
}

async fn cancel(site: &Site) -> JobId {
    let id = site.submit(new_job()).await;
    site.manager.cancel(&caller(), &id, None).await.expect("cancelled");
    id
}

fn kept(retention: Retention) -> MonitorConfig {
    MonitorConfig { retention, ..config() }
}

async fn ended_jobs_are_removed_once_they_are_older_than_their_state_is_kept(site: Site) {
    let ages = Retention { completed: Some(2 * DAY), cancelled: Some(5 * DAY), ..Retention::default() };
    let scans = site.scans(&kept(ages));
    let (done, cancelled, waiting) =
        (complete(&site, new_job()).await, cancel(&site).await, site.submit(new_job()).await);
    site.clock.advance(2 * DAY - Duration::from_millis(1));
    assert_eq!(site.scan(&scans, Scan::Retention).await.removed, 0);
    site.clock.advance(Duration::from_millis(1));
    assert_eq!(site.scan(&scans, Scan::Retention).await.removed, 1);
    assert!(site.is_gone(&done).await);
    site.clock.advance(3 * DAY);
    assert_eq!(site.scan(&scans, Scan::Retention).await.removed, 1);
    assert!(site.is_gone(&cancelled).await);
    site.clock.advance(100 * DAY);
    assert_eq!(site.scan(&scans, Scan::Retention).await.removed, 0);
    assert_eq!(site.job(&waiting).await.state.name(), JobState::Available);
}

async fn nothing_is_removed_within_the_idempotency_window(site: Site) {
    let ages = Retention::all(Some(Duration::from_secs(1)));
    let scans = site.scans(&MonitorConfig { idempotency_window: DAY, ..kept(ages) });
    let keyed = || NewJob { idempotency_key: Some("order 7".to_owned()), ..new_job() };
    let done = complete(&site, keyed()).await;
    site.clock.advance(DAY - Duration::from_millis(1));
    assert_eq!(site.scan(&scans, Scan::Retention).await.removed, 0);
    assert_eq!(site.submit(keyed()).await, done);
    site.clock.advance(Duration::from_millis(1));
    assert_eq!(site.scan(&scans, Scan::Retention).await.removed, 1);
}

async fn what_is_kept_for_ever_stays(site: Site) {
    let scans = site.scans(&kept(Retention { completed: None, ..Retention::all(Some(DAY)) }));
    let (done, cancelled) = (complete(&site, new_job()).await, cancel(&site).await);
    site.clock.advance(10_000 * DAY);
    assert_eq!(site.scan(&scans, Scan::Retention).await.removed, 1);
    assert!(!site.is_gone(&done).await && site.is_gone(&cancelled).await);
}

async fn a_job_that_was_started_again_stays_though_a_search_still_shows_its_end(site: Site) {
    let scans = site.scans(&kept(Retention::all(Some(DAY))));
    let claimed = site.submit_and_claim(NewJob::of(JobSpec { max_attempts: 1, ..spec() })).await;
    let error = leasehold::job::JobError { code: "exit".to_owned(), message: "exit status 1".to_owned() };
    let outcome = Outcome::Failed { error, retryable: false, retry_after: None };
    site.finish(&claimed, outcome).await.expect("accepted");
    site.engine.settle().await;
    site.clock.advance(2 * DAY);
    site.manager.retry(&caller(), &claimed.job.id, None).await.expect("started again");
    let now = leasehold::clock::Clock::now(&*site.clock);
    let report = scans.run_once(Scan::Retention, now).await.expect("the scan runs");
    assert_eq!(report.removed, 0);
    assert_eq!(site.job(&claimed.job.id).await.state.name(), JobState::Available);
}

async fn a_job_whose_end_is_yet_to_be_told_of_stays(site: Site) {
    let scans = site.scans(&kept(Retention::all(Some(DAY))));
    let url = "http://receiver.example/".to_owned();
    let target = NoticeTarget { url, events: Vec::new(), format: leasehold::job::NoticeFormat::default() };
    let told = NewJob::of(JobSpec { oversight: Oversight { orphan_policy: None, notify: vec![target] }, ..spec() });
    let (told, untold) = (complete(&site, told).await, complete(&site, new_job()).await);
    site.clock.advance(2 * DAY);
    assert_eq!(site.scan(&scans, Scan::Retention).await.removed, 1);
    assert!(!site.is_gone(&told).await && site.is_gone(&untold).await);
}
