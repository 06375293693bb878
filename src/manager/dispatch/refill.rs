//! How candidates come back from the store: a claim on a queue that is not known well enough looks it up at once; a
//! background loop looks up the queues that claims wait for, and hands jobs out as they become due.

use std::time::Duration;

use futures::future::{join, join_all};
use tracing::{debug, warn};

use crate::job::{JobId, JobState, Owner, QueueName};
use crate::query::{Direction, Filter, Group, GroupField, Search, Sort, SortField};
use crate::store::{Sought, StoreError, Versioned};

use crate::manager::Manager;
use crate::manager::dispatch::elsewhere::LookElsewhere;
use crate::manager::dispatch::first_search::FirstSearch;
use crate::manager::dispatch::taking_kinds::KindSearches;
use crate::manager::dispatch::taking_turns::FoundByOwner;
use crate::manager::dispatch::{Dispatch, Lookup, LookupResult, Wish};

/// The most queues that are searched for at once.
const LOOKUPS_AT_ONCE: usize = 4;

/// The longest and the shortest wait between two rounds of the background loop.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// The wait of the background loop after a failed search.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The most owners, and the most kinds, that are searched for at once.
const SEARCHES_AT_ONCE: usize = 4;

/// A search under way. It has failed when this is dropped before its end: by an error, or with the claim that made it,
/// whose caller went away.
struct Unfinished<'a> {
    dispatch: &'a Dispatch,
    queue: &'a QueueName,
    lookup: Option<&'a Lookup>,
}

impl Unfinished<'_> {
    fn end(mut self) {
        self.lookup = None;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(lookup) = self.lookup {
            self.dispatch.fail_lookup(self.queue, lookup);
        }
    }
}

impl Dispatch {
    /// Returns whether the first search for each of the queues is over, but for those that are held back.
    pub(in crate::manager) fn were_searched(&self, queues: &[QueueName]) -> bool {
        let board = self.shared.board.lock();
        let is_over = |queue| board.lanes.get(queue).is_some_and(|lane| lane.first_search.is_over());
        queues.iter().all(|queue| board.paused.contains(queue) || is_over(queue))
    }

    /// Returns the queues for which the store must be searched before a claim can be answered with no jobs.
    pub(in crate::manager) fn stale<'a>(&self, queues: &'a [QueueName]) -> Vec<&'a QueueName> {
        self.to_be_searched(queues, false)
    }

    /// Returns the queues for which the store must be searched before a claim takes jobs, or is answered with none. One
    /// that waits is served by the next overview too.
    pub(super) fn to_be_searched<'a>(&self, queues: &'a [QueueName], waits: bool) -> Vec<&'a QueueName> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        board.touch(queues, now);
        let mut needs_lookup = |queue: &QueueName| {
            let lane = board.lane(queue);
            let is_known = waits && lane.was_quiet_lately(now, &self.shared.config);
            let needs_search = !is_known && lane.needs_search(now, &self.shared.config);
            !board.paused.contains(queue) && needs_search
        };
        queues.iter().filter(|queue| needs_lookup(queue)).collect()
    }

    /// Returns the queues for which the first search is under way.
    pub(super) fn first_searched_for<'a>(&self, queues: &'a [QueueName]) -> Vec<&'a QueueName> {
        let board = self.shared.board.lock();
        let is_under_way =
            |queue| board.lanes.get(queue).is_some_and(|lane| lane.first_search == FirstSearch::UnderWay);
        queues.iter().filter(|queue| is_under_way(*queue)).collect()
    }
}

impl Manager {
    /// Returns whether a claim can be given what it is to have next: the first search for each of its queues is over.
    /// None of them may lack more urgent jobs, and for one that goes by its queues, none at all.
    pub(crate) fn is_known_for(&self, wish: &Wish<'_>) -> bool {
        let dispatch = &self.shared.dispatch;
        dispatch.were_searched(wish.queues)
            && !dispatch.is_urgent_look_due(wish.queues)
            && (!wish.order.is_by_queue() || dispatch.stale(wish.queues).is_empty())
    }

    /// Waits for the first searches for a claim's queues that other claims make, and searches the store for those whose
    /// lanes may lack jobs that are to come first. Without an answer the claim goes by what is known.
    pub(crate) async fn know(&self, wish: &Wish<'_>) {
        for queue in self.shared.dispatch.first_searched_for(wish.queues) {
            drop(self.shared.dispatch.lookup_lock(queue).lock().await);
        }
        if (wish.order.is_by_queue() || !self.shared.dispatch.were_searched(wish.queues))
            && let Err(error) = self.refresh_candidates(wish.queues, false).await
        {
            debug!(%error, "cannot search the queues of a claim; going by what is known of them");
        }
        self.know_urgent(wish.queues).await;
    }

    /// Searches the store for those of `queues` whose lanes may lack due jobs, for a claim that waits or does not.
    pub(crate) async fn refresh_candidates(&self, queues: &[QueueName], waits: bool) -> Result<(), StoreError> {
        for queue in self.shared.dispatch.to_be_searched(queues, waits) {
            // Where the claim is dropped that made it, others wait for the search.
            let turn = self.shared.dispatch.lookup_lock(queue).lock_owned().await;
            let (manager, queue) = (self.clone(), queue.clone());
            let search = self.shared.tasks.spawn(async move {
                let _turn = turn;
                manager.shared.stopping.run_until_cancelled(manager.look_up_alone(&queue)).await
            });
            search.await.ok().flatten().unwrap_or_else(|| Err(StoreError::Unavailable("it is closing".to_owned())))?;
        }
        Ok(())
    }

    async fn look_up(&self, queue: &QueueName) -> Result<(), StoreError> {
        let lock = self.shared.dispatch.lookup_lock(queue);
        let _one_at_a_time = lock.lock().await;
        self.look_up_alone(queue).await
    }

    /// Makes the searches that are due for a queue whose lock is held.
    async fn look_up_alone(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.look_for_own(queue).await?;
        self.look_for_kinds(queue).await?;
        match self.shared.dispatch.begin_look_elsewhere(queue) {
            Some(look) => self.look_elsewhere(queue, &look).await,
            None => Ok(()),
        }
    }

    /// Searches the store for jobs that other managers come first for.
    async fn look_elsewhere(&self, queue: &QueueName, look: &LookElsewhere) -> Result<(), StoreError> {
        let filter = Filter {
            queues: vec![queue.clone()],
            available_in: Some(look.partitions),
            held: Some(false),
            kinds: look.kinds.clone(),
            run_at_most: Some(look.due_by),
            ..Filter::default()
        };
        let filter = self.shared.dispatch.without_held(queue, filter);
        let search = Search { filter, sort: look.sort, after: None, limit: look.limit };
        let found = self.shared.store.search(&search).await?;
        let found = self.shared.dispatch.may_go_first(queue, look, found);
        self.read_again(queue, &found).await;
        self.shared.dispatch.let_in(queue, found, |hit| self.up_to_date(hit));
        Ok(())
    }

    /// Reads the doubtful ones of these hits in real time, so that those which have moved on are known as outdated.
    /// Without an answer they are taken for what the search shows, which costs conflicts at the most.
    pub(super) async fn read_again(&self, queue: &QueueName, hits: &[Versioned]) {
        let doubtful: Vec<JobId> = self.shared.dispatch.doubtful(queue, hits).into_iter().cloned().collect();
        if doubtful.is_empty() {
            return;
        }
        let sought: Vec<Sought<'_>> = doubtful.iter().map(Sought::from).collect();
        for found in self.shared.store.look_up(&sought).await {
            match found {
                Ok(found) => found.iter().for_each(|current| self.shared.work.known.learn(current)),
                Err(error) => debug!(%error, "cannot read again what a search has found"),
            }
        }
    }

    /// Searches the store for any due jobs of a claim's queues and kinds, for one that does not wait.
    pub(crate) async fn reach_out(&self, wish: &Wish<'_>) -> Result<(), StoreError> {
        for queue in wish.queues {
            if let Some(look) = self.shared.dispatch.begin_reach_out(queue, wish.kinds) {
                Box::pin(self.look_elsewhere(queue, &look)).await?;
            }
        }
        Ok(())
    }

    async fn look_for_own(&self, queue: &QueueName) -> Result<(), StoreError> {
        let Some(lookup) = self.shared.dispatch.begin_lookup(queue) else { return Ok(()) };
        let unfinished = Unfinished { dispatch: &self.shared.dispatch, queue, lookup: Some(&lookup) };
        let of_queue = Filter {
            states: vec![JobState::Available],
            held: Some(false),
            queues: vec![queue.clone()],
            available_in: lookup.partitions,
            ..Filter::default()
        };
        let due_of_queue = self.shared.dispatch.without_held(queue, of_queue.clone());
        let due = Search {
            filter: Filter { run_at_most: Some(lookup.now), ..due_of_queue },
            sort: Sort::Dispatch,
            after: lookup.resume.clone(),
            limit: lookup.limit,
        };
        let mut found = LookupResult::default();
        let mut by_owner = None;
        if !lookup.partitions.is_some_and(|own| own.is_empty()) {
            by_owner = if lookup.is_fair { self.look_by_owner(queue, &lookup, &due.filter).await? } else { None };
            if by_owner.is_none() {
                found.due = self.shared.store.search(&due).await?;
                self.read_again(queue, &found.due).await;
            }
            if let Some((after, until)) = lookup.later {
                let filter = Filter { run_after: Some(after), run_at_most: Some(until), ..of_queue };
                let sort = Sort::By(SortField::RunAt, Direction::Ascending);
                let later = Search { filter, sort, after: None, limit: lookup.limit };
                found.later = self.shared.store.search(&later).await?;
            }
        }
        unfinished.end();
        let fresh = |hit: &Versioned| self.up_to_date(hit);
        match by_owner {
            Some(by_owner) => self.shared.dispatch.end_look_by_owner(queue, &lookup, by_owner, found.later, fresh),
            None => self.shared.dispatch.end_lookup(queue, &lookup, found, fresh),
        }
        Ok(())
    }

    /// Searches the store for kinds of which claims have found no job, kind by kind.
    async fn look_for_kinds(&self, queue: &QueueName) -> Result<(), StoreError> {
        let dispatch = &self.shared.dispatch;
        let Some(KindSearches { now, searches, partitions }) = dispatch.begin_look_for_kinds(queue) else {
            return Ok(());
        };
        for some in searches.chunks(SEARCHES_AT_ONCE) {
            let answers = some.iter().map(|search| async {
                let filter = Filter {
                    states: vec![JobState::Available],
                    held: Some(false),
                    queues: vec![queue.clone()],
                    kinds: vec![search.kind.clone()],
                    available_in: partitions,
                    run_at_most: Some(now),
                    ..Filter::default()
                };
                let filter = dispatch.without_held(queue, filter);
                let after = search.after.clone();
                self.shared.store.search(&Search { filter, sort: Sort::Dispatch, after, limit: search.limit }).await
            });
            for (search, hits) in some.iter().zip(join_all(answers).await) {
                let hits = hits?;
                self.read_again(queue, &hits).await;
                dispatch.end_look_for_kind(queue, search, hits, |hit| self.up_to_date(hit));
            }
        }
        Ok(())
    }

    /// Searches the store for the due jobs that `filter` selects owner by owner, if they are more than a search finds.
    async fn look_by_owner(
        &self,
        queue: &QueueName,
        lookup: &Lookup,
        filter: &Filter,
    ) -> Result<Option<FoundByOwner>, StoreError> {
        let counted = Filter { not_under: Vec::new(), not_in_line_of: Vec::new(), ..filter.clone() };
        let groups = self.shared.store.count(&counted, &[GroupField::Owner]).await?;
        let waiting = groups.into_iter().map(owner_waiting).collect::<Result<Vec<_>, _>>()?;
        let dispatch = &self.shared.dispatch;
        let Some(searches) = dispatch.begin_look_by_owner(queue, lookup, &waiting) else { return Ok(None) };
        let mut found = FoundByOwner { waiting, ends: Vec::new(), due: Vec::new() };
        for some in searches.chunks(SEARCHES_AT_ONCE) {
            let answers = some.iter().map(|search| async {
                let filter = Filter {
                    owners: search.owner.iter().cloned().collect(),
                    without_owner: search.owner.is_none(),
                    ..filter.clone()
                };
                let of_owner =
                    Search { filter, sort: Sort::Dispatch, after: search.after.clone(), limit: search.limit };
                self.shared.store.search(&of_owner).await
            });
            for (search, hits) in some.iter().zip(join_all(answers).await) {
                let hits = hits?;
                found.ends.push((search.owner.clone(), search.end_of(&hits)));
                found.due.extend(hits);
            }
        }
        self.read_again(queue, &found.due).await;
        Ok(Some(found))
    }

    /// Returns whether a hit is at least as recent as the version that this manager knows.
    fn up_to_date(&self, hit: &Versioned) -> bool {
        let outdated = self.shared.work.known.is_outdated(hit);
        if outdated {
            self.shared.observe.insight.mismatched("stale_hit", self.shared.clock.now());
        }
        !outdated
    }

    /// Runs the background loop.
    pub(crate) async fn keep_filled(&self) {
        let mut failing = false;
        // Ends with the manager.
        loop {
            let plan = self.shared.dispatch.plan();
            let is_overview = plan.overview.is_some();
            let mut failure = None;
            let looking_over = async {
                if let Some(overview) = plan.overview {
                    self.look_over(overview).await;
                }
            };
            let looking_up = async {
                for some in plan.lookups.chunks(LOOKUPS_AT_ONCE) {
                    let results = join_all(some.iter().map(|queue| self.look_up(queue))).await;
                    failure = failure.take().or_else(|| results.into_iter().find_map(Result::err));
                }
            };
            join(looking_over, looking_up).await;
            let rest = match &failure {
                Some(_) => REST_AFTER_FAILURE,
                None if is_overview || !plan.lookups.is_empty() => SHORTEST_SLEEP,
                None => plan.wake_at.since(self.shared.clock.now()).clamp(SHORTEST_SLEEP, LONGEST_SLEEP),
            };
            if let Some(error) = &failure
                && !failing
            {
                warn!(%error, "cannot look for jobs in the store; trying again until it answers");
            }
            failing = failure.is_some();
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = self.shared.dispatch.sooner(), if !failing => {}
                () = self.shared.stopping.cancelled() => return,
            }
        }
    }
}

/// Returns the owner that a group of jobs has, and how many jobs there are.
fn owner_waiting(group: Group) -> Result<(Option<Owner>, usize), StoreError> {
    let name = group.values.into_iter().next().flatten();
    let owner = name.map(Owner::new).transpose();
    let owner = owner.map_err(|_| StoreError::Corrupt("an owner without a valid name in a count".to_owned()))?;
    Ok((owner, usize::try_from(group.count).unwrap_or(usize::MAX)))
}
