//! The mailbox of a store that is one of several members: messages from and to others, and what others may know of it.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use raft::eraftpb::{Message, MessageType};
use tokio::sync::{Notify, oneshot, watch};

use super::asked::{Asked, Caller};
use super::equality::compared::Equality;
use super::error::closed;
use super::given_up::GivenUp;
use super::mailbox::Mailbox;
use super::message;
use super::offer::Offers;
use super::options::GroupOptions;
use super::others::{Others, Way};
use super::progress::Position;
use super::words::{self, Ask, AuditWord, OutputWord, Word};
use crate::clock::Timestamp;
use crate::store::{
    ChangeError, Heard, Hindrance, LeadershipMark, Member, MemberChange, MemberMessage, Membership, Role, Standing,
    StoreError, Unequal,
};

mod copies;
mod lead;
mod work;

use work::{Inbox, Outbox};

pub(super) use work::{Change, Offering, Work};

/// The most questions, and answers, of states that wait.
const WAITING_ASKS: usize = 64;

/// After how many ticks a leader notes in the log what the members have acknowledged.
const NOTE_TICKS: u64 = 600;

/// The mailbox of a member, and what others may know of it.
pub(super) struct Exchange {
    group: GroupOptions,
    /// Called with the reason why no writes are to be taken, and with `None` when they are again.
    stand_by: Mutex<Box<dyn Fn(Option<StoreError>) + Send>>,
    /// The other members; `None` before the store is open.
    others: Mutex<Option<Others>>,
    /// The members that the group was founded with.
    founded: Mutex<Arc<Membership>>,
    members: watch::Sender<Arc<Membership>>,
    /// The state that is offered to others.
    pub(super) offers: Offers,
    /// Questions of other members for pieces of a state, with their numbers.
    pub(super) asks: Mailbox<(u64, Ask)>,
    /// What is said of a state that this member is to receive, with the number of the one who says it.
    pub(super) offered: Mailbox<(u64, Offering)>,
    /// Filled when a state was received whole, which the store is to begin with.
    pub(super) received: Arc<Mailbox<()>>,
    /// What other members say of the output of attempts, with their numbers.
    pub(super) outputs: Mailbox<(u64, OutputWord)>,
    /// The same of the files of the audit.
    pub(super) audits: Mailbox<(u64, AuditWord)>,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    outbox: Mutex<Outbox>,
    to_send: Notify,
    standing: watch::Sender<Standing>,
    pub(super) asked: Mutex<Asked>,
    /// Who waits until the lead was handed over, or not.
    handing_over: Mutex<Vec<work::LeadCaller>>,
    /// Whether this member takes no entries, since those that it has are not written or applied.
    pub(super) is_behind: AtomicBool,
    given_up: GivenUp,
    /// The sums over the states of the members.
    pub(super) equality: Mutex<Equality>,
}

impl Exchange {
    /// Creates the mailbox of a member, which takes no writes until it leads: `stand_by` is called with why it takes
    /// none, and with `None` once it does.
    pub(super) fn new(group: GroupOptions, stand_by: impl Fn(Option<StoreError>) + Send + 'static) -> Self {
        stand_by(Some(not_leading(None)));
        Self {
            group,
            stand_by: Mutex::new(Box::new(stand_by)),
            others: Mutex::default(),
            founded: Mutex::default(),
            members: watch::Sender::new(Arc::default()),
            offers: Offers::default(),
            asks: Mailbox::new(WAITING_ASKS),
            offered: Mailbox::new(WAITING_ASKS),
            received: Arc::new(Mailbox::new(1)),
            outputs: Mailbox::new(WAITING_ASKS),
            audits: Mailbox::new(WAITING_ASKS),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            outbox: Mutex::default(),
            to_send: Notify::new(),
            standing: watch::Sender::new(Standing::default()),
            asked: Mutex::default(),
            handing_over: Mutex::default(),
            is_behind: AtomicBool::default(),
            given_up: GivenUp::default(),
            equality: Mutex::default(),
        }
    }

    /// Begins the exchange of a store that was opened, which knows these others, in a group that was founded by these
    /// members, and has these now.
    pub(super) fn meet(&self, mut others: Others, founded: Arc<Membership>, members: &Arc<Membership>) {
        // Also where they are the same as before the store was opened again.
        others.agree(self.group.member, members);
        *self.others.lock() = Some(others);
        *self.founded.lock() = founded;
    }

    /// Does something with what is known of the others, once the store is open.
    pub(super) fn others<T>(&self, with: impl FnOnce(&mut Others) -> T) -> Option<T> {
        self.others.lock().as_mut().map(with)
    }

    /// Puts messages of the library where whoever carries them finds them.
    pub(super) fn send(&self, messages: Vec<Message>) {
        let mut ready = Vec::with_capacity(messages.len());
        for message in &messages {
            if self.given_up.keeps_back(message.msg_type) {
                continue;
            }
            if message.msg_type == MessageType::MsgSnapshot {
                // The member asks for the rest.
                if let Some(word) = self.offers.word(message.to, message.term) {
                    self.say(message.to, &word);
                }
                continue;
            }
            let way = self.others(|others| others.way(message.to, message.msg_type));
            match (message::encode(message), way) {
                (Ok(Some(message)), Some(Way::Plain)) => ready.push(message),
                (Ok(Some(message)), Some(Way::Between(directories))) => {
                    let bytes = self.of_group(message.to, words::between(directories, &message.bytes));
                    ready.push(MemberMessage { bytes, ..message });
                }
                (Ok(_), _) => {}
                (Err(error), _) => tracing::error!(%error, "a message to another member cannot be sent"),
            }
        }
        self.put(ready);
    }

    /// Says something to a member.
    pub(super) fn say(&self, to: u64, word: &Word) {
        match words::encode(word) {
            Ok(bytes) => {
                let bytes = self.of_group(to, bytes);
                self.put(vec![MemberMessage { from: self.group.member, to, bytes }]);
            }
            Err(error) => tracing::error!(%error, "a word to another member cannot be said"),
        }
    }

    /// Puts the identity of the group before a message to a member that reads it.
    fn of_group(&self, to: u64, message: Bytes) -> Bytes {
        match self.others(|others| others.identity_for(to)).flatten() {
            Some(identity) => words::of_group(identity, &message),
            None => message,
        }
    }

    /// Says who this member is to all members, to those that it was started with, and to those that it has heard of:
    /// one that joins may know its leader from its greeting only. One that `declines` to stand for election says that,
    /// too.
    pub(super) fn greet(&self, last: u64, declines: bool) {
        let mut all: BTreeSet<u64> = self.members.borrow().seats.keys().copied().collect();
        all.extend(&self.group.members);
        all.extend(self.others(|others| others.that_are_there().collect::<Vec<_>>()).unwrap_or_default());
        for to in all.into_iter().filter(|to| *to != self.group.member) {
            self.greet_one(to, last);
            if declines {
                self.decline(to);
            }
        }
    }

    /// Says who this member is.
    pub(super) fn greet_one(&self, to: u64, last: u64) {
        let receives = self.is_behind.load(Ordering::Relaxed) || self.standing.borrow().receives.is_some();
        if let Some(hello) = self.others(|others| others.hello(to, last, receives)) {
            self.say(to, &Word::Hello(hello));
        }
        if let Some(opened) = self.others(|others| others.opened(to)).flatten() {
            self.say(to, &Word::Opened(opened));
        }
    }

    /// Takes note of how many bytes of a state were received, while one is.
    pub(super) fn receives(&self, bytes: Option<u64>) {
        self.standing.send_if_modified(|now| mem::replace(&mut now.receives, bytes) != bytes);
    }

    /// Returns the members that the group was founded with.
    pub(super) fn founded(&self) -> Arc<Membership> {
        Arc::clone(&self.founded.lock())
    }

    /// Returns the members as they are.
    pub(super) fn agreed(&self) -> Arc<Membership> {
        Arc::clone(&self.members.borrow())
    }

    /// Takes note of the members as they are from now on.
    pub(super) fn agree(&self, members: &Arc<Membership>) {
        let is_new = self.members.send_if_modified(|now| {
            let is_new = now != members;
            now.clone_from(members);
            is_new
        });
        if is_new {
            self.others(|others| others.agree(self.group.member, members));
            self.outputs.wake();
        }
    }

    fn put(&self, messages: Vec<MemberMessage>) {
        if messages.is_empty() {
            return;
        }
        let (mut outbox, mut dropped) = (self.outbox.lock(), 0);
        for message in messages {
            let (length, is_bulk) = (message.bytes.len(), self.is_bulk(&message.bytes));
            dropped += outbox.messages.entry(message.to).or_default().push(message, length, is_bulk);
        }
        drop(outbox);
        if dropped > 0 {
            metrics::counter!("leasehold_member_messages_total", "outcome" => "dropped").increment(dropped);
        }
        self.to_send.notify_one();
    }

    /// Waits for work until `until`; `None` once the mailbox is closed.
    pub(super) fn next(&self, until: Instant) -> Option<Work> {
        let mut inbox = self.inbox.lock();
        while inbox.is_empty() && !inbox.is_closed {
            if self.arrived.wait_until(&mut inbox, until).timed_out() {
                break;
            }
        }
        if inbox.is_closed {
            return None;
        }
        let (messages, is_asked) = (inbox.messages.take().collect(), mem::take(&mut inbox.is_asked));
        let is_tick = Instant::now() >= until;
        let mut changes = if is_tick { mem::take(&mut inbox.put_off) } else { Vec::new() };
        changes.retain(|change| !change.caller.is_closed());
        changes.append(&mut inbox.changes);
        let hand_over = inbox.hand_over.take();
        drop(inbox);
        let round = if is_asked { self.asked.lock().begin() } else { None };
        Some(Work { messages, round, changes, hand_over, is_tick })
    }

    /// Takes note of where this member stands, of which everybody else is told: `applied` is the number of the last
    /// entry that it has applied, `time` the latest time of what it has applied, and `leads` whether it may take
    /// writes.
    pub(super) fn stand(&self, position: Position, (applied, time): (u64, Timestamp), leads: bool) {
        let Position { term, leader, committed, role, .. } = position;
        let known = self.others(|others| (others.is_disowned() || others.openings.went_back(), others.identity()));
        let (is_disowned, identity) = known.unwrap_or_default();
        let role = if is_disowned { Role::Disowned } else { role };
        let mut asked = self.asked.lock();
        // A thread that is about to end may still say so.
        let leads = leads && !self.gives_up_lead() && !self.inbox.lock().is_closed;
        let before = *self.standing.borrow();
        let is_deposed = self.given_up.take_deposed();
        if is_deposed || (before.term, before.leader, before.leads) != (term, leader, leads) {
            tracing::info!(term, leader, leads, "the standing of this member changes");
            asked.lead_in(leads.then_some(term), &not_leading(leader));
            drop(asked);
            (self.stand_by.lock())((!leads).then(|| not_leading(leader)));
        }
        self.standing.send_if_modified(|now| {
            let receives = now.receives;
            let standing = Standing { role, identity, term, leader, leads, applied, committed, time, receives };
            mem::replace(now, standing) != standing
        });
    }

    /// Refuses those who ask whether this member leads.
    pub(super) fn refuse_asked(&self) {
        self.asked.lock().refuse(&self.does_not_lead());
    }

    fn does_not_lead(&self) -> StoreError {
        not_leading(self.standing.borrow().leader)
    }

    /// Has a change of the members wait for the next tick.
    pub(super) fn put_off(&self, change: Change) {
        self.inbox.lock().put_off.push(change);
    }

    /// Answers who has asked for a change of the members: once the entry of this number is shown, or, where there is
    /// nothing to change, once it is known that this member leads.
    pub(super) fn answer_change(&self, change: Change, made: Result<Option<u64>, ChangeError>) {
        // A caller may have gone.
        let answer = |done: Result<(), ChangeError>| drop(change.caller.send(done));
        match made {
            Ok(Some(number)) => {
                let caller: Caller = Box::new(move |done| answer(done.map_err(ChangeError::Store)));
                self.asked.lock().wait_for(number, caller);
            }
            unchanged => {
                let mark = self.asked.lock().mark();
                self.ask(&mark, Box::new(move |led| answer(led.map_err(ChangeError::Store).and(unchanged.map(drop)))));
            }
        }
    }

    /// Waits until it is known that this member has led since the mark.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when it has ceased to lead, and it is not known that it led after the mark.
    pub(super) async fn confirm_since(&self, mark: &LeadershipMark) -> Result<(), StoreError> {
        if mark.is_proved() {
            return Ok(());
        }
        let (caller, answer) = oneshot::channel();
        self.ask(mark, Box::new(move |led| drop(caller.send(led))));
        let led = answer.await.unwrap_or_else(|_| Err(not_leading(None)));
        // The lead may have been lost after a write.
        if mark.is_proved() { Ok(()) } else { led }
    }

    /// Has a caller answered once it is known that this member has led since this call, in the leadership of the mark,
    /// and everything from before is shown.
    pub(super) fn ask(&self, mark: &LeadershipMark, caller: Caller) {
        self.asked.lock().ask(mark, caller, || self.does_not_lead());
        self.inbox.lock().is_asked = true;
        self.arrived.notify_one();
    }

    /// Returns whether this member is to go on alone.
    pub(super) fn goes_on_alone(&self) -> bool {
        self.group.goes_on_alone
    }

    /// Returns how many bytes of the log are kept for others.
    pub(super) fn keeps_log_bytes(&self) -> u64 {
        self.group.keeps_log_bytes
    }

    /// Returns after how many ticks a leader notes in the log what the members have acknowledged, and its sum.
    pub(super) fn note_ticks(&self) -> u64 {
        self.group.note_ticks.unwrap_or(NOTE_TICKS).max(1)
    }

    /// Returns the time between two ticks.
    pub(super) fn tick(&self) -> Duration {
        self.group.tick.max(Duration::from_millis(1))
    }

    /// Ends the exchange with the others for good.
    pub(super) fn close(&self) {
        self.outbox.lock().is_closed = true;
        self.to_send.notify_one();
        self.received.close();
        self.pause();
    }

    /// Ends the work of the store's threads, which may begin anew with [`resume`](Self::resume).
    pub(super) fn pause(&self) {
        let mut inbox = self.inbox.lock();
        inbox.is_closed = true;
        // Those who wait for these are refused with that.
        (inbox.changes, inbox.put_off, inbox.hand_over) = (Vec::new(), Vec::new(), None);
        drop(inbox);
        self.arrived.notify_all();
        self.asks.close();
        self.offered.close();
        self.outputs.close();
        self.audits.close();
        self.offers.clear();
        self.answer_hand_over(false);
        self.standing.send_if_modified(|now| mem::take(&mut now.leads));
        self.asked.lock().lead_in(None, &not_leading(None));
    }

    /// Lets the threads of a store that is about to be opened anew work. `stand_by` is as for [`new`](Self::new).
    pub(super) fn resume(&self, stand_by: impl Fn(Option<StoreError>) + Send + 'static) {
        stand_by(Some(not_leading(None)));
        *self.stand_by.lock() = Box::new(stand_by);
        *self.inbox.lock() = Inbox::default();
        self.given_up.set(false);
        self.asks.open();
        self.offered.open();
        self.outputs.open();
        self.audits.open();
    }
}

pub(super) fn not_leading(leader: Option<u64>) -> StoreError {
    StoreError::NotLeading(match leader {
        Some(leader) => format!("this member does not lead its group, and member {leader} does"),
        None => "this member does not lead its group, and who does is not known yet".to_owned(),
    })
}

#[async_trait]
impl Member for Exchange {
    fn number(&self) -> u64 {
        self.group.member
    }

    fn members(&self) -> watch::Receiver<Arc<Membership>> {
        self.members.subscribe()
    }

    fn heard(&self) -> BTreeMap<u64, Heard> {
        self.others(|others| others.heard()).unwrap_or_default()
    }

    fn hindrances(&self) -> BTreeMap<u64, Hindrance> {
        self.others(|others| others.hindrances(self.group.member)).unwrap_or_default()
    }

    fn unequal(&self) -> Unequal {
        self.equality.lock().unequal().clone()
    }

    async fn change(&self, change: MemberChange) -> Result<(), ChangeError> {
        let (caller, answer) = oneshot::channel();
        {
            let mut inbox = self.inbox.lock();
            if inbox.is_closed {
                return Err(closed().into());
            }
            inbox.changes.push(Change { change, caller, since: Instant::now() });
        }
        self.arrived.notify_one();
        answer.await.unwrap_or_else(|_| Err(not_leading(None).into()))
    }

    async fn outgoing(&self) -> Vec<MemberMessage> {
        loop {
            {
                let mut outbox = self.outbox.lock();
                if !outbox.messages.is_empty() || outbox.is_closed {
                    return mem::take(&mut outbox.messages).into_values().flat_map(|mut of| of.take()).collect();
                }
            }
            self.to_send.notified().await;
        }
    }

    fn is_bulk(&self, message: &Bytes) -> bool {
        words::is_bulk(message)
    }

    fn receive(&self, message: MemberMessage) {
        if message.to != self.group.member || message.from == message.to {
            tracing::debug!(from = message.from, to = message.to, "a message is not for this member");
            return;
        }
        let (length, is_bulk) = (message.bytes.len(), self.is_bulk(&message.bytes));
        // Those that came first are kept: entries are of no use without the ones before them.
        let is_taken = self.inbox.lock().messages.push_if_room(message, length, is_bulk);
        match is_taken {
            true => drop(self.arrived.notify_one()),
            false => metrics::counter!("leasehold_member_messages_total", "outcome" => "refused").increment(1),
        }
    }

    async fn hand_over(&self, to: Option<u64>) -> bool {
        self.has_handed_over(to).await
    }

    fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }
}

#[cfg(test)]
mod tests;
