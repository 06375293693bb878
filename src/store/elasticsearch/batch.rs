//! One bulk on its way: from the writes that were taken together to an answer for each.
//!
//! It goes in rounds. A round sends what is not decided, reads back what met a conflict, judges
//! ([`super::resolution`]), and answers the submissions all of whose writes are decided. Bodies kept apart are written
//! before the first round: a job never refers to a body that is not there.

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::bodies;
use super::bulk::{self, ItemOutcome};
use super::conditional::{ConditionalWrite, Content, Found, Rounds};
use super::document::{BodyForm, WriteIds, encode};
use super::documents::{Present, mget, parse_mget};
use super::intake::Room;
use super::nodes::Request;
use super::resolution::Condition;
use super::write_id::{KnownWrite, RecentWrites, WriteIdSource};
use super::writer::{Shared, Submission};
use crate::job::{Body, BodyId, JobId, NewBody};
use crate::store::{StoreError, Versioned, Write, WriteError, WriteResult};

/// One write on its way.
pub(super) struct Task {
    write: Write,
    ids: WriteIds,
    /// The bodies that the version to be written over refers to, as far as that is known.
    former_bodies: Box<[BodyId]>,
    form: BodyForm,
    course: ConditionalWrite<Versioned>,
}

impl Task {
    pub(super) fn new(write: Write, ids: &WriteIdSource, recent: &RecentWrites) -> Self {
        let former = match &write {
            Write::Create { .. } | Write::Remove { .. } => None,
            Write::Replace { job, expected, .. } => recent.get(&job.id, *expected),
        };
        let (previous, former_bodies) = match former {
            Some(known) => (Some(known.write_id), known.bodies),
            None => (None, Box::default()),
        };
        let ids = WriteIds { own: ids.next(), previous };
        let condition = match &write {
            Write::Create { .. } => Condition::Absent,
            Write::Replace { expected, .. } => Condition::Replace(*expected),
            Write::Remove { expected, .. } => Condition::Remove(*expected),
        };
        let course = ConditionalWrite::new(condition, ids.own);
        Self { write, ids, former_bodies, form: BodyForm::Json, course }
    }

    /// Appends what is to be sent to a bulk.
    fn append(&mut self, buffer: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        let (action, content) = self.course.begin_try(self.write.job().id.as_str());
        serde_json::to_writer(&mut *buffer, &action)?;
        buffer.push(b'\n');
        match (content, &self.write) {
            (Content::Again(source), _) => buffer.extend_from_slice(source.get().as_bytes()),
            (Content::Own, Write::Create { job, .. } | Write::Replace { job, .. }) => {
                encode(buffer, job, self.ids, self.form)?;
            }
            (Content::Own, Write::Remove { .. }) => return Ok(()),
        }
        buffer.push(b'\n');
        Ok(())
    }

    /// Takes note of what came of sending.
    fn sent(&mut self, outcome: ItemOutcome) {
        match outcome {
            ItemOutcome::Invalid(_) if self.form == BodyForm::Json && has_inline_body(&self.write) => {
                self.form = BodyForm::Text;
            }
            outcome => self.course.sent(outcome, format_args!("job `{}`", self.write.job().id)),
        }
    }

    /// Takes note of what was read back.
    fn looked(&mut self, found: Option<Present<'_>>) {
        let seen = found.as_ref().map(|found| Found {
            version: found.version,
            source: found.source,
            write_id: found.decoded.write_id,
            previous_write_id: found.decoded.previous_write_id,
            has_our_body: found.decoded.job.stored_bodies().any(|body| self.brings(body.id)),
        });
        self.course.looked(seen, || found.map(Present::into_versioned));
    }

    fn brings(&self, body: BodyId) -> bool {
        self.write.bodies().iter().any(|own| own.reference.id == body)
    }

    /// The bodies that nothing refers to any more, now that the write is decided.
    fn dead_bodies(&self) -> Vec<BodyId> {
        let Some(result) = self.course.decided() else { return Vec::new() };
        match (result, &self.write) {
            (Ok(_), Write::Remove { job, .. }) => job.stored_bodies().map(|body| body.id).collect(),
            (Ok(_), Write::Replace { job, .. }) => {
                let kept = |former: &BodyId| job.stored_bodies().any(|body| body.id == *former);
                self.former_bodies.iter().filter(|former| !kept(former)).copied().collect()
            }
            (Err(WriteError::Conflict(_) | WriteError::Refused(_)), write) => {
                write.bodies().iter().map(|body| body.reference.id).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn has_inline_body(write: &Write) -> bool {
    let job = write.job();
    [&job.payload, job.result()].into_iter().any(|body| matches!(body, Body::Inline(_)))
}

/// The writes of one bulk, and who waits for them.
pub(super) struct Batch {
    tasks: Vec<Task>,
    callers: Vec<Caller>,
    deadline: Instant,
}

/// Who waits for a run of the batch's tasks.
struct Caller {
    count: usize,
    reply: Option<oneshot::Sender<Vec<WriteResult>>>,
    _room: Room,
}

impl Batch {
    pub(super) fn new(submissions: Vec<Submission>) -> Self {
        let mut batch = Self { tasks: Vec::new(), callers: Vec::new(), deadline: Instant::now() };
        for submission in submissions {
            batch.callers.push(Caller {
                count: submission.tasks.len(),
                reply: Some(submission.reply),
                _room: submission.room,
            });
            batch.tasks.extend(submission.tasks);
            batch.deadline = batch.deadline.max(submission.deadline);
        }
        batch
    }

    /// Answers the callers all of whose writes are decided.
    fn answer(&mut self) {
        let mut tasks = self.tasks.iter_mut();
        for caller in &mut self.callers {
            let mut own: Vec<&mut Task> = tasks.by_ref().take(caller.count).collect();
            if own.iter().any(|task| task.course.is_open()) {
                continue;
            }
            let Some(reply) = caller.reply.take() else { continue };
            // Whoever asked may be gone; what was asked is done all the same.
            let _gone = reply.send(own.iter_mut().filter_map(|task| task.course.take_result()).collect());
        }
    }
}

/// Brings every write of `batch` to its end.
pub(super) async fn process(shared: &Shared, mut batch: Batch) {
    metrics::histogram!("leasehold_store_bulk_items").record(batch.tasks.len() as f64);
    write_bodies(shared, &mut batch).await;
    let mut rounds = Rounds::until(batch.deadline);
    loop {
        send(shared, &mut batch).await;
        look(shared, &mut batch).await;
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
async fn write_bodies(shared: &Shared, batch: &mut Batch) {
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

/// Sends the tasks that are to be sent as one bulk.
async fn send(shared: &Shared, batch: &mut Batch) {
    let deadline = batch.deadline;
    let mut buffer = Vec::with_capacity(batch.tasks.len() * 1_500);
    let mut sent: Vec<&mut Task> = Vec::with_capacity(batch.tasks.len());
    for task in batch.tasks.iter_mut().filter(|task| task.course.is_to_be_sent()) {
        let start = buffer.len();
        if let Err(error) = task.append(&mut buffer) {
            buffer.truncate(start);
            task.course.decide(Err(WriteError::Refused(StoreError::Corrupt(error.to_string()))));
            continue;
        }
        sent.push(task);
    }
    if sent.is_empty() {
        return;
    }
    let request = Request::lines(bulk::path(&shared.indices.jobs, shared.request_timeout), buffer);
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

/// Reads back what met a conflict.
async fn look(shared: &Shared, batch: &mut Batch) {
    let mut looking: Vec<&mut Task> = batch.tasks.iter_mut().filter(|task| task.course.is_to_be_read()).collect();
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
                match document.job() {
                    Ok(found) => task.looked(found),
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

/// Takes away the bodies that decided writes leave behind, remembers what was written, and answers.
async fn settle(shared: &Shared, batch: &mut Batch) {
    let dead: Vec<BodyId> = batch.tasks.iter().flat_map(Task::dead_bodies).collect();
    bodies::remove(shared, &dead).await;
    let written = batch.tasks.iter().filter_map(|task| match (task.course.decided(), &task.write) {
        (Some(Ok(version)), Write::Create { job, .. } | Write::Replace { job, .. }) => {
            Some((&job.id, *version, KnownWrite::of_job(task.ids.own, job)))
        }
        _ => None,
    });
    shared.recent.remember(written);
    batch.answer();
}
