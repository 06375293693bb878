//! A page that was written once for all who look with the same token.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;

use askama::Template;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use parking_lot::Mutex;

use super::frame;
use super::kept::Kept;

/// Of how many readers pages are kept; beyond that, those of all are written anew.
const MOST_READERS: usize = 100;

/// A page, as it is and compressed.
pub(super) struct Written {
    plain: Bytes,
    zipped: Bytes,
}

impl Written {
    /// Writes a page once in each form in which it is sent.
    pub(super) fn of(page: &impl Template) -> Result<Self, String> {
        let plain = page.render().map_err(|error| error.to_string())?;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let zipped = encoder.write_all(plain.as_bytes()).and_then(|()| encoder.finish());
        let zipped = zipped.map_err(|error| error.to_string())?;
        Ok(Self { plain: plain.into(), zipped: zipped.into() })
    }

    /// Answers a request with these headers.
    pub(super) fn answer(&self, request: &HeaderMap) -> Response {
        let accepted = request.get(ACCEPT_ENCODING).and_then(|accepted| accepted.to_str().ok()).unwrap_or_default();
        let takes_gzip = accepted.split(',').any(|one| one.trim() == "gzip");
        let vary = (VARY, HeaderValue::from_static("accept-encoding"));
        if takes_gzip {
            let encoding = (CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            return (StatusCode::OK, frame::headers(), [vary, encoding], self.zipped.clone()).into_response();
        }
        (StatusCode::OK, frame::headers(), [vary], self.plain.clone()).into_response()
    }
}

/// The pages of the readers, by their names.
#[derive(Default)]
pub(super) struct Readers(Mutex<HashMap<String, Arc<Kept<Written>>>>);

impl Readers {
    /// Returns the place of a reader's page.
    pub(super) fn of(&self, reader: &str) -> Arc<Kept<Written>> {
        let mut readers = self.0.lock();
        if readers.len() >= MOST_READERS && !readers.contains_key(reader) {
            readers.clear();
        }
        Arc::clone(readers.entry(reader.to_owned()).or_default())
    }
}
