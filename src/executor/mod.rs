//! HTTP calls on behalf of users: the one place from which the server calls addresses that users name.
//!
//! That makes it a boundary. A user must not reach, through the server, what only the server can reach: its own
//! machine, its network, its cloud's metadata service. So:
//!
//! - every address is checked against [`TargetPolicy`] before a connection is made to it, whether it stands in the URL
//!   or a name resolves to it, and the connection goes to the very address that was checked;
//! - no redirect is followed and no proxy of the environment is used: both lead where nobody checked;
//! - time, bytes and the number of calls under way are bounded, whatever the other side does.
//!
//! In reading order: [`AddressClass`], [`TargetPolicy`], the checked [`Resolve`]r, [`HttpExecutor`] here,
//! `hosts` (none takes all calls, and one that does not answer is left alone), and [`webhook`] (what is sent to
//! receivers, and what their answers mean).

mod address;
mod error;
mod hosts;
mod resolve;
mod target;
pub mod webhook;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use chrono::DateTime;
use http::header::{self, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub use address::AddressClass;
pub use error::CallError;
pub(crate) use hosts::{Admission, Call, Caller, Heard, Hosts, Party};
pub use resolve::{Resolve, SystemResolver};
pub use target::{AllowedTarget, InvalidTarget, MAX_URL_BYTES, RefusedTarget, TargetPolicy, TargetUrl};

use crate::clock::Timestamp;
use crate::outgoing;
use resolve::CheckedResolver;

/// How long an idle connection is kept, and how many for one host.
const IDLE: (Duration, usize) = (Duration::from_secs(15), 128);
/// The most characters of an answer that are kept to be shown.
const EXCERPT_CHARS: usize = 200;
/// Headers that control the connection or the framing. Only the client sets them, to prevent request smuggling.
const CARRIAGE: [HeaderName; 8] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// The limits of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest time to connect, including name resolution and the TLS handshake.
    pub connect_timeout: Duration,
    /// The longest time of a call, regardless of its own timeout.
    pub max_timeout: Duration,
    /// The most bytes of an answer's body that are read. The HTTP client limits its headers, to 100 and 408 KiB.
    pub max_answer_bytes: usize,
    /// The largest number of calls at once.
    pub max_concurrent: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            max_timeout: Duration::from_secs(60),
            max_answer_bytes: 64 * 1024,
            max_concurrent: 512,
        }
    }
}

/// An HTTP call.
#[derive(Clone, Debug)]
pub struct HttpCall {
    /// The method; any except `CONNECT` and `TRACE`.
    pub method: Method,
    /// The URL of the target.
    pub url: TargetUrl,
    /// The request's headers, except those that control the connection or the framing.
    pub headers: HeaderMap,
    /// The request's body.
    pub body: Bytes,
    /// The time until the answer must be complete; at most [`Limits::max_timeout`].
    pub timeout: Duration,
}

/// The answer to a call, with any status. A redirect is an answer like any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The HTTP status code.
    pub status: StatusCode,
    /// The `Retry-After` header, if there is one.
    pub retry_after: Option<RetryAfter>,
    /// The headers; none of an answer that another process has had ([`Deputy`]).
    pub headers: HeaderMap,
    /// The body as far as it was read. It is compressed if the server compressed it without a request to do so.
    pub body: Bytes,
    /// Whether the body was longer than [`Limits::max_answer_bytes`].
    pub truncated: bool,
    /// The duration of the call.
    pub took: Duration,
}

/// The `Retry-After` header (RFC 9110, section 10.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RetryAfter {
    /// The delay from now.
    In(Duration),
    /// The time of the next call.
    At(Timestamp),
}

impl RetryAfter {
    fn parse(value: &HeaderValue) -> Option<Self> {
        let text = value.to_str().ok()?.trim();
        if let Ok(seconds) = text.parse() {
            return Some(Self::In(Duration::from_secs(seconds)));
        }
        let time = DateTime::parse_from_rfc2822(text).ok()?;
        Some(Self::At(Timestamp::from_millis(time.timestamp_millis())))
    }
}

/// The error that the HTTP client could not be created on this machine.
#[derive(Debug, thiserror::Error)]
#[error("no HTTP client can be made: {0}")]
pub struct NoHttpClient(#[from] reqwest::Error);

/// Other processes that make calls in the place of this one.
#[async_trait]
pub trait Deputy: Send + Sync {
    /// Has a call made elsewhere, which was checked here. `None` when nothing was sent: then it is to be made here.
    async fn call(&self, call: &HttpCall) -> Option<Result<HttpAnswer, CallError>>;
}

/// Makes HTTP calls. Clones are cheap and share connections and limits.
#[derive(Clone)]
pub struct HttpExecutor {
    deputy: Option<Arc<dyn Deputy>>,
    http: reqwest::Client,
    policy: Arc<TargetPolicy>,
    limits: Limits,
    permits: Arc<Semaphore>,
}

impl HttpExecutor {
    /// Makes an executor that resolves names with the operating system.
    ///
    /// # Errors
    /// [`NoHttpClient`] when TLS cannot be set up.
    pub fn new(policy: TargetPolicy, limits: Limits) -> Result<Self, NoHttpClient> {
        Self::with_resolver(policy, limits, Arc::new(SystemResolver::default()))
    }

    /// Makes an executor that resolves names with `resolver`, and checks the addresses.
    ///
    /// # Errors
    /// [`NoHttpClient`] when TLS cannot be set up.
    pub fn with_resolver(
        policy: TargetPolicy,
        limits: Limits,
        resolver: Arc<dyn Resolve>,
    ) -> Result<Self, NoHttpClient> {
        let policy = Arc::new(policy);
        let (idle_timeout, idle_per_host) = IDLE;
        let http = outgoing::client()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .dns_resolver(Arc::new(CheckedResolver { resolver, policy: policy.clone() }))
            .connect_timeout(limits.connect_timeout)
            .pool_idle_timeout(idle_timeout)
            .pool_max_idle_per_host(idle_per_host)
            .http1_only()
            // An unpacked body could be far larger than the bytes that were sent.
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .build()?;
        let permits = Arc::new(Semaphore::new(limits.max_concurrent));
        Ok(Self { deputy: None, http, policy, limits, permits })
    }

    /// Returns an executor that has calls made by others where they can, and shares everything else with this one.
    #[must_use]
    pub fn with_deputy(self, deputy: Arc<dyn Deputy>) -> Self {
        Self { deputy: Some(deputy), ..self }
    }

    /// Returns an executor that makes so many calls at once, whatever calls this one makes.
    #[must_use]
    pub fn with_own_places(self, max_concurrent: usize) -> Self {
        let limits = Limits { max_concurrent, ..self.limits };
        Self { limits, permits: Arc::new(Semaphore::new(max_concurrent)), ..self }
    }

    /// Returns the limits of calls.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the policy for targets.
    #[must_use]
    pub fn policy(&self) -> &TargetPolicy {
        &self.policy
    }

    /// Makes one call, without retries. It waits for a free slot for at most the call's own timeout.
    ///
    /// # Errors
    /// [`CallError`] when there is no complete answer. An answer with any status is not an error.
    pub async fn call(&self, call: &HttpCall) -> Result<HttpAnswer, CallError> {
        // The client asks its resolver for names only, so an address in the URL is checked here or nowhere.
        self.policy.check(&call.url)?;
        check_form(call)?;
        if let Some(deputy) = &self.deputy
            && let Some(outcome) = deputy.call(call).await
        {
            return outcome;
        }
        let timeout = call.timeout.min(self.limits.max_timeout);
        let turn = tokio::time::timeout(timeout, self.permits.acquire()).await;
        let Ok(Ok(_permit)) = turn else { return Err(CallError::Busy) };
        tokio::time::timeout(timeout, self.exchange(call)).await.unwrap_or(Err(CallError::TimedOut(timeout)))
    }

    async fn exchange(&self, call: &HttpCall) -> Result<HttpAnswer, CallError> {
        let started = Instant::now();
        let request = self.http.request(call.method.clone(), call.url.url());
        let request = request.headers(call.headers.clone()).body(call.body.clone());
        let mut response = request.send().await.map_err(|error| CallError::of(&error))?;
        let status = response.status();
        let headers = std::mem::take(response.headers_mut());
        let retry_after = headers.get(RETRY_AFTER).and_then(RetryAfter::parse);
        let (body, truncated) = self.read_body(&mut response).await?;
        Ok(HttpAnswer { status, retry_after, headers, body, truncated, took: started.elapsed() })
    }

    /// Reads the body up to the limit, and returns whether it was longer.
    async fn read_body(&self, response: &mut reqwest::Response) -> Result<(Bytes, bool), CallError> {
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| CallError::of(&error))? {
            let room = self.limits.max_answer_bytes - body.len();
            body.extend_from_slice(&chunk[..room.min(chunk.len())]);
            if chunk.len() > room {
                return Ok((body.freeze(), true));
            }
        }
        Ok((body.freeze(), false))
    }
}

/// Returns the answer to a call as one line of text, with what `shown` leaves of its body.
pub(crate) fn excerpt(answer: &Result<HttpAnswer, CallError>, shown: impl FnOnce(&str) -> String) -> String {
    match answer {
        Ok(answer) => {
            let body = shown(&String::from_utf8_lossy(&answer.body));
            let body: String = body.chars().filter(|letter| !letter.is_control()).take(EXCERPT_CHARS).collect();
            format!("{} {body}", answer.status).trim_end().to_owned()
        }
        Err(error) => error.to_string(),
    }
}

/// Returns whether a header controls the connection or the framing, so that no caller may set it.
#[must_use]
pub fn is_carriage(name: &HeaderName) -> bool {
    CARRIAGE.contains(name)
}

fn check_form(call: &HttpCall) -> Result<(), CallError> {
    if matches!(call.method, Method::CONNECT | Method::TRACE) {
        return Err(CallError::Unsendable(format!("the method {} is not for calls like these", call.method)));
    }
    match CARRIAGE.iter().find(|name| call.headers.contains_key(*name)) {
        Some(name) => Err(CallError::Unsendable(format!("the header {name} is not the caller's to set"))),
        None => Ok(()),
    }
}

impl fmt::Debug for HttpExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpExecutor").field("policy", &self.policy).field("limits", &self.limits).finish()
    }
}
