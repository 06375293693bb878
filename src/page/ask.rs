//! Calls of the API of the same process, in the name of whoever looks at a page.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRef, FromRequestParts};
use http::header::{AUTHORIZATION, HOST};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use serde::de::DeserializeOwned;
use tower::ServiceExt as _;

use super::shown;
use crate::wire::cookie::{self, BegunSession, SESSION_PATH, SESSION_SCHEME};
use crate::wire::{ClusterStatus, Me, Problem};

/// The longest answer that a page reads, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// The headers of a page's request that its calls have too: who asks, and under which name the server was reached.
const PASSED_ON: [http::HeaderName; 2] = [AUTHORIZATION, HOST];

/// The API of this process.
#[derive(Clone)]
pub(super) struct Api {
    router: Arc<Router>,
}

impl Api {
    pub(super) fn new(router: Router) -> Self {
        Self { router: Arc::new(router) }
    }
}

/// Asks the API in the name of whoever looks at a page.
#[derive(Clone)]
pub(super) struct Asker {
    api: Api,
    headers: HeaderMap,
}

/// Why a call got no answer that a page can show.
#[derive(Debug)]
pub(super) struct Refused {
    /// The status of the answer.
    pub(super) status: StatusCode,
    /// What is wrong, as a sentence.
    pub(super) detail: String,
    /// The wrong fields of the request, each with what is wrong.
    pub(super) fields: Vec<(String, String)>,
}

impl Refused {
    /// Says that an answer could not be read, which would be a bug.
    pub(super) fn unreadable(why: &dyn std::fmt::Display) -> Self {
        let detail = format!("the server's own answer cannot be read: {why}");
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, detail, fields: Vec::new() }
    }

    /// Returns whether only this field of the request is wrong, which a person has typed.
    pub(super) fn is_of(&self, name: &str) -> bool {
        !self.fields.is_empty() && self.fields.iter().all(|(field, _)| field == name)
    }

    /// Says what is wrong with the fields.
    pub(super) fn said(&self) -> String {
        self.fields.iter().map(|(_, message)| message.as_str()).collect::<Vec<_>>().join("\n")
    }

    fn of(status: StatusCode, body: &[u8]) -> Self {
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => Self {
                status,
                detail: problem.detail,
                fields: problem.errors.into_iter().map(|error| (error.field, error.message)).collect(),
            },
            Err(_) => Self { status, detail: String::from_utf8_lossy(body).into_owned(), fields: Vec::new() },
        }
    }
}

impl Asker {
    /// Reads what is at a path of the API.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str, parameters: &[(&str, &str)]) -> Result<T, Refused> {
        let body = self.answer(path, parameters).await?;
        serde_json::from_slice(&body).map_err(|error| Refused::unreadable(&error))
    }

    /// Returns who looks at the page, and what they may do.
    pub(super) async fn me(&self) -> Result<Me, Refused> {
        self.get("/v1/me", &[]).await
    }

    /// Begins a session for the holder of a token; `None` where nobody has to sign in.
    pub(super) async fn sign_in(&self, token: &str) -> Result<Option<BegunSession>, Refused> {
        let body = self.with_authorization("Bearer", token)?.call(Method::POST, SESSION_PATH).await?;
        if body.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&body).map(Some).map_err(|error| Refused::unreadable(&error))
    }

    /// Has the server end a session, given by its key.
    pub(super) async fn sign_out(&self, session: &str) -> Result<(), Refused> {
        self.with_authorization(SESSION_SCHEME, session)?.call(Method::DELETE, SESSION_PATH).await.map(drop)
    }

    /// Returns one that asks in the name of whom this shows.
    fn with_authorization(&self, scheme: &str, shown: &str) -> Result<Self, Refused> {
        let authorization = HeaderValue::try_from(format!("{scheme} {shown}")).map_err(|_| Refused {
            status: StatusCode::UNAUTHORIZED,
            detail: "a token has no such characters".to_owned(),
            fields: Vec::new(),
        })?;
        let mut asker = self.clone();
        asker.headers.insert(AUTHORIZATION, authorization);
        Ok(asker)
    }

    /// Returns where the member that answers stands in its cluster; `None` where the server is of none.
    pub(super) async fn cluster(&self) -> Result<Option<ClusterStatus>, Refused> {
        match self.get("/v1/cluster", &[]).await {
            Err(refused) if refused.status == StatusCode::NOT_FOUND => Ok(None),
            answer => answer.map(Some),
        }
    }

    async fn answer(&self, path: &str, parameters: &[(&str, &str)]) -> Result<bytes::Bytes, Refused> {
        let mut uri = path.to_owned();
        if !parameters.is_empty() {
            uri = shown::address(path, parameters.iter().copied());
        }
        self.call(Method::GET, &uri).await
    }

    /// Makes a call without a body, and returns the body of its answer.
    async fn call(&self, method: Method, uri: &str) -> Result<bytes::Bytes, Refused> {
        let mut request = Request::builder().method(method).uri(uri);
        for name in PASSED_ON {
            if let Some(value) = self.headers.get(&name) {
                request = request.header(name, value);
            }
        }
        let request = request.body(Body::empty()).map_err(|error| Refused::unreadable(&error))?;
        let answer = Router::clone(&self.api.router).oneshot(request).await;
        let answer = answer.unwrap_or_else(|never: Infallible| match never {});
        let status = answer.status();
        let body = to_bytes(answer.into_body(), MAX_ANSWER_BYTES).await;
        let body = body.map_err(|error| Refused::unreadable(&error))?;
        if status.is_success() { Ok(body) } else { Err(Refused::of(status, &body)) }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Asker
where
    Api: FromRef<S>,
{
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, site: &S) -> Result<Self, Infallible> {
        let mut headers = parts.headers.clone();
        // A call of the API has the name in the header, also where the page's request has it in its URI.
        let name = cookie::authority(&parts.uri, &parts.headers).map(HeaderValue::from_str);
        if let Some(Ok(name)) = name {
            headers.insert(HOST, name);
        }
        Ok(Self { api: Api::from_ref(site), headers })
    }
}
