use super::*;
use crate::wire::{HeartbeatJobs, SubmitJob};

fn refusal(result: Result<impl Sized, ApiError>) -> crate::wire::Problem {
    result.err().expect("a refusal").to_problem("r")
}

#[test]
fn a_text_that_is_no_json_is_told_from_one_that_says_the_wrong_thing() {
    let broken = refusal(parse::<SubmitJob>(b"{\"queue\": \"a\",\n \"kind\" \"b\"}"));
    assert_eq!((broken.status, broken.code.as_str()), (400, "malformed_json"));
    assert!(broken.detail.contains("line 2 column"), "{}", broken.detail);
    for text in [&b""[..], b"   ", b"{", b"nul", b"\xff\xfe", b"{\"queue\": \"\xff\"}", b"{\"priority\": 1e3000}"] {
        assert_eq!(refusal(parse::<SubmitJob>(text)).code, "malformed_json", "{text:?}");
    }
}

#[test]
fn the_field_at_fault_is_named_wherever_it_is() {
    for (text, field) in [
        (r#"{"queue": 7, "kind": "k"}"#, "queue"),
        (r#"{"queue": "q"}"#, "kind"),
        (r#"{"queue": "q", "kind": "k", "colour": 1}"#, "colour"),
        (r#"{"queue": "q", "kind": "k", "priority": 1, "priority": 2}"#, "priority"),
        (r#"{"queue": "q", "kind": "k", "priority": "high"}"#, "priority"),
        (r#"{"queue": "q", "kind": "k", "retry": {"factor": []}}"#, "retry.factor"),
        (r#"{"queue": "q", "kind": "k", "retry": {"speed": 1}}"#, "retry.speed"),
        (r#"{"queue": "q", "kind": "k", "labels": {"a": 1}}"#, "labels.a"),
        (r#"{"queue": "q", "kind": "k", "timeout_ms": -1}"#, "timeout_ms"),
    ] {
        let problem = refusal(parse::<SubmitJob>(text.as_bytes()));
        assert_eq!((problem.status, problem.code.as_str()), (422, "invalid_request"), "{text}");
        let fields: Vec<&str> = problem.errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, [field], "{text}: {}", problem.detail);
    }
    let text = r#"{"worker_id": "w", "leases": [{"id": "a", "fence": 1}, {"id": "b"}]}"#;
    assert_eq!(refusal(parse::<HeartbeatJobs>(text.as_bytes())).errors[0].field, "leases[1].fence");
}

#[test]
fn nesting_without_end_is_refused_without_recursion() {
    let deep = format!("{{\"queue\":\"q\",\"kind\":\"k\",\"labels\":{}", "[".repeat(1_000_000));
    assert_eq!(refusal(parse::<SubmitJob>(deep.as_bytes())).status, 422);

    let deep = format!("{{\"queue\":\"q\",\"kind\":\"k\",\"payload\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
    let job: SubmitJob = parse(deep.as_bytes()).expect("a payload is not looked into");
    let invalid = job.into_new_job().expect_err("but measured");
    assert_eq!(invalid.errors[0].field, "payload");
}

#[test]
fn lists_in_a_query_are_repeated_or_have_commas() {
    let query = Query::parse("state=available,running&state=failed&queue=a%2Cb&limit=5&empty").expect("a query");
    assert_eq!(query.all("state").collect::<Vec<_>>(), ["available", "running", "failed"]);
    assert_eq!(query.all("queue").collect::<Vec<_>>(), ["a,b"]);
    assert_eq!(query.number("limit", 1..=10).expect("a number"), Some(5));
    assert_eq!(query.one("missing").expect("none"), None);
    assert_eq!(query.one("empty").expect("one"), Some(""));
    assert_eq!(refusal(query.one("state")).errors[0].field, "state");
    assert_eq!(refusal(query.only(&["state", "queue", "limit"])).errors[0].field, "empty");
    for wrong in ["limit=0", "limit=11", "limit=-1", "limit=x", "limit="] {
        let query = Query::parse(wrong).expect("a query");
        assert_eq!(refusal(query.number("limit", 1..=10)).errors[0].field, "limit", "{wrong}");
    }
    assert_eq!(refusal(Query::parse("queue=%ff")).status, 400);
}
