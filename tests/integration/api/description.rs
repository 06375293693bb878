//! The API's own description.

use std::collections::BTreeSet;

use leasehold::api::openapi_json;
use serde_json::Value;

use super::server::Server;

pub(crate) fn document() -> Value {
    serde_json::from_slice(&openapi_json().expect("a description")).expect("json")
}

pub(crate) fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let paths = document["paths"].as_object().expect("paths");
    let of = |(path, item): (&String, &'_ Value)| {
        let methods: Vec<String> = item.as_object().expect("operations").keys().cloned().collect();
        methods.into_iter().map(|method| (method.to_uppercase(), path.clone())).collect::<Vec<_>>()
    };
    let names: Vec<(String, String)> = paths.iter().flat_map(of).collect();
    names
        .into_iter()
        .map(|(method, path)| (method.clone(), path.clone(), &document["paths"][&path][method.to_lowercase()]))
        .collect()
}

/// Every `$ref` below `value`.
pub(super) fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                found.insert(reference);
            }
            fields.values().for_each(|field| references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn it_lists_exactly_the_calls_there_are() {
    let document = document();
    let calls: BTreeSet<String> =
        operations(&document).into_iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    let expected = [
        "DELETE /v1/jobs/{id}",
        "DELETE /v1/limits/{scope}/{name}",
        "DELETE /v1/schedules/{id}",
        "DELETE /v1/subscriptions/{id}",
        "GET /livez",
        "GET /metrics",
        "GET /openapi.json",
        "GET /readyz",
        "GET /v1/admin/orphans",
        "GET /v1/admin/signing-key",
        "GET /v1/audit",
        "GET /v1/cluster",
        "GET /v1/events",
        "GET /v1/fields",
        "GET /v1/health",
        "GET /v1/jobs",
        "GET /v1/jobs/count",
        "GET /v1/jobs/export",
        "GET /v1/jobs/stats",
        "GET /v1/jobs/{id}",
        "GET /v1/jobs/{id}/attempts/{n}/output",
        "GET /v1/jobs/{id}/explain",
        "GET /v1/jobs/{id}/output",
        "GET /v1/limits",
        "GET /v1/limits/{scope}/{name}",
        "GET /v1/me",
        "GET /v1/queues",
        "GET /v1/queues/{name}",
        "GET /v1/schedules",
        "GET /v1/schedules/{id}",
        "GET /v1/schedules/{id}/next",
        "GET /v1/schedules/{id}/triggers",
        "GET /v1/subscriptions",
        "GET /v1/subscriptions/{id}",
        "GET /v1/workers",
        "GET /v1/workers/{worker_id}",
        "PATCH /v1/jobs/{id}",
        "PATCH /v1/queues/{name}",
        "POST /v1/admin/cluster",
        "POST /v1/admin/jobs/cancel",
        "POST /v1/admin/jobs/delete",
        "POST /v1/admin/jobs/edit",
        "POST /v1/admin/jobs/hold",
        "POST /v1/admin/jobs/release",
        "POST /v1/admin/jobs/rerun",
        "POST /v1/admin/jobs/retry",
        "POST /v1/admin/jobs/run-now",
        "POST /v1/admin/jobs/unhold",
        "POST /v1/admin/jobs/{id}/release",
        "POST /v1/claims",
        "POST /v1/completions",
        "POST /v1/heartbeats",
        "POST /v1/jobs",
        "POST /v1/jobs/bulk",
        "POST /v1/jobs/{id}/cancel",
        "POST /v1/jobs/{id}/complete",
        "POST /v1/jobs/{id}/fail",
        "POST /v1/jobs/{id}/heartbeat",
        "POST /v1/jobs/{id}/hold",
        "POST /v1/jobs/{id}/output",
        "POST /v1/jobs/{id}/release",
        "POST /v1/jobs/{id}/rerun",
        "POST /v1/jobs/{id}/retry",
        "POST /v1/jobs/{id}/run-now",
        "POST /v1/jobs/{id}/unhold",
        "POST /v1/outputs",
        "POST /v1/queues/{name}/pause",
        "POST /v1/queues/{name}/resume",
        "POST /v1/schedules",
        "POST /v1/schedules/bulk",
        "POST /v1/schedules/pause",
        "POST /v1/schedules/preview",
        "POST /v1/schedules/remove",
        "POST /v1/schedules/resume",
        "POST /v1/schedules/{id}/backfill",
        "POST /v1/schedules/{id}/pause",
        "POST /v1/schedules/{id}/resume",
        "POST /v1/schedules/{id}/run",
        "POST /v1/subscriptions",
        "POST /v1/subscriptions/{id}/enable",
        "POST /v1/subscriptions/{id}/secret",
        "POST /v1/workers/{worker_id}/recalls",
        "PUT /v1/limits/{scope}/{name}",
        "PUT /v1/schedules/{id}",
    ];
    assert_eq!(calls.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}

#[test]
fn it_is_sound_openapi_3_1() {
    let document = document();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1.")));
    assert_eq!(document["info"]["title"], "Leasehold");
    assert_eq!(document["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 20, "{found:?}");
    for reference in found {
        let pointer = reference.strip_prefix('#').expect("a reference within the document");
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let id = operation["operationId"].as_str().expect("an id");
        assert!(ids.insert(id), "two operations are called {id}");
        assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}");
        let parameters = operation["parameters"].as_array().map_or(&[][..], Vec::as_slice);
        let in_path = parameters.iter().any(|parameter| parameter["in"] == "path" && parameter["name"] == "id");
        assert_eq!(in_path, path.contains("{id}"), "{method} {path}");
    }
}

#[test]
fn it_says_of_every_refusal_that_it_is_a_problem() {
    let document = document();
    for (method, path, operation) in operations(&document) {
        let responses = operation["responses"].as_object().expect("responses");
        assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path}");
        for (status, response) in responses.iter().filter(|(status, _)| status.as_str() >= "400") {
            let schema = &response["content"]["application/problem+json"]["schema"]["$ref"];
            assert_eq!(schema, "#/components/schemas/Problem", "{method} {path} {status}");
        }
        let expected: &[&str] = if method == "POST" && path.starts_with("/v1/") {
            &["400", "401", "403", "422", "500", "503"]
        } else {
            &["500"]
        };
        for status in expected {
            assert!(responses.contains_key(*status), "{method} {path} does not tell of {status}");
        }
    }
}

#[tokio::test]
async fn a_server_gives_it() {
    let server = Server::start().await;
    let given = super::server::value(reqwest::get(server.url("/openapi.json")).await.expect("an answer")).await;
    assert_eq!(given, document());
}
