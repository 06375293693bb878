//! The loader: makes the triggers of schedules that are due soon.
//!
//! For each page of such schedules the triggers are made first, and then the schedules are written with how far they
//! have come, under the versions that were read. A loader that ends between the two, or finds that somebody was
//! first, has made triggers under ids that follow from the schedule and the due time: whoever comes next makes the
//! same ones, of which there is one each. A trigger that was made for a schedule that has changed since is judged when
//! it is due ([`super::perform`]).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::lag::Lags;
use super::trigger::{self, Trigger};
use crate::clock::ticks::{EVERY_SECOND, Moment, Ticks, TicksError};
use crate::clock::{Clock, Timestamp};
use crate::job::QueueName;
use crate::manager::{Caller, Manager, ManagerError, NewJob};
use crate::schedule::{Plan, Schedule, SchedulePause, plan};
use crate::store::{DueSchedules, Refresh, ScheduleWrite, Store, StoreError, StoredSchedule};

/// How far ahead of their time triggers are made.
const AHEAD: Duration = Duration::from_secs(10);
/// How long a loader waits for a tick at the longest. Ticks go by the wall clock, and stay away while it is behind.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How many triggers of one schedule are made at a time.
const MAX_TRIGGERS: usize = 100;
/// How many triggers are submitted with one call.
const BATCH: usize = 10_000;

/// The loader of one process.
pub(super) struct Loader {
    pub(super) manager: Manager,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    /// The notification that a schedule has changed, and may be due before the next look.
    pub(super) changed: Arc<Notify>,
    /// How many schedules are loaded at a time.
    pub(super) page: usize,
    pub(super) lags: Lags,
}

/// A schedule of a page, with what follows for it.
struct Loaded {
    found: StoredSchedule,
    then: Then,
    /// Whether every trigger is stored, so that the schedule may go on.
    is_made: bool,
}

/// What becomes of a schedule.
enum Then {
    /// Its triggers are made, and it goes on.
    GoOn(Plan),
    /// It is paused: a period that could be read when it was stored cannot be read any more, such as one in a time zone
    /// that was given up. It would otherwise be in every page from now on.
    Pause(SchedulePause),
}

impl Loader {
    /// Loads until `stopping` is cancelled.
    pub(super) async fn run(self, stopping: CancellationToken) {
        let caller = Caller::system("scheduler");
        let mut failing = false;
        let ticks = match self.ticks().await {
            Ok(ticks) => Some(ticks),
            Err(error) => {
                tracing::warn!(%error, "schedules are looked for every {} s", LONGEST_WAIT.as_secs());
                None
            }
        };
        while !stopping.is_cancelled() {
            let loaded = stopping.run_until_cancelled(self.load(&caller)).await;
            let is_full = match loaded {
                None => break,
                Some(Ok(Page { found, advanced })) => {
                    failing = false;
                    found >= self.page && advanced > 0
                }
                Some(Err(error)) => {
                    if !failing {
                        tracing::warn!(%error, "schedules cannot be loaded; trying again");
                    }
                    failing = true;
                    false
                }
            };
            if !is_full {
                tokio::select! {
                    () = self.changed.notified() => {}
                    () = tokio::time::sleep(LONGEST_WAIT) => {}
                    () = stopping.cancelled() => {}
                }
            }
        }
        if let Some(ticks) = ticks {
            ticks.stop().await;
        }
    }

    /// Returns ticks that set off a look every second.
    async fn ticks(&self) -> Result<Ticks, TicksError> {
        let ticks = Ticks::new().await?;
        let changed = Arc::clone(&self.changed);
        let look = move || -> Moment {
            changed.notify_one();
            Box::pin(std::future::ready(()))
        };
        ticks.add(EVERY_SECOND, look).await?;
        ticks.start().await?;
        Ok(ticks)
    }

    /// Makes the triggers of one page of schedules.
    async fn load(&self, caller: &Caller) -> Result<Page, StoreError> {
        let now = self.clock.now();
        let until = now.plus(AHEAD);
        let queue = QueueName::system(trigger::QUEUE);
        metrics::gauge!("leasehold_loaders").set(self.manager.sharers(&queue) as f64);
        let partitions = self.manager.own_partitions(&queue);
        if partitions.is_empty() {
            self.lags.show(&[], now);
            return Ok(Page { found: 0, advanced: 0 });
        }
        let due = DueSchedules { partitions, until, limit: self.page };
        let found = self.store.due_schedules(&due).await?;
        let page = found.len();
        self.lags.show(&found, now);
        let mut loaded: Vec<Loaded> = found.into_iter().map(|found| Loaded::of(found, caller, now, until)).collect();
        self.make_triggers(caller, &mut loaded).await;
        Ok(Page { found: page, advanced: self.advance(loaded).await? })
    }

    /// Submits the triggers of a page.
    async fn make_triggers(&self, caller: &Caller, loaded: &mut [Loaded]) {
        let mut jobs: Vec<(usize, NewJob)> = Vec::new();
        for (place, one) in loaded.iter_mut().enumerate() {
            match one.jobs() {
                Ok(new) => jobs.extend(new.into_iter().map(|job| (place, job))),
                Err(error) => {
                    tracing::error!(%error, schedule = %one.found.schedule.id, "a trigger cannot be made");
                    one.is_made = false;
                }
            }
        }
        while !jobs.is_empty() {
            let rest = jobs.split_off(jobs.len().min(BATCH));
            let (places, batch): (Vec<usize>, Vec<NewJob>) = std::mem::replace(&mut jobs, rest).into_iter().unzip();
            let submitted = self.manager.submit(caller, batch).await;
            let mut made = 0;
            for (place, answer) in places.into_iter().zip(submitted) {
                match answer {
                    Ok(answer) => made += u64::from(answer.created),
                    // It was made before, for an earlier revision of the schedule.
                    Err(ManagerError::SubmissionDiffers(_)) => {}
                    // It has come too late meanwhile, which the next plan finds.
                    Err(error) => {
                        let schedule = &loaded[place].found.schedule.id;
                        tracing::debug!(%error, %schedule, "a trigger is not made yet");
                        loaded[place].is_made = false;
                    }
                }
            }
            metrics::counter!("leasehold_triggers_loaded_total").increment(made);
        }
    }

    /// Writes how far the schedules have come whose triggers are made; returns how many were written.
    async fn advance(&self, loaded: Vec<Loaded>) -> Result<usize, StoreError> {
        let writes: Vec<ScheduleWrite> = loaded.iter().filter(|one| one.is_made).map(Loaded::write).collect();
        if writes.is_empty() {
            return Ok(0);
        }
        // Of a conflict nothing follows: who was first has changed the schedule, or loaded it as well.
        let written = self.store.write_schedules(writes).await;
        let made = loaded.iter().filter(|one| one.is_made).zip(&written).filter(|(_, written)| written.is_ok());
        metrics::counter!("leasehold_triggers_missed_total").increment(made.map(|(one, _)| one.missed()).sum());
        if !self.store.has_realtime_search() {
            self.store.refresh(Refresh::Schedules).await?;
        }
        Ok(written.iter().filter(|written| written.is_ok()).count())
    }
}

/// What became of a page.
struct Page {
    /// How many schedules it has.
    found: usize,
    /// How many of them were written.
    advanced: usize,
}

impl Loaded {
    /// Plans a schedule that was found.
    fn of(found: StoredSchedule, caller: &Caller, now: Timestamp, until: Timestamp) -> Self {
        let schedule = &found.schedule;
        let mut faults = Vec::new();
        let then = match schedule.definition.timetable(&schedule.id, &mut faults) {
            Some(timetable) => Then::GoOn(plan(schedule, &timetable, now, until, MAX_TRIGGERS)),
            None => {
                let why: Vec<String> = faults.iter().map(ToString::to_string).collect();
                let reason = format!("it cannot be read any more: {}", why.join("; "));
                tracing::error!(schedule = %schedule.id, reason, "a schedule is paused");
                Then::Pause(SchedulePause { at: now, by: caller.clone(), reason })
            }
        };
        Self { found, then, is_made: true }
    }

    fn plan(&self) -> Option<&Plan> {
        match &self.then {
            Then::GoOn(plan) => Some(plan),
            Then::Pause(_) => None,
        }
    }

    /// Returns the jobs of the triggers.
    fn jobs(&self) -> Result<Vec<NewJob>, serde_json::Error> {
        let schedule: &Schedule = &self.found.schedule;
        let mut previous = schedule.course.last_due_at;
        let trigger = |&due_at: &Timestamp| Trigger::of(schedule, due_at, previous.replace(due_at)).into_job(schedule);
        self.plan().into_iter().flat_map(|plan| &plan.triggers).map(trigger).collect()
    }

    fn write(&self) -> ScheduleWrite {
        let mut schedule = (*self.found.schedule).clone();
        match &self.then {
            Then::GoOn(plan) => schedule.course = plan.course.clone(),
            Then::Pause(pause) => {
                schedule.paused = Some(pause.clone());
                schedule.revision += 1;
            }
        }
        ScheduleWrite::Replace { schedule: Arc::new(schedule), expected: self.found.version }
    }

    /// Returns how many due times the plan found to be missed.
    fn missed(&self) -> u64 {
        self.plan().map_or(0, |plan| plan.missed)
    }
}
