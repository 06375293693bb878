//! Whose schedules are, before a call about them is made.

use super::refusal::{ScheduleError, check_own};
use super::schedules::Schedules;
use crate::job::ScheduleId;
use crate::manager::{Caller, Reach};

impl Schedules {
    /// Checks of each of these schedules, as far as they are there, that a client may change it. A change checks that
    /// once more as it is made.
    ///
    /// # Errors
    /// Those of a read; within, [`ScheduleError::NotOwn`].
    pub async fn check_own(
        &self,
        caller: &Caller,
        ids: &[ScheduleId],
    ) -> Result<Vec<Result<(), ScheduleError>>, ScheduleError> {
        if caller.reach == Reach::All {
            return Ok(ids.iter().map(|_| Ok(())).collect());
        }
        let found = self.store.schedules(ids).await?.into_iter();
        Ok(found.map(|found| found.map_or(Ok(()), |found| check_own(caller, &found.schedule))).collect())
    }
}
