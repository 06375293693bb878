//! Members that are handed more at once than they may hold, and what becomes of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use leasehold::job::{Job, JobSpec};
use leasehold::store::{Store, StoreError, WriteError, WriteResult};
use tokio::time::{sleep, timeout};

use super::members::{Group, MEMBERS, PATIENCE, creates, named, options};
use super::sample::{at, plain_spec, submit};
use crate::machine;

/// The calls that come at once, and the jobs of each: some 20 MB.
const CALLS: usize = 8;
const JOBS: usize = 300;
/// The labels of each job, as many and as long as the API takes.
const LABELS: usize = 64;
const LABEL_BYTES: usize = 1_024;

fn large(call: usize) -> Vec<Arc<Job>> {
    let labels = (0..LABELS).map(|number| (format!("label-{number}"), "x".repeat(LABEL_BYTES))).collect();
    let spec = JobSpec { labels, ..plain_spec() };
    let job = |number| Arc::new(submit(&format!("call-{call}-{number}"), spec.clone(), at(0), at(0)));
    (0..JOBS).map(job).collect()
}

/// Writes jobs to the leader, whichever it is, until all of them are there. It may refuse all of them for a moment, and
/// says so at once; where the machine stands still, another member leads by then, and it is not known which were
/// written.
async fn create_all(group: &Group, jobs: &[Arc<Job>]) {
    let (mut missing, mut is_repeated) = (jobs.to_vec(), false);
    while !missing.is_empty() {
        let leader = group.leader().await;
        let answers = group.store(leader).write(creates(&missing)).await;
        assert_eq!(answers.len(), missing.len());
        if let Some(Err(WriteError::Refused(StoreError::Overloaded { retry_after }))) = answers.first() {
            sleep(*retry_after).await;
            continue;
        }
        let versions: Vec<_> = answers.iter().flatten().collect();
        assert!(versions.is_sorted_by(|one, next| one < next), "they are in the order of the jobs");
        let is_there = |answer: &WriteResult| match answer {
            Err(WriteError::Conflict(_)) => is_repeated,
            answer => answer.is_ok(),
        };
        let mut are_there = answers.iter().map(is_there);
        missing.retain(|_| are_there.next() == Some(false));
        is_repeated = true;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_handed_much_at_once_answer_all_of_it_and_go_on() {
    let _share = machine::with_others();
    let group = Group::with(|member| {
        let mut options = options(member);
        (options.flush_changes, options.segment_bytes) = (250_000, 64 << 20);
        options.group.as_mut().expect("it is one of several").tick = Duration::from_millis(200);
        options
    });
    group.leader().await;
    let calls: Vec<_> = (0..CALLS).map(large).collect();
    let begun = Instant::now();
    let written = join_all(calls.iter().map(|jobs| create_all(&group, jobs)));
    timeout(PATIENCE, written).await.expect("every call is answered");
    println!("{CALLS} calls were answered after {:?}", begun.elapsed());
    let further = named("further", 1);
    timeout(PATIENCE, create_all(&group, &further)).await.expect("a further write is answered");
    // The others have all of it as well, however much was dropped on the way. What a member says to have applied may be
    // of a moment ago.
    let last: Vec<_> = calls.iter().chain([&further]).filter_map(|jobs| Some(jobs.last()?.id.clone())).collect();
    for number in MEMBERS {
        let begun = Instant::now();
        while !group.store(number).get(&last).await.expect("readable").iter().all(Option::is_some) {
            assert!(begun.elapsed() < PATIENCE, "member {number} lacks some");
            sleep(Duration::from_millis(20)).await;
        }
    }
}
