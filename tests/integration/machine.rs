//! The share of the machine that a test takes.
//!
//! Tests run beside each other, since most of them wait most of the time. A test whose verdict a busy machine could
//! change takes most of the machine ([`with_few_others`]); every other large one takes a place ([`with_others`]). Both
//! bound the test's time: beyond it, the process says which test it was and ends, since nothing else ends a test that
//! hangs.
//!
//! A test that repeats one thing with other random values does so within a [`Budget`].

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use regex::Regex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The number of places: as many large tests as run beside each other.
const PLACES: u32 = 3;
/// The places of a test that few others may run beside.
const MOST: u32 = 2;
/// The longest time that a test may take: many times what the longest does, unless [`BOUND_SECONDS`] says otherwise.
const BOUND: Duration = Duration::from_secs(900);
/// The environment variable by which the nightly script lets tests take longer.
const BOUND_SECONDS: &str = "LEASEHOLD_TEST_BOUND_SECONDS";
/// How long a test repeats what it repeats, times [`EFFORT`].
const REPEATS: Duration = Duration::from_secs(5);
/// The environment variable by which the nightly script makes tests repeat for longer.
const EFFORT: &str = "LEASEHOLD_TEST_EFFORT";
/// The exit status of a test process of which a test has failed.
const FAILED: i32 = 101;

/// The places of this process's tests.
static FREE: Semaphore = Semaphore::const_new(PLACES as usize);

/// A test's share of the machine, until this is dropped.
pub(crate) struct Share {
    /// Dropped before the places are given back, so that what waits for them is not counted.
    _running: Sender<()>,
    _places: SemaphorePermit<'static>,
}

/// Waits for a place.
pub(crate) fn with_others() -> Share {
    take(&FREE, 1)
}

/// Waits until few other large tests run. For a test that a busy machine could fail, such as one with a whole cluster:
/// there are to be few of them.
pub(crate) fn with_few_others() -> Share {
    take(&FREE, MOST)
}

/// The time for which a test repeats what it repeats. What begins within it is ended.
pub(crate) struct Budget(Instant);

impl Budget {
    /// Begins now.
    pub(crate) fn begin() -> Self {
        Self(Instant::now() + effort() * REPEATS)
    }

    pub(crate) fn is_left(&self) -> bool {
        Instant::now() < self.0
    }
}

/// How many times as much as for every change is repeated.
pub(crate) fn effort() -> u32 {
    std::env::var(EFFORT).map_or(1, |times| times.parse().expect("LEASEHOLD_TEST_EFFORT is a number"))
}

fn take(free: &'static Semaphore, places: u32) -> Share {
    let seconds = std::env::var(BOUND_SECONDS).ok().map(|seconds| seconds.parse().expect("a number of seconds"));
    let bound = seconds.map_or(BOUND, Duration::from_secs);
    let places = futures::executor::block_on(free.acquire_many(places)).expect("never closed");
    let (running, ended) = channel();
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    std::thread::spawn(move || {
        if ended.recv_timeout(bound) == Err(RecvTimeoutError::Timeout) {
            eprintln!("\n{test} has run for {bound:?}, which no test may; all tests end here");
            std::process::exit(FAILED);
        }
    });
    Share { _running: running, _places: places }
}

#[tokio::test]
async fn who_has_all_places_has_them_without_others() {
    static FREE: Semaphore = Semaphore::const_new(PLACES as usize);
    let all = take(&FREE, PLACES);
    let (sender, mut came) = tokio::sync::mpsc::unbounded_channel();
    let other = std::thread::spawn(move || {
        let share = take(&FREE, 1);
        sender.send(()).expect("somebody waits");
        drop(share);
    });
    // Nobody can take any of it, however long this one has it.
    assert_eq!(FREE.available_permits(), 0);
    assert!(came.try_recv().is_err(), "it was taken twice");
    drop(all);
    came.recv().await.expect("it is free now");
    other.join().expect("no panic");
}

/// The places of the tests that start whole servers or keep a disk busy.
const LARGE: [&str; 5] = ["hold.rs", "hold/**/*.rs", "durability.rs", "durability/**/*.rs", "cli/scaling.rs"];

#[test]
fn every_large_test_begins_by_taking_a_share_of_the_machine() {
    let test = Regex::new(r"#\[(?:tokio::)?test\b[^\n]*\n(?:#\[[^\n]*\n)*(?:async )?fn (\w+)[^\n]*\{\n([^\n]*)")
        .expect("a pattern");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration");
    let files = LARGE.iter().flat_map(|place| glob::glob(&format!("{root}/{place}")).expect("a pattern"));
    let (mut tests, mut without) = (0, Vec::new());
    for file in files {
        let file = file.expect("readable");
        let text = std::fs::read_to_string(&file).expect("text");
        let found: Vec<_> = test.captures_iter(&text).collect();
        let all = text.lines().filter(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test")).count();
        assert_eq!(found.len(), all, "{} has a test of another form", file.display());
        tests += all;
        let has_share = |body: &str| body.trim_start().starts_with("let _share = machine::");
        without.extend(found.iter().filter(|test| !has_share(&test[2])).map(|test| test[1].to_owned()));
    }
    assert!(tests > 70, "only {tests} tests were found");
    assert!(without.is_empty(), "these take no share: {without:?}");
}

#[test]
fn what_is_not_run_for_every_change_is_run_every_night() {
    let root = env!("CARGO_MANIFEST_DIR");
    let files =
        ["src", "tests"].iter().flat_map(|folder| glob::glob(&format!("{root}/{folder}/**/*.rs")).expect("a pattern"));
    let mut reasons = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file.expect("readable")).expect("text");
        reasons
            .extend(text.lines().map(str::trim_start).filter(|line| line.starts_with("#[ignore")).map(str::to_owned));
    }
    assert!(reasons.len() > 5, "only these are ignored: {reasons:?}");
    let others: Vec<_> = reasons.iter().filter(|reason| !reason.starts_with("#[ignore = \"every night")).collect();
    assert!(others.is_empty(), "nothing runs these: {others:?}");
    let nightly = std::fs::read_to_string(format!("{root}/.ci/nightly")).expect("text");
    assert!(nightly.contains("-- --ignored"), "the nightly script runs what is ignored");
}
