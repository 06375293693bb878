//! Members that are stopped and started again one after the other under load, also with another build of the program:
//! no acknowledged call is lost, and a worker notices nothing.
//!
//! The other build is named in the environment, as `.ci/nightly` does with that of the previous commit. Without it
//! both are the same.

use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::client::Client;
use leasehold::wire::{JobState, SubmitJob};
use serde_json::json;
use tokio::task::JoinHandle;

use super::site::{MEMBERS, Site};
use crate::load::Load;
use crate::machine;
use crate::program::{PROGRAM, Started, leasehold, lines};

/// Another build of the program.
const OTHER: &str = "LEASEHOLD_OTHER_BINARY";

const SUBMITTERS: usize = 2;
const WORKERS: usize = 4;
/// Enough that the submitters go on until they are told to stop.
const PLENTY: usize = 1_000_000;
/// How long the members are at work between two changes.
const AT_WORK: Duration = Duration::from_secs(1);
/// How long one call waits for the end of a job.
const WAIT: Duration = Duration::from_secs(10);
/// A lease that outlasts the test.
const LASTING_MS: u64 = 600_000;
/// How long a claim waits for jobs, of which there are always some.
const CLAIM_WAIT: Duration = Duration::from_millis(300);

/// What is done at the members all the time.
struct Work {
    load: Load,
    submitters: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    /// The longest time that a claim waited for its answer, in milliseconds, beside the time that it waited for jobs.
    longest: Arc<AtomicU64>,
    /// The jobs that a worker process runs, which go on being submitted.
    shell: JoinHandle<Vec<String>>,
    _process: Started,
}

impl Work {
    fn at(site: &Site) -> Self {
        let load = Load::on(site.urls());
        let longest = Arc::default();
        let submitters = (0..SUBMITTERS).map(|name| load.submitter(name, PLENTY)).collect();
        let workers = (0..WORKERS).map(|name| tokio::spawn(work(load.clone(), name, Arc::clone(&longest)))).collect();
        let log = File::create(site.place.path().join("worker.log")).expect("a log");
        let process = leasehold(site.place.path(), ["worker", "--queue", "shell", "--server", &site.urls().join(",")]);
        // It does not meet what the workers of other tests leave behind, of which it would warn.
        let process = Started::of({ process }.env("TMPDIR", site.place.path()).stderr(log));
        let client = Client::with_servers(&site.urls(), None).expect("a client");
        let shell = tokio::spawn(submit_shell_jobs(client, load.clone()));
        Self { load, submitters, workers, longest, shell, _process: process }
    }

    /// Ends the work, and checks that nothing of it was lost or done twice.
    async fn end(self, site: &Site) {
        self.load.stop_submitting();
        let ids = self.shell.await.expect("every job is submitted");
        let client = Client::with_servers(&site.urls(), None).expect("a client");
        for id in &ids {
            let mut ended = client.wait(id, WAIT).await.expect("no call fails");
            while !ended.state.is_final() {
                ended = client.wait(id, WAIT).await.expect("no call fails");
            }
            assert_eq!(ended.state, JobState::Completed, "{id}");
        }
        let mut ran = lines(&site.place.path().join("ran"));
        ran.sort_unstable();
        assert_eq!(ran, ids, "each ran once");
        let said = fs::read_to_string(site.place.path().join("worker.log")).expect("the worker's log");
        assert!(!said.contains("WARN") && !said.contains("ERROR"), "the worker notices nothing: {said}");
        self.load.finish(self.submitters, self.workers).await;
        let longest = self.longest.load(Ordering::Relaxed);
        println!("{} jobs and {} of a shell; a claim waited {longest} ms", self.load.ledger.completions(), ids.len());
    }
}

/// Claims and completes jobs until all are completed, and notes how long claims took.
async fn work(load: Load, name: usize, longest: Arc<AtomicU64>) {
    let worker = format!("worker-{name}");
    let mut calls = 0;
    while !load.ledger.is_done() {
        calls += 1;
        let request_id = format!("{worker}-{calls}");
        let begun = Instant::now();
        let jobs = load.claim(name, &worker, &request_id, 3, LASTING_MS).await;
        let waited = begun.elapsed().saturating_sub(CLAIM_WAIT).as_millis();
        longest.fetch_max(u64::try_from(waited).expect("less than an age"), Ordering::Relaxed);
        for job in &jobs {
            load.complete(name, &worker, &request_id, job).await;
        }
    }
}

/// Submits jobs of a shell until there are to be no more, and returns their ids in order.
async fn submit_shell_jobs(client: Client, load: Load) -> Vec<String> {
    let mut ids = Vec::new();
    while !load.ledger.is_stopping() {
        let id = format!("shell-{:06}", ids.len());
        let payload = json!({"command": ["sh", "-c", "echo $LEASEHOLD_JOB_ID >> ran; sleep 0.1"]});
        let payload = Some(serde_json::from_value(payload).expect("JSON"));
        let job = SubmitJob { id: Some(id.clone()), payload, ..SubmitJob::new("shell", "shell") };
        client.submit(&job).await.expect("no call fails");
        ids.push(id);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ids
}

/// Stops each member in turn, and starts it with this program; the next one once it has caught up.
async fn roll(site: &mut Site, program: &str) {
    for member in 0..MEMBERS {
        let server = &mut site.servers[member];
        server.is_to_run(vec![program.to_owned()]);
        assert_eq!(server.stop(), Some(0), "{}", server.log());
        server.start_again();
        server.ready().await;
        site.has_caught_up(member).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_restarted_one_after_the_other_lose_no_call_and_no_worker_notices() {
    let _share = machine::with_others();
    let mut site = Site::members(&[]).await;
    let work = Work::at(&site);
    tokio::time::sleep(AT_WORK).await;
    roll(&mut site, PROGRAM).await;
    tokio::time::sleep(AT_WORK).await;
    work.end(&site).await;
    site.end_equal().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: half a minute of three members"]
async fn members_of_two_versions_are_one_and_are_upgraded_and_rolled_back_under_load() {
    let _share = machine::with_others();
    let other = std::env::var(OTHER).unwrap_or_else(|_| PROGRAM.to_owned());
    let mut site = Site::members_of(&[PROGRAM, &other, &other], &[]).await;
    let work = Work::at(&site);
    // The entries of each version are applied by the other.
    for leader in [0, 1] {
        site.have_lead(leader).await;
        tokio::time::sleep(AT_WORK).await;
    }
    for program in [PROGRAM, &other] {
        roll(&mut site, program).await;
        tokio::time::sleep(AT_WORK).await;
    }
    work.end(&site).await;
    site.end_equal().await;
}
