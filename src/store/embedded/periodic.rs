//! A thread that does something time and again until it is dropped.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::exits::FailOnExit;

/// The thread. Dropping it waits until it has ended.
pub(super) struct Periodic {
    ended: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Periodic {
    /// Starts the thread, which calls `work` after each period, until that returns that there is nothing left to do.
    pub(super) fn start(
        name: &str,
        period: Duration,
        guard: FailOnExit,
        mut work: impl FnMut() -> bool + Send + 'static,
    ) -> std::io::Result<Self> {
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let thread = thread::Builder::new().name(name.to_owned()).spawn({
            let ended = Arc::clone(&ended);
            move || {
                let _guard = guard;
                while wait(&ended, period) && work() {}
            }
        })?;
        Ok(Self { ended, thread: Some(thread) })
    }
}

/// Waits for a period; returns `false` when the thread is to end.
fn wait((ended, changed): &(Mutex<bool>, Condvar), period: Duration) -> bool {
    let mut ended = ended.lock();
    if !*ended {
        changed.wait_for(&mut ended, period);
    }
    !*ended
}

impl Drop for Periodic {
    fn drop(&mut self) {
        let (ended, changed) = &*self.ended;
        *ended.lock() = true;
        changed.notify_all();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
