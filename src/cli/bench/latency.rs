//! How long a job takes to reach one of many waiting workers, at a fixed rate.
//!
//! The rate is kept whether or not the server keeps up, and latencies count from the moment at which a job was to be
//! sent: a server that stalls is not spared the jobs that would have come meanwhile (Tene, "How NOT to Measure
//! Latency").

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::connection::{Claimed, Connection, read};
use super::report::{Latencies, Report};
use super::target::Target;
use super::{BenchArgs, job_line};

const DEFAULT_WORKERS: u16 = 2000;
/// How many connections submit.
const SUBMITTERS: usize = 64;
/// How long a claim waits for a job.
const WAIT_MS: u32 = 2000;
/// How long the last jobs may take to be done.
const LAST_WITHIN: Duration = Duration::from_secs(60);

struct Progress {
    /// When each job was to be sent.
    due_at: Vec<Instant>,
    claimed: Vec<bool>,
    twice: u64,
    completions: u64,
    ended_at: Instant,
    submit: Latencies,
    submit_to_claim: Latencies,
    complete: Latencies,
}

/// The jobs that are due and not sent.
struct Due {
    numbers: RefCell<VecDeque<u32>>,
    count: Semaphore,
}

/// What the clients and workers, all on one thread, share.
struct Shared {
    progress: RefCell<Progress>,
    due: Due,
    give_up_at: Cell<Option<Instant>>,
    jobs: u32,
}

/// Measures.
pub(super) async fn measure(args: &BenchArgs, target: &Target) -> Result<Report, String> {
    let jobs = (args.duration.as_secs_f64() * f64::from(args.rate)).ceil().max(1.0) as u32;
    let workers = args.workers.unwrap_or(DEFAULT_WORKERS);
    let opened = (0..workers).map(|_| Connection::open(&target.address));
    let connections = try_join_all(opened).await?;
    let begun = Instant::now();
    let shared = Rc::new(Shared {
        progress: RefCell::new(Progress {
            due_at: (0..jobs).map(|number| begun + due_after(args.rate, number)).collect(),
            claimed: vec![false; jobs as usize],
            twice: 0,
            completions: 0,
            ended_at: begun,
            submit: Latencies::new("submit")?,
            submit_to_claim: Latencies::new("submit to claim")?,
            complete: Latencies::new("complete")?,
        }),
        due: Due { numbers: RefCell::default(), count: Semaphore::new(0) },
        give_up_at: Cell::new(None),
        jobs,
    });
    let submitters = (0..SUBMITTERS).map(|_| submit(args, target, shared.clone()));
    let workers = connections
        .into_iter()
        .enumerate()
        .map(|(number, connection)| work(connection, target, number, shared.clone()));
    tokio::try_join!(pace(args.rate, begun, shared.clone()), try_join_all(submitters), try_join_all(workers))?;

    let progress = Rc::into_inner(shared).ok_or("somebody is still at work")?.progress.into_inner();
    Ok(Report {
        scenario: "latency",
        what: format!("{}, {} jobs a second", target.what, args.rate),
        jobs: u64::from(jobs),
        completions: progress.completions,
        twice: progress.twice,
        wall: progress.ended_at.saturating_duration_since(begun + due_after(args.rate, 0)),
        latencies: vec![progress.submit, progress.submit_to_claim, progress.complete],
    })
}

/// When a job is to be sent. The first second is left to the workers to begin to wait.
fn due_after(rate: u32, number: u32) -> Duration {
    Duration::from_secs(1) + Duration::from_secs_f64(f64::from(number) / f64::from(rate))
}

/// Lets each job be sent when it is due.
async fn pace(rate: u32, begun: Instant, shared: Rc<Shared>) -> Result<(), String> {
    for number in 0..shared.jobs {
        tokio::time::sleep_until(begun + due_after(rate, number)).await;
        shared.due.numbers.borrow_mut().push_back(number);
        shared.due.count.add_permits(1);
    }
    shared.give_up_at.set(Some(Instant::now() + LAST_WITHIN));
    // Nothing more will be due.
    shared.due.count.add_permits(SUBMITTERS);
    Ok(())
}

async fn submit(args: &BenchArgs, target: &Target, shared: Rc<Shared>) -> Result<(), String> {
    let mut connection = Connection::open(&target.address).await?;
    loop {
        shared.due.count.acquire().await.map_err(|error| error.to_string())?.forget();
        let Some(number) = shared.due.numbers.borrow_mut().pop_front() else { return Ok(()) };
        let body = Bytes::from(job_line(&target.queue, number, args.payload_bytes));
        connection.post("/v1/jobs", "application/json", body).await?;
        let mut progress = shared.progress.borrow_mut();
        let due_at = progress.due_at[number as usize];
        progress.submit.record(due_at.elapsed());
    }
}

async fn work(mut connection: Connection, target: &Target, number: usize, shared: Rc<Shared>) -> Result<(), String> {
    let worker = format!("{}-{number}", target.queue);
    let claim = Bytes::from(format!(
        "{{\"worker_id\":\"{worker}\",\"queues\":[\"{}\"],\"max_jobs\":1,\"wait_ms\":{WAIT_MS}}}",
        target.queue
    ));
    while shared.progress.borrow().completions < u64::from(shared.jobs) {
        if shared.give_up_at.get().is_some_and(|until| until < Instant::now()) {
            return Ok(());
        }
        let answer = connection.post("/v1/claims", "application/json", claim.clone()).await?;
        let now = Instant::now();
        for job in &read::<Claimed<'_>>(&answer)?.jobs {
            {
                let mut progress = shared.progress.borrow_mut();
                let number = job.payload.n as usize;
                let due_at = progress.due_at.get(number).copied();
                let due_at = due_at.ok_or_else(|| format!("job {} was handed out and never submitted", job.id))?;
                progress.submit_to_claim.record(now.duration_since(due_at));
                if std::mem::replace(&mut progress.claimed[number], true) {
                    progress.twice += 1;
                }
            }
            let body = Bytes::from(format!("{{\"worker_id\":\"{worker}\",\"fence\":{}}}", job.fence));
            let begun = Instant::now();
            connection.post(&format!("/v1/jobs/{}/complete", job.id), "application/json", body).await?;
            let mut progress = shared.progress.borrow_mut();
            progress.complete.record(begun.elapsed());
            progress.completions += 1;
            progress.ended_at = Instant::now();
        }
    }
    Ok(())
}
