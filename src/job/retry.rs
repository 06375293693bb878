//! The wait before the next attempt of a job.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How long a job waits before its next attempt: `base_ms × factor^(attempt − 1)`, at most `max_ms`, of which the share
/// `jitter` is left to chance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RetryPolicy {
    /// The wait after the first attempt, in milliseconds.
    #[serde(rename = "base_ms", with = "millis")]
    #[schema(value_type = u64, example = 1000)]
    pub base: Duration,
    /// The factor by which each further wait is longer; at least 1.
    #[schema(example = 2.0)]
    pub factor: f64,
    /// The longest wait, in milliseconds.
    #[serde(rename = "max_ms", with = "millis")]
    #[schema(value_type = u64, example = 600_000)]
    pub max: Duration,
    /// The share of the wait, from 0 to 1, that is left to chance, so that jobs that failed together do not come
    /// back together.
    #[schema(example = 0.2)]
    pub jitter: f64,
}

/// Serializes a duration as whole milliseconds in human-readable formats, and in serde's own form in others.
pub(super) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return duration.serialize(serializer);
        }
        serializer.serialize_u64(crate::clock::millis(*duration))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        if !deserializer.is_human_readable() {
            return Duration::deserialize(deserializer);
        }
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { base: Duration::from_secs(1), factor: 2.0, max: Duration::from_secs(600), jitter: 0.2 }
    }
}

impl RetryPolicy {
    /// Returns the wait after attempt number `attempt`, counted from 1. `chance`, from 0 to 1, is the caller's random
    /// number: 1 gives the full wait, 0 the shortest.
    #[must_use]
    pub fn backoff(&self, attempt: u32, chance: f64) -> Duration {
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let full = (self.base.as_secs_f64() * self.factor.powi(exponent)).min(self.max.as_secs_f64());
        let left_to_chance = self.jitter.clamp(0.0, 1.0) * (1.0 - chance.clamp(0.0, 1.0));
        // Rounded to whole milliseconds, the precision of timestamps: a finer wait would not round-trip.
        let millis = (full * (1.0 - left_to_chance) * 1000.0).round();
        Duration::try_from_secs_f64(millis / 1000.0).unwrap_or(self.max).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy =
        RetryPolicy { base: Duration::from_millis(100), factor: 3.0, max: Duration::from_secs(1), jitter: 0.5 };

    #[test]
    fn waits_grow_by_the_factor_up_to_the_longest() {
        let waits: Vec<u128> = (1..=5).map(|attempt| POLICY.backoff(attempt, 1.0).as_millis()).collect();
        assert_eq!(waits, [100, 300, 900, 1000, 1000]);
        assert_eq!(POLICY.backoff(u32::MAX, 1.0), POLICY.max);
    }

    #[test]
    fn chance_shortens_a_wait_by_no_more_than_its_share() {
        assert_eq!(POLICY.backoff(2, 0.0), Duration::from_millis(150));
        assert_eq!(POLICY.backoff(2, 0.5), Duration::from_millis(225));
    }
}
