//! Records: small documents beside the jobs, compared and swapped as jobs are.

use std::sync::Arc;

use futures::future::join_all;
use futures::stream::{self, StreamExt};
use leasehold::job::{Json, RecordName};
use leasehold::store::{
    Record, RecordKey, RecordKind, RecordWrite, Store, StoreError, Version, Write, WriteError, WriteResult,
};

use super::bodies::TEXTS;
use super::sample::{json, submitted};
use super::{Engine, get};

pub(crate) fn key(kind: RecordKind, name: &str) -> RecordKey {
    RecordKey::new(kind, RecordName::new(name).expect("a record's name"))
}

fn leader() -> RecordKey {
    key(RecordKind::Lease, "leader")
}

pub(crate) fn number(number: u64) -> Json {
    Json::of(&number).expect("JSON")
}

pub(crate) async fn create(store: &(impl Store + ?Sized), key: &RecordKey, body: &Json) -> WriteResult<Record> {
    store.write_record(RecordWrite::Create { key: key.clone(), body: body.clone() }).await
}

pub(crate) async fn replace(
    store: &(impl Store + ?Sized),
    key: &RecordKey,
    body: &Json,
    expected: Version,
) -> WriteResult<Record> {
    store.write_record(RecordWrite::Replace { key: key.clone(), body: body.clone(), expected }).await
}

pub(crate) async fn remove(store: &(impl Store + ?Sized), key: &RecordKey, expected: Version) -> WriteResult<Record> {
    store.write_record(RecordWrite::Remove { key: key.clone(), expected }).await
}

async fn created(engine: &impl Engine, key: &RecordKey, body: &Json) -> Version {
    create(&**engine.store(), key, body).await.expect("a new record is created")
}

async fn read(engine: &impl Engine, key: &RecordKey) -> Option<Record> {
    engine.store().record(key).await.expect("the store can be read")
}

async fn list(engine: &impl Engine, kind: RecordKind) -> Vec<Record> {
    engine.settle().await;
    engine.store().records(kind).await.expect("the store can be searched")
}

/// What a conflict shows; fails when there was none.
fn conflict(answer: WriteResult<Record>) -> Option<Record> {
    match answer {
        Err(WriteError::Conflict(current)) => current,
        other => panic!("expected a conflict, got {other:?}"),
    }
}

pub(crate) async fn create_refuses_an_existing_key_and_shows_its_record(engine: &impl Engine) {
    let version = created(engine, &leader(), &number(1)).await;
    let record = Record { key: leader(), body: number(1), version };

    assert_eq!(conflict(create(&**engine.store(), &leader(), &number(2)).await), Some(record.clone()));

    assert_eq!(read(engine, &leader()).await, Some(record));
}

pub(crate) async fn a_record_replaced_under_its_version_gets_a_larger_one(engine: &impl Engine) {
    let first = created(engine, &leader(), &number(1)).await;

    let second = replace(&**engine.store(), &leader(), &number(2), first).await.expect("the version is current");

    assert!(second > first, "{second:?} is not larger than {first:?}");
    assert_eq!(read(engine, &leader()).await, Some(Record { key: leader(), body: number(2), version: second }));
}

pub(crate) async fn a_stale_version_conflicts_shows_the_record_and_changes_nothing(engine: &impl Engine) {
    let store = &**engine.store();
    let first = created(engine, &leader(), &number(1)).await;
    let second = replace(store, &leader(), &number(2), first).await.expect("the version is current");
    let record = Record { key: leader(), body: number(2), version: second };

    assert_eq!(conflict(replace(store, &leader(), &number(3), first).await), Some(record.clone()));
    assert_eq!(conflict(remove(store, &leader(), first).await), Some(record.clone()));

    assert_eq!(read(engine, &leader()).await, Some(record));
}

pub(crate) async fn a_record_that_is_not_there_conflicts_with_nothing(engine: &impl Engine) {
    let store = &**engine.store();
    let version = created(engine, &key(RecordKind::Lease, "other"), &number(1)).await;

    assert_eq!(conflict(replace(store, &leader(), &number(2), version).await), None);
    assert_eq!(conflict(remove(store, &leader(), version).await), None);

    assert_eq!(read(engine, &leader()).await, None);
}

pub(crate) async fn removing_a_record_gives_the_version_removed(engine: &impl Engine) {
    let store = &**engine.store();
    let version = created(engine, &leader(), &number(1)).await;

    assert_eq!(remove(store, &leader(), version).await.expect("the version is current"), version);

    assert_eq!(read(engine, &leader()).await, None);
    assert_eq!(list(engine, RecordKind::Lease).await, []);
    assert_eq!(conflict(remove(store, &leader(), version).await), None);
}

pub(crate) async fn a_record_created_again_has_a_version_never_seen(engine: &impl Engine) {
    let store = &**engine.store();
    let mut seen: Vec<Version> = Vec::new();
    for _ in 0..5 {
        let version = created(engine, &leader(), &number(1)).await;
        assert!(seen.iter().all(|earlier| version > *earlier), "{version:?} does not follow {seen:?}");
        seen.push(version);
        let version = replace(store, &leader(), &number(2), version).await.expect("the version is current");
        seen.push(version);
        remove(store, &leader(), version).await.expect("the version is current");
    }
    created(engine, &leader(), &number(3)).await;
    for stale in seen {
        let current = conflict(replace(store, &leader(), &number(4), stale).await).expect("the record exists");
        assert_eq!(current.body, number(3));
    }
}

pub(crate) async fn the_records_of_a_kind_are_listed_by_name_and_no_others(engine: &impl Engine) {
    let names = ["b", "a", "ü", "a/b", "Z", "a b", "🦀", "lease/a", "\"quoted\\\"", &"x".repeat(256)];
    for (place, kind) in RecordKind::ALL.into_iter().enumerate().take(3) {
        for (number_of, name) in names.iter().enumerate() {
            created(engine, &key(kind, name), &number((100 * place + number_of) as u64)).await;
        }
    }

    for (place, kind) in RecordKind::ALL.into_iter().enumerate().take(3) {
        let found = list(engine, kind).await;
        let mut expected: Vec<(RecordKey, Json)> = names
            .iter()
            .enumerate()
            .map(|(number_of, name)| (key(kind, name), number((100 * place + number_of) as u64)))
            .collect();
        expected.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(found.iter().map(|it| (it.key.clone(), it.body.clone())).collect::<Vec<_>>(), expected);
        for record in found {
            assert_eq!(read(engine, &record.key).await, Some(record));
        }
    }
    assert_eq!(list(engine, RecordKind::Setting).await, []);
}

pub(crate) async fn more_records_than_a_page_are_listed_once_each(engine: &impl Engine) {
    const RECORDS: u64 = 1_050;
    const AT_A_TIME: usize = 64;
    let keys: Vec<RecordKey> =
        (0..RECORDS).map(|number| key(RecordKind::Subscription, &format!("{number:05}"))).collect();
    let body = number(0);
    let answers: Vec<WriteResult<Record>> =
        stream::iter(&keys).map(|key| create(&**engine.store(), key, &body)).buffered(AT_A_TIME).collect().await;
    assert!(answers.iter().all(Result::is_ok), "every new record is created");

    let found: Vec<RecordKey> =
        list(engine, RecordKind::Subscription).await.into_iter().map(|record| record.key).collect();

    assert_eq!(found, keys);
}

pub(crate) async fn of_many_replaces_of_one_version_at_once_one_wins(engine: &impl Engine) {
    const RIVALS: u64 = 64;
    let store = &**engine.store();
    let first = created(engine, &leader(), &number(0)).await;

    let bodies: Vec<Json> = (1..=RIVALS).map(number).collect();
    let answers = join_all(bodies.iter().map(|body| async { replace(store, &leader(), body, first).await })).await;

    let mut winners = Vec::new();
    for (body, answer) in bodies.into_iter().zip(answers) {
        match answer {
            Ok(version) => winners.push(Record { key: leader(), body, version }),
            lost => assert!(conflict(lost).is_some_and(|current| current.version > first)),
        }
    }
    let [winner] = <[_; 1]>::try_from(winners).expect("exactly one wins");
    assert_eq!(read(engine, &leader()).await, Some(winner));
}

pub(crate) async fn of_many_creates_of_one_record_at_once_one_wins(engine: &impl Engine) {
    const RIVALS: u64 = 64;
    let store = &**engine.store();
    let bodies: Vec<Json> = (1..=RIVALS).map(number).collect();
    let answers = join_all(bodies.iter().map(|body| async { create(store, &leader(), body).await })).await;

    let won = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(won, 1);
    assert!(answers.into_iter().filter(Result::is_err).all(|lost| conflict(lost).is_some()));
}

pub(crate) async fn a_records_body_comes_back_to_the_letter(engine: &impl Engine) {
    for (number_of, text) in TEXTS.iter().enumerate() {
        let key = key(RecordKind::Setting, &format!("{number_of:02}"));
        let version = created(engine, &key, &number(0)).await;
        let version = replace(&**engine.store(), &key, &json(text), version).await.expect("the version is current");
        assert_eq!(read(engine, &key).await, Some(Record { key, body: json(text), version }));
    }
    let listed: Vec<Json> = list(engine, RecordKind::Setting).await.into_iter().map(|record| record.body).collect();
    assert_eq!(listed, TEXTS.iter().map(|text| json(text)).collect::<Vec<_>>());
}

pub(crate) async fn jobs_and_records_written_at_once_do_not_mix(engine: &impl Engine) {
    const EACH: u64 = 40;
    let store = &**engine.store();
    let jobs = (0..EACH).map(|place| async move {
        let job = submitted(&format!("{place}"));
        let writes = vec![
            Write::Create { job: Arc::clone(&job), bodies: vec![] },
            Write::Create { job: Arc::clone(&job), bodies: vec![] },
        ];
        let answers = store.write(writes).await;
        let [Ok(version), Err(WriteError::Conflict(Some(current)))] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((&current.job, current.version), (&job, *version));
        assert_eq!(get(engine, &job.id).await, Some(current.clone()));
    });
    let records = (0..EACH).map(|place| async move {
        // Named as the jobs are.
        let key = key(RecordKind::Queue, &format!("{place}"));
        let first = create(store, &key, &number(place)).await.expect("a new record is created");
        let version = replace(store, &key, &number(place + 1), first).await.expect("the version is current");
        assert_eq!(read(engine, &key).await, Some(Record { key, body: number(place + 1), version }));
    });

    tokio::join!(join_all(jobs), join_all(records));
}

pub(crate) async fn a_closed_store_refuses_records(engine: &impl Engine) {
    let store = &**engine.store();
    let version = created(engine, &leader(), &number(1)).await;

    store.close().await;

    let refused = replace(store, &leader(), &number(2), version).await;
    assert!(matches!(refused, Err(WriteError::Refused(StoreError::Unavailable(_)))), "{refused:?}");
    assert!(matches!(store.record(&leader()).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(store.records(RecordKind::Lease).await, Err(StoreError::Unavailable(_))));
}
