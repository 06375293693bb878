//! A load of clients that write down what they were promised, and a check that it was kept.
//!
//! They speak plain HTTP and repeat a call until it is answered, as a careful client does: a submission under its own
//! id, a claim under its `request_id`, a finish under its fence.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// How long a client repeats a call.
const CALL_WITHIN: Duration = Duration::from_secs(90);

/// A lease that outlasts every test.
const LASTING_MS: u64 = 600_000;

/// How long a client waits for one answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How many jobs are looked at together in the end.
const CHECKS: usize = 16;

/// How long the workers may take to finish what was submitted.
const DRAIN_WITHIN: Duration = Duration::from_secs(180);

/// What the clients were promised.
#[derive(Default)]
pub(crate) struct Ledger {
    facts: Mutex<Facts>,
    completed: AtomicUsize,
    /// Whether the submitters are to stop.
    stopping: AtomicBool,
    /// Whether they have all stopped: a job that is completed before its submission was answered is known by then.
    no_more: AtomicBool,
}

#[derive(Default)]
struct Facts {
    submitted: HashSet<String>,
    /// Who was given which fence of which job: the worker and its claim call.
    owners: HashMap<(String, u64), String>,
    /// The fence and the worker whose completion was accepted.
    completions: HashMap<String, (u64, String)>,
    /// The completions that were refused, since the lease was lost.
    refusals: Vec<(String, u64)>,
    violations: Vec<String>,
}

impl Ledger {
    fn facts(&self) -> std::sync::MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn submitted(&self, id: &str) {
        self.facts().submitted.insert(id.to_owned());
    }

    pub(crate) fn claimed(&self, id: &str, fence: u64, owner: &str) {
        let mut facts = self.facts();
        let before = facts.owners.insert((id.to_owned(), fence), owner.to_owned());
        if let Some(before) = before.filter(|before| before != owner) {
            facts.violations.push(format!("job {id} had two owners for fence {fence}: {before} and {owner}"));
        }
    }

    fn completed(&self, id: &str, fence: u64, worker: &str) {
        let mut facts = self.facts();
        match facts.completions.insert(id.to_owned(), (fence, worker.to_owned())) {
            None => {
                self.completed.fetch_add(1, Ordering::SeqCst);
            }
            Some(before) => facts.violations.push(format!("job {id} was completed by {before:?} and by {worker}")),
        }
    }

    fn refused(&self, id: &str, fence: u64) {
        self.facts().refusals.push((id.to_owned(), fence));
    }

    /// Whether the submitters are to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.no_more.load(Ordering::SeqCst) && self.facts().submitted.len() == self.completed.load(Ordering::SeqCst)
    }

    /// Whether more than so many submitted jobs are not completed.
    pub(crate) fn is_behind(&self, by: usize) -> bool {
        self.submissions() > self.completions() + by
    }

    /// How many completions were accepted so far.
    pub(crate) fn completions(&self) -> usize {
        self.completed.load(Ordering::SeqCst)
    }

    /// Waits until more than `many` completions were accepted; tells how many.
    pub(crate) async fn completions_beyond(&self, many: usize) -> usize {
        let deadline = Instant::now() + DRAIN_WITHIN;
        while self.completions() <= many {
            assert!(Instant::now() < deadline, "only {} completions in time", self.completions());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.completions()
    }

    /// How many completions were refused, since the lease was lost.
    pub(crate) fn refusals(&self) -> usize {
        self.facts().refusals.len()
    }

    /// How many submissions were acknowledged.
    pub(crate) fn submissions(&self) -> usize {
        self.facts().submitted.len()
    }
}

/// Clients of one or more servers over the same store.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) ledger: Arc<Ledger>,
    http: reqwest::Client,
    urls: Arc<Vec<String>>,
    /// Whether no lease ends while its worker holds it.
    leases_last: bool,
}

impl Load {
    pub(crate) fn on(urls: Vec<String>) -> Self {
        let http = reqwest::Client::builder().timeout(ANSWER_WITHIN).build().expect("an HTTP client");
        Self { ledger: Arc::default(), http, urls: Arc::new(urls), leases_last: true }
    }

    /// Lets workers lose their leases because they are late.
    pub(crate) fn with_short_leases(self) -> Self {
        Self { leases_last: false, ..self }
    }

    /// Starts a client that submits one job after the other until told to stop, or until there are `most`.
    pub(crate) fn submitter(&self, name: usize, most: usize) -> JoinHandle<()> {
        let load = self.clone();
        tokio::spawn(async move {
            for number in 0..most {
                if load.ledger.is_stopping() {
                    return;
                }
                let id = format!("job-{name}-{number}");
                let body = json!({"id": id, "queue": "load", "kind": "noop", "payload": {"number": number}});
                let (status, answer) = load.call(name, "/v1/jobs", |_| body.clone()).await;
                assert!(status.is_success(), "submitting {id}: {status} {answer}");
                load.ledger.submitted(&id);
            }
        })
    }

    /// Starts a worker that claims and completes until all that was submitted is completed.
    pub(crate) fn worker(&self, name: usize, max_jobs: usize) -> JoinHandle<()> {
        let load = self.clone();
        tokio::spawn(async move {
            let worker = format!("worker-{name}");
            let mut calls = 0;
            while !load.ledger.is_done() {
                calls += 1;
                let request_id = format!("{worker}-{calls}");
                for job in &load.claim(name, &worker, &request_id, max_jobs, LASTING_MS).await {
                    load.complete(name, &worker, &request_id, job).await;
                }
            }
        })
    }

    /// Claims jobs in a call that is repeated under its name.
    pub(crate) async fn claim(
        &self,
        name: usize,
        worker: &str,
        request_id: &str,
        max_jobs: usize,
        lease_ms: u64,
    ) -> Vec<Value> {
        let claim = |tries: usize| {
            json!({
                "worker_id": worker, "queues": ["load"], "max_jobs": max_jobs, "wait_ms": 300,
                "lease_ms": lease_ms, "request_id": request_id, "repeated": tries > 0,
            })
        };
        let (status, answer) = self.call(name, "/v1/claims", claim).await;
        assert_eq!(status, StatusCode::OK, "claiming: {answer}");
        answer["jobs"].as_array().expect("a list of jobs").clone()
    }

    pub(crate) async fn complete(&self, name: usize, worker: &str, request_id: &str, job: &Value) {
        let id = job["id"].as_str().expect("an id");
        let fence = job["fence"].as_u64().expect("a fence");
        self.ledger.claimed(id, fence, request_id);
        let body = json!({"worker_id": worker, "fence": fence, "result": {"by": worker, "fence": fence}});
        let (status, answer) = self.call(name, &format!("/v1/jobs/{id}/complete"), |_| body.clone()).await;
        match status {
            StatusCode::OK => self.ledger.completed(id, fence, worker),
            StatusCode::CONFLICT if answer["code"] == "lease_lost" => self.ledger.refused(id, fence),
            other => panic!("completing {id}: {other} {answer}"),
        }
    }

    /// Calls until it is answered with other than "try again".
    pub(crate) async fn call(&self, client: usize, path: &str, body: impl Fn(usize) -> Value) -> (StatusCode, Value) {
        let deadline = Instant::now() + CALL_WITHIN;
        let mut tries = 0;
        loop {
            let url = &self.urls[(client + tries) % self.urls.len()];
            let answer = self.http.post(format!("{url}{path}")).json(&body(tries)).send().await;
            let why = match answer {
                Ok(answer) if answer.status() != StatusCode::SERVICE_UNAVAILABLE => {
                    let status = answer.status();
                    match answer.json().await {
                        Ok(answer) => return (status, answer),
                        Err(error) => error.to_string(),
                    }
                }
                Ok(answer) => answer.text().await.unwrap_or_default(),
                Err(error) => error.to_string(),
            };
            assert!(Instant::now() < deadline, "{path} was not answered in time: {why}");
            tries += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until everything is completed, and checks every promise.
    pub(crate) async fn finish(&self, submitters: Vec<JoinHandle<()>>, workers: Vec<JoinHandle<()>>) {
        self.complete_all(submitters, workers).await;
        self.check().await;
    }

    /// Waits until the submitters have ended and the workers have completed all that was submitted.
    pub(crate) async fn complete_all(&self, submitters: Vec<JoinHandle<()>>, workers: Vec<JoinHandle<()>>) {
        for submitter in submitters {
            submitter.await.expect("a submitter ends well");
        }
        self.ledger.no_more.store(true, Ordering::SeqCst);
        let drained = tokio::time::timeout(DRAIN_WITHIN, async {
            for worker in workers {
                worker.await.expect("a worker ends well");
            }
        });
        if drained.await.is_err() {
            let (completed, submitted) = (self.ledger.completions(), self.ledger.submissions());
            panic!("only {completed} of {submitted} jobs were completed; left: {:?}", self.left().await);
        }
    }

    /// Stops the submitters after what they are at.
    pub(crate) fn stop_submitting(&self) {
        self.ledger.stopping.store(true, Ordering::SeqCst);
    }

    /// Some of the jobs that were not completed, as the server shows them.
    async fn left(&self) -> Vec<Value> {
        let ids: Vec<String> = {
            let facts = self.ledger.facts();
            facts.submitted.iter().filter(|id| !facts.completions.contains_key(*id)).take(3).cloned().collect()
        };
        let mut jobs = Vec::new();
        for id in ids {
            jobs.push(self.job(&id).await);
        }
        jobs
    }

    async fn job(&self, id: &str) -> Value {
        let url = format!("{}/v1/jobs/{id}", self.urls[0]);
        let deadline = Instant::now() + CALL_WITHIN;
        loop {
            let why = match self.http.get(&url).send().await {
                Ok(answer) if answer.status().is_success() => match answer.json().await {
                    Ok(job) => return job,
                    Err(error) => error.to_string(),
                },
                Ok(answer) => answer.status().to_string(),
                Err(error) => error.to_string(),
            };
            assert!(Instant::now() < deadline, "job {id} was not shown in time: {why}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Every acknowledged submission is there and completed by the one whose completion was accepted, and no fence had
    /// two owners.
    pub(crate) async fn check(&self) {
        let (violations, completions, refusals) = {
            let facts = self.ledger.facts();
            assert!(facts.submitted.iter().all(|id| facts.completions.contains_key(id)), "a submission was lost");
            (facts.violations.clone(), facts.completions.clone(), facts.refusals.clone())
        };
        assert_eq!(violations, Vec::<String>::new());
        let refused = refusals.iter().map(|(id, fence)| self.check_refusal(id, *fence));
        stream::iter(refused).for_each_concurrent(CHECKS, |check| check).await;
        let completed = completions.iter().map(|(id, (fence, worker))| self.check_completion(id, *fence, worker));
        stream::iter(completed).for_each_concurrent(CHECKS, |check| check).await;
    }

    /// A lease that lasts is lost only where its job was put back before its worker knew of it. Another one may have
    /// ended, but its attempt completed nothing.
    async fn check_refusal(&self, id: &str, fence: u64) {
        let job = self.job(id).await;
        let history = job["history"].as_array().expect("a history");
        let mut ends = history.iter().filter(|entry| entry["fence"] == fence && entry["from"] == "running");
        let allowed = |end: &Value| end["event"] == "returned" || !self.leases_last && end["to"] != "completed";
        assert!(ends.all(allowed), "the completion under {fence} was refused: {job}");
    }

    async fn check_completion(&self, id: &str, fence: u64, worker: &str) {
        let job = self.job(id).await;
        assert_eq!(job["state"], "completed", "{job}");
        assert_eq!(job["fence"], fence, "{job}");
        assert_eq!(job["result"], json!({"by": worker, "fence": fence}), "{job}");
        let history = job["history"].as_array().expect("a history");
        let ended = history.iter().filter(|entry| entry["to"] == "completed").count();
        assert_eq!(ended, 1, "completed once: {job}");
        let gaps = history.windows(2).filter(|pair| pair[0]["to"] != pair[1]["from"]).count();
        assert_eq!(gaps, 0, "no gap: {job}");
    }
}
