//! Many schedules changed by one call.

use leasehold::wire::{BulkScheduleChange, BulkScheduleFilter};
use serde_json::json;

use super::super::server::{Server, problem, value};
use super::{ids, send, stored, text};
use leasehold::client::ScheduleQuery;

fn change(kql: &str) -> BulkScheduleChange {
    let filter = BulkScheduleFilter { kql: text(kql), ..BulkScheduleFilter::default() };
    BulkScheduleChange { filter, reason: text("a move"), dry_run: false, ..BulkScheduleChange::default() }
}

#[tokio::test]
async fn a_change_of_many_schedules_is_a_dry_run_unless_it_says_otherwise() {
    let server = Server::start().await;
    stored(&server, 90).await;
    let filter = json!({"filter": {"owner": "a", "kql": "labels.team: blue or id: s*"}});
    let seen = value(send(&server, reqwest::Method::POST, "/v1/schedules/pause", &filter).await).await;
    assert_eq!((&seen["dry_run"], &seen["matched"], &seen["changed"]), (&json!(true), &json!(30), &json!(0)));
    assert_eq!(seen["sample"].as_array().map(Vec::len), Some(20));
    assert_eq!((&seen["sample"][1]["id"], &seen["sample"][1]["paused"]), (&json!("s0003"), &json!(null)));

    let client = server.client();
    let done = client.pause_schedules(&change("owner: a and labels.team: blue")).await.expect("an answer");
    assert_eq!((done.matched, done.changed, done.skipped, done.failed_total), (15, 15, 0, 0));
    assert!(done.done && done.next_cursor.is_none() && done.sample.is_empty());
    let paused = client.schedule("s0006").await.expect("a schedule").paused.expect("it is paused");
    assert_eq!((paused.by.as_str(), paused.reason.as_str()), ("anonymous", "a move"));
    let query = ScheduleQuery { kql: text("paused: true"), ..ScheduleQuery::default() };
    assert_eq!(ids(&server, &query).await.len(), 15);

    let resume = BulkScheduleChange { reason: None, max_schedules: Some(10), ..change("paused: true") };
    let first = client.resume_schedules(&resume).await.expect("an answer");
    assert_eq!((first.changed, first.done), (10, false));
    let rest = BulkScheduleChange { cursor: first.next_cursor, ..resume };
    assert_eq!(client.resume_schedules(&rest).await.expect("an answer").changed, 5);
    let ids = ["s0001", "s0002", "s9999"].map(str::to_owned).to_vec();
    let filter = BulkScheduleFilter { ids, ..BulkScheduleFilter::default() };
    let remove = BulkScheduleChange { filter, dry_run: false, ..BulkScheduleChange::default() };
    let removed = client.remove_schedules(&remove).await.expect("an answer");
    assert_eq!((removed.matched, removed.changed), (2, 2));
    assert_eq!(client.schedule("s0001").await.expect_err("it is gone").code(), Some("schedule_not_found"));
}

#[tokio::test]
async fn a_change_of_many_schedules_that_cannot_be_meant_is_refused_and_changes_nothing() {
    let server = Server::start().await;
    stored(&server, 3).await;
    for (action, body, field) in [
        ("pause", json!({"filter": {}, "reason": "r", "dry_run": false}), "filter"),
        ("pause", json!({"filter": {"kql": "*"}}), "filter"),
        ("pause", json!({"filter": {"owner": "a"}, "dry_run": false}), "reason"),
        ("pause", json!({"filter": {"owner": "a", "all": true}}), "filter.all"),
        ("pause", json!({"filter": {"owners": ["a"]}}), "filter.owners"),
        ("pause", json!({"filter": {"kql": "onwer: a"}}), "filter.kql"),
        ("resume", json!({"filter": {"all": true}, "reason": "r"}), "reason"),
        ("resume", json!({"filter": {"all": true}, "max_schedules": 0}), "max_schedules"),
        ("remove", json!({"filter": {"all": true}, "cursor": "s0001"}), "cursor"),
        ("remove", json!({"filter": {"ids": [""]}}), "filter.ids[0]"),
        ("remove", json!({"dry_run": true}), "filter"),
    ] {
        let path = format!("/v1/schedules/{action}");
        let refused = problem(send(&server, reqwest::Method::POST, &path, &body).await).await;
        let fields: Vec<&str> = refused.errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!((refused.status, fields.as_slice()), (422, &[field][..]), "{action} {body}");
    }
    assert_eq!(ids(&server, &ScheduleQuery::default()).await.len(), 3);
    for word in ["pause", "resume", "remove"] {
        let action = json!({"type": "job", "job": {"queue": "q", "kind": "k"}});
        let named = json!({"id": word, "action": action, "period": {"cron": "@daily"}});
        let refused = problem(send(&server, reqwest::Method::POST, "/v1/schedules", &named).await).await;
        assert!(refused.errors[0].message.contains("is the name of a call"), "{word}: {refused:?}");
    }
}
