//! Schedules: one document each, in a [`Collection`] of their own.
//!
//! A document holds the whole schedule as JSON text, which is what is read back, and beside it the fields by which
//! schedules are found: by loaders, and by people. The text is not indexed. It may be long, and actions may have bodies
//! and headers in them that are nobody's business but the receiver's; a Kibana data view leaves it out by its name.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::collection::{Collection, Element, Present};
use super::conditional::CurrentDocument;
use super::context::Context;
use super::document::{BodyForm, WriteIds};
use super::documents::RawDocument;
use super::encryption::{EncryptionKeys, SecretField};
use super::indices::Kind;
use super::kql;
use super::resolution::Condition;
use super::search::Scope;
use super::write_id::WriteId;
use crate::clock::Timestamp;
use crate::job::{Actor, Owner, Partition, ScheduleId};
use crate::query::ScheduleFilter;
use crate::schedule::{Action, ActionType, Overlap, Schedule};
use crate::store::{DueSchedules, ListSchedules, ScheduleResult, ScheduleWrite, StoreError, StoredSchedule, Version};

/// A schedule as a document, as it is written. All but the last three fields are there for searches and never read.
#[serde_with::skip_serializing_none]
#[derive(Serialize)]
pub(super) struct ScheduleDocument<'a> {
    id: &'a ScheduleId,
    owner: Option<&'a Owner>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
    partition: u8,
    load_at: Option<Timestamp>,
    next_due_at: Option<Timestamp>,
    last_due_at: Option<Timestamp>,
    not_run_at: Option<Timestamp>,
    created_at: Timestamp,
    updated_at: Timestamp,
    revision: i64,
    paused: bool,
    paused_at: Option<Timestamp>,
    paused_by: Option<&'a Actor>,
    paused_reason: Option<&'a str>,
    action_type: ActionType,
    action: ActionFields<'a>,
    period: PeriodFields<'a>,
    start_at: Option<Timestamp>,
    end_at: Option<Timestamp>,
    overlap: Overlap,
    margin_of_error_ms: i64,
    errors: u32,
    /// The schedule as JSON, encrypted where there are keys: its action may have headers and an environment in it.
    document: String,
    write_id: WriteId,
    previous_write_id: Option<WriteId>,
}

/// The part of an action that people search for, which has no secret.
#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct ActionFields<'a> {
    url: Option<Cow<'a, str>>,
    job: Option<JobFields<'a>>,
}

/// The part of the job of an action that people search for.
#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct JobFields<'a> {
    queue: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
}

/// The part of a period that people search for.
#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct PeriodFields<'a> {
    cron: Option<&'a str>,
    time_zone: Option<&'a str>,
    every_ms: Option<i64>,
}

/// The part of a document that is read.
#[derive(Deserialize)]
struct StoredDocument {
    document: String,
    write_id: Option<WriteId>,
    previous_write_id: Option<WriteId>,
}

fn secret(id: &str) -> SecretField<'_> {
    SecretField { kind: "schedule", id, name: "document" }
}

/// Returns a number as a `long` of the index, capped at the largest one.
fn long(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl<'a> ScheduleDocument<'a> {
    fn new(schedule: &'a Schedule, ids: WriteIds, keys: &EncryptionKeys) -> Result<Self, StoreError> {
        let (definition, course, pause) = (&*schedule.definition, &schedule.course, schedule.paused.as_ref());
        let document = serde_json::to_string(schedule)
            .map_err(|error| StoreError::Corrupt(format!("the schedule `{}`: {error}", schedule.id)))?;
        let document = keys.encrypt(secret(schedule.id.as_str()), &document).map_err(StoreError::Corrupt)?.into_owned();
        let period = PeriodFields {
            cron: definition.period.cron.as_deref(),
            time_zone: definition.period.time_zone.as_deref(),
            every_ms: definition.period.every_ms.map(long),
        };
        Ok(Self {
            id: &schedule.id,
            owner: definition.owner.as_ref(),
            labels: &definition.labels,
            partition: schedule.partition().get(),
            load_at: schedule.load_at(),
            next_due_at: course.next_due_at,
            last_due_at: course.last_due_at,
            not_run_at: course.last_not_run(),
            created_at: schedule.created_at,
            updated_at: schedule.updated_at,
            revision: long(schedule.revision),
            paused: pause.is_some(),
            paused_at: pause.map(|pause| pause.at),
            paused_by: pause.map(|pause| &pause.by),
            paused_reason: pause.map(|pause| pause.reason.as_str()).filter(|reason| !reason.is_empty()),
            action_type: definition.action.kind,
            action: ActionFields::of(&definition.action),
            period,
            start_at: definition.start_at,
            end_at: definition.end_at,
            overlap: definition.overlap,
            margin_of_error_ms: long(definition.margin_of_error_ms),
            errors: course.errors,
            document,
            write_id: ids.own,
            previous_write_id: ids.previous,
        })
    }
}

impl<'a> ActionFields<'a> {
    fn of(action: &'a Action) -> Self {
        let job = action.job.as_ref().map(|_| JobFields { queue: action.job_queue(), kind: action.job_kind() });
        Self { url: action.searchable_url(), job }
    }
}

impl Element for StoredSchedule {
    type Write = ScheduleWrite;
    type Document<'a> = ScheduleDocument<'a>;

    const KIND: Kind = Kind::Schedules;
    const NAME: &'static str = "schedule";
    const IN_FLIGHT: u32 = 50_000;
    const HAS_TEXT_FORM: bool = false;

    fn id(write: &ScheduleWrite) -> String {
        write.id().to_string()
    }

    fn condition(write: &ScheduleWrite) -> Condition {
        match write {
            ScheduleWrite::Create { .. } => Condition::Absent,
            ScheduleWrite::Replace { expected, .. } => Condition::Replace(*expected),
            ScheduleWrite::Remove { expected, .. } => Condition::Remove(*expected),
        }
    }

    fn document<'a>(
        write: &'a ScheduleWrite,
        ids: WriteIds,
        _: BodyForm,
        keys: &EncryptionKeys,
    ) -> Result<Option<ScheduleDocument<'a>>, StoreError> {
        write.schedule().map(|schedule| ScheduleDocument::new(schedule, ids, keys)).transpose()
    }

    fn read<'a>(document: &RawDocument<'a>, keys: &EncryptionKeys) -> Result<Option<Present<'a, Self>>, StoreError> {
        let Some(source) = document.source()? else { return Ok(None) };
        let cannot = |why: String| StoreError::Unreadable { what: format!("the schedule `{}`", document.id), why };
        let unreadable = |error: serde_json::Error| cannot(error.to_string());
        let stored: StoredDocument = serde_json::from_str(source.get()).map_err(unreadable)?;
        let text = keys.decrypt(secret(&document.id), stored.document.into()).map_err(cannot)?;
        let schedule = serde_json::from_str(&text).map_err(unreadable)?;
        let (version, write_id, previous_write_id) = (document.version()?, stored.write_id, stored.previous_write_id);
        let document = CurrentDocument { version, source, write_id, previous_write_id };
        Ok(Some(Present { element: Self { schedule: Arc::new(schedule), version }, document }))
    }

    fn version(&self) -> Version {
        self.version
    }
}

/// The schedules of a store.
pub(super) struct Schedules(Collection<StoredSchedule>);

impl Schedules {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self(Collection::new(context))
    }

    /// Applies writes and returns their results in order when all are decided, at the latest at their deadline.
    pub(super) async fn write(&self, writes: Vec<ScheduleWrite>) -> Vec<ScheduleResult> {
        self.0.write(writes).await
    }

    /// Reads schedules in real time, in the order of `ids`.
    pub(super) async fn get(
        &self,
        ids: &[ScheduleId],
        deadline: Instant,
    ) -> Result<Vec<Option<StoredSchedule>>, StoreError> {
        self.0.get(ids, deadline).await
    }

    /// Finds the schedules that a loader has to look at, by time and then by id.
    pub(super) async fn due(&self, due: &DueSchedules, scope: Scope<'_>) -> Result<Vec<StoredSchedule>, StoreError> {
        if due.partitions.is_empty() {
            return Ok(Vec::new());
        }
        let sort = json!([{ "load_at": "asc" }, { "id": "asc" }]);
        self.0.find(&due_query(due), &sort, None, due.limit, scope).await
    }

    /// Lists schedules by id.
    pub(super) async fn list(&self, list: &ListSchedules, scope: Scope<'_>) -> Result<Vec<StoredSchedule>, StoreError> {
        let after = list.after.as_ref().map(|after| json!([after.as_str()]));
        self.0.find(&filter_query(&list.filter), &json!([{ "id": "asc" }]), after, list.limit, scope).await
    }

    /// Counts schedules.
    pub(super) async fn count(filter: &ScheduleFilter, scope: Scope<'_>) -> Result<u64, StoreError> {
        scope.count(&filter_query(filter)).await
    }

    /// Closes the schedules to writes and waits until every write under way is decided.
    pub(super) async fn close(&self) {
        self.0.close().await;
    }
}

fn filter_query(filter: &ScheduleFilter) -> Value {
    let owner = filter.owner.as_ref().map(|owner| json!({ "term": { "owner": owner.as_str() } }));
    let query = filter.query.as_ref().map(|query| kql::compile_at(&query.expression, query.now));
    let paused = filter.paused.map(|paused| json!({ "term": { "paused": paused } }));
    let parts: Vec<Value> = owner.into_iter().chain(paused).chain(query).collect();
    match parts.is_empty() {
        true => json!({ "match_all": {} }),
        false => json!({ "bool": { "filter": parts } }),
    }
}

fn due_query(due: &DueSchedules) -> Value {
    let until = json!({ "range": { "load_at": { "lte": due.until.as_millis(), "format": "epoch_millis" } } });
    let mut filter = vec![until];
    if !due.partitions.is_full() {
        let partitions: Vec<u8> = due.partitions.iter().map(Partition::get).collect();
        filter.push(json!({ "terms": { "partition": partitions } }));
    }
    json!({ "bool": { "filter": filter } })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::golden::write_ids;
    use super::super::write_id::WriteIdSource;
    use super::*;
    use crate::golden::check;
    use crate::job::{Actor, PartitionSet};
    use crate::schedule::SchedulePause;

    /// A schedule with every field that its document has, but for those of a pause.
    fn schedule() -> Schedule {
        let text = r#"{
            "id": "nightly/report",
            "definition": {
                "owner": "team-a",
                "labels": { "app": "shop" },
                "action": { "type": "http", "url": "https://example.com", "body": { "a": 1e999, "a": "\u0000 ü" } },
                "period": { "cron": "0 3 * * *", "time_zone": "Europe/Berlin", "every_ms": 60000 },
                "margin_of_error_ms": 18446744073709551615,
                "start_at": "2030-01-01T00:00:00.000Z",
                "end_at": "2031-01-01T00:00:00.000Z"
            },
            "revision": 3,
            "period_since": "2030-01-01T00:00:00.000Z",
            "created_at": "2030-01-01T00:00:00.000Z",
            "updated_at": "2030-01-02T00:00:00.000Z",
            "course": {
                "next_due_at": "2030-01-03T02:00:00.000Z",
                "last_due_at": "2030-01-02T02:00:00.000Z",
                "not_run": [{
                    "first": "2030-01-01T02:00:00.000Z",
                    "last": "2030-01-01T02:00:00.000Z",
                    "count": 1,
                    "reason": "missed"
                }]
            }
        }"#;
        serde_json::from_str(text).expect("a schedule")
    }

    fn paused() -> Schedule {
        let by = Actor::new("somebody").expect("an actor");
        let pause = SchedulePause { at: Timestamp::default(), by, reason: "a move".to_owned() };
        Schedule { paused: Some(pause), ..schedule() }
    }

    fn source(schedule: &Schedule) -> Value {
        let ids = WriteIdSource::new();
        let ids = WriteIds { own: ids.next(), previous: Some(ids.next()) };
        serde_json::to_value(ScheduleDocument::new(schedule, ids, &EncryptionKeys::default()).expect("JSON"))
            .expect("JSON")
    }

    #[test]
    fn the_documents_of_schedules_are_as_recorded() {
        let document = |(name, schedule): (&str, Schedule)| {
            let document = ScheduleDocument::new(&schedule, write_ids(), &EncryptionKeys::default()).expect("JSON");
            (format!("{name}.json"), serde_json::to_string_pretty(&document).expect("JSON") + "\n")
        };
        check("elasticsearch/schedules", &[("due", schedule()), ("paused", paused())].map(document).into());
    }

    #[test]
    fn a_schedule_comes_back_from_its_document_as_it_was() {
        let (schedule, mut hit) = (schedule(), json!({ "_id": "nightly/report", "_seq_no": 7, "_primary_term": 2 }));
        hit["_source"] = source(&schedule);
        let text = hit.to_string();
        let document: RawDocument<'_> = serde_json::from_str(&text).expect("a document");
        let found = StoredSchedule::read(&document, &EncryptionKeys::default()).expect("readable").expect("a document");
        assert_eq!(*found.element.schedule, schedule);
        assert_eq!((found.element.version.seq_no, found.element.version.primary_term), (7, 2));
        assert!(found.document.write_id.is_some() && found.document.previous_write_id.is_some());
    }

    #[test]
    fn a_document_of_another_version_is_unreadable_and_none_is_none() {
        let read = |source: Value| {
            let text = json!({ "_id": "a", "_seq_no": 7, "_primary_term": 2, "_source": source }).to_string();
            let document: RawDocument<'_> = serde_json::from_str(&text).expect("a document");
            StoredSchedule::read(&document, &EncryptionKeys::default()).map(|found| found.is_some())
        };
        assert!(matches!(read(json!({ "id": "a" })), Err(StoreError::Unreadable { .. })));
        assert!(matches!(read(json!({ "document": "{\"id\":\"a\"}" })), Err(StoreError::Unreadable { .. })));
        assert!(matches!(read(Value::Null), Ok(false)));
    }

    #[test]
    fn a_document_has_the_fields_of_the_mapping_and_no_others() {
        let mapping: Value = serde_json::from_str(include_str!("../../../mappings/schedules.json")).expect("a mapping");
        let names = |object: &Value| object.as_object().expect("an object").keys().cloned().collect::<BTreeSet<_>>();
        let properties = &mapping["mappings"]["properties"];
        let source = source(&schedule());
        // One that is paused is loaded at no time.
        assert_eq!(&names(&source) | &names(&self::source(&paused())), names(properties));
        assert_eq!(names(&source["period"]), names(&properties["period"]["properties"]));
        assert_eq!(source["margin_of_error_ms"], i64::MAX, "a `long` has no larger number");
    }

    #[test]
    fn a_paused_schedule_keeps_its_next_time_and_is_loaded_at_none() {
        let source = source(&paused());
        assert_eq!((&source["paused"], source.get("load_at")), (&Value::Bool(true), None));
        assert_eq!((&source["paused_by"], &source["paused_reason"]), (&"somebody".into(), &"a move".into()));
        assert_eq!(source["next_due_at"], "2030-01-03T02:00:00.000Z");
    }

    #[test]
    fn what_may_be_secret_in_an_action_is_in_no_field() {
        let mut schedule = schedule();
        let url = |url: &str| Action { url: Some(url.to_owned()), ..Action::of(ActionType::Http) };
        let mut definition = (*schedule.definition).clone();
        definition.action = url("https://user:secret@example.com/path?token=secret#secret");
        schedule.definition = Arc::new(definition);
        let mut source = source(&schedule);
        assert_eq!(source["action"], json!({ "url": "https://example.com/path" }));
        source["document"] = Value::Null;
        assert!(!source.to_string().contains("secret"), "{source}");
    }

    #[test]
    fn partitions_are_named_unless_all_are_meant() {
        let query = |partitions: PartitionSet| due_query(&DueSchedules { partitions, until: Timestamp::MAX, limit: 1 });
        let all: PartitionSet = Partition::all().collect();
        assert_eq!(query(all)["bool"]["filter"].as_array().map(Vec::len), Some(1));
        let some: PartitionSet = Partition::all().take(2).collect();
        assert_eq!(query(some)["bool"]["filter"][1], json!({ "terms": { "partition": [0, 1] } }));
    }
}
