//! One delivery: an event, one receiver, and the outcome that follows from the receiver's answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::config::NotifyConfig;
use super::subscriptions::{Reception, Subscriptions};
use crate::clock::{Clock, Timestamp};
use crate::executor::webhook::{Event, Receiver, Verdict};
use crate::executor::{Admission, Caller, Heard, Hosts, HttpExecutor, Party, TargetUrl, excerpt};
use crate::job::{JobId, JobSpec, Json, Kind, NoticeFormat, NoticeTarget, Owner, QueueName};
use crate::manager::NewJob;
use crate::schedule::ScheduleNotifyTarget;
use crate::worker::{Attempt, Handler, HandlerError};

/// The name of the queue of deliveries.
pub const QUEUE: &str = "leasehold.notifications";
/// The kind of deliveries' jobs.
pub const KIND: &str = "leasehold.webhook";

/// The namespace of deliveries' ids (RFC 9562, section 5.5).
const NAMESPACE: Uuid = Uuid::from_u128(0x51a9_3c1e_0d5b_4f6a_b0b7_9f1d_6a2c_84e3);

/// The payload of a delivery's job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The event to deliver.
    pub event: Event,
    /// The receiver of the event.
    pub to: Addressee,
}

/// The receiver of a delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Addressee {
    /// A subscription, with its URL and secrets at the time of the delivery.
    Subscription(String),
    /// A target that the job or the schedule itself names.
    Target {
        /// The URL that is called.
        url: String,
        /// The format of the message.
        format: NoticeFormat,
    },
}

impl Addressee {
    /// Returns the name of the receiver, unique among receivers.
    fn name(&self) -> String {
        match self {
            Self::Subscription(id) => format!("subscription {id}"),
            Self::Target { url, format } => format!("{} {url}", format.as_str()),
        }
    }

    /// Returns the name of those receivers that share places at their host as one. A job may name a URL of its own:
    /// those of one owner at one host are one, however many they are.
    fn party(&self, origin: &str) -> String {
        match self {
            Self::Subscription(_) => self.name(),
            Self::Target { .. } => origin.to_owned(),
        }
    }
}

impl From<&NoticeTarget> for Addressee {
    fn from(target: &NoticeTarget) -> Self {
        Self::Target { url: target.url.clone(), format: target.format }
    }
}

impl From<&ScheduleNotifyTarget> for Addressee {
    fn from(target: &ScheduleNotifyTarget) -> Self {
        Self::Target { url: target.url.clone(), format: target.format }
    }
}

impl Delivery {
    /// Returns the delivery's id, which is unique for the event and receiver and the same each time.
    fn id(&self) -> JobId {
        let name = Uuid::new_v5(&NAMESPACE, format!("{} {}", self.event.id, self.to.name()).as_bytes());
        JobId::of_uuid(at_time(self.event.at, name))
    }

    /// Returns the job that delivers the event.
    ///
    /// # Errors
    /// Returns an error when the delivery cannot be written as JSON.
    pub fn into_job(self, config: &NotifyConfig) -> Result<NewJob, serde_json::Error> {
        let subject = self.event.subject();
        let labels = [(format!("{}_id", subject.kind), subject.id), ("event".to_owned(), subject.event)];
        Ok(NewJob {
            id: Some(self.id()),
            payload: Some(Json::of(&self)?),
            ..NewJob::of(JobSpec {
                owner: subject.owner.cloned(),
                labels: labels.map(|(name, value)| (name, value.to_owned())).into(),
                retry: config.retry,
                max_attempts: config.max_attempts,
                ..JobSpec::new(QueueName::system(QUEUE), Kind::system(KIND))
            })
        })
    }
}

/// Returns an id with a time in its first 48 bits (UUIDv8): nobody looks for the job in what was over before.
fn at_time(at: Timestamp, name: Uuid) -> Uuid {
    let millis = u64::try_from(at.as_millis()).unwrap_or_default().to_be_bytes();
    let mut bytes = name.into_bytes();
    bytes[..6].copy_from_slice(&millis[2..]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// Runs deliveries.
pub(super) struct Deliver {
    pub(super) executor: HttpExecutor,
    pub(super) hosts: Hosts,
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) config: NotifyConfig,
}

#[async_trait]
impl Handler for Deliver {
    async fn run(&self, attempt: Attempt) -> Result<Option<Json>, HandlerError> {
        let text = attempt.job.payload.as_ref().map_or("null", Json::as_str);
        let delivery: Delivery =
            serde_json::from_str(text).map_err(|error| dead("unreadable", format!("this is no delivery: {error}")))?;
        let Some(receiver) = self.receiver(&delivery.to).await? else {
            let why = "the subscription is gone or switched off".to_owned();
            return Err(HandlerError::permanent("unsubscribed", why));
        };
        let host = receiver.url.origin();
        let party = Party::new(delivery.event.subject().owner.map(Owner::as_str), &delivery.to.party(&host));
        // A delivery may be late: whether its host answers again is found out in time for that.
        let caller = Caller { host: &host, party, margin: Duration::MAX, until: Timestamp::MAX };
        let place = match self.hosts.admit(&caller, &*self.clock).await {
            Admission::Call(place) => place,
            Admission::Later(wait) => {
                let why = format!("{} has as many calls as it may", receiver.url.host());
                return Err(HandlerError::postponed("busy", why, wait));
            }
            Admission::Trying(wait) => {
                let why = format!("another call finds out whether {} answers again", receiver.url.host());
                return Err(HandlerError::postponed("down", why, wait));
            }
            Admission::Down(wait) => {
                let why = format!("{} was not called: it does not answer", receiver.url.host());
                return Err(self.failed(&attempt, why, Some(wait)));
            }
        };
        let call = receiver.delivery(&delivery.event, &self.config.origin, self.clock.now());
        let answer = self.executor.call(&call).await;
        let verdict = Verdict::of(&answer, self.clock.now());
        self.hosts.ended(place, Heard::of(&answer), self.clock.now());
        let answered = excerpt(&answer, str::to_owned);
        match verdict {
            Verdict::Delivered => {
                metrics::counter!("leasehold_notifications_delivered_total").increment(1);
                Ok(Json::of(&serde_json::json!({ "answer": answered })).ok())
            }
            Verdict::Gone => {
                if let Addressee::Subscription(id) = &delivery.to {
                    self.subscriptions.switch_off(id, "the receiver answered 410 Gone").await;
                }
                Err(dead("gone", answered))
            }
            Verdict::Refused => Err(dead("refused", answered)),
            Verdict::Retry { after } => Err(self.failed(&attempt, answered, after)),
        }
    }
}

impl Deliver {
    /// Returns the error of an attempt after which another may succeed, unless it was the last.
    fn failed(&self, attempt: &Attempt, why: String, retry_after: Option<Duration>) -> HandlerError {
        metrics::counter!("leasehold_notifications_failed_attempts_total").increment(1);
        if attempt.job.attempt >= self.config.max_attempts {
            return dead("not_delivered", why);
        }
        HandlerError { retry_after, ..HandlerError::retryable("not_delivered", why) }
    }

    /// Returns the receiver of the delivery, or `None` when its subscription was removed or switched off.
    async fn receiver(&self, to: &Addressee) -> Result<Option<Receiver>, HandlerError> {
        let later = |error: crate::store::StoreError| HandlerError::retryable("store", error.to_string());
        let reception = match to {
            Addressee::Subscription(id) => self.subscriptions.reception(id).await.map_err(later)?,
            Addressee::Target { url, format } => {
                let secret = self.subscriptions.signing_key().await.map_err(later)?;
                Some(Reception { url: url.clone(), format: *format, secrets: vec![secret] })
            }
        };
        let Some(Reception { url, format, secrets }) = reception else { return Ok(None) };
        let url = TargetUrl::parse(&url).map_err(|error| dead("refused", error.to_string()))?;
        Ok(Some(Receiver { url, format, secrets, timeout: self.config.timeout }))
    }
}

/// Returns the error of a delivery that cannot succeed; its job stays as the dead letter.
fn dead(code: &str, message: String) -> HandlerError {
    metrics::counter!("leasehold_notifications_dead_total").increment(1);
    tracing::warn!(code, why = %message, "a notification is not delivered; its job is kept as the dead letter");
    HandlerError::permanent(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs with URLs of their own each had a breaker and a share of their own.
    #[test]
    fn targets_of_jobs_at_one_host_are_one_party_and_subscriptions_are_each_their_own() {
        let party = |addressee: &Addressee| addressee.party("https://called.example");
        let of_job = |path: &str| Addressee::Target {
            url: format!("https://called.example/{path}"),
            format: NoticeFormat::default(),
        };
        assert_eq!(party(&of_job("1")), party(&of_job("2")));
        let [one, other] = ["1", "2"].map(|id| Addressee::Subscription(id.to_owned()));
        assert_ne!(party(&one), party(&other));
        assert_ne!(one.name(), other.name());
        assert_ne!(of_job("1").name(), of_job("2").name(), "each is delivered to");
    }
}
