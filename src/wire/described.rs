//! Types of the API's description alone: what it says of ids, queues, labels and resources that their types in
//! requests and answers do not.

use serde_json::{Value, json};
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::schema::{AdditionalProperties, AllOfBuilder, SchemaType};
use utoipa::openapi::{ArrayBuilder, KnownFormat, ObjectBuilder, Ref, RefOr, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

use super::check::{
    MAX_CLAIMED_QUEUES, MAX_LABEL_BYTES, MAX_LABELS, MAX_RESOURCES, RESERVED_IDS, RESERVED_SCHEDULE_IDS,
};
use crate::job::{
    JobId, LabelName, MAX_RESOURCE_NAME, Owner, QueueName, RESERVED_ACTORS, RESOURCE_NAME_PATTERN, ScheduleId, WorkerId,
};
use crate::manager::{MAX_QUEUE_WEIGHT, MAX_WEIGHT, MAX_WEIGHTS};

/// The schema of a type.
pub(crate) type Described = RefOr<Schema>;
/// The schemas that others refer to, with their names.
pub(crate) type Components = Vec<(String, Described)>;

/// Returns a reference to the schema of `T`.
pub(crate) fn reference<T: ToSchema>() -> Ref {
    Ref::from_schema_name(T::name())
}

/// Adds the schema of `T`, and of what it refers to, to the components.
pub(crate) fn add<T: ToSchema>(components: &mut Components) {
    components.push((T::name().into_owned(), T::schema()));
    T::schemas(components);
}

/// Returns the schema of the values of `T` that `not` does not describe.
fn except<T: ToSchema>(description: &str, not: Value) -> Described {
    // The builder has no keyword `not`; what it calls extensions stands beside the keywords.
    let others = ObjectBuilder::new().schema_type(Type::String).extensions(Some(Extensions::from_iter([("not", not)])));
    AllOfBuilder::new().description(Some(description)).item(reference::<T>()).item(others).into()
}

/// Returns the schema of a bulk body with one `T` per line, of which there may be `most`.
pub(crate) fn lines<T: ToSchema>(description: &str, most: Option<usize>) -> Described {
    let lines = ArrayBuilder::new().description(Some(description)).items(reference::<T>());
    lines.max_items(most).into()
}

/// An id that a client may choose for a job.
pub(crate) struct NewJobId;

impl PartialSchema for NewJobId {
    fn schema() -> Described {
        except::<JobId>("A client's own id for a job.", json!({"enum": RESERVED_IDS}))
    }
}

impl ToSchema for NewJobId {
    fn schemas(components: &mut Components) {
        add::<JobId>(components);
    }
}

/// An id that a client may choose for a schedule.
pub(crate) struct NewScheduleId;

impl PartialSchema for NewScheduleId {
    fn schema() -> Described {
        except::<ScheduleId>("A client's own id for a schedule.", json!({"enum": RESERVED_SCHEDULE_IDS}))
    }
}

impl ToSchema for NewScheduleId {
    fn schemas(components: &mut Components) {
        add::<ScheduleId>(components);
    }
}

/// The name of a queue that clients may submit to or claim from.
pub(crate) struct UserQueue;

impl PartialSchema for UserQueue {
    fn schema() -> Described {
        let internal = format!("^{}", QueueName::INTERNAL.replace('.', r"\."));
        except::<QueueName>("The name of a queue that is not one of the system's own.", json!({"pattern": internal}))
    }
}

impl ToSchema for UserQueue {
    fn schemas(components: &mut Components) {
        add::<QueueName>(components);
    }
}

/// The id that a client's worker gives itself.
pub(crate) struct UserWorker;

impl PartialSchema for UserWorker {
    fn schema() -> Described {
        let internal = QueueName::INTERNAL.replace('.', r"\.");
        let reserved = format!("^(?:{internal}|(?:{})$)", RESERVED_ACTORS.join("|"));
        except::<WorkerId>(
            "The id of a worker, under which the system itself does not act.",
            json!({"pattern": reserved}),
        )
    }
}

impl ToSchema for UserWorker {
    fn schemas(components: &mut Components) {
        add::<WorkerId>(components);
    }
}

/// Returns the schema of a map with these names and values.
fn by_name(description: &str, max: usize, names: impl Into<Schema>, values: ObjectBuilder) -> Described {
    ObjectBuilder::new()
        .description(Some(description))
        .property_names(Some(names))
        .additional_properties(Some(AdditionalProperties::RefOr(values.into())))
        .max_properties(Some(max))
        .into()
}

/// The labels of a job.
pub(crate) struct Labels;

impl PartialSchema for Labels {
    fn schema() -> Described {
        let values = ObjectBuilder::new().schema_type(Type::String).max_length(Some(MAX_LABEL_BYTES));
        by_name("Labels by name, with values of at most 1,024 bytes.", MAX_LABELS, LabelName::schema(), values)
    }
}

impl ToSchema for Labels {}

/// The labels of a job that are set and removed.
pub(crate) struct LabelChanges;

impl PartialSchema for LabelChanges {
    fn schema() -> Described {
        let types = SchemaType::from_iter([Type::String, Type::Null]);
        let values = ObjectBuilder::new().schema_type(types).max_length(Some(MAX_LABEL_BYTES));
        by_name("Labels to set by name; null removes one.", MAX_LABELS, LabelName::schema(), values)
    }
}

impl ToSchema for LabelChanges {}

/// The resources that a job needs or a worker offers.
pub(crate) struct Resources;

impl PartialSchema for Resources {
    fn schema() -> Described {
        let names = ObjectBuilder::new()
            .schema_type(Type::String)
            .min_length(Some(1))
            .max_length(Some(MAX_RESOURCE_NAME))
            .pattern(Some(RESOURCE_NAME_PATTERN));
        let values = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .minimum(Some(0))
            .maximum(Some(i64::MAX));
        by_name("Amounts of resources by name.", MAX_RESOURCES, names, values)
    }
}

impl ToSchema for Resources {}

/// Returns the schema of weights by name.
fn weights(description: &str, most: usize, names: Described, greatest: u32) -> Described {
    let names = match names {
        RefOr::T(names) => names,
        RefOr::Ref(_) => Schema::default(),
    };
    let values = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .minimum(Some(1))
        .maximum(Some(greatest));
    by_name(description, most, names, values)
}

/// The weights of the owners of a queue's jobs.
pub(crate) struct OwnerWeights;

impl PartialSchema for OwnerWeights {
    fn schema() -> Described {
        weights("Weights of owners by name.", MAX_WEIGHTS, Owner::schema(), MAX_WEIGHT)
    }
}

impl ToSchema for OwnerWeights {}

/// The weights of the queues of a claim.
pub(crate) struct QueueWeights;

impl PartialSchema for QueueWeights {
    fn schema() -> Described {
        weights("Weights of queues by name.", MAX_CLAIMED_QUEUES, UserQueue::schema(), MAX_QUEUE_WEIGHT)
    }
}

impl ToSchema for QueueWeights {
    fn schemas(components: &mut Components) {
        add::<QueueName>(components);
    }
}
