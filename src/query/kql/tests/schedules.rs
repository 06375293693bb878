//! Queries about schedules.

use crate::clock::Timestamp;
use crate::query::kql::{Expression, Span, Zone};
use crate::query::table::Table;
use crate::schedule::Schedule;

fn now() -> Timestamp {
    Timestamp::parse_rfc3339("2026-11-21T12:00:00Z").expect("a time")
}

fn schedule(more: &str) -> Schedule {
    let text = format!(
        r#"{{
            "id": "nightly/report",
            "definition": {{
                "owner": "team a",
                "labels": {{ "team": "blue", "a.b": "dotted" }},
                "action": {{ "type": "job", "job": {{ "queue": "reports", "kind": "render", "payload": "secret" }} }},
                "period": {{ "cron": "0 3 * * *", "time_zone": "Europe/Berlin" }},
                "margin_of_error_ms": 18446744073709551615,
                "overlap": "queue_one"
            }},
            "revision": 3,
            "period_since": "2026-11-01T00:00:00.000Z",
            "created_at": "2026-11-01T00:00:00.000Z",
            "updated_at": "2026-11-20T00:00:00.000Z",
            "course": {{
                "next_due_at": "2026-11-22T02:00:00.000Z",
                "not_run": [
                    {{ "first": "2026-11-02T02:00:00.000Z", "last": "2026-11-03T02:00:00.000Z", "count": 2,
                       "reason": "missed" }},
                    {{ "first": "2026-11-05T02:00:00.000Z", "last": "2026-11-05T02:00:00.000Z", "count": 1,
                       "reason": "missed" }}
                ]
            }}{more}
        }}"#
    );
    serde_json::from_str(&text).expect("a schedule")
}

fn paused() -> Schedule {
    schedule(r#", "paused": { "at": "2026-11-20T00:00:00.000Z", "by": "anna", "reason": "a move" }"#)
}

fn parse(query: &str) -> Result<Expression, String> {
    Expression::parse_about(Table::Schedules, query, Zone::default()).map_err(|error| error.render())
}

#[track_caller]
fn expression(query: &str) -> Expression {
    parse(query).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn holds(schedule: &Schedule, queries: &[&str]) {
    for query in queries {
        assert!(expression(query).matches_schedule(schedule, now()), "{query}");
    }
}

#[track_caller]
fn fails(schedule: &Schedule, queries: &[&str]) {
    for query in queries {
        assert!(!expression(query).matches_schedule(schedule, now()), "{query}");
    }
}

#[test]
fn a_schedule_is_found_by_what_people_know_of_it() {
    let schedule = schedule("");
    holds(&schedule, &["id: nightly*", "owner: team a", "labels.team: blue", "labels: dotted", "paused: false", ""]);
    holds(
        &schedule,
        &["action_type: job", "action.job.queue: reports", "action.job: *", "action.*: render", "period: *"],
    );
    holds(&schedule, &["period.cron: \"0 3 * * *\"", "period.time_zone: Europe/*", "overlap: (skip or queue_one)"]);
    holds(&schedule, &["next_due_at > now", "load_at: *", "not last_due_at: *", "not_run_at: 2026-11-05", "errors: 0"]);
    holds(&schedule, &["margin_of_error_ms: 9223372036854775807", "revision > 2", "created_at < 2026-11-21 and blue"]);
    fails(
        &schedule,
        &["id: nightly", "owner: *b", "paused: true", "action.url: *", "period.every_ms >= 0", "end_at: *"],
    );
    fails(&schedule, &["paused_by: *", "paused_reason: *", "secret", "*: secret", "not_run_at: 2026-11-03", "n: x"]);
}

#[test]
fn a_pause_is_found_by_who_why_and_when() {
    let paused = paused();
    holds(
        &paused,
        &["paused: true", "paused_by: anna", "paused_reason: *move", "paused_at < now-1d", "anna", "\"a move\""],
    );
    // It is due no more, though it knows when it would be.
    holds(&paused, &["not load_at: *", "next_due_at: *"]);
    fails(&paused, &["paused: false", "paused_by: bob"]);
    let silent = schedule(r#", "paused": { "at": "2026-11-20T00:00:00.000Z", "by": "anna", "reason": "" }"#);
    fails(&silent, &["paused_reason: *"]);
}

#[test]
fn a_field_that_schedules_do_not_have_is_refused_with_the_closest_that_they_have() {
    let refusal = |query: &str| parse(query).expect_err(query);
    assert_eq!(
        refusal("a and onwer: x"),
        "there is no field `onwer` (at character 7); is `owner` meant?\n  a and onwer: x\n        ^"
    );
    for (query, said) in [
        ("action.type: job", "is `action_type` meant?"),
        ("paused.by: anna", "is `paused_by` meant?"),
        ("course.errors > 0", "is `errors` meant?"),
        ("queue: reports", "is `action.job.queue` meant?"),
        ("cron: *", "is `period.cron` meant?"),
        (
            "document: x",
            "`document` is kept with the schedule and cannot be searched (at character 1); give the schedule",
        ),
        ("action: x", "its fields are action.url, action.job.queue, action.job.kind"),
        ("history: { to: running }", "`history` is not a list of entries (at character 1); a schedule has none"),
        ("owner: null", "for schedules without a value write `not field: *`"),
        ("paused: maybe", "`paused` is true or false (at character 9)"),
        ("errors: many", "`errors` is a number"),
        ("labels.t*: blue", "name one, such as `labels.team`"),
    ] {
        assert!(refusal(query).contains(said), "{query}: {}", refusal(query));
    }
    // What only jobs have, and nothing alike, finds nothing.
    fails(&schedule(""), &["state: running", "priority > 0", "lease: *", "resources.gpus: 1", "history: *"]);
}

#[test]
fn the_bounds_of_a_query_are_by_id_owner_and_times() {
    let bounds = |query: &str| expression(query).bounds(now());
    let texts = |query: &str, field: &str| bounds(query).texts(field).map(|texts| texts.join("|"));
    assert_eq!(texts("owner: \"team a\" and labels.team: blue", "owner").as_deref(), Some("team a"));
    assert_eq!(texts("owner: (a or b)", "owner").as_deref(), Some("a|b"));
    assert_eq!(texts("id: (a or b) and paused: true", "id").as_deref(), Some("a|b"));
    assert_eq!(texts("owner: a or paused: true", "owner"), None);
    assert_eq!(texts("not owner: a", "owner"), None);
    assert!(bounds("owner: a").exact && bounds("owner: (a or b)").exact && bounds("").exact);
    assert!(!bounds("owner: a*").exact && !bounds("owner: a and paused: true").exact);
    let day = Span { first: 1_795_219_200_000, last: 1_795_305_599_999 };
    assert_eq!(bounds("created_at: 2026-11-21 and next_due_at < now").span("created_at"), day);
    assert!(bounds("owner: a and owner: b").is_empty());
}

#[test]
fn a_query_about_jobs_is_another_one() {
    let about = |table| Expression::parse_about(table, "owner: a", Zone::default()).expect("a query");
    assert_ne!(about(Table::Jobs), about(Table::Schedules));
    assert_eq!(about(Table::Schedules).table(), Table::Schedules);
}
