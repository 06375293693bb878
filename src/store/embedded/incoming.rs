//! The state of another member, which this one receives since it lacks entries that no log has any more.
//!
//! It is put into a database of its own beside the one in use, and only when it is whole, a file says so; from then on
//! the store begins with it, whatever happens. Until then the member goes on as it is, and votes.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use fjall::{Keyspace, PersistMode};

use super::directory::create_folders;
use super::disk::{MetaKey, SUM_KEYS, number};
use super::engine::Engine;
use super::equality::rebuild::Lent;
use super::equality::sum::Sum;
use super::exchange::{Exchange, Offering};
use super::inspect::{seal_closed, seal_open};
use super::kept::Last;
use super::mailbox::Next;
use super::opening::{open_database, open_keyspaces};
use super::options::EmbeddedOptions;
use super::seal::{LogSeal, Received, Seal, Stage};
use super::words::{Ask, Cursor, Offer, Piece, Word};
use crate::store::StoreError;

/// A piece that has not come by then is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// When no piece has come for so long, the state is given up. The leader offers another one.
const SILENCE: Duration = Duration::from_secs(20);

/// The wait after a state was given up.
const REST: Duration = Duration::from_secs(2);

/// Why a state was not received.
#[derive(Debug, thiserror::Error)]
enum GivenUp {
    #[error("it is not offered any more")]
    Gone,
    #[error("the member that has it is silent")]
    Silent,
    #[error("it is not wanted any more: another member leads, the states were compared again, or too much was written")]
    Unwanted,
    #[error("the store is closed")]
    Closed,
    #[error("there is no room for it on the disk")]
    NoRoom,
    #[error("it is not what was offered: {0}")]
    Wrong(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Database(#[from] fjall::Error),
}

/// Receives what is offered, until the exchange is closed or a state was received whole.
///
/// # Errors
/// [`StoreError`] when the member cannot go on.
pub(super) fn receive(engine: &Engine, exchange: &Exchange, options: &EmbeddedOptions) -> Result<(), StoreError> {
    loop {
        let (from, offer) = match exchange.offered.next(None) {
            Next::One((from, Offering::Offer(offer))) => (from, offer),
            // Of a state that was given up.
            Next::One(_) | Next::None => continue,
            Next::Closed => return Ok(()),
        };
        let lags = engine.lacks(offer.last);
        let lent = if lags { None } else { engine.accepts(exchange, from, &offer) };
        if !lags && lent.is_none() {
            continue;
        }
        let mut receiving = Receiving { engine, exchange, options, from, offer, lent, bytes: 0, begun: Instant::now() };
        if lags {
            let entry = offer.last.number;
            tracing::info!(member = from, entry, "this member lags too far behind, and receives the state");
        }
        exchange.receives(Some(0));
        let received = receiving.run();
        let is_whole = received.is_ok();
        match received {
            Ok(seal) => {
                let begins = match receiving.lent.take() {
                    Some(lent) => engine.replace_with(exchange, (from, &offer), seal, lent)?,
                    None => engine.begin_instead(offer.last, seal)?,
                };
                if begins {
                    tracing::info!(bytes = receiving.bytes, "the state was received: the store begins with it");
                    exchange.received.put(());
                    return Ok(());
                }
            }
            Err(GivenUp::Closed) => return Ok(()),
            Err(why) if !lags && !matches!(why, GivenUp::Gone | GivenUp::Unwanted) => {
                tracing::warn!(%why, "this member was not rebuilt; that is tried again, later each time");
                exchange.equality.lock().rest(Instant::now());
            }
            Err(why) => tracing::warn!(%why, "the state of the other member was not received"),
        }
        exchange.receives(None);
        if !lags {
            engine.give_up_rebuild();
        }
        if let Err(error) = engine.disk.directory.clear_incoming() {
            tracing::warn!(%error, "what was received of a state cannot be removed");
        }
        if !is_whole {
            thread::sleep(REST);
        }
    }
}

impl Engine {
    /// Has the store begin with a state that has this last entry, if it lacks that. Returns whether it does.
    fn begin_instead(&self, last: Last, seal: Seal) -> Result<bool, StoreError> {
        let begins = self.give_way(last);
        if begins {
            let received = Received { seal, keeps_log: false };
            self.disk.directory.write_incoming(&received).map_err(|error| self.disk.stopped(error))?;
        }
        Ok(begins)
    }
}

struct Receiving<'e> {
    engine: &'e Engine,
    exchange: &'e Exchange,
    options: &'e EmbeddedOptions,
    from: u64,
    offer: Offer,
    /// What is to be known of it, where it takes the place of a state that differs.
    lent: Option<Lent>,
    bytes: u64,
    begun: Instant,
}

impl Receiving<'_> {
    /// Receives the state, and returns the seal of its database.
    fn run(&mut self) -> Result<Seal, GivenUp> {
        let directory = &self.engine.disk.directory;
        directory.clear_incoming()?;
        let path = directory.incoming();
        create_folders(&path)?;
        let db = open_database(&path, self.options)?;
        let keyspaces = open_keyspaces(&db)?;
        for (keyspace, number) in keyspaces.iter().zip(0..) {
            self.fill(keyspace, number)?;
        }
        db.persist(PersistMode::SyncAll)?;
        let [.., meta] = &keyspaces;
        let read = |key: MetaKey<'_>| {
            let bytes = meta.get(key.bytes())?;
            let missing = || GivenUp::Wrong(format!("it has no `{}`", key.bytes().escape_ascii()));
            number(&bytes.ok_or_else(missing)?).map_err(GivenUp::Wrong)
        };
        let (last, write) = (self.offer.last, read(MetaKey::SeqNo)?);
        let found = Last { number: read(MetaKey::Entry)?, term: read(MetaKey::PrimaryTerm)? };
        if found != last {
            return Err(GivenUp::Wrong(format!("it ends with {found:?}, and not with {last:?}")));
        }
        if let Some(lent) = &self.lent {
            let [entry, high, low] = SUM_KEYS.map(|key| meta.get(key));
            let number = |read: Result<Option<fjall::Slice>, fjall::Error>| {
                let bytes = read?.ok_or_else(|| GivenUp::Wrong("its sum is not known".to_owned()))?;
                number(&bytes).map_err(GivenUp::Wrong)
            };
            let (entry, sum) = (number(entry)?, Sum::of_halves((number(high)?, number(low)?)));
            // Its documents may have changed at rest.
            if entry != last.number || sum != lent.sum() {
                return Err(GivenUp::Wrong("its sum is not that of its documents".to_owned()));
            }
        }
        let log = LogSeal { last: last.number, segment: last.number + 1, is_closed: false };
        let seal = Seal { stage: Stage::Open, seq_no: write, flushed: write, log, ..Seal::creating() };
        let all: Vec<&Keyspace> = keyspaces.iter().collect();
        let seal = seal_open(&path, &all, &seal)?;
        drop((keyspaces, db));
        let seal = seal_closed(&path, seal).map_err(|damage| GivenUp::Wrong(damage.to_string()))?;
        metrics::histogram!("leasehold_member_snapshot_seconds", "direction" => "received")
            .record(self.begun.elapsed());
        Ok(seal)
    }

    /// Fills a keyspace.
    fn fill(&mut self, keyspace: &Keyspace, number: u8) -> Result<(), GivenUp> {
        let mut at = Cursor { keyspace: number, after: None };
        let mut ingestion = None;
        loop {
            let piece = self.piece(&at)?;
            let mut last = None;
            for pair in piece.pairs() {
                let (key, value) = pair.map_err(GivenUp::Wrong)?;
                let ingestion = match &mut ingestion {
                    Some(begun) => begun,
                    None => ingestion.insert(keyspace.start_ingestion()?),
                };
                ingestion.write(key, value)?;
                if let Some(lent) = &mut self.lent {
                    let own = &self.engine.disk.keyspaces()[usize::from(number)];
                    let own = lent.asks_for_own(number).then(|| own.get(key)).transpose();
                    // What cannot be read may be what differs.
                    let own = own.as_ref().map_or(Some(&[][..]), |own| own.as_ref().and_then(Option::as_deref));
                    lent.add(number, key, value, own).map_err(|why| GivenUp::Wrong(why.0))?;
                }
                last = Some(key.to_vec());
            }
            self.bytes += piece.items.len() as u64;
            self.exchange.receives(Some(self.bytes));
            let received = metrics::counter!("leasehold_member_snapshot_bytes_total", "direction" => "received");
            received.increment(piece.items.len() as u64);
            if piece.is_last {
                break;
            }
            at.after = Some(last.ok_or_else(|| GivenUp::Wrong("a piece has nothing".to_owned()))?);
            self.rest();
        }
        if let Some(ingestion) = ingestion {
            ingestion.finish()?;
        }
        Ok(())
    }

    /// Asks for a piece, time and again, until it comes.
    fn piece(&self, at: &Cursor) -> Result<Piece, GivenUp> {
        if !self.engine.disk.directory.has_room_for(1 << 20) {
            return Err(GivenUp::NoRoom);
        }
        let begun = Instant::now();
        while begun.elapsed() < SILENCE {
            if self.lent.is_some() && !self.engine.still_wants(self.exchange, self.from, &self.offer) {
                return Err(GivenUp::Unwanted);
            }
            self.exchange.say(self.from, &Word::Ask(Ask { offer: self.offer.number, at: at.clone() }));
            let until = Instant::now() + ASK_AGAIN;
            loop {
                match self.exchange.offered.next(Some(until)) {
                    Next::One((_, Offering::Piece(piece))) if piece.offer == self.offer.number && piece.at == *at => {
                        return Ok(piece);
                    }
                    Next::One((_, Offering::Gone(offer))) if offer == self.offer.number => return Err(GivenUp::Gone),
                    // A piece that came twice, or another offer: this one goes on as long as it can.
                    Next::One(_) => {}
                    Next::None => break,
                    Next::Closed => return Err(GivenUp::Closed),
                }
            }
        }
        Err(GivenUp::Silent)
    }

    /// Waits as long as it takes not to receive faster than is allowed.
    fn rest(&self) {
        let Some(rate) = self.options.group.as_ref().and_then(|group| group.receive_bytes_per_second) else { return };
        let due = Duration::from_secs_f64(self.bytes as f64 / rate.max(1) as f64);
        if let Some(rest) = due.checked_sub(self.begun.elapsed()) {
            thread::sleep(rest.min(SILENCE / 2));
        }
    }
}
