//! The jobs that this manager wrote with notices in their outbox: a hint to the notifier, which would otherwise find
//! them by a search.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::job::{Job, JobId};

use crate::manager::Manager;

/// The most jobs that are remembered; the notifier's search finds the others.
const MAX_REMEMBERED: usize = 10_000;
/// The most jobs that one call returns.
const BATCH: usize = 500;

/// The ids of jobs with pending notices.
#[derive(Default)]
pub(crate) struct PendingNotices {
    ids: Mutex<VecDeque<JobId>>,
    came: Notify,
}

impl PendingNotices {
    /// Remembers the job if it has notices in its outbox.
    pub(crate) fn note(&self, job: &Job) {
        if job.outbox.is_empty() {
            return;
        }
        let mut ids = self.ids.lock();
        if ids.len() < MAX_REMEMBERED {
            ids.push_back(job.id.clone());
            self.came.notify_one();
        }
    }
}

impl Manager {
    /// Waits until there are jobs with notices in their outbox, and returns up to 500 of them, each to one caller.
    pub async fn pending_notices(&self) -> Vec<JobId> {
        let pending = &self.shared.work.pending_notices;
        loop {
            let came = pending.came.notified();
            {
                let mut ids = pending.ids.lock();
                let some = ids.len().min(BATCH);
                if some > 0 {
                    return ids.drain(..some).collect();
                }
            }
            came.await;
        }
    }
}
