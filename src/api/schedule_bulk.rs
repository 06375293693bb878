//! The calls of administrators that change many schedules at once.

use super::admin::CHANGES_WITHIN;
use super::call::{Admin, Answer, Call};
use super::extract::JsonBody;
use super::items::changed;
use super::json::ok;
use super::schedules::schedules;
use crate::manager::{BulkBounds, ChangeName};
use crate::scheduler::{ScheduleAction, ScheduleOrder, ScheduleSelection};
use crate::wire::schedule_bulk::OrderedSchedules;
use crate::wire::{BulkReport, BulkScheduleChange, Schedule};

/// Pauses many schedules.
///
/// The call is a dry run, which counts the schedules and shows a few, unless `dry_run` is false. Otherwise they are
/// changed page by page, by id; one that no longer matches the filter by then is skipped. A call takes about ten
/// seconds at most: if `done` is false, the same call with `cursor` continues.
#[utoipa::path(post, path = "/v1/schedules/pause", operation_id = "pause_schedules", tag = "schedules",
    request_body = BulkScheduleChange,
    responses((status = 200, description = "The result of the call", body = BulkReport<Schedule>)))]
pub(crate) async fn pause(call: Call<Admin>, JsonBody(change): JsonBody<BulkScheduleChange>) -> Answer {
    change_many(&call, ScheduleAction::Pause, change).await
}

/// Ends the pauses of many schedules.
///
/// What would have been due meanwhile is not made up for. Like a pause of many schedules, the call is a dry run unless
/// `dry_run` is false, and takes about ten seconds at most.
#[utoipa::path(post, path = "/v1/schedules/resume", operation_id = "resume_schedules", tag = "schedules",
    request_body = BulkScheduleChange,
    responses((status = 200, description = "The result of the call", body = BulkReport<Schedule>)))]
pub(crate) async fn resume(call: Call<Admin>, JsonBody(change): JsonBody<BulkScheduleChange>) -> Answer {
    change_many(&call, ScheduleAction::Resume, change).await
}

/// Removes many schedules.
///
/// None of their triggers begins from then on. Like a pause of many schedules, the call is a dry run unless `dry_run`
/// is false, and takes about ten seconds at most.
#[utoipa::path(post, path = "/v1/schedules/remove", operation_id = "remove_schedules", tag = "schedules",
    request_body = BulkScheduleChange,
    responses((status = 200, description = "The result of the call", body = BulkReport<Schedule>)))]
pub(crate) async fn remove(call: Call<Admin>, JsonBody(change): JsonBody<BulkScheduleChange>) -> Answer {
    change_many(&call, ScheduleAction::Remove, change).await
}

async fn change_many(call: &Call<Admin>, action: ScheduleAction, change: BulkScheduleChange) -> Answer {
    let (app, caller) = (&call.app, call.caller.clone());
    let name = match action {
        ScheduleAction::Pause => ChangeName::SchedulesPaused,
        ScheduleAction::Resume => ChangeName::SchedulesResumed,
        ScheduleAction::Remove => ChangeName::SchedulesRemoved,
    };
    let entry = call.change(name).to(&change);
    let schedules = schedules(app)?;
    let is_pause = action == ScheduleAction::Pause;
    let OrderedSchedules { filter, ids, reason, max_schedules, after } =
        change.into_order(is_pause, app.manager.now())?;
    let selection = ScheduleSelection { filter, ids };
    let Some(reason) = reason else {
        let preview = schedules.preview(action, selection).await?;
        let sample = preview.sample.iter().map(|found| Schedule::hidden(&found.schedule)).collect();
        return ok(&BulkReport::previewed(preview.matched, sample));
    };
    let bounds = BulkBounds { after, max_items: max_schedules, within: CHANGES_WITHIN };
    let entry = entry.because(Some(reason.clone()).filter(|reason| !reason.is_empty()));
    let order = ScheduleOrder { action, caller, reason };
    let report = call.audited(entry, schedules.change_many(order, selection, bounds)).await?;
    ok(&changed::<Schedule, _, _, _>(report, String::from))
}
