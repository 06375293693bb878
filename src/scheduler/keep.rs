//! What is kept of a schedule's last triggers when they are removed: their outcomes, in the schedule.
//!
//! Triggers are removed by age. Whether one is among the last of its schedule follows from the schedule's times, so
//! that nothing is searched for; where a schedule is due often, it is not, and nothing is written. Which triggers are
//! too old is remembered, so that such a schedule is read about once in the time that triggers are kept.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::outcomes::{self, DueTime};
use super::trigger;
use crate::clock::Timestamp;
use crate::job::{QueueName, ScheduleId};
use crate::manager::{Manager, ManagerError};
use crate::monitor::Keeper;
use crate::schedule::Schedule;
use crate::store::{ScheduleWrite, Store, StoreError, StoredSchedule, Versioned, WriteError};

/// How often the outcomes of a schedule are noted against changes by others.
const TRIES: usize = 10;
/// Of how many schedules it is remembered since when triggers are kept, and of how many that they cannot be read.
const REMEMBERED: usize = 100_000;

/// Keeps the outcomes of triggers that are removed.
pub struct OutcomeKeeper {
    manager: Manager,
    store: Arc<dyn Store>,
    queue: QueueName,
    /// The due times before which nothing is kept of a schedule: they only grow.
    kept_from: Mutex<HashMap<ScheduleId, Timestamp>>,
    /// The schedules of which it was said that they cannot be read.
    unreadable: Mutex<HashSet<ScheduleId>>,
}

/// The triggers of one schedule that are to be removed.
struct Leaving {
    found: StoredSchedule,
    triggers: Vec<Versioned>,
}

type Kept = Result<Versioned, ManagerError>;

#[async_trait]
impl Keeper for OutcomeKeeper {
    async fn keep(&self, leaving: Vec<Versioned>, now: Timestamp) -> Vec<Kept> {
        let mut decided = Vec::with_capacity(leaving.len());
        let mut by_schedule: HashMap<ScheduleId, Vec<Versioned>> = HashMap::new();
        for job in leaving {
            match self.may_be_kept(&job) {
                Some(id) => by_schedule.entry(id).or_default().push(job),
                None => decided.push(Ok(job)),
            }
        }
        if by_schedule.is_empty() {
            return decided;
        }
        let ids: Vec<ScheduleId> = by_schedule.keys().cloned().collect();
        let schedules = match self.read(&ids).await {
            Ok(schedules) => schedules,
            Err(error) => {
                let failed = || ManagerError::from(error.clone());
                decided.extend(by_schedule.into_values().flatten().map(|_| Err(failed())));
                return decided;
            }
        };
        let mut open = Vec::new();
        for (id, found) in ids.iter().zip(schedules) {
            let triggers = by_schedule.remove(id).unwrap_or_default();
            match found {
                Some(found) => open.push(Leaving { found, triggers }),
                // Of a schedule that was removed nothing is kept.
                None => decided.extend(triggers.into_iter().map(Ok)),
            }
        }
        for _ in 0..TRIES {
            if open.is_empty() {
                return decided;
            }
            open = self.note(open, now, &mut decided).await;
        }
        let contended = || ManagerError::Contended { tries: TRIES };
        decided.extend(open.into_iter().flat_map(|one| one.triggers).map(|_| Err(contended())));
        decided
    }
}

impl OutcomeKeeper {
    /// Creates a keeper of the triggers of a store's schedules.
    #[must_use]
    pub fn new(manager: Manager, store: Arc<dyn Store>) -> Self {
        let queue = QueueName::system(trigger::QUEUE);
        Self { manager, store, queue, kept_from: Mutex::default(), unreadable: Mutex::default() }
    }

    /// Returns the schedule of a trigger whose outcome may have to be kept.
    fn may_be_kept(&self, job: &Versioned) -> Option<ScheduleId> {
        let due = job.job.spec.due.as_deref().filter(|_| job.job.spec.queue == self.queue)?;
        let kept_from = self.kept_from.lock().get(&due.schedule_id).copied();
        kept_from.is_none_or(|from| due.due_at >= from).then(|| due.schedule_id.clone())
    }

    /// Notes the outcomes of triggers in their schedules. Adds those to `decided` that may be removed, or may not, and
    /// returns the others: their schedules have changed meanwhile.
    async fn note(&self, open: Vec<Leaving>, now: Timestamp, decided: &mut Vec<Kept>) -> Vec<Leaving> {
        let mut noted = Vec::new();
        for one in open {
            match self.course_of(&one, now).await {
                Ok(Some(write)) => noted.push((one, write)),
                Ok(None) => decided.extend(one.triggers.into_iter().map(Ok)),
                Err(error) => decided.extend(one.triggers.into_iter().map(|_| Err(error.clone()))),
            }
        }
        if noted.is_empty() {
            return Vec::new();
        }
        let (leaving, writes): (Vec<Leaving>, Vec<ScheduleWrite>) = noted.into_iter().unzip();
        let written = self.store.write_schedules(writes).await;
        let mut again = Vec::new();
        for (one, written) in leaving.into_iter().zip(written) {
            let error = match written {
                Ok(_) | Err(WriteError::Conflict(None)) => {
                    decided.extend(one.triggers.into_iter().map(Ok));
                    continue;
                }
                Err(WriteError::Conflict(Some(found))) => {
                    again.push(Leaving { found, ..one });
                    continue;
                }
                Err(WriteError::Refused(error)) => ManagerError::Store(error),
                Err(WriteError::Unknown(why)) => ManagerError::Unknown(why),
            };
            decided.extend(one.triggers.into_iter().map(|_| Err(error.clone())));
        }
        again
    }

    /// Returns the write of a schedule that keeps what is to be kept of these triggers; `None` when nothing is.
    async fn course_of(&self, one: &Leaving, now: Timestamp) -> Result<Option<ScheduleWrite>, ManagerError> {
        let schedule = &*one.found.schedule;
        let timetable = match schedule.timetable() {
            Ok(timetable) => timetable,
            Err(why) => {
                self.say_unreadable(&schedule.id, &why);
                return Ok(None);
            }
        };
        let from = schedule.kept_from(&timetable, now);
        if let Some(from) = from {
            self.remember(&schedule.id, from);
        }
        let is_kept = |due: Timestamp| {
            let is_own = due > schedule.period_since && from.is_none_or(|from| due >= from);
            is_own && timetable.is_due_at(due)
        };
        let due_at = |trigger: &Versioned| trigger.job.spec.due.as_ref().map(|due| due.due_at);
        let kept: Vec<Versioned> =
            one.triggers.iter().filter(|trigger| due_at(trigger).is_some_and(is_kept)).cloned().collect();
        if kept.is_empty() {
            return Ok(None);
        }
        let performed = outcomes::performed(&self.manager, kept.clone()).await?;
        let mut course = schedule.course.clone();
        let mut has_changed = false;
        for (trigger, performed) in kept.iter().zip(performed) {
            let Some(due) = due_at(trigger) else { continue };
            let outcome = DueTime::of(&trigger.job, due, performed).into_kept();
            has_changed |= !course.says(&outcome) && course.keep(outcome);
        }
        let write = |course| {
            let schedule = Arc::new(Schedule { course, ..schedule.clone() });
            ScheduleWrite::Replace { schedule, expected: one.found.version }
        };
        Ok(has_changed.then(|| write(course)))
    }

    /// Reads schedules. One that cannot be read is as one that is not there, so that its triggers can be removed.
    async fn read(&self, ids: &[ScheduleId]) -> Result<Vec<Option<StoredSchedule>>, StoreError> {
        match (ids, self.store.schedules(ids).await) {
            ([id], Err(StoreError::Unreadable { why, .. } | StoreError::Corrupt(why))) => {
                self.say_unreadable(id, &why);
                Ok(vec![None])
            }
            ([_, _, ..], Err(StoreError::Unreadable { .. } | StoreError::Corrupt(_))) => {
                let (one, other) = ids.split_at(ids.len() / 2);
                let mut found = Box::pin(self.read(one)).await?;
                found.extend(Box::pin(self.read(other)).await?);
                Ok(found)
            }
            (_, found) => found,
        }
    }

    fn remember(&self, id: &ScheduleId, from: Timestamp) {
        let mut kept_from = self.kept_from.lock();
        if kept_from.len() >= REMEMBERED {
            kept_from.clear();
        }
        kept_from.insert(id.clone(), from);
    }

    fn say_unreadable(&self, schedule: &ScheduleId, why: &str) {
        let mut unreadable = self.unreadable.lock();
        if unreadable.len() < REMEMBERED && unreadable.insert(schedule.clone()) {
            tracing::warn!(%schedule, why, "of a schedule that cannot be read no outcomes are kept");
        }
    }
}
