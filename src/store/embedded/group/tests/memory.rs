//! A disk in memory, and what an engine does with its threads, one after the other.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::super::super::kept::{Offered, read_from};
use super::super::*;

/// A frame that cannot be read any more.
pub(super) const BROKEN: &[u8] = b"broken";

/// A disk whose sync is a sync.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    pub(super) vote: Vote,
    pub(super) frames: Vec<Vec<u8>>,
    /// The frames as they were when they were synced.
    pub(super) synced: Vec<Vec<u8>>,
    pub(super) is_full: bool,
    pub(super) outbox: Vec<Message>,
}

impl Durable for Memory {
    fn write_vote(&mut self, vote: Vote) -> io::Result<()> {
        assert!(vote.term >= self.vote.term, "a member goes back to an earlier term");
        let is_second = vote.term == self.vote.term && self.vote.member != 0;
        assert!(!is_second || vote.member == self.vote.member, "a member votes twice in a term");
        self.vote = vote;
        Ok(())
    }

    fn send(&mut self, messages: Vec<Message>) {
        self.outbox.extend(messages);
    }
}

impl Entries for Memory {
    fn write(&mut self, number: u64, frame: &[u8]) -> Result<(), AppendError> {
        if self.is_full {
            return Err(AppendError::Full(io::ErrorKind::StorageFull.into()));
        }
        let place = usize::try_from(number).expect("it fits in memory") - 1;
        assert!(place <= self.frames.len(), "an entry is left out");
        self.frames.truncate(place);
        self.frames.push(frame.to_vec());
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.synced.clone_from(&self.frames);
        Ok(())
    }
}

/// What an engine does with its threads, one after the other.
impl Member {
    pub(super) fn go_on(&mut self, disk: &mut Memory) -> Result<Progress, AppendError> {
        let progress = self.advance(disk)?;
        self.settle(progress, disk)
    }

    pub(super) fn begin(&mut self, disk: &mut Memory) -> Result<Progress, AppendError> {
        let progress = self.campaign(disk)?;
        self.settle(progress, disk)
    }

    pub(super) fn append(
        &mut self,
        term: u64,
        frame: Vec<u8>,
        disk: &mut Memory,
    ) -> Result<(u64, Progress), ProposeError> {
        let mut rest = Memory { vote: disk.vote, ..Memory::default() };
        let (number, progress) = self.propose(term, frame, disk, &mut rest)?;
        disk.outbox.append(&mut rest.outbox);
        Ok((number, self.settle(progress, disk)?))
    }

    pub(super) fn append_members(
        &mut self,
        next: &Membership,
        disk: &mut Memory,
    ) -> Result<(u64, Progress), ProposeError> {
        let (number, progress) = self.propose_members(next, &Note::default(), disk)?;
        Ok((number, self.settle(progress, disk)?))
    }

    fn settle(&mut self, mut progress: Progress, disk: &mut Memory) -> Result<Progress, AppendError> {
        loop {
            let next = if let Some(Unwritten { entries, step }) = progress.unwritten.take() {
                entries.iter().try_for_each(|(number, frame)| disk.write(*number, frame))?;
                disk.sync().map_err(AppendError::Failed)?;
                self.has_written(step, disk)?
            } else if let Some(((number, last), log)) = self.to_read() {
                self.has_read(number, read_from(&*log, number, last), disk)?
            } else {
                return Ok(progress);
            };
            progress.committed.extend(next.committed);
            progress.confirmed = progress.confirmed.max(next.confirmed);
            progress.unwritten = next.unwritten;
        }
    }
}

/// The log of a member that has synced it, and the last entry of the state that it offers.
pub(super) struct Log(pub(super) Vec<Vec<u8>>, pub(super) Arc<AtomicU64>);

impl Earlier for Log {
    fn offer(&self, _: u64, at_least: u64) -> Option<Offered> {
        let last = Last { number: self.1.load(Ordering::Relaxed), term: 1 };
        (last.number >= at_least.max(1)).then(|| Offered { last, members: Arc::new(Membership::founded(&[1, 2])) })
    }

    fn first(&self) -> u64 {
        1
    }

    fn frames(&self, number: u64, _: u64) -> io::Result<(u64, Vec<Bytes>)> {
        let place = usize::try_from(number).expect("it fits in memory") - 1;
        if self.0.get(place).is_some_and(|frame| frame == BROKEN) {
            return Err(io::Error::other("the frame is broken"));
        }
        let frames = self.0.get(place..).ok_or(io::ErrorKind::NotFound)?;
        Ok((
            number,
            frames.iter().take_while(|frame| *frame != BROKEN).map(|frame| Bytes::copy_from_slice(frame)).collect(),
        ))
    }
}
