//! The Elasticsearch of a measurement: nodes that are started from an unpacked distribution, or one that runs.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::cli::bench::target::scratch_directory;
use crate::cli::failure::Failure;
use crate::outgoing;

/// The heap of each node.
const HEAP: &str = "1g";
/// How long the nodes may take to become one cluster.
const UP_WITHIN: Duration = Duration::from_secs(180);
/// How often it is checked whether they have.
const POLL: Duration = Duration::from_millis(250);
/// How often it is checked, and at most how many times, whether a killed node has ended.
const ENDED: (Duration, u32) = (Duration::from_millis(20), 250);
/// The oldest Java that Elasticsearch 9 runs on.
const OLDEST_JAVA: u32 = 21;
/// The user `nobody`, as which nodes run when the bench runs as root, whom Elasticsearch refuses.
const NOBODY: u32 = 65_534;
/// How many lines of a node's log are shown when it does not start.
const LOG_LINES: usize = 20;

/// An Elasticsearch. Nodes that were started here end with it.
pub(super) struct Cluster {
    pub(super) urls: Vec<String>,
    /// How many nodes it has that hold data.
    pub(super) nodes: u64,
    /// The version of one of its nodes.
    pub(super) version: String,
    _started: Vec<Node>,
}

/// A started node, which is killed when dropped. Fields are dropped in this order: the node, then its files.
struct Node {
    process: Process,
    directory: TempDir,
}

/// A process with a group of its own: Elasticsearch's launcher starts the server as a second process.
struct Process(Child);

impl Cluster {
    /// Describes a cluster that runs.
    pub(super) async fn running(urls: Vec<String>) -> Result<Self, Failure> {
        let http = outgoing::direct().build().map_err(Failure::failed)?;
        let unreachable = |error: reqwest::Error| {
            Failure::Unreachable(format!("cannot reach Elasticsearch: {}", error.without_url()))
        };
        let read = async |path: &str| -> Result<Value, Failure> {
            let answer = http.get(format!("{}{path}", urls[0].trim_end_matches('/'))).send().await;
            let answer = answer.and_then(reqwest::Response::error_for_status).map_err(unreachable)?;
            answer.json().await.map_err(unreachable)
        };
        let health = read("/_cluster/health").await?;
        let nodes = read("/_nodes/_local?filter_path=nodes.*.version").await?;
        let version = nodes["nodes"].as_object().and_then(|nodes| nodes.values().next()?["version"].as_str());
        Ok(Self {
            nodes: health["number_of_data_nodes"].as_u64().unwrap_or_default(),
            version: version.unwrap_or("unknown").to_owned(),
            urls,
            _started: Vec::new(),
        })
    }

    /// Starts nodes from an unpacked distribution and waits until they are one cluster.
    pub(super) async fn start(home: &Path, count: u16) -> Result<Self, Failure> {
        let home = home.canonicalize().map_err(|error| Failure::Usage(format!("{}: {error}", home.display())))?;
        let java = java_home(&home)?;
        // Kept until all are known, so that none is chosen twice.
        let kept: Vec<[TcpListener; 2]> =
            (0..count).map(|_| Ok([listener()?, listener()?])).collect::<Result<_, Failure>>()?;
        let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
        let ports: Vec<[u16; 2]> =
            kept.iter().map(|[http, transport]| Ok([port(http)?, port(transport)?])).collect::<Result<_, Failure>>()?;
        drop(kept);
        let seeds: Vec<String> = ports.iter().map(|[_, transport]| format!("\"127.0.0.1:{transport}\"")).collect();
        let names: Vec<String> = (0..count).map(|number| format!("n{number}")).collect();
        let formed = match count {
            1 => "discovery.type: single-node\n".to_owned(),
            _ => format!(
                "cluster.initial_master_nodes: [{}]\ndiscovery.seed_hosts: [{}]\n",
                names.join(", "),
                seeds.join(", ")
            ),
        };
        let cluster = format!("leasehold-bench-{:08x}", rand::random::<u32>());
        let mut started = Vec::new();
        for (name, [http, transport]) in names.iter().zip(&ports) {
            let settings = format!(
                "cluster.name: {cluster}\nnode.name: {name}\nnetwork.host: 127.0.0.1\nhttp.port: {http}\n\
                 transport.port: {transport}\nxpack.security.enabled: false\n\
                 cluster.routing.allocation.disk.threshold_enabled: false\n{formed}"
            );
            started.push(Node::start(&home, java.as_deref(), &settings)?);
        }
        let urls: Vec<String> = ports.iter().map(|[http, _]| format!("http://127.0.0.1:{http}")).collect();
        wait_until_up(&urls[0], &cluster, &mut started).await?;
        Ok(Self { _started: started, ..Self::running(urls).await? })
    }
}

fn listener() -> Result<TcpListener, Failure> {
    TcpListener::bind("127.0.0.1:0").map_err(|error| Failure::Failed(format!("no port is free: {error}")))
}

/// Waits until the nodes answer as one cluster of this name: not one that happens to be there.
async fn wait_until_up(url: &str, name: &str, nodes: &mut [Node]) -> Result<(), Failure> {
    let http = outgoing::direct().build().map_err(Failure::failed)?;
    let deadline = Instant::now() + UP_WITHIN;
    while Instant::now() < deadline {
        for node in nodes.iter_mut() {
            if let Ok(Some(status)) = node.process.0.try_wait() {
                let log = node.log_tail();
                return Err(Failure::Failed(format!("Elasticsearch ended with {status} before it answered:\n{log}")));
            }
        }
        let asked = http.get(format!("{url}/_cluster/health")).timeout(POLL * 4).send().await;
        if let Ok(answer) = asked
            && let Ok(health) = answer.json::<Value>().await
            && health["cluster_name"] == name
            && health["number_of_nodes"] == nodes.len()
        {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
    let log = nodes.first().map(Node::log_tail).unwrap_or_default();
    Err(Failure::Failed(format!("Elasticsearch was not up within {} s:\n{log}", UP_WITHIN.as_secs())))
}

impl Node {
    fn start(home: &Path, java: Option<&Path>, settings: &str) -> Result<Self, Failure> {
        let directory = node_directory()?;
        let place = directory.path().canonicalize()?;
        for part in ["data", "logs", "tmp", "config"] {
            fs::create_dir(place.join(part))?;
        }
        for part in ["jvm.options", "log4j2.properties"] {
            let from = home.join("config").join(part);
            fs::copy(&from, place.join("config").join(part)).map_err(|error| {
                Failure::Usage(format!("no distribution of Elasticsearch: {}: {error}", from.display()))
            })?;
        }
        let paths = format!("path.data: {0}/data\npath.logs: {0}/logs\n", place.display());
        fs::write(place.join("config/elasticsearch.yml"), format!("{settings}{paths}"))?;
        let log = fs::File::create(place.join("output"))?;

        let program = home.join("bin/elasticsearch");
        let mut command = if geteuid().is_root() {
            give_to_nobody(&place)?;
            let id = NOBODY.to_string();
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command
            .env("ES_JAVA_OPTS", format!("-Xms{HEAP} -Xmx{HEAP} -XX:-UsePerfData"))
            .env("CLI_JAVA_OPTS", "-XX:-UsePerfData")
            .env("ES_PATH_CONF", place.join("config"))
            .env("ES_TMPDIR", place.join("tmp"))
            .env("HOME", &place)
            .env_remove("JAVA_TOOL_OPTIONS");
        if let Some(java) = java {
            command.env("ES_JAVA_HOME", java);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().map_err(|error| Failure::Failed(format!("cannot start Elasticsearch: {error}")))?;
        Ok(Self { process: Process(child), directory })
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.directory.path().join("output")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(group) = self.0.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw) else { return };
        let _ = killpg(group, Signal::SIGKILL);
        // Until the last process of the group is gone, which may still write to what is removed next.
        for _ in 0..ENDED.1 {
            let reaped = self.0.try_wait();
            if matches!(reaped, Ok(Some(_))) && killpg(group, None).is_err() {
                return;
            }
            std::thread::sleep(ENDED.0);
        }
    }
}

/// Creates the directory of a node. It is not below this one when the node's user is another, who may not come here.
fn node_directory() -> Result<TempDir, Failure> {
    if !geteuid().is_root() {
        return scratch_directory();
    }
    let made = tempfile::Builder::new().prefix("leasehold-bench-").tempdir_in("/var/tmp");
    made.map_err(|error| Failure::Failed(format!("cannot make a directory in /var/tmp: {error}")))
}

/// Gives a directory, and the few files that are in it, to the user of the nodes.
fn give_to_nobody(directory: &Path) -> Result<(), Failure> {
    chown(directory, Some(NOBODY), Some(NOBODY))?;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        match path.is_dir() {
            true => give_to_nobody(&path)?,
            false => chown(&path, Some(NOBODY), Some(NOBODY))?,
        }
    }
    Ok(())
}

/// Returns the Java that a distribution without one of its own is to run on: `ES_JAVA_HOME`, `JAVA_HOME`, or the oldest
/// of those in `/usr/lib/jvm` that is new enough.
fn java_home(home: &Path) -> Result<Option<PathBuf>, Failure> {
    if home.join("jdk/bin/java").is_file() {
        return Ok(None);
    }
    let named = ["ES_JAVA_HOME", "JAVA_HOME"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    if let Some(java) = named.into_iter().find(|java| java_version(java) >= Some(OLDEST_JAVA)) {
        return Ok(Some(java));
    }
    let installed = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten().map(|entry| entry.path());
    let fitting = installed.filter_map(|java| Some((java_version(&java)?, java)));
    match fitting.filter(|(version, _)| *version >= OLDEST_JAVA).min() {
        Some((_, java)) => Ok(Some(java)),
        None => Err(Failure::Usage(format!("no Java {OLDEST_JAVA} or newer was found: set ES_JAVA_HOME"))),
    }
}

/// Returns the major version of the Java in a directory, by its file `release`.
fn java_version(home: &Path) -> Option<u32> {
    let release = fs::read_to_string(home.join("release")).ok()?;
    let version = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?;
    version.trim_matches('"').split('.').next()?.parse().ok()
}
