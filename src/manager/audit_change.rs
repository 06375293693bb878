//! Changes that are no transitions of jobs, in the terms of the Elastic Common Schema as [`super::audit_entry`] has
//! those: of limits, queues, subscriptions, schedules and members, sign-ins, and the reading of secrets.
//!
//! An entry is written before what it says is done, so that nothing is done that the audit lacks; a crash between the
//! two leaves an entry of a change that was not made. So the outcome of an entry is unknown. A change that is refused
//! after that has a second entry, whose outcome is a failure.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::job::{Actor, words};
use crate::manager::Manager;
use crate::manager::audit_entry::{VERSION, present};
use crate::manager::request::ManagerError;
use crate::store::AuditEntry;

words! {
    /// The name of a change that is no transition of a job.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum ChangeName: "a change", "changes" {
        /// A limit was set.
        LimitSet = "limit_set",
        /// A limit was taken away.
        LimitRemoved = "limit_removed",
        /// A queue was paused.
        QueuePaused = "queue_paused",
        /// A queue was resumed.
        QueueResumed = "queue_resumed",
        /// Settings of a queue were changed.
        QueueChanged = "queue_changed",
        /// A receiver was subscribed to events.
        SubscriptionMade = "subscription_made",
        /// A subscription was removed.
        SubscriptionRemoved = "subscription_removed",
        /// A subscription was switched on again.
        SubscriptionEnabled = "subscription_enabled",
        /// The secret of a subscription was changed.
        SubscriptionSecretChanged = "subscription_secret_changed",
        /// A schedule was stored.
        ScheduleStored = "schedule_stored",
        /// A schedule was removed.
        ScheduleRemoved = "schedule_removed",
        /// A schedule was paused.
        SchedulePaused = "schedule_paused",
        /// The pause of a schedule was ended.
        ScheduleResumed = "schedule_resumed",
        /// What the action of a schedule keeps secret was read.
        ScheduleRevealed = "schedule_revealed",
        /// What jobs keep secret was read.
        JobsRevealed = "jobs_revealed",
        /// Many schedules were paused.
        SchedulesPaused = "schedules_paused",
        /// The pauses of many schedules were ended.
        SchedulesResumed = "schedules_resumed",
        /// Many schedules were removed.
        SchedulesRemoved = "schedules_removed",
        /// The members of the cluster, or who leads it, were changed.
        ClusterChanged = "cluster_changed",
        /// The key that signs notifications was read.
        SigningKeyRead = "signing_key_read",
        /// Somebody signed in to the page.
        SignedIn = "signed_in",
        /// Somebody signed out of the page.
        SignedOut = "signed_out",
    }
}

/// The most bytes of the text of a new value. Of a longer one, such as a filter with thousands of ids, the beginning is
/// kept.
const MAX_VALUE_BYTES: usize = 4 * 1024;

impl ChangeName {
    /// Returns the change's name in the schema's `event.action`.
    pub(crate) fn action(self) -> String {
        self.as_str().replace('_', "-")
    }

    /// Returns the category and the type among the schema's.
    const fn kind(self) -> (&'static str, &'static str) {
        match self {
            Self::SubscriptionMade => ("configuration", "creation"),
            Self::LimitRemoved | Self::SubscriptionRemoved | Self::ScheduleRemoved | Self::SchedulesRemoved => {
                ("configuration", "deletion")
            }
            Self::ScheduleRevealed | Self::JobsRevealed | Self::SigningKeyRead => ("configuration", "access"),
            Self::SignedIn => ("authentication", "start"),
            Self::SignedOut => ("authentication", "end"),
            Self::LimitSet
            | Self::QueuePaused
            | Self::QueueResumed
            | Self::QueueChanged
            | Self::SubscriptionEnabled
            | Self::SubscriptionSecretChanged
            | Self::ScheduleStored
            | Self::SchedulePaused
            | Self::ScheduleResumed
            | Self::SchedulesPaused
            | Self::SchedulesResumed
            | Self::ClusterChanged => ("configuration", "change"),
        }
    }
}

/// A change that is no transition of a job, and who asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditChange {
    /// The name of the change, which the audit has as its action.
    pub name: ChangeName,
    /// Who asks for it.
    pub actor: Actor,
    /// What is changed, by its name: a limit, a queue, a schedule; `None` where the name of the change says all.
    pub of: Option<String>,
    /// What it is changed to, without what is secret.
    pub to: Option<String>,
    /// The reason that is given for it.
    pub reason: Option<String>,
}

impl AuditChange {
    /// Creates a change of what the name says, by this actor.
    #[must_use]
    pub fn new(name: ChangeName, actor: &Actor) -> Self {
        Self { name, actor: actor.clone(), of: None, to: None, reason: None }
    }

    /// Returns the same change, of the thing with this name.
    #[must_use]
    pub fn of(self, name: impl ToString) -> Self {
        Self { of: Some(name.to_string()), ..self }
    }

    /// Returns the same change, to this value. Of one with a JSON text of more than 4 KiB the entry has an object with
    /// the text's beginning and its length in bytes.
    #[must_use]
    pub fn to(self, value: &impl Serialize) -> Self {
        Self { to: serde_json::to_string(value).ok().map(bounded), ..self }
    }

    /// Returns the same change, for this reason.
    #[must_use]
    pub fn because(self, reason: Option<impl Into<String>>) -> Self {
        Self { reason: reason.map(Into::into), ..self }
    }
}

impl Manager {
    /// Returns whether changes are written to an audit.
    #[must_use]
    pub fn keeps_audit(&self) -> bool {
        self.shared.keeps_audit
    }

    /// Writes that changes are about to be made to the audit, where one is kept.
    ///
    /// # Errors
    /// The store's error: then the changes must not be made.
    pub async fn audit_changes(&self, changes: &[AuditChange]) -> Result<(), ManagerError> {
        self.write_changes(changes.iter().map(|change| (change, None))).await
    }

    /// Writes to the audit, where one is kept, that changes were refused, and why. What cannot be written is logged.
    pub async fn audit_refusals(&self, refused: &[(AuditChange, &'static str)]) {
        if let Err(error) = self.write_changes(refused.iter().map(|(change, why)| (change, Some(*why)))).await {
            tracing::warn!(%error, "the audit lacks that a change was refused");
        }
    }

    async fn write_changes(
        &self,
        changes: impl Iterator<Item = (&AuditChange, Option<&str>)>,
    ) -> Result<(), ManagerError> {
        if !self.shared.keeps_audit {
            return Ok(());
        }
        let now = self.shared.clock.now();
        let entries: Vec<_> = changes.map(|(change, failure)| entry(change, failure, now)).collect();
        metrics::counter!("leasehold_audit_entries_total").increment(entries.len() as u64);
        Ok(self.shared.store.append_audit(&entries).await?)
    }
}

/// Returns a JSON text, or one that has its beginning where it is long.
fn bounded(text: String) -> String {
    if text.len() <= MAX_VALUE_BYTES {
        return text;
    }
    let beginning = &text[..text.floor_char_boundary(MAX_VALUE_BYTES)];
    json!({ "beginning": beginning, "bytes": text.len() }).to_string()
}

/// Returns the audit entry of a change, or of its failure for this reason.
fn entry(change: &AuditChange, failure: Option<&str>, at: crate::clock::Timestamp) -> AuditEntry {
    let AuditChange { name, actor, of, to, reason } = change;
    let id = format!("0/{}/{}", at.as_millis(), uuid::Uuid::now_v7().hyphenated());
    let (category, kind) = name.kind();
    let what = name.as_str().replace('_', " ");
    let of_what = of.as_ref().map(|of| format!(" {of}")).unwrap_or_default();
    let refused = failure.map(|why| format!(": refused ({why})")).unwrap_or_default();
    let document = json!({
        "@timestamp": at.to_rfc3339(),
        "ecs": { "version": VERSION },
        "message": format!("{what}{of_what} by {actor}{refused}"),
        "event": present(json!({
            "id": id,
            "kind": "event",
            "category": [category],
            "type": [kind],
            "module": "leasehold",
            "dataset": "leasehold.audit",
            "action": name.action(),
            "outcome": if failure.is_some() { "failure" } else { "unknown" },
            "reason": failure.or(reason.as_deref()),
            // Entries of one time are sorted by it.
            "sequence": 0,
        })),
        "user": { "name": actor.as_str() },
        "leasehold": { "change": present(json!({ "of": of, "to": to })) },
    });
    let document = if let Value::Object(document) = document { document } else { Map::new() };
    AuditEntry { id, at, document }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::job::EventName;
    use crate::store::audit::text;

    #[test]
    fn an_entry_says_what_was_changed_by_whom_and_a_refusal_why_not() {
        let change = AuditChange::new(ChangeName::LimitSet, &Actor::system("ann"))
            .of("queue:reports")
            .to(&json!({ "max_concurrent": 5 }))
            .because(Some("too many"));
        let at = Timestamp::from_millis(7);
        let (made, refused) = (entry(&change, None, at), entry(&change, Some("invalid_request"), at));
        assert_ne!(made.id, refused.id);
        for (entry, outcome, reason) in [(made, "unknown", "too many"), (refused, "failure", "invalid_request")] {
            let of = |field: &str| text(&entry.document, field).map(str::to_owned);
            assert_eq!(of("event.action").as_deref(), Some("limit-set"));
            assert_eq!(of("event.outcome").as_deref(), Some(outcome));
            assert_eq!(of("event.reason").as_deref(), Some(reason));
            assert_eq!(of("user.name").as_deref(), Some("ann"));
            assert_eq!(of("leasehold.change.of").as_deref(), Some("queue:reports"));
            assert_eq!(of("leasehold.change.to").as_deref(), Some(r#"{"max_concurrent":5}"#));
            assert_eq!((entry.at, of("event.id")), (at, Some(entry.id.clone())));
        }
    }

    #[test]
    fn of_a_long_value_an_entry_has_the_beginning_as_json() {
        let of = |ids: usize| {
            let ids: Vec<String> = (0..ids).map(|id| format!("schedule-\u{e9}-{id}")).collect();
            let change = AuditChange::new(ChangeName::SchedulesPaused, &Actor::system("ann")).to(&ids);
            change.to.expect("a text")
        };
        assert!(of(2).starts_with(r#"["schedule-"#));
        let long = of(10_000);
        assert!(long.len() < 2 * MAX_VALUE_BYTES, "{}", long.len());
        let long: Value = serde_json::from_str(&long).expect("JSON");
        assert!(long["beginning"].as_str().is_some_and(|text| text.starts_with(r#"["schedule-"#)), "{long}");
        assert!(long["bytes"].as_u64().is_some_and(|bytes| bytes > 100_000), "{long}");
    }

    #[test]
    fn no_change_has_the_name_of_an_event_of_a_job() {
        for name in ChangeName::ALL {
            assert!(EventName::ALL.iter().all(|event| event.as_str() != name.as_str()), "{name}");
            assert!(!name.action().starts_with("job-"), "{name}");
        }
    }
}
