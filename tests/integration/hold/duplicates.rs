//! How often a job is executed and its completion acknowledged, counted by the workers themselves while they are killed
//! and frozen, answers are lost, and so on: by Leasehold, and by the textbook protocol under the same faults.
//!
//! Few jobs among the tests; `.ci/nightly` makes 300,000 of them. `docs/safety.md` has the figures.

mod crew;
mod journal;
mod leasehold;
mod tally;
mod textbook;
mod worker;

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};

use self::crew::{Crew, Process};
use self::leasehold::QUEUE;
use self::tally::{Execution, Tally};
use self::worker::{Orders, Role};
use super::site::{self, ONE_CLOCK, Site, Trouble};
use crate::machine;
use crate::proxy::FaultProxy;
use crate::seed;
use crate::servers::{self, IndexSet};

/// The number of jobs.
const JOBS: &str = "LEASEHOLD_DUPLICATES_JOBS";
const FEW: usize = 250;
const FEWER: usize = 200;
/// About so many claims there are at least, so that troubles find them at everything.
const CLAIMS: usize = 125;
/// The most jobs in a claim, and in a submission.
const LARGEST_CLAIM: usize = 50;
const SUBMITTED: usize = 5_000;

/// The time between two faults, and how long those last that end by themselves.
const QUIET_MS: std::ops::Range<u64> = 100..1_500;
const LASTS_MS: std::ops::Range<u64> = 500..8_000;

/// For how long no job at all may end, and a question may find no answer.
const PATIENCE: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(200);
/// How long one question may take at a member that may be cut off.
const ASKED_WITHIN: Duration = Duration::from_secs(2);

/// Gives a job away as soon as its lease is over, as the textbook does.
const WITHOUT_GRACE: [&str; 2] = ["--orphan-grace-ms", "0"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hit {
    WorkerKilled,
    WorkersFrozen,
    /// A manager, or the textbook's monitor.
    ServiceKilled,
    ServiceFrozen,
    /// One of the ways to Elasticsearch is interrupted, or members are parted.
    Outage,
}

/// Each as often as the others, but for what befalls workers.
const HITS: [Hit; 8] = [
    Hit::WorkerKilled,
    Hit::WorkerKilled,
    Hit::WorkersFrozen,
    Hit::WorkersFrozen,
    Hit::WorkersFrozen,
    Hit::ServiceKilled,
    Hit::ServiceFrozen,
    Hit::Outage,
];

/// What gives out jobs.
trait Service {
    /// Switches lies of the network on or off.
    fn lie(&self, on: bool);

    /// The number of answers that it spoiled.
    fn spoiled(&self) -> u64;

    /// The number of jobs that have not ended, as they were a moment ago.
    async fn left(&self) -> usize;

    /// Makes what befalls others than workers.
    async fn suffer(&mut self, hit: Hit, victim: usize, lasts: Duration);
}

fn jobs(few: usize) -> usize {
    std::env::var(JOBS).map_or(few, |text| text.parse().expect("a number of jobs"))
}

fn name(number: usize) -> String {
    format!("job-{number}")
}

fn batch(jobs: usize) -> usize {
    (jobs / CLAIMS).clamp(1, LARGEST_CLAIM)
}

/// Makes one fault after the other until all jobs have ended and each fault was made.
async fn withstand(service: &mut impl Service, crew: &mut Crew, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let begun = Instant::now();
    let mut made = Vec::new();
    let mut progress = Progress::default();
    service.lie(true);
    loop {
        let left = service.left().await;
        progress.see(left);
        let missing = HITS.iter().find(|hit| !made.contains(*hit));
        if left == 0 && missing.is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(QUIET_MS))).await;
        // Each of them once before any is made again, so that it finds jobs.
        let hit = *missing.or_else(|| HITS.choose(&mut random)).expect("there are some");
        let (victim, lasts) = (random.random_range(0..usize::MAX), random.random_range(LASTS_MS));
        let lasts = Duration::from_millis(lasts);
        match hit {
            Hit::WorkerKilled => crew.kill_one(victim),
            Hit::WorkersFrozen => crew.freeze_machine(victim, lasts).await,
            _ => service.suffer(hit, victim, lasts).await,
        }
        made.push(hit);
    }
    service.lie(false);
    // A search may have shown what was so a moment ago.
    while service.left().await > 0 {
        progress.see(service.left().await);
        tokio::time::sleep(PAUSE).await;
    }
    let often = |hit: Hit| made.iter().filter(|made| **made == hit).count();
    let all = [Hit::WorkerKilled, Hit::WorkersFrozen, Hit::ServiceKilled, Hit::ServiceFrozen, Hit::Outage];
    let made = all.map(|hit| (hit, often(hit)));
    println!("{} s, {} answers spoiled, {made:?}", begun.elapsed().as_secs(), service.spoiled());
    assert!(service.spoiled() > 0, "some answers were spoiled");
}

/// Notices when no job ends any more.
struct Progress {
    left: usize,
    changed: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        Self { left: usize::MAX, changed: Instant::now() }
    }
}

impl Progress {
    fn see(&mut self, left: usize) {
        if left != self.left {
            *self = Self { left, changed: Instant::now() };
        }
        assert!(self.changed.elapsed() < PATIENCE, "of {left} jobs none ended in {PATIENCE:?}");
    }
}

/// Asks until it is answered, and wholly.
async fn told(request: impl Fn() -> RequestBuilder) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let why = match request().send().await {
            Ok(answer) if answer.status().is_success() => match answer.text().await {
                Ok(text) => return text,
                Err(error) => error.to_string(),
            },
            Ok(answer) => answer.text().await.unwrap_or_default(),
            Err(error) => error.to_string(),
        };
        assert!(Instant::now() < deadline, "not answered in time: {why}");
        tokio::time::sleep(PAUSE).await;
    }
}

async fn asked(request: impl Fn() -> RequestBuilder) -> Value {
    serde_json::from_str(&told(request).await).expect("JSON")
}

/// An index of jobs, asked over a network that does not lie.
struct Index {
    http: Client,
    url: String,
    /// The states of jobs that have not ended.
    open: [&'static str; 2],
}

impl Index {
    async fn new(name: &str, open: [&'static str; 2]) -> Self {
        let url = format!("{}/{name}", servers::elasticsearch().await.url());
        Self { http: Client::new(), url, open }
    }

    /// The number of jobs that have not ended, as they were a moment ago.
    async fn left(&self) -> usize {
        self.count(&self.open).await
    }

    async fn count(&self, states: &[&str]) -> usize {
        let query = json!({"query": {"terms": {"state": states}}});
        let answer = asked(|| self.http.post(format!("{}/_count", self.url)).json(&query)).await;
        usize::try_from(answer["count"].as_u64().expect("a number")).expect("few enough")
    }

    async fn refresh(&self) {
        asked(|| self.http.post(format!("{}/_refresh", self.url))).await;
    }
}

struct Managers {
    site: Site,
    /// Between the workers and each manager: answers are lost there too.
    fronts: Vec<FaultProxy>,
    /// `None` where they are members of a cluster, which are asked themselves.
    index: Option<Index>,
    http: Client,
}

impl Managers {
    async fn on_elasticsearch(seed: u64) -> Self {
        let site = Site::before_elasticsearch(seed, None).await;
        let indices = Arc::new(servers::elasticsearch().await.index_set().await);
        let prefix = indices.prefix().to_owned();
        let site = site.with_managers(&indices, &[ONE_CLOCK, WITHOUT_GRACE].concat()).await;
        let index = Index::new(&format!("{prefix}jobs"), ["available", "running"]).await;
        Self::behind_fronts(site, Some(index), seed).await
    }

    async fn members(seed: u64) -> Self {
        let site = Site::members(&[ONE_CLOCK, WITHOUT_GRACE].concat()).await;
        Self::behind_fronts(site, None, seed).await
    }

    async fn behind_fronts(site: Site, index: Option<Index>, seed: u64) -> Self {
        let mut fronts = Vec::new();
        for (number, server) in site.servers.iter().enumerate() {
            let faults = site::lies(seed.wrapping_add(1_000 + number as u64));
            fronts.push(FaultProxy::start(&server.url(), faults).await);
        }
        Self { site, fronts, index, http: Client::new() }
    }

    fn url(&self) -> String {
        self.site.servers[0].url()
    }

    async fn submit(&self, jobs: usize) {
        let line = |number| {
            let retry = json!({"base_ms": 10, "max_ms": 500});
            let job = json!({
                "id": name(number), "queue": QUEUE, "kind": "noop", "max_attempts": 1_000,
                "orphan_policy": "requeue", "retry": retry,
            });
            format!("{job}\n")
        };
        for first in (0..jobs).step_by(SUBMITTED) {
            let lines: String = (first..jobs.min(first + SUBMITTED)).map(line).collect();
            let call = self.http.post(format!("{}/v1/jobs/bulk", self.url()));
            let call = call.header("content-type", "application/x-ndjson").body(lines);
            let answer = asked(|| call.try_clone().expect("a body that can be sent again")).await;
            let accepted = |item: &Value| item["status"] == 201 || item["status"] == 200;
            assert!(answer["items"].as_array().expect("items").iter().all(accepted), "{answer}");
        }
        if let Some(index) = &self.index {
            index.refresh().await;
        }
    }

    /// Asks whichever member answers how many jobs have not ended.
    async fn left_at_members(&self) -> usize {
        let (urls, tries) = (self.site.urls(), Cell::new(0));
        let request = || {
            let url = &urls[tries.replace(tries.get() + 1) % urls.len()];
            let call = self.http.get(format!("{url}/v1/jobs/count")).timeout(ASKED_WITHIN);
            call.query(&[("kql", "state: (available or running)")])
        };
        let left = asked(request).await["total"].as_u64().expect("a number");
        usize::try_from(left).expect("few enough")
    }

    /// Compares every job, as the store has it in the end, with what the workers wrote down.
    async fn check(&self, jobs: usize, tally: &Tally) -> Vec<String> {
        let url = format!("{}/v1/jobs/export", self.url());
        let fields = ["id", "state", "fence", "history"].map(|field| ("fields", field));
        let export = told(|| self.http.get(&url).query(&fields)).await;
        let mut missing: HashSet<String> = (0..jobs).map(name).collect();
        let mut violations = Vec::new();
        for line in export.lines() {
            let job: Value = serde_json::from_str(line).expect("JSON");
            let id = job["id"].as_str().expect("an id");
            if !missing.remove(id) {
                violations.push(format!("{id} is there twice, or was never submitted"));
            }
            violations.extend(wrong_with(&job, tally.job(id)).map(|wrong| format!("{wrong}: {job}")));
        }
        violations.extend(missing.into_iter().map(|id| format!("{id} is lost")));
        violations
    }
}

/// What is wrong with a job that was executed so.
fn wrong_with(job: &Value, executions: &[Execution]) -> Option<String> {
    let history = job["history"].as_array().expect("a history");
    let ends: Vec<&Value> = history.iter().filter(|entry| entry["to"] == "completed").collect();
    let [end] = ends.as_slice() else { return Some(format!("ended {} times", ends.len())) };
    if job["state"] != "completed" || end["fence"] != job["fence"] {
        return Some("did not stay as it ended".to_owned());
    }
    if history.windows(2).any(|pair| pair[0]["to"] != pair[1]["from"]) {
        return Some("has a gap in its history".to_owned());
    }
    let is_the_one =
        |execution: &Execution| end["actor"] == execution.worker.as_str() && end["fence"] == execution.token;
    if executions.iter().filter(|execution| is_the_one(execution)).count() != 1 {
        return Some(format!("was completed by none of {executions:?}"));
    }
    if executions.iter().any(|execution| execution.is_acknowledged && !is_the_one(execution)) {
        return Some(format!("another completion was acknowledged among {executions:?}"));
    }
    if executions.iter().any(|execution| execution.is_refused && is_the_one(execution)) {
        return Some(format!("the completion that holds was refused among {executions:?}"));
    }
    let fences: HashSet<u64> = executions.iter().map(|execution| execution.token).collect();
    (fences.len() < executions.len()).then(|| format!("a fence has two owners among {executions:?}"))
}

impl Service for Managers {
    fn lie(&self, on: bool) {
        self.site.lie(on);
        self.fronts.iter().for_each(|front| front.inject(on));
    }

    fn spoiled(&self) -> u64 {
        let proxies = self.site.proxies.iter().flatten().chain(&self.fronts);
        proxies.map(|proxy| proxy.counts().spoiled()).sum()
    }

    async fn left(&self) -> usize {
        match &self.index {
            Some(index) => index.left().await,
            None => self.left_at_members().await,
        }
    }

    async fn suffer(&mut self, hit: Hit, victim: usize, lasts: Duration) {
        let trouble = match hit {
            Hit::ServiceKilled => Trouble::Kill,
            Hit::ServiceFrozen => Trouble::Freeze,
            _ if self.index.is_none() => Trouble::Partition,
            _ => Trouble::Outage,
        };
        self.site.make(trouble, victim, lasts).await;
    }
}

struct ByTextbook {
    site: Site,
    monitor: Process,
    /// The name of the index.
    name: String,
    index: Index,
    _indices: IndexSet,
}

impl ByTextbook {
    async fn start(test: &'static str, seed: u64) -> Self {
        let site = Site::before_elasticsearch(seed, None).await;
        let indices = servers::elasticsearch().await.own_indices("textbook");
        let name = format!("{}jobs", indices.prefix());
        let index = Index::new(&name, textbook::OPEN).await;
        asked(|| index.http.put(&index.url).json(&textbook::index())).await;
        let orders = Orders {
            role: Role::TextbookMonitor { index: name.clone() },
            name: "monitor".to_owned(),
            urls: urls(&site),
            journal: site.place.path().join("monitor"),
            batch: 0,
            seed,
        };
        let monitor = Process::start(test, orders);
        Self { site, monitor, name, index, _indices: indices }
    }

    async fn submit(&self, jobs: usize) {
        for first in (0..jobs).step_by(SUBMITTED) {
            let lines: String =
                (first..jobs.min(first + SUBMITTED)).map(|id| textbook::submission(&name(id))).collect();
            let call = self.index.http.post(format!("{}/_bulk", self.index.url));
            let call = call.header("content-type", "application/x-ndjson").body(lines);
            let answer = asked(|| call.try_clone().expect("a body that can be sent again")).await;
            assert_eq!(answer["errors"], false, "{answer}");
        }
        self.index.refresh().await;
    }
}

fn urls(site: &Site) -> Vec<String> {
    site.proxies.iter().flatten().map(FaultProxy::url).collect()
}

impl Service for ByTextbook {
    fn lie(&self, on: bool) {
        self.site.lie(on);
    }

    fn spoiled(&self) -> u64 {
        self.site.proxies.iter().flatten().map(|proxy| proxy.counts().spoiled()).sum()
    }

    async fn left(&self) -> usize {
        self.index.left().await
    }

    async fn suffer(&mut self, hit: Hit, victim: usize, lasts: Duration) {
        match hit {
            Hit::ServiceKilled => self.monitor.kill_and_restart(),
            Hit::ServiceFrozen => self.monitor.freeze(lasts).await,
            _ => self.site.make(Trouble::Outage, victim, lasts).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_completion_is_acknowledged_twice_and_no_job_is_lost_whatever_happens() {
    let _share = machine::with_others();
    const TEST: &str = "hold::duplicates::no_completion_is_acknowledged_twice_and_no_job_is_lost_whatever_happens";
    if let Some(orders) = Orders::of_this_process() {
        return orders.carry_out().await;
    }
    let seed = seed::any();
    nothing_is_lost_or_ends_twice(TEST, Managers::on_elasticsearch(seed).await, jobs(FEW), seed).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: most of a minute of three members"]
async fn no_completion_is_acknowledged_twice_and_no_job_is_lost_by_members_whatever_happens() {
    let _share = machine::with_others();
    const TEST: &str =
        "hold::duplicates::no_completion_is_acknowledged_twice_and_no_job_is_lost_by_members_whatever_happens";
    if let Some(orders) = Orders::of_this_process() {
        return orders.carry_out().await;
    }
    let seed = seed::any();
    let managers = Managers::members(seed).await;
    nothing_is_lost_or_ends_twice(TEST, managers, jobs(FEWER), seed).await.site.end_equal().await;
}

async fn nothing_is_lost_or_ends_twice(test: &'static str, mut managers: Managers, jobs: usize, seed: u64) -> Managers {
    managers.submit(jobs).await;
    let urls: Vec<String> = managers.fronts.iter().map(FaultProxy::url).collect();
    let place = managers.site.place.path().to_owned();
    let mut crew = Crew::start(test, &Role::Leasehold, &urls, &place, batch(jobs), seed);
    withstand(&mut managers, &mut crew, seed).await;
    let tally = Tally::of(crew.end(&place));
    let counts = tally.counts();
    println!("Leasehold, {jobs} jobs:\n{counts}");
    let violations = managers.check(jobs, &tally).await;
    assert!(violations.is_empty(), "{} violations, such as {:#?}", violations.len(), &violations[..1]);
    assert_eq!((counts.jobs_acknowledged_twice, counts.jobs_overlapping_in_lease), (0, 0));
    managers
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a minute of Elasticsearch, and not of Leasehold"]
async fn the_textbook_protocol_ends_every_job_and_some_of_them_twice() {
    let _share = machine::with_others();
    const TEST: &str = "hold::duplicates::the_textbook_protocol_ends_every_job_and_some_of_them_twice";
    work_by_textbook(TEST, false).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a minute of Elasticsearch, and not of Leasehold"]
async fn the_textbook_protocol_with_a_look_at_the_owner_ends_every_job() {
    let _share = machine::with_others();
    const TEST: &str = "hold::duplicates::the_textbook_protocol_with_a_look_at_the_owner_ends_every_job";
    work_by_textbook(TEST, true).await;
}

async fn work_by_textbook(test: &'static str, checks_owner: bool) {
    if let Some(orders) = Orders::of_this_process() {
        return orders.carry_out().await;
    }
    let (seed, jobs) = (seed::any(), jobs(FEW));
    let mut textbook = ByTextbook::start(test, seed).await;
    textbook.submit(jobs).await;
    let role = Role::Textbook { index: textbook.name.clone(), checks_owner };
    let place = textbook.site.place.path().to_owned();
    let mut crew = Crew::start(test, &role, &urls(&textbook.site), &place, batch(jobs), seed);
    withstand(&mut textbook, &mut crew, seed).await;
    textbook.monitor.stop();
    let counts = Tally::of(crew.end(&place)).counts();
    println!("Textbook, looks at the owner: {checks_owner}, {jobs} jobs:\n{counts}");
    textbook.index.refresh().await;
    assert_eq!(textbook.index.count(&[textbook::COMPLETED]).await, jobs);
    textbook.monitor.end();
}
