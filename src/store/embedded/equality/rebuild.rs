//! How a member whose state alone differs gets that of the others, by itself.
//!
//! It does so only where nothing else can be right: all members have compared their states after the same entry, all
//! others have the same one, most voters had agreed before, and this one votes and does not lead. It asks its leader,
//! which sees to it that this is so by its own judgement, that no other member is offered a state, and that the others
//! are a majority that takes entries. Everything else is an alarm, and a person decides.
//!
//! The member receives the state as one that lags does ([`incoming`](super::super::incoming)) and takes part as one
//! meanwhile. It forgets nothing that others count on: its vote stays, and its log, which goes on behind the state that
//! it receives. Before that takes the place of its own, a file says why ([`rebuilds`](super::rebuilds)). One that
//! differs again within a day is left as it is.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use super::super::engine::Engine;
use super::super::error::Corrupt;
use super::super::exchange::Exchange;
use super::super::group::Member;
use super::super::seal::{Received, Seal};
use super::super::words::{Offer, Word};
use super::super::{records, schedules, stored, versions};
use super::compared::Alone;
use super::rebuilds::{Differs, Rebuild, Rebuilds};
use super::sum::Sum;
use crate::clock::Timestamp;
use crate::job::ScheduleId;
use crate::store::{Member as _, StoreError};

/// The keyspaces of a state, in their order.
const KEYSPACES: [&str; 10] =
    ["live", "done", "recent", "blocks", "bodies", "records", "schedules", "schedules_due", "schedules_owners", "meta"];

/// The keyspaces before this one have documents with versions, or what is not compared.
const WITH_VERSIONS: u8 = 7;

/// How many documents are kept that differ, and how many bytes of each.
const MOST_DIFFERING: usize = 64;
const KEPT_BYTES: usize = 4 << 10;

/// So many bytes of the log may come behind the state that is received: they are read into memory when the store is
/// opened with it.
const MOST_BEHIND: u64 = 512 << 20;

/// What a member knows of the state of another one that it receives in the place of its own.
pub(crate) struct Lent {
    alone: Alone,
    sum: Sum,
    documents: Vec<Differs>,
}

impl Lent {
    /// Returns whether it is to be known what this member has under a key of this keyspace.
    pub(crate) fn asks_for_own(&self, number: u8) -> bool {
        self.documents.len() < MOST_DIFFERING && number < WITH_VERSIONS
    }

    /// Takes note of what the state has under a key, where `own` is what this member has there: nothing in the place of
    /// what cannot be read.
    ///
    /// # Errors
    /// [`Corrupt`] when it is no document.
    pub(crate) fn add(&mut self, number: u8, key: &[u8], value: &[u8], own: Option<&[u8]>) -> Result<(), Corrupt> {
        let keyspace = KEYSPACES[usize::from(number)];
        let Some(sum) = Sum::of_stored(keyspace, key, value)? else { return Ok(()) };
        self.sum += sum;
        let differs = own.filter(|own| *own != value);
        if let Some(own) = differs.filter(|own| is_same_version(keyspace, key, own, value)) {
            let text = |bytes: &[u8]| hex(&bytes[..bytes.len().min(KEPT_BYTES)]);
            let (keyspace, key) = (keyspace.to_owned(), key.escape_ascii().to_string());
            self.documents.push(Differs { keyspace, key, own: text(own), other: text(value) });
        }
        Ok(())
    }

    /// Returns the sum over the documents that came.
    pub(crate) fn sum(&self) -> Sum {
        self.sum
    }
}

/// Returns whether a document has the same version in both forms, so that it must be the same.
fn is_same_version(keyspace: &str, key: &[u8], one: &[u8], other: &[u8]) -> bool {
    let version = |value: &[u8]| match keyspace {
        "live" | "done" => Some(stored::decode(&stored::id_of(key).ok()?, value).ok()?.version),
        "records" => Some(records::decode(&records::key_of(key).ok()?, value).ok()?.version),
        "schedules" => {
            let id = ScheduleId::new(std::str::from_utf8(key).ok()?).ok()?;
            Some(schedules::decode(&id, value).ok()?.version)
        }
        _ => None,
    };
    // One that cannot be read is a difference as well.
    version(one) == version(other) || version(one).is_none()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the time by the clock of this machine, as far as it knows one: a store has none, and this outlives it.
fn now() -> Timestamp {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Returns whether a member that differs may be rebuilt by itself, where its directory says that it was not lately.
fn may_be_rebuilt(directory: &Path, entry: u64) -> bool {
    match Rebuilds::read(directory).map(|rebuilds| rebuilds.lately(now()).map(|last| last.at)) {
        Ok(None) => return true,
        Ok(Some(last)) => tracing::error!(
            entry,
            %last,
            "this member alone differs from all others, and was rebuilt for that within a day: it is left as it is"
        ),
        Err(why) => tracing::error!(entry, %why, "this member alone differs from all others, and is left as it is"),
    }
    false
}

impl Engine {
    /// Asks the leader for its state, where this member alone differs and may be rebuilt by itself.
    pub(crate) fn look_at_rebuild(&self, member: &Member, exchange: &Exchange) {
        let leader = member.position().leader.filter(|leader| *leader != exchange.number());
        {
            let mut equality = exchange.equality.lock();
            let may = |entry| leader.is_some() && may_be_rebuilt(self.disk.directory.path(), entry);
            if equality.rests(Instant::now()) || !equality.wants_state(leader.is_some(), may) {
                return;
            }
        }
        let knows = |leader: &u64| exchange.others(|others| others.reads(*leader, versions::REBUILDS));
        let Some(leader) = leader.filter(|leader| knows(leader).unwrap_or_default()) else { return };
        if exchange.standing().borrow().receives.is_none() {
            exchange.say(leader, &Word::Lend(exchange.offers.last_flushed()));
        }
    }

    /// Offers this leader's state to a member that asks for one with this entry, since its own differs.
    pub(crate) fn lend(&self, member: &Member, exchange: &Exchange, to: u64, at_least: u64) {
        let members = member.members();
        let is_voter = members.seats.get(&to).is_some_and(|seat| seat.votes);
        if !self.leads(member) || !is_voter || !exchange.equality.lock().is_alone(to) {
            return;
        }
        // Those that would go on without it.
        let takes_entries = |voter: &u64| {
            let says = exchange.others(|others| others.lately(*voter).is_some_and(|hello| !hello.receives));
            *voter == exchange.number() || says.unwrap_or_default() && member.can_follow(*voter)
        };
        let voters: Vec<u64> = members.that_vote(true).collect();
        let others = voters.iter().filter(|voter| **voter != to && takes_entries(voter)).count();
        if 2 * others <= voters.len() {
            return;
        }
        if let Some(word) = exchange.offers.lend(to, at_least.max(1), member.position().term) {
            exchange.say(to, &word);
        }
    }

    /// Returns what is to be known of a state that is offered, where this member is to be rebuilt with it. The log is
    /// kept behind it from then on.
    pub(crate) fn accepts(&self, exchange: &Exchange, from: u64, offer: &Offer) -> Option<Lent> {
        let alone = exchange.equality.lock().wanted().cloned()?;
        let is_of_leader = {
            let member = self.member.lock();
            // The leader has applied it, and this one has the entries up to what was committed in its log.
            let position = member.position();
            position.leader == Some(from) && offer.last.number <= position.committed
        };
        if !is_of_leader || !self.log.lock().hold(Some(offer.last.number + 1)) {
            tracing::info!(from, entry = offer.last.number, "a state is not taken: the log does not go on behind it");
            self.log.lock().hold(None);
            return None;
        }
        if !self.has_room_beside() {
            tracing::warn!("there is no room for another state beside that of this member, which alone differs");
            exchange.equality.lock().rest(Instant::now());
            self.log.lock().hold(None);
            return None;
        }
        metrics::counter!("leasehold_member_rebuilds_total", "outcome" => "begun").increment(1);
        tracing::warn!(
            compared = alone.entry,
            leader = from,
            "the state of this member alone differs from that of all others: it is rebuilt with that of the leader"
        );
        Some(Lent { alone, sum: Sum::default(), documents: Vec::new() })
    }

    /// Returns whether there is room for a state beside the own one, which is about as large.
    fn has_room_beside(&self) -> bool {
        let own: u64 = self.disk.keyspaces().iter().map(|keyspace| keyspace.disk_space()).sum();
        self.disk.directory.has_room_for(own + own / 10 + self.published.read().unflushed.bytes)
    }

    /// Returns whether a state that is received in the place of the own one is still wanted.
    pub(crate) fn still_wants(&self, exchange: &Exchange, from: u64, offer: &Offer) -> bool {
        let is_wanted = exchange.equality.lock().wanted().is_some();
        let is_little = self.log.lock().bytes_behind(offer.last.number) <= MOST_BEHIND;
        is_wanted && is_little && exchange.standing().borrow().leader == Some(from)
    }

    /// Has the store begin with a state that was received in the place of its own. Returns whether it does.
    ///
    /// # Errors
    /// [`StoreError`] when that cannot be written. Then the store must stop.
    pub(crate) fn replace_with(
        &self,
        exchange: &Exchange,
        (from, offer): (u64, &Offer),
        seal: Seal,
        lent: Lent,
    ) -> Result<bool, StoreError> {
        if !self.still_wants(exchange, from, offer) {
            return Ok(false);
        }
        let Lent { alone, documents, .. } = lent;
        let sums = alone.sums.iter().map(|(number, sum)| (*number, format!("{:032x}", sum.0))).collect();
        let rebuild = Rebuild { at: now(), compared: alone.entry, sums, from, last: offer.last, documents };
        let directory = &self.disk.directory;
        {
            let member = self.member.lock();
            let position = member.position();
            if position.is_leader || position.leader != Some(from) {
                return Ok(false);
            }
            // Before anything is replaced: it is not done twice in a day.
            let rebuilds = Rebuilds::read(directory.path()).map_err(|why| why.to_string());
            if let Err(why) = rebuilds.and_then(|all| all.add(rebuild, directory).map_err(|error| error.to_string())) {
                tracing::error!(%why, "it cannot be written why this member is to be rebuilt: it is left as it is");
                exchange.equality.lock().rest(Instant::now());
                return Ok(false);
            }
            self.gives_way.store(true, Ordering::Release);
        }
        directory.write_incoming(&Received { seal, keeps_log: true }).map_err(|error| self.disk.stopped(error))?;
        metrics::counter!("leasehold_member_rebuilds_total", "outcome" => "done").increment(1);
        tracing::warn!(
            from,
            entry = offer.last.number,
            "this member is rebuilt with the state of another one: `leasehold.rebuilds` in its directory says why"
        );
        Ok(true)
    }

    /// Ends a rebuild that comes to nothing.
    pub(crate) fn give_up_rebuild(&self) {
        self.log.lock().hold(None);
        metrics::counter!("leasehold_member_rebuilds_total", "outcome" => "given_up").increment(1);
    }
}
