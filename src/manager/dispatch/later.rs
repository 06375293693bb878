//! The candidates that are not due yet: those whose `run_at` is to come, and those that wait for their next attempt.
//!
//! A wait for the next attempt lasts for awake time, while `run_at` is a time of the wall clock. Where time has passed
//! that does not count, such a job is kept here for as long as is left of its wait. While the clock is known to be far
//! off, so are all jobs that only a right clock says are due.

use std::time::Duration;

use super::lane::{HORIZON, Lane, Position};
use crate::clock::{LONGEST_STEP, Timestamp};
use crate::job::Job;
use crate::store::Versioned;

/// How long a job is kept of which nobody knows whether it is due, until the clock is asked once more.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Lane {
    /// Keeps a candidate whose `run_at` is to come.
    pub(super) fn keep_later(&mut self, candidate: Versioned, now: Timestamp, capacity: usize) {
        let run_at = candidate.job.run_at;
        // Jobs that are due beyond the horizon are found in the store when their time is near.
        if run_at >= self.known_until.max(now.plus(HORIZON)) {
            return;
        }
        self.keep_until(run_at, candidate);
        if self.later.len() > capacity
            && let Some(((dropped_at, dropped), candidate)) = self.later.pop_last()
        {
            self.positions.remove(&dropped);
            match candidate.job.run_at <= now {
                // No search for later jobs finds one that is due by the wall clock.
                true => self.insert_due(candidate),
                false => self.known_until = self.known_until.min(dropped_at),
            }
        }
    }

    /// Keeps a candidate that is due by the wall clock, and returns true, if its wait is not over and there is room, or
    /// if nobody knows whether it is due. Without room one of the latter is left to the store.
    pub(super) fn puts_off(&mut self, candidate: &Versioned, now: Timestamp, room: usize) -> bool {
        if candidate.job.awaits_a_right_clock(now) && self.clock_is_far_off() {
            match self.later.len() < room {
                true => self.keep_until(now.plus(LOOK_AGAIN), candidate.clone()),
                false => self.leaves_out = true,
            }
            return true;
        }
        let Some(rest) = self.rest_of_wait(&candidate.job).filter(|_| self.later.len() < room) else { return false };
        self.keep_until(now.plus(rest), candidate.clone());
        true
    }

    /// Moves the later candidates that have become due to the due ones.
    pub(super) fn promote(&mut self, now: Timestamp) {
        if std::mem::replace(&mut self.promoted_at, now).since(now) > LONGEST_STEP {
            self.go_back(now);
        }
        if self.leaves_out && !self.clock_is_far_off() {
            self.leaves_out = false;
            self.unknown();
        }
        while let Some(entry) = self.later.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let candidate = entry.remove();
            self.positions.remove(&candidate.job.id);
            if !self.puts_off(&candidate, now, usize::MAX) {
                self.insert_due(candidate);
            }
        }
    }

    /// Looks through what is kept of times by a clock that was set back since.
    fn go_back(&mut self, now: Timestamp) {
        for candidate in std::mem::take(&mut self.later).into_values() {
            self.positions.remove(&candidate.job.id);
            if !candidate.job.is_due(now) {
                self.keep_until(candidate.job.run_at, candidate);
            } else if !self.puts_off(&candidate, now, usize::MAX) {
                self.insert_due(candidate);
            }
        }
        self.unknown();
        self.met_others_in.clear();
        self.last_claim_at = self.last_claim_at.min(now);
    }

    fn clock_is_far_off(&self) -> bool {
        let offset = self.clock.as_ref().and_then(|clock| clock.offset());
        offset.is_some_and(|offset| offset.is_far_off)
    }

    fn keep_until(&mut self, time: Timestamp, candidate: Versioned) {
        let id = candidate.job.id.clone();
        self.positions.insert(id.clone(), Position::Later(time));
        self.later.insert((time, id), candidate);
    }

    /// Returns how much longer a job that is due by the wall clock waits for its next attempt. What two looks at the
    /// clock may differ by does not count.
    fn rest_of_wait(&self, job: &Job) -> Option<Duration> {
        let (clock, since) = (self.clock.as_ref()?, job.backs_off_since()?);
        let wait = job.run_at.since(since);
        if wait <= LONGEST_STEP {
            return None;
        }
        let rest = wait.saturating_sub(clock.awake().since(since));
        Some(rest).filter(|rest| *rest > LONGEST_STEP)
    }
}
