//! Whether a host answers, and when one that does not is called again.
//!
//! A host to which no connection comes about is left alone by all. One that takes connections and does not answer in
//! time may be slow on one path alone, or for those alone who wait for a short time: it is left alone by the parties
//! whose own calls had no answer. An answer to any of them ends both.

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
            Err(CallError::TimedOut(_) | CallError::Broken(_)) => Self::Silence,
            Err(CallError::Unresolvable { .. } | CallError::Unreachable(_)) => Self::NoConnection,
            Err(CallError::Refused(_) | CallError::Unsendable(_) | CallError::Busy) => Self::Nothing,
        }
    }
}

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It may call.
    Closed,
    /// It may call, as the only one, to find out whether the host answers again.
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
    at: Timestamp,
    pub(super) is_try: bool,
}

/// What is known of a host.
#[derive(Default)]
pub(super) struct Breaker {
    /// The calls in a row that have failed.
    failures: u32,
    /// The latest of them in a row of which no connection came about.
    unconnected: u32,
    /// When the latest of them began, and when one ended last.
    began_at: Timestamp,
    ended_at: Timestamp,
    /// The smallest margin of those that wait since then.
    smallest: Option<Duration>,
    /// The parties whose calls have failed since the host last answered anybody.
    failed: HashMap<Party, Failed>,
    is_trying: bool,
}

/// The failures of a party in a row, and when the last one began.
#[derive(Clone, Copy, Default)]
struct Failed {
    failures: u32,
    began_at: Timestamp,
}

impl Breaker {
    /// Returns whether this party may call without finding out anything.
    pub(super) fn is_closed_for(&self, party: &Party) -> bool {
        let is_own = || self.failed.get(party).is_some_and(|failed| failed.failures >= OWN_FAILURES);
        self.failures < FAILURES || !(self.unconnected >= FAILURES || is_own())
    }

    /// Returns whether something is to be remembered of the host at `now`.
    pub(super) fn is_recent(&self, now: Timestamp) -> bool {
        self.failures >= FAILURES && now.since(self.ended_at) <= LEFT_ALONE_AT_MOST
    }

    /// Returns whether a party may call that waits for this long at the most.
    pub(super) fn look(&mut self, party: &Party, margin: Duration, now: Timestamp) -> Look {
        if self.is_closed_for(party) {
            return Look::Closed;
        }
        let smallest = self.smallest.map_or(margin, |smallest| smallest.min(margin));
        self.smallest = Some(smallest);
        if self.is_trying {
            return Look::Trying;
        }
        // What the host does to all counts from the last try of anybody, and else each has its own turn.
        let (began_at, more, margin) = match self.failed.get(party) {
            _ if self.unconnected >= FAILURES => (self.began_at, self.unconnected - FAILURES, smallest),
            Some(failed) => (failed.began_at, failed.failures.saturating_sub(OWN_FAILURES), margin),
            None => return Look::Closed,
        };
        let backoff = LEFT_ALONE.saturating_mul(1 << more.min(16)).min(LEFT_ALONE_AT_MOST);
        let next = began_at.plus(backoff.min(margin / PART).max(LEFT_ALONE)).max(self.ended_at.plus(LEFT_ALONE));
        // One that is further ahead is by a clock that was set back since.
        match next.since(now) {
            Duration::ZERO => Look::Try,
            wait if wait > LEFT_ALONE_AT_MOST + LEFT_ALONE => Look::Try,
            wait => Look::Open(wait),
        }
    }

    /// Begins a call of a party.
    pub(super) fn begin(&mut self, party: &Party, is_try: bool, now: Timestamp) -> Known {
        self.is_trying |= is_try;
        let own = self.failed.get(party).map_or(0, |failed| failed.failures);
        Known { failures: self.failures, own, at: now, is_try }
    }

    /// Takes note of what a call has heard.
    pub(super) fn heard(&mut self, party: &Party, known: Known, heard: Heard, now: Timestamp) {
        let is_connected = match heard {
            Heard::Nothing => return,
            Heard::Answer => {
                *self = Self { is_trying: self.is_trying, ..Self::default() };
                return;
            }
            Heard::Silence => true,
            Heard::NoConnection => false,
        };
        (self.began_at, self.ended_at) = (self.began_at.max(known.at), now);
        // Calls that were under way together fail together: they are one failure.
        if self.failures == known.failures {
            self.failures = self.failures.saturating_add(1);
            self.unconnected = if is_connected { 0 } else { self.unconnected.saturating_add(1) };
            // Those that wait say so again until the next try.
            self.smallest = None;
        }
        let failed = self.failed.entry(party.clone()).or_default();
        if failed.failures == known.own {
            *failed = Failed { failures: known.own.saturating_add(1), began_at: known.at };
        }
    }

    #[cfg(test)]
    pub(super) const fn is_idle(&self) -> bool {
        !self.is_trying
    }

    /// Ends a try, whatever was heard.
    pub(super) fn tried(&mut self) {
        self.is_trying = false;
    }
}
