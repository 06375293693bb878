//! Calls that are denied, and items of calls that are, in the log and the metrics of the program.

use leasehold::api::access::token_hash;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::server::SOON;
use crate::program::{Engine, Server};

/// A caller of its own for each call, since each has a line a second; and its role.
const CALLERS: [(&str, &str); 13] = [
    ("root", "admin"),
    ("holder", "work"),
    ("beats", "work"),
    ("beats-many", "work"),
    ("completes", "work"),
    ("completes-many", "work"),
    ("prints", "work"),
    ("prints-many", "work"),
    ("holds", "submit"),
    ("edits", "submit"),
    ("sends-lines", "submit"),
    ("reveals", "read"),
    ("pauses", "read"),
];

async fn send(server: &Server, who: &str, method: Method, path: &str, body: &Value) -> String {
    let call = Client::new().request(method, format!("{}{path}", server.url())).bearer_auth(who);
    let call = match body {
        Value::Null => call,
        Value::String(lines) => call.header("content-type", "application/x-ndjson").body(lines.clone()),
        body => call.json(body),
    };
    call.send().await.expect("an answer").text().await.expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_and_item_that_is_denied_is_counted_and_has_a_line_with_the_name_of_the_token() {
    let place = tempfile::tempdir().expect("a directory");
    let settings = place.path().join("settings.toml");
    let token = |(name, role): (&str, &str)| {
        format!("[[tokens]]\nname = \"{name}\"\nroles = [\"{role}\"]\nsha256 = \"{}\"\n", token_hash(name))
    };
    std::fs::write(&settings, CALLERS.map(token).concat()).expect("written");
    let options = ["--config", settings.to_str().expect("a path")];
    let engine = Engine::Embedded(place.path().join("data"));
    let server = Server::start_as("serve", &options, engine, &place.path().join("server.log")).await;

    let schedule = json!({"id": "s", "period": {"cron": "@daily"},
        "action": {"type": "job", "job": {"queue": "q", "kind": "k"}}});
    let changed = json!({"id": "s", "period": {"cron": "@weekly"},
        "action": {"type": "job", "job": {"queue": "q", "kind": "k"}}});
    send(&server, "root", Method::POST, "/v1/schedules", &schedule).await;
    send(&server, "root", Method::POST, "/v1/jobs", &json!({"id": "j", "queue": "q", "kind": "k"})).await;
    send(&server, "holder", Method::POST, "/v1/claims", &json!({"worker_id": "w", "queues": ["q"]})).await;
    let lease = json!({"id": "j", "fence": 1});
    let own = json!({"worker_id": "w", "fence": 1});
    let piece = json!({"id": "j", "fence": 1, "stream": "stdout", "offset": 0, "text": "hi"});
    let printed = json!({"worker_id": "w", "fence": 1, "stream": "stdout", "offset": 0, "text": "hi"});
    let (post, get) = (Method::POST, Method::GET);
    let denied = [
        ("beats", &post, "/v1/jobs/{id}/heartbeat", own.clone(), "foreign_lease", 1),
        (
            "beats-many",
            &post,
            "/v1/heartbeats",
            json!({"worker_id": "w", "leases": [lease, lease]}),
            "foreign_lease",
            2,
        ),
        ("completes", &post, "/v1/jobs/{id}/complete", own, "foreign_lease", 1),
        ("completes-many", &post, "/v1/completions", json!({"worker_id": "w", "items": [lease]}), "foreign_lease", 1),
        ("prints", &post, "/v1/jobs/{id}/output", printed, "foreign_lease", 1),
        ("prints-many", &post, "/v1/outputs", json!({"worker_id": "w", "pieces": [piece]}), "foreign_lease", 1),
        ("holds", &post, "/v1/jobs/{id}/hold", Value::Null, "forbidden", 1),
        ("edits", &Method::PUT, "/v1/schedules/{id}", changed.clone(), "forbidden", 1),
        ("sends-lines", &post, "/v1/schedules/bulk", Value::String(format!("{changed}\n")), "forbidden", 1),
        ("reveals", &get, "/v1/jobs/{id}?reveal=true", Value::Null, "forbidden", 1),
        ("pauses", &post, "/v1/queues/{name}/pause", Value::Null, "forbidden", 1),
    ];
    for (who, method, path, body, code, _) in &denied {
        let id = if path.contains("schedules") { "s" } else { "j" };
        let path = path.replace("{id}", id).replace("{name}", "q");
        let said = send(&server, who, (*method).clone(), &path, body).await;
        assert!(said.contains(code), "{who}: {said}");
    }
    let (log, deadline) = (|| server.log(), std::time::Instant::now() + SOON);
    for (who, method, path, _, code, _) in &denied {
        let route = path.split('?').next().expect("a path");
        let words = [
            "denied ".to_owned(),
            format!("token=\"{who}\""),
            "address=\"127.0.0.1\"".to_owned(),
            format!("method=\"{method}\""),
            format!("route=\"{route}\""),
            format!("code=\"{code}\""),
        ];
        while !log().lines().any(|line| words.iter().all(|word| line.contains(word))) {
            assert!(std::time::Instant::now() < deadline, "{words:?}: {}", log());
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    let metrics = send(&server, "root", Method::GET, "/metrics", &Value::Null).await;
    for code in ["foreign_lease", "forbidden"] {
        let expected: u32 = denied.iter().filter(|(.., of, _)| *of == code).map(|(.., count)| count).sum();
        let line = format!("leasehold_denied_calls_total{{code=\"{code}\"}} {expected}");
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
}
