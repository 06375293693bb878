use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::super::arbitrary;
use super::*;
use crate::job::{Body, Job, State};
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
fn whoever_waits_for_a_writer_that_ends_is_answered() {
    let queue = Arc::new(Queue::default());
    let mut waiting = queue.push(writes(2)).expect("there is room");
    drop(FailOnExit(Arc::clone(&queue)));
    let answers = waiting.try_recv().expect("an answer");
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|answer| matches!(answer, Err(WriteError::Refused(StoreError::Stopped(_))))));
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
