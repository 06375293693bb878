//! What calls show in `Authorization`: a token, or the session of somebody who has signed in at the web page.

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::manager::SessionKey;
use crate::wire::cookie::SESSION_SCHEME;

/// What a caller shows to say who it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shown<'a> {
    /// A token, as it stands behind `Bearer`.
    Token(&'a str),
    /// The key of a session, as a browser keeps it.
    Session(&'a str),
}

impl<'a> Shown<'a> {
    /// Returns what is shown in these headers; `None` where it is nothing that counts.
    pub(super) fn in_headers(headers: &'a HeaderMap) -> Option<Self> {
        let (scheme, shown) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
        match shown.trim() {
            token if scheme.eq_ignore_ascii_case("bearer") => Some(Self::Token(token)),
            session if scheme == SESSION_SCHEME => Some(Self::Session(session)),
            _ => None,
        }
    }
}

/// Returns the key of the session in these headers, if there is one.
pub(crate) fn session_key(headers: &HeaderMap) -> Option<SessionKey> {
    match Shown::in_headers(headers)? {
        Shown::Session(key) => SessionKey::parse(key),
        Shown::Token(_) => None,
    }
}
