//! The cookie in which a browser keeps the token of whoever is signed in to the web page.

use http::header::{COOKIE, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Uri};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const NAME: &str = "leasehold-token";
/// The name where the server is reached by TLS: browsers take such a cookie by TLS alone, and for one host alone, so
/// that nobody else can put another token in its place.
const NAME_BY_TLS: &str = "__Host-leasehold-token";
/// How long a browser keeps the cookie, in seconds: a night shift and the day after it.
const KEPT: u32 = 24 * 3600;

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

/// Returns the value of `Set-Cookie` that has a browser keep a token. It sends it to this server alone, shows it to no
/// script, and, where it was reached by TLS, never sends it without.
pub(crate) fn keep(token: &str, way: Way) -> String {
    let value = utf8_percent_encode(token, NON_ALPHANUMERIC);
    format!("{}={value}; {}; Max-Age={KEPT}", way.name(), way.attributes())
}

/// Returns the value of `Set-Cookie` that has a browser forget the token.
pub(crate) fn forget(way: Way) -> String {
    format!("{}=; {}; Max-Age=0", way.name(), way.attributes())
}

/// Returns the token that a request brings in its cookie.
pub(crate) fn token(headers: &HeaderMap, way: Way) -> Option<String> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(name, value)| *name == way.name() && !value.is_empty())?;
    percent_decode_str(value).decode_utf8().ok().map(String::from)
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

    #[test]
    fn a_token_comes_back_as_it_was_whatever_it_has() {
        for written in ["lh_abc-DEF", "a=b; c\"d", "é %"] {
            for (way, other) in [(Way::Tls, Way::Plain), (Way::Plain, Way::Tls)] {
                let kept = keep(written, way);
                let pair = kept.split(';').next().expect("a pair");
                let sent = headers(&[(COOKIE, &format!("other=1; {pair}"))]);
                assert_eq!(token(&sent, way).as_deref(), Some(written));
                assert_eq!(token(&sent, other), None, "who is not reached by TLS can set the plain one");
            }
        }
        assert_eq!(token(&headers(&[(COOKIE, "leasehold-token=; xleasehold-token=a")]), Way::Plain), None);
    }

    #[test]
    fn a_cookie_by_tls_is_for_one_host_and_for_tls_alone() {
        for (written, age) in [(keep("a", Way::Tls), 86_400), (forget(Way::Tls), 0)] {
            assert!(written.starts_with("__Host-leasehold-token="), "{written}");
            let attributes = format!("; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age={age}");
            assert!(written.ends_with(&attributes), "{written}");
        }
        assert!(!keep("a", Way::Plain).contains("Secure") && forget(Way::Plain).contains("Max-Age=0"));
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
