//! Which cluster a call is for: a client keeps the identity of the cluster that answered it first, says it with each
//! call, and is refused by another one, which has other jobs under the same ids and other attempts under the same
//! fences.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue};

use crate::api::error::{ApiError, Code, write_problem};
use crate::api::observe::request_id;
use crate::store::Member;
use crate::wire::CLUSTER;

/// Refuses a call that is for another cluster, and has every answer say of which one it is.
pub(super) async fn identify(State(member): State<Arc<dyn Member>>, request: Request, next: Next) -> Response {
    let Some(own) = member.standing().borrow().identity.map(|identity| identity.to_string()) else {
        return next.run(request).await;
    };
    let mut answer = match request.headers().get(CLUSTER).filter(|meant| *meant != own.as_str()) {
        Some(meant) => refuse(&request, &own, meant),
        None => next.run(request).await,
    };
    say(&own, answer.headers_mut());
    answer
}

/// Puts the identity of a cluster into the headers of a call for it, or of its answer.
pub(super) fn say(identity: &str, headers: &mut HeaderMap) {
    if let Ok(identity) = HeaderValue::from_str(identity) {
        headers.insert(CLUSTER, identity);
    }
}

fn refuse(request: &Request, own: &str, meant: &HeaderValue) -> Response {
    let detail = format!(
        "this server is of the cluster with the identity {own}, and the caller was answered by the one with the \
         identity {meant:?} before: if this one has taken its place for good, start the caller again"
    );
    let refused = ApiError::new(Code::OtherCluster, detail);
    let problem = refused.to_problem(request_id(request.headers()).to_str().unwrap_or_default());
    let mut answer = refused.into_response();
    write_problem(&mut answer, &problem);
    answer
}
