//! What the API's description says of requirements, and of the labels that they are about.

use utoipa::openapi::schema::AdditionalProperties;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::definition::Requirement;
use super::offered::{MAX_OFFERED, MAX_OFFERED_NAME, MAX_OFFERED_VALUE, OFFERED_NAME_PATTERN};
use super::parse::MAX_REQUIREMENT_BYTES;

impl PartialSchema for Requirement {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String).max_length(Some(MAX_REQUIREMENT_BYTES));
        text.description(Some("What a job requires of one label that a worker offers, such as `hw = fpga`.")).into()
    }
}

impl ToSchema for Requirement {}

/// The schema of the labels that a worker offers.
pub(crate) struct OfferedLabels;

impl PartialSchema for OfferedLabels {
    fn schema() -> RefOr<Schema> {
        let name = ObjectBuilder::new()
            .schema_type(Type::String)
            .min_length(Some(1))
            .max_length(Some(MAX_OFFERED_NAME))
            .pattern(Some(OFFERED_NAME_PATTERN));
        let value = ObjectBuilder::new().schema_type(Type::String).max_length(Some(MAX_OFFERED_VALUE));
        ObjectBuilder::new()
            .description(Some("Labels that a worker offers, by name, with values of at most 128 bytes."))
            .property_names(Some(name))
            .additional_properties(Some(AdditionalProperties::RefOr(value.into())))
            .max_properties(Some(MAX_OFFERED))
            .into()
    }
}

impl ToSchema for OfferedLabels {}
