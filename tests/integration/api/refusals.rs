//! Requests that cannot be meant: each is answered with a problem that names the field, and the server goes on.

use reqwest::Method;

use super::server::{Server, problem};

/// What is sent and what must come back.
struct Case {
    what: &'static str,
    method: Method,
    path: &'static str,
    content_type: Option<&'static str>,
    body: Vec<u8>,
    status: u16,
    code: &'static str,
    field: Option<&'static str>,
}

fn post(what: &'static str, path: &'static str, body: impl Into<Vec<u8>>) -> Case {
    Case {
        what,
        method: Method::POST,
        path,
        content_type: Some("application/json"),
        body: body.into(),
        status: 422,
        code: "invalid_request",
        field: None,
    }
}

fn get(what: &'static str, path: &'static str) -> Case {
    Case { method: Method::GET, content_type: None, ..post(what, path, "") }
}

impl Case {
    fn field(self, field: &'static str) -> Self {
        Self { field: Some(field), ..self }
    }

    fn gives(self, status: u16, code: &'static str) -> Self {
        Self { status, code, ..self }
    }

    fn typed(self, content_type: Option<&'static str>) -> Self {
        Self { content_type, ..self }
    }
}

/// Sends every case to one server.
async fn all_are_refused(cases: Vec<Case>) {
    let server = Server::start().await;
    let http = reqwest::Client::new();
    for case in cases {
        let Case { what, method, path, content_type, body, status, code, field } = case;
        let mut request = http.request(method, server.url(path)).body(body);
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let answer = request.send().await.unwrap_or_else(|error| panic!("{what}: no answer: {error}"));
        let problem = problem(answer).await;
        assert_eq!((problem.status, problem.code.as_str()), (status, code), "{what}: {}", problem.detail);
        assert!(!problem.detail.contains("struct "), "{what}: our types are nobody's business: {}", problem.detail);
        if let Some(field) = field {
            let fields: Vec<&str> = problem.errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(fields, [field], "{what}: {}", problem.detail);
        }
        server.goes_on().await;
    }
    let listed = super::server::value(http.get(server.url("/v1/jobs")).send().await.expect("an answer")).await;
    assert_eq!(listed["items"], serde_json::json!([]), "nothing was submitted");
}

fn job(rest: &str) -> String {
    format!("{{\"queue\": \"q\", \"kind\": \"k\", {rest}}}")
}

#[tokio::test]
async fn submissions_that_are_no_json() {
    let jobs = "/v1/jobs";
    let malformed = |what, body: &[u8]| post(what, jobs, body).gives(400, "malformed_json");
    all_are_refused(vec![
        malformed("nothing", b""),
        malformed("half an object", b"{\"queue\": \"q\", "),
        malformed("two values", b"{\"queue\": \"q\", \"kind\": \"k\"} {}"),
        malformed("invalid UTF-8 in a name", b"{\"queue\": \"\xff\xfe\", \"kind\": \"k\"}"),
        malformed("invalid UTF-8 in a payload", b"{\"queue\": \"q\", \"kind\": \"k\", \"payload\": \"\xff\"}"),
        malformed("a bare line break in a name", b"{\"queue\": \"a\nb\", \"kind\": \"k\"}"),
        malformed("a payload that ends too soon", b"{\"queue\": \"q\", \"kind\": \"k\", \"payload\": [1, 2}"),
        post("an array of nothing but brackets", jobs, "[".repeat(100_000)),
        post("a job in a list", jobs, "[{}]"),
        post("a text", jobs, "\"job\""),
    ])
    .await;
}

#[tokio::test]
async fn half_a_character_is_no_reason_to_refuse_what_a_worker_says() {
    let server = super::server::Server::start().await;
    let http = reqwest::Client::new();
    let post = async |path: &str, body: String| {
        let call = http.post(server.url(path)).header("content-type", "application/json").body(body);
        super::server::value(call.send().await.expect("an answer")).await
    };
    let job = r#"{"queue": "q", "kind": "k", "owner": "a\ud83d", "labels": {"b": "\ude00"}, "max_attempts": 1}"#;
    let job = post("/v1/jobs", job.to_owned()).await;
    assert_eq!((&job["owner"], &job["labels"]["b"]), (&"a\u{fffd}".into(), &"\u{fffd}".into()), "{job}");
    let claim = r#"{"worker_id": "w", "queues": ["q"]}"#.to_owned();
    let claimed = post("/v1/claims", claim).await["jobs"][0].clone();
    let fail = format!(
        r#"{{"worker_id": "w", "fence": {}, "error": {{"code": "cut", "message": "it \ud83d\ude00 and \ud83d"}}}}"#,
        claimed["fence"]
    );
    let failed = post(&format!("/v1/jobs/{}/fail", job["id"].as_str().expect("an id")), fail).await;
    assert_eq!(failed["error"]["message"], "it \u{1f600} and \u{fffd}", "{failed}");
}

/// Returns this many members of an object, each with this value.
fn many(count: usize, value: &str) -> String {
    (0..count).map(|number| format!("\"l{number}\": {value}")).collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn submissions_with_wrong_fields() {
    let jobs = "/v1/jobs";
    let wrong = |what, rest: &str, field| post(what, jobs, job(rest)).field(field);
    let deep = format!("\"payload\": {}{}", "[".repeat(101), "]".repeat(101));
    let bomb = format!("\"payload\": {}{}", "[".repeat(250_000), "]".repeat(250_000));
    all_are_refused(vec![
        post("no queue", jobs, r#"{"kind": "k"}"#).field("queue"),
        post("a queue that is a number", jobs, r#"{"queue": 1, "kind": "k"}"#).field("queue"),
        post("a control character in a name", jobs, r#"{"queue": "a\u0000b", "kind": "k"}"#).field("queue"),
        post("an empty kind", jobs, r#"{"queue": "q", "kind": ""}"#).field("kind"),
        post("a queue of the system's own", jobs, r#"{"queue": "leasehold.notify", "kind": "k"}"#).field("queue"),
        post("a queue of 257 bytes", jobs, format!(r#"{{"queue": "{}", "kind": "k"}}"#, "q".repeat(257)))
            .field("queue"),
        wrong("an unknown field", r#""colour": "red""#, "colour"),
        wrong("a field given twice", r#""priority": 1, "priority": 2"#, "priority"),
        wrong("a control character in an id", r#""id": "a\nb""#, "id"),
        wrong("an id that is a call's name", r#""id": "count""#, "id"),
        wrong("a control character in an owner", r#""owner": "\u007f""#, "owner"),
        wrong("an empty key", r#""idempotency_key": """#, "idempotency_key"),
        wrong("half a character in an id, where two would become one", r#""id": "a\ud83d""#, "id"),
        wrong("half a character in a key", r#""unique_key": "\ude00""#, "unique_key"),
        wrong("an absurd priority", r#""priority": 101"#, "priority"),
        wrong("a priority beyond 64 bits", r#""priority": 99999999999999999999"#, "priority"),
        wrong("a priority with a fraction", r#""priority": 1.5"#, "priority"),
        wrong("a priority in words", r#""priority": "high""#, "priority"),
        wrong("a start deadline in the past", r#""expires_at": "2001-01-01T00:00:00Z""#, "expires_at"),
        wrong(
            "a start deadline before the start",
            r#""run_at": "2099-01-02T00:00:00Z", "expires_at": "2099-01-01T00:00:00Z""#,
            "expires_at",
        ),
        wrong("a time that is none", r#""run_at": "tomorrow""#, "run_at"),
        wrong("a time without a zone", r#""run_at": "2030-01-01T00:00:00""#, "run_at"),
        wrong("a time that is a number", r#""run_at": 0"#, "run_at"),
        wrong("no attempts", r#""max_attempts": 0"#, "max_attempts"),
        wrong("a limit of none", r#""concurrency_key": "db", "max_concurrent": 0"#, "max_concurrent"),
        wrong("a limit of too many", r#""concurrency_key": "db", "max_concurrent": 1001"#, "max_concurrent"),
        wrong("a limit of no key", r#""max_concurrent": 1"#, "max_concurrent"),
        wrong("a key of 10 KiB", &format!(r#""concurrency_key": "{}""#, "k".repeat(10_240)), "concurrency_key"),
        wrong("attempts without end", r#""max_attempts": 1001"#, "max_attempts"),
        wrong("a timeout of nothing", r#""timeout_ms": 0"#, "timeout_ms"),
        wrong("a negative timeout", r#""timeout_ms": -1"#, "timeout_ms"),
        wrong("a runtime of 300,000 years", r#""expected_runtime_ms": 9999999999999999"#, "expected_runtime_ms"),
        wrong("a shrinking backoff", r#""retry": {"factor": 0.5}"#, "retry.factor"),
        wrong("a jitter above one", r#""retry": {"jitter": 1.1}"#, "retry.jitter"),
        wrong("a first wait above the longest", r#""retry": {"base_ms": 10, "max_ms": 5}"#, "retry.base_ms"),
        wrong("an unknown field within", r#""retry": {"speed": 1}"#, "retry.speed"),
        wrong("a label that is a number", r#""labels": {"a": 1}"#, "labels.a"),
        wrong("a control character in a label's key", r#""labels": {"a\tb": "x"}"#, "labels"),
        wrong("a label of 1,025 bytes", &format!(r#""labels": {{"a": "{}"}}"#, "x".repeat(1025)), "labels.a"),
        wrong("65 labels", &format!(r#""labels": {{{}}}"#, many(65, "\"x\"")), "labels"),
        wrong("33 resources", &format!(r#""resources": {{{}}}"#, many(33, "1")), "resources"),
        wrong("17 requirements", &format!(r#""requires": [{}]"#, ["\"a\""; 17].join(",")), "requires"),
        wrong("a requirement without a value", r#""requires": ["a", "!b", "hw ="]"#, "requires[2]"),
        wrong("a requirement in words", r#""requires": ["hw is fpga"]"#, "requires[0]"),
        wrong("a requirement that compares words", r#""requires": ["build >= new"]"#, "requires[0]"),
        wrong("a requirement of 257 bytes", &format!(r#""requires": ["a{}"]"#, " ".repeat(256)), "requires[0]"),
        wrong("a requirement that is a number", r#""requires": [1]"#, "requires[0]"),
        wrong("requirements by name", r#""requires": {"hw": "fpga"}"#, "requires"),
        wrong("a unique key of 10 KiB", &format!(r#""unique_key": "{}""#, "x".repeat(10 << 10)), "unique_key"),
        wrong("an empty unique key", r#""unique_key": """#, "unique_key"),
        wrong("an ordering key of 10 KiB", &format!(r#""ordering_key": "{}""#, "x".repeat(10 << 10)), "ordering_key"),
        wrong("an empty ordering key", r#""ordering_key": """#, "ordering_key"),
        wrong("an answer to duplicates of no key", r#""on_duplicate": "existing""#, "on_duplicate"),
        wrong("an unknown answer to duplicates", r#""unique_key": "a", "on_duplicate": "drop""#, "on_duplicate"),
        wrong(
            "a longest wait of a job that is not put off",
            r#""unique_key": "a", "longest_wait_ms": 1"#,
            "longest_wait_ms",
        ),
        wrong(
            "an event of schedules",
            r#""notify": [{"url": "https://example.org/", "events": ["schedule_missed"]}]"#,
            "notify[0].events[0]",
        ),
        wrong("a negative resource", r#""resources": {"gpus": -1}"#, "resources.gpus"),
        wrong("a resource with a dot", r#""resources": {"gpu.memory": 1}"#, "resources"),
        wrong("a resource without a name", r#""resources": {"": 1}"#, "resources"),
        wrong(
            "more of a resource than a number holds",
            r#""resources": {"gpus": 9223372036854775808}"#,
            "resources.gpus",
        ),
        wrong("a payload 101 levels deep", &deep, "payload"),
        wrong("a payload 250,000 levels deep", &bomb, "payload"),
    ])
    .await;
}

#[tokio::test]
async fn bodies_that_are_too_long() {
    let payload = |bytes: usize| job(&format!("\"payload\": \"{}\"", "x".repeat(bytes - 2)));
    let result = format!(r#"{{"worker_id": "w", "fence": 1, "result": "{}"}}"#, "x".repeat(1024 * 1024));
    let lines = "{}\n".repeat(10_001);
    all_are_refused(vec![
        post("a payload a byte too long", "/v1/jobs", payload(1024 * 1024 + 1))
            .gives(413, "payload_too_large")
            .field("payload"),
        post("a result too long", "/v1/jobs/x/complete", result).gives(413, "payload_too_large").field("result"),
        post("a body too long", "/v1/jobs", payload(5 * 1024 * 1024)).gives(413, "body_too_large"),
        post("10,001 jobs", "/v1/jobs/bulk", lines).typed(Some("application/x-ndjson")),
    ])
    .await;
}

#[tokio::test]
async fn calls_about_leases_with_wrong_fields() {
    let claims = "/v1/claims";
    let claim = |what, rest: &str, field| {
        post(what, claims, format!(r#"{{"worker_id": "w", "queues": ["q"], {rest}}}"#)).field(field)
    };
    let leases =
        format!(r#"{{"worker_id": "w", "leases": [{}]}}"#, vec![r#"{"id": "x", "fence": 1}"#; 1001].join(", "));
    all_are_refused(vec![
        post("a claim from no queue", claims, r#"{"worker_id": "w", "queues": []}"#).field("queues"),
        post("a claim by nobody", claims, r#"{"queues": ["q"]}"#).field("worker_id"),
        post("a claim from a queue without a name", claims, r#"{"worker_id": "w", "queues": ["q", ""]}"#)
            .field("queues[1]"),
        post(
            "a claim from a queue of the system's own",
            claims,
            r#"{"worker_id": "w", "queues": ["leasehold.notify"]}"#,
        )
        .field("queues[0]"),
        claim("a claim of nothing", r#""max_jobs": 0"#, "max_jobs"),
        claim("a claim of everything", r#""max_jobs": 1001"#, "max_jobs"),
        claim("a wait of an hour", r#""wait_ms": 3600000"#, "wait_ms"),
        claim("a lease of a moment", r#""lease_ms": 99"#, "lease_ms"),
        claim("a lease of a month", r#""lease_ms": 2592000000"#, "lease_ms"),
        claim("a request id with a line break", r#""request_id": "a\nb""#, "request_id"),
        post("a heartbeat without a fence", "/v1/jobs/x/heartbeat", r#"{"worker_id": "w"}"#).field("fence"),
        post(
            "progress past the end",
            "/v1/jobs/x/heartbeat",
            r#"{"worker_id": "w", "fence": 1, "progress": {"percent": 100.1}}"#,
        )
        .field("progress.percent"),
        post("a thousand and one heartbeats", "/v1/heartbeats", leases).field("leases"),
        post("a failure without an error", "/v1/jobs/x/fail", r#"{"worker_id": "w", "fence": 1}"#).field("error"),
        post(
            "an error without a code",
            "/v1/jobs/x/fail",
            r#"{"worker_id": "w", "fence": 1, "error": {"code": "", "message": "m"}}"#,
        )
        .field("error.code"),
        post("a negative fence", "/v1/jobs/x/release", r#"{"worker_id": "w", "fence": -1}"#).field("fence"),
        post("a release to nowhere", "/v1/admin/jobs/x/release", r#"{"reason": "r", "then": "forget"}"#).field("then"),
        post("a release without a reason", "/v1/admin/jobs/x/release", r#"{"reason": " ", "then": "fail"}"#)
            .field("reason"),
        post("a cancellation with an unknown field", "/v1/jobs/x/cancel", r#"{"why": "r"}"#).field("why"),
        post("a heartbeat for no job", "/v1/jobs/x/heartbeat", r#"{"worker_id": "w", "fence": 1}"#)
            .gives(404, "not_found"),
        post("a cancellation of no job", "/v1/jobs/x/cancel", "").typed(None).gives(404, "not_found"),
        post("a retry of no job", "/v1/jobs/x/retry", "").typed(None).gives(404, "not_found"),
    ])
    .await;
}

#[tokio::test]
async fn orders_of_queues_that_are_none() {
    let claim = |rest: &str| format!(r#"{{"worker_id": "w", "queues": ["q", "r"], {rest}}}"#);
    let wrong = |what, rest: &str, field| post(what, "/v1/claims", claim(rest)).field(field);
    let weighted = |weights: &str| format!(r#""queue_order": "weighted", "queue_weights": {weights}"#);
    let next = |rest: &str| {
        let next = format!(r#"{{"queues": ["q"], "request_id": "r", {rest}}}"#);
        format!(r#"{{"worker_id": "w", "fence": 1, "next": {next}}}"#)
    };
    let twice = |order: &str| format!(r#"{{"worker_id": "w", "queues": ["q", "r", "q"], "queue_order": "{order}"}}"#);
    all_are_refused(vec![
        wrong("an order that is none", r#""queue_order": "fair""#, "queue_order"),
        wrong("a weight of nothing", &weighted(r#"{"q": 0}"#), "queue_weights.q"),
        wrong("a weight of too much", &weighted(r#"{"q": 1001}"#), "queue_weights.q"),
        wrong("a weight that is a text", &weighted(r#"{"q": "3"}"#), "queue_weights.q"),
        wrong("a weight of a queue that is not named", &weighted(r#"{"s": 3}"#), "queue_weights.s"),
        wrong("a weight twice", &weighted(r#"{"q": 3, "q": 4}"#), "queue_weights"),
        wrong("weights in no order", r#""queue_weights": {"q": 3}"#, "queue_weights"),
        wrong("weights in another order", r#""queue_order": "strict", "queue_weights": {"q": 3}"#, "queue_weights"),
        post("a queue twice, one before the other", "/v1/claims", twice("strict")).field("queues[2]"),
        post("a queue twice, in turns", "/v1/claims", twice("weighted")).field("queues[2]"),
        post("a next claim's weight", "/v1/jobs/j/complete", next(&weighted(r#"{"q": 0}"#)))
            .field("next.queue_weights.q"),
    ])
    .await;
}

#[tokio::test]
async fn arrays_are_no_objects() {
    let values = r#"[null,null,"q","k",null,null,null,{},null,null,null,null,null,null,{},null,[]]"#;
    let wrong = |what, rest: &str, field| post(what, "/v1/jobs", job(rest)).field(field);
    all_are_refused(vec![
        post("a job's values in their order", "/v1/jobs", values).field(""),
        wrong("a retry without a name", "\"retry\": []", "retry"),
        wrong("a retry's values in their order", "\"retry\": [1000, 2.0]", "retry"),
        wrong("a notification's values", r#""notify": [["http://example.com/"]]"#, "notify[0]"),
        post("a claim's values", "/v1/claims", r#"["w", ["q"]]"#).field(""),
        post("a heartbeat's values", "/v1/jobs/x/heartbeat", r#"["w", 1]"#).field(""),
        post("leases as arrays", "/v1/heartbeats", r#"{"worker_id": "w", "leases": [["x", 1]]}"#).field("leases[0]"),
        post("an end's values", "/v1/jobs/x/complete", r#"["w", 1]"#).field(""),
        post("a cancellation's values", "/v1/jobs/x/cancel", r#"["r"]"#).field(""),
        post("an order's filter", "/v1/admin/jobs/cancel", r#"{"filter": [], "reason": "r"}"#).field("filter"),
        post("a pause's values", "/v1/queues/q/pause", r#"["r"]"#).field(""),
    ])
    .await;
}

#[tokio::test]
async fn labels_that_no_worker_may_offer_are_refused() {
    let claim = |labels: &str| format!(r#"{{"worker_id": "w", "queues": ["q"], "labels": {labels}}}"#);
    let wrong = |what, labels: &str, field| post(what, "/v1/claims", claim(labels)).field(field);
    let long = "x".repeat(129);
    let next = |labels: &str| {
        let next = format!(r#"{{"queues": ["q"], "request_id": "r", "labels": {labels}}}"#);
        format!(r#"{{"worker_id": "w", "fence": 1, "next": {next}}}"#)
    };
    all_are_refused(vec![
        wrong("65 labels", &format!("{{{}}}", many(65, "\"x\"")), "labels"),
        wrong("1,000 labels", &format!("{{{}}}", many(1_000, "\"x\"")), "labels"),
        wrong("a label with a space", r#"{"a b": "x"}"#, "labels"),
        wrong("a label without a name", r#"{"": "x"}"#, "labels"),
        wrong("a label of 65 letters", &format!(r#"{{"{}": "x"}}"#, "n".repeat(65)), "labels"),
        wrong("a value of 129 bytes", &format!(r#"{{"hw": "{long}"}}"#), "labels.hw"),
        wrong("a value with a line break", r#"{"hw": "a\nb"}"#, "labels.hw"),
        wrong("a value that is a number", r#"{"build": 43}"#, "labels.build"),
        post("a next claim's label", "/v1/jobs/j/complete", next(r#"{"a b": "x"}"#)).field("next.labels"),
    ])
    .await;
}

#[tokio::test]
async fn names_that_come_twice_are_not_silently_one() {
    let wrong = |what, rest: &str, field| post(what, "/v1/jobs", job(rest)).field(field);
    all_are_refused(vec![
        wrong("a label twice", r#""labels": {"a": "1", "b": "2", "a": "3"}"#, "labels"),
        wrong("a resource twice", r#""resources": {"gpus": 1, "gpus": 2}"#, "resources"),
        post(
            "an offer twice",
            "/v1/claims",
            r#"{"worker_id": "w", "queues": ["q"], "resources": {"gpus": 1, "gpus": 1}}"#,
        )
        .field("resources"),
        post("a label twice", "/v1/claims", r#"{"worker_id": "w", "queues": ["q"], "labels": {"a": "1", "a": "1"}}"#)
            .field("labels"),
    ])
    .await;
}

#[tokio::test]
async fn a_line_of_a_bulk_submission_that_is_an_array_is_refused_alone() {
    let server = Server::start().await;
    let lines = "[null,null,\"q\",\"k\"]\n{\"queue\": \"q\", \"kind\": \"k\"}\n";
    let request =
        reqwest::Client::new().post(server.url("/v1/jobs/bulk")).header("content-type", "application/x-ndjson");
    let answer = super::server::value(request.body(lines).send().await.expect("an answer")).await;
    assert_eq!((&answer["items"][0]["status"], &answer["items"][1]["status"]), (&422.into(), &201.into()), "{answer}");
}

#[tokio::test]
async fn a_compressed_body_is_refused_by_its_coding() {
    let server = Server::start().await;
    for (path, media_type) in [("/v1/jobs", "application/json"), ("/v1/jobs/bulk", "application/x-ndjson")] {
        for coding in ["gzip", "identity, br"] {
            let request = reqwest::Client::new().post(server.url(path)).header("content-type", media_type);
            let request = request.header("content-encoding", coding).body(b"\x1f\x8b\x08\x00".to_vec());
            let problem = problem(request.send().await.expect("an answer")).await;
            assert_eq!((problem.status, problem.code.as_str()), (415, "unsupported_media_type"), "{}", problem.detail);
            assert!(problem.detail.contains(coding.rsplit(' ').next().expect("a word")), "{}", problem.detail);
        }
    }
    let request = reqwest::Client::new().post(server.url("/v1/jobs")).header("content-encoding", "identity");
    let answer = request.header("content-type", "application/json").body(job("\"id\": \"a\"")).send().await;
    assert_eq!(answer.expect("an answer").status(), 201);
}

#[tokio::test]
async fn queries_and_paths_that_lead_nowhere() {
    all_are_refused(vec![
        get("no such job", "/v1/jobs/x").gives(404, "not_found"),
        get("an id with a control character", "/v1/jobs/a%00b").field("id"),
        get("an id that is not UTF-8", "/v1/jobs/%ff").field("id"),
        get("a wait beyond the longest", "/v1/jobs/x?wait_ms=60001").field("wait_ms"),
        get("an unknown parameter", "/v1/jobs/x?wait=1").field("wait"),
        get("an unknown state", "/v1/jobs?state=available,lost").field("state"),
        get("an empty queue", "/v1/jobs?queue=").field("queue"),
        get("an unknown order", "/v1/jobs?sort=colour").field("sort"),
        get("two orders", "/v1/jobs?sort=priority&sort=run_at").field("sort"),
        get("a limit of nothing", "/v1/jobs?limit=0").field("limit"),
        get("a limit without end", "/v1/jobs?limit=1001").field("limit"),
        get("a cursor of nobody's", "/v1/jobs?cursor=e30").field("cursor"),
        get("a query that is not UTF-8", "/v1/jobs?queue=%ff").gives(400, "malformed_request"),
        get("a count by colour", "/v1/jobs/count?by=colour").field("by"),
        get("a count by the same twice", "/v1/jobs/count?by=state,state").field("by"),
        get("a parameter for a call that has none", "/v1/queues?x=1").field("x"),
        get("no such route", "/v2/jobs").gives(404, "no_such_route"),
        get("no such page", "/nowhere").gives(404, "no_such_route"),
        Case { method: Method::DELETE, ..get("a method that is not taken", "/v1/jobs") }
            .gives(405, "method_not_allowed"),
        get("a read where there is only writing", "/v1/claims").gives(405, "method_not_allowed"),
        post("a job as a form", "/v1/jobs", "queue=q&kind=k")
            .typed(Some("application/x-www-form-urlencoded"))
            .gives(415, "unsupported_media_type"),
        post("a job of no type", "/v1/jobs", job("\"id\": \"a\"")).typed(None).gives(415, "unsupported_media_type"),
        post("many jobs as one", "/v1/jobs/bulk", "[]").gives(415, "unsupported_media_type"),
    ])
    .await;
}

#[tokio::test]
async fn limits_that_are_none() {
    let put = |what, body: &str| Case { method: Method::PUT, ..post(what, "/v1/limits/key/db", body) };
    let urgent = |most: u32, places: u32, least: i32| {
        format!(r#"{{"max_concurrent": {most}, "urgent": {{"places": {places}, "min_priority": {least}}}}}"#)
    };
    all_are_refused(vec![
        put("a limit of nothing", "{}").field("max_concurrent"),
        put("a limit of 0", r#"{"max_concurrent": 0}"#).field("max_concurrent"),
        put("a limit beyond what one can be", r#"{"max_concurrent": 1001}"#).field("max_concurrent"),
        put("a rate without a period", r#"{"rate": {"count": 5}}"#).field("rate.per_ms"),
        put("a rate of none", r#"{"rate": {"count": 0, "per_ms": 1000}}"#),
        put("a rate in no time", r#"{"rate": {"count": 5, "per_ms": 0}}"#).field("rate.per_ms"),
        put("a rate in two days", r#"{"rate": {"count": 5, "per_ms": 172800000}}"#).field("rate.per_ms"),
        put("a burst of none", r#"{"rate": {"count": 5, "per_ms": 1000, "burst": 0}}"#).field("rate.burst"),
        put("no places for urgent jobs", &urgent(10, 0, 50)).field("urgent.places"),
        put("all places for urgent jobs", &urgent(10, 10, 50)).field("urgent.places"),
        put("a priority that all jobs have", &urgent(10, 2, -100)).field("urgent.min_priority"),
        put("a priority that none has", &urgent(10, 2, 101)).field("urgent.min_priority"),
        put("urgent jobs of any priority", r#"{"max_concurrent": 9, "urgent": {"places": 2}}"#)
            .field("urgent.min_priority"),
        put("places of none", r#"{"rate": {"count": 5, "per_ms": 1000}, "urgent": {"places": 2, "min_priority": 1}}"#)
            .field("urgent"),
        put("a pause until no time", r#"{"paused_until": "tomorrow"}"#).field("paused_until"),
        Case { path: "/v1/limits/place/db", ..put("a scope that is none", r#"{"max_concurrent": 1}"#) }.field("scope"),
    ])
    .await;
}

#[tokio::test]
async fn a_method_that_is_not_taken_is_told_which_are() {
    let server = Server::start().await;
    let answer = reqwest::Client::new().put(server.url("/v1/jobs")).send().await.expect("an answer");
    let allowed = answer.headers()["allow"].to_str().expect("text").to_owned();
    assert!(allowed.contains("GET") && allowed.contains("POST"), "{allowed}");
    assert_eq!(problem(answer).await.status, 405);
}

#[tokio::test]
async fn several_wrong_fields_are_all_named() {
    let server = Server::start().await;
    let body = r#"{"queue": "", "kind": "k", "priority": 500, "max_attempts": 0}"#;
    let request = reqwest::Client::new().post(server.url("/v1/jobs")).header("content-type", "application/json");
    let problem = problem(request.body(body).send().await.expect("an answer")).await;
    let fields: Vec<&str> = problem.errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["queue", "priority", "max_attempts"]);
}

#[tokio::test]
async fn a_key_in_the_header_and_another_in_the_body_are_refused() {
    let server = Server::start().await;
    let request = reqwest::Client::new().post(server.url("/v1/jobs")).header("idempotency-key", "a");
    let body = job("\"idempotency_key\": \"b\"");
    let answer = request.header("content-type", "application/json").body(body).send().await.expect("an answer");
    assert_eq!(problem(answer).await.errors[0].field, "idempotency_key");
}

#[tokio::test]
async fn a_request_id_is_given_back() {
    let server = Server::start().await;
    let request = reqwest::Client::new().get(server.url("/v1/jobs/x")).header("x-request-id", "trace-17");
    assert_eq!(problem(request.send().await.expect("an answer")).await.request_id, "trace-17");
}
