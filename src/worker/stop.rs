//! How a worker is told to stop: first to claim nothing new, then to end what runs.

use tokio::sync::watch;

/// How urgently a worker is to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// It is not to stop.
    #[default]
    No,
    /// Claim no new job and let the running ones end.
    Drain,
    /// End the running jobs and release them.
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

    /// Returns a listener for it.
    #[must_use]
    pub fn listen(&self) -> StopListener {
        StopListener(self.0.subscribe())
    }
}

/// Waits for a request to stop.
#[derive(Clone, Debug)]
pub struct StopListener(watch::Receiver<Stop>);

impl StopListener {
    /// Returns how urgent the request is now.
    #[must_use]
    pub fn urgency(&self) -> Stop {
        *self.0.borrow()
    }

    /// Waits until the request is at least as urgent as `stop`; for ever when the handle is gone, since nobody can
    /// request it.
    pub async fn reached(&mut self, stop: Stop) {
        if self.0.wait_for(|current| *current >= stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
