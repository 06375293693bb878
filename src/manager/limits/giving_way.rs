//! Turns: a manager whose jobs wait while others' begin asks for a slot, and the others leave it one.
//!
//! A manager that ends a job knows at once that its slot is free, and would take it for its next job before any other
//! manager finds it: the slots of a key would stay with one manager until its jobs run out. So a manager that waits
//! notes itself in the limit's document, and the others leave free as many slots as managers have noted themselves
//! before them. One that does not come is waited for once, and not for long.
//!
//! Nothing here decides whether a slot is free: a manager takes fewer slots by it, and never more.

use std::time::Duration;

use tokio::time::Instant;

/// How long jobs wait for a slot before their manager asks for a turn.
const ASKS_AFTER: Duration = Duration::from_millis(250);

/// How long free slots are left to managers that have asked for them: several looks.
const LEFT_FOR: Duration = Duration::from_millis(400);

/// The most managers that ask at one time.
const MOST: usize = 8;

/// The turns at the slots of one limit, as one manager knows them.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// The number of this manager.
    own: u32,
    asked_by: Vec<u32>,
    /// Since when jobs have waited here while none began.
    waits_since: Option<Instant>,
    /// Whether jobs of other managers have begun meanwhile.
    have_others_begun: bool,
    /// Since when slots that are free have been left to others.
    left_since: Option<Instant>,
}

impl Turns {
    /// Returns the turns as the manager of this number knows them, which is nothing yet.
    pub(super) fn of(own: u32) -> Self {
        Self { own, ..Self::default() }
    }

    /// Returns the managers that ask, in their order.
    pub(super) fn asked_by(&self) -> &[u32] {
        &self.asked_by
    }

    /// Returns the number of managers whose turns come before this one's.
    fn before(&self) -> usize {
        self.asked_by.iter().position(|by| *by == self.own).unwrap_or(self.asked_by.len())
    }

    /// Takes over which managers ask, and whether others' jobs have begun since the document was last read.
    pub(super) fn read(&mut self, asked_by: Vec<u32>, have_others_begun: bool) {
        if asked_by != self.asked_by {
            self.left_since = None;
        }
        self.asked_by = asked_by;
        self.have_others_begun |= have_others_begun;
    }

    /// Returns how many of the slots that are free this manager may take, and counts the time for which it leaves some.
    pub(super) fn leave(&mut self, free: usize, now: Instant) -> usize {
        let before = self.before();
        if before == 0 || free == 0 {
            self.left_since = None;
            return free;
        }
        let since = *self.left_since.get_or_insert(now);
        if now.duration_since(since) >= LEFT_FOR {
            self.asked_by.drain(..before);
            self.left_since = None;
            return free;
        }
        free.saturating_sub(before)
    }

    /// Returns whether free slots are left to others.
    pub(super) fn are_left(&self) -> bool {
        self.left_since.is_some()
    }

    /// Takes note that a job is held for want of a slot.
    pub(super) fn waits(&mut self, now: Instant) {
        self.waits_since.get_or_insert(now);
    }

    /// Takes note that a slot is to be taken: with the write of that, the manager asks no more.
    pub(super) fn takes(&mut self) {
        let own = self.own;
        self.asked_by.retain(|by| *by != own);
    }

    /// Takes note that a slot was taken.
    pub(super) fn has_taken(&mut self) {
        (self.waits_since, self.have_others_begun) = (None, false);
    }

    /// Returns whether it is time to ask for a turn, and the manager has not asked.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        let has_waited = self.waits_since.is_some_and(|since| now.duration_since(since) >= ASKS_AFTER);
        let is_due = has_waited && self.have_others_begun && self.asked_by.len() < MOST;
        is_due && !self.asked_by.contains(&self.own)
    }

    /// Asks for a turn, if it is time to. Returns whether it asks since now.
    pub(super) fn asks(&mut self, now: Instant) -> bool {
        let asks = self.may_ask(now);
        if asks {
            self.asked_by.push(self.own);
        }
        asks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_manager_asks_once_it_has_waited_while_others_began_and_no_more_once_it_takes() {
        let mut turns = Turns::of(1);
        turns.waits(Instant::now());
        tokio::time::advance(ASKS_AFTER).await;
        assert!(!turns.asks(Instant::now()), "none began elsewhere");
        turns.read(vec![2], true);
        assert!(turns.asks(Instant::now()) && !turns.asks(Instant::now()));
        assert_eq!(turns.asked_by(), [2, 1]);
        turns.takes();
        turns.has_taken();
        assert_eq!(turns.asked_by(), [2]);
        turns.waits(Instant::now());
        assert!(!turns.asks(Instant::now()), "it has just begun one");
        turns.read((10..18).collect(), true);
        tokio::time::advance(ASKS_AFTER).await;
        assert!(!turns.asks(Instant::now()), "many ask");
    }

    #[tokio::test(start_paused = true)]
    async fn free_slots_are_left_to_those_that_asked_before_and_not_for_long() {
        let now = Instant::now;
        let mut turns = Turns::of(1);
        assert_eq!(turns.leave(3, now()), 3);
        turns.read(vec![2, 1, 3], true);
        assert_eq!([turns.leave(1, now()), turns.leave(3, now())], [0, 2]);
        tokio::time::advance(LEFT_FOR - Duration::from_millis(1)).await;
        assert_eq!(turns.leave(1, now()), 0);
        // Another one has come, and the next is waited for as long.
        turns.read(vec![4, 1], true);
        assert_eq!(turns.leave(1, now()), 0);
        tokio::time::advance(LEFT_FOR).await;
        assert_eq!(turns.leave(1, now()), 1, "it has not come");
        assert_eq!(turns.asked_by(), [1]);
    }
}
