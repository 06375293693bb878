//! Schedules over HTTP: when they fire, how they are stored, listed and changed.

mod bulk;
mod stream;

use std::sync::Arc;

use leasehold::client::ScheduleQuery;
use leasehold::clock::{ManualClock, Timestamp};
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use leasehold::store::{ScheduleWrite, Store};
use leasehold::wire::{ExcludedDates, Period, PreviewSchedule};
use serde_json::{Value, json};

use super::server::{Server, Setup, problem, value};

fn time(text: &str) -> Timestamp {
    Timestamp::parse_rfc3339(text).expect("a time")
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

async fn preview(server: &Server, request: Value) -> reqwest::Response {
    reqwest::Client::new().post(server.url("/v1/schedules/preview")).json(&request).send().await.expect("an answer")
}

#[tokio::test]
async fn a_preview_has_the_fire_times_after_now_in_the_time_zone_without_excluded_days() {
    let clock = Arc::new(ManualClock::at(time("2026-12-22T12:00:00Z")));
    let server = Server::start_with(Setup { clock, ..Setup::default() }).await;
    let nightly = PreviewSchedule {
        period: Period { cron: text("30 2 * * *"), time_zone: text("Europe/Berlin"), ..Period::default() },
        exclude: vec![
            ExcludedDates { date: text("2026-12-24"), ..ExcludedDates::default() },
            ExcludedDates { from: text("2026-12-26"), to: text("2027-01-01"), ..ExcludedDates::default() },
        ],
        n: Some(3),
        from: None,
    };
    let found = server.client().preview_schedule(&nightly).await.expect("fire times").fire_times;
    assert_eq!(found, ["2026-12-23T01:30:00Z", "2026-12-25T01:30:00Z", "2027-01-02T01:30:00Z"].map(time));

    let even = json!({"period": {"every_ms": 1_500, "anchor": "2026-01-01T00:00:00.250Z"}});
    let found = value(preview(&server, even).await).await;
    let found = found["fire_times"].as_array().expect("a list");
    assert_eq!(found[..2], ["2026-12-22T12:00:00.250Z", "2026-12-22T12:00:01.750Z"]);
    assert_eq!(found.len(), 10);

    let past = json!({"period": {"at": "2026-12-22T12:00:00Z"}});
    assert_eq!(value(preview(&server, past).await).await, json!({"fire_times": []}));
    let earlier = json!({"period": {"at": "2026-12-22T12:00:00Z"}, "from": "2026-12-22T13:00:00+02:00"});
    assert_eq!(value(preview(&server, earlier).await).await, json!({"fire_times": ["2026-12-22T12:00:00.000Z"]}));
}

#[tokio::test]
async fn a_period_that_cannot_be_meant_is_refused_with_its_field() {
    let server = Server::start().await;
    for (period, field, said) in [
        (json!({"cron": "0 0 31 2 *"}), "period.cron", "never fires"),
        (json!({"cron": "0 0 MON * *"}), "period.cron", "day of the month `MON`"),
        (json!({"cron": "@daily", "time_zone": "Europe/Berln"}), "period.time_zone", "did you mean `Europe/Berlin`?"),
        (json!({"every_ms": 1}), "period.every_ms", "must be from 1000"),
        (json!({"every_ms": 1_000, "anchor": "noon"}), "period.anchor", "RFC 3339"),
        (json!({"cron": "@daily", "anchor": "2026-01-01T00:00:00Z"}), "period.anchor", "`every_ms`"),
        (json!({"at": "tomorrow"}), "period.at", "RFC 3339"),
        (json!({"cron": "@daily", "every_ms": 1_000}), "period", "exactly one"),
        (json!({}), "period", "exactly one"),
        (json!({"cron": "@daily", "zone": "UTC"}), "period.zone", "unknown field"),
    ] {
        let refused = problem(preview(&server, json!({"period": period})).await).await;
        assert_eq!((refused.status, refused.code.as_str()), (422, "invalid_request"), "{period}");
        let [error] = &refused.errors[..] else { panic!("{period}: {:?}", refused.errors) };
        assert_eq!(error.field, field, "{period}");
        assert!(error.message.contains(said), "{period}: {}", error.message);
    }
}

#[tokio::test]
async fn every_wrong_field_of_a_preview_is_named() {
    let server = Server::start().await;
    let dates =
        json!([{"date": "24 December"}, {"from": "2026-12-24"}, {"from": "2026-12-24", "to": "2026-12-23"}, {}]);
    let wrong = json!({"period": {"cron": "@daily"}, "exclude": dates, "from": "now", "n": 1_001});
    let refused = problem(preview(&server, wrong).await).await;
    let fields: Vec<&str> = refused.errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["exclude[0].date", "exclude[1]", "exclude[2].to", "exclude[3]", "from", "n"]);

    let many = vec![json!({"date": "2026-12-24"}); 1_001];
    let refused = problem(preview(&server, json!({"period": {"cron": "@daily"}, "exclude": many})).await).await;
    assert_eq!(refused.errors[0].field, "exclude");
}

fn call_to(url: &str) -> Value {
    json!({"type": "http", "url": url, "headers": {"authorization": "Bearer secret"}, "body": {"key": "secret"}})
}

async fn send(server: &Server, method: reqwest::Method, path: &str, body: &Value) -> reqwest::Response {
    reqwest::Client::new().request(method, server.url(path)).json(body).send().await.expect("an answer")
}

#[tokio::test]
async fn a_schedule_is_created_once_changed_under_its_tag_and_shows_no_secrets() {
    let server = Server::start().await;
    let schedule = json!({"id": "a/b", "action": call_to("http://127.0.0.1:1/"), "period": {"cron": "@daily"}});
    let created = send(&server, reqwest::Method::POST, "/v1/schedules", &schedule).await;
    assert_eq!(created.status(), 201);
    let tag = created.headers()["etag"].to_str().expect("text").to_owned();
    let shown = value(created).await;
    assert_eq!(shown["action"]["headers"], json!({"authorization": "***"}));
    assert_eq!(shown["action"]["body"], "***");
    assert_eq!(send(&server, reqwest::Method::POST, "/v1/schedules", &schedule).await.status(), 200);
    let mut other = schedule.clone();
    other["period"] = json!({"cron": "@hourly"});
    let refused = send(&server, reqwest::Method::POST, "/v1/schedules", &other).await;
    assert_eq!(problem(refused).await.code, "schedule_differs");

    let put = |tag: String| {
        let call = reqwest::Client::new().put(server.url("/v1/schedules/a%2Fb")).header("if-match", tag);
        let call = call.json(&other).send();
        async { call.await.expect("an answer") }
    };
    let changed = put(tag.clone()).await;
    assert_eq!(changed.status(), 200);
    assert_ne!(changed.headers()["etag"].to_str().expect("text"), tag);
    assert_eq!(problem(put(tag).await).await.code, "version_differs");

    let get = async |query: &str| {
        let url = server.url(&format!("/v1/schedules/a%2Fb{query}"));
        value(reqwest::get(url).await.expect("an answer")).await
    };
    assert_eq!(get("").await["action"]["headers"]["authorization"], "***");
    assert_eq!(get("?reveal=true").await["action"]["headers"]["authorization"], "Bearer secret");
    let next = get("/next?n=2").await;
    assert_eq!(next["fire_times"].as_array().map(Vec::len), Some(2));
    assert_eq!(get("/triggers").await, json!({"items": [], "next_cursor": null}));
    server.client().remove_schedule("a/b").await.expect("removed");
    let gone = server.client().schedule("a/b").await.expect_err("it is gone");
    assert!(gone.to_string().contains("no schedule a/b"), "{gone}");
}

#[tokio::test]
async fn many_schedules_are_stored_with_one_call_and_listed_by_owner_and_page() {
    let server = Server::start().await;
    let line = |number: usize| {
        let owner = if number.is_multiple_of(3) { "team-a" } else { "team-b" };
        let job = json!({"type": "job", "job": {"queue": "q", "kind": "k"}});
        json!({"id": format!("s{number:03}"), "owner": owner, "action": job, "period": {"every_ms": 3_600_000}})
    };
    let mut lines: Vec<String> = (0..300).map(|number| line(number).to_string()).collect();
    lines.push(json!({"id": "x", "action": {"type": "job"}, "period": {"every_ms": 1}}).to_string());
    lines.push("no json".to_owned());
    let stored = server.client().put_schedules(lines.join("\n")).await.expect("an answer");
    assert_eq!(stored.len(), 302);
    assert!(stored[..300].iter().all(|item| item.status == 201), "{stored:?}");
    let fields = stored[300].error.as_ref().and_then(|error| error.field.clone());
    assert_eq!((stored[300].status, fields.as_deref()), (422, Some("action.job")));
    assert_eq!(stored[301].status, 400);
    let again = server.client().put_schedules(lines[..300].join("\n")).await.expect("an answer");
    assert!(again.iter().all(|item| item.status == 200), "{again:?}");

    let mut query = ScheduleQuery { owner: Some("team-a".to_owned()), limit: Some(40), ..ScheduleQuery::default() };
    let mut ids = Vec::new();
    loop {
        let page = server.client().schedules(&query).await.expect("a page");
        ids.extend(page.items.into_iter().map(|schedule| schedule.id));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    assert_eq!(ids, (0..300).step_by(3).map(|number| format!("s{number:03}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_schedule_that_cannot_be_meant_is_refused_with_its_field() {
    let server = Server::start().await;
    let job = json!({"type": "job", "job": {"queue": "q", "kind": "k"}});
    for (action, period, more, field) in [
        (&job, json!({"cron": "0 0 31 2 *"}), json!({}), "period.cron"),
        (&job, json!({"at": "2020-01-01T00:00:00Z"}), json!({}), "period"),
        (&job, json!({"every_ms": 1}), json!({}), "period.every_ms"),
        (&job, json!({"cron": "@daily", "time_zone": "Nowhere"}), json!({}), "period.time_zone"),
        (&job, json!({"cron": "@daily"}), json!({"margin_of_error_ms": 1}), "margin_of_error_ms"),
        (&job, json!({"cron": "@daily"}), json!({"id": "bulk"}), "id"),
        (&job, json!({"cron": "@daily"}), json!({"overlap": "never"}), "overlap"),
        (&json!({"type": "http"}), json!({"cron": "@daily"}), json!({}), "action.url"),
        (&json!({"type": "http", "url": "ftp://example.org"}), json!({"cron": "@daily"}), json!({}), "action.url"),
        (
            &json!({"type": "http", "url": "http://169.254.169.254/"}),
            json!({"cron": "@daily"}),
            json!({}),
            "action.url",
        ),
        (
            &json!({"type": "http", "url": "http://127.0.0.1/", "headers": {"a": "***"}}),
            json!({"cron": "@daily"}),
            json!({}),
            "action.headers.a",
        ),
        (
            &json!({"type": "http", "url": "http://127.0.0.1/", "headers": {"a": "(hidden)"}}),
            json!({"cron": "@daily"}),
            json!({}),
            "action.headers.a",
        ),
        (
            &json!({"type": "http", "url": "http://127.0.0.1/", "body": "(hidden)"}),
            json!({"cron": "@daily"}),
            json!({}),
            "action.body",
        ),
        (
            &json!({"type": "http", "url": "http://127.0.0.1/", "headers": {"host": "x"}}),
            json!({"cron": "@daily"}),
            json!({}),
            "action.headers.host",
        ),
        (&json!({"type": "job", "job": {"kind": "k"}}), json!({"cron": "@daily"}), json!({}), "action.job"),
        (
            &json!({"type": "job", "job": {"queue": "", "kind": "k"}}),
            json!({"cron": "@daily"}),
            json!({}),
            "action.job.queue",
        ),
        (
            &json!({"type": "http", "url": "https://192.0.2.1/", "body": "x".repeat(2 << 20)}),
            json!({"cron": "@daily"}),
            json!({}),
            "action.body",
        ),
    ] {
        let mut schedule = json!({"action": action, "period": period});
        schedule.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
        let refused = problem(send(&server, reqwest::Method::POST, "/v1/schedules", &schedule).await).await;
        assert!([413, 422].contains(&refused.status), "{refused:?}");
        let fields: Vec<&str> = refused.errors.iter().map(|error| error.field.as_str()).collect();
        assert!(fields.contains(&field), "{field}: {fields:?}");
    }
}

#[tokio::test]
async fn a_backfill_is_started_once_and_refused_with_the_field_that_cannot_be_meant() {
    let clock = Arc::new(ManualClock::at(time("2030-01-31T12:00:00Z")));
    let server = Server::start_with(Setup { clock, ..Setup::default() }).await;
    let schedule = json!({
        "id": "a/b", "action": {"type": "job", "job": {"queue": "q", "kind": "k"}}, "period": {"cron": "0 * * * *"},
    });
    assert_eq!(send(&server, reqwest::Method::POST, "/v1/schedules", &schedule).await.status(), 201);
    let backfill = async |body: Value, key: Option<&'static str>| {
        let call = reqwest::Client::new().post(server.url("/v1/schedules/a%2Fb/backfill")).json(&body);
        let call = key.into_iter().fold(call, |call, key| call.header("idempotency-key", key));
        call.send().await.expect("an answer")
    };
    let january = json!({"from": "2030-01-01T00:00:00Z", "to": "2030-01-31T00:00:00+01:00", "max_concurrent": 100});
    let started = backfill(january.clone(), None).await;
    assert_eq!(started.status(), 202);
    let started = value(started).await;
    assert_eq!(started["due"], 30 * 24);
    let again = backfill(january.clone(), None).await;
    assert_eq!((again.status().as_u16(), value(again).await), (200, started.clone()));
    let job = server.client().job(started["backfill_id"].as_str().expect("an id")).await.expect("it is a job");
    assert_eq!((&*job.queue, &*job.kind), ("leasehold.triggers", "leasehold.backfill"));
    assert_eq!(job.labels["schedule_id"], "a/b");

    let keyed = backfill(january.clone(), Some("k")).await;
    assert_eq!(keyed.status(), 202);
    let keyed = value(keyed).await;
    assert_ne!(keyed["backfill_id"], started["backfill_id"]);
    assert_eq!(value(backfill(january.clone(), Some("k")).await).await, keyed);
    let other = json!({"from": "2030-01-01T00:00:00Z", "to": "2030-01-30T00:00:00Z"});
    assert_eq!(problem(backfill(other, Some("k")).await).await.code, "submission_differs");

    for (wrong, field, said) in [
        (json!({"from": "2030-01-01T00:00:00Z", "to": "2030-01-31T12:00:00.001Z"}), "to", "in the future"),
        (json!({"from": "2030-01-01T00:00:00Z", "to": "2030-01-01T00:00:00Z"}), "to", "not after"),
        (json!({"from": "2010-01-01T00:00:00Z", "to": "2030-01-01T00:00:00Z"}), "to", "more than 100000"),
        (json!({"from": "1910-01-01T00:00:00Z", "to": "2030-01-01T00:00:00Z"}), "from", "a hundred years"),
        (json!({"from": "2030-01-01T00:00:01Z", "to": "2030-01-01T00:59:59Z"}), "from", "not followed"),
        (json!({"from": "yesterday", "to": "2030-01-01T00:00:00Z"}), "from", "RFC 3339"),
        (
            json!({"from": "2030-01-01T00:00:00Z", "to": "2030-01-02T00:00:00Z", "max_concurrent": 0}),
            "max_concurrent",
            "from 1",
        ),
        (
            json!({"from": "2030-01-01T00:00:00Z", "to": "2030-01-02T00:00:00Z", "max_concurrent": 101}),
            "max_concurrent",
            "to 100",
        ),
        (json!({"from": "2030-01-01T00:00:00Z"}), "to", "missing"),
    ] {
        let refused = problem(backfill(wrong.clone(), None).await).await;
        assert_eq!((refused.status, refused.code.as_str()), (422, "invalid_request"), "{wrong}");
        let [error] = &refused.errors[..] else { panic!("{wrong}: {:?}", refused.errors) };
        assert!(error.field == field && error.message.contains(said), "{wrong}: {error:?}");
    }
    let nowhere = send(&server, reqwest::Method::POST, "/v1/schedules/none/backfill", &january).await;
    assert_eq!(problem(nowhere).await.code, "schedule_not_found");
}

/// A line of a bulk call: a schedule that submits a job every hour.
pub(super) fn line(id: &str, owner: &str, labels: &Value) -> String {
    let action = json!({"type": "job", "job": {"queue": "q", "kind": "k"}});
    let period = json!({"every_ms": 3_600_000});
    json!({"id": id, "owner": owner, "labels": labels, "action": action, "period": period}).to_string()
}

/// Stores so many schedules: every third of the owner `a`, the others of `b`, and every second with a label.
async fn stored(server: &Server, count: usize) {
    let one = |number: usize| {
        let labels = if number.is_multiple_of(2) { json!({"team": "blue"}) } else { json!({}) };
        line(&format!("s{number:04}"), if number.is_multiple_of(3) { "a" } else { "b" }, &labels)
    };
    let lines: Vec<String> = (0..count).map(one).collect();
    let items = server.client().put_schedules(lines.join("\n")).await.expect("an answer");
    assert!(items.iter().all(|item| item.status == 201), "{items:?}");
}

fn asked(kql: &str) -> ScheduleQuery {
    ScheduleQuery { kql: text(kql), ..ScheduleQuery::default() }
}

async fn ids(server: &Server, query: &ScheduleQuery) -> Vec<String> {
    let page = server.client().schedules(query).await.expect("a page");
    page.items.into_iter().map(|schedule| schedule.id).collect()
}

#[tokio::test]
async fn a_query_lists_the_schedules_that_match_page_by_page() {
    let server = Server::start().await;
    stored(&server, 60).await;
    server.client().pause_schedule("s0006", "a test").await.expect("paused");
    assert_eq!(ids(&server, &asked("paused: true and labels.team: blue")).await, ["s0006"]);
    assert_eq!(ids(&server, &asked("id: (s0001 or s0002) and owner: b")).await, ["s0001", "s0002"]);
    let both = ScheduleQuery { owner: text("a"), ..asked("owner: b") };
    assert_eq!(ids(&server, &both).await, [""; 0]);

    let mut query = ScheduleQuery { limit: Some(4), ..asked("owner: a and labels.team: blue") };
    let mut found = Vec::new();
    loop {
        let page = server.client().schedules(&query).await.expect("a page");
        assert!(page.items.len() <= 4);
        found.extend(page.items.into_iter().map(|schedule| schedule.id));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, (0..60).step_by(6).map(|number| format!("s{number:04}")).collect::<Vec<_>>());
    let zoned = ScheduleQuery { time_zone: text("Europe/Berlin"), ..asked("created_at > now/d-1d") };
    assert_eq!(ids(&server, &zoned).await.len(), 60);
}

#[tokio::test]
async fn a_mistake_in_a_query_for_schedules_is_shown_with_its_place_and_the_closest_field() {
    let server = Server::start().await;
    for (query, field, said) in [
        ("kql=onwer%3A%20a", "kql", "is `owner` meant?"),
        ("kql=owner%3A%20(a", "kql", "owner: (a\n"),
        ("kql=state%20%3E%201%20and%20errors%3A%20x", "kql", "`errors` is a number"),
        ("kql=a&time_zone=Mars", "time_zone", "Europe/Berlin"),
        ("sort=id", "sort", "is unknown"),
    ] {
        let refused =
            problem(reqwest::get(server.url(&format!("/v1/schedules?{query}"))).await.expect("an answer")).await;
        assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, field), "{query}");
        assert!(refused.errors[0].message.contains(said), "{query}: {}", refused.errors[0].message);
    }
}

#[tokio::test]
async fn a_schedule_that_cannot_be_read_any_more_is_not_resumed() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = EmbeddedStore::open(directory.path(), &EmbeddedOptions::default()).expect("the store opens");
    let store: Arc<dyn Store> = Arc::new(store);
    let at = "2030-01-01T00:00:00Z";
    let schedule = json!({
        "id": "lost-zone", "revision": 1, "period_since": at, "created_at": at, "updated_at": at,
        "paused": {"at": at, "by": "test"},
        "definition": {
            "action": call_to("http://127.0.0.1:1/"), "period": {"cron": "@hourly", "time_zone": "Mars/Olympus"},
            "margin_of_error_ms": 60_000,
        },
    });
    let schedule = Arc::new(serde_json::from_value(schedule).expect("a schedule"));
    assert!(store.write_schedules(vec![ScheduleWrite::Create { schedule }]).await.iter().all(Result::is_ok));
    let server = Server::start_with(Setup { store: Some(store), ..Setup::default() }).await;
    let refused = send(&server, reqwest::Method::POST, "/v1/schedules/lost-zone/resume", &Value::Null).await;
    let refused = problem(refused).await;
    assert_eq!((refused.status, refused.code.as_str()), (409, "schedule_unreadable"));
    assert!(refused.detail.contains("period.time_zone"), "{}", refused.detail);
    let shown = reqwest::get(server.url("/v1/schedules/lost-zone")).await.expect("an answer");
    assert!(value(shown).await["paused"].is_object());
}
