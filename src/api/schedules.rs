//! The calls about schedules.

use super::call::{Answer, Call, Read};
use super::extract::JsonBody;
use super::json::ok;
use crate::wire::{FireTimes, PreviewSchedule};

/// Returns the next fire times of a period, without a schedule.
///
/// The answer says what an expression means, and how it fires where clocks change. An expression that never fires, such
/// as one for 31 February, is refused.
#[utoipa::path(post, path = "/v1/schedules/preview", tag = "schedules", request_body = PreviewSchedule,
    responses((status = 200, description = "The fire times", body = FireTimes)))]
pub(crate) async fn preview(call: Call<Read>, JsonBody(preview): JsonBody<PreviewSchedule>) -> Answer {
    ok(&preview.into_preview()?.fire_times(call.app.manager.now()))
}
