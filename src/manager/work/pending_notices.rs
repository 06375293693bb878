//! The jobs that this manager has written and of which somebody is yet to be told: a hint to whoever does, so that no
//! search is needed to find them. What is forgotten here is found by one.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::job::{Job, JobId};

use crate::manager::Manager;

/// How many are remembered; those beyond are left to the search.
const MAX_REMEMBERED: usize = 10_000;
/// How many are given at a time.
const BATCH: usize = 500;

/// See the module.
#[derive(Default)]
pub(crate) struct PendingNotices {
    ids: Mutex<VecDeque<JobId>>,
    came: Notify,
}

impl PendingNotices {
    /// Remembers the job if there is something to be told of it.
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
    /// Waits until there are jobs of which somebody is yet to be told, and gives some of them, each for one caller.
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
