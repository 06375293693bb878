//! A hostile neighbour: callers with little rights and without any leave as much lying at a server as they can. Its memory
//! stays within what its budgets are above what it was, and comes back; workers hardly notice.
//!
//! `api/budgets.rs` has each attack by itself among the tests; `.ci/nightly attack` makes all of them at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::ready;
use futures::{StreamExt, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leasehold::api::access::token_hash;
use leasehold::client::Client;
use leasehold::wire::{ClaimJobs, HeartbeatJob, Job, SubmitJob};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep, timeout};

use crate::machine;
use crate::program::{DEADLINE, Engine, Server};

/// For how long, in seconds.
const SECONDS: &str = "LEASEHOLD_ATTACK_SECONDS";
const SHORT: Duration = Duration::from_secs(20);
/// The names of the tokens, which are the tokens, and their roles.
const TOKENS: [(&str, &str); 4] = [("farm", "work"), ("mill", "submit"), ("hostile", "submit"), ("curious", "read")];

const STREAMS: usize = 32;
const DRIPS_EVERY: Duration = Duration::from_secs(3);
const CONNECTIONS: usize = 300;
const CALLS: usize = 200;
const HOARDERS: usize = 64;
const CRUMBS: usize = 8;
/// What is sent at a time, and the pause after it: the attack is on memory, not on the processor that both share.
const PIECE: usize = 256 * 1024;
const PAUSE: Duration = Duration::from_millis(500);

const JOBS: usize = 50;
const BEATS_EVERY: Duration = Duration::from_millis(2);
/// Below this, the machine's noise is more than the server's.
const NOISE: Duration = Duration::from_millis(5);

/// All budgets together, and the heads of the connections: what docs/operating.md says.
const BUDGETS: u64 = (512 + 256 + 16 + 64) << 20;
/// What a process takes and gives back as it likes.
const SLACK: u64 = 24 << 20;
const BACK_WITHIN: Duration = Duration::from_secs(60);

fn lasts() -> Duration {
    std::env::var(SECONDS).map_or(SHORT, |seconds| Duration::from_secs(seconds.parse().expect("seconds")))
}

/// The memory that a process has, in bytes.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
}

fn client(server: &Server, token: &str) -> Client {
    Client::new(&server.url(), Some(token)).expect("a client").with_max_retries(0)
}

/// Sends heartbeats for jobs one after the other, for so long, and submits and claims on the way; returns the 99th
/// percentile of how long a heartbeat took. All are answered.
async fn beats(server: &Server, jobs: &[Job], lasts: Duration) -> Duration {
    let (farm, mill) = (client(server, "farm"), client(server, "mill"));
    let (until, mut took, mut ticks) = (Instant::now() + lasts, Vec::new(), interval(BEATS_EVERY));
    for number in 0.. {
        if Instant::now() > until {
            break;
        }
        ticks.tick().await;
        let job = &jobs[number % jobs.len()];
        let beat = HeartbeatJob { worker_id: "w".to_owned(), fence: job.fence, progress: None };
        let begun = Instant::now();
        farm.heartbeat(&job.id, &beat).await.expect("a heartbeat is answered");
        took.push(begun.elapsed());
        if number % 100 == 0 {
            mill.submit(&SubmitJob::new("meanwhile", "k")).await.expect("a submission is answered");
            let claim = ClaimJobs { queues: vec!["meanwhile".to_owned()], ..of_worker() };
            assert_eq!(farm.claim(&claim).await.expect("a claim is answered").jobs.len(), 1);
        }
    }
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

fn of_worker() -> ClaimJobs {
    ClaimJobs { worker_id: "w".to_owned(), lease_ms: Some(600_000), ..ClaimJobs::default() }
}

type Parts = Result<Bytes, std::io::Error>;

/// A body that brings this piece after each pause, for ever.
fn dripping(piece: Bytes, pause: Duration) -> reqwest::Body {
    let parts = stream::unfold(interval(pause), move |mut ticks| {
        let piece = piece.clone();
        async move {
            ticks.tick().await;
            Some((Parts::Ok(piece), ticks))
        }
    });
    reqwest::Body::wrap_stream(parts)
}

/// Makes a call with such a body again and again.
fn calls_without_end(
    url: String,
    token: &'static str,
    media: &'static str,
    piece: Bytes,
    pause: Duration,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let http = reqwest::Client::new();
        loop {
            let call = http.post(&url).bearer_auth(token).header("content-type", media);
            drop(call.body(dripping(piece.clone(), pause)).send().await);
            sleep(PAUSE).await;
        }
    })
}

/// Begins to sign in with two megabytes, again and again.
fn signs_in(address: String) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let Ok(mut stream) = TcpStream::connect(&address).await else { continue };
            let head = "POST /sign-in HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\
                        content-type: application/x-www-form-urlencoded\r\n\r\n";
            let piece = format!("{PIECE:x}\r\n{}\r\n", "x".repeat(PIECE));
            drop(stream.write_all(format!("{head}{}", piece.repeat(8)).as_bytes()).await);
            drop(timeout(10 * PAUSE, stream.read_to_end(&mut Vec::new())).await);
            sleep(PAUSE).await;
        }
    })
}

/// Opens so many calls on one connection of HTTP/2, none of which ends, again and again.
fn multiplexes(address: String) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let Ok(stream) = TcpStream::connect(&address).await else { continue };
            let connected = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
            let Ok((calls, connection)) = connected else { continue };
            let connection = tokio::spawn(connection);
            let calls = (0..CALLS).map(|_| {
                let first = stream::once(ready(Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![b'x'; PIECE])))));
                let request = http::Request::post(format!("http://{address}/sign-in"));
                let request = request.header("content-type", "application/x-www-form-urlencoded");
                let request = request.body(StreamBody::new(first.chain(stream::pending()))).expect("a request");
                let mut calls = calls.clone();
                tokio::spawn(async move { drop(calls.send_request(request).await) })
            });
            let calls: Vec<_> = calls.collect();
            sleep(20 * PAUSE).await;
            calls.iter().for_each(JoinHandle::abort);
            connection.abort();
        }
    })
}

/// All attacks.
fn attack(server: &Server) -> Vec<JoinHandle<()>> {
    let url = |path: &str| format!("{}{path}", server.url());
    let address = server.url().trim_start_matches("http://").to_owned();
    let (newline, piece) = (Bytes::from_static(b"\n"), Bytes::from(vec![b' '; PIECE]));
    let ndjson = "application/x-ndjson";
    let mut all: Vec<JoinHandle<()>> = Vec::new();
    all.extend(
        (0..STREAMS)
            .map(|_| calls_without_end(url("/v1/schedules/bulk"), "hostile", ndjson, newline.clone(), DRIPS_EVERY)),
    );
    all.extend((0..HOARDERS).map(|_| calls_without_end(url("/v1/jobs/bulk"), "hostile", ndjson, piece.clone(), PAUSE)));
    all.extend((0..CRUMBS).map(|_| {
        let crumb = Bytes::from_static(b" ");
        calls_without_end(url("/v1/schedules/preview"), "curious", "application/json", crumb, Duration::from_millis(1))
    }));
    all.extend((0..CONNECTIONS).map(|_| signs_in(address.clone())));
    all.push(multiplexes(address));
    all
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: each attack by itself is among the tests"]
async fn a_hostile_neighbour_costs_a_server_its_budgets_and_workers_nothing() {
    let _share = machine::with_few_others();
    let place = tempfile::tempdir().expect("a directory");
    let settings = place.path().join("settings.toml");
    let token = |(name, role): (&str, &str)| {
        format!("[[tokens]]\nname = \"{name}\"\nroles = [\"{role}\"]\nsha256 = \"{}\"\n", token_hash(name))
    };
    std::fs::write(&settings, TOKENS.map(token).concat()).expect("written");
    let options = ["--config", settings.to_str().expect("a path")];
    let engine = Engine::Embedded(place.path().join("data"));
    let mut server = Server::start_as("serve", &options, engine, &place.path().join("server.log")).await;
    let pid = server.pid();

    let (farm, mill) = (client(&server, "farm"), client(&server, "mill"));
    let mut jobs = Vec::new();
    for _ in 0..JOBS {
        mill.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
        let claim = ClaimJobs { queues: vec!["q".to_owned()], ..of_worker() };
        jobs.extend(farm.claim(&claim).await.expect("claimed").jobs);
    }
    assert_eq!(jobs.len(), JOBS);
    let at_rest = beats(&server, &jobs, lasts()).await;
    let before = memory(pid);

    let attackers = attack(&server);
    let most = Arc::new(AtomicU64::new(before));
    let seen = Arc::clone(&most);
    let looking = tokio::spawn(async move {
        loop {
            seen.fetch_max(memory(pid), Ordering::Relaxed);
            sleep(Duration::from_millis(50)).await;
        }
    });
    let meanwhile = beats(&server, &jobs, lasts()).await;
    attackers.iter().for_each(JoinHandle::abort);
    looking.abort();
    let most = most.load(Ordering::Relaxed);
    let mib = |bytes: u64| bytes >> 20;
    eprintln!("memory: {} MiB at rest, {} MiB at most; heartbeats: {at_rest:?}, {meanwhile:?}", mib(before), mib(most));
    assert!(most <= before + BUDGETS, "{} MiB, and {} MiB before", mib(most), mib(before));
    let ended = Instant::now();
    while memory(pid) > before + (before / 5).max(SLACK) {
        assert!(ended.elapsed() < BACK_WITHIN.min(DEADLINE), "{} MiB are kept", mib(memory(pid)));
        sleep(Duration::from_secs(1)).await;
    }
    eprintln!("memory: {} MiB after {:?}", mib(memory(pid)), ended.elapsed());
    assert!(meanwhile <= 2 * at_rest.max(NOISE), "{meanwhile:?}, and {at_rest:?} at rest");
}
