//! Signing in: the token is kept by the browser, in a cookie that scripts cannot read and other sites cannot send.
//!
//! The cookie holds the token itself. So every server accepts it that accepts the token, and removing the token there
//! ends it.

use askama::Template;
use axum::Form;
use axum::extract::Query;
use axum::response::{IntoResponse, Redirect, Response};
use http::header::{AUTHORIZATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde::Deserialize;

use super::ask::Asker;
use super::frame::write;
use crate::wire::cookie;

/// Where a page was left for signing in.
#[derive(Deserialize)]
pub(super) struct Back {
    #[serde(default)]
    back: String,
}

/// The form of the page.
#[derive(Deserialize)]
pub(super) struct SignIn {
    token: String,
    #[serde(default)]
    back: String,
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    back: String,
    why: Option<String>,
}

pub(super) async fn page(Query(Back { back }): Query<Back>) -> Response {
    write(StatusCode::OK, &SignInPage { back, why: None })
}

/// Keeps the token in the browser when the server knows it. Another site cannot sign anybody in.
pub(super) async fn sign_in(asker: Asker, uri: Uri, headers: HeaderMap, Form(form): Form<SignIn>) -> Response {
    if !cookie::is_of_own_page(&uri, &headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let token = form.token.trim();
    let authorization = HeaderValue::try_from(format!("Bearer {token}"));
    let known = match authorization {
        Ok(authorization) => asker.with(AUTHORIZATION, authorization).me().await.map_err(|refused| refused.detail),
        Err(_) => Err("a token has no such characters".to_owned()),
    };
    match known {
        Ok(_) => {
            let cookie = cookie::keep(token, is_encrypted(&headers));
            ([(SET_COOKIE, cookie)], Redirect::to(own_path(&form.back))).into_response()
        }
        Err(why) => write(StatusCode::UNAUTHORIZED, &SignInPage { back: form.back, why: Some(why) }),
    }
}

/// Has the browser forget the token.
pub(super) async fn sign_out(uri: Uri, headers: HeaderMap) -> Response {
    if !cookie::is_of_own_page(&uri, &headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    ([(SET_COOKIE, cookie::forget(is_encrypted(&headers)))], Redirect::to("/sign-in")).into_response()
}

/// Whether the browser reached the server by TLS, which ends in front of it.
fn is_encrypted(headers: &HeaderMap) -> bool {
    headers.get("x-forwarded-proto").is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"https"))
}

/// Returns the path to go back to, if it is one of this server's.
fn own_path(back: &str) -> &str {
    let is_own = back.starts_with('/') && !back.starts_with("//") && !back.contains(['\\', '\n', '\r']);
    if is_own { back } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_to_another_server() {
        assert_eq!(own_path("/jobs?kql=a"), "/jobs?kql=a");
        for foreign in ["", "//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nb"] {
            assert_eq!(own_path(foreign), "/", "{foreign:?}");
        }
    }
}
