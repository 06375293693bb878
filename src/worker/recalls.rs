//! Recalls: one call for all running attempts waits at the service until one of them has to end early, so that a
//! cancellation does not wait for the next heartbeat.
//!
//! A service that does not know the call refuses it; the heartbeats bring the same word then.

use std::sync::Arc;
use std::time::Duration;

use backon::BackoffBuilder as _;

use super::backoff::{LONGEST, waits};
use super::handler::Ending;
use super::roster::Roster;
use super::service::{JobService, ServiceError};
use crate::job::WorkerId;
use crate::manager::RecallReason;

/// How long one call waits.
const WAIT: Duration = Duration::from_secs(30);
/// The most leases in one call. Attempts beyond them are recalled as well while the call waits.
const MAX_LEASES: usize = 1000;
/// The least time between the answer to a call and the next call.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a service that refuses the call is not asked again. It may be of a later version then.
const REFUSED: Duration = Duration::from_secs(300);

/// Ends attempts as the service asks for it, until it is dropped.
pub(super) async fn run(service: Arc<dyn JobService>, worker: WorkerId, roster: Arc<Roster>) {
    let mut tries = waits().build();
    loop {
        let leases = roster.wait_for_running(MAX_LEASES).await;
        let pause = match service.recalls(&worker, &leases, WAIT).await {
            Ok(recalls) => {
                for recall in recalls.iter().filter(|recall| recall.worker_id == worker) {
                    let ending = match recall.reason {
                        RecallReason::CancelRequested => Ending::Cancelled,
                        RecallReason::LeaseLost => Ending::LeaseLost,
                    };
                    roster.end(&recall.id, recall.fence, ending);
                }
                tries = waits().build();
                PAUSE
            }
            Err(ServiceError::Refused(why)) => {
                tracing::debug!(why, "the service has no recalls; heartbeats tell of cancellations");
                REFUSED
            }
            Err(ServiceError::Unavailable(why) | ServiceError::Closing(why)) => {
                tracing::debug!(why, "recalls are not answered; trying again");
                tries.next().unwrap_or(LONGEST)
            }
        };
        tokio::time::sleep(pause).await;
    }
}
