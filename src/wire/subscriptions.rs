//! Subscriptions: receivers of the events of all jobs and schedules.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{Checks, Invalid};
use crate::clock::Timestamp;
use crate::executor::webhook::Secret;
use crate::job::{Actor, EventName, Kind, NoticeFormat, Owner, QueueName};
use crate::notify::{self, NewSubscription, SubscribableEvent};
use crate::query::kql::Expression;

/// The most queues, kinds or owners of a subscription.
const MAX_NAMES: usize = 100;

/// A new subscription. Only `url` is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "url": "https://example.org/hook", "events": ["failed", "orphaned"], "queues": ["reports"],
}))]
pub struct Subscribe {
    /// The `http` or `https` URL that receives the events, at most 2,048 bytes.
    #[schema(max_length = 2048)]
    pub url: String,
    /// The events to send. An empty list selects all of them. Those of schedules are selected by `owners` alone: they
    /// are not sent where `queues`, `kinds` or `kql` select jobs, and cannot be named beside these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<SubscribableEvent>,
    /// The format of the messages; `cloud_events` by default.
    #[serde(default)]
    pub format: NoticeFormat,
    /// Selects only the jobs of these queues; all queues when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<QueueName>, max_items = 100)]
    pub queues: Vec<String>,
    /// Selects only the jobs of these kinds; all kinds when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Kind>, max_items = 100)]
    pub kinds: Vec<String>,
    /// Selects only the jobs and schedules of these owners; all owners when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Owner>, max_items = 100)]
    pub owners: Vec<String>,
    /// Selects only jobs that satisfy this query in Kibana's language, such as `labels.team: blue and priority > 50`,
    /// when the notification is handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kql: Option<String>,
    /// The secret that signs the messages: `whsec_` and the base64 of 24 to 64 bytes. Generated when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// A subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Subscription {
    /// The id of the subscription.
    pub id: String,
    /// The URL that receives the events.
    pub url: String,
    /// The events that are sent; an empty list selects all of them.
    pub events: Vec<SubscribableEvent>,
    /// The format of the messages.
    pub format: NoticeFormat,
    /// The queues whose jobs are selected; all queues when empty.
    #[schema(value_type = Vec<QueueName>)]
    pub queues: Vec<String>,
    /// The kinds whose jobs are selected; all kinds when empty.
    #[schema(value_type = Vec<Kind>)]
    pub kinds: Vec<String>,
    /// The owners whose jobs and schedules are selected; all owners when empty.
    #[schema(value_type = Vec<Owner>)]
    pub owners: Vec<String>,
    /// The query that selects the jobs; null when it is all of them.
    pub kql: Option<String>,
    /// The secret that signs the messages. Only the answers to creating a subscription and to changing its secret have
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub secret: Option<String>,
    /// When the subscription was created.
    pub created_at: Timestamp,
    /// The caller who created the subscription.
    #[schema(value_type = Actor)]
    pub created_by: String,
    /// When the subscription was switched off; null while it is active.
    pub switched_off_at: Option<Timestamp>,
    /// Why the subscription was switched off; null while it is active.
    pub switched_off_reason: Option<String>,
}

/// The secret that signs the messages to receivers that a job names itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SigningKey {
    /// The secret: `whsec_` and base64.
    pub secret: String,
}

impl Subscribe {
    /// Checks every field, and returns the request in the types of the domain.
    ///
    /// # Errors
    /// Every field that is wrong, by name.
    pub fn into_new(self) -> Result<NewSubscription, Invalid> {
        let mut checks = Checks::default();
        checks.url("url", &self.url);
        self.check_events(&mut checks);
        for (field, names) in [("queues", &self.queues), ("kinds", &self.kinds), ("owners", &self.owners)] {
            if names.len() > MAX_NAMES {
                checks.fault(field, format!("has more than {MAX_NAMES} names"));
            }
        }
        let queues: Vec<_> = self.queues.iter().filter_map(|name| checks.name("queues", name)).collect();
        let kinds: Vec<_> = self.kinds.iter().filter_map(|name| checks.name("kinds", name)).collect();
        let owners: Vec<_> = self.owners.iter().filter_map(|name| checks.name("owners", name)).collect();
        let query = self.kql.as_deref().map(Expression::parse).transpose();
        if let Err(error) = &query {
            checks.fault("kql", error.render());
        }
        let query = query.ok().flatten();
        let secret = self.secret.as_deref().map(str::parse::<Secret>).transpose();
        if let Err(error) = &secret {
            checks.fault("secret", error.to_string());
        }
        let secret = checks.finish(secret.ok())?;
        let (url, format, events) = (self.url, self.format, self.events.into_iter().collect());
        Ok(NewSubscription { url, format, events, queues, kinds, owners, query, secret })
    }

    /// Checks that each event can be sent, with what selects jobs beside it.
    fn check_events(&self, checks: &mut Checks) {
        let (mut of_jobs, mut of_schedules): (Vec<EventName>, Option<SubscribableEvent>) = (Vec::new(), None);
        for event in &self.events {
            match event {
                SubscribableEvent::Job(event) => of_jobs.push(*event),
                SubscribableEvent::Schedule(_) => of_schedules = Some(*event),
            }
        }
        checks.notifiable("events", &of_jobs);
        let selects_jobs = !self.queues.is_empty() || !self.kinds.is_empty() || self.kql.is_some();
        if let Some(event) = of_schedules.filter(|_| selects_jobs) {
            let message = "is of schedules, which have no queue, no kind and none of the fields that `kql` asks for: \
                           subscribe to it without these";
            checks.fault("events", format!("`{event}` {message}"));
        }
    }
}

impl From<&notify::Subscription> for Subscription {
    /// Converts the subscription without its secret.
    fn from(subscription: &notify::Subscription) -> Self {
        let off = subscription.switched_off.as_ref();
        Self {
            id: subscription.id.clone(),
            url: subscription.url.clone(),
            events: subscription.events.iter().copied().collect(),
            format: subscription.format,
            queues: subscription.queues.iter().map(ToString::to_string).collect(),
            kinds: subscription.kinds.iter().map(ToString::to_string).collect(),
            owners: subscription.owners.iter().map(ToString::to_string).collect(),
            kql: subscription.query.as_ref().map(ToString::to_string),
            secret: None,
            created_at: subscription.created_at,
            created_by: subscription.created_by.to_string(),
            switched_off_at: off.map(|off| off.at),
            switched_off_reason: off.map(|off| off.reason.clone()),
        }
    }
}

impl Subscription {
    /// Returns the subscription with its newest secret.
    pub(crate) fn with_secret(subscription: &notify::Subscription) -> Self {
        Self { secret: subscription.secrets.first().map(Secret::reveal), ..Self::from(subscription) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(fields: &str) -> Vec<(String, String)> {
        let subscribe: Subscribe = serde_json::from_str(&format!(r#"{{"url": "https://example.org/", {fields}}}"#))
            .expect("a subscription of known events");
        let errors = subscribe.into_new().err().map(|invalid| invalid.errors).unwrap_or_default();
        errors.into_iter().map(|error| (error.field, error.message)).collect()
    }

    #[test]
    fn events_of_jobs_and_of_schedules_are_subscribed_to_together() {
        assert_eq!(refused(r#""events": ["failed", "schedule_missed"], "owners": ["team-a"]"#), []);
        assert_eq!(refused(r#""queues": ["q"], "kql": "priority > 50""#), []);
        let unknown = serde_json::from_str::<Subscribe>(r#"{"url": "https://example.org/", "events": ["missed"]}"#);
        let said = unknown.expect_err("there is no such event").to_string();
        assert!(said.contains("`missed`") && said.contains("failed") && said.contains("schedule_missed"), "{said}");
    }

    #[test]
    fn an_event_of_schedules_is_refused_where_only_jobs_are_selected() {
        for selects in [r#""queues": ["q"]"#, r#""kinds": ["k"]"#, r#""kql": "owner: team-a""#] {
            let faults = refused(&format!(r#""events": ["failed", "schedule_failing"], {selects}"#));
            let [(field, message)] = &faults[..] else { panic!("{selects}: {faults:?}") };
            assert!(field == "events" && message.contains("`schedule_failing`"), "{selects}: {message}");
        }
        let faults = refused(r#""events": ["claimed", "schedule_failing"]"#);
        assert!(matches!(&faults[..], [(_, message)] if message.contains("`claimed` cannot be told of")), "{faults:?}");
    }
}
