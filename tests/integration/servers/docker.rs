//! Servers as containers, where a Docker engine answers.

use std::process::{Command, Stdio};
use std::time::Duration;

use testcontainers::core::client::docker_client_instance;
use testcontainers::core::{ContainerPort, IntoContainerPort};
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerRequest, GenericImage, ImageExt};

use super::{SearchServer, announce, node};

/// How long an engine may take to say that it is there.
const PING_DEADLINE: Duration = Duration::from_secs(5);
/// Both servers' port inside of the container.
const PORT: u16 = 9_200;

/// Whether a Docker engine answers, and its command is there to remove containers with.
pub(super) async fn answers() -> bool {
    let Ok(engine) = docker_client_instance().await else { return false };
    let pinged = tokio::time::timeout(PING_DEADLINE, engine.ping()).await;
    let command = Command::new("docker").arg("--version").stdout(Stdio::null()).status();
    matches!(pinged, Ok(Ok(_))) && command.is_ok_and(|status| status.success())
}

/// The official image of Elasticsearch.
pub(super) async fn elasticsearch(version: &str) -> Result<SearchServer, String> {
    let image = GenericImage::new("docker.elastic.co/elasticsearch/elasticsearch", version)
        .with_exposed_port(port())
        .with_env_var("xpack.security.enabled", "false")
        .with_env_var("ES_JAVA_OPTS", "-Xms1g -Xmx1g");
    start(image).await
}

/// The official image of OpenSearch.
pub(super) async fn opensearch(version: &str) -> Result<SearchServer, String> {
    let image = GenericImage::new("opensearchproject/opensearch", version)
        .with_exposed_port(port())
        .with_env_var("DISABLE_SECURITY_PLUGIN", "true")
        .with_env_var("OPENSEARCH_JAVA_OPTS", "-Xms1g -Xmx1g");
    start(image).await
}

fn port() -> ContainerPort {
    PORT.tcp()
}

async fn start(image: ContainerRequest<GenericImage>) -> Result<SearchServer, String> {
    let image = image
        .with_env_var("discovery.type", "single-node")
        .with_env_var("cluster.routing.allocation.disk.threshold_enabled", "false")
        .with_startup_timeout(node::START_DEADLINE);
    let container = image.start().await.map_err(|error| format!("Docker cannot run the image: {error}"))?;
    remove_with_this_process(container.id())?;
    let told = |error| format!("the container has no port: {error}");
    let (host, port) = (container.get_host().await.map_err(told)?, container.get_host_port_ipv4(PORT).await);
    let url = format!("http://{host}:{}", port.map_err(told)?);
    announce(&format!("container {} at {url}", container.id()));
    // Its own clean-up needs the runtime that it was started on, which ends with the first test.
    std::mem::forget(container);

    let http = reqwest::Client::new();
    let deadline = std::time::Instant::now() + node::START_DEADLINE;
    while std::time::Instant::now() < deadline {
        if node::cluster_name(&http, &url).await.is_some() {
            return Ok(SearchServer { url, ours: true, _watched: None });
        }
        tokio::time::sleep(node::POLL).await;
    }
    Err(format!("the container did not answer at {url} within {:?}", node::START_DEADLINE))
}

/// Leaves a process behind that removes the container once this one is gone, however it went.
fn remove_with_this_process(container: &str) -> Result<(), String> {
    use std::os::unix::process::CommandExt;
    let wait_and_remove = "cat >/dev/null; exec docker rm --force --volumes \"$1\"";
    let watchdog = Command::new("sh")
        .args(["-c", wait_and_remove, "watchdog", container])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start sh for the watchdog: {error}"))?;
    // Holds the pipe open for as long as this process lives.
    std::mem::forget(watchdog);
    Ok(())
}
