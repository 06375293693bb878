//! The hosts that are called: none of them takes all places for calls, and one that does not answer is not called for a
//! while.
//!
//! A host may have as many calls as there are places free ([`may_take`]). So slow hosts come to equal parts, of which
//! one is left for whoever comes next: where `n` of them take all they can, each has about one place in `n + 1`
//! (dynamic thresholds, Choudhury and Hahne, 1998).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::clock::Timestamp;

/// How long a call waits for a place at a host that answers.
const TURN: Duration = Duration::from_millis(250);
/// The wait of a call that finds no place, before a random addition of as much again.
const LATER: Duration = Duration::from_secs(2);
/// How many calls in a row may fail before the host is left alone.
const FAILURES: u32 = 5;
/// How long a host is left alone at first; twice as long after each further failure.
const LEFT_ALONE: Duration = Duration::from_secs(1);
/// How long a host is left alone at most.
const LEFT_ALONE_AT_MOST: Duration = Duration::from_secs(300);
/// How many hosts are remembered, unless more are being called or left alone.
const REMEMBERED: usize = 10_000;

/// What a caller may do.
pub(crate) enum Admission {
    /// Call the host, which holds this place until the call has ended.
    Call(Call),
    /// Be put off: the host has as many calls as it may.
    Later(Duration),
    /// Fail without a call: the host has not answered for some time, and is called again after this long.
    Down(Duration),
}

/// The hosts that are called.
pub(crate) struct Hosts {
    /// The most calls of one host.
    most: usize,
    called: Arc<Mutex<Called>>,
}

/// The calls under way.
struct Called {
    /// The places that no call has.
    free: usize,
    hosts: HashMap<String, Host>,
}

#[derive(Default)]
struct Host {
    /// The calls under way.
    taken: usize,
    /// The calls in a row that have failed.
    failures: u32,
    left_alone_until: Option<Timestamp>,
    /// Notified when a call has ended.
    turn: Arc<Notify>,
}

/// A place at a host.
pub(crate) struct Call {
    host: String,
    /// How many calls in a row had failed when it began.
    failures: u32,
    called: Arc<Mutex<Called>>,
}

/// What a caller finds.
enum Found {
    Place(Call),
    None(Admission),
    /// A call of the host has to end first.
    Full(Arc<Notify>),
}

/// Returns whether a host that has `taken` places may take another, while so many are `free`: it may have half of what
/// the others leave, and `most` places.
const fn may_take(taken: usize, free: usize, most: usize) -> bool {
    taken < free && taken < most
}

impl Hosts {
    /// Creates hosts that have this many places together, of which one can have so many at the most.
    pub(crate) fn new(places: usize, most: usize) -> Self {
        let called = Called { free: places.max(1), hosts: HashMap::new() };
        Self { most: most.max(1), called: Arc::new(Mutex::new(called)) }
    }

    /// Takes a place at a host. While its calls fail, only one is under way at a time.
    pub(crate) async fn admit(&self, host: &str, now: Timestamp) -> Admission {
        let admitted = async {
            // Ends with the wait for a turn: each round waits for the end of a call.
            loop {
                match self.find(host, now) {
                    Found::Place(call) => return Admission::Call(call),
                    Found::None(admission) => return admission,
                    Found::Full(turn) => turn.notified().await,
                }
            }
        };
        timeout(TURN, admitted).await.unwrap_or_else(|_| Admission::Later(later()))
    }

    fn find(&self, name: &str, now: Timestamp) -> Found {
        let mut called = self.called.lock();
        let Called { free, hosts } = &mut *called;
        if hosts.len() >= REMEMBERED {
            hosts.retain(|_, host| host.taken > 0 || host.left_alone_until > Some(now));
        }
        let host = hosts.entry(name.to_owned()).or_default();
        // One that is further ahead is by a clock that was set back since.
        let left_alone = host.left_alone_until.filter(|until| *until > now && until.since(now) <= LEFT_ALONE_AT_MOST);
        if let Some(until) = left_alone {
            return Found::None(Admission::Down(until.since(now)));
        }
        if host.failures >= FAILURES && host.taken > 0 {
            return Found::None(Admission::Later(later()));
        }
        if may_take(host.taken, *free, self.most) {
            (host.taken, *free) = (host.taken + 1, *free - 1);
            let (host, failures) = (name.to_owned(), host.failures);
            return Found::Place(Call { host, failures, called: Arc::clone(&self.called) });
        }
        match host.failures {
            0 => Found::Full(Arc::clone(&host.turn)),
            _ => Found::None(Admission::Later(later())),
        }
    }

    /// Ends a call, of which the host has answered or not.
    pub(crate) fn ended(&self, call: Call, answered: bool, now: Timestamp) {
        if let Some(host) = self.called.lock().hosts.get_mut(&call.host) {
            // Calls that were under way together fail together: they are one failure.
            if !answered && host.failures != call.failures {
                return;
            }
            host.failures = if answered { 0 } else { host.failures.saturating_add(1) };
            host.left_alone_until = host.failures.checked_sub(FAILURES).map(|more| {
                let longer = LEFT_ALONE.saturating_mul(1 << more.min(16));
                now.plus(longer.min(LEFT_ALONE_AT_MOST))
            });
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut called = self.called.lock();
        called.free += 1;
        if let Some(host) = called.hosts.get_mut(&self.host) {
            host.taken = host.taken.saturating_sub(1);
            host.turn.notify_one();
        }
    }
}

/// Returns a random wait, so that calls that were put off together do not come back together.
fn later() -> Duration {
    LATER.mul_f64(1.0 + rand::random::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Timestamp {
        Timestamp::from_millis(1_900_000_000_000)
    }

    async fn call(hosts: &Hosts, host: &str, now: Timestamp) -> Option<Call> {
        match hosts.admit(host, now).await {
            Admission::Call(call) => Some(call),
            Admission::Later(_) | Admission::Down(_) => None,
        }
    }

    #[tokio::test]
    async fn a_host_takes_its_own_places_only() {
        let hosts = Hosts::new(100, 2);
        let taken = [call(&hosts, "a", start()).await, call(&hosts, "a", start()).await];
        assert!(taken.iter().all(Option::is_some));
        assert!(matches!(hosts.admit("a", start()).await, Admission::Later(wait) if wait >= LATER));
        assert!(call(&hosts, "b", start()).await.is_some());
        drop(taken);
        assert!(call(&hosts, "a", start()).await.is_some());
    }

    #[tokio::test]
    async fn a_host_that_does_not_answer_is_left_alone_and_called_by_one_at_a_time_after_that() {
        let (hosts, mut now) = (Hosts::new(100, 8), start());
        for _ in 0..FAILURES {
            let call = call(&hosts, "a", now).await.expect("it is called");
            hosts.ended(call, false, now);
        }
        assert!(matches!(hosts.admit("a", now).await, Admission::Down(wait) if wait == LEFT_ALONE));
        assert!(call(&hosts, "b", now).await.is_some());

        now = now.plus(LEFT_ALONE);
        let probe = call(&hosts, "a", now).await.expect("one call finds out");
        assert!(matches!(hosts.admit("a", now).await, Admission::Later(_)));
        hosts.ended(probe, false, now);
        assert!(matches!(hosts.admit("a", now).await, Admission::Down(wait) if wait == 2 * LEFT_ALONE));

        now = now.plus(2 * LEFT_ALONE);
        let probe = call(&hosts, "a", now).await.expect("one call finds out");
        hosts.ended(probe, true, now);
        let all = [call(&hosts, "a", now).await, call(&hosts, "a", now).await];
        assert!(all.iter().all(Option::is_some), "it is as good as any other");
    }

    #[tokio::test]
    async fn calls_that_fail_together_count_once() {
        let hosts = Hosts::new(1_000, 100);
        let mut calls = Vec::new();
        for _ in 0..100 {
            calls.push(call(&hosts, "a", start()).await.expect("it is called"));
        }
        calls.into_iter().for_each(|call| hosts.ended(call, false, start()));
        assert!(call(&hosts, "a", start()).await.is_some(), "it is not left alone for that");
    }

    #[test]
    fn however_many_hosts_take_all_they_can_there_is_room_for_another() {
        for hosts in 1..100 {
            let (mut free, mut taken) = (512_usize, vec![0_usize; hosts]);
            // Calls end in turn and others come in their place, until the parts are those that stay: the host that
            // comes first begins with 128 places, and loses one of them in so many rounds as there are hosts.
            for round in 0..200 * hosts {
                let place = round % hosts;
                (taken[place], free) = (taken[place].saturating_sub(1), free + taken[place].min(1));
                for place in (0..hosts).map(|other| (place + other) % hosts) {
                    while may_take(taken[place], free, 128) {
                        (taken[place], free) = (taken[place] + 1, free - 1);
                    }
                }
            }
            let (least, most) = (taken.iter().min().copied(), taken.iter().max().copied());
            let part = (512 / (hosts + 1)).min(128);
            assert!(least >= Some(part - 1) && most <= Some(part + 2), "{hosts}: {taken:?} of {part}");
            assert!(free + 1 >= part, "{hosts}: {free} of {part}");
        }
    }

    #[tokio::test]
    async fn slow_hosts_leave_room_for_others() {
        let hosts = Hosts::new(64, 64);
        let mut slow = Vec::new();
        for host in ["a", "b", "c", "d"] {
            while let Some(call) = call(&hosts, host, start()).await {
                slow.push(call);
            }
        }
        assert!(call(&hosts, "e", start()).await.is_some(), "{} of 64 are taken", slow.len());
        assert!(slow.len() > 32, "what nobody else wants is taken");
    }

    #[tokio::test]
    async fn a_call_takes_the_place_of_one_that_ends_in_time() {
        let hosts = Hosts::new(100, 1);
        let first = call(&hosts, "a", start()).await.expect("it is called");
        let (second, ()) = tokio::join!(call(&hosts, "a", start()), async { drop(first) });
        assert!(second.is_some());
    }

    #[tokio::test]
    async fn hosts_that_nobody_calls_are_forgotten() {
        let hosts = Hosts::new(10, 1);
        let kept = call(&hosts, "kept", start()).await.expect("it is called");
        for number in 0..=REMEMBERED {
            assert!(call(&hosts, &number.to_string(), start()).await.is_some());
        }
        assert!(hosts.called.lock().hosts.len() < REMEMBERED && hosts.called.lock().hosts.contains_key("kept"));
        hosts.ended(kept, true, start());
    }
}
