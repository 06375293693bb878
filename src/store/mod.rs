//! The store: documents that are compared and swapped.
//!
//! No engine knows what a claim is. The manager decides what a job becomes, with a pure function; the store writes it
//! if the document still has the version that the decision was made on. So the engines cannot drift apart, and one
//! conformance suite (`tests/integration/store.rs`) holds for all of them.
//!
//! Writes travel in batches: a caller hands over all it has, an engine adds what other callers have brought meanwhile,
//! and each write is answered on its own.
//!
//! Beside the jobs there are [`schedule`]s, of which there may be as many, and [`record`]s: a few small documents of
//! other kinds. Both are under the same rules. The [`output`] of attempts is not: it is large, and worth less.

mod archived;
pub mod audit;
pub mod elasticsearch;
pub mod embedded;
pub mod leadership;
pub mod measured;
pub mod member;
pub mod output;
pub mod recent;
pub mod record;
pub mod schedule;
mod sought;
pub mod time;
pub mod waiting;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use archived::Archived;
pub use audit::{AuditEntry, AuditPage, AuditPlace, AuditSearch};
pub use leadership::LeadershipMark;
pub use member::{
    ChangeError, Heard, Hindrance, Identity, Member, MemberChange, MemberMessage, Membership, PROVED_ANSWERS, Role,
    SIGNED_HEADS, Seat, Standing, Unequal,
};
pub use output::{CellKey, OutputCell, OutputOf, OutputStore, Stream};
pub use record::{MAX_RECORDS, Record, RecordKey, RecordKind, RecordWrite};
pub use schedule::{DueSchedules, ListSchedules, ScheduleResult, ScheduleWrite, StoredSchedule};
pub use sought::Sought;

use crate::clock::Timestamp;
use crate::job::{BodyRef, Job, JobId, JobState, Json, NewBody, OrderingKey, RecordName, ScheduleId};
use crate::query::stats::{Stats, StatsRequest};
use crate::query::{Filter, Group, GroupField, ScheduleFilter, Search};

/// The longest time that a query may take, unless another one is set.
pub const QUERY_TIME: Duration = Duration::from_secs(30);

/// The version of a stored document. It changes with every write and is never used again, not even when the document is
/// removed and created anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The place in which the document lies.
    pub place: Place,
    /// The term of the primary that made it (Elasticsearch), or the count of openings (embedded).
    pub primary_term: u64,
    /// The number of the write.
    pub seq_no: u64,
}

impl Version {
    /// Returns whether this version is known to be later than `other`, a version of the same document. Versions of
    /// different places cannot be compared, and then it returns `false`.
    #[must_use]
    pub fn is_later_than(self, other: Self) -> bool {
        self.place == other.place && self > other
    }
}

/// A place in which an engine keeps documents. Each place numbers its writes on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The place of live documents; the only place of an engine that has no archive of its own.
    Main,
    /// Another place, by a number that the engine assigns.
    Other(u32),
    /// No place: the write was accepted, and the document was written over before the version became known. No document
    /// has such a version, so the next write under it meets a conflict, which returns the current document.
    Superseded,
}

/// A job as it is stored, with the version to write it back under.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned {
    /// The job.
    pub job: Arc<Job>,
    /// The version that was last read or written.
    pub version: Version,
}

/// The live job of an ordering key that has the smallest place in the key's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The id of the job that is the head.
    pub job: JobId,
    /// The place of the job in the line, from 1 on.
    pub seq: u64,
    /// Whether the job waits or runs.
    pub state: JobState,
}

/// What a refresh makes visible. A refresh of less needs less of the store to be available.
#[derive(Clone, Copy, Debug)]
pub enum Refresh<'a> {
    /// The jobs to a search with this filter.
    Jobs(&'a Filter),
    /// The lists of records.
    Records,
    /// The lists of schedules.
    Schedules,
}

/// One conditional write.
#[derive(Clone, Debug)]
pub enum Write {
    /// Writes a job that must not exist yet.
    Create {
        /// The job.
        job: Arc<Job>,
        /// The bodies that the job refers to.
        bodies: Vec<NewBody>,
    },
    /// Writes a job over the version `expected` and no other.
    Replace {
        /// The job.
        job: Arc<Job>,
        /// The version under which the job was read.
        expected: Version,
        /// The bodies that the job refers to and its former version did not.
        bodies: Vec<NewBody>,
    },
    /// Removes the version `expected` of a job and no other, with its bodies.
    Remove {
        /// The job as it was read.
        job: Arc<Job>,
        /// The version under which the job was read.
        expected: Version,
    },
}

impl Write {
    /// Returns the job that is written or removed.
    #[must_use]
    pub fn job(&self) -> &Arc<Job> {
        match self {
            Self::Create { job, .. } | Self::Replace { job, .. } | Self::Remove { job, .. } => job,
        }
    }

    /// Returns the bodies that are written with the job.
    #[must_use]
    pub fn bodies(&self) -> &[NewBody] {
        match self {
            Self::Create { bodies, .. } | Self::Replace { bodies, .. } => bodies,
            Self::Remove { .. } => &[],
        }
    }
}

/// Why a write of a job, or of a record as `T`, was not acknowledged.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError<T = Versioned> {
    /// Another writer was first, which is normal traffic and not a failure. Holds the document as it is now, read in
    /// real time; `None` when there is no such document.
    #[error("the document has another version")]
    Conflict(Option<T>),
    /// The document was not written: the store refused it or could not be reached.
    #[error(transparent)]
    Refused(#[from] StoreError),
    /// The document may have been written or not, which could not be found out in time.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(String),
}

/// Why a store operation failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The queue of waiting writes is full; the caller may try again later.
    #[error("the store has more waiting than it takes; try again in {} ms", retry_after.as_millis())]
    Overloaded {
        /// How long the caller should wait before it tries again.
        retry_after: Duration,
    },
    /// The store cannot be reached, or has failed.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// This process does not lead the group that is the store, or is handing the lead over: what was to be written is
    /// not.
    #[error("the store is not available: {0}")]
    NotLeading(String),
    /// The store failed to write, and takes no more writes until its process is started again. Holds why, and what can
    /// be done about it, in words for everybody.
    #[error("the store takes no more writes: {0}")]
    Stopped(String),
    /// A query would take longer than one may.
    #[error("the query took longer than {} s", limit.as_secs_f64())]
    QueryTooSlow {
        /// The longest time that a query may take.
        limit: Duration,
    },
    /// This engine does not support the operation.
    #[error("{0}")]
    Unsupported(&'static str),
    /// A part of the store is in a state that trying again does not change. The message says which, and what can be
    /// done about it; it is fit for every caller.
    #[error("{0}")]
    OutOfOrder(String),
    /// One document cannot be read: a later version of the program wrote it, or somebody changed it by hand.
    #[error("{what} cannot be read: {why}")]
    Unreadable {
        /// The document, such as "job `a`".
        what: String,
        /// Why it cannot be read.
        why: String,
    },
    /// The store holds something that this program does not write.
    #[error("the store holds something unexpected: {0}")]
    Corrupt(String),
}

/// How a store hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hang {
    /// What has not gone on, and for how long.
    pub why: String,
    /// Whether it has lasted for so long that the process should be started again.
    pub is_lasting: bool,
}

impl From<Hang> for StoreError {
    fn from(hang: Hang) -> Self {
        Self::Unavailable(format!("it hangs: {}", hang.why))
    }
}

/// The result of a write: the new version (for a removal the version removed), or why it was not accepted.
pub type WriteResult<T = Versioned> = Result<Version, WriteError<T>>;

/// A store of jobs and records.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Applies every write on its own condition and returns the results in order, once all are durable. Dropping the
    /// future does not undo what was handed over. The writes are no unit: after a failure, the first of them may be
    /// written and others not.
    async fn write(&self, writes: Vec<Write>) -> Vec<WriteResult>;

    /// Reads jobs in real time, so that every acknowledged write is seen, in the order of `ids`; `None` for no job.
    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Versioned>>, StoreError>;

    /// Reads jobs as [`Store::get`] does. A job that cannot be read fails alone.
    async fn look_up(&self, sought: &[Sought<'_>]) -> Vec<Result<Option<Versioned>, StoreError>> {
        let ids: Vec<JobId> = sought.iter().map(|sought| sought.id.clone()).collect();
        match self.get(&ids).await {
            Ok(found) => found.into_iter().map(Ok).collect(),
            Err(error) => ids.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Reads bodies that are kept apart, in the order of `references`; `None` for one whose job has been removed since.
    async fn bodies(&self, references: &[BodyRef]) -> Result<Vec<Option<Json>>, StoreError>;

    /// Finds jobs. The result may lag behind acknowledged writes, unless [`Store::has_realtime_search`].
    async fn search(&self, search: &Search) -> Result<Vec<Versioned>, StoreError>;

    /// Finds the first page of each of these searches as [`Store::search`] does, with one call where the engine can.
    async fn search_each(&self, searches: &[Search]) -> Result<Vec<Vec<Versioned>>, StoreError> {
        futures::future::try_join_all(searches.iter().map(|search| self.search(search))).await
    }

    /// Finds the head of each of these lines, in the order of `keys`; `None` where no job of the key waits or runs. The
    /// result may lag as [`Store::search`] may, and not behind a refresh of the jobs.
    ///
    /// # Errors
    /// [`StoreError`] also when only a part of the jobs could be looked at.
    async fn heads(&self, keys: &[OrderingKey]) -> Result<Vec<Option<Head>>, StoreError>;

    /// Counts jobs by group, the largest group first; without a field, all jobs are one group. The counts may lag as
    /// [`Store::search`] may.
    async fn count(&self, filter: &Filter, by: &[GroupField]) -> Result<Vec<Group>, StoreError>;

    /// Computes statistics of jobs; `None` when they would have more rows than
    /// [`MAX_ROWS`](crate::query::stats::MAX_ROWS). They may lag as [`Store::search`] may.
    async fn stats(&self, request: &StatsRequest) -> Result<Option<Stats>, StoreError>;

    /// Applies every write of a record on its own condition and returns the results in order, once all are durable.
    /// When the future is dropped before that, each may or may not be applied.
    async fn write_records(&self, writes: Vec<RecordWrite>) -> Vec<WriteResult<Record>>;

    /// Reads records in real time: every acknowledged write is seen. Returns them in the order of `keys`; `None` where
    /// there is no record.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`] also when only one of them cannot be read.
    async fn records_of(&self, keys: &[RecordKey]) -> Result<Vec<Option<Record>>, StoreError>;

    /// Applies one write of a record, as [`Store::write_records`] does.
    async fn write_record(&self, write: RecordWrite) -> WriteResult<Record> {
        let unanswered = || Err(WriteError::Unknown("the store gave no answer".to_owned()));
        self.write_records(vec![write]).await.pop().unwrap_or_else(unanswered)
    }

    /// Reads a record, as [`Store::records_of`] does.
    async fn record(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        Ok(self.records_of(std::slice::from_ref(key)).await?.pop().flatten())
    }

    /// Lists the records of a kind, by name. Which there are may lag as [`Store::search`] may, so that a record just
    /// created is missing; each that is listed is as it is in real time.
    ///
    /// # Errors
    /// [`StoreError`] of any read, and when there are more than [`MAX_RECORDS`].
    async fn records(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError>;

    /// Lists some records of a kind, by name, from the first after `after` on, however many there are; none when there
    /// are no more. Which there are may lag as [`Store::search`] may. Those that cannot be read are left out.
    async fn records_after(&self, kind: RecordKind, after: Option<&RecordName>) -> Result<Vec<Record>, StoreError>;

    /// Applies every write of a schedule on its own condition and returns the results in order, once all are durable.
    /// Dropping the future does not undo what was handed over.
    async fn write_schedules(&self, writes: Vec<ScheduleWrite>) -> Vec<ScheduleResult>;

    /// Reads schedules in real time: every acknowledged write is seen. Returns them in the order of `ids`; `None` where
    /// there is no schedule.
    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<StoredSchedule>>, StoreError>;

    /// Finds the schedules that a loader has to look at. The result may lag as [`Store::search`] may.
    async fn due_schedules(&self, due: &DueSchedules) -> Result<Vec<StoredSchedule>, StoreError>;

    /// Lists schedules by id. The result may lag as [`Store::search`] may.
    async fn list_schedules(&self, list: &ListSchedules) -> Result<Vec<StoredSchedule>, StoreError>;

    /// Counts schedules. The count may lag as [`Store::search`] may.
    async fn count_schedules(&self, filter: &ScheduleFilter) -> Result<u64, StoreError>;

    /// Adds entries to the audit and returns once they are durable. An entry that the audit already has is left as it
    /// is, as far as the store can tell: after a failure, callers may add entries again.
    ///
    /// # Errors
    /// [`StoreError`] when not all entries could be added; some may have been.
    async fn append_audit(&self, entries: &[AuditEntry]) -> Result<(), StoreError>;

    /// Reads a page of the audit. The result may lag as [`Store::search`] may. An audit that was never written is an
    /// empty one.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] when the place of the search is none of this store's audit.
    async fn read_audit(&self, search: &AuditSearch) -> Result<AuditPage, StoreError>;

    /// Returns the store of the output of attempts, which is another one than that of the jobs.
    fn outputs(&self) -> Arc<dyn OutputStore>;

    /// Makes every write of these that was acknowledged before this call visible to searches. This is costly where
    /// searches lag, so the hot path does not call it.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot do it now.
    async fn refresh(&self, _what: Refresh<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Moves up to `limit` jobs that were settled some time before `now` from the live jobs to the archive, and clears
    /// up after former moves. To callers a moved job is the same job, with another version. A store that keeps ended
    /// jobs apart by itself has nothing to do.
    ///
    /// # Errors
    /// [`StoreError`] when the step could not go on. What is half done is completed by the next step.
    async fn archive(&self, _now: Timestamp, _limit: usize) -> Result<Archived, StoreError> {
        Ok(Archived::default())
    }

    /// Returns whether searches see every acknowledged write at once.
    fn has_realtime_search(&self) -> bool;

    /// Returns whether nobody but this process writes to the store.
    fn is_exclusive(&self) -> bool;

    /// Returns whether every process that reads the store knows the names of tokens in leases and histories. Once it
    /// is so, it stays so.
    fn keeps_holders(&self) -> bool {
        true
    }

    /// Returns the mark of this moment, for [`Store::confirm`].
    fn mark(&self) -> LeadershipMark {
        LeadershipMark::default()
    }

    /// Returns once what was read between the mark and this call is known to have been so at a moment after the mark.
    /// Where several members are one store, that is when most of them have answered something that this one has asked
    /// since the mark, and it led until then; elsewhere it is at once.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when this process leads no more, or did not lead at the mark. What it has written
    /// since may be there all the same ([`LeadershipMark::has_begun_nothing`]).
    async fn confirm(&self, _since: &LeadershipMark) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns once it is known that this process has led at a moment after this call began, as [`Store::confirm`] does
    /// for a mark of that moment.
    ///
    /// # Errors
    /// The error of [`Store::confirm`], when this process leads no more.
    async fn confirm_now(&self) -> Result<(), StoreError> {
        self.confirm(&self.mark()).await
    }

    /// Returns a job in the form in which another process on the same store reads it ([`Store::unpack`]); `None` when
    /// the store belongs to one process.
    fn pack(&self, _job: &Job) -> Option<Json> {
        None
    }

    /// Reads a job that another process on the same store has packed.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`] when it is not such a job.
    fn unpack(&self, _packed: &Json) -> Result<Job, StoreError> {
        Err(StoreError::Unsupported("this store belongs to one process"))
    }

    /// Returns the time by the store's own clock; `None` for a store that has none.
    ///
    /// # Errors
    /// [`StoreError`] when the store does not answer.
    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }

    /// Returns the latest time that stands in the store as that of a change; `None` where nobody knows.
    fn written_until(&self) -> Option<Timestamp> {
        None
    }

    /// Returns how many documents this store met in the last minutes and could not read. Searches and the archive pass
    /// them over; a read by id fails.
    fn unreadable(&self) -> usize {
        0
    }

    /// Returns what a crash left behind and was dropped when the store was opened, if anything was. Nothing of it was
    /// acknowledged.
    fn dropped(&self) -> Option<String> {
        None
    }

    /// Returns why the store takes no more writes until its process is started again, and what can be done about it;
    /// `None` while it takes them.
    fn stopped(&self) -> Option<String> {
        None
    }

    /// Returns how the store hangs: a write is not answered and comes no further; `None` while it does not. It does not
    /// ask the store.
    fn hang(&self) -> Option<Hang> {
        None
    }

    /// Returns which parts of the store are known to be out of order, and what can be done about them; `None` when none
    /// is. It does not ask the store.
    fn out_of_order(&self) -> Option<String> {
        None
    }

    /// Returns which months of the archive cannot be read, each as a sentence. It does not ask the store.
    fn unread_months(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns what shows that documents are not as they should be: that they cannot be read at rest, or differ between
    /// the members of a group; `None` while nothing does. It does not ask the store.
    fn unequal(&self) -> Option<String> {
        None
    }

    /// Returns whether the store holds writes back, or has until a few seconds ago: then what seems to be late may have
    /// been said in time and not been written yet. It asks the store.
    ///
    /// # Errors
    /// [`StoreError`] when the store does not answer.
    async fn has_lately_held_writes_back(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Returns the length in bytes of the longest body that is better kept in the job's document than apart.
    fn inline_limit(&self) -> usize;

    /// Checks that the store can serve now.
    ///
    /// # Errors
    /// [`StoreError`] says why it cannot, in words that are fit for every caller: they name no host and no path.
    async fn ready(&self) -> Result<(), StoreError>;

    /// Finishes the writes already handed over and closes the store; later calls are refused.
    async fn close(&self);
}
