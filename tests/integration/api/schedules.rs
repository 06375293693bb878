//! When schedules fire.

use std::sync::Arc;

use leasehold::clock::{ManualClock, Timestamp};
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
