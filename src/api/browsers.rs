//! What every answer says to browsers beside what it says itself: that nothing of it is to be guessed, kept or run.
//! Pages have a policy of their own.

use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, Entry, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::wire::cookie::Way;

/// What an answer says that says nothing else of it.
pub(super) const SAID: [(HeaderName, HeaderValue); 3] = [
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
];

/// Has browsers come by TLS alone for a year.
const BY_TLS_ALONE: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// Adds to the headers of an answer what every answer says to browsers.
pub(super) fn add_to(headers: &mut HeaderMap, way: Way) {
    let by_tls = (way == Way::Tls).then_some((STRICT_TRANSPORT_SECURITY, BY_TLS_ALONE));
    for (name, value) in SAID.into_iter().chain(by_tls) {
        if let Entry::Vacant(entry) = headers.entry(name) {
            entry.insert(value);
        }
    }
}
