use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::job::{
    Actor, Attempt, EventName, Fence, JobId, JobSpec, Kind, NoticeFormat, NoticeTarget, OrderingKey, Owner, Priority,
    QueueName, RequestId, WorkerId,
};
use crate::store;

/// A job that has everything at once: what no real one has, so that every field is seen.
fn full() -> Versioned {
    let at = Timestamp::from_millis;
    let spec = JobSpec {
        queue: QueueName::new("reports").expect("name"),
        kind: Kind::new("render \"x\"").expect("name"),
        priority: Priority::new(-7).expect("priority"),
        owner: Some(Owner::new("billing").expect("name")),
        labels: BTreeMap::from([("customer".to_owned(), "17".to_owned())]),
        expected_runtime: Some(Duration::from_secs(60)),
        timeout: Some(Duration::from_secs(600)),
        max_attempts: 5,
        retry: job::RetryPolicy::default(),
        resources: BTreeMap::from([("gpus".to_owned(), 2)]),
        oversight: job::Oversight {
            orphan_policy: Some(OrphanPolicy::Flag),
            notify: vec![NoticeTarget {
                url: "https://example.org/hook".to_owned(),
                events: vec![EventName::Failed],
                format: NoticeFormat::Slack,
            }],
        },
        due: Some(Box::new(job::Due { schedule_id: ScheduleId::new("nightly").expect("name"), due_at: at(4) })),
        rerun_of: Some(JobId::new("first").expect("name")),
        conditions: job::Conditions {
            requires: vec!["hw = fpga".parse().expect("a requirement")],
            concurrency: Some(job::Concurrency { key: ConcurrencyKey::new("db-7").expect("key"), max: 5 }),
            unique: Some(UniqueKey::new("report-7").expect("key")),
            ordering: Some(job::Ordered { key: OrderingKey::new("account-7").expect("key"), seq: 8, first: 7 }),
        }
        .stored(),
        fingerprint: None,
    };
    let id = JobId::new("a/b").expect("name");
    let payload = Body::Inline(Json::parse("{\"n\": 1.50}".to_owned()).expect("json"));
    let submitter = Actor::system("submitter");
    let mut job = job::Job::submit(id, Arc::new(spec), payload, (at(5), Some(at(99))), &submitter, at(2));
    let worker_id = Some(WorkerId::system("w1"));
    let first = HistoryEntry { worker_id, ..job.history.entries()[0].clone() };
    job.history = job::History::from_parts(vec![first], 0);
    job.attempt = Attempt::new(2);
    job.fence = Fence::new(3);
    job.error = Some(job::JobError { code: "exit".to_owned(), message: "status 2".to_owned() });
    job.hold = Some(Box::new(job::Hold { at: at(7), by: Actor::system("ann"), reason: Some("wrong".to_owned()) }));
    job.started_at = Some(at(6));
    let lease = job::Lease {
        worker_id: WorkerId::new("w1").expect("name"),
        holder: Some(Actor::system("ci")),
        request_id: Some(RequestId::new("r1").expect("name")),
        acquired_at: at(6),
        heartbeat_at: at(7),
        expires_at: at(60_006),
        term: Duration::from_secs(60),
    };
    job.state = State::Running(Box::new(job::Running {
        lease,
        progress: Some(job::Progress { percent: Some(42.5), message: Some("page 17".to_owned()) }),
        cancel_requested_at: Some(at(8)),
        orphan: Some(job::Orphan { flagged_at: at(9), reason: "silent".to_owned(), held: true }),
        overdue_at: Some(at(7)),
    }));
    Versioned { job: Arc::new(job), version: store::Version { place: store::Place::Main, primary_term: 4, seq_no: 11 } }
}

fn text(out: &JobAnswer<'_>) -> String {
    serde_json::to_string(out).expect("json")
}

#[test]
fn what_the_server_writes_is_what_the_public_type_reads_and_writes() {
    let versioned = full();
    let written = text(&JobAnswer::of(&versioned, Sight::Everything));
    let read: Job = serde_json::from_str(&written).expect("the public type reads it");
    assert_eq!(serde_json::to_string(&read).expect("json"), written);
    assert_eq!(read.lease.as_ref().map(|lease| lease.fence), Some(3));
    assert_eq!(read.version, Version { seq_no: 11, primary_term: 4 });
}

#[test]
fn a_body_goes_out_as_it_came_in() {
    let versioned = full();
    assert!(text(&JobAnswer::of(&versioned, Sight::Everything)).contains(r#""payload":{"n": 1.50},"#));
}

#[test]
fn a_body_kept_apart_is_left_out_of_a_list_and_given_in_a_view() {
    let mut versioned = full();
    let reference = job::BodyRef { id: job::BodyId(uuid::Uuid::nil()), bytes: 5000 };
    Arc::make_mut(&mut versioned.job).payload = Body::Stored(reference);
    assert!(!text(&JobAnswer::of(&versioned, Sight::Everything)).contains("\"payload\""));

    let payload = Some(Json::parse("[1]".to_owned()).expect("json"));
    let view = JobView { versioned, payload, result: None };
    let written = text(&JobAnswer::with_bodies(&view, Sight::Everything));
    assert!(written.contains(r#""payload":[1],"#) && written.contains(r#""result":null,"#), "{written}");
}

#[test]
fn times_are_rfc_3339_with_milliseconds() {
    assert!(text(&JobAnswer::of(&full(), Sight::Everything)).contains(r#""run_at":"1970-01-01T00:00:00.005Z""#));
}

#[test]
fn the_fields_that_can_be_asked_for_are_those_that_are_given() {
    fn walk(prefix: &str, value: &serde_json::Value, fields: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(members) => {
                for (name, member) in members {
                    let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                    fields.push(name.clone());
                    if !["labels", "resources", "payload", "result"].contains(&name.as_str()) {
                        walk(&name, member, fields);
                    }
                }
            }
            serde_json::Value::Array(entries) => entries.iter().take(1).for_each(|entry| walk(prefix, entry, fields)),
            _ => {}
        }
    }
    let job = full();
    let value: serde_json::Value = serde_json::from_str(&text(&JobAnswer::of(&job, Sight::Everything))).expect("JSON");
    let mut given = Vec::new();
    walk("", &value, &mut given);
    given.sort();
    let mut known = JOB_FIELDS.clone();
    known.sort_unstable();
    assert_eq!(given, known);
}

#[test]
fn a_reader_sees_all_but_secrets_and_who_does_not_read_the_course_of_the_job() {
    let mut versioned = full();
    let payload = Json::parse(r#"{"command":"a","env":{"TOKEN":"s3cret"}}"#.to_owned()).expect("json");
    Arc::make_mut(&mut versioned.job).payload = Body::Inline(payload.clone());
    let seen = |sight| serde_json::to_value(JobAnswer::of(&versioned, sight)).expect("JSON");
    let (everything, reader, course) = (seen(Sight::Everything), seen(Sight::Reader), seen(Sight::Course));
    let differences = |one: &serde_json::Value, other: &serde_json::Value| -> Vec<String> {
        let fields = one.as_object().expect("an object").iter();
        fields.filter(|(name, value)| other.get(name) != Some(value)).map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(differences(&everything, &reader), ["notify", "payload"]);
    assert_eq!(reader["payload"]["env"]["TOKEN"], "***");
    assert_eq!((&reader["notify"][0]["url"], &reader["notify"][0]["format"]), (&"***".into(), &"slack".into()));
    // What is written by people and by workers is for those who may read; a result is null here, and then left out.
    let texts = ["error", "history", "hold", "labels", "notify", "orphan", "owner", "payload", "progress", "result"];
    assert_eq!(differences(&everything, &course), texts);
    let view = JobView { versioned, payload: Some(payload), result: Json::of(&"s3cret").ok() };
    assert!(!text(&JobAnswer::with_bodies(&view, Sight::Course)).contains("s3cret"));
    assert!(text(&JobAnswer::with_bodies(&view, Sight::Reader)).contains(r#"{"TOKEN":"***"}"#));
}
