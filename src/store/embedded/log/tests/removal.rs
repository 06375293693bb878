//! Segments are removed while others read the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;

#[test]
fn what_is_removed_while_the_log_is_read_is_not_missed() {
    let (folder, mut log) = log_of(40);
    log.sync().expect("it is synced");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in (1_000_000..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                let path = segment_path(folder.path(), number);
                File::create(&path).and_then(|_| fs::remove_file(path)).expect("it comes and goes");
            }
        });
        for _ in 0..300 {
            let read = super::super::frames(folder.path(), 7, 7).map(|(first, frames)| first + frames.len() as u64);
            is_over.store(read.is_err(), Ordering::Relaxed);
            assert_eq!(read.expect("it is there"), 8);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
