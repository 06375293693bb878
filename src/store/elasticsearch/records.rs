//! Records: one document each in an index of their own.
//!
//! They are written seldom, so each write is a request of its own; but answers and lost answers are handled as they are
//! for jobs ([`super::conditional`]).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{Semaphore, TryAcquireError};
use tokio::time::Instant;

use super::bulk::{ItemOutcome, Lines};
use super::conditional::{ConditionalWrite, Content, CurrentDocument, Rounds};
use super::context::{Context, Sent};
use super::document::{BodyForm, WriteIds, present};
use super::documents::{RawDocument, mget, parse_mget};
use super::resolution::Condition;
use super::search::{Page, Scope, page};
use super::write_id::{KnownWrite, RecentWrites, WriteId};
use crate::job::{Json, RecordName};
use crate::store::record::too_many;
use crate::store::{MAX_RECORDS, Record, RecordKey, RecordKind, RecordWrite, StoreError, WriteError, WriteResult};

/// The most writes of records under way at once.
const IN_FLIGHT: u32 = 1_024;
/// How long a caller should wait before it tries again when that many are under way.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The most records that one request lists.
const PAGE: usize = 1_000;

/// A record as a document, as it is written and read.
#[serde_with::skip_serializing_none]
#[derive(Serialize, Deserialize)]
struct RecordDocument<'a> {
    kind: Cow<'a, str>,
    name: RecordName,
    #[serde(default, deserialize_with = "present")]
    body: Option<Json>,
    body_text: Option<Cow<'a, str>>,
    write_id: Option<WriteId>,
    previous_write_id: Option<WriteId>,
}

/// A record that was read, with its document.
struct Present<'a> {
    record: Record,
    document: CurrentDocument<'a>,
}

fn read<'a>(document: &RawDocument<'a>) -> Result<Option<Present<'a>>, StoreError> {
    let Some(source) = document.source()? else { return Ok(None) };
    let corrupt = |why: String| StoreError::Unreadable { what: format!("the record `{}`", document.id), why };
    let stored: RecordDocument<'_> = serde_json::from_str(source.get()).map_err(|error| corrupt(error.to_string()))?;
    let text = stored
        .body_text
        .map(|text| Json::parse(text.into_owned()))
        .transpose()
        .map_err(|error| corrupt(error.to_string()))?;
    let body = text.or(stored.body).ok_or_else(|| corrupt("it has no body".to_owned()))?;
    let key = RecordKey::new(stored.kind.parse().map_err(corrupt)?, stored.name);
    let (version, write_id, previous_write_id) = (document.version()?, stored.write_id, stored.previous_write_id);
    let document = CurrentDocument { version, source, write_id, previous_write_id };
    Ok(Some(Present { record: Record { key, body, version }, document }))
}

/// The records of a store.
pub(super) struct Records {
    context: Arc<Context>,
    recent: RecentWrites,
    room: Semaphore,
}

/// One write of a record under way.
struct Task {
    write: RecordWrite,
    /// The id of the record's document.
    id: String,
    ids: WriteIds,
    form: BodyForm,
    course: ConditionalWrite<Record>,
}

impl Task {
    fn new(write: RecordWrite, ids: WriteIds) -> Self {
        let condition = match &write {
            RecordWrite::Create { .. } => Condition::Absent,
            RecordWrite::Replace { expected, .. } => Condition::Replace(*expected),
            RecordWrite::Remove { expected, .. } => Condition::Remove(*expected),
        };
        let id = write.key().to_string();
        Self { write, id, ids, form: BodyForm::Json, course: ConditionalWrite::new(condition, ids.own) }
    }

    /// Returns the next try of the write, as a bulk of one item.
    fn lines(&mut self) -> Result<Lines, StoreError> {
        let mut lines = Lines::default();
        let (action, content) = self.course.begin_try(&self.id);
        match (content, self.write.body()) {
            (Content::Again(source), _) => lines.add(&action, Some(source))?,
            (Content::Own, Some(body)) => {
                let key = self.write.key();
                let document = RecordDocument {
                    kind: key.kind.as_str().into(),
                    name: key.name.clone(),
                    body: (self.form == BodyForm::Json).then(|| body.clone()),
                    body_text: (self.form == BodyForm::Text).then(|| body.as_str().into()),
                    write_id: Some(self.ids.own),
                    previous_write_id: self.ids.previous,
                };
                lines.add(&action, Some(&document))?;
            }
            (Content::Own, None) => lines.add(&action, None::<&()>)?,
        }
        Ok(lines)
    }

    /// Processes the outcome of a try.
    fn sent(&mut self, outcome: ItemOutcome) {
        match outcome {
            ItemOutcome::Invalid(_) if self.form == BodyForm::Json && self.write.body().is_some() => {
                self.form = BodyForm::Text;
            }
            outcome => self.course.sent(outcome, format_args!("the record `{}`", self.id)),
        }
    }
}

impl Records {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context, recent: RecentWrites::default(), room: Semaphore::new(IN_FLIGHT as usize) }
    }

    fn scope(&self, deadline: Instant) -> Scope<'_> {
        Scope { nodes: &self.context.nodes, index: &self.context.indices.records, deadline, time: None }
    }

    /// Applies a write and returns when it is decided, at the latest at its deadline.
    pub(super) async fn write(&self, write: RecordWrite) -> WriteResult<Record> {
        let _room = self.room.try_acquire().map_err(|refused| match refused {
            TryAcquireError::Closed => StoreError::Unavailable("it is closed".to_owned()),
            TryAcquireError::NoPermits => StoreError::Overloaded { retry_after: RETRY_AFTER },
        })?;
        self.bring_to_its_end(write, Instant::now() + self.context.write_timeout).await
    }

    async fn bring_to_its_end(&self, write: RecordWrite, deadline: Instant) -> WriteResult<Record> {
        let former = match &write {
            RecordWrite::Replace { key, expected, .. } => self.recent.get(key, *expected),
            RecordWrite::Create { .. } | RecordWrite::Remove { .. } => None,
        };
        let ids = WriteIds { own: self.context.ids.next(), previous: former.map(|known| known.write_id) };
        let mut task = Task::new(write, ids);
        let mut rounds = Rounds::until(deadline);
        let result = loop {
            if task.course.is_to_be_sent() {
                self.send(&mut task, deadline).await;
            }
            if task.course.is_to_be_read() {
                self.read_back(&mut task, deadline).await;
            }
            if let Some(result) = task.course.take_result() {
                break result;
            }
            if !rounds.next(task.course.is_blocked()).await {
                task.course.time_is_up();
            }
        };
        if let (Ok(version), Some(_)) = (&result, task.write.body()) {
            self.remember(task.write.key(), *version, ids.own);
        }
        result
    }

    async fn send(&self, task: &mut Task, deadline: Instant) {
        let lines = match task.lines() {
            Ok(lines) => lines,
            Err(error) => return task.course.decide(Err(WriteError::Refused(error))),
        };
        for Sent { outcome, maybe_repeated } in self.context.send(&self.context.indices.records, lines, deadline).await
        {
            task.course.maybe_applied(maybe_repeated);
            task.sent(outcome);
        }
    }

    /// Reads back the record of a write that met a conflict.
    async fn read_back(&self, task: &mut Task, deadline: Instant) {
        let Scope { nodes, index, .. } = self.scope(deadline);
        let reply = match mget(nodes, index, &[&task.id], deadline).await {
            Ok(reply) => reply,
            Err(error) => return task.course.failed_to_read(error),
        };
        let documents = parse_mget(&reply, 1);
        match documents.and_then(|documents| documents.first().map(read).transpose()) {
            Ok(found) => {
                let found = found.flatten();
                let document = found.as_ref().map(|found| found.document);
                let record = found.map(|found| self.take(found));
                task.course.on_read_back(document, false, || record);
            }
            Err(error @ StoreError::Corrupt(_)) => task.course.decide(Err(WriteError::Refused(error))),
            Err(error) => task.course.failed_to_read(error),
        }
    }

    fn remember(&self, key: &RecordKey, version: crate::store::Version, write_id: WriteId) {
        self.recent.remember(std::iter::once((key, version, KnownWrite::of_record(write_id))));
    }

    /// Parses a record and remembers which write made it.
    fn take(&self, found: Present<'_>) -> Record {
        if let Some(write_id) = found.document.write_id {
            self.remember(&found.record.key, found.record.version, write_id);
        }
        found.record
    }

    /// Reads a record in real time.
    pub(super) async fn get(&self, key: &RecordKey, deadline: Instant) -> Result<Option<Record>, StoreError> {
        let Scope { nodes, index, .. } = self.scope(deadline);
        let reply = mget(nodes, index, &[key.to_string()], deadline).await?;
        let documents = parse_mget(&reply, 1)?;
        let found = documents.first().map(read).transpose()?.flatten();
        Ok(found.map(|found| self.take(found)))
    }

    /// Lists the records of a kind, ordered by name: those that a search finds, as they are in real time.
    pub(super) async fn list(&self, kind: RecordKind, deadline: Instant) -> Result<Vec<Record>, StoreError> {
        let scope = self.scope(deadline);
        let mut records: Vec<Record> = Vec::new();
        let mut after = None;
        // Ends: every round adds a page, or is the last.
        while records.len() <= MAX_RECORDS {
            let mut body = page(&json!({ "bool": { "filter": [{ "term": { "kind": kind.as_str() } }] } }), PAGE);
            body["_source"] = json!(false);
            body["sort"] = json!([{ "name": "asc" }]);
            if let Some(after) = after {
                body["search_after"] = after;
            }
            let Page { hits, last, found } = scope.page(&body, |hit| Ok(Some(hit.id.to_string()))).await?;
            records.extend(self.read_all(&found, deadline).await?);
            if hits < PAGE && records.len() <= MAX_RECORDS {
                return Ok(records);
            }
            after = last;
        }
        Err(too_many(kind))
    }

    /// Reads the records that are still there, in real time.
    async fn read_all(&self, ids: &[String], deadline: Instant) -> Result<Vec<Record>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let Scope { nodes, index, .. } = self.scope(deadline);
        let reply = mget(nodes, index, ids, deadline).await?;
        let read = |document: &RawDocument<'_>| {
            let found = self.context.unreadable.passed_over(&document.id, read(document))?;
            Ok(found.map(|found| self.take(found)))
        };
        parse_mget(&reply, ids.len())?.iter().filter_map(|document| read(document).transpose()).collect()
    }

    /// Closes the records to writes and waits until every write under way is decided.
    pub(super) async fn close(&self) {
        let all = self.room.acquire_many(IN_FLIGHT).await;
        self.room.close();
        drop(all);
    }
}
