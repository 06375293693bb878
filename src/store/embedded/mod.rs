//! The embedded store: one process, one data directory, no server beside it.
//!
//! In reading order:
//! - `machine`: what a batch of commands makes of the store, a pure function.
//! - `state`: what readers see. `live`: the jobs in memory with their indexes. `unflushed`: what the database does not
//!   have yet, with `changed`, what of the schedules.
//! - `engine`: how a batch is committed. `writer`: the one thread that decides batches. `background`: a thread that it
//!   gives orders to.
//! - `group`: who agrees on the log, by Raft; a group of one. `progress`: what comes of that, `steps`: when it is
//!   durable, and `matched`: how far a leader has shown it. `log`: what makes a batch durable. `writing`: how entries
//!   get there, from the queue `unwritten`. `entry`: what of a batch is in the log, and `delta`, what of a job.
//! - `taking_part`: what the engine of one of several members does. `exchange`: its mailbox, with `message`, what the
//!   library sends, and `words`, what members say beside that. `asked`: who waits until it is known that it leads.
//!   `member`: its threads. `agreed`: what they have committed. `kept`: what of the log they may need again, with
//!   `last`, an entry by its place. `durable`: what one writes. `others`: what it knows about others, with `openings`,
//!   whether they went back in time, and `opened`, the file of those. `changing`: which changes of the members make
//!   sense.
//! - `offer`: the state that a member offers to one that lags too far behind. `incoming`: such a state, received.
//!   `renew`: how the store begins with it. `mailbox`: what a thread waits for.
//! - `flush`: how the database comes after the log. `equality`: whether the states of all members are equal.
//! - `watch`: what must not run out. `watchdog`: whether a thread hangs, by `unanswered`, the writes that wait.
//!   `given_up`: what becomes of the lead then. `exits`: the end of a thread by a panic, with `at`, what it was about.
//!   `periodic`: a thread that does something time and again.
//! - `disk` and `directory` with `owners`: where everything is kept, and `error`, what can be wrong with it.
//! - `options`: what a store is opened with. `running`: the threads of one. `opening`: how it is opened, and `closing`,
//!   how it is closed; with `recover`, how the database is read. `seal`: what must be there then, which `checkpoint`
//!   writes and `inspect` compares with what is. `journal` and `manifest`: the database's own files, read only.
//!   `verify`: all of it checked.
//! - `stored`: a job on disk. `records`: a record on disk. `schedules`: a schedule on disk, and its keys. `audit`: the
//!   audit's files, how they are read, and how a group has them. `output`: the output of attempts, in a database of its
//!   own, and `copied`, how a group has it. `beside`: both.
//! - `block` and `column`: the index of finished jobs. `reader`: one block of it read.
//! - `narrow`: what of a filter the indexes can answer. `scan`: searches and counts. `finished`: their part among the
//!   finished jobs. `page` and `groups`: what they gather. `stats`: statistics. `budget`: how long they may take.
//! - `lists`: lists of schedules, and `schedule_search`, which of them a query needs. `asking`: how to ask for all.
//!
//! What holds at any moment:
//! - A write is answered after its batch is synced in the log, and seen by readers from then on.
//! - The database is the state as of one entry of the log, and the log has every later entry.
//! - Jobs that have not ended are in memory and on disk, finished ones and schedules on disk only: memory grows with
//!   the live jobs, not with the others.
//! - After a failure to sync nothing more is written until the directory is opened anew: what the failed sync left
//!   behind is found out by recovery and not guessed (Rebello et al., "Can Applications Recover from fsync
//!   Failures?", USENIX ATC 2020).

mod agreed;
#[cfg(test)]
mod arbitrary;
mod asked;
mod asking;
mod at;
mod audit;
mod available;
mod background;
mod beside;
mod block;
mod budget;
mod changed;
mod changing;
mod checkpoint;
mod closing;
mod column;
mod copied;
mod delta;
mod directory;
mod disk;
mod durable;
mod engine;
mod entry;
mod equality;
mod error;
mod exchange;
mod exits;
mod finished;
mod flush;
mod given_up;
#[cfg(test)]
mod golden;
mod group;
mod grouped;
mod groups;
mod identity;
mod incoming;
mod inspect;
mod journal;
mod kept;
mod last;
mod lists;
mod live;
mod log;
mod machine;
mod mailbox;
mod manifest;
mod matched;
mod member;
mod message;
mod narrow;
mod offer;
mod opened;
mod opening;
mod openings;
mod options;
mod others;
mod output;
mod owners;
mod page;
mod periodic;
mod progress;
mod reader;
mod records;
mod recover;
mod renew;
mod running;
mod scan;
mod schedule_search;
mod schedules;
mod seal;
mod state;
mod stats;
mod steps;
mod stored;
mod taking_part;
#[cfg(test)]
mod three;
mod unanswered;
mod unflushed;
mod unwritten;
mod verify;
mod versions;
mod watch;
mod watchdog;
mod weight;
mod words;
mod writer;
mod writing;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use crate::clock::Timestamp;
use crate::job::{BodyRef, JobId, Json, OrderingKey, RecordName, ScheduleId};
use crate::query::stats::{Stats, StatsRequest};
use crate::query::{Filter, Group, GroupField, ScheduleFilter, Search};
use crate::store::{
    AuditEntry, AuditPage, AuditSearch, DueSchedules, Hang, Head, LeadershipMark, ListSchedules, Member, OutputStore,
    Record, RecordKey, RecordKind, RecordWrite, ScheduleResult, ScheduleWrite, Store, StoreError, StoredSchedule,
    Versioned, Write, WriteResult,
};
use beside::Beside;
use budget::Budget;
use directory::Directory;
use disk::Disk;
use engine::Engine;
pub use error::{Damage, OpenError};
use exchange::Exchange;
use grouped::Index;
use lists::Wanted;
use mailbox::Mailbox;
use narrow::{Narrowed, NarrowedSchedules};
pub use opening::{accept_copy, member_of};
pub use options::{EmbeddedOptions, GroupOptions, LEAST_SCRUB_BYTES, MOST_SCRUB_BYTES};
use options::{INDEXED_SCANS, LOOKUPS, SCANS};
use running::{Running, standing_by};
pub use verify::{StateHash, Verified, verify};
use writer::{Queue, answers};

/// The longest body, in bytes, that is stored with its job. A job is written about four times in its life, each time
/// with its inline bodies, while a body of its own costs a second key and a second look-up to read.
const INLINE_LIMIT: usize = 512;

/// A store of jobs in a data directory of this machine.
pub struct EmbeddedStore {
    inner: Arc<Inner>,
    /// The thread that opens the store again.
    renewing: Mutex<Option<JoinHandle<()>>>,
}

/// What a store has, whichever state it was opened with.
struct Inner {
    path: PathBuf,
    options: EmbeddedOptions,
    /// The mailbox of this member of a group; `None` for a store of its own.
    exchange: Option<Arc<Exchange>>,
    /// Filled when a state of another member was received whole.
    received: Arc<Mailbox<()>>,
    queue: RwLock<Arc<Queue>>,
    /// The threads; `None` once the store is closed. Whoever opens or closes it has this lock.
    running: Mutex<Option<Running>>,
    is_closed: AtomicBool,
    /// The engine; `None` once the store is closed.
    engine: RwLock<Option<Arc<Engine>>>,
    scans: Arc<Semaphore>,
    indexed_scans: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
    query_time: Duration,
    beside: Beside,
}

impl EmbeddedStore {
    /// Opens the store in a directory, which is created where there is none, and holds the directory until the store is
    /// closed or dropped. Opening reads every live job and the jobs that ended last.
    ///
    /// # Errors
    /// [`OpenError`] says why the directory cannot be opened.
    pub fn open(path: impl AsRef<Path>, options: &EmbeddedOptions) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let directory = Directory::hold(path, options.reserve_bytes)?;
        let queue = Arc::new(Queue::default());
        let exchange = options.group.clone().map(|group| Arc::new(Exchange::new(group, standing_by(&queue))));
        let engine = Arc::new(Engine::open(directory, options, exchange.clone())?);
        let no_thread = |source| OpenError::Io { doing: "start a thread for", directory: path.to_owned(), source };
        let beside = Beside::in_directory(path, exchange.as_ref());
        let running = Running::start(&engine, &queue, exchange.clone(), &beside, options).map_err(no_thread)?;
        let inner = Arc::new(Inner {
            path: path.to_owned(),
            options: options.clone(),
            received: exchange.as_ref().map_or_else(|| Arc::new(Mailbox::new(1)), |own| Arc::clone(&own.received)),
            exchange,
            queue: RwLock::new(queue),
            running: Mutex::new(Some(running)),
            is_closed: AtomicBool::new(false),
            engine: RwLock::new(Some(engine)),
            scans: Arc::new(Semaphore::new(SCANS as usize)),
            indexed_scans: Arc::new(Semaphore::new(INDEXED_SCANS as usize)),
            query_time: options.query_time,
            lookups: Arc::new(Semaphore::new(LOOKUPS as usize)),
            beside,
        });
        let renewing = inner.start_renewing().map_err(no_thread)?;
        Ok(Self { inner, renewing: Mutex::new(Some(renewing)) })
    }

    /// Returns this member of the group; `None` for a store of its own.
    #[must_use]
    pub fn member(&self) -> Option<Arc<dyn Member>> {
        self.inner.exchange.clone().map(|exchange| exchange as Arc<dyn Member>)
    }

    fn queue(&self) -> Arc<Queue> {
        Arc::clone(&self.inner.queue.read())
    }

    /// Returns how many stored jobs that have finished were read since the store was opened, by look-ups and by scans.
    #[must_use]
    pub fn finished_jobs_read(&self) -> u64 {
        self.inner.engine.read().as_ref().map_or(0, |engine| engine.disk.jobs_read())
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn write(&self, writes: Vec<Write>) -> Vec<WriteResult> {
        let count = writes.len();
        if count == 0 {
            return Vec::new();
        }
        answers(count, self.queue().push(writes)).await
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Versioned>>, StoreError> {
        let (mut found, view) = self.in_memory(|engine| {
            let published = engine.published.read();
            let found: Vec<_> = ids.iter().map(|id| published.in_memory(id).cloned()).collect();
            (found, published.view.clone())
        })?;
        let missing: Vec<JobId> =
            ids.iter().zip(&found).filter(|(_, found)| found.is_none()).map(|(id, _)| id.clone()).collect();
        if missing.is_empty() {
            return Ok(found);
        }
        let finished = self.on_disk(&self.inner.lookups, move |engine| {
            missing.iter().map(|id| engine.disk.finished(&view, id)).collect::<Result<Vec<_>, _>>()
        });
        let mut finished = finished.await?.into_iter();
        for place in found.iter_mut().filter(|found| found.is_none()) {
            *place = finished.next().flatten();
        }
        Ok(found)
    }

    async fn bodies(&self, references: &[BodyRef]) -> Result<Vec<Option<Json>>, StoreError> {
        self.overlaid(references, |published, reference| published.body(reference.id).cloned(), Disk::body).await
    }

    async fn search(&self, search: &Search) -> Result<Vec<Versioned>, StoreError> {
        let Some(wanted) = Narrowed::of(&search.filter) else { return Ok(Vec::new()) };
        self.make_index(grouped::needed_for(&wanted.filter, search.sort)).await?;
        if scan::is_indexed(&wanted, search.sort) {
            let budget = Budget::of(self.inner.query_time);
            return self.in_memory(|engine| scan::search(engine, &wanted, search, budget))?;
        }
        let search = search.clone();
        let is_indexed = wanted.exact && search.sort.is_kept();
        self.query(is_indexed, move |engine, budget| scan::search(engine, &wanted, &search, budget)).await
    }

    async fn heads(&self, keys: &[OrderingKey]) -> Result<Vec<Option<Head>>, StoreError> {
        self.in_memory(|engine| engine.published.read().live.heads(keys))
    }

    async fn count(&self, filter: &Filter, by: &[GroupField]) -> Result<Vec<Group>, StoreError> {
        let Some(wanted) = Narrowed::of(filter) else { return Ok(scan::no_groups(by)) };
        if scan::is_counted(&wanted, by) {
            return self.in_memory(|engine| Ok(scan::kept_counts(engine, &wanted, by)))?;
        }
        if let Some(queue) = grouped::counted_for(&wanted.filter, by) {
            self.make_index(Some((Index::Owner, queue))).await?;
            return self.in_memory(|engine| scan::count_by_owner(engine, queue, &wanted));
        }
        let by = by.to_vec();
        self.query(wanted.exact, move |engine, budget| scan::count(engine, &wanted, &by, budget)).await
    }

    async fn stats(&self, request: &StatsRequest) -> Result<Option<Stats>, StoreError> {
        let request = request.clone();
        self.query(false, move |engine, budget| stats::stats(engine, &request, budget)).await
    }

    async fn write_records(&self, writes: Vec<RecordWrite>) -> Vec<WriteResult<Record>> {
        let count = writes.len();
        if count == 0 {
            return Vec::new();
        }
        answers(count, self.queue().push_records(writes)).await
    }

    async fn records_of(&self, keys: &[RecordKey]) -> Result<Vec<Option<Record>>, StoreError> {
        self.in_memory(|engine| {
            let published = engine.published.read();
            keys.iter().map(|key| Ok(published.records.get(key)?.cloned())).collect()
        })?
    }

    async fn records(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        self.in_memory(|engine| engine.published.read().records.of(kind))?
    }

    async fn records_after(&self, kind: RecordKind, after: Option<&RecordName>) -> Result<Vec<Record>, StoreError> {
        self.in_memory(|engine| engine.published.read().records.after(kind, after))
    }

    async fn write_schedules(&self, writes: Vec<ScheduleWrite>) -> Vec<ScheduleResult> {
        let count = writes.len();
        if count == 0 {
            return Vec::new();
        }
        answers(count, self.queue().push_schedules(writes)).await
    }

    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<StoredSchedule>>, StoreError> {
        self.overlaid(ids, |published, id| published.schedule(id).cloned(), Disk::schedule).await
    }

    async fn due_schedules(&self, due: &DueSchedules) -> Result<Vec<StoredSchedule>, StoreError> {
        let wanted = Wanted::from(due);
        self.on_disk(&self.inner.lookups, move |engine| lists::read(engine, wanted)).await
    }

    async fn list_schedules(&self, list: &ListSchedules) -> Result<Vec<StoredSchedule>, StoreError> {
        let Some(wanted) = NarrowedSchedules::of(&list.filter) else { return Ok(Vec::new()) };
        let (is_quick, after, limit) = (wanted.is_quick(), list.after.clone(), list.limit);
        self.query_schedules(is_quick, move |engine, budget| {
            schedule_search::list(engine, &wanted, after.as_ref(), limit, &budget)
        })
        .await
    }

    async fn count_schedules(&self, filter: &ScheduleFilter) -> Result<u64, StoreError> {
        let Some(wanted) = NarrowedSchedules::of(filter) else { return Ok(0) };
        let is_quick = wanted.ids.is_some();
        self.query_schedules(is_quick, move |engine, budget| schedule_search::count(engine, &wanted, &budget)).await
    }

    async fn append_audit(&self, entries: &[AuditEntry]) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let (audit, entries) = (Arc::clone(&self.inner.beside.audit), entries.to_vec());
        self.on_disk(&self.inner.lookups, move |_| audit.lock().append(&entries)).await?;
        self.inner.beside.audit_is_copied().await;
        Ok(())
    }

    async fn read_audit(&self, search: &AuditSearch) -> Result<AuditPage, StoreError> {
        let files = self.inner.beside.audit_files(&self.inner.path);
        let search = search.clone();
        self.query(false, move |_, budget| files.read(&search, &budget)).await
    }

    fn outputs(&self) -> Arc<dyn OutputStore> {
        self.inner.beside.output_store()
    }

    fn has_realtime_search(&self) -> bool {
        true
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn written_until(&self) -> Option<Timestamp> {
        self.in_memory(|engine| engine.published.read().time).ok()
    }

    fn stopped(&self) -> Option<String> {
        match self.queue().closed() {
            Some(StoreError::Stopped(why)) => Some(why),
            _ => None,
        }
    }

    fn dropped(&self) -> Option<String> {
        self.in_memory(|engine| engine.dropped.clone()).ok().flatten()
    }

    fn hang(&self) -> Option<Hang> {
        self.queue().unanswered().hang()
    }

    fn out_of_order(&self) -> Option<String> {
        let refused = self.queue().new_jobs_refused().map(|reason| reason.to_string());
        refused.or_else(|| self.queue().unanswered().want())
    }

    fn unequal(&self) -> Option<String> {
        self.inner.unequal()
    }

    fn inline_limit(&self) -> usize {
        INLINE_LIMIT
    }

    fn keeps_holders(&self) -> bool {
        self.inner.exchange.as_ref().is_none_or(|exchange| exchange.agreed().version >= versions::HOLDERS)
    }

    fn mark(&self) -> LeadershipMark {
        self.inner.exchange.as_ref().map_or_else(LeadershipMark::default, |exchange| exchange.asked.lock().mark())
    }

    async fn confirm(&self, since: &LeadershipMark) -> Result<(), StoreError> {
        match &self.inner.exchange {
            Some(exchange) => exchange.confirm_since(since).await,
            None => Ok(()),
        }
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.check().await
    }

    async fn close(&self) {
        self.close_all().await;
    }
}
