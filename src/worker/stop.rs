//! How a worker is asked to stop: first to take nothing new, then to end what runs.

use tokio::sync::watch;

/// How urgently to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Not at all.
    #[default]
    No,
    /// Take no new job, let the running ones come to their end.
    Drain,
    /// End the running ones and give them back.
    Now,
}

/// The hand that stops workers. Only ever more urgent.
#[derive(Clone, Debug)]
pub struct StopHandle(watch::Sender<Stop>);

impl Default for StopHandle {
    fn default() -> Self {
        Self(watch::Sender::new(Stop::No))
    }
}

impl StopHandle {
    /// Asks for `stop`; a less urgent wish than the one before changes nothing.
    pub fn ask(&self, stop: Stop) {
        self.0.send_if_modified(|current| {
            let more = stop > *current;
            *current = stop.max(*current);
            more
        });
    }

    /// The ear for it.
    #[must_use]
    pub fn listen(&self) -> StopListener {
        StopListener(self.0.subscribe())
    }
}

/// Hears when to stop.
#[derive(Clone, Debug)]
pub struct StopListener(watch::Receiver<Stop>);

impl StopListener {
    /// How urgent it is now.
    #[must_use]
    pub fn urgency(&self) -> Stop {
        *self.0.borrow()
    }

    /// Waits until it is at least as urgent as `stop`. A listener whose handle is gone waits for ever: nobody can ask.
    pub async fn reached(&mut self, stop: Stop) {
        if self.0.wait_for(|current| *current >= stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
