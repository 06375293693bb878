//! The batching writer: takes all writes that are waiting, sends them as one bulk, and gives each its own answer.
//!
//! Each lane has a queue, and a few workers that share it. A worker that is free sends what is waiting at once; while
//! all are busy, writes gather, so that bulks are as large as the load is. A worker stays with its bulk until every
//! write in it is decided, has changed lanes or its time is up, which is what fills the queue and turns callers away
//! when the cluster cannot follow.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::{self, Entry, Submission, Way};
use super::bulk::MAX_BYTES;
use super::caller::Caller;
use super::cleaning::Cleaner;
use super::context::Context;
use super::intake::{Intake, Size};
use super::task::{Lane, Task};
use crate::clock::Clock;
use crate::job::JobId;
use crate::store::{Write, WriteError, WriteResult};

/// The largest size of a bulk.
const MAX_BULK: Size = Size { items: 1_000, bytes: MAX_BYTES };
/// The bytes for which a write takes one more unit of the queue's room, besides its first.
const UNIT_BYTES: usize = 4 * 1024;

/// The batching writer of jobs.
pub(super) struct Writer {
    context: Arc<Context>,
    cleaner: Arc<Cleaner>,
    direct: Intake<Submission>,
    bodies: Intake<Submission>,
    history: Arc<Intake<Submission>>,
}

impl Writer {
    /// Starts, for each lane, `bulks_in_flight` workers on a queue with room for `queue` writes.
    pub(super) fn start(context: Arc<Context>, queue: u32, bulks_in_flight: usize) -> Self {
        let cleaner = Arc::new(Cleaner::new());
        let lane = |history: Option<Arc<Intake<Submission>>>| {
            let way = Way { context: Arc::clone(&context), cleaner: Arc::clone(&cleaner), history };
            Intake::start(queue, MAX_BULK, bulks_in_flight, move |submissions| {
                let way = way.clone();
                async move { batch::process(&way, submissions).await }
            })
        };
        let history = Arc::new(lane(None));
        let [direct, bodies] = [(); 2].map(|()| lane(Some(Arc::clone(&history))));
        Self { direct, bodies, history, cleaner: Arc::clone(&cleaner), context: Arc::clone(&context) }
    }

    /// Hands `writes` over and waits for their answers.
    pub(super) async fn write(&self, writes: Vec<Write>) -> Vec<WriteResult> {
        let count = writes.len();
        if count == 0 {
            return Vec::new();
        }
        let now = self.context.clock.now();
        let Context { ids, recent, indices, .. } = &*self.context;
        let task = |write| Task::new(write, now, ids, recent, &indices.encryption);
        let tasks: Vec<Task> = writes.into_iter().map(task).collect();
        let (caller, answers) = Caller::of(count);
        // Everything is in the queues before the first wait, so that a caller who goes away leaves nothing undone.
        for (lane, tasks) in by_lane(tasks) {
            self.put(lane, tasks, &caller);
        }
        drop(caller);
        answers.await.unwrap_or_else(|_| vec![Err(WriteError::Unknown("the writer has stopped".to_owned())); count])
    }

    /// Puts tasks, each with its place among its caller's, into the queue of a lane, or refuses them all.
    fn put(&self, lane: Lane, tasks: Vec<(usize, Task)>, caller: &Arc<Caller>) {
        let intake = match lane {
            Lane::Direct => &self.direct,
            Lane::Bodies => &self.bodies,
            Lane::History => &*self.history,
        };
        let units = tasks.iter().map(|(_, task)| 1 + task.size().bytes / UNIT_BYTES).sum();
        let room = match intake.room(units) {
            Ok(room) => room,
            Err(refused) => {
                for (index, _) in tasks {
                    caller.answer(index, Err(WriteError::Refused(refused.clone())));
                }
                return;
            }
        };
        let deadline = Instant::now() + self.context.write_timeout;
        let entry =
            |(index, task)| Entry { task, caller: Arc::clone(caller), index, deadline, _room: Arc::clone(&room) };
        for submission in split(tasks.into_iter().map(entry)) {
            let indices: Vec<usize> = submission.entries.iter().map(|entry| entry.index).collect();
            if let Err(refused) = intake.put(submission) {
                for index in indices {
                    caller.answer(index, Err(WriteError::Refused(refused.clone())));
                }
            }
        }
    }

    /// Waits until what acknowledged writes left behind has been cleared away, for `patience` at most.
    pub(super) async fn cleared(&self, patience: Duration) {
        self.cleaner.wait(patience).await;
    }

    /// Closes the writer and waits until every write handed over is answered.
    pub(super) async fn close(&self) {
        self.direct.close().await;
        self.bodies.close().await;
        self.history.close().await;
        self.cleaner.wait(self.context.request_timeout).await;
    }
}

/// Groups tasks by their lanes, each task with its place among them all.
fn by_lane(tasks: Vec<Task>) -> Vec<(Lane, Vec<(usize, Task)>)> {
    let Some(first) = tasks.first().map(Task::lane) else { return Vec::new() };
    if tasks.iter().all(|task| task.lane() == first) {
        return vec![(first, tasks.into_iter().enumerate().collect())];
    }
    let mut lanes: HashMap<JobId, Lane> = HashMap::with_capacity(tasks.len());
    for task in &tasks {
        let lane = lanes.entry(task.write.job().id.clone()).or_insert(Lane::Direct);
        *lane = task.lane().max(*lane);
    }
    let mut groups = [Lane::Direct, Lane::Bodies, Lane::History].map(|lane| (lane, Vec::new()));
    for (index, task) in tasks.into_iter().enumerate() {
        let lane = lanes.get(&task.write.job().id).copied().unwrap_or(Lane::History);
        groups[lane as usize].1.push((index, task));
    }
    groups.into_iter().filter(|(_, group)| !group.is_empty()).collect()
}

/// Cuts `entries` into submissions that fit a bulk each.
fn split(entries: impl Iterator<Item = Entry>) -> Vec<Submission> {
    let mut submissions: Vec<Submission> = Vec::new();
    for entry in entries {
        let own = entry.task.size();
        match submissions.last_mut() {
            Some(last) if last.size.plus(own).fits(MAX_BULK) => {
                last.size = last.size.plus(own);
                last.entries.push(entry);
            }
            _ => submissions.push(Submission { entries: vec![entry], size: own }),
        }
    }
    submissions
}
