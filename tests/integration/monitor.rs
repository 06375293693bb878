//! The monitor over each engine: what it does, and above all what it leaves alone.
//!
//! Every case runs on every engine. Time is the test's own, but where the timetable itself is the subject.

mod audit;
mod clocks;
mod counting;
mod leading;
mod retention;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, ManualClock, Timestamp};
use leasehold::job::{
    EventName, Job, JobError, JobId, JobSpec, JobState, Kind, NoticeTarget, OrphanPolicy, Oversight, QueueName,
    Refusal, RetryPolicy, WorkerId,
};
use leasehold::manager::{
    Caller, ClaimOrder, ClaimRequest, Finish, Heartbeat, Manager, ManagerConfig, ManagerError, NewJob, Outcome,
};
use leasehold::monitor::{MonitorConfig, Report, Scan, Scans};
use leasehold::store::{Store, Versioned};

use crate::engines::Engine;

const LEASE: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(2);

/// Long enough for a waiting claim to be answered; the tests do not wait for it.
const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) struct Site {
    engine: Box<dyn Engine>,
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    manager: Manager,
}

impl Site {
    async fn on(engine: Box<dyn Engine>) -> Self {
        let store = engine.store();
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
        let manager = manager(&store, &clock);
        Self { engine, store, clock, manager }
    }

    fn scans(&self, config: &MonitorConfig) -> Scans {
        Scans::new(self.manager.clone(), config, self.store.is_exclusive())
    }

    /// Lets searches see everything, and scans once.
    async fn scan(&self, scans: &Scans, scan: Scan) -> Report {
        self.engine.settle().await;
        let report = scans.run_once(scan, self.clock.now()).await.expect("the scan runs");
        assert!(report.fault.is_none(), "{report:?}");
        report
    }

    async fn submit(&self, job: NewJob) -> JobId {
        let submitted = self.manager.submit(&caller(), vec![job]).await.pop().expect("one answer");
        submitted.expect("the job is taken").job.versioned.job.id.clone()
    }

    /// Takes a job and says nothing more.
    async fn claim(&self) -> Versioned {
        let claimed = self.manager.claim(ClaimRequest { wait: PATIENCE, ..claim("w", 1) }).await.expect("answered");
        let job = claimed.jobs().first().expect("a job").versioned.clone();
        claimed.delivered();
        job
    }

    async fn submit_and_claim(&self, job: NewJob) -> Versioned {
        self.submit(job).await;
        self.claim().await
    }

    async fn beat(&self, claimed: &Versioned) {
        let beat = Heartbeat { id: claimed.job.id.clone(), fence: claimed.job.fence, progress: None };
        let answer = self.manager.heartbeat(&worker("w"), vec![beat]).await.pop().expect("one answer");
        answer.expect("the lease is held");
    }

    async fn finish(&self, claimed: &Versioned, outcome: Outcome) -> Result<Versioned, ManagerError> {
        let finish = Finish { id: claimed.job.id.clone(), fence: claimed.job.fence, outcome };
        self.manager.finish(&worker("w"), vec![finish]).await.pop().expect("one answer")
    }

    async fn job(&self, id: &JobId) -> Arc<Job> {
        self.manager.get(id).await.expect("the job is there").versioned.job
    }

    async fn is_gone(&self, id: &JobId) -> bool {
        matches!(self.manager.get(id).await, Err(ManagerError::NotFound(_)))
    }
}

fn manager(store: &Arc<dyn Store>, clock: &Arc<ManualClock>) -> Manager {
    let config = ManagerConfig { poll_interval: Duration::from_millis(50), ..ManagerConfig::default() };
    Manager::start(Arc::clone(store), Arc::clone(clock) as Arc<dyn Clock>, config)
}

/// As on machines whose clocks agree.
fn config() -> MonitorConfig {
    MonitorConfig { orphan_grace: GRACE, clock_skew: Some(Duration::ZERO), ..MonitorConfig::default() }
}

fn caller() -> Caller {
    Caller::system("tester")
}

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

fn new_job() -> NewJob {
    NewJob::of(spec())
}

fn spec() -> JobSpec {
    let (queue, kind) = (QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"));
    let retry = RetryPolicy { base: Duration::from_secs(1), factor: 1.0, max: Duration::from_secs(1), jitter: 0.0 };
    JobSpec { retry, ..JobSpec::new(queue, kind) }
}

fn with_policy(policy: OrphanPolicy) -> NewJob {
    NewJob::of(JobSpec { oversight: Oversight { orphan_policy: Some(policy), notify: Vec::new() }, ..spec() })
}

fn claim(name: &str, max_jobs: usize) -> ClaimRequest {
    ClaimRequest {
        worker_id: worker(name),
        bearer: None,
        queues: vec![QueueName::new("q").expect("a name")],
        max_jobs,
        resources: Default::default(),
        labels: Default::default(),
        kinds: Vec::new(),
        wait: Duration::ZERO,
        lease: LEASE,
        order: ClaimOrder::default(),
        request_id: None,
        repeated: false,
    }
}

fn completed() -> Outcome {
    Outcome::Completed { result: None }
}

/// What happened to the job, and who did it, since it was claimed.
fn told(job: &Job) -> Vec<(EventName, String)> {
    job.history.entries().iter().skip(2).map(|entry| (entry.event, entry.actor.as_str().to_owned())).collect()
}

fn by_monitor(events: &[EventName]) -> Vec<(EventName, String)> {
    events.iter().map(|event| (*event, "monitor".to_owned())).collect()
}

macro_rules! cases {
    ($($cases:tt)*) => {
        $crate::engines::on_both_engines! { |engine| $crate::monitor::Site::on(engine).await; $($cases)* }
    };
}
pub(crate) use cases;

cases! {
    a_job_whose_worker_is_gone_is_flagged_and_after_the_grace_recovered_once,
    a_heartbeat_that_arrives_meanwhile_wins,
    a_sign_of_life_takes_the_flag_off,
    a_slow_but_beating_job_is_told_overdue_once_and_never_released,
    each_policy_is_kept_and_a_held_job_is_left_alone,
    a_queues_policy_goes_over_the_default_and_a_jobs_own_over_its_queues,
    a_job_whose_attempts_are_used_up_fails,
    a_cancellation_that_was_asked_for_holds_over_a_recovery,
    an_attempt_that_takes_too_long_is_ended,
    a_job_that_nobody_starts_in_time_expires,
    more_jobs_than_a_page_are_recovered_in_one_run,
    notices_that_wait_do_not_hide_what_is_to_be_done,
}

async fn a_job_whose_worker_is_gone_is_flagged_and_after_the_grace_recovered_once(site: Site) {
    let scans = site.scans(&config());
    let claimed = site.submit_and_claim(new_job()).await;
    site.clock.advance(LEASE - Duration::from_millis(1));
    for scan in [Scan::Recovery, Scan::Watch] {
        assert_eq!(site.scan(&scans, scan).await.looked_at, 0, "{scan:?}");
    }
    site.clock.advance(Duration::from_millis(1));
    assert_eq!(site.scan(&scans, Scan::Recovery).await.flagged, 1);
    let reason = site.job(&claimed.job.id).await.orphan().expect("a flag").reason.clone();
    assert!(reason.contains("worker w was last heard of at"), "{reason}");
    assert_eq!(site.scan(&scans, Scan::Watch).await.flagged, 0);
    site.clock.advance(GRACE);
    assert_eq!(site.scan(&scans, Scan::Recovery).await.requeued, 1);
    for scan in [Scan::Recovery, Scan::Watch] {
        assert_eq!(site.scan(&scans, scan).await.looked_at, 0, "{scan:?}");
    }
    let job = site.job(&claimed.job.id).await;
    assert_eq!((job.state.name(), job.attempt.get()), (JobState::Available, 1));
    assert_eq!(told(&job), by_monitor(&[EventName::Orphaned, EventName::Released]));
    assert_eq!(job.run_at, site.clock.now().plus(Duration::from_secs(1)));
    let late = site.finish(&claimed, completed()).await;
    assert!(matches!(late, Err(ManagerError::Refused(Refusal::LeaseLost { .. }))), "{late:?}");
    site.clock.advance(Duration::from_secs(1));
    assert_eq!(site.claim().await.job.fence, claimed.job.fence.next());
}

async fn a_heartbeat_that_arrives_meanwhile_wins(site: Site) {
    let scans = site.scans(&config());
    let claimed = site.submit_and_claim(new_job()).await;
    site.engine.settle().await;
    site.clock.advance(LEASE + GRACE);
    let found_at = site.clock.now();
    site.beat(&claimed).await;
    // Without a refresh: where searches lag, the job is found as it was.
    let report = scans.run_once(Scan::Recovery, found_at).await.expect("the scan runs");
    assert_eq!((report.flagged, report.recovered()), (0, 0));
    assert_eq!(told(&*site.job(&claimed.job.id).await), []);
    site.finish(&claimed, completed()).await.expect("its worker is heard");
}

async fn a_sign_of_life_takes_the_flag_off(site: Site) {
    let scans = site.scans(&config());
    let claimed = site.submit_and_claim(new_job()).await;
    site.clock.advance(LEASE);
    assert_eq!(site.scan(&scans, Scan::Watch).await.flagged, 1);
    site.beat(&claimed).await;
    assert_eq!(site.job(&claimed.job.id).await.orphan(), None);
    site.clock.advance(GRACE);
    assert_eq!(site.scan(&scans, Scan::Watch).await.looked_at, 0);
}

async fn a_slow_but_beating_job_is_told_overdue_once_and_never_released(site: Site) {
    let scans = site.scans(&config());
    let slow = NewJob::of(JobSpec { expected_runtime: Some(Duration::from_secs(30)), ..spec() });
    let claimed = site.submit_and_claim(slow).await;
    for _ in 0..20 {
        site.clock.advance(LEASE / 3);
        site.beat(&claimed).await;
        site.scan(&scans, Scan::Watch).await;
        site.scan(&scans, Scan::Recovery).await;
    }
    let job = site.job(&claimed.job.id).await;
    assert_eq!(told(&job), by_monitor(&[EventName::Overdue]));
    assert_eq!((job.state.name(), job.orphan()), (JobState::Running, None));
    site.finish(&claimed, completed()).await.expect("its worker is heard");
}

async fn each_policy_is_kept_and_a_held_job_is_left_alone(site: Site) {
    let scans = site.scans(&MonitorConfig { orphan_policy: OrphanPolicy::Fail, ..config() });
    let by_default = site.submit_and_claim(new_job()).await.job.id.clone();
    let requeued = site.submit_and_claim(with_policy(OrphanPolicy::Requeue)).await.job.id.clone();
    let mut timed = with_policy(OrphanPolicy::Flag);
    timed.spec.timeout = Some(LEASE);
    let held = site.submit_and_claim(timed).await.job.id.clone();
    site.clock.advance(LEASE + GRACE);
    let report = site.scan(&scans, Scan::Recovery).await;
    assert_eq!((report.requeued, report.failed, report.held), (1, 1, 1));
    assert_eq!(site.job(&by_default).await.state.name(), JobState::Failed);
    assert_eq!(site.job(&requeued).await.state.name(), JobState::Available);
    let job = site.job(&held).await;
    assert!(job.orphan().is_some_and(|orphan| orphan.held));
    site.clock.advance(LEASE * 100);
    site.scan(&scans, Scan::Watch).await;
    assert_eq!(site.job(&held).await, job);
}

async fn a_queues_policy_goes_over_the_default_and_a_jobs_own_over_its_queues(site: Site) {
    let scans = site.scans(&config());
    let queue = QueueName::new("q").expect("a name");
    site.manager.set_orphan_policy(&queue, Some(OrphanPolicy::Fail)).await.expect("set");
    let by_queue = site.submit_and_claim(new_job()).await.job.id.clone();
    let by_itself = site.submit_and_claim(with_policy(OrphanPolicy::Flag)).await.job.id.clone();
    site.clock.advance(LEASE + GRACE);
    // A monitor that has only just started.
    let later = manager(&site.store, &site.clock);
    let scans_of_another = Scans::new(later, &config(), site.store.is_exclusive());
    let report = site.scan(&scans_of_another, Scan::Recovery).await;
    assert_eq!((report.requeued, report.failed, report.held), (0, 1, 1));
    assert_eq!(site.job(&by_queue).await.state.name(), JobState::Failed);
    assert!(site.job(&by_itself).await.orphan().is_some_and(|orphan| orphan.held));
    assert_eq!(site.scan(&scans, Scan::Recovery).await.recovered(), 0);
}

async fn a_job_whose_attempts_are_used_up_fails(site: Site) {
    let scans = site.scans(&config());
    let id = site.submit(NewJob::of(JobSpec { max_attempts: 2, ..spec() })).await;
    for state in [JobState::Available, JobState::Failed] {
        site.claim().await;
        site.clock.advance(LEASE + GRACE);
        assert_eq!(site.scan(&scans, Scan::Recovery).await.requeued, 1);
        assert_eq!(site.job(&id).await.state.name(), state);
        site.clock.advance(Duration::from_secs(1));
    }
    let error: Option<JobError> = site.job(&id).await.error.clone();
    assert_eq!(error.map(|error| error.code).as_deref(), Some("lease_expired"));
}

async fn a_cancellation_that_was_asked_for_holds_over_a_recovery(site: Site) {
    let scans = site.scans(&config());
    let claimed = site.submit_and_claim(with_policy(OrphanPolicy::Flag)).await;
    site.manager.cancel(&caller(), &claimed.job.id, None).await.expect("asked for");
    site.clock.advance(LEASE + GRACE);
    site.scan(&scans, Scan::Recovery).await;
    assert_eq!(site.job(&claimed.job.id).await.state.name(), JobState::Cancelled);
}

async fn an_attempt_that_takes_too_long_is_ended(site: Site) {
    let scans = site.scans(&config());
    let claimed = site.submit_and_claim(NewJob::of(JobSpec { timeout: Some(Duration::from_secs(30)), ..spec() })).await;
    site.clock.advance(Duration::from_secs(31));
    site.beat(&claimed).await;
    assert_eq!(site.scan(&scans, Scan::Watch).await.timed_out, 0);
    site.clock.advance(Duration::from_secs(1));
    assert_eq!(site.scan(&scans, Scan::Recovery).await.timed_out, 0);
    assert_eq!(site.scan(&scans, Scan::Watch).await.timed_out, 1);
    let job = site.job(&claimed.job.id).await;
    assert_eq!(told(&job), by_monitor(&[EventName::Retried]));
    assert_eq!(job.error.as_ref().map(|error| error.code.as_str()), Some("timeout"));
}

async fn a_job_that_nobody_starts_in_time_expires(site: Site) {
    let scans = site.scans(&config());
    let deadline = site.clock.now().plus(Duration::from_secs(30));
    let id = site.submit(NewJob { expires_at: Some(deadline), ..new_job() }).await;
    let without = site.submit(new_job()).await;
    site.clock.advance(Duration::from_secs(29));
    assert_eq!(site.scan(&scans, Scan::Watch).await.looked_at, 0);
    site.clock.advance(Duration::from_secs(1));
    assert_eq!(site.scan(&scans, Scan::Watch).await.expired, 1);
    assert_eq!(site.job(&id).await.state.name(), JobState::Expired);
    assert_eq!(site.claim().await.job.id, without);
}

async fn more_jobs_than_a_page_are_recovered_in_one_run(site: Site) {
    const JOBS: usize = 1_300;
    let scans = site.scans(&config());
    let submitted = site.manager.submit(&caller(), (0..JOBS).map(|_| new_job()).collect()).await;
    assert!(submitted.iter().all(Result::is_ok));
    site.engine.settle().await;
    let mut taken = 0;
    for _ in 0..100 {
        let claimed = site.manager.claim(claim("w", 1000)).await.expect("answered");
        taken += claimed.jobs().len();
        claimed.delivered();
        if taken == JOBS {
            break;
        }
        // The manager looks for what it does not keep in memory once a while.
        site.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(taken, JOBS);
    site.clock.advance(LEASE + GRACE);
    let report = site.scan(&scans, Scan::Recovery).await;
    assert_eq!((report.requeued, report.unfinished), (JOBS, false));
    assert_eq!(site.scan(&scans, Scan::Recovery).await.looked_at, 0);
}

async fn notices_that_wait_do_not_hide_what_is_to_be_done(site: Site) {
    let scans = site.scans(&config());
    let url = "http://receiver.example/".to_owned();
    let target = NoticeTarget { url, events: Vec::new(), format: leasehold::job::NoticeFormat::default() };
    let told = NewJob::of(JobSpec { oversight: Oversight { orphan_policy: None, notify: vec![target] }, ..spec() });
    let ended = site.submit_and_claim(told).await;
    site.finish(&ended, completed()).await.expect("accepted");
    let before = site.job(&ended.job.id).await;
    assert!(!before.outbox.is_empty());
    let lost = site.submit_and_claim(new_job()).await.job.id.clone();
    site.clock.advance(LEASE + GRACE);
    assert_eq!(site.scan(&scans, Scan::Watch).await.requeued, 1);
    assert_eq!(site.job(&lost).await.state.name(), JobState::Available);
    assert_eq!(site.job(&ended.job.id).await, before);
}
