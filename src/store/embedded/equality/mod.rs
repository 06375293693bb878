//! Whether the states of all members are equal, looked at while they run.
//!
//! In reading order:
//! - `sum`: the sum over the documents of a state.

pub(super) mod sum;
