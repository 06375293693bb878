//! A clock that goes on from a time that another machine has written, so that what machines write one after the other
//! never goes back in time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Clock, Offset, Timestamp};

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
        Self { clock, monotonic, floor: Mutex::new((Timestamp::MIN, now)) }
    }

    /// Goes on from a time that was written, unless this clock is later. Returns by how much it is earlier.
    pub fn go_on_from(&self, written: Timestamp) -> Duration {
        let behind = written.since(self.now());
        if !behind.is_zero() {
            *self.floor.lock() = (written, (self.monotonic)());
        }
        behind
    }
}

impl Clock for ContinuedClock {
    fn now(&self) -> Timestamp {
        let (floor, since) = *self.floor.lock();
        let passed = (self.monotonic)().saturating_duration_since(since);
        self.clock.now().max(floor.plus(passed / 2))
    }

    fn disagreement(&self) -> Option<String> {
        self.clock.disagreement()
    }

    fn set_back_by(&self) -> Duration {
        self.clock.set_back_by() + self.now().since(self.clock.now())
    }

    fn offset(&self) -> Option<Offset> {
        self.clock.offset()
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
    }
}
