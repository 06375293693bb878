//! Looks at limits that follow each other closely while slots come and go at other managers.
//!
//! A manager that ends a job knows at once that its slot is free; a slot that another manager's job has left is found
//! by a look. All limits that hold jobs are looked at four times a second. That is enough where jobs run for long, and
//! too little where they run for milliseconds. So a limit is looked at soon after it has held a job, and again soon
//! after each look that has found something else than the one before; as long as nothing changes, each look comes twice
//! as late as the one before, until those at all limits are as good.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::documents::{Documents, Known, Seen, Sight, Under};
use super::slots::Fate;
use crate::clock::Timestamp;
use crate::job::{Job, LimitName, Priority};
use crate::manager::Manager;

/// The shortest time between two looks at one limit.
const SHORTEST: Duration = Duration::from_millis(20);

/// The time between two looks from which on those at all limits are as good.
const LONGEST: Duration = Duration::from_millis(250);

/// The most limits that are looked at so.
const MOST: usize = 64;

/// How many times as long as a look has taken passes until the next one.
const REST: u32 = 10;

/// The most jobs that one look reads which comes soon: those of the slots that were taken first.
const READS_PER_SOON_LOOK: usize = 300;

/// The most of this manager's marks that are looked at at once.
const MARKS_PER_LOOK: usize = 16;

/// The most documents that one look reads, and the most that it writes.
const DOCUMENTS_PER_LOOK: usize = 200;

/// The limits that are to be looked at soon.
#[derive(Default)]
pub(super) struct Looks {
    limits: Mutex<BTreeMap<LimitName, Look>>,
    /// Until when there is no look, since one has taken long.
    rest_until: Mutex<Option<Instant>>,
}

/// The next look at a limit.
struct Look {
    at: Instant,
    /// The time since the look before.
    after: Duration,
    /// What was seen then.
    seen: Option<Seen>,
}

impl Looks {
    /// Takes note of a limit that holds a job since now.
    pub(super) fn note(&self, name: &LimitName, now: Instant) {
        let mut looks = self.limits.lock();
        if looks.len() < MOST && !looks.contains_key(name) {
            looks.insert(name.clone(), Look { at: now + SHORTEST, after: SHORTEST, seen: None });
        }
    }

    /// Returns when the next look is to be; `None` if none is.
    pub(super) fn next(&self) -> Option<Instant> {
        let next = self.limits.lock().values().map(|look| look.at).min()?;
        Some(self.rest_until.lock().map_or(next, |rested| next.max(rested)))
    }

    /// Returns the limits that are to be looked at now: those first whose look was due first.
    pub(super) fn due(&self, now: Instant) -> Vec<LimitName> {
        let limits = self.limits.lock();
        let mut due: Vec<(Instant, &LimitName)> = limits.iter().map(|(name, look)| (look.at, name)).collect();
        due.retain(|(at, _)| *at <= now);
        due.sort_unstable();
        due.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// Has no look begin for a time in proportion to one that began at this time, and has ended now.
    pub(super) fn rest(&self, begun: Instant, now: Instant) {
        *self.rest_until.lock() = Some(now + now.duration_since(begun) * REST);
    }

    /// Records what was seen of a limit; `None` where nobody can take what it holds.
    pub(super) fn saw(&self, name: &LimitName, seen: Option<Seen>, now: Instant) {
        let mut looks = self.limits.lock();
        let Some(look) = looks.get_mut(name) else { return };
        let is_changed = look.seen.is_some() && seen.is_some() && look.seen != seen;
        look.after = if is_changed { SHORTEST } else { look.after * 2 };
        (look.at, look.seen) = (now + look.after, seen);
        if look.after >= LONGEST {
            looks.remove(name);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.limits.lock().len()
    }
}

impl Documents {
    /// Returns those of these limits of which slots are known to be gone, since others may have taken them; each with
    /// what is known of it, and whether slots are left to others. Those come first that were read longest ago.
    fn with_gone(&self, names: &[LimitName]) -> Vec<(LimitName, Seen, bool)> {
        let known = self.lock();
        let with_gone = |name: &LimitName| {
            let Known { slots, gone, read_at, .. } = known.get(name)?;
            let seen = Seen { gone: *gone, version: slots.version };
            let has_gone = slots.slots.iter().any(|slot| slot.fate == Fate::Gone);
            has_gone.then(|| (*read_at, (name.clone(), seen, slots.turns.are_left())))
        };
        let mut with_gone: Vec<_> = names.iter().filter_map(with_gone).collect();
        with_gone.sort_by_key(|(read_at, _)| *read_at);
        with_gone.into_iter().map(|(_, limit)| limit).collect()
    }

    /// Returns how many of these limits, which are the first, have about as many slots as `most`.
    fn first_with_slots(&self, names: &[LimitName], most: usize) -> usize {
        let known = self.lock();
        let mut slots = 0;
        let has_room = |name: &&LimitName| {
            let before = slots;
            slots += known.get(*name).map_or(0, |known| known.slots.slots.len());
            before < most
        };
        names.iter().take_while(has_room).count()
    }

    /// Returns those of these limits at which this manager may ask for a turn.
    fn may_ask(&self, names: &[LimitName]) -> Vec<LimitName> {
        let known = self.lock();
        let may_ask =
            |name: &&LimitName| known.get(*name).is_some_and(|known| known.slots.turns.may_ask(Instant::now()));
        names.iter().filter(may_ask).cloned().collect()
    }

    /// Asks for a turn at a limit for a job of this priority, if it is time to. Returns whether the manager asks since
    /// now.
    fn asks(&self, name: &LimitName, priority: Priority) -> bool {
        self.lock().get_mut(name).is_some_and(|known| known.slots.turns.asks(priority, Instant::now()))
    }
}

impl Manager {
    /// Takes note that a job is held since a limit has no slot for it.
    pub(super) fn waits_for(&self, name: &LimitName) {
        if !self.shared.store.is_exclusive() {
            self.shared.limits.documents.waits(name);
            self.shared.limits.looks.note(name, Instant::now());
        }
    }

    /// Looks at the limits that are to be looked at now, at the slots that other managers have, and lets jobs go on for
    /// which there are slots.
    pub(super) async fn look_soon(&self) {
        let (limits, begun) = (&self.shared.limits, Instant::now());
        let mut wanted = limits.looks.due(Instant::now());
        wanted.retain(|name| {
            let is_wanted = self.shared.dispatch.is_wanted(name);
            if !is_wanted {
                limits.looks.saw(name, None, Instant::now());
            }
            is_wanted
        });
        wanted.truncate(limits.documents.first_with_slots(&wanted, READS_PER_SOON_LOOK));
        let doubtful = limits.documents.doubtful(wanted.iter(), false, Sight::OfOthers, READS_PER_SOON_LOOK);
        if !doubtful.is_empty() {
            self.find_out(doubtful).await;
        }
        let seen: Vec<Option<Seen>> = wanted.iter().map(|name| limits.documents.seen(name)).collect();
        self.take_turns(&wanted).await;
        for (name, before) in wanted.iter().zip(seen) {
            limits.looks.saw(name, before.and(limits.documents.seen(name)), Instant::now());
            if let Some(next) = self.shared.dispatch.next_of(name) {
                self.shared.dispatch.let_go_up_to(name, self.room_to_give(name, &next));
            }
        }
        limits.looks.rest(begun, Instant::now());
    }

    /// Reads the documents again that have free slots for jobs here, since others may have taken them, and asks for a
    /// turn at the limits whose slots others take while jobs wait here.
    pub(super) async fn take_turns(&self, names: &[LimitName]) {
        if self.shared.store.is_exclusive() {
            return;
        }
        let (documents, dispatch) = (&self.shared.limits.documents, &self.shared.dispatch);
        let is_to_be_read = |(name, _, is_left): &(LimitName, Seen, bool)| {
            let next = dispatch.next_of(name).filter(|_| dispatch.is_wanted(name));
            next.is_some_and(|next| *is_left || self.room_for(name, &next) > dispatch.count_let_go(name))
        };
        let read: Vec<_> =
            documents.with_gone(names).into_iter().filter(is_to_be_read).take(DOCUMENTS_PER_LOOK).collect();
        if !read.is_empty() {
            self.read_documents(read.iter().map(|(name, ..)| name.clone()).collect()).await;
        }
        for (name, before, _) in &read {
            // Slots come and go elsewhere.
            if documents.seen(name).is_some_and(|seen| seen != *before) {
                self.shared.limits.looks.note(name, Instant::now());
            }
        }
        let may_ask = documents.may_ask(names);
        let wanted = may_ask.into_iter().filter(|name| dispatch.is_wanted(name)).take(DOCUMENTS_PER_LOOK);
        let asks =
            |name: &LimitName| dispatch.next_of(name).is_some_and(|next| documents.asks(name, next.spec.priority));
        let mut changed: HashSet<LimitName> = wanted.filter(asks).collect();
        // What was just read is known to be new until its jobs are looked at.
        changed.extend(read.into_iter().map(|(name, ..)| name).filter(|name| self.mark_next(name)));
        // Where others wrote meanwhile, it asks with a later look.
        self.write_slots(&mut [], changed).await;
    }

    /// Returns for how many more jobs a limit has slots, as far as is known, if this job is the next.
    fn room_for(&self, name: &LimitName, next: &Job) -> usize {
        self.room_by(name, next, Documents::room)
    }

    /// Returns the same where jobs are to be let go: the time counts for which slots are left to others.
    pub(super) fn room_to_give(&self, name: &LimitName, next: &Job) -> usize {
        self.room_by(name, next, Documents::room_to_give)
    }

    fn room_by(&self, name: &LimitName, next: &Job, room: fn(&Documents, &Under, &Job, Timestamp) -> usize) -> usize {
        let under = self.limits_of(next);
        let under = under.iter().find(|under| under.name == *name);
        under.map_or(usize::MAX, |under| room(&self.shared.limits.documents, under, next, self.shared.clock.now()))
    }
}

impl Documents {
    /// Returns the limits that have a mark of this manager, or are to have one, at most this many: those first whose
    /// marks are to be written or taken off, then those whose were written longest ago.
    fn marked(&self, most: usize) -> Vec<LimitName> {
        let known = self.lock();
        let since = |(name, known): (&LimitName, &Known)| Some((known.slots.marks.own_since()?, name.clone()));
        let mut marked: Vec<(Option<Instant>, LimitName)> = known.iter().filter_map(since).collect();
        marked.sort_unstable();
        marked.into_iter().take(most).map(|(_, name)| name).collect()
    }

    /// Renews this manager's mark for the job of a limit that waits, if one does, or takes it off. Returns whether the
    /// document is to be written.
    fn renew_mark(&self, name: &LimitName, waiting: Option<&Job>) -> bool {
        let mut known = self.lock();
        known.get_mut(name).is_some_and(|known| known.slots.marks.renew(waiting, Instant::now()))
    }
}

impl Manager {
    /// Renews this manager's marks, and takes off those for which nothing waits any more.
    pub(super) async fn keep_marks(&self) {
        let marked = self.shared.limits.documents.marked(MARKS_PER_LOOK);
        if marked.is_empty() {
            return;
        }
        let documents = &self.shared.limits.documents;
        let renewed = marked.into_iter().filter(|name| {
            let next = self.next_that_waits_for(name).map(|(next, _)| next);
            documents.renew_mark(name, next.as_deref())
        });
        let renewed = renewed.collect();
        self.write_slots(&mut [], renewed).await;
    }

    /// Returns the job of a limit that is next, if a claim waits that could be given it and all other limits have room
    /// for it; with all limits that it is under.
    fn next_that_waits_for(&self, name: &LimitName) -> Option<(Arc<Job>, Vec<Under>)> {
        let (documents, now) = (&self.shared.limits.documents, self.shared.clock.now());
        let next = self.shared.dispatch.next_of(name)?;
        let under = self.limits_of(&next);
        let have_room =
            under.iter().filter(|under| under.name != *name).all(|under| documents.room(under, &next, now) > 0);
        (have_room && self.shared.dispatch.suits_a_waiting_claim(&next)).then_some((next, under))
    }

    /// Marks that the job of a limit that is next was beaten to a slot, if it was, as the document was just read: a job
    /// that is held is not decided about as long as others take each slot. Returns whether it is to be written.
    fn mark_next(&self, name: &LimitName) -> bool {
        let Some((next, under)) = self.next_that_waits_for(name) else { return false };
        let Some(under) = under.iter().find(|under| under.name == *name) else { return false };
        let mut known = self.shared.limits.documents.lock();
        known.get_mut(name).is_some_and(|known| known.mark_if_beaten(under, &next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn looks_come_later_and_later_while_nothing_changes_and_soon_after_a_change() {
        let name: LimitName = "key:db".parse().expect("a limit");
        let looks = Looks::default();
        looks.note(&name, Instant::now());
        let mut waits = Vec::new();
        for gone in [0, 0, 0, 1, 2, 2, 2, 2, 2] {
            let (now, next) = (Instant::now(), looks.next().expect("a look"));
            waits.push(next.duration_since(now).as_millis());
            tokio::time::sleep_until(next).await;
            assert_eq!(looks.due(Instant::now()), std::slice::from_ref(&name));
            looks.saw(&name, Some(Seen { gone, version: None }), Instant::now());
        }
        assert_eq!(waits, [20, 40, 80, 160, 20, 20, 40, 80, 160]);
        assert!(looks.next().is_none() && looks.len() == 0, "those at all limits are as good");
        looks.note(&name, Instant::now());
        let (begun, cost) = (Instant::now(), Duration::from_millis(3));
        tokio::time::advance(cost).await;
        looks.rest(begun, Instant::now());
        assert_eq!(looks.next(), Some(begun + cost + cost * REST), "a look costs a small part of the time");
        (0..4).for_each(|_| looks.saw(&name, None, Instant::now()));
        assert_eq!(looks.len(), 0, "nobody takes what it holds");
    }

    #[test]
    fn no_more_limits_are_looked_at_than_there_is_room_for() {
        let looks = Looks::default();
        for number in 0..2 * MOST {
            looks.note(&format!("key:{number}").parse().expect("a limit"), Instant::now());
        }
        assert_eq!(looks.due(Instant::now() + SHORTEST).len(), MOST);
    }
}
