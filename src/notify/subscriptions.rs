//! Who wants to be told of what, whichever job it happens to.
//!
//! A subscription is a record of the store. All of them are kept in memory, for every write asks whether somebody wants
//! to hear of it; what another process changes is known within two periods.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::clock::{Clock, Timestamp, rfc3339};
use crate::executor::webhook::Secret;
use crate::executor::{TargetPolicy, TargetUrl};
use crate::job::{Actor, EventName, Job, Kind, NoticeFormat, QueueName, RecordName};
use crate::manager::Manager;
use crate::store::record::{CachedRecords, RecordError, change_record};
use crate::store::{RecordKey, RecordKind, Store, StoreError};

/// The most subscriptions.
pub const MAX_SUBSCRIPTIONS: usize = 1_000;
/// How many secrets sign at once while one is being changed.
const MAX_SECRETS: usize = 2;

/// Somebody who wants to be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// Its name.
    pub id: String,
    /// Where to.
    pub url: String,
    /// In which form.
    pub format: NoticeFormat,
    /// Of which events; of all that can be told of when empty.
    pub events: BTreeSet<EventName>,
    /// Of the jobs of these queues; of all when empty.
    pub queues: Vec<QueueName>,
    /// Of the jobs of these kinds; of all when empty.
    pub kinds: Vec<Kind>,
    /// What its messages are signed with; the first is the current one.
    pub secrets: Vec<Secret>,
    /// Since when.
    #[serde(with = "rfc3339")]
    pub created_at: Timestamp,
    /// By whom.
    pub created_by: Actor,
    /// Since when it is told nothing, and why.
    pub switched_off: Option<SwitchedOff>,
}

/// Why a subscription is told nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchedOff {
    /// Since when.
    #[serde(with = "rfc3339")]
    pub at: Timestamp,
    /// Why.
    pub reason: String,
}

impl Subscription {
    /// Whether it is to be told of this event of this job.
    #[must_use]
    pub fn wants(&self, job: &Job, event: EventName) -> bool {
        self.wants_event(event)
            && (self.queues.is_empty() || self.queues.contains(&job.spec.queue))
            && (self.kinds.is_empty() || self.kinds.contains(&job.spec.kind))
    }

    fn wants_event(&self, event: EventName) -> bool {
        self.switched_off.is_none()
            && EventName::NOTIFIABLE.contains(&event)
            && (self.events.is_empty() || self.events.contains(&event))
    }
}

/// A subscription that is asked for.
#[derive(Clone, Debug)]
pub struct NewSubscription {
    /// Where to.
    pub url: String,
    /// In which form.
    pub format: NoticeFormat,
    /// Of which events.
    pub events: BTreeSet<EventName>,
    /// Of the jobs of these queues.
    pub queues: Vec<QueueName>,
    /// Of the jobs of these kinds.
    pub kinds: Vec<Kind>,
    /// What its messages are signed with; made when there is none.
    pub secret: Option<Secret>,
}

/// Where and how one receiver is told.
pub(super) struct Reception {
    pub(super) url: String,
    pub(super) format: NoticeFormat,
    pub(super) secrets: Vec<Secret>,
}

/// Why a subscription is not changed as asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SubscriptionError {
    /// There is none of this name.
    #[error("there is no subscription `{0}`")]
    NotFound(String),
    /// The URL cannot be called.
    #[error("{0}")]
    Url(String),
    /// There are as many as there may be.
    #[error("there are {MAX_SUBSCRIPTIONS} subscriptions, and there cannot be more")]
    TooMany,
    /// Others kept writing it.
    #[error("others kept writing it; {} tries were not enough", RecordError::TRIES)]
    Contended,
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It may be done or not.
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
        // What was written right before this process started must be seen.
        store.refresh().await?;
        let subscriptions = Self {
            records: CachedRecords::new(Arc::clone(&store), RecordKind::Subscription),
            store,
            manager,
            clock,
            policy,
            signing_key: OnceCell::new(),
        };
        subscriptions.list_anew().await?;
        Ok(subscriptions)
    }

    /// All of them, in the order of their names.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Subscription>> {
        self.records.all().into_iter().map(|(_, subscription)| subscription).collect()
    }

    /// The one with this name, as the store has it.
    ///
    /// # Errors
    /// [`SubscriptionError::NotFound`], [`SubscriptionError::Store`].
    pub async fn get(&self, id: &str) -> Result<Subscription, SubscriptionError> {
        let missing = || SubscriptionError::NotFound(id.to_owned());
        let key = RecordKey::new(RecordKind::Subscription, name(id)?);
        Ok(self.store.record(&key).await?.ok_or_else(missing)?.read()?)
    }

    /// Adds one.
    ///
    /// # Errors
    /// [`SubscriptionError`].
    pub async fn create(&self, by: &Actor, new: NewSubscription) -> Result<Subscription, SubscriptionError> {
        let url = TargetUrl::parse(&new.url).map_err(|error| SubscriptionError::Url(error.to_string()))?;
        self.policy.check(&url).map_err(|error| SubscriptionError::Url(error.to_string()))?;
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
            secrets: vec![new.secret.unwrap_or_else(Secret::generate)],
            created_at: self.clock.now(),
            created_by: by.clone(),
            switched_off: None,
        };
        self.set(&subscription.id, |_| Ok(Some(subscription.clone()))).await?;
        Ok(subscription)
    }

    /// Removes one. One that is gone already is removed.
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

    /// Gives one a new secret; the former one signs as well until the next change, so that no message is refused while
    /// the receiver learns the new one.
    ///
    /// # Errors
    /// [`SubscriptionError`].
    pub async fn change_secret(&self, id: &str) -> Result<Subscription, SubscriptionError> {
        let secret = Secret::generate();
        self.change(id, |subscription| {
            // Decided again after an unknown outcome, it may be there already.
            if subscription.secrets.first() != Some(&secret) {
                subscription.secrets.insert(0, secret.clone());
                subscription.secrets.truncate(MAX_SECRETS);
            }
        })
        .await
    }

    /// Tells one again that was switched off.
    ///
    /// # Errors
    /// [`SubscriptionError`].
    pub async fn switch_on(&self, id: &str) -> Result<Subscription, SubscriptionError> {
        self.change(id, |subscription| subscription.switched_off = None).await
    }

    /// Tells one nothing any more, and says so.
    pub(super) async fn switch_off(&self, id: &str, reason: &str) {
        let at = self.clock.now();
        let off = SwitchedOff { at, reason: reason.to_owned() };
        match self.change(id, |subscription| subscription.switched_off = Some(off.clone())).await {
            Ok(_) => {
                metrics::counter!("leasehold_subscriptions_switched_off_total").increment(1);
                tracing::warn!(subscription = id, reason, "a subscription is told nothing any more");
            }
            Err(error) => tracing::warn!(subscription = id, %error, "a subscription was not switched off"),
        }
    }

    /// Where one is told; nowhere, if it is gone or switched off.
    pub(super) async fn reception(&self, id: &str) -> Result<Option<Reception>, StoreError> {
        let cached = RecordName::new(id).ok().and_then(|name| self.records.get(&name));
        let subscription = match cached {
            Some(subscription) => subscription,
            // Another process may have added it a moment ago.
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

    /// What messages to those are signed with whom a job itself names. Made once for the whole installation.
    ///
    /// # Errors
    /// Why the store could not tell.
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

    /// Learns what others have changed, where there are others.
    pub(super) async fn refresh(&self) -> Result<(), StoreError> {
        if self.store.is_exclusive() { Ok(()) } else { self.list_anew().await }
    }

    async fn list_anew(&self) -> Result<(), StoreError> {
        self.records.list().await?;
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
        self.records.change(&name(id)?, decide).await?;
        self.publish_events();
        Ok(())
    }

    /// Tells the manager which events somebody subscribes to.
    fn publish_events(&self) {
        self.records.publish(|all| {
            let wanted = |event: &EventName| all.iter().any(|(_, subscription)| subscription.wants_event(*event));
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
