use std::env;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use futures::future::join_all;
use raft::eraftpb::{ConfState, Entry, EntryType, Message, MessageType, Snapshot};
use tokio::time::sleep;

use super::super::EmbeddedOptions;
use super::super::at::is_at;
use super::super::group::Member;
use super::super::seal::Vote;
use super::super::three::{Held, Three, until, write};
use super::*;
use crate::store::{Member as _, Membership, Store as _};

/// Set in the process that is to panic, to the way in which it does.
const WAY: &str = "LEASEHOLD_TEST_PANICS_BY";

/// Set there as well where nobody reads what it says.
const UNREAD: &str = "LEASEHOLD_TEST_IS_UNREAD";

/// What has the library panic, and what it says then.
const OF_LIBRARY: [(&str, fn()); 3] = [
    // A leader that replaces an entry of its own term: else a heartbeat commits no more than appends have shown.
    ("to_commit 5 is out of range", || {
        let mut member = member(entries(&[1, 2, 3], EntryType::EntryNormal));
        let append = Message { msg_type: MessageType::MsgAppend, term: 2, index: 3, log_term: 1, ..from_leader() };
        member.step(Message { entries: entries(&[4, 5], EntryType::EntryNormal).into(), ..append.clone() });
        let another = Entry { index: 4, term: 2, ..Entry::default() };
        member.step(Message { entries: vec![another].into(), ..append.clone() });
        member.step(Message { msg_type: MessageType::MsgHeartbeat, commit: 5, ..append });
    }),
    ("unable to restore config", || {
        let mut snapshot = Snapshot::default();
        snapshot.mut_metadata().index = 10;
        snapshot.mut_metadata().term = 1;
        // Nobody votes in it but the two that leave.
        snapshot.mut_metadata().set_conf_state(ConfState { voters_outgoing: vec![1, 2], ..ConfState::default() });
        let mut offers = Message { msg_type: MessageType::MsgSnapshot, ..from_leader() };
        offers.set_snapshot(snapshot);
        member(Vec::new()).step(offers);
    }),
    // A log of which a part is gone in the middle.
    ("hs.commit 100 is out of range", || {
        drop(member(entries(&[1, 2, 100, 101], EntryType::EntryConfChange)));
    }),
];

fn from_leader() -> Message {
    Message { from: 1, to: 2, term: 1, ..Message::default() }
}

fn entries(numbers: &[u64], entry_type: EntryType) -> Vec<Entry> {
    numbers.iter().map(|index| Entry { index: *index, term: 1, entry_type, ..Entry::default() }).collect()
}

fn member(entries: Vec<Entry>) -> Member {
    let members = Arc::new(Membership::founded(&[1, 2, 3]));
    let vote = Vote { term: 1, member: 1 };
    Member::new(2, members, vote, Last::default(), entries, None).expect("it fits together")
}

/// The threads of a member that can be made to panic by whoever waits for them, each with whether its member leads.
const THREADS: [(&str, bool); 3] = [("store-member", true), ("store-writer", true), ("store-apply", false)];

/// Has a thread panic in this process, which ends with that.
async fn panic_by(way: &str) {
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    if let Some((_, panics)) = OF_LIBRARY.into_iter().find(|(name, _)| *name == way) {
        let (fail, directory) = (Box::new(|_: &StoreError| {}), PathBuf::from("/data"));
        let guard = Arc::new(Exits { fail, member: Some(2), directory, ends_process: true }).guard();
        println!("\nVICTIM 2");
        if env::var_os(UNREAD).is_some() {
            // More than a pipe takes.
            thread::spawn(|| std::io::stderr().write_all(&vec![b'.'; 4 << 20]));
            sleep(Duration::from_millis(500)).await;
        }
        let thread = thread::Builder::new().name("store-member".to_owned()).spawn(move || {
            let _guard = guard;
            is_at(7, 3);
            panics();
        });
        return drop(thread.expect("a thread").join());
    }
    let three = Three::open(&EmbeddedOptions { panics_end_process: true, ..EmbeddedOptions::default() });
    let leader = three.leader(None).await;
    assert!(write(&three.stores[&leader], "before").await);
    let (_, leads) = THREADS.into_iter().find(|(name, _)| *name == way).expect("a way");
    let victim = if leads { leader } else { leader % 3 + 1 };
    println!("\nVICTIM {victim}");
    let asked = &three.exchange(victim).asked;
    if way == "store-member" {
        let mark = asked.lock().mark();
        three.exchange(victim).ask(&mark, Box::new(|_| panic!("as a test has it")));
    } else {
        // The thread that shows an entry answers. Some of the next ones are none of the writer's.
        let (next, name) = (three.exchange(victim).standing().borrow().committed + 1, way.to_owned());
        for number in next..next + 20 {
            let name = name.clone();
            // A thread that panics answers the others as well.
            let is_it = move || thread::current().name() == Some(&*name) && !thread::panicking();
            let answer = move |_| assert!(!is_it(), "as a test has it");
            asked.lock().wait_for(number, Box::new(answer));
        }
        write(&three.stores[&leader], "after").await;
    }
    sleep(Duration::from_secs(60)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_ends_the_process_with_a_line_that_says_where_and_what_to_do() {
    if let Ok(way) = env::var(WAY) {
        return panic_by(&way).await;
    }
    let of_library = OF_LIBRARY.map(|(says, _)| (says, says, "store-member"));
    let of_threads = THREADS.map(|(name, _)| (name, "as a test has it", name));
    for some in of_library.into_iter().chain(of_threads).collect::<Vec<_>>().chunks(3) {
        join_all(some.iter().map(|(way, says, thread)| panics_by(way, says, thread))).await;
    }
}

/// The process that is to panic in this way.
fn panicking(way: &str) -> Command {
    let name = "store::embedded::exits::tests::a_panic_ends_the_process_with_a_line_that_says_where_and_what_to_do";
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(WAY, way).env_remove("RUST_BACKTRACE");
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_ends_the_process_also_where_nobody_reads_what_it_says() {
    let mut command = panicking(OF_LIBRARY[0].0);
    let command = command.env(UNREAD, "1").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("it can be started");
    let mut ended = None;
    for _ in 0..600 {
        ended = process.try_wait().expect("its status");
        if ended.is_some() {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    drop((process.kill(), process.wait()));
    assert_eq!(ended.expect("it has ended").code(), Some(1));
}

async fn panics_by(way: &str, says: &str, thread: &str) {
    let mut command = panicking(way);
    let ended = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic");
    let Output { status, stdout, stderr } = ended.expect("it can be started");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(status.code(), Some(1), "{way}: {stderr}");
    assert!(stderr.contains(says), "{way}: {stderr}");
    let victim = stdout.lines().find_map(|line| line.strip_prefix("VICTIM ")).expect("it got so far");
    let line = stderr.lines().find(|line| line.contains("has panicked at entry")).expect("it says so");
    for part in [
        format!("the thread {thread} of member {victim} has panicked at entry "),
        "leasehold verify --data-dir /".to_owned(),
        format!("leasehold cluster replace {victim}"),
    ] {
        assert!(line.contains(&part), "{way}: {line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_as_a_member_is_closed_is_written() {
    let three = Three::open(&EmbeddedOptions::default());
    let leader = three.leader(None).await;
    let store = Arc::clone(&three.stores[&leader]);
    let held = Held::hold(&store, |engine, wait| drop((engine.turn(), wait())));
    let waits = write(&store, "waits");
    let closes = async {
        until("a write", || store.inner.queue.read().unanswered().oldest()).await;
        let closing = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.close().await }
        });
        let has_ended = || store.renewing.lock().as_ref().is_some_and(thread::JoinHandle::is_finished);
        until("the end of a thread", || has_ended().then_some(())).await;
        drop(held);
        closing.await.expect("no panic");
    };
    let (is_written, ()) = tokio::join!(waits, closes);
    assert!(is_written, "the other members are there");
}

#[tokio::test]
async fn where_the_process_goes_on_the_store_says_what_its_thread_has_panicked_at() {
    let said = Arc::new(parking_lot::Mutex::new(None));
    let exits = Arc::new(Exits {
        fail: Box::new({
            let said = Arc::clone(&said);
            move |why| *said.lock() = Some(why.to_string())
        }),
        member: None,
        directory: "/data".into(),
        ends_process: false,
    });
    let guard = exits.guard();
    let thread = thread::Builder::new().name("store-apply".to_owned()).spawn(move || {
        let _guard = guard;
        is_at(7, 3);
        panic!("as a test has it");
    });
    assert!(thread.expect("a thread").join().is_err());
    let said = until("what it says", || said.lock().clone()).await;
    assert!(said.contains("the thread store-apply has panicked at entry 7 of term 3: "), "{said}");
    assert!(said.contains("`leasehold verify --data-dir /data`, and restore"), "{said}");
}
