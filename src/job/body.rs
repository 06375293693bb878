//! Payloads and results: JSON that the manager stores and passes on without interpreting it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// A JSON text that is checked once and then passed on unchanged.
#[derive(Clone)]
pub struct Json(Arc<RawValue>);

impl Json {
    /// Checks that `text` is one JSON value.
    ///
    /// # Errors
    /// Returns the parser's error if it is not.
    pub fn parse(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(Self::from)
    }

    /// Serializes `value` as JSON.
    ///
    /// # Errors
    /// Returns the serializer's error, such as for a map with keys that are not strings.
    pub fn of(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(Self::from)
    }

    /// Returns the JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Returns the length of the text in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.as_str().len()
    }
}

impl From<Box<RawValue>> for Json {
    fn from(raw: Box<RawValue>) -> Self {
        Self(Arc::from(raw))
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Writes the JSON as it is in JSON, and as a text on disk.
impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return self.as_str().serialize(serializer);
        }
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return Self::parse(String::deserialize(deserializer)?).map_err(serde::de::Error::custom);
        }
        Box::<RawValue>::deserialize(deserializer).map(Self::from)
    }
}

/// The id of a body that is stored apart from its job. It is fresh for every body written, so that two writers who race
/// for the same job never overwrite each other's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BodyId(pub uuid::Uuid);

/// A reference to a body that is stored apart from its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BodyRef {
    /// The id of the body.
    pub id: BodyId,
    /// The length of the body in bytes.
    pub bytes: u32,
}

/// A payload or a result. A small one is in the job's document; a large one is stored apart, so that a claim or a
/// heartbeat does not write it again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Body {
    /// The job has no such body.
    #[default]
    Empty,
    /// The body is in the job's document.
    Inline(Json),
    /// The body is in a document of its own.
    Stored(BodyRef),
}

/// A body to be written beside the job that refers to it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewBody {
    /// The reference by which the job finds the body.
    pub reference: BodyRef,
    /// The JSON text to store.
    pub json: Json,
}

impl Body {
    /// Keeps `json` inline if it has at most `inline_limit` bytes; otherwise returns a reference and the body to be
    /// written under it.
    #[must_use]
    pub fn place(json: Option<Json>, inline_limit: usize) -> (Self, Option<NewBody>) {
        let Some(json) = json else { return (Self::Empty, None) };
        if json.bytes() <= inline_limit {
            return (Self::Inline(json), None);
        }
        let bytes = u32::try_from(json.bytes()).unwrap_or(u32::MAX);
        let reference = BodyRef { id: BodyId(uuid::Uuid::new_v4()), bytes };
        (Self::Stored(reference), Some(NewBody { reference, json }))
    }

    /// Returns the length of the body in bytes; zero if there is none.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Inline(json) => json.bytes(),
            Self::Stored(reference) => reference.bytes as usize,
        }
    }

    /// Returns whether both bodies are equal, as far as a job's document shows. Bodies stored apart are compared by
    /// length only: each gets a fresh id when it is written, so the ids of equal bodies differ.
    #[must_use]
    pub fn resembles(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stored(one), Self::Stored(another)) => one.bytes == another.bytes,
            (one, another) => one == another,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_body_stays_inline_and_a_large_one_is_kept_apart() {
        let small = Json::parse("{\"a\": 1}".to_owned()).expect("json");
        assert_eq!(Body::place(Some(small.clone()), 8), (Body::Inline(small.clone()), None));

        let (body, stored) = Body::place(Some(small.clone()), 7);
        let stored = stored.expect("a body of its own");
        assert_eq!(body, Body::Stored(stored.reference));
        assert_eq!(stored.json, small);
        assert_eq!(body.bytes(), 8);
    }
}
