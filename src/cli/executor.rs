//! `leasehold executor`: performs schedules as a process of its own, beside servers over the same store.

use std::num::NonZeroU16;

use clap::Args;
use serde::Deserialize;

use super::engine::StoreKind;
use super::failure::Failure;
use super::host::{Duties, Host, HostArgs};
use super::settings::Settings;
use crate::api;
use crate::scheduler::SchedulerConfig;

const DEFAULT_PORT: u16 = 7402;

const HOW_IT_WORKS: &str = "\
Every server performs schedules by itself, unless it is told not to (`--no-executor`). Executors of their own share \
the schedules with the servers, as many as there are, and take over from one that is gone within seconds.

It serves /livez, /readyz and /metrics.

Examples:
  leasehold executor --store elasticsearch --elasticsearch-url http://es-1:9200
  leasehold executor --config /etc/leasehold.toml --listen 127.0.0.1:7403";

/// Perform schedules: make their triggers, submit their jobs and make their calls
#[derive(Debug, Args)]
#[command(after_help = HOW_IT_WORKS)]
pub(super) struct ExecutorArgs {
    #[command(flatten)]
    performing: PerformingArgs,
    #[command(flatten)]
    host: HostArgs,
}

/// How much is done at a time, on the command line and in the settings file.
#[derive(Clone, Copy, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PerformingArgs {
    /// How many triggers of schedules this process performs at the same time [default: 512]
    #[arg(long, value_name = "N")]
    trigger_slots: Option<NonZeroU16>,
    /// How many of them call the same host at the same time [default: 128]
    #[arg(long, value_name = "N")]
    trigger_slots_per_host: Option<NonZeroU16>,
    /// How many schedules this process loads at a time: their triggers are made with one write [default: 1000]
    #[arg(long, value_name = "N")]
    trigger_page: Option<NonZeroU16>,
}

impl PerformingArgs {
    /// Returns the settings: these flags over those of the file.
    pub(super) fn over(&self, file: &Self) -> SchedulerConfig {
        let SchedulerConfig { page, slots, places } = SchedulerConfig::default();
        let setting = |flag: Option<NonZeroU16>, file: Option<NonZeroU16>, default| {
            flag.or(file).map_or(default, |value| value.get().into())
        };
        SchedulerConfig {
            page: setting(self.trigger_page, file.trigger_page, page),
            slots: setting(self.trigger_slots, file.trigger_slots, slots),
            places: setting(self.trigger_slots_per_host, file.trigger_slots_per_host, places),
        }
    }
}

/// Performs schedules until it is stopped.
pub(super) async fn run(args: ExecutorArgs, settings: Settings) -> Result<(), Failure> {
    let performs = Some(args.performing.over(&settings.executor));
    let host = Host::prepare(args.host, settings, DEFAULT_PORT, "stopping once the calls have ended")?;
    if host.engine.kind() == StoreKind::Embedded {
        let message = "the embedded store belongs to one process, the server, which performs schedules itself; an \
                       executor of its own is for `--store elasticsearch`";
        return Err(Failure::Usage(message.to_owned()));
    }
    let duties = Duties { oversees: false, performs };
    host.run(duties, serde_json::Value::Null, api::serve_monitor).await
}
