//! The call that describes the fields of a job.

use super::call::{Answer, Call, Read};
use super::extract::Query;
use super::json::ok;
use crate::query::fields::FIELDS;
use crate::query::kql::phase::PHASE_FIELD;
use crate::wire::FieldList;

/// Describes every field of a job: how it can be queried, and what it means.
///
/// Editors can use the answer to complete queries.
#[utoipa::path(get, path = "/v1/fields", tag = "jobs",
    responses((status = 200, description = "The fields", body = FieldList)))]
pub(crate) async fn fields(_: Call<Read>, query: Query) -> Answer {
    query.only(&[])?;
    ok(&FieldList { items: FIELDS.iter().chain([&PHASE_FIELD]).map(Into::into).collect() })
}
