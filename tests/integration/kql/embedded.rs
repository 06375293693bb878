//! The query language on the embedded store, whose indexes answer what they can: the same jobs and schedules as the
//! evaluator finds among all, however the question is put, and never more stored jobs read than there are finished
//! jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold::clock::{Clock, SystemClock, Timestamp};
use leasehold::job::{Job, JobId, NewBody, ScheduleId};
use leasehold::query::kql::{Expression, Zone};
use leasehold::query::table::Table;
use leasehold::query::{Direction, Filter, GroupField, Query, ScheduleFilter, Search, Sort, SortField, SortKey};
use leasehold::schedule::Schedule;
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use leasehold::store::{ListSchedules, ScheduleWrite, Store, Write};
use proptest::prelude::Strategy;
use proptest::test_runner::TestCaseError;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::{jobs, queries, schedules, tell_apart};
use crate::machine::Budget;
use crate::seed;

/// Few enough for dozens of blocks.
const BLOCK_JOBS: usize = 16;
/// How many jobs or schedules are searched.
const JOBS: usize = 300;

/// A question to each index.
const INDEXED: &[&str] = &[
    "state: failed",
    "state: (completed or running)",
    "queue: alpha",
    "queue: \"a*b\"",
    "kind: Render",
    "owner: \"team a\"",
    "run_at < now",
    "run_at: now/d",
    "run_at >= now+1d",
    "created_at > now-1d",
    "created_at <= now-1h",
    "updated_at >= now",
    "finished_at <= now",
    "finished_at > now+20d",
    "finished_at: *",
    "lease.worker_id: w-1",
    "lease.worker_id: (w-2 or \"rack 3/7\")",
    "id: (job-8 or \"Job 9\" or 10)",
];

/// A question that none of them answers.
const UNINDEXED: &[&str] = &[
    "labels.team: blue",
    "resources.gpus >= 5",
    "error.message: memory",
    "history: { to: running }",
    "priority > 0",
    "lease: *",
    "owner: t*",
];

struct Stored {
    store: EmbeddedStore,
    jobs: Vec<Arc<Job>>,
    now: Timestamp,
    /// After the store, which has files in it.
    _directory: TempDir,
}

impl Stored {
    async fn fresh() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let options = EmbeddedOptions { block_jobs: BLOCK_JOBS, ..EmbeddedOptions::default() };
        let store = EmbeddedStore::open(directory.path(), &options).expect("the store can be opened");
        let now = SystemClock::default().now();
        let made = jobs::made_up(seed::usual(), JOBS, now);
        // Small batches: a block is made after a batch.
        for batch in made.chunks(BLOCK_JOBS) {
            let create = |(job, bodies): &(Arc<Job>, Vec<NewBody>)| Write::Create {
                job: Arc::clone(job),
                bodies: bodies.clone(),
            };
            for result in store.write(batch.iter().map(create).collect()).await {
                result.expect("the job is written");
            }
        }
        Self { store, jobs: made.into_iter().map(|(job, _)| job).collect(), now, _directory: directory }
    }

    fn settled(&self) -> usize {
        self.jobs.iter().filter(|job| job.is_settled()).count()
    }

    async fn ids(&self, filter: &Filter, sort: Sort, limit: usize) -> Vec<JobId> {
        let search = Search { filter: filter.clone(), sort, after: None, limit };
        let found = self.store.search(&search).await.expect("searchable");
        found.into_iter().map(|found| found.job.id.clone()).collect()
    }

    /// Holds the store against the evaluator; gives how many jobs were found.
    async fn agree(&self, query: &str) -> Result<usize, String> {
        let expression = Arc::new(Expression::parse(query).map_err(|error| error.render())?);
        let filter = Filter { query: Some(Query { expression, now: self.now }), ..Filter::default() };
        let matching: Vec<&Arc<Job>> = self.jobs.iter().filter(|job| filter.matches(job)).collect();
        let read_before = self.store.finished_jobs_read();
        let by = GroupField::ALL;
        let groups = self.store.count(&filter, &by).await.map_err(|error| error.to_string())?;
        let read = (self.store.finished_jobs_read() - read_before) as usize;
        if read > self.settled() {
            return Err(format!("{query}: {read} stored jobs were read of {} finished jobs", self.settled()));
        }
        let mut wanted: BTreeMap<Vec<Option<String>>, u64> = BTreeMap::new();
        for job in &matching {
            *wanted.entry(by.iter().map(|field| field.value(job).map(str::to_owned)).collect()).or_default() += 1;
        }
        let counted: BTreeMap<_, _> = groups.iter().map(|group| (group.values.clone(), group.count)).collect();
        if counted != wanted || groups.len() != wanted.len() {
            return Err(format!("{query}: counted {groups:?}, where {wanted:?} match"));
        }
        for (sort, limit) in [
            (Sort::default(), JOBS),
            (Sort::By(SortField::RunAt, Direction::Ascending), 7),
            (Sort::By(SortField::FinishedAt, Direction::Descending), 7),
            (Sort::Dispatch, 40),
        ] {
            let mut keys: Vec<SortKey> = matching.iter().map(|job| sort.key(job)).collect();
            keys.sort();
            let wanted: Vec<JobId> = keys.into_iter().take(limit).map(|key| key.id().clone()).collect();
            let found = self.ids(&filter, sort, limit).await;
            if found != wanted {
                let (found, wanted) = (BTreeSet::from_iter(found), BTreeSet::from_iter(wanted));
                let (more, less) = (found.difference(&wanted), wanted.difference(&found));
                let (more, less) = (more.collect::<Vec<_>>(), less.collect::<Vec<_>>());
                return Err(format!("{query}, by {sort:?}: too many {more:?}, missing {less:?}"));
            }
        }
        Ok(matching.len())
    }
}

/// Holds a store against the evaluator with queries made up at random, of those about `table`.
fn agrees(table: Table, queries: impl Strategy<Value = String>, agree: impl Fn(&str) -> Result<usize, String>) {
    tell_apart(JOBS, queries, |query| {
        Expression::parse_about(table, query, Zone::default()).map_err(|_| TestCaseError::reject("refused"))?;
        tokio::task::block_in_place(|| agree(query)).map_err(TestCaseError::fail)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_store_and_the_evaluator_find_the_same_jobs() {
    let stored = Stored::fresh().await;
    for query in queries::CASES {
        stored.agree(query).await.unwrap_or_else(|difference| panic!("seed {}: {difference}", seed::usual()));
    }
    agrees(Table::Jobs, queries::any_query(), |query| Handle::current().block_on(stored.agree(query)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_store_and_the_evaluator_find_the_same_schedules() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    // Some lie in the database, and some are in memory.
    let options = EmbeddedOptions { flush_changes: 70, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(directory.path(), &options).expect("the store can be opened");
    let now = SystemClock::default().now();
    let mut made = schedules::made_up(seed::usual(), JOBS, now);
    for batch in made.chunks(BLOCK_JOBS) {
        let create = |schedule: &Arc<Schedule>| ScheduleWrite::Create { schedule: Arc::clone(schedule) };
        for result in store.write_schedules(batch.iter().map(create).collect()).await {
            result.expect("the schedule is written");
        }
    }
    made.sort_by(|one, other| one.id.cmp(&other.id));
    let agree = |query: &str| {
        let expression = Expression::parse_about(Table::Schedules, query, Zone::default());
        let expression = Arc::new(expression.map_err(|error| error.render())?);
        let filter = ScheduleFilter { query: Some(Query { expression, now }), ..ScheduleFilter::default() };
        let wanted: Vec<&ScheduleId> = made.iter().filter(|made| filter.matches(made)).map(|made| &made.id).collect();
        let count = Handle::current().block_on(store.count_schedules(&filter)).map_err(|error| error.to_string())?;
        for (skipped, limit) in [(0, JOBS), (7, 5)] {
            let after = wanted.get(skipped).filter(|_| skipped > 0).copied().cloned();
            let rest = wanted.iter().skip(if after.is_some() { skipped + 1 } else { 0 });
            let rest: Vec<&ScheduleId> = rest.copied().take(limit).collect();
            let list = ListSchedules { filter: filter.clone(), after, limit };
            let found = Handle::current().block_on(store.list_schedules(&list)).map_err(|error| error.to_string())?;
            let found: Vec<&ScheduleId> = found.iter().map(|found| &found.schedule.id).collect();
            if found != rest {
                return Err(format!("{query}: found {found:?}, where {rest:?} match"));
            }
        }
        if count != wanted.len() as u64 {
            return Err(format!("{query}: counted {count}, where {} match", wanted.len()));
        }
        Ok(wanted.len())
    };
    for query in schedules::CASES {
        let agreed = tokio::task::block_in_place(|| agree(query));
        agreed.unwrap_or_else(|difference| panic!("seed {}: {difference}", seed::usual()));
    }
    agrees(Table::Schedules, schedules::any_query(), agree);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_index_gives_the_same_jobs_alone_and_beside_what_has_none() {
    let stored = Stored::fresh().await;
    for one in INDEXED {
        for query in [(*one).to_owned(), format!("not {one}")] {
            stored.agree(&query).await.unwrap_or_else(|difference| panic!("{difference}"));
        }
    }
    let mut queries = Vec::new();
    for (number, one) in INDEXED.iter().enumerate() {
        for other in UNINDEXED {
            queries.push(format!("{one} and {other}"));
            queries.push(format!("{one} or {other}"));
            queries.push(format!("{one} and not {other}"));
            queries.push(format!("not {one} and {other}"));
            queries.push(format!("not ({one} or {other})"));
        }
        for other in &INDEXED[number + 1..] {
            queries.push(format!("{one} and {other}"));
            queries.push(format!("{one} or {other}"));
            queries.push(format!("({one} or {other}) and {}", UNINDEXED[number % UNINDEXED.len()]));
            queries.push(format!("{one} and not {other}"));
        }
    }
    // As many of them as the budget allows: the same ones for every change, and all of them at night.
    queries.shuffle(&mut StdRng::seed_from_u64(seed::usual()));
    let budget = Budget::begin();
    for query in queries {
        if !budget.is_left() {
            break;
        }
        stored.agree(&query).await.unwrap_or_else(|difference| panic!("seed {}: {difference}", seed::usual()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_index_knows_is_not_looked_up_in_stored_jobs() {
    let stored = Stored::fresh().await;
    for (query, wanted) in [
        ("state: failed", 0),
        ("queue: alpha and kind: (Render or render)", 0),
        ("created_at > now-1d", 0),
        ("lease.worker_id: w-1", 0),
        ("id: job-8", 1),
        ("queue: alpha and owner: \"team a\" and labels.team: blue", stored.settled() / 10),
        ("labels.team: blue", stored.settled()),
        ("owner: t* and priority > 0 and not run_at < now", stored.settled()),
        ("history: { to: running } or error: *", stored.settled()),
    ] {
        let expression = Arc::new(query.parse().expect("a query"));
        let filter = Filter { query: Some(Query { expression, now: stored.now }), ..Filter::default() };
        let before = stored.store.finished_jobs_read();
        stored.store.count(&filter, &[]).await.expect("countable");
        let counted = stored.store.finished_jobs_read();
        assert!(counted - before <= wanted as u64, "{query}: a count read {} jobs", counted - before);
        stored.ids(&filter, Sort::default(), 5).await;
        let listed = stored.store.finished_jobs_read() - counted;
        assert!(listed <= wanted as u64 + 5, "{query}: a list of five read {listed} jobs");
    }
}
