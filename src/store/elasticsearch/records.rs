//! Records: one document each, in a [`Collection`] of their own.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::collection::{Collection, Element, PAGE, Present};
use super::conditional::CurrentDocument;
use super::context::Context;
use super::document::{BodyForm, WriteIds, present};
use super::documents::RawDocument;
use super::encryption::{EncryptionKeys, SecretField};
use super::indices::Kind;
use super::resolution::Condition;
use super::search::Page;
use super::write_id::WriteId;
use crate::job::{Json, RecordName};
use crate::store::record::too_many;
use crate::store::{MAX_RECORDS, Record, RecordKey, RecordKind, RecordWrite, StoreError, Version, WriteResult};

/// The name of the setting that says which keys are in use.
pub(super) const IN_USE: &str = "encryption-keys";

/// A record as a document, as it is written and read.
#[serde_with::skip_serializing_none]
#[derive(Serialize, Deserialize)]
pub(super) struct RecordDocument<'a> {
    kind: Cow<'a, str>,
    name: RecordName,
    #[serde(default, deserialize_with = "present")]
    body: Option<Json>,
    body_text: Option<Cow<'a, str>>,
    write_id: Option<WriteId>,
    previous_write_id: Option<WriteId>,
}

impl Element for Record {
    type Write = RecordWrite;
    type Document<'a> = RecordDocument<'a>;

    const KIND: Kind = Kind::Records;
    const NAME: &'static str = "record";
    const IN_FLIGHT: u32 = 1_024;
    const HAS_TEXT_FORM: bool = true;

    fn id(write: &RecordWrite) -> String {
        write.key().to_string()
    }

    fn condition(write: &RecordWrite) -> Condition {
        match write {
            RecordWrite::Create { .. } => Condition::Absent,
            RecordWrite::Replace { expected, .. } => Condition::Replace(*expected),
            RecordWrite::Remove { expected, .. } => Condition::Remove(*expected),
        }
    }

    fn document<'a>(
        write: &'a RecordWrite,
        ids: WriteIds,
        form: BodyForm,
        keys: &EncryptionKeys,
    ) -> Result<Option<RecordDocument<'a>>, StoreError> {
        let Some(body) = write.body() else { return Ok(None) };
        let key = write.key();
        let is_encrypted = !keys.is_empty() && holds_secrets(key);
        let text = match (form, is_encrypted) {
            (_, true) => Some(keys.encrypt(secret(&key.to_string()), body.as_str()).map_err(StoreError::Corrupt)?),
            (BodyForm::Text, false) => Some(body.as_str().into()),
            (BodyForm::Json, false) => None,
        };
        Ok(Some(RecordDocument {
            kind: key.kind.as_str().into(),
            name: key.name.clone(),
            body: text.is_none().then(|| body.clone()),
            body_text: text,
            write_id: Some(ids.own),
            previous_write_id: ids.previous,
        }))
    }

    fn read<'a>(document: &RawDocument<'a>, keys: &EncryptionKeys) -> Result<Option<Present<'a, Self>>, StoreError> {
        let Some(source) = document.source()? else { return Ok(None) };
        let corrupt = |why: String| StoreError::Unreadable { what: format!("the record `{}`", document.id), why };
        let stored: RecordDocument<'_> =
            serde_json::from_str(source.get()).map_err(|error| corrupt(error.to_string()))?;
        let text =
            stored.body_text.map(|text| keys.decrypt(secret(&document.id), text)).transpose().map_err(corrupt)?;
        let text = text.map(|text| Json::parse(text.into_owned())).transpose();
        let text = text.map_err(|error| corrupt(error.to_string()))?;
        let body = text.or(stored.body).ok_or_else(|| corrupt("it has no body".to_owned()))?;
        let key = RecordKey::new(stored.kind.parse().map_err(corrupt)?, stored.name);
        let (version, write_id, previous_write_id) = (document.version()?, stored.write_id, stored.previous_write_id);
        let document = CurrentDocument { version, source, write_id, previous_write_id };
        Ok(Some(Present { element: Self { key, body, version }, document }))
    }

    fn version(&self) -> Version {
        self.version
    }
}

/// Returns whether a record may hold secrets. Which keys are in use is read before anything can be opened.
fn holds_secrets(key: &RecordKey) -> bool {
    match key.kind {
        RecordKind::Subscription => true,
        RecordKind::Setting => key.name.as_str() != IN_USE,
        RecordKind::Lease
        | RecordKind::Queue
        | RecordKind::Manager
        | RecordKind::Backfill
        | RecordKind::Limit
        | RecordKind::Slots
        | RecordKind::Unique
        | RecordKind::Line => false,
    }
}

fn secret(id: &str) -> SecretField<'_> {
    SecretField { kind: "record", id, name: "body" }
}

/// Returns the query for the records of a kind, and their order.
fn of_kind(kind: RecordKind) -> (Value, Value) {
    (json!({ "bool": { "filter": [{ "term": { "kind": kind.as_str() } }] } }), json!([{ "name": "asc" }]))
}

/// The records of a store.
pub(super) struct Records(Collection<Record>);

impl Records {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self(Collection::new(context))
    }

    /// Applies writes and returns when they are decided, at the latest at their deadline.
    pub(super) async fn write(&self, writes: Vec<RecordWrite>) -> Vec<WriteResult<Record>> {
        self.0.write(writes).await
    }

    /// Reads records in real time.
    pub(super) async fn get(&self, keys: &[RecordKey], deadline: Instant) -> Result<Vec<Option<Record>>, StoreError> {
        let ids: Vec<String> = keys.iter().map(RecordKey::to_string).collect();
        self.0.get(&ids, deadline).await
    }

    /// Lists the records of a kind, ordered by name: those that a search finds, as they are in real time.
    pub(super) async fn list(&self, kind: RecordKind, deadline: Instant) -> Result<Vec<Record>, StoreError> {
        let (query, sort) = of_kind(kind);
        let mut records: Vec<Record> = Vec::new();
        let mut after = None;
        // Ends: every round adds a page, or is the last.
        while records.len() <= MAX_RECORDS {
            let Page { hits, last, found } = self.0.ids(&query, &sort, after, deadline).await?;
            records.extend(self.0.get_readable(&found, deadline).await?);
            if hits < PAGE && records.len() <= MAX_RECORDS {
                return Ok(records);
            }
            after = last;
        }
        Err(too_many(kind))
    }

    /// Lists a page of the records of a kind, ordered by name, after this one.
    pub(super) async fn list_after(
        &self,
        kind: RecordKind,
        after: Option<&RecordName>,
        deadline: Instant,
    ) -> Result<Vec<Record>, StoreError> {
        let (query, sort) = of_kind(kind);
        let page = self.0.ids(&query, &sort, after.map(|name| json!([name])), deadline).await?;
        self.0.get_readable(&page.found, deadline).await
    }

    /// Writes the records that may hold secrets and are not encrypted with the first of these keys, so that they are.
    /// Most of them are written seldom, and one never: the key that signs notifications. What another process writes
    /// meanwhile is left, since that one encrypts it.
    pub(super) async fn encrypt_by_first(&self, keys: &EncryptionKeys, deadline: Instant) -> Result<(), StoreError> {
        if keys.is_empty() {
            return Ok(());
        }
        let is_sought = |document: &RawDocument<'_>| {
            let source = document.source().ok().flatten();
            let stored = source.and_then(|source| serde_json::from_str::<RecordDocument<'_>>(source.get()).ok());
            stored.is_some_and(|stored| stored.body_text.is_none_or(|text| !keys.is_by_first(&text)))
        };
        for kind in [RecordKind::Subscription, RecordKind::Setting] {
            let (query, sort) = of_kind(kind);
            let mut after = None;
            // Ends: every round goes a page further, or is the last.
            loop {
                let Page { hits, last, found } = self.0.ids(&query, &sort, after, deadline).await?;
                let records = self.0.get_sought(&found, deadline, is_sought).await?;
                let records = records.into_iter().filter(|record| holds_secrets(&record.key));
                let writes = records.map(|Record { key, body, version }| RecordWrite::put(key, body, Some(version)));
                for error in self.0.write(writes.collect()).await.into_iter().filter_map(Result::err) {
                    tracing::debug!(%error, "a record is left as it is encrypted");
                }
                if hits < PAGE {
                    break;
                }
                after = last;
            }
        }
        Ok(())
    }

    /// Closes the records to writes and waits until every write under way is decided.
    pub(super) async fn close(&self) {
        self.0.close().await;
    }
}
