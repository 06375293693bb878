//! Schedules to be asked for, and queries that ask for them.

use std::sync::Arc;

use leasehold::clock::Timestamp;
use leasehold::job::{Actor, Json, Owner, ScheduleId};
use leasehold::schedule::{
    Action, ActionType, Course, Definition, NotRun, NotRunRange, Overlap, PeriodText, Schedule, SchedulePause,
};
use proptest::prelude::Strategy;
use proptest::prop_oneof;

use super::jobs::{Dice, KINDS, MILLIS, OWNERS, QUEUES, REASONS, WORKERS};
use super::queries::{Text, any_of, combined, field, label, number, time, written};

const URLS: &[&str] = &[
    "https://example.org/ping?token=secret",
    "https://example.org/ping",
    "http://user:secret@Example.org:8080/a b#part",
    "http://10.0.0.1/{{due_at}}/*",
];
/// What queries can find of them.
const SHOWN_URLS: &[&str] =
    &["https://example.org/ping", "http://Example.org:8080/a b", "http://10.0.0.1/{{due_at}}/*"];
const CRONS: &[&str] = &["0 2 * * *", "*/5 8-18 * * MON-FRI", "@daily", "0 0 13 * FRI"];
const ZONES: &[&str] = &["Europe/Berlin", "America/New_York", "UTC"];
const OVERLAPS: &[&str] = &["allow", "skip", "queue_one", "cancel_previous", "Skip"];

/// One of every construct, and of every type of field with it.
pub(super) const CASES: &[&str] = &[
    "",
    "*",
    "not *",
    "paused: true",
    "paused: false and not paused: true",
    "not paused: \"false\"",
    "id: (schedule-8 or \"Schedule 9\" or 10)",
    "id: nightly\\:*\\*",
    "owner: \"team a\"",
    "owner: t* or owner: true",
    "owner: (\"team a\" or team-b)",
    "owner: \"team a\" and not labels.team: blue",
    "not owner: *",
    "owner >= t",
    "labels.team: blue",
    "labels: blue",
    "labels.a.b: dotted",
    "labels: *u*",
    "labels.long: *",
    "not labels.team: *",
    "action_type: http",
    "action: *",
    "action.job: *",
    "action.url: https*",
    "action.url: *secret*",
    "action.url: \"https://example.org/ping\"",
    "action.job.queue: alpha",
    "action.job.queue: gr\\u00f6\\u00dfe",
    "action.job.queue: q*",
    "action.job.kind: (Render or render)",
    "action.job.kind: \"not\"",
    "action.job.*: alpha",
    "period: *",
    "period.cron: \"0 2 * * *\"",
    "period.cron: *FRI",
    "period.time_zone: Europe/*",
    "period.every_ms < 60001",
    "period.every_ms: 9223372036854775807",
    "not period.every_ms: *",
    "overlap: (skip or queue_one)",
    "overlap: *_one",
    "margin_of_error_ms >= 60000",
    "margin_of_error_ms > 1e19",
    "errors: 0",
    "errors > 1",
    "revision: 1",
    "revision > 2.5",
    "next_due_at < now",
    "not next_due_at: *",
    "last_due_at >= now/d",
    "not_run_at: *",
    "not_run_at > now-30d",
    "created_at > now-1d",
    "created_at: 2026-11",
    "updated_at <= now-1h",
    "load_at <= now",
    "not load_at: *",
    "start_at: *",
    "end_at < now+7d",
    "*_at: now/d",
    "paused_by: w-1",
    "paused_at < now",
    "paused_reason: *heartbeat*",
    "paused_reason: *",
    "not paused_reason: *",
    "paused_reason: y*",
    "paused_reason > n",
    "partition: 5",
    "partition < 100",
    "partition: 300",
    "blue",
    "w-1",
    "alpha or render",
    "\"team a\"",
    "*ight*",
    "nowhere: x",
    "n*: x",
    "*: blue",
    "*_ms: 60000",
    "true",
];

impl Dice {
    fn action(&mut self) -> Action {
        if self.below(2) == 0 {
            let url = Some(self.one(URLS).to_owned());
            let headers = self.perhaps(|_| [("authorization".to_owned(), "secret".to_owned())].into());
            return Action { url, headers, ..Action::of(ActionType::Http) };
        }
        let queue = match self.below(30) {
            0 => "q".repeat(1_024 + self.below(2)),
            1 => r"gr\u00f6\u00dfe".to_owned(),
            _ => self.one(QUEUES).to_owned(),
        };
        let kind = self.one(KINDS);
        let text = format!(r#"{{"payload": {{"queue": 1e999, "kind": [7]}}, "queue": "{queue}", "kind": "{kind}"}}"#);
        Action { job: Some(Json::parse(text).expect("JSON")), ..Action::of(ActionType::Job) }
    }

    fn definition(&mut self, now: Timestamp) -> Definition {
        let period = PeriodText {
            cron: self.perhaps(|dice| dice.one(CRONS).to_owned()),
            time_zone: self.perhaps(|dice| dice.one(ZONES).to_owned()),
            every_ms: self.perhaps(|dice| dice.one(&[1_000, 60_000, 3_600_000, u64::MAX])),
            ..PeriodText::default()
        };
        Definition {
            owner: self.perhaps(|dice| Owner::new(dice.one(OWNERS)).expect("an owner")),
            labels: self.labels(),
            action: self.action(),
            period,
            margin_of_error_ms: self.one(&[MILLIS[1], MILLIS[2], MILLIS[3], u64::MAX]),
            spread_ms: 0,
            overlap: self.one(&Overlap::ALL),
            pause_after_errors: None,
            start_at: self.perhaps(|dice| dice.time(now)),
            end_at: self.perhaps(|dice| dice.time(now)),
            exclude: Vec::new(),
            notify: Vec::new(),
        }
    }

    fn pause(&mut self, now: Timestamp) -> SchedulePause {
        let reason = match self.below(20) {
            0..=4 => String::new(),
            5 => "y".repeat(1_024 + self.below(2)),
            _ => self.one(REASONS).to_owned(),
        };
        SchedulePause { at: self.time(now), by: Actor::new(self.one(WORKERS)).expect("an actor"), reason }
    }

    fn schedule(&mut self, number: usize, now: Timestamp) -> Arc<Schedule> {
        let not_run = (0..self.one(&[0, 0, 1, 2])).map(|_| {
            let (first, last) = (self.time(now), self.time(now));
            NotRunRange { first: first.min(last), last: first.max(last), count: 2, reason: NotRun::Missed }
        });
        let not_run = not_run.collect();
        Arc::new(Schedule {
            id: ScheduleId::new(Self::name("Schedule", number)).expect("an id"),
            definition: Arc::new(self.definition(now)),
            revision: self.one(&[1, 2, 3, u64::MAX]),
            period_since: now,
            paused: self.perhaps(|dice| dice.pause(now)),
            created_at: self.time(now),
            created_by: None,
            updated_at: self.time(now),
            course: Course {
                next_due_at: self.perhaps(|dice| dice.time(now)),
                last_due_at: self.perhaps(|dice| dice.time(now)),
                not_run,
                errors: self.one(&[0, 0, 1, 5]),
                ..Course::default()
            },
        })
    }
}

/// So many schedules around the time `now`; the same for the same seed.
pub(super) fn made_up(seed: u64, count: usize, now: Timestamp) -> Vec<Arc<Schedule>> {
    let mut dice = Dice(seed);
    (0..count).map(|number| dice.schedule(number, now)).collect()
}

fn keyword_field() -> Text {
    prop_oneof![
        field(&["id"], written(&["schedule-8", "Schedule 9", "10"]), true),
        field(&["owner", "own*"], written(OWNERS), true),
        field(&["action.job.queue", "action.*", "*queue"], written(QUEUES), true),
        field(&["action.job.kind"], written(KINDS), true),
        field(&["action.url"], written(SHOWN_URLS), true),
        field(&["paused_by", "paused*"], written(WORKERS), true),
        field(&["paused_reason", "*reason"], written(REASONS), true),
        field(&["period.cron"], written(CRONS), true),
        field(&["period.time_zone", "period.*"], written(ZONES), true),
        field(&["overlap"], written(OVERLAPS), true),
        field(&["action_type"], written(&["job", "http", "Job"]), true),
    ]
    .boxed()
}

fn leaf() -> Text {
    let bare = prop_oneof![
        written(OWNERS),
        written(QUEUES),
        written(REASONS),
        written(&["blue", "bl ue", "w-1", "5", "true", "https://example.org/ping"])
    ];
    let numbers = &["period.every_ms", "margin_of_error_ms", "errors", "revision", "partition", "*_ms"];
    let times = &[
        "next_due_at",
        "last_due_at",
        "not_run_at",
        "created_at",
        "updated_at",
        "load_at",
        "paused_at",
        "start_at",
        "end_at",
        "*_at",
    ];
    prop_oneof![
        6 => keyword_field(),
        3 => label(),
        3 => field(numbers, number(), true),
        4 => field(times, time(), true),
        2 => any_of(&["paused: true", "paused: (false or true)", "paused: *", "action: *", "period: *", "n: x"]),
        2 => bare,
    ]
    .boxed()
}

/// Any query.
pub(super) fn any_query() -> impl Strategy<Value = String> {
    combined(leaf())
}
