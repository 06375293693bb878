//! What a change of a schedule comes to as things are now, before anything is written: so a call that changes nothing,
//! or is refused, leaves no entry in the audit. The change itself looks once more.

use std::collections::HashSet;

use super::bulk::ScheduleAction;
use super::refusal::{ScheduleError, check_own};
use super::schedules::{NewSchedule, Schedules, Stored, paused};
use crate::job::ScheduleId;
use crate::manager::Caller;
use crate::store::StoredSchedule;

/// What a change comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Foreseen {
    /// The schedule is written or removed.
    Changed,
    /// The schedule is so already.
    Unchanged(StoredSchedule),
}

impl Schedules {
    /// Returns what storing a schedule comes to; the parameters are those of [`Schedules::put`].
    ///
    /// # Errors
    /// [`ScheduleError`] says why it would not be stored.
    pub async fn foresee_put(
        &self,
        caller: &Caller,
        new: &NewSchedule,
        may_replace: bool,
        expected: Option<&str>,
    ) -> Result<Foreseen, ScheduleError> {
        let current = self.find(&new.id).await?;
        let tag = current.as_ref().map(|current| current.schedule.tag());
        if expected.is_some_and(|expected| tag.as_deref() != Some(expected)) {
            return Err(ScheduleError::Changed(new.id.clone()));
        }
        match self.decide(caller, new, current.as_ref(), self.clock.now())? {
            Some((_, Stored::Replaced)) if !may_replace => Err(ScheduleError::Differs(new.id.clone())),
            Some(_) => Ok(Foreseen::Changed),
            None => Ok(current.map_or(Foreseen::Changed, Foreseen::Unchanged)),
        }
    }

    /// Returns what storing each of these schedules comes to, in the same order. Of several with one id each counts as
    /// a change, since what the later ones find is not known yet.
    ///
    /// # Errors
    /// Those of a read; within, why a schedule would not be stored.
    pub async fn foresee_put_many(
        &self,
        caller: &Caller,
        new: &[NewSchedule],
    ) -> Result<Vec<Result<Foreseen, ScheduleError>>, ScheduleError> {
        let ids: Vec<ScheduleId> = new.iter().map(|new| new.id.clone()).collect();
        let (mut seen, now) = (HashSet::new(), self.clock.now());
        let repeated: HashSet<&ScheduleId> = ids.iter().filter(|id| !seen.insert(*id)).collect();
        let found = self.store.schedules(&ids).await?;
        let foresee = |(new, current): (&NewSchedule, Option<StoredSchedule>)| {
            let is_written = self.decide(caller, new, current.as_ref(), now)?.is_some();
            let unchanged = current.filter(|_| !is_written && !repeated.contains(&new.id));
            Ok(unchanged.map_or(Foreseen::Changed, Foreseen::Unchanged))
        };
        Ok(new.iter().zip(found).map(foresee).collect())
    }

    /// Returns what this change of a schedule comes to, if it has the tag `expected` where one is given.
    ///
    /// # Errors
    /// [`ScheduleError`] says why it would not be made.
    pub async fn foresee(
        &self,
        caller: &Caller,
        id: &ScheduleId,
        action: ScheduleAction,
        expected: Option<&str>,
    ) -> Result<Foreseen, ScheduleError> {
        let current = self.get(id).await?;
        if expected.is_some_and(|expected| expected != current.schedule.tag()) {
            return Err(ScheduleError::Changed(id.clone()));
        }
        check_own(caller, &current.schedule)?;
        let now = self.clock.now();
        let is_changed = match action {
            ScheduleAction::Pause => paused(&current, caller, "", now).is_some(),
            ScheduleAction::Resume => self.resumed(&current, caller, now)?.is_some(),
            ScheduleAction::Remove => true,
        };
        Ok(if is_changed { Foreseen::Changed } else { Foreseen::Unchanged(current) })
    }
}
