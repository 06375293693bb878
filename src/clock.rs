//! Time: a millisecond timestamp, and the clock that services get.
//!
//! Nothing below the services reads a clock. Transitions and the store's state machine get `now` as an argument, so
//! that tests choose it and a replay gives the same answer. [`ticks`] tell services when to look.

mod awake;
mod compared;
mod continued;
mod members;
mod system;
pub mod ticks;
mod words;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Datelike, Timelike, Utc};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

pub use awake::{AwakeClock, AwakeInstant, AwakeTime, LONGEST_STEP, Mark, TICK};
pub use compared::{ComparedClock, Reading};
pub use continued::ContinuedClock;
pub use members::{Ahead, ClocksSeen, MEMBERS_DIFFER, MemberClock, MemberClocks, OffClock};
pub use system::{SystemClock, TimeSources};
pub use words::{in_words, relative};

/// How far a time is ahead of a clock that can only have been written by a clock that was wrong.
pub const FAR_AHEAD: Duration = Duration::from_secs(60);

/// A point in time, to the millisecond. In JSON it is RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2030-01-31T08:00:00.000Z")]
pub struct Timestamp(i64);

impl Timestamp {
    /// The first millisecond of the year 0001: nothing earlier is written in RFC 3339 with four digits of year.
    pub const MIN: Self = Self(-62_135_596_800_000);
    /// The last millisecond of the year 9999, the last that RFC 3339 can write with four digits of year.
    pub const MAX: Self = Self(253_402_300_799_999);

    /// Makes a timestamp from milliseconds since the epoch, limited to [`Timestamp::MIN`] and [`Timestamp::MAX`].
    #[must_use]
    pub fn from_millis(millis: i64) -> Self {
        Self(millis.clamp(Self::MIN.0, Self::MAX.0))
    }

    /// Returns the milliseconds since the epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Adds `duration`, up to [`Timestamp::MAX`].
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self::from_millis(self.0.saturating_add(signed_millis(duration)))
    }

    /// Subtracts `duration`, down to [`Timestamp::MIN`].
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self::from_millis(self.0.saturating_sub(signed_millis(duration)))
    }

    /// Returns the time since `earlier`; zero when this is not later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Parses RFC 3339; finer parts than a millisecond are cut off.
    ///
    /// # Errors
    /// Returns a description of the mistake if `text` is not an RFC 3339 time between the years 0001 and 9999.
    pub fn parse_rfc3339(text: &str) -> Result<Self, String> {
        let time = DateTime::parse_from_rfc3339(text)
            .map_err(|error| format!("not an RFC 3339 time ({error}), such as 2030-01-31T08:00:00Z"))?;
        let millis = time.timestamp_millis();
        if (Self::MIN.0..=Self::MAX.0).contains(&millis) {
            Ok(Self(millis))
        } else {
            Err("outside the years 0001 to 9999".to_owned())
        }
    }

    /// Formats the time as RFC 3339 in UTC with milliseconds, as the API and the job index write times.
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        text(&self.digits()).to_owned()
    }

    /// Returns the characters of [`Timestamp::to_rfc3339`]. A job has some twenty times, each written several times in
    /// its life, so this does without a formatter.
    fn digits(self) -> [u8; 24] {
        // Without the time zone, which each field would be asked of.
        let time = DateTime::<Utc>::from_timestamp_millis(self.0).unwrap_or_default().naive_utc();
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let mut put = |places: Range<usize>, mut number: u32| {
            for place in places.rev() {
                text[place] += (number % 10) as u8;
                number /= 10;
            }
        };
        put(0..4, time.year_ce().1);
        put(5..7, time.month());
        put(8..10, time.day());
        put(11..13, time.hour());
        put(14..16, time.minute());
        put(17..19, time.second());
        put(20..23, time.nanosecond() / 1_000_000);
        text
    }
}

/// Returns the characters of a time, which are all ASCII, as text.
fn text(digits: &[u8; 24]) -> &str {
    std::str::from_utf8(digits).unwrap_or_default()
}

/// Returns a duration in whole milliseconds, at most `u64::MAX`.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a duration in whole milliseconds, at most `i64::MAX`.
fn signed_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(text(&self.digits()))
    }
}

impl Serialize for Timestamp {
    /// Writes RFC 3339 in human-readable formats, and a number of milliseconds in others.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.serialize_str(text(&self.digits())),
            false => serializer.serialize_i64(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return i64::deserialize(deserializer).map(Self);
        }
        let text = Cow::<str>::deserialize(deserializer)?;
        Self::parse_rfc3339(&text).map_err(D::Error::custom)
    }
}

/// How far a clock may be from the store's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// How far it may be behind.
    pub behind: Duration,
    /// How far it may be ahead.
    pub ahead: Duration,
    /// Whether it is certainly further off than the clocks of two machines may differ.
    pub is_off: bool,
    /// Whether it is certainly so far off ([`FAR_AHEAD`]) that nothing may be done by it that cannot be undone.
    pub is_far_off: bool,
}

impl Offset {
    /// The offset of a clock that is certainly far off, by nobody knows how much.
    pub const FAR: Self = Self { is_off: true, is_far_off: true, ..Self::within(Duration::ZERO) };

    /// Returns the offset of a clock of which nothing is known but that it is allowed.
    #[must_use]
    pub const fn within(allowed: Duration) -> Self {
        Self { behind: allowed, ahead: allowed, is_off: false, is_far_off: false }
    }
}

/// A source of the current time for services.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;

    /// Returns the clock by which this one goes, which answers what this one does not answer itself: how far off the
    /// time is, and how it was set.
    fn goes_by(&self) -> Option<&dyn Clock> {
        None
    }

    /// Returns the time by the wall clock of the machine, also where this clock does not follow that.
    fn wall(&self) -> Timestamp {
        self.now()
    }

    /// Takes note of whether the wall clock of the machine is certainly wrong: then it is not followed.
    fn distrust(&self, _is_wrong: bool) {}

    /// Returns how far this clock may be from the store's; `None` when nobody compares the two.
    fn offset(&self) -> Option<Offset> {
        self.goes_by()?.offset()
    }

    /// Returns by how much the machine's clock was set back, while this one waits for it.
    fn set_back_by(&self) -> Duration {
        self.goes_by().map_or(Duration::ZERO, |clock| clock.set_back_by())
    }

    /// Returns by how much this clock is ahead of the machine's, since it goes on from later times that others have
    /// written; it goes at half the speed of the machine's until that has caught up.
    fn ahead_of_machine(&self) -> Duration {
        self.goes_by().map_or(Duration::ZERO, |clock| clock.ahead_of_machine())
    }

    /// Returns by how much this clock is behind the latest time that was written by a clock that was wrong then.
    fn behind_written(&self) -> Duration {
        self.goes_by().map_or(Duration::ZERO, |clock| clock.behind_written())
    }

    /// Returns the latest time that this clock has shown before it went back; [`Timestamp::MIN`] if it never did.
    fn went_back_from(&self) -> Timestamp {
        self.goes_by().map_or(Timestamp::MIN, |clock| clock.went_back_from())
    }

    /// Returns what is certainly wrong between this clock and those of other members of a group; `None` when nobody
    /// compares them.
    fn disagreement(&self) -> Option<String> {
        self.goes_by()?.disagreement()
    }

    /// Returns how much awake time has passed at which times by this clock: all of it, where nobody counts it.
    fn awake(&self) -> AwakeTime {
        AwakeTime::whole(self.now())
    }
}

/// A clock that moves only when a test advances it.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicI64,
    went_back_from: AtomicI64,
    is_far_off: AtomicBool,
}

impl ManualClock {
    /// Makes a clock that shows `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        let (now, went_back_from) = (AtomicI64::new(now.as_millis()), AtomicI64::new(i64::MIN));
        Self { now, went_back_from, is_far_off: AtomicBool::new(false) }
    }

    /// Advances the clock by the duration `by`.
    pub fn advance(&self, by: Duration) {
        self.now.fetch_add(signed_millis(by), Ordering::SeqCst);
    }

    /// Lets it be known that the clock is far off, or that it is not.
    pub fn be_far_off(&self, is_far_off: bool) {
        self.is_far_off.store(is_far_off, Ordering::SeqCst);
    }

    /// Sets the clock back by the duration `by`.
    pub fn turn_back(&self, by: Duration) {
        let before = self.now.fetch_sub(signed_millis(by), Ordering::SeqCst);
        self.went_back_from.fetch_max(before, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now.load(Ordering::SeqCst))
    }

    fn went_back_from(&self) -> Timestamp {
        Timestamp::from_millis(self.went_back_from.load(Ordering::SeqCst))
    }

    fn offset(&self) -> Option<Offset> {
        self.is_far_off.load(Ordering::SeqCst).then_some(Offset::FAR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_chrono_writes_them() {
        let step = (Timestamp::MAX.0 - Timestamp::MIN.0) / 9_973;
        let spread = (0..=9_973).map(|number| Timestamp::from_millis(Timestamp::MIN.0 + number * step));
        for time in spread.chain([-1, 0, 1, 999, 1_709_164_800_000].map(Timestamp::from_millis)).chain([Timestamp::MAX])
        {
            let chrono = DateTime::<Utc>::from_timestamp_millis(time.0).expect("a time");
            let expected = chrono.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
            assert_eq!((time.to_rfc3339(), time.to_string()), (expected.clone(), expected));
        }
    }

    #[test]
    fn a_time_is_a_text_in_json_and_a_number_on_disk() {
        let time = Timestamp::from_millis(1_896_076_800_123);
        let json = serde_json::to_string(&time).expect("JSON");
        assert_eq!(json, "\"2030-01-31T08:00:00.123Z\"");
        assert_eq!(serde_json::from_str::<Timestamp>(&json).expect("a time"), time);
        assert!(serde_json::from_str::<Timestamp>("1896076800123").is_err());
        let bytes = postcard::to_stdvec(&time).expect("bytes");
        assert_eq!(bytes, postcard::to_stdvec(&1_896_076_800_123_i64).expect("bytes"));
        assert_eq!(postcard::from_bytes::<Timestamp>(&bytes).expect("a time"), time);
    }
}
