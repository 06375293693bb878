//! Taking slots: one task of the manager decides for all claims that wait for slots, and writes each document once for
//! all of them.
//!
//! Why a limit is never exceeded. The document of a limit at version *k* lists slots. A claim of job *j* under fence
//! *f* is made only after a write of the document with the slot (*j*, *f*), and under a version of *j* that was known
//! before that write. A slot is taken off the list only by a write over the version *k* under which the slot was read,
//! and only after *j* was found, later than that, not to run under *f*, and was written again if a claim under *f*
//! could still be accepted. So when the slot has gone from the list, the version of *j* that the claim goes by has gone
//! too, and the claim meets a conflict, wherever it has been meanwhile. A slot that is on the list counts, whatever is
//! known of it.
//!
//! A slot also says the version of *j* over which the claim is written; earlier versions of the program do not say it.
//! That such a claim is over, or accepted no more, is found once for all documents: a slot of the same (*j*, *f*) and
//! the same version of *j* is taken off the list by a write over any version of the document.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use tracing::{debug, warn};

use super::documents::{Open, Request, Sight, Under, Verdict, record_key};
use super::settings::SlotHolder;
use super::slots::{Evidence, Fate, Holder, SlotDocument, Slots};
use crate::clock::Timestamp;
use crate::job::{Change, JobId, JobState, LimitName, LimitScope};
use crate::manager::Manager;
use crate::manager::dispatch::MOST_HELD;
use crate::manager::request::ManagerError;
use crate::query::{Direction, Filter, Search, Sort, SortField};
use crate::store::record::body;
use crate::store::{Record, RecordWrite, Refresh, Sought, StoreError, Version, WriteError, WriteResult};

/// How often documents are written for one claim that meets others' writes.
const TRIES: usize = 8;

/// The time between two looks at the limits that jobs wait for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How many documents are written at once: not as many as a store has room for, so that other records get through.
const WRITES_AT_ONCE: usize = 500;

/// The most jobs that one look reads, apart from those of one more limit.
pub(super) const READS_PER_LOOK: usize = 2_000;

/// How long another manager has from taking a unique key or a place to the creation of its job, until what it took is
/// taken away.
const GRACE: Duration = Duration::from_secs(2);

/// How long it has from taking a slot to its claim: not as long, since a claim that comes too late is only made again.
const SLOT_GRACE: Duration = Duration::from_secs(1);

/// The most running jobs that are counted.
const MOST_COUNTED: usize = 10_000;

/// The most limits whose held jobs are searched for with one look.
const SEARCHES_PER_LOOK: usize = 16;

impl Manager {
    /// Runs the task that takes slots, and looks at the limits that jobs wait for.
    pub(in crate::manager) async fn keep_limits(self, mut requests: mpsc::UnboundedReceiver<Request>) {
        let mut looks = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut waiting = Vec::new();
        let mut next_token = None;
        let next_look = || self.shared.limits.looks.next();
        // Ends with the manager. What is due comes before requests, of which there may be no end.
        loop {
            next_token = self.shared.limits.spent.next(next_token);
            tokio::select! {
                biased;
                () = self.shared.stopping.cancelled() => return,
                () = sleep_until(next_token.unwrap_or_else(Instant::now)), if next_token.is_some() => {
                    next_token = self.let_go_at_rates();
                }
                _ = looks.tick() => self.look_at_limits().await,
                () = sleep_until(next_look().unwrap_or_else(Instant::now)), if next_look().is_some() => {
                    self.look_soon().await;
                }
                count = requests.recv_many(&mut waiting, usize::MAX) => {
                    if count == 0 {
                        return;
                    }
                    self.take_slots(std::mem::take(&mut waiting)).await;
                    next_token = None;
                }
            }
        }
    }

    /// Decides about all these requests at once.
    async fn take_slots(&self, requests: Vec<Request>) {
        let (mut open, mut answers) = (Vec::new(), Vec::new());
        for Request { wanted, answer } in requests {
            answers.push((wanted.len(), answer));
            open.extend(wanted.into_iter().map(|wanted| Open { wanted, verdict: None }));
        }
        for _ in 0..TRIES {
            if self.decide(&mut open).await {
                break;
            }
        }
        let mut verdicts = open.into_iter().map(|open| {
            let verdict = open.verdict.unwrap_or(Verdict::Failed);
            if verdict != Verdict::Granted {
                // Slots that it has of some of its limits: what becomes of them is found out when they are missed.
                self.shared.limits.documents.learn(&open.wanted, Fate::Unknown);
            }
            if let Verdict::Full(name, ..) = &verdict {
                self.waits_for(name);
            }
            verdict
        });
        for (count, answer) in answers {
            let verdicts: Vec<Verdict> = verdicts.by_ref().take(count).collect();
            // A caller that went away has left its candidates to the dispatch; their slots are found out about.
            drop(answer.send(verdicts));
        }
    }

    /// Decides about the candidates without a verdict, and writes the documents. Returns whether all have one now.
    async fn decide(&self, open: &mut [Open]) -> bool {
        self.load(open).await;
        let (now, is_exclusive) = (self.shared.clock.now(), self.shared.store.is_exclusive());
        let mut decided = self.shared.limits.documents.decide(open, now);
        let names = decided.full.keys();
        let doubtful = self.shared.limits.documents.doubtful(names, is_exclusive, Sight::Due, READS_PER_LOOK);
        if !doubtful.is_empty() && self.find_out(doubtful).await > 0 {
            for open in open.iter_mut().filter(|open| matches!(open.verdict, Some(Verdict::Full(..)))) {
                open.verdict = None;
            }
            decided.changed.extend(self.shared.limits.documents.decide(open, now).changed);
        }
        self.write_slots(open, decided.changed).await;
        open.iter().all(|open| open.verdict.is_some())
    }

    /// Makes sure of what has to be known of limits. A document that is not known is taken not to be there: if it is,
    /// its write meets a conflict, which shows it. Most keys are new, and a read for each would cost as much as its
    /// write.
    async fn load(&self, open: &mut [Open]) {
        {
            let mut known = self.shared.limits.documents.lock();
            let undecided = open.iter().filter(|open| open.verdict.is_none());
            for under in undecided.flat_map(|open| &open.wanted.under) {
                if !known.contains_key(&under.name) {
                    known.insert(under.name.clone(), self.shared.limits.documents.unread());
                }
            }
        }
        let failed = self.count_running(open).await;
        for open in open.iter_mut().filter(|open| open.verdict.is_none()) {
            if open.wanted.under.iter().any(|under| failed.contains(&under.name)) {
                open.verdict = Some(Verdict::Failed);
            }
        }
    }

    /// Reads documents in real time.
    pub(super) async fn read_documents(&self, names: Vec<LimitName>) {
        let keys: Vec<_> = names.iter().map(record_key).collect();
        let found = match self.shared.store.records_of(&keys).await {
            Ok(found) => found,
            Err(error) => {
                warn!(%error, "cannot read which jobs run under limits");
                return;
            }
        };
        let mut known = self.shared.limits.documents.lock();
        for (name, found) in names.into_iter().zip(found) {
            match read(found.as_ref()) {
                Ok(document) => {
                    let unread = || self.shared.limits.documents.unread();
                    let known = known.entry(name).or_insert_with(unread);
                    known.read_at = Some(Instant::now());
                    known.slots.take_over(document);
                }
                Err(error) => warn!(%error, limit = %name, "cannot read which jobs run under a limit"),
            }
        }
    }

    /// Counts the jobs that began before their limit was set, as running under it. Returns the limits whose jobs could
    /// not be counted.
    async fn count_running(&self, open: &[Open]) -> HashSet<LimitName> {
        let wanted = open.iter().filter(|open| open.verdict.is_none()).flat_map(|open| &open.wanted.under);
        // A key's jobs have slots whether a limit is set or not.
        let set_later = wanted.filter(|under| under.name.scope != LimitScope::Key && under.limit.is_some());
        let due: HashMap<LimitName, Timestamp> = {
            let now = self.shared.clock.now();
            let known = self.shared.limits.documents.lock();
            let due = |under: &Under| {
                let (known, set_at) = (known.get(&under.name)?, under.set_at?);
                known.is_to_be_counted(set_at, now).then(|| (under.name.clone(), set_at))
            };
            set_later.filter_map(due).collect()
        };
        let mut failed = HashSet::new();
        for (name, set_at) in due {
            let filter = Filter { states: vec![JobState::Running], under: vec![name.clone()], ..Filter::default() };
            let sort = Sort::By(SortField::CreatedAt, Direction::Ascending);
            let refreshed = self.shared.store.refresh(Refresh::Jobs(&filter)).await;
            let search = Search { filter, sort, after: None, limit: MOST_COUNTED };
            let found = match refreshed {
                Ok(()) => self.shared.store.search(&search).await,
                Err(error) => Err(error),
            };
            match found {
                Ok(found) => {
                    let running = found.iter().map(|found| Holder::of_running(&found.job));
                    let mut known = self.shared.limits.documents.lock();
                    if let Some(known) = known.get_mut(&name) {
                        known.count(running, set_at);
                    }
                }
                Err(error) => {
                    warn!(%error, limit = %name, "cannot count the jobs that run under a limit");
                    failed.insert(name);
                }
            }
        }
        failed
    }

    /// Writes documents, and takes back the verdicts that rest on those that could not be written.
    pub(super) async fn write_slots(&self, open: &mut [Open], changed: HashSet<LimitName>) {
        if changed.is_empty() {
            return;
        }
        let mut writes: Vec<(LimitName, Vec<Holder>, RecordWrite)> = Vec::with_capacity(changed.len());
        {
            let known = self.shared.limits.documents.lock();
            for name in changed {
                let Some(slots) = known.get(&name).map(|known| &known.slots) else { continue };
                writes.extend(write_of(&name, slots));
            }
        }
        let results = self.write_documents(writes.iter().map(|(_, _, write)| write)).await;
        let mut again = HashMap::new();
        for ((name, holders, write), result) in writes.into_iter().zip(results) {
            if let Some(verdict) = self.settle_document(&name, &holders, &write, result) {
                again.insert(name, verdict);
            }
        }
        for open in open.iter_mut().filter(|open| open.verdict == Some(Verdict::Granted)) {
            let mut met = open.wanted.under.iter().filter_map(|under| again.get(&under.name));
            if let Some(first) = met.next() {
                open.verdict = met.fold(first.clone(), |verdict, other| verdict.or_else(|| other.clone()));
            }
        }
    }

    /// Writes documents, not too many at once.
    pub(super) async fn write_documents(&self, writes: impl Iterator<Item = &RecordWrite>) -> Vec<WriteResult<Record>> {
        let writes: Vec<RecordWrite> = writes.cloned().collect();
        let mut results = Vec::with_capacity(writes.len());
        for some in writes.chunks(WRITES_AT_ONCE) {
            results.extend(self.shared.store.write_records(some.to_vec()).await);
        }
        results
    }

    /// Records the result of the write of a document. Returns what becomes of the candidates that it was to hold, if it
    /// was not written: nothing yet, or that they have failed.
    fn settle_document(
        &self,
        name: &LimitName,
        holders: &[Holder],
        write: &RecordWrite,
        result: WriteResult<Record>,
    ) -> Option<Option<Verdict>> {
        let mut known = self.shared.limits.documents.lock();
        let entry = known.entry(name.clone()).or_insert_with(|| self.shared.limits.documents.unread());
        match result {
            Ok(version) => {
                entry.slots.wrote(holders, write.body().map(|_| version));
                None
            }
            Err(WriteError::Conflict(current)) => match read(current.as_ref()) {
                Ok(document) => {
                    metrics::counter!("leasehold_conflicts_total", "operation" => "slots").increment(1);
                    entry.slots.take_over(document);
                    Some(None)
                }
                Err(error) => {
                    warn!(%error, limit = %name, "cannot read which jobs run under a limit");
                    known.remove(name);
                    Some(Some(Verdict::Failed))
                }
            },
            Err(error) => {
                debug!(%error, limit = %name, "cannot write which jobs run under a limit");
                // What is stored is not known any more.
                known.remove(name);
                Some(Some(Verdict::Failed))
            }
        }
    }

    /// Finds out what has become of slots, and returns how many are gone. Where a claim may be under way that nobody
    /// here makes, the job is written again after a while, so that the claim meets a conflict.
    pub(super) async fn find_out(&self, slots: Vec<(LimitName, Holder)>) -> usize {
        let sought: Vec<Sought<'_>> = slots.iter().map(|(_, holder)| Sought::from(&holder.job)).collect();
        let found = self.shared.store.look_up(&sought).await;
        let (mut gone, mut stuck) = (0, Vec::new());
        for ((name, holder), job) in slots.into_iter().zip(found) {
            let Ok(job) = job.inspect_err(|error| debug!(%error, limit = %name, "cannot look at a job that runs"))
            else {
                continue;
            };
            match holder.evidence(job.as_ref().map(|found| &*found.job)) {
                Evidence::Runs => drop(self.shared.limits.documents.learn_slot(&name, &holder, Fate::Runs)),
                Evidence::Over => {
                    gone += usize::from(self.shared.limits.documents.learn_slot(&name, &holder, Fate::Gone))
                }
                Evidence::MayBeClaimed => {
                    if self.shared.limits.documents.waits_since(&name, &holder) >= self.grace().min(SLOT_GRACE) {
                        stuck.push((name, holder));
                    }
                }
            }
        }
        gone + self.bar(stuck).await
    }

    /// Returns how long another manager has from a write of a record to the write of the job that it is for.
    pub(in crate::manager) fn grace(&self) -> Duration {
        if self.shared.store.is_exclusive() { Duration::ZERO } else { GRACE }
    }

    /// Writes again the jobs whose claims have not come since their slots were taken, so that no such claim is accepted
    /// any more. Returns how many slots are gone with that.
    async fn bar(&self, stuck: Vec<(LimitName, Holder)>) -> usize {
        if stuck.is_empty() {
            return 0;
        }
        let ids: Vec<JobId> = stuck.iter().map(|(_, holder)| holder.job.clone()).collect();
        let barred = self
            .update_as_read(&ids, |index, job, _| match stuck[index].1.evidence(Some(job)) {
                Evidence::MayBeClaimed => Ok(Change::To(Box::new(job.clone()))),
                Evidence::Runs | Evidence::Over => Ok(Change::Already),
            })
            .await;
        let mut gone = 0;
        for ((name, holder), result) in stuck.into_iter().zip(barred) {
            let fate = match result.map(|found| holder.evidence(Some(&found.job))) {
                Ok(Evidence::Runs) => Fate::Runs,
                // It was written again just now.
                Ok(Evidence::MayBeClaimed | Evidence::Over) => Fate::Gone,
                Err(ManagerError::NotFound(_)) => Fate::Gone,
                Err(_) => continue,
            };
            gone += usize::from(self.shared.limits.documents.learn_slot(&name, &holder, fate));
        }
        gone
    }

    /// Looks at the limits that jobs wait for, lets jobs go on for which there are slots, and forgets documents that
    /// nobody asks for.
    async fn look_at_limits(&self) {
        let names = self.shared.dispatch.holding_limits();
        if !names.is_empty() {
            let unknown = {
                let known = self.shared.limits.documents.lock();
                names.iter().filter(|name| !known.contains_key(*name)).take(READS_PER_LOOK / 10).cloned().collect()
            };
            self.read_documents(unknown).await;
            let doubtful = self.shared.limits.documents.doubtful(names.iter(), false, Sight::Due, READS_PER_LOOK);
            if !doubtful.is_empty() {
                self.find_out(doubtful).await;
            }
            self.take_turns(&names).await;
            for name in names {
                let Some(next) = self.shared.dispatch.next_of(&name) else {
                    // Nothing is left here of what the store may have.
                    self.shared.dispatch.let_go(&name, 1);
                    continue;
                };
                let room = self.room_to_give(&name, &next);
                if room > 0 {
                    self.shared.dispatch.let_go_after_a_while(&name, room);
                }
            }
        }
        self.keep_marks().await;
        self.search_for_held().await;
        self.forget_unused().await;
    }

    /// Searches for jobs of limits that hold only a part of theirs, of which hardly any are left here.
    async fn search_for_held(&self) {
        for wanted in self.shared.dispatch.begin_limit_searches(SEARCHES_PER_LOOK) {
            let filter = Filter {
                states: vec![JobState::Available],
                held: Some(false),
                queues: vec![wanted.queue.clone()],
                under: vec![wanted.limit.clone()],
                run_at_most: Some(self.shared.clock.now()),
                ..Filter::default()
            };
            let search = Search { filter, sort: Sort::Dispatch, after: None, limit: MOST_HELD };
            match self.shared.store.search(&search).await {
                Ok(mut found) => {
                    let is_cut_off = found.len() >= MOST_HELD;
                    found.retain(|hit| !self.shared.work.known.is_outdated(hit));
                    self.shared.dispatch.end_limit_search(wanted, found, is_cut_off);
                }
                Err(error) => debug!(%error, limit = %wanted.limit, "cannot search for the jobs that a limit holds"),
            }
        }
    }

    /// Returns the jobs that run under each of these limits, in real time.
    pub(super) async fn holders_of(&self, names: &[LimitName]) -> Result<Vec<Vec<SlotHolder>>, StoreError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = names.iter().map(record_key).collect();
        let mut listed = Vec::with_capacity(names.len());
        for record in self.shared.store.records_of(&keys).await? {
            listed.push(read(record.as_ref())?.map(|(document, _)| document.holders).unwrap_or_default());
        }
        let ids: Vec<JobId> = listed.iter().flatten().map(|holder| holder.job.clone()).collect();
        let mut jobs = self.shared.store.get(&ids).await?.into_iter();
        let mut runs = |listed: Vec<Holder>| {
            let count = listed.len();
            let runs = listed
                .into_iter()
                .zip(jobs.by_ref().take(count))
                .filter(|(holder, job)| holder.evidence(job.as_ref().map(|found| &*found.job)) == Evidence::Runs);
            let runs = runs.map(|(holder, _)| SlotHolder {
                job_id: holder.job,
                fence: holder.fence,
                max_concurrent: holder.max,
                priority: holder.priority,
            });
            runs.collect()
        };
        Ok(listed.into_iter().map(&mut runs).collect())
    }
}

/// Returns the write of a limit's document as it is known, with the slots that it holds then.
fn write_of(name: &LimitName, slots: &Slots) -> Option<(LimitName, Vec<Holder>, RecordWrite)> {
    let document = slots.document(name);
    let key = record_key(name);
    let write = match (&document, slots.version) {
        (Some(document), version) => RecordWrite::put(key, body(document).ok()?, version),
        (None, Some(expected)) => RecordWrite::Remove { key, expected },
        (None, None) => return None,
    };
    Some((name.clone(), document.map_or_else(Vec::new, |document| document.holders), write))
}

fn read(record: Option<&Record>) -> Result<Option<(SlotDocument, Version)>, StoreError> {
    record.map(|record| Ok((record.read()?, record.version))).transpose()
}
