//! What the process of a simulated member has in memory.

use std::collections::VecDeque;

use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};

use super::super::super::kept::Last;
use super::super::super::message;
use super::super::super::others::{Others, Way};
use super::super::super::progress::{Committed, Unwritten};
use super::super::super::words::{self, Ask, Cursor, Offer, Said, Word};
use super::super::Member;
use super::World;
use super::calls::Calls;
use super::disk::{Disk, State};
use crate::store::{Identity, MemberMessage};

/// The memory of a process.
pub(super) struct Running {
    pub(super) member: Member,
    pub(super) others: Others,
    pub(super) state: State,
    /// What is committed and not applied yet.
    pub(super) waiting: VecDeque<Committed>,
    /// What is to be written to the log, one after the other, and whether the first is being written.
    pub(super) unwritten: VecDeque<Unwritten>,
    pub(super) is_writing: bool,
    pub(super) ticks: u64,
    pub(super) receiving: Option<Receiving>,
    pub(super) calls: Calls,
}

/// A state that is received.
pub(super) struct Receiving {
    pub(super) from: u64,
    pub(super) offer: Offer,
    pub(super) next: u8,
    /// The ticks when the last piece came, and when the next was asked for.
    pub(super) came: u64,
    pub(super) asked: u64,
}

impl Running {
    pub(super) fn leads(&self) -> bool {
        let position = self.member.position();
        position.is_leader && position.term == self.state.last.term
    }

    pub(super) fn let_take_part(&mut self, own: u64) {
        let takes_part = self.others.take_part(own, self.member.last());
        self.member.let_take_part(takes_part, self.others.may_stand(own, self.member.members()));
    }

    /// Puts entries behind those that are to be written, with the last of these where they are not written yet and that
    /// `joins` them.
    pub(super) fn put(&mut self, next: Unwritten, joins: bool) {
        let waits = self.unwritten.len() > usize::from(self.is_writing);
        match self.unwritten.back_mut().filter(|_| joins && waits) {
            Some(last) => last.extend(next),
            None => self.unwritten.push_back(next),
        }
    }

    /// Keeps what it knows of the others.
    pub(super) fn seal(&mut self, disk: &Disk) {
        let mut files = disk.files();
        if let Some(group) = self.others.sealed(&files.group) {
            files.group = group;
        }
        if let Some(openings) = self.others.openings.unwritten() {
            files.openings = openings;
        }
    }

    /// Returns what a message says that counts.
    pub(super) fn understand(&mut self, message: &MemberMessage) -> Option<(Option<Identity>, Said)> {
        let (identity, bytes) = words::take_identity(&message.bytes).expect("readable");
        let said = words::decode(&bytes).expect("readable");
        assert!(self.others.may_be_ours(message.from, identity), "there is no other group");
        self.others.counts(message.from, identity, &said).then_some((identity, said))
    }

    /// Puts the identity of the group before a message to a member that reads it.
    fn of_group(&self, to: u64, message: Bytes) -> Bytes {
        match self.others.identity_for(to) {
            Some(identity) => words::of_group(identity, &message),
            None => message,
        }
    }

    pub(super) fn say(&self, from: u64, to: u64, word: &Word, world: &mut World) {
        let bytes = self.of_group(to, words::encode(word).expect("writable"));
        world.send(MemberMessage { from, to, bytes });
    }

    /// Returns whether it lacks an entry that was committed.
    pub(super) fn lacks(&self, entry: Last) -> bool {
        self.member.position().committed < entry.number && !self.member.has(entry)
    }

    pub(super) fn greet(&self, from: u64, to: u64, world: &mut World) {
        let hello = self.others.hello(to, self.member.last(), self.receiving.is_some());
        self.say(from, to, &Word::Hello(hello), world);
        if let Some(opened) = self.others.opened(to) {
            self.say(from, to, &Word::Opened(opened), world);
        }
    }

    /// Sends messages as the exchange does.
    pub(super) fn send(&self, from: u64, disk: &Disk, messages: Vec<Message>, world: &mut World) {
        for message in messages {
            if message.msg_type == MessageType::MsgSnapshot {
                if let Some(word) = disk.offer_word(message.to, message.term) {
                    self.say(from, message.to, &word, world);
                }
                continue;
            }
            let way = self.others.way(message.to, message.msg_type);
            let Some(message) = message::encode(&message).expect("writable") else { continue };
            match way {
                Way::Plain => world.send(message),
                Way::Between(directories) => {
                    let bytes = self.of_group(message.to, words::between(directories, &message.bytes));
                    world.send(MemberMessage { bytes, ..message });
                }
                Way::None => {}
            }
        }
    }
}

impl Receiving {
    pub(super) fn ask(&self) -> Ask {
        Ask { offer: self.offer.number, at: Cursor { keyspace: self.next, after: None } }
    }
}
