//! Whether a host answers, and when one that does not is called again.
//!
//! A host to which no connection comes about is left alone by all, and one call finds out for all. One that takes
//! connections and does not answer in time may be slow on one path alone, or for those alone who wait for a short time:
//! it is left alone by the parties whose own calls had no answer, and each of them finds out for itself. An answer to
//! any of them ends both.
//!
//! A call that finds out and has no answer yet counts as one more that has failed: it puts off the next one, and no
//! longer than that. So a call that hangs keeps nobody from calling a host that answers again.

use std::collections::HashMap;
use std::time::Duration;

use super::shares::Party;
use crate::clock::Timestamp;
use crate::executor::{CallError, HttpAnswer};

/// How many calls in a row may fail before the host is left alone.
pub(super) const FAILURES: u32 = 5;
/// How many of them a party has to have made itself, unless no connection comes about.
const OWN_FAILURES: u32 = 2;
/// How long a host is left alone at first; twice as long after each further failure. It is left alone no shorter.
pub(super) const LEFT_ALONE: Duration = Duration::from_secs(1);
/// How long a host is left alone at most.
pub(super) const LEFT_ALONE_AT_MOST: Duration = Duration::from_secs(300);
/// The part of the smallest margin of those that wait after which the host is called again at the latest.
const PART: u32 = 4;
/// Of how many parties failures are remembered for each host, beside those that find out.
pub(super) const PARTIES: usize = 1_000;

/// How a call has ended, as far as it says something about the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The host has answered.
    Answer,
    /// The host took the connection, or may have, and did not answer in time or as a whole.
    Silence,
    /// No connection came about.
    NoConnection,
    /// Nothing was sent, so nothing is known.
    Nothing,
}

impl Heard {
    /// Returns what the outcome of a call says about its host.
    pub(crate) const fn of(outcome: &Result<HttpAnswer, CallError>) -> Self {
        match outcome {
            Ok(_) => Self::Answer,
            Err(CallError::TimedOut(_) | CallError::Broken(_) | CallError::NoTls(_)) => Self::Silence,
            Err(CallError::Unresolvable { .. } | CallError::Unreachable(_)) => Self::NoConnection,
            Err(CallError::Refused(_) | CallError::Unsendable(_) | CallError::Busy) => Self::Nothing,
        }
    }
}

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The caller may call as any other does.
    Closed,
    /// It may call, to find out whether the host answers again.
    Try,
    /// Another one finds out.
    Trying,
    /// The host is called again after this long.
    Open(Duration),
}

/// What a call has known of the host when it began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    failures: u32,
    own: u32,
    answers: u64,
    at: Timestamp,
    tries: Option<For>,
}

impl Known {
    /// Returns whether the call finds out whether the host answers again.
    pub(super) const fn is_try(&self) -> bool {
        self.tries.is_some()
    }
}

/// For whom a call finds out whether the host answers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    All,
    Itself,
}

/// What is known of a host.
#[derive(Default)]
pub(super) struct Breaker {
    /// The calls in a row that have failed, by all parties, and when one ended last.
    failures: u32,
    ended_at: Timestamp,
    /// The latest of them in a row of which no connection came about.
    unconnected: Failed,
    /// The parties whose calls have failed since the host last answered anybody.
    failed: HashMap<Party, Failed>,
    /// The smallest margin of those that wait since the last of the calls that have failed.
    smallest: Option<Duration>,
    /// How often it has answered.
    answers: u64,
}

/// The failures in a row of all or of a party, and the calls under way that find out.
#[derive(Clone, Copy, Default)]
struct Failed {
    failures: u32,
    /// When the latest of them began, and when one ended last.
    began_at: Timestamp,
    ended_at: Timestamp,
    /// How many calls find out, and when the latest one began.
    tries: u32,
    tried_at: Timestamp,
}

impl Failed {
    /// Returns what one may do that has had `spared` failures before it left the host alone.
    fn look(&self, spared: u32, margin: Duration, now: Timestamp) -> Look {
        let more = self.failures.saturating_sub(spared).saturating_add(self.tries);
        let backoff = LEFT_ALONE.saturating_mul(1 << more.min(16)).min(LEFT_ALONE_AT_MOST);
        let began_at = if self.tries > 0 { self.began_at.max(self.tried_at) } else { self.began_at };
        let next = began_at.plus(backoff.min(margin / PART).max(LEFT_ALONE)).max(self.ended_at.plus(LEFT_ALONE));
        match next.since(now) {
            Duration::ZERO => Look::Try,
            _ if self.tries > 0 => Look::Trying,
            wait => Look::Open(wait),
        }
    }

    /// Forgets times that are to come: the clock was set back since.
    fn forget_times_ahead(&mut self, now: Timestamp) {
        for at in [&mut self.began_at, &mut self.ended_at, &mut self.tried_at] {
            // What two threads have read from the clock may be in another order.
            if at.since(now) > LEFT_ALONE {
                *at = Timestamp::default();
            }
        }
    }

    fn fail(&mut self, began_at: Timestamp, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        (self.began_at, self.ended_at) = (self.began_at.max(began_at.min(now)), now);
    }
}

impl Breaker {
    /// Returns whether the host is left alone by all.
    const fn is_open_for_all(&self) -> bool {
        self.unconnected.failures >= FAILURES
    }

    /// Returns whether anybody leaves the host alone, or may.
    pub(super) const fn may_be_open(&self) -> bool {
        self.failures >= FAILURES
    }

    /// Returns whether this party may call without finding out anything.
    pub(super) fn is_closed_for(&self, party: &Party) -> bool {
        let is_own = || self.failed.get(party).is_some_and(|failed| failed.failures >= OWN_FAILURES);
        !self.may_be_open() || !(self.is_open_for_all() || is_own())
    }

    /// Returns whether something is to be remembered of the host at `now`.
    pub(super) fn is_recent(&self, now: Timestamp) -> bool {
        let is_ahead = self.ended_at.since(now) > LEFT_ALONE;
        self.may_be_open() && !is_ahead && now.since(self.ended_at) <= LEFT_ALONE_AT_MOST
    }

    /// Returns whether a party may call that waits for this long at the most, and takes note of that.
    pub(super) fn look(&mut self, party: &Party, margin: Duration, now: Timestamp) -> Look {
        if self.is_closed_for(party) {
            return Look::Closed;
        }
        self.forget_times_ahead(party, now);
        self.smallest = Some(self.smallest.map_or(margin, |smallest| smallest.min(margin)));
        self.look_again(party, margin, now)
    }

    /// Returns whether a party may call that waits since it looked.
    pub(super) fn look_again(&self, party: &Party, margin: Duration, now: Timestamp) -> Look {
        if self.is_closed_for(party) {
            return Look::Closed;
        }
        // What the host does to all counts from the last try of anybody, and else each has its own turn.
        match self.failed.get(party) {
            _ if self.is_open_for_all() => {
                let smallest = self.smallest.map_or(margin, |smallest| smallest.min(margin));
                self.unconnected.look(FAILURES, smallest, now)
            }
            Some(failed) => failed.look(OWN_FAILURES, margin, now),
            None => Look::Closed,
        }
    }

    /// Begins a call of a party.
    pub(super) fn begin(&mut self, party: &Party, is_try: bool, now: Timestamp) -> Known {
        let own = self.failed.get(party).map_or(0, |failed| failed.failures);
        let tries = is_try.then_some(if self.is_open_for_all() { For::All } else { For::Itself });
        let known = Known { failures: self.failures, own, answers: self.answers, at: now, tries };
        if let Some(failed) = self.tried_by(party, &known) {
            failed.tries = failed.tries.saturating_add(1);
            failed.tried_at = now;
        }
        known
    }

    /// Takes note of what a call has heard.
    pub(super) fn heard(&mut self, party: &Party, known: Known, heard: Heard, now: Timestamp) {
        let is_connected = match heard {
            Heard::Nothing => return,
            Heard::Answer => {
                *self = Self { answers: self.answers.wrapping_add(1), ..Self::default() };
                return;
            }
            Heard::Silence => true,
            Heard::NoConnection => false,
        };
        self.forget_times_ahead(party, now);
        self.ended_at = now;
        // Calls that were under way together fail together: they are one failure. Those that find out began one by one.
        let is_try = known.is_try() && known.answers == self.answers;
        if is_try || self.failures == known.failures {
            self.failures = self.failures.saturating_add(1);
            match is_connected {
                // Those that find out go on, each for itself from now on.
                true => self.unconnected = Failed { tries: self.unconnected.tries, ..Failed::default() },
                false => self.unconnected.fail(known.at, now),
            }
            // Those that wait say so again until the next try.
            self.smallest = None;
        } else if !is_connected {
            self.unconnected.ended_at = now;
        }
        if !self.failed.contains_key(party) {
            self.make_room(now);
        }
        let failed = self.failed.entry(party.clone()).or_default();
        match is_try || failed.failures == known.own {
            true => failed.fail(known.at, now),
            false => failed.ended_at = now,
        }
    }

    /// Ends a call that finds out, whatever was heard.
    pub(super) fn tried(&mut self, party: &Party, known: &Known) {
        if let Some(failed) = self.tried_by(party, known) {
            failed.tries = failed.tries.saturating_sub(1);
        }
    }

    /// Returns that for which a call finds out, unless the host has answered since the call began.
    fn tried_by(&mut self, party: &Party, known: &Known) -> Option<&mut Failed> {
        match known.tries? {
            _ if known.answers != self.answers => None,
            For::All => Some(&mut self.unconnected),
            For::Itself => self.failed.get_mut(party),
        }
    }

    fn forget_times_ahead(&mut self, party: &Party, now: Timestamp) {
        self.unconnected.forget_times_ahead(now);
        if let Some(failed) = self.failed.get_mut(party) {
            failed.forget_times_ahead(now);
        }
    }

    /// Forgets parties that are too many: those that have not failed for long, and else the one whose last failure is
    /// the oldest.
    fn make_room(&mut self, now: Timestamp) {
        if self.failed.len() < PARTIES {
            return;
        }
        let is_recent = |failed: &Failed| now.since(failed.ended_at) <= LEFT_ALONE_AT_MOST && failed.ended_at <= now;
        self.failed.retain(|_, failed| failed.tries > 0 || is_recent(failed));
        if self.failed.len() >= PARTIES {
            let others = self.failed.iter().filter(|(_, failed)| failed.tries == 0);
            let first = others.min_by_key(|(_, failed)| failed.ended_at).map(|(party, _)| party.clone());
            if let Some(party) = first {
                self.failed.remove(&party);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.unconnected.tries == 0 && self.failed.values().all(|failed| failed.tries == 0)
    }

    #[cfg(test)]
    pub(super) fn parties(&self) -> usize {
        self.failed.len()
    }
}
