//! How much of its schedules a process performs at a time.

use std::num::NonZeroU16;

use clap::Args;
use serde::Deserialize;

use crate::scheduler::SchedulerConfig;

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
