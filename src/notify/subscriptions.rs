//! Subscriptions: receivers of events of any job or schedule.
//!
//! A subscription is a record of the store. All of them are kept in memory, since every write needs to know whether
//! its events are subscribed to; what another process changes is known within two periods.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_with::{DisplayFromStr, serde_as};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::event::SubscribableEvent;
use crate::clock::{Clock, Timestamp};
use crate::executor::webhook::Secret;
use crate::executor::{TargetPolicy, TargetUrl};
use crate::job::{Actor, EventName, Job, Kind, NoticeFormat, Owner, QueueName, RecordName};
use crate::manager::{Manager, Topic};
use crate::query::kql::Expression;
use crate::schedule::{Definition, ScheduleEventName};
use crate::store::record::{CachedRecords, RecordError, change_record};
use crate::store::{RecordKey, RecordKind, Refresh, Store, StoreError};

/// The most subscriptions of one installation.
pub const MAX_SUBSCRIPTIONS: usize = 1_000;
/// The most secrets that sign at once, while one is being changed.
const MAX_SECRETS: usize = 2;

/// The time between two lists of all subscriptions, where other processes tell of their changes.
const LIST_EVERY: Duration = Duration::from_secs(60);

/// How long after a change lists may lag behind it, and keep what was removed.
const LAG: Duration = Duration::from_secs(12);

/// When the subscriptions were last listed, and when they were last known to have changed.
#[derive(Default)]
struct Listed {
    at: Option<Instant>,
    /// The number of the changes that are known.
    changes: Option<u64>,
    changed_at: Option<Instant>,
}

/// A receiver of events of any job or schedule.
#[serde_as]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// The subscription's id.
    pub id: String,
    /// The URL that is called.
    pub url: String,
    /// The format of the messages.
    pub format: NoticeFormat,
    /// The events that are sent; when empty, all that can be subscribed to.
    pub events: BTreeSet<SubscribableEvent>,
    /// The queues whose jobs' events are sent; all queues when empty.
    pub queues: Vec<QueueName>,
    /// The kinds whose jobs' events are sent; all kinds when empty.
    pub kinds: Vec<Kind>,
    /// The owners whose jobs' and schedules' events are sent; all owners when empty.
    pub owners: Vec<Owner>,
    /// The query that selects the jobs whose events are sent; all jobs when `None`.
    #[serde_as(as = "Option<DisplayFromStr>")]
    pub query: Option<Expression>,
    /// The secrets that sign the subscription's messages, the current one first; at most two.
    pub secrets: Vec<Secret>,
    /// When the subscription was created.
    pub created_at: Timestamp,
    /// Who created the subscription.
    pub created_by: Actor,
    /// When and why the subscription was switched off; `None` while it is active.
    pub switched_off: Option<SwitchedOff>,
}

/// When and why a subscription was switched off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchedOff {
    /// When the subscription was switched off.
    pub at: Timestamp,
    /// Why the subscription was switched off.
    pub reason: String,
}

impl Subscription {
    /// Returns whether this event of this job, which happened at `at`, is sent to the subscription.
    #[must_use]
    pub fn wants(&self, job: &Job, event: EventName, at: Timestamp) -> bool {
        self.wants_event(event.into())
            && (self.queues.is_empty() || self.queues.contains(&job.spec.queue))
            && (self.kinds.is_empty() || self.kinds.contains(&job.spec.kind))
            && self.wants_owner(job.spec.owner.as_ref())
            && self.query.as_ref().is_none_or(|query| query.matches(job, at))
    }

    /// Returns whether this event of a schedule is sent to the subscription. A schedule has no queue, no kind and none
    /// of the fields of a job, so that a subscription which asks for these gets no event of a schedule.
    #[must_use]
    pub fn wants_of_schedule(&self, definition: &Definition, event: ScheduleEventName) -> bool {
        self.wants_event(event.into())
            && self.queues.is_empty()
            && self.kinds.is_empty()
            && self.query.is_none()
            && self.wants_owner(definition.owner.as_ref())
    }

    fn wants_owner(&self, owner: Option<&Owner>) -> bool {
        self.owners.is_empty() || owner.is_some_and(|owner| self.owners.contains(owner))
    }

    fn wants_event(&self, event: SubscribableEvent) -> bool {
        let is_told_of = match event {
            SubscribableEvent::Job(event) => EventName::NOTIFIABLE.contains(&event),
            SubscribableEvent::Schedule(_) => true,
        };
        self.switched_off.is_none() && is_told_of && (self.events.is_empty() || self.events.contains(&event))
    }
}

/// A subscription to be created.
#[derive(Clone, Debug)]
pub struct NewSubscription {
    /// The URL that is called.
    pub url: String,
    /// The format of the messages.
    pub format: NoticeFormat,
    /// The events that are sent; when empty, all that can be subscribed to.
    pub events: BTreeSet<SubscribableEvent>,
    /// The queues whose jobs' events are sent; all queues when empty.
    pub queues: Vec<QueueName>,
    /// The kinds whose jobs' events are sent; all kinds when empty.
    pub kinds: Vec<Kind>,
    /// The owners whose jobs' and schedules' events are sent; all owners when empty.
    pub owners: Vec<Owner>,
    /// The query that selects the jobs whose events are sent; all jobs when `None`.
    pub query: Option<Expression>,
    /// The secret that signs the subscription's messages; one is generated when `None`.
    pub secret: Option<Secret>,
}

/// The URL, format and secrets for messages to one receiver.
pub(super) struct Reception {
    pub(super) url: String,
    pub(super) format: NoticeFormat,
    pub(super) secrets: Vec<Secret>,
}

/// Why a subscription could not be read or changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SubscriptionError {
    /// There is no subscription with this id.
    #[error("there is no subscription `{0}`")]
    NotFound(String),
    /// The URL is not a valid or allowed target.
    #[error("{0}")]
    Url(String),
    /// There are [`MAX_SUBSCRIPTIONS`] subscriptions already.
    #[error("there are {MAX_SUBSCRIPTIONS} subscriptions, and there cannot be more")]
    TooMany,
    /// Other writers kept changing the subscription.
    #[error("others kept writing it; {} tries were not enough", RecordError::TRIES)]
    Contended,
    /// The store refused or could not be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The outcome of the write is unknown: the change may or may not have been made.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(String),
}

/// All subscriptions.
pub struct Subscriptions {
    store: Arc<dyn Store>,
    manager: Manager,
    clock: Arc<dyn Clock>,
    policy: TargetPolicy,
    records: CachedRecords<Subscription>,
    listed: Mutex<Listed>,
    signing_key: OnceCell<Secret>,
}

#[derive(PartialEq, Serialize, Deserialize)]
struct SigningKey {
    secret: Secret,
}

impl Subscriptions {
    pub(super) async fn load(
        store: Arc<dyn Store>,
        manager: Manager,
        clock: Arc<dyn Clock>,
        policy: TargetPolicy,
    ) -> Result<Self, StoreError> {
        // Writes made right before this process started must be found.
        store.refresh(Refresh::Records).await?;
        let subscriptions = Self {
            records: CachedRecords::new(Arc::clone(&store), RecordKind::Subscription),
            store,
            manager,
            clock,
            policy,
            listed: Mutex::default(),
            signing_key: OnceCell::new(),
        };
        subscriptions.list_anew().await?;
        Ok(subscriptions)
    }

    /// Returns all subscriptions in the order of their ids.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Subscription>> {
        self.records.all().into_iter().map(|(_, subscription)| subscription).collect()
    }

    /// Returns the subscription with this id, read in real time.
    ///
    /// # Errors
    /// [`SubscriptionError::NotFound`], [`SubscriptionError::Store`].
    pub async fn get(&self, id: &str) -> Result<Subscription, SubscriptionError> {
        let missing = || SubscriptionError::NotFound(id.to_owned());
        let key = RecordKey::new(RecordKind::Subscription, name(id)?);
        Ok(self.store.record(&key).await?.ok_or_else(missing)?.read()?)
    }

    /// Checks that a URL is one that may be called, as far as it can be told without looking up its host's name.
    ///
    /// # Errors
    /// [`SubscriptionError::Url`].
    pub fn check(&self, url: &str) -> Result<(), SubscriptionError> {
        let url = TargetUrl::parse(url).map_err(|error| SubscriptionError::Url(error.to_string()))?;
        self.policy.check(&url).map_err(|error| SubscriptionError::Url(error.to_string()))
    }

    /// Creates a subscription.
    ///
    /// # Errors
    /// [`SubscriptionError`].
    pub async fn create(&self, by: &Actor, new: NewSubscription) -> Result<Subscription, SubscriptionError> {
        self.check(&new.url)?;
        if self.records.all().len() >= MAX_SUBSCRIPTIONS {
            return Err(SubscriptionError::TooMany);
        }
        let subscription = Subscription {
            id: uuid::Uuid::now_v7().to_string(),
            url: new.url,
            format: new.format,
            events: new.events,
            queues: new.queues,
            kinds: new.kinds,
            owners: new.owners,
            query: new.query,
            secrets: vec![new.secret.unwrap_or_else(Secret::generate)],
            created_at: self.clock.now(),
            created_by: by.clone(),
            switched_off: None,
        };
        self.set(&subscription.id, |_| Ok(Some(subscription.clone()))).await?;
        Ok(subscription)
    }

    /// Removes a subscription.
    ///
    /// # Errors
    /// [`SubscriptionError`].
    pub async fn remove(&self, id: &str) -> Result<(), SubscriptionError> {
        let mut was_there = false;
        self.set(id, |before| {
            was_there |= before.is_some();
            if was_there { Ok(None) } else { Err(SubscriptionError::NotFound(id.to_owned())) }
        })
        .await
    }

    /// Replaces a subscription's secret by a new one. The former secret signs as well until the next change, so that no
    /// message is refused while the receiver does not have the new one.
    ///
    /// # Errors
    /// [`SubscriptionError`].
    pub async fn change_secret(&self, id: &str) -> Result<Subscription, SubscriptionError> {
        let secret = Secret::generate();
        self.change(id, |subscription| {
            // When this is decided again after an unknown outcome, the secret may have been added already.
            if subscription.secrets.first() != Some(&secret) {
                subscription.secrets.insert(0, secret.clone());
                subscription.secrets.truncate(MAX_SECRETS);
            }
        })
        .await
    }

    /// Switches a subscription on again.
    ///
    /// # Errors
    /// [`SubscriptionError`].
    pub async fn switch_on(&self, id: &str) -> Result<Subscription, SubscriptionError> {
        self.change(id, |subscription| subscription.switched_off = None).await
    }

    /// Switches a subscription off, and logs it.
    pub(super) async fn switch_off(&self, id: &str, reason: &str) {
        let at = self.clock.now();
        let off = SwitchedOff { at, reason: reason.to_owned() };
        match self.change(id, |subscription| subscription.switched_off = Some(off.clone())).await {
            Ok(_) => {
                metrics::counter!("leasehold_subscriptions_switched_off_total").increment(1);
                tracing::warn!(subscription = id, reason, "a subscription was switched off");
            }
            Err(error) => tracing::warn!(subscription = id, %error, "a subscription was not switched off"),
        }
    }

    /// Returns the URL, format and secrets for a subscription, or `None` when it was removed or switched off.
    pub(super) async fn reception(&self, id: &str) -> Result<Option<Reception>, StoreError> {
        let cached = RecordName::new(id).ok().and_then(|name| self.records.get(&name));
        let subscription = match cached {
            Some(subscription) => subscription,
            // Another process may have added the subscription a moment ago.
            None => match self.get(id).await {
                Ok(subscription) => Arc::new(subscription),
                Err(SubscriptionError::Store(error)) => return Err(error),
                Err(_) => return Ok(None),
            },
        };
        Ok(subscription.switched_off.is_none().then(|| Reception {
            url: subscription.url.clone(),
            format: subscription.format,
            secrets: subscription.secrets.clone(),
        }))
    }

    /// Returns the secret that signs messages to targets that jobs name. It is generated once for the installation.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn signing_key(&self) -> Result<Secret, StoreError> {
        self.signing_key.get_or_try_init(|| self.find_signing_key()).await.cloned()
    }

    async fn find_signing_key(&self) -> Result<Secret, StoreError> {
        let key = RecordKey::new(RecordKind::Setting, RecordName::system("webhook-signing-key"));
        let decide = |made: Option<&SigningKey>| {
            let secret = made.map_or_else(Secret::generate, |made| made.secret.clone());
            Ok::<_, RecordError>(Some(SigningKey { secret }))
        };
        let unavailable = || StoreError::Unavailable("the signing key could not be read or written".to_owned());
        match change_record(&*self.store, &key, decide).await {
            Ok(key) => key.map(|key| key.secret).ok_or_else(unavailable),
            Err(RecordError::Store(error)) => Err(error),
            Err(RecordError::Contended | RecordError::Unknown(_)) => Err(unavailable()),
        }
    }

    /// Reads the changes that other processes have made, if the store is shared.
    pub(super) async fn refresh(&self) -> Result<(), StoreError> {
        let changes = self.manager.changes_of(Topic::Subscriptions);
        let is_known = {
            let mut listed = self.listed.lock();
            if listed.changes != changes {
                (listed.changes, listed.changed_at) = (changes, Some(Instant::now()));
            }
            let is_settled = listed.changed_at.is_some_and(|at| at.elapsed() >= LAG);
            changes.is_some() && is_settled && listed.at.is_some_and(|at| at.elapsed() < LIST_EVERY)
        };
        if self.store.is_exclusive() || is_known { Ok(()) } else { self.list_anew().await }
    }

    async fn list_anew(&self) -> Result<(), StoreError> {
        let at = Instant::now();
        self.records.list().await?;
        self.listed.lock().at = Some(at);
        self.publish_events();
        Ok(())
    }

    async fn change(
        &self,
        id: &str,
        change: impl Fn(&mut Subscription) + Send + Sync,
    ) -> Result<Subscription, SubscriptionError> {
        let missing = || SubscriptionError::NotFound(id.to_owned());
        let mut changed = None;
        self.set(id, |before| {
            let mut subscription = before.cloned().ok_or_else(missing)?;
            change(&mut subscription);
            changed = Some(subscription.clone());
            Ok(Some(subscription))
        })
        .await?;
        changed.ok_or_else(missing)
    }

    async fn set(
        &self,
        id: &str,
        decide: impl FnMut(Option<&Subscription>) -> Result<Option<Subscription>, SubscriptionError> + Send,
    ) -> Result<(), SubscriptionError> {
        let name = name(id)?;
        let announcement = self.manager.announce_change(Topic::Subscriptions, &name);
        self.records.change(&name, decide).await?;
        self.publish_events();
        self.manager.tell_of(announcement).await;
        Ok(())
    }

    /// Tells the manager which events of jobs have a subscription.
    fn publish_events(&self) {
        self.records.publish(|all| {
            let wanted =
                |event: &EventName| all.iter().any(|(_, subscription)| subscription.wants_event((*event).into()));
            self.manager.subscribe_to(EventName::NOTIFIABLE.into_iter().filter(wanted).collect());
        });
    }
}

fn name(id: &str) -> Result<RecordName, SubscriptionError> {
    RecordName::new(id).map_err(|_| SubscriptionError::NotFound(id.to_owned()))
}

impl From<RecordError> for SubscriptionError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Contended => Self::Contended,
            RecordError::Store(error) => Self::Store(error),
            RecordError::Unknown(why) => Self::Unknown(why),
        }
    }
}
