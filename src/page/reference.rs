//! The description of the API, to read and to try.

use askama::Template;
use axum::response::Response;
use http::{StatusCode, Uri};

use super::ask::Asker;
use super::frame::{self, Frame};
use super::shown;

/// The reader of the description sets styles of its own.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    img-src 'self' data:; font-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'";

#[derive(Template)]
#[template(path = "reference.html")]
struct Reference {
    frame: Frame,
}

pub(super) async fn page(asker: Asker, uri: Uri) -> Response {
    match Frame::of(&asker, "/reference", "API").await {
        Ok(frame) => frame::write_under(StatusCode::OK, &Reference { frame }, POLICY),
        Err(refused) => frame::answer::<Reference>(Err(refused), &uri),
    }
}
