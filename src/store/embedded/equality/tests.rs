//! Members of which one has another state than the others, and documents at rest that are not as they were written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::directory::Directory;
use super::super::disk::SUM_KEYS;
use super::super::engine::Engine;
use super::super::exchange::Exchange;
use super::super::options::{LEAST_SCRUB_BYTES, MOST_SCRUB_BYTES, Pace};
use super::super::{EmbeddedOptions, EmbeddedStore, GroupOptions, stored, verify};
use super::scrub::Scrub;
use crate::clock::Timestamp;
use crate::job::{Actor, Body, Job, JobId, JobSpec, Priority};
use crate::store::{Member, MemberMessage, Store, Version, Versioned, Write};

mod rebuilt;

const MEMBERS: [u64; 3] = [1, 2, 3];

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long anything is waited for that comes in a few seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// After how many ticks members compare their states.
const NOTE_TICKS: u64 = 10;

fn options(member: u64) -> EmbeddedOptions {
    let group = GroupOptions {
        cluster: "test".to_owned(),
        member,
        members: MEMBERS.to_vec(),
        tick: Duration::from_millis(50),
        note_ticks: Some(NOTE_TICKS),
        keeps_log_bytes: 256 << 20,
        ..GroupOptions::default()
    };
    EmbeddedOptions { group: Some(group), ..EmbeddedOptions::default() }
}

/// Whether a message arrives.
type Way = Box<dyn Fn(&MemberMessage) -> bool + Send>;

#[derive(Default)]
struct Group {
    directories: BTreeMap<u64, TempDir>,
    stores: BTreeMap<u64, EmbeddedStore>,
    open: Arc<Mutex<BTreeMap<u64, Arc<dyn Member>>>>,
    way: Arc<Mutex<Option<Way>>>,
    carriers: JoinSet<()>,
}

impl Group {
    fn new() -> Self {
        let mut group = Self::default();
        MEMBERS.into_iter().for_each(|member| group.start(member));
        group
    }

    fn start(&mut self, number: u64) {
        let fresh = || tempfile::tempdir().expect("a directory");
        let directory = self.directories.entry(number).or_insert_with(fresh);
        let store = EmbeddedStore::open(directory.path(), &options(number)).expect("it can be opened");
        let (member, open) = (store.member().expect("it is one of several"), Arc::clone(&self.open));
        let way = Arc::clone(&self.way);
        open.lock().insert(number, Arc::clone(&member));
        self.carriers.spawn(async move {
            loop {
                let messages = member.outgoing().await;
                if messages.is_empty() {
                    return;
                }
                let arrives = |message: &MemberMessage| way.lock().as_ref().is_none_or(|way| way(message));
                for message in messages.into_iter().filter(arrives) {
                    let to: Option<Arc<dyn Member>> = open.lock().get(&message.to).cloned();
                    to.into_iter().for_each(|to| to.receive(MemberMessage::clone(&message)));
                }
            }
        });
        self.stores.insert(number, store);
    }

    async fn stop(&mut self, number: u64) {
        self.open.lock().remove(&number);
        self.stores.remove(&number).expect("it runs").close().await;
    }

    fn member(&self, number: u64) -> Arc<dyn Member> {
        self.stores[&number].member().expect("it is one of several")
    }

    fn unequal(&self, number: u64) -> Vec<u64> {
        self.member(number).unequal().members.into_iter().collect()
    }

    async fn leader(&self) -> u64 {
        let leads = |number: &&u64| self.member(**number).standing().borrow().leads;
        until("a leader", || self.stores.keys().find(leads).copied()).await
    }

    /// Has a member lead.
    async fn lead(&self, number: u64) {
        let begun = Instant::now();
        while self.leader().await != number {
            assert!(begun.elapsed() < PATIENCE, "member {number} does not lead");
            self.member(self.leader().await).hand_over(Some(number)).await;
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Writes at the leader until it takes that.
    async fn write(&self, write: &Write) -> Version {
        let begun = Instant::now();
        loop {
            let written = self.stores[&self.leader().await].write(vec![write.clone()]).await.swap_remove(0);
            match written {
                Ok(version) => return version,
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn applied(&self, version: Version) {
        let has = |number: &u64| {
            self.stores[number].inner.engine.read().as_ref().is_some_and(|engine| engine.last_write() >= version.seq_no)
        };
        until("all to have it", || MEMBERS.iter().all(has).then_some(())).await;
    }

    /// Waits until all members have compared their states since this, and know the sums of the others.
    async fn compared(&self) {
        let applied = |number: &u64| self.member(*number).standing().borrow().applied;
        let entry = MEMBERS.iter().map(applied).max().expect("there are some");
        // One is compared only where something was written.
        let version = self.write(&create(&format!("after-{entry}"))).await;
        self.applied(version).await;
        let is_known = |number: &u64| {
            let exchange = self.stores[number].inner.exchange.as_ref().expect("it is one of several");
            exchange.equality.lock().last_compared().is_some_and(|known| known > entry)
        };
        until("all to have compared", || MEMBERS.iter().all(is_known).then_some(())).await;
    }

    async fn agreed(&self) {
        let has_agreed = |number: &u64| {
            let exchange = self.stores[number].inner.exchange.as_ref().expect("it is one of several");
            exchange.equality.lock().due_word(true).is_some_and(|said| said.agreed > 0)
        };
        until("all to have agreed", || MEMBERS.iter().all(has_agreed).then_some(())).await;
    }

    /// Changes a job of a member behind its back, while it is stopped. What was flushed is what the store has then.
    fn spoil(&self, number: u64, id: &JobId) {
        let directory = Directory::hold(self.directories[&number].path(), 0).expect("nobody has it");
        let options = options(number);
        let exchange = Exchange::new(options.group.clone().expect("a group"), |_| ());
        let engine = Engine::open(directory, &options, Some(Arc::new(exchange))).expect("it can be opened");
        spoil(&engine, id);
        engine.close().expect("it closes");
    }

    async fn priority(&self, number: u64, id: &JobId) -> Option<i8> {
        let found = self.stores[&number].get(std::slice::from_ref(id)).await.ok()?;
        found[0].as_ref().map(|head| head.job.spec.priority.get())
    }

    async fn all_name(&self, members: &[u64]) {
        let named = || MEMBERS.iter().all(|number| self.unequal(*number) == members);
        until("all to name the same members", || named().then_some(())).await;
    }
}

async fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "waited for {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Changes a job on disk behind the back of a store.
fn spoil(engine: &Engine, id: &JobId) {
    let bytes = engine.disk.live.get(id.as_str()).expect("readable").expect("it is there");
    let Versioned { job, version } = stored::decode(id, &bytes).expect("a job");
    let spec = JobSpec { priority: Priority::new(50).expect("a priority"), ..(*job.spec).clone() };
    let head = Versioned { job: Arc::new(Job { spec: Arc::new(spec), ..(*job).clone() }), version };
    let mut buffer = Vec::new();
    stored::encode(&head, &mut buffer).expect("writable");
    engine.disk.live.insert(id.as_str(), buffer).expect("it is written");
}

fn create(id: &str) -> Write {
    let spec = JobSpec::new("reports".parse().expect("a name"), "kind".parse().expect("a name"));
    let now = Timestamp::from_millis(1_800_000_000_000);
    let id = JobId::new(id).expect("an id");
    let job = Job::submit(id, Arc::new(spec), Body::Empty, (now, None), &Actor::system("test"), now);
    Write::Create { job: Arc::new(job), bodies: Vec::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_differs_is_named_and_none_is_where_another_one_cannot_vouch_for_the_rest() {
    let mut group = Group::new();
    let agreed = || MEMBERS.iter().all(|number| group.member(*number).members().borrow().version >= 6);
    until("a version that all know", || agreed().then_some(())).await;
    let mut ids = Vec::new();
    for name in ["one", "two", "three"] {
        let write = create(name);
        ids.push((write.job().clone(), group.write(&write).await));
    }
    group.applied(ids[2].1).await;
    group.compared().await;
    group.agreed().await;
    assert!(MEMBERS.iter().all(|number| group.unequal(*number).is_empty()));

    // One that leads, and takes what it does not have as the others for the base of what it writes.
    let odd = group.leader().await;
    group.stop(odd).await;
    group.spoil(odd, &ids[0].0.id);
    group.was_rebuilt(odd);
    group.start(odd);
    group.lead(odd).await;
    assert_eq!(group.priority(odd, &ids[0].0.id).await, Some(50));
    let (job, expected) = ids[0].clone();
    let version = group.write(&Write::Remove { job, expected }).await;
    group.applied(Version { seq_no: version.seq_no + 1, ..version }).await;
    group.all_name(&[odd]).await;
    let command = format!("leasehold cluster replace {odd}");
    assert!(group.stores[&odd].unequal().is_some_and(|why| why.contains(&command)));

    // It was rebuilt lately: it stays named, whoever leads, and a person decides.
    let next = MEMBERS.into_iter().find(|number| *number != odd).expect("another one");
    group.lead(next).await;
    group.compared().await;
    assert!(MEMBERS.iter().all(|number| group.unequal(*number) == [odd]));

    // One that has begun with its state since then does not show whose is right.
    group.stop(next).await;
    group.start(next);
    group.write(&create("last")).await;
    group.all_name(&MEMBERS).await;
    assert!(group.stores[&odd].unequal().is_some_and(|why| why.contains("not certain")));
    for number in MEMBERS {
        group.stop(number).await;
    }
}

/// A store of its own.
struct Alone(TempDir);

impl Alone {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    async fn write(&self, ids: &[String]) {
        let store = EmbeddedStore::open(self.0.path(), &EmbeddedOptions::default()).expect("it can be opened");
        let written = store.write(ids.iter().map(|id| create(id)).collect()).await;
        assert!(written.iter().all(Result::is_ok));
        store.close().await;
    }

    fn engine(&self) -> Engine {
        let directory = Directory::hold(self.0.path(), 0).expect("nobody has it");
        Engine::open(directory, &EmbeddedOptions::default(), None).expect("it can be opened")
    }

    fn damages(&self) -> Vec<String> {
        let found = verify(self.0.path()).expect("it can be looked at");
        found.damages.iter().map(ToString::to_string).collect()
    }
}

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("job-{number:03}")).collect()
}

fn is_unreadable(engine: &Engine) -> bool {
    engine.is_unreadable_at_rest.load(Ordering::Relaxed)
}

fn pace(bytes: u64) -> Pace {
    Pace { every: DAY, bytes_per_second: bytes, count_bytes_per_second: bytes }
}

/// Returns whether the gauge of what cannot be read says so; `None` where it was not set.
fn gauge(recorder: &PrometheusRecorder) -> Option<bool> {
    let text = recorder.handle().render();
    let line = text.lines().find_map(|line| line.strip_prefix("leasehold_store_unreadable_at_rest "));
    line.map(|value| value == "1")
}

#[tokio::test]
async fn a_document_that_was_changed_at_rest_is_found_whatever_is_written_since() {
    let alone = Alone::new();
    alone.write(&ids(3)).await;
    assert!(alone.damages().is_empty());
    let engine = alone.engine();
    spoil(&engine, &JobId::new("job-001").expect("an id"));
    engine.close().expect("it closes");
    let says_so = |damages: Vec<String>| matches!(damages.as_slice(), [one] if one.contains("the sum over them"));
    assert!(says_so(alone.damages()));
    let engine = alone.engine();
    let mut scrub = Scrub::of(pace(1 << 20), Instant::now());
    scrub.go_on(&engine, Instant::now() + DAY);
    engine.close().expect("it closes");
    alone.write(&["after".to_owned()]).await;
    assert!(says_so(alone.damages()), "it is forgotten");
}

#[tokio::test]
async fn a_directory_of_an_earlier_version_is_counted_once_while_others_are_written() {
    let alone = Alone::new();
    alone.write(&ids(20)).await;
    let engine = alone.engine();
    let kept = engine.published.read().summed.documents().expect("it is kept");
    SUM_KEYS.iter().for_each(|key| engine.disk.meta.remove(*key).expect("it is removed"));
    engine.close().expect("it closes");
    // Closing has written nothing that changes a document.
    let engine = alone.engine();
    assert_eq!(engine.published.read().summed.documents(), None);
    let mut scrub = Scrub::of(pace(1), Instant::now());
    let mut slices = 0;
    while engine.published.read().summed.documents().is_none() {
        scrub.go_on(&engine, Instant::now());
        slices += 1;
        assert!(slices < 100, "it has no end");
    }
    assert_eq!(engine.published.read().summed.documents(), Some(kept));
    engine.close().expect("it closes");
    assert!(alone.damages().is_empty());
}

#[tokio::test]
async fn the_scrub_rests_after_what_cannot_be_read_and_goes_on_behind_it() {
    let alone = Alone::new();
    alone.write(&ids(4)).await;
    let engine = alone.engine();
    let good = ["job-001", "job-003"].map(|id| engine.disk.live.get(id).expect("readable").expect("it is there"));
    ["job-001", "job-003"].iter().for_each(|id| engine.disk.live.insert(*id, b"?").expect("it is written"));
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let begun = Instant::now();
    let mut scrub = Scrub::of(pace(1 << 20), begun);
    scrub.go_on(&engine, begun);
    assert!(!is_unreadable(&engine), "the first one is not due");
    let mut now = begun + DAY;
    scrub.go_on(&engine, now);
    assert!(is_unreadable(&engine));
    assert_eq!(gauge(&recorder), Some(true), "an alert waits until it is through");
    assert_eq!(scrub.after(), Some(&b"job-001"[..]));
    scrub.go_on(&engine, now + Duration::from_secs(1));
    assert_eq!(scrub.after(), Some(&b"job-001"[..]), "it has no rest");
    now += Duration::from_secs(60);
    scrub.go_on(&engine, now);
    assert_eq!(scrub.after(), Some(&b"job-003"[..]), "it begins from the start again");
    now += Duration::from_secs(60);
    scrub.go_on(&engine, now);
    assert_eq!(scrub.after(), None, "it is through");
    assert!(is_unreadable(&engine));

    for (id, bytes) in ["job-001", "job-003"].iter().zip(&good) {
        engine.disk.live.insert(*id, &**bytes).expect("it is written");
    }
    scrub.go_on(&engine, now + Duration::from_secs(3_600));
    assert!(is_unreadable(&engine), "the next one is not due");
    scrub.go_on(&engine, now + DAY);
    assert!(!is_unreadable(&engine));
    assert_eq!(gauge(&recorder), Some(false));
    engine.close().expect("it closes");
}

#[tokio::test]
async fn documents_that_cannot_be_counted_are_as_those_that_cannot_be_read() {
    let alone = Alone::new();
    alone.write(&ids(2)).await;
    let engine = alone.engine();
    SUM_KEYS.iter().for_each(|key| engine.disk.meta.remove(*key).expect("it is removed"));
    engine.disk.bodies.insert(b"?", b"1").expect("it is written");
    engine.close().expect("it closes");
    let engine = alone.engine();
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let begun = Instant::now();
    let mut scrub = Scrub::of(pace(1 << 20), begun);
    scrub.go_on(&engine, begun);
    assert_eq!((gauge(&recorder), is_unreadable(&engine)), (Some(true), true));
    engine.disk.bodies.remove(b"?").expect("it is removed");
    scrub.go_on(&engine, begun + DAY / 2);
    assert!(is_unreadable(&engine), "they were not counted");
    engine.close().expect("it closes");
}

#[test]
fn the_pace_has_bounds_and_the_count_one_of_its_own() {
    let pace = |scrub_bytes_per_second| EmbeddedOptions { scrub_bytes_per_second, ..Default::default() }.scrub_pace();
    let read = [0, 1 << 20, u64::MAX].map(|bytes| pace(bytes).bytes_per_second);
    assert_eq!(read, [LEAST_SCRUB_BYTES, 1 << 20, MOST_SCRUB_BYTES]);
    assert_eq!(pace(0).count_bytes_per_second, pace(u64::MAX).count_bytes_per_second);
}

#[test]
fn bodies_of_one_length_are_told_apart_by_what_is_in_them() {
    let states = ["1", "2"].map(|content| {
        let alone = Alone::new();
        let engine = alone.engine();
        engine.disk.bodies.insert([7; 16], content).expect("it is written");
        SUM_KEYS.iter().for_each(|key| engine.disk.meta.remove(*key).expect("it is removed"));
        engine.close().expect("it closes");
        let found = verify(alone.0.path()).expect("it can be looked at");
        assert!(found.damages.is_empty(), "{:?}", found.damages);
        found.state.expect("all of it was read").hash
    });
    assert_ne!(states[0], states[1]);
}
