//! Handing on what is in jobs' outboxes.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::config::NotifyConfig;
use super::delivery::{Addressee, Delivery};
use super::subscriptions::{Subscription, Subscriptions};
use crate::clock::{Clock, Timestamp};
use crate::executor::webhook::JobEvent;
use crate::job::{Actor, Change, Job, JobId, Notice};
use crate::manager::{Manager, ManagerError, NewJob};
use crate::query::{Direction, Filter, Search, Sort, SortField};
use crate::store::{Store, StoreError};

/// How many jobs one search for forgotten outboxes finds at most.
const PAGE: usize = 500;
/// How many pages one look takes at most; the rest is for the next one.
const MAX_PAGES: usize = 20;
/// How many periods old a notice is before others than the writer of it hand it on.
const FORGOTTEN_AFTER: u32 = 3;

/// Hands on what is in outboxes.
pub(super) struct Outbox {
    pub(super) manager: Manager,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(super) config: NotifyConfig,
}

/// Notices that are to be taken out, by job.
type HandedOn = HashMap<JobId, Vec<u32>>;

impl Outbox {
    pub(super) async fn run(self, stopping: CancellationToken) {
        let mut period = tokio::time::interval(self.config.period);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            let done = tokio::select! {
                () = stopping.cancelled() => return,
                ids = self.manager.pending_notices() => self.hand_on(&ids).await,
                _ = period.tick() => self.catch_up().await,
            };
            match done {
                Ok(()) => failing = false,
                // Said once; what is left is tried again with every look.
                Err(error) if !failing => {
                    failing = true;
                    tracing::warn!(%error, "notifications wait for the store");
                }
                Err(_) => {}
            }
        }
    }

    /// Learns of subscriptions that others have changed, and finds outboxes that nobody has handed on: what a process
    /// left that died between a write and its notifications.
    async fn catch_up(&self) -> Result<(), ManagerError> {
        self.subscriptions.refresh().await?;
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
                break;
            }
            after = found.last().map(|last| sort.key(&last.job));
        }
        Ok(())
    }

    /// Submits the deliveries that the jobs' notices ask for, then takes out the notices all of whose deliveries are
    /// there. In this order: a notice that is taken out has been handed on.
    async fn hand_on(&self, ids: &[JobId]) -> Result<(), ManagerError> {
        if ids.is_empty() {
            return Ok(());
        }
        let jobs = self.store.get(ids).await?;
        let subscribed = self.subscriptions.all();
        let mut notices: Vec<(&JobId, u32, usize)> = Vec::new();
        let mut deliveries = Vec::new();
        for job in jobs.iter().flatten().map(|found| &*found.job) {
            for notice in &job.outbox {
                let asked = asked_for(job, notice, &subscribed, &self.config)?;
                notices.push((&job.id, notice.number, asked.len()));
                deliveries.extend(asked);
            }
        }
        let mut answers = self.manager.submit(&Actor::system("notifier"), deliveries).await.into_iter();
        let mut handed_on = HandedOn::new();
        let mut failure = None;
        for (id, number, count) in notices {
            let mut all = true;
            for answer in answers.by_ref().take(count) {
                match answer {
                    // Differing: an earlier try has submitted it, when the job's error was another one.
                    Ok(_) | Err(ManagerError::SubmissionDiffers(_)) => {}
                    Err(error) => {
                        all = false;
                        failure.get_or_insert(error);
                    }
                }
            }
            if all {
                handed_on.entry(id.clone()).or_default().push(number);
            }
        }
        self.take_out(&handed_on).await?;
        failure.map_or(Ok(()), Err)
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

/// The deliveries that a notice asks for.
fn asked_for(
    job: &Job,
    notice: &Notice,
    subscribed: &[Arc<Subscription>],
    config: &NotifyConfig,
) -> Result<Vec<NewJob>, StoreError> {
    let own = job.spec.oversight.notify.iter().filter(|target| target.wants(notice.entry.event)).map(Addressee::of);
    let others = subscribed.iter().filter(|subscription| subscription.wants(job, notice.entry.event));
    let others = others.map(|subscription| Addressee::Subscription(subscription.id.clone()));
    let event = JobEvent::of(job, notice);
    let mut addressees: Vec<Addressee> = Vec::new();
    for addressee in own.chain(others) {
        // A target that is named twice is told once.
        if !addressees.contains(&addressee) {
            addressees.push(addressee);
        }
    }
    let jobs = addressees.into_iter().map(|to| Delivery { event: event.clone(), to }.into_job(config));
    jobs.collect::<Result<_, _>>().map_err(|error| StoreError::Corrupt(error.to_string()))
}
