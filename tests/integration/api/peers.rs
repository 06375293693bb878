//! Managers of one Elasticsearch tell each other of jobs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use leasehold::clock::{Clock, SystemClock, Timestamp};
use leasehold::manager::{Caller, Claimed, Manager, ManagerConfig};
use leasehold::peers::{HINTS_PATH, Hints, PeerCall, PeerSecret, Signer};
use leasehold::store::Store;
use leasehold::wire::{ClaimJobs, SubmitJob};
use tokio::net::TcpListener;

use super::server::{Server, Setup, problem};
use crate::servers::{self, IndexSet};
use crate::store::elasticsearch::{connect, patient};

/// How long the managers may take; and how long a worker waits for a job, the end of which no test waits for.
const AMPLE: Duration = Duration::from_secs(120);
const WAIT: Duration = Duration::from_secs(60);

/// The time between two jobs, for a manager that does not know of the other's worker yet.
const PAUSE: Duration = Duration::from_millis(50);

fn secret() -> PeerSecret {
    "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=".parse().expect("a secret")
}

fn other_secret() -> PeerSecret {
    "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=".parse().expect("a secret")
}

/// A set of indices, and stores over it.
struct Place(IndexSet);

impl Place {
    async fn fresh() -> Self {
        Self(servers::elasticsearch().await.index_set().await)
    }

    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(connect(patient(self.0.url(), self.0.prefix())).await)
    }

    /// A server that tells others of jobs, and is told of them.
    async fn server(&self) -> Server {
        let (store, peer_secret) = (Some(self.store().await), Some(secret()));
        Server::start_with(Setup { store, peer_secret, ..Setup::default() }).await
    }
}

/// Waits for a job as a worker of this manager.
fn wait_for_a_job(manager: &Manager) -> tokio::task::JoinHandle<Claimed> {
    let wait_ms = u64::try_from(WAIT.as_millis()).ok();
    let claim = ClaimJobs { worker_id: "w".to_owned(), queues: vec!["q".to_owned()], wait_ms, ..ClaimJobs::default() };
    let (manager, claim) = (manager.clone(), claim.into_claim().expect("a claim"));
    tokio::spawn(async move { manager.claim(claim).await.expect("the claim is answered") })
}

async fn submit(manager: &Manager) {
    let job = SubmitJob::new("q", "k").into_new_job().expect("a job");
    manager.submit(&Caller::system("test"), vec![job]).await.remove(0).expect("the job is taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_is_told_and_does_not_answer_holds_up_nothing() {
    let place = Place::fresh().await;
    let first = place.server().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", silent.local_addr().expect("an address"));
    let config = ManagerConfig { address: Some(address.as_str().into()), ..ManagerConfig::default() };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let second = Manager::start(place.store().await, clock, config);
    let deadline = Instant::now() + AMPLE;
    // Whoever is told of a job accepts the connection, and then is silent.
    while !first.manager.peer_troubles().iter().any(|trouble| trouble.contains(&address)) {
        assert!(Instant::now() < deadline, "the second manager was never told of a job");
        let worker = wait_for_a_job(&second);
        while !worker.is_finished() {
            assert!(Instant::now() < deadline, "a job that nobody was told of was not found");
            submit(&first.manager).await;
            tokio::time::sleep(PAUSE).await;
        }
        worker.await.expect("no panic").delivered();
    }
    drop(silent);
    submit(&first.manager).await;
    second.shutdown().await;
}

/// Sends a body with a signed head to where hints are taken, and returns the answer.
async fn tell_signed(server: &Server, secret: PeerSecret, body: &str) -> reqwest::Response {
    let (address, body) = (server.url(""), Bytes::copy_from_slice(body.as_bytes()));
    let call = PeerCall { address: &address, receiver: &address, path: HINTS_PATH, body: &body, may_be_earlier: false };
    let url = server.url(HINTS_PATH);
    let send = |headers, body: Bytes| {
        let call = reqwest::Client::new().post(&url).headers(headers);
        call.header("content-type", "application/json").body(body).send()
    };
    let clock = Arc::new(SystemClock::default());
    Signer::new(secret, "http://other", clock).call(&call, send).await.expect("an answer")
}

/// Sends a body with these headers to where hints are taken, and returns the answer.
async fn tell(server: &Server, headers: HeaderMap, body: &str) -> reqwest::Response {
    let call = reqwest::Client::new().post(server.url(HINTS_PATH)).headers(headers);
    let call = call.header("content-type", "application/json").body(body.to_owned());
    call.send().await.expect("an answer")
}

fn now() -> Timestamp {
    SystemClock::default().now()
}

#[tokio::test]
async fn only_who_has_the_secret_can_tell_a_manager_of_jobs() {
    let server = Server::start_with(Setup { peer_secret: Some(secret()), ..Setup::default() }).await;
    let body = serde_json::to_string(&Hints { available: Vec::new(), recalls: Vec::new() }).expect("JSON");
    let an_hour_ago = Timestamp::from_millis(now().as_millis() - 3_600_000);
    let mut token = HeaderMap::new();
    token.insert("authorization", "Bearer lh_00".parse().expect("a header"));
    for (what, headers) in [
        ("nothing", HeaderMap::new()),
        ("a token", token),
        ("another secret", other_secret().sign(body.as_bytes(), now())),
        ("a signature of another body", secret().sign(b"{}", now())),
        ("an old signature", secret().sign(body.as_bytes(), an_hour_ago)),
        ("a signature of an earlier version, of which no manager is", secret().sign(body.as_bytes(), now())),
    ] {
        let refused = problem(tell(&server, headers, &body).await).await;
        assert_eq!((refused.status, refused.code.as_str()), (401, "unauthorized"), "{what}");
    }
    assert_eq!(tell_signed(&server, other_secret(), &body).await.status(), 401);
    assert_eq!(tell_signed(&server, secret(), &body).await.status(), 204);
    for (wrong, status) in [("", 400), ("{", 400), ("[]", 422), ("{\"available\":[{\"document\":{}}]}", 422)] {
        let refused = problem(tell_signed(&server, secret(), wrong).await).await;
        assert_eq!(refused.status, status, "{wrong}");
    }
    let long = " ".repeat(leasehold::peers::MAX_HINTS_BYTES + 1);
    let refused = problem(tell_signed(&server, secret(), &long).await).await;
    assert_eq!(refused.code, "body_too_large");
    server.goes_on().await;
}

#[tokio::test]
async fn a_server_without_a_secret_has_no_place_for_hints() {
    let server = Server::start().await;
    let body = "{\"available\":[]}";
    let refused = problem(tell(&server, secret().sign(body.as_bytes(), now()), body).await).await;
    assert_eq!((refused.status, refused.code.as_str()), (404, "no_such_route"));
}
