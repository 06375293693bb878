//! Conditional writes.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use leasehold::job::{Job, JobState, State};
use leasehold::query::{Filter, Search, Sort};
use leasehold::store::{StoreError, Version, Write, WriteError};

use super::sample::{at, claimed, counted, id, in_state, submitted};
use super::{Engine, conflict, create, get, remove, replace, write};

pub(crate) async fn create_refuses_an_existing_id_and_shows_its_job(engine: &impl Engine) {
    let job = submitted("a");
    let version = create(engine, &job).await;

    let other = claimed(&job);
    let current = conflict(write(engine, Write::Create { job: other, bodies: vec![] }).await);

    let current = current.expect("the job exists");
    assert_eq!((current.job, current.version), (Arc::clone(&job), version));
    assert_eq!(get(engine, &job.id).await.expect("still there").job, job);
}

pub(crate) async fn replace_under_the_current_version_gives_a_larger_one(engine: &impl Engine) {
    let job = submitted("a");
    let first = create(engine, &job).await;
    let running = claimed(&job);

    let second = replace(engine, &running, first).await.expect("the version is current");

    assert!(second > first, "{second:?} is not larger than {first:?}");
    let found = get(engine, &job.id).await.expect("the job exists");
    assert_eq!((found.job, found.version), (running, second));
}

pub(crate) async fn replace_under_a_stale_version_conflicts_and_changes_nothing(engine: &impl Engine) {
    let job = submitted("a");
    let first = create(engine, &job).await;
    let running = claimed(&job);
    let second = replace(engine, &running, first).await.expect("the version is current");

    let current = conflict(replace(engine, &counted(&job), first).await).expect("the job exists");

    assert_eq!((&current.job, current.version), (&running, second));
    let found = get(engine, &job.id).await.expect("the job exists");
    assert_eq!((found.job, found.version), (running, second));
}

pub(crate) async fn replace_of_a_missing_job_conflicts_with_nothing(engine: &impl Engine) {
    let version = create(engine, &submitted("other")).await;
    let job = submitted("a");
    assert_eq!(conflict(replace(engine, &job, version).await), None);
    assert_eq!(get(engine, &job.id).await, None);
}

pub(crate) async fn remove_of_a_missing_job_conflicts_with_nothing(engine: &impl Engine) {
    let version = create(engine, &submitted("other")).await;
    assert_eq!(conflict(remove(engine, &submitted("a"), version).await), None);
    assert!(get(engine, &id("other")).await.is_some());
}

pub(crate) async fn remove_under_a_stale_version_conflicts_and_changes_nothing(engine: &impl Engine) {
    let job = submitted("a");
    let first = create(engine, &job).await;
    let running = claimed(&job);
    let second = replace(engine, &running, first).await.expect("the version is current");

    let current = conflict(remove(engine, &job, first).await).expect("the job exists");

    assert_eq!((&current.job, current.version), (&running, second));
    assert_eq!(get(engine, &job.id).await.map(|found| found.version), Some(second));
}

pub(crate) async fn a_removal_gives_the_version_removed(engine: &impl Engine) {
    let job = submitted("a");
    let version = create(engine, &job).await;
    assert_eq!(remove(engine, &job, version).await.expect("the version is current"), version);
    assert_eq!(get(engine, &job.id).await, None);
}

pub(crate) async fn a_job_created_again_after_its_removal_has_a_version_never_seen(engine: &impl Engine) {
    let job = submitted("a");
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let created = create(engine, &job).await;
        assert!(seen.insert(created), "{created:?} was given before");
        let replaced = replace(engine, &claimed(&job), created).await.expect("the version is current");
        assert!(seen.insert(replaced), "{replaced:?} was given before");
        remove(engine, &job, replaced).await.expect("the version is current");
        for stale in &seen {
            assert_eq!(conflict(replace(engine, &job, *stale).await), None);
        }
    }
}

pub(crate) async fn versions_rise_with_every_write_of_a_job(engine: &impl Engine) {
    let mut job = submitted("a");
    let mut version = create(engine, &job).await;
    for _ in 0..20 {
        job = counted(&job);
        let next = replace(engine, &job, version).await.expect("the version is current");
        assert!(next > version, "{next:?} is not larger than {version:?}");
        version = next;
    }
}

pub(crate) async fn a_finished_job_can_be_started_again_and_removed(engine: &impl Engine) {
    let job = submitted("a");
    let mut version = create(engine, &job).await;
    for round in 0..3 {
        let failed = in_state(&job, State::Failed { finished_at: at(round) });
        version = replace(engine, &failed, version).await.expect("the version is current");
        assert_eq!(get(engine, &job.id).await.map(|found| found.job), Some(Arc::clone(&failed)));
        // A finished job may be written again and stay finished.
        let corrected = in_state(&job, State::Cancelled { finished_at: at(round) });
        version = replace(engine, &corrected, version).await.expect("the version is current");
        assert_eq!(get(engine, &job.id).await.map(|found| found.job), Some(corrected));
        version = replace(engine, &job, version).await.expect("the version is current");
        assert_eq!(get(engine, &job.id).await.map(|found| found.job), Some(Arc::clone(&job)));
    }
    let failed = in_state(&job, State::Failed { finished_at: at(9) });
    version = replace(engine, &failed, version).await.expect("the version is current");
    remove(engine, &failed, version).await.expect("the version is current");
    assert_eq!(get(engine, &job.id).await, None);
}

pub(crate) async fn each_write_of_a_batch_is_answered_in_order(engine: &impl Engine) {
    let [replaced, stale, removed] = ["replaced", "stale", "removed"].map(submitted);
    let replaced_version = create(engine, &replaced).await;
    let old_version = create(engine, &stale).await;
    let stale_version = replace(engine, &claimed(&stale), old_version).await.expect("the version is current");
    let removed_version = create(engine, &removed).await;
    let running = claimed(&replaced);

    let answers = engine
        .store()
        .write(vec![
            Write::Create { job: submitted("new"), bodies: vec![] },
            Write::Create { job: Arc::clone(&stale), bodies: vec![] },
            Write::Replace { job: Arc::clone(&running), expected: replaced_version, bodies: vec![] },
            Write::Replace { job: submitted("missing"), expected: replaced_version, bodies: vec![] },
            Write::Remove { job: Arc::clone(&removed), expected: removed_version },
            Write::Replace { job: stale, expected: old_version, bodies: vec![] },
        ])
        .await;

    let [created, exists, replaced, missing, gone, late] =
        <[_; 6]>::try_from(answers).expect("six writes have six answers");
    let created = created.expect("a new job is created");
    assert_eq!(get(engine, &id("new")).await.map(|found| found.version), Some(created));
    assert_eq!(conflict(exists).map(|current| current.version), Some(stale_version));
    let replaced = replaced.expect("the version is current");
    let found = get(engine, &running.id).await.expect("the job exists");
    assert_eq!((found.version, found.job), (replaced, running));
    assert_eq!(conflict(missing), None);
    assert_eq!(gone.expect("the version is current"), removed_version);
    assert_eq!(conflict(late).map(|current| current.version), Some(stale_version));
    assert_eq!(engine.store().get(&[id("missing"), id("removed")]).await.expect("readable"), [None, None]);
}

pub(crate) async fn of_two_replaces_of_one_version_in_one_batch_one_wins(engine: &impl Engine) {
    let job = submitted("a");
    let expected = create(engine, &job).await;
    let rivals = [claimed(&job), in_state(&job, State::Cancelled { finished_at: at(1) })];
    let writes = rivals.iter().map(|job| Write::Replace { job: Arc::clone(job), expected, bodies: vec![] }).collect();

    let answers = engine.store().write(writes).await;

    the_winner_is_stored(engine, &rivals, answers).await;
}

pub(crate) async fn of_two_creates_of_one_id_in_one_batch_one_wins(engine: &impl Engine) {
    let job = submitted("a");
    let rivals = [Arc::clone(&job), claimed(&job)];
    let writes = rivals.iter().map(|job| Write::Create { job: Arc::clone(job), bodies: vec![] }).collect();

    let answers = engine.store().write(writes).await;

    the_winner_is_stored(engine, &rivals, answers).await;
}

pub(crate) async fn of_many_creates_of_one_id_at_once_one_wins(engine: &impl Engine) {
    let job = submitted("a");
    let rivals: Vec<Arc<Job>> =
        (0..32).map(|number| in_state(&job, State::Failed { finished_at: at(number) })).collect();
    let creates = rivals.iter().map(|job| write(engine, Write::Create { job: Arc::clone(job), bodies: vec![] }));

    let answers = join_all(creates).await;

    the_winner_is_stored(engine, &rivals, answers).await;
}

async fn the_winner_is_stored(engine: &impl Engine, rivals: &[Arc<Job>], answers: Vec<Result<Version, WriteError>>) {
    assert_eq!(answers.len(), rivals.len());
    let mut winners = Vec::new();
    for (rival, answer) in rivals.iter().zip(answers) {
        match answer {
            Ok(version) => winners.push((Arc::clone(rival), version)),
            lost => assert!(conflict(lost).is_some(), "a conflict shows the job that won"),
        }
    }
    let [(winner, version)] = <[_; 1]>::try_from(winners).expect("exactly one wins");
    let found = get(engine, &winner.id).await.expect("the job exists");
    assert_eq!((found.job, found.version), (winner, version));
}

pub(crate) async fn many_writers_at_once_lose_no_update(engine: &impl Engine) {
    const WRITERS: u32 = 12;
    const ROUNDS: u32 = 4;
    /// Each attempt that fails means that another writer got on, so no writer loses more often than all others win.
    const ATTEMPTS: u32 = WRITERS * ROUNDS;
    let job = submitted("counter");
    create(engine, &job).await;

    let count_up = |_| async {
        for _ in 0..ROUNDS {
            let mut current = get(engine, &job.id).await.expect("the job exists");
            let mut attempts = 0;
            while let Err(lost) = replace(engine, &counted(&current.job), current.version).await {
                current = conflict(Err(lost)).expect("the job exists");
                attempts += 1;
                assert!(attempts <= ATTEMPTS, "a writer lost more often than the others can have won");
            }
        }
    };
    join_all((0..WRITERS).map(count_up)).await;

    let found = get(engine, &job.id).await.expect("the job exists");
    assert_eq!(found.job.attempt.get(), WRITERS * ROUNDS);
}

pub(crate) async fn an_empty_batch_has_no_answers(engine: &impl Engine) {
    assert!(engine.store().write(vec![]).await.is_empty());
    assert!(engine.store().get(&[]).await.expect("readable").is_empty());
    assert!(engine.store().bodies(&[]).await.expect("readable").is_empty());
}

pub(crate) async fn a_closed_store_refuses(engine: &impl Engine) {
    let store = engine.store();
    let job = submitted("a");
    create(engine, &job).await;
    store.ready().await.expect("an open store is ready");

    store.close().await;

    let refused = write(engine, Write::Create { job: submitted("b"), bodies: vec![] }).await;
    assert!(matches!(refused, Err(WriteError::Refused(StoreError::Unavailable(_)))), "{refused:?}");
    assert!(matches!(store.get(std::slice::from_ref(&job.id)).await, Err(StoreError::Unavailable(_))));
    let all = Search {
        filter: Filter { states: vec![JobState::Available], ..Filter::default() },
        sort: Sort::Dispatch,
        after: None,
        limit: 1,
    };
    assert!(matches!(store.search(&all).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(store.count(&Filter::default(), &[]).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(store.ready().await, Err(StoreError::Unavailable(_))));
    store.close().await;
}
