//! The tokens of a rate: how many jobs of a limit may begin, filled up with time.
//!
//! What is in the bucket is written with the slots, by whoever takes tokens out. Time fills it up to the burst. Nobody
//! trusts another's clock for that: a manager counts the time that has passed, by its own monotonic clock, since it has
//! read or written this version of the document. Each version is written by one manager, on the version before; so the
//! times that are counted lie one after the other, and no moment is counted twice. What is not counted, such as the
//! time of a read, makes the rate a little smaller and never larger. Only after a long silence, when nobody has the
//! document in memory, wall-clock time is taken, less than clocks may differ by ([`APART`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::Timestamp;

/// The parts of a token in which it is counted.
const WHOLE: u64 = 1_000_000;

/// How much wall clocks may differ by, that a bucket was written and is read by, with a margin.
const APART: Duration = Duration::from_secs(30);

/// How many jobs begin in a time, and how many more at once after a rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rate {
    /// How many jobs begin in `per_ms`, from 1 to 1,000,000.
    pub count: u32,
    /// The time in milliseconds, from a second to a day.
    pub per_ms: u64,
    /// How many jobs begin at once when none has for a while, from 1 to 1,000,000.
    pub burst: u32,
}

impl Rate {
    /// The most jobs in a time, and at once.
    pub const MOST: u32 = 1_000_000;
    /// The shortest and the longest time, in milliseconds.
    pub const PER_MS: std::ops::RangeInclusive<u64> = 1_000..=86_400_000;

    fn full(self) -> u64 {
        u64::from(self.burst) * WHOLE
    }

    /// Returns how much is filled in within a time.
    fn filled_in(self, elapsed: Duration) -> u64 {
        let parts =
            u128::from(self.count) * u128::from(WHOLE) * elapsed.as_micros() / (u128::from(self.per_ms) * 1_000);
        u64::try_from(parts).unwrap_or(u64::MAX)
    }
}

/// The tokens of a rate, as they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bucket {
    /// How many there were, in millionths, when they were written.
    tokens: u64,
    /// When that was, by the writer's clock.
    at: Timestamp,
}

/// How long ago a bucket was written or read, as far as is certain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Age {
    /// The time that has passed here since this manager has read or written it.
    pub(super) seen: Duration,
}

impl Bucket {
    /// Returns a bucket as it is at `now`; a full one where there is none yet.
    pub(super) fn filled(bucket: Option<Self>, rate: Rate, age: Age, now: Timestamp) -> Self {
        let Some(Self { tokens, at }) = bucket else { return Self { tokens: rate.full(), at: now } };
        let silence = now.since(at).saturating_sub(APART);
        let filled = tokens.saturating_add(rate.filled_in(age.seen.max(silence)));
        Self { tokens: filled.min(rate.full()), at: now }
    }

    /// Returns how many jobs may begin.
    pub(super) fn whole(self) -> usize {
        usize::try_from(self.tokens / WHOLE).unwrap_or(usize::MAX)
    }

    /// Returns the time that has to pass until there is one more token.
    pub(super) fn next_token(self, rate: Rate) -> Duration {
        let missing = WHOLE - self.tokens % WHOLE;
        let micros = u128::from(missing) * u128::from(rate.per_ms) * 1_000;
        let micros = micros.div_ceil(u128::from(rate.count.max(1)) * u128::from(WHOLE));
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Takes a token out.
    pub(super) fn take(&mut self) {
        self.tokens = self.tokens.saturating_sub(WHOLE);
    }

    /// Returns whether nothing is missing, so that no bucket says the same.
    pub(super) fn is_full(self, rate: Rate) -> bool {
        self.tokens >= rate.full()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: Rate = Rate { count: 10, per_ms: 1_000, burst: 3 };

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(1_900_000_000_000 + millis)
    }

    fn seen(millis: u64) -> Age {
        Age { seen: Duration::from_millis(millis) }
    }

    #[test]
    fn a_bucket_is_full_at_first_and_fills_with_the_time_that_is_certain() {
        let mut bucket = Bucket::filled(None, RATE, seen(0), at(0));
        assert_eq!((bucket.whole(), bucket.is_full(RATE)), (3, true));
        (0..3).for_each(|_| bucket.take());
        assert_eq!(bucket.whole(), 0);
        assert_eq!(Bucket::filled(Some(bucket), RATE, seen(99), at(99)).whole(), 0);
        assert_eq!(Bucket::filled(Some(bucket), RATE, seen(100), at(100)).whole(), 1);
        assert_eq!(Bucket::filled(Some(bucket), RATE, seen(9_000), at(100)).whole(), 3);
        assert_eq!(
            Bucket::filled(Some(bucket), RATE, seen(0), at(29_000)).whole(),
            0,
            "another's clock is not trusted"
        );
        assert_eq!(Bucket::filled(Some(bucket), RATE, seen(0), at(30_100)).whole(), 1);
        assert_eq!(Bucket::filled(Some(bucket), RATE, seen(0), at(-9_000)).whole(), 0, "a clock that went back");
    }

    #[test]
    fn a_rate_of_one_a_day_is_counted_to_the_second() {
        let daily = Rate { count: 1, per_ms: 86_400_000, burst: 1 };
        let mut bucket = Bucket::filled(None, daily, seen(0), at(0));
        bucket.take();
        let later = |millis| Bucket::filled(Some(bucket), daily, seen(millis), at(0)).whole();
        assert_eq!((later(86_399_000), later(86_400_000)), (0, 1));
    }

    proptest! {
        /// A timer that waits for the next token comes neither before it nor much later.
        #[test]
        fn the_next_token_is_there_when_it_is_said_to_be(
            count in 1_u32..2_000, per_ms in 1_000_u64..100_000, burst in 1_u32..50, elapsed in 0_u64..5_000_000,
        ) {
            let rate = Rate { count, per_ms, burst };
            let mut bucket = Bucket::filled(None, rate, seen(0), at(0));
            (0..burst).for_each(|_| bucket.take());
            let later = |bucket, micros| {
                Bucket::filled(Some(bucket), rate, Age { seen: Duration::from_micros(micros) }, at(0))
            };
            let bucket = later(bucket, elapsed);
            let wait = u64::try_from(bucket.next_token(rate).as_micros()).expect("short");
            prop_assume!(bucket.whole() < burst as usize);
            prop_assert_eq!(later(bucket, wait).whole(), bucket.whole() + 1);
            prop_assert_eq!(later(bucket, wait - 1).whole(), bucket.whole());
        }

        /// Managers take turns: each has seen the version for some of the time since it was written.
        #[test]
        fn no_more_begin_than_the_burst_and_the_rate_let(
            steps in prop::collection::vec((0_u64..400, 0_u64..400, 0_u32..6), 1..100),
            count in 1_u32..50,
            burst in 1_u32..20,
        ) {
            let rate = Rate { count, per_ms: 1_000, burst };
            let (mut bucket, mut time) = (None, 0);
            let mut starts: Vec<u64> = Vec::new();
            for (elapsed, unseen, wanted) in steps {
                time += elapsed;
                let age = seen(elapsed.saturating_sub(unseen));
                let mut filled = Bucket::filled(bucket, rate, age, at(i64::try_from(time).expect("small")));
                for _ in 0..wanted {
                    if filled.whole() > 0 {
                        filled.take();
                        starts.push(time);
                    }
                }
                bucket = Some(filled);
            }
            for (first, from) in starts.iter().enumerate() {
                for (last, to) in starts.iter().enumerate().skip(first) {
                    let most = u64::from(burst) + u64::from(count) * (to - from) / 1_000;
                    prop_assert!((last - first + 1) as u64 <= most + 1, "{} in {} ms", last - first + 1, to - from);
                }
            }
        }
    }
}
