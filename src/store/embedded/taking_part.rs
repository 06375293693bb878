//! What an engine does as one of several members: it takes messages, lets time pass, applies what is committed, and
//! changes who the members are.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;
use raft::eraftpb::{Message, MessageType};

use super::agreed::Following;
use super::at::is_at;
use super::changing;
use super::engine::{Engine, replay};
use super::entry::Note;
use super::exchange::{Exchange, Offering, Work, not_leading};
use super::group::Member;
use super::kept::Last;
use super::message;
use super::progress::{Committed, Progress, ProposeError};
use super::state::Published;
use super::words::{self, Said, Word};
use crate::store::{ChangeError, Identity, Member as _, MemberChange, MemberMessage, Membership, StoreError};

/// So many bytes of committed entries may wait to be applied. While there are more, no further ones are taken.
const MOST_UNAPPLIED: usize = 64 << 20;

/// So many bytes of entries may wait to be written. While there are more, no further ones are taken.
pub(super) const MOST_UNWRITTEN: usize = 32 << 20;

/// About so many bytes of messages are taken at a time, before others come to the member: with its entries in memory, a
/// message of the most bytes takes some milliseconds.
const TURN_BYTES: usize = 1 << 20;

/// After how many ticks a member says who it is.
const HELLO_TICKS: u64 = 10;

/// A member that has asked for nothing of a state for so long, and says that it receives none, has given it up.
const GIVEN_UP: Duration = Duration::from_secs(3);

impl Engine {
    /// Takes messages of other members to this one, and lets time pass. Others come to the member in between.
    ///
    /// # Errors
    /// [`StoreError`] when what must be durable is not. Then the store must stop.
    pub(super) fn take_part(&self, work: Work) -> Result<(), StoreError> {
        let Some(exchange) = &self.exchange else { return Ok(()) };
        let Work { messages, round, changes, hand_over, is_tick } = work;
        let mut messages = messages.into_iter().peekable();
        let mut member = loop {
            let Some(mut member) = self.begin_part(exchange) else { return Ok(()) };
            let mut bytes = 0;
            let turn = iter::from_fn(|| {
                let next = messages.next_if(|_| bytes < TURN_BYTES);
                next.inspect(|message| bytes += message.bytes.len())
            });
            self.hear(&mut member, exchange, turn);
            if messages.peek().is_none() {
                break member;
            }
            self.end_part(member, exchange)?;
        };
        if is_tick {
            member.tick();
            self.tick(&mut member, exchange)?;
        }
        for change in changes {
            // An entry may be on its way that says only how a directory was opened.
            if member.is_changing() && change.may_wait() {
                exchange.put_off(change);
                continue;
            }
            let made = self.change(&mut member, exchange, &change.change)?;
            exchange.answer_change(change, made);
            // A member that is alone has perhaps shown the entry before anybody waited for it.
            exchange.asked.lock().has_shown(self.applied().0);
        }
        if let Some(round) = round {
            match self.leads(&member) {
                false => exchange.refuse_asked(),
                true => member.ask(round),
            }
        }
        if let Some((to, callers)) = hand_over {
            let is_able = |number| exchange.others(|others| others.may_take_lead(number)).unwrap_or_default();
            if !member.hand_over(to, is_able) && member.position().is_leader {
                tracing::debug!(?to, "no member can take the lead: this one leads on");
            }
            exchange.hands_over(callers);
        }
        self.end_part(member, exchange)
    }

    /// Locks the member for a part of what it is to do; `None` when it takes part in nothing any more.
    fn begin_part(&self, exchange: &Exchange) -> Option<MutexGuard<'_, Member>> {
        let mut member = self.member.lock();
        if self.gives_way.load(Ordering::Acquire) {
            return None;
        }
        let (own, last) = (exchange.number(), member.last());
        let part = exchange.others(|others| (others.take_part(own, last), others.may_stand(own, member.members())));
        let (takes_part, may_stand) = part.unwrap_or_default();
        member.let_take_part(takes_part, may_stand && !exchange.gives_up_lead());
        Some(member)
    }

    fn end_part(&self, mut member: MutexGuard<'_, Member>, exchange: &Exchange) -> Result<(), StoreError> {
        // Before what others are to rely on: a member that is lost may be another one when it is heard again.
        self.seal_others(exchange)?;
        let progress = member.advance(&mut self.durable());
        let progress = progress.map_err(|error| self.disk.stopped(error.into()))?;
        self.hand_on(&member, progress);
        if !member.hands_over() {
            exchange.answer_hand_over(member.position().is_leader);
        }
        MutexGuard::unlock_fair(member);
        Ok(())
    }

    fn hear(&self, member: &mut Member, exchange: &Exchange, messages: impl Iterator<Item = MemberMessage>) {
        let is_full = self.is_full();
        for message in messages {
            let from = message.from;
            match self.heard(member, exchange, message) {
                // The leader sends it again.
                Ok(Some(message)) if is_full && message.msg_type == MessageType::MsgAppend => {}
                Ok(Some(message)) => {
                    // What it is about: its first entry, or how far the members have agreed.
                    let number = if message.entries.is_empty() { message.commit } else { message.index + 1 };
                    if number > 0 {
                        is_at(number, message.term);
                    }
                    if message.msg_type == MessageType::MsgTimeoutNow && !member.may_stand() {
                        exchange.decline(from);
                    }
                    member.step(message);
                }
                Ok(None) => {}
                Err(why) => tracing::warn!(from, why, "a message of another member makes no sense"),
            }
        }
    }

    /// Returns whether so much waits to be applied or written that no further entries are taken.
    fn is_full(&self) -> bool {
        self.agreed.bytes() > MOST_UNAPPLIED || self.unwritten.bytes() > MOST_UNWRITTEN
    }

    /// Takes a message of another member. Returns the library's, if it is one.
    fn heard(
        &self,
        member: &mut Member,
        exchange: &Exchange,
        message: MemberMessage,
    ) -> Result<Option<Message>, String> {
        let from = message.from;
        let (identity, bytes) = words::take_identity(&message.bytes)?;
        if !exchange.others(|others| others.may_be_ours(from, identity)).unwrap_or_default() {
            return Ok(None);
        }
        let said = words::decode(&bytes)?;
        if !exchange.others(|others| others.counts(from, identity, &said)).unwrap_or_default() {
            return Ok(None);
        }
        match said {
            Said::Library(bytes, directories) => {
                let message = message::decode(&MemberMessage { bytes, ..message })?;
                let told = (&message, member.last());
                let is_admitted = exchange.others(|others| others.takes(from, identity, directories, told));
                return Ok(Some(message).filter(|_| is_admitted.unwrap_or_default()));
            }
            Said::Word(Word::Hello(hello)) => {
                exchange.others(|others| others.may_stand_again(from));
                if exchange.others(|others| others.hear(from, identity, hello)).unwrap_or_default() {
                    exchange.greet_one(from, member.last());
                }
                // The member has what it was offered, or has given up.
                let received = member.receives(from).and_then(|number| match hello.last >= number {
                    true => Some(true),
                    false => (!hello.receives && exchange.offers.is_unused(from, GIVEN_UP)).then_some(false),
                });
                if let Some(is_received) = received {
                    member.has_received(from, is_received);
                }
                if received == Some(false) {
                    exchange.offers.end(from, false);
                }
                if !hello.receives && exchange.offers.is_lent_whole(from) {
                    exchange.offers.end(from, true);
                }
            }
            Said::Word(Word::Offer(offer)) => exchange.offered.put((from, Offering::Offer(offer))),
            Said::Word(Word::Piece(piece)) => exchange.offered.put((from, Offering::Piece(piece))),
            Said::Word(Word::Gone(offer)) => exchange.offered.put((from, Offering::Gone(offer))),
            Said::Word(Word::Ask(ask)) => exchange.asks.put((from, ask)),
            Said::Word(Word::Output(word)) => exchange.outputs.put((from, word)),
            Said::Word(Word::Audit(word)) => exchange.audits.put((from, word)),
            Said::Word(Word::Opened(opened)) => {
                let position = member.position();
                let acknowledged = member.acknowledged(from, u64::MAX).map(|last| (last, position.term));
                let heard = exchange.others(|others| others.hear_opened(from, &opened, acknowledged));
                if let Some(Err(went_back)) = heard.filter(|_| position.is_leader) {
                    exchange.say(from, &Word::WentBack(went_back));
                }
            }
            Said::Word(Word::Declines) => {
                exchange.others(|others| others.decline(from));
                member.keep_lead(from);
            }
            Said::Word(Word::Sum(said)) => self.hear_sum(member, exchange, from, said),
            Said::Word(Word::Lend(at_least)) => self.lend(member, exchange, from, at_least),
            Said::Word(Word::WentBack(said)) => {
                if member.position().leader == Some(from) {
                    exchange.others(|others| others.hear_went_back(from, &said));
                }
            }
        }
        Ok(None)
    }

    /// Keeps what is known of the others, where that is new.
    fn seal_others(&self, exchange: &Exchange) -> Result<(), StoreError> {
        if let Some(openings) = exchange.others(|others| others.openings.unwritten()).flatten() {
            openings.write(&self.disk.directory).map_err(|error| self.disk.stopped(error))?;
        }
        if !exchange.others(|others| others.is_new()).unwrap_or_default() {
            return Ok(());
        }
        let sealed = self.disk.seal.lock().group.clone().unwrap_or_default();
        let Some(group) = exchange.others(|others| others.sealed(&sealed)).flatten() else { return Ok(()) };
        self.disk.write_group(group).map_err(|error| self.disk.stopped(error))
    }

    /// Does what is to be done from time to time.
    fn tick(&self, member: &mut Member, exchange: &Exchange) -> Result<(), StoreError> {
        let ticks = self.ticks.fetch_add(1, Ordering::Relaxed);
        if !ticks.is_multiple_of(HELLO_TICKS) {
            return Ok(());
        }
        exchange.is_behind.store(self.is_full() || self.unwritten.stands_still(), Ordering::Relaxed);
        exchange.greet(member.last(), member.declines());
        self.look_at_sums(member, exchange, ticks);
        let applied = self.published.read().entry;
        let since_flush = applied.saturating_sub(exchange.offers.last_flushed());
        metrics::gauge!("leasehold_member_entries_since_flush").set(since_flush as f64);
        for of in exchange.offers.members() {
            let is_lent = exchange.offers.is_lent(of);
            let is_received = !is_lent && member.receives(of).is_none() && member.is_caught_up(of);
            if is_received || exchange.offers.is_unused(of, Duration::MAX) {
                exchange.offers.end(of, is_received);
                if !is_received {
                    member.has_received(of, false);
                }
            }
        }
        if !self.leads(member) {
            return Ok(());
        }
        // Before a member gets a vote: it has the entry that says how the others' directories were opened, if it leads.
        let is_noted = self.note_acknowledged(member, exchange, ticks)?;
        let term = member.position().term;
        let next = exchange.others(|others| {
            let (members, own) = (member.members(), (exchange.number(), term, Identity::random()));
            let is_caught_up = |number| member.is_caught_up(number);
            changing::with_vote(members, others, |number| is_noted && is_caught_up(number))
                .or_else(|| changing::with_version(members, others, own, is_caught_up))
                .or_else(|| changing::with_directories(members, others, own.0, is_caught_up))
        });
        if let Some(next) = next.flatten() {
            self.propose_members(member, &next)?;
        }
        Ok(())
    }

    /// Writes into the log what the others have acknowledged, and the sum over the own state: at once where one of them
    /// opened its directory, and from time to time where there is more to say. Returns whether the log says how each
    /// directory was opened last.
    fn note_acknowledged(&self, member: &mut Member, exchange: &Exchange, ticks: u64) -> Result<bool, StoreError> {
        let (own, committed) = (exchange.number(), member.position().committed);
        let all = exchange.others(|others| others.to_note(own, |number| member.acknowledged(number, committed)));
        let all = all.unwrap_or_default();
        let sum = self.sum_to_note(member);
        let is_unnoted = exchange.others(|others| others.openings.has_unnoted(&all)).unwrap_or_default();
        let is_due = ticks.is_multiple_of(exchange.note_ticks()) && self.has_to_note(member, sum);
        if all.is_empty() || !is_unnoted && !is_due {
            return Ok(true);
        }
        let (members, note) = (Arc::clone(member.members()), Note { acknowledged: all, sum });
        match member.propose_members(&members, &note, &mut self.durable()) {
            Ok((number, progress)) => {
                self.has_noted(number, sum);
                exchange.others(|others| others.openings.has_noted(&note.acknowledged));
                self.hand_on(member, progress);
                Ok(true)
            }
            Err(ProposeError::Append(error)) => Err(self.disk.stopped(error.into())),
            // The next time.
            Err(ProposeError::Deposed | ProposeError::Changing) => Ok(!is_unnoted),
        }
    }

    /// Proposes a change of the members. Returns the number of its entry; `None` when it was made already.
    fn change(
        &self,
        member: &mut Member,
        exchange: &Exchange,
        change: &MemberChange,
    ) -> Result<Result<Option<u64>, ChangeError>, StoreError> {
        let position = member.position();
        if !self.leads(member) {
            return Ok(Err(ChangeError::Store(not_leading(position.leader))));
        }
        let own = exchange.number();
        if matches!(change, MemberChange::Remove { member, .. } if *member == own) {
            return Ok(Err(ChangeError::Refused(format!(
                "member {own} leads: hand the lead over first, with `leasehold cluster transfer`"
            ))));
        }
        let next = match change {
            MemberChange::Alone if exchange.goes_on_alone() => Some(Ok(Some((**member.members()).clone()))),
            change => exchange.others(|others| changing::after(change, member.members(), others, own)),
        };
        match next.unwrap_or(Ok(None)) {
            Err(refused) => Ok(Err(refused)),
            Ok(None) => Ok(Ok(None)),
            Ok(Some(next)) => Ok(match self.propose_members(member, &next)? {
                Some(number) => Ok(Some(number)),
                None => Err(ChangeError::Refused("another change is under way: try again in a moment".to_owned())),
            }),
        }
    }

    /// Proposes other members. Returns the number of the entry; `None` when that cannot be done now.
    fn propose_members(&self, member: &mut Member, next: &Membership) -> Result<Option<u64>, StoreError> {
        // Should there be no room for it, it gets what is kept for that.
        match member.propose_members(next, &Note::default(), &mut self.durable()) {
            Ok((number, progress)) => {
                tracing::info!(entry = number, members = ?next.seats, "the members of the group are to be changed");
                self.hand_on(member, progress);
                Ok(Some(number))
            }
            Err(ProposeError::Append(error)) => Err(self.disk.stopped(error.into())),
            Err(ProposeError::Deposed | ProposeError::Changing) => Ok(None),
        }
    }

    /// Returns whether this member lacks an entry that was committed.
    pub(super) fn lacks(&self, entry: Last) -> bool {
        let member = self.member.lock();
        member.position().committed < entry.number && !member.has(entry)
    }

    /// Ends what this member does in the group, so that the store can begin with a state that has this last entry, if
    /// it lacks that. Returns whether it does.
    pub(super) fn give_way(&self, to: Last) -> bool {
        let member = self.member.lock();
        let position = member.position();
        // What is behind an entry that it has may be what it has promised to others.
        let gives_way = position.committed < to.number && !member.has(to) && position.term >= to.term;
        self.gives_way.store(gives_way, Ordering::Release);
        gives_way
    }

    /// Hands on what has come of what the member did.
    pub(super) fn hand_on(&self, member: &Member, progress: Progress) {
        if let Some(unwritten) = progress.unwritten {
            self.unwritten.put(unwritten);
        }
        if member.to_read().is_some() {
            self.to_read.put(());
        }
        if let Some(exchange) = &self.exchange {
            exchange.agree(member.members());
            if member.position().is_leader {
                exchange.others(|others| others.adopt(member.members().identity));
            }
            for said in &progress.acknowledged {
                exchange.others(|others| others.note(said));
            }
        }
        self.agreed.hand_on(progress.committed, member.position(), self.following(member));
        let Some(exchange) = &self.exchange else { return };
        if let Some((round, number)) = progress.confirmed {
            exchange.asked.lock().confirm(round, number);
            exchange.asked.lock().has_shown(self.applied().0);
        }
        self.stand(member);
    }

    /// Returns how the voters follow the member, where it leads.
    pub(super) fn following(&self, member: &Member) -> Following {
        let (Some(exchange), true) = (&self.exchange, member.position().is_leader) else { return Following::default() };
        let (own, mut following, mut voters, mut count) = (exchange.number(), Following::default(), 0, 0);
        for voter in member.members().that_vote(true) {
            voters += 1;
            // The library takes one that has gone silent to be as it was.
            let takes = exchange
                .others(|others| others.lately(voter).map_or_else(|| others.is_of_old(voter), |hello| !hello.receives));
            count += usize::from((voter == own || takes.unwrap_or_default()) && member.can_follow(voter));
            following.acknowledged += member.acknowledged(voter, u64::MAX).map_or(0, |last| last.number);
        }
        following.are_most = 2 * count > voters;
        following
    }

    /// Returns whether the member leads and has applied all that was committed before its term.
    pub(super) fn leads(&self, member: &Member) -> bool {
        let (position, term) = (member.position(), self.applied().1);
        // The entry that begins a term comes after all that was committed before.
        position.is_leader && position.term == term
    }

    /// Returns the number of the last entry that was applied, and its term.
    pub(super) fn applied(&self) -> (u64, u64) {
        let published = self.published.read();
        (published.entry, published.last.primary_term)
    }

    fn stand(&self, member: &Member) {
        if let Some(exchange) = &self.exchange {
            let leads = self.leads(member);
            let applied = {
                let published = self.published.read();
                (published.entry, published.time)
            };
            exchange.stand(member.position(), applied, leads);
        }
    }

    /// Waits for entries that are to be applied; `None` once the member has left.
    pub(super) fn committed(&self) -> Option<Vec<Committed>> {
        self.agreed.committed()
    }

    /// Applies an entry that the writer has not decided, after it has shown what comes before that. Returns whether it
    /// is a batch, of another leader.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be applied. Then the store must stop: it is not as the others are.
    pub(super) fn apply(&self, committed: &Committed) -> Result<bool, StoreError> {
        if !self.agreed.wait_until(|| self.applied().0 + 1 >= committed.number) {
            return Ok(false);
        }
        let (number, frame) = (committed.number, &committed.frame);
        let look_up = |published: &Published| {
            let replayed = replay(&self.disk, published, number, frame);
            replayed.map_err(|why| self.contradicts(&format!("entry {number} cannot be applied: {why}")))
        };
        // Readers go on meanwhile.
        let (mut replayed, blocks) = {
            let published = self.published.read();
            (look_up(&published)?, Arc::clone(&published.blocks))
        };
        let mut published = self.published.write();
        // A flush may have put jobs in blocks meanwhile that leave them with this entry.
        if !Arc::ptr_eq(&published.blocks, &blocks) {
            replayed = look_up(&published)?;
        }
        drop(blocks);
        let (is_batch, said) = (replayed.is_batch, replayed.said);
        replayed.show(&mut published);
        drop(published);
        self.summed.keep_up();
        if let Some((said, exchange)) = said.zip(self.exchange.as_ref()) {
            self.compare(exchange, &said);
        }
        Ok(is_batch)
    }

    /// Takes note of that entries were applied.
    pub(super) fn has_applied(&self) {
        self.stand(&self.member.lock());
    }

    /// Leaves the group, which elects another leader where this member was that. Nothing is waited for any more.
    pub(super) fn leave(&self) {
        if let Some(exchange) = &self.exchange {
            exchange.pause();
        }
        self.agreed.leave();
        self.unwritten.close();
        self.to_read.close();
    }
}
