//! Whole lives: clients submit in bulk while workers claim in batches and complete, all at the same time.

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use futures::future::try_join_all;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::args::{BenchArgs, job_line};
use super::calls::{Claimed, Ended, claim_body, claim_next, read};
use super::report::Report;
use super::scoreboard::Scoreboard;
use super::target::Target;
use crate::cli::failure::Failure;

const DEFAULT_WORKERS: u16 = 32;
/// How long a claim waits for a job. The last ones wait in vain.
const WAIT_MS: u32 = 500;
/// How many claims in a row may return nothing before the measurement fails.
const MAX_IDLE: u32 = 120;

/// The state that the clients and workers, all on one thread, share.
pub(super) struct Flow {
    jobs: u32,
    /// How many jobs may be submitted and not completed before the clients wait.
    backlog: u64,
    board: RefCell<Scoreboard>,
    submissions: Cell<u64>,
    /// Notified when jobs were completed.
    room: Notify,
    bodies: RefCell<std::vec::IntoIter<Body>>,
}

/// A bulk submission, with the numbers of its first job and of the one after its last.
struct Body {
    first: u32,
    end: u32,
    lines: Bytes,
}

/// Runs the scenario.
pub(super) async fn measure(args: &BenchArgs, target: &Target) -> Result<Report, Failure> {
    spread(args, std::slice::from_ref(target), args.lives(), args.workers.unwrap_or(DEFAULT_WORKERS)).await
}

/// Has clients submit and workers complete all jobs at the same time, spread over servers of one store.
pub(super) async fn spread(args: &BenchArgs, targets: &[Target], jobs: u32, workers: u16) -> Result<Report, Failure> {
    let flow = Flow::new(args, &targets[0].queue, jobs, args.backlog.into())?;
    let begun = Instant::now();
    let submitters = targets.iter().cycle().zip(0..args.submitters).map(|(target, _)| submit(target, &flow));
    let workers = targets.iter().cycle().zip(0..workers).map(|(target, number)| work(args, target, number, &flow));
    tokio::try_join!(try_join_all(submitters), try_join_all(workers))?;
    Ok(flow.board.into_inner().report("lives", targets[0].what.clone(), begun))
}

/// Submits all jobs, spread over servers of one store.
pub(super) async fn fill(args: &BenchArgs, targets: &[Target], jobs: u32) -> Result<Flow, Failure> {
    let flow = Flow::new(args, &targets[0].queue, jobs, u64::MAX)?;
    // At least one for each server: what it was given it knows without a search.
    let submitters = targets.len().max(args.submitters.into());
    try_join_all(targets.iter().cycle().take(submitters).map(|target| submit(target, &flow))).await?;
    Ok(flow)
}

/// Lets workers that are spread over servers of one store complete all jobs that it was filled with.
pub(super) async fn drain(args: &BenchArgs, targets: &[Target], workers: u16, flow: Flow) -> Result<Report, Failure> {
    let begun = Instant::now();
    let workers = targets.iter().cycle().zip(0..workers).map(|(target, number)| work(args, target, number, &flow));
    try_join_all(workers).await?;
    Ok(flow.board.into_inner().report("drain", targets[0].what.clone(), begun))
}

impl Flow {
    /// Builds every bulk submission, before anything is measured.
    fn new(args: &BenchArgs, queue: &str, jobs: u32, backlog: u64) -> Result<Self, Failure> {
        let step = u32::from(args.submit_batch);
        let body = |batch| {
            let (first, end) = (batch * step, jobs.min((batch + 1) * step));
            let line = |number| job_line(queue, number, args.payload_bytes, &key_of(args, number));
            let lines: String = (first..end).map(line).collect();
            Body { first, end, lines: Bytes::from(lines) }
        };
        let bodies: Vec<Body> = (0..jobs.div_ceil(step)).map(body).collect();
        Ok(Self {
            jobs,
            backlog,
            board: RefCell::new(Scoreboard::new(vec![None; jobs as usize], "submit bulk", "complete batch")?),
            submissions: Cell::new(0),
            room: Notify::new(),
            bodies: RefCell::new(bodies.into_iter()),
        })
    }
}

/// Returns the fields of a job that name its key, if it has one.
fn key_of(args: &BenchArgs, number: u32) -> String {
    let of =
        |keys: u32| format!("\"concurrency_key\":\"k{}\",\"max_concurrent\":{},", number % keys, args.max_concurrent);
    args.keys.map(of).unwrap_or_default()
}

async fn submit(target: &Target, flow: &Flow) -> Result<(), Failure> {
    loop {
        // So that what is measured is the way of a job and not the length of a queue that submitters have run ahead
        // with. All are on one thread: nothing is completed between the check and the wait.
        while flow.submissions.get() >= flow.board.borrow().completions.saturating_add(flow.backlog) {
            flow.room.notified().await;
        }
        let Some(Body { first, end, lines }) = flow.bodies.borrow_mut().next() else { return Ok(()) };
        flow.submissions.update(|submissions| submissions + u64::from(end - first));
        let sent = Instant::now();
        flow.board.borrow_mut().sent_at[first as usize..end as usize].fill(Some(sent));
        target.submit_bulk(lines).await?;
        flow.board.borrow_mut().submit.record(sent.elapsed());
    }
}

async fn work(args: &BenchArgs, target: &Target, number: u16, flow: &Flow) -> Result<(), Failure> {
    let worker = format!("{}-{number}", target.queue);
    let claim = claim_body(&worker, &target.queue, args.batch.into(), WAIT_MS);
    let mut idle = 0;
    // The answer to the last completions, with the next jobs.
    let mut last = Bytes::new();
    while flow.board.borrow().completions < u64::from(flow.jobs) {
        let mut claimed = if last.is_empty() { Vec::new() } else { read::<Ended<'_>>(&last)?.next() };
        let answer;
        if claimed.is_empty() {
            answer = target.claim(&claim).await?;
            claimed = read::<Claimed<'_>>(&answer)?.jobs;
        }
        if claimed.is_empty() {
            idle += 1;
            if idle >= MAX_IDLE {
                let message = format!("worker {worker} got no job {idle} times in a row, and not all are done");
                return Err(Failure::Failed(message));
            }
            last.clear();
            continue;
        }
        idle = 0;
        let now = Instant::now();
        claimed.iter().try_for_each(|job| flow.board.borrow_mut().note_claim(job, now))?;
        let begun = Instant::now();
        let next = args.next.then(|| claim_next(&target.queue, args.batch.into()));
        let ended = target.complete_bulk(&worker, &claimed, next).await?;
        let accepted = read::<Ended<'_>>(&ended)?.accepted();
        flow.board.borrow_mut().note_completions(accepted, begun.elapsed());
        flow.room.notify_waiters();
        if accepted < claimed.len() as u64 {
            let message = format!("of {} completions only {accepted} were accepted", claimed.len());
            return Err(Failure::Failed(message));
        }
        if args.next {
            last = ended;
        }
    }
    Ok(())
}
