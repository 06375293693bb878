//! Whether the states of all members are equal, looked at while they run.
//!
//! In reading order:
//! - `sum`: the sum over the documents of a state.
//! - `compared`: what members say of their sums, and who differs.

pub(super) mod compared;
pub(super) mod sum;
