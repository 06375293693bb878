//! The group of members that have the log in common, by the Raft algorithm (Ongaro and Ousterhout, "In Search of an
//! Understandable Consensus Algorithm", USENIX ATC 2014) as the library [`raft`] has it.
//!
//! A store on one machine is a group of one, which votes for itself and has committed what its log has durably. Its
//! entries go the way that those of a larger group go: proposed by the leader of a term, written and synced, committed,
//! applied.
//!
//! The number of a frame of the log is the index of its entry. Each frame begins with the term of its entry; the one
//! that begins a term has nothing else. How far the group has committed is not kept: what the database has was
//! committed, and so was what the log of a group of one has. In a larger group the leader says it, but for the changes
//! of members before the last one in the log: a member must not count votes among members of long ago.

use std::io;
use std::sync::Arc;

use raft::eraftpb::{
    ConfChangeSingle, ConfChangeType, ConfChangeV2, Entry, EntryType, HardState, Message, MessageType,
};
use raft::{Config, ProgressState, RawNode, SnapshotStatus, StateRole};
use slog::Logger;

use super::entry::{self, Note, encode_members};
use super::kept::{Chunk, Earlier, Kept, Last, certainly_committed, data_of, frame_of, group_of, typed};
use super::log::AppendError;
use super::matched::Matched;
use super::progress::{Committed, Durable, Entries, Position, Progress, ProposeError, Successor, Unwritten};
use super::seal::Vote;
use super::steps::Steps;
use crate::store::{Membership, Role};

/// This member, which is alone in its group.
pub(super) const ALONE: u64 = 1;

/// After how many ticks without a word from a leader a member stands for election, at least; at most twice as many.
const ELECTION_TICKS: usize = 10;

/// After how many ticks a leader says that it is there.
const HEARTBEAT_TICKS: usize = 2;

/// The most bytes of entries in one message.
const MESSAGE_BYTES: u64 = 1 << 20;

/// The most messages with entries that are sent to a member before it has answered: with the bytes of each fewer than
/// may wait on their way.
const MESSAGES_AHEAD: usize = 16;

/// How far a member may lag behind to be given a vote, in entries.
const NEARLY: u64 = 1_000;

/// A member of a group.
pub(super) struct Member {
    node: RawNode<Kept>,
    members: Arc<Membership>,
    /// The entry up to which changes of the members are not made: those of a group that is no more.
    unchanged_to: u64,
    /// Whether it takes part in elections, and whether it may stand for one.
    takes_part: bool,
    stands: bool,
    steps: Steps,
    matched: Matched,
}

impl Member {
    /// Creates the member `id` of the group `members`, those as of the entry `applied`, as its process starts. All
    /// entries up to `applied` are committed and were applied; `entries` are those of its log behind it, and `earlier`
    /// reads those before it, where others may lack them.
    ///
    /// # Errors
    /// [`AppendError::Failed`] when these do not fit together.
    pub(super) fn new(
        id: u64,
        members: Arc<Membership>,
        vote: Vote,
        applied: Last,
        entries: Vec<Entry>,
        earlier: Option<Arc<dyn Earlier>>,
    ) -> Result<Self, AppendError> {
        let commit = applied.number.max(certainly_committed(&entries));
        let hard = HardState { term: vote.term, vote: vote.member, commit, ..HardState::default() };
        let kept = Kept::new(hard, group_of(&members), applied, entries, earlier);
        let config = Config {
            id,
            applied: applied.number,
            check_quorum: true,
            pre_vote: true,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            max_size_per_msg: MESSAGE_BYTES,
            max_inflight_msgs: MESSAGES_AHEAD,
            ..Config::default()
        };
        let node = RawNode::new(&config, kept, &Logger::root(slog::Discard, slog::o!())).map_err(failed)?;
        let (steps, matched) = (Steps::default(), Matched::default());
        Ok(Self { node, members, unchanged_to: 0, takes_part: true, stands: true, steps, matched })
    }

    /// Lets the member go on alone, whatever its log says of other members.
    pub(super) fn alone(mut self) -> Self {
        self.unchanged_to = self.last();
        self
    }

    /// Says whether the member takes part in elections from now on, and whether it may stand for one. One that may not
    /// votes for others where it takes part.
    pub(super) fn let_take_part(&mut self, takes_part: bool, may_stand: bool) {
        self.takes_part = takes_part;
        self.stands = takes_part && may_stand;
    }

    /// Returns whether it takes part in elections and does not stand for one. While its group is being founded there is
    /// nobody to whom that matters.
    pub(super) fn declines(&self) -> bool {
        self.takes_part && !self.stands
    }

    /// Returns the members of the group as of the last entry that was committed.
    pub(super) fn members(&self) -> &Arc<Membership> {
        &self.members
    }

    /// Returns where it stands.
    pub(super) fn position(&self) -> Position {
        let raft = &self.node.raft;
        let role = match self.members.seats.get(&raft.id) {
            Some(seat) if seat.votes => Role::Voter,
            Some(_) => Role::Learner,
            None if self.members.seats.is_empty() => Role::Joining,
            None => Role::Removed,
        };
        Position {
            role,
            term: raft.term,
            leader: Some(raft.leader_id).filter(|leader| *leader != raft::INVALID_ID),
            is_leader: self.leads(),
            committed: raft.raft_log.committed,
        }
    }

    /// Returns whether it leads its group. One that was removed does not, though the library lets it lead that stood
    /// for election before it knew: where one other member is left, the library takes it for that one, and asks nobody.
    fn leads(&self) -> bool {
        let raft = &self.node.raft;
        raft.state == StateRole::Leader && raft.prs().conf().voters().contains(raft.id)
    }

    /// Stands for election to the leader of the next term. In a group of one it leads with that, and the entry that
    /// begins the term is to be written.
    ///
    /// # Errors
    /// [`AppendError`] when what must be durable is not. Then this member must not be used any more.
    pub(super) fn campaign(&mut self, durable: &mut impl Durable) -> Result<Progress, AppendError> {
        self.node.campaign().map_err(failed)?;
        self.advance(durable)
    }

    /// Proposes an entry, which begins with its `term`. The log has all entries that this member has. Returns its
    /// number. It is written, and is to be synced.
    ///
    /// # Errors
    /// [`ProposeError::Deposed`], or [`AppendError::Full`] when there was no room for it: then nothing was proposed.
    /// After any other this member must not be used any more.
    pub(super) fn propose(
        &mut self,
        term: u64,
        frame: Vec<u8>,
        log: &mut impl Entries,
        durable: &mut impl Durable,
    ) -> Result<(u64, Progress), ProposeError> {
        if !self.may_propose(term) {
            return Err(ProposeError::Deposed);
        }
        // Before it is proposed: the library knows no entry that was not written for want of room.
        let number = self.last() + 1;
        log.write(number, &frame)?;
        self.step_proposal(frame)?;
        Ok((number, self.proceed(Some(number), durable)?))
    }

    /// Returns whether this member takes entries of this term: it leads in it, and is not handing over the lead.
    pub(super) fn may_propose(&self, term: u64) -> bool {
        let raft = &self.node.raft;
        self.leads() && raft.term == term && raft.lead_transferee.is_none()
    }

    fn step_proposal(&mut self, frame: Vec<u8>) -> Result<(), AppendError> {
        let (entry_type, data) = typed(frame.into());
        let entry = Entry { entry_type, data, ..Entry::default() };
        let proposal = Message { msg_type: MessageType::MsgPropose, from: self.node.raft.id, ..Message::default() };
        self.node.raft.step(Message { entries: vec![entry].into(), ..proposal }).map_err(failed)
    }

    /// Proposes members, of which at most one is not as it was, with what is to be noted. Returns the number of the
    /// entry, which is to be written.
    ///
    /// # Errors
    /// [`ProposeError::Deposed`] or [`ProposeError::Changing`]; after any other this member must not be used any more.
    pub(super) fn propose_members(
        &mut self,
        members: &Membership,
        note: &Note,
        durable: &mut impl Durable,
    ) -> Result<(u64, Progress), ProposeError> {
        // The library would write something else.
        if self.is_changing() {
            return Err(ProposeError::Changing);
        }
        let term = self.node.raft.term;
        if !self.may_propose(term) {
            return Err(ProposeError::Deposed);
        }
        let number = self.last() + 1;
        self.step_proposal(encode_members(term, members, note).map_err(|error| failed(error.0))?)?;
        Ok((number, self.advance(durable)?))
    }

    /// Returns whether it leads and cannot change the members until another change has been made.
    pub(super) fn is_changing(&self) -> bool {
        self.leads() && self.node.raft.has_pending_conf()
    }

    /// Returns the last entry up to `most` that a member has acknowledged in the term in which this one leads, with the
    /// term 0 where it is not in memory any more; `None` where this one does not lead, or the member has not.
    pub(super) fn acknowledged(&self, member: u64, most: u64) -> Option<Last> {
        let matched = self.node.raft.prs().get(member).filter(|_| self.leads())?.matched.min(most);
        let term = || self.node.store().term_in_memory(matched).unwrap_or(0);
        (matched > 0).then(|| Last { number: matched, term: term() })
    }

    /// Returns the number of the last entry of the log.
    pub(super) fn last(&self) -> u64 {
        self.node.raft.raft_log.last_index()
    }

    /// Returns whether the log has this entry.
    pub(super) fn has(&self, entry: Last) -> bool {
        self.node.raft.raft_log.match_term(entry.number, entry.term)
    }

    /// Returns the number of the last entry of the state that a member was offered and is to receive now.
    pub(super) fn receives(&self, member: u64) -> Option<u64> {
        let progress = self.node.raft.prs().get(member)?;
        (progress.state == ProgressState::Snapshot).then_some(progress.pending_snapshot)
    }

    /// Takes note of that a member has received the state that it was offered, or never will.
    pub(super) fn has_received(&mut self, member: u64, is_received: bool) {
        self.node.report_snapshot(member, if is_received { SnapshotStatus::Finish } else { SnapshotStatus::Failure });
    }

    /// Returns whether a member can acknowledge entries of this one, which leads: it need not receive a whole state.
    pub(super) fn can_follow(&self, member: u64) -> bool {
        let (first, progress) = (self.node.raft.raft_log.first_index(), self.node.raft.prs().get(member));
        progress.is_some_and(|of| of.state != ProgressState::Snapshot && of.matched + 1 >= first)
    }

    /// Returns whether a member has about everything that this one has, which leads.
    pub(super) fn is_caught_up(&self, member: u64) -> bool {
        let (committed, progress) = (self.node.raft.raft_log.committed, self.node.raft.prs().get(member));
        progress.is_some_and(|of| of.state == ProgressState::Replicate && of.matched + NEARLY >= committed)
    }

    /// Takes over the members that an entry says.
    fn change(&mut self, next: Membership) -> Result<(), AppendError> {
        let mut changes = Vec::new();
        // A member with another directory has none of what the former one had, and no vote yet. The directory of a
        // founder is said after its vote.
        let is_same = |number: &u64| {
            let seats = self.members.seats.get(number).zip(next.seats.get(number));
            seats.is_some_and(|(before, next)| {
                before.directory == next.directory || before.directory == 0 && before.votes && next.votes
            })
        };
        // Those that vote come first: one that joins has no members yet, and no group is without one that votes.
        let mut seats: Vec<_> = next.seats.iter().collect();
        seats.sort_by_key(|(_, seat)| !seat.votes);
        for (number, seat) in seats {
            let was = self.members.seats.get(number).filter(|_| is_same(number)).map(|seat| seat.votes);
            if was.is_none() && self.members.seats.contains_key(number) {
                changes.push((ConfChangeType::RemoveNode, *number));
            }
            match (was, seat.votes) {
                (None | Some(false), true) => changes.push((ConfChangeType::AddNode, *number)),
                (None | Some(true), false) => changes.push((ConfChangeType::AddLearnerNode, *number)),
                (Some(true), true) | (Some(false), false) => {}
            }
        }
        let gone = self.members.seats.keys().filter(|number| !next.seats.contains_key(number));
        changes.extend(gone.map(|number| (ConfChangeType::RemoveNode, *number)));
        // One after the other: one that joins has none of them yet.
        for (change_type, node_id) in changes {
            let single = ConfChangeSingle { change_type, node_id, ..ConfChangeSingle::default() };
            let change = ConfChangeV2 { changes: vec![single].into(), ..ConfChangeV2::default() };
            self.node.mut_store().group = self.node.apply_conf_change(&change).map_err(failed)?;
        }
        self.members = Arc::new(next);
        Ok(())
    }

    /// Lets time pass by one tick. What comes of it [`advance`](Self::advance) does.
    pub(super) fn tick(&mut self) {
        let raft = &self.node.raft;
        if raft.state == StateRole::Leader && !self.leads() && raft.lead_transferee.is_none() {
            // It was removed, and the others may not know yet that they need it no more.
            self.hand_over(Successor::Furthest, |_| true);
        }
        let may_stand = self.may_stand();
        let raft = &mut self.node.raft;
        let is_over = raft.election_elapsed + 1 >= raft.election_timeout();
        if !may_stand && is_over && raft.state != StateRole::Leader {
            // It has not heard of its leader for long enough to vote for another one.
            raft.election_elapsed = raft.election_timeout();
            return;
        }
        self.node.tick();
    }

    /// Returns whether it may stand for election: the library takes one that does to have written all that it has. What
    /// came since the last [`advance`](Self::advance) is not written either.
    pub(super) fn may_stand(&self) -> bool {
        let log = &self.node.raft.raft_log;
        self.stands && self.steps.are_durable() && log.persisted == log.last_index()
    }

    /// Takes a message of another member. What comes of it [`advance`](Self::advance) does.
    pub(super) fn step(&mut self, mut message: Message) {
        let from = message.from;
        self.matched.bound(&mut message, &self.node.raft);
        if message.msg_type == MessageType::MsgRequestPreVoteResponse && message.reject {
            // What it says to be committed is so in any term, and one that was removed comes to no later one.
            message.term = message.term.max(self.node.raft.term);
        }
        // That goes from a member to itself only. And messages of one that is no member yet, as far as this one knows,
        // are of use: it may be the only one to say that it is.
        let is_of_use = match message.msg_type {
            MessageType::MsgUnreachable => false,
            MessageType::MsgTimeoutNow => self.may_stand(),
            // A member is asked to vote only once it has something of the log. One that joins, and was told nothing of
            // its group yet, cannot tell those that have lost their directories and found the group again.
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => {
                // Before its group is founded, it votes only for one that has a log, and knows its directory.
                let is_founded = self.takes_part || message.index > 0;
                is_founded && (!self.members.seats.is_empty() || self.last() > 0)
            }
            _ => true,
        };
        // An error says that it is of no use here, as one of an earlier term is not.
        if is_of_use && let Err(error) = self.node.step(message) {
            tracing::debug!(%error, from, "a message of another member is of no use");
        }
    }

    /// Asks the others whether this member still leads, which [`Progress::confirmed`] answers for this round and all
    /// before it.
    pub(super) fn ask(&mut self, round: u64) {
        self.node.read_index(round.to_le_bytes().to_vec());
    }

    /// Does what there is to do, but for what is to be written first.
    ///
    /// # Errors
    /// [`AppendError`] when what must be durable is not. Then this member must not be used any more.
    pub(super) fn advance(&mut self, durable: &mut impl Durable) -> Result<Progress, AppendError> {
        self.proceed(None, durable)
    }

    /// Goes on once what was to be written is durable, up to this step.
    ///
    /// # Errors
    /// The errors of [`advance`](Self::advance).
    pub(super) fn has_written(&mut self, step: u64, durable: &mut impl Durable) -> Result<Progress, AppendError> {
        durable.send(self.steps.end(step));
        if self.steps.stays(step) {
            self.persist(step);
        }
        self.advance(durable)
    }

    /// Says what is durable to the library, which does not expect that of a leader that was removed.
    fn persist(&mut self, step: u64) {
        let raft = &self.node.raft;
        if raft.state != StateRole::Leader || raft.prs().get(raft.id).is_some() {
            self.node.on_persist_ready(step);
        }
    }

    /// Returns the first entry that is to be read from the log for a member that lags, up to which entry the log stays
    /// as it is, and what reads it.
    pub(super) fn to_read(&self) -> Option<((u64, u64), Arc<dyn Earlier>)> {
        self.node.store().next_to_read().zip(self.node.store().reads_from())
    }

    /// Goes on with what was read from the log for the entry `number`.
    ///
    /// # Errors
    /// The errors of [`advance`](Self::advance).
    pub(super) fn has_read(
        &mut self,
        number: u64,
        read: io::Result<Chunk>,
        durable: &mut impl Durable,
    ) -> Result<Progress, AppendError> {
        for context in self.node.mut_store().has_read(number, read) {
            self.node.on_entries_fetched(context);
        }
        self.advance(durable)
    }

    /// Does what there is to do. The entry `written` is written and not synced.
    fn proceed(&mut self, written: Option<u64>, durable: &mut impl Durable) -> Result<Progress, AppendError> {
        let mut progress = Progress::default();
        self.node.mut_store().sent();
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            for asked in ready.take_read_states() {
                let round = asked.request_ctx.first_chunk().map_or(0, |round| u64::from_le_bytes(*round));
                progress.confirmed = progress.confirmed.max(Some((round, asked.index)));
            }
            if let Some(hard) = ready.hs() {
                let kept = self.node.mut_store();
                if (hard.term, hard.vote) != (kept.hard.term, kept.hard.vote) {
                    let vote = Vote { term: hard.term, member: hard.vote };
                    durable.write_vote(vote).map_err(AppendError::Failed)?;
                }
                kept.hard = hard.clone();
            }
            // Those of a leader, which need not wait until it has written the entries that they tell.
            durable.send(ready.take_messages());
            let (step, entries) = (ready.number(), ready.take_entries());
            if !entries.is_empty() {
                let unwritten = entries.iter().filter(|entry| written != Some(entry.index));
                let unwritten = unwritten.map(|entry| Ok((entry.index, frame_of(entry)?)));
                let unwritten = Unwritten { entries: unwritten.collect::<Result<_, AppendError>>()?, step };
                progress.unwritten.get_or_insert_default().extend(unwritten);
                self.steps.begin(step, self.node.mut_store().put(entries));
            }
            let (messages, newly) = (ready.take_persisted_messages(), ready.take_committed_entries());
            self.node.advance_append_async(ready);
            durable.send(self.steps.hold(step, messages));
            if self.steps.are_durable() {
                self.persist(step);
            }
            for entry in newly {
                if entry.entry_type == EntryType::EntryConfChange && entry.index > self.unchanged_to {
                    let said = entry::Entry::decode(&data_of(&entry)).map_err(failed)?;
                    self.change(said.members.unwrap_or_default())?;
                    progress.acknowledged.push(said.note.acknowledged);
                }
                self.node.mut_store().forget(&entry);
                progress.committed.push(Committed { number: entry.index, term: entry.term, frame: frame_of(&entry)? });
            }
            self.node.advance_apply();
        }
        Ok(progress)
    }
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> AppendError {
    AppendError::Failed(io::Error::other(error))
}

mod lead;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
