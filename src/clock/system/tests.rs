use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const START: i64 = 1_900_000_000_000;

/// A machine whose clocks the test moves, in milliseconds.
#[derive(Clone, Default)]
struct Machine(Arc<[AtomicI64; 3]>);

impl Machine {
    fn clock(&self) -> SystemClock {
        let [wall, monotonic, slept] = [(); 3].map(|()| self.clone());
        let duration = |millis: i64| Duration::from_millis(u64::try_from(millis).expect("no time goes back"));
        SystemClock::reading(TimeSources {
            wall: Box::new(move || Timestamp::from_millis(START + wall.0[0].load(Ordering::SeqCst))),
            monotonic: Box::new(move || duration(monotonic.0[1].load(Ordering::SeqCst))),
            slept: Box::new(move || duration(slept.0[2].load(Ordering::SeqCst))),
        })
    }

    /// So much time passes while the clock is looked at. Returns what it shows then, since the start.
    fn pass(&self, clock: &SystemClock, millis: i64) -> i64 {
        for _ in 0..millis / 100 {
            self.0[0].fetch_add(100, Ordering::SeqCst);
            self.0[1].fetch_add(100, Ordering::SeqCst);
            clock.now();
        }
        clock.now().as_millis() - START
    }

    /// Sets the wall clock.
    fn set(&self, by: i64) {
        self.0[0].fetch_add(by, Ordering::SeqCst);
    }

    fn sleep(&self, millis: i64) {
        self.set(millis);
        self.0[2].fetch_add(millis, Ordering::SeqCst);
    }
}

#[test]
fn an_hour_ahead_or_behind_for_two_seconds_does_nothing() {
    for hour in [3_600_000, -3_600_000] {
        let machine = Machine::default();
        let clock = machine.clock();
        assert_eq!(machine.pass(&clock, 5_000), 5_000);
        machine.set(hour);
        assert_eq!(machine.pass(&clock, 2_000), 7_000);
        machine.set(-hour);
        assert_eq!(machine.pass(&clock, 60_000), 67_000);
        assert_eq!(clock.set_back_by(), Duration::ZERO);
    }
}

#[test]
fn a_step_forward_is_followed_when_it_has_stood_for_ten_seconds() {
    let machine = Machine::default();
    let clock = machine.clock();
    machine.set(240_000);
    assert_eq!(machine.pass(&clock, 9_900), 9_900);
    assert_eq!(machine.pass(&clock, 200), 250_100);
    assert_eq!(machine.pass(&clock, 1_000), 251_100);
}

#[test]
fn steps_that_follow_each_other_are_not_believed() {
    let machine = Machine::default();
    let clock = machine.clock();
    for _ in 0..10 {
        machine.set(60_000);
        machine.pass(&clock, 5_000);
    }
    assert_eq!(clock.now().as_millis() - START, 50_000);
}

#[test]
fn a_sleep_of_the_machine_is_followed_at_once() {
    let machine = Machine::default();
    let clock = machine.clock();
    machine.sleep(600_000);
    assert_eq!(machine.pass(&clock, 100), 600_100);
}

#[test]
fn a_step_back_is_followed_when_it_has_stood_for_ten_seconds_and_said_until_it_is_made_up() {
    let machine = Machine::default();
    let clock = machine.clock();
    machine.pass(&clock, 10_000);
    machine.set(-3_600_000);
    assert_eq!(machine.pass(&clock, 9_900), 19_900);
    assert_eq!(machine.pass(&clock, 200), 20_100 - 3_600_000);
    assert!(clock.set_back_by().abs_diff(Duration::from_secs(3_600)) < Duration::from_secs(1));
    assert_eq!(machine.pass(&clock, 3_590_000), 10_100);
    assert!(clock.set_back_by() <= Duration::from_secs(10));
    assert_eq!(machine.pass(&clock, 20_000), 30_100);
    assert_eq!(clock.set_back_by(), Duration::ZERO);
}

#[test]
fn a_clock_that_is_known_to_be_wrong_is_not_followed_as_long_as_that_is_so() {
    for by in [366 * 86_400_000, -3_600_000] {
        let machine = Machine::default();
        let clock = machine.clock();
        machine.set(by);
        machine.pass(&clock, 3_000);
        clock.distrust(true);
        assert_eq!(machine.pass(&clock, 600_000), 603_000);
        assert_eq!((clock.wall().as_millis() - START, clock.set_back_by()), (603_000 + by, Duration::ZERO));
        clock.distrust(false);
        assert_eq!(machine.pass(&clock, 200), 603_200 + by);
    }
}

#[test]
fn a_second_back_makes_time_slower_and_not_go_back() {
    let machine = Machine::default();
    let clock = machine.clock();
    machine.set(-1_000);
    assert_eq!(machine.pass(&clock, 1_000), 500);
    assert_eq!(machine.pass(&clock, 3_000), 3_000);
    assert_eq!(clock.set_back_by(), Duration::ZERO);
}

#[test]
fn a_thread_that_shows_the_time_of_before_once_more_holds_up_no_other() {
    let machine = Machine::default();
    let clock = machine.clock();
    machine.set(-3_600_000);
    machine.pass(&clock, 11_000);
    clock.latest.fetch_max(START + 11_000, Ordering::Relaxed);
    assert_eq!(machine.pass(&clock, 100), 11_100 - 3_600_000);
}

#[test]
fn a_thread_that_is_held_up_between_two_readings_does_not_move_time() {
    let machine = Machine::default();
    let held_up = Arc::new(AtomicI64::new(0));
    let TimeSources { wall, monotonic, slept } = machine.clock().sources;
    let (waits, waiting) = (Arc::clone(&held_up), machine.clone());
    let wall = move || {
        let by = waits.swap(0, Ordering::SeqCst);
        waiting.set(by);
        waiting.0[1].fetch_add(by, Ordering::SeqCst);
        wall()
    };
    let clock = SystemClock::reading(TimeSources { wall: Box::new(wall), monotonic, slept });
    for round in 1..=20 {
        machine.pass(&clock, 300);
        held_up.store(900, Ordering::SeqCst);
        // The clock is due to be looked at, and time passes before the wall clock is read.
        machine.pass(&clock, 100);
        assert_eq!(held_up.load(Ordering::SeqCst), 0, "it was held up");
        assert_eq!(clock.now().as_millis() - START, round * 1_300);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn time_goes_back_only_where_the_clock_was_set_back_and_is_never_slower_than_half_the_speed(
        steps in prop::collection::vec((-100_000_i64..100_000, 100_i64..20_000, any::<bool>()), 1..40),
    ) {
        let machine = Machine::default();
        let clock = machine.clock();
        let (mut shown, mut set_back) = (0, 0);
        for (set, pass, is_asleep) in steps {
            match is_asleep {
                true => machine.sleep(set.abs()),
                false => machine.set(set),
            }
            set_back += if is_asleep { 0 } else { set.min(0).abs() };
            let now = machine.pass(&clock, pass);
            let back = shown + (pass / 100 * 100) / 2 - 100 - now;
            prop_assert!(back <= set_back, "{shown} -> {now} in {pass}");
            set_back -= back.max(0);
            shown = now;
        }
    }
}
