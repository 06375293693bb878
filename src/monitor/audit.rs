//! The audit: what the jobs' histories say, kept for good.
//!
//! A job's history is part of the job: it is written with it and removed with it. Who wants to know for longer has it
//! copied, entry by entry, into the store's audit ([`crate::store::audit`]). Nothing waits for that: the entries are read
//! out of histories that are written already.
//!
//! A pass looks at all jobs written since the last pass began, less [`LATENESS`] and the clocks' skew, in the order of
//! their last writes: one that is written meanwhile moves ahead and is found again. Of each it hands over the entries
//! since then, in pages. How far it is, is a record in the store, written after the pages it covers; so that a monitor
//! that dies is followed by one that hands over some entries again, under the same ids, and leaves none out. With no
//! record, all histories there are are handed over.
//!
//! What can be missing: entries in the middle of a history of more than fifty that were folded away before a pass came by,
//! and jobs that were removed before one did.

mod ecs;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::scan::PAGE;
use crate::clock::{Timestamp, rfc3339};
use crate::job::{Job, JobId, Json, RecordName};
use crate::query::{Direction, Filter, Search, Sort, SortField};
use crate::store::{AuditEntry, Record, RecordKey, RecordKind, RecordWrite, Store, StoreError, Version, WriteError};

/// The record's name.
const NAME: &str = "audit";
/// How much later than its own time says a write can be found: what a write takes, and a refresh.
const LATENESS: Duration = Duration::from_secs(30);
/// How many pages a run looks through.
const MAX_PAGES: usize = 50;

/// Earliest first.
const ORDER: Sort = Sort::By(SortField::UpdatedAt, Direction::Ascending);

/// How far the audit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Progress {
    /// Entries from before this time are there.
    #[serde(with = "rfc3339")]
    since: Timestamp,
    /// The pass that is under way, where there is one.
    pass: Option<Pass>,
}

/// A pass over the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pass {
    /// When it began.
    #[serde(with = "rfc3339")]
    began: Timestamp,
    /// Jobs last written before this time have been looked at.
    #[serde(with = "rfc3339")]
    reached: Timestamp,
}

impl Progress {
    /// Nothing is there.
    const NONE: Self = Self { since: Timestamp::MIN, pass: None };
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audited {
    /// How many jobs were looked at.
    pub jobs: usize,
    /// How many entries were handed over.
    pub entries: usize,
    /// Whether there is more than one run looks at.
    pub unfinished: bool,
}

/// Keeps the audit.
pub struct Auditor {
    store: Arc<dyn Store>,
    /// How long after its time an entry may be found for the first time.
    lateness: Duration,
    /// Whether the next run is to begin once more.
    anew: AtomicBool,
    /// The last entry that was handed over of each job that had one lately, so that what the next pass finds again is not
    /// handed over again.
    told: Mutex<HashMap<JobId, (u32, Timestamp)>>,
}

impl Auditor {
    /// One for a store whose writers' clocks are apart by no more than `skew`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, skew: Duration) -> Self {
        Self { store, lateness: LATENESS + skew, anew: AtomicBool::new(false), told: Mutex::default() }
    }

    /// The same, which begins once more with all the histories there are, if `anew`.
    #[must_use]
    pub fn beginning(mut self, anew: bool) -> Self {
        self.anew = AtomicBool::new(anew);
        self
    }

    /// Forgets how far the audit is.
    async fn forget(&self) -> Result<(), StoreError> {
        let Some(record) = self.store.record(&Self::key()).await? else { return Ok(()) };
        match self.store.write_record(record.removal()).await {
            Ok(_) | Err(WriteError::Conflict(None)) => Ok(()),
            other => other.map(drop).map_err(refused),
        }
    }

    /// Hands over what has happened by `now`, for as long as it may act, or as much of it as a run looks at.
    ///
    /// # Errors
    /// The store's. What was handed over until then is there.
    pub async fn run(&self, now: Timestamp, may_act: &(dyn Fn() -> bool + Send + Sync)) -> Result<Audited, StoreError> {
        if self.anew.load(Ordering::Relaxed) {
            self.forget().await?;
            self.anew.store(false, Ordering::Relaxed);
        }
        let (mut progress, mut version) = self.progress().await?;
        // What was acknowledged before this moment must be found.
        self.store.refresh().await?;
        let mut pass = progress.pass.unwrap_or(Pass { began: now, reached: progress.since });
        let filter = Filter { updated_after: Some(just_before(pass.reached)), ..Filter::default() };
        let mut search = Search { filter, sort: ORDER, after: None, limit: PAGE };
        let mut audited = Audited::default();
        for _ in 0..MAX_PAGES {
            let page = self.store.search(&search).await?;
            if !may_act() {
                audited.unfinished = true;
                return Ok(audited);
            }
            audited.jobs += page.len();
            // The next pass begins here.
            let next = pass.began.minus(self.lateness).max(progress.since);
            audited.entries += self.hand_over(page.iter().map(|found| &*found.job), progress.since, next).await?;
            let Some(last) = page.last().filter(|_| page.len() == PAGE) else {
                progress = Progress { since: next, pass: None };
                self.told.lock().retain(|_, (_, at)| *at >= progress.since);
                self.reach(progress, version).await?;
                return Ok(audited);
            };
            pass.reached = last.job.updated_at;
            search.after = Some(ORDER.key(&last.job));
            progress.pass = Some(pass);
            version = self.reach(progress, version).await?;
        }
        audited.unfinished = true;
        Ok(audited)
    }

    /// Hands over the entries of these jobs from `since` on that have not been; gives their number. Remembers those that are
    /// found again from `next` on.
    async fn hand_over(
        &self,
        jobs: impl Iterator<Item = &Job>,
        since: Timestamp,
        next: Timestamp,
    ) -> Result<usize, StoreError> {
        let mut entries: Vec<AuditEntry> = Vec::new();
        let mut told = Vec::new();
        for job in jobs.filter(|job| !job.spec.queue.is_internal()) {
            let before = self.told.lock().get(&job.id).map_or(0, |(number, _)| *number);
            let new = job.history.numbered().filter(|(number, entry)| *number > before && entry.at >= since);
            let count = entries.len();
            entries.extend(new.map(|(number, entry)| ecs::entry(job, number, entry)));
            if entries.len() > count
                && let Some((number, last)) = job.history.numbered().next_back().filter(|(_, last)| last.at >= next)
            {
                told.push((job.id.clone(), (number, last.at)));
            }
        }
        self.store.append_audit(&entries).await?;
        metrics::counter!("leasehold_audit_entries_total").increment(entries.len() as u64);
        self.told.lock().extend(told);
        Ok(entries.len())
    }

    fn key() -> RecordKey {
        RecordKey::new(RecordKind::Setting, RecordName::system(NAME))
    }

    async fn progress(&self) -> Result<(Progress, Option<Version>), StoreError> {
        match self.store.record(&Self::key()).await? {
            Some(record) => Ok((record.read()?, Some(record.version))),
            None => Ok((Progress::NONE, None)),
        }
    }

    /// Writes down how far it is.
    async fn reach(&self, progress: Progress, version: Option<Version>) -> Result<Option<Version>, StoreError> {
        let body = serde_json::to_string(&progress).map_err(|error| StoreError::Corrupt(error.to_string()))?;
        let body = Json::parse(body).map_err(|error| StoreError::Corrupt(error.to_string()))?;
        let write = match version {
            Some(expected) => RecordWrite::Replace { key: Self::key(), body, expected },
            None => RecordWrite::Create { key: Self::key(), body },
        };
        self.store.write_record(write).await.map(Some).map_err(refused)
    }
}

fn refused(error: WriteError<Record>) -> StoreError {
    match error {
        // Another auditor was faster, or somebody had it begin anew: the next run goes by what is there.
        WriteError::Conflict(_) => StoreError::Unavailable("somebody else keeps the audit at the same time".to_owned()),
        WriteError::Refused(error) => error,
        WriteError::Unknown(why) => StoreError::Unavailable(why),
    }
}

/// A search's bound excludes the time it names.
fn just_before(time: Timestamp) -> Timestamp {
    time.minus(Duration::from_millis(1))
}
