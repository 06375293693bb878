//! Who is first in a line: one task of the manager looks for all claims that wait for that, with one search, and
//! another one looks at the lines in which jobs are held.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tracing::{debug, warn};

use super::allotting::remember;
use super::document::{Line, live, record_key};
use crate::job::{JobId, JobState, Ordered, OrderingKey};
use crate::manager::Manager;
use crate::manager::dispatch::MOST_HELD;
use crate::manager::request::ManagerError;
use crate::query::{Direction, Filter, Search, Sort};
use crate::store::{Head, Refresh, Sought, StoreError, Versioned};

/// The time between two looks at the lines in which jobs are held.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The most lines that one look is about, and the most of their heads that it reads.
const LINES_PER_LOOK: usize = 2_000;
const READS_PER_LOOK: usize = 500;

/// The time after which a head that was read is read again.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The most lines whose held jobs are searched for with one look.
const SEARCHES_PER_LOOK: usize = 16;

/// What was found out about a candidate.
#[derive(Debug)]
pub(in crate::manager) enum Verdict {
    /// It is the head of its line, and may be claimed.
    First,
    /// Another job is before it, or may be: this one, if that is known.
    Behind(Option<Head>),
    /// It is not live as it was known; this is the job now, if it can still be claimed.
    Now(Option<Versioned>),
    /// The store did not answer.
    Failed,
}

/// A question about candidates that have ordering keys.
pub(in crate::manager) struct Request {
    pub(super) candidates: Vec<Versioned>,
    pub(super) answer: oneshot::Sender<Vec<Verdict>>,
}

impl Manager {
    /// Runs the task that finds out who is first.
    pub(in crate::manager) async fn keep_order(self, mut requests: mpsc::UnboundedReceiver<Request>) {
        let mut waiting = Vec::new();
        loop {
            let count = tokio::select! {
                biased;
                () = self.shared.stopping.cancelled() => return,
                count = requests.recv_many(&mut waiting, usize::MAX) => count,
            };
            if count == 0 {
                return;
            }
            let (mut candidates, mut answers) = (Vec::new(), Vec::new());
            for Request { candidates: asked, answer } in waiting.drain(..) {
                answers.push((asked.len(), answer));
                candidates.extend(asked);
            }
            let mut verdicts = self.check_order(candidates).await.into_iter();
            for (count, answer) in answers {
                // A caller that went away has left its candidates to the dispatch.
                drop(answer.send(verdicts.by_ref().take(count).collect()));
            }
        }
    }

    /// Finds out which of these candidates are first in their lines.
    ///
    /// What was allotted together with their places and before them is looked at first: a job that is created after
    /// that is seen by the search for heads.
    async fn check_order(&self, candidates: Vec<Versioned>) -> Vec<Verdict> {
        let settled = join_all(candidates.iter().map(|candidate| self.is_settled_before(candidate))).await;
        let heads = match self.exact_heads(&candidates).await {
            Ok(heads) => heads,
            Err(error) => {
                warn!(%error, "cannot find out which jobs are first in the lines of ordering keys");
                return candidates.iter().map(|_| Verdict::Failed).collect();
            }
        };
        let mut verdicts = Vec::with_capacity(candidates.len());
        for (candidate, settled) in candidates.into_iter().zip(settled) {
            let head = candidate.job.spec.ordering_key().and_then(|key| heads.get(key));
            let seq = candidate.job.spec.ordering().map(|ordered| ordered.seq);
            verdicts.push(match (settled, head) {
                (Err(error), _) => {
                    debug!(%error, job = %candidate.job.id, "cannot find out what is before a job in its line");
                    Verdict::Failed
                }
                (Ok(true), Some(head)) if Some(head.seq) == seq && head.job == candidate.job.id => Verdict::First,
                (Ok(_), Some(head)) if Some(head.seq) < seq => Verdict::Behind(Some(head.clone())),
                (Ok(_), Some(head)) if Some(head.seq) == seq => Verdict::Behind(None),
                // It is live no more, or not in this place.
                (Ok(_), _) => self.as_it_is_now(candidate).await,
            });
        }
        verdicts
    }

    /// Finds the heads of the candidates' lines as of a moment after this call.
    async fn exact_heads(&self, candidates: &[Versioned]) -> Result<HashMap<OrderingKey, Head>, StoreError> {
        let keys: HashSet<&OrderingKey> =
            candidates.iter().filter_map(|candidate| candidate.job.spec.ordering_key()).collect();
        let keys: Vec<OrderingKey> = keys.into_iter().cloned().collect();
        self.shared.store.refresh(Refresh::Jobs(&live())).await?;
        let heads = self.shared.store.heads(&keys).await?;
        Ok(keys.into_iter().zip(heads).filter_map(|(key, head)| Some((key, head?))).collect())
    }

    async fn as_it_is_now(&self, candidate: Versioned) -> Verdict {
        match self.shared.store.get(std::slice::from_ref(&candidate.job.id)).await.map(|mut found| found.pop()) {
            Ok(Some(Some(now))) if now.version == candidate.version => Verdict::Behind(None),
            Ok(Some(now)) => {
                now.iter().for_each(|now| self.shared.work.known.learn(now));
                Verdict::Now(now)
            }
            Ok(None) | Err(_) => Verdict::Failed,
        }
    }

    /// Returns whether all places are settled that were allotted together with a candidate's and before it. Where one
    /// has not been for a while, its write is barred.
    async fn is_settled_before(&self, candidate: &Versioned) -> Result<bool, ManagerError> {
        let Some(Ordered { key, seq, first }) = candidate.job.spec.ordering() else { return Ok(true) };
        if first == seq {
            return Ok(true);
        }
        let lines = &self.shared.lines;
        // Without a document the line has no live job: the claim meets a conflict.
        let Some(record) = self.shared.store.record(&record_key(key)).await? else { return Ok(true) };
        let known = lines.looked_at.lock().get(key).copied();
        if known.is_some_and(|(version, up_to)| version == record.version && *seq <= up_to) {
            return Ok(true);
        }
        let line: Line = record.read()?;
        let doubtful = match line.places().contains(seq) {
            true => self.doubtful(&line, *seq).await?,
            // The document was written over since: all that it had announced was settled then.
            false => Vec::new(),
        };
        if let Some(missing) = doubtful.first() {
            let since = {
                let mut missed = lines.missed.lock();
                let since = missed.get(key).filter(|(seq, _)| *seq == missing.seq).map(|(_, since)| *since);
                let since = since.unwrap_or_else(Instant::now);
                remember(&mut missed, key, (missing.seq, since));
                since
            };
            if since.elapsed() < self.grace() {
                return Ok(false);
            }
            self.settle_entries(doubtful, Instant::now()).await?;
            // What was created after all comes first.
            return Ok(false);
        }
        lines.missed.lock().remove(key);
        remember(&mut lines.looked_at.lock(), key, (record.version, *seq));
        Ok(true)
    }
}

/// What the looks at lines have come to.
#[derive(Default)]
struct Looks {
    /// The line after which the next look begins, where there are more than one look is about.
    after: Option<OrderingKey>,
    /// The heads that were read, and when.
    read: HashMap<JobId, Instant>,
}

impl Manager {
    /// Runs the task that looks at lines in which jobs are held: their heads may have ended at other managers.
    pub(in crate::manager) async fn keep_lines(self) {
        let mut ticks = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looks = Looks::default();
        loop {
            tokio::select! {
                biased;
                () = self.shared.stopping.cancelled() => return,
                _ = ticks.tick() => {}
            }
            if let Err(error) = self.look_at_lines(&mut looks).await {
                debug!(%error, "cannot look at the lines in which jobs are held");
            }
            self.search_in_lines().await;
        }
    }

    /// Lets the first held jobs of lines go on that may be heads, as far as a search shows, and takes heads up that
    /// wait and were not found by the searches for queues, which leave long lines out.
    async fn look_at_lines(&self, looks: &mut Looks) -> Result<(), StoreError> {
        let mut held = self.shared.dispatch.held_in_lines();
        held.sort_unstable();
        if held.len() > LINES_PER_LOOK {
            let begin = looks.after.take().map_or(0, |after| held.partition_point(|(key, ..)| *key <= after));
            held.rotate_left(begin);
            held.truncate(LINES_PER_LOOK);
            looks.after = held.last().map(|(key, ..)| key.clone());
        }
        if held.is_empty() {
            return Ok(());
        }
        let keys: Vec<OrderingKey> = held.iter().map(|(key, ..)| key.clone()).collect();
        let heads = self.shared.store.heads(&keys).await?;
        let mut unknown = Vec::new();
        for ((key, first), head) in held.into_iter().zip(heads) {
            match head {
                Some(head) if first.is_none_or(|first| head.seq < first) => {
                    if head.state == JobState::Available {
                        unknown.push(head.job);
                    }
                }
                _ => self.shared.dispatch.let_go_in_line(&key, None),
            }
        }
        looks.read.retain(|_, at| at.elapsed() < READ_AGAIN_AFTER);
        unknown.retain(|id| !looks.read.contains_key(id));
        unknown.truncate(READS_PER_LOOK);
        if !unknown.is_empty() {
            let sought: Vec<Sought<'_>> = unknown.iter().map(Sought::from).collect();
            let found = self.shared.store.look_up(&sought).await;
            looks.read.extend(unknown.into_iter().map(|id| (id, Instant::now())));
            self.shared.dispatch.add(found.into_iter().filter_map(|found| found.ok().flatten()));
        }
        Ok(())
    }

    /// Searches for jobs of lines that hold only a part of theirs, of which hardly any are left here.
    async fn search_in_lines(&self) {
        let run_out = self.shared.dispatch.run_out_of_lines();
        if run_out.is_empty() {
            return;
        }
        let Ok(by_place) = "order_seq".parse() else { return };
        for key in run_out.into_iter().take(SEARCHES_PER_LOOK) {
            let filter = Filter {
                states: vec![JobState::Available],
                held: Some(false),
                in_line_of: vec![key.clone()],
                run_at_most: Some(self.shared.clock.now()),
                ..Filter::default()
            };
            let sort = Sort::By(by_place, Direction::Ascending);
            let search = Search { filter, sort, after: None, limit: MOST_HELD };
            match self.shared.store.search(&search).await {
                Ok(mut found) => {
                    let is_cut_off = found.len() >= MOST_HELD;
                    found.retain(|hit| !self.shared.work.known.is_outdated(hit));
                    self.shared.dispatch.hold_again_in_line(&key, found, is_cut_off);
                }
                Err(error) => debug!(%error, %key, "cannot search for the jobs that are held in a line"),
            }
        }
    }
}
