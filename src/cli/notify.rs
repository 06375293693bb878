//! The settings of notifications.

use std::sync::Arc;

use backon::Retryable as _;
use clap::Args;
use reqwest::Url;
use serde::Deserialize;

use super::duration::DurationSetting;
use super::failure::Failure;
use crate::clock::Clock;
use crate::executor::webhook::Origin;
use crate::executor::{AllowedTarget, HttpExecutor, Limits, TargetPolicy};
use crate::job::RetryPolicy;
use crate::manager::Manager;
use crate::notify::{Notifier, NotifyConfig};
use crate::store::{Store, StoreError};
use crate::worker::backoff;

/// The settings of notifications, on the command line and in the settings file.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields)]
#[command(next_help_heading = "Notifications")]
pub(super) struct NotifyArgs {
    /// The URL under which people reach this server, which notifications name and link to
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// Let webhooks call loopback and private addresses: everyone who may submit jobs can then make this server call
    /// them
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_private_targets: Option<bool>,
    /// Let webhooks call this private host or network (repeatable), such as `alerts.internal` or `10.1.0.0/16`
    #[arg(long, value_name = "TARGET", value_delimiter = ',')]
    #[serde(default)]
    allow_target: Vec<String>,
    #[arg(skip)]
    retry_base: Option<DurationSetting>,
    #[arg(skip)]
    max_attempts: Option<u32>,
    #[arg(skip)]
    timeout: Option<DurationSetting>,
}

/// The settings of notifications, checked.
pub(super) struct Notifications {
    policy: TargetPolicy,
    config: NotifyConfig,
}

impl Notifications {
    /// Merges and checks the settings of the command line and of the file.
    pub(super) fn of(args: &NotifyArgs, settings: &NotifyArgs) -> Result<Self, Failure> {
        let named = if args.allow_target.is_empty() { &settings.allow_target } else { &args.allow_target };
        let allow: Result<Vec<AllowedTarget>, String> = named.iter().map(|text| text.parse()).collect();
        let policy = TargetPolicy {
            allow_private: args.allow_private_targets.or(settings.allow_private_targets).unwrap_or(false),
            allow: allow.map_err(Failure::Usage)?,
        };
        let mut config = NotifyConfig::default();
        if let Some(url) = args.public_url.as_ref().or(settings.public_url.as_ref()) {
            config.origin = origin(url)?;
        }
        config.retry =
            RetryPolicy { base: settings.retry_base.map_or(config.retry.base, |duration| duration.0), ..config.retry };
        config.max_attempts = settings.max_attempts.unwrap_or(config.max_attempts).max(1);
        config.timeout = settings.timeout.map_or(config.timeout, |duration| duration.0);
        Ok(Self { policy, config })
    }

    /// Returns a URL of the server as people reach it, if one is given.
    pub(super) fn public_url(&self) -> Option<&Url> {
        self.config.origin.pages.as_ref()
    }
}

fn origin(url: &str) -> Result<Origin, Failure> {
    let wrong = |what: &dyn std::fmt::Display| Failure::Usage(format!("the public URL {url}: {what}"));
    let parsed = Url::parse(url).map_err(|error| wrong(&error))?;
    let mut pages = parsed.clone();
    pages.path_segments_mut().map_err(|()| wrong(&"cannot have a path"))?.pop_if_empty().push("v1");
    Ok(Origin { source: parsed.to_string(), pages: Some(pages) })
}

/// Makes what calls the addresses that users name.
pub(super) fn executor(notifications: &Notifications) -> Result<HttpExecutor, Failure> {
    HttpExecutor::new(notifications.policy.clone(), Limits::default()).map_err(Failure::failed)
}

/// Starts the notifier.
pub(super) async fn start(
    notifications: &Notifications,
    executor: HttpExecutor,
    manager: &Manager,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
) -> Result<Notifier, Failure> {
    let config = &notifications.config;
    let start = || Notifier::start(manager.clone(), store.clone(), clock.clone(), executor.clone(), config.clone());
    let started = start
        .retry(backoff::waits())
        .when(|error| !matches!(error, StoreError::Corrupt(_) | StoreError::Unreadable { .. }))
        .notify(|error, _| tracing::warn!(%error, "the subscriptions cannot be read yet; trying again"))
        .await;
    started.map_err(Failure::failed)
}
