use std::sync::Arc;

use futures::FutureExt as _;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::super::super::arbitrary;
use super::super::answer::answers;
use super::*;
use crate::job::{Body, Job, Json, State};
use crate::store::WriteError;

fn writes(count: usize) -> Vec<Write> {
    let job = arbitrary::job().new_tree(&mut TestRunner::deterministic()).expect("a job").current();
    // Without bodies, of which any could be larger than a batch.
    let job = Arc::new(Job { payload: Body::Empty, state: State::Available, ..job });
    (0..count).map(|_| Write::Create { job: Arc::clone(&job), bodies: vec![] }).collect()
}

fn lengths(batch: &[Request]) -> Vec<usize> {
    batch.iter().map(|request| request.commands.len()).collect()
}

#[test]
fn a_full_queue_refuses_and_takes_again_when_it_is_emptied() {
    let queue = Queue::default();
    let first = queue.push(writes(WAITING_ITEMS - 1)).expect("there is room");
    let last = queue.push(writes(1)).expect("there is room");
    let refused = queue.push(writes(1)).map(drop);
    assert!(matches!(refused, Err(StoreError::Overloaded { retry_after }) if !retry_after.is_zero()), "{refused:?}");

    drop(queue.take(0, 0));
    queue.push(writes(1)).map(drop).expect("there is room again");
    drop((first, last));
}

#[test]
fn a_queue_is_full_by_its_bytes_as_well_as_by_its_writes() {
    let queue = Queue::default();
    let large = || {
        let body = Json::parse(format!("\"{}\"", "x".repeat(WAITING_BYTES / 4))).expect("JSON");
        let mut writes = writes(1);
        let Write::Create { bodies, .. } = &mut writes[0] else { panic!("not a creation") };
        bodies.push(Body::place(Some(body), 0).1.expect("it is kept apart"));
        writes
    };
    for _ in 0..3 {
        queue.push(large()).map(drop).expect("there is room");
    }
    assert!(matches!(queue.push(large()).map(drop), Err(StoreError::Overloaded { .. })));
    queue.push(writes(1)).map(drop).expect("there is room for a small one");
    while !queue.waiting.lock().requests.is_empty() {
        drop(queue.take(0, 0));
    }
    queue.push(large()).map(drop).expect("there is room again");
}

#[test]
fn what_is_larger_than_the_queue_is_taken_when_it_comes_alone() {
    let queue = Queue::default();
    queue.push(writes(WAITING_ITEMS + 1)).map(drop).expect("nothing else waits");
    assert!(queue.push(writes(1)).is_err());
}

#[test]
fn a_batch_is_bounded_and_keeps_the_order() {
    let queue = Queue::default();
    for count in [1, BATCH_ITEMS, 2, 3] {
        queue.push(writes(count)).map(drop).expect("there is room");
    }
    assert_eq!(lengths(&queue.take(0, 0)), [1, BATCH_ITEMS]);
    assert_eq!(lengths(&queue.take(0, 0)), [2, 3]);
}

#[test]
fn a_closed_queue_gives_what_it_has_and_then_ends() {
    let queue = Queue::default();
    queue.push(writes(2)).map(drop).expect("there is room");
    queue.close(StoreError::Unavailable("closed".to_owned()));
    assert!(matches!(queue.push(writes(1)), Err(StoreError::Unavailable(reason)) if reason == "closed"));
    assert_eq!(lengths(&queue.take(0, 0)), [2]);
    assert!(!queue.wait());
}

#[test]
fn while_new_jobs_are_refused_so_are_new_schedules_and_others_are_written() {
    let queue = Queue::default();
    let stored = arbitrary::schedule().new_tree(&mut TestRunner::deterministic()).expect("a schedule").current();
    let (schedule, expected) = (stored.schedule, stored.version);
    let create = || vec![ScheduleWrite::Create { schedule: Arc::clone(&schedule) }];
    let replace = ScheduleWrite::Replace { schedule: Arc::clone(&schedule), expected };
    let remove = ScheduleWrite::Remove { id: schedule.id.clone(), expected };
    queue.refuse_new_jobs(Some(StoreError::OutOfOrder("no room".to_owned())));
    assert!(matches!(queue.push_schedules(create()).map(drop), Err(StoreError::OutOfOrder(why)) if why == "no room"));
    queue.push_schedules(vec![replace, remove]).map(drop).expect("these are not new");
    queue.refuse_new_jobs(None);
    queue.push_schedules(create()).map(drop).expect("new ones are taken again");
    assert_eq!(lengths(&queue.take(0, 0)), [2, 1]);
}

#[test]
fn a_queue_is_full_by_the_bytes_of_schedules_as_well() {
    let queue = Queue::default();
    let stored = arbitrary::schedule().new_tree(&mut TestRunner::deterministic()).expect("a schedule").current();
    let mut definition = (*stored.schedule.definition).clone();
    definition.action.body = Some(Json::of(&"x".repeat(WAITING_BYTES / 4)).expect("JSON"));
    let schedule =
        Arc::new(crate::schedule::Schedule { definition: Arc::new(definition), ..(*stored.schedule).clone() });
    let create = || vec![ScheduleWrite::Create { schedule: Arc::clone(&schedule) }];
    for _ in 0..3 {
        queue.push_schedules(create()).map(drop).expect("there is room");
    }
    assert!(matches!(queue.push_schedules(create()).map(drop), Err(StoreError::Overloaded { .. })));
}

#[test]
fn a_request_is_taken_in_parts_that_fill_a_batch_each() {
    let queue = Queue::default();
    let large = |bytes: usize| {
        let body = Json::parse(format!("\"{}\"", "x".repeat(bytes))).expect("JSON");
        let mut writes = writes(1);
        let Write::Create { bodies, .. } = &mut writes[0] else { panic!("not a creation") };
        bodies.push(Body::place(Some(body), 0).1.expect("it is kept apart"));
        writes.remove(0)
    };
    let third = BATCH_BYTES / 3;
    let awaited = queue.push((0..5).map(|_| large(third)).collect()).expect("nothing else waits");
    queue.push(vec![large(10), large(10)]).map(drop).expect("there is room");
    // The write with which a batch is full is in it, and it has no room for another one.
    let first = queue.take(0, 0);
    assert_eq!((lengths(&first), queue.items()), (vec![3], 4));
    assert!(queue.take(0, BATCH_BYTES).is_empty(), "a full batch takes nothing");
    let second = queue.take(0, 0);
    assert_eq!((lengths(&second), queue.items()), (vec![2, 2], 0));
    assert_eq!(queue.waiting.lock().bytes, 0);
    // The one caller has the answers to all of its writes, in their order, and is not answered before.
    let mut answered = Box::pin(answers(5, Ok(awaited)));
    let fail_one = |requests: Vec<Request>, reason: &str| {
        let reason = StoreError::Unavailable(reason.to_owned());
        fail(requests.into_iter().map(|request| request.caller), &Failure::Refused(&reason));
    };
    fail_one(first, "first");
    assert!(answered.as_mut().now_or_never().is_none(), "two of the writes are not answered");
    fail_one(second, "second");
    let answered = answered.now_or_never().expect("all are answered");
    let reasons = answered.iter().map(|answer| match answer {
        Err(WriteError::Refused(StoreError::Unavailable(reason))) => reason.as_str(),
        other => panic!("{other:?}"),
    });
    assert!(reasons.eq(["first", "first", "first", "second", "second"]));
}
