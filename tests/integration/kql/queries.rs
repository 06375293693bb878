//! Queries to ask: one of every construct, and any number made up at random.

use leasehold::query::kql::ast::{ByteOffset, Literal, Value};
use proptest::prelude::{Just, Strategy};
use proptest::sample::select;
use proptest::strategy::BoxedStrategy;
use proptest::{collection, option, prop_oneof};

use super::jobs::{CODES, KINDS, LABELS, MESSAGES, OWNERS, QUEUES, REASONS, REQUIRES, WORKERS};

/// Every construct of the language, and every type of field with it.
#[rustfmt::skip]
pub(super) const CASES: &[&str] = &[
    "", "*", "*:*", "not *",
    "state: running", "state: RUNNING", "state: running OR state: failed", "state: (running or failed and not completed)",
    "not state: running and not state: failed", "not (state: running or state: failed)", "state: run* and not state: *",
    "owner: team a", "owner: \"team a\"", "owner: \"Team a\"", "owner: true", "owner: \"null\"", "owner: gr\\u00f6\\u00dfe",
    "owner: \\ud83e\\udd80 x", "owner: a\\\\b", "owner: \"a\\\\b\"", "queue: a\\:b", "queue: \"a:b\"", "queue: a\\*b", "queue: \"a*b\"",
    "queue: a*b", "kind: e\\(x\\)", "kind: \"not\"", "kind: and\\u0020or", "kind: \\and or", "kind: *-*", "kind: *e*e*", "owner: **",
    "owner: t*a", "id: nightly\\:*\\*", "queue > \"a\" and queue <= \"b\"", "owner >= t", "owner < t*",
    "orphan.held: true", "orphan.held: \"false\"", "not orphan.held: false", "orphan*: true", "orphan_policy: (flag or fail)",
    "watch_at <= now", "history: { event: released and fence > 1 }", "owner: *", "not owner: *", "lease: *", "error: *", "not orphan: *", "progress: *", "payload_ref: *", "lease.request_id: *",
    "priority: 5", "priority: \"5\"", "priority: 5.0", "priority: 5.5", "priority: -5", "priority > -5.5 and priority <= 4.5",
    "priority: 100000", "priority < 100000", "priority > 100000", "fence: 9223372036854775807", "fence: 9223372036854775808",
    "fence < 9223372036854775808", "fence >= 1e18", "fence > 1e19", "progress.percent: 33.5", "progress.percent: 335e-1",
    "progress.percent < 99.999", "progress.percent >= 99.999", "expected_runtime_ms < 60000", "history_folded: *", "pending_notices: *", "pending_notices > 1",
    "schedule_id: nightly", "schedule_id: (n* or \"ping me\")", "not schedule_id: *", "due_at >= now-1h", "nightly",
    "run_at < now", "run_at >= now", "run_at: now/d", "run_at > now/d", "run_at <= now/d", "run_at < now/w", "run_at >= now-1M/M",
    "created_at > now-1d and created_at <= now+1h", "created_at: 2026", "created_at > 2026-01", "created_at <= \"2026-11-21T12\"",
    "updated_at >= \"2026-11-21T12:00:00.000+02:00\"", "run_at < 2026-11-01||+1M/d", "run_at > 1795262400000", "run_at: 1795262400000",
    "cancel_requested_at: *", "finished_at < now-1y or finished_at > now+1d", "*_at: now/d", "*_at > now+20d",
    "error.message: memory", "error.message: MEMORY disk", "error.message: \"of memory\"", "error.message: \"memory of\"",
    "error.message: mem*", "error.message: *emor*", "error.message: nothing full*", "error.message: AND t*", "error.message: NOT* 🦀",
    "error.message: x *", "error.message: **", "error.message: *", "error.message: \"\"", "error.message: 漢", "error.message: status 1",
    "error.message: a_b.txt", "error.message: \"can't go\"", "error.message > stat", "error.message.keyword: \"exit status 1\"",
    "error.message.keyword: exit*", "error.message.keyword: y*", "error.message: y*", "error.code: (exit or 5)",
    "labels.team: blue", "labels.team: \"bl ue\"", "labels.team: \"\"", "labels.team: bl*", "labels.team: *", "labels.team: red bl*",
    "labels.a.b: dotted", "labels.a: dotted", "labels.nowhere: x", "labels.nowhere: *", "labels: blue", "labels: *u*", "labels: *",
    "labels: bl ue", "labels > m", "labels.größe: XL", "labels.long: *", "labels: xxx*", "not labels.team: *",
    "resources.gpus: 5", "resources.gpus >= 5", "resources.gpus < 5.5", "resources.gpus: 1.5", "resources.gpus: *",
    "resources: *", "resources.memory_mib > 100 and not resources.gpus: *", "resources.nowhere: 5",
    "resources.nowhere < 5", "resources.nowhere: *",
    "resources.gpus: 9223372036854775807", "resources.gpus < 1e19", "resources.a.b: 5", "not resources: *",
    "requires: \"hw = fpga\"", "requires: hw*", "requires: (gpu and \"hw != fpga\")", "not requires: *", "requires > gpu",
    "history: { to: running }", "history: { to:\"running\" and actor:w-1 }", "history: { not to: running }",
    "history: { to: running and (actor: w-1 or reason: *) and not from: * }", "not history: { to: running }",
    "history: { at < now and fence > 1 }", "history: { to: (running or failed) } and history: { actor: w-2 }", "history: { *: * }",
    "history: { *: running }", "history: { running }", "history: { reason: *ease* }", "history: { nothing_like_it: x }",
    "*: running", "*: 5", "*: blue", "*: w-1", "*: *w*", "lease.*: w-1", "his*: running", "*.actor: w-*", "*actor: *", "nothing_like_it: x",
    "nothing_like_it: *", "nothing*: x", "not nothing_like_it: x", "*_ms > 0", "e*: exit",
    "blue", "running", "exit", "memory disk", "\"out of\"", "team a", "w-1", "mem*", "*lue", "team a x*", "true", "5", "job-4", "*ea*",
    "a and b or not c", "running and blue or alpha and not red", "(running or failed) and (blue or red)", "null: blue",
];

pub(super) type Text = BoxedStrategy<String>;

fn words(text: &str) -> String {
    Literal { value: Value::Words(text.to_owned()), offset: ByteOffset::default() }.to_string()
}

fn phrase(text: &str) -> String {
    Literal { value: Value::Phrase(text.to_owned()), offset: ByteOffset::default() }.to_string()
}

/// A value, in each of the ways it can be written: whole, in quotes, and with a part of it left out.
pub(super) fn written(texts: &'static [&'static str]) -> Text {
    (select(texts), 0..8_usize, 0..6_usize, 0..6_usize)
        .prop_map(|(text, form, start, end)| {
            let letters: Vec<char> = text.chars().collect();
            let start = start.min(letters.len());
            let head: String = letters[..start].iter().collect();
            let tail: String = letters[letters.len() - end.min(letters.len() - start)..].iter().collect();
            match form {
                0..=2 => words(text),
                3 => phrase(text),
                4 => format!("{}*", words(head.trim_start())),
                5 => format!("*{}", words(tail.trim_end())),
                6 => format!("{}*{}", words(head.trim_start()), words(tail.trim_end())),
                _ => phrase(&tail),
            }
        })
        .prop_filter("nothing but escapes", |text| !text.contains("\\t"))
        .boxed()
}

pub(super) fn any_of(values: &'static [&'static str]) -> Text {
    select(values).prop_map(str::to_owned).boxed()
}

pub(super) fn number() -> Text {
    any_of(&[
        "-100",
        "-5",
        "-5.5",
        "0",
        "0.5",
        "1",
        "2",
        "5",
        "5.0",
        "10",
        "33.5",
        "1e2",
        "60000",
        "99999",
        "1e20",
        "9223372036854775807",
    ])
}

pub(super) fn time() -> Text {
    let anchored = any_of(&[
        "now",
        "2026",
        "2026-11",
        "2026-11-20",
        "2026-12-01",
        "\"2026-11-21T12\"",
        "\"2026-11-21T12:30:00Z\"",
        "1795262400000",
        "\"2026-11-21T12:30:00.123+02:00\"",
    ]);
    let steps = collection::vec(
        select(&["-1d", "+1d", "/d", "-90m", "+2h", "/h", "/w", "-1M", "/M", "+1y", "/y", "-30s"][..]),
        0..3,
    );
    let relative = steps.prop_map(|steps| format!("now{}", steps.concat()));
    let math = (any_of(&["2026-11-21", "2026-01"]), select(&["+1M", "/M", "-40d/w", "/y"][..]))
        .prop_map(|(start, step)| format!("{start}||{step}"));
    prop_oneof![2 => anchored, 4 => relative, 1 => math].boxed()
}

/// A value for a field, or a list of such values.
fn listed(value: Text) -> Text {
    let list =
        (collection::vec((option::weighted(0.2, Just("not ")), value.clone()), 1..4), select(&[" or ", " and "][..]))
            .prop_map(|(values, between)| {
                let values: Vec<String> =
                    values.into_iter().map(|(not, value)| format!("{}{value}", not.unwrap_or_default())).collect();
                format!("({})", values.join(between))
            });
    prop_oneof![4 => value, 1 => list, 1 => Just("*".to_owned())].boxed()
}

/// The same field with values, or on one side of a value.
pub(super) fn field(names: &'static [&'static str], value: Text, ordered: bool) -> Text {
    let is = (select(names), listed(value.clone())).prop_map(|(name, value)| format!("{name}: {value}"));
    if !ordered {
        return is.boxed();
    }
    let range = (select(names), select(&["<", "<=", ">", ">="][..]), value)
        .prop_map(|(name, operator, value)| format!("{name} {operator} {value}"));
    prop_oneof![is, range].boxed()
}

fn states() -> Text {
    written(&["available", "running", "completed", "failed", "cancelled", "expired", "Running"])
}

fn keyword_field() -> Text {
    prop_oneof![
        field(&["state"], states(), true),
        field(&["queue", "q*"], written(QUEUES), true),
        field(&["kind"], written(KINDS), true),
        field(&["owner"], written(OWNERS), true),
        field(&["requires", "req*"], written(REQUIRES), true),
        field(&["lease.worker_id", "lease.*", "*worker_id"], written(WORKERS), true),
        field(&["orphan.reason", "*reason"], written(REASONS), true),
        field(&["error.code", "error.message.keyword"], prop_oneof![written(CODES), written(MESSAGES)].boxed(), true),
        field(&["id"], written(&["job-8", "Job 9", "10"]), true),
    ]
    .boxed()
}

pub(super) fn label() -> Text {
    let values = || written(&["blue", "red", "bl ue", "dotted", "x", "XL", "5", "10", "Blue"]);
    let names = select(LABELS).prop_map(|(name, _)| format!("labels.{name}"));
    let one = (names, listed(values())).prop_map(|(name, value)| format!("{name}: {value}"));
    prop_oneof![2 => one, 1 => field(&["labels", "label*"], values(), true)].boxed()
}

fn leaf() -> Text {
    let bare = prop_oneof![
        written(QUEUES),
        written(OWNERS),
        states(),
        written(MESSAGES),
        written(&["blue", "bl ue", "exit", "w-1", "5", "true"])
    ];
    prop_oneof![
        6 => keyword_field(),
        3 => label(),
        3 => field(&["error.message", "error.mes*", "*"], written(MESSAGES), true),
        1 => field(&["resources.gpus", "resources.memory_mib", "resources.nowhere", "resources"], number(), true),
        3 => field(&["priority", "attempt", "max_attempts", "fence", "progress.percent", "timeout_ms", "*_ms", "payload_ref.bytes"], number(), true),
        4 => field(&["run_at", "created_at", "finished_at", "lease.expires_at", "orphan.flagged_at", "overdue_at", "watch_at", "*_at", "exp*"], time(), true),
        1 => any_of(&["orphan.held: true", "orphan.held: (false or true)", "orphan_policy: f*", "lease: *", "orphan: *", "error: *", "nothing_like_it: x", "nothing*: *", "*: *", "*"]),
        2 => bare,
        3 => history(),
    ]
    .boxed()
}

/// With `and`, `or`, `not` and brackets between.
pub(super) fn combined(leaf: Text) -> Text {
    leaf.prop_recursive(3, 12, 3, |inner| {
        let join = |between: &'static str| {
            collection::vec(inner.clone(), 2..4).prop_map(move |parts| format!("({})", parts.join(between)))
        };
        prop_oneof![join(" and "), join(" or "), join(" OR "), inner.clone().prop_map(|part| format!("not ({part})"))]
    })
    .boxed()
}

fn history() -> Text {
    let leaf = prop_oneof![
        field(&["to", "from"], states(), true),
        field(&["actor", "act*"], written(WORKERS), true),
        field(&["reason", "*"], written(REASONS), true),
        field(&["fence", "attempt"], number(), true),
        field(&["at"], time(), true),
    ];
    combined(leaf.boxed()).prop_map(|inside| format!("history: {{ {inside} }}")).boxed()
}

/// Any query.
pub(super) fn any_query() -> impl Strategy<Value = String> {
    combined(leaf())
}
