//! What earlier attempts of a trigger have come to, as its history says.

use crate::job::{EventName, History};
use crate::manager::{Manager, ManagerError};
use crate::schedule::MissReason;
use crate::worker::Attempt;

/// What the attempts of a trigger before this one have come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    /// There was none, or it was put off without having begun; the reason, where its host was to blame.
    PutOff(Option<MissReason>),
    /// The last one has failed.
    Failed,
    /// The last one had a process that has ended. It may have been performed.
    Died,
}

impl Earlier {
    pub(super) async fn of(manager: &Manager, attempt: &Attempt) -> Result<Self, ManagerError> {
        Ok(Self::read(&manager.get(&attempt.job.id).await?.versioned.job.history))
    }

    fn read(history: &History) -> Self {
        let mut put_off = None;
        for entry in history.entries().iter().rev() {
            match entry.event {
                EventName::Released => return Self::Died,
                EventName::Retried => return Self::Failed,
                EventName::Returned => {
                    put_off.get_or_insert_with(|| reason_of(entry.reason.as_deref()));
                }
                _ => {}
            }
        }
        Self::PutOff(put_off.flatten())
    }
}

/// Returns the reason at the beginning of a text.
fn reason_of(text: Option<&str>) -> Option<MissReason> {
    text?.split_once(':')?.0.parse().ok()
}
