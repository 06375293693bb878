//! The JSON of each request and answer. Samples are made of the schema that a type has in the API's description, read
//! as the type, and written again: one with every field, of each variant, and one with the required fields only.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use leasehold::job::{self, Hold};
use leasehold::manager::LimitState;
use leasehold::scheduler::DueTime;
use leasehold::store::{Place, Versioned};
use leasehold::wire::*;
use regex::Regex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{Files, check};
use crate::api::description;
use crate::architecture::sources;
use crate::store::sample;

/// The names of these types, each with its samples as JSON.
macro_rules! samples {
    ($($name:ident $(<$of:ty>)?),* $(,)?) => {
        Files::from([$((stringify!($name).to_owned(), samples::<$name $(<$of>)?>())),*])
    };
}

/// Every request and answer.
fn all() -> Files {
    samples! {
        AdminRelease, AttemptOutput, AuditAnswer, AuditChange, AuditEvent, AwaitRecalls, BackfillSchedule,
        BulkAnswer<SubmitItem>,
        BulkChange, BulkFilter, BulkReport<Job>, BulkScheduleChange, BulkScheduleFilter, CancelJob, Capacity,
        ChangeCluster, ChangeFailure, ChangeQueue, ChangeReason, ClaimAnswer, ClaimJobs, ClaimNext,
        ClusterHindrance, ClusterMember, ClusterRole, ClusterStatus, CompleteJob, Completion, CompletionItem,
        CountAnswer, CountGroup, Distribution,
        DueTime, Durations, EditJob, EndsAnswer, EventJob, ExcludedDates, Explanation, FailJob, Fairness,
        FieldDescription, FieldError, FieldList, FinishJobs, FireTimes, Health, HealthCheck, HealthCheckName,
        HealthStatus, HeartbeatAnswer, HeartbeatItem, HeartbeatJob, HeartbeatJobs, HeldLease, HindranceReason,
        HistoryEntry, Hold,
        ItemError, JobAndNext, JobAnswer, JobError, JobEvent, JobOrder, JobState, KindLoad, Lease, LeaseBeat,
        LimitState, MadeTrigger, Me, MemberClockState, NextJobs, NotifyTarget, Orphan, OrphanAction, OrphanEvidence,
        OrphanNext, OrphanedJob, OutputItem, OutputPart, OutputStream, Page<Job>, Pause, Performance, Period,
        PieceOfOutput,
        PreviewSchedule, Problem, Progress, PutOutput, PutOutputs, PutSchedule, Queue, QueueOrder, Reason, RecallList,
        ReleaseJob, RetryOptions, RetryPolicy, Schedule, ServerHealth, SetLimit, SetRate, SetUrgent, SigningKey,
        StartedBackfill, StatsAnswer, StatsFigures, StatsRow, SubmitItem, SubmitJob, Subscribe, Subscription, Survey,
        Then, Throughput, Version, Worker, WorkerJobs, WorkerList,
    }
}

#[test]
fn every_request_and_answer_is_as_recorded() {
    let all = all();
    let texts = sources().into_iter().filter(|source| source.path.starts_with("wire")).map(|source| source.text);
    let missing: Vec<String> =
        texts.flat_map(|text| serialized(&text)).filter(|name| !all.contains_key(name)).collect();
    assert!(missing.is_empty(), "these types are to be added to `all`: {missing:?}");
    check("wire", &all.into_iter().map(|(name, samples)| (format!("{name}.json"), samples)).collect());
}

/// The answer is made field by field of a stored job.
#[test]
fn jobs_are_answered_as_recorded() {
    let version = leasehold::store::Version { place: Place::Main, primary_term: 2, seq_no: 7 };
    let full = sample::full_states().into_iter().map(|state| sample::full("job-7", state));
    let bare = sample::bare_states()
        .into_iter()
        .map(|state| job::Job { state, ..sample::submitted("job-7").as_ref().clone() });
    let answer = |(name, job): (&str, job::Job)| {
        let versioned = Versioned { job: Arc::new(job), version };
        let answer = serde_json::to_string_pretty(&JobAnswer::of(&versioned, Sight::Everything)).expect("JSON");
        (format!("{name}-{}.json", versioned.job.state.name()), answer + "\n")
    };
    check("jobs", &full.map(|job| ("full", job)).chain(bare.map(|job| ("bare", job))).map(answer).collect());
}

/// The public types in a source that are JSON: those that derive it, and those of other modules that it passes on.
fn serialized(text: &str) -> Vec<String> {
    let named = Regex::new(r"(?m)^ *(pub )?(?:pub\S* )?(?:struct|enum) (\w+)").expect("an expression");
    let passed_on = Regex::new(r"(?m)^pub use crate::[\w:]+::(?:\{([^}]*)\}|([\w ]+));").expect("an expression");
    let derived = text.split("#[derive(").skip(1).filter(|rest| {
        let derived = rest.split(')').next().unwrap_or_default();
        derived.contains("Serialize") || derived.contains("Deserialize")
    });
    let derived = derived.filter_map(|rest| named.captures(rest));
    let derived = derived.filter(|found| found.get(1).is_some()).map(|found| found[2].to_owned());
    let uses = passed_on.captures_iter(text).filter_map(|found| found.get(1).or(found.get(2)));
    let uses = uses.flat_map(|list| list.as_str().split(',')).filter_map(|name| name.split_whitespace().last());
    derived.chain(uses.map(str::to_owned)).collect()
}

/// The schemas of the API's description, by name.
static PARTS: LazyLock<HashMap<String, Value>> = LazyLock::new(|| {
    serde_json::from_value(description::document()["components"]["schemas"].clone()).expect("schemas")
});

/// Samples of a type, as its own JSON.
fn samples<T: ToSchema + DeserializeOwned + Serialize>() -> String {
    let mut parts = Vec::new();
    T::schemas(&mut parts);
    let parts = parts.into_iter().map(|(name, schema)| (name, json!(schema)));
    let parts = PARTS.clone().into_iter().chain(parts).collect();
    let schema = json!(T::schema());
    let mut values: Vec<Value> = Vec::new();
    for is_full in [true, false] {
        let made = Maker { parts: &parts, is_full }.variants(&schema, &T::name());
        made.into_iter().for_each(|value| {
            if !values.contains(&value) {
                values.push(value)
            }
        });
    }
    let read = |value: &Value| -> T {
        serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{}: {error}: {value:#}", T::name()))
    };
    serde_json::to_string_pretty(&values.iter().map(read).collect::<Vec<_>>()).expect("JSON") + "\n"
}

/// Makes values of schemas.
struct Maker<'a> {
    parts: &'a HashMap<String, Value>,
    is_full: bool,
}

impl Maker<'_> {
    /// A value of each variant of a schema. A text is the name of its field.
    fn variants(&self, schema: &Value, name: &str) -> Vec<Value> {
        let list = |key: &str| schema[key].as_array().map(Vec::as_slice);
        if let Some(path) = schema["$ref"].as_str() {
            let part = path.rsplit('/').next().and_then(|part| self.parts.get(part));
            return self.variants(part.unwrap_or_else(|| panic!("{path} is not there")), name);
        }
        if let Some(choices) = list("oneOf").or(list("anyOf")) {
            return choices.iter().flat_map(|choice| self.variants(choice, name)).collect();
        }
        if let Some(parts) = list("allOf") {
            let (objects, others): (Vec<_>, Vec<_>) =
                parts.iter().map(|part| self.value(part, name)).partition(Value::is_object);
            let object = objects.iter().flat_map(|object| object.as_object()).flatten();
            let object = object.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>();
            return vec![others.into_iter().next().unwrap_or(object.into())];
        }
        if let Some(words) = list("enum") {
            return words.iter().filter(|word| !word.is_null()).cloned().collect();
        }
        let types = schema["type"].as_array().map_or_else(|| vec![&schema["type"]], |types| types.iter().collect());
        let kind = types.into_iter().filter_map(Value::as_str).find(|kind| *kind != "null");
        let is_null = kind.is_none() && !schema["type"].is_null();
        match kind {
            _ if is_null => Vec::new(),
            Some("object") => vec![self.object(schema)],
            Some("array") if self.is_full => vec![self.variants(&schema["items"], name).into()],
            Some("array") => vec![json!([self.value(&schema["items"], name)])],
            _ if !schema["example"].is_null() => vec![schema["example"].clone()],
            Some("string") => vec![text(schema, name).into()],
            Some("boolean") => vec![self.is_full.into()],
            Some("integer" | "number") => vec![number(schema, name)],
            _ => vec![json!({ "any": [1, null] })],
        }
    }

    fn value(&self, schema: &Value, name: &str) -> Value {
        self.variants(schema, name).into_iter().next().unwrap_or_default()
    }

    fn object(&self, schema: &Value) -> Value {
        let properties = schema["properties"].as_object();
        let required =
            |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|it| it == name));
        let used = properties.into_iter().flatten().filter(|(name, _)| self.is_full || required(name));
        let mut object: Map<_, _> = used.map(|(name, schema)| (name.clone(), self.value(schema, name))).collect();
        if schema["additionalProperties"].is_object() {
            let key = self
                .variants(&schema["propertyNames"], "key")
                .into_iter()
                .find_map(|key| Some(key.as_str()?.to_owned()));
            object.insert(key.unwrap_or("key".to_owned()), self.value(&schema["additionalProperties"], "value"));
        }
        object.into()
    }
}

/// A text of a form that its type reads.
fn text(schema: &Value, name: &str) -> String {
    match (schema["format"].as_str(), name) {
        (Some("date-time"), _) => "2030-01-02T03:04:05.678Z".to_owned(),
        (Some("uuid"), _) => "0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd5".to_owned(),
        _ => name.to_owned(),
    }
}

/// A number within its bounds that differs between most fields.
fn number(schema: &Value, name: &str) -> Value {
    let bound = |key: &str| schema[key].as_i64();
    let number = bound("minimum").unwrap_or_default() + i64::try_from(name.len()).expect("a short name");
    bound("maximum").map_or(number, |most| number.min(most)).into()
}
