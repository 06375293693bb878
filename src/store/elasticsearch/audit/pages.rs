//! Pages of the audit: one search each, in the order of time, the last entry first.
//!
//! Entries that are stored twice under one id have the same place in the order, so that they come next to each other
//! and a page that begins after the one begins after the other.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Audit;
use crate::clock::Timestamp;
use crate::store::StoreError;
use crate::store::audit::{AuditEntry, AuditPage, AuditPlace, AuditSearch, of_another_store, text};
use crate::store::elasticsearch::search::{Scope, hits_of};

#[derive(Deserialize)]
struct Hit {
    #[serde(rename = "_source")]
    document: Map<String, Value>,
    /// The time in milliseconds, the number and the id.
    sort: (i64, i64, String),
}

impl Audit {
    /// Returns the name that the audit is read by.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Reads a page. The scope is that of the audit's name.
    pub(crate) async fn read(&self, scope: Scope<'_>, search: &AuditSearch) -> Result<AuditPage, StoreError> {
        page(&scope.search(&request(search)?).await?, search.limit)
    }
}

/// Returns the search for a page, and for one entry more, which shows that there is a next one.
fn request(search: &AuditSearch) -> Result<Value, StoreError> {
    let mut filters: Vec<Value> =
        search.terms.iter().map(|(field, values)| json!({ "terms": { *field: values } })).collect();
    for (comparison, time) in [("gte", search.from), ("lte", search.to)] {
        let bound = |time: Timestamp| json!({ comparison: time.as_millis(), "format": "epoch_millis" });
        filters.extend(time.map(|time| json!({ "range": { "@timestamp": bound(time) } })));
    }
    let by = |field: &str, kind: &str| json!({ field: { "order": "desc", "unmapped_type": kind } });
    let mut request = json!({
        "query": { "bool": { "filter": filters } },
        "sort": [by("@timestamp", "date"), by("event.sequence", "long"), by("event.id", "keyword")],
        "size": search.limit + 1,
        "track_total_hits": false,
    });
    match &search.after {
        None => {}
        Some(AuditPlace::InTime { at, sequence, id }) => request["search_after"] = json!([at, sequence, id]),
        Some(AuditPlace::InFiles { .. }) => return Err(of_another_store()),
    }
    Ok(request)
}

fn page(answer: &Bytes, limit: usize) -> Result<AuditPage, StoreError> {
    let (mut hits, shards) = hits_of::<Hit>(answer)?;
    let has_more = hits.len() > limit;
    hits.truncate(limit);
    let place = |hit: &Hit| {
        let (at, sequence, ref id) = hit.sort;
        AuditPlace::InTime { at, sequence, id: id.clone() }
    };
    let next = hits.last().filter(|_| has_more).map(place);
    let mut entries: Vec<AuditEntry> = hits.into_iter().map(Hit::into_entry).collect();
    entries.dedup_by(|one, other| one.id == other.id);
    Ok(AuditPage { entries, next, is_there: shards.is_any() })
}

impl Hit {
    fn into_entry(self) -> AuditEntry {
        let Self { document, sort: (at, _, id) } = self;
        let exact = text(&document, "@timestamp").and_then(|text| Timestamp::parse_rfc3339(text).ok());
        AuditEntry { id, at: exact.unwrap_or_else(|| Timestamp::from_millis(at)), document }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn reply(ids: &[&str], shards: u32) -> Bytes {
        let hit = |id: &&str| {
            let document = json!({ "@timestamp": "1970-01-01T00:00:00.007Z", "event": { "id": id } });
            json!({ "_index": "i", "_id": id, "_score": null, "_source": document, "sort": [7, 1, id] })
        };
        let hits: Vec<Value> = ids.iter().map(hit).collect();
        let shards = json!({ "total": shards, "successful": shards, "skipped": 0, "failed": 0 });
        Bytes::from(json!({ "timed_out": false, "_shards": shards, "hits": { "hits": hits } }).to_string())
    }

    #[test]
    fn an_entry_that_is_stored_twice_is_there_once_and_the_next_page_begins_after_both() {
        let found = page(&reply(&["c", "b", "b", "a"], 2), 3).expect("a page");
        assert_eq!(found.entries.iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), ["c", "b"]);
        let next = AuditPlace::InTime { at: 7, sequence: 1, id: "b".to_owned() };
        assert_eq!((found.next, found.is_there), (Some(next), true));
        let last = page(&reply(&["a"], 2), 1).expect("a page");
        assert_eq!((last.entries.len(), last.next), (1, None));
        assert_eq!(page(&reply(&[], 0), 1).expect("a page"), AuditPage::default());
    }

    #[test]
    fn a_cursor_of_files_is_refused() {
        let after = AuditPlace::InFiles { month: "2030-01".to_owned(), left: BTreeMap::new() };
        let search = AuditSearch { after: Some(after), limit: 1, ..AuditSearch::default() };
        assert!(matches!(request(&search), Err(StoreError::Unsupported(_))));
    }
}
