//! The hosts that are called: none of them takes all places for calls, no party takes all places of a host, and a host
//! that does not answer is not called for a while.
//!
//! A host may have as many calls as there are places free ([`may_take`]). So slow hosts come to equal parts, of which
//! one is left for whoever comes next: where `n` of them take all they can, each has about one place in `n + 1`
//! (dynamic thresholds, Choudhury and Hahne, 1998). In the same way owners and their schedules share the places of a
//! host ([`shares`]), and whether it answers is judged for each of them ([`breaker`]).
//!
//! A call that finds no place waits a short time for one. A place that becomes free goes to the party that has the
//! fewest. A wait takes one of the places that nobody has, so that waits for one host leave room for calls of others.

mod breaker;
mod shares;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

pub(crate) use breaker::Heard;
use breaker::{Breaker, Known, Look};
pub(crate) use shares::Party;
use shares::Shares;

use crate::clock::{Clock, Timestamp};

/// How long a call waits for a place at the most.
pub(crate) const TURN: Duration = Duration::from_secs(1);
/// The wait of a call that finds no place, before a random addition of as much again.
const LATER: Duration = Duration::from_secs(2);
/// The part of its places that a host has at first when it answers again. It has one more with each answer.
const FIRST_PART: usize = 10;
/// How many hosts are remembered, unless more are being called or left alone.
const REMEMBERED: usize = 10_000;

/// What a caller may do.
pub(crate) enum Admission {
    /// Call the host, which holds this place until the call has ended.
    Call(Call),
    /// Be put off: the host or the party has as many calls as it may.
    Later(Duration),
    /// Be put off: the host has not answered for some time, and another call finds out whether it does again.
    Trying(Duration),
    /// Fail without a call: the host has not answered for some time, and is called again after this long.
    Down(Duration),
}

/// Who wants to call a host.
pub(crate) struct Caller<'a> {
    /// The origin of what is called: another scheme at the same port is another server, or none.
    pub(crate) host: &'a str,
    pub(crate) party: Party,
    /// How late its calls may begin. With the smallest of those that wait, the host is called again the sooner.
    pub(crate) margin: Duration,
    /// When this call may not begin any more.
    pub(crate) until: Timestamp,
}

/// The hosts that are called.
pub(crate) struct Hosts {
    called: Arc<Mutex<Called>>,
}

/// The calls under way.
struct Called {
    /// The most calls of one host.
    most: usize,
    /// The places that no call has, and no wait for one.
    free: usize,
    hosts: HashMap<String, Host>,
    /// The number of the last wait.
    waits: u64,
}

#[derive(Default)]
struct Host {
    shares: Shares,
    breaker: Breaker,
    /// The most calls of it, while it has answered again for a short time.
    most: Option<usize>,
    /// Those that wait for a place, in the order in which they have come.
    waiting: Vec<Waiting>,
}

/// A wait for a place at a host.
struct Waiting {
    number: u64,
    party: Party,
    margin: Duration,
    /// When it began. A call begins no earlier.
    since: Timestamp,
    turn: oneshot::Sender<Call>,
}

/// A place at a host.
pub(crate) struct Call {
    host: String,
    party: Party,
    known: Known,
    called: Arc<Mutex<Called>>,
}

/// The other end of a wait, which ends when this is dropped.
struct Turn {
    host: String,
    number: u64,
    called: Arc<Mutex<Called>>,
    comes: oneshot::Receiver<Call>,
}

/// What a caller finds.
enum Found {
    Place(Call),
    None(Admission),
    /// A call of the host has to end first: one that finds out whether it answers, or any other.
    Full(Turn, Look),
}

/// Returns whether a host that has `taken` places may take another, while so many are `free`: it may have half of what
/// the others leave, and `most` places.
const fn may_take(taken: usize, free: usize, most: usize) -> bool {
    taken < free && taken < most
}

impl Hosts {
    /// Creates hosts that have this many places together, of which one can have so many at the most.
    pub(crate) fn new(places: usize, most: usize) -> Self {
        let called = Called { most: most.max(1), free: places.max(1), hosts: HashMap::new(), waits: 0 };
        Self { called: Arc::new(Mutex::new(called)) }
    }

    /// Takes a place at a host, for which it waits for [`TURN`] at the most, and not beyond the caller's end. Those
    /// that wait at a host that does not answer find out in turn whether it does again.
    pub(crate) async fn admit(&self, caller: &Caller<'_>, clock: &dyn Clock) -> Admission {
        let mut turn = match self.find(caller, clock.now()) {
            Found::Place(call) => return Admission::Call(call),
            Found::None(admission) => return admission,
            Found::Full(turn, _) => turn,
        };
        let left = caller.until.since(clock.now());
        let wait = if left.is_zero() { TURN } else { left.min(TURN) };
        if let Ok(Ok(call)) = timeout(wait, &mut turn.comes).await {
            return Admission::Call(call);
        }
        drop(turn);
        // Who has waited for the end of a try finds out how it has ended.
        match self.find(caller, clock.now()) {
            Found::Place(call) => Admission::Call(call),
            Found::None(admission) => admission,
            Found::Full(_, looked) => put_off(looked),
        }
    }

    fn find(&self, caller: &Caller<'_>, now: Timestamp) -> Found {
        let mut called = self.called.lock();
        // Those that wait to find out go first.
        let not_taken = called.hand_on_tries(caller.host, now, &self.called);
        let found = called.find(caller, now, &self.called);
        drop(called);
        // Each of them gives back its place.
        drop(not_taken);
        found
    }

    /// Ends a call, with what it has heard of the host.
    pub(crate) fn ended(&self, call: Call, heard: Heard, now: Timestamp) {
        let mut called = self.called.lock();
        let most = called.most;
        if let Some(host) = called.hosts.get_mut(&call.host) {
            host.breaker.heard(&call.party, call.known, heard, now);
            if heard == Heard::Answer {
                let at_first = call.known.is_try().then(|| most.div_ceil(FIRST_PART));
                let more = || host.most.map(|most| most + 1);
                host.most = at_first.or_else(more).filter(|now| *now < most);
            }
        }
        drop(called);
        let host = call.host.clone();
        drop(call);
        let mut called = self.called.lock();
        let not_taken = called.hand_on_tries(&host, now, &self.called);
        drop(called);
        drop(not_taken);
    }
}

impl Host {
    fn is_called(&self) -> bool {
        self.shares.all() > 0 || !self.waiting.is_empty()
    }

    /// Returns whether a party may take a place of this host, while so many are `free`.
    fn has_room_for(&self, party: &Party, free: usize, most: usize) -> bool {
        let (taken, most) = (self.shares.all(), self.most.unwrap_or(most));
        may_take(taken, free, most) && self.shares.may_take(party, (most - taken).min(free))
    }

    fn begin(
        &mut self,
        (host, party): (&str, Party),
        is_try: bool,
        now: Timestamp,
        called: &Arc<Mutex<Called>>,
    ) -> Call {
        self.shares.take(&party);
        let known = self.breaker.begin(&party, is_try, now);
        Call { host: host.to_owned(), party, known, called: Arc::clone(called) }
    }

    /// Takes out the wait whose turn it is: that of the party with the fewest places, of those who may take one.
    fn next(&mut self, free: usize, most: usize) -> Option<Waiting> {
        // The place of the wait is free as soon as it has ended.
        let may_go =
            |one: &Waiting| self.breaker.is_closed_for(&one.party) && self.has_room_for(&one.party, free + 1, most);
        let place = self.first(may_go)?;
        Some(self.waiting.remove(place))
    }

    /// Takes out the wait of one that is to find out whether the host answers again.
    fn next_try(&mut self, free: usize, most: usize, now: Timestamp) -> Option<Waiting> {
        if !self.breaker.may_be_open() || !may_take(self.shares.all(), free + 1, most) {
            return None;
        }
        let place = self.first(|one| self.breaker.look_again(&one.party, one.margin, now) == Look::Try)?;
        Some(self.waiting.remove(place))
    }

    fn first(&self, may_go: impl Fn(&Waiting) -> bool) -> Option<usize> {
        let waiting = self.waiting.iter().enumerate().filter(|(_, one)| !one.turn.is_closed() && may_go(one));
        waiting.min_by_key(|(_, one)| (self.shares.of(&one.party), one.number)).map(|(place, _)| place)
    }
}

impl Called {
    fn find(&mut self, caller: &Caller<'_>, now: Timestamp, called: &Arc<Mutex<Self>>) -> Found {
        let Self { most, free, hosts, waits } = self;
        if hosts.len() >= REMEMBERED {
            hosts.retain(|_, host| host.is_called() || host.breaker.is_recent(now));
        }
        let host = hosts.entry(caller.host.to_owned()).or_default();
        let looked = host.breaker.look(&caller.party, caller.margin, now);
        if let Look::Open(wait) = looked {
            return Found::None(Admission::Down(wait));
        }
        // One that finds out takes any place: those who call a host that answers have none to spare for it then.
        let may = match looked {
            Look::Closed => host.has_room_for(&caller.party, *free, *most),
            Look::Try => may_take(host.shares.all(), *free, *most),
            Look::Trying | Look::Open(_) => false,
        };
        if may {
            *free -= 1;
            return Found::Place(host.begin((caller.host, caller.party.clone()), looked == Look::Try, now, called));
        }
        if host.waiting.len() >= *free / 2 {
            return Found::None(put_off(looked));
        }
        *free -= 1;
        *waits += 1;
        let (number, (turn, comes)) = (*waits, oneshot::channel());
        let (party, margin) = (caller.party.clone(), caller.margin);
        host.waiting.push(Waiting { number, party, margin, since: now, turn });
        let turn = Turn { host: caller.host.to_owned(), number, called: Arc::clone(called), comes };
        Found::Full(turn, looked)
    }

    /// Gives the places of a host that are free to those that wait for them. Returns those that nobody took.
    fn hand_on(&mut self, name: &str, called: &Arc<Mutex<Self>>) -> Vec<Call> {
        let (mut not_taken, Self { most, free, hosts, .. }) = (Vec::new(), self);
        let Some(host) = hosts.get_mut(name) else { return not_taken };
        // Ends: each round takes out a wait, whose place the call has then.
        while let Some(Waiting { party, since, turn, .. }) = host.next(*free, *most) {
            not_taken.extend(turn.send(host.begin((name, party), false, since, called)).err());
        }
        not_taken
    }

    /// Lets those that wait find out whether a host answers again, as far as somebody is to. Returns the calls that
    /// nobody took.
    fn hand_on_tries(&mut self, name: &str, now: Timestamp, called: &Arc<Mutex<Self>>) -> Vec<Call> {
        let (mut not_taken, Self { most, free, hosts, .. }) = (Vec::new(), self);
        let Some(host) = hosts.get_mut(name) else { return not_taken };
        // Ends: each round takes out a wait, whose place the call has then.
        while let Some(Waiting { party, turn, .. }) = host.next_try(*free, *most, now) {
            not_taken.extend(turn.send(host.begin((name, party), true, now, called)).err());
        }
        not_taken
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut called = self.called.lock();
        called.free += 1;
        if let Some(host) = called.hosts.get_mut(&self.host) {
            host.shares.give_back(&self.party);
            host.breaker.tried(&self.party, &self.known);
        }
        let not_taken = called.hand_on(&self.host, &self.called);
        drop(called);
        // Each of them gives back its place in the same way.
        drop(not_taken);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut called = self.called.lock();
        let Called { free, hosts, .. } = &mut *called;
        let Some(host) = hosts.get_mut(&self.host) else { return };
        let before = host.waiting.len();
        host.waiting.retain(|one| one.number != self.number);
        // One whose turn has come has given its place to the call.
        *free += before - host.waiting.len();
    }
}

/// Puts off a call that may not wait any longer.
fn put_off(looked: Look) -> Admission {
    match looked {
        Look::Trying | Look::Open(_) => Admission::Trying(later()),
        Look::Closed | Look::Try => Admission::Later(later()),
    }
}

/// Returns a random wait, so that calls that were put off together do not come back together.
fn later() -> Duration {
    LATER.mul_f64(1.0 + rand::random::<f64>())
}
