//! The state that a leader offers to members that lack entries which its log has no more.
//!
//! What is offered is the database as of the last flush, by a snapshot of it that later flushes do not change. A member
//! asks for it piece by piece, so that it sets the pace, and a piece that was lost is asked for again. The log keeps
//! what comes after the snapshot until the member has that as well.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fjall::{Readable, Snapshot};
use parking_lot::Mutex;

use super::disk::{Disk, failed};
use super::error::Corrupt;
use super::kept::{Last, Offered};
use super::stored;
use super::words::{Ask, Cursor, Offer, Piece, Word};
use crate::store::{Membership, StoreError};

/// About how many bytes a piece has.
const PIECE_BYTES: usize = 512 << 10;

/// An offer of which nothing was asked for so long ends.
const UNUSED: Duration = Duration::from_secs(60);

/// The database as of a flush.
#[derive(Clone)]
pub(super) struct Flushed {
    pub(super) last: Last,
    pub(super) members: Arc<Membership>,
    pub(super) snapshot: Arc<Snapshot>,
}

/// What is offered.
#[derive(Default)]
pub(super) struct Offers(Mutex<State>);

#[derive(Default)]
struct State {
    flushed: Option<Flushed>,
    /// The number of the last entry that the flush under way writes.
    flushing: u64,
    /// The number of an entry that the state must have which a member needs.
    needed: u64,
    /// The offers by the members that they were made to.
    open: BTreeMap<u64, Open>,
}

struct Open {
    number: u64,
    of: Flushed,
    begun: Instant,
    used: Instant,
    bytes: u64,
    /// Whether the member has asked for it, which lacks no entries.
    is_lent: bool,
    /// Whether its last piece was sent.
    is_whole: bool,
}

impl Offers {
    /// Takes note of the database as it is since the last flush.
    pub(super) fn flushed(&self, flushed: Flushed) {
        self.0.lock().flushed = Some(flushed);
    }

    /// Returns the number of the last entry that the database has.
    pub(super) fn last_flushed(&self) -> u64 {
        self.0.lock().flushed.as_ref().map_or(0, |flushed| flushed.last.number)
    }

    /// Takes note of a flush that has begun, which writes what comes up to this entry.
    pub(super) fn begin_flush(&self, entry: u64) {
        self.0.lock().flushing = entry;
    }

    /// Returns whether a member waits for a state that there is once what comes up to this entry is flushed.
    pub(super) fn need_flush(&self, entry: u64) -> bool {
        let State { flushed, flushing, needed, .. } = &*self.0.lock();
        let flushed = flushed.as_ref().map_or(0, |flushed| flushed.last.number);
        (flushed.max(*flushing) + 1..=entry).contains(needed)
    }

    /// Offers a member the state, or the one again that it was offered before, where that has the entry `at_least`;
    /// `None` when no such state was flushed yet.
    pub(super) fn offer(&self, member: u64, at_least: u64) -> Option<Offered> {
        self.open(member, at_least, false)
    }

    fn open(&self, member: u64, at_least: u64, is_lent: bool) -> Option<Offered> {
        let mut state = self.0.lock();
        state.needed = state.needed.max(at_least);
        state.open.retain(|of, open| *of != member || open.of.last.number >= at_least);
        if !state.open.contains_key(&member) {
            let of = state.flushed.clone().filter(|flushed| flushed.last.number >= at_least.max(1))?;
            let now = Instant::now();
            let open = Open { number: rand::random(), of, begun: now, used: now, bytes: 0, is_lent, is_whole: false };
            let why = if is_lent { "its own differs" } else { "it lags too far behind" };
            tracing::info!(member, entry = open.of.last.number, "a member is offered the state: {why}");
            state.open.insert(member, open);
        }
        let open = state.open.get_mut(&member)?;
        open.is_lent &= is_lent;
        let of = &open.of;
        Some(Offered { last: of.last, members: Arc::clone(&of.members) })
    }

    /// Offers the state to a member that asks for it, though it lacks no entries: only to one at a time. Returns what
    /// to say; `None` while no such state was flushed, or another member is offered one.
    pub(super) fn lend(&self, member: u64, at_least: u64, term: u64) -> Option<Word> {
        if self.members().iter().any(|of| *of != member) {
            return None;
        }
        self.open(member, at_least, true)?;
        self.word(member, term)
    }

    /// Returns whether a member has asked for what it is offered.
    pub(super) fn is_lent(&self, member: u64) -> bool {
        self.0.lock().open.get(&member).is_some_and(|open| open.is_lent)
    }

    /// Returns whether a member has asked for what it is offered, and was sent all of it.
    pub(super) fn is_lent_whole(&self, member: u64) -> bool {
        self.0.lock().open.get(&member).is_some_and(|open| open.is_lent && open.is_whole)
    }

    /// Returns what to say to a member that is offered the state in this term.
    pub(super) fn word(&self, member: u64, term: u64) -> Option<Word> {
        let state = self.0.lock();
        let open = state.open.get(&member)?;
        Some(Word::Offer(Offer { term, number: open.number, last: open.of.last }))
    }

    /// Returns the answer to a question for a piece of the state.
    ///
    /// # Errors
    /// [`StoreError`] when the database cannot be read.
    pub(super) fn answer(&self, disk: &Disk, member: u64, ask: Ask) -> Result<Word, StoreError> {
        let snapshot = {
            let mut state = self.0.lock();
            let Some(open) = state.open.get_mut(&member).filter(|open| open.number == ask.offer) else {
                return Ok(Word::Gone(ask.offer));
            };
            open.used = Instant::now();
            Arc::clone(&open.of.snapshot)
        };
        let piece = piece(disk, &snapshot, ask)?;
        let bytes = piece.items.len() as u64;
        metrics::counter!("leasehold_member_snapshot_bytes_total", "direction" => "sent").increment(bytes);
        if let Some(open) = self.0.lock().open.get_mut(&member) {
            open.bytes += bytes;
            open.is_whole |= piece.is_last && usize::from(piece.at.keyspace) + 1 == disk.keyspaces().len();
        }
        Ok(Word::Piece(piece))
    }

    /// Returns the number of the last entry of the oldest state that is offered: the log must have what comes after it.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.0.lock().open.values().map(|open| open.of.last.number).min()
    }

    /// Returns the members that are offered the state.
    pub(super) fn members(&self) -> Vec<u64> {
        self.0.lock().open.keys().copied().collect()
    }

    /// Returns whether a member was offered the state, and has asked for none of it for long, or so long as `within`.
    pub(super) fn is_unused(&self, member: u64, within: Duration) -> bool {
        self.0.lock().open.get(&member).is_some_and(|open| open.used.elapsed() > within.min(UNUSED))
    }

    /// Ends the offer to a member, which has what it needs, or will not ask any more.
    pub(super) fn end(&self, member: u64, has_it: bool) {
        let Some(open) = self.0.lock().open.remove(&member) else { return };
        let seconds = open.begun.elapsed().as_secs_f64();
        if has_it && open.bytes > 0 {
            metrics::histogram!("leasehold_member_snapshot_seconds", "direction" => "sent").record(seconds);
        }
        tracing::info!(member, has_it, seconds, bytes = open.bytes, "the offer of the state to a member has ended");
    }

    /// Ends all offers, and forgets the database.
    pub(super) fn clear(&self) {
        *self.0.lock() = State::default();
    }
}

/// Reads a piece of the state.
fn piece(disk: &Disk, snapshot: &Snapshot, ask: Ask) -> Result<Piece, StoreError> {
    let Ask { offer, at } = ask;
    let Cursor { keyspace, after } = &at;
    let keyspaces = disk.keyspaces();
    let missing = || Corrupt(format!("there is no keyspace {keyspace}"));
    let keyspace = keyspaces.get(usize::from(*keyspace)).ok_or_else(missing)?;
    let first = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut items = Vec::with_capacity(PIECE_BYTES + PIECE_BYTES / 8);
    let mut is_last = true;
    for entry in snapshot.range::<&[u8], _>(keyspace, (first, Bound::Unbounded)) {
        if items.len() >= PIECE_BYTES {
            is_last = false;
            break;
        }
        let (key, value) = entry.into_inner().map_err(failed)?;
        for bytes in [&*key, &*value] {
            stored::append(&bytes.len(), &mut items)?;
            items.extend_from_slice(bytes);
        }
    }
    Ok(Piece::of(offer, at, items, is_last))
}
