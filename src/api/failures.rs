//! Tokens that are not known: the more of them an address shows, the later they are refused.
//!
//! Only refusals wait, so that nobody does who shows a token that is known, whatever others at the same address do.
//! There is a fixed number of counters, and each address has one of them: two that share one slow down each other's
//! refusals, and nothing else.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::budget::Holder;

/// How many addresses are told apart at best.
const COUNTERS: usize = 4096;
/// How many refusals of an address do not wait, and how soon there are as many again.
const AT_ONCE: (u32, Duration) = (100, Duration::from_secs(60));
/// The longest that a refusal waits.
const MOST: Duration = Duration::from_secs(10);

/// The refusals of late, by address.
#[derive(Debug)]
pub(super) struct Failures {
    begun: Instant,
    by: RandomState,
    /// When the last refusal of the counter would have its turn if none came at once, since the beginning.
    turns: Mutex<Box<[Duration]>>,
}

impl Default for Failures {
    fn default() -> Self {
        let turns = Mutex::new(vec![Duration::ZERO; COUNTERS].into());
        Self { begun: Instant::now(), by: RandomState::default(), turns }
    }
}

impl Failures {
    /// Counts a refusal of an address, and returns how long it has to wait, if it has to.
    pub(super) fn count(&self, address: IpAddr) -> Option<Duration> {
        let (many, each) = AT_ONCE;
        let now = self.begun.elapsed();
        let counter = self.by.hash_one(Holder::at(address)) as usize % COUNTERS;
        let mut turns = self.turns.lock();
        let turn = turns.get_mut(counter)?;
        *turn = ((*turn).max(now) + each / many).min(now + each + MOST);
        turn.checked_sub(now + each).filter(|wait| !wait.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn at(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    /// Another address, which has another counter.
    fn other(failures: &Failures) -> IpAddr {
        let counter = |address| failures.by.hash_one(Holder::at(address)) as usize % COUNTERS;
        (2..=255).map(at).find(|address| counter(*address) != counter(at(1))).expect("one of many")
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_refusals_a_minute_do_not_wait_and_further_ones_take_turns() {
        let failures = Failures::default();
        for nth in 0..100 {
            assert_eq!(failures.count(at(1)), None, "refusal {nth}");
        }
        for nth in 1..=20 {
            assert_eq!(failures.count(at(1)), Some((nth * Duration::from_millis(600)).min(MOST)));
        }
        assert_eq!(failures.count(other(&failures)), None, "another address has turns of its own");
        tokio::time::advance(Duration::from_secs(130)).await;
        for nth in 0..100 {
            assert_eq!(failures.count(at(1)), None, "refusal {nth} later");
        }
        assert!(failures.count(at(1)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn no_refusal_waits_longer_than_the_longest_and_there_are_no_more_counters_however_many_come() {
        let failures = Failures::default();
        let waits = (0..10_000).filter_map(|_| failures.count(at(1)));
        assert_eq!(waits.max(), Some(MOST));
        for address in 0..20_000 {
            failures.count(Ipv4Addr::from_bits(address).into());
        }
        assert_eq!(failures.turns.lock().len(), COUNTERS);
    }
}
