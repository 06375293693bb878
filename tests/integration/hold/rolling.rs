//! Members that are stopped and started again one after the other under load, also with another build of the program:
//! no acknowledged call is lost, and a worker notices nothing.
//!
//! The other build is named in the environment, as `.ci/nightly` does with that of the previous commit. Without it
//! both are the same. What it leaves behind on its disks is taken over as well.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use leasehold::client::Client;
use leasehold::wire::{JobState, SubmitJob};
use reqwest::header::CONTENT_TYPE;
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::site::{MEMBERS, Site};
use crate::load::Load;
use crate::machine;
use crate::program::{Engine, PROGRAM, Server, Started, leasehold, lines, run};
use crate::servers;

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

/// Submits jobs whose labels are long, in so many calls at once, and returns their ids.
async fn submit_long(url: &str, calls: usize, jobs: usize) -> Vec<String> {
    let http = reqwest::Client::new();
    let labels: BTreeMap<_, _> = (0..4).map(|number| (format!("label-{number}"), "x".repeat(250))).collect();
    let ids = |call| (0..jobs).map(move |number| format!("long-{call}-{number}"));
    let of = |id: String| json!(SubmitJob { id: Some(id), labels: labels.clone(), ..SubmitJob::new("long", "k") });
    let submitted = (0..calls).map(|call| {
        let lines: String = ids(call).map(|id| of(id).to_string() + "\n").collect();
        let call = http.post(format!("{url}/v1/jobs/bulk")).header(CONTENT_TYPE, "application/x-ndjson").body(lines);
        async move { call.send().await.expect("an answer").error_for_status().expect("it is done").bytes().await }
    });
    join_all(submitted).await.into_iter().for_each(|answer| drop(answer.expect("a whole answer")));
    (0..calls).flat_map(ids).collect()
}

/// Returns the length of the longest segment of a log.
fn longest_segment(data: &Path) -> u64 {
    let segments = fs::read_dir(data.join("log")).expect("a log").map(|entry| entry.expect("a file"));
    segments.map(|entry| entry.metadata().expect("a length").len()).max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a hundred megabytes"]
async fn members_of_two_versions_read_the_longest_entry_that_the_other_has_written() {
    let _share = machine::with_others();
    let other = std::env::var(OTHER).unwrap_or_else(|_| PROGRAM.to_owned());
    let place = TempDir::new().expect("a directory");
    let (data, log) = (place.path().join("data"), place.path().join("server.log"));
    let port = servers::ports::free();
    let mut server = Server::begin_at(port, &other, &["serve"], Engine::Embedded(data.clone()), &log);
    server.ready().await;
    // While one batch is written, those that come are collected.
    let ids = submit_long(&server.url(), 8, 9_000).await;
    server.kill();
    println!("the longest segment has {} bytes", longest_segment(&data));
    server.is_to_run(vec![PROGRAM.to_owned()]);
    server.start_again();
    server.ready().await;
    let counted = Client::new(&server.url(), None).expect("a client").queue("long").await.expect("the queue");
    assert_eq!(counted.jobs.get(&JobState::Available), Some(&(ids.len() as u64)));
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    run(place.path(), ["verify", "--data-dir", data.to_str().expect("text")]).expect(0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: half a minute of three members"]
async fn members_of_two_versions_come_to_the_same_where_one_lags_and_part_where_one_was_forced_to_be_alone() {
    let _share = machine::with_others();
    let other = std::env::var(OTHER).unwrap_or_else(|_| PROGRAM.to_owned());
    let mut site = Site::members_of(&[&other, &other, &other], &[]).await;
    site.servers[2].kill();
    let url = site.servers[site.a_leader().await].url();
    let ids = submit_long(&url, 2, 3_000).await;
    site.servers.iter_mut().for_each(Server::kill);
    for server in &mut site.servers {
        server.is_to_run(vec![PROGRAM.to_owned()]);
        server.start_again();
    }
    site.are_ready().await;
    site.has_caught_up(2).await;
    let count = async |server: &Server| {
        let queue = Client::new(&server.url(), None).expect("a client").queue("long").await;
        queue.expect("the queue").jobs.get(&JobState::Available).copied().unwrap_or_default()
    };
    assert_eq!(count(&site.servers[2]).await, ids.len() as u64);

    // The other version has one of them go on alone, and this one reads what that has left.
    for server in &mut site.servers {
        assert_eq!(server.stop(), Some(0), "{}", server.log());
    }
    let data = site.data(0);
    let force = ["cluster", "force-alone", "--data-dir", data.to_str().expect("text"), "--yes"];
    let forced = Command::new(&other).args(force).current_dir(site.place.path()).output().expect("it runs");
    assert!(forced.status.success(), "{}", String::from_utf8_lossy(&forced.stderr));
    site.servers[0].start_again();
    site.servers[0].ready().await;
    Client::new(&site.servers[0].url(), None)
        .expect("a client")
        .submit(&SubmitJob::new("q", "k"))
        .await
        .expect("taken");
    // One of the others has no majority without the other.
    for former in [1, 2] {
        site.servers[former].start_again();
    }
    for former in [1, 2] {
        site.servers[former].ready().await;
    }
    for server in &site.servers {
        assert_eq!(count(server).await, ids.len() as u64);
    }
    let standings: Vec<_> = site.standings().await.into_iter().flatten().map(|status| status.leader).collect();
    assert!(matches!(standings[..], [Some(1), Some(2 | 3), Some(2 | 3)]), "{standings:?}");
}
