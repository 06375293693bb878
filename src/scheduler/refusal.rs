//! Why something could not be done with a schedule.

use crate::job::ScheduleId;
use crate::manager::{Caller, ManagerError};
use crate::schedule::{Fault, Schedule};
use crate::store::{StoreError, StoredSchedule, WriteError};

/// How often a change is tried against changes by others.
pub(super) const TRIES: usize = 10;

/// Why something could not be done with a schedule.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// There is no such schedule.
    #[error("there is no schedule {0}")]
    NotFound(ScheduleId),
    /// The schedule is for another name to change.
    #[error("schedule {0} was created under another name: only that one and an administrator may change it")]
    NotOwn(ScheduleId),
    /// The cluster has not agreed yet on a version that keeps who created a schedule.
    #[error(
        "schedule {0} cannot be created yet: who created it is kept only once the cluster has agreed on version 8 \
         (`leasehold cluster status`), which a new cluster does after an hour. Wait, or let an administrator create it"
    )]
    NotYet(ScheduleId),
    /// There is another schedule under this id.
    #[error("schedule {0} exists with another definition")]
    Differs(ScheduleId),
    /// The schedule has another version than the caller expected.
    #[error("schedule {0} has changed since it was read")]
    Changed(ScheduleId),
    /// The definition is wrong.
    #[error("the schedule is wrong")]
    Invalid(Vec<Fault>),
    /// It is not known any more when the schedule is due, such as in a time zone that was given up. Holds why.
    #[error("schedule {0} cannot be read any more, and has to be stored anew: {1}")]
    Unreadable(ScheduleId, String),
    /// Others kept changing the schedule.
    #[error("the schedule was changed by others {TRIES} times in a row; try again")]
    Contended,
    /// The manager or the store failed.
    #[error(transparent)]
    Manager(#[from] ManagerError),
}

impl From<StoreError> for ScheduleError {
    fn from(error: StoreError) -> Self {
        Self::Manager(error.into())
    }
}

/// Checks that a client may change a schedule.
pub(super) fn check_own(caller: &Caller, schedule: &Schedule) -> Result<(), ScheduleError> {
    let is_own = caller.may_change(schedule.created_by.as_ref());
    if is_own { Ok(()) } else { Err(ScheduleError::NotOwn(schedule.id.clone())) }
}

pub(super) fn failed(error: WriteError<StoredSchedule>) -> ScheduleError {
    match error {
        WriteError::Conflict(_) => ScheduleError::Contended,
        WriteError::Refused(error) => error.into(),
        WriteError::Unknown(why) => ManagerError::Unknown(why).into(),
    }
}
