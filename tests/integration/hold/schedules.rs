//! `kill -9` of the server at random moments while schedules are due.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use leasehold::client::{Client, DueTimeQuery, JobQuery};
use leasehold::clock::{Clock as _, SystemClock, Timestamp};
use leasehold::scheduler::{BackfillReport, DueTime, Outcome};
use leasehold::wire::BackfillSchedule;
use serde_json::json;

use super::site::{Site, Trouble};
use crate::machine;
use crate::notify::receiver::Receiver;

const KILLS: usize = 8;
const SCHEDULES: usize = 30;

/// A server lives this long at least and at most before it is killed.
const LIFE_MS: std::ops::Range<u64> = 200..1_200;

/// How long what was due until the last kill may take to be called.
const PATIENCE: Duration = Duration::from_secs(300);

const OPTIONS: [&str; 1] = ["--allow-private-targets"];

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_server_calls_at_every_due_time_over_kills_and_has_one_trigger_for_each() {
    let _share = machine::with_others();
    every_due_time_is_called_over_kills(Site::embedded(&OPTIONS).await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: most of a minute of three members"]
async fn members_call_at_every_due_time_over_kills_and_have_one_trigger_for_each() {
    let _share = machine::with_others();
    every_due_time_is_called_over_kills(Site::members(&OPTIONS).await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: the embedded server runs, and `simulation::schedules` over a store that several share"]
async fn a_server_on_elasticsearch_calls_at_every_due_time_over_kills_and_has_one_trigger_for_each() {
    let _share = machine::with_others();
    every_due_time_is_called_over_kills(Site::elasticsearch(&OPTIONS).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_server_backfills_each_due_time_over_kills() {
    let _share = machine::with_others();
    a_backfill_is_completed_over_kills(Site::embedded(&OPTIONS).await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: most of a minute of three members"]
async fn members_backfill_each_due_time_over_kills() {
    let _share = machine::with_others();
    a_backfill_is_completed_over_kills(Site::members(&OPTIONS).await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: half a minute of a server on Elasticsearch"]
async fn a_server_on_elasticsearch_backfills_each_due_time_over_kills() {
    let _share = machine::with_others();
    a_backfill_is_completed_over_kills(Site::elasticsearch(&OPTIONS).await).await;
}

async fn a_backfill_is_completed_over_kills(mut site: Site) {
    let (client, receiver) = (Client::with_servers(&site.urls(), None).expect("a client"), Receiver::listening().await);
    let schedule = json!({
        "id": "s", "action": {"type": "http", "url": receiver.url()}, "period": {"cron": "0 * * * *"},
        "margin_of_error_ms": 3_600_000, "paused": true,
    });
    client.put_schedules(schedule.to_string()).await.expect("stored");
    let backfill = BackfillSchedule {
        from: "2020-01-01T00:00:00Z".to_owned(),
        to: "2020-01-31T23:59:59Z".to_owned(),
        max_concurrent: Some(5),
    };
    let started = client.backfill_schedule("s", &backfill).await.expect("started");
    assert_eq!(started.due, 31 * 24);
    for _ in 0..KILLS / 2 {
        // Not a wait for something: the kill's moment is what is left to chance.
        tokio::time::sleep(Duration::from_millis(rand::random_range(LIFE_MS) / 4)).await;
        let victim = site.first().await;
        site.make(Trouble::Kill, victim, Duration::ZERO).await;
    }
    let deadline = Instant::now() + PATIENCE;
    let job = loop {
        let job = client.wait(started.backfill_id.as_str(), Duration::from_secs(10)).await.expect("it is there");
        if job.state.is_final() {
            break job;
        }
        assert!(Instant::now() < deadline, "{job:#?}");
    };
    let result = job.result.as_json().expect("a result").as_str();
    let report: BackfillReport = serde_json::from_str(result).expect("a report");
    assert_eq!((report.due, report.performed, report.already, report.failed), (744, 744, 0, 0), "{report:?}");
    let called: BTreeSet<String> = receiver
        .came()
        .iter()
        .map(|call| call.headers["leasehold-due-at"].to_str().expect("text").to_owned())
        .collect();
    assert_eq!(called.len(), 744, "each due time was called");
    let (from, to) = (Some(backfill.from), Some(backfill.to));
    let query = DueTimeQuery { from, to, limit: Some(1_000), ..DueTimeQuery::default() };
    let listed = client.triggers_of_schedule("s", &query).await.expect("due times").items;
    let fired = listed.iter().filter(|due| due.backfilled && due.outcome == Outcome::Fired);
    assert_eq!(fired.count(), 744);
    let more: Vec<_> = triggers(&client).await.into_iter().filter(|(_, count)| *count != 1).collect();
    assert!(more.is_empty(), "each due time has one trigger: {more:?}");
    assert!(site.servers.into_iter().all(|server| server.terminate() == Some(0)));
}

async fn every_due_time_is_called_over_kills(mut site: Site) {
    let (client, receiver) = (Client::with_servers(&site.urls(), None).expect("a client"), Receiver::listening().await);
    let lines: Vec<String> = (0..SCHEDULES)
        .map(|number| {
            json!({
                "id": format!("s{number}"), "action": {"type": "http", "url": receiver.url()},
                "period": {"every_ms": 1_000}, "spread_ms": 1_000, "margin_of_error_ms": 3_600_000,
            })
        })
        .map(|schedule| schedule.to_string())
        .collect();
    let stored = client.put_schedules(lines.join("\n")).await.expect("stored");
    assert!(stored.iter().all(|item| item.status == 201), "{stored:?}");
    for _ in 0..KILLS {
        let life = Duration::from_millis(rand::random_range(LIFE_MS));
        // Not a wait for something: the kill's moment is what is left to chance.
        tokio::time::sleep(life).await;
        let victim = site.first().await;
        site.make(Trouble::Kill, victim, Duration::ZERO).await;
    }

    let until = SystemClock::default().now();
    let mut due = BTreeSet::new();
    for number in 0..SCHEDULES {
        let id = format!("s{number}");
        let all = ended(&client, &id, until).await;
        assert!(all.len() >= KILLS / 2, "{id} was due again and again: {all:?}");
        assert!(all.windows(2).all(|pair| pair[1].due_at.since(pair[0].due_at) == Duration::from_secs(1)));
        due.extend(all.into_iter().map(|due| (id.clone(), due.due_at.to_rfc3339())));
    }
    let header =
        |call: &crate::notify::receiver::Delivered, name: &str| call.headers[name].to_str().expect("text").to_owned();
    let called: BTreeSet<(String, String)> = receiver
        .came()
        .iter()
        .map(|call| (header(call, "leasehold-schedule-id"), header(call, "leasehold-due-at")))
        .collect();
    let missing: Vec<_> = due.difference(&called).collect();
    assert!(missing.is_empty(), "not called: {missing:?}");
    for ((schedule, due_at), count) in triggers(&client).await {
        assert_eq!(count, 1, "{schedule} at {due_at} has more than one trigger");
    }
    assert!(site.servers.into_iter().all(|server| server.terminate() == Some(0)));
}

/// The due times of a schedule until a moment, once what has become of each is decided.
async fn ended(client: &Client, id: &str, until: Timestamp) -> Vec<DueTime> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let query = DueTimeQuery { to: Some(until.to_rfc3339()), limit: Some(1_000), ..DueTimeQuery::default() };
        let found = client.triggers_of_schedule(id, &query).await.expect("due times").items;
        if found.iter().all(|due| matches!(due.outcome, Outcome::Fired | Outcome::Late)) {
            return found;
        }
        assert!(Instant::now() < deadline, "{id}: {found:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// How many triggers there are by schedule and due time.
async fn triggers(client: &Client) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    let queues = vec!["leasehold.triggers".to_owned()];
    let mut query = JobQuery { queues, limit: Some(1_000), ..JobQuery::default() };
    loop {
        let page = client.jobs(&query).await.expect("a page");
        for job in page.items {
            // A backfill is a job in this queue as well, of no due time.
            let Some((schedule, due_at)) = job.schedule_id.zip(job.due_at) else { continue };
            *counts.entry((schedule.into_owned(), due_at.to_rfc3339())).or_insert(0) += 1;
        }
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return counts;
        }
    }
}
