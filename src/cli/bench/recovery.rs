//! How long it takes from the death of a worker until its jobs run elsewhere.
//!
//! The victim is a worker process of its own that runs shell jobs and is killed with SIGKILL, at a moment between two
//! heartbeats that is left to chance; elsewhere is a client here that waits for jobs all the time.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::BenchArgs;
use super::connection::{Connection, Items, read};
use super::report::{Latencies, Report};
use super::target::Target;
use crate::worker::shell::Scope;

const DEFAULT_JOBS: u32 = 50;
/// How many workers are killed, one after the other.
const ROUNDS: u32 = 5;
const LEASE: Duration = Duration::from_secs(5);
/// How long a claim waits for a job.
const WAIT_MS: u32 = 2000;
/// How long the victim may take until it runs its jobs, and the jobs until they run elsewhere.
const WITHIN: Duration = Duration::from_secs(120);
/// How often it is asked whether the victim runs them.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long what a victim leaves running may take to end.
const END_WITHIN: Duration = Duration::from_secs(10);

struct Found {
    kill_to_claim: Latencies,
    claimed: HashSet<String>,
    twice: u64,
    completions: u64,
}

/// Of the answer to a claim.
#[derive(Deserialize)]
struct Claimed {
    jobs: Vec<ClaimedJob>,
}

#[derive(Deserialize)]
struct ClaimedJob {
    id: String,
    fence: u64,
}

/// Measures.
pub(super) async fn measure(args: &BenchArgs, target: &Target) -> Result<Report, String> {
    let jobs = args.jobs.unwrap_or(DEFAULT_JOBS);
    let mut found =
        Found { kill_to_claim: Latencies::new("kill to claim")?, claimed: HashSet::new(), twice: 0, completions: 0 };
    let begun = Instant::now();
    let mut left = jobs;
    for round in 0..ROUNDS {
        let share = left.div_ceil(ROUNDS - round);
        left -= share;
        if share > 0 {
            kill_one(args, target, round, share, &mut found).await?;
        }
    }
    Ok(Report {
        scenario: "recovery",
        what: format!("{}, {} workers killed under leases of {} s", target.what, ROUNDS.min(jobs), LEASE.as_secs()),
        jobs: u64::from(jobs),
        completions: found.completions,
        twice: found.twice,
        wall: begun.elapsed(),
        latencies: vec![found.kill_to_claim],
    })
}

/// Lets a worker begin so many jobs, kills it, and waits for them elsewhere.
async fn kill_one(args: &BenchArgs, target: &Target, round: u32, jobs: u32, found: &mut Found) -> Result<(), String> {
    let mut connection = Connection::open(&target.address).await?;
    let lines: String = (0..jobs).map(|_| job_line(&target.queue)).collect();
    let answer = connection.post("/v1/jobs/bulk", "application/x-ndjson", Bytes::from(lines)).await?;
    if read::<Items>(&answer)?.items.iter().any(|item| item.status != 201) {
        return Err(format!("jobs of a bulk were refused: {}", String::from_utf8_lossy(&answer)));
    }
    let name = format!("{}-victim-{round}", target.queue);
    let mut victim = start_worker(args, target, &name, jobs)?;
    wait_until_running(&mut connection, target, jobs).await?;
    // So that the last heartbeat is anything up to a third of the lease ago.
    tokio::time::sleep((LEASE / 3).mul_f64(rand::random())).await;
    let killed_at = Instant::now();
    victim.kill().await.map_err(|error| format!("cannot kill the worker: {error}"))?;
    let scope = Scope::new(&format!("worker {name}"));
    let leftovers = tokio::spawn(async move { scope.end_leftovers(END_WITHIN).await });
    take_over(&mut connection, target, jobs, killed_at, found).await?;
    leftovers.await.map(drop).map_err(|error| error.to_string())
}

/// A job that never ends at its first try, and at once at its second.
fn job_line(queue: &str) -> String {
    let command = r#"test \"$LEASEHOLD_FENCE\" != 1 || exec sleep 600"#;
    format!(
        "{{\"queue\":\"{queue}\",\"kind\":\"shell\",\"payload\":{{\"command\":\"{command}\"}},\
         \"retry\":{{\"base_ms\":0}}}}\n"
    )
}

fn start_worker(args: &BenchArgs, target: &Target, name: &str, slots: u32) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("LEASEHOLD_")) {
        command.env_remove(variable);
    }
    if let Some(token) = &args.token {
        command.env("LEASEHOLD_TOKEN", token);
    }
    command
        .args(["worker", "--server", &format!("http://{}", target.address.authority), "--queue", &target.queue])
        .args(["--worker-id", name, "--slots", &slots.to_string(), "--lease", &format!("{}s", LEASE.as_secs())])
        .env("LEASEHOLD_LOG", "error")
        .stdin(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    command.spawn().map_err(|error| format!("cannot start a worker: {error}"))
}

async fn wait_until_running(connection: &mut Connection, target: &Target, jobs: u32) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Count {
        total: u64,
    }
    let path = format!("/v1/jobs/count?queue={}&state=running", target.queue);
    let deadline = Instant::now() + WITHIN;
    while read::<Count>(&connection.get(&path).await?)?.total < u64::from(jobs) {
        if Instant::now() > deadline {
            return Err("the worker did not begin its jobs in time".to_owned());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Claims and completes the jobs as they come.
async fn take_over(
    connection: &mut Connection,
    target: &Target,
    jobs: u32,
    killed_at: Instant,
    found: &mut Found,
) -> Result<(), String> {
    let worker = format!("{}-heir", target.queue);
    let claim = Bytes::from(format!(
        "{{\"worker_id\":\"{worker}\",\"queues\":[\"{}\"],\"max_jobs\":{jobs},\"wait_ms\":{WAIT_MS}}}",
        target.queue
    ));
    let mut taken = 0;
    while taken < jobs as usize {
        if killed_at.elapsed() > WITHIN {
            return Err(format!("of {jobs} jobs of a killed worker only {taken} came back in time"));
        }
        let answer = connection.post("/v1/claims", "application/json", claim.clone()).await?;
        let elapsed = killed_at.elapsed();
        let claimed: Claimed = read(&answer)?;
        if claimed.jobs.is_empty() {
            continue;
        }
        taken += claimed.jobs.len();
        let mut items = String::new();
        for (index, job) in claimed.jobs.into_iter().enumerate() {
            found.kill_to_claim.record(elapsed);
            let comma = if index > 0 { "," } else { "" };
            write!(items, "{comma}{{\"id\":\"{}\",\"fence\":{}}}", job.id, job.fence)
                .map_err(|error| error.to_string())?;
            if !found.claimed.insert(job.id) {
                found.twice += 1;
            }
        }
        let body = Bytes::from(format!("{{\"worker_id\":\"{worker}\",\"items\":[{items}]}}"));
        let answer = connection.post("/v1/completions", "application/json", body).await?;
        found.completions += read::<Items>(&answer)?.items.iter().filter(|item| item.status == 200).count() as u64;
    }
    Ok(())
}
