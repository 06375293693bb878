//! Measures how much a large archive slows down what has to be fast: claims, and lists of live jobs.
//!
//! Two stores stand side by side, one empty and one with an archive of jobs that have ended. Round after round the same
//! work is done on the one and then on the other, so that what else happens on the machine happens to both. What is
//! measured is the manager in this process, without the way over HTTP.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::args::BenchArgs;
use super::query::{self, jobs, jobs::valid};
use super::report::Latencies;
use super::target;
use crate::cli::failure::Failure;
use crate::cli::output::{facts_table, print, print_json, table};
use crate::clock::{Clock, SystemClock};
use crate::job::{Actor, Kind, QueueName, WorkerId};
use crate::manager::{Caller, ClaimOrder, ClaimRequest, Finish, Manager, ManagerConfig, NewJob, Outcome, Reach};
use crate::query::{Filter, Search, Sort};
use crate::store::{Refresh, Store, Versioned, Write};

const DEFAULT_JOBS: u32 = 1_000_000;
const DEFAULT_LIVE: u32 = 10_000;
const ROUNDS: u32 = 5;
const QUEUES: usize = 10;
const WORKERS: usize = 8;
/// How many jobs a claim takes.
const BATCH: usize = 10;
/// How many jobs go in one submission, or one of the calls that clear up.
const CALL: usize = 1_000;
/// How often each list is read in a round.
const LISTS: usize = 20;
/// How many jobs a list shows.
const LIMIT: usize = 100;
/// The lists that are read: all live jobs, and those of one queue.
const LISTED: [&str; 2] = ["state: (available or running)", "state: (available or running) and queue: bench-3"];
/// How long one round of claims may take.
const GIVE_UP: Duration = Duration::from_secs(300);
const WAIT: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(600);
/// By then the store has nothing left to move or remove.
const LATER: Duration = Duration::from_secs(24 * 3600);
/// How many jobs are moved with one call.
const MOVED_AT_ONCE: usize = 5_000;

/// A store and its measurements.
struct Side {
    name: &'static str,
    store: Arc<dyn Store>,
    manager: Manager,
    /// The latencies of claims that got jobs, and of lists.
    claim: Latencies,
    list: Latencies,
    claimed: u64,
    claiming: Duration,
    _directory: tempfile::TempDir,
}

/// Runs the scenario and prints its result.
pub(super) async fn run(args: &BenchArgs) -> Result<(), Failure> {
    let (jobs, live) = (args.jobs.unwrap_or(DEFAULT_JOBS), args.live.unwrap_or(DEFAULT_LIVE));
    let mut empty = Side::open(args, "no history").await?;
    let mut long = Side::open(args, "a long history").await?;
    let filled = long.fill(jobs).await?;
    for _ in 0..ROUNDS {
        empty.round(live).await?;
        long.round(live).await?;
    }
    print_result(args, jobs, live, filled, [&empty, &long])?;
    empty.close().await;
    long.close().await;
    Ok(())
}

impl Side {
    async fn open(args: &BenchArgs, name: &'static str) -> Result<Self, Failure> {
        let directory = target::scratch_directory()?;
        let store = query::open(args, directory.path().to_owned()).await?;
        let manager = Manager::start(Arc::clone(&store), Arc::new(SystemClock::default()), ManagerConfig::default());
        let (claim, list) = (Latencies::new("claim")?, Latencies::new("list")?);
        Ok(Self { name, store, manager, claim, list, claimed: 0, claiming: Duration::ZERO, _directory: directory })
    }

    /// Fills the store with jobs that have ended and moves them to the archive. Returns how long each took.
    async fn fill(&self, jobs: u32) -> Result<[Duration; 2], Failure> {
        let begun = Instant::now();
        query::fill_with(&*self.store, jobs::made_up(jobs, 0, SystemClock::default().now())).await?;
        let filled = begun.elapsed();
        // First all is moved; then what the moves left behind has been waited for as well.
        for days in 1..=2 {
            let later = SystemClock::default().now().plus(LATER * days);
            // Ends: each call gets something done, or is the last.
            while self.store.archive(later, MOVED_AT_ONCE).await.map_err(Failure::failed)?.more {}
        }
        self.store.refresh(Refresh::Jobs(&Filter::default())).await.map_err(Failure::failed)?;
        Ok([filled, begun.elapsed().saturating_sub(filled)])
    }

    /// Submits jobs, lists them, claims them all, and clears up.
    async fn round(&mut self, live: u32) -> Result<(), Failure> {
        self.submit(live).await?;
        for query in LISTED {
            for _ in 0..LISTS {
                self.list(query).await?;
            }
        }
        let begun = Instant::now();
        let all = usize::try_from(live).unwrap_or(usize::MAX);
        let mut claimed: Vec<Versioned> = Vec::with_capacity(all);
        while claimed.len() < all {
            if begun.elapsed() > GIVE_UP {
                let message = format!("of {all} jobs only {} could be claimed in time", claimed.len());
                return Err(Failure::Failed(message));
            }
            let claims = (0..WORKERS).map(|worker| claim(&self.manager, worker));
            for (took, jobs) in futures::future::try_join_all(claims).await? {
                if !jobs.is_empty() {
                    self.claim.record(took);
                }
                claimed.extend(jobs);
            }
        }
        self.claiming += begun.elapsed();
        self.claimed += u64::from(live);
        self.clear(claimed).await
    }

    async fn submit(&self, live: u32) -> Result<(), Failure> {
        let (caller, kind, queues) =
            (Caller { name: valid(Actor::new("bench")), reach: Reach::All }, valid(Kind::new("bench")), queues());
        let jobs = (0..live as usize).map(|number| NewJob::new(queues[number % QUEUES].clone(), kind.clone()));
        let jobs: Vec<NewJob> = jobs.collect();
        for call in jobs.chunks(CALL) {
            for submitted in self.manager.submit(&caller, call.to_vec()).await {
                submitted.map_err(Failure::failed)?;
            }
        }
        self.store.refresh(Refresh::Jobs(&Filter::default())).await.map_err(Failure::failed)
    }

    async fn list(&mut self, kql: &str) -> Result<(), Failure> {
        let search = Search { filter: query::filter(kql)?, sort: Sort::default(), after: None, limit: LIMIT };
        let started_at = Instant::now();
        let found = self.manager.search(&search).await.map_err(Failure::failed)?;
        self.list.record(started_at.elapsed());
        match found.len() {
            LIMIT => Ok(()),
            fewer => Err(Failure::Failed(format!("{kql}: only {fewer} jobs are found"))),
        }
    }

    /// Ends the jobs and removes them, so that the next round finds what this one found.
    async fn clear(&self, claimed: Vec<Versioned>) -> Result<(), Failure> {
        for call in claimed.chunks(CALL) {
            let finish = |held: &Versioned| Finish {
                id: held.job.id.clone(),
                fence: held.job.fence,
                outcome: Outcome::Completed { result: None },
            };
            // All leases are one worker's: who holds them is not what is measured.
            let ended = self.manager.finish(&worker(), call.iter().map(finish).collect()).await;
            let ended = ended.into_iter().collect::<Result<Vec<_>, _>>().map_err(Failure::failed)?;
            let removal = |ended: Versioned| Write::Remove { job: ended.job, expected: ended.version };
            for removed in self.store.write(ended.into_iter().map(removal).collect()).await {
                removed.map_err(Failure::failed)?;
            }
        }
        self.store.refresh(Refresh::Jobs(&Filter::default())).await.map_err(Failure::failed)
    }

    async fn close(self) {
        self.manager.shutdown().await;
        self.store.close().await;
    }

    fn claims_per_second(&self) -> f64 {
        self.claimed as f64 / self.claiming.as_secs_f64().max(0.001)
    }
}

fn queues() -> Vec<QueueName> {
    (0..QUEUES).map(|number| valid(QueueName::new(format!("bench-{number}")))).collect()
}

fn worker() -> WorkerId {
    valid(WorkerId::new("bench"))
}

/// Claims once, for a worker that prefers queues of its own. Returns how long that took.
async fn claim(manager: &Manager, number: usize) -> Result<(Duration, Vec<Versioned>), Failure> {
    let mut queues = queues();
    queues.rotate_left(number % QUEUES);
    let request = ClaimRequest {
        worker_id: worker(),
        bearer: None,
        queues,
        max_jobs: BATCH,
        resources: std::collections::BTreeMap::new(),
        labels: std::collections::BTreeMap::new(),
        kinds: Vec::new(),
        wait: WAIT,
        lease: LEASE,
        order: ClaimOrder::default(),
        request_id: None,
        repeated: false,
    };
    let started_at = Instant::now();
    let claimed = manager.claim(request).await.map_err(Failure::failed)?;
    let took = started_at.elapsed();
    let jobs = claimed.jobs().iter().map(|view| view.versioned.clone()).collect();
    claimed.delivered();
    Ok((took, jobs))
}

fn print_result(
    args: &BenchArgs,
    jobs: u32,
    live: u32,
    [filled, moved]: [Duration; 2],
    sides: [&Side; 2],
) -> Result<(), Failure> {
    let [empty, long] = sides;
    let ratio = long.claims_per_second() / empty.claims_per_second().max(0.001);
    let what = format!("{} store", args.store().as_str());
    if args.json {
        let side = |side: &Side| -> Value {
            json!({
                "name": side.name, "claims_per_second": side.claims_per_second(),
                "claim": side.claim.as_json(), "list": side.list.as_json(),
            })
        };
        return print_json(&json!({
            "scenario": "claims", "server": what, "jobs": jobs, "live": live, "filled_s": filled.as_secs_f64(),
            "moved_s": moved.as_secs_f64(), "ratio": ratio, "sides": sides.map(side),
        }));
    }
    let (filled, moved) = (filled.as_secs_f64(), moved.as_secs_f64());
    let facts = [
        ("scenario", "claims".to_owned()),
        ("server", what),
        ("archive", format!("{jobs} jobs, written in {filled:.1} s, moved in {moved:.1} s")),
        ("live jobs", format!("{live}, {ROUNDS} rounds")),
        ("claims with it", format!("{:.1} % of the rate without", ratio * 100.0)),
    ];
    print(&facts_table("bench", facts))?;
    let rows = sides.map(|side| {
        vec![
            side.name.to_owned(),
            format!("{:.0}", side.claims_per_second()),
            side.claim.millis(0.5),
            side.claim.millis(0.99),
            side.list.millis(0.5),
            side.list.millis(0.99),
        ]
    });
    let heads = ["with", "claimed/s", "claim p50 (ms)", "p99", "list p50 (ms)", "p99"];
    print(&table(&heads, rows))
}
