//! What the engine on a search server makes of answers that never come, come late or come in half, and of a primary
//! that dies: an acknowledged write is there, once, and a writer without rivals never hears of a conflict.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use leasehold::job::{Body, Job, ScheduleId};
use leasehold::schedule::Schedule;
use leasehold::store::elasticsearch::{ElasticsearchOptions, ElasticsearchStore};
use leasehold::store::{Record, RecordKind, ScheduleWrite, Store, StoreError, Version, Versioned, Write, WriteError};
use tokio::task::JoinHandle;

use super::archive::schedules;
use super::elasticsearch::{connect, patient};
use super::records;
use super::sample::{counted, json, submitted};
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::seed;
use crate::servers::{self, Cluster, IndexSet};

/// One answer in so many is spoiled.
const ONE_IN: u32 = 3;
const WRITERS: usize = 4;
/// Jobs that a writer writes together.
const JOBS: usize = 10;
/// How often it writes them.
const ROUNDS: usize = 5;
/// How often at most, where no answer was spoiled yet.
const MOST_ROUNDS: usize = 200;
/// Short, so that a swallowed answer is noticed soon.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);
/// Longer than that, so that the answer comes when it is no longer waited for.
const DELAY: Duration = Duration::from_millis(700);
/// How much must be written before the primary dies, and after.
const ENOUGH: usize = 300;

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_writer_sees_no_conflict_when_answers_are_swallowed() {
    a_lone_writer_sees_no_conflict(Fault::Swallow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_writer_sees_no_conflict_when_answers_are_late() {
    a_lone_writer_sees_no_conflict(Fault::Delay(DELAY)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_writer_sees_no_conflict_when_connections_are_reset() {
    a_lone_writer_sees_no_conflict(Fault::Reset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_writer_sees_no_conflict_when_answers_are_cut_short() {
    a_lone_writer_sees_no_conflict(Fault::Cut).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_creates_of_one_id_behind_a_bad_network_one_wins() {
    let (store, proxy, _set) = behind(vec![Fault::Swallow, Fault::Reset, Fault::Cut]).await;
    for round in 0.. {
        let wins: Vec<AtomicUsize> = (0..JOBS).map(|_| AtomicUsize::new(0)).collect();
        join_all((0..WRITERS).map(|_| async {
            let new = |number| Write::Create { job: submitted(&format!("{round}-{number}")), bodies: vec![] };
            for (answer, wins) in store.write((0..JOBS).map(new).collect()).await.into_iter().zip(&wins) {
                match answer {
                    Ok(_) => wins.fetch_add(1, Ordering::SeqCst),
                    Err(WriteError::Conflict(Some(_))) => 0,
                    Err(other) => panic!("neither won nor lost: {other}"),
                };
            }
        }))
        .await;
        let wins: Vec<usize> = wins.into_iter().map(AtomicUsize::into_inner).collect();
        assert_eq!(wins, [1; JOBS]);
        if is_enough(round, &proxy) {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: the writer of a job runs"]
async fn a_lone_writer_of_a_record_sees_no_conflict_behind_a_bad_network() {
    let (store, proxy, _set) = &behind(vec![Fault::Swallow, Fault::Delay(DELAY), Fault::Reset, Fault::Cut]).await;

    join_all((0..WRITERS).map(|writer| async move {
        let key = records::key(RecordKind::Lease, &format!("{writer}"));
        for _ in 0..ROUNDS {
            let mut version = records::create(store, &key, &records::number(0)).await.expect("nobody else creates it");
            for count in 1..=ROUNDS as u64 {
                let counted = records::replace(store, &key, &records::number(count), version).await;
                version = counted.expect("nobody else replaces it");
            }
            let found = store.record(&key).await.expect("the store can be read");
            let expected = Record { key: key.clone(), body: records::number(ROUNDS as u64), version };
            assert_eq!(found, Some(expected));
            assert_eq!(records::remove(store, &key, version).await.expect("nobody else removes it"), version);
            assert_eq!(store.record(&key).await.expect("the store can be read"), None);
        }
    }))
    .await;

    assert!(proxy.counts().spoiled() > 0, "some answers were spoiled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_writer_of_schedules_sees_no_conflict_behind_a_bad_network() {
    let (store, proxy, _set) = &behind(vec![Fault::Swallow, Fault::Delay(DELAY), Fault::Reset, Fault::Cut]).await;

    join_all((0..WRITERS).map(|writer| async move {
        let write = |writes: Vec<ScheduleWrite>| async {
            let answers = store.write_schedules(writes).await;
            answers.into_iter().map(|answer| answer.expect("nobody else writes it")).collect::<Vec<Version>>()
        };
        let new = |number| schedules::schedule(&format!("{writer}-{number}"), "{}", 0);
        let mut own: Vec<Arc<Schedule>> = (0..JOBS).map(new).collect();
        let ids: Vec<_> = own.iter().map(|schedule| schedule.id.clone()).collect();
        let mut versions = write(own.iter().map(schedules::creation).collect()).await;
        for _ in 0..ROUNDS {
            own = own.iter().map(|schedule| schedules::revised(schedule)).collect();
            let replacements = own.iter().zip(&versions).map(|(schedule, expected)| ScheduleWrite::Replace {
                schedule: Arc::clone(schedule),
                expected: *expected,
            });
            versions = write(replacements.collect()).await;
        }
        let found = store.schedules(&ids).await.expect("the store can be read").into_iter().flatten();
        let found: Vec<_> = found.map(|found| (found.schedule, found.version)).collect();
        assert_eq!(found, own.into_iter().zip(versions.clone()).collect::<Vec<_>>());
        let removal =
            |(id, expected): (&ScheduleId, &Version)| ScheduleWrite::Remove { id: id.clone(), expected: *expected };
        assert_eq!(write(ids.iter().zip(&versions).map(removal).collect()).await, versions);
        let found = store.schedules(&ids).await.expect("the store can be read");
        assert!(found.iter().all(Option::is_none));
    }))
    .await;

    assert!(proxy.counts().spoiled() > 0, "some answers were spoiled");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_replaces_of_one_record_behind_a_bad_network_one_wins() {
    let (store, proxy, _set) = &behind(vec![Fault::Swallow, Fault::Reset, Fault::Cut]).await;
    let key = &records::key(RecordKind::Lease, "leader");
    let mut version = records::create(store, key, &records::number(0)).await.expect("nobody else creates it");

    for round in 0.. {
        let answers = join_all((0..WRITERS).map(|writer| async move {
            let body = records::number((WRITERS * round + writer) as u64);
            (records::replace(store, key, &body, version).await, body)
        }))
        .await;
        let mut winners = Vec::new();
        for (answer, body) in answers {
            match answer {
                Ok(version) => winners.push(Record { key: key.clone(), body, version }),
                Err(WriteError::Conflict(Some(_))) => {}
                Err(other) => panic!("neither won nor lost: {other}"),
            }
        }
        let [winner] = <[_; 1]>::try_from(winners).expect("exactly one wins");
        assert_eq!(store.record(key).await.expect("the store can be read").as_ref(), Some(&winner));
        version = winner.version;
        if is_enough(round, proxy) {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: three nodes of Elasticsearch for it alone"]
async fn what_was_acknowledged_survives_the_loss_of_the_primary() {
    let cluster = Cluster::start(3).await;
    let indices = cluster.indices("lost");
    let prefix = indices.prefix();
    // Reads and writes wait for the election, however long a slow machine takes over it.
    let options = ElasticsearchOptions {
        urls: cluster.urls(),
        index_prefix: prefix.to_owned(),
        read_timeout: Duration::from_secs(120),
        write_timeout: Duration::from_secs(180),
        ..ElasticsearchOptions::default()
    };
    let store = connect(options).await;
    cluster.wait_until_green(0, 3).await;
    let (store, written, enough) = (&store, &AtomicUsize::new(0), &AtomicUsize::new(usize::MAX));

    let writers = join_all((0..WRITERS).map(|writer| async move {
        let mut own = Own::create(store, writer).await;
        while written.load(Ordering::SeqCst) < enough.load(Ordering::SeqCst) {
            own.count_up(store).await;
            written.fetch_add(JOBS, Ordering::SeqCst);
        }
        own
    }));
    let killing = async {
        wait_until(|| written.load(Ordering::SeqCst) > ENOUGH).await;
        let holder = cluster.holder_of_primary(0, &format!("{prefix}jobs")).await;
        cluster.kill(holder).await;
        enough.store(written.load(Ordering::SeqCst) + ENOUGH, Ordering::SeqCst);
    };
    let (writers, ()) = tokio::join!(writers, killing);

    for own in writers {
        own.is_stored(store).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_was_lost_is_written_once_more_before_it_is_acknowledged() {
    let silent = Silent::start(ElasticsearchOptions::default()).await;
    let (next, answer, found) = silent.replace_in_silence().await;
    silent.proxy.inject(false);
    let version = answer.await.expect("no panic").expect("it was written");
    assert_eq!(version.place, found.version.place);
    assert!(version.seq_no > found.version.seq_no, "{version:?} confirms what was read as {:?}", found.version);
    let now = silent.read(&next).await;
    assert_eq!((now.job, now.version), (next, version));
}

/// The version would let the writer overwrite what another one based on its write, without having seen it.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_was_built_upon_before_its_answer_came_gives_no_version_to_overwrite_that_with() {
    let silent = Silent::start(ElasticsearchOptions::default()).await;
    let (next, answer, found) = silent.replace_in_silence().await;
    let built_upon = counted(&next);
    let on_top = Write::Replace { job: Arc::clone(&built_upon), expected: found.version, bodies: vec![] };
    acknowledged(silent.clean.write(vec![on_top]).await.remove(0));
    silent.proxy.inject(false);
    let version = answer.await.expect("no panic").expect("it was written");

    let unseen = Write::Replace { job: counted(&counted(&built_upon)), expected: version, bodies: vec![] };
    let refused = silent.store.write(vec![unseen]).await.remove(0);
    let Err(WriteError::Conflict(Some(current))) = refused else { panic!("overwritten: {refused:?}") };
    assert_eq!(current.job, built_upon);
    assert_eq!(silent.read(&next).await.job, built_upon);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_of_writes_is_full_by_their_bodies_as_well_as_by_their_number() {
    let options = ElasticsearchOptions { write_queue: 100, ..ElasticsearchOptions::default() };
    let silent = Silent::start(options).await;
    let large = |name: &str| {
        let (payload, body) = Body::place(Some(json(&format!("\"{}\"", "x".repeat(300_000)))), 0);
        let job = Arc::new(Job { payload, ..(*submitted(name)).clone() });
        Write::Create { job, bodies: body.into_iter().collect() }
    };
    silent.proxy.inject(true);
    let first = silent.write(large("first"));
    wait_until(|| silent.proxy.counts().swallowed > 0).await;
    let refused = silent.store.write(vec![large("second")]).await.remove(0);
    assert!(matches!(refused, Err(WriteError::Refused(StoreError::Overloaded { .. }))), "{refused:?}");
    silent.proxy.inject(false);
    acknowledged(first.await.expect("no panic"));
    acknowledged(silent.store.write(vec![large("third")]).await.remove(0));
}

/// A store that hears no answer while faults are on, and one that hears all.
struct Silent {
    store: Arc<ElasticsearchStore>,
    clean: ElasticsearchStore,
    proxy: FaultProxy,
    _set: IndexSet,
}

impl Silent {
    async fn start(options: ElasticsearchOptions) -> Self {
        let server = servers::elasticsearch().await;
        let faults = Faults { one_in: 1, seed: seed::any(), kinds: vec![Fault::Swallow] };
        let proxy = FaultProxy::start(server.url(), faults).await;
        let set = server.index_set().await;
        let options = ElasticsearchOptions { index_prefix: set.prefix().to_owned(), ..options };
        let clean = connect(ElasticsearchOptions { urls: vec![server.url().to_owned()], ..options.clone() }).await;
        // Only single requests are hasty: there is time to make them again.
        let (read_timeout, write_timeout) = (Duration::from_secs(120), Duration::from_secs(180));
        let patient = ElasticsearchOptions { read_timeout, write_timeout, ..options };
        let hasty = ElasticsearchOptions { urls: vec![proxy.url()], request_timeout: 2 * REQUEST_TIMEOUT, ..patient };
        Self { store: Arc::new(connect(hasty).await), clean, proxy, _set: set }
    }

    fn write(&self, write: Write) -> JoinHandle<Result<Version, WriteError>> {
        let store = Arc::clone(&self.store);
        tokio::spawn(async move { store.write(vec![write]).await.remove(0) })
    }

    /// Creates a job, and has it replaced without an answer. Gives the replacement, the answer to come, and the job as
    /// the other store reads it.
    async fn replace_in_silence(&self) -> (Arc<Job>, JoinHandle<Result<Version, WriteError>>, Versioned) {
        let job = submitted("the-job");
        let creation = Write::Create { job: Arc::clone(&job), bodies: vec![] };
        let expected = acknowledged(self.store.write(vec![creation]).await.remove(0));
        self.proxy.inject(true);
        let next = counted(&job);
        let answer = self.write(Write::Replace { job: Arc::clone(&next), expected, bodies: vec![] });
        wait_until(|| self.proxy.counts().swallowed > 0).await;
        let found = self.read(&job).await;
        assert_eq!(found.job, next, "it was written");
        (next, answer, found)
    }

    async fn read(&self, job: &Job) -> Versioned {
        let found = self.clean.get(std::slice::from_ref(&job.id)).await.expect("the store can be read").remove(0);
        found.expect("the job is there")
    }
}

/// Whether answers were spoiled in enough rounds: writes that travel together take few requests.
fn is_enough(round: usize, proxy: &FaultProxy) -> bool {
    assert!(round < MOST_ROUNDS, "no answer was spoiled");
    round + 1 >= ROUNDS && proxy.counts().spoiled() > 0
}

async fn behind(kinds: Vec<Fault>) -> (ElasticsearchStore, FaultProxy, IndexSet) {
    let server = servers::elasticsearch().await;
    let proxy = FaultProxy::start(server.url(), Faults { one_in: ONE_IN, seed: seed::any(), kinds }).await;
    let set = server.index_set().await;
    let patient = patient(&proxy.url(), set.prefix());
    let options = ElasticsearchOptions { request_timeout: REQUEST_TIMEOUT, ..patient };
    let store = connect(options).await;
    proxy.inject(true);
    (store, proxy, set)
}

async fn a_lone_writer_sees_no_conflict(fault: Fault) {
    let (store, proxy, _set) = &behind(vec![fault]).await;

    let writers = join_all((0..WRITERS).map(|writer| async move {
        let mut own = Own::create(store, writer).await;
        for _ in 0..ROUNDS {
            own.count_up(store).await;
        }
        own
    }))
    .await;

    assert!(proxy.counts().spoiled() > 0, "some answers were spoiled");
    proxy.inject(false);
    for own in writers {
        own.is_stored(store).await;
        own.remove(store, proxy).await;
    }
}

/// The jobs of one writer, as they were acknowledged.
struct Own(Vec<(Arc<Job>, Version)>);

impl Own {
    async fn create(store: &impl Store, writer: usize) -> Self {
        let jobs: Vec<Arc<Job>> = (0..JOBS).map(|number| submitted(&format!("{writer}-{number}"))).collect();
        let writes = jobs.iter().map(|job| Write::Create { job: Arc::clone(job), bodies: vec![] }).collect();
        let answers = store.write(writes).await;
        Self(jobs.into_iter().zip(answers.into_iter().map(acknowledged)).collect())
    }

    async fn count_up(&mut self, store: &impl Store) {
        let next: Vec<Arc<Job>> = self.0.iter().map(|(job, _)| counted(job)).collect();
        let replace = |(job, (_, expected)): (&Arc<Job>, &(Arc<Job>, Version))| Write::Replace {
            job: Arc::clone(job),
            expected: *expected,
            bodies: vec![],
        };
        let answers = store.write(next.iter().zip(&self.0).map(replace).collect()).await;
        self.0 = next.into_iter().zip(answers.into_iter().map(acknowledged)).collect();
    }

    async fn is_stored(&self, store: &impl Store) {
        let ids: Vec<_> = self.0.iter().map(|(job, _)| job.id.clone()).collect();
        let found = store.get(&ids).await.expect("the store can be read");
        let found: Vec<_> = found.into_iter().flatten().map(|found| (found.job, found.version)).collect();
        assert_eq!(found, self.0);
    }

    async fn remove(&self, store: &impl Store, proxy: &FaultProxy) {
        proxy.inject(true);
        let removal =
            |(job, expected): &(Arc<Job>, Version)| Write::Remove { job: Arc::clone(job), expected: *expected };
        store.write(self.0.iter().map(removal).collect()).await.into_iter().for_each(|answer| {
            acknowledged(answer);
        });
        proxy.inject(false);
        let ids: Vec<_> = self.0.iter().map(|(job, _)| job.id.clone()).collect();
        let found = store.get(&ids).await.expect("the store can be read");
        assert!(found.iter().all(Option::is_none));
    }
}

fn acknowledged(answer: Result<Version, WriteError>) -> Version {
    answer.expect("a writer without rivals is acknowledged")
}

async fn wait_until(condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "nothing moves");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
