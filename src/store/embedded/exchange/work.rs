//! What a member is asked to do, and the messages that wait, to it and from it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::store::embedded::progress::Successor;
use crate::store::embedded::words::{Offer, Piece};
use crate::store::waiting::Waiting;
use crate::store::{ChangeError, MemberChange, MemberMessage};

/// How long a change of the members waits for another one, which takes no longer where most members answer.
const CHANGE_WAITS: Duration = Duration::from_secs(5);

/// Who has asked for the lead to be handed over: it is answered whether this member leads no longer.
pub(crate) type LeadCaller = oneshot::Sender<bool>;

/// A change of the members that is asked for.
pub(crate) struct Change {
    pub(crate) change: MemberChange,
    /// Who has asked for it, and when.
    pub(crate) caller: oneshot::Sender<Result<(), ChangeError>>,
    pub(crate) since: Instant,
}

impl Change {
    /// Returns whether it may wait until another change has been made.
    pub(crate) fn may_wait(&self) -> bool {
        self.since.elapsed() < CHANGE_WAITS
    }
}

/// What is said of a state that this member is to receive.
#[derive(Debug)]
pub(crate) enum Offering {
    Offer(Offer),
    Piece(Piece),
    Gone(u64),
}

/// What a member is asked to do next.
pub(crate) struct Work {
    pub(crate) messages: Vec<MemberMessage>,
    /// The round of questions to begin, if there is one.
    pub(crate) round: Option<u64>,
    /// The changes of the members that are asked for.
    pub(crate) changes: Vec<Change>,
    /// To whom to hand over the lead, if that is to be done, and who waits for it.
    pub(crate) hand_over: Option<(Successor, Vec<LeadCaller>)>,
    pub(crate) is_tick: bool,
}

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) messages: Waiting<MemberMessage>,
    pub(crate) is_asked: bool,
    pub(crate) changes: Vec<Change>,
    /// Those that wait until another one has been made. They are tried again with the next tick.
    pub(crate) put_off: Vec<Change>,
    pub(crate) hand_over: Option<(Successor, Vec<LeadCaller>)>,
    pub(crate) is_closed: bool,
}

impl Inbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && !self.is_asked && self.changes.is_empty() && self.hand_over.is_none()
    }
}

#[derive(Default)]
pub(crate) struct Outbox {
    /// The messages to each member, so that one that takes none costs the others nothing.
    pub(crate) messages: BTreeMap<u64, Waiting<MemberMessage>>,
    pub(crate) is_closed: bool,
}
