//! The batching writer: takes all writes that are waiting, sends them as one bulk, and gives each its own answer.
//!
//! A few workers share one queue. A worker that is free sends what is waiting at once; while all are busy, writes
//! gather, so that bulks are as large as the load is. A worker stays with its bulk until every write in it is decided
//! or its time is up, which is what fills the queue and turns callers away when the cluster cannot follow.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::batch::{self, Batch, Submission};
use super::bulk::MAX_BYTES;
use super::context::Context;
use super::intake::{Intake, Size};
use super::task::Task;
use crate::clock::Clock;
use crate::job::Body;
use crate::store::{StoreError, Write, WriteError, WriteResult};

/// The largest size of a bulk.
const MAX_BULK: Size = Size { items: 1_000, bytes: MAX_BYTES };
/// The bytes of bodies for which a write takes one more unit of the queue's room, besides its first.
const UNIT_BYTES: usize = 4 * 1024;
/// The approximate bytes of a document without its bodies and its history.
const HEAD_BYTES: usize = 1_200;
/// The approximate bytes of an entry of the history.
const ENTRY_BYTES: usize = 140;

/// The batching writer of jobs.
pub(super) struct Writer {
    context: Arc<Context>,
    intake: Intake<Submission>,
}

impl Writer {
    /// Starts `bulks_in_flight` workers on a queue with room for `queue` writes.
    pub(super) fn start(context: Arc<Context>, queue: u32, bulks_in_flight: usize) -> Self {
        let of_workers = Arc::clone(&context);
        let intake = Intake::start(queue, MAX_BULK, bulks_in_flight, move |submissions| {
            let context = Arc::clone(&of_workers);
            async move { batch::process(&context, Batch::new(submissions)).await }
        });
        Self { context, intake }
    }

    /// Hands `writes` over and waits for their answers.
    pub(super) async fn write(&self, writes: Vec<Write>) -> Vec<WriteResult> {
        if writes.is_empty() {
            return Vec::new();
        }
        let units = writes.iter().map(|write| 1 + body_bytes(write) / UNIT_BYTES).sum();
        let room = match self.intake.room(units) {
            Ok(room) => room,
            Err(refused) => return refuse(writes.len(), &refused),
        };
        // Everything is in the queue before the first wait, so that a caller who goes away leaves nothing undone.
        let mut waiting = Vec::new();
        let deadline = Instant::now() + self.context.write_timeout;
        for (tasks, size) in self.split(writes) {
            let count = tasks.len();
            let (reply, answer) = oneshot::channel();
            let piece = Submission { tasks, deadline, reply, room: Arc::clone(&room), size };
            waiting.push((count, self.intake.put(piece).map(|()| answer)));
        }
        drop(room);
        let mut results = Vec::new();
        for (count, answer) in waiting {
            match answer {
                Ok(answer) => results.extend(answer.await.unwrap_or_else(|_| lost(count))),
                Err(refused) => results.extend(refuse(count, &refused)),
            }
        }
        results
    }

    /// Cuts `writes` into submissions that fit a bulk each.
    fn split(&self, writes: Vec<Write>) -> Vec<(Vec<Task>, Size)> {
        let mut parts = Vec::new();
        let mut tasks = Vec::with_capacity(writes.len().min(MAX_BULK.items));
        let mut size = Size::default();
        let now = self.context.clock.now();
        for write in writes {
            let with_next = Size { items: size.items + 1, bytes: size.bytes + bytes(&write) };
            if !tasks.is_empty() && !with_next.fits(MAX_BULK) {
                parts.push((std::mem::take(&mut tasks), std::mem::take(&mut size)));
            }
            size = Size { items: size.items + 1, bytes: size.bytes + bytes(&write) };
            tasks.push(Task::new(write, now, &self.context.ids, &self.context.recent));
        }
        parts.push((tasks, size));
        parts
    }

    /// Closes the writer and waits until every write handed over is answered.
    pub(super) async fn close(&self) {
        self.intake.close().await;
    }
}

fn refuse(count: usize, error: &StoreError) -> Vec<WriteResult> {
    vec![Err(WriteError::Refused(error.clone())); count]
}

fn lost(count: usize) -> Vec<WriteResult> {
    vec![Err(WriteError::Unknown("the writer has stopped".to_owned())); count]
}

fn body_bytes(write: &Write) -> usize {
    let inline = |body: &Body| if let Body::Inline(json) = body { json.bytes() } else { 0 };
    let job = write.job();
    let apart: usize = write.bodies().iter().map(|body| body.json.bytes()).sum();
    inline(&job.payload) + inline(job.result()) + apart
}

fn bytes(write: &Write) -> usize {
    HEAD_BYTES + ENTRY_BYTES * write.job().history.entries().len() + body_bytes(write)
}
