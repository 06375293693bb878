//! Checkpoints: the seal is written anew in the background while the store is in use.

use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::engine::Engine;

/// The time between two looks at how far the store has come. It is sealed when it has stood still since the last one.
const PERIOD: Duration = Duration::from_secs(2);
/// The longest time between two checkpoints of a store that does not stand still. A seal is synced to disk, and writes
/// that are synced meanwhile wait for it: with one every two seconds, one job in fifty took 100 ms.
const LONGEST: Duration = Duration::from_secs(30);

/// The thread that makes checkpoints, until it is dropped.
pub(super) struct Checkpoints {
    ended: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoints {
    /// Starts the thread, which ends by itself when the engine is gone.
    pub(super) fn start(engine: Weak<Engine>) -> std::io::Result<Self> {
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let thread = thread::Builder::new().name("store-seal".to_owned()).spawn({
            let ended = Arc::clone(&ended);
            move || run(&engine, &ended)
        })?;
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        let (ended, changed) = &*self.ended;
        *ended.lock() = true;
        changed.notify_all();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn run(engine: &Weak<Engine>, (ended, changed): &(Mutex<bool>, Condvar)) {
    let mut has_failed = false;
    let (mut seen, mut sealed_at) = (0, Instant::now());
    loop {
        let mut ended = ended.lock();
        if !*ended {
            changed.wait_for(&mut ended, PERIOD);
        }
        if *ended {
            return;
        }
        drop(ended);
        let Some(engine) = engine.upgrade() else { return };
        let last = engine.last_write();
        let stands_still = std::mem::replace(&mut seen, last) == last;
        if !stands_still && sealed_at.elapsed() < LONGEST {
            continue;
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
    }
}
