//! The schedules: when each is due next, what has become of its last triggers, and what is wrong.

use askama::Template;
use axum::extract::{Path, Query};
use axum::response::Response;
use http::Uri;
use serde::Deserialize;

use super::ask::{Asker, Refused};
use super::frame::{self, Frame};
use super::shown;
use crate::scheduler::DueTime;
use crate::wire::{FireTimes, Page, Period, Schedule};

/// How many schedules a page has, and how many due times stand in a strip.
const ON_A_PAGE: &str = "50";

/// What is wanted of the list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    kql: String,
    cursor: String,
}

#[derive(Template)]
#[template(path = "schedules.html")]
struct Schedules {
    frame: Frame,
    wanted: Wanted,
    schedules: Vec<Schedule>,
    next: Option<String>,
    fault: Option<String>,
}

#[derive(Template)]
#[template(path = "schedule.html")]
struct ScheduleOne {
    frame: Frame,
    schedule: Schedule,
    next: Vec<crate::clock::Timestamp>,
    due_times: Vec<DueTime>,
    action: String,
    path: String,
}

pub(super) async fn page(asker: Asker, Query(wanted): Query<Wanted>, uri: Uri) -> Response {
    frame::answer(schedules(&asker, wanted).await, &uri)
}

pub(super) async fn one(asker: Asker, Path(id): Path<String>, uri: Uri) -> Response {
    frame::answer(schedule(&asker, &id).await, &uri)
}

async fn schedules(asker: &Asker, wanted: Wanted) -> Result<Schedules, Refused> {
    let frame = Frame::of(asker, "/schedules", "Schedules").await?;
    let parts = [("kql", wanted.kql.as_str()), ("cursor", wanted.cursor.as_str()), ("limit", ON_A_PAGE)];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.1.is_empty()).collect();
    let (page, fault) = match asker.get::<Page<Schedule>>("/v1/schedules", &parts).await {
        Ok(page) => (page, None),
        Err(refused) if refused.is_of("kql") => (Page { items: Vec::new(), next_cursor: None }, Some(refused.said())),
        Err(refused) => return Err(refused),
    };
    let next = page.next_cursor.map(|cursor| {
        let pairs = [("kql", wanted.kql.as_str()), ("cursor", cursor.as_str())];
        let pairs = pairs.into_iter().filter(|pair| !pair.1.is_empty());
        shown::address("/schedules", pairs)
    });
    Ok(Schedules { frame, wanted, schedules: page.items, next, fault })
}

async fn schedule(asker: &Asker, id: &str) -> Result<ScheduleOne, Refused> {
    let frame = Frame::of(asker, "/schedules", id).await?;
    let path = shown::path("/v1/schedules", id);
    let schedule: Schedule = asker.get(&path, &[]).await?;
    let (next_path, triggers_path) = (format!("{path}/next"), format!("{path}/triggers"));
    let last = [("limit", ON_A_PAGE)];
    let (next, due_times) =
        tokio::join!(asker.get::<FireTimes>(&next_path, &[]), asker.get::<Page<DueTime>>(&triggers_path, &last),);
    let next = next.map(|times| times.fire_times).unwrap_or_default();
    let due_times = due_times.map(|page| page.items).unwrap_or_default();
    let action = serde_json::to_string_pretty(&schedule.action).unwrap_or_default();
    Ok(ScheduleOne { frame, schedule, next, due_times, action, path })
}

/// Writes a period in one line.
fn period(period: &Period) -> String {
    let zone = period.time_zone.as_deref().map(|zone| format!(" ({zone})")).unwrap_or_default();
    match (&period.cron, period.every_ms, &period.at) {
        (Some(cron), ..) => format!("{cron}{zone}"),
        (None, Some(every), _) => format!("every {}", shown::millis(&every)),
        (None, None, Some(at)) => format!("once, at {at}"),
        (None, None, None) => String::new(),
    }
}
