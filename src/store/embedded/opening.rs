//! How the database is opened and closed, and its seal kept.
//!
//! Opening first compares what is on disk with the seal, and refuses what is damaged: the database itself cuts journals
//! and deletes tables that it does not understand. Only then is the database let at its files.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};
use parking_lot::Mutex;
use raft::eraftpb::{Entry, EntryType};

use super::directory::{Directory, read_from_disk, remove_folder, sync_directory};
use super::disk::{Disk, failed};
use super::engine::{Engine, replay};
use super::entry;
use super::error::{Corrupt, OpenError, is_full};
use super::exchange::Exchange;
use super::group::{ALONE, Member};
use super::inspect::{Inspected, JOURNAL_END, inspect, keyspaces_folder, seal_closed, seal_open};
use super::kept::{Earlier, Last, Offered, data_of, entry_of};
use super::log::{self, Expected, Format, Found, Log};
use super::offer::Flushed;
use super::opened::OpeningsFile;
use super::options::{EmbeddedOptions, GroupOptions};
use super::others::Others;
use super::recover::RecoverError;
use super::seal::{LogSeal, Received, Seal, SealedGroup, Stage, Vote};
use super::state::{FlushLimits, Published};
use super::versions;
use crate::store::{Identity, Membership, Seat, StoreError};

/// Journals beyond this make the database write out what still needs the oldest one. It bounds how long it takes to
/// open the store after a crash.
const JOURNAL_BYTES: u64 = 128 << 20;

/// The most bytes that a keyspace gathers in memory before it writes them out. This bounds memory, with up to five of
/// these for each keyspace while writing out falls behind.
const MEMTABLE_BYTES: u64 = 32 << 20;

/// The same bound for the keyspaces with few writes.
const SMALL_MEMTABLE_BYTES: u64 = 8 << 20;

/// Bodies from this size on are not moved when their keyspace is compacted.
const SEPARATE_BODY_BYTES: u32 = 4 << 10;

/// How many members a group is founded with: with three one may fail, with five two.
const FOUNDERS: [usize; 2] = [3, 5];

/// How many terms a member that goes on alone leaves to those that it does not know of.
const TERMS_AHEAD: u64 = 1_000;

/// The keyspaces that opening reads whole, so that their tables can be checked first at little cost.
const READ_AT_OPENING: [&str; 4] = ["live", "recent", "records", "meta"];

impl Engine {
    /// Opens the store in a directory. A store of its own begins its next term; `exchange` is the mailbox of one of
    /// several members, who has one of them begin a term together.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(super) fn open(
        directory: Directory,
        options: &EmbeddedOptions,
        exchange: Option<Arc<Exchange>>,
    ) -> Result<Self, OpenError> {
        let root = directory.path().to_owned();
        let root = root.as_path();
        let failed = |doing| move |source| OpenError::Io { doing, directory: root.to_owned(), source };
        let not_written = |source| match is_full(&source) {
            true => OpenError::Full { directory: root.to_owned(), source },
            false => failed("write to")(source),
        };
        directory.try_room().and_then(|()| directory.take_room()).map_err(not_written)?;
        let damaged = |damages| OpenError::Damaged { directory: root.to_owned(), damages };
        let mut openings = OpeningsFile::default();
        if let Some(group) = &options.group {
            openings = OpeningsFile::read(root).map_err(|damage| damaged(vec![damage]))?;
            // One that goes on alone has nobody who counts on more.
            match group.goes_on_alone {
                true => openings.went_back = false,
                false if openings.is_copy(root) => return Err(OpenError::Copied { directory: root.to_owned() }),
                false => openings.open(rand::random_range(1..=u64::MAX)),
            }
        }
        let log_options = log::Options { segment_bytes: options.segment_bytes, format: Format::Single };
        match directory.received().map_err(|damage| damaged(vec![damage]))? {
            Some(received) => {
                let own = Seal::read(root).map_err(|damage| damaged(vec![damage]))?;
                begin_with(&directory, own, received, log_options).map_err(not_written)?;
            }
            None => directory.clear_incoming().map_err(failed("clear"))?,
        }
        let (path, seal) = directory.database(|path| {
            let db = open_database(path, options)?;
            open_keyspaces(&db)?;
            db.persist(PersistMode::SyncAll)
        })?;
        let seal = of_group(seal, options.group.as_ref(), root)?;
        let (folder, sealed) = (directory.log(), seal.log);
        let mut tables = None;
        if seal.stage == Stage::Creating {
            // What is in a log was acknowledged, whatever the seal says.
            if let Some(damage) = log::look_at_new(&folder) {
                return Err(damaged(vec![damage]));
            }
            create_log(&folder, log_options).map_err(failed("create the log of"))?;
        } else {
            if !sealed.is_closed {
                let read = read_from_disk(&folder, "").and_then(|()| read_from_disk(&path, JOURNAL_END));
                read.map_err(failed("look into"))?;
            }
            // Before the database may change anything: it cuts and deletes what it does not understand.
            let mut found = inspect(&path, &seal, |keyspace| READ_AT_OPENING.contains(&keyspace));
            found.damages.extend(log::look_at(&folder, sealed));
            if !found.damages.is_empty() {
                return Err(damaged(found.damages));
            }
            found.cut_torn(&path).map_err(failed("repair"))?;
            tables = Some(found);
        }
        // The database does not say which file it cannot read.
        let unreadable = |source| match tables.as_ref().map(Inspected::damaged_tables) {
            Some(damages) if !damages.is_empty() => damaged(damages),
            _ => OpenError::Database { directory: root.to_owned(), source },
        };
        let broken = |failure| match failure {
            RecoverError::Database(source) => unreadable(source),
            RecoverError::Seal(source) => failed("write the seal of")(source),
            RecoverError::Corrupt(Corrupt(what)) => OpenError::Corrupt { directory: root.to_owned(), what },
            RecoverError::Store(error) => failed("write to the database in")(io::Error::other(error)),
            RecoverError::Damaged(damages) => damaged(damages),
        };
        let limits = options.flush_limits();
        let disk = Disk::open(directory, path, &seal, options).map_err(broken)?;
        let mut published = disk.recover().map_err(broken)?;
        let mut entries = Vec::new();
        let found = match options.group {
            None => read_log(&disk, &mut published, &folder, sealed, &limits),
            // Which of them are committed, the leader says.
            Some(_) => read_entries(&mut entries, published.entry, &folder, sealed),
        };
        let found = found.map_err(broken)?;
        let last = Last { number: published.entry, term: published.last.primary_term };
        let vote = disk.vote(entries.last().map_or(last.term, |entry: &Entry| entry.term)).map_err(broken)?;
        // Before the log is opened, which is not closed from then on.
        let log = LogSeal { last: published.entry, is_closed: false, segment: found.segment_of(published.entry) };
        disk.checkpoint(published.last.seq_no, log).map_err(failed("write the seal of"))?;
        let dropped = found.torn.as_ref().map(ToString::to_string);
        // A store of its own writes one entry at a time: any version that reads the rest of it reads its log.
        let format = log_format(published.members.as_deref().filter(|_| options.group.is_some()));
        let log_options = log::Options { format, ..log_options };
        let log = Log::open(&folder, found, log_options).map_err(failed("open the log of"))?;
        let first = Arc::new(AtomicU64::new(log.first()));
        let member = match (&options.group, &exchange) {
            (Some(group), Some(exchange)) => {
                let mut sealed = disk.seal.lock().group.clone().unwrap_or_default();
                let founded = Arc::new(Membership::founded(&sealed.founders));
                let mut members = published.members.clone().unwrap_or_else(|| Arc::clone(&founded));
                if group.goes_on_alone {
                    let seat = Seat { votes: true, directory: sealed.directory, ..Seat::default() };
                    let seats = BTreeMap::from([(group.member, seat)]);
                    sealed.identity = Some(Identity::random());
                    // Before anything else: whatever comes in between, the former group takes it for another one.
                    disk.write_group(sealed.clone()).map_err(failed("write the seal of"))?;
                    // Its log may have what came with a later version already, and nobody goes back from that.
                    let version = members.version.max(latest_version(&entries)).max(versions::UNDONE);
                    members = Arc::new(Membership { seats, identity: sealed.identity, version });
                }
                exchange.equality.lock().begin(published.summed.documents().is_some());
                openings.write(&disk.directory).map_err(failed("write the openings of"))?;
                let had = entries.last().map_or(last, |entry| Last { number: entry.index, term: entry.term });
                let others = Others::of(&sealed, group.tick).settles_in(group.settles_in);
                let others = others.opened_with(openings, had, vote.term);
                exchange.meet(others, founded, &members);
                exchange.agree(&members);
                let (snapshot, members_then) = (Arc::clone(&published.view.snapshot), Arc::clone(&members));
                exchange.offers.flushed(Flushed { last, members: members_then, snapshot });
                let earlier = LogBefore { folder, first: Arc::clone(&first), exchange: Arc::clone(exchange) };
                let vote = if group.goes_on_alone { Vote { term: vote.term + TERMS_AHEAD, member: 0 } } else { vote };
                let member = Member::new(group.member, members, vote, last, entries, Some(Arc::new(earlier)));
                member.map(|member| if group.goes_on_alone { member.alone() } else { member })
            }
            _ => Member::new(ALONE, Arc::new(Membership::founded(&[ALONE])), vote, last, entries, None),
        };
        let began = member.and_then(|member| {
            let engine = Self::new(disk, (log, dropped), (member, exchange, first), published, limits);
            if options.group.is_none() {
                engine.begin_term()?;
            }
            Ok(engine)
        });
        began.map_err(|error| not_written(error.into()))
    }
}

/// Returns the name of the group that the store in a directory is a member of, and its number; `None` when it is a
/// store of its own. Nothing is changed.
///
/// # Errors
/// Why the directory cannot be looked at.
pub fn member_of(path: &Path) -> Result<Option<(String, u64)>, OpenError> {
    let _lock = Directory::look_at(path)?;
    let damaged = |damage| OpenError::Damaged { directory: path.to_owned(), damages: vec![damage] };
    let seal = Seal::read(path).map_err(damaged)?;
    Ok(seal.group.map(|group| (group.cluster, group.member)))
}

/// Lets a member start on a directory that is a copy, or went back in time.
///
/// # Errors
/// Why the directory cannot be looked at, or be written to.
pub fn accept_copy(path: &Path) -> Result<(), OpenError> {
    drop(Directory::look_at(path)?);
    let directory = Directory::hold(path, 0)?;
    let damaged = |damage| OpenError::Damaged { directory: path.to_owned(), damages: vec![damage] };
    let mut openings = OpeningsFile::read(path).map_err(damaged)?;
    openings.went_back = false;
    let failed = |source| OpenError::Io { doing: "write the openings of", directory: path.to_owned(), source };
    openings.write(&directory).map_err(failed)
}

/// Returns the seal with the group that the store is opened as a member of.
///
/// # Errors
/// [`OpenError::OtherGroup`] when the directory belongs to another one, or to a store of its own, and
/// [`OpenError::Founders`] when it is new and there are too few members, or too many.
fn of_group(seal: Seal, group: Option<&GroupOptions>, root: &Path) -> Result<Seal, OpenError> {
    let is_new = seal.stage == Stage::Creating;
    if let Some(GroupOptions { members, joins: false, .. }) = group.filter(|_| is_new)
        && !FOUNDERS.contains(&members.len())
    {
        return Err(OpenError::Founders { directory: root.to_owned(), members: members.len() });
    }
    let given = group.map(|group| SealedGroup {
        cluster: group.cluster.clone(),
        member: group.member,
        directory: rand::random_range(1..=u64::MAX),
        is_admitted: !is_new,
        founders: if group.joins { Vec::new() } else { group.members.clone() },
        known: BTreeMap::new(),
        identity: None,
        awaits_founders: is_new && !group.joins,
    });
    let name = |group: &SealedGroup| (group.cluster.clone(), group.member);
    if seal.group.as_ref().map(name) != given.as_ref().map(name) && !is_new {
        let is = |group: Option<SealedGroup>| match group {
            Some(SealedGroup { cluster, member, .. }) => format!("member {member} of the group `{cluster}`"),
            None => "a store of its own".to_owned(),
        };
        return Err(OpenError::OtherGroup { directory: root.to_owned(), found: is(seal.group), given: is(given) });
    }
    // One from before directories had numbers is given one now.
    let has_number = |group: &SealedGroup| group.directory != 0;
    let group = seal.group.clone().filter(|group| has_number(group) && !is_new).or(given);
    Ok(Seal { group, ..seal })
}

/// Begins with a database that was received from another member, in the place of the one with the seal `own`. When that
/// ends early, it is done again.
fn begin_with(directory: &Directory, own: Seal, received: Received, options: log::Options) -> io::Result<()> {
    directory.put_received()?;
    let Received { seal, keeps_log } = received;
    let log = if keeps_log {
        own.log
    } else {
        let folder = directory.log();
        remove_folder(&folder)?;
        Log::create(&folder, seal.log.last + 1, options)?;
        seal.log
    };
    directory.write_seal(&Seal { vote: own.vote, group: own.group, log, ..seal })?;
    directory.end_received()
}

/// Returns the format in which a member of these members writes its log: one that all of them read, so that a directory
/// can be opened by the version that any of them has.
pub(super) fn log_format(members: Option<&Membership>) -> Format {
    let knows = members.is_some_and(|members| members.version >= versions::BATCHES);
    if knows { Format::Batched } else { Format::Single }
}

/// The entries of the log that are not in memory any more.
struct LogBefore {
    folder: PathBuf,
    first: Arc<AtomicU64>,
    exchange: Arc<Exchange>,
}

impl Earlier for LogBefore {
    fn first(&self) -> u64 {
        self.first.load(Ordering::Acquire)
    }

    fn frames(&self, number: u64, last: u64) -> io::Result<(u64, Vec<Bytes>)> {
        log::frames(&self.folder, number, last)
    }

    fn offer(&self, member: u64, at_least: u64) -> Option<Offered> {
        self.exchange.offers.offer(member, at_least)
    }
}

/// Creates a log, and removes what is left of one whose creation ended early.
fn create_log(folder: &Path, options: log::Options) -> io::Result<()> {
    remove_folder(folder)?;
    Log::create(folder, 1, options).map(drop)
}

/// Reads the entries of the log that the database does not have, of which the last is `flushed`.
fn read_entries(entries: &mut Vec<Entry>, flushed: u64, folder: &Path, sealed: LogSeal) -> Result<Found, RecoverError> {
    let sealed = LogSeal { last: sealed.last.max(flushed), ..sealed };
    let found = log::read(folder, &Expected { first: flushed + 1, sealed }, |number, bytes| {
        entries.push(entry_of(number, Bytes::copy_from_slice(bytes))?);
        Ok(())
    });
    found.map_err(RecoverError::Damaged)
}

/// Returns the latest version that a group is given by these entries; 0 where they give it none.
fn latest_version(entries: &[Entry]) -> u32 {
    let decoded = entries.iter().filter(|entry| entry.entry_type == EntryType::EntryConfChange);
    let decoded = decoded.filter_map(|entry| entry::Entry::decode(&data_of(entry)).ok());
    decoded.filter_map(|entry| entry.members).map(|members| members.version).max().unwrap_or(0)
}

/// Takes over the entries of the log that the database does not have.
fn read_log(
    disk: &Disk,
    published: &mut Published,
    folder: &Path,
    sealed: LogSeal,
    limits: &FlushLimits,
) -> Result<Found, RecoverError> {
    let sealed = LogSeal { last: sealed.last.max(published.entry), ..sealed };
    let mut failure = None;
    let found = log::read(folder, &Expected { first: published.entry + 1, sealed }, |number, bytes| {
        replay(disk, published, number, bytes)?.show(published);
        published.summed.keep_up();
        let is_due = published.is_flush_due(limits) && disk.has_room_to_flush(published);
        if is_due && failure.is_none() {
            let flush = published.begin_flush(limits);
            match disk.flush(&flush) {
                Err(error) => failure = Some(error),
                Ok(blocks) => {
                    published.end_flush(disk.snapshot(), flush.moved);
                    blocks.into_iter().zip(&flush.cut).for_each(|(block, cut)| published.put_block(block, &cut.heads));
                }
            }
        }
        Ok(())
    });
    let found = found.map_err(RecoverError::Damaged)?;
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    Ok(found)
}

impl Disk {
    /// Opens the database at `path`, which was found to be as the seal says.
    fn open(directory: Directory, path: PathBuf, seal: &Seal, options: &EmbeddedOptions) -> Result<Self, RecoverError> {
        let opened = seal.clone().opened();
        directory.write_seal(&opened).map_err(RecoverError::Seal)?;
        let db = match open_database(&path, options) {
            Ok(db) => db,
            Err(source) => {
                // It changes nothing before it has opened all its tables.
                directory.write_seal(seal).map_err(RecoverError::Seal)?;
                return Err(source.into());
            }
        };
        let had = db.keyspace_count();
        let [live, done, recent, blocks, bodies, records, schedules, due, owners, meta] = open_keyspaces(&db)?;
        // A version that knew fewer keyspaces has left the directory: the next seal says that all are there.
        if db.keyspace_count() > had {
            sync_directory(&keyspaces_folder(&path)).map_err(fjall::Error::Io)?;
        }
        let (jobs_read, schedules_read) = (AtomicU64::new(0), AtomicU64::new(0));
        let (flushed, seal) = (AtomicU64::new(0), Mutex::new(opened));
        Ok(Self {
            live,
            done,
            recent,
            blocks,
            bodies,
            records,
            schedules,
            due,
            owners,
            meta,
            jobs_read,
            schedules_read,
            flushed,
            db,
            path,
            seal,
            directory,
        })
    }

    /// Writes the seal anew, unless it is as it was. `write` is the number of a durable write, and `log` says how far
    /// the log has come.
    pub(super) fn checkpoint(&self, write: u64, log: LogSeal) -> io::Result<()> {
        let mut seal = self.seal.lock();
        let flushed = self.flushed.load(Ordering::Acquire);
        let next = seal_open(&self.path, &self.keyspaces(), &Seal { seq_no: write, flushed, log, ..seal.clone() })?;
        if next != *seal {
            self.directory.write_seal(&next)?;
            *seal = next;
        }
        Ok(())
    }

    /// Closes the database, and seals it as it is then, with the log that is closed.
    ///
    /// # Errors
    /// An error when not everything could be written, or what was written cannot be read. Then the seal says no more
    /// than at the last checkpoint.
    pub(super) fn close(self, write: u64, log: LogSeal) -> Result<(), StoreError> {
        self.db.persist(PersistMode::SyncAll).map_err(failed)?;
        let sealing = |error: io::Error| StoreError::Unavailable(format!("the seal: {error}"));
        self.checkpoint(write, log).map_err(sealing)?;
        let Self { live, done, recent, blocks, bodies, records, schedules, due, owners, meta, .. } = self;
        drop([live, done, recent, blocks, bodies, records, schedules, due, owners, meta]);
        let Self { db, path, seal, directory, .. } = self;
        drop(db);
        let seal = seal_closed(&path, seal.into_inner()).map_err(|damage| StoreError::Corrupt(damage.to_string()))?;
        directory.write_seal(&seal).map_err(sealing)
    }

    /// Returns all keyspaces.
    pub(super) fn keyspaces(&self) -> [&Keyspace; 10] {
        let Self { live, done, recent, blocks, bodies, records, schedules, due, owners, meta, .. } = self;
        [live, done, recent, blocks, bodies, records, schedules, due, owners, meta]
    }
}

pub(super) fn open_database(path: &Path, options: &EmbeddedOptions) -> Result<Database, fjall::Error> {
    Database::builder(path).cache_size(options.cache_bytes).max_journaling_size(JOURNAL_BYTES).open()
}

/// The keyspaces, created where they are missing. Their options are kept by the database from then on. Filters, on
/// by default, let the creation of a job with a fresh id pass `done` without reading from it.
pub(super) fn open_keyspaces(db: &Database) -> Result<[Keyspace; 10], fjall::Error> {
    let options = |memtable| move || KeyspaceCreateOptions::default().max_memtable_size(memtable);
    let separate = KvSeparationOptions::default().separation_threshold(SEPARATE_BODY_BYTES);
    Ok([
        db.keyspace("live", options(MEMTABLE_BYTES))?,
        db.keyspace("done", options(MEMTABLE_BYTES))?,
        db.keyspace("recent", options(SMALL_MEMTABLE_BYTES))?,
        db.keyspace("blocks", options(SMALL_MEMTABLE_BYTES))?,
        db.keyspace("bodies", || options(MEMTABLE_BYTES)().with_kv_separation(Some(separate)))?,
        db.keyspace("records", options(SMALL_MEMTABLE_BYTES))?,
        db.keyspace("schedules", options(MEMTABLE_BYTES))?,
        db.keyspace("schedules_due", options(SMALL_MEMTABLE_BYTES))?,
        db.keyspace("schedules_owners", options(SMALL_MEMTABLE_BYTES))?,
        db.keyspace("meta", options(SMALL_MEMTABLE_BYTES))?,
    ])
}
