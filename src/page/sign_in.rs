//! Signing in: the token is kept by the browser, in a cookie that scripts cannot read and other sites cannot send.
//!
//! The cookie holds the token itself. So every server accepts it that accepts the token, and removing the token there
//! ends it.

use askama::Template;
use axum::extract::Query;
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Extension, Form};
use http::header::{AUTHORIZATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde::Deserialize;

use super::ask::Asker;
use super::frame::{SIGN_IN_PATH, write};
use crate::wire::cookie::{self, Way};

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
    let token = form.token.trim();
    let authorization = HeaderValue::try_from(format!("Bearer {token}"));
    let known = match authorization {
        Ok(authorization) => asker.with(AUTHORIZATION, authorization).me().await.map_err(|refused| refused.detail),
        Err(_) => Err("a token has no such characters".to_owned()),
    };
    match known {
        Ok(_) => {
            let cookie = cookie::keep(token, way);
            ([(SET_COOKIE, cookie)], Redirect::to(own_path(&form.back))).into_response()
        }
        Err(why) => write(StatusCode::UNAUTHORIZED, &SignInPage { back: form.back, why: Some(why) }),
    }
}

/// Has the browser forget the token.
pub(super) async fn sign_out(Extension(way): Extension<Way>, uri: Uri, headers: HeaderMap) -> Response {
    if !cookie::is_of_own_page(&uri, &headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    ([(SET_COOKIE, cookie::forget(way))], Redirect::to(SIGN_IN_PATH)).into_response()
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
