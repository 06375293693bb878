//! What a member is asked to do.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::store::embedded::progress::Successor;
use crate::store::embedded::words::{Offer, Piece};
use crate::store::{ChangeError, MemberChange, MemberMessage};

/// How long a change of the members waits for another one, which takes no longer where most members answer.
const CHANGE_WAITS: Duration = Duration::from_secs(5);

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
    /// To whom to hand over the lead, if that is to be done.
    pub(crate) hand_over: Option<Successor>,
    pub(crate) is_tick: bool,
}
