//! Hints from manager to manager: jobs that were written here and that another manager hands out first, so that they
//! start there at once and not when a search finds them; and recalls of attempts whose workers wait at another manager.
//!
//! A hint is only a hint: it may be late, lost or wrong, and then a search finds the job a second later. So there is a
//! bound on everything here, what is too much is dropped, and no caller waits for any of it. Here stands which manager
//! is to be told of what; the calls themselves are made by whoever takes them with [`Manager::next_hints`].
//!
//! A hint has the job's document and version as its manager has just written it, so that the other need not read it: a
//! read by id takes Elasticsearch about half as long as a write.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::job::{Json, RecordName};
use crate::manager::{Manager, Recall};
use crate::store::{Place, Store, StoreError, Version, Versioned};

/// The most jobs that one call tells of.
pub const MAX_HINTED_JOBS: usize = 500;

/// The most bytes of documents that one call tells of, apart from the last one.
pub const MAX_HINTED_BYTES: usize = 4 * 1024 * 1024;

/// The most jobs that wait to be told to one manager.
const MAX_WAITING: usize = 10 * MAX_HINTED_JOBS;

/// The most calls under way to one manager. While there are as many, what comes is collected for the next one.
const CALLS_AT_ONCE: usize = 4;

/// How long a manager is left alone after a call to it has failed.
const REST: Duration = Duration::from_secs(5);

/// How long a failed call is told of, if none succeeds before.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The most managers of which it is told that calls to them fail.
const MAX_NAMED: usize = 5;

/// A job that has become available, as the manager wrote it that tells of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hint {
    /// The job in the form of the store ([`Store::pack`]).
    pub document: Json,
    /// The sequence number of the write, in the place of live jobs.
    pub seq_no: u64,
    /// The term of the primary copy that took the write.
    pub primary_term: u64,
}

/// Another manager of the store that runs and can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Where it is reached.
    pub address: Arc<str>,
    /// Whether it reads the signed heads of calls, as it says itself. Earlier versions of the program do not.
    pub reads_heads: bool,
}

/// The hints of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// The manager that is to be called.
    pub to: Other,
    /// The hints, at most [`MAX_HINTED_JOBS`].
    pub hints: Vec<Hint>,
    /// The recalls, at most [`MAX_HINTED_JOBS`].
    pub recalls: Vec<Recall>,
}

/// The managers that are told of jobs.
pub(crate) struct Hints {
    /// The address of this manager; without one, nobody is told of anything.
    own: Option<Arc<str>>,
    receivers: Mutex<Receivers>,
    /// The notification that there may be something to tell.
    news: Notify,
}

/// The other managers, and what they are to be told.
#[derive(Default)]
struct Receivers {
    others: HashMap<RecordName, Other>,
    by_address: BTreeMap<Arc<str>, Receiver>,
    /// The number of other managers that have no address.
    without: usize,
}

/// A manager that is told of jobs.
#[derive(Default)]
struct Receiver {
    /// The jobs that it is to be told of.
    waiting: VecDeque<Versioned>,
    /// The recalls that it is to be told of, which go to every manager, since any may have the worker.
    recalls: VecDeque<Recall>,
    /// The number of calls under way.
    calls: usize,
    /// The latest failure, if no call has succeeded since.
    failure: Option<Failure>,
}

struct Failure {
    at: Instant,
    why: String,
}

impl Receiver {
    /// Keeps a job to be told, and returns whether there was room for it.
    fn keep(&mut self, job: &Versioned, now: Instant) -> bool {
        let has_room = self.waiting.len() < MAX_WAITING && !self.rests(now);
        if has_room {
            self.waiting.push_back(job.clone());
        }
        has_room
    }

    /// Keeps recalls to be told, as many as there is room for.
    fn keep_recalls(&mut self, recalls: &[Recall], now: Instant) {
        let room = if self.rests(now) { 0 } else { MAX_WAITING - self.recalls.len() };
        self.recalls.extend(recalls.iter().take(room).cloned());
    }

    fn rests(&self, now: Instant) -> bool {
        self.failure.as_ref().is_some_and(|failure| now.duration_since(failure.at) < REST)
    }

    /// Takes the jobs and recalls of the next call, if one may be made now.
    fn take(&mut self, now: Instant) -> Option<(Vec<Versioned>, Vec<Recall>)> {
        // After a failure one call finds out whether the manager is back.
        let allowed = if self.failure.is_some() { 1 } else { CALLS_AT_ONCE };
        if (self.waiting.is_empty() && self.recalls.is_empty()) || self.calls >= allowed || self.rests(now) {
            return None;
        }
        self.calls += 1;
        let some = self.waiting.len().min(MAX_HINTED_JOBS);
        let recalls = self.recalls.len().min(MAX_HINTED_JOBS);
        Some((self.waiting.drain(..some).collect(), self.recalls.drain(..recalls).collect()))
    }

    /// Ends a call, and returns the number of jobs that are dropped since it failed.
    fn end(&mut self, outcome: Result<(), String>, now: Instant) -> usize {
        self.calls = self.calls.saturating_sub(1);
        self.failure = outcome.err().map(|why| Failure { at: now, why });
        match self.failure {
            None => 0,
            Some(_) => {
                self.recalls.clear();
                std::mem::take(&mut self.waiting).len()
            }
        }
    }
}

impl Receivers {
    /// Takes over where the other managers are reached. Those that are gone are told nothing more.
    fn know(&mut self, others: impl Iterator<Item = (RecordName, Option<Other>)>, own: &str) {
        self.without = 0;
        self.others.clear();
        for (name, other) in others {
            match other {
                None => self.without += 1,
                // A former process of this manager, which is not known to be gone yet.
                Some(other) if *other.address == *own => {}
                Some(other) => drop(self.others.insert(name, other)),
            }
        }
        let known = &self.others;
        let is_known = |address: &Arc<str>| known.values().any(|other| other.address == *address);
        self.by_address.retain(|address, receiver| receiver.calls > 0 || is_known(address));
    }

    /// Keeps jobs to be told to managers, and returns the number of those for which there was no room.
    fn keep<'a>(&mut self, jobs: impl Iterator<Item = &'a (RecordName, Versioned)>, now: Instant) -> usize {
        let mut dropped = 0;
        for (name, job) in jobs {
            let Some(Other { address, .. }) = self.others.get(name) else { continue };
            let receiver = match self.by_address.get_mut(address) {
                Some(receiver) => receiver,
                None => self.by_address.entry(Arc::clone(address)).or_default(),
            };
            dropped += usize::from(!receiver.keep(job, now));
        }
        dropped
    }

    fn is_any_earlier(&self) -> bool {
        self.others.values().any(|other| !other.reads_heads)
    }

    /// Keeps recalls to be told to every manager.
    fn keep_recalls(&mut self, recalls: &[Recall], now: Instant) {
        let Self { others, by_address, .. } = self;
        for Other { address, .. } in others.values() {
            by_address.entry(Arc::clone(address)).or_default().keep_recalls(recalls, now);
        }
    }

    /// Takes the jobs and recalls of the next call, and the manager to be called.
    fn take(&mut self, now: Instant) -> Option<(Other, Vec<Versioned>, Vec<Recall>)> {
        let (address, (jobs, recalls)) = self
            .by_address
            .iter_mut()
            .find_map(|(address, receiver)| Some((Arc::clone(address), receiver.take(now)?)))?;
        // Two may have had the address, one after the other.
        let reads_heads = self.others.values().any(|other| other.address == address && other.reads_heads);
        Some((Other { address, reads_heads }, jobs, recalls))
    }

    /// Returns the managers to which the latest call failed, and why.
    fn failing(&self, now: Instant) -> impl Iterator<Item = (&str, &str)> {
        let lately = move |failure: &&Failure| now.duration_since(failure.at) < REMEMBERED;
        self.by_address.iter().filter_map(move |(address, receiver)| {
            Some((&**address, receiver.failure.as_ref().filter(lately)?.why.as_str()))
        })
    }
}

impl Hints {
    /// Creates the state for a manager at this address.
    pub(crate) fn new(own: Option<Arc<str>>) -> Self {
        Self { own, receivers: Mutex::default(), news: Notify::new() }
    }

    /// Returns the address of this manager.
    pub(crate) fn own_address(&self) -> Option<&Arc<str>> {
        self.own.as_ref()
    }

    /// Takes over which other managers run, and where each is reached.
    pub(crate) fn know(&self, others: impl Iterator<Item = (RecordName, Option<Other>)>) {
        self.receivers.lock().know(others, self.own.as_deref().unwrap_or_default());
    }

    /// Keeps jobs for hints, each with the manager that gets it.
    pub(crate) fn keep(&self, jobs: &[(RecordName, Versioned)]) {
        if self.own.is_none() || jobs.is_empty() {
            return;
        }
        let dropped = self.receivers.lock().keep(jobs.iter(), Instant::now());
        count("dropped", dropped);
        self.news.notify_one();
    }

    /// Keeps recalls to be told to the other managers, of which one may have the worker.
    pub(crate) fn keep_recalls(&self, recalls: &[Recall]) {
        if self.own.is_none() || recalls.is_empty() {
            return;
        }
        self.receivers.lock().keep_recalls(recalls, Instant::now());
        self.news.notify_one();
    }

    /// Returns whether this manager or another one that runs has no address, so that the one is told of nothing by the
    /// other.
    pub(crate) fn is_any_without_address(&self) -> bool {
        let receivers = self.receivers.lock();
        let others = receivers.without + receivers.others.len();
        others > 0 && (self.own.is_none() || receivers.without > 0)
    }

    /// Returns what is wrong between this manager and the others, each as a sentence.
    fn troubles(&self) -> Vec<String> {
        let receivers = self.receivers.lock();
        let mut found = Vec::new();
        let without = receivers.without + usize::from(self.own.is_none());
        let managers = receivers.without + receivers.others.len() + 1;
        if managers > 1 && without > 0 {
            found.push(format!(
                "{without} of {managers} managers have no address (`--advertise`, `--cluster-secret`): a job that is \
                 submitted at one and run at another waits until a search finds it, up to two seconds"
            ));
        }
        found.extend(receivers.failing(Instant::now()).take(MAX_NAMED).map(|(address, why)| {
            format!("the manager at {address} cannot be told of its jobs, so that it has to search for them: {why}")
        }));
        found
    }
}

/// Returns the hints of these jobs, as many as go into one call.
fn pack(store: &dyn Store, jobs: &[Versioned]) -> Vec<Hint> {
    let (mut hints, mut bytes) = (Vec::with_capacity(jobs.len()), 0);
    for Versioned { job, version } in jobs.iter().filter(|job| job.version.place == Place::Main) {
        let Some(document) = store.pack(job).filter(|_| bytes < MAX_HINTED_BYTES) else { break };
        bytes += document.as_str().len();
        hints.push(Hint { document, seq_no: version.seq_no, primary_term: version.primary_term });
    }
    hints
}

fn count(outcome: &'static str, jobs: usize) {
    metrics::counter!("leasehold_hints_total", "outcome" => outcome).increment(jobs as u64);
}

impl Manager {
    /// Hands jobs that were just written to the claims that wait for them here, and those that another manager hands
    /// out first to whoever tells it of them.
    pub(crate) fn hand_out(&self, available: impl IntoIterator<Item = Versioned>) {
        let left = self.shared.dispatch.add_written(available);
        self.shared.hints.keep(&left);
    }

    /// Waits until another manager is to be told of jobs. The caller tells it and then calls [`Manager::hints_told`].
    pub async fn next_hints(&self) -> Outgoing {
        let hints = &self.shared.hints;
        loop {
            let news = hints.news.notified();
            let next = hints.receivers.lock().take(Instant::now());
            if let Some((to, jobs, recalls)) = next {
                let hints = pack(&*self.shared.store, &jobs);
                count("dropped", jobs.len() - hints.len());
                return Outgoing { to, hints, recalls };
            }
            news.await;
        }
    }

    /// Records the outcome of a call: nothing, or why it failed. A manager that could not be told is left alone for
    /// some seconds.
    pub fn hints_told(&self, told: &Outgoing, outcome: Result<(), String>) {
        count(if outcome.is_ok() { "sent" } else { "failed" }, told.hints.len());
        let mut receivers = self.shared.hints.receivers.lock();
        if let Some(receiver) = receivers.by_address.get_mut(&told.to.address) {
            count("dropped", receiver.end(outcome, Instant::now()));
        }
        // What was collected meanwhile may go now.
        self.shared.hints.news.notify_one();
    }

    /// Takes hints of another manager, and hands out the jobs as if they had been written here.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`] when a job is not in the form of this store, as a later version of the program may
    /// write it.
    pub fn take_hints(&self, hints: &[Hint]) -> Result<(), StoreError> {
        count("received", hints.len());
        let job = |hint: &Hint| {
            let job = Arc::new(self.shared.store.unpack(&hint.document)?);
            let version = Version { place: Place::Main, primary_term: hint.primary_term, seq_no: hint.seq_no };
            Ok(Versioned { job, version })
        };
        let jobs: Vec<Versioned> = hints.iter().map(job).collect::<Result<_, StoreError>>()?;
        let known = &self.shared.work.known;
        self.shared.dispatch.add(jobs.into_iter().filter(|job| !known.is_outdated(job)));
        Ok(())
    }

    /// Returns the other managers of the store that run and can be called, and how many have no address.
    #[must_use]
    pub fn others(&self) -> (Vec<Other>, usize) {
        let receivers = self.shared.hints.receivers.lock();
        (receivers.others.values().cloned().collect(), receivers.without)
    }

    /// Returns whether a manager runs that has an earlier version of the program and so signs no heads of its calls.
    #[must_use]
    pub fn is_any_earlier(&self) -> bool {
        self.shared.hints.receivers.lock().is_any_earlier()
    }

    /// Returns what is wrong between this manager and the others of the store, each as a sentence.
    #[must_use]
    pub fn peer_troubles(&self) -> Vec<String> {
        self.shared.hints.troubles()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::job::{Actor, Body, Job, JobId, JobSpec, Kind, QueueName};

    const OWN: &str = "http://own";

    fn name(name: &str) -> RecordName {
        RecordName::new(name).expect("a name")
    }

    fn job(number: usize) -> Versioned {
        let spec = JobSpec::new(QueueName::system("q"), Kind::system("k"));
        let (id, at) = (JobId::new(format!("job-{number}")).expect("an id"), Timestamp::from_millis(0));
        let job = Job::submit(id, Arc::new(spec), Body::default(), (at, None), &Actor::system("t"), at);
        Versioned { job: Arc::new(job), version: Version { place: Place::Main, primary_term: 1, seq_no: 1 } }
    }

    /// A manager at this address.
    fn at(address: &str) -> Option<Other> {
        Some(Other { address: address.into(), reads_heads: true })
    }

    /// The managers `a` and `b`, each at an address of its own.
    fn two() -> Receivers {
        let mut receivers = Receivers::default();
        receivers.know([(name("a"), at("http://a")), (name("b"), at("http://b"))].into_iter(), OWN);
        receivers
    }

    /// Keeps so many jobs for a manager, and returns how many were dropped.
    fn keep(receivers: &mut Receivers, to: &str, jobs: usize, now: Instant) -> usize {
        let jobs: Vec<(RecordName, Versioned)> = (0..jobs).map(|number| (name(to), job(number))).collect();
        receivers.keep(jobs.iter(), now)
    }

    /// Returns whom the next call tells, and of how many jobs.
    fn next(receivers: &mut Receivers, now: Instant) -> Option<(String, usize)> {
        receivers.take(now).map(|(to, jobs, _)| (to.address.trim_start_matches("http://").to_owned(), jobs.len()))
    }

    fn call(address: &str, jobs: usize) -> Option<(String, usize)> {
        Some((address.to_owned(), jobs))
    }

    #[test]
    fn what_comes_while_calls_are_under_way_is_collected_for_the_next_one() {
        let (mut receivers, now) = (two(), Instant::now());
        for _ in 0..CALLS_AT_ONCE {
            assert_eq!(keep(&mut receivers, "a", 1, now), 0);
            assert_eq!(next(&mut receivers, now), call("a", 1), "nothing waits without need");
        }
        assert_eq!(keep(&mut receivers, "a", 300, now), 0);
        assert_eq!(next(&mut receivers, now), None);
        keep(&mut receivers, "b", 1, now);
        assert_eq!(next(&mut receivers, now), call("b", 1));
        receivers.by_address.get_mut("http://a").expect("known").end(Ok(()), now);
        assert_eq!(next(&mut receivers, now), call("a", 300));
    }

    #[test]
    fn what_is_too_much_for_a_call_goes_with_the_next_and_what_is_too_much_to_keep_is_dropped() {
        let (mut receivers, now) = (two(), Instant::now());
        assert_eq!(keep(&mut receivers, "a", MAX_WAITING + 7, now), 7);
        for _ in 0..3 {
            assert_eq!(next(&mut receivers, now), call("a", MAX_HINTED_JOBS));
        }
        assert_eq!(keep(&mut receivers, "a", 3 * MAX_HINTED_JOBS + 1, now), 1);
    }

    #[test]
    fn a_manager_that_fails_is_left_alone_and_then_tried_with_one_call() {
        let (mut receivers, now) = (two(), Instant::now());
        keep(&mut receivers, "a", 2, now);
        assert_eq!(next(&mut receivers, now), call("a", 2));
        keep(&mut receivers, "a", 3, now);
        let dropped = receivers.by_address.get_mut("http://a").expect("known").end(Err("away".to_owned()), now);
        assert_eq!(dropped, 3);
        assert_eq!(receivers.failing(now).collect::<Vec<_>>(), [("http://a", "away")]);
        assert_eq!(keep(&mut receivers, "a", 5, now), 5, "nothing is kept for it meanwhile");
        assert_eq!(keep(&mut receivers, "b", 5, now), 0, "the others are told all the same");

        let later = now + REST;
        assert_eq!(keep(&mut receivers, "a", 5, later), 0);
        assert_eq!(next(&mut receivers, later), call("a", 5));
        keep(&mut receivers, "a", 1, later);
        assert_eq!(next(&mut receivers, later), call("b", 5));
        assert_eq!(next(&mut receivers, later), None, "one call finds out whether it is back");
        receivers.by_address.get_mut("http://a").expect("known").end(Ok(()), later);
        assert_eq!(receivers.failing(later).count(), 0);
        assert_eq!(next(&mut receivers, later), call("a", 1));
    }

    #[test]
    fn a_manager_that_is_gone_or_is_this_one_is_told_nothing() {
        let (mut receivers, now) = (two(), Instant::now());
        assert!(!receivers.is_any_earlier());
        keep(&mut receivers, "a", 1, now);
        let others = [(name("b"), None), (name("former"), at(OWN))];
        receivers.know(others.into_iter(), OWN);
        for gone in ["a", "b", "former"] {
            assert_eq!(keep(&mut receivers, gone, 1, now), 0);
        }
        assert_eq!(next(&mut receivers, now), None);
        assert_eq!((receivers.without, receivers.by_address.len()), (1, 0));
    }

    #[test]
    fn managers_without_an_address_are_told_of_only_where_there_are_several() {
        let alone = Hints::new(None);
        assert_eq!(alone.troubles(), [""; 0]);
        alone.know([(name("a"), at("http://a")), (name("b"), None)].into_iter());
        assert!(alone.troubles()[0].starts_with("2 of 3 managers"), "{:?}", alone.troubles());
        let advertised = Hints::new(Some(Arc::from(OWN)));
        advertised.know([(name("a"), at("http://a"))].into_iter());
        assert_eq!(advertised.troubles(), [""; 0]);
    }
}
