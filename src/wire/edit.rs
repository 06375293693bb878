//! Changes of a job's fields after its submission.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_with::rust::double_option;
use utoipa::ToSchema;

use super::check::{Checks, Invalid, MAX_ATTEMPTS, MAX_RETRY_MS, MAX_RUNTIME_MS, MAX_TEXT_BYTES};
use super::described::LabelChanges;
use super::submit::RetryOptions;
use crate::clock::Timestamp;
use crate::job::{Edit, Priority, RetryEdit};

/// A change of a job's fields. What is not named stays as it is; something must be named. A null removes a value.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"priority": 5, "labels": {"month": "2030-02", "draft": null}, "reason": "urgent"}))]
pub struct EditJob {
    /// How urgent the job is within its queue, from −100 to 100. Of a running job it counts at the next attempt.
    #[schema(minimum = -100, maximum = 100)]
    pub priority: Option<i64>,
    /// The earliest time at which the job can be claimed. Only a waiting job has one.
    #[schema(format = DateTime)]
    pub run_at: Option<String>,
    /// The start deadline; null for none. Only a waiting job has one, and it counts before the first attempt.
    #[serde(default, with = "double_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Option<String>>,
    /// The labels to set; a label that is null is removed.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "serde_with::rust::maps_duplicate_key_is_error::deserialize"
    )]
    #[schema(value_type = LabelChanges)]
    pub labels: BTreeMap<String, Option<String>>,
    /// How long an attempt is expected to take, in milliseconds; null if that is not known. It counts for the attempt
    /// that runs, from its beginning.
    #[serde(default, with = "double_option")]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 31_622_400_000_u64)]
    pub expected_runtime_ms: Option<Option<u64>>,
    /// How long an attempt may take at most, in milliseconds; null for no limit. The monitor applies it to the attempt
    /// that runs, from its beginning; a worker of ours goes by the limit that the job had when it was claimed.
    #[serde(default, with = "double_option")]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 31_622_400_000_u64)]
    pub timeout_ms: Option<Option<u64>>,
    /// The most attempts that the job gets, from 1 to 1,000. It counts when the attempt that runs ends.
    #[schema(minimum = 1, maximum = 1000)]
    pub max_attempts: Option<u64>,
    /// How long the job waits between attempts: what is not named stays as it is.
    pub retry: Option<RetryOptions>,
    /// The resources of which the job needs another amount; a resource that is null is needed no more. It counts at the
    /// next attempt.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "serde_with::rust::maps_duplicate_key_is_error::deserialize"
    )]
    pub resources: BTreeMap<String, Option<u64>>,
    /// The reason, at most 4 KiB. It is recorded in the job's history, beside the names of the changed fields.
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
}

impl EditJob {
    /// Returns whether nothing is named that could be changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        Self { reason: None, ..self.clone() } == Self::default()
    }

    /// Checks every field, and returns the change with its reason.
    ///
    /// # Errors
    /// Every field that is wrong, by name.
    pub fn into_edit(self) -> Result<(Edit, Option<String>), Invalid> {
        let mut checks = Checks::default();
        if self.is_empty() {
            checks.fault("", "names no field: there is nothing to change");
        }
        checks.text("reason", self.reason.as_deref().unwrap_or_default(), MAX_TEXT_BYTES);
        let mut within = |field, value: Option<i64>| {
            value.map(|value| checks.within(field, value, Priority::LOWEST..=Priority::HIGHEST))
        };
        let priority = within("priority", self.priority).and_then(Priority::new);
        let run_at = checks.time("run_at", self.run_at.as_deref());
        let expires_at: Option<Option<Timestamp>> =
            self.expires_at.map(|text| checks.time("expires_at", text.as_deref()));
        checks.labels(&set(&self.labels));
        checks.resources(&set(&self.resources));
        let mut runtime = |field, value: Option<Option<u64>>| {
            value.map(|value| value.map(|value| checks.millis(field, value, 1..=MAX_RUNTIME_MS)))
        };
        let expected_runtime = runtime("expected_runtime_ms", self.expected_runtime_ms);
        let timeout = runtime("timeout_ms", self.timeout_ms);
        let max_attempts = self.max_attempts.map(|most| checks.within("max_attempts", most, 1..=MAX_ATTEMPTS));
        let retry = self.retry.unwrap_or_default();
        let mut wait = |field, value: Option<u64>| -> Option<Duration> {
            value.map(|value| checks.millis(field, value, 0..=MAX_RETRY_MS))
        };
        let (base, max) = (wait("retry.base_ms", retry.base_ms), wait("retry.max_ms", retry.max_ms));
        let factor = retry.factor.map(|factor| checks.number("retry.factor", factor, 1.0..=100.0));
        let jitter = retry.jitter.map(|jitter| checks.number("retry.jitter", jitter, 0.0..=1.0));
        let edit = Edit {
            priority,
            run_at,
            expires_at,
            labels: self.labels,
            expected_runtime,
            timeout,
            max_attempts: max_attempts.map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
            retry: RetryEdit { base, factor, max, jitter },
            resources: self.resources,
        };
        Ok((checks.finish(Some(edit))?, self.reason))
    }
}

/// Returns the entries that have a value.
fn set<T: Clone>(entries: &BTreeMap<String, Option<T>>) -> BTreeMap<String, T> {
    entries.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> Vec<String> {
        let edit: EditJob = serde_json::from_str(text).expect("an edit");
        let invalid = edit.into_edit().expect_err("refused");
        invalid.errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn what_is_not_named_stays_and_null_removes() {
        let text = r#"{"priority":5,"expires_at":null,"labels":{"a":null,"b":"1"},"timeout_ms":null}"#;
        let edit: EditJob = serde_json::from_str(text).expect("an edit");
        assert_eq!(serde_json::to_string(&edit).expect("JSON"), text);
        let (edit, reason) = edit.into_edit().expect("valid");
        assert_eq!((edit.expires_at, edit.timeout, edit.run_at, reason), (Some(None), Some(None), None, None));
        assert_eq!(edit.labels.into_values().collect::<Vec<_>>(), [None, Some("1".to_owned())]);
    }

    #[test]
    fn wrong_fields_are_refused_by_name() {
        assert_eq!(refused("{}"), [""]);
        assert_eq!(refused(r#"{"reason": "why"}"#), [""]);
        assert_eq!(
            refused(r#"{"priority": 101, "run_at": "soon", "max_attempts": 0, "retry": {"factor": 0.5}}"#),
            ["priority", "run_at", "max_attempts", "retry.factor"]
        );
    }
}
