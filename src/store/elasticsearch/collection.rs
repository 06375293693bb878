//! Collections: documents other than jobs, compared and swapped, each kind in an index of its own.
//!
//! Writes that a caller hands over together travel together: a round sends all that are open as bulks, and reads back
//! those that met a conflict. Answers and lost answers are handled as they are for jobs ([`super::conditional`]). There
//! is no archive and there are no bodies beside the documents, so all of it fits one file.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::sync::{Semaphore, TryAcquireError};
use tokio::time::Instant;

use super::bulk::{ItemOutcome, Lines, MAX_BYTES};
use super::conditional::{ConditionalWrite, Content, CurrentDocument, Rounds};
use super::context::{Context, Sent};
use super::document::{BodyForm, WriteIds};
use super::documents::{RawDocument, mget, parse_mget};
use super::encryption::EncryptionKeys;
use super::indices::Kind;
use super::resolution::Condition;
use super::search::{Page, Scope, page};
use super::write_id::{KnownWrite, RecentWrites};
use crate::store::{StoreError, Version, WriteError, WriteResult};

/// The most writes in one bulk.
const MAX_ITEMS: usize = 1_000;
/// The bytes after which no further write is added to a bulk: with the last one, it is still within one request unless
/// that write is very long.
const ENOUGH_BYTES: usize = MAX_BYTES / 2;
/// The most documents that one request reads or finds.
pub(super) const PAGE: usize = 1_000;
/// The most documents that a request reads as long as nobody knows how long they are.
const FIRST_PAGE: usize = 100;
/// How many times as many documents as the request before a request reads at most.
const GROWTH: usize = 5;
/// The bytes that an answer is to have at most, as far as that can be foreseen: the server has all of them in memory at
/// once.
const PAGE_BYTES: usize = 16 * 1024 * 1024;
/// How long a caller should wait before it tries again when as many writes are under way as may be.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// An element of a collection, with its version.
pub(super) trait Element: Sized + Send + 'static {
    /// One conditional write of an element.
    type Write: Send + Sync;
    /// The content that a write stores, as it is written.
    type Document<'a>: Serialize;

    /// The index that holds the documents of the collection.
    const KIND: Kind;
    /// What an element is called in messages.
    const NAME: &'static str;
    /// The most writes under way at once. More than these in one call are taken when no others are under way.
    const IN_FLIGHT: u32;
    /// Whether [`Element::document`] can bring the content in the text form, for an index that does not take it as it
    /// is.
    const HAS_TEXT_FORM: bool;

    /// Returns the id of the document that is written or removed.
    fn id(write: &Self::Write) -> String;

    /// Returns the condition of a write.
    fn condition(write: &Self::Write) -> Condition;

    /// Returns the content of a write, in which these keys encrypt what is secret; `None` for a removal.
    fn document<'a>(
        write: &'a Self::Write,
        ids: WriteIds,
        form: BodyForm,
        keys: &EncryptionKeys,
    ) -> Result<Option<Self::Document<'a>>, StoreError>;

    /// Reads a document, of which these keys decrypt what is encrypted; `None` when there is none.
    fn read<'a>(document: &RawDocument<'a>, keys: &EncryptionKeys) -> Result<Option<Present<'a, Self>>, StoreError>;

    /// Returns the version of the element.
    fn version(&self) -> Version;
}

/// An element that was read, with its document.
pub(super) struct Present<'a, E> {
    pub(super) element: E,
    pub(super) document: CurrentDocument<'a>,
}

/// One write under way.
struct Task<E: Element> {
    write: E::Write,
    /// The id of the element's document.
    id: String,
    ids: WriteIds,
    form: BodyForm,
    course: ConditionalWrite<E>,
    /// Whether the write waits until an earlier one of the same document is decided.
    held: bool,
}

impl<E: Element> Task<E> {
    fn new(write: E::Write, id: String, ids: WriteIds) -> Self {
        let course = ConditionalWrite::new(E::condition(&write), ids.own);
        Self { write, id, ids, form: BodyForm::Json, course, held: false }
    }

    fn is_removal(&self) -> bool {
        matches!(E::condition(&self.write), Condition::Remove(_))
    }

    /// Appends the next try of the write to a bulk.
    fn append(&mut self, lines: &mut Lines, keys: &EncryptionKeys) -> Result<(), StoreError> {
        let (action, content) = self.course.begin_try(&self.id);
        match content {
            Content::Again(source) => lines.add(&action, Some(source)),
            Content::Own => lines.add(&action, E::document(&self.write, self.ids, self.form, keys)?.as_ref()),
        }
    }

    /// Processes the outcome of a try.
    fn sent(&mut self, outcome: ItemOutcome) {
        match outcome {
            ItemOutcome::Invalid(_) if E::HAS_TEXT_FORM && self.form == BodyForm::Json && !self.is_removal() => {
                self.form = BodyForm::Text;
            }
            outcome => self.course.sent(outcome, format_args!("the {} `{}`", E::NAME, self.id)),
        }
    }
}

/// The elements of one kind.
pub(super) struct Collection<E> {
    context: Arc<Context>,
    recent: RecentWrites,
    room: Semaphore,
    _elements: PhantomData<fn() -> E>,
}

impl<E: Element> Collection<E> {
    pub(super) fn new(context: Arc<Context>) -> Self {
        let room = Semaphore::new(E::IN_FLIGHT as usize);
        Self { context, recent: RecentWrites::default(), room, _elements: PhantomData }
    }

    fn alias(&self) -> &str {
        self.context.indices.name(E::KIND)
    }

    fn scope(&self, deadline: Instant) -> Scope<'_> {
        Scope::new(&self.context.nodes, self.alias(), deadline)
    }

    /// Applies each of the writes on its own condition, and returns the results in order when all are decided, at the
    /// latest at their deadline.
    pub(super) async fn write(&self, writes: Vec<E::Write>) -> Vec<WriteResult<E>> {
        let permits = u32::try_from(writes.len()).unwrap_or(u32::MAX).min(E::IN_FLIGHT);
        let refused = match self.room.try_acquire_many(permits) {
            Ok(_room) => return self.decide(writes, Instant::now() + self.context.write_timeout).await,
            Err(TryAcquireError::Closed) => StoreError::Unavailable("it is closed".to_owned()),
            Err(TryAcquireError::NoPermits) => StoreError::Overloaded { retry_after: RETRY_AFTER },
        };
        writes.iter().map(|_| Err(refused.clone().into())).collect()
    }

    async fn decide(&self, writes: Vec<E::Write>, deadline: Instant) -> Vec<WriteResult<E>> {
        let mut tasks: Vec<Task<E>> = writes.into_iter().map(|write| self.task(write)).collect();
        let followers = followers(tasks.iter().map(|task| task.id.as_str()));
        let mut rounds = Rounds::until(deadline);
        loop {
            for (index, before) in &followers {
                tasks[*index].held = tasks[*before].course.is_open();
            }
            self.send(&mut tasks, deadline).await;
            self.read_back(&mut tasks, deadline).await;
            if !tasks.iter().any(|task| task.course.is_open()) {
                break;
            }
            let blocked = tasks.iter().any(|task| task.course.is_blocked());
            if !rounds.next(blocked).await {
                tasks.iter_mut().for_each(time_is_up);
                break;
            }
        }
        self.remember(tasks.iter().filter(|task| !task.is_removal()).filter_map(|task| match task.course.decided() {
            Some(Ok(version)) => Some((task.id.as_str(), *version, KnownWrite::without_bodies(task.ids.own))),
            _ => None,
        }));
        let undecided = || Err(WriteError::Unknown("the write was not decided".to_owned()));
        tasks.into_iter().map(|mut task| task.course.take_result().unwrap_or_else(undecided)).collect()
    }

    fn task(&self, write: E::Write) -> Task<E> {
        let id = E::id(&write);
        let former = match E::condition(&write) {
            Condition::Replace(expected) => self.recent.get(&id, expected),
            Condition::Absent | Condition::Remove(_) => None,
        };
        let ids = WriteIds { own: self.context.ids.next(), previous: former.map(|known| known.write_id) };
        Task::new(write, id, ids)
    }

    /// Sends the writes that are ready.
    async fn send(&self, tasks: &mut [Task<E>], deadline: Instant) {
        let mut ready = tasks.iter_mut().filter(|task| !task.held && task.course.is_to_be_sent());
        // Ends: every round takes some of the writes, or is the last.
        loop {
            let mut lines = Lines::default();
            let mut sent: Vec<&mut Task<E>> = Vec::new();
            while sent.len() < MAX_ITEMS && lines.bytes() < ENOUGH_BYTES {
                let Some(task) = ready.next() else { break };
                match task.append(&mut lines, &self.context.indices.encryption) {
                    Ok(()) => sent.push(task),
                    Err(error) => task.course.decide(Err(WriteError::Refused(error))),
                }
            }
            if sent.is_empty() {
                return;
            }
            let answers = self.context.send(self.alias(), lines, deadline).await;
            for (task, Sent { outcome, maybe_repeated }) in sent.into_iter().zip(answers) {
                task.course.maybe_applied(maybe_repeated);
                task.sent(outcome);
            }
        }
    }

    /// Reads back the documents of writes that met a conflict.
    async fn read_back(&self, tasks: &mut [Task<E>], deadline: Instant) {
        let mut looking: Vec<&mut Task<E>> = tasks.iter_mut().filter(|task| task.course.is_to_be_read()).collect();
        for chunk in looking.chunks_mut(FIRST_PAGE) {
            let ids: Vec<&str> = chunk.iter().map(|task| task.id.as_str()).collect();
            let reply = mget(&self.context.nodes, self.alias(), &ids, deadline).await;
            drop(ids);
            match reply.as_ref().map_err(StoreError::clone).and_then(|reply| parse_mget(reply, chunk.len())) {
                Ok(documents) => {
                    for (task, document) in chunk.iter_mut().zip(documents) {
                        self.judge(task, &document);
                    }
                }
                Err(error) => chunk.iter_mut().for_each(|task| task.course.failed_to_read(error.clone())),
            }
        }
    }

    fn judge(&self, task: &mut Task<E>, document: &RawDocument<'_>) {
        match E::read(document, &self.context.indices.encryption) {
            Ok(found) => {
                let current = found.as_ref().map(|found| found.document);
                let element = found.map(|found| self.take(&document.id, found));
                task.course.on_read_back(current, false, || element);
            }
            Err(error) => task.course.failed_to_read(error),
        }
    }

    fn remember<'a>(&self, writes: impl Iterator<Item = (&'a str, Version, KnownWrite)>) {
        self.recent.remember(writes);
    }

    /// Remembers which write made an element that was read.
    fn take(&self, id: &str, found: Present<'_, E>) -> E {
        if let Some(write_id) = found.document.write_id {
            let known = KnownWrite::without_bodies(write_id);
            self.remember(std::iter::once((id, found.element.version(), known)));
        }
        found.element
    }

    fn read(&self, document: &RawDocument<'_>) -> Result<Option<E>, StoreError> {
        Ok(E::read(document, &self.context.indices.encryption)?.map(|found| self.take(&document.id, found)))
    }

    /// Reads a document; `None` also when it cannot be read.
    fn read_if_possible(&self, document: &RawDocument<'_>) -> Result<Option<E>, StoreError> {
        self.context.unreadable.passed_over(&document.id, self.read(document))
    }

    /// Reads elements in real time and returns them in the order of `ids`; `None` where there is no element.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`] also when only one of them cannot be read: nobody may take it for missing.
    pub(super) async fn get(&self, ids: &[impl Serialize], deadline: Instant) -> Result<Vec<Option<E>>, StoreError> {
        self.get_with(ids, deadline, Self::read).await
    }

    /// Reads those of the elements in real time that are there and can be read.
    pub(super) async fn get_readable(&self, ids: &[String], deadline: Instant) -> Result<Vec<E>, StoreError> {
        Ok(self.get_with(ids, deadline, Self::read_if_possible).await?.into_iter().flatten().collect())
    }

    /// Reads those of the elements in real time that are there and can be read, and whose documents are sought.
    pub(super) async fn get_sought(
        &self,
        ids: &[String],
        deadline: Instant,
        is_sought: impl Fn(&RawDocument<'_>) -> bool,
    ) -> Result<Vec<E>, StoreError> {
        let read = |collection: &Self, document: &RawDocument<'_>| match is_sought(document) {
            true => collection.read_if_possible(document),
            false => Ok(None),
        };
        Ok(self.get_with(ids, deadline, read).await?.into_iter().flatten().collect())
    }

    async fn get_with(
        &self,
        mut ids: &[impl Serialize],
        deadline: Instant,
        read: impl Fn(&Self, &RawDocument<'_>) -> Result<Option<E>, StoreError>,
    ) -> Result<Vec<Option<E>>, StoreError> {
        let mut found = Vec::with_capacity(ids.len());
        let mut pace = Pace::default();
        // Ends: every round takes some of the ids.
        while !ids.is_empty() {
            let (chunk, rest) = ids.split_at(ids.len().min(pace.0));
            let reply = mget(&self.context.nodes, self.alias(), chunk, deadline).await?;
            for document in parse_mget(&reply, chunk.len())? {
                found.push(read(self, &document)?);
            }
            pace.note(chunk.len(), reply.len());
            ids = rest;
        }
        Ok(found)
    }

    /// Finds the ids of at most [`PAGE`] elements: one page of a search in the order `sort`, after the place `after`.
    pub(super) async fn ids(
        &self,
        query: &Value,
        sort: &Value,
        after: Option<Value>,
        deadline: Instant,
    ) -> Result<Page<String>, StoreError> {
        let mut body = search_body(query, sort, after, PAGE);
        body["_source"] = Value::Bool(false);
        self.scope(deadline).page(&body, |hit| Ok(Some(hit.id.clone()))).await
    }

    /// Finds at most `limit` elements in the order `sort`, which has to be total, after the place `after`. What cannot
    /// be read is passed over.
    pub(super) async fn find(
        &self,
        query: &Value,
        sort: &Value,
        mut after: Option<Value>,
        limit: usize,
        scope: Scope<'_>,
    ) -> Result<Vec<E>, StoreError> {
        let mut elements: Vec<E> = Vec::new();
        let (mut passed_over, mut pace) = (0, Pace::default());
        // Ends: every round goes a page further, or is the last.
        while elements.len() < limit {
            // The more could not be read so far, the more are asked for.
            let size = (limit - elements.len() + passed_over).min(pace.0);
            let body = search_body(query, sort, after, size);
            let read = |hit: &RawDocument<'_>| {
                let bytes = hit.source()?.map_or(0, |source| source.get().len());
                Ok(self.read_if_possible(hit)?.map(|element| (element, bytes)))
            };
            let Page { hits, last, found } = scope.page(&body, read).await?;
            pace.note(found.len(), found.iter().map(|(_, bytes)| bytes).sum());
            passed_over += hits - found.len();
            elements.extend(found.into_iter().map(|(element, _)| element));
            if hits < size {
                break;
            }
            after = last;
        }
        elements.truncate(limit);
        Ok(elements)
    }

    /// Closes the collection to writes and waits until every write under way is decided.
    pub(super) async fn close(&self) {
        let all = self.room.acquire_many(E::IN_FLIGHT).await;
        self.room.close();
        drop(all);
    }
}

/// How many documents the next request of a row reads: more, as long as those before were short.
struct Pace(usize);

impl Default for Pace {
    fn default() -> Self {
        Self(FIRST_PAGE)
    }
}

impl Pace {
    /// Takes note of the last answer.
    fn note(&mut self, documents: usize, bytes: usize) {
        let fitting = (PAGE_BYTES.saturating_mul(documents) / bytes.max(1)).max(1);
        self.0 = (self.0 * GROWTH).min(PAGE).min(if documents > 0 { fitting } else { self.0 });
    }
}

/// Decides a write whose deadline has passed.
fn time_is_up<E: Element>(task: &mut Task<E>) {
    if task.course.is_open() && task.held {
        let why = "an earlier write of the same document was not decided in time".to_owned();
        task.course.decide(Err(WriteError::Refused(StoreError::Unavailable(why))));
    } else if task.course.is_open() {
        task.course.time_is_up();
    }
}

fn search_body(query: &Value, sort: &Value, after: Option<Value>, size: usize) -> Value {
    let mut body = page(query, size);
    body["sort"] = sort.clone();
    if let Some(after) = after {
        body["search_after"] = after;
    }
    body
}

/// Returns pairs of a write's index and the index of the write before it with the same id. Writes of one document are
/// sent in the order they came, since each may conflict with what the one before it wrote.
fn followers<'a>(ids: impl Iterator<Item = &'a str>) -> Vec<(usize, usize)> {
    let mut latest: HashMap<&str, usize> = HashMap::new();
    ids.enumerate().filter_map(|(index, id)| latest.insert(id, index).map(|before| (index, before))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_follows_the_last_one_before_it_of_the_same_document() {
        assert_eq!(followers(["a", "b", "c"].into_iter()), []);
        assert_eq!(followers(["a", "b", "a", "c", "a", "b"].into_iter()), [(2, 0), (4, 2), (5, 1)]);
    }

    #[test]
    fn more_documents_are_read_at_once_as_long_as_they_are_short() {
        let sizes = |bytes: usize| {
            let mut pace = Pace::default();
            let mut next = || {
                pace.note(pace.0, pace.0 * bytes);
                pace.0
            };
            [next(), next(), next()]
        };
        assert_eq!(sizes(2_048), [500, PAGE, PAGE]);
        assert_eq!(sizes(1024 * 1024), [16, 16, 16]);
        assert_eq!(sizes(PAGE_BYTES + 1), [1, 1, 1]);
        let mut pace = Pace::default();
        pace.note(0, 0);
        assert_eq!(pace.0, FIRST_PAGE, "nothing is known of what could not be read");
    }

    #[test]
    fn a_search_goes_on_after_the_place_that_it_is_given() {
        let (query, sort) = (serde_json::json!({ "match_all": {} }), serde_json::json!([{ "id": "asc" }]));
        let first = search_body(&query, &sort, None, 7);
        assert_eq!((&first["size"], &first["sort"], first.get("search_after")), (&7.into(), &sort, None));
        assert_eq!(search_body(&query, &sort, Some(serde_json::json!(["a"])), 7)["search_after"][0], "a");
    }
}
