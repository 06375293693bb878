use std::sync::atomic::Ordering;
use std::time::Instant;

use futures::executor::block_on;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::super::{EmbeddedStore, arbitrary};
use super::*;
use crate::store::{Store as _, Write};

/// How long something may take that is a matter of a second.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn what_has_changed_is_in_the_database_after_a_while_where_nothing_more_is_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = EmbeddedOptions { flush_after: Duration::from_millis(10), ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(directory.path(), &options).expect("it can be opened");
    let job = arbitrary::job().new_tree(&mut TestRunner::deterministic()).expect("a job").current();
    let written = block_on(store.write(vec![Write::Create { job: Arc::new(job), bodies: vec![] }]));
    let version = written[0].as_ref().expect("it is written");
    let flushed = || store.inner.engine.read().as_ref().map(|engine| engine.disk.flushed.load(Ordering::Acquire));
    let begun = Instant::now();
    while flushed() < Some(version.seq_no) {
        assert!(begun.elapsed() < LONG, "it is in the log only");
        thread::sleep(LOOK_EVERY / 10);
    }
}
