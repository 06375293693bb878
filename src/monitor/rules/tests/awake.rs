//! Leases and time limits while processes are stopped, machines sleep and clocks jump: a server and a worker as a
//! model.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::clock::{AwakeClock, Clock, ManualClock, Mark, millis};
use crate::monitor::vigil::Vigil;

/// What happens next to the servers and workers.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Everything runs for so many ticks.
    Run(u64),
    /// The server and the worker are stopped, or their machine sleeps without its monotonic clock.
    Pause { millis: u64, is_asleep: bool },
    /// The server alone is stopped.
    StopServer(u64),
    /// The server and the worker are held up again and again.
    Stutter { times: u64, millis: u64 },
    /// The wall clock is set forward.
    Step(u64),
    /// The wall clock is set back.
    StepBack(u64),
    /// The server is killed, and started again after so long.
    Restart(u64),
    /// Another server takes over, which was there for so long without leading.
    TakeOver(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1_u64..200).prop_map(Event::Run),
        2 => (1_000_u64..7_200_000, any::<bool>()).prop_map(|(millis, is_asleep)| Event::Pause { millis, is_asleep }),
        2 => (1_000_u64..600_000).prop_map(Event::StopServer),
        2 => (2_u64..30, 1_001_u64..5_000).prop_map(|(times, millis)| Event::Stutter { times, millis }),
        1 => (1_000_u64..3_600_000).prop_map(Event::Step),
        1 => (1_000_u64..7_200_000).prop_map(Event::StepBack),
        1 => (100_u64..3_600_000).prop_map(Event::Restart),
        1 => (100_u64..60_000).prop_map(Event::TakeOver),
    ]
}

/// A server that monitors one job, and its worker.
struct Model {
    wall: Arc<ManualClock>,
    passed: Arc<AtomicU64>,
    start: Instant,
    clock: AwakeClock,
    vigil: Vigil,
    rules: Rules,
    /// What the server has written of its awake time, once a second.
    written: Vec<Mark>,
    written_at: u64,
    term: Duration,
    job: Job,
    /// Whether the worker lives, and its own awake time since its last heartbeat.
    beats: bool,
    silent_for: u64,
    /// The awake time of the server in milliseconds, as it really was.
    awake: u64,
    /// The awake time when the wall clock was last set back, or a server began that may not know of that.
    set_back: u64,
    ended: Option<(Action, u64)>,
}

impl Model {
    fn new(term: Duration, timeout: Option<Duration>) -> Self {
        let (wall, passed, start) = (Arc::new(ManualClock::at(at(0))), Arc::new(AtomicU64::new(0)), Instant::now());
        let clock = Self::clock(&wall, &passed, start);
        let claim =
            Claim { worker_id: proof().worker_id, holder: None, request_id: None, term, margin: Duration::ZERO };
        let mut job = job(None);
        job.spec = Arc::new(JobSpec { timeout, expected_runtime: None, ..(*job.spec).clone() });
        let job = job.claim(&claim, at(0)).expect("claimed");
        let (vigil, written) = (Vigil::default(), clock.awake().marks().to_vec());
        Self {
            wall,
            passed,
            start,
            clock,
            vigil,
            rules: alone(),
            written,
            written_at: 0,
            term,
            job,
            beats: true,
            silent_for: 0,
            awake: 0,
            set_back: 0,
            ended: None,
        }
    }

    fn clock(wall: &Arc<ManualClock>, passed: &Arc<AtomicU64>, start: Instant) -> AwakeClock {
        let passed = Arc::clone(passed);
        let monotonic = move || start + Duration::from_millis(passed.load(Ordering::SeqCst));
        AwakeClock::timed_by(Arc::clone(wall) as Arc<dyn Clock>, Arc::new(monotonic))
    }

    fn pass(&self, wall: u64, monotonic: u64) {
        self.wall.advance(Duration::from_millis(wall));
        self.passed.fetch_add(monotonic, Ordering::SeqCst);
    }

    /// Everything runs after the server has stood for so long, the worker for so long.
    fn tick(&mut self, server: u64, worker: u64) {
        self.awake += server.min(1_000);
        self.silent_for += worker.min(1_000);
        self.clock.tick();
        let (now, awake) = (self.clock.now(), self.vigil.goes_on_with(self.clock.awake()));
        // A scan is as fast as it can be, and comes before the heartbeat.
        let action = super::super::decide(&self.job, now, &awake, &self.rules);
        if let Some(action @ (Action::Recover | Action::TimeOut)) = action {
            self.ended.get_or_insert((action, self.awake));
        }
        if self.beats && u128::from(self.silent_for) >= self.term.as_millis() / 3 {
            self.silent_for = 0;
            if let Ok(job) = self.job.heartbeat(&proof(), None, Duration::ZERO, now) {
                self.job = job;
            }
        }
        if self.awake - self.written_at >= 1_000 {
            (self.written, self.written_at) = (awake.marks().to_vec(), self.awake);
        }
    }

    fn play(&mut self, event: Event) {
        match event {
            Event::Run(ticks) => {
                for _ in 0..ticks {
                    self.pass(100, 100);
                    self.tick(100, 100);
                }
            }
            Event::Pause { millis, is_asleep } => {
                let monotonic = if is_asleep { 0 } else { millis };
                self.pass(millis, monotonic);
                self.tick(monotonic, monotonic);
            }
            Event::StopServer(millis) => {
                self.pass(millis, millis);
                // The worker's heartbeat waits for the server.
                self.tick(millis, millis);
            }
            Event::Stutter { times, millis } => {
                for _ in 0..times {
                    self.pass(millis, millis);
                    self.tick(millis, millis);
                    self.play(Event::Run(1));
                }
            }
            Event::Step(millis) => self.pass(millis, 0),
            Event::StepBack(millis) => {
                self.wall.turn_back(Duration::from_millis(millis));
                self.set_back = self.awake;
            }
            Event::Restart(millis) => {
                self.pass(millis, millis);
                self.clock = Self::clock(&self.wall, &self.passed, self.start);
                self.begin(None);
            }
            Event::TakeOver(millis) => {
                self.clock = Self::clock(&self.wall, &self.passed, self.start);
                for _ in 0..millis / 100 {
                    self.pass(100, 100);
                    self.clock.tick();
                }
                let since = self.clock.awake().now();
                self.begin(Some(since));
            }
        }
    }

    /// The server goes on from what the one before has written, and leads since this moment.
    fn begin(&mut self, leads_since: Option<AwakeInstant>) {
        self.vigil = Vigil::of(leads_since);
        self.vigil.go_on_from(&self.written);
        self.rules = leading(leads_since);
    }

    fn run_until(&mut self, seconds: u64) {
        let until = self.awake + seconds * 1_000;
        while self.awake < until && self.ended.is_none() {
            self.play(Event::Run(1));
        }
    }
}

fn term() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(2_u64), 2_u64..90].prop_map(Duration::from_secs)
}

fn cases() -> ProptestConfig {
    ProptestConfig { cases: 50, failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn a_server_and_a_worker_that_slept_for_ten_minutes_go_on() {
    for is_asleep in [false, true] {
        let mut model = Model::new(TERM, Some(TIMEOUT));
        model.play(Event::Run(590));
        model.play(Event::Pause { millis: 600_000, is_asleep });
        model.play(Event::Run(1_000));
        assert_eq!(model.ended, None);
        assert_eq!(model.job.attempt.get(), 1);
    }
}

#[test]
fn a_server_that_is_started_again_every_five_seconds_ends_the_lease_of_a_dead_worker() {
    let mut model = Model::new(TERM, None);
    model.beats = false;
    model.play(Event::Restart(3_600_000));
    for _ in 0..30 {
        model.play(Event::Run(50));
        model.play(Event::Restart(1_000));
    }
    let (action, after) = model.ended.expect("the lease has ended");
    assert_eq!(action, Action::Recover);
    assert!((30_000..=145_000).contains(&after), "{after}");
}

/// Returns nights with a nap each day, and gaps of seconds to hours, each after so many seconds awake.
fn histories() -> [Vec<(u64, u64)>; 2] {
    let day = [(7 * 3_600, 90), (9 * 3_600, 8 * 3_600)];
    [day.repeat(100), (0..300_u64).map(|gap| (600 + gap * 97 % 5_000, 2 << (gap * 31 % 14))).collect()]
}

#[test]
fn leases_last_as_they_should_after_a_hundred_gaps() {
    let (rules, third) = (rules(0, 0), TERM / 3);
    for history in histories() {
        let (mut awake, mut time) = (AwakeTime::beginning(at(0)), 0);
        let pass = |awake: &mut AwakeTime, time: &mut u64, seconds: u64, counted: u64| {
            *time += seconds;
            awake.go_on(at(*time), Duration::from_secs(counted));
        };
        for (number, (runs, gap)) in history.into_iter().enumerate() {
            pass(&mut awake, &mut time, runs, runs);
            // The next heartbeat was on its way when the gap began.
            let lives = lease_of(&running(None), time);
            pass(&mut awake, &mut time, 20, 20);
            pass(&mut awake, &mut time, gap, 1);
            awake.resume();
            let left = rules.end_of(&lives, (at(time), &awake)).since(awake.now());
            assert!(left >= third, "{left:?} after gap {number}");
            // A worker that died right before it, while gaps follow each other.
            for _ in 0..50 {
                pass(&mut awake, &mut time, 2, 2);
                pass(&mut awake, &mut time, 5, 1);
                awake.resume();
            }
            let over = rules.over_for(&lives, (at(time), &awake));
            assert!(over.is_some(), "its lease has ended after gap {number}");
        }
    }
}

/// Returns the lease of a job whose worker sent its last heartbeat at this second.
fn lease_of(job: &Job, second: u64) -> Lease {
    let job = job.heartbeat(&proof(), None, Duration::ZERO, at(second)).expect("held");
    job.lease().expect("running").clone()
}

/// The rules of a process that is alone on its store.
fn alone() -> Rules {
    leading(None)
}

/// The rules of a process that is alone on its store since this moment.
fn leading(leads_since: Option<AwakeInstant>) -> Rules {
    Rules::of(&MonitorConfig { orphan_grace: Duration::ZERO, leads_since, ..MonitorConfig::default() }, true)
}

#[test]
fn an_hour_back_takes_nothing_from_a_worker_that_beats_and_ends_the_lease_of_a_dead_one() {
    for beats in [true, false] {
        let mut model = Model::new(TERM, None);
        model.play(Event::Run(36_000));
        model.beats = beats;
        model.play(Event::StepBack(3_600_000));
        model.play(Event::Run(1_200));
        assert_eq!(model.ended.is_none(), beats, "{:?}", model.ended);
    }
}

#[test]
fn a_member_that_comes_to_lead_ends_no_lease_that_was_written_an_hour_ahead_before_its_term_is_over() {
    let mut job = running(None);
    job.spec = Arc::new(JobSpec { timeout: None, expected_runtime: None, ..(*job.spec).clone() });
    let ahead = job.heartbeat(&proof(), None, Duration::ZERO, at(4_600)).expect("held");
    // It was there as a follower all the time.
    let mut awake = AwakeTime::beginning(at(0));
    awake.go_on(at(1_000), Duration::from_secs(1_000));
    let leads_since = Some(awake.now());
    let decide = |second: u64, awake: &AwakeTime| {
        let joined = awake.after(&[Mark { at: at(4_590), awake_ms: 0 }], leads_since);
        super::super::decide(&ahead, at(second), &joined, &leading(leads_since))
    };
    let mut decided = vec![decide(1_000, &awake)];
    for seconds in [TERM.as_secs() - 1, 1] {
        let (last, seconds) = (awake.marks().last().expect("a mark").at, Duration::from_secs(seconds));
        awake.go_on(last.plus(seconds), seconds);
        decided.push(decide(1_000, &awake));
    }
    assert_eq!(decided, [None, None, Some(Action::Recover)]);
}

#[test]
fn leases_and_time_limits_end_after_a_step_back_behind_the_moment_at_which_the_lead_began() {
    let mut awake = AwakeTime::beginning(at(0));
    awake.go_on(at(7_200), Duration::from_secs(7_200));
    let leads_since = Some(awake.now());
    awake.go_on(at(7_210), Duration::from_secs(10));
    awake.go_on(at(3_610), Duration::from_millis(100));
    let rules = leading(leads_since);
    let claim =
        Claim { worker_id: proof().worker_id, holder: None, request_id: None, term: TERM, margin: Duration::ZERO };
    let claimed = |spec: JobSpec| {
        Job { spec: Arc::new(spec), expires_at: None, ..job(None) }.claim(&claim, at(3_610)).expect("claimed")
    };
    let dead = claimed(JobSpec { timeout: None, expected_runtime: None, ..(*job(None).spec).clone() });
    let mut lives = claimed(JobSpec { expected_runtime: None, ..(*job(None).spec).clone() });
    let mut ended = [None; 2];
    for second in 1..=400 {
        awake.go_on(at(3_610 + second), Duration::from_secs(1));
        let (now, awake) = (at(3_610 + second), awake.after(&[Mark::UNKNOWN], leads_since));
        lives = lives.heartbeat(&proof(), None, Duration::ZERO, now).expect("held");
        for (job, ended) in [&dead, &lives].into_iter().zip(&mut ended) {
            let action = super::super::decide(job, now, &awake, &rules);
            *ended = ended.or(action.filter(|action| *action != Action::MarkOverdue).map(|action| (action, second)));
        }
    }
    assert_eq!(ended, [Some((Action::Recover, 60)), Some((Action::TimeOut, 300))]);
}

#[test]
fn a_lease_of_a_year_ahead_ends_after_its_term_when_its_worker_is_dead() {
    let year = 365 * 86_400;
    let alone = alone();
    let mut job = running(None);
    job.spec = Arc::new(JobSpec { timeout: None, expected_runtime: None, ..(*job.spec).clone() });
    let ahead = job.heartbeat(&proof(), None, Duration::ZERO, at(year)).expect("held");
    let mut awake = AwakeTime::beginning(at(100));
    let after = |awake: &mut AwakeTime, seconds: u64| {
        awake.go_on(at(100 + seconds), Duration::from_secs(30));
        at(100 + seconds)
    };
    let now = after(&mut awake, 30);
    assert_eq!(super::super::decide(&ahead, now, &awake, &alone), None);
    let beats = ahead.heartbeat(&proof(), None, Duration::ZERO, now).expect("held");
    let now = after(&mut awake, 60);
    assert_eq!(super::super::decide(&ahead, now, &awake, &alone), Some(Action::Recover));
    assert_eq!(super::super::decide(&beats, now, &awake, &alone), None, "it lives");
    let now = after(&mut awake, 90);
    assert_eq!(super::super::decide(&beats, now, &awake, &alone), Some(Action::Recover));
}

/// Returns how many servers begin.
fn servers(events: &[Event]) -> u64 {
    events.iter().filter(|event| matches!(event, Event::Restart(_) | Event::TakeOver(_))).count() as u64
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_worker_that_beats_loses_its_lease(term in term(), events in prop::collection::vec(event(), 1..25)) {
        let mut model = Model::new(term, None);
        for event in events {
            model.play(event);
            prop_assert_eq!(model.ended, None, "after {:?}", event);
        }
    }

    #[test]
    fn the_lease_of_a_dead_worker_ends_within_twice_its_term(
        term in term(),
        before in prop::collection::vec(event(), 0..10),
        after in prop::collection::vec(event(), 0..25),
    ) {
        let mut model = Model::new(term, None);
        let is_set_back = before.iter().chain(&after).any(|event| matches!(event, Event::StepBack(_)));
        let servers = servers(&after);
        before.into_iter().for_each(|event| model.play(event));
        model.beats = false;
        let heard = model.awake;
        for event in after {
            model.play(event);
        }
        model.run_until(8 * term.as_secs());
        let (_, ended) = model.ended.expect("the lease has ended");
        // What a server that is killed has not written down is lost: a second for each, and what two ticks are apart.
        let most = 2 * millis(term) + servers * 1_100 + 1_000;
        // A clock that was set back lets a lease begin its term once more, and again where it comes to the time of the
        // last heartbeat a second time before the lease has ended.
        let (since, most) = if is_set_back { (heard.max(model.set_back), 2 * most) } else { (heard, most) };
        prop_assert!(ended.saturating_sub(since) <= most, "{} of {most}", ended - since);
    }

    #[test]
    fn a_time_limit_counts_awake_time(events in prop::collection::vec(event(), 0..25)) {
        let mut model = Model::new(TERM, Some(TIMEOUT));
        let is_set_back = events.iter().any(|event| matches!(event, Event::StepBack(_)));
        let servers = servers(&events);
        for event in events {
            model.play(event);
        }
        model.run_until(3 * TIMEOUT.as_secs());
        let (action, ended) = model.ended.expect("it has reached its limit");
        prop_assert_eq!(action, Action::TimeOut);
        let (limit, lost) = (millis(TIMEOUT), servers * 1_100);
        prop_assert!(ended >= limit - limit / 20, "it ends early, after {ended}");
        // A clock that was set back lets the limit count from the first heartbeat after that.
        let since = if is_set_back { model.set_back + millis(TERM) / 3 } else { 0 };
        prop_assert!(ended <= since + limit + limit / 20 + lost, "{ended}");
    }
}
