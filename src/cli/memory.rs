//! Memory that the process does not use any more goes back to the system.

use std::thread;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

/// How often the allocator is made to look for memory that it can give back.
const PERIOD: Duration = Duration::from_secs(10);

/// Gives back, until the handle is dropped, what has not been used for a second. The allocator looks for it only where
/// a thread frees much or ends, and after a flood of calls a server may do neither for hours.
pub(super) fn give_back() -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async {
        loop {
            tokio::time::sleep(PERIOD).await;
            // Where there can be no more threads, there is more to do than to give memory back.
            drop(thread::Builder::new().name("memory".to_owned()).spawn(|| ()));
        }
    }))
}
