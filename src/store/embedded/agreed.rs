//! What the group has committed, and who shows it: the writer what it has proposed itself, and another thread the rest.

use std::collections::VecDeque;
use std::mem;

use parking_lot::{Condvar, Mutex};

use super::progress::{Committed, Position};

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

    /// Hands on entries that were committed, where the member stands like that.
    pub(super) fn hand_on(&self, committed: Vec<Committed>, position: Position) {
        let mut state = self.state.lock();
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
        while let Some(Proposed::Waits { .. }) = state.proposed {
            self.moved.wait(&mut state);
        }
        matches!(state.proposed.take(), Some(Proposed::Committed))
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
