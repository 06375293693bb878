//! Jobs of the system's own under ids that follow from what they are for, such as the triggers of schedules.
//!
//! Such an id makes one job of many submissions. But anybody can work it out, and submit another job under it. So
//! who finds a job under such an id looks whether it is the one that is meant. Where it is not, the id that follows
//! from the taken one is meant, which nobody works out without a key of the installation.

use std::collections::HashMap;
use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::request::{Caller, NewJob};
use super::{Manager, ManagerError};
use crate::clock::Timestamp;
use crate::job::{Due, Job, JobId, JobSpec, Kind, QueueName, RecordName};
use crate::store::record::{RecordError, change_record};
use crate::store::{RecordKey, RecordKind, Sought, StoreError, Versioned};

/// The length of the key that the further ids follow from, in bytes.
const KEY_BYTES: usize = 32;
/// How many ids are tried.
const IDS: usize = 8;
/// How long it counts that the key was not made.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// The bytes of an id that tell a time (UUIDv8).
const TIME: usize = 6;
/// How long after a line of the log about foreign jobs the next one of the same schedule, or the same queue of the
/// system's, may come.
const LINE_EVERY: Duration = Duration::from_secs(60);
/// How many of these are counted apart; the others are one together.
const TOLD_APART: usize = 1_000;

/// What a manager knows of further ids: the key of the installation that they follow from, once it was needed. It is
/// made once, and its record is a setting by its kind: settings are encrypted where there are keys for that, and
/// earlier versions know no further kinds.
#[derive(Default)]
pub(super) struct OwnIds {
    key: OnceCell<[u8; KEY_BYTES]>,
    /// When the key was last found not to be made.
    looked_at: Mutex<Option<Instant>>,
    noted: Noted,
}

/// What the log has about foreign jobs, by what their ids are for.
#[derive(Default)]
struct Noted(Mutex<HashMap<String, Lines>>);

/// The lines about one schedule, or one queue of the system's.
struct Lines {
    last: Instant,
    /// How many foreign jobs were found since.
    since: u64,
}

impl Noted {
    /// Takes note of a foreign job. Returns how many have been found since the last line, this one included, where
    /// there may be another line; `None` otherwise.
    fn note(&self, of: &str, now: Instant) -> Option<u64> {
        let mut noted = self.0.lock();
        if noted.len() >= TOLD_APART && !noted.contains_key(of) {
            noted.retain(|_, lines| now.duration_since(lines.last) < LINE_EVERY);
        }
        let of = if noted.len() >= TOLD_APART && !noted.contains_key(of) { "" } else { of };
        match noted.get_mut(of) {
            Some(lines) if now.duration_since(lines.last) < LINE_EVERY => {
                lines.since += 1;
                None
            }
            Some(lines) => {
                lines.last = now;
                Some(std::mem::take(&mut lines.since) + 1)
            }
            None => {
                noted.insert(of.to_owned(), Lines { last: now, since: 0 });
                Some(1)
            }
        }
    }
}

fn record_key() -> RecordKey {
    RecordKey::new(RecordKind::Setting, RecordName::system("id-key"))
}

/// The key as it is stored.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredKey {
    key: Vec<u8>,
}

/// Returns the id under which a job is meant whose id a foreign one has: the time that the job is for, and what nobody
/// works out without the key (UUIDv8).
fn next(key: &[u8; KEY_BYTES], taken: &JobId, meaning: &Meaning) -> JobId {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(taken.as_str().as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&mac.finalize().into_bytes()[..16]);
    let due = meaning.due.as_ref().map(|due| u64::try_from(due.due_at.as_millis()).unwrap_or_default().to_be_bytes());
    let time = due.map(|millis| [millis[2], millis[3], millis[4], millis[5], millis[6], millis[7]]);
    // A delivery has the time of its event at the beginning of its first id.
    let of_taken = || taken.uuid().and_then(|uuid| uuid.as_bytes()[..TIME].try_into().ok());
    bytes[..TIME].copy_from_slice(&time.or_else(of_taken).unwrap_or_default());
    JobId::of_uuid(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

/// What a job of the system's own is. Nobody else submits into the system's queues, or says which due time of a
/// schedule a job is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    /// The system's queue that it is in, and its kind there; `None` for a job in a queue of somebody else.
    pub(crate) queue: Option<(QueueName, Kind)>,
    /// The due time that it is for.
    pub(crate) due: Option<Due>,
}

impl Meaning {
    fn of(spec: &JobSpec) -> Self {
        let queue = spec.queue.is_internal().then(|| (spec.queue.clone(), spec.kind.clone()));
        Self { queue, due: spec.due.as_deref().cloned() }
    }

    /// Returns whether a job that was found is the one that is meant.
    fn is_of(&self, found: &Job) -> bool {
        (self.queue.is_some() || self.due.is_some()) && *self == Self::of(&found.spec)
    }
}

/// A job of the system's own that is looked for.
pub(crate) struct SoughtOwn {
    /// The id under which it is unless a foreign job has that.
    pub(crate) id: JobId,
    /// A time before which it has not ended, if one is known.
    pub(crate) since: Option<Timestamp>,
    pub(crate) meaning: Meaning,
}

impl Manager {
    /// Submits jobs of the system's own, each under its id or the first one after that which no foreign job has.
    /// Returns the id of each, whether it was made now or before, in the same order.
    ///
    /// # Errors
    /// Those of [`Manager::submit`]; [`ManagerError::SubmissionDiffers`] only where foreign jobs have all ids.
    pub(crate) async fn submit_own(&self, caller: &Caller, jobs: Vec<NewJob>) -> Vec<Result<Own, ManagerError>> {
        let mut answers: Vec<Option<Result<Own, ManagerError>>> = jobs.iter().map(|_| None).collect();
        let mut open = Vec::new();
        for (place, (made, job)) in self.made_before(&jobs).await.into_iter().zip(jobs).enumerate() {
            match made {
                Ok(None) => open.push((place, job)),
                Ok(Some(id)) => answers[place] = Some(Ok(Own { id, created: false })),
                Err(error) => answers[place] = Some(Err(error.into())),
            }
        }
        for _ in 0..IDS {
            if open.is_empty() {
                break;
            }
            let batch = open.iter().map(|(_, job)| job.clone()).collect();
            let submitted = self.submit(caller, batch).await;
            let mut taken = Vec::new();
            for ((place, job), answer) in open.into_iter().zip(submitted) {
                match answer {
                    Ok(answer) => {
                        let id = answer.job.versioned.job.id.clone();
                        answers[place] = Some(Ok(Own { id, created: answer.created }));
                    }
                    Err(ManagerError::SubmissionDiffers(id)) => taken.push((place, job, id)),
                    Err(error) => answers[place] = Some(Err(error)),
                }
            }
            let ids: Vec<JobId> = taken.iter().map(|(_, _, id)| id.clone()).collect();
            let sought: Vec<Sought<'_>> = ids.iter().map(Sought::from).collect();
            let found = if sought.is_empty() { Vec::new() } else { self.shared.store.look_up(&sought).await };
            open = Vec::new();
            for ((place, job, id), found) in taken.into_iter().zip(found) {
                match found {
                    Err(error) => answers[place] = Some(Err(error.into())),
                    Ok(Some(found)) if !Meaning::of(&job.spec).is_of(&found.job) => {
                        self.note_foreign(&found.job, &job.spec);
                        match self.id_key().await {
                            Err(error) => answers[place] = Some(Err(error.into())),
                            Ok(key) => {
                                let next = next(&key, &id, &Meaning::of(&job.spec));
                                answers[place] = Some(Err(ManagerError::SubmissionDiffers(id)));
                                open.push((place, NewJob { id: Some(next), ..job }));
                            }
                        }
                    }
                    // It differs where its schedule has changed since it was made, or what it is about.
                    Ok(Some(_)) => answers[place] = Some(Ok(Own { id, created: false })),
                    Ok(None) => {}
                }
            }
        }
        let no_answer = || Err(ManagerError::Unknown("the manager gave no answer".to_owned()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(no_answer)).collect()
    }

    /// Returns the ids of those jobs that were made under the id that follows from their first one, while a foreign job
    /// had that: it may have been removed since, so that they would be made once more.
    async fn made_before(&self, jobs: &[NewJob]) -> Vec<Result<Option<JobId>, StoreError>> {
        let key = match self.known_id_key().await {
            Ok(Some(key)) => key,
            // Without a key no job has a further id.
            Ok(None) => return jobs.iter().map(|_| Ok(None)).collect(),
            Err(error) => return jobs.iter().map(|_| Err(error.clone())).collect(),
        };
        let meant = jobs.iter().enumerate().filter_map(|(place, job)| {
            let meaning = Meaning::of(&job.spec);
            Some((place, next(&key, job.id.as_ref()?, &meaning), meaning))
        });
        let meant: Vec<(usize, JobId, Meaning)> = meant.collect();
        let since = |meaning: &Meaning| meaning.due.as_ref().map(|due| due.due_at);
        let sought = meant.iter().map(|(_, id, meaning)| Sought { id, since: since(meaning) });
        let found = self.shared.store.look_up(&sought.collect::<Vec<_>>()).await;
        let mut made: Vec<Result<Option<JobId>, StoreError>> = jobs.iter().map(|_| Ok(None)).collect();
        for ((place, id, meaning), found) in meant.into_iter().zip(found) {
            made[place] = found.map(|found| found.filter(|found| meaning.is_of(&found.job)).map(|_| id));
        }
        made
    }

    /// Finds jobs of the system's own, by their first id and what they are. A foreign job under one of their ids is
    /// passed over, and so is one that was removed since.
    pub(crate) async fn find_own(&self, sought: &[SoughtOwn]) -> Result<Vec<Option<Versioned>>, StoreError> {
        let mut own: Vec<Option<Versioned>> = sought.iter().map(|_| None).collect();
        let mut open: Vec<(usize, JobId)> = sought.iter().map(|own| own.id.clone()).enumerate().collect();
        for round in 0..IDS {
            if open.is_empty() {
                break;
            }
            let look = open.iter().map(|(place, id)| Sought { id, since: sought[*place].since });
            let found = self.shared.store.look_up(&look.collect::<Vec<_>>()).await;
            let (mut foreign, mut missing) = (Vec::new(), Vec::new());
            for ((place, id), found) in open.into_iter().zip(found) {
                match found? {
                    Some(found) if sought[place].meaning.is_of(&found.job) => own[place] = Some(found),
                    Some(_) => foreign.push((place, id)),
                    None => missing.push((place, id)),
                }
            }
            // Without a key no job has a further id.
            let key = match foreign.is_empty() {
                true if missing.is_empty() || round > 0 => break,
                true => self.known_id_key().await?,
                false => Some(self.id_key().await?),
            };
            let Some(key) = key else { break };
            let first = (round == 0).then_some(missing).into_iter().flatten();
            let further = foreign.into_iter().chain(first);
            open = further.map(|(place, id)| (place, next(&key, &id, &sought[place].meaning))).collect();
        }
        Ok(own)
    }

    /// Returns the key that further ids follow from, if it was made; another process may have made it just now.
    async fn known_id_key(&self) -> Result<Option<[u8; KEY_BYTES]>, StoreError> {
        let OwnIds { key, looked_at, .. } = &self.shared.own_ids;
        if let Some(key) = key.get() {
            return Ok(Some(*key));
        }
        if looked_at.lock().is_some_and(|at| at.elapsed() < LOOK_AGAIN) {
            return Ok(None);
        }
        if self.shared.store.record(&record_key()).await?.is_some() {
            return self.id_key().await.map(Some);
        }
        *looked_at.lock() = Some(Instant::now());
        Ok(None)
    }

    /// Returns the key that further ids follow from, which is made when it is first needed.
    async fn id_key(&self) -> Result<[u8; KEY_BYTES], StoreError> {
        let find = async || {
            let decide = |made: Option<&StoredKey>| {
                let make = || StoredKey { key: rand::random::<[u8; KEY_BYTES]>().to_vec() };
                Ok::<_, RecordError>(Some(made.cloned().unwrap_or_else(make)))
            };
            let unavailable = || StoreError::Unavailable("the key of ids could not be read or written".to_owned());
            let stored = match change_record(&*self.shared.store, &record_key(), decide).await {
                Ok(stored) => stored.ok_or_else(unavailable)?,
                Err(RecordError::Store(error)) => return Err(error),
                Err(RecordError::Contended | RecordError::Unknown(_)) => return Err(unavailable()),
            };
            stored.key.try_into().map_err(|_| StoreError::Corrupt("the key of ids has another length".to_owned()))
        };
        self.shared.own_ids.key.get_or_try_init(find).await.copied()
    }

    fn note_foreign(&self, found: &Job, spec: &JobSpec) {
        metrics::counter!("leasehold_foreign_ids_total").increment(1);
        let of = spec.due.as_ref().map_or(spec.queue.as_str(), |due| due.schedule_id.as_str());
        let Some(jobs) = self.shared.own_ids.noted.note(of, Instant::now()) else { return };
        let due = spec.due.as_ref().map(|due| format!("{} at {}", due.schedule_id, due.due_at)).unwrap_or_default();
        let by = found.history.entries().first().map(|entry| entry.actor.to_string()).unwrap_or_default();
        let queue = found.spec.queue.as_str();
        tracing::warn!(
            job = %found.id, queue, by, wanted = spec.queue.as_str(), due, jobs,
            "another job has the id of one of the system's own, which is made under the next id"
        );
    }
}

/// A job of the system's own that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) id: JobId,
    /// Whether it was made by this submission.
    pub(crate) created: bool,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::clock::{Clock, ManualClock};
    use crate::job::ScheduleId;
    use crate::manager::ManagerConfig;
    use crate::store::Store;
    use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};

    #[test]
    fn a_further_id_has_the_time_of_its_job_and_follows_from_the_key() {
        let due_at = Timestamp::from_millis(0x0196_4f0e_52c8);
        let due = Due { schedule_id: ScheduleId::new("s").expect("an id"), due_at };
        let of_trigger = Meaning { queue: None, due: Some(due) };
        let of_delivery = Meaning { queue: None, due: None };
        let (named, timed) = (Uuid::new_v5(&Uuid::NAMESPACE_URL, b"a"), "01964f0e-52c8-8b3d-9e77-08c36b1f42a5");
        let timed = timed.parse().expect("a UUID");
        for (taken, meaning) in [(named, of_trigger), (timed, of_delivery)] {
            let taken = JobId::of_uuid(taken);
            let id = next(&[1; KEY_BYTES], &taken, &meaning);
            assert_eq!(id.as_str()[..13], *"01964f0e-52c8");
            assert_eq!(id.uuid().map(|uuid| uuid.get_version_num()), Some(8));
            assert_eq!(id, next(&[1; KEY_BYTES], &taken, &meaning));
            assert_ne!(id, next(&[2; KEY_BYTES], &taken, &meaning));
            assert_ne!(id, next(&[1; KEY_BYTES], &id, &meaning));
        }
    }
    #[tokio::test(flavor = "multi_thread")]
    async fn what_was_made_under_a_further_id_is_found_once_the_foreign_job_is_removed() {
        let place = tempfile::tempdir().expect("a directory");
        let store: Arc<dyn Store> =
            Arc::new(EmbeddedStore::open(place.path(), &EmbeddedOptions::default()).expect("the store opens"));
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
        let manager = Manager::start(store, Arc::clone(&clock), ManagerConfig::default());
        let (ours, theirs) = (Caller::system("scheduler"), Caller::system("somebody"));
        let kind = || Kind::new("k").expect("a name");
        let work = |name: &str| QueueName::new(name).expect("a name");
        let due = Due { schedule_id: ScheduleId::new("s").expect("an id"), due_at: clock.now() };
        let own = |name: &[u8], queue: &QueueName| NewJob {
            id: Some(JobId::of_uuid(Uuid::new_v5(&Uuid::NAMESPACE_URL, name))),
            ..NewJob::of(JobSpec { due: Some(Box::new(due.clone())), ..JobSpec::new(queue.clone(), kind()) })
        };
        let (trigger, action) = (own(b"trigger", &QueueName::system("leasehold.t")), own(b"action", &work("work")));
        let ids = [&trigger, &action].map(|own| own.id.clone().expect("an id"));
        for id in &ids {
            let foreign = NewJob { id: Some(id.clone()), ..NewJob::new(work("theirs"), kind()) };
            manager.submit(&theirs, vec![foreign]).await.remove(0).expect("the id is free");
        }
        let submit = async || {
            let answers = manager.submit_own(&ours, vec![trigger.clone(), action.clone()]).await;
            answers.into_iter().map(|answer| answer.expect("submitted")).collect::<Vec<Own>>()
        };
        let made = submit().await;
        assert!(made.iter().zip(&ids).all(|(own, first)| own.created && own.id != *first), "{made:?}");
        for id in &ids {
            manager.cancel(&theirs, id, None).await.expect("cancelled");
            let foreign = manager.get(id).await.expect("it is there").versioned;
            manager.remove(&[foreign]).await.remove(0).expect("removed");
        }
        let again = submit().await;
        assert_eq!(again, made.into_iter().map(|own| Own { created: false, ..own }).collect::<Vec<_>>());
    }

    #[test]
    fn of_foreign_jobs_there_is_a_line_a_minute_for_each_schedule_with_how_many_there_were() {
        let (noted, now) = (Noted::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!([noted.note("a", now), noted.note("b", now)], [Some(1), Some(1)]);
        assert_eq!([noted.note("a", at(1)), noted.note("a", at(59))], [None, None]);
        assert_eq!([noted.note("a", at(60)), noted.note("b", at(60))], [Some(3), Some(1)]);
        for number in 0..2 * TOLD_APART {
            noted.note(&number.to_string(), at(61));
        }
        assert!(noted.0.lock().len() <= TOLD_APART + 1);
        assert_eq!(noted.note("new", at(62)), None, "it is one of the others");
    }
}
