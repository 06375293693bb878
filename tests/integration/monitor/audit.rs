//! The audit: every transition is in it, under one name, whatever dies in between.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::client::Client;
use leasehold::clock::{Clock as _, ManualClock, Timestamp};
use leasehold::job::{Actor, EventName, JobId, JobSpec, Kind, Owner, QueueName};
use leasehold::manager::{AuditEventName, AuditQuery, Manager, NewJob, Outcome};
use leasehold::monitor::{Auditor, Report};
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use leasehold::store::{AuditEntry, AuditSearch, Store};
use leasehold::wire::SubmitJob;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{PATIENCE, caller, claim, manager, worker};
use crate::program::{DEADLINE, Engine, Server};
use crate::servers::{self, IndexSet, SearchServer};
use crate::store::elasticsearch::{connect, patient};

/// Where the entries can be read.
enum Kept {
    Files { _directory: TempDir, folder: PathBuf },
    Index { server: String, name: String, is_stream: bool, http: reqwest::Client, _set: IndexSet },
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
        let set = server.index_set().await;
        let (server, name) = (set.url().to_owned(), format!("{}audit", set.prefix()));
        let store = connect(patient(&server, set.prefix())).await;
        Self::new(Arc::new(store), Kept::Index { server, name, is_stream, http: reqwest::Client::new(), _set: set })
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
            Kept::Index { server, name, is_stream, http, .. } => {
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
        self.complete_one_after(|clock| clock.advance(Duration::from_secs(1))).await;
    }

    /// Has one job claimed, and kept alive and completed once the clock is set as `set` says.
    async fn complete_one_after(&self, set: impl Fn(&ManualClock)) {
        use leasehold::manager::{ClaimRequest, Finish, Heartbeat};
        let claimed = self.manager.claim(ClaimRequest { wait: PATIENCE, ..claim("w", 1) }).await.expect("answered");
        let job = claimed.jobs().first().expect("a job").versioned.job.clone();
        claimed.delivered();
        set(&self.clock);
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
            "id": format!("3/{}/{job}", site.clock.now().as_millis()),
            "kind": "event", "category": ["process"], "type": ["end"],
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

/// At once, while the auditor still finds the former one's entries again, and long after.
async fn a_job_that_is_submitted_again_after_its_removal_is_there_as_often(site: Site) {
    let auditor = site.auditor();
    let job = NewJob {
        id: Some(JobId::new("nightly").expect("an id")),
        ..NewJob::of(JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name")))
    };
    for after in [0, 1, 3_600] {
        site.clock.advance(Duration::from_secs(after));
        let submitted = site.manager.submit(&caller(), vec![job.clone()]).await.remove(0).expect("taken");
        let id = submitted.job.versioned.job.id.clone();
        site.manager.cancel(&caller(), &id, None).await.expect("cancelled");
        site.run(&auditor).await;
        site.manager.delete(&caller(), &id, None).await.expect("deleted");
    }
    site.run(&auditor).await;
    let actions: Vec<Value> = site.entries().await.iter().map(|entry| entry["event"]["action"].clone()).collect();
    for action in ["job-submitted", "job-cancelled"] {
        assert_eq!(actions.iter().filter(|found| *found == action).count(), 3, "{actions:?}");
    }
}

/// Files that are whole, and one that was lost.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_copied_anew_is_in_the_files_again_and_shown_once() {
    let directory = TempDir::new().expect("a directory");
    let open = || EmbeddedStore::open(directory.path(), &EmbeddedOptions::default()).expect("the store opens");
    let folder = directory.path().join("audit");
    let (mut store, mut lines): (Arc<dyn Store>, usize) = (Arc::new(open()), 0);
    let kept = Kept::Files { _directory: TempDir::new().expect("a directory"), folder: folder.clone() };
    let site = Site::new(Arc::clone(&store), kept);
    site.submit(3).await;
    site.manager.shutdown().await;
    drop(store);
    for is_lost in [false, false, true] {
        store = Arc::new(open());
        if is_lost {
            std::fs::remove_dir_all(&folder).expect("it was there");
            lines = 0;
        }
        let auditor = Auditor::new(Arc::clone(&store), Duration::ZERO).beginning(true);
        let run = auditor.run(site.clock.now(), &|| true).await.expect("the audit is kept");
        assert_eq!(run.audited, 3);
        lines += 3;
        assert_eq!(site.entries().await.len(), lines, "lost: {is_lost}");
        let search = AuditSearch { limit: 100, ..AuditSearch::default() };
        assert_eq!(store.read_audit(&search).await.expect("it is read").entries.len(), 3);
        store.close().await;
    }
}

/// Of jobs that ended before the clock was set, that go on after it, and that come after it; by one auditor, and by one
/// that is new each time.
async fn a_clock_that_is_set_by_an_hour_leaves_nothing_out_and_doubles_nothing(site: Site) {
    let hour = Duration::from_secs(3_600);
    let (auditor, mut transitions, unread) = (site.auditor(), 0, AtomicUsize::new(0));
    let mut round = async |auditor: &Auditor| {
        site.submit(3).await;
        site.complete_one().await;
        transitions += 5 + unread.swap(0, Ordering::Relaxed);
        for _ in 0..3 {
            while site.run(auditor).await.unfinished {}
            site.clock.advance(Duration::from_secs(10));
        }
        assert_eq!(site.ids().await.len(), transitions, "none is left out");
        assert_eq!(site.entries().await.len(), transitions, "none is there twice");
    };
    for _ in 0..3 {
        round(&auditor).await;
        site.clock.advance(Duration::from_secs(600));
    }
    for step in [-1, 1, -1, -2, 3] {
        // By the pass after the step.
        site.submit(2).await;
        unread.fetch_add(2, Ordering::Relaxed);
        match u32::try_from(step) {
            Ok(forward) => site.clock.advance(forward * hour),
            Err(_) => site.clock.turn_back(hour * i32::unsigned_abs(step)),
        }
        round(&auditor).await;
        site.clock.advance(Duration::from_secs(600));
        round(&auditor).await;
    }
    site.clock.turn_back(hour);
    round(&site.auditor()).await;
}

/// What was written between the last pass and the second step lies in the time that was copied before the first one.
async fn a_clock_that_is_set_back_twice_leaves_out_nothing_of_between(site: Site) {
    let auditor = site.auditor();
    let pass = async || while site.run(&auditor).await.unfinished {};
    site.submit(1).await;
    site.clock.advance(Duration::from_secs(7_200));
    pass().await;
    site.clock.turn_back(Duration::from_secs(3_600));
    site.submit(1).await;
    for _ in 0..10 {
        pass().await;
        site.clock.advance(Duration::from_secs(10));
    }
    site.submit(1).await;
    site.clock.turn_back(Duration::from_secs(600));
    site.submit(1).await;
    for _ in 0..10 {
        pass().await;
        site.clock.advance(Duration::from_secs(10));
    }
    assert_eq!(site.ids().await.len(), 4, "none is left out");
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

/// By auditors that know nothing but the position, each of which reads one page.
async fn more_jobs_of_one_millisecond_than_a_run_reads_are_all_there(site: Site) {
    let jobs = site.submit(2_500).await;
    let run = async || site.run(&site.auditor().with_pages(1)).await;
    for unfinished in [true, true, false] {
        assert_eq!(run().await.unfinished, unfinished);
    }
    assert_eq!(site.ids().await.len(), jobs.len());
    // What is written at that time after the pass has gone by is found by the next one.
    let more = site.submit(10).await;
    while run().await.unfinished {}
    assert_eq!(site.ids().await.len(), jobs.len() + more.len());
}

/// Two managers whose clocks differ by a millisecond write one job.
async fn managers_whose_clocks_differ_leave_nothing_out_after_the_clock_was_set_back(site: Site) {
    let auditor = site.auditor();
    let through = async || {
        for _ in 0..3 {
            while site.run(&auditor).await.unfinished {}
            site.clock.advance(Duration::from_secs(40));
        }
    };
    site.submit(1).await;
    site.complete_one().await;
    site.clock.advance(Duration::from_secs(7_200));
    through().await;
    site.clock.turn_back(Duration::from_secs(3_600));
    through().await;
    site.submit(1).await;
    site.complete_one_after(|clock| clock.turn_back(Duration::from_millis(1))).await;
    through().await;
    assert_eq!(site.ids().await.len(), 6, "none is left out");
}

/// All pages of so many events each.
async fn all(site: &Site, wanted: AuditQuery) -> Vec<String> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let page = site.manager.audit(AuditQuery { after, ..wanted.clone() }).await.expect("a page");
        assert!(page.is_there && page.entries.len() <= wanted.limit, "{page:?}");
        ids.extend(page.entries.iter().map(|entry| entry.id.clone()));
        after = page.next;
        if after.is_none() {
            return ids;
        }
    }
}

async fn it_is_read_by_pages_the_newest_first(site: Site) {
    let limit = |limit| AuditQuery { limit, ..AuditQuery::default() };
    let none = site.manager.audit(limit(100)).await.expect("an answer");
    assert_eq!((none.entries.len(), none.next, none.is_there), (0, None, false), "before the first entry");

    let began = site.clock.now();
    let auditor = site.auditor();
    let jobs = site.submit(5).await;
    site.run(&auditor).await;
    // Two months on.
    site.clock.advance(Duration::from_secs(62 * 86_400));
    site.complete_one().await;
    site.run(&auditor).await;
    site.run(&site.auditor().beginning(true)).await;

    let written = site.ids().await;
    assert_eq!(written.len(), 7);
    for size in [1, 2, 3, 7, 100] {
        let ids = all(&site, limit(size)).await;
        assert_eq!(ids.iter().cloned().collect::<BTreeSet<_>>(), written, "{size} a page");
    }
    let page = site.manager.audit(limit(100)).await.expect("a page").entries;
    assert_eq!(page.len(), 7, "an entry that is there twice is shown once");
    let has = |entry: &AuditEntry, action: &str| entry.document["event"]["action"] == action;
    assert!(has(&page[0], "job-completed") && has(&page[1], "job-claimed") && has(&page[6], "job-submitted"));

    // On pages of files that are shorter, those that come again do so.
    let found = async |wanted: AuditQuery| all(&site, AuditQuery { limit: 100, ..wanted }).await.len();
    let mut of_jobs = 0;
    for id in &jobs {
        of_jobs += found(AuditQuery { jobs: vec![id.clone()], ..AuditQuery::default() }).await;
    }
    assert_eq!(of_jobs, 7);
    let name = |text: &str| QueueName::new(text).expect("a name");
    assert_eq!(found(AuditQuery { queues: vec![name("q"), name("other")], ..AuditQuery::default() }).await, 7);
    assert_eq!(found(AuditQuery { queues: vec![name("other")], ..AuditQuery::default() }).await, 0);
    let owner = Owner::new("team a").expect("a name");
    assert_eq!(found(AuditQuery { owners: vec![owner], ..AuditQuery::default() }).await, 7);
    let actor = Actor::new("w").expect("a name");
    assert_eq!(found(AuditQuery { actors: vec![actor], ..AuditQuery::default() }).await, 2);
    let events = [EventName::Completed, EventName::Failed].map(AuditEventName::Job).to_vec();
    assert_eq!(found(AuditQuery { events, ..AuditQuery::default() }).await, 1);
    assert_eq!(found(AuditQuery { to: Some(began), ..AuditQuery::default() }).await, 5);
    let later = Some(began.plus(Duration::from_secs(1)));
    assert_eq!(found(AuditQuery { from: later, ..AuditQuery::default() }).await, 2);
    assert_eq!(found(AuditQuery { from: later, to: later, ..AuditQuery::default() }).await, 0);
}

/// What stands between the program and a server, and refuses what `refused` finds in a path, as long as it does.
async fn refusing(upstream: &str, refused: &'static str) -> (String, Arc<AtomicBool>) {
    use axum::body::{Body, to_bytes};
    use axum::extract::Request;
    use axum::response::Response;

    let (refuses, upstream, http) = (Arc::new(AtomicBool::new(true)), upstream.to_owned(), reqwest::Client::new());
    let is_on = Arc::clone(&refuses);
    let pass = move |request: Request| {
        let (http, upstream, is_on) = (http.clone(), upstream.clone(), Arc::clone(&is_on));
        async move {
            let (parts, body) = request.into_parts();
            if is_on.load(Ordering::SeqCst) && parts.uri.path().contains(refused) {
                let cause = json!({ "type": "security_exception", "reason": "action [indices:any] is unauthorized" });
                let refusal = json!({ "error": cause });
                let answer = Response::builder().status(403).header("content-type", "application/json");
                return answer.body(Body::from(refusal.to_string())).expect("an answer");
            }
            let path = parts.uri.path_and_query().expect("a path").as_str();
            let body = to_bytes(body, usize::MAX).await.expect("a body");
            let mut headers = parts.headers;
            for name in ["host", "content-length", "accept-encoding", "connection"] {
                headers.remove(name);
            }
            let call = http.request(parts.method, format!("{upstream}{path}")).headers(headers).body(body);
            let answer = call.send().await.expect("an answer");
            let mut passed = Response::builder().status(answer.status());
            for name in ["content-type", "x-elastic-product"] {
                if let Some(value) = answer.headers().get(name) {
                    passed = passed.header(name, value);
                }
            }
            passed.body(Body::from(answer.bytes().await.expect("a body"))).expect("an answer")
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(pass)).await });
    (url, refuses)
}

/// Which a role without the privileges for it does.
async fn that_the_server_refuses_it_is_told_until_it_does_not(refused: &'static str) {
    let server = servers::elasticsearch().await;
    let (url, refuses) = refusing(server.url(), refused).await;
    let place = TempDir::new().expect("a directory");
    let indices = Arc::new(server.own_indices("refused"));
    let engine = Engine::Elasticsearch { urls: vec![url], indices };
    let options = ["--audit", "--audit-period-ms", "100"];
    let server = Server::start_as("serve", &options, engine, &place.path().join("server.log")).await;
    let client = Client::new(&server.url(), None).expect("a client");
    client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let told = "lacks a privilege (indices:any); docs/deploying.md has the role that suffices";
    let deadline = Instant::now() + DEADLINE;
    let mut reasons = Vec::new();
    while !reasons.iter().any(|reason: &String| reason.contains(told)) {
        assert!(Instant::now() < deadline, "never told: {reasons:?}; {}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
        reasons = client.health().await.expect("an answer").reasons;
    }
    assert!(reasons.iter().any(|reason| reason.starts_with("the monitor's work `audit` has failed since")));
    assert!(server.log().contains(told), "{}", server.log());
    refuses.store(false, Ordering::SeqCst);
    let deadline = Instant::now() + DEADLINE;
    while client.audit(&leasehold::client::AuditQuery::default()).await.expect("an answer").items.is_empty() {
        assert!(Instant::now() < deadline, "it is never written: {}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    while reasons.iter().any(|reason| reason.contains("audit")) {
        assert!(Instant::now() < deadline, "it is told for ever: {reasons:?}; {}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
        reasons = client.health().await.expect("an answer").reasons;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn that_the_server_does_not_say_whether_it_has_streams_is_told() {
    that_the_server_refuses_it_is_told_until_it_does_not("_data_stream").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn that_the_server_takes_no_template_is_told() {
    that_the_server_refuses_it_is_told_until_it_does_not("-audit").await;
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
    a_job_that_is_submitted_again_after_its_removal_is_there_as_often,
    a_pass_that_was_interrupted_leaves_nothing_out,
    more_jobs_of_one_millisecond_than_a_run_reads_are_all_there,
    a_clock_that_is_set_by_an_hour_leaves_nothing_out_and_doubles_nothing,
    a_clock_that_is_set_back_twice_leaves_out_nothing_of_between,
    managers_whose_clocks_differ_leave_nothing_out_after_the_clock_was_set_back,
    it_is_read_by_pages_the_newest_first,
);
