//! The styles, the script and the pictures of the page, which are part of the program.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, StatusCode};
use rust_embed::RustEmbed;
use xxhash_rust::xxh3::xxh3_64;

#[derive(RustEmbed)]
#[folder = "$CARGO_MANIFEST_DIR/src/page/assets"]
struct Assets;

/// Has a browser keep a file, and ask whether it is still the one before it uses it.
const KEPT: &str = "no-cache";

/// Serves a file. A browser keeps it, and asks each time whether it is still the one: after an upgrade it is not.
pub(super) async fn serve(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(file) = find(&name) else { return StatusCode::NOT_FOUND.into_response() };
    let tag = format!("\"{}-{:x}\"", env!("CARGO_PKG_VERSION"), xxh3_64(&file));
    if headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        // A browser takes the headers over for the file that it has.
        return (StatusCode::NOT_MODIFIED, [(CACHE_CONTROL, KEPT)]).into_response();
    }
    let headers = [
        (CONTENT_TYPE, content_type(&name).to_owned()),
        (CACHE_CONTROL, KEPT.to_owned()),
        (ETAG, tag),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    (headers, file).into_response()
}

/// Returns the bytes of a file. Those below `reference/` belong to the reader of the API's description.
fn find(name: &str) -> Option<Cow<'static, [u8]>> {
    match name.strip_prefix("reference/") {
        Some(name) => {
            let found = utoipa_swagger_ui::serve(name, Arc::default()).ok().flatten();
            found.map(|file| Cow::Owned(file.bytes.into_owned()))
        }
        None => Assets::get(name).map(|file| file.data),
    }
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}
