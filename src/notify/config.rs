//! The settings of the notifier.

use std::time::Duration;

use crate::executor::webhook::Origin;
use crate::job::RetryPolicy;

/// The settings of the notifier.
#[derive(Clone, Debug)]
pub struct NotifyConfig {
    /// The origin that messages name.
    pub origin: Origin,
    /// The backoff between two attempts to deliver a message.
    pub retry: RetryPolicy,
    /// The attempts before a delivery becomes a dead letter.
    pub max_attempts: u32,
    /// The time limit for a receiver's answer.
    pub timeout: Duration,
    /// The most deliveries that are under way at once, half of them to one host.
    pub concurrency: usize,
    /// The time between two searches for forgotten outboxes and changed subscriptions.
    pub period: Duration,
}

impl Default for NotifyConfig {
    /// Returns the default settings, with sixteen attempts over about nine hours.
    fn default() -> Self {
        Self {
            origin: Origin { source: "/leasehold".to_owned(), pages: None },
            retry: RetryPolicy {
                base: Duration::from_secs(1),
                factor: 3.0,
                max: Duration::from_secs(3600),
                jitter: 0.2,
            },
            max_attempts: 16,
            timeout: Duration::from_secs(15),
            concurrency: 32,
            period: Duration::from_secs(1),
        }
    }
}
