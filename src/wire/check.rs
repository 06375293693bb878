//! The checks of requests, and their bounds.
//!
//! A check never stops at the first fault: the answer names every field that is wrong.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::NotifyTarget;
use crate::clock::Timestamp;
use crate::executor::TargetUrl;
use crate::job::edit;
use crate::job::{
    Concurrency, EventName, InvalidName, Json, LabelName, MAX_CONCURRENT, MAX_OFFERED, MAX_OFFERED_NAME,
    MAX_OFFERED_VALUE, MAX_RESOURCE_NAME, QueueName, Requirement, WorkerId, is_offered_name, is_offered_value,
    is_resource_name,
};
use crate::manager;
use crate::schedule::Fault;

/// The longest payload or result, in bytes of its JSON text.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;
/// How deep arrays and objects may be nested in a payload or a result: common JSON parsers stop soon after.
pub const MAX_BODY_DEPTH: usize = 100;
/// The most labels of a job.
pub const MAX_LABELS: usize = edit::MAX_LABELS;
/// The longest label value, in bytes.
pub const MAX_LABEL_BYTES: usize = 1024;
/// The most requirements of a job.
pub const MAX_REQUIREMENTS: usize = 16;
/// The most named resources of a job.
pub const MAX_RESOURCES: usize = edit::MAX_RESOURCES;
/// The longest reason or progress message, in bytes.
pub const MAX_TEXT_BYTES: usize = 4 * 1024;
/// The longest error message, in bytes: room for the end of a log.
pub const MAX_ERROR_BYTES: usize = 64 * 1024;
/// The longest expected runtime or timeout of an attempt, in milliseconds: a year.
pub const MAX_RUNTIME_MS: u64 = 366 * 24 * 3600 * 1000;
/// The longest wait between two attempts, in milliseconds: a week.
pub const MAX_RETRY_MS: u64 = 7 * 24 * 3600 * 1000;
/// The longest wait for an answer, in milliseconds.
pub const MAX_WAIT_MS: u64 = 60_000;
/// The shortest and the longest lease, in milliseconds.
pub const LEASE_MS: RangeInclusive<u64> = 100..=86_400_000;
/// The most jobs of one claim.
pub const MAX_CLAIMED_JOBS: u64 = 1000;
/// The most queues of one claim.
pub const MAX_CLAIMED_QUEUES: usize = 64;
/// The most kinds of one claim.
pub const MAX_CLAIMED_KINDS: usize = manager::MAX_CLAIMED_KINDS;
/// The most jobs of one bulk submission.
pub const MAX_SUBMITTED_JOBS: usize = 10_000;
/// The most items of one bulk heartbeat or completion.
pub const MAX_BULK_ITEMS: usize = 1000;
/// The most attempts of a job.
pub const MAX_ATTEMPTS: u64 = 1000;

/// The most receivers of notifications that a job may name.
pub const MAX_NOTIFY_TARGETS: usize = 10;
/// The longest URL, in bytes.
pub const MAX_URL_BYTES: usize = 2048;

/// Words that cannot be ids, because paths have them in the place of a job's id. A test compares them with the routes.
pub const RESERVED_IDS: [&str; 13] = [
    "bulk", "cancel", "count", "delete", "edit", "export", "hold", "release", "rerun", "retry", "run-now", "stats",
    "unhold",
];

/// Words that cannot be ids of schedules, for the same reason.
pub const RESERVED_SCHEDULE_IDS: [&str; 5] = ["bulk", "pause", "preview", "remove", "resume"];

/// A field that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// The field's name, with dots into objects and brackets into lists; empty for the body as a whole.
    #[schema(example = "priority")]
    pub field: String,
    /// What is wrong with the field.
    #[schema(example = "must be from -100 to 100")]
    pub message: String,
}

impl From<Fault> for FieldError {
    fn from(Fault { field, message }: Fault) -> Self {
        Self { field, message }
    }
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Every field that is wrong; at least one.
    pub errors: Vec<FieldError>,
    /// Whether a payload or result is longer than [`MAX_BODY_BYTES`].
    pub too_large: bool,
}

impl Invalid {
    /// Returns an error about one field.
    #[must_use]
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { errors: vec![FieldError { field: field.into(), message: message.into() }], too_large: false }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            if error.field.is_empty() {
                write!(f, "{}", error.message)?;
            } else {
                write!(f, "{}: {}", error.field, error.message)?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Invalid {}

/// Collects the faults of one request.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    errors: Vec<FieldError>,
    too_large: bool,
}

impl Checks {
    /// Notes a fault.
    pub(crate) fn fault(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.errors.push(FieldError { field: field.into(), message: message.into() });
    }

    /// Notes what is wrong with the texts of a schedule.
    pub(crate) fn faults(&mut self, faults: Vec<Fault>) {
        self.errors.extend(faults.into_iter().map(FieldError::from));
    }

    /// Returns the checked values, or every fault that was noted. A check that returns no value has noted a fault.
    pub(crate) fn finish<T>(self, values: Option<T>) -> Result<T, Invalid> {
        match values {
            Some(values) if self.errors.is_empty() => Ok(values),
            _ => Err(Invalid { errors: self.errors, too_large: self.too_large }),
        }
    }

    /// Takes over the faults of a part that was checked by itself.
    pub(crate) fn part<T>(&mut self, part: Result<T, Invalid>) -> Option<T> {
        part.map_err(|invalid| {
            self.errors.extend(invalid.errors);
            self.too_large |= invalid.too_large;
        })
        .ok()
    }

    /// Checks the receivers of notifications.
    pub(crate) fn notify(&mut self, field: &str, targets: &[NotifyTarget]) {
        self.targets(field, targets.iter().map(|target| target.url.as_str()));
        for (index, target) in targets.iter().enumerate() {
            self.notifiable(&format!("{field}[{index}].events"), &target.events);
        }
    }

    /// Checks the number and the URLs of receivers of notifications.
    pub(crate) fn targets<'a>(&mut self, field: &str, urls: impl ExactSizeIterator<Item = &'a str>) {
        if urls.len() > MAX_NOTIFY_TARGETS {
            self.fault(field, format!("has more than {MAX_NOTIFY_TARGETS} targets"));
        }
        for (index, url) in urls.enumerate() {
            self.url(&format!("{field}[{index}].url"), url);
        }
    }

    /// Checks a URL that is to be called.
    pub(crate) fn url(&mut self, field: &str, url: &str) {
        if url.len() > MAX_URL_BYTES {
            return self.fault(field, format!("is longer than {MAX_URL_BYTES} bytes"));
        }
        if let Err(error) = TargetUrl::parse(url) {
            self.fault(field, error.to_string());
        }
    }

    /// Checks the events of a notification.
    pub(crate) fn notifiable(&mut self, field: &str, events: &[EventName]) {
        for event in events.iter().filter(|event| !EventName::NOTIFIABLE.contains(event)) {
            let words: Vec<&str> = EventName::NOTIFIABLE.iter().map(|event| event.as_str()).collect();
            self.fault(field, format!("`{event}` cannot be told of; {} can", words.join(", ")));
        }
    }

    /// Checks a name of any type. Notes a fault and returns `None` when the text is not such a name.
    pub(crate) fn name<T>(&mut self, field: &str, text: &str) -> Option<T>
    where
        T: std::str::FromStr<Err = InvalidName>,
    {
        text.parse().map_err(|error: InvalidName| self.fault(field, error.to_string())).ok()
    }

    /// Checks the name of a queue that clients may submit to or claim from. Queues of the system are not among them.
    pub(crate) fn queue(&mut self, field: &str, text: &str) -> Option<QueueName> {
        let queue: QueueName = self.name(field, text)?;
        if queue.is_internal() {
            self.fault(
                field,
                format!("must not start with `{}`: such queues are the system's own", QueueName::INTERNAL),
            );
            return None;
        }
        Some(queue)
    }

    /// Checks the id of a worker that calls. Ids under which the system itself acts are not among them.
    pub(crate) fn worker(&mut self, text: &str) -> Option<WorkerId> {
        let worker: WorkerId = self.name("worker_id", text)?;
        if worker.is_reserved() {
            self.fault("worker_id", "is a name under which the system itself acts");
            return None;
        }
        Some(worker)
    }

    /// Checks a name that may be missing.
    pub(crate) fn optional_name<T>(&mut self, field: &str, text: Option<&str>) -> Option<T>
    where
        T: std::str::FromStr<Err = InvalidName>,
    {
        text.and_then(|text| self.name(field, text))
    }

    /// Checks that a number is within bounds.
    pub(crate) fn within<T: PartialOrd + fmt::Display>(
        &mut self,
        field: &str,
        value: T,
        bounds: RangeInclusive<T>,
    ) -> T {
        if !bounds.contains(&value) {
            self.fault(field, format!("must be from {} to {}, not {value}", bounds.start(), bounds.end()));
        }
        value
    }

    /// Checks a number as [`within`](Self::within) does. Returns it, and zero for the negative zero, which is another
    /// value on disk only.
    pub(crate) fn number(&mut self, field: &str, value: f64, bounds: RangeInclusive<f64>) -> f64 {
        self.within(field, value, bounds) + 0.0
    }

    /// Checks a duration given in milliseconds.
    pub(crate) fn millis(&mut self, field: &str, millis: u64, bounds: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.within(field, millis, bounds))
    }

    /// Checks a time.
    pub(crate) fn time(&mut self, field: &str, text: Option<&str>) -> Option<Timestamp> {
        text.and_then(|text| Timestamp::parse_rfc3339(text).map_err(|message| self.fault(field, message)).ok())
    }

    /// Checks the length of a free text.
    pub(crate) fn text(&mut self, field: &str, text: &str, max_bytes: usize) {
        if text.len() > max_bytes {
            self.fault(field, format!("must have at most {max_bytes} bytes, not {}", text.len()));
        }
    }

    /// Checks a payload's or a result's length and depth.
    pub(crate) fn body(&mut self, field: &str, body: Option<&Json>) {
        let Some(body) = body else { return };
        if body.bytes() > MAX_BODY_BYTES {
            self.too_large = true;
            self.fault(field, format!("must have at most {MAX_BODY_BYTES} bytes, not {}", body.bytes()));
        } else if depth(body.as_str()) > MAX_BODY_DEPTH {
            self.fault(field, format!("must not be nested deeper than {MAX_BODY_DEPTH} levels"));
        }
    }

    /// Checks labels: how many, and each key and value.
    pub(crate) fn labels(&mut self, labels: &BTreeMap<String, String>) {
        self.count("labels", labels.len(), MAX_LABELS);
        for (key, value) in labels.iter().take(MAX_LABELS) {
            if let Err(error) = LabelName::new(key) {
                self.fault("labels", format!("the key {key:?} {error}"));
            }
            self.text(&format!("labels.{key}"), value, MAX_LABEL_BYTES);
        }
    }

    /// Checks resources: how many, and each name and amount, which the index must take.
    pub(crate) fn resources(&mut self, resources: &BTreeMap<String, u64>) {
        self.count("resources", resources.len(), MAX_RESOURCES);
        for (name, amount) in resources.iter().take(MAX_RESOURCES) {
            if !is_resource_name(name) {
                let rule = format!("must have 1 to {MAX_RESOURCE_NAME} letters (a-z, A-Z), digits, `_` or `-`");
                self.fault("resources", format!("the name {name:?} {rule}"));
            }
            if i64::try_from(*amount).is_err() {
                self.fault(format!("resources.{name}"), format!("must be at most {}, not {amount}", i64::MAX));
            }
        }
    }

    /// Checks the labels that a worker offers: how many, and each name and value.
    pub(crate) fn offered(&mut self, labels: &BTreeMap<String, String>) {
        self.count("labels", labels.len(), MAX_OFFERED);
        for (name, value) in labels.iter().take(MAX_OFFERED) {
            if !is_offered_name(name) {
                let rule = format!("must have 1 to {MAX_OFFERED_NAME} letters (a-z, A-Z), digits, `_`, `-` or `.`");
                self.fault("labels", format!("the name {name:?} {rule}"));
            }
            if !is_offered_value(value) {
                let rule = format!("must have at most {MAX_OFFERED_VALUE} bytes and no control character");
                self.fault(format!("labels.{name}"), rule);
            }
        }
    }

    /// Checks a key of which only so many jobs run at once, and their number.
    pub(crate) fn concurrency(&mut self, key: Option<&str>, given: Option<u64>) -> Option<Concurrency> {
        let max = self.within("max_concurrent", given.unwrap_or(1), 1..=u64::from(MAX_CONCURRENT));
        let Some(key) = key else {
            if given.is_some() {
                self.fault("max_concurrent", "needs a `concurrency_key`: it is the number of that key's jobs");
            }
            return None;
        };
        let key = self.name("concurrency_key", key)?;
        Some(Concurrency { key, max: u32::try_from(max).unwrap_or(u32::MAX) })
    }

    /// Checks what a job requires: how many, and each by itself.
    pub(crate) fn requires(&mut self, texts: &[String]) -> Vec<Requirement> {
        self.count("requires", texts.len(), MAX_REQUIREMENTS);
        let mut requires = Vec::with_capacity(texts.len().min(MAX_REQUIREMENTS));
        for (index, text) in texts.iter().take(MAX_REQUIREMENTS).enumerate() {
            match text.parse::<Requirement>() {
                Ok(requirement) => requires.push(requirement),
                Err(error) => self.fault(format!("requires[{index}]"), error.to_string()),
            }
        }
        requires
    }

    /// Checks that a list is not longer than allowed.
    pub(crate) fn count(&mut self, field: &str, count: usize, max: usize) {
        if count > max {
            self.fault(field, format!("must have at most {max} entries, not {count}"));
        }
    }
}

/// Returns how deep arrays and objects are nested in a JSON text. It does not recurse, so that a text of nothing but
/// brackets needs no stack.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0_usize);
    let (mut in_string, mut escaped) = (false, false);
    for byte in json.bytes() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_brackets_but_not_those_in_strings() {
        for (json, expected) in [("1", 0), ("[]", 1), (r#"{"a":[{"b":1}],"c":[]}"#, 3), (r#"["[[[","\"[",1]"#, 1)] {
            assert_eq!(depth(json), expected, "{json}");
        }
        assert_eq!(depth(&"[".repeat(500_000)), 500_000);
    }

    #[test]
    fn a_negative_zero_is_taken_as_zero() {
        let mut checks = Checks::default();
        let taken = [-0.0, 0.0, 1.5].map(|value| checks.number("progress.percent", value, 0.0..=100.0).to_bits());
        assert_eq!(taken, [0.0, 0.0, 1.5].map(f64::to_bits));
    }

    #[test]
    fn a_body_at_the_limit_passes_and_a_byte_more_does_not() {
        let body = |bytes: usize| Json::parse(format!("\"{}\"", "x".repeat(bytes - 2))).expect("json");
        let mut checks = Checks::default();
        checks.body("payload", Some(&body(MAX_BODY_BYTES)));
        assert_eq!(checks.finish(Some(())), Ok(()));

        let mut checks = Checks::default();
        checks.body("payload", Some(&body(MAX_BODY_BYTES + 1)));
        let invalid = checks.finish(Some(())).expect_err("a fault");
        assert!(invalid.too_large);
        assert_eq!(invalid.errors[0].field, "payload");
    }

    #[test]
    fn every_fault_is_named_not_only_the_first() {
        let mut checks = Checks::default();
        checks.name::<crate::job::QueueName>("queue", "a\nb");
        checks.within("priority", 101, -100..=100);
        let fields: Vec<String> =
            checks.finish(Some(())).expect_err("faults").errors.into_iter().map(|e| e.field).collect();
        assert_eq!(fields, ["queue", "priority"]);
    }
}
