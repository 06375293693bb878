use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::clock::ManualClock;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(1_900_000_000_000).plus(Duration::from_millis(millis))
}

/// A process on a machine whose clocks the test moves.
struct Process {
    wall: Arc<ManualClock>,
    passed: Arc<AtomicU64>,
    clock: AwakeClock,
}

impl Process {
    fn begin() -> Self {
        let (wall, passed) = (Arc::new(ManualClock::at(at(0))), Arc::new(AtomicU64::new(0)));
        let (start, millis) = (Instant::now(), Arc::clone(&passed));
        let monotonic = move || start + Duration::from_millis(millis.load(Ordering::SeqCst));
        let clock = AwakeClock::timed_by(Arc::clone(&wall) as Arc<dyn Clock>, Arc::new(monotonic));
        Self { wall, passed, clock }
    }

    /// So much time passes by the wall clock and the monotonic clock, and then the process looks.
    fn tick(&self, wall: u64, monotonic: u64) {
        self.wall.advance(Duration::from_millis(wall));
        self.passed.fetch_add(monotonic, Ordering::SeqCst);
        self.clock.tick();
    }

    fn run(&self, millis: u64) {
        (0..millis / 100).for_each(|_| self.tick(100, 100));
    }

    fn awake_since(&self, millis: u64) -> u64 {
        super::super::millis(self.clock.awake().since(at(millis)))
    }
}

#[test]
fn time_in_which_the_process_runs_counts() {
    let process = Process::begin();
    process.run(60_000);
    assert_eq!([0, 20_000, 60_000, 90_000].map(|time| process.awake_since(time)), [60_000, 40_000, 0, 0]);
    assert_eq!(process.clock.awake().marks().len(), 2, "what is on a line is not kept");
}

#[test]
fn of_a_gap_a_second_counts_whatever_it_was() {
    // The process was stopped, or the machine slept, of which its monotonic clock knows nothing.
    for (wall, monotonic, counted) in [(600_000, 600_000, 1_000), (600_000, 100, 100), (100, 600_000, 1_000)] {
        let process = Process::begin();
        process.run(10_000);
        process.tick(wall, monotonic);
        process.run(10_000);
        assert_eq!(process.awake_since(4_000), 16_000 + counted);
        let resumed = process.clock.awake().resumed().expect("a gap");
        assert_eq!(process.clock.awake().now().since(resumed), Duration::from_secs(10));
    }
}

#[test]
fn a_wall_clock_that_goes_at_half_the_speed_loses_no_awake_time() {
    let process = Process::begin();
    process.run(10_000);
    (0..200).for_each(|_| process.tick(50, 100));
    assert_eq!([0, 10_000, 15_000].map(|time| process.awake_since(time)), [30_000, 20_000, 10_000]);
}

#[test]
fn what_passes_between_two_processes_is_a_gap_and_what_passed_under_the_first_counts() {
    let first = Process::begin();
    first.run(30_000);
    let second = Process::begin();
    second.wall.advance(Duration::from_secs(3_630));
    second.tick(0, 0);
    let second = AwakeClock::timed_by(Arc::clone(&second.wall) as Arc<dyn Clock>, Arc::new(Instant::now)).awake();
    let joined = second.after(first.clock.awake().marks(), None);
    let since = |millis| super::super::millis(joined.since(at(millis)));
    assert_eq!([0, 20_000, 30_000, 60_000, 3_630_000].map(since), [30_000, 10_000, 0, 0, 0]);
    assert_eq!(joined.resumed(), Some(joined.now()));
    let unknown = second.after(&[], None);
    assert_eq!(unknown.since(at(3_600_000)), Duration::from_secs(30), "before the first process all time counts");
}

#[test]
fn a_process_that_takes_over_does_not_go_by_what_its_clock_showed_before() {
    let before = Process::begin();
    before.run(30_000);
    // It was there all the time, with a clock that is four minutes ahead.
    let process = Process::begin();
    process.wall.advance(Duration::from_secs(240));
    let monotonic = Arc::clone(&process.passed);
    let start = Instant::now();
    let clock = AwakeClock::timed_by(
        Arc::clone(&process.wall) as Arc<dyn Clock>,
        Arc::new(move || start + Duration::from_millis(monotonic.load(Ordering::SeqCst))),
    );
    for _ in 0..400 {
        process.wall.advance(TICK);
        process.passed.fetch_add(100, Ordering::SeqCst);
        clock.tick();
    }
    let joined = clock.awake().after(before.clock.awake().marks(), Some(at(270_000)));
    let since = |millis| super::super::millis(joined.since(at(millis)));
    assert_eq!([275_000, 270_000, 250_000, 30_000, 20_000].map(since), [5_000, 10_000, 10_000, 10_000, 20_000]);
}

#[test]
fn the_marks_are_written_as_json_and_read_again() {
    let process = Process::begin();
    process.run(1_000);
    process.tick(240_000, 100);
    let awake = process.clock.awake();
    let json = serde_json::to_string(awake.marks()).expect("JSON");
    assert_eq!(serde_json::from_str::<Vec<Mark>>(&json).expect("marks"), awake.marks());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_marks_are_few_and_say_how_much_time_has_counted(
        ticks in prop::collection::vec(
            prop_oneof![
                20 => Just((100_u64, 100_u64)),
                3 => (100_u64..5_000).prop_map(|both| (both, both)),
                1 => (0_u64..400_000, 100_u64..200),
            ],
            1..600,
        ),
        asked in any::<prop::sample::Index>(),
    ) {
        let process = Process::begin();
        let mut course = vec![(0, 0)];
        let (mut wall, mut awake) = (0, 0);
        for (by_wall, by_monotonic) in &ticks {
            process.tick(*by_wall, *by_monotonic);
            wall += by_wall;
            awake += by_monotonic.min(&1_000);
            course.push((wall, awake));
        }
        let (then, counted) = course[asked.index(course.len())];
        prop_assert!(process.clock.awake().marks().len() <= MAX_MARKS);
        prop_assert_eq!(process.awake_since(0), awake);
        let (said, is) = (process.awake_since(then), awake - counted);
        // What is thinned out is wrong by less than a part of the whole.
        prop_assert!(said.abs_diff(is) <= 1_000 + awake / 10, "{said} for {is} of {awake}");
    }
}
