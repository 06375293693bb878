//! Whether the indices are as they were when the store was opened: there, open, writable, and the very same ones.
//!
//! An error that names an index's fault ([`super::fault`]) is not tried again: it is the answer, at once, and an alarm.
//! From then on the indices are looked at every second until all are in order, and writes to one that is not are
//! refused without being sent. So the first write after such a sign goes to an index that has been checked. One that
//! was exchanged is never in order: the jobs and versions that this process knows are not in it.
//!
//! A change of the number of shards ([`super::resize`]) is no fault while it is short. Writes wait for its end; the
//! index that was made then bears the identity of the one that was opened in its lineage, and is the same one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};

use super::fault::{Fault, description};
use super::nodes::{Nodes, Request};
use crate::store::StoreError;

/// The time between two looks at indices of which one is not in order.
const PERIOD: Duration = Duration::from_secs(1);
/// The time between two looks while writes wait.
const SHORT_PERIOD: Duration = Duration::from_millis(100);
/// For how long after its end a time in which writes waited is remembered: longer than one that waited takes, or than a
/// caller who gave up takes to come again.
const REMEMBERED: Duration = Duration::from_secs(5);
/// What a look asks for.
const WANTED: &str = "blocks,metadata.indices.*.state,metadata.indices.*.aliases,\
                      metadata.indices.*.settings.index.uuid,metadata.indices.*.mappings._doc._meta.leasehold.lineage";
/// What the description of the block says under which the number of shards is changed, also while it is being set.
const WRITE_BLOCK: &str = "index write";

/// The standing of the indices that the store has opened.
#[derive(Debug)]
pub(super) struct Standing {
    /// The identity that the index behind each alias had.
    opened: BTreeMap<String, String>,
    /// The start of the aliases that mark an index of which the number of shards is being changed.
    resizing: String,
    /// How long writes wait for the end of such a change before it counts as a fault.
    patience: Duration,
    /// How many looks have begun.
    looks: AtomicU64,
    /// The last look of which the answer is known.
    last: Mutex<Look>,
    alarm: Notify,
    /// Changes with every look.
    looked: watch::Sender<()>,
}

/// A look at the indices.
#[derive(Debug, Default)]
struct Look {
    /// Its number in the order in which looks begin.
    number: u64,
    /// What was wrong with each alias.
    faults: BTreeMap<String, Fault>,
    /// The identity of the index behind each alias.
    identities: BTreeMap<String, String>,
    /// Since when writes wait for the end of a change of the number of shards.
    waiting_since: Option<Instant>,
    /// When such a change has ended.
    resized: Option<Instant>,
    /// The aliases whose faults were felt.
    felt: BTreeSet<String>,
}

impl Look {
    fn is_resizing(&self) -> bool {
        self.faults.values().any(|fault| matches!(fault, Fault::Resizing(_)))
    }
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
    #[serde(default)]
    mappings: Value,
}

impl IndexState {
    /// Returns whether this is the index that was opened, or was made of it.
    fn descends_from(&self, opened: &str) -> bool {
        let own = &self.settings.index.uuid;
        let lineage = &self.mappings["_doc"]["_meta"]["leasehold"]["lineage"];
        let lineage: Vec<&str> = lineage.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        // One that was restored has the lineage of another.
        own == opened || lineage.last() == Some(&own.as_str()) && lineage.contains(&opened)
    }
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
    pub(super) fn new(opened: BTreeMap<String, String>, resizing: String, patience: Duration) -> Self {
        let last = Mutex::new(Look { identities: opened.clone(), ..Look::default() });
        Self {
            opened,
            resizing,
            patience,
            looks: AtomicU64::new(0),
            last,
            alarm: Notify::new(),
            looked: watch::Sender::default(),
        }
    }

    /// Returns what is known to be wrong with the index behind `alias`. A change of the number of its shards is wrong
    /// when it takes too long.
    fn fault(&self, alias: &str) -> Option<Fault> {
        let last = self.last.lock();
        last.faults.get(alias).filter(|fault| self.is_felt(fault, &last)).cloned()
    }

    /// Returns whether nothing is known to be wrong with the index behind `alias`, which is one of those that the store
    /// has opened.
    pub(super) fn is_in_order(&self, alias: &str) -> bool {
        self.opened.contains_key(alias) && self.fault(alias).is_none()
    }

    fn is_felt(&self, fault: &Fault, look: &Look) -> bool {
        let is_long = || look.waiting_since.is_some_and(|since| since.elapsed() >= self.patience);
        !matches!(fault, Fault::Resizing(_)) || is_long()
    }

    /// Waits until the index behind `alias` takes writes, as far as is known, and until `deadline` at most.
    ///
    /// # Errors
    /// What is wrong with it, at once if waiting is of no use.
    pub(super) async fn until_writable(&self, alias: &str, deadline: Instant) -> Result<(), Fault> {
        let mut looked = self.looked.subscribe();
        loop {
            let known = self.last.lock().faults.get(alias).cloned();
            let Some(fault) = known else { return Ok(()) };
            if self.fault(alias).is_some() || timeout_at(deadline, looked.changed()).await.is_err() {
                return Err(fault);
            }
        }
    }

    /// Returns whether writes wait for the end of a change of the number of shards, or have done so until a moment ago.
    pub(super) fn has_lately_held_writes_back(&self) -> bool {
        let last = self.last.lock();
        last.is_resizing() || last.resized.is_some_and(|at| at.elapsed() < REMEMBERED)
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
        let last = self.last.lock();
        let felt = last.faults.values().filter(|fault| self.is_felt(fault, &last));
        let faults: Vec<String> = felt.map(ToString::to_string).collect();
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
            while !matches!(self.look(nodes, Instant::now() + request_timeout).await, Ok(true)) {
                sleep(if self.last.lock().is_resizing() { SHORT_PERIOD } else { PERIOD }).await;
            }
        }
    }

    /// Takes note of a look, unless one that began later is known already.
    fn note(&self, mut look: Look) {
        let mut last = self.last.lock();
        if look.number < last.number {
            return;
        }
        let now = Instant::now();
        look.waiting_since = look.is_resizing().then(|| last.waiting_since.unwrap_or(now));
        let is_exchanged =
            |(alias, before): (&String, &String)| look.identities.get(alias).is_some_and(|own| own != before);
        let has_ended = last.is_resizing() && !look.is_resizing() || last.identities.iter().any(is_exchanged);
        look.resized = if has_ended { Some(now) } else { last.resized };
        let felt = look.faults.iter().filter(|(_, fault)| self.is_felt(fault, &look));
        look.felt = felt.map(|(alias, _)| alias.clone()).collect();
        let before = std::mem::replace(&mut *last, look);
        for (alias, fault) in &last.faults {
            let is_known = before.faults.get(alias) == Some(fault);
            match fault {
                Fault::Resizing(index) if !last.felt.contains(alias) => {
                    if !is_known {
                        tracing::info!(index, "writes wait while the number of the index's shards is changed");
                    }
                }
                _ if is_known && before.felt.contains(alias) => {}
                fault => tracing::error!("the store is out of order: {fault}"),
            }
        }
        if last.faults.is_empty() && !before.faults.is_empty() {
            tracing::info!("the store is in order again");
        }
        self.looked.send_replace(());
    }

    /// Looks at the indices.
    ///
    /// # Errors
    /// [`StoreError::OutOfOrder`] when one is not in order; otherwise the error of the look itself, which changes
    /// nothing.
    pub(super) async fn check(&self, nodes: &Nodes, deadline: Instant) -> Result<(), StoreError> {
        self.look(nodes, deadline).await?;
        self.opened.keys().find_map(|alias| self.fault(alias)).map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// Looks at the indices, and returns whether all take reads and writes.
    ///
    /// # Errors
    /// The error of the look itself, which changes nothing.
    pub(super) async fn look(&self, nodes: &Nodes, deadline: Instant) -> Result<bool, StoreError> {
        let aliases: Vec<&str> = self.opened.keys().map(String::as_str).collect();
        let path = format!("_cluster/state/metadata,blocks/{}?filter_path={WANTED}", aliases.join(","));
        let number = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        let reply = nodes.try_call(&Request::get(path), deadline).await?;
        let body = reply.success().map_err(StoreError::Unavailable)?;
        let state: State = serde_json::from_slice(&body)
            .map_err(|error| StoreError::Unavailable(format!("not an answer about indices: {error}")))?;
        let faults = self.judge(&state);
        let is_in_order = faults.is_empty();
        self.note(Look { number, faults, identities: self.identities(&state), ..Look::default() });
        if !is_in_order {
            self.sound_alarm();
        }
        Ok(is_in_order)
    }

    /// Returns the identity of the index behind each alias.
    fn identities(&self, state: &State) -> BTreeMap<String, String> {
        let identity = |alias: &String| {
            let index = state.metadata.indices.values().find(|index| index.aliases.contains(alias))?;
            Some((alias.clone(), index.settings.index.uuid.clone()))
        };
        self.opened.keys().filter_map(identity).collect()
    }

    /// Returns what is wrong, by alias.
    fn judge(&self, state: &State) -> BTreeMap<String, Fault> {
        let fault = |(alias, uuid): (&String, &String)| {
            let found: Vec<(&String, &IndexState)> =
                state.metadata.indices.iter().filter(|(_, index)| index.aliases.contains(alias)).collect();
            let fault = match found.as_slice() {
                [] => Some(Fault::Lost(alias.clone())),
                [(name, index)] => self.fault_of(alias, uuid, name, index, &state.blocks),
                several => {
                    let names: Vec<&str> = several.iter().map(|(name, _)| name.as_str()).collect();
                    Some(Fault::Several(alias.clone(), names.join(", ")))
                }
            };
            fault.map(|fault| (alias.clone(), fault))
        };
        self.opened.iter().filter_map(fault).collect()
    }

    fn fault_of(&self, alias: &str, uuid: &str, name: &str, index: &IndexState, blocks: &Blocks) -> Option<Fault> {
        if !index.descends_from(uuid) {
            return Some(Fault::Replaced(alias.to_owned()));
        }
        if index.state != "open" {
            return Some(Fault::Closed(name.to_owned()));
        }
        let is_felt = |block: &&Block| block.levels.iter().any(|level| level == "write" || level == "read");
        let is_resizing = index.aliases.iter().any(|alias| alias.starts_with(&self.resizing));
        let is_of_resizing = |block: &&Block| is_resizing && block.description.contains(WRITE_BLOCK);
        let own = || blocks.indices.get(name).into_iter().flat_map(BTreeMap::values).filter(is_felt);
        if let Some(block) = own().find(|block| !is_of_resizing(block)) {
            return Some(Fault::Blocked { index: format!("`{name}`"), why: description(&block.description) });
        }
        if let Some(block) = blocks.global.values().find(is_felt) {
            return Some(Fault::Blocked { index: "any index".to_owned(), why: description(&block.description) });
        }
        own().next().map(|_| Fault::Resizing(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(state: serde_json::Value) -> Vec<Fault> {
        let opened = BTreeMap::from([("jobs".to_owned(), "u1".to_owned())]);
        let standing = Standing::new(opened, "resizing-".to_owned(), Duration::ZERO);
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
    fn an_index_made_of_the_one_that_was_opened_is_in_its_place_and_a_restored_one_is_not() {
        let with = |lineage: serde_json::Value| {
            let mut index = index("u3", "open");
            index["mappings"]["_doc"]["_meta"]["leasehold"]["lineage"] = lineage;
            judged(json!({ "metadata": { "indices": { "jobs-000003": index } } }))
        };
        assert_eq!(with(json!(["u1", "u2", "u3"])), []);
        for lineage in [json!(null), json!(["u1", "u2"]), json!(["u2", "u3"]), json!(["u1", "u3", "u4"])] {
            assert_eq!(with(lineage), [Fault::Replaced("jobs".to_owned())]);
        }
    }

    #[test]
    fn a_write_block_with_a_mark_is_that_of_a_change_of_shards_and_another_block_is_not() {
        let mut index = index("u1", "open");
        index["aliases"] = json!(["jobs", "resizing-1"]);
        let with = |description: &str| {
            let block = json!({ "8": { "description": description, "levels": ["write"] } });
            let indices = json!({ "jobs-000001": block });
            judged(json!({ "metadata": { "indices": { "jobs-000001": index } }, "blocks": { "indices": indices } }))
        };
        for description in ["moving to block index write (api)", "index write (api)"] {
            assert_eq!(with(description), [Fault::Resizing("jobs-000001".to_owned())]);
        }
        assert!(matches!(with("disk usage exceeded flood-stage watermark").as_slice(), [Fault::Blocked { .. }]));
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
