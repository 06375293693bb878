//! What surrounds every page: its head, the way to the other pages, who is signed in; and the pages of refusals.

use askama::Template;
use axum::response::{IntoResponse, Redirect, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderName, HeaderValue, StatusCode, Uri};
use percent_encoding::percent_decode_str;

use super::ask::{Asker, Refused};
use super::shown;
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::wire::Me;

/// What a page may load and do: scripts, styles and calls of this server alone.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Where a token is shown to sign in.
pub(crate) const SIGN_IN_PATH: &str = "/sign-in";

/// The name of everybody where the server has no tokens.
const ANONYMOUS: &str = "anonymous";

/// The places of the page, with the key that leads there after `g`.
const PLACES: [Place; 8] = [
    Place { path: "/", name: "Overview", key: "o" },
    Place { path: "/jobs", name: "Jobs", key: "j" },
    Place { path: "/queues", name: "Queues", key: "q" },
    Place { path: "/schedules", name: "Schedules", key: "s" },
    Place { path: "/workers", name: "Workers", key: "w" },
    Place { path: "/events", name: "Events", key: "e" },
    Place { path: "/health", name: "Health", key: "h" },
    Place { path: "/reference", name: "API", key: "a" },
];

/// A place of the page.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) path: &'static str,
    pub(super) name: &'static str,
    pub(super) key: &'static str,
}

/// What surrounds a page.
pub(super) struct Frame {
    /// The title of the page.
    pub(super) title: String,
    /// The path of the place that the page belongs to.
    pub(super) here: &'static str,
    /// Who looks at the page.
    pub(super) me: Me,
    /// When the page was written.
    pub(super) now: Timestamp,
}

impl Frame {
    /// Makes the frame of a page for whoever asks for it.
    pub(super) async fn of(asker: &Asker, here: &'static str, title: &str) -> Result<Self, Refused> {
        Ok(Self::around(asker.me().await?, here, title))
    }

    /// Makes the frame of a page for this reader.
    pub(super) fn around(me: Me, here: &'static str, title: &str) -> Self {
        Self { title: title.to_owned(), here, me, now: SystemClock::default().now() }
    }

    /// The places of the page, each with whether the page belongs to it.
    pub(super) fn places(&self) -> impl Iterator<Item = (Place, bool)> {
        PLACES.into_iter().map(|place| (place, place.path == self.here))
    }

    /// Whether the reader may do what needs a role.
    pub(super) fn may(&self, role: &str) -> bool {
        self.me.roles.iter().any(|has| has == role || has == "admin")
    }

    /// Whether the reader has signed in; nobody has to where the server has no tokens.
    pub(super) fn is_signed_in(&self) -> bool {
        self.me.name != ANONYMOUS
    }

    /// The version of the program.
    pub(super) fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }
}

/// The page of a refusal.
#[derive(Template)]
#[template(path = "refused.html")]
struct RefusedPage<'a> {
    status: StatusCode,
    detail: &'a str,
    advice: &'static str,
    /// The address of what the audit has of a job that is not there; `None` for anything else.
    audit: Option<String>,
}

/// Answers with a page, or says why there is none. Who is not known is sent to sign in, and comes back to `uri` then.
pub(super) fn answer<T: Template>(page: Result<T, Refused>, uri: &Uri) -> Response {
    match page {
        Ok(page) => write(StatusCode::OK, &page),
        Err(refused) if refused.status == StatusCode::UNAUTHORIZED => {
            let back = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
            Redirect::to(&shown::address(SIGN_IN_PATH, [("back", back)])).into_response()
        }
        Err(refused) => refuse(&refused, uri),
    }
}

/// Answers with the page of a refusal.
pub(super) fn refuse(refused: &Refused, uri: &Uri) -> Response {
    let Refused { status, ref detail, .. } = *refused;
    write(status, &RefusedPage { status, detail, advice: advice(status), audit: audit_of(status, uri) })
}

/// Returns the address of what the audit has of a job whose page this is, which is not there.
fn audit_of(status: StatusCode, uri: &Uri) -> Option<String> {
    let id = uri.path().strip_prefix("/jobs/").filter(|_| status == StatusCode::NOT_FOUND)?;
    let id = percent_decode_str(id).decode_utf8().ok()?;
    Some(shown::address("/audit", [("job", &*id)]))
}

fn advice(status: StatusCode) -> &'static str {
    match status {
        StatusCode::FORBIDDEN => "Sign in with a token that has the role.",
        StatusCode::NOT_FOUND => "It may have been removed. Search for it among the jobs.",
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => "Change the address, or go back.",
        _ => "Try again in a moment. If it stays so, the server's log says more.",
    }
}

/// Writes a page, with the headers that keep others out of it.
pub(super) fn write(status: StatusCode, page: &impl Template) -> Response {
    write_under(status, page, POLICY)
}

/// Writes a page under a policy of its own.
pub(super) fn write_under(status: StatusCode, page: &impl Template, policy: &'static str) -> Response {
    let text = match page.render() {
        Ok(text) => text,
        Err(error) => {
            tracing::error!(%error, "a page cannot be written");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    (status, headers_under(policy), text).into_response()
}

/// Returns the headers of a page, which keep others out of it.
pub(super) fn headers() -> [(HeaderName, HeaderValue); 6] {
    headers_under(POLICY)
}

fn headers_under(policy: &'static str) -> [(HeaderName, HeaderValue); 6] {
    [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy)),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (REFERRER_POLICY, HeaderValue::from_static("same-origin")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    ]
}
