//! The common part of `serve` and `monitor`: a process over a store that listens until it is stopped.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use metrics_exporter_prometheus::PrometheusHandle;
use reqwest::Url;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::cluster::{Cluster, ClusterArgs};
use super::duration::DurationSetting;
use super::engine::{self, EngineSettings, Opened, StoreArgs};
use super::failure::{ExitStatus, Failure};
use super::leading::{Leading, Stages, go_on_alone_from};
use super::limits;
use super::log::{self, LogFormat};
use super::managing::{Duties, Means, Shown};
use super::members::Members;
use super::memory;
use super::monitor::OversightArgs;
use super::notify::{self, Notifications, NotifyArgs};
use super::output::print;
use super::permissions::hide_settings;
use super::renewal::Renewal;
use super::settings::Settings;
use super::signals::Signals;
use crate::api::access::{Access, OwnNames, check_exposure};
use crate::api::{self, AppState, Limits, MemberState, Office, TrustedProxy};
use crate::clock::{AwakeClock, Clock, ComparedClock, ContinuedClock, MemberClock, MemberClocks, SystemClock};
use crate::manager::{ManagerConfig, SESSION_LASTS};
use crate::monitor::MonitorConfig;
use crate::peers::{Carrier, Deputies, Signer};
use crate::store::time::keep_compared;
use crate::store::{Member, Store};
use crate::worker::{Stop, StopListener};

/// How many connections may wait to be accepted; the system may allow fewer.
const BACKLOG: u32 = 16_384;
/// The shortest time without use after which somebody is signed out: their use is written once a minute.
const LEAST_SESSION_IDLE: Duration = Duration::from_secs(60);

/// The flags of both.
#[derive(Debug, Args)]
pub(super) struct HostArgs {
    /// The address to listen on; port 0 takes a free one [default: 127.0.0.1:7400, or 127.0.0.1:7401 for a monitor]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(super) listen: Option<SocketAddr>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Listen beyond this machine although no tokens are configured: anyone can then submit, claim and cancel jobs
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    insecure: Option<bool>,
    /// Let browsers and programs ask for this host name too where no tokens are configured (repeatable), such as
    /// jobs.internal; addresses, names without a dot, this machine's name and those in --public-url, --advertise and
    /// --peers need not be given
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    allow_host: Vec<String>,
    /// The most open connections; further ones are refused, but for a few that serve operators and probes [default:
    /// 16000, or what the limit of open files leaves room for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: Option<u32>,
    /// The most open connections from one address [default: nine tenths of all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections_per_address: Option<u32>,
    /// The address or network of a proxy in front of the server, whose `X-Forwarded-For` and `X-Forwarded-Proto` are
    /// believed (repeatable) [default: nobody's]
    #[arg(long = "trusted-proxy", value_name = "ADDR[/BITS]", value_delimiter = ',')]
    trusted_proxies: Option<Vec<TrustedProxy>>,
    /// How long somebody stays signed in at the web page who does not use it, from 1m to 24h [default: 1h]
    #[arg(long, value_name = "DURATION")]
    session_idle: Option<DurationSetting>,
    /// How long a job may be held, by a person, a pause or a limit, before `leasehold_jobs_held_long` counts it
    /// [default: 24h]
    #[arg(long, value_name = "DURATION")]
    held_bound: Option<DurationSetting>,
    /// The format of the log [default: text]
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
    #[command(flatten)]
    notify: NotifyArgs,
    #[command(flatten)]
    oversight: OversightArgs,
}

/// The process before its store is open.
pub(super) struct Host {
    listen: SocketAddr,
    pub(super) limits: Limits,
    pub(super) access: Access,
    pub(super) engine: EngineSettings,
    cluster: Option<Cluster>,
    members: Option<Members>,
    notifications: Notifications,
    oversight: MonitorConfig,
    held_bound: Duration,
    metrics: PrometheusHandle,
    renewal: Renewal,
    signals: Signals,
    gently: StopListener,
    at_once: StopListener,
}

/// Returns the limits of a server that has room for so many connections, and of which so many are wanted.
fn limits_of(room: usize, wanted: Option<u32>, wanted_per_address: Option<u32>) -> Limits {
    let limits = Limits::default();
    let wanted = wanted.map_or(limits.connections, |wanted| wanted as usize);
    if wanted > room && room < limits.connections {
        tracing::warn!(connections = room, wanted, "the limit of open files leaves room for few connections");
    }
    let connections = wanted.min(room);
    let per_address = wanted_per_address.map_or(connections.div_ceil(10) * 9, |wanted| wanted as usize);
    Limits { connections, connections_per_address: per_address.clamp(1, connections), ..limits }
}

/// Checks how long somebody stays signed in without use.
fn session_idle(wanted: Option<DurationSetting>) -> Result<Duration, Failure> {
    let idle = wanted.map_or(Limits::default().session_idle, |setting| setting.0);
    if (LEAST_SESSION_IDLE..=SESSION_LASTS).contains(&idle) {
        return Ok(idle);
    }
    Err(Failure::Usage("`session_idle` (--session-idle, LEASEHOLD_SESSION_IDLE) is from 1m to 24h".to_owned()))
}

/// Returns the names by which this machine is called, as far as it knows them itself.
fn own_names() -> OwnNames {
    let own = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    own.map_or_else(OwnNames::default, |name| OwnNames::default().with_host(&name))
}

/// Adds a host that the server may be asked for.
fn allow(names: OwnNames, host: &str) -> Result<OwnNames, String> {
    let is_a_name = |host: &str| !host.contains(['/', ':', '@', '*']) && url::Host::parse(host).is_ok();
    match host.trim() {
        host if is_a_name(host) => Ok(names.with_host(host)),
        other => Err(format!(
            "`allow_host` (--allow-host, LEASEHOLD_ALLOW_HOST): {other:?} is not the name of a host, such as \
             jobs.internal"
        )),
    }
}

/// Listens with a queue long enough for thousands of workers that come at once.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A server that is started again may take its port while connections of the last one linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Returns this machine's clock. Where clocks may differ by `skew`, it is compared with the store's until the handle is
/// dropped.
fn clock(store: &Arc<dyn Store>, skew: Duration) -> (Arc<dyn Clock>, Option<AbortOnDropHandle<()>>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    if store.is_exclusive() || skew.is_zero() {
        return (clock, None);
    }
    let compared = Arc::new(ComparedClock::new(clock, skew));
    let comparing = tokio::spawn(keep_compared(Arc::clone(&compared), Arc::clone(store)));
    (compared, Some(AbortOnDropHandle::new(comparing)))
}

impl Host {
    /// Starts the log, checks the settings and who may reach the process, and listens to signals; `stopping` is logged
    /// at the first.
    pub(super) fn prepare(
        args: HostArgs,
        settings: Settings,
        default_port: u16,
        stopping: &'static str,
    ) -> Result<Self, Failure> {
        log::start(args.log_format.or(settings.log_format).unwrap_or_default(), "info");
        hide_settings();
        let files = limits::raise_open_files();
        let connections = args.max_connections.or(settings.max_connections);
        let per_address = args.max_connections_per_address.or(settings.max_connections_per_address);
        let trusted_proxies = args.trusted_proxies.or(settings.trusted_proxy.clone()).unwrap_or_default();
        let session_idle = session_idle(args.session_idle.or(settings.session_idle))?;
        let usage = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
        let listen = args.listen.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, default_port).into());
        let access = Access::new(settings.tokens.clone()).map_err(|error| usage(&error))?;
        let allowed = if args.allow_host.is_empty() { &settings.allow_host } else { &args.allow_host };
        let names = allowed.iter().try_fold(own_names(), |names, host| allow(names, host)).map_err(Failure::Usage)?;
        let insecure = args.insecure.or(settings.insecure).unwrap_or(false);
        check_exposure(listen, &access, insecure).map_err(|error| usage(&error))?;
        let metrics = api::metrics::install().map_err(Failure::Failed)?;
        let renewal = Renewal::of(settings.file.clone(), access.clone())?;
        let signals = Signals::listen(move |stop| match stop {
            Stop::Now => tracing::warn!("stopping at once"),
            Stop::Drain | Stop::No => tracing::info!("{stopping}; again to stop at once"),
        })?;
        let chosen = args.store.store.or(settings.store);
        let room = limits::connections(files);
        let members = Members::of(&args.cluster, &settings, chosen)?;
        let (cluster, room) = match &members {
            // A call that is forwarded has a connection to the leader as well.
            Some(_) => (None, (room / 2).max(1)),
            None => (Cluster::of(&args.cluster, &settings, chosen)?, room),
        };
        let notifications = Notifications::of(&args.notify, &settings.notify)?;
        let names = match notifications.public_url() {
            Some(url) => names.with_public_url(url),
            None => names,
        };
        let peers = members.iter().flat_map(|members| members.map.addresses.values());
        let peers = peers.filter_map(|address| Url::parse(address).ok());
        let urls = peers.chain(cluster.as_ref().map(|cluster| cluster.url.clone()));
        Ok(Self {
            listen,
            limits: Limits { trusted_proxies, session_idle, ..limits_of(room, connections, per_address) },
            access: access.called(urls.fold(names, |names, url| names.with_url(&url))),
            notifications,
            oversight: args.oversight.over(&settings.monitor).map_err(Failure::Usage)?,
            held_bound: args
                .held_bound
                .or(settings.held_bound)
                .map_or(ManagerConfig::default().held_bound, |set| set.0),
            cluster,
            engine: settings.engine(args.store)?.in_group(members.as_ref().map(Members::group)),
            members,
            metrics,
            renewal,
            gently: signals.stop().listen(),
            at_once: signals.stop().listen(),
            signals,
        })
    }

    /// Opens the store, does its duties, and `serve`s until it is stopped. The health page shows
    /// the `configuration`, which holds nothing secret.
    pub(super) async fn run(
        mut self,
        duties: Duties,
        mut configuration: serde_json::Value,
        serve: impl AsyncFnOnce(TcpListener, AppState, CancellationToken) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let Opened { store, member } = tokio::select! {
            store = engine::open(self.engine, true) => store?,
            // The process was stopped while it waited for the store.
            () = self.gently.reached(Stop::Drain) => return Ok(()),
        };
        let (clock, _comparing) = clock(&store, self.oversight.skew(store.is_exclusive()));
        let cannot = |error: io::Error| Failure::Failed(format!("cannot listen on {}: {error}", self.listen));
        let listener = listen(self.listen).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let advertised = self.cluster.as_ref().map(|cluster| cluster.address(address.port()));
        configuration["advertise"] = serde_json::json!(advertised);
        if let Some(Members { map, .. }) = &self.members {
            configuration["cluster"] = serde_json::json!({"name": map.cluster, "member": map.member});
        }
        let executor = notify::executor(&self.notifications)?;
        let _renewing = self.renewal.start();
        let _giving_back = memory::give_back();
        let _reading = self.cluster.as_ref().and_then(|cluster| cluster.secret.keep_read());
        let peer_secret = self.cluster.map(|cluster| cluster.secret.secret);
        let means = Means {
            duties,
            store,
            clock,
            address: advertised,
            peer_secret,
            notifications: self.notifications,
            executor,
            oversight: self.oversight,
            held_bound: self.held_bound,
        };
        let shown = Shown { access: self.access, metrics: self.metrics, limits: self.limits, configuration };
        let shutdown = CancellationToken::new();
        let stopped = async {
            self.gently.reached(Stop::Drain).await;
            shutdown.cancel();
            self.at_once.reached(Stop::Now).await;
        };
        let served = async {
            match self.members {
                Some(members) => serve_as_member(listener, members, member, means, shown, shutdown.clone()).await,
                None => serve_alone(listener, means, &shown, shutdown.clone(), serve).await,
            }
        };
        tokio::select! {
            served = served => served,
            () = stopped => Err(Failure::Reported(self.signals.status().unwrap_or(ExitStatus::Terminated))),
        }
    }
}

/// Serves with a manager that works for as long as the process does.
async fn serve_alone(
    listener: TcpListener,
    means: Means,
    shown: &Shown,
    shutdown: CancellationToken,
    serve: impl AsyncFnOnce(TcpListener, AppState, CancellationToken) -> io::Result<()>,
) -> Result<(), Failure> {
    let clock = Arc::new(ContinuedClock::new(Arc::clone(&means.clock)));
    if let Some(written) = means.store.written_until() {
        go_on_alone_from(&clock, written);
    }
    let means = Means { clock: AwakeClock::start(clock), ..means };
    let managing = means.start(means.manager(), None).await?;
    let address = listener.local_addr().map_err(Failure::failed)?;
    print(&format!("listening on http://{address}"))?;
    let state = managing.state(shown);
    serve(listener, state, shutdown).await.map_err(|error| cannot_serve(address, &error))?;
    managing.shutdown().await;
    means.store.close().await;
    Ok(())
}

/// Serves as a member of a group, with a manager that works while the member leads.
async fn serve_as_member(
    listener: TcpListener,
    Members { map, secret, .. }: Members,
    member: Option<Arc<dyn Member>>,
    means: Means,
    shown: Shown,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    let member = member.ok_or_else(|| Failure::Failed("the store is not a member of a cluster".to_owned()))?;
    let (store, clock) = (Arc::clone(&means.store), Arc::clone(&means.clock));
    let _reading = secret.keep_read();
    let secret = secret.secret;
    let signer = Signer::new(secret.clone(), &map.name(map.member), Arc::clone(&clock));
    let of_deputies = signer.another();
    let clocks = Arc::new(MemberClocks::new(Arc::clone(&clock)));
    let carrier = Carrier::start(Arc::clone(&member), &map, signer, Arc::clone(&clocks)).map_err(Failure::failed)?;
    let own_address = map.addresses.get(&map.member).cloned();
    let executor = means.executor.clone();
    let deputies = Deputies::new(Arc::clone(&member), map.clone(), of_deputies, executor.limits());
    let deputies = Arc::new(deputies.map_err(Failure::failed)?);
    let (office, stages) = (Office::default(), Stages { stopping: shutdown, ..Stages::default() });
    let state = MemberState {
        member: Arc::clone(&member),
        map,
        store: Arc::clone(&store),
        office: office.clone(),
        peer_secret: secret,
        clock: Arc::clone(&clock),
        clocks: Arc::clone(&clocks),
        executor: executor.clone(),
        access: shown.access.clone(),
        metrics: shown.metrics.clone(),
        limits: shown.limits.clone(),
    };
    let (members, own) = (member.members(), member.number());
    let is_right = {
        let (clocks, members) = (Arc::clone(&clocks), members.clone());
        Box::new(move || {
            let voters: Vec<u64> = members.borrow().that_vote(true).collect();
            clocks.seen(own, voters.iter().copied()).is_right(voters.len())
        })
    };
    let is_far_off = {
        let (clocks, members) = (Arc::clone(&clocks), members.clone());
        move |now| clocks.is_far_off(now, own, members.borrow().that_vote(true))
    };
    let disagreement = move || clocks.seen(own, members.borrow().that_vote(true)).trouble(own);
    let clock = Arc::new(ContinuedClock::new(clock));
    let judged = MemberClock::new(Arc::clone(&clock) as Arc<dyn Clock>, disagreement, is_far_off);
    let executor = executor.with_deputy(deputies);
    let awake = AwakeClock::start(Arc::new(judged));
    let means = Means { clock: awake, executor, ..means };
    let leading = Leading { member, clock, is_right, means, shown, office, stages: stages.clone() };
    let (failing, failed) = oneshot::channel();
    let mut leading = AbortOnDropHandle::new(tokio::spawn(async move {
        if let Err(failure) = leading.run().await {
            drop(failing.send(failure));
        }
    }));
    let address = listener.local_addr().map_err(Failure::failed)?;
    if let Some(others_call) = own_address {
        warn_of_another_port(&others_call, address.port());
    }
    print(&format!("listening on http://{address}"))?;
    let retired = async {
        stages.retiring.cancel();
        if let Err(error) = (&mut leading).await {
            tracing::error!(%error, "the duties of the leader have ended badly");
        }
    };
    let served = api::serve_member(listener, state, stages.wound_down.clone(), retired);
    tokio::select! {
        served = served => served.map_err(|error| cannot_serve(address, &error))?,
        Ok(failure) = failed => return Err(failure),
    }
    store.close().await;
    // The last messages of the store have been sent, or are repeated by nobody.
    drop(carrier);
    Ok(())
}

/// Warns when the other members call this one at another port than it listens on, unless something that speaks TLS has
/// to be in between.
fn warn_of_another_port(others_call: &str, listens_on: u16) {
    let called = Url::parse(others_call).ok().filter(|url| url.scheme() == "http");
    if let Some(port) = called.and_then(|url| url.port_or_known_default()).filter(|port| *port != listens_on) {
        tracing::warn!(
            port,
            listens_on,
            "the other members call this one at {others_call} in `--peers`, where it does not listen itself: it takes \
             part only if something passes the calls on"
        );
    }
}

fn cannot_serve(address: SocketAddr, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot listen on {address}: {error}"))
}
