//! A thread that does something time and again until it is dropped.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::exits::FailOnExit;

/// The thread. Dropping it waits until it has ended.
pub(super) struct Periodic {
    ended: Arc<Ended>,
    thread: Option<JoinHandle<()>>,
}

/// Whether the thread is to end, and what wakes it.
type Ended = (Mutex<bool>, Condvar);

/// Wakes the thread before its period is over.
#[derive(Debug)]
pub(super) struct Waker(Arc<Ended>);

impl Waker {
    /// Has the thread work now. One that works already may not notice.
    pub(super) fn wake(&self) {
        self.0.1.notify_one();
    }
}

impl Periodic {
    /// Returns what wakes the thread.
    pub(super) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.ended))
    }

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
fn wait((ended, changed): &Ended, period: Duration) -> bool {
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
