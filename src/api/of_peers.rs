//! The calls of other processes that have the same secret: each is looked at before anything of its body is read.
//!
//! A call with a signed head is read at the expense of its sender, which has a budget of its own. One of a process
//! whose version signs no heads can be looked at only when its body is whole: where such calls still count, all of them
//! together have a small budget, and little time. So nobody who lacks the secret takes anything from those who have it,
//! or from clients.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

use super::body::{Buffer, Pace, Read, announced, data_of, refuse_compression};
use super::budget::{Budget, Holder, Share, Sharing};
use super::error::{ApiError, Code};
use super::remote::Remote;
use crate::clock::Clock;
use crate::executor::webhook::signature::WEBHOOK_SIGNATURE;
use crate::peers::{
    CLOCK, Gate, HEAD, HINTS_PATH, Head, MAX_HINTS_BYTES, OPENING, PROOF, PeerClient, Refused, WORKERS_PATH,
    clock_value,
};

/// How long a body may take that is signed as earlier versions do, and how much longer for each MiB of it that has
/// come: as long as those versions wait.
const EARLIER_WITHIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(1));

/// A call that other processes make.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerRoute {
    /// The path of the call.
    pub(super) path: &'static str,
    /// The longest body, in bytes.
    pub(super) max_bytes: usize,
    /// The most bytes of bodies of one sender that are held at once.
    pub(super) budget: usize,
}

/// The calls with hints of another manager, which makes four at once.
pub(super) const HINTS: PeerRoute =
    PeerRoute { path: HINTS_PATH, max_bytes: MAX_HINTS_BYTES, budget: 4 * MAX_HINTS_BYTES };
/// The calls that only ask.
pub(super) const QUESTIONS: PeerRoute = PeerRoute { path: WORKERS_PATH, max_bytes: 4 * 1024, budget: 1 << 20 };

/// What the calls of other processes are read with.
pub(super) struct OfPeers {
    gate: Arc<Gate>,
    clock: Arc<dyn Clock>,
    /// The time in which a body with a signed head has to bring another part.
    within: Duration,
    /// The budgets by path and sender. Only who has the secret gets one.
    budgets: Mutex<HashMap<(&'static str, String), Budget>>,
    /// The budgets of all bodies that are signed as earlier versions do, by path.
    earlier: HashMap<&'static str, Budget>,
}

impl OfPeers {
    /// Makes what reads the calls of these routes.
    pub(super) fn new(gate: Arc<Gate>, clock: Arc<dyn Clock>, within: Duration, routes: &[PeerRoute]) -> Self {
        let earlier = routes.iter().map(|route| (route.path, budget(route.max_bytes))).collect();
        Self { gate, clock, within, budgets: Mutex::default(), earlier }
    }

    /// Makes what reads the calls of the other managers of a store.
    pub(super) fn of_managers(peers: &PeerClient, within: Duration) -> Self {
        Self::new(Arc::clone(peers.gate()), Arc::clone(peers.clock()), within, &[HINTS, QUESTIONS])
    }

    /// Reads the body of a call that another process has signed. `takes_earlier` returns how long a body may be that
    /// is signed as earlier versions do; 0 where none counts.
    pub(super) async fn read(
        &self,
        request: Request,
        route: &PeerRoute,
        takes_earlier: impl FnOnce() -> usize,
    ) -> Result<Read, ApiError> {
        let (parts, body) = request.into_parts();
        if !parts.headers.contains_key(HEAD) && parts.headers.contains_key(WEBHOOK_SIGNATURE) {
            let max_bytes = takes_earlier().min(route.max_bytes);
            if max_bytes > 0 {
                return self.read_earlier(&parts, body, route.path, max_bytes).await;
            }
        }
        let head = self.gate.take(&parts.method, route.path, &parts.headers).map_err(|why| refused(&why))?;
        if let Some(remote) = parts.extensions.get::<Arc<Remote>>() {
            remote.known();
        }
        refuse_compression(&parts)?;
        let length = usize::try_from(head.length).unwrap_or(usize::MAX);
        if length > route.max_bytes {
            return Err(too_large(route.max_bytes));
        }
        if announced(&parts).is_some_and(|announced| announced != length) {
            return Err(another_body());
        }
        let share = self.budget_of(&head.sender, route).take(&Holder::Process, length)?;
        read_signed(body, &head, share, self.within).await
    }

    /// Returns the answer to a call, with the time by this process's clock; of one that was not trusted, with what its
    /// head is to be signed for.
    pub(super) fn answer(&self, answer: Result<Response, ApiError>) -> Response {
        let mut answer = answer.unwrap_or_else(IntoResponse::into_response);
        if answer.status().is_success() {
            answer.headers_mut().insert(CLOCK, clock_value(self.clock.wall()));
        }
        if answer.status() == StatusCode::UNAUTHORIZED {
            answer.headers_mut().insert(OPENING, self.gate.opening());
        }
        answer
    }

    /// Returns the answer to a call that proves to its sender that this process has the secret; `head` is that of the
    /// call, if it had one.
    pub(super) fn answer_and_prove(&self, head: Option<&HeaderValue>, answer: Result<Response, ApiError>) -> Response {
        let mut answer = self.answer(answer);
        if let Some(head) = head.filter(|_| answer.status().is_success()) {
            answer.headers_mut().insert(PROOF, self.gate.proof(head));
        }
        answer
    }

    fn budget_of(&self, sender: &str, route: &PeerRoute) -> Budget {
        let mut budgets = self.budgets.lock();
        if let Some(budget) = budgets.get(&(route.path, sender.to_owned())) {
            return budget.clone();
        }
        // Bounded by those who call at this moment.
        budgets.retain(|_, budget| budget.is_in_use());
        let budget = budget(route.budget);
        budgets.insert((route.path, sender.to_owned()), budget.clone());
        budget
    }

    /// Reads a body that is signed itself.
    async fn read_earlier(
        &self,
        parts: &Parts,
        mut body: Body,
        path: &'static str,
        max_bytes: usize,
    ) -> Result<Read, ApiError> {
        refuse_compression(parts)?;
        // Earlier versions say how long a body is.
        let Some(length) = announced(parts) else {
            return Err(ApiError::new(Code::MalformedRequest, "the call must say how long its body is"));
        };
        if length > max_bytes {
            return Err(too_large(max_bytes));
        }
        let budget = self.earlier.get(path).ok_or_else(|| refused(&Refused::NoHead))?;
        let mut buffer = Buffer::new(budget.take(&Holder::Process, 0)?, length);
        let (begun, (least, for_each_mib)) = (Instant::now(), EARLIER_WITHIN);
        // Bounded by the length and the deadline.
        loop {
            let within = least + for_each_mib * u32::try_from(buffer.len() >> 20).unwrap_or(u32::MAX);
            let frame = timeout_at(begun + within, body.frame()).await.map_err(|_| stalled())?;
            let Some(data) = data_of(frame)? else { break };
            if buffer.len() + data.len() > length {
                return Err(another_body());
            }
            buffer.add(&data)?;
        }
        let read = buffer.into_read();
        let verified = self.gate.secret().verify(&parts.headers, &read.bytes, self.clock.now());
        verified.map_err(|why| {
            ApiError::new(Code::Unauthorized, format!("the call is not one of another server: {why}"))
        })?;
        Ok(read)
    }
}

/// Makes a budget of one sender, or of all that are of an earlier version.
fn budget(bytes: usize) -> Budget {
    Budget::new("members", "bytes of calls of servers", bytes, &Sharing::Parts(1))
}

/// Reads the body that a head is signed for, and no more.
async fn read_signed(mut body: Body, head: &Head, share: Share, within: Duration) -> Result<Read, ApiError> {
    let mut buffer = Buffer::new(share, usize::try_from(head.length).unwrap_or(usize::MAX));
    let (mut pace, mut hash) = (Pace::new(within), Sha256::new());
    // Bounded by the signed length and the pace.
    while let Some(data) = pace.next(&mut body).await? {
        if (buffer.len() + data.len()) as u64 > head.length {
            return Err(another_body());
        }
        hash.update(&data);
        buffer.add(&data)?;
    }
    let is_signed = buffer.len() as u64 == head.length && <[u8; 32]>::from(hash.finalize()) == head.sha256;
    if is_signed { Ok(buffer.into_read()) } else { Err(another_body()) }
}

fn too_large(max_bytes: usize) -> ApiError {
    ApiError::new(Code::BodyTooLarge, format!("the body must have at most {max_bytes} bytes"))
}

fn stalled() -> ApiError {
    ApiError::new(Code::BodyStalled, "the body did not arrive in time")
}

/// Returns the refusal of a body that is not the one that the head was signed for.
fn another_body() -> ApiError {
    ApiError::new(Code::MalformedRequest, "the body is not the one that the call was signed for")
}

fn refused(why: &Refused) -> ApiError {
    if let Refused::Receiver(name) = why {
        let detail = format!(
            "the call is for {name}, and this is another one: the addresses in `--peers` are not the same everywhere"
        );
        return ApiError::new(Code::WrongMember, detail);
    }
    if matches!(why, Refused::Repeated) {
        // Its sender must not take it for a call that was not made.
        return ApiError::new(Code::MalformedRequest, format!("the call was refused: {why}"));
    }
    ApiError::new(Code::Unauthorized, format!("the call is not one of another server: {why}"))
}

#[cfg(test)]
mod tests;
