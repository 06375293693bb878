//! The request to stop a worker: first to claim no new jobs, then to end the running ones.

use tokio::sync::watch;

/// The urgency of a request to stop a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// No stop is requested.
    #[default]
    No,
    /// The worker claims no new job and lets the running ones end.
    Drain,
    /// The worker ends the running jobs and releases them.
    Now,
}

/// Stops workers. The request only ever becomes more urgent.
#[derive(Clone, Debug)]
pub struct StopHandle(watch::Sender<Stop>);

impl Default for StopHandle {
    fn default() -> Self {
        Self(watch::Sender::new(Stop::No))
    }
}

impl StopHandle {
    /// Requests a stop; a less urgent request than the one before changes nothing.
    pub fn request(&self, stop: Stop) {
        self.0.send_if_modified(|current| {
            let more = stop > *current;
            *current = stop.max(*current);
            more
        });
    }

    /// Returns a listener for the request.
    #[must_use]
    pub fn listen(&self) -> StopListener {
        StopListener(self.0.subscribe())
    }
}

/// Waits for a request to stop.
#[derive(Clone, Debug)]
pub struct StopListener(watch::Receiver<Stop>);

impl StopListener {
    /// Returns the current urgency of the request.
    #[must_use]
    pub fn urgency(&self) -> Stop {
        *self.0.borrow()
    }

    /// Waits until the request is at least as urgent as `stop`. It waits for ever when every handle was dropped, since
    /// no request can follow.
    pub async fn reached(&mut self, stop: Stop) {
        if self.0.wait_for(|current| *current >= stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
