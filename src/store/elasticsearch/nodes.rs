//! Requests to the cluster: which node gets one, how long it may take, and what is tried again.
//!
//! The official client sends a request to one node and returns the outcome; it has no dead nodes, no deadline and no
//! retries. So there is one client for each node, and the rest is here. Every request may be sent again: a read changes
//! nothing, and every write is conditional and named, so that sending it twice is as good as once. What a caller must
//! know is whether an earlier try may have arrived: [`Reply::maybe_repeated`], [`CallError::maybe_received`].

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use elasticsearch::auth::Credentials;
use elasticsearch::cert::{Certificate, CertificateValidation};
use elasticsearch::http::headers::{ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use elasticsearch::http::transport::{SingleNodeConnectionPool, Transport, TransportBuilder};
use elasticsearch::http::{Method, Url};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use super::fault;
use super::health::{Health, pick};
use super::query_time;
use crate::store::StoreError;

/// The first wait before a request is sent again, doubled with every further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// The longest wait.
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);
/// The content type of most requests.
const JSON: &str = "application/json";
/// How much of an error's body goes into a message, in bytes.
const MAX_REASON: usize = 500;

/// A request that any node can answer.
#[derive(Clone, Debug)]
pub(super) struct Request {
    method: Method,
    path: String,
    body: Option<Bytes>,
    content_type: &'static str,
    /// Whether the request takes as long as what it asks for, so that a slow answer says nothing of the node.
    is_search: bool,
    /// How long a node may take to answer; `None` for as long as it may for most requests.
    patience: Option<Duration>,
}

impl Request {
    fn new(method: Method, path: String, body: Option<Bytes>) -> Self {
        Self { method, path, body, content_type: JSON, is_search: false, patience: None }
    }

    /// Creates a request without a body. `path` includes the query.
    pub(super) fn get(path: String) -> Self {
        Self::new(Method::Get, path, None)
    }

    /// Creates a request that posts an empty body.
    pub(super) fn command(path: String) -> Self {
        Self::new(Method::Post, path, None)
    }

    /// Creates a request that puts a JSON body, or an empty one.
    pub(super) fn put(path: String, body: Option<&Value>) -> Self {
        Self::new(Method::Put, path, body.map(|body| body.to_string().into()))
    }

    /// Creates a request that deletes the resource at its path.
    pub(super) fn delete(path: String) -> Self {
        Self::new(Method::Delete, path, None)
    }

    /// Creates a request that posts a JSON body.
    pub(super) fn post(path: String, body: impl Into<Bytes>) -> Self {
        Self::new(Method::Post, path, Some(body.into()))
    }

    /// Creates a search, which posts a JSON body.
    pub(super) fn search(path: String, body: Bytes) -> Self {
        Self { is_search: true, ..Self::post(path, body) }
    }

    /// Creates a request that posts lines of JSON.
    pub(super) fn lines(path: String, body: Bytes) -> Self {
        Self { content_type: "application/x-ndjson", ..Self::post(path, body) }
    }

    /// Lets a node take this long to answer the request.
    pub(super) fn with_patience(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }
}

/// An answer of any status except those after which a request is tried again.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Bytes,
    /// Whether an earlier try of the same request may have arrived too.
    pub(super) maybe_repeated: bool,
}

impl Reply {
    /// Returns whether the request was refused because the resource exists already, as when several processes start at
    /// once.
    pub(super) fn is_there_already(&self) -> bool {
        self.status == 400 && String::from_utf8_lossy(&self.body).contains("resource_already_exists_exception")
    }

    /// Returns whether the server ended a search because its time was over.
    pub(super) fn is_out_of_time(&self) -> bool {
        self.status >= 400 && query_time::is_over(&self.body)
    }

    /// Returns the body of a successful answer.
    ///
    /// # Errors
    /// [`StoreError::OutOfOrder`] when an index is at fault; otherwise [`StoreError::Unavailable`].
    pub(super) fn body(self) -> Result<Bytes, StoreError> {
        let fault = fault::of_answer(self.status, &self.body);
        self.success().map_err(|why| fault.map_or(StoreError::Unavailable(why), StoreError::from))
    }

    /// Returns the body of a successful answer.
    ///
    /// # Errors
    /// A message that describes an unsuccessful answer.
    pub(super) fn success(self) -> Result<Bytes, String> {
        if (200..300).contains(&self.status) { Ok(self.body) } else { Err(reason(self.status, &self.body)) }
    }
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) struct CallError {
    /// A message on the outcome of the last try.
    pub(super) message: String,
    /// Whether a try may have arrived.
    pub(super) maybe_received: bool,
    /// Whether [`Nodes::call`] ended with a node that did not answer in time.
    pub(super) is_silence: bool,
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        Self::Unavailable(error.message)
    }
}

/// Returns a message on an answer that reports an error.
pub(super) fn reason(status: u16, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(MAX_REASON)]);
    format!("HTTP {status}: {}", text.trim())
}

/// The settings for access to the nodes.
pub(super) struct Access {
    pub(super) credentials: Option<Credentials>,
    /// The certificate (PEM) of the private authority that signed the nodes' certificates.
    pub(super) certificate_authority: Option<Vec<u8>>,
    pub(super) request_timeout: Duration,
}

/// The nodes of the cluster.
#[derive(Debug)]
pub(super) struct Nodes {
    clients: Vec<Client>,
    health: Mutex<Vec<Health>>,
    turn: AtomicUsize,
    request_timeout: Duration,
}

#[derive(Debug)]
struct Client {
    /// The node's host and port, for messages.
    name: String,
    transport: Transport,
}

/// The outcome of one try.
enum Try {
    Answered(Reply),
    /// The request was not done and is worth another try. Holds the reason.
    NotDone(String),
    /// The request may have been done and is worth another try. Holds the reason.
    Unknown(String),
    /// As [`Try::Unknown`], since the node has not answered in time.
    Silent(String),
}

impl Nodes {
    /// Makes a client for each of `urls`, each with credentials of its own if it has any.
    pub(super) fn new(urls: Vec<(Url, Option<Credentials>)>, access: &Access) -> Result<Self, String> {
        let clients = urls
            .into_iter()
            .map(|(url, own)| Client::new(url, own, access))
            .collect::<Result<Vec<Client>, String>>()?;
        if clients.is_empty() {
            return Err("no address is given".to_owned());
        }
        let health = Mutex::new(vec![Health::default(); clients.len()]);
        Ok(Self { clients, health, turn: AtomicUsize::new(0), request_timeout: access.request_timeout })
    }

    /// Sends `request` until a node answers it or `deadline` has come.
    pub(super) async fn call(&self, request: &Request, deadline: Instant) -> Result<Reply, CallError> {
        let mut backoff = ExponentialBuilder::default()
            .with_min_delay(FIRST_BACKOFF)
            .with_max_delay(LONGEST_BACKOFF)
            .without_max_times()
            .with_jitter()
            .build();
        let mut maybe_received = false;
        let mut tries = 0_usize;
        loop {
            let tried = self.call_once(request, deadline).await;
            let is_silence = matches!(tried, Try::Silent(_));
            let message = match tried {
                Try::Answered(reply) => return Ok(Reply { maybe_repeated: maybe_received, ..reply }),
                Try::NotDone(message) => message,
                Try::Unknown(message) | Try::Silent(message) => {
                    maybe_received = true;
                    message
                }
            };
            tries += 1;
            // Another live node is tried at once; only a whole failed round is followed by a wait.
            let wait = if tries.is_multiple_of(self.clients.len()) || !self.any_live() {
                backoff.next().unwrap_or(LONGEST_BACKOFF)
            } else {
                Duration::ZERO
            };
            if Instant::now() + wait >= deadline {
                return Err(CallError { message, maybe_received, is_silence });
            }
            sleep(wait).await;
        }
    }

    /// Sends `request` to one node after the other, as many tries as there are nodes, until one answers.
    ///
    /// # Errors
    /// [`CallError`] when no node gave a final answer.
    pub(super) async fn try_call(&self, request: &Request, deadline: Instant) -> Result<Reply, CallError> {
        let mut failed = CallError { message: String::new(), maybe_received: false, is_silence: false };
        for _ in 0..self.clients.len() {
            match self.call_once(request, deadline).await {
                Try::Answered(reply) => return Ok(Reply { maybe_repeated: failed.maybe_received, ..reply }),
                Try::NotDone(message) => failed.message = message,
                Try::Unknown(message) | Try::Silent(message) => {
                    failed = CallError { message, maybe_received: true, ..failed };
                }
            }
        }
        Err(failed)
    }

    /// Sends `request` as [`Nodes::call`] does and returns the body of a successful answer.
    pub(super) async fn body(&self, request: &Request, deadline: Instant) -> Result<Bytes, StoreError> {
        self.call(request, deadline).await?.body()
    }

    /// Sends `request` as [`Nodes::call`] does and parses the body of a successful answer as JSON.
    pub(super) async fn json(&self, request: &Request, deadline: Instant) -> Result<Value, StoreError> {
        let body = self.body(request, deadline).await?;
        serde_json::from_slice(&body).map_err(|error| StoreError::Unavailable(format!("not an answer: {error}")))
    }

    /// Creates a resource that may exist already, as when several processes start at once. Returns whether it was
    /// missing.
    pub(super) async fn make(&self, request: &Request, deadline: Instant) -> Result<bool, StoreError> {
        let reply = self.call(request, deadline).await?;
        if reply.is_there_already() {
            return Ok(false);
        }
        let path = &request.path;
        let refused = |why| StoreError::Unavailable(format!("`{path}` cannot be made ({why})"));
        reply.success().map(|_| true).map_err(refused)
    }

    fn any_live(&self) -> bool {
        self.health.lock().iter().any(Health::is_live)
    }

    async fn call_once(&self, request: &Request, deadline: Instant) -> Try {
        if Instant::now() >= deadline {
            // A process that was paused must not do now what it meant to do then.
            return Try::NotDone("there was no time left to send it".to_owned());
        }
        let index = pick(&mut self.health.lock(), self.turn.fetch_add(1, Ordering::Relaxed), std::time::Instant::now());
        let client = &self.clients[index];
        let until = deadline.min(Instant::now() + request.patience.unwrap_or(self.request_timeout));
        let (outcome, fault) = match timeout_at(until, client.send(request)).await {
            Ok(Ok(reply)) => judge(&client.name, reply),
            Ok(Err(error)) => (failure(&client.name, &error), true),
            // With less than its full time, or asked for much, a node that did not answer is not to blame.
            Err(_) => {
                let is_to_blame = until < deadline && !request.is_search;
                (Try::Silent(format!("{}: no answer in time", client.name)), is_to_blame)
            }
        };
        let mut health = self.health.lock();
        match &outcome {
            Try::NotDone(message) | Try::Unknown(message) | Try::Silent(message) if fault => {
                metrics::counter!("leasehold_store_node_failures_total").increment(1);
                if health[index].failed(std::time::Instant::now()) {
                    tracing::warn!(node = client.name, "a node of the store has failed: {message}");
                }
            }
            Try::Answered(_) if health[index].answered() => {
                tracing::info!(node = client.name, "a node of the store answers again");
            }
            Try::Answered(_) | Try::NotDone(_) | Try::Unknown(_) | Try::Silent(_) => {}
        }
        outcome
    }
}

/// Returns the outcome that an answer's status means, and whether the node is to blame.
fn judge(node: &str, reply: Reply) -> (Try, bool) {
    let message = |reply: &Reply| format!("{node}: {}", reason(reply.status, &reply.body));
    match reply.status {
        // What an index's state forbids, it forbids on every node and every time.
        429 if fault::of_answer(429, &reply.body).is_some() => (Try::Answered(reply), false),
        // What the server had not found in the time that it was given, it has not found in as much time again.
        429 | 502..=504 if reply.is_out_of_time() => (Try::Answered(reply), false),
        // The node rejected the request before doing anything.
        429 => (Try::NotDone(message(&reply)), false),
        // A search without its shards: every node would say the same.
        503 if lacks_shards(&reply.body) => (Try::Unknown(message(&reply)), false),
        // The answer came from a proxy that may have passed the request on, or by a node that has lost its cluster.
        502..=504 => (Try::Unknown(message(&reply)), true),
        _ => (Try::Answered(reply), false),
    }
}

/// Returns whether an answer reports that a search found no copy of a shard, as in an index created a moment ago.
fn lacks_shards(body: &[u8]) -> bool {
    const SAYS: &[u8] = b"search_phase_execution_exception";
    body.windows(SAYS.len()).any(|part| part == SAYS)
}

/// Returns the outcome of a failed try: a connection that was never established carried nothing.
fn failure(node: &str, error: &elasticsearch::Error) -> Try {
    let cause = std::error::Error::source(error);
    let sent = cause
        .and_then(|cause| cause.downcast_ref::<reqwest::Error>())
        .is_none_or(|error| !error.is_connect() && !error.is_builder());
    let message = format!("{node}: {}", chain(error));
    if sent { Try::Unknown(message) } else { Try::NotDone(message) }
}

/// Returns the innermost causes of an error, which describe what went wrong; the outer ones repeat the address.
fn chain(error: &dyn std::error::Error) -> String {
    let mut causes = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        causes.push(error.to_string());
        next = error.source();
    }
    causes.dedup();
    let inner = causes.len().saturating_sub(2);
    causes.split_off(inner).join(": ")
}

impl Client {
    fn new(mut url: Url, own: Option<Credentials>, access: &Access) -> Result<Self, String> {
        let name = match (url.host_str(), url.port_or_known_default()) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            _ => return Err("an address needs a host, as in http://localhost:9200".to_owned()),
        };
        // Credentials must not be in the address any more: they would be sent a second time.
        let cleared = url.set_username("").and_then(|()| url.set_password(None));
        cleared.map_err(|()| format!("{name}: credentials cannot be taken out of the address"))?;
        let mut builder = TransportBuilder::new(SingleNodeConnectionPool::new(url))
            // The nodes are near; packing and unpacking would cost more than it saves.
            .header(ACCEPT_ENCODING, HeaderValue::from_static("identity"))
            .enable_meta_header(false)
            .disable_proxy();
        if let Some(credentials) = own.or_else(|| access.credentials.clone()) {
            builder = builder.auth(credentials);
        }
        if let Some(pem) = &access.certificate_authority {
            let authority = Certificate::from_pem(pem)
                .map_err(|error| format!("the authority's certificate cannot be read as PEM ({error})"))?;
            builder = builder.cert_validation(CertificateValidation::Full(authority));
        }
        let transport = builder.build().map_err(|error| format!("{name}: {error}"))?;
        Ok(Self { name, transport })
    }

    async fn send(&self, request: &Request) -> Result<Reply, elasticsearch::Error> {
        let mut headers = HeaderMap::with_capacity(1);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(request.content_type));
        let body = request.body.clone();
        let response = self.transport.send(request.method, &request.path, headers, None::<&()>, body, None).await?;
        let status = response.status_code().as_u16();
        Ok(Reply { status, body: response.bytes().await?, maybe_repeated: false })
    }
}

#[cfg(test)]
mod tests;
