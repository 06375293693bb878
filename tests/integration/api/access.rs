//! Who may call what.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::stream;
use leasehold::api::access::{Access, Role, Token, token_hash};
use leasehold::job::Actor;
use leasehold::wire::SubmitJob;
use serde_json::Value;
use tokio::time::timeout;

use super::members::{NOWHERE, pair_for};
use super::server::{SOON, Server, Setup, claim, problem};

const ROLES: [Role; 4] = [Role::Read, Role::Submit, Role::Work, Role::Admin];

/// A server with a token for each role, which is `secret-` and the role.
async fn guarded() -> Server {
    Server::start_with(Setup { access: of_each_role(), ..Setup::default() }).await
}

pub(super) fn of_each_role() -> Access {
    let token = |role: Role| Token {
        name: Actor::new(format!("{}-token", role.as_str())).expect("a name"),
        roles: BTreeSet::from([role]),
        sha256: token_hash(&format!("secret-{}", role.as_str())),
        may_edit_others: false,
    };
    Access::new(ROLES.map(token).to_vec()).expect("tokens")
}

/// Who may make which call: the role it needs, and none where anyone may. A route that is not here fails the tests
/// below, which go by the router's own list.
pub(super) const CALLS: [(&str, Option<Role>); 84] = [
    ("DELETE /v1/jobs/{id}", Some(Role::Admin)),
    ("DELETE /v1/limits/{scope}/{name}", Some(Role::Admin)),
    ("DELETE /v1/schedules/{id}", Some(Role::Submit)),
    ("DELETE /v1/subscriptions/{id}", Some(Role::Admin)),
    ("GET /livez", None),
    ("GET /metrics", Some(Role::Read)),
    ("GET /openapi.json", None),
    ("GET /readyz", None),
    ("GET /v1/admin/orphans", Some(Role::Admin)),
    ("GET /v1/admin/signing-key", Some(Role::Admin)),
    ("GET /v1/audit", Some(Role::Read)),
    ("GET /v1/cluster", Some(Role::Read)),
    ("GET /v1/events", Some(Role::Read)),
    ("GET /v1/fields", Some(Role::Read)),
    ("GET /v1/health", Some(Role::Read)),
    ("GET /v1/jobs", Some(Role::Read)),
    ("GET /v1/jobs/count", Some(Role::Read)),
    ("GET /v1/jobs/export", Some(Role::Read)),
    ("GET /v1/jobs/stats", Some(Role::Read)),
    ("GET /v1/jobs/{id}", Some(Role::Read)),
    ("GET /v1/jobs/{id}/attempts/{n}/output", Some(Role::Read)),
    ("GET /v1/jobs/{id}/explain", Some(Role::Read)),
    ("GET /v1/jobs/{id}/output", Some(Role::Read)),
    ("GET /v1/limits", Some(Role::Read)),
    ("GET /v1/limits/{scope}/{name}", Some(Role::Read)),
    ("GET /v1/me", Some(Role::Read)),
    ("GET /v1/queues", Some(Role::Read)),
    ("GET /v1/queues/{name}", Some(Role::Read)),
    ("GET /v1/schedules", Some(Role::Read)),
    ("GET /v1/schedules/{id}", Some(Role::Read)),
    ("GET /v1/schedules/{id}/next", Some(Role::Read)),
    ("GET /v1/schedules/{id}/triggers", Some(Role::Read)),
    ("GET /v1/subscriptions", Some(Role::Admin)),
    ("GET /v1/subscriptions/{id}", Some(Role::Admin)),
    ("GET /v1/workers", Some(Role::Read)),
    ("GET /v1/workers/{worker_id}", Some(Role::Read)),
    ("PATCH /v1/jobs/{id}", Some(Role::Submit)),
    ("PATCH /v1/queues/{name}", Some(Role::Admin)),
    ("POST /v1/admin/cluster", Some(Role::Admin)),
    ("POST /v1/admin/jobs/cancel", Some(Role::Admin)),
    ("POST /v1/admin/jobs/release", Some(Role::Admin)),
    ("POST /v1/admin/jobs/retry", Some(Role::Admin)),
    ("POST /v1/admin/jobs/delete", Some(Role::Admin)),
    ("POST /v1/admin/jobs/edit", Some(Role::Admin)),
    ("POST /v1/admin/jobs/hold", Some(Role::Admin)),
    ("POST /v1/admin/jobs/rerun", Some(Role::Admin)),
    ("POST /v1/admin/jobs/run-now", Some(Role::Admin)),
    ("POST /v1/admin/jobs/unhold", Some(Role::Admin)),
    ("POST /v1/admin/jobs/{id}/release", Some(Role::Admin)),
    ("POST /v1/claims", Some(Role::Work)),
    ("POST /v1/completions", Some(Role::Work)),
    ("POST /v1/heartbeats", Some(Role::Work)),
    ("POST /v1/jobs", Some(Role::Submit)),
    ("POST /v1/jobs/bulk", Some(Role::Submit)),
    ("POST /v1/jobs/{id}/cancel", Some(Role::Submit)),
    ("POST /v1/jobs/{id}/complete", Some(Role::Work)),
    ("POST /v1/jobs/{id}/fail", Some(Role::Work)),
    ("POST /v1/jobs/{id}/heartbeat", Some(Role::Work)),
    ("POST /v1/jobs/{id}/output", Some(Role::Work)),
    ("POST /v1/jobs/{id}/release", Some(Role::Work)),
    ("POST /v1/jobs/{id}/retry", Some(Role::Submit)),
    ("POST /v1/jobs/{id}/hold", Some(Role::Submit)),
    ("POST /v1/jobs/{id}/rerun", Some(Role::Submit)),
    ("POST /v1/jobs/{id}/run-now", Some(Role::Submit)),
    ("POST /v1/jobs/{id}/unhold", Some(Role::Submit)),
    ("POST /v1/outputs", Some(Role::Work)),
    ("POST /v1/queues/{name}/pause", Some(Role::Admin)),
    ("POST /v1/queues/{name}/resume", Some(Role::Admin)),
    ("POST /v1/schedules", Some(Role::Submit)),
    ("POST /v1/schedules/bulk", Some(Role::Submit)),
    ("POST /v1/schedules/pause", Some(Role::Admin)),
    ("POST /v1/schedules/preview", Some(Role::Read)),
    ("POST /v1/schedules/remove", Some(Role::Admin)),
    ("POST /v1/schedules/resume", Some(Role::Admin)),
    ("POST /v1/schedules/{id}/backfill", Some(Role::Submit)),
    ("POST /v1/schedules/{id}/pause", Some(Role::Submit)),
    ("POST /v1/schedules/{id}/resume", Some(Role::Submit)),
    ("POST /v1/schedules/{id}/run", Some(Role::Submit)),
    ("POST /v1/subscriptions", Some(Role::Admin)),
    ("POST /v1/subscriptions/{id}/enable", Some(Role::Admin)),
    ("POST /v1/subscriptions/{id}/secret", Some(Role::Admin)),
    ("POST /v1/workers/{worker_id}/recalls", Some(Role::Work)),
    ("PUT /v1/limits/{scope}/{name}", Some(Role::Admin)),
    ("PUT /v1/schedules/{id}", Some(Role::Submit)),
];

/// The calls that the router knows, each with the role that it needs.
async fn calls(server: &Server) -> Vec<(String, Option<Role>)> {
    let document: Value = reqwest::get(server.url("/openapi.json")).await.expect("public").json().await.expect("json");
    let paths = document["paths"].as_object().expect("paths");
    let of_path = |(path, item): (&String, &Value)| {
        let methods: Vec<String> = item.as_object().expect("operations").keys().cloned().collect();
        let path = path.clone();
        methods.into_iter().map(move |method| format!("{} {path}", method.to_uppercase()))
    };
    let needs = |call: String| match CALLS.iter().find(|(listed, _)| *listed == call) {
        Some((_, role)) => (call, *role),
        None => panic!("it is not said who may make the call {call}"),
    };
    paths.iter().flat_map(of_path).map(needs).collect()
}

/// Makes a call about nothing that there is, and without a body.
async fn make(server: &Server, call: &str, token: Option<&str>) -> reqwest::Response {
    let (method, path) = call.split_once(' ').expect("a method and a path");
    let path = ["{id}", "{name}", "{worker_id}"].iter().fold(path.to_owned(), |path, place| path.replace(place, "x"));
    let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
    let request = reqwest::Client::new().request(method, server.url(&path));
    let request = match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    request.send().await.expect("an answer")
}

#[tokio::test]
async fn every_call_that_the_table_lists_is_there_and_once() {
    let server = Server::start().await;
    let there: BTreeSet<String> = calls(&server).await.into_iter().map(|(call, _)| call).collect();
    assert_eq!(there, CALLS.iter().map(|(call, _)| (*call).to_owned()).collect());
    assert_eq!(there.len(), CALLS.len());
}

#[tokio::test]
async fn every_call_but_the_public_ones_needs_a_token_that_is_known() {
    let server = guarded().await;
    for (call, role) in calls(&server).await {
        for token in [None, Some("secret")] {
            let answer = make(&server, &call, token).await;
            if role.is_none() {
                assert_eq!(answer.status(), 200, "{call}");
                continue;
            }
            assert!(answer.headers()["www-authenticate"].to_str().expect("text").starts_with("Bearer"), "{call}");
            let refused = problem(answer).await;
            assert_eq!((refused.status, refused.code.as_str()), (401, "unauthorized"), "{call} with {token:?}");
        }
    }
}

#[tokio::test]
async fn every_call_is_open_to_its_role_and_to_administrators_and_to_no_other_role() {
    let server = guarded().await;
    for (call, needed) in calls(&server).await {
        for role in ROLES {
            let answer = make(&server, &call, Some(&format!("secret-{}", role.as_str()))).await;
            if needed.is_none_or(|needed| role == needed || role == Role::Admin) {
                assert!(![401, 403].contains(&answer.status().as_u16()), "{call} as {role}: {}", answer.status());
                continue;
            }
            let refused = problem(answer).await;
            assert_eq!((refused.status, refused.code.as_str()), (403, "forbidden"), "{call} as {role}");
        }
    }
}

#[tokio::test]
async fn a_role_allows_its_calls_and_no_others() {
    let server = guarded().await;
    let (reader, submitter) = (server.client_with(Some("secret-read")), server.client_with(Some("secret-submit")));
    let (worker, admin) = (server.client_with(Some("secret-work")), server.client_with(Some("secret-admin")));
    let job = SubmitJob::new("q", "k");
    for refused in [reader.submit(&job).await, worker.submit(&job).await] {
        let refused = refused.expect_err("refused");
        assert_eq!((refused.status(), refused.code()), (Some(403), Some("forbidden")));
        assert!(refused.to_string().contains("`submit`"), "{refused}");
    }
    let submitted = submitter.submit(&job).await.expect("submitted");
    let read = reader.job(&submitted.id).await.expect("the job");
    assert_eq!(read.history[0].actor.as_str(), "submit-token", "the token's name is the actor");
    assert_eq!(submitter.job(&submitted.id).await.expect_err("refused").status(), Some(403));
    assert_eq!(reader.job(&submitted.id).await.expect("the job").id, submitted.id);
    assert_eq!(reader.claim(&claim("q")).await.expect_err("refused").status(), Some(403));
    assert_eq!(worker.claim(&claim("q")).await.expect("claimed").jobs.len(), 1);
    let order = leasehold::wire::AdminRelease {
        reason: "so".to_owned(),
        then: leasehold::wire::Then::Requeue,
        expected_fence: None,
    };
    assert_eq!(worker.admin_release(&submitted.id, &order).await.expect_err("refused").status(), Some(403));
    let released = admin.admin_release(&submitted.id, &order).await.expect("released");
    assert_eq!(released.history.last().map(|entry| entry.actor.as_str()), Some("admin-token"));
    assert_eq!(admin.jobs(&Default::default()).await.expect("an administrator may do everything").items.len(), 1);
}

#[tokio::test]
async fn a_body_without_the_right_to_send_it_is_not_read() {
    let server = guarded().await;
    let request = reqwest::Client::new().post(server.url("/v1/jobs")).bearer_auth("secret-read").body("nonsense");
    assert_eq!(problem(request.send().await.expect("an answer")).await.code, "forbidden");
}

/// The body is announced and never comes: who reads it before it looks at the role waits for it.
#[tokio::test]
async fn a_member_that_does_not_lead_reads_no_body_without_the_right_to_send_it() {
    let [leader, follower] = pair_for(NOWHERE, &of_each_role()).await;
    let _manager = leader.take_office();
    leader.sees(1, Some(1));
    follower.sees(1, Some(1));
    let http = reqwest::Client::new();
    for (call, needed) in CALLS.iter().filter_map(|(call, role)| Some((*call, (*role)?))) {
        let (method, path) = call.split_once(' ').expect("a method and a path");
        if method == "GET" {
            continue;
        }
        for role in ROLES.into_iter().filter(|role| *role != needed && *role != Role::Admin) {
            let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
            let url = follower.url(&path.replace(['{', '}'], ""));
            let body = reqwest::Body::wrap_stream(stream::pending::<Result<Bytes, std::io::Error>>());
            let request = http.request(method, url).bearer_auth(format!("secret-{}", role.as_str())).body(body);
            let answer = timeout(SOON, request.send()).await.unwrap_or_else(|_| panic!("{call} as {role} is read"));
            let refused = problem(answer.expect("an answer")).await;
            assert_eq!((refused.status, refused.code.as_str()), (403, "forbidden"), "{call} as {role}");
        }
    }
}

#[tokio::test]
async fn a_browser_on_another_site_reaches_nothing_on_a_server_without_tokens() {
    let server = Server::start().await;
    let http = reqwest::Client::new();
    let submit = |name: &'static str, value: &'static str| {
        let request = http.post(server.url("/v1/jobs")).header(name, value).header("content-type", "application/json");
        request.body(r#"{"queue": "q", "kind": "k"}"#).send()
    };
    for (name, value) in [("host", "evil.example"), ("origin", "http://evil.example"), ("origin", "null")] {
        let refused = problem(submit(name, value).await.expect("an answer")).await;
        assert_eq!((refused.status, refused.code.as_str()), (403, "foreign_origin"), "{name}: {value}");
    }
    assert_eq!(submit("host", "localhost:7400").await.expect("an answer").status(), 201);
    // What an image, a link and the page itself have a browser send.
    let get = async |path: &str, fetch: [&str; 3]| {
        let names = ["sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest"];
        let request = http.get(server.url(path));
        let request = names.iter().zip(fetch).fold(request, |request, (name, value)| request.header(*name, value));
        request.send().await.expect("an answer").status().as_u16()
    };
    for (path, fetch, status) in [
        ("/v1/jobs?fields=payload", ["cross-site", "no-cors", "image"], 403),
        ("/v1/jobs", ["same-site", "navigate", "document"], 403),
        ("/metrics", ["cross-site", "navigate", "document"], 403),
        ("/jobs", ["cross-site", "navigate", "iframe"], 403),
        ("/jobs", ["cross-site", "navigate", "document"], 200),
        ("/v1/jobs", ["same-origin", "cors", "empty"], 200),
        ("/v1/jobs", ["none", "navigate", "document"], 200),
    ] {
        assert_eq!(get(path, fetch).await, status, "{path} {fetch:?}");
    }

    let guarded = guarded().await;
    let request = http.get(guarded.url("/v1/jobs")).header("host", "jobs.example").bearer_auth("secret-read");
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.status(), 200, "with tokens, a name of its own is right");
}
