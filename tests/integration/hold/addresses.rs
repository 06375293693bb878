//! Servers of one store with nothing in front of them: clients and workers know the addresses of all.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use leasehold::client::Client;
use leasehold::wire::{JobState, SubmitJob};
use nix::sys::signal::Signal;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::timeout;

use super::site::ONE_CLOCK;
use crate::machine;
use crate::program::{Engine, Server, Started, leasehold, lines};

/// How many jobs are submitted around each trouble, and how many of them have run when it comes.
const JOBS: usize = 60;
const RAN_BEFORE: usize = 15;
/// The lease of the worker's jobs: shorter than a call waits for an answer of a server that hangs.
const LEASE: &str = "10s";
/// How long all jobs of a trouble may take: longer than the calls wait for a server that hangs, and than the lease of a
/// job whose claim a server wrote unheard.
const ENDED_WITHIN: Duration = Duration::from_secs(240);
/// How long one call waits for the end of a job.
const WAIT: Duration = Duration::from_secs(10);

/// What befalls one of two servers.
#[derive(Clone, Copy)]
enum Trouble {
    Killed,
    Stopped,
    /// It stands still, and its connections stay open.
    Hanging,
}

fn job(id: &str) -> SubmitJob {
    let command = json!({"command": ["sh", "-c", "echo $LEASEHOLD_JOB_ID >> ran; sleep 0.05"]});
    let payload = serde_json::from_value(command).expect("json");
    SubmitJob { id: Some(id.to_owned()), payload: Some(payload), ..SubmitJob::new("default", "shell") }
}

/// Submits jobs, while one of the servers has its trouble, and returns their ids once all have ended.
async fn jobs_around(trouble: Trouble, name: &str, client: &Client, server: &mut Server, place: &Path) -> Vec<String> {
    let ids: Vec<String> = (0..JOBS).map(|number| format!("{name}-{number:03}")).collect();
    let (submitter, submitted) = (client.clone(), ids.clone());
    let submitting = tokio::spawn(async move {
        for id in &submitted {
            submitter.submit(&job(id)).await.expect("no call fails");
        }
    });
    let ran = place.join("ran");
    let before = lines(&ran).len();
    while lines(&ran).len() < before + RAN_BEFORE {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    match trouble {
        Trouble::Killed => server.kill(),
        Trouble::Stopped => server.signal(Signal::SIGTERM),
        Trouble::Hanging => server.signal(Signal::SIGSTOP),
    }
    submitting.await.expect("every job is submitted");
    for id in &ids {
        let mut ended = client.wait(id, WAIT).await.expect("no call fails");
        while !ended.state.is_final() {
            ended = client.wait(id, WAIT).await.expect("no call fails");
        }
        assert_eq!(ended.state, JobState::Completed, "{id}");
    }
    ids
}

/// Two servers of one store, and a worker and a client that know both.
struct Pair {
    one: Server,
    other: Server,
    client: Client,
    place: TempDir,
    _worker: Started,
}

impl Pair {
    async fn start() -> Self {
        let place = TempDir::new().expect("a directory");
        let engine = Engine::elasticsearch().await;
        let start = |name: &str| {
            let (engine, log) = (engine.clone(), place.path().join(name));
            async move { Server::start_as("serve", &ONE_CLOCK, engine, &log).await }
        };
        let (one, other) = (start("one.log").await, start("other.log").await);
        let both = [one.url(), other.url()];
        let log = File::create(place.path().join("worker.log")).expect("a log");
        let mut worker = leasehold(place.path(), ["worker", "--lease", LEASE, "--server", &both.join(",")]);
        // It does not meet what the workers of other tests leave behind, of which it would warn.
        let worker = Started::of(worker.env("TMPDIR", place.path()).stderr(log));
        let client = Client::with_servers(&both, None).expect("a client");
        Self { one, other, client, place, _worker: worker }
    }

    /// Checks that these jobs have run, each once, and that the worker has not noticed anything.
    fn all_ran_once(&self, mut ids: Vec<String>) {
        let mut ran = lines(&self.place.path().join("ran"));
        ran.sort();
        ids.sort();
        assert_eq!(ran, ids, "each ran once");
        let said = fs::read_to_string(self.place.path().join("worker.log")).expect("the worker's log");
        assert!(!said.contains("WARN") && !said.contains("ERROR"), "the worker notices nothing: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_servers_goes_and_every_job_runs_once_and_no_call_fails() {
    let _share = machine::with_others();
    let mut pair = Pair::start().await;
    let killed = jobs_around(Trouble::Killed, "killed", &pair.client, &mut pair.one, pair.place.path());
    let mut ids = timeout(ENDED_WITHIN, killed).await.expect("all end in time");
    pair.one.kill_and_restart().await;
    // The worker and the client are at the other one now, and it ends their calls in its own way.
    let stopped = jobs_around(Trouble::Stopped, "stopped", &pair.client, &mut pair.other, pair.place.path());
    ids.extend(timeout(ENDED_WITHIN, stopped).await.expect("all end in time"));
    pair.all_ran_once(ids);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: half a minute until calls are out of time"]
async fn one_of_two_servers_hangs_and_every_job_runs_once_and_no_call_fails() {
    let _share = machine::with_others();
    let mut pair = Pair::start().await;
    let hanging = jobs_around(Trouble::Hanging, "hanging", &pair.client, &mut pair.one, pair.place.path());
    let ids = timeout(ENDED_WITHIN, hanging).await.expect("all end in time");
    pair.one.signal(Signal::SIGCONT);
    pair.all_ran_once(ids);
}
