//! The place of the manager that works while a member leads, and the proof that it led.
//!
//! A member that was paused takes itself for the leader until it hears of another one, and answers calls from what it
//! has. So no answer goes out before it is known that this member led at some moment after the call had come: by an
//! entry that it has proposed since, as each call that writes has one, or else by a question to the others. What says
//! that something is so when it is said, as the answer to a call that waits and each part of a stream, needs a moment
//! after that.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::Uri;
use http_body::Body as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::api::app::{AppParts, AppState};
use crate::api::routes;
use crate::store::{LeadershipMark, Store};

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
    /// Serves calls with this manager from now on.
    pub fn take(&self, state: AppState) {
        let tenure = Tenure { state, ending: CancellationToken::new(), router: OnceLock::new() };
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
    /// The address that the process listens on.
    pub(super) address: SocketAddr,
    /// The API's description.
    pub(super) openapi: Bytes,
}

impl Own {
    /// Returns the router of the manager that works now, if one does.
    pub(super) fn router(&self) -> Option<Router> {
        let tenure = self.office.0.borrow().clone()?;
        let made = tenure.router.get_or_init(|| {
            let (state, ending) = (tenure.state.clone(), tenure.ending.clone());
            let parts = AppParts::new(state, self.address, ending, self.openapi.clone());
            routes::router(Arc::new(parts))
        });
        Some(made.clone())
    }

    /// Serves a call with this router, which is that of the manager that works now.
    ///
    /// # Errors
    /// [`NotLed`] when it is not known that this member led meanwhile. Then the call has written nothing.
    pub(super) async fn serve(&self, router: Router, request: Request) -> Result<Response, NotLed> {
        let mark = self.store.mark();
        let only_reads = request.method().is_safe();
        // An empty claim is proved by its manager.
        let is_late = only_reads || names_a_wait(request.uri());
        let answer = call(router, request).await;
        if answer.status().is_server_error() {
            return Ok(answer);
        }
        let mark = if is_late { mark.renewed() } else { mark };
        if let Err(error) = self.store.confirm(&mark).await {
            tracing::debug!(%error, "this member does not know whether it led");
            return Err(NotLed);
        }
        let is_whole = answer.body().size_hint().exact().is_some();
        Ok(if is_whole { answer } else { answer.map(|body| self.proved(body, mark, only_reads)) })
    }

    /// Returns a body each part of which goes out once it is known that this member led after the part had come, or,
    /// where it tells of writes, after the part before.
    fn proved(&self, body: Body, mark: LeadershipMark, only_reads: bool) -> Body {
        let store = Arc::clone(&self.store);
        let parts = stream::try_unfold((body.into_data_stream(), mark), move |(mut parts, mark)| {
            let store = Arc::clone(&store);
            async move {
                let before = mark.renewed();
                let part = parts.next().await.transpose()?;
                let since = if only_reads { mark.renewed() } else { before };
                store.confirm(&since).await.map_err(axum::Error::new)?;
                Ok::<_, axum::Error>(part.map(|part| (part, (parts, mark))))
            }
        });
        Body::from_stream(parts.inspect_err(|error| tracing::debug!(%error, "a stream of answers ends")))
    }

    /// Returns what tells of changes.
    pub(super) fn changes(&self) -> watch::Receiver<Option<Arc<Tenure>>> {
        self.office.0.subscribe()
    }
}

/// Why a call was not served: this member may not lead. Nobody has carried it out.
#[derive(Debug)]
pub(super) struct NotLed;

/// Returns whether a call says how long it may wait in its path.
pub(super) fn names_a_wait(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.contains("wait_ms"))
}

/// Serves a call with this router.
pub(super) async fn call(mut router: Router, request: Request) -> Response {
    router.call(request).await.unwrap_or_else(|never: Infallible| match never {})
}
