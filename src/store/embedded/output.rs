//! The output of attempts: a database of its own in the data directory, `output/`.
//!
//! It is opened when it is first needed, and again after a write has failed, as one does on a full disk. Nothing is
//! synced by a call, so that what the system has not written when the machine stops is lost; a process that is killed
//! loses nothing. Nothing else depends on it: a folder that cannot be opened is put aside, and the output goes on in a
//! new one.
//!
//! A key is the job's id, a zero, the fence, the stream and the slot. So the output of a job lies together, and that of
//! jobs that are gone is found by going from one job to the next.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::directory::{create_folders, remove_folder};
use super::disk::failed;
use super::engine::Engine;
use super::error::{closed, is_for_want_of_room};
use super::exits::FailOnExit;
use super::periodic::Periodic;
use crate::job::{Fence, JobId};
use crate::store::StoreError;
use crate::store::output::{CellKey, OutputCell, OutputStore};

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

/// The output of the jobs of a data directory.
pub(super) struct Outputs {
    directory: PathBuf,
    database: Arc<Mutex<Stage>>,
    calls: Arc<Semaphore>,
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

impl Outputs {
    /// Creates the outputs of a data directory. Nothing is created before the first cell.
    pub(super) fn in_directory(directory: &Path) -> Arc<Self> {
        Arc::new(Self {
            directory: directory.to_owned(),
            database: Arc::new(Mutex::new(Stage::NotOpened)),
            calls: Arc::new(Semaphore::new(AT_ONCE)),
        })
    }

    /// Returns the database; `None` where there is none yet and none is to be created.
    fn opened(&self, creates: bool) -> Result<Option<Arc<Opened>>, StoreError> {
        opened(&self.directory, &mut self.database.lock(), creates)
    }

    /// Does something at the database, on a thread that may block.
    async fn on_thread<T: Default + Send + 'static>(
        &self,
        creates: bool,
        call: impl FnOnce(&Opened) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn = Arc::clone(&self.calls).acquire_owned().await.map_err(|_| closed())?;
        let (directory, database) = (self.directory.clone(), Arc::clone(&self.database));
        let called = spawn_blocking(move || {
            // The call goes on where its caller has gone.
            let _turn = turn;
            let Some(opened) = opened(&directory, &mut database.lock(), creates)? else { return Ok(T::default()) };
            let called = call(&opened);
            // After a write that failed every other one does.
            if called.is_err() && opened.db.persist(PersistMode::Buffer).is_err() {
                let mut stage = database.lock();
                if matches!(&*stage, Stage::Open(open) if Arc::ptr_eq(open, &opened)) {
                    *stage = Stage::Failed(Arc::downgrade(&opened));
                }
            }
            called
        });
        called.await.map_err(|error| StoreError::Unavailable(format!("the output of jobs: {error}")))?
    }

    /// Writes what is not yet with the system, and gives the database up.
    pub(super) async fn close(&self) {
        // All of them: calls under way are done then, and none begins.
        let all = self.calls.acquire_many(AT_ONCE as u32).await;
        self.calls.close();
        drop(all);
        let stage = std::mem::replace(&mut *self.database.lock(), Stage::Closed);
        let release = move || {
            if let Stage::Open(opened) = stage
                && let Err(error) = opened.db.persist(PersistMode::SyncAll)
            {
                tracing::warn!(%error, "the last of the output of jobs may not be on the disk");
            }
        };
        drop(spawn_blocking(release).await);
    }

    /// Removes the output of jobs that are gone, of at most [`SWEPT_JOBS`] jobs after `after`. Returns the job after
    /// which the next call begins; `None` when it begins anew.
    fn sweep(&self, engine: &Engine, after: Option<&JobId>) -> Result<Option<JobId>, StoreError> {
        let Some(opened) = self.opened(false)? else { return Ok(None) };
        let Opened { db, cells } = &*opened;
        let mut from = after.map_or_else(Vec::new, after_job);
        for _ in 0..SWEPT_JOBS {
            let Some(first) = cells.range(from..).next() else { return Ok(None) };
            let job = job_of(&first.key().map_err(failed)?)?;
            if !engine.has_job(&job)? {
                remove_all(db, cells, job.as_str().as_bytes(), &after_job(&job))?;
            }
            from = after_job(&job);
        }
        job_of(&from).map(Some)
    }
}

/// Starts the thread that removes the output of jobs that are gone: a member that does not lead is not told of their
/// removal, and a process may end between the two.
pub(super) fn start_sweep(engine: Weak<Engine>, outputs: Arc<Outputs>, guard: FailOnExit) -> std::io::Result<Periodic> {
    let mut after = None;
    Periodic::start("store-sweep", SWEEP_EVERY, guard, move || {
        let Some(engine) = engine.upgrade() else { return false };
        match outputs.sweep(&engine, after.as_ref()) {
            Ok(next) => after = next,
            Err(error) => tracing::debug!(%error, "the output of jobs that are gone is left"),
        }
        true
    })
}

fn opened(directory: &Path, stage: &mut Stage, creates: bool) -> Result<Option<Arc<Opened>>, StoreError> {
    match stage {
        Stage::Open(opened) => return Ok(Some(Arc::clone(opened))),
        Stage::Closed => return Err(closed()),
        Stage::Failed(former) if former.strong_count() > 0 => {
            return Err(StoreError::Unavailable("the output of jobs is being opened again".to_owned()));
        }
        Stage::Failed(_) | Stage::NotOpened => {}
    }
    let folder = directory.join(FOLDER);
    if !creates && !folder.exists() {
        return Ok(None);
    }
    let opened = open(&folder).or_else(|error| {
        if is_for_want_of_room(&error) {
            return Err(error);
        }
        tracing::warn!(%error, folder = %folder.display(), "the output of jobs cannot be opened; it is put aside");
        let aside = directory.join(PUT_ASIDE);
        remove_folder(&aside)?;
        fs::rename(&folder, aside)?;
        open(&folder)
    });
    let opened = Arc::new(opened.map_err(failed)?);
    *stage = Stage::Open(Arc::clone(&opened));
    Ok(Some(opened))
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

#[async_trait]
impl OutputStore for Outputs {
    async fn write(&self, written: Vec<(CellKey, OutputCell)>) -> Result<(), StoreError> {
        let write = move |Opened { db, cells }: &Opened| {
            let mut batch = db.batch();
            for (key, cell) in written {
                let key = key_of(&key);
                let there = cells.get(&key).map_err(failed)?;
                let there = there.as_deref().map(stored_of).transpose()?;
                if there.is_none_or(|there| there.rank() < cell.rank()) {
                    batch.insert(cells, key, stored(&cell)?);
                }
            }
            batch.commit().map_err(failed)
        };
        self.on_thread(true, write).await
    }

    async fn read(&self, keys: &[CellKey]) -> Result<Vec<Option<OutputCell>>, StoreError> {
        let (count, keys) = (keys.len(), keys.iter().map(key_of).collect::<Vec<_>>());
        let read = move |Opened { cells, .. }: &Opened| {
            let read = |key| cells.get(key).map_err(failed)?.map(|stored| cell_of(&stored)).transpose();
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
    batch.commit().map_err(failed)
}

impl StoredCell<'_> {
    fn rank(&self) -> u64 {
        OutputCell::rank_of(self.offset + self.bytes.len() as u64, self.is_end)
    }
}

pub(super) fn stored(cell: &OutputCell) -> Result<Vec<u8>, StoreError> {
    let stored = StoredCell { offset: cell.offset, is_end: cell.is_end, bytes: &cell.bytes };
    postcard::to_stdvec(&stored).map_err(|error| StoreError::Corrupt(error.to_string()))
}

fn stored_of(stored: &[u8]) -> Result<StoredCell<'_>, StoreError> {
    postcard::from_bytes(stored).map_err(|error| StoreError::Corrupt(format!("a part of an output: {error}")))
}

fn cell_of(stored: &[u8]) -> Result<OutputCell, StoreError> {
    let StoredCell { offset, is_end, bytes } = stored_of(stored)?;
    Ok(OutputCell { offset, bytes: bytes.to_vec(), is_end })
}
