//! The flags of `leasehold edit` that name new values.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;

use super::failure::Failure;
use super::submit::{label, resource};
use super::{duration, when};
use crate::clock::{Timestamp, millis};
use crate::wire::{EditJob, RetryOptions};

/// The heading of the flags. They are given on the command line only: an environment variable that was set for
/// submissions must not change jobs.
pub(super) const HEADING: &str = "New values";

/// The new values of a job's fields.
#[derive(Debug, Args)]
#[command(next_help_heading = HEADING)]
pub(super) struct EditFields {
    /// The priority, from -100 to 100; higher runs first
    #[arg(long, allow_hyphen_values = true)]
    priority: Option<i64>,
    /// The time at which a waiting job is due, such as 'in 2h', 'tomorrow 02:00' or 2030-01-31T08:00:00Z
    #[arg(long, visible_alias = "at", value_name = "TIME", value_parser = when::parse)]
    run_at: Option<Timestamp>,
    /// The time by which a waiting job has to be started, or `none`
    #[arg(long, visible_alias = "expires", value_name = "TIME", value_parser = or_none(when::parse))]
    expires_at: Option<OrNone<Timestamp>>,
    /// A label to set (repeatable)
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// A label to remove (repeatable)
    #[arg(long = "remove-label", value_name = "NAME")]
    removed_labels: Vec<String>,
    /// The time limit of each attempt, or `none`
    #[arg(long, value_name = "DURATION", value_parser = or_none(duration::parse))]
    timeout: Option<OrNone<Duration>>,
    /// How long an attempt is expected to take, or `none`
    #[arg(long, value_name = "DURATION", value_parser = or_none(duration::parse))]
    expected_runtime: Option<OrNone<Duration>>,
    /// How many attempts the job gets
    #[arg(long, value_name = "N")]
    max_attempts: Option<u64>,
    /// The wait after the first failed attempt
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    retry_base: Option<Duration>,
    /// The longest wait between attempts
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    retry_max: Option<Duration>,
    /// The amount of a resource that the job needs (repeatable)
    #[arg(long = "resource", value_name = "NAME=AMOUNT", value_parser = resource)]
    resources: Vec<(String, u64)>,
    /// A resource that the job needs no more (repeatable)
    #[arg(long = "remove-resource", value_name = "NAME")]
    removed_resources: Vec<String>,
}

/// A value, or none.
#[derive(Clone, Copy, Debug)]
struct OrNone<T>(Option<T>);

fn or_none<T>(parse: impl Fn(&str) -> Result<T, String> + Clone) -> impl Fn(&str) -> Result<OrNone<T>, String> + Clone {
    move |text| if text == "none" { Ok(OrNone(None)) } else { parse(text).map(|value| OrNone(Some(value))) }
}

impl EditFields {
    /// Returns the change that the flags describe.
    pub(super) fn edit(self) -> Result<EditJob, Failure> {
        let waits = RetryOptions {
            base_ms: self.retry_base.map(millis),
            max_ms: self.retry_max.map(millis),
            ..RetryOptions::default()
        };
        let edit = EditJob {
            priority: self.priority,
            run_at: self.run_at.map(Timestamp::to_rfc3339),
            expires_at: self.expires_at.map(|OrNone(time)| time.map(Timestamp::to_rfc3339)),
            labels: entries(self.labels, self.removed_labels),
            expected_runtime_ms: self.expected_runtime.map(|OrNone(time)| time.map(millis)),
            timeout_ms: self.timeout.map(|OrNone(time)| time.map(millis)),
            max_attempts: self.max_attempts,
            retry: (waits != RetryOptions::default()).then_some(waits),
            resources: entries(self.resources, self.removed_resources),
            reason: None,
        };
        if edit.is_empty() {
            let message = "say what to change, such as --priority 5; `leasehold edit --help` lists all";
            return Err(Failure::Usage(message.to_owned()));
        }
        edit.clone().into_edit().map_err(|invalid| Failure::Usage(invalid.to_string()))?;
        Ok(edit)
    }
}

fn entries<T>(set: Vec<(String, T)>, removed: Vec<String>) -> BTreeMap<String, Option<T>> {
    let set = set.into_iter().map(|(name, value)| (name, Some(value)));
    set.chain(removed.into_iter().map(|name| (name, None))).collect()
}
