//! What a process that is a member of a group serves. It answers for itself where it stands and how it is; any other
//! call goes to the member that leads, which may be this one.
//!
//! In reading order: [`Front`] here, [`office`] (the manager that works while this member leads), [`forward`] (the way
//! to the leader), [`losses`] (calls at which leaders were lost), [`claim`] (claims that move over to the next leader),
//! [`kept`] (bodies of calls that may be made again), [`serving`] (the calls that are held up while the lead is handed
//! over), [`deliveries`] (when claimed jobs have come to a client of a follower), [`cluster`] (where the member stands,
//! and changes), [`clocks`] (whether the clocks of the members agree), [`identity`](mod@identity) (which cluster a call
//! is for) and [`measured`] (metrics).

mod claim;
mod clocks;
mod cluster;
mod deliveries;
mod forward;
mod identity;
mod kept;
mod losses;
mod measured;
mod office;
mod serving;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Method, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(super) use clocks::compare_clocks;
pub(super) use measured::count_leaders;
pub use office::Office;

use super::access::{Access, Guard, Role};
use super::app::Limits;
use super::body::read;
use super::budget::{Account, Budget, Holder, Sharing};
use super::call::Answer;
use super::error::{ApiError, Code, write_problem};
use super::json::{ok, with_body};
use super::observe::{REQUEST_ID, observe, request_id};
use super::of_peers::{OfPeers, PeerRoute};
use super::roles;
use super::routes::surround_pages;
use super::system::{lives, unready};
use crate::clock::{Clock, MemberClocks};
use crate::executor::{HttpExecutor, NoHttpClient};
use crate::page;
use crate::peers::{
    CALLS_PATH, ClusterMap, DELIVERIES_PATH, Envelope, Gate, HEAD, InvalidCall, MAX_CALL_BYTES, MAX_MESSAGES_BYTES,
    MESSAGES_PATH, PassedCall, PeerSecret, Signer, earlier_bytes, is_agreed_on_less,
};
use crate::store::{Member, Standing, Store, StoreError};
use crate::wire::{Health, ServerHealth, StoreHealth};
use claim::rest_of_claim;
use deliveries::Deliveries;
use forward::{FORWARDED, Forwarder, ORDERS_PATH};
use kept::Kept;
use office::{Own, call};

/// The calls with messages of another member, of which two of the longest are held at once. Without them there is no
/// leader, however many clients send bodies.
const MESSAGES: PeerRoute =
    PeerRoute { path: MESSAGES_PATH, max_bytes: MAX_MESSAGES_BYTES, budget: 2 * MAX_MESSAGES_BYTES };
/// The calls that are to be made for the leader.
const CALLS: PeerRoute = PeerRoute { path: CALLS_PATH, max_bytes: MAX_CALL_BYTES, budget: 64 * MAX_CALL_BYTES };
/// The calls that say that a client has its answer, of which each has the id of the answer.
const DELIVERIES: PeerRoute = PeerRoute { path: DELIVERIES_PATH, max_bytes: 64, budget: DELIVERIES_BUDGET };
/// The most bytes of such calls that are held at once: as many calls as there are clients.
const DELIVERIES_BUDGET: usize = 16 << 20;
/// The longest health of a leader that is read.
const MOST_HEALTH_BYTES: usize = 4 << 20;
/// How long such a call of an earlier version may take.
const DELIVERY_WITHIN: Duration = Duration::from_secs(2);

/// The parts of a server that is a member of a group.
pub struct MemberState {
    /// This process's member of the group, whose standing says who leads.
    pub member: Arc<dyn Member>,
    /// The members of the group, and where each is reached.
    pub map: ClusterMap,
    /// The store of this member, which is asked whether it still leads before it is read.
    pub store: Arc<dyn Store>,
    /// Where the manager is put that works while this member leads.
    pub office: Office,
    /// The secret that the members share.
    pub peer_secret: PeerSecret,
    /// The clock of the process.
    pub clock: Arc<dyn Clock>,
    /// What is known of the clocks of the members.
    pub clocks: Arc<MemberClocks>,
    /// What makes the calls that the leader gives to this member.
    pub executor: HttpExecutor,
    /// The tokens and their roles.
    pub access: Access,
    /// The process's metrics, from [`super::metrics::install`].
    pub metrics: PrometheusHandle,
    /// The limits of the server.
    pub limits: Limits,
}

/// What the handlers of a member share.
pub(super) struct Front {
    member: Arc<dyn Member>,
    map: ClusterMap,
    own: Own,
    forwarder: Arc<Forwarder>,
    /// What is held for the clients of followers while this member leads.
    deliveries: Deliveries,
    /// The routes of calls that are forwarded, with what surrounds every call.
    forwarding: Router,
    guard: Arc<Guard>,
    peers: OfPeers,
    /// At whose expense is read what members of an earlier version say of deliveries.
    earlier_deliveries: Account,
    clocks: Arc<MemberClocks>,
    executor: HttpExecutor,
    metrics: PrometheusHandle,
    openapi: Bytes,
    /// The calls that are under way.
    calls: TaskTracker,
    shutdown: CancellationToken,
}

impl Front {
    /// Makes the front of a member that is guarded like this, and ends once `shutdown` is cancelled. `openapi` is the
    /// API's description.
    pub(super) fn new(
        state: MemberState,
        guard: Arc<Guard>,
        shutdown: CancellationToken,
        openapi: Bytes,
    ) -> Result<Self, NoHttpClient> {
        let MemberState { member, map, store, office, peer_secret, clock, clocks, executor, metrics, limits, .. } =
            state;
        let own = Own { office, store, guard: Arc::clone(&guard), openapi: openapi.clone(), serving: Arc::default() };
        let body_within = limits.body_within;
        let name = map.name(map.member);
        let gate = Arc::new(Gate::new(peer_secret.clone(), Some(&name)));
        let signer = Signer::new(peer_secret, &name, Arc::clone(&clock));
        let forwarder = Arc::new(Forwarder::new(
            map.clone(),
            signer,
            Arc::clone(&member),
            own.clone(),
            Arc::clone(&guard),
            shutdown.clone(),
        )?);
        let routes = roles::routes().fold(Router::new(), |routes, route| routes.route(route, any(forward_call)));
        let forwarding = routes
            .fallback(forward_call)
            .layer(from_fn_with_state(Arc::clone(&guard), observe))
            .with_state(Arc::clone(&forwarder));
        Ok(Self {
            member,
            map,
            own,
            forwarder,
            deliveries: Deliveries::default(),
            forwarding,
            guard,
            peers: OfPeers::new(gate, clock, body_within, &[MESSAGES, CALLS]),
            earlier_deliveries: Account {
                budget: Budget::new("members", "bytes of calls of members", DELIVERIES_BUDGET, &Sharing::Parts(1)),
                holder: Holder::Process,
                within: DELIVERY_WITHIN,
            },
            clocks,
            executor,
            metrics,
            openapi,
            calls: TaskTracker::new(),
            shutdown,
        })
    }

    /// Answers the claims that wait, ends streams of events, and lets other calls end within this time.
    pub(super) async fn drain(&self, within: Duration) {
        self.own.office.wind_up();
        self.calls.close();
        if timeout(within, self.calls.wait()).await.is_err() {
            tracing::warn!(open = self.calls.len(), "calls did not end in time");
        }
    }

    fn standing(&self) -> Standing {
        *self.member.standing().borrow()
    }
}

/// Returns the routes of a member: those of the API, which the leader answers, and the page over them.
pub(super) fn router(front: Arc<Front>) -> Router {
    let (api, member) = (api_router(Arc::clone(&front)), Arc::clone(&front.member));
    let pages = page::routes(api.clone(), front.shutdown.clone());
    api.merge(surround_pages(pages, &front.guard)).layer(from_fn_with_state(member, identity::identify))
}

fn api_router(front: Arc<Front>) -> Router {
    Router::new()
        .route(MESSAGES_PATH, post(messages))
        .route(DELIVERIES_PATH, post(note_delivery))
        .route(CALLS_PATH, post(make_call))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
        .route("/v1/cluster", get(Front::status))
        .route(ORDERS_PATH, post(Front::change))
        .layer(from_fn_with_state(Arc::clone(&front.guard), observe))
        .route("/v1/health", any(health))
        .fallback(at_leader)
        .with_state(front)
}

async fn forward_call(State(forwarder): State<Arc<Forwarder>>, request: Request) -> Answer {
    forwarder.forward(request).await
}

/// Serves a call with the manager of this process if it leads, and otherwise has the leader serve it.
async fn at_leader(State(front): State<Arc<Front>>, mut request: Request) -> Response {
    let _under_way = front.calls.token();
    // The answer, the log of this member and that of the leader have the same id.
    let id = request_id(request.headers());
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let is_forwarded = request.headers().contains_key(FORWARDED);
    let (parts, body) = request.into_parts();
    let begun = Instant::now();
    let entered = front.own.enter(&parts.method, &parts.uri).await;
    let answer = match entered.filter(|_| !front.shutdown.is_cancelled()) {
        None => call(front.forwarding.clone(), Request::from_parts(parts, body)).await,
        Some(entered) => {
            let kept = Kept::default();
            let mut whole = parts.clone();
            whole.extensions.insert(kept.account.clone());
            match entered.serve(Request::from_parts(whole, kept.of(body))).await {
                Ok(answer) => answer,
                Err(_) if parts.method.is_safe() => {
                    call(front.forwarding.clone(), Request::from_parts(parts, Body::empty())).await
                }
                Err(not_led) => match kept.whole().filter(|_| not_led.is_nothing_done) {
                    Some(body) => {
                        let body = rest_of_claim(&parts, body, begun);
                        call(front.forwarding.clone(), Request::from_parts(parts, body.into())).await
                    }
                    None => refuse(front.forwarder.not_led(&not_led), &id),
                },
            }
        }
    };
    if is_forwarded { front.deliveries.hold(answer) } else { answer }
}

/// Returns the refusal of a call, with its body.
fn refuse(refusal: ApiError, id: &HeaderValue) -> Response {
    let problem = refusal.to_problem(id.to_str().unwrap_or_default());
    let mut answer = refusal.into_response();
    write_problem(&mut answer, &problem);
    answer
}

/// Takes note of that a client of another member has its answer, whose id that member alone was told.
async fn note_delivery(State(front): State<Arc<Front>>, request: Request) -> Response {
    front.peers.answer(front.take_delivery(request).await)
}

/// Takes messages of another member.
async fn messages(State(front): State<Arc<Front>>, request: Request) -> Response {
    let head = request.headers().get(HEAD).cloned();
    let answer = front.take_messages(request).await;
    front.peers.answer_and_prove(head.as_ref(), answer)
}

/// Makes a call of a user's address for the leader.
async fn make_call(State(front): State<Arc<Front>>, request: Request) -> Response {
    let _under_way = front.calls.token();
    front.peers.answer(front.make_call(request).await)
}

impl Front {
    async fn take_delivery(&self, request: Request) -> Answer {
        // Earlier versions do not sign it: who knows the id, which is random, may say so once.
        let is_earlier = !request.headers().contains_key(HEAD) && earlier_bytes(&*self.member) > 0;
        let id = if is_earlier {
            let (mut parts, body) = request.into_parts();
            parts.extensions.insert(self.earlier_deliveries.clone());
            read(&parts, body, DELIVERIES.max_bytes).await?
        } else {
            self.peers.read(request, &DELIVERIES, || 0).await?
        };
        if self.deliveries.taken(&id.bytes) {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        let detail = "no such answer waits until it is taken; its jobs may have been given back";
        Err(ApiError::new(Code::NotFound, detail))
    }

    async fn take_messages(&self, request: Request) -> Answer {
        let body = self.peers.read(request, &MESSAGES, || earlier_bytes(&*self.member)).await?;
        let envelope = Envelope::decode(body.bytes.clone())
            .map_err(|error| ApiError::new(Code::MalformedRequest, error.to_string()))?;
        self.is_meant(&envelope.cluster, envelope.to)?;
        let own = self.map.member;
        if envelope.from == own {
            let detail = format!("this is member {own} itself: two processes have the same number");
            return Err(ApiError::new(Code::WrongMember, detail));
        }
        for message in envelope.into_messages() {
            self.member.receive(message);
        }
        Ok(StatusCode::NO_CONTENT.into_response())
    }

    async fn make_call(&self, request: Request) -> Answer {
        if self.shutdown.is_cancelled() {
            return Err(ApiError::new(Code::ShuttingDown, "the server is shutting down"));
        }
        // One that is signed by its body can be made again by who has seen it.
        let takes_earlier = || if is_agreed_on_less(&*self.member) { usize::MAX } else { 0 };
        let body = self.peers.read(request, &CALLS, takes_earlier).await?;
        let malformed = |error: InvalidCall| ApiError::new(Code::MalformedRequest, error.to_string());
        let call = PassedCall::decode(&body.bytes).map_err(malformed)?;
        self.is_meant(&call.cluster, call.to)?;
        let passed = call.make(&self.executor).await.map_err(malformed)?;
        metrics::counter!("leasehold_member_calls_total").increment(1);
        Ok(with_body(StatusCode::OK, Body::from(passed.encode())))
    }

    /// Checks that a call of another member is for this one.
    fn is_meant(&self, theirs: &str, to: u64) -> Result<(), ApiError> {
        let ClusterMap { cluster, member, .. } = &self.map;
        if *theirs != **cluster {
            let detail = format!("this is a member of the cluster `{cluster}`, and the call is for one of `{theirs}`");
            return Err(ApiError::new(Code::WrongMember, detail));
        }
        if to != *member {
            let detail = format!("this is member {member}, and the call is for member {to}");
            let detail = format!("{detail}: the addresses in `--peers` are not the same everywhere");
            return Err(ApiError::new(Code::WrongMember, detail));
        }
        Ok(())
    }
}

fn healthy() -> Answer {
    ok(&Health { status: "ok".to_owned() })
}

async fn livez(State(front): State<Arc<Front>>) -> Answer {
    match front.own.store.stopped() {
        Some(why) => Err(StoreError::Stopped(why).into()),
        None => lives(front.own.store.hang()),
    }
}

/// Answers whether the member can have calls answered: by itself or by the leader that it knows.
async fn readyz(State(front): State<Arc<Front>>) -> Answer {
    if front.shutdown.is_cancelled() {
        return Err(ApiError::new(Code::ShuttingDown, "the server is shutting down"));
    }
    if let Some(hang) = front.own.store.hang() {
        return Err(unready(hang.into()));
    }
    let (standing, ready) = (front.standing(), front.own.store.ready().await);
    match (standing, ready) {
        // It takes part in nothing, and does not learn who leads next.
        (_, Err(error @ (StoreError::Stopped(_) | StoreError::OutOfOrder(_)))) => Err(error.into()),
        (Standing { leads: true, .. }, ready) => ready.map_err(unready).and_then(|()| healthy()),
        // It waits for most of the members: for a moment, unless they lack what they are to acknowledge.
        (Standing { leader: Some(leader), .. }, _) if leader != front.member.number() => healthy(),
        _ => Err(front.forwarder.no_leader()),
    }
}

/// Returns the metrics of this process, with those of the whole store while it leads.
async fn metrics(State(front): State<Arc<Front>>, request: Request) -> Response {
    measured::record(&front.standing(), &front.clocks_seen(), front.map.addresses.keys().copied());
    if let Some((router, _)) = front.own.router() {
        return call(router, request).await;
    }
    measured::record_without_manager(&*front.own.store);
    match front.guard.access.allow(request.headers(), Role::Read) {
        Ok(_) => {
            let content_type = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
            (content_type, front.metrics.render()).into_response()
        }
        Err(refused) => refused.into_response(),
    }
}

/// Answers with the health that the leader says. A member whose store hangs, has stopped or waits for room does not
/// lead any more, and its leader does not know.
async fn health(State(front): State<Arc<Front>>, mut request: Request) -> Response {
    let (is_asked, id) = (request.method() == Method::GET, request_id(request.headers()));
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let (own, leads, member) = (Arc::clone(&front.own.store), front.standing().leads, front.member.number());
    let answer = at_leader(State(front), request).await;
    let (stopped, hang, out_of_order) = (own.stopped(), own.hang(), own.out_of_order());
    let trouble = stopped.clone().map(StoreError::Stopped).or_else(|| hang.clone().map(StoreError::from));
    let trouble = trouble.or_else(|| out_of_order.clone().map(StoreError::OutOfOrder));
    let Some(trouble) = trouble.filter(|_| is_asked && !leads) else { return answer };
    if answer.status() == StatusCode::SERVICE_UNAVAILABLE {
        // It knows no leader, as one that has left its group.
        return refuse(unready(trouble), &id);
    }
    let (mut parts, body) = answer.into_parts();
    let Ok(bytes) = to_bytes(body, MOST_HEALTH_BYTES).await else { return refuse(unready(trouble), &id) };
    let store = StoreHealth { stopped, hangs: hang.map(|hang| hang.why), out_of_order, ..StoreHealth::default() };
    let health = serde_json::from_slice(&bytes).map(|health: ServerHealth| health.with_member(member, store));
    let Ok(with_member) = health.and_then(|health| serde_json::to_vec(&health)) else {
        return Response::from_parts(parts, Body::from(bytes));
    };
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(with_member))
}

async fn openapi(State(front): State<Arc<Front>>) -> Response {
    with_body(StatusCode::OK, Body::from(front.openapi.clone()))
}
