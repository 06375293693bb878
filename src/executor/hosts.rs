//! The hosts that are called: none of them takes all places for calls, and one that does not answer is not called for a
//! while.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
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
    places: usize,
    hosts: Mutex<HashMap<String, Host>>,
}

struct Host {
    places: Arc<Semaphore>,
    /// The calls in a row that have failed.
    failures: u32,
    left_alone_until: Option<Timestamp>,
}

/// A place at a host.
pub(crate) struct Call {
    host: String,
    /// How many calls in a row had failed when it began.
    failures: u32,
    _place: OwnedSemaphorePermit,
}

impl Hosts {
    /// Creates hosts of which each can have this many calls.
    pub(crate) fn new(places: usize) -> Self {
        Self { places: places.max(1), hosts: Mutex::default() }
    }

    /// Takes a place at a host. While its calls fail, only one is under way at a time.
    pub(crate) async fn admit(&self, host: &str, now: Timestamp) -> Admission {
        let (places, failures) = {
            let mut hosts = self.hosts.lock();
            if hosts.len() >= REMEMBERED {
                hosts.retain(|_, host| host.is_called(self.places) || host.left_alone_until > Some(now));
            }
            let new = || Host { places: Arc::new(Semaphore::new(self.places)), failures: 0, left_alone_until: None };
            let host = hosts.entry(host.to_owned()).or_insert_with(new);
            if let Some(until) = host.left_alone_until.filter(|until| *until > now) {
                return Admission::Down(until.since(now));
            }
            if host.failures >= FAILURES && host.is_called(self.places) {
                return Admission::Later(later());
            }
            (Arc::clone(&host.places), host.failures)
        };
        let place = if failures > 0 {
            places.try_acquire_owned().ok()
        } else {
            timeout(TURN, places.acquire_owned()).await.ok().and_then(Result::ok)
        };
        match place {
            Some(place) => Admission::Call(Call { host: host.to_owned(), failures, _place: place }),
            None => Admission::Later(later()),
        }
    }

    /// Ends a call, of which the host has answered or not.
    pub(crate) fn ended(&self, call: Call, answered: bool, now: Timestamp) {
        if let Some(host) = self.hosts.lock().get_mut(&call.host) {
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

impl Host {
    fn is_called(&self, places: usize) -> bool {
        self.places.available_permits() < places
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
        let hosts = Hosts::new(2);
        let taken = [call(&hosts, "a", start()).await, call(&hosts, "a", start()).await];
        assert!(taken.iter().all(Option::is_some));
        assert!(matches!(hosts.admit("a", start()).await, Admission::Later(wait) if wait >= LATER));
        assert!(call(&hosts, "b", start()).await.is_some());
        drop(taken);
        assert!(call(&hosts, "a", start()).await.is_some());
    }

    #[tokio::test]
    async fn a_host_that_does_not_answer_is_left_alone_and_called_by_one_at_a_time_after_that() {
        let (hosts, mut now) = (Hosts::new(8), start());
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
        let hosts = Hosts::new(100);
        let mut calls = Vec::new();
        for _ in 0..100 {
            calls.push(call(&hosts, "a", start()).await.expect("it is called"));
        }
        calls.into_iter().for_each(|call| hosts.ended(call, false, start()));
        assert!(call(&hosts, "a", start()).await.is_some(), "it is not left alone for that");
    }

    #[tokio::test]
    async fn hosts_that_nobody_calls_are_forgotten() {
        let hosts = Hosts::new(1);
        let kept = call(&hosts, "kept", start()).await.expect("it is called");
        for number in 0..=REMEMBERED {
            assert!(call(&hosts, &number.to_string(), start()).await.is_some());
        }
        assert!(hosts.hosts.lock().len() < REMEMBERED && hosts.hosts.lock().contains_key("kept"));
        hosts.ended(kept, true, start());
    }
}
