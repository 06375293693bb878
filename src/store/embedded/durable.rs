//! What a member must not forget, on disk.

use std::io;

use parking_lot::MutexGuard;
use raft::eraftpb::Message;

use super::disk::Disk;
use super::exchange::Exchange;
use super::log::{AppendError, Log};
use super::progress::{Durable, Entries};
use super::seal::Vote;

/// The vote in the seal, with the way to the other members.
pub(super) struct OnDisk<'e> {
    pub(super) disk: &'e Disk,
    pub(super) exchange: Option<&'e Exchange>,
}

impl Durable for OnDisk<'_> {
    fn write_vote(&mut self, vote: Vote) -> io::Result<()> {
        self.disk.write_vote(vote)
    }

    fn send(&mut self, messages: Vec<Message>) {
        if let Some(exchange) = self.exchange {
            exchange.send(messages);
        }
    }
}

/// Two things that a member has do not fit together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Contradiction(String);

/// The log, which is locked.
pub(super) struct OnLog<'e> {
    pub(super) log: MutexGuard<'e, Log>,
    /// The number of the last entry that was applied.
    pub(super) applied: u64,
}

impl OnLog<'_> {
    /// Checks that the log ends with this entry.
    ///
    /// # Errors
    /// [`AppendError::Failed`] when it does not. Then the log refuses everything from now on.
    pub(super) fn check_last(&mut self, number: u64) -> Result<(), AppendError> {
        match self.log.last() {
            last if last == number => Ok(()),
            last => Err(self.refuse(format!("the log ends with entry {last}, and the member's entries with {number}"))),
        }
    }

    fn refuse(&mut self, what: String) -> AppendError {
        self.log.fail();
        AppendError::Failed(io::Error::other(Contradiction(what)))
    }
}

impl Entries for OnLog<'_> {
    fn write(&mut self, number: u64, frame: &[u8]) -> Result<(), AppendError> {
        if number <= self.applied {
            return Err(self.refuse(format!("entry {number} was applied, and another is to be in its place")));
        }
        if number <= self.log.last() {
            self.log.cut_back(number - 1).map_err(AppendError::Failed)?;
        }
        // A frame is numbered by its place: it would be found as another entry.
        self.check_last(number - 1)?;
        self.log.write(frame).map(drop)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.log.sync()
    }
}
