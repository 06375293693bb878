//! Calls that leave an entry in the audit, beside those about jobs, whose histories are copied there.
//!
//! A handler's role is checked before it begins, and whose a schedule is before anything is written: what somebody
//! without the right to it sends is not.

use std::future::Future;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::App;
use super::call::Call;
use super::error::ApiError;
use crate::manager::{AuditChange, ChangeName, Manager};
use crate::wire::signed::Signed;

impl<R> Call<R> {
    /// Returns the change with this name, which the caller asks for.
    pub(super) fn change(&self, name: ChangeName) -> AuditChange {
        AuditChange::new(name, &self.caller.name)
    }

    /// Writes to the audit what is about to be done, and does it.
    pub(super) async fn audited<T, E: Into<ApiError>>(
        &self,
        change: AuditChange,
        done: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ApiError> {
        audited(&self.app.manager, change, done).await
    }
}

/// Does the same for a caller who has no [`Call`].
pub(super) async fn audited<T, E: Into<ApiError>>(
    manager: &Manager,
    change: AuditChange,
    done: impl Future<Output = Result<T, E>>,
) -> Result<T, ApiError> {
    manager.audit_changes(std::slice::from_ref(&change)).await?;
    match done.await {
        Ok(value) => Ok(value),
        Err(error) => {
            let refused = error.into();
            if let Some(why) = why_not(&refused) {
                manager.audit_refusals(&[(change, why)]).await;
            }
            Err(refused)
        }
    }
}

/// Returns the code of a refusal after which a change is certainly not made.
pub(super) fn why_not(refused: &ApiError) -> Option<&'static str> {
    refused.code().status().is_client_error().then(|| refused.code().as_str())
}

/// Writes to the audit who signs in to the page or out of it, as the page's answer says, before the answer leaves.
pub(super) async fn signed(State(app): State<App>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let change = match response.extensions().get::<Signed>() {
        Some(Signed::In(name)) => AuditChange::new(ChangeName::SignedIn, name),
        Some(Signed::Out(name)) => AuditChange::new(ChangeName::SignedOut, name),
        None => return response,
    };
    match app.manager.audit_changes(&[change]).await {
        Ok(()) => response,
        Err(error) => ApiError::from(error).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use http::StatusCode;
    use tower::ServiceExt;

    use super::*;
    use crate::api::tests::audited_app;
    use crate::job::Actor;
    use crate::manager::{AuditEventName, AuditQuery};

    #[tokio::test]
    async fn who_signs_in_or_out_is_in_the_audit_before_the_answer_leaves() {
        let (app, _directory) = audited_app();
        let say = |signed: Option<Signed>| {
            get(async move || {
                let mut response = StatusCode::NO_CONTENT.into_response();
                if let Some(signed) = signed {
                    response.extensions_mut().insert(signed);
                }
                response
            })
        };
        let ann = || Actor::system("ann");
        let pages: Router = Router::new()
            .route("/in", say(Some(Signed::In(ann()))))
            .route("/out", say(Some(Signed::Out(ann()))))
            .route("/other", say(None))
            .layer(axum::middleware::from_fn_with_state(app.clone(), signed));
        for path in ["/in", "/other", "/out"] {
            let request = Request::builder().uri(path).body(Body::empty()).expect("a request");
            let answer = pages.clone().oneshot(request).await.expect("an answer");
            assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        }
        let events = vec![AuditEventName::Change(ChangeName::SignedIn), AuditEventName::Change(ChangeName::SignedOut)];
        let query = AuditQuery { events, actors: vec![ann()], limit: 10, ..AuditQuery::default() };
        let found = app.manager.audit(query).await.expect("a page").entries;
        let actions: Vec<_> = found.iter().map(|entry| entry.document["event"]["action"].clone()).collect();
        assert_eq!(actions, ["signed-out", "signed-in"]);
    }
}
