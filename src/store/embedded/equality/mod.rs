//! Whether the states of all members are equal, looked at while they run.
//!
//! In reading order:
//! - `sum`: the sum over the documents of a state. `summed`: that sum as it is kept beside what applies entries, with
//!   the hashes of the documents that were written last (`hashes`).
//! - `compared`: what members say of their sums, and who differs. `looking`: what a member does for that.
//! - `rebuild`: how a member that alone differs gets the state of the others, and `rebuilds`, the file that says why.
//! - `scrub`: all documents read from time to time, to see that they can be read.

pub(super) mod compared;
pub(super) mod hashes;
mod looking;
pub(super) mod rebuild;
pub(super) mod rebuilds;
pub(super) mod scrub;
pub(super) mod sum;
pub(super) mod summed;

#[cfg(test)]
mod tests;
