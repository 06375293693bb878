//! Where jobs are now, by id: in the live index, in the archive, or nowhere. The rules are those of [`super::archive`].
//!
//! The live index is read first and in real time, and what is found in the archive is read in real time too. A search
//! only finds in which month: a copy can be searched for long before its tombstone goes. A job may move between the two
//! reads; a job whose two reads do not fit together is read again.
//!
//! A month that cannot be read refuses the look-up of a job that may lie there, and of no other one. Nobody looks for a
//! job in months that were over before it can have ended ([`Sought::since`]).

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::archive::Month;
use super::documents::{Present, Stored, mget, mget_of, parse_mget, remember};
use super::fault::Fault;
use super::indices::Indices;
use super::nodes::Nodes;
use super::reach::{Copies, Reach};
use super::search::{MAX_PAGE, Scope, page};
use super::tombstone::Destination;
use super::write_id::RecentWrites;
use crate::clock::Timestamp;
use crate::job::JobId;
use crate::store::{Sought, StoreError, Version, Versioned};

/// The most rounds in which jobs are read whose reads do not fit together.
const MAX_ROUNDS: usize = 5;
/// The time between two rounds when a part of a month is away, which may be back at once.
const PAUSE: Duration = Duration::from_millis(50);
/// How far the clocks may differ that gave a job's id, and its end, their times.
const APART: Duration = Duration::from_secs(24 * 3_600);

/// Returns the first month in which a job may lie that has ended at this time or later.
pub(super) fn first_month(since: Timestamp) -> Month {
    Month::of(since.minus(APART))
}

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
    pub(super) reach: &'a Reach,
    pub(super) deadline: Instant,
}

/// The state of locating one job.
struct Quest<'a> {
    id: &'a JobId,
    /// The first month in which the job may lie, if one is known.
    from: Option<Month>,
    /// Whether the job was absent from both already. If it is absent a second time, there is none. (It may have come
    /// back between the two reads.)
    was_absent: bool,
    /// Why a month cannot be read for the moment in which the job may lie.
    is_away: Option<StoreError>,
    answer: Option<Result<Located, StoreError>>,
}

impl<'a> Quest<'a> {
    fn of(sought: Sought<'a>) -> Self {
        let since = sought.since.max(sought.id.made_at());
        Self { id: sought.id, from: since.map(first_month), was_absent: false, is_away: None, answer: None }
    }
}

/// A job that is not in the live index, by the index of its quest.
struct Missing {
    quest: usize,
    month: Option<Month>,
    lock: Lock,
}

/// Returns the body of a search for all copies of these jobs.
fn copies_of(ids: &[&JobId]) -> Value {
    let mut body = page(&json!({ "ids": { "values": ids } }), MAX_PAGE);
    body["_source"] = json!(false);
    body
}

impl Locator<'_> {
    /// Locates jobs and returns an answer for each, in the order requested.
    pub(super) async fn locate(&self, sought: &[Sought<'_>]) -> Result<Vec<Result<Located, StoreError>>, StoreError> {
        let mut quests: Vec<Quest<'_>> = sought.iter().copied().map(Quest::of).collect();
        for _ in 0..MAX_ROUNDS {
            if quests.iter().all(|quest| quest.answer.is_some()) {
                break;
            }
            if quests.iter().any(|quest| quest.is_away.is_some()) {
                sleep(PAUSE).await;
            }
            let mut missing = self.look_live(&mut quests).await?;
            self.search_months(&mut quests, &mut missing).await?;
            self.look_in_archive(&mut quests, missing).await?;
        }
        let restless = |id: &JobId| StoreError::Unavailable(format!("`{id}` moved whenever it was read"));
        let answer = |quest: Quest<'_>| {
            let Quest { id, is_away, answer, .. } = quest;
            answer.unwrap_or_else(|| Err(is_away.unwrap_or_else(|| restless(id))))
        };
        Ok(quests.into_iter().map(answer).collect())
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
            quest.is_away = None;
            missing.month = match copies.latest(quest.id, quest.from) {
                Ok(month) => month,
                Err(why @ StoreError::Unavailable(_)) => {
                    quest.is_away = Some(why);
                    return false;
                }
                Err(why) => {
                    quest.answer = Some(Err(why));
                    return false;
                }
            };
            if missing.month.is_none() && quest.was_absent {
                quest.answer = Some(Ok(Located::Nowhere(Lock::Absent)));
            }
            quest.was_absent = missing.month.is_none();
            missing.month.is_some()
        });
        Ok(())
    }

    /// Searches the archive for copies of jobs, in all months that can be read. No month that cannot holds it up.
    pub(super) async fn copies(&self, ids: &[&JobId]) -> Result<Copies, StoreError> {
        let (months, body) = (self.indices.months(), copies_of(ids));
        let scope = Scope::new(self.nodes, &months, self.deadline);
        let mut copies = Copies::default();
        if self.reach.has_unread() {
            return self.reach.ask((self.nodes, self.indices), &body, self.deadline).await;
        }
        match scope.hits_at_once(&body, |hits| copies.add(self.indices, hits)).await {
            Ok(Some(())) => Ok(self.reach.whole(copies)),
            Ok(None) | Err(_) => self.reach.ask((self.nodes, self.indices), &body, self.deadline).await,
        }
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
                // The job moved, unless it cannot have.
                Ok(None) if document.is_of_missing_month(self.indices) => {
                    let index = self.indices.of_month(missing.month.unwrap_or(Month::of(Timestamp::from_millis(0))));
                    quest.is_away = Some(Fault::Missing(index).into());
                }
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
