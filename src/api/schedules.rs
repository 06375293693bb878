//! The calls about schedules.

use axum::response::{IntoResponse, Response};
use http::header::{ETAG, HeaderValue, IF_MATCH};
use http::{HeaderMap, StatusCode};

use super::App;
use super::call::{Answer, Call, Read, Submit};
use super::error::{ApiError, Code};
use super::extract::{JsonBody, OptionalJsonBody, Query, SchedulePath};
use super::json::{json, ok};
use super::lists::{kql, limit, parse as parse_value, time};
use crate::clock::Timestamp;
use crate::job::{Owner, ScheduleId};
use crate::manager::ChangeName;
use crate::query::ScheduleFilter;
use crate::query::table::Table;
use crate::schedule;
use crate::scheduler::{DueTime, DueTimes, Foreseen, NewSchedule, ScheduleAction, ScheduleError, Schedules, Stored};
use crate::store::ListSchedules;
use crate::wire::schedules::MAX_FIRE_TIMES;
use crate::wire::{ChangeReason, FireTimes, Invalid, MadeTrigger, Page, PreviewSchedule, PutSchedule, Schedule, Sight};

/// The number of fire times of a schedule that are returned by default.
const DEFAULT_FIRE_TIMES: u64 = 10;

/// Returns the next fire times of a period, without a schedule.
///
/// The answer says what an expression means, and how it fires where clocks change. An expression that never fires, such
/// as one for 31 February, is refused.
#[utoipa::path(post, path = "/v1/schedules/preview", tag = "schedules", request_body = PreviewSchedule,
    responses((status = 200, description = "The fire times", body = FireTimes)))]
pub(crate) async fn preview(call: Call<Read>, JsonBody(preview): JsonBody<PreviewSchedule>) -> Answer {
    ok(&preview.into_preview()?.fire_times(call.app.manager.now()))
}

/// Creates a schedule.
///
/// The same definition under the same id is stored once, so that the call can be repeated.
#[utoipa::path(post, path = "/v1/schedules", operation_id = "create_schedule", tag = "schedules",
    request_body = PutSchedule,
    responses(
        (status = 201, description = "The schedule is created", body = Schedule,
            headers(("ETag" = String, description = "Its revision"))),
        (status = 200, description = "It was there already", body = Schedule,
            headers(("ETag" = String, description = "Its revision"))),
        (status = 409, description = "`schedule_differs`: there is another one under this id"),
    ))]
pub(crate) async fn create(call: Call<Submit>, JsonBody(new): JsonBody<PutSchedule>) -> Answer {
    let new = new_schedule(new, None)?;
    store(&call, new, false, None).await
}

/// Lists schedules, by id.
///
/// The values of headers, the bodies of calls, the values of `env` and the addresses in `notify` are hidden. The latest
/// writes may be missing for a moment. A query for anything but ids and owners reads every schedule, or every one of
/// the owner, until the page is full.
#[utoipa::path(get, path = "/v1/schedules", operation_id = "schedules", tag = "schedules",
    params(
        ("kql" = Option<String>, Query, example = "paused: true and labels.team: blue",
            description = "Selects only schedules that this KQL query matches: at most 16 KiB, which compare fields \
            with values at most 1024 times"),
        ("time_zone" = Option<String>, Query, example = "Europe/Berlin",
            description = "The time zone of the query's days and of its times without a zone; UTC by default"),
        ("owner" = Option<Owner>, Query, description = "Selects only schedules of this owner"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000,
            description = "The size of the page; 100 by default"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of schedules", body = Page<Schedule>)))]
pub(crate) async fn list(call: Call<Read>, query: Query) -> Answer {
    query.only(&["kql", "time_zone", "owner", "limit", "cursor"])?;
    let limit = limit(&query)?;
    let owner = query.one("owner")?.map(|text| parse_value("owner", text)).transpose()?;
    let filter = ScheduleFilter { owner, query: kql(&call.app, &query, Table::Schedules)?, paused: None };
    let after = query.one("cursor")?.map(|text| parse_value("cursor", text)).transpose()?;
    // One more than requested shows whether there is another page.
    let found = schedules(&call.app)?.list(&ListSchedules { filter, after, limit: limit + 1 }).await?;
    let more = found.len() > limit;
    let items: Vec<Schedule> = found.iter().take(limit).map(|found| Schedule::hidden(&found.schedule)).collect();
    let next_cursor = items.last().filter(|_| more).map(|last| last.id.clone());
    ok(&Page { items, next_cursor })
}

/// Returns a schedule.
#[utoipa::path(get, path = "/v1/schedules/{id}", operation_id = "schedule", tag = "schedules",
    params(
        ("id" = ScheduleId, Path, description = "The schedule's id"),
        ("reveal" = Option<bool>, Query,
            description = "Whether to show what is hidden, which needs the role `admin`"),
    ),
    responses((status = 200, description = "The schedule", body = Schedule,
        headers(("ETag" = String, description = "Its revision")))))]
pub(crate) async fn get(call: Call<Read>, SchedulePath(id): SchedulePath, query: Query) -> Answer {
    query.only(&["reveal"])?;
    let found = schedules(&call.app)?.get(&id).await?;
    if call.revealing(&query)? == Sight::Everything {
        call.app.manager.audit_changes(&[call.change(ChangeName::ScheduleRevealed).of(&id)]).await?;
        return Ok(tagged(StatusCode::OK, &found.schedule, &Schedule::revealed(&found.schedule)));
    }
    answer(StatusCode::OK, &found.schedule)
}

/// Stores a schedule, written over the one that there is.
///
/// With `If-Match`, it is written over that revision alone.
#[utoipa::path(put, path = "/v1/schedules/{id}", operation_id = "put_schedule", tag = "schedules",
    request_body = PutSchedule,
    params(
        ("id" = ScheduleId, Path, description = "The schedule's id"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` of the revision to write over"),
    ),
    responses(
        (status = 200, description = "The schedule as it is stored", body = Schedule,
            headers(("ETag" = String, description = "Its revision"))),
        (status = 201, description = "The schedule is created", body = Schedule,
            headers(("ETag" = String, description = "Its revision"))),
        (status = 412, description = "`version_differs`: it has another revision"),
    ))]
pub(crate) async fn put(
    call: Call<Submit>,
    SchedulePath(id): SchedulePath,
    headers: HeaderMap,
    JsonBody(new): JsonBody<PutSchedule>,
) -> Answer {
    let expected = expected(&headers)?;
    let new = new_schedule(new, Some(id))?;
    store(&call, new, true, expected.as_deref()).await
}

/// Removes a schedule.
///
/// None of its triggers begins from then on.
#[utoipa::path(delete, path = "/v1/schedules/{id}", operation_id = "remove_schedule", tag = "schedules",
    params(
        ("id" = ScheduleId, Path, description = "The schedule's id"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` of the revision to remove"),
    ),
    responses(
        (status = 204, description = "The schedule is removed"),
        (status = 412, description = "`version_differs`: it has another revision"),
    ))]
pub(crate) async fn remove(call: Call<Submit>, SchedulePath(id): SchedulePath, headers: HeaderMap) -> Answer {
    let (schedules, expected) = (schedules(&call.app)?, expected(&headers)?);
    schedules.foresee(&call.caller, &id, ScheduleAction::Remove, expected.as_deref()).await?;
    let change = call.change(ChangeName::ScheduleRemoved).of(&id);
    call.audited(change, schedules.remove(&call.caller, &id, expected.as_deref())).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Pauses a schedule.
///
/// None of its triggers begins from then on.
#[utoipa::path(post, path = "/v1/schedules/{id}/pause", operation_id = "pause_schedule", tag = "schedules",
    request_body = Option<ChangeReason>,
    params(("id" = ScheduleId, Path, description = "The schedule's id")),
    responses((status = 200, description = "The schedule", body = Schedule)))]
pub(crate) async fn pause(
    call: Call<Submit>,
    SchedulePath(id): SchedulePath,
    OptionalJsonBody(pause): OptionalJsonBody<ChangeReason>,
) -> Answer {
    let schedules = schedules(&call.app)?;
    let reason = pause.into_reason()?.unwrap_or_default();
    if let Foreseen::Unchanged(found) = schedules.foresee(&call.caller, &id, ScheduleAction::Pause, None).await? {
        return answer(StatusCode::OK, &found.schedule);
    }
    let given = Some(reason.clone()).filter(|reason| !reason.is_empty());
    let change = call.change(ChangeName::SchedulePaused).of(&id).because(given);
    let paused = call.audited(change, schedules.pause(&call.caller, &id, reason)).await?;
    answer(StatusCode::OK, &paused.schedule)
}

/// Ends the pause of a schedule.
///
/// What would have been due meanwhile is not made up for.
#[utoipa::path(post, path = "/v1/schedules/{id}/resume", operation_id = "resume_schedule", tag = "schedules",
    params(("id" = ScheduleId, Path, description = "The schedule's id")),
    responses(
        (status = 200, description = "The schedule", body = Schedule),
        (status = 409, description = "`schedule_unreadable`: it is not known any more when it is due"),
    ))]
pub(crate) async fn resume(call: Call<Submit>, SchedulePath(id): SchedulePath) -> Answer {
    let schedules = schedules(&call.app)?;
    if let Foreseen::Unchanged(found) = schedules.foresee(&call.caller, &id, ScheduleAction::Resume, None).await? {
        return answer(StatusCode::OK, &found.schedule);
    }
    let change = call.change(ChangeName::ScheduleResumed).of(&id);
    let resumed = call.audited(change, schedules.resume(&call.caller, &id)).await?;
    answer(StatusCode::OK, &resumed.schedule)
}

/// Runs a schedule now.
///
/// It makes a trigger that is due at once, whatever the schedule's times are, and though it is paused.
#[utoipa::path(post, path = "/v1/schedules/{id}/run", operation_id = "run_schedule", tag = "schedules",
    params(("id" = ScheduleId, Path, description = "The schedule's id")),
    responses((status = 202, description = "The trigger is made", body = MadeTrigger)))]
pub(crate) async fn run(call: Call<Submit>, SchedulePath(id): SchedulePath) -> Answer {
    let trigger_id = schedules(&call.app)?.run_now(&call.caller, &id).await?;
    Ok(json(StatusCode::ACCEPTED, &MadeTrigger { trigger_id }))
}

/// Returns the next times at which a schedule is due.
#[utoipa::path(get, path = "/v1/schedules/{id}/next", operation_id = "next_of_schedule", tag = "schedules",
    params(
        ("id" = ScheduleId, Path, description = "The schedule's id"),
        ("n" = Option<u64>, Query, minimum = 1, maximum = 1000,
            description = "The most times to return; 10 by default"),
    ),
    responses((status = 200, description = "The times", body = FireTimes)))]
pub(crate) async fn next(call: Call<Read>, SchedulePath(id): SchedulePath, query: Query) -> Answer {
    query.only(&["n"])?;
    let n = query.number("n", 1..=MAX_FIRE_TIMES)?.unwrap_or(DEFAULT_FIRE_TIMES);
    let fire_times = schedules(&call.app)?.next_due(&id, usize::try_from(n).unwrap_or(usize::MAX)).await?;
    ok(&FireTimes { fire_times })
}

/// Lists the due times of a schedule, each with what has become of it.
///
/// They are in order, since the schedule has its present period; from before that, those are listed that a backfill has
/// run. A page may have fewer than `limit` although there is another one. The outcomes of the last ten triggers of a
/// schedule are known for good; an older one whose trigger is not kept any more is `removed`.
#[utoipa::path(get, path = "/v1/schedules/{id}/triggers", operation_id = "triggers_of_schedule", tag = "schedules",
    params(
        ("id" = ScheduleId, Path, description = "The schedule's id"),
        ("from" = Option<Timestamp>, Query,
            description = "The first due time; without it, the last ones until `to` are returned"),
        ("to" = Option<Timestamp>, Query, description = "The last due time; now by default"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000,
            description = "The size of the page; 100 by default"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of due times", body = Page<DueTime>)))]
pub(crate) async fn triggers(call: Call<Read>, SchedulePath(id): SchedulePath, query: Query) -> Answer {
    query.only(&["from", "to", "limit", "cursor"])?;
    let to = time(&query, "to")?.unwrap_or_else(|| call.app.manager.now());
    let from = time(&query, "cursor")?.or(time(&query, "from")?);
    let limit = limit(&query)?;
    let DueTimes { items, next } = schedules(&call.app)?.due_times(&id, (from, to), limit).await?;
    ok(&Page { items, next_cursor: next.map(Timestamp::to_rfc3339) })
}

/// Stores a schedule, and answers with it. What changes nothing or is refused leaves no entry in the audit.
async fn store(call: &Call<Submit>, new: NewSchedule, may_replace: bool, expected: Option<&str>) -> Answer {
    let schedules = schedules(&call.app)?;
    if let Foreseen::Unchanged(found) = schedules.foresee_put(&call.caller, &new, may_replace, expected).await? {
        return answer(status(Stored::Unchanged), &found.schedule);
    }
    let change = call.change(ChangeName::ScheduleStored).of(&new.id);
    let (found, stored) = call.audited(change, schedules.put(&call.caller, new, may_replace, expected)).await?;
    answer(status(stored), &found.schedule)
}

/// Returns the schedules that the process deals with.
pub(super) fn schedules(app: &App) -> Result<&Schedules, ApiError> {
    let here = app.schedules.as_ref();
    here.ok_or_else(|| ApiError::new(Code::NoSuchRoute, "this process does not deal with schedules"))
}

/// Checks a schedule that is to be stored, under the id of the path if there is one.
pub(super) fn new_schedule(new: PutSchedule, id: Option<ScheduleId>) -> Result<NewSchedule, ApiError> {
    let paused = new.paused.unwrap_or(false);
    let (named, definition) = new.into_definition()?;
    if id.is_some() && named.is_some() && named != id {
        return Err(ApiError::field("id", "is another than the one in the path"));
    }
    Ok(NewSchedule { id: id.or(named).unwrap_or_else(ScheduleId::generate), definition, paused })
}

/// Returns the revision that a change is for (RFC 9110, section 13.1.1); `None` for any.
fn expected(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(given) = headers.get(IF_MATCH) else { return Ok(None) };
    let text = given.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    let tag = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).filter(|text| !text.contains('"'));
    let tag = tag.ok_or_else(|| ApiError::field("If-Match", "must be one `ETag` of the schedule, or `*`"))?;
    Ok(Some(tag.to_owned()))
}

/// Returns the status of an answer about a schedule that was stored.
pub(super) fn status(stored: Stored) -> StatusCode {
    if stored == Stored::Created { StatusCode::CREATED } else { StatusCode::OK }
}

/// Answers with a schedule, without what is secret.
fn answer(status: StatusCode, schedule: &schedule::Schedule) -> Answer {
    Ok(tagged(status, schedule, &Schedule::hidden(schedule)))
}

fn tagged(status: StatusCode, schedule: &schedule::Schedule, shown: &Schedule) -> Response {
    let mut response = json(status, shown);
    if let Ok(tag) = HeaderValue::try_from(format!("\"{}\"", schedule.tag())) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

impl From<ScheduleError> for ApiError {
    fn from(error: ScheduleError) -> Self {
        let text = error.to_string();
        match error {
            ScheduleError::NotFound(_) => Self::new(Code::NoSuchSchedule, text),
            ScheduleError::NotOwn(_) => Self::new(Code::Forbidden, text),
            ScheduleError::NotYet(_) => Self::new(Code::NotYet, text),
            ScheduleError::Differs(_) => Self::new(Code::ScheduleDiffers, text),
            ScheduleError::Changed(_) => Self::new(Code::VersionDiffers, text),
            ScheduleError::Unreadable(..) => Self::new(Code::ScheduleUnreadable, text),
            ScheduleError::Contended => Self::new(Code::Contended, text),
            ScheduleError::Manager(error) => Self::from(error),
            ScheduleError::Invalid(faults) => {
                let errors = faults.into_iter().map(Into::into).collect();
                Self::from(Invalid { errors, too_large: false })
            }
        }
    }
}
