//! Documents that this version cannot read, such as one that a later version wrote or that was changed by hand. Whoever
//! goes over many documents passes them over; they are counted, logged once each and shown in the server's health.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::documents::{Present, RawDocument, Stored};
use super::indices::Indices;
use crate::store::StoreError;

/// The most documents that are told apart.
const MAX_KNOWN: usize = 1_000;
/// How long after it was last met a document is still counted.
const LATELY: Duration = Duration::from_secs(600);

/// The documents that could not be read, by id, with the time at which each was last met.
#[derive(Debug, Default)]
pub(super) struct Unreadable(Mutex<HashMap<String, Instant>>);

impl Unreadable {
    /// Returns the job, as [`RawDocument::job`] does; `None` also when the document cannot be read.
    pub(super) fn job<'a>(
        &self,
        document: &RawDocument<'a>,
        indices: &Indices,
    ) -> Result<Option<Present<'a>>, StoreError> {
        self.passed_over(&document.id, document.job(indices))
    }

    /// Returns the job or tombstone, as [`RawDocument::stored`] does; `None` also when the document cannot be read.
    pub(super) fn stored<'a>(
        &self,
        document: &RawDocument<'a>,
        indices: &Indices,
    ) -> Result<Option<Stored<'a>>, StoreError> {
        self.passed_over(&document.id, document.stored(indices))
    }

    /// Returns what was read of the document `id`; for a document that cannot be read, `None`.
    ///
    /// # Errors
    /// Errors that are not the document's.
    pub(super) fn passed_over<T>(
        &self,
        id: &str,
        read: Result<Option<T>, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        match read {
            Err(StoreError::Corrupt(why) | StoreError::Unreadable { why, .. }) => {
                self.note(id, &why, Instant::now());
                Ok(None)
            }
            other => other,
        }
    }

    fn note(&self, id: &str, why: &str, now: Instant) {
        metrics::counter!("leasehold_store_unreadable_total").increment(1);
        let mut known = self.0.lock();
        if let Some(met) = known.get_mut(id) {
            *met = now;
            return;
        }
        if known.len() >= MAX_KNOWN {
            known.retain(|_, met| now.duration_since(*met) < LATELY);
        }
        if known.len() < MAX_KNOWN {
            known.insert(id.to_owned(), now);
            tracing::error!(id, why, "a document of the store cannot be read; it is passed over");
        }
    }

    /// Returns how many documents could not be read lately, at most [`MAX_KNOWN`].
    pub(super) fn lately(&self) -> usize {
        self.known_at(Instant::now())
    }

    fn known_at(&self, now: Instant) -> usize {
        self.0.lock().values().filter(|met| now.duration_since(**met) < LATELY).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_counts_once_and_no_longer_when_it_has_not_been_met_for_some_time() {
        let (unreadable, now) = (Unreadable::default(), Instant::now());
        for id in ["a", "b", "a"] {
            unreadable.note(id, "no", now);
        }
        assert_eq!(unreadable.known_at(now), 2);
        unreadable.note("b", "no", now + LATELY / 2);
        assert_eq!(unreadable.known_at(now + LATELY), 1);
    }

    #[test]
    fn what_is_told_apart_is_bounded_and_other_errors_are_passed_on() {
        let unreadable = Unreadable::default();
        for number in 0..2 * MAX_KNOWN {
            let id = number.to_string();
            let read = Err::<Option<u32>, _>(StoreError::Unreadable { what: id.clone(), why: "no".to_owned() });
            assert!(matches!(unreadable.passed_over(&id, read), Ok(None)));
        }
        assert_eq!(unreadable.lately(), MAX_KNOWN);
        let read = Err::<Option<u32>, _>(StoreError::Unavailable("away".to_owned()));
        assert!(unreadable.passed_over("a", read).is_err());
        assert!(matches!(unreadable.passed_over("a", Ok(Some(1))), Ok(Some(1))));
    }
}
