//! A bounded map of the keys inserted last.
//!
//! A cache that admits or evicts by how often a key is read (S3-FIFO, TinyLFU) may drop a key inserted a moment ago.
//! The users of this map need the opposite promise: the last keys inserted are present, however often they are read.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// A map that holds at least the last `GENERATION` keys inserted, and at most twice as many.
///
/// The keys are kept in two generations; when the young one is full, it takes the place of the old one, which is
/// dropped.
#[derive(Debug)]
pub struct RecentMap<K, V, const GENERATION: usize> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V, const GENERATION: usize> Default for RecentMap<K, V, GENERATION> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<K: Eq + Hash, V, const GENERATION: usize> RecentMap<K, V, GENERATION> {
    /// Returns the value of `key`.
    #[must_use]
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// Returns a mutable reference to the value of `key`.
    pub fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.young.get_mut(key).or_else(|| self.old.get_mut(key))
    }

    /// Sets the value of `key`, which becomes the key inserted last.
    pub fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= GENERATION && !self.young.contains_key(&key) {
            // The room of the old one is used again.
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    /// Removes `key`, and returns its value.
    pub fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.young.remove(key).or_else(|| self.old.remove(key))
    }

    /// Removes the keys for which `keeps` returns `false`.
    pub fn retain(&mut self, mut keeps: impl FnMut(&K) -> bool) {
        self.young.retain(|key, _| keeps(key));
        self.old.retain(|key, _| keeps(key));
    }

    /// Returns an iterator over all keys and values, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.young.iter().chain(&self.old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_keys_are_there_and_their_number_is_bounded() {
        let mut recent: RecentMap<u32, u32, 10> = RecentMap::default();
        for key in 0..95 {
            recent.insert(key, 2 * key);
        }
        assert!((85..95).all(|key| recent.get(&key) == Some(&(2 * key))));
        assert!(recent.get(&0).is_none());
        assert!(recent.iter().count() <= 20);
    }

    #[test]
    fn a_key_that_is_inserted_again_stays_and_is_there_once() {
        let mut recent: RecentMap<u32, u32, 10> = RecentMap::default();
        for key in 0..95 {
            recent.insert(key, 0);
            recent.insert(1_000, key);
        }
        assert_eq!(recent.get(&1_000), Some(&94));
        assert_eq!(recent.iter().filter(|(key, _)| **key == 1_000).count(), 1);
        assert_eq!(recent.remove(&1_000), Some(94));
        assert!(recent.get(&1_000).is_none());
    }
}
