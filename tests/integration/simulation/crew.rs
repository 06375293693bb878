//! Clients in a simulation: those who submit jobs, and workers.

use std::sync::Arc;
use std::time::Duration;

use leasehold::job::{Fence, JobId, JobSpec, Kind, QueueName, RequestId, RetryPolicy, WorkerId};
use leasehold::manager::{Caller, ClaimOrder, ClaimRequest, Finish, ManagerError, NewJob, Outcome};
use parking_lot::Mutex;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use super::Site;

/// The lease of a worker's jobs.
const LEASE: Duration = Duration::from_secs(3);

/// One execution of a job, as its worker knows it.
#[derive(Clone, Debug)]
pub(super) struct Execution {
    pub(super) worker: WorkerId,
    pub(super) job: JobId,
    pub(super) fence: Fence,
    /// Whether its completion was accepted, or refused; `None` when the worker died, or never heard.
    pub(super) accepted: Option<bool>,
}

/// What workers do.
#[derive(Clone)]
pub(super) struct Orders {
    pub(super) queues: Vec<QueueName>,
    pub(super) max_jobs: usize,
    /// The longest that a worker works on a job, in milliseconds.
    pub(super) works_ms: u64,
    /// In so many executions a worker dies once.
    pub(super) dies: u32,
    /// Whether claims have names, under which they are made again.
    pub(super) named: bool,
}

/// What all workers did.
pub(super) type Journal = Arc<Mutex<Vec<Execution>>>;

/// Puts so many workers to work, until the simulation ends.
pub(super) fn at_work(site: &Arc<Site>, workers: usize, orders: &Orders) -> Journal {
    let journal = Journal::default();
    for number in 0..workers {
        let worker = Worker {
            site: Arc::clone(site),
            orders: orders.clone(),
            journal: Arc::clone(&journal),
            dice: site.dice(1_000 + number as u64),
            number,
            lives: 0,
            calls: 0,
            at: number,
        };
        tokio::spawn(worker.work());
    }
    journal
}

struct Worker {
    site: Arc<Site>,
    orders: Orders,
    journal: Journal,
    dice: StdRng,
    number: usize,
    /// How often it has died.
    lives: usize,
    calls: usize,
    /// The process that it calls.
    at: usize,
}

impl Worker {
    fn id(&self) -> WorkerId {
        WorkerId::new(format!("w{}-{}", self.number, self.lives)).expect("a name")
    }

    /// Takes jobs and completes them, for as long as the simulation takes.
    async fn work(mut self) {
        loop {
            let Some(jobs) = self.claim().await else {
                self.at += 1;
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            for (job, fence) in jobs {
                sleep(Duration::from_millis(self.dice.random_range(0..self.orders.works_ms))).await;
                let execution = Execution { worker: self.id(), job, fence, accepted: None };
                if self.orders.dies > 0 && self.dice.random_ratio(1, self.orders.dies) {
                    self.journal.lock().push(execution);
                    self.lives += 1;
                    break;
                }
                self.complete(execution).await;
            }
        }
    }

    /// Claims jobs at the process that it calls; `None` when there is no answer.
    async fn claim(&mut self) -> Option<Vec<(JobId, Fence)>> {
        let name = format!("{}-{}", self.id(), self.calls);
        let request = ClaimRequest {
            worker_id: self.id(),
            bearer: None,
            queues: self.orders.queues.clone(),
            max_jobs: self.orders.max_jobs,
            resources: Default::default(),
            labels: Default::default(),
            kinds: Vec::new(),
            wait: Duration::from_millis(1_000),
            lease: LEASE,
            order: ClaimOrder::default(),
            request_id: self.orders.named.then(|| RequestId::new(name).expect("a name")),
            repeated: false,
        };
        let process = self.site.process(self.at);
        let claimed = process.call(process.manager.claim(request)).await?.ok()?;
        let jobs = claimed.jobs().iter().map(|view| (view.versioned.job.id.clone(), view.versioned.job.fence));
        let jobs = jobs.collect();
        // Some answers are lost on their way; the process takes the jobs back only of those that it cannot send.
        if self.dice.random_ratio(1, 60) {
            if self.dice.random_ratio(1, 2) {
                claimed.delivered();
            }
            return None;
        }
        claimed.delivered();
        self.calls += 1;
        Some(jobs)
    }

    /// Completes a job, at whichever process answers.
    async fn complete(&mut self, mut execution: Execution) {
        for _ in 0..20 {
            let finish = Finish {
                id: execution.job.clone(),
                fence: execution.fence,
                outcome: Outcome::Completed { result: None },
            };
            let process = self.site.process(self.at);
            let answers = process.call(process.manager.finish(&execution.worker, vec![finish])).await;
            let is_heard = !self.dice.random_ratio(1, 60);
            let answer = answers.and_then(|mut answers| answers.pop()).filter(|_| is_heard);
            match answer {
                Some(Ok(_)) => execution.accepted = Some(true),
                Some(Err(ManagerError::Refused(_) | ManagerError::NotFound(_))) => execution.accepted = Some(false),
                Some(Err(_)) | None => {
                    self.at += 1;
                    sleep(Duration::from_millis(20)).await;
                    continue;
                }
            }
            break;
        }
        self.journal.lock().push(execution);
    }
}

/// Submits jobs of one call, at one process after the other until they are taken. Returns whether the first try was
/// answered.
pub(super) async fn submit(site: &Site, at: &mut usize, jobs: &[NewJob]) -> bool {
    for tries in 0..500 {
        let process = site.process(*at);
        let answers = process.call(process.manager.submit(&caller(), jobs.to_vec())).await;
        if answers.is_some_and(|answers| answers.iter().all(Result::is_ok)) {
            return tries == 0;
        }
        *at += 1;
        sleep(Duration::from_millis(20)).await;
    }
    panic!("jobs are not taken: {jobs:#?}");
}

pub(super) fn caller() -> Caller {
    Caller::system("tester")
}

pub(super) fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a name")
}

/// The specification of a job that is given back as often as it takes.
pub(super) fn spec(queue_name: &str) -> JobSpec {
    let millisecond = Duration::from_millis(1);
    let retry = RetryPolicy { base: millisecond, factor: 1.0, max: millisecond, jitter: 0.0 };
    JobSpec { max_attempts: 1_000, retry, ..JobSpec::new(queue(queue_name), Kind::new("k").expect("a name")) }
}

/// A job under an id of its own, so that it can be submitted again.
pub(super) fn job(id: &str, spec: JobSpec) -> NewJob {
    NewJob { id: Some(JobId::new(id).expect("an id")), ..NewJob::of(spec) }
}
