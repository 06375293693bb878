//! The layer around every call: its id, the guard of servers without tokens, panics, problems, metrics and the log.

use std::any::Any;
use std::future::ready;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use futures::future::Either;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tokio::time::sleep;
use tower::Service;
use tracing::{debug, warn};

use super::access::{Guard, Role};
use super::charge::{Charged, charge};
use super::denied::{DeniedCaller, DeniedItems};
use super::error::{ApiError, Code, write_problem};
use super::lapse::Lapse;
use super::places::{NO_PLACE, Standing};
use super::remote::Remote;
use crate::job::Actor;
use crate::page::SIGN_IN_PATH;
use crate::peers::{CALLS_PATH, DELIVERIES_PATH, MESSAGES_PATH};
use crate::wire::cookie::{self, SESSION_SCHEME, Way};

/// The id of a request, which its answer and the log have as well.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest request id that is taken over from a client, in bytes.
const MAX_REQUEST_ID_BYTES: usize = 128;
/// The longest headers together, in bytes. The connection's own limit is higher, so that this one is reported.
const MAX_HEADER_BYTES: usize = 32 * 1024;
/// The paths of probes, and of the other members of a group, without which there is no leader or much to do for it.
const PROBES: [&str; 6] = ["/livez", "/readyz", "/metrics", MESSAGES_PATH, DELIVERIES_PATH, CALLS_PATH];
/// The paths of calls that may wait for long.
const CALLS_THAT_WAIT: [&str; 4] = ["/v1/claims", "/v1/events", "/v1/jobs/export", "/v1/schedules/bulk"];
/// The name, in metrics and the log, of the route of requests without a route.
const NO_ROUTE: &str = "none";

/// Runs a call, logs it and counts it.
pub(super) fn observe(
    State(guard): State<Arc<Guard>>,
    mut request: Request,
    next: Next,
) -> impl Future<Output = Response> {
    let from = request.extensions().get::<Arc<Remote>>().map(|remote| remote.address());
    let begun = Begun {
        at: Instant::now(),
        address: from.map(|from| guard.proxies.client(from, request.headers())),
        request_id: request_id(request.headers()),
        method: method_label(request.method()),
        route: request.extensions().get::<MatchedPath>().cloned(),
    };
    let way = guard.way(from, request.headers());
    request.extensions_mut().insert(way);
    // Nothing is read for a request that is refused as it stands.
    let admitted = take_cookie(&mut request, way).and_then(|()| admit(&guard, &request));
    match guard.unread_session(request.headers()).filter(|_| admitted.is_ok()) {
        None => Either::Left(run(guard, request, next, begun, admitted)),
        Some(key) => Either::Right(Box::pin(async move {
            let read = guard.read_session(&key, begun.address).await;
            run(guard, request, next, begun, read).await
        })),
    }
}

/// Runs a call that is not refused yet.
fn run(
    guard: Arc<Guard>,
    mut request: Request,
    mut next: Next,
    begun: Begun,
    admitted: Result<(), ApiError>,
) -> impl Future<Output = Response> {
    let refusable = Refusable::of(&guard, &request);
    let lapse = Lapse::of(&guard, request.headers());
    let (answer, Charged { strangers, token }) = match admitted.and_then(|()| charge(&guard, &mut request)) {
        Ok(charged) => (Either::Left(AssertUnwindSafe(next.call(request)).catch_unwind()), charged),
        Err(refused) => (Either::Right(ready(Ok(Ok(refused.into_response())))), Charged::default()),
    };
    // An async function would keep room for the request for as long as the call waits.
    answer
        .map(move |answer| {
            let mut response =
                begun.end(&guard, token, answer.map_or_else(|panic| panicked(&*panic), |Ok(response)| response));
            if let Some(strangers) = strangers {
                response.extensions_mut().insert(strangers);
            }
            let wait = refusable.and_then(|refusable| refusable.wait(&guard, response.status()));
            (wait, lapse.into_iter().fold(response, |response, lapse| lapse.ends(response, &guard)))
        })
        .then(|(wait, response)| match wait {
            None => Either::Left(ready(response)),
            Some(wait) => Either::Right(Box::pin(sleep(wait).map(|()| response))),
        })
}

/// A call that shows a token or a session, known or not, and whose refusal may have to wait.
#[derive(Clone, Copy, Debug)]
struct Refusable {
    address: IpAddr,
    /// Whether a page is asked for, which sends those to sign in who are not known.
    is_read: bool,
}

impl Refusable {
    /// Returns a call as one that shows something; `None` where it shows nothing, or comes from this process itself.
    fn of(guard: &Guard, request: &Request) -> Option<Self> {
        if guard.access.is_open() {
            return None;
        }
        let remote = request.extensions().get::<Arc<Remote>>()?;
        let shows = request.headers().contains_key(AUTHORIZATION) || request.uri().path() == SIGN_IN_PATH;
        let address = || guard.proxies.client(remote.address(), request.headers());
        shows.then(|| Self { address: address(), is_read: request.method() == Method::GET })
    }

    /// Returns how long an answer has to wait, if it has to.
    fn wait(self, guard: &Guard, status: StatusCode) -> Option<Duration> {
        let is_refused = match status {
            StatusCode::UNAUTHORIZED => true,
            StatusCode::SEE_OTHER => self.is_read,
            _ => false,
        };
        if !is_refused {
            return None;
        }
        metrics::counter!("leasehold_http_unknown_tokens_total").increment(1);
        guard.failures.count(self.address)
    }
}

/// A call that has begun.
struct Begun {
    at: Instant,
    /// The address of the client, as a trusted proxy says it; `None` for a call within the process.
    address: Option<IpAddr>,
    request_id: HeaderValue,
    method: &'static str,
    route: Option<MatchedPath>,
}

impl Begun {
    /// Logs and counts the call of the holder of this token, where that is known, and returns its answer.
    fn end(self, guard: &Guard, token: Option<Actor>, mut response: Response) -> Response {
        let Self { at, address, request_id, method, route } = self;
        let route = route.as_ref().map_or(NO_ROUTE, MatchedPath::as_str);
        let refused = ApiError::of_response(&response);
        let by = DeniedCaller { token, address };
        if let Some(refused) = &refused {
            write_problem(&mut response, &refused.to_problem(request_id.to_str().unwrap_or_default()));
            guard.denied.note(refused, &by, (method, route));
        }
        // Taken away, so that no layer further out notes them as well.
        if let Some(items) = response.extensions_mut().remove::<DeniedItems>() {
            guard.denied.note_items(&items, &by, (method, route));
        }
        let status = response.status();
        let elapsed = at.elapsed();
        let labels = [("route", route.to_owned()), ("method", method.to_owned())];
        metrics::histogram!("leasehold_http_request_duration_seconds", &labels).record(elapsed);
        metrics::counter!("leasehold_http_requests_total", "route" => route.to_owned(), "method" => method,
            "status" => status.as_str().to_owned())
        .increment(1);

        let (request_id_text, millis) = (request_id.to_str().unwrap_or_default(), elapsed.as_secs_f64() * 1000.0);
        match refused {
            Some(refused) if refused.is_news() => warn!(
                method,
                route,
                status = status.as_u16(),
                millis,
                request_id = request_id_text,
                code = refused.code().as_str(),
                cause = refused.cause().unwrap_or_else(|| refused.detail()),
                "a call failed"
            ),
            Some(refused) => debug!(
                method,
                route,
                status = status.as_u16(),
                millis,
                request_id = request_id_text,
                code = refused.code().as_str(),
                detail = refused.detail(),
                "refused a call"
            ),
            None => {
                debug!(method, route, status = status.as_u16(), millis, request_id = request_id_text, "answered a call")
            }
        }
        response.headers_mut().insert(REQUEST_ID, request_id);
        response
    }
}

/// Takes the session that a browser keeps for a page, as if the request brought it in `Authorization`. For a call that
/// changes something it counts only where the page's script sends it: a form cannot set the header, and the script of
/// another site not that of this one.
fn take_cookie(request: &mut Request, way: Way) -> Result<(), ApiError> {
    let (headers, is_safe) = (request.headers(), request.method().is_safe());
    if headers.contains_key(AUTHORIZATION) || !(is_safe || headers.contains_key(cookie::BY_PAGE)) {
        return Ok(());
    }
    let Some(session) = cookie::session(headers, way) else { return Ok(()) };
    if !is_safe && !cookie::is_of_own_page(request.uri(), headers) {
        return Err(ApiError::new(Code::ForeignOrigin, "the origin of the request is not this server's"));
    }
    if let Ok(authorization) = HeaderValue::try_from(format!("{SESSION_SCHEME} {session}")) {
        request.headers_mut().insert(AUTHORIZATION, authorization);
    }
    Ok(())
}

/// Refuses requests for which there is no place, those with headers that are too long or with two hosts, and those of
/// other sites where everyone is trusted.
fn admit(guard: &Guard, request: &Request) -> Result<(), ApiError> {
    if request.extensions().get::<Standing>() == Some(&Standing::Reserved) && !may_use_reserve(guard, request) {
        return Err(ApiError::new(Code::Overloaded, NO_PLACE));
    }
    let headers = request.headers();
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes > MAX_HEADER_BYTES {
        let detail = format!("the headers must have at most {MAX_HEADER_BYTES} bytes together, not {bytes}");
        return Err(ApiError::new(Code::HeadersTooLarge, detail));
    }
    // Two parts of a chain of servers could each go by another one.
    if headers.get_all(HOST).iter().nth(1).is_some() {
        return Err(ApiError::new(Code::MalformedRequest, "the request has more than one `Host` header"));
    }
    match &guard.sites {
        Some(sites) => sites.check(request.method(), request.uri(), headers),
        None => Ok(()),
    }
}

/// Returns whether a request may be served while there are too many connections: from a probe, or from an operator who
/// does not wait for something.
fn may_use_reserve(guard: &Guard, request: &Request) -> bool {
    let path = request.uri().path();
    let waits = CALLS_THAT_WAIT.contains(&path) || request.uri().query().is_some_and(|query| query.contains("wait_ms"));
    PROBES.contains(&path) || !waits && guard.access.allow(request.headers(), Role::Admin).is_ok()
}

/// Returns the client's own id for the request when it is fit for a log line, otherwise a new one.
pub(super) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let fits = |value: &&HeaderValue| {
        let fit = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte);
        !value.is_empty() && value.len() <= MAX_REQUEST_ID_BYTES && value.as_bytes().iter().all(fit)
    };
    headers.get(&REQUEST_ID).filter(fits).cloned().unwrap_or_else(|| {
        let mut buffer = uuid::Uuid::encode_buffer();
        let text = uuid::Uuid::now_v7().hyphenated().encode_lower(&mut buffer);
        HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("none"))
    })
}

/// Returns the method as a label from a fixed set, since clients can send any word.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    ApiError::new(Code::Internal, "the server failed at this call")
        .caused_by(format!("panicked: {text}"))
        .into_response()
}

#[cfg(test)]
mod tests;
