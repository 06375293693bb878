//! Sets of indices that tests take in turn.
//!
//! To make the four indices and five templates of a store costs a server more than most tests do with them, and each
//! set that stays makes the next one dearer. So a set that a test has given back is emptied and goes to the next test.
//! A set whose indices or templates are not what they were at first is removed instead: what a test changes there
//! never reaches another one.
//!
//! A test whose subject is how indices are made, changed or lost makes its own, under a prefix that nobody else has.
//! They are removed after it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leasehold::clock::Timestamp;
use leasehold::store::elasticsearch::ElasticsearchOptions;
use leasehold::store::{AuditEntry, Store as _, Write};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{PREFIX, SearchServer, announce, fresh_prefix};
use crate::store::elasticsearch::{connect, patient};
use crate::store::sample::submitted;

/// How long a set rests before it is emptied, so that what a test sent last has arrived.
const REST: Duration = Duration::from_secs(1);
/// The number of documents from which on it costs less to remove a set than to empty it.
const MOST_EMPTIED: u64 = 5_000;
/// The number of documents deleted by one request.
const PAGE: u64 = 1_000;
/// The refresh interval of a set that is refreshed on request: longer than any test lasts.
const REFRESHED_AFTER: Duration = Duration::from_secs(24 * 3_600);
/// How long one request about a set may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// When searches of a set see what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refreshed {
    /// Within the second, as by default.
    EverySecond,
    /// When it is asked for, or when the store itself does so.
    OnRequest,
}

impl Refreshed {
    /// The options of the stores that are opened on such a set.
    pub(crate) fn options(self, url: &str, prefix: &str) -> ElasticsearchOptions {
        let patient = patient(url, prefix);
        match self {
            Self::EverySecond => patient,
            Self::OnRequest => ElasticsearchOptions { refresh_interval: REFRESHED_AFTER, ..patient },
        }
    }
}

/// The sets that are empty, by the server's address and their kind.
static EMPTY: Mutex<BTreeMap<(String, Refreshed), Vec<Made>>> = Mutex::new(BTreeMap::new());
/// Where sets go that are given back.
static RETURNED: Mutex<Option<UnboundedSender<(Made, Instant)>>> = Mutex::new(None);

/// The indices under one prefix, which are this test's own until this is dropped.
///
/// Processes that write to them must have ended before. What writes to them in this process may go on for as long as the
/// runtime in which they are dropped: they are given back when it ends.
#[derive(Debug)]
pub(crate) struct IndexSet {
    made: Option<Made>,
}

impl IndexSet {
    /// Takes an empty set of the server's, or makes one.
    pub(super) async fn take(server: &SearchServer, refreshed: Refreshed) -> Self {
        let kind = (server.url().to_owned(), refreshed);
        loop {
            let empty = EMPTY.lock().get_mut(&kind).and_then(Vec::pop);
            let Some(made) = empty else { break };
            match made.count().await {
                Ok(0) => return Self { made: Some(made) },
                written => {
                    announce(&format!("{} was written to after it was given back: {written:?}", made.prefix));
                    made.remove().await;
                }
            }
        }
        Self { made: Some(Made::new(server.url(), refreshed).await) }
    }

    /// Indices that the test makes, under this prefix.
    pub(super) fn own(url: &str, prefix: String) -> Self {
        let made = Made { url: url.to_owned(), prefix, refreshed: Refreshed::EverySecond, http: client(), first: None };
        Self { made: Some(made) }
    }

    /// The prefix of the names of its indices.
    pub(crate) fn prefix(&self) -> &str {
        &self.made().prefix
    }

    /// The server's address.
    pub(crate) fn url(&self) -> &str {
        &self.made().url
    }

    /// Gives them back at once: nothing writes to them any more.
    pub(crate) fn give_back(mut self) {
        Returning(self.made.take());
    }

    fn made(&self) -> &Made {
        self.made.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for IndexSet {
    fn drop(&mut self) {
        let Some(made) = self.made.take() else { return };
        let returning = Returning(Some(made));
        // A manager that nobody holds any more still works, and would take the jobs of the next test.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let _until_the_runtime_ends = returning;
                std::future::pending::<()>().await;
            });
        }
    }
}

/// A set on its way back.
struct Returning(Option<Made>);

impl Drop for Returning {
    fn drop(&mut self) {
        let Some(made) = self.0.take() else { return };
        let mut returned = RETURNED.lock();
        let sender = returned.get_or_insert_with(|| {
            let (sender, receiver) = unbounded_channel();
            std::thread::spawn(move || empty_all(receiver));
            sender
        });
        // Without the thread the set stays where it is, and the next test makes one.
        let _sent = sender.send((made, Instant::now()));
    }
}

/// Empties what is given back for as long as the process runs: the runtimes of tests end with them.
fn empty_all(mut returned: UnboundedReceiver<(Made, Instant)>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        while let Some((made, at)) = returned.recv().await {
            tokio::time::sleep_until((at + REST).into()).await;
            match made.empty().await {
                Ok(true) => EMPTY.lock().entry((made.url.clone(), made.refreshed)).or_default().push(made),
                Ok(false) => made.remove().await,
                Err(why) => {
                    if made.first.is_some() {
                        announce(&format!("{} cannot be emptied: {why}", made.prefix));
                    }
                    made.remove().await;
                }
            }
        }
    });
}

/// What a server says of a set: its indices with their settings, mappings and aliases, and its templates.
#[derive(Debug, PartialEq)]
struct Description {
    indices: BTreeMap<String, Value>,
    templates: BTreeMap<String, Value>,
}

/// A set, and what it was at first.
#[derive(Debug)]
struct Made {
    url: String,
    prefix: String,
    refreshed: Refreshed,
    http: reqwest::Client,
    /// `None` where a test makes the indices.
    first: Option<Description>,
}

impl Made {
    async fn new(url: &str, refreshed: Refreshed) -> Self {
        let prefix = fresh_prefix("set");
        connect(refreshed.options(url, &prefix)).await.close().await;
        let mut made = Self { url: url.to_owned(), prefix, refreshed, http: client(), first: None };
        made.first = Some(made.description().await.expect("a set that was just made can be described"));
        made
    }

    /// Removes all that came since the set was made. Returns whether its indices and templates are those of then;
    /// whether they are empty is looked at by [`IndexSet::take`].
    async fn empty(&self) -> Result<bool, String> {
        let Some(first) = &self.first else { return Ok(false) };
        self.remove_streams().await?;
        let mut now = self.description().await?;
        for (kind, found, first) in
            [("", &mut now.indices, &first.indices), ("_index_template/", &mut now.templates, &first.templates)]
        {
            for (name, _) in found.extract_if(.., |name, _| !first.contains_key(name)) {
                self.call(reqwest::Method::DELETE, &format!("{kind}{name}"), None).await?;
            }
        }
        let documents = self.count().await?;
        if now != *first || documents > MOST_EMPTIED {
            return Ok(false);
        }
        for _ in 0..documents.div_ceil(PAGE) {
            self.delete_some().await?;
        }
        Ok(true)
    }

    /// The number of documents, of those acknowledged.
    async fn count(&self) -> Result<u64, String> {
        self.call(reqwest::Method::POST, &format!("{}*/_refresh", self.prefix), None).await?;
        let answer = self.call(reqwest::Method::GET, &format!("{}*/_count", self.prefix), None).await?;
        answer["count"].as_u64().filter(|_| answer["_shards"]["failed"] == 0).ok_or_else(|| answer.to_string())
    }

    async fn delete_some(&self) -> Result<(), String> {
        let search = json!({ "size": PAGE, "_source": false, "sort": ["_doc"] });
        let path = format!("{}*/_search", self.prefix);
        let found = self.call(reqwest::Method::POST, &path, Some(search.to_string())).await?;
        let hits = found["hits"]["hits"].as_array().ok_or_else(|| found.to_string())?;
        let delete = |hit: &Value| json!({ "delete": { "_index": hit["_index"], "_id": hit["_id"] } }).to_string();
        let lines: Vec<String> = hits.iter().map(delete).collect();
        // The next search is not to find them again.
        let path = "_bulk?refresh=true";
        let answer = self.call(reqwest::Method::POST, path, Some(lines.join("\n") + "\n")).await?;
        (answer["errors"] == false).then_some(()).ok_or_else(|| answer.to_string())
    }

    async fn description(&self) -> Result<Description, String> {
        let path = format!("{}*?flat_settings=true&expand_wildcards=all", self.prefix);
        let indices = self.call(reqwest::Method::GET, &path, None).await?;
        let path = format!("_index_template/{}*?flat_settings=true", self.prefix);
        let templates = self.call(reqwest::Method::GET, &path, None).await?;
        let named = |one: &Value| (one["name"].as_str().unwrap_or_default().to_owned(), one.clone());
        Ok(Description {
            indices: indices.as_object().into_iter().flatten().map(|(name, one)| (name.clone(), one.clone())).collect(),
            templates: templates["index_templates"].as_array().into_iter().flatten().map(named).collect(),
        })
    }

    async fn remove_streams(&self) -> Result<(), String> {
        let path = format!("_data_stream/{}*", self.prefix);
        let found = self.call(reqwest::Method::GET, &path, None).await?;
        for stream in found["data_streams"].as_array().into_iter().flatten() {
            let name = stream["name"].as_str().unwrap_or_default();
            self.call(reqwest::Method::DELETE, &format!("_data_stream/{name}"), None).await?;
        }
        Ok(())
    }

    /// Removes all that is there under the prefix.
    async fn remove_all(&self) -> Result<(), String> {
        self.remove_streams().await?;
        let now = self.description().await?;
        for name in now.indices.keys() {
            self.call(reqwest::Method::DELETE, name, None).await?;
        }
        for name in now.templates.keys() {
            self.call(reqwest::Method::DELETE, &format!("_index_template/{name}"), None).await?;
        }
        Ok(())
    }

    /// Removes the set. What cannot be removed ends with the server.
    async fn remove(&self) {
        match self.remove_all().await {
            Err(why) if self.first.is_some() => announce(&format!("{} cannot be removed: {why}", self.prefix)),
            // A server of the test's own has ended with it.
            Ok(()) | Err(_) => {}
        }
    }

    /// Asks the server. What is not there is an empty object.
    async fn call(&self, method: reqwest::Method, path: &str, body: Option<String>) -> Result<Value, String> {
        let mut request = self.http.request(method, format!("{}/{path}", self.url));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let answer = request.send().await.map_err(|error| error.to_string())?;
        let (status, text) = (answer.status(), answer.text().await.map_err(|error| error.to_string())?);
        match status.as_u16() {
            404 => Ok(json!({})),
            // The small distribution has no data streams.
            400 if text.contains("no handler found for uri") => Ok(json!({})),
            200..300 => serde_json::from_str(&text).map_err(|error| format!("{error}: {text}")),
            _ => Err(format!("{path}: {status}: {text}")),
        }
    }
}

/// Removes what tests have left on a server that is handed from one to the next.
pub(super) async fn remove_those_of_all_tests(url: &str) -> Result<(), String> {
    let (prefix, refreshed) = (PREFIX.to_owned(), Refreshed::EverySecond);
    Made { url: url.to_owned(), prefix, refreshed, http: client(), first: None }.remove_all().await
}

/// A client that keeps no connections: those of one test's runtime end with it.
fn client() -> reqwest::Client {
    let client = reqwest::Client::builder().pool_max_idle_per_host(0).timeout(PATIENCE);
    client.build().expect("a client")
}

/// A set has the setting that it is taken for: a store that is opened on it does not change it.
#[tokio::test]
async fn a_set_is_refreshed_when_it_says() {
    for server in [super::elasticsearch().await, super::opensearch().await] {
        for (set, expected) in
            [(server.index_set().await, "1000ms"), (server.unrefreshed_index_set().await, "86400000ms")]
        {
            let description = set.made().description().await.expect("a set can be described");
            let jobs = description.indices.iter().find(|(name, _)| name.contains("jobs")).expect("an index of jobs");
            assert_eq!(jobs.1["settings"]["index.refresh_interval"], expected);
        }
    }
}

/// A set is empty after it was used, and one that was changed is not handed on.
async fn used_sets_are_emptied_and_changed_ones_are_not_kept(server: &SearchServer) {
    let made = Made::new(server.url(), Refreshed::EverySecond).await;
    let store = connect(patient(&made.url, &made.prefix)).await;
    let jobs = (0..3).map(|number| Write::Create { job: submitted(&format!("job-{number}")), bodies: vec![] });
    assert!(store.write(jobs.collect()).await.iter().all(Result::is_ok));
    let document = json!({ "@timestamp": "2030-01-01T00:00:00.000Z" });
    let Value::Object(document) = document else { unreachable!("an object") };
    let entry = AuditEntry { id: "one".to_owned(), at: Timestamp::from_millis(1_900_000_000_000), document };
    store.append_audit(&[entry]).await.expect("the audit is kept");
    store.close().await;
    assert_eq!(made.count().await, Ok(4));

    assert_eq!(made.empty().await, Ok(true));
    assert_eq!(made.count().await, Ok(0));
    assert_eq!(made.description().await.as_ref(), Ok(made.first.as_ref().expect("it was described")));

    let path = format!("{}jobs/_settings", made.prefix);
    let changed = made.call(reqwest::Method::PUT, &path, Some(json!({ "index.refresh_interval": "7s" }).to_string()));
    changed.await.expect("it is changed");
    assert_eq!(made.empty().await, Ok(false));
    made.remove().await;
    let left = made.description().await.expect("nothing is described");
    assert_eq!(left, Description { indices: BTreeMap::new(), templates: BTreeMap::new() });
}

#[tokio::test]
async fn used_sets_of_elasticsearch_are_emptied_and_changed_ones_are_not_kept() {
    used_sets_are_emptied_and_changed_ones_are_not_kept(super::elasticsearch().await).await;
}

#[tokio::test]
async fn used_sets_of_opensearch_are_emptied_and_changed_ones_are_not_kept() {
    used_sets_are_emptied_and_changed_ones_are_not_kept(super::opensearch().await).await;
}
