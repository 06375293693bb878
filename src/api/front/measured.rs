//! What a member's metrics say of where it stands.

use metrics::{counter, gauge};
use tokio::sync::watch;

use crate::clock::ClocksSeen;
use crate::store::Standing;

/// Records where the member stands, and what it knows of the members' clocks, for whoever reads the metrics now.
pub(super) fn record(standing: &Standing, clocks: &ClocksSeen, members: impl Iterator<Item = u64>) {
    let Standing { term, leads, applied, committed, .. } = *standing;
    gauge!("leasehold_member_term").set(term as f64);
    gauge!("leasehold_member_leads").set(if leads { 1.0 } else { 0.0 });
    gauge!("leasehold_member_applied").set(applied as f64);
    gauge!("leasehold_member_committed").set(committed as f64);
    gauge!("leasehold_member_lag_entries").set(committed.saturating_sub(applied) as f64);
    // Of a member that was not heard of for a while, nothing is known.
    for member in members.chain(clocks.ahead.keys().copied()) {
        let ahead = clocks.ahead.get(&member).map_or(f64::NAN, |ahead| ahead.middle() as f64 / 1_000.0);
        let member = member.to_string();
        gauge!("leasehold_member_clock_ahead_seconds", "member" => member).set(ahead);
    }
    gauge!("leasehold_member_clocks_off").set(clocks.off.len() as f64);
    gauge!("leasehold_member_clocks_apart").set(clocks.apart.len() as f64);
}

/// Counts the leaders that follow one another, until the store is closed.
pub(in crate::api) async fn count_leaders(mut standing: watch::Receiver<Standing>) {
    let mut last = None;
    loop {
        let Standing { term, leader, .. } = *standing.borrow_and_update();
        if let Some(leader) = leader
            && last.replace((term, leader)).is_some_and(|last| last != (term, leader))
        {
            counter!("leasehold_member_leader_changes_total").increment(1);
        }
        if standing.changed().await.is_err() {
            return;
        }
    }
}
