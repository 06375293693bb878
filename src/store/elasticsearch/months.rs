//! The months' indices: made before their first copy, looked at, put right, and removed when they are empty.
//!
//! A request to remove an index names it and can come late, as when the process that sends it was paused; whatever has
//! that name then goes. So an index is only removed when none of that name is ever written to again: a job moves to the
//! month of its end while that is the present or the last one, and later to the last one ([`oldest_written`]); a month
//! is removed in the third after it at the earliest ([`newest_removable`]). The month between is longer than any
//! process is paused, or any clock wrong.

use std::collections::{BTreeMap, HashSet};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::archive::Month;
use super::connect::{self, IndexInfo};
use super::context::Context;
use super::copies;
use super::nodes::Request;
use crate::clock::Timestamp;
use crate::store::StoreError;

/// How many months after a job's end its month is written to.
const WRITTEN_FOR: u32 = 1;
/// How many months after itself a month is removed at the earliest.
const KEPT_FOR: u32 = 3;

/// Returns the oldest month that jobs are moved to at this time.
pub(super) fn oldest_written(now: Timestamp) -> Month {
    Month::of(now).minus(WRITTEN_FOR)
}

/// Returns the newest month whose index may be removed at this time.
fn newest_removable(now: Timestamp) -> Month {
    Month::of(now).minus(KEPT_FOR)
}

/// The months' indices.
pub(super) struct Months {
    /// The definition of a month's index.
    definition: Value,
    /// The months whose indices are known to exist.
    known: Mutex<HashSet<Month>>,
}

impl Months {
    pub(super) fn new(definition: Value) -> Self {
        Self { definition, known: Mutex::default() }
    }

    /// Makes a month's index if it is missing, and puts right one that exists. The request has the whole definition, so
    /// that it does not depend on the template.
    pub(super) async fn make(&self, shared: &Context, month: Month, deadline: Instant) -> Result<(), StoreError> {
        if self.known.lock().contains(&month) {
            return Ok(());
        }
        let index = shared.indices.of_month(month);
        let request = Request::put(index.clone(), Some(&self.definition));
        if shared.nodes.make(&request, deadline).await? {
            tracing::info!(index, "created the index");
        } else {
            self.look_at(shared, &index, deadline).await?;
        }
        self.known.lock().insert(month);
        Ok(())
    }

    /// Forgets that a month's index exists.
    pub(super) fn forget(&self, month: Month) {
        self.known.lock().remove(&month);
    }

    /// Puts the months' indices right, and removes those of months long past that have no job left.
    ///
    /// # Errors
    /// [`StoreError`] for the first of them that is not as it should be, when all others have been looked after.
    pub(super) async fn look_after(
        &self,
        shared: &Context,
        now: Timestamp,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let removed = self.remove_empty(shared, newest_removable(now), deadline).await;
        let looked = self.look_at(shared, &shared.indices.months(), deadline).await;
        removed.and(looked)
    }

    /// Removes the indices of months up to `newest` that have no job left.
    async fn remove_empty(&self, shared: &Context, newest: Month, deadline: Instant) -> Result<(), StoreError> {
        let mut result = Ok(());
        for month in empty_months(shared, deadline).await?.into_iter().filter(|month| *month <= newest) {
            self.forget(month);
            result = result.and(remove_if_empty(shared, month, deadline).await);
        }
        result
    }

    /// Looks at the settings of months' indices, and has writes to them acknowledged only when they are on disk.
    async fn look_at(&self, shared: &Context, indices: &str, deadline: Instant) -> Result<(), StoreError> {
        let path = format!("{indices}?flat_settings=true&expand_wildcards=open,closed&filter_path=*.settings");
        let found = shared.nodes.body(&Request::get(path), deadline).await?;
        let found: BTreeMap<String, IndexInfo> = serde_json::from_slice(&found)
            .map_err(|error| StoreError::Unavailable(format!("not an answer about indices: {error}")))?;
        for (index, info) in &found {
            if info.is_asynchronous() {
                shared.nodes.body(&connect::durable(index), deadline).await?;
                tracing::warn!(index, "{}", connect::PUT_RIGHT);
            }
        }
        let months = found.iter().filter(|(index, _)| shared.indices.month_of(index).is_some());
        match months.filter_map(|(index, info)| info.fault(index)).next() {
            Some(fault) => Err(fault.into()),
            None => Ok(()),
        }
    }
}

async fn empty_months(shared: &Context, deadline: Instant) -> Result<Vec<Month>, StoreError> {
    let what = "filter_path=indices.*.primaries.docs.count";
    let path = format!("{}/_stats/docs?{what}", shared.indices.months());
    let stats = shared.nodes.json(&Request::get(path), deadline).await?;
    let empty = |(index, stats): (&String, &Value)| {
        let month = shared.indices.month_of(index)?;
        (stats["primaries"]["docs"]["count"] == 0).then_some(month)
    };
    Ok(stats["indices"].as_object().map(|indices| indices.iter().filter_map(empty).collect()).unwrap_or_default())
}

/// Removes a month's index unless it has a job. The index is closed to writes before the last check: later writes fail,
/// and earlier ones are seen. When the process ends in between, the next one finds an index that is still empty, and
/// removes it.
async fn remove_if_empty(shared: &Context, month: Month, deadline: Instant) -> Result<(), StoreError> {
    let index = shared.indices.of_month(month);
    let nodes = &shared.nodes;
    let closed = nodes.json(&Request::put(format!("{index}/_block/write"), None), deadline).await;
    let is_empty = match closed {
        Ok(_) => is_empty(shared, &index, deadline).await,
        Err(error) => Err(error),
    };
    if let Ok(true) = is_empty {
        nodes.json(&Request::delete(index.clone()), deadline).await?;
        tracing::info!(index, "removed the index of a month without jobs");
        return Ok(());
    }
    let open = json!({ "index.blocks.write": null });
    nodes.json(&Request::put(format!("{index}/_settings"), Some(&open)), deadline).await?;
    is_empty.map(|_| ())
}

async fn is_empty(shared: &Context, index: &str, deadline: Instant) -> Result<bool, StoreError> {
    copies::refresh(shared, index, deadline).await?;
    let count = shared.nodes.json(&Request::get(format!("{index}/_count")), deadline).await?;
    let shards = &count["_shards"];
    Ok(count["count"] == 0 && shards["failed"] == 0 && shards["successful"] == shards["total"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_month_lies_between_the_last_move_to_a_month_and_its_removal() {
        let at = |text: &str| Timestamp::parse_rfc3339(text).expect("a time");
        let october = Month::of(at("2026-10-15T00:00:00Z"));
        let (last_moment, later) = (at("2026-11-30T23:59:59.999Z"), at("2026-12-01T00:00:00Z"));
        assert!(october >= oldest_written(last_moment) && october < oldest_written(later));
        let (kept, removed) = (at("2026-12-31T23:59:59.999Z"), at("2027-01-01T00:00:00Z"));
        assert!(october > newest_removable(kept) && october <= newest_removable(removed));
    }
}
