use serde_json::json;

use super::super::flavour::Flavour;
use super::*;

fn index(change: impl FnOnce(&mut Value)) -> IndexInfo {
    let mut found = json!({
        "mappings": { "dynamic": "strict", "_meta": { "leasehold": { "version": MAPPING_VERSION } } },
        "settings": { "index.number_of_shards": "1", "index.translog.durability": "request" },
    });
    change(&mut found);
    serde_json::from_value(found).expect("an index")
}

fn refusal(change: impl FnOnce(&mut Value)) -> String {
    check("x-jobs", &index(change)).expect_err("a refusal").to_string()
}

#[test]
fn an_index_as_it_is_made_here_is_accepted() {
    let options = ElasticsearchOptions::default();
    let indices = options.indices().expect("names");
    let kinds = Kind::ALL.map(|kind| (kind, Flavour::Elasticsearch));
    for (kind, flavour) in kinds.into_iter().chain([(Kind::Jobs, Flavour::OpenSearch)]) {
        let definitions = Definitions { flavour, indices: &indices, options: &options };
        let definition = definitions.of(kind).expect("JSON");
        assert_eq!(definition["settings"]["index"]["refresh_interval"], "1000ms");
        assert_eq!(definition["settings"]["index"]["translog"]["durability"], "request");
        let info =
            IndexInfo { aliases: HashMap::new(), mappings: definition["mappings"].clone(), settings: HashMap::new() };
        check("x-jobs", &info).expect("an index that is accepted");
    }
    check("x-jobs", &index(|_| {})).expect("an index that is accepted");
}

#[test]
fn an_index_that_would_break_the_promise_is_refused_with_the_way_to_mend_it() {
    let asynchronous = refusal(|found| found["settings"]["index.translog.durability"] = "async".into());
    assert!(asynchronous.contains("PUT /x-jobs/_settings"), "{asynchronous}");
    let loose = refusal(|found| found["mappings"]["dynamic"] = "true".into());
    assert!(loose.contains("PUT /x-jobs/_mapping"), "{loose}");
    let blocked = refusal(|found| found["settings"]["index.blocks.read_only_allow_delete"] = "true".into());
    assert!(blocked.contains("index.blocks.read_only_allow_delete\": null"), "{blocked}");
    let foreign = refusal(|found| found["mappings"]["_meta"] = Value::Null);
    assert!(foreign.contains("another index prefix"), "{foreign}");
    let older = refusal(|found| found["mappings"]["_meta"]["leasehold"]["version"] = 0.into());
    assert!(older.contains("leasehold migrate"), "{older}");
    let newer = refusal(|found| found["mappings"]["_meta"]["leasehold"]["version"] = 99.into());
    assert!(newer.contains("upgrade this program"), "{newer}");
}

#[test]
fn what_a_restart_cannot_mend_is_not_tried_again() {
    assert!(unreachable("localhost:1: Connection refused (os error 111)").is_transient());
    assert!(!unreachable("localhost:1: invalid peer certificate: UnknownIssuer").is_transient());
    assert!(!unreachable("localhost:1: received corrupt message of type InvalidContentType").is_transient());
}
