//! Three `leasehold serve` that are one: a leader that is killed, and one that is stopped.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::client::{AuditQuery, Client, ClientError};
use leasehold::wire::{ClaimJobs, CompleteJob, SubmitJob};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::program::{DEADLINE, Started, leasehold, run, until};
use crate::servers::ports;

const SECRET: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

/// How many jobs are submitted at a time.
const JOBS: usize = 50;

/// How often the lead is handed over.
const HAND_OVERS: u64 = 8;

/// Three members in a directory.
pub(super) struct Trio {
    place: tempfile::TempDir,
    ports: [u16; 3],
    options: &'static [&'static str],
    /// Whether each reads the secret from a file of its own.
    has_secret_files: bool,
    /// The token that this one asks with, which the members' settings file has.
    token: Option<&'static str>,
    /// The processes; `None` for one that has ended.
    members: [Option<Started>; 3],
}

impl Trio {
    pub(super) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts them with options.
    pub(super) fn with(options: &'static [&'static str]) -> Self {
        let mut trio = Self::of(options);
        (0..3).for_each(|index| trio.start_member(index));
        trio
    }

    /// Starts them with a file for each that has the secret in it.
    pub(super) fn with_secret_files(secret: &str) -> Self {
        let mut trio = Self { has_secret_files: true, ..Self::of(&[]) };
        for index in 0..3 {
            fs::write(trio.secret_file(index), secret).expect("written");
            trio.start_member(index);
        }
        trio
    }

    /// Starts them with this token of an administrator, and an audit.
    pub(super) fn with_token(token: &'static str) -> Self {
        let mut trio = Self { token: Some(token), ..Self::of(&["--audit"]) };
        let hash = leasehold::api::access::token_hash(token);
        let settings = format!("[[tokens]]\nname = \"ops\"\nroles = [\"admin\"]\nsha256 = \"{hash}\"\n");
        fs::write(trio.settings_file(), settings).expect("written");
        (0..3).for_each(|index| trio.start_member(index));
        trio
    }

    fn of(options: &'static [&'static str]) -> Self {
        let (place, ports) = (tempfile::tempdir().expect("a directory"), [(); 3].map(|()| ports::free()));
        Self { place, ports, options, has_secret_files: false, token: None, members: [None, None, None] }
    }

    fn settings_file(&self) -> PathBuf {
        self.place.path().join("leasehold.toml")
    }

    pub(super) fn secret_file(&self, index: usize) -> PathBuf {
        self.place.path().join(format!("secret-{}", index + 1))
    }

    /// Returns what a member has logged.
    pub(super) fn log(&self, index: usize) -> String {
        fs::read_to_string(self.place.path().join(format!("{}.log", index + 1))).expect("a log")
    }

    fn start_member(&mut self, index: usize) {
        let peers = (1..).zip(self.ports).map(|(number, port)| format!("{number}=http://127.0.0.1:{port}"));
        let peers = peers.collect::<Vec<_>>().join(",");
        let (member, listen) = ((index + 1).to_string(), format!("127.0.0.1:{}", self.ports[index]));
        let data = self.place.path().join(format!("data-{member}"));
        let data = data.to_str().expect("a name that is text");
        let arguments = ["serve", "--cluster-name", "trio", "--member", &member, "--peers", &peers];
        let secret = self.secret_file(index);
        let secret = match self.has_secret_files {
            true => ["--cluster-secret-file", secret.to_str().expect("a name that is text")],
            false => ["--cluster-secret", SECRET],
        };
        let arguments = arguments.into_iter().chain(secret).chain(["--listen", &listen]);
        let log = File::options().create(true).append(true).open(self.place.path().join(format!("{member}.log")));
        let log = log.expect("the log can be written");
        let arguments = arguments.chain(["--data-dir", data]).chain(self.options.iter().copied());
        let mut command = leasehold(self.place.path(), arguments);
        if self.token.is_some() {
            command.arg("--config").arg(self.settings_file());
        }
        self.members[index] = Some(Started::of(command.stdout(Stdio::null()).stderr(log)));
    }

    pub(super) fn path(&self) -> &Path {
        self.place.path()
    }

    pub(super) fn url(&self, index: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[index])
    }

    pub(super) fn client(&self, index: usize) -> Client {
        Client::new(&self.url(index), self.token).expect("a client")
    }

    /// Waits until a member leads that all of these know, and returns its place.
    pub(super) async fn leader(&self, of: &[usize]) -> usize {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let mut leaders = Vec::new();
            for index in of {
                let status = self.client(*index).with_max_retries(0).cluster().await;
                leaders.push(status.ok().and_then(|status| status.leader));
            }
            if let Some(Some(leader)) = leaders.first()
                && leaders.iter().all(|known| *known == Some(*leader))
                && of.contains(&(*leader as usize - 1))
            {
                return *leader as usize - 1;
            }
            assert!(Instant::now() < deadline, "no leader in time: {leaders:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Submits jobs through one member after the other, and returns their ids.
    async fn submit(&self, through: &[usize]) -> Vec<String> {
        let mut ids = Vec::new();
        for number in 0..JOBS {
            let client = self.client(through[number % through.len()]);
            ids.push(client.submit(&SubmitJob::new("q", "k")).await.expect("submitted").id.to_string());
        }
        ids
    }
}

pub(super) fn others(index: usize) -> Vec<usize> {
    (0..3).filter(|other| *other != index).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_whose_leader_is_killed_go_on_and_have_lost_nothing() {
    let mut trio = Trio::start();
    let leader = trio.leader(&[0, 1, 2]).await;
    let mut ids = trio.submit(&[0, 1, 2]).await;
    let mut killed = trio.members[leader].take().expect("it runs");
    killed.signal(Signal::SIGKILL);
    tokio::task::block_in_place(|| killed.end());
    let left = others(leader);
    ids.extend(trio.submit(&left).await);
    assert!(left.contains(&trio.leader(&left).await));
    trio.start_member(leader);
    trio.leader(&[0, 1, 2]).await;
    for index in 0..3 {
        for id in &ids {
            assert_eq!(trio.client(index).job(id).await.expect("the job is there").id, *id);
        }
    }
    // A member that is slow to answer once is shown as not reachable.
    tokio::task::block_in_place(|| {
        until("all are reachable, and one leads", || {
            let status = run(trio.path(), ["cluster", "status", "--json", "--server", &trio.url(leader)]);
            let status = status.expect(0).stdout();
            let rows: Vec<Value> = status.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            assert_eq!(rows.len(), 3, "{status}");
            rows.iter().all(|row| row["reachable"] == true)
                && rows.iter().filter(|row| row["role"] == "leader").count() == 1
        });
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_stopped_leaves_no_call_undone() {
    let mut trio = Trio::start();
    let leader = trio.leader(&[0, 1, 2]).await;
    let left = others(leader);
    let term = trio.client(leader).cluster().await.expect("it runs").term;
    let mut stopped = trio.members[leader].take().expect("it runs");
    let stopping = tokio::task::spawn_blocking(move || {
        stopped.signal(Signal::SIGTERM);
        stopped.end().code()
    });
    // Each is made once: a member that stops says what is not done, and the others wait for the next leader.
    let (mut longest, mut undone) = (Duration::ZERO, Vec::new());
    for number in 0.. {
        let client = trio.client(left[number % 2]).with_max_retries(0);
        let begun = Instant::now();
        undone.extend(client.submit(&SubmitJob::new("q", "k")).await.err());
        longest = longest.max(begun.elapsed());
        if number >= JOBS && stopping.is_finished() {
            break;
        }
    }
    assert_eq!(stopping.await.expect("no panic"), Some(0));
    // Nobody has noticed that it is silent, and stood for election: it has handed over the lead.
    let next = trio.leader(&left).await;
    let status = trio.client(next).cluster().await.expect("it runs");
    println!("member {} leads after member {}; the longest call took {longest:?}", next + 1, leader + 1);
    // Where the machine stands still there may be one election more, in which a call's outcome is lost.
    let is_next = status.term == term + 1 && undone.is_empty();
    assert!(is_next || status.term > term + 1, "{status:?}: {undone:?}");
    let said = std::fs::read_to_string(trio.path().join(format!("{}.log", leader + 1))).expect("its log");
    let is_said = ["another member leads", "no other member leads yet"].iter().any(|line| said.contains(line));
    assert!(is_said && said.contains("this member hands over the lead"), "{said}");
}

/// Submits, reads, claims and ends jobs through one member, each call once, until `is_over`; returns what failed.
async fn call(client: Client, queue: String, is_over: &AtomicBool) -> Vec<ClientError> {
    let client = client.with_max_retries(0);
    let claim = ClaimJobs { worker_id: "w".to_owned(), queues: vec![queue.clone()], ..ClaimJobs::default() };
    let mut failed = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        match client.submit(&SubmitJob::new(&queue, "k")).await {
            Ok(job) => failed.extend(client.job(job.id.as_ref()).await.err()),
            Err(error) => failed.push(error),
        }
        failed.extend(client.job("none").await.err().filter(|error| error.code() != Some("not_found")));
        let claimed = match client.claim(&claim).await {
            Ok(claimed) => claimed.jobs,
            Err(error) => {
                failed.push(error);
                continue;
            }
        };
        for job in claimed {
            let done = CompleteJob { worker_id: "w".to_owned(), fence: job.fence, result: None, next: None };
            failed.extend(client.complete(job.id.as_ref(), &done).await.err());
        }
    }
    failed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lead_that_is_handed_over_fails_no_call() {
    let trio = Trio::start();
    trio.leader(&[0, 1, 2]).await;
    let is_over = Arc::new(AtomicBool::new(false));
    // Two through each member, as many through the leader as through the others.
    let calling = (0..6).map(|number| {
        let (client, is_over) = (trio.client(number % 3), Arc::clone(&is_over));
        tokio::spawn(async move { call(client, format!("q{number}"), &is_over).await })
    });
    let calling: Vec<_> = calling.collect();
    let first = trio.client(0).cluster().await.expect("it runs").term;
    for _ in 0..HAND_OVERS {
        let leader = trio.leader(&[0, 1, 2]).await;
        let next = ((leader + 1) % 3 + 1).to_string();
        let handed = tokio::task::block_in_place(|| {
            run(trio.path(), ["cluster", "transfer", &next, "--server", &trio.url(leader)])
        });
        handed.expect(0);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    let mut failed = Vec::new();
    for calling in calling {
        failed.extend(calling.await.expect("no panic"));
    }
    let failed: Vec<String> =
        failed.iter().map(|error| format!("{}: {error}", error.code().unwrap_or("none"))).collect();
    let leader = trio.leader(&[0, 1, 2]).await;
    let last = trio.client(leader).cluster().await.expect("it runs").term;
    println!("{} terms later {} calls have failed", last - first, failed.len());
    // Where the machine stands still there may be further elections, in which a call's outcome is lost.
    assert!(failed.is_empty() || last > first + HAND_OVERS, "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_every_member_shows_and_changes_the_same() {
    let trio = Trio::start();
    trio.leader(&[0, 1, 2]).await;
    trio.client(0).submit(&SubmitJob::new("night", "report")).await.expect("submitted");
    let http = reqwest::Client::new();
    for index in 0..3 {
        let url = trio.url(index);
        for (path, shown) in [("/", "<h2>Members</h2>"), ("/jobs", "report"), ("/assets/page.css", "color-scheme")] {
            let answer = http.get(format!("{url}{path}")).send().await.expect("an answer");
            assert!(answer.status().is_success(), "{path}: {}", answer.status());
            let text = answer.text().await.expect("text");
            assert!(text.contains(shown), "{path}: {text}");
        }
        let by_page = http.post(format!("{url}/v1/queues/night/pause")).header("origin", &url);
        let paused = by_page.header("x-leasehold-page", "1").send().await.expect("an answer");
        assert!(paused.status().is_success(), "{}", paused.text().await.expect("text"));
        let mut ticks = http.get(format!("{url}/live")).send().await.expect("an answer");
        let first = ticks.chunk().await.expect("a stream").expect("a tick");
        assert!(first.starts_with(b"event: tick"), "{first:?}");
    }
}

/// Reads the audit through every member, and returns which one leads and a place in its audit; `None` when another one
/// leads by then.
async fn read_audit_everywhere(trio: &Trio) -> Option<(usize, Option<String>)> {
    let term = async || {
        let terms = [0, 1, 2].map(async |index| trio.client(index).cluster().await.expect("it runs").term);
        futures::future::join_all(terms).await.into_iter().max()
    };
    trio.leader(&[0, 1, 2]).await;
    let before = term().await;
    let leader = trio.leader(&[0, 1, 2]).await;
    let submitted = trio.submit(&[0]).await;
    let wanted = AuditQuery { limit: Some(1), ..AuditQuery::default() };
    let mut cursor = None;
    for index in [0, 1, 2] {
        let deadline = Instant::now() + DEADLINE;
        let (whole, page) = loop {
            let page = trio.client(index).audit(&AuditQuery::default()).await;
            // What one member has begun to read, the next one goes on with.
            let next = trio.client(index).audit(&AuditQuery { cursor: cursor.clone(), ..wanted.clone() }).await;
            if term().await != before {
                return None;
            }
            let page = page.expect("an answer");
            if page.items.len() == submitted.len() {
                break (page, next.expect("an answer"));
            }
            assert!(page.kept && Instant::now() < deadline, "{page:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_eq!(page.items, whole.items[index..=index]);
        cursor = page.next_cursor;
    }
    Some((leader, cursor))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_is_read_through_every_member_and_is_whole_at_the_next_leader() {
    let mut read = None;
    for _ in 0..5 {
        let trio = Trio::with(&["--audit", "--audit-period-ms", "100"]);
        read = read_audit_everywhere(&trio).await.map(|read| (trio, read));
        if read.is_some() {
            break;
        }
    }
    let (mut trio, (leader, cursor)) = read.expect("a leader leads for a while");
    let all = trio.client(leader).audit(&AuditQuery::default()).await.expect("an answer").items;

    // Another member leads: it has what the former one wrote, and goes on with what happens from then on.
    let mut killed = trio.members[leader].take().expect("it runs");
    killed.signal(Signal::SIGKILL);
    tokio::task::block_in_place(|| killed.end());
    let left = others(leader);
    let next = trio.leader(&left).await;
    let goes_on = AuditQuery { cursor, ..AuditQuery::default() };
    let rest = trio.client(next).audit(&goes_on).await.expect("a page").items;
    assert!(!rest.is_empty() && all.ends_with(&rest), "{rest:?} of {all:?}");
    let found = trio.client(next).audit(&AuditQuery::default()).await.expect("a page").items;
    assert!(found.ends_with(&all), "{found:?} without {all:?}");
    let later = trio.submit(&left).await;
    let deadline = Instant::now() + DEADLINE;
    for id in &later {
        let of_job = AuditQuery { jobs: vec![id.clone()], ..AuditQuery::default() };
        while trio.client(next).audit(&of_job).await.expect("an answer").items.is_empty() {
            assert!(Instant::now() < deadline, "{id} is never in the audit of the next leader");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
