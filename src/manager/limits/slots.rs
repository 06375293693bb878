//! The slots of one limit, as this manager knows them: a pure state machine.
//!
//! A slot names a job and the fence of the claim that it is for. It is *alive* while the job runs under that fence, and
//! while a claim under that fence may still be accepted; whoever knows better ([`Fate::Gone`]) may give it away with
//! the next write. The document has no other meaning than its list of slots.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::bucket::{Age, Bucket, Rate};
use super::giving_way::{Asked, Turns};
use super::urgent::Urgent;
use super::waiting::{Mark, Marks};
use crate::clock::Timestamp;
use crate::job::{Fence, Job, JobId, LimitName, Priority, State};
use crate::store::{Place, Version, Versioned};

/// A job that has a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holder {
    pub(super) job: JobId,
    /// The fence of the claim that the slot is for.
    pub(super) fence: Fence,
    /// The most jobs of its key that the job runs beside and with, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) max: Option<u32>,
    /// The job's priority, by which the slot is one of the places that are kept free for urgent jobs, or not.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub(super) priority: Priority,
    /// The version of the job over which the claim is written, by its term and its number. No other claim is written
    /// over it: once a slot that says it is gone, it is so in each document. Earlier versions of the program do not say
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) over: Option<(u64, u64)>,
}

/// Returns whether a priority is that of most jobs, and is not written.
fn is_usual(priority: &Priority) -> bool {
    *priority == Priority::default()
}

impl Holder {
    /// Returns the holder that the next claim of a job makes, as it is known.
    pub(super) fn of_next_claim(known: &Versioned, max: Option<u32>) -> Self {
        let Versioned { job, version } = known;
        let over = (version.place == Place::Main).then_some((version.primary_term, version.seq_no));
        Self { job: job.id.clone(), fence: job.fence.next(), max, priority: job.spec.priority, over }
    }

    /// Returns the holder that a job is which runs without a slot.
    pub(super) fn of_running(job: &Job) -> Self {
        Self { job: job.id.clone(), fence: job.fence, max: None, priority: job.spec.priority, over: None }
    }

    fn is(&self, job: &JobId, fence: Fence) -> bool {
        self.fence == fence && self.job == *job
    }

    /// Returns what the job, as it is read in real time, says of the slot.
    pub(super) fn evidence(&self, job: Option<&Job>) -> Evidence {
        match job {
            Some(job) if job.fence == self.fence && matches!(job.state, State::Running(_)) => Evidence::Runs,
            Some(job) if job.fence.next() == self.fence && job.state == State::Available => Evidence::MayBeClaimed,
            // The fence is over, or the job was changed or removed since: a claim under this fence meets a conflict.
            _ => Evidence::Over,
        }
    }
}

/// What a job says of a slot that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The job runs under the slot's fence.
    Runs,
    /// A claim under the slot's fence may be under way. Once the job is written again, that claim meets a conflict.
    MayBeClaimed,
    /// The job does not run under the slot's fence, and no claim of it can be accepted any more.
    Over,
}

/// What a manager knows of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing, since the document was read.
    Unknown,
    /// This manager's claim is under way.
    Claiming,
    /// The job ran when it was last looked at.
    Runs,
    /// The slot is free: the claim that it is for is over, or not accepted any more.
    Gone,
}

/// A slot.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slot {
    pub(super) holder: Holder,
    pub(super) fate: Fate,
    /// Since when it has been known that the claim has not come, if it has not.
    pub(super) missed_since: Option<Instant>,
    /// Whether this manager took it: when its job ends here, that is known without a look.
    pub(super) is_own: bool,
    /// Whether it was taken elsewhere since the document was first read.
    is_new: bool,
    /// Whether it was counted for a job that runs without a slot, and no document has listed it yet.
    is_counted: bool,
}

impl Slot {
    fn new(holder: Holder, fate: Fate) -> Self {
        Self { holder, fate, missed_since: None, is_own: false, is_new: false, is_counted: false }
    }
}

/// The document of a limit's slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SlotDocument {
    /// The limit, in full: the document's own name may be a hash of it.
    pub(super) limit: LimitName,
    pub(super) holders: Vec<Holder>,
    /// The tokens of the limit's rate, if it has one and they are not all there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bucket: Option<Bucket>,
    /// The managers that ask for a turn, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) asked_by: Vec<Asked>,
    /// The managers with urgent jobs that were beaten to a slot. An earlier version of the program drops them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) waiting: Vec<Mark>,
}

/// The slots of a limit, as they are in its document.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    pub(super) slots: Vec<Slot>,
    /// The document's version; `None` when there is none.
    pub(super) version: Option<Version>,
    /// The rate, if the limit has one.
    pub(super) rate: Option<Rate>,
    bucket: Option<Bucket>,
    /// Up to when the time is counted that fills the bucket.
    filled_at: Option<Instant>,
    /// The turns of the managers.
    pub(super) turns: Turns,
    /// Who waits for slots.
    pub(super) marks: Marks,
}

impl Slots {
    /// Returns the slots of a document that the manager of this number has not read.
    pub(super) fn unread(own: u32) -> Self {
        Self { turns: Turns::of(own), marks: Marks::of(own), ..Self::default() }
    }

    /// Fills the bucket of a rate with the time that has passed, and returns how many jobs may begin.
    pub(super) fn fill(&mut self, rate: Rate, at: Instant, now: Timestamp) -> usize {
        let seen = self.filled_at.map_or(Duration::ZERO, |since| at.duration_since(since));
        let filled = Bucket::filled(self.bucket, rate, Age { seen }, now);
        (self.rate, self.filled_at) = (Some(rate), Some(at));
        self.bucket.insert(filled).whole()
    }

    /// Returns how long it takes until the bucket has a token; `None` where it has one, or nothing is known of it.
    pub(super) fn next_token(&self, rate: Rate) -> Option<Duration> {
        let (bucket, filled_at) = (self.bucket.filter(|bucket| bucket.whole() == 0)?, self.filled_at?);
        Some(bucket.next_token(rate).saturating_sub(filled_at.elapsed()))
    }

    /// Takes a token out of the bucket.
    pub(super) fn take_token(&mut self) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take();
        }
    }

    /// Takes over a document that was read, or that there is none. What was known of slots that are still there stays
    /// known; that they are gone only where they say the claim that they are for, since a slot for another claim of the
    /// same job under the same fence may have been taken meanwhile. Of such a slot nothing is known but that its job
    /// runs. Slots that were counted stay until a document has listed them: its writer may not have counted them.
    pub(super) fn take_over(&mut self, document: Option<(SlotDocument, Version)>) {
        let (document, version) = document.map_or((None, None), |(document, version)| (Some(document), Some(version)));
        // Where there is none as before, what was counted since stands in no document yet.
        if version == self.version {
            return;
        }
        let is_first = self.version.is_none();
        let (holders, bucket, asked_by, waiting) =
            document.map_or_else(Default::default, |read| (read.holders, read.bucket, read.asked_by, read.waiting));
        self.marks.take_over(waiting, Instant::now());
        (self.bucket, self.filled_at) = (bucket, Some(Instant::now()));
        let known = std::mem::take(&mut self.slots);
        let mut have_others_begun = false;
        let of_known = |holder: Holder| {
            let same = known.iter().find(|slot| slot.holder.is(&holder.job, holder.fence));
            have_others_begun |= same.is_none() && !is_first;
            let same_claim = same.filter(|slot| slot.holder == holder);
            let is_still = |fate: &Fate| match fate {
                Fate::Gone => same_claim.is_some() && holder.over.is_some(),
                Fate::Claiming => same_claim.is_some(),
                Fate::Runs | Fate::Unknown => true,
            };
            let fate = same.map(|slot| slot.fate).filter(is_still).unwrap_or(Fate::Unknown);
            let is_new = same_claim.map_or(!is_first, |slot| slot.is_new);
            let (missed_since, is_own) = same_claim.map_or((None, false), |slot| (slot.missed_since, slot.is_own));
            Slot { missed_since, is_own, is_new, ..Slot::new(holder, fate) }
        };
        let mut slots: Vec<Slot> = holders.into_iter().map(of_known).collect();
        let listed = slots.len();
        for counted in known.into_iter().filter(|slot| slot.is_counted && slot.fate != Fate::Gone) {
            if !slots[..listed].iter().any(|slot| slot.holder.is(&counted.holder.job, counted.holder.fence)) {
                slots.push(counted);
            }
        }
        self.slots = slots;
        self.turns.read(asked_by, have_others_begun);
        self.version = version;
    }

    /// Returns the number of slots that are not known to be gone.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.slots.iter().filter(|slot| slot.fate != Fate::Gone).count()
    }

    /// Returns for how many more jobs there are slots, if `job` is the next: no more are taken than `limit`, which is
    /// set for all, or else than the smallest number that the job and those with slots say.
    pub(super) fn room(&self, job: &Job, limit: Option<u32>, own: Option<u32>) -> usize {
        let fence = job.fence.next();
        let others = self.slots.iter().filter(|slot| slot.fate != Fate::Gone && !slot.holder.is(&job.id, fence));
        let (taken, smallest) = others.fold((0_usize, own), |(taken, smallest), slot| {
            (taken + 1, smallest.into_iter().chain(slot.holder.max).min())
        });
        limit.or(smallest).map_or(usize::MAX, |most| (most as usize).saturating_sub(taken))
    }

    /// Returns for how many more jobs there are slots that are not urgent, if `job` is the next and no more than `most`
    /// of these run at once.
    pub(super) fn room_of_others(&self, job: &Job, urgent: Urgent, most: u32) -> usize {
        let fence = job.fence.next();
        let others = self.slots.iter().filter(|slot| slot.fate != Fate::Gone && !slot.holder.is(&job.id, fence));
        let taken = others.filter(|slot| !urgent.is(slot.holder.priority)).count();
        (most as usize).saturating_sub(taken)
    }

    /// Returns the lowest priority of the jobs of which nothing is known but that they got slots at another manager
    /// since the document was first read, if it is lower than that of `job`. What ran before then has beaten none.
    pub(super) fn beaten_by(&self, job: &Job) -> Option<Priority> {
        let new = self.slots.iter().filter(|slot| slot.fate == Fate::Unknown && slot.is_new);
        new.map(|slot| slot.holder.priority).min().filter(|lowest| *lowest < job.spec.priority)
    }

    /// Takes a slot for the next claim of a job, as it is known. The document has to be written before the claim.
    pub(super) fn take(&mut self, known: &Versioned, own: Option<u32>) {
        let new = Slot { is_own: true, ..Slot::new(Holder::of_next_claim(known, own), Fate::Claiming) };
        self.turns.takes();
        match self.slots.iter_mut().find(|slot| slot.holder.is(&new.holder.job, new.holder.fence)) {
            Some(slot) => *slot = new,
            None => self.slots.push(new),
        }
    }

    /// Returns whether a claim of this manager is under way.
    pub(super) fn is_claiming(&self) -> bool {
        self.slots.iter().any(|slot| slot.fate == Fate::Claiming)
    }

    /// Returns since when it has been known that the claim of a slot has not come; `now` when it was not known.
    pub(super) fn missed_since(&mut self, holder: &Holder, now: Instant) -> Instant {
        let slot = self.slots.iter_mut().find(|slot| slot.holder == *holder);
        slot.map_or(now, |slot| *slot.missed_since.get_or_insert(now))
    }

    /// Records what is known of a slot now, unless it is known to be gone. Returns whether it is gone since now.
    pub(super) fn learn(&mut self, job: &JobId, fence: Fence, fate: Fate) -> bool {
        let mut slots = self.slots.iter_mut();
        let Some(slot) = slots.find(|slot| slot.holder.is(job, fence) && slot.fate != Fate::Gone) else { return false };
        slot.fate = fate;
        fate == Fate::Gone
    }

    /// Records what became of a claim of this manager, unless more is known of the slot.
    pub(super) fn settle(&mut self, job: &JobId, fence: Fence, fate: Fate) {
        let mut slots = self.slots.iter_mut();
        if let Some(slot) = slots.find(|slot| slot.holder.is(job, fence) && slot.fate == Fate::Claiming) {
            slot.fate = fate;
        }
    }

    /// Records that the claim that this manager was to make of a job, as it was known, is accepted no more. Returns
    /// whether its slot is gone since now: another claim of the job may have the slot meanwhile.
    pub(super) fn refuse(&mut self, known: &Versioned) -> bool {
        let Holder { job, fence, over, .. } = Holder::of_next_claim(known, None);
        let is_its = |slot: &&mut Slot| slot.holder.is(&job, fence) && slot.holder.over == over && over.is_some();
        let slot = self.slots.iter_mut().find(is_its).filter(|slot| slot.fate == Fate::Claiming);
        slot.map(|slot| slot.fate = Fate::Gone).is_some()
    }

    /// Adds slots for jobs that run without, since the limit was set later. Returns whether there were any.
    pub(super) fn add_running(&mut self, running: impl IntoIterator<Item = Holder>) -> bool {
        let before = self.slots.len();
        for holder in running {
            if !self.slots.iter().any(|slot| slot.holder.is(&holder.job, holder.fence)) {
                self.slots.push(Slot { is_counted: true, ..Slot::new(holder, Fate::Runs) });
            }
        }
        self.slots.len() > before
    }

    /// Returns the document without the slots that are gone; `None` when it would say nothing.
    pub(super) fn document(&self, limit: &LimitName) -> Option<SlotDocument> {
        let taken = self.slots.iter().filter(|slot| slot.fate != Fate::Gone);
        let holders: Vec<Holder> = taken.map(|slot| slot.holder.clone()).collect();
        let bucket = self.bucket.filter(|bucket| self.rate.is_some_and(|rate| !bucket.is_full(rate)));
        let is_needed = !holders.is_empty() || bucket.is_some();
        let (asked_by, waiting) = (|| self.turns.asked_by().to_vec(), || self.marks.to_write(Instant::now()));
        let limit = limit.clone();
        is_needed.then(|| SlotDocument { limit, holders, bucket, asked_by: asked_by(), waiting: waiting() })
    }

    /// Records that exactly these slots were written under this version, and the marks as they still are. Slots that
    /// are gone since stay so: nobody else has taken them up.
    pub(super) fn wrote(&mut self, holders: &[Holder], version: Option<Version>) {
        self.slots.retain(|slot| holders.contains(&slot.holder));
        self.slots.iter_mut().for_each(|slot| slot.is_counted = false);
        self.version = version;
        match version {
            Some(_) => self.marks.wrote(Instant::now()),
            None => self.marks.take_over(Vec::new(), Instant::now()),
        }
        if self.is_claiming() {
            self.turns.has_taken();
        }
    }
}

#[cfg(test)]
mod tests;
