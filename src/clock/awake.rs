//! Awake time: how much of the time a process was awake, so that it could hear others and be heard.
//!
//! What is promised for a while (a lease, a time limit) must not end while nobody could do anything about it: while the
//! machine sleeps, the process is stopped, or a virtual machine is paused. None of these is asked for. One thread
//! moves a counter on every [`TICK`], by what has passed on the monotonic clock and by [`LONGEST_STEP`] at most:
//! whatever kept it from running for longer has not counted. Where it runs and others wait for the processor, time
//! counts.
//!
//! Times in documents are those of the wall clock. [`AwakeTime`] says how much awake time had passed at which of them:
//! a time that the wall clock has skipped has no awake time in it, and one that it was kept from showing has none
//! either. So a jump of the wall clock ends nothing early. Where the clock was set back, times that it shows once more
//! are those of the second time: what was written the first time counts as younger than it is.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Clock, Timestamp, millis, signed_millis};

/// How often the counter is moved on.
pub const TICK: Duration = Duration::from_millis(100);
/// By how much the counter is moved on at most. A longer time between two ticks is a gap.
pub const LONGEST_STEP: Duration = Duration::from_secs(1);
/// How many marks are kept at most.
const MAX_MARKS: usize = 256;
/// Marks that are older than this go first when there are too many, in milliseconds of awake time.
const OLD: i64 = 24 * 60 * 60 * 1_000;
/// By how much what is known of an old time may be wrong, in millionths of its age, before younger marks go.
const WRONG_IN_OLD: i128 = 125_000;
/// How far a mark may be from that line, in milliseconds, to be left out: what times cut off to the millisecond are
/// short of.
const ON_THE_LINE: i64 = 3;

/// A moment, by the awake time that has passed. Only moments of one [`AwakeTime`] can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AwakeInstant(i64);

impl AwakeInstant {
    /// Returns the moment that is so much awake time later, in whole milliseconds.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(signed_millis(duration)))
    }

    /// Returns the awake time since `earlier`; zero when this is not later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// How much awake time had passed when the clock showed a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The time by the clock.
    pub at: Timestamp,
    /// The awake time, in milliseconds, counted from any moment.
    pub awake_ms: i64,
}

/// How much awake time had passed at each time by a clock, as far as it is known: between two marks it has passed
/// evenly, and before the first one all time was awake time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwakeTime {
    /// The marks by time, at least one.
    marks: Vec<Mark>,
    /// When this process began.
    began: AwakeInstant,
    /// When the latest gap was over.
    resumed: Option<AwakeInstant>,
}

impl Mark {
    /// The marks of those of whom nothing is known: no time until now was awake time.
    pub const UNKNOWN: Self = Self { at: Timestamp::MIN, awake_ms: 0 };

    /// Returns the latest of these marks, as many as are kept; none where they are not in order.
    #[must_use]
    pub fn in_order(mut marks: Vec<Self>) -> Vec<Self> {
        let is_in_order = marks.windows(2).all(|two| two[0].at <= two[1].at && two[0].awake_ms <= two[1].awake_ms);
        match is_in_order {
            true => marks.split_off(marks.len().saturating_sub(MAX_MARKS)),
            false => Vec::new(),
        }
    }
}

impl AwakeTime {
    /// Returns the awake time of a process that was awake all the time until now.
    #[must_use]
    pub fn whole(now: Timestamp) -> Self {
        Self { marks: vec![Mark { at: now, awake_ms: 0 }], began: AwakeInstant(0), resumed: None }
    }

    /// Returns the awake time of a process that begins now: what was before it is a gap.
    #[must_use]
    pub fn beginning(now: Timestamp) -> Self {
        let whole = Self::whole(now);
        Self { resumed: Some(whole.now()), ..whole }
    }

    /// Goes on to `now`, after so much awake time.
    pub fn go_on(&mut self, now: Timestamp, awake: Duration) {
        let last = self.last();
        let awake_ms = last.awake_ms.saturating_add(signed_millis(awake));
        let is_set_back = last.at.since(now) > LONGEST_STEP;
        if is_set_back {
            go_back(&mut self.marks, now, awake_ms);
        }
        // What two threads have read from the clock may be in another order.
        self.marks.push(Mark { at: now.max(self.last().at), awake_ms });
        if is_set_back {
            self.resume();
        }
        self.thin_out();
    }

    /// Takes note of that a gap is over.
    pub fn resume(&mut self) {
        self.resumed = Some(self.now());
    }

    /// Returns the moment of the last mark, which is the present one at the last tick.
    #[must_use]
    pub fn now(&self) -> AwakeInstant {
        AwakeInstant(self.last().awake_ms)
    }

    /// Returns when the latest gap was over, if there was one.
    #[must_use]
    pub const fn resumed(&self) -> Option<AwakeInstant> {
        self.resumed
    }

    /// Returns since when the clock has not been set back, as far as it is known: a time that is to come was written
    /// before this moment. That is when it was last set back, by the marks of this process or of those before it, or
    /// else when this process began.
    #[must_use]
    pub fn in_order_since(&self) -> AwakeInstant {
        let is_step = |two: &&[Mark]| {
            two[0].at == two[1].at && two[1].awake_ms.saturating_sub(two[0].awake_ms) > signed_millis(LONGEST_STEP)
        };
        self.marks.windows(2).rev().find(is_step).map_or(self.began, |two| AwakeInstant(two[1].awake_ms))
    }

    /// Returns the moment at which the clock showed this time, the latest one if it did so for a while; a time that is
    /// to come counts as now.
    #[must_use]
    pub fn at(&self, time: Timestamp) -> AwakeInstant {
        AwakeInstant(at(&self.marks, time))
    }

    /// Returns the awake time since the clock showed this time.
    #[must_use]
    pub fn since(&self, time: Timestamp) -> Duration {
        self.now().since(self.at(time))
    }

    /// Returns the marks, for a process that comes after this one.
    #[must_use]
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Returns this awake time from the moment `since` on only, after that of an earlier process, whose marks these
    /// are. What is between the two is a gap. Where all time was awake time, that of earlier processes was as well.
    #[must_use]
    pub fn after(&self, earlier: &[Mark], since: Option<AwakeInstant>) -> Self {
        if self.resumed.is_none() {
            return self.clone();
        }
        let began = since.map_or(self.began, |since| since.max(self.began)).0;
        let first = self.shown_at(began);
        let own = self.marks.iter().filter(|mark| mark.awake_ms > began).copied();
        let own = std::iter::once(Mark { at: first, awake_ms: began }).chain(own);
        let resumed = self.resumed.max(Some(AwakeInstant(began)));
        // Marks that are all to come were written by a clock that was wrong.
        let earlier = if earlier.first().is_some_and(|mark| mark.at > first) { &[Mark::UNKNOWN] } else { earlier };
        let mut joined = Self { marks: earlier.to_vec(), began: AwakeInstant(began), resumed };
        if let Some(last) = earlier.last() {
            let by = began.saturating_sub(last.awake_ms);
            joined.marks.iter_mut().for_each(|mark| mark.awake_ms = mark.awake_ms.saturating_add(by));
            joined.marks.retain(|mark| mark.at < first || last.at > first);
            if last.at > first {
                // The clock was set back between the two.
                go_back(&mut joined.marks, first, began);
            }
        }
        for mark in own {
            joined.marks.push(mark);
            joined.thin_out();
        }
        joined
    }

    /// Returns the time that the clock showed at a moment, the latest one if it was several.
    fn shown_at(&self, awake_ms: i64) -> Timestamp {
        let later = self.marks.partition_point(|mark| mark.awake_ms <= awake_ms);
        let (Some(before), Some(after)) = (later.checked_sub(1).map(|place| self.marks[place]), self.marks.get(later))
        else {
            return if later == 0 { self.marks[0].at } else { self.last().at };
        };
        let [whole, part] = [after.awake_ms, awake_ms].map(|moment| i128::from(moment) - i128::from(before.awake_ms));
        let passed = i128::from(after.at.as_millis()) - i128::from(before.at.as_millis());
        Timestamp::from_millis(before.at.as_millis() + i64::try_from(passed * part / whole).unwrap_or(0))
    }

    fn last(&self) -> Mark {
        self.marks[self.marks.len() - 1]
    }

    /// Leaves out the last mark but one if it says nothing, and the one that is missed least if there are too many.
    fn thin_out(&mut self) {
        let count = self.marks.len();
        if count >= 3 && self.off_the_line(count - 2) <= ON_THE_LINE {
            self.marks.remove(count - 2);
        }
        if self.marks.len() > MAX_MARKS
            && let Some(least) = self.least_missed()
        {
            self.marks.remove(least);
        }
    }

    /// Returns the mark without which times are wrong by the least part of their age: of the old ones, as long as that
    /// part is small. An error in proportion to the age moves the end of a lease by no more than that part of its term,
    /// and the marks between now and any age need only grow with the logarithm of the age.
    fn least_missed(&self) -> Option<usize> {
        let now = self.last().awake_ms;
        let inner = 1..self.marks.len() - 1;
        let old = inner.clone().filter(|place| now.saturating_sub(self.marks[place + 1].awake_ms) > OLD);
        let least = |(place, wrong): (usize, i128)| (wrong <= WRONG_IN_OLD).then_some(place);
        let missed = |place: usize| (place, self.wrong_without(place, now));
        old.map(missed)
            .min_by_key(|(_, wrong)| *wrong)
            .and_then(least)
            .or_else(|| inner.map(missed).min_by_key(|(_, wrong)| *wrong).map(|(place, _)| place))
    }

    /// Returns by how much a time between the neighbours of a mark can be wrong without it, in millionths of its age.
    ///
    /// The marks that were left out between the neighbours before count as well: whatever the course between the two
    /// was, with time that was awake and time that was not, it is no farther from the line than this.
    fn wrong_without(&self, place: usize, now: i64) -> i128 {
        let (before, after) = (self.marks[place - 1], self.marks[place + 1]);
        let passed = i128::from(after.at.as_millis()) - i128::from(before.at.as_millis());
        let awake = i128::from(after.awake_ms) - i128::from(before.awake_ms);
        let off = (awake * (passed - awake).abs() / passed.max(1)).min(awake);
        // A time that has just passed has the age of a second.
        let age = i128::from(now) - i128::from(after.awake_ms) + 1_000;
        off * 1_000_000 / age.max(1)
    }

    /// Returns how far a mark is from the line between its neighbours.
    fn off_the_line(&self, place: usize) -> i64 {
        let (before, mark, after) = (self.marks[place - 1], self.marks[place], self.marks[place + 1]);
        between(before, after, mark.at).abs_diff(mark.awake_ms).try_into().unwrap_or(i64::MAX)
    }
}

/// Forgets what the clock showed after `now`, to which it was set back at the moment `awake_ms`. It will show these
/// times once more, and a lease that was written then must not be taken for one of before. The last mark of before is
/// so long before the moment that the step can be told from what passes between two ticks.
fn go_back(marks: &mut Vec<Mark>, now: Timestamp, awake_ms: i64) {
    let before = at(marks, now).min(awake_ms.saturating_sub(signed_millis(LONGEST_STEP) + 1));
    marks.retain(|mark| mark.at < now);
    marks.iter_mut().for_each(|mark| mark.awake_ms = mark.awake_ms.min(before));
    marks.push(Mark { at: now, awake_ms: before });
}

fn at(marks: &[Mark], time: Timestamp) -> i64 {
    let later = marks.partition_point(|mark| mark.at <= time);
    match (later.checked_sub(1).map(|place| marks[place]), marks.get(later)) {
        (Some(before), Some(after)) => between(before, *after, time),
        (Some(last), None) => last.awake_ms,
        (None, Some(first)) => first.awake_ms.saturating_sub(signed_millis(first.at.since(time))),
        (None, None) => 0,
    }
}

/// Returns the awake time at a time between two marks.
fn between(before: Mark, after: Mark, time: Timestamp) -> i64 {
    let [whole, part] = [after.at, time].map(|time| i128::from(time.as_millis()) - i128::from(before.at.as_millis()));
    if whole == 0 {
        return after.awake_ms;
    }
    let awake = i128::from(after.awake_ms) - i128::from(before.awake_ms);
    i64::try_from(i128::from(before.awake_ms) + awake * part / whole).unwrap_or(before.awake_ms)
}

/// A clock, and the awake time of this process by it.
pub struct AwakeClock {
    clock: Arc<dyn Clock>,
    monotonic: Arc<dyn Fn() -> Instant + Send + Sync>,
    awake: Mutex<(AwakeTime, Instant)>,
}

impl AwakeClock {
    /// Creates a clock with a thread that counts awake time for as long as the clock is there.
    #[must_use]
    pub fn start(clock: Arc<dyn Clock>) -> Arc<Self> {
        let this = Arc::new(Self::timed_by(clock, Arc::new(Instant::now)));
        let counted = Arc::downgrade(&this);
        let counting = thread::Builder::new().name("awake".to_owned()).spawn(move || count(&counted));
        if let Err(error) = counting {
            tracing::error!(%error, "awake time is not counted: no lease and no time limit ends");
        }
        this
    }

    /// Creates such a clock without a thread, which goes by the given monotonic clock, for tests.
    #[must_use]
    pub fn timed_by(clock: Arc<dyn Clock>, monotonic: Arc<dyn Fn() -> Instant + Send + Sync>) -> Self {
        let awake = Mutex::new((AwakeTime::beginning(clock.now()), monotonic()));
        Self { clock, monotonic, awake }
    }

    /// Returns whether the last tick was long ago, or the clock was set back since. Marks that are close together say
    /// nothing of where the course between them bends, and are left out for that.
    fn is_due(&self) -> bool {
        let awake = self.awake.lock();
        let (time, last) = &*awake;
        (self.monotonic)().saturating_duration_since(*last) >= TICK
            || time.last().at.since(self.clock.now()) > LONGEST_STEP
    }

    /// Counts what has passed since the last tick.
    pub fn tick(&self) {
        let mut awake = self.awake.lock();
        let (now, monotonic) = (self.clock.now(), (self.monotonic)());
        let (time, last) = &mut *awake;
        let passed = monotonic.saturating_duration_since(*last);
        let skipped = now.since(time.last().at).saturating_sub(passed);
        let counted = Duration::from_millis(millis(passed.min(LONGEST_STEP)));
        time.go_on(now, counted);
        if passed > LONGEST_STEP || skipped > LONGEST_STEP {
            time.resume();
        }
        // What is left of a millisecond counts with the next tick.
        *last = if passed > LONGEST_STEP { monotonic } else { *last + counted };
    }
}

fn count(clock: &Weak<AwakeClock>) {
    loop {
        thread::sleep(TICK);
        let Some(clock) = clock.upgrade() else { return };
        clock.tick();
    }
}

impl Clock for AwakeClock {
    fn goes_by(&self) -> Option<&dyn Clock> {
        Some(&*self.clock)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the awake time up to the last tick, or up to now where the clock was just set back: what it shows since
    /// must not be taken for what it showed before.
    fn awake(&self) -> AwakeTime {
        if self.is_due() {
            self.tick();
        }
        self.awake.lock().0.clone()
    }
}

#[cfg(test)]
mod tests;
