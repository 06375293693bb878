//! How long a job takes to reach one of many waiting workers, at a fixed rate.
//!
//! The rate is kept whether or not the server keeps up, and latencies count from the moment at which a job was to be
//! sent: a server that stalls is not spared the jobs that would have come meanwhile (Tene, "How NOT to Measure
//! Latency").

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::slice;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use super::args::{BenchArgs, job_line};
use super::calls::{Claimed, claim_body, read};
use super::report::Report;
use super::scoreboard::Scoreboard;
use super::target::Target;
use crate::cli::failure::Failure;

const DEFAULT: Steady = Steady { rate: 500, duration: Duration::from_secs(10), workers: 2000 };
/// How many connections submit.
const SUBMITTERS: usize = 64;
/// How long a claim waits for a job.
const WAIT_MS: u32 = 2000;
/// The time from the start of one worker to that of the next. Workers that started at once would all ask again at once
/// when their first waits end, and for as long as the run lasts.
const WORKER_EVERY: Duration = Duration::from_millis(2);
/// How long a server may take to know of the workers at another one.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// How long the last jobs may take to be done.
const LAST_WITHIN: Duration = Duration::from_secs(60);

/// The state that the clients and workers, all on one thread, share.
struct Flow {
    board: RefCell<Scoreboard>,
    /// The jobs that are due and not sent.
    due: RefCell<VecDeque<u32>>,
    /// One permit for each job that is due.
    due_count: Semaphore,
    give_up_at: Cell<Option<Instant>>,
    jobs: u32,
}

/// A load of jobs that are submitted at a steady rate, whether or not the server keeps up.
#[derive(Clone, Copy)]
pub(super) struct Steady {
    /// How many jobs are submitted per second.
    pub(super) rate: u32,
    /// For how long they are submitted.
    pub(super) duration: Duration,
    /// How many workers wait.
    pub(super) workers: u16,
}

impl Steady {
    /// Returns the load that the arguments ask for; what they do not say is as here.
    pub(super) fn or(&self, args: &BenchArgs) -> Self {
        Self {
            rate: args.rate.unwrap_or(self.rate),
            duration: args.duration.unwrap_or(self.duration),
            workers: args.workers.unwrap_or(self.workers),
        }
    }

    /// Returns how many jobs are submitted.
    pub(super) fn jobs(&self) -> u32 {
        (self.duration.as_secs_f64() * f64::from(self.rate)).ceil().max(1.0) as u32
    }

    /// Returns when a job is to be sent, after the first.
    pub(super) fn due_after(&self, number: u32) -> Duration {
        Duration::from_secs_f64(f64::from(number) / f64::from(self.rate))
    }
}

/// Runs the scenario.
pub(super) async fn measure(args: &BenchArgs, target: &Target) -> Result<Report, Failure> {
    let other = args.submit_to.as_deref().map(|url| target.beside(args, url)).transpose()?;
    let places = Places { submit: slice::from_ref(other.as_ref().unwrap_or(target)), work: slice::from_ref(target) };
    spread(args, &places, &DEFAULT.or(args)).await
}

/// The servers of one store that are measured.
pub(super) struct Places<'a> {
    /// Those that the clients submit to.
    pub(super) submit: &'a [Target],
    /// Those at which the workers wait.
    pub(super) work: &'a [Target],
}

/// Measures servers of one store, over which the clients and the workers are spread.
pub(super) async fn spread(args: &BenchArgs, places: &Places<'_>, steady: &Steady) -> Result<Report, Failure> {
    let jobs = steady.jobs();
    let known_within = if args.submit_to.is_some() { KNOWN_WITHIN } else { Duration::ZERO };
    let begun = Instant::now() + head_start(steady.workers) + known_within;
    let due_at = (0..jobs).map(|number| Some(begun + steady.due_after(number))).collect();
    let flow = Flow {
        board: RefCell::new(Scoreboard::new(due_at, "submit", "complete")?),
        due: RefCell::default(),
        due_count: Semaphore::new(0),
        give_up_at: Cell::new(None),
        jobs,
    };
    let submitters = places.submit.iter().cycle().take(SUBMITTERS).map(|target| submit(args, target, &flow));
    let workers = places.work.iter().cycle().zip(0..steady.workers).map(|(target, number)| work(target, number, &flow));
    tokio::try_join!(pace(steady, begun, &flow), try_join_all(submitters), try_join_all(workers))?;
    let server = format!("{}, {} jobs a second", places.submit[0].what, steady.rate);
    Ok(flow.board.into_inner().report("latency", server, begun))
}

/// Returns how long so many workers may take to connect and start waiting: a job that comes before would measure that.
fn head_start(workers: u16) -> Duration {
    Duration::from_secs(1) + WORKER_EVERY * u32::from(workers)
}

/// Lets each job be sent when it is due. A thread of its own says so: the runtime's timers go in steps of a millisecond
/// and are late by up to two, which would count as the server's.
async fn pace(steady: &Steady, begun: Instant, flow: &Flow) -> Result<(), Failure> {
    let (due, mut dues) = mpsc::unbounded_channel();
    let (steady, jobs) = (*steady, flow.jobs);
    thread::spawn(move || {
        (0..jobs).try_for_each(|number| {
            thread::sleep((begun + steady.due_after(number)).duration_since(Instant::now()));
            due.send(number)
        })
    });
    while let Some(number) = dues.recv().await {
        flow.due.borrow_mut().push_back(number);
        flow.due_count.add_permits(1);
    }
    flow.give_up_at.set(Some(Instant::now() + LAST_WITHIN));
    // Nothing more will be due.
    flow.due_count.add_permits(SUBMITTERS);
    Ok(())
}

async fn submit(args: &BenchArgs, target: &Target, flow: &Flow) -> Result<(), Failure> {
    loop {
        flow.due_count.acquire().await.map_err(Failure::failed)?.forget();
        let Some(number) = flow.due.borrow_mut().pop_front() else { return Ok(()) };
        let body = Bytes::from(job_line(&target.queue, number, args.payload_bytes, ""));
        target.submit(body).await?;
        let mut board = flow.board.borrow_mut();
        if let Some(due_at) = board.sent_at[number as usize] {
            board.submit.record(due_at.elapsed());
        }
    }
}

async fn work(target: &Target, number: u16, flow: &Flow) -> Result<(), Failure> {
    let worker = format!("{}-{number}", target.queue);
    let claim = claim_body(&worker, &target.queue, 1, WAIT_MS);
    tokio::time::sleep(WORKER_EVERY * u32::from(number)).await;
    while flow.board.borrow().completions < u64::from(flow.jobs) {
        if flow.give_up_at.get().is_some_and(|until| until < Instant::now()) {
            return Ok(());
        }
        let answer = target.claim(&claim).await?;
        let now = Instant::now();
        for job in &read::<Claimed<'_>>(&answer)?.jobs {
            flow.board.borrow_mut().note_claim(job, now)?;
            let begun = Instant::now();
            target.complete(&worker, job).await?;
            flow.board.borrow_mut().note_completions(1, begun.elapsed());
        }
    }
    Ok(())
}
