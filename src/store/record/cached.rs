//! The records of one kind, kept in memory by a process that reads them often, and the one loop that changes a
//! record.
//!
//! Writes of this process take effect at once; writes of others are found by listing the records. A list may lag: a
//! record listed in an older version than the known one is ignored, and a known record that is not listed is kept for
//! as long as a list can lag.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::debug;

use super::{Record, RecordKey, RecordKind, RecordWrite};
use crate::job::{Json, RecordName};
use crate::store::{Refresh, Store, StoreError, Version, WriteError};

/// How far a list of records can lag behind acknowledged writes.
const LAG: Duration = Duration::from_secs(10);

/// How many times one change is tried while others change the same record.
const MAX_TRIES: usize = 10;

/// How many times a change is tried while its outcome stays unknown.
const MAX_UNKNOWN: usize = 3;

/// Why a record was not changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RecordError {
    /// Others kept writing the record.
    #[error("others kept writing it; {MAX_TRIES} tries were not enough")]
    Contended,
    /// The store refused the write or could not be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The record may have been written or not.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(String),
}

impl RecordError {
    /// How many times a change is tried before it fails with [`RecordError::Contended`].
    pub const TRIES: usize = MAX_TRIES;
}

/// A record's value after a change.
struct Changed<T> {
    /// The value; `None` when there is no such record.
    value: Option<T>,
    /// The version that holds the value, or that was removed; `None` when there was no record and none was to be
    /// written.
    version: Option<Version>,
    /// Whether this change wrote to the store.
    wrote: bool,
}

/// Changes the record `key` under its version to what `decide` returns for its current value, and returns the new
/// value. `None` stands for no record. Calls `decide` again after a conflict with another writer, and repeats a write
/// whose answer was lost.
///
/// # Errors
/// The errors of `decide`, [`RecordError`], and [`StoreError`] when the record cannot be read.
pub async fn change_record<T, E>(
    store: &dyn Store,
    key: &RecordKey,
    decide: impl FnMut(Option<&T>) -> Result<Option<T>, E> + Send,
) -> Result<Option<T>, E>
where
    T: Serialize + DeserializeOwned + PartialEq + Send + Sync,
    E: From<RecordError> + From<StoreError> + Send,
{
    Ok(change(store, key, decide).await?.value)
}

async fn change<T, E>(
    store: &dyn Store,
    key: &RecordKey,
    mut decide: impl FnMut(Option<&T>) -> Result<Option<T>, E> + Send,
) -> Result<Changed<T>, E>
where
    T: Serialize + DeserializeOwned + PartialEq + Send + Sync,
    E: From<RecordError> + From<StoreError> + Send,
{
    let mut record = store.record(key).await?;
    let mut unknown: Vec<String> = Vec::new();
    for _ in 0..MAX_TRIES {
        let before = record.as_ref().map(Record::read::<T>).transpose()?;
        let after = decide(before.as_ref())?;
        let write = match (&record, &after) {
            (None, None) => return Ok(Changed { value: None, version: None, wrote: false }),
            (Some(record), Some(_)) if after == before && unknown.is_empty() => {
                return Ok(Changed { value: after, version: Some(record.version), wrote: false });
            }
            (Some(record), None) => record.removal(),
            // Written again after an unknown outcome even if it reads so: what is read may not be acknowledged yet.
            (Some(record), Some(value)) => record.replaced_by(body(value)?),
            (None, Some(value)) => RecordWrite::Create { key: key.clone(), body: body(value)? },
        };
        match store.write_record(write).await {
            Ok(version) => return Ok(Changed { value: after, version: Some(version), wrote: true }),
            Err(WriteError::Conflict(current)) => {
                metrics::counter!("leasehold_conflicts_total", "operation" => key.kind.as_str()).increment(1);
                record = current;
            }
            Err(WriteError::Refused(error)) => return Err(error.into()),
            Err(WriteError::Unknown(why)) => {
                unknown.push(why);
                if unknown.len() >= MAX_UNKNOWN {
                    break;
                }
                record = store.record(key).await.map_err(|error| RecordError::Unknown(error.to_string()))?;
            }
        }
    }
    Err(unknown.pop().map_or(RecordError::Contended, RecordError::Unknown).into())
}

/// Writes a record's value as JSON.
///
/// # Errors
/// [`StoreError::Corrupt`] when the value has no form in JSON.
pub fn body<T: Serialize>(value: &T) -> Result<Json, StoreError> {
    Json::of(value).map_err(|error| StoreError::Corrupt(error.to_string()))
}

/// All records of one kind, in memory.
pub struct CachedRecords<T> {
    store: Arc<dyn Store>,
    kind: RecordKind,
    known: RwLock<Known<T>>,
}

impl<T: Serialize + DeserializeOwned + PartialEq + Send + Sync> CachedRecords<T> {
    /// Creates a cache that knows no record until the first [`CachedRecords::list`] or [`CachedRecords::change`].
    #[must_use]
    pub fn new(store: Arc<dyn Store>, kind: RecordKind) -> Self {
        Self { store, kind, known: RwLock::new(Known(BTreeMap::new())) }
    }

    /// Returns the value of one record, as far as it is known.
    #[must_use]
    pub fn get(&self, name: &RecordName) -> Option<Arc<T>> {
        self.known.read().0.get(name).and_then(|entry| entry.value.clone())
    }

    /// Returns all values in the order of their records' names.
    #[must_use]
    pub fn all(&self) -> Vec<(RecordName, Arc<T>)> {
        self.known.read().all()
    }

    /// Calls `publish` with all values. No cached record changes until it returns, so that of two changes the later one
    /// is published last.
    pub fn publish(&self, publish: impl FnOnce(Vec<(RecordName, Arc<T>)>)) {
        let known = self.known.write();
        publish(known.all());
    }

    /// Lists the records in the store and updates the cache with those that are newer there.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot list the records, or when one of them cannot be read.
    pub async fn list(&self) -> Result<(), StoreError> {
        let records = self.store.records(self.kind).await?;
        let read = |record: &Record| Ok((record.key.name.clone(), record.read()?, record.version));
        let listed = records.iter().map(read).collect::<Result<Vec<_>, StoreError>>()?;
        self.known.write().take_over(listed, Instant::now());
        Ok(())
    }

    /// Reads these records in real time and updates the cache.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot read the records, or when one of them cannot be read.
    pub async fn read(&self, names: &[RecordName]) -> Result<(), StoreError> {
        if names.is_empty() {
            return Ok(());
        }
        // What another task writes meanwhile is not taken for removed.
        let before: Vec<Option<Version>> = {
            let known = self.known.read();
            names.iter().map(|name| known.0.get(name).map(|entry| entry.version)).collect()
        };
        let keys: Vec<RecordKey> = names.iter().map(|name| RecordKey::new(self.kind, name.clone())).collect();
        let found = self.store.records_of(&keys).await?;
        let read = |record: Option<Record>| record.map(|record| Ok((Arc::new(record.read()?), record.version)));
        let found = found.into_iter().map(|record| read(record).transpose());
        let found = found.collect::<Result<Vec<_>, StoreError>>()?;
        let mut known = self.known.write();
        for ((name, before), found) in names.iter().zip(before).zip(found) {
            match found {
                Some((value, version)) => known.learn(name, Some(value), version),
                None => known.is_missing(name, before),
            }
        }
        Ok(())
    }

    /// Changes the record `name` as [`change_record`] does, and makes the change visible to the lists of others.
    ///
    /// # Errors
    /// The errors of [`change_record`].
    pub async fn change<E: From<RecordError> + From<StoreError> + Send>(
        &self,
        name: &RecordName,
        decide: impl FnMut(Option<&T>) -> Result<Option<T>, E> + Send,
    ) -> Result<Option<Arc<T>>, E> {
        let key = RecordKey::new(self.kind, name.clone());
        let changed = change(&*self.store, &key, decide).await?;
        let value = changed.value.map(Arc::new);
        match changed.version {
            Some(version) => self.known.write().learn(name, value.clone(), version),
            None => drop(self.known.write().0.remove(name)),
        }
        if changed.wrote
            && let Err(error) = self.store.refresh(Refresh::Records).await
        {
            debug!(%error, record = %key, "other servers learn of a changed record a little later");
        }
        Ok(value)
    }
}

/// The cached records of one kind, by name.
struct Known<T>(BTreeMap<RecordName, Entry<T>>);

struct Entry<T> {
    /// The record's value; `None` when the record is known to be removed.
    value: Option<Arc<T>>,
    version: Version,
    /// The time until which a list that lacks the record is taken to lag. Set only for a record that this process read
    /// in real time or wrote.
    certain_until: Option<Instant>,
}

impl<T> Known<T> {
    fn all(&self) -> Vec<(RecordName, Arc<T>)> {
        self.0.iter().filter_map(|(name, entry)| Some((name.clone(), entry.value.clone()?))).collect()
    }

    /// Stores a value that was read in real time or written, unless a later version is known.
    fn learn(&mut self, name: &RecordName, value: Option<Arc<T>>, version: Version) {
        if self.0.get(name).is_none_or(|known| !known.version.is_later_than(version)) {
            let certain_until = Some(Instant::now() + LAG);
            self.0.insert(name.clone(), Entry { value, version, certain_until });
        }
    }

    /// Takes note that a read in real time did not find a record, unless it was written since `before` was known of it.
    fn is_missing(&mut self, name: &RecordName, before: Option<Version>) {
        if let Some(known) = self.0.get_mut(name).filter(|known| Some(known.version) == before) {
            // A list under way may still show it.
            (known.value, known.certain_until) = (None, Some(Instant::now() + LAG));
        }
    }

    /// Updates the cache from a list, except where the list lags.
    fn take_over(&mut self, listed: Vec<(RecordName, T, Version)>, now: Instant) {
        let shown: HashSet<&RecordName> = listed.iter().map(|(name, ..)| name).collect();
        self.0.retain(|name, known| shown.contains(name) || known.certain_until.is_some_and(|until| now < until));
        for (name, value, version) in listed {
            if self.0.get(&name).is_none_or(|known| version.is_later_than(known.version)) {
                self.0.insert(name, Entry { value: Some(Arc::new(value)), version, certain_until: None });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Place;

    fn name(name: &str) -> RecordName {
        RecordName::new(name).expect("a name")
    }

    fn version(seq_no: u64) -> Version {
        Version { place: Place::Main, primary_term: 1, seq_no }
    }

    fn known() -> Known<u32> {
        Known(BTreeMap::new())
    }

    fn values(known: &Known<u32>) -> Vec<(String, u32)> {
        known.all().into_iter().map(|(name, value)| (name.to_string(), *value)).collect()
    }

    #[test]
    fn a_list_that_is_behind_changes_nothing_that_was_learnt_since() {
        let mut known = known();
        known.learn(&name("new"), Some(Arc::new(1)), version(7));
        known.learn(&name("removed"), None, version(8));
        known.take_over(vec![(name("removed"), 2, version(8))], Instant::now());
        assert_eq!(values(&known), [("new".to_owned(), 1)]);
    }

    #[test]
    fn what_a_read_does_not_find_is_removed_unless_it_was_written_since() {
        let mut known = known();
        known.learn(&name("a"), Some(Arc::new(1)), version(7));
        known.is_missing(&name("a"), Some(version(6)));
        assert_eq!(values(&known), [("a".to_owned(), 1)]);
        known.is_missing(&name("a"), Some(version(7)));
        assert!(values(&known).is_empty());
        known.take_over(vec![(name("a"), 1, version(7))], Instant::now());
        assert!(values(&known).is_empty(), "a list that lags does not bring it back");
        known.take_over(vec![(name("a"), 2, version(8))], Instant::now());
        assert_eq!(values(&known), [("a".to_owned(), 2)]);
    }

    #[test]
    fn what_others_write_and_remove_is_taken_over() {
        let mut known = known();
        known.take_over(vec![(name("a"), 1, version(1))], Instant::now());
        assert_eq!(values(&known), [("a".to_owned(), 1)]);
        known.take_over(vec![(name("a"), 2, version(2))], Instant::now());
        assert_eq!(values(&known), [("a".to_owned(), 2)]);
        known.take_over(Vec::new(), Instant::now());
        assert!(values(&known).is_empty());
    }

    #[test]
    fn what_was_learnt_is_dropped_when_no_list_shows_it_for_longer_than_one_can_be_behind() {
        let mut known = known();
        known.learn(&name("a"), Some(Arc::new(1)), version(1));
        known.take_over(Vec::new(), Instant::now() + LAG);
        assert!(known.0.is_empty());
    }
}
