//! Editing a job after its submission. What identifies the submission, its fingerprint, stays as it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Job;
use super::event::EventName;
use super::names::Actor;
use super::refusal::Refusal;
use super::retry::RetryPolicy;
use super::spec::{JobSpec, Priority};
use super::state::State;
use super::transition::Change;
use crate::clock::Timestamp;

/// The most labels of a job.
pub const MAX_LABELS: usize = 64;
/// The most resources that a job needs.
pub const MAX_RESOURCES: usize = 32;

/// The new values of a job's fields. A field that is `None` stays as it is; of an inner `None` the value is removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Edit {
    /// How urgent the job is within its queue.
    pub priority: Option<Priority>,
    /// When the job is due. Only a job that waits has such a time.
    pub run_at: Option<Timestamp>,
    /// The start deadline. Only a job that waits for its first attempt has one.
    pub expires_at: Option<Option<Timestamp>>,
    /// The labels that are set, and those that are removed.
    pub labels: BTreeMap<String, Option<String>>,
    /// How long an attempt is expected to take.
    pub expected_runtime: Option<Option<Duration>>,
    /// How long an attempt may take at most.
    pub timeout: Option<Option<Duration>>,
    /// How many attempts the job gets at most.
    pub max_attempts: Option<u32>,
    /// How long the job waits between attempts.
    pub retry: RetryEdit,
    /// The resources of which another amount is needed, and those that are needed no more.
    pub resources: BTreeMap<String, Option<u64>>,
}

/// The new values of a retry policy. A field that is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RetryEdit {
    /// The wait after the first attempt.
    pub base: Option<Duration>,
    /// The factor by which each wait is longer than the one before.
    pub factor: Option<f64>,
    /// The longest wait between two attempts.
    pub max: Option<Duration>,
    /// The share of the wait that is random.
    pub jitter: Option<f64>,
}

impl RetryEdit {
    fn of(self, policy: RetryPolicy) -> RetryPolicy {
        RetryPolicy {
            base: self.base.unwrap_or(policy.base),
            factor: self.factor.unwrap_or(policy.factor),
            max: self.max.unwrap_or(policy.max),
            jitter: self.jitter.unwrap_or(policy.jitter),
        }
    }
}

impl Job {
    /// Changes fields of a job that has not ended. Of a running job the time limit and the expected runtime count from
    /// the attempt's beginning on, the number of attempts and the waits when it ends, all else at its next claim.
    ///
    /// # Errors
    /// [`Refusal::AlreadyFinal`]; [`Refusal::NotAvailable`] for a time of a job that does not wait;
    /// [`Refusal::TooMany`].
    pub fn edit(&self, edit: &Edit, actor: &Actor, reason: Option<&str>, now: Timestamp) -> Result<Change, Refusal> {
        self.unless_final()?;
        if (edit.run_at.is_some() || edit.expires_at.is_some()) && self.state != State::Available {
            return Err(Refusal::NotAvailable(self.state.name()));
        }
        let mut spec = JobSpec::clone(&self.spec);
        let mut changed = Vec::new();
        set("priority", &mut spec.priority, edit.priority, &mut changed);
        set("expected_runtime_ms", &mut spec.expected_runtime, edit.expected_runtime, &mut changed);
        set("timeout_ms", &mut spec.timeout, edit.timeout, &mut changed);
        set("max_attempts", &mut spec.max_attempts, edit.max_attempts, &mut changed);
        let retry = edit.retry.of(spec.retry);
        set("retry", &mut spec.retry, Some(retry), &mut changed);
        merge("labels", &mut spec.labels, &edit.labels, &mut changed);
        merge("resources", &mut spec.resources, &edit.resources, &mut changed);
        for (field, count, most) in
            [("labels", spec.labels.len(), MAX_LABELS), ("resources", spec.resources.len(), MAX_RESOURCES)]
        {
            if count > most {
                return Err(Refusal::TooMany { field, most });
            }
        }
        let (mut run_at, mut expires_at) = (self.run_at, self.expires_at);
        set("run_at", &mut run_at, edit.run_at, &mut changed);
        set("expires_at", &mut expires_at, edit.expires_at, &mut changed);
        if changed.is_empty() {
            return Ok(Change::Already);
        }
        let what = changed.join(", ");
        let reason = reason.map_or_else(|| what.clone(), |reason| format!("{what}: {reason}"));
        let mut edited = self.amended(EventName::Edited, actor, Some(reason), now);
        edited.spec = if spec == *self.spec { Arc::clone(&self.spec) } else { spec.shared() };
        (edited.run_at, edited.expires_at) = (run_at, expires_at);
        Ok(Change::To(Box::new(edited)))
    }

    /// Makes a job that is due later, or that waits for its retry, due now.
    ///
    /// # Errors
    /// [`Refusal::NotAvailable`] when the job does not wait.
    pub fn run_now(&self, actor: &Actor, reason: Option<&str>, now: Timestamp) -> Result<Change, Refusal> {
        if self.state == State::Available && self.run_at <= now {
            return Ok(Change::Already);
        }
        self.edit(&Edit { run_at: Some(now), ..Edit::default() }, actor, reason, now)
    }
}

/// Sets a field, and names it if that changes it.
fn set<T: PartialEq>(name: &'static str, field: &mut T, value: Option<T>, changed: &mut Vec<&'static str>) {
    if let Some(value) = value.filter(|value| value != field) {
        *field = value;
        changed.push(name);
    }
}

/// Sets and removes entries of a map, and names it if that changes it.
fn merge<T: Clone + PartialEq>(
    name: &'static str,
    map: &mut BTreeMap<String, T>,
    entries: &BTreeMap<String, Option<T>>,
    changed: &mut Vec<&'static str>,
) {
    let mut merged = map.clone();
    for (key, value) in entries {
        match value {
            Some(value) => drop(merged.insert(key.clone(), value.clone())),
            None => drop(merged.remove(key)),
        }
    }
    set(name, map, Some(merged), changed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Body, Claim, Fingerprint, JobId, JobState, Kind, QueueName, WorkerId};

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn ann() -> Actor {
        Actor::system("ann")
    }

    fn waiting() -> Job {
        let spec = JobSpec {
            labels: [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())].into(),
            fingerprint: Some(Fingerprint(7)),
            ..JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"))
        };
        Job::submit(JobId::new("j").expect("an id"), Arc::new(spec), Body::Empty, (at(9), None), &ann(), at(0))
    }

    #[test]
    fn only_what_is_named_changes_and_the_history_names_it() {
        let edit = Edit {
            priority: Priority::new(5),
            labels: [("a".to_owned(), None), ("c".to_owned(), Some("3".to_owned()))].into(),
            timeout: Some(Some(Duration::from_secs(1))),
            max_attempts: Some(JobSpec::DEFAULT_MAX_ATTEMPTS),
            ..Edit::default()
        };
        let Ok(Change::To(edited)) = waiting().edit(&edit, &ann(), Some("urgent"), at(1)) else { panic!("not edited") };
        let labels: Vec<&str> = edited.spec.labels.keys().map(String::as_str).collect();
        assert_eq!((edited.spec.priority.get(), labels), (5, vec!["b", "c"]));
        assert_eq!((edited.run_at, edited.spec.fingerprint), (at(9), Some(Fingerprint(7))));
        let entry = edited.history.entries().last().expect("an entry");
        assert_eq!(
            (entry.event, entry.reason.as_deref()),
            (EventName::Edited, Some("priority, timeout_ms, labels: urgent"))
        );
        assert_eq!(edited.edit(&edit, &ann(), None, at(2)), Ok(Change::Already));
    }

    #[test]
    fn a_running_job_has_no_time_to_wait_for_and_an_ended_one_is_refused() {
        let worker_id = WorkerId::new("w").expect("a name");
        let claim =
            Claim { worker_id, holder: None, request_id: None, term: Duration::from_secs(60), margin: Duration::ZERO };
        let running = waiting().claim(&claim, at(9)).expect("claimed");
        assert_eq!(running.run_now(&ann(), None, at(10)), Err(Refusal::NotAvailable(JobState::Running)));
        let sooner = Edit { priority: Priority::new(5), ..Edit::default() };
        assert!(matches!(running.edit(&sooner, &ann(), None, at(10)), Ok(Change::To(_))));
        let Ok(Change::To(ended)) = waiting().cancel(&ann(), None, at(2)) else { panic!("not cancelled") };
        assert_eq!(ended.edit(&sooner, &ann(), None, at(3)), Err(Refusal::AlreadyFinal(JobState::Cancelled)));
    }

    #[test]
    fn a_job_that_is_due_later_can_be_due_now() {
        let Ok(Change::To(now)) = waiting().run_now(&ann(), None, at(3)) else { panic!("not changed") };
        assert_eq!(now.run_at, at(3));
        assert_eq!(now.run_now(&ann(), None, at(4)), Ok(Change::Already));
    }

    #[test]
    fn a_time_that_somebody_has_named_stays_where_it_had_come_by_a_clock_that_was_ahead() {
        let hour = 3_600_000;
        let edit = Edit { priority: Priority::new(5), ..Edit::default() };
        let named = Edit { run_at: Some(at(hour)), ..Edit::default() };
        let Ok(Change::To(named)) = waiting().edit(&named, &ann(), None, at(0)) else { panic!("not edited") };
        for waits in [named, Box::new(waiting())] {
            let Ok(Change::To(edited)) = waits.edit(&edit, &ann(), None, at(2 * hour)) else { panic!("not edited") };
            assert!(!edited.is_due(at(1)) && !edited.is_written_ahead(at(1)), "{}", edited.run_at);
        }
        let at_once = Job { created_at: at(9), ..waiting() };
        let Ok(Change::To(edited)) = at_once.edit(&edit, &ann(), None, at(2 * hour)) else { panic!("not edited") };
        assert!(edited.is_due(at(1)) && edited.is_written_ahead(at(1)), "nobody has named a time");
    }
}
