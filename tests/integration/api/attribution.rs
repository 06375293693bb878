//! Who did it: the names of tokens in leases, histories and the audit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold::api::access::{Access, Role, Token, token_hash};
use leasehold::job::{Actor, RESERVED_ACTORS};
use leasehold::store::Store;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use tokio::time::{sleep, timeout};

use super::server::{SOON, Server, Setup, problem};
use crate::engines;

/// A server with tokens whose names are those of their holders, and whose secrets are `secret-` and the name. `again`
/// is a new token of `one`.
async fn server() -> Server {
    server_on(None).await
}

async fn server_on(store: Option<Arc<dyn Store>>) -> Server {
    let token = |name: &str, roles: &[Role], secret: &str| Token {
        name: Actor::new(name).expect("a name"),
        roles: roles.iter().copied().collect::<BTreeSet<_>>(),
        sha256: token_hash(&format!("secret-{secret}")),
        may_edit_others: false,
    };
    let tokens = vec![
        token("one", &[Role::Work], "one"),
        token("two", &[Role::Work], "two"),
        token("ann", &[Role::Submit, Role::Read], "ann"),
        token("root-token", &[Role::Admin], "root-token"),
    ];
    let access = Access::new(tokens).expect("tokens");
    Server::start_with(Setup { access, is_notifying: true, is_audited: true, store, ..Setup::default() }).await
}

async fn ask(server: &Server, who: &str, method: Method, path: &str, body: Option<Value>) -> Response {
    let request = reqwest::Client::new().request(method, server.url(path)).bearer_auth(format!("secret-{who}"));
    let request = match body {
        Some(body) => request.json(&body),
        None => request,
    };
    request.send().await.expect("an answer")
}

async fn post(server: &Server, who: &str, path: &str, body: Value) -> Response {
    ask(server, who, Method::POST, path, Some(body)).await
}

async fn read(server: &Server, path: &str) -> Value {
    ask(server, "root-token", Method::GET, path, None).await.json().await.expect("JSON")
}

/// Submits a job, has the worker `w` claim it with the token `one`, and returns its id.
async fn claimed(server: &Server) -> String {
    let submitted = post(server, "ann", "/v1/jobs", json!({ "queue": "q", "kind": "k" })).await;
    let job: Value = submitted.json().await.expect("JSON");
    let claim = json!({ "worker_id": "w", "queues": ["q"] });
    let claimed: Value = post(server, "one", "/v1/claims", claim).await.json().await.expect("JSON");
    assert_eq!(claimed["jobs"][0]["id"], job["id"]);
    assert_eq!(claimed["jobs"][0]["lease"]["holder"], "one");
    job["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn history_and_audit_name_the_token_and_the_worker_beside_it() {
    let server = server().await;
    // The worker says that it is the administrator.
    let submitted = post(&server, "ann", "/v1/jobs", json!({ "queue": "q", "kind": "k" })).await;
    let job: Value = submitted.json().await.expect("JSON");
    let path = format!("/v1/jobs/{}", job["id"].as_str().expect("an id"));
    let claim = json!({ "worker_id": "root-token", "queues": ["q"] });
    let claimed: Value = post(&server, "one", "/v1/claims", claim).await.json().await.expect("JSON");
    let fence = &claimed["jobs"][0]["fence"];
    let done = json!({ "worker_id": "root-token", "fence": fence });
    assert_eq!(post(&server, "one", &format!("{path}/complete"), done).await.status(), StatusCode::OK);
    let by: Vec<(Value, Value)> = read(&server, &path).await["history"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| (entry["actor"].clone(), entry["worker_id"].clone()))
        .collect();
    let worker = || ("one".into(), "root-token".into());
    assert_eq!(by, [("ann".into(), Value::Null), worker(), worker()]);
}

#[tokio::test]
async fn a_lease_is_ended_by_a_token_of_its_name_or_an_administrators_and_by_no_other() {
    let server = server().await;
    let id = claimed(&server).await;
    let path = format!("/v1/jobs/{id}");
    let own = json!({ "worker_id": "w", "fence": 1 });
    let with = |more: Value| {
        let mut own = own.clone();
        own.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        own
    };
    let failure = json!({ "error": { "code": "exit", "message": "1" } });
    let calls = [
        (format!("{path}/heartbeat"), own.clone()),
        (format!("{path}/complete"), own.clone()),
        (format!("{path}/fail"), with(failure.clone())),
        (format!("{path}/release"), own.clone()),
        (format!("{path}/output"), with(json!({ "stream": "stdout", "offset": 0, "text": "hi" }))),
        ("/v1/workers/w/recalls".to_owned(), json!({ "leases": [{ "id": id, "fence": 1 }] })),
    ];
    for (path, body) in &calls {
        let refused = problem(post(&server, "two", path, body.clone()).await).await;
        assert_eq!((refused.status, refused.code.as_str()), (403, "foreign_lease"), "{path}");
    }
    let many = json!({ "worker_id": "w", "leases": [{ "id": id, "fence": 1 }] });
    let beats: Value = post(&server, "two", "/v1/heartbeats", many).await.json().await.expect("JSON");
    assert_eq!(
        (&beats["items"][0]["status"], &beats["items"][0]["error"]["code"]),
        (&403.into(), &"foreign_lease".into())
    );
    let ends = json!({ "worker_id": "w", "items": [{ "id": id, "fence": 1 }] });
    let ended: Value = post(&server, "two", "/v1/completions", ends).await.json().await.expect("JSON");
    assert_eq!(ended["items"][0]["status"], 403);
    assert_eq!(read(&server, &path).await["state"], "running", "nothing that was refused has changed anything");

    for who in ["one", "root-token"] {
        assert_eq!(post(&server, who, &calls[0].0, own.clone()).await.status(), StatusCode::OK, "{who}");
    }
    assert_eq!(post(&server, "root-token", &format!("{path}/complete"), own.clone()).await.status(), StatusCode::OK);
    let job = read(&server, &path).await;
    let last = job["history"].as_array().and_then(|entries| entries.last()).expect("an entry");
    assert_eq!((&last["actor"], &last["worker_id"]), (&"root-token".into(), &"w".into()));

    // A lost answer: the same end again is the same.
    let id = claimed(&server).await;
    let complete = format!("/v1/jobs/{id}/complete");
    for _ in 0..2 {
        assert_eq!(post(&server, "one", &complete, own.clone()).await.status(), StatusCode::OK);
    }
    assert_eq!(problem(post(&server, "two", &complete, own).await).await.code, "lease_lost");
}

#[tokio::test]
async fn a_repeated_claim_of_another_token_is_another_claim() {
    let server = server().await;
    let submitted = post(&server, "ann", "/v1/jobs", json!({ "queue": "q", "kind": "k" })).await;
    assert_eq!(submitted.status(), StatusCode::CREATED);
    let claim = json!({ "worker_id": "w", "queues": ["q"], "request_id": "r" });
    for (who, jobs) in [("one", 1), ("two", 0), ("one", 1)] {
        let claimed: Value = post(&server, who, "/v1/claims", claim.clone()).await.json().await.expect("JSON");
        assert_eq!(claimed["jobs"].as_array().map(Vec::len), Some(jobs), "{who}");
    }
}

#[tokio::test]
async fn no_worker_calls_itself_by_a_name_under_which_the_system_acts() {
    let server = server().await;
    for name in RESERVED_ACTORS.into_iter().chain(["leasehold.x"]) {
        let claim = json!({ "worker_id": name, "queues": ["q"] });
        let refused = problem(post(&server, "one", "/v1/claims", claim).await).await;
        assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, "worker_id"), "{name}");
        let waits = post(&server, "one", &format!("/v1/workers/{name}/recalls"), json!({ "leases": [] })).await;
        assert_eq!(waits.status(), StatusCode::UNPROCESSABLE_ENTITY, "{name}");
    }
}

/// A change: its method, path and body, and the events of the audit that follow from it, the newest first.
type Made = (Method, String, Option<Value>, &'static [&'static str]);

#[tokio::test]
async fn every_change_that_is_no_jobs_is_in_the_audit() {
    let server = server().await;
    let hook = json!({ "url": "https://example.org:8443/services/hidden?key=hidden" });
    let subscription: Value = post(&server, "root-token", "/v1/subscriptions", hook).await.json().await.expect("JSON");
    let job = json!({ "queue": "q", "kind": "k", "payload": { "env": { "KEY": "hidden" } } });
    let job: Value = post(&server, "root-token", "/v1/jobs", job).await.json().await.expect("JSON");
    let id = job["id"].as_str().expect("an id");
    let subscription = format!("/v1/subscriptions/{}", subscription["id"].as_str().expect("an id"));
    let schedule = || {
        let action = json!({ "type": "http", "url": "https://example.org/", "headers": { "key": "hidden" } });
        Some(json!({ "action": action, "period": { "cron": "@daily" } }))
    };
    let all = |reason: Option<&str>| Some(json!({ "filter": { "ids": ["s"] }, "reason": reason, "dry_run": false }));
    let (put, patch, delete, post_to, get) = (Method::PUT, Method::PATCH, Method::DELETE, Method::POST, Method::GET);
    let changes: Vec<Made> = vec![
        (put.clone(), "/v1/limits/queue/q".into(), Some(json!({ "max_concurrent": 5 })), &["limit_set"]),
        (delete.clone(), "/v1/limits/queue/q".into(), None, &["limit_removed"]),
        (post_to.clone(), "/v1/queues/q/pause".into(), Some(json!({ "reason": "a test" })), &["queue_paused"]),
        (post_to.clone(), "/v1/queues/q/resume".into(), None, &["queue_resumed"]),
        (patch, "/v1/queues/q".into(), Some(json!({ "fairness": "owner" })), &["queue_changed"]),
        (post_to.clone(), format!("{subscription}/enable"), None, &["subscription_enabled"]),
        (post_to.clone(), format!("{subscription}/secret"), None, &["subscription_secret_changed"]),
        (delete.clone(), subscription.clone(), None, &["subscription_removed"]),
        (get.clone(), "/v1/admin/signing-key".into(), None, &["signing_key_read"]),
        (put, "/v1/schedules/s".into(), schedule(), &["schedule_stored"]),
        (get.clone(), "/v1/schedules/s?reveal=true".into(), None, &["schedule_revealed"]),
        (post_to.clone(), "/v1/schedules/s/pause".into(), None, &["schedule_paused"]),
        (post_to.clone(), "/v1/schedules/s/resume".into(), None, &["schedule_resumed"]),
        (post_to.clone(), "/v1/schedules/pause".into(), all(Some("a test")), &["schedules_paused"]),
        (post_to.clone(), "/v1/schedules/resume".into(), all(None), &["schedules_resumed"]),
        (post_to.clone(), "/v1/schedules/remove".into(), all(None), &["schedules_removed"]),
        (get.clone(), format!("/v1/jobs/{id}?reveal=true"), None, &["jobs_revealed"]),
        (get, "/v1/jobs/export?queue=q&fields=id&reveal=true".into(), None, &["jobs_revealed"]),
        (delete, "/v1/subscriptions/none".into(), None, &["subscription_removed", "subscription_removed"]),
    ];
    let mut expected = vec!["subscription_made".to_owned()];
    for (method, path, body, events) in changes {
        let answer = ask(&server, "root-token", method.clone(), &path, body).await;
        let is_refused = events.len() == 2;
        assert_eq!(answer.status().is_success(), !is_refused, "{method} {path}: {:?}", answer.text().await);
        expected.splice(0..0, events.iter().map(|event| (*event).to_owned()));
        let audit = read(&server, "/v1/audit").await;
        let items = audit["items"].as_array().expect("a list");
        let found: Vec<&str> = items.iter().filter_map(|item| item["event"].as_str()).collect();
        assert_eq!(found, expected, "{method} {path}");
        assert_eq!((&items[0]["actor"], &items[0]["job"]), (&"root-token".into(), &Value::Null));
        assert_eq!(items[0]["change"]["refused"], is_refused);
        assert!(!audit.to_string().contains("hidden"), "{audit}");
    }
    let lines =
        r#"{"id": "t", "action": {"type": "http", "url": "https://example.org/"}, "period": {"cron": "@daily"}}"#;
    let request = reqwest::Client::new().post(server.url("/v1/schedules/bulk")).bearer_auth("secret-ann").body(lines);
    let stored = request.header("content-type", "application/x-ndjson").send().await.expect("an answer");
    assert_eq!(stored.json::<Value>().await.expect("JSON")["items"][0]["status"], 201);
    let found = read(&server, "/v1/audit?event=schedule_stored&actor=ann").await;
    assert_eq!((found["items"].as_array().map(Vec::len), &found["items"][0]["change"]["of"]), (Some(1), &"t".into()));
    let made = read(&server, "/v1/audit?event=subscription_made").await;
    assert_eq!(made["items"][0]["change"]["of"], "https://example.org:8443");
    let revealed = read(&server, "/v1/audit?event=jobs_revealed").await;
    let of = |index: usize| &revealed["items"][index]["change"];
    assert_eq!((&of(1)["of"], &of(0)["of"]), (&id.into(), &Value::Null));
    assert!(of(0)["to"].as_str().is_some_and(|to| to.contains(r#"["queue","q"]"#)), "{revealed}");
    let limits = read(&server, "/v1/audit?event=limit_set,limit_removed").await;
    assert_eq!(
        limits["items"][1]["change"],
        json!({ "of": "queue:q", "to": "{\"max_concurrent\":5}", "refused": false })
    );
}

async fn send_lines(server: &Server, who: &str, schedules: &[Value]) -> Vec<Value> {
    let lines: String = schedules.iter().map(|schedule| format!("{schedule}\n")).collect();
    let call = reqwest::Client::new().post(server.url("/v1/schedules/bulk")).bearer_auth(format!("secret-{who}"));
    let answer = call.header("content-type", "application/x-ndjson").body(lines).send().await.expect("an answer");
    let items: Value = answer.json().await.expect("JSON");
    items["items"].as_array().expect("a list").iter().map(|item| item["status"].clone()).collect()
}

#[tokio::test]
async fn what_changes_no_schedule_leaves_no_entry() {
    let server = server().await;
    let schedule = |id: &str, cron: &str| {
        let action = json!({ "type": "http", "url": "https://example.org/" });
        json!({ "id": id, "action": action, "period": { "cron": cron } })
    };
    let (daily, weekly) = (schedule("s", "@daily"), schedule("s", "@weekly"));
    let entries = async || {
        let audit = read(&server, "/v1/audit?limit=1000").await;
        audit["items"].as_array().map(Vec::len).expect("a list")
    };
    let (put, delete, post_to) = (Method::PUT, Method::DELETE, Method::POST);
    // Each with the status, and the number of entries that follow from it.
    let calls = [
        (&put, "/v1/schedules/s", Some(daily.clone()), 201, 1),
        (&put, "/v1/schedules/s", Some(daily.clone()), 200, 0),
        (&post_to, "/v1/schedules", Some(daily.clone()), 200, 0),
        (&post_to, "/v1/schedules", Some(weekly.clone()), 409, 0),
        (&put, "/v1/schedules/s", Some(schedule("s", "0 0 31 2 *")), 422, 0),
        (&post_to, "/v1/schedules/s/resume", None, 200, 0),
        (&post_to, "/v1/schedules/s/pause", None, 200, 1),
        (&post_to, "/v1/schedules/s/pause", None, 200, 0),
        (&delete, "/v1/schedules/made-up", None, 404, 0),
        (&post_to, "/v1/schedules/made-up/pause", None, 404, 0),
        (&post_to, "/v1/schedules/made-up/resume", None, 404, 0),
        (&put, "/v1/schedules/s", Some(weekly.clone()), 200, 1),
    ];
    for who in ["ann", "root-token"] {
        let mut expected = entries().await;
        for (method, path, body, status, more) in &calls {
            let answer = ask(&server, who, (*method).clone(), path, body.clone()).await;
            assert_eq!(answer.status().as_u16(), *status, "{who}: {method} {path}");
            expected += more;
            assert_eq!(entries().await, expected, "{who}: {method} {path}");
        }
        let other = schedule("other", "@daily");
        let lines = [weekly.clone(), other.clone(), schedule("no", "0 0 31 2 *")];
        for (statuses, more) in [([200, 201, 422], 1), ([200, 200, 422], 0)] {
            assert_eq!(send_lines(&server, who, &lines).await, statuses, "{who}");
            expected += more;
            assert_eq!(entries().await, expected, "{who}");
        }
        // Of several lines with one id the last counts.
        assert_eq!(send_lines(&server, who, &[other, schedule("other", "@weekly")]).await, [200, 200], "{who}");
        let last = read(&server, "/v1/schedules/other").await;
        assert_eq!(last["period"]["cron"], "@weekly", "{who}");
        for id in ["s", "other"] {
            let removed = ask(&server, who, Method::DELETE, &format!("/v1/schedules/{id}"), None).await;
            assert_eq!(removed.status(), StatusCode::NO_CONTENT);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_elasticsearch_names_and_changes_are_kept_as_well() {
    let engine = engines::elasticsearch().await;
    let server = server_on(Some(engine.store())).await;
    let id = claimed(&server).await;
    let own = json!({ "worker_id": "w", "fence": 1 });
    let refused = problem(post(&server, "two", &format!("/v1/jobs/{id}/complete"), own.clone()).await).await;
    assert_eq!(refused.code, "foreign_lease");
    assert_eq!(post(&server, "one", &format!("/v1/jobs/{id}/complete"), own).await.status(), StatusCode::OK);
    let job = read(&server, &format!("/v1/jobs/{id}")).await;
    assert_eq!((&job["history"][2]["actor"], &job["history"][2]["worker_id"]), (&"one".into(), &"w".into()));
    let limit = Some(json!({ "max_concurrent": 5 }));
    let set = ask(&server, "root-token", Method::PUT, "/v1/limits/queue/q", limit).await;
    assert_eq!(set.status(), StatusCode::OK);
    let found = async || {
        loop {
            let found = read(&server, "/v1/audit?event=limit_set&actor=root-token").await;
            if found["items"][0]["change"]["of"] == "queue:q" {
                return found["items"][0]["id"].clone();
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(SOON, found()).await.expect("the audit has it once searches see it");
}

#[tokio::test]
async fn what_is_denied_is_counted_and_never_written() {
    let server = server().await;
    let denied: [(&str, Method, &str, Option<Value>); 6] = [
        ("nobody", Method::PUT, "/v1/limits/queue/q", Some(json!({ "max_concurrent": 5 }))),
        ("one", Method::PUT, "/v1/limits/queue/q", Some(json!({ "max_concurrent": 5 }))),
        ("ann", Method::POST, "/v1/queues/q/pause", None),
        ("ann", Method::GET, "/v1/admin/signing-key", None),
        ("one", Method::DELETE, "/v1/schedules/s", None),
        ("two", Method::POST, "/v1/subscriptions", Some(json!({ "url": "https://example.org/" }))),
    ];
    for (who, method, path, body) in denied {
        let answer = ask(&server, who, method, path, body).await;
        assert!([401, 403].contains(&answer.status().as_u16()), "{who} {path}");
    }
    assert_eq!(read(&server, "/v1/audit").await["items"], json!([]));
    let metrics = ask(&server, "root-token", Method::GET, "/metrics", None).await.text().await.expect("text");
    for code in ["unauthorized", "forbidden"] {
        let line = format!("leasehold_denied_calls_total{{code=\"{code}\"}} ");
        let count = metrics.lines().find_map(|found| found.strip_prefix(&line)).expect("the series");
        assert!(count.parse::<f64>().is_ok_and(|count| count >= 1.0), "{code}: {count}");
    }
}
