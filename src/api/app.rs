//! The parts and limits of a server, and the state that its handlers share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::access::{Access, Guard, SessionReader};
use super::budgets::{Budgets, Sizes};
use super::of_peers::OfPeers;
use super::proxies::{Proxies, TrustedProxy};
use crate::manager::Manager;
use crate::notify::Subscriptions;
use crate::peers::PeerClient;
use crate::scheduler::Schedules;

/// The parts of a server.
#[derive(Clone)]
pub struct AppState {
    /// The manager of the jobs.
    pub manager: Manager,
    /// The subscriptions; `None` where this server sends no notifications.
    pub subscriptions: Option<Arc<Subscriptions>>,
    /// The schedules; `None` where this process does not deal with them.
    pub schedules: Option<Schedules>,
    /// The tokens and their roles.
    pub access: Access,
    /// How the other managers of the store are called; `None` where they do not call each other.
    pub peers: Option<PeerClient>,
    /// The process's metrics, from [`super::metrics::install`].
    pub metrics: PrometheusHandle,
    /// The limits of the server.
    pub limits: Limits,
    /// The server's configuration for its health page, without secrets.
    pub configuration: serde_json::Value,
}

/// The limits of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most open connections. Further ones are refused, except for a few that serve operators and probes.
    pub connections: usize,
    /// The most open connections from one address.
    pub connections_per_address: usize,
    /// The proxies that are believed in what they say of their clients.
    pub trusted_proxies: Vec<TrustedProxy>,
    /// The most bytes of request bodies held at once; further bodies are refused.
    pub body_bytes: usize,
    /// The most bytes held at once of bodies with heartbeats, ends of attempts and the like, which have no part in
    /// [`Self::body_bytes`].
    pub work_bytes: usize,
    /// The most bytes held at once of the bodies of those who have not shown a token.
    pub unauthenticated_bytes: usize,
    /// The most open calls of those who have not shown a token.
    pub unauthenticated_calls: usize,
    /// How long the head of a request may take to arrive, and how long a connection may be without a call.
    pub head_within: Duration,
    /// How long a client may read nothing of an answer.
    pub read_within: Duration,
    /// The time in which the body of a request has to bring another 16 KiB, or its end. Only time counts in which the
    /// server waits for the client.
    pub body_within: Duration,
    /// The most open streams of events; further ones are refused.
    pub event_streams: usize,
    /// The most exports that are open; further ones are refused.
    pub exports: usize,
    /// The most exports that read from the store at once; further ones wait for their turn.
    pub export_readers: usize,
    /// How long open calls may take to end once the server shuts down.
    pub drain_within: Duration,
    /// How long somebody stays signed in at the web page who does not use it.
    pub session_idle: Duration,
    /// How long an answer goes on, such as a stream of events, before who called is looked at again.
    pub looks_again_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_000,
            connections_per_address: 14_400,
            trusted_proxies: Vec::new(),
            body_bytes: 512 * 1024 * 1024,
            work_bytes: 256 * 1024 * 1024,
            unauthenticated_bytes: 16 * 1024 * 1024,
            unauthenticated_calls: 512,
            head_within: Duration::from_secs(30),
            read_within: Duration::from_secs(30),
            body_within: Duration::from_secs(10),
            event_streams: 100,
            exports: 64,
            export_readers: 4,
            drain_within: Duration::from_secs(10),
            session_idle: Duration::from_secs(3600),
            looks_again_after: Duration::from_secs(15),
        }
    }
}

impl Limits {
    /// Returns what guards a process that listens on this address.
    pub(super) fn guard(&self, access: Access, address: SocketAddr, sessions: Option<SessionReader>) -> Arc<Guard> {
        let sizes = Sizes {
            bodies: self.body_bytes,
            work: self.work_bytes,
            strange_bodies: self.unauthenticated_bytes,
            strange_calls: self.unauthenticated_calls,
            strange_connections: self.connections.div_ceil(2),
            streams: self.event_streams,
            exports: self.exports,
        };
        let budgets = Budgets::new(sizes, &access.names(), self.body_within);
        let proxies = Proxies::new(self.trusted_proxies.clone());
        Arc::new(Guard::new(access, address, budgets, proxies, sessions, self.looks_again_after))
    }
}

/// The state that the handlers share. A call that waits keeps it several times, so it is one pointer.
pub(super) type App = Arc<AppParts>;

/// The parts of [`App`].
pub(super) struct AppParts {
    pub(super) manager: Manager,
    pub(super) subscriptions: Option<Arc<Subscriptions>>,
    pub(super) schedules: Option<Schedules>,
    pub(super) guard: Arc<Guard>,
    pub(super) peers: Option<PeerClient>,
    /// How the calls of these managers are read.
    pub(super) of_peers: Option<OfPeers>,
    pub(super) metrics: PrometheusHandle,
    pub(super) limits: Limits,
    pub(super) configuration: serde_json::Value,
    /// One permit for each export that may read from the store.
    pub(super) export_readers: Arc<Semaphore>,
    pub(super) shutdown: CancellationToken,
    pub(super) openapi: Bytes,
}

impl AppParts {
    /// Makes the parts of a server that is guarded like this, and ends when `shutdown` is cancelled. `openapi` is the
    /// API's description.
    pub(super) fn new(state: AppState, guard: Arc<Guard>, shutdown: CancellationToken, openapi: Bytes) -> Self {
        let AppState { manager, subscriptions, schedules, peers, metrics, limits, configuration, .. } = state;
        Self {
            manager,
            subscriptions,
            schedules,
            guard,
            of_peers: peers.as_ref().map(|peers| OfPeers::of_managers(peers, limits.body_within)),
            peers,
            metrics,
            export_readers: Arc::new(Semaphore::new(limits.export_readers.min(Semaphore::MAX_PERMITS))),
            limits,
            configuration,
            shutdown,
            openapi,
        }
    }
}
