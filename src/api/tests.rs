//! What cannot be brought about over a connection at will.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use bytes::Bytes;
use futures::future::join_all;
use futures::{FutureExt, StreamExt, stream};
use http::Request;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http_body_util::BodyExt;
use tempfile::TempDir;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::access::{Access, Role, SessionReader, Token, token_hash};
use super::app::AppParts;
use super::error::Code;
use super::*;
use crate::clock::SystemClock;
use crate::job::{Actor, JobId, JobState};
use crate::manager::{Caller, Claimed, Manager, ManagerConfig, SessionKey, Sessions};
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};
use crate::store::{Standing, Store};
use crate::wire::cookie::SESSION_SCHEME;
use crate::wire::{ClaimJobs, Problem, SubmitJob};

struct Fixture {
    app: App,
    _directory: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let store = EmbeddedStore::open(directory.path(), &EmbeddedOptions::default()).expect("the store opens");
        let manager = Manager::start(Arc::new(store), Arc::new(SystemClock::default()), ManagerConfig::default());
        let limits = Limits::default();
        let mut guard = limits.guard(Access::default(), ([192, 0, 2, 1], 7400).into(), None);
        // The requests come over no connection, and name no host.
        Arc::get_mut(&mut guard).expect("it is new").sites = None;
        let app = Arc::new(AppParts {
            manager,
            subscriptions: None,
            schedules: None,
            guard,
            peers: None,
            of_peers: None,
            metrics: metrics::install().expect("metrics"),
            export_readers: Arc::new(Semaphore::new(limits.export_readers)),
            limits,
            configuration: serde_json::Value::Null,
            shutdown: CancellationToken::new(),
            openapi: Bytes::new(),
        });
        Self { app, _directory: directory }
    }

    /// Submits a job and claims it.
    async fn claim(&self) -> (JobId, Claimed) {
        let job = SubmitJob::new("q", "k").into_new_job().expect("a job");
        let mut submitted = self.app.manager.submit(&Caller::system("test"), vec![job]).await;
        let id = submitted.remove(0).expect("submitted").job.versioned.job.id.clone();
        let claim = ClaimJobs { worker_id: "w".to_owned(), queues: vec!["q".to_owned()], ..ClaimJobs::default() };
        let claimed = self.app.manager.claim(claim.into_claim().expect("a claim")).await.expect("claimed");
        assert_eq!(claimed.jobs().len(), 1);
        (id, claimed)
    }

    async fn state(&self, id: &JobId) -> (JobState, u32) {
        let job = self.app.manager.get(id).await.expect("the job").versioned.job;
        (job.state.name(), job.attempt.get())
    }
}

#[tokio::test]
async fn an_answer_dropped_before_it_is_sent_gives_its_jobs_back() {
    let fixture = Fixture::new();
    let (id, claimed) = fixture.claim().await;
    drop(delivery::deliver(claimed).expect("an answer"));
    let again = ClaimJobs {
        worker_id: "w2".to_owned(),
        queues: vec!["q".to_owned()],
        wait_ms: Some(20_000),
        ..ClaimJobs::default()
    };
    let claimed = fixture.app.manager.claim(again.into_claim().expect("a claim")).await.expect("an answer");
    assert_eq!(claimed.jobs().len(), 1, "the job is there again at once");
    claimed.delivered();
    assert_eq!(fixture.state(&id).await, (JobState::Running, 1), "and the attempt was given back");
}

#[tokio::test]
async fn an_answer_that_is_sent_leaves_its_jobs_with_the_worker() {
    let fixture = Fixture::new();
    let (id, claimed) = fixture.claim().await;
    let body = delivery::deliver(claimed).expect("an answer").into_body();
    let text = body.collect().await.expect("a body").to_bytes();
    assert!(text.starts_with(b"{\"jobs\":[{\"id\":"));
    // Had anything been given back, it would be claimed here: a claim without a wait sees all that is available.
    let again = ClaimJobs { worker_id: "w2".to_owned(), queues: vec!["q".to_owned()], ..ClaimJobs::default() };
    let claimed = fixture.app.manager.claim(again.into_claim().expect("a claim")).await.expect("an answer");
    assert_eq!(claimed.jobs().len(), 0);
    assert_eq!(fixture.state(&id).await, (JobState::Running, 1));
}

/// Returns access for one token, whose holder may read.
fn one_token() -> Access {
    Access::new(vec![reader("ops")]).expect("a token")
}

fn reader(name: &'static str) -> Token {
    let (name, sha256) = (Actor::system(name), token_hash("s3cret"));
    Token { name, roles: [Role::Read].into(), sha256, may_edit_others: false }
}

/// Returns the sessions of a store that lies in this directory.
fn sessions_in(directory: &TempDir) -> (Arc<EmbeddedStore>, Sessions) {
    let store = Arc::new(EmbeddedStore::open(directory.path(), &EmbeddedOptions::default()).expect("the store opens"));
    (Arc::clone(&store), Sessions::new(store, Arc::new(SystemClock::default())))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_session_is_read_for_a_request_that_is_refused_as_it_stands() {
    let directory = TempDir::new().expect("a directory");
    let (store, sessions) = sessions_in(&directory);
    store.close().await;
    let reader = SessionReader::new(sessions);
    let guard = Limits::default().guard(one_token(), ([192, 0, 2, 1], 7400).into(), Some(reader));
    let router = Router::new().route("/", get(async || ())).layer(from_fn_with_state(guard, observe::observe));
    for (hosts, status) in [(1, 503), (2, 400)] {
        let made_up = format!("{SESSION_SCHEME} {}", SessionKey::generate().to_text());
        let request = Request::get("/").header(AUTHORIZATION, made_up);
        let request = (0..hosts).fold(request, |request, _| request.header(HOST, "a"));
        let response = router.clone().oneshot(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(response.expect("an answer").status(), status, "with {hosts} names");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_has_as_many_keys_read_that_may_be_made_up_as_it_has_calls_without_a_token() {
    let directory = TempDir::new().expect("a directory");
    let (_store, sessions) = sessions_in(&directory);
    let begun = sessions.begin(&Actor::system("ops"), "print".to_owned(), Duration::from_secs(3_600)).await;
    let (known, session) = begun.expect("begun");
    // One that follows looks for a while for what it does not find.
    let (_standing, standing) = watch::channel(Standing::default());
    let limits = Limits { unauthenticated_calls: 8, ..Limits::default() };
    let reader = SessionReader::of_member(sessions, standing);
    let guard = limits.guard(one_token(), ([192, 0, 2, 1], 7400).into(), Some(reader));
    guard.access.note_session(&known, Some(session));
    let [here, elsewhere] = [[192, 0, 2, 2], [192, 0, 2, 3]].map(|address| Some(IpAddr::from(address)));
    let made_up: Vec<SessionKey> = (0..5).map(|_| SessionKey::generate()).collect();
    let reads = made_up.iter().map(|key| guard.read_session(key, here));
    let reads = reads.chain([guard.read_session(&made_up[0], elsewhere), guard.read_session(&known, here)]);
    let reads = join_all(reads).await.into_iter().map(|read| read.map_err(|refused| refused.code()));
    let (read, refused) = (Ok(()), Err(Code::ShareTaken));
    assert_eq!(reads.collect::<Vec<_>>(), [read, read, refused, refused, refused, read, read]);
}

#[tokio::test]
async fn an_answer_that_goes_on_ends_with_the_token_of_its_caller_and_never_as_if_it_were_whole() {
    let access = one_token();
    let limits = Limits { looks_again_after: Duration::from_millis(10), ..Limits::default() };
    let guard = limits.guard(access.clone(), ([192, 0, 2, 1], 7400).into(), None);
    let unending = |media_type: &'static str| {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{}\n"))]);
        ([(CONTENT_TYPE, media_type)], Body::from_stream(first.chain(stream::pending())))
    };
    let router = Router::new()
        .route("/events", get(async move || unending("text/event-stream")))
        .route("/export", get(async move || unending(pieces::NDJSON)))
        .route("/whole", get(async || "{}"))
        .layer(from_fn_with_state(guard, observe::observe));
    let ask = async |path: &str| {
        let request = Request::get(path).header(AUTHORIZATION, "Bearer s3cret").body(Body::empty());
        router.clone().oneshot(request.expect("a request")).await.expect("an answer").into_body()
    };
    let (mut events, mut export) = (ask("/events").await, ask("/export").await);
    assert_eq!(ask("/whole").await.size_hint().exact(), Some(2), "one that is whole stays as it is");
    for body in [&mut events, &mut export] {
        assert!(body.frame().await.expect("the first").is_ok());
        assert!(body.frame().now_or_never().is_none(), "it goes on");
    }
    let with_more = Token { roles: [Role::Read, Role::Work].into(), ..reader("ops") };
    for tokens in [vec![with_more], vec![reader("ops")]] {
        access.renew(tokens).expect("renewed");
    }
    access.renew(vec![reader("other")]).expect("renewed");
    assert!(events.frame().await.is_none(), "its client comes again");
    assert!(export.frame().await.expect("no end").is_err(), "half an export is none");
}

#[tokio::test]
async fn a_call_that_panics_is_a_problem_and_not_the_end() {
    async fn panics() {
        panic!("the secret of the house");
    }
    let fixture = Fixture::new();
    let router = routes::surround(Router::new().route("/panics", get(panics)), fixture.app.clone());
    for _ in 0..2 {
        let request = Request::get("/panics").body(Body::empty()).expect("a request");
        let response = router.clone().oneshot(request).await.expect("an answer");
        assert_eq!(response.status(), 500);
        let text = response.into_body().collect().await.expect("a body").to_bytes();
        let problem: Problem = serde_json::from_slice(&text).expect("a problem");
        assert_eq!(problem.code, "internal");
        assert!(!problem.detail.contains("secret"));
    }
}
