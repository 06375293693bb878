//! A server in the test's own process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::api::access::Access;
use leasehold::api::{AppState, Limits, metrics, serve};
use leasehold::client::Client;
use leasehold::clock::{Clock, SystemClock};
use leasehold::executor::{self, HttpExecutor, TargetPolicy};
use leasehold::job::Json;
use leasehold::manager::{Manager, ManagerConfig};
use leasehold::notify::{Notifier, NotifyConfig};
use leasehold::peers::{PeerClient, PeerSecret, Teller};
use leasehold::scheduler::{Scheduler, SchedulerConfig, Schedules};
use leasehold::store::Store;
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use leasehold::store::measured::Measured;
use leasehold::wire::{ClaimJobs, Job, Problem, SubmitJob};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long anything that is waited for may take.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A server; stopped when dropped.
pub(crate) struct Server {
    address: SocketAddr,
    pub(crate) manager: Manager,
    shutdown: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
    _teller: Option<Teller>,
    _notifier: Option<Notifier>,
    schedules: Schedules,
    _directory: TempDir,
}

/// How a server is started.
pub(crate) struct Setup {
    pub(crate) access: Access,
    pub(crate) limits: Limits,
    pub(crate) clock: Arc<dyn Clock>,
    /// The secret that the managers of the store share. Such a server tells the others where it listens.
    pub(crate) peer_secret: Option<PeerSecret>,
    /// Whether there are subscriptions.
    pub(crate) is_notifying: bool,
    /// Whether an audit is kept.
    pub(crate) is_audited: bool,
    /// An embedded store of its own when there is none.
    pub(crate) store: Option<Arc<dyn Store>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            access: Access::default(),
            limits: Limits::default(),
            clock: Arc::new(SystemClock::default()),
            peer_secret: None,
            is_notifying: false,
            is_audited: false,
            store: None,
        }
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with(Setup::default()).await
    }

    pub(crate) async fn start_with(setup: Setup) -> Self {
        Self::start_at(setup, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    pub(crate) async fn start_at(setup: Setup, address: SocketAddr) -> Self {
        let directory = TempDir::new().expect("a directory");
        let embedded = || -> Arc<dyn Store> {
            Arc::new(EmbeddedStore::open(directory.path(), &EmbeddedOptions::default()).expect("the store opens"))
        };
        let store = Measured::around(setup.store.unwrap_or_else(embedded));
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let config = ManagerConfig {
            survey_interval: Duration::from_millis(50),
            audit: setup.is_audited,
            address: setup.peer_secret.as_ref().map(|_| format!("http://{address}").into()),
            ..ManagerConfig::default()
        };
        let manager = Manager::start(Arc::clone(&store), Arc::clone(&setup.clock), config);
        let policy = TargetPolicy { allow_private: true, allow: Vec::new() };
        let schedules = Schedules::new(manager.clone(), Arc::clone(&store), Arc::clone(&setup.clock), policy.clone());
        let mut notifier = None;
        if setup.is_notifying {
            let executor = HttpExecutor::new(policy, executor::Limits::default()).expect("an executor");
            let started = Notifier::start(manager.clone(), store, setup.clock, executor, NotifyConfig::default()).await;
            notifier = Some(started.expect("it starts"));
        }
        let peers = setup.peer_secret.map(|secret| {
            let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
            PeerClient::new(secret, Some(&format!("http://{address}")), clock).expect("a client")
        });
        let teller = peers.clone().map(|peers| Teller::start(manager.clone(), peers));
        let shutdown = CancellationToken::new();
        let state = AppState {
            manager: manager.clone(),
            subscriptions: notifier.as_ref().map(|notifier| Arc::clone(notifier.subscriptions())),
            schedules: Some(schedules.clone()),
            access: setup.access,
            peers,
            metrics: metrics::install().expect("metrics"),
            limits: setup.limits,
            configuration: serde_json::json!({"store": "embedded"}),
        };
        let serving = tokio::spawn(serve(listener, state, shutdown.clone()));
        Self {
            address,
            manager,
            shutdown,
            serving,
            _teller: teller,
            _notifier: notifier,
            schedules,
            _directory: directory,
        }
    }

    /// Starts to run the schedules.
    pub(crate) fn scheduler(&self) -> Scheduler {
        let policy = TargetPolicy { allow_private: true, allow: Vec::new() };
        let executor = HttpExecutor::new(policy, executor::Limits::default()).expect("an executor");
        Scheduler::start(&self.schedules, executor, SchedulerConfig::default())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn client(&self) -> Client {
        self.client_with(None)
    }

    pub(crate) fn client_with(&self, token: Option<&str>) -> Client {
        Client::new(&self.url(""), token).expect("a client").with_max_retries(0)
    }

    /// Tells the server to end.
    pub(crate) fn shut_down(&self) {
        self.shutdown.cancel();
    }

    /// Waits until the server has ended.
    pub(crate) async fn ended(mut self) {
        let serving = std::mem::replace(&mut self.serving, tokio::spawn(async { Ok(()) }));
        let ended = tokio::time::timeout(SOON, serving).await.expect("the server ends in time");
        ended.expect("the server does not panic").expect("the server ends well");
        self.manager.shutdown().await;
    }

    /// Asserts that the server still answers.
    pub(crate) async fn goes_on(&self) {
        let answer = reqwest::get(self.url("/livez")).await.expect("the server still answers");
        assert_eq!(answer.status(), 200);
    }

    /// Submits a job and claims it.
    pub(crate) async fn running(&self, queue: &str) -> Job {
        self.client().submit(&SubmitJob::new(queue, "k")).await.expect("submitted");
        self.claimed(queue).await
    }

    /// Claims one job that is there.
    pub(crate) async fn claimed(&self, queue: &str) -> Job {
        let mut jobs = self.client().claim(&claim(queue)).await.expect("an answer").jobs;
        assert_eq!(jobs.len(), 1, "one job waits in {queue}");
        jobs.remove(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// The worker of most tests.
pub(crate) const WORKER: &str = "w1";

pub(crate) fn claim(queue: &str) -> ClaimJobs {
    ClaimJobs { worker_id: WORKER.to_owned(), queues: vec![queue.to_owned()], ..ClaimJobs::default() }
}

pub(crate) fn json(text: &str) -> Json {
    Json::parse(text.to_owned()).expect("json")
}

/// The problem that a response is.
pub(crate) async fn problem(answer: reqwest::Response) -> Problem {
    let status = answer.status().as_u16();
    assert_eq!(answer.headers()["content-type"], "application/problem+json", "status {status}");
    let request_id = answer.headers()["x-request-id"].to_str().expect("text").to_owned();
    let problem: Problem = answer.json().await.expect("a problem");
    assert_eq!(problem.status, status);
    assert_eq!(problem.request_id, request_id);
    assert_eq!(problem.kind, format!("urn:leasehold:problem:{}", problem.code));
    problem
}

/// The JSON that a response is.
pub(crate) async fn value(answer: reqwest::Response) -> Value {
    assert_eq!(answer.headers()["content-type"], "application/json");
    answer.json().await.expect("json")
}

/// Waits until something holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
