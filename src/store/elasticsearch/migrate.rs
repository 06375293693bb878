//! Bringing indices that an earlier version of the program made to what this one needs: what `leasehold migrate` does.
//!
//! [`VERSIONS`] says what each version of the mappings added. Only what a server can change in place is done: fields and
//! settings that are added, never a document written anew. Each index is marked with its new version in the same request
//! that adds the last of it, the live index after everything else, so that a migration which ended anywhere goes on where it
//! ended, and several at once only do the same.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::connect::{ConnectError, IndexInfo, Link, check_version};
use super::definition::{Definitions, Kind, MAPPING_VERSION, alias, default_fields};
use super::nodes::{Nodes, Request};
use super::{ElasticsearchOptions, Indices};

/// What a version of the mappings changed.
enum Step {
    /// New fields of job documents; the mapping says of which type.
    AddJobFields(&'static [&'static str]),
    /// Where words without a field are looked for, in Kibana.
    SetDefaultFields,
    /// What an index that is there cannot be given, and what follows from it.
    OnlyNewIndices(&'static str),
}

/// The versions after the first, and their steps.
const VERSIONS: &[(u64, &[Step])] = &[(
    2,
    &[
        Step::AddJobFields(&["moved_to", "moved_at", "wait_ms", "run_time_ms"]),
        Step::SetDefaultFields,
        Step::OnlyNewIndices(
            "it goes on taking dates in Kibana only with a time (`2030-01-31T00:00:00Z`): the format of a date field cannot \
             be changed in place; months made from now on take `2030-01-31` too",
        ),
    ],
)];

/// How often a request's time a migration may take.
const TIMES_A_REQUEST: u32 = 60;

/// One change of one index, or of what belongs to all.
struct Change {
    /// In words.
    what: String,
    request: Request,
}

/// What is to be done.
pub struct Migration {
    nodes: Nodes,
    options: ElasticsearchOptions,
    changes: Vec<Change>,
    notes: Vec<String>,
}

impl Migration {
    /// Finds out what is to be done, and whether it can be.
    ///
    /// # Errors
    /// [`ConnectError`]; also when an index cannot be brought to what is needed.
    pub async fn plan(options: ElasticsearchOptions) -> Result<Self, ConnectError> {
        let (indices, nodes) = (options.indices()?, options.nodes()?);
        let mut plan = Plan { changes: Vec::new(), notes: Vec::new() };
        {
            let link = Link::new(&nodes, options.request_timeout.saturating_mul(TIMES_A_REQUEST));
            let flavour = link.server().await?.flavour;
            plan.all(&link, &Definitions { flavour, indices: &indices, options: &options }).await?;
        }
        Ok(Self { nodes, options, changes: plan.changes, notes: plan.notes })
    }

    /// What is to be done, a sentence each, in order.
    pub fn changes(&self) -> impl Iterator<Item = &str> {
        self.changes.iter().map(|change| change.what.as_str())
    }

    /// What is to be known beside it.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().map(String::as_str)
    }

    /// Does it, and tells of each change that is done.
    ///
    /// # Errors
    /// The first change that could not be made. Those before it are made; the same again goes on from there.
    pub async fn apply(&self, mut done: impl FnMut(&str)) -> Result<(), ConnectError> {
        let link = Link::new(&self.nodes, self.options.request_timeout.saturating_mul(TIMES_A_REQUEST));
        for Change { what, request } in &self.changes {
            link.send(request.clone()).await?.success().map_err(|why| {
                ConnectError::refused(format!("cannot {what} ({why})"), "mend that and run `leasehold migrate` again")
            })?;
            done(what);
        }
        Ok(())
    }
}

struct Plan {
    changes: Vec<Change>,
    notes: Vec<String>,
}

impl Plan {
    /// The live index comes last: while it has the former version, no server starts on what is half done.
    async fn all(&mut self, link: &Link<'_>, definitions: &Definitions<'_>) -> Result<(), ConnectError> {
        let indices = definitions.indices;
        let Some(jobs) = link.find(&indices.jobs).await? else { return Ok(()) };
        for (month, info) in link.all_months(indices).await? {
            self.index(&month, &info, Kind::History, definitions)?;
        }
        for (index, kind) in [(&indices.bodies, Kind::Bodies), (&indices.records, Kind::Records)] {
            if let Some(info) = link.find(index).await? {
                self.index(index, &info, kind, definitions)?;
            }
        }
        if !link.has_template(indices).await? {
            let template = definitions.template().map_err(|error| broken(&error))?;
            let what = format!("make the index template `{}`", indices.history);
            self.change(what, format!("_index_template/{}", indices.history), &template);
        }
        self.index(&indices.jobs, &jobs, Kind::Jobs, definitions)?;
        // Its filter is on a new field. Where this is as far as it gets, the next server that starts makes it.
        if !link.has_alias(indices).await? {
            let Indices { jobs, all, .. } = indices;
            let what = format!("put `{jobs}` under the alias `{all}`, without what was moved");
            self.change(what, format!("{jobs}/_alias/{all}"), &alias(Kind::Jobs));
        }
        Ok(())
    }

    fn change(&mut self, what: String, path: String, body: &Value) {
        self.changes.push(Change { what, request: Request::put(path, body.to_string().into_bytes()) });
    }

    fn index(
        &mut self,
        index: &str,
        found: &IndexInfo,
        kind: Kind,
        definitions: &Definitions<'_>,
    ) -> Result<(), ConnectError> {
        let version = match found.version() {
            Some(version) if version < MAPPING_VERSION => version,
            _ => return check_version(index, found),
        };
        let wanted = definitions.of(kind).map_err(|error| broken(&error))?;
        let is_of_jobs = matches!(kind, Kind::Jobs | Kind::History);
        let mut added = Map::new();
        let steps = VERSIONS.iter().filter(|(number, _)| *number > version).flat_map(|(_, steps)| *steps);
        for step in steps.filter(|_| is_of_jobs) {
            match step {
                Step::AddJobFields(names) => {
                    for name in *names {
                        if found.mappings["properties"].get(*name).is_none() {
                            added.insert((*name).to_owned(), wanted["mappings"]["properties"][*name].clone());
                        }
                    }
                }
                Step::SetDefaultFields => {
                    let setting = json!({ "index.query.default_field": default_fields() });
                    self.change(format!("set the default fields of `{index}`"), format!("{index}/_settings"), &setting);
                }
                Step::OnlyNewIndices(what) => self.notes.push(format!("`{index}`: {what}")),
            }
        }
        let mut there = fields(&found.mappings["properties"]);
        there.extend(fields(&Value::Object(added.clone())));
        let wrong = differences(&there, &fields(&wanted["mappings"]["properties"]));
        if !wrong.is_empty() {
            return Err(ConnectError::refused(
                format!("`{index}` cannot be migrated in place: {}", wrong.join("; ")),
                "a field's type cannot be changed in an index: use another index prefix, and let the jobs of this one end \
                 under the former version",
            ));
        }
        let names: Vec<&str> = added.keys().map(String::as_str).collect();
        let what = match names.as_slice() {
            [] => format!("mark `{index}` with mapping {MAPPING_VERSION}"),
            names => format!("add {} to `{index}`, and mark it with mapping {MAPPING_VERSION}", names.join(", ")),
        };
        let mapping = json!({ "_meta": wanted["mappings"]["_meta"], "properties": added });
        self.change(what, format!("{index}/_mapping"), &mapping);
        Ok(())
    }
}

fn broken(error: &serde_json::Error) -> ConnectError {
    ConnectError::refused("a mapping is not JSON", error.to_string())
}

/// Every field of a mapping by its whole name, with what is said of it; a date's format apart, which may differ.
fn fields(properties: &Value) -> BTreeMap<String, Value> {
    fn walk(prefix: &str, properties: &Value, fields: &mut BTreeMap<String, Value>) {
        for (name, field) in properties.as_object().into_iter().flatten() {
            let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            let mut own = field.clone();
            if let Some(own) = own.as_object_mut() {
                own.retain(|key, _| !["properties", "fields", "format"].contains(&key.as_str()));
                // What the server leaves out, since it is the default.
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

/// What is missing or otherwise than it is wanted, in words. What is there beyond that does no harm.
fn differences(found: &BTreeMap<String, Value>, wanted: &BTreeMap<String, Value>) -> Vec<String> {
    let differs = |(name, wanted): (&String, &Value)| match found.get(name) {
        None => Some(format!("it lacks `{name}`")),
        Some(found) if found != wanted => Some(format!("`{name}` is {found} where {wanted} is needed")),
        Some(_) => None,
    };
    wanted.iter().filter_map(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_up_to_this_one_has_its_steps() {
        let numbers: Vec<u64> = VERSIONS.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (2..=MAPPING_VERSION).collect::<Vec<_>>());
    }

    #[test]
    fn a_field_of_another_type_is_a_difference_and_a_date_of_another_format_is_none() {
        let wanted = fields(&json!({
            "at": { "type": "date", "format": "strict_date_optional_time" },
            "error": { "properties": { "code": { "type": "keyword" } } },
            "payload": { "type": "object", "enabled": false },
        }));
        let found = json!({
            "at": { "type": "date" },
            "error": { "properties": { "code": { "type": "text" } } },
            "payload": { "enabled": false },
            "more": { "type": "long" },
        });
        let wrong = differences(&fields(&found), &wanted);
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(wrong[0].contains("`error.code`"), "{wrong:?}");
        assert_eq!(differences(&BTreeMap::new(), &wanted).len(), 4);
    }
}
