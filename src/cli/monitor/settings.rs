//! The monitor's settings: flags over environment over the file's `[monitor]`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use serde::Deserialize;

use crate::cli::duration::{self, DurationSetting};
use crate::job::{OrphanPolicy, QueueName};
use crate::monitor::{MonitorConfig, Retention, Schedule};
use crate::scheduler::trigger;

/// How long the triggers of schedules are kept by default.
const TRIGGERS_KEPT: Duration = Duration::from_secs(24 * 3600);
/// How often the audit is updated by default.
const DEFAULT_AUDIT_PERIOD: Duration = Duration::from_secs(10);

/// The monitor's settings, on the command line and in the settings file.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields)]
#[command(next_help_heading = "Monitoring")]
pub(crate) struct OversightArgs {
    /// The address that a monitor of its own listens on.
    #[arg(skip)]
    pub(super) listen: Option<SocketAddr>,
    /// How often jobs are scanned for flags, time limits and start deadlines, in milliseconds [default: 5000]
    #[arg(long, value_name = "MS", conflicts_with = "monitor_cron")]
    #[serde(rename = "scan_period_ms")]
    monitor_scan_period_ms: Option<u64>,
    /// When they are scanned instead, as a cron expression with seconds, in UTC, such as `*/10 * * * * *`
    #[arg(long, value_name = "CRON")]
    #[serde(rename = "cron")]
    monitor_cron: Option<String>,
    /// How often jobs with an expired lease are recovered, in milliseconds [default: 1000]
    #[arg(long, value_name = "MS")]
    recovery_period_ms: Option<u64>,
    /// How long a lease must have been expired before its job is recovered, in milliseconds [default: 2000]
    #[arg(long, value_name = "MS")]
    orphan_grace_ms: Option<u64>,
    /// How far the clocks of two machines may differ, in milliseconds; no job is taken away before as much has passed
    /// [default: 5000, or 0 for the embedded store]
    #[arg(long, value_name = "MS")]
    clock_skew_ms: Option<u64>,
    /// The age in milliseconds from which the last heartbeat of a job past its expected runtime is stale [default: half
    /// its lease]
    #[arg(long, value_name = "MS")]
    heartbeat_stale_ms: Option<u64>,
    /// What becomes of a job whose lease expires: requeue, fail, or flag for a person [default: requeue]
    #[arg(long, value_name = "POLICY")]
    orphan_policy: Option<OrphanPolicy>,
    /// How long ended jobs are kept: one age for all, or one by state, such as `completed=7d,failed=never` [default:
    /// 30d]
    #[arg(long, value_name = "AGES", value_parser = ages)]
    retention: Option<Ages>,
    /// How long the triggers of schedules are kept after their end, where that is shorter; the outcomes of the last ten
    /// of each schedule are kept beyond that [default: 1d]
    #[arg(long, value_name = "DURATION")]
    trigger_retention: Option<DurationSetting>,
    /// How often older ones are removed, in milliseconds [default: 600000]
    #[arg(long, value_name = "MS")]
    retention_period_ms: Option<u64>,
    /// Keep an audit of everything that happens to jobs: a data stream or monthly indices on Elasticsearch, files in
    /// the data directory otherwise
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    audit: Option<bool>,
    /// How often the audit is updated, in milliseconds [default: 10000]
    #[arg(long, value_name = "MS")]
    audit_period_ms: Option<u64>,
    /// Copy everything that the jobs' histories still hold into the audit once more, as after its loss
    #[arg(long, env = "LEASEHOLD_AUDIT_ANEW")]
    #[serde(skip)]
    audit_anew: bool,
    /// How often ended jobs are moved from the live index to the archive, on Elasticsearch, in milliseconds [default:
    /// 60000]
    #[arg(long, value_name = "MS")]
    archive_period_ms: Option<u64>,
    /// For how long a submission can be repeated; no job is removed earlier [default: 24h]
    #[arg(long, value_name = "DURATION")]
    idempotency_window: Option<DurationSetting>,
}

impl OversightArgs {
    /// Returns the settings of the command line over those of the file over the defaults.
    pub(crate) fn over(self, file: &Self) -> Result<MonitorConfig, String> {
        let defaults = MonitorConfig::default();
        let optional = |flag: Option<u64>, file: Option<u64>| flag.or(file).map(Duration::from_millis);
        let millis = |flag, file, default| optional(flag, file).unwrap_or(default);
        let period = |name, flag, file, default| match millis(flag, file, default) {
            Duration::ZERO => Err(no_period(name)),
            period => Ok(period),
        };
        let recovery_period =
            period("recovery_period_ms", self.recovery_period_ms, file.recovery_period_ms, defaults.recovery_period)?;
        let retention_period = period(
            "retention_period_ms",
            self.retention_period_ms,
            file.retention_period_ms,
            defaults.retention_period,
        )?;
        let archive_period =
            period("archive_period_ms", self.archive_period_ms, file.archive_period_ms, defaults.archive_period)?;
        let audit_period = period("audit_period_ms", self.audit_period_ms, file.audit_period_ms, DEFAULT_AUDIT_PERIOD)?;
        let retention = self.retention.or(file.retention).map(|ages| ages.0);
        let triggers = self.trigger_retention.or(file.trigger_retention).map_or(TRIGGERS_KEPT, |setting| setting.0);
        let window = self.idempotency_window.or(file.idempotency_window).map(|setting| setting.0);
        Ok(MonitorConfig {
            scans: self.scans(file)?.unwrap_or(defaults.scans),
            recovery_period,
            retention_period,
            archive_period,
            orphan_grace: millis(self.orphan_grace_ms, file.orphan_grace_ms, defaults.orphan_grace),
            clock_skew: optional(self.clock_skew_ms, file.clock_skew_ms),
            heartbeat_stale: optional(self.heartbeat_stale_ms, file.heartbeat_stale_ms),
            orphan_policy: self.orphan_policy.or(file.orphan_policy).unwrap_or(defaults.orphan_policy),
            retention: retention.unwrap_or(defaults.retention),
            queue_retention: [(QueueName::system(trigger::QUEUE), triggers)].into(),
            idempotency_window: window.unwrap_or(defaults.idempotency_window),
            audit_anew: self.audit_anew,
            audit_period: self.audit.or(file.audit).unwrap_or(self.audit_anew).then_some(audit_period),
            term: defaults.term,
            leads_since: None,
        })
    }

    fn scans(&self, file: &Self) -> Result<Option<Schedule>, String> {
        let schedule = |period: Option<u64>, cron: &Option<String>| match (period, cron) {
            (Some(_), Some(_)) => Err("a scan has a period or a cron expression, not both".to_owned()),
            (Some(0), None) => Err(no_period("scan_period_ms")),
            (Some(period), None) => Ok(Some(Schedule::Every(Duration::from_millis(period)))),
            (None, Some(cron)) => Ok(Some(Schedule::Cron(cron.clone()))),
            (None, None) => Ok(None),
        };
        let flags = schedule(self.monitor_scan_period_ms, &self.monitor_cron)?;
        Ok(flags.or(schedule(file.monitor_scan_period_ms, &file.monitor_cron)?))
    }
}

fn no_period(name: &str) -> String {
    format!("{name} must be at least 1: without a pause between two scans nothing else gets a turn")
}

/// How long ended jobs are kept, as flags and the settings file take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Ages(Retention);

impl TryFrom<String> for Ages {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        ages(&text)
    }
}

/// Parses `30d`, `never`, or `completed=7d,failed=never`; states that are not named keep their default.
fn ages(text: &str) -> Result<Ages, String> {
    if !text.contains('=') {
        return age(text).map(Retention::all).map(Ages);
    }
    let mut retention = Retention::default();
    for part in text.split(',') {
        let (state, kept) = part.split_once('=').ok_or_else(|| format!("`{part}` lacks its `state=`"))?;
        let kept = age(kept)?;
        match state.trim() {
            "completed" => retention.completed = kept,
            "failed" => retention.failed = kept,
            "cancelled" => retention.cancelled = kept,
            "expired" => retention.expired = kept,
            other => return Err(format!("`{other}` is none of completed, failed, cancelled, expired")),
        }
    }
    Ok(Ages(retention))
}

/// Parses an age. `never` and zero keep jobs for ever.
fn age(text: &str) -> Result<Option<Duration>, String> {
    match text.trim() {
        "never" => Ok(None),
        other => duration::parse(other).map(|age| Some(age).filter(|age| !age.is_zero())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn ages_are_read_for_all_states_or_by_state() {
        assert_eq!(ages("7d"), Ok(Ages(Retention::all(Some(7 * DAY)))));
        for never in ["never", "0", "0d"] {
            assert_eq!(ages(never), Ok(Ages(Retention::FOR_EVER)), "{never}");
        }
        let some = Retention { completed: Some(DAY), failed: None, ..Retention::default() };
        assert_eq!(ages("completed=1d,failed=never"), Ok(Ages(some)));
        for wrong in ["soon", "done=1d", "completed=1d,7d", "running=1d"] {
            assert!(ages(wrong).is_err(), "{wrong} was taken");
        }
    }

    #[test]
    fn a_flag_goes_over_the_file_and_the_file_over_the_default() {
        let file: OversightArgs = toml::from_str(
            "cron = \"0 * * * * *\"\norphan_grace_ms = 7000\nclock_skew_ms = 100\norphan_policy = \"flag\"\n\
             retention = \"never\"",
        )
        .expect("settings");
        let from_file = OversightArgs::default().over(&file).expect("settings");
        assert_eq!(from_file.scans, Schedule::Cron("0 * * * * *".to_owned()));
        assert_eq!(from_file.orphan_policy, OrphanPolicy::Flag);
        assert_eq!((from_file.retention, from_file.recovery_period), (Retention::FOR_EVER, Duration::from_secs(1)));
        let flags = OversightArgs {
            monitor_scan_period_ms: Some(9000),
            orphan_grace_ms: Some(1000),
            ..OversightArgs::default()
        };
        let over = flags.over(&file).expect("settings");
        assert_eq!(over.scans, Schedule::Every(Duration::from_secs(9)));
        assert_eq!((over.orphan_grace, over.clock_skew), (Duration::from_secs(1), Some(Duration::from_millis(100))));
    }

    #[test]
    fn a_period_of_nothing_is_refused() {
        for name in ["scan", "recovery", "retention", "archive", "audit"] {
            let file = toml::from_str(&format!("{name}_period_ms = 0")).expect("a key that is known");
            let said = OversightArgs::default().over(&file).expect_err("a period of nothing");
            assert!(said.contains(&format!("{name}_period_ms")), "{said}");
        }
    }

    #[test]
    fn a_scan_cannot_have_a_period_and_an_expression() {
        let file = toml::from_str("cron = \"0 * * * * *\"\nscan_period_ms = 5000").expect("keys that are known");
        assert!(OversightArgs::default().over(&file).is_err());
    }
}
