//! Indices as an earlier version made them, with jobs in them, brought up to date: in one go, in pieces, twice at once.

use leasehold::clock::{Clock, SystemClock};
use leasehold::job::{JobId, JobState};
use leasehold::query::{Filter, Search, Sort};
use leasehold::store::Store;
use leasehold::store::elasticsearch::{ElasticsearchOptions, ElasticsearchStore, Migration};
use serde_json::{Value, json};

use super::is_moved;
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::servers::{IndexSet, Refreshed, SearchServer};
use crate::store::elasticsearch::connect;
use crate::store::sample::id;

/// The mappings, by the names of their indices.
pub(crate) const MAPPINGS: [(&str, &str); 3] = [
    ("bodies", include_str!("../../../../mappings/bodies.json")),
    ("records", include_str!("../../../../mappings/records.json")),
    ("jobs", include_str!("../../../../mappings/jobs.json")),
];
/// Fields of jobs that the earlier version lacked.
const ADDED: [&str; 2] = ["wait_ms", "run_time_ms"];
/// A job as the earlier version wrote it.
const JOB: &str = include_str!("job.json");
const JOBS: [&str; 3] = ["a", "b", "c"];
/// More requests than a migration takes.
const MANY: u64 = 9;

/// Makes the definition of an index one of an earlier version, under the alias `name`.
pub(crate) fn make_former(definition: &mut Value, name: &str) {
    definition["mappings"]["_meta"]["leasehold"]["version"] = json!(0);
    definition["aliases"] = json!({ name: {} });
    let properties = definition["mappings"]["properties"].as_object_mut().expect("fields");
    properties.retain(|name, _| !ADDED.contains(&name.as_str()));
}

/// A search server with indices of an earlier version.
struct Former {
    server: &'static SearchServer,
    labels: &'static str,
}

impl Former {
    /// Makes the indices, under a prefix of their own, with `change` made to the mapping of jobs.
    async fn make(&self, change: impl FnOnce(&mut Value)) -> (ElasticsearchOptions, IndexSet) {
        let indices = self.server.own_indices("former");
        let options = Refreshed::OnRequest.options(indices.url(), indices.prefix());
        let mut change = Some(change);
        for (name, mapping) in MAPPINGS {
            let mut definition: Value = serde_json::from_str(mapping).expect("JSON");
            let alias = format!("{}{name}", options.index_prefix);
            make_former(&mut definition, &alias);
            definition["settings"]["index"]["number_of_replicas"] = json!(0);
            if name == "jobs" {
                definition["mappings"]["properties"]["labels"] = match self.labels {
                    "flattened" => json!({ "type": "flattened", "ignore_above": 1024 }),
                    other => json!({ "type": other }),
                };
                if let Some(change) = change.take() {
                    change(&mut definition);
                }
            }
            self.put(&format!("{alias}-000001"), &definition).await;
        }
        for job in JOBS {
            let mut document: Value = serde_json::from_str(JOB).expect("JSON");
            document["id"] = json!(job);
            self.put(&format!("{}jobs/_doc/{job}?refresh=true", options.index_prefix), &document).await;
        }
        (options, indices)
    }

    async fn put(&self, path: &str, body: &Value) {
        let request = reqwest::Client::new().put(format!("{}/{path}", self.server.url())).json(body);
        let answer = request.send().await.expect("the server answers");
        assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap_or_default());
    }
}

async fn migrate(options: &ElasticsearchOptions) -> usize {
    let migration = Migration::plan(options.clone()).await.expect("it can be migrated");
    let mut done = 0;
    migration.apply(|_| done += 1).await.expect("it is migrated");
    done
}

async fn refusal(options: &ElasticsearchOptions) -> String {
    let refused = ElasticsearchStore::connect(options.clone()).await;
    refused.expect_err("an index of an earlier version is refused").to_string()
}

/// Everything that was there is there, and moves as what is new does.
async fn holds_its_jobs(options: &ElasticsearchOptions) {
    let store = connect(options.clone()).await;
    let ids = JOBS.map(id);
    let before = store.get(&ids).await.expect("readable");
    for (id, found) in ids.iter().zip(&before) {
        let found = found.as_ref().expect("a job of the earlier version");
        assert_eq!((&found.job.id, found.job.state.name()), (id, JobState::Failed));
        assert_eq!(found.job.spec.labels.get("team").map(String::as_str), Some("blue"));
    }
    let now = SystemClock::default().now();
    assert_eq!(store.archive(now, 100).await.expect("archives").moved, JOBS.len());
    crate::engines::refresh(&store).await;
    let search = Search { filter: Filter::default(), sort: Sort::default(), after: None, limit: 10 };
    let found = store.search(&search).await.expect("searchable");
    assert!(found.iter().all(is_moved));
    assert_eq!(found.iter().map(|found| found.job.id.clone()).collect::<Vec<JobId>>(), ids);
    for (before, found) in before.iter().flatten().zip(&found) {
        assert_eq!(before.job, found.job);
    }
}

async fn an_earlier_versions_indices_are_refused_until_they_are_migrated(former: Former) {
    let (options, _indices) = former.make(|_| {}).await;
    assert!(refusal(&options).await.contains("leasehold migrate"));
    // Planning changes nothing.
    let planned = Migration::plan(options.clone()).await.expect("it can be migrated");
    assert!(planned.changes().count() > 3 && planned.changes().any(|change| change.contains("run_time_ms, wait_ms")));
    assert!(refusal(&options).await.contains("leasehold migrate"));

    assert_eq!(migrate(&options).await, planned.changes().count());
    assert_eq!(migrate(&options).await, 0, "there is nothing left to do");
    holds_its_jobs(&options).await;
    assert_eq!(migrate(&options).await, 0, "the archive is made as it should be");
}

async fn a_migration_goes_on_wherever_the_one_before_ended(former: Former) {
    for requests in 0.. {
        assert!(requests < MANY, "it comes to its end");
        let (options, _indices) = former.make(|_| {}).await;
        let proxy =
            FaultProxy::start(former.server.url(), Faults { one_in: 1, seed: 1, kinds: vec![Fault::Reset] }).await;
        let through = ElasticsearchOptions { urls: vec![proxy.url()], ..options.clone() };
        let migration = Migration::plan(through).await.expect("it can be migrated");
        proxy.allow(Some(requests));
        let is_whole = migration.apply(|_| {}).await.is_ok();
        if !is_whole {
            migrate(&options).await;
        }
        assert_eq!(migrate(&options).await, 0);
        holds_its_jobs(&options).await;
        if is_whole {
            assert!(requests >= 3, "it was interrupted only {requests} times");
            break;
        }
    }
}

async fn two_migrations_at_once_do_no_harm(former: Former) {
    let (options, _indices) = former.make(|_| {}).await;
    let (one, other) = tokio::join!(Migration::plan(options.clone()), Migration::plan(options.clone()));
    let (one, other) = (one.expect("it can be migrated"), other.expect("it can be migrated"));
    let (one, other) = tokio::join!(one.apply(|_| {}), other.apply(|_| {}));
    one.and(other).expect("both come to their end");
    holds_its_jobs(&options).await;
}

async fn what_cannot_be_changed_in_place_is_refused_before_anything_is_done(former: Former) {
    let (options, _text) =
        former.make(|definition| definition["mappings"]["properties"]["queue"] = json!({"type": "text"})).await;
    let refused = Migration::plan(options.clone()).await.map(|migration| migration.changes().count());
    let refused = refused.expect_err("a text is no keyword").to_string();
    assert!(refused.contains("`queue`") && refused.contains("another index prefix"), "{refused}");
    assert!(refusal(&options).await.contains("leasehold migrate"));

    let (options, _foreign) = former.make(|definition| definition["mappings"]["_meta"] = json!({})).await;
    let refused = Migration::plan(options).await.map(|migration| migration.changes().count());
    assert!(refused.expect_err("somebody else's").to_string().contains("no mapping of leasehold's"));
}

macro_rules! on_each_server {
    ($($case:ident),* $(,)?) => {
        mod on_elasticsearch {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    let server = crate::servers::elasticsearch().await;
                    super::$case(super::Former { server, labels: "flattened" }).await;
                }
            )*
        }
        mod on_opensearch {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    let server = crate::servers::opensearch().await;
                    super::$case(super::Former { server, labels: "flat_object" }).await;
                }
            )*
        }
    };
}

on_each_server!(
    an_earlier_versions_indices_are_refused_until_they_are_migrated,
    a_migration_goes_on_wherever_the_one_before_ended,
    two_migrations_at_once_do_no_harm,
    what_cannot_be_changed_in_place_is_refused_before_anything_is_done,
);
