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

/// The log, which is locked.
pub(super) struct OnLog<'e> {
    pub(super) log: MutexGuard<'e, Log>,
    /// The number of the last entry that was applied.
    pub(super) applied: u64,
}

impl Entries for OnLog<'_> {
    fn write(&mut self, number: u64, frame: &[u8]) -> Result<(), AppendError> {
        if number <= self.log.last() {
            if number <= self.applied {
                let what = format!("entry {number} was applied, and another is to be in its place");
                return Err(AppendError::Failed(io::Error::other(what)));
            }
            self.log.cut_back(number - 1).map_err(AppendError::Failed)?;
        }
        match self.log.write(frame)? {
            written if written == number => Ok(()),
            written => {
                let what = format!("entry {number} was written as {written}");
                Err(AppendError::Failed(io::Error::other(what)))
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.log.sync()
    }
}
