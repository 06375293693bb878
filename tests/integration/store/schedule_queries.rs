//! Lists and counts of schedules that a query selects.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold::query::kql::{Expression, Zone};
use leasehold::query::table::Table;
use leasehold::query::{Query, ScheduleFilter};
use leasehold::schedule::{Definition, Schedule};
use leasehold::store::{ListSchedules, ScheduleWrite};

use super::Engine;
use super::sample::{at, owner};
use super::schedules::{created, due, id, paused};

/// How many schedules there are.
const SCHEDULES: usize = 60;

/// Schedules of two owners and of none, every fourth of them paused, and with labels.
fn schedules() -> Vec<Schedule> {
    let schedule = |number: usize| {
        let schedule = due(&format!("{number:02}"), number as i64);
        let by = ["team-a", "team-b"].get(number % 3).map(|by| owner(by));
        let labels = BTreeMap::from([("team".to_owned(), ["blue", "red"][number % 2].to_owned())]);
        let definition = Definition { owner: by, labels, ..(*schedule.definition).clone() };
        let schedule = Schedule { definition: Arc::new(definition), ..schedule };
        if number.is_multiple_of(4) { paused(schedule) } else { schedule }
    };
    (0..SCHEDULES).map(schedule).collect()
}

pub(super) fn filter(owned_by: Option<&str>, query: &str) -> ScheduleFilter {
    let expression = Expression::parse_about(Table::Schedules, query, Zone::default()).expect("a query");
    let query = Query { expression: Arc::new(expression), now: at(30) };
    ScheduleFilter { owner: owned_by.map(owner), query: Some(query), ..ScheduleFilter::default() }
}

async fn found(engine: &impl Engine, filter: &ScheduleFilter, after: Option<&str>, limit: usize) -> Vec<String> {
    let list = ListSchedules { filter: filter.clone(), after: after.map(id), limit };
    let found = engine.store().list_schedules(&list).await.expect("the store can be searched");
    found.into_iter().map(|stored| stored.schedule.id.to_string()).collect()
}

pub(crate) async fn schedules_are_listed_and_counted_by_a_query(engine: &impl Engine) {
    let schedules = schedules();
    created(&**engine.store(), &schedules).await;
    engine.settle().await;
    for (owned_by, query) in [
        (None, ""),
        (None, "paused: true"),
        (None, "labels.team: blue and not paused: true"),
        (None, "owner: team-a"),
        (None, "owner: (team-a or team-b) and labels.team: red"),
        (None, "not owner: *"),
        (None, "next_due_at < now"),
        (None, "id: (07 or 09 or 08 or 99)"),
        (None, "action.job.queue: default and id: 1*"),
        (None, "nowhere: x"),
        (Some("team-b"), "paused: true or labels.team: blue"),
        (Some("team-b"), "owner: team-a"),
        (Some("team-a"), "owner: team-a"),
        (Some("team-a"), "id: (00 or 01)"),
        (Some("nobody"), ""),
    ] {
        let filter = filter(owned_by, query);
        let expected: Vec<String> = schedules
            .iter()
            .filter(|schedule| filter.matches(schedule))
            .map(|schedule| schedule.id.to_string())
            .collect();
        assert_eq!(found(engine, &filter, None, SCHEDULES).await, expected, "{owned_by:?} {query}");
        let count = engine.store().count_schedules(&filter).await.expect("the store can be searched");
        assert_eq!(count, expected.len() as u64, "{owned_by:?} {query}");

        let mut by_page = Vec::new();
        while let page = found(engine, &filter, by_page.last().map(String::as_str), 7).await
            && !page.is_empty()
        {
            by_page.extend(page);
        }
        assert_eq!(by_page, expected, "{owned_by:?} {query}");
    }
    let all = ScheduleFilter::default();
    assert_eq!(engine.store().count_schedules(&all).await.expect("searchable"), SCHEDULES as u64);
    let running = ScheduleFilter { paused: Some(false), ..filter(Some("team-a"), "labels.team: blue") };
    assert_eq!(found(engine, &running, None, 100).await, ["06", "18", "30", "42", "54"]);
    assert_eq!(engine.store().count_schedules(&running).await.expect("searchable"), 5);
}

pub(crate) async fn a_query_finds_schedules_as_they_were_written_last(engine: &impl Engine) {
    let stored = created(&**engine.store(), &schedules()).await;
    let pause = |stored: &leasehold::store::StoredSchedule| ScheduleWrite::Replace {
        schedule: Arc::new(paused((*stored.schedule).clone())),
        expected: stored.version,
    };
    let writes = vec![
        pause(&stored[1]),
        ScheduleWrite::Remove { id: id("08"), expected: stored[8].version },
        pause(&stored[10]),
    ];
    for answer in engine.store().write_schedules(writes).await {
        answer.expect("the version is current");
    }
    engine.settle().await;

    assert_eq!(found(engine, &filter(None, "paused: true"), None, 5).await, ["00", "01", "04", "10", "12"]);
    assert_eq!(found(engine, &filter(None, "id: (08 or 10)"), None, 5).await, ["10"]);
    assert_eq!(found(engine, &filter(Some("team-b"), "paused: true"), None, 3).await, ["01", "04", "10"]);
}

pub(crate) async fn a_closed_store_refuses_queries_for_schedules(engine: &impl Engine) {
    engine.store().close().await;
    for filter in [filter(None, "paused: true"), filter(None, "owner: a"), filter(None, "id: a")] {
        assert!(engine.store().count_schedules(&filter).await.is_err());
        let list = ListSchedules { filter, after: None, limit: 10 };
        assert!(engine.store().list_schedules(&list).await.is_err());
    }
}
