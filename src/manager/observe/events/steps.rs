//! When the clock was set back, noted in the store for the processes after this one.
//!
//! A feed that goes on at another process is replayed by the time in its position. Where the clock has shown that time
//! twice, what was written the second time may lie before the position, and nothing else in the store says so once the
//! clock shows later times. So the times that were shown twice are noted, and the processes that began after a step,
//! whose positions are all from after it. Of these, positions up to a time to which the clock is set back later stay
//! right: what is written after that step has a later time. All others in those times are not trusted.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::EventId;
use crate::clock::{FAR_AHEAD, Timestamp};
use crate::job::RecordName;
use crate::manager::Manager;
use crate::store::record::body;
use crate::store::{Record, RecordKey, RecordKind, RecordWrite, StoreError, Version, WriteError};

/// The name of the record.
const NAME: &str = "clock";
/// How often a process looks whether its clock was set back.
const EVERY: Duration = Duration::from_secs(1);
/// How many processes are noted that began after a step.
const MAX_EPOCHS: usize = 64;

/// The content of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Steps {
    /// The earliest time to which the clock was set back.
    from: Timestamp,
    /// The latest time from which it was set back.
    until: Timestamp,
    /// The latest rings that began after a step.
    trusted: Vec<Trusted>,
}

/// A ring whose positions are right although the clock was set back before it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Trusted {
    /// Its epoch, in hexadecimal digits.
    epoch: String,
    /// The earliest time to which the clock was set back since, up to which they are.
    until: Option<Timestamp>,
}

impl Steps {
    /// Returns these steps and one more, after which no process has begun yet.
    fn and(earlier: Option<Self>, from: Timestamp, until: Timestamp) -> Self {
        let mut steps = earlier.unwrap_or(Self { from, until, trusted: Vec::new() });
        (steps.from, steps.until) = (steps.from.min(from), steps.until.max(until));
        for ring in &mut steps.trusted {
            ring.until = Some(ring.until.map_or(from, |until| until.min(from)));
        }
        steps
    }

    /// Notes that a ring has begun after these steps.
    fn trust(&mut self, epoch: u64) {
        self.trusted.push(Trusted { epoch: format!("{epoch:x}"), until: None });
        let surplus = self.trusted.len().saturating_sub(MAX_EPOCHS);
        self.trusted.drain(..surplus);
    }

    /// Returns whether a position may be from before a step, although its time was shown after it as well.
    fn may_precede(&self, position: EventId) -> bool {
        // Other machines' clocks may have been ahead of the one that has noted the step.
        let was_shown_twice = self.from <= position.at && position.at <= self.until.plus(FAR_AHEAD);
        let epoch = format!("{:x}", position.epoch);
        let is_right = |ring: &Trusted| ring.epoch == epoch && ring.until.is_none_or(|until| position.at <= until);
        was_shown_twice && !self.trusted.iter().any(is_right)
    }
}

/// What a look at the clock has found.
#[derive(Clone, Copy, Debug)]
struct Look {
    now: Timestamp,
    /// The latest time that the clock has shown before it went back.
    went_back_from: Timestamp,
}

impl Look {
    /// Returns whether the clock was set back before this look, and after the one before it if there was one.
    fn finds_step(&self, before: Option<Self>) -> bool {
        match before {
            None => self.now < self.went_back_from,
            Some(before) => self.now < before.now || before.went_back_from < self.went_back_from,
        }
    }
}

impl Manager {
    /// Notes each time that the clock of this process was set back, and that this ring began after those of before,
    /// until the manager stops.
    pub(in crate::manager) async fn keep_steps_noted(&self) {
        let (shared, mut last, mut step) = (&self.shared, None, None);
        // A step that the first look finds was before the ring began.
        let mut is_new = true;
        loop {
            let look = Look { now: shared.clock.now(), went_back_from: shared.clock.went_back_from() };
            if look.finds_step(last) {
                let until = last.map_or(look.now, |last: Look| last.now).max(look.went_back_from);
                let (earliest, latest) = step.unwrap_or((look.now, until));
                step = Some((look.now.min(earliest), until.max(latest)));
                is_new &= last.is_none();
            }
            if step.is_some() || is_new {
                match self.note_step(step, is_new).await {
                    Ok(()) => (step, is_new) = (None, false),
                    Err(error) => tracing::debug!(%error, "that the clock was set back is noted later"),
                }
            }
            last = Some(look);
            if shared.stopping.run_until_cancelled(sleep(EVERY)).await.is_none() {
                return;
            }
        }
    }

    /// Notes to which time and from which the clock was set back, if it was, and that the ring of this process
    /// `began_after` that.
    async fn note_step(
        &self,
        step: Option<(Timestamp, Timestamp)>,
        began_after: bool,
    ) -> Result<(), WriteError<Record>> {
        let (steps, version) = self.steps().await?;
        let mut steps = match (steps, step) {
            (None, None) => return Ok(()),
            (Some(steps), None) => steps,
            (steps, Some((from, until))) => Steps::and(steps, from, until),
        };
        if began_after {
            steps.trust(self.shared.observe.events.epoch);
        }
        self.shared.store.write_record(RecordWrite::put(key(), body(&steps)?, version)).await.map(drop)
    }

    async fn steps(&self) -> Result<(Option<Steps>, Option<Version>), StoreError> {
        match self.shared.store.record(&key()).await? {
            Some(record) => Ok((Some(record.read()?), Some(record.version))),
            None => Ok((None, None)),
        }
    }

    /// Returns whether what was written after a position of another process may lie before it in time.
    pub(super) async fn may_lie_before(&self, position: EventId) -> Result<bool, StoreError> {
        if position.at > self.shared.clock.now().plus(FAR_AHEAD) {
            return Ok(true);
        }
        let (steps, _) = self.steps().await?;
        Ok(steps.is_some_and(|steps| steps.may_precede(position)))
    }
}

fn key() -> RecordKey {
    RecordKey::new(RecordKind::Setting, RecordName::system(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1_900_000_000_000).plus(Duration::from_secs(seconds))
    }

    #[test]
    fn every_step_is_found_also_one_between_the_times_of_those_before() {
        let look = |now, went_back_from| Look { now: at(now), went_back_from: at(went_back_from) };
        assert!(!look(10, 0).finds_step(None) && look(10, 20).finds_step(None));
        let mut last = look(1_000, 4_600);
        for (next, is_step) in [
            (look(1_030, 4_600), false),
            (look(1_010, 4_600), true),
            (look(1_011, 4_600), false),
            // The step was from a later time than ever, and the look comes late.
            (look(5_000, 6_000), true),
            (look(7_000, 6_000), false),
        ] {
            assert_eq!(next.finds_step(Some(last)), is_step, "{last:?}, {next:?}");
            last = next;
        }
    }

    #[test]
    fn a_position_is_doubted_in_the_times_that_were_shown_twice_and_no_later() {
        let mut steps = Steps::and(Some(Steps::and(None, at(1_000), at(4_600))), at(2_000), at(3_000));
        assert_eq!((steps.from, steps.until), (at(1_000), at(4_600)));
        steps.trust(0xa1);
        for (time, epoch, is_doubted) in [
            (999, 7, false),
            (1_000, 7, true),
            (1_000, 0xa1, false),
            (4_660, 7, true),
            (4_661, 7, false),
            (4_661, 0, false),
            (4_600, 0, true),
        ] {
            assert_eq!(steps.may_precede(EventId { at: at(time), epoch, seq: 1 }), is_doubted, "{time} {epoch:x}");
        }
    }

    /// A process that begins while the clock is behind cannot know whether it was set back since the one before it.
    #[test]
    fn positions_up_to_the_time_of_a_later_step_stay_right() {
        let mut steps = Steps::and(None, at(1_000), at(9_000));
        steps.trust(1);
        let mut steps = Steps::and(Some(steps), at(2_000), at(9_000));
        steps.trust(2);
        let steps = Steps::and(Some(steps), at(3_000), at(9_000));
        for (time, epoch, is_doubted) in
            [(2_000, 1, false), (2_001, 1, true), (3_000, 2, false), (3_001, 2, true), (1_500, 3, true)]
        {
            assert_eq!(steps.may_precede(EventId { at: at(time), epoch, seq: 1 }), is_doubted, "{time} {epoch}");
        }
    }
}
