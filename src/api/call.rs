//! What every handler begins with and ends with: a call whose caller has the role for it, and an answer or a refusal.

use std::marker::PhantomData;

use axum::extract::FromRequestParts;
use axum::response::Response;
use http::request::Parts;

use super::App;
use super::access::{Permit, Role};
use super::error::{ApiError, Code};
use super::extract::Query;
use crate::job::{Bearer, CallingWorker, WorkerId};
use crate::manager::{Caller, ClaimRequest};
use crate::wire::Sight;

/// A role at the level of types, so that a handler's signature says what it needs.
pub(crate) trait Needs: Send + Sync {
    /// The role that the call needs.
    const ROLE: Role;
}

macro_rules! needs {
    ($($name:ident),*) => {
        $(
            #[doc = concat!("[`Role::", stringify!($name), "`]")]
            pub(crate) struct $name;
            impl Needs for $name {
                const ROLE: Role = Role::$name;
            }
        )*
    };
}

needs!(Read, Submit, Work, Admin);

/// The answer of a handler, or why it refuses the call.
pub(crate) type Answer = Result<Response, ApiError>;

/// A call by somebody who has the role `R`. It is the first argument of a handler, so that no other caller's body is
/// read.
pub(crate) struct Call<R> {
    /// The state that the handlers share.
    pub(super) app: App,
    /// Who calls, and what it may change.
    pub(super) caller: Caller,
    /// The holder of the caller's token; `None` on a server without tokens.
    pub(super) bearer: Option<Bearer>,
    /// How much of jobs the caller is shown.
    pub(super) sight: Sight,
    role: PhantomData<R>,
}

impl<R> Call<R> {
    /// Returns how much of jobs and schedules the answer shows: all of it to an administrator who asks by
    /// `reveal=true`.
    pub(super) fn revealing(&self, query: &Query) -> Result<Sight, ApiError> {
        match query.one("reveal")?.map(str::parse).transpose() {
            Ok(None | Some(false)) => Ok(self.sight),
            Ok(Some(true)) if self.bearer.as_ref().is_none_or(|bearer| bearer.is_admin) => Ok(Sight::Everything),
            Ok(Some(true)) => {
                let refused = ApiError::new(Code::Forbidden, "`reveal` needs the role `admin`");
                Err(self.bearer.iter().fold(refused, |refused, bearer| refused.of_token(&bearer.name)))
            }
            Err(_) => Err(ApiError::field("reveal", "must be `true` or `false`")),
        }
    }
}

impl<R: Needs> FromRequestParts<App> for Call<R> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let Permit { caller, bearer, sight } = app.guard.access.allow(&parts.headers, R::ROLE)?;
        Ok(Self { app: app.clone(), caller, bearer, sight, role: PhantomData })
    }
}

impl Call<Work> {
    /// Returns the worker as it calls.
    pub(super) fn worker(&self, id: WorkerId) -> CallingWorker {
        CallingWorker { id, bearer: self.bearer.clone() }
    }

    /// Returns the claim as the caller makes it.
    pub(super) fn claim(&self, claim: ClaimRequest) -> ClaimRequest {
        ClaimRequest { bearer: self.bearer.clone(), ..claim }
    }
}
