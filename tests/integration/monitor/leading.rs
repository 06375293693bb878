//! Of several monitors one acts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::clock::ticks::TicksError;
use leasehold::clock::{Clock, ManualClock, SystemClock};
use leasehold::job::JobState;
use leasehold::manager::{Manager, ManagerConfig};
use leasehold::monitor::leader::{Leader, Leadership};
use leasehold::monitor::{Monitor, MonitorConfig, MonitorWatch, Scan, Schedule};
use leasehold::store::Store;
use parking_lot::Mutex;

use super::{GRACE, LEASE, PATIENCE, Site, cases, claim, config, new_job};
use crate::engines;
use crate::interference::{Interfered, Interference};

const TERM: Duration = Duration::from_secs(3);

/// The time until the writer of a record hears that it is written.
struct SlowAnswers {
    watch: Stopwatch,
    by: Duration,
}

impl Interference for SlowAnswers {
    fn record_is_written(&self) {
        self.watch.advance(self.by);
    }
}

/// A machine's monotonic clock, which the test moves.
#[derive(Clone)]
struct Stopwatch(Arc<Mutex<Instant>>);

impl Stopwatch {
    fn started() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn advance(&self, by: Duration) {
        *self.0.lock() += by;
    }

    fn now(&self) -> Instant {
        *self.0.lock()
    }
}

struct Candidate {
    leader: Leader,
    leadership: Arc<Leadership>,
    watch: Stopwatch,
}

impl Candidate {
    fn over(site: &Site, watch: &Stopwatch) -> Self {
        Self::by(Arc::clone(&site.store), site, watch)
    }

    fn by(store: Arc<dyn Store>, site: &Site, watch: &Stopwatch) -> Self {
        let (now, watch) = (watch.clone(), watch.clone());
        let clock = Arc::clone(&site.clock) as Arc<dyn Clock>;
        let leader = Leader::timed_by(store, clock, TERM, Arc::new(move || now.now()));
        let leadership = leader.leadership();
        Self { leader, leadership, watch }
    }

    /// One whose clock is off.
    fn off(site: &Site, watch: &Stopwatch) -> Self {
        let clock = Arc::new(ManualClock::at(site.clock.now()));
        clock.be_far_off(true);
        let now = watch.clone();
        let leader = Leader::timed_by(Arc::clone(&site.store), clock, TERM, Arc::new(move || now.now()));
        Self { leadership: leader.leadership(), leader, watch: watch.clone() }
    }

    /// Takes a step; gives whether it leads then.
    async fn step(&mut self) -> bool {
        self.leader.step().await.expect("the store answers");
        self.leads()
    }

    fn leads(&self) -> bool {
        self.leadership.holds_at(self.watch.now())
    }
}

cases! {
    a_lease_that_was_given_back_is_taken_at_once,
    a_leader_that_does_not_renew_stops_by_itself,
    a_term_counts_from_before_the_lease_was_written,
    what_was_found_within_the_term_is_left_alone_after_it,
    a_monitor_recovers_by_its_own_timetable,
}

async fn on_elasticsearch() -> Site {
    Site::on(engines::elasticsearch().await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_monitors_whose_clocks_are_both_off_do_not_pass_the_lead_to_and_fro() {
    let site = on_elasticsearch().await;
    let watch = Stopwatch::started();
    let mut both = [Candidate::off(&site, &watch), Candidate::off(&site, &watch)];
    let (mut leads, mut nobody) = ([0, 0], 0);
    for _ in 0..300 {
        for (candidate, seconds) in both.iter_mut().zip(&mut leads) {
            *seconds += u32::from(candidate.step().await);
        }
        nobody += u32::from(!both.iter().any(Candidate::leads));
        watch.advance(Duration::from_secs(1));
    }
    assert_eq!(leads[1], 0, "the first one leads on");
    assert!(nobody <= 6 * 7, "for two terms of each minute it waits for a right one: {nobody}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_clock_is_off_lets_another_monitor_lead_and_leads_on_where_there_is_none() {
    let site = on_elasticsearch().await;
    let watch = Stopwatch::started();
    let mut right = Candidate::over(&site, &watch);
    let mut off = Candidate::off(&site, &watch);
    assert!(off.step().await, "nobody else leads");
    // It is alone: it leaves the lease for two terms, and then leads on for a minute.
    assert!(!off.step().await);
    watch.advance(2 * TERM - Duration::from_millis(1));
    assert!(!off.step().await);
    watch.advance(Duration::from_millis(1));
    assert!(off.step().await, "no other one has come");
    for _ in 0..53 {
        watch.advance(Duration::from_secs(1));
        assert!(off.step().await);
    }
    watch.advance(Duration::from_secs(1));
    assert!(!off.step().await, "it gives way once more");
    assert!(right.step().await, "another one takes it at once");
    for _ in 0..10 {
        watch.advance(TERM / 3);
        assert!(!off.step().await);
        assert!(right.step().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_waits_until_the_leader_has_been_silent_for_its_term() {
    let site = on_elasticsearch().await;
    let watch = Stopwatch::started();
    let (mut first, mut second) = (Candidate::over(&site, &watch), Candidate::over(&site, &watch));
    assert!(first.step().await);
    for _ in 0..10 {
        watch.advance(TERM / 3);
        assert!(first.step().await);
        assert!(!second.step().await);
    }
    // The leader falls silent.
    watch.advance(TERM - Duration::from_millis(1));
    assert!(first.leads());
    assert!(!second.step().await);
    watch.advance(Duration::from_millis(1));
    assert!(!first.leads());
    assert!(second.step().await);
    // It comes back, and finds that another leads.
    assert!(!first.step().await);
    watch.advance(TERM - Duration::from_millis(1));
    assert!(second.step().await && !first.step().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_standby_knew_before_a_renewal_does_not_count() {
    let site = on_elasticsearch().await;
    let watch = Stopwatch::started();
    let (mut first, mut second) = (Candidate::over(&site, &watch), Candidate::over(&site, &watch));
    assert!(first.step().await);
    assert!(!second.step().await);
    watch.advance(TERM - Duration::from_millis(1));
    assert!(first.step().await);
    watch.advance(TERM - Duration::from_millis(1));
    assert!(!second.step().await);
    assert!(first.leads());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_stand_at_once_one_leads() {
    let site = on_elasticsearch().await;
    let watch = Stopwatch::started();
    let mut candidates: Vec<Candidate> = (0..8).map(|_| Candidate::over(&site, &watch)).collect();
    for _ in 0..3 {
        let steps = candidates.iter_mut().map(Candidate::step);
        let leads = futures::future::join_all(steps).await;
        assert_eq!(leads.into_iter().filter(|leads| *leads).count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_store_of_its_own_a_new_process_leads_at_once() {
    let site = Site::on(engines::embedded().await).await;
    let watch = Stopwatch::started();
    assert!(Candidate::over(&site, &watch).step().await);
    assert!(Candidate::over(&site, &watch).step().await);
}

async fn a_lease_that_was_given_back_is_taken_at_once(site: Site) {
    let watch = Stopwatch::started();
    let (mut first, mut second) = (Candidate::over(&site, &watch), Candidate::over(&site, &watch));
    assert!(first.step().await);
    first.leader.give_back().await;
    assert!(!first.leads());
    assert!(second.step().await);
}

async fn a_leader_that_does_not_renew_stops_by_itself(site: Site) {
    let watch = Stopwatch::started();
    let mut candidate = Candidate::over(&site, &watch);
    assert!(candidate.step().await);
    watch.advance(TERM);
    assert!(!candidate.leads());
    // Nobody has taken its place.
    assert!(candidate.step().await);
}

async fn a_term_counts_from_before_the_lease_was_written(site: Site) {
    let watch = Stopwatch::started();
    let slow = Arc::new(SlowAnswers { watch: watch.clone(), by: TERM / 3 });
    let mut candidate = Candidate::by(Interfered::around(Arc::clone(&site.store), &slow), &site, &watch);
    for what in ["taken", "renewed"] {
        // From the moment of this write on, others count the term.
        assert!(candidate.step().await, "{what}");
        watch.advance(TERM - TERM / 3 - Duration::from_millis(1));
        assert!(candidate.leads(), "{what}");
        watch.advance(Duration::from_millis(1));
        assert!(!candidate.leads(), "{what}");
    }
}

async fn what_was_found_within_the_term_is_left_alone_after_it(site: Site) {
    let claimed = site.submit_and_claim(new_job()).await;
    site.clock.advance(LEASE + GRACE);
    site.engine.settle().await;
    let scans = site.scans(&config());
    let asked = AtomicUsize::new(0);
    // The term ends after the search, while the job is read for the decision.
    let leads = || asked.fetch_add(1, Ordering::SeqCst) == 0;
    let report = scans.run_while(Scan::Recovery, site.clock.now(), &leads).await.expect("the scan runs");
    assert_eq!((report.looked_at, report.recovered()), (1, 0));
    assert_eq!(site.job(&claimed.job.id).await, claimed.job);
    assert_eq!(site.scan(&scans, Scan::Recovery).await.recovered(), 1, "by whoever leads next");
}

fn quick() -> MonitorConfig {
    MonitorConfig { term: Some(TERM), orphan_grace: Duration::ZERO, ..config() }
}

async fn start(store: &Arc<dyn Store>, clock: &Arc<dyn Clock>) -> (Manager, Monitor) {
    let manager = Manager::start(Arc::clone(store), Arc::clone(clock), ManagerConfig::default());
    let monitor = Monitor::start(manager.clone(), Arc::clone(store), Arc::clone(clock), quick(), None).await;
    (manager, monitor.expect("a good schedule"))
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what} did not come about");
}

async fn a_monitor_recovers_by_its_own_timetable(site: Site) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let (manager, monitor) = start(&site.store, &clock).await;
    until("a leader", async || monitor.is_leading()).await;
    let mut submitted = manager.submit(&super::caller(), vec![new_job()]).await;
    let id = submitted.remove(0).expect("the job is taken").job.versioned.job.id.clone();
    let lease = Duration::from_millis(100);
    let claimed = manager.claim(leasehold::manager::ClaimRequest { lease, wait: PATIENCE, ..claim("w", 1) }).await;
    claimed.expect("answered").delivered();
    until("a recovery", async || site.job(&id).await.state.name() == JobState::Available).await;
    monitor.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_that_shuts_down_hands_over() {
    let site = on_elasticsearch().await;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let (_, first) = start(&site.store, &clock).await;
    until("a leader", async || first.is_leading()).await;
    let (_, second) = start(&site.store, &clock).await;
    first.shutdown().await;
    until("another leader", async || second.is_leading()).await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_is_none_is_refused() {
    let site = Site::on(engines::embedded().await).await;
    let scans = Schedule::Cron("every now and then".to_owned());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let config = MonitorConfig { scans, ..quick() };
    let refused = Monitor::start(site.manager.clone(), Arc::clone(&site.store), clock, config, None).await;
    assert!(matches!(refused.err(), Some(TicksError::Cron(_))));
}

/// Waits until a process without a monitor says that there is none, or that there is one.
async fn until_gone(manager: &Manager, is_gone: bool) {
    for _ in 0..600 {
        if manager.monitor_is_gone().is_some() == is_gone {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it never says so: {:?}", manager.monitor_is_gone());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_a_monitor_says_so_while_no_other_one_acts() {
    let engine = engines::elasticsearch().await;
    let site = Site::on(engine).await;
    let watch = MonitorWatch::start(site.manager.clone(), Arc::clone(&site.store));
    until_gone(&site.manager, true).await;
    let start = async || {
        let clock = Arc::clone(&site.clock) as Arc<dyn Clock>;
        Monitor::start(site.manager.clone(), Arc::clone(&site.store), clock, config(), None).await.expect("it starts")
    };
    let monitor = start().await;
    until_gone(&site.manager, false).await;
    // It dies without giving back its lease.
    monitor.abandon().await;
    until_gone(&site.manager, true).await;
    let monitor = start().await;
    until_gone(&site.manager, false).await;
    // It gives the lease back, and nobody takes it.
    monitor.shutdown().await;
    until_gone(&site.manager, true).await;
    drop(watch);
    site.manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_a_processs_own_has_no_monitor_but_its_own() {
    let site = Site::on(engines::embedded().await).await;
    let _watch = MonitorWatch::start(site.manager.clone(), Arc::clone(&site.store));
    until_gone(&site.manager, true).await;
    let said = site.manager.monitor_is_gone().unwrap_or_default();
    assert!(said.starts_with("no monitor acts on this store"), "{said}");
}
