//! The scrub: all documents at rest are read from time to time, slowly, to see that the database can still read them
//! and that they are documents.
//!
//! Each slice is read from a snapshot of its own, so that no version of a document is kept for the scrub. So it adds
//! nothing up: `leasehold verify` compares the documents at rest with the sum that is kept. Only where that is not
//! known, since an earlier version has written the directory, all documents are counted once from one snapshot. Neither
//! ever replaces a sum that is known.
//!
//! The database has no way to read past its cache: a slice is small against that.

use std::ops::Bound;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fjall::{Readable, Snapshot};

use super::super::disk::Disk;
use super::super::engine::Engine;
use super::super::exits::FailOnExit;
use super::super::options::Pace;
use super::super::periodic::Periodic;
use super::super::state::View;
use super::sum::Sum;

/// The time between two slices.
const PERIOD: Duration = Duration::from_secs(1);

/// The pause after something that cannot be read.
const PAUSE: Duration = Duration::from_secs(60);

/// The share of the time between two scrubs after which the first one begins.
const FIRST_AFTER: u32 = 24;

/// Starts the thread that reads the documents, which ends by itself when the engine is gone.
pub(crate) fn start(engine: Weak<Engine>, pace: Pace, guard: FailOnExit) -> std::io::Result<Periodic> {
    let mut scrub = Scrub::of(pace, Instant::now());
    Periodic::start("store-scrub", PERIOD.min(pace.every), guard, move || {
        let Some(engine) = engine.upgrade() else { return false };
        scrub.go_on(&engine, Instant::now());
        true
    })
}

/// The documents at rest, read slice by slice.
pub(crate) struct Scrub {
    every: Duration,
    slice_bytes: usize,
    count_bytes: usize,
    place: Place,
    has_failed: bool,
    next: Instant,
    count: Option<Count>,
    next_count: Instant,
}

impl Scrub {
    pub(crate) fn of(pace: Pace, now: Instant) -> Self {
        let a_second = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            every: pace.every,
            slice_bytes: a_second(pace.bytes_per_second),
            count_bytes: a_second(pace.count_bytes_per_second),
            place: Place::default(),
            has_failed: false,
            next: now + pace.every / FIRST_AFTER,
            count: None,
            next_count: now,
        }
    }

    /// Reads the next slice, if it is time for one.
    pub(crate) fn go_on(&mut self, engine: &Engine, now: Instant) {
        if now >= self.next_count && self.count.is_none() && engine.summed.documents().is_none() {
            self.count = Some(Count::of(engine.published.read().view.clone()));
        }
        if let Some(count) = &mut self.count {
            match count.read(&engine.disk, self.count_bytes) {
                Ok(false) => {}
                Ok(true) => {
                    engine.has_counted(count);
                    self.count = None;
                }
                Err(why) => {
                    (self.count, self.next_count) = (None, now + self.every);
                    self.has_failed = true;
                    engine.set_unreadable_at_rest(true);
                    tracing::error!(%why, "the documents at rest cannot be counted; see `leasehold verify --help`");
                }
            }
            return;
        }
        if now < self.next {
            return;
        }
        let read = self.place.read(&engine.disk, &engine.disk.snapshot(), self.slice_bytes, |_| ());
        if let Err(why) = &read {
            engine.set_unreadable_at_rest(true);
            self.next = now + PAUSE.min(self.every);
            if !std::mem::replace(&mut self.has_failed, true) {
                tracing::error!(%why, "the documents at rest cannot all be read; see `leasehold verify --help`");
            }
        }
        if read.is_ok_and(|is_all| is_all) {
            let outcome = if self.has_failed { "unreadable" } else { "read" };
            metrics::counter!("leasehold_store_scrubs_total", "outcome" => outcome).increment(1);
            engine.set_unreadable_at_rest(self.has_failed);
            (self.place, self.has_failed, self.next) = (Place::default(), false, now + self.every);
        }
    }
}

#[cfg(test)]
impl Scrub {
    /// Returns the key behind which it goes on.
    pub(crate) fn after(&self) -> Option<&[u8]> {
        self.place.after.as_deref()
    }
}

impl Engine {
    fn set_unreadable_at_rest(&self, is_unreadable: bool) {
        self.is_unreadable_at_rest.store(is_unreadable, Ordering::Relaxed);
        metrics::gauge!("leasehold_store_unreadable_at_rest").set(f64::from(u8::from(is_unreadable)));
    }

    fn has_counted(&self, Count { view, sum, .. }: &Count) {
        self.summed.count(*sum, view.moved);
        metrics::counter!("leasehold_store_scrubs_total", "outcome" => "counted").increment(1);
        tracing::info!("the documents at rest were counted: their sum is known from now on");
        if let Some(exchange) = &self.exchange {
            exchange.equality.lock().has_counted();
            self.noted.store(0, Ordering::Relaxed);
        }
    }
}

/// The sum over the documents of a database as of a flush.
pub(crate) struct Count {
    view: View,
    place: Place,
    sum: Sum,
}

impl Count {
    pub(crate) fn of(view: View) -> Self {
        Self { view, place: Place::default(), sum: Sum::default() }
    }

    /// Reads about so many bytes, at least one document. Returns whether that was all.
    ///
    /// # Errors
    /// What cannot be read.
    pub(crate) fn read(&mut self, disk: &Disk, bytes: usize) -> Result<bool, String> {
        self.place.read(disk, &self.view.snapshot, bytes, |sum| self.sum += sum)
    }

    /// Returns the sum over what was read.
    #[cfg(test)]
    pub(crate) fn sum(&self) -> Sum {
        self.sum
    }
}

/// How far the documents were read.
#[derive(Default)]
struct Place {
    keyspace: usize,
    after: Option<Vec<u8>>,
}

impl Place {
    /// Reads about so many bytes, at least one document, and gives the hash of each to `add`. Returns whether that was
    /// all.
    ///
    /// # Errors
    /// What cannot be read. The place is behind it then: behind the document that cannot be decoded, or behind
    /// the keyspace in which the database can read no further.
    fn read(
        &mut self,
        disk: &Disk,
        snapshot: &Snapshot,
        bytes: usize,
        mut add: impl FnMut(Sum),
    ) -> Result<bool, String> {
        let Disk { live, done, bodies, records, schedules, .. } = disk;
        let all = [("live", live), ("done", done), ("bodies", bodies), ("records", records), ("schedules", schedules)];
        let mut left = bytes;
        while let Some((name, keyspace)) = all.get(self.keyspace) {
            let first = self.after.take().map_or(Bound::Unbounded, Bound::Excluded);
            for entry in snapshot.range::<Vec<u8>, _>(keyspace, (first, Bound::Unbounded)) {
                let (key, value) = entry.into_inner().map_err(|error| {
                    self.keyspace += 1;
                    format!("`{name}`: {error}")
                })?;
                let sum = Sum::of_stored(name, &key, &value).map_err(|error| {
                    self.after = Some(key.to_vec());
                    format!("`{}` of `{name}`: {}", key.escape_ascii(), error.0)
                })?;
                add(sum.unwrap_or_default());
                left = left.saturating_sub(key.len() + value.len());
                if left == 0 {
                    self.after = Some(key.to_vec());
                    return Ok(false);
                }
            }
            self.keyspace += 1;
        }
        Ok(true)
    }
}
