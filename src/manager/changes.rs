//! Which of what every manager keeps in memory was changed by another one: a record of the store says it.
//!
//! Settings are needed for every claim and change seldom. So nobody lists them again and again: who changes one
//! writes the [`ChangesDocument`] afterwards, which counts the changes and names the latest. Each manager reads that
//! record in real time, before it makes a claim at the latest ([`CLAIMED_WITHIN`]), and then only what it names.
//!
//! A manager that dies between the two writes has told nobody of its change, and earlier versions of the program tell
//! nobody at all: everything is listed from time to time as well, and often while such a manager runs.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::Manager;
use crate::job::{RecordName, words};
use crate::store::record::{RecordError, change_record};
use crate::store::{RecordKey, RecordKind, Store, StoreError};

/// The name of the setting that tells of changes.
const CHANGES: &str = "changes";

/// How old what a claim goes by may be: a queue that is paused elsewhere has no job claimed later than this.
pub(super) const CLAIMED_WITHIN: Duration = Duration::from_millis(500);

/// How long a claim waits at most for what others have changed, and for how long none waits after that.
const LONGEST_LOOK: Duration = Duration::from_secs(1);
const REST_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// How long a caller that changes something waits at most until the record names the change.
const LONGEST_TELLING: Duration = Duration::from_secs(5);

/// How long ago the last look may be by which it is said what has changed.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// The most changes that the record names. Who has missed more lists everything.
const MAX_NAMED: usize = 100;

words! {
    /// A part of the store that managers keep in memory, or look through seldom.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Topic: "a topic of changes", "topics" {
        /// The settings of queues.
        Queues = "queues",
        /// The limits that are set.
        Limits = "limits",
        /// The subscriptions to events.
        Subscriptions = "subscriptions",
        /// The schedules, which loaders look through.
        Schedules = "schedules",
        /// The managers that run.
        Managers = "managers",
    }
}

/// The record that tells of changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct ChangesDocument {
    /// How many changes there were.
    revision: u64,
    /// The latest of them, the first one first.
    latest: VecDeque<Named>,
}

/// A change that the record names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Named {
    /// The number of the change.
    revision: u64,
    #[serde(flatten)]
    change: Change,
}

/// What was changed: one record, or any of a topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Change {
    /// The word of a [`Topic`], or one of a later version of the program.
    topic: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<RecordName>,
}

/// What was changed since a manager last looked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Moved {
    /// Nothing but these records was changed.
    These(BTreeSet<(Topic, Option<RecordName>)>),
    /// Nobody knows what: everything is to be read again.
    Anything,
}

impl Change {
    fn of(topic: Topic, name: Option<&RecordName>) -> Self {
        Self { topic: topic.as_str().to_owned(), name: name.cloned() }
    }
}

impl ChangesDocument {
    fn with(&self, changes: impl Iterator<Item = Change>) -> Self {
        let mut after = self.clone();
        for change in changes {
            after.revision += 1;
            after.latest.push_back(Named { revision: after.revision, change });
        }
        after.latest.drain(..after.latest.len().saturating_sub(MAX_NAMED));
        after
    }

    /// Returns what was changed after this revision.
    fn since(&self, known: Option<u64>) -> Moved {
        let later = |known: u64| self.latest.iter().filter(move |named| named.revision > known);
        match known {
            // Each change has a number of its own, so as many are named as were made, or some are not named any more.
            Some(known) if known <= self.revision && later(known).count() as u64 == self.revision - known => {
                let change = |named: &Named| Some((named.change.topic.parse().ok()?, named.change.name.clone()));
                later(known).map(change).collect::<Option<_>>().map_or(Moved::Anything, Moved::These)
            }
            _ => Moved::Anything,
        }
    }
}

/// What this manager knows of changes, and what it has to tell of.
#[derive(Default)]
pub(super) struct Changes {
    known: Mutex<Known>,
    /// Held while the record is read, so that one look serves all who wait for it.
    looking: Arc<tokio::sync::Mutex<()>>,
    /// The own changes that the record does not name yet.
    untold: Mutex<BTreeSet<Change>>,
    /// Held while the record is written.
    telling: tokio::sync::Mutex<()>,
    /// How often each topic was changed, as far as this manager knows.
    moved: [AtomicU64; Topic::ALL.len()],
    /// Whether a manager runs that tells nobody of its changes.
    is_any_silent: AtomicBool,
}

#[derive(Default)]
struct Known {
    /// The number of the latest change that was taken over.
    revision: Option<u64>,
    /// When the latest look began that has ended well.
    looked_at: Option<Instant>,
    /// When the latest one has failed, or took too long.
    failed_at: Option<Instant>,
}

impl Changes {
    fn looked_within(&self, within: Duration) -> bool {
        self.known.lock().looked_at.is_some_and(|at| at.elapsed() < within)
    }

    /// Records whether a manager runs that tells nobody of its changes.
    pub(super) fn know_silent(&self, is_any: bool) {
        self.is_any_silent.store(is_any, Ordering::Relaxed);
    }

    /// Returns whether a manager runs that tells nobody of its changes.
    pub(super) fn is_any_silent(&self) -> bool {
        self.is_any_silent.load(Ordering::Relaxed)
    }

    fn note(&self, topic: Topic) {
        self.moved[topic as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Records a change that the record does not name yet.
    fn is_to_tell(&self, topic: Topic, name: Option<&RecordName>) {
        let mut untold = self.untold.lock();
        untold.insert(Change::of(topic, name));
        if untold.len() > MAX_NAMED {
            // Nobody keeps that many apart.
            let topics = Topic::ALL.map(|topic| Change::of(topic, None));
            *untold = topics.into_iter().filter(|any| untold.iter().any(|change| change.topic == any.topic)).collect();
        }
    }

    /// Writes the changes that the record does not name yet, those of several calls at once.
    async fn tell(&self, store: &dyn Store) -> Result<(), RecordError> {
        // Another call may be writing what this one has to tell.
        let _turn = self.telling.lock().await;
        let untold = std::mem::take(&mut *self.untold.lock());
        if untold.is_empty() {
            return Ok(());
        }
        let add = |before: Option<&ChangesDocument>| -> Result<_, RecordError> {
            Ok(Some(before.unwrap_or(&ChangesDocument::default()).with(untold.iter().cloned())))
        };
        let told = change_record(store, &key(), add).await;
        if told.is_err() {
            self.untold.lock().extend(untold);
        }
        told.map(drop)
    }
}

fn key() -> RecordKey {
    RecordKey::new(RecordKind::Setting, RecordName::system(CHANGES))
}

/// A change that is about to be made. Where its caller goes away or does not know whether it was made, the others are
/// told of it as well: they read what there is.
pub(crate) struct Announcement<'a> {
    changes: Option<&'a Changes>,
    topic: Topic,
    name: Option<RecordName>,
}

impl Drop for Announcement<'_> {
    fn drop(&mut self) {
        if let Some(changes) = self.changes {
            changes.is_to_tell(self.topic, self.name.as_ref());
        }
    }
}

impl Manager {
    /// Announces a change of a record that other managers keep in memory. It is to be kept until the change is made,
    /// and then given to [`Manager::tell_of`].
    pub(crate) fn announce_change(&self, topic: Topic, name: &RecordName) -> Announcement<'_> {
        let changes = Some(&self.shared.changes).filter(|_| !self.shared.store.is_exclusive());
        Announcement { changes, topic, name: Some(name.clone()) }
    }

    /// Tells the other managers of a change that was made.
    pub(crate) async fn tell_of(&self, announcement: Announcement<'_>) {
        let (topic, name) = (announcement.topic, announcement.name.clone());
        drop(announcement);
        self.tell_of_change(topic, name.as_ref()).await;
    }

    /// Tells the other managers that a record was changed that they keep in memory; without a name, that any of the
    /// topic may have been. Where that fails or takes long, it is tried again until it succeeds.
    pub(crate) async fn tell_of_change(&self, topic: Topic, name: Option<&RecordName>) {
        let changes = &self.shared.changes;
        changes.note(topic);
        if self.shared.store.is_exclusive() {
            return;
        }
        changes.is_to_tell(topic, name);
        // The caller may go away, and the others are to know of the change all the same.
        let manager = self.clone();
        let told = self.shared.tasks.spawn(async move { manager.tell_rest().await });
        drop(timeout(LONGEST_TELLING, told).await);
    }

    /// Tells of the changes that the record does not name yet.
    pub(super) async fn tell_rest(&self) {
        if self.shared.changes.untold.lock().is_empty() && self.shared.changes.telling.try_lock().is_ok() {
            return;
        }
        if let Err(error) = self.shared.changes.tell(&*self.shared.store).await {
            debug!(%error, "the other managers learn of a change a little later");
        }
    }

    /// Returns a number that changes whenever something of this topic does, as far as this manager knows; `None` where
    /// it may not know, since a manager of an earlier version runs or the store has not said it for a while.
    #[must_use]
    pub fn changes_of(&self, topic: Topic) -> Option<u64> {
        let changes = &self.shared.changes;
        let is_known = !changes.is_any_silent() && changes.looked_within(KNOWN_FOR);
        is_known.then(|| changes.moved[topic as usize].load(Ordering::Relaxed))
    }

    /// Makes sure that the changes of others are known that were acknowledged longer ago than this. Where the store
    /// does not answer in time, this manager goes by what it knows, and asks again after a while.
    pub(super) async fn know_changes(&self, within: Duration) {
        let changes = &self.shared.changes;
        let rests = || changes.known.lock().failed_at.is_some_and(|at| at.elapsed() < REST_AFTER_FAILURE);
        if self.shared.store.is_exclusive() || changes.looked_within(within) || rests() {
            return;
        }
        let look = async {
            let turn = Arc::clone(&changes.looking).lock_owned().await;
            if changes.looked_within(within) || rests() {
                return Ok(());
            }
            // It goes on where nobody waits for it any more: to read everything may take longer than a claim waits.
            let manager = self.clone();
            let looking = async move {
                let _turn = turn;
                manager.look_for_changes().await
            };
            self.shared.tasks.spawn(looking).await.unwrap_or(Ok(()))
        };
        let failure = match timeout(LONGEST_LOOK, look).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it takes long".to_owned(),
        };
        debug!(failure, "cannot read what other managers have changed; going by what is known");
        changes.known.lock().failed_at = Some(Instant::now());
    }

    /// Reads which changes there were, and what was changed.
    async fn look_for_changes(&self) -> Result<(), StoreError> {
        let began = Instant::now();
        let document: ChangesDocument = match self.shared.store.record(&key()).await? {
            Some(record) => record.read()?,
            None => ChangesDocument::default(),
        };
        let known = &self.shared.changes.known;
        let moved = document.since(known.lock().revision);
        self.take_over(&moved).await?;
        *known.lock() = Known { revision: Some(document.revision), looked_at: Some(began), failed_at: None };
        Ok(())
    }

    async fn take_over(&self, moved: &Moved) -> Result<(), StoreError> {
        match moved {
            Moved::Anything => {
                self.list_settings().await?;
                Topic::ALL.into_iter().for_each(|topic| self.shared.changes.note(topic));
            }
            Moved::These(these) if these.is_empty() => {}
            Moved::These(these) => {
                let names = |topic| -> Option<Vec<RecordName>> {
                    these.iter().filter(|(of, _)| *of == topic).map(|(_, name)| name.clone()).collect()
                };
                match (names(Topic::Queues), names(Topic::Limits)) {
                    (Some(queues), Some(limits)) => self.read_settings(&queues, &limits).await?,
                    _ => self.list_settings().await?,
                }
                let topics: BTreeSet<Topic> = these.iter().map(|(topic, _)| *topic).collect();
                topics.into_iter().for_each(|topic| self.shared.changes.note(topic));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(topic: Topic, name: &str) -> Change {
        Change::of(topic, Some(&RecordName::new(name).expect("a name")))
    }

    fn of(topic: Topic, names: &[&str]) -> Moved {
        Moved::These(names.iter().map(|name| (topic, Some(RecordName::new(name).expect("a name")))).collect())
    }

    #[test]
    fn what_was_changed_since_a_revision_is_named() {
        let none = ChangesDocument::default();
        assert_eq!(none.since(Some(0)), of(Topic::Queues, &[]));
        let two = none.with([change(Topic::Queues, "a"), change(Topic::Queues, "b")].into_iter());
        let three = two.with([change(Topic::Queues, "a")].into_iter());
        assert_eq!(three.since(Some(0)), of(Topic::Queues, &["a", "b"]));
        assert_eq!(three.since(Some(2)), of(Topic::Queues, &["a"]));
        assert_eq!(three.since(Some(3)), of(Topic::Queues, &[]));
    }

    #[test]
    fn who_knows_nothing_or_has_missed_more_than_is_named_or_knows_more_than_there_was_reads_everything() {
        let many = ChangesDocument::default().with((0..MAX_NAMED + 5).map(|_| change(Topic::Limits, "a")));
        let last = many.revision;
        assert_eq!((last, many.latest.len()), (MAX_NAMED as u64 + 5, MAX_NAMED));
        for known in [None, Some(0), Some(4), Some(last + 1)] {
            assert_eq!(many.since(known), Moved::Anything, "{known:?}");
        }
        assert_eq!(many.since(Some(5)), of(Topic::Limits, &["a"]));
    }

    #[test]
    fn a_topic_of_a_later_version_may_be_about_anything_and_is_kept() {
        let text =
            r#"{"revision":2,"latest":[{"revision":1,"topic":"queues","name":"a"},{"revision":2,"topic":"moons"}]}"#;
        let later: ChangesDocument = serde_json::from_str(text).expect("a record");
        assert_eq!(later.since(Some(1)), Moved::Anything);
        let after = later.with([change(Topic::Queues, "b")].into_iter());
        assert_eq!(after.since(Some(2)), of(Topic::Queues, &["b"]));
        assert_eq!(after.latest[1].change.topic, "moons");
    }

    #[test]
    fn of_more_changes_than_anybody_keeps_apart_the_topics_are_told() {
        let changes = Changes::default();
        for number in 0..3 * MAX_NAMED {
            changes.is_to_tell(Topic::Limits, Some(&RecordName::new(format!("l{number}")).expect("a name")));
        }
        changes.is_to_tell(Topic::Schedules, None);
        let untold = changes.untold.lock();
        assert!(untold.len() <= MAX_NAMED && untold.contains(&Change::of(Topic::Limits, None)), "{untold:?}");
        assert!(untold.contains(&Change::of(Topic::Schedules, None)));
    }

    #[test]
    fn the_record_comes_back_as_it_was_stored() {
        let stored = ChangesDocument::default().with([Change::of(Topic::Managers, None)].into_iter());
        let text = serde_json::to_string(&stored).expect("JSON");
        assert_eq!(text, r#"{"revision":1,"latest":[{"revision":1,"topic":"managers"}]}"#);
        assert_eq!(serde_json::from_str::<ChangesDocument>(&text).expect("what was stored"), stored);
    }
}
