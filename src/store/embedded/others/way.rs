//! How messages of the library go to a member, and which of them a leader or a candidate sends.

use raft::eraftpb::MessageType;

use crate::store::embedded::words::Directories;

/// Returns whether a member that stands for election sends messages of this kind.
pub(super) fn is_candidacy(kind: MessageType) -> bool {
    matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote)
}

/// Returns whether only a leader sends messages of this kind.
pub(super) fn is_of_leader(kind: MessageType) -> bool {
    matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat)
}

/// Returns whether messages of this kind answer those that only a leader sends.
pub(super) fn is_for_leader(kind: MessageType) -> bool {
    matches!(kind, MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse)
}

/// How messages of the library go to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Plain,
    Between(Directories),
    None,
}
