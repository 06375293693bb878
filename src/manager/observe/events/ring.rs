//! The latest events, numbered in the order of their arrival, and what has arrived where two could tell the same.
//!
//! Pure bookkeeping under one short lock. An event holds on to its job's specification and not to the job, so that no
//! payload or result is kept alive by having happened.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::event::{EventFilter, JobEvent};
use crate::clock::Timestamp;
use crate::job::JobId;
use crate::store::recent::RecentMap;

/// The most events that are kept.
const CAPACITY: usize = 16_384;

/// The events that arrived lately, by job, number and time, which tells a job from another one of its id that was
/// removed; at least the last 100,000.
type Arrived = RecentMap<(JobId, u32, Timestamp), (), 100_000>;

/// How long the tail continues without a listener, so that a client that reconnects misses no event.
const LINGER: Duration = Duration::from_secs(60);

/// The latest events.
#[derive(Default)]
pub(super) struct Ring {
    events: VecDeque<JobEvent>,
    /// The number of the last event that was evicted or skipped; zero at first.
    evicted: u64,
    listeners: usize,
    /// When the last listener left; `None` while there are listeners.
    deserted_at: Option<Instant>,
    tail: Option<Tail>,
}

/// The state that is needed while other managers' events are published as well.
struct Tail {
    /// The number of the last event before the tail began. Other managers' events are missing up to and right after it.
    since: u64,
    arrived: Arrived,
}

/// The result of a read of the ring.
pub(super) enum Reading {
    /// There are no new events.
    Nothing,
    /// Events were evicted, up to the one with this number.
    Missed { last_missed: u64 },
    /// The matching events, of all up to the number `until`.
    Found { events: Vec<(u64, JobEvent)>, until: u64 },
}

impl Ring {
    /// Returns the number of the last event.
    pub(super) fn last(&self) -> u64 {
        self.evicted + self.events.len() as u64
    }

    /// Adds those of this manager's own events that have not arrived already, and returns those that were evicted. A
    /// search can find what was written before the write is answered.
    pub(super) fn push(&mut self, new: Vec<JobEvent>) -> Vec<JobEvent> {
        let mut evicted = Vec::new();
        for event in new {
            if self.tail.as_mut().is_none_or(|tail| note(&mut tail.arrived, &event)) {
                self.append(event, &mut evicted);
            }
        }
        evicted
    }

    /// Adds those of the events found in the store that have not arrived already. Returns the events that were evicted,
    /// and whether any was added.
    pub(super) fn push_found(&mut self, found: Vec<JobEvent>) -> (Vec<JobEvent>, bool) {
        let (mut evicted, last) = (Vec::new(), self.last());
        for event in found {
            if self.tail.as_mut().is_some_and(|tail| note(&mut tail.arrived, &event)) {
                self.append(event, &mut evicted);
            }
        }
        (evicted, self.last() > last)
    }

    fn append(&mut self, event: JobEvent, evicted: &mut Vec<JobEvent>) {
        if self.events.len() >= CAPACITY {
            evicted.extend(self.events.pop_front());
            self.evicted += 1;
        }
        self.events.push_back(event);
    }

    /// Removes all events, so that every feed reports a gap here.
    pub(super) fn break_off(&mut self) {
        // The number skips one, so that feeds that have read all events report the gap too.
        self.evicted = self.last() + 1;
        self.events.clear();
    }

    /// Reads up to `limit` events after the one with the number `after`.
    pub(super) fn read(&self, after: u64, filter: &EventFilter, limit: usize) -> Reading {
        if after < self.evicted {
            return Reading::Missed { last_missed: self.evicted };
        }
        let skip = usize::try_from(after - self.evicted).unwrap_or(usize::MAX);
        let count = self.events.len().saturating_sub(skip).min(limit);
        if count == 0 {
            return Reading::Nothing;
        }
        let looked_at = (after + 1..).zip(self.events.iter().skip(skip).take(count));
        let matching = looked_at.filter(|(_, event)| filter.matches(event));
        Reading::Found {
            events: matching.map(|(seq, event)| (seq, event.clone())).collect(),
            until: after + count as u64,
        }
    }

    /// Returns whether the ring has all events after the one with the number `after`.
    pub(super) fn can_resume(&self, after: u64) -> bool {
        (self.evicted..=self.last()).contains(&after) && self.tail.as_ref().is_none_or(|tail| after > tail.since)
    }

    /// Adds a listener.
    pub(super) fn enter(&mut self) {
        self.listeners += 1;
        self.deserted_at = None;
    }

    /// Removes a listener.
    pub(super) fn leave(&mut self, now: Instant) {
        self.listeners = self.listeners.saturating_sub(1);
        if self.listeners == 0 {
            self.deserted_at = Some(now);
        }
    }

    /// Prepares the ring for a tail, and returns whether there was none.
    pub(super) fn begin_tail(&mut self) -> bool {
        if self.tail.is_some() {
            return false;
        }
        let mut arrived = Arrived::default();
        self.events.iter().for_each(|event| {
            note(&mut arrived, event);
        });
        self.tail = Some(Tail { since: self.last(), arrived });
        true
    }

    /// Ends the tail if there has been no listener for a minute, and returns whether it was ended.
    pub(super) fn end_tail(&mut self, now: Instant) -> bool {
        let deserted = self.deserted_at.is_some_and(|since| now.duration_since(since) >= LINGER);
        if deserted {
            self.tail = None;
        }
        deserted
    }
}

/// Records that an event arrived, and returns whether it is new.
fn note(arrived: &mut Arrived, event: &JobEvent) -> bool {
    let key = (event.job_id.clone(), event.number, event.entry.at);
    let is_new = arrived.get(&key).is_none();
    if is_new {
        arrived.insert(key, ());
    }
    is_new
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Actor, Body, Job, JobSpec, Kind, QueueName};
    use std::sync::Arc;

    fn event(number: u32) -> JobEvent {
        let spec = JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"));
        let now = Timestamp::from_millis(1);
        let id = JobId::new("j").expect("a name");
        let job = Job::submit(id, Arc::new(spec), Body::Empty, (now, None), &Actor::system("test"), now);
        JobEvent { number, ..JobEvent::new(&job, 1, &job.history.entries()[0]) }
    }

    fn numbers(reading: Reading) -> Vec<u32> {
        match reading {
            Reading::Found { events, .. } => events.into_iter().map(|(_, event)| event.number).collect(),
            Reading::Nothing => Vec::new(),
            Reading::Missed { .. } => panic!("nothing should be missing"),
        }
    }

    #[test]
    fn a_reader_sees_every_event_once_and_in_order() {
        let (mut ring, all) = (Ring::default(), EventFilter::default());
        assert!(numbers(ring.read(0, &all, 10)).is_empty());
        ring.push((1..=5).map(event).collect());
        assert_eq!(numbers(ring.read(0, &all, 3)), [1, 2, 3]);
        assert_eq!(numbers(ring.read(3, &all, 3)), [4, 5]);
        assert!(numbers(ring.read(5, &all, 3)).is_empty());
    }

    #[test]
    fn a_reader_who_is_too_slow_is_told_and_goes_on_with_what_there_is() {
        let (mut ring, all) = (Ring::default(), EventFilter::default());
        let evicted = ring.push((1..=u32::try_from(CAPACITY + 3).expect("small")).map(event).collect());
        assert_eq!(evicted.len(), 3);
        assert!(matches!(ring.read(2, &all, 1), Reading::Missed { last_missed: 3 }));
        assert_eq!(numbers(ring.read(3, &all, 1)), [4]);
        assert!(!ring.can_resume(2) && ring.can_resume(3) && !ring.can_resume(ring.last() + 1));
    }

    #[test]
    fn a_break_is_told_even_to_who_had_seen_everything() {
        let (mut ring, all) = (Ring::default(), EventFilter::default());
        ring.push(vec![event(1)]);
        ring.break_off();
        let Reading::Missed { last_missed } = ring.read(1, &all, 1) else { panic!("passed over in silence") };
        ring.push(vec![event(2)]);
        assert_eq!(numbers(ring.read(last_missed, &all, 1)), [2]);
    }

    #[test]
    fn what_has_arrived_is_not_told_again_when_it_is_found_in_the_store() {
        let (mut ring, all) = (Ring::default(), EventFilter::default());
        ring.push(vec![event(1)]);
        assert!(ring.begin_tail());
        ring.push(vec![event(2)]);
        let (_, added) = ring.push_found(vec![event(1), event(2), event(3), event(3)]);
        assert!(added);
        assert_eq!(numbers(ring.read(0, &all, 10)), [1, 2, 3]);
        assert!(!ring.push_found(vec![event(3)]).1);
    }

    #[test]
    fn what_was_found_in_the_store_is_not_told_again_when_its_write_is_answered() {
        let (mut ring, all) = (Ring::default(), EventFilter::default());
        assert!(ring.begin_tail());
        assert!(ring.push_found(vec![event(1), event(2)]).1);
        ring.push(vec![event(2), event(3)]);
        assert_eq!(numbers(ring.read(0, &all, 10)), [1, 2, 3]);
        // The first of a job that was removed and created again.
        let mut first = event(1);
        first.entry.at = Timestamp::from_millis(2);
        ring.push(vec![first]);
        assert_eq!(numbers(ring.read(3, &all, 10)), [1]);
    }

    #[test]
    fn nobody_goes_on_from_before_the_tail_began_or_ended() {
        let mut ring = Ring::default();
        ring.enter();
        ring.push(vec![event(1), event(2)]);
        assert!(ring.begin_tail() && !ring.begin_tail());
        assert!(!ring.can_resume(2), "others' events may be missing after it");
        ring.push(vec![event(3)]);
        assert!(ring.can_resume(3));
        let now = Instant::now();
        ring.leave(now);
        assert!(!ring.end_tail(now + LINGER / 2), "who comes back soon finds it");
        ring.enter();
        assert!(!ring.end_tail(now + LINGER), "somebody came");
        ring.leave(now);
        assert!(ring.end_tail(now + LINGER));
        assert!(ring.begin_tail());
        assert!(!ring.can_resume(3), "others' events between the tails are not here");
    }
}
