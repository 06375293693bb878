//! The cookie in which a browser keeps the session of somebody who has signed in at the web page.

use http::header::{COOKIE, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Uri};
use serde::{Deserialize, Serialize};

const NAME: &str = "leasehold-session";
/// The name where the server is reached by TLS: browsers take such a cookie by TLS alone, and for one host alone, so
/// that nobody else can put another session in its place.
const NAME_BY_TLS: &str = "__Host-leasehold-session";
/// The names of the cookies in which earlier versions kept the token itself.
const FORMER_NAMES: [(&str, Way); 2] = [("leasehold-token", Way::Plain), ("__Host-leasehold-token", Way::Tls)];

/// The scheme of `Authorization` by which the page shows a session to the API of its own process, and a member of a
/// cluster to its leader. Programs send tokens.
pub(crate) const SESSION_SCHEME: &str = "Leasehold-Session";
/// Where the page begins a session, by the token in `Authorization`, and ends the one that is there.
pub(crate) const SESSION_PATH: &str = "/page/session";

/// A session that has begun.
#[derive(Serialize, Deserialize)]
pub(crate) struct BegunSession {
    /// What the browser is to keep.
    pub(crate) session: String,
    /// How long it counts at most, in seconds.
    pub(crate) lasts_seconds: u64,
}

/// The header that the page's script sends with every call that changes something. A form of another site cannot.
pub(crate) const BY_PAGE: HeaderName = HeaderName::from_static("x-leasehold-page");

/// How a browser reaches its server, as far as the server can know. It is among the extensions of each request for a
/// page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By TLS, which ends in front of the server.
    Tls,
    /// Without, or nobody who is trusted says.
    Plain,
}

impl Way {
    /// Returns the name of the cookie, which is the only one that counts.
    const fn name(self) -> &'static str {
        match self {
            Self::Tls => NAME_BY_TLS,
            Self::Plain => NAME,
        }
    }

    const fn attributes(self) -> &'static str {
        match self {
            Self::Tls => "Path=/; HttpOnly; SameSite=Strict; Secure",
            Self::Plain => "Path=/; HttpOnly; SameSite=Strict",
        }
    }
}

/// Returns the value of `Set-Cookie` that has a browser keep a session. It sends it to this server alone, shows it to
/// no script, and, where it was reached by TLS, never sends it without.
pub(crate) fn keep(session: &BegunSession, way: Way) -> String {
    let BegunSession { session, lasts_seconds } = session;
    format!("{}={session}; {}; Max-Age={lasts_seconds}", way.name(), way.attributes())
}

/// Returns the values of `Set-Cookie` that have a browser forget the session, and the token that an earlier version had
/// it keep.
pub(crate) fn forget(way: Way) -> Vec<String> {
    let former = FORMER_NAMES.into_iter().filter(|(_, of)| *of == way).map(|(name, _)| name);
    [way.name()].into_iter().chain(former).map(|name| format!("{name}=; {}; Max-Age=0", way.attributes())).collect()
}

/// Returns the session that a request brings in its cookie.
pub(crate) fn session(headers: &HeaderMap, way: Way) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(name, value)| *name == way.name() && !value.is_empty())?;
    Some(value)
}

/// Returns the name under which a request reached its server. HTTP/2 has it in the URI, HTTP/1.1 in a header.
pub(crate) fn authority<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let said = || headers.get(HOST).map(|value| value.to_str().unwrap_or_default());
    uri.authority().map(Authority::as_str).or_else(said)
}

/// Returns whether a page of the same server had the browser send this request.
pub(crate) fn is_of_own_page(uri: &Uri, headers: &HeaderMap) -> bool {
    let origin =
        headers.get(ORIGIN).and_then(|origin| origin.to_str().ok()).and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, origin)| Some(origin) == authority(uri, headers))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).expect("a value"))).collect()
    }

    fn begun() -> BegunSession {
        BegunSession { session: "0a1b".to_owned(), lasts_seconds: 86_400 }
    }

    #[test]
    fn a_session_comes_back_as_it_was_by_the_way_that_it_was_kept() {
        for (way, other) in [(Way::Tls, Way::Plain), (Way::Plain, Way::Tls)] {
            let kept = keep(&begun(), way);
            let pair = kept.split(';').next().expect("a pair");
            let sent = headers(&[(COOKIE, &format!("other=1; {pair}"))]);
            assert_eq!(session(&sent, way), Some("0a1b"));
            assert_eq!(session(&sent, other), None, "who is not reached by TLS can set the plain one");
        }
        assert_eq!(session(&headers(&[(COOKIE, "leasehold-session=; xleasehold-session=a")]), Way::Plain), None);
    }

    #[test]
    fn a_cookie_by_tls_is_for_one_host_and_for_tls_alone() {
        let forgotten = forget(Way::Tls).into_iter().map(|written| (written, 0));
        for (written, age) in std::iter::once((keep(&begun(), Way::Tls), 86_400)).chain(forgotten) {
            assert!(written.starts_with("__Host-leasehold-"), "{written}");
            let attributes = format!("; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age={age}");
            assert!(written.ends_with(&attributes), "{written}");
        }
        assert!(!keep(&begun(), Way::Plain).contains("Secure"));
        let names: Vec<String> =
            forget(Way::Plain).into_iter().filter(|written| written.contains("Max-Age=0")).collect();
        assert!(names[0].starts_with("leasehold-session=;") && names[1].starts_with("leasehold-token=;"), "{names:?}");
    }

    #[test]
    fn an_origin_is_own_when_it_is_where_the_request_went() {
        let uri = Uri::from_static("/v1/jobs");
        let is_own = |pairs: &[(HeaderName, &str)]| is_of_own_page(&uri, &headers(pairs));
        assert!(is_own(&[(HOST, "jobs.example:7400"), (ORIGIN, "https://jobs.example:7400")]));
        assert!(!is_own(&[(HOST, "jobs.example:7400"), (ORIGIN, "https://jobs.example")]));
        assert!(!is_own(&[(HOST, "jobs.example"), (ORIGIN, "null")]));
        assert!(!is_own(&[(HOST, "jobs.example")]), "a browser that does not say is not taken at its word");
    }
}
