use std::time::Duration;

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use tokio::time::{sleep, timeout};

use super::super::three::{Held, Three, until};
use super::super::{EmbeddedOptions, arbitrary};
use super::*;
use crate::job::{Job, JobId};
use crate::store::{MemberChange, Store as _, Write};

/// How long may be waited for what takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Jobs that have ended, enough of them to be put into blocks.
fn ended(round: u32) -> Vec<Write> {
    let (mut runner, any) = (TestRunner::deterministic(), arbitrary::job());
    let jobs = std::iter::repeat_with(|| any.new_tree(&mut runner).expect("a job").current());
    let ended = jobs.filter(Job::is_settled).take(8).enumerate();
    let named = ended.map(|(at, job)| Job { id: JobId::new(format!("round-{round}-{at}")).expect("an id"), ..job });
    named.map(|job| Write::Create { job: Arc::new(job), bodies: vec![] }).collect()
}

/// The writer has its turn until it has shown its batch, before which a change of the members may have to be shown. A
/// flush that puts blocks waits for the turn, and the thread that shows changes of the members for none of them.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_the_members_are_shown_while_a_flush_waits_for_the_turn_of_the_writer() {
    let options = EmbeddedOptions { block_jobs: 1, flush_changes: 1, ..EmbeddedOptions::default() };
    let three = Three::open(&options);
    let leader = three.leader(None).await;
    let store = &three.stores[&leader];
    let engine = || store.inner.engine.read().clone().expect("it is open");
    let mut round = 0;
    let held = loop {
        round += 1;
        assert!(store.write(ended(round)).await.iter().all(Result::is_ok));
        let held = Held::hold(store, |engine, wait| drop((engine.turn(), wait())));
        until("the flush is written", || engine().published.read().flushing.is_none().then_some(())).await;
        // The flush may have put its blocks before.
        if engine().published.read().recent.heads().next().is_some() {
            break held;
        }
    };
    let member = store.member().expect("one of several");
    for gone in [leader % 3 + 1, (leader + 1) % 3 + 1] {
        let change = || member.change(MemberChange::Remove { member: gone, is_gone: false });
        let changed = timeout(PATIENCE, async {
            // The leader makes changes of its own, one after the other as well.
            while change().await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        });
        changed.await.expect("it is shown");
    }
    drop(held);
    until("the blocks", || engine().published.read().recent.heads().next().is_none().then_some(())).await;
}
