//! The live feed of events.
//!
//! Every transition that this manager has written and the store has acknowledged is published in a bounded [`ring`].
//! On a store that others write to as well, a [`tail`] publishes theirs too, for as long as somebody listens. A
//! client that reconnects goes on where it was: from the ring, or from the jobs' histories in the store ([`replay`])
//! where the ring does not have that position.
//!
//! Events are delivered *at least once* and not in a strict order: after an interruption, events of the last seconds
//! come again, and two managers' events come as they arrive. A job's id and an event's number and time identify the
//! event. Where events cannot be delivered, the feed has a [`FeedItem::Gap`].

mod event;
mod replay;
mod ring;
mod steps;
mod tail;

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::job::Job;

use crate::manager::Manager;
use crate::manager::request::ManagerError;
pub use event::{EventFilter, JobEvent};

use replay::Replayed;
use ring::{Reading, Ring};
use tail::LATENESS;

/// The most feeds that are replayed from the store at once; further feeds wait.
const REPLAYS_AT_ONCE: usize = 4;

/// The most events of the ring that are read while it is locked.
const LOOK_AT_ONCE: usize = 512;

/// The position at which a feed begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventsFrom {
    /// The feed begins with the events from now on.
    Now,
    /// The feed begins with the events at this time or later.
    Since(Timestamp),
    /// The feed begins after this position, which another manager's feed may have returned.
    After(EventId),
}

/// A position in a feed, written as `time-epoch-number`. A manager that does not have the ring of that epoch uses the
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    /// When the event happened.
    at: Timestamp,
    /// The epoch of the ring that holds the event; zero for an event that was read from the store.
    epoch: u64,
    /// The event's number in the ring.
    seq: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:x}-{}", self.at.as_millis(), self.epoch, self.seq)
    }
}

impl FromStr for EventId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (at, rest) = text.split_once('-')?;
            let (epoch, seq) = rest.split_once('-')?;
            let at = Timestamp::from_millis(i64::try_from(at.parse::<u64>().ok()?).ok()?);
            Some(Self { at, epoch: u64::from_str_radix(epoch, 16).ok()?, seq: seq.parse().ok()? })
        };
        read().ok_or_else(|| "is not the id of an event".to_owned())
    }
}

/// An item that a feed delivers.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedItem {
    /// An event.
    Event(EventId, JobEvent),
    /// Events are missing at this position: there were more than are kept, or than the client read in time.
    Gap(EventId),
    /// All events from before the feed was opened have been delivered; those that follow are live.
    Live(EventId),
}

/// The ring of the latest events, and the notification of the feeds that read it.
pub(crate) struct Events {
    /// The random number that identifies this manager's ring; never zero.
    epoch: u64,
    /// Whether other processes write to the store as well.
    shared_store: bool,
    ring: Mutex<Ring>,
    news: Notify,
    replays: Semaphore,
}

impl Events {
    pub(crate) fn new(shared_store: bool) -> Self {
        Self {
            epoch: rand::random_range(1..=u64::MAX),
            shared_store,
            ring: Mutex::default(),
            news: Notify::new(),
            replays: Semaphore::new(REPLAYS_AT_ONCE),
        }
    }

    /// Publishes the new history entries of jobs that were just written. Each job comes with the former length of its
    /// history.
    pub(crate) fn publish<'a>(&self, written: impl Iterator<Item = (&'a Job, usize)>) {
        let mut new = Vec::new();
        for (job, history_before) in written {
            // Heartbeats, which are most writes of long jobs, end here.
            let count = job.history.len().saturating_sub(history_before).min(job.history.entries().len());
            let latest = job.history.numbered().rev().take(count);
            let first = new.len();
            new.extend(latest.map(|(number, entry)| JobEvent::new(job, number, entry)));
            new[first..].reverse();
        }
        self.add(new);
    }

    fn add(&self, new: Vec<JobEvent>) {
        if new.is_empty() {
            return;
        }
        // Freed once the ring is no longer locked.
        let _evicted = self.ring.lock().push(new);
        self.news.notify_waiters();
    }

    fn id(&self, at: Timestamp, seq: u64) -> EventId {
        EventId { at, epoch: self.epoch, seq }
    }
}

impl Manager {
    /// Opens a feed of the events that match `filter`.
    ///
    /// # Errors
    /// Returns the store's error when past events cannot be read there.
    pub async fn events(&self, filter: EventFilter, from: EventsFrom) -> Result<EventFeed, ManagerError> {
        let shared = &self.shared;
        // The position in the ring is taken before the store is read, so that no event between the two is missed.
        let seat = Seat::take(self);
        let (replay_from, seq) = {
            let ring = shared.observe.events.ring.lock();
            match from {
                EventsFrom::Now => (None, ring.last()),
                EventsFrom::Since(time) => (Some(time), ring.last()),
                EventsFrom::After(id) if id.epoch == shared.observe.events.epoch && ring.can_resume(id.seq) => {
                    (None, id.seq)
                }
                EventsFrom::After(id) => (Some(id.at.minus(LATENESS)), ring.last()),
            }
        };
        let now = shared.clock.now();
        let is_set_back = match from {
            EventsFrom::After(position) if replay_from.is_some() => self.may_lie_before(position).await?,
            EventsFrom::Now | EventsFrom::Since(_) | EventsFrom::After(_) => false,
        };
        let replay_from = replay_from.map(|from| if is_set_back { from.min(now.minus(LATENESS)) } else { from });
        let live_from = if replay_from.is_some() { seq } else { shared.observe.events.ring.lock().last() };
        let mut feed = EventFeed { seat, filter, seq, live_from: Some(live_from), waiting: VecDeque::new() };
        if let Some(since) = replay_from {
            let Replayed { events, complete } = self.replay(&feed.filter, since).await?;
            let told = |event: JobEvent| FeedItem::Event(EventId { at: event.entry.at, epoch: 0, seq: 0 }, event);
            feed.waiting.extend(events.into_iter().map(told));
            if !complete || is_set_back {
                feed.waiting.push_back(FeedItem::Gap(feed.position()));
            }
        }
        feed.queue_live_mark();
        Ok(feed)
    }
}

/// A live feed of events. [`EventsFrom::After`] continues a feed that was dropped.
pub struct EventFeed {
    seat: Seat,
    filter: EventFilter,
    /// The number of the last event that was read from the ring.
    seq: u64,
    /// The number of the last event before the feed was opened, until [`FeedItem::Live`] has been queued.
    live_from: Option<u64>,
    /// The items to deliver next.
    waiting: VecDeque<FeedItem>,
}

impl EventFeed {
    /// Waits for the next item and returns it; returns `None` once the manager stops. Dropping the call loses no
    /// item.
    pub async fn next(&mut self) -> Option<FeedItem> {
        let shared = Arc::clone(&self.seat.manager.shared);
        // Bounded by the caller: each turn returns an item, reads more of the ring, or waits for news.
        loop {
            if let Some(told) = self.waiting.pop_front() {
                return Some(told);
            }
            let news = shared.observe.events.news.notified();
            tokio::pin!(news);
            // The call listens before it reads, so that no event published between the two is missed.
            news.as_mut().enable();
            if self.read_ring() {
                continue;
            }
            tokio::select! {
                () = news => {}
                () = shared.stopping.cancelled() => return None,
            }
        }
    }

    /// Returns the position that the feed has reached, from which another feed can continue.
    #[must_use]
    pub fn position(&self) -> EventId {
        let shared = &self.seat.manager.shared;
        shared.observe.events.id(shared.clock.now(), self.seq)
    }

    /// Reads the next events in the ring, and returns whether there were any.
    fn read_ring(&mut self) -> bool {
        let shared = Arc::clone(&self.seat.manager.shared);
        let reading = shared.observe.events.ring.lock().read(self.seq, &self.filter, LOOK_AT_ONCE);
        match reading {
            Reading::Nothing => return false,
            Reading::Missed { last_missed } => {
                metrics::counter!("leasehold_event_gaps_total").increment(1);
                self.seq = last_missed;
                self.waiting.push_back(FeedItem::Gap(self.position()));
            }
            Reading::Found { events, until } => {
                let told = |(seq, event): (u64, JobEvent)| {
                    FeedItem::Event(shared.observe.events.id(event.entry.at, seq), event)
                };
                self.waiting.extend(events.into_iter().map(told));
                self.seq = until;
            }
        }
        self.queue_live_mark();
        true
    }

    fn queue_live_mark(&mut self) {
        if self.live_from.is_some_and(|last| self.seq >= last) {
            self.live_from = None;
            self.waiting.push_back(FeedItem::Live(self.position()));
        }
    }
}

/// A feed's registration as a listener of the ring, which ends when it is dropped.
struct Seat {
    manager: Manager,
}

impl Seat {
    fn take(manager: &Manager) -> Self {
        let shared = &manager.shared;
        let mut ring = shared.observe.events.ring.lock();
        ring.enter();
        if shared.observe.events.shared_store && ring.begin_tail() {
            let tail = tail::follow(manager.clone(), shared.clock.now().minus(LATENESS));
            shared.tasks.spawn(tail);
        }
        Self { manager: manager.clone() }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.manager.shared.observe.events.ring.lock().leave(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_back_as_it_went_out() {
        let id = EventId { at: Timestamp::from_millis(1_900_000_000_123), epoch: u64::MAX, seq: 17 };
        assert_eq!(id.to_string(), "1900000000123-ffffffffffffffff-17");
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in ["", "-", "1", "1-2", "-1-2-3", "1-x-3", "1-2-3-4", "1-2-", "99999999999999999999-1-1"] {
            assert!(text.parse::<EventId>().is_err(), "{text:?} was taken");
        }
    }
}
