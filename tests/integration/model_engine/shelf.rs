//! Documents of one kind, each under a version, and what searches show of them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use leasehold::store::{Place, Version};
use tokio::time::Instant;

/// A document and its version; `None` where there is none.
type Kept<D> = Option<(D, Version)>;

/// What searches show in the place of a document that was written lately.
struct Former<D> {
    shown_until: Instant,
    kept: Kept<D>,
}

/// The documents by their keys.
pub(super) struct Shelf<K, D> {
    current: BTreeMap<K, (D, Version)>,
    /// The earlier states that are shown still, of each document the oldest first.
    former: BTreeMap<K, Vec<Former<D>>>,
}

impl<K, D> Default for Shelf<K, D> {
    fn default() -> Self {
        Self { current: BTreeMap::new(), former: BTreeMap::new() }
    }
}

/// Returns the version of a write, of which each has a number of its own.
pub(super) const fn version(number: u64) -> Version {
    Version { place: Place::Main, primary_term: 1, seq_no: number }
}

impl<K: Clone + Hash + Ord, D: Clone> Shelf<K, D> {
    pub(super) fn get(&self, key: &K) -> Kept<D> {
        self.current.get(key).cloned()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&K, &D)> {
        self.current.iter().map(|(key, (document, _))| (key, document))
    }

    /// Puts a document in the place of the one that is there, or takes that away. Searches show it only after `lag`,
    /// or a part of that: documents lie in parts of an index, each of which shows its changes at times of its own.
    pub(super) fn put(&mut self, key: &K, document: Option<D>, number: u64, lag: Duration) {
        let kept = match document {
            Some(document) => self.current.insert(key.clone(), (document, version(number))),
            None => self.current.remove(key),
        };
        let lag = lag * share(key) / SHARES;
        if !lag.is_zero() {
            let shown_until = Instant::now() + lag;
            self.former.entry(key.clone()).or_default().push(Former { shown_until, kept });
        }
    }

    /// Returns what searches show, by key.
    pub(super) fn shown(&mut self) -> Vec<(&K, &D, Version)> {
        let now = Instant::now();
        self.former.retain(|_, former| {
            former.retain(|former| former.shown_until > now);
            !former.is_empty()
        });
        let removed = self.former.keys().filter(|key| !self.current.contains_key(key));
        let mut keys: Vec<&K> = self.current.keys().chain(removed).collect();
        keys.sort_unstable();
        let show = |key| {
            let former = self.former.get(key).and_then(|former| former.first()).map(|former| former.kept.as_ref());
            let (document, version) = former.unwrap_or_else(|| self.current.get(key))?;
            Some((key, document, *version))
        };
        keys.into_iter().filter_map(show).collect()
    }

    /// Shows everything.
    pub(super) fn refresh(&mut self) {
        self.former.clear();
    }
}

/// The number of parts of an index.
const SHARES: u32 = 4;

/// Returns which part of the lag passes until a document is shown: the same for each of its writes.
fn share(key: &impl Hash) -> u32 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    1 + (hasher.finish() % u64::from(SHARES)) as u32
}
