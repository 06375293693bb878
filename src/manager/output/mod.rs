//! The output of attempts: pieces that workers send become the cells that the store keeps, and are read back.
//!
//! [`assembly`] makes cells of pieces; [`reading`] makes streams of cells. What holds: a piece that comes again changes
//! nothing; a worker that lost its lease is refused, at the latest [`TRUSTED`] after that; and whatever a job writes,
//! the memory here is bounded by [`OPEN_STREAMS`] cells.

mod assembly;
mod piece;
mod reading;

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use self::assembly::assemble;
use crate::clock::Timestamp;
use crate::job::{CallingWorker, Fence, Job, JobId};
use crate::manager::Manager;
use crate::manager::read::Watchers;
use crate::manager::request::ManagerError;
use crate::store::output::KEPT_FENCES;
use crate::store::recent::RecentMap;
use crate::store::{CellKey, OutputCell, OutputOf, OutputStore, Sought};

pub use self::piece::OutputPiece;
pub use self::reading::{AttemptChoice, AttemptOutput, OutputFrom, StreamOutput};

/// The most streams whose last cell is kept in memory, at least; at most twice as many are.
const OPEN_STREAMS: usize = 4_096;
/// How long a lease that was found to hold is taken to do so, where a look at the job costs a request.
const TRUSTED: Duration = Duration::from_secs(5);

/// What the manager knows of outputs.
pub(crate) struct Outputs {
    store: Arc<dyn OutputStore>,
    /// The last cell of each stream that was written lately, by the place of its first one.
    open: Mutex<RecentMap<CellKey, OutputCell, OPEN_STREAMS>>,
    /// When the lease of a worker was last found to hold, and when the job was created.
    trusted: Mutex<RecentMap<(OutputOf, CallingWorker), (Instant, Timestamp), OPEN_STREAMS>>,
    followers: Watchers,
}

impl Outputs {
    pub(crate) fn new(store: Arc<dyn OutputStore>) -> Self {
        Self { store, open: Mutex::default(), trusted: Mutex::default(), followers: Watchers::default() }
    }

    /// Returns the last known cell of these streams: as it is remembered, or else as it is stored. With it comes the
    /// first cell of a stream that is not at its beginning, so that every stream has one.
    async fn known(&self, pieces: &[Taken<'_>]) -> Result<Known, ManagerError> {
        let mut known = Known::default();
        let mut missing = Vec::new();
        {
            let open = self.open.lock();
            for taken in pieces {
                let (piece, stream) = (taken.piece, taken.stream());
                match open.get(&stream).filter(|cell| cell.end() >= piece.offset) {
                    Some(cell) => drop(known.last.insert(stream, cell.clone())),
                    None if piece.offset == 0 => {}
                    None => missing.extend([piece.offset - 1, 0].map(|at| taken.cell_at(at))),
                }
            }
        }
        if missing.is_empty() {
            return Ok(known);
        }
        for (key, cell) in missing.iter().zip(self.store.read_here(&missing).await?) {
            let stream = CellKey::at(&key.of, key.created_at, key.stream, 0);
            match cell {
                Some(cell) => {
                    let last = known.last.entry(stream).or_insert_with(|| cell.clone());
                    if last.end() < cell.end() {
                        *last = cell;
                    }
                }
                None if key.slot == 0 => drop(known.without_first.insert(stream)),
                None => {}
            }
        }
        Ok(known)
    }

    /// Writes the cells of pieces, and wakes whoever follows them.
    async fn put(&self, pieces: &[Taken<'_>]) -> Result<(), ManagerError> {
        let known = self.known(pieces).await?;
        let mut cells: HashMap<CellKey, OutputCell> = HashMap::new();
        let mut last = known.last;
        cells.extend(known.without_first.into_iter().map(|first| (first, OutputCell::whole(0, Vec::new(), false))));
        for taken in pieces {
            let stream = taken.stream();
            for cell in assemble(last.get(&stream), taken.piece) {
                last.insert(stream.clone(), cell.clone());
                cells.insert(CellKey::of_cell(&taken.piece.of, taken.created_at, taken.piece.stream, &cell), cell);
            }
        }
        if cells.is_empty() {
            return Ok(());
        }
        self.store.write(cells.into_iter().collect()).await?;
        let mut open = self.open.lock();
        last.into_iter().for_each(|(stream, cell)| open.insert(stream, cell));
        drop(open);
        let jobs: HashSet<&JobId> = pieces.iter().map(|taken| &taken.piece.of.job).collect();
        jobs.into_iter().for_each(|job| self.followers.wake(job));
        Ok(())
    }

    /// Removes the output of attempts. What cannot be removed now is left: it takes up space and does no harm.
    pub(crate) async fn remove(&self, attempts: Vec<(JobId, RangeInclusive<Fence>)>) {
        if attempts.is_empty() {
            return;
        }
        // Another job of the same id begins with the same fences.
        let gone: HashMap<&JobId, &RangeInclusive<Fence>> =
            attempts.iter().map(|(job, fences)| (job, fences)).collect();
        let stays = |of: &OutputOf| gone.get(&of.job).is_none_or(|fences| !fences.contains(&of.fence));
        self.open.lock().retain(|first| stays(&first.of));
        self.trusted.lock().retain(|(of, _)| stays(of));
        if let Err(error) = self.store.remove(&attempts).await {
            tracing::debug!(%error, jobs = attempts.len(), "the output of jobs is left over");
        }
    }
}

/// A piece that is taken, and when its job was created.
struct Taken<'p> {
    piece: &'p OutputPiece,
    created_at: Timestamp,
}

impl Taken<'_> {
    fn cell_at(&self, offset: u64) -> CellKey {
        CellKey::at(&self.piece.of, self.created_at, self.piece.stream, offset)
    }

    /// Returns the place of the first cell of its stream.
    fn stream(&self) -> CellKey {
        self.cell_at(0)
    }
}

/// What is known of streams before pieces are added to them, by the places of their first cells.
#[derive(Default)]
struct Known {
    last: HashMap<CellKey, OutputCell>,
    without_first: HashSet<CellKey>,
}

impl Manager {
    /// Keeps pieces of the output of a worker's attempts, and returns for each, in the same order, whether it is kept.
    /// A piece that is there already changes nothing.
    ///
    /// # Errors
    /// Each piece has its own result: [`ManagerError::NotFound`] and [`ManagerError::Refused`] as for a heartbeat;
    /// otherwise the store's error, after which the piece can be sent again.
    pub async fn put_output(
        &self,
        worker: impl Into<CallingWorker>,
        pieces: &[OutputPiece],
    ) -> Vec<Result<(), ManagerError>> {
        let worker = worker.into();
        let mut verdicts: Vec<Result<Timestamp, ManagerError>> = self.may_write_output(&worker, pieces).await;
        let taken = |(piece, verdict)| Some(Taken { piece, created_at: *Result::as_ref(verdict).ok()? });
        let taken: Vec<Taken<'_>> = pieces.iter().zip(&verdicts).filter_map(taken).collect();
        let outputs = &self.shared.outputs;
        if let Err(error) = outputs.put(&taken).await {
            verdicts.iter_mut().filter(|verdict| verdict.is_ok()).for_each(|verdict| *verdict = Err(error.clone()));
        } else {
            let taken = || taken.iter().map(|taken| taken.piece);
            let bytes: usize = taken().map(|piece| piece.bytes.len()).sum();
            metrics::counter!("leasehold_output_bytes_total").increment(bytes as u64);
            let begun = taken().filter(|piece| piece.offset == 0 && piece.of.fence.get() > KEPT_FENCES);
            let former = |piece: &OutputPiece| {
                let fence = Fence::new(piece.of.fence.get() - KEPT_FENCES);
                (piece.of.job.clone(), fence..=fence)
            };
            outputs.remove(begun.map(former).collect()).await;
        }
        verdicts.into_iter().map(|verdict| verdict.map(drop)).collect()
    }

    /// Returns for each of these pieces when its job was created, or why the worker may not write it.
    async fn may_write_output(
        &self,
        worker: &CallingWorker,
        pieces: &[OutputPiece],
    ) -> Vec<Result<Timestamp, ManagerError>> {
        let trusts = !self.shared.store.has_realtime_search();
        let now = Instant::now();
        let attempts: HashSet<&OutputOf> = pieces.iter().map(|piece| &piece.of).collect();
        let mut verdicts: HashMap<&OutputOf, Result<Timestamp, ManagerError>> = HashMap::new();
        let mut unsure: Vec<&OutputOf> = Vec::new();
        {
            let trusted = self.shared.outputs.trusted.lock();
            for of in attempts {
                let found = trusted.get(&(of.clone(), worker.clone()));
                match found.filter(|(at, _)| trusts && now < *at + TRUSTED) {
                    Some((_, created_at)) if self.is_not_known_to_have_lost(of, worker, *created_at) => {
                        verdicts.insert(of, Ok(*created_at));
                    }
                    _ => unsure.push(of),
                }
            }
        }
        let sought: Vec<Sought<'_>> = unsure.iter().map(|of| Sought::from(&of.job)).collect();
        let found = self.shared.store.look_up(&sought).await;
        {
            let mut trusted = self.shared.outputs.trusted.lock();
            for (of, found) in unsure.into_iter().zip(found) {
                let verdict = match found {
                    Ok(Some(found)) => takes_output(&found.job, of, worker).map(|()| found.job.created_at),
                    Ok(None) => Err(ManagerError::NotFound(of.job.clone())),
                    Err(error) => Err(ManagerError::Store(error)),
                };
                if let Ok(created_at) = verdict {
                    trusted.insert((of.clone(), worker.clone()), (now, created_at));
                }
                verdicts.insert(of, verdict);
            }
        }
        // Each has one.
        pieces.iter().filter_map(|piece| verdicts.get(&piece.of).cloned()).collect()
    }

    /// Returns whether nothing that this manager remembers of the job speaks against the worker's lease.
    fn is_not_known_to_have_lost(&self, of: &OutputOf, worker: &CallingWorker, created_at: Timestamp) -> bool {
        let takes_it = |job: &Job| job.created_at == created_at && takes_output(job, of, worker).is_ok();
        self.shared.work.known.latest(&of.job).is_none_or(|known| takes_it(&known.job))
    }
}

fn takes_output(job: &Job, of: &OutputOf, worker: &CallingWorker) -> Result<(), ManagerError> {
    Ok(job.takes_output_of(&worker.proof(of.fence))?)
}
