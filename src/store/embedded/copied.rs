//! The output of attempts in a group: each member keeps what it receives while it leads, and a copy goes to another.
//!
//! The log does not have output: it may be much, is worth less than jobs, and may lose its last seconds. What a leader
//! is given goes to one other member soon after that, the *keeper*, and stays on both disks. Where output is read, the
//! leader asks all others for what they have of the attempt, once in a term: the former leader may have it, its keeper,
//! or another member that led before. So a member that is lost takes at most with it what came in the last moment, and
//! where that is amid a stream, the stream says so. When another member begins with an empty directory, or is removed,
//! each member copies all that it has once more, since the other copy may be lost.
//!
//! Cells are united wherever two of one place meet, so that it does not matter what comes first: writes wait for no
//! other member. Copies, questions and answers go in words beside the messages of the library, to each member one
//! after the other, and are repeated when no answer comes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_bytes::ByteBuf;
use tokio::sync::Notify;

use super::engine::Engine;
use super::exchange::Exchange;
use super::output::{Outputs, StoredPair, key_of};
use super::words::{AttemptWord, OutputWord, Word};
use crate::clock::Timestamp;
use crate::job::{Fence, JobId};
use crate::store::recent::RecentMap;
use crate::store::{CellKey, Member as _, OutputCell, OutputOf, OutputStore, StoreError};

/// How long what was written waits for more to go with it.
const GATHER: Duration = Duration::from_millis(250);

/// When a question is sent again, where no answer has come, and after how long a copy goes to another member instead.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const KEPT_WITHIN: Duration = Duration::from_secs(5);

/// The most cells in a copy, each of 8 KiB at most.
const COPY_CELLS: usize = 64;

/// The most attempts in a question, and about how many bytes of their cells are in an answer.
const ASKED_AT_ONCE: usize = 64;
const ANSWER_BYTES: usize = 1 << 20;

/// The most cells of which it is remembered that they are to be copied. Beyond that, as where no other member is there
/// for long, all are.
const MOST_UNCOPIED: usize = 65_536;

/// How often it is looked whether the other members are the same.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How long those who read wait for other members, as long as these are there.
const PATIENCE: Duration = Duration::from_secs(10);

/// The attempts of which it is remembered, at least, which members have said what they have.
const KNOWN: usize = 8_192;

/// An attempt, and when its job was created.
type Attempt = (OutputOf, Timestamp);

/// The output of a store that is one of several members.
pub(super) struct CopiedOutputs {
    own: Arc<Outputs>,
    exchange: Arc<Exchange>,
    state: Mutex<State>,
    answered: Notify,
}

#[derive(Default)]
struct State {
    /// The keys of the cells that are to be copied, with numbers that grow as they are written again.
    uncopied: BTreeMap<Vec<u8>, u64>,
    written: u64,
    /// When the next copy goes.
    copies_at: Option<Instant>,
    copy: Option<Sent>,
    keeper: Option<u64>,
    /// The last key that was copied: the next copy begins behind it.
    copied: Vec<u8>,
    /// The key up to which all were looked at, while all are copied once more.
    all_after: Option<Vec<u8>>,
    /// The directories of the other members.
    directories: BTreeMap<u64, u64>,
    /// What each other member is to be asked.
    asking: HashMap<u64, Asking>,
    known: RecentMap<Attempt, Known, KNOWN>,
}

/// What was sent to the keeper.
struct Sent {
    number: u64,
    to: u64,
    since: Instant,
    cells: Vec<(Vec<u8>, u64)>,
}

/// What one other member is asked.
#[derive(Default)]
struct Asking {
    attempts: BTreeSet<Attempt>,
    question: Option<Question>,
}

/// A question that was sent in a term.
struct Question {
    number: u64,
    term: u64,
    since: Instant,
    attempts: Vec<Attempt>,
}

/// The members that have said, in a term, what they have of an attempt.
#[derive(Default)]
struct Known {
    term: u64,
    by: BTreeSet<u64>,
}

impl CopiedOutputs {
    /// Creates the output of a member, which keeps its own part of it in `own`.
    pub(super) fn new(own: Arc<Outputs>, exchange: Arc<Exchange>) -> Arc<Self> {
        Arc::new(Self { own, exchange, state: Mutex::default(), answered: Notify::new() })
    }

    /// Copies what is written, asks other members and answers them, until the exchange is closed. A panic costs what
    /// was under way, and nothing that is worth more than output.
    pub(super) fn run(&self, engine: &Engine) {
        let turn = |heard| {
            if let Some((from, word)) = heard {
                self.hear(from, word);
            }
            let there = self.exchange.that_keep_copies();
            self.look_at_directories();
            self.copy(engine, &there);
            self.ask(&there);
        };
        let recover = || {
            tracing::error!("output that was being copied to other members, or from them, is left");
            *self.state.lock() = State { all_after: Some(Vec::new()), ..State::default() };
            self.answered.notify_waiters();
        };
        let due = || self.state.lock().due().unwrap_or_else(|| Instant::now() + LOOK_EVERY);
        self.exchange.outputs.work(turn, recover, due);
    }

    /// Takes what another member says.
    fn hear(&self, from: u64, word: OutputWord) {
        match word {
            OutputWord::Keep { number, of_jobs, cells } => {
                if self.keep(&cells, Some(of_jobs)) {
                    self.say(from, OutputWord::Kept { number });
                }
            }
            OutputWord::Kept { number } => {
                let mut state = self.state.lock();
                let is_it = |copy: &mut Sent| copy.number == number && copy.to == from;
                let Some(copy) = state.copy.take_if(is_it) else { return };
                for (key, written) in copy.cells {
                    // It may have grown meanwhile.
                    if state.uncopied.get(&key) == Some(&written) {
                        state.uncopied.remove(&key);
                    }
                }
                state.note_uncopied();
                // A whole copy does not wait for more.
                let is_whole = state.uncopied.len() >= COPY_CELLS || state.all_after.is_some();
                let wait = if is_whole { Duration::ZERO } else { GATHER };
                state.copies_at = state.has_to_copy().then(|| Instant::now() + wait);
            }
            OutputWord::Ask { number, attempts } => {
                // Of one whose name is not read as one there is nothing.
                let read = |AttemptWord { job, fence, created_ms }: AttemptWord| {
                    let job = JobId::new(job).unwrap_or_else(|_| JobId::first());
                    (OutputOf { job, fence: Fence::new(fence) }, Timestamp::from_millis(created_ms))
                };
                let attempts: Vec<Attempt> = attempts.into_iter().map(read).collect();
                let (count, cells) = self.own.cells_of(&attempts, ANSWER_BYTES).unwrap_or_else(|error| {
                    tracing::debug!(%error, member = from, "output that is asked for cannot be read");
                    (0, Vec::new())
                });
                self.say(from, OutputWord::Answer { number, count, cells });
            }
            OutputWord::Answer { number, count, cells } => self.hear_answer(from, (number, count), &cells),
        }
    }

    fn hear_answer(&self, from: u64, (number, count): (u64, usize), cells: &[StoredPair]) {
        let is_it = |question: &Question| question.number == number;
        let is_waited_for = |state: &State| state.asking.get(&from)?.question.as_ref().map(is_it);
        if is_waited_for(&self.state.lock()) != Some(true) {
            return;
        }
        let count = if self.keep(cells, None) { count } else { 0 };
        let mut state = self.state.lock();
        let Some(asking) = state.asking.get_mut(&from) else { return };
        let Some(question) = asking.question.take_if(|question| is_it(question)) else { return };
        // Where they cannot be read, or not be kept, they are asked for again by those who read next.
        let over = if count == 0 { question.attempts.len() } else { count };
        for attempt in question.attempts.iter().take(over) {
            asking.attempts.remove(attempt);
        }
        for attempt in question.attempts.into_iter().take(count) {
            if let Some(known) = state.known.get_mut(&attempt).filter(|known| known.term == question.term) {
                known.by.insert(from);
            }
        }
        drop(state);
        self.answered.notify_waiters();
    }

    fn keep(&self, cells: &[StoredPair], of_jobs: Option<u64>) -> bool {
        let kept = self.own.keep(cells, of_jobs);
        if let Err(error) = &kept {
            tracing::debug!(%error, "output of another member cannot be kept");
        }
        kept.is_ok()
    }

    fn say(&self, to: u64, word: OutputWord) {
        self.exchange.say(to, &Word::Output(word));
    }

    /// Has all copied once more where another member is not there any more with the directory that it had.
    fn look_at_directories(&self) {
        let now = self.exchange.other_directories();
        let mut state = self.state.lock();
        if state.directories.iter().any(|(member, directory)| now.get(member) != Some(directory)) {
            state.all_after = Some(Vec::new());
            state.copies_at.get_or_insert_with(Instant::now);
            state.note_uncopied();
        }
        state.directories = now;
    }

    /// Sends the keeper what is to be copied, when it is time, and where nothing is under way.
    fn copy(&self, engine: &Engine, there: &BTreeSet<u64>) {
        let mut state = self.state.lock();
        if let Some(copy) = state.copy.take_if(|copy| copy.since.elapsed() >= KEPT_WITHIN || !there.contains(&copy.to))
        {
            // Another one, if there is one: this one may have no room, for as long as it is there.
            let after = (Bound::Excluded(copy.to), Bound::Unbounded);
            state.keeper = there.range(after).next().or_else(|| there.first()).copied();
            state.copies_at = Some(Instant::now());
        }
        if state.copy.is_some() || state.copies_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        // The same as long as it keeps what it is sent: an attempt is whole at one.
        let Some(to) = state.keeper.filter(|keeper| there.contains(keeper)).or_else(|| there.first().copied()) else {
            state.copies_at = Some(Instant::now() + AGAIN_AFTER);
            return;
        };
        state.keeper = Some(to);
        if state.uncopied.len() < COPY_CELLS
            && let Some(after) = state.all_after.take()
        {
            match self.own.keys_after(&after, COPY_CELLS) {
                Ok(keys) => {
                    state.all_after = keys.last().cloned();
                    keys.into_iter().for_each(|key| state.add_uncopied(key));
                }
                Err(error) => {
                    tracing::debug!(%error, "output cannot be looked at now");
                    state.all_after = Some(after);
                }
            }
        }
        let behind = state.uncopied.range::<[u8], _>((Bound::Excluded(&*state.copied), Bound::Unbounded));
        let mut cells: Vec<(Vec<u8>, u64)> =
            behind.take(COPY_CELLS).map(|(key, written)| (key.clone(), *written)).collect();
        if cells.is_empty() {
            let first = state.uncopied.iter().take(COPY_CELLS);
            cells = first.map(|(key, written)| (key.clone(), *written)).collect();
        }
        drop(state);
        let keys: Vec<Vec<u8>> = cells.iter().map(|(key, _)| key.clone()).collect();
        let read = self.own.cells(&keys);
        let mut state = self.state.lock();
        let read = match read {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(%error, "output cannot be copied now");
                state.copies_at = Some(Instant::now() + AGAIN_AFTER);
                return;
            }
        };
        // One that is not there was removed.
        let read = keys.into_iter().zip(read).filter_map(|(key, cell)| Some((ByteBuf::from(key), cell?)));
        let of_jobs = engine.applied().0.max(self.own.of_jobs());
        let (number, sent) = (rand::random(), read.collect());
        state.copied = cells.last().map_or_else(Vec::new, |(key, _)| key.clone());
        state.note_uncopied();
        state.copies_at = None;
        state.copy = (!cells.is_empty()).then(|| Sent { number, to, since: Instant::now(), cells });
        if state.copy.is_some() {
            drop(state);
            self.say(to, OutputWord::Keep { number, of_jobs, cells: sent });
        }
    }

    /// Asks each other member that is there what it is to be asked, where no answer is waited for.
    fn ask(&self, there: &BTreeSet<u64>) {
        let mut state = self.state.lock();
        let before = state.asking.len();
        state.asking.retain(|member, asking| there.contains(member) && !asking.attempts.is_empty());
        let is_fewer = state.asking.len() < before;
        let (mut questions, term) = (Vec::new(), self.term());
        for (member, asking) in &mut state.asking {
            // Since then another one may have led.
            asking.question.take_if(|question| question.term != term);
            if asking.question.as_ref().is_some_and(|question| question.since.elapsed() < AGAIN_AFTER) {
                continue;
            }
            // With the same number, so that an answer that comes late is one.
            let question = asking.question.get_or_insert_with(|| {
                let attempts = asking.attempts.iter().take(ASKED_AT_ONCE).cloned().collect();
                Question { number: rand::random(), term, since: Instant::now(), attempts }
            });
            question.since = Instant::now();
            let attempts = question.attempts.iter().map(|(of, created_at)| AttemptWord {
                job: of.job.to_string(),
                fence: of.fence.get(),
                created_ms: created_at.as_millis(),
            });
            questions.push((*member, OutputWord::Ask { number: question.number, attempts: attempts.collect() }));
        }
        drop(state);
        if is_fewer {
            self.answered.notify_waiters();
        }
        questions.into_iter().for_each(|(member, question)| self.say(member, question));
    }

    fn term(&self) -> u64 {
        self.exchange.standing().borrow().term
    }

    /// Has the other members asked for what they have of attempts, unless they have said that in this term.
    fn ask_for(&self, attempts: &BTreeSet<Attempt>) {
        let (term, there) = (self.term(), self.exchange.that_keep_copies());
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut asks = false;
        for attempt in attempts {
            let known = state.known.get(attempt).filter(|known| known.term == term);
            let unasked: Vec<u64> = match known {
                Some(known) => there.difference(&known.by).copied().collect(),
                None => {
                    state.known.insert(attempt.clone(), Known { term, by: BTreeSet::new() });
                    there.iter().copied().collect()
                }
            };
            for member in unasked {
                asks |= state.asking.entry(member).or_default().attempts.insert(attempt.clone());
            }
        }
        if asks {
            self.exchange.outputs.wake();
        }
    }

    /// Takes note of cells that were written.
    fn note(&self, keys: Vec<Vec<u8>>) {
        let mut state = self.state.lock();
        keys.into_iter().for_each(|key| state.add_uncopied(key));
        if state.uncopied.len() > MOST_UNCOPIED {
            state.uncopied.clear();
            state.all_after = Some(Vec::new());
        }
        state.note_uncopied();
        if state.copy.is_none() && state.copies_at.is_none() {
            state.copies_at = Some(Instant::now() + GATHER);
            self.exchange.outputs.wake();
        }
    }
}

impl State {
    fn add_uncopied(&mut self, key: Vec<u8>) {
        self.written += 1;
        self.uncopied.insert(key, self.written);
    }

    fn has_to_copy(&self) -> bool {
        !self.uncopied.is_empty() || self.all_after.is_some()
    }

    fn note_uncopied(&self) {
        let unlooked_at = usize::from(self.all_after.is_some());
        metrics::gauge!("leasehold_member_output_uncopied_cells").set((self.uncopied.len() + unlooked_at) as f64);
    }

    /// Returns when there is something to do although nothing is heard.
    fn due(&self) -> Option<Instant> {
        let copy = self.copy.iter().map(|copy| copy.since + KEPT_WITHIN);
        let questions = self.asking.values().filter_map(|asking| Some(asking.question.as_ref()?.since + AGAIN_AFTER));
        copy.chain(questions).chain(self.copies_at).min()
    }

    fn is_asked_for(&self, attempts: &BTreeSet<Attempt>) -> bool {
        self.asking.values().any(|asking| !asking.attempts.is_disjoint(attempts))
    }
}

fn attempts_of(keys: &[CellKey]) -> BTreeSet<Attempt> {
    keys.iter().map(|key| (key.of.clone(), key.created_at)).collect()
}

#[async_trait]
impl OutputStore for CopiedOutputs {
    async fn write(&self, cells: Vec<(CellKey, OutputCell)>) -> Result<(), StoreError> {
        let keys = cells.iter().map(|(key, _)| key_of(key)).collect();
        self.own.write(cells).await?;
        self.note(keys);
        Ok(())
    }

    async fn read(&self, keys: &[CellKey]) -> Result<Vec<Option<OutputCell>>, StoreError> {
        let attempts = attempts_of(keys);
        self.ask_for(&attempts);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let mut answered = Box::pin(self.answered.notified());
            // Before the look, so that no answer comes between the two.
            answered.as_mut().enable();
            if !self.state.lock().is_asked_for(&attempts) {
                return self.own.read(keys).await;
            }
            if tokio::time::timeout_at(deadline, answered).await.is_err() {
                return Err(StoreError::Unavailable("other members do not say what output they have".to_owned()));
            }
        }
    }

    async fn read_here(&self, keys: &[CellKey]) -> Result<Vec<Option<OutputCell>>, StoreError> {
        self.own.read(keys).await
    }

    async fn remove(&self, attempts: &[(JobId, RangeInclusive<Fence>)]) -> Result<(), StoreError> {
        self.own.remove(attempts).await
    }
}
