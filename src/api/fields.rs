//! The call that describes the fields of a job.

use axum::response::Response;
use http::StatusCode;

use super::allowed::{Allowed, Read};
use super::error::ApiError;
use super::extract::Query;
use super::json::json;
use crate::query::fields::FIELDS;
use crate::wire::FieldList;

/// Describes every field of a job: how it can be queried, and what it means.
///
/// Editors can use the answer to complete queries.
#[utoipa::path(get, path = "/v1/fields", tag = "jobs",
    responses((status = 200, description = "The fields", body = FieldList)))]
pub(crate) async fn fields(_: Allowed<Read>, query: Query) -> Result<Response, ApiError> {
    query.only(&[])?;
    Ok(json(StatusCode::OK, &FieldList { items: FIELDS.iter().map(Into::into).collect() }))
}
