//! Measures the time from a worker's death until its jobs run elsewhere.
//!
//! The victim is a worker process of its own that runs shell jobs and is killed with SIGKILL, at a moment between two
//! heartbeats that is left to chance; elsewhere is a client here that waits for jobs all the time.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use tokio::process::Child;
use tokio::time::Instant;

use super::args::BenchArgs;
use super::calls::{Claimed, Ended, claim_body, read};
use super::report::{Latencies, Report};
use super::target::{self, Target};
use crate::cli::failure::Failure;
use crate::job::JobState;
use crate::worker::shell::Scope;

const DEFAULT_JOBS: u32 = 50;
/// How many workers are killed, one after the other.
const ROUNDS: u32 = 5;
const LEASE: Duration = Duration::from_secs(5);
/// How long a claim waits for a job.
const WAIT_MS: u32 = 2000;
/// How long the victim may take until it runs its jobs, and the jobs until they run elsewhere.
const WITHIN: Duration = Duration::from_secs(120);
/// How often it is checked whether the victim runs them.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// How long what a victim leaves running may take to end.
const END_WITHIN: Duration = Duration::from_secs(10);

/// The jobs that came back from killed workers.
struct Recovered {
    kill_to_claim: Latencies,
    claimed: HashSet<String>,
    claimed_twice: u64,
    completions: u64,
}

/// Runs the scenario.
pub(super) async fn measure(args: &BenchArgs, target: &Target) -> Result<Report, Failure> {
    let jobs = args.jobs.unwrap_or(DEFAULT_JOBS);
    let mut recovered = Recovered {
        kill_to_claim: Latencies::new("kill to claim")?,
        claimed: HashSet::new(),
        claimed_twice: 0,
        completions: 0,
    };
    let begun = Instant::now();
    let mut left = jobs;
    for round in 0..ROUNDS {
        let share = left.div_ceil(ROUNDS - round);
        left -= share;
        if share > 0 {
            kill_one(args, target, round, share, &mut recovered).await?;
        }
    }
    Ok(Report {
        scenario: "recovery",
        server: format!("{}, {} workers killed under leases of {} s", target.what, ROUNDS.min(jobs), LEASE.as_secs()),
        jobs: u64::from(jobs),
        completions: recovered.completions,
        claimed_twice: recovered.claimed_twice,
        wall: begun.elapsed(),
        latencies: vec![recovered.kill_to_claim],
    })
}

/// Lets a worker start jobs, kills it, and claims them elsewhere.
async fn kill_one(
    args: &BenchArgs,
    target: &Target,
    round: u32,
    jobs: u32,
    recovered: &mut Recovered,
) -> Result<(), Failure> {
    let lines: String = (0..jobs).map(|_| job_line(&target.queue)).collect();
    target.submit_bulk(Bytes::from(lines)).await?;
    let name = format!("{}-victim-{round}", target.queue);
    let mut victim = start_worker(args, target, &name, jobs)?;
    wait_until_running(target, jobs).await?;
    // So that the last heartbeat is anything up to a third of the lease ago.
    tokio::time::sleep((LEASE / 3).mul_f64(rand::random())).await;
    let killed_at = Instant::now();
    victim.kill().await.map_err(|error| Failure::Failed(format!("cannot kill the worker: {error}")))?;
    let scope = Scope::new(&format!("worker {name}"));
    let leftovers = tokio::spawn(async move { scope.end_leftovers(END_WITHIN).await });
    take_over(target, jobs, killed_at, recovered).await?;
    leftovers.await.map(drop).map_err(Failure::failed)
}

/// Returns a job that never ends at its first attempt, and at once at its second.
fn job_line(queue: &str) -> String {
    let command = r#"test \"$LEASEHOLD_FENCE\" != 1 || exec sleep 600"#;
    format!(
        "{{\"queue\":\"{queue}\",\"kind\":\"shell\",\"payload\":{{\"command\":\"{command}\"}},\
         \"retry\":{{\"base_ms\":0}}}}\n"
    )
}

fn start_worker(args: &BenchArgs, target: &Target, name: &str, slots: u32) -> Result<Child, Failure> {
    let mut command = target::this_program()?;
    if let Some(token) = &args.token {
        command.env("LEASEHOLD_TOKEN", token);
    }
    command
        .args(["worker", "--server", &target.url, "--queue", &target.queue])
        .args(["--worker-id", name, "--slots", &slots.to_string(), "--lease", &format!("{}s", LEASE.as_secs())])
        .env("LEASEHOLD_LOG", "error");
    command.spawn().map_err(|error| Failure::Failed(format!("cannot start a worker: {error}")))
}

async fn wait_until_running(target: &Target, jobs: u32) -> Result<(), Failure> {
    let deadline = Instant::now() + WITHIN;
    while target.count(&[JobState::Running]).await? < u64::from(jobs) {
        if Instant::now() > deadline {
            return Err(Failure::Failed("the worker did not begin its jobs in time".to_owned()));
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
    Ok(())
}

/// Claims and completes the jobs as they come back.
async fn take_over(target: &Target, jobs: u32, killed_at: Instant, recovered: &mut Recovered) -> Result<(), Failure> {
    let worker = format!("{}-heir", target.queue);
    let claim = claim_body(&worker, &target.queue, jobs, WAIT_MS);
    let mut taken = 0;
    while taken < jobs as usize {
        if killed_at.elapsed() > WITHIN {
            let message = format!("of {jobs} jobs of a killed worker only {taken} came back in time");
            return Err(Failure::Failed(message));
        }
        let answer = target.claim(&claim).await?;
        let elapsed = killed_at.elapsed();
        let claimed = read::<Claimed<'_>>(&answer)?.jobs;
        taken += claimed.len();
        for job in &claimed {
            recovered.kill_to_claim.record(elapsed);
            recovered.claimed_twice += u64::from(!recovered.claimed.insert(job.id.to_owned()));
        }
        if !claimed.is_empty() {
            let ended = target.complete_bulk(&worker, &claimed, None).await?;
            recovered.completions += read::<Ended<'_>>(&ended)?.accepted();
        }
    }
    Ok(())
}
