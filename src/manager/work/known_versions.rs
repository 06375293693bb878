//! What the manager remembers of its own writes.
//!
//! A search engine's search lags behind what was acknowledged, so a hit may show a job as it was before a write that
//! this manager knows of. It remembers the latest versions it has written or read, drops hits that are older, and
//! spares itself a read before it writes a job again. A memory, not a truth: every decision made on it is checked by
//! the conditional write, and every refusal is decided again on a fresh read.

use parking_lot::Mutex;

use crate::job::JobId;
use crate::store::Versioned;
use crate::store::recent::RecentMap;

/// How many jobs are remembered at least.
const REMEMBERED: usize = 50_000;

/// The latest versions known of the jobs written or read lately.
pub(crate) struct KnownVersions {
    /// None where the store answers as fast from its own memory.
    recent: Option<Mutex<RecentMap<JobId, Versioned, REMEMBERED>>>,
}

impl KnownVersions {
    /// A memory that stays empty unless it is `useful`.
    pub(crate) fn new(useful: bool) -> Self {
        Self { recent: useful.then(Mutex::default) }
    }

    /// Remembers a version, unless a later one is known. Of two in different places the last one learnt is
    /// remembered.
    pub(crate) fn learn(&self, versioned: &Versioned) {
        let Some(recent) = &self.recent else { return };
        let mut recent = recent.lock();
        let is_news = recent
            .get(&versioned.job.id)
            .is_none_or(|known| known.version != versioned.version && !known.version.is_later_than(versioned.version));
        if is_news {
            recent.insert(versioned.job.id.clone(), versioned.clone());
        }
    }

    /// The latest version known.
    pub(crate) fn latest(&self, id: &JobId) -> Option<Versioned> {
        self.recent.as_ref()?.lock().get(id).cloned()
    }

    /// Whether a later version than this is known.
    pub(crate) fn is_outdated(&self, found: &Versioned) -> bool {
        let Some(recent) = &self.recent else { return false };
        recent.lock().get(&found.job.id).is_some_and(|known| known.version.is_later_than(found.version))
    }

    /// Forgets a job, so that it is read again.
    pub(crate) fn forget(&self, id: &JobId) {
        if let Some(recent) = &self.recent {
            recent.lock().remove(id);
        }
    }
}
