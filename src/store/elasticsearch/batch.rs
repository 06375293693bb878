//! One bulk on its way: from the writes that were taken together to an answer for each.
//!
//! It goes in rounds. A round sends what is not decided, reads back what met a conflict, judges
//! ([`super::resolution`]), and answers the submissions all of whose writes are decided. Bodies kept apart are written
//! before the first round: a job never refers to a body that is not there.

use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::bodies;
use super::bulk::{self, Action, ItemOutcome, Target};
use super::document::{BodyForm, WriteIds, encode};
use super::documents::{Present, mget, parse_mget};
use super::intake::Room;
use super::nodes::Request;
use super::resolution::{Condition, Lineage, ReadBack, Verdict, judge};
use super::write_id::{RecentWrites, WriteIdSource};
use super::writer::{Shared, Submission};
use crate::job::{Body, BodyId, JobId, NewBody};
use crate::store::{StoreError, Version, Write, WriteError, WriteResult};

/// The wait before what is not decided is sent again, growing with every round.
const ROUND_BACKOFF: Duration = Duration::from_millis(50);
/// The longest wait between two rounds.
const LONGEST_ROUND_BACKOFF: Duration = Duration::from_secs(1);
/// The version given for a write that was accepted and that somebody has since built upon, before its answer was known.
/// No document has it any more, so that the next write under it meets a conflict and learns what the job is now. (The
/// version of the document that was read must not be given: with it, the caller would overwrite what it never saw.)
const BUILT_UPON: Version = Version { primary_term: 1, seq_no: 0 };

/// One write on its way.
pub(super) struct Task {
    write: Write,
    ids: WriteIds,
    /// The bodies that the version to be written over refers to, as far as that is known.
    former_bodies: Box<[BodyId]>,
    form: BodyForm,
    step: Step,
    /// A try may have got through without an answer.
    maybe_applied: bool,
    /// What stood in the way lately.
    obstacle: String,
}

enum Step {
    /// To be sent.
    Send,
    /// Met a conflict; to be read back.
    Look,
    /// Was read back as accepted; to be confirmed by writing what was read once more.
    Confirm { version: Version, source: Box<RawValue>, lineage: Lineage },
    /// Decided.
    Decided(WriteResult),
    /// Decided and answered.
    Answered,
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
        Self {
            write,
            ids: WriteIds { own: ids.next(), previous },
            former_bodies,
            form: BodyForm::Json,
            step: Step::Send,
            maybe_applied: false,
            obstacle: String::new(),
        }
    }

    fn condition(&self) -> Condition {
        match &self.write {
            Write::Create { .. } => Condition::Absent,
            Write::Replace { expected, .. } => Condition::Replace(*expected),
            Write::Remove { expected, .. } => Condition::Remove(*expected),
        }
    }

    fn id(&self) -> &str {
        self.write.job().id.as_str()
    }

    fn is_open(&self) -> bool {
        !matches!(self.step, Step::Decided(_) | Step::Answered)
    }

    fn is_to_be_sent(&self) -> bool {
        matches!(self.step, Step::Send | Step::Confirm { .. })
    }

    fn decide(&mut self, result: WriteResult) {
        self.step = Step::Decided(result);
    }

    /// Decides that nothing can be found out any more.
    fn give_up(&mut self, obstacle: &str) {
        // A conflict that could not be looked into may be this write's own.
        let undecided = self.maybe_applied || !matches!(self.step, Step::Send);
        self.decide(Err(if undecided {
            WriteError::Unknown(obstacle.to_owned())
        } else {
            WriteError::Refused(StoreError::Unavailable(obstacle.to_owned()))
        }));
    }

    /// Appends what is to be sent to a bulk.
    fn append(&self, buffer: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        let id = self.id();
        let action = match (&self.step, &self.write) {
            (Step::Confirm { version, .. }, _) => Action::Index(Target::at(id, *version)),
            (_, Write::Create { .. }) => Action::Create(Target::any(id)),
            (_, Write::Replace { expected, .. }) => Action::Index(Target::at(id, *expected)),
            (_, Write::Remove { expected, .. }) => Action::Delete(Target::at(id, *expected)),
        };
        serde_json::to_writer(&mut *buffer, &action)?;
        buffer.push(b'\n');
        match (&self.step, &self.write) {
            (Step::Confirm { source, .. }, _) => buffer.extend_from_slice(source.get().as_bytes()),
            (_, Write::Create { job, .. } | Write::Replace { job, .. }) => encode(buffer, job, self.ids, self.form)?,
            (_, Write::Remove { .. }) => return Ok(()),
        }
        buffer.push(b'\n');
        Ok(())
    }

    /// Takes note of what came of sending.
    fn sent(&mut self, outcome: ItemOutcome) {
        match outcome {
            ItemOutcome::Done(version) => {
                let version = match (&self.step, self.condition()) {
                    (Step::Confirm { lineage: Lineage::BuiltOnOurs, .. }, _) => BUILT_UPON,
                    (_, Condition::Remove(expected)) => expected,
                    _ => version,
                };
                self.decide(Ok(version));
            }
            ItemOutcome::Conflict => self.step = Step::Look,
            ItemOutcome::Busy(obstacle) => self.obstacle = obstacle,
            ItemOutcome::Unsure(obstacle) => {
                self.maybe_applied = true;
                self.obstacle = obstacle;
            }
            ItemOutcome::Invalid(_) if self.form == BodyForm::Json && has_inline_body(&self.write) => {
                self.form = BodyForm::Text;
            }
            ItemOutcome::Invalid(reason) if !self.maybe_applied => {
                let id = self.id();
                let message = format!("the index does not take job `{id}` ({reason}); is its mapping the program's?");
                self.decide(Err(WriteError::Refused(StoreError::Corrupt(message))));
            }
            ItemOutcome::Denied(obstacle) | ItemOutcome::Invalid(obstacle) => self.give_up(&obstacle),
        }
    }

    /// Takes note of what was read back.
    fn looked(&mut self, found: Option<Present<'_>>) {
        let read = found.as_ref().map_or(ReadBack::Missing, |found| ReadBack::Found {
            version: found.version,
            write_id: found.decoded.write_id,
            previous: found.decoded.previous_write_id,
            has_our_body: found.decoded.job.stored_bodies().any(|body| self.brings(body.id)),
        });
        match (judge(self.condition(), self.ids.own, self.maybe_applied, read), found) {
            (Verdict::Confirm(lineage), Some(found)) => {
                self.maybe_applied = true;
                self.step = Step::Confirm { version: found.version, source: found.source.to_owned(), lineage };
            }
            (Verdict::Conflict, found) => {
                self.decide(Err(WriteError::Conflict(found.map(Present::into_versioned))));
            }
            (Verdict::Removed, _) => {
                if let Condition::Remove(expected) = self.condition() {
                    self.decide(Ok(expected));
                }
            }
            (Verdict::SendAgain, _) => {
                self.step = Step::Send;
                "the copies of the document differ".clone_into(&mut self.obstacle);
            }
            (Verdict::LookAgain | Verdict::Confirm(_), _) => {
                "it may have been removed since".clone_into(&mut self.obstacle)
            }
        }
    }

    fn brings(&self, body: BodyId) -> bool {
        self.write.bodies().iter().any(|own| own.reference.id == body)
    }

    /// The bodies that nothing refers to any more, now that the write is decided.
    fn dead_bodies(&self) -> Vec<BodyId> {
        match (&self.step, &self.write) {
            (Step::Decided(Ok(_)), Write::Remove { job, .. }) => job.stored_bodies().map(|body| body.id).collect(),
            (Step::Decided(Ok(_)), Write::Replace { job, .. }) => {
                let kept = |former: &BodyId| job.stored_bodies().any(|body| body.id == *former);
                self.former_bodies.iter().filter(|former| !kept(former)).copied().collect()
            }
            (Step::Decided(Err(WriteError::Conflict(_) | WriteError::Refused(_))), write) => {
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
            if own.iter().any(|task| task.is_open()) {
                continue;
            }
            let Some(reply) = caller.reply.take() else { continue };
            let result = |task: &mut &mut Task| match std::mem::replace(&mut task.step, Step::Answered) {
                Step::Decided(result) => Some(result),
                _ => None,
            };
            // Whoever asked may be gone; what was asked is done all the same.
            let _gone = reply.send(own.iter_mut().filter_map(result).collect());
        }
    }
}

/// Brings every write of `batch` to its end.
pub(super) async fn process(shared: &Shared, mut batch: Batch) {
    let started = Instant::now();
    metrics::histogram!("leasehold_store_bulk_items").record(batch.tasks.len() as f64);
    write_bodies(shared, &mut batch).await;
    let mut backoff = ROUND_BACKOFF;
    loop {
        send(shared, &mut batch).await;
        look(shared, &mut batch).await;
        settle(shared, &mut batch, started).await;
        if !batch.tasks.iter().any(Task::is_open) {
            return;
        }
        let now = Instant::now();
        if now >= batch.deadline {
            for task in batch.tasks.iter_mut().filter(|task| task.is_open()) {
                let obstacle = std::mem::take(&mut task.obstacle);
                task.give_up(&obstacle);
            }
            settle(shared, &mut batch, started).await;
            return;
        }
        // What only waits to be confirmed, or to be written in another form, need not wait.
        let blocked = batch.tasks.iter().any(|task| task.is_open() && !task.obstacle.is_empty());
        if blocked {
            sleep(backoff.min(batch.deadline - now)).await;
            backoff = (backoff * 2).min(LONGEST_ROUND_BACKOFF);
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
            batch.tasks[owner].decide(Err(WriteError::Refused(error)));
        }
    }
}

/// Sends the tasks that are to be sent as one bulk.
async fn send(shared: &Shared, batch: &mut Batch) {
    let deadline = batch.deadline;
    let mut buffer = Vec::with_capacity(batch.tasks.len() * 1_500);
    let mut sent: Vec<&mut Task> = Vec::with_capacity(batch.tasks.len());
    for task in batch.tasks.iter_mut().filter(|task| task.is_to_be_sent()) {
        task.obstacle.clear();
        let start = buffer.len();
        if let Err(error) = task.append(&mut buffer) {
            buffer.truncate(start);
            task.decide(Err(WriteError::Refused(StoreError::Corrupt(error.to_string()))));
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
                task.maybe_applied |= error.maybe_received;
                task.give_up(&error.message);
            }
            return;
        }
    };
    let outcomes = bulk::outcomes(reply.status, &reply.body, sent.len());
    for (task, outcome) in sent.into_iter().zip(outcomes) {
        task.maybe_applied |= reply.maybe_repeated;
        task.sent(outcome);
    }
}

/// Reads back what met a conflict.
async fn look(shared: &Shared, batch: &mut Batch) {
    let mut looking: Vec<&mut Task> = batch.tasks.iter_mut().filter(|task| matches!(task.step, Step::Look)).collect();
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
                    Err(error @ StoreError::Corrupt(_)) => task.decide(Err(WriteError::Refused(error))),
                    Err(error) => task.obstacle = error.to_string(),
                }
            }
        }
        Err(error) => {
            for task in looking {
                task.obstacle = error.to_string();
            }
        }
    }
}

/// Takes away the bodies that decided writes leave behind, remembers what was written, counts, and answers.
async fn settle(shared: &Shared, batch: &mut Batch, started: Instant) {
    let dead: Vec<BodyId> = batch.tasks.iter().flat_map(Task::dead_bodies).collect();
    bodies::remove(shared, &dead).await;
    let written = batch.tasks.iter().filter_map(|task| match (&task.step, &task.write) {
        (Step::Decided(Ok(version)), Write::Create { job, .. } | Write::Replace { job, .. }) => {
            Some((&**job, *version, task.ids.own))
        }
        _ => None,
    });
    shared.recent.remember(written);
    count(batch, started);
    batch.answer();
}

/// Counts the writes decided in this round.
fn count(batch: &Batch, started: Instant) {
    let mut counts = [("ok", 0_u64), ("conflict", 0), ("refused", 0), ("unknown", 0)];
    for task in &batch.tasks {
        let Step::Decided(result) = &task.step else { continue };
        let slot = match result {
            Ok(_) => 0,
            Err(WriteError::Conflict(_)) => 1,
            Err(WriteError::Refused(_)) => 2,
            Err(WriteError::Unknown(_)) => 3,
        };
        counts[slot].1 += 1;
    }
    for (outcome, number) in counts.into_iter().filter(|(_, number)| *number > 0) {
        metrics::counter!("leasehold_store_operations_total", "operation" => "write", "outcome" => outcome)
            .increment(number);
    }
    metrics::histogram!("leasehold_store_operation_duration_seconds", "operation" => "write")
        .record(started.elapsed().as_secs_f64());
}
