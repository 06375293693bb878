//! The caller and its permission, which a handler checks before anything else in a request.

use std::marker::PhantomData;

use axum::extract::FromRequestParts;
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

/// A caller that has the role `R`. It is the first argument of a handler, so that no other caller's body is read.
pub(crate) struct Allowed<R> {
    /// The caller.
    pub(crate) caller: Caller,
    role: PhantomData<R>,
}

impl<R: Needs> FromRequestParts<App> for Allowed<R> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        app.access.allow(&parts.headers, R::ROLE).map(|caller| Self { caller, role: PhantomData })
    }
}
