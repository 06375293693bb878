//! What administrators and the monitor do: [`queue_settings`] (pauses and orphan policies), [`orphans`] (flagged jobs
//! and what happens to them next), [`monitor_ops`] (the monitor's changes, removals and the archive), [`scan_troubles`]
//! (which of its scans fail).

pub(super) mod monitor_ops;
pub(super) mod orphans;
pub(super) mod oversight;
pub(super) mod queue_settings;
pub(super) mod scan_troubles;
