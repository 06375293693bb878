//! The calls by which the web page signs somebody in and out. They are the page's own, and the API's description leaves
//! them out.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};

use super::App;
use super::access::session_key;
use super::audited::audited;
use super::call::Answer;
use super::error::{ApiError, Code};
use super::json::json;
use crate::manager::{AuditChange, ChangeName, ManagerError, SESSION_LASTS};
use crate::wire::cookie::BegunSession;

/// Begins a session for the holder of the token that the call shows. Nothing is written for anybody else, and there is
/// no session where nobody has a token.
pub(crate) async fn begin(State(app): State<App>, headers: HeaderMap) -> Answer {
    let access = &app.guard.access;
    if access.is_open() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let (token, fingerprint) = access.shown_token(&headers)?;
    app.guard.sign_ins.count(&token, &fingerprint)?;
    let sessions = app.manager.sessions();
    let begin =
        async { sessions.begin(&token, fingerprint, app.limits.session_idle).await.map_err(ManagerError::from) };
    let (key, session) = audited(&app.manager, AuditChange::new(ChangeName::SignedIn, &token), begin).await?;
    access.note_session(&key, Some(session));
    tracing::info!(%token, "somebody has signed in at the web page");
    let begun = BegunSession { session: key.to_text(), lasts_seconds: SESSION_LASTS.as_secs() };
    Ok(json(StatusCode::CREATED, &begun))
}

/// Ends the session that the call shows.
pub(crate) async fn end(State(app): State<App>, headers: HeaderMap) -> Result<Response, ApiError> {
    let access = &app.guard.access;
    let token = access.name(&headers);
    let (Some(key), Some(token)) = (session_key(&headers), token) else {
        return Err(ApiError::new(Code::Unauthorized, "there is no session to end"));
    };
    // A right is given back whether or not the audit can be written.
    if let Err(error) = app.manager.audit_changes(&[AuditChange::new(ChangeName::SignedOut, &token)]).await {
        tracing::warn!(%token, %error, "the audit lacks that somebody has signed out of the web page");
    }
    app.manager.sessions().end(&key).await.map_err(ManagerError::from)?;
    access.note_session(&key, None);
    tracing::info!(%token, "somebody has signed out of the web page");
    Ok(StatusCode::NO_CONTENT.into_response())
}
