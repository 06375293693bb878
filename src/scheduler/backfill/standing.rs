//! Where a due time stands for a backfill, by what is stored of it.

use super::order::Fate;
use crate::clock::Timestamp;
use crate::job::{JobId, JobState, ScheduleId};
use crate::manager::{Manager, ManagerError};
use crate::schedule::Outcome;
use crate::scheduler::outcomes;
use crate::scheduler::trigger::{self, BACKFILL_LABEL};
use crate::store::{Store, Versioned};

/// Where a due time stands.
#[derive(Debug, PartialEq)]
pub(super) enum Standing {
    /// It was performed, or is under way, without this backfill.
    Already,
    /// This backfill has run it, which has ended.
    Ended(Fate, JobId),
    /// It is under way for this backfill, as this trigger or as the job that one has submitted.
    UnderWay(JobId),
    /// It is to be run; the trigger of an earlier backfill that has failed is in the way.
    ToRun(Option<Box<Versioned>>),
}

impl Standing {
    /// Returns what of it is under way for this backfill, if anything is.
    pub(super) fn under_way(&self) -> Option<&JobId> {
        match self {
            Self::UnderWay(id) => Some(id),
            Self::Already | Self::Ended(..) | Self::ToRun(_) => None,
        }
    }
}

/// A trigger, or a job that one has submitted.
#[derive(Clone, Debug)]
struct Trace {
    found: Versioned,
    /// What has become of it; `None` while it has not ended.
    fate: Option<Fate>,
    /// Whether it is this backfill's own.
    is_own: bool,
}

/// What is stored of a due time.
#[derive(Clone, Debug, Default)]
struct Traces {
    /// The trigger that was made when it was due.
    trigger: Option<Trace>,
    /// The job that it has submitted.
    job: Option<Trace>,
    /// The trigger that a backfill has made.
    backfilled: Option<Trace>,
    /// The job that it has submitted.
    backfilled_job: Option<Trace>,
    /// Whether the schedule has kept of a trigger that was removed that it was performed.
    was_performed: bool,
}

/// How many documents there may be of a due time.
const TRACES: usize = 4;

/// Returns where due times stand for the backfill `own`, in their order.
pub(super) async fn standings(
    (manager, store): (&Manager, &dyn Store),
    (schedule, own): (&ScheduleId, &JobId),
    due: &[Timestamp],
) -> Result<Vec<Standing>, ManagerError> {
    if due.is_empty() {
        return Ok(Vec::new());
    }
    // Triggers are kept for a day by default, and jobs for longer: of a job that is there, its trigger was performed.
    let of: [_; TRACES] =
        [trigger::Trace::Trigger, trigger::Trace::Job, trigger::Trace::Backfilled, trigger::Trace::BackfilledJob];
    let sought: Vec<_> = due.iter().flat_map(|due| of.map(|trace| trace.sought(schedule, *due))).collect();
    let mut found = manager.find_own(&sought).await?;
    // Read after the triggers: one that is gone by then was noted in its schedule before.
    let current = store.schedules(std::slice::from_ref(schedule)).await?.pop().flatten();
    let was_performed = |due: Timestamp| {
        let kept = current.as_ref().and_then(|current| current.schedule.course.kept_at(due));
        kept.is_some_and(|kept| kept.outcome.is_done())
    };
    let is_trigger = |place: usize| place.is_multiple_of(TRACES) || place % TRACES == 2;
    let triggers =
        found.iter().enumerate().filter(|(place, _)| is_trigger(*place)).filter_map(|(_, found)| found.clone());
    let mut performed = outcomes::performed(manager, triggers.collect()).await?.into_iter();
    let mut traces = found.drain(..).enumerate().map(|(place, found)| {
        let found = found?;
        let performed = if is_trigger(place) { performed.next().flatten() } else { None };
        let outcome = performed.map_or_else(|| outcomes::outcome_of(&found.job), |performed| performed.outcome);
        let is_own = found.job.spec.labels.get(BACKFILL_LABEL).is_some_and(|id| id == own.as_str());
        let fate = if is_trigger(place) { fate_of(outcome) } else { fate_of_job(found.job.state.name()) };
        Some(Trace { found, fate, is_own })
    });
    let mut next = || traces.next().flatten();
    let mut traces_of = |due: &Timestamp| Traces {
        trigger: next(),
        job: next(),
        backfilled: next(),
        backfilled_job: next(),
        was_performed: was_performed(*due),
    };
    Ok(due.iter().map(|due| traces_of(due).standing()).collect())
}

fn fate_of(outcome: Outcome) -> Option<Fate> {
    match outcome {
        Outcome::Waiting | Outcome::Running => None,
        Outcome::Fired | Outcome::Late => Some(Fate::Performed),
        Outcome::Consumed => Some(Fate::Consumed),
        Outcome::Failed | Outcome::Missed | Outcome::Skipped | Outcome::Removed => Some(Fate::Failed),
    }
}

fn fate_of_job(state: JobState) -> Option<Fate> {
    state.is_final().then_some(if state == JobState::Completed { Fate::Performed } else { Fate::Failed })
}

impl Trace {
    fn is_vain(&self) -> bool {
        self.fate == Some(Fate::Failed)
    }

    fn standing(self) -> Standing {
        let id = self.found.job.id.clone();
        self.fate.map_or(Standing::UnderWay(id.clone()), |fate| Standing::Ended(fate, id))
    }
}

impl Traces {
    fn standing(self) -> Standing {
        match self {
            // The job is under way or has ended, whatever became of the trigger after it was submitted.
            Self { backfilled_job: Some(job), .. } => {
                if job.is_own {
                    job.standing()
                } else {
                    Standing::Already
                }
            }
            Self { backfilled: Some(trigger), .. } if trigger.is_own => trigger.standing(),
            Self { job: Some(_), .. } | Self { was_performed: true, .. } => Standing::Already,
            Self { trigger: Some(trigger), .. } if !trigger.is_vain() => Standing::Already,
            Self { backfilled: Some(trigger), .. } if !trigger.is_vain() => Standing::Already,
            Self { backfilled, .. } => Standing::ToRun(backfilled.map(|trigger| Box::new(trigger.found))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::job::{Actor, Body, Job, JobSpec, Kind, QueueName};
    use crate::store::{Place, Version};

    fn trace(name: &str, fate: Option<Fate>, is_own: bool) -> Option<Trace> {
        let spec = JobSpec::new(QueueName::system("q"), Kind::system("k")).shared();
        let (now, actor) = (Timestamp::from_millis(0), Actor::system("test"));
        let job = Job::submit(JobId::new(name).expect("an id"), spec, Body::Empty, (now, None), &actor, now);
        let version = Version { place: Place::Main, primary_term: 1, seq_no: 1 };
        Some(Trace { found: Versioned { job: Arc::new(job), version }, fate, is_own })
    }

    fn id(name: &str) -> JobId {
        JobId::new(name).expect("an id")
    }

    const ENDED: [Option<Fate>; 2] = [Some(Fate::Performed), Some(Fate::Consumed)];

    #[test]
    fn what_nobody_has_performed_is_to_run() {
        assert_eq!(Traces::default().standing(), Standing::ToRun(None));
        let missed = Traces { trigger: trace("t", Some(Fate::Failed), false), ..Traces::default() };
        assert_eq!(missed.clone().standing(), Standing::ToRun(None));
        let earlier = Traces { backfilled: trace("b", Some(Fate::Failed), false), ..missed };
        assert!(matches!(earlier.standing(), Standing::ToRun(Some(found)) if found.job.id == id("b")));
    }

    #[test]
    fn what_was_performed_or_is_under_way_without_it_is_left() {
        for fate in ENDED.into_iter().chain([None]) {
            let when_due = Traces { trigger: trace("t", fate, false), ..Traces::default() };
            assert_eq!(when_due.standing(), Standing::Already, "{fate:?}");
            let earlier = Traces { backfilled: trace("b", fate, false), ..Traces::default() };
            assert_eq!(earlier.standing(), Standing::Already, "{fate:?}");
        }
        let kept = Traces { was_performed: true, ..Traces::default() };
        assert_eq!(kept.clone().standing(), Standing::Already, "its trigger is not kept any more");
        let in_vain = Traces { backfilled: trace("b", Some(Fate::Failed), false), ..kept };
        assert_eq!(in_vain.standing(), Standing::Already);
        // A trigger whose process died after the submission has failed, and its job is there.
        for fate in [None, Some(Fate::Failed), Some(Fate::Performed)] {
            let vain = trace("t", Some(Fate::Failed), false);
            let when_due = Traces { trigger: vain.clone(), job: trace("j", fate, false), ..Traces::default() };
            assert_eq!(when_due.standing(), Standing::Already, "{fate:?}");
            let job = trace("j", fate, false);
            let earlier = Traces { backfilled: vain, backfilled_job: job, ..Traces::default() };
            assert_eq!(earlier.standing(), Standing::Already, "{fate:?}");
        }
    }

    #[test]
    fn its_own_is_under_way_until_the_trigger_and_its_job_have_ended() {
        let failed = trace("t", Some(Fate::Failed), false);
        let own = |fate| Traces { trigger: failed.clone(), backfilled: trace("b", fate, true), ..Traces::default() };
        assert_eq!(own(None).standing(), Standing::UnderWay(id("b")));
        for fate in [Fate::Performed, Fate::Consumed, Fate::Failed] {
            assert_eq!(own(Some(fate)).standing(), Standing::Ended(fate, id("b")));
            let with_job = |of_job| Traces { backfilled_job: trace("j", of_job, true), ..own(Some(fate)) };
            assert_eq!(with_job(None).standing(), Standing::UnderWay(id("j")));
            assert_eq!(with_job(Some(Fate::Failed)).standing(), Standing::Ended(Fate::Failed, id("j")));
        }
        let without_trigger = Traces { backfilled_job: trace("j", None, true), ..Traces::default() };
        assert_eq!(without_trigger.standing(), Standing::UnderWay(id("j")), "its trigger is not kept any more");
    }
}
