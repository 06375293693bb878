//! A job that is looked for by its id.

use crate::clock::Timestamp;
use crate::job::JobId;

/// A job that is looked for, and what is known of it beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sought<'a> {
    /// The job's id.
    pub id: &'a JobId,
    /// A time before which no job under this id has ended, if one is known: where nobody has to look for it.
    pub since: Option<Timestamp>,
}

impl<'a> From<&'a JobId> for Sought<'a> {
    fn from(id: &'a JobId) -> Self {
        Self { id, since: None }
    }
}
