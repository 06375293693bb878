//! Explanations: why a job does not run, or how it is doing, in sentences and with the evidence.
//!
//! [`Manager::explain`] gathers the facts, [`explain`] puts them into sentences: a pure function of the facts. Only
//! the workers that claim at this manager are known.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::job::{Job, JobId, JobState, Running, State};
use crate::query::{Filter, Search, Sort};

use crate::manager::Manager;
use crate::manager::admin::queue_settings::QueueSettings;
use crate::manager::observe::workers::Claimants;
use crate::manager::request::ManagerError;

/// The most jobs ahead of a job that are counted; the explanation says "at least" when there are more.
pub(crate) const MAX_AHEAD: usize = 1_000;

/// Why a job does not run, or how it is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The job's id.
    pub id: JobId,
    /// The state of the job.
    pub state: JobState,
    /// Whether a worker with enough resources that claims now could get the job.
    pub runnable: bool,
    /// The reasons, the most important first; at least one.
    pub reasons: Vec<Reason>,
}

/// A reason why a job does not run, or how it is doing, with the facts behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "code": "queue_paused", "message": "The queue `reports` is paused by ann since 2030-01-31T08:00:00.000Z: repairs.",
    "queue": "reports", "since": "2030-01-31T08:00:00.000Z", "by": "ann", "reason": "repairs",
}))]
pub struct Reason {
    /// A stable word for the reason. For a waiting job: `start_deadline_passed`, `not_due`, `waiting_for_retry`,
    /// `queue_paused`, `no_worker_since_start`, `no_worker_lately`, `needs_more_than_offered`, `workers_busy`,
    /// `jobs_ahead`, `start_deadline` or `next`. For a running job: `running`, `lease_expired`, `orphaned`, `overdue`,
    /// `cancel_requested` or `time_limit`. For a job that has ended, its state.
    pub code: String,
    /// The reason as a sentence.
    pub message: String,
    /// The facts behind the reason: names, times and numbers, which depend on the code.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub evidence: Map<String, Value>,
}

/// The facts behind an explanation.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) job: Arc<Job>,
    pub(crate) now: Timestamp,
    /// When this manager began to receive calls from workers.
    pub(crate) listening_since: Timestamp,
    pub(crate) settings: QueueSettings,
    pub(crate) claimants: Claimants,
    /// The number of due jobs in its queue that are ahead of it; [`MAX_AHEAD`] stands for that many or more.
    pub(crate) ahead: usize,
}

impl Manager {
    /// Explains why a job does not run, or how it is doing.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`] when there is no such job; otherwise the store's error.
    pub async fn explain(&self, id: &JobId) -> Result<Explanation, ManagerError> {
        self.know_queues().await?;
        let found = self.shared.store.get(std::slice::from_ref(id)).await?.pop().flatten();
        let job = found.ok_or_else(|| ManagerError::NotFound(id.clone()))?.job;
        let now = self.shared.clock.now();
        let waits = job.state == State::Available && job.run_at <= now;
        let facts = Facts {
            now,
            listening_since: self.shared.observe.started_at,
            settings: self.shared.queue_settings.of(&job.spec.queue),
            claimants: self.shared.observe.workers.claimants(&job, now),
            ahead: if waits { self.jobs_ahead(&job, now).await? } else { 0 },
            job,
        };
        Ok(explain(&facts))
    }
}

impl Manager {
    async fn jobs_ahead(&self, job: &Job, now: Timestamp) -> Result<usize, ManagerError> {
        let filter = Filter {
            states: vec![JobState::Available],
            queues: vec![job.spec.queue.clone()],
            run_at_most: Some(now),
            ..Filter::default()
        };
        let search = Search { filter, sort: Sort::Dispatch, after: None, limit: MAX_AHEAD };
        let key = Sort::Dispatch.key(job);
        let first = self.shared.store.search(&search).await?;
        let before = first.iter().filter(|found| Sort::Dispatch.key(&found.job) < key);
        Ok(before.filter(|found| !self.shared.work.known.is_outdated(found)).count())
    }
}

/// Returns the explanation that follows from the facts.
pub(crate) fn explain(facts: &Facts) -> Explanation {
    let job = &facts.job;
    let (runnable, reasons) = match &job.state {
        State::Available => of_waiting(facts),
        State::Running(running) => (false, of_running(facts, running)),
        State::Completed { .. } | State::Failed { .. } | State::Cancelled { .. } | State::Expired { .. } => {
            (false, vec![of_ended(job)])
        }
    };
    Explanation { id: job.id.clone(), state: job.state.name(), runnable, reasons }
}

impl Reason {
    fn new(code: &str, message: String, evidence: Value) -> Self {
        let evidence = match evidence {
            Value::Object(evidence) => evidence,
            _ => Map::new(),
        };
        Self { code: code.to_owned(), message, evidence }
    }
}

fn of_waiting(facts: &Facts) -> (bool, Vec<Reason>) {
    let (job, now) = (&facts.job, facts.now);
    let too_late = job.start_deadline().is_some_and(|deadline| deadline <= now);
    let is_due = job.run_at <= now;
    let runnable = is_due && !too_late && facts.settings.paused.is_none();
    let ahead = (is_due && facts.ahead > 0).then(|| of_ahead(facts));
    let parts = [
        too_late.then(|| of_missed_deadline(job)),
        (!is_due).then(|| of_not_due(job, now)),
        of_pause(facts),
        of_workers(facts),
        ahead,
        (!too_late).then(|| of_deadline(job, now)).flatten(),
    ];
    let mut reasons: Vec<Reason> = parts.into_iter().flatten().collect();
    let holds = |reason: &Reason| reason.code != "start_deadline";
    if !reasons.iter().any(holds) {
        let queue = &job.spec.queue;
        let message = format!("Nothing holds it back: a worker waits for jobs of the queue `{queue}`, and it is next.");
        reasons.insert(0, Reason::new("next", message, json!({})));
    }
    (runnable, reasons)
}

fn of_missed_deadline(job: &Job) -> Reason {
    let deadline = job.start_deadline().map(Timestamp::to_rfc3339).unwrap_or_default();
    let message = format!("It was to be started by {deadline} and was not: it is about to expire.");
    Reason::new("start_deadline_passed", message, json!({ "expires_at": deadline }))
}

fn of_deadline(job: &Job, now: Timestamp) -> Option<Reason> {
    let deadline = job.start_deadline()?;
    let message = format!("It expires unless it is started by {deadline}, {}.", from_now(deadline, now));
    Some(Reason::new("start_deadline", message, json!({ "expires_at": deadline })))
}

fn of_not_due(job: &Job, now: Timestamp) -> Reason {
    let until = job.run_at.to_rfc3339();
    let when = from_now(job.run_at, now);
    match &job.error {
        Some(error) if job.attempt.get() > 0 => {
            let (attempt, of) = (job.attempt.get(), job.spec.max_attempts);
            let message = format!(
                "Its attempt {attempt} of {of} failed ({}: {}); the next one is due at {until}, {when}.",
                error.code, error.message
            );
            let evidence = json!({
                "run_at": until, "attempt": attempt, "max_attempts": of,
                "error": { "code": error.code, "message": error.message },
            });
            Reason::new("waiting_for_retry", message, evidence)
        }
        _ => Reason::new("not_due", format!("It is not due until {until}, {when}."), json!({ "run_at": until })),
    }
}

fn of_pause(facts: &Facts) -> Option<Reason> {
    let pause = facts.settings.paused.as_ref()?;
    let queue = &facts.job.spec.queue;
    let why = pause.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let message = format!("The queue `{queue}` is paused by {} since {}{why}.", pause.by, pause.since);
    let evidence = json!({ "queue": queue, "since": pause.since, "by": pause.by, "reason": pause.reason });
    Some(Reason::new("queue_paused", message, evidence))
}

/// Returns why no worker takes the job, or `None` when a worker with enough resources waits.
fn of_workers(facts: &Facts) -> Option<Reason> {
    let (claimants, queue) = (&facts.claimants, &facts.job.spec.queue);
    let Some(last_at) = claimants.last_at else {
        let since = facts.listening_since;
        let message = format!(
            "No worker has tried to claim jobs of the queue `{queue}` here since this server started, {since}."
        );
        return Some(Reason::new("no_worker_since_start", message, json!({ "queue": queue, "since": since })));
    };
    if claimants.lately == 0 {
        let ago = in_words(facts.now.since(last_at));
        let message =
            format!("No worker has tried to claim jobs of the queue `{queue}` here since {last_at}, {ago} ago.");
        return Some(Reason::new("no_worker_lately", message, json!({ "queue": queue, "since": last_at })));
    }
    if claimants.with_room == 0 {
        return Some(of_needs(facts));
    }
    (claimants.waiting == 0).then(|| {
        let message = format!(
            "None of the workers that take jobs of the queue `{queue}` waits for one now; {} claimed lately.",
            claimants.with_room
        );
        let evidence = json!({ "queue": queue, "workers": claimants.with_room, "last_claim_at": last_at });
        Reason::new("workers_busy", message, evidence)
    })
}

fn of_needs(facts: &Facts) -> Reason {
    let (needed, offered) = (&facts.job.spec.resources, &facts.claimants.most_offered);
    let short = needed.iter().filter_map(|(name, needed)| {
        let most = offered.get(name).copied().unwrap_or(0);
        (most < *needed).then(|| format!("{needed} of {name}, where the most that any offers is {most}"))
    });
    let short: Vec<String> = short.collect();
    let queue = &facts.job.spec.queue;
    let what = match short.is_empty() {
        false => short.join("; "),
        true => "more together than any one of them has free".to_owned(),
    };
    let message = format!("It needs more than any worker that claims jobs of the queue `{queue}` offers: {what}.");
    let evidence = json!({ "needed": needed, "most_offered": offered, "workers": facts.claimants.lately });
    Reason::new("needs_more_than_offered", message, evidence)
}

fn of_ahead(facts: &Facts) -> Reason {
    let (ahead, queue) = (facts.ahead, &facts.job.spec.queue);
    let is_more = ahead >= MAX_AHEAD;
    let count = match (is_more, ahead) {
        (true, _) => format!("At least {MAX_AHEAD} due jobs go"),
        (false, 1) => "1 due job goes".to_owned(),
        (false, _) => format!("{ahead} due jobs go"),
    };
    let message = format!("{count} before it in the queue `{queue}`.");
    Reason::new("jobs_ahead", message, json!({ "ahead": ahead, "at_least": is_more }))
}

fn of_running(facts: &Facts, running: &Running) -> Vec<Reason> {
    let (job, now, lease) = (&facts.job, facts.now, &running.lease);
    let ago = |at: Timestamp| in_words(now.since(at));
    let (since, beat) = (lease.acquired_at, lease.heartbeat_at);
    let mut reasons = vec![Reason::new(
        "running",
        format!(
            "The worker {} runs it since {since}, attempt {} of {}; its last sign of life was {} ago, at {beat}.",
            lease.worker_id,
            job.attempt.get(),
            job.spec.max_attempts,
            ago(beat)
        ),
        json!({
            "worker_id": lease.worker_id.as_str(), "fence": job.fence.get(), "since": since,
            "heartbeat_at": beat, "lease_expires_at": lease.expires_at,
        }),
    )];
    if lease.expires_at <= now {
        let message = format!(
            "Its lease is over since {}, {} ago: it is given to another unless its worker is heard of.",
            lease.expires_at,
            ago(lease.expires_at)
        );
        reasons.push(Reason::new("lease_expired", message, json!({ "at": lease.expires_at })));
    }
    if let Some(orphan) = &running.orphan {
        let held = if orphan.held { "; it waits for a person to decide" } else { "" };
        let message = format!("It looks abandoned since {}: {}{held}.", orphan.flagged_at, orphan.reason);
        let evidence = json!({ "since": orphan.flagged_at, "reason": orphan.reason, "held": orphan.held });
        reasons.push(Reason::new("orphaned", message, evidence));
    }
    if let Some(expected) = job.expected_until(running).filter(|expected| *expected <= now) {
        let message = format!("It was expected to end by {expected}, {} ago.", ago(expected));
        reasons.push(Reason::new("overdue", message, json!({ "expected_by": expected })));
    }
    if let Some(at) = running.cancel_requested_at {
        let message = format!("Its worker is asked to stop since {at}, {} ago.", ago(at));
        reasons.push(Reason::new("cancel_requested", message, json!({ "since": at })));
    }
    if let Some(at) = job.times_out_at(running) {
        let message = format!("Its time limit ends at {at}, {}.", from_now(at, now));
        reasons.push(Reason::new("time_limit", message, json!({ "at": at })));
    }
    reasons
}

fn of_ended(job: &Job) -> Reason {
    let state = job.state.name();
    let at = job.finished_at().map(Timestamp::to_rfc3339).unwrap_or_default();
    let last = job.history.entries().iter().rev().find(|entry| entry.to == state && entry.from != Some(state));
    let by = last.map(|entry| format!(" by {}", entry.actor)).unwrap_or_default();
    let reason = last.and_then(|entry| entry.reason.as_deref());
    let why = match (&job.error, reason) {
        (Some(error), _) if state == JobState::Failed => {
            let (attempt, of) = (job.attempt.get(), job.spec.max_attempts);
            format!(" at attempt {attempt} of {of} ({}: {})", error.code, error.message)
        }
        (_, Some(reason)) => format!(": {reason}"),
        (_, None) => String::new(),
    };
    let message = match state {
        JobState::Completed => format!("It was completed at {at}{by}."),
        JobState::Cancelled => format!("It was cancelled at {at}{by}{why}."),
        JobState::Expired => format!("It expired at {at}: nobody had started it by its deadline."),
        JobState::Failed | JobState::Available | JobState::Running => format!("It failed at {at}{by}{why}."),
    };
    let evidence = json!({ "at": at, "by": last.map(|entry| entry.actor.as_str()), "reason": reason });
    Reason::new(state.as_str(), message, evidence)
}

/// Returns a past or future time relative to `now`, in words.
fn from_now(at: Timestamp, now: Timestamp) -> String {
    match at > now {
        true => format!("in {}", in_words(at.since(now))),
        false => format!("{} ago", in_words(now.since(at))),
    }
}

/// Returns a duration in its two largest units, in words.
fn in_words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let Some(largest) = units.iter().position(|(size, _)| seconds >= *size) else {
        return format!("{} ms", duration.as_millis());
    };
    let (size, name) = units[largest];
    let rest = units.get(largest + 1).map(|(smaller, name)| (seconds % size / smaller, name));
    match rest {
        Some((count, smaller)) if count > 0 => format!("{} {name} {count} {smaller}", seconds / size),
        _ => format!("{} {name}", seconds / size),
    }
}

#[cfg(test)]
mod tests;
