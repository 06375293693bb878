//! Calls of users' addresses that one member of a group makes for another: the leader decides what is called, and all
//! members call in turn.
//!
//! A call is made by the leader itself when the member that it was given to has certainly sent nothing: it cannot be
//! reached, knows no such calls, or cannot reach the target. Whether it was carried out when that member's answer does
//! not come is as unknown as with a target whose answer does not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::members::may_be_earlier;
use super::{ClusterMap, PeerCall, Signer};
use crate::executor::{
    CallError, Deputy, HttpAnswer, HttpCall, HttpExecutor, Limits, NoHttpClient, RetryAfter, TargetPolicy, TargetUrl,
};
use crate::store::Member;

/// The path, below a member's address, of a call that it is to make for another one.
pub const CALLS_PATH: &str = "/cluster/calls";

/// The longest body of such a call, in bytes. A longer one the leader makes itself.
pub const MAX_CALL_BYTES: usize = 4 * 1024 * 1024;

/// The most bytes that the answer of a member has beside the body of the target's.
const MAX_OVERHEAD: usize = 1024;
/// How long another member has for its answer beyond what the call itself may take.
const MARGIN: Duration = Duration::from_secs(2);
/// How long connecting to another member may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a member is given no calls that has not made one.
const REST: Duration = Duration::from_secs(10);
/// A member that was not heard of for so long is given no calls.
const SILENT: Duration = Duration::from_secs(3);

/// A call that a member makes for another one. On the way it is in the `postcard` format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedCall {
    /// The name of the cluster that both belong to.
    pub cluster: String,
    /// The number of the member that is to make the call.
    pub to: u64,
    method: String,
    url: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    timeout: Duration,
}

/// What has come of such a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Passed {
    /// The target has answered.
    Answered {
        /// The HTTP status code.
        status: u16,
        /// When to call again, if the target says so.
        retry_after: Option<RetryAfter>,
        /// The body as far as it was read.
        body: Vec<u8>,
        /// Whether the body was longer.
        truncated: bool,
        /// The duration of the call.
        took: Duration,
    },
    /// Nothing was sent to the target.
    NotSent,
    /// The answer was not complete within this time.
    TimedOut(Duration),
    /// The answer broke off.
    Broken(String),
}

/// Why a body is not such a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the call cannot be read")]
pub struct InvalidCall;

impl PassedCall {
    fn new(cluster: &str, to: u64, call: &HttpCall) -> Self {
        let header = |(name, value): (&HeaderName, &HeaderValue)| (name.to_string(), value.as_bytes().to_vec());
        Self {
            cluster: cluster.to_owned(),
            to,
            method: call.method.to_string(),
            url: call.url.as_str().to_owned(),
            headers: call.headers.iter().map(header).collect(),
            body: call.body.to_vec(),
            timeout: call.timeout,
        }
    }

    /// Reads the body of a call to [`CALLS_PATH`].
    ///
    /// # Errors
    /// [`InvalidCall`] when it has another form.
    pub fn decode(body: &[u8]) -> Result<Self, InvalidCall> {
        postcard::from_bytes(body).map_err(|_| InvalidCall)
    }

    /// Makes the call with this executor, and returns what has come of it.
    ///
    /// # Errors
    /// [`InvalidCall`] when it is none that can be made.
    pub async fn make(self, executor: &HttpExecutor) -> Result<Passed, InvalidCall> {
        let mut headers = HeaderMap::with_capacity(self.headers.len());
        for (name, value) in self.headers {
            let name = HeaderName::try_from(name).map_err(|_| InvalidCall)?;
            headers.append(name, HeaderValue::try_from(value).map_err(|_| InvalidCall)?);
        }
        let call = HttpCall {
            method: Method::from_bytes(self.method.as_bytes()).map_err(|_| InvalidCall)?,
            url: TargetUrl::parse(&self.url).map_err(|_| InvalidCall)?,
            headers,
            body: self.body.into(),
            timeout: self.timeout,
        };
        Ok(Passed::of(executor.call(&call).await))
    }
}

impl Passed {
    fn of(outcome: Result<HttpAnswer, CallError>) -> Self {
        match outcome {
            Ok(HttpAnswer { status, retry_after, body, truncated, took, .. }) => {
                Self::Answered { status: status.as_u16(), retry_after, body: body.into(), truncated, took }
            }
            Err(CallError::TimedOut(after)) => Self::TimedOut(after),
            Err(CallError::Broken(why)) => Self::Broken(why),
            Err(
                CallError::Refused(_)
                | CallError::Unsendable(_)
                | CallError::Unresolvable { .. }
                | CallError::Unreachable(_)
                | CallError::NoTls(_)
                | CallError::Busy,
            ) => Self::NotSent,
        }
    }

    /// Returns the body of the answer that brings it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        postcard::to_stdvec(self).expect("numbers and bytes can be written").into()
    }

    /// Returns the outcome for who has asked for the call; `None` when nothing was sent.
    fn outcome(self) -> Option<Result<HttpAnswer, CallError>> {
        Some(match self {
            Self::NotSent => return None,
            Self::TimedOut(after) => Err(CallError::TimedOut(after)),
            Self::Broken(why) => Err(CallError::Broken(why)),
            Self::Answered { status, retry_after, body, truncated, took } => match StatusCode::from_u16(status) {
                Ok(status) => {
                    let headers = HeaderMap::new();
                    Ok(HttpAnswer { status, retry_after, headers, body: body.into(), truncated, took })
                }
                Err(_) => Err(CallError::Broken(format!("the status {status}"))),
            },
        })
    }
}

/// Gives calls to the members of a group in turn, this one among them.
pub struct Deputies {
    member: Arc<dyn Member>,
    map: ClusterMap,
    signer: Signer,
    http: HttpExecutor,
    turn: AtomicUsize,
    /// The members that have not made a call, and when that was.
    resting: Mutex<BTreeMap<u64, Instant>>,
}

impl Deputies {
    /// Makes what gives calls to the other members of this one's group. `limits` are those of the calls themselves.
    ///
    /// # Errors
    /// [`NoHttpClient`] when TLS cannot be set up.
    pub fn new(member: Arc<dyn Member>, map: ClusterMap, signer: Signer, limits: Limits) -> Result<Self, NoHttpClient> {
        // Members are most often in a private network.
        let policy = TargetPolicy { allow_private: true, allow: Vec::new() };
        let limits = Limits {
            connect_timeout: CONNECT_TIMEOUT,
            max_timeout: limits.max_timeout + MARGIN,
            max_answer_bytes: limits.max_answer_bytes + MAX_OVERHEAD,
            // Each of the others bounds what it does itself.
            max_concurrent: Semaphore::MAX_PERMITS,
        };
        let http = HttpExecutor::new(policy, limits)?;
        Ok(Self { member, map, signer, http, turn: AtomicUsize::new(0), resting: Mutex::default() })
    }

    /// Returns the member whose turn it is and where it is reached; `None` when that is this one.
    fn next(&self) -> Option<(u64, Arc<str>)> {
        let heard = self.member.heard();
        let now = Instant::now();
        let is_there = |number: &u64| heard.get(number).is_some_and(|heard| heard.ago < SILENT);
        let mut able: Vec<(u64, Arc<str>)> = {
            let mut resting = self.resting.lock();
            resting.retain(|_, since| now.duration_since(*since) < REST);
            let members = Arc::clone(&self.member.members().borrow());
            let others = members.seats.keys().filter(|number| is_there(number) && !resting.contains_key(number));
            let address = |number: &u64| Some((*number, self.map.proved_address(*number, &*self.member)?));
            others.filter_map(address).collect()
        };
        let place = self.turn.fetch_add(1, Ordering::Relaxed) % (able.len() + 1);
        (place < able.len()).then(|| able.swap_remove(place))
    }

    /// Has a member make a call; `Err` says why it has certainly sent nothing.
    async fn pass(&self, to: u64, address: &str, call: &HttpCall) -> Result<Result<HttpAnswer, CallError>, String> {
        let url = format!("{address}{CALLS_PATH}");
        let url = TargetUrl::parse(&url).map_err(|error| format!("its address {error}"))?;
        let body = postcard::to_stdvec(&PassedCall::new(&self.map.cluster, to, call));
        let body: Bytes = body.map_err(|error| error.to_string())?.into();
        if body.len() > MAX_CALL_BYTES {
            return Err("the call is too long to be passed on".to_owned());
        }
        let send = |mut headers: HeaderMap, body| {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            let (url, timeout) = (url.clone(), call.timeout + MARGIN);
            async move { self.http.call(&HttpCall { method: Method::POST, url, headers, body, timeout }).await }
        };
        let signed = PeerCall {
            address,
            receiver: &self.map.name(to),
            path: CALLS_PATH,
            body: &body,
            may_be_earlier: may_be_earlier(&*self.member, to),
        };
        match self.signer.call(&signed, send).await {
            Ok(answer) if answer.status == StatusCode::OK => match postcard::from_bytes::<Passed>(&answer.body) {
                Ok(passed) => passed.outcome().ok_or_else(|| "it cannot reach the target".to_owned()),
                Err(_) => Ok(Err(CallError::Broken(format!("the answer of member {to} cannot be read")))),
            },
            // Somebody may have sent it before, and then it was made.
            Ok(answer) if answer.status == StatusCode::BAD_REQUEST => {
                Ok(Err(CallError::Broken(format!("member {to} has refused the call, and may have made it before"))))
            }
            Ok(answer) => Err(format!("it answers {}", answer.status.as_u16())),
            Err(error @ (CallError::TimedOut(_) | CallError::Broken(_))) => Ok(Err(error)),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[async_trait]
impl Deputy for Deputies {
    async fn call(&self, call: &HttpCall) -> Option<Result<HttpAnswer, CallError>> {
        let (to, address) = self.next()?;
        match self.pass(to, &address, call).await {
            Ok(outcome) => Some(outcome),
            Err(why) => {
                tracing::debug!(member = to, why, "a member has not made a call, and this one makes it");
                self.resting.lock().insert(to, Instant::now());
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_of_a_call_is_passed_back_unless_nothing_was_sent() {
        let answer = HttpAnswer {
            status: StatusCode::TOO_MANY_REQUESTS,
            retry_after: Some(RetryAfter::In(Duration::from_secs(3))),
            headers: HeaderMap::new(),
            body: Bytes::from_static(b"later"),
            truncated: true,
            took: Duration::from_millis(7),
        };
        let back = |outcome: Result<HttpAnswer, CallError>| {
            let passed: Passed = postcard::from_bytes(&Passed::of(outcome).encode()).expect("readable");
            passed.outcome()
        };
        for outcome in [
            Ok(answer),
            Err(CallError::TimedOut(Duration::from_secs(1))),
            Err(CallError::Broken("it ended".to_owned())),
        ] {
            assert_eq!(back(outcome.clone()), Some(outcome));
        }
        for nothing_sent in [CallError::Busy, CallError::Unreachable(String::new())] {
            assert_eq!(back(Err(nothing_sent)), None);
        }
    }
}
