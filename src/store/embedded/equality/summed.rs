//! The sum of a state as it is kept while entries are applied: see [`sum`](super::sum).
//!
//! A document takes longer to be hashed than to be put in its place, so those who apply entries leave what they change
//! here, in order, and go on. A thread adds it up soon after. Whoever asks for a sum adds up what is left first: the
//! answer is that of the state at that moment, whatever the thread has come to.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::exits::FailOnExit;
use super::super::machine::Effects;
use super::super::periodic::{Periodic, Waker};
use super::hashes::Hashes;
use super::sum::Sum;

/// How many of the last sums are known. The leader says one that it had a moment ago.
const LATELY: usize = 1_024;

/// After so many changes of documents the thread is woken.
const WAKES_AT: usize = 64;

/// So many changes of documents may be left. Where there are more, who applies entries adds them up before it goes on.
const MOST_LEFT: usize = 4_096;

/// How long what is left waits for more.
const PERIOD: Duration = Duration::from_secs(1);

/// Starts the thread that adds up what is left.
///
/// # Errors
/// An error when it cannot be started.
pub(crate) fn start(summed: &Arc<Summed>, guard: FailOnExit) -> io::Result<Periodic> {
    let of = Arc::clone(summed);
    let thread = Periodic::start("store-sum", PERIOD, guard, move || {
        of.add_up();
        true
    })?;
    // The only thread as long as the store is open.
    drop(summed.thread.set(thread.waker()));
    Ok(thread)
}

/// The sum over the documents, and the last sums over the whole state.
#[derive(Debug, Default)]
pub(crate) struct Summed {
    sums: Mutex<Sums>,
    left: Mutex<VecDeque<Left>>,
    /// How many changes of documents are left.
    changes: AtomicUsize,
    thread: OnceLock<Waker>,
}

/// The sum over the documents is that of a moment and what has moved since. So the documents as they were at the end of
/// a flush can be counted while others are written.
#[derive(Debug, Default)]
struct Sums {
    /// The sum over the documents without what has moved since the store was opened; `None` while it is not known.
    base: Option<Sum>,
    /// By how much it has changed since then; `None` once a change could not be added up.
    moved: Option<Sum>,
    lately: VecDeque<(u64, Sum)>,
    hashes: Hashes,
}

/// What an entry changes, which is to be added up.
#[derive(Debug)]
struct Left {
    entry: u64,
    effects: Effects,
    /// The sum over the other parts of the state.
    rest: Sum,
}

impl Summed {
    /// Returns the sum of a state that was opened as of an entry, with the sum over its documents where that is known,
    /// and the one over its other parts.
    pub(crate) fn of(documents: Option<Sum>, entry: u64, rest: Sum) -> Self {
        let mut sums = Sums { base: documents, moved: Some(Sum::default()), ..Sums::default() };
        sums.end_entry(entry, rest);
        Self { sums: Mutex::new(sums), ..Self::default() }
    }

    /// Returns the sum over the documents; `None` while it is not known.
    pub(crate) fn documents(&self) -> Option<Sum> {
        self.added_up(|sums| sums.documents())
    }

    /// Returns by how much the sum over the documents has changed since the store was opened.
    pub(crate) fn moved(&self) -> Sum {
        self.added_up(|sums| sums.moved.unwrap_or_default())
    }

    /// Leaves what an entry changes, the last one that was applied, in a state whose other parts have the sum `rest`.
    pub(crate) fn has_applied(&self, entry: u64, effects: Effects, rest: Sum) {
        let changes = effects.documents().max(1);
        let before = {
            let mut left = self.left.lock();
            left.push_back(Left { entry, effects, rest });
            self.changes.fetch_add(changes, Ordering::Relaxed)
        };
        if before / WAKES_AT != (before + changes) / WAKES_AT
            && let Some(thread) = self.thread.get()
        {
            thread.wake();
        }
    }

    /// Adds up what is left where it is too much: what it takes in memory has a bound.
    pub(crate) fn keep_up(&self) {
        if self.changes.load(Ordering::Relaxed) > MOST_LEFT {
            self.add_up();
        }
    }

    fn add_up(&self) {
        self.added_up(|_| ());
    }

    /// Returns the sum over the whole state after an entry; `None` where that is not known, or not any more.
    pub(crate) fn at(&self, entry: u64) -> Option<Sum> {
        self.added_up(|Sums { lately, .. }| {
            let place = lately.binary_search_by_key(&entry, |(of, _)| *of).ok()?;
            lately.get(place).map(|(_, sum)| *sum)
        })
    }

    /// Returns the last entry after which the sum is known, and that sum.
    pub(crate) fn last(&self) -> Option<(u64, Sum)> {
        self.added_up(|sums| sums.lately.back().copied())
    }

    /// Takes over the sum over the documents as they were counted when so much had moved, where none is known: one
    /// that follows from the entries is never replaced by what lies on disk.
    pub(crate) fn count(&self, counted: Sum, moved: Sum) {
        self.added_up(|sums| sums.base = sums.base.or(Some(counted - moved)));
    }

    /// Answers once all is added up that was left before the call.
    fn added_up<T>(&self, answer: impl FnOnce(&mut Sums) -> T) -> T {
        let mut sums = self.sums.lock();
        let left = {
            let mut left = self.left.lock();
            self.changes.store(0, Ordering::Relaxed);
            std::mem::take(&mut *left)
        };
        for Left { entry, effects, rest } in left {
            sums.add(&effects);
            sums.end_entry(entry, rest);
        }
        answer(&mut sums)
    }
}

impl Sums {
    fn documents(&self) -> Option<Sum> {
        Some(self.base? + self.moved?)
    }

    fn add(&mut self, effects: &Effects) {
        self.moved = match self.hashes.of_effects(effects) {
            Ok(by) => self.moved.map(|moved| moved + by),
            Err(error) => {
                tracing::error!(why = error.0, "the sum over the state is not known from now on");
                None
            }
        };
    }

    fn end_entry(&mut self, entry: u64, rest: Sum) {
        let Some(documents) = self.documents() else { return };
        if self.lately.len() == LATELY {
            self.lately.pop_front();
        }
        self.lately.push_back((entry, documents + rest));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::machine::{Batch, Change};
    use super::*;
    use crate::job::{Json, RecordName};
    use crate::store::{Place, Record, RecordKey, RecordKind, Version};

    const NONE: Version = Version { place: Place::Main, primary_term: 1, seq_no: 0 };

    /// A change, and by how much it changes the sum.
    fn change(seq_no: u64) -> (Effects, Sum) {
        let key = RecordKey::new(RecordKind::Setting, RecordName::new(format!("name-{seq_no}")).expect("a name"));
        let record = Record { key, body: Json::of(&seq_no).expect("JSON"), version: Version { seq_no, ..NONE } };
        let mut effects = Batch::new(NONE).end().effects;
        effects.records.insert(record.key.clone(), Change { before: None, after: Some(record) });
        let by = Hashes::default().of_effects(&effects).expect("it can be written");
        (effects, by)
    }

    fn nothing() -> Effects {
        Batch::new(NONE).end().effects
    }

    fn opened(documents: Option<Sum>) -> Summed {
        Summed::of(documents, 0, Sum::default())
    }

    #[test]
    fn what_was_counted_before_is_moved_on() {
        let summed = opened(None);
        let [(one, by_one), (two, by_two), (three, by_three)] = [1, 2, 3].map(change);
        summed.has_applied(1, one, Sum(100));
        assert_eq!((summed.documents(), summed.at(1), summed.last()), (None, None, None));
        let moved = summed.moved();
        assert_eq!(moved, by_one);
        summed.has_applied(2, two, Sum(100));
        summed.count(Sum(50), moved);
        assert_eq!(summed.documents(), Some(Sum(50) + by_two));
        summed.has_applied(3, nothing(), Sum(100));
        summed.has_applied(5, three, Sum(200));
        let (at_three, at_five) = (Sum(150) + by_two, Sum(250) + by_two + by_three);
        assert_eq!((summed.at(3), summed.at(5), summed.at(4)), (Some(at_three), Some(at_five), None));
        assert_eq!(summed.last(), Some((5, at_five)));
    }

    #[test]
    fn a_sum_that_follows_from_the_entries_is_not_replaced_by_what_lies_on_disk() {
        let (summed, (one, by)) = (opened(Some(Sum(7))), change(1));
        summed.has_applied(1, one, Sum(100));
        summed.count(Sum(55), summed.moved());
        assert_eq!((summed.documents(), summed.at(1)), (Some(Sum(7) + by), Some(Sum(107) + by)));
    }

    #[test]
    fn the_last_sums_are_known() {
        let summed = opened(Some(Sum::default()));
        (1..=LATELY as u64 + 3).for_each(|entry| summed.has_applied(entry, nothing(), Sum(entry.into())));
        assert_eq!((summed.at(3), summed.at(4)), (None, Some(Sum(4))));
    }

    #[test]
    fn who_applies_entries_hashes_nothing_until_too_much_is_left() {
        let summed = opened(Some(Sum::default()));
        let left = |summed: &Summed| summed.left.lock().len();
        for entry in 1..=MOST_LEFT as u64 {
            summed.has_applied(entry, change(entry).0, Sum::default());
            summed.keep_up();
        }
        assert_eq!(left(&summed), MOST_LEFT);
        summed.has_applied(5_000, change(5_000).0, Sum::default());
        summed.keep_up();
        assert_eq!((left(&summed), summed.last().map(|(entry, _)| entry)), (0, Some(5_000)));
    }

    #[test]
    fn a_sum_is_that_of_the_moment_however_many_ask_and_add_up() {
        let (summed, mut by) = (opened(Some(Sum::default())), Sum::default());
        std::thread::scope(|scope| {
            let others = [0; 3].map(|_| {
                scope.spawn(|| {
                    while summed.last().is_none_or(|(entry, _)| entry < 500) {
                        summed.add_up();
                    }
                })
            });
            for entry in 1..=500 {
                let (effects, moved) = change(entry);
                by += moved;
                summed.has_applied(entry, effects, Sum(1));
                assert_eq!(summed.at(entry), Some(by + Sum(1)));
            }
            others.into_iter().for_each(|other| other.join().expect("no panic"));
        });
    }
}
