//! Checkpoints: the seal is written anew in the background while the store is in use.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::exits::FailOnExit;
use super::periodic::Periodic;

/// The time between two looks at how far the store has come. It is sealed when it has stood still since the last one.
const PERIOD: Duration = Duration::from_secs(2);
/// The longest time between two checkpoints of a store that does not stand still. A seal is synced to disk, and writes
/// that are synced meanwhile wait for it: with one every two seconds, one job in fifty took 100 ms.
const LONGEST: Duration = Duration::from_secs(30);

/// Starts the thread that makes checkpoints, which ends by itself when the engine is gone.
pub(super) fn start(engine: Weak<Engine>, guard: FailOnExit) -> std::io::Result<Periodic> {
    let mut has_failed = false;
    let (mut seen, mut sealed_at) = (0, Instant::now());
    Periodic::start("store-seal", PERIOD, guard, move || {
        let Some(engine) = engine.upgrade() else { return false };
        let last = engine.last_write();
        let stands_still = std::mem::replace(&mut seen, last) == last;
        if !stands_still && sealed_at.elapsed() < LONGEST {
            return true;
        }
        sealed_at = Instant::now();
        // A seal that is behind says less, and nothing wrong.
        match engine.checkpoint() {
            Ok(()) => has_failed = false,
            Err(error) if !has_failed => {
                tracing::warn!(%error, "the seal of the store could not be written; trying again");
                has_failed = true;
            }
            Err(_) => {}
        }
        true
    })
}
