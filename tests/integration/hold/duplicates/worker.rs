//! A worker process: this test program, started once more with orders in its environment.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::journal::{Journal, What};
use super::leasehold::Leasehold;
use super::textbook::{Textbook, watch_over};

/// Where a process finds its orders.
pub(super) const ORDERS: &str = "LEASEHOLD_TEST_ORDERS";

/// The term of a lease, and how often a worker is heard of while it works.
pub(super) const LEASE: Duration = Duration::from_secs(3);
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// How long the jobs of one claim take.
const WORK_MS: std::ops::Range<u64> = 0..1_500;
/// How long a process waits for one answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long a worker pauses that was given no jobs, or no answer.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a worker repeats a call.
const CALL_WITHIN: Duration = Duration::from_secs(180);
/// How long a process may take to end that was told to.
const END_WITHIN: Duration = Duration::from_secs(50);

/// What a process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) role: Role,
    /// No other process has the same, nor another life of this one.
    pub(super) name: String,
    pub(super) urls: Vec<String>,
    pub(super) journal: PathBuf,
    /// The most jobs in one claim.
    pub(super) batch: usize,
    pub(super) seed: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Role {
    /// A worker of Leasehold's managers.
    Leasehold,
    /// A worker by the textbook, on this index.
    Textbook { index: String, checks_owner: bool },
    /// Who gives back the jobs of stale workers by the textbook.
    TextbookMonitor { index: String },
}

impl Orders {
    /// The orders of this process, if it is one that has some.
    pub(super) fn of_this_process() -> Option<Self> {
        let orders = std::env::var(ORDERS).ok()?;
        Some(serde_json::from_str(&orders).expect("orders are JSON"))
    }

    /// Carries the orders out until the standard input ends.
    pub(super) async fn carry_out(self) {
        std::thread::spawn(|| {
            // It ends with the test, however that ends.
            let _ended = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            ENDING.store(true, Ordering::SeqCst);
            std::thread::sleep(END_WITHIN);
            std::process::exit(1);
        });
        let caller = Caller::to(self.urls.clone());
        match self.role.clone() {
            Role::Leasehold => {
                let protocol = Leasehold::new(caller, &self.name);
                self.work(protocol).await;
            }
            Role::Textbook { index, checks_owner } => {
                let protocol = Textbook::new(caller, &self.name, &index, checks_owner);
                self.work(protocol).await;
            }
            Role::TextbookMonitor { index } => watch_over(caller, &index).await,
        }
    }

    async fn work(self, mut protocol: impl Protocol) {
        let mut random = StdRng::seed_from_u64(self.seed);
        let mut journal = Journal::open(&self.journal);
        while !is_ending() {
            let mut held = protocol.claim(self.batch).await;
            if held.is_empty() {
                sleep(PAUSE).await;
                continue;
            }
            for lease in &held {
                journal.write(What::Started, &lease.id, lease.token, Some(lease.until));
            }
            let done = Instant::now() + Duration::from_millis(random.random_range(WORK_MS));
            loop {
                sleep(BEAT_EVERY.min(done.saturating_duration_since(Instant::now()))).await;
                if Instant::now() >= done {
                    break;
                }
                held = renewed(&mut protocol, held, &mut journal).await;
            }
            for lease in &held {
                journal.write(What::Done, &lease.id, lease.token, None);
            }
            complete(&mut protocol, held, &mut journal).await;
        }
    }
}

/// The leases that are still held after a heartbeat, as far as the worker can know.
async fn renewed(protocol: &mut impl Protocol, held: Vec<Held>, journal: &mut Journal) -> Vec<Held> {
    let heard = protocol.beat(&held).await;
    let mut still_held = Vec::with_capacity(held.len());
    for (lease, heard) in held.into_iter().zip(heard) {
        match heard {
            Heard::Renewed { until } => journal.write(What::Renewed, &lease.id, lease.token, Some(until)),
            Heard::Nothing => {}
            Heard::Lost => {
                journal.write(What::Abandoned, &lease.id, lease.token, None);
                continue;
            }
        }
        still_held.push(lease);
    }
    still_held
}

/// Repeats the completions until each is answered.
async fn complete(protocol: &mut impl Protocol, mut held: Vec<Held>, journal: &mut Journal) {
    let patience = Patience::default();
    while !held.is_empty() {
        let ended = protocol.complete(&held).await;
        let mut unanswered = Vec::new();
        for (lease, ended) in held.into_iter().zip(ended) {
            match ended {
                End::Acknowledged => journal.write(What::Acknowledged, &lease.id, lease.token, None),
                End::Refused => journal.write(What::Refused, &lease.id, lease.token, None),
                End::Unanswered => unanswered.push(lease),
            }
        }
        held = unanswered;
        if !held.is_empty() {
            patience.pause().await;
        }
    }
}

static ENDING: AtomicBool = AtomicBool::new(false);

/// Whether this process was told to end.
pub(super) fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// How workers get jobs and end them.
#[async_trait]
pub(super) trait Protocol {
    /// Claims some jobs.
    async fn claim(&mut self, most: usize) -> Vec<Held>;

    /// Sends one heartbeat for all; returns what was heard for each.
    async fn beat(&mut self, held: &[Held]) -> Vec<Heard>;

    /// Sends the completions once; returns the end of each.
    async fn complete(&mut self, held: &[Held]) -> Vec<End>;
}

/// A job that a worker was given.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) id: String,
    pub(super) token: u64,
    /// A lease's term after the claim was sent.
    pub(super) until: u64,
}

/// What came of a heartbeat for one job.
pub(super) enum Heard {
    Renewed { until: u64 },
    Lost,
    Nothing,
}

/// What came of a completion.
pub(super) enum End {
    Acknowledged,
    Refused,
    Unanswered,
}

/// Calls one of several servers, and the next one after a failure.
pub(super) struct Caller {
    http: reqwest::Client,
    urls: Vec<String>,
    turn: usize,
}

impl Caller {
    fn to(urls: Vec<String>) -> Self {
        let http = reqwest::Client::builder().timeout(ANSWER_WITHIN).build().expect("an HTTP client");
        Self { http, urls, turn: 0 }
    }

    /// Makes one call; `None` without an answer, or when the server says that it cannot now.
    pub(super) async fn post(&mut self, path: &str, body: String) -> Option<serde_json::Value> {
        let url = format!("{}{path}", self.urls[self.turn % self.urls.len()]);
        let kind = if path.ends_with("/_bulk") { "application/x-ndjson" } else { "application/json" };
        let answer = self.http.post(&url).header("content-type", kind).body(body).send().await;
        let answer = match answer {
            Ok(answer) if answer.status().is_success() => answer.json().await.ok(),
            Ok(answer) => {
                let status = answer.status();
                let can_come_later = status.is_server_error() || [408, 429].contains(&status.as_u16());
                assert!(can_come_later, "{url}: {status} {}", answer.text().await.unwrap_or_default());
                None
            }
            Err(_) => None,
        };
        self.turn += usize::from(answer.is_none());
        answer
    }
}

/// How long a call is repeated.
pub(super) struct Patience(Instant);

impl Default for Patience {
    fn default() -> Self {
        Self(Instant::now() + CALL_WITHIN)
    }
}

impl Patience {
    /// Pauses before the next try.
    pub(super) async fn pause(&self) {
        assert!(Instant::now() < self.0, "a call was not answered in {CALL_WITHIN:?}");
        sleep(PAUSE).await;
    }
}
