//! Heartbeats for all running attempts together, at a third of the lease: two may get lost before it expires.
//!
//! While the service cannot be reached the work goes on: whether the lease has been given away is the service's
//! decision, and the fence keeps a late result out if it was.

use std::sync::Arc;
use std::time::Duration;

use super::handler::Ending;
use super::roster::Roster;
use super::service::{Beat, JobService};
use crate::job::WorkerId;
use crate::manager::Heartbeat;

/// The most heartbeats in one call.
const MAX_BATCH: usize = 1000;

/// Sends heartbeats until it is dropped.
pub(super) async fn run(service: Arc<dyn JobService>, worker: WorkerId, roster: Arc<Roster>, lease: Duration) {
    let period = lease / 3;
    let mut pause = period;
    loop {
        tokio::time::sleep(pause).await;
        let round = tokio::time::timeout(period, beat_all(service.as_ref(), &worker, &roster)).await;
        pause = if round == Ok(true) { period } else { period / 4 };
    }
}

/// Sends one heartbeat for each running attempt, and returns whether every batch was answered.
async fn beat_all(service: &dyn JobService, worker: &WorkerId, roster: &Roster) -> bool {
    let mut answered = true;
    for batch in roster.heartbeats().chunks(MAX_BATCH) {
        match service.heartbeat(worker, batch).await {
            Ok(beats) => hear(roster, batch, &beats),
            Err(error) => {
                tracing::warn!(%error, jobs = batch.len(), "heartbeats not delivered");
                answered = false;
            }
        }
    }
    answered
}

fn hear(roster: &Roster, sent: &[Heartbeat], beats: &[Beat]) {
    for (heartbeat, beat) in sent.iter().zip(beats) {
        let ending = match beat {
            Beat::Held { cancel_requested: true } => Ending::Cancelled,
            Beat::Lost => Ending::LeaseLost,
            Beat::Held { cancel_requested: false } | Beat::Undecided => continue,
        };
        roster.end(&heartbeat.id, heartbeat.fence, ending);
    }
}
