//! The documents of limits as this manager knows them: which jobs have slots, and what it decides on that.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::bucket::Rate;
use super::slots::{Fate, Holder, Slot, Slots};
use super::urgent::Urgent;
use crate::clock::Timestamp;
use crate::job::names::MAX_NAME_BYTES;
use crate::job::{Fence, Job, JobId, LimitName, Priority, RecordName};
use crate::store::{RecordKey, RecordKind, Version, Versioned};

/// The namespace of the names of documents whose limit's own is too long (RFC 9562, section 5.5).
const NAMESPACE: Uuid = Uuid::from_u128(0x1f6b_1d0e_4c53_4b6a_8f1d_77c2_9a40_5e11);

/// How long ago a slot must have been looked at, to be looked at again where others write to the store.
const LOOKED_AT_FOR: Duration = Duration::from_millis(200);

/// For how long after a limit was set jobs are counted that began without slots: longer than another manager takes to
/// learn of the limit.
const COUNTED_FOR: Duration = Duration::from_secs(5);

/// For how long a limit counts as new, whatever clock it was set by.
const NEW_FOR: Duration = Duration::from_secs(60);

/// The time between two such counts.
const COUNTED_EVERY: Duration = Duration::from_millis(500);

/// A limit that a job is under.
#[derive(Clone, Debug)]
pub(super) struct Under {
    pub(super) name: LimitName,
    /// How many jobs may run, if that is set for all jobs under the limit.
    pub(super) limit: Option<u32>,
    /// The places of these that are kept free for urgent jobs.
    pub(super) urgent: Option<Urgent>,
    /// How many jobs of its key run at once if the job is one of them, as it says itself.
    pub(super) own: Option<u32>,
    /// How many jobs may begin in a time.
    pub(super) rate: Option<Rate>,
    /// The time before which none may begin.
    pub(super) paused_until: Option<Timestamp>,
    /// When the limit was set. Jobs that began before have no slots.
    pub(super) set_at: Option<Timestamp>,
}

/// What a manager knows of a limit's slots.
pub(super) struct Known {
    pub(super) slots: Slots,
    /// How many slots were found to be gone so far.
    pub(super) gone: u64,
    /// When slots were last looked at.
    pub(super) looked_at: Option<Instant>,
    /// When the document was last read for a look.
    pub(super) read_at: Option<Instant>,
    /// When a slot was last asked for.
    pub(super) asked_at: Instant,
    /// Since when the jobs are known that run without slots, since the limit was set later; and when it was set.
    pub(super) counted: Option<(Timestamp, Instant)>,
    /// When they were last searched for.
    pub(super) counted_at: Option<Instant>,
}

/// What a look has seen of a limit: it is the same while nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) gone: u64,
    pub(super) version: Option<Version>,
}

/// Which slots a look is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// Those that have not been looked at for a while.
    Due,
    /// Those that other managers have taken: what ends here is known.
    OfOthers,
}

impl Known {
    /// Returns what the manager of this number knows of a limit that it has not read.
    pub(super) fn new(own: u32) -> Self {
        Self {
            slots: Slots::unread(own),
            gone: 0,
            looked_at: None,
            read_at: None,
            asked_at: Instant::now(),
            counted: None,
            counted_at: None,
        }
    }
}

impl Under {
    /// Returns whether the jobs under the limit have slots, since it says how many run at once.
    fn has_slots(&self) -> bool {
        self.limit.is_some() || self.own.is_some()
    }
}

impl Known {
    /// Returns for how many more jobs there is room, if `job` is the next.
    fn room(&mut self, under: &Under, job: &Job, now: Timestamp) -> usize {
        let free = self.free(under, job, now);
        let leaves = self.leaves_turns(under);
        if leaves { self.slots.turns.may_take(free, job.spec.priority, Instant::now()) } else { free }
    }

    /// Returns the room for jobs of which one is to be given a slot, `job` being the next. Counts the time for which
    /// slots are left to others.
    fn room_to_give(&mut self, under: &Under, job: &Job, now: Timestamp) -> usize {
        let free = self.free(under, job, now);
        if self.leaves_turns(under) {
            return self.slots.turns.leave(free, job.spec.priority, Instant::now());
        }
        self.slots.turns.pass_over();
        free
    }

    /// Returns whether slots are left to managers that ask for a turn. Who was beaten by jobs that are less urgent
    /// leaves them none.
    fn leaves_turns(&self, under: &Under) -> bool {
        under.has_slots() && !self.slots.marks.has_own()
    }

    /// Returns the room without regard to turns.
    fn free(&mut self, under: &Under, job: &Job, now: Timestamp) -> usize {
        if under.paused_until.is_some_and(|until| now < until) || self.leaves_to_others(job).is_some() {
            return 0;
        }
        let tokens = match under.rate {
            Some(rate) => self.slots.fill(rate, Instant::now(), now),
            None => {
                self.slots.rate = None;
                usize::MAX
            }
        };
        let slots = if under.has_slots() { self.slots.room(job, under.limit, under.own) } else { usize::MAX };
        tokens.min(slots).min(self.room_of_others(under, job))
    }

    /// Returns the priority below which jobs of this one's queue leave the slots to another manager, if the job does.
    fn leaves_to_others(&self, job: &Job) -> Option<Priority> {
        self.slots.marks.refuse(job, Instant::now())
    }

    /// Returns whether the job, for which there is no room, waits for a slot, and not for a token or a time.
    fn waits_for_a_slot(&self, under: &Under, job: &Job) -> bool {
        let has_none = || self.slots.room(job, under.limit, under.own) == 0 || self.room_of_others(under, job) == 0;
        under.has_slots() && has_none()
    }

    /// Marks that a job, for which there is no room, waits for a slot that a less urgent one got elsewhere, if one did.
    /// Returns whether the document is to be written.
    pub(super) fn mark_if_beaten(&mut self, under: &Under, job: &Job) -> bool {
        let is_refused = self.leaves_to_others(job).is_some() || !self.waits_for_a_slot(under, job);
        let beaten_by = self.slots.beaten_by(job).filter(|_| !is_refused);
        beaten_by.is_some_and(|lower| self.slots.marks.set(job, lower, Instant::now()))
    }

    /// Returns for how many more jobs there is room beside the places that are kept free for urgent ones.
    fn room_of_others(&self, under: &Under, job: &Job) -> usize {
        match (under.limit, under.urgent) {
            (Some(most), Some(urgent)) if !urgent.is(job.spec.priority) => {
                self.slots.room_of_others(job, urgent, urgent.most_others(most))
            }
            _ => usize::MAX,
        }
    }

    /// Returns below which priority a limit has no room that has none for `job`; `None` if it has none for any job.
    fn full_below(&mut self, under: &Under, job: &Job, now: Timestamp) -> Option<Priority> {
        if let Some(below) = self.leaves_to_others(job) {
            return Some(below);
        }
        let urgent = under.urgent?;
        let is_only_kept_free =
            self.room_of_others(under, job) == 0 && self.room(&Under { urgent: None, ..under.clone() }, job, now) > 0;
        is_only_kept_free.then_some(urgent.min_priority)
    }

    /// Takes what a job needs, for which there is room.
    fn take(&mut self, under: &Under, job: &Versioned) {
        if under.has_slots() {
            self.slots.take(job, under.own);
        }
        if under.rate.is_some() {
            self.slots.take_token();
        }
        self.asked_at = Instant::now();
    }

    /// Returns whether the jobs are to be counted that began before the limit was set: once, and a few times more while
    /// other managers may not know of it.
    pub(super) fn is_to_be_counted(&self, set_at: Timestamp, now: Timestamp) -> bool {
        let since = self.counted.filter(|(counted, _)| *counted == set_at).map(|(_, since)| since);
        let may_be_new = now.since(set_at) < NEW_FOR;
        since.is_none_or(|since| {
            let is_due = self.counted_at.is_none_or(|at| at.elapsed() >= COUNTED_EVERY);
            may_be_new && since.elapsed() < COUNTED_FOR && is_due
        })
    }

    pub(super) fn count(&mut self, running: impl IntoIterator<Item = Holder>, set_at: Timestamp) {
        self.slots.add_running(running);
        let now = Instant::now();
        if self.counted.is_none_or(|(counted, _)| counted != set_at) {
            self.counted = Some((set_at, now));
        }
        self.counted_at = Some(now);
    }
}

/// A candidate, and the limits that it is under.
#[derive(Clone)]
pub(in crate::manager) struct Wanted {
    pub(super) candidate: Versioned,
    pub(super) under: Vec<Under>,
}

/// What was decided about a candidate.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::manager) enum Verdict {
    /// It has all its slots, and may be claimed.
    Granted,
    /// A limit has no slot for it. Holds how often slots of the limit had been found gone then, and below which
    /// priority it has none; `None` if it has none for any job.
    Full(LimitName, u64, Option<Priority>),
    /// The store did not answer, or others kept writing.
    Failed,
}

/// A candidate that is being decided about.
pub(super) struct Open {
    pub(super) wanted: Wanted,
    pub(super) verdict: Option<Verdict>,
}

/// A request for slots.
pub(in crate::manager) struct Request {
    pub(super) wanted: Vec<Wanted>,
    pub(super) answer: oneshot::Sender<Vec<Verdict>>,
}

/// What was decided in memory.
#[derive(Default)]
pub(super) struct Decided {
    /// The limits whose documents have to be written.
    pub(super) changed: HashSet<LimitName>,
    /// The limits that had no slot for a candidate, with the priority below which they have none; `None` if they have
    /// none for any.
    pub(super) full: HashMap<LimitName, Option<Priority>>,
}

/// The documents that a manager knows, by their limits.
pub(super) struct Documents {
    known: Mutex<HashMap<LimitName, Known>>,
    /// The number of this manager, by which the others know it in documents.
    own: u32,
}

impl Default for Documents {
    fn default() -> Self {
        Self { known: Mutex::default(), own: Uuid::new_v4().as_fields().0 }
    }
}

impl Documents {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<LimitName, Known>> {
        self.known.lock()
    }

    /// Returns what is known of a limit that was not read.
    pub(super) fn unread(&self) -> Known {
        Known::new(self.own)
    }

    /// Returns what is known now of a limit; `None` if it is not known.
    pub(super) fn seen(&self, name: &LimitName) -> Option<Seen> {
        self.lock().get(name).map(|known| Seen { gone: known.gone, version: known.slots.version })
    }

    /// Records that a job is held for want of a slot of this limit.
    pub(super) fn waits(&self, name: &LimitName) {
        if let Some(known) = self.lock().get_mut(name) {
            known.slots.turns.waits(Instant::now());
        }
    }

    /// Returns whether no document is known.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Returns how often slots of a limit have been found gone.
    pub(super) fn gone(&self, name: &LimitName) -> u64 {
        self.lock().get(name).map_or(0, |known| known.gone)
    }

    /// Records what became of the claims of a candidate.
    pub(super) fn settle(&self, wanted: &Wanted, fate: Fate) {
        let job = &wanted.candidate.job;
        let mut known = self.lock();
        for under in &wanted.under {
            if let Some(known) = known.get_mut(&under.name) {
                known.slots.settle(&job.id, job.fence.next(), fate);
            }
        }
    }

    /// Records that the claim of a candidate is accepted no more. Returns the limits of which slots are gone by that.
    pub(super) fn refuse(&self, wanted: &Wanted) -> Vec<LimitName> {
        let mut known = self.lock();
        let refuse = |under: &Under| {
            let known = known.get_mut(&under.name)?;
            let is_gone = known.slots.refuse(&wanted.candidate);
            known.gone += u64::from(is_gone);
            is_gone.then(|| under.name.clone())
        };
        wanted.under.iter().filter_map(refuse).collect()
    }

    /// Decides about the candidates without a verdict, in their order, on the slots as they are known. Once a limit has
    /// no slot for one, the candidates after it get none of that limit either, so that none overtakes it for ever; only
    /// urgent ones do, where there is no slot for the others alone.
    pub(super) fn decide(&self, open: &mut [Open], now: Timestamp) -> Decided {
        let mut decided = Decided::default();
        let mut known = self.lock();
        for Open { wanted, verdict } in open.iter_mut().filter(|open| open.verdict.is_none()) {
            let job = &*wanted.candidate.job;
            let mut has_room = |under: &&Under| {
                let full_below = decided.full.get(&under.name);
                let is_full = full_below.is_some_and(|below| below.is_none_or(|below| job.spec.priority < below));
                !is_full && known.get_mut(&under.name).is_some_and(|known| known.room_to_give(under, job, now) > 0)
            };
            let mut without_room = wanted.under.iter().filter(|under| !has_room(under));
            if let Some(full) = without_room.next() {
                let is_only = without_room.next().is_none();
                let Some(known) = known.get_mut(&full.name) else {
                    *verdict = Some(Verdict::Full(full.name.clone(), 0, None));
                    continue;
                };
                let below = known.full_below(full, job, now);
                *verdict = Some(Verdict::Full(full.name.clone(), known.gone, below));
                if known.leaves_to_others(job).is_some() {
                    // Jobs of other queues have the slots.
                    continue;
                }
                decided.full.insert(full.name.clone(), below);
                if is_only && known.mark_if_beaten(full, job) {
                    decided.changed.insert(full.name.clone());
                }
                continue;
            }
            for under in &wanted.under {
                let Some(known) = known.get_mut(&under.name) else { continue };
                known.take(under, &wanted.candidate);
                decided.changed.insert(under.name.clone());
            }
            *verdict = Some(Verdict::Granted);
        }
        decided
    }

    /// Returns slots of these limits that have to be looked at, about as many as `most`: those first that have not been
    /// looked at for longest. Of those of others alone, these are no more, in the order of the limits and the slots. On
    /// a store of one's own, what runs is known.
    pub(super) fn doubtful<'a>(
        &self,
        names: impl Iterator<Item = &'a LimitName>,
        exclusive: bool,
        sight: Sight,
        most: usize,
    ) -> Vec<(LimitName, Holder)> {
        let mut known = self.lock();
        let mut names: Vec<&LimitName> = names.filter(|name| known.contains_key(*name)).collect();
        if sight == Sight::Due {
            names.sort_by_key(|name| known.get(*name).and_then(|known| known.looked_at));
        }
        let mut doubtful = Vec::new();
        for name in names {
            if doubtful.len() >= most {
                break;
            }
            let Some(known) = known.get_mut(name) else { continue };
            let is_due = match sight {
                Sight::Due => known.looked_at.is_none_or(|at| at.elapsed() >= LOOKED_AT_FOR),
                Sight::OfOthers => true,
            };
            let is_doubtful = |slot: &&Slot| match slot.fate {
                Fate::Runs if sight == Sight::OfOthers && slot.is_own => false,
                // One that another manager has just taken is as good as one that ran just now.
                Fate::Unknown => is_due || exclusive,
                Fate::Runs => is_due && !exclusive,
                Fate::Claiming | Fate::Gone => false,
            };
            let before = doubtful.len();
            let slots = known.slots.slots.iter().filter(is_doubtful);
            doubtful.extend(slots.map(|slot| (name.clone(), slot.holder.clone())));
            // What is its own is not looked at, and is as doubtful as before.
            if doubtful.len() > before && sight == Sight::Due {
                known.looked_at = Some(Instant::now());
            }
        }
        if sight == Sight::OfOthers {
            doubtful.truncate(most);
        }
        doubtful
    }

    /// Records what is known of a slot. Returns whether it was not known to be gone and is.
    pub(super) fn learn_slot(&self, name: &LimitName, holder: &Holder, fate: Fate) -> bool {
        self.learn_of(name, &holder.job, holder.fence, fate)
    }

    pub(super) fn learn_of(&self, name: &LimitName, job: &JobId, fence: Fence, fate: Fate) -> bool {
        let mut known = self.lock();
        let Some(known) = known.get_mut(name) else { return false };
        let is_gone = known.slots.learn(job, fence, fate);
        known.gone += u64::from(is_gone);
        is_gone
    }

    /// Records what is known of the slots for the next claim of a candidate.
    pub(super) fn learn(&self, wanted: &Wanted, fate: Fate) {
        let job = &wanted.candidate.job;
        for under in &wanted.under {
            self.learn_of(&under.name, &job.id, job.fence.next(), fate);
        }
    }

    /// Returns for how long it has been known that the claim of a slot has not come.
    pub(super) fn waits_since(&self, name: &LimitName, holder: &Holder) -> Duration {
        let now = Instant::now();
        let since = self.lock().get_mut(name).map_or(now, |known| known.slots.missed_since(holder, now));
        now.duration_since(since)
    }

    /// Returns how long it takes until the rate of a limit lets a job begin; `None` where it does, or where nothing is
    /// known of it.
    pub(super) fn next_token(&self, under: &Under) -> Option<Duration> {
        self.lock().get(&under.name)?.slots.next_token(under.rate?)
    }

    /// Returns for how many more jobs there are slots of a limit, as far as is known, if `job` is the next.
    pub(super) fn room(&self, under: &Under, job: &Job, now: Timestamp) -> usize {
        self.lock().get_mut(&under.name).map_or(1, |known| known.room(under, job, now))
    }

    /// Returns the same where jobs are to be let go: the time counts for which slots are left to others.
    pub(super) fn room_to_give(&self, under: &Under, job: &Job, now: Timestamp) -> usize {
        self.lock().get_mut(&under.name).map_or(1, |known| known.room_to_give(under, job, now))
    }
}

/// Returns the key of the document of a limit's slots.
pub(super) fn record_key(name: &LimitName) -> RecordKey {
    RecordKey::new(RecordKind::Slots, record_name(name))
}

/// Returns the name of a record about a limit: the limit's own, or a hash of it where that is too long.
pub(super) fn record_name(name: &LimitName) -> RecordName {
    let text = name.to_string();
    let hashed = || format!("{}~{}", name.scope, Uuid::new_v5(&NAMESPACE, text.as_bytes()).simple());
    let short = if text.len() <= MAX_NAME_BYTES { text.clone() } else { hashed() };
    RecordName::new(short).unwrap_or_else(|_| RecordName::system("limit"))
}
