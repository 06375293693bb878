//! Signing in: the holder of a token gets a session, which the browser keeps in a cookie that scripts cannot read and
//! other sites cannot send.
//!
//! The token goes no further than to the server that checks it. Every server over the same store accepts the session,
//! until somebody signs out, the session is over, or the token is removed.

use askama::Template;
use axum::extract::Query;
use axum::response::{AppendHeaders, IntoResponse, Redirect, Response};
use axum::{Extension, Form};
use http::header::SET_COOKIE;
use http::{HeaderMap, StatusCode, Uri};
use serde::Deserialize;

use super::ask::{Asker, Refused};
use super::frame::{SIGN_IN_PATH, refuse, write};
use crate::wire::cookie::{self, Way};

/// What is said where the leader of a cluster has not been upgraded yet.
const EARLIER_LEADER: &str = "the member that leads is of an earlier version, which keeps no sessions: sign in at \
                              it, or here once it is upgraded";

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

/// Begins a session when the server knows the token, and ends the one that the browser had. Another site cannot sign
/// anybody in.
pub(super) async fn sign_in(
    asker: Asker,
    Extension(way): Extension<Way>,
    uri: Uri,
    headers: HeaderMap,
    Form(form): Form<SignIn>,
) -> Response {
    if !cookie::is_of_own_page(&uri, &headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let back = Redirect::to(own_path(&form.back));
    match asker.sign_in(form.token.trim()).await {
        Ok(Some(begun)) => {
            if let Some(former) = cookie::session(&headers, way)
                && let Err(refused) = asker.sign_out(former).await
            {
                tracing::debug!(why = refused.detail, "the session before is left to end by itself");
            }
            ([(SET_COOKIE, cookie::keep(&begun, way))], back).into_response()
        }
        Ok(None) => back.into_response(),
        Err(Refused { status, detail, .. }) => {
            // A leader of an earlier version has no such call.
            let why = if status == StatusCode::NOT_FOUND { EARLIER_LEADER.to_owned() } else { detail };
            write(status, &SignInPage { back: form.back, why: Some(why) })
        }
    }
}

/// Ends the session, and has the browser forget it.
pub(super) async fn sign_out(asker: Asker, Extension(way): Extension<Way>, uri: Uri, headers: HeaderMap) -> Response {
    if !cookie::is_of_own_page(&uri, &headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    if let Some(session) = cookie::session(&headers, way)
        && let Err(refused) = asker.sign_out(session).await
        && refused.status != StatusCode::UNAUTHORIZED
    {
        // The browser keeps it, so that signing out can be tried again.
        return refuse(&refused, &uri);
    }
    let forget = cookie::forget(way).into_iter().map(|cookie| (SET_COOKIE, cookie));
    (AppendHeaders(forget.collect::<Vec<_>>()), Redirect::to(SIGN_IN_PATH)).into_response()
}

/// Returns the path to go back to, if it is one of this server's. Browsers drop tabs and line ends before they read an
/// address, and take a backslash for a slash, so that `/<tab>/host` leads to another server.
fn own_path(back: &str) -> &str {
    let is_written_out = back.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let is_own = is_written_out && back.starts_with('/') && !back.starts_with("//");
    if is_own { back } else { "/" }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;
    use url::Url;

    use super::*;

    /// What an address is made of that leads elsewhere than it seems to.
    const PIECES: [&str; 24] = [
        "/",
        "//",
        "\\",
        "\t",
        "\n",
        "\r",
        "\0",
        " ",
        "\u{1f}",
        "\u{7f}",
        "\u{85}",
        "\u{a0}",
        "\u{2028}",
        "\u{ff0f}",
        ".",
        "..",
        "@",
        ":",
        "?",
        "#",
        "%09",
        "https:",
        "evil.example",
        "jobs",
    ];

    #[test]
    fn nobody_is_sent_to_another_server() {
        assert_eq!(own_path("/jobs?kql=a%09b&state=failed"), "/jobs?kql=a%09b&state=failed");
        let foreign = ["", "//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nb", "/\t/evil.example"];
        for foreign in foreign {
            assert_eq!(own_path(foreign), "/", "{foreign:?}");
        }
    }

    proptest! {
        #[test]
        fn a_browser_stays_at_this_server_whatever_it_is_to_go_back_to(
            pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..8),
        ) {
            let back = format!("/{}", pieces.concat());
            let here = Url::parse("https://jobs.example/sign-in").expect("a URL");
            for back in [&back[..], &back[1..]] {
                let path = own_path(back);
                prop_assert!(HeaderValue::from_str(path).is_ok(), "{back:?}");
                let there = here.join(path).expect("a URL");
                prop_assert_eq!(there.origin(), here.origin(), "{:?}", back);
            }
        }
    }
}
