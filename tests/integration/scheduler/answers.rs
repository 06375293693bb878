//! What the answers to calls lead to, and what of them is kept.

use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use leasehold::clock::Clock as _;
use leasehold::scheduler::{DueTime, Outcome};
use serde_json::{Value, json};

use super::{LONG_STEP, Site, ended, put};
use crate::notify::receiver::Receiver;

cases! {
    a_call_that_may_be_repeated_only_after_its_margin_has_failed_at_once,
    a_call_that_may_be_repeated_within_its_margin_is,
    an_answer_that_repeats_what_it_was_sent_shows_no_secrets,
}

fn call(receiver: &Receiver) -> Value {
    json!({
        "type": "http", "url": receiver.url(), "headers": {"authorization": "Bearer abc-123-def", "retry-after": "7"},
        "body": {"password": "correct horse"},
    })
}

/// The first one: a call that takes long is overtaken by those of later due times.
fn first_ended(found: &[DueTime]) -> bool {
    found.first().is_some_and(|due| ended(due.outcome))
}

async fn a_call_that_may_be_repeated_only_after_its_margin_has_failed_at_once(site: Site) {
    let site = site.by_steps_of(LONG_STEP);
    let (scheduler, receiver) = (site.scheduler(), Receiver::listening().await);
    receiver.answer_always(StatusCode::SERVICE_UNAVAILABLE);
    receiver.answer_with(RETRY_AFTER, "7200");
    let fields = json!({"action": call(&receiver), "period": {"every_ms": 60_000}, "margin_of_error_ms": 3_600_000});
    let schedule = put(&scheduler, "closed", fields).await;
    let found = site.until(&scheduler, &schedule, first_ended).await;
    scheduler.shutdown().await;
    assert_eq!(found[0].outcome, Outcome::Failed, "{found:?}");
    let message = found[0].message.as_ref().expect("a message");
    assert!(message.contains("margin of error") && message.contains("503"), "{message}");
    assert!(site.clock.now().since(found[0].due_at) < Duration::from_secs(3_600), "it is not waited for");
    let came = receiver.came();
    let of_it = came.iter().filter(|call| call.headers["leasehold-due-at"] == found[0].due_at.to_rfc3339().as_str());
    assert_eq!(of_it.count(), 1);
    assert_eq!(came[0].headers["retry-after"], "7", "a header is sent whatever its name is");
}

async fn a_call_that_may_be_repeated_within_its_margin_is(site: Site) {
    let site = site.by_steps_of(LONG_STEP).standing_still_when_due();
    let (scheduler, receiver) = (site.scheduler(), Receiver::listening().await);
    receiver.answer_next([StatusCode::SERVICE_UNAVAILABLE, StatusCode::OK]);
    receiver.answer_with(RETRY_AFTER, "20");
    let fields = json!({"action": call(&receiver), "period": {"every_ms": 600_000}, "margin_of_error_ms": 300_000});
    let schedule = put(&scheduler, "soon", fields).await;
    let found = site.until(&scheduler, &schedule, first_ended).await;
    scheduler.shutdown().await;
    assert_eq!(found[0].outcome, Outcome::Late, "{found:?}");
    assert!(found[0].late_ms >= Some(20_000), "{found:?}");
    assert_eq!(receiver.came().len(), 2);
}

async fn an_answer_that_repeats_what_it_was_sent_shows_no_secrets(site: Site) {
    let (scheduler, receiver) = (site.scheduler(), Receiver::listening().await);
    receiver.answer_always(StatusCode::FORBIDDEN);
    receiver.repeat_what_comes();
    let fields = json!({"action": call(&receiver), "period": {"every_ms": 60_000}, "margin_of_error_ms": 3_600_000});
    let schedule = put(&scheduler, "echo", fields).await;
    let found = site.until(&scheduler, &schedule, first_ended).await;
    scheduler.shutdown().await;
    assert_eq!(found[0].outcome, Outcome::Consumed, "{found:?}");
    let message = found[0].message.as_ref().expect("a message");
    assert!(message.contains("authorization") && message.contains("***"), "{message}");
    for secret in ["abc-123", "correct"] {
        assert!(!message.contains(secret), "{message}");
    }
    let sent = &receiver.came()[0];
    assert_eq!(sent.headers["authorization"], "Bearer abc-123-def");
    assert_eq!(&sent.body[..], br#"{"password":"correct horse"}"#);
}
