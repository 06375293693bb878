//! The server's flavour. All that differs between Elasticsearch and OpenSearch is here.

use std::fmt;

use serde::Deserialize;
use serde_json::{Value, json};

/// The oldest Elasticsearch that is supported, by its major version.
const OLDEST_ELASTICSEARCH: u32 = 8;
/// The oldest OpenSearch that is supported, by its major version.
const OLDEST_OPENSEARCH: u32 = 2;

/// The product that a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavour {
    Elasticsearch,
    OpenSearch,
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Elasticsearch => "Elasticsearch",
            Self::OpenSearch => "OpenSearch",
        })
    }
}

impl Flavour {
    /// Turns the definition of an index with labels, written for Elasticsearch, into this server's.
    pub(super) fn adapt(self, mut definition: Value) -> Value {
        if self == Self::OpenSearch {
            // OpenSearch's name for a field that indexes an object with arbitrary keys, which has no `ignore_above`.
            definition["mappings"]["properties"]["labels"] = json!({ "type": "flat_object" });
        }
        definition
    }
}

impl Flavour {
    /// Has a template forbid that a write to a name of its pattern makes the index. OpenSearch does not know this.
    pub(super) fn without_auto_creation(self, mut template: Value) -> Value {
        if self == Self::Elasticsearch {
            template["allow_auto_create"] = json!(false);
        }
        template
    }
}

/// The server as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) flavour: Flavour,
    /// The oldest version among its nodes.
    pub(super) version: String,
}

#[derive(Deserialize)]
struct NodesReply {
    nodes: std::collections::HashMap<String, Node>,
}

#[derive(Deserialize)]
struct Node {
    version: String,
    #[serde(default)]
    build_flavor: Option<String>,
}

impl Server {
    /// The path of the request for the nodes' versions. (`GET /` would do on a full distribution; a minimal one lacks
    /// it.)
    pub(super) const PATH: &'static str = "_nodes?filter_path=nodes.*.version,nodes.*.build_flavor";

    /// Parses the answer to a request of [`Server::PATH`].
    pub(super) fn parse(body: &[u8]) -> Result<Self, String> {
        let reply: NodesReply = serde_json::from_slice(body)
            .map_err(|error| format!("what answers is neither Elasticsearch nor OpenSearch ({error})"))?;
        let oldest = reply.nodes.into_values().min_by_key(|node| numbers(&node.version));
        let node = oldest.ok_or("the cluster names no nodes")?;
        // Only Elasticsearch reports a build's flavour; OpenSearch removed it.
        let flavour = if node.build_flavor.is_some() { Flavour::Elasticsearch } else { Flavour::OpenSearch };
        Ok(Self { flavour, version: node.version })
    }

    /// Returns whether the server's version is supported.
    pub(super) fn is_supported(&self) -> bool {
        numbers(&self.version).first().is_some_and(|major| *major >= self.oldest())
    }

    /// Returns the oldest supported major version of the server's flavour.
    pub(super) fn oldest(&self) -> u32 {
        match self.flavour {
            Flavour::Elasticsearch => OLDEST_ELASTICSEARCH,
            Flavour::OpenSearch => OLDEST_OPENSEARCH,
        }
    }
}

fn numbers(version: &str) -> Vec<u32> {
    version.split(['.', '-']).map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(body: &str) -> Server {
        Server::parse(body.as_bytes()).expect("a server")
    }

    #[test]
    fn the_oldest_node_decides_whether_a_server_is_supported() {
        let mixed = server(
            r#"{"nodes":{"a":{"version":"10.1.0","build_flavor":"default"},
                         "b":{"version":"9.2.0","build_flavor":"default"}}}"#,
        );
        assert_eq!((mixed.flavour, mixed.version.as_str()), (Flavour::Elasticsearch, "9.2.0"));
        assert!(mixed.is_supported());
        assert!(!server(r#"{"nodes":{"a":{"version":"7.17.28","build_flavor":"default"}}}"#).is_supported());
        assert!(server(r#"{"nodes":{"a":{"version":"3.8.0"}}}"#).is_supported());
        assert!(!server(r#"{"nodes":{"a":{"version":"1.3.20"}}}"#).is_supported());
    }

    #[test]
    fn something_else_that_answers_is_recognized_as_such() {
        for body in ["<html>", "{}", r#"{"nodes":{}}"#] {
            assert!(Server::parse(body.as_bytes()).is_err(), "{body}");
        }
    }
}
