//! The audit on servers whose older indices are blocked, as those are that are to stay as they are.

use leasehold::clock::Timestamp;
use leasehold::store::{AuditEntry, Store};
use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::elasticsearch::{connect, patient};
use crate::servers::{self, IndexSet};

const JANUARY: i64 = 1_893_456_000_000;
const FEBRUARY: i64 = JANUARY + 31 * 86_400_000;

async fn call(set: &IndexSet, method: Method, path: &str, body: Value) -> Value {
    let call = Client::new().request(method, format!("{}/{path}", set.url()));
    let call = if body.is_null() { call } else { call.json(&body) };
    let answer = call.send().await.expect("an answer");
    let (status, text) = (answer.status(), answer.text().await.expect("text"));
    assert!(status.is_success(), "{path}: {text}");
    serde_json::from_str(&text).expect("JSON")
}

/// Writes an entry as a process does that has just started.
async fn write(set: &IndexSet, id: &str, at: i64) -> Result<(), String> {
    let at = Timestamp::from_millis(at);
    let document = json!({ "@timestamp": at.to_rfc3339(), "event": { "id": id, "action": "limit-set" } });
    let Value::Object(document) = document else { unreachable!("an object") };
    let store = connect(patient(set.url(), set.prefix())).await;
    let written = store.append_audit(&[AuditEntry { id: id.to_owned(), at, document }]).await;
    store.close().await;
    written.map_err(|error| error.to_string())
}

async fn block(set: &IndexSet, index: &str, is_blocked: Option<bool>) {
    let settings = json!({ "index.blocks.read_only": is_blocked });
    call(set, Method::PUT, &format!("{index}/_settings"), settings).await;
}

/// The distribution that the tests run has no data streams.
#[tokio::test(flavor = "multi_thread")]
async fn a_month_that_is_blocked_keeps_no_entry_out_of_another() {
    let set = servers::elasticsearch().await.index_set().await;
    write(&set, "one", JANUARY).await.expect("written");
    let january = format!("{}audit-2030.01", set.prefix());
    block(&set, &january, Some(true)).await;
    write(&set, "two", FEBRUARY).await.expect("written");
    let refused = write(&set, "three", JANUARY).await.expect_err("it is blocked");
    assert!(refused.contains("read_only") && !refused.contains("privilege"), "{refused}");
    block(&set, &january, None).await;
    write(&set, "three", JANUARY).await.expect("written");
    set.give_back();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_index_of_a_stream_that_is_blocked_keeps_no_entry_out() {
    let set = servers::opensearch().await.index_set().await;
    write(&set, "one", JANUARY).await.expect("written");
    let stream = format!("{}audit", set.prefix());
    call(&set, Method::POST, &format!("{stream}/_rollover"), Value::Null).await;
    let found = call(&set, Method::GET, &format!("_data_stream/{stream}"), Value::Null).await;
    let index = |place: usize| found["data_streams"][0]["indices"][place]["index_name"].as_str().expect("a name");
    block(&set, index(0), Some(true)).await;
    write(&set, "two", FEBRUARY).await.expect("written");
    block(&set, index(1), Some(true)).await;
    let refused = write(&set, "three", FEBRUARY).await.expect_err("the one that is written to is blocked");
    assert!(!refused.contains("privilege"), "{refused}");
    for place in [0, 1] {
        block(&set, index(place), None).await;
    }
    write(&set, "three", FEBRUARY).await.expect("written");
    set.give_back();
}
