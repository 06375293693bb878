//! Who may call what.

use std::collections::BTreeSet;

use leasehold::api::access::{Access, Role, Token, token_hash};
use leasehold::job::Actor;
use leasehold::wire::SubmitJob;
use serde_json::Value;

use super::server::{Server, Setup, claim, problem};

/// The routes that anyone may call.
const PUBLIC: [&str; 3] = ["/livez", "/readyz", "/openapi.json"];

/// A server with a token for each role, which is `secret-` and the role.
async fn guarded() -> Server {
    let token = |role: Role| Token {
        name: Actor::new(format!("{}-token", role.as_str())).expect("a name"),
        roles: BTreeSet::from([role]),
        sha256: token_hash(&format!("secret-{}", role.as_str())),
    };
    let tokens = [Role::Read, Role::Submit, Role::Work, Role::Admin].map(token).to_vec();
    Server::start_with(Setup { access: Access::new(tokens).expect("tokens"), ..Setup::default() }).await
}

#[tokio::test]
async fn every_route_but_the_public_ones_needs_a_token() {
    let server = guarded().await;
    let http = reqwest::Client::new();
    let document: Value = reqwest::get(server.url("/openapi.json")).await.expect("public").json().await.expect("json");
    let mut guarded = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("operations").keys() {
            let method = reqwest::Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            let url = server.url(&path.replace("{id}", "x"));
            let answer = http.request(method.clone(), &url).send().await.expect("an answer");
            if PUBLIC.contains(&path.as_str()) {
                assert_eq!(answer.status(), 200, "{path}");
                continue;
            }
            guarded += 1;
            assert!(answer.headers()["www-authenticate"].to_str().expect("text").starts_with("Bearer"));
            assert_eq!(problem(answer).await.code, "unauthorized", "{method} {path}");
            let wrong = http.request(method.clone(), &url).bearer_auth("secret").send().await.expect("an answer");
            assert_eq!(problem(wrong).await.status, 401, "{method} {path}");
        }
    }
    assert!(guarded > 20, "{guarded}");
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
    assert_eq!(submitted.history[0].actor.as_str(), "submit-token", "the token's name is the actor");
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

    let guarded = guarded().await;
    let request = http.get(guarded.url("/v1/jobs")).header("host", "jobs.example").bearer_auth("secret-read");
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.status(), 200, "with tokens, a name of its own is right");
}
