//! A clock that goes on from a time that another machine has written, so that what machines write one after the other
//! does not go back in time, unless that time is known to be wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Clock, Timestamp};

/// A machine's clock that never shows less than a time that was written before.
///
/// Where the machine's clock is behind that time, this one goes on from it at half the speed until the machine's has
/// caught up. It does not stand still: whoever waits for the end of a lease waits twice as long, and not for as long as
/// the clocks are apart.
pub struct ContinuedClock {
    clock: Arc<dyn Clock>,
    monotonic: Arc<dyn Fn() -> Instant + Send + Sync>,
    /// A time before which this clock shows none, and when it was that.
    floor: Mutex<(Timestamp, Instant)>,
    /// The latest time that was written, or shown, before this clock went back.
    highest: Mutex<Timestamp>,
}

impl ContinuedClock {
    /// Creates a clock that shows what `clock` shows.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::timed_by(clock, Arc::new(Instant::now))
    }

    /// Creates such a clock with the given monotonic clock, for tests.
    #[must_use]
    pub fn timed_by(clock: Arc<dyn Clock>, monotonic: Arc<dyn Fn() -> Instant + Send + Sync>) -> Self {
        let now = monotonic();
        let (floor, highest) = (Mutex::new((Timestamp::MIN, now)), Mutex::new(Timestamp::MIN));
        Self { clock, monotonic, floor, highest }
    }

    /// Goes on from a time that was written, unless this clock is later. Returns by how much it is earlier.
    pub fn go_on_from(&self, written: Timestamp) -> Duration {
        let behind = written.since(self.now());
        if !behind.is_zero() {
            *self.floor.lock() = (written, (self.monotonic)());
        }
        behind
    }

    /// Returns by how much the machine's clock is behind what this one shows.
    #[must_use]
    pub fn is_ahead_by(&self) -> Duration {
        self.now().since(self.clock.now())
    }

    /// Shows what the machine's clock shows, although this one has shown, or others have written, a later time.
    pub fn go_back_from(&self, written: Timestamp) {
        let mut highest = self.highest.lock();
        *highest = written.max(*highest).max(self.now());
        *self.floor.lock() = (Timestamp::MIN, (self.monotonic)());
    }
}

impl Clock for ContinuedClock {
    fn goes_by(&self) -> Option<&dyn Clock> {
        Some(&*self.clock)
    }

    fn now(&self) -> Timestamp {
        let mut floor = self.floor.lock();
        let passed = (self.monotonic)().saturating_duration_since(floor.1);
        let (least, now) = (floor.0.plus(passed / 2), self.clock.now());
        if now >= least {
            // It has caught up. Where it is set back later, it is followed.
            floor.0 = Timestamp::MIN;
        }
        now.max(least)
    }

    fn ahead_of_machine(&self) -> Duration {
        self.is_ahead_by()
    }

    fn behind_written(&self) -> Duration {
        self.highest.lock().since(self.now())
    }

    fn went_back_from(&self) -> Timestamp {
        self.clock.went_back_from().max(*self.highest.lock())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn it_goes_on_from_what_was_written_until_the_clock_has_caught_up() {
        let at = |seconds: u64| Timestamp::from_millis(1_900_000_000_000).plus(Duration::from_secs(seconds));
        let (wall, passed, start) = (Arc::new(ManualClock::at(at(0))), Arc::new(AtomicU64::new(0)), Instant::now());
        let seconds = Arc::clone(&passed);
        let monotonic = move || start + Duration::from_secs(seconds.load(Ordering::SeqCst));
        let clock = ContinuedClock::timed_by(Arc::clone(&wall) as Arc<dyn Clock>, Arc::new(monotonic));
        let pass = |by: u64| {
            wall.advance(Duration::from_secs(by));
            passed.fetch_add(by, Ordering::SeqCst);
        };
        assert_eq!(clock.now(), at(0));
        pass(10);
        assert_eq!((clock.go_on_from(at(10)), clock.now()), (Duration::ZERO, at(10)));
        assert_eq!((clock.go_on_from(at(20)), clock.now()), (Duration::from_secs(10), at(20)));
        pass(10);
        assert_eq!((clock.now(), wall.now()), (at(25), at(20)));
        assert_eq!((clock.go_on_from(at(24)), clock.now()), (Duration::ZERO, at(25)), "it is later");
        pass(10);
        assert_eq!((clock.now(), wall.now()), (at(30), at(30)));
        pass(10);
        assert_eq!(clock.now(), at(40));
        // It is known that the time that was written is wrong.
        clock.go_on_from(at(100));
        assert_eq!((clock.is_ahead_by(), clock.ahead_of_machine()), (Duration::from_secs(60), Duration::from_secs(60)));
        assert_eq!(clock.set_back_by(), Duration::ZERO, "nobody has set this machine's clock");
        clock.go_back_from(at(90));
        assert_eq!((clock.now(), clock.is_ahead_by()), (at(40), Duration::ZERO));
        assert_eq!(clock.behind_written(), Duration::from_secs(60), "which is said until it is made up for");
        pass(60);
        assert_eq!((clock.now(), clock.behind_written()), (at(100), Duration::ZERO));
        clock.go_on_from(at(110));
        pass(20);
        assert_eq!(clock.now(), at(120));
        wall.turn_back(Duration::from_secs(60));
        assert_eq!(clock.now(), at(60), "the machine's clock is followed, once it has caught up");
    }
}
