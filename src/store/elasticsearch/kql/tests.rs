use serde_json::{Value as Json, json};

use super::*;

#[track_caller]
fn dsl_in(query: &str, zone: &str) -> Json {
    let zone = Zone::parse(zone).expect("a zone");
    let expression = Expression::parse_in(query, zone).unwrap_or_else(|error| panic!("{}", error.render()));
    compile(&expression)
}

#[track_caller]
fn compiles(query: &str, expected: &Json) {
    assert_eq!(dsl_in(query, "Z"), *expected, "{query}");
}

/// A query for one field as Kibana wraps it.
fn one(query: Json) -> Json {
    json!({ "bool": { "should": [query], "minimum_should_match": 1 } })
}

#[test]
fn everything_and_nothing() {
    for query in ["", "*:*", "*"] {
        compiles(query, &json!({ "match_all": {} }));
    }
    for query in ["nowhere: x", "x*: y", "nowhere.at.all > 5"] {
        compiles(query, &json!({ "match_none": {} }));
    }
}

#[test]
fn and_or_and_not() {
    let (a, b) =
        (one(json!({ "term": { "kind": { "value": "a" } } })), one(json!({ "term": { "kind": { "value": "b" } } })));
    compiles("kind: a and kind: b", &json!({ "bool": { "filter": [a, b] } }));
    compiles("kind: (a or b)", &json!({ "bool": { "should": [a, b], "minimum_should_match": 1 } }));
    compiles("not kind: a", &json!({ "bool": { "must_not": a } }));
}

#[test]
fn keywords() {
    compiles("state: running", &one(json!({ "term": { "state": { "value": "running" } } })));
    compiles("owner: \"team a\"", &one(json!({ "term": { "owner": { "value": "team a" } } })));
    compiles("owner: true", &one(json!({ "term": { "owner": { "value": true } } })));
    compiles("owner: t*-a?", &one(json!({ "wildcard": { "owner": { "value": "t*\\-a\\?" } } })));
    compiles("owner: *\\\\*", &one(json!({ "wildcard": { "owner": { "value": "*\\\\*" } } })));
    compiles("owner: *", &one(json!({ "exists": { "field": "owner" } })));
    compiles("owner > a", &one(json!({ "range": { "owner": { "gt": "a" } } })));
    compiles("error.message.keyword: x", &one(json!({ "term": { "error.message.keyword": { "value": "x" } } })));
    compiles("lease: *", &one(json!({ "exists": { "field": "lease" } })));
}

#[test]
fn texts() {
    compiles("error.message: out of memory", &one(json!({ "match": { "error.message": "out of memory" } })));
    compiles("error.message: \"of memory\"", &one(json!({ "match_phrase": { "error.message": "of memory" } })));
    let wildcards = json!({ "query_string": { "fields": ["error.message"], "query": "mem* \\(oom\\)" } });
    compiles("error.message: mem* \\(oom\\)", &one(wildcards));
    let keywords = json!({ "query_string": { "fields": ["error.message"], "query": "\\AND mem*" } });
    compiles("error.message: AND mem*", &one(keywords));
    compiles("error.message: *", &one(json!({ "exists": { "field": "error.message" } })));
    compiles("error.message >= m", &one(json!({ "range": { "error.message": { "gte": "m" } } })));
}

#[test]
fn numbers() {
    compiles("priority: 5", &one(json!({ "match": { "priority": "5" } })));
    compiles("priority: \"5\"", &one(json!({ "match_phrase": { "priority": "5" } })));
    compiles("priority <= 5.5", &one(json!({ "range": { "priority": { "lte": "5.5" } } })));
    compiles("progress.percent > 99.5", &one(json!({ "range": { "progress.percent": { "gt": "99.5" } } })));
    compiles("priority < 100000", &one(json!({ "exists": { "field": "priority" } })));
    compiles("priority > 100000", &one(json!({ "match_none": {} })));
}

#[test]
fn times() {
    let format = "strict_date_optional_time||epoch_millis";
    compiles(
        "created_at: 2026-11-21",
        &one(json!({ "range": { "created_at": { "gte": "2026-11-21", "lte": "2026-11-21", "format": format } } })),
    );
    compiles("run_at < now-15m", &one(json!({ "range": { "run_at": { "lt": "now-15m", "format": format } } })));
    let zoned = json!({ "range": { "run_at": { "gt": "now/d", "format": format, "time_zone": "+02:00" } } });
    assert_eq!(dsl_in("run_at > now/d", "+02:00"), one(zoned));
    let epoch = json!({ "range": { "run_at": { "gt": "1795262400000", "format": format } } });
    assert_eq!(dsl_in("run_at > 1795262400000", "+02:00"), one(epoch));
    compiles("finished_at: *", &one(json!({ "exists": { "field": "finished_at" } })));
}

#[test]
fn labels() {
    compiles("labels.team: blue", &one(json!({ "match": { "labels.team": "blue" } })));
    compiles("labels.a.b: \"x y\"", &one(json!({ "match_phrase": { "labels.a.b": "x y" } })));
    compiles("labels.team: b*", &one(json!({ "query_string": { "fields": ["labels.team"], "query": "b*" } })));
    compiles("labels.team: *", &one(json!({ "exists": { "field": "labels.team" } })));
    compiles("labels: blue", &one(json!({ "match": { "labels": "blue" } })));
    compiles("labels: *lue", &one(json!({ "query_string": { "fields": ["labels"], "query": "*lue" } })));
    compiles("labels > b", &one(json!({ "range": { "labels": { "gt": "b" } } })));
}

#[test]
fn the_history_in_braces_and_by_a_name_with_wildcards() {
    let to = one(json!({ "term": { "history.to": { "value": "running" } } }));
    let actor = one(json!({ "term": { "history.actor": { "value": "w-1" } } }));
    let both = json!({ "bool": { "filter": [to, actor] } });
    compiles(
        "history: { to: \"running\" and actor: w-1 }",
        &json!({ "nested": { "path": "history", "query": both, "score_mode": "none" } }),
    );
    let actor = json!({ "term": { "history.actor": { "value": "w-1" } } });
    let nested = json!({ "path": "history", "query": actor, "score_mode": "none" });
    compiles("*actor: w-1", &one(json!({ "nested": nested })));
    let inside = one(json!({ "term": { "history.actor": { "value": "w-1" } } }));
    compiles(
        "history: { act*: w-1 }",
        &json!({ "nested": { "path": "history", "query": inside, "score_mode": "none" } }),
    );
}

#[test]
fn names_with_wildcards() {
    compiles(
        "lease.*id: x",
        &json!({ "bool": { "should": [
            { "term": { "lease.worker_id": { "value": "x" } } },
            { "term": { "lease.request_id": { "value": "x" } } },
        ], "minimum_should_match": 1 } }),
    );
}

#[test]
fn values_without_a_field() {
    let fields = [
        "id",
        "queue",
        "kind",
        "state",
        "owner",
        "labels",
        "schedule_id",
        "lease.worker_id",
        "orphan.reason",
        "error.code",
        "error.message",
    ];
    let bare = |r#type: &str, query: Json| {
        let query = json!({ "type": r#type, "query": query, "lenient": true, "fields": fields });
        json!({ "multi_match": query })
    };
    compiles("out of memory", &bare("best_fields", json!("out of memory")));
    compiles("\"out of memory\"", &bare("phrase", json!("out of memory")));
    compiles("true", &bare("best_fields", json!(true)));
    compiles("mem* x\\:y", &json!({ "query_string": { "fields": fields, "query": "mem* x\\:y" } }));
}

#[test]
fn a_moment_given_for_now_stands_in_its_place_and_nowhere_else() {
    let at = |query: &str| {
        let expression = Expression::parse(query).unwrap_or_else(|error| panic!("{}", error.render()));
        let dsl = serde_json::to_value(compile_at(&expression, Timestamp::from_millis(0))).expect("JSON");
        dsl["bool"]["should"][0]["range"]["run_at"]["gt"].clone()
    };
    assert_eq!(at("run_at > now"), "1970-01-01T00:00:00.000Z");
    assert_eq!(at("run_at > now-1d/d"), "1970-01-01T00:00:00.000Z||-1d/d");
    assert_eq!(at("run_at > 2030-01-31"), "2030-01-31");
}
