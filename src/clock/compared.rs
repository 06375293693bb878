//! A clock that is compared with the store's, so that processes on several machines know how far their clocks differ.
//!
//! Two machines never compare their clocks with each other. Each knows within which bounds its own is off from the
//! store's: who writes a lease lets it last as much longer as its clock may be behind, and who judges it waits as long
//! as its clock may be ahead. So no lease ends early by the store's clock, whichever two machines are involved.
//!
//! A comparison stays good while the machine's clock jumps: the time since then is measured by the monotonic clock, so
//! that a jump shows as a difference from the store's clock at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{AwakeTime, Clock, FAR_AHEAD, Offset, Timestamp, signed_millis};

/// How long a comparison is good for.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// The share of the time since a comparison by which two monotonic clocks may differ, as one in so many.
const DRIFT: u32 = 1_000;
/// What a time cut off to the millisecond may be short of.
const RESOLUTION: Duration = Duration::from_millis(1);

/// A clock and the comparison with the store's that was made last.
pub struct ComparedClock {
    clock: Arc<dyn Clock>,
    monotonic: Arc<dyn Fn() -> Instant + Send + Sync>,
    allowed: Duration,
    /// The store's clock as it was read last.
    last: Mutex<Option<Reading>>,
}

/// The time by a clock, which was read between two moments.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    time: Timestamp,
    after: Instant,
    before: Instant,
}

impl ComparedClock {
    /// Creates a clock that was not compared yet. The clocks of two machines may differ by `allowed`, which is assumed
    /// while nothing better is known.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, allowed: Duration) -> Self {
        Self::timed_by(clock, allowed, Arc::new(Instant::now))
    }

    /// Creates such a clock with the given monotonic clock, for tests.
    #[must_use]
    pub fn timed_by(
        clock: Arc<dyn Clock>,
        allowed: Duration,
        monotonic: Arc<dyn Fn() -> Instant + Send + Sync>,
    ) -> Self {
        Self { clock, monotonic, allowed, last: Mutex::new(None) }
    }

    /// Returns the time by this clock, and the moments between which it was read.
    #[must_use]
    pub fn read(&self) -> Reading {
        let after = (self.monotonic)();
        Reading { time: self.clock.now(), after, before: (self.monotonic)() }
    }

    /// Compares the clock with the store's, which was read after `sent` and until now. Returns by how many seconds this
    /// clock is ahead of it, at the middle of what is possible.
    pub fn compare(&self, sent: Reading, store: Timestamp) -> f64 {
        let answered = self.read();
        let store = Reading { time: store, after: sent.after, before: answered.before };
        *self.last.lock() = Some(store);
        let (least, most) = answered.ahead_of(&store);
        (least + most) as f64 / 2_000.0
    }
}

impl Reading {
    /// Returns the reading of a clock that has shown this time between two moments.
    pub(super) const fn between(time: Timestamp, after: Instant, before: Instant) -> Self {
        Self { time, after, before }
    }

    /// Returns the moment after which the clock was read.
    pub(super) const fn after(&self) -> Instant {
        self.after
    }

    /// Returns how many milliseconds this clock is ahead of another one that was read earlier, at least and at most;
    /// less than 0 when it is behind.
    pub(super) fn ahead_of(&self, earlier: &Self) -> (i64, i64) {
        let longest = self.before.saturating_duration_since(earlier.after);
        let shortest = self.after.saturating_duration_since(earlier.before);
        let slack = longest / DRIFT + RESOLUTION;
        let ahead = self.time.as_millis().saturating_sub(earlier.time.as_millis());
        let least = ahead.saturating_sub(signed_millis(longest + slack));
        let most = ahead.saturating_sub(signed_millis(shortest)).saturating_add(signed_millis(slack));
        (least, most)
    }
}

impl Clock for ComparedClock {
    fn goes_by(&self) -> Option<&dyn Clock> {
        Some(&*self.clock)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn awake(&self) -> AwakeTime {
        self.clock.awake()
    }

    fn offset(&self) -> Option<Offset> {
        let (last, reading) = (*self.last.lock(), self.read());
        let good = last.filter(|last| reading.before.duration_since(last.after) <= GOOD_FOR);
        Some(good.map_or(Offset::within(self.allowed), |store| {
            let (least, most) = reading.ahead_of(&store);
            let is_off_by = |by: Duration| least > signed_millis(by) || most < -signed_millis(by);
            let up = |millis: i64| Duration::from_millis(u64::try_from(millis).unwrap_or(0));
            Offset {
                behind: up(least.saturating_neg()),
                ahead: up(most),
                is_off: is_off_by(self.allowed),
                is_far_off: is_off_by(self.allowed.max(FAR_AHEAD)),
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::clock::ManualClock;

    const ALLOWED: Duration = Duration::from_secs(5);

    /// A machine with a clock of its own, and the time that really passes.
    struct Machine {
        wall: Arc<ManualClock>,
        passed: Arc<AtomicU64>,
        clock: ComparedClock,
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1_900_000_000_000).plus(Duration::from_secs(seconds))
    }

    fn machine(wall: Timestamp) -> Machine {
        let (wall, passed) = (Arc::new(ManualClock::at(wall)), Arc::new(AtomicU64::new(0)));
        let (start, millis) = (Instant::now(), Arc::clone(&passed));
        let monotonic = move || start + Duration::from_millis(millis.load(Ordering::SeqCst));
        let clock = ComparedClock::timed_by(Arc::clone(&wall) as Arc<dyn Clock>, ALLOWED, Arc::new(monotonic));
        Machine { wall, passed, clock }
    }

    impl Machine {
        fn pass(&self, millis: u64) {
            self.wall.advance(Duration::from_millis(millis));
            self.jump_back(millis);
        }

        /// Time passes that the machine's clock does not count.
        fn jump_back(&self, millis: u64) {
            self.passed.fetch_add(millis, Ordering::SeqCst);
        }

        /// Compares the clock with the store's in a call of 100 ms, in the middle of which the store's clock is read.
        fn compare(&self, store: Timestamp) -> f64 {
            let sent = self.clock.read();
            self.pass(100);
            self.clock.compare(sent, store.plus(Duration::from_millis(50)))
        }

        fn offset(&self) -> (u128, u128, bool) {
            let Offset { behind, ahead, is_off, .. } = self.clock.offset().expect("a compared clock");
            (behind.as_millis(), ahead.as_millis(), is_off)
        }
    }

    #[test]
    fn a_clock_that_was_not_compared_may_be_off_as_far_as_clocks_may_differ() {
        let machine = machine(at(0));
        assert_eq!(machine.offset(), (5_000, 5_000, false));
        machine.compare(at(0));
        machine.pass(59_000);
        assert!(machine.offset().0 < 200);
        machine.pass(2_000);
        assert_eq!(machine.offset(), (5_000, 5_000, false));
    }

    #[test]
    fn the_bounds_hold_the_difference_and_are_as_wide_as_the_call_was_long() {
        let even = machine(at(0));
        even.compare(at(0));
        // 50 ms for each way, 1 ms for the resolution.
        assert_eq!(even.offset(), (51, 51, false));
        even.pass(10_000);
        // 10 ms for the drift in 10 s.
        assert_eq!(even.offset(), (61, 61, false));
        let ahead = machine(at(3));
        let seconds = ahead.compare(at(0));
        assert!((seconds - 3.0).abs() < 0.01, "the middle of the bounds: {seconds}");
        assert_eq!(ahead.offset(), (0, 3_051, false));
        let behind = machine(at(0));
        behind.compare(at(3));
        assert_eq!(behind.offset(), (3_051, 0, false));
    }

    #[test]
    fn a_jump_after_the_comparison_counts_at_once() {
        let forward = machine(at(0));
        forward.compare(at(0));
        forward.wall.advance(Duration::from_secs(4));
        assert_eq!(forward.offset(), (0, 4_051, false));
        forward.wall.advance(Duration::from_secs(4));
        assert_eq!(forward.offset(), (0, 8_051, true));
        let at_the_bound = machine(at(0));
        at_the_bound.compare(at(0));
        at_the_bound.wall.advance(ALLOWED + Duration::from_millis(51));
        assert_eq!(at_the_bound.offset(), (0, 5_102, false));
        at_the_bound.wall.advance(Duration::from_millis(1));
        assert_eq!(at_the_bound.offset(), (0, 5_103, true));
        let backward = machine(at(0));
        backward.compare(at(0));
        // As the system's clock does after a backward jump, it stands still.
        backward.jump_back(4_000);
        assert_eq!(backward.offset(), (4_055, 0, false));
        backward.jump_back(4_000);
        assert_eq!(backward.offset(), (8_059, 0, true));
    }
}
