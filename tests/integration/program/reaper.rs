//! Processes that end with the test process, however that ends.
//!
//! A test that panics drops the processes that it has started, and so kills them. A test process that is killed, or that
//! ends because a test has taken too long, drops nothing. So a small shell script (`reaper.sh`) is told of each process,
//! waits for the end of a pipe from the test process, and kills those that are left.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::LazyLock;

use parking_lot::Mutex;

const SCRIPT: &str = include_str!("reaper.sh");
/// The one of this process.
static REAPER: LazyLock<Reaper> = LazyLock::new(Reaper::start);

/// A shell that kills the processes it was told of when this is dropped.
struct Reaper {
    orders: Mutex<Option<ChildStdin>>,
    shell: Child,
}

impl Reaper {
    fn start() -> Self {
        let mut shell = Command::new("bash");
        // A group of its own: what is sent to the tests' group, such as a terminal's interrupt, must not end it.
        shell.args(["-c", SCRIPT, "reaper.sh"]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut shell = shell.stderr(Stdio::null()).spawn().expect("bash starts");
        Self { orders: Mutex::new(shell.stdin.take()), shell }
    }

    fn say(&self, sign: char, process: u32) -> io::Result<()> {
        let mut orders = self.orders.lock();
        writeln!(orders.as_mut().expect("its input is piped"), "{sign} {process}")
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        drop(self.orders.get_mut().take());
        let _status = self.shell.wait();
    }
}

/// A process that is killed if this process ends before this is dropped. Whoever drops it has waited for its end.
pub(super) struct Reaped(u32);

impl Reaped {
    pub(super) fn new(child: &Child) -> Self {
        REAPER.say('+', child.id()).expect("the reaper reads");
        Self(child.id())
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        // Without the reaper nothing is killed either.
        let _said = REAPER.say('-', self.0);
    }
}

#[test]
fn what_has_not_ended_when_the_test_process_does_is_killed() {
    let reaper = Reaper::start();
    let [mut kept, mut left] = [(), ()].map(|()| Command::new("sleep").arg("600").spawn().expect("it starts"));
    for child in [&kept, &left] {
        reaper.say('+', child.id()).expect("it reads");
    }
    reaper.say('-', kept.id()).expect("it reads");

    drop(reaper);
    let ended = left.wait().expect("it can be waited for");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9));
    assert!(kept.try_wait().expect("it can be looked at").is_none());
    kept.kill().and_then(|()| kept.wait()).expect("it can be ended");
}
