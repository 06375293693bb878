//! Every field of a schedule, and whether queries can use it, as [`super::fields`] has them of jobs. A test compares
//! the table with the mapping of the index of schedules.

use super::fields::Access::{Action as OfAction, Labels, Schedule as Of};
use super::fields::FieldType::{Date, Flag};
use super::fields::{BOUNDED, Field, FieldType, FieldValue, KEYWORD, LABELS, LONG, SHORT, integer, text, time};
use crate::job::Owner;
use crate::schedule::{Action, Schedule};

/// Every field of a schedule.
#[rustfmt::skip]
pub static SCHEDULE_FIELDS: &[Field] = &[
    Field::new("id", KEYWORD, Of(|schedule| text(schedule.id.as_str())),
        "The schedule's id, unique in the store.", "id: nightly-*").by_default(),
    Field::new("owner", KEYWORD, Of(|schedule| schedule.definition.owner.as_ref().map(Owner::as_str).and_then(text)),
        "The person or team that the schedule belongs to.", "owner: billing").by_default(),
    Field::new(LABELS, FieldType::Labels, Labels,
        "The labels; one label is `labels.` and its name.", "labels.team: blue").by_default(),
    Field::new("paused", Flag, Of(|schedule| Some(FieldValue::Flag(schedule.paused.is_some()))),
        "Whether the schedule is paused.", "paused: true"),
    Field::new("paused_at", Date, Of(|schedule| time(schedule.paused.as_ref()?.at)),
        "When the schedule was paused.", "paused_at < now-7d"),
    Field::new("paused_by", KEYWORD, Of(|schedule| text(schedule.paused.as_ref()?.by.as_str())),
        "Who paused the schedule.", "paused_by: anna").by_default(),
    Field::new("paused_reason", BOUNDED, Of(reason),
        "Why the schedule is paused, if a reason was given.", "paused_reason: *outage*").by_default(),
    Field::new("action_type", KEYWORD, Of(|schedule| text(schedule.definition.action.kind.as_str())),
        "What is done: job or http.", "action_type: http"),
    Field::new("action.url", BOUNDED, OfAction(Action::searchable_url),
        "The URL that is called, without its query.", "action.url: *example.org/*").by_default(),
    Field::new("action.job.queue", BOUNDED, OfAction(Action::job_queue),
        "The queue of the job that is submitted.", "action.job.queue: reports").by_default(),
    Field::new("action.job.kind", BOUNDED, OfAction(Action::job_kind),
        "The kind of the job that is submitted.", "action.job.kind: (render or encode)").by_default(),
    Field::new("period.cron", BOUNDED, Of(|schedule| text(schedule.definition.period.cron.as_deref()?)),
        "The cron expression.", "period.cron: \"0 2 * * *\""),
    Field::new("period.time_zone", BOUNDED, Of(|schedule| text(schedule.definition.period.time_zone.as_deref()?)),
        "The time zone of the period, if it names one.", "period.time_zone: Europe/*"),
    Field::new("period.every_ms", LONG, Of(|schedule| long(schedule.definition.period.every_ms?)),
        "The distance between two due times, in milliseconds.", "period.every_ms < 60000"),
    Field::new("start_at", Date, Of(|schedule| schedule.definition.start_at.and_then(time)),
        "The time before which nothing is due.", "start_at > now"),
    Field::new("end_at", Date, Of(|schedule| schedule.definition.end_at.and_then(time)),
        "The time from which on nothing is due.", "end_at < now+7d"),
    Field::new("overlap", KEYWORD, Of(|schedule| text(schedule.definition.overlap.as_str())),
        "What becomes of a trigger while an earlier one runs: allow, skip, queue_one or cancel_previous.",
        "overlap: skip"),
    Field::new("margin_of_error_ms", LONG, Of(|schedule| long(schedule.definition.margin_of_error_ms)),
        "How late a trigger may start, in milliseconds.", "margin_of_error_ms < 60000"),
    Field::new("errors", LONG, Of(|schedule| integer(schedule.course.errors)),
        "How many triggers in a row ended with an error of the user's.", "errors > 0"),
    Field::new("revision", LONG, Of(|schedule| long(schedule.revision)),
        "How often people have changed the schedule, counted from 1.", "revision > 1"),
    Field::new("next_due_at", Date, Of(|schedule| schedule.course.next_due_at.and_then(time)),
        "The next time for which no trigger is made yet; none when the schedule is not due any more.",
        "next_due_at < now+1h"),
    Field::new("last_due_at", Date, Of(|schedule| schedule.course.last_due_at.and_then(time)),
        "The last time for which a trigger was made.", "last_due_at < now-1d"),
    Field::new("not_run_at", Date, Of(|schedule| schedule.course.last_not_run().and_then(time)),
        "The latest due time that did not run.", "not_run_at >= now-1d"),
    Field::new("created_at", Date, Of(|schedule| time(schedule.created_at)),
        "When the schedule was created.", "created_at >= now-7d/d"),
    Field::new("updated_at", Date, Of(|schedule| time(schedule.updated_at)),
        "When people last changed the schedule.", "updated_at > now-1h"),
    Field::new("load_at", Date, Of(|schedule| schedule.load_at().and_then(time)),
        "The next due time of a schedule that is not paused.", "load_at < now"),
    Field::new("partition", SHORT, Of(|schedule| integer(schedule.partition().get())),
        "The part of all schedules, from 0 to 255, whose triggers one server makes.", "partition: 17"),
    Field::kept("document", "The whole schedule.", "\"{…}\""),
    Field::kept("write_id", "The id of the write that made this version of the document.", "\"1c77…\""),
    Field::kept("previous_write_id", "The id of the write that made the version before.", "\"1c76…\""),
];

/// Returns why a schedule is paused; none where nobody said.
fn reason(schedule: &Schedule) -> Option<FieldValue<'_>> {
    schedule.paused.as_ref().map(|pause| pause.reason.as_str()).filter(|reason| !reason.is_empty()).and_then(text)
}

/// Returns a number as a `long` of the index, capped at the largest one.
fn long(number: u64) -> Option<FieldValue<'static>> {
    integer(i64::try_from(number).unwrap_or(i64::MAX))
}
