//! The limits that are set for all jobs of a queue, kind, owner or key: each a record of the store, kept in memory by
//! every manager, since every claim needs them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::bucket::Rate;
use super::documents::{Under, record_name};
use super::urgent::Urgent;
use crate::clock::Timestamp;
use crate::job::{Actor, Fence, Job, JobId, LimitName, MAX_CONCURRENT, Priority, RecordName};
use crate::manager::Manager;
use crate::manager::changes::Topic;
use crate::manager::request::{Caller, ManagerError};
use crate::store::record::CachedRecords;
use crate::store::{RecordKind, Store, StoreError};

/// The most limits that can be set. It is below the number of records that a store lists, so that the list stays
/// readable even when several managers set limits at once.
const MAX_SET: usize = 9_000;

/// A limit that is set for all jobs of a queue, kind, owner or key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitSettings {
    /// The jobs that the limit is about.
    pub limit: LimitName,
    /// The most of these jobs that run at once, if there is such a number.
    #[serde(default)]
    pub max_concurrent: Option<u32>,
    /// The places of these that are kept free for urgent jobs.
    #[serde(default)]
    pub urgent: Option<Urgent>,
    /// How many of these jobs begin in a time, if there is such a rate.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// The time before which none of these jobs begins, if they are paused.
    #[serde(default)]
    pub paused_until: Option<Timestamp>,
    /// When the number of jobs that run at once was first set, or else the limit.
    pub set_at: Timestamp,
    /// Who changed the limit last.
    pub by: Actor,
}

/// What a limit is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewLimit {
    /// The most jobs that run at once, from 1 to [`MAX_CONCURRENT`], if there is to be such a number.
    pub max_concurrent: Option<u32>,
    /// The places of these that are to be kept free for urgent jobs, fewer than there are.
    pub urgent: Option<Urgent>,
    /// How many jobs begin in a time, if there is to be such a rate.
    pub rate: Option<Rate>,
    /// The time before which none begins, if the jobs are to be paused.
    pub paused_until: Option<Timestamp>,
}

impl NewLimit {
    /// Returns what is wrong with it.
    fn check(&self) -> Result<(), ManagerError> {
        let invalid = |field, message: String| Err(ManagerError::Invalid { field, message });
        if *self == Self::default() {
            return invalid("max_concurrent", "or `rate` or `paused_until` must be given".to_owned());
        }
        if self.max_concurrent.is_some_and(|most| !(1..=MAX_CONCURRENT).contains(&most)) {
            return invalid("max_concurrent", format!("must be between 1 and {MAX_CONCURRENT}"));
        }
        if let Some(Urgent { places, .. }) = self.urgent
            && !(1..self.max_concurrent.unwrap_or(0)).contains(&places)
        {
            return invalid("urgent.places", "must be at least 1, and fewer than `max_concurrent`".to_owned());
        }
        let Some(Rate { count, per_ms, burst }) = self.rate else { return Ok(()) };
        for (field, value) in [("rate.count", count), ("rate.burst", burst)] {
            if !(1..=Rate::MOST).contains(&value) {
                return invalid(field, format!("must be between 1 and {}", Rate::MOST));
            }
        }
        if !Rate::PER_MS.contains(&per_ms) {
            return invalid("rate.per_ms", "must be between 1,000 (a second) and 86,400,000 (a day)".to_owned());
        }
        Ok(())
    }
}

/// A limit, and which jobs run under it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitState {
    /// The jobs that the limit is about: those of a queue, kind, owner or key.
    #[schema(value_type = String, example = "key:db-7")]
    pub limit: LimitName,
    /// The most of these jobs that run at once, if that is set for all of them; null when each job says it itself.
    pub max_concurrent: Option<u32>,
    /// The places of these that are kept free for urgent jobs; null when none are.
    pub urgent: Option<Urgent>,
    /// How many of these jobs begin in a time; null when there is no such rate.
    pub rate: Option<Rate>,
    /// The time before which none of these jobs begins; null when they are not paused.
    pub paused_until: Option<Timestamp>,
    /// When the limit was set; null when it is not.
    pub set_at: Option<Timestamp>,
    /// Who changed the limit last; null when it is not set.
    pub by: Option<Actor>,
    /// The jobs that run under the limit, as they are in real time.
    pub running: Vec<SlotHolder>,
}

/// A job that runs under a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlotHolder {
    /// The id of the job that runs.
    pub job_id: JobId,
    /// The fence of the lease under which it runs.
    #[schema(value_type = u64)]
    pub fence: Fence,
    /// The most jobs of its key that run at once, as the job says itself.
    pub max_concurrent: Option<u32>,
    /// The priority of the job, by which it counts as urgent or not.
    #[schema(value_type = i64)]
    pub priority: Priority,
}

/// A limit that has no slot for a job.
#[derive(Clone, Debug)]
pub(in crate::manager) struct Reached {
    pub(in crate::manager) limit: LimitName,
    pub(in crate::manager) why: Why,
}

/// Why a limit lets no job begin now.
#[derive(Clone, Debug)]
pub(in crate::manager) enum Why {
    /// So many run as may, these.
    Full(u32, Vec<SlotHolder>),
    /// Of the jobs that are not urgent so many run as may, these: the other places are kept free.
    KeptFree(u32, Urgent, Vec<SlotHolder>),
    /// As many have begun as may in the time.
    Spent(Rate),
    /// None begins before this time.
    Paused(Timestamp),
}

/// All limits that are set, as this manager knows them.
pub(in crate::manager) struct LimitSettingsCache {
    records: CachedRecords<LimitSettings>,
    by_name: RwLock<HashMap<LimitName, Arc<LimitSettings>>>,
    has_any: AtomicBool,
}

impl LimitSettingsCache {
    pub(in crate::manager) fn new(store: Arc<dyn Store>) -> Self {
        let records = CachedRecords::new(store, RecordKind::Limit);
        Self { records, by_name: RwLock::default(), has_any: AtomicBool::new(false) }
    }

    /// Returns whether any limit is set.
    pub(super) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    pub(super) fn get(&self, name: &LimitName) -> Option<Arc<LimitSettings>> {
        if self.has_any() { self.by_name.read().get(name).cloned() } else { None }
    }

    fn all(&self) -> Vec<Arc<LimitSettings>> {
        self.by_name.read().values().cloned().collect()
    }

    /// Reads all limits that are set from the store.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot list them.
    pub(in crate::manager) async fn list(&self) -> Result<(), StoreError> {
        self.records.list().await?;
        self.publish();
        Ok(())
    }

    /// Reads the limits of these records in real time.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot read them.
    pub(in crate::manager) async fn read(&self, names: &[RecordName]) -> Result<(), StoreError> {
        if !names.is_empty() {
            self.records.read(names).await?;
            self.publish();
        }
        Ok(())
    }

    fn publish(&self) {
        self.records.publish(|all| {
            let by_name: HashMap<_, _> = all.into_iter().map(|(_, set)| (set.limit.clone(), set)).collect();
            self.has_any.store(!by_name.is_empty(), Ordering::Relaxed);
            *self.by_name.write() = by_name;
        });
    }
}

impl Manager {
    /// Sets how many jobs of a queue, kind, owner or key run at once, begin in a time, or before when none does, and
    /// returns the limit as it is set. Jobs that run already go on, and count.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] for a number that is no limit, or when too many are set; [`ManagerError::Unknown`];
    /// otherwise the store's error.
    pub async fn set_limit(
        &self,
        caller: &Caller,
        limit: &LimitName,
        new: NewLimit,
    ) -> Result<LimitSettings, ManagerError> {
        new.check()?;
        let NewLimit { max_concurrent, urgent, rate, paused_until } = new;
        let now = self.shared.clock.now();
        let set = self.change_limit(limit, |before| {
            // Jobs that began before such a number was set have no slots.
            let had_slots = |before: &&LimitSettings| before.max_concurrent.is_some() || max_concurrent.is_none();
            let set_at = before.filter(had_slots).map_or(now, |before| before.set_at);
            let limit = limit.clone();
            Some(LimitSettings { limit, max_concurrent, urgent, rate, paused_until, set_at, by: caller.name.clone() })
        });
        set.await?.map(|set| (*set).clone()).ok_or_else(|| ManagerError::Unknown("the limit is gone again".to_owned()))
    }

    /// Takes a limit away, and returns whether it was set.
    ///
    /// # Errors
    /// [`ManagerError::Unknown`]; otherwise the store's error.
    pub async fn remove_limit(&self, limit: &LimitName) -> Result<bool, ManagerError> {
        let mut was_set = false;
        self.change_limit(limit, |before| {
            was_set = before.is_some();
            None
        })
        .await?;
        Ok(was_set)
    }

    /// Returns the limits that are set, by their names, each with the jobs that run under it.
    ///
    /// # Errors
    /// [`ManagerError::Store`] when the store cannot be read.
    pub async fn limits(&self) -> Result<Vec<LimitState>, ManagerError> {
        self.know_queues().await?;
        let mut names: Vec<LimitName> = self.shared.limits.settings.all().iter().map(|set| set.limit.clone()).collect();
        names.sort();
        self.limit_states(names).await
    }

    /// Returns one limit with the jobs that run under it, also one that only jobs have named.
    ///
    /// # Errors
    /// [`ManagerError::Store`] when the store cannot be read.
    pub async fn limit(&self, limit: &LimitName) -> Result<LimitState, ManagerError> {
        self.know_queues().await?;
        let unknown = || ManagerError::Unknown("the limit was not read".to_owned());
        self.limit_states(vec![limit.clone()]).await?.pop().ok_or_else(unknown)
    }

    /// Returns for each of these jobs the limits that have no slot for it, and which jobs run under each.
    ///
    /// # Errors
    /// [`ManagerError::Store`] when the store cannot be read.
    pub(in crate::manager) async fn limits_reached(&self, jobs: &[&Job]) -> Result<Vec<Vec<Reached>>, ManagerError> {
        let under: Vec<Vec<Under>> = jobs.iter().map(|job| self.limits_of(job)).collect();
        let names: BTreeSet<&LimitName> = under.iter().flatten().map(|under| &under.name).collect();
        let names: Vec<LimitName> = names.into_iter().cloned().collect();
        let holders = self.holders_of(&names).await?;
        let holders: HashMap<LimitName, Vec<SlotHolder>> = names.into_iter().zip(holders).collect();
        let now = self.shared.clock.now();
        let reached = |job: &Job, under: Under| {
            let running = holders.get(&under.name).cloned().unwrap_or_default();
            let said = running.iter().filter_map(|holder| holder.max_concurrent).chain(under.own).min();
            let most = under.limit.or(said).filter(|most| running.len() >= *most as usize);
            let paused = under.paused_until.filter(|until| now < *until);
            let why = match (paused, most, kept_free(&under, job, &running), under.rate) {
                (Some(until), ..) => Why::Paused(until),
                (None, Some(most), ..) => Why::Full(most, running),
                (None, None, Some(kept_free), _) => kept_free,
                (None, None, None, Some(rate)) if self.shared.limits.documents.room(&under, job, now) == 0 => {
                    Why::Spent(rate)
                }
                (None, None, None, _) => return None,
            };
            Some(Reached { limit: under.name, why })
        };
        let of =
            |(job, under): (&&Job, Vec<Under>)| under.into_iter().filter_map(|under| reached(job, under)).collect();
        Ok(jobs.iter().zip(under).map(of).collect())
    }

    async fn limit_states(&self, names: Vec<LimitName>) -> Result<Vec<LimitState>, ManagerError> {
        let holders = self.holders_of(&names).await?;
        let state = |(limit, running): (LimitName, Vec<SlotHolder>)| {
            let set = self.shared.limits.settings.get(&limit);
            let set = set.as_deref();
            LimitState {
                max_concurrent: set.and_then(|set| set.max_concurrent),
                urgent: set.and_then(|set| set.urgent),
                rate: set.and_then(|set| set.rate),
                paused_until: set.and_then(|set| set.paused_until),
                set_at: set.map(|set| set.set_at),
                by: set.map(|set| set.by.clone()),
                limit,
                running,
            }
        };
        Ok(names.into_iter().zip(holders).map(state).collect())
    }

    async fn change_limit(
        &self,
        limit: &LimitName,
        change: impl FnMut(Option<&LimitSettings>) -> Option<LimitSettings> + Send,
    ) -> Result<Option<Arc<LimitSettings>>, ManagerError> {
        let settings = &self.shared.limits.settings;
        let mut change = change;
        let decide = |before: Option<&LimitSettings>| {
            let after = change(before);
            if before.is_none() && after.is_some() && settings.records.all().len() >= MAX_SET {
                let message = format!("{MAX_SET} limits are set, and no more can be");
                return Err(ManagerError::Invalid { field: "limit", message });
            }
            Ok(after)
        };
        let name = record_name(limit);
        let announcement = self.announce_change(Topic::Limits, &name);
        let set = settings.records.change(&name, decide).await?;
        settings.publish();
        self.tell_of(announcement).await;
        Ok(set)
    }
}

/// Returns why a job does not begin that is not urgent, if the free places of a limit are kept for those that are.
fn kept_free(under: &Under, job: &Job, running: &[SlotHolder]) -> Option<Why> {
    let urgent = under.urgent.filter(|urgent| !urgent.is(job.spec.priority))?;
    let most = urgent.most_others(under.limit?);
    let others: Vec<SlotHolder> = running.iter().filter(|holder| !urgent.is(holder.priority)).cloned().collect();
    (others.len() >= most as usize).then_some(Why::KeptFree(most, urgent, others))
}
