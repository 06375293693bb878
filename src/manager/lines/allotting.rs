//! Allotting places in a line: one write of its document for all jobs of a call.

use std::collections::HashMap;
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;
use tracing::debug;

use super::document::{Entry, Line, Wanted, record_key};
use crate::job::{Job, JobId, OrderingKey};
use crate::manager::Manager;
use crate::manager::announced::Evidence;
use crate::manager::request::ManagerError;
use crate::store::record::body;
use crate::store::{Record, RecordWrite, StoreError, Version, WriteError};

/// How often the document of a line is written for one call while others write it too. Each of them comes further with
/// that, and waits for its jobs before the next one does.
const TRIES: usize = 64;

/// How many lines are remembered at once, each with what was found out about its document.
pub(super) const MANY_LINES: usize = 10_000;

/// How many jobs that were not created in time are barred at once.
const AT_ONCE: usize = 64;

/// Places in a line that were allotted to jobs, one after another.
pub(in crate::manager) struct Places {
    key: OrderingKey,
    /// The place of the first of the jobs.
    pub(in crate::manager) first: u64,
    line: Line,
    version: Version,
}

impl Manager {
    /// Allots the next places in a line to these jobs, in their order. The jobs are to be written with these places
    /// after this call; for a return, the version of the job by which it goes must have been read before.
    pub(in crate::manager) async fn allot(
        &self,
        key: &OrderingKey,
        wanted: &[Wanted<'_>],
    ) -> Result<Places, ManagerError> {
        // Taken out, so that a call that goes away leaves no document that passes for settled.
        let mut known = self.shared.lines.settled.lock().remove(key);
        let mut record: Option<Record> = None;
        for _ in 0..TRIES {
            let (next, expected) = match (known.take(), &record) {
                (Some((version, next)), _) => (Some(next), Some(version)),
                // Most keys have no document: nothing is read then.
                (None, None) => (None, None),
                (None, Some(record)) => {
                    let line: Line = record.read()?;
                    self.settle_line(&line).await?;
                    (Some(line.next), Some(record.version))
                }
            };
            let line = Line::allot(next, wanted, self.shared.clock.now());
            let write = RecordWrite::put(record_key(key), body(&line)?, expected);
            match self.shared.store.write_record(write).await {
                Ok(version) => {
                    return Ok(Places { key: key.clone(), first: line.places().start, line, version });
                }
                Err(WriteError::Conflict(current)) => {
                    metrics::counter!("leasehold_conflicts_total", "operation" => "line").increment(1);
                    record = current;
                }
                Err(WriteError::Refused(error)) => return Err(ManagerError::Store(error)),
                Err(WriteError::Unknown(why)) => return Err(ManagerError::Unknown(why)),
            }
        }
        Err(ManagerError::Contended { tries: TRIES })
    }

    /// Takes note that each of the jobs was written with its place, or was refused. Where several places were allotted,
    /// the document is written once more, so that nobody has to look at all the jobs before one of them.
    pub(in crate::manager) async fn places_are_settled(&self, places: Places) {
        let Places { key, line, mut version, .. } = places;
        let (settled, now) = (line.settled(), line.places());
        if now.end - now.start > 1 {
            let written = match body(&settled) {
                Ok(body) => {
                    let write = RecordWrite::put(record_key(&key), body, Some(version));
                    self.shared.store.write_record(write).await
                }
                Err(error) => Err(WriteError::Refused(error)),
            };
            match written {
                Ok(later) => version = later,
                Err(error) => {
                    debug!(%error, %key, "the document of a line announces jobs that were created");
                    return;
                }
            }
        }
        remember(&mut self.shared.lines.settled.lock(), &key, (version, settled.next));
    }

    /// Sees to it that all places that a document announces are settled. The jobs have a while to be written.
    async fn settle_line(&self, line: &Line) -> Result<(), ManagerError> {
        let doubtful = self.doubtful(line, u64::MAX).await?;
        self.settle_entries(doubtful, Instant::now() + self.grace()).await
    }

    /// Returns the entries of a document with places before this one that are not settled.
    pub(super) async fn doubtful(&self, line: &Line, before: u64) -> Result<Vec<Entry>, StoreError> {
        let entries: Vec<Entry> = line.entries().take_while(|entry| entry.seq < before).collect();
        let ids: Vec<JobId> = entries.iter().map(|entry| entry.announced.job.clone()).collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let jobs: Vec<Option<Arc<Job>>> =
            self.shared.store.get(&ids).await?.into_iter().map(|found| found.map(|found| found.job)).collect();
        Ok(doubtful_of(entries, &jobs))
    }

    /// Waits until then for the writes that these entries announce, and sees to it that those which have not come never
    /// do.
    pub(super) async fn settle_entries(&self, doubtful: Vec<Entry>, until: Instant) -> Result<(), ManagerError> {
        let barred = stream::iter(doubtful)
            .map(|entry| async move { self.make_over(&entry.announced, |job| entry.is_made(job), until).await });
        barred.buffer_unordered(AT_ONCE).try_for_each(|_| async { Ok(()) }).await
    }
}

/// Remembers a value, and forgets all others when they are too many: what is forgotten is found out again.
pub(super) fn remember<T>(known: &mut HashMap<OrderingKey, T>, key: &OrderingKey, value: T) {
    if known.len() >= MANY_LINES {
        known.clear();
    }
    known.insert(key.clone(), value);
}

/// Returns those of the entries whose places are not settled, by their jobs as they are read in real time.
fn doubtful_of(entries: Vec<Entry>, jobs: &[Option<Arc<Job>>]) -> Vec<Entry> {
    let is_doubtful = |(entry, job): (&Entry, &Option<Arc<Job>>)| {
        let job = job.as_deref();
        !job.is_some_and(|job| entry.is_made(job)) && entry.announced.evidence(job) != Evidence::Over
    };
    let kept: Vec<bool> = entries.iter().zip(jobs).map(is_doubtful).collect();
    entries.into_iter().zip(kept).filter(|(_, is_kept)| *is_kept).map(|(entry, _)| entry).collect()
}
