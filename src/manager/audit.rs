//! Reading the audit, in which jobs stand that are not there any more.

use std::fmt;
use std::str::FromStr;

use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::clock::Timestamp;
use crate::job::{Actor, EventName, JobId, Kind, Owner, QueueName, WorkerId};
use crate::store::{AuditPage, AuditPlace, AuditSearch};

use crate::manager::Manager;
use crate::manager::audit_change::ChangeName;
use crate::manager::audit_entry::action;
use crate::manager::request::ManagerError;

/// The name of an event of the audit: of a job, or of another change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditEventName {
    /// An event of a job.
    Job(EventName),
    /// A change that is no transition of a job.
    Change(ChangeName),
}

impl AuditEventName {
    /// Returns every name of an event: those of jobs first, then those of other changes.
    pub fn all() -> impl Iterator<Item = Self> {
        EventName::ALL.into_iter().map(Self::Job).chain(ChangeName::ALL.into_iter().map(Self::Change))
    }

    /// Returns the word for this name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Job(event) => event.as_str(),
            Self::Change(change) => change.as_str(),
        }
    }

    fn action(self) -> String {
        match self {
            Self::Job(event) => action(event),
            Self::Change(change) => change.action(),
        }
    }
}

impl PartialSchema for AuditEventName {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("The name of an event of the audit: of a job, or of another change."))
            .enum_values(Some(Self::all().map(Self::as_str)))
            .into()
    }
}

impl ToSchema for AuditEventName {}

impl fmt::Display for AuditEventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for AuditEventName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::all().find(|name| name.as_str() == text).ok_or_else(|| {
            let words: Vec<&str> = Self::all().map(Self::as_str).collect();
            format!("`{text}` is not an event of the audit; the events are {}", words.join(", "))
        })
    }
}

/// Selects events of the audit: those that satisfy every part. An empty list or `None` selects every event; a list is
/// satisfied by any of its members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditQuery {
    /// Selects what happened at this time or later.
    pub from: Option<Timestamp>,
    /// Selects what happened at this time or earlier.
    pub to: Option<Timestamp>,
    /// Selects events of these jobs.
    pub jobs: Vec<JobId>,
    /// Selects events of jobs in these queues.
    pub queues: Vec<QueueName>,
    /// Selects events of jobs of these kinds.
    pub kinds: Vec<Kind>,
    /// Selects events of jobs that belong to these owners.
    pub owners: Vec<Owner>,
    /// Selects events with one of these names.
    pub events: Vec<AuditEventName>,
    /// Selects events that these workers, people or parts of the system caused.
    pub actors: Vec<Actor>,
    /// Selects transitions that these workers caused with a token, whatever that is called. Without tokens they are
    /// [`Self::actors`].
    pub workers: Vec<WorkerId>,
    /// The place after which the page begins.
    pub after: Option<AuditPlace>,
    /// The most events of the page.
    pub limit: usize,
}

impl AuditQuery {
    fn into_search(self) -> AuditSearch {
        fn texts<T>(values: &[T], text: impl Fn(&T) -> String) -> Vec<String> {
            values.iter().map(text).collect()
        }
        let terms = [
            ("leasehold.job.id", texts(&self.jobs, ToString::to_string)),
            ("leasehold.job.queue", texts(&self.queues, ToString::to_string)),
            ("leasehold.job.kind", texts(&self.kinds, ToString::to_string)),
            ("leasehold.job.owner", texts(&self.owners, ToString::to_string)),
            ("event.action", texts(&self.events, |event| event.action())),
            ("user.name", texts(&self.actors, ToString::to_string)),
            ("leasehold.worker_id", texts(&self.workers, ToString::to_string)),
        ];
        let terms = terms.into_iter().filter(|(_, values)| !values.is_empty()).collect();
        let Self { from, to, after, limit, .. } = self;
        AuditSearch { from, to, terms, after, limit }
    }
}

impl Manager {
    /// Reads a page of the audit, in the form that the store keeps.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn audit(&self, query: AuditQuery) -> Result<AuditPage, ManagerError> {
        let page = self.shared.store.read_audit(&query.into_search()).await?;
        // What this process keeps may have nothing in it yet.
        Ok(AuditPage { is_there: page.is_there || self.shared.keeps_audit, ..page })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::job::{Body, HistoryEntry, Job, JobSpec};
    use crate::manager::audit_entry::entry;

    #[test]
    fn what_is_written_is_found_by_each_of_its_values_and_by_no_other() {
        let spec = JobSpec {
            owner: Some(Owner::new("team").expect("a name")),
            ..JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"))
        };
        let (id, by, at) =
            (JobId::new("a").expect("an id"), Actor::new("ann").expect("a name"), Timestamp::from_millis(7));
        let job = Job::submit(id.clone(), Arc::new(spec), Body::default(), (at, None), &by, at);
        let (number, first) = job.history.numbered().next().expect("submitted");
        let worker = || vec![WorkerId::new("host7:1").expect("an id")];
        let entry = entry(&job, number, &HistoryEntry { worker_id: worker().pop(), ..first.clone() });
        let finds = |query: AuditQuery| query.into_search().selects(entry.at, &entry.document);
        let whole = AuditQuery {
            from: Some(at),
            to: Some(at),
            jobs: vec![id],
            queues: vec![QueueName::new("q").expect("a name")],
            kinds: vec![Kind::new("other").expect("a name"), Kind::new("k").expect("a name")],
            owners: vec![Owner::new("team").expect("a name")],
            events: vec![AuditEventName::Change(ChangeName::LimitSet), AuditEventName::Job(EventName::Submitted)],
            actors: vec![by],
            workers: worker(),
            ..AuditQuery::default()
        };
        assert!(finds(whole.clone()) && finds(AuditQuery::default()));
        let later = Some(Timestamp::from_millis(8));
        for wrong in [
            AuditQuery { from: later, ..whole.clone() },
            AuditQuery { to: Some(Timestamp::from_millis(6)), ..whole.clone() },
            AuditQuery { jobs: vec![JobId::new("b").expect("an id")], ..whole.clone() },
            AuditQuery { queues: vec![QueueName::new("k").expect("a name")], ..whole.clone() },
            AuditQuery { kinds: vec![Kind::new("q").expect("a name")], ..whole.clone() },
            AuditQuery { owners: vec![Owner::new("tea").expect("a name")], ..whole.clone() },
            AuditQuery { events: vec![AuditEventName::Job(EventName::Claimed)], ..whole.clone() },
            AuditQuery { actors: vec![Actor::new("bob").expect("a name")], ..whole.clone() },
            AuditQuery { workers: vec![WorkerId::new("ann").expect("an id")], ..whole.clone() },
        ] {
            assert!(!finds(wrong.clone()), "{wrong:?}");
        }
    }
}
