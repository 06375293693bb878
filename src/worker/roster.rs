//! The running attempts, for which heartbeats are sent and which can be ended early.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::handler::{Attempt, Ending};
use super::output::AttemptSink;
use super::service::ClaimedJob;
use crate::job::{Fence, JobId, Progress, WorkerId};
use crate::manager::Heartbeat;

/// Requests an attempt to end early, with a reason. The first reason stays, except that a lost lease replaces any
/// other, since the service then refuses every report of the attempt.
#[derive(Clone, Debug)]
pub(super) struct EndingHandle(watch::Sender<Option<Ending>>);

impl EndingHandle {
    pub(super) fn end(&self, ending: Ending) {
        self.0.send_if_modified(|current| {
            let counts = current.is_none() || (ending == Ending::LeaseLost && *current != Some(Ending::LeaseLost));
            if counts {
                *current = Some(ending);
            }
            counts
        });
    }

    pub(super) fn said(&self) -> Option<Ending> {
        *self.0.borrow()
    }

    pub(super) async fn wait(&self) {
        // The wait cannot fail, since this handle is a sender itself.
        let _ = self.0.subscribe().wait_for(Option::is_some).await;
    }
}

struct Entry {
    ending: EndingHandle,
    progress: Arc<Mutex<Option<Progress>>>,
}

/// The running attempts, by job and fence: a job that was lost and claimed again may run twice for a moment, while the
/// former attempt ends.
#[derive(Default)]
pub(super) struct Roster {
    entries: Mutex<HashMap<(JobId, Fence), Entry>>,
    /// The notification that an attempt was added.
    entered: Notify,
}

impl Roster {
    /// Adds a job that was just claimed, and returns its attempt and the handle to end it.
    pub(super) fn enter(
        &self,
        job: &ClaimedJob,
        worker_id: &WorkerId,
        output: Arc<dyn AttemptSink>,
    ) -> (Attempt, EndingHandle) {
        let sender = watch::Sender::new(None);
        let receiver = sender.subscribe();
        let ending = EndingHandle(sender);
        let progress = Arc::new(Mutex::new(None));
        let entry = Entry { ending: ending.clone(), progress: progress.clone() };
        self.entries.lock().insert((job.id.clone(), job.fence), entry);
        self.entered.notify_waiters();
        (Attempt::new(job.clone(), worker_id.clone(), receiver, progress, output), ending)
    }

    /// Removes an attempt whose end the service has recorded.
    pub(super) fn leave(&self, job: &ClaimedJob) {
        self.entries.lock().remove(&(job.id.clone(), job.fence));
    }

    /// Requests one attempt to end early, if it still runs.
    pub(super) fn end(&self, id: &JobId, fence: Fence, ending: Ending) {
        if let Some(entry) = self.entries.lock().get(&(id.clone(), fence)) {
            entry.ending.end(ending);
        }
    }

    /// Requests all attempts to end early.
    pub(super) fn end_all(&self, ending: Ending) {
        for entry in self.entries.lock().values() {
            entry.ending.end(ending);
        }
    }

    /// Waits until there are attempts that were not requested to end, and returns some of these, at most `most`.
    pub(super) async fn wait_for_running(&self, most: usize) -> Vec<(JobId, Fence)> {
        loop {
            let mut entered = std::pin::pin!(self.entered.notified());
            // Listening before looking, so that no attempt between the two is missed.
            entered.as_mut().enable();
            let running: Vec<(JobId, Fence)> = {
                let entries = self.entries.lock();
                let running = entries.iter().filter(|(_, entry)| entry.ending.said().is_none());
                running.map(|(lease, _)| lease.clone()).take(most).collect()
            };
            if !running.is_empty() {
                return running;
            }
            entered.await;
        }
    }

    /// Returns a heartbeat for each attempt.
    pub(super) fn heartbeats(&self) -> Vec<Heartbeat> {
        let entries = self.entries.lock();
        let beat = |((id, fence), entry): (&(JobId, Fence), &Entry)| Heartbeat {
            id: id.clone(),
            fence: *fence,
            progress: entry.progress.lock().clone(),
        };
        entries.iter().map(beat).collect()
    }
}
