//! Statistics of jobs: how many there are, how long they waited and how long they ran, in total, by group and over
//! time.

use std::cmp::{Ordering, Reverse};
use std::str::FromStr;

use super::Filter;
use super::fields::{Field, FieldType, FieldValue, LABELS, LONGEST_KEYWORD, RESOURCES, fits, key_in};
use crate::clock::Timestamp;
use crate::job::{Job, is_resource_name};

/// The largest number of rows in an answer.
pub const MAX_ROWS: usize = 10_000;
/// The largest number of fields to group by.
pub const MAX_GROUPINGS: usize = 8;
/// The largest number of percentiles in a request.
pub const MAX_PERCENTILES: usize = 10;
/// The largest number of sums in a request.
pub const MAX_SUMS: usize = 10;
/// The shortest interval, in milliseconds.
const MIN_INTERVAL_MS: i64 = 1_000;
/// The longest interval, in milliseconds: ten years.
const MAX_INTERVAL_MS: i64 = 3_652 * 86_400_000;

/// A field or a label that jobs are grouped by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// Groups jobs by this field.
    Field(&'static Field),
    /// Groups jobs by the label of this name.
    Label(String),
}

impl GroupBy {
    /// Returns the value that names the job's group; `None` for a job without a value.
    #[must_use]
    pub fn value(&self, job: &Job) -> Option<String> {
        match self {
            Self::Field(field) => match field.value(job)? {
                FieldValue::Text(text) => Some(text.to_owned()),
                FieldValue::Integer(number) => Some(number.to_string()),
                FieldValue::Flag(flag) => Some(flag.to_string()),
                FieldValue::Time(_) | FieldValue::Number(_) => None,
            },
            Self::Label(name) => job.spec.labels.get(name).filter(|text| fits(text, LONGEST_KEYWORD)).cloned(),
        }
    }

    /// Returns the name of the field or label, which is the same in the API and in the index.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Field(field) => field.name.to_owned(),
            Self::Label(label) => format!("{LABELS}.{label}"),
        }
    }
}

impl FromStr for GroupBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(label) = key_in(LABELS, text) {
            return Ok(Self::Label(label.to_owned()));
        }
        let groupable = |field: &Field| field.groupable && field.name != LABELS;
        let labels = format!(" and `{LABELS}.` with a label's name");
        Field::find(text, groupable, "be grouped by", &labels).map(Self::Field)
    }
}

/// A fixed length of time, from one second to ten years. Intervals of one length follow each other from the beginning
/// of 1970 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    millis: i64,
}

impl Interval {
    /// Returns the length of the interval in milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.millis
    }

    /// Returns the beginning of the interval that contains `time`.
    #[must_use]
    pub fn start(self, time: Timestamp) -> Timestamp {
        Timestamp::from_millis(time.as_millis().div_euclid(self.millis).saturating_mul(self.millis))
    }
}

impl FromStr for Interval {
    type Err = String;

    /// Reads a number with a unit: `30s`, `5m`, `1h`, `1d`, `1w`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no interval, which is such as 30s, 5m, 1h, 1d or 1w, and at least a second");
        let units = [("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 7 * 86_400_000)];
        let read = |(unit, millis): (&str, i64)| {
            let digits = text.strip_suffix(unit).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
            digits.parse::<i64>().ok()?.checked_mul(millis)
        };
        let millis = units.into_iter().find_map(read).ok_or_else(wrong)?;
        if (MIN_INTERVAL_MS..=MAX_INTERVAL_MS).contains(&millis) { Ok(Self { millis }) } else { Err(wrong()) }
    }
}

/// The division of statistics into rows, one for each interval of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The field with a job's time; a job without a value is left out.
    time: &'static Field,
    /// The length of the interval of each row.
    pub interval: Interval,
}

impl Histogram {
    /// Makes a histogram over the times of the field `time`.
    ///
    /// # Errors
    /// Returns a message that suggests other fields if `time` is not a field with one time for each job.
    pub fn over(time: &str, interval: Interval) -> Result<Self, String> {
        let is_time = |field: &Field| field.kind == FieldType::Date && field.nested_in().is_none();
        Field::find(time, is_time, "give the time of a row", "").map(|time| Self { time, interval })
    }

    /// Returns the name of the field with the time.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.time.name
    }

    /// Returns the beginning of the interval that `job` belongs to; `None` for a job without a time.
    #[must_use]
    pub fn row(&self, job: &Job) -> Option<Timestamp> {
        match self.time.value(job)? {
            FieldValue::Time(time) => Some(self.interval.start(time)),
            _ => None,
        }
    }
}

/// The rank of a percentile: a share of all values, from 0 to 100 percent.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Percent(f64);

impl Percent {
    /// Returns the share in percent.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// Returns the percentiles of a request that names none: 50, 95 and 99.
    #[must_use]
    pub fn usual() -> Vec<Self> {
        [50.0, 95.0, 99.0].map(Self).to_vec()
    }
}

impl FromStr for Percent {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse::<f64>().ok().filter(|number| (0.0..=100.0).contains(number));
        number.map(Self).ok_or_else(|| format!("`{text}` is not a number from 0 to 100"))
    }
}

impl std::fmt::Display for Percent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A resource whose amounts are added up over jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumOf {
    resource: String,
}

impl SumOf {
    /// Returns the amount that `job` needs of the resource; zero for a job that needs none.
    #[must_use]
    pub fn amount(&self, job: &Job) -> u64 {
        job.spec.resources.get(&self.resource).copied().unwrap_or(0)
    }

    /// Returns the name of the field, which is the same in the API and in the index: `resources.gpus`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{RESOURCES}.{}", self.resource)
    }
}

impl FromStr for SumOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let resource = key_in(RESOURCES, text).filter(|resource| is_resource_name(resource));
        let refused = || format!("`{text}` cannot be added up; `{RESOURCES}.` with a resource's name can");
        resource.map(|resource| Self { resource: resource.to_owned() }).ok_or_else(refused)
    }
}

/// A request for statistics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatsRequest {
    /// Selects the jobs that are counted.
    pub filter: Filter,
    /// The fields and labels to group by.
    pub by: Vec<GroupBy>,
    /// The intervals to divide the jobs into, if any.
    pub over: Option<Histogram>,
    /// The percentiles of the durations; when `None`, jobs are only counted.
    pub percentiles: Option<Vec<Percent>>,
    /// The resources whose amounts are added up.
    pub sums: Vec<SumOf>,
}

impl StatsRequest {
    /// Returns whether the answer has rows beside the total.
    #[must_use]
    pub fn has_rows(&self) -> bool {
        !self.by.is_empty() || self.over.is_some()
    }
}

/// Statistics of a duration, over the jobs for which it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Durations {
    /// The number of jobs for which the duration is known.
    pub count: u64,
    /// The mean duration, in milliseconds; `None` without any value.
    pub mean: Option<f64>,
    /// The longest duration, in milliseconds; `None` without any value.
    pub max: Option<f64>,
    /// The requested percentiles, in that order, in milliseconds. They are approximate on every engine: over many
    /// values, the rank can be off by about one in a hundred.
    pub percentiles: Vec<Option<f64>>,
}

/// The statistics of some jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The number of jobs.
    pub count: u64,
    /// How long the jobs waited for their latest attempts after they were due.
    pub wait: Durations,
    /// How long the attempts took that ended the jobs.
    pub run_time: Durations,
    /// The requested sums, in that order. They are exact up to 2^53.
    pub sums: Vec<f64>,
}

/// The statistics of one group in one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct StatsRow {
    /// The beginning of the interval; `None` in a request without intervals.
    pub at: Option<Timestamp>,
    /// The group's values, one for each requested field or label, in the order of the request.
    pub values: Vec<Option<String>>,
    /// The statistics of the row.
    pub figures: Figures,
}

/// The answer to a [`StatsRequest`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// The statistics of all jobs together.
    pub total: Figures,
    /// The rows that have jobs: the earliest interval first, and within it the group with the most jobs first.
    pub rows: Vec<StatsRow>,
}

impl StatsRow {
    /// Compares two rows by the order that [`Stats`] has them in.
    #[must_use]
    pub fn in_order(&self, other: &Self) -> Ordering {
        let key = |row: &Self| (row.at, Reverse(row.figures.count));
        key(self).cmp(&key(other)).then_with(|| self.values.cmp(&other.values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_number_with_a_unit() {
        let millis = |text: &str| text.parse::<Interval>().map(Interval::as_millis);
        assert_eq!(millis("30s"), Ok(30_000));
        assert_eq!(millis("5m"), Ok(300_000));
        assert_eq!(millis("1w"), Ok(604_800_000));
        for wrong in ["", "h", "0s", "-1h", "+1h", "1", "1.5h", "1y", "1 h", "99999999999d", "500ms", "3653d"] {
            assert!(millis(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn intervals_begin_at_whole_multiples_also_before_1970() {
        let hour: Interval = "1h".parse().expect("an interval");
        let start = |millis| hour.start(Timestamp::from_millis(millis)).as_millis();
        assert_eq!(start(3_600_001), 3_600_000);
        assert_eq!(start(3_600_000), 3_600_000);
        assert_eq!(start(-1), -3_600_000);
    }

    #[test]
    fn a_field_that_cannot_be_grouped_by_is_refused_with_the_one_that_is_meant() {
        assert!("labels.team".parse::<GroupBy>().is_ok_and(|by| by.name() == "labels.team"));
        assert!("eror.code".parse::<GroupBy>().is_err_and(|error| error.contains("`error.code`")));
        for wrong in ["id", "labels", "labels.", "payload", "created_at", "history.to"] {
            assert!(wrong.parse::<GroupBy>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_amounts_of_one_resource_are_added_up() {
        assert!("resources.gpus".parse::<SumOf>().is_ok_and(|sum| sum.name() == "resources.gpus"));
        for wrong in ["resources", "resources.", "resources.a.b", "gpus", "labels.gpus", ""] {
            assert!(wrong.parse::<SumOf>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn percentiles_lie_between_none_and_all() {
        assert_eq!("99.9".parse::<Percent>().map(|percent| percent.to_string()), Ok("99.9".to_owned()));
        for wrong in ["-1", "100.1", "NaN", "inf", "p95", ""] {
            assert!(wrong.parse::<Percent>().is_err(), "{wrong}");
        }
    }
}
