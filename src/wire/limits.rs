//! The settings of a limit.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{Checks, Invalid};
use crate::job::{MAX_CONCURRENT, Priority};
use crate::manager::{NewLimit, Rate, Urgent};

/// A limit that is to be set, in the place of what was set before. At least one field is given.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"max_concurrent": 7}))]
pub struct SetLimit {
    /// The most jobs that run at once, from 1 to 1,000.
    #[schema(minimum = 1, maximum = 1_000)]
    pub max_concurrent: Option<u64>,
    /// Places of these that are kept free for urgent jobs.
    pub urgent: Option<SetUrgent>,
    /// How many jobs begin in a time, at the most.
    pub rate: Option<SetRate>,
    /// The time before which no job begins, such as the one that a receiver names which asks to be left alone.
    #[schema(format = "date-time", example = "2030-01-31T08:00:00Z")]
    pub paused_until: Option<String>,
}

/// Places that are kept free for urgent jobs: the others have so many fewer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"places": 2, "min_priority": 50}))]
pub struct SetUrgent {
    /// The places that are kept free; at least 1, and fewer than `max_concurrent`.
    #[schema(minimum = 1, maximum = 999)]
    pub places: u64,
    /// The least priority of an urgent job, from -99 to 100.
    #[schema(minimum = -99, maximum = 100)]
    pub min_priority: i64,
}

/// A rate: in any time, at most `burst` jobs begin and `count` more for each `per_ms`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"count": 100, "per_ms": 60_000, "burst": 10}))]
pub struct SetRate {
    /// How many jobs begin in `per_ms`, from 1 to 1,000,000.
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub count: u64,
    /// The time in milliseconds, from a second to a day.
    #[schema(minimum = 1_000, maximum = 86_400_000)]
    pub per_ms: u64,
    /// How many jobs begin at once when none has for a while, from 1 to 1,000,000. As many as `count` by default.
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub burst: Option<u64>,
}

impl SetLimit {
    /// Checks the limit, and returns it in the types of the domain.
    ///
    /// # Errors
    /// Every field that is wrong, by name.
    pub fn into_new_limit(self) -> Result<NewLimit, Invalid> {
        let mut checks = Checks::default();
        if self == Self::default() {
            checks.fault("max_concurrent", "or `rate` or `paused_until` must be given");
        }
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let max_concurrent = self
            .max_concurrent
            .map(|most| narrow(checks.within("max_concurrent", most, 1..=u64::from(MAX_CONCURRENT))));
        let urgent = self.urgent.and_then(|urgent| checks.urgent(urgent, self.max_concurrent));
        let rate = self.rate.map(|SetRate { count, per_ms, burst }| Rate {
            count: narrow(checks.within("rate.count", count, 1..=u64::from(Rate::MOST))),
            per_ms: checks.within("rate.per_ms", per_ms, Rate::PER_MS),
            burst: narrow(checks.within("rate.burst", burst.unwrap_or(count), 1..=u64::from(Rate::MOST))),
        });
        let paused_until = checks.time("paused_until", self.paused_until.as_deref());
        checks.finish(Some(NewLimit { max_concurrent, urgent, rate, paused_until }))
    }
}

impl Checks {
    /// Checks the places that are to be kept free for urgent jobs.
    fn urgent(&mut self, SetUrgent { places, min_priority }: SetUrgent, most: Option<u64>) -> Option<Urgent> {
        let least = self.within("urgent.min_priority", min_priority, Urgent::MIN_PRIORITY);
        if places == 0 {
            self.fault("urgent.places", "must be at least 1");
        }
        match most {
            None => self.fault("urgent", "needs `max_concurrent`: it is a part of these places"),
            Some(most) if places >= most => {
                self.fault("urgent.places", format!("must be fewer than `max_concurrent`, which is {most}"));
            }
            Some(_) => {}
        }
        Some(Urgent { places: u32::try_from(places).unwrap_or(u32::MAX), min_priority: Priority::new(least)? })
    }
}
