//! An entry of the log by its place.

use serde::{Deserialize, Serialize};

/// An entry of the log by its number and term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Last {
    pub(super) number: u64,
    pub(super) term: u64,
}
