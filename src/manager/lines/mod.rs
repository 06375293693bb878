//! Lines: the jobs that name one ordering key run one after another, in the order in which their submissions were
//! accepted, over all managers of a store.
//!
//! A key that has live jobs has a document in the store ([`document`]). It says which place in the line is allotted
//! next, and announces the jobs whose places its last write has allotted. A job carries its place. *Settled* is said of
//! a place whose job was written with it, or can be written with it no more ([`crate::manager::announced`]).
//!
//! - A submission, or a return from an end on request, allots places by a write of the document, and then writes the
//!   jobs with these ([`allotting`]). The document is written over only after all places that it announces were found
//!   to be settled, later than it was read. So when a place is allotted, all smaller ones are settled, but for those
//!   that the same write allots.
//! - A job is claimed only after a look, later than the version of the job that the claim goes by, at which it was the
//!   *head* of its line, the live job with the smallest place, and all places that were allotted with its own and
//!   before it were settled ([`checking`]).
//! - The document is removed only under a version that was read before no job of the line was found to be live and all
//!   places to be settled ([`keeping`]). The next one begins with the first place again.
//!
//! Why no two jobs of a key run together, and none before one that was accepted before it. Let a job with the place *s*
//! be claimed, and let *t* be the time of the look before. All places before *s* are settled at *t*. So at *t* no job
//! with a smaller place is live, and none becomes live any more: its creation is over, and a return gives it another
//! place, which is allotted later and so is larger. The claim is accepted only if the job still is as it was read
//! before *t*, so it had the place *s* all the time. Of two claimed jobs, take the one with the larger place: at its
//! *t* the other one was not live. It had ended, and its own claim, if it was still under way, meets a conflict, since
//! the end was written over the version that the claim goes by; or its claim went by a place that it does not have any
//! more, and meets a conflict too. That holds however long a manager stands still between its requests, and whatever
//! the clocks show. And of two submissions of which one begins after the other was answered, the later one gets the
//! larger place, since the document is written over in between; or it begins the line anew, and the other job had ended
//! by then.
//!
//! A place is never the reason to claim a job, only to wait: so places may begin anew in a line that had no live job.

mod allotting;
mod checking;
mod document;
mod keeping;

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub(super) use allotting::Places;
pub(super) use checking::Request;
use checking::Verdict;
pub(super) use document::Wanted;

use crate::job::{Job, JobId, Ordered, OrderingKey, State};
use crate::manager::Manager;
use crate::manager::turns::KeyTurns;
use crate::store::{Head, StoreError, Version, Versioned};

/// The number of counters that the ends of jobs are counted in, each for a part of the keys.
const COUNTERS: usize = 256;

/// What a manager knows of the lines.
pub(super) struct Lines {
    /// The turns of calls at the keys.
    pub(super) turns: KeyTurns<OrderingKey>,
    /// The documents that this manager wrote last and whose places are all settled: the version, and the next place.
    settled: Mutex<HashMap<OrderingKey, (Version, u64)>>,
    /// Up to which place of those that a version of the document announces it is known that they are settled.
    looked_at: Mutex<HashMap<OrderingKey, (Version, u64)>>,
    /// The first place that is not settled of lines in which a job waits for that, and since when that is known.
    missed: Mutex<HashMap<OrderingKey, (u64, Instant)>>,
    /// How many jobs of lines were seen to end.
    ended: [AtomicU64; COUNTERS],
    hasher: RandomState,
    requests: mpsc::UnboundedSender<Request>,
}

impl Lines {
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<Request>) {
        let (requests, taken) = mpsc::unbounded_channel();
        let lines = Self {
            turns: KeyTurns::default(),
            settled: Mutex::default(),
            looked_at: Mutex::default(),
            missed: Mutex::default(),
            ended: [const { AtomicU64::new(0) }; COUNTERS],
            hasher: RandomState::new(),
            requests,
        };
        (lines, taken)
    }

    /// Returns by how much more is kept in each collection that has an entry for a key than its bound.
    #[cfg(test)]
    pub(super) fn kept_by_key(&self) -> Vec<(&'static str, usize)> {
        let beyond = |len: usize| len.saturating_sub(allotting::MANY_LINES);
        vec![
            ("turns at lines", self.turns.kept()),
            ("settled lines", beyond(self.settled.lock().len())),
            ("lines looked at", beyond(self.looked_at.lock().len())),
            ("missing places", beyond(self.missed.lock().len())),
        ]
    }

    fn counter(&self, key: &OrderingKey) -> &AtomicU64 {
        &self.ended[self.hasher.hash_one(key) as usize % COUNTERS]
    }
}

impl Manager {
    /// Returns those of the candidates that are first in their lines, and those of no line. The others go back to the
    /// dispatch, which holds them.
    pub(super) async fn in_order(&self, candidates: Vec<Versioned>) -> Vec<Versioned> {
        if !candidates.iter().any(|candidate| candidate.job.spec.ordering().is_some()) {
            return candidates;
        }
        let lines = &self.shared.lines;
        let (ordered, mut free): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|candidate| candidate.job.spec.ordering().is_some());
        let counts: Vec<u64> = ordered.iter().filter_map(|candidate| self.ends_of(&candidate.job)).collect();
        let (answer, verdicts) = oneshot::channel();
        let asked = ordered.clone();
        // Without the task, which ends with the manager, nothing is claimed.
        drop(lines.requests.send(Request { candidates: asked, answer }));
        let verdicts = verdicts.await.unwrap_or_default().into_iter().chain(std::iter::repeat_with(|| Verdict::Failed));
        for ((candidate, count), verdict) in ordered.into_iter().zip(counts).zip(verdicts) {
            match verdict {
                Verdict::First => free.push(candidate),
                Verdict::Now(now) => self.shared.dispatch.settle(&candidate.job.id, now),
                Verdict::Behind(first) => self.hold_in_line(candidate, first.as_ref(), count),
                Verdict::Failed => self.hold_in_line(candidate, None, count),
            }
        }
        free
    }

    /// Holds a candidate that is not first in its line, but this one if that is known. `count` is how many jobs had
    /// been seen to end before that was found out.
    fn hold_in_line(&self, candidate: Versioned, first: Option<&Head>, count: u64) {
        let Some(key) = candidate.job.spec.ordering_key().cloned() else { return };
        self.shared.dispatch.hold_in_line(&key, candidate, first);
        // The job before it may have ended between the look and now.
        if self.shared.lines.counter(&key).load(Ordering::Acquire) > count {
            self.shared.dispatch.let_go_in_line(&key, None);
        }
    }

    fn ends_of(&self, job: &Job) -> Option<u64> {
        let key = job.spec.ordering_key()?;
        Some(self.shared.lines.counter(key).load(Ordering::Acquire))
    }

    /// Returns for each of these jobs, where it waits, the one that comes before it in the line of its ordering key, as
    /// far as a search shows.
    ///
    /// # Errors
    /// [`StoreError`] when the store does not answer.
    pub(super) async fn first_in_lines(&self, jobs: &[&Job]) -> Result<Vec<Option<Head>>, StoreError> {
        let line_of = |job: &&Job| job.spec.ordering().filter(|_| job.state == State::Available).cloned();
        let lines: Vec<Option<Ordered>> = jobs.iter().map(line_of).collect();
        let keys: BTreeSet<&OrderingKey> = lines.iter().flatten().map(|ordered| &ordered.key).collect();
        let keys: Vec<OrderingKey> = keys.into_iter().cloned().collect();
        if keys.is_empty() {
            return Ok(jobs.iter().map(|_| None).collect());
        }
        let heads = self.shared.store.heads(&keys).await?;
        let heads: Vec<(OrderingKey, Head)> =
            keys.into_iter().zip(heads).filter_map(|(key, head)| Some((key, head?))).collect();
        let ids: Vec<JobId> = heads.iter().map(|(_, head)| head.job.clone()).collect();
        let found = if ids.is_empty() { Vec::new() } else { self.shared.store.get(&ids).await? };
        let mut first: HashMap<OrderingKey, Head> = HashMap::new();
        for ((key, head), now) in heads.into_iter().zip(found) {
            let still = now.filter(|now| {
                !now.job.state.name().is_final() && now.job.spec.ordering().is_some_and(|now| now.seq == head.seq)
            });
            first.extend(still.map(|now| (key, Head { state: now.job.state.name(), ..head })));
        }
        let before = |ordered: Option<Ordered>| {
            let Ordered { key, seq, .. } = ordered?;
            first.get(&key).filter(|head| head.seq < seq).cloned()
        };
        Ok(lines.into_iter().map(before).collect())
    }

    /// Takes note of a job that was written: if it has ended, the next of its line may go on.
    pub(super) fn note_line(&self, before: &Job, after: Option<&Job>) {
        let Some(ordered) = before.spec.ordering().filter(|_| !before.state.name().is_final()) else { return };
        if after.is_some_and(|job| !job.state.name().is_final()) {
            return;
        }
        self.shared.lines.counter(&ordered.key).fetch_add(1, Ordering::AcqRel);
        let ended: (u64, &JobId) = (ordered.seq, &before.id);
        self.shared.dispatch.let_go_in_line(&ordered.key, Some(ended));
    }
}
