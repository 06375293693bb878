//! The place of the manager that works while a member leads.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::Method;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::api::app::{AppParts, AppState};
use crate::api::routes;
use crate::store::Store;

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

    /// Returns the router for a call of this method, if this member leads. A call that only reads is answered by nobody
    /// who merely believes to lead; one that writes finds out by its write.
    pub(super) async fn router_for(&self, method: &Method) -> Option<Router> {
        let router = self.router()?;
        if method.is_safe()
            && let Err(error) = self.store.confirm().await
        {
            tracing::debug!(%error, "this member does not know whether it leads");
            return None;
        }
        Some(router)
    }

    /// Returns what tells of changes.
    pub(super) fn changes(&self) -> watch::Receiver<Option<Arc<Tenure>>> {
        self.office.0.subscribe()
    }
}

/// Serves a call with this router.
pub(super) async fn call(mut router: Router, request: Request) -> Response {
    router.call(request).await.unwrap_or_else(|never: Infallible| match never {})
}
