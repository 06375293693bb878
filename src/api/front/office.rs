//! The place of the manager that works while a member leads, and the proof that it led.
//!
//! A member that was paused takes itself for the leader until it hears of another one, and answers calls from what it
//! has. So no answer goes out before it is known that this member led at some moment after the call had come: by an
//! entry that it has proposed since, as each call that writes has one, or else by a question to the others. What says
//! that something is so when it is said, as the answer to a call that waits and each part of a stream, needs a moment
//! after that.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Method, StatusCode, Uri};
use http_body::Body as _;
use tokio::sync::{RwLockReadGuard, watch};
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::serving::Serving;
use crate::api::access::Guard;
use crate::api::app::{AppParts, AppState};
use crate::api::delivery::HasJobs;
use crate::api::error::{ApiError, Code};
use crate::api::routes;
use crate::manager::Manager;
use crate::store::{LeadershipMark, Store};

/// The most parts of a stream that are proved at once.
const PARTS_AT_ONCE: usize = 64;

/// The refusals that rest on the call alone, whoever leads.
const REST_ON_THE_CALL: [StatusCode; 8] = [
    StatusCode::BAD_REQUEST,
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::LENGTH_REQUIRED,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
];

/// Where a member process puts the manager that works while it leads, and takes it away when it leads no longer. Clones
/// are one place.
#[derive(Clone, Debug)]
pub struct Office(watch::Sender<Option<Arc<Tenure>>>);

impl Default for Office {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Office {
    /// Serves calls with this manager from now on, which was started after the mark: what it knows is of that
    /// leadership.
    pub fn take(&self, state: AppState, mark: LeadershipMark) {
        let tenure = Tenure { state, mark, ending: CancellationToken::new(), router: OnceLock::new() };
        self.end(self.0.send_replace(Some(Arc::new(tenure))));
    }

    /// Serves no further calls with the manager. Claims that wait are answered, and streams of events end.
    pub fn leave(&self) {
        self.end(self.0.send_replace(None));
    }

    /// Answers the claims that wait and ends the streams of events; other calls are served on.
    pub(super) fn wind_up(&self) {
        self.end(self.0.borrow().clone());
    }

    /// Returns the manager that works now.
    pub(super) fn manager(&self) -> Option<Manager> {
        self.0.borrow().as_ref().map(|tenure| tenure.state.manager.clone())
    }

    fn end(&self, tenure: Option<Arc<Tenure>>) {
        if let Some(tenure) = tenure {
            tenure.ending.cancel();
            tenure.state.manager.stop_claims();
        }
    }
}

/// A manager while its process leads.
pub(super) struct Tenure {
    state: AppState,
    mark: LeadershipMark,
    /// Cancelled when streams have to end.
    ending: CancellationToken,
    router: OnceLock<Router>,
}

impl std::fmt::Debug for Tenure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenure").finish_non_exhaustive()
    }
}

/// What a process serves itself while it leads.
#[derive(Clone)]
pub(super) struct Own {
    pub(super) office: Office,
    /// The store of the member, which knows whether it still leads.
    pub(super) store: Arc<dyn Store>,
    /// What guards the process.
    pub(super) guard: Arc<Guard>,
    /// The API's description.
    pub(super) openapi: Bytes,
    /// The calls that are served.
    pub(super) serving: Arc<Serving>,
}

/// A call that this process is to serve, with the manager that works now.
pub(super) struct Entered<'o> {
    own: &'o Own,
    router: Router,
    mark: LeadershipMark,
    /// `None` for a call that can be made again, as one that waits or only reads: it is not waited for.
    _inside: Option<RwLockReadGuard<'o, ()>>,
}

impl Own {
    /// Waits while the lead is handed over, and lets a call be served by the manager that works then; `None` where none
    /// does.
    pub(super) async fn enter(&self, method: &Method, uri: &Uri) -> Option<Entered<'_>> {
        let inside = self.serving.enter().await;
        let (router, mark) = self.router()?;
        let _inside = Some(inside).filter(|_| !method.is_safe() && !waits(method, uri));
        Some(Entered { own: self, router, mark, _inside })
    }

    /// Returns the router of the manager that works now, if one does, and the mark of this moment.
    pub(super) fn router(&self) -> Option<(Router, LeadershipMark)> {
        let tenure = self.office.0.borrow().clone().filter(|tenure| !tenure.mark.is_over())?;
        let made = tenure.router.get_or_init(|| {
            let (state, ending) = (tenure.state.clone(), tenure.ending.clone());
            let parts = AppParts::new(state, Arc::clone(&self.guard), ending, self.openapi.clone());
            routes::router(Arc::new(parts))
        });
        Some((made.clone(), tenure.mark.renewed()))
    }

    /// Returns a body whose parts go out once it is known that this member led after they had come.
    fn proved(&self, body: Body, mark: LeadershipMark) -> Body {
        let store = Arc::clone(&self.store);
        let parts = body.into_data_stream().ready_chunks(PARTS_AT_ONCE);
        Body::from_stream(stream::try_unfold((parts, None), move |(mut parts, broken)| {
            let (store, mark) = (Arc::clone(&store), mark.clone());
            async move {
                if let Some(error) = broken {
                    return Err(error);
                }
                let some = parts.next().await;
                store.confirm(&mark.renewed()).await.map_err(axum::Error::new)?;
                let Some(some) = some else { return Ok(None) };
                let (mut whole, mut broken) = (Vec::new(), None);
                // What came before the break is passed on.
                for part in some {
                    match part {
                        Ok(part) => whole.extend_from_slice(&part),
                        Err(error) => broken = Some(error),
                    }
                }
                match broken {
                    Some(error) if whole.is_empty() => Err(error),
                    broken => Ok(Some((Bytes::from(whole), (parts, broken)))),
                }
            }
        }))
    }

    /// Returns what tells of changes.
    pub(super) fn changes(&self) -> watch::Receiver<Option<Arc<Tenure>>> {
        self.office.0.subscribe()
    }
}

impl Entered<'_> {
    /// Serves the call with the manager that worked when it came.
    ///
    /// # Errors
    /// [`NotLed`] when it is not known that this member led meanwhile.
    pub(super) async fn serve(self, request: Request) -> Result<Response, NotLed> {
        let Self { own, router, mark, .. } = &self;
        let (method, path) = (request.method(), request.uri().path());
        let waits = is_recalls(method, path);
        let (is_safe, is_claim) = (method.is_safe(), path == "/v1/claims");
        let answer = call(router.clone(), request).await;
        let status = answer.status();
        let refusal = answer.extensions().get::<ApiError>();
        let is_refused = refusal.is_some_and(ApiError::is_not_led)
            || (mark.is_over() && refusal.is_some_and(|refusal| refusal.code() == Code::ShuttingDown));
        // A claim that has taken anything says so.
        if is_refused && (is_claim || mark.has_begun_nothing()) {
            return Err(NotLed { is_nothing_done: true });
        }
        if status.is_server_error() || REST_ON_THE_CALL.contains(&status) {
            return Ok(answer);
        }
        // What a claim has taken is written; without any it has waited.
        let only_reads = is_safe || waits || (is_claim && answer.extensions().get::<HasJobs>().is_none());
        let since = if only_reads { mark.renewed() } else { mark.clone() };
        if let Err(error) = own.store.confirm(&since).await {
            tracing::debug!(%error, "this member does not know whether it led");
            return Err(NotLed { is_nothing_done: only_reads || mark.has_begun_nothing() });
        }
        let is_whole = answer.body().size_hint().exact().is_some();
        Ok(if is_whole { answer } else { answer.map(|body| own.proved(body, mark.clone())) })
    }
}

/// Why a call is not answered: this member may not have led.
#[derive(Debug)]
pub(super) struct NotLed {
    /// Whether the call has certainly written nothing, and can be made again by whoever leads.
    pub(super) is_nothing_done: bool,
}

/// Returns whether a call may wait for something that happens, for as long as it says.
pub(super) fn waits(method: &Method, uri: &Uri) -> bool {
    uri.path() == "/v1/claims"
        || is_recalls(method, uri.path())
        || uri.query().is_some_and(|query| query.contains("wait_ms"))
}

/// Returns whether a call waits for what its worker is to give up.
fn is_recalls(method: &Method, path: &str) -> bool {
    path.starts_with("/v1/workers/") && path.ends_with("/recalls") && method == Method::POST
}

/// Serves a call with this router.
pub(super) async fn call(mut router: Router, mut request: Request) -> Response {
    // A route that has matched before would be taken for one that this router's is below.
    request.extensions_mut().remove::<MatchedPath>();
    router.call(request).await.unwrap_or_else(|never: Infallible| match never {})
}
