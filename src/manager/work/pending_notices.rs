//! The jobs written here that have notices in their outbox: a hint to the notifier, which would otherwise find them
//! by a search.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::job::{Job, JobId};

use crate::manager::Manager;

/// The most jobs remembered; those beyond are left to the search.
const MAX_REMEMBERED: usize = 10_000;
/// The most jobs returned at a time.
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
