//! Schedules as people deal with them: created, changed, paused, listed, removed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::action::job_of;
use super::outcomes::{self, DueTimes};
use super::refusal::{ScheduleError, TRIES, check_own, failed};
use super::trigger::Trigger;
use super::troubles::Troubles;
use crate::clock::{Clock, Timestamp};
use crate::executor::{TargetPolicy, TargetUrl};
use crate::job::{Actor, JobId, ScheduleId};
use crate::manager::{Caller, Manager, ManagerError, Reach, Topic};
use crate::notify::ScheduleNotifier;
use crate::schedule::{ActionType, Course, Definition, Fault, Occasion, Schedule, SchedulePause, Timetable, Trouble};
use crate::store::{
    ListSchedules, Refresh, ScheduleResult, ScheduleWrite, Store, StoreError, StoredSchedule, Version, WriteError,
};

/// A schedule to be created or written over.
#[derive(Clone, Debug)]
pub struct NewSchedule {
    /// The id under which the schedule is stored.
    pub id: ScheduleId,
    /// The definition, which people may write over.
    pub definition: Definition,
    /// Whether it is paused from the beginning.
    pub paused: bool,
}

/// What was made of a request to store a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It is new.
    Created,
    /// It is written over the former one.
    Replaced,
    /// It was there already.
    Unchanged,
}

/// The schedules of a store.
#[derive(Clone)]
pub struct Schedules {
    pub(super) manager: Manager,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    /// Notified when a schedule may be due sooner than the loader knows.
    pub(super) changed: Arc<Notify>,
    pub(super) notifier: ScheduleNotifier,
    pub(super) troubles: Troubles,
    policy: Arc<TargetPolicy>,
}

impl Schedules {
    /// Creates the schedules of a store, of which calls go to targets that the policy allows, and of whose events
    /// nobody is notified.
    #[must_use]
    pub fn new(manager: Manager, store: Arc<dyn Store>, clock: Arc<dyn Clock>, policy: TargetPolicy) -> Self {
        let (changed, policy) = (Arc::new(Notify::new()), Arc::new(policy));
        let (notifier, troubles) = (ScheduleNotifier::default(), Troubles::default());
        Self { manager, store, clock, changed, notifier, troubles, policy }
    }

    /// Returns the schedules, of whose events this notifies receivers.
    #[must_use]
    pub fn notifying(self, notifier: ScheduleNotifier) -> Self {
        Self { notifier, ..self }
    }

    /// Returns schedules that are in trouble, as far as this process performs schedules and knows of them: at most
    /// [`MAX_NAMED`](super::MAX_NAMED), by id.
    #[must_use]
    pub fn in_trouble(&self) -> Vec<(ScheduleId, Trouble)> {
        self.troubles.all()
    }

    /// Stores a schedule. One that is there is left if it has the same definition, and written over if `may_replace`
    /// is set and it has the tag `expected`, if one is given ([`Schedule::tag`]).
    ///
    /// # Errors
    /// [`ScheduleError`] says why it is not stored.
    pub async fn put(
        &self,
        caller: &Caller,
        new: NewSchedule,
        may_replace: bool,
        expected: Option<&str>,
    ) -> Result<(StoredSchedule, Stored), ScheduleError> {
        let mut current = self.find(&new.id).await?;
        for _ in 0..TRIES {
            let now = self.clock.now();
            let tag = current.as_ref().map(|current| current.schedule.tag());
            if expected.is_some_and(|expected| tag.as_deref() != Some(expected)) {
                return Err(ScheduleError::Changed(new.id));
            }
            let Some((write, stored)) = self.decide(caller, &new, current.as_ref(), now)? else {
                return current.map(|current| (current, Stored::Unchanged)).ok_or(ScheduleError::Contended);
            };
            if stored == Stored::Replaced && !may_replace {
                return Err(ScheduleError::Differs(new.id));
            }
            let Some(schedule) = write.schedule().cloned() else { return Err(ScheduleError::Contended) };
            match self.write(write).await {
                Ok(version) => return Ok((StoredSchedule { schedule, version }, stored)),
                Err(WriteError::Conflict(other)) => current = other,
                Err(error) => return Err(failed(error)),
            }
        }
        Err(ScheduleError::Contended)
    }

    /// Stores many schedules at once, each written over the former one. The answers are in the same order.
    pub async fn put_many(
        &self,
        caller: &Caller,
        new: Vec<NewSchedule>,
    ) -> Vec<Result<(ScheduleId, Stored), ScheduleError>> {
        let ids: Vec<ScheduleId> = new.iter().map(|new| new.id.clone()).collect();
        let found = match self.store.schedules(&ids).await {
            Ok(found) => found,
            Err(error) => return ids.iter().map(|_| Err(error.clone().into())).collect(),
        };
        let now = self.clock.now();
        let (mut writes, mut answers) = (Vec::new(), Vec::new());
        for (new, current) in new.iter().zip(found) {
            answers.push(match self.decide(caller, new, current.as_ref(), now) {
                Ok(Some((write, stored))) => {
                    writes.push(write);
                    Ok(stored)
                }
                Ok(None) => Ok(Stored::Unchanged),
                Err(error) => Err(error),
            });
        }
        let mut written = self.write_all(writes).await.into_iter();
        let mut stored = Vec::with_capacity(answers.len());
        for (new, answer) in new.into_iter().zip(answers) {
            let id = new.id.clone();
            stored.push(match answer {
                Err(error) => Err(error),
                Ok(Stored::Unchanged) => Ok((id, Stored::Unchanged)),
                Ok(stored) => match written.next() {
                    Some(Ok(_)) => Ok((id, stored)),
                    // Another line or another caller was first.
                    Some(Err(WriteError::Conflict(_))) => {
                        self.put(caller, new, true, None).await.map(|(_, stored)| (id, stored))
                    }
                    Some(Err(error)) => Err(failed(error)),
                    None => Err(ManagerError::Unknown("the store gave no answer".to_owned()).into()),
                },
            });
        }
        stored
    }

    /// Returns the write that stores a schedule over `current`; `None` when that has the same definition.
    pub(super) fn decide(
        &self,
        caller: &Caller,
        new: &NewSchedule,
        current: Option<&StoredSchedule>,
        now: Timestamp,
    ) -> Result<Option<(ScheduleWrite, Stored)>, ScheduleError> {
        if current.is_some_and(|current| *current.schedule.definition == new.definition) {
            return Ok(None);
        }
        if let Some(current) = current {
            check_own(caller, &current.schedule)?;
        }
        let is_due_alike = current.is_some_and(|current| current.schedule.definition.is_due_alike(&new.definition));
        let timetable = self.check(&new.id, &new.definition, now, !is_due_alike)?;
        Ok(Some(match current {
            Some(StoredSchedule { schedule, version }) => {
                let schedule = Arc::new(replaced(schedule, &new.definition, &timetable, now));
                (ScheduleWrite::Replace { schedule, expected: *version }, Stored::Replaced)
            }
            None => {
                let created_by = match &caller.reach {
                    Reach::All => None,
                    Reach::Of(name) if self.store.keeps_holders() => Some(name.clone()),
                    // Without the name it could do whatever an administrator's may.
                    Reach::Of(_) => return Err(ScheduleError::NotYet(new.id.clone())),
                };
                let schedule = Arc::new(created((caller, created_by), new, &timetable, now));
                (ScheduleWrite::Create { schedule }, Stored::Created)
            }
        }))
    }

    /// Returns a schedule as it is now.
    ///
    /// # Errors
    /// [`ScheduleError::NotFound`], and those of a read.
    pub async fn get(&self, id: &ScheduleId) -> Result<StoredSchedule, ScheduleError> {
        self.find(id).await?.ok_or_else(|| ScheduleError::NotFound(id.clone()))
    }

    /// Lists schedules by id.
    ///
    /// # Errors
    /// The errors of a read.
    pub async fn list(&self, list: &ListSchedules) -> Result<Vec<StoredSchedule>, ScheduleError> {
        Ok(self.store.list_schedules(list).await?)
    }

    /// Removes a schedule, if it has the tag `expected` where one is given. Its triggers that are not performed yet
    /// are skipped.
    ///
    /// # Errors
    /// [`ScheduleError`] says why it is not removed.
    pub async fn remove(&self, caller: &Caller, id: &ScheduleId, expected: Option<&str>) -> Result<(), ScheduleError> {
        self.change(caller, id, expected, |current| Ok(Some(removed(current)))).await.map(drop)
    }

    /// Pauses a schedule: from now on none of its triggers begins.
    ///
    /// # Errors
    /// [`ScheduleError`] says why it is not paused.
    pub async fn pause(
        &self,
        caller: &Caller,
        id: &ScheduleId,
        reason: String,
    ) -> Result<StoredSchedule, ScheduleError> {
        self.change(caller, id, None, |current| Ok(paused(current, caller, &reason, self.clock.now()))).await
    }

    /// Ends the pause of a schedule. What would have been due meanwhile is not made up for, and kept as a range.
    ///
    /// # Errors
    /// [`ScheduleError`] says why it is not resumed.
    pub async fn resume(&self, caller: &Caller, id: &ScheduleId) -> Result<StoredSchedule, ScheduleError> {
        self.change(caller, id, None, |current| self.resumed(current, caller, self.clock.now())).await
    }

    /// Returns the write that ends the pause of a schedule; `None` when it is not paused.
    ///
    /// # Errors
    /// [`ScheduleError::Unreadable`] when it is not known any more when the schedule is due.
    pub(super) fn resumed(
        &self,
        current: &StoredSchedule,
        by: &Caller,
        now: Timestamp,
    ) -> Result<Option<ScheduleWrite>, ScheduleError> {
        let mut schedule = (*current.schedule).clone();
        if schedule.paused.is_none() {
            return Ok(None);
        }
        let timetable = timetable(&schedule)?;
        let is_wanted = |event| self.notifier.is_wanted(&current.schedule.definition, event);
        schedule.resume(&timetable, &Occasion { at: now, by: &by.name, is_wanted: &is_wanted });
        Ok(Some(replacement(current, schedule)))
    }

    /// Makes a trigger of a schedule that is due at once, whatever its times are and though it is paused. Returns the
    /// trigger's id.
    ///
    /// # Errors
    /// [`ScheduleError`] says why it is not made.
    pub async fn run_now(&self, caller: &Caller, id: &ScheduleId) -> Result<JobId, ScheduleError> {
        let found = self.get(id).await?;
        check_own(caller, &found.schedule)?;
        let (schedule, now) = (&found.schedule, self.clock.now());
        // Triggers are made ahead: the last one may not be due yet.
        let previous = schedule.course.last_due_at.filter(|last| *last <= now);
        let before = || timetable(schedule).ok()?.last_until(now, 1, schedule.period_since).pop();
        let trigger = Trigger { on_request: true, ..Trigger::of(schedule, now, previous.or_else(before)) };
        let job = trigger.into_job(&found.schedule).map_err(|error| ManagerError::Unknown(error.to_string()))?;
        match self.manager.submit_own(caller, vec![job]).await.into_iter().next() {
            Some(Ok(own)) => Ok(own.id),
            Some(Err(error)) => Err(error.into()),
            None => Err(ManagerError::Unknown("the manager gave no answer".to_owned()).into()),
        }
    }

    /// Returns the first `limit` due times of a schedule from `from` to `to`, each with what has become of it; without
    /// `from`, the last ones. Of those from before it had its present period, those are listed that a backfill has run.
    ///
    /// # Errors
    /// [`ScheduleError::NotFound`], and those of a read.
    pub async fn due_times(
        &self,
        id: &ScheduleId,
        (from, to): (Option<Timestamp>, Timestamp),
        limit: usize,
    ) -> Result<DueTimes, ScheduleError> {
        let schedule = self.get(id).await?.schedule;
        let timetable = timetable(&schedule)?;
        let from = from.or_else(|| timetable.last_until(to, limit, schedule.period_since).first().copied());
        let from = from.unwrap_or(to);
        let manager = &self.manager;
        Ok(outcomes::due_times(manager, (&schedule, &timetable), (from, to), limit, self.clock.now()).await?)
    }

    /// Returns the next `n` times at which a schedule is due.
    ///
    /// # Errors
    /// [`ScheduleError::NotFound`], and those of a read.
    pub async fn next_due(&self, id: &ScheduleId, n: usize) -> Result<Vec<Timestamp>, ScheduleError> {
        let schedule = self.get(id).await?.schedule;
        Ok(timetable(&schedule)?.due_after(self.clock.now()).take(n).collect())
    }

    pub(super) async fn find(&self, id: &ScheduleId) -> Result<Option<StoredSchedule>, StoreError> {
        Ok(self.store.schedules(std::slice::from_ref(id)).await?.into_iter().next().flatten())
    }

    /// Changes a schedule as it is now; `change` returns no write where there is nothing to change. Returns the
    /// schedule as it is then.
    async fn change(
        &self,
        caller: &Caller,
        id: &ScheduleId,
        expected: Option<&str>,
        change: impl Fn(&StoredSchedule) -> Result<Option<ScheduleWrite>, ScheduleError>,
    ) -> Result<StoredSchedule, ScheduleError> {
        let mut current = self.get(id).await?;
        for _ in 0..TRIES {
            if expected.is_some_and(|expected| expected != current.schedule.tag()) {
                return Err(ScheduleError::Changed(id.clone()));
            }
            check_own(caller, &current.schedule)?;
            let Some(write) = change(&current)? else { return Ok(current) };
            let schedule = write.schedule().unwrap_or(&current.schedule).clone();
            match self.write(write).await {
                Ok(version) => return Ok(StoredSchedule { schedule, version }),
                Err(WriteError::Conflict(Some(other))) => current = other,
                Err(WriteError::Conflict(None)) => return Err(ScheduleError::NotFound(id.clone())),
                Err(error) => return Err(failed(error)),
            }
        }
        Err(ScheduleError::Contended)
    }

    async fn write(&self, write: ScheduleWrite) -> Result<Version, WriteError<StoredSchedule>> {
        let no_answer = || Err(WriteError::Unknown("the store gave no answer".to_owned()));
        self.write_all(vec![write]).await.into_iter().next().unwrap_or_else(no_answer)
    }

    async fn write_all(&self, writes: Vec<ScheduleWrite>) -> Vec<ScheduleResult> {
        if writes.is_empty() {
            return Vec::new();
        }
        let written = self.store.write_schedules(writes).await;
        self.announce().await;
        written
    }

    /// Has searches and the loader see what was written.
    pub(super) async fn announce(&self) {
        if !self.store.has_realtime_search()
            // A schedule that is due at once is not to wait for the next refresh.
            && let Err(error) = self.store.refresh(Refresh::Schedules).await
        {
            tracing::debug!(%error, "schedules that were written show later");
        }
        self.changed.notify_one();
        self.manager.tell_of_change(Topic::Schedules, None).await;
    }

    /// Returns when a schedule with this definition is due, which it must be some time after `now` if it `is_to_fire`.
    ///
    /// # Errors
    /// [`ScheduleError::Invalid`] with everything that is wrong.
    fn check(
        &self,
        id: &ScheduleId,
        definition: &Definition,
        now: Timestamp,
        is_to_fire: bool,
    ) -> Result<Timetable, ScheduleError> {
        let mut faults = Vec::new();
        let mut fault = |field: &str, message: String| faults.push(Fault { field: field.to_owned(), message });
        match definition.action.kind {
            ActionType::Job => {
                let example = Trigger::example(id.clone(), now);
                for error in job_of(&definition.action, &example).err().into_iter().flat_map(|invalid| invalid.errors) {
                    let field = format!("action.job.{}", error.field);
                    fault(field.trim_end_matches('.'), error.message);
                }
            }
            ActionType::Http => {
                let url = definition.action.url.as_deref().unwrap_or_default();
                self.check_target(url).unwrap_or_else(|why| fault("action.url", why));
            }
        }
        for (index, target) in definition.notify.iter().enumerate() {
            self.check_target(&target.url).unwrap_or_else(|why| fault(&format!("notify[{index}].url"), why));
        }
        let timetable = definition.timetable(id, &mut faults);
        if let Some(timetable) = &timetable
            && is_to_fire
            && timetable.due_after(now).next().is_none()
        {
            let message = "never fires: no time within a hundred years from now is left".to_owned();
            faults.push(Fault { field: "period".to_owned(), message });
        }
        timetable.filter(|_| faults.is_empty()).ok_or(ScheduleError::Invalid(faults))
    }

    /// Checks that a URL may be called, as far as it can be told without looking up its host's name; returns why not.
    fn check_target(&self, url: &str) -> Result<(), String> {
        let url = TargetUrl::parse(url).map_err(|error| error.to_string())?;
        self.policy.check(&url).map_err(|error| error.to_string())
    }
}

pub(super) fn timetable(schedule: &Schedule) -> Result<Timetable, ScheduleError> {
    schedule.timetable().map_err(|why| ScheduleError::Unreadable(schedule.id.clone(), why))
}

/// Returns a new schedule.
fn created(
    (caller, created_by): (&Caller, Option<Actor>),
    new: &NewSchedule,
    timetable: &Timetable,
    now: Timestamp,
) -> Schedule {
    let pause = || SchedulePause { at: now, by: caller.name.clone(), reason: String::new() };
    Schedule {
        id: new.id.clone(),
        definition: Arc::new(new.definition.clone()),
        revision: 1,
        period_since: now,
        paused: new.paused.then(pause),
        created_at: now,
        created_by,
        updated_at: now,
        course: Course { next_due_at: timetable.due_after(now).next(), ..Course::default() },
    }
}

/// Returns a schedule with another definition. It goes on where it was, unless it is due at other times from now on.
fn replaced(former: &Schedule, definition: &Definition, timetable: &Timetable, now: Timestamp) -> Schedule {
    let mut course = Course { errors: 0, failures: 0, ..former.course.clone() };
    let mut period_since = former.period_since;
    if !former.definition.is_due_alike(definition) {
        period_since = now;
        course.next_due_at = timetable.due_after(now).next();
    }
    let definition = Arc::new(definition.clone());
    // Always later than before, since it says which definition this is: a pause changes the revision as well.
    let updated_at = now.max(former.updated_at.plus(Duration::from_millis(1)));
    Schedule { definition, revision: former.revision + 1, period_since, updated_at, course, ..former.clone() }
}

/// Returns the write that pauses a schedule; `None` when it is paused already.
pub(super) fn paused(current: &StoredSchedule, by: &Caller, reason: &str, now: Timestamp) -> Option<ScheduleWrite> {
    let pause = SchedulePause { at: now, by: by.name.clone(), reason: reason.to_owned() };
    let former = &*current.schedule;
    let paused = || Schedule { paused: Some(pause), revision: former.revision + 1, ..former.clone() };
    former.paused.is_none().then(|| replacement(current, paused()))
}

/// Returns the write that removes a schedule.
pub(super) fn removed(current: &StoredSchedule) -> ScheduleWrite {
    ScheduleWrite::Remove { id: current.schedule.id.clone(), expected: current.version }
}

/// Returns the write of a schedule over the one that was read.
fn replacement(current: &StoredSchedule, schedule: Schedule) -> ScheduleWrite {
    ScheduleWrite::Replace { schedule: Arc::new(schedule), expected: current.version }
}
