//! What is set for a queue: whether its jobs are held back, and what becomes of its orphans.
//!
//! A queue's settings are a record of the store; a queue without one has the defaults. They are kept in memory, since
//! every claim asks for them. What this manager writes counts at once; what others write is found by listing the records
//! every [`LIST_EVERY`]. A list may be behind: an entry that it shows in an older version than is known is left as it is,
//! and one that it does not show is kept for as long as a list can lag ([`LAG`]).

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::clock::{Timestamp, rfc3339};
use crate::job::{Actor, Json, OrphanPolicy, QueueName, RecordName};
use crate::store::{Record, RecordKey, RecordKind, RecordWrite, StoreError, Version, WriteError};

use crate::manager::request::{Caller, ManagerError};
use crate::manager::{Manager, Shared};

/// How often the settings are listed in a store that others write to as well.
const LIST_EVERY: Duration = Duration::from_millis(500);

/// How far a list of records can be behind what was acknowledged.
const LAG: Duration = Duration::from_secs(10);

/// How often one change is tried when others change the same queue.
const MAX_TRIES: usize = 10;

/// How often a change is tried whose outcome was not learnt.
const MAX_DOUBTS: usize = 3;

/// How many queues can have settings of their own: fewer than the records that a store lists, so that what several
/// managers add at once still leaves a list that can be read.
const MAX_SET_QUEUES: usize = 9_000;

/// What is set for a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSettings {
    /// Since when, by whom and why its jobs are held back, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
    /// What becomes of its jobs whose lease has expired, where they do not say it themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orphan_policy: Option<OrphanPolicy>,
}

/// That a queue's jobs are held back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Since when.
    #[serde(with = "rfc3339")]
    pub at: Timestamp,
    /// Who wanted it.
    pub by: Actor,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl QueueSettings {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Held back from now on. One that is held back already stays so since when it is; a new reason is taken over.
    fn paused(&self, caller: &Caller, reason: Option<&str>, now: Timestamp) -> Self {
        let paused = match &self.paused {
            Some(pause) if reason.is_none_or(|reason| pause.reason.as_deref() == Some(reason)) => pause.clone(),
            Some(pause) => Pause { at: pause.at, by: caller.clone(), reason: reason.map(str::to_owned) },
            None => Pause { at: now, by: caller.clone(), reason: reason.map(str::to_owned) },
        };
        Self { paused: Some(paused), ..self.clone() }
    }
}

/// The settings as this manager knows them.
#[derive(Default)]
pub(in crate::manager) struct Queues {
    kept: RwLock<HashMap<QueueName, Kept>>,
    /// Set once they were listed for the first time.
    listed: OnceCell<()>,
}

struct Kept {
    /// The defaults where the record is known to be removed.
    settings: QueueSettings,
    version: Version,
    /// Read in real time or written here, so that a list which does not show it yet is behind until then.
    certain_until: Option<Instant>,
}

impl Queues {
    pub(in crate::manager) fn of(&self, queue: &QueueName) -> QueueSettings {
        self.kept.read().get(queue).map_or_else(QueueSettings::default, |kept| kept.settings.clone())
    }

    /// Every queue with settings of its own.
    pub(in crate::manager) fn all(&self) -> Vec<(QueueName, QueueSettings)> {
        let kept = self.kept.read();
        let set = kept.iter().filter(|(_, kept)| !kept.settings.is_default());
        set.map(|(queue, kept)| (queue.clone(), kept.settings.clone())).collect()
    }

    /// Takes over what was read in real time or written; `publish` is told of the paused queues.
    fn learn(
        &self,
        queue: &QueueName,
        settings: QueueSettings,
        version: Version,
        publish: impl Fn(HashSet<QueueName>),
    ) {
        let mut kept = self.kept.write();
        if kept.get(queue).is_none_or(|known| known.version <= version) {
            let certain_until = Some(Instant::now() + LAG);
            kept.insert(queue.clone(), Kept { settings, version, certain_until });
        }
        // Told under the lock, so that of two changes the later one is told last.
        publish(paused(&kept));
    }

    /// Takes over a list, as far as it is not behind.
    fn take_over(
        &self,
        listed: Vec<(QueueName, QueueSettings, Version)>,
        now: Instant,
        publish: impl Fn(HashSet<QueueName>),
    ) {
        let mut kept = self.kept.write();
        let shown: HashSet<QueueName> = listed.iter().map(|(queue, ..)| queue.clone()).collect();
        kept.retain(|queue, known| shown.contains(queue) || known.certain_until.is_some_and(|until| now < until));
        for (queue, settings, version) in listed {
            if kept.get(&queue).is_none_or(|known| known.version < version) {
                kept.insert(queue, Kept { settings, version, certain_until: None });
            }
        }
        publish(paused(&kept));
    }
}

fn paused(kept: &HashMap<QueueName, Kept>) -> HashSet<QueueName> {
    kept.iter().filter(|(_, kept)| kept.settings.paused.is_some()).map(|(queue, _)| queue.clone()).collect()
}

impl Manager {
    /// Holds the jobs of a queue back: none is claimed until it is resumed; those that run go on. Answers with the
    /// queue's settings as they are then.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when too many queues have settings; [`ManagerError::Unknown`]; the store's.
    pub async fn pause(
        &self,
        caller: &Caller,
        queue: &QueueName,
        reason: Option<&str>,
    ) -> Result<QueueSettings, ManagerError> {
        let now = self.shared.clock.now();
        self.shared.change_queue(queue, |settings| settings.paused(caller, reason, now)).await
    }

    /// Hands the jobs of a queue out again.
    ///
    /// # Errors
    /// As for [`Manager::pause`].
    pub async fn resume(&self, queue: &QueueName) -> Result<QueueSettings, ManagerError> {
        self.shared.change_queue(queue, |settings| QueueSettings { paused: None, ..settings.clone() }).await
    }

    /// Sets what becomes of a queue's orphans that do not say it themselves; the installation's rule for `None`.
    ///
    /// # Errors
    /// As for [`Manager::pause`].
    pub async fn set_orphan_policy(
        &self,
        queue: &QueueName,
        policy: Option<OrphanPolicy>,
    ) -> Result<QueueSettings, ManagerError> {
        self.shared.change_queue(queue, |settings| QueueSettings { orphan_policy: policy, ..settings.clone() }).await
    }

    /// What becomes of a queue's orphans that do not say it themselves, as this manager knows it: after
    /// [`Manager::know_queues`], and behind other managers by a second at most.
    #[must_use]
    pub fn orphan_policy_of(&self, queue: &QueueName) -> Option<OrphanPolicy> {
        self.shared.queues.kept.read().get(queue)?.settings.orphan_policy
    }

    /// Makes sure that the queues' settings were read at least once.
    ///
    /// # Errors
    /// Why they cannot be.
    pub async fn know_queues(&self) -> Result<(), ManagerError> {
        Ok(self.shared.know_queues().await?)
    }
}

impl Shared {
    /// Waits until the settings are known: a claim that came before would be given jobs that are held back.
    pub(in crate::manager) async fn know_queues(&self) -> Result<(), StoreError> {
        self.queues.listed.get_or_try_init(|| self.list_queues()).await?;
        Ok(())
    }

    async fn list_queues(&self) -> Result<(), StoreError> {
        let records = self.store.records(RecordKind::Queue).await?;
        let listed = records.iter().map(read).collect::<Result<Vec<_>, StoreError>>()?;
        self.queues.take_over(listed, Instant::now(), |paused| self.dispatch.hold_back(paused));
        Ok(())
    }

    /// The background task: knows the settings as soon as the store answers, and what others change within a second.
    pub(in crate::manager) async fn keep_queues_known(&self) {
        let mut failing = false;
        // Ends with the manager, or once nothing can change but by this manager.
        loop {
            let listed = match self.queues.listed.initialized() {
                true => self.list_queues().await,
                false => self.know_queues().await,
            };
            match listed {
                Ok(()) if self.store.is_exclusive() => return,
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
                () = self.stopping.cancelled() => return,
            }
        }
    }

    /// Changes a queue's settings under their version: decides again on what others wrote meanwhile, and makes sure of
    /// a write whose answer was lost.
    async fn change_queue(
        &self,
        queue: &QueueName,
        change: impl Fn(&QueueSettings) -> QueueSettings + Send + Sync,
    ) -> Result<QueueSettings, ManagerError> {
        let key = RecordKey::new(RecordKind::Queue, RecordName::from(queue));
        let mut found = self.store.record(&key).await?;
        let mut doubts: Vec<String> = Vec::new();
        for _ in 0..MAX_TRIES {
            let before = match &found {
                Some(record) => record.read()?,
                None => QueueSettings::default(),
            };
            let after = change(&before);
            let write = match &found {
                None if after.is_default() => return Ok(after),
                Some(record) if after == before && doubts.is_empty() => {
                    self.learn_queue(queue, &after, record.version);
                    return Ok(after);
                }
                Some(record) if after.is_default() => record.removal(),
                // Also what is there already after a doubt: read is not yet acknowledged.
                Some(record) => record.replaced_by(body(&after)?),
                None => self.creation(&key, &after)?,
            };
            match self.store.write_record(write).await {
                Ok(version) => {
                    self.learn_queue(queue, &after, version);
                    self.show_queues().await;
                    return Ok(after);
                }
                Err(WriteError::Conflict(current)) => {
                    metrics::counter!("leasehold_conflicts_total", "operation" => "queue").increment(1);
                    found = current;
                }
                Err(WriteError::Refused(error)) => return Err(error.into()),
                Err(WriteError::Unknown(why)) => {
                    doubts.push(why);
                    if doubts.len() >= MAX_DOUBTS {
                        break;
                    }
                    found = self.store.record(&key).await.map_err(|error| ManagerError::Unknown(error.to_string()))?;
                }
            }
        }
        Err(doubts.pop().map_or(ManagerError::Contended { tries: MAX_TRIES }, ManagerError::Unknown))
    }

    fn creation(&self, key: &RecordKey, settings: &QueueSettings) -> Result<RecordWrite, ManagerError> {
        if self.queues.kept.read().len() >= MAX_SET_QUEUES {
            let message = format!("{MAX_SET_QUEUES} queues have settings of their own, and no more can");
            return Err(ManagerError::Invalid { field: "queue", message });
        }
        Ok(RecordWrite::Create { key: key.clone(), body: body(settings)? })
    }

    fn learn_queue(&self, queue: &QueueName, settings: &QueueSettings, version: Version) {
        self.queues.learn(queue, settings.clone(), version, |paused| self.dispatch.hold_back(paused));
    }

    /// Makes a change visible to the lists of other managers at once, and not when the search engine comes to it. A
    /// failure only makes it take longer.
    async fn show_queues(&self) {
        if let Err(error) = self.store.refresh().await {
            debug!(%error, "the other servers hear of a queue's settings a little later");
        }
    }
}

fn read(record: &Record) -> Result<(QueueName, QueueSettings, Version), StoreError> {
    let unnamed = |_| StoreError::Corrupt(format!("the record `{}` is of no queue", record.key));
    let queue = QueueName::new(record.key.name.as_str()).map_err(unnamed)?;
    Ok((queue, record.read()?, record.version))
}

fn body(settings: &QueueSettings) -> Result<Json, ManagerError> {
    Json::of(settings).map_err(|error| ManagerError::Store(StoreError::Corrupt(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Place;

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).expect("a name")
    }

    fn version(seq_no: u64) -> Version {
        Version { place: Place::MAIN, primary_term: 1, seq_no }
    }

    fn held_back() -> QueueSettings {
        QueueSettings::default().paused(&Caller::system("ann"), Some("repairs"), Timestamp::from_millis(5))
    }

    fn nothing(_: HashSet<QueueName>) {}

    #[test]
    fn a_pause_again_keeps_its_beginning_and_takes_over_a_new_reason() {
        let later = Timestamp::from_millis(9);
        assert_eq!(held_back().paused(&Caller::system("bob"), None, later), held_back());
        assert_eq!(held_back().paused(&Caller::system("bob"), Some("repairs"), later), held_back());
        let again = held_back().paused(&Caller::system("bob"), Some("flood"), later).paused.expect("paused");
        assert_eq!((again.at.as_millis(), again.by.as_str(), again.reason.as_deref()), (5, "bob", Some("flood")));
    }

    #[test]
    fn the_settings_come_back_as_they_were_stored() {
        let settings = QueueSettings { orphan_policy: Some(OrphanPolicy::Flag), ..held_back() };
        let stored = body(&settings).expect("JSON");
        assert_eq!(serde_json::from_str::<QueueSettings>(stored.as_str()).expect("settings"), settings);
    }

    #[test]
    fn a_list_that_is_behind_changes_nothing_that_was_learnt_since() {
        let queues = Queues::default();
        let now = Instant::now();
        queues.learn(&queue("new"), held_back(), version(7), nothing);
        queues.learn(&queue("resumed"), QueueSettings::default(), version(8), nothing);
        queues.take_over(vec![(queue("resumed"), held_back(), version(8))], now, nothing);
        assert_eq!((queues.of(&queue("new")), queues.of(&queue("resumed"))), (held_back(), QueueSettings::default()));
    }

    #[test]
    fn what_others_write_and_remove_is_taken_over() {
        let queues = Queues::default();
        let now = Instant::now();
        queues.take_over(vec![(queue("a"), held_back(), version(1))], now, |paused| {
            assert_eq!(paused, HashSet::from([queue("a")]));
        });
        assert_eq!(queues.of(&queue("a")), held_back());
        queues.take_over(Vec::new(), now, |paused| assert!(paused.is_empty()));
        assert_eq!(queues.of(&queue("a")), QueueSettings::default());
    }

    #[test]
    fn what_was_learnt_is_let_go_when_no_list_shows_it_for_longer_than_one_can_be_behind() {
        let queues = Queues::default();
        queues.learn(&queue("a"), held_back(), version(1), nothing);
        queues.take_over(Vec::new(), Instant::now() + LAG, nothing);
        assert!(queues.all().is_empty());
    }
}
