//! The audit: every transition is in it, under one name, whatever dies in between.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock as _, ManualClock, Timestamp};
use leasehold::job::{JobId, JobSpec, Kind, Owner, QueueName};
use leasehold::manager::{Manager, NewJob, Outcome};
use leasehold::monitor::{Auditor, Report};
use leasehold::store::Store;
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{PATIENCE, caller, claim, manager, worker};
use crate::servers::{self, SearchServer};
use crate::store::elasticsearch::{connect, patient};

/// Where the entries can be read.
enum Kept {
    Files { _directory: TempDir, folder: PathBuf },
    Index { server: String, name: String, is_stream: bool, http: reqwest::Client },
}

struct Site {
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    manager: Manager,
    kept: Kept,
}

impl Site {
    fn new(store: Arc<dyn Store>, kept: Kept) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
        let manager = manager(&store, &clock);
        Self { store, clock, manager, kept }
    }

    fn embedded() -> Self {
        let directory = TempDir::new().expect("a directory");
        let store = EmbeddedStore::open(directory.path(), &EmbeddedOptions::default()).expect("the store opens");
        let folder = directory.path().join("audit");
        Self::new(Arc::new(store), Kept::Files { _directory: directory, folder })
    }

    /// On a server that has data streams, or has not.
    async fn on(server: &SearchServer, is_stream: bool) -> Self {
        let prefix = servers::fresh_prefix("audit");
        let (server, name) = (server.url().to_owned(), format!("{prefix}audit"));
        let store = connect(patient(&server, &prefix)).await;
        Self::new(Arc::new(store), Kept::Index { server, name, is_stream, http: reqwest::Client::new() })
    }

    /// An auditor that knows nothing but what is in the store.
    fn auditor(&self) -> Auditor {
        Auditor::new(Arc::clone(&self.store), Duration::ZERO)
    }

    async fn run(&self, auditor: &Auditor) -> Report {
        auditor.run(self.clock.now(), &|| true).await.expect("the audit is kept")
    }

    /// Everything that is there, as often as it is.
    async fn entries(&self) -> Vec<Value> {
        match &self.kept {
            Kept::Files { folder, .. } => {
                let files = std::fs::read_dir(folder).into_iter().flatten().map(|file| file.expect("a file").path());
                let texts = files.map(|file| std::fs::read_to_string(file).expect("a text"));
                let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<String>>();
                texts.flat_map(lines).map(|line| serde_json::from_str(&line).expect("JSON")).collect()
            }
            Kept::Index { server, name, is_stream, http } => {
                let stream = http.get(format!("{server}/_data_stream/{name}")).send().await.expect("an answer");
                assert_eq!(stream.status().is_success(), *is_stream);
                let url = format!("{server}/{name}");
                let refreshed = http.post(format!("{url}/_refresh")).send().await.expect("an answer");
                assert!(refreshed.status().is_success(), "{:?}", refreshed.text().await);
                let body = json!({ "size": 10_000, "sort": [{ "@timestamp": "asc" }] });
                let answer = http.post(format!("{url}/_search")).json(&body).send().await.expect("an answer");
                let answer: Value = answer.json().await.expect("JSON");
                let hits = answer["hits"]["hits"].as_array().unwrap_or_else(|| panic!("{answer}"));
                hits.iter().map(|hit| hit["_source"].clone()).collect()
            }
        }
    }

    async fn ids(&self) -> BTreeSet<String> {
        self.entries().await.iter().map(id).collect()
    }

    async fn submit(&self, count: usize) -> Vec<JobId> {
        let (queue, kind) = (QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"));
        let job = NewJob::of(JobSpec {
            owner: Some(Owner::new("team a").expect("a name")),
            labels: BTreeMap::from([("team".to_owned(), "blue".to_owned())]),
            ..JobSpec::new(queue, kind)
        });
        let submitted = self.manager.submit(&caller(), vec![job; count]).await;
        submitted.into_iter().map(|one| one.expect("taken").job.versioned.job.id.clone()).collect()
    }

    /// Has one job claimed, kept alive and completed.
    async fn complete_one(&self) {
        use leasehold::manager::{ClaimRequest, Finish, Heartbeat};
        let claimed = self.manager.claim(ClaimRequest { wait: PATIENCE, ..claim("w", 1) }).await.expect("answered");
        let job = claimed.jobs().first().expect("a job").versioned.job.clone();
        claimed.delivered();
        self.clock.advance(Duration::from_secs(1));
        let beat = Heartbeat { id: job.id.clone(), fence: job.fence, progress: None };
        self.manager.heartbeat(&worker("w"), vec![beat]).await.remove(0).expect("the lease is held");
        let finish = Finish { id: job.id.clone(), fence: job.fence, outcome: Outcome::Completed { result: None } };
        self.manager.finish(&worker("w"), vec![finish]).await.remove(0).expect("finished");
    }
}

fn id(entry: &Value) -> String {
    entry["event"]["id"].as_str().expect("an id").to_owned()
}

async fn every_transition_is_there_once(site: Site) {
    let jobs = site.submit(2).await;
    let auditor = site.auditor();
    assert_eq!(site.run(&auditor).await.audited, 2);
    site.complete_one().await;
    assert_eq!(site.run(&auditor).await.audited, 2, "claimed and completed; a heartbeat is no transition");
    assert_eq!(site.run(&auditor).await.audited, 0, "nothing is new");

    let entries = site.entries().await;
    assert_eq!(entries.len(), 4, "{entries:?}");
    let of = |action: &str| entries.iter().filter(|entry| entry["event"]["action"] == action).collect::<Vec<_>>();
    assert_eq!(of("job-submitted").len(), 2);
    let [completed] = of("job-completed")[..] else { panic!("{entries:?}") };
    let job = completed["leasehold"]["job"]["id"].as_str().expect("an id");
    assert!(jobs.iter().any(|id| id.as_str() == job));
    let expected = json!({
        "@timestamp": site.clock.now().to_rfc3339(),
        "ecs": { "version": "8.17.0" },
        "message": format!("job {job} of the queue q: completed by w"),
        "event": {
            "id": format!("3/{job}"), "kind": "event", "category": ["process"], "type": ["end"],
            "module": "leasehold", "dataset": "leasehold.audit", "action": "job-completed", "outcome": "success",
            "sequence": 3,
        },
        "user": { "name": "w" },
        "labels": { "team": "blue" },
        "leasehold": {
            "job": { "id": job, "queue": "q", "kind": "k", "owner": "team a" },
            "from": "running", "to": "completed", "fence": 1, "attempt": 1,
        },
    });
    assert_eq!(*completed, expected);
}

async fn an_auditor_that_knows_nothing_tells_nothing_new(site: Site) {
    site.submit(3).await;
    site.run(&site.auditor()).await;
    let before = site.ids().await;
    // One that died right after handing over, and one that never was.
    site.run(&site.auditor()).await;
    // One that is told to begin anew, which it does once.
    let anew = site.auditor().beginning(true);
    assert_eq!(site.run(&anew).await.audited, 3, "all is handed over again");
    assert_eq!(site.run(&anew).await.audited, 0);
    assert_eq!(site.ids().await, before);
    if matches!(site.kept, Kept::Index { .. }) {
        assert_eq!(site.entries().await.len(), 3, "and turned away");
    }
    // Long after, only what is new is handed over.
    site.clock.advance(Duration::from_secs(3600));
    site.run(&site.auditor()).await;
    site.submit(1).await;
    let run = site.run(&site.auditor()).await;
    assert_eq!((run.looked_at, run.audited, run.unfinished), (1, 1, false));
}

async fn a_pass_that_was_interrupted_leaves_nothing_out(site: Site) {
    // More than one page of jobs, some of which are written again while the pass goes on.
    let jobs = site.submit(1_500).await;
    let pages = AtomicUsize::new(0);
    let only_the_first = || pages.fetch_add(1, Ordering::Relaxed) == 0;
    let run = site.auditor().run(site.clock.now(), &only_the_first).await.expect("the audit is kept");
    assert!(run.unfinished && run.audited < jobs.len(), "{run:?}");
    for _ in 0..3 {
        site.complete_one().await;
    }
    let run = site.run(&site.auditor()).await;
    assert!(!run.unfinished, "{run:?}");
    assert_eq!(site.ids().await.len(), jobs.len() + 3 * 2);
}

macro_rules! on_each_store {
    ($($case:ident),+ $(,)?) => {
        mod embedded {
            use super::Site;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(Site::embedded()).await;
            })+
        }
        /// Which has no data streams in the distribution that the tests run.
        mod elasticsearch {
            use super::{Site, servers};
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(Site::on(servers::elasticsearch().await, false).await).await;
            })+
        }
        /// Which has them.
        mod opensearch {
            use super::{Site, servers};
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(Site::on(servers::opensearch().await, true).await).await;
            })+
        }
    };
}

on_each_store!(
    every_transition_is_there_once,
    an_auditor_that_knows_nothing_tells_nothing_new,
    a_pass_that_was_interrupted_leaves_nothing_out,
);
