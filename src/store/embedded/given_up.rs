//! Whether a member has given the lead up since its store hangs: then it says nothing that only a leader says, and the
//! others elect one. None of its threads is needed for that.

use std::sync::atomic::{AtomicBool, Ordering};

use raft::eraftpb::MessageType;

/// The messages that only a leader sends, without which the others elect another one.
const LEADING: [MessageType; 3] = [MessageType::MsgHeartbeat, MessageType::MsgAppend, MessageType::MsgSnapshot];

/// Whether the lead is given up.
#[derive(Default)]
pub(super) struct GivenUp {
    is_given_up: AtomicBool,
    /// Whether the standing was changed by that, and nobody has acted on it.
    is_deposed: AtomicBool,
}

impl GivenUp {
    /// Returns whether the member is not to lead.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }

    /// Says whether the member is not to lead from now on.
    pub(super) fn set(&self, is_given_up: bool) {
        self.is_given_up.store(is_given_up, Ordering::Release);
    }

    /// Takes note of that the standing says so.
    pub(super) fn has_deposed(&self) {
        self.is_deposed.store(true, Ordering::Release);
    }

    /// Returns whether the standing says so since this was asked last.
    pub(super) fn take_deposed(&self) -> bool {
        self.is_deposed.swap(false, Ordering::AcqRel)
    }

    /// Returns whether a message of this kind is kept back.
    pub(super) fn keeps_back(&self, kind: MessageType) -> bool {
        self.is_given_up() && LEADING.contains(&kind)
    }
}
