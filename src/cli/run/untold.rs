//! What was not told yet: the jobs that have ended and whose output was not passed on.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::capture::{Loss, Outputs, Ran};

/// The last attempts of these jobs, by the jobs' places in the list.
#[derive(Debug)]
pub(super) struct Untold {
    outputs: Arc<Outputs>,
    jobs: Mutex<BTreeMap<usize, Ran>>,
}

impl Untold {
    /// Makes a list of jobs whose output was not shown, which has none yet.
    pub(super) fn new(outputs: Arc<Outputs>) -> Self {
        Self { outputs, jobs: Mutex::default() }
    }

    /// Adds a job that has ended.
    pub(super) fn add(&self, index: usize, ran: &Ran) {
        self.jobs.lock().insert(index, ran.clone());
    }

    /// Removes a job that was reported.
    pub(super) fn remove(&self, index: usize) {
        self.jobs.lock().remove(&index);
    }

    /// Returns what is missing when no more is shown: at most this, since a part may have been passed on.
    pub(super) fn losses(&self, error: &str) -> Vec<(usize, Loss)> {
        let jobs = self.jobs.lock();
        let files = jobs.iter().flat_map(|(index, ran)| {
            let files = self.outputs.whole(ran).into_iter();
            files.map(|(stream, file)| (*index, stream, file.metadata().map_or(0, |file| file.len())))
        });
        files.map(|(index, stream, bytes)| (index, Loss { stream, bytes, error: error.to_owned() })).collect()
    }
}
