//! Turns the notices in jobs' outboxes into deliveries.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::config::NotifyConfig;
use super::delivery::Addressee;
use super::handover::{deliveries, hand_over};
use super::subscriptions::{Subscription, Subscriptions};
use crate::clock::{Clock, Timestamp};
use crate::executor::webhook::Event;
use crate::job::{Change, Job, JobId, Notice};
use crate::manager::{Manager, ManagerError, NewJob};
use crate::query::{Direction, Filter, Search, Sort, SortField};
use crate::store::{Sought, Store, StoreError};

/// The most jobs that one search for forgotten outboxes returns.
const PAGE: usize = 500;
/// The most pages that one search period reads; the next period continues.
const MAX_PAGES: usize = 20;
/// Every how many periods forgotten outboxes are searched for.
const SEARCH_EVERY: u32 = 8;
/// The age of a notice, in periods, after which other processes than its writer hand it on.
const FORGOTTEN_AFTER: u32 = 3;

/// Hands on the notices in outboxes.
pub(super) struct Outbox {
    pub(super) manager: Manager,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(super) config: NotifyConfig,
}

/// The numbers of the notices to remove from the outboxes, by job.
type HandedOn = HashMap<JobId, Vec<u32>>;

impl Outbox {
    pub(super) async fn run(self, stopping: CancellationToken) {
        let mut period = tokio::time::interval(self.config.period);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // What a process has left that ended before this one began is searched for at once.
        let (mut failing, mut periods, mut searches) = (false, 0_u32, 1_u32);
        loop {
            let done = tokio::select! {
                () = stopping.cancelled() => return,
                ids = self.manager.pending_notices() => self.hand_on(&ids).await,
                _ = period.tick() => {
                    periods = periods.wrapping_add(1);
                    let is_to_search = searches > 0 || periods.is_multiple_of(SEARCH_EVERY);
                    let caught_up = self.catch_up(is_to_search).await;
                    caught_up.map(|is_cut_off| searches = if is_cut_off { 1 } else { searches.saturating_sub(1) })
                }
            };
            match done {
                Ok(()) => failing &= searches > 0,
                // Logged once; the remaining outboxes are tried again in every period until they count as forgotten.
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "notifications wait for the store");
                    }
                    (failing, searches) = (true, FORGOTTEN_AFTER + 1);
                }
            }
        }
    }

    /// Reads subscriptions that other processes have changed, and, if it is to search, hands on forgotten outboxes,
    /// which a process leaves when it dies between a write and its notifications. Returns whether more are left.
    async fn catch_up(&self, is_to_search: bool) -> Result<bool, ManagerError> {
        self.subscriptions.refresh().await?;
        if !is_to_search {
            return Ok(false);
        }
        let before = self.clock.now().minus(self.config.period * FORGOTTEN_AFTER);
        let filter = Filter { pending_notices: Some(true), watch_at_most: Some(before), ..Filter::default() };
        let sort = Sort::By(SortField::WatchAt, Direction::Ascending);
        let mut after = None;
        for _ in 0..MAX_PAGES {
            let search = Search { filter: filter.clone(), sort, after, limit: PAGE };
            let found = self.store.search(&search).await?;
            let ids: Vec<JobId> = found.iter().map(|found| found.job.id.clone()).collect();
            self.hand_on(&ids).await?;
            if found.len() < PAGE {
                return Ok(false);
            }
            after = found.last().map(|last| sort.key(&last.job));
        }
        Ok(true)
    }

    /// Submits the deliveries of the jobs' notices, and then removes the notices whose deliveries were all submitted.
    /// The order guarantees that a removed notice has been handed on.
    async fn hand_on(&self, ids: &[JobId]) -> Result<(), ManagerError> {
        if ids.is_empty() {
            return Ok(());
        }
        let sought: Vec<Sought<'_>> = ids.iter().map(Sought::from).collect();
        // A job that cannot be looked up keeps no other one from being told of.
        let (mut jobs, mut unread) = (Vec::with_capacity(ids.len()), None);
        for found in self.store.look_up(&sought).await {
            match found {
                Ok(found) => jobs.extend(found),
                Err(error) => unread = Some(error),
            }
        }
        let subscribed = self.subscriptions.all();
        let (mut notices, mut deliveries) = (Vec::new(), Vec::new());
        for job in jobs.iter().map(|found| &*found.job) {
            for notice in &job.outbox {
                notices.push((&job.id, notice.number));
                deliveries.push(asked_for(job, notice, &subscribed, &self.config));
            }
        }
        let (are_handed_over, failure) = hand_over(&self.manager, deliveries.into_iter()).await;
        let mut handed_on = HandedOn::new();
        for ((id, number), _) in notices.into_iter().zip(are_handed_over).filter(|(_, is_handed_over)| *is_handed_over)
        {
            handed_on.entry(id.clone()).or_default().push(number);
        }
        self.take_out(&handed_on).await?;
        failure.or(unread.map(ManagerError::Store)).map_or(Ok(()), Err)
    }

    async fn take_out(&self, handed_on: &HandedOn) -> Result<(), ManagerError> {
        let ids: Vec<JobId> = handed_on.keys().cloned().collect();
        let taken_out = self
            .manager
            .change_each(&ids, |job: &Job, now: Timestamp| {
                let numbers = handed_on.get(&job.id).map_or(&[][..], Vec::as_slice);
                Ok(job.notices_handed_on(numbers, now).map_or(Change::Already, |rest| Change::To(Box::new(rest))))
            })
            .await;
        for result in taken_out {
            match result {
                Ok(_) | Err(ManagerError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns the deliveries of a notice.
fn asked_for(
    job: &Job,
    notice: &Notice,
    subscribed: &[Arc<Subscription>],
    config: &NotifyConfig,
) -> Result<Vec<NewJob>, StoreError> {
    let own = job.spec.oversight.notify.iter().filter(|target| target.wants(notice.entry.event)).map(Addressee::from);
    let others = subscribed.iter().filter(|subscription| subscription.wants(job, notice.entry.event, notice.entry.at));
    let others = others.map(|subscription| Addressee::Subscription(subscription.id.clone()));
    deliveries(&Event::of_job(job, notice), own.chain(others), config)
}
