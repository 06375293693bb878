//! Limits: how many jobs of a queue, kind, owner or key run at once, over all managers of a store.
//!
//! A limit that runs jobs has a document in the store that lists its *slots* ([`slots`]): which job has one, for the
//! claim under which fence. A claim takes its slots before it is made ([`taking`], which says why no limit is
//! exceeded). Nothing is written when a job ends: a slot is free once its job does not run under its fence any more,
//! and is given away by the write that takes the next. Jobs for which there is no slot are held by the dispatch
//! meanwhile.
//!
//! A limit can keep places free for urgent jobs ([`urgent`]). A manager whose urgent jobs find all slots taken again by
//! less urgent ones elsewhere has the others leave it some ([`waiting`]).
//!
//! Jobs that a rate holds go on at the moment of its next token ([`tokens`]).
//!
//! A slot that comes free at another manager is found by looks, which follow each other closely where jobs are short
//! ([`looks`]). Managers whose jobs wait for one slot take turns ([`giving_way`]).
//!
//! [`settings`] are the limits that are set for all; a job can also say itself how many of its key run at once.

mod bucket;
mod documents;
mod forgetting;
mod giving_way;
mod looks;
mod settings;
mod slots;
mod taking;
mod tokens;
mod urgent;
mod waiting;

use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub use bucket::Rate;
pub(super) use documents::Request;
use documents::{Documents, Under, Verdict, Wanted};
use looks::Looks;
pub use settings::{LimitSettings, LimitState, NewLimit, SlotHolder};
pub(super) use settings::{LimitSettingsCache, Reached, Why};
use slots::{Evidence, Fate, Holder};
use tokens::Spent;
pub use urgent::Urgent;

use crate::job::{Job, JobId, LimitName, LimitScope, RecordName, State};
use crate::manager::Manager;
use crate::store::{StoreError, Versioned};

/// How long after the token of a rate was asked for a claim may be made with it.
const TOKEN_LASTS: Duration = Duration::from_secs(2);

/// The limits as a manager knows them.
pub(super) struct Limits {
    settings: LimitSettingsCache,
    documents: Documents,
    spent: Spent,
    looks: Looks,
    requests: mpsc::UnboundedSender<Request>,
}

impl Limits {
    pub(super) fn new(settings: LimitSettingsCache) -> (Self, mpsc::UnboundedReceiver<Request>) {
        let (requests, taken) = mpsc::unbounded_channel();
        let (documents, spent, looks) = Default::default();
        (Self { settings, documents, spent, looks, requests }, taken)
    }

    /// Reads the limits that are set for all.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot list them.
    pub(super) async fn list_settings(&self) -> Result<(), StoreError> {
        self.settings.list().await
    }

    /// Reads the limits of these records in real time.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot read them.
    pub(super) async fn read_settings(&self, names: &[RecordName]) -> Result<(), StoreError> {
        self.settings.read(names).await
    }
}

/// The slots that claims have taken. Those that are not known to be used when this is dropped are looked at before they
/// are given away.
pub(super) struct TakenSlots {
    manager: Manager,
    taken: Vec<Wanted>,
}

impl TakenSlots {
    /// Records which of the claims were written.
    pub(super) fn settle(mut self, claimed: &[Versioned]) {
        // Most claims need no slots.
        if self.taken.is_empty() {
            return;
        }
        let claimed: HashSet<&JobId> = claimed.iter().map(|claimed| &claimed.job.id).collect();
        for wanted in std::mem::take(&mut self.taken) {
            // A job that has ended since is known to have: that is not forgotten.
            let is_claimed = claimed.contains(&wanted.candidate.job.id);
            let fate = if is_claimed { Fate::Runs } else { self.fate_without_claim(&wanted.candidate) };
            let documents = &self.manager.shared.limits.documents;
            if fate == Fate::Gone {
                for name in documents.refuse(&wanted) {
                    self.manager.shared.dispatch.let_go(&name, 1);
                }
            }
            documents.settle(&wanted, if fate == Fate::Gone { Fate::Unknown } else { fate });
        }
    }
}

impl TakenSlots {
    /// Returns what became of the slots for a claim that was not written. Where the job was written since it was read,
    /// such as by another manager's claim, the claim has met that, and is accepted no more.
    fn fate_without_claim(&self, candidate: &Versioned) -> Fate {
        let Some(later) = self.manager.shared.work.known.later(candidate) else { return Fate::Unknown };
        match Holder::of_next_claim(candidate, None).evidence(later.as_deref()) {
            // The other one has taken the same slots.
            Evidence::Runs => Fate::Runs,
            Evidence::Over | Evidence::MayBeClaimed => Fate::Gone,
        }
    }
}

impl Drop for TakenSlots {
    fn drop(&mut self) {
        for wanted in &self.taken {
            self.manager.shared.limits.documents.settle(wanted, Fate::Unknown);
        }
    }
}

impl Manager {
    /// Returns the limits that a job is under.
    fn limits_of(&self, job: &Job) -> Vec<Under> {
        let set = &self.shared.limits.settings;
        let own = job.spec.concurrency().map(|concurrency| concurrency.max);
        if own.is_none() && !set.has_any() {
            return Vec::new();
        }
        let under = |name: LimitName| {
            let own = own.filter(|_| name.scope == LimitScope::Key);
            let set = set.get(&name);
            let set = set.as_deref();
            (set.is_some() || own.is_some()).then(|| Under {
                name,
                limit: set.and_then(|set| set.max_concurrent),
                urgent: set.and_then(|set| set.urgent),
                own,
                rate: set.and_then(|set| set.rate),
                paused_until: set.and_then(|set| set.paused_until),
                set_at: set.map(|set| set.set_at),
            })
        };
        job.limit_names().filter_map(under).collect()
    }

    /// Returns whether a job is under a limit.
    pub(super) fn is_limited(&self, job: &Job) -> bool {
        job.spec.concurrency().is_some() || !self.limits_of(job).is_empty()
    }

    /// Takes the slots that candidates need, and returns those that have them and may be claimed. The others go back
    /// to the dispatch, which holds those for which there is no slot.
    pub(super) async fn within_limits(&self, candidates: Vec<Versioned>) -> (Vec<Versioned>, TakenSlots) {
        let mut taken = TakenSlots { manager: self.clone(), taken: Vec::new() };
        if !candidates.iter().any(|candidate| self.is_limited(&candidate.job)) {
            return (candidates, taken);
        }
        let (mut free, mut wanted) = (Vec::new(), Vec::new());
        for candidate in candidates {
            match self.limits_of(&candidate.job) {
                under if under.is_empty() => free.push(candidate),
                under => wanted.push(Wanted { candidate, under }),
            }
        }
        let (answer, verdicts) = oneshot::channel();
        let asked: Vec<Wanted> = wanted.iter().map(Wanted::clone).collect();
        let asked_at = Instant::now();
        // Without the task, which ends with the manager, nothing is claimed.
        drop(self.shared.limits.requests.send(Request { wanted: asked, answer }));
        let verdicts = verdicts.await.unwrap_or_default().into_iter().chain(std::iter::repeat(Verdict::Failed));
        let mut back = Vec::new();
        // A process can be stopped between the two: what was to begin then must not come on top of what begins now.
        let are_tokens_old = asked_at.elapsed() >= TOKEN_LASTS;
        for (wanted, verdict) in wanted.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Granted if are_tokens_old && wanted.under.iter().any(|under| under.rate.is_some()) => {
                    self.shared.limits.documents.learn(&wanted, Fate::Unknown);
                    back.push(wanted.candidate);
                }
                Verdict::Granted => {
                    for under in wanted.under.iter().filter(|under| under.rate.is_some()) {
                        self.shared.limits.spent.began(&under.name);
                    }
                    free.push(wanted.candidate.clone());
                    taken.taken.push(wanted);
                }
                Verdict::Full(name, gone, below) => {
                    if wanted.under.iter().any(|under| under.name == name && under.rate.is_some()) {
                        self.shared.limits.spent.note(&name);
                    }
                    let left = self.shared.dispatch.hold(&name, wanted.candidate, below);
                    self.shared.hints.keep(left.as_slice());
                    // A slot may have come free between the decision and now.
                    if self.shared.limits.documents.gone(&name) > gone {
                        self.shared.dispatch.let_go(&name, 1);
                    }
                }
                Verdict::Failed => back.push(wanted.candidate),
            }
        }
        if !back.is_empty() {
            self.shared.dispatch.put_back(back);
        }
        (free, taken)
    }

    /// Takes note of a job that was written: if it has ended a claim, its slots are free.
    pub(super) fn note_slots(&self, before: &Job, after: Option<&Job>) {
        let ran = matches!(before.state, State::Running(_));
        let still = after.is_some_and(|job| matches!(job.state, State::Running(_)) && job.fence == before.fence);
        if !ran || still || self.shared.limits.documents.is_empty() {
            return;
        }
        for name in before.limit_names() {
            if self.shared.limits.documents.learn_of(&name, &before.id, before.fence, Fate::Gone) {
                self.shared.dispatch.let_go(&name, 1);
            }
        }
    }
}
