use super::*;

#[test]
fn another_prefix_gets_objects_of_its_own() {
    let usual = objects(PREFIX).expect("objects");
    let others = objects("night-").expect("objects");
    let read =
        |text: &str| -> Vec<Value> { text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect() };
    let ids = |objects: &[Value]| -> Vec<String> {
        objects.iter().map(|object| object["id"].as_str().expect("an id").to_owned()).collect()
    };
    let (usual, others) = (read(&usual), read(&others));
    assert_eq!(usual.len(), others.len());
    let changed: Vec<String> = ids(&usual).iter().map(|id| id.replacen(PREFIX, "night-", 1)).collect();
    assert_eq!(ids(&others), changed);
    let view = others.iter().find(|object| object["type"] == "index-pattern").expect("a data view");
    assert_eq!(view["attributes"]["title"], "night-all");
    for reference in others.iter().flat_map(|object| object["references"].as_array().expect("references")) {
        assert!(changed.contains(&reference["id"].as_str().expect("an id").to_owned()), "{reference}");
    }
}

#[test]
fn the_import_goes_below_the_address_that_was_given() {
    let url = |kibana: &str, space: Option<&str>, overwrite| {
        let import = Import { overwrite, space: space.map(str::to_owned) };
        import.url(Url::parse(kibana).expect("a URL")).expect("an address").to_string()
    };
    assert_eq!(url("http://k:5601", None, true), "http://k:5601/api/saved_objects/_import?overwrite=true");
    assert_eq!(url("http://k:5601/", None, false), "http://k:5601/api/saved_objects/_import");
    assert_eq!(url("https://k/kibana/", Some("a b"), false), "https://k/kibana/s/a%20b/api/saved_objects/_import");
}
