//! The store's clock, with which each process compares its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::Store;
use crate::clock::ComparedClock;

/// The time between two comparisons: several of them may fail before the last one is no longer good.
const PERIOD: Duration = Duration::from_secs(10);

/// Compares a clock with the store's from time to time, for as long as the future is polled.
pub async fn keep_compared(clock: Arc<ComparedClock>, store: Arc<dyn Store>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut has_failed = false;
    loop {
        ticks.tick().await;
        let sent = clock.read();
        match store.time().await {
            Ok(Some(time)) => {
                metrics::gauge!("leasehold_clock_offset_seconds").set(clock.compare(sent, time));
                if has_failed {
                    tracing::info!("the machine's clock is compared with the store's again");
                }
                has_failed = false;
            }
            Ok(None) => return,
            Err(error) if !has_failed => {
                tracing::warn!(%error, "the machine's clock cannot be compared with the store's");
                has_failed = true;
            }
            Err(_) => {}
        }
    }
}
