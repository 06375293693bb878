//! What `serve` and `monitor` have in common: a process over a store that listens until it is told to stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::engine::{self, EngineSettings};
use super::failure::{ExitStatus, Failure};
use super::limits;
use super::notify::{self, Notifications};
use super::output::print;
use super::signals::Signals;
use crate::api::access::{Access, Token, check_exposure};
use crate::api::{self, AppState, Limits};
use crate::clock::{Clock, SystemClock};
use crate::manager::{Manager, ManagerConfig};
use crate::monitor::{Monitor, MonitorConfig};
use crate::store::Store;
use crate::worker::{Stop, StopListener};

/// The process, before it has a store.
pub(super) struct Host {
    listen: SocketAddr,
    access: Access,
    metrics: PrometheusHandle,
    signals: Signals,
    gently: StopListener,
    at_once: StopListener,
}

/// What it does with the store.
pub(super) struct Duties {
    pub(super) notifications: Notifications,
    /// How it watches; not at all when not said.
    pub(super) oversight: Option<MonitorConfig>,
    /// How it is set up, for its health page; nothing secret.
    pub(super) configuration: serde_json::Value,
}

impl Host {
    /// Checks who may reach it, and listens to signals; `stopping` is logged at the first.
    pub(super) fn prepare(
        listen: SocketAddr,
        tokens: Vec<Token>,
        insecure: bool,
        stopping: &'static str,
    ) -> Result<Self, Failure> {
        limits::raise_open_files();
        let access = Access::new(tokens).map_err(|error| Failure::Usage(error.to_string()))?;
        check_exposure(listen, &access, insecure).map_err(|error| Failure::Usage(error.to_string()))?;
        let metrics = api::metrics::install().map_err(Failure::Failed)?;
        let signals = Signals::listen(move |stop| match stop {
            Stop::Now => tracing::warn!("stopping at once"),
            Stop::Drain | Stop::No => tracing::info!("{stopping}; again to stop at once"),
        })?;
        let (gently, at_once) = (signals.stop().listen(), signals.stop().listen());
        Ok(Self { listen, access, metrics, signals, gently, at_once })
    }

    /// Who may reach it.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// Opens the store and does its duties, and `serve`s, until it is stopped.
    pub(super) async fn run(
        mut self,
        engine: EngineSettings,
        duties: Duties,
        serve: impl AsyncFnOnce(TcpListener, AppState, CancellationToken) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let store: Arc<dyn Store> = tokio::select! {
            store = engine::open(engine) => store?,
            // It waited for the store.
            () = self.gently.reached(Stop::Drain) => return Ok(()),
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let manager = Manager::start(Arc::clone(&store), Arc::clone(&clock), ManagerConfig::default());
        let cannot = |error: io::Error| Failure::Failed(format!("cannot listen on {}: {error}", self.listen));
        let listener = TcpListener::bind(self.listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let notifier = notify::start(duties.notifications, &manager, Arc::clone(&store), Arc::clone(&clock)).await?;
        let monitor = match duties.oversight {
            None => None,
            Some(config) => {
                let started = Monitor::start(manager.clone(), store, clock, config).await;
                Some(started.map_err(|error| Failure::Usage(error.to_string()))?)
            }
        };
        print(&format!("listening on http://{address}"))?;

        let shutdown = CancellationToken::new();
        let state = AppState {
            manager: manager.clone(),
            subscriptions: Some(notifier.subscriptions().clone()),
            access: self.access,
            metrics: self.metrics,
            limits: Limits::default(),
            configuration: duties.configuration,
        };
        let served = async {
            serve(listener, state, shutdown.clone()).await.map_err(cannot)?;
            // What the monitor does last is told of as well.
            if let Some(monitor) = monitor {
                monitor.shutdown().await;
            }
            notifier.shutdown().await;
            manager.shutdown().await;
            Ok(())
        };
        let stopped = async {
            self.gently.reached(Stop::Drain).await;
            shutdown.cancel();
            self.at_once.reached(Stop::Now).await;
        };
        tokio::select! {
            served = served => served,
            () = stopped => Err(Failure::Told(self.signals.status().unwrap_or(ExitStatus::Terminated))),
        }
    }
}
