//! What the indices are made as: their mappings from `mappings/`, with what is configurable filled in.

use serde_json::{Value, json};

use super::flavour::Flavour;
use super::{ElasticsearchOptions, Indices, tombstone};
use crate::query::fields::FIELDS;

/// The mappings' version; raised when a field is added or changed. [`super::migrate`] says how older ones get there.
pub(super) const MAPPING_VERSION: u64 = 2;
const JOBS: &str = include_str!("../../../mappings/jobs.json");
const BODIES: &str = include_str!("../../../mappings/bodies.json");
const RECORDS: &str = include_str!("../../../mappings/records.json");
/// Goes over the templates that Elasticsearch brings, and over what people make for everything.
pub(super) const TEMPLATE_PRIORITY: u32 = 500;

/// What an index holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Live jobs.
    Jobs,
    /// A month of the history.
    History,
    /// Bodies that are kept apart.
    Bodies,
    /// Records.
    Records,
}

/// Makes definitions for one server.
#[derive(Clone, Copy)]
pub(super) struct Definitions<'a> {
    pub(super) flavour: Flavour,
    pub(super) indices: &'a Indices,
    pub(super) options: &'a ElasticsearchOptions,
}

impl Definitions<'_> {
    /// The settings, mappings and aliases of a new index.
    pub(super) fn of(&self, kind: Kind) -> Result<Value, serde_json::Error> {
        let text = match kind {
            Kind::Jobs | Kind::History => JOBS,
            Kind::Bodies => BODIES,
            Kind::Records => RECORDS,
        };
        let mut definition: Value = serde_json::from_str(text)?;
        if matches!(kind, Kind::Jobs | Kind::History) {
            definition = self.flavour.adapt(definition);
            definition["settings"]["index"]["query"] = json!({ "default_field": default_fields() });
            definition["aliases"] = json!({ &self.indices.all: alias(kind) });
        }
        Ok(with_options(definition, self.options))
    }

    /// The template for months' indices.
    pub(super) fn template(&self) -> Result<Value, serde_json::Error> {
        Ok(json!({
            "index_patterns": [self.indices.months()],
            "priority": TEMPLATE_PRIORITY,
            "template": self.of(Kind::History)?,
            "_meta": { "leasehold": { "version": MAPPING_VERSION } },
        }))
    }
}

/// Under what condition the documents of an index are seen through the alias over all.
pub(super) fn alias(kind: Kind) -> Value {
    match kind {
        Kind::Jobs => json!({ "filter": { "bool": { "must_not": { "exists": { "field": tombstone::FIELD } } } } }),
        Kind::History | Kind::Bodies | Kind::Records => json!({}),
    }
}

/// Where Kibana looks for a word without a field: where [`crate::query::kql`] does.
pub(super) fn default_fields() -> Vec<&'static str> {
    FIELDS.iter().filter(|field| field.default).map(|field| field.name).collect()
}

/// Fills in what is configurable.
fn with_options(mut definition: Value, options: &ElasticsearchOptions) -> Value {
    let settings = &mut definition["settings"]["index"];
    settings["number_of_shards"] = options.shards.into();
    // Named although it is the default: a shard without the setting stops refreshing while nobody searches it.
    settings["refresh_interval"] = format!("{}ms", options.refresh_interval.as_millis().max(1)).into();
    set_replicas(settings, options.replicas);
    definition
}

/// So many copies of each shard, or one as soon as there is a second node.
pub(super) fn set_replicas(settings: &mut Value, replicas: Option<u32>) {
    match replicas {
        Some(replicas) => settings["number_of_replicas"] = replicas.into(),
        None => settings["auto_expand_replicas"] = "0-1".into(),
    }
}
