//! What has been handed out since more urgent jobs were last looked for ([`super::urgent`]).

use crate::clock::Timestamp;
use crate::job::{Job, Priority};
use crate::query::SortKey;

/// The turn to look for a claim: the claims that come meanwhile wait for the look, and need none of their own.
pub(super) type Turn = tokio::sync::Mutex<()>;

/// How many candidates are taken to go before the next look, where fewer have gone since the last one.
const AHEAD: usize = 100;

/// What has been handed out of a lane, or of what a limit holds, since the last look.
#[derive(Debug, Default)]
pub(super) struct SinceLook {
    /// How many jobs were handed out.
    count: usize,
    /// The lowest priority of these.
    lowest: Option<Priority>,
    /// When the last look was.
    pub(super) looked_at: Option<Timestamp>,
    /// The key after which the last look goes on, since it was cut off.
    after: Option<SortKey>,
}

impl SinceLook {
    /// Takes note of a job that is handed out.
    pub(super) fn note(&mut self, job: &Job) {
        self.count += 1;
        self.lowest = Some(self.lowest.map_or(job.spec.priority, |lowest| lowest.min(job.spec.priority)));
    }

    /// Returns the priority above which jobs must not be missing, where these are next in the order of dispatch; `None`
    /// when nothing is.
    pub(super) fn least_urgent<'a>(&self, next: impl Iterator<Item = &'a Job>) -> Option<Priority> {
        let last = next.take(AHEAD.max(2 * self.count)).last()?;
        Some(self.lowest.map_or(last.spec.priority, |lowest| lowest.min(last.spec.priority)))
    }

    /// Begins a look, and returns the key after which it goes on.
    pub(super) fn begin(&mut self, now: Timestamp) -> Option<SortKey> {
        (self.count, self.lowest, self.looked_at) = (0, None, Some(now));
        self.after.take()
    }

    /// Has the next look go on after this key.
    pub(super) fn go_on_after(&mut self, last: Option<SortKey>) {
        self.after = last;
    }
}
