//! Statistics about jobs, in one pass over those that match. Memory is bounded: by the rows, and by how much the values
//! of all rows together take; of more than a few, a row keeps a histogram with three digits instead of each.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::budget::Budget;
use super::engine::Engine;
use super::scan;
use crate::clock::{Timestamp, millis};
use crate::job::Job;
use crate::query::stats::{Durations, Figures, MAX_ROWS, Percent, Stats, StatsRequest, StatsRow};
use crate::store::StoreError;

/// The most values that a row keeps one by one before it makes a histogram of them.
const KEPT: usize = 512;
/// The most memory that the values of all rows may take, in bytes.
const MAX_BYTES: usize = 256 << 20;
/// The number of significant digits of a duration in a histogram.
const DIGITS: u8 = 3;

/// Computes the statistics; `None` when there are too many rows.
pub(super) fn stats(engine: &Engine, request: &StatsRequest, budget: Budget) -> Result<Option<Stats>, StoreError> {
    let mut tallies = Tallies::of(request);
    scan::visit(engine, &request.filter, budget, |head| {
        tallies.add(&head.job);
        if tallies.is_too_much() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if tallies.is_too_much() {
        return Ok(None);
    }
    Ok(Some(tallies.into_stats()))
}

/// A row's interval and group.
type Key = (Option<Timestamp>, Vec<Option<String>>);

struct Tallies<'r> {
    request: &'r StatsRequest,
    total: Tally,
    rows: HashMap<Key, Tally>,
    /// The memory that the values of all rows take, in bytes.
    bytes: usize,
}

impl<'r> Tallies<'r> {
    fn of(request: &'r StatsRequest) -> Self {
        Self { request, total: Tally::of(request), rows: HashMap::new(), bytes: 0 }
    }

    fn add(&mut self, job: &Job) {
        let at = self.request.over.map(|over| over.row(job));
        // A job without the time that rows go by is left out.
        if at == Some(None) {
            return;
        }
        self.bytes += self.total.add(job, self.request);
        if self.request.has_rows() {
            let values = self.request.by.iter().map(|by| by.value(job)).collect();
            let row = self.rows.entry((at.flatten(), values)).or_insert_with(|| Tally::of(self.request));
            self.bytes += row.add(job, self.request);
        }
    }

    fn is_too_much(&self) -> bool {
        self.rows.len() > MAX_ROWS || self.bytes > MAX_BYTES
    }

    fn into_stats(self) -> Stats {
        let percentiles = self.request.percentiles.as_deref();
        let row = |((at, values), tally): (Key, Tally)| StatsRow { at, values, figures: tally.figures(percentiles) };
        let mut rows: Vec<StatsRow> = self.rows.into_iter().map(row).collect();
        rows.sort_unstable_by(StatsRow::in_order);
        Stats { total: self.total.figures(percentiles), rows }
    }
}

/// The values of the jobs of a row.
struct Tally {
    count: u64,
    wait: Values,
    run_time: Values,
    sums: Box<[u128]>,
}

impl Tally {
    fn of(request: &StatsRequest) -> Self {
        let sums = vec![0; request.sums.len()].into();
        Self { count: 0, wait: Values::default(), run_time: Values::default(), sums }
    }

    /// Adds a job. Returns the additional bytes that this takes.
    fn add(&mut self, job: &Job, request: &StatsRequest) -> usize {
        self.count += 1;
        for (sum, of) in self.sums.iter_mut().zip(&request.sums) {
            *sum += u128::from(of.amount(job));
        }
        if request.percentiles.is_none() {
            return 0;
        }
        let wait = job.wait().map_or(0, |wait| self.wait.add(wait));
        wait + job.run_time().map_or(0, |took| self.run_time.add(took))
    }

    fn figures(self, percentiles: Option<&[Percent]>) -> Figures {
        let durations = |values: Values| percentiles.map(|wanted| values.durations(wanted)).unwrap_or_default();
        let sums = self.sums.iter().map(|sum| *sum as f64).collect();
        Figures { count: self.count, wait: durations(self.wait), run_time: durations(self.run_time), sums }
    }
}

/// Durations in milliseconds.
#[derive(Default)]
struct Values {
    count: u64,
    sum: u128,
    max: u64,
    kept: Kept,
}

enum Kept {
    Few(Vec<u64>),
    Many(Box<Histogram<u32>>),
}

impl Default for Kept {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Values {
    /// Adds a duration. Returns the additional bytes that this takes.
    fn add(&mut self, duration: Duration) -> usize {
        let millis = millis(duration);
        self.count += 1;
        self.sum += u128::from(millis);
        self.max = self.max.max(millis);
        let before = self.kept.bytes();
        self.kept.add(millis);
        self.kept.bytes().saturating_sub(before)
    }

    fn durations(self, wanted: &[Percent]) -> Durations {
        if self.count == 0 {
            return Durations { percentiles: vec![None; wanted.len()], ..Durations::default() };
        }
        let percentiles = self.kept.percentiles(wanted);
        Durations {
            count: self.count,
            mean: Some(self.sum as f64 / self.count as f64),
            max: Some(self.max as f64),
            percentiles: percentiles.into_iter().map(Some).collect(),
        }
    }
}

impl Kept {
    fn add(&mut self, millis: u64) {
        if let Self::Few(values) = self
            && values.len() == KEPT
            && let Ok(mut histogram) = Histogram::new(DIGITS)
        {
            values.iter().for_each(|value| record(&mut histogram, *value));
            *self = Self::Many(Box::new(histogram));
        }
        match self {
            Self::Few(values) => values.push(millis),
            Self::Many(histogram) => record(histogram, millis),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Few(values) => values.capacity() * size_of::<u64>(),
            Self::Many(histogram) => histogram.distinct_values() * size_of::<u32>(),
        }
    }

    /// Returns for each percentage the least value that at least so many percent of the values do not exceed.
    fn percentiles(self, wanted: &[Percent]) -> Vec<f64> {
        match self {
            Self::Few(mut values) => {
                values.sort_unstable();
                let rank =
                    |percent: &Percent| (percent.get() / 100.0 * values.len() as f64).ceil().max(1.0) as usize - 1;
                wanted.iter().map(|percent| values.get(rank(percent)).map_or(0.0, |value| *value as f64)).collect()
            }
            Self::Many(histogram) => {
                let value =
                    |percent: &Percent| histogram.value_at_percentile(percent.get()).min(histogram.max()) as f64;
                wanted.iter().map(value).collect()
            }
        }
    }
}

/// The histogram grows with what it is given; what is beyond all it could hold counts as its largest.
fn record(histogram: &mut Histogram<u32>, millis: u64) {
    if histogram.record(millis).is_err() {
        histogram.saturating_record(millis);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(millis: impl IntoIterator<Item = u64>) -> (Values, usize) {
        let mut values = Values::default();
        let bytes = millis.into_iter().map(|millis| values.add(Duration::from_millis(millis))).sum();
        (values, bytes)
    }

    #[test]
    fn few_values_are_given_as_they_are() {
        let durations = values([40, 10, 30, 20]).0.durations(&Percent::usual());
        assert_eq!((durations.count, durations.mean, durations.max), (4, Some(25.0), Some(40.0)));
        assert_eq!(durations.percentiles, [Some(20.0), Some(40.0), Some(40.0)]);
        let none = Values::default().durations(&Percent::usual());
        assert_eq!((none.mean, none.percentiles), (None, vec![None; 3]));
    }

    #[test]
    fn many_values_take_bounded_room_and_are_given_to_three_digits() {
        let (values, bytes) = values((1..=100_000_u64).map(|number| number * 1_000));
        assert!(bytes < 256 << 10, "{bytes}");
        let durations = values.durations(&Percent::usual());
        for (rounded, exact) in durations.percentiles.iter().zip([5e7, 9.5e7, 9.9e7]) {
            let rounded = rounded.expect("a value");
            assert!((rounded - exact).abs() <= exact / 500.0, "{rounded} for {exact}");
        }
        assert_eq!(durations.max, Some(1e8));
    }

    #[test]
    fn a_duration_beyond_all_bounds_is_taken_as_well() {
        let (values, _) = values((0..1_000).map(|number| if number == 600 { u64::MAX } else { number }));
        assert_eq!(values.durations(&[]).count, 1_000);
    }
}
