//! The output of attempts: a database of its own in the data directory, `output/`.
//!
//! It is opened when it is first needed, and again after a write has failed, as one does on a full disk. Nothing is
//! synced by a call, so that what the system has not written when the machine stops is lost; a process that is killed
//! loses nothing. Nothing else depends on it: a folder that cannot be opened is put aside, and the output goes on in a
//! new one.
//!
//! A key is the job's id, a zero, the fence, the stream and the slot. So the output of a job lies together, and that of
//! jobs that are gone is found by going from one job to the next. A value is in postcard: the cell, and behind it the
//! time at which the job was created and the gaps, which earlier versions leave out.

use std::fs;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::directory::{create_folders, remove_folder};
use super::disk::failed;
use super::engine::Engine;
use super::error::{closed, is_for_want_of_room};
use super::exits::FailOnExit;
use super::periodic::Periodic;
use crate::clock::Timestamp;
use crate::job::{Fence, JobId};
use crate::store::output::{CellKey, KEPT_FENCES, OutputCell, OutputOf, OutputStore};
use crate::store::{Member as _, StoreError};

/// The name of the folder.
const FOLDER: &str = "output";
/// The name that a folder gets which cannot be opened; one of an earlier time makes room for it.
const PUT_ASIDE: &str = "output.damaged";
/// The sizes of the database's buffers, in bytes: output is written once and seldom read.
const MEMTABLE_BYTES: u64 = 8 << 20;
const JOURNAL_BYTES: u64 = 64 << 20;
const CACHE_BYTES: u64 = 4 << 20;
/// How many calls are at the database at once; the others wait.
const AT_ONCE: usize = 4;
/// The time between two looks for the output of jobs that are gone, and how many jobs each looks at.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
const SWEPT_JOBS: usize = 1_000;

/// A cell as it is stored, with its key.
pub(super) type StoredPair = (ByteBuf, ByteBuf);

/// The output of the jobs of a data directory.
pub(super) struct Outputs {
    place: Arc<Place>,
    calls: Arc<Semaphore>,
    /// The entry of the log up to which all must be applied before a job that is not known is gone: no output of a
    /// later one is there. `None` before that is known.
    sweeps_from: Mutex<Option<u64>>,
}

/// Where the database is, and how far it is.
struct Place {
    directory: PathBuf,
    database: Mutex<Stage>,
}

/// How far the database is.
enum Stage {
    NotOpened,
    Open(Arc<Opened>),
    /// It takes nothing more since a write has failed, and is opened again once nobody has it any more.
    Failed(Weak<Opened>),
    Closed,
}

struct Opened {
    db: Database,
    cells: Keyspace,
}

/// A cell as it is stored. Its bytes are copied at once: as a sequence, each would be written and read by itself.
#[derive(Serialize, Deserialize)]
struct StoredCell<'a> {
    offset: u64,
    is_end: bool,
    #[serde(borrow, with = "serde_bytes")]
    bytes: &'a [u8],
}

/// What stands behind a cell.
#[derive(Serialize, Deserialize)]
struct Behind {
    created_ms: Option<i64>,
    gaps: Vec<Range<u64>>,
}

/// A cell and, unless an earlier version has written it, the time at which its job was created.
type Cell = (OutputCell, Option<Timestamp>);

impl Outputs {
    /// Creates the outputs of a data directory. Nothing is created before the first cell.
    pub(super) fn in_directory(directory: &Path) -> Arc<Self> {
        let place = Place { directory: directory.to_owned(), database: Mutex::new(Stage::NotOpened) };
        Arc::new(Self {
            place: Arc::new(place),
            calls: Arc::new(Semaphore::new(AT_ONCE)),
            sweeps_from: Mutex::default(),
        })
    }

    /// Does something at the database, on a thread that may block.
    async fn on_thread<T: Default + Send + 'static>(
        &self,
        creates: bool,
        call: impl FnOnce(&Opened) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn = Arc::clone(&self.calls).acquire_owned().await.map_err(|_| closed())?;
        let place = Arc::clone(&self.place);
        let called = spawn_blocking(move || {
            // The call goes on where its caller has gone.
            let _turn = turn;
            place.call(creates, call)
        });
        called.await.map_err(|error| StoreError::Unavailable(format!("the output of jobs: {error}")))?
    }

    /// Writes what is not yet with the system, and gives the database up.
    pub(super) async fn close(&self) {
        // All of them: calls under way are done then, and none begins.
        let all = self.calls.acquire_many(AT_ONCE as u32).await;
        self.calls.close();
        drop(all);
        let stage = std::mem::replace(&mut *self.place.database.lock(), Stage::Closed);
        let release = move || {
            if let Stage::Open(opened) = stage
                && let Err(error) = opened.db.persist(PersistMode::SyncAll)
            {
                tracing::warn!(%error, "the last of the output of jobs may not be on the disk");
            }
        };
        drop(spawn_blocking(release).await);
    }

    /// Removes the output of jobs that are gone, and of attempts of long ago, of at most [`SWEPT_JOBS`] jobs after
    /// `after`. Returns the job after which the next call begins; `None` when it begins at the first.
    fn sweep(&self, engine: &Engine, after: Option<JobId>) -> Result<Option<JobId>, StoreError> {
        let mut after = after;
        self.place.call(false, |Opened { db, cells }| {
            for _ in 0..SWEPT_JOBS {
                let from = after.as_ref().map_or_else(Vec::new, after_job);
                let Some(first) = cells.range(from..).next() else { return Ok(None) };
                let job = job_of(&first.key().map_err(failed)?)?;
                // As long as it is held, no output comes of a job that is not known here yet.
                let mut sweeps_from = self.sweeps_from.lock();
                if !knows_all(engine, &mut sweeps_from) {
                    break;
                }
                let end = match engine.fence_of(&job)? {
                    None => after_job(&job),
                    Some(fence) => attempt_key(&job, Fence::new((fence.get() + 1).saturating_sub(KEPT_FENCES))),
                };
                remove_all(db, cells, &attempt_key(&job, Fence::new(0)), &end)?;
                drop(sweeps_from);
                after = Some(job);
            }
            Ok(after)
        })
    }

    /// Returns how many of these attempts, from the first on, have `most` bytes in cells or few more, at least one of
    /// them, and their cells.
    pub(super) fn cells_of(
        &self,
        attempts: &[(OutputOf, Timestamp)],
        most: usize,
    ) -> Result<(usize, Vec<StoredPair>), StoreError> {
        let read = |opened: &Opened| {
            let (mut found, mut bytes) = (Vec::new(), 0);
            for (count, (of, created_at)) in attempts.iter().enumerate() {
                if bytes >= most {
                    return Ok(Some((count, found)));
                }
                for cell in opened.cells.range(attempt_key(&of.job, of.fence)..attempt_key(&of.job, of.fence.next())) {
                    let (key, cell) = cell.into_inner().map_err(failed)?;
                    if decoded(&cell).is_ok_and(|(_, of_job)| of_job.is_none_or(|at| at == *created_at)) {
                        bytes += cell.len();
                        found.push((ByteBuf::from(key.to_vec()), ByteBuf::from(cell.to_vec())));
                    }
                }
            }
            Ok(Some((attempts.len(), found)))
        };
        Ok(self.place.call(false, read)?.unwrap_or((attempts.len(), Vec::new())))
    }

    /// Returns the cells with these keys, as they are stored; `None` where there is none.
    pub(super) fn cells(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<ByteBuf>>, StoreError> {
        let read = |opened: &Opened| {
            let read = |key| Ok(opened.cells.get(key).map_err(failed)?.map(|cell| ByteBuf::from(cell.to_vec())));
            keys.iter().map(read).collect::<Result<Vec<_>, _>>()
        };
        let mut read = self.place.call(false, read)?;
        read.resize(keys.len(), None);
        Ok(read)
    }

    /// Keeps cells of another member, as they are stored, united with what is here. All their jobs are known once the
    /// entry `of_jobs` of the log is applied, where that is given. A cell that this version cannot read is left.
    pub(super) fn keep(&self, cells: &[StoredPair], of_jobs: Option<u64>) -> Result<(), StoreError> {
        let mut sweeps_from = self.sweeps_from.lock();
        if of_jobs > *sweeps_from {
            *sweeps_from = of_jobs;
        }
        if cells.is_empty() {
            return Ok(());
        }
        self.place.call(true, |opened| {
            let mut batch = opened.db.batch();
            for (key, cell) in cells {
                if let (Ok(_), Ok(cell)) = (job_of(key), decoded(cell)) {
                    opened.add(&mut batch, key, cell)?;
                }
            }
            batch.commit().map_err(failed)
        })
    }
}

/// Returns whether a job that is not known here is gone.
fn knows_all(engine: &Engine, sweeps_from: &mut Option<u64>) -> bool {
    let Some(exchange) = &engine.exchange else { return true };
    *sweeps_from = sweeps_from.or_else(|| exchange.last_of_leader());
    exchange.standing().borrow().leads || sweeps_from.is_some_and(|from| engine.applied().0 >= from)
}

/// Starts the thread that removes the output of jobs that are gone: a member that does not lead is not told of their
/// removal, and a process may end between the two.
pub(super) fn start_sweep(engine: Weak<Engine>, outputs: Arc<Outputs>, guard: FailOnExit) -> std::io::Result<Periodic> {
    let mut after = None;
    Periodic::start("store-sweep", SWEEP_EVERY, guard, move || {
        let Some(engine) = engine.upgrade() else { return false };
        match outputs.sweep(&engine, after.take()) {
            Ok(next) => after = next,
            Err(error) => tracing::debug!(%error, "the output of jobs that are gone is left"),
        }
        true
    })
}

impl Place {
    /// Does something at the database; where there is none and none is to be created, nothing.
    fn call<T: Default>(
        &self,
        creates: bool,
        call: impl FnOnce(&Opened) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Some(opened) = self.opened(creates)? else { return Ok(T::default()) };
        let called = call(&opened);
        // After a write that failed every other one does.
        if called.is_err() && opened.db.persist(PersistMode::Buffer).is_err() {
            let mut stage = self.database.lock();
            if matches!(&*stage, Stage::Open(open) if Arc::ptr_eq(open, &opened)) {
                *stage = Stage::Failed(Arc::downgrade(&opened));
            }
        }
        called
    }

    /// Returns the database; `None` where there is none yet and none is to be created.
    fn opened(&self, creates: bool) -> Result<Option<Arc<Opened>>, StoreError> {
        let mut stage = self.database.lock();
        match &*stage {
            Stage::Open(opened) => return Ok(Some(Arc::clone(opened))),
            Stage::Closed => return Err(closed()),
            Stage::Failed(former) if former.strong_count() > 0 => {
                return Err(StoreError::Unavailable("the output of jobs is being opened again".to_owned()));
            }
            Stage::Failed(_) | Stage::NotOpened => {}
        }
        let folder = self.directory.join(FOLDER);
        if !creates && !folder.exists() {
            return Ok(None);
        }
        let opened = open(&folder).or_else(|error| {
            if is_for_want_of_room(&error) {
                return Err(error);
            }
            tracing::warn!(%error, folder = %folder.display(), "the output of jobs cannot be opened; it is put aside");
            let aside = self.directory.join(PUT_ASIDE);
            remove_folder(&aside)?;
            fs::rename(&folder, aside)?;
            open(&folder)
        });
        let opened = Arc::new(opened.map_err(failed)?);
        *stage = Stage::Open(Arc::clone(&opened));
        Ok(Some(opened))
    }
}

fn open(folder: &Path) -> Result<Opened, fjall::Error> {
    create_folders(folder)?;
    let db = Database::builder(folder)
        .cache_size(CACHE_BYTES)
        .max_journaling_size(JOURNAL_BYTES)
        .worker_threads(1)
        .open()?;
    let cells = db.keyspace("cells", || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES))?;
    Ok(Opened { db, cells })
}

impl Opened {
    /// Adds a cell to what is to be written: united with what is there, unless that is of another job, or cannot be
    /// read.
    fn add(&self, batch: &mut OwnedWriteBatch, key: &[u8], (new, of_job): Cell) -> Result<(), StoreError> {
        let there = self.cells.get(key).map_err(failed)?.and_then(|there| decoded(&there).ok());
        let there = there.filter(|(_, of_former)| of_former.is_none() || of_job.is_none() || *of_former == of_job);
        let united = match &there {
            Some((there, of_former)) => (there.clone().united(new), of_job.or(*of_former)),
            None => (new, of_job),
        };
        if there.as_ref() != Some(&united) {
            batch.insert(&self.cells, key, encoded(&united)?);
        }
        Ok(())
    }
}

#[async_trait]
impl OutputStore for Outputs {
    async fn write(&self, cells: Vec<(CellKey, OutputCell)>) -> Result<(), StoreError> {
        let write = move |opened: &Opened| {
            let mut batch = opened.db.batch();
            for (key, cell) in cells {
                opened.add(&mut batch, &key_of(&key), (cell, Some(key.created_at)))?;
            }
            batch.commit().map_err(failed)
        };
        self.on_thread(true, write).await
    }

    async fn read(&self, keys: &[CellKey]) -> Result<Vec<Option<OutputCell>>, StoreError> {
        let (count, keys) = (keys.len(), keys.iter().map(|key| (key_of(key), key.created_at)).collect::<Vec<_>>());
        let read = move |Opened { cells, .. }: &Opened| {
            let read = |(key, created_at): &(Vec<u8>, Timestamp)| {
                let cell = cells.get(key).map_err(failed)?.map(|cell| decoded(&cell)).transpose()?;
                let is_of_job = |(_, of_job): &Cell| of_job.is_none_or(|of_job| of_job == *created_at);
                Ok(cell.filter(is_of_job).map(|(cell, _)| cell))
            };
            keys.iter().map(read).collect::<Result<Vec<_>, _>>()
        };
        let mut read = self.on_thread(false, read).await?;
        read.resize(count, None);
        Ok(read)
    }

    async fn remove(&self, attempts: &[(JobId, RangeInclusive<Fence>)]) -> Result<(), StoreError> {
        let range = |(job, fences): &(JobId, RangeInclusive<Fence>)| {
            (attempt_key(job, *fences.start()), attempt_key(job, fences.end().next()))
        };
        let ranges: Vec<_> = attempts.iter().map(range).collect();
        let remove = move |Opened { db, cells }: &Opened| {
            ranges.iter().try_for_each(|(from, to)| remove_all(db, cells, from, to))
        };
        self.on_thread(false, remove).await
    }
}

/// Returns the start of the keys of an attempt's cells.
fn attempt_key(job: &JobId, fence: Fence) -> Vec<u8> {
    [job.as_str().as_bytes(), &[0], &fence.get().to_be_bytes()].concat()
}

pub(super) fn key_of(key: &CellKey) -> Vec<u8> {
    let mut bytes = attempt_key(&key.of.job, key.of.fence);
    bytes.extend([key.stream as u8, key.slot as u8]);
    bytes
}

/// Returns the first of all keys after those of a job: no id has a character that sorts before the one after zero.
fn after_job(job: &JobId) -> Vec<u8> {
    [job.as_str().as_bytes(), &[1]].concat()
}

/// Returns the job that a key begins with.
fn job_of(key: &[u8]) -> Result<JobId, StoreError> {
    let id = key.split(|byte| *byte <= 1).next().unwrap_or_default();
    let id = std::str::from_utf8(id).ok().and_then(|id| JobId::new(id).ok());
    id.ok_or_else(|| StoreError::Corrupt("a key of the output names no job".to_owned()))
}

fn remove_all(db: &Database, cells: &Keyspace, from: &[u8], to: &[u8]) -> Result<(), StoreError> {
    let mut batch = db.batch();
    for cell in cells.range(from..to) {
        batch.remove(cells, cell.key().map_err(failed)?);
    }
    if batch.is_empty() { Ok(()) } else { batch.commit().map_err(failed) }
}

/// Writes a cell as it is stored.
///
/// # Errors
/// [`StoreError::Corrupt`] when it cannot be written.
pub(super) fn encoded((cell, of_job): &Cell) -> Result<Vec<u8>, StoreError> {
    let unwritable = |error: postcard::Error| StoreError::Corrupt(error.to_string());
    let OutputCell { offset, bytes, is_end, gaps } = cell;
    let bytes = postcard::to_stdvec(&StoredCell { offset: *offset, is_end: *is_end, bytes }).map_err(unwritable)?;
    if of_job.is_none() && gaps.is_empty() {
        return Ok(bytes);
    }
    let behind = Behind { created_ms: of_job.map(Timestamp::as_millis), gaps: gaps.clone() };
    postcard::to_extend(&behind, bytes).map_err(unwritable)
}

/// Reads a cell as it is stored.
///
/// # Errors
/// [`StoreError::Corrupt`] when it is none.
pub(super) fn decoded(stored: &[u8]) -> Result<Cell, StoreError> {
    let corrupt = |why: &dyn std::fmt::Display| StoreError::Corrupt(format!("a part of an output: {why}"));
    let (cell, rest) = postcard::take_from_bytes::<StoredCell>(stored).map_err(|error| corrupt(&error))?;
    let mut read = OutputCell::whole(cell.offset, cell.bytes.to_vec(), cell.is_end);
    let mut created_at = None;
    if !rest.is_empty() {
        let (behind, _) = postcard::take_from_bytes::<Behind>(rest).map_err(|error| corrupt(&error))?;
        read.gaps = behind.gaps;
        created_at = behind.created_ms.map(Timestamp::from_millis);
    }
    if read.is_valid() { Ok((read, created_at)) } else { Err(corrupt(&"it does not lie within one cell")) }
}

#[cfg(test)]
mod tests;
