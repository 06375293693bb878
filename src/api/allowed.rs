//! Who calls, and that they may: the first thing that a handler takes out of a request.

use std::marker::PhantomData;

use axum::extract::FromRequestParts;
use http::request::Parts;

use super::App;
use super::access::Role;
use super::error::ApiError;
use crate::manager::Caller;

/// A role at the level of types, so that a handler's signature says what it needs.
pub(crate) trait Needs: Send + Sync {
    /// The role.
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

/// Who calls, and that they may. The first argument of a handler, so that nobody else's body is even read.
pub(crate) struct Allowed<R> {
    /// Who calls.
    pub(crate) caller: Caller,
    role: PhantomData<R>,
}

impl<R: Needs> FromRequestParts<App> for Allowed<R> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        app.access.allow(&parts.headers, R::ROLE).map(|caller| Self { caller, role: PhantomData })
    }
}
