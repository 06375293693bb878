//! The way of a call to the leader.
//!
//! A call is sent again only when nobody has carried it out: no connection could be made, the member that was asked
//! does not lead, or the call only reads. What has become of any other call whose answer does not come is unknown, and
//! only its client can tell whether a repetition is the same call.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, StreamExt, TryFutureExt, stream};
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, ORIGIN, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use reqwest::Url;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::claim::{is_named_claim, rest_of_claim};
use super::deliveries::{Announced, Said};
use super::identity::say;
use super::losses::Losses;
use super::office::{NotLed, Own, Tenure, waits};
use crate::api::access::Guard;
use crate::api::body::read;
use crate::api::call::Answer;
use crate::api::error::{ApiError, Code, PROBLEM_JSON, Relayed};
use crate::api::extract::MAX_BULK_BYTES;
use crate::api::remote::Remote;
use crate::api::roles;
use crate::executor::NoHttpClient;
use crate::outgoing;
use crate::peers::{ClusterMap, Signer};
use crate::store::{Member, Membership, Standing};
use crate::wire::{ClusterHindrance, Problem, went_back};

/// Says which member has forwarded a call. Whoever gets such a call and does not lead forwards it no further.
pub(super) const FORWARDED: HeaderName = HeaderName::from_static("leasehold-forwarded");
/// How long a call waits for a leader.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a call waits at most before the leader is tried again: it may lead by then, though nothing has changed
/// here.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a member that counts as the leader no longer has for its answers.
const DEPOSED: Duration = Duration::from_secs(2);
/// How long connecting to the leader may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// After how long a connection breaks over which nothing comes, not even what says that it is there.
const CUT_OFF: Duration = Duration::from_secs(15);
/// How long an idle connection is kept: less than the leader keeps it.
const IDLE: Duration = Duration::from_secs(15);
/// The most bytes of a refusal that are read for its code.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// The path of orders to change the members.
pub(super) const ORDERS_PATH: &str = "/v1/admin/cluster";
/// The paths of calls whose bodies have no end to wait for.
const STREAMED: [&str; 1] = ["/v1/schedules/bulk"];
/// The headers that are about one connection.
const OF_THE_CONNECTION: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    EXPECT,
];

/// Has the leader serve calls.
pub(super) struct Forwarder {
    map: ClusterMap,
    member: Arc<dyn Member>,
    members: watch::Receiver<Arc<Membership>>,
    standing: watch::Receiver<Standing>,
    own: Own,
    http: reqwest::Client,
    /// How a leader learns that a client has its answer.
    said: Arc<Said>,
    losses: Losses,
    guard: Arc<Guard>,
    shutdown: CancellationToken,
}

impl Forwarder {
    pub(super) fn new(
        map: ClusterMap,
        signer: Signer,
        member: Arc<dyn Member>,
        own: Own,
        guard: Arc<Guard>,
        shutdown: CancellationToken,
    ) -> Result<Self, NoHttpClient> {
        let http = outgoing::client()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .http1_only()
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE)
            // The leader may lead on and not be reached from here only: then nothing else ends a call that waits.
            .tcp_keepalive(CUT_OFF / 3)
            .tcp_keepalive_interval(CUT_OFF / 3)
            .tcp_keepalive_retries(2)
            .tcp_user_timeout(CUT_OFF)
            .build()?;
        let (members, standing) = (member.members(), member.standing());
        let said = Arc::new(Said::new(http.clone(), signer, Arc::clone(&member), map.clone()));
        let losses = Losses::default();
        Ok(Self { map, member, members, standing, own, http, said, losses, guard, shutdown })
    }

    /// Returns the refusal for want of a leader.
    pub(super) fn no_leader(&self) -> ApiError {
        let members = self.members.borrow().that_vote(true).count();
        let mut detail =
            format!("no member of the cluster leads: {} of its {members} members must run", members / 2 + 1);
        for (member, hindrance) in self.member.hindrances() {
            let why = ClusterHindrance::of(member, hindrance).map(|hindrance| hindrance.to_string());
            detail.push_str("; ");
            detail.push_str(&why.unwrap_or_else(|| went_back(member)));
        }
        ApiError::new(Code::NoLeader, detail)
    }

    /// Returns the refusal of a call that nobody has carried out, since this member does not lead.
    pub(super) fn not_leading(&self) -> ApiError {
        ApiError::new(Code::NotLeader, format!("member {} does not lead the cluster", self.map.member))
    }

    /// Returns what is said of a call that this member has served without being known to lead.
    pub(super) fn not_led(&self, not_led: &NotLed) -> ApiError {
        if not_led.is_nothing_done { self.not_leading() } else { unknown("it leads no longer") }
    }

    /// Has the leader serve a call; it may be this member by then.
    pub(super) async fn forward(&self, request: Request) -> Answer {
        let (parts, body) = request.into_parts();
        if self.shutdown.is_cancelled() {
            return Err(ApiError::new(Code::ShuttingDown, "the server is shutting down"));
        }
        if parts.headers.contains_key(FORWARDED) {
            return Err(self.not_leading());
        }
        self.admit(&parts)?;
        if STREAMED.contains(&parts.uri.path()) {
            return self.forward_once(&parts, body).await;
        }
        let read = read(&parts, body, MAX_BULK_BYTES).await?;
        self.losses.check(&parts, &read.bytes)?;
        let (came, mut body) = (Instant::now(), read.bytes.clone());
        let mut changes = Changes::of(self);
        // Bounded by the patience, which begins anew when a leader goes at which a claim has waited.
        loop {
            let begun = Instant::now();
            let asked = match (self.own.enter(&parts.method, &parts.uri).await, self.leader()) {
                // Nobody else gives orders to the members, and no manager takes any.
                (Some(_), _) if parts.uri.path() == ORDERS_PATH => return Err(self.not_leading()),
                (Some(entered), _) => {
                    let served = entered.serve(same_request(&parts, Body::from(body.clone()))).await;
                    served.map(Some).or_else(|not_led| match not_led.is_nothing_done {
                        true => Ok(None),
                        false => Err(self.not_led(&not_led)),
                    })
                }
                (None, Some(leader)) => self.ask(leader, &parts, body.clone().into(), Some(&read.bytes)).await,
                (None, None) => Ok(None),
            };
            match asked {
                Ok(Some(answer)) => return Ok(answer),
                // It has waited where it was, and nothing was done.
                Ok(None) if begun.elapsed() > PATIENCE => {
                    body = rest_of_claim(&parts, read.bytes.clone(), came);
                    changes = Changes::of(self);
                }
                Ok(None) => {}
                Err(error) if error.code() == Code::OutcomeUnknown && is_named_claim(&parts, &read.bytes) => {
                    body = rest_of_claim(&parts, read.bytes.clone(), came);
                    changes = Changes::of(self);
                }
                Err(error) => return Err(error),
            }
            if !changes.wait().await {
                return Err(self.no_leader());
            }
        }
    }

    /// Checks that the caller may make the call, before anything of its body is read.
    fn admit(&self, parts: &Parts) -> Result<(), ApiError> {
        let route = parts.extensions.get::<MatchedPath>();
        match route.and_then(|route| roles::needed(&parts.method, route.as_str())) {
            Some(role) => self.guard.access.allow(&parts.headers, role).map(drop),
            // The leader says that there is no such call.
            None => self.guard.access.know(&parts.headers),
        }
    }

    /// Forwards a call whose body is passed on as it comes, and so can be sent once only.
    async fn forward_once(&self, parts: &Parts, body: Body) -> Answer {
        let mut changes = Changes::of(self);
        loop {
            if let Some(entered) = self.own.enter(&parts.method, &parts.uri).await {
                let answer = entered.serve(same_request(parts, body)).await;
                return answer.map_err(|not_led| self.not_led(&not_led));
            }
            // Its address may not be known yet, and nothing of the body has been read.
            if let Some(leader) = self.leader().filter(|leader| self.address(*leader).is_some()) {
                let body = reqwest::Body::wrap_stream(body.into_data_stream());
                return self.ask(leader, parts, body, None).await?.ok_or_else(|| self.no_leader());
            }
            if !changes.wait().await {
                return Err(self.no_leader());
            }
        }
    }

    /// Returns the other member that leads, if one is known.
    fn leader(&self) -> Option<u64> {
        self.standing.borrow().leader.filter(|leader| *leader != self.map.member)
    }

    /// Returns where a member is that may be sent the token of a client.
    fn address(&self, leader: u64) -> Option<Arc<str>> {
        self.map.proved_address(leader, &*self.member)
    }

    /// Asks a member, and returns its answer; `None` when nobody has carried out the call. `came` is the whole body
    /// with which the call came, where it is known: by it the call is recognized when leaders are lost at it.
    async fn ask(
        &self,
        leader: u64,
        parts: &Parts,
        body: reqwest::Body,
        came: Option<&Bytes>,
    ) -> Result<Option<Response>, ApiError> {
        let (term, begun) = (self.standing.borrow().term, Instant::now());
        let Some(address) = self.address(leader) else { return Ok(None) };
        let path = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let url = Url::parse(&format!("{address}{path}"))
            .map_err(|error| ApiError::new(Code::MalformedRequest, format!("the path cannot be forwarded: {error}")))?;
        let call = self.http.request(parts.method.clone(), url).headers(self.headers(&parts.headers)).body(body);
        let answer = tokio::select! {
            answer = call.send() => answer,
            () = self.deposed(leader) => return self.unknown(parts, "it leads no longer"),
            () = self.ending(parts) => {
                return Err(ApiError::new(Code::ShuttingDown, "the server is shutting down"));
            }
        };
        match answer {
            Ok(answer) if answer.status() == StatusCode::SERVICE_UNAVAILABLE => self.refused(answer, parts).await,
            Ok(answer) => Ok(Some(self.relay(answer, leader, &address))),
            Err(error) if error.is_connect() => Ok(None),
            Err(error) if error.is_builder() => {
                let detail = "the call cannot be forwarded";
                Err(ApiError::new(Code::MalformedRequest, detail).caused_by(error.to_string()))
            }
            Err(error) => {
                // A call that has waited is not what has ended the leader.
                let has_waited = waits(&parts.method, &parts.uri) && begun.elapsed() > PATIENCE;
                if let Some(body) = came.filter(|_| !has_waited) {
                    self.losses.note(term, parts, body)?;
                }
                self.unknown(parts, &error.to_string())
            }
        }
    }

    /// Returns what is said of a call whose answer has not come.
    fn unknown(&self, parts: &Parts, why: &str) -> Result<Option<Response>, ApiError> {
        if parts.method.is_safe() {
            return Ok(None);
        }
        Err(unknown(why))
    }

    /// Reads a refusal, and returns it unless it says that somebody else is to be asked.
    async fn refused(&self, mut answer: reqwest::Response, parts: &Parts) -> Result<Option<Response>, ApiError> {
        let (status, headers) = (answer.status(), answer.headers().clone());
        let mut body = Vec::new();
        // A refusal is short.
        loop {
            match answer.chunk().await {
                Ok(Some(part)) if body.len() + part.len() <= MAX_REFUSAL_BYTES => body.extend_from_slice(&part),
                Ok(None) => break,
                Ok(Some(_)) => return self.unknown(parts, "it refuses at length"),
                Err(error) => return self.unknown(parts, &error.to_string()),
            }
        }
        let elsewhere = [Code::NotLeader, Code::NoLeader, Code::ShuttingDown].map(Code::as_str);
        let is_problem = headers.get(http::header::CONTENT_TYPE).is_some_and(|media| media == PROBLEM_JSON);
        let problem: Option<Problem> = serde_json::from_slice(&body).ok().filter(|_| is_problem);
        if problem.is_some_and(|problem| elsewhere.contains(&problem.code.as_str())) {
            return Ok(None);
        }
        Ok(Some(relayed(status, &headers, Body::from(body))))
    }

    /// Returns the answer of a member, as it comes.
    fn relay(&self, answer: reqwest::Response, leader: u64, address: &str) -> Response {
        let (status, mut headers) = (answer.status(), answer.headers().clone());
        if let Some(announced) = Announced::of(&mut headers) {
            return relayed(status, &headers, announced.pass(answer, Arc::clone(&self.said), (leader, address)));
        }
        if headers.contains_key(CONTENT_LENGTH) {
            return relayed(status, &headers, Body::new(reqwest::Body::from(answer)));
        }
        // A stream may be silent for long, and so does not show by itself that its member is gone.
        let deposed = deposed(self.standing.clone(), leader);
        relayed(status, &headers, Body::from_stream(until(answer.bytes_stream(), deposed)))
    }

    /// Returns the headers of a forwarded call.
    fn headers(&self, headers: &HeaderMap) -> HeaderMap {
        let mut headers = of_the_message(headers);
        // The client gave this one to the member that it called, which has compared the two already.
        for name in [HOST, ORIGIN, CONTENT_LENGTH] {
            headers.remove(name);
        }
        headers.insert(FORWARDED, HeaderValue::from(self.map.member));
        // Another cluster's leader may have the address by now.
        if let Some(identity) = self.standing.borrow().identity {
            say(&identity.to_string(), &mut headers);
        }
        headers
    }

    async fn deposed(&self, leader: u64) {
        deposed(self.standing.clone(), leader).await;
    }

    /// Waits until a call has to end that may wait for long, since this process stops.
    async fn ending(&self, parts: &Parts) {
        if waits(&parts.method, &parts.uri) { self.shutdown.cancelled().await } else { pending().await }
    }
}

/// Returns what is said of a call that may have been carried out.
fn unknown(why: &str) -> ApiError {
    let detail = "the leader has not answered, and whether it was done is unknown: repeat the same call, under the \
                  same id, key, request id or fence";
    ApiError::new(Code::OutcomeUnknown, detail).caused_by(why)
}

/// Waits until a member has not counted as the leader for a while.
async fn deposed(mut standing: watch::Receiver<Standing>, leader: u64) {
    loop {
        if standing.wait_for(|standing| standing.leader != Some(leader)).await.is_err() {
            return pending().await;
        }
        sleep(DEPOSED).await;
        if standing.borrow().leader != Some(leader) {
            return;
        }
    }
}

/// Returns a stream that breaks when `end` returns first.
fn until(
    parts: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static,
    end: impl Future<Output = ()> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, axum::BoxError>> + Send {
    stream::try_unfold((Box::pin(parts), Box::pin(end)), |(mut parts, mut end)| async move {
        tokio::select! {
            part = parts.next() => match part.transpose()? {
                Some(part) => Ok(Some((part, (parts, end)))),
                None => Ok(None),
            },
            () = &mut end => Err("the leader leads no longer".into()),
        }
    })
}

/// Returns headers without those that are about one connection.
fn of_the_message(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for named in headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok()) {
        for name in named.split(',').filter_map(|name| HeaderName::try_from(name.trim()).ok()) {
            kept.remove(name);
        }
    }
    for name in OF_THE_CONNECTION {
        kept.remove(name);
    }
    kept
}

fn relayed(status: StatusCode, headers: &HeaderMap, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = of_the_message(headers);
    response.extensions_mut().insert(Relayed);
    response
}

/// Returns the request anew, for a router of this process.
fn same_request(parts: &Parts, body: Body) -> Request {
    let mut request = Request::new(body);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = parts.uri.clone();
    *request.version_mut() = parts.version;
    *request.headers_mut() = parts.headers.clone();
    if let Some(remote) = parts.extensions.get::<Arc<Remote>>() {
        request.extensions_mut().insert(Arc::clone(remote));
    }
    request
}

/// Waits for a leader, but not for ever.
struct Changes {
    standing: watch::Receiver<Standing>,
    /// Where the member stood when the leader was last looked for.
    seen: Standing,
    own: watch::Receiver<Option<Arc<Tenure>>>,
    until: Instant,
}

impl Changes {
    fn of(forwarder: &Forwarder) -> Self {
        let (standing, own) = (forwarder.standing.clone(), forwarder.own.changes());
        let seen = *standing.borrow();
        Self { standing, seen, own, until: Instant::now() + PATIENCE }
    }

    /// Waits until another try is worth it; returns false when there is no more time.
    async fn wait(&mut self) -> bool {
        let pause = Instant::now() + PAUSE;
        let seen = self.seen;
        // That there is another leader is seen at once; that it has come to lead, after the pause at the latest.
        let moved = self.standing.wait_for(|now| now.leader != seen.leader || now.leads != seen.leads);
        let change = async {
            tokio::select! {
                Ok(()) = moved.map_ok(drop) => {}
                Ok(()) = self.own.changed() => {}
                else => pending().await,
            }
        };
        let _changed = timeout_at(pause.min(self.until), change).await;
        self.seen = *self.standing.borrow();
        Instant::now() < self.until
    }
}
