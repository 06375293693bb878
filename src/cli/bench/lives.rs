//! Whole lives: clients submit in bulk while workers claim in batches and complete, all at the same time.

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use futures::future::try_join_all;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::args::{BenchArgs, job_line};
use super::calls::{Claimed, claim_body, read};
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
struct Flow {
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
    let bodies = RefCell::new(bulk_bodies(args, &target.queue).into_iter());
    let begun = Instant::now();
    let board = Scoreboard::new(vec![None; args.lives() as usize], "submit bulk", "complete batch")?;
    let flow = Flow { board: RefCell::new(board), submissions: Cell::new(0), room: Notify::new(), bodies };
    let submitters = (0..args.submitters).map(|_| submit(args, target, &flow));
    let workers = args.workers.unwrap_or(DEFAULT_WORKERS);
    let workers = (0..workers).map(|number| work(args, target, number, &flow));
    tokio::try_join!(try_join_all(submitters), try_join_all(workers))?;
    Ok(flow.board.into_inner().report("lives", target.what.clone(), begun))
}

/// Builds every bulk submission, before anything is measured.
fn bulk_bodies(args: &BenchArgs, queue: &str) -> Vec<Body> {
    let step = u32::from(args.submit_batch);
    (0..args.lives().div_ceil(step))
        .map(|batch| {
            let (first, end) = (batch * step, args.lives().min((batch + 1) * step));
            let lines: String = (first..end).map(|number| job_line(queue, number, args.payload_bytes)).collect();
            Body { first, end, lines: Bytes::from(lines) }
        })
        .collect()
}

async fn submit(args: &BenchArgs, target: &Target, flow: &Flow) -> Result<(), Failure> {
    loop {
        // So that what is measured is the way of a job and not the length of a queue that submitters have run ahead
        // with. All are on one thread: nothing is completed between the check and the wait.
        while flow.submissions.get() >= flow.board.borrow().completions + u64::from(args.backlog) {
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
    while flow.board.borrow().completions < u64::from(args.lives()) {
        let answer = target.claim(&claim).await?;
        let claimed = read::<Claimed<'_>>(&answer)?.jobs;
        if claimed.is_empty() {
            idle += 1;
            if idle >= MAX_IDLE {
                let message = format!("worker {worker} got no job {idle} times in a row, and not all are done");
                return Err(Failure::Failed(message));
            }
            continue;
        }
        idle = 0;
        let now = Instant::now();
        claimed.iter().try_for_each(|job| flow.board.borrow_mut().note_claim(job, now))?;
        let begun = Instant::now();
        let accepted = target.complete_bulk(&worker, &claimed).await?;
        flow.board.borrow_mut().note_completions(accepted, begun.elapsed());
        flow.room.notify_waiters();
        if accepted < claimed.len() as u64 {
            let message = format!("of {} completions only {accepted} were accepted", claimed.len());
            return Err(Failure::Failed(message));
        }
    }
    Ok(())
}
