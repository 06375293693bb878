//! The audit: a permanent copy of the jobs' histories.
//!
//! A job's history is part of the job: it is written with it and removed with it. The audit ([`crate::store::audit`])
//! keeps a copy of every entry for longer. No request waits for it: the entries are read from histories that are
//! already written.
//!
//! A pass reads all jobs written since the last pass began, less [`LATENESS`] and the clocks' skew, in the order of
//! their last writes: a job that is written meanwhile moves ahead and is found again. It copies each job's entries
//! since then, in pages. Its position is a record in the store, written after the pages that it covers. So the
//! successor of a monitor that died copies some entries again, under the same ids, and leaves none out. Without a
//! position, every history is copied.
//!
//! The audit can miss entries in the middle of a history of more than fifty that were folded away before a pass, and
//! jobs that were removed before one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::pages::{MayAct, Pages};
use super::report::Report;
use crate::clock::Timestamp;
use crate::job::{Job, JobId, RecordName};
use crate::manager::audit_entry;
use crate::query::{Filter, SortField};
use crate::store::record::body;
use crate::store::{
    AuditEntry, Record, RecordKey, RecordKind, RecordWrite, Refresh, Store, StoreError, Version, WriteError,
};

/// The name of the record that holds the position.
const NAME: &str = "audit";
/// The longest time between a write's own timestamp and the search that can find it: a write and a refresh.
const LATENESS: Duration = Duration::from_secs(30);
/// The most pages that one run reads.
const MAX_PAGES: usize = 50;

/// The position that the audit has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    /// Entries from before this time are in the audit.
    since: Timestamp,
    /// The pass that is under way, if any.
    pass: Option<Pass>,
}

/// A pass over the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pass {
    /// When the pass began.
    began: Timestamp,
    /// Jobs that were last written before this time have been read.
    reached: Timestamp,
}

impl Position {
    /// The position of an empty audit.
    const NONE: Self = Self { since: Timestamp::MIN, pass: None };
}

/// Copies the jobs' histories to the audit.
pub struct Auditor {
    store: Arc<dyn Store>,
    /// The longest time after an entry's timestamp at which it may be found for the first time.
    lateness: Duration,
    /// Whether the next run forgets the position.
    anew: AtomicBool,
    /// The number and time of the last entry that was copied of each job, as far as the next pass finds it again: it is
    /// not copied twice.
    handed_over: Mutex<HashMap<JobId, (u32, Timestamp)>>,
}

impl Auditor {
    /// Creates an auditor for a store whose writers' clocks differ by no more than `skew`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, skew: Duration) -> Self {
        Self { store, lateness: LATENESS + skew, anew: AtomicBool::new(false), handed_over: Mutex::default() }
    }

    /// Returns the auditor; if `anew` is set, its first run copies every history again.
    #[must_use]
    pub fn beginning(mut self, anew: bool) -> Self {
        self.anew = AtomicBool::new(anew);
        self
    }

    /// Deletes the position, so that the next run copies every history.
    async fn forget(&self) -> Result<(), StoreError> {
        let Some(record) = self.store.record(&Self::key()).await? else { return Ok(()) };
        match self.store.write_record(record.removal()).await {
            Ok(_) | Err(WriteError::Conflict(None)) => Ok(()),
            other => other.map(drop).map_err(refused),
        }
    }

    /// Copies the transitions up to `now` that are not in the audit yet, as long as `may_act` allows it and up to the
    /// limit of one run.
    ///
    /// # Errors
    /// Returns the store's error. What was copied before the error is in the audit.
    pub async fn run(&self, now: Timestamp, may_act: MayAct<'_>) -> Result<Report, StoreError> {
        if self.anew.load(Ordering::Relaxed) {
            self.forget().await?;
            self.anew.store(false, Ordering::Relaxed);
        }
        let (mut position, mut version) = self.position().await?;
        let mut pass = position.pass.unwrap_or(Pass { began: now, reached: position.since });
        let filter = Filter { updated_after: Some(just_before(pass.reached)), ..Filter::default() };
        // What was acknowledged before this moment must be found.
        self.store.refresh(Refresh::Jobs(&filter)).await?;
        let mut pages = Pages::of(filter, SortField::UpdatedAt, MAX_PAGES);
        let mut report = Report { unfinished: true, ..Report::default() };
        while let Some(search) = pages.next() {
            let page = self.store.search(search).await?;
            if !may_act() {
                return Ok(report);
            }
            pages.passed(&page);
            report.looked_at += page.len();
            // The next pass begins here.
            let next = pass.began.minus(self.lateness).max(position.since);
            report.audited += self.hand_over(page.iter().map(|found| &*found.job), position.since, next).await?;
            match page.last().filter(|_| pages.rest().is_some()) {
                Some(last) => {
                    pass.reached = last.job.updated_at;
                    position.pass = Some(pass);
                }
                None => {
                    position = Position { since: next, pass: None };
                    self.handed_over.lock().retain(|_, (_, at)| *at >= next);
                    report.unfinished = false;
                }
            }
            version = self.reach(position, version).await?;
        }
        Ok(report)
    }

    /// Copies the entries of these jobs from `since` on that are not in the audit, and returns their number. Remembers
    /// the entries from `next` on, which the next pass finds again.
    async fn hand_over(
        &self,
        jobs: impl Iterator<Item = &Job>,
        since: Timestamp,
        next: Timestamp,
    ) -> Result<usize, StoreError> {
        let mut entries: Vec<AuditEntry> = Vec::new();
        let mut handed_over = Vec::new();
        for job in jobs.filter(|job| !job.spec.queue.is_internal()) {
            // A later entry of a smaller number is that of another job, submitted under the id of one that is gone.
            let before = self.handed_over.lock().get(&job.id).copied();
            let is_new = |number: u32, at: Timestamp| before.is_none_or(|(last, then)| number > last || at > then);
            let new = job.history.numbered().filter(|(number, entry)| is_new(*number, entry.at) && entry.at >= since);
            let count = entries.len();
            entries.extend(new.map(|(number, entry)| audit_entry::entry(job, number, entry)));
            if entries.len() > count
                && let Some((number, last)) = job.history.numbered().next_back().filter(|(_, last)| last.at >= next)
            {
                handed_over.push((job.id.clone(), (number, last.at)));
            }
        }
        self.store.append_audit(&entries).await?;
        metrics::counter!("leasehold_audit_entries_total").increment(entries.len() as u64);
        self.handed_over.lock().extend(handed_over);
        Ok(entries.len())
    }

    fn key() -> RecordKey {
        RecordKey::new(RecordKind::Setting, RecordName::system(NAME))
    }

    async fn position(&self) -> Result<(Position, Option<Version>), StoreError> {
        match self.store.record(&Self::key()).await? {
            Some(record) => Ok((record.read()?, Some(record.version))),
            None => Ok((Position::NONE, None)),
        }
    }

    /// Writes the position to its record.
    async fn reach(&self, position: Position, version: Option<Version>) -> Result<Option<Version>, StoreError> {
        let write = RecordWrite::put(Self::key(), body(&position)?, version);
        self.store.write_record(write).await.map(Some).map_err(refused)
    }
}

fn refused(error: WriteError<Record>) -> StoreError {
    match error {
        // Another auditor was faster, or the audit was restarted: the next run reads the position again.
        WriteError::Conflict(_) => StoreError::Unavailable("somebody else keeps the audit at the same time".to_owned()),
        WriteError::Refused(error) => error,
        WriteError::Unknown(why) => StoreError::Unavailable(why),
    }
}

/// Returns the time just before `time`, since a search's lower bound excludes the time that it names.
fn just_before(time: Timestamp) -> Timestamp {
    time.minus(Duration::from_millis(1))
}
