//! What was asked for when the job was submitted.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::names::{Kind, Owner, QueueName};
use super::oversight::Oversight;
use super::retry::RetryPolicy;

/// How urgent a job is within its queue: higher goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Priority(i8);

impl Priority {
    /// The least urgent.
    pub const LOWEST: i64 = -100;
    /// The most urgent.
    pub const HIGHEST: i64 = 100;

    /// A priority from −100 to 100; `None` outside of that.
    #[must_use]
    pub fn new(value: i64) -> Option<Self> {
        (Self::LOWEST..=Self::HIGHEST).contains(&value).then(|| i8::try_from(value).ok().map(Self)).flatten()
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> i8 {
        self.0
    }
}

/// What tells one submission from another: a hash over all that the client asked for. Two submissions under one key
/// or id are the same when their fingerprints are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub u128);

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The part of a job that never changes after the submission.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The line it waits in.
    pub queue: QueueName,
    /// Its handler's name.
    pub kind: Kind,
    /// How urgent it is.
    pub priority: Priority,
    /// Who it belongs to.
    pub owner: Option<Owner>,
    /// Whatever the submitter wants to find it by.
    pub labels: BTreeMap<String, String>,
    /// How long an attempt is expected to take; longer is overdue.
    pub expected_runtime: Option<Duration>,
    /// How long an attempt may take at most.
    pub timeout: Option<Duration>,
    /// How many attempts it gets.
    pub max_attempts: u32,
    /// How long to wait between attempts.
    pub retry: RetryPolicy,
    /// What it needs of a machine, by the resource's name: `cpu_millis`, `memory_mib`, `gpus`, …
    pub resources: BTreeMap<String, u64>,
    /// How it is watched over while it runs, and who is told what becomes of it.
    pub oversight: Oversight,
    /// The submission's hash, where the client can repeat the submission: under its own id or an idempotency key.
    pub fingerprint: Option<Fingerprint>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_end_at_a_hundred() {
        assert_eq!(Priority::new(100).map(Priority::get), Some(100));
        assert_eq!(Priority::new(-100).map(Priority::get), Some(-100));
        assert_eq!(Priority::new(101), None);
        assert_eq!(Priority::new(i64::MIN), None);
    }
}
