//! The list of jobs: searched by a query, in tabs by state, page by page. Its address is its state, so that a search
//! can be kept and shared.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use http::Uri;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::timeout;
use url::form_urlencoded;

use super::ask::{Asker, Refused};
use super::frame::{self, Frame};
use super::shown;
use crate::clock::Timestamp;
use crate::job::{JobState, Phase};
use crate::wire::{CountAnswer, Job, Page};

/// How many jobs a page has.
const ON_A_PAGE: &str = "50";
/// The order of a list that names none: the newest first.
const USUAL_SORT: &str = "-created_at";

/// How long counting may take, for how long it is not tried again where it took longer, and of how many searches that
/// is remembered.
const COUNTED_WITHIN: Duration = Duration::from_millis(200);
const NOT_COUNTED: Duration = Duration::from_secs(60);
const MOST_SLOW: usize = 1_000;

/// A column of the list.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Column {
    name: &'static str,
    title: &'static str,
    /// The field that orders the list by the column; empty where it cannot be.
    sort: &'static str,
    /// Whether the column is there unless others are chosen.
    usual: bool,
}

const COLUMNS: [Column; 13] = [
    column("id", "Job", "", true),
    column("phase", "State", "", true),
    column("queue", "Queue", "queue", true),
    column("kind", "Kind", "kind", true),
    column("owner", "Owner", "owner", false),
    column("priority", "Priority", "priority", false),
    column("attempt", "Attempt", "attempt", true),
    column("worker", "Worker", "", false),
    column("created", "Submitted", "created_at", true),
    column("started", "Started", "started_at", false),
    column("finished", "Ended", "finished_at", true),
    column("took", "Took", "", true),
    column("error", "Error", "", true),
];

const fn column(name: &'static str, title: &'static str, sort: &'static str, usual: bool) -> Column {
    Column { name, title, sort, usual }
}

/// What is searched for, and how it is shown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    kql: String,
    state: String,
    sort: String,
    cursor: String,
    columns: String,
    time_zone: String,
}

impl Wanted {
    /// Returns the address of the list with this changed, from its first page on.
    fn link(&self, name: &str, value: &str) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let parts = [
            ("kql", &self.kql),
            ("state", &self.state),
            ("sort", &self.sort),
            ("columns", &self.columns),
            ("time_zone", &self.time_zone),
        ];
        for (part, kept) in parts {
            let value = if part == name { value } else { kept.as_str() };
            if !value.is_empty() {
                query.append_pair(part, value);
            }
        }
        if name == "cursor" {
            query.append_pair("cursor", value);
        }
        let query = query.finish();
        if query.is_empty() { "/jobs".to_owned() } else { format!("/jobs?{query}") }
    }

    fn sort(&self) -> &str {
        if self.sort.is_empty() { USUAL_SORT } else { &self.sort }
    }

    fn has(&self, column: Column) -> bool {
        if self.columns.is_empty() { column.usual } else { self.columns.split(',').any(|name| name == column.name) }
    }

    /// Returns the filter as the API takes it.
    fn filter(&self) -> Vec<(&str, &str)> {
        let parts = [("kql", self.kql.as_str()), ("time_zone", self.time_zone.as_str())];
        parts.into_iter().filter(|(_, value)| !value.is_empty()).collect()
    }
}

/// A tab of the list.
struct Tab {
    name: &'static str,
    link: String,
    /// How many jobs it has; `None` where to count them takes too long.
    count: Option<u64>,
    is_here: bool,
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct Jobs {
    frame: Frame,
    wanted: Wanted,
    tabs: Vec<Tab>,
    jobs: Vec<Job>,
    next: Option<String>,
    /// What is wrong with the query, with the place.
    fault: Option<String>,
}

impl Jobs {
    fn columns(&self) -> impl Iterator<Item = Column> {
        COLUMNS.into_iter().filter(|column| self.wanted.has(*column))
    }

    fn all_columns(&self) -> impl Iterator<Item = (Column, bool)> {
        COLUMNS.into_iter().map(|column| (column, self.wanted.has(column)))
    }

    /// Returns the address of the list in the order of a column, turned round where it is in that order already.
    fn sorted(&self, column: &Column) -> String {
        let down = format!("-{}", column.sort);
        let sort = if self.wanted.sort() == down { column.sort.to_owned() } else { down };
        self.wanted.link("sort", &sort)
    }

    /// Returns how the list is ordered by a column, as the browser tells it to those who do not see it.
    fn order(&self, column: &Column) -> &'static str {
        match self.wanted.sort() {
            sort if sort == column.sort => "ascending",
            sort if sort.strip_prefix('-') == Some(column.sort) => "descending",
            _ => "none",
        }
    }
}

/// Returns the word on the button of an action.
fn word(act: &'static str) -> &'static str {
    if act == "edit" { "priority" } else { act }
}

/// Returns the phase of a job.
pub(super) fn phase(job: &Job, now: &Timestamp) -> Phase {
    Phase::of(job.state, job.run_at, job.attempt.into(), *now)
}

/// Returns how long the latest attempt of a job took, or has taken by now.
pub(super) fn took(job: &Job, now: &Timestamp) -> Option<String> {
    let started = job.started_at?;
    let is_over = job.state != JobState::Running;
    let ended = if is_over { job.finished_at? } else { *now };
    Some(shown::between(&started, &ended))
}

pub(super) async fn page(
    asker: Asker,
    State(slow): State<Arc<SlowCounts>>,
    Query(wanted): Query<Wanted>,
    uri: Uri,
) -> Response {
    frame::answer(jobs(&asker, &slow, wanted).await, &uri)
}

async fn jobs(asker: &Asker, slow: &SlowCounts, wanted: Wanted) -> Result<Jobs, Refused> {
    let frame = Frame::of(asker, "/jobs", "Jobs").await?;
    let mut list = wanted.filter();
    list.extend([("sort", wanted.sort()), ("limit", ON_A_PAGE)]);
    list.extend([("state", &*wanted.state), ("cursor", &*wanted.cursor)].into_iter().filter(|part| !part.1.is_empty()));
    let counts = slow.count(asker, &wanted);
    let (found, counts) = tokio::join!(async { asker.get::<Page<Job>>("/v1/jobs", &list).await }, counts);
    let (page, fault) = match found {
        Ok(page) => (page, None),
        // A query is typed by people: what is wrong with it is said beside it.
        Err(refused) if refused.is_of("kql") => (Page { items: Vec::new(), next_cursor: None }, Some(refused.said())),
        Err(refused) => return Err(refused),
    };
    let tabs = tabs(&wanted, counts.as_ref());
    let next = page.next_cursor.map(|cursor| wanted.link("cursor", &cursor));
    Ok(Jobs { frame, wanted, tabs, jobs: page.items, next, fault })
}

/// The searches whose jobs are not counted, since that took too long a moment ago.
#[derive(Default)]
pub(super) struct SlowCounts(Mutex<HashMap<String, Instant>>);

impl SlowCounts {
    /// Counts the jobs of a search by state; `None` where that takes too long or cannot be done.
    async fn count(&self, asker: &Asker, wanted: &Wanted) -> Option<CountAnswer> {
        let search = wanted.link("state", "");
        if self.0.lock().get(&search).is_some_and(|at| at.elapsed() < NOT_COUNTED) {
            return None;
        }
        let by_state = [&wanted.filter()[..], &[("by", "state")]].concat();
        let Ok(counted) = timeout(COUNTED_WITHIN, asker.get("/v1/jobs/count", &by_state)).await else {
            let mut slow = self.0.lock();
            slow.retain(|_, at| at.elapsed() < NOT_COUNTED);
            if slow.len() < MOST_SLOW {
                slow.insert(search, Instant::now());
            }
            return None;
        };
        counted.ok()
    }
}

fn tabs(wanted: &Wanted, counts: Option<&CountAnswer>) -> Vec<Tab> {
    let of_state = |counts: &CountAnswer, state: &str| {
        let is_it = |by: &&crate::wire::CountGroup| by.by.get("state").is_some_and(|of| of.as_deref() == Some(state));
        counts.groups.iter().find(is_it).map_or(0, |group| group.count)
    };
    let all = Tab {
        name: "all",
        link: wanted.link("state", ""),
        count: counts.map(|counts| counts.total),
        is_here: wanted.state.is_empty(),
    };
    let tab = |state: JobState| Tab {
        name: state.as_str(),
        link: wanted.link("state", state.as_str()),
        count: counts.map(|counts| of_state(counts, state.as_str())),
        is_here: wanted.state == state.as_str(),
    };
    [all].into_iter().chain(JobState::ALL.map(tab)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_what_is_not_changed_and_begins_anew() {
        let wanted = Wanted {
            kql: "kind: a&b".to_owned(),
            state: "failed".to_owned(),
            cursor: "abc".to_owned(),
            ..Wanted::default()
        };
        assert_eq!(wanted.link("state", ""), "/jobs?kql=kind%3A+a%26b");
        assert_eq!(wanted.link("cursor", "x"), "/jobs?kql=kind%3A+a%26b&state=failed&cursor=x");
        assert_eq!(Wanted::default().link("state", ""), "/jobs");
    }

    #[test]
    fn columns_are_the_usual_ones_unless_others_are_chosen() {
        let names = |columns: &str| -> Vec<&str> {
            let wanted = Wanted { columns: columns.to_owned(), ..Wanted::default() };
            COLUMNS.into_iter().filter(|column| wanted.has(*column)).map(|column| column.name).collect()
        };
        assert_eq!(names("worker,id"), ["id", "worker"]);
        assert_eq!(names("").len(), COLUMNS.iter().filter(|column| column.usual).count());
    }
}
