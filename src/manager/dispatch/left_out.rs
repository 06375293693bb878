//! What a lane leaves to the store, by what the jobs require ([`super::leaving_out`]).

use crate::clock::Timestamp;
use crate::job::{Job, Requirement};

/// What a lane leaves to the store.
#[derive(Default)]
pub(super) struct LeftOut {
    pub(super) by: Vec<OfRequirement>,
    /// When the lane was last looked through.
    pub(super) at: Option<Timestamp>,
    /// Whether somebody waits for what the store has of it.
    pub(super) is_wanted: bool,
}

/// The jobs that require the same, as far as they are left to the store.
pub(super) struct OfRequirement {
    pub(super) requirement: Requirement,
    /// Whether no claim meets it.
    pub(super) suits_nobody: bool,
    /// How many more jobs that require it can go to claims until the store is searched for more of them.
    pub(super) until_low: usize,
}

impl LeftOut {
    /// Returns whether anything is left to the store.
    pub(super) fn has_any(&self) -> bool {
        self.is_wanted || !self.by.is_empty()
    }

    /// Returns what jobs require that are left to the store.
    pub(super) fn requirements(&self) -> impl Iterator<Item = &Requirement> {
        self.by.iter().map(|of| &of.requirement)
    }

    /// Returns whether a job suits nobody, and is left to the store.
    pub(super) fn has(&self, job: &Job) -> bool {
        self.by.iter().any(|of| of.suits_nobody && job.spec.requires().contains(&of.requirement))
    }
}
