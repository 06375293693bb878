//! The fields of a job, and how they can be queried.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::query::fields::Field;

/// The list of a job's fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldList {
    /// The fields: those that can be queried, and those that are only stored.
    pub items: Vec<FieldDescription>,
}

/// A field of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldDescription {
    /// The field's name, which is the same in queries, in answers and in the index.
    #[schema(example = "lease.worker_id")]
    pub name: String,
    /// How the field can be queried: as `keyword`, `text`, `date`, `integer`, `number`, `boolean` or `labels`; `kept`
    /// if it cannot.
    #[schema(example = "keyword")]
    pub r#type: String,
    /// What the field means.
    #[schema(example = "Who runs it.")]
    pub meaning: String,
    /// A query for the field; for a field that cannot be queried, a value.
    #[schema(example = "lease.worker_id: worker-7")]
    pub example: String,
    /// Whether lists can be ordered by the field.
    pub sortable: bool,
    /// Whether counts and statistics can be grouped by the field, or by one label in the case of the labels.
    pub groupable: bool,
    /// Whether a value without a field is searched for in this field.
    pub default: bool,
    /// The list that the field is a part of, as in `history: { to: running }`; null for other fields.
    pub nested_in: Option<String>,
    /// The field's possible values when there are only a few; otherwise empty.
    pub values: Vec<String>,
}

impl From<&Field> for FieldDescription {
    fn from(field: &Field) -> Self {
        Self {
            name: field.name.to_owned(),
            r#type: field.kind.as_str().to_owned(),
            meaning: field.meaning.to_owned(),
            example: field.example.to_owned(),
            sortable: field.sortable,
            groupable: field.groupable,
            default: field.default,
            nested_in: field.nested_in().map(str::to_owned),
            values: field.values().into_iter().map(str::to_owned).collect(),
        }
    }
}
