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
use crate::job::{Fence, Job, JobId, LeaseProof, WorkerId};
use crate::manager::Manager;
use crate::manager::read::Watchers;
use crate::manager::request::ManagerError;
use crate::store::recent::RecentMap;
use crate::store::{CellKey, OutputCell, OutputOf, OutputStore, Stream};

pub use self::piece::OutputPiece;
pub use self::reading::{AttemptChoice, AttemptOutput, OutputFrom, StreamOutput};

/// The most streams whose last cell is kept in memory, at least; at most twice as many are.
const OPEN_STREAMS: usize = 4_096;
/// How long a lease that was found to hold is taken to do so, where a look at the job costs a request.
const TRUSTED: Duration = Duration::from_secs(5);
/// The attempts of which output is kept, by fences: that of earlier ones is removed when a later one begins.
const KEPT_FENCES: u64 = 50;

/// What the manager knows of outputs.
pub(crate) struct Outputs {
    store: Arc<dyn OutputStore>,
    /// The last cell of each stream that was written lately.
    open: Mutex<RecentMap<(OutputOf, Stream), OutputCell, OPEN_STREAMS>>,
    /// When the lease of a worker was last found to hold.
    trusted: Mutex<RecentMap<(OutputOf, WorkerId), Instant, OPEN_STREAMS>>,
    followers: Watchers,
}

impl Outputs {
    pub(crate) fn new(store: Arc<dyn OutputStore>) -> Self {
        Self { store, open: Mutex::default(), trusted: Mutex::default(), followers: Watchers::default() }
    }

    /// Returns the last known cell of these streams: as it is remembered, or else as it is stored. With it comes the
    /// first cell of a stream that is not at its beginning, so that every stream has one.
    async fn known(&self, pieces: &[&OutputPiece]) -> Result<Known, ManagerError> {
        let mut known = Known::default();
        let mut missing = Vec::new();
        {
            let open = self.open.lock();
            for piece in pieces {
                let stream = (piece.of.clone(), piece.stream);
                match open.get(&stream).filter(|cell| cell.end() >= piece.offset) {
                    Some(cell) => drop(known.last.insert(stream, cell.clone())),
                    None if piece.offset == 0 => {}
                    None => missing.extend([piece.offset - 1, 0].map(|at| CellKey::at(&piece.of, piece.stream, at))),
                }
            }
        }
        if missing.is_empty() {
            return Ok(known);
        }
        for (key, cell) in missing.iter().zip(self.store.read(&missing).await?) {
            let stream = (key.of.clone(), key.stream);
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
    async fn put(&self, pieces: &[&OutputPiece]) -> Result<(), ManagerError> {
        let known = self.known(pieces).await?;
        let mut cells: HashMap<CellKey, OutputCell> = HashMap::new();
        let mut last = known.last;
        for (of, stream) in known.without_first {
            let first = OutputCell { offset: 0, bytes: Vec::new(), is_end: false };
            cells.insert(CellKey::at(&of, stream, 0), first);
        }
        for piece in pieces {
            let stream = (piece.of.clone(), piece.stream);
            for cell in assemble(last.get(&stream), piece) {
                last.insert(stream.clone(), cell.clone());
                cells.insert(CellKey::at(&piece.of, piece.stream, cell.offset), cell);
            }
        }
        if cells.is_empty() {
            return Ok(());
        }
        self.store.write(cells.into_iter().collect()).await?;
        let mut open = self.open.lock();
        last.into_iter().for_each(|(stream, cell)| open.insert(stream, cell));
        drop(open);
        let jobs: HashSet<&JobId> = pieces.iter().map(|piece| &piece.of.job).collect();
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
        self.open.lock().retain(|(of, _)| stays(of));
        self.trusted.lock().retain(|(of, _)| stays(of));
        if let Err(error) = self.store.remove(&attempts).await {
            tracing::debug!(%error, jobs = attempts.len(), "the output of jobs is left over");
        }
    }
}

/// What is known of streams before pieces are added to them.
#[derive(Default)]
struct Known {
    last: HashMap<(OutputOf, Stream), OutputCell>,
    without_first: HashSet<(OutputOf, Stream)>,
}

impl Manager {
    /// Keeps pieces of the output of a worker's attempts, and returns for each, in the same order, whether it is kept.
    /// A piece that is there already changes nothing.
    ///
    /// # Errors
    /// Each piece has its own result: [`ManagerError::NotFound`] and [`ManagerError::Refused`] as for a heartbeat;
    /// otherwise the store's error, after which the piece can be sent again.
    pub async fn put_output(&self, worker: &WorkerId, pieces: &[OutputPiece]) -> Vec<Result<(), ManagerError>> {
        let mut verdicts: Vec<Option<ManagerError>> = self.may_write_output(worker, pieces).await;
        let taken: Vec<&OutputPiece> =
            pieces.iter().zip(&verdicts).filter(|(_, verdict)| verdict.is_none()).map(|(piece, _)| piece).collect();
        let outputs = &self.shared.outputs;
        if let Err(error) = outputs.put(&taken).await {
            verdicts.iter_mut().filter(|verdict| verdict.is_none()).for_each(|verdict| *verdict = Some(error.clone()));
        } else {
            let bytes: usize = taken.iter().map(|piece| piece.bytes.len()).sum();
            metrics::counter!("leasehold_output_bytes_total").increment(bytes as u64);
            let begun = taken.iter().filter(|piece| piece.offset == 0 && piece.of.fence.get() > KEPT_FENCES);
            let former = |piece: &&OutputPiece| {
                let fence = Fence::new(piece.of.fence.get() - KEPT_FENCES);
                (piece.of.job.clone(), fence..=fence)
            };
            outputs.remove(begun.map(former).collect()).await;
        }
        verdicts.into_iter().map(|verdict| verdict.map_or(Ok(()), Err)).collect()
    }

    /// Returns why the worker may not write each of these pieces; `None` where it may.
    async fn may_write_output(&self, worker: &WorkerId, pieces: &[OutputPiece]) -> Vec<Option<ManagerError>> {
        let trusts = !self.shared.store.has_realtime_search();
        let now = Instant::now();
        let attempts: HashSet<&OutputOf> = pieces.iter().map(|piece| &piece.of).collect();
        let unsure: Vec<&OutputOf> = {
            let trusted = self.shared.outputs.trusted.lock();
            let is_trusted = |of: &&OutputOf| {
                let at = trusted.get(&((*of).clone(), worker.clone()));
                trusts && at.is_some_and(|at| now < *at + TRUSTED) && self.is_not_known_to_have_lost(of, worker)
            };
            attempts.into_iter().filter(|of| !is_trusted(of)).collect()
        };
        let ids: Vec<JobId> = unsure.iter().map(|of| of.job.clone()).collect();
        let mut refused: HashMap<&OutputOf, ManagerError> = HashMap::new();
        match self.shared.store.get(&ids).await {
            Ok(jobs) => {
                let mut trusted = self.shared.outputs.trusted.lock();
                for (of, job) in unsure.into_iter().zip(jobs) {
                    let verdict = match job {
                        Some(found) => takes_output(&found.job, of, worker),
                        None => Err(ManagerError::NotFound(of.job.clone())),
                    };
                    match verdict {
                        Ok(()) => trusted.insert((of.clone(), worker.clone()), now),
                        Err(error) => drop(refused.insert(of, error)),
                    }
                }
            }
            Err(error) => {
                refused.extend(unsure.into_iter().map(|of| (of, ManagerError::Store(error.clone()))));
            }
        }
        pieces.iter().map(|piece| refused.get(&piece.of).cloned()).collect()
    }

    /// Returns whether nothing that this manager remembers of the job speaks against the worker's lease.
    fn is_not_known_to_have_lost(&self, of: &OutputOf, worker: &WorkerId) -> bool {
        self.shared.work.known.latest(&of.job).is_none_or(|known| takes_output(&known.job, of, worker).is_ok())
    }
}

fn takes_output(job: &Job, of: &OutputOf, worker: &WorkerId) -> Result<(), ManagerError> {
    let proof = LeaseProof { worker_id: worker.clone(), fence: of.fence };
    Ok(job.takes_output_of(&proof)?)
}
