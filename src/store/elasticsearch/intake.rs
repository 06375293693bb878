//! The writes and reads that wait to be sent: a bounded queue that hands out everything that is waiting at once.
//!
//! Callers put pieces in, each with as many items as its caller had; workers take them out in batches. A batch is never
//! waited for: a worker that is free takes all waiting pieces that fit, and the fuller the queue, the fuller the
//! batches.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;

use crate::store::StoreError;

/// How long a caller should wait before it tries again when the queue is full.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The size of a piece or a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// The number of items.
    pub(super) items: usize,
    /// The approximate number of bytes.
    pub(super) bytes: usize,
}

impl Size {
    /// Returns the size of both together.
    pub(super) fn plus(self, other: Self) -> Self {
        Self { items: self.items + other.items, bytes: self.bytes + other.bytes }
    }

    /// Returns whether this size is within `bound`.
    pub(super) fn fits(self, bound: Self) -> bool {
        self.items <= bound.items && self.bytes <= bound.bytes
    }
}

/// A piece of work that is put into an intake.
pub(super) trait Piece: Send + 'static {
    /// Returns the size of the piece.
    fn size(&self) -> Size;
}

/// Room in the queue, given back when it is dropped: once the piece it was taken for has been answered.
pub(super) type Room = Arc<OwnedSemaphorePermit>;

/// The sending side of the queue, with the workers of the receiving side.
pub(super) struct Intake<P> {
    sender: Mutex<Option<mpsc::UnboundedSender<P>>>,
    room: Arc<Semaphore>,
    capacity: u32,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

/// The receiving side of the queue, shared by the workers.
struct Outlet<P> {
    waiting: tokio::sync::Mutex<Waiting<P>>,
    bound: Size,
}

struct Waiting<P> {
    receiver: mpsc::UnboundedReceiver<P>,
    /// A piece that was taken out but did not fit its batch; the next batch starts with it.
    held: Option<P>,
}

/// Creates an intake with `capacity` units of room, and its outlet, whose batches stay within `bound`.
fn intake<P: Piece>(capacity: u32, bound: Size) -> (Intake<P>, Outlet<P>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (sender, room) = (Mutex::new(Some(sender)), Arc::new(Semaphore::new(capacity as usize)));
    let waiting = tokio::sync::Mutex::new(Waiting { receiver, held: None });
    (Intake { sender, room, capacity, workers: Mutex::default() }, Outlet { waiting, bound })
}

impl<P: Piece> Intake<P> {
    /// Starts workers on a queue with room for `capacity` units. Each does `work` with one batch within `bound` at a
    /// time.
    pub(super) fn start<F: Future<Output = ()> + Send>(
        capacity: u32,
        bound: Size,
        workers: usize,
        work: impl Fn(Vec<P>) -> F + Clone + Send + 'static,
    ) -> Self {
        let (mut intake, outlet) = intake(capacity, bound);
        let outlet = Arc::new(outlet);
        let worker = |_| {
            let (outlet, work) = (Arc::clone(&outlet), work.clone());
            tokio::spawn(async move {
                while let Some(batch) = outlet.take().await {
                    work(batch).await;
                }
            })
        };
        *intake.workers.get_mut() = (0..workers.max(1)).map(worker).collect();
        intake
    }

    /// Reserves room for `units`, capped at the queue's capacity: a caller with more than the whole capacity gets its
    /// turn when the queue is empty.
    pub(super) fn room(&self, units: usize) -> Result<Room, StoreError> {
        let units = u32::try_from(units).unwrap_or(u32::MAX).min(self.capacity);
        let permit = Arc::clone(&self.room).try_acquire_many_owned(units);
        permit.map(Arc::new).map_err(|_| StoreError::Overloaded { retry_after: RETRY_AFTER })
    }

    /// Puts `piece` into the queue.
    pub(super) fn put(&self, piece: P) -> Result<(), StoreError> {
        let closed = || StoreError::Unavailable("it is closed".to_owned());
        self.sender.lock().as_ref().ok_or_else(closed)?.send(piece).map_err(|_| closed())
    }

    /// Closes the intake and waits until the workers have finished all waiting pieces.
    pub(super) async fn close(&self) {
        self.sender.lock().take();
        let workers = std::mem::take(&mut *self.workers.lock());
        for worker in workers {
            if let Err(error) = worker.await {
                tracing::error!("a worker of the store has failed: {error}");
            }
        }
    }
}

impl<P: Piece> Outlet<P> {
    /// Waits for a piece, and takes with it all waiting pieces that fit one batch. Returns `None` when the intake is
    /// closed and empty.
    async fn take(&self) -> Option<Vec<P>> {
        let mut waiting = self.waiting.lock().await;
        let first = match waiting.held.take() {
            Some(held) => held,
            None => waiting.receiver.recv().await?,
        };
        let mut size = first.size();
        let mut batch = vec![first];
        while let Ok(next) = waiting.receiver.try_recv() {
            size = size.plus(next.size());
            if !size.fits(self.bound) {
                waiting.held = Some(next);
                break;
            }
            batch.push(next);
        }
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Items(usize);

    impl Piece for Items {
        fn size(&self) -> Size {
            Size { items: self.0, bytes: 0 }
        }
    }

    #[tokio::test]
    async fn all_that_waits_is_taken_up_to_the_bound_in_the_order_it_came() {
        let (intake, outlet) = intake(100, Size { items: 10, bytes: 10 });
        for items in [4, 5, 2, 20, 1] {
            intake.put(Items(items)).expect("an open intake");
        }
        intake.close().await;
        let mut batches = Vec::new();
        while let Some(batch) = outlet.take().await {
            batches.push(batch.iter().map(|piece| piece.0).collect::<Vec<_>>());
        }
        assert_eq!(batches, [vec![4, 5], vec![2], vec![20], vec![1]]);
        assert!(intake.put(Items(1)).is_err());
    }

    #[test]
    fn a_full_queue_refuses_and_room_comes_back() {
        let (intake, _outlet) = intake::<Items>(10, Size { items: 10, bytes: 10 });
        let room = intake.room(8).expect("room");
        assert!(matches!(intake.room(3), Err(StoreError::Overloaded { .. })));
        drop(room);
        assert!(intake.room(1_000).is_ok(), "more than fits, when nobody else waits");
    }
}
