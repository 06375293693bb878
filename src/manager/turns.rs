//! Turns of calls at the keys under which jobs become live here, each key with one call at a time. Calls would only
//! meet each other's conflicts otherwise: what holds for all managers of a store does not rest on this.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// From how many keys on those are forgotten at which no call has its turn.
const MANY_KEYS: usize = 1_024;

/// The keys of one kind at which calls have their turn, or wait for it.
pub(super) struct KeyTurns<K>(Mutex<HashMap<K, Weak<AsyncMutex<()>>>>);

impl<K> Default for KeyTurns<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// The turn of a call at some keys.
pub(super) struct Turns(#[expect(dead_code, reason = "they end when they are dropped")] Vec<OwnedMutexGuard<()>>);

impl<K: Clone + Eq + Hash> KeyTurns<K> {
    /// Returns by how many keys more are known than are forgotten with the next call.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.0.lock().len().saturating_sub(MANY_KEYS)
    }

    /// Waits for the turn at these keys, which are in ascending order, so that no two calls wait for each other.
    pub(super) async fn turns<'a>(&self, keys: impl IntoIterator<Item = &'a K>) -> Turns
    where
        K: 'a,
    {
        let locks: Vec<Arc<AsyncMutex<()>>> = {
            let mut known = self.0.lock();
            if known.len() >= MANY_KEYS {
                known.retain(|_, lock| lock.strong_count() > 0);
            }
            let mut lock_of = |key: &K| {
                let lock = known.get(key).and_then(Weak::upgrade).unwrap_or_default();
                known.insert(key.clone(), Arc::downgrade(&lock));
                lock
            };
            keys.into_iter().map(&mut lock_of).collect()
        };
        let mut turns = Vec::with_capacity(locks.len());
        for lock in locks {
            turns.push(lock.lock_owned().await);
        }
        Turns(turns)
    }
}
