//! Whether the indices are as they were when the store was opened: there, open, writable, and the very same ones.
//!
//! An error that names an index's fault ([`super::fault`]) is not tried again: it is the answer, at once, and an alarm.
//! From then on the indices are looked at every second until all are in order, and writes to one that is not are
//! refused without being sent. So the first write after such a sign goes to an index that has been checked. One that
//! was exchanged is never in order: the jobs and versions that this process knows are not in it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::fault::{Fault, description};
use super::nodes::{Nodes, Request};
use crate::store::StoreError;

/// The time between two looks at indices of which one is not in order.
const PERIOD: Duration = Duration::from_secs(1);
/// What a look asks for.
const WANTED: &str =
    "blocks,metadata.indices.*.state,metadata.indices.*.aliases,metadata.indices.*.settings.index.uuid";

/// The standing of the indices that the store has opened.
#[derive(Debug)]
pub(super) struct Standing {
    /// The identity that the index behind each alias had.
    opened: BTreeMap<String, String>,
    /// How many looks have begun.
    looks: AtomicU64,
    /// The last look of which the answer is known.
    last: Mutex<Look>,
    alarm: Notify,
}

/// A look at the indices.
#[derive(Debug, Default)]
struct Look {
    /// Its number in the order in which looks begin.
    number: u64,
    /// What was wrong with each alias.
    faults: BTreeMap<String, Fault>,
}

#[derive(Deserialize)]
struct State {
    #[serde(default)]
    blocks: Blocks,
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
struct Blocks {
    #[serde(default)]
    global: BTreeMap<String, Block>,
    #[serde(default)]
    indices: BTreeMap<String, BTreeMap<String, Block>>,
}

#[derive(Deserialize)]
struct Block {
    description: String,
    levels: Vec<String>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    indices: BTreeMap<String, IndexState>,
}

#[derive(Deserialize)]
struct IndexState {
    state: String,
    #[serde(default)]
    aliases: Vec<String>,
    settings: Settings,
}

#[derive(Deserialize)]
struct Settings {
    index: Identity,
}

#[derive(Deserialize)]
struct Identity {
    uuid: String,
}

impl Standing {
    /// Creates the standing of indices in order, with the identity of each by its alias.
    pub(super) fn new(opened: BTreeMap<String, String>) -> Self {
        Self { opened, looks: AtomicU64::new(0), last: Mutex::default(), alarm: Notify::new() }
    }

    /// Returns what is known to be wrong with the index behind `alias`.
    pub(super) fn fault(&self, alias: &str) -> Option<Fault> {
        self.last.lock().faults.get(alias).cloned()
    }

    /// Checks that the index behind `alias` is not known to be gone or exchanged: another one in its place has none of
    /// its documents, and must not be taken for it.
    ///
    /// # Errors
    /// [`StoreError::OutOfOrder`] when it is.
    pub(super) fn is_there(&self, alias: &str) -> Result<(), StoreError> {
        match self.fault(alias) {
            Some(fault @ (Fault::Lost(_) | Fault::Replaced(_))) => Err(fault.into()),
            _ => Ok(()),
        }
    }

    /// Returns all that is known to be wrong, in sentences.
    pub(super) fn faults(&self) -> Option<String> {
        let faults: Vec<String> = self.last.lock().faults.values().map(ToString::to_string).collect();
        (!faults.is_empty()).then(|| faults.join("; "))
    }

    /// Has the indices looked at, since there is a sign that one is not in order.
    pub(super) fn sound_alarm(&self) {
        self.alarm.notify_one();
    }

    /// After each alarm, looks at the indices until all are in order.
    pub(super) async fn keep_watch(&self, nodes: &Nodes, request_timeout: Duration) {
        loop {
            self.alarm.notified().await;
            while self.check(nodes, Instant::now() + request_timeout).await.is_err() {
                sleep(PERIOD).await;
            }
        }
    }

    /// Takes note of a look, unless one that began later is known already.
    fn note(&self, look: Look) {
        let mut last = self.last.lock();
        if look.number < last.number {
            return;
        }
        let before = std::mem::replace(&mut *last, look);
        for (alias, fault) in &last.faults {
            if before.faults.get(alias) != Some(fault) {
                tracing::error!("the store is out of order: {fault}");
            }
        }
        if last.faults.is_empty() && !before.faults.is_empty() {
            tracing::info!("the store is in order again");
        }
    }

    /// Looks at the indices.
    ///
    /// # Errors
    /// [`StoreError::OutOfOrder`] when one is not in order; otherwise the error of the look itself, which changes
    /// nothing.
    pub(super) async fn check(&self, nodes: &Nodes, deadline: Instant) -> Result<(), StoreError> {
        let aliases: Vec<&str> = self.opened.keys().map(String::as_str).collect();
        let path = format!("_cluster/state/metadata,blocks/{}?filter_path={WANTED}", aliases.join(","));
        let number = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        let reply = nodes.try_call(&Request::get(path), deadline).await?;
        let body = reply.success().map_err(StoreError::Unavailable)?;
        let state: State = serde_json::from_slice(&body)
            .map_err(|error| StoreError::Unavailable(format!("not an answer about indices: {error}")))?;
        let found = self.judge(&state);
        let first = found.values().next().cloned();
        self.note(Look { number, faults: found });
        match first {
            Some(fault) => {
                self.sound_alarm();
                Err(fault.into())
            }
            None => Ok(()),
        }
    }

    /// Returns what is wrong, by alias.
    fn judge(&self, state: &State) -> BTreeMap<String, Fault> {
        let fault = |(alias, uuid): (&String, &String)| {
            let found: Vec<(&String, &IndexState)> =
                state.metadata.indices.iter().filter(|(_, index)| index.aliases.contains(alias)).collect();
            let fault = match found.as_slice() {
                [] => Some(Fault::Lost(alias.clone())),
                [(name, index)] => fault_of(alias, uuid, name, index, &state.blocks),
                several => {
                    let names: Vec<&str> = several.iter().map(|(name, _)| name.as_str()).collect();
                    Some(Fault::Several(alias.clone(), names.join(", ")))
                }
            };
            fault.map(|fault| (alias.clone(), fault))
        };
        self.opened.iter().filter_map(fault).collect()
    }
}

fn fault_of(alias: &str, uuid: &str, name: &str, index: &IndexState, blocks: &Blocks) -> Option<Fault> {
    if index.settings.index.uuid != uuid {
        return Some(Fault::Replaced(alias.to_owned()));
    }
    if index.state != "open" {
        return Some(Fault::Closed(name.to_owned()));
    }
    let is_felt = |block: &&Block| block.levels.iter().any(|level| level == "write" || level == "read");
    let own = blocks.indices.get(name).into_iter().flat_map(BTreeMap::values).find(is_felt);
    if let Some(block) = own {
        return Some(Fault::Blocked { index: format!("`{name}`"), why: description(&block.description) });
    }
    let global = blocks.global.values().find(is_felt)?;
    Some(Fault::Blocked { index: "any index".to_owned(), why: description(&global.description) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(state: serde_json::Value) -> Vec<Fault> {
        let standing = Standing::new(BTreeMap::from([("jobs".to_owned(), "u1".to_owned())]));
        standing.judge(&serde_json::from_value(state).expect("a state")).into_values().collect()
    }

    fn index(uuid: &str, state: &str) -> serde_json::Value {
        json!({ "state": state, "aliases": ["all", "jobs"], "settings": { "index": { "uuid": uuid } } })
    }

    #[test]
    fn each_state_but_the_one_that_was_opened_is_a_fault() {
        let with = |index| json!({ "metadata": { "indices": { "jobs-000001": index } } });
        assert_eq!(judged(with(index("u1", "open"))), []);
        assert_eq!(judged(json!({})), [Fault::Lost("jobs".to_owned())]);
        assert_eq!(judged(with(index("u2", "open"))), [Fault::Replaced("jobs".to_owned())]);
        assert_eq!(judged(with(index("u1", "close"))), [Fault::Closed("jobs-000001".to_owned())]);
        let two = json!({ "metadata": { "indices": { "a": index("u1", "open"), "b": index("u2", "open") } } });
        assert_eq!(judged(two), [Fault::Several("jobs".to_owned(), "a, b".to_owned())]);
    }

    #[test]
    fn a_block_of_the_index_or_of_the_cluster_is_a_fault_unless_it_is_of_metadata() {
        let with =
            |blocks| json!({ "metadata": { "indices": { "jobs-000001": index("u1", "open") } }, "blocks": blocks });
        let block = |level: &str| json!({ "8": { "description": "no; for more information", "levels": [level] } });
        let blocked = |index: &str| [Fault::Blocked { index: index.to_owned(), why: "no".to_owned() }];
        assert_eq!(judged(with(json!({ "indices": { "jobs-000001": block("write") } }))), blocked("`jobs-000001`"));
        assert_eq!(judged(with(json!({ "global": block("write") }))), blocked("any index"));
        assert_eq!(judged(with(json!({ "indices": { "jobs-000001": block("metadata_write") } }))), []);
        assert_eq!(judged(with(json!({ "indices": { "other": block("write") } }))), []);
    }
}
