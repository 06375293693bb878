//! One bulk, from the writes that were taken together to an answer for each.
//!
//! It goes in rounds. A round sends what is not decided, reads back what met a conflict, judges
//! ([`super::resolution`]), and answers each write as soon as it is decided; what decided writes leave behind is
//! cleared away in the background ([`super::cleaning`]). Bodies kept apart are written before the first round: a job
//! never refers to a body that is not stored.
//!
//! Writes travel in lanes ([`Lane`]), so that one whose job has to be looked for in the archive, or whose body has to
//! be written first, holds up none of those that need neither. A write that turns out to need the archive changes
//! lanes.
//!
//! Every write goes to the live index, also that of a job in the archive: it then replaces the job's tombstone or
//! creates the document ([`super::archive`]), and the copy is removed afterwards. A removal writes a tombstone.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::bodies;
use super::bulk::Lines;
use super::caller::Caller;
use super::cleaning::{Cleaner, Leftovers};
use super::conditional::Rounds;
use super::context::{Context, Sent};
use super::copies;
use super::documents::{mget, parse_mget};
use super::intake::{Intake, Piece, Room, Size};
use super::left_bodies::is_due_again;
use super::locate::{Locator, first_month};
use super::task::{Question, Task};
use super::write_id::KnownWrite;
use crate::clock::Clock as _;
use crate::job::{Job, JobId, NewBody};
use crate::store::{Sought, StoreError, Write, WriteError};

/// One write under way, with the caller that waits for its answer.
pub(super) struct Entry {
    pub(super) task: Task,
    pub(super) caller: Arc<Caller>,
    /// The place of the write among its caller's.
    pub(super) index: usize,
    pub(super) deadline: Instant,
    pub(super) _room: Room,
}

/// Writes that travel together.
pub(super) struct Submission {
    pub(super) entries: Vec<Entry>,
    pub(super) size: Size,
}

impl Submission {
    pub(super) fn of(entries: Vec<Entry>) -> Self {
        let size = entries.iter().map(|entry| entry.task.size()).fold(Size::default(), Size::plus);
        Self { entries, size }
    }
}

impl Piece for Submission {
    fn size(&self) -> Size {
        self.size
    }
}

/// What the workers of a lane share.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) context: Arc<Context>,
    pub(super) cleaner: Arc<Cleaner>,
    /// The lane for writes whose job has to be looked for in the archive; `None` in that lane itself.
    pub(super) history: Option<Arc<Intake<Submission>>>,
}

/// The writes of one bulk.
struct Batch {
    entries: Vec<Entry>,
    /// Pairs of an entry's index and the index of the entry before it that writes the same job. Writes of one job are
    /// sent in the order they came, since each may replace what the one before it wrote.
    followers: Vec<(usize, usize)>,
    deadline: Instant,
}

impl Batch {
    fn new(entries: Vec<Entry>) -> Self {
        let deadline = entries.iter().map(|entry| entry.deadline).max().unwrap_or_else(Instant::now);
        let mut followers = Vec::new();
        let mut latest: HashMap<&JobId, usize> = HashMap::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            if let Some(before) = latest.insert(&entry.task.write.job().id, index) {
                followers.push((index, before));
            }
        }
        Self { entries, followers, deadline }
    }

    fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.entries.iter().map(|entry| &entry.task)
    }

    fn tasks_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        self.entries.iter_mut().map(|entry| &mut entry.task)
    }

    fn is_open(&self) -> bool {
        self.tasks().any(|task| task.course.is_open())
    }

    /// Releases the tasks whose predecessor is decided, and holds the others.
    fn release_followers(&mut self) {
        for (index, before) in &self.followers {
            self.entries[*index].task.held = self.entries[*before].task.course.is_open();
        }
    }

    /// Hands the writes whose job has to be looked for in the archive over to their lane, each with those that follow
    /// it.
    fn change_lanes(&mut self, history: &Intake<Submission>) {
        if !self.tasks().any(|task| task.question.is_some() && task.course.is_open()) {
            return;
        }
        let mut goes: Vec<bool> = self.tasks().map(|task| task.question.is_some() && task.course.is_open()).collect();
        for (index, before) in &self.followers {
            goes[*index] |= goes[*before];
        }
        let mut goes = goes.into_iter();
        let (gone, stay): (Vec<Entry>, Vec<Entry>) =
            std::mem::take(&mut self.entries).into_iter().partition(|_| goes.next().unwrap_or(false));
        *self = Self { deadline: self.deadline, ..Self::new(stay) };
        // The lane is closed after this one. Were it not, the callers would learn that their writes are lost.
        let _closed = history.put(Submission::of(gone));
    }
}

/// Runs rounds until every write is decided and answered, or handed over to another lane.
pub(super) async fn process(way: &Way, submissions: Vec<Submission>) {
    let shared = &*way.context;
    let mut batch = Batch::new(submissions.into_iter().flat_map(|submission| submission.entries).collect());
    metrics::histogram!("leasehold_store_bulk_items").record(batch.entries.len() as f64);
    let mut rounds = Rounds::until(batch.deadline);
    loop {
        write_bodies(shared, &mut batch).await;
        batch.release_followers();
        send(shared, &mut batch).await;
        settle(way, &mut batch);
        if !batch.is_open() {
            return;
        }
        read_back(shared, &mut batch).await;
        match &way.history {
            Some(history) => batch.change_lanes(history),
            None => locate(shared, &mut batch).await,
        }
        settle(way, &mut batch);
        if !batch.is_open() {
            return;
        }
        let blocked = batch.tasks().any(|task| task.course.is_blocked());
        if !rounds.next(blocked).await {
            for task in batch.tasks_mut().filter(|task| task.course.is_open()) {
                task.course.time_is_up();
            }
            return settle(way, &mut batch);
        }
    }
}

/// Writes the bodies that the batch's jobs bring, and again those that may have been removed since, as when this
/// process was suspended. A job whose body is not durable is not written.
async fn write_bodies(shared: &Context, batch: &mut Batch) {
    let now = shared.clock.now();
    let mut owners: Vec<&mut Task> = batch
        .entries
        .iter_mut()
        .map(|entry| &mut entry.task)
        .filter(|task| !task.write.bodies().is_empty() && task.course.is_open())
        .filter(|task| task.bodies_stored.is_none_or(|stored| is_due_again(stored, now)))
        .collect();
    if owners.is_empty() {
        return;
    }
    let bodies: Vec<(&Job, &NewBody)> =
        owners.iter().flat_map(|task| task.write.bodies().iter().map(|body| (&**task.write.job(), body))).collect();
    let mut results = bodies::store(shared, &bodies, batch.deadline).await.into_iter();
    for owner in &mut owners {
        owner.bodies_stored = Some(now);
        let count = owner.write.bodies().len();
        if let Some(error) = results.by_ref().take(count).filter_map(Result::err).last() {
            owner.course.decide(Err(WriteError::Refused(error)));
        }
    }
}

/// Sends the tasks that are ready as one bulk.
async fn send(shared: &Context, batch: &mut Batch) {
    let deadline = batch.deadline;
    let mut lines = Lines::with_capacity(batch.tasks().map(Task::document_bytes).sum());
    let mut sent: Vec<&mut Task> = Vec::with_capacity(batch.entries.len());
    for task in batch.tasks_mut().filter(|task| task.is_to_be_sent()) {
        match task.append(&mut lines) {
            Ok(()) => sent.push(task),
            Err(error) => task.course.decide(Err(WriteError::Refused(error))),
        }
    }
    if sent.is_empty() {
        return;
    }
    let answers = shared.send(&shared.indices.jobs, lines, deadline).await;
    for (task, Sent { outcome, maybe_repeated }) in sent.into_iter().zip(answers) {
        task.course.maybe_applied(maybe_repeated);
        task.sent(outcome, &shared.indices.encryption);
    }
}

/// Reads back the documents of writes that met a conflict.
async fn read_back(shared: &Context, batch: &mut Batch) {
    let deadline = batch.deadline;
    let mut looking: Vec<&mut Task> = batch.tasks_mut().filter(|task| task.is_to_be_read()).collect();
    if looking.is_empty() {
        return;
    }
    let ids: Vec<&str> = looking.iter().map(|task| task.write.job().id.as_str()).collect();
    let reply = mget(&shared.nodes, &shared.indices.jobs, &ids, deadline).await;
    drop(ids);
    let documents = reply.as_ref().map_err(StoreError::clone).and_then(|body| parse_mget(body, looking.len()));
    match documents {
        Ok(documents) => {
            for (task, document) in looking.iter_mut().zip(documents) {
                match document.stored(&shared.indices) {
                    Ok(found) => task.on_read_back(found),
                    Err(error) => task.course.failed_to_read(error),
                }
            }
        }
        Err(error) => {
            for task in looking {
                task.course.failed_to_read(error.clone());
            }
        }
    }
}

/// Locates the jobs of tasks that need to know where their job is before they are sent or answered.
async fn locate(shared: &Context, batch: &mut Batch) {
    let locator = shared.locator(batch.deadline);
    let mut asking: Vec<&mut Task> = batch.tasks_mut().filter(|task| task.course.is_open()).collect();
    asking.retain(|task| task.question.is_some() && !task.held);
    if let Err(error) = find_known(shared, &locator, &mut asking).await {
        return asking.iter_mut().for_each(|task| task.course.failed_to_read(error.clone()));
    }
    // What is new and may be in a month that cannot be read is refused, or asked for again.
    asking.retain(|task| task.course.is_open() && matches!(task.question, Some(Question::Lock | Question::Current)));
    if asking.is_empty() {
        return;
    }
    let sought: Vec<Sought<'_>> =
        asking.iter().map(|task| Sought { id: &task.write.job().id, since: task.since() }).collect();
    let located = locator.locate(&sought).await;
    drop(sought);
    match located {
        Ok(located) => {
            for (task, located) in asking.into_iter().zip(located) {
                match located {
                    Ok(located) => task.located(located),
                    Err(error) => task.course.failed_to_read(error),
                }
            }
        }
        Err(error) => asking.iter_mut().for_each(|task| task.course.failed_to_read(error.clone())),
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
    if !known.months.is_empty() {
        copies::sweep(shared, &ids, locator.deadline).await?;
    }
    for task in asking.iter_mut().filter(|task| is_new(task)) {
        match known.latest(&task.write.job().id, task.since().map(first_month)) {
            Ok(month) => task.question = month.map(|_| Question::Lock),
            Err(why) => task.course.failed_to_read(why),
        }
    }
    Ok(())
}

/// Remembers the accepted writes, has what they leave behind cleared away, and answers the callers of decided ones.
fn settle(way: &Way, batch: &mut Batch) {
    let mut leftovers = Leftovers::default();
    for task in batch.tasks_mut() {
        leftovers.bodies.extend(task.dead_bodies());
        if let Some(copy) = task.take_copy() {
            leftovers.copies.push(copy);
            leftovers.some_came_back |= matches!(task.write, Write::Replace { .. });
        }
    }
    let written = batch.tasks().filter_map(|task| match (task.course.decided(), &task.write) {
        (Some(Ok(version)), Write::Create { job, .. } | Write::Replace { job, .. }) => {
            Some((&job.id, *version, KnownWrite::of_job(task.ids.own, job)))
        }
        _ => None,
    });
    way.context.recent.remember(written);
    // Before the answers: a caller who has one and waits for what is being cleared away waits for this as well.
    way.cleaner.clear(&way.context, leftovers);
    for Entry { task, caller, index, .. } in &mut batch.entries {
        if let Some(answer) = task.take_answer() {
            caller.answer(*index, answer);
        }
    }
}
