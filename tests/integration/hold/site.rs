//! Servers on one store, what is between them and it, and the troubles that befall them.

use std::time::Duration;

use futures::future::join_all;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::program::{Engine, Server};
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::servers::{self, Cluster};

/// One answer of the store in so many is spoiled.
const ONE_IN: u32 = 25;
/// How long an answer is held back that comes late.
const LATE: Duration = Duration::from_millis(700);
/// The number of managers on Elasticsearch, and of ways there.
pub(super) const MANAGERS: usize = 3;
/// All processes are on one machine, which has one clock.
pub(super) const ONE_CLOCK: [&str; 2] = ["--clock-skew-ms", "0"];

/// What befalls a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// `kill -9`, and a start anew.
    Kill,
    /// SIGTERM, and a start anew.
    Stop,
    /// It stands still.
    Freeze,
    /// Its way to the store is interrupted.
    Outage,
    /// A node of the store is killed, and started anew.
    NodeKilled,
}

/// The servers, and what is between them and their store.
pub(super) struct Site {
    pub(super) servers: Vec<Server>,
    /// Those of each server, one for each node of the store.
    pub(super) proxies: Vec<Vec<FaultProxy>>,
    pub(super) cluster: Option<Cluster>,
    pub(super) place: TempDir,
}

impl Site {
    /// One server on an embedded store.
    pub(super) async fn embedded() -> Self {
        let place = TempDir::new().expect("a directory");
        let engine = Engine::Embedded(place.path().join("data"));
        let server = Server::start_as("serve", &ONE_CLOCK, engine, &place.path().join("server.log")).await;
        Self { servers: vec![server], proxies: Vec::new(), cluster: None, place }
    }

    /// Ways to Elasticsearch that can lie and break, and nobody who takes them yet.
    pub(super) async fn before_elasticsearch(seed: u64, cluster: Option<Cluster>) -> Self {
        let urls = match &cluster {
            Some(cluster) => cluster.urls(),
            None => vec![servers::elasticsearch().await.url().to_owned()],
        };
        let mut proxies = Vec::new();
        for number in 0..MANAGERS {
            let faults = lies(seed.wrapping_add(number as u64));
            proxies.push(join_all(urls.iter().map(|url| FaultProxy::start(url, faults.clone()))).await);
        }
        let place = TempDir::new().expect("a directory");
        Self { servers: Vec::new(), proxies, cluster, place }
    }

    /// Starts a manager on each way.
    pub(super) async fn with_managers(mut self, prefix: &str, options: &[&str]) -> Self {
        for (number, own) in self.proxies.iter().enumerate() {
            let urls = own.iter().map(FaultProxy::url).collect();
            let engine = Engine::Elasticsearch { urls, prefix: prefix.to_owned() };
            let log = self.place.path().join(format!("server-{number}.log"));
            self.servers.push(Server::start_as("serve", options, engine, &log).await);
        }
        self
    }

    /// Switches lies of the network on or off.
    pub(super) fn lie(&self, on: bool) {
        self.proxies.iter().flatten().for_each(|proxy| proxy.inject(on));
    }

    /// Makes one trouble and waits for its end. Which server or node it befalls is chosen by any number.
    pub(super) async fn make(&mut self, trouble: Trouble, victim: usize, lasts: Duration) {
        match trouble {
            Trouble::Kill => self.server(victim).kill_and_restart().await,
            Trouble::Stop => self.server(victim).stop_and_restart().await,
            Trouble::Freeze => {
                self.server(victim).signal(Signal::SIGSTOP);
                tokio::time::sleep(lasts).await;
                self.server(victim).signal(Signal::SIGCONT);
            }
            Trouble::Outage => {
                let way = victim % self.proxies.len();
                join_all(self.proxies[way].iter_mut().map(FaultProxy::go_down)).await;
                tokio::time::sleep(lasts).await;
                join_all(self.proxies[way].iter_mut().map(FaultProxy::come_up)).await;
            }
            Trouble::NodeKilled => {
                let cluster = self.cluster.as_mut().expect("a cluster of its own");
                let nodes = cluster.urls().len();
                let node = victim % nodes;
                cluster.kill(node).await;
                tokio::time::sleep(lasts).await;
                cluster.restart(node).await;
                cluster.wait_until_green(node, nodes).await;
            }
        }
    }

    fn server(&mut self, victim: usize) -> &mut Server {
        let count = self.servers.len();
        &mut self.servers[victim % count]
    }
}

/// A network that swallows, delays, cuts and resets some answers, chosen by the seed.
pub(super) fn lies(seed: u64) -> Faults {
    Faults { one_in: ONE_IN, seed, kinds: vec![Fault::Swallow, Fault::Reset, Fault::Cut, Fault::Delay(LATE)] }
}
