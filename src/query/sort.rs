//! The order of a list, and the key of a job in that order.
//!
//! Every order is total, since the job's id decides between equals, and the same on every engine: texts are compared by
//! their UTF-8 bytes, and jobs without the field come last in either direction. A few fields are *kept*: stores have
//! their values in memory without the job.

use std::cmp::Reverse;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};
use serde_with::DeserializeFromStr;

use super::fields::{FIELDS, Field, FieldType, FieldValue};
use crate::clock::Timestamp;
use crate::job::{Job, JobId};

/// A field that a list can be ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, DeserializeFromStr)]
pub enum SortField {
    /// When the job was submitted.
    CreatedAt,
    /// When the job was last written.
    UpdatedAt,
    /// When the job is or was due.
    RunAt,
    /// When the job ended; jobs that have not ended come last in either direction.
    FinishedAt,
    /// The priority of the job.
    Priority,
    /// When the monitor checks the job next; jobs that it need not check come last in either direction.
    WatchAt,
    /// Any other field that the table of fields marks as sortable.
    Other(OtherField),
}

/// A sortable field that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OtherField(&'static Field);

impl SortField {
    /// The fields that are kept.
    pub const KEPT: [Self; 6] =
        [Self::CreatedAt, Self::UpdatedAt, Self::RunAt, Self::FinishedAt, Self::Priority, Self::WatchAt];

    /// Returns every sortable field.
    #[must_use]
    pub fn all() -> Vec<Self> {
        FIELDS.iter().filter_map(Self::of).collect()
    }

    fn of(field: &'static Field) -> Option<Self> {
        let kept = Self::KEPT.into_iter().find(|kept| kept.as_str() == field.name);
        kept.or_else(|| field.sortable.then_some(Self::Other(OtherField(field))))
    }

    /// Returns the name of the field, which is the same in the API and in the index.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CreatedAt => "created_at",
            Self::UpdatedAt => "updated_at",
            Self::RunAt => "run_at",
            Self::FinishedAt => "finished_at",
            Self::Priority => "priority",
            Self::WatchAt => "watch_at",
            Self::Other(OtherField(field)) => field.name,
        }
    }

    /// Returns the job's value of a kept field to order by; `None` when the job has none.
    #[must_use]
    pub fn kept_value(self, job: &Job) -> Option<i64> {
        match self {
            Self::CreatedAt => Some(job.created_at.as_millis()),
            Self::UpdatedAt => Some(job.updated_at.as_millis()),
            Self::RunAt => Some(job.run_at.as_millis()),
            Self::FinishedAt => job.finished_at().map(Timestamp::as_millis),
            Self::Priority => Some(job.spec.priority.get().into()),
            Self::WatchAt => job.watch_at().map(Timestamp::as_millis),
            Self::Other(_) => None,
        }
    }
}

impl FromStr for SortField {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let sortable = |field: &Field| field.sortable;
        let field = Field::find(name, sortable, "be sorted by", ", and a leading `-` turns the order round")?;
        Self::of(field).ok_or_else(|| format!("`{name}` cannot be sorted by"))
    }
}

impl Serialize for SortField {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The direction of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The smallest value comes first.
    Ascending,
    /// The largest value comes first.
    Descending,
}

/// The order of a list. Jobs that are equal in it are ordered by id, smallest first, so that the order is total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    /// The order in which jobs are claimed: highest priority, then earliest `run_at`.
    Dispatch,
    /// Orders by one field.
    By(SortField, Direction),
}

impl Default for Sort {
    fn default() -> Self {
        Self::By(SortField::CreatedAt, Direction::Descending)
    }
}

impl FromStr for Sort {
    type Err = String;

    /// Reads `field` (smallest first) or `-field` (largest first).
    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix('-') {
            Some(name) => Ok(Self::By(name.parse()?, Direction::Descending)),
            None => Ok(Self::By(text.parse()?, Direction::Ascending)),
        }
    }
}

/// The position of a job in an order. Keys of the same [`Sort`] compare as the jobs are listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SortKey {
    /// The numbers to order by, each turned so that smaller comes first.
    ranks: (i64, i64),
    /// The text to order by, in an order by a text. It is boxed, since few keys have one and many keys are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<Box<TextRank>>,
    /// The id of the job, which decides between equals.
    id: JobId,
}

/// A text in an order, turned so that smaller comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TextRank {
    Ascending(String),
    Descending(Reverse<String>),
    Missing,
}

/// A value that jobs are ordered by, as the field holds it; `None` for a job without a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SortValue<'k> {
    /// The value of an integer, or of a time in milliseconds since the epoch.
    Integer(Option<i64>),
    /// The value of a floating-point number.
    Number(Option<f64>),
    /// The value of a keyword.
    Text(Option<&'k str>),
}

/// The rank of a missing value, which comes last in either direction.
const LAST: i64 = i64::MAX;

impl Sort {
    /// Returns whether the order uses kept fields only.
    #[must_use]
    pub fn is_kept(self) -> bool {
        !matches!(self, Self::By(SortField::Other(_), _))
    }

    /// Returns the key of `job` in this order.
    #[must_use]
    pub fn key(self, job: &Job) -> SortKey {
        let id = job.id.clone();
        let Self::By(SortField::Other(OtherField(field)), direction) = self else {
            return SortKey::new(self.ranks(|field| field.kept_value(job)), id);
        };
        let value = field.value(job);
        if is_text(field) {
            let rank = match (value, direction) {
                (Some(FieldValue::Text(text)), Direction::Ascending) => TextRank::Ascending(text.to_owned()),
                (Some(FieldValue::Text(text)), Direction::Descending) => TextRank::Descending(Reverse(text.to_owned())),
                _ => TextRank::Missing,
            };
            return SortKey { ranks: (0, 0), text: Some(Box::new(rank)), id };
        }
        let number = match value {
            Some(FieldValue::Time(time)) => Some(time.as_millis()),
            Some(FieldValue::Integer(number)) => Some(number),
            Some(FieldValue::Number(number)) => Some(bits_in_order(number.to_bits().cast_signed())),
            Some(FieldValue::Text(_) | FieldValue::Flag(_)) | None => None,
        };
        SortKey::new((rank(number, direction), 0), id)
    }

    /// Returns the part of a key before the id, in an order by kept fields whose values `value` returns; smaller comes
    /// first.
    #[must_use]
    pub fn ranks(self, value: impl Fn(SortField) -> Option<i64>) -> (i64, i64) {
        let ranked = |field, direction| rank(value(field), direction);
        match self {
            Self::Dispatch => {
                (ranked(SortField::Priority, Direction::Descending), ranked(SortField::RunAt, Direction::Ascending))
            }
            Self::By(field, direction) => (ranked(field, direction), 0),
        }
    }

    /// Returns the values behind a key, as the fields hold them and a search engine's `search_after` takes them:
    /// priority and `run_at` for [`Sort::Dispatch`], one value for the others.
    #[must_use]
    pub fn values(self, key: &SortKey) -> Vec<SortValue<'_>> {
        let Self::By(field, direction) = self else {
            return vec![SortValue::Integer(Some(-key.ranks.0)), SortValue::Integer(Some(key.ranks.1))];
        };
        let number = || {
            let rank = Some(key.ranks.0).filter(|rank| *rank != LAST)?;
            Some(if direction == Direction::Ascending { rank } else { rank.saturating_neg() })
        };
        vec![match field {
            SortField::Other(OtherField(field)) if is_text(field) => SortValue::Text(match key.text.as_deref() {
                Some(TextRank::Ascending(text) | TextRank::Descending(Reverse(text))) => Some(text),
                Some(TextRank::Missing) | None => None,
            }),
            SortField::Other(OtherField(field)) if field.kind == FieldType::Number => {
                SortValue::Number(number().map(|rank| f64::from_bits(bits_in_order(rank).cast_unsigned())))
            }
            _ => SortValue::Integer(number()),
        }]
    }
}

fn is_text(field: &Field) -> bool {
    matches!(field.kind, FieldType::Keyword { .. })
}

fn rank(value: Option<i64>, direction: Direction) -> i64 {
    match direction {
        Direction::Ascending => value.unwrap_or(LAST),
        Direction::Descending => value.map_or(LAST, i64::saturating_neg),
    }
}

/// Turns the bits of a number so that they are in the order of the numbers, and turns them back (IEEE 754, totalOrder).
const fn bits_in_order(bits: i64) -> i64 {
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

impl SortKey {
    /// Makes the key of the job `id` from the ranks that [`Sort::ranks`] returns.
    #[must_use]
    pub const fn new(ranks: (i64, i64), id: JobId) -> Self {
        Self { ranks, text: None, id }
    }

    /// Returns the part of the key before the id, in an order by kept fields.
    #[must_use]
    pub const fn ranks(&self) -> (i64, i64) {
        self.ranks
    }

    /// Returns the job's id, which decides between equals.
    #[must_use]
    pub const fn id(&self) -> &JobId {
        &self.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_in_order_and_come_back() {
        let numbers = [f64::NEG_INFINITY, -7.5, -0.1, 0.0, 1e-9, 42.0, f64::INFINITY];
        let ranks = numbers.map(|number| bits_in_order(number.to_bits().cast_signed()));
        assert!(ranks.is_sorted());
        assert_eq!(ranks.map(|rank| f64::from_bits(bits_in_order(rank).cast_unsigned())), numbers);
    }

    #[test]
    fn what_is_missing_comes_last_in_either_direction() {
        let key =
            |text: TextRank| SortKey { ranks: (0, 0), text: Some(Box::new(text)), id: JobId::new("a").expect("an id") };
        let missing = key(TextRank::Missing);
        let (a, b) = ("a".to_owned(), "b".to_owned());
        assert!(key(TextRank::Ascending(a.clone())) < key(TextRank::Ascending(b.clone())));
        assert!(key(TextRank::Descending(Reverse(b.clone()))) < key(TextRank::Descending(Reverse(a))));
        assert!(key(TextRank::Ascending(b.clone())) < missing && key(TextRank::Descending(Reverse(b))) < missing);
        for direction in [Direction::Ascending, Direction::Descending] {
            assert!(rank(Some(7), direction) < rank(None, direction));
        }
    }

    #[test]
    fn an_order_is_told_and_read_as_it_always_was() {
        let sort = Sort::By(SortField::CreatedAt, Direction::Descending);
        let written = serde_json::to_string(&sort).expect("JSON");
        assert_eq!(written, r#"{"by":["created_at","descending"]}"#);
        let key: SortKey = serde_json::from_str(r#"{"ranks":[-5,0],"id":"a"}"#).expect("a key");
        assert_eq!(serde_json::to_string(&key).expect("JSON"), r#"{"ranks":[-5,0],"id":"a"}"#);
        for field in SortField::all() {
            let sort = Sort::By(field, Direction::Ascending);
            let written = serde_json::to_string(&sort).expect("JSON");
            assert_eq!(serde_json::from_str::<Sort>(&written).expect("an order"), sort);
        }
    }

    #[test]
    fn a_field_that_cannot_be_sorted_by_is_refused_with_the_one_that_is_meant() {
        assert_eq!("-owner".parse::<Sort>().map(Sort::is_kept), Ok(false));
        assert!("prority".parse::<Sort>().is_err_and(|error| error.contains("is `priority` meant?")));
        for wrong in ["", "-", "--owner", "labels", "history.at", "payload", "error.message"] {
            assert!(wrong.parse::<Sort>().is_err(), "{wrong}");
        }
    }
}
