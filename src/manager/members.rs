//! The managers of one store: each writes a record of itself again and again, and reads those of the others.
//!
//! No clock is compared with another's: a manager counts as running while its record changes. What it takes part in,
//! the sharing of jobs ([`super::dispatch`]), is a matter of speed alone. Whoever is mistaken about the others meets
//! conflicts, or lets jobs wait until another takes them; every claim is still a conditional write.
//!
//! A manager gives partitions up as soon as it knows of another's workers, and takes them later than it tells of its
//! own ([`SETTLING`]), so that while workers come and go a partition has no manager for a moment rather than two.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OnceCell};
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::job::{PartitionSet, QueueName, RecordName};
use crate::manager::Manager;
use crate::manager::changes::Topic;
use crate::manager::dispatch::{KindsByQueue, Member, Members};
use crate::manager::hints::Other;
use crate::store::record::body;
use crate::store::{Record, RecordKey, RecordKind, RecordWrite, Refresh, StoreError, Version, WriteError};

/// The time between two writes of a manager's record.
const BEAT: Duration = Duration::from_secs(1);

/// Every how many beats the others' records are read where this manager has no workers.
const BEATS_AT_REST: u32 = 4;

/// The time between two lists of all managers: those of earlier versions tell nobody that they begin.
const LIST_EVERY: Duration = Duration::from_secs(10);

/// The shortest time between two writes, when workers come for a queue that had none.
const SHORTEST: Duration = Duration::from_millis(100);

/// How long a record may stay the same until its manager counts as gone: a list may lag by a second or two.
const SILENCE: Duration = Duration::from_secs(4);

/// How long a record that stays the same is kept.
const KEPT: Duration = Duration::from_secs(60);

/// How long ago a manager's workers were told of before it goes by them: longer than others take to learn of them, as
/// each with workers reads the records, in real time, with every beat.
const SETTLING: Duration = Duration::from_millis(1_500);

/// The longest time that a manager which stops takes to say so.
const PARTING: Duration = Duration::from_secs(2);

/// How long ago a worker has called at the most, to count as one of this manager: a little longer than the time between
/// two heartbeats of a busy one.
const LATELY: Duration = Duration::from_secs(12);

/// The workers of a manager by queue.
type Workers = BTreeMap<QueueName, u32>;

/// The body of a manager's record, by which the other managers know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Beat {
    /// When it was written, by the manager's own clock. Only people read it.
    at: Timestamp,
    /// How many workers the manager has for each queue, roughly ([`roughly`]).
    workers: Workers,
    /// How many of them it goes by, since it has told of them for long enough.
    #[serde(default)]
    settled: Workers,
    /// The kinds of jobs that its workers for a queue take, where all of them name kinds.
    #[serde(default, skip_serializing_if = "KindsByQueue::is_empty")]
    kinds: KindsByQueue,
    /// Where the other managers reach this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<Arc<str>>,
    /// Whether it reads signed heads of calls. Earlier versions of the program do not say so.
    #[serde(default)]
    reads_heads: bool,
    /// Whether it tells of what it changes ([`super::changes`]). Earlier versions of the program do not.
    #[serde(default)]
    tells_of_changes: bool,
}

/// What a manager knows of the others, and they of it.
pub(super) struct Membership {
    name: RecordName,
    state: tokio::sync::Mutex<State>,
    /// Set once the others are known for the first time.
    joined: OnceCell<()>,
    /// The workers of the latest record.
    told: Mutex<Arc<Workers>>,
    /// The notification that workers came for a queue that had none.
    sooner: Notify,
}

#[derive(Default)]
struct State {
    /// The version of the own record; `None` when it is to be made anew.
    version: Option<Version>,
    /// When this manager last knew the others.
    last: Option<Instant>,
    /// What was written into the own record, and when.
    told: VecDeque<(Instant, Arc<Workers>)>,
    others: HashMap<RecordName, Sighting>,
    /// When the others' records were last read, and the beats since.
    read_at: Option<Instant>,
    unread_beats: u32,
    /// When the managers were last listed, and by which changes.
    listed: Option<(Instant, Option<u64>)>,
}

/// Another manager's record, and when this process first saw this version of it.
struct Sighting {
    version: Version,
    since: Instant,
    /// `None` for a record in the form of a later version of the program, which still says that there is a manager.
    beat: Option<Beat>,
}

impl Default for Membership {
    fn default() -> Self {
        Self {
            name: RecordName::new(Uuid::now_v7().simple().to_string()).expect("hexadecimal digits are a name"),
            state: tokio::sync::Mutex::default(),
            joined: OnceCell::new(),
            told: Mutex::default(),
            sooner: Notify::new(),
        }
    }
}

impl State {
    /// Returns the workers that others are sure to know of: for each queue the fewest that were told of lately.
    fn settled(&self, now: Instant) -> Workers {
        let mut settled: Option<Workers> = None;
        for (at, workers) in self.told.iter().rev() {
            let fewest = |settled: Workers| -> Workers {
                let least = |(queue, count): (QueueName, u32)| Some((queue.clone(), count.min(*workers.get(&queue)?)));
                settled.into_iter().filter_map(least).collect()
            };
            settled = Some(settled.map_or_else(|| (**workers).clone(), fewest));
            if now.duration_since(*at) >= SETTLING {
                return settled.unwrap_or_default();
            }
        }
        // Nothing was told long enough ago.
        Workers::new()
    }

    fn tell(&mut self, workers: Arc<Workers>, now: Instant) {
        self.told.push_back((now, workers));
        // The latest of those that are older than the time that counts is the last one needed.
        while self.told.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= SETTLING) {
            self.told.pop_front();
        }
    }

    /// Returns the others that run.
    fn running(&self, now: Instant) -> Vec<Member> {
        let running = self.others.iter().filter(|(_, other)| now.duration_since(other.since) < SILENCE);
        let member = |(name, other): (&RecordName, &Sighting)| {
            let told = |of: fn(&Beat) -> &Workers| other.beat.as_ref().map(of).cloned().unwrap_or_default();
            let kinds = other.beat.as_ref().map(|beat| beat.kinds.clone()).unwrap_or_default();
            let (workers, settled) = (told(|beat| &beat.workers), told(|beat| &beat.settled));
            Member { name: name.clone(), workers, settled, kinds }
        };
        running.map(member).collect()
    }

    /// Returns whether this manager has not known the others for so long that they have taken its jobs meanwhile: its
    /// process was stopped, or the store was away.
    fn was_away(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.duration_since(last) >= SILENCE)
    }

    /// Takes over the records of the others as they are now. Returns the removal of those that have stayed the same for
    /// too long.
    fn see(&mut self, records: impl Iterator<Item = Record>, now: Instant) -> Vec<RecordWrite> {
        let known = std::mem::take(&mut self.others);
        let mut gone = Vec::new();
        for record in records {
            let former = known.get(&record.key.name);
            let since = former.filter(|former| former.version == record.version).map_or(now, |former| former.since);
            if now.duration_since(since) >= KEPT {
                gone.push(record.removal());
            }
            let beat = record.read::<Beat>().ok();
            self.others.insert(record.key.name, Sighting { version: record.version, since, beat });
        }
        gone
    }

    /// Returns whether a manager runs that does not tell of what it changes.
    fn is_any_silent(&self, now: Instant) -> bool {
        let runs = |other: &&Sighting| now.duration_since(other.since) < SILENCE;
        let tells = |other: &Sighting| other.beat.as_ref().is_some_and(|beat| beat.tells_of_changes);
        self.others.values().filter(runs).any(|other| !tells(other))
    }

    /// Returns how another manager is called.
    fn called(&self, name: &RecordName) -> Option<Other> {
        let beat = self.others.get(name)?.beat.as_ref()?;
        Some(Other { address: beat.address.clone()?, reads_heads: beat.reads_heads })
    }
}

impl Manager {
    /// Waits until the other managers are known for the first time: before that, this one would take their jobs.
    ///
    /// # Errors
    /// Returns why the store cannot be told of this manager, or does not tell of the others.
    pub async fn know_members(&self) -> Result<(), StoreError> {
        if !self.shared.store.is_exclusive() {
            self.shared.members.joined.get_or_try_init(|| self.meet()).await?;
        }
        Ok(())
    }

    /// Returns the partitions of a queue that are this manager's own: with as many managers as there may be, each is
    /// the own one of one of those that have workers for the queue, but for a moment in which it may be nobody's.
    #[must_use]
    pub fn own_partitions(&self, queue: &QueueName) -> PartitionSet {
        self.shared.dispatch.own_partitions(queue)
    }

    /// Returns how many managers, this one included, are known to have workers for a queue.
    #[must_use]
    pub fn sharers(&self, queue: &QueueName) -> usize {
        self.shared.dispatch.sharers(queue)
    }

    /// Returns whether this manager has workers for queues that are not the system's own.
    pub(super) fn has_workers(&self) -> bool {
        let has_told = self.shared.members.told.lock().keys().any(|queue| !queue.is_internal());
        has_told || self.shared.dispatch.has_workers_waiting()
    }

    /// Tells the others at once when workers have come for a queue that had none.
    pub(crate) fn have_workers_for(&self, queues: &[QueueName]) {
        let members = &self.shared.members;
        let is_news = || {
            let told = members.told.lock();
            queues.iter().any(|queue| !told.contains_key(queue))
        };
        if !self.shared.store.is_exclusive() && is_news() {
            members.sooner.notify_one();
        }
    }

    /// Runs the background task that writes the record and reads those of the others.
    pub(crate) async fn keep_members_known(&self) {
        let stopping = &self.shared.stopping;
        let mut failing = false;
        while !self.shared.store.is_exclusive() && !stopping.is_cancelled() {
            let met = async {
                match self.shared.members.joined.initialized() {
                    true => self.meet().await,
                    false => self.know_members().await,
                }
            };
            let Some(met) = stopping.run_until_cancelled(met).await else { break };
            if let Err(error) = &met
                && !failing
            {
                warn!(%error, "cannot tell the other managers of this one; going by what is known of them");
            }
            failing = met.is_err();
            tokio::select! {
                () = tokio::time::sleep(BEAT) => {}
                () = self.shared.members.sooner.notified() => tokio::time::sleep(SHORTEST).await,
                () = stopping.cancelled() => {}
            }
        }
        self.leave().await;
    }

    /// Writes the own record, reads those of the others, and shares out the queues.
    async fn meet(&self) -> Result<(), StoreError> {
        let members = &self.shared.members;
        let mut state = members.state.lock().await;
        if state.was_away(Instant::now()) {
            state.told.clear();
            let (workers, settled) = Default::default();
            let own = Member { name: members.name.clone(), workers, settled, kinds: KindsByQueue::new() };
            self.shared.dispatch.share(Members::new(own, state.running(Instant::now())));
            self.shared.dispatch.forget();
        }
        let workers = Arc::new(self.workers_now());
        let kinds = self.shared.observe.workers.kinds_by_queue(self.shared.clock.now(), LATELY);
        self.write_own(&mut state, &workers, &kinds).await?;
        state.tell(Arc::clone(&workers), Instant::now());
        *members.told.lock() = Arc::clone(&workers);
        self.read_others(&mut state).await?;
        let now = Instant::now();
        state.last = Some(now);
        // Who has not been looked at since has not been silent since.
        let read_at = state.read_at.unwrap_or(now);
        let others = state.running(read_at);
        self.shared.changes.know_silent(state.is_any_silent(read_at));
        self.shared.hints.know(others.iter().map(|other| (other.name.clone(), state.called(&other.name))));
        metrics::gauge!("leasehold_managers").set((others.len() + 1) as f64);
        let (workers, settled) = ((*workers).clone(), state.settled(now));
        let own = Member { name: members.name.clone(), workers, settled, kinds };
        self.shared.dispatch.share(Members::new(own, others));
        Ok(())
    }

    /// Returns the workers of this manager: those that called lately, and for the system's own queues one where claims
    /// come.
    fn workers_now(&self) -> Workers {
        let now = self.shared.clock.now();
        let claimed = self.shared.dispatch.claimed_within(LATELY);
        let mut workers: Workers = claimed.into_iter().map(|queue| (queue, 1)).collect();
        for (queue, count) in self.shared.observe.workers.by_queue(now, LATELY) {
            workers.insert(queue, roughly(count));
        }
        workers
    }

    async fn write_own(&self, state: &mut State, workers: &Workers, kinds: &KindsByQueue) -> Result<(), StoreError> {
        let settled = state.settled(Instant::now());
        let address = self.shared.hints.own_address().cloned();
        let (at, workers, kinds) = (self.shared.clock.now(), workers.clone(), kinds.clone());
        let (reads_heads, tells_of_changes) = (true, true);
        let beat = body(&Beat { at, workers, settled, kinds, address, reads_heads, tells_of_changes })?;
        let is_new = state.version.is_none();
        let write = RecordWrite::put(key(&self.shared.members.name), beat, state.version.take());
        match self.shared.store.write_record(write).await {
            Ok(version) => state.version = Some(version),
            // Removed by one that took this manager for gone, or an earlier write whose answer was lost.
            Err(WriteError::Conflict(current)) => state.version = current.map(|current| current.version),
            Err(WriteError::Refused(error)) => return Err(error),
            Err(WriteError::Unknown(why)) => return Err(StoreError::Unavailable(why)),
        }
        if is_new {
            // Others are to see this manager before it takes any jobs.
            self.shared.store.refresh(Refresh::Records).await?;
            self.tell_of_change(Topic::Managers, None).await;
        }
        Ok(())
    }

    /// Reads the records of the others: of those that are known in real time, with every beat where there are workers,
    /// and of all when there may be others.
    async fn read_others(&self, state: &mut State) -> Result<(), StoreError> {
        let is_at_rest = !self.has_workers();
        let changes = self.changes_of(Topic::Managers);
        let is_listed = state.listed.is_some_and(|(at, by)| by == changes && at.elapsed() < LIST_EVERY);
        state.unread_beats += 1;
        if is_listed && changes.is_some() && is_at_rest && state.unread_beats < BEATS_AT_REST {
            return Ok(());
        }
        let records = if is_listed && changes.is_some() {
            let keys: Vec<RecordKey> = state.others.keys().map(key).collect();
            let found = if keys.is_empty() { Vec::new() } else { self.shared.store.records_of(&keys).await? };
            found.into_iter().flatten().collect()
        } else {
            let records = self.shared.store.records(RecordKind::Manager).await?;
            state.listed = Some((Instant::now(), changes));
            records
        };
        (state.read_at, state.unread_beats) = (Some(Instant::now()), 0);
        let others = records.into_iter().filter(|record| record.key.name != self.shared.members.name);
        for removal in state.see(others, Instant::now()) {
            debug!(manager = %removal.key().name, "removing the record of a manager that is gone");
            // Who else did it was first, and what cannot be done now is done later.
            drop(self.shared.store.write_record(removal).await);
        }
        Ok(())
    }

    /// Removes the own record, so that others take over at once.
    async fn leave(&self) {
        let mut state = self.shared.members.state.lock().await;
        if let Some(expected) = state.version.take() {
            let removal = RecordWrite::Remove { key: key(&self.shared.members.name), expected };
            // Without an answer the others learn of it a little later.
            drop(timeout(PARTING, self.shared.store.write_record(removal)).await);
        }
    }
}

fn key(name: &RecordName) -> RecordKey {
    RecordKey::new(RecordKind::Manager, name.clone())
}

/// Rounds a number of workers down to its two leading bits, so that a worker more or less moves no partitions.
fn roughly(count: u64) -> u32 {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let low_bits = count.checked_ilog2().unwrap_or(0).saturating_sub(1);
    count >> low_bits << low_bits
}

#[cfg(test)]
mod tests;
