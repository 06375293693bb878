//! The record of a unique key: which job holds the key.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::job::{Job, UniqueKey};
use crate::manager::announced::Announced;
use crate::store::{RecordKey, RecordKind};

/// The content of the record of a unique key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holder {
    /// The job that holds the key, and what was about to be done with it when the record was written.
    #[serde(flatten)]
    pub(super) announced: Announced,
    /// When the record was written.
    pub(super) at: Timestamp,
}

impl Holder {
    /// Returns the record's content for a job, which is about to return from its end or to be created.
    pub(super) fn new(job: &Job, returns: bool, at: Timestamp) -> Self {
        Self { announced: Announced::new(job, returns), at }
    }

    /// Returns the content for a job that was certainly created.
    pub(super) fn of_existing(&self) -> Self {
        let announced = Announced { creates: false, returns: true, ..self.announced.clone() };
        Self { announced, at: self.at }
    }

    /// Returns the content of a record of the same job that is written over this one, and stands for what this one did
    /// too.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self { announced: self.announced.and(&other.announced), at: other.at }
    }
}

/// Returns whether a job is live, and so holds the key that its record names it for.
pub(super) fn is_live(job: &Job) -> bool {
    !job.state.name().is_final()
}

/// Returns the key of the record of a unique key.
pub(super) fn record_key(key: &UniqueKey) -> RecordKey {
    RecordKey::new(RecordKind::Unique, key.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let at = Timestamp::from_millis(1_000);
        let text = r#"{"job":"j","queue":"q","kind":"k","at":"1970-01-01T00:00:01.000Z","creates":true}"#;
        let holder: Holder = serde_json::from_str(text).expect("a holder");
        assert_eq!((holder.at, holder.announced.creates, holder.announced.returns), (at, true, false));
        assert_eq!(serde_json::json!(holder).to_string().len(), text.len());
    }
}
