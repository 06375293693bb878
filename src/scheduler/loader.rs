//! The loader: makes the triggers of schedules that are due soon.
//!
//! For each page of such schedules the triggers are made first, and then the schedules are written with how far they
//! have come, under the versions that were read. A loader that ends between the two, or finds that somebody was
//! first, has made triggers under ids that follow from the schedule and the due time: whoever comes next makes the
//! same ones, of which there is one each. A trigger that was made for a schedule that has changed since is judged when
//! it is due ([`super::perform`]).
//!
//! In the same way the notices in the outboxes of schedules are handed on: first their deliveries are submitted, and
//! the write that lets the schedule go on takes the notices out. Where they cannot be submitted the outbox rests, so
//! that it keeps nobody else waiting.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lag::Lags;
use super::trigger::{self, Trigger};
use super::troubles::Troubles;
use crate::clock::ticks::{EVERY_SECOND, Moment, Ticks, TicksError};
use crate::clock::{Clock, Timestamp};
use crate::job::{PartitionSet, QueueName};
use crate::manager::{Caller, Manager, ManagerError, NewJob, Topic};
use crate::notify::ScheduleNotifier;
use crate::schedule::{Course, LOADED_AHEAD, Occasion, Plan, SCHEDULER, Schedule, plan};
use crate::store::{DueSchedules, Refresh, ScheduleWrite, Store, StoreError, StoredSchedule};

/// How long a loader waits for a tick at the longest. Ticks go by the wall clock, and stay away while it is behind.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How many triggers of one schedule are made at a time.
const MAX_TRIGGERS: usize = 100;
/// How many triggers are submitted with one call.
const BATCH: usize = 10_000;

/// How far a look reaches that has found nothing, and how long none follows it then.
const REST: Duration = Duration::from_secs(4);
/// How long after a change of schedules a look may not find it yet.
const UNSEEN: Duration = Duration::from_secs(3);

/// What a loader goes by that makes no looks for a while.
#[derive(Clone, Copy, PartialEq)]
struct Basis {
    partitions: PartitionSet,
    /// The number of the changes of schedules that are known.
    changes: u64,
}

/// Why a loader makes no looks for a while: nothing is due, and nothing has changed since.
#[derive(Default)]
pub(super) struct Rest {
    basis: Option<(Basis, Instant)>,
    /// Whether the last look found nothing.
    was_empty: bool,
    /// The times between which nothing is looked for.
    between: Option<(Timestamp, Timestamp)>,
}

impl Rest {
    /// Takes over what a look goes by now. Returns whether none is needed.
    fn is_needless(&mut self, basis: Option<Basis>, now: Timestamp) -> bool {
        if self.basis.map(|(known, _)| known) != basis {
            *self = Self { basis: basis.map(|basis| (basis, Instant::now())), ..Self::default() };
        }
        self.between.is_some_and(|(from, until)| from <= now && now < until)
    }

    /// Returns whether one may begin: a look finds all that was changed, and the last one found nothing.
    fn may_begin(&self) -> bool {
        self.was_empty && self.basis.is_some_and(|(_, since)| since.elapsed() >= UNSEEN)
    }
}

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
    pub(super) notifier: ScheduleNotifier,
    pub(super) troubles: Troubles,
    pub(super) rest: Mutex<Rest>,
}

/// A schedule of a page, with what follows for it.
struct Loaded {
    found: StoredSchedule,
    then: Then,
    /// Whether every trigger is stored, so that the schedule may go on.
    is_made: bool,
    /// Whether the notices in its outbox are handed on; `None` when it is not the time for that.
    is_handed_on: Option<bool>,
}

/// What becomes of a schedule.
enum Then {
    /// Its triggers are made, and it goes on.
    GoOn(Plan),
    /// It is paused, for this reason: a period that could be read when it was stored cannot be read any more, such as
    /// one in a time zone that was given up. It would otherwise be in every page from now on.
    Pause(String),
    /// It is paused or has no more due times, and stays where it is: only its outbox has to be looked at.
    Stay,
}

impl Loader {
    /// Loads until `stopping` is cancelled.
    pub(super) async fn run(self, stopping: CancellationToken) {
        let caller = Caller::system(SCHEDULER);
        let (mut failing, mut is_holding_back) = (false, false);
        let ticks = match self.ticks().await {
            Ok(ticks) => Some(ticks),
            Err(error) => {
                tracing::warn!(%error, "schedules are looked for every {} s", LONGEST_WAIT.as_secs());
                None
            }
        };
        while !stopping.is_cancelled() {
            let loaded = stopping.run_until_cancelled(self.load(&caller)).await;
            let is_through = match loaded {
                None => break,
                Some(Ok(Page { found, advanced, has_missed, not_handed_on })) => {
                    failing = false;
                    if let Some(error) = not_handed_on.as_ref().filter(|_| !is_holding_back) {
                        tracing::warn!(%error, "notifications of schedules wait for the store");
                    }
                    is_holding_back = not_handed_on.is_some();
                    // What comes after due times that were missed is made next.
                    advanced == 0 || !(found >= self.page || has_missed)
                }
                Some(Err(error)) => {
                    if !failing {
                        tracing::warn!(%error, "schedules cannot be loaded; trying again");
                    }
                    failing = true;
                    true
                }
            };
            if is_through {
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
        if self.manager.clock_is_far_off() {
            // No due time has come for certain, and what is performed is not undone.
            return Ok(Page::default());
        }
        let now = self.clock.now();
        let until = now.plus(LOADED_AHEAD);
        self.troubles.look_again(&*self.store, now).await?;
        let queue = QueueName::system(trigger::QUEUE);
        metrics::gauge!("leasehold_loaders").set(self.manager.sharers(&queue) as f64);
        let partitions = self.manager.own_partitions(&queue);
        if partitions.is_empty() {
            self.lags.show(&[], now);
            return Ok(Page::default());
        }
        let basis = self.manager.changes_of(Topic::Schedules).map(|changes| Basis { partitions, changes });
        if self.rest.lock().is_needless(basis, now) {
            self.lags.show(&[], now);
            return Ok(Page::default());
        }
        // One search for what is due a little later is enough where there is nothing.
        if self.rest.lock().may_begin() {
            let later = DueSchedules { partitions, until: until.plus(REST), limit: 1 };
            if self.store.due_schedules(&later).await?.is_empty() {
                self.rest.lock().between = Some((now, now.plus(REST)));
                self.lags.show(&[], now);
                return Ok(Page::default());
            }
        }
        let due = DueSchedules { partitions, until, limit: self.page };
        let found = self.store.due_schedules(&due).await?;
        let page = found.len();
        self.rest.lock().was_empty = page == 0;
        self.lags.show(&found, now);
        let mut loaded: Vec<Loaded> = found.into_iter().map(|found| Loaded::of(found, now, until)).collect();
        self.make_triggers(caller, &mut loaded).await;
        let not_handed_on = self.hand_on(&mut loaded, now).await;
        let has_missed = loaded.iter().any(|one| one.missed() > 0);
        let advanced = self.advance(caller, loaded, now).await?;
        Ok(Page { found: page, advanced, has_missed, not_handed_on })
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
            let submitted = self.manager.submit_own(caller, batch).await;
            let mut made = 0;
            for (place, answer) in places.into_iter().zip(submitted) {
                match answer {
                    Ok(answer) => made += u64::from(answer.created),
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

    /// Hands on the notices of those schedules of a page whose outboxes have waited for long enough. Returns the first
    /// failure.
    async fn hand_on(&self, loaded: &mut [Loaded], now: Timestamp) -> Option<ManagerError> {
        let mut full: Vec<&mut Loaded> = loaded.iter_mut().filter(|one| one.is_to_be_handed_on(now)).collect();
        let schedules: Vec<Arc<Schedule>> = full.iter().map(|one| Arc::clone(&one.found.schedule)).collect();
        let schedules: Vec<&Schedule> = schedules.iter().map(|schedule| &**schedule).collect();
        let (are_handed_on, failure) = self.notifier.hand_on(&self.manager, &schedules).await;
        for (one, is_handed_on) in full.iter_mut().zip(are_handed_on) {
            one.is_handed_on = Some(is_handed_on);
        }
        failure
    }

    /// Writes how far the schedules have come whose triggers are made, and what has become of outboxes; returns how
    /// many were written.
    async fn advance(&self, caller: &Caller, loaded: Vec<Loaded>, now: Timestamp) -> Result<usize, StoreError> {
        let changed: Vec<&Loaded> = loaded.iter().filter(|one| one.has_changed()).collect();
        if changed.is_empty() {
            return Ok(0);
        }
        let after: Vec<Arc<Schedule>> =
            changed.iter().map(|one| Arc::new(one.after(caller, now, &self.notifier))).collect();
        let writes = changed
            .iter()
            .zip(&after)
            .map(|(one, after)| ScheduleWrite::Replace { schedule: Arc::clone(after), expected: one.found.version });
        // Of a conflict nothing follows: who was first has changed the schedule, or loaded it as well.
        let answers = self.store.write_schedules(writes.collect()).await;
        let written = || changed.iter().zip(&after).zip(&answers).filter(|(_, answer)| answer.is_ok());
        metrics::counter!("leasehold_triggers_missed_total")
            .increment(written().map(|((one, _), _)| one.missed()).sum());
        self.troubles.note(written().map(|((_, after), _)| &**after));
        if !self.store.has_realtime_search() {
            self.store.refresh(Refresh::Schedules).await?;
        }
        Ok(written().count())
    }
}

/// What became of a page.
#[derive(Default)]
struct Page {
    /// How many schedules it has.
    found: usize,
    /// How many of them were written.
    advanced: usize,
    /// Whether any of them has missed due times.
    has_missed: bool,
    /// Why notices were not handed on.
    not_handed_on: Option<ManagerError>,
}

impl Loaded {
    /// Plans a schedule that was found.
    fn of(found: StoredSchedule, now: Timestamp, until: Timestamp) -> Self {
        let schedule = &found.schedule;
        let then = match schedule.next_due().map(|_| schedule.timetable()) {
            None => Then::Stay,
            Some(Ok(timetable)) => Then::GoOn(plan(schedule, &timetable, now, until, MAX_TRIGGERS)),
            Some(Err(why)) => {
                let reason = format!("it cannot be read any more: {why}");
                tracing::error!(schedule = %schedule.id, reason, "a schedule is paused");
                Then::Pause(reason)
            }
        };
        Self { found, then, is_made: true, is_handed_on: None }
    }

    fn plan(&self) -> Option<&Plan> {
        match &self.then {
            Then::GoOn(plan) => Some(plan),
            Then::Pause(_) | Then::Stay => None,
        }
    }

    /// Returns whether the notices in the outbox are to be handed on now. What a downtime has missed is told of when
    /// all of it is known.
    fn is_to_be_handed_on(&self, now: Timestamp) -> bool {
        let schedule = &self.found.schedule;
        let next = self.plan().and_then(|plan| plan.course.next_due_at);
        let is_behind = next.is_some_and(|next| schedule.is_too_late(next, now));
        !is_behind && schedule.course.outbox.hand_on_at().is_some_and(|at| at <= now)
    }

    /// Returns the jobs of the triggers.
    fn jobs(&self) -> Result<Vec<NewJob>, serde_json::Error> {
        let schedule: &Schedule = &self.found.schedule;
        let mut previous = schedule.course.last_due_at;
        let trigger = |&due_at: &Timestamp| Trigger::of(schedule, due_at, previous.replace(due_at)).into_job(schedule);
        self.plan().into_iter().flat_map(|plan| &plan.triggers).map(trigger).collect()
    }

    /// Returns whether there is something to write.
    fn has_changed(&self) -> bool {
        let goes_on = match &self.then {
            Then::GoOn(plan) => plan.course != self.found.schedule.course,
            Then::Pause(_) => true,
            Then::Stay => false,
        };
        self.is_handed_on.is_some() || (self.is_made && goes_on)
    }

    /// Returns the schedule as it is to be written.
    fn after(&self, caller: &Caller, now: Timestamp, notifier: &ScheduleNotifier) -> Schedule {
        let mut schedule = (*self.found.schedule).clone();
        match self.is_handed_on {
            Some(true) => schedule.course.outbox.handed_on(now),
            Some(false) => schedule.course.outbox.put_off(now),
            None => {}
        }
        if !self.is_made {
            return schedule;
        }
        let definition = Arc::clone(&schedule.definition);
        let is_wanted = |event| notifier.is_wanted(&definition, event);
        let occasion = Occasion { at: now, by: &caller.name, is_wanted: &is_wanted };
        match &self.then {
            Then::GoOn(plan) => {
                schedule.course = Course { outbox: schedule.course.outbox, ..plan.course.clone() };
                if let Some(missed) = &plan.missed {
                    schedule.note_missed(missed, &occasion);
                }
            }
            Then::Pause(reason) => schedule.pause_by_system(reason.clone(), &occasion),
            Then::Stay => {}
        }
        schedule
    }

    /// Returns how many due times the plan found to be missed.
    fn missed(&self) -> u64 {
        let plan = self.plan().filter(|_| self.is_made);
        plan.and_then(|plan| plan.missed.as_ref()).map_or(0, |missed| missed.count)
    }
}
