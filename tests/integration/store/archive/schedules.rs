//! Schedules on a search server: what their index takes, lists over pages, and a start on the indices of a version
//! without schedules.

use std::sync::Arc;

use leasehold::clock::Timestamp;
use leasehold::job::{Partition, PartitionSet, ScheduleId};
use leasehold::query::ScheduleFilter;
use leasehold::schedule::Schedule;
use leasehold::store::elasticsearch::ElasticsearchStore;
use leasehold::store::{
    DueSchedules, ListSchedules, RecordKind, Refresh, ScheduleResult, ScheduleWrite, Store, StoreError, StoredSchedule,
    Version, WriteError,
};
use reqwest::Method;
use serde_json::json;

use super::{Site, on_both};
use crate::store::elasticsearch::connect;
use crate::store::records;

on_both!(
    more_schedules_than_a_page_are_listed_and_due_once_each,
    writes_of_one_schedule_in_one_batch_are_decided_in_order,
    a_long_definition_comes_back_to_the_letter,
    schedules_are_found_by_their_fields_and_not_by_what_is_in_their_actions,
    a_schedule_that_cannot_be_read_hides_no_other,
    a_store_of_a_version_without_schedules_gets_their_index_at_the_start,
    a_start_does_not_make_a_lost_index_of_schedules_anew,
);

/// More than three pages, and than one bulk.
const MANY: usize = 3_050;
/// The time at which schedules of tests are due, in milliseconds: each one second after the one before it.
const DUE: i64 = 1_900_000_000_000;

pub(crate) fn schedule(id: &str, body: &str, due: i64) -> Arc<Schedule> {
    let due = Timestamp::from_millis(due);
    let text = format!(
        r#"{{
            "id": {id:?},
            "definition": {{
                "owner": "team-{owner}",
                "labels": {{ "app.kubernetes.io/name": "shop" }},
                "action": {{ "type": "http", "url": "https://example.com", "body": {body} }},
                "period": {{ "cron": "0 3 * * *", "time_zone": "Europe/Berlin" }},
                "margin_of_error_ms": 60000
            }},
            "revision": 1,
            "period_since": "2030-01-01T00:00:00.000Z",
            "created_at": "2030-01-01T00:00:00.000Z",
            "updated_at": "2030-01-02T00:00:00.000Z",
            "course": {{ "next_due_at": "{due}" }}
        }}"#,
        owner = due.as_millis() / 1_000 % 2,
    );
    Arc::new(serde_json::from_str(&text).expect("a schedule"))
}

pub(crate) fn creation(schedule: &Arc<Schedule>) -> ScheduleWrite {
    ScheduleWrite::Create { schedule: Arc::clone(schedule) }
}

fn replacement(schedule: &Arc<Schedule>, expected: Version) -> ScheduleWrite {
    ScheduleWrite::Replace { schedule: Arc::clone(schedule), expected }
}

/// The schedule with a definition of the next revision.
pub(crate) fn revised(schedule: &Schedule) -> Arc<Schedule> {
    Arc::new(Schedule { revision: schedule.revision + 1, ..schedule.clone() })
}

fn conflict(answer: &ScheduleResult) -> Option<&StoredSchedule> {
    match answer {
        Err(WriteError::Conflict(current)) => current.as_ref(),
        other => panic!("expected a conflict, got {other:?}"),
    }
}

impl Site {
    async fn create_schedules(&self, schedules: &[Arc<Schedule>]) -> Vec<Version> {
        let answers = self.store.write_schedules(schedules.iter().map(creation).collect()).await;
        answers.into_iter().map(|answer| answer.expect("a new schedule is created")).collect()
    }

    async fn settle(&self) {
        self.store.refresh(Refresh::Schedules).await.expect("refreshed");
    }

    async fn list(&self, after: Option<&str>, limit: usize) -> Vec<String> {
        let after = after.map(|after| ScheduleId::new(after).expect("an id"));
        ids(&self
            .store
            .list_schedules(&ListSchedules { filter: ScheduleFilter::default(), after, limit })
            .await
            .expect("searchable"))
    }

    async fn due(&self, partitions: PartitionSet, until: i64, limit: usize) -> Vec<StoredSchedule> {
        let due = DueSchedules { partitions, until: Timestamp::from_millis(until), limit };
        self.store.due_schedules(&due).await.expect("searchable")
    }

    /// How many documents a query in the server's own short language finds.
    async fn count_schedules(&self, query: &str) -> u64 {
        let found = self.ask(&format!("{{prefix}}schedules/_count?q={query}")).await;
        found["count"].as_u64().unwrap_or_else(|| panic!("{found}"))
    }
}

fn ids(found: &[StoredSchedule]) -> Vec<String> {
    found.iter().map(|found| found.schedule.id.to_string()).collect()
}

async fn more_schedules_than_a_page_are_listed_and_due_once_each(site: Site) {
    // The later an id, the earlier it is due.
    let due = |number: usize| DUE + 1_000 * (MANY - number) as i64;
    let schedules: Vec<Arc<Schedule>> =
        (0..MANY).map(|number| schedule(&format!("{number:05}"), "{}", due(number))).collect();
    let names: Vec<String> = schedules.iter().map(|schedule| schedule.id.to_string()).collect();
    let versions = site.create_schedules(&schedules).await;
    site.settle().await;

    assert_eq!(site.list(None, 2 * MANY).await, names);
    assert_eq!(site.list(None, 1_001).await, names[..1_001]);
    assert_eq!(site.list(Some("00999"), 7).await, names[1_000..1_007]);
    assert_eq!(site.list(Some("99999"), 7).await, [""; 0]);
    let owner = schedules[0].definition.owner.clone();
    let list =
        ListSchedules { filter: ScheduleFilter { owner, ..ScheduleFilter::default() }, after: None, limit: MANY };
    assert_eq!(site.store.list_schedules(&list).await.expect("searchable").len(), MANY / 2);

    let all: PartitionSet = Partition::all().collect();
    let reversed: Vec<String> = names.iter().rev().cloned().collect();
    assert_eq!(ids(&site.due(all, due(0), MANY).await), reversed);
    assert_eq!(ids(&site.due(all, due(MANY - 10), MANY).await), reversed[..10]);
    assert_eq!(ids(&site.due(all, due(0), 1_500).await), reversed[..1_500]);
    assert_eq!(site.due(all, due(0), 0).await, []);
    assert_eq!(site.due(PartitionSet::default(), due(0), MANY).await, []);
    let (odd, even): (Vec<Partition>, Vec<Partition>) = Partition::all().partition(|it| it.get() % 2 == 1);
    let (odd, even): (PartitionSet, PartitionSet) = (odd.into_iter().collect(), even.into_iter().collect());
    let (mine, others) = (site.due(odd, due(0), MANY).await, site.due(even, due(0), MANY).await);
    assert_eq!(mine.len() + others.len(), MANY);
    assert!(mine.iter().all(|found| odd.contains(found.schedule.partition())));

    let wanted: Vec<ScheduleId> = schedules.iter().map(|schedule| schedule.id.clone()).collect();
    let found = site.store.schedules(&wanted).await.expect("readable");
    for ((schedule, version), found) in schedules.iter().zip(versions).zip(found) {
        assert_eq!(found, Some(StoredSchedule { schedule: Arc::clone(schedule), version }));
    }
}

async fn writes_of_one_schedule_in_one_batch_are_decided_in_order(site: Site) {
    let (a, b) = (schedule("a", "1", DUE), schedule("b", "1", DUE));
    let version = site.create_schedules(&[Arc::clone(&b)]).await[0];
    let answers = site
        .store
        .write_schedules(vec![
            creation(&a),
            ScheduleWrite::Remove { id: b.id.clone(), expected: version },
            creation(&revised(&a)),
            creation(&revised(&b)),
            replacement(&b, version),
        ])
        .await;
    let [created, removed, late, anew, stale] = &answers[..] else { panic!("{answers:?}") };
    let created = *created.as_ref().expect("created");
    assert_eq!(*removed.as_ref().expect("removed"), version);
    assert_eq!(conflict(late), Some(&StoredSchedule { schedule: a, version: created }));
    let anew = *anew.as_ref().expect("created anew");
    assert!(anew > version, "{anew:?} was never there before");
    assert_eq!(conflict(stale), Some(&StoredSchedule { schedule: revised(&b), version: anew }));
}

async fn a_long_definition_comes_back_to_the_letter(site: Site) {
    let long = format!(r#"{{"a":1e999,"a":"{}","ü":"\u0000\ud83e\udd80"}}"#, "x".repeat(200 * 1024));
    let schedules: Vec<Arc<Schedule>> = (0..30).map(|number| schedule(&format!("{number}"), &long, DUE)).collect();
    let versions = site.create_schedules(&schedules).await;
    site.settle().await;
    let found = site.store.schedules(&[schedules[0].id.clone()]).await.expect("readable").remove(0);
    assert_eq!(found, Some(StoredSchedule { schedule: Arc::clone(&schedules[0]), version: versions[0] }));
    let listed =
        site.store.list_schedules(&ListSchedules { filter: ScheduleFilter::default(), after: None, limit: 100 }).await;
    assert!(listed.expect("searchable").iter().all(|found| schedules.contains(&found.schedule)));
}

async fn schedules_are_found_by_their_fields_and_not_by_what_is_in_their_actions(site: Site) {
    let one = schedule("one", r#"{"token":"hunter2"}"#, DUE);
    site.create_schedules(&[one]).await;
    site.settle().await;
    for query in [
        "owner:team-0",
        "labels.app.kubernetes.io%5C/name:shop",
        "action_type:http",
        "period.cron:%220%203%20*%20*%20*%22",
        "period.time_zone:Europe%5C/Berlin",
        "paused:false",
        "overlap:allow",
        "errors:0",
        "next_due_at:[2030-01-01%20TO%202031-01-01]",
    ] {
        assert_eq!(site.count_schedules(query).await, 1, "{query}");
    }
    for query in ["hunter2", "document:*hunter2*", "owner:team-1"] {
        let found = site.ask(&format!("{{prefix}}schedules/_count?q={query}")).await;
        assert!(found["count"].as_u64().is_none_or(|count| count == 0), "{query}: {found}");
    }
}

async fn a_schedule_that_cannot_be_read_hides_no_other(site: Site) {
    let schedules = ["a", "b", "c"].map(|id| schedule(id, "{}", DUE));
    site.create_schedules(&schedules).await;
    let mut document = site.ask("{prefix}schedules/_doc/b").await["_source"].clone();
    document["document"] = json!(r#"{"id":"b","definition":{"action":{"type":"teleport"}}}"#);
    site.do_at(Method::PUT, "{prefix}schedules/_doc/b", Some(document)).await;
    site.settle().await;

    assert_eq!(site.list(None, 2).await, ["a", "c"]);
    assert_eq!(ids(&site.due(Partition::all().collect(), DUE, 2).await), ["a", "c"]);
    assert_eq!(site.store.unreadable(), 1);
    // What is asked for by its id is not said to be missing.
    let unreadable = site.store.schedules(&[schedules[1].id.clone()]).await;
    assert!(matches!(unreadable, Err(StoreError::Unreadable { .. })), "{unreadable:?}");
    let refused = site.store.write_schedules(vec![creation(&schedules[1])]).await.remove(0);
    assert!(matches!(refused, Err(WriteError::Refused(StoreError::Unreadable { .. }))), "{refused:?}");
}

async fn a_store_of_a_version_without_schedules_gets_their_index_at_the_start(site: Site) {
    let key = records::key(RecordKind::Setting, "a");
    records::create(&site.mortal, &key, &records::number(1)).await.expect("created");
    site.do_at(Method::DELETE, "{prefix}schedules-000001", None).await;
    site.do_at(Method::DELETE, "_index_template/{prefix}schedules", None).await;

    let store = connect(site.options.clone()).await;
    let version = store.write_schedules(vec![creation(&schedule("a", "{}", DUE))]).await.remove(0);
    version.expect("a new schedule is created");
    assert!(store.record(&key).await.expect("readable").is_some());
}

async fn a_start_does_not_make_a_lost_index_of_schedules_anew(site: Site) {
    let key = records::key(RecordKind::Setting, "a");
    records::create(&site.mortal, &key, &records::number(1)).await.expect("created");
    site.do_at(Method::DELETE, "{prefix}schedules-000001", None).await;

    let refused = ElasticsearchStore::connect(site.options.clone()).await;
    let refusal = refused.expect_err("it is refused").to_string();
    assert!(refusal.contains("schedules` is not there") && refusal.contains("there are records"), "{refusal}");
    assert_eq!(site.ask("{prefix}schedules").await["status"], 404);
}
