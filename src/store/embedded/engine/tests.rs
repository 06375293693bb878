//! The same log gives the same state, on any machine, however often each has written its database meanwhile.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use xxhash_rust::xxh3::Xxh3;

use super::super::block::Column;
use super::super::directory::Directory;
use super::super::equality::scrub::Count;
use super::super::equality::sum::Sum;
use super::super::lists::{self, Wanted};
use super::super::seal::Vote;
use super::super::stored;
use super::*;
use crate::clock::Timestamp;
use crate::job::{Actor, Body, Claim, JobSpec, Json, NewBody, Owner, Partition, RecordName, ScheduleId, WorkerId};
use crate::store::embedded::EmbeddedOptions;
use crate::store::{
    DueSchedules, ListSchedules, RecordKind, RecordWrite, ScheduleWrite, StoredSchedule, Version, Write,
};

mod endurance;
mod history;
mod liar;
mod lies;
mod platter;
mod schedules;

use history::History;

/// How many histories are made up, of how many writes each. The nightly script asks for more of both.
const SEEDS: u64 = 2;
const WRITES: u64 = 6_000;
const WRITES_IN_A_BATCH: usize = 50;
/// So many that a job is hardly ever created twice while it is there, and often after it was removed.
const IDS: u32 = 1_000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// An engine on a directory of its own.
struct Machine {
    engine: Engine,
    directory: TempDir,
    options: EmbeddedOptions,
    /// A flush that has begun and is not written yet.
    flush: Option<Flush>,
}

impl Machine {
    fn new(flush_changes: u64) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let options = EmbeddedOptions { block_jobs: 4, flush_changes, ..EmbeddedOptions::default() };
        Self { engine: open(&directory, &options), directory, options, flush: None }
    }

    /// Writes what has changed to the database when that is due, and what is being written before it.
    fn flush_if_due(&mut self, is_late: bool) {
        if self.engine.is_flush_due() {
            self.end_flush();
            self.flush = Some(self.engine.begin_flush());
        }
        if !is_late {
            self.end_flush();
        }
    }

    fn end_flush(&mut self) {
        if let Some(flush) = self.flush.take() {
            self.engine.write_flush(&flush).expect("the database takes it");
        }
    }

    /// Commits a batch, and another one that is decided before it is written if it may be.
    fn commit_two(&self, history: &mut History) -> Vec<Written> {
        let first = self.decided(history);
        if self.engine.must_show_first(&first) {
            return vec![self.engine.write(first).expect("it is written")];
        }
        let commands = history.batch();
        let batch = self.engine.decided(Some(&first), commands.clone());
        let first = self.engine.write(first).expect("it is written");
        let mut second = self.engine.end(batch).expect("it can be written");
        history.learn(&commands, mem::take(&mut second.outcomes));
        vec![first, self.engine.write(second).expect("it is written")]
    }

    /// Decides a batch.
    fn decided(&self, history: &mut History) -> Decided {
        let commands = history.batch();
        let mut decided = self.engine.end(self.engine.decided(None, commands.clone())).expect("it can be written");
        history.learn(&commands, mem::take(&mut decided.outcomes));
        decided
    }

    /// Decides two batches, of which the first cannot be written.
    fn decide_and_drop(&self, mut history: History) {
        let ahead = self.decided(&mut history);
        drop(self.engine.decided(Some(&ahead), history.batch()));
    }

    fn term(&self) -> u64 {
        self.engine.published.read().last.primary_term
    }

    /// The process ends without closing anything, and another one opens the directory.
    fn restarted(self) -> Self {
        let Self { engine, directory, options, flush } = self;
        drop((engine, flush));
        Self { engine: open(&directory, &options), directory, options, flush: None }
    }

    /// Takes over an entry of another machine's log, as a member of its group would.
    fn follow(&mut self, bytes: &[u8]) {
        let term = postcard::take_from_bytes(bytes).expect("it begins with a term").0;
        if term != self.term() {
            self.engine.disk.write_vote(Vote { term, member: 0 }).expect("the database takes it");
        }
        let entry = self.engine.log.lock().append(bytes).expect("the log takes it");
        let mut published = self.engine.published.write();
        replay(&self.engine.disk, &published, entry, bytes).expect("it follows").show(&mut published);
        drop(published);
        self.flush_if_due(false);
    }

    /// The hash of the state, once all that was begun is written.
    fn hash(&mut self) -> u128 {
        self.end_flush();
        assert_sum_is_kept(&self.engine);
        hash(&self.engine)
    }

    /// The sum over the whole state, but for the term, of which each opening has another.
    fn sum(&self) -> Option<Sum> {
        let published = self.engine.published.read();
        published.summed.documents().map(|documents| documents + published.finished.sum)
    }
}

/// Counts all documents on disk, and checks that their sum is the one that was kept.
fn assert_sum_is_kept(engine: &Engine) {
    let (view, moved) = (engine.published.read().view.clone(), engine.published.read().summed.moved());
    let since = moved - view.moved;
    let mut count = Count::of(view);
    while !count.read(&engine.disk, 10_000).expect("readable") {}
    let kept = engine.published.read().summed.documents();
    assert_eq!(kept, Some(count.sum() + since), "the sum is not that of the documents");
}

/// A hash over all that the state consists of, in memory and on disk; not over the term, of which each opening has
/// another. No flush may be under way: it moves jobs from memory to blocks when it ends.
fn hash(engine: &Engine) -> u128 {
    let published = engine.published.read();
    let (disk, view) = (&engine.disk, &published.view);
    let mut hash = Xxh3::new();
    let mut add = |what: &[u8]| {
        hash.update(&what.len().to_le_bytes());
        hash.update(what);
    };
    let mut bytes = Vec::new();
    let live: BTreeMap<_, _> = published
        .live
        .all()
        .iter()
        .flat_map(|shard| shard.iter())
        .map(|(id, head)| (id.clone(), head.clone()))
        .collect();
    for head in live.values().chain(published.recent.heads()) {
        stored::encode(head, &mut bytes).expect("writable");
        add(head.job.id.as_str().as_bytes());
        add(&bytes);
        for reference in head.job.stored_bodies() {
            let body = published.body(reference.id).cloned();
            let body = body.unwrap_or_else(|| disk.body(&view.snapshot, reference).expect("readable"));
            add(body.expect("it is stored").as_str().as_bytes());
        }
    }
    for kind in RecordKind::ALL {
        add(format!("{:?}", published.records.of(kind).expect("readable")).as_bytes());
    }
    for list in listed(engine) {
        add(format!("{list:?}").as_bytes());
    }
    let mut counts: Vec<_> = published.finished.counts().collect();
    counts.sort_unstable();
    add(format!("{counts:?}").as_bytes());
    for block in &published.blocks.list {
        add(&block.number.to_le_bytes());
        add(&block.encode());
        let reader = Reader { disk, snapshot: &view.snapshot, block };
        for column in (Column::CreatedAt as u8)..=(Column::Id as u8) {
            add(&disk.raw_column(&view.snapshot, column, block.number).expect("readable").expect("it is stored"));
        }
        let ids = reader.ids().expect("readable");
        for row in 0..block.rows {
            let id = ids.get(row as usize).expect("readable");
            // Of one that has left, another version may be there.
            if reader.has_left(row).expect("readable") {
                add(b"left");
            } else {
                stored::encode(&disk.finished(view, &id).expect("readable").expect("it is stored"), &mut bytes)
                    .expect("writable");
                add(&bytes);
            }
        }
    }
    add(&published.last.seq_no.to_le_bytes());
    hash.digest128()
}

/// Returns the schedules by each index.
fn listed(engine: &Engine) -> Vec<Vec<StoredSchedule>> {
    let owners = [None].into_iter().chain(history::OWNERS.map(|owner| Some(Owner::new(owner).expect("a name"))));
    let lists = owners.map(|owner| Wanted::by_id(owner.as_ref(), None, usize::MAX));
    let until = Timestamp::MAX;
    let due = Wanted::from(&DueSchedules { partitions: Partition::all().collect(), until, limit: usize::MAX });
    let lists = lists.chain([due]).map(|wanted| lists::read(engine, wanted));
    lists.map(|list| list.expect("readable")).collect()
}

/// A batch that was shown.
struct Written {
    outcomes: Outcomes,
    entry: Option<Vec<u8>>,
}

impl Engine {
    /// Commits a batch, and returns the answers and the changes.
    fn commit(&self, commands: Vec<Command>) -> Result<Written, CommitError> {
        let _turn = self.turn();
        self.write(self.end(self.decided(None, commands))?)
    }

    fn decided(&self, ahead: Option<&Decided>, commands: Vec<Command>) -> Batch {
        let mut batch = self.begin(ahead);
        self.decide(&mut batch, ahead, commands);
        batch
    }

    /// Makes a batch durable and shows it.
    fn write(&self, decided: Decided) -> Result<Written, CommitError> {
        let Some(entry) = decided.entry.clone() else {
            return Ok(Written { outcomes: decided.outcomes, entry: None });
        };
        let outcomes = self.show((self.append(entry.clone())?, entry.len()), decided);
        Ok(Written { outcomes, entry: Some(entry) })
    }
}

fn open(directory: &TempDir, options: &EmbeddedOptions) -> Engine {
    let directory = Directory::hold(directory.path(), 0).expect("a directory");
    Engine::open(directory, options, None).expect("it can be opened")
}

fn one_history(seed: u64) {
    let mut history = History::new(seed);
    // The first one decides, and writes its database late; the second one follows, and writes it often.
    let (mut first, mut second) = (Machine::new(700), Machine::new(90));
    let mut written = 0;
    while written < setting("LEASEHOLD_TEST_STATE_WRITES", WRITES) {
        for entry in first.commit_two(&mut history).into_iter().filter_map(|decided| decided.entry) {
            second.follow(&entry);
        }
        written = first.engine.last_write();
        let is_late = history.chance(70);
        first.flush_if_due(is_late);
        if history.random.random_range(0..60) == 0 {
            let hash = first.hash();
            assert_eq!(hash, second.hash(), "seed {seed}: the two differ after {written} writes");
            assert_eq!(first.sum(), second.sum(), "seed {seed}: their sums differ after {written} writes");
            first.decide_and_drop(history.branch());
            assert_eq!(hash, first.hash(), "seed {seed}: what was not written left a trace after {written} writes");
            // Versions of the first have another term from now on, which the log says.
            first = first.restarted();
            second.follow(&postcard::to_allocvec(&first.term()).expect("writable"));
            assert_eq!(hash, first.hash(), "seed {seed}: it is another state after {written} writes and a restart");
        }
    }
    assert_eq!(first.hash(), second.hash(), "seed {seed}: the two differ at the end");
    assert!(first.engine.published.read().blocks.list.len() > 3, "seed {seed}: no block was made");
    let hash = second.hash();
    assert_eq!(second.restarted().hash(), hash, "seed {seed}: it is another state after a restart");
}

#[test]
fn without_room_on_the_disk_the_database_waits_and_the_log_has_everything() {
    // A file with a hole says that this much is kept, so that there is never enough beside it.
    const KEPT: u64 = 1 << 42;
    let directory = tempfile::tempdir().expect("a directory");
    let room = directory.path().join("leasehold.room");
    fs::File::create(&room).and_then(|file| file.set_len(KEPT)).expect("a file with a hole");
    let options = EmbeddedOptions { flush_changes: 50, reserve_bytes: KEPT, ..EmbeddedOptions::default() };
    let hold = Directory::hold(directory.path(), KEPT).expect("a directory");
    let engine = Engine::open(hold, &options, None).expect("it can be opened");
    let mut machine = Machine { engine, directory, options, flush: None };
    let mut history = History::new(7);
    for _ in 0..20 {
        let commands = history.batch();
        let committed = machine.engine.commit(commands.clone()).expect("it is written");
        history.learn(&commands, committed.outcomes);
        assert!(!machine.engine.is_flush_due());
    }
    let changes = machine.engine.published.read().unflushed.changes;
    assert!(changes > 100, "{changes} changes");
    let hash = machine.hash();
    fs::remove_file(room).expect("removable");
    let mut machine = machine.restarted();
    assert_eq!(machine.hash(), hash);
    assert!(machine.engine.published.read().unflushed.changes < 100, "the database was written once there was room");
}

#[test]
fn the_same_log_gives_the_same_state_on_every_machine_and_after_every_restart() {
    let first = std::env::var("LEASEHOLD_TEST_SEED").ok().map(|text| text.parse().expect("a number"));
    let first = first.unwrap_or_else(|| rand::rng().random_range(0..1 << 40));
    println!("LEASEHOLD_TEST_SEED={first} makes up the same again");
    let seeds = first..first + setting("LEASEHOLD_TEST_STATE_SEEDS", SEEDS);
    std::thread::scope(|scope| {
        for half in 0..2 {
            let seeds = seeds.clone();
            scope.spawn(move || seeds.filter(|seed| seed % 2 == half).for_each(one_history));
        }
    });
}
