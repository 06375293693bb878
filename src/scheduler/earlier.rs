//! What earlier attempts of a trigger have come to, as its job says.

use std::fmt::Display;
use std::time::Duration;

use crate::job::{EventName, History, Job, LEASE_EXPIRED};
use crate::manager::{Manager, ManagerError, NOT_DELIVERED};
use crate::schedule::MissReason;
use crate::worker::{Attempt, HandlerError, NOT_BEGUN};

/// Why a trigger is put off, where its host is not to blame.
pub(super) const WAITS_FOR: &str = "it waits for the end of";
pub(super) const CLOCK_IS_OFF: &str = "nobody knows whether it is due, since the clock is far off";
pub(super) const BACKFILLS_ARE_FULL: &str = "backfills have as many places as they may";
pub(super) const CHANGED_BY_OTHERS: &str = "the schedule was changed by others again and again";
/// How the reason of a release begins after which nothing had begun. Any other release ended an attempt midway.
const NOTHING_BEGUN: [&str; 6] =
    [WAITS_FOR, CLOCK_IS_OFF, BACKFILLS_ARE_FULL, CHANGED_BY_OTHERS, NOT_BEGUN, NOT_DELIVERED];

/// What the attempts of a trigger before this one have come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    /// There was none, or it was put off without having begun; the reason, where its host was to blame.
    PutOff(Option<MissReason>),
    /// The last one has failed.
    Failed,
    /// The last one was ended midway: its process has ended or was stopped. It may have been performed.
    Died,
}

impl Earlier {
    pub(super) async fn of(manager: &Manager, attempt: &Attempt) -> Result<Self, ManagerError> {
        Ok(Self::of_job(&manager.get(&attempt.job.id).await?.versioned.job, attempt.job.attempt > 1))
    }

    /// Returns whether an attempt of a trigger that is not running has begun, and may have been performed.
    pub(super) fn has_begun(trigger: &Job) -> bool {
        !matches!(Self::of_job(trigger, trigger.attempt.get() > 0), Self::PutOff(_))
    }

    fn of_job(job: &Job, has_begun: bool) -> Self {
        Self::read(&job.history, job.error.as_ref().map(|error| error.code.as_str()), has_begun)
    }

    /// Reads a history, which lacks its middle where it is long, with the last failure and whether an attempt counts
    /// before this one.
    fn read(history: &History, error: Option<&str>, has_begun: bool) -> Self {
        let mut put_off = None;
        for entry in history.entries().iter().rev() {
            match entry.event {
                EventName::Released => return Self::Died,
                EventName::Retried => return Self::Failed,
                EventName::Returned => match nothing_begun(entry.reason.as_deref().unwrap_or_default()) {
                    Some(reason) => _ = put_off.get_or_insert(reason),
                    None => return Self::Died,
                },
                _ => {}
            }
        }
        match error {
            _ if !has_begun => Self::PutOff(put_off.flatten()),
            Some(code) if code != LEASE_EXPIRED => Self::Failed,
            Some(_) | None => Self::Died,
        }
    }
}

/// Returns the release of a trigger that waits for its host.
pub(super) fn put_off(reason: MissReason, why: impl Display, wait: Duration) -> HandlerError {
    // Whatever looks at it after its margin of error finds the reason by its word.
    HandlerError::postponed(reason.as_str(), format!("{reason}: {why}"), wait)
}

/// Returns which host was to blame for a release, if one was; `None` when the attempt had begun.
fn nothing_begun(text: &str) -> Option<Option<MissReason>> {
    if let Some(reason) = text.split_once(':').and_then(|(word, _)| word.parse().ok()) {
        return Some(Some(reason));
    }
    NOTHING_BEGUN.iter().any(|begins| text.starts_with(begins)).then_some(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::job::{Actor, Attempt, Fence, HistoryEntry, JobState};

    fn history(events: &[(EventName, &str)]) -> History {
        let mut history = History::default();
        for (event, reason) in events {
            history.push(HistoryEntry {
                at: Timestamp::default(),
                from: None,
                to: JobState::Available,
                fence: Fence::default(),
                attempt: Attempt::default(),
                event: *event,
                actor: Actor::system("test"),
                worker_id: None,
                reason: Some((*reason).to_owned()),
            });
        }
        history
    }

    #[test]
    fn an_attempt_that_was_stopped_midway_may_have_been_performed_whatever_put_off_the_later_ones() {
        let down = put_off(MissReason::HostDown, "it does not answer", Duration::ZERO).message;
        let waits = format!("{WAITS_FOR} another");
        let of = |reasons: &[&str]| {
            let released: Vec<_> = reasons.iter().map(|reason| (EventName::Returned, *reason)).collect();
            Earlier::read(&history(&released), None, false)
        };
        assert_eq!(of(&[]), Earlier::PutOff(None));
        assert_eq!(of(&["the worker stops"]), Earlier::Died);
        assert_eq!(of(&["the worker stops", &down, &waits]), Earlier::Died);
        assert_eq!(of(&[&waits, &down]), Earlier::PutOff(Some(MissReason::HostDown)));
        assert_eq!(of(&[&down, &waits]), Earlier::PutOff(None), "the last reason counts");
        for reason in NOTHING_BEGUN {
            assert_eq!(of(&[reason]), Earlier::PutOff(None), "{reason}");
        }
    }

    #[test]
    fn an_attempt_that_has_failed_or_died_is_found_also_where_the_history_is_folded() {
        let many = [(EventName::Claimed, ""), (EventName::Returned, WAITS_FOR)].repeat(13);
        for (event, error, earlier) in
            [(EventName::Retried, "no_answer", Earlier::Failed), (EventName::Released, LEASE_EXPIRED, Earlier::Died)]
        {
            let events = [&many[..], &[(event, error)], &many[..]].concat();
            let history = history(&events);
            assert!(history.entries().iter().all(|entry| entry.event != event), "{event:?} is folded");
            assert_eq!(Earlier::read(&history, Some(error), true), earlier);
            assert_eq!(Earlier::read(&history, None, false), Earlier::PutOff(None), "nothing had begun");
        }
    }
}
