//! A member that alone differs is rebuilt by itself.

use std::path::Path;
use std::time::SystemTime;

use bytes::Bytes;

use super::super::super::last::Last;
use super::super::super::words::{self, Said, Word};
use super::super::rebuilds::{Rebuild, Rebuilds};
use super::*;

/// What comes of a member whose state was changed behind its back.
struct Spoiled {
    group: Group,
    leader: u64,
    odd: u64,
    /// The jobs, of which the first two were changed there. The one is written again by all, and the other is not.
    jobs: Vec<(JobId, Version)>,
    /// The number of the directory of the odd one.
    directory: Option<u64>,
}

impl Group {
    /// Writes that a member was rebuilt by itself a moment ago, while it is stopped.
    pub(super) fn was_rebuilt(&self, number: u64) {
        let directory = Directory::hold(self.directories[&number].path(), 0).expect("nobody has it");
        let since = SystemTime::UNIX_EPOCH.elapsed().expect("it is later");
        let at = Timestamp::from_millis(i64::try_from(since.as_millis()).expect("some time"));
        let last = Last { number: 1, term: 1 };
        let rebuild = Rebuild { at, compared: 1, sums: BTreeMap::new(), from: 1, last, documents: Vec::new() };
        Rebuilds::default().add(rebuild, &directory).expect("written");
    }

    fn rebuilds(&self, number: u64) -> Vec<Rebuild> {
        Rebuilds::read(self.directories[&number].path()).expect("readable").0
    }

    fn directory(&self, number: u64) -> Option<u64> {
        self.stores[&number].inner.exchange.as_ref().expect("it is one of several").directory()
    }

    /// Loses the pieces of states that a member sends, or all of them.
    fn loses_pieces(&self, of: Option<u64>) {
        let is_piece = |bytes: &Bytes| {
            let (_, said) = words::take_identity(bytes).expect("a message");
            matches!(words::decode(&said), Ok(Said::Word(Word::Piece(_))))
        };
        *self.way.lock() =
            Some(Box::new(move |message| of.is_some_and(|of| message.from != of) || !is_piece(&message.bytes)));
    }

    fn loses_nothing(&self) {
        *self.way.lock() = None;
    }

    async fn receives(&self, number: u64) {
        let receives = || self.member(number).standing().borrow().receives;
        until("it to receive a state", receives).await;
    }

    async fn all_are_equal(&self) {
        let are_equal = || MEMBERS.iter().all(|number| self.unequal(*number).is_empty());
        until("all to be equal", || are_equal().then_some(())).await;
    }
}

impl Spoiled {
    /// Three members that have agreed, of which one that follows is spoiled, and is stopped.
    async fn new() -> Self {
        let mut group = Group::new();
        let agreed = || MEMBERS.iter().all(|number| group.member(*number).members().borrow().version >= 7);
        until("a version that all know", || agreed().then_some(())).await;
        let mut jobs = Vec::new();
        for name in ["one", "two", "three", "four"] {
            let write = create(name);
            let version = group.write(&write).await;
            group.applied(version).await;
            jobs.push((write.job().id.clone(), version));
        }
        group.compared().await;
        group.agreed().await;
        let leader = group.leader().await;
        let odd = MEMBERS.into_iter().find(|number| *number != leader).expect("another one");
        let directory = group.directory(odd);
        group.stop(odd).await;
        jobs[..2].iter().for_each(|(job, _)| group.spoil(odd, job));
        Self { group, leader, odd, jobs, directory }
    }

    /// Removes a job at all members: the odd one has it as another one, and its sum is another one then.
    async fn differs(&self, number: usize) {
        let (id, expected) = self.jobs[number].clone();
        let job = Arc::clone(create(id.as_str()).job());
        self.group.write(&Write::Remove { job, expected }).await;
    }

    /// Waits until the odd one has the state of the others.
    async fn is_rebuilt(&self) {
        let Self { group, odd, jobs, .. } = self;
        let begun = Instant::now();
        while group.rebuilds(*odd).is_empty() || group.priority(*odd, &jobs[1].0).await != Some(0) {
            assert!(begun.elapsed() < PATIENCE, "it is not rebuilt");
            sleep(Duration::from_millis(20)).await;
        }
        group.compared().await;
        group.all_are_equal().await;
        assert_eq!(group.directory(*odd), self.directory, "it is another one");
    }

    async fn end(mut self) {
        for number in MEMBERS {
            self.group.stop(number).await;
        }
    }
}

fn has_incoming(directory: &Path) -> bool {
    directory.join("store.incoming").exists() || directory.join("leasehold.incoming").exists()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_alone_differs_is_rebuilt_by_itself_and_not_again_within_a_day() {
    let mut spoiled = Spoiled::new().await;
    let odd = spoiled.odd;
    let audit = spoiled.group.directories[&odd].path().join("audit");
    std::fs::create_dir_all(&audit).expect("a folder");
    std::fs::write(audit.join("2030-01.ndjson"), "{}\n").expect("written");
    spoiled.group.start(odd);
    spoiled.differs(0).await;
    spoiled.is_rebuilt().await;
    let rebuilds = spoiled.group.rebuilds(odd);
    let [Rebuild { sums, from, documents, .. }] = rebuilds.as_slice() else { panic!("{rebuilds:?}") };
    assert_eq!((*from, sums.len()), (spoiled.leader, 3));
    assert!(MEMBERS.iter().all(|number| (*number == odd) == (sums[number] == sums[&odd])), "{sums:?}");
    let [differs] = documents.as_slice() else { panic!("{documents:?}") };
    assert_eq!((differs.keyspace.as_str(), differs.key.as_str()), ("live", "two"));
    assert_ne!(differs.own, differs.other);
    assert!(!has_incoming(spoiled.group.directories[&odd].path()));
    assert_eq!(std::fs::read_to_string(audit.join("2030-01.ndjson")).expect("it is there"), "{}\n");

    // Whatever makes it differ is still there.
    spoiled.group.agreed().await;
    spoiled.group.stop(odd).await;
    spoiled.jobs[2..].iter().for_each(|(job, _)| spoiled.group.spoil(odd, job));
    spoiled.group.start(odd);
    spoiled.differs(2).await;
    let Spoiled { group, jobs, .. } = &spoiled;
    group.all_name(&[odd]).await;
    group.compared().await;
    group.compared().await;
    assert_eq!((group.priority(odd, &jobs[3].0).await, group.rebuilds(odd)), (Some(50), rebuilds));
    assert!(MEMBERS.iter().all(|number| group.unequal(*number) == [odd]), "it is forgotten");
    spoiled.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_that_ends_early_changes_nothing_and_begins_again() {
    let mut spoiled = Spoiled::new().await;
    let odd = spoiled.odd;
    spoiled.group.loses_pieces(None);
    spoiled.group.start(odd);
    spoiled.differs(0).await;
    spoiled.group.receives(odd).await;
    spoiled.group.stop(odd).await;
    assert_eq!(spoiled.group.rebuilds(odd), []);
    spoiled.group.loses_nothing();
    spoiled.group.start(odd);
    assert!(!has_incoming(spoiled.group.directories[&odd].path()), "what has come of it is left");
    spoiled.is_rebuilt().await;
    assert_eq!(spoiled.group.rebuilds(odd).len(), 1);
    spoiled.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_goes_on_with_another_leader_and_forgets_nothing_that_was_acknowledged() {
    let mut spoiled = Spoiled::new().await;
    let (odd, leader) = (spoiled.odd, spoiled.leader);
    spoiled.group.loses_pieces(Some(leader));
    spoiled.group.start(odd);
    spoiled.differs(0).await;
    spoiled.group.receives(odd).await;
    let last = |group: &Group| {
        let engine = group.stores[&odd].inner.engine.read().clone().expect("it is open");
        engine.member.lock().last()
    };
    let before = last(&spoiled.group);
    // It takes part meanwhile, and what it acknowledges is behind the state that it receives.
    let version = spoiled.group.write(&create("meanwhile")).await;
    spoiled.group.applied(version).await;
    assert!(last(&spoiled.group) > before);
    let next = MEMBERS.into_iter().find(|number| ![odd, leader].contains(number)).expect("another one");
    spoiled.group.lead(next).await;
    let had = last(&spoiled.group);
    spoiled.is_rebuilt().await;
    assert_eq!(spoiled.group.rebuilds(odd).last().map(|rebuild| rebuild.from), Some(next));
    assert!(last(&spoiled.group) >= had, "it has forgotten entries");
    let meanwhile = JobId::new("meanwhile").expect("an id");
    assert_eq!(spoiled.group.priority(odd, &meanwhile).await, Some(0));
    spoiled.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_differs_is_not_rebuilt_before_another_one_leads() {
    let mut spoiled = Spoiled::new().await;
    let (odd, leader) = (spoiled.odd, spoiled.leader);
    spoiled.group.loses_pieces(None);
    spoiled.group.start(odd);
    spoiled.group.lead(odd).await;
    spoiled.group.loses_nothing();
    spoiled.differs(0).await;
    spoiled.group.compared().await;
    spoiled.group.all_name(&[odd]).await;
    spoiled.group.compared().await;
    assert!(MEMBERS.iter().all(|number| spoiled.group.rebuilds(*number).is_empty()));
    assert_eq!(spoiled.group.priority(odd, &spoiled.jobs[1].0).await, Some(50));
    spoiled.group.lead(leader).await;
    spoiled.is_rebuilt().await;
    spoiled.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_member_is_rebuilt_where_another_one_is_no_witness() {
    let mut spoiled = Spoiled::new().await;
    let (odd, leader) = (spoiled.odd, spoiled.leader);
    // The third one has begun with its state since all had agreed.
    let third = MEMBERS.into_iter().find(|number| ![odd, leader].contains(number)).expect("another one");
    spoiled.group.stop(third).await;
    spoiled.group.start(third);
    spoiled.group.start(odd);
    spoiled.differs(0).await;
    spoiled.group.all_name(&MEMBERS).await;
    spoiled.group.compared().await;
    assert!(MEMBERS.iter().all(|number| spoiled.group.rebuilds(*number).is_empty()));
    assert_eq!(spoiled.group.priority(odd, &spoiled.jobs[1].0).await, Some(50));
    spoiled.end().await;
}
