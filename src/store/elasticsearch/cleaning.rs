//! What decided writes leave behind, cleared away in the background: no answer waits for it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::bodies;
use super::context::Context;
use super::copies::{self, Copy};
use crate::job::BodyId;

/// The most clearings under way at once.
const AT_ONCE: usize = 4;
/// The most clearings that wait or are under way.
const MAX_WAITING: usize = 1_000;

/// What writes leave behind.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    /// Bodies that nothing refers to any more.
    pub(super) bodies: Vec<BodyId>,
    /// Copies in the archive of jobs that returned to the live index or were removed.
    pub(super) copies: Vec<Copy>,
    /// Whether one of the copies is of a job that returned.
    pub(super) some_came_back: bool,
}

/// Clears away what writes leave behind. This is tried once: a body left over takes up space and does no harm, and the
/// mover finds the copies that are left.
pub(super) struct Cleaner {
    room: Arc<Semaphore>,
    at_once: Arc<Semaphore>,
    /// The clearings that [`Cleaner::wait`] has not taken over.
    tasks: Mutex<TaskTracker>,
}

impl Cleaner {
    pub(super) fn new() -> Self {
        let tasks = Mutex::new(tracker());
        Self { room: Arc::new(Semaphore::new(MAX_WAITING)), at_once: Arc::new(Semaphore::new(AT_ONCE)), tasks }
    }

    /// Clears `leftovers` away in the background.
    pub(super) fn clear(&self, context: &Arc<Context>, leftovers: Leftovers) {
        if leftovers.bodies.is_empty() && leftovers.copies.is_empty() {
            return;
        }
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            metrics::counter!("leasehold_store_bodies_left_total").increment(leftovers.bodies.len() as u64);
            return tracing::debug!("there is too much to be cleared away; something is left over");
        };
        let (context, at_once) = (Arc::clone(context), Arc::clone(&self.at_once));
        self.tasks.lock().spawn(async move {
            let _room = room;
            let _turn = at_once.acquire().await;
            bodies::remove(&context, &leftovers.bodies).await;
            remove_copies(&context, &leftovers).await;
        });
    }

    /// Waits until everything is cleared away that writes have left behind so far, for `patience` at most.
    pub(super) async fn wait(&self, patience: Duration) {
        let so_far = {
            let mut tasks = self.tasks.lock();
            let so_far = std::mem::replace(&mut *tasks, tracker());
            // Whoever waits after this call waits for these as well.
            let earlier = so_far.clone();
            tasks.spawn(async move { earlier.wait().await });
            so_far
        };
        // What is late is cleared away all the same.
        let _in_time = tokio::time::timeout(patience, so_far.wait()).await;
    }
}

/// Returns a tracker that can be waited for: one that is closed, which still takes tasks.
fn tracker() -> TaskTracker {
    let tasks = TaskTracker::new();
    tasks.close();
    tasks
}

async fn remove_copies(context: &Context, leftovers: &Leftovers) {
    if leftovers.copies.is_empty() {
        return;
    }
    let deadline = Instant::now() + context.request_timeout;
    // A search must find the live job before it no longer finds the copy.
    if leftovers.some_came_back
        && let Err(error) = copies::refresh(context, &context.indices.jobs, deadline).await
    {
        return tracing::debug!(%error, "copies are left in the archive for now");
    }
    if let Err(error) = copies::remove(context, &leftovers.copies, deadline).await {
        tracing::debug!(%error, "copies are left in the archive for now");
    }
}
