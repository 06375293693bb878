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
use crate::job::{Job, JobId, JobState, Requirement, Running, State};
use crate::query::{Filter, Search, Sort};

use crate::manager::Manager;
use crate::manager::admin::queue_settings::{JobOrder, QueueSettings};
use crate::manager::dispatch::Order;
use crate::manager::limits::{Reached, Why};
use crate::manager::observe::workers::Claimants;
use crate::manager::request::ManagerError;
use crate::store::Head;

/// The most jobs ahead of a job that are counted; the explanation says "at least" when there are more.
pub(crate) const MAX_AHEAD: usize = 1_000;

/// How many of the jobs that run under a limit are named.
const MAX_RUNNING_SHOWN: usize = 10;

/// Why a job does not run, or how it is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The job's id.
    pub id: JobId,
    /// The state of the job.
    pub state: JobState,
    /// Whether a worker that offers what the job asks for, and claims now, could get the job.
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
    /// A stable word for the reason. For a waiting job: `held`, `start_deadline_passed`, `not_due`,
    /// `waiting_for_retry`, `queue_paused`, `behind_in_line`, `limit_reached`, `kept_free_for_urgent`, `rate_reached`,
    /// `limit_paused`, `no_worker_since_start`, `no_worker_lately`, `kind_not_taken`, `requirements_not_met`,
    /// `needs_more_than_offered`, `workers_busy`, `jobs_ahead`, `fair_share`, `start_deadline` or `next`. For a running
    /// job: `running`, `held`, `lease_expired`, `orphaned`, `overdue`, `cancel_requested` or `time_limit`. For a job
    /// that has ended, its state.
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
    /// Whether this manager's time is too far off to hand out what waits for a named time.
    pub(crate) is_far_off: bool,
    /// When this manager began to receive calls from workers.
    pub(crate) listening_since: Timestamp,
    pub(crate) settings: QueueSettings,
    pub(crate) claimants: Claimants,
    /// The job that comes before it in the line of its ordering key.
    pub(crate) first_in_line: Option<Head>,
    /// The limits that have no slot for it.
    pub(crate) limits: Vec<Reached>,
    /// The number of due jobs in its queue that are ahead of it; [`MAX_AHEAD`] stands for that many or more.
    pub(crate) ahead: usize,
    /// The number of those that have its owner, where owners take turns; [`MAX_AHEAD`] stands for that many or more.
    pub(crate) ahead_of_owner: Option<usize>,
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
        let waits = job.is_claimable() && job.is_due(now);
        let settings = self.shared.queue_settings.of(&job.spec.queue);
        let take_turns = waits && settings.fairness.takes_turns();
        let order = settings.order();
        let facts = Facts {
            now,
            is_far_off: self.clock_is_far_off(),
            listening_since: self.shared.observe.started_at,
            settings,
            claimants: self.shared.observe.workers.claimants(&job, now),
            first_in_line: self.first_in_lines(&[&job]).await?.pop().flatten(),
            limits: if waits { self.limits_reached(&[&job]).await?.pop().unwrap_or_default() } else { Vec::new() },
            ahead: if waits { self.jobs_ahead(&job, order, now, false).await? } else { 0 },
            ahead_of_owner: if take_turns { Some(self.jobs_ahead(&job, order, now, true).await?) } else { None },
            job,
        };
        Ok(explain(&facts))
    }
}

impl Manager {
    /// Counts the due jobs of a job's queue that are ahead of it, of all or of its owner. Of a queue whose order is not
    /// that of dispatch, the first [`MAX_AHEAD`] in that order are looked at.
    async fn jobs_ahead(&self, job: &Job, order: Order, now: Timestamp, of_owner: bool) -> Result<usize, ManagerError> {
        let owner = job.spec.owner.as_ref().filter(|_| of_owner);
        let filter = Filter {
            states: vec![JobState::Available],
            held: Some(false),
            queues: vec![job.spec.queue.clone()],
            owners: owner.into_iter().cloned().collect(),
            without_owner: of_owner && owner.is_none(),
            run_at_most: Some(now),
            ..Filter::default()
        };
        let search = Search { filter, sort: Sort::Dispatch, after: None, limit: MAX_AHEAD };
        let place = order.place_of(job);
        let first = self.shared.store.search(&search).await?;
        let before = first.iter().filter(|found| order.place_of(&found.job) < place);
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
    let is_due = job.is_due(now);
    let awaits_clock = facts.is_far_off && job.awaits_a_right_clock(now);
    let runnable = is_due
        && !awaits_clock
        && !too_late
        && job.hold.is_none()
        && facts.settings.paused.is_none()
        && facts.first_in_line.is_none()
        && facts.limits.is_empty();
    let ahead = (is_due && facts.ahead > 0).then(|| match facts.ahead_of_owner {
        Some(of_owner) => of_turns(facts, of_owner),
        None => of_ahead(facts),
    });
    let deadline = too_late.then(|| of_missed_deadline(job));
    let not_due = (!is_due).then(|| of_not_due(job, now));
    let parts = [of_hold(job), deadline, not_due, awaits_clock.then(|| of_clock(job)), of_pause(facts)];
    let rest = [of_workers(facts), ahead, (!too_late).then(|| of_deadline(job, now)).flatten()];
    let line = facts.first_in_line.as_ref().and_then(|first| of_line(job, first));
    let limits = line.into_iter().chain(facts.limits.iter().map(of_limit));
    let mut reasons: Vec<Reason> =
        parts.into_iter().flatten().chain(limits).chain(rest.into_iter().flatten()).collect();
    let holds = |reason: &Reason| reason.code != "start_deadline";
    if !reasons.iter().any(holds) {
        let queue = &job.spec.queue;
        let message = format!("Nothing holds it back: a worker waits for jobs of the queue `{queue}`, and it is next.");
        reasons.insert(0, Reason::new("next", message, json!({})));
    }
    (runnable, reasons)
}

fn of_hold(job: &Job) -> Option<Reason> {
    let hold = job.hold.as_ref()?;
    let why = hold.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let until = if job.state == State::Available { "" } else { "; it runs on, and is not claimed again" };
    let message = format!("It is held by {} since {}{why}{until}.", hold.by, hold.at);
    Some(Reason::new("held", message, json!({ "since": hold.at, "by": hold.by, "reason": hold.reason })))
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

fn of_clock(job: &Job) -> Reason {
    let message = "It waits for a time, and the server's clock is far off: `/v1/health` says by how much.".to_owned();
    Reason::new("clock_far_off", message, json!({ "run_at": job.run_at.to_rfc3339() }))
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

fn of_line(job: &Job, first: &Head) -> Option<Reason> {
    let (key, other) = (job.spec.ordering_key()?, &first.job);
    let what = if first.state == JobState::Running { "runs" } else { "waits" };
    let message = format!(
        "The jobs of the ordering key `{key}` run one after another, and {other}, which {what}, comes before it."
    );
    Some(Reason::new("behind_in_line", message, json!({ "ordering_key": key, "job": other, "job_state": first.state })))
}

fn of_limit(reached: &Reached) -> Reason {
    let limit = &reached.limit;
    match &reached.why {
        Why::Full(most, running) => {
            let shown: Vec<&str> =
                running.iter().take(MAX_RUNNING_SHOWN).map(|holder| holder.job_id.as_str()).collect();
            let others = running.len().saturating_sub(shown.len());
            let others = if others > 0 { format!(" and {others} more") } else { String::new() };
            let shown_as = shown.join(", ");
            let message = format!("The limit `{limit}` lets {most} run at once, and so many do: {shown_as}{others}.");
            let evidence = json!({ "limit": limit, "max_concurrent": most, "running": running.len(), "jobs": shown });
            Reason::new("limit_reached", message, evidence)
        }
        Why::KeptFree(most, urgent, running) => {
            let (places, least) = (urgent.places, urgent.min_priority.get());
            let kept = if places == 1 { "1 place is".to_owned() } else { format!("{places} places are") };
            let message = format!(
                "The limit `{limit}` lets {most} run at once below the priority {least}, and so many do; {kept} kept \
                 free for urgent work."
            );
            let shown: Vec<&str> =
                running.iter().take(MAX_RUNNING_SHOWN).map(|holder| holder.job_id.as_str()).collect();
            let evidence = json!({
                "limit": limit, "urgent": urgent, "max_others": most, "running": running.len(), "jobs": shown,
            });
            Reason::new("kept_free_for_urgent", message, evidence)
        }
        Why::Spent(rate) => {
            let (count, per) = (rate.count, in_words(Duration::from_millis(rate.per_ms)));
            let message = format!("The limit `{limit}` lets {count} begin in {per}, and so many have.");
            Reason::new("rate_reached", message, json!({ "limit": limit, "rate": rate }))
        }
        Why::Paused(until) => {
            let message = format!("The limit `{limit}` lets none begin before {until}.");
            Reason::new("limit_paused", message, json!({ "limit": limit, "until": until }))
        }
    }
}

/// Returns why no worker takes the job, or `None` when a worker waits that offers what the job asks for.
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
    if claimants.of_kind == 0 {
        return Some(of_kind(facts));
    }
    if claimants.able == 0 {
        return Some(of_requirements(facts));
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

fn of_kind(facts: &Facts) -> Reason {
    let (kind, queue, workers) = (&facts.job.spec.kind, &facts.job.spec.queue, facts.claimants.lately);
    let message = format!("No worker that claims jobs of the queue `{queue}` takes those of the kind `{kind}`.");
    Reason::new("kind_not_taken", message, json!({ "queue": queue, "kind": kind, "workers": workers }))
}

fn of_requirements(facts: &Facts) -> Reason {
    let (required, unmet, queue) = (facts.job.spec.requires(), &facts.claimants.unmet, &facts.job.spec.queue);
    let (what, named) = match unmet.is_empty() {
        false => ("", unmet.as_slice()),
        true => ("all that it requires: ", required),
    };
    let named: Vec<String> = named.iter().map(Requirement::to_string).collect();
    let named = named.join("; ");
    let message = format!("No worker that claims jobs of the queue `{queue}` offers {what}{named}.");
    let evidence = json!({ "requires": required, "not_met": unmet, "workers": facts.claimants.lately });
    Reason::new("requirements_not_met", message, evidence)
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
    let able = if facts.job.spec.requires().is_empty() { "" } else { " and meets its requirements" };
    let message =
        format!("It needs more than any worker that claims jobs of the queue `{queue}`{able} offers: {what}.");
    let evidence = json!({ "needed": needed, "most_offered": offered, "workers": facts.claimants.lately });
    Reason::new("needs_more_than_offered", message, evidence)
}

fn of_ahead(facts: &Facts) -> Reason {
    let (ahead, queue) = (facts.ahead, &facts.job.spec.queue);
    let where_shorter = match facts.settings.order {
        JobOrder::Dispatch => "",
        JobOrder::Shortest => ", where shorter jobs go first",
    };
    let message = format!("{} before it in the queue `{queue}`{where_shorter}.", those_ahead(ahead, ""));
    Reason::new("jobs_ahead", message, json!({ "ahead": ahead, "at_least": ahead >= MAX_AHEAD }))
}

/// Says that the queue's owners take turns, and how many jobs of its own owner a job waits for.
fn of_turns(facts: &Facts, ahead: usize) -> Reason {
    let (queue, owner) = (&facts.job.spec.queue, facts.job.spec.owner.as_ref());
    let weight = owner.and_then(|owner| facts.settings.weights.get(owner)).copied().unwrap_or(1);
    let whose = owner.map_or_else(|| " without an owner".to_owned(), |owner| format!(" of `{owner}`"));
    let those = those_ahead(ahead, &whose);
    let message = format!("{those} before it in the queue `{queue}`, whose owners take turns: others' go in between.");
    let evidence = json!({
        "queue": queue, "owner": owner, "weight": weight, "ahead_of_owner": ahead, "at_least": ahead >= MAX_AHEAD,
    });
    Reason::new("fair_share", message, evidence)
}

/// Says how many due jobs go; `whose` says of whom.
fn those_ahead(ahead: usize, whose: &str) -> String {
    match ahead {
        0 => format!("No due job{whose} goes"),
        1 => format!("1 due job{whose} goes"),
        MAX_AHEAD.. => format!("At least {MAX_AHEAD} due jobs{whose} go"),
        _ => format!("{ahead} due jobs{whose} go"),
    }
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
    reasons.extend(of_hold(job));
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
