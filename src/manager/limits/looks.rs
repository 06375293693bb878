//! Looks at limits that follow each other closely while slots come and go at other managers.
//!
//! A manager that ends a job knows at once that its slot is free; a slot that another manager's job has left is found
//! by a look. All limits that hold jobs are looked at four times a second. That is enough where jobs run for long, and
//! too little where they run for milliseconds. So a limit is looked at soon after it has held a job, and again soon
//! after each look that has found something else than the one before; as long as nothing changes, each look comes twice
//! as late as the one before, until those at all limits are as good.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::documents::{Seen, Sight};
use super::taking::{READS_PER_LOOK, write_of};
use crate::job::{Job, LimitName};
use crate::manager::Manager;

/// The shortest time between two looks at one limit.
const SHORTEST: Duration = Duration::from_millis(20);

/// The time between two looks from which on those at all limits are as good.
const LONGEST: Duration = Duration::from_millis(250);

/// The most limits that are looked at so.
const MOST: usize = 64;

/// The limits that are to be looked at soon.
#[derive(Default)]
pub(super) struct Looks(Mutex<BTreeMap<LimitName, Look>>);

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
        let mut looks = self.0.lock();
        if looks.len() < MOST && !looks.contains_key(name) {
            looks.insert(name.clone(), Look { at: now + SHORTEST, after: SHORTEST, seen: None });
        }
    }

    /// Returns when the next look is to be; `None` if none is.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.lock().values().map(|look| look.at).min()
    }

    /// Returns the limits that are to be looked at now.
    pub(super) fn due(&self, now: Instant) -> Vec<LimitName> {
        self.0.lock().iter().filter(|(_, look)| look.at <= now).map(|(name, _)| name.clone()).collect()
    }

    /// Records what was seen of a limit; `None` where nobody can take what it holds.
    pub(super) fn saw(&self, name: &LimitName, seen: Option<Seen>, now: Instant) {
        let mut looks = self.0.lock();
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
        self.0.lock().len()
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
        let limits = &self.shared.limits;
        let mut wanted = limits.looks.due(Instant::now());
        wanted.retain(|name| {
            let is_wanted = self.shared.dispatch.is_wanted(name);
            if !is_wanted {
                limits.looks.saw(name, None, Instant::now());
            }
            is_wanted
        });
        let doubtful = limits.documents.doubtful(wanted.iter(), false, Sight::OfOthers, READS_PER_LOOK);
        if !doubtful.is_empty() {
            self.find_out(doubtful).await;
        }
        let seen: Vec<Option<Seen>> = wanted.iter().map(|name| limits.documents.seen(name)).collect();
        self.take_turns(&wanted).await;
        for (name, before) in wanted.iter().zip(seen) {
            limits.looks.saw(name, before.and(limits.documents.seen(name)), Instant::now());
            if let Some(next) = self.shared.dispatch.next_of(name) {
                self.shared.dispatch.let_go_up_to(name, self.room_for(name, &next));
            }
        }
    }

    /// Reads the documents again that have free slots for jobs here, since others may have taken them, and asks for a
    /// turn at the limits whose slots others take while jobs wait here.
    pub(super) async fn take_turns(&self, names: &[LimitName]) {
        if self.shared.store.is_exclusive() {
            return;
        }
        let documents = &self.shared.limits.documents;
        let mut with_gone = documents.with_gone(names.iter());
        with_gone.retain(|(name, _, is_left)| {
            let next = self.shared.dispatch.next_of(name);
            *is_left || next.is_some_and(|next| self.room_for(name, &next) > 0)
        });
        if !with_gone.is_empty() {
            self.read_documents(with_gone.iter().map(|(name, ..)| name.clone()).collect()).await;
        }
        for (name, before, _) in &with_gone {
            // Slots come and go elsewhere.
            if documents.seen(name).is_some_and(|seen| seen != *before) {
                self.shared.limits.looks.note(name, Instant::now());
            }
        }
        let wanted: Vec<&LimitName> = names.iter().filter(|name| self.shared.dispatch.is_wanted(name)).collect();
        let writes: Vec<_> = {
            let mut known = documents.lock();
            let asks = |name: &&LimitName| {
                let slots = &mut known.get_mut(*name)?.slots;
                if slots.turns.asks(Instant::now()) { write_of(name, slots) } else { None }
            };
            wanted.iter().filter_map(asks).collect()
        };
        if writes.is_empty() {
            return;
        }
        let results = self.write_documents(writes.iter().map(|(_, _, write)| write)).await;
        for ((name, holders, write), result) in writes.into_iter().zip(results) {
            // Where others wrote meanwhile, it asks with a later look.
            drop(self.settle_document(&name, &holders, &write, result));
        }
    }

    /// Returns for how many more jobs a limit has slots, as far as is known, if this job is the next.
    pub(super) fn room_for(&self, name: &LimitName, next: &Job) -> usize {
        let under = self.limits_of(next);
        let under = under.iter().find(|under| under.name == *name);
        under.map_or(usize::MAX, |under| self.shared.limits.documents.room(under, next, self.shared.clock.now()))
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
