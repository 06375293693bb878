use std::sync::atomic::AtomicUsize;

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use tokio::task::JoinSet;

use super::super::agreed::Following;
use super::super::three::{Held, Hold, Three, until, write, write_of};
use super::super::unanswered::Oldest;
use super::super::unflushed::UnderWay;
use super::super::unwritten::ToWrite;
use super::super::words::{Said, Word};
use super::super::{EmbeddedStore, arbitrary, words};
use super::*;
use crate::job::{Job, JobId};
use crate::store::embedded::EmbeddedOptions;
use crate::store::{Store as _, Write};

const SECOND: Duration = Duration::from_secs(1);

fn stands(still: u64) -> Seen {
    let still = SECOND * u32::try_from(still).expect("a small number");
    Seen { oldest: Some(Oldest { age: still, still }), ..Seen::default() }
}

#[test]
fn a_hang_takes_two_looks_and_ten_seconds_and_lasts_after_sixty_more() {
    let mut rules = Rules::new(Times::of(SECOND * 10));
    let mut judge = |seen: Seen| rules.judge(&seen, SECOND).map(|hang| hang.is_lasting);
    assert_eq!((judge(stands(9)), judge(stands(10)), judge(stands(11))), (None, None, Some(false)));
    assert_eq!((judge(stands(69)), judge(stands(70))), (Some(false), Some(true)));
    assert_eq!((judge(stands(0)), judge(stands(12)), judge(stands(13))), (None, None, Some(false)));
}

#[test]
fn a_member_hangs_whose_ticks_or_entries_stand_still_and_not_one_that_is_late() {
    let mut rules = Rules::new(Times::of(SECOND * 10));
    let mut judge = |ticks: Option<u64>, applied: Option<u64>| {
        rules.judge(&Seen { ticks, applied, ..Seen::default() }, SECOND).map(|hang| hang.why)
    };
    assert!((0..30).all(|tick| judge(Some(tick), Some(tick / 9)).is_none()), "something is applied now and then");
    let found = (0..12).filter_map(|tick| judge(Some(30 + tick), Some(4))).next().expect("nothing is applied");
    assert!(found.contains("was applied for 1"), "{found}");
    assert_eq!(judge(Some(50), None), None, "there is nothing to apply");
    let found = (0..12).filter_map(|_| judge(Some(50), None)).next().expect("it does nothing");
    assert!(found.contains("has done nothing for 1"), "{found}");
    assert!((0..30).all(|_| judge(None, None).is_none()), "it need do nothing");
}

#[test]
fn a_member_hangs_that_writes_nothing_of_what_it_was_sent_unless_it_is_so_much() {
    let mut rules = Rules::new(Times::of(SECOND * 10));
    let mut judge = |written: u64, bytes: usize| {
        let to_write = Some(ToWrite { written, bytes });
        rules.judge(&Seen { to_write, ..Seen::default() }, SECOND).map(|hang| hang.why)
    };
    assert!((0..30).all(|tick| judge(tick / 9, 1 << 20).is_none()), "an entry is written now and then");
    let found = (0..14).filter_map(|_| judge(4, 1 << 20)).next().expect("nothing is written");
    assert!(found.contains("was written for 1"), "{found}");
    assert!((0..16).all(|_| judge(5, 32 << 20).is_none()), "a slow disk takes some seconds for that");
    assert!((0..30).any(|_| judge(5, 32 << 20).is_some()), "and no longer");
}

fn waits_for(are_most: bool, acknowledged: u64) -> Seen {
    Seen { following: Some(Following { are_most, acknowledged }), ..Seen::default() }
}

#[test]
fn a_write_comes_further_while_others_acknowledge_and_waits_without_a_hang_for_want_of_a_majority() {
    let mut rules = Rules::new(Times::of(SECOND * 10));
    let mut goes_on = |seen: Seen| (rules.goes_on(&seen, SECOND), rules.lacks_majority());
    assert_eq!(goes_on(waits_for(true, 5)), (false, false), "it may have waited before");
    assert_eq!(goes_on(waits_for(true, 6)), (true, false), "something before it was acknowledged");
    assert_eq!(goes_on(waits_for(true, 6)), (false, false));
    assert!((0..9).all(|_| goes_on(waits_for(false, 6)) == (true, false)), "for a moment");
    assert!((0..99).all(|_| goes_on(waits_for(false, 6)) == (true, true)), "for long");
    assert_eq!(goes_on(waits_for(true, 6)), (false, false), "they are there again, and acknowledge nothing");
    assert_eq!(goes_on(Seen::default()), (false, false));
}

#[test]
fn a_flush_that_others_wait_for_may_take_the_longer_the_more_it_writes() {
    let mut rules = Rules::new(Times::of(SECOND * 10));
    let mut goes_on = |entry: u64, bytes: u64| {
        rules.goes_on(&Seen { flush: Some(UnderWay { entry, bytes }), ..Seen::default() }, SECOND)
    };
    assert!(!goes_on(1, 1 << 19), "it is written at once");
    assert!((0..500).all(|_| goes_on(2, 2 << 30)), "gigabytes take minutes");
    assert!((0..2_000).any(|_| !goes_on(2, 2 << 30)), "and no longer");
    assert!(goes_on(3, 8 << 20), "the next one");
}

#[test]
fn an_entry_may_take_the_longer_to_be_written_the_more_it_has() {
    let mut rules = Rules::new(Times::of(SECOND * 10));
    let mut goes_on = |append: Option<(u64, u64)>| {
        let append = append.map(|(entry, bytes)| UnderWay { entry, bytes });
        rules.goes_on(&Seen { append, ..Seen::default() }, SECOND)
    };
    assert!(!goes_on(Some((1, 1 << 10))), "it is written at once");
    let large = Some((2, 16 << 20));
    assert_eq!((0..30).filter(|_| goes_on(large)).count(), 16, "a slow disk takes so many seconds, and no longer");
    assert!(!goes_on(None));
    assert!(goes_on(large), "it is written anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_that_a_slow_disk_writes_is_no_hang() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = EmbeddedOptions { hangs_after: SECOND, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(directory.path(), &options).expect("it can be opened");
    let engine = store.inner.engine.read().clone().expect("it is open");
    for attempt in 0.. {
        assert!(attempt < 20 && write(&store, &format!("before-{attempt}")).await);
        // A slow disk takes twelve seconds for that, and a hang would be found after one.
        let slow = super::super::log::faults::stall(&directory.path().join("log"));
        let (name, mut is_large) = (format!("large-{attempt}"), false);
        let (is_written, ()) = tokio::join!(write_of(&store, &name, 12 << 20), async {
            let appended = until("the writing", || *engine.awaited.append.lock()).await;
            // The watchdog may have written something before.
            is_large = appended.bytes > 12 << 20;
            if is_large {
                tokio::time::sleep(SECOND * 3 / 2).await;
                assert_eq!(store.hang().map(|hang| hang.why), None);
            }
            drop(slow);
        });
        assert!(is_written && engine.awaited.append.lock().is_none());
        if is_large {
            break;
        }
    }
    store.close().await;
}

/// The waits of the threads of any store. Those that hear other members, apply and flush wait for the same.
const WAITS: [(&str, Hold); 7] = [
    ("the member", |engine, wait| drop((engine.member.lock(), wait()))),
    ("the log", |engine, wait| drop((engine.log.lock(), wait()))),
    ("the entries that wait for the log", |engine, wait| engine.unwritten.hold(wait)),
    ("the turn", |engine, wait| drop((engine.turn(), wait()))),
    ("the state, to read it", |engine, wait| drop((engine.published.write(), wait()))),
    ("the state, to change it", |engine, wait| drop((engine.published.read(), wait()))),
    ("what is agreed on", |engine, wait| assert!(engine.agreed.wait_until(|| (wait(), true).1))),
];

/// Those that only the threads of one of several members have. What they put into the mailboxes of each other is behind
/// locks as well, in which they do nothing else.
const WAITS_OF_MEMBERS: [(&str, Hold); 2] = [
    ("what is known of the others", |engine, wait| exchange(engine).others(|_| wait()).unwrap_or_default()),
    ("who asks for the lead", |engine, wait| drop((exchange(engine).asked.lock(), wait()))),
];

fn exchange(engine: &Engine) -> &super::super::Exchange {
    engine.exchange.as_ref().expect("one of several")
}

fn options() -> EmbeddedOptions {
    EmbeddedOptions { hangs_after: SECOND * 3 / 10, ..EmbeddedOptions::default() }
}

/// Those of a store that flushes after each entry.
fn flushing() -> EmbeddedOptions {
    EmbeddedOptions { block_jobs: 1, flush_changes: 1, ..options() }
}

/// Jobs that have ended, enough of them to be put into blocks.
fn ended(prefix: &str) -> Vec<Write> {
    let (mut runner, any) = (TestRunner::deterministic(), arbitrary::job());
    let jobs = std::iter::repeat_with(|| any.new_tree(&mut runner).expect("a job").current());
    let ended = jobs.filter(Job::is_settled).take(8).enumerate();
    let named = ended.map(|(at, job)| Job { id: JobId::new(format!("{prefix}-{at}")).expect("an id"), ..job });
    named.map(|job| Write::Create { job: Arc::new(job), bodies: vec![] }).collect()
}

async fn hangs(store: &EmbeddedStore, what: &str) {
    until(what, || store.hang()).await;
    let unready = store.ready().await.expect_err(what).to_string();
    assert!(unready.contains("it hangs: "), "{what}: {unready}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_found_to_hang_at_each_of_its_waits_by_itself_and_goes_on_afterwards() {
    all(WAITS.map(async move |(what, hold)| {
        let directory = tempfile::tempdir().expect("a directory");
        let store = EmbeddedStore::open(directory.path(), &flushing()).expect("it can be opened");
        assert!(store.write(ended("before")).await.iter().all(Result::is_ok));
        let held = Held::hold(&store, hold);
        // Nobody writes but the watchdog.
        hangs(&store, what).await;
        drop(held);
        until("the end of it", || store.hang().is_none().then_some(())).await;
        assert!(write(&store, "after").await, "{what}");
        store.close().await;
    }))
    .await;
}

/// Waits for all of these, which may block their threads.
async fn all(each: impl IntoIterator<Item = impl Future<Output = ()> + Send + 'static>) {
    each.into_iter().collect::<JoinSet<()>>().join_all().await;
}

/// How many groups there are: more of them elect their leaders late.
const GROUPS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_leader_gives_the_lead_up_whatever_it_waits_for() {
    let cases: Vec<_> = WAITS.into_iter().chain(WAITS_OF_MEMBERS).collect();
    let each = cases.chunks(cases.len().div_ceil(GROUPS)).map(<[_]>::to_vec);
    all(each.map(async |some| {
        let three = Three::open(&options());
        for (what, hold) in some {
            gives_the_lead_up(&three, what, hold).await;
        }
    }))
    .await;
}

async fn gives_the_lead_up(three: &Three, what: &str, hold: Hold) {
    let (first, held) = loop {
        let first = three.leader(None).await;
        let (store, exchange) = (&three.stores[&first], three.exchange(first));
        let held = Held::hold(store, hold);
        // Where only writes that are refused with the lead have waited, the hang ends as it is given up.
        let found = until(what, || {
            let is_found = store.hang().is_some() || exchange.gives_up_lead();
            (is_found || !exchange.standing().borrow().leads).then_some(is_found)
        });
        if found.await {
            break (first, held);
        }
        // On a busy machine it may have lost the lead before.
    };
    is_written_by_another(three, first).await;
    assert!(!three.exchange(first).standing().borrow().leads, "{what}");
    drop(held);
    until("the end of it", || three.stores[&first].hang().is_none().then_some(())).await;
}

/// Waits until another member leads for as long as a write takes: on a busy machine it may lose the lead as well.
async fn is_written_by_another(three: &Three, first: u64) {
    // One that failed may be written all the same.
    static ATTEMPTS: AtomicUsize = AtomicUsize::new(0);
    let name = || format!("meanwhile-{}", ATTEMPTS.fetch_add(1, Ordering::Relaxed));
    while !write(&three.stores[&three.leader(Some(first)).await], &name()).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_entries_do_not_arrive_gives_the_lead_up() {
    let three = Three::open(&options());
    let first = three.leader(None).await;
    *three.way.lock() = Box::new(move |message| {
        let (_, bytes) = words::take_identity(&message.bytes).expect("a message");
        Some(message).filter(|message| message.from != first || !words::is_bulk(&bytes))
    });
    let lost = write(&three.stores[&first], "lost");
    let (is_written, ()) = tokio::join!(lost, is_written_by_another(&three, first));
    assert!(!is_written, "nobody has agreed on it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_leads_on_whose_write_waits_for_one_that_receives_a_state() {
    // Nothing but the last entries is kept.
    let three =
        Three::open(&EmbeddedOptions { flush_changes: 1, segment_bytes: 1 << 20, ..EmbeddedOptions::default() });
    let leader = three.leader(None).await;
    let (lagging, down) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    *three.way.lock() = Box::new(move |message| Some(message).filter(|of| of.to != lagging && of.from != lagging));
    let store = &three.stores[&leader];
    for round in 0..12 {
        assert!(write_of(store, &format!("round-{round}"), 1 << 20).await, "another one acknowledges it");
    }
    *three.way.lock() = Box::new(move |message| {
        let (_, bytes) = words::take_identity(&message.bytes).expect("a message");
        let is_piece = matches!(words::decode(&bytes), Ok(Said::Word(Word::Piece(_))));
        Some(message).filter(|of| of.to != down && of.from != down && !is_piece)
    });
    let engine = store.inner.engine.read().clone().expect("it is open");
    let waits = write(store, "waits");
    let wants = async {
        let want = || engine.agreed.awaited().filter(|following| !following.are_most);
        until("the want of a majority", want).await;
        assert!(store.hang().is_none() && !three.exchange(leader).gives_up_lead());
        assert!(three.exchange(leader).standing().borrow().leads, "it is heard by the one that lags");
        *three.way.lock() = Box::new(Some);
    };
    let (is_written, ()) = tokio::join!(waits, wants);
    assert!(is_written, "it has only waited");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_goes_on_with_nothing_is_found_and_leads_no_more_until_it_does() {
    // A flush puts the jobs into blocks in its turn, and the next one waits for it.
    let turn: Hold = |engine, wait| drop((engine.turn(), wait()));
    let log: Hold = |engine, wait| drop((engine.log.lock(), wait()));
    all([(turn, "was applied"), (log, "was written")].map(|(hold, says)| is_found_as_a_follower(hold, says))).await;
}

async fn is_found_as_a_follower(hold: Hold, says: &'static str) {
    // Longer than a leader waits for its disk on a busy machine.
    let three = Three::open(&EmbeddedOptions { hangs_after: SECOND, ..flushing() });
    let leader = three.leader(None).await;
    let follower = three.stores.keys().copied().find(|member| *member != leader).expect("another");
    let store = &three.stores[&follower];
    let held = Held::hold(store, hold);
    for round in 0..3 {
        assert!(three.stores[&leader].write(ended(&format!("round-{round}"))).await.iter().all(Result::is_ok));
    }
    let hang = until("a hang", || store.hang()).await;
    assert!([says, "was applied"].iter().any(|says| hang.why.contains(says)), "{hang:?}");
    assert!(three.exchange(follower).gives_up_lead());
    let leads = three.exchange(leader);
    until("the word that it does not stand", || leads.heard()[&follower].declines.then_some(())).await;
    assert!(!leads.hand_over(Some(follower)).await && write(&three.stores[&leader], "goes-on").await, "it leads on");
    drop(held);
    until("the end of it", || store.hang().is_none().then_some(())).await;
    until("the lead again", || (!three.exchange(follower).gives_up_lead()).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn want_of_a_majority_is_no_hang() {
    let three = Three::open(&options());
    let first = three.leader(None).await;
    *three.way.lock() = Box::new(|_| None);
    assert!(!write(&three.stores[&first], "lost").await, "nobody hears of it");
    let none_hangs = || three.stores.values().all(|store| store.hang().is_none());
    // What waited until the lead was lost may have been found before.
    until("no hang", || none_hangs().then_some(())).await;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(none_hangs());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_watchdog_writes_is_read_again_and_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = EmbeddedStore::open(directory.path(), &options()).expect("it can be opened");
    assert!(write(&store, "one").await);
    let engine = || store.inner.engine.read().clone().expect("it is open");
    let (before, last) = (engine().applied().0, engine().last_write());
    until("three entries of its own", || (engine().applied().0 >= before + 3).then_some(())).await;
    assert_eq!(engine().last_write(), last);
    let term = engine().applied().1;
    let (first, frames) = super::super::log::frames(&directory.path().join("log"), before + 1, engine().applied().0)
        .expect("they are there");
    let skipped = usize::try_from(before + 1 - first).expect("a small number");
    // A batch without an item, which versions before the watchdog read as well.
    let mut frame = Vec::new();
    super::super::stored::append(&(term, last), &mut frame).expect("it can be written");
    assert!(frames[skipped..].iter().all(|of| **of == *frame), "{frames:?}");
    store.close().await;
    let verified = super::super::verify(directory.path()).expect("it can be read");
    assert!(verified.damages.is_empty(), "{verified:?}");
}
