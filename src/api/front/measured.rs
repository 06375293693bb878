//! What a member's metrics say of where it stands.

use metrics::{counter, gauge};
use tokio::sync::watch;

use crate::api::metrics::{flag, record_manager};
use crate::clock::ClocksSeen;
use crate::store::{Standing, Store};

/// Records where the member stands, and what it knows about the members' clocks, for the metrics that are read now.
pub(super) fn record(standing: &Standing, clocks: &ClocksSeen, members: impl Iterator<Item = u64>) {
    let Standing { term, leads, applied, committed, .. } = *standing;
    gauge!("leasehold_member_term").set(term as f64);
    gauge!("leasehold_member_leads").set(flag(leads));
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

/// Records what a member finds that has no manager, in the gauges that its manager has set while it had one.
pub(super) fn record_without_manager(store: &dyn Store) {
    record_manager(0, false, (store.out_of_order().is_some(), store.stopped().is_some()));
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

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn a_member_that_has_led_says_nothing_more_of_its_manager() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let of_manager = [
            "leasehold_claims_waiting",
            "leasehold_clock_off",
            "leasehold_store_out_of_order",
            "leasehold_store_stopped",
        ];
        of_manager.iter().for_each(|name| gauge!(*name).set(1.0));
        record_manager(0, false, (false, true));
        let said = recorder.handle().render();
        for name in of_manager {
            let value = u8::from(name == "leasehold_store_stopped");
            assert!(said.contains(&format!("\n{name} {value}\n")), "{said}");
        }
    }
}
