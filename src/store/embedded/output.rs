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
use std::ops::{Bound, Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
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
/// The time between two looks for the output of jobs that are gone, and how long each takes at most.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
const SWEEP_FOR: Duration = Duration::from_millis(200);
/// How long a look waits for what is to be applied before it goes on.
const APPLIED_IN: Duration = Duration::from_millis(20);

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
    /// Held from the look at what is there until it is written over, or removed.
    writes: Mutex<()>,
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

    /// Removes the output of jobs that are gone, and of attempts of long ago, of the jobs after `after`, for
    /// [`SWEEP_FOR`]. Returns the job after which the next call begins; `None` when it begins at the first.
    fn sweep(&self, engine: &Engine, after: Option<JobId>) -> Result<Option<JobId>, StoreError> {
        let (mut after, begun) = (after, Instant::now());
        self.place.call(false, |opened| {
            while begun.elapsed() < SWEEP_FOR {
                let from = after.as_ref().map_or_else(Vec::new, after_job);
                let Some(first) = opened.cells.range(from..).next() else { return Ok(None) };
                let job = job_of(&first.key().map_err(failed)?)?;
                // As long as it is held, no output comes of a job that is not known here yet.
                let mut sweeps_from = self.sweeps_from.lock();
                if !knows_all(engine, &mut sweeps_from) {
                    drop(sweeps_from);
                    thread::sleep(APPLIED_IN);
                    continue;
                }
                let end = match engine.fence_of(&job)? {
                    None => after_job(&job),
                    Some(fence) => attempt_key(&job, Fence::new((fence.get() + 1).saturating_sub(KEPT_FENCES))),
                };
                opened.remove_all(&attempt_key(&job, Fence::new(0)), &end)?;
                drop(sweeps_from);
                after = Some(job);
            }
            Ok(after)
        })
    }

    /// Returns the keys of the cells after a key, `most` of them at most.
    pub(super) fn keys_after(&self, after: &[u8], most: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        self.place.call(false, |opened| {
            let behind = opened.cells.range::<&[u8], _>((Bound::Excluded(after), Bound::Unbounded)).take(most);
            behind.map(|cell| Ok(cell.key().map_err(failed)?.to_vec())).collect()
        })
    }

    /// Returns the entry of the log by which all jobs are known whose output is here, as far as other members have sent
    /// it.
    pub(super) fn of_jobs(&self) -> u64 {
        self.sweeps_from.lock().unwrap_or(0)
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
        let read = |(key, cell): &StoredPair| Some((job_of(key).ok().map(|_| key.to_vec())?, decoded(cell).ok()?));
        self.place.call(true, |opened| opened.add_all(cells.iter().filter_map(read), is_later))
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
    Ok(Opened { db, cells, writes: Mutex::default() })
}

/// Which of two cells of different jobs of one id, there and new, stays: `true` for the new one.
type Replaces = fn(Option<Timestamp>, Option<Timestamp>) -> bool;

/// A copy may come late, when a later job has the id.
fn is_later(there: Option<Timestamp>, new: Option<Timestamp>) -> bool {
    new > there
}

/// Who writes has looked at the job.
const fn is_written(_: Option<Timestamp>, _: Option<Timestamp>) -> bool {
    true
}

impl Opened {
    /// Writes cells, each united with what is there, where that is of the same job and can be read.
    fn add_all(&self, new: impl Iterator<Item = (Vec<u8>, Cell)>, replaces: Replaces) -> Result<(), StoreError> {
        let _writes = self.writes.lock();
        let mut batch = self.db.batch();
        for (key, (new, of_job)) in new {
            let there = self.cells.get(&key).map_err(failed)?.and_then(|there| decoded(&there).ok());
            let cell = match there {
                Some((there, of_former)) if of_former == of_job => {
                    let united = there.clone().united(new);
                    if united == there {
                        continue;
                    }
                    united
                }
                Some((_, of_former)) if !replaces(of_former, of_job) => continue,
                _ => new,
            };
            batch.insert(&self.cells, key, encoded(&(cell, of_job))?);
        }
        if batch.is_empty() { Ok(()) } else { batch.commit().map_err(failed) }
    }

    fn remove_all(&self, from: &[u8], to: &[u8]) -> Result<(), StoreError> {
        let _writes = self.writes.lock();
        let mut batch = self.db.batch();
        for cell in self.cells.range(from..to) {
            batch.remove(&self.cells, cell.key().map_err(failed)?);
        }
        if batch.is_empty() { Ok(()) } else { batch.commit().map_err(failed) }
    }
}

#[async_trait]
impl OutputStore for Outputs {
    async fn write(&self, cells: Vec<(CellKey, OutputCell)>) -> Result<(), StoreError> {
        let cells = cells.into_iter().map(|(key, cell)| (key_of(&key), (cell, Some(key.created_at))));
        self.on_thread(true, move |opened| opened.add_all(cells, is_written)).await
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
        let remove = move |opened: &Opened| ranges.iter().try_for_each(|(from, to)| opened.remove_all(from, to));
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
