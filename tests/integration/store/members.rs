//! Several members that are one store, in one process: what one has acknowledged all have in the end, whichever of them
//! is gone, cut off or started again meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use leasehold::job::{Job, JobId};
use leasehold::query::{Filter, Search, Sort};
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore, GroupOptions, OpenError};
use leasehold::store::{Member, MemberMessage, Record, RecordKind, Standing, Store, StoreError, Version, Versioned};
use leasehold::store::{Write, WriteError, WriteResult};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::sample::{id, submitted};

/// More often than a machine stands still at the wrong moment.
const MANY: usize = 50;
/// How many rounds of faults there are at least.
const ROUNDS: usize = 40;
pub(super) const MEMBERS: [u64; 3] = [1, 2, 3];

/// How long anything is waited for that comes in a second or two on an idle machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn options(member: u64) -> EmbeddedOptions {
    // A leader is given up after ten to twenty of these, which is more than a sync takes on a busy machine.
    let tick = Duration::from_millis(100);
    let (cluster, members) = ("test".to_owned(), MEMBERS.to_vec());
    let group = GroupOptions { cluster, member, members, tick, keeps_log_bytes: 256 << 20, ..GroupOptions::default() };
    EmbeddedOptions {
        block_jobs: 3,
        flush_changes: 200,
        segment_bytes: 32 << 10,
        group: Some(group),
        ..EmbeddedOptions::default()
    }
}

/// Which messages arrive.
#[derive(Default)]
pub(super) struct Network {
    /// The members whose messages, to and from, are lost.
    pub(super) cut: Mutex<Vec<u64>>,
    /// The share of messages that are lost, in percent.
    pub(super) lossy: AtomicU64,
    open: Mutex<BTreeMap<u64, Arc<dyn Member>>>,
    pub(super) is_doubling: AtomicBool,
}

impl Network {
    fn carry(&self, message: MemberMessage) {
        let is_cut = {
            let cut = self.cut.lock();
            cut.contains(&message.from) || cut.contains(&message.to)
        };
        if is_cut || rand::rng().random_range(0..100) < self.lossy.load(Ordering::Relaxed) {
            return;
        }
        let to = self.open.lock().get(&message.to).cloned();
        let Some(to) = to else { return };
        if self.is_doubling.load(Ordering::Relaxed) && rand::rng().random_range(0..10) == 0 {
            to.receive(message.clone());
        }
        to.receive(message);
    }
}

/// Three members, each with a directory of its own.
pub(super) struct Group {
    directories: BTreeMap<u64, TempDir>,
    pub(super) stores: BTreeMap<u64, Arc<EmbeddedStore>>,
    pub(super) network: Arc<Network>,
    carriers: JoinSet<()>,
}

impl Group {
    pub(super) fn new() -> Self {
        Self::with(options)
    }

    /// Starts three members with these options.
    pub(super) fn with(options: impl Fn(u64) -> EmbeddedOptions) -> Self {
        let (directories, stores) = (BTreeMap::new(), BTreeMap::new());
        let mut group = Self { directories, stores, network: Arc::default(), carriers: JoinSet::new() };
        MEMBERS.into_iter().for_each(|member| group.start_with(member, &options(member)));
        group
    }

    pub(super) fn directory(&self, member: u64) -> &Path {
        self.directories[&member].path()
    }

    /// Takes away the directory of a member that is stopped.
    pub(super) fn lose_directory(&mut self, member: u64) {
        self.directories.remove(&member);
    }

    pub(super) fn start(&mut self, number: u64) {
        self.start_with(number, &options(number));
    }

    pub(super) fn start_with(&mut self, number: u64, options: &EmbeddedOptions) {
        let fresh = || tempfile::tempdir().expect("a temporary directory");
        let directory = self.directories.entry(number).or_insert_with(fresh);
        let store = EmbeddedStore::open(directory.path(), options).expect("the store can be opened");
        let member = store.member().expect("it is one of several");
        self.network.open.lock().insert(number, Arc::clone(&member));
        let network = Arc::clone(&self.network);
        self.carriers.spawn(async move {
            loop {
                let messages = member.outgoing().await;
                if messages.is_empty() {
                    return;
                }
                messages.into_iter().for_each(|message| network.carry(message));
            }
        });
        self.stores.insert(number, Arc::new(store));
    }

    pub(super) async fn stop(&mut self, number: u64) {
        self.network.open.lock().remove(&number);
        if let Some(store) = self.stores.remove(&number) {
            store.close().await;
        }
    }

    pub(super) fn standing(&self, number: u64) -> Standing {
        *self.stores[&number].member().expect("it is one of several").standing().borrow()
    }

    /// Waits until one of the members that are not cut off leads, and returns its number.
    pub(super) async fn leader(&self) -> u64 {
        let cut = self.network.cut.lock().clone();
        until("a leader", || {
            let leads = |number: &&u64| !cut.contains(number) && self.standing(**number).leads;
            self.stores.keys().find(leads).copied()
        })
        .await
    }

    pub(super) fn store(&self, number: u64) -> &Arc<EmbeddedStore> {
        &self.stores[&number]
    }

    /// Waits until all members that run have the same jobs and records, and returns the jobs.
    pub(super) async fn settled(&self) -> Vec<Versioned> {
        let mut last = Vec::new();
        let begun = tokio::time::Instant::now();
        loop {
            let mut contents = Vec::new();
            for store in self.stores.values() {
                match content(store).await {
                    // It takes over the leader's state.
                    Err(StoreError::Unavailable(_)) => break,
                    content => contents.push(content.expect("readable")),
                }
            }
            let is_whole = contents.len() == self.stores.len();
            if is_whole && contents.iter().all(|content| *content == contents[0]) && contents == last {
                return contents.swap_remove(0).0;
            }
            assert!(begun.elapsed() < PATIENCE, "the members do not come to the same");
            last = contents;
            sleep(Duration::from_millis(100)).await;
        }
    }
}

pub(super) async fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = tokio::time::Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "waited for {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

pub(super) async fn all(store: &EmbeddedStore) -> Vec<Versioned> {
    search_all(store).await.expect("searchable")
}

/// The jobs and the leases of a store.
async fn content(store: &EmbeddedStore) -> Result<(Vec<Versioned>, Vec<Record>), StoreError> {
    Ok((search_all(store).await?, store.records(RecordKind::Lease).await?))
}

async fn search_all(store: &EmbeddedStore) -> Result<Vec<Versioned>, StoreError> {
    let mut found: Vec<Versioned> = Vec::new();
    loop {
        let after = found.last().map(|last| Sort::default().key(&last.job));
        let search = Search { filter: Filter::default(), sort: Sort::default(), after, limit: 1_000 };
        let page = store.search(&search).await?;
        if page.is_empty() {
            return Ok(found);
        }
        found.extend(page);
    }
}

pub(super) fn creates(jobs: &[Arc<Job>]) -> Vec<Write> {
    jobs.iter().map(|job| Write::Create { job: Arc::clone(job), bodies: vec![] }).collect()
}

pub(super) fn named(what: &str, count: usize) -> Vec<Arc<Job>> {
    (0..count).map(|number| submitted(&format!("{what}-{number}"))).collect()
}

/// Creates jobs at the leader, whichever it is, and returns which were acknowledged.
pub(super) async fn create(group: &Group, jobs: &[Arc<Job>]) -> Vec<JobId> {
    let leader = group.leader().await;
    let answers = group.store(leader).write(creates(jobs)).await;
    let pairs = jobs.iter().zip(answers).filter(|(_, answer)| answer.is_ok());
    pairs.map(|(job, _)| job.id.clone()).collect()
}

/// Creates each of these jobs. Where the machine stands still another member may lead by then, and it is not known
/// whether a job was created; a leader that goes on takes them all.
pub(super) async fn create_each(group: &Group, mut jobs: Vec<Arc<Job>>) -> Vec<JobId> {
    let ids = jobs.iter().map(|job| job.id.clone()).collect();
    let mut is_repeated = false;
    for _ in 0..MANY {
        let leader = group.leader().await;
        let Standing { leads: true, term, .. } = group.standing(leader) else { continue };
        let answers = group.store(leader).write(creates(&jobs)).await;
        let is_there = |answer: &WriteResult| match answer {
            Err(WriteError::Conflict(_)) => is_repeated,
            answer => answer.is_ok(),
        };
        let mut are_there = answers.iter().map(is_there);
        jobs.retain(|_| are_there.next() == Some(false));
        is_repeated = true;
        if jobs.is_empty() {
            return ids;
        }
        let next = group.leader().await;
        assert!(group.standing(next).term > term, "a leader refuses what it should take: {answers:?}");
    }
    panic!("{} jobs are not created", jobs.len());
}

/// Creates jobs until some are acknowledged: where the machine stands still, the leader may be another one by then.
async fn create_some(group: &Group, name: &str) -> Vec<JobId> {
    for attempt in 0..MANY {
        let acknowledged = create(group, &named(&format!("{name}-{attempt}"), 10)).await;
        if !acknowledged.is_empty() {
            return acknowledged;
        }
    }
    panic!("nothing is acknowledged");
}

pub(super) fn has_all(found: &[Versioned], acknowledged: &[JobId]) {
    let found: std::collections::BTreeSet<&JobId> = found.iter().map(|found| &found.job.id).collect();
    let lost: Vec<_> = acknowledged.iter().filter(|id| !found.contains(id)).collect();
    assert!(lost.is_empty(), "{} acknowledged jobs are lost: {lost:?}", lost.len());
}

/// The leader of three members, for the suite that holds for every store.
pub(crate) struct Members {
    leader: Arc<dyn Store>,
    _group: Group,
}

#[async_trait]
impl super::Engine for Members {
    async fn fresh() -> Self {
        let group = Group::new();
        let leader = group.leader().await;
        Self { leader: Arc::clone(group.store(leader)) as Arc<dyn Store>, _group: group }
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.leader
    }

    async fn settle(&self) {
        assert!(self.leader.has_realtime_search(), "its searches see everything at once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_members_have_what_their_leader_acknowledges_and_only_it_takes_writes() {
    let group = Group::new();
    join_all((0..20).map(|batch| create_each(&group, named(&format!("of-{batch}"), 50)))).await;
    let leader = group.leader().await;
    group.store(leader).confirm_now().await.expect("it leads");
    assert_eq!(group.settled().await.len(), 1_000);
    for follower in MEMBERS.into_iter().filter(|number| *number != leader) {
        let refused = group.store(follower).write(creates(&named("more", 1))).await.remove(0);
        assert!(matches!(&refused, Err(WriteError::Refused(StoreError::NotLeading(why))) if why.contains("lead")));
        assert!(matches!(group.store(follower).confirm_now().await, Err(StoreError::NotLeading(_))));
        assert_eq!(group.standing(follower).leader, Some(leader));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_others_go_on_without_a_leader_that_is_cut_off_which_takes_over_what_they_have() {
    let group = Group::new();
    let mut acknowledged = create_each(&group, named("before", 30)).await;
    let first = group.leader().await;
    group.network.cut.lock().push(first);
    // It does not know yet, and cannot say that these are written.
    let mark = group.store(first).mark();
    let lost = group.store(first).write(creates(&named("nobody-else-has", 5)));
    let (lost, second) = tokio::join!(lost, group.leader());
    assert!(lost.iter().all(|answer| matches!(answer, Err(WriteError::Unknown(_) | WriteError::Refused(_)))));
    assert_ne!(second, first);
    assert!(group.store(first).confirm(&mark).await.is_err() && !mark.has_begun_nothing(), "it may be written");
    assert!(group.standing(second).term > 1);
    acknowledged.extend(create_each(&group, named("after", 300)).await);
    assert!(matches!(group.store(first).confirm_now().await, Err(StoreError::NotLeading(_))));
    group.network.cut.lock().clear();
    let found = group.settled().await;
    assert_eq!(acknowledged.len(), 330);
    assert_eq!(found.len(), 330, "what nobody else had is gone");
    has_all(&found, &acknowledged);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_answers_no_write_that_changes_nothing() {
    let group = Group::new();
    let jobs = named("there", 3);
    create_each(&group, jobs.clone()).await;
    let first = group.leader().await;
    let conflicts = |answer: &WriteResult| matches!(answer, Err(WriteError::Conflict(_)));
    assert!(group.store(first).write(creates(&jobs)).await.iter().all(conflicts), "it leads");
    group.network.cut.lock().push(first);
    let mark = group.store(first).mark();
    // Nothing is left to write, so that no entry tells it that another one leads.
    let answers = group.store(first).write(creates(&jobs)).await;
    let is_refused = |answer: &WriteResult| matches!(answer, Err(WriteError::Refused(StoreError::NotLeading(_))));
    assert!(answers.iter().all(is_refused), "it says what may not be so any more: {answers:?}");
    assert!(group.store(first).confirm(&mark).await.is_err() && mark.has_begun_nothing());
    assert_ne!(group.leader().await, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_hands_over_under_load_loses_nothing_and_is_followed_in_the_next_term() {
    let group = Group::new();
    let mut acknowledged = create(&group, &named("before", 30)).await;
    let mut handed_over = [0, 0];
    for round in 0.. {
        if round >= 5 && handed_over.iter().all(|times| *times > 0) {
            break;
        }
        assert!(round < MANY, "{handed_over:?} went to one that was named and to whoever had come furthest");
        let first = group.leader().await;
        let before = group.standing(first);
        let others = MEMBERS.into_iter().filter(|number| *number != first);
        // To one that is named, and then to whoever has come furthest.
        let to = others.into_iter().next().filter(|_| round % 2 == 0);
        let batches: Vec<_> = (0..20).map(|batch| named(&format!("round-{round}-{batch}"), 10)).collect();
        let writing = join_all(batches.iter().map(|batch| group.store(first).write(creates(batch))));
        let (answers, second) = tokio::join!(writing, async {
            // One that was elected a moment ago has not heard yet how far the others have come.
            while !group.store(first).member().expect("it is one of several").hand_over(to).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            until("another leader", || {
                MEMBERS.into_iter().find(|number| *number != first && group.standing(*number).leads)
            })
            .await
        });
        // Where the machine stands still, another one may have been elected meanwhile.
        let is_as_told = to.is_none_or(|to| to == second) && group.standing(second).term == before.term + 1;
        handed_over[round % 2] += usize::from(is_as_told);
        let written = batches.iter().flatten().zip(answers.iter().flatten());
        acknowledged.extend(written.filter(|(_, answer)| answer.is_ok()).map(|(job, _)| job.id.clone()));
        acknowledged.extend(create_some(&group, &format!("after-{round}")).await);
    }
    has_all(&group.settled().await, &acknowledged);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_others_go_on_without_a_leader_that_cannot_write_any_more() {
    let group = Group::new();
    let mut acknowledged = create(&group, &named("before", 30)).await;
    let first = group.leader().await;
    // The next file of the log has no folder.
    std::fs::remove_dir_all(group.directory(first).join("log")).expect("it is there");
    let mut round = 0;
    while group.standing(first).leads {
        let answers = group.store(first).write(creates(&named(&format!("round-{round}"), 50))).await;
        acknowledged.extend(
            answers
                .into_iter()
                .zip(named(&format!("round-{round}"), 50))
                .filter_map(|(answer, job)| answer.ok().map(|_| job.id.clone())),
        );
        round += 1;
        assert!(round < 10_000, "it writes on without a folder");
    }
    assert!(group.store(first).stopped().is_some(), "it says why");
    acknowledged.extend(create(&group, &named("after", 300)).await);
    let leader = group.leader().await;
    assert_ne!(leader, first);
    has_all(&all(group.store(leader)).await, &acknowledged);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_away_reads_what_it_missed_from_the_log() {
    let mut group = Group::new();
    let leader = group.leader().await;
    let away = MEMBERS.into_iter().find(|number| *number != leader).expect("another");
    group.stop(away).await;
    // More than a leader keeps in memory for others.
    let large = format!("{{\"text\": \"{}\"}}", "x".repeat(20_000));
    for round in 0..10 {
        let (payload, _) = leasehold::job::Body::place(Some(super::sample::json(&large)), usize::MAX);
        let with = |job: Arc<Job>| Arc::new(Job { payload: payload.clone(), ..(*job).clone() });
        let jobs: Vec<_> = named(&format!("large-{round}"), 60).into_iter().map(with).collect();
        create_each(&group, jobs).await;
    }
    group.start(away);
    assert_eq!(group.settled().await.len(), 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_there_when_all_members_are_started_again() {
    let mut group = Group::new();
    let acknowledged = create(&group, &named("before", 500)).await;
    let before = group.settled().await;
    for number in MEMBERS {
        group.stop(number).await;
    }
    MEMBERS.into_iter().for_each(|number| group.start(number));
    assert_eq!(group.settled().await, before);
    has_all(&before, &acknowledged);
    let leader = group.leader().await;
    let latest = before.iter().map(|found| found.job.updated_at).max();
    assert_eq!(Some(group.standing(leader).time), latest, "the time from which it goes on");
    // A version of the new term was never given before.
    let later = named("later", 1);
    let version = match group.store(leader).write(creates(&later)).await.remove(0) {
        Ok(version) => version,
        // Another member leads.
        Err(_) => {
            create_each(&group, later.clone()).await;
            let after = group.settled().await;
            after.iter().find(|found| found.job.id == later[0].id).expect("it was created").version
        }
    };
    assert!(before.iter().all(|found| version.primary_term > found.version.primary_term));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_opened_as_that_of_its_member_only() {
    let mut group = Group::new();
    group.leader().await;
    group.stop(3).await;
    let refused = |options: &EmbeddedOptions| match EmbeddedStore::open(group.directory(3), options) {
        Err(error @ OpenError::OtherGroup { .. }) => error.to_string(),
        other => panic!("{:?}", other.err()),
    };
    assert!(refused(&EmbeddedOptions::default()).contains("member 3 of the group `test`"));
    assert!(refused(&options(2)).contains("member 2 of the group `test`"));
    let alone = tempfile::tempdir().expect("a temporary directory");
    EmbeddedStore::open(alone.path(), &EmbeddedOptions::default()).expect("a store of its own").close().await;
    let refused = EmbeddedStore::open(alone.path(), &options(1)).err().expect("it is one of its own").to_string();
    assert!(refused.contains("a store of its own"), "{refused}");
}

/// What became of the writes of one job, each of which replaces the one before.
#[derive(Default)]
struct Line {
    last: Option<Version>,
    acknowledged: u64,
}

/// Members are stopped, cut off and started again, and messages are lost and doubled, while writers create and replace
/// jobs. What was acknowledged is there in the end, and no write was accepted over another one.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_whatever_befalls_the_members() {
    let seed = std::env::var("LEASEHOLD_TEST_SEED").ok().map(|text| text.parse().expect("a number"));
    let seed: u64 = seed.unwrap_or_else(|| rand::rng().random());
    println!("LEASEHOLD_TEST_SEED={seed} makes up the same faults again");
    let mut random = StdRng::seed_from_u64(seed);
    let mut group = Group::new();
    group.leader().await;
    group.network.lossy.store(2, Ordering::Relaxed);
    group.network.is_doubling.store(true, Ordering::Relaxed);
    let (mut acknowledged, mut lines) = (Vec::new(), BTreeMap::<JobId, Line>::new());
    let stopped: Mutex<Option<u64>> = Mutex::default();
    let replaced = |lines: &BTreeMap<JobId, Line>| lines.values().map(|line| line.acknowledged).sum::<u64>();
    for round in 0.. {
        let is_enough = acknowledged.len() > 100 && replaced(&lines) > 20;
        if round >= ROUNDS && is_enough {
            break;
        }
        assert!(round < 10 * ROUNDS, "hardly anything was acknowledged");
        match random.random_range(0..6) {
            0 => *group.network.cut.lock() = vec![random.random_range(1..=3)],
            1 | 2 => group.network.cut.lock().clear(),
            3 => {
                let back = stopped.lock().take();
                match back {
                    Some(number) => group.start(number),
                    None => {
                        let number = random.random_range(1..=3);
                        group.network.cut.lock().clear();
                        group.stop(number).await;
                        *stopped.lock() = Some(number);
                    }
                }
            }
            _ => {}
        }
        if stopped.lock().is_some() {
            group.network.cut.lock().clear();
        }
        acknowledged.extend(create(&group, &named(&format!("round-{round}"), 20)).await);
        let leader = group.leader().await;
        let store = group.store(leader);
        for line in 0..5 {
            let job = submitted(&format!("line-{line}"));
            // What is there is asked of who leads now.
            if store.confirm_now().await.is_err() {
                continue;
            }
            let now = store.get(std::slice::from_ref(&job.id)).await.expect("readable").remove(0);
            let kept = lines.entry(job.id.clone()).or_default();
            let found = now.map(|now| now.version);
            assert!(found >= kept.last, "an acknowledged write of {} is gone: {found:?} {:?}", job.id, kept.last);
            let write = match found {
                None => Write::Create { job, bodies: vec![] },
                Some(expected) => Write::Replace { job, expected, bodies: vec![] },
            };
            if let Ok(version) = store.write(vec![write]).await.remove(0) {
                kept.last = Some(version);
                kept.acknowledged += 1;
            }
        }
    }
    let back = stopped.lock().take();
    if let Some(number) = back {
        group.start(number);
    }
    group.network.cut.lock().clear();
    group.network.lossy.store(0, Ordering::Relaxed);
    let found = group.settled().await;
    has_all(&found, &acknowledged);
    for (id, line) in &lines {
        let now = found.iter().find(|found| found.job.id == *id).map(|found| found.version);
        assert!(now >= line.last, "{id}: {now:?} {:?}", line.last);
    }
    println!("{} jobs created, {} writes of the same jobs", acknowledged.len(), replaced(&lines));
    assert!(found.iter().all(|found| id(found.job.id.as_str()) == found.job.id));
}
