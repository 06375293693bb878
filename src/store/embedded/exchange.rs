//! The mailbox of a store that is one of several members: messages from and to others, and what others may know of it.

use std::collections::VecDeque;
use std::mem;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::{Condvar, Mutex};
use raft::eraftpb::Message;
use tokio::sync::{Notify, oneshot, watch};

use super::disk::GroupOptions;
use super::group::Position;
use super::message;
use crate::store::{Member, MemberMessage, Standing, StoreError};

/// The most messages to others, and from others, that wait. Further ones are dropped: what matters is sent again.
const WAITING_MESSAGES: usize = 4_096;

/// The most bytes of messages to others that wait.
const WAITING_BYTES: usize = 64 << 20;

/// The mailbox of a member, and what others may know of it.
pub(super) struct Exchange {
    group: GroupOptions,
    /// Called with the reason why no writes are to be taken, and with `None` when they are again.
    stand_by: Box<dyn Fn(Option<StoreError>) + Send + Sync>,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    outbox: Mutex<Outbox>,
    to_send: Notify,
    standing: watch::Sender<Standing>,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Inbox {
    messages: Vec<MemberMessage>,
    is_asked: bool,
    is_closed: bool,
}

#[derive(Default)]
struct Outbox {
    messages: Vec<MemberMessage>,
    bytes: usize,
    is_closed: bool,
}

/// Callers who ask whether this member still leads.
#[derive(Default)]
struct Asked {
    round: u64,
    /// Those of no round yet.
    new: Vec<Caller>,
    /// Those whose round is under way, in the order of rounds.
    rounds: VecDeque<(u64, Vec<Caller>)>,
    /// Those who wait until the entry of this number is shown.
    confirmed: Vec<(u64, Caller)>,
}

type Caller = oneshot::Sender<Result<(), StoreError>>;

/// What a member is asked to do next.
pub(super) struct Work {
    pub(super) messages: Vec<MemberMessage>,
    /// The round of questions to begin, if there is one.
    pub(super) round: Option<u64>,
    pub(super) is_tick: bool,
}

impl Exchange {
    /// Creates the mailbox of a member, which takes no writes until it leads: `stand_by` is called with why it takes
    /// none, and with `None` once it does.
    pub(super) fn new(group: GroupOptions, stand_by: impl Fn(Option<StoreError>) + Send + Sync + 'static) -> Self {
        stand_by(Some(not_leading(None)));
        Self {
            group,
            stand_by: Box::new(stand_by),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            outbox: Mutex::default(),
            to_send: Notify::new(),
            standing: watch::Sender::new(Standing::default()),
            asked: Mutex::default(),
        }
    }

    /// Puts messages of the library where whoever carries them finds them.
    pub(super) fn send(&self, messages: Vec<Message>) {
        if messages.is_empty() {
            return;
        }
        let mut outbox = self.outbox.lock();
        for message in &messages {
            match message::encode(message) {
                Ok(Some(message)) => {
                    outbox.bytes += message.bytes.len();
                    outbox.messages.push(message);
                }
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "a message to another member cannot be sent"),
            }
        }
        if outbox.messages.len() > WAITING_MESSAGES || outbox.bytes > WAITING_BYTES {
            tracing::debug!("nobody takes the messages to other members; they are dropped");
            (outbox.messages, outbox.bytes) = (Vec::new(), 0);
        }
        drop(outbox);
        self.to_send.notify_one();
    }

    /// Waits for work until `until`; `None` once the mailbox is closed.
    pub(super) fn next(&self, until: Instant) -> Option<Work> {
        let mut inbox = self.inbox.lock();
        while inbox.messages.is_empty() && !inbox.is_asked && !inbox.is_closed {
            if self.arrived.wait_until(&mut inbox, until).timed_out() {
                break;
            }
        }
        if inbox.is_closed {
            return None;
        }
        let (messages, is_asked) = (mem::take(&mut inbox.messages), mem::take(&mut inbox.is_asked));
        drop(inbox);
        let round = if is_asked { self.asked.lock().begin() } else { None };
        Some(Work { messages, round, is_tick: Instant::now() >= until })
    }

    /// Takes note of where this member stands, of which everybody else is told: `applied` is the number of the last
    /// entry that it has applied, and `leads` whether it may take writes.
    pub(super) fn stand(&self, position: Position, applied: u64, leads: bool) {
        let Position { term, leader, committed, .. } = position;
        let standing = Standing { term, leader, leads, applied, committed };
        let before = *self.standing.borrow();
        if (before.term, before.leader, before.leads) != (term, leader, leads) {
            tracing::info!(term, leader, leads, "the standing of this member changes");
            (self.stand_by)((!leads).then(|| not_leading(leader)));
            if !leads {
                self.asked.lock().fail(&not_leading(leader));
            }
        }
        self.standing.send_if_modified(|now| mem::replace(now, standing) != standing);
    }

    /// Answers those who have asked whether this member leads: most members have said so for all rounds up to this
    /// one, which began when the entry of this number was committed.
    pub(super) fn confirm(&self, round: u64, committed: u64) {
        let mut asked = self.asked.lock();
        while let Some((_, callers)) = asked.rounds.pop_front_if(|(of, _)| *of <= round) {
            asked.confirmed.extend(callers.into_iter().map(|caller| (committed, caller)));
        }
    }

    /// Refuses those who ask whether this member leads.
    pub(super) fn refuse_asked(&self) {
        self.asked.lock().fail(&not_leading(self.standing.borrow().leader));
    }

    /// Answers those who wait until the entry of this number is shown.
    pub(super) fn has_shown(&self, number: u64) {
        let mut asked = self.asked.lock();
        for (_, caller) in asked.confirmed.extract_if(.., |(of, _)| *of <= number) {
            // A caller may have gone.
            drop(caller.send(Ok(())));
        }
    }

    /// Waits until it is known that this member led after the call had begun, and everything from before is shown.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when it does not lead.
    pub(super) async fn ask(&self) -> Result<(), StoreError> {
        if !self.standing.borrow().leads {
            return Err(not_leading(self.standing.borrow().leader));
        }
        let (caller, answer) = oneshot::channel();
        self.asked.lock().new.push(caller);
        if !self.standing.borrow().leads {
            // It has ceased to lead meanwhile, and whoever refuses those who ask may have been here before.
            self.refuse_asked();
        }
        self.inbox.lock().is_asked = true;
        self.arrived.notify_one();
        answer.await.unwrap_or_else(|_| Err(not_leading(None)))
    }

    /// Returns the time between two ticks.
    pub(super) fn tick(&self) -> Duration {
        self.group.tick.max(Duration::from_millis(1))
    }

    /// Ends the exchange with the others.
    pub(super) fn close(&self) {
        self.inbox.lock().is_closed = true;
        self.outbox.lock().is_closed = true;
        self.arrived.notify_all();
        self.to_send.notify_one();
        // First, so that whoever asks after the others were refused knows.
        self.standing.send_if_modified(|now| mem::take(&mut now.leads));
        self.asked.lock().fail(&not_leading(None));
    }
}

impl Asked {
    /// Begins a round for those who have asked since the last one began; `None` when there are none.
    fn begin(&mut self) -> Option<u64> {
        if self.new.is_empty() {
            return None;
        }
        self.round += 1;
        let callers = mem::take(&mut self.new);
        self.rounds.push_back((self.round, callers));
        Some(self.round)
    }

    fn fail(&mut self, why: &StoreError) {
        let new = mem::take(&mut self.new);
        let rounds = mem::take(&mut self.rounds).into_iter().flat_map(|(_, callers)| callers);
        let confirmed = mem::take(&mut self.confirmed).into_iter().map(|(_, caller)| caller);
        for caller in new.into_iter().chain(rounds).chain(confirmed) {
            drop(caller.send(Err(why.clone())));
        }
    }
}

fn not_leading(leader: Option<u64>) -> StoreError {
    StoreError::Unavailable(match leader {
        Some(leader) => format!("this member does not lead its group, and member {leader} does"),
        None => "this member does not lead its group, and who does is not known yet".to_owned(),
    })
}

#[async_trait]
impl Member for Exchange {
    fn number(&self) -> u64 {
        self.group.member
    }

    fn members(&self) -> Vec<u64> {
        self.group.members.clone()
    }

    async fn outgoing(&self) -> Vec<MemberMessage> {
        loop {
            {
                let mut outbox = self.outbox.lock();
                if !outbox.messages.is_empty() || outbox.is_closed {
                    outbox.bytes = 0;
                    return mem::take(&mut outbox.messages);
                }
            }
            self.to_send.notified().await;
        }
    }

    fn receive(&self, message: MemberMessage) {
        let is_for_this = message.to == self.group.member && self.group.members.contains(&message.from);
        if !is_for_this {
            tracing::debug!(from = message.from, to = message.to, "a message is not for this member");
            return;
        }
        let mut inbox = self.inbox.lock();
        if inbox.messages.len() < WAITING_MESSAGES {
            inbox.messages.push(message);
            drop(inbox);
            self.arrived.notify_one();
        }
    }

    fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }
}
