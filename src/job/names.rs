//! Checked strings: ids and names, each a type of its own, so that no two are confused.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

/// The longest name, in bytes. Elasticsearch takes ids of up to 512; ours leave room for prefixes.
pub const MAX_NAME_BYTES: usize = 256;

/// Why a string is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// Nothing in it.
    #[error("must not be empty")]
    Empty,
    /// Longer than [`MAX_NAME_BYTES`].
    #[error("is longer than {MAX_NAME_BYTES} bytes")]
    TooLong,
    /// Has a control character.
    #[error("has a control character")]
    Control,
    /// Starts or ends with white space.
    #[error("starts or ends with white space")]
    Blank,
    /// `.` or `..`, which cannot stand in a URL's path.
    #[error("must not be `.` or `..`")]
    Dots,
}

fn check(text: &str) -> Result<(), InvalidName> {
    if text.is_empty() {
        return Err(InvalidName::Empty);
    }
    if text.len() > MAX_NAME_BYTES {
        return Err(InvalidName::TooLong);
    }
    if text.chars().any(char::is_control) {
        return Err(InvalidName::Control);
    }
    if text.trim() != text {
        return Err(InvalidName::Blank);
    }
    if text == "." || text == ".." {
        return Err(InvalidName::Dots);
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text` and makes it a name.
            ///
            /// # Errors
            /// [`InvalidName`] says what is wrong with it.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidName> {
                let text = text.as_ref();
                check(text)?;
                Ok(Self(Arc::from(text)))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                Self::new(text)
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidName;
            fn from_str(text: &str) -> Result<Self, InvalidName> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name! {
    /// A job's id: a UUIDv7 unless the client named one.
    JobId
}
name! {
    /// The named line a job waits in.
    QueueName
}
name! {
    /// What sort of work a job is: the name of its handler.
    Kind
}
name! {
    /// Who a job belongs to: a team or a person, for queries and reports.
    Owner
}
name! {
    /// A client process that claims jobs.
    WorkerId
}
name! {
    /// A client's name for one claim call, so that a repeated call finds the same jobs.
    RequestId
}
name! {
    /// Who did something: a token's name, a worker, or a part of the system.
    Actor
}
name! {
    /// What a record of the store is called, among those of its kind.
    RecordName
}

impl JobId {
    /// A new id, unique without asking anyone, and later in order than those made before it.
    #[must_use]
    pub fn generate() -> Self {
        Self::of_uuid(uuid::Uuid::now_v7())
    }

    /// The least of all ids: no name has a character before `!`, but for white space, which none starts with.
    #[must_use]
    pub fn first() -> Self {
        Self(Arc::from("!"))
    }

    /// The id that is this UUID.
    #[must_use]
    pub fn of_uuid(uuid: uuid::Uuid) -> Self {
        let mut buffer = uuid::Uuid::encode_buffer();
        Self(Arc::from(&*uuid.hyphenated().encode_lower(&mut buffer)))
    }
}

impl QueueName {
    /// What the names of queues start with that are the system's own: nobody submits to them or claims from them but
    /// the system itself.
    pub const INTERNAL: &str = "leasehold.";

    /// The system's queue called `name`, a literal in the code.
    #[must_use]
    pub fn system(name: &'static str) -> Self {
        Self(Arc::from(name))
    }

    /// Whether it is one of the system's own.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.0.starts_with(Self::INTERNAL)
    }
}

impl Kind {
    /// The system's kind called `name`, a literal in the code.
    #[must_use]
    pub fn system(name: &'static str) -> Self {
        Self(Arc::from(name))
    }
}

impl WorkerId {
    /// Whether it is one of the system's own, which take from the system's own queues.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.0.starts_with(QueueName::INTERNAL)
    }
}

impl From<&WorkerId> for Actor {
    fn from(worker: &WorkerId) -> Self {
        Self(worker.0.clone())
    }
}

impl From<&QueueName> for RecordName {
    fn from(queue: &QueueName) -> Self {
        Self(queue.0.clone())
    }
}

impl RecordName {
    /// The record that a part of the system keeps under `name`, a literal in the code.
    #[must_use]
    pub fn system(name: &'static str) -> Self {
        Self(Arc::from(name))
    }
}

impl Actor {
    /// The part of the system called `name`, a literal in the code.
    #[must_use]
    pub fn system(name: &'static str) -> Self {
        Self(Arc::from(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_what_a_person_would_type() {
        for text in ["a", "übersetzung", "night run 7", "a/b:c", &"x".repeat(MAX_NAME_BYTES)] {
            assert_eq!(QueueName::new(text).map(String::from), Ok(text.to_owned()));
        }
    }

    #[test]
    fn a_name_with_a_control_character_or_no_content_is_refused() {
        assert_eq!(QueueName::new(""), Err(InvalidName::Empty));
        assert_eq!(QueueName::new("a\nb"), Err(InvalidName::Control));
        assert_eq!(QueueName::new("a\u{0}"), Err(InvalidName::Control));
        assert_eq!(QueueName::new(" a"), Err(InvalidName::Blank));
        assert_eq!(QueueName::new(".."), Err(InvalidName::Dots));
        assert_eq!(QueueName::new("x".repeat(MAX_NAME_BYTES + 1)), Err(InvalidName::TooLong));
    }

    #[test]
    fn generated_ids_are_unique_and_rise() {
        let ids: Vec<JobId> = (0..1000).map(|_| JobId::generate()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
