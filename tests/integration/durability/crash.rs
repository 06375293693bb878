//! A process that ends between any two calls to the operating system: at each of them that makes something durable,
//! gives it a name or takes it away. Nothing that it acknowledged is lost, and the next process goes on.

use leasehold::store::Store;
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{ACKNOWLEDGED, Acknowledged, Writer, trace, writer_command, writer_directory};
use crate::machine::{self, Budget};
use crate::seed;

/// With a log of so short segments and a database that is written so often that everything happens all the time.
fn options() -> EmbeddedOptions {
    EmbeddedOptions { block_jobs: 8, flush_changes: 200, segment_bytes: 8 << 10, ..EmbeddedOptions::default() }
}

/// The calls, and at about how many of them each comes to its turn. `strace` counts those of each thread apart, and the
/// thread that writes flushes makes few: so they are told from the others by the file that they are made to.
const CALLS: [(&str, Option<&str>, u32); 10] = [
    ("write", None, 300),
    ("pwrite64", None, 600),
    ("ftruncate", None, 20),
    ("fdatasync", None, 250),
    ("fsync", None, 30),
    ("rename", None, 3),
    ("unlink", None, 10),
    ("openat", None, 80),
    ("write", Some(JOURNAL), 30),
    ("fdatasync", Some(JOURNAL), 10),
];

/// What a flush is written to.
const JOURNAL: &str = "store/0.jnl";

/// How many jobs a process gets to live at most.
const LIVES: u32 = 320;

#[test]
fn a_process_that_ends_at_any_call_loses_nothing_that_it_acknowledged() {
    let _share = machine::with_others();
    if let Some(directory) = writer_directory() {
        super::live_until_killed(&directory, &options(), LIVES);
        // There were fewer such calls than were thought.
        std::process::exit(0);
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().canonicalize().expect("it exists").join("data");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut acknowledged = Acknowledged::default();
    let mut random = StdRng::seed_from_u64(seed::usual());
    let budget = Budget::begin();
    let mut calls = CALLS.iter().cycle().enumerate();
    // Each call at least once, however slow the machine is.
    while let Some((_, (call, file, most))) =
        calls.next().filter(|(number, _)| *number < CALLS.len() || budget.is_left())
    {
        let at = random.random_range(1..=*most);
        let fault = format!("--inject={call}:signal=KILL:when={at}");
        let only = file.map(|file| format!("--trace-path={}", data.join(file).display()));
        let calls = format!("--trace={call}");
        let injected: Vec<&str> = [&calls, &fault].into_iter().chain(&only).map(String::as_str).collect();
        let strace = trace::strace(&directory.path().join("trace"), &injected);
        let name = "durability::crash::a_process_that_ends_at_any_call_loses_nothing_that_it_acknowledged";
        let mut writer = Writer::start(writer_command(name, &data, &strace));
        let mut heard = 0;
        while let Some(line) = writer.next_line(ACKNOWLEDGED) {
            super::hear(&mut acknowledged, &line);
            heard += 1;
        }
        drop(writer);
        println!("killed at {call} {at} of {}, after {heard} acknowledgements", file.unwrap_or("all files"));

        let store = EmbeddedStore::open(&data, &options());
        let store = store.unwrap_or_else(|refusal| panic!("killed at {call} {at}, and then: {refusal}"));
        runtime.block_on(async {
            super::all_acknowledged_is_there(&store, &acknowledged.jobs).await;
            super::the_count_is_there(&store, acknowledged.count).await;
            super::counts_are_those_of_the_jobs(&store).await;
            store.close().await;
        });
    }
    assert!(acknowledged.jobs.len() > 100, "only {} jobs were written", acknowledged.jobs.len());
}
