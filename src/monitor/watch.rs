//! The look of a process without a monitor at the lease of the monitors: when the only one is gone, somebody says so.
//!
//! A leader renews its lease several times in a term. One whose record has stayed the same for a term, by the clock of
//! who looks, acts no more, and neither does anybody where nobody holds the lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::leader::{self, Seen};
use crate::manager::Manager;
use crate::store::{Store, Version};

/// The time between two looks.
const PERIOD: Duration = Duration::from_secs(2);
/// How long nobody may hold the lease before no monitor acts: longer than another one takes to step in.
const VACANT: Duration = Duration::from_secs(3);

/// A running look at the monitors. It ends when this is dropped.
pub struct MonitorWatch {
    _task: AbortOnDropHandle<()>,
}

impl MonitorWatch {
    /// Looks from now on, and tells the manager what it sees.
    #[must_use]
    pub fn start(manager: Manager, store: Arc<dyn Store>) -> Self {
        let watch = async move {
            let mut seen = Sight::default();
            loop {
                // What cannot be read is as it was.
                if let Ok(lease) = leader::seen(&*store).await {
                    // A store of this process's own has no other monitor.
                    let acts = !store.is_exclusive() && seen.acts(lease, Instant::now());
                    manager.monitor_acts(acts);
                }
                sleep(PERIOD).await;
            }
        };
        Self { _task: AbortOnDropHandle::new(tokio::spawn(watch)) }
    }
}

/// The lease as it was seen last, and since when it has been so.
#[derive(Default)]
struct Sight(Option<(Option<Version>, Instant)>);

impl Sight {
    /// Returns whether a monitor acts, as far as this look shows.
    fn acts(&mut self, lease: Option<Seen>, now: Instant) -> bool {
        let version = lease.as_ref().map(|lease| lease.version);
        let held_for = lease.and_then(|lease| lease.held_for);
        let since = match self.0 {
            Some((known, since)) if known == version => since,
            _ => now,
        };
        self.0 = Some((version, since));
        now.duration_since(since) < held_for.unwrap_or(VACANT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Place;

    #[test]
    fn a_monitor_is_gone_when_its_lease_stays_the_same_for_a_term_or_nobody_takes_it() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let lease = |seq_no: u64, held_for: Option<u64>| {
            let version = Version { place: Place::Main, primary_term: 1, seq_no };
            Some(Seen { version, held_for: held_for.map(Duration::from_secs) })
        };
        let mut sight = Sight::default();
        assert!(sight.acts(lease(1, Some(5)), at(0)) && sight.acts(lease(1, Some(5)), at(4)));
        assert!(sight.acts(lease(2, Some(5)), at(6)), "it was renewed");
        assert!(sight.acts(lease(2, Some(5)), at(10)) && !sight.acts(lease(2, Some(5)), at(11)));
        assert!(sight.acts(lease(3, Some(5)), at(12)), "another one acts");
        assert!(sight.acts(lease(4, None), at(14)) && !sight.acts(lease(4, None), at(17)), "it was given back");
        let mut sight = Sight::default();
        assert!(sight.acts(None, at(0)) && !sight.acts(None, at(3)), "there never was one");
    }
}
