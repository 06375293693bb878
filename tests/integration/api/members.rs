//! A process that is a member of a group: what it answers itself, and how it has the leader answer the rest.
//!
//! The members are real servers over embedded stores of their own; where each stands is set by the test.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use leasehold::api::access::Access;
use leasehold::api::{AppState, Limits, MemberState, Office, metrics, serve_member};
use leasehold::client::{Client, ScheduleQuery};
use leasehold::clock::{Clock, MemberClocks, SystemClock};
use leasehold::executor::{HttpExecutor, Limits as CallLimits, TargetPolicy};
use leasehold::manager::{Manager, ManagerConfig};
use leasehold::peers::{ClusterMap, Envelope, PeerSecret, Reached};
use leasehold::scheduler::Schedules;
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use leasehold::store::measured::Measured;
use leasehold::store::{
    ChangeError, Heard, Hindrance, Member, MemberChange, MemberMessage, Membership, SIGNED_HEADS, Standing, Store,
    Unequal,
};
use leasehold::wire::{ClaimJobs, ClusterStatus, CompleteJob, JobState, SubmitJob};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::messages::tell;
use super::server::{SOON, WORKER, claim, eventually, problem};

/// A member whose standing the test sets.
pub(super) struct Puppet {
    pub(super) number: u64,
    /// The version of the exchange that all members know.
    version: AtomicU32,
    /// Whether the others have said which version they know.
    is_heard: AtomicBool,
    standing: watch::Sender<Standing>,
    pub(super) received: Mutex<Vec<MemberMessage>>,
}

#[async_trait]
impl Member for Puppet {
    fn number(&self) -> u64 {
        self.number
    }

    fn members(&self) -> watch::Receiver<Arc<Membership>> {
        let version = self.version.load(Ordering::Relaxed);
        watch::channel(Arc::new(Membership { version, ..Membership::founded(&[1, 2, 3]) })).1
    }

    fn heard(&self) -> BTreeMap<u64, Heard> {
        let heard =
            Heard { ago: Duration::ZERO, knows: self.version.load(Ordering::Relaxed), last: 0, declines: false };
        let others =
            [1, 2, 3].into_iter().filter(|number| *number != self.number && self.is_heard.load(Ordering::Relaxed));
        others.map(|number| (number, heard)).collect()
    }

    fn unequal(&self) -> Unequal {
        Unequal::default()
    }

    fn hindrances(&self) -> BTreeMap<u64, Hindrance> {
        BTreeMap::new()
    }

    async fn change(&self, _: MemberChange) -> Result<(), ChangeError> {
        Ok(())
    }

    async fn outgoing(&self) -> Vec<MemberMessage> {
        std::future::pending().await
    }

    fn is_bulk(&self, _message: &Bytes) -> bool {
        false
    }

    fn receive(&self, message: MemberMessage) {
        self.received.lock().push(message);
    }

    async fn hand_over(&self, to: Option<u64>) -> bool {
        self.standing.send_modify(|now| (now.term, now.leader, now.leads) = (now.term + 1, to, false));
        true
    }

    fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }
}

/// A process that is a member; stopped when dropped.
pub(super) struct Process {
    pub(super) address: SocketAddr,
    pub(super) puppet: Arc<Puppet>,
    pub(super) clocks: Arc<MemberClocks>,
    office: Office,
    store: Arc<dyn Store>,
    pub(super) shutdown: CancellationToken,
    retired: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
    _directory: TempDir,
}

pub(super) fn secret() -> PeerSecret {
    "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=".parse().expect("a secret")
}

pub(super) fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

/// Starts members 1 and 2. Member 3 is at this address.
pub(super) async fn pair(third: &str) -> [Process; 2] {
    pair_for(third, &Access::default()).await
}

/// Starts such members for the holders of tokens.
pub(super) async fn pair_for(third: &str, access: &Access) -> [Process; 2] {
    let [first, second] = [listener().await, listener().await];
    let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().expect("an address"));
    let addresses = BTreeMap::from([(1, url(&first).into()), (2, url(&second).into()), (3, third.into())]);
    let [first, second] = [(1, first), (2, second)].map(|(member, listener)| {
        let map =
            ClusterMap { cluster: "test".into(), member, addresses: addresses.clone(), reached: Reached::default() };
        Process::start(listener, map, access.clone())
    });
    [first, second]
}

pub(super) fn executor() -> HttpExecutor {
    let policy = TargetPolicy { allow_private: true, allow: Vec::new() };
    HttpExecutor::new(policy, CallLimits::default()).expect("an executor")
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a port")
}

/// An address that nobody listens at.
pub(super) const NOWHERE: &str = "http://127.0.0.1:1";

impl Process {
    fn start(listener: TcpListener, map: ClusterMap, access: Access) -> Self {
        let directory = TempDir::new().expect("a directory");
        let store = EmbeddedStore::open(directory.path(), &EmbeddedOptions::default()).expect("the store opens");
        let store = Measured::around(Arc::new(store));
        let standing = watch::Sender::new(Standing::default());
        let version = AtomicU32::new(SIGNED_HEADS);
        let is_heard = AtomicBool::new(true);
        let puppet = Arc::new(Puppet { number: map.member, version, is_heard, standing, received: Mutex::default() });
        let (office, shutdown, retired) = (Office::default(), CancellationToken::new(), CancellationToken::new());
        let address = listener.local_addr().expect("an address");
        let clocks = Arc::new(MemberClocks::new(clock()));
        let state = MemberState {
            member: Arc::clone(&puppet) as Arc<dyn Member>,
            map,
            store: Arc::clone(&store),
            office: office.clone(),
            peer_secret: secret(),
            clock: clock(),
            clocks: Arc::clone(&clocks),
            executor: executor(),
            access,
            metrics: metrics::install().expect("metrics"),
            limits: Limits::default(),
        };
        let retiring = retired.clone();
        let serving =
            tokio::spawn(serve_member(listener, state, shutdown.clone(), async move { retiring.cancelled().await }));
        Self { address, puppet, clocks, office, store, shutdown, retired, serving, _directory: directory }
    }

    /// Serves with a manager of its own from now on.
    pub(super) fn take_office(&self) -> Manager {
        let mark = self.store.mark();
        let manager =
            Manager::start(Arc::clone(&self.store), clock(), ManagerConfig { audit: true, ..ManagerConfig::default() });
        let policy = TargetPolicy { allow_private: true, allow: Vec::new() };
        let schedules = Schedules::new(manager.clone(), Arc::clone(&self.store), clock(), policy);
        let state = AppState {
            manager: manager.clone(),
            subscriptions: None,
            schedules: Some(schedules),
            access: Access::default(),
            peers: None,
            metrics: metrics::install().expect("metrics"),
            limits: Limits::default(),
            configuration: serde_json::Value::Null,
        };
        self.office.take(state, mark);
        manager
    }

    /// Says who leads in this member's view.
    pub(super) fn sees(&self, term: u64, leader: Option<u64>) {
        let leads = leader == Some(self.puppet.number);
        self.puppet.standing.send_replace(Standing {
            term,
            leader,
            leads,
            applied: 7,
            committed: 9,
            ..Standing::default()
        });
    }

    /// Has this version of the exchange for what all members know.
    pub(super) fn agrees_on(&self, version: u32) {
        self.puppet.version.store(version, Ordering::Relaxed);
    }

    /// Has heard of no other member since its start.
    pub(super) fn hears_nobody(&self) {
        self.puppet.is_heard.store(false, Ordering::Relaxed);
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn client(&self) -> Client {
        Client::new(&self.url(""), None).expect("a client").with_max_retries(0)
    }

    pub(super) async fn status(&self) -> ClusterStatus {
        self.client().cluster().await.expect("an answer")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.shutdown.cancel();
        self.retired.cancel();
        self.serving.abort();
    }
}

/// A leader, its manager and a follower.
pub(super) async fn led() -> (Process, Manager, Process) {
    let [leader, follower] = pair(NOWHERE).await;
    let manager = leader.take_office();
    leader.sees(1, Some(1));
    follower.sees(1, Some(1));
    (leader, manager, follower)
}

#[tokio::test]
async fn a_follower_has_the_leader_do_what_it_is_asked() {
    let (leader, _, follower) = led().await;
    let client = follower.client();
    let job = client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let claimed = client.claim(&claim("q")).await.expect("an answer").jobs.remove(0);
    assert_eq!(claimed.id, job.id);
    let done = CompleteJob { worker_id: WORKER.to_owned(), fence: claimed.fence, result: None, next: None };
    client.complete(&job.id, &done).await.expect("completed");
    assert_eq!(leader.client().job(&job.id).await.expect("the job").state, JobState::Completed);
    assert_eq!(client.job(&job.id).await.expect("the job").state, JobState::Completed);
}

#[tokio::test]
async fn a_refusal_of_the_leader_comes_as_the_leader_gave_it() {
    let (_leader, _, follower) = led().await;
    let http = reqwest::Client::new();
    let call = http.get(follower.url("/v1/jobs/nowhere")).header("x-request-id", "mine");
    let answer = call.send().await.expect("an answer");
    assert_eq!(answer.headers()["x-request-id"], "mine");
    assert_eq!(problem(answer).await.code, "not_found");
    let answer = http.get(follower.url("/v1/jobs?state=none%20such&state=running")).send().await.expect("an answer");
    let refused = problem(answer).await;
    assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, "state"));
}

#[tokio::test]
async fn a_waiting_claim_whose_client_goes_away_is_given_up_at_the_leader() {
    let (_leader, manager, follower) = led().await;
    let client = follower.client();
    let waiting = tokio::spawn(async move {
        let patient = ClaimJobs { wait_ms: Some(60_000), ..claim("q") };
        client.claim(&patient).await
    });
    eventually("the claim waits at the leader", || manager.waiting_claims() == 1).await;
    waiting.abort();
    eventually("the claim is given up", || manager.waiting_claims() == 0).await;
}

#[tokio::test]
async fn a_forwarded_call_to_a_member_that_does_not_lead_goes_no_further() {
    let (_leader, _, follower) = led().await;
    let call = reqwest::Client::new().get(follower.url("/v1/queues")).header("leasehold-forwarded", "3");
    let answer = call.send().await.expect("an answer");
    assert_eq!(answer.headers()["retry-after"], "1");
    let refused = problem(answer).await;
    assert_eq!((refused.status, refused.code.as_str()), (503, "not_leader"));
}

#[tokio::test]
async fn without_a_leader_a_call_is_refused_and_the_member_says_that_it_is_not_ready() {
    let [member, _other] = pair(NOWHERE).await;
    let refused = problem(reqwest::get(member.url("/v1/queues")).await.expect("an answer")).await;
    assert_eq!((refused.status, refused.code.as_str()), (503, "no_leader"));
    assert!(refused.detail.contains("2 of its 3 members"), "{}", refused.detail);
    let refused = problem(reqwest::get(member.url("/readyz")).await.expect("an answer")).await;
    assert_eq!(refused.code, "no_leader");
    let alive = async |path| reqwest::get(member.url(path)).await.expect("an answer").status();
    for path in ["/livez", "/metrics", "/openapi.json"] {
        assert_eq!(alive(path).await, 200, "{path}");
    }
    member.sees(2, Some(2));
    assert_eq!(alive("/readyz").await, 200, "a leader is known");
    let own = member.puppet.number;
    member.puppet.standing.send_modify(|standing| standing.leader = Some(own));
    assert_eq!(alive("/readyz").await, 503, "it was elected, and does not lead yet");
}

#[tokio::test]
async fn a_call_waits_for_a_leader_whoever_that_will_be() {
    for elected in [1, 2] {
        let members = pair(NOWHERE).await;
        // This one is asked first, and does not lead either.
        members[0].sees(1, Some(2));
        let submit = SubmitJob::new("q", "k");
        let client = members[0].client();
        let electing = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let manager = members[elected - 1].take_office();
            members.iter().for_each(|member| member.sees(2, Some(elected as u64)));
            manager
        };
        let (submitted, _manager) = tokio::join!(client.submit(&submit), electing);
        let job = submitted.expect("submitted once there was a leader");
        assert_eq!(members[elected - 1].client().job(&job.id).await.expect("it is there").id, job.id);
    }
}

#[tokio::test]
async fn a_call_whose_answer_breaks_off_is_not_made_again_unless_it_only_reads() {
    let third = listener().await;
    let [member, _other] = pair(&format!("http://{}", third.local_addr().expect("an address"))).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let breaking = tokio::spawn(async move {
        loop {
            let (mut stream, _) = third.accept().await.expect("a connection");
            if stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    member.sees(1, Some(3));
    let call = reqwest::Client::new().post(member.url("/v1/jobs")).json(&SubmitJob::new("q", "k"));
    let refused = problem(call.send().await.expect("an answer")).await;
    assert_eq!((refused.status, refused.code.as_str()), (503, "outcome_unknown"));
    assert!(refused.detail.contains("repeat the same call"), "{}", refused.detail);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let refused = problem(reqwest::get(member.url("/v1/jobs")).await.expect("an answer")).await;
    assert_eq!(refused.code, "no_leader");
    assert!(calls.load(Ordering::SeqCst) > 2, "a call that only reads is made again");
    breaking.abort();
}

#[tokio::test]
async fn a_call_to_a_leader_that_hangs_ends_once_there_is_another() {
    // It accepts connections and says nothing.
    let third = listener().await;
    let [member, _other] = pair(&format!("http://{}", third.local_addr().expect("an address"))).await;
    member.sees(1, Some(3));
    let call = reqwest::Client::new().post(member.url("/v1/jobs")).json(&SubmitJob::new("q", "k"));
    let electing = async {
        let (_stream, _) = third.accept().await.expect("a connection");
        member.sees(2, Some(2));
        std::future::pending::<()>().await;
    };
    let answer = tokio::select! {
        answer = call.send() => answer.expect("an answer"),
        () = electing => unreachable!("it is pending"),
    };
    assert_eq!(problem(answer).await.code, "outcome_unknown");
}

#[tokio::test]
async fn a_claim_with_a_name_that_waits_moves_over_to_the_next_leader() {
    // It accepts connections and says nothing.
    let third = listener().await;
    let [member, other] = pair(&format!("http://{}", third.local_addr().expect("an address"))).await;
    member.sees(1, Some(3));
    let named = ClaimJobs { wait_ms: Some(20_000), request_id: Some("r".to_owned()), ..claim("q") };
    let client = member.client();
    let waiting = client.claim(&named);
    let electing = async {
        let (_stream, _) = third.accept().await.expect("a connection");
        let _manager = other.take_office();
        other.sees(2, Some(2));
        member.sees(2, Some(2));
        other
            .client()
            .submit(&SubmitJob { id: Some("j".to_owned()), ..SubmitJob::new("q", "k") })
            .await
            .expect("taken");
        std::future::pending::<()>().await;
    };
    let jobs = tokio::select! {
        claimed = waiting => claimed.expect("claimed at the next leader").jobs,
        () = electing => unreachable!("it is pending"),
    };
    assert_eq!(jobs.iter().map(|job| job.id.as_ref()).collect::<Vec<_>>(), ["j"]);
    // It is the same claim there.
    let again = other.client().claim(&ClaimJobs { repeated: true, ..named }).await.expect("claimed");
    assert_eq!((&again.jobs[0].id, again.jobs[0].fence), (&jobs[0].id, jobs[0].fence));
}

#[tokio::test]
async fn streams_come_through_a_follower_and_end_with_the_leadership() {
    let (leader, manager, follower) = led().await;
    let mut events = reqwest::get(follower.url("/v1/events")).await.expect("an answer");
    assert_eq!(events.headers()["content-type"], "text/event-stream");
    follower.client().submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let mut text = String::new();
    while !text.contains("submitted") {
        let part = timeout(SOON, events.chunk()).await.expect("in time").expect("a stream").expect("an event");
        text += &String::from_utf8_lossy(&part);
    }
    leader.office.leave();
    leader.sees(2, None);
    let ended = async { while let Ok(Some(_)) = events.chunk().await {} };
    timeout(SOON, ended).await.expect("the stream ends");
    manager.retire().await;
}

#[tokio::test]
async fn a_body_of_any_length_is_passed_on_as_it_comes() {
    let (leader, _, follower) = led().await;
    let line = |number: usize| {
        let (period, job) = (json!({"cron": "0 2 * * *"}), json!({"queue": "q", "kind": "k"}));
        json!({"id": format!("s{number}"), "period": period, "action": {"type": "job", "job": job}}).to_string() + "\n"
    };
    let body: String = (0..100).map(line).collect();
    let post = async |process: &Process| {
        let call = reqwest::Client::new().post(process.url("/v1/schedules/bulk"));
        let call = call.header("content-type", "application/x-ndjson").body(body.clone());
        let answer = call.send().await.expect("an answer");
        let status = answer.status();
        let answered: Value = answer.json().await.expect("JSON");
        (status.as_u16(), answered["items"].as_array().map(Vec::len))
    };
    assert_eq!(post(&follower).await, (200, Some(100)));
    assert_eq!(post(&leader).await, (200, Some(100)), "the same schedules are stored once");
    let stored = leader
        .client()
        .schedules(&ScheduleQuery { limit: Some(1_000), ..ScheduleQuery::default() })
        .await
        .expect("a list");
    assert_eq!(stored.items.len(), 100);
}

#[tokio::test]
async fn every_member_says_where_it_stands() {
    let (leader, _, follower) = led().await;
    for (process, member, leads) in [(&leader, 1, true), (&follower, 2, false)] {
        let status = process.status().await;
        assert_eq!((status.cluster.as_str(), status.member, status.leads), ("test", member, leads));
        assert_eq!((status.term, status.leader, status.applied, status.committed), (1, Some(1), 7, 9));
        assert_eq!(status.leader_address, Some(leader.url("")));
        assert_eq!(status.members.iter().map(|listed| listed.member).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(status.members[1].address, follower.url(""));
    }
}

#[tokio::test]
async fn a_member_that_stops_listens_to_the_others_until_its_manager_has_ended() {
    let (leader, manager, follower) = led().await;
    let waiting = tokio::spawn({
        let (client, patient) = (leader.client(), ClaimJobs { wait_ms: Some(60_000), ..claim("q") });
        async move { client.claim(&patient).await }
    });
    eventually("the claim waits", || manager.waiting_claims() == 1).await;
    leader.shutdown.cancel();
    let claimed = timeout(SOON, waiting).await.expect("in time").expect("no panic").expect("an answer");
    assert_eq!(claimed.jobs.len(), 0, "a claim that waits is answered");
    let refused = problem(reqwest::get(leader.url("/v1/queues")).await.expect("an answer")).await;
    assert_eq!(refused.code, "shutting_down");
    let answer = Envelope { cluster: "test".to_owned(), from: 2, to: 1, messages: vec![Bytes::from_static(b"a")] };
    assert_eq!(tell(&leader, &answer, &secret()).await.status(), 204, "its last writes need the others");
    // A call that comes through a follower waits for the next leader.
    let submit = SubmitJob::new("q", "k");
    let electing = async {
        let manager = follower.take_office();
        follower.sees(2, Some(2));
        manager
    };
    let client = follower.client();
    let (submitted, _manager) = tokio::join!(client.submit(&submit), electing);
    submitted.expect("submitted at the next leader");
    let mut leader = leader;
    leader.retired.cancel();
    let serving = std::mem::replace(&mut leader.serving, tokio::spawn(async { Ok(()) }));
    timeout(SOON, serving).await.expect("it ends").expect("no panic").expect("it ends well");
}
