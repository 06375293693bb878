//! A cluster of Elasticsearch nodes on one machine, of which each can be killed and started again.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

use super::node::{Distribution, Java, POLL, START_DEADLINE, STARTING, wait_until_up};
use super::ports;
use super::watchdog::Watched;
use super::{IndexSet, announce, fresh_prefix, index_sets};

/// How long a killed process may take to be gone.
const KILL_DEADLINE: Duration = Duration::from_secs(30);

/// One cluster at a time and test process: three nodes are what the memory of a small machine has room for. The next
/// test takes over the nodes, since to start them costs a minute of processor time.
static NODES: Mutex<Vec<Node>> = Mutex::const_new(Vec::new());

/// A cluster that belongs to one test, and after it to another. One whose test has failed ends.
pub(crate) struct Cluster {
    nodes: MutexGuard<'static, Vec<Node>>,
    /// The test's own: connections end with the runtime in which they were made.
    http: reqwest::Client,
}

struct Node {
    name: String,
    cluster: String,
    url: String,
    http_port: u16,
    transport_port: u16,
    watched: Watched,
}

impl Cluster {
    /// Takes over the nodes of the test before, or starts `count`, and waits until all are one cluster without an
    /// index.
    ///
    /// # Panics
    /// When they do not come up; it says why.
    pub(crate) async fn start(count: usize) -> Self {
        let mut cluster = Self { nodes: NODES.lock().await, http: reqwest::Client::new() };
        let _alone = STARTING.lock().await;
        if cluster.nodes.len() == count {
            match cluster.take_over().await {
                Ok(()) => return cluster,
                Err(why) => announce(&format!("the cluster of the test before is of no use: {why}")),
            }
        }
        cluster.nodes.clear();
        *cluster.nodes = start_nodes(count).await.unwrap_or_else(|why| panic!("no cluster: {why}"));
        cluster.settle().await.unwrap_or_else(|why| panic!("no cluster: {why}"));
        cluster
    }

    /// Starts the nodes again that the test before has killed, and removes what it has left.
    async fn take_over(&mut self) -> Result<(), String> {
        for node in self.nodes.iter_mut().filter(|node| ports::is_free(node.http_port)) {
            node.watched.start_again()?;
        }
        self.settle().await
    }

    /// Waits until all nodes are one cluster, without anything of another test.
    async fn settle(&self) -> Result<(), String> {
        for node in self.nodes.iter() {
            node.wait_until_up().await?;
        }
        index_sets::remove_those_of_all_tests(self.url(0)).await?;
        let count = self.nodes.len();
        let is_whole = |health: &Value| health["status"] == "green" && health["number_of_nodes"] == count;
        self.reached(0, "all nodes have joined", is_whole).await
    }

    /// Indices that the test makes itself, under a prefix with this name.
    pub(crate) fn indices(&self, name: &str) -> IndexSet {
        IndexSet::own(self.url(0), fresh_prefix(name))
    }

    /// The nodes' addresses, without a slash at the end, in the order of their numbers.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.url.clone()).collect()
    }

    /// The address of a node, counted from 0.
    pub(crate) fn url(&self, node: usize) -> &str {
        &self.nodes[node].url
    }

    /// `kill -9` to a node; it is gone when this returns. The others have not noticed yet.
    pub(crate) async fn kill(&self, node: usize) {
        let Node { name, http_port, transport_port, watched, .. } = &self.nodes[node];
        watched.kill().unwrap_or_else(|why| panic!("{name}: {why}"));
        let deadline = Instant::now() + KILL_DEADLINE;
        // The kernel frees a process's sockets with the process, whoever is still to collect its exit status.
        while !(ports::is_free(*http_port) && ports::is_free(*transport_port)) {
            assert!(Instant::now() < deadline, "{name} still listens {KILL_DEADLINE:?} after its kill");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Starts a killed node again with the data that it had, and waits until it has joined.
    pub(crate) async fn restart(&mut self, node: usize) {
        let Node { name, watched, .. } = &mut self.nodes[node];
        watched.start_again().unwrap_or_else(|why| panic!("{name}: {why}"));
        self.wait_until_up(node).await;
    }

    /// Waits until the cluster, as `node` sees it, has `count` nodes and every shard that it should have.
    pub(crate) async fn wait_until_green(&self, node: usize, count: usize) {
        let green = |health: &Value| health["status"] == "green" && health["number_of_nodes"] == count;
        self.wait_until(node, "the cluster is green", green).await;
    }

    /// Waits until the cluster, as `node` sees it, has noticed that it has `count` nodes, and has every primary again.
    /// The copies of a lost node are made elsewhere only after a minute, in case it comes back.
    pub(crate) async fn wait_until_writable(&self, node: usize, count: usize) {
        let writable = |health: &Value| {
            (health["status"] == "yellow" || health["status"] == "green") && health["number_of_nodes"] == count
        };
        self.wait_until(node, "every primary is there", writable).await;
    }

    /// The number of the node that holds the primary of the first shard of `index`, as `node` sees it.
    pub(crate) async fn holder_of_primary(&self, node: usize, index: &str) -> usize {
        let url = format!("{}/_cat/shards/{index}?format=json&h=shard,prirep,state,node", self.url(node));
        let answer = self.http.get(url).send().await.expect("the node answers");
        let shards: Vec<Value> = answer.json().await.expect("a list of shards");
        let primary = shards
            .iter()
            .find(|shard| shard["shard"] == "0" && shard["prirep"] == "p" && shard["state"] == "STARTED")
            .unwrap_or_else(|| panic!("{index} has no started primary: {shards:?}"));
        self.nodes.iter().position(|node| primary["node"] == *node.name).expect("one of our nodes")
    }

    async fn wait_until_up(&self, node: usize) {
        self.nodes[node].wait_until_up().await.unwrap_or_else(|why| panic!("{why}"));
    }

    async fn wait_until(&self, node: usize, what: &str, holds: impl Fn(&Value) -> bool) {
        self.reached(node, what, holds).await.unwrap_or_else(|why| panic!("{why}"));
    }

    async fn reached(&self, node: usize, what: &str, holds: impl Fn(&Value) -> bool) -> Result<(), String> {
        let deadline = Instant::now() + START_DEADLINE;
        let url = format!("{}/_cluster/health", self.url(node));
        let mut last = Value::Null;
        while Instant::now() < deadline {
            if let Ok(answer) = self.http.get(&url).timeout(Duration::from_secs(5)).send().await {
                last = answer.json().await.unwrap_or_default();
            }
            if holds(&last) {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        Err(format!("not within {START_DEADLINE:?}: {what}; the last answer was {last}"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.nodes.clear();
        }
    }
}

impl Node {
    async fn wait_until_up(&self) -> Result<(), String> {
        let up = wait_until_up(&self.watched, &self.url, &self.cluster).await;
        up.map_err(|why| format!("{}: {why}", self.name))
    }
}

/// Starts so many nodes, which are to become one cluster.
async fn start_nodes(count: usize) -> Result<Vec<Node>, String> {
    let distribution = Distribution::elasticsearch().await?;
    let places: Vec<(String, u16, u16)> =
        (1..=count).map(|number| (format!("n{number}"), ports::free(), ports::free())).collect();
    let joined = |part: fn(&(String, u16, u16)) -> String| places.iter().map(part).collect::<Vec<_>>().join(",");
    let cluster = format!("leasehold-cluster-{}-{}", std::process::id(), places[0].1);
    let mut nodes = Vec::new();
    for &(ref name, http_port, transport_port) in &places {
        let settings = [
            ("cluster.name", cluster.clone()),
            ("node.name", name.clone()),
            ("transport.port", transport_port.to_string()),
            ("cluster.initial_master_nodes", joined(|(node, ..)| node.clone())),
            ("discovery.seed_hosts", joined(|(.., port)| format!("127.0.0.1:{port}"))),
        ];
        let watched = distribution.start(&format!("cluster-{name}"), Java::OF_ONE_TEST, http_port, &settings)?;
        let (name, cluster, url) = (name.clone(), cluster.clone(), format!("http://127.0.0.1:{http_port}"));
        nodes.push(Node { name, cluster, url, http_port, transport_port, watched });
    }
    Ok(nodes)
}
