//! What a lane leaves to the store, since it would keep claims from the jobs behind it: more than some jobs that
//! require what not all claims meet.
//!
//! A claim passes a number of candidates at most, and a lane has room for a number of them. Once a claim has found
//! nothing behind those that do not suit it, only the first are kept of the jobs that require what it lacks, and none
//! where no other claim meets that; searches leave out the rest, and so find what is behind them.

use std::collections::HashMap;
use std::time::Duration;

use super::lane::Lane;
use super::left_out::OfRequirement;
use super::room::Wish;
use crate::clock::Timestamp;
use crate::job::{Job, JobId, Requirement};

/// The most requirements whose jobs a lane leaves to the store.
const MOST: usize = 256;

/// How many jobs with such requirements a lane keeps together: so many that claims can pass them all.
const KEPT: usize = 250;

/// The part of the kept jobs with one requirement that is left when the store is searched for more of them.
const LOW_PART: usize = 4;

/// The shortest time between two looks through a lane.
const AGAIN: Duration = Duration::from_millis(250);

impl Lane {
    /// Has the store searched for what is left to it and suits a claim that was not given all that it can take. Has the
    /// lane look behind the jobs that did not suit the claim if it `passed` any. Returns whether it leaves some to the
    /// store.
    pub(super) fn look_behind(&mut self, wish: &Wish<'_>, passed: Option<bool>, now: Timestamp) -> bool {
        self.take_back(|of| of.requirement.is_met_by(wish.labels));
        passed.is_some_and(|is_exhausted| (is_exhausted || self.incomplete) && self.leave_out(now))
    }

    /// Leaves most jobs to the store that require what not all claims meet. Returns whether there are any.
    fn leave_out(&mut self, now: Timestamp) -> bool {
        if self.left_out.at.is_some_and(|at| at <= now && now.since(at) < AGAIN) {
            return false;
        }
        self.left_out.at = Some(now);
        let candidates = || self.due.values().chain(self.kinds.iter().flat_map(|kinds| kinds.beyond()));
        let mut counts: HashMap<&Requirement, (usize, bool)> = HashMap::new();
        for required in candidates().flat_map(|candidate| candidate.job.spec.requires()) {
            let of = counts.entry(required).or_insert_with(|| (0, self.offers.meet_none(required, now)));
            of.0 += 1;
        }
        counts.retain(|required, _| !self.offers.meet_all(required, now));
        let some = counts.values().filter(|(_, suits_nobody)| !suits_nobody).count();
        let kept = KEPT / some.max(1);
        counts.retain(|_, (count, suits_nobody)| *suits_nobody || *count > kept);
        let mut lost: Vec<JobId> = Vec::new();
        let mut left: HashMap<&Requirement, usize> = HashMap::new();
        for candidate in candidates() {
            let limited = || candidate.job.spec.requires().iter().filter(|required| counts.contains_key(required));
            let is_over = |required| counts[required].1 || left.get(required).is_some_and(|left| *left >= kept);
            if limited().any(is_over) {
                lost.push(candidate.job.id.clone());
            } else {
                limited().for_each(|required| *left.entry(required).or_default() += 1);
            }
        }
        let by = counts.iter().map(|(required, (_, suits_nobody))| OfRequirement {
            requirement: (*required).clone(),
            suits_nobody: *suits_nobody,
            until_low: left.get(required).map_or(0, |left| left - left / LOW_PART),
        });
        let by: Vec<OfRequirement> = by.collect();
        for mut of in by {
            // Of what came since, some may be behind what is left to the store.
            if let Some(before) = self.left_out.by.iter().position(|other| other.requirement == of.requirement) {
                of.until_low = self.left_out.by.swap_remove(before).until_low.min(of.until_low);
            }
            self.left_out.by.push(of);
        }
        lost.iter().for_each(|id| self.remove(id));
        let mut too_many = 0..self.left_out.by.len().saturating_sub(MOST);
        self.take_back(|_| too_many.next().is_some());
        if self.incomplete && !lost.is_empty() {
            self.may_miss_some();
        }
        !lost.is_empty()
    }

    /// Has the store searched again for jobs that are left to it and that `is_wanted` names.
    fn take_back(&mut self, mut is_wanted: impl FnMut(&OfRequirement) -> bool) {
        let before = self.left_out.by.len();
        self.left_out.by.retain(|of| !is_wanted(of));
        if self.left_out.by.len() < before {
            self.left_out.is_wanted = true;
            self.may_miss_some();
        }
    }

    /// Has the store searched again for all jobs that are left to it, since the lane does not have the others any more.
    pub(super) fn take_all_back(&mut self) {
        self.take_back(|_| true);
    }

    /// Takes note of what a claim offers.
    pub(super) fn note(&mut self, wish: &Wish<'_>, now: Timestamp) {
        self.offers.note(wish, now);
        self.take_back(|of| of.suits_nobody && of.requirement.is_met_by(wish.labels));
    }

    /// Takes note of a job that goes to a claim.
    pub(super) fn note_taken(&mut self, job: &Job) {
        if self.left_out.by.is_empty() {
            return;
        }
        let mut is_low = false;
        for of in self.left_out.by.iter_mut().filter(|of| job.spec.requires().contains(&of.requirement)) {
            of.until_low = of.until_low.saturating_sub(1);
            is_low |= of.until_low == 0;
        }
        if is_low {
            self.take_back(|of| job.spec.requires().contains(&of.requirement));
        }
    }
}
