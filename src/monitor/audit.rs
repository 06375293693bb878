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
//! A clock that was set back shows times once more that the position has passed. The pass after that begins before the
//! step, by the time that has really passed since the pass before, and leaves out what the audit has: entries between
//! the two positions. Those that follow leave out the jobs that were not written since. Where versions do not say that,
//! as on Elasticsearch, their entries come again, under the same ids.
//!
//! The audit can miss entries in the middle of a history of more than fifty that were folded away before a pass, and
//! jobs that were removed before one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::pages::{MayAct, Pages};
use super::report::Report;
use crate::clock::{FAR_AHEAD, Timestamp};
use crate::job::{Job, JobId, RecordName};
use crate::manager::audit_entry;
use crate::query::{Filter, SortField, SortKey};
use crate::store::record::body;
use crate::store::{
    AuditEntry, Record, RecordKey, RecordKind, RecordWrite, Refresh, Store, StoreError, Version, Versioned, WriteError,
};

/// The name of the record that holds the position.
const NAME: &str = "audit";
/// The longest time between a write's own timestamp and the search that can find it: a write and a refresh.
const LATENESS: Duration = Duration::from_secs(30);
/// How long before its first pass a process that finds the clock set back may have written jobs: it does not know when
/// the pass before was.
const UNSEEN: Duration = Duration::from_secs(60 * 60);
/// The most pages that one run reads, unless it is set otherwise.
const MAX_PAGES: usize = 50;

/// The position that the audit has reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    /// Entries from before this time are in the audit.
    since: Timestamp,
    /// The pass that is under way, if any.
    pass: Option<Pass>,
    /// What is in the audit although it is not from before `since`, after the clock was set back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ahead: Option<Ahead>,
}

/// What a clock has written that was set back since, and that is in the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Ahead {
    /// When it was found that the clock was set back. Entries from this time on that are in the audit were written
    /// before.
    from: Timestamp,
    /// Entries from before this time are in the audit, if they were written before the clock was set back.
    until: Timestamp,
    /// The times between these two are not copied all the same, where the clock was set back more than once: what it
    /// showed between the last pass and a later step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lacking: Option<(Timestamp, Timestamp)>,
    /// The number of a write of the store behind which everything was written after that: its term and its number,
    /// where all writes are numbered in one order.
    mark: Option<(u64, u64)>,
    /// Whether a pass has ended that began after the clock was set back: the audit has what is before the mark.
    is_through: bool,
}

/// A pass over the jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pass {
    /// When the pass began.
    began: Timestamp,
    /// Jobs that were last written before this time have been read.
    reached: Timestamp,
    /// The key of the last job that was read: more jobs than one run reads can be of one time. Earlier versions of the
    /// program go by the time alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<SortKey>,
}

impl Position {
    /// The position of an empty audit.
    const NONE: Self = Self { since: Timestamp::MIN, pass: None, ahead: None };

    /// Returns the position from which a pass goes on at `now`, when so much time has passed since the last one began;
    /// and whether that is another one, since the clock was set back.
    fn at(self, now: Timestamp, passed: Duration, lateness: Duration) -> (Self, bool) {
        let skew = lateness.saturating_sub(LATENESS);
        let began = self.pass.as_ref().map_or(self.since.plus(lateness), |pass| pass.began);
        // Another monitor's clock may be ahead.
        if self == Self::NONE || now.plus(skew).plus(lateness) >= began {
            return (self, false);
        }
        let since = now.minus(passed).minus(lateness).min(self.since);
        let until = self.ahead.map_or(self.since, |ahead| ahead.until.max(self.since));
        let lacking = self.ahead.map(|ahead| self.lacking_after(&ahead, passed, lateness));
        let ahead = Ahead { from: now, until, lacking, mark: None, is_through: false };
        (Self { since, pass: None, ahead: Some(ahead) }, true)
    }

    /// Returns the times whose entries the audit may lack when the clock is set back once more: those since the last
    /// pass, which lie before the end of what was copied before the first step, and those that no pass has made up for.
    fn lacking_after(&self, ahead: &Ahead, passed: Duration, lateness: Duration) -> (Timestamp, Timestamp) {
        // A pass that has not ended may have begun long before the last run.
        let to = match self.pass.is_none() && ahead.is_through {
            true => self.since.plus(passed).plus(2 * lateness),
            false => ahead.until.max(self.since),
        };
        let earlier = ahead.lacking.filter(|_| !ahead.is_through);
        earlier.map_or((self.since, to), |(from, until)| (from.min(self.since), until.max(to)))
    }

    /// Returns whether an entry is to be copied.
    fn lacks(&self, at: Timestamp) -> bool {
        let is_lacking = |ahead: &Ahead| ahead.lacking.is_some_and(|(from, to)| from <= at && at <= to);
        let is_copied = |ahead: Ahead| !ahead.is_through && ahead.from < at && at < ahead.until && !is_lacking(&ahead);
        at >= self.since && !self.ahead.is_some_and(is_copied)
    }

    /// Returns whether the audit has all of a job in this version, which was written before the clock was set back.
    fn has(&self, version: Version) -> bool {
        let mark = self.ahead.filter(|ahead| ahead.is_through).and_then(|ahead| ahead.mark);
        mark.is_some_and(|mark| (version.primary_term, version.seq_no) <= mark)
    }

    /// Returns the number of the first entry of a job that the audit may lack: those before a time that goes back by
    /// more than clocks differ were written before the clock was set back.
    fn first_of(&self, job: &Job, lateness: Duration) -> u32 {
        if !self.ahead.is_some_and(|ahead| ahead.is_through) {
            return 0;
        }
        let entries: Vec<_> = job.history.numbered().map(|(number, entry)| (number, entry.at)).collect();
        let back = entries.windows(2).rev().find(|two| two[0].1.since(two[1].1) > lateness);
        back.map_or(0, |two| two[1].0)
    }

    /// Returns the position when a pass has ended, and the next one begins with this time.
    fn through(self, next: Timestamp) -> Self {
        // Once the clock shows later times than before the step, nothing that is in the audit is found any more.
        let ahead = self.ahead.filter(|ahead| next <= ahead.until.plus(FAR_AHEAD));
        let ahead = ahead.map(|ahead| Ahead { is_through: true, ..ahead });
        Self { since: next, pass: None, ahead }
    }
}

/// Copies the jobs' histories to the audit.
pub struct Auditor {
    store: Arc<dyn Store>,
    /// The longest time after an entry's timestamp at which it may be found for the first time.
    lateness: Duration,
    /// When the last run began.
    last_run: Mutex<Option<Instant>>,
    /// Whether the next run forgets the position.
    anew: AtomicBool,
    /// The most pages that one run reads.
    pages: usize,
    /// The number and time of the last entry that was copied of each job, as far as the next pass finds it again: it is
    /// not copied twice.
    handed_over: Mutex<HashMap<JobId, (u32, Timestamp)>>,
}

impl Auditor {
    /// Creates an auditor for a store whose writers' clocks differ by no more than `skew`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, skew: Duration) -> Self {
        Self {
            store,
            lateness: LATENESS + skew,
            last_run: Mutex::default(),
            anew: AtomicBool::new(false),
            pages: MAX_PAGES,
            handed_over: Mutex::default(),
        }
    }

    /// Returns the auditor; if `anew` is set, its first run copies every history again.
    #[must_use]
    pub fn beginning(mut self, anew: bool) -> Self {
        self.anew = AtomicBool::new(anew);
        self
    }

    /// Returns the auditor, whose runs read at most this many pages each.
    #[must_use]
    pub const fn with_pages(mut self, pages: usize) -> Self {
        self.pages = pages;
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
        let (position, mut version) = self.position().await?;
        let passed = self.last_run.lock().replace(Instant::now()).map_or(UNSEEN, |last| last.elapsed());
        let (mut position, is_set_back) = position.at(now, passed, self.lateness);
        if is_set_back {
            tracing::warn!(since = %position.since, "the clock was set back: the audit goes on from before that");
            self.handed_over.lock().clear();
            version = self.reach(&position, version).await?;
        }
        if let Some(ahead) = position.ahead.as_mut().filter(|ahead| ahead.mark.is_none())
            && self.store.is_exclusive()
        {
            ahead.mark = version.map(|own| (own.primary_term, own.seq_no));
        }
        let begins = Pass { began: now, reached: position.since, after: None };
        let mut pass = position.pass.clone().unwrap_or(begins);
        let filter = Filter { updated_after: Some(just_before(pass.reached)), ..Filter::default() };
        // What was acknowledged before this moment must be found.
        self.store.refresh(Refresh::Jobs(&filter)).await?;
        let mut pages = Pages::of(filter, SortField::UpdatedAt, self.pages).after(pass.after.clone());
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
            let jobs = page.iter().filter(|found| !position.has(found.version)).map(|found| &*found.job);
            report.audited += self.hand_over(jobs, &position, next).await?;
            // What is further ahead was written before the clock was set back, and found by the pass after that.
            let is_through = position.ahead.is_some_and(|ahead| ahead.is_through);
            let is_ahead = |last: &Versioned| is_through && last.job.updated_at > now.plus(FAR_AHEAD);
            match page.last().filter(|last| pages.rest().is_some() && !is_ahead(last)) {
                Some(last) => {
                    (pass.reached, pass.after) = (last.job.updated_at, pages.rest().cloned());
                    position.pass = Some(pass.clone());
                }
                None => {
                    position = position.through(next);
                    self.handed_over.lock().retain(|_, (_, at)| *at >= next);
                    report.unfinished = false;
                }
            }
            version = self.reach(&position, version).await?;
        }
        Ok(report)
    }

    /// Copies the entries of these jobs that are not in the audit at this position, and returns their number. Remembers
    /// the entries from `next` on, which the next pass finds again.
    async fn hand_over(
        &self,
        jobs: impl Iterator<Item = &Job>,
        position: &Position,
        next: Timestamp,
    ) -> Result<usize, StoreError> {
        let mut entries: Vec<AuditEntry> = Vec::new();
        let mut handed_over = Vec::new();
        for job in jobs.filter(|job| !job.spec.queue.is_internal()) {
            // A later entry of a smaller number is that of another job, submitted under the id of one that is gone.
            let before = self.handed_over.lock().get(&job.id).copied();
            let first = position.first_of(job, self.lateness);
            let is_new = |number: u32, at: Timestamp| {
                number >= first && before.is_none_or(|(last, then)| number > last || at > then)
            };
            let new =
                job.history.numbered().filter(|(number, entry)| is_new(*number, entry.at) && position.lacks(entry.at));
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
    async fn reach(&self, position: &Position, version: Option<Version>) -> Result<Option<Version>, StoreError> {
        let write = RecordWrite::put(Self::key(), body(position)?, version);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1_900_000_000_000).plus(Duration::from_secs(seconds))
    }

    #[test]
    fn what_was_written_before_a_second_step_is_copied_and_what_was_copied_is_not() {
        let set_back = |position: Position, now: u64, passed: u64| {
            let (position, is_set_back) = position.at(at(now), Duration::from_secs(passed), LATENESS);
            assert!(is_set_back);
            position
        };
        let first = set_back(Position::NONE.through(at(100_000)), 90_000, 3_600);
        assert!(!first.lacks(at(99_000)) && first.lacks(at(100_000)));
        // Passes have ended since, the last one half a minute after this time.
        let second = set_back(first.clone().through(at(91_000)), 90_500, 10);
        for (written, is_lacking) in [(90_490, true), (90_900, false), (91_035, true), (95_000, false), (100_000, true)]
        {
            assert_eq!(second.lacks(at(written)), is_lacking, "{written}");
        }
        // None has ended since, and there is another step.
        let pass = Pass { began: at(90_000), reached: at(87_000), after: None };
        for position in [first.clone(), Position { pass: Some(pass), ..first.clone() }] {
            let second = set_back(position, 80_000, 10);
            assert!(second.lacks(at(90_005)) && second.lacks(at(79_990)));
            let third = set_back(second, 70_000, 10);
            assert!(third.lacks(at(90_005)) && third.lacks(at(80_005)));
        }
    }
}
