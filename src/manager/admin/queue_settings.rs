//! The settings of queues: whether a queue is paused, and the policy for its orphans.
//!
//! A queue's settings are a record of the store; a queue without one has the defaults. They are kept in memory
//! ([`CachedRecords`]), since every claim needs them.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use tracing::warn;
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::job::{Actor, OrphanPolicy, QueueName, RecordName};
use crate::manager::Manager;
use crate::manager::request::{Caller, ManagerError};
use crate::store::record::CachedRecords;
use crate::store::{RecordKind, Store, StoreError};

/// The time between two reads of all settings, in a store that other processes write to as well.
const LIST_EVERY: Duration = Duration::from_millis(500);

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
}

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
        *self == Self::default()
    }

    /// Returns the settings with a pause that begins at `now`. A queue that is paused already keeps the time of its
    /// pause, and takes over a new reason.
    fn paused(&self, caller: &Caller, reason: Option<&str>, now: Timestamp) -> Self {
        let paused = match &self.paused {
            Some(pause) if reason.is_none_or(|reason| pause.reason.as_deref() == Some(reason)) => pause.clone(),
            Some(pause) => Pause { since: pause.since, by: caller.clone(), reason: reason.map(str::to_owned) },
            None => Pause { since: now, by: caller.clone(), reason: reason.map(str::to_owned) },
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
        self.change_queue(queue, |settings| QueueSettings { orphan_policy: policy, ..settings.clone() }).await
    }

    /// Returns the policy for a queue's orphans, as this manager knows it. It must be called after
    /// [`Manager::know_queues`]; changes by other managers are known within one second.
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
        self.shared.queue_settings.listed.get_or_try_init(|| self.list_queues()).await?;
        Ok(())
    }

    async fn list_queues(&self) -> Result<(), StoreError> {
        self.shared.queue_settings.records.list().await?;
        self.publish_paused();
        Ok(())
    }

    /// Tells the dispatch which queues are paused.
    fn publish_paused(&self) {
        self.shared.queue_settings.records.publish(|all| {
            let paused = all.into_iter().filter(|(_, settings)| settings.paused.is_some());
            self.shared.dispatch.hold_back(paused.filter_map(|(name, _)| QueueName::new(name.as_str()).ok()).collect());
        });
    }

    /// Runs the background task that reads the settings, and reads them again for changes by other managers.
    pub(crate) async fn keep_queues_known(&self) {
        let mut failing = false;
        // Ends with the manager, or after the first read if only this manager can change the settings.
        loop {
            let listed = match self.shared.queue_settings.listed.initialized() {
                true => self.list_queues().await.map_err(ManagerError::from),
                false => self.know_queues().await,
            };
            match listed {
                Ok(()) if self.shared.store.is_exclusive() => return,
                Ok(()) => failing = false,
                Err(error) => {
                    if !failing {
                        warn!(%error, "cannot read the queues' settings; going by what is known of them");
                    }
                    failing = true;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(LIST_EVERY) => {}
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
        let settings = records.change(&RecordName::from(queue), decide).await?;
        self.publish_paused();
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
