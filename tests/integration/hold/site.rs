//! Servers on one store, what is between them and it, and the troubles that befall them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use leasehold::client::Client;
use leasehold::wire::ClusterStatus;
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use super::ways::{Network, Passage, Shape};
use crate::program::{DEADLINE, Engine, PROGRAM, Server, run};
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::servers::{self, Cluster, IndexSet};

/// One answer of the store in so many is spoiled.
const ONE_IN: u32 = 25;
/// How long an answer is held back that comes late.
const LATE: Duration = Duration::from_millis(700);
/// The number of managers on Elasticsearch, and of ways there.
pub(super) const MANAGERS: usize = 3;
/// The number of members of a cluster of embedded stores.
pub(super) const MEMBERS: usize = 3;
/// The secret that the members share.
const SECRET: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
/// Of so many partitions one finds a member killed.
const KILLED_ONE_IN: u32 = 4;
/// How long one question about the cluster may take.
const ASKED_WITHIN: Duration = Duration::from_secs(2);
/// All processes are on one machine, which has one clock.
pub(super) const ONE_CLOCK: [&str; 2] = ["--clock-skew-ms", "0"];

/// What befalls a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// `kill -9`, and a start anew; of a member after a while.
    Kill,
    /// SIGTERM, and a start anew; of a member after a while.
    Stop,
    /// It stands still.
    Freeze,
    /// Its way to the store is interrupted.
    Outage,
    /// A node of the store is killed, and started anew.
    NodeKilled,
    /// Some members do not reach some others, and one of them may be killed meanwhile.
    Partition,
}

/// The servers, and what is between them and their store.
pub(super) struct Site {
    pub(super) servers: Vec<Server>,
    /// Those of each server, one for each node of the store.
    pub(super) proxies: Vec<Vec<FaultProxy>>,
    pub(super) cluster: Option<Cluster>,
    /// What is between members, and how often it was in which shape.
    pub(super) network: Option<Network>,
    shapes: BTreeMap<Shape, usize>,
    pub(super) place: TempDir,
}

impl Site {
    fn empty() -> Self {
        let place = TempDir::new().expect("a directory");
        let (servers, proxies, shapes) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { servers, proxies, cluster: None, network: None, shapes, place }
    }

    /// One server on an embedded store.
    pub(super) async fn embedded(options: &[&str]) -> Self {
        let site = Self::empty();
        let engine = Engine::Embedded(site.place.path().join("data"));
        site.with_one(options, engine).await
    }

    /// One server on Elasticsearch.
    pub(super) async fn elasticsearch(options: &[&str]) -> Self {
        Self::empty().with_one(options, Engine::elasticsearch().await).await
    }

    async fn with_one(mut self, options: &[&str], engine: Engine) -> Self {
        self.servers.push(Server::start_as("serve", options, engine, &self.place.path().join("server.log")).await);
        self
    }

    /// Three servers that are the members of one cluster. Each reaches each other one over a way of its own; clients
    /// reach all of them at their own addresses.
    pub(super) async fn members(options: &[&str]) -> Self {
        Self::members_of(&[PROGRAM; MEMBERS], options).await
    }

    /// The same, each with its own build of the program.
    pub(super) async fn members_of(programs: &[&str; MEMBERS], options: &[&str]) -> Self {
        let mut site = Self::empty();
        let ports = [(); MEMBERS].map(|()| servers::ports::free());
        let network = Network::between(&ports).await;
        for (member, port) in ports.into_iter().enumerate() {
            let url = |other| match other == member {
                true => format!("{}=http://127.0.0.1:{port}", other + 1),
                false => format!("{}={}", other + 1, network.url(member, other)),
            };
            let peers = (0..MEMBERS).map(url).collect::<Vec<_>>().join(",");
            let number = (member + 1).to_string();
            let own =
                ["serve", "--cluster-name", "hold", "--member", &number, "--peers", &peers, "--cluster-secret", SECRET];
            let log = site.place.path().join(format!("member-{number}.log"));
            let engine = Engine::Embedded(site.data(member));
            let arguments = [&own, options].concat();
            site.servers.push(Server::begin_at(port, programs[member], &arguments, engine, &log));
        }
        site.network = Some(network);
        site.are_ready().await;
        site
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
        Self { proxies, cluster, ..Self::empty() }
    }

    /// Starts a manager on each way.
    pub(super) async fn with_managers(mut self, indices: &Arc<IndexSet>, options: &[&str]) -> Self {
        for (number, own) in self.proxies.iter().enumerate() {
            let urls = own.iter().map(FaultProxy::url).collect();
            let engine = Engine::Elasticsearch { urls, indices: Arc::clone(indices) };
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
            Trouble::Kill | Trouble::Stop if self.network.is_some() => self.take_out(trouble, victim, lasts).await,
            Trouble::Partition => self.part(victim, lasts).await,
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

    /// The URLs of all servers.
    pub(super) fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    /// Waits until all servers are ready.
    pub(super) async fn are_ready(&mut self) {
        for server in &mut self.servers {
            server.ready().await;
        }
    }

    /// The data directory of a member.
    pub(super) fn data(&self, member: usize) -> PathBuf {
        self.place.path().join(format!("data-{}", member + 1))
    }

    fn network(&self) -> &Network {
        self.network.as_ref().expect("members")
    }

    /// Ends a member, and starts it again after a while.
    async fn take_out(&mut self, trouble: Trouble, victim: usize, lasts: Duration) {
        let victim = victim % self.servers.len();
        match trouble {
            Trouble::Kill => self.servers[victim].kill(),
            _ => drop(self.servers[victim].stop()),
        }
        // Nobody listens there meanwhile.
        self.network().set_to(victim, Passage::Refused);
        tokio::time::sleep(lasts).await;
        self.network().open();
        self.servers[victim].start_again();
        self.servers[victim].ready().await;
    }

    /// Parts the members for a while, in a manner that is chosen by any number.
    async fn part(&mut self, any: usize, lasts: Duration) {
        let mut random = StdRng::seed_from_u64(any as u64);
        let leader = self.leader().await;
        let shape = self.network().disturb(self.servers.len(), leader, &mut random);
        *self.shapes.entry(shape).or_default() += 1;
        tokio::time::sleep(lasts / 2).await;
        if random.random_ratio(1, KILLED_ONE_IN) {
            let killed = random.random_range(0..self.servers.len());
            self.servers[killed].kill();
            self.servers[killed].start_again();
        }
        tokio::time::sleep(lasts / 2).await;
        self.network().open();
        self.are_ready().await;
    }

    /// Returns where each member stands that answers.
    pub(super) async fn standings(&self) -> Vec<Option<ClusterStatus>> {
        let asked = self.servers.iter().map(|server| async {
            let client = Client::new(&server.url(), None).expect("a client").with_max_retries(0);
            tokio::time::timeout(ASKED_WITHIN, client.cluster()).await.ok()?.ok()
        });
        join_all(asked).await
    }

    /// Returns the member that leads in the last term that is known, counted from zero.
    pub(super) async fn leader(&self) -> Option<usize> {
        let standings = self.standings().await.into_iter().flatten();
        let last = standings.filter(|status| status.leads).max_by_key(|status| status.term)?;
        usize::try_from(last.member - 1).ok()
    }

    /// Waits until a member leads, and returns it.
    pub(super) async fn a_leader(&self) -> usize {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(leader) = self.leader().await {
                return leader;
            }
            assert!(Instant::now() < deadline, "no member leads in time");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns the server that does the work: the member that leads, or the only one.
    pub(super) async fn first(&self) -> usize {
        if self.network.is_some() { self.a_leader().await } else { 0 }
    }

    /// Waits until all members have applied the same entries, and nothing but these is committed. Returns the number of
    /// the last one.
    pub(super) async fn caught_up(&self) -> u64 {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let standings = self.standings().await;
            let places: Vec<_> = standings.iter().flatten().map(|status| (status.applied, status.committed)).collect();
            if let [(applied, committed), ..] = places[..]
                && applied == committed
                && places.len() == self.servers.len()
                && places.iter().all(|place| *place == places[0])
            {
                return applied;
            }
            assert!(Instant::now() < deadline, "the members do not come to the same in time: {standings:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a member has applied all that was committed before this was called.
    pub(super) async fn has_caught_up(&self, member: usize) {
        let deadline = Instant::now() + DEADLINE;
        let committed = self.standings().await.iter().flatten().map(|status| status.committed).max();
        loop {
            let standing = self.standings().await.swap_remove(member);
            if standing.as_ref().map(|status| status.applied) >= committed {
                return;
            }
            assert!(Instant::now() < deadline, "member {member} has not caught up in time: {standing:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until another member than this one leads.
    pub(super) async fn another_leads(&self, than: usize) {
        let deadline = Instant::now() + DEADLINE;
        while self.leader().await.is_none_or(|leader| leader == than) {
            assert!(Instant::now() < deadline, "no other member leads in time");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Parts whoever leads from the others until this member leads.
    pub(super) async fn have_lead(&self, member: usize) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let leader = self.a_leader().await;
            if leader == member {
                return;
            }
            assert!(Instant::now() < deadline, "member {member} does not lead in time");
            self.network().set_around(leader, Passage::Refused);
            self.another_leads(leader).await;
            self.network().open();
        }
    }

    /// Stops all members once they have applied the same entries, and checks that their stores are whole and have the
    /// same documents.
    pub(super) async fn end_equal(mut self) {
        let deadline = Instant::now() + DEADLINE;
        // Something may be written at any time, such as the monitor's lease: from the cut on nothing is agreed on.
        let last = loop {
            self.caught_up().await;
            self.network().set_all(Passage::Refused);
            let standings = self.standings().await;
            let applied: Vec<_> = standings.iter().flatten().map(|status| status.applied).collect();
            if applied.len() == MEMBERS && applied.iter().all(|last| *last == applied[0]) {
                break applied[0];
            }
            assert!(Instant::now() < deadline, "the members are never at rest: {standings:?}");
            self.network().open();
        };
        let states: Vec<_> = (0..self.servers.len())
            .map(|member| {
                assert_eq!(self.servers[member].stop(), Some(0), "{}", self.servers[member].log());
                verified(self.place.path(), &self.data(member))
            })
            .collect();
        let (state, entry) = &states[0];
        println!("{MEMBERS} members with the state {state} after {entry} entries; {:?}", self.shapes);
        assert_eq!(*entry, last);
        assert!(states.iter().all(|other| *other == states[0]), "the members are not the same: {states:?}");
    }
}

/// Checks a data directory that nobody has open. Returns the hash of its documents, and the number of the last entry
/// that they have.
fn verified(place: &Path, data: &Path) -> (String, u64) {
    let data = data.to_str().expect("a name that is text");
    let verified = run(place, ["verify", "--json", "--data-dir", data]).json(0);
    let state = verified["state"].as_str().expect("it was read");
    (state.to_owned(), verified["state_entry"].as_u64().expect("it was read"))
}

/// A network that swallows, delays, cuts and resets some answers, chosen by the seed.
pub(super) fn lies(seed: u64) -> Faults {
    Faults { one_in: ONE_IN, seed, kinds: vec![Fault::Swallow, Fault::Reset, Fault::Cut, Fault::Delay(LATE)] }
}
