//! What the manager remembers of its own writes.
//!
//! A search engine's search lags behind what was acknowledged, so a hit may show a job as it was before a write that
//! this manager knows of. It remembers the latest versions it has written or read, drops hits that are older, and
//! spares itself a read before it writes a job again. A memory, not a truth: every decision made on it is checked by
//! the conditional write, and every refusal is decided again on a fresh read.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::job::JobId;
use crate::store::Versioned;

/// How many jobs one generation holds. Two generations are kept.
const GENERATION: usize = 50_000;

/// The latest versions known of the jobs written or read lately. The oldest half is dropped when it grows too large.
pub(in crate::manager) struct Known {
    generations: Option<Mutex<Generations>>,
}

#[derive(Default)]
struct Generations {
    young: HashMap<JobId, Versioned>,
    old: HashMap<JobId, Versioned>,
}

impl Known {
    /// A memory; one that stays empty where the store answers as fast from its own.
    pub(in crate::manager) fn new(useful: bool) -> Self {
        Self { generations: useful.then(Mutex::default) }
    }

    /// Remembers a version, unless a later one is known. Of two in different places the one told last is remembered.
    pub(in crate::manager) fn learn(&self, versioned: &Versioned) {
        let Some(generations) = &self.generations else { return };
        let mut generations = generations.lock();
        if generations
            .latest(&versioned.job.id)
            .is_some_and(|known| known.version == versioned.version || known.version.is_later_than(versioned.version))
        {
            return;
        }
        if generations.young.len() >= GENERATION {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(versioned.job.id.clone(), versioned.clone());
    }

    /// The latest version known.
    pub(in crate::manager) fn latest(&self, id: &JobId) -> Option<Versioned> {
        self.generations.as_ref()?.lock().latest(id).cloned()
    }

    /// Whether a later version than this is known.
    pub(in crate::manager) fn is_outdated(&self, found: &Versioned) -> bool {
        let Some(generations) = &self.generations else { return false };
        generations.lock().latest(&found.job.id).is_some_and(|known| known.version.is_later_than(found.version))
    }

    /// Forgets a job, so that it is read again.
    pub(in crate::manager) fn forget(&self, id: &JobId) {
        if let Some(generations) = &self.generations {
            let mut generations = generations.lock();
            generations.young.remove(id);
            generations.old.remove(id);
        }
    }
}

impl Generations {
    fn latest(&self, id: &JobId) -> Option<&Versioned> {
        self.young.get(id).or_else(|| self.old.get(id))
    }
}
