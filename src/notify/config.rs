//! How notifications are made.

use std::time::Duration;

use crate::executor::webhook::Origin;
use crate::job::RetryPolicy;

/// How notifications are made.
#[derive(Clone, Debug)]
pub struct NotifyConfig {
    /// Where events say that they come from.
    pub origin: Origin,
    /// How long to wait between two tries to deliver one.
    pub retry: RetryPolicy,
    /// How many tries there are before a delivery is a dead letter.
    pub max_attempts: u32,
    /// How long a receiver may take to answer.
    pub timeout: Duration,
    /// How many deliveries are under way at once.
    pub concurrency: usize,
    /// How often outboxes are searched for that nobody has handed on, and subscriptions for changes by others.
    pub period: Duration,
}

impl Default for NotifyConfig {
    /// Sixteen tries over about nine hours.
    fn default() -> Self {
        Self {
            origin: Origin { source: "/leasehold".to_owned(), job_pages: None },
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
