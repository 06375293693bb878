//! The shards of an index, and what an interrupted change of their number has left ([`super::resize`]).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::connect::Link;
use super::error::ConnectError;
use super::indices::{Indices, Kind};
use super::nodes::Request;

/// The most shards of an index.
const MAX_SHARDS: u32 = 1_024;
/// What a look asks for.
const WANTED: &str = "metadata.indices.*.aliases,metadata.indices.*.settings_version,\
                      metadata.indices.*.routing_num_shards,metadata.indices.*.settings.index,\
                      metadata.indices.*.mappings._doc._meta,routing_table.indices.*.shards";

#[derive(Default, Deserialize)]
struct State {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    routing_table: Routing,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    indices: BTreeMap<String, Index>,
}

#[derive(Default, Deserialize)]
struct Routing {
    #[serde(default)]
    indices: BTreeMap<String, RoutedIndex>,
}

#[derive(Deserialize)]
struct RoutedIndex {
    shards: BTreeMap<String, Vec<Copy>>,
}

#[derive(Deserialize)]
struct Copy {
    state: String,
    node: Option<String>,
}

/// An index, as the cluster's state has it.
#[derive(Clone, Deserialize)]
pub(super) struct Index {
    #[serde(default)]
    aliases: Vec<String>,
    settings: Value,
    /// Raised by every change of its settings.
    pub(super) settings_version: u64,
    /// The number that every number of shards divides to which it can be split.
    pub(super) routing_num_shards: u32,
    #[serde(default)]
    mappings: Value,
}

impl Index {
    pub(super) fn setting(&self, name: &str) -> &str {
        self.settings["index"][name].as_str().unwrap_or_default()
    }

    pub(super) fn shards(&self) -> u32 {
        self.setting("number_of_shards").parse().unwrap_or_default()
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.settings["index"]["blocks"]["write"] == "true"
    }

    /// Returns the identities of the indices that this one was made of, and its own.
    pub(super) fn lineage(&self) -> Vec<String> {
        let former = &self.mappings["_doc"]["_meta"]["leasehold"]["lineage"];
        let mut lineage: Vec<String> = serde_json::from_value(former.clone()).unwrap_or_default();
        if lineage.last().is_none_or(|last| last != self.setting("uuid")) {
            lineage = vec![self.setting("uuid").to_owned()];
        }
        lineage
    }
}

/// What stands behind an alias and beside it.
pub(super) struct Found {
    live: Option<(String, Index)>,
    /// The marks of the live index.
    pub(super) marks: Vec<String>,
    pub(super) half_made: BTreeMap<String, Index>,
    pub(super) replaced: Vec<String>,
    /// The highest number of an index.
    pub(super) last_number: u32,
    routing: Routing,
}

/// Returns the numbers of shards that an index can be brought to in one step.
pub(super) fn possible(from: u32, routing: u32) -> Vec<u32> {
    let split = |to: u32| to.is_multiple_of(from) && (from == 1 || routing.is_multiple_of(to));
    (1..=MAX_SHARDS).filter(|to| *to != from && (from.is_multiple_of(*to) || split(*to))).collect()
}

impl Found {
    /// Reads what stands behind the alias of a kind, and beside it.
    pub(super) async fn look(link: &Link<'_>, indices: &Indices, kind: Kind) -> Result<Self, ConnectError> {
        let alias = indices.name(kind);
        let path = format!("_cluster/state/metadata,routing_table/{alias}-*?filter_path={WANTED}");
        let body = link.send(Request::get(path)).await?.success().map_err(ConnectError::NotYet)?;
        let state: State = serde_json::from_slice(&body)
            .map_err(|error| ConnectError::NotYet(format!("not an answer about indices: {error}")))?;
        let mut found = Self {
            live: None,
            marks: Vec::new(),
            half_made: BTreeMap::new(),
            replaced: Vec::new(),
            last_number: 0,
            routing: state.routing_table,
        };
        for (name, index) in state.metadata.indices {
            let number = name.strip_prefix(alias).and_then(|rest| rest.strip_prefix('-')?.parse().ok());
            found.last_number = found.last_number.max(number.unwrap_or_default());
            let has = |alias: &String| index.aliases.contains(alias);
            let mut marks = index.aliases.iter().filter(|alias| alias.starts_with(&indices.resizing)).cloned();
            if has(&alias.to_owned()) {
                found.marks = marks.collect();
                found.live = Some((name, index));
            } else if has(&indices.replaced) {
                found.replaced.push(name);
            } else if marks.next().is_some() {
                found.half_made.insert(name, index);
            }
        }
        Ok(found)
    }

    /// Returns whether anything is left of an interrupted change.
    pub(super) fn is_left(&self) -> bool {
        !(self.marks.is_empty() && self.half_made.is_empty() && self.replaced.is_empty())
    }

    /// Returns the index behind the alias, with its name.
    pub(super) fn live(self) -> Result<(String, Index), ConnectError> {
        self.live.ok_or_else(no_index)
    }

    /// Returns whether the index behind the alias takes no writes.
    pub(super) fn is_blocked(&self) -> Result<bool, ConnectError> {
        self.live.as_ref().map(|(_, index)| index.is_blocked()).ok_or_else(no_index)
    }

    /// Returns the node with started copies of the most shards of an index, and whether it has all.
    pub(super) fn gathered(&self, index: &str) -> Option<(String, bool)> {
        let shards = &self.routing.indices.get(index)?.shards;
        let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
        for copies in shards.values() {
            for node in copies.iter().filter(|copy| copy.state == "STARTED").filter_map(|copy| copy.node.as_deref()) {
                *nodes.entry(node).or_default() += 1;
            }
        }
        let (node, most) = nodes.into_iter().max_by_key(|(_, many)| *many)?;
        Some((node.to_owned(), most == shards.len()))
    }
}

fn no_index() -> ConnectError {
    ConnectError::NotYet("the index is gone".to_owned())
}

/// How many copies of an index's shards are there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Status {
    /// A shard has none.
    Red,
    /// Every shard has a primary.
    Yellow,
    /// All.
    Green,
}

impl Status {
    pub(super) async fn read(link: &Link<'_>, index: &str) -> Result<Self, ConnectError> {
        let path = format!("_cluster/health/{index}?timeout=1s&filter_path=status");
        let health: Value = serde_json::from_slice(&link.send(Request::get(path)).await?.body).unwrap_or_default();
        Ok(match health["status"].as_str() {
            Some("green") => Self::Green,
            Some("yellow") => Self::Yellow,
            _ => Self::Red,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_multiplied_within_the_routing_shards_and_divided() {
        assert_eq!(possible(4, 1_024), [1, 2, 8, 16, 32, 64, 128, 256, 512, 1_024]);
        assert_eq!(possible(3, 768), [1, 6, 12, 24, 48, 96, 192, 384, 768]);
        let from_one = possible(1, 1_024);
        assert_eq!((from_one.len(), from_one[0], from_one[1]), (1_023, 2, 3));
        assert_eq!(possible(6, 6), [1, 2, 3]);
    }
}
