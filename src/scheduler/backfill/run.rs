//! Running a backfill: its due times in order, a trigger for each that is to run, and no more of them at once than a
//! person wants.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::order::{BackfillReport, Fate, Order};
use super::progress::{self, Progress};
use super::standing::{Standing, standings};
use crate::clock::{Clock, Timestamp};
use crate::job::{JobId, Json};
use crate::manager::{Caller, Manager};
use crate::schedule::Schedule;
use crate::scheduler::trigger::{self, Trigger};
use crate::store::{Store, Versioned};
use crate::worker::{Attempt, Handler, HandlerError};

/// How many due times are looked at together.
const PAGE: usize = 250;
/// How long one wait for the end of something under way lasts. Its end ends the wait.
const WAIT: Duration = Duration::from_secs(30);
/// How often it is written down how far a backfill has come.
const SAVED_EVERY: Duration = Duration::from_secs(10);
/// How many backfills one process runs at once.
const AT_ONCE: usize = 32;
/// How long a backfill waits when others have all places, or when the loader has not come to its due times.
const LATER: Duration = Duration::from_secs(2);

/// Runs backfills.
pub(crate) struct RunBackfills {
    manager: Manager,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    /// Cancelled when the process stops: a backfill goes on elsewhere then.
    stopping: CancellationToken,
    places: Semaphore,
}

/// A backfill that is run.
struct Backfill<'a> {
    with: &'a RunBackfills,
    attempt: &'a Attempt,
    order: Order,
    progress: Progress,
    /// The due times under way, each with the trigger or the job whose end is waited for.
    under_way: BTreeMap<Timestamp, JobId>,
    /// How many due times in a row were refused for a reason that is the user's to mend.
    errors: u32,
    saved_at: Instant,
    /// Whether it has come further since.
    is_ahead: bool,
}

#[async_trait]
impl Handler for RunBackfills {
    async fn run(&self, attempt: Attempt) -> Result<Option<Json>, HandlerError> {
        let text = attempt.job.payload.as_ref().map_or("null", Json::as_str);
        let order: Order = serde_json::from_str(text)
            .map_err(|error| HandlerError::permanent("unreadable", format!("this is no backfill: {error}")))?;
        let busy = || HandlerError::postponed("busy", "as many backfills run as may", LATER);
        let _place = self.places.try_acquire().map_err(|_| busy())?;
        let mut ending = attempt.clone();
        // Whatever it was doing, the next attempt finds out what was done of it.
        tokio::select! {
            report = self.backfill(order, &attempt) => Ok(Json::of(&report?).ok()),
            why = ending.ended() => Err(HandlerError::retryable("ended", format!("it was ended: {why:?}"))),
            () = self.stopping.cancelled() => Err(stopping()),
        }
    }
}

impl RunBackfills {
    pub(crate) fn new(
        manager: Manager,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        stopping: CancellationToken,
    ) -> Self {
        Self { manager, store, clock, stopping, places: Semaphore::new(AT_ONCE) }
    }

    async fn backfill(&self, order: Order, attempt: &Attempt) -> Result<BackfillReport, HandlerError> {
        if let Err(error) = progress::sweep(&self.store).await {
            tracing::debug!(%error, "records of former backfills are left for later");
        }
        let progress = Progress::load(&*self.store, &attempt.job.id, &order).await.map_err(later)?;
        let (under_way, errors, saved_at, is_ahead) = (BTreeMap::new(), 0, Instant::now(), false);
        let mut backfill = Backfill { with: self, attempt, order, progress, under_way, errors, saved_at, is_ahead };
        backfill.resume().await?;
        while backfill.run_page().await? {}
        while !backfill.under_way.is_empty() {
            backfill.wait_for_ends().await?;
        }
        Ok(backfill.progress.report)
    }
}

impl Backfill<'_> {
    /// Takes up what was under way when it was last written down.
    async fn resume(&mut self) -> Result<(), HandlerError> {
        let open = std::mem::take(&mut self.progress.open);
        for (due, standing) in open.iter().zip(self.standings(&open).await?) {
            self.settle(*due, standing);
        }
        Ok(())
    }

    /// Runs the next page of due times; returns false after the last one.
    async fn run_page(&mut self) -> Result<bool, HandlerError> {
        // Read before the triggers: what the loader has passed by then has its trigger, or gets none.
        let schedule = self.schedule().await?;
        let unreadable =
            |why| HandlerError::permanent("unreadable", format!("the schedule cannot be read any more: {why}"));
        let timetable = schedule.timetable().map_err(unreadable)?;
        let after = Timestamp::from_millis(self.progress.next.as_millis() - 1);
        let page = timetable.due_after(after).take_while(|due| *due <= self.order.to).take(PAGE);
        let mut page: Vec<Timestamp> = page.collect();
        if page.is_empty() {
            return Ok(false);
        }
        page.retain(|due| schedule.load_at().is_none_or(|next| *due < next));
        if page.is_empty() {
            self.save().await?;
            return Err(HandlerError::postponed("loader", "these due times may still run by themselves", LATER));
        }
        let standings = self.standings_in_turn(&page).await?;
        let mut coming = page.into_iter().zip(standings).peekable();
        while coming.peek().is_some() {
            let mut batch = Vec::new();
            while let Some((due, standing)) = coming.next_if(|(_, standing)| {
                !matches!(standing, Standing::ToRun(_))
                    || self.under_way.len() + batch.len() < self.order.max_concurrent
            }) {
                self.progress.next = due.plus(Duration::from_millis(1));
                match standing {
                    Standing::ToRun(former) => batch.push((due, former)),
                    other => self.settle(due, other),
                }
            }
            self.make(batch).await?;
            self.tell();
            if coming.peek().is_some() {
                self.wait_for_ends().await?;
            }
        }
        self.save_sometimes().await?;
        Ok(true)
    }

    /// Makes triggers for due times, in the place of those that have failed.
    async fn make(&mut self, batch: Vec<(Timestamp, Option<Box<Versioned>>)>) -> Result<(), HandlerError> {
        if batch.is_empty() {
            return Ok(());
        }
        let schedule = self.schedule().await?;
        let (due, failed): (Vec<Timestamp>, Vec<_>) = batch.into_iter().unzip();
        let failed: Vec<Versioned> = failed.into_iter().flatten().map(|failed| *failed).collect();
        let (manager, now, id) = (&self.with.manager, self.with.clock.now(), &self.attempt.job.id);
        if !failed.is_empty() {
            // Another backfill may have been first.
            for removed in manager.remove(&failed).await {
                removed.map_err(later)?;
            }
        }
        let job = |due: &Timestamp| Trigger::backfilled(&schedule, *due, id.clone(), now).into_job(&schedule);
        let jobs: Result<Vec<_>, _> = due.iter().map(job).collect();
        let jobs = jobs.map_err(|error| HandlerError::permanent("unwritable", error.to_string()))?;
        for (due, made) in due.into_iter().zip(manager.submit_own(&Caller::system("scheduler"), jobs).await) {
            match made {
                // It was made before, by this backfill or by another one.
                Ok(own) => {
                    self.is_ahead = true;
                    self.under_way.insert(due, own.id);
                }
                Err(error) => return Err(later(error)),
            }
        }
        Ok(())
    }

    /// Waits until a due time has ended that is under way.
    async fn wait_for_ends(&mut self) -> Result<(), HandlerError> {
        let before = self.under_way.len();
        while self.under_way.len() == before {
            let unsaved = SAVED_EVERY.saturating_sub(self.saved_at.elapsed());
            let (due, ids): (Vec<Timestamp>, Vec<JobId>) = self.under_way.clone().into_iter().unzip();
            let ended = self.wait_for_any(&ids, if self.is_ahead { unsaved } else { WAIT }).await?;
            let ended: Vec<Timestamp> =
                due.into_iter().zip(ended).filter(|(_, ended)| *ended).map(|(due, _)| due).collect();
            for (due, standing) in ended.iter().zip(self.standings(&ended).await?) {
                self.settle(*due, standing);
            }
            self.tell();
            self.save_sometimes().await?;
        }
        Ok(())
    }

    /// Returns where due times stand, once none is under way behind one that is still to run: where only some of those
    /// that were to be made together were made, the others would be too many.
    async fn standings_in_turn(&self, due: &[Timestamp]) -> Result<Vec<Standing>, HandlerError> {
        loop {
            let standings = self.standings(due).await?;
            let behind = standings.iter().skip_while(|standing| !matches!(standing, Standing::ToRun(_)));
            let under_way: Vec<JobId> = behind.filter_map(Standing::under_way).cloned().collect();
            if under_way.is_empty() {
                return Ok(standings);
            }
            self.wait_for_any(&under_way, WAIT).await?;
        }
    }

    /// Waits until one of these has ended, for `wait` at most, and returns which have.
    async fn wait_for_any(&self, ids: &[JobId], wait: Duration) -> Result<Vec<bool>, HandlerError> {
        let began = Instant::now();
        let found = self.with.manager.wait_for_any(ids, wait).await.map_err(later)?;
        let has_ended =
            |found: &Option<Versioned>| found.as_ref().is_none_or(|found| found.job.state.name().is_final());
        let ended: Vec<bool> = found.iter().map(has_ended).collect();
        // Only a manager that stops waits for less.
        if ended.contains(&true) || began.elapsed() >= wait { Ok(ended) } else { Err(stopping()) }
    }

    /// Takes up or counts a due time that has a trigger.
    fn settle(&mut self, due: Timestamp, standing: Standing) {
        let report = &mut self.progress.report;
        self.is_ahead = true;
        self.under_way.remove(&due);
        match standing {
            Standing::UnderWay(id) => drop(self.under_way.insert(due, id)),
            Standing::Already => report.already += 1,
            Standing::Ended(fate, id) => {
                report.count(fate, id);
                self.errors = if fate == Fate::Consumed { self.errors.saturating_add(1) } else { 0 };
            }
            // It had a trigger, of which nothing is known any more, or which has failed for another backfill.
            Standing::ToRun(_) => report.count(Fate::Failed, trigger::backfilled_id(&self.order.schedule_id, due)),
        }
    }

    async fn standings(&self, due: &[Timestamp]) -> Result<Vec<Standing>, HandlerError> {
        let of = (&self.order.schedule_id, &self.attempt.job.id);
        standings((&self.with.manager, &*self.with.store), of, due).await.map_err(later)
    }

    /// Returns the schedule as it is now, if it still is the one that the backfill was asked for.
    async fn schedule(&self) -> Result<Arc<Schedule>, HandlerError> {
        let id = std::slice::from_ref(&self.order.schedule_id);
        let found = self.with.store.schedules(id).await.map_err(later)?.into_iter().next().flatten();
        let stopped = |code: &str, why: &str| {
            let done = self.progress.report.done();
            HandlerError::permanent(code, format!("{why}; {done} of {} due times are done", self.order.due))
        };
        let Some(found) = found else { return Err(stopped("schedule_removed", "the schedule was removed")) };
        if !self.order.is_for(&found.schedule) {
            return Err(stopped("schedule_changed", "the schedule was changed"));
        }
        let limit = found.schedule.definition.pause_after_errors;
        if limit.is_some_and(|limit| self.errors >= limit) {
            return Err(stopped("errors", &format!("{} errors in a row", self.errors)));
        }
        Ok(found.schedule)
    }

    /// Reports how far it has come.
    fn tell(&self) {
        let (report, under_way) = (&self.progress.report, self.under_way.len());
        let (done, due) = (report.done(), self.order.due.max(1));
        let failed = report.failed + report.consumed;
        let message = format!("{done} of {due} due times are done, {under_way} are under way, {failed} failed");
        let percent = (100.0 * done as f64 / due as f64).min(100.0);
        self.attempt.progress(crate::job::Progress { percent: Some(percent), message: Some(message) });
    }

    async fn save_sometimes(&mut self) -> Result<(), HandlerError> {
        let is_time = self.is_ahead && self.saved_at.elapsed() >= SAVED_EVERY;
        if is_time { self.save().await } else { Ok(()) }
    }

    async fn save(&mut self) -> Result<(), HandlerError> {
        let progress = Progress { open: self.under_way.keys().copied().collect(), ..self.progress.clone() };
        progress.save(&*self.with.store, &self.attempt.job.id).await.map_err(later)?;
        (self.saved_at, self.is_ahead) = (Instant::now(), false);
        Ok(())
    }
}

fn stopping() -> HandlerError {
    HandlerError::postponed("stopping", "the process stops", Duration::ZERO)
}

fn later(error: impl std::fmt::Display) -> HandlerError {
    HandlerError::retryable("store", error.to_string())
}
