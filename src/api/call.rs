//! What every handler begins with and ends with: a call whose caller has the role for it, and an answer or a refusal.

use std::marker::PhantomData;

use axum::extract::FromRequestParts;
use axum::response::Response;
use http::request::Parts;

use super::App;
use super::access::Role;
use super::error::ApiError;
use crate::manager::Caller;

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
    /// The caller.
    pub(super) caller: Caller,
    role: PhantomData<R>,
}

impl<R: Needs> FromRequestParts<App> for Call<R> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = app.guard.access.allow(&parts.headers, R::ROLE)?;
        Ok(Self { app: app.clone(), caller, role: PhantomData })
    }
}
