//! Turns: a manager whose jobs wait while others' begin asks for a slot, and the others leave it one.
//!
//! A manager that ends a job knows at once that its slot is free, and would take it for its next job before any other
//! manager finds it: the slots of a key would stay with one manager until its jobs run out. So a manager that waits
//! notes itself in the limit's document, and the others leave free as many slots as managers have noted themselves
//! before them, for jobs at least as urgent as their own. One that does not come is waited for once, and not for long.
//!
//! Nothing here decides whether a slot is free: a manager takes fewer slots by it, and never more.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::job::Priority;

/// How long jobs wait for a slot before their manager asks for a turn.
const ASKS_AFTER: Duration = Duration::from_millis(250);

/// How long free slots are left to managers that have asked for them: several looks.
const LEFT_FOR: Duration = Duration::from_millis(400);

/// The most managers that ask at one time.
const MOST: usize = 8;

/// How long after free slots were last left to others the time counts no more for which they were.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(5);

/// A manager that asks for a turn, as it is in a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asked {
    /// The number of the manager that asks.
    manager: u32,
    /// The priority of the first job that it held when it asked.
    priority: Priority,
}

/// The turns at the slots of one limit, as one manager knows them.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// The number of this manager.
    own: u32,
    asked_by: Vec<Asked>,
    /// Since when jobs have waited here while none began.
    waits_since: Option<Instant>,
    /// Whether jobs of other managers have begun meanwhile.
    have_others_begun: bool,
    /// Since when slots that are free have been left to others, and when they last were.
    left: Option<(Instant, Instant)>,
}

impl Turns {
    /// Returns the turns as the manager of this number knows them, which is nothing yet.
    pub(super) fn of(own: u32) -> Self {
        Self { own, ..Self::default() }
    }

    /// Returns the managers that ask, in their order.
    pub(super) fn asked_by(&self) -> &[Asked] {
        &self.asked_by
    }

    /// Returns the managers whose turns come before this one's.
    fn before(&self) -> &[Asked] {
        let before = self.asked_by.iter().position(|by| by.manager == self.own);
        &self.asked_by[..before.unwrap_or(self.asked_by.len())]
    }

    /// Returns the number of these that hold a job at least as urgent as one of this priority.
    fn as_urgent(&self, priority: Priority) -> usize {
        self.before().iter().filter(|by| by.priority >= priority).count()
    }

    /// Returns since when slots that are free have been left to others.
    fn left_since(&self, now: Instant) -> Option<Instant> {
        self.left.filter(|(_, last)| now.duration_since(*last) < FORGOTTEN_AFTER).map(|(since, _)| since)
    }

    /// Returns whether slots have been left to others for long enough.
    fn is_over(&self, now: Instant) -> bool {
        self.left_since(now).is_some_and(|since| now.duration_since(since) >= LEFT_FOR)
    }

    /// Takes over which managers ask, and whether others' jobs have begun since the document was last read.
    pub(super) fn read(&mut self, asked_by: Vec<Asked>, have_others_begun: bool) {
        if asked_by != self.asked_by {
            self.left = None;
        }
        self.asked_by = asked_by;
        self.have_others_begun |= have_others_begun;
    }

    /// Returns how many of the slots that are free this manager may take for jobs of this priority and below.
    pub(super) fn may_take(&self, free: usize, priority: Priority, now: Instant) -> usize {
        if self.is_over(now) { free } else { free.saturating_sub(self.as_urgent(priority)) }
    }

    /// Decides as [`Turns::may_take`] does, and counts the time for which this manager leaves some.
    pub(super) fn leave(&mut self, free: usize, priority: Priority, now: Instant) -> usize {
        if self.before().is_empty() || free == 0 {
            self.left = None;
            return free;
        }
        let as_urgent = self.as_urgent(priority);
        if as_urgent == 0 {
            return free;
        }
        if self.is_over(now) {
            let before = self.before().len();
            let mut number = 0;
            self.asked_by.retain(|by| {
                number += 1;
                number > before || by.priority < priority
            });
            self.left = None;
            return free;
        }
        self.left = Some((self.left_since(now).unwrap_or(now), now));
        free.saturating_sub(as_urgent)
    }

    /// Takes note that slots were decided about without regard to turns.
    pub(super) fn pass_over(&mut self) {
        self.left = None;
    }

    /// Returns whether free slots are left to others.
    pub(super) fn are_left(&self) -> bool {
        self.left.is_some()
    }

    /// Takes note that a job is held for want of a slot.
    pub(super) fn waits(&mut self, now: Instant) {
        self.waits_since.get_or_insert(now);
    }

    /// Takes note that a slot is to be taken: with the write of that, the manager asks no more.
    pub(super) fn takes(&mut self) {
        let own = self.own;
        self.asked_by.retain(|by| by.manager != own);
    }

    /// Takes note that a slot was taken.
    pub(super) fn has_taken(&mut self) {
        (self.waits_since, self.have_others_begun) = (None, false);
    }

    /// Returns whether it is time to ask for a turn, and the manager has not asked.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        let has_waited = self.waits_since.is_some_and(|since| now.duration_since(since) >= ASKS_AFTER);
        let is_due = has_waited && self.have_others_begun && self.asked_by.len() < MOST;
        is_due && self.asked_by.iter().all(|by| by.manager != self.own)
    }

    /// Asks for a turn for a job of this priority, if it is time to. Returns whether it asks since now.
    pub(super) fn asks(&mut self, priority: Priority, now: Instant) -> bool {
        let asks = self.may_ask(now);
        if asks {
            self.asked_by.push(Asked { manager: self.own, priority });
        }
        asks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priority(number: i64) -> Priority {
        Priority::new(number).expect("a priority")
    }

    /// Managers of these numbers, which ask for jobs of no urgency.
    fn asking(managers: impl IntoIterator<Item = u32>) -> Vec<Asked> {
        managers.into_iter().map(|manager| Asked { manager, priority: Priority::default() }).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_asks_once_it_has_waited_while_others_began_and_no_more_once_it_takes() {
        let mut turns = Turns::of(1);
        let asks = |turns: &mut Turns| turns.asks(Priority::default(), Instant::now());
        turns.waits(Instant::now());
        tokio::time::advance(ASKS_AFTER).await;
        assert!(!asks(&mut turns), "none began elsewhere");
        turns.read(asking([2]), true);
        assert!(asks(&mut turns) && !asks(&mut turns));
        assert_eq!(turns.asked_by(), asking([2, 1]));
        turns.takes();
        turns.has_taken();
        assert_eq!(turns.asked_by(), asking([2]));
        turns.waits(Instant::now());
        assert!(!asks(&mut turns), "it has just begun one");
        turns.read(asking(10..18), true);
        tokio::time::advance(ASKS_AFTER).await;
        assert!(!asks(&mut turns), "many ask");
    }

    #[tokio::test(start_paused = true)]
    async fn free_slots_are_left_to_those_that_asked_before_and_not_for_long() {
        let now = Instant::now;
        let mut turns = Turns::of(1);
        let leave = |turns: &mut Turns, free| turns.leave(free, Priority::default(), now());
        assert_eq!(leave(&mut turns, 3), 3);
        turns.read(asking([2, 1, 3]), true);
        assert_eq!([leave(&mut turns, 1), leave(&mut turns, 3)], [0, 2]);
        tokio::time::advance(LEFT_FOR - Duration::from_millis(1)).await;
        assert_eq!(leave(&mut turns, 1), 0);
        // Another one has come, and the next is waited for as long.
        turns.read(asking([4, 1]), true);
        assert_eq!(leave(&mut turns, 1), 0);
        tokio::time::advance(LEFT_FOR).await;
        assert_eq!(turns.may_take(1, Priority::default(), now()), 1);
        assert_eq!(turns.asked_by(), asking([4, 1]), "a question changes nothing");
        assert_eq!(leave(&mut turns, 1), 1, "it has not come");
        assert_eq!(turns.asked_by(), asking([1]));
    }

    #[tokio::test(start_paused = true)]
    async fn slots_are_left_only_to_those_that_hold_jobs_at_least_as_urgent() {
        let mut turns = Turns::of(1);
        let of = |manager, number| Asked { manager, priority: priority(number) };
        turns.read(vec![of(2, 0), of(3, 5), of(1, 9), of(4, 9)], true);
        let leave = |turns: &mut Turns, number| turns.leave(3, priority(number), Instant::now());
        assert_eq!([0, 1, 5, 6].map(|number| leave(&mut turns, number)), [1, 2, 2, 3]);
        tokio::time::advance(LEFT_FOR).await;
        assert_eq!(leave(&mut turns, 5), 3);
        assert_eq!(turns.asked_by(), [of(2, 0), of(1, 9), of(4, 9)], "the other one was not waited for");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_for_which_slots_are_left_begins_again_when_they_were_not_left_meanwhile() {
        let mut turns = Turns::of(1);
        turns.read(asking([2]), true);
        let leave = |turns: &mut Turns, free| turns.leave(free, Priority::default(), Instant::now());
        let no_slot_is_free = |turns: &mut Turns| assert_eq!(turns.leave(0, priority(0), Instant::now()), 0);
        let ways: [fn(&mut Turns); 2] = [Turns::pass_over, no_slot_is_free];
        for not_left in ways {
            assert_eq!(leave(&mut turns, 1), 0);
            tokio::time::advance(LEFT_FOR).await;
            not_left(&mut turns);
            assert_eq!(leave(&mut turns, 1), 0);
        }
        tokio::time::advance(FORGOTTEN_AFTER).await;
        assert_eq!(turns.may_take(1, Priority::default(), Instant::now()), 0);
        assert_eq!(leave(&mut turns, 1), 0, "nothing was decided for long");
    }
}
