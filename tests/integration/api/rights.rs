//! What answers show to whom, and whose jobs and schedules are whose to change.

use std::collections::BTreeSet;

use leasehold::api::access::{Access, Role, Token, token_hash};
use leasehold::job::Actor;
use reqwest::Method;
use serde_json::{Value, json};

use super::server::{Server, Setup};
use crate::program::eventually;

/// What nobody but the worker and an administrator who asks may see.
const SECRET: &str = "s3cret-7f31";

/// A server with tokens of these names, each the name itself.
async fn guarded() -> Server {
    let token = |(name, roles, may_edit_others): (&'static str, &[Role], bool)| Token {
        name: Actor::system(name),
        roles: roles.iter().copied().collect::<BTreeSet<_>>(),
        sha256: token_hash(name),
        may_edit_others,
    };
    let tokens = [
        ("ann", &[Role::Submit][..], false),
        ("bob", &[Role::Submit, Role::Read], false),
        ("old", &[Role::Submit], true),
        ("eve", &[Role::Read], false),
        ("worker", &[Role::Work], false),
        ("ops", &[Role::Admin], false),
    ];
    let access = Access::new(tokens.map(token).to_vec()).expect("tokens");
    Server::start_with(Setup { access, is_notifying: true, ..Setup::default() }).await
}

/// Makes a call as somebody; returns the status and the answer.
async fn call(server: &Server, who: &str, method: Method, path: &str, body: Value) -> (u16, Value) {
    let call = reqwest::Client::new().request(method, server.url(path)).bearer_auth(who);
    let call = if body.is_null() { call } else { call.json(&body) };
    let answer = call.send().await.expect("an answer");
    let status = answer.status().as_u16();
    let text = answer.text().await.expect("a text");
    let line = text.lines().next().unwrap_or_default();
    (status, serde_json::from_str(line).unwrap_or(Value::Null))
}

fn job(id: &str) -> Value {
    json!({
        "id": id, "queue": "q", "kind": "shell", "labels": {"team": "ann"}, "owner": "ann",
        "payload": {"command": "true", "env": {"TOKEN": SECRET}},
        "notify": [{"url": format!("http://127.0.0.1:1/{SECRET}")}],
    })
}

fn schedule(id: &str) -> Value {
    let mut job = job("");
    job.as_object_mut().expect("an object").remove("id");
    json!({"id": id, "action": {"type": "job", "job": job}, "period": {"cron": "@yearly"},
        "notify": [{"url": format!("http://127.0.0.1:1/{SECRET}")}]})
}

/// The calls that change a job, each with a body.
fn changes() -> Vec<(Method, &'static str, Value)> {
    vec![
        (Method::PATCH, "", json!({"priority": 7})),
        (Method::POST, "/hold", Value::Null),
        (Method::POST, "/unhold", Value::Null),
        (Method::POST, "/run-now", Value::Null),
        (Method::POST, "/cancel", Value::Null),
        (Method::POST, "/rerun", Value::Null),
        (Method::POST, "/retry", Value::Null),
    ]
}

#[tokio::test]
async fn an_answer_has_what_its_caller_may_read_and_secrets_are_for_workers_and_administrators_who_ask() {
    let server = guarded().await;
    let shown = |answer: &Value| answer.to_string();
    let (status, made) = call(&server, "ann", Method::POST, "/v1/jobs", job("a")).await;
    assert_eq!(status, 201);
    assert_eq!((&made["id"], &made["state"], &made["labels"]), (&json!("a"), &json!("available"), &json!({})));
    assert!(made.get("payload").is_none() && made["owner"].is_null(), "{made}");
    for (method, path, body) in &changes()[..4] {
        let (status, answer) = call(&server, "ann", method.clone(), &format!("/v1/jobs/a{path}"), body.clone()).await;
        assert_eq!((status, answer.get("payload")), (200, None), "{path}: {answer}");
    }
    let of_readers = ["/v1/jobs/a", "/v1/jobs", "/v1/jobs/export", "/v1/jobs/a/explain", "/v1/jobs?fields=payload"];
    for path in of_readers {
        for who in ["eve", "bob", "ops"] {
            let (status, answer) = call(&server, who, Method::GET, path, Value::Null).await;
            assert_eq!(status, 200, "{path}");
            assert!(!shown(&answer).contains(SECRET), "{path} as {who}: {answer}");
        }
    }
    let (_, read) = call(&server, "eve", Method::GET, "/v1/jobs/a", Value::Null).await;
    assert_eq!((&read["payload"]["env"]["TOKEN"], &read["notify"][0]["url"]), (&json!("***"), &json!("***")));
    for path in ["/v1/jobs/a?reveal=true", "/v1/jobs/export?reveal=true"] {
        assert_eq!(call(&server, "eve", Method::GET, path, Value::Null).await.0, 403, "{path}");
        let (_, revealed) = call(&server, "ops", Method::GET, path, Value::Null).await;
        assert_eq!(revealed["payload"]["env"]["TOKEN"], SECRET, "{path}");
        assert!(shown(&revealed["notify"]).contains(SECRET), "{path}");
    }
    let claim = json!({"worker_id": "w", "queues": ["q"]});
    let (_, claimed) = call(&server, "worker", Method::POST, "/v1/claims", claim).await;
    assert_eq!(claimed["jobs"][0]["payload"]["env"]["TOKEN"], SECRET, "{claimed}");
    let done = json!({"worker_id": "w", "fence": 1, "result": {"n": SECRET}});
    let (status, done) = call(&server, "worker", Method::POST, "/v1/jobs/a/complete", done).await;
    assert_eq!(status, 200);
    assert!(!shown(&done).contains(SECRET), "{done}");
    let (_, again) = call(&server, "ann", Method::POST, "/v1/jobs", job("a")).await;
    assert_eq!((&again["state"], again.get("result")), (&json!("completed"), None), "{again}");
    // A delivery of the notification has the address in its payload.
    let path = "/v1/jobs?queue=leasehold.notifications";
    eventually("a delivery", async || {
        let (_, deliveries) = call(&server, "eve", Method::GET, path, Value::Null).await;
        assert!(!shown(&deliveries).contains(SECRET), "{deliveries}");
        shown(&deliveries).contains(r#""url":"***""#)
    })
    .await;
}

#[tokio::test]
async fn what_was_not_shown_cannot_be_submitted() {
    let server = guarded().await;
    let mut hidden = job("a");
    hidden["payload"]["env"]["TOKEN"] = "***".into();
    let (status, refused) = call(&server, "ann", Method::POST, "/v1/jobs", hidden.clone()).await;
    assert_eq!((status, &refused["errors"][0]["field"]), (422, &json!("payload.env.TOKEN")), "{refused}");
    let mut of_schedule = schedule("s");
    of_schedule["action"]["job"]["payload"] = hidden["payload"].clone();
    let (status, refused) = call(&server, "ann", Method::PUT, "/v1/schedules/s", of_schedule).await;
    assert_eq!((status, &refused["errors"][0]["field"]), (422, &json!("action.job.payload.env.TOKEN")), "{refused}");
}

#[tokio::test]
async fn a_client_changes_the_jobs_that_it_submitted_and_no_others() {
    let server = guarded().await;
    for id in ["a", "b", "c"] {
        assert_eq!(call(&server, "ann", Method::POST, "/v1/jobs", job(id)).await.0, 201);
    }
    let before = call(&server, "ops", Method::GET, "/v1/jobs/a?reveal=true", Value::Null).await;
    for (method, path, body) in changes() {
        let (status, refused) = call(&server, "bob", method, &format!("/v1/jobs/a{path}"), body).await;
        assert_eq!((status, &refused["code"]), (403, &json!("forbidden")), "{path}: {refused}");
        assert!(!refused.to_string().contains(SECRET));
    }
    let tagged = reqwest::Client::new().patch(server.url("/v1/jobs/a")).bearer_auth("bob").header("if-match", "*");
    assert_eq!(tagged.json(&json!({"priority": 1})).send().await.expect("an answer").status(), 403);
    assert_eq!(call(&server, "ops", Method::GET, "/v1/jobs/a?reveal=true", Value::Null).await, before);
    for (who, id) in [("ann", "a"), ("ops", "b"), ("old", "c")] {
        for (method, path, body) in changes() {
            let (status, answer) = call(&server, who, method, &format!("/v1/jobs/{id}{path}"), body).await;
            assert!([200, 201].contains(&status), "{who} at {path}: {answer}");
        }
    }
    let (status, _) = call(&server, "bob", Method::POST, "/v1/jobs/nothing/hold", Value::Null).await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn nobody_replaces_the_job_of_somebody_else_by_its_unique_key() {
    let server = guarded().await;
    let keyed = |payload: &str, on_duplicate: &str| json!({"queue": "q", "kind": "k", "unique_key": "u", "payload": payload, "on_duplicate": on_duplicate});
    let (status, first) = call(&server, "ann", Method::POST, "/v1/jobs", keyed("ann's", "refuse")).await;
    assert_eq!(status, 201);
    let replaced = call(&server, "bob", Method::POST, "/v1/jobs", keyed("bob's", "replace")).await;
    assert_eq!((replaced.0, &replaced.1["code"]), (403, &json!("forbidden")));
    // Nor by way of a schedule.
    let by_schedule = json!({"id": "s", "action": {"type": "job", "job": keyed("bob's", "replace")},
        "period": {"cron": "@yearly"}});
    assert_eq!(call(&server, "bob", Method::PUT, "/v1/schedules/s", by_schedule).await.0, 201);
    let scheduler = server.scheduler();
    assert_eq!(call(&server, "bob", Method::POST, "/v1/schedules/s/run", Value::Null).await.0, 202);
    let path = "/v1/jobs?queue=leasehold.triggers";
    eventually("the trigger's outcome", async || {
        let (_, triggers) = call(&server, "eve", Method::GET, path, Value::Null).await;
        triggers["items"][0]["result"]["message"].as_str().is_some_and(|message| message.contains("another name"))
    })
    .await;
    scheduler.shutdown().await;
    let path = format!("/v1/jobs/{}", first["id"].as_str().expect("an id"));
    assert_eq!(call(&server, "eve", Method::GET, &path, Value::Null).await.1["payload"], "ann's");
    let (status, existing) = call(&server, "ann", Method::POST, "/v1/jobs", keyed("new", "replace")).await;
    assert_eq!((status, &existing["id"]), (200, &first["id"]));
    assert_eq!(call(&server, "eve", Method::GET, &path, Value::Null).await.1["payload"], "new");
}

#[tokio::test]
async fn a_client_changes_the_schedules_that_it_created_and_their_jobs_and_no_others() {
    let server = guarded().await;
    assert_eq!(call(&server, "ann", Method::PUT, "/v1/schedules/s", schedule("s")).await.0, 201);
    assert_eq!(call(&server, "ops", Method::PUT, "/v1/schedules/o", schedule("o")).await.0, 201);
    let mut other = schedule("s");
    other["labels"] = json!({"of": "bob"});
    let range = json!({"from": "2020-01-01T00:00:00Z", "to": "2021-06-01T00:00:00Z"});
    let changes = [
        (Method::PUT, "", other.clone()),
        (Method::POST, "/pause", Value::Null),
        (Method::POST, "/resume", Value::Null),
        (Method::POST, "/run", Value::Null),
        (Method::POST, "/backfill", range),
        (Method::DELETE, "", Value::Null),
    ];
    let before = call(&server, "ops", Method::GET, "/v1/schedules/s?reveal=true", Value::Null).await;
    assert!(before.1.to_string().contains(SECRET) && before.1["created_by"] == "ann", "{before:?}");
    for (method, path, body) in &changes {
        for (who, id) in [("bob", "s"), ("ann", "o")] {
            let mut body = body.clone();
            if let Some(named) = body.get_mut("id") {
                *named = id.into();
            }
            let path = format!("/v1/schedules/{id}{path}");
            let (status, refused) = call(&server, who, method.clone(), &path, body).await;
            assert_eq!((status, &refused["code"]), (403, &json!("forbidden")), "{who}: {method} {path}: {refused}");
        }
    }
    let line = reqwest::Client::new().post(server.url("/v1/schedules/bulk")).bearer_auth("bob");
    let line = line.header("content-type", "application/x-ndjson").body(other.to_string()).send().await;
    let answer = line.expect("an answer").text().await.expect("a text");
    assert!(answer.contains(r#""status":403"#), "{answer}");
    assert_eq!(call(&server, "ops", Method::GET, "/v1/schedules/s?reveal=true", Value::Null).await, before);
    for path in ["/v1/schedules/s", "/v1/schedules"] {
        let (_, read) = call(&server, "eve", Method::GET, path, Value::Null).await;
        assert!(!read.to_string().contains(SECRET) && read.to_string().contains("***"), "{path}: {read}");
    }
    // The jobs of the schedule are its creator's.
    let scheduler = server.scheduler();
    assert_eq!(call(&server, "ann", Method::POST, "/v1/schedules/s/run", Value::Null).await.0, 202);
    let mut id = String::new();
    eventually("the schedule's job", async || {
        let (_, jobs) = call(&server, "eve", Method::GET, "/v1/jobs?queue=q", Value::Null).await;
        id = jobs["items"][0]["id"].as_str().unwrap_or_default().to_owned();
        !id.is_empty()
    })
    .await;
    scheduler.shutdown().await;
    let hold = format!("/v1/jobs/{id}/hold");
    assert_eq!(call(&server, "bob", Method::POST, &hold, Value::Null).await.0, 403);
    assert_eq!(call(&server, "ann", Method::POST, &hold, Value::Null).await.0, 200);
    for (method, path, body) in changes {
        let (status, answer) = call(&server, "ann", method.clone(), &format!("/v1/schedules/s{path}"), body).await;
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
    }
    // Nobody is known any more to whom they belong, also once somebody has a schedule under the former id.
    assert_eq!(call(&server, "bob", Method::PUT, "/v1/schedules/s", schedule("s")).await.0, 201);
    assert_eq!(call(&server, "bob", Method::POST, &format!("/v1/jobs/{id}/unhold"), Value::Null).await.0, 403);
    assert_eq!(call(&server, "ann", Method::POST, &format!("/v1/jobs/{id}/unhold"), Value::Null).await.0, 403);
    assert_eq!(call(&server, "ops", Method::POST, &format!("/v1/jobs/{id}/unhold"), Value::Null).await.0, 200);
}
