//! Searches and counts of schedules: by the ids that a query names, by an owner's index, or page by page over all.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::budget::Budget;
use super::engine::Engine;
use super::lists::{self, Wanted};
use super::narrow::NarrowedSchedules;
use crate::job::ScheduleId;
use crate::store::{StoreError, StoredSchedule};

/// How many schedules are read at a time where not every one matches.
const PAGE: usize = 1_000;

/// Lists up to `limit` schedules that match, by id, after the id `after`.
pub(super) fn list(
    engine: &Engine,
    wanted: &NarrowedSchedules,
    after: Option<&ScheduleId>,
    limit: usize,
    budget: &Budget,
) -> Result<Vec<StoredSchedule>, StoreError> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    if let Some(ids) = &wanted.ids {
        let first = after.map_or(0, |after| ids.partition_point(|id| id <= after));
        return Ok(of_ids(engine, wanted, &ids[first..])?.into_iter().take(limit).collect());
    }
    let page = if wanted.is_exact() { limit } else { PAGE };
    let mut found = Vec::new();
    for owner in wanted.indexes() {
        let (mut number, before) = (0, found.len());
        lists::walk(engine, Wanted::by_id(owner, after, page), |stored| {
            budget.check_at(number)?;
            number += 1;
            if wanted.matches(&stored.schedule) {
                found.push(stored);
            }
            Ok(if found.len() - before < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
    }
    // Each owner's are in order.
    if wanted.owners.len() > 1 {
        found.sort_unstable_by(|one, other| one.schedule.id.cmp(&other.schedule.id));
        // One that went to another owner meanwhile is met at both.
        found.dedup_by(|one, other| one.schedule.id == other.schedule.id);
        found.truncate(limit);
    }
    Ok(found)
}

/// Counts the schedules that match.
pub(super) fn count(engine: &Engine, wanted: &NarrowedSchedules, budget: &Budget) -> Result<u64, StoreError> {
    if let Some(ids) = &wanted.ids {
        return Ok(of_ids(engine, wanted, ids)?.len() as u64);
    }
    let mut count = 0;
    for owner in wanted.indexes() {
        let all = Wanted::by_id(owner, None, PAGE);
        if wanted.is_exact() {
            lists::pages(engine, all, |_, page| {
                budget.check()?;
                count += page.len() as u64;
                Ok(ControlFlow::Continue(()))
            })?;
            continue;
        }
        let mut number = 0;
        lists::walk(engine, all, |stored| {
            budget.check_at(number)?;
            number += 1;
            count += u64::from(wanted.matches(&stored.schedule));
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(count)
}

/// Reads the schedules of these ids that match.
fn of_ids(engine: &Engine, wanted: &NarrowedSchedules, ids: &[ScheduleId]) -> Result<Vec<StoredSchedule>, StoreError> {
    let (in_memory, snapshot) = {
        let published = engine.published.read();
        let in_memory: Vec<_> = ids.iter().map(|id| published.schedule(id).cloned()).collect();
        (in_memory, Arc::clone(&published.view.snapshot))
    };
    let read = ids.iter().zip(in_memory).map(|(id, in_memory)| match in_memory {
        Some(stored) => Ok(stored),
        None => engine.disk.schedule(&snapshot, id),
    });
    let mut found = Vec::new();
    for (id, read) in ids.iter().zip(read) {
        match read {
            Ok(stored) => found.extend(stored.filter(|stored| wanted.matches(&stored.schedule))),
            Err(StoreError::Corrupt(what)) => tracing::error!(%id, what, "a schedule cannot be read"),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
