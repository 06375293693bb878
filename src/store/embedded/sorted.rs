//! Searches in an order that no column has: each job that matches is read, and those wanted are kept.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::scan;
use super::state::Engine;
use crate::query::{Search, SortKey};
use crate::store::{StoreError, Versioned};

/// Finds jobs.
pub(super) fn search(engine: &Engine, search: &Search) -> Result<Vec<Versioned>, StoreError> {
    let mut best: BTreeMap<SortKey, Versioned> = BTreeMap::new();
    scan::each(engine, &search.filter, |head| {
        let key = search.sort.key(&head.job);
        let comes_after = search.after.as_ref().is_none_or(|after| key > *after);
        let has_room = best.len() < search.limit || best.last_key_value().is_some_and(|(worst, _)| key < *worst);
        if comes_after && has_room {
            best.insert(key, head.clone());
            if best.len() > search.limit {
                best.pop_last();
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok(best.into_values().collect())
}
