//! When the next job may begin under a rate of which nothing is left: the jobs that such a limit holds are let go at
//! the moment of its next token, and not with the next look at all limits.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::job::LimitName;
use crate::manager::Manager;

/// The shortest time between two rounds, in which the tokens of fast rates add up.
const LEAST: Duration = Duration::from_millis(2);
/// The longest, as while nobody takes the jobs that were let go.
const MOST: Duration = Duration::from_millis(100);

/// The limits whose rates had nothing left for a job, each with the number of jobs that were let go since and about
/// which nothing was decided yet.
#[derive(Default)]
pub(super) struct Spent(Mutex<BTreeMap<LimitName, usize>>);

impl Spent {
    /// Takes note of a limit whose rate has nothing left for a job, which is held.
    pub(super) fn note(&self, name: &LimitName) {
        self.0.lock().insert(name.clone(), 0);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Takes note of a job that began under a limit.
    pub(super) fn began(&self, name: &LimitName) {
        if let Some(let_go) = self.0.lock().get_mut(name) {
            *let_go = let_go.saturating_sub(1);
        }
    }

    /// Returns when jobs may be let go that wait for the token of a rate, if any do: as it is known, or at once.
    pub(super) fn next(&self, known: Option<Instant>) -> Option<Instant> {
        known.or_else(|| (!self.0.lock().is_empty()).then(|| Instant::now() + LEAST))
    }
}

impl Manager {
    /// Lets the jobs go on that limits hold whose rates have tokens again. Returns when it is to be called next; `None`
    /// when no job is held for want of a token.
    pub(super) fn let_go_at_rates(&self) -> Option<Instant> {
        let limits = &self.shared.limits;
        let names: Vec<(LimitName, usize)> =
            limits.spent.0.lock().iter().map(|(name, let_go)| (name.clone(), *let_go)).collect();
        let mut next: Option<Duration> = None;
        for (name, let_go) in names {
            let first = self.shared.dispatch.next_of(&name);
            let under = first.as_ref().and_then(|first| {
                self.limits_of(first).into_iter().find(|under| under.name == name && under.rate.is_some())
            });
            let (Some(first), Some(under)) = (first, under) else {
                limits.spent.0.lock().remove(&name);
                continue;
            };
            let room = limits.documents.room_to_give(&under, &first, self.shared.clock.now());
            if room > let_go {
                if let Some(let_go) = limits.spent.0.lock().get_mut(&name) {
                    *let_go = room;
                }
                self.shared.dispatch.let_go(&name, room - let_go);
            }
            // While there are tokens, what is decided about those that were let go comes first.
            let wait = limits.documents.next_token(&under).unwrap_or(MOST);
            next = Some(next.map_or(wait, |next| next.min(wait)));
        }
        next.map(|next| Instant::now() + next.clamp(LEAST, MOST))
    }
}
