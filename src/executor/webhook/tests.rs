use std::collections::BTreeMap;
use std::sync::Arc;

use reqwest::Url;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::executor::{CallError, HttpAnswer, RefusedTarget, RetryAfter, TargetPolicy};
use crate::job::{
    Actor, Attempt, Body, EventName, Fence, Job, JobError, JobId, JobSpec, JobState, Kind, Notice, Owner, QueueName,
    WorkerId,
};
use crate::schedule::{MissedTimes, Schedule, ScheduleEventName, ScheduleNotice};

fn data(name: EventName) -> JobEvent {
    let job = JobData {
        id: JobId::new("a/1").expect("a name"),
        queue: QueueName::new("night").expect("a name"),
        kind: Kind::new("render").expect("a name"),
        owner: Some(Owner::new("films").expect("a name")),
        labels: BTreeMap::from([("team/part".to_owned(), "x".to_owned()), ("empty".to_owned(), String::new())]),
        state: JobState::Failed,
        attempt: Attempt::new(2),
        fence: Fence::new(3),
        error: Some(JobError { code: "exit".to_owned(), message: "status 1".to_owned() }),
    };
    let reason = Some("no heartbeat".to_owned());
    JobEvent { event: name, actor: Actor::system("monitor"), worker_id: None, reason, job }
}

fn event_of(data: EventData) -> Event {
    Event { id: Uuid::from_u128(7), at: time("2030-01-31T08:00:00Z"), data }
}

fn event(name: EventName) -> Event {
    event_of(EventData::Job(data(name)))
}

fn origin() -> Origin {
    Origin {
        source: "https://jobs.example/".to_owned(),
        pages: Some(Url::parse("https://jobs.example/").expect("a URL")),
    }
}

fn time(text: &str) -> Timestamp {
    Timestamp::parse_rfc3339(text).expect("a time")
}

fn rendered(format: NoticeFormat, event: &Event) -> Value {
    serde_json::from_slice(&render(format, event, &origin()).body).expect("JSON")
}

fn submitted(id: &str, at: Timestamp) -> (Job, Notice) {
    let spec = JobSpec::new(QueueName::new("night").expect("a name"), Kind::new("render").expect("a name"));
    let id = JobId::new(id).expect("a name");
    let job = Job::submit(id, Arc::new(spec), Body::Empty, (at, None), &Actor::system("somebody"), at);
    let notice = Notice { number: 1, entry: job.history.entries()[0].clone() };
    (job, notice)
}

#[test]
fn a_notice_is_the_same_event_whoever_tells_of_it_and_no_other() {
    let (job, mut notice) = submitted("a/1", time(NOW));
    notice.entry.worker_id = Some(WorkerId::new("host7:1").expect("an id"));
    let told = Event::of_job(&job, &notice);
    let EventData::Job(JobEvent { event, actor, worker_id, job: told_of, .. }) = &told.data else { panic!("{told:?}") };
    assert_eq!(*worker_id, notice.entry.worker_id);
    assert_eq!((*event, told.at, told_of.state), (EventName::Submitted, time(NOW), JobState::Available));
    assert_eq!((told_of.id.as_str(), actor.as_str()), ("a/1", "somebody"));
    assert_eq!(Event::of_job(&job.clone(), &notice.clone()), told);
    let next = Notice { number: 2, ..notice };
    let (other, others) = submitted("a/2", time(NOW));
    let (again, agains) = submitted("a/1", time(NOW).plus(Duration::from_secs(1)));
    for id in [Event::of_job(&job, &next).id, Event::of_job(&other, &others).id, Event::of_job(&again, &agains).id] {
        assert_ne!(id, told.id);
    }
}

#[test]
fn a_cloud_event_says_what_happened_to_which_job() {
    let failed = event(EventName::Failed);
    let expected = json!({
        "specversion": "1.0", "id": "00000000-0000-0000-0000-000000000007", "source": "https://jobs.example/",
        "type": "dev.leasehold.job.failed", "subject": "a/1", "time": "2030-01-31T08:00:00.000Z",
        "datacontenttype": "application/json",
        "data": {
            "event": "failed", "actor": "monitor", "reason": "no heartbeat",
            "job": {
                "id": "a/1", "queue": "night", "kind": "render", "owner": "films",
                "labels": {"empty": "", "team/part": "x"}, "state": "failed", "attempt": 2, "fence": 3,
                "error": {"code": "exit", "message": "status 1"},
            },
        },
    });
    let message = render(NoticeFormat::CloudEvents, &failed, &origin());
    assert_eq!(message.content_type, "application/cloudevents+json");
    assert_eq!(rendered(NoticeFormat::CloudEvents, &failed), expected);
    let read: CloudEvent = serde_json::from_slice(&message.body).expect("a CloudEvent");
    assert_eq!(read, CloudEvent::of(&failed, &origin()));
}

#[test]
fn a_slack_message_links_the_job() {
    let message = rendered(NoticeFormat::Slack, &event(EventName::Failed));
    assert_eq!(message["text"], "Job failed: a/1 (render in night)");
    let text = &message["blocks"][0]["text"];
    assert_eq!(text["type"], "mrkdwn");
    assert_eq!(text["text"], "*Job failed*: <https://jobs.example/jobs/a%2F1|a/1>\nrender in night");
    assert_eq!(message["blocks"][3]["type"], "context");
}

#[test]
fn a_text_of_others_calls_nobody_in_slack_and_takes_up_no_page() {
    let long = "<!channel> & ".repeat(1000);
    let mut hostile = data(EventName::Failed);
    hostile.job.id = JobId::new("<!here>|x").expect("a name");
    hostile.job.kind = Kind::new("<@U1>").expect("a name");
    hostile.reason = Some(long.clone());
    hostile.job.error = Some(JobError { code: "<!everyone>".to_owned(), message: long });
    let message = rendered(NoticeFormat::Slack, &event_of(EventData::Job(hostile)));
    let mut texts = vec![message["text"].as_str().expect("a text")];
    for block in message["blocks"].as_array().expect("blocks") {
        let text = if block["type"] == "section" { &block["text"] } else { &block["elements"][0] };
        texts.push(text["text"].as_str().expect("a text"));
    }
    for text in texts {
        assert!(!text.contains("<!") && !text.contains("<@"), "{text}");
        assert!(text.chars().count() <= 3000);
    }
    assert!(
        message["blocks"][1]["text"]["text"].as_str().is_some_and(|text| text.starts_with("&lt;!channel&gt; &amp;"))
    );
}

#[test]
fn a_trouble_is_an_alert_with_the_labels_of_its_job() {
    let alerts = rendered(NoticeFormat::Alertmanager, &event(EventName::Orphaned));
    assert_eq!(
        alerts,
        json!([{
            "labels": {
                "alertname": "LeaseholdJobOrphaned", "severity": "warning", "job": "a/1", "queue": "night",
                "kind": "render", "owner": "films", "label_team_part": "x",
            },
            "annotations": {
                "summary": "Job a/1 orphaned: render in night", "description": "no heartbeat",
                "error": "exit: status 1", "actor": "monitor", "attempt": "2",
            },
            "startsAt": "2030-01-31T08:00:00.000Z", "endsAt": "2030-02-01T08:00:00.000Z",
            "generatorURL": "https://jobs.example/jobs/a%2F1",
        }])
    );
}

/// The labels of the alerts that fire after the event, and of those that it resolves.
fn fired_and_resolved(event: &Event) -> (Vec<Value>, Vec<Value>) {
    let alerts = rendered(NoticeFormat::Alertmanager, event);
    let alerts = alerts.as_array().expect("alerts").iter();
    let (resolved, fired): (Vec<&Value>, Vec<&Value>) = alerts.partition(|alert| alert["endsAt"] == alert["startsAt"]);
    let labels = |alerts: Vec<&Value>| alerts.iter().map(|alert| alert["labels"].clone()).collect();
    (labels(fired), labels(resolved))
}

#[test]
fn an_alert_is_resolved_under_the_very_labels_that_it_was_fired_with() {
    for (begins, ends) in [
        (EventName::Orphaned, EventName::Released),
        (EventName::Orphaned, EventName::Completed),
        (EventName::Overdue, EventName::Cancelled),
        (EventName::Overdue, EventName::Failed),
        (EventName::Overdue, EventName::Retried),
        (EventName::Failed, EventName::Retried),
        (EventName::Expired, EventName::Retried),
    ] {
        let (fired, _) = fired_and_resolved(&event(begins));
        let mut later = JobEvent { actor: Actor::system("somebody"), reason: None, ..data(ends) };
        let job = &mut later.job;
        (job.attempt, job.fence, job.state, job.error) = (Attempt::new(5), Fence::new(9), JobState::Available, None);
        let later = Event { at: time("2030-01-31T09:00:00Z"), ..event_of(EventData::Job(later)) };
        let (_, resolved) = fired_and_resolved(&later);
        assert_eq!(fired.len(), 1, "{begins}");
        assert!(resolved.contains(&fired[0]), "{begins} then {ends}");
    }
}

#[test]
fn a_failure_is_not_resolved_by_the_events_that_come_with_it() {
    let (failed, _) = fired_and_resolved(&event(EventName::Failed));
    for other in EventName::NOTIFIABLE.into_iter().filter(|name| *name != EventName::Retried) {
        let (_, resolved) = fired_and_resolved(&event(other));
        assert!(!resolved.contains(&failed[0]), "{other}");
    }
}

fn schedule() -> Schedule {
    let text = r#"{
        "id": "nightly/<!here>", "revision": 1, "period_since": "2030-01-01T00:00:00Z",
        "created_at": "2030-01-01T00:00:00Z", "updated_at": "2030-01-01T00:00:00Z",
        "definition": {
            "owner": "films", "labels": {"team/part": "x"}, "action": {"type": "http", "url": "https://example.org/"},
            "period": {"cron": "@daily"}, "margin_of_error_ms": 1000
        },
        "course": {"next_due_at": "2030-02-01T00:00:00Z", "failures": 3}
    }"#;
    serde_json::from_str(text).expect("a schedule")
}

fn notice(event: ScheduleEventName) -> ScheduleNotice {
    let is_missed = event == ScheduleEventName::ScheduleMissed;
    let [first, last] = ["2030-01-29T00:00:00Z", "2030-01-31T00:00:00Z"].map(time);
    ScheduleNotice {
        number: 4,
        event,
        at: time("2030-01-31T08:00:00Z"),
        actor: Actor::system("scheduler"),
        reason: (!is_missed).then(|| "<!channel>".to_owned()),
        missed: is_missed.then_some(MissedTimes { first, last, count: 3 }),
    }
}

#[test]
fn a_notice_of_a_schedule_is_the_same_event_whoever_tells_of_it_and_no_other() {
    let (schedule, failing) = (schedule(), notice(ScheduleEventName::ScheduleFailing));
    let told = Event::of_schedule(&schedule, &failing);
    let mut course = schedule.course.clone();
    course.failures = 9;
    let later = Event::of_schedule(&Schedule { course, ..schedule.clone() }, &failing);
    assert_eq!((later.id, later.at), (told.id, failing.at), "what the schedule is like now makes it no other event");
    let next = ScheduleNotice { number: 5, ..failing.clone() };
    let again = Schedule { created_at: time(NOW), ..schedule.clone() };
    for id in [Event::of_schedule(&schedule, &next).id, Event::of_schedule(&again, &failing).id] {
        assert_ne!(id, told.id);
    }
}

#[test]
fn a_cloud_event_says_what_happened_to_which_schedule() {
    let mut missed = Event::of_schedule(&schedule(), &notice(ScheduleEventName::ScheduleMissed));
    missed.id = Uuid::from_u128(7);
    let expected = json!({
        "specversion": "1.0", "id": "00000000-0000-0000-0000-000000000007", "source": "https://jobs.example/",
        "type": "dev.leasehold.schedule.missed", "subject": "nightly/<!here>", "time": "2030-01-31T08:00:00.000Z",
        "datacontenttype": "application/json",
        "data": {
            "event": "schedule_missed", "number": 4, "actor": "scheduler",
            "missed": {"first": "2030-01-29T00:00:00.000Z", "last": "2030-01-31T00:00:00.000Z", "count": 3},
            "schedule": {
                "id": "nightly/<!here>", "owner": "films", "labels": {"team/part": "x"}, "errors": 0, "failures": 3,
                "next_due_at": "2030-02-01T00:00:00.000Z",
            },
        },
    });
    assert_eq!(rendered(NoticeFormat::CloudEvents, &missed), expected);
    let read: CloudEvent = serde_json::from_value(expected).expect("a CloudEvent");
    assert_eq!(read, CloudEvent::of(&missed, &origin()));
}

#[test]
fn a_slack_message_links_the_schedule_and_calls_nobody() {
    let event = Event::of_schedule(&schedule(), &notice(ScheduleEventName::ScheduleMissed));
    let message = rendered(NoticeFormat::Slack, &event);
    let times = "3 due times from 2030-01-29T00:00:00.000Z to 2030-01-31T00:00:00.000Z";
    assert_eq!(message["text"], format!("Schedule missed: nightly/&lt;!here&gt; ({times})"));
    let linked = "<https://jobs.example/schedules/nightly%2F%3C!here%3E|nightly/&lt;!here&gt;>";
    assert_eq!(message["blocks"][0]["text"]["text"], format!("*Schedule missed*: {linked}\n{times}"));
    let event = Event::of_schedule(&schedule(), &notice(ScheduleEventName::SchedulePaused));
    let message = rendered(NoticeFormat::Slack, &event);
    assert_eq!(message["blocks"][1]["text"]["text"], "&lt;!channel&gt;");
    assert_eq!(message["blocks"][2]["type"], "context");
}

#[test]
fn an_alert_names_its_schedule() {
    let event = Event::of_schedule(&schedule(), &notice(ScheduleEventName::ScheduleFailing));
    assert_eq!(
        rendered(NoticeFormat::Alertmanager, &event),
        json!([{
            "labels": {
                "alertname": "LeaseholdScheduleFailing", "severity": "critical", "schedule": "nightly/<!here>",
                "owner": "films", "label_team_part": "x",
            },
            "annotations": {
                "summary": "Schedule nightly/<!here> failing", "description": "<!channel>", "actor": "scheduler",
                "failures": "3",
            },
            "startsAt": "2030-01-31T08:00:00.000Z", "endsAt": "2030-02-07T08:00:00.000Z",
            "generatorURL": "https://jobs.example/schedules/nightly%2F%3C!here%3E",
        }])
    );
}

#[test]
fn an_alert_of_a_schedule_is_resolved_under_its_labels_by_the_event_that_ends_it_and_no_other() {
    use ScheduleEventName::{ScheduleFailing, ScheduleMissed, SchedulePaused, ScheduleRecovered, ScheduleResumed};
    for (begins, ends) in
        [(ScheduleMissed, ScheduleRecovered), (ScheduleFailing, ScheduleRecovered), (SchedulePaused, ScheduleResumed)]
    {
        let (fired, _) = fired_and_resolved(&Event::of_schedule(&schedule(), &notice(begins)));
        assert_eq!(fired.len(), 1, "{begins}");
        for event in ScheduleEventName::ALL {
            let mut course = schedule().course;
            (course.failures, course.next_due_at) = (0, None);
            let later = Schedule { course, ..schedule() };
            let (_, resolved) = fired_and_resolved(&Event::of_schedule(&later, &notice(event)));
            assert_eq!(resolved.contains(&fired[0]), event == ends, "{begins} then {event}");
        }
    }
}

const NOW: &str = "2021-02-25T15:02:10Z";

fn published() -> (Secret, HeaderMap, &'static [u8]) {
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().expect("a secret");
    let mut headers = HeaderMap::new();
    headers.insert("webhook-id", HeaderValue::from_static("msg_p5jXN8AQM9LWM0D4loKWxJek"));
    headers.insert("webhook-timestamp", HeaderValue::from_static("1614265330"));
    let signature = HeaderValue::from_static("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    headers.insert("webhook-signature", signature);
    (secret, headers, br#"{"test": 2432232314}"#)
}

#[test]
fn the_published_example_of_standard_webhooks_verifies() {
    let (secret, headers, body) = published();
    let verified = |body| verify(std::slice::from_ref(&secret), &headers, body, time(NOW));
    assert_eq!(verified(body), Ok(()));
    assert_eq!(verified(br#"{"test": 2432232315}"#), Err(InvalidSignature::Mismatch));
}

#[test]
fn a_message_is_trusted_for_five_minutes_either_way() {
    let (secret, headers, body) = published();
    let at = |seconds: i64| {
        let now = Timestamp::from_millis((1_614_265_330 + seconds) * 1000);
        verify(std::slice::from_ref(&secret), &headers, body, now)
    };
    assert_eq!((at(300), at(-300)), (Ok(()), Ok(())));
    assert_eq!((at(301), at(-301)), (Err(InvalidSignature::Time), Err(InvalidSignature::Time)));
}

#[test]
fn nothing_that_is_signed_can_be_changed_or_left_out() {
    let (secret, good, body) = published();
    for (name, value) in [
        ("webhook-id", "msg_other"),
        ("webhook-timestamp", "1614265331"),
        ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OA="),
        ("webhook-signature", "v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ("webhook-signature", "v1,"),
        ("webhook-signature", ""),
    ] {
        let mut headers = good.clone();
        headers.insert(name, HeaderValue::from_static(value));
        let outcome = verify(std::slice::from_ref(&secret), &headers, body, time(NOW));
        assert_eq!(outcome, Err(InvalidSignature::Mismatch), "{name}: {value}");
        headers.remove(name);
        let outcome = verify(std::slice::from_ref(&secret), &headers, body, time(NOW));
        assert_eq!(outcome, Err(InvalidSignature::Header), "without {name}");
    }
    assert_eq!(verify(&[], &good, body, time(NOW)), Err(InvalidSignature::Mismatch));
}

#[test]
fn while_secrets_are_changed_a_receiver_with_either_is_served() {
    let (old, new, other) = (Secret::generate(), Secret::generate(), Secret::generate());
    let receiver = Receiver {
        url: TargetUrl::parse("https://hooks.example/x").expect("a target"),
        format: NoticeFormat::CloudEvents,
        secrets: vec![new.clone(), old.clone()],
        timeout: Duration::from_secs(10),
    };
    let call = receiver.delivery(&event(EventName::Completed), &origin(), time(NOW));
    assert_eq!(call.headers["webhook-id"], "00000000-0000-0000-0000-000000000007");
    assert_eq!(call.headers["content-type"], "application/cloudevents+json");
    for (secret, outcome) in [(old, Ok(())), (new, Ok(())), (other, Err(InvalidSignature::Mismatch))] {
        assert_eq!(verify(&[secret], &call.headers, &call.body, time(NOW)), outcome);
    }
    let unsigned = Receiver { secrets: Vec::new(), ..receiver };
    let call = unsigned.delivery(&event(EventName::Completed), &origin(), time(NOW));
    assert!(!call.headers.contains_key("webhook-signature"));
}

#[test]
fn a_secret_has_24_to_64_bytes_and_is_not_printed() {
    let of = |length: usize| format!("whsec_{}", base64(&vec![7; length])).parse::<Secret>();
    assert!(of(24).is_ok() && of(64).is_ok());
    assert_eq!((of(23), of(65)), (Err(InvalidSecret::Length), Err(InvalidSecret::Length)));
    assert_eq!("whsec_not base64".parse::<Secret>(), Err(InvalidSecret::Form));
    let secret = Secret::generate();
    assert_eq!(secret.reveal().parse(), Ok(secret.clone()));
    assert_eq!(format!("{secret:?}"), "Secret(…)");
    assert_ne!(secret, Secret::generate());
}

fn base64(bytes: &[u8]) -> String {
    use ::base64::Engine as _;
    ::base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn answer(status: u16, retry_after: Option<RetryAfter>) -> Result<HttpAnswer, CallError> {
    let status = http::StatusCode::from_u16(status).expect("a status");
    let headers = HeaderMap::new();
    Ok(HttpAnswer { status, retry_after, headers, body: Bytes::new(), truncated: false, took: Duration::ZERO })
}

#[test]
fn only_410_ends_a_subscription_and_only_2xx_is_delivered() {
    let verdict = |status| Verdict::of(&answer(status, None), time(NOW));
    for status in [200, 201, 202, 204] {
        assert_eq!(verdict(status), Verdict::Delivered, "{status}");
    }
    assert_eq!(verdict(410), Verdict::Gone);
    for status in [301, 302, 307, 400, 401, 403, 404, 408, 425, 429, 500, 502, 503] {
        assert_eq!(verdict(status), Verdict::Retry { after: None }, "{status}");
    }
}

#[test]
fn a_receiver_says_when_to_come_back_but_not_never() {
    let now = time(NOW);
    let wait = |after| Verdict::of(&answer(503, Some(after)), now);
    let minute = Duration::from_secs(60);
    assert_eq!(wait(RetryAfter::In(minute)), Verdict::Retry { after: Some(minute) });
    assert_eq!(wait(RetryAfter::At(now.plus(minute))), Verdict::Retry { after: Some(minute) });
    assert_eq!(wait(RetryAfter::At(now.minus(minute))), Verdict::Retry { after: Some(Duration::ZERO) });
    for never in [RetryAfter::In(Duration::MAX), RetryAfter::At(Timestamp::MAX)] {
        assert_eq!(wait(never), Verdict::Retry { after: Some(MAX_RETRY_AFTER) });
    }
}

#[test]
fn what_is_refused_here_is_not_tried_again_and_what_fails_there_is() {
    let loopback = TargetUrl::parse("http://127.0.0.1/").expect("a target");
    let refused: RefusedTarget = TargetPolicy::default().check(&loopback).expect_err("refused");
    assert_eq!(Verdict::of(&Err(refused.into()), time(NOW)), Verdict::Refused);
    for error in [
        CallError::Busy,
        CallError::TimedOut(Duration::from_secs(1)),
        CallError::Unreachable("refused".to_owned()),
        CallError::NoTls("reset".to_owned()),
        CallError::Broken("reset".to_owned()),
    ] {
        assert_eq!(Verdict::of(&Err(error), time(NOW)), Verdict::Retry { after: None });
    }
}
