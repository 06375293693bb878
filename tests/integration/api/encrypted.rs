//! What lies in the indices of Elasticsearch, where Kibana's users read: with keys, nothing that is secret.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold::job::JobId;
use leasehold::store::elasticsearch::{ConnectError, ElasticsearchOptions, ElasticsearchStore, EncryptionKeys};
use leasehold::store::{Store, StoreError};
use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::server::{SOON, Server, Setup};
use crate::engines::refresh;
use crate::servers::{self, IndexSet};
use crate::store::elasticsearch::{connect, patient};

const ONE: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const OTHER: &str = "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=";

/// The words of the secrets that are submitted, each in a place of its own.
const WORDS: [&str; 8] = [
    "word-of-the-environment",
    "word-of-a-long-environment",
    "word-of-the-receiver",
    "word-of-the-subscription",
    "word-of-the-environment-of-a-schedule",
    "word-of-the-receiver-of-a-schedule",
    "word-of-the-header-of-a-schedule",
    "word-of-the-query-of-a-schedule",
];

/// The options for these indices, with these keys.
fn options(set: &IndexSet, lines: &[&str]) -> ElasticsearchOptions {
    let keys = EncryptionKeys::parse(&lines.join("\n"));
    ElasticsearchOptions { encryption_keys: keys.unwrap_or_default(), ..patient(set.url(), set.prefix()) }
}

async fn open(set: &IndexSet, lines: &[&str]) -> Arc<dyn Store> {
    Arc::new(connect(options(set, lines)).await)
}

async fn refused(set: &IndexSet, lines: &[&str]) -> String {
    loop {
        match ElasticsearchStore::connect(options(set, lines)).await {
            Ok(_) => panic!("opened with {lines:?}"),
            Err(ConnectError::NotYet(_)) => {}
            Err(error @ ConnectError::Refused { .. }) => return error.to_string(),
        }
    }
}

/// The names of keys.
fn ids(lines: &[&str]) -> Vec<String> {
    EncryptionKeys::parse(&lines.join("\n")).expect("keys").ids().map(str::to_owned).collect()
}

async fn serve(store: &Arc<dyn Store>) -> Server {
    Server::start_with(Setup {
        store: Some(Arc::clone(store)),
        is_notifying: true,
        is_audited: true,
        ..Setup::default()
    })
    .await
}

async fn end(server: Server) {
    server.shut_down();
    server.ended().await;
}

async fn call(server: &Server, method: Method, path: &str, body: Option<Value>) -> Value {
    let call = Client::new().request(method, server.url(path));
    let call = body.iter().fold(call, |call, body| call.json(body));
    let answer = call.send().await.expect("an answer");
    let (status, text) = (answer.status(), answer.text().await.expect("text"));
    assert!(status.is_success(), "{path}: {status}: {text}");
    serde_json::from_str(&text).unwrap_or_default()
}

async fn post(server: &Server, path: &str, body: Value) -> Value {
    call(server, Method::POST, path, Some(body)).await
}

/// Everything that a search finds in all indices, as text.
async fn everything(set: &IndexSet) -> String {
    found_in(set, "*").await
}

/// Everything that a search finds in these indices.
async fn found_in(set: &IndexSet, indices: &str) -> String {
    // The store refreshes its own indices; the audit's come by themselves, and later.
    let refreshed = Client::new().post(format!("{}/{}{indices}/_refresh", set.url(), set.prefix())).send().await;
    assert!(refreshed.expect("an answer").status().is_success());
    let path = format!("{}/{}{indices}/_search?size=10000&expand_wildcards=all", set.url(), set.prefix());
    reqwest::get(path).await.expect("an answer").text().await.expect("text")
}

/// Submits secrets to a server over these indices, which has these keys, and returns them with all that lies there.
async fn submit_secrets(set: &IndexSet, lines: &[&str]) -> (Vec<String>, String) {
    let store = open(set, lines).await;
    let server = serve(&store).await;
    let [env, long, receiver, subscription, of_schedule, receiver_of_schedule, header, query] = WORDS;
    let hook = |word: &str| format!("http://127.0.0.1:1/{word}");
    let command = |word: &str, rest: &str| json!({"command": ["true"], "env": {"TOKEN": word, "REST": rest}});
    let notify = json!([{"url": hook(receiver), "events": ["failed"]}]);
    let job = json!({"id": "short", "queue": "q", "kind": "shell", "payload": command(env, ""), "notify": notify});
    post(&server, "/v1/jobs", job).await;
    let job = json!({"id": "long", "queue": "long", "kind": "shell", "payload": command(long, &"x".repeat(100_000))});
    post(&server, "/v1/jobs", job).await;
    let subscribed = post(&server, "/v1/subscriptions", json!({"url": hook(subscription), "events": ["failed"]})).await;
    let job = json!({"queue": "q", "kind": "shell", "payload": command(of_schedule, "")});
    let receivers = json!([{"url": hook(receiver_of_schedule)}]);
    let schedule = json!({"id": "a", "period": {"cron": "0 0 1 1 *"}, "notify": receivers,
        "action": {"type": "job", "job": job}});
    post(&server, "/v1/schedules", schedule).await;
    let called = json!({"type": "http", "url": format!("http://127.0.0.1:1/?{query}"), "method": "POST",
        "headers": {"authorization": header}});
    post(&server, "/v1/schedules", json!({"id": "b", "period": {"cron": "0 0 1 1 *"}, "action": called})).await;

    // The failure is delivered to the receiver and the subscription, with which jobs of the system's own are made.
    for (queue, word) in [("q", env), ("long", long)] {
        let claim = json!({"worker_id": "w", "queues": [queue]});
        let claimed = post(&server, "/v1/claims", claim).await["jobs"][0].clone();
        assert_eq!(claimed["payload"]["env"]["TOKEN"], word, "the worker has it as it was");
        let failed = json!({"worker_id": "w", "fence": claimed["fence"],
            "error": {"code": "exit", "message": "1"}, "retryable": false});
        post(&server, &format!("/v1/jobs/{}/fail", claimed["id"].as_str().expect("an id")), failed).await;
    }
    let signing = call(&server, Method::GET, "/v1/admin/signing-key", None).await;
    let secrets = [&subscribed["secret"], &signing["secret"]].map(|secret| secret.as_str().expect("text").to_owned());
    let deadline = Instant::now() + SOON;
    let found = loop {
        refresh(&*store).await;
        let found = everything(set).await;
        // One delivery of each job goes to the subscription, and one of the first to its receiver.
        let deliveries = found.matches("\"queue\":\"leasehold.notifications\"").count();
        if deliveries >= 3 || Instant::now() > deadline {
            break found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    end(server).await;
    (WORDS.map(str::to_owned).into_iter().chain(secrets).collect(), found)
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_key_nothing_that_is_secret_is_found_in_any_index_and_without_one_all_of_it() {
    let set = servers::elasticsearch().await.index_set().await;
    let (secrets, found) = submit_secrets(&set, &[]).await;
    assert!(found.contains("\"timed_out\":false"), "{found}");
    for secret in &secrets {
        assert!(found.contains(secret.as_str()), "{secret} is in a place that is looked at");
    }
    set.give_back();

    for server in [servers::elasticsearch().await, servers::opensearch().await] {
        let set = server.index_set().await;
        let (secrets, found) = submit_secrets(&set, &[ONE]).await;
        let is_audited = found.contains("subscription-made") && found.contains("http://127.0.0.1:1\"");
        assert!(
            is_audited && found.contains("encrypted:1:") && found.contains("\"short\"") && found.contains("\"long\"")
        );
        for secret in &secrets {
            let inner = secret.strip_prefix("whsec_").unwrap_or(secret);
            for form in [secret.clone(), inner.to_owned(), STANDARD.encode(secret)] {
                assert!(!found.contains(&form), "{secret}");
            }
        }
        set.give_back();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_a_key_encrypts_the_subscriptions_and_settings_that_were_written_before() {
    let set = servers::elasticsearch().await.index_set().await;
    let store = open(&set, &[]).await;
    let server = serve(&store).await;
    let receiver = json!({"url": "http://127.0.0.1:1/word-of-the-receiver", "events": ["failed"]});
    let subscribed = post(&server, "/v1/subscriptions", receiver).await;
    let read = async |server: &Server| {
        let signing = call(server, Method::GET, "/v1/admin/signing-key", None).await["secret"].clone();
        (signing, call(server, Method::GET, "/v1/subscriptions", None).await)
    };
    let before = read(&server).await;
    let secrets = [&subscribed["secret"], &before.0].map(|secret| secret.as_str().expect("text").to_owned());
    refresh(&*store).await;
    end(server).await;
    let found = found_in(&set, "records").await;
    assert!(secrets.iter().all(|secret| found.contains(secret.as_str())), "{found}");

    for keys in [&[ONE][..], &[OTHER, ONE], &[ONE, OTHER]] {
        let store = open(&set, keys).await;
        refresh(&*store).await;
        let found = found_in(&set, "records").await;
        for word in secrets.iter().map(String::as_str).chain(["word-of-the-receiver"]) {
            assert!(!found.contains(word), "{keys:?}: {found}");
        }
        let ids = ids(keys);
        let of = |id: &String| found.matches(&format!("encrypted:1:{id}:")).count();
        assert!(of(&ids[0]) >= 2 && ids[1..].iter().all(|former| of(former) == 0), "{keys:?}: {found}");
        let server = serve(&store).await;
        assert_eq!(read(&server).await, before, "{keys:?}");
        end(server).await;
    }
    set.give_back();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_rotated_and_who_lacks_one_starts_on_nothing_and_overwrites_nothing() {
    let set = servers::elasticsearch().await.index_set().await;
    let payload = json!({"command": "true", "env": {"TOKEN": "s3cret"}});
    let job = |id: &str| json!({"id": id, "queue": "q", "kind": "shell", "payload": payload});
    // Written before there was a key: it is read, and encrypted when it is written next.
    let server = serve(&open(&set, &[]).await).await;
    post(&server, "/v1/jobs", job("before")).await;
    end(server).await;
    let server = serve(&open(&set, &[ONE]).await).await;
    for id in ["kept", "written"] {
        post(&server, "/v1/jobs", job(id)).await;
    }
    let before = call(&server, Method::GET, "/v1/jobs/before?reveal=true", None).await;
    assert_eq!(before["payload"]["env"]["TOKEN"], "s3cret");
    post(&server, "/v1/jobs/before/hold", json!({"reason": "later"})).await;
    end(server).await;

    let server = serve(&open(&set, &[OTHER, ONE]).await).await;
    post(&server, "/v1/jobs/written/hold", json!({"reason": "later"})).await;
    for id in ["before", "kept", "written"] {
        let job = call(&server, Method::GET, &format!("/v1/jobs/{id}?reveal=true"), None).await;
        assert_eq!(job["payload"]["env"]["TOKEN"], "s3cret", "{id}");
    }
    end(server).await;
    assert!(!everything(&set).await.contains("s3cret"));

    let [former] = &ids(&[ONE])[..] else { panic!("one key") };
    let [later] = &ids(&[OTHER])[..] else { panic!("one key") };
    let (of_other, of_none) = (refused(&set, &[OTHER]).await, refused(&set, &[]).await);
    assert!(of_other.contains(former) && of_other.contains("--secrets-key-file"), "{of_other}");
    assert!(of_none.contains(former), "{of_none}");
    assert!(refused(&set, &[ONE]).await.contains(later));

    // Said to be lost, it encrypts what nobody reads any more, and nobody writes over it.
    let lost = format!("lost {former}");
    let store = open(&set, &[OTHER, &lost]).await;
    let server = serve(&store).await;
    let written = call(&server, Method::GET, "/v1/jobs/written?reveal=true", None).await;
    assert_eq!(written["payload"]["env"]["TOKEN"], "s3cret");
    let source = || async {
        let path = format!("{}/{}jobs/_doc/kept", set.url(), set.prefix());
        reqwest::get(path).await.expect("an answer").json::<Value>().await.expect("JSON")
    };
    let kept = source().await;
    let id = JobId::new("kept").expect("an id");
    match store.get(std::slice::from_ref(&id)).await {
        Err(StoreError::Unreadable { why, .. }) => assert!(why.contains(former.as_str()), "{why}"),
        other => panic!("{other:?}"),
    }
    for (method, path, body) in [
        (Method::GET, "/v1/jobs/kept", None),
        (Method::POST, "/v1/jobs", Some(job("kept"))),
        (Method::POST, "/v1/jobs/kept/cancel", Some(json!({}))),
        (Method::DELETE, "/v1/jobs/kept", None),
    ] {
        let call = Client::new().request(method.clone(), server.url(path));
        let answer = body.iter().fold(call, |call, body| call.json(body)).send().await.expect("an answer");
        let (status, said) = (answer.status(), answer.text().await.expect("text"));
        assert!(!status.is_success() && !said.contains("encrypted:1:"), "{method} {path}: {status}: {said}");
    }
    assert_eq!(source().await, kept);
    end(server).await;
    set.give_back();
}
