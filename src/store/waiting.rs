//! Messages between members that wait, to be sent or to be taken, within bounds.
//!
//! Most bytes between members are those of entries and of pieces of a state: what is lost of that is sent again, and is
//! late without harm. Whether there is a leader depends on small messages, votes and confirmations, which must not be
//! late. So each of the two has bounds of its own: however much bulk there is, no other message is lost for it.

use std::collections::VecDeque;

/// The most messages that wait in one place, of bulk and of what is none.
pub const MOST_WAITING: usize = 4_096;

/// The most bytes of bulk that wait in one place, apart from a single message that is longer.
pub const MOST_WAITING_BYTES: usize = 32 << 20;

/// What waits in one place, in its order.
#[derive(Debug)]
pub struct Waiting<T> {
    messages: VecDeque<Message<T>>,
    bulk: usize,
    bulk_bytes: usize,
}

#[derive(Debug)]
struct Message<T> {
    is_bulk: bool,
    bytes: usize,
    message: T,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { messages: VecDeque::new(), bulk: 0, bulk_bytes: 0 }
    }
}

impl<T> Waiting<T> {
    /// Returns whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Adds a message of so many bytes, and drops the oldest of its sort when these are too many. Returns how many
    /// were dropped.
    pub fn push(&mut self, message: T, bytes: usize, is_bulk: bool) -> u64 {
        self.add(message, bytes, is_bulk);
        let mut dropped = 0;
        while self.has_too_much(is_bulk)
            && let Some(oldest) = self.messages.iter().position(|message| message.is_bulk == is_bulk)
        {
            let removed = self.messages.remove(oldest);
            self.forget(removed.as_ref());
            dropped += 1;
        }
        dropped
    }

    /// Adds a message of so many bytes where there is room for it, and returns whether there is.
    pub fn push_if_room(&mut self, message: T, bytes: usize, is_bulk: bool) -> bool {
        let has_room = match is_bulk {
            true => self.bulk == 0 || self.bulk < MOST_WAITING && self.bulk_bytes + bytes <= MOST_WAITING_BYTES,
            false => self.messages.len() - self.bulk < MOST_WAITING,
        };
        if has_room {
            self.add(message, bytes, is_bulk);
        }
        has_room
    }

    /// Takes the oldest message, with its bytes.
    pub fn pop(&mut self) -> Option<(T, usize)> {
        let first = self.messages.pop_front();
        self.forget(first.as_ref());
        first.map(|Message { message, bytes, .. }| (message, bytes))
    }

    /// Takes all messages out, the oldest first.
    pub fn take(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(self).messages.into_iter().map(|Message { message, .. }| message)
    }

    fn add(&mut self, message: T, bytes: usize, is_bulk: bool) {
        self.messages.push_back(Message { is_bulk, bytes, message });
        if is_bulk {
            self.bulk += 1;
            self.bulk_bytes += bytes;
        }
    }

    fn forget(&mut self, message: Option<&Message<T>>) {
        if let Some(Message { bytes, .. }) = message.filter(|message| message.is_bulk) {
            self.bulk -= 1;
            self.bulk_bytes -= bytes;
        }
    }

    fn has_too_much(&self, bulk: bool) -> bool {
        match bulk {
            true => self.bulk > MOST_WAITING || self.bulk_bytes > MOST_WAITING_BYTES && self.bulk > 1,
            false => self.messages.len() - self.bulk > MOST_WAITING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = MOST_WAITING_BYTES / 4;

    #[test]
    fn the_oldest_bulk_makes_room_for_what_comes_and_nothing_else_does() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.push("vote", 10, false), 0);
        assert_eq!((0..4).map(|_| waiting.push("old", LARGE, true)).sum::<u64>(), 0, "they fit");
        assert_eq!(waiting.push("confirmation", 10, false), 0);
        assert_eq!((waiting.push("new", LARGE, true), waiting.push("small", 1, true)), (1, 1));
        let left: Vec<_> = waiting.take().collect();
        assert_eq!(left, ["vote", "old", "old", "confirmation", "new", "small"]);
        assert!(waiting.is_empty() && waiting.pop().is_none());
        assert_eq!((waiting.bulk, waiting.bulk_bytes), (0, 0));
    }

    #[test]
    fn each_sort_has_room_for_so_many_messages() {
        let mut waiting = Waiting::default();
        for number in 0..MOST_WAITING {
            assert_eq!((waiting.push(number, 1, true), waiting.push(number, 1, false)), (0, 0));
        }
        assert_eq!((waiting.push(MOST_WAITING, 1, true), waiting.push(MOST_WAITING, 1, false)), (1, 1));
        assert_eq!((waiting.pop(), waiting.pop()), (Some((1, 1)), Some((1, 1))), "the oldest of each are gone");
        assert_eq!(
            (waiting.bulk, waiting.bulk_bytes, waiting.messages.len()),
            (MOST_WAITING - 1, MOST_WAITING - 1, 2 * MOST_WAITING - 2)
        );
    }

    #[test]
    fn one_that_is_longer_than_all_may_be_waits_alone() {
        let mut waiting = Waiting::default();
        waiting.push("small", 1, true);
        assert_eq!(waiting.push("huge", 2 * MOST_WAITING_BYTES, true), 1);
        assert_eq!(waiting.push("vote", 10, false), 0);
        assert!(!waiting.push_if_room("small", 1, true), "not before it is taken");
        assert_eq!(waiting.pop(), Some(("huge", 2 * MOST_WAITING_BYTES)));
        assert_eq!(waiting.pop(), Some(("vote", 10)));
        assert!(waiting.push_if_room("huge", 2 * MOST_WAITING_BYTES, true), "nothing else waits");
    }

    #[test]
    fn bulk_for_which_there_is_no_room_is_refused_and_nothing_else_is() {
        let mut waiting = Waiting::default();
        let taken = (0..10).filter(|number| waiting.push_if_room(*number, LARGE, true)).count();
        assert_eq!(taken, 4);
        let votes = (0..2 * MOST_WAITING).filter(|number| waiting.push_if_room(*number, 10, false)).count();
        assert_eq!(votes, MOST_WAITING);
        let left: Vec<_> = waiting.take().collect();
        assert_eq!(left[..6], [0, 1, 2, 3, 0, 1], "the first ones, so that none is missing before another");
        assert!(waiting.push_if_room(0, LARGE, true), "there is room again");
    }
}
