//! The calls of other managers of the same store. They are no part of the public API: whoever holds the secret of the
//! cluster makes them, and no token opens them.

use axum::extract::{Request, State};
use axum::response::IntoResponse;
use http::StatusCode;

use super::App;
use super::call::Answer;
use super::error::{ApiError, Code};
use super::extract::{parse, read};
use crate::peers::{Hints, MAX_HINTS_BYTES};

/// Takes hints of jobs that another manager has written.
pub(super) async fn hints(State(app): State<App>, request: Request) -> Answer {
    let Some(secret) = &app.peer_secret else {
        return Err(ApiError::new(Code::NoSuchRoute, "this server takes no calls of other servers"));
    };
    let (parts, body) = request.into_parts();
    let body = read(&parts, body, MAX_HINTS_BYTES, &app).await?;
    secret
        .verify(&parts.headers, &body.bytes, app.manager.now())
        .map_err(|why| ApiError::new(Code::Unauthorized, format!("the call is not one of another server: {why}")))?;
    let hints: Hints = parse(&body.bytes)?;
    app.manager.take_hints(&hints.available)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
