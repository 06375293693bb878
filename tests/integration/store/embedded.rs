//! The embedded engine, and what only it promises: a data directory that lasts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use leasehold::job::{Body, Job, JobState, NewBody, Partition, State};
use leasehold::query::{Filter, GroupField, ScheduleFilter, Search, Sort};
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore, OpenError};
use leasehold::store::{
    AuditEntry, DueSchedules, ListSchedules, MAX_RECORDS, RecordKind, ScheduleWrite, Store, StoreError, StoredSchedule,
    Version, Write, WriteError, WriteResult,
};
use tempfile::TempDir;

use super::sample::{at, claimed, full, full_states, id, in_state, json, submitted};
use super::searches::assorted;
use super::{records, schedules};

/// An embedded store in a directory of its own.
pub(crate) struct Embedded {
    store: Arc<dyn Store>,
    /// After the store, which has files in it.
    _directory: TempDir,
}

#[async_trait]
impl super::Engine for Embedded {
    async fn fresh() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Self { store: Arc::new(open(directory.path())), _directory: directory }
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    async fn settle(&self) {
        assert!(self.store.has_realtime_search(), "its searches see everything at once");
    }
}

/// With blocks of so few jobs that there are some.
fn options() -> EmbeddedOptions {
    EmbeddedOptions { block_jobs: 3, ..EmbeddedOptions::default() }
}

fn open(directory: &Path) -> EmbeddedStore {
    EmbeddedStore::open(directory, &options()).expect("the store can be opened")
}

fn refusal(directory: &Path) -> OpenError {
    match EmbeddedStore::open(directory, &options()) {
        Ok(_) => panic!("{} was opened", directory.display()),
        Err(refusal) => refusal,
    }
}

async fn create_all(store: &EmbeddedStore, jobs: &[Arc<Job>]) -> Vec<Version> {
    let writes = jobs.iter().map(|job| Write::Create { job: Arc::clone(job), bodies: vec![] }).collect();
    store.write(writes).await.into_iter().map(|answer| answer.expect("a new job is created")).collect()
}

#[tokio::test]
async fn everything_is_there_when_the_directory_is_opened_again() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (payload, stored) = Body::place(Some(json("{\"large\": 1.0}")), 0);
    let stored: NewBody = stored.expect("a body of its own");
    let reference = stored.reference;
    let with_body = Arc::new(Job { payload, ..(*submitted("with-body")).clone() });
    let mut jobs = assorted();
    let make = |(number, state): (usize, State)| Arc::new(full(&format!("full-{number}"), state));
    jobs.extend(full_states().into_iter().enumerate().map(make));
    let everything = Search { filter: Filter::default(), sort: Sort::default(), after: None, limit: 1_000 };
    let by = [GroupField::State, GroupField::Queue];

    let store = open(directory.path());
    create_all(&store, &jobs).await;
    let answers = store.write(vec![Write::Create { job: with_body, bodies: vec![stored] }]).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let record = records::key(RecordKind::Lease, "leader");
    records::create(&store, &record, &records::number(1)).await.expect("a new record is created");
    let listed = store.records(RecordKind::Lease).await.expect("readable");
    let before = store.search(&everything).await.expect("searchable");
    let counted = store.count(&Filter::default(), &by).await.expect("countable");
    store.close().await;

    for _ in 0..2 {
        let store = open(directory.path());
        assert_eq!(store.search(&everything).await.expect("searchable"), before);
        assert_eq!(store.count(&Filter::default(), &by).await.expect("countable"), counted);
        assert_eq!(store.records(RecordKind::Lease).await.expect("readable"), listed);
        assert_eq!(store.record(&record).await.expect("readable").as_slice(), listed);
        assert_eq!(store.bodies(&[reference]).await.expect("readable"), [Some(json("{\"large\": 1.0}"))]);
        store.close().await;
    }
}

#[tokio::test]
async fn a_version_is_never_given_twice_over_openings() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let job = submitted("a");
    let mut given: Vec<Version> = Vec::new();
    for _ in 0..3 {
        let store = open(directory.path());
        let created = create_all(&store, std::slice::from_ref(&job)).await[0];
        assert!(given.iter().all(|earlier| created > *earlier), "{created:?} does not follow {given:?}");
        given.push(created);
        let removal = Write::Remove { job: Arc::clone(&job), expected: created };
        assert!(store.write(vec![removal]).await[0].is_ok());
        let key = records::key(RecordKind::Lease, "leader");
        let created = records::create(&store, &key, &records::number(1)).await.expect("a new record is created");
        assert!(given.iter().all(|earlier| created > *earlier), "{created:?} does not follow {given:?}");
        given.push(created);
        records::remove(&store, &key, created).await.expect("the version is current");
        store.close().await;
    }
    assert_eq!(given.iter().map(|version| version.primary_term).collect::<Vec<_>>(), [1, 1, 2, 2, 3, 3]);
}

#[tokio::test]
async fn a_dropped_store_lets_its_directory_go_and_keeps_what_was_handed_over() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = open(directory.path());
    create_all(&store, &[submitted("a")]).await;
    drop(store);
    let store = open(directory.path());
    assert!(store.get(&[id("a")]).await.expect("readable")[0].is_some());
}

#[tokio::test]
async fn only_its_user_can_read_what_is_in_the_directory() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let directory = place.path().join("data");
    let store = open(&directory);
    let entry = AuditEntry { id: "a/1".to_owned(), at: at(0), document: serde_json::Map::new() };
    store.append_audit(&[entry]).await.expect("added");
    store.close().await;
    let mode = |name: &str| fs::metadata(directory.join(name)).expect("there").permissions().mode() & 0o777;
    for folder in ["", "store", "audit"] {
        assert_eq!(mode(folder), 0o700, "{folder}");
    }
    let months = fs::read_dir(directory.join("audit")).expect("readable");
    let months = months.map(|month| format!("audit/{}", month.expect("a file").file_name().to_string_lossy()));
    for file in ["leasehold.lock".to_owned(), "leasehold.format".to_owned()].into_iter().chain(months) {
        assert_eq!(mode(&file), 0o600, "{file}");
    }
}

#[tokio::test]
async fn a_directory_in_use_is_refused_and_its_holder_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = open(directory.path());

    let refusal = refusal(directory.path());

    let text = refusal.to_string();
    assert!(matches!(refusal, OpenError::InUse { holder: Some(pid), .. } if pid == std::process::id()), "{text}");
    assert!(text.contains(&directory.path().display().to_string()), "{text}");
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    assert!(text.contains("stop"), "{text}");
    store.ready().await.expect("the first holder is not disturbed");
}

#[test]
fn another_format_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    drop(open(directory.path()));
    let format = directory.path().join("leasehold.format");
    let written = fs::read_to_string(&format).expect("a format file");
    let known: u32 = written.trim().parse().expect("a number");
    for other in [known - 1, known + 1] {
        fs::write(&format, format!("{other}\n")).expect("writable");

        let refusal = refusal(directory.path());

        assert!(matches!(refusal, OpenError::UnknownFormat { found, .. } if found == other), "{refusal}");
        assert!(refusal.to_string().contains(&format!("format {other}, and this version reads format {known}")));
        assert_eq!(fs::read_to_string(&format).expect("a format file"), format!("{other}\n"));
    }
    fs::write(&format, written).expect("writable");
    drop(open(directory.path()));
}

#[test]
fn a_database_without_a_format_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    drop(open(directory.path()));
    let format = directory.path().join("leasehold.format");
    for damage in [None, Some(&b""[..]), Some(b"one"), Some(b"\xff")] {
        match damage {
            None => fs::remove_file(&format).expect("removable"),
            Some(bytes) => fs::write(&format, bytes).expect("writable"),
        }
        let refusal = refusal(directory.path());
        assert!(matches!(refusal, OpenError::NoFormat { .. }), "{refusal}");
    }
}

#[test]
fn a_folder_of_something_else_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::write(directory.path().join(".hidden"), "").expect("writable");
    fs::write(directory.path().join("thesis.tex"), "").expect("writable");
    let refusal = refusal(directory.path());
    assert!(refusal.to_string().contains("such as `thesis.tex`: choose an empty one"), "{refusal}");
    assert_eq!(fs::read_dir(directory.path()).expect("readable").count(), 2);
    fs::remove_file(directory.path().join("thesis.tex")).expect("removable");
    drop(open(directory.path()));
    // What is put beside a store later is nobody's concern.
    fs::write(directory.path().join("notes"), "").expect("writable");
    drop(open(directory.path()));
}

#[test]
fn a_creation_that_was_cut_short_is_begun_anew() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let unfinished = directory.path().join("store.new");
    fs::create_dir(&unfinished).expect("creatable");
    fs::write(unfinished.join("0.jnl"), "half a journal").expect("writable");
    drop(open(directory.path()));
    assert!(!unfinished.exists());
    drop(open(directory.path()));
}

/// Writes to a database that was left behind what the store would never write.
fn damage(directory: &Path, keyspace: &str, key: &[u8], value: &[u8]) {
    let db = fjall::Database::builder(directory.join("store")).open().expect("a database");
    let keyspace = db.keyspace(keyspace, fjall::KeyspaceCreateOptions::default).expect("a keyspace");
    keyspace.insert(key, value).expect("writable");
    db.persist(fjall::PersistMode::SyncAll).expect("durable");
}

#[tokio::test]
async fn a_damaged_record_of_a_live_job_is_named_when_the_store_is_opened() {
    for value in [&b""[..], b"\x01", b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x02later"] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        drop(open(directory.path()));
        damage(directory.path(), "live", b"job-7", value);
        let refusal = refusal(directory.path());
        assert!(matches!(refusal, OpenError::Corrupt { .. }), "{refusal}");
        assert!(refusal.to_string().contains("job-7"), "{refusal}");
    }
}

#[tokio::test]
async fn a_damaged_record_of_a_finished_job_is_reported_and_the_others_are_served() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let whole = in_state(&submitted("whole"), State::Failed { finished_at: at(1) });
    let store = open(directory.path());
    create_all(&store, std::slice::from_ref(&whole)).await;
    drop(store);
    damage(directory.path(), "done", b"broken", b"\x01nonsense");

    let store = open(directory.path());

    assert!(matches!(store.get(&[id("broken")]).await, Err(StoreError::Corrupt(what)) if what.contains("broken")));
    assert_eq!(store.get(&[id("whole")]).await.expect("readable")[0].as_ref().map(|found| &found.job), Some(&whole));
    let answers = store.write(vec![Write::Create { job: submitted("broken"), bodies: vec![] }]).await;
    assert!(matches!(&answers[0], Err(leasehold::store::WriteError::Refused(StoreError::Corrupt(_)))), "{answers:?}");
    assert_eq!(create_all(&store, &[submitted("another")]).await.len(), 1);
}

#[tokio::test]
async fn a_job_whose_columns_are_damaged_cannot_be_changed_and_the_others_can() {
    const CREATED_AT: u8 = 1;
    const ID: u8 = 10;
    for column in [CREATED_AT, ID] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let failed = |number| in_state(&submitted(&format!("job-{number}")), State::Failed { finished_at: at(1) });
        // The first three are in a block, as are the others in theirs.
        let jobs: Vec<Arc<Job>> = (0..12).map(failed).collect();
        let store = open(directory.path());
        let versions = create_all(&store, &jobs).await;
        drop(store);
        damage(directory.path(), "blocks", &[column, 0, 0, 0, 0], b"\xff");

        let store = open(directory.path());

        let removal = |number: usize| Write::Remove { job: Arc::clone(&jobs[number]), expected: versions[number] };
        let creation = |name: &str| Write::Create { job: submitted(name), bodies: vec![] };
        let writes = vec![creation("before"), removal(0), removal(5), creation("job-1"), creation("after")];
        let answers = store.write(writes).await;
        let corrupt = |answer: &WriteResult| matches!(answer, Err(WriteError::Refused(StoreError::Corrupt(_))));
        assert!(answers[0].is_ok() && answers[2].is_ok() && answers[4].is_ok(), "{answers:?}");
        assert!(corrupt(&answers[1]), "{answers:?}");
        assert!(matches!(&answers[3], Err(WriteError::Conflict(Some(_)))), "it exists: {answers:?}");
        store.ready().await.expect("the store goes on");
        assert!(store.get(&[id("job-0")]).await.expect("readable")[0].is_some());
        assert_eq!(create_all(&store, &[submitted("another")]).await.len(), 1);
    }
}

#[tokio::test]
async fn a_damaged_record_is_reported_and_the_others_are_served() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (whole, broken) = (records::key(RecordKind::Lease, "whole"), records::key(RecordKind::Queue, "broken"));
    let store = open(directory.path());
    records::create(&store, &whole, &records::number(1)).await.expect("a new record is created");
    drop(store);
    damage(directory.path(), "records", b"\x01broken", b"\x01nonsense");

    let store = open(directory.path());

    let found = store.record(&broken).await;
    assert!(matches!(&found, Err(StoreError::Corrupt(what)) if what.contains("queue/broken")), "{found:?}");
    assert!(matches!(store.records(RecordKind::Queue).await, Err(StoreError::Corrupt(_))));
    let refused = records::create(&store, &broken, &records::number(1)).await;
    assert!(matches!(&refused, Err(leasehold::store::WriteError::Refused(StoreError::Corrupt(_)))), "{refused:?}");
    assert_eq!(store.records(RecordKind::Lease).await.expect("readable").len(), 1);
    records::create(&store, &records::key(RecordKind::Queue, "a"), &records::number(1)).await.expect("another record");
}

#[tokio::test]
async fn schedules_are_there_through_flushes_and_when_the_directory_is_opened_again() {
    const SCHEDULES: i64 = 300;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let options = EmbeddedOptions { flush_changes: 40, ..options() };
    let open = || EmbeddedStore::open(directory.path(), &options).expect("the store can be opened");
    let mut store = open();
    let new: Vec<_> = (0..SCHEDULES).map(|number| schedules::due(&format!("{number:03}"), number)).collect();
    let mut stored = schedules::created(&store, &new).await;
    for round in 1..=4 {
        for (place, stored) in stored.chunks_mut(20).enumerate() {
            if (place + round) % 2 == 0 {
                continue;
            }
            let later = |stored: &StoredSchedule| {
                let offset = SCHEDULES * round as i64 + 1;
                let schedule = Arc::new(schedules::due(stored.schedule.id.as_str(), offset));
                ScheduleWrite::Replace { schedule, expected: stored.version }
            };
            let writes: Vec<_> = stored.iter().map(later).collect();
            for ((stored, write), answer) in
                stored.iter_mut().zip(&writes).zip(store.write_schedules(writes.clone()).await)
            {
                let version = answer.expect("the version is current");
                *stored = StoredSchedule { schedule: Arc::clone(write.schedule().expect("a schedule")), version };
            }
            schedules::are_all(&store, stored).await;
        }
        schedules::are_all_there_is(&store, &stored).await;
        if round % 2 == 0 {
            store.close().await;
            store = open();
            schedules::are_all_there_is(&store, &stored).await;
        }
    }
    let removals = stored.drain(100..);
    let removals =
        removals.map(|stored| ScheduleWrite::Remove { id: stored.schedule.id.clone(), expected: stored.version });
    assert!(store.write_schedules(removals.collect()).await.iter().all(Result::is_ok));
    schedules::are_all_there_is(&store, &stored).await;
    drop(store);
    let store = open();
    schedules::are_all_there_is(&store, &stored).await;
    store.close().await;
    let verified = leasehold::store::embedded::verify(directory.path()).expect("it can be read");
    assert_eq!((verified.schedules, verified.damages), (100, vec![]));
}

#[tokio::test]
async fn a_damaged_schedule_is_reported_and_the_others_are_served() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = open(directory.path());
    let stored = schedules::created(&store, &["a", "c", "d"].map(|name| schedules::due(name, 1))).await;
    drop(store);
    let due_key = [(at(1).as_millis() as u64 ^ (1 << 63)).to_be_bytes().as_slice(), b"b"].concat();
    damage(directory.path(), "schedules", b"b", b"\x01nonsense");
    damage(directory.path(), "schedules_due", &due_key, b"");
    damage(directory.path(), "schedules_due", b"short", b"");

    let store = open(directory.path());

    let found = store.schedules(&[schedules::id("b")]).await;
    assert!(matches!(&found, Err(StoreError::Corrupt(what)) if what.contains("the schedule b")), "{found:?}");
    let create = ScheduleWrite::Create { schedule: Arc::new(schedules::due("b", 1)) };
    let refused = store.write_schedules(vec![create]).await;
    assert!(matches!(&refused[0], Err(WriteError::Refused(StoreError::Corrupt(_)))), "{refused:?}");
    schedules::are_all(&store, &stored).await;
    let partitions = Partition::all().collect();
    for limit in 1..5 {
        // The page has the next one in its place.
        let list = ListSchedules { filter: ScheduleFilter::default(), after: None, limit };
        assert_eq!(store.list_schedules(&list).await.expect("searchable"), stored[..limit.min(3)]);
        let due = DueSchedules { partitions, until: at(1), limit };
        assert_eq!(store.due_schedules(&due).await.expect("searchable"), stored[..limit.min(3)]);
    }
    store.close().await;
    let verified = leasehold::store::embedded::verify(directory.path()).expect("it can be read");
    assert_eq!((verified.damages.len(), verified.schedules), (2, 4), "{:?}", verified.damages);
}

#[tokio::test]
async fn more_records_than_can_be_listed_are_an_error_and_no_half_list() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = open(directory.path());
    let body = records::number(1);
    let keys: Vec<_> = (0..MAX_RECORDS).map(|number| records::key(RecordKind::Queue, &format!("{number}"))).collect();
    let answers = join_all(keys.iter().map(|key| records::create(&store, key, &body))).await;
    assert!(answers.iter().all(Result::is_ok), "every new record is created");
    assert_eq!(store.records(RecordKind::Queue).await.expect("as many as can be listed").len(), MAX_RECORDS);

    records::create(&store, &records::key(RecordKind::Queue, "more"), &body).await.expect("a new record is created");

    assert!(matches!(store.records(RecordKind::Queue).await, Err(StoreError::Corrupt(_))));
    assert_eq!(store.records(RecordKind::Setting).await.expect("another kind"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_found_at_every_moment_while_it_ends_and_starts_again() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = Arc::new(open(directory.path()));
    let job = submitted("a");
    let mut version = create_all(&store, std::slice::from_ref(&job)).await[0];
    let writing = {
        let (store, job) = (Arc::clone(&store), Arc::clone(&job));
        tokio::spawn(async move {
            for round in 0..200 {
                let failed = in_state(&claimed(&job), State::Failed { finished_at: at(round) });
                for next in [failed, Arc::clone(&job)] {
                    let write = Write::Replace { job: next, expected: version, bodies: vec![] };
                    version = store.write(vec![write]).await.remove(0).expect("the version is current");
                }
            }
        })
    };
    let everything = Search { filter: Filter::default(), sort: Sort::default(), after: None, limit: 10 };
    while !writing.is_finished() {
        assert!(store.get(&[id("a")]).await.expect("readable")[0].is_some());
        assert_eq!(store.search(&everything).await.expect("searchable").len(), 1);
        assert_eq!(store.count(&Filter::default(), &[]).await.expect("countable")[0].count, 1);
        let states = Filter { states: JobState::ALL.to_vec(), run_at_most: Some(at(0)), ..Filter::default() };
        assert_eq!(store.count(&states, &[]).await.expect("countable")[0].count, 1);
    }
    writing.await.expect("every write is accepted");
}
