//! What the group has committed, and who shows it: the writer what it has proposed itself, and another thread the rest.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::progress::{Committed, Position};

/// How long the watchdog may wait for a lock under which others do more than to count.
pub(super) const GLANCE: Duration = Duration::from_millis(10);

/// How the voters follow a leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Following {
    /// Whether most voters are there and can acknowledge entries, the leader among them.
    pub(super) are_most: bool,
    /// The sum of the numbers of the last entries that they have acknowledged.
    pub(super) acknowledged: u64,
}

/// What the group has committed and is not shown yet.
#[derive(Default)]
pub(super) struct Agreed {
    state: Mutex<State>,
    /// Signalled when what is committed or shown has changed.
    moved: Condvar,
}

#[derive(Default)]
struct State {
    /// What has become of the entry that the writer has proposed, which it waits for.
    proposed: Option<Proposed>,
    /// Whether the writer waits for that: it has the entry durably, and the others are to acknowledge it.
    is_awaited: bool,
    following: Following,
    /// The other entries, which are to be applied.
    committed: VecDeque<Committed>,
    bytes: usize,
    /// Whether the member has left the group, since its store is being closed.
    has_left: bool,
}

#[derive(Clone, Copy)]
enum Proposed {
    Waits { number: u64, term: u64 },
    Committed,
    Lost,
}

impl Agreed {
    /// Takes note of the entry that the writer has proposed.
    pub(super) fn propose(&self, number: u64, term: u64) {
        let mut state = self.state.lock();
        state.proposed = Some(if state.has_left { Proposed::Lost } else { Proposed::Waits { number, term } });
    }

    /// Hands on entries that were committed, where the member stands like that and is followed like that.
    pub(super) fn hand_on(&self, committed: Vec<Committed>, position: Position, following: Following) {
        let mut state = self.state.lock();
        state.following = following;
        for committed in committed {
            match state.proposed {
                Some(Proposed::Waits { number, term }) if number == committed.number && term == committed.term => {
                    state.proposed = Some(Proposed::Committed);
                }
                _ => {
                    state.bytes += committed.frame.len();
                    state.committed.push_back(committed);
                }
            }
        }
        if let Some(Proposed::Waits { term, .. }) = state.proposed
            && (!position.is_leader || position.term != term)
        {
            // It may still be committed by another leader, and is applied then.
            state.proposed = Some(Proposed::Lost);
        }
        drop(state);
        self.moved.notify_all();
    }

    /// Waits until it is known whether the entry that the writer has proposed is committed while its leader leads, and
    /// returns that.
    pub(super) fn is_committed(&self) -> bool {
        let mut state = self.state.lock();
        state.is_awaited = true;
        while let Some(Proposed::Waits { .. }) = state.proposed {
            self.moved.wait(&mut state);
        }
        state.is_awaited = false;
        matches!(state.proposed.take(), Some(Proposed::Committed))
    }

    /// Returns how the voters follow while the writer waits until they have acknowledged an entry that it has durably
    /// itself; `None` while it does not, or where that cannot be seen at a glance.
    pub(super) fn awaited(&self) -> Option<Following> {
        let state = self.state.try_lock_for(GLANCE)?;
        state.is_awaited.then_some(state.following)
    }

    /// Waits for entries that are to be applied; `None` once the member has left.
    pub(super) fn committed(&self) -> Option<Vec<Committed>> {
        let mut state = self.state.lock();
        while state.committed.is_empty() && !state.has_left {
            self.moved.wait(&mut state);
        }
        state.bytes = 0;
        let committed = mem::take(&mut state.committed);
        (!state.has_left).then(|| committed.into())
    }

    /// Returns the bytes of the entries that nobody has taken to apply them.
    pub(super) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Waits until something is shown. Returns whether it is, which is not so once the member has left.
    pub(super) fn wait_until(&self, is_shown: impl Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        while !state.has_left && !is_shown() {
            self.moved.wait(&mut state);
        }
        !state.has_left
    }

    /// Wakes those who wait until something is shown.
    pub(super) fn has_moved(&self) {
        // With the lock, so that whoever has looked waits by now.
        drop(self.state.lock());
        self.moved.notify_all();
    }

    /// Leaves the group: nothing is waited for any more.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock();
        state.has_left = true;
        if let Some(Proposed::Waits { .. }) = state.proposed {
            state.proposed = Some(Proposed::Lost);
        }
        drop(state);
        self.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::store::Role;

    #[test]
    fn the_writer_waits_for_others_only_once_it_has_the_entry_itself() {
        let agreed = Agreed::default();
        let position = Position { term: 1, leader: Some(1), is_leader: true, committed: 0, role: Role::Voter };
        let following = Following { are_most: true, acknowledged: 7 };
        agreed.propose(1, 1);
        agreed.hand_on(Vec::new(), position, following);
        assert_eq!(agreed.awaited(), None, "it may still be written here");
        thread::scope(|scope| {
            let is_committed = scope.spawn(|| agreed.is_committed());
            while agreed.awaited() != Some(following) {
                thread::yield_now();
            }
            let committed = Committed { number: 1, term: 1, frame: vec![1].into() };
            agreed.hand_on(vec![committed], position, following);
            assert!(is_committed.join().expect("no panic"));
        });
        assert_eq!(agreed.awaited(), None);
    }
}
