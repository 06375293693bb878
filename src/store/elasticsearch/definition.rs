//! The definitions of the indices: their mappings from `mappings/`, with the configured settings filled in.
//!
//! The indices of jobs, bodies, records and schedules are reached through an alias each, so that one can be exchanged
//! for another later. Each also has a template, so that no index with such a name can come to be with another mapping,
//! nor by a write alone where the server lets a template forbid that.

use serde_json::{Value, json};

use super::error::ConnectError;
use super::flavour::Flavour;
use super::indices::{Indices, Kind};
use super::{ElasticsearchOptions, tombstone};
use crate::query::table::Table;

/// The mappings' version; raised when a field is added. [`super::migrate`] says how older indices get there.
pub(super) const MAPPING_VERSION: u64 = 6;
const JOBS: &str = include_str!("../../../mappings/jobs.json");
const BODIES: &str = include_str!("../../../mappings/bodies.json");
const RECORDS: &str = include_str!("../../../mappings/records.json");
const SCHEDULES: &str = include_str!("../../../mappings/schedules.json");
/// The number of primary shards of an index for which none is set: one holds the live jobs of most, since those that
/// have ended leave it, and every search asks each shard.
const DEFAULT_SHARDS: u32 = 1;
/// The priority of the templates, above those of Elasticsearch's own and of users' catch-all templates.
pub(super) const TEMPLATE_PRIORITY: u32 = 500;

/// Makes definitions for one server.
#[derive(Clone, Copy)]
pub(super) struct Definitions<'a> {
    pub(super) flavour: Flavour,
    pub(super) indices: &'a Indices,
    pub(super) options: &'a ElasticsearchOptions,
}

impl Definitions<'_> {
    /// Returns the settings, mappings and aliases of a new index.
    pub(super) fn of(&self, kind: Kind) -> Result<Value, ConnectError> {
        let text = match kind {
            Kind::Jobs | Kind::Archive => JOBS,
            Kind::Bodies => BODIES,
            Kind::Records => RECORDS,
            Kind::Schedules => SCHEDULES,
        };
        let mut definition: Value = serde_json::from_str(text)
            .map_err(|error| ConnectError::refused("a mapping is not JSON", error.to_string()))?;
        if kind.has_labels() {
            definition = self.flavour.adapt(definition);
        }
        if let Some(table) = kind.table() {
            definition["settings"]["index"]["query"] = json!({ "default_field": default_fields(table) });
        }
        let Indices { all, .. } = self.indices;
        let own = self.indices.name(kind);
        definition["aliases"] = match kind {
            Kind::Jobs => json!({ own: {}, all: without_tombstones() }),
            Kind::Archive => json!({ all: {} }),
            Kind::Bodies | Kind::Records | Kind::Schedules => json!({ own: {} }),
        };
        Ok(with_options(definition, kind, self.options))
    }

    /// Returns the template for indices of a kind. It does not set the kind's alias: a new index gets that only when it
    /// replaces the former one.
    pub(super) fn template(&self, kind: Kind) -> Result<Value, ConnectError> {
        let name = self.indices.name(kind);
        let mut template = self.of(kind)?;
        if kind != Kind::Archive {
            template["aliases"] = json!({});
        }
        Ok(self.flavour.without_auto_creation(json!({
            "index_patterns": [name, format!("{name}-*")],
            "priority": TEMPLATE_PRIORITY,
            "template": template,
            "_meta": { "leasehold": { "version": MAPPING_VERSION } },
        })))
    }
}

/// Returns the definition of the alias over all jobs for the live index, which leaves tombstones out.
pub(super) fn without_tombstones() -> Value {
    json!({ "filter": { "bool": { "must_not": { "exists": { "field": tombstone::FIELD } } } } })
}

/// Returns the fields in which Kibana searches a word without a field; [`crate::query::kql`] searches the same ones.
pub(super) fn default_fields(table: Table) -> Vec<&'static str> {
    table.fields().iter().filter(|field| field.default).map(|field| field.name).collect()
}

/// Fills the configured settings into a definition.
fn with_options(mut definition: Value, kind: Kind, options: &ElasticsearchOptions) -> Value {
    let settings = &mut definition["settings"]["index"];
    let shards = options.shards.filter(|_| kind.follows_shards());
    settings["number_of_shards"] = shards.unwrap_or(DEFAULT_SHARDS).into();
    // Named although it is the default: a shard without the setting stops refreshing while nobody searches it.
    settings["refresh_interval"] = format!("{}ms", options.refresh_interval.as_millis().max(1)).into();
    set_replicas(settings, options.replicas);
    definition
}

/// Sets the number of replicas; `None` stands for one as soon as there is a second node.
pub(super) fn set_replicas(settings: &mut Value, replicas: Option<u32>) {
    match replicas {
        Some(replicas) => settings["number_of_replicas"] = replicas.into(),
        None => settings["auto_expand_replicas"] = "0-1".into(),
    }
}
