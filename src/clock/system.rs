//! The machine's clock, as a process takes it: it follows the monotonic clock, and the wall clock only where that is
//! believed.
//!
//! A wall clock may be set to a wrong time for a moment, by hand or by a time server that is wrong. What was written in
//! that moment would stay: leases, due times, the times of other members. So the time goes on with the monotonic clock,
//! and a wall clock that is elsewhere is followed when it has stood there for [`BELIEVED_AFTER`]; at once, when the
//! system says that the machine slept for as long.
//!
//! A wall clock that is known to be wrong ([`Clock::distrust`]) is not followed as long as that is so.
//!
//! That goes for both directions. What was written before time went back lies in the future then: everything that
//! compares stored times has to bear that (`ARCHITECTURE.md` has the list). Up to a second the time goes slower
//! instead, at half the speed, as it does whenever a time server corrects the clock a little.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use chrono::Utc;
use parking_lot::Mutex;

use super::{Clock, Timestamp, signed_millis};

/// How long the wall clock must have stood elsewhere before it is followed.
const BELIEVED_AFTER: i64 = 10_000;
/// By how much a wall clock may be elsewhere that is followed at once, in milliseconds.
const NEAR: i64 = 1_000;
/// How often the wall clock is looked at, in milliseconds.
const LOOK_EVERY: i64 = 100;

/// What the machine's time is read from.
pub struct TimeSources {
    /// Returns the time by the machine's wall clock, which somebody may set.
    pub wall: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// The monotonic clock, since any moment.
    pub monotonic: Box<dyn Fn() -> Duration + Send + Sync>,
    /// For how long the machine has slept, since any moment.
    pub slept: Box<dyn Fn() -> Duration + Send + Sync>,
}

/// The machine's clock: the wall time of its start, moved on by the monotonic clock.
pub struct SystemClock {
    sources: TimeSources,
    course: Mutex<Course>,
    /// What the time is ahead of the monotonic clock.
    ahead: AtomicI64,
    /// When the wall clock is to be looked at next, by the monotonic clock.
    next_look: AtomicI64,
    /// The latest time that was shown before the time went back, by the wall clock.
    highest: AtomicI64,
    latest: AtomicI64,
    /// Whether the wall clock is known to be wrong.
    is_wrong: AtomicBool,
}

/// How the time goes on. All of it is in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Course {
    ahead: i64,
    looked_at: i64,
    slept: i64,
    /// How far ahead of the time the wall clock is that is not believed yet, and since when.
    elsewhere: Option<(i64, i64)>,
}

impl Course {
    /// Looks at the wall clock. Returns by how much the time goes back, if it does.
    fn look(&mut self, [wall, monotonic, slept]: [i64; 3], is_wrong: bool) -> Option<i64> {
        let passed = (monotonic - std::mem::replace(&mut self.looked_at, monotonic)).max(0);
        let slept = slept - std::mem::replace(&mut self.slept, slept);
        let by = wall - monotonic - self.ahead;
        if by.abs() <= NEAR {
            // By half of what has passed at most, the time goes slower.
            self.ahead += by.max(-passed / 2);
            self.elsewhere = None;
        } else if slept > NEAR && (by - slept).abs() <= 2 * NEAR {
            self.ahead += by;
            self.elsewhere = None;
        } else {
            let (before, since) =
                self.elsewhere.filter(|(before, _)| (by - before).abs() <= NEAR).unwrap_or((by, monotonic));
            self.elsewhere = Some((before, since));
            if monotonic - since >= BELIEVED_AFTER && !is_wrong {
                self.ahead += by;
                self.elsewhere = None;
                say_set(by);
                return (by < 0).then_some(-by);
            }
        }
        None
    }
}

impl SystemClock {
    /// Creates a clock that reads the time from these sources, for tests.
    #[must_use]
    pub fn reading(sources: TimeSources) -> Self {
        let (wall, monotonic, slept) =
            ((sources.wall)().as_millis(), signed_millis((sources.monotonic)()), signed_millis((sources.slept)()));
        let ahead = wall - monotonic;
        let course = Course { ahead, looked_at: monotonic, slept, elsewhere: None };
        Self {
            sources,
            course: Mutex::new(course),
            ahead: AtomicI64::new(ahead),
            next_look: AtomicI64::new(monotonic + LOOK_EVERY),
            highest: AtomicI64::new(i64::MIN),
            latest: AtomicI64::new(wall),
            is_wrong: AtomicBool::new(false),
        }
    }

    fn look(&self) {
        // Another thread looks.
        let Some(mut course) = self.course.try_lock() else { return };
        // A thread that is held up between the two readings takes the wall clock to be behind, never to be ahead.
        let wall = (self.sources.wall)().as_millis();
        let monotonic = signed_millis((self.sources.monotonic)());
        // Another thread has looked since this one has seen that it is time.
        if monotonic < self.next_look.load(Ordering::Relaxed) {
            return;
        }
        let slept = signed_millis((self.sources.slept)());
        let back = course.look([wall, monotonic, slept], self.is_wrong.load(Ordering::Relaxed));
        if let Some(by) = back {
            self.highest.fetch_max(monotonic + course.ahead + by, Ordering::Relaxed);
        }
        self.ahead.store(course.ahead, Ordering::Relaxed);
        self.next_look.store(monotonic + LOOK_EVERY, Ordering::Relaxed);
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        let began = Instant::now();
        Self::reading(TimeSources {
            wall: Box::new(|| Timestamp::from_millis(Utc::now().timestamp_millis())),
            monotonic: Box::new(move || began.elapsed()),
            slept: Box::new(slept),
        })
    }
}

impl fmt::Debug for SystemClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemClock").field("course", &self.course).finish_non_exhaustive()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let monotonic = signed_millis((self.sources.monotonic)());
        if monotonic >= self.next_look.load(Ordering::Relaxed) {
            self.look();
        }
        let now = monotonic + self.ahead.load(Ordering::Relaxed);
        let latest = self.latest.fetch_max(now, Ordering::Relaxed);
        if latest - now > NEAR {
            // It is from before the time went back. Another thread that was held up may write such a one again.
            self.latest.store(now, Ordering::Relaxed);
            return Timestamp::from_millis(now);
        }
        Timestamp::from_millis(now.max(latest))
    }

    fn wall(&self) -> Timestamp {
        (self.sources.wall)()
    }

    fn distrust(&self, is_wrong: bool) {
        self.is_wrong.store(is_wrong, Ordering::Relaxed);
    }

    fn went_back_from(&self) -> Timestamp {
        Timestamp::from_millis(self.highest.load(Ordering::Relaxed))
    }

    fn set_back_by(&self) -> Duration {
        self.went_back_from().since(self.now())
    }
}

/// Says that the time follows a clock that was set by so many milliseconds.
fn say_set(by: i64) {
    let (seconds, direction) = (by.unsigned_abs() / 1_000, if by > 0 { "forward" } else { "back" });
    metrics::counter!("leasehold_clock_steps_total", "direction" => direction).increment(1);
    tracing::warn!(seconds, "the machine's clock was set {direction}, and time goes on from there");
}

/// Returns for how long the machine has slept since it was started.
#[cfg(target_os = "linux")]
fn slept() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    let read = |clock| clock_gettime(clock).map(Duration::from);
    // The monotonic clock is read last, so that what passes between the two is no sleep.
    match (read(ClockId::CLOCK_BOOTTIME), read(ClockId::CLOCK_MONOTONIC)) {
        (Ok(since_boot), Ok(awake)) => since_boot.saturating_sub(awake),
        _ => Duration::ZERO,
    }
}

#[cfg(not(target_os = "linux"))]
fn slept() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests;
