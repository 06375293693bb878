//! Where jobs are now, by id: in the live index, in the archive, or nowhere. The rules are those of [`super::archive`].
//!
//! The live index is read first and in real time, and what is found in the archive is read in real time too. A search
//! only finds in which month: a copy can be searched for long before its tombstone goes. A job may move between the two
//! reads; a job whose two reads do not fit together is read again.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::archive::Month;
use super::documents::{Present, RawDocument, Stored, mget, mget_of, parse_mget, remember};
use super::indices::Indices;
use super::nodes::Nodes;
use super::search::{MAX_PAGE, Scope, page};
use super::tombstone::Destination;
use super::write_id::RecentWrites;
use crate::job::JobId;
use crate::store::{StoreError, Version, Versioned};

/// The most rounds in which jobs are read whose reads do not fit together.
const MAX_ROUNDS: usize = 5;

/// The state of a job's id in the live index, which a change of a job that is not there must replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// There is no document, so the change creates it.
    Absent,
    /// There is a tombstone of this version.
    Tombstone(Version),
}

/// The place of a job.
#[derive(Debug)]
pub(super) enum Located {
    /// There is no such job.
    Nowhere(Lock),
    /// The job is in the live index.
    Live(Versioned),
    /// The job is in the archive.
    Moved(Versioned, Lock),
}

impl Located {
    /// Returns the job, if there is one.
    pub(super) fn into_job(self) -> Option<Versioned> {
        match self {
            Self::Nowhere(_) => None,
            Self::Live(found) | Self::Moved(found, _) => Some(found),
        }
    }
}

/// Locates jobs by id.
#[derive(Clone, Copy)]
pub(super) struct Locator<'a> {
    pub(super) nodes: &'a Nodes,
    pub(super) indices: &'a Indices,
    pub(super) recent: &'a RecentWrites,
    pub(super) deadline: Instant,
}

/// The state of locating one job.
struct Quest<'a> {
    id: &'a JobId,
    /// Whether the job was absent from both already. If it is absent a second time, there is none. (It may have come
    /// back between the two reads.)
    was_absent: bool,
    answer: Option<Result<Located, StoreError>>,
}

/// A job that is not in the live index, by the index of its quest.
struct Missing {
    quest: usize,
    month: Option<Month>,
    lock: Lock,
}

/// The months in which the archive has copies of jobs.
pub(super) type Copies = HashMap<JobId, Vec<Month>>;

/// Returns the body of a search for all copies of these jobs.
fn copies_of(ids: &[&JobId]) -> Value {
    let mut body = page(&json!({ "ids": { "values": ids } }), MAX_PAGE);
    body["_source"] = json!(false);
    body
}

impl Locator<'_> {
    /// Locates jobs and returns an answer for each, in the order requested.
    pub(super) async fn locate(&self, ids: &[&JobId]) -> Result<Vec<Result<Located, StoreError>>, StoreError> {
        let quest = |id| Quest { id, was_absent: false, answer: None };
        let mut quests: Vec<Quest<'_>> = ids.iter().copied().map(quest).collect();
        for _ in 0..MAX_ROUNDS {
            if quests.iter().all(|quest| quest.answer.is_some()) {
                break;
            }
            let mut missing = self.look_live(&mut quests).await?;
            self.search_months(&mut quests, &mut missing).await?;
            self.look_in_archive(&mut quests, missing).await?;
        }
        let restless = |id: &JobId| Err(StoreError::Unavailable(format!("`{id}` moved whenever it was read")));
        Ok(quests.into_iter().map(|quest| quest.answer.unwrap_or_else(|| restless(quest.id))).collect())
    }

    /// Reads the live index. Returns the jobs that are not in it and may be in the archive.
    async fn look_live(&self, quests: &mut [Quest<'_>]) -> Result<Vec<Missing>, StoreError> {
        let open: Vec<usize> = (0..quests.len()).filter(|quest| quests[*quest].answer.is_none()).collect();
        let ids: Vec<&JobId> = open.iter().map(|quest| quests[*quest].id).collect();
        let reply = mget(self.nodes, &self.indices.jobs, &ids, self.deadline).await?;
        let mut missing = Vec::new();
        for (quest, document) in open.into_iter().zip(parse_mget(&reply, ids.len())?) {
            let answer = match document.stored(self.indices) {
                Ok(Some(Stored::Job(present))) => Ok(Located::Live(self.take(*present))),
                Ok(Some(Stored::Tombstone(tombstone))) => {
                    let lock = Lock::Tombstone(tombstone.document.version);
                    match tombstone.destination {
                        Destination::Nowhere => Ok(Located::Nowhere(lock)),
                        Destination::Month(month) => {
                            missing.push(Missing { quest, month: Some(month), lock });
                            continue;
                        }
                    }
                }
                Ok(None) => {
                    missing.push(Missing { quest, month: None, lock: Lock::Absent });
                    continue;
                }
                Err(error) => Err(error),
            };
            quests[quest].answer = Some(answer);
        }
        Ok(missing)
    }

    /// Searches the month of each missing job that no tombstone names, and drops the jobs that are in no month. All
    /// months are searched, whatever the caller knows: the latest copy is the job.
    async fn search_months(&self, quests: &mut [Quest<'_>], missing: &mut Vec<Missing>) -> Result<(), StoreError> {
        let ids: Vec<&JobId> =
            missing.iter().filter(|missing| missing.month.is_none()).map(|missing| quests[missing.quest].id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let copies = self.copies(&ids).await?;
        missing.retain_mut(|missing| {
            if missing.month.is_some() {
                return true;
            }
            let quest = &mut quests[missing.quest];
            missing.month = copies.get(quest.id).and_then(|months| months.iter().max().copied());
            if missing.month.is_none() && quest.was_absent {
                quest.answer = Some(Ok(Located::Nowhere(Lock::Absent)));
            }
            quest.was_absent = missing.month.is_none();
            missing.month.is_some()
        });
        Ok(())
    }

    /// Searches the archive for copies of jobs, and returns the months of each job that has any.
    pub(super) async fn copies(&self, ids: &[&JobId]) -> Result<Copies, StoreError> {
        let months = self.indices.months();
        let scope = Scope::new(self.nodes, &months, self.deadline);
        scope.hits(&copies_of(ids), |hits| Ok(self.months_of(hits))).await
    }

    /// Searches the months that can be searched now, as [`Locator::copies`] does. Returns also whether these are all.
    pub(super) async fn copies_within_reach(&self, ids: &[&JobId]) -> Result<(Copies, bool), StoreError> {
        let months = self.indices.months();
        let scope = Scope::new(self.nodes, &months, self.deadline);
        scope.hits_within_reach(&copies_of(ids), |hits| self.months_of(hits)).await
    }

    fn months_of(&self, hits: &[RawDocument<'_>]) -> Copies {
        let mut copies = Copies::with_capacity(hits.len());
        for hit in hits {
            let (Some(month), Ok(id)) = (self.indices.month_of(&hit.index), JobId::new(&hit.id)) else { continue };
            copies.entry(id).or_default().push(month);
        }
        copies
    }

    /// Reads the copies. A copy that is gone leaves its quest open.
    async fn look_in_archive(&self, quests: &mut [Quest<'_>], missing: Vec<Missing>) -> Result<(), StoreError> {
        if missing.is_empty() {
            return Ok(());
        }
        let address = |missing: &Missing| {
            let month = missing.month.map(|month| self.indices.of_month(month)).unwrap_or_default();
            (month, quests[missing.quest].id)
        };
        let addresses: Vec<(String, &JobId)> = missing.iter().map(address).collect();
        let reply = mget_of(self.nodes, &addresses, self.deadline).await?;
        for (missing, document) in missing.iter().zip(parse_mget(&reply, addresses.len())?) {
            let quest = &mut quests[missing.quest];
            match document.job(self.indices) {
                Ok(Some(present)) => quest.answer = Some(Ok(Located::Moved(self.take(present), missing.lock))),
                // The job moved.
                Ok(None) => {}
                Err(error) => quest.answer = Some(Err(error)),
            }
        }
        Ok(())
    }

    fn take(&self, present: Present<'_>) -> Versioned {
        remember(self.recent, std::iter::once(&present));
        present.into_versioned()
    }
}
