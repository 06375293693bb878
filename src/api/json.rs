//! Answers as JSON.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use super::call::Answer;
use super::error::{ApiError, Code};

/// The room that is allocated for an answer at first, in bytes: most are short.
const SHORT: usize = 128;

/// Returns the JSON text of an answer. It fails only for types that have no JSON form.
pub(crate) fn to_bytes(value: &impl Serialize) -> Result<Bytes, ApiError> {
    to_long_bytes(value, SHORT)
}

/// Returns the JSON text of an answer of about this many bytes. They are allocated at once: a text that grows is copied
/// each time it outgrows its room.
pub(crate) fn to_long_bytes(value: &impl Serialize, about: usize) -> Result<Bytes, ApiError> {
    let mut text = Vec::with_capacity(about);
    serde_json::to_writer(&mut text, value)
        .map(|()| Bytes::from(text))
        .map_err(|error| ApiError::new(Code::Internal, format!("the answer cannot be written: {error}")))
}

/// Returns an answer with this status and value.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match to_bytes(value) {
        Ok(text) => with_body(status, Body::from(text)),
        Err(error) => error.into_response(),
    }
}

/// Answers a call that was done with this value.
pub(crate) fn ok(value: &impl Serialize) -> Answer {
    Ok(json(StatusCode::OK, value))
}

/// Returns an answer with this status and a body that is JSON text already.
pub(crate) fn with_body(status: StatusCode, body: Body) -> Response {
    let mut response = (status, body).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
