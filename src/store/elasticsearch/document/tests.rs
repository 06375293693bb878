use std::sync::Arc;

use super::super::golden::write_ids;
use super::super::write_id::WriteIdSource;
use super::*;
use crate::golden::check;
use crate::job::{BodyId, Change, Claim, Failure, LeaseProof};

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn json(text: &str) -> Json {
    Json::parse(text.to_owned()).expect("json")
}

fn name<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("a name")
}

pub(in super::super) fn available(payload: Body) -> Job {
    let spec = JobSpec {
        queue: name("übersetzung"),
        kind: name("translate"),
        priority: Priority::new(-7).expect("a priority"),
        owner: Some(name("team \"a\"")),
        labels: BTreeMap::from([("a.b".to_owned(), "c\nd".to_owned()), (String::new(), String::new())]),
        expected_runtime: Some(Duration::from_secs(3)),
        timeout: Some(Duration::MAX),
        max_attempts: 5,
        retry: RetryPolicy::default(),
        resources: BTreeMap::from([("cpu_millis".to_owned(), u64::MAX)]),
        oversight: Oversight::default(),
        conditions: Conditions {
            requires: ["hw = fpga", "note != \"a b\""].map(|text| text.parse().expect("a requirement")).to_vec(),
            concurrency: Some(Concurrency { key: ConcurrencyKey::new("db-7").expect("a key"), max: 5 }),
            unique: Some(UniqueKey::new("report-7").expect("a key")),
            ordering: Some(Ordered { key: OrderingKey::new("account-7").expect("a key"), seq: 8, first: 7 }),
        }
        .stored(),
        due: Some(Box::new(Due { schedule_id: name("nightly"), due_at: at(1_900_000_000_000) })),
        rerun_of: Some(name("first")),
        fingerprint: Some(Fingerprint(u128::MAX - 5)),
    };
    let times = (at(1_900_000_000_123), Some(Timestamp::MAX));
    Job::submit(JobId::generate(), Arc::new(spec), payload, times, &name("tester"), at(-5))
}

fn running() -> Job {
    let claim = Claim {
        worker_id: name("w1"),
        holder: None,
        request_id: Some(name("r1")),
        term: Duration::from_secs(60),
        margin: Duration::ZERO,
    };
    available(Body::Empty).claim(&claim, at(1_900_000_000_500)).expect("a claim")
}

fn proof(job: &Job) -> LeaseProof {
    LeaseProof { worker_id: name("w1"), fence: job.fence, bearer: None }
}

fn changed(change: Change) -> Job {
    match change {
        Change::To(job) => *job,
        Change::Already => panic!("a change was expected"),
    }
}

fn round_trip(job: &Job, form: BodyForm) -> (String, Decoded) {
    let source = WriteIdSource::new();
    let ids = WriteIds { own: source.next(), previous: Some(source.next()) };
    let line = serde_json::to_string(&JobDocument::new(job, Some(ids), form)).expect("a document");
    assert!(!line.contains('\n'), "a document is one line: {line}");
    let raw = RawValue::from_string(line.clone()).expect("json");
    let decoded = decode(&raw, &EncryptionKeys::default()).expect("a job");
    assert_eq!((decoded.write_id, decoded.previous_write_id), (Some(ids.own), ids.previous));
    (line, decoded)
}

/// A job in several states.
fn in_states() -> [Job; 5] {
    let now = at(1_900_000_001_000);
    let running = running();
    let mut flagged = running.clone();
    if let State::Running(data) = &mut flagged.state {
        data.progress = Some(Progress { percent: Some(12.5), message: None });
        data.cancel_requested_at = Some(now);
        data.orphan = Some(Orphan { flagged_at: now, reason: "gone".to_owned(), held: true });
    }
    let result = Body::Stored(BodyRef { id: BodyId(uuid::Uuid::from_u128(17)), bytes: 9_000 });
    let completed = changed(running.complete(&proof(&running), &result, now).expect("completed"));
    let failure = Failure {
        error: JobError { code: "exit".to_owned(), message: "line\nbreak".to_owned() },
        retryable: false,
        retry_after: None,
        chance: 0.5,
    };
    let failed = changed(running.fail(&proof(&running), &failure, now).expect("failed"));

    [available(Body::Empty), running, flagged, completed, failed]
}

#[test]
fn the_documents_of_jobs_are_as_recorded() {
    let jobs = in_states().into_iter().enumerate().map(|(number, job)| {
        let payload = Body::Inline(json("{\"a\": 1}"));
        let job = Job { id: name("job-7"), payload, ..job };
        let form = if number == 0 { BodyForm::Text } else { BodyForm::Json };
        let text = serde_json::to_string_pretty(&JobDocument::new(&job, Some(write_ids()), form)).expect("a document");
        (format!("{number}-{}.json", job.state.name()), text + "\n")
    });
    check("elasticsearch/jobs", &jobs.collect());
}

#[test]
fn a_job_in_any_state_reads_back_as_it_was_written() {
    for mut job in in_states() {
        // The index holds whole milliseconds up to i64::MAX.
        Arc::make_mut(&mut job.spec).timeout = Some(Duration::from_millis(i64::MAX.unsigned_abs()));
        assert_eq!(round_trip(&job, BodyForm::Json).1.job, job);
    }
}

#[test]
fn any_json_is_kept_as_it_came_and_never_breaks_the_line() {
    for text in ["null", "7", "\"a\\nb\"", "[1, 2]", "{ \"a\" : 1.0e2 }", "{\n  \"a\": 1\r\n}", "{\"a\":1,\"a\":2}"] {
        let job = available(Body::Inline(json(text)));
        for form in [BodyForm::Json, BodyForm::Text] {
            assert_eq!(round_trip(&job, form).1.job.payload, job.payload, "{text}");
        }
    }
}

#[test]
fn a_payload_is_an_object_of_the_document_where_it_can_be() {
    let job = available(Body::Inline(json("{\"a\":1}")));
    assert!(round_trip(&job, BodyForm::Json).0.contains("\"payload\":{\"a\":1}"));
    assert!(round_trip(&job, BodyForm::Text).0.contains("\"payload_text\":\"{\\\"a\\\":1}\""));
}

#[test]
fn unknown_fields_are_passed_over_and_missing_ones_are_told() {
    let (line, _) = round_trip(&running(), BodyForm::Json);
    let mut document: serde_json::Value = serde_json::from_str(&line).expect("json");
    document["from_the_future"] = serde_json::json!({ "a": [1] });
    let decoded = |document: &serde_json::Value| {
        decode(&serde_json::value::to_raw_value(document).expect("json"), &EncryptionKeys::default())
    };
    assert!(decoded(&document).is_ok());

    for field in ["id", "queue", "state", "fence", "lease", "history", "created_at"] {
        let mut without = document.clone();
        without.as_object_mut().expect("an object").remove(field);
        let error = decoded(&without).expect_err(field).to_string();
        assert!(error.contains(field), "{error}");
    }
}

/// The mapping is strict: a field that is written and not mapped would make every write fail.
#[test]
fn every_field_that_is_written_is_in_the_mapping() {
    fn check(path: &str, document: &serde_json::Value, mapping: &serde_json::Value) {
        let free = mapping["enabled"] == false || mapping["type"] == "flattened" || mapping["dynamic"] == "true";
        match document {
            serde_json::Value::Object(fields) if !free => {
                for (field, value) in fields {
                    let inner = &mapping["properties"][field];
                    assert!(inner.is_object(), "{path}.{field} is not mapped");
                    check(&format!("{path}.{field}"), value, inner);
                }
            }
            serde_json::Value::Array(entries) => entries.iter().for_each(|entry| check(path, entry, mapping)),
            _ => {}
        }
    }
    let definition: serde_json::Value =
        serde_json::from_str(include_str!("../../../../mappings/jobs.json")).expect("json");
    let now = at(1_900_000_001_000);
    let mut flagged = running();
    flagged.payload = Body::Inline(json("{}"));
    flagged.error = Some(JobError { code: String::new(), message: String::new() });
    if let State::Running(data) = &mut flagged.state {
        data.progress = Some(Progress { percent: None, message: None });
        data.cancel_requested_at = Some(now);
        data.orphan = Some(Orphan { flagged_at: now, reason: String::new(), held: false });
    }
    flagged.history = History::from_parts(flagged.history.entries().to_vec(), 3);
    let reference = Body::Stored(BodyRef { id: BodyId(uuid::Uuid::nil()), bytes: 1 });
    let mut completed = flagged.clone();
    completed.payload = reference.clone();
    completed.state = State::Completed { finished_at: now, result: reference };
    for (job, form) in [(&flagged, BodyForm::Json), (&flagged, BodyForm::Text), (&completed, BodyForm::Json)] {
        let document: serde_json::Value = serde_json::from_str(&round_trip(job, form).0).expect("json");
        check("", &document, &definition["mappings"]);
    }
}

fn keys(line: &str) -> EncryptionKeys {
    EncryptionKeys::parse(line).expect("keys")
}

const KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const OTHER_KEY: &str = "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=";

/// The document of a job, in which what is secret is encrypted.
fn encrypt(job: &Job, keys: &EncryptionKeys) -> Box<RawValue> {
    let document = JobDocument::new(job, None, BodyForm::Json).encrypt(job, keys).expect("encrypted");
    RawValue::from_string(serde_json::to_string(&document).expect("a document")).expect("JSON")
}

/// What may be secret in a job.
fn secrets(job: &Job) -> (&Body, &[NoticeTarget]) {
    (&job.payload, &job.spec.oversight.notify)
}

#[test]
fn an_environment_and_receivers_are_encrypted_and_come_back_to_the_byte() {
    let payloads = [
        r#"{"command": "x",  "env" : {"TOKEN": "s3cret"}}"#,
        r#"{"\u0065nv": {"TOKEN": "s3cret"}}"#,
        r#"{"env": {"A": "s3cret"}, "env": {"A": "s3cret"}}"#,
        "{\n \"env\": {\"A\": \"s3cret\"}}",
    ];
    let keys = keys(KEY);
    for payload in payloads {
        let mut job = available(Body::Inline(json(payload)));
        let target = r#"{"url": "https://hooks.example/s3cret"}"#;
        Arc::make_mut(&mut job.spec).oversight.notify = vec![serde_json::from_str(target).expect("a target")];
        let document = encrypt(&job, &keys);
        assert!(!document.get().contains("s3cret"), "{document}");
        assert_eq!(secrets(&decode(&document, &keys).expect("a job").job), secrets(&job));
        for wrong in [&EncryptionKeys::default(), &EncryptionKeys::parse(OTHER_KEY).expect("keys")] {
            let why = decode(&document, wrong).expect_err("no key").to_string();
            assert!(why.contains("--secrets-key-file") && why.contains(keys.ids().next().expect("one")), "{why}");
        }
        let other = Job { id: name("another"), ..job };
        let moved = document.get().replacen(&*job.id.to_string(), other.id.as_str(), 1);
        assert!(
            decode(&RawValue::from_string(moved).expect("JSON"), &keys).is_err(),
            "it is encrypted for its own job"
        );
    }
}

#[test]
fn what_holds_no_secret_and_what_was_written_without_keys_is_read_as_it_is() {
    let keys = keys(KEY);
    for payload in
        [r#"{"command": ["env", "A=1"]}"#, r#"{"environment": 1}"#, r#"["env"]"#, r#""encrypted:1:""#, "null"]
    {
        let job = available(Body::Inline(json(payload)));
        assert!(encrypt(&job, &keys).get().contains("\"payload\":"), "{payload}");
        assert_eq!(decode(&encrypt(&job, &keys), &keys).expect("a job").job.payload, job.payload);
    }
    let job = available(Body::Inline(json(r#"{"env": {"A": "b"}}"#)));
    let before = encrypt(&job, &EncryptionKeys::default());
    assert_eq!(decode(&before, &keys).expect("a job").job.payload, job.payload);
}
