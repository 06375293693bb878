//! The description holds for what is sent: its patterns, words and bounds are those that the server enforces.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use leasehold::clock::Timestamp;
use leasehold::job::names::MAX_NAME_BYTES;
use leasehold::job::{EventName, InvalidName, JobId, LimitScope, MAX_RESOURCE_NAME, NoticeFormat, OrphanPolicy};
use leasehold::manager::{AuditEventName, Fairness, JobOrder, OnDuplicate, QueueOrder, RecallReason};
use leasehold::notify::SubscribableEvent;
use leasehold::schedule::{Action, ActionType, Method, MissReason, NotRun, Overlap, ScheduleEventName};
use leasehold::scheduler::Outcome;
use leasehold::store::{Role, Stream};
use leasehold::wire::{
    BulkFilter, ClaimJobs, ClaimNext, ClusterRole, CompleteJob, Completion, ExcludedDates, FailJob, FinishJobs,
    HealthCheckName, HealthStatus, HeartbeatJob, HeartbeatJobs, HindranceReason, JobError, JobState, LeaseBeat,
    MemberClockState, OrphanAction, Period, PreviewSchedule, PutSchedule, ReleaseJob, SubmitJob, Subscribe, Then,
};
use regex::Regex;
use serde_json::{Value, json};

use super::description::{document, operations, references};
use super::events::read_until;
use super::server::{Server, problem};

/// The API's description as a judge of texts.
struct Description {
    document: Value,
    patterns: RefCell<HashMap<String, Regex>>,
}

impl Description {
    fn new() -> Self {
        Self { document: document(), patterns: RefCell::default() }
    }

    fn component(&self, path: &str) -> &Value {
        let component = self.document.pointer(&format!("/components/schemas/{path}"));
        component.unwrap_or_else(|| panic!("{path} is described"))
    }

    fn matches(&self, pattern: &str, text: &str) -> bool {
        let mut patterns = self.patterns.borrow_mut();
        let compiled = patterns.entry(pattern.to_owned()).or_insert_with(|| Regex::new(pattern).expect("a pattern"));
        compiled.is_match(text)
    }

    /// Returns whether a schema lets a text pass.
    fn allows(&self, schema: &Value, text: &str) -> bool {
        if let Some(reference) = schema["$ref"].as_str() {
            return self.allows(self.document.pointer(&reference[1..]).expect("a component"), text);
        }
        let parts = |keyword: &str| schema[keyword].as_array().map_or(&[][..], Vec::as_slice);
        let length = text.chars().count() as u64;
        schema["type"] != "null"
            && parts("allOf").iter().all(|part| self.allows(part, text))
            && (parts("oneOf").is_empty() || parts("oneOf").iter().filter(|part| self.allows(part, text)).count() == 1)
            && (schema["not"].is_null() || !self.allows(&schema["not"], text))
            && (schema["enum"].is_null() || parts("enum").iter().any(|word| word == text))
            && schema["pattern"].as_str().is_none_or(|pattern| self.matches(pattern, text))
            && schema["minLength"].as_u64().is_none_or(|least| length >= least)
            && schema["maxLength"].as_u64().is_none_or(|most| length <= most)
    }
}

/// Every text of up to three of the signs that the rules of names tell apart, and some that only single rules meet.
fn texts() -> Vec<String> {
    const SIGNS: [&str; 10] = ["a", ".", " ", "\n", "\u{85}", "\u{a0}", "\u{2028}", "\u{feff}", "é", "/"];
    let mut all = vec![String::new()];
    let mut shorter = all.clone();
    for _ in 0..3 {
        shorter = shorter.iter().flat_map(|text| SIGNS.map(|sign| format!("{text}{sign}"))).collect();
        all.extend_from_slice(&shorter);
    }
    let longest = |bytes| [bytes, bytes + 1].map(|bytes| "x".repeat(bytes));
    let special = [
        "bulk",
        "stats",
        "bulky",
        "leasehold",
        "leasehold.",
        "leasehold.q",
        "scheduler",
        "schedulers",
        "a run",
        "a leasehold.",
        "leaseholds",
        "aZ-_09",
        "2030-12-31",
    ];
    all.extend(special.map(str::to_owned));
    all.extend([MAX_NAME_BYTES, MAX_RESOURCE_NAME].into_iter().flat_map(longest));
    all
}

/// A part of the description, and whether the server takes a text in its place.
type Place = (&'static str, fn(String) -> bool);

fn named() -> SubmitJob {
    SubmitJob::new("q", "k")
}

fn id() -> JobId {
    JobId::new("a").expect("an id")
}

fn subscribe() -> Subscribe {
    Subscribe { url: "https://example.org/hook".to_owned(), ..Subscribe::default() }
}

fn claim() -> ClaimJobs {
    ClaimJobs { worker_id: "w".to_owned(), queues: vec!["q".to_owned()], ..ClaimJobs::default() }
}

/// Whether a completion with this claim of the next jobs is taken.
fn goes_on(next: ClaimNext) -> bool {
    let done = CompleteJob { worker_id: "w".to_owned(), fence: 1, result: None, next: Some(next) };
    done.into_finish(id()).is_ok()
}

fn next() -> ClaimNext {
    ClaimNext { queues: vec!["q".to_owned()], request_id: "r".to_owned(), ..ClaimNext::default() }
}

fn failure(worker_id: String, code: String) -> FailJob {
    let error = JobError { code, message: String::new() };
    FailJob { worker_id, fence: 1, error, retryable: None, retry_after_ms: None, next: None }
}

fn selects(filter: BulkFilter) -> bool {
    filter.into_selection(Timestamp::default()).is_ok()
}

fn one_day() -> ExcludedDates {
    let day = Some("2030-12-31".to_owned());
    ExcludedDates { date: None, from: day.clone(), to: day }
}

fn schedule() -> PutSchedule {
    let period = Period { cron: Some("@daily".to_owned()), ..Period::default() };
    let call = Action { url: Some("https://example.org/".to_owned()), ..Action::of(ActionType::Http) };
    PutSchedule::new(call, period)
}

fn excludes(dates: ExcludedDates) -> bool {
    let period = Period { cron: Some("@daily".to_owned()), ..Period::default() };
    PreviewSchedule { period, exclude: vec![dates], ..PreviewSchedule::default() }.into_preview().is_ok()
}

const PLACES: &[Place] = &[
    ("SubmitJob/properties/id", |text| SubmitJob { id: Some(text), ..named() }.into_new_job().is_ok()),
    ("SubmitJob/properties/queue", |text| SubmitJob::new(text, "k").into_new_job().is_ok()),
    ("SubmitJob/properties/kind", |text| SubmitJob::new("q", text).into_new_job().is_ok()),
    ("SubmitJob/properties/owner", |text| SubmitJob { owner: Some(text), ..named() }.into_new_job().is_ok()),
    ("SubmitJob/properties/idempotency_key", |text| {
        SubmitJob { idempotency_key: Some(text), ..named() }.into_new_job().is_ok()
    }),
    ("Labels/propertyNames", |text| {
        SubmitJob { labels: [(text, String::new())].into(), ..named() }.into_new_job().is_ok()
    }),
    ("Resources/propertyNames", |text| SubmitJob { resources: [(text, 1)].into(), ..named() }.into_new_job().is_ok()),
    ("OfferedLabels/propertyNames", |text| {
        ClaimJobs { labels: [(text, String::new())].into(), ..claim() }.into_claim().is_ok()
    }),
    ("ClaimJobs/properties/worker_id", |text| ClaimJobs { worker_id: text, ..claim() }.into_claim().is_ok()),
    ("ClaimJobs/properties/queues/items", |text| ClaimJobs { queues: vec![text], ..claim() }.into_claim().is_ok()),
    ("ClaimJobs/properties/request_id", |text| ClaimJobs { request_id: Some(text), ..claim() }.into_claim().is_ok()),
    ("ClaimNext/properties/queues/items", |text| goes_on(ClaimNext { queues: vec![text], ..next() })),
    ("ClaimNext/properties/request_id", |text| goes_on(ClaimNext { request_id: text, ..next() })),
    ("HeartbeatJob/properties/worker_id", |text| {
        HeartbeatJob { worker_id: text, fence: 1, progress: None }.into_beat(id()).is_ok()
    }),
    ("HeartbeatJobs/properties/worker_id", |text| {
        HeartbeatJobs { worker_id: text, leases: Vec::new() }.into_beats().is_ok()
    }),
    ("LeaseBeat/properties/id", |text| {
        let leases = vec![LeaseBeat { id: text, fence: 1, progress: None }];
        let beats = HeartbeatJobs { worker_id: "w".to_owned(), leases }.into_beats();
        beats.is_ok_and(|(_, beats)| beats[0].is_ok())
    }),
    ("CompleteJob/properties/worker_id", |text| {
        CompleteJob { worker_id: text, fence: 1, result: None, next: None }.into_finish(id()).is_ok()
    }),
    ("FailJob/properties/worker_id", |text| failure(text, "exit".to_owned()).into_finish(id()).is_ok()),
    ("JobError/properties/code", |text| failure("w".to_owned(), text).into_finish(id()).is_ok()),
    ("ReleaseJob/properties/worker_id", |text| {
        ReleaseJob { worker_id: text, ..ReleaseJob::default() }.into_finish(id()).is_ok()
    }),
    ("FinishJobs/properties/worker_id", |text| {
        FinishJobs { worker_id: text, items: Vec::new(), next: None }.into_finishes().is_ok()
    }),
    ("Completion/properties/id", |text| {
        let items = vec![Completion { id: text, ..Completion::default() }];
        let finishes = FinishJobs { worker_id: "w".to_owned(), items, next: None }.into_finishes();
        finishes.is_ok_and(|(_, finishes, _)| finishes[0].is_ok())
    }),
    ("BulkFilter/properties/queues/items", |text| selects(BulkFilter { queues: vec![text], ..BulkFilter::default() })),
    ("BulkFilter/properties/kinds/items", |text| selects(BulkFilter { kinds: vec![text], ..BulkFilter::default() })),
    ("BulkFilter/properties/owners/items", |text| selects(BulkFilter { owners: vec![text], ..BulkFilter::default() })),
    ("BulkFilter/properties/ids/items", |text| selects(BulkFilter { ids: vec![text], ..BulkFilter::default() })),
    ("BulkFilter/properties/worker_id", |text| selects(BulkFilter { worker_id: Some(text), ..BulkFilter::default() })),
    ("Subscribe/properties/queues/items", |text| Subscribe { queues: vec![text], ..subscribe() }.into_new().is_ok()),
    ("Subscribe/properties/kinds/items", |text| Subscribe { kinds: vec![text], ..subscribe() }.into_new().is_ok()),
    ("Subscribe/properties/owners/items", |text| Subscribe { owners: vec![text], ..subscribe() }.into_new().is_ok()),
    ("PutSchedule/properties/id", |text| PutSchedule { id: Some(text), ..schedule() }.into_definition().is_ok()),
    ("PutSchedule/properties/owner", |text| PutSchedule { owner: Some(text), ..schedule() }.into_definition().is_ok()),
    ("ExcludedDates/properties/date", |text| excludes(ExcludedDates { date: Some(text), ..ExcludedDates::default() })),
    ("ExcludedDates/properties/from", |text| excludes(ExcludedDates { from: Some(text), ..one_day() })),
    ("ExcludedDates/properties/to", |text| excludes(ExcludedDates { to: Some(text), ..one_day() })),
];

#[test]
fn a_name_that_it_allows_is_taken_and_no_other() {
    let description = Description::new();
    let texts = texts();
    for (place, takes) in PLACES {
        let schema = description.component(place);
        for text in &texts {
            assert_eq!(description.allows(schema, text), takes(text.clone()), "{place}: {text:?}");
        }
    }
}

#[test]
fn it_tells_every_character_of_names_as_the_server_does() {
    let description = Description::new();
    let name = description.component("JobId");
    let rare = ['\u{feff}', '\u{fffd}', '\u{1f600}', '\u{e0001}', '\u{10ffff}'];
    for character in ('\0'..'\u{3100}').chain(rare) {
        for text in [character.to_string(), format!("a{character}"), format!("{character}a"), format!("a{character}a")]
        {
            assert_eq!(description.allows(name, &text), JobId::new(&text).is_ok(), "{text:?}");
        }
    }
    // It counts characters and the server bytes, so that it is the laxer one there.
    let long = "é".repeat(MAX_NAME_BYTES);
    assert!(description.allows(name, &long));
    assert_eq!(JobId::new(&long), Err(InvalidName::TooLong));
}

#[test]
fn it_lists_the_words_of_every_enum() {
    fn all<T: Copy + serde::Serialize>(values: &[T]) -> Value {
        json!(values)
    }
    let roles = [Role::Voter, Role::Learner, Role::Joining, Role::Removed, Role::Disowned].map(ClusterRole::from);
    let expected: BTreeMap<&str, Value> = [
        ("ActionType", all(&ActionType::ALL)),
        ("ClusterRole", all(&roles)),
        ("EventName", all(&EventName::ALL)),
        ("Fairness", all(&Fairness::ALL)),
        ("HealthCheckName", all(&HealthCheckName::ALL)),
        ("HealthStatus", all(&[HealthStatus::Ok, HealthStatus::Warn, HealthStatus::Error])),
        ("HindranceReason", all(&HindranceReason::ALL)),
        ("LimitScope", json!(LimitScope::ALL.map(LimitScope::as_str))),
        ("MemberClockState", all(&MemberClockState::ALL)),
        ("JobOrder", all(&JobOrder::ALL)),
        ("JobState", all(&JobState::ALL)),
        ("Method", all(&Method::ALL)),
        ("MissReason", all(&MissReason::ALL)),
        ("NotRun", all(&NotRun::ALL)),
        ("NoticeFormat", all(&NoticeFormat::ALL)),
        ("AuditEventName", json!(AuditEventName::all().map(AuditEventName::as_str).collect::<Vec<_>>())),
        ("NotifiableEvent", all(&EventName::NOTIFIABLE)),
        ("OnDuplicate", all(&OnDuplicate::ALL)),
        ("OrphanAction", all(&OrphanAction::ALL)),
        ("OrphanPolicy", all(&OrphanPolicy::ALL)),
        ("Outcome", all(&Outcome::ALL)),
        ("Overlap", all(&Overlap::ALL)),
        ("QueueOrder", all(&QueueOrder::ALL)),
        ("RecallReason", all(&[RecallReason::CancelRequested, RecallReason::LeaseLost])),
        ("ScheduleEventName", all(&ScheduleEventName::ALL)),
        ("Stream", all(&Stream::ALL)),
        ("SubscribableEvent", all(&SubscribableEvent::all().collect::<Vec<_>>())),
        ("Then", all(&[Then::Requeue, Then::Fail, Then::Cancel])),
    ]
    .into();
    let document = document();
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    let described = schemas.iter().filter(|(_, schema)| !schema["enum"].is_null());
    let described: BTreeMap<&str, Value> =
        described.map(|(name, schema)| (name.as_str(), schema["enum"].clone())).collect();
    assert_eq!(described, expected);
    // One that is described where it stands would not be compared.
    let mut elsewhere = Vec::new();
    each_field(&document["paths"], &mut |name, schema| {
        if schema["enum"].is_array() {
            elsewhere.push(name);
        }
    });
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
}

/// Calls `look` with every property and parameter below `value`: its name and its schema.
fn each_field<'a>(value: &'a Value, look: &mut impl FnMut(&'a str, &'a Value)) {
    match value {
        Value::Object(fields) => {
            for (name, schema) in fields.get("properties").and_then(Value::as_object).into_iter().flatten() {
                look(name, schema);
            }
            if let (Some(Value::String(name)), Some(schema), Some(_)) =
                (fields.get("name"), fields.get("schema"), fields.get("in"))
            {
                look(name, schema);
            }
            fields.values().for_each(|field| each_field(field, look));
        }
        Value::Array(items) => items.iter().for_each(|item| each_field(item, look)),
        _ => {}
    }
}

#[test]
fn every_field_of_the_same_name_is_of_the_same_type() {
    const TYPES: &[(&str, &[&str])] = &[
        ("state", &["JobState"]),
        ("states", &["JobState"]),
        ("event", &["AuditEventName", "EventName"]),
        ("events", &["NotifiableEvent", "ScheduleEventName", "SubscribableEvent"]),
        ("format", &["NoticeFormat"]),
        ("orphan_policy", &["OrphanPolicy"]),
        ("then", &["Then"]),
        ("queue", &["QueueName", "UserQueue"]),
        ("queues", &["QueueName", "UserQueue"]),
        ("kind", &["Kind"]),
        ("kinds", &["Kind"]),
        ("owner", &["Owner"]),
        ("owners", &["Owner"]),
        ("worker_id", &["UserWorker", "WorkerId"]),
        ("actor", &["Actor"]),
        ("labels", &["LabelChanges", "Labels", "OfferedLabels"]),
        ("notify", &["NotifyTarget", "ScheduleNotifyTarget"]),
    ];
    let document = document();
    let mut wrong = Vec::new();
    each_field(&document, &mut |name, schema| {
        let Some((_, types)) = TYPES.iter().find(|(field, _)| *field == name) else { return };
        if schema["enum"] == json!(["live", "gap"]) {
            return; // An event of the stream itself, which is none of a job.
        }
        let mut found = BTreeSet::new();
        references(schema, &mut found);
        let of_type = |reference: &&str| types.iter().any(|name| reference.ends_with(&format!("/{name}")));
        // A part of a job has its receivers inside, not by reference.
        if !found.iter().any(of_type) && !schema.to_string().contains("\"properties\"") {
            wrong.push(format!("{name}: {schema}"));
        }
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn nothing_that_may_be_left_out_of_a_call_may_be_null_instead() {
    let document = document();
    for (method, path, operation) in operations(&document) {
        let parameters = operation["parameters"].as_array().into_iter().flatten().map(|given| &given["schema"]);
        let bodies =
            operation["requestBody"]["content"].as_object().into_iter().flatten().map(|(_, body)| &body["schema"]);
        for schema in parameters.chain(bodies) {
            let types =
                |schema: &Value| schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
            let is_null = |schema: &Value| types(schema).contains(&json!("null"));
            let choices = schema["oneOf"].as_array().into_iter().flatten();
            assert!(!is_null(schema) && !choices.into_iter().any(is_null), "{method} {path}: {schema}");
        }
    }
}

#[tokio::test]
async fn a_body_that_may_be_left_out_may_not_be_null_and_is_described() {
    let document = document();
    let may_be_left_out = operations(&document)
        .into_iter()
        .filter(|(_, _, operation)| !operation["requestBody"].is_null() && operation["requestBody"]["required"] != true)
        .map(|(method, path, _)| format!("{method} {path}"))
        .collect::<Vec<_>>();
    let expected = [
        "/v1/jobs/{id}/cancel",
        "/v1/jobs/{id}/hold",
        "/v1/jobs/{id}/retry",
        "/v1/jobs/{id}/run-now",
        "/v1/jobs/{id}/unhold",
        "/v1/queues/{name}/pause",
        "/v1/queues/{name}/resume",
        "/v1/schedules/{id}/pause",
    ];
    assert_eq!(may_be_left_out, expected.map(|path| format!("POST {path}")));

    let server = Server::start().await;
    let http = reqwest::Client::new();
    for path in expected {
        let url = server.url(&path.replace("{id}", "nobody").replace("{name}", "q"));
        let call = http.post(&url).header("content-type", "application/json").body("null");
        assert_eq!(problem(call.send().await.expect("an answer")).await.status, 422, "{path}");
        let status = http.post(&url).send().await.expect("an answer").status();
        assert!([200, 404].contains(&status.as_u16()), "{path}: {status}");
    }
}

#[test]
fn a_selected_job_may_lack_any_field_at_any_depth() {
    fn requires(value: &Value) -> bool {
        match value {
            Value::Object(fields) => fields.contains_key("required") || fields.values().any(requires),
            Value::Array(items) => items.iter().any(requires),
            _ => false,
        }
    }
    let description = Description::new();
    let (whole, part) = (description.component("Job"), description.component("JobPart"));
    let names = |schema: &Value| schema["properties"].as_object().map(|all| all.keys().cloned().collect::<Vec<_>>());
    assert_eq!(names(part), names(whole));
    assert!(requires(whole) && !requires(part), "{part}");
    for inner in ["lease/oneOf/0", "version", "retry", "history/items", "notify/items"] {
        let inner = description.component(&format!("JobPart/properties/{inner}"));
        assert!(inner["properties"].is_object(), "{inner}");
    }
    let selected = json!([{"$ref": "#/components/schemas/Job"}, {"$ref": "#/components/schemas/JobPart"}]);
    assert_eq!(description.component("SelectedJob/anyOf"), &selected);
    for path in ["/v1/jobs", "/v1/jobs/{id}", "/v1/jobs/export"] {
        let mut found = BTreeSet::new();
        let answer = &description.document["paths"][path]["get"]["responses"]["200"];
        references(answer, &mut found);
        assert!(found.iter().any(|name| name.ends_with("SelectedJob")), "{path}: {answer}");
    }
}

#[test]
fn an_item_that_was_refused_need_only_have_its_status() {
    let description = Description::new();
    for (item, required) in [
        ("HeartbeatItem", json!(["id", "status"])),
        ("CompletionItem", json!(["id", "status"])),
        ("OutputItem", json!(["id", "status"])),
        ("SubmitItem", json!(["status"])),
    ] {
        let schema = description.component(item);
        assert_eq!(schema["required"], required, "{item}");
        assert!(schema["properties"]["error"].is_object() && !schema.to_string().contains("null"), "{schema}");
    }
}

#[test]
fn lines_of_jobs_are_described_as_a_list() {
    let description = Description::new();
    let paths = &description.document["paths"];
    let sent = &paths["/v1/jobs/bulk"]["post"]["requestBody"]["content"]["application/x-ndjson"]["schema"];
    assert_eq!(sent["$ref"], "#/components/schemas/SubmitLines");
    let lines = description.component("SubmitLines");
    assert_eq!((&lines["type"], &lines["items"]["$ref"]), (&json!("array"), &json!("#/components/schemas/SubmitJob")));
    let answered = &paths["/v1/jobs/export"]["get"]["responses"]["200"]["content"]["application/x-ndjson"]["schema"];
    assert_eq!(answered["type"], "array");
}

#[tokio::test]
async fn a_message_of_the_stream_is_of_exactly_one_kind_that_is_described() {
    let description = Description::new();
    let answer = &description.document["paths"]["/v1/events"]["get"]["responses"]["200"];
    let schema = &answer["content"]["text/event-stream"]["schema"];
    assert_eq!(schema["$ref"], "#/components/schemas/EventMessage");
    let kinds = description.component("EventMessage/anyOf").as_array().expect("kinds");
    let content = |kind: &Value| kind["properties"]["data"]["contentSchema"]["$ref"].clone();
    assert_eq!(kinds.iter().map(content).collect::<Vec<_>>(), [json!("#/components/schemas/JobEvent"), Value::Null]);

    let server = Server::start().await;
    server.running("q").await;
    let mut stream = reqwest::get(server.url("/v1/events?since=2000-01-01T00:00:00Z")).await.expect("an answer");
    let mut seen = BTreeSet::new();
    for message in read_until(&mut stream, "event: live\ndata: {}\n\n").await.split_terminator("\n\n").skip(1) {
        let fields: BTreeMap<&str, &str> = message.lines().filter_map(|line| line.split_once(": ")).collect();
        let allowed = |kind: &&Value| {
            let properties = kind["properties"].as_object().expect("fields");
            properties.len() == fields.len()
                && properties.iter().all(|(name, field)| description.allows(field, fields[name.as_str()]))
        };
        let matching: Vec<&Value> = kinds.iter().filter(allowed).collect();
        assert_eq!(matching.len(), 1, "{message}");
        seen.insert(content(matching[0]).to_string());
    }
    assert_eq!(seen.len(), 2, "events of a job and of the stream itself: {seen:?}");
    assert!(kinds.iter().filter(|kind| description.allows(&kind["properties"]["event"], "gap")).count() == 1);
}

#[test]
fn every_kind_of_name_has_the_same_rules() {
    let description = Description::new();
    let name = |name: &str| description.component(name)["pattern"].as_str().expect("a pattern").to_owned();
    let kinds = ["Actor", "ErrorCode", "IdempotencyKey", "Kind", "Owner", "QueueName", "RequestId", "WorkerId"];
    for kind in kinds {
        assert_eq!(name(kind), name("JobId"), "{kind}");
    }
}
