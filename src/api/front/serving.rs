//! The calls that a member serves while it leads, and a moment in which there are none, to hand over the lead.

use std::time::Duration;

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::time::timeout;

/// The calls that a member serves.
#[derive(Default)]
pub(super) struct Serving {
    /// Shut while the lead is handed over.
    door: RwLock<()>,
    /// Held by each call while it is served.
    inside: RwLock<()>,
}

impl Serving {
    /// Waits while the lead is handed over, and lets a call be served until what this returns is dropped.
    pub(super) async fn enter(&self) -> RwLockReadGuard<'_, ()> {
        let _door = self.door.read().await;
        self.inside.read().await
    }

    /// Waits until the calls that are served have ended, for at most this time, and lets no other be served until what
    /// this returns is dropped.
    pub(super) async fn shut(&self, within: Duration) -> RwLockWriteGuard<'_, ()> {
        let shut = self.door.write().await;
        if timeout(within, self.inside.write()).await.is_err() {
            tracing::info!("calls that take long are served while the lead is handed over");
        }
        shut
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_hands_over_the_lead_waits_for_calls_and_holds_up_others() {
        let (serving, begun) = (Serving::default(), Instant::now());
        let within = Duration::from_secs(1);
        let served = serving.enter().await;
        let ends = async {
            tokio::time::sleep(within / 4).await;
            drop(served);
        };
        let (shut, ()) = tokio::join!(serving.shut(within), ends);
        assert_eq!(begun.elapsed(), within / 4);
        assert!(timeout(within, serving.enter()).await.is_err(), "the lead is handed over");
        drop(shut);
        let long = serving.enter().await;
        let before = Instant::now();
        let shut = serving.shut(within).await;
        assert_eq!(before.elapsed(), within, "one call takes long");
        assert!(timeout(within, serving.enter()).await.is_err(), "and the others are held up all the same");
        drop((shut, long));
        drop(serving.enter().await);
    }
}
