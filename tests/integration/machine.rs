//! The share of the machine that a test takes.
//!
//! Tests run beside each other, since most of them wait most of the time. A test whose verdict a busy machine could
//! change takes the machine [`alone`]; every other large one takes it [`with_others`]. Both bound the test's time:
//! beyond it, the process says which test it was and ends, since nothing else ends a test that hangs.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// The largest number of tests that take the machine with others.
const PLACES: u32 = 64;
/// The longest time that a test may take: many times what the longest does.
const BOUND: Duration = Duration::from_secs(900);
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

/// Waits until no other test has the machine alone.
pub(crate) fn with_others() -> Share {
    take(&FREE, 1, BOUND)
}

/// The same for a test that an environment variable can make as long as this.
pub(crate) fn with_others_for(expected: Duration) -> Share {
    take(&FREE, 1, BOUND + expected)
}

/// Waits until no other test that takes a share runs. For a test that a busy machine could fail: there are to be few.
pub(crate) fn alone() -> Share {
    take(&FREE, PLACES, BOUND)
}

fn take(free: &'static Semaphore, places: u32, bound: Duration) -> Share {
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
async fn who_has_the_machine_alone_has_it_without_those_that_share_it() {
    static FREE: Semaphore = Semaphore::const_new(PLACES as usize);
    let alone = take(&FREE, PLACES, BOUND);
    let (sender, mut came) = tokio::sync::mpsc::unbounded_channel();
    let other = std::thread::spawn(move || {
        let share = take(&FREE, 1, BOUND);
        sender.send(()).expect("somebody waits");
        drop(share);
    });
    // Nobody can take any of it, however long this one has it.
    assert_eq!(FREE.available_permits(), 0);
    assert!(came.try_recv().is_err(), "it was taken twice");
    drop(alone);
    came.recv().await.expect("it is free now");
    other.join().expect("no panic");
}
