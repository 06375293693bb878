//! The `_bulk` request and its answer, which is 200 even where items failed: every item's status is checked.

use std::iter;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::fault::{self, Cause, Fault};
use super::nodes::{Request, reason};
use crate::store::{Place, StoreError, Version};

/// The `filter_path` of the answer, which would be as long as the request without it.
const WANTED: &str = "items.*.status,items.*._seq_no,items.*._primary_term,items.*._shards.failed,\
                      items.*.error.type,items.*.error.reason,items.*.error.index,items.*.error.caused_by.reason";

/// The most bytes of documents in one request.
pub(super) const MAX_BYTES: usize = 5 * 1024 * 1024;

/// Returns the path of a bulk request to the index behind `alias`; nothing is written if the alias is missing. The
/// server fails an item whose shard is missing after `timeout`, so that it answers before the client times out.
fn path(alias: &str, timeout: Duration) -> String {
    let timeout = timeout.as_millis().max(1);
    format!("{alias}/_bulk?require_alias=true&timeout={timeout}ms&filter_path={WANTED}")
}

/// The status of the removal of a document that is not there.
const NOT_FOUND: u16 = 404;

/// The action of one item on one document.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action<'a> {
    /// Writes a document that must not exist. The document's line follows.
    Create(Target<'a>),
    /// Writes a document. The document's line follows.
    Index(Target<'a>),
    /// Removes a document.
    Delete(Target<'a>),
}

/// The document of an action, with the condition on its version.
#[serde_with::skip_serializing_none]
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Target<'a> {
    /// The index, where it differs from the request's.
    #[serde(rename = "_index")]
    index: Option<&'a str>,
    require_alias: Option<bool>,
    #[serde(rename = "_id")]
    id: &'a str,
    if_seq_no: Option<u64>,
    if_primary_term: Option<u64>,
    version: Option<u64>,
    version_type: Option<&'static str>,
}

impl<'a> Target<'a> {
    /// Returns the target of the document `id` in any version.
    pub(super) fn any(id: &'a str) -> Self {
        Self {
            index: None,
            require_alias: None,
            id,
            if_seq_no: None,
            if_primary_term: None,
            version: None,
            version_type: None,
        }
    }

    /// Returns the target of the same document in `index`, which is an index's own name and no alias.
    pub(super) fn in_index(self, index: &'a str) -> Self {
        Self { index: Some(index), require_alias: Some(false), ..self }
    }

    /// Returns the same target under the condition that the document was not written under this rank or a higher one.
    pub(super) fn ranked(self, rank: u64) -> Self {
        Self { version: Some(rank), version_type: Some("external"), ..self }
    }

    /// Returns the target of the document `id` in `version` only.
    pub(super) fn at(id: &'a str, version: Version) -> Self {
        Self { if_seq_no: Some(version.seq_no), if_primary_term: Some(version.primary_term), ..Self::any(id) }
    }
}

/// The lines of a bulk.
#[derive(Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
    /// The position at which each item ends.
    ends: Vec<usize>,
}

impl Lines {
    /// Creates an empty bulk with room for `bytes` bytes.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ends: Vec::new() }
    }

    /// Adds the removal of a document.
    pub(super) fn delete(&mut self, target: Target<'_>) -> Result<(), StoreError> {
        self.add(&Action::Delete(target), None::<&()>)
    }

    /// Adds an action and, as a line of its own, the document. Nothing is added after an error.
    pub(super) fn add(
        &mut self,
        action: &Action<'_>,
        document: Option<&(impl Serialize + ?Sized)>,
    ) -> Result<(), StoreError> {
        self.add_lines(action, |bytes| {
            document.map_or(Ok(()), |document| {
                bytes.push(b'\n');
                serde_json::to_writer(bytes, document)
            })
        })
    }

    /// Adds an action and, as a line of its own, a document that is written as JSON already.
    pub(super) fn add_written(&mut self, action: &Action<'_>, document: &[u8]) -> Result<(), StoreError> {
        self.add_lines(action, |bytes| {
            bytes.push(b'\n');
            bytes.extend_from_slice(document);
            Ok(())
        })
    }

    fn add_lines(
        &mut self,
        action: &Action<'_>,
        add_document: impl FnOnce(&mut Vec<u8>) -> serde_json::Result<()>,
    ) -> Result<(), StoreError> {
        let start = self.bytes.len();
        let added = serde_json::to_writer(&mut self.bytes, action).and_then(|()| add_document(&mut self.bytes));
        if let Err(error) = added {
            self.bytes.truncate(start);
            return Err(StoreError::Corrupt(error.to_string()));
        }
        self.bytes.push(b'\n');
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// Returns the number of items.
    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bulk in parts, in the order of its items. Each is within [`MAX_BYTES`] or has a single item.
    pub(super) fn into_parts(self) -> Vec<Part> {
        let bytes = Bytes::from(self.bytes);
        let items: Vec<usize> = self.ends;
        let sizes: Vec<usize> = iter::once(0).chain(items.iter().copied()).zip(&items).map(|(a, b)| b - a).collect();
        let mut parts = Vec::new();
        let mut start = 0;
        for chunk in chunks(&sizes, sizes.len().max(1), |size| *size) {
            let end = start + chunk.len();
            let first = start.checked_sub(1).map_or(0, |before| items[before]);
            let ends = items[start..end].iter().map(|end| end - first).collect();
            parts.push(Part { bytes: bytes.slice(first..items[end - 1]), ends });
            start = end;
        }
        parts
    }
}

/// The lines of one bulk request, which can be sent again in parts.
#[derive(Clone, Debug)]
pub(super) struct Part {
    bytes: Bytes,
    /// The position at which each item ends.
    ends: Vec<usize>,
}

impl Part {
    /// Returns the number of items.
    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Returns the bulk request to the index behind `alias`.
    pub(super) fn request(&self, alias: &str, timeout: Duration) -> Request {
        Request::lines(path(alias, timeout), self.bytes.clone())
    }

    /// Returns the first half of the items and the second; `None` when there is only one item.
    pub(super) fn halves(&self) -> Option<[Self; 2]> {
        let (first, second) = self.ends.split_at(self.count() / 2);
        let middle = *first.last()?;
        let second = second.iter().map(|end| end - middle).collect();
        Some([
            Self { bytes: self.bytes.slice(..middle), ends: first.to_vec() },
            Self { bytes: self.bytes.slice(middle..), ends: second },
        ])
    }
}

/// Cuts `items` into chunks of at most `most` items and [`MAX_BYTES`]; an item with more bytes has one of its own.
pub(super) fn chunks<T>(mut items: &[T], most: usize, bytes: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    iter::from_fn(move || {
        let mut sum = 0;
        let fits = |item: &&T| {
            sum += bytes(item);
            sum <= MAX_BYTES
        };
        let length = items.iter().take(most).take_while(fits).count().max(1);
        let (chunk, rest) = items.split_at_checked(length)?;
        items = rest;
        Some(chunk)
    })
}

/// The outcome of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ItemOutcome {
    /// The item was done; the document has this version.
    Done(Version),
    /// The document has another version, exists already, or does not exist.
    Conflict,
    /// The item was not received, and not done. Holds the reason.
    NotDone(String),
    /// The index does not accept the document. Holds the reason.
    Invalid(String),
    /// The item was refused for a lasting reason and not done. Holds the reason.
    Denied(String),
    /// The index is in a state in which it takes no writes. An earlier try inside the server may have been done.
    OutOfOrder(Fault),
    /// The item was not sent, since its index is known to be in such a state.
    Withheld(Fault),
    /// The item failed and may have been done all the same. Holds the reason.
    Unsure(String),
}

#[derive(Deserialize)]
struct BulkReply {
    items: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Item {
    Create(ItemReply),
    Index(ItemReply),
    Delete(ItemReply),
}

#[derive(Deserialize)]
struct ItemReply {
    status: u16,
    #[serde(rename = "_seq_no")]
    seq_no: Option<u64>,
    #[serde(rename = "_primary_term")]
    primary_term: Option<u64>,
    #[serde(rename = "_shards", default)]
    shards: Shards,
    #[serde(default)]
    error: Option<Cause>,
}

#[derive(Default, Deserialize)]
struct Shards {
    #[serde(default)]
    failed: u32,
}

/// Parses the answer to a bulk of `expected` items into their outcomes, in order.
///
/// # Errors
/// A message when the body is not such an answer.
fn parse(body: &[u8], expected: usize) -> Result<Vec<ItemOutcome>, String> {
    let reply: BulkReply = serde_json::from_slice(body).map_err(|error| format!("not a bulk's answer: {error}"))?;
    if reply.items.len() != expected {
        return Err(format!("a bulk of {expected} was answered with {} items", reply.items.len()));
    }
    Ok(reply.items.into_iter().map(outcome).collect())
}

/// Returns the outcomes of a bulk of `expected` items for any answer.
pub(super) fn outcomes(status: u16, body: &[u8], expected: usize) -> Vec<ItemOutcome> {
    match status {
        200..=299 => parse(body, expected).unwrap_or_else(|error| vec![ItemOutcome::Unsure(error); expected]),
        400..=499 => {
            let denied = || ItemOutcome::Denied(reason(status, body));
            vec![fault::of_answer(status, body).map_or_else(denied, ItemOutcome::OutOfOrder); expected]
        }
        _ => vec![ItemOutcome::Unsure(reason(status, body)); expected],
    }
}

fn outcome(item: Item) -> ItemOutcome {
    let is_removal = matches!(item, Item::Delete(_));
    let (Item::Create(reply) | Item::Index(reply) | Item::Delete(reply)) = item;
    if reply.shards.failed > 0 {
        // The write counts all the same: before it was acknowledged, the copy that failed was struck off the list of
        // those that may become the primary.
        metrics::counter!("leasehold_store_copies_failed_total").increment(1);
    }
    let fault = reply.error.as_ref().filter(|_| (400..=499).contains(&reply.status)).and_then(Cause::fault);
    if let Some(fault) = fault {
        return ItemOutcome::OutOfOrder(fault);
    }
    if is_removal && reply.status == NOT_FOUND && reply.error.is_none() {
        return ItemOutcome::Conflict;
    }
    let sentence = reply.error.map_or_else(|| format!("status {}", reply.status), Cause::sentence);
    match (reply.status, reply.seq_no, reply.primary_term) {
        (200..=299, Some(seq_no), Some(primary_term)) => {
            ItemOutcome::Done(Version { place: Place::Main, primary_term, seq_no })
        }
        (409, ..) => ItemOutcome::Conflict,
        (400, ..) => ItemOutcome::Invalid(sentence),
        // The server itself tries an item again when a primary fails, so one that was rejected may have been done by an
        // earlier try.
        (429, ..) => ItemOutcome::Unsure(sentence),
        (401..=499, ..) => ItemOutcome::Denied(sentence),
        _ => ItemOutcome::Unsure(sentence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_gets_its_own_outcome() {
        let body = br#"{"items":[
            {"create":{"_shards":{"failed":0},"_seq_no":7,"_primary_term":2,"status":201}},
            {"index":{"status":409,"error":{"type":"version_conflict_engine_exception","reason":"[a]: conflict"}}},
            {"index":{"status":429,"error":{"type":"es_rejected_execution_exception","reason":"full"}}},
            {"create":{"status":400,"error":{"type":"document_parsing_exception","reason":"no",
                "caused_by":{"type":"json_parse_exception","reason":"twice"}}}},
            {"index":{"status":403,"error":{"type":"security_exception","reason":"denied"}}},
            {"index":{"status":400,"error":{"type":"index_closed_exception","reason":"closed","index":"a"}}},
            {"delete":{"status":503,"error":{"type":"unavailable_shards_exception","reason":"gone"}}},
            {"delete":{"_shards":{"failed":1},"_seq_no":8,"_primary_term":2,"status":200}},
            {"delete":{"_shards":{"failed":0},"_seq_no":9,"_primary_term":2,"status":404}}]}"#;
        let version = |seq_no| Version { place: Place::Main, primary_term: 2, seq_no };
        assert_eq!(
            parse(body, 9),
            Ok(vec![
                ItemOutcome::Done(version(7)),
                ItemOutcome::Conflict,
                ItemOutcome::Unsure("full".to_owned()),
                ItemOutcome::Invalid("no: twice".to_owned()),
                ItemOutcome::Denied("denied".to_owned()),
                ItemOutcome::OutOfOrder(Fault::Closed("a".to_owned())),
                ItemOutcome::Unsure("gone".to_owned()),
                ItemOutcome::Done(version(8)),
                ItemOutcome::Conflict,
            ])
        );
    }

    #[test]
    fn an_answer_with_items_missing_is_no_answer() {
        assert!(parse(br#"{"items":[]}"#, 1).is_err());
        assert!(parse(br#"{"error":"no"}"#, 1).is_err());
    }

    #[test]
    fn a_bulk_goes_in_parts_within_the_bound_and_each_part_can_be_halved_down_to_one_item() {
        let mut lines = Lines::default();
        let half = "x".repeat(MAX_BYTES / 2 - 100);
        let documents = [half.as_str(), &half, "short", &"y".repeat(2 * MAX_BYTES), "last", "of all"];
        for document in documents {
            lines.add(&Action::Create(Target::any("a")), Some(document)).expect("JSON");
        }
        let whole = lines.bytes.clone();
        let parts = lines.into_parts();
        assert_eq!(parts.iter().map(Part::count).collect::<Vec<_>>(), [3, 1, 2]);
        assert_eq!(parts.iter().flat_map(|part| part.bytes.to_vec()).collect::<Vec<u8>>(), whole);

        let [first, rest] = parts[0].halves().expect("three items");
        assert_eq!((first.count(), rest.count()), (1, 2));
        assert_eq!([&first.bytes[..], &rest.bytes[..]].concat(), parts[0].bytes);
        let [second, third] = rest.halves().expect("two items");
        assert_eq!(second.ends, [second.bytes.len()]);
        assert!(third.bytes.ends_with(b"\"short\"\n") && third.halves().is_none());
        assert!(Lines::default().into_parts().is_empty());
    }

    #[test]
    fn an_action_names_its_condition() {
        let at = Target::at("a\"b", Version { place: Place::Main, primary_term: 1, seq_no: 4 });
        let line = |action: Action| serde_json::to_string(&action).expect("json");
        assert_eq!(line(Action::Index(at)), r#"{"index":{"_id":"a\"b","if_seq_no":4,"if_primary_term":1}}"#);
        assert_eq!(line(Action::Create(Target::any("a"))), r#"{"create":{"_id":"a"}}"#);
        assert_eq!(line(Action::Delete(at)), r#"{"delete":{"_id":"a\"b","if_seq_no":4,"if_primary_term":1}}"#);
    }
}
