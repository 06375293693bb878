mod phases;
mod schedules;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::job::{
    Actor, Body, Claim, Concurrency, ConcurrencyKey, Conditions, Job, JobError, JobId, JobSpec, Kind, Owner, Priority,
    QueueName, State, WorkerId,
};

fn now() -> Timestamp {
    Timestamp::parse_rfc3339("2026-11-21T12:00:00Z").expect("a time")
}

fn available() -> Job {
    let labels = [("team", "blue"), ("a.b", "dotted"), ("empty", "")];
    let spec = JobSpec {
        priority: Priority::new(-5).expect("a priority"),
        owner: Some(Owner::new("team a").expect("an owner")),
        resources: [("gpus", 2), ("memory_mib", 512), ("huge", u64::MAX)]
            .into_iter()
            .map(|(name, amount)| (name.to_owned(), amount))
            .collect(),
        conditions: Conditions {
            requires: ["hw = fpga", "build >= 42"].map(|text| text.parse().expect("a requirement")).to_vec(),
            concurrency: Some(Concurrency { key: ConcurrencyKey::new("db-7").expect("a key"), max: 5 }),
            unique: None,
            ordering: None,
        }
        .stored(),
        labels: labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>(),
        ..JobSpec::new(QueueName::new("reports").expect("a queue"), Kind::new("Render").expect("a kind"))
    };
    let actor = Actor::new("tester").expect("an actor");
    Job::submit(JobId::new("job-1").expect("an id"), Arc::new(spec), Body::Empty, (now(), None), &actor, now())
}

fn running() -> Job {
    let worker_id = WorkerId::new("w-1").expect("a worker");
    let claim = Claim {
        worker_id,
        holder: None,
        request_id: None,
        term: std::time::Duration::from_secs(60),
        margin: std::time::Duration::ZERO,
    };
    available().claim(&claim, now()).expect("it is due")
}

fn failed() -> Job {
    let error = JobError { code: "exit".to_owned(), message: "Out of Memory: killed".to_owned() };
    Job { state: State::Failed { finished_at: now() }, error: Some(error), ..available() }
}

#[track_caller]
fn holds(job: &Job, queries: &[&str]) {
    for query in queries {
        assert!(expression(query).matches(job, now()), "{query}");
    }
}

#[track_caller]
fn fails(job: &Job, queries: &[&str]) {
    for query in queries {
        assert!(!expression(query).matches(job, now()), "{query}");
    }
}

#[track_caller]
fn expression(query: &str) -> Expression {
    Expression::parse(query).unwrap_or_else(|error| panic!("{}", error.render()))
}

fn refusal(query: &str) -> String {
    Expression::parse(query).expect_err(query).render()
}

#[test]
fn a_keyword_is_compared_as_a_whole_and_to_the_letter() {
    let job = available();
    holds(&job, &["state: available", "kind: Render", "owner: team a", "owner: \"team a\"", "queue: (x or reports)"]);
    holds(&job, &["owner: t*", "owner: *m*a", "kind: *e*e*", "owner > \"team\"", "owner <= \"team a\"", "*: Render"]);
    fails(&job, &["kind: render", "owner: team", "owner: \"*\"", "owner: T*", "queue: report", "owner < \"Team\""]);
}

#[test]
fn a_field_without_a_value_is_found_by_nothing_but_its_absence() {
    let job = available();
    holds(&job, &["not finished_at: *", "not finished_at < now", "not lease: *", "not error.message: x"]);
    fails(&job, &["finished_at: *", "finished_at < now", "lease: *", "timeout_ms >= 0", "nowhere: *", "nowhere: x"]);
    holds(&running(), &["lease: *", "lease.worker_id: w-1", "not orphan: *"]);
}

#[test]
fn numbers_and_times_are_compared_as_such() {
    let job = available();
    holds(
        &job,
        &["priority: -5", "priority: -5.0", "priority > -5.5", "priority < 10", "priority < 99999999999999999999"],
    );
    fails(&job, &["priority: -5.5", "priority >= -4.5", "priority > 99999999999999999999", "priority: 100000"]);
    holds(
        &job,
        &["run_at: 2026-11-21", "run_at: \"2026-11-21T12\"", "run_at <= now", "run_at >= now/d", "run_at < now+1s"],
    );
    holds(&job, &["run_at <= 2026-11-21", "run_at >= 2026-11-21", "run_at: 1795262400000", "created_at > now-1d/d"]);
    fails(&job, &["run_at > 2026-11-21", "run_at < 2026-11-21", "run_at: 2026-11-20", "run_at > now/d"]);
}

#[test]
fn a_text_is_found_by_its_words() {
    let job = failed();
    holds(&job, &["error.message: memory", "error.message: disk MEMORY", "error.message: \"of memory\"", "memory"]);
    holds(
        &job,
        &["error.message: mem*", "error.message: disk kil*", "error.message.keyword: Out*", "error: *", "\"out of\""],
    );
    fails(
        &job,
        &["error.message: \"memory of\"", "error.message: mem", "error.message.keyword: out*", "error.code: Exit"],
    );
}

#[test]
fn labels_are_found_by_their_names_and_all_together() {
    let job = available();
    holds(
        &job,
        &["labels.team: blue", "labels.team: \"blue\"", "labels.a.b: dotted", "labels: blue", "labels.empty: \"\""],
    );
    holds(&job, &["labels.team: b*", "labels: *otte*", "labels.team: *", "labels: *", "labels.team: red b*", "blue"]);
    fails(&job, &["labels.team: red", "labels.a: dotted", "labels.team: Blue", "labels: bl", "labels.nope: *"]);
}

#[test]
fn one_of_the_requirements_is_to_match_as_a_whole() {
    let job = available();
    holds(&job, &["requires: \"hw = fpga\"", "requires: \"build >= 42\"", "requires: hw*", "requires: *"]);
    holds(&job, &["requires: (\"hw = fpga\" and \"build >= 42\")", "not requires: \"hw = gpu\""]);
    fails(&job, &["requires: hw", "requires: \"HW = fpga\"", "requires: \"build\"", "not requires: *"]);
}

#[test]
fn amounts_of_resources_are_compared_as_numbers() {
    let job = available();
    holds(&job, &["resources.gpus: 2", "resources.gpus >= 2", "resources.memory_mib > 99", "resources.gpus: (1 or 2)"]);
    holds(&job, &["resources: *", "resources.gpus: *", "not resources.tpus: *", "resources.gpus < 1e30"]);
    fails(&job, &["resources.gpus > 2", "resources.gpus: 2.5", "resources.tpus: 0", "resources.tpus < 1", "2"]);
    // What the index cannot hold it does not find.
    fails(&job, &["resources.huge: *", "resources.a.b: 1", "resources.\\*: 2"]);
    assert!(refusal("resources.gpus: many").contains("`resources.gpus` is a number"));
    assert!(refusal("resources.*: 2").contains("name one, such as `resources.gpus`"));
    assert!(refusal("labels.t*: blue").contains("name one, such as `labels.team`"));
    assert!(refusal("resources: 2").contains("`resources` is a map of numbers"), "{}", refusal("resources: 2"));
}

#[test]
fn what_is_said_in_braces_is_said_of_one_entry() {
    let job = running();
    holds(&job, &["history: { to: running and actor: w-1 }", "history: { to: available and not from: * }"]);
    holds(&job, &["history: { not to: running }", "history: { fence >= 1 }", "*: w-1", "history: { *: running }"]);
    fails(&job, &["history: { to: available and actor: w-1 }", "history: { running }", "history: { to: failed }"]);
    holds(&job, &["history: { to: running } and history: { to: available }", "not history: { to: failed }"]);
}

#[test]
fn a_field_that_cannot_be_asked_is_refused_with_advice() {
    assert_eq!(
        refusal("stat: running"),
        "there is no field `stat` (at character 1); is `state` meant?\n  stat: running\n  ^"
    );
    assert!(refusal("a and lease.worker-id: x").contains("is `lease.worker_id` meant?"));
    assert!(refusal("lease.fence: 2").contains("is `fence` meant?"), "an answer shows it there");
    assert!(refusal("worker_id: w-1").contains("is `lease.worker_id` meant?"));
    assert!(refusal("history: { too: x }").contains("is `to` meant?"));
    assert!(refusal("history.to: running").contains("write `history: { to: … }`"));
    assert!(refusal("payload.user: 7").contains("cannot be searched"));
    assert!(refusal("lease: w-1").contains("its fields are lease.worker_id"));
    assert!(refusal("lists: { a: b }").contains("is not a list"));
    assert!(refusal("history: { history: { a: b } }").contains("is not a list"));
    let cases = [
        ("priority: high", "`priority` is a number from -32768 to 32767", 11),
        ("priority: 1*", "`priority` is a number from -32768 to 32767", 11),
        ("priority > 1e99", "`priority` is a number from -32768 to 32767", 12),
        ("fence: 1e99", "`fence` is a number from -9223372036854775808 to 9223372036854775807", 8),
        ("progress.percent: 1e99", "`progress.percent` is a number", 19),
        ("run_at > soon", "`run_at` is a time from the year 1 to 9999", 10),
        ("run_at > 10000-01-01", "`run_at` is a time from the year 1 to 9999", 10),
        ("run_at < 99999999999999999", "`run_at` is a time from the year 1 to 9999", 10),
        ("run_at < now+9000y", "`run_at` is a time from the year 1 to 9999", 10),
        ("owner: null", "write `not field: *`", 8),
        ("labels.size > 5", "a label has no order", 15),
        ("labels.size: *5", "only stand at the end", 14),
        ("null", "cannot be looked for", 1),
    ];
    for (query, problem, character) in cases {
        let error = refusal(query);
        assert!(error.contains(problem) && error.contains(&format!("character {character})")), "{error}");
    }
}

#[test]
fn a_name_with_wildcards_asks_the_fields_that_can_have_the_value() {
    let job = running();
    holds(&job, &["*_at: 2026-11-21", "*: -5", "lease.*: w-1", "*.worker_id: w-*", "his*: available", "priorit*: -5"]);
    fails(&job, &["*_at: running", "x*: y", "lease.*: running", "*: nothing like it"]);
}

#[test]
fn what_is_too_long_or_too_deep_or_too_wide_is_refused() {
    assert!(refusal(&"a".repeat(MAX_BYTES + 1)).contains("longer"));
    let deep = |levels: usize| format!("{}a{}", "not (".repeat(levels), ")".repeat(levels));
    assert!(Expression::parse(&deep(MAX_DEPTH)).is_ok());
    assert!(refusal(&deep(MAX_DEPTH + 1)).contains("levels"));
    let wide = |values: usize| format!("id: ({})", vec!["a"; values].join(" or "));
    assert!(Expression::parse(&wide(plan::MAX_COMPARISONS)).is_ok());
    let said = refusal(&wide(plan::MAX_COMPARISONS + 1));
    assert!(said.contains("compares fields with values more than 1024 times"), "{said}");
    assert!(said.contains("once for each field that it is compared with"), "{said}");
    // Eleven fields are compared with each of these words.
    let anywhere = |values: usize| vec!["a"; values].join(" or ");
    assert!(Expression::parse(&anywhere(93)).is_ok());
    assert!(refusal(&anywhere(94)).contains("1024"));
}

#[test]
fn the_bounds_of_a_query_hold_for_all_that_it_finds() {
    let bounds = |query: &str| expression(query).bounds(now());
    let texts = |query: &str, field: &str| bounds(query).texts(field).map(|texts| texts.join(" "));
    let found = "state: (running or failed) and queue: a and not kind: b";
    assert_eq!(texts(found, "state").as_deref(), Some("running failed"));
    assert_eq!(texts(found, "queue").as_deref(), Some("a"));
    assert_eq!(texts(found, "kind"), None);
    assert_eq!(texts("state: *ed", "state").as_deref(), Some("completed failed cancelled expired"));
    assert_eq!(texts("not state: *ed", "state").as_deref(), Some("available running"));
    assert!(bounds("not state: *ed and priority > 5").only_live());
    assert_eq!(texts("lease.expires_at < now", "state").as_deref(), Some("running"));
    assert_eq!(bounds("queue: a or priority: 5"), Bounds::default());
    assert_eq!(texts("queue: a or queue: b", "queue").as_deref(), Some("a b"));
    assert_eq!(bounds("queue: a and queue: b").texts("queue"), Some(&[][..]));
    assert_eq!(texts("id: (x or y)", "id").as_deref(), Some("x y"));
    assert_eq!(texts("", "id"), None);
    assert_eq!(texts("lease.worker_id: w", "lease.worker_id").as_deref(), Some("w"));
    let day = Span { first: 1_795_219_200_000, last: 1_795_305_599_999 };
    let span = |query: &str, field: &str| bounds(query).span(field);
    assert_eq!(span("created_at: 2026-11-21", "created_at"), day);
    assert_eq!(span("run_at >= 2026-11-21 and run_at <= 2026-11-21", "run_at"), day);
    assert_eq!(span("updated_at < 2026-11-21", "updated_at"), Span { last: day.first - 1, ..Span::ALWAYS });
    assert_eq!(span("finished_at > 2026-11-21", "finished_at"), Span { first: day.last + 1, ..Span::ALWAYS });
    assert_eq!(span("run_at > 2026-11-21 or run_at: 2026-11-21", "run_at"), Span { last: i64::MAX, ..day });
    assert!(bounds("run_at > 2026-11-21 and run_at < 2026-11-21").is_empty());
}

#[test]
fn bounds_that_say_all_there_is_to_say_are_told_from_others() {
    let exact = |query: &str| expression(query).bounds(now()).exact;
    for query in
        ["", "state: *ed", "not state: running", "queue: (a or b) and run_at < now", "lease.worker_id: w", "n: x"]
    {
        assert!(exact(query), "{query}");
    }
    for query in
        ["queue: a*", "queue: a or kind: b", "priority: 5", "run_at < now-1h or run_at > now", "not queue: a", "a"]
    {
        assert!(!exact(query), "{query}");
    }
}

proptest! {
    #[test]
    fn any_text_is_asked_or_refused(text in any::<String>()) {
        if let Ok(expression) = Expression::parse(&text) {
            let _either = expression.matches(&running(), now());
            let _any = expression.bounds(now());
        }
    }

    #[test]
    fn a_negation_finds_the_others(
        field in "(state|kind|priority|run_at|labels.team|error.message|lease|n*)",
        value in "(5|running|\\*|b\\*|now|\"a\")",
    ) {
        if let (Ok(one), Ok(other)) =
            (Expression::parse(&format!("{field}: {value}")), Expression::parse(&format!("not {field}: {value}")))
        {
            for job in [available(), running(), failed()] {
                prop_assert_ne!(one.matches(&job, now()), other.matches(&job, now()));
            }
        }
    }
}
