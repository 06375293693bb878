//! Machines whose clocks do not agree: one writes leases and deadlines, another judges them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::clock::{AwakeClock, Clock, ComparedClock, ManualClock, SystemClock, TimeSources, Timestamp};
use leasehold::job::{JobSpec, JobState, Json, RecordName};
use leasehold::manager::{Manager, ManagerConfig, NewJob};
use leasehold::monitor::leader::Leader;
use leasehold::monitor::{MonitorConfig, Report, Scan, Scans, Vigil};
use leasehold::store::{RecordKey, RecordKind};

use super::{GRACE, LEASE, Site, cases, config, manager, new_job, spec};

/// How far the clocks are apart, and how far they may be.
const APART: Duration = Duration::from_secs(4);
const MARGIN: Duration = Duration::from_secs(5);

const DEADLINE: Duration = Duration::from_secs(30);

cases! {
    a_monitor_whose_clock_is_ahead_takes_nothing_away_early_and_without_the_margin_it_would,
    a_monitor_whose_clock_is_behind_takes_nothing_away_early_and_all_of_it_in_the_end,
    machines_that_compare_their_clocks_wait_no_longer_than_these_differ,
    a_clock_that_jumps_after_it_was_compared_ends_no_lease_early,
    a_monitor_whose_clock_is_too_far_off_takes_nothing_away,
    a_machine_that_slept_takes_no_job_from_a_worker_that_beats_and_that_of_a_dead_one_in_the_end,
    a_step_of_the_clock_takes_nothing_from_a_worker_that_beats,
    a_wall_clock_that_is_an_hour_ahead_for_two_seconds_keeps_no_lease_alive,
    a_monitor_that_is_started_again_and_again_ends_the_lease_of_a_dead_worker,
    a_monitor_that_cannot_know_when_the_one_before_ended_leaves_leases_time,
    a_clock_that_was_a_year_ahead_for_a_moment_keeps_no_lease_of_a_dead_worker_alive,
}

/// A monitor on another machine.
struct Other<'a> {
    site: &'a Site,
    clock: Arc<ManualClock>,
    careful: Scans,
    careless: Scans,
}

impl<'a> Other<'a> {
    fn beside(site: &'a Site, clock: ManualClock) -> Self {
        let clock = Arc::new(clock);
        let careless = MonitorConfig { orphan_grace: Duration::ZERO, ..config() };
        let careful = MonitorConfig { clock_skew: Some(MARGIN), ..careless.clone() };
        let scans = |config| Scans::new(manager(&site.store, &clock), config, false);
        let (careful, careless) = (scans(&careful), scans(&careless));
        Self { site, clock, careful, careless }
    }

    /// So much time passes on every machine.
    fn advance(&self, by: Duration) {
        self.site.clock.advance(by);
        self.clock.advance(by);
    }

    async fn look(&self, scans: &Scans) -> Report {
        self.site.engine.settle().await;
        let report = scans.run_once(Scan::Watch, self.clock.now()).await.expect("the scan runs");
        assert!(report.fault.is_none(), "what failed was not left alone for the margin's sake: {report:?}");
        report
    }
}

fn took_away(report: &Report) -> (usize, usize, usize) {
    (report.recovered(), report.timed_out, report.expired)
}

async fn a_monitor_whose_clock_is_ahead_takes_nothing_away_early_and_without_the_margin_it_would(site: Site) {
    let monitor = Other::beside(&site, ManualClock::at(site.clock.now().plus(APART)));
    let claimed = site.submit_and_claim(NewJob::of(JobSpec { timeout: Some(2 * LEASE), ..spec() })).await;
    let expires_at = Some(site.clock.now().plus(DEADLINE));
    let waiting = site.submit(NewJob { expires_at, ..new_job() }).await;

    // A second before the deadline, which is over by the other machine's clock.
    monitor.advance(DEADLINE - Duration::from_secs(1));
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (0, 0, 0));
    assert_eq!(took_away(&monitor.look(&monitor.careless).await), (0, 0, 1));
    assert_eq!(site.job(&waiting).await.state.name(), JobState::Expired);

    monitor.advance(DEADLINE);
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (0, 0, 0));
    site.beat(&claimed).await;
    monitor.advance(LEASE - Duration::from_secs(1));
    site.beat(&claimed).await;
    monitor.advance(Duration::from_secs(1));
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (0, 0, 0));
    assert_eq!(took_away(&monitor.look(&monitor.careless).await), (0, 1, 0));

    site.submit_and_claim(new_job()).await;
    monitor.advance(LEASE - Duration::from_secs(1));
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (0, 0, 0));
    assert_eq!(took_away(&monitor.look(&monitor.careless).await), (1, 0, 0));
}

async fn a_monitor_whose_clock_is_behind_takes_nothing_away_early_and_all_of_it_in_the_end(site: Site) {
    let monitor = Other::beside(&site, ManualClock::at(site.clock.now().minus(APART)));
    let claimed = site.submit_and_claim(new_job()).await;
    let expires_at = Some(site.clock.now().plus(LEASE));
    site.submit(NewJob { expires_at, ..new_job() }).await;
    monitor.advance(LEASE - Duration::from_millis(1));
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (0, 0, 0));
    assert_eq!(took_away(&monitor.look(&monitor.careless).await), (0, 0, 0));
    monitor.advance(APART + MARGIN);
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (0, 0, 0));
    monitor.advance(Duration::from_millis(1));
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (1, 0, 1));
    assert_eq!(site.job(&claimed.job.id).await.state.name(), JobState::Available);
}

/// How far clocks may be apart where they are compared: much further than they are.
const ALLOWED: Duration = Duration::from_secs(50);
/// What remains uncertain of clocks that were compared less than a minute ago.
const SLACK: Duration = Duration::from_millis(200);

/// A machine with a clock of its own that it compares with the store's.
struct Machine {
    wall: Arc<ManualClock>,
    /// The milliseconds by its monotonic clock.
    passed: Arc<AtomicU64>,
    clock: Arc<ComparedClock>,
}

impl Machine {
    fn with_clock_at(time: Timestamp) -> Self {
        let (wall, passed) = (Arc::new(ManualClock::at(time)), Arc::new(AtomicU64::new(0)));
        let (start, millis) = (Instant::now(), Arc::clone(&passed));
        let monotonic = move || start + Duration::from_millis(millis.load(Ordering::SeqCst));
        let clock = ComparedClock::timed_by(Arc::clone(&wall) as Arc<dyn Clock>, ALLOWED, Arc::new(monotonic));
        Self { wall, passed, clock: Arc::new(clock) }
    }

    fn advance(&self, by: Duration) {
        self.wall.advance(by);
        self.stand_still(by);
    }

    /// Time passes, which the machine's clock does not show: what a jump back looks like.
    fn stand_still(&self, by: Duration) {
        self.passed.fetch_add(u64::try_from(by.as_millis()).expect("a short time"), Ordering::SeqCst);
    }

    fn manager(&self, site: &Site) -> Manager {
        let config = ManagerConfig { poll_interval: Duration::from_millis(50), ..ManagerConfig::default() };
        Manager::start(Arc::clone(&site.store), Arc::clone(&self.clock) as Arc<dyn Clock>, config)
    }
}

/// A machine whose clock is 4 s behind the store's writes the leases, one whose clock is 3 s ahead judges them.
struct Compared {
    site: Site,
    writer: Machine,
    judge: Machine,
    scans: Scans,
    judging: Manager,
}

impl Compared {
    fn on(site: Site) -> Self {
        let now = site.clock.now();
        let writer = Machine::with_clock_at(now.minus(Duration::from_secs(4)));
        let judge = Machine::with_clock_at(now.plus(Duration::from_secs(3)));
        let config = MonitorConfig { orphan_grace: Duration::ZERO, clock_skew: Some(ALLOWED), ..config() };
        let judging = judge.manager(&site);
        let scans = Scans::new(judging.clone(), &config, false);
        let site = Site { manager: writer.manager(&site), ..site };
        let this = Self { site, writer, judge, scans, judging };
        this.compare();
        this
    }

    fn compare(&self) {
        for machine in [&self.writer, &self.judge] {
            machine.clock.compare(machine.clock.read(), self.site.clock.now());
        }
    }

    /// So much time passes everywhere, and clocks are compared as often as they should be.
    fn advance(&self, by: Duration) {
        for _ in 0..4 {
            self.site.clock.advance(by / 4);
            self.writer.advance(by / 4);
            self.judge.advance(by / 4);
            self.compare();
        }
    }

    async fn recovered(&self) -> usize {
        self.site.engine.settle().await;
        let report = self.scans.run_once(Scan::Recovery, self.judge.clock.now()).await.expect("the scan runs");
        assert!(report.fault.is_none(), "{report:?}");
        report.recovered()
    }
}

async fn machines_that_compare_their_clocks_wait_no_longer_than_these_differ(site: Site) {
    let machines = Compared::on(site);
    machines.site.submit_and_claim(new_job()).await;
    machines.advance(LEASE);
    assert_eq!(machines.recovered().await, 0);
    machines.advance(SLACK);
    assert_eq!(machines.recovered().await, 1);
}

async fn a_clock_that_jumps_after_it_was_compared_ends_no_lease_early(site: Site) {
    let machines = Compared::on(site);
    let (jump, rest) = (Duration::from_secs(20), Duration::from_secs(10));
    let claimed = machines.site.submit_and_claim(new_job()).await;
    machines.advance(LEASE - rest);
    machines.judge.wall.advance(jump);
    assert_eq!(machines.recovered().await, 0);

    // The writer's clock does not show the 20 s that pass before it renews the lease.
    machines.site.clock.advance(jump);
    machines.judge.advance(jump);
    machines.writer.stand_still(jump);
    machines.site.beat(&claimed).await;
    machines.advance(LEASE);
    assert_eq!(machines.recovered().await, 0);
    machines.advance(SLACK);
    assert_eq!(machines.recovered().await, 1);
}

async fn a_monitor_whose_clock_is_too_far_off_takes_nothing_away(site: Site) {
    let machines = Compared::on(site);
    machines.site.submit_and_claim(new_job()).await;
    machines.judge.wall.advance(ALLOWED);
    machines.advance(2 * LEASE);
    assert_eq!(machines.recovered().await, 0);
    let said = machines.judging.clock_is_off();
    assert!(said.as_deref().is_some_and(|said| said.contains("53.") && said.contains("ahead")), "{said:?}");
}

/// A machine whose server counts awake time, by clocks that the test moves.
struct Awake {
    wall: Arc<ManualClock>,
    passed: Arc<AtomicU64>,
    clock: Arc<AwakeClock>,
    site: Site,
    scans: Scans,
}

impl Awake {
    fn on(site: Site) -> Self {
        Self::with(site, Arc::default())
    }

    /// A process that begins now, after those that `vigil` knows.
    fn with(site: Site, vigil: Arc<Vigil>) -> Self {
        let (start, passed) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let wall = Arc::new(ManualClock::at(site.clock.now()));
        let monotonic = {
            let passed = Arc::clone(&passed);
            move || Duration::from_millis(passed.load(Ordering::SeqCst))
        };
        let system = SystemClock::reading(TimeSources {
            wall: {
                let wall = Arc::clone(&wall);
                Box::new(move || wall.now())
            },
            monotonic: Box::new(monotonic.clone()),
            slept: Box::new(|| Duration::ZERO),
        });
        let clock = Arc::new(AwakeClock::timed_by(Arc::new(system), Arc::new(move || start + monotonic())));
        let config = ManagerConfig { poll_interval: Duration::from_millis(50), ..ManagerConfig::default() };
        let manager = Manager::start(Arc::clone(&site.store), Arc::clone(&clock) as Arc<dyn Clock>, config);
        let scans = Scans::new(manager.clone(), &super::config(), true).following(vigil);
        Self { wall, passed, clock, site: Site { manager, ..site }, scans }
    }

    /// So much time passes, in which the server runs.
    fn run(&self, time: Duration) {
        for _ in 0..time.as_millis() / 100 {
            self.stand(Duration::from_millis(100));
        }
    }

    /// So much time passes, in which the server is stopped.
    fn stand(&self, time: Duration) {
        self.wall.advance(time);
        self.site.clock.advance(time);
        self.passed.fetch_add(u64::try_from(time.as_millis()).expect("a short time"), Ordering::SeqCst);
        self.clock.tick();
    }

    /// Scans as often as a monitor could, and returns what it has taken away.
    async fn took_away(&self) -> (usize, usize) {
        self.site.engine.settle().await;
        let report = self.scans.run_once(Scan::Watch, self.clock.now()).await.expect("the scan runs");
        assert!(report.fault.is_none(), "{report:?}");
        (report.recovered() + report.timed_out + report.expired, report.flagged)
    }
}

const SECOND: Duration = Duration::from_secs(1);

async fn a_machine_that_slept_takes_no_job_from_a_worker_that_beats_and_that_of_a_dead_one_in_the_end(site: Site) {
    let machine = Awake::on(site);
    let once = JobSpec { max_attempts: 1, timeout: Some(4 * LEASE), ..spec() };
    let claimed = machine.site.submit_and_claim(NewJob::of(once)).await;
    for _ in 0..3 {
        machine.run(LEASE - 2 * SECOND);
        machine.stand(Duration::from_secs(600));
        assert_eq!(machine.took_away().await, (0, 0));
        machine.run(LEASE / 3);
        assert_eq!(machine.took_away().await, (0, 0));
        machine.site.beat(&claimed).await;
    }
    machine.run(LEASE / 2);
    assert_eq!(machine.took_away().await.0, 1, "its time limit counts only the time awake");
    assert_eq!(machine.site.job(&claimed.job.id).await.state.name(), JobState::Failed);

    let dead = machine.site.submit_and_claim(new_job()).await;
    machine.run(LEASE / 2);
    machine.stand(Duration::from_secs(600));
    machine.run(LEASE / 2);
    machine.run(GRACE + SECOND);
    assert_eq!(machine.took_away().await.0, 1);
    assert_eq!(machine.site.job(&dead.job.id).await.state.name(), JobState::Available);
}

async fn a_step_of_the_clock_takes_nothing_from_a_worker_that_beats(site: Site) {
    let machine = Awake::on(site);
    let claimed = machine.site.submit_and_claim(NewJob::of(JobSpec { timeout: Some(3 * LEASE), ..spec() })).await;
    machine.run(LEASE / 3);
    machine.wall.advance(Duration::from_secs(240));
    for _ in 0..6 {
        machine.run(LEASE / 3);
        assert_eq!(machine.took_away().await, (0, 0));
        machine.site.beat(&claimed).await;
    }
    assert_eq!(machine.clock.now().since(machine.site.clock.now()), Duration::from_secs(240), "the step is followed");
    machine.run(LEASE);
    assert_eq!(machine.took_away().await.0, 1, "its time limit");
}

async fn a_wall_clock_that_is_an_hour_ahead_for_two_seconds_keeps_no_lease_alive(site: Site) {
    let machine = Awake::on(site);
    let hour = Duration::from_secs(3_600);
    machine.wall.advance(hour);
    machine.run(2 * SECOND);
    let claimed = machine.site.submit_and_claim(new_job()).await;
    machine.wall.turn_back(hour);
    machine.run(LEASE + GRACE + SECOND);
    assert_eq!(machine.took_away().await.0, 1);
    assert_eq!(machine.site.job(&claimed.job.id).await.state.name(), JobState::Available);
}

async fn a_monitor_that_is_started_again_and_again_ends_the_lease_of_a_dead_worker(site: Site) {
    let mut vigil = Arc::<Vigil>::default();
    let mut machine = Awake::with(site, Arc::clone(&vigil));
    let claimed = machine.site.submit_and_claim(new_job()).await;
    let (mut lives, mut taken_at) = (0, None);
    // An hour and then a second pass between two lives of five seconds.
    for down in [3_600].into_iter().chain(std::iter::repeat_n(1, 30)) {
        let leader = |machine: &Awake, vigil: &Arc<Vigil>| {
            let clock = Arc::clone(&machine.clock) as Arc<dyn Clock>;
            Leader::new(Arc::clone(&machine.site.store), clock, 3 * SECOND).following(Arc::clone(vigil))
        };
        let mut leading = leader(&machine, &vigil);
        leading.step().await.expect("it leads");
        for _ in 0..5 {
            machine.run(SECOND);
            leading.step().await.expect("it leads on");
        }
        if machine.took_away().await.0 > 0 {
            taken_at = Some(lives);
            break;
        }
        leading.give_back().await;
        machine.site.manager.retire().await;
        machine.site.clock.advance(Duration::from_secs(down));
        vigil = Arc::default();
        let Awake { site, .. } = machine;
        machine = Awake::with(site, Arc::clone(&vigil));
        lives += 1;
    }
    // Half of the term is left after an hour, and twice the term is the most.
    assert!(taken_at.is_some_and(|lives| (6..=25).contains(&lives)), "{taken_at:?}");
    assert_eq!(machine.site.job(&claimed.job.id).await.state.name(), JobState::Available);
}

async fn a_monitor_that_cannot_know_when_the_one_before_ended_leaves_leases_time(site: Site) {
    let mut machine = Awake::on(site);
    let key = RecordKey::new(RecordKind::Lease, RecordName::system("monitor"));
    let early = r#"{"at":"2000-01-01T00:00:00Z","awake_ms":5}"#;
    let late = r#"{"at":"2000-01-02T00:00:00Z","awake_ms":1}"#;
    let unordered = format!("[{late},{early}]");
    for marks in [None, Some("7"), Some(r#"[{"at":"yesterday"}]"#), Some(&*unordered)] {
        let claimed = machine.site.submit_and_claim(NewJob::of(JobSpec { max_attempts: 1, ..spec() })).await;
        if let Some(marks) = marks {
            let record = machine.site.store.record(&key).await.expect("an answer").expect("a record");
            let mut claim: serde_json::Value = record.read().expect("JSON");
            claim["awake"] = serde_json::from_str(marks).expect("JSON");
            let body = Json::parse(claim.to_string()).expect("JSON");
            machine.site.store.write_record(record.replaced_by(body)).await.expect("written");
        }
        machine.site.manager.retire().await;
        machine.site.clock.advance(Duration::from_secs(3_600));
        let (vigil, Awake { site, .. }) = (Arc::<Vigil>::default(), machine);
        machine = Awake::with(site, Arc::clone(&vigil));
        let clock = Arc::clone(&machine.clock) as Arc<dyn Clock>;
        let mut leading = Leader::new(Arc::clone(&machine.site.store), clock, 3 * SECOND).following(vigil);
        leading.step().await.expect("it leads");
        machine.run(LEASE / 2 - SECOND);
        assert_eq!(machine.took_away().await.0, 0, "{marks:?}");
        machine.run(LEASE / 2 + GRACE + 2 * SECOND);
        assert_eq!(machine.took_away().await.0, 1, "{marks:?}");
        assert_eq!(machine.site.job(&claimed.job.id).await.state.name(), JobState::Failed);
        leading.give_back().await;
    }
}

async fn a_clock_that_was_a_year_ahead_for_a_moment_keeps_no_lease_of_a_dead_worker_alive(site: Site) {
    let year = Duration::from_secs(365 * 86_400);
    site.clock.advance(year);
    let machine = Awake::on(site);
    let dead = machine.site.submit_and_claim(new_job()).await;
    let lives = machine.site.submit_and_claim(new_job()).await;
    machine.site.manager.retire().await;
    machine.site.clock.turn_back(year);
    let machine = Awake::with(machine.site, Arc::default());
    for _ in 0..3 {
        assert_eq!(machine.took_away().await.0, 0);
        machine.run(LEASE / 3);
        machine.site.beat(&lives).await;
    }
    machine.run(GRACE + SECOND);
    assert_eq!(machine.took_away().await.0, 1);
    assert_eq!(machine.site.job(&dead.job.id).await.state.name(), JobState::Available);
    machine.run(LEASE);
    assert_eq!(machine.took_away().await.0, 1, "its worker is dead by now");
    assert_eq!(machine.site.job(&lives.job.id).await.state.name(), JobState::Available);
}
