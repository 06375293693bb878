//! Who is first in the lines of ordering keys: one search for many keys, which finds the first of each.

use std::collections::HashMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::search::{Scope, hits_of, query};
use crate::job::{JobId, JobState, OrderingKey};
use crate::query::Filter;
use crate::store::{Head, StoreError};

/// The most lines that one request is about.
const AT_ONCE: usize = 1_000;

#[derive(Deserialize)]
struct Hit {
    #[serde(rename = "_id")]
    id: String,
    fields: Fields,
    /// The place, and the id.
    sort: (u64, String),
}

/// The field that the search collapses by, and the state, each with its one value.
#[derive(Deserialize)]
struct Fields {
    ordering_key: [String; 1],
    state: [JobState; 1],
}

/// Returns the search for the first live job of each of these keys. Live jobs are all in the live index.
fn request(keys: &[OrderingKey]) -> Value {
    let filter =
        Filter { states: vec![JobState::Available, JobState::Running], in_line_of: keys.to_vec(), ..Filter::default() };
    json!({
        "query": query(&filter),
        "collapse": { "field": "ordering_key" },
        "sort": [{ "order_seq": "asc" }, { "id": "asc" }],
        "size": keys.len(),
        "_source": false,
        "docvalue_fields": ["state"],
        "track_total_hits": false,
    })
}

fn read(answer: &Bytes) -> Result<HashMap<String, Head>, StoreError> {
    let head = |hit: Hit| {
        let job = JobId::new(&hit.id).map_err(|error| StoreError::Corrupt(format!("the id `{}` {error}", hit.id)))?;
        let Fields { ordering_key: [key], state: [state] } = hit.fields;
        Ok((key, Head { job, seq: hit.sort.0, state }))
    };
    hits_of(answer)?.0.into_iter().map(head).collect()
}

/// Finds the heads of lines, in the order of `keys`.
pub(super) async fn find(scope: Scope<'_>, keys: &[OrderingKey]) -> Result<Vec<Option<Head>>, StoreError> {
    let mut heads = Vec::with_capacity(keys.len());
    for some in keys.chunks(AT_ONCE) {
        let found = read(&scope.search(&request(some)).await?)?;
        heads.extend(some.iter().map(|key| found.get(key.as_str()).cloned()));
    }
    Ok(heads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_an_answer_is_an_error_and_a_whole_one_has_a_head_for_each_key() {
        let reply = |failed: u32| {
            let hit = json!({
                "_index": "jobs", "_id": "j-1", "_score": null, "sort": [7, "j-1"],
                "fields": { "ordering_key": ["a"], "state": ["running"] },
            });
            let shards = json!({ "total": 2, "successful": 2 - failed, "skipped": 0, "failed": failed });
            Bytes::from(json!({ "timed_out": false, "_shards": shards, "hits": { "hits": [hit] } }).to_string())
        };
        let heads = read(&reply(0)).expect("an answer");
        let head = Head { job: JobId::new("j-1").expect("an id"), seq: 7, state: JobState::Running };
        assert_eq!(heads, HashMap::from([("a".to_owned(), head)]));
        assert!(matches!(read(&reply(1)), Err(StoreError::Unavailable(_))));
    }
}
