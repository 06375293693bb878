//! Subscriptions: who is told of what, whichever job it happens to.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{Checks, Invalid};
use crate::clock::{Timestamp, rfc3339};
use crate::executor::webhook::Secret;
use crate::job::{EventName, NoticeFormat};
use crate::notify::{self, NewSubscription};

/// The most queues or kinds of a subscription.
const MAX_NAMES: usize = 100;

/// A subscription to be made. Only `url` must be said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "url": "https://example.org/hook", "events": ["failed", "orphaned"], "queues": ["reports"],
}))]
pub struct Subscribe {
    /// Where to: an `http` or `https` URL.
    pub url: String,
    /// Of which events: `completed`, `failed`, `cancelled`, `expired`, `orphaned`, `overdue`, `released`, `retried`. Of
    /// all of them when none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub events: Vec<EventName>,
    /// In which form: `cloud_events`, `slack` or `alertmanager`. `cloud_events` when not said.
    #[serde(default)]
    #[schema(value_type = String)]
    pub format: NoticeFormat,
    /// Of the jobs of these queues; of all when none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// Of the jobs of these kinds; of all when none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// What its messages are to be signed with: `whsec_` and base64 of 24 to 64 bytes. Made when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// A subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Subscription {
    /// Its name.
    pub id: String,
    /// Where to.
    pub url: String,
    /// Of which events; of all that can be told of when empty.
    #[schema(value_type = Vec<String>)]
    pub events: Vec<EventName>,
    /// In which form.
    #[schema(value_type = String)]
    pub format: NoticeFormat,
    /// Of the jobs of these queues; of all when empty.
    pub queues: Vec<String>,
    /// Of the jobs of these kinds; of all when empty.
    pub kinds: Vec<String>,
    /// What its messages are signed with, to be kept where they are verified. Told only when it is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Since when.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// By whom.
    pub created_by: String,
    /// Since when it is told nothing; null while it is.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub switched_off_at: Option<Timestamp>,
    /// Why it is told nothing.
    pub switched_off_reason: Option<String>,
}

/// Every subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubscriptionList {
    /// The subscriptions, oldest first.
    pub items: Vec<Subscription>,
    /// Always null: there is one page.
    pub next_cursor: Option<String>,
}

/// What messages to those are signed with whom a job itself names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SigningKey {
    /// `whsec_` and base64.
    pub secret: String,
}

impl Subscribe {
    /// Checks every field.
    ///
    /// # Errors
    /// Every field that is wrong.
    pub fn into_new(self) -> Result<NewSubscription, Invalid> {
        let mut checks = Checks::default();
        checks.url("url", &self.url);
        checks.notifiable("events", &self.events);
        for (field, names) in [("queues", &self.queues), ("kinds", &self.kinds)] {
            if names.len() > MAX_NAMES {
                checks.fault(field, format!("has more than {MAX_NAMES} names"));
            }
        }
        let queues: Vec<_> = self.queues.iter().filter_map(|name| checks.name("queues", name)).collect();
        let kinds: Vec<_> = self.kinds.iter().filter_map(|name| checks.name("kinds", name)).collect();
        let secret = self.secret.as_deref().map(str::parse::<Secret>).transpose();
        if let Err(error) = &secret {
            checks.fault("secret", error.to_string());
        }
        let secret = checks.finish(secret.ok())?;
        let (url, format, events) = (self.url, self.format, self.events.into_iter().collect());
        Ok(NewSubscription { url, format, events, queues, kinds, secret })
    }
}

impl From<&notify::Subscription> for Subscription {
    /// Without its secret.
    fn from(subscription: &notify::Subscription) -> Self {
        let off = subscription.switched_off.as_ref();
        Self {
            id: subscription.id.clone(),
            url: subscription.url.clone(),
            events: subscription.events.iter().copied().collect(),
            format: subscription.format,
            queues: subscription.queues.iter().map(ToString::to_string).collect(),
            kinds: subscription.kinds.iter().map(ToString::to_string).collect(),
            secret: None,
            created_at: subscription.created_at,
            created_by: subscription.created_by.to_string(),
            switched_off_at: off.map(|off| off.at),
            switched_off_reason: off.map(|off| off.reason.clone()),
        }
    }
}

impl Subscription {
    /// The subscription with its newest secret.
    pub(crate) fn with_secret(subscription: &notify::Subscription) -> Self {
        Self { secret: subscription.secrets.first().map(Secret::reveal), ..Self::from(subscription) }
    }
}
