//! Two names in one text, for formats that name no fields.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::names::InvalidName;

/// A name and, where there is one, another name beside it, as one text: the second one follows a line feed, which no
/// name has. A format that knows no missing fields takes up a second name so where it had one, and what it has of
/// earlier is read as it was.
pub(super) struct NamesInOne<A, B>(pub(super) A, pub(super) Option<B>);

/// What parts the two.
const BETWEEN: char = '\n';

impl<A: fmt::Display, B: fmt::Display> Serialize for NamesInOne<A, B> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self(first, None) => serializer.collect_str(first),
            Self(first, Some(second)) => serializer.collect_str(&format_args!("{first}{BETWEEN}{second}")),
        }
    }
}

impl<'de, A, B> Deserialize<'de> for NamesInOne<A, B>
where
    A: FromStr<Err = InvalidName>,
    B: FromStr<Err = InvalidName>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        let (first, second) = match text.split_once(BETWEEN) {
            Some((first, second)) => (first, Some(second)),
            None => (&*text, None),
        };
        let second = second.map(str::parse).transpose();
        first.parse().and_then(|first| Ok(Self(first, second?))).map_err(D::Error::custom)
    }
}
