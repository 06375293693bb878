//! Jobs of which a call selects some fields, in the API's description.

use std::collections::BTreeMap;

use utoipa::openapi::schema::{AnyOfBuilder, ArrayItems};
use utoipa::openapi::{Object, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::described::{Components, Described, add, reference};
use super::job::Job;

/// A job with all its fields, or with those that the call selects.
pub(crate) struct SelectedJob;

impl PartialSchema for SelectedJob {
    fn schema() -> Described {
        AnyOfBuilder::new()
            .description(Some("A job: with `fields`, a part of it."))
            .item(reference::<Job>())
            .item(reference::<JobPart>())
            .into()
    }
}

impl ToSchema for SelectedJob {
    fn schemas(components: &mut Components) {
        add::<Job>(components);
        add::<JobPart>(components);
    }
}

/// A job of which only the fields that a call selects are there.
pub(crate) struct JobPart;

impl PartialSchema for JobPart {
    fn schema() -> Described {
        let mut components = Vec::new();
        Job::schemas(&mut components);
        let mut part = part_of(Job::schema(), &components.into_iter().collect());
        if let RefOr::T(Schema::Object(part)) = &mut part {
            part.description = Some("The fields of a job that the call selects.".to_owned());
        }
        part
    }
}

impl ToSchema for JobPart {}

/// Returns a schema whose objects may lack any of their properties, at any depth.
fn part_of(schema: Described, components: &BTreeMap<String, Described>) -> Described {
    let part = |schema: Described| part_of(schema, components);
    match schema {
        RefOr::Ref(reference) => {
            let name = reference.ref_location.rsplit('/').next().unwrap_or_default();
            match components.get(name) {
                Some(whole @ RefOr::T(Schema::Object(Object { properties, .. }))) if !properties.is_empty() => {
                    part(whole.clone())
                }
                _ => RefOr::Ref(reference),
            }
        }
        RefOr::T(Schema::Object(mut object)) => {
            object.required = Vec::new();
            object.properties = object.properties.into_iter().map(|(name, schema)| (name, part(schema))).collect();
            RefOr::T(Schema::Object(object))
        }
        RefOr::T(Schema::Array(mut array)) => {
            if let ArrayItems::RefOrSchema(items) = array.items {
                array.items = ArrayItems::RefOrSchema(Box::new(part(*items)));
            }
            RefOr::T(Schema::Array(array))
        }
        RefOr::T(Schema::OneOf(mut one_of)) => {
            one_of.items = one_of.items.into_iter().map(part).collect();
            RefOr::T(Schema::OneOf(one_of))
        }
        RefOr::T(other) => RefOr::T(other),
    }
}
