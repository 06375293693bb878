//! One bulk, from the writes that were taken together to an answer for each.
//!
//! It goes in rounds. A round sends what is not decided, reads back what met a conflict, judges
//! ([`super::resolution`]), and answers the submissions all of whose writes are decided. Bodies kept apart are written
//! before the first round: a job never refers to a body that is not stored.
//!
//! Every write goes to the live index, also that of a job in the archive: it then replaces the job's tombstone or
//! creates the document ([`super::archive`]), and the copy is removed afterwards. A removal writes a tombstone.

use std::collections::HashMap;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::archive::Month;
use super::bodies;
use super::bulk::{self, Lines};
use super::conditional::Rounds;
use super::context::Context;
use super::copies::{self, Copy};
use super::documents::{mget, parse_mget};
use super::intake::{Piece, Room, Size};
use super::locate::{Locator, Wanted};
use super::task::{Question, Task};
use super::write_id::KnownWrite;
use crate::job::{BodyId, JobId, NewBody};
use crate::store::{StoreError, Write, WriteError, WriteResult};

/// The writes that one caller handed over together, as far as they fit one bulk.
pub(super) struct Submission {
    pub(super) tasks: Vec<Task>,
    pub(super) deadline: Instant,
    pub(super) reply: oneshot::Sender<Vec<WriteResult>>,
    pub(super) room: Room,
    pub(super) size: Size,
}

impl Piece for Submission {
    fn size(&self) -> Size {
        self.size
    }
}

/// The writes of one bulk, and the callers that wait for them.
pub(super) struct Batch {
    tasks: Vec<Task>,
    callers: Vec<Caller>,
    /// Pairs of a task's index and the index of the task before it that writes the same job. Writes of one job are sent
    /// in the order they came, since each may replace what the one before it wrote.
    followers: Vec<(usize, usize)>,
    deadline: Instant,
}

/// A caller that waits for the next `count` tasks of the batch.
struct Caller {
    count: usize,
    reply: Option<oneshot::Sender<Vec<WriteResult>>>,
    _room: Room,
}

impl Batch {
    pub(super) fn new(submissions: Vec<Submission>) -> Self {
        let mut batch =
            Self { tasks: Vec::new(), callers: Vec::new(), followers: Vec::new(), deadline: Instant::now() };
        for submission in submissions {
            batch.callers.push(Caller {
                count: submission.tasks.len(),
                reply: Some(submission.reply),
                _room: submission.room,
            });
            batch.tasks.extend(submission.tasks);
            batch.deadline = batch.deadline.max(submission.deadline);
        }
        let mut latest: HashMap<&JobId, usize> = HashMap::with_capacity(batch.tasks.len());
        for (index, task) in batch.tasks.iter().enumerate() {
            if let Some(before) = latest.insert(&task.write.job().id, index) {
                batch.followers.push((index, before));
            }
        }
        batch
    }

    /// Releases the tasks whose predecessor is decided, and holds the others.
    fn release_followers(&mut self) {
        for (index, before) in &self.followers {
            self.tasks[*index].held = self.tasks[*before].course.is_open();
        }
    }

    /// Answers each caller once all of its writes are decided.
    fn answer(&mut self) {
        let mut tasks = self.tasks.iter_mut();
        for caller in &mut self.callers {
            let mut own: Vec<&mut Task> = tasks.by_ref().take(caller.count).collect();
            if own.iter().any(|task| task.course.is_open()) {
                continue;
            }
            let Some(reply) = caller.reply.take() else { continue };
            // The caller may be gone; its writes are finished all the same.
            let _gone = reply.send(own.iter_mut().filter_map(|task| task.take_answer()).collect());
        }
    }
}

/// Runs rounds until every write of `batch` is decided and answered.
pub(super) async fn process(shared: &Context, mut batch: Batch) {
    metrics::histogram!("leasehold_store_bulk_items").record(batch.tasks.len() as f64);
    write_bodies(shared, &mut batch).await;
    let mut rounds = Rounds::until(batch.deadline);
    loop {
        batch.release_followers();
        send(shared, &mut batch).await;
        read_back(shared, &mut batch).await;
        locate(shared, &mut batch).await;
        settle(shared, &mut batch).await;
        if !batch.tasks.iter().any(|task| task.course.is_open()) {
            return;
        }
        let blocked = batch.tasks.iter().any(|task| task.course.is_blocked());
        if !rounds.next(blocked).await {
            for task in batch.tasks.iter_mut().filter(|task| task.course.is_open()) {
                task.course.time_is_up();
            }
            settle(shared, &mut batch).await;
            return;
        }
    }
}

/// Writes the bodies that the batch's jobs bring. A job whose body is not durable is not written.
async fn write_bodies(shared: &Context, batch: &mut Batch) {
    let owners: Vec<usize> = batch
        .tasks
        .iter()
        .enumerate()
        .flat_map(|(index, task)| task.write.bodies().iter().map(move |_| index))
        .collect();
    if owners.is_empty() {
        return;
    }
    let bodies: Vec<(&JobId, &NewBody)> = batch
        .tasks
        .iter()
        .flat_map(|task| task.write.bodies().iter().map(|body| (&task.write.job().id, body)))
        .collect();
    let results = bodies::store(shared, &bodies, batch.deadline).await;
    for (owner, result) in owners.into_iter().zip(results) {
        if let Err(error) = result {
            batch.tasks[owner].course.decide(Err(WriteError::Refused(error)));
        }
    }
}

/// Sends the tasks that are ready as one bulk.
async fn send(shared: &Context, batch: &mut Batch) {
    let deadline = batch.deadline;
    let mut lines = Lines::with_capacity(batch.tasks.len() * 1_500);
    let mut sent: Vec<&mut Task> = Vec::with_capacity(batch.tasks.len());
    for task in batch.tasks.iter_mut().filter(|task| task.is_to_be_sent()) {
        match task.append(&mut lines) {
            Ok(()) => sent.push(task),
            Err(error) => task.course.decide(Err(WriteError::Refused(error))),
        }
    }
    if sent.is_empty() {
        return;
    }
    let request = lines.into_request(&shared.indices.jobs, shared.request_timeout);
    let reply = match shared.nodes.call(&request, deadline).await {
        Ok(reply) => reply,
        Err(error) => {
            for task in sent {
                task.course.maybe_applied(error.maybe_received);
                task.course.give_up(&error.message);
            }
            return;
        }
    };
    let outcomes = bulk::outcomes(reply.status, &reply.body, sent.len());
    for (task, outcome) in sent.into_iter().zip(outcomes) {
        task.course.maybe_applied(reply.maybe_repeated);
        task.sent(outcome);
    }
}

/// Reads back the documents of writes that met a conflict.
async fn read_back(shared: &Context, batch: &mut Batch) {
    let mut looking: Vec<&mut Task> = batch.tasks.iter_mut().filter(|task| task.is_to_be_read()).collect();
    if looking.is_empty() {
        return;
    }
    let ids: Vec<&str> = looking.iter().map(|task| task.write.job().id.as_str()).collect();
    let reply = mget(&shared.nodes, &shared.indices.jobs, &ids, batch.deadline).await;
    drop(ids);
    let documents = reply.as_ref().map_err(StoreError::clone).and_then(|body| parse_mget(body, looking.len()));
    match documents {
        Ok(documents) => {
            for (task, document) in looking.iter_mut().zip(documents) {
                match document.stored(&shared.indices) {
                    Ok(found) => task.on_read_back(found),
                    Err(error @ StoreError::Corrupt(_)) => task.course.decide(Err(WriteError::Refused(error))),
                    Err(error) => task.course.blocked(error.to_string()),
                }
            }
        }
        Err(error) => {
            for task in looking {
                task.course.blocked(error.to_string());
            }
        }
    }
}

/// Locates the jobs of tasks that need to know where their job is before they are sent or answered.
async fn locate(shared: &Context, batch: &mut Batch) {
    let locator = shared.locator(batch.deadline);
    let mut asking: Vec<&mut Task> = batch.tasks.iter_mut().filter(|task| task.course.is_open()).collect();
    asking.retain(|task| task.question.is_some() && !task.held);
    if let Err(error) = find_known(shared, &locator, &mut asking).await {
        return asking.iter_mut().for_each(|task| task.course.blocked(error.to_string()));
    }
    asking.retain(|task| task.question.is_some());
    if asking.is_empty() {
        return;
    }
    let month = |task: &Task| task.copy.and_then(|copy| Month::at(copy.place));
    let wanted: Vec<Wanted<'_>> =
        asking.iter().map(|task| Wanted { id: &task.write.job().id, month: month(task) }).collect();
    match locator.locate(&wanted).await {
        Ok(located) => {
            for (task, located) in asking.into_iter().zip(located) {
                match located {
                    Ok(located) => task.located(located),
                    Err(error @ StoreError::Corrupt(_)) => task.course.decide(Err(WriteError::Refused(error))),
                    Err(error) => task.course.blocked(error.to_string()),
                }
            }
        }
        Err(error) => asking.iter_mut().for_each(|task| task.course.blocked(error.to_string())),
    }
}

/// Clears the question of new jobs of which the archive has no copy. A stale copy of a removed job is removed first.
async fn find_known(shared: &Context, locator: &Locator<'_>, asking: &mut [&mut Task]) -> Result<(), StoreError> {
    let is_new = |task: &&mut Task| task.question == Some(Question::IsKnown);
    let ids: Vec<JobId> = asking.iter().filter(|task| is_new(task)).map(|task| task.write.job().id.clone()).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let ids: Vec<&JobId> = ids.iter().collect();
    let known = locator.copies(&ids).await?;
    if !known.is_empty() {
        copies::sweep(shared, &ids, locator.deadline).await?;
    }
    for task in asking.iter_mut().filter(|task| is_new(task)) {
        task.question = known.contains_key(&task.write.job().id).then_some(Question::Lock);
    }
    Ok(())
}

/// Removes the bodies and copies that decided writes left unused, remembers the accepted writes, and answers the
/// callers.
async fn settle(shared: &Context, batch: &mut Batch) {
    let dead: Vec<BodyId> = batch.tasks.iter().flat_map(Task::dead_bodies).collect();
    bodies::remove(shared, &dead).await;
    remove_copies(shared, batch).await;
    let written = batch.tasks.iter().filter_map(|task| match (task.course.decided(), &task.write) {
        (Some(Ok(version)), Write::Create { job, .. } | Write::Replace { job, .. }) => {
            Some((&job.id, *version, KnownWrite::of_job(task.ids.own, job)))
        }
        _ => None,
    });
    shared.recent.remember(written);
    batch.answer();
}

/// Removes the archive copies of jobs that returned to the live index or were removed. This is tried once; the mover
/// finds the copies that are left.
async fn remove_copies(shared: &Context, batch: &mut Batch) {
    let comes_back = |task: &Task| task.copy.is_some() && matches!(task.write, Write::Replace { .. });
    let some_come_back =
        batch.tasks.iter().any(|task| comes_back(task) && matches!(task.course.decided(), Some(Ok(_))));
    let copies: Vec<Copy> = batch.tasks.iter_mut().filter_map(Task::take_copy).collect();
    if copies.is_empty() {
        return;
    }
    let deadline = Instant::now() + shared.request_timeout;
    // A search must find the live job before it no longer finds the copy.
    if some_come_back && let Err(error) = copies::refresh(shared, &shared.indices.jobs, deadline).await {
        return tracing::debug!(%error, "copies are left in the archive for now");
    }
    if let Err(error) = copies::remove(shared, &copies, deadline).await {
        tracing::debug!(%error, "copies are left in the archive for now");
    }
}
