//! The action that one job needs: a pure function of the job, the time and the rules.
//!
//! A lease, a time limit, an expected runtime and the grace last for awake time ([`AwakeTime`]): a time that passed
//! while nobody watched, or that the wall clock only skipped, ends none of them. A start deadline is a time of the wall
//! clock.
//!
//! Times in a job were written by the clock of the machine on which its manager ran. So an action that takes something
//! away – a lease, an attempt, the chance to start – waits for as long as two clocks may differ. A flag takes nothing
//! away, and a heartbeat removes it.
//!
//! A lease needs less waiting where this clock is compared with the store's: the machine that wrote it has let it last
//! as much longer as its clock may be behind, so that this one waits only for as long as its own may be ahead.
//!
//! Where this process took the store over from another one, no worker was heard between the two, and the times of
//! leases were written by the other one's clock. So every lease counts as renewed when it took over. After any other
//! gap there is half of its term left of a lease: a worker sends a heartbeat every third, and one may be on its way. No
//! gap makes a lease longer than by its term, however many there are.
//!
//! A time that is to come was written by another clock, or before this one was set back. In a store that only this
//! process writes to, that was before this process began, came to lead or had its clock set back, and it counts as the
//! last of these moments, so that the lease of a dead worker ends. Where others write, it may be that of a machine
//! whose clock is ahead, and whose workers live: it counts as now.
//!
//! A clock that is too far off is believed in nothing that goes by the wall clock. Leases and time limits go on all the
//! same in a store that only this process writes to: it has written their times itself, or lets them begin with its
//! lead, and what passes between is awake time.

use std::time::Duration;

use super::config::MonitorConfig;
use crate::clock::{AwakeInstant, AwakeTime, FAR_AHEAD, LONGEST_STEP, Offset, Timestamp};
use crate::job::{Actor, Change, Job, JobState, Lease, OrphanPolicy, Recovery, Refusal, Running, State};

/// The times by which jobs are judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    orphan_grace: Duration,
    clock_skew: Duration,
    /// How long after its end a lease may still run by another clock.
    lease_skew: Duration,
    /// Whether this clock is too far off to take anything away by a time of the wall clock.
    clock_is_off: bool,
    heartbeat_stale: Option<Duration>,
    leads_since: Option<AwakeInstant>,
    /// Whether only this process writes to the store, for as long as it lives or leads.
    is_alone: bool,
}

impl Rules {
    /// Makes the rules of a configuration, for a store that only this process writes to, or for a shared one.
    #[must_use]
    pub fn of(config: &MonitorConfig, own_store: bool) -> Self {
        let clock_skew = config.skew(own_store);
        Self {
            orphan_grace: config.orphan_grace,
            clock_skew,
            lease_skew: clock_skew,
            clock_is_off: false,
            heartbeat_stale: config.heartbeat_stale,
            leads_since: config.leads_since,
            is_alone: own_store,
        }
    }

    /// Returns the same rules for a clock that may be so far from the store's; `None` for one that is not compared.
    #[must_use]
    pub fn by_clock(&self, offset: Option<Offset>) -> Self {
        match offset {
            None => self.clone(),
            Some(Offset { ahead, is_off, .. }) => {
                Self { lease_skew: ahead.min(self.clock_skew), clock_is_off: is_off, ..self.clone() }
            }
        }
    }

    /// Returns how long after its end a lease counts as expired, whichever clock wrote it.
    #[must_use]
    pub fn lease_grace(&self) -> Duration {
        self.orphan_grace.max(self.lease_skew)
    }

    /// Returns how long after its time limit an attempt is ended, whichever clock wrote its start.
    fn grace(&self) -> Duration {
        self.orphan_grace.max(self.clock_skew)
    }

    /// Returns how far two clocks may differ.
    #[must_use]
    pub const fn clock_skew(&self) -> Duration {
        self.clock_skew
    }

    /// Returns this moment, or that at which this process took over if that is later.
    fn not_before_the_lead(&self, moment: AwakeInstant) -> AwakeInstant {
        self.leads_since.map_or(moment, |since| moment.max(since))
    }

    /// Returns whether leases and time limits are judged rightly: by awake time, or by a clock that is not off.
    const fn knows_what_is_over(&self) -> bool {
        self.is_alone || !self.clock_is_off
    }

    /// Returns whether a job that was written far ahead of this clock was written by one that was wrong.
    fn knows_what_is_ahead(&self) -> bool {
        !self.clock_is_off && self.clock_skew < FAR_AHEAD
    }

    /// Returns the time after which jobs were written by a clock that was wrong, and the states of those that do not
    /// come to be looked at in time for that.
    pub(super) fn written_ahead(&self, now: Timestamp) -> Option<(Timestamp, Vec<JobState>)> {
        match self.is_alone {
            true => Some((now.plus(LONGEST_STEP), vec![JobState::Running, JobState::Available])),
            // A running one may be that of a machine whose clock is ahead.
            false => self.knows_what_is_ahead().then(|| (now.plus(FAR_AHEAD), vec![JobState::Available])),
        }
    }

    /// Returns the moment of a time at which a job was written.
    fn moment(&self, time: Timestamp, (now, awake): (Timestamp, &AwakeTime)) -> AwakeInstant {
        // What two looks at the clock may differ by is not to come.
        match self.is_alone && time > now.plus(LONGEST_STEP) {
            true => self.not_before_the_lead(awake.in_order_since()),
            false => awake.at(time),
        }
    }

    /// Returns when a lease ends.
    fn end_of(&self, lease: &Lease, (now, awake): (Timestamp, &AwakeTime)) -> AwakeInstant {
        let heard = self.moment(lease.heartbeat_at, (now, awake));
        let end = heard.plus(lease.expires_at.since(lease.heartbeat_at).max(lease.term));
        let after_a_gap = awake.resumed().map(|resumed| resumed.plus(lease.term / 2));
        let after_the_lead = self.leads_since.map(|since| since.plus(lease.term));
        let latest = end.plus(lease.term);
        [after_a_gap, after_the_lead].into_iter().flatten().fold(end, AwakeInstant::max).min(latest)
    }

    /// Returns for how long a lease has been over, in awake time; `None` while it lasts.
    fn over_for(&self, lease: &Lease, (now, awake): (Timestamp, &AwakeTime)) -> Option<Duration> {
        let (end, now) = (self.end_of(lease, (now, awake)), awake.now());
        (end <= now).then(|| now.since(end))
    }

    /// Returns the age at which a heartbeat under a lease of this term is stale. A healthy worker sends one every third
    /// of the term, so that an age of less than half the term means nothing.
    fn stale_after(&self, term: Duration) -> Duration {
        self.heartbeat_stale.unwrap_or_default().max(term / 2) + self.clock_skew
    }
}

/// An action on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Expires a job that no worker started in time.
    Expire,
    /// Lets a job that waits run when it was meant to, which was written by a clock that was ahead.
    MoveUp,
    /// Takes a job from its worker, since its lease expired longer ago than the grace.
    Recover,
    /// Ends an attempt that has exceeded its time limit. The worker had the grace to report that itself.
    TimeOut,
    /// Flags a job as an orphan.
    Flag(Suspicion),
    /// Marks a job that takes longer than expected, once for each lease.
    MarkOverdue,
}

/// Why a job looks abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// The job's lease has expired.
    LeaseExpired,
    /// The job takes longer than expected, and its worker has sent no heartbeat.
    Silent,
}

/// Returns the most important action that a job needs now. After the action, the next decision may return another.
#[must_use]
pub fn decide(job: &Job, now: Timestamp, awake: &AwakeTime, rules: &Rules) -> Option<Action> {
    match &job.state {
        State::Available => {
            let is_too_late = job.start_deadline().is_some_and(|deadline| deadline.plus(rules.clock_skew) <= now);
            let is_ahead = rules.knows_what_is_ahead() && job.is_written_ahead(now);
            match is_too_late && !rules.clock_is_off {
                true => Some(Action::Expire),
                false => is_ahead.then_some(Action::MoveUp),
            }
        }
        State::Running(running) => decide_running(job, running, (now, awake), rules),
        State::Completed { .. } | State::Failed { .. } | State::Cancelled { .. } | State::Expired { .. } => None,
    }
}

fn decide_running(job: &Job, running: &Running, times: (Timestamp, &AwakeTime), rules: &Rules) -> Option<Action> {
    // The job is held until an administrator decides.
    if running.orphan.as_ref().is_some_and(|orphan| orphan.held) {
        return None;
    }
    let lease = &running.lease;
    let (awake, began, over_for) = (times.1, rules.moment(lease.acquired_at, times), rules.over_for(lease, times));
    let now = awake.now();
    if over_for.is_some_and(|over_for| over_for >= rules.lease_grace()) && rules.knows_what_is_over() {
        return Some(Action::Recover);
    }
    let limit = job.spec.timeout.map(|timeout| rules.not_before_the_lead(began.plus(timeout)));
    let is_too_long = limit.is_some_and(|limit| limit.plus(rules.grace()) <= now);
    if is_too_long && rules.knows_what_is_over() {
        return Some(Action::TimeOut);
    }
    let unflagged = running.orphan.is_none();
    if unflagged && over_for.is_some() {
        return Some(Action::Flag(Suspicion::LeaseExpired));
    }
    let overdue = job.spec.expected_runtime.is_some_and(|expected| began.plus(expected) <= now);
    if overdue && running.overdue_at.is_none() {
        return Some(Action::MarkOverdue);
    }
    let heard_at = rules.not_before_the_lead(rules.moment(lease.heartbeat_at, times));
    let silent = heard_at.plus(rules.stale_after(lease.term)) <= now;
    (unflagged && overdue && silent).then_some(Action::Flag(Suspicion::Silent))
}

/// Returns the actor that the monitor's entries in job histories name.
#[must_use]
pub fn actor() -> Actor {
    Actor::system("monitor")
}

impl Action {
    /// Applies the action. `policy` decides what happens to an orphan, `chance` is a random number from 0 to 1 for the
    /// backoff.
    pub(super) fn apply(
        self,
        job: &Job,
        rules: &Rules,
        policy: OrphanPolicy,
        chance: f64,
        (now, awake): (Timestamp, &AwakeTime),
    ) -> Result<Change, Refusal> {
        let written = |job: Job| Change::To(Box::new(job));
        let ran = || job.lease().map(|lease| awake.since(lease.acquired_at)).unwrap_or_default();
        match self {
            Self::Expire => job.expire(&actor(), now).map(written),
            Self::MoveUp => job.move_up(&actor(), now),
            Self::Recover => {
                let over_for = job.lease().and_then(|lease| rules.over_for(lease, (now, awake)));
                job.recover(&actor(), &Recovery { over_for, grace: rules.lease_grace(), policy, chance }, now)
            }
            Self::TimeOut => job.time_out(&actor(), ran(), chance, now).map(written),
            Self::MarkOverdue => job.mark_overdue(&actor(), ran(), now),
            Self::Flag(suspicion) => job.flag_orphan(&actor(), &suspicion.evidence(job)?, false, now),
        }
    }
}

impl Suspicion {
    /// Returns a description of the evidence for the action.
    fn evidence(self, job: &Job) -> Result<String, Refusal> {
        let running = job.running()?;
        let lease = &running.lease;
        let heard = format!("worker {} was last heard of at {}", lease.worker_id, lease.heartbeat_at);
        Ok(match (self, job.expected_until(running)) {
            (Self::Silent, Some(expected)) => format!(
                "{heard}, under a lease of {} ms until {}; the job was expected to end by {expected}",
                lease.term.as_millis(),
                lease.expires_at
            ),
            (Self::Silent | Self::LeaseExpired, _) => format!("{heard}; its lease ended at {}", lease.expires_at),
        })
    }
}

#[cfg(test)]
mod tests;
