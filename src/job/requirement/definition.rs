//! What a requirement asks of a label, who meets it, and how it is written.

use std::cmp::Ordering;
use std::fmt;

use serde_with::{DeserializeFromStr, SerializeDisplay};

use super::number::Number;
use super::offered::{Offers, is_of_plain_value};

/// What a job asks of one label that a worker offers. It is stored and shown as text, in its normal form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, SerializeDisplay, DeserializeFromStr)]
pub struct Requirement {
    pub(super) label: String,
    pub(super) test: Test,
}

/// What is asked of the label's value. A label that is not offered has none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Test {
    /// `label`: it is offered, with any value.
    Offered,
    /// `!label`: it is not offered.
    NotOffered,
    /// `label = value`
    Is(String),
    /// `label != value`: it is not offered with this value.
    IsNot(String),
    /// `label in (a, b)`
    In(Vec<String>),
    /// `label not in (a, b)`: it is offered with none of these values.
    NotIn(Vec<String>),
    /// `label >= 42`: its value is a number that compares like this to the number, which is written shortest.
    Compares(Comparison, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Comparison {
    AtLeast,
    Above,
    AtMost,
    Below,
}

impl Comparison {
    const fn sign(self) -> &'static str {
        match self {
            Self::AtLeast => ">=",
            Self::Above => ">",
            Self::AtMost => "<=",
            Self::Below => "<",
        }
    }

    const fn admits(self, order: Ordering) -> bool {
        match self {
            Self::AtLeast => order.is_ge(),
            Self::Above => order.is_gt(),
            Self::AtMost => order.is_le(),
            Self::Below => order.is_lt(),
        }
    }
}

impl Requirement {
    /// Returns whether a worker that offers these labels meets the requirement.
    #[must_use]
    pub fn is_met_by(&self, offered: &Offers) -> bool {
        let value = offered.get(&self.label);
        let is_among = |values: &[String]| value.is_some_and(|value| values.contains(value));
        match &self.test {
            Test::Offered => value.is_some(),
            Test::NotOffered => value.is_none(),
            Test::Is(wanted) => value == Some(wanted),
            Test::IsNot(unwanted) => value != Some(unwanted),
            Test::In(wanted) => is_among(wanted),
            Test::NotIn(unwanted) => !is_among(unwanted),
            Test::Compares(comparison, bound) => {
                let order = value.and_then(|value| Some(Number::parse(value)?.cmp(&Number::parse(bound)?)));
                order.is_some_and(|order| comparison.admits(order))
            }
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = &self.label;
        match &self.test {
            Test::Offered => f.write_str(label),
            Test::NotOffered => write!(f, "!{label}"),
            Test::Is(value) => write!(f, "{label} = {}", Value(value)),
            Test::IsNot(value) => write!(f, "{label} != {}", Value(value)),
            Test::In(values) => write!(f, "{label} in ({})", Values(values)),
            Test::NotIn(values) => write!(f, "{label} not in ({})", Values(values)),
            Test::Compares(comparison, number) => write!(f, "{label} {} {number}", comparison.sign()),
        }
    }
}

/// A value as it is written, in quotes where it needs them.
struct Value<'a>(&'a str);

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.is_empty() && self.0.chars().all(is_of_plain_value) {
            return f.write_str(self.0);
        }
        write!(f, "\"{}\"", self.0.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

struct Values<'a>(&'a [String]);

impl fmt::Display for Values<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, value) in self.0.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{}", Value(value))?;
        }
        Ok(())
    }
}
