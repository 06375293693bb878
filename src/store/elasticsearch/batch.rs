//! One bulk on its way: from the writes that were taken together to an answer for each.
//!
//! It goes in rounds. A round sends what is not decided, reads back what met a conflict, judges
//! ([`super::resolution`]), and answers the submissions all of whose writes are decided. Bodies kept apart are written
//! before the first round: a job never refers to a body that is not there.
//!
//! Every write is one of the live index, also that of a job in the archive: it then is written over what stands in its
//! place ([`super::archive`]), and the copy goes afterwards. A removal writes a tombstone.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::archive::Month;
use super::bodies;
use super::bulk::{self, ItemOutcome};
use super::conditional::{ConditionalWrite, Content, Found, Rounds};
use super::copies::{self, Copy};
use super::document::{BodyForm, WriteIds, encode};
use super::documents::{Stored, mget, parse_mget};
use super::intake::Room;
use super::locate::{Located, Locator, Lock, Wanted};
use super::nodes::Request;
use super::resolution::Condition;
use super::tombstone::{self, Destination};
use super::write_id::{KnownWrite, RecentWrites, WriteIdSource};
use super::writer::{Shared, Submission};
use crate::clock::Timestamp;
use crate::job::{Body, BodyId, Job, JobId, NewBody};
use crate::store::{Place, StoreError, Version, Versioned, Write, WriteError, WriteResult};

/// How old an id can be that the manager has just made up, with all that a write may wait.
const OWN_ID_AGE: Duration = Duration::from_secs(60);

/// What is to be found out before a write can be sent, or answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    /// Whether the archive has a job under the id that is to be created.
    IsKnown,
    /// What stands in the live index in the place of a job that is not in it.
    Lock,
    /// What the job is now, for the answer of a conflict.
    Current,
}

/// One write on its way.
pub(super) struct Task {
    write: Write,
    ids: WriteIds,
    /// When it was handed over.
    now: Timestamp,
    /// The bodies that the version to be written over refers to, as far as that is known.
    former_bodies: Box<[BodyId]>,
    form: BodyForm,
    question: Option<Question>,
    /// An earlier write of the same job in the same batch is still open.
    held: bool,
    /// The copy in the archive that is to go once the write is accepted.
    copy: Option<Version>,
    course: ConditionalWrite<Versioned>,
}

impl Task {
    pub(super) fn new(write: Write, now: Timestamp, ids: &WriteIdSource, recent: &RecentWrites) -> Self {
        let expected = match &write {
            Write::Create { .. } => None,
            Write::Replace { expected, .. } | Write::Remove { expected, .. } => Some(*expected),
        };
        let (previous, bodies) = match expected.and_then(|expected| recent.get(&write.job().id, expected)) {
            Some(known) => (Some(known.write_id), known.bodies),
            None => (None, Box::default()),
        };
        let former_bodies = if matches!(write, Write::Replace { .. }) { bodies } else { Box::default() };
        let ids = WriteIds { own: ids.next(), previous };
        let copy = expected.filter(|expected| expected.place != Place::MAIN);
        let (condition, question) = match expected {
            None if is_own_id(write.job(), now) => (Condition::Absent, None),
            None => (Condition::Absent, Some(Question::IsKnown)),
            // What it is to be written over is yet to be found out.
            Some(_) if copy.is_some() => (Condition::Absent, Some(Question::Lock)),
            Some(expected) => (Condition::Replace(expected), None),
        };
        let course = ConditionalWrite::new(condition, ids.own);
        Self { write, ids, now, former_bodies, form: BodyForm::Json, question, held: false, copy, course }
    }

    /// Whether it writes over what stands in place of a job, and not over a job.
    fn takes_lock(&self) -> bool {
        self.copy.is_some() || matches!(self.write, Write::Create { .. })
    }

    fn is_to_be_sent(&self) -> bool {
        !self.held && self.question.is_none() && self.course.is_to_be_sent()
    }

    fn is_to_be_read(&self) -> bool {
        self.question.is_none() && self.course.is_to_be_read()
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
            (Content::Own, Write::Remove { job, .. }) => {
                tombstone::encode(buffer, &job.id, Destination::Nowhere, self.now, self.ids)?;
            }
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
    fn looked(&mut self, found: Option<Stored<'_>>) {
        match found {
            Some(Stored::Job(found)) => {
                let seen = Found {
                    version: found.version,
                    source: found.source,
                    write_id: found.decoded.write_id,
                    previous_write_id: found.decoded.previous_write_id,
                    has_our_body: found.decoded.job.stored_bodies().any(|body| self.brings(body.id)),
                };
                self.course.looked(Some(seen), || Some(found.into_versioned()));
            }
            Some(Stored::Tombstone(tombstone)) => {
                let seen = Found {
                    version: tombstone.version,
                    source: tombstone.source,
                    write_id: tombstone.write_id,
                    previous_write_id: tombstone.previous_write_id,
                    has_our_body: false,
                };
                self.course.looked(Some(seen), || None);
                self.has_met(Some(tombstone.destination));
            }
            None => {
                self.course.looked(None, || None);
                self.has_met(None);
            }
        }
    }

    /// It met a tombstone, or nothing. Where that is a conflict, it is not yet answered: the job may be in the archive.
    fn has_met(&mut self, destination: Option<Destination>) {
        if !matches!(self.course.decided(), Some(Err(WriteError::Conflict(_)))) {
            return;
        }
        if self.takes_lock() && !self.course.may_be_applied() {
            self.question = Some(Question::Lock);
        } else if destination == Some(Destination::Nowhere) {
            return;
        } else {
            self.question = Some(Question::Current);
        }
        self.course.reopen();
    }

    /// Takes note of where the job is.
    fn located(&mut self, located: Located) {
        let question = self.question.take();
        let lock = match (&self.write, located) {
            (Write::Create { .. }, Located::Nowhere(lock)) => Ok(lock),
            (Write::Replace { expected, .. } | Write::Remove { expected, .. }, Located::Moved(found, lock))
                if found.version == *expected =>
            {
                Ok(lock)
            }
            (_, located) => Err(located.into_job()),
        };
        match lock {
            Ok(_) if question == Some(Question::Current) => {
                self.course.decide(Err(WriteError::Unknown("the job moved while it was written".to_owned())));
            }
            Ok(Lock::Absent) => self.course.aim(Condition::Absent),
            Ok(Lock::Tombstone(version)) => self.course.aim(Condition::Replace(version)),
            Err(current) => self.course.decide(Err(WriteError::Conflict(current))),
        }
    }

    /// What it came to, as its caller is told.
    fn take_answer(&mut self) -> Option<WriteResult> {
        let result = self.course.take_result()?;
        Some(match (&self.write, result) {
            (Write::Remove { expected, .. }, Ok(_)) => Ok(*expected),
            (_, result) => result,
        })
    }

    /// The copy in the archive that is to go, now that the write is accepted; once.
    fn take_copy(&mut self) -> Option<Copy> {
        let Some(Ok(_)) = self.course.decided() else { return None };
        let version = self.copy.take()?;
        Some(Copy { id: self.write.job().id.clone(), version })
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

/// Whether the manager has just made up the id of a new job: then nobody else can know it, and no archive can have it.
/// (A client's own id may look the same, but comes with a fingerprint.)
fn is_own_id(job: &Job, now: Timestamp) -> bool {
    let made_at = || {
        let uuid = uuid::Uuid::try_parse(job.id.as_str()).ok().filter(|uuid| uuid.get_version_num() == 7)?;
        let (seconds, nanos) = uuid.get_timestamp()?.to_unix();
        let seconds = i64::try_from(seconds).ok()?;
        Some(Timestamp::from_millis(seconds.checked_mul(1_000)?.checked_add(i64::from(nanos / 1_000_000))?))
    };
    let is_young = |made: Timestamp| now.since(made) < OWN_ID_AGE && made.since(now) < OWN_ID_AGE;
    job.spec.fingerprint.is_none() && made_at().is_some_and(is_young)
}

fn has_inline_body(write: &Write) -> bool {
    let job = write.job();
    [&job.payload, job.result()].into_iter().any(|body| matches!(body, Body::Inline(_)))
}

/// The writes of one bulk, and who waits for them.
pub(super) struct Batch {
    tasks: Vec<Task>,
    callers: Vec<Caller>,
    /// The tasks before which another of the same job comes, and that one. Writes of one job go in the order they came,
    /// since what one leaves behind is what the next may write over.
    followers: Vec<(usize, usize)>,
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

    /// Lets tasks go on whose predecessor is decided.
    fn let_go(&mut self) {
        for (index, before) in &self.followers {
            self.tasks[*index].held = self.tasks[*before].course.is_open();
        }
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
            let _gone = reply.send(own.iter_mut().filter_map(|task| task.take_answer()).collect());
        }
    }
}

/// Brings every write of `batch` to its end.
pub(super) async fn process(shared: &Shared, mut batch: Batch) {
    metrics::histogram!("leasehold_store_bulk_items").record(batch.tasks.len() as f64);
    write_bodies(shared, &mut batch).await;
    let mut rounds = Rounds::until(batch.deadline);
    loop {
        batch.let_go();
        send(shared, &mut batch).await;
        look(shared, &mut batch).await;
        find(shared, &mut batch).await;
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
    for task in batch.tasks.iter_mut().filter(|task| task.is_to_be_sent()) {
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

/// Finds out what tasks have to know before they are sent, or answered.
async fn find(shared: &Shared, batch: &mut Batch) {
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

/// Lets go of those new jobs of which the archive knows nothing. A copy of a removed one that is left goes first.
async fn find_known(shared: &Shared, locator: &Locator<'_>, asking: &mut [&mut Task]) -> Result<(), StoreError> {
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

/// Takes away the bodies that decided writes leave behind, remembers what was written, and answers.
async fn settle(shared: &Shared, batch: &mut Batch) {
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

/// Removes the copies in the archive of which a job has come back or was removed. Tried once: what is left is found later.
async fn remove_copies(shared: &Shared, batch: &mut Batch) {
    let comes_back = |task: &Task| task.copy.is_some() && matches!(task.write, Write::Replace { .. });
    let some_come_back =
        batch.tasks.iter().any(|task| comes_back(task) && matches!(task.course.decided(), Some(Ok(_))));
    let copies: Vec<Copy> = batch.tasks.iter_mut().filter_map(Task::take_copy).collect();
    if copies.is_empty() {
        return;
    }
    let deadline = Instant::now() + shared.request_timeout;
    // A search is to find the one before it no longer finds the other.
    if some_come_back && let Err(error) = copies::refresh(shared, &shared.indices.jobs, deadline).await {
        return tracing::debug!(%error, "copies are left in the archive for now");
    }
    if let Err(error) = copies::remove(shared, &copies, deadline).await {
        tracing::debug!(%error, "copies are left in the archive for now");
    }
}
