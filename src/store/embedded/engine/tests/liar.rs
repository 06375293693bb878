//! A store on a disk that can lie, and what must hold of it after each power failure.

use super::super::super::disk::{ENTRY, number};
use super::super::super::error::{Damage, OpenError};
use super::super::super::seal::Seal;
use super::platter::{Part, Platter, Sync};
use super::*;
use crate::store::embedded::verify;

/// What the syncs of each part do; those of a part that is not in here are honest.
pub(super) type Lies = BTreeMap<Part, Lie>;

/// How the syncs of a part lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Lie {
    /// All of them in this way.
    Always(Sync),
    /// Each in a way of its own, and some not at all.
    AtRandom,
}

/// What the power failure of a lying disk has come to.
#[derive(Debug)]
pub(super) enum Found {
    /// The store was opened as it was after this entry of the log.
    At(u64),
    /// The store names what is damaged.
    Refused(Vec<Damage>),
}

/// A store on a disk that can lie, and what it has acknowledged.
pub(super) struct Liar {
    pub(super) history: History,
    platter: Platter,
    pub(super) directory: TempDir,
    pub(super) options: EmbeddedOptions,
    /// The store; `None` while it is closed, or once it was refused.
    engine: Option<Engine>,
    /// The state after each entry of the log; the first one is that of an empty store. Opening adds an entry, which
    /// changes nothing.
    states: Vec<u128>,
    /// The last entry that the database has.
    flushed: u64,
    /// Up to which entry the log and the database have come to the disk for certain.
    log_on_disk: u64,
    flushed_on_disk: u64,
    pub(super) lies: Lies,
    /// Whether a sync has lied, and the disk may have what is not so.
    has_lied: bool,
    /// Of a hundred files that were removed, how many are gone after a power failure.
    pub(super) removals: u32,
}

/// Of a store that flushes after every few batches.
pub(super) const OFTEN: (usize, u64) = (4, 60);
/// Of a store that flushes only when a test says so.
pub(super) const NEVER: (usize, u64) = (1 << 20, u64::MAX);

fn options((block_jobs, flush_changes): (usize, u64)) -> EmbeddedOptions {
    EmbeddedOptions { block_jobs, flush_changes, segment_bytes: 2 << 10, ..EmbeddedOptions::default() }
}

impl Liar {
    /// A store in a new directory, on a disk that lies from the first sync on.
    pub(super) fn new(history: History, flushes: (usize, u64), lies: Lies) -> Self {
        let (directory, options) = (tempfile::tempdir().expect("a directory"), options(flushes));
        let engine = open(&directory, &options);
        let mut liar = Self {
            history,
            platter: Platter::default(),
            directory,
            options,
            states: vec![hash(&engine); 2],
            engine: Some(engine),
            flushed: 0,
            log_on_disk: 0,
            flushed_on_disk: 0,
            lies,
            has_lied: false,
            removals: 100,
        };
        liar.sync_all();
        liar
    }

    /// A store that was written to, on a disk that did not lie.
    pub(super) fn honest(batches: u32) -> Self {
        let mut liar = Self::new(History::new(1), OFTEN, Lies::new());
        liar.commit(batches);
        liar
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("the store is open")
    }

    /// The last entry that was acknowledged.
    pub(super) fn last(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    fn sync_all(&mut self) {
        Part::ALL.into_iter().for_each(|part| self.sync(part));
    }

    /// Brings to the disk what a step of the store has synced, as far as that was no lie.
    pub(super) fn sync(&mut self, part: Part) {
        let (lie, random) = (self.lies.get(&part).copied(), &mut self.history.random);
        self.has_lied |= lie.is_some();
        self.platter.sync(self.directory.path(), part, || match lie {
            None => Sync::Honest,
            Some(Lie::Always(how)) => how,
            Some(Lie::AtRandom) => match random.random_range(0..8) {
                0..3 => Sync::Held,
                3 => Sync::Dropped,
                4 => Sync::DroppedSectors,
                5 => Sync::Nameless,
                _ => Sync::Honest,
            },
        });
        if self.platter.has_all(self.directory.path(), part) {
            match part {
                Part::Log => self.log_on_disk = self.last(),
                Part::Database => self.flushed_on_disk = self.flushed,
                Part::Seal | Part::Format => {}
            }
        }
    }

    /// Commits so many batches, and flushes whenever that is due.
    pub(super) fn commit(&mut self, batches: u32) {
        for _ in 0..batches {
            let commands = self.history.batch();
            let committed = self.engine().commit(commands.clone()).expect("it is written");
            self.history.learn(&commands, committed.outcomes);
            let (entry, is_due) = (self.engine().published.read().entry, self.engine().is_flush_due());
            if entry == self.last() {
                continue;
            }
            self.states.push(0);
            self.sync(Part::Log);
            if is_due {
                self.flush();
            }
            // Only now, since a flush moves jobs to blocks.
            let state = hash(self.engine());
            *self.states.last_mut().expect("a state") = state;
        }
    }

    pub(super) fn flush(&mut self) {
        self.flush_after(0);
    }

    /// Flushes what there is, and commits so many batches before that is written.
    pub(super) fn flush_after(&mut self, batches: u32) {
        let flush = self.engine().begin_flush();
        self.commit(batches);
        self.engine().write_flush(&flush).expect("the database takes it");
        self.flushed = flush.entry;
        self.sync(Part::Database);
        let (random, removals) = (&mut self.history.random, self.removals);
        self.platter.remove(self.directory.path(), Part::Log, || random.random_range(0..100) < removals);
    }

    /// Opens the store again, to flush only when a test says so.
    pub(super) fn flush_no_more(&mut self) {
        self.options = options(NEVER);
        self.fail_power(Lies::new()).at();
    }

    pub(super) fn checkpoint(&mut self) {
        self.engine().checkpoint().expect("the seal is written");
        self.sync(Part::Seal);
    }

    pub(super) fn close(&mut self) {
        self.flush();
        let engine = self.engine.take().expect("the store is open");
        engine.close().expect("it is closed");
        self.sync_all();
    }

    /// The power fails, and comes back; the disk lies as `lies` says from then on. Checks what must hold in any case.
    pub(super) fn fail_power(&mut self, lies: Lies) -> Found {
        let root = self.directory.path();
        let is_on_disk = |part| match self.has_lied {
            true => self.platter.is_same(root, part),
            false => self.platter.has_all(root, part),
        };
        let is_all_there = Part::ALL.into_iter().all(is_on_disk);
        self.engine = None;
        self.directory = self.platter.after_power_failure();
        let path = self.directory.path();
        let sealed = Seal::read(path).map_or(0, |seal| seal.log.last);
        // An empty directory, whose creation was never synced and whose log was removed since, has recorded nothing.
        let is_new = !self.platter.has_files();
        let recorded = if is_new { 0 } else { self.log_on_disk.max(self.flushed_on_disk).max(sealed) };
        let (verified, is_empty) = (verify(path), !Seal::path(path).exists());
        let refusal = match Engine::open(Directory::hold(path, 0).expect("a directory"), &self.options, None) {
            Ok(engine) => {
                let (entry, state) = (engine.published.read().entry - 1, hash(&engine));
                let is_whole = verified.map_or(is_empty, |found| found.damages.is_empty());
                assert!(is_whole, "it opens, and is said to be damaged");
                assert!((recorded..=self.last()).contains(&entry), "it opens with {entry}, and had {recorded}");
                assert_eq!(state, self.states[entry as usize], "it opens as it never was, with {entry}");
                assert!(!is_all_there || entry == self.last(), "it opens without what was on the disk, with {entry}");
                self.states.truncate(entry as usize + 1);
                self.states.push(state);
                // What a lie has left beside that which is needed is still there.
                self.has_lied &= !is_all_there;
                (self.flushed, self.lies) = (in_database(&engine), lies);
                self.engine = Some(engine);
                self.sync_all();
                return Found::At(entry);
            }
            Err(refusal) => refusal,
        };
        assert!(!is_all_there, "nothing was lost, and it is refused: {refusal}");
        assert!(!verified.is_ok_and(|found| found.damages.is_empty()), "it is refused, and found whole: {refusal}");
        assert!(self.platter.is_same(path, Part::Log), "the log was changed, and then: {refusal}");
        match refusal {
            OpenError::Damaged { damages, .. } => {
                assert!(damages.iter().all(|damage| damage.path.starts_with(path)), "{damages:?}");
                Found::Refused(damages)
            }
            OpenError::NoFormat { .. } => Found::Refused(vec![Damage::missing(&path.join("leasehold.format"))]),
            other => panic!("it is refused, and not for a damage: {other}"),
        }
    }
}

/// Returns the last entry that the database has.
fn in_database(engine: &Engine) -> u64 {
    let found = engine.disk.meta.get(ENTRY).expect("readable");
    found.map_or(0, |bytes| number(&bytes).expect("a number"))
}

impl Found {
    /// Returns the entry that the store opened with.
    pub(super) fn at(self) -> u64 {
        match self {
            Self::At(entry) => entry,
            Self::Refused(damages) => panic!("it is refused: {damages:?}"),
        }
    }

    /// Checks that the store was refused, and that the refusal names this file or folder.
    pub(super) fn names(self, name: &str) {
        let Self::Refused(damages) = self else { panic!("it is not refused: {self:?}") };
        assert!(damages.iter().any(|damage| damage.path.iter().any(|part| part == name)), "{name}: {damages:?}");
    }
}
