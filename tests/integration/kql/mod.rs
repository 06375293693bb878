//! The query language on real servers: whatever the evaluator says of a job, the server says too.
//!
//! Jobs and queries are made up at random from a seed that a failure names (`LEASEHOLD_KQL_SEED` repeats it), and the
//! query is made as short as it can be and still fail.

mod embedded;
mod jobs;
mod queries;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::clock::{Clock, SystemClock, Timestamp};
use leasehold::job::{Job, NewBody, Owner};
use leasehold::query::fields::LABELS;
use leasehold::query::kql::plan::{self, Clause, Plan, Target, Test};
use leasehold::query::kql::{Expression, MAX_DEPTH, MAX_PATTERN, Zone};
use leasehold::store::elasticsearch::{ElasticsearchOptions, kql};
use leasehold::store::{Store, Write};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::servers;

/// How many jobs are asked.
const JOBS: usize = 1_000;
/// How many go in one write.
const BATCH: usize = 250;
/// The seed, unless `LEASEHOLD_KQL_SEED` names another.
const SEED: u64 = 20_261_121;

/// An index with jobs, and the same jobs in memory.
struct Comparison {
    client: reqwest::Client,
    search: String,
    jobs: Vec<Arc<Job>>,
}

impl Comparison {
    async fn on(url: &str, seed: u64) -> Self {
        let prefix = servers::fresh_prefix("kql");
        let search = format!("{url}/{prefix}jobs/_search");
        let options = ElasticsearchOptions {
            urls: vec![url.to_owned()],
            index_prefix: prefix,
            ..ElasticsearchOptions::default()
        };
        let store = crate::store::elasticsearch::connect(options).await;
        let made = jobs::made_up(seed, JOBS, SystemClock::default().now());
        for batch in made.chunks(BATCH) {
            let create = |(job, bodies): &(Arc<Job>, Vec<NewBody>)| Write::Create {
                job: Arc::clone(job),
                bodies: bodies.clone(),
            };
            for result in store.write(batch.iter().map(create).collect()).await {
                result.expect("the job is written");
            }
        }
        crate::engines::refresh(&store).await;
        store.close().await;
        let jobs = made.into_iter().map(|(job, _)| job).collect();
        Self { client: reqwest::Client::new(), search, jobs }
    }

    /// The jobs that the server finds.
    async fn found(&self, expression: &Expression) -> Result<BTreeSet<String>, String> {
        let body = json!({
            "query": { "bool": { "filter": [kql::compile(expression)] } },
            "size": JOBS,
            "_source": false,
            "docvalue_fields": ["id"],
        });
        let answer = self.client.post(&self.search).json(&body).send().await.map_err(|error| error.to_string())?;
        let answer: Value = answer.json().await.map_err(|error| error.to_string())?;
        let Some(hits) = answer["hits"]["hits"].as_array() else { return Err(answer.to_string()) };
        let id = |hit: &Value| hit["fields"]["id"][0].as_str().map(str::to_owned);
        hits.iter().map(|hit| id(hit).ok_or_else(|| hit.to_string())).collect()
    }

    /// The jobs that the evaluator finds.
    fn expected(&self, expression: &Expression, now: Timestamp) -> BTreeSet<String> {
        let matching = self.jobs.iter().filter(|job| expression.matches(job, now));
        matching.map(|job| job.id.to_string()).collect()
    }

    /// Holds one against the other; gives how many jobs were found.
    async fn agree(&self, expression: &Expression) -> Result<usize, String> {
        let clock = SystemClock::default();
        let sent = clock.now();
        let mut expected = self.expected(expression, sent);
        let found = self.found(expression).await.map_err(|error| format!("the server refuses it: {error}"))?;
        // `now` in a query is the millisecond in which the server takes it up: any between sending and answer.
        let moments = sent.as_millis()..=clock.now().as_millis();
        let differing: Vec<String> = found.symmetric_difference(&expected).cloned().collect();
        for job in self.jobs.iter().filter(|job| differing.iter().any(|id| id == job.id.as_str())) {
            let is_found = found.contains(job.id.as_str());
            if moments.clone().any(|now| expression.matches(job, Timestamp::from_millis(now)) == is_found) {
                match is_found {
                    true => expected.insert(job.id.to_string()),
                    false => expected.remove(job.id.as_str()),
                };
            }
        }
        if found != expected {
            return Err(self.difference(expression, &found, &expected));
        }
        if let Some(job) =
            self.jobs.iter().find(|job| found.contains(job.id.as_str()) && !within_bounds(expression, job))
        {
            return Err(format!("found, and outside of {:?}: {job:?}", expression.bounds(clock.now())));
        }
        Ok(found.len())
    }

    fn difference(&self, expression: &Expression, found: &BTreeSet<String>, expected: &BTreeSet<String>) -> String {
        let told = |ids: Vec<&String>| {
            let first = ids.first().and_then(|id| self.jobs.iter().find(|job| job.id.as_str() == id.as_str()));
            format!("{} jobs, the first {first:#?}", ids.len())
        };
        format!(
            "\nasked: {}\ncompiled: {}\nfound only by the server: {}\nfound only by the evaluator: {}",
            expression.text(),
            serde_json::to_string(&kql::compile(expression)).expect("JSON"),
            told(found.difference(expected).collect()),
            told(expected.difference(found).collect()),
        )
    }
}

fn within_bounds(expression: &Expression, job: &Job) -> bool {
    let bounds = expression.bounds(SystemClock::default().now());
    let any = |field: &str, value: Option<&str>| {
        bounds.texts(field).is_none_or(|wanted| value.is_some_and(|value| wanted.iter().any(|text| text == value)))
    };
    any("id", Some(job.id.as_str()))
        && any("state", Some(job.state.name().as_str()))
        && any("queue", Some(job.spec.queue.as_str()))
        && any("kind", Some(job.spec.kind.as_str()))
        && any("owner", job.spec.owner.as_ref().map(Owner::as_str))
}

fn seed() -> u64 {
    std::env::var("LEASEHOLD_KQL_SEED").map_or(SEED, |seed| seed.parse().expect("LEASEHOLD_KQL_SEED is a number"))
}

/// Whether the query asks for labels otherwise than by a whole value. OpenSearch has another type of field for them,
/// which has no bound on their length and other ideas of their parts and order.
fn asks_for_parts_of_labels(plan: &Plan) -> bool {
    let in_part = |clause: &Clause| match &clause.target {
        Target::Field(field) => field.name == LABELS && !matches!(clause.test, Test::Equals(_)),
        Target::Label(name) => name == "long",
        Target::Resource(_) | Target::Group(_) => false,
    };
    match plan {
        Plan::All | Plan::Nothing => false,
        Plan::And(plans) | Plan::Or(plans) => plans.iter().any(asks_for_parts_of_labels),
        Plan::Not(plan) | Plan::InHistory(plan) => asks_for_parts_of_labels(plan),
        Plan::Fields(clauses) | Plan::Anywhere { clauses, .. } => clauses.iter().any(in_part),
    }
}

/// Asks the server and the evaluator `count` random queries of those that are `fit`, and of [`queries::CASES`].
async fn differ_nowhere(url: &str, count: u32, fit: fn(&Plan) -> bool) {
    let seed = seed();
    let comparison = Comparison::on(url, seed).await;
    for query in queries::CASES {
        let expression = Expression::parse(query).unwrap_or_else(|error| panic!("{}", error.render()));
        if fit(expression.plan()) {
            comparison.agree(&expression).await.unwrap_or_else(|difference| panic!("seed {seed}: {difference}"));
        }
    }

    // The longest patterns that the language admits, in the shapes that cost a server most.
    for piece in ["a*", "ab*", "aaaa*", "aaaaaaaaaa*", "é*", "漢漢漢漢*", "😀*"] {
        let pattern: String = piece.chars().cycle().take(MAX_PATTERN - 1).collect();
        let text = format!("id: *{pattern} or error.message: *{pattern} or *{pattern}");
        let expression = Expression::parse(&text).unwrap_or_else(|error| panic!("{}", error.render()));
        comparison.agree(&expression).await.unwrap_or_else(|difference| panic!("{piece}: {difference}"));
    }

    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config { cases: count, failure_persistence: None, max_global_rejects: count * 4, ..Config::default() };
    let (told_apart, all_asked) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let result = TestRunner::new_with_rng(config, rng).run(&queries::any_query(), |query| {
        let zone = ["Z", "Z", "Z", "+05:30", "America/New_York"][query.len() % 5];
        let zone = Zone::parse(zone).expect("a zone");
        // Some values do not fit their fields; what is refused is not asked.
        let expression = Expression::parse_in(&query, zone).map_err(|_| TestCaseError::reject("refused"))?;
        if !fit(expression.plan()) {
            return Err(TestCaseError::reject("not for this server"));
        }
        let agreed = tokio::task::block_in_place(|| Handle::current().block_on(comparison.agree(&expression)));
        let found = agreed.map_err(TestCaseError::fail)?;
        all_asked.fetch_add(1, Ordering::Relaxed);
        told_apart.fetch_add(usize::from(found > 0 && found < JOBS), Ordering::Relaxed);
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, query)) => panic!("seed {seed}, at its shortest: {query}\n{why}"),
        Err(TestError::Abort(why)) => panic!("seed {seed}: {why}"),
    }
    let (told_apart, all_asked) = (told_apart.into_inner(), all_asked.into_inner());
    assert!(told_apart * 3 > all_asked, "only {told_apart} of {all_asked} queries told jobs apart");
}

#[tokio::test(flavor = "multi_thread")]
async fn elasticsearch_and_the_evaluator_find_the_same_jobs() {
    differ_nowhere(servers::elasticsearch().await.url(), 3_000, |_| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opensearch_and_the_evaluator_find_the_same_jobs() {
    differ_nowhere(servers::opensearch().await.url(), 1_000, |plan| !asks_for_parts_of_labels(plan)).await;
}

#[tokio::test]
async fn the_deepest_and_the_widest_query_can_be_asked() {
    let comparison = Comparison::on(servers::elasticsearch().await.url(), seed()).await;
    let deep = format!("{}*actor: *{}", "not (".repeat(MAX_DEPTH), ")".repeat(MAX_DEPTH));
    let wide = format!("id: ({})", vec!["x*"; plan::MAX_COMPARISONS].join(" or "));
    let wild = format!("error.message: {}z", "a*".repeat(MAX_PATTERN / 2 - 1));
    for query in [deep, wide, wild] {
        let expression = Expression::parse(&query).unwrap_or_else(|error| panic!("{}", error.render()));
        comparison.agree(&expression).await.unwrap_or_else(|difference| panic!("{difference}"));
    }
}
