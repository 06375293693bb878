//! Checked strings: ids and names, each a type of its own, so that no two are confused.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_with::DeserializeFromStr;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};
use xxhash_rust::xxh3::xxh3_64;

use crate::clock::Timestamp;

/// The longest name, in bytes. Elasticsearch accepts ids of up to 512 bytes; the rest leaves room for prefixes.
pub const MAX_NAME_BYTES: usize = 256;

/// The reason why a string is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The string is empty.
    #[error("must not be empty")]
    Empty,
    /// The string is longer than [`MAX_NAME_BYTES`].
    #[error("is longer than {MAX_NAME_BYTES} bytes")]
    TooLong,
    /// The string has a control character.
    #[error("has a control character")]
    Control,
    /// The string starts or ends with white space.
    #[error("starts or ends with white space")]
    Blank,
    /// The string is `.` or `..`, which cannot stand in the path of a URL.
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
    // Names of stored jobs are checked as well, millions in one scan, and most are plain.
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        if text.chars().any(char::is_control) {
            return Err(InvalidName::Control);
        }
        if text.trim() != text {
            return Err(InvalidName::Blank);
        }
    }
    if text == "." || text == ".." {
        return Err(InvalidName::Dots);
    }
    Ok(())
}

/// Returns the rules of a name for the API's description. The length counts characters there, and bytes in [`check`].
fn schema(description: &str) -> RefOr<Schema> {
    let name = ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(description.trim()))
        .min_length(Some(1))
        .max_length(Some(MAX_NAME_BYTES))
        .pattern(Some(pattern()));
    name.into()
}

/// Returns a regular expression (ECMA-262) that matches what [`check`] accepts, whatever its length.
fn pattern() -> String {
    const CONTROL: &str = r"\u0000-\u001F\u007F-\u009F";
    // The white space of Unicode that is no control character.
    const BLANK: &str = r" \u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000";
    let (inner, end, no_dot) =
        (format!("[^{CONTROL}]"), format!("[^{CONTROL}{BLANK}]"), format!("[^{CONTROL}{BLANK}.]"));
    // One or two characters that are not only dots, or more.
    format!(r"^(?:{no_dot}{end}?|\.{no_dot}|{end}{inner}+{end})$")
}

macro_rules! names {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, DeserializeFromStr)]
        pub struct $name(Arc<str>);

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                schema(concat!($($doc),*))
            }
        }

        impl ToSchema for $name {}

        impl $name {
            /// Checks `text` and makes it a name.
            ///
            /// # Errors
            /// [`InvalidName`] names the rule that `text` breaks.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidName> {
                let text = text.as_ref();
                check(text)?;
                Ok(Self(Arc::from(text)))
            }

            /// Makes a name of the system's own from `name`, a literal in the code.
            #[must_use]
            pub fn system(name: &'static str) -> Self {
                Self(Arc::from(name))
            }

            /// Returns the name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
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
    )*};
}

names! {
    /// The id of a job: a UUIDv7 unless the client chose one.
    JobId,
    /// The name of a queue, in which jobs wait to be claimed.
    QueueName,
    /// The kind of a job's work, which names its handler.
    Kind,
    /// The owner of a job: a team or a person, for queries and reports.
    Owner,
    /// The id of a worker: a client process that claims jobs.
    WorkerId,
    /// A client's id for one claim call, so that a repeated call finds the same jobs.
    RequestId,
    /// The originator of a change: the name of a token, a worker, or a part of the system.
    Actor,
    /// The name of a record in the store, unique among the records of its kind.
    RecordName,
    /// A client's key for one submission, so that a repeated submission finds the same job.
    IdempotencyKey,
    /// The name of a label.
    LabelName,
    /// The code of a failed attempt's error: a stable word for programs.
    ErrorCode,
    /// The id of a schedule.
    ScheduleId,
    /// A key that jobs name of which only so many run at once.
    ConcurrencyKey,
    /// A key that jobs name of which at most one waits or runs.
    UniqueKey,
    /// A key that jobs name which run one after another.
    OrderingKey,
}

impl JobId {
    /// Returns a new id, which is unique without coordination and greater than the ids that this process made before.
    #[must_use]
    pub fn generate() -> Self {
        Self::of_uuid(uuid::Uuid::now_v7())
    }

    /// Returns the smallest id: no name has a character before `!` except white space, with which none starts.
    #[must_use]
    pub fn first() -> Self {
        Self(Arc::from("!"))
    }

    /// Returns the id that spells this UUID, in lower case with hyphens.
    #[must_use]
    pub fn of_uuid(uuid: uuid::Uuid) -> Self {
        let mut buffer = uuid::Uuid::encode_buffer();
        Self(Arc::from(&*uuid.hyphenated().encode_lower(&mut buffer)))
    }

    /// Returns the UUID that the id spells with hyphens; `None` for any other id.
    #[must_use]
    pub fn uuid(&self) -> Option<uuid::Uuid> {
        let has_hyphens = self.0.len() == uuid::fmt::Hyphenated::LENGTH;
        has_hyphens.then(|| uuid::Uuid::try_parse(&self.0).ok()).flatten()
    }

    /// Returns when the id was made, if it carries that time (UUIDv7, RFC 9562, section 5.7).
    #[must_use]
    pub fn made_at(&self) -> Option<Timestamp> {
        let uuid = self.uuid()?;
        let is_timed = uuid.get_version_num() == 7 && uuid.get_variant() == uuid::Variant::RFC4122;
        is_timed.then(|| first_millis(uuid))
    }

    /// Returns the time that an id of the system's own carries (UUIDv8), where its queue is one.
    #[must_use]
    pub fn derived_at(&self) -> Option<Timestamp> {
        self.uuid().filter(|uuid| uuid.get_version_num() == 8).map(first_millis)
    }
}

/// Returns the time in the first 48 bits.
fn first_millis(uuid: uuid::Uuid) -> Timestamp {
    Timestamp::from_millis(i64::try_from(uuid.as_u128() >> 80).unwrap_or(i64::MAX))
}

impl RecordName {
    /// Returns a name that comes before all that records have: no name has a character before `!` but white space,
    /// with which none starts.
    #[must_use]
    pub fn first() -> Self {
        Self::system("!")
    }
}

impl ScheduleId {
    /// Returns a new id, which is unique without coordination.
    #[must_use]
    pub fn generate() -> Self {
        Self(JobId::generate().0)
    }

    /// Returns a hash (XXH3) of the id, which is the same on every machine and never changes.
    #[must_use]
    pub fn hash(&self) -> u64 {
        xxh3_64(self.0.as_bytes())
    }
}

impl QueueName {
    /// The prefix of the system's own queues and workers. Only the system itself submits to such a queue or claims from
    /// it.
    pub const INTERNAL: &str = "leasehold.";

    /// Returns whether the queue is one of the system's own.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.0.starts_with(Self::INTERNAL)
    }
}

impl WorkerId {
    /// Returns whether the worker is one of the system's own, which claim from the system's own queues.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.0.starts_with(QueueName::INTERNAL)
    }
}

/// The names under which the system itself acts. No token and no worker of a client has one, nor one that starts with
/// [`QueueName::INTERNAL`]: the history would name the wrong one.
pub const RESERVED_ACTORS: [&str; 8] =
    ["anonymous", "leasehold", "manager", "monitor", "notifier", "replay", "run", "scheduler"];

fn is_of_the_system(name: &str) -> bool {
    RESERVED_ACTORS.contains(&name) || name.starts_with(QueueName::INTERNAL)
}

impl Actor {
    /// Returns whether the name is one of those under which the system itself acts.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        is_of_the_system(&self.0)
    }
}

impl WorkerId {
    /// Returns whether no worker of a client may have the id: the system itself acts under it.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        is_of_the_system(&self.0)
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

impl From<&UniqueKey> for RecordName {
    fn from(key: &UniqueKey) -> Self {
        Self(key.0.clone())
    }
}

impl From<&OrderingKey> for RecordName {
    fn from(key: &OrderingKey) -> Self {
        Self(key.0.clone())
    }
}

impl From<&QueueName> for ConcurrencyKey {
    fn from(queue: &QueueName) -> Self {
        Self(queue.0.clone())
    }
}

impl From<&Kind> for ConcurrencyKey {
    fn from(kind: &Kind) -> Self {
        Self(kind.0.clone())
    }
}

impl From<&Owner> for ConcurrencyKey {
    fn from(owner: &Owner) -> Self {
        Self(owner.0.clone())
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

    /// Returns the names of actors that a source file makes, apart from its tests: literals, and constants by their
    /// values anywhere in the source.
    fn actors_of(text: &str, all: &str) -> Vec<String> {
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let mut found = Vec::new();
        for maker in ["Actor::system(", "Caller::system("] {
            for made in text.split(maker).skip(1) {
                let name = made.split(')').next().unwrap_or_default();
                // A function passes it on, whose own uses are found too.
                if name.chars().all(|letter| letter.is_ascii_lowercase()) {
                    continue;
                }
                let constant =
                    all.split(&format!("const {name}: &str = ")).nth(1).and_then(|rest| rest.split(';').next());
                found.push(constant.unwrap_or(name).trim_matches('"').to_owned());
            }
        }
        found
    }

    fn sources(folder: &std::path::Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "tests") {
                sources(&path, found);
            } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("tests.rs") {
                found.push(std::fs::read_to_string(path).expect("a source file"));
            }
        }
    }

    #[test]
    fn every_name_under_which_the_system_acts_is_reserved() {
        let mut files = Vec::new();
        sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
        let all = files.concat();
        let mut found: Vec<String> = files.iter().flat_map(|text| actors_of(text, &all)).collect();
        found.sort_unstable();
        found.dedup();
        assert!(found.iter().any(|name| name == "scheduler") && found.len() > 5, "{found:?}");
        let open: Vec<&String> = found.iter().filter(|name| !is_of_the_system(name)).collect();
        assert!(open.is_empty(), "these are not reserved: {open:?}");
        for name in RESERVED_ACTORS {
            assert!(name == "leasehold" || found.iter().any(|made| made == name), "nothing acts as {name}");
        }
    }

    #[test]
    fn generated_ids_are_unique_and_rise() {
        let ids: Vec<JobId> = (0..1000).map(|_| JobId::generate()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
