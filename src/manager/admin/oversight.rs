//! What a server knows of the monitor of its store that it does not run itself.

use parking_lot::Mutex;

use crate::clock::Timestamp;
use crate::manager::Manager;

/// Since when no monitor acts, as far as this process has seen; `None` while one does, or nobody looks.
#[derive(Default)]
pub(in crate::manager) struct MonitorSeen(Mutex<Option<Timestamp>>);

impl Manager {
    /// Notes whether a monitor acts on the store, for a process that runs none.
    pub fn monitor_acts(&self, acts: bool) {
        let mut gone_since = self.shared.monitor_seen.0.lock();
        match (acts, *gone_since) {
            (true, Some(_)) => tracing::info!("a monitor acts again"),
            (false, None) => tracing::warn!("no monitor acts: jobs of lost workers are not recovered"),
            _ => {}
        }
        *gone_since = if acts { None } else { Some(gone_since.unwrap_or_else(|| self.now())) };
        metrics::gauge!("leasehold_monitor_gone").set(if acts { 0.0 } else { 1.0 });
    }

    /// Returns that no monitor acts on the store, as a sentence, if this process runs none and sees none.
    #[must_use]
    pub fn monitor_is_gone(&self) -> Option<String> {
        let since = (*self.shared.monitor_seen.0.lock())?;
        Some(format!("no monitor acts on this store since {since}: jobs of lost workers are not recovered"))
    }
}
