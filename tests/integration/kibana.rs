//! What Kibana is given to show: its queries and fields are those of the real index, and it is installed through
//! Kibana's own call.
//!
//! Kibana itself is not brought up here: it comes as a Docker image or a distribution of its own only. What it does
//! with these objects is reduced to what can be held against the server: their queries run, and their fields exist and
//! can be sorted and grouped by as the objects ask.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use leasehold::query::fields::Field;
use leasehold::query::kql::Expression;
use leasehold::store::elasticsearch::kql;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::program::{leasehold, run};
use crate::servers::{self, IndexSet};

const OBJECTS: &str = include_str!("../../deploy/kibana/leasehold.ndjson");
/// What the job index is called in the file.
const VIEW: &str = "leasehold-all";
/// The column that counts documents.
const RECORDS: &str = "___records___";

fn objects() -> Vec<Value> {
    OBJECTS.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

fn of_type(wanted: &str) -> Vec<Value> {
    let found: Vec<Value> = objects().into_iter().filter(|object| object["type"] == wanted).collect();
    assert!(!found.is_empty(), "no {wanted}");
    found
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}")).to_owned()
}

/// JSON in a text, as Kibana keeps parts of its objects.
fn nested(value: &Value) -> Value {
    serde_json::from_str(&text(value)).expect("JSON in a text")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("not a list: {value}"))
}

/// The columns of a chart, with their names.
fn columns(chart: &Value) -> Vec<(String, Value)> {
    let layers = chart["attributes"]["state"]["datasourceStates"]["formBased"]["layers"].as_object().expect("layers");
    let columns = layers.values().flat_map(|layer| layer["columns"].as_object().expect("columns").clone());
    columns.collect()
}

/// Every query in the objects.
fn queries() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut add = |query: &Value| {
        assert_eq!(query["language"], "kuery", "{query}");
        found.insert(text(&query["query"]));
    };
    for object in objects() {
        let attributes = &object["attributes"];
        if let source @ Value::String(_) = &attributes["kibanaSavedObjectMeta"]["searchSourceJSON"] {
            add(&nested(source)["query"]);
        }
        if object["type"] == "lens" {
            add(&attributes["state"]["query"]);
            for (_, column) in columns(&object) {
                if column["filter"].is_object() {
                    add(&column["filter"]);
                }
            }
        }
    }
    assert!(found.len() > 8, "{found:?}");
    found
}

#[test]
fn nothing_refers_to_what_is_not_there() {
    let ids: BTreeSet<(String, String)> =
        objects().iter().map(|object| (text(&object["type"]), text(&object["id"]))).collect();
    assert_eq!(ids.len(), objects().len(), "an id is there twice");
    for object in objects() {
        for reference in list(&object["references"]) {
            let target = (text(&reference["type"]), text(&reference["id"]));
            assert!(ids.contains(&target), "{} refers to {target:?}", object["id"]);
        }
    }
    for board in of_type("dashboard") {
        let names: BTreeSet<String> =
            list(&board["references"]).iter().map(|reference| text(&reference["name"])).collect();
        let panels = nested(&board["attributes"]["panelsJSON"]);
        assert_eq!(list(&panels).len(), names.len());
        for panel in list(&panels) {
            let name = format!("{}:{}", text(&panel["panelIndex"]), text(&panel["panelRefName"]));
            assert!(names.contains(&name), "{name} is not among {names:?}");
        }
    }
    for chart in of_type("lens") {
        let names: BTreeSet<String> = columns(&chart).into_iter().map(|(name, _)| name).collect();
        let visualization = chart["attributes"]["state"]["visualization"].to_string();
        assert!(names.iter().any(|name| visualization.contains(name)), "{}", chart["id"]);
        for (_, column) in columns(&chart) {
            for reference in column["references"].as_array().into_iter().flatten() {
                assert!(names.contains(&text(reference)), "{}: {reference}", chart["id"]);
            }
        }
    }
}

#[test]
fn a_formula_says_what_its_parts_do() {
    let mut formulas = 0;
    for chart in of_type("lens") {
        let columns: std::collections::BTreeMap<String, Value> = columns(&chart).into_iter().collect();
        for column in columns.values().filter(|column| column["operationType"] == "formula") {
            let math = &columns[&text(&column["references"][0])];
            let tree = &math["params"]["tinymathAst"];
            assert_eq!(tree["name"], "divide");
            let part = |index: usize| text(&columns[&text(&tree["args"][index])]["filter"]["query"]);
            let formula = format!("count(kql='{}') / count(kql='{}')", part(0), part(1));
            assert_eq!(text(&column["params"]["formula"]), formula);
            formulas += 1;
        }
    }
    assert_eq!(formulas, 1, "the rate of orphans is a formula");
}

/// An empty index, as the store makes it.
async fn index() -> (IndexSet, String, reqwest::Client) {
    let set = servers::elasticsearch().await.index_set().await;
    let view = of_type("index-pattern").remove(0);
    let title = text(&view["attributes"]["title"]);
    assert_eq!(title, VIEW);
    let index = format!("{}/{}", set.url(), title.replacen("leasehold-", set.prefix(), 1));
    (set, index, reqwest::Client::new())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_runs_on_the_real_index() {
    let (_set, index, client) = index().await;
    for query in queries() {
        let expression = Expression::parse(&query).unwrap_or_else(|error| panic!("{}", error.render()));
        let body = json!({ "query": kql::compile(&expression) });
        let request = client.post(format!("{index}/_search")).json(&body);
        let answer = request.send().await.expect("an answer");
        let status = answer.status();
        let body = answer.text().await.expect("a text");
        assert!(status.is_success(), "{query}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_is_in_the_real_index_and_can_do_what_is_asked_of_it() {
    let (_set, index, client) = index().await;
    let answer = client.get(format!("{index}/_field_caps?fields=*")).send().await.expect("an answer");
    let answer: Value = answer.json().await.expect("JSON");
    let type_of = |name: &str| -> (String, bool) {
        let Some(types) = answer["fields"][name].as_object() else { panic!("the index has no field `{name}`") };
        let (name, abilities) = types.iter().next().expect("a type");
        (name.clone(), abilities["aggregatable"] == true)
    };
    let view = of_type("index-pattern").remove(0);
    let time = text(&view["attributes"]["timeFieldName"]);
    assert_eq!(type_of(&time), ("date".to_owned(), true));
    for field in nested(&view["attributes"]["fieldFormatMap"]).as_object().expect("formats").keys() {
        assert_eq!(type_of(field).0, "long", "{field} is shown as a duration");
    }
    for search in of_type("search") {
        for column in list(&search["attributes"]["columns"]) {
            let name = text(column);
            type_of(name.as_str());
            assert!(Field::named(&name).is_some(), "{name} is not a field that jobs are asked for by");
        }
        for order in list(&search["attributes"]["sort"]) {
            assert!(type_of(&text(&order[0])).1, "{order} cannot be sorted by");
        }
    }
    for chart in of_type("lens") {
        for (_, column) in columns(&chart) {
            let Some(name) = column["sourceField"].as_str().filter(|name| *name != RECORDS) else { continue };
            let found = type_of(name);
            let wanted = match text(&column["operationType"]).as_str() {
                "terms" => ["keyword"].as_slice(),
                "date_histogram" => &["date"],
                "percentile" => &["long", "double"],
                other => panic!("{other} in {}", chart["id"]),
            };
            assert!(wanted.contains(&found.0.as_str()) && found.1, "{name} in {}: {found:?}", chart["id"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_shown_without_the_bodies_and_headers_of_their_calls() {
    let set = servers::elasticsearch().await.index_set().await;
    let (url, prefix) = (set.url(), set.prefix());
    let view = of_type("index-pattern").remove(1);
    let index = text(&view["attributes"]["title"]).replacen("leasehold-", prefix, 1);
    let mapping: Value =
        reqwest::get(format!("{url}/{index}/_mapping")).await.expect("an answer").json().await.expect("JSON");
    let mapping = mapping.as_object().and_then(|indices| indices.values().next()).expect("an index");
    let properties = &mapping["mappings"]["properties"];
    assert_eq!(properties[text(&view["attributes"]["timeFieldName"])]["type"], "date");
    for field in nested(&view["attributes"]["fieldFormatMap"]).as_object().expect("formats").keys() {
        let field = properties.pointer(&format!("/{}", field.replace('.', "/properties/"))).expect("it is there");
        assert_eq!(field["type"], "long");
    }
    let hidden = nested(&view["attributes"]["sourceFilters"]);
    let hidden: BTreeSet<String> = list(&hidden).iter().map(|filter| text(&filter["value"])).collect();
    assert!(hidden.contains("document"), "the whole schedule is in it");
    assert!(hidden.iter().all(|field| properties[field].is_object()), "{hidden:?}");
}

/// The part of Kibana that takes imports, as its documentation has it.
#[derive(Clone)]
struct Kibana {
    answer: Arc<Mutex<(StatusCode, Value)>>,
    calls: Arc<Mutex<Vec<(Uri, HeaderMap, Bytes)>>>,
    address: SocketAddr,
}

impl Kibana {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let kibana = Self {
            answer: Arc::new(Mutex::new((StatusCode::OK, Value::Null))),
            calls: Arc::default(),
            address: listener.local_addr().expect("an address"),
        };
        let take = |State(kibana): State<Self>, uri: Uri, headers: HeaderMap, body: Bytes| async move {
            kibana.calls.lock().push((uri, headers, body));
            let (status, answer) = kibana.answer.lock().clone();
            (status, answer.to_string())
        };
        let router = Router::new().fallback(take).with_state(kibana.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        kibana
    }

    /// Runs the command against it.
    async fn install(&self, status: StatusCode, answer: Value, more: &[&str]) -> (Option<i32>, String) {
        *self.answer.lock() = (status, answer);
        let url = format!("--kibana-url=http://{}", self.address);
        let arguments: Vec<String> = ["kibana", "install", &url].iter().chain(more).map(ToString::to_string).collect();
        let command = move || {
            let place = tempfile::tempdir().expect("a directory");
            let ended = run(place.path(), arguments);
            (ended.code(), ended.said())
        };
        tokio::task::spawn_blocking(command).await.expect("it ran")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_objects_are_sent_to_kibanas_import() {
    let kibana = Kibana::start().await;
    let count = objects().len();
    let fine = json!({ "success": true, "successCount": count });
    let (code, said) = kibana.install(StatusCode::OK, fine, &["--space", "night", "--kibana-api-key", "k"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("{count} objects installed")), "{said}");
    let (uri, headers, body) = kibana.calls.lock().remove(0);
    assert_eq!(uri, "/s/night/api/saved_objects/_import?overwrite=true");
    assert!(headers.contains_key("kbn-xsrf"));
    assert_eq!(headers["authorization"], "ApiKey k");
    assert!(headers["content-type"].to_str().expect("a text").starts_with("multipart/form-data; boundary="));
    let body = String::from_utf8(body.to_vec()).expect("a text");
    assert!(body.contains("name=\"file\"; filename=\"leasehold.ndjson\""), "{body}");
    assert!(body.contains(OBJECTS), "the file is sent as it is");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kibana_refuses_is_told() {
    let kibana = Kibana::start().await;
    let conflict = json!({ "success": false, "successCount": 3, "errors": [
        { "id": "leasehold-jobs", "type": "index-pattern", "error": { "type": "conflict" } },
    ] });
    let (code, said) = kibana.install(StatusCode::OK, conflict.clone(), &["--keep"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("1 left as they were"), "{said}");
    assert_eq!(kibana.calls.lock().remove(0).0, "/api/saved_objects/_import");
    let (code, said) = kibana.install(StatusCode::OK, conflict, &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("leasehold-jobs") && said.contains("conflict"), "{said}");
    let (code, said) = kibana.install(StatusCode::UNAUTHORIZED, json!({}), &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("credentials"), "{said}");
}

#[test]
fn a_kibana_that_is_not_there_is_told_and_the_password_is_not() {
    let place = tempfile::tempdir().expect("a directory");
    let port = servers::ports::free();
    let mut command = leasehold(place.path(), ["kibana", "install"]);
    command.env("LEASEHOLD_KIBANA_URL", format!("http://elastic:geheim@127.0.0.1:{port}"));
    let ended = crate::program::Started::of(&mut command).end();
    assert_eq!(ended.code(), Some(3), "{}", ended.said());
    assert!(!ended.said().contains("geheim"), "{}", ended.said());
}

#[test]
fn the_objects_can_be_printed_to_be_imported_by_hand() {
    let place = tempfile::tempdir().expect("a directory");
    assert_eq!(run(place.path(), ["kibana", "print"]).expect(0).stdout(), OBJECTS);
}
