//! A sync that lies: it returns success, and after a power failure what it has "synced" is not there.
//!
//! The store cannot know at once. What must be: the next opening refuses and names what is damaged, or the state is the
//! one after a batch that was acknowledged, and what is missing are only the batches after it, which neither the seal
//! nor the database has recorded. It never opens with a hole, and where nothing was lost it opens with everything.

use super::super::super::seal::Seal;
use super::liar::{Found, Liar, Lie, Lies, NEVER, OFTEN};
use super::platter::{Part, Sync};
use super::*;

/// How many histories are made up. The nightly script asks for more.
const SEEDS: u64 = 12;
/// Of so many histories some must come to each end.
const SEEDS_FOR_ALL_ENDS: u64 = 100;
/// How many times the power fails in each at most, and how many batches are written while the disk does not change its
/// ways.
const POWER_FAILURES: u32 = 3;
const BATCHES: u32 = 16;

fn only(part: Part, how: Sync) -> Lies {
    [(part, Lie::Always(how))].into()
}

fn all(how: Sync) -> Lies {
    Part::ALL.into_iter().map(|part| (part, Lie::Always(how))).collect()
}

#[test]
fn what_the_log_has_not_is_lost_only_where_nothing_has_recorded_it() {
    let unrecorded = |batches| {
        let mut liar = Liar::honest(9);
        liar.flush_no_more();
        liar.lies = only(Part::Log, Sync::Held);
        let before = liar.last();
        liar.commit(batches);
        (liar, before)
    };
    for batches in [1, 5, 11] {
        let (mut liar, before) = unrecorded(batches);
        assert_eq!(liar.fail_power(Lies::new()).at(), before);
        // The numbers that were lost are given out again.
        liar.commit(3);
        let last = liar.last();
        assert_eq!(liar.fail_power(Lies::new()).at(), last);

        let (mut liar, _) = unrecorded(batches);
        liar.checkpoint();
        liar.fail_power(Lies::new()).names("log");

        let (mut liar, _) = unrecorded(batches);
        liar.flush();
        liar.fail_power(Lies::new()).names("log");
    }
}

#[test]
fn entries_that_are_missing_before_others_are_noticed() {
    // Within a segment, and over several of them.
    for (how, segment_bytes) in [
        (Sync::Dropped, 1 << 20),
        (Sync::DroppedSectors, 1 << 20),
        (Sync::Dropped, 2 << 10),
        (Sync::DroppedSectors, 2 << 10),
        (Sync::Nameless, 2 << 10),
    ] {
        let mut liar = Liar::honest(0);
        liar.flush_no_more();
        liar.options.segment_bytes = segment_bytes;
        liar.fail_power(Lies::new()).at();
        liar.commit(5);
        liar.lies = only(Part::Log, how);
        liar.commit(5);
        liar.lies = Lies::new();
        liar.commit(5);
        liar.fail_power(Lies::new()).names("log");
    }
}

#[test]
fn a_flush_that_is_gone_is_noticed_or_made_again_from_the_log() {
    for how in [Sync::Held, Sync::Dropped] {
        let gone = |removals| {
            let mut liar = Liar::honest(20);
            liar.removals = removals;
            liar.lies = only(Part::Database, how);
            liar.commit(20);
            liar.flush();
            liar
        };
        let mut liar = gone(100);
        liar.fail_power(Lies::new()).names("log");

        let mut liar = gone(0);
        let last = liar.last();
        assert_eq!(liar.fail_power(Lies::new()).at(), last);

        let mut liar = gone(0);
        liar.checkpoint();
        liar.fail_power(Lies::new()).names("store");
    }
}

#[test]
fn a_flush_that_is_gone_before_another_one_is_noticed() {
    // One flush after a hole could have been cut short itself, and then the log lacks what is in both.
    for (flushes, name) in [(1, "log"), (2, "store"), (3, "store")] {
        let mut liar = Liar::honest(20);
        liar.flush_no_more();
        liar.lies = only(Part::Database, Sync::Dropped);
        liar.commit(9);
        liar.flush();
        liar.lies = Lies::new();
        for _ in 0..flushes {
            liar.commit(9);
            liar.flush();
        }
        liar.fail_power(Lies::new()).names(name);
    }
}

#[test]
fn entries_that_came_while_a_flush_was_written_are_not_removed_with_the_others() {
    let mut liar = Liar::honest(9);
    liar.flush_no_more();
    for batches in 1..9 {
        liar.commit(2);
        liar.flush_after(batches);
        let last = liar.last();
        assert_eq!(liar.fail_power(Lies::new()).at(), last);
    }
}

#[test]
fn segments_that_are_still_there_after_they_were_removed_do_no_harm() {
    for removals in [0, 45, 90] {
        let mut liar = Liar::honest(0);
        liar.removals = removals;
        liar.commit(20);
        for _ in 0..3 {
            let last = liar.last();
            assert_eq!(liar.fail_power(Lies::new()).at(), last);
            liar.commit(10);
        }
    }
}

#[test]
fn a_seal_that_was_not_renamed_says_less_and_nothing_wrong() {
    let mut liar = Liar::honest(9);
    liar.lies = only(Part::Seal, Sync::Held);
    liar.commit(9);
    liar.checkpoint();
    liar.commit(9);
    let last = liar.last();
    assert_eq!(liar.fail_power(only(Part::Seal, Sync::Held)).at(), last);
    // It has not what this process has voted.
    liar.commit(9);
    liar.close();
    liar.fail_power(Lies::new()).names("leasehold.seal");

    // This one says that the store was closed.
    let mut liar = Liar::honest(9);
    liar.close();
    let last = liar.last();
    assert_eq!(liar.fail_power(only(Part::Seal, Sync::Held)).at(), last);
    liar.commit(1);
    liar.fail_power(Lies::new()).names("log");
}

#[test]
fn a_seal_that_was_renamed_and_not_written_is_noticed() {
    let mut liar = Liar::honest(9);
    liar.lies = only(Part::Seal, Sync::Dropped);
    liar.checkpoint();
    liar.fail_power(Lies::new()).names("leasehold.seal");
}

#[test]
fn a_disk_that_lies_about_everything_shows_one_moment() {
    let mut liar = Liar::honest(9);
    let before = liar.last();
    (liar.lies, liar.removals) = (all(Sync::Held), 0);
    liar.commit(20);
    liar.checkpoint();
    liar.close();
    assert_eq!(liar.fail_power(Lies::new()).at(), before);

    let mut liar = Liar::new(History::new(1), OFTEN, all(Sync::Held));
    liar.commit(9);
    assert_eq!(liar.fail_power(Lies::new()).at(), 0);
}

#[test]
fn a_store_whose_creation_was_not_synced_is_refused() {
    for (part, how, name) in [
        (Part::Seal, Sync::Held, "leasehold.seal"),
        (Part::Format, Sync::Held, "leasehold.format"),
        (Part::Database, Sync::Held, "store"),
        (Part::Log, Sync::Nameless, "log"),
    ] {
        let mut liar = Liar::new(History::new(1), OFTEN, only(part, how));
        // The others' files that matter are not synced again.
        liar.lies.retain(|part, _| *part == Part::Database);
        liar.commit(1);
        liar.fail_power(Lies::new()).names(name);
    }
}

#[test]
fn a_store_whose_seal_still_says_that_it_is_being_created_is_not_created_over_its_entries() {
    for batches in [1, 20] {
        let mut liar = Liar::honest(0);
        // The seal is written several times when a store is created, and here only the first one came to the disk.
        let path = Seal::path(liar.directory.path());
        let written = std::fs::read(&path).expect("a seal");
        std::fs::write(&path, Seal::creating().encode().expect("JSON")).expect("writable");
        liar.sync(Part::Seal);
        std::fs::write(&path, written).expect("writable");
        liar.lies = only(Part::Seal, Sync::Held);
        liar.commit(batches);
        liar.fail_power(Lies::new()).names("log");
    }
}

impl History {
    fn below(&mut self, bound: u32) -> u32 {
        self.random.random_range(0..bound)
    }

    fn lies(&mut self) -> Lies {
        if self.chance(15) {
            return all(Sync::Held);
        }
        let ways = [Sync::Held, Sync::Dropped, Sync::DroppedSectors, Sync::Nameless].map(Lie::Always);
        let mut lies = Lies::new();
        for part in Part::ALL {
            if self.chance(35) {
                lies.insert(part, *ways.get(self.below(6) as usize).unwrap_or(&Lie::AtRandom));
            }
        }
        lies
    }
}

impl Liar {
    /// Goes on for some batches.
    fn go_on(&mut self) {
        let most = if self.history.chance(50) { BATCHES } else { BATCHES / 4 };
        for _ in 0..self.history.below(most) {
            self.commit(1);
            if self.history.chance(5) {
                self.checkpoint();
            }
            if self.history.chance(5) {
                // No other flush becomes due before that one is written.
                let is_alone = self.options.flush_changes == NEVER.1;
                let batches = if is_alone { self.history.below(4) } else { 0 };
                self.flush_after(batches);
            }
        }
    }
}

/// Says which history it was if a test fails in it.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("in LEASEHOLD_TEST_SEED={} LEASEHOLD_TEST_STATE_SEEDS=1", self.0);
        }
    }
}

/// What came of the power failures of a history.
#[derive(Debug, Default)]
struct Tally {
    whole: u32,
    cut: u32,
    refused: u32,
}

fn one_history(seed: u64) -> Tally {
    let _named = Named(seed);
    let mut tally = Tally::default();
    let mut history = History::new(seed);
    let lies = if history.chance(10) { history.lies() } else { Lies::new() };
    let flushes = [OFTEN, (64, 1_000), NEVER][history.below(3) as usize];
    let mut liar = Liar::new(history, flushes, lies);
    for _ in 0..POWER_FAILURES {
        liar.removals = [0, 50, 100][liar.history.below(3) as usize];
        liar.lies = Lies::new();
        liar.go_on();
        liar.lies = liar.history.lies();
        liar.go_on();
        if liar.history.chance(30) {
            liar.lies = Lies::new();
            liar.go_on();
        }
        if liar.history.chance(10) {
            liar.lies = liar.history.lies();
            liar.close();
        }
        let (last, lies) = (liar.last(), liar.history.lies());
        match liar.fail_power(lies) {
            Found::At(entry) if entry == last => tally.whole += 1,
            Found::At(_) => tally.cut += 1,
            Found::Refused(_) => {
                tally.refused += 1;
                break;
            }
        }
    }
    tally
}

#[test]
fn after_lies_of_any_kind_the_state_is_one_that_was_or_the_store_is_refused() {
    let first = std::env::var("LEASEHOLD_TEST_SEED").ok().map(|text| text.parse().expect("a number"));
    let first = first.unwrap_or_else(|| rand::rng().random_range(0..1 << 40));
    println!("LEASEHOLD_TEST_SEED={first} makes up the same again");
    let count = setting("LEASEHOLD_TEST_STATE_SEEDS", SEEDS);
    let mut sum = Tally::default();
    for seed in first..first + count {
        let Tally { whole, cut, refused } = one_history(seed);
        sum.whole += whole;
        sum.cut += cut;
        sum.refused += refused;
    }
    println!("{sum:?}");
    let least = sum.whole.min(sum.cut).min(sum.refused);
    assert!(least > 0 || count < SEEDS_FOR_ALL_ENDS, "something never came about: {sum:?}");
}
