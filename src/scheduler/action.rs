//! The actions of schedules: a job that is submitted, and an HTTP call.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};

use super::earlier::put_off;
use super::secrets::without_secrets;
use super::trigger::Trigger;
use crate::clock::{Clock, Timestamp};
use crate::executor::{Admission, Call, Caller as HostCaller, Heard, Hosts, HttpCall, HttpExecutor};
use crate::executor::{Party, RetryAfter, TargetUrl, excerpt};
use crate::job::{JobId, Json, Owner, Refusal};
use crate::manager::{Caller, Manager, ManagerError, NewJob, Reach};
use crate::schedule::{Action, MissReason, Schedule};
use crate::wire::{Invalid, SubmitJob};
use crate::worker::{Attempt, HandlerError};

/// How long a trigger waits at the most until it finds out whether a host answers again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long before the end of its margin a trigger looks for a place for the last time, which it may wait for, and how
/// long it waits at least until it looks again.
const BEFORE_END: Duration = Duration::from_millis(500);
const AT_LEAST: Duration = Duration::from_millis(100);
/// How long a call may take by default.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Performs actions.
pub(super) struct Actions {
    pub(super) executor: HttpExecutor,
    pub(super) hosts: Hosts,
}

/// Why a trigger has failed that was tried until its margin of error was over.
pub(super) const IN_VAIN: &str = "it was tried until its margin of error was over";

/// How an action has ended.
pub(super) enum End {
    /// It was performed.
    Done { job_id: Option<JobId>, message: Option<String> },
    /// It was refused for a reason that is the user's to mend.
    Consumed { job_id: Option<JobId>, message: Option<String> },
    /// It was tried in vain, and its margin of error is over before it may be tried again.
    Failed { job_id: Option<JobId>, message: Option<String> },
}

/// A call that may begin, with its place.
pub(super) struct Placed {
    call: HttpCall,
    place: Call,
}

/// What happens to a call before it begins.
pub(super) enum Before {
    Placed(Box<Placed>),
    Ended(End),
    /// Its margin of error is over, and this attempt has not begun it.
    Missed(MissReason),
}

/// Until when a call may begin.
pub(super) struct Until {
    pub(super) at: Timestamp,
    /// Whether it is missed if it has not begun by then. One of a backfill, or one that has begun in a process that has
    /// ended since, is not.
    pub(super) is_missed_then: bool,
}

impl Until {
    /// Returns how long a trigger is put off that would wait for `wait`, and has so long `left`.
    fn look_again_after(&self, wait: Duration, left: Duration) -> Duration {
        let wait = if self.is_missed_then { wait.min(left.saturating_sub(BEFORE_END)) } else { wait };
        wait.max(AT_LEAST)
    }
}

impl Actions {
    /// Submits the job of a `job` action. Done again, it finds the same job.
    pub(super) async fn submit(
        &self,
        manager: &Manager,
        schedule: &Schedule,
        trigger: &Trigger,
    ) -> Result<End, HandlerError> {
        let new = match job_of(&schedule.definition.action, trigger) {
            Ok(new) => NewJob { id: Some(trigger.job_id()), ..new },
            Err(invalid) => return Ok(End::Consumed { job_id: None, message: Some(invalid.to_string()) }),
        };
        // It may replace what its creator may.
        let reach = schedule.created_by.clone().map_or(Reach::All, Reach::Of);
        let caller = Caller { reach, ..Caller::system("scheduler") };
        let answer = manager.submit_own(&caller, vec![new]).await.into_iter().next();
        match answer {
            // An earlier attempt may have made it. With a unique key it can be another one, which waits or runs.
            Some(Ok(own)) => Ok(End::Done { job_id: Some(own.id), message: None }),
            Some(Err(error @ ManagerError::Duplicate(_))) => {
                // Nothing that the user has to mend: the job that there is to be at most once is there.
                Ok(End::Done { job_id: None, message: Some(error.to_string()) })
            }
            Some(Err(error @ (ManagerError::Invalid { .. } | ManagerError::Refused(Refusal::NotOwn)))) => {
                Ok(End::Consumed { job_id: None, message: Some(error.to_string()) })
            }
            Some(Err(error)) => Err(HandlerError::retryable("not_submitted", error.to_string())),
            None => Err(HandlerError::retryable("not_submitted", "the manager gave no answer")),
        }
    }

    /// Finds a place for the call of an `http` action.
    pub(super) async fn place(
        &self,
        schedule: &Schedule,
        trigger: &Trigger,
        attempt: &Attempt,
        (clock, until): (&dyn Clock, &Until),
    ) -> Result<Before, HandlerError> {
        let definition = &schedule.definition;
        let call = match call_of(&definition.action, trigger, attempt) {
            Ok(call) => call,
            Err(why) => return Ok(Before::Ended(End::Consumed { job_id: None, message: Some(why) })),
        };
        let (host, origin) = (call.url.authority(), call.url.origin());
        let party = Party::new(definition.owner.as_ref().map(Owner::as_str), schedule.id.as_str());
        let caller = HostCaller { host: &origin, party, margin: schedule.margin(), until: until.at };
        let (reason, wait) = match self.hosts.admit(&caller, clock).await {
            // The wait for a place may have been longer than it seemed, where the clock has gone on meanwhile.
            Admission::Call(_) if until.is_missed_then && clock.now() > until.at => (MissReason::Limit, Duration::ZERO),
            Admission::Call(place) => return Ok(Before::Placed(Box::new(Placed { call, place }))),
            Admission::Later(wait) => (MissReason::Limit, wait),
            // Rather looked after again than past its margin of error.
            Admission::Trying(wait) | Admission::Down(wait) => (MissReason::HostDown, wait.min(LOOK_AGAIN)),
        };
        let left = until.at.since(clock.now());
        match reason {
            _ if until.is_missed_then && left.is_zero() => Ok(Before::Missed(reason)),
            // One that may begin whenever its turn comes is not to wait for this host for ever.
            MissReason::HostDown if left.is_zero() => {
                let message = format!("{host} did not answer until its margin of error was over");
                Ok(Before::Ended(End::Failed { job_id: None, message: Some(message) }))
            }
            _ => {
                let why = match reason {
                    MissReason::Limit => format!("{host} has as many calls as it may"),
                    MissReason::HostDown => format!("{host} does not answer"),
                };
                Err(put_off(reason, why, until.look_again_after(wait, left)))
            }
        }
    }

    /// Makes the call of an `http` action, which is made again up to `until`.
    pub(super) async fn call(
        &self,
        schedule: &Schedule,
        trigger: &Trigger,
        Placed { call, place }: Placed,
        (clock, until): (&dyn Clock, Timestamp),
    ) -> Result<End, HandlerError> {
        let consumed = |message: String| Ok(End::Consumed { job_id: None, message: Some(message) });
        let answer = self.executor.call(&call).await;
        let is_driven_back = match &answer {
            Ok(answer) => drives_back(answer.status),
            Err(error) => error.is_transient(),
        };
        let now = clock.now();
        // An answer that drives back is one all the same.
        self.hosts.ended(place, Heard::of(&answer), now);
        let action = &schedule.definition.action;
        let said = excerpt(&answer, |text| without_secrets(text, action, trigger));
        let expected = action.expect_status;
        match answer {
            Ok(answer) if expected.map_or(answer.status.is_success(), |status| answer.status == status) => {
                Ok(End::Done { job_id: None, message: Some(said) })
            }
            Ok(answer) if is_driven_back => {
                metrics::counter!("leasehold_triggers_redriven_total").increment(1);
                let retry_after = answer.retry_after.map(|after| wait(after, now));
                if retry_after.is_some_and(|wait| now.plus(wait) > until) {
                    let message = format!("it may be called again only after its margin of error is over: {said}");
                    return Ok(End::Failed { job_id: None, message: Some(message) });
                }
                Err(HandlerError { retry_after, ..HandlerError::retryable("driven_back", said) })
            }
            Err(_) if is_driven_back => {
                metrics::counter!("leasehold_triggers_redriven_total").increment(1);
                Err(HandlerError::retryable("no_answer", said))
            }
            Ok(_) | Err(_) => consumed(said),
        }
    }
}

/// Returns whether a call with this answer is made again: the receiver is not able to take it now.
fn drives_back(status: StatusCode) -> bool {
    let soon = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    status.is_server_error() || soon.contains(&status)
}

fn wait(after: RetryAfter, now: Timestamp) -> Duration {
    match after {
        RetryAfter::In(wait) => wait,
        RetryAfter::At(time) => time.since(now),
    }
}

/// Returns the job that a `job` action submits for a trigger.
///
/// # Errors
/// Every field that is wrong, by name.
pub(super) fn job_of(action: &Action, trigger: &Trigger) -> Result<NewJob, Invalid> {
    let text = action.job.as_ref().map_or("null", Json::as_str);
    let wrong = |error: serde_json::Error| Invalid::field("", error.to_string());
    let new: SubmitJob = serde_json::from_str(&filled_json(text, trigger)).map_err(wrong)?;
    let unfit = [
        ("id", new.id.is_some()),
        ("idempotency_key", new.idempotency_key.is_some()),
        ("run_at", new.run_at.is_some()),
    ];
    if let Some((field, _)) = unfit.into_iter().find(|(_, is_set)| *is_set) {
        return Err(Invalid::field(field, "follows from the schedule and cannot be set"));
    }
    let mut new = new.into_new_job()?;
    new.spec.due = Some(Box::new(trigger.due()));
    new.spec.labels.extend(trigger.labels());
    Ok(new)
}

/// Returns the call that an `http` action makes for a trigger.
///
/// # Errors
/// What is wrong with the action, in words.
fn call_of(action: &Action, trigger: &Trigger, attempt: &Attempt) -> Result<HttpCall, String> {
    let url = filled(action.url.as_deref().unwrap_or_default(), trigger);
    let url = TargetUrl::parse(&url).map_err(|error| error.to_string())?;
    let mut headers = HeaderMap::new();
    let body = match &action.body {
        None => Bytes::new(),
        Some(body) => match serde_json::from_str::<String>(body.as_str()) {
            Ok(text) => Bytes::from(filled(&text, trigger)),
            Err(_) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                Bytes::from(filled_json(body.as_str(), trigger))
            }
        },
    };
    for (name, value) in action.headers.iter().flatten() {
        let wrong = |what: &str| format!("the header {name}: {what}");
        let name: HeaderName = name.parse().map_err(|_| wrong("is not the name of a header"))?;
        let value = HeaderValue::from_str(&filled(value, trigger)).map_err(|_| wrong("cannot be sent"))?;
        headers.insert(name, value);
    }
    let own = [
        ("idempotency-key", attempt.job.id.to_string()),
        ("leasehold-schedule-id", trigger.schedule_id.to_string()),
        ("leasehold-due-at", trigger.due_at.to_rfc3339()),
        ("leasehold-fence", attempt.job.fence.get().to_string()),
        ("leasehold-attempt", attempt.job.attempt.to_string()),
        ("traceparent", traceparent()),
    ];
    for (name, value) in own {
        let value = HeaderValue::try_from(value).map_err(|_| format!("the header {name} cannot be sent"))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    if trigger.backfill.is_some() {
        headers.insert(HeaderName::from_static("leasehold-backfill"), HeaderValue::from_static("true"));
    }
    let method = http::Method::from_bytes(action.method.unwrap_or_default().as_str().as_bytes());
    let timeout = action.timeout_ms.map_or(TIMEOUT, Duration::from_millis);
    Ok(HttpCall { method: method.unwrap_or(http::Method::POST), url, headers, body, timeout })
}

/// Returns a new trace context (W3C Trace Context, level 1), whose trace begins with this call.
fn traceparent() -> String {
    let (trace, span) = (rand::random::<u128>().max(1), rand::random::<u64>().max(1));
    format!("00-{trace:032x}-{span:016x}-00")
}

/// Fills in what stands for a trigger's times and names.
fn filled(text: &str, trigger: &Trigger) -> String {
    if !text.contains("{{") {
        return text.to_owned();
    }
    text.replace("{{due_at}}", &trigger.due_at.to_rfc3339()).replace("{{schedule_id}}", trigger.schedule_id.as_str())
}

/// Fills in the same in the texts of a JSON text.
fn filled_json(json: &str, trigger: &Trigger) -> String {
    if !json.contains("{{") {
        return json.to_owned();
    }
    let quoted = serde_json::Value::from(trigger.schedule_id.as_str()).to_string();
    let id = quoted.strip_prefix('"').and_then(|id| id.strip_suffix('"')).unwrap_or_default();
    json.replace("{{due_at}}", &trigger.due_at.to_rfc3339()).replace("{{schedule_id}}", id)
}

#[cfg(test)]
mod downtime;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::ScheduleId;
    use crate::schedule::ActionType;

    fn trigger(id: &str) -> Trigger {
        let due_at = Timestamp::from_millis(1_900_000_000_000);
        let schedule_id = ScheduleId::new(id).expect("an id");
        Trigger::example(schedule_id, due_at)
    }

    fn job(text: &str) -> Action {
        Action { job: Json::parse(text.to_owned()).ok(), ..Action::of(ActionType::Job) }
    }

    #[test]
    fn a_job_has_what_stands_for_its_trigger_filled_in_whatever_the_id_is() {
        let text = r#"{"queue": "q", "kind": "k", "owner": "{{schedule_id}}", "payload": ["{{due_at}}", "{{x}}"]}"#;
        let new = job_of(&job(text), &trigger(r#"a"b\c"#)).expect("a job");
        assert_eq!(new.spec.owner.as_ref().map(|owner| owner.as_str()), Some(r#"a"b\c"#));
        assert_eq!(new.payload.as_ref().map(Json::as_str), Some(r#"["2030-03-17T17:46:40.000Z", "{{x}}"]"#));
        assert_eq!(new.spec.due.as_deref(), Some(&trigger(r#"a"b\c"#).due()));
        assert!(new.spec.labels.is_empty());
    }

    #[test]
    fn a_job_may_not_say_what_follows_from_its_schedule() {
        for field in ["id", "idempotency_key", "run_at"] {
            let text = format!(r#"{{"queue": "q", "kind": "k", "{field}": "2030-01-01T00:00:00Z"}}"#);
            let refused = job_of(&job(&text), &trigger("s")).expect_err("it is refused");
            assert_eq!(refused.errors[0].field, field);
        }
        assert!(job_of(&job(r#"{"queue": "leasehold.triggers", "kind": "k"}"#), &trigger("s")).is_err());
    }

    #[test]
    fn a_receiver_that_cannot_take_a_call_now_is_called_again_and_no_other() {
        for status in [408, 425, 429, 500, 502, 503, 504, 599] {
            assert!(drives_back(StatusCode::from_u16(status).expect("a status")), "{status}");
        }
        for status in [200, 204, 301, 400, 401, 404, 409, 410, 422] {
            assert!(!drives_back(StatusCode::from_u16(status).expect("a status")), "{status}");
        }
    }
}
