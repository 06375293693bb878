//! What the deployment files say agrees: with each other, with Cargo.toml, and with what the tests run against.

mod context;
mod members;
mod page;
mod tokens;

use std::process::Stdio;

use serde_norway::Value;
use tokens::Tokens;

use crate::program::{Started, leasehold, run, until};
use crate::servers::{self, elasticsearch_version, ports};

const COMPOSE: &str = include_str!("../../docker-compose.yml");
const DOCKERFILE: &str = include_str!("../../Dockerfile");
const MANIFEST: &str = include_str!("../../Cargo.toml");
const SCRAPED: &str = include_str!("../../deploy/prometheus/compose.yml");
const DATA_SOURCES: &str = include_str!("../../deploy/grafana/provisioning/datasources/prometheus.yml");
const DASHBOARDS: &str = include_str!("../../deploy/grafana/provisioning/dashboards/leasehold.yml");

/// The processes of Leasehold that listen, and the port of each in its container.
const LISTENING: [(&str, u16); 3] = [("leasehold", 7400), ("leasehold-2", 7400), ("monitor", 7401)];

fn service(name: &str) -> Value {
    let mut compose: Value = serde_norway::from_str(COMPOSE).expect("docker-compose.yml is YAML");
    compose.apply_merge().expect("what is merged is a map");
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
fn every_port_is_bound_to_loopback_because_some_do_not_ask_who_calls() {
    assert_eq!(service("elasticsearch")["environment"]["xpack.security.enabled"].as_str(), Some("false"));
    for name in ["elasticsearch", "kibana", "leasehold", "leasehold-2", "monitor", "prometheus", "grafana"] {
        let ports = strings(&service(name)["ports"]);
        assert!(!ports.is_empty() && ports.iter().all(|port| port.starts_with("127.0.0.1:")), "{name}: {ports:?}");
    }
}

#[test]
fn each_service_waits_for_elasticsearch_and_each_can_tell_its_health() {
    for name in ["kibana", "leasehold", "leasehold-2", "monitor"] {
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
    for (name, port) in LISTENING {
        let command = strings(&service(name)["command"]);
        let follows = |flag: &str, value: &str| command.windows(2).any(|pair| pair == [flag, value]);
        assert!(follows("--listen", &format!("0.0.0.0:{port}")) && follows("--store", "elasticsearch"), "{command:?}");
        assert!(follows("--elasticsearch-url", "http://elasticsearch:9200"), "{command:?}");
        let advertised = service(name)["environment"]["LEASEHOLD_ADVERTISE"].clone();
        assert_eq!(advertised.as_str(), Some(format!("http://{name}:{port}").as_str()));
        let published = strings(&service(name)["ports"]);
        assert!(published[0].ends_with(&format!(":{port}")), "{name}: {published:?}");
    }
    let managers = "http://leasehold:7400,http://leasehold-2:7400";
    assert_eq!(strings(&service("worker")["command"])[..3], ["worker", "--server", managers]);
    assert!(DOCKERFILE.contains("EXPOSE 7400\n"));
}

#[test]
fn what_the_image_runs_by_itself_can_be_reached_and_is_not_open_by_mistake() {
    let command = DOCKERFILE.lines().rev().find_map(|line| line.strip_prefix("CMD ")).expect("a command");
    let command: Vec<String> = serde_json::from_str(command).expect("a list");
    assert_eq!(command, ["serve", "--listen", "0.0.0.0:7400"]);
    let place = tempfile::tempdir().expect("a directory");
    let said = run(place.path(), &command).expect(2).stderr();
    assert!(said.contains("--insecure") && said.contains("tokens"), "{said}");
}

/// Where the file with the secret of the managers is in each container.
fn secret_file() -> String {
    let files = LISTENING.map(|(name, _)| service(name)["environment"]["LEASEHOLD_CLUSTER_SECRET_FILE"].clone());
    assert!(files.iter().all(|file| *file == files[0]), "the managers share one: {files:?}");
    files[0].as_str().expect("a path").to_owned()
}

#[test]
fn prometheus_scrapes_every_process_and_grafana_shows_what_it_found() {
    let scraped: Value = serde_norway::from_str(SCRAPED).expect("YAML");
    assert_eq!(strings(&scraped["rule_files"]), ["leasehold.rules.yml"]);
    let targets = strings(&scraped["scrape_configs"][0]["static_configs"][0]["targets"]);
    assert_eq!(targets, LISTENING.map(|(name, port)| format!("{name}:{port}")));

    let prometheus = service("prometheus");
    assert!(strings(&prometheus["command"]).contains(&"--config.file=/etc/prometheus/compose.yml".to_owned()));
    let mounted = |service: &Value, from: &str, to: &str| {
        strings(&service["volumes"]).contains(&format!("{from}:{to}:ro"))
            && std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(from).exists()
    };
    assert!(mounted(&prometheus, "./deploy/prometheus", "/etc/prometheus"));
    let grafana = service("grafana");
    assert!(mounted(&grafana, "./deploy/grafana/provisioning", "/etc/grafana/provisioning"));
    assert!(mounted(&grafana, "./deploy/grafana/leasehold.json", "/etc/leasehold/leasehold.json"));
    let sources: Value = serde_norway::from_str(DATA_SOURCES).expect("YAML");
    let source = &sources["datasources"][0];
    assert_eq!((source["type"].as_str(), source["url"].as_str()), (Some("prometheus"), Some("http://prometheus:9090")));
    let dashboards: Value = serde_norway::from_str(DASHBOARDS).expect("YAML");
    assert_eq!(dashboards["providers"][0]["options"]["path"].as_str(), Some("/etc/leasehold"));
}

/// The commands of all services together, with the addresses of this machine in place of the containers' names.
#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_all_services_together_run_a_job() {
    let elasticsearch = servers::elasticsearch().await.url().to_owned();
    let place = tempfile::tempdir().expect("a directory");
    let tokens = Tokens::make(place.path());
    let addresses = LISTENING.map(|(name, port)| (name, port, format!("127.0.0.1:{}", ports::free())));
    let [first, second] = [0, 1].map(|number| format!("http://{}", addresses[number].2));
    let indices = servers::elasticsearch().await.index_set().await;
    let prefix = indices.prefix();
    let start = |name: &str, here: &str, port: u16| {
        let service = service(name);
        let command = strings(&service["command"]).into_iter().map(|word| {
            let word =
                word.replace("http://elasticsearch:9200", &elasticsearch).replace("http://leasehold:7400", &first);
            word.replace(&format!("0.0.0.0:{port}"), here)
        });
        let mut process = leasehold(place.path(), command);
        let log = std::fs::File::create(place.path().join(format!("{name}.log"))).expect("a log");
        let process = process.stdout(Stdio::null()).stderr(log).env("LEASEHOLD_CONFIG", tokens.settings_of(&service));
        if port > 0 {
            process
                .env("LEASEHOLD_ADVERTISE", format!("http://{here}"))
                .env("LEASEHOLD_CLUSTER_SECRET_FILE", tokens.here(&secret_file()));
        }
        // A worker has no such setting, and no use for it.
        Started::of(process.env("LEASEHOLD_INDEX_PREFIX", prefix))
    };
    let _listening = addresses.clone().map(|(name, port, here)| start(name, &here, port));
    let _worker = start("worker", "", 0);
    // As `docker compose exec leasehold leasehold …` has it.
    let settings = tokens.settings_of(&service("leasehold"));
    let scraped: Value = serde_norway::from_str(SCRAPED).expect("YAML");
    let of_prometheus = scraped["scrape_configs"][0]["authorization"]["credentials_file"].as_str().expect("a file");
    let of_prometheus = tokens.text(of_prometheus);
    let place = place.path().to_owned();
    let told = tokio::task::spawn_blocking(move || {
        let at = |words: &[&str], url: &str| {
            let mut command = leasehold(&place, words);
            Started::of(command.env("LEASEHOLD_SERVER", url).env("LEASEHOLD_CONFIG", &settings)).end()
        };
        until("the second manager is there", || at(&["list"], &second).code() == Some(0));
        let id = at(&["submit", "--", "echo", "hello"], &second).expect(0).stdout().trim().to_owned();
        at(&["wait", &id, "--timeout", "60s"], &second).expect(0);
        let got = |address: &str, path: &str, token: &str| {
            let host = address.trim_start_matches("http://");
            // It listens once its store is open.
            let Ok(mut stream) = std::net::TcpStream::connect(host) else { return String::new() };
            let head = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}");
            std::io::Write::write_all(&mut stream, format!("{head}\r\nconnection: close\r\n\r\n").as_bytes())
                .expect("sent");
            std::io::read_to_string(stream).expect("an answer")
        };
        until("the monitor leads", || {
            got(&addresses[2].2, "/metrics", &of_prometheus).contains("leasehold_monitor_leader 1")
        });
        for (name, _, address) in &addresses {
            assert!(got(address, "/metrics", &of_prometheus).contains("leasehold_build_info"), "{name} is scraped");
            assert!(got(address, "/metrics", "").contains(" 401 "), "{name} is not, by anybody else");
            assert!(got(address, "/readyz", "").contains(" 200 "), "{name} answers its probe");
        }
        at(&["get", "--json", &id], &first).json(0)["result"]["stdout"].clone()
    });
    assert_eq!(told.await.expect("it ran"), "hello\n");
}

#[test]
fn the_image_is_built_with_the_rust_that_the_manifest_names_and_does_not_run_as_root() {
    let manifest: toml::Table = MANIFEST.parse().expect("Cargo.toml is TOML");
    let rust = manifest["package"]["rust-version"].as_str().expect("a version");
    let builder = format!("FROM rust:{rust}-");
    assert!(DOCKERFILE.lines().any(|line| line.starts_with(&builder)), "the Dockerfile has no line `{builder}…`");
    assert_eq!(manifest["profile"]["release"]["strip"].as_str(), Some("symbols"), "a release is five times as large");
    let user = DOCKERFILE.lines().rev().find_map(|line| line.strip_prefix("USER "));
    assert!(user.is_some_and(|user| user != "root" && user != "0"), "{user:?}");
}
