//! The start: find the server, make the indices if they are missing, and refuse a server or an index on which the
//! store's promises would not hold.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::ElasticsearchOptions;
use super::definition::{Definitions, MAPPING_VERSION, without_tombstones};
use super::error::ConnectError;
use super::fault::Fault;
use super::flavour::Server;
use super::indices::{Indices, Kind};
use super::nodes::{Nodes, Reply, Request, reason};
use super::standing::Standing;

/// The longest time to connect, as a multiple of the request timeout: one to find the server, two for each index, one
/// for each template, one for the months, one for the shards, and five to find out whether an index was lost.
const TIMES_A_REQUEST: u32 = 21;
/// The settings that block an index.
const BLOCKS: [&str; 5] = [
    "index.blocks.read_only",
    "index.blocks.read_only_allow_delete",
    "index.blocks.write",
    "index.blocks.read",
    "index.blocks.metadata",
];
/// The message on an index of the archive whose durability was changed.
pub(super) const PUT_RIGHT: &str = "the index acknowledged writes before they were on disk, and no longer does";
/// The setting that holds an index's identity.
const UUID: &str = "index.uuid";
/// The longest time that one request waits for the indices' shards.
const MAX_SHARD_WAIT: Duration = Duration::from_secs(2);

/// Tries once to find the server and to prepare its indices, and returns their standing.
pub(super) async fn prepare(
    nodes: &Nodes,
    indices: &Indices,
    options: &ElasticsearchOptions,
) -> Result<(Server, Standing), ConnectError> {
    let link = Link::new(nodes, options.request_timeout.saturating_mul(TIMES_A_REQUEST));
    let server = link.server().await?;
    let definitions = Definitions { flavour: server.flavour, indices, options };
    let mut opened = BTreeMap::new();
    for kind in Kind::ALIASED {
        opened.insert(indices.name(kind).to_owned(), link.index(&definitions, kind).await?);
    }
    link.months(indices).await?;
    // Only now: had a newer program made the indices, its templates would have to stay.
    for kind in Kind::ALL {
        link.template(&definitions, kind).await?;
    }
    link.until_searchable(indices, options.request_timeout / 2).await?;
    Ok((server, Standing::new(opened, indices.resizing.clone(), options.write_timeout)))
}

/// The connection over which a store is set up and migrated.
pub(super) struct Link<'a> {
    nodes: &'a Nodes,
    deadline: Instant,
}

impl<'a> Link<'a> {
    /// Creates a connection whose requests may take `patience` together.
    pub(super) fn new(nodes: &'a Nodes, patience: Duration) -> Self {
        Self { nodes, deadline: Instant::now() + patience }
    }

    pub(super) async fn send(&self, request: Request) -> Result<Reply, ConnectError> {
        let reply = self.nodes.try_call(&request, self.deadline).await.map_err(|error| unreachable(&error.message))?;
        match reply.status {
            401 => Err(ConnectError::refused(
                "the store does not accept the credentials (HTTP 401)",
                "give a user and password in the address, as in https://user:password@host:9200, or an API key",
            )),
            403 => Err(ConnectError::refused(
                format!("the credentials do not suffice ({})", reason(403, &reply.body)),
                "they need the cluster privileges `monitor` and `manage_index_templates`, and on all indices that \
                 start with the prefix `manage`, `read` and `write`",
            )),
            500.. => {
                Err(ConnectError::NotYet(format!("the store cannot serve: {}", reason(reply.status, &reply.body))))
            }
            _ => Ok(reply),
        }
    }

    pub(super) async fn server(&self) -> Result<Server, ConnectError> {
        let mend =
            "check the address; it is to be that of a node of Elasticsearch or OpenSearch, as http://localhost:9200";
        let reply = self.send(Request::get(Server::PATH.to_owned())).await?;
        let body = reply.success().map_err(|what| ConnectError::refused(what, mend))?;
        let server = Server::parse(&body).map_err(|what| ConnectError::refused(what, mend))?;
        if !server.is_supported() {
            let (flavour, version, oldest) = (server.flavour, &server.version, server.oldest());
            return Err(ConnectError::refused(
                format!("the store runs {flavour} {version}, which is too old"),
                format!("upgrade it to {flavour} {oldest} or newer"),
            ));
        }
        Ok(server)
    }

    /// Waits for the indices' shards. The process that creates an index waits for them anyway, but not a second process
    /// that finds it just created.
    async fn until_searchable(&self, indices: &Indices, patience: Duration) -> Result<(), ConnectError> {
        let aliases = indices.aliases();
        let patience = patience.min(MAX_SHARD_WAIT).as_millis();
        let path = format!("_cluster/health/{aliases}?wait_for_status=yellow&timeout={patience}ms&filter_path=status");
        let reply = self.send(Request::get(path)).await?;
        match reply.status {
            200..=299 => Ok(()),
            status => {
                Err(ConnectError::NotYet(format!("a part of the index is not there ({})", reason(status, &reply.body))))
            }
        }
    }

    /// Checks the index behind an alias, after making both if they are missing. Several processes may start at once:
    /// the second one finds them made. Returns the index's identity.
    async fn index(&self, definitions: &Definitions<'_>, kind: Kind) -> Result<String, ConnectError> {
        let alias = definitions.indices.name(kind);
        let (index, found) = match self.find(alias).await? {
            Some(found) => found,
            None => self.create_unless_lost(definitions, kind).await?,
        };
        let is_resizing = found.aliases.keys().any(|alias| alias.starts_with(&definitions.indices.resizing));
        if is_resizing && found.block().is_some() {
            return Err(ConnectError::NotYet(Fault::Resizing(index).to_string()));
        }
        check(&index, &found)?;
        let other_shards = found.other_shards(kind, definitions.options);
        for has in other_shards.into_iter().chain(found.other_replicas(definitions.options)) {
            tracing::warn!(index, "the index has {has}; `leasehold migrate` with the same settings changes that");
        }
        let all = &definitions.indices.all;
        if kind == Kind::Jobs && !found.aliases.contains_key(all) {
            let what = format!("the alias `{all}`");
            self.make(&what, format!("{index}/_alias/{all}"), &without_tombstones()).await?;
        }
        Ok(found.setting(UUID).unwrap_or_default().to_owned())
    }

    /// Creates an index that has not been there before.
    async fn create_unless_lost(
        &self,
        definitions: &Definitions<'_>,
        kind: Kind,
    ) -> Result<(String, IndexInfo), ConnectError> {
        let alias = definitions.indices.name(kind);
        let mut trace = self.trace(definitions.indices).await?;
        // The template is made after the index, so without it there has been no such index yet.
        if trace.is_some() && kind.is_recent() && !self.has_template(alias).await? {
            trace = None;
        }
        // Another process may have made the index since, and then left the trace.
        match (self.find(alias).await?, trace) {
            (Some(found), _) => Ok(found),
            (None, Some(trace)) => {
                let fault = Fault::Lost(alias.to_owned()).to_string();
                let (what, mend) = fault.split_once(". ").unwrap_or((&fault, ""));
                Err(ConnectError::refused(format!("{what}, and {trace}"), mend))
            }
            (None, None) => self.create(definitions, kind).await,
        }
    }

    /// Returns what tells that the store has been used before; `None` when nothing does.
    async fn trace(&self, indices: &Indices) -> Result<Option<String>, ConnectError> {
        let Indices { records, schedules, .. } = indices;
        let months = indices.months();
        // What was written last must count.
        let refresh = Request::command(format!("{records},{schedules},{months}/_refresh?ignore_unavailable=true"));
        self.send(refresh).await?.success().map_err(ConnectError::NotYet)?;
        let path = |name| format!("{name}/_count?ignore_unavailable=true&expand_wildcards=open,closed");
        let traces =
            [(&months, "the archive has jobs"), (records, "there are records"), (schedules, "there are schedules")];
        for (name, what) in traces {
            let reply = self.send(Request::post(path(name), b"{}".to_vec())).await?;
            // A closed month cannot be counted, and has been used.
            let count = match reply.status {
                400 => 1,
                _ => {
                    let body = reply.success().map_err(ConnectError::NotYet)?;
                    let reply: Value = serde_json::from_slice(&body)
                        .map_err(|error| ConnectError::NotYet(format!("the indices cannot be counted: {error}")))?;
                    reply["count"].as_u64().unwrap_or_default()
                }
            };
            if count > 0 {
                return Ok(Some(format!("{what} (`{name}`)")));
            }
        }
        Ok(None)
    }

    async fn create(&self, definitions: &Definitions<'_>, kind: Kind) -> Result<(String, IndexInfo), ConnectError> {
        let alias = definitions.indices.name(kind);
        let index = format!("{alias}-000001");
        if self.make(&format!("the index `{index}`"), index.clone(), &definitions.of(kind)?).await? {
            tracing::info!(index, "created the index");
        }
        self.find(alias).await?.ok_or_else(|| {
            let what = format!("the index `{index}` is there, but not under the alias `{alias}`");
            ConnectError::NotYet(format!("{what}; if that stays so, give it the alias or remove it"))
        })
    }

    /// Makes an index or template if it is missing. Returns `false` if it exists already.
    async fn make(&self, what: &str, path: String, definition: &Value) -> Result<bool, ConnectError> {
        let reply = self.send(Request::put(path, Some(definition))).await?;
        if reply.is_there_already() {
            return Ok(false);
        }
        reply.success().map(|_| true).map_err(|why| {
            ConnectError::refused(
                format!("{what} cannot be made ({why})"),
                "remove what stands in the way, or choose another index prefix",
            )
        })
    }

    async fn template(&self, definitions: &Definitions<'_>, kind: Kind) -> Result<(), ConnectError> {
        let name = definitions.indices.name(kind);
        let template = definitions.template(kind)?;
        self.make(&format!("the index template `{name}`"), format!("_index_template/{name}"), &template).await.map(drop)
    }

    async fn has_template(&self, name: &str) -> Result<bool, ConnectError> {
        let request = Request::get(format!("_index_template/{name}?filter_path=index_templates.name"));
        let reply = self.send(request).await?;
        if reply.status == 404 {
            return Ok(false);
        }
        reply.success().map(|_| true).map_err(ConnectError::NotYet)
    }

    /// Checks the months' indices. One that takes no writes refuses only those that need it, and is named in the log.
    async fn months(&self, indices: &Indices) -> Result<(), ConnectError> {
        let wanted = "flat_settings=true&expand_wildcards=open,closed&filter_path=*.mappings._meta,*.settings";
        for (index, info) in self.read(format!("{}?{wanted}", indices.months())).await? {
            check_version(&index, &info)?;
            if info.is_asynchronous() {
                self.send(durable(&index)).await?.success().map_err(ConnectError::NotYet)?;
                tracing::warn!(index, "{PUT_RIGHT}");
            }
            if let Some(fault) = info.fault(&index) {
                tracing::warn!("a month of the archive is out of order: {fault}");
            }
        }
        Ok(())
    }

    /// Returns the months' indices, in the order of time.
    pub(super) async fn all_months(&self, indices: &Indices) -> Result<BTreeMap<String, IndexInfo>, ConnectError> {
        self.read(format!("{}?flat_settings=true", indices.months())).await
    }

    /// Reads the server's description of indices by name; empty when there are none.
    async fn read(&self, path: String) -> Result<BTreeMap<String, IndexInfo>, ConnectError> {
        let reply = self.send(Request::get(path)).await?;
        if reply.status == 404 {
            return Ok(BTreeMap::new());
        }
        let body = reply.success().map_err(ConnectError::NotYet)?;
        serde_json::from_slice(&body)
            .map_err(|error| ConnectError::NotYet(format!("the indices cannot be read: {error}")))
    }

    /// Returns the one index behind an alias, with its own name.
    pub(super) async fn find(&self, alias: &str) -> Result<Option<(String, IndexInfo)>, ConnectError> {
        let mut found = self.read(format!("{alias}?flat_settings=true")).await?;
        if found.contains_key(alias) {
            return Err(ConnectError::refused(
                format!("`{alias}` is an index, and has to be an alias of one"),
                "stop all servers and remove the index if nobody needs what is in it, or use another index prefix",
            ));
        }
        if found.len() > 1 {
            let names: Vec<String> = found.into_keys().collect();
            return Err(ConnectError::refused(
                format!("the alias `{alias}` is of several indices: {}", names.join(", ")),
                "take the alias from all of them but the one that is to be written to",
            ));
        }
        Ok(found.pop_first())
    }
}

/// Returns the error for a failure to connect. An untrusted certificate is no transient failure.
fn unreachable(message: &str) -> ConnectError {
    let lower = message.to_lowercase();
    if lower.contains("certificate") {
        return ConnectError::refused(
            format!("the store's certificate is not trusted ({message})"),
            "give the certificate of the authority that signed it, or use a certificate that is publicly trusted",
        );
    }
    if lower.contains("invalidcontenttype") || lower.contains("corrupt message") {
        return ConnectError::refused(
            format!("the store does not speak TLS ({message})"),
            "check the address; http:// is without TLS, https:// with it",
        );
    }
    ConnectError::NotYet(format!("the store cannot be reached: {message}"))
}

/// An index as the server describes it.
#[derive(Deserialize)]
pub(super) struct IndexInfo {
    #[serde(default)]
    aliases: HashMap<String, Value>,
    #[serde(default)]
    pub(super) mappings: Value,
    #[serde(default)]
    settings: HashMap<String, Value>,
}

impl IndexInfo {
    /// Returns the version of the index's mapping; `None` if it is not leasehold's.
    pub(super) fn version(&self) -> Option<u64> {
        self.mappings["_meta"]["leasehold"]["version"].as_u64()
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).and_then(Value::as_str)
    }

    /// Returns how many shards the index has, if that is not what the options say.
    fn other_shards(&self, kind: Kind, options: &ElasticsearchOptions) -> Option<String> {
        let wanted = options.shards.filter(|_| kind.follows_shards())?.to_string();
        let has = self.setting("index.number_of_shards").filter(|has| *has != wanted)?;
        Some(format!("{has} primary shards, where the settings say {wanted}"))
    }

    /// Returns how many replicas the index has, if that is not what the options say.
    pub(super) fn other_replicas(&self, options: &ElasticsearchOptions) -> Option<String> {
        let wanted = options.replicas?.to_string();
        let is_fixed = self.setting("index.auto_expand_replicas").is_none_or(|range| range == "false");
        let has = self.setting("index.number_of_replicas").unwrap_or_default();
        (!is_fixed || has != wanted).then(|| {
            let has = if is_fixed { has } else { "as many as it has nodes for" };
            format!("{has} replicas, where the settings say {wanted}")
        })
    }

    /// Returns whether writes are acknowledged before they are on disk.
    pub(super) fn is_asynchronous(&self) -> bool {
        self.setting("index.translog.durability").is_some_and(|durability| durability != "request")
    }

    fn is_closed(&self) -> bool {
        self.setting("index.verified_before_close") == Some("true")
    }

    /// Returns the setting that blocks the index, if there is one.
    fn block(&self) -> Option<&'static str> {
        BLOCKS.into_iter().find(|name| self.setting(name) == Some("true"))
    }

    /// Returns what keeps the index from being written.
    pub(super) fn fault(&self, index: &str) -> Option<Fault> {
        if self.is_closed() {
            return Some(Fault::Closed(index.to_owned()));
        }
        let why = self.block()?.to_owned();
        Some(Fault::Blocked { index: format!("`{index}`"), why })
    }
}

/// Returns the request that has an index acknowledge writes only when they are on disk.
pub(super) fn durable(index: &str) -> Request {
    Request::put(format!("{index}/_settings"), Some(&json!({ "index.translog.durability": "request" })))
}

/// Checks that an index has this program's mapping version.
pub(super) fn check_version(index: &str, found: &IndexInfo) -> Result<(), ConnectError> {
    match found.version() {
        Some(MAPPING_VERSION) => Ok(()),
        Some(version) if version > MAPPING_VERSION => Err(ConnectError::refused(
            format!("the index `{index}` was made by a newer leasehold (mapping {version}, not {MAPPING_VERSION})"),
            "upgrade this program",
        )),
        Some(version) => Err(ConnectError::refused(
            format!("the index `{index}` has mapping {version}, where mapping {MAPPING_VERSION} is needed"),
            "stop all servers and run `leasehold migrate`",
        )),
        None => Err(ConnectError::refused(
            format!("the index `{index}` has no mapping of leasehold's"),
            "use another index prefix, or remove the index if nobody needs it",
        )),
    }
}

/// Checks an index; the error describes what is wrong and how to fix it.
fn check(index: &str, found: &IndexInfo) -> Result<(), ConnectError> {
    check_version(index, found)?;
    if found.mappings["dynamic"] != "strict" {
        return Err(ConnectError::refused(
            format!("the mapping of `{index}` is not strict, so that it would take fields that mean nothing"),
            format!("PUT /{index}/_mapping {{\"dynamic\": \"strict\"}}"),
        ));
    }
    if found.is_asynchronous() {
        return Err(ConnectError::refused(
            format!(
                "`{index}` acknowledges writes before they are on disk (index.translog.durability is not `request`)"
            ),
            format!("PUT /{index}/_settings {{\"index.translog.durability\": \"request\"}}"),
        ));
    }
    if found.is_closed() {
        return Err(ConnectError::refused(
            format!("the index `{index}` is closed"),
            format!("open it: POST /{index}/_open"),
        ));
    }
    if let Some(name) = found.block() {
        return Err(ConnectError::refused(
            format!("`{index}` is blocked ({name}); a full disk does that too"),
            format!("make room on the disk, then PUT /{index}/_settings {{\"{name}\": null}}"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
