//! Members of one cluster, as docker-compose.yml and Kubernetes run them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use leasehold::client::Client;
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_norway::Value;

use super::tokens::Tokens;
use super::{COMPOSE, DOCKERFILE, MANIFEST, SCRAPED, secret_file, service, strings};
use crate::program::{DEADLINE, Started, leasehold, run};
use crate::servers::ports;

const KUBERNETES: &str = include_str!("../../../deploy/kubernetes/leasehold.yaml");
const KUSTOMIZATION: &str = include_str!("../../../deploy/kubernetes/kustomization.yaml");
const SECRET: &str = include_str!("../../../deploy/kubernetes/secret.yaml");

const MEMBERS: [&str; 3] = ["member-1", "member-2", "member-3"];
const WORKER: &str = "member-worker";
const TEST_SECRET: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
/// A secret that stood in docker-compose.yml for everybody to read.
const SAMPLE_SECRET: &str = "bm90IGEgc2VjcmV0LCBidXQgYSBzYW1wbGUgb2Ygb25l";

fn environment(service: &Value) -> BTreeMap<String, String> {
    let variables = service["environment"].as_mapping().expect("a map").iter();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    variables.map(|(name, value)| (text(name), text(value))).collect()
}

#[test]
fn the_members_of_compose_are_one_cluster_that_is_started_by_name_only() {
    let peers = MEMBERS.iter().zip(1..).map(|(name, number)| format!("{number}=http://{name}:7400"));
    let peers = peers.collect::<Vec<_>>().join(",");
    let volumes: Value = serde_norway::from_str::<Value>(COMPOSE).expect("YAML")["volumes"].clone();
    for (name, number) in MEMBERS.into_iter().zip(1..) {
        let member = service(name);
        assert_eq!(strings(&member["profiles"]), ["members"]);
        assert_eq!(strings(&member["ports"]), [format!("127.0.0.1:741{number}:7400")]);
        let volume = format!("{name}-data");
        assert_eq!(strings(&member["volumes"])[0], format!("{volume}:/var/lib/leasehold"));
        assert!(volumes.get(&volume).is_some(), "{volume}");
        let environment = environment(&member);
        assert_eq!(environment["LEASEHOLD_MEMBER"], name);
        assert_eq!(environment["LEASEHOLD_PEERS"], peers);
        assert_eq!(environment["LEASEHOLD_CLUSTER_SECRET_FILE"], secret_file());
        assert_eq!(
            member["stop_grace_period"].as_str(),
            Some("60s"),
            "a leader needs more than the ten seconds of Docker"
        );
    }
    assert_eq!(strings(&service(WORKER)["profiles"]), ["members"]);
    let scraped: Value = serde_norway::from_str(SCRAPED).expect("YAML");
    let found = &scraped["scrape_configs"][1]["dns_sd_configs"][0];
    assert_eq!((strings(&found["names"]), found["port"].as_u64()), (MEMBERS.map(str::to_owned).to_vec(), Some(7400)));
}

/// The commands of the members and of their worker, each member with an address of this machine in place of its name.
#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_members_of_compose_run_a_job() {
    let place = tempfile::tempdir().expect("a directory");
    let tokens = Tokens::make(place.path());
    let hosts = MEMBERS.iter().zip(1..).map(|(name, number)| (*name, format!("127.0.0.{number}"), ports::free()));
    let hosts: Vec<(&str, String, u16)> = hosts.collect();
    let here = |text: &str| {
        hosts.iter().fold(text.to_owned(), |text, (name, host, port)| {
            text.replace(&format!("{name}:7400"), &format!("{host}:{port}")).replace(name, host)
        })
    };
    let start = |name: &str, listen: &str| {
        let service = service(name);
        let command = strings(&service["command"]);
        let command = command.iter().map(|word| here(word).replace("0.0.0.0:7400", listen));
        let own = place.path().join(name);
        std::fs::create_dir(&own).expect("a directory");
        let mut process = leasehold(&own, command);
        process.envs(environment(&service).into_iter().map(|(name, value)| (name, here(&value))));
        process.env("LEASEHOLD_CONFIG", tokens.settings_of(&service));
        if name != WORKER {
            process.env("LEASEHOLD_CLUSTER_SECRET_FILE", tokens.here(&secret_file()));
        }
        Started::of(process.stdout(Stdio::null()).stderr(File::create(own.join("log")).expect("a log")))
    };
    let _members: Vec<Started> =
        hosts.iter().map(|(name, host, port)| start(name, &format!("{host}:{port}"))).collect();
    let _worker = start(WORKER, "");
    let urls: Vec<String> = hosts.iter().map(|(_, host, port)| format!("http://{host}:{port}")).collect();
    let settings = tokens.settings_of(&service(MEMBERS[0]));
    let place = place.path().to_owned();
    let told = tokio::task::spawn_blocking(move || {
        // Until there is a leader, a call waits for it.
        let at = |words: &[&str], url: &str| {
            let mut command = leasehold(&place, words);
            Started::of(command.env("LEASEHOLD_SERVER", url).env("LEASEHOLD_CONFIG", &settings)).end()
        };
        crate::program::until("the third member answers", || at(&["list"], &urls[2]).code() == Some(0));
        let id = at(&["submit", "--", "echo", "hello"], &urls[2]).expect(0).stdout().trim().to_owned();
        at(&["wait", &id, "--timeout", "60s"], &urls[1]).expect(0);
        at(&["get", "--json", &id], &urls[0]).json(0)["result"]["stdout"].clone()
    });
    assert_eq!(told.await.expect("it ran"), "hello\n");
}

#[test]
fn no_secret_stands_in_a_file_of_the_deployment_and_the_one_that_did_is_refused() {
    for text in [COMPOSE, KUBERNETES, SECRET, DOCKERFILE] {
        assert!(!text.contains(SAMPLE_SECRET));
    }
    let place = tempfile::tempdir().expect("a directory");
    for secret in [SAMPLE_SECRET.to_owned(), format!("{TEST_SECRET},{SAMPLE_SECRET}")] {
        let options = ["serve", "--listen", "127.0.0.1:0", "--advertise", "http://127.0.0.1:7400"];
        let options =
            options.into_iter().chain(["--store", "elasticsearch", "--elasticsearch-url", "http://127.0.0.1:9"]);
        let mut command = leasehold(place.path(), options);
        let said = Started::of(command.env("LEASEHOLD_CLUSTER_SECRET", secret)).end().expect(2).stderr();
        assert!(said.contains("everybody can read") && !said.contains(SAMPLE_SECRET), "{said}");
    }
}

/// The resources of a file, by kind and name.
fn resources(text: &str) -> BTreeMap<(String, String), Value> {
    let documents = serde_norway::Deserializer::from_str(text).map(|one| Value::deserialize(one).expect("YAML"));
    let named = documents.filter(|one| !one.is_null()).map(|one| {
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        ((text(&one["kind"]), text(&one["metadata"]["name"])), one)
    });
    named.collect()
}

fn resource(kind: &str, name: &str) -> Value {
    resources(KUBERNETES).remove(&(kind.to_owned(), name.to_owned())).unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn container() -> Value {
    resource("StatefulSet", "leasehold")["spec"]["template"]["spec"]["containers"][0].clone()
}

#[test]
fn the_resources_of_kubernetes_are_about_the_same_pods() {
    let set = resource("StatefulSet", "leasehold")["spec"].clone();
    let pod = &set["template"];
    let labels = &pod["metadata"]["labels"];
    assert_eq!(set["selector"]["matchLabels"], *labels);
    let (clients, members) = (resource("Service", "leasehold"), resource("Service", "leasehold-members"));
    for service in [&clients, &members] {
        assert_eq!(service["spec"]["selector"], *labels);
        assert_eq!(service["spec"]["ports"][0]["targetPort"], container()["ports"][0]["name"]);
        assert_eq!(service["spec"]["ports"][0]["port"].as_u64(), Some(7400));
    }
    assert_eq!(container()["ports"][0]["containerPort"].as_u64(), Some(7400));
    assert_eq!(members["spec"]["clusterIP"].as_str(), Some("None"));
    assert_eq!(members["spec"]["publishNotReadyAddresses"].as_bool(), Some(true));
    assert_eq!(set["serviceName"].as_str(), Some("leasehold-members"));
    assert_eq!(set["podManagementPolicy"].as_str(), Some("Parallel"), "one alone never is ready");
    let budget = resource("PodDisruptionBudget", "leasehold")["spec"].clone();
    assert_eq!((budget["maxUnavailable"].as_u64(), &budget["selector"]["matchLabels"]), (Some(1), labels));
    let pod = &pod["spec"];
    let apart = &pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(apart["labelSelector"]["matchLabels"], *labels);
    assert_eq!(apart["topologyKey"].as_str(), Some("kubernetes.io/hostname"));
    // Kubernetes would set variables for the service `leasehold` that begin like ours.
    assert_eq!(pod["enableServiceLinks"].as_bool(), Some(false));
    let user = format!("--uid {} ", pod["securityContext"]["runAsUser"].as_u64().expect("a number"));
    assert!(DOCKERFILE.contains(&user), "the image has no user `{user}`");
    let manifest: toml::Table = MANIFEST.parse().expect("Cargo.toml is TOML");
    let version = manifest["package"]["version"].as_str().expect("a version");
    assert_eq!(container()["image"].as_str(), Some(format!("leasehold:{version}").as_str()));
    assert_eq!(
        strings(&serde_norway::from_str::<Value>(KUSTOMIZATION).expect("YAML")["resources"]),
        ["leasehold.yaml"]
    );
    // Everything that is mounted and read is there: the volume of each pod, and the keys of the secret.
    let mounted = container()["volumeMounts"].as_sequence().expect("a list").clone();
    let (claimed, of_secret) = (&set["volumeClaimTemplates"][0]["metadata"]["name"], &pod["volumes"][0]["name"]);
    assert_eq!([&mounted[0]["name"], &mounted[1]["name"]], [claimed, of_secret]);
    let (form, volume) = (resources(SECRET), &pod["volumes"][0]["secret"]);
    let secret = &form[&("Secret".to_owned(), volume["secretName"].as_str().expect("a name").to_owned())];
    assert!(secret["stringData"].get(&volume["items"][0]["key"]).is_some());
    assert!(secret["stringData"].get("cluster-secret").is_some());
}

/// The environment of the pod of this name.
fn pod_environment(pod: &str) -> BTreeMap<String, String> {
    let variables = container()["env"].as_sequence().expect("a list").clone();
    let value = |variable: &Value| {
        let from = variable.get("valueFrom");
        match (variable["value"].as_str(), from.and_then(|from| from.get("fieldRef"))) {
            (Some(value), _) => value.to_owned(),
            (None, Some(field)) => {
                assert_eq!(field["fieldPath"].as_str(), Some("metadata.name"));
                pod.to_owned()
            }
            (None, None) => {
                let key = from.and_then(|from| from.get("secretKeyRef")).expect("a key of the secret");
                assert_eq!((key["name"].as_str(), key["key"].as_str()), (Some("leasehold"), Some("cluster-secret")));
                TEST_SECRET.to_owned()
            }
        }
    };
    variables.iter().map(|variable| (variable["name"].as_str().expect("a name").to_owned(), value(variable))).collect()
}

/// The container of this pod as a process here, with a settings file for what the secret has.
fn pod(place: &Path, name: &str, listen: &str, settings: &str) -> Command {
    let path = place.join("leasehold.toml");
    std::fs::write(&path, settings).expect("written");
    let data = place.join(name);
    let arguments = strings(&container()["args"]).into_iter().map(|word| {
        let mounted = container()["volumeMounts"][0]["mountPath"].as_str().expect("a path").to_owned();
        word.replace("0.0.0.0:7400", listen).replace(&mounted, data.to_str().expect("text"))
    });
    let mut command = leasehold(place, arguments);
    command.envs(pod_environment(name)).env("LEASEHOLD_CONFIG", path);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn each_pod_of_kubernetes_is_the_member_that_its_name_says_and_answers_its_probes() {
    let set = resource("StatefulSet", "leasehold")["spec"].clone();
    let place = tempfile::tempdir().expect("a directory");
    let made = run(place.path(), ["token", "--name", "probe", "--role", "read", "--json"]).json(0);
    let (token, hash) = (made["token"].as_str().expect("a token"), made["sha256"].as_str().expect("its hash"));
    let form = resources(SECRET).into_values().next().expect("a secret");
    let settings = form["stringData"]["leasehold.toml"].as_str().expect("a text");
    let settings = settings.replace("what `leasehold token` prints", hash).replace("\"submit\", \"work\"", "\"read\"");
    for ordinal in 0..set["replicas"].as_u64().expect("a number") {
        let (name, listen) = (format!("leasehold-{ordinal}"), format!("127.0.0.1:{}", ports::free()));
        let log = place.path().join(format!("{name}.log"));
        let mut command = pod(place.path(), &name, &listen, &settings);
        let mut member = Started::of(command.stdout(Stdio::null()).stderr(File::create(&log).expect("a log")));
        let url = format!("http://{listen}");
        let client = Client::new(&url, Some(token)).expect("a client").with_max_retries(0);
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            match client.cluster().await {
                Ok(status) => break status,
                Err(error) => assert!(Instant::now() < deadline, "{error}: {:?}", std::fs::read_to_string(&log)),
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        };
        assert_eq!(status.member, ordinal + 1);
        let own = &status.members[usize::try_from(ordinal).expect("small")];
        assert_eq!(own.address, format!("http://{name}.leasehold-members:7400"));
        assert_eq!(status.members.len() as u64, set["replicas"].as_u64().expect("a number"));
        // The others are not there, so that it is alive and not ready.
        for (probe, answers) in [("startupProbe", 200), ("livenessProbe", 200), ("readinessProbe", 503)] {
            let get = container()[probe]["httpGet"].clone();
            assert_eq!(get["port"].as_str(), container()["ports"][0]["name"].as_str());
            let answer = reqwest::get(format!("{url}{}", get["path"].as_str().expect("a path"))).await;
            assert_eq!(answer.expect("an answer").status().as_u16(), answers, "{probe}");
        }
        tokio::task::block_in_place(|| {
            member.signal(Signal::SIGTERM);
            member.end().expect(0);
        });
    }
    let grace = set["template"]["spec"]["terminationGracePeriodSeconds"].as_u64().expect("a number");
    assert!(grace >= 60, "a leader ends what takes long before it hands over: {grace} s");
}

#[test]
fn a_secret_that_is_not_filled_in_is_refused() {
    let form = resources(SECRET).into_values().next().expect("a secret");
    let text = |key: &str| form["stringData"][key].as_str().expect("a text").to_owned();
    let place = tempfile::tempdir().expect("a directory");
    let mut command = pod(place.path(), "leasehold-0", "127.0.0.1:0", &text("leasehold.toml"));
    let said = Started::of(&mut command).end().expect(2).stderr();
    assert!(said.contains("sha256"), "{said}");
    let mut command = pod(place.path(), "leasehold-0", "127.0.0.1:0", "");
    let said = Started::of(command.env("LEASEHOLD_CLUSTER_SECRET", text("cluster-secret"))).end().expect(2).stderr();
    assert!(said.contains("base64"), "{said}");
}
