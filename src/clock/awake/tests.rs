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
        Self::on(Arc::new(ManualClock::at(at(0))))
    }

    /// Returns another process on the same machine.
    fn begun_again(&self) -> Self {
        Self::on(Arc::clone(&self.wall))
    }

    fn on(wall: Arc<ManualClock>) -> Self {
        let passed = Arc::new(AtomicU64::new(0));
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
fn however_often_the_awake_time_is_asked_for_it_is_known_where_its_course_bends() {
    let process = Process::begin();
    process.run(10_000);
    // The clock goes at half the speed, as one does that is ahead of its machine's.
    for _ in 0..10_000 {
        process.wall.advance(Duration::from_millis(1));
        process.passed.fetch_add(2, Ordering::SeqCst);
        process.clock.awake();
    }
    let since = [0, 10_000, 15_000].map(|time| process.awake_since(time) / 100);
    assert_eq!(since, [300, 200, 100]);
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
fn times_that_a_clock_shows_once_more_are_those_of_the_second_time() {
    let process = Process::begin();
    process.run(60_000);
    process.wall.turn_back(Duration::from_secs(3_600));
    process.tick(100, 100);
    let awake = process.clock.awake();
    assert_eq!(awake.in_order_since(), awake.now());
    assert_eq!(awake.resumed(), Some(awake.now()), "it is a gap");
    process.run(30_000);
    let since = |awake: &AwakeTime, seconds: i64| {
        super::super::millis(awake.since(Timestamp::from_millis(at(0).as_millis() + seconds * 1_000)))
    };
    let awake = process.clock.awake();
    // Half a minute ago it was 00:01:00.1 for the second time.
    assert_eq!([-3_530, -3_510, 0, 59].map(|second| since(&awake, second)), [20_100, 100, 0, 0]);
    assert_eq!(since(&awake, -3_600), 3_690_100, "what was before the process began was a while ago all the same");
    process.run(3_600_000);
    assert_eq!([0, 60].map(|second| since(&process.clock.awake(), second)), [90_100, 30_100]);
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
    let awake = clock.awake();
    let joined = awake.after(before.clock.awake().marks(), Some(awake.at(at(270_000))));
    let since = |millis| super::super::millis(joined.since(at(millis)));
    assert_eq!([275_000, 270_000, 250_000, 30_000, 20_000].map(since), [5_000, 10_000, 10_000, 10_000, 20_000]);
}

#[test]
fn a_clock_that_was_set_back_is_known_to_the_processes_after_that_as_well() {
    let first = Process::begin();
    first.run(60_000);
    first.wall.turn_back(Duration::from_secs(30));
    first.tick(0, 0);
    first.run(10_000);
    let awake = first.clock.awake();
    assert_eq!(awake.now().since(awake.in_order_since()), Duration::from_secs(10));
    // The clock goes on, and then it is set back while no process runs.
    let mut marks = awake.marks().to_vec();
    for (by, since) in [(5_000, 30), (-15_000, 20), (5_000, 40)] {
        let process = Process::begin();
        process.wall.turn_back(Duration::from_secs(3_600));
        let last = marks.last().expect("a mark").at.as_millis();
        let ahead = last + by - process.wall.now().as_millis();
        process.wall.advance(Duration::from_millis(ahead.unsigned_abs()));
        let process = process.begun_again();
        process.run(20_000);
        let joined = process.clock.awake().after(&marks, None);
        assert_eq!(joined.now().since(joined.in_order_since()), Duration::from_secs(since), "after {by}");
        marks = joined.marks().to_vec();
    }
}

#[test]
fn a_clock_that_was_set_back_in_a_gap_is_known_as_well() {
    let process = Process::begin();
    process.run(10_000);
    process.tick(600_000, 100);
    process.wall.turn_back(Duration::from_secs(2));
    process.tick(0, 0);
    process.run(5_000);
    let awake = process.clock.awake();
    let next = AwakeTime::beginning(process.wall.now()).after(awake.marks(), None);
    for known in [awake, next] {
        assert_eq!(known.now().since(known.in_order_since()), Duration::from_secs(5));
    }
}

#[test]
fn a_process_that_leads_and_whose_clock_is_set_back_behind_that_goes_on_from_the_moment() {
    let process = Process::begin();
    process.run(60_000);
    let since = process.clock.awake().now();
    process.run(10_000);
    process.wall.turn_back(Duration::from_secs(40));
    process.tick(0, 0);
    process.run(20_000);
    let joined = process.clock.awake().after(&[Mark::UNKNOWN], Some(since));
    assert_eq!([31_000, 40_000, 50_000].map(|time| joined.since(at(time)).as_secs()), [19, 10, 0]);
    assert_eq!(joined.now().since(joined.in_order_since()), Duration::from_secs(20));
    assert_eq!(joined.since(at(0)), Duration::from_secs(30), "of before the lead nothing is known");
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

/// A process that goes on over a hundred gaps and more, and the course of its awake time, of which nothing is left out.
struct Course {
    awake: AwakeTime,
    exact: Vec<Mark>,
}

impl Course {
    fn pass(&mut self, wall: u64, awake: u64) {
        let last = self.exact[self.exact.len() - 1];
        let [at, awake_ms] = [wall, awake].map(Duration::from_millis);
        let mark = Mark { at: last.at.plus(at), awake_ms: last.awake_ms + signed_millis(awake_ms) };
        self.exact.push(mark);
        self.awake.go_on(mark.at, awake_ms);
    }

    /// Returns by how many milliseconds the awake time since a time of so long ago is wrong.
    fn wrong_by(&self, ago: Duration) -> u64 {
        let last = self.exact[self.exact.len() - 1];
        let time = last.at.minus(ago);
        let exact = last.awake_ms - super::at(&self.exact, time);
        signed_millis(self.awake.since(time)).abs_diff(exact)
    }

    /// Plays so many gaps, and checks what is known of the last hour after each of them.
    fn play(gaps: impl Iterator<Item = (u64, u64)>) -> Self {
        let first = Mark { at: at(0), awake_ms: 0 };
        let mut this = Self { awake: AwakeTime::beginning(at(0)), exact: vec![first] };
        for (number, (awake, gap)) in gaps.enumerate() {
            this.pass(awake, awake);
            this.pass(gap, 1_000);
            this.awake.resume();
            for after in [100, 20_000, 60_000] {
                this.pass(after, after);
                for ago in (0..3_600).step_by(7) {
                    let wrong = this.wrong_by(Duration::from_secs(ago));
                    assert!(wrong <= 1_000, "{wrong} ms of {ago} s after gap {number}");
                }
            }
        }
        assert!(this.awake.marks().len() <= MAX_MARKS);
        this
    }
}

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;

#[test]
fn what_is_known_of_the_last_hour_is_exact_however_many_gaps_there_were() {
    // A night, and a nap in the afternoon, for a year.
    let course = Course::play((0..730).map(|half| match half % 2 {
        0 => (7 * HOUR, 90_000 + half),
        _ => (9 * HOUR - 90_000, 8 * HOUR - half),
    }));
    let week = course.wrong_by(Duration::from_millis(168 * HOUR));
    assert!(week <= 100 * MINUTE, "{week}");
    let mut seed = 1_u64;
    let mut number = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    // From two seconds to eight hours.
    Course::play((0..400).map(|_| (20 * MINUTE + number(90) * MINUTE, 2_000 << number(14) << number(2))));
}

#[test]
fn what_is_known_of_the_past_is_wrong_by_a_part_of_its_age_when_gaps_never_end() {
    let first = Mark { at: at(0), awake_ms: 0 };
    let mut course = Course { awake: AwakeTime::beginning(at(0)), exact: vec![first] };
    for number in 0..5_000_u64 {
        let awake = 500 + number % 7 * 2_000;
        course.pass(awake, awake);
        course.pass(1_500 << (number % 12), 1_000);
        course.awake.resume();
        if number % 100 == 99 {
            for place in (0..course.exact.len()).step_by(11) {
                let last = course.exact[course.exact.len() - 1];
                let (mark, now) = (course.exact[place], last.awake_ms);
                let wrong = course.wrong_by(last.at.since(mark.at));
                let age = (now - mark.awake_ms).unsigned_abs();
                assert!(wrong <= 1_000 + age / 6, "{wrong} of {age} after {number}");
            }
        }
    }
    assert_eq!(course.awake.marks().len(), MAX_MARKS);
}

#[test]
fn what_is_left_of_a_millisecond_counts_later() {
    let passed = Arc::new(AtomicU64::new(0));
    let (start, micros) = (Instant::now(), Arc::clone(&passed));
    let monotonic = move || start + Duration::from_micros(micros.load(Ordering::SeqCst));
    let wall = Arc::new(ManualClock::at(at(0)));
    let clock = AwakeClock::timed_by(Arc::clone(&wall) as Arc<dyn Clock>, Arc::new(monotonic));
    let began = clock.awake().now();
    for _ in 0..10_000 {
        passed.fetch_add(100_900, Ordering::SeqCst);
        wall.advance(Duration::from_millis(101));
        clock.tick();
    }
    assert_eq!(clock.awake().now().since(began), Duration::from_secs(1_009));
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
