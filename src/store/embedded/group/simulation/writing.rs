//! What a simulated member writes and reads, and what comes of what it did.

use std::mem;

use rand::RngExt as _;

use super::super::super::entry;
use super::super::super::equality::sum::Sum;
use super::super::super::kept::{group_of, read_from};
use super::super::super::log::AppendError;
use super::super::super::progress::{Entries as _, Progress, Unwritten};
use super::super::super::stored;
use super::super::super::weight::BATCH_BYTES;
use super::node::Node;
use super::{ITEM_BYTES, LARGE, World};

impl World {
    /// Makes up an entry of this term, seldom one with about as many bytes as a batch of the writer may have.
    pub(super) fn entry(&mut self, term: u64) -> Vec<u8> {
        self.proposed += 1;
        let mut frame = Vec::new();
        stored::append(&(term, self.proposed), &mut frame).expect("writable");
        if self.random.random_ratio(1, LARGE) {
            self.counts.large += 1;
            // The last write of a batch begins before its bytes are full.
            frame.resize(BATCH_BYTES + self.random.random_range(0..ITEM_BYTES), 0);
        }
        frame
    }

    /// Compares what the leader says of its sum in an entry with the state that all had then.
    pub(super) fn compare(&mut self, member: u64, frame: &[u8]) {
        if !entry::has_members(frame) {
            return;
        }
        let Some(said) = entry::Entry::decode(frame).expect("an entry").note.sum else { return };
        let after = usize::try_from(said.entry).expect("it fits in memory").checked_sub(1);
        let hash = after.and_then(|after| self.history.get(after)).map(|(_, hash)| Sum((*hash).into()));
        assert!(hash.is_some() && said.sum() == hash, "member {member} has another sum than the leader says");
        self.counts.compared += 1;
    }
}

impl Node {
    /// Writes so many of the entries that are to be written next, and syncs them once all of these are written.
    pub(super) fn write(&mut self, count: usize, world: &mut World) {
        let Some(running) = self.running.as_mut().filter(|_| self.writes <= world.now) else { return };
        let Some(Unwritten { entries, step }) = running.unwritten.front_mut() else { return };
        let (mut disk, step, count) = (self.disk.clone(), *step, count.min(entries.len()));
        let mut written = entries.drain(..count).try_for_each(|(number, frame)| disk.write(number, &frame));
        running.is_writing = !entries.is_empty();
        if written.is_ok() && running.is_writing {
            return;
        }
        running.unwritten.pop_front();
        written = written.and_then(|()| disk.sync().map_err(AppendError::Failed));
        let progress = written.and_then(|()| running.member.has_written(step, &mut disk));
        self.conclude(progress, world);
    }

    /// Writes all entries that are to be written, if its disk writes anything.
    pub(super) fn write_all(&mut self, world: &mut World) {
        let has_unwritten = |node: &Self| node.running.as_ref().is_some_and(|running| !running.unwritten.is_empty());
        while self.writes <= world.now && has_unwritten(self) {
            self.write(usize::MAX, world);
        }
    }

    /// Reads what other members lack from the log.
    fn read(&mut self, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        let Some(((number, last), log)) = running.member.to_read() else { return };
        let read = read_from(&*log, number, last);
        let progress = running.member.has_read(number, read, &mut self.disk.clone());
        self.conclude(progress, world);
    }

    pub(super) fn conclude(&mut self, progress: Result<Progress, AppendError>, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        let messages = mem::take(&mut self.disk.files().outbox);
        let Ok(progress) = progress else {
            // What it was to send may have been sent.
            if world.random.random() {
                running.send(self.number, &self.disk, messages, world);
            }
            return self.crash(world);
        };
        if let Some(unwritten) = progress.unwritten {
            running.put(unwritten, world.random.random());
        }
        // Before the members are known with what was committed: what is said to a directory is of its own progress.
        running.send(self.number, &self.disk, messages, world);
        let position = running.member.position();
        if position.is_leader {
            world.leads(position.term, self.disk.files().group.directory);
        }
        if !progress.committed.is_empty() {
            running.others.agree(self.number, running.member.members());
            if position.is_leader {
                running.others.adopt(running.member.members().identity);
            }
            progress.acknowledged.iter().for_each(|said| running.others.note(said));
        }
        running.calls.progress(&progress.committed, progress.confirmed, &mut world.counts);
        running.waiting.extend(progress.committed);
        if world.is_calm || world.random.random_range(0..4) > 0 {
            self.apply(world);
        }
        if let Some(running) = &mut self.running {
            let term = running.leads().then_some(position.term);
            running.calls.answer(term, &mut world.counts);
        }
        if world.is_calm || world.random.random_range(0..4) > 1 {
            self.write(usize::MAX, world);
        }
        if world.is_calm || world.random.random_range(0..4) > 0 {
            self.read(world);
        }
    }

    /// Applies what is committed, and takes it over into the database from time to time.
    fn apply(&mut self, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        let mut is_other_group = false;
        let position = running.member.position();
        let leads_in = position.is_leader.then_some(position.term);
        for committed in running.waiting.drain(..) {
            let before = running.state.members.clone();
            running.state.apply(&committed);
            is_other_group |= before != running.state.members;
            world.has_applied(self.number, &committed, &running.state);
            if leads_in == Some(committed.term) {
                world.acknowledged = world.acknowledged.max(committed.number);
            }
        }
        if is_other_group {
            let mut group = running.member.node.raft.prs().conf().to_conf_state();
            group.voters.sort_unstable();
            group.learners.sort_unstable();
            assert_eq!(group, group_of(&running.state.members), "the library has other members");
            assert_eq!(**running.member.members(), *running.state.members, "it has other members");
        }
        let mut files = self.disk.files();
        files.applied = running.state.last.number;
        if running.state.last.number > files.flushed.last.number && world.random.random_ratio(1, world.flushes) {
            let kept = world.random.random_range(0..=world.keeps);
            files.flush(running.state.clone(), kept);
        }
    }
}
