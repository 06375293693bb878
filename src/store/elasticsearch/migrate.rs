//! What `leasehold migrate` does: it adds fields to indices that an earlier version of the program made, and brings the
//! numbers of shards ([`super::resize`]) and replicas to what the settings say.
//!
//! Of fields, only what a server can change in place is done: they are added, and no document is written anew. Each
//! index is marked with its new version in the request that adds its fields, the live index after everything else, so
//! that a migration which ended anywhere goes on where it ended, and several at once only do the same.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::ElasticsearchOptions;
use super::connect::{IndexInfo, Link, check_version};
use super::definition::{Definitions, MAPPING_VERSION, default_fields};
use super::error::ConnectError;
use super::indices::Kind;
use super::nodes::{Nodes, Request};
use super::resize::Resize;

/// The longest duration of a migration, as a multiple of the request timeout.
const TIMES_A_REQUEST: u32 = 60;

/// One change to one index.
struct Change {
    /// A sentence that describes the change.
    what: String,
    work: Work,
}

/// What makes a change.
enum Work {
    Request(Request),
    Resize(Resize),
}

/// The part of the longest time of a write, as a fraction, for which writes may wait for another number of shards: the
/// rest is for taking it back and for writing what has waited.
const PAUSE: (u32, u32) = (2, 3);

/// A plan of the changes that bring the indices to this program's mapping version.
pub struct Migration {
    nodes: Nodes,
    options: ElasticsearchOptions,
    changes: Vec<Change>,
}

impl Migration {
    /// Returns the plan of the changes that the indices need.
    ///
    /// # Errors
    /// [`ConnectError`] when the server cannot be read, or when an index cannot be changed as needed.
    pub async fn plan(options: ElasticsearchOptions) -> Result<Self, ConnectError> {
        let (indices, nodes) = (options.indices()?, options.nodes()?);
        let mut changes = Vec::new();
        {
            let link = Link::new(&nodes, options.request_timeout.saturating_mul(TIMES_A_REQUEST));
            let flavour = link.server().await?.flavour;
            let definitions = Definitions { flavour, indices: &indices, options: &options };
            let mut found: Vec<(String, IndexInfo, Kind)> = Vec::new();
            found.extend(link.all_months(&indices).await?.into_iter().map(|(name, info)| (name, info, Kind::Archive)));
            // The live index comes last: while it has the former version, no server starts on what is half done.
            for kind in Kind::ALIASED {
                found.extend(link.find(indices.name(kind)).await?.map(|(name, info)| (name, info, kind)));
            }
            for (index, info, kind) in &found {
                changes.extend(changes_of(index, info, *kind, &definitions)?);
            }
            changes.extend(found.iter().filter_map(|(index, info, _)| replicas_of(index, info, &options)));
            for kind in Kind::ALL.into_iter().filter(|kind| kind.follows_shards()) {
                let resize = Resize::plan(&link, &indices, kind, options.shards).await?;
                changes
                    .extend(resize.map(|resize| Change { what: resize.what().to_owned(), work: Work::Resize(resize) }));
            }
        }
        Ok(Self { nodes, options, changes })
    }

    /// Returns the changes in order, each as a sentence.
    pub fn changes(&self) -> impl Iterator<Item = &str> {
        self.changes.iter().map(|change| change.what.as_str())
    }

    /// Makes the changes in order and calls `done` with each change that was made.
    ///
    /// # Errors
    /// [`ConnectError`] for the first change that could not be made. The changes before it are made; a second call
    /// continues from there.
    pub async fn apply(&self, mut done: impl FnMut(&str)) -> Result<(), ConnectError> {
        let options = &self.options;
        let link = Link::new(&self.nodes, options.request_timeout.saturating_mul(TIMES_A_REQUEST));
        let pause = options.write_timeout * PAUSE.0 / PAUSE.1;
        for Change { what, work } in &self.changes {
            match work {
                Work::Request(request) => {
                    link.send(request.clone()).await?.success().map_err(|why| {
                        let mend = "mend that and run `leasehold migrate` again";
                        ConnectError::refused(format!("cannot {what} ({why})"), mend)
                    })?;
                }
                Work::Resize(resize) => {
                    resize.apply(&self.nodes, &options.indices()?, pause, options.query_time).await?;
                }
            }
            done(what);
        }
        Ok(())
    }
}

/// Returns the change that gives an index as many replicas as the options say; `None` when it has them.
fn replicas_of(index: &str, found: &IndexInfo, options: &ElasticsearchOptions) -> Option<Change> {
    let (has, replicas) = (found.other_replicas(options)?, options.replicas?);
    let setting = json!({ "index.number_of_replicas": replicas, "index.auto_expand_replicas": "false" });
    let request = Request::put(format!("{index}/_settings"), Some(&setting));
    Some(Change { what: format!("set the replicas of `{index}`, which has {has}"), work: Work::Request(request) })
}

/// Returns the changes that an index needs; the last of them marks it with the new version.
fn changes_of(
    index: &str,
    found: &IndexInfo,
    kind: Kind,
    definitions: &Definitions<'_>,
) -> Result<Vec<Change>, ConnectError> {
    if found.version().is_none_or(|version| version >= MAPPING_VERSION) {
        return check_version(index, found).map(|()| Vec::new());
    }
    let wanted = definitions.of(kind)?;
    let (there, needed) = (fields(&found.mappings["properties"]), fields(&wanted["mappings"]["properties"]));
    let wrong: Vec<String> =
        needed.iter().filter_map(|(name, needed)| difference(name, there.get(name)?, needed)).collect();
    if !wrong.is_empty() {
        return Err(ConnectError::refused(
            format!("`{index}` cannot be migrated in place: {}", wrong.join("; ")),
            "a field's type cannot be changed in an index: use another index prefix, and let the jobs of this one end \
             under the former version",
        ));
    }
    let change = |what, path: String, body: &Value| {
        let work = Work::Request(Request::put(path, Some(body)));
        Change { what, work }
    };
    let mut changes = Vec::new();
    if let Some(table) = kind.table() {
        let setting = json!({ "index.query.default_field": default_fields(table) });
        let what = format!("set the default fields of `{index}`");
        changes.push(change(what, format!("{index}/_settings"), &setting));
    }
    let added: Vec<&str> = needed.keys().filter(|name| !there.contains_key(*name)).map(String::as_str).collect();
    let what = match added.as_slice() {
        [] => format!("mark `{index}` with mapping {MAPPING_VERSION}"),
        names => format!("add {} to `{index}`, and mark it with mapping {MAPPING_VERSION}", names.join(", ")),
    };
    // Whole properties, since a field inside another is added with it; existing fields stay as they are.
    let mut properties = wanted["mappings"]["properties"].clone();
    if let Some(properties) = properties.as_object_mut() {
        properties.retain(|name, _| added.iter().any(|added| added.split('.').next() == Some(name)));
    }
    let mapping = json!({ "_meta": wanted["mappings"]["_meta"], "properties": properties });
    changes.push(change(what, format!("{index}/_mapping"), &mapping));
    Ok(changes)
}

/// Returns every field of a mapping by its full name, with its definition but without a date's format, which may
/// differ.
fn fields(properties: &Value) -> BTreeMap<String, Value> {
    fn walk(prefix: &str, properties: &Value, fields: &mut BTreeMap<String, Value>) {
        for (name, field) in properties.as_object().into_iter().flatten() {
            let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            let mut own = field.clone();
            if let Some(own) = own.as_object_mut() {
                own.retain(|key, _| !["properties", "fields", "format"].contains(&key.as_str()));
                // The server leaves the type out when it is the default.
                if own.get("type").is_some_and(|of| of == "object") {
                    own.remove("type");
                }
            }
            for inner in ["properties", "fields"] {
                walk(&name, &field[inner], fields);
            }
            fields.insert(name, own);
        }
    }
    let mut found = BTreeMap::new();
    walk("", properties, &mut found);
    found
}

fn difference(name: &str, found: &Value, needed: &Value) -> Option<String> {
    (found != needed).then(|| format!("`{name}` is {found} where {needed} is needed"))
}

#[cfg(test)]
mod tests {
    use super::super::flavour::Flavour;
    use super::*;

    fn changes(kind: Kind, change: impl FnOnce(&mut Value)) -> Result<Vec<Change>, ConnectError> {
        let options = ElasticsearchOptions::default();
        let indices = options.indices().expect("names");
        let definitions = Definitions { flavour: Flavour::Elasticsearch, indices: &indices, options: &options };
        let mut found = definitions.of(kind).expect("JSON");
        found["mappings"]["_meta"]["leasehold"]["version"] = 0.into();
        change(&mut found["mappings"]["properties"]);
        let info = json!({ "mappings": found["mappings"] });
        changes_of("x", &serde_json::from_value(info).expect("an index"), kind, &definitions)
    }

    #[test]
    fn fields_that_are_missing_are_added_also_inside_others() {
        let changes = changes(Kind::Jobs, |properties| {
            let top = properties.as_object_mut().expect("fields");
            top.remove("wait_ms");
            properties["error"]["properties"].as_object_mut().expect("fields").remove("code");
        });
        let changes = changes.expect("they can be added");
        assert_eq!(changes.len(), 2);
        assert_eq!(changes[1].what, "add error.code, wait_ms to `x`, and mark it with mapping 6");
    }

    #[test]
    fn a_field_of_another_type_is_refused_and_a_date_of_another_format_is_not() {
        let refused =
            changes(Kind::Jobs, |properties| properties["error"]["properties"]["code"]["type"] = "text".into());
        assert!(refused.err().is_some_and(|error| error.to_string().contains("`error.code`")));
        let format = changes(Kind::Jobs, |properties| properties["run_at"]["format"] = "epoch_millis".into());
        assert_eq!(
            format.expect("nothing to add").last().map(|change| change.what.as_str()),
            Some("mark `x` with mapping 6")
        );
        assert!(changes(Kind::Records, |properties| properties["more"] = json!({ "type": "long" })).is_ok());
    }
}
