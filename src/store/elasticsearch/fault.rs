//! What is wrong with an index, as far as an error of the server names it: a state that trying again does not change.

use serde::Deserialize;

use crate::store::StoreError;

/// The part of a block's description in which the server tells of a full disk.
const FLOOD: &str = "flood-stage";

/// A state of an index in which it cannot be written, or not be read either.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// The server takes no writes to the index, or none at all. Holds the index's name and the block's description.
    #[error("the store takes no writes to {index} ({why}); {}", mend(index, why))]
    Blocked { index: String, why: String },
    /// The number of the index's shards is being changed.
    #[error(
        "the index `{0}` takes no writes while the number of its shards is changed; if no `leasehold migrate` is at \
         work, run it again, which lifts the block"
    )]
    Resizing(String),
    /// The index is closed.
    #[error("the index `{0}` is closed; open it: POST /{0}/_open")]
    Closed(String),
    /// A part of the index has no copy that is there.
    #[error("a part of the index `{0}` is not there (its health is red); see GET /_cluster/allocation/explain")]
    Away(String),
    /// There is no such index or alias.
    #[error("the index `{0}` is not there; it is not made anew")]
    Missing(String),
    /// The index of an alias is gone, with the documents in it.
    #[error(
        "the index of `{0}` is not there; it is not made anew, since what was in it would be lost without a word. \
         Restore it from a snapshot, or, if it is lost for good, make an empty one: \
         PUT /{0}-000001 {{\"aliases\":{{\"{0}\":{{}}}}}}; then restart all servers and monitors"
    )]
    Lost(String),
    /// The alias has another index than when the store was opened.
    #[error("`{0}` is another index than the one that this process has opened; restart all servers and monitors")]
    Replaced(String),
    /// The alias has several indices, so that it cannot be written to. Holds the alias and the indices' names.
    #[error("the alias `{0}` is of several indices ({1}); take it from all of them but the right one")]
    Several(String, String),
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        Self::OutOfOrder(fault.to_string())
    }
}

/// Returns what can be done about a block.
fn mend(index: &str, why: &str) -> String {
    let index = index.trim_matches('`');
    let lift = |name: &str| format!("PUT /{index}/_settings {{\"{name}\": null}}");
    if why.contains(FLOOD) {
        let lift = lift("index.blocks.read_only_allow_delete");
        return format!("make room on the disks of its nodes; the block then goes by itself, or with {lift}");
    }
    let setting = [("index write", "write"), ("index read-only", "read_only"), ("index read ", "read")];
    if let Some((_, name)) = setting.into_iter().find(|(says, _)| why.contains(says)) {
        return format!("unless somebody means that, {}", lift(&format!("index.blocks.{name}")));
    }
    if why.starts_with("index.blocks.") {
        return format!("a full disk does that too; unless somebody means it, {}", lift(why));
    }
    "unless somebody means that, lift the block".to_owned()
}

/// The cause of an error, as the server describes it.
#[derive(Debug, Deserialize)]
pub(super) struct Cause {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    index: Option<String>,
    #[serde(default)]
    caused_by: Option<Box<Cause>>,
}

#[derive(Deserialize)]
struct Refusal {
    error: Cause,
}

impl Cause {
    /// Returns what is wrong with an index, if the cause is such.
    pub(super) fn fault(&self) -> Option<Fault> {
        let (reason, index) = (self.reason.as_deref().unwrap_or_default(), self.index.clone());
        match self.kind.as_str() {
            "cluster_block_exception" => Some(blocked(reason)),
            "index_closed_exception" => Some(Fault::Closed(index.unwrap_or_default())),
            "index_not_found_exception" => Some(Fault::Missing(index.unwrap_or_default())),
            // What the server says to a write to an alias of several indices.
            "illegal_argument_exception" if reason.starts_with("no write index") => {
                Some(Fault::Several(between(reason, "alias [", "]").to_owned(), "see its aliases".to_owned()))
            }
            _ => None,
        }
    }

    /// Returns a sentence about the cause.
    pub(super) fn sentence(self) -> String {
        let reason = self.reason.unwrap_or(self.kind);
        match self.caused_by.and_then(|cause| cause.reason) {
            Some(cause) if !reason.contains(&cause) => format!("{reason}: {cause}"),
            _ => reason,
        }
    }
}

/// Returns what is wrong with an index, if an answer that reports an error says so. A block that passes by itself, as
/// while the cluster has no master, comes with another status.
pub(super) fn of_answer(status: u16, body: &[u8]) -> Option<Fault> {
    if !(400..=499).contains(&status) {
        return None;
    }
    serde_json::from_slice::<Refusal>(body).ok()?.error.fault()
}

/// Parses a block as an error describes it: `index [jobs-000001] blocked by: [FORBIDDEN/8/index write (api)];`.
fn blocked(reason: &str) -> Fault {
    let index = match between(reason, "index [", "]") {
        "" => "any index".to_owned(),
        index => format!("`{index}`"),
    };
    let block = between(reason, "blocked by: [", "];");
    Fault::Blocked { index, why: description(block.splitn(3, '/').nth(2).unwrap_or(reason)) }
}

/// Returns a block's description without its advice.
pub(super) fn description(text: &str) -> String {
    text.split("; for more information").next().unwrap_or(text).to_owned()
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let after = text.split_once(start).map(|(_, after)| after).unwrap_or_default();
    after.split_once(end).map_or(after, |(between, _)| between)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: u16, error: &str) -> Option<String> {
        of_answer(status, format!(r#"{{"error":{error},"status":{status}}}"#).as_bytes()).map(|fault| fault.to_string())
    }

    #[test]
    fn a_block_is_named_with_what_can_be_done() {
        let flood = format!(
            r#"{{"type":"cluster_block_exception","reason":"index [jobs-000001] blocked by: [{}; {}];"}}"#,
            "TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block",
            "for more information, see https://www.elastic.co/x?version=9.2"
        );
        assert_eq!(
            said(429, &flood).as_deref(),
            Some(
                "the store takes no writes to `jobs-000001` (disk usage exceeded flood-stage watermark, index has \
                 read-only-allow-delete block); make room on the disks of its nodes; the block then goes by itself, \
                 or with PUT /jobs-000001/_settings {\"index.blocks.read_only_allow_delete\": null}"
            )
        );
        let block = |text: &str| {
            let reason = format!("index [a] blocked by: [FORBIDDEN/8/{text}];");
            said(403, &format!(r#"{{"type":"cluster_block_exception","reason":"{reason}"}}"#)).unwrap_or_default()
        };
        assert!(block("index write (api)").ends_with(r#"PUT /a/_settings {"index.blocks.write": null}"#));
        assert!(block("index read-only (api)").ends_with(r#"PUT /a/_settings {"index.blocks.read_only": null}"#));
        let cluster =
            r#"{"type":"cluster_block_exception","reason":"blocked by: [FORBIDDEN/6/cluster read-only (api)];"}"#;
        assert!(said(403, cluster).is_some_and(|said| said.contains("any index (cluster read-only (api))")));
    }

    #[test]
    fn what_passes_by_itself_or_is_no_indexs_fault_is_none() {
        let master = r#"{"type":"cluster_block_exception","reason":"blocked by: [SERVICE_UNAVAILABLE/2/no master];"}"#;
        assert_eq!(said(503, master), None);
        assert_eq!(said(400, r#"{"type":"parsing_exception","reason":"no"}"#), None);
        assert_eq!(of_answer(429, b"too many"), None);
    }
}
