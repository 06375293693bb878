//! Searches and counts as of one moment: the jobs in memory are shared under the lock and searched without it, and the
//! disk is read in a snapshot of the same moment.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::block::Blocks;
use super::budget::Budget;
use super::engine::Engine;
use super::finished::Finished;
use super::groups::Groups;
use super::live::Shard;
use super::narrow::Narrowed;
use super::page::{Page, Sink};
use super::state::{Published, View};
use crate::job::{JobState, QueueName};
use crate::query::{Direction, Filter, Group, GroupField, Search, Sort, SortField};
use crate::store::{StoreError, Versioned};

/// Returns whether a search is answered from the indexes in memory at once, without scanning anything.
pub(super) fn is_indexed(wanted: &Narrowed, sort: Sort) -> bool {
    let filter = &wanted.filter;
    is_dispatch(filter, sort)
        || is_watch(filter, sort)
        || filter.request_id.is_some()
        || filter.worker_id.is_some()
        || filter.pending_notices == Some(true)
}

/// Returns whether a count is answered from the counts that are kept.
pub(super) fn is_counted(wanted: &Narrowed, by: &[GroupField]) -> bool {
    let filter = &wanted.filter;
    let of_these = Filter {
        states: filter.states.clone(),
        queues: filter.queues.clone(),
        without_system: filter.without_system,
        ..Filter::default()
    };
    *filter == of_these && by.iter().all(|field| matches!(field, GroupField::State | GroupField::Queue))
}

/// Finds the jobs of a search whose filter was narrowed to `wanted`.
pub(super) fn search(
    engine: &Engine,
    wanted: &Narrowed,
    search: &Search,
    budget: Budget,
) -> Result<Vec<Versioned>, StoreError> {
    if search.limit == 0 {
        return Ok(Vec::new());
    }
    let filter = &wanted.filter;
    let moment = {
        let published = engine.published.read();
        if is_dispatch(filter, search.sort) {
            let queued = published.live.dispatch(filter, search.after.as_ref());
            let found = queued.filter(|head| filter.matches(&head.job)).take(search.limit);
            return Ok(found.cloned().collect());
        }
        if is_watch(filter, search.sort) {
            let watched = published.live.watched(filter.watch_at_most, search.after.as_ref());
            let found = watched.filter(|head| filter.matches(&head.job)).take(search.limit);
            return Ok(found.cloned().collect());
        }
        Moment::of(&published, wanted, budget)
    };
    let mut page = Page::of(search);
    if search.sort.is_kept() {
        moment.walk(engine, wanted, search.sort, &mut page)?;
    } else {
        // No column has what the order goes by, so every job that matches is read.
        moment.walk(engine, wanted, Sort::default(), &mut |head: &Versioned| page.take(head))?;
    }
    let finished = moment.finished(engine, wanted);
    page.found.into_iter().map(|(key, head)| head.map_or_else(|| finished.look_up(key.id()), Ok)).collect()
}

/// Returns a count that is kept.
pub(super) fn kept_counts(engine: &Engine, wanted: &Narrowed, by: &[GroupField]) -> Vec<Group> {
    let mut groups = Groups::default();
    groups.add_counts(&engine.published.read(), &wanted.filter, by);
    groups.most_first(by)
}

/// Counts the due jobs of a queue by owner that has an index by owner, or had one until none of its jobs waited.
pub(super) fn count_by_owner(engine: &Engine, queue: &QueueName, wanted: &Narrowed) -> Vec<Group> {
    engine.published.read().live.count_by_owner(queue, wanted.filter.run_at_most).unwrap_or_default()
}

/// Counts jobs by group.
pub(super) fn count(
    engine: &Engine,
    wanted: &Narrowed,
    by: &[GroupField],
    budget: Budget,
) -> Result<Vec<Group>, StoreError> {
    let mut groups = Groups::default();
    let moment = Moment::of(&engine.published.read(), wanted, budget);
    let mut add = |head: &Versioned| {
        groups.add(by.iter().map(|field| field.value(&head.job)), 1);
        ControlFlow::Continue(())
    };
    if wanted.exact {
        let _ = moment.walk_memory(wanted, add)?;
        moment.finished(engine, wanted).count(by, &mut groups)?;
    } else {
        moment.walk(engine, wanted, Sort::default(), &mut add)?;
    }
    Ok(groups.most_first(by))
}

/// Returns the answer to a count that no job can match.
pub(super) fn no_groups(by: &[GroupField]) -> Vec<Group> {
    Groups::default().most_first(by)
}

/// Visits every job that matches, live and finished, in no order and as of one moment, until `visit` returns a break.
/// No lock is held meanwhile.
pub(super) fn visit(
    engine: &Engine,
    filter: &Filter,
    budget: Budget,
    mut visit: impl FnMut(&Versioned) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    let Some(wanted) = Narrowed::of(filter) else { return Ok(()) };
    let moment = Moment::of(&engine.published.read(), &wanted, budget);
    moment.walk(engine, &wanted, Sort::default(), &mut visit)
}

/// The data that a search reads, as of one moment.
struct Moment {
    /// The jobs in memory that could match, from an index.
    heads: Vec<Versioned>,
    /// Every live job, where there is no index.
    all_live: Vec<Arc<Shard>>,
    blocks: Arc<Blocks>,
    view: View,
    budget: Budget,
}

impl Moment {
    fn of(published: &Published, wanted: &Narrowed, budget: Budget) -> Self {
        let (mut heads, mut all_live) = (Vec::new(), Vec::new());
        if let Some(ids) = &wanted.ids {
            let distinct: BTreeSet<_> = ids.iter().collect();
            heads.extend(distinct.into_iter().filter_map(|id| published.in_memory(id)).cloned());
        } else {
            match published.live.candidates(&wanted.filter) {
                Some(candidates) => heads.extend(candidates.cloned()),
                None => all_live = published.live.all(),
            }
            if wanted.may_be_finished() {
                heads.extend(published.recent.heads().filter(|head| wanted.admits(head.job.state.name())).cloned());
            }
        }
        let (blocks, view) = (Arc::clone(&published.blocks), published.view.clone());
        Self { heads, all_live, blocks, view, budget }
    }

    /// Visits the jobs in memory that match, until `visit` returns a break, and returns whether it did.
    fn walk_memory(
        &self,
        wanted: &Narrowed,
        mut visit: impl FnMut(&Versioned) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, StoreError> {
        let all_live = self.all_live.iter().flat_map(|shard| shard.values());
        for (number, head) in self.heads.iter().chain(all_live).enumerate() {
            self.budget.check_at(number)?;
            if wanted.filter.matches(&head.job) && visit(head).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Hands every job that matches to `sink`, until it wants no more.
    fn walk(&self, engine: &Engine, wanted: &Narrowed, sort: Sort, sink: &mut impl Sink) -> Result<(), StoreError> {
        if self.walk_memory(wanted, |head| sink.take(head))?.is_break() {
            return Ok(());
        }
        self.finished(engine, wanted).walk(sort, sink)
    }

    /// The finished jobs that are not in memory.
    fn finished<'a>(&'a self, engine: &'a Engine, wanted: &'a Narrowed) -> Finished<'a> {
        Finished {
            disk: &engine.disk,
            view: &self.view,
            blocks: &self.blocks,
            in_memory: &self.heads,
            wanted,
            budget: self.budget.clone(),
        }
    }
}

/// Returns whether available jobs are wanted in the order of dispatch.
fn is_dispatch(filter: &Filter, sort: Sort) -> bool {
    sort == Sort::Dispatch
        && !filter.states.is_empty()
        && filter.states.iter().all(|state| *state == JobState::Available)
}

/// Returns whether the jobs are wanted that the monitor has to check, in the order of time.
fn is_watch(filter: &Filter, sort: Sort) -> bool {
    filter.watch_at_most.is_some() && sort == Sort::By(SortField::WatchAt, Direction::Ascending)
}
