//! HTTP in, domain out.
//!
//! In reading order: `error` (every refusal, and the only place that knows status codes), [`access`] (tokens and
//! roles), `extract` (what a handler takes out of a request), the handlers (`jobs`, `lists`, `stats`, `export`,
//! `fields`, `work`, `queues`, `workers`, `admin`, `subscriptions`, `events`, `system`), `delivery` (claimed jobs on
//! their way out), `trim` (answers with selected fields), `observe` (what surrounds every call), and [`serve`]
//! (connections, and how the server ends). The requests and answers themselves are in [`crate::wire`].
//!
//! The handlers decide nothing: they check, ask the manager and write down its answer.

pub mod access;
mod admin;
mod delivery;
mod error;
mod events;
mod export;
mod extract;
mod fields;
mod items;
mod jobs;
mod json;
mod lists;
pub mod metrics;
mod observe;
mod openapi;
mod queues;
mod routes;
mod serve;
mod stats;
mod subscriptions;
mod system;
mod trim;
mod work;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use routes::openapi_json;
pub use serve::{serve, serve_monitor};

use crate::manager::Manager;
use crate::notify::Subscriptions;
use access::Access;
use extract::BodyBudget;

/// What a server serves, and to whom.
#[derive(Clone)]
pub struct AppState {
    /// Who does what is asked.
    pub manager: Manager,
    /// Who is told of what; none where this server does not deal with notifications.
    pub subscriptions: Option<Arc<Subscriptions>>,
    /// Who may ask.
    pub access: Access,
    /// Where the process's metrics are read: [`metrics::install`].
    pub metrics: PrometheusHandle,
    /// What the server takes on.
    pub limits: Limits,
    /// How the server is set up, for its health page; nothing secret.
    pub configuration: serde_json::Value,
}

/// What a server takes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many connections it has open at once; more wait to be accepted.
    pub connections: usize,
    /// How many bytes of request bodies it holds at once; more are refused.
    pub body_bytes: usize,
    /// How long the head of a request may take to arrive, and how long a connection may idle.
    pub head_within: Duration,
    /// How long the body of a request may take to arrive.
    pub body_within: Duration,
    /// How many streams of events it has open at once; more are refused.
    pub event_streams: usize,
    /// How many exports it has under way at once; more are refused.
    pub exports: usize,
    /// How long calls may take to end once the server is told to.
    pub drain_within: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            body_bytes: 512 * 1024 * 1024,
            head_within: Duration::from_secs(30),
            body_within: Duration::from_secs(30),
            event_streams: 100,
            exports: 4,
            drain_within: Duration::from_secs(10),
        }
    }
}

/// What the handlers share.
#[derive(Clone)]
struct App {
    manager: Manager,
    subscriptions: Option<Arc<Subscriptions>>,
    access: Arc<Access>,
    metrics: PrometheusHandle,
    limits: Arc<Limits>,
    configuration: Arc<serde_json::Value>,
    budget: BodyBudget,
    /// Places for streams of events.
    streams: Arc<Semaphore>,
    /// Places for exports.
    exports: Arc<Semaphore>,
    /// Whether everyone on this machine may call, and so every browser on it.
    trusts_its_machine: bool,
    shutdown: CancellationToken,
    openapi: Bytes,
}

#[cfg(test)]
mod tests;
