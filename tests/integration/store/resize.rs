//! The number of shards of an index, changed while a store writes to it: nothing is refused, and nothing is lost,
//! wherever a migration ends.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use leasehold::job::{Body, BodyId, BodyRef, Job, JobId, NewBody};
use leasehold::query::Filter;
use leasehold::store::elasticsearch::{ElasticsearchOptions, ElasticsearchStore, Migration};
use leasehold::store::{Store, StoreError, Version, Write, WriteError};
use reqwest::Method;
use serde_json::Value;

use super::elasticsearch::{connect, patient};
use super::on_servers;
use super::sample::{counted, json as body, submitted};
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::servers::{Cluster, IndexSet, SearchServer};

/// How many requests of a migration of one index change something: its mark, the block, the new index, its lineage, the
/// aliases, and the end of the former index.
const CHANGES: u64 = 6;
/// How many change something in one that marks an index, is out of time, and takes that back.
const CHANGES_BACK: u64 = 5;
/// How many migrations, each of indices of its own, are ended at a time: most of the time they wait.
const AT_ONCE: usize = 3;
/// Longer than anything here takes on a busy machine.
const IN_TIME: Duration = Duration::from_secs(240);
/// The pause after a round of writes.
const PACE: Duration = Duration::from_millis(20);
const JOBS: usize = 12;

/// A store on indices of its own, and the server behind it.
struct Site {
    options: ElasticsearchOptions,
    store: Arc<ElasticsearchStore>,
    _indices: IndexSet,
}

/// What writes without a pause, until it is told to stop.
struct Writer {
    stop: Arc<AtomicBool>,
    writing: tokio::task::JoinHandle<Vec<(Arc<Job>, Version)>>,
}

impl Site {
    /// With an index of live jobs of so many shards, and one of bodies of so many.
    async fn on(server: &SearchServer, jobs: u32, bodies: u32) -> Self {
        Self::at(server.own_indices("resize"), jobs, bodies, Some(0)).await
    }

    async fn at(indices: IndexSet, jobs: u32, bodies: u32, replicas: Option<u32>) -> Self {
        let options =
            ElasticsearchOptions { query_time: Duration::from_millis(200), ..patient(indices.url(), indices.prefix()) };
        let with = |shards| ElasticsearchOptions { shards: Some(shards), replicas, ..options.clone() };
        connect(with(bodies)).await.close().await;
        if jobs != bodies {
            at(&options, Method::DELETE, "{prefix}jobs-000001", None).await;
            connect(with(jobs)).await.close().await;
        }
        let store = Arc::new(connect(options.clone()).await);
        Self { options, store, _indices: indices }
    }

    async fn create(&self, name: &str) -> (Arc<Job>, Version) {
        let job = submitted(name);
        let write = Write::Create { job: Arc::clone(&job), bodies: vec![] };
        (job, one(&*self.store, write).await.expect("a job is created"))
    }

    async fn create_many(&self) -> Vec<(Arc<Job>, Version)> {
        let mut jobs = Vec::new();
        for number in 0..JOBS {
            jobs.push(self.create(&format!("job {number}")).await);
        }
        jobs
    }

    /// Starts to write each of these jobs again and again, under the version that the write before it gave.
    fn write_on(&self, mut jobs: Vec<(Arc<Job>, Version)>) -> Writer {
        let (stop, store) = (Arc::new(AtomicBool::new(false)), Arc::clone(&self.store));
        let told = Arc::clone(&stop);
        let writing = tokio::spawn(async move {
            while !told.load(Ordering::SeqCst) {
                for (job, version) in &mut jobs {
                    (*job, *version) = replaced(&*store, job, *version).await.expect("a write is accepted");
                }
                tokio::time::sleep(PACE).await;
            }
            jobs
        });
        Writer { stop, writing }
    }

    /// Asserts that the jobs are as they were last written, and that there are no others.
    async fn holds(&self, jobs: &[(Arc<Job>, Version)]) {
        let ids: Vec<JobId> = jobs.iter().map(|(job, _)| job.id.clone()).collect();
        let found = self.store.get(&ids).await.expect("readable");
        for ((job, version), found) in jobs.iter().zip(found) {
            let found = found.expect("a job that was written is there");
            assert_eq!((&found.job, found.version), (job, *version));
        }
        crate::engines::refresh(&*self.store).await;
        let all = self.store.count(&Filter::default(), &[]).await.expect("countable");
        assert_eq!(all[0].count, jobs.len() as u64);
    }

    /// Asserts that there is one index of each kind, with so many shards and nothing left of a migration.
    async fn is_clean(&self, shards: u32) {
        let prefix = &self.options.index_prefix;
        let found = at(&self.options, Method::GET, "{prefix}jobs-*,{prefix}bodies-*?flat_settings=true", None).await;
        assert_eq!(found.as_object().map(serde_json::Map::len), Some(2), "{found}");
        for (name, index) in found.as_object().expect("indices") {
            assert_eq!(index["settings"]["index.number_of_shards"], shards.to_string(), "{name}");
            assert!(index["settings"]["index.blocks.write"].is_null(), "{index}");
            let aliases: Vec<&String> = index["aliases"].as_object().expect("aliases").keys().collect();
            let of_jobs = [format!("{prefix}all"), format!("{prefix}jobs")];
            let of_bodies = [format!("{prefix}bodies")];
            assert!(aliases == of_jobs.each_ref() || aliases == of_bodies.each_ref(), "{name}: {aliases:?}");
        }
    }

    fn with_shards(&self, shards: Option<u32>) -> ElasticsearchOptions {
        ElasticsearchOptions { shards, ..self.options.clone() }
    }

    /// Brings the indices to so many shards, again where a machine that stands still had not made them in time.
    async fn migrate(&self, shards: Option<u32>) -> usize {
        let deadline = std::time::Instant::now() + IN_TIME;
        let mut done = 0;
        loop {
            let migration = Migration::plan(self.with_shards(shards)).await.expect("it can be planned");
            match migration.apply(|_| done += 1).await {
                Ok(()) => return done,
                Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
            }
        }
    }
}

impl Writer {
    async fn end(self) -> Vec<(Arc<Job>, Version)> {
        self.stop.store(true, Ordering::SeqCst);
        self.writing.await.expect("every write was accepted")
    }
}

async fn one(store: &dyn Store, write: Write) -> Result<Version, WriteError> {
    store.write(vec![write]).await.remove(0)
}

async fn replaced(store: &dyn Store, job: &Job, expected: Version) -> Result<(Arc<Job>, Version), WriteError> {
    let job = counted(job);
    let write = Write::Replace { job: Arc::clone(&job), expected, bodies: vec![] };
    let version = one(store, write).await?;
    assert!(version.is_later_than(expected));
    Ok((job, version))
}

/// What the server answers, asked past the store.
async fn at(options: &ElasticsearchOptions, method: Method, path: &str, body: Option<Value>) -> Value {
    let path = path.replace("{prefix}", &options.index_prefix);
    let mut request = reqwest::Client::new().request(method, format!("{}/{path}", options.urls[0]));
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.send().await.expect("the server answers");
    assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap_or_default());
    answer.json().await.expect("JSON")
}

async fn writes_wait_and_versions_stay_while_an_index_is_split_and_shrunk(server: &'static SearchServer) {
    let site = Site::on(server, 1, 1).await;
    let quiet = [site.create("quiet 1").await, site.create("quiet 2").await];
    let written = site.create_many().await;
    let text = body(&format!("\"{}\"", "x".repeat(10_000)));
    let reference = BodyRef { id: BodyId(uuid::Uuid::from_u128(7)), bytes: text.bytes() as u32 };
    let large = Arc::new(Job { payload: Body::Stored(reference), ..(*submitted("large")).clone() });
    let bodies = vec![NewBody { reference, json: text.clone() }];
    let version = one(&*site.store, Write::Create { job: Arc::clone(&large), bodies }).await.expect("created");

    let writer = site.write_on(written);
    assert_eq!(site.migrate(Some(4)).await, 2);
    let jobs = writer.end().await;
    site.is_clean(4).await;
    // Under a version from before.
    let first = replaced(&*site.store, &quiet[0].0, quiet[0].1).await.expect("its version stays");

    let writer = site.write_on(jobs);
    assert_eq!(site.migrate(Some(1)).await, 2);
    let mut jobs = writer.end().await;
    site.is_clean(1).await;
    let second = replaced(&*site.store, &quiet[1].0, quiet[1].1).await.expect("its version stays");
    let stale = replaced(&*site.store, &quiet[0].0, quiet[0].1).await;
    assert!(matches!(stale, Err(WriteError::Conflict(Some(_)))), "{stale:?}");
    jobs.extend([first, second, (large, version)]);
    site.holds(&jobs).await;
    assert_eq!(site.store.bodies(&[reference]).await.expect("readable"), [Some(text)]);
    assert_eq!(site.store.out_of_order(), None);
    assert_eq!(site.migrate(Some(1)).await, 0);
}

/// Has a migration die after so many requests that change something; whether it got through.
async fn dies_after(server: &'static SearchServer, changes: u64, (from, to): (u32, u32), is_late: bool) -> bool {
    let site = Site::on(server, from, to).await;
    let jobs = site.create_many().await;
    let proxy = FaultProxy::start(server.url(), Faults { one_in: 1, seed: 1, kinds: vec![Fault::Reset] }).await;
    let options = ElasticsearchOptions { urls: vec![proxy.url()], ..site.with_shards(Some(to)) };
    let write_timeout = if is_late { Duration::ZERO } else { options.write_timeout };
    let migration =
        Migration::plan(ElasticsearchOptions { write_timeout, ..options }).await.expect("it can be planned");
    proxy.allow_changes(Some(changes));
    let survived = migration.apply(|_| {}).await.is_ok();
    let writer = site.write_on(jobs);
    // Whoever is told of another number goes on; whoever is not lifts the block.
    if changes % 2 == 1 {
        site.migrate(None).await;
    }
    site.migrate(Some(to)).await;
    site.holds(&writer.end().await).await;
    site.is_clean(to).await;
    survived
}

/// Ends a migration after each of these numbers of changes.
async fn wherever_it_ends(server: &'static SearchServer, changes: Range<u64>, numbers: (u32, u32), is_late: bool) {
    let ended = futures::stream::iter(changes).for_each_concurrent(AT_ONCE, |changes| async move {
        assert!(!dies_after(server, changes, numbers, is_late).await, "after {changes}");
    });
    ended.await;
}

async fn a_change_that_is_out_of_time_is_taken_back_wherever_that_ends(server: &'static SearchServer) {
    wherever_it_ends(server, 1..CHANGES_BACK + 1, (1, 2), true).await;
    let site = Site::on(server, 1, 1).await;
    let writer = site.write_on(site.create_many().await);
    let late = ElasticsearchOptions { write_timeout: Duration::ZERO, ..site.with_shards(Some(2)) };
    let migration = Migration::plan(late).await.expect("it can be planned");
    migration.apply(|_| {}).await.expect_err("there is no time for it");
    site.is_clean(1).await;
    site.holds(&writer.end().await).await;
}

async fn a_split_goes_on_or_is_taken_back_wherever_it_ended(server: &'static SearchServer) {
    wherever_it_ends(server, 0..CHANGES, (1, 4), false).await;
}

async fn a_shrinking_goes_on_or_is_taken_back_wherever_it_ended(server: &'static SearchServer) {
    wherever_it_ends(server, 0..CHANGES, (4, 2), false).await;
}

async fn two_changes_at_once_do_no_harm(server: &'static SearchServer) {
    for _ in 0..2 {
        let site = Site::on(server, 1, 2).await;
        let writer = site.write_on(site.create_many().await);
        let plan = || Migration::plan(site.with_shards(Some(2)));
        let (one, other) = (plan().await.expect("planned"), plan().await.expect("planned"));
        let (one, other) = tokio::join!(one.apply(|_| {}), other.apply(|_| {}));
        for refused in [one, other].into_iter().filter_map(Result::err) {
            let said = refused.to_string();
            assert!(said.contains("migrate") || said.contains("taken over"), "{said}");
        }
        site.migrate(Some(2)).await;
        site.holds(&writer.end().await).await;
        site.is_clean(2).await;
    }
}

async fn a_number_that_cannot_be_made_is_refused_before_anything_is_done(server: &'static SearchServer) {
    let site = Site::on(server, 4, 4).await;
    for wrong in [3, 6, 12] {
        let refused = Migration::plan(site.with_shards(Some(wrong))).await.map(|migration| migration.changes().count());
        let said = refused.expect_err("no multiple and no divisor").to_string();
        assert!(said.contains("4 shards") && said.contains("1, 2, 8, 16"), "{said}");
    }
    site.is_clean(4).await;
}

/// The block of a migration that is gone.
async fn a_block_that_nobody_lifts_is_noticed_and_the_next_migration_lifts_it(server: &'static SearchServer) {
    let site = Site::on(server, 1, 1).await;
    let (job, version) = site.create("a").await;
    let hasty = ElasticsearchOptions { write_timeout: Duration::from_secs(3), ..site.options.clone() };
    let store = connect(hasty).await;
    at(&site.options, Method::PUT, "{prefix}jobs-000001/_alias/{prefix}resizing-1", None).await;
    at(&site.options, Method::PUT, "{prefix}jobs-000001/_block/write", None).await;

    // Another process waits for its end.
    let opening = ElasticsearchStore::connect(site.options.clone()).await.expect_err("it takes no writes");
    assert!(opening.is_transient() && opening.to_string().contains("leasehold migrate"), "{opening}");
    let waited = replaced(&store, &job, version).await.map(|_| ());
    assert!(matches!(waited, Err(WriteError::Unknown(_) | WriteError::Refused(_))), "{waited:?}");
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while store.out_of_order().is_none() {
        assert!(std::time::Instant::now() < deadline, "nobody says what is the matter");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let said = store.out_of_order().expect("it was said");
    assert!(said.contains("leasehold migrate") && said.contains("jobs-000001"), "{said}");
    let refused = replaced(&store, &job, version).await.map(|_| ());
    assert!(matches!(refused, Err(WriteError::Refused(StoreError::OutOfOrder(_)))), "{refused:?}");
    assert!(matches!(store.ready().await, Err(StoreError::OutOfOrder(_))));

    // One with more patience gets through.
    let patient = tokio::spawn({
        let (store, job) = (Arc::clone(&site.store), Arc::clone(&job));
        async move { replaced(&*store, &job, version).await }
    });
    assert_eq!(site.migrate(None).await, 1);
    let written = patient.await.expect("it ends").expect("it is written");
    site.holds(&[written]).await;
    while store.out_of_order().is_some() {
        assert!(std::time::Instant::now() < deadline, "it is in order again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    site.is_clean(1).await;
}

async fn a_block_that_is_nobodys_is_left_alone(server: &'static SearchServer) {
    let site = Site::on(server, 1, 1).await;
    at(&site.options, Method::PUT, "{prefix}jobs-000001/_block/write", None).await;
    let refused = Migration::plan(site.with_shards(Some(2))).await.map(|migration| migration.changes().count());
    assert!(refused.expect_err("somebody means that").to_string().contains("takes no writes"));
    let (job, bodies) = (Arc::new(Job::clone(&submitted("a"))), vec![]);
    let written = one(&*site.store, Write::Create { job, bodies }).await;
    assert!(matches!(written, Err(WriteError::Refused(StoreError::OutOfOrder(_)))), "{written:?}");
}

async fn jobs_and_bodies_have_the_shards_that_are_set_and_the_others_one(server: &'static SearchServer) {
    let indices = server.own_indices("shards");
    let own = patient(indices.url(), indices.prefix());
    let options = ElasticsearchOptions { shards: Some(3), replicas: Some(0), ..own };
    let _store = connect(options.clone()).await;
    let shards = async |name: &str| {
        let path = format!("{{prefix}}{name}-000001?flat_settings=true");
        let found = at(&options, Method::GET, &path, None).await;
        let settings = found.as_object().and_then(|found| Some(&found.values().next()?["settings"])).cloned();
        let settings = settings.expect("an index");
        assert_eq!(settings["index.number_of_replicas"], "0");
        settings["index.number_of_shards"].clone()
    };
    assert_eq!([shards("jobs").await, shards("bodies").await], ["3", "3"]);
    assert_eq!([shards("records").await, shards("schedules").await], ["1", "1"]);
    let template = at(&options, Method::GET, "_index_template/{prefix}archive", None).await;
    let settings = &template["index_templates"][0]["index_template"]["template"]["settings"];
    assert_eq!(settings["index"]["number_of_shards"], "1", "{template}");

    // The replicas of all indices, in place.
    let with = |replicas| ElasticsearchOptions { replicas: Some(replicas), shards: None, ..options.clone() };
    let changes = |migration: &Migration| migration.changes().filter(|change| change.contains("replicas")).count();
    let migration = Migration::plan(with(1)).await.expect("planned");
    assert_eq!(changes(&migration), 4);
    migration.apply(|_| {}).await.expect("done");
    assert_eq!(changes(&Migration::plan(with(1)).await.expect("planned")), 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: three nodes of Elasticsearch for it alone"]
async fn on_three_nodes_an_index_is_split_over_them_and_shrunk_when_its_shards_have_come_together() {
    let cluster = Cluster::start(3).await;
    let site = Site::at(cluster.indices("resize"), 1, 1, None).await;
    let writer = site.write_on(site.create_many().await);
    site.migrate(Some(6)).await;
    site.is_clean(6).await;
    let path = "_cluster/health/{prefix}jobs?wait_for_status=green&wait_for_no_relocating_shards=true&timeout=60s";
    let health = at(&site.options, Method::GET, path, None).await;
    assert_eq!(health["active_shards"], 12, "{health}");
    site.migrate(Some(2)).await;
    site.is_clean(2).await;
    site.holds(&writer.end().await).await;
    let health = at(&site.options, Method::GET, path, None).await;
    assert_eq!(health["active_shards"], 4, "{health}");
}

on_servers!(std::future::ready;
    writes_wait_and_versions_stay_while_an_index_is_split_and_shrunk,
    [every_night_on_opensearch] a_split_goes_on_or_is_taken_back_wherever_it_ended,
    [every_night] a_shrinking_goes_on_or_is_taken_back_wherever_it_ended,
    [every_night] a_change_that_is_out_of_time_is_taken_back_wherever_that_ends,
    [every_night] two_changes_at_once_do_no_harm,
    a_number_that_cannot_be_made_is_refused_before_anything_is_done,
    a_block_that_nobody_lifts_is_noticed_and_the_next_migration_lifts_it,
    a_block_that_is_nobodys_is_left_alone,
    jobs_and_bodies_have_the_shards_that_are_set_and_the_others_one,
);
