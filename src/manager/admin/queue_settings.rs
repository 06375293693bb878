//! The settings of queues: whether a queue is paused, who is next in it, and the policy for its orphans.
//!
//! A queue's settings are a record of the store; a queue without one has the defaults. They are kept in memory
//! ([`CachedRecords`]), since every claim needs them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tracing::warn;
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::job::{Actor, OrphanPolicy, Owner, QueueName, RecordName, words};
use crate::manager::Manager;
use crate::manager::changes::Topic;
use crate::manager::dispatch::{Order, Rule, Unit};
use crate::manager::request::{Caller, ManagerError};
use crate::store::record::CachedRecords;
use crate::store::{RecordKind, Store, StoreError};

/// The time between two looks whether anything is to be read, in a store that other processes write to as well.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The age at which what is known of others' changes is renewed where this manager has workers, and where it has none.
/// Claims do not go by anything that old.
const RENEWED_AFTER: Duration = Duration::from_secs(2);
const RENEWED_AT_REST_AFTER: Duration = Duration::from_secs(4);

/// The time between two reads of all settings, and while a manager runs that tells nobody of its changes.
const LIST_EVERY: Duration = Duration::from_secs(60);
const LIST_OFTEN: Duration = LOOK_EVERY;

/// The most queues that can have settings of their own. It is below the number of records that a store lists, so that
/// the list stays readable even when several managers add settings at once.
const MAX_SET_QUEUES: usize = 9_000;

/// The settings of a queue.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSettings {
    /// The pause, while the queue is paused.
    pub paused: Option<Pause>,
    /// What happens to orphans of the queue that have no orphan policy of their own.
    pub orphan_policy: Option<OrphanPolicy>,
    /// Whose turn it is among the jobs of one priority.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fairness: Fairness,
    /// How many jobs an owner is given for each of an owner without a weight, where owners take turns.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<Owner, u32>,
    /// Which of the jobs of one priority is next.
    #[serde(default, skip_serializing_if = "is_default")]
    pub order: JobOrder,
}

words! {
    /// Whose turn it is among the due jobs of one priority in a queue.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Fairness: "a kind of fairness", "kinds of fairness" {
        /// The job that has been due longest, whoever owns it.
        #[default]
        None = "none",
        /// The owners take turns, by their weights.
        Owner = "owner",
        /// The owners take turns, by their weights and by the time that their jobs are expected to run.
        OwnerRuntime = "owner_runtime",
    }
}

impl Fairness {
    /// Returns what an owner's turn counts, if the owners take turns.
    fn unit(self) -> Option<Unit> {
        match self {
            Self::None => None,
            Self::Owner => Some(Unit::Job),
            Self::OwnerRuntime => Some(Unit::Runtime),
        }
    }

    /// Returns whether the owners take turns.
    #[must_use]
    pub fn takes_turns(self) -> bool {
        self.unit().is_some()
    }
}

words! {
    /// Which of the due jobs of one priority is next, of one owner where the owners take turns.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum JobOrder: "an order of jobs", "orders" {
        /// The job that has been due longest.
        #[default]
        Dispatch = "dispatch",
        /// The job that is expected to run shortest, put off by how long others have been due.
        Shortest = "shortest",
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A change of a queue's settings. What is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueChange {
    /// The policy for the queue's jobs that have none of their own; `Some(None)` stands for the installation's policy.
    pub orphan_policy: Option<Option<OrphanPolicy>>,
    /// Whose turn it is.
    pub fairness: Option<Fairness>,
    /// The weights of all owners that have one.
    pub weights: Option<BTreeMap<Owner, u32>>,
    /// Which job is next.
    pub order: Option<JobOrder>,
}

/// The most owners of a queue that can have a weight.
pub const MAX_WEIGHTS: usize = 100;
/// The greatest weight that an owner can have.
pub const MAX_WEIGHT: u32 = 1_000;

/// The pause of a queue, during which none of its jobs is claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pause {
    /// When the queue was paused.
    pub since: Timestamp,
    /// The caller who paused the queue, or who gave the latest reason.
    pub by: Actor,
    /// Why the queue was paused; null when no reason was given.
    pub reason: Option<String>,
}

impl QueueSettings {
    fn is_default(&self) -> bool {
        is_default(self)
    }

    fn changed(&self, change: &QueueChange) -> Self {
        Self {
            paused: self.paused.clone(),
            orphan_policy: change.orphan_policy.unwrap_or(self.orphan_policy),
            fairness: change.fairness.unwrap_or(self.fairness),
            weights: change.weights.clone().unwrap_or_else(|| self.weights.clone()),
            order: change.order.unwrap_or(self.order),
        }
    }

    /// Returns the order in which the queue's jobs are handed out.
    pub(in crate::manager) fn order(&self) -> Order {
        Order { turns: self.fairness.unit(), shortest_first: self.order == JobOrder::Shortest }
    }

    /// Returns the settings with a pause that begins at `now`. A queue that is paused already keeps the time of its
    /// pause, and takes over a new reason.
    fn paused(&self, caller: &Caller, reason: Option<&str>, now: Timestamp) -> Self {
        let paused = match &self.paused {
            Some(pause) if reason.is_none_or(|reason| pause.reason.as_deref() == Some(reason)) => pause.clone(),
            Some(pause) => Pause { since: pause.since, by: caller.name.clone(), reason: reason.map(str::to_owned) },
            None => Pause { since: now, by: caller.name.clone(), reason: reason.map(str::to_owned) },
        };
        Self { paused: Some(paused), ..self.clone() }
    }
}

/// The settings of all queues as this manager knows them.
pub(crate) struct QueueSettingsCache {
    records: CachedRecords<QueueSettings>,
    /// Set once the settings have been listed for the first time.
    listed: OnceCell<()>,
}

impl QueueSettingsCache {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { records: CachedRecords::new(store, RecordKind::Queue), listed: OnceCell::new() }
    }

    pub(crate) fn of(&self, queue: &QueueName) -> QueueSettings {
        self.records.get(&RecordName::from(queue)).map(|settings| (*settings).clone()).unwrap_or_default()
    }

    /// Returns the queues that have been paused since this time or longer.
    pub(in crate::manager) fn paused_before(&self, time: Timestamp) -> Vec<QueueName> {
        let all = self.records.all();
        let is_paused = |settings: &QueueSettings| settings.paused.as_ref().is_some_and(|pause| pause.since <= time);
        let paused = all.iter().filter(|(_, settings)| is_paused(settings));
        paused.filter_map(|(name, _)| QueueName::new(name.as_str()).ok()).collect()
    }

    /// Returns every queue with settings of its own.
    pub(crate) fn queues(&self) -> Vec<QueueName> {
        self.records.all().iter().filter_map(|(name, _)| QueueName::new(name.as_str()).ok()).collect()
    }
}

impl Manager {
    /// Pauses a queue: no job of it is claimed until it is resumed, and running jobs go on. Returns the queue's new
    /// settings.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when too many queues have settings; [`ManagerError::Unknown`]; otherwise the store's
    /// error.
    pub async fn pause(
        &self,
        caller: &Caller,
        queue: &QueueName,
        reason: Option<&str>,
    ) -> Result<QueueSettings, ManagerError> {
        let now = self.shared.clock.now();
        self.change_queue(queue, |settings| settings.paused(caller, reason, now)).await
    }

    /// Resumes a paused queue, and returns its new settings.
    ///
    /// # Errors
    /// As for [`Manager::pause`].
    pub async fn resume(&self, queue: &QueueName) -> Result<QueueSettings, ManagerError> {
        self.change_queue(queue, |settings| QueueSettings { paused: None, ..settings.clone() }).await
    }

    /// Sets the orphan policy for the queue's jobs that have none of their own; `None` stands for the installation's
    /// policy.
    ///
    /// # Errors
    /// As for [`Manager::pause`].
    pub async fn set_orphan_policy(
        &self,
        queue: &QueueName,
        policy: Option<OrphanPolicy>,
    ) -> Result<QueueSettings, ManagerError> {
        self.set_up_queue(queue, &QueueChange { orphan_policy: Some(policy), ..QueueChange::default() }).await
    }

    /// Changes settings of a queue, and returns them all.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] for weights that are none or too many; otherwise as for [`Manager::pause`].
    pub async fn set_up_queue(&self, queue: &QueueName, change: &QueueChange) -> Result<QueueSettings, ManagerError> {
        let invalid = |message| Err(ManagerError::Invalid { field: "weights", message });
        if let Some(weights) = &change.weights {
            if weights.len() > MAX_WEIGHTS {
                return invalid(format!("at most {MAX_WEIGHTS} owners have a weight"));
            }
            if let Some((owner, _)) = weights.iter().find(|(_, weight)| !(1..=MAX_WEIGHT).contains(*weight)) {
                return invalid(format!("the weight of `{owner}` must be between 1 and {MAX_WEIGHT}"));
            }
        }
        self.change_queue(queue, |settings| settings.changed(change)).await
    }

    /// Returns the policy for a queue's orphans, as this manager knows it. It must be called after
    /// [`Manager::know_queues`]; changes by other managers are known within some seconds.
    #[must_use]
    pub fn orphan_policy_of(&self, queue: &QueueName) -> Option<OrphanPolicy> {
        self.shared.queue_settings.of(queue).orphan_policy
    }

    /// Waits until the settings of all queues have been read once: before that, a claim could be given jobs of a paused
    /// queue.
    ///
    /// # Errors
    /// Returns why the settings cannot be read.
    pub async fn know_queues(&self) -> Result<(), ManagerError> {
        self.shared.queue_settings.listed.get_or_try_init(|| self.list_settings()).await?;
        Ok(())
    }

    /// Reads the settings of all queues and all limits.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot list them.
    pub(in crate::manager) async fn list_settings(&self) -> Result<(), StoreError> {
        self.shared.queue_settings.records.list().await?;
        // A pause that this manager knows of holds at once. A resumption does once the limits are known that were set
        // before it.
        self.publish_pauses();
        self.shared.limits.list_settings().await?;
        self.publish_settings();
        Ok(())
    }

    /// Reads the settings of these queues and these limits in real time, by the names of their records.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot read them.
    pub(in crate::manager) async fn read_settings(
        &self,
        queues: &[RecordName],
        limits: &[RecordName],
    ) -> Result<(), StoreError> {
        self.shared.queue_settings.records.read(queues).await?;
        self.publish_pauses();
        self.shared.limits.read_settings(limits).await?;
        self.publish_settings();
        Ok(())
    }

    /// Tells the dispatch which queues are paused, and of no queue that it is not any more.
    fn publish_pauses(&self) {
        self.shared.queue_settings.records.publish(|all| {
            let paused = all.iter().filter(|(_, settings)| settings.paused.is_some());
            let queues = paused.filter_map(|(name, _)| QueueName::new(name.as_str()).ok());
            self.shared.dispatch.hold_back_too(queues);
        });
    }

    /// Tells the dispatch which queues are paused, and in which the jobs do not go in the order of dispatch.
    fn publish_settings(&self) {
        self.shared.queue_settings.records.publish(|all| {
            let (mut paused, mut rules) = (HashSet::new(), HashMap::new());
            for (name, settings) in all {
                let Ok(queue) = QueueName::new(name.as_str()) else { continue };
                let order = settings.order();
                if order != Order::default() {
                    rules.insert(queue.clone(), Rule { order, weights: Arc::new(settings.weights.clone()) });
                }
                if settings.paused.is_some() {
                    paused.insert(queue);
                }
            }
            self.shared.dispatch.go_by(rules);
            self.shared.dispatch.hold_back(paused);
        });
    }

    /// Runs the background task that reads the settings, and reads them again for changes by other managers.
    pub(crate) async fn keep_queues_known(&self) {
        let (mut failing, mut listed_at, mut is_any_silent) = (false, None::<Instant>, false);
        // Ends with the manager, or after the first read if only this manager can change the settings.
        loop {
            let former = std::mem::replace(&mut is_any_silent, self.shared.changes.is_any_silent());
            let list_after = if is_any_silent { LIST_OFTEN } else { LIST_EVERY };
            // What the last of the silent ones has changed before it went is read once more.
            let has_gone = former && !is_any_silent;
            if has_gone || listed_at.is_none_or(|at| at.elapsed() >= list_after) {
                let listed = match self.shared.queue_settings.listed.initialized() {
                    true => self.list_settings().await.map_err(ManagerError::from),
                    false => self.know_queues().await,
                };
                match listed {
                    Ok(()) if self.shared.store.is_exclusive() => return,
                    Ok(()) => (failing, listed_at) = (false, Some(Instant::now())),
                    Err(error) => {
                        if !failing {
                            warn!(%error, "cannot read the queues' settings; going by what is known of them");
                        }
                        failing = true;
                    }
                }
            }
            self.know_changes(if self.has_workers() { RENEWED_AFTER } else { RENEWED_AT_REST_AFTER }).await;
            self.tell_rest().await;
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.shared.stopping.cancelled() => return,
            }
        }
    }

    /// Changes a queue's settings. A queue without a record has the default settings.
    async fn change_queue(
        &self,
        queue: &QueueName,
        change: impl Fn(&QueueSettings) -> QueueSettings + Send + Sync,
    ) -> Result<QueueSettings, ManagerError> {
        let records = &self.shared.queue_settings.records;
        let decide = |before: Option<&QueueSettings>| {
            let after = change(&before.cloned().unwrap_or_default());
            if before.is_none() && !after.is_default() && records.all().len() >= MAX_SET_QUEUES {
                let message = format!("{MAX_SET_QUEUES} queues have settings of their own, and no more can");
                return Err(ManagerError::Invalid { field: "queue", message });
            }
            Ok((!after.is_default()).then_some(after))
        };
        let name = RecordName::from(queue);
        let announcement = self.announce_change(Topic::Queues, &name);
        let settings = records.change(&name, decide).await?;
        self.publish_settings();
        self.tell_of(announcement).await;
        Ok(settings.map(|settings| (*settings).clone()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_back() -> QueueSettings {
        QueueSettings::default().paused(&Caller::system("ann"), Some("repairs"), Timestamp::from_millis(5))
    }

    #[test]
    fn a_pause_again_keeps_its_beginning_and_takes_over_a_new_reason() {
        let later = Timestamp::from_millis(9);
        assert_eq!(held_back().paused(&Caller::system("bob"), None, later), held_back());
        assert_eq!(held_back().paused(&Caller::system("bob"), Some("repairs"), later), held_back());
        let again = held_back().paused(&Caller::system("bob"), Some("flood"), later).paused.expect("paused");
        assert_eq!((again.since.as_millis(), again.by.as_str(), again.reason.as_deref()), (5, "bob", Some("flood")));
    }

    #[test]
    fn the_settings_come_back_as_they_were_stored() {
        let settings = QueueSettings { orphan_policy: Some(OrphanPolicy::Flag), ..held_back() };
        let stored = serde_json::to_string(&settings).expect("JSON");
        assert_eq!(serde_json::from_str::<QueueSettings>(&stored).expect("settings"), settings);
    }
}
