//! The API's own description, gathered from the handlers and rounded off with what all of them have in common.

use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    Components, Content, InfoBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, ResponseBuilder, Schema, Type,
};
use utoipa::{PartialSchema, ToSchema};

use super::error::PROBLEM_JSON;
use crate::job::LimitScope;
use crate::wire::{FieldError, Problem};

const DESCRIPTION: &str = "Submit, claim, run and inspect jobs. Durations are integers in milliseconds and \
their names end in `_ms`; times are RFC 3339 in UTC with milliseconds. A request with an unknown field is refused. \
Refusals are problem details (RFC 9457) with a stable `code`. Bulk calls answer 200 with one item for each \
item of the call, in order, each with the status that a single call would have had.";

/// The routes that need no token.
const PUBLIC: [&str; 3] = ["/livez", "/readyz", "/openapi.json"];

/// Returns the description before the handlers are added.
pub(crate) fn base() -> OpenApi {
    let info = InfoBuilder::new().title("Leasehold").version("1").description(Some(DESCRIPTION)).build();
    let tags = [
        ("jobs", "Jobs: submission, search, statistics"),
        ("work", "Workers: claims, heartbeats, completions"),
        ("queues", "Queues and workers"),
        ("limits", "Limits: how many jobs run at once"),
        ("schedules", "Schedules: when they fire"),
        ("notifications", "Subscriptions to events"),
        ("admin", "Administration: orphans and bulk changes"),
        ("server", "The server itself"),
    ];
    let tags = tags.map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build());
    let mut components = Components::new();
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A token of the server's configuration. None is needed where none is configured."))
        .build();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    components.schemas.insert(Problem::name().into_owned(), Problem::schema());
    components.schemas.insert(FieldError::name().into_owned(), FieldError::schema());
    // A path's parameters leave theirs out.
    components.schemas.insert(LimitScope::name().into_owned(), LimitScope::schema());
    OpenApiBuilder::new().info(info).tags(Some(tags)).components(Some(components)).build()
}

/// Adds the common refusals and the required token to every operation, and says what may be left out but not null.
pub(crate) fn round_off(openapi: &mut OpenApi) {
    for (path, item) in &mut openapi.paths.paths {
        let public = PUBLIC.contains(&path.as_str());
        for operation in operations(item) {
            let has_id = path.contains("{id}");
            let has_body = operation.request_body.is_some();
            let refusals = [
                ("400", true, "The request cannot be read"),
                ("401", !public, "A valid token is needed"),
                ("403", true, "The token lacks the role, or the request comes from another site"),
                ("404", has_id, "There is none of this id"),
                ("408", has_body, "The body did not come in time"),
                ("413", has_body, "The body is too long"),
                ("415", has_body, "The body has the wrong content type"),
                ("422", !public, "A field is wrong"),
                ("429", true, "The caller has as much under way as it may; try again later"),
                ("431", true, "The headers are too long"),
                ("500", true, "The server failed"),
                ("503", true, "Try again later"),
            ];
            for (status, _, text) in refusals.into_iter().filter(|(_, applies, _)| *applies) {
                let refusal = || RefOr::T(ResponseBuilder::new().description(text).build());
                operation.responses.responses.entry(status.to_owned()).or_insert_with(refusal);
            }
            for (status, response) in &mut operation.responses.responses {
                if let RefOr::T(response) = response
                    && (status.starts_with('4') || status.starts_with('5'))
                {
                    let problem = Content::new(Some(Ref::from_schema_name(Problem::name())));
                    response.content.insert(PROBLEM_JSON.to_owned(), RefOr::T(problem));
                }
            }
            optional_schemas(operation).for_each(never_null);
            let token = SecurityRequirement::new("bearer", [] as [&str; 0]);
            operation.security = Some(if public { Vec::new() } else { vec![token] });
        }
    }
}

/// Returns the schemas of an operation's parameters and bodies. They may be missing where their type is an option.
fn optional_schemas(operation: &mut Operation) -> impl Iterator<Item = &mut RefOr<Schema>> {
    let parameters = operation.parameters.iter_mut().flatten().filter_map(|parameter| match parameter {
        RefOr::T(parameter) => parameter.schema.as_mut(),
        RefOr::Ref(_) => None,
    });
    let body = operation.request_body.as_mut().and_then(|body| match body {
        RefOr::T(body) => Some(body.content.values_mut()),
        RefOr::Ref(_) => None,
    });
    let bodies = body.into_iter().flatten().filter_map(|content| match content {
        RefOr::T(content) => content.schema.as_mut(),
        RefOr::Ref(_) => None,
    });
    parameters.chain(bodies)
}

/// Takes null from the values of a schema.
fn never_null(schema: &mut RefOr<Schema>) {
    let is_null = |schema: &RefOr<Schema>| match schema {
        RefOr::T(Schema::Object(object)) => object.schema_type == SchemaType::Type(Type::Null),
        _ => false,
    };
    match schema {
        RefOr::T(Schema::Object(object)) => without_null(&mut object.schema_type),
        RefOr::T(Schema::Array(array)) => without_null(&mut array.schema_type),
        RefOr::T(Schema::OneOf(choice)) => {
            choice.items.retain(|item| !is_null(item));
            if choice.items.len() == 1 {
                *schema = choice.items.remove(0);
            }
        }
        _ => {}
    }
}

fn without_null(schema_type: &mut SchemaType) {
    if let SchemaType::Array(types) = schema_type {
        types.retain(|one| *one != Type::Null);
        if let [only] = &types[..] {
            *schema_type = SchemaType::Type(only.clone());
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.post, &mut item.put, &mut item.delete, &mut item.patch].into_iter().flatten()
}
