//! The background task that tells other managers of jobs.

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::client::CALLS_AT_ONCE;
use super::{HINTS_PATH, Hints, PeerClient, to_json};
use crate::manager::{Manager, Outgoing};

/// Tells other managers of jobs until it is stopped or dropped.
pub struct Teller {
    stopping: CancellationToken,
    telling: AbortOnDropHandle<()>,
}

#[derive(Clone)]
struct Caller {
    manager: Manager,
    peers: PeerClient,
}

impl Teller {
    /// Starts the task on the current tokio runtime.
    #[must_use]
    pub fn start(manager: Manager, peers: PeerClient) -> Self {
        let stopping = CancellationToken::new();
        let telling = AbortOnDropHandle::new(tokio::spawn(tell_all(Caller { manager, peers }, stopping.clone())));
        Self { stopping, telling }
    }

    /// Stops at once. Whoever was not told of a job yet finds it by a search.
    pub async fn shutdown(self) {
        self.stopping.cancel();
        // A task that has panicked tells nobody of anything either.
        drop(self.telling.await);
    }
}

async fn tell_all(caller: Caller, stopping: CancellationToken) {
    let mut calls = JoinSet::new();
    // Ends when it is stopped; the calls under way end with the set.
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            Some(_) = calls.join_next() => {}
            outgoing = caller.manager.next_hints(), if calls.len() < CALLS_AT_ONCE => {
                let caller = caller.clone();
                calls.spawn(async move { caller.tell(outgoing).await });
            }
        }
    }
}

impl Caller {
    async fn tell(&self, outgoing: Outgoing) {
        let outcome = self.call(&outgoing).await;
        if let Err(why) = &outcome {
            debug!(address = %outgoing.to.address, why, "a manager was not told of its jobs");
        }
        self.manager.hints_told(&outgoing, outcome);
    }

    async fn call(&self, outgoing: &Outgoing) -> Result<(), String> {
        let hints = Hints { available: outgoing.hints.clone(), recalls: outgoing.recalls.clone() };
        self.peers.call(&outgoing.to, HINTS_PATH, &to_json(&hints)).await.map(drop)
    }
}
