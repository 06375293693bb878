//! Whole lives: clients submit in bulk while workers claim in batches and complete, all at the same time.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;

use bytes::Bytes;
use futures::future::try_join_all;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connection::{Claimed, Connection, Items, read};
use super::report::{Latencies, Report};
use super::target::Target;
use super::{BenchArgs, job_line};

const DEFAULT_WORKERS: u16 = 32;
/// How long a claim waits for a job. The last ones wait in vain.
const WAIT_MS: u32 = 500;
/// How many times in a row a worker may get nothing before something must be wrong.
const MAX_IDLE: u32 = 120;

/// What the clients and workers, all on one thread, share.
struct Progress {
    jobs: u32,
    /// When each job was sent.
    sent_at: Vec<Option<Instant>>,
    claimed: Vec<bool>,
    twice: u64,
    submissions: u64,
    completions: u64,
    /// Told when jobs were completed.
    room: Rc<Notify>,
    ended_at: Instant,
    submit: Latencies,
    submit_to_claim: Latencies,
    complete: Latencies,
}

type Shared = Rc<RefCell<Progress>>;

/// Measures.
pub(super) async fn measure(args: &BenchArgs, target: &Target) -> Result<Report, String> {
    let batches: Vec<(u32, u32, Bytes)> = bulk_bodies(args, &target.queue);
    let begun = Instant::now();
    let progress = Rc::new(RefCell::new(Progress {
        jobs: args.lives(),
        sent_at: vec![None; args.lives() as usize],
        claimed: vec![false; args.lives() as usize],
        twice: 0,
        submissions: 0,
        completions: 0,
        room: Rc::default(),
        ended_at: begun,
        submit: Latencies::new("submit bulk")?,
        submit_to_claim: Latencies::new("submit to claim")?,
        complete: Latencies::new("complete batch")?,
    }));
    let batches = Rc::new(RefCell::new(batches.into_iter()));
    let submitters = (0..args.submitters).map(|_| submit(args, target, batches.clone(), progress.clone()));
    let workers = args.workers.unwrap_or(DEFAULT_WORKERS);
    let workers = (0..workers).map(|number| work(args, target, number, progress.clone()));
    tokio::try_join!(try_join_all(submitters), try_join_all(workers))?;

    let progress = Rc::into_inner(progress).ok_or("somebody is still at work")?.into_inner();
    Ok(Report {
        scenario: "lives",
        what: target.what.clone(),
        jobs: u64::from(progress.jobs),
        completions: progress.completions,
        twice: progress.twice,
        wall: progress.ended_at.duration_since(begun),
        latencies: vec![progress.submit, progress.submit_to_claim, progress.complete],
    })
}

/// Every bulk submission, with the numbers of its first job and of the one after its last.
fn bulk_bodies(args: &BenchArgs, queue: &str) -> Vec<(u32, u32, Bytes)> {
    let step = u32::from(args.submit_batch);
    (0..args.lives().div_ceil(step))
        .map(|batch| {
            let (first, end) = (batch * step, args.lives().min((batch + 1) * step));
            let lines: String = (first..end).map(|number| job_line(queue, number, args.payload_bytes)).collect();
            (first, end, Bytes::from(lines))
        })
        .collect()
}

type Batches = Rc<RefCell<std::vec::IntoIter<(u32, u32, Bytes)>>>;

async fn submit(args: &BenchArgs, target: &Target, batches: Batches, progress: Shared) -> Result<(), String> {
    let mut connection = Connection::open(&target.address).await?;
    loop {
        wait_for_room(&progress, u64::from(args.backlog)).await;
        let Some((first, end, body)) = batches.borrow_mut().next() else { return Ok(()) };
        progress.borrow_mut().submissions += u64::from(end - first);
        let sent = Instant::now();
        progress.borrow_mut().sent_at[first as usize..end as usize].fill(Some(sent));
        let answer = connection.post("/v1/jobs/bulk", "application/x-ndjson", body).await?;
        progress.borrow_mut().submit.record(sent.elapsed());
        let refused = read::<Items>(&answer)?.items.iter().filter(|item| item.status != 201).count();
        if refused > 0 {
            return Err(format!("{refused} jobs of a bulk were refused: {}", String::from_utf8_lossy(&answer)));
        }
    }
}

/// Waits until fewer than `backlog` jobs are submitted and not completed, so that what is measured is the way of a job
/// and not the length of a queue that submitters have run ahead with. All are on one thread: nothing is completed
/// between the look and the wait.
async fn wait_for_room(progress: &Shared, backlog: u64) {
    loop {
        let room = {
            let progress = progress.borrow();
            if progress.submissions < progress.completions + backlog {
                return;
            }
            Rc::clone(&progress.room)
        };
        room.notified().await;
    }
}

async fn work(args: &BenchArgs, target: &Target, number: u16, progress: Shared) -> Result<(), String> {
    let mut connection = Connection::open(&target.address).await?;
    let worker = format!("{}-{number}", target.queue);
    let claim = Bytes::from(format!(
        "{{\"worker_id\":\"{worker}\",\"queues\":[\"{}\"],\"max_jobs\":{},\"wait_ms\":{WAIT_MS}}}",
        target.queue, args.batch
    ));
    let mut idle = 0;
    while progress.borrow().completions < u64::from(args.lives()) {
        let answer = connection.post("/v1/claims", "application/json", claim.clone()).await?;
        let claimed: Claimed<'_> = read(&answer)?;
        if claimed.jobs.is_empty() {
            idle += 1;
            if idle >= MAX_IDLE {
                return Err(format!("worker {worker} got no job {idle} times in a row, and not all are done"));
            }
            continue;
        }
        idle = 0;
        let body = take_in(&worker, &claimed, &progress)?;
        let begun = Instant::now();
        let answer = connection.post("/v1/completions", "application/json", body).await?;
        let accepted = read::<Items>(&answer)?.items.iter().filter(|item| item.status == 200).count();
        let mut progress = progress.borrow_mut();
        progress.ended_at = Instant::now();
        progress.complete.record(begun.elapsed());
        progress.completions += accepted as u64;
        progress.room.notify_waiters();
        if accepted < claimed.jobs.len() {
            return Err(format!("completions were refused: {}", String::from_utf8_lossy(&answer)));
        }
    }
    Ok(())
}

/// Notes what was claimed and writes the completions.
fn take_in(worker: &str, claimed: &Claimed<'_>, progress: &Shared) -> Result<Bytes, String> {
    let mut progress = progress.borrow_mut();
    let mut body = format!("{{\"worker_id\":\"{worker}\",\"items\":[");
    let now = Instant::now();
    for (index, job) in claimed.jobs.iter().enumerate() {
        let number = job.payload.n as usize;
        let sent = progress.sent_at.get(number).copied().flatten();
        let sent = sent.ok_or_else(|| format!("job {} was handed out and never submitted", job.id))?;
        progress.submit_to_claim.record(now.duration_since(sent));
        if std::mem::replace(&mut progress.claimed[number], true) {
            progress.twice += 1;
        }
        let comma = if index > 0 { "," } else { "" };
        write!(body, "{comma}{{\"id\":\"{}\",\"fence\":{}}}", job.id, job.fence).map_err(|error| error.to_string())?;
    }
    body.push_str("]}");
    Ok(Bytes::from(body))
}
