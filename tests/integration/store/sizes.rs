//! Writes that are long not for their bodies but for their labels, errors and reasons: no request is longer than the
//! server takes, and nobody pays for another's length.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Timestamp;
use leasehold::job::{Job, JobError, JobSpec};
use leasehold::store::elasticsearch::ElasticsearchOptions;
use leasehold::store::{AuditEntry, Store, StoreError, Write, WriteError, WriteResult};
use serde_json::{Value, json};

use super::Engine;
use super::elasticsearch::{Elasticsearch, connect, patient};
use super::sample::{NOW, at, counted, id, plain_spec, submit, submitted};
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::servers::{self, SearchServer};

/// Of the longest jobs, more than the 100 MB that a server takes in one request.
const JOBS: usize = 150;
/// The longest error, in bytes.
const ERROR: usize = 64 * 1024;
/// How many names of resources an index takes at least.
const NAMES: usize = 100;
/// A bound of something between the store and the server, in bytes.
const BOUND: usize = 1024 * 1024;
/// A character that takes six bytes in JSON.
const LONG: &str = "\u{1}";

fn labels() -> BTreeMap<String, String> {
    (0..64).map(|number| (format!("label-{number}"), LONG.repeat(1_000))).collect()
}

/// A job with as many labels as a job may have, and with as long an error.
fn long(number: usize) -> Arc<Job> {
    let spec = JobSpec { labels: labels(), ..plain_spec() };
    let error = JobError { code: "exit".to_owned(), message: LONG.repeat(ERROR) };
    Arc::new(Job { error: Some(error), ..submit(&format!("long-{number}"), spec, at(0), at(0)) })
}

fn creations(count: usize) -> Vec<Write> {
    (0..count).map(|number| Write::Create { job: long(number), bodies: vec![] }).collect()
}

fn refused(answers: Vec<WriteResult>) -> Vec<String> {
    answers.into_iter().filter_map(|answer| answer.err().map(|error| format!("{error:.200}"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn more_long_jobs_than_fit_into_a_request_are_written_and_with_them_a_short_one_on_elasticsearch() {
    more_long_jobs_than_fit_into_a_request_are_written_and_with_them_a_short_one(servers::elasticsearch().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_long_jobs_than_fit_into_a_request_are_written_and_with_them_a_short_one_on_opensearch() {
    more_long_jobs_than_fit_into_a_request_are_written_and_with_them_a_short_one(servers::opensearch().await).await;
}

async fn more_long_jobs_than_fit_into_a_request_are_written_and_with_them_a_short_one(server: &SearchServer) {
    // Patient: what is asked of the server is much, and the machine may be busy.
    let set = server.index_set().await;
    let store = connect(ElasticsearchOptions {
        urls: vec![server.url().to_owned()],
        index_prefix: set.prefix().to_owned(),
        request_timeout: Duration::from_secs(60),
        write_timeout: Duration::from_secs(300),
        ..ElasticsearchOptions::default()
    })
    .await;
    let short = submitted("short");
    let created = store.write(vec![Write::Create { job: short.clone(), bodies: vec![] }]).await.remove(0);
    let expected = created.expect("a new job is created");
    let beat = Write::Replace { job: counted(&short), expected, bodies: vec![] };
    let (answers, beat) = tokio::join!(store.write(creations(JOBS)), store.write(vec![beat]));
    assert_eq!(refused(beat), [""; 0], "the short one is written");
    assert_eq!(refused(answers), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_of_the_audit_that_are_long_together_are_kept() {
    let engine = Elasticsearch::fresh().await;
    let Value::Object(document) = json!({
        "@timestamp": Timestamp::from_millis(NOW).to_rfc3339(),
        "labels": labels(),
        "leasehold": { "job": { "id": "e".repeat(100) } },
    }) else {
        unreachable!("an object")
    };
    let entry =
        |number| AuditEntry { id: format!("{number}"), at: Timestamp::from_millis(NOW), document: document.clone() };
    let entries: Vec<AuditEntry> = (0..2 * JOBS).map(entry).collect();
    engine.store().append_audit(&entries).await.expect("the audit advances");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_something_on_the_way_finds_too_long_goes_in_pieces_and_only_what_is_too_long_by_itself_fails() {
    let server = servers::elasticsearch().await;
    let faults = Faults { one_in: 1, seed: 1, kinds: vec![Fault::Reset] };
    let proxy = FaultProxy::start(server.url(), faults).await;
    let set = server.index_set().await;
    let options = ElasticsearchOptions {
        urls: vec![proxy.url()],
        index_prefix: set.prefix().to_owned(),
        ..ElasticsearchOptions::default()
    };
    let store = connect(options).await;
    proxy.refuse_longer_than(BOUND);
    let mut writes = creations(10);
    let too_long = JobError { code: "exit".to_owned(), message: "e".repeat(BOUND) };
    let too_long = Arc::new(Job { error: Some(too_long), ..(*submitted("too-long")).clone() });
    writes.insert(3, Write::Create { job: too_long, bodies: vec![] });

    let answers = store.write(writes).await;

    let failed: Vec<usize> = (0..answers.len()).filter(|answer| answers[*answer].is_err()).collect();
    assert_eq!(failed, [3], "{:?}", refused(answers));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_names_of_resources_than_the_index_takes_are_refused_on_elasticsearch() {
    more_names_of_resources_than_the_index_takes_are_refused(servers::elasticsearch().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_names_of_resources_than_the_index_takes_are_refused_on_opensearch() {
    more_names_of_resources_than_the_index_takes_are_refused(servers::opensearch().await).await;
}

async fn more_names_of_resources_than_the_index_takes_are_refused(server: &SearchServer) {
    let indices = server.own_indices("names");
    let store = connect(patient(server.url(), indices.prefix())).await;
    let write = async |id: &str, names: std::ops::Range<usize>| {
        let resources = names.map(|name| (format!("resource-{name}"), 1)).collect();
        let job = submit(id, JobSpec { resources, ..plain_spec() }, at(0), at(0));
        store.write(vec![Write::Create { job: Arc::new(job), bodies: vec![] }]).await.remove(0)
    };
    // As many as the documentation promises, and then more than there is room for.
    for some in 0..NAMES / 10 {
        write(&format!("job-{some}"), 10 * some..10 * some + 10).await.expect("there is room");
    }
    let refused = write("too-many", NAMES..NAMES + 200).await.expect_err("there is no room");
    assert!(
        matches!(&refused, WriteError::Refused(StoreError::Unsupported(why)) if why.contains("names of resources")),
        "{refused:?}"
    );
    write("known", 0..10).await.expect("these are known");
    write("none", 0..0).await.expect("it has none");
    let found = store.get(&["job-3", "too-many", "known"].map(id)).await.expect("the store can be read");
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
}
