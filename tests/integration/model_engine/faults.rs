//! What befalls the calls of one process, as its seed has it.

use std::time::Duration;

use leasehold::store::StoreError;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How often something befalls a call: each is once in so many calls, or never if it is 0.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Odds {
    /// The call is refused, and does nothing.
    pub(crate) refused: u32,
    /// Somebody else writes a document first.
    pub(crate) overtaken: u32,
    /// The outcome of a write is not told. The write was made, was not made, or is made later.
    pub(crate) untold: u32,
    /// A way to the store or back takes long.
    pub(crate) slow: u32,
    /// A write of a call is made later than the others: those of one call may go to several places.
    pub(crate) apart: u32,
    /// The longest that a way takes that takes long, or that a write is made after others of its call.
    pub(crate) longest: Duration,
}

impl Odds {
    /// Enough of everything for a few faults in each job's life.
    pub(crate) const OFTEN: Self =
        Self { refused: 40, overtaken: 40, untold: 30, slow: 20, apart: 20, longest: Duration::from_millis(1_500) };
}

/// What becomes of a write, or of some in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Telling {
    /// The caller hears of the outcome.
    Told,
    /// It does not, and the write is made.
    Made,
    /// It does not, and the write is not made.
    Lost,
    /// It does not, and the write is made only after the caller was told so.
    MadeLater,
}

/// The course of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course {
    pub(super) there: Duration,
    pub(super) back: Duration,
    pub(super) refusal: Option<u32>,
    pub(super) telling: Telling,
    /// How long after its answer a write is made that is made later.
    pub(super) late: Duration,
}

/// What becomes of one write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    pub(super) telling: Telling,
    /// Whether somebody else writes the document just before.
    pub(super) is_overtaken: bool,
    /// How much later than others of its call it is made.
    pub(super) apart: Duration,
}

/// The usual time of a way to the store, or back, in microseconds.
const WAY: std::ops::RangeInclusive<u64> = 300..=3_000;

/// Makes up what befalls the calls of one process.
pub(super) struct Faults {
    odds: Odds,
    rng: StdRng,
}

impl Faults {
    pub(super) fn new(odds: Odds, seed: u64) -> Self {
        Self { odds, rng: StdRng::seed_from_u64(seed) }
    }

    /// Returns what befalls the next call.
    pub(super) fn next(&mut self) -> Course {
        let (there, back) = (self.way(), self.way());
        let refusal = self.comes(self.odds.refused).then(|| self.rng.random_range(0..2));
        let tellings = [Telling::Made, Telling::Made, Telling::Lost, Telling::MadeLater];
        let telling = match self.comes(self.odds.untold) {
            true => tellings[self.rng.random_range(0..tellings.len())],
            false => Telling::Told,
        };
        Course { there, back, refusal, telling, late: self.delay() }
    }

    /// Returns what becomes of one of the writes of a call: what befalls the call befalls a part of them.
    pub(super) fn fate_in(&mut self, course: Course) -> Fate {
        let is_befallen = course.telling != Telling::Told && self.rng.random_ratio(3, 4);
        let telling = if is_befallen { course.telling } else { Telling::Told };
        let is_overtaken = self.comes(self.odds.overtaken);
        let apart = if self.comes(self.odds.apart) { self.delay() } else { Duration::ZERO };
        Fate { telling, is_overtaken, apart }
    }

    fn way(&mut self) -> Duration {
        let usual = Duration::from_micros(self.rng.random_range(WAY));
        if self.comes(self.odds.slow) { usual + self.delay() } else { usual }
    }

    fn delay(&mut self) -> Duration {
        Duration::from_millis(self.rng.random_range(0..=self.odds.longest.as_millis() as u64))
    }

    fn comes(&mut self, one_in: u32) -> bool {
        one_in > 0 && self.rng.random_ratio(1, one_in)
    }
}

/// Returns a refusal, of which there are two kinds.
pub(super) fn refusal(kind: u32) -> StoreError {
    match kind {
        0 => StoreError::Unavailable("the seed has it so".to_owned()),
        _ => StoreError::Overloaded { retry_after: Duration::from_millis(50) },
    }
}
