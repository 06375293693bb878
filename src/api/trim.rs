//! Answers with selected fields: `fields=id,lease.worker_id,labels.team`.
//!
//! The selected fields are copied as text, so that a payload's numbers keep their form.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::Serialize;
use serde::de::Error as _;
use serde_json::value::RawValue;

use super::error::{ApiError, Code};
use super::extract::Query;
use crate::query::fields::closest;
use crate::wire::check::MAX_BODY_DEPTH;
use crate::wire::job::JOB_FIELDS;

/// The most fields that a call can select.
const MAX_FIELDS: usize = 100;
/// The longest path to a field, in bytes.
pub(crate) const MAX_PATH_BYTES: usize = 1024;
/// The most names on a path to a field: a body has no members deeper than these lead. Selecting, copying and dropping
/// recurse as deep as the longest path.
pub(crate) const MAX_PATH_NAMES: usize = 1 + MAX_BODY_DEPTH;
/// How deep an answer is nested at most, so that copying out of lists within lists ends too: a body, within the fields
/// of a job, within a list of jobs.
pub(crate) const MAX_ANSWER_DEPTH: usize = MAX_BODY_DEPTH + 8;
/// The fields that have members of any name. After `labels` and `resources`, the rest of a path is one name, dots
/// included; in `payload` and `result`, each dot leads one level down.
const LABELS: [&str; 2] = ["labels", "resources"];
const BODIES: [&str; 2] = ["payload", "result"];

/// The fields that an answer has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// The selected fields; an empty map selects all.
    some: BTreeMap<String, Self>,
}

impl Fields {
    /// Reads the selected fields from the query; all fields by default.
    pub(crate) fn of(query: &Query) -> Result<Self, ApiError> {
        let wrong = |message: String| ApiError::field("fields", message);
        let mut fields = Self::default();
        for (index, name) in query.all("fields").enumerate() {
            if index >= MAX_FIELDS {
                return Err(wrong(format!("must have at most {MAX_FIELDS} values")));
            }
            fields.add(&path(name).map_err(wrong)?);
        }
        Ok(fields)
    }

    /// Returns whether all fields are selected.
    pub(crate) fn are_all(&self) -> bool {
        self.some.is_empty()
    }

    fn add(&mut self, path: &[&str]) {
        let [first, rest @ ..] = path else {
            // The whole field, whichever of its parts are selected as well.
            self.some.clear();
            return;
        };
        match self.some.get_mut(*first) {
            Some(inside) if inside.are_all() => {}
            Some(inside) => inside.add(rest),
            None => {
                let mut inside = Self::default();
                if !rest.is_empty() {
                    inside.add(rest);
                }
                self.some.insert((*first).to_owned(), inside);
            }
        }
    }

    /// Writes the selected fields of an answer.
    pub(crate) fn write(&self, answer: &impl Serialize, out: &mut Vec<u8>) -> Result<(), ApiError> {
        let broken =
            |error: serde_json::Error| ApiError::new(Code::Internal, format!("the answer cannot be written: {error}"));
        if self.are_all() {
            return serde_json::to_writer(out, answer).map_err(broken);
        }
        let whole = serde_json::to_string(answer).map_err(broken)?;
        self.copy(&whole, MAX_ANSWER_DEPTH, out).map_err(broken)
    }

    /// Returns the selected fields of an answer.
    pub(crate) fn of_answer(&self, answer: &impl Serialize) -> Result<Box<RawValue>, ApiError> {
        let mut text = Vec::new();
        self.write(answer, &mut text)?;
        let text = String::from_utf8(text).map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
        RawValue::from_string(text).map_err(|error| ApiError::new(Code::Internal, error.to_string()))
    }

    /// Copies the selected members of a value, which is nested at most `depth` levels deep; of a list, those of each
    /// entry.
    fn copy(&self, value: &str, depth: usize, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        if self.are_all() {
            out.extend_from_slice(value.as_bytes());
            return Ok(());
        }
        let inside = || depth.checked_sub(1).ok_or_else(|| serde_json::Error::custom("it is nested too deep"));
        match value.as_bytes().first() {
            Some(b'{') => {
                let depth = inside()?;
                let members: IndexMap<String, &RawValue> = serde_json::from_str(value)?;
                out.push(b'{');
                let mut is_first = true;
                for (name, member) in &members {
                    let Some(fields) = self.some.get(name) else { continue };
                    if !std::mem::take(&mut is_first) {
                        out.push(b',');
                    }
                    serde_json::to_writer(&mut *out, name)?;
                    out.push(b':');
                    fields.copy(member.get(), depth, out)?;
                }
                out.push(b'}');
            }
            Some(b'[') => {
                let depth = inside()?;
                let entries: Vec<&RawValue> = serde_json::from_str(value)?;
                out.push(b'[');
                for (index, entry) in entries.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    self.copy(entry.get(), depth, out)?;
                }
                out.push(b']');
            }
            _ => out.extend_from_slice(value.as_bytes()),
        }
        Ok(())
    }
}

/// Returns the names on the path to a field.
fn path(name: &str) -> Result<Vec<&str>, String> {
    if name.len() > MAX_PATH_BYTES {
        return Err(format!("a field's path must have at most {MAX_PATH_BYTES} bytes, not {}", name.len()));
    }
    let inside = |outer: &str| name.strip_prefix(outer).and_then(|rest| rest.strip_prefix('.'));
    if JOB_FIELDS.iter().any(|field| field == name) {
        return Ok(name.split('.').collect());
    }
    for map in LABELS {
        if let Some(label) = inside(map).filter(|label| !label.is_empty()) {
            return Ok(vec![&name[..map.len()], label]);
        }
    }
    if BODIES.iter().any(|body| inside(body).is_some_and(|rest| !rest.is_empty())) {
        let names: Vec<&str> = name.split('.').collect();
        return match names.len() {
            0..=MAX_PATH_NAMES => Ok(names),
            many => Err(format!("a field's path must have at most {MAX_PATH_NAMES} names, not {many}")),
        };
    }
    Err(match closest(name, JOB_FIELDS.iter().map(String::as_str)) {
        Some(close) => format!("a job has no field `{name}`; is `{close}` meant?"),
        None => format!("a job has no field `{name}`; there are {}", JOB_FIELDS.join(", ")),
    })
}

/// Returns the fields at these paths of an answer in JSON, as the API's parameter `fields` selects them.
///
/// # Errors
/// What is wrong with a path, or that the answer is not JSON.
pub fn selected(paths: &[&str], answer: &str) -> Result<String, String> {
    let mut fields = Fields::default();
    for name in paths {
        fields.add(&path(name)?);
    }
    let mut out = Vec::new();
    fields.copy(answer, MAX_ANSWER_DEPTH, &mut out).map_err(|error| error.to_string())?;
    String::from_utf8(out).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trimmed(fields: &[&str], json: &str) -> String {
        selected(fields, json).expect("fields and JSON")
    }

    const JOB: &str = concat!(
        r#"{"id":"a","payload":{"x":1e999,"y":{"z":[1,2.50]}},"labels":{"a.b":"1","c":"2"},"lease":null,"#,
        r#""history":[{"at":1,"to":"x"},{"at":2,"to":"y"}]}"#
    );

    #[test]
    fn what_is_asked_for_is_left_to_the_letter_and_in_its_order() {
        assert_eq!(trimmed(&[], JOB), JOB);
        assert_eq!(trimmed(&["payload", "id"], JOB), r#"{"id":"a","payload":{"x":1e999,"y":{"z":[1,2.50]}}}"#);
        assert_eq!(trimmed(&["payload.y.z"], JOB), r#"{"payload":{"y":{"z":[1,2.50]}}}"#);
        assert_eq!(trimmed(&["labels.a.b"], JOB), r#"{"labels":{"a.b":"1"}}"#);
        assert_eq!(trimmed(&["lease.worker_id"], JOB), r#"{"lease":null}"#);
        assert_eq!(trimmed(&["history.to"], JOB), r#"{"history":[{"to":"x"},{"to":"y"}]}"#);
        assert_eq!(trimmed(&["result"], JOB), "{}");
    }

    #[test]
    fn a_path_is_refused_that_is_longer_or_leads_deeper_than_a_body_does() {
        let deep = |names: usize| format!("payload{}", ".a".repeat(names - 1));
        assert!(path(&deep(MAX_PATH_NAMES)).is_ok());
        assert!(path(&deep(MAX_PATH_NAMES + 1)).is_err_and(|error| error.contains("at most 101 names, not 102")));
        let long = |bytes: usize| format!("payload.{}", "a".repeat(bytes - "payload.".len()));
        assert!(path(&long(MAX_PATH_BYTES)).is_ok());
        assert!(path(&long(MAX_PATH_BYTES + 1)).is_err_and(|error| error.contains("at most 1024 bytes, not 1025")));
    }

    #[test]
    fn a_part_of_what_is_asked_for_takes_nothing_from_it() {
        for fields in [["payload", "payload.x"], ["payload.x", "payload"]] {
            assert_eq!(trimmed(&fields, JOB), trimmed(&["payload"], JOB));
        }
        assert_eq!(trimmed(&["payload.x", "payload.y"], JOB), trimmed(&["payload"], JOB));
    }

    #[test]
    fn a_field_that_a_job_has_not_is_refused_with_the_one_that_is_meant() {
        assert!(path("lease.worker").is_err_and(|error| error.contains("lease.worker_id")));
        assert!(path("stat").is_err_and(|error| error.contains("is `state` meant?")));
        for wrong in ["", ".", "id.x", "payload.", "labels.", "write_id", "watch_at"] {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }
}
