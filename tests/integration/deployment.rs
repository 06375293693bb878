//! What the deployment files say agrees: with each other, with Cargo.toml, and with what the tests run against.

use serde_norway::Value;

use crate::servers::elasticsearch_version;

const COMPOSE: &str = include_str!("../../docker-compose.yml");
const DOCKERFILE: &str = include_str!("../../Dockerfile");
const MANIFEST: &str = include_str!("../../Cargo.toml");

fn service(name: &str) -> Value {
    let compose: Value = serde_norway::from_str(COMPOSE).expect("docker-compose.yml is YAML");
    compose["services"].get(name).unwrap_or_else(|| panic!("docker-compose.yml has no service `{name}`")).clone()
}

fn strings(list: &Value) -> Vec<String> {
    let items = list.as_sequence().expect("a list");
    items.iter().map(|item| item.as_str().expect("a string").to_owned()).collect()
}

#[test]
fn elasticsearch_and_kibana_are_official_images_of_the_one_version() {
    let version = elasticsearch_version();
    let numbers: Vec<&str> = version.split('.').collect();
    assert!(numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok()), "{version} is exact");
    for product in ["elasticsearch", "kibana"] {
        let image = format!("docker.elastic.co/{product}/{product}:{version}");
        assert_eq!(service(product)["image"].as_str(), Some(image.as_str()));
    }
}

#[test]
fn every_port_is_bound_to_loopback_because_security_is_off() {
    assert_eq!(service("elasticsearch")["environment"]["xpack.security.enabled"].as_str(), Some("false"));
    for name in ["elasticsearch", "kibana", "leasehold"] {
        let ports = strings(&service(name)["ports"]);
        assert!(!ports.is_empty() && ports.iter().all(|port| port.starts_with("127.0.0.1:")), "{name}: {ports:?}");
    }
}

#[test]
fn each_service_waits_for_elasticsearch_and_each_can_tell_its_health() {
    for name in ["kibana", "leasehold"] {
        let condition = &service(name)["depends_on"]["elasticsearch"]["condition"];
        assert_eq!(condition.as_str(), Some("service_healthy"), "{name}");
    }
    for name in ["elasticsearch", "kibana"] {
        assert!(!strings(&service(name)["healthcheck"]["test"]).is_empty(), "{name}");
    }
    assert!(DOCKERFILE.lines().any(|line| line.starts_with("HEALTHCHECK")), "leasehold's is in its image");
}

#[test]
fn leasehold_serves_on_the_elasticsearch_of_the_same_file() {
    let command = strings(&service("leasehold")["command"]);
    let expected = [
        "serve",
        "--listen",
        "0.0.0.0:7400",
        "--store",
        "elasticsearch",
        "--elasticsearch-url",
        "http://elasticsearch:9200",
        "--insecure",
    ];
    assert_eq!(command, expected);
    assert!(DOCKERFILE.contains("EXPOSE 7400\n"));
}

#[test]
fn the_image_is_built_with_the_rust_that_the_manifest_names_and_does_not_run_as_root() {
    let manifest: toml::Table = MANIFEST.parse().expect("Cargo.toml is TOML");
    let rust = manifest["package"]["rust-version"].as_str().expect("a version");
    let builder = format!("FROM rust:{rust}-");
    assert!(DOCKERFILE.lines().any(|line| line.starts_with(&builder)), "the Dockerfile has no line `{builder}…`");
    let user = DOCKERFILE.lines().rev().find_map(|line| line.strip_prefix("USER "));
    assert!(user.is_some_and(|user| user != "root" && user != "0"), "{user:?}");
}
