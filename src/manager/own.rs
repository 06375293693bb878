//! Jobs of the system's own under ids that follow from what they are for, such as the triggers of schedules.
//!
//! Such an id makes one job of many submissions. But anybody can work it out, and submit another job under it. So
//! whoever finds a job under such an id looks whether it is the one that is meant. Where it is not, the id that follows
//! from the taken one is meant, which nobody works out without a key of the installation.

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
use crate::job::{Due, Job, JobId, JobSpec, QueueName, RecordName};
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

/// The key of the installation that further ids follow from, once it was needed. It is made once, and its record is a
/// setting by its kind: settings are encrypted where there are keys for that, and earlier versions know no further
/// kinds.
#[derive(Default)]
pub(super) struct IdKey {
    key: OnceCell<[u8; KEY_BYTES]>,
    /// When it was last found not to be made.
    looked_at: Mutex<Option<Instant>>,
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
    /// The system's queue that it is in; `None` for a job in a queue of somebody else.
    pub(crate) queue: Option<QueueName>,
    /// The due time that it is for.
    pub(crate) due: Option<Due>,
}

impl Meaning {
    fn of(spec: &JobSpec) -> Self {
        Self { queue: spec.queue.is_internal().then(|| spec.queue.clone()), due: spec.due.as_deref().cloned() }
    }

    /// Returns whether a job that was found is the one that is meant.
    fn is_of(&self, found: &Job) -> bool {
        (self.queue.is_some() || self.due.is_some()) && *self == Self::of(&found.spec)
    }
}

/// A job of the system's own that is looked for.
pub(crate) struct SoughtOwn {
    /// Its first id.
    pub(crate) id: JobId,
    /// A time before which it has not ended.
    pub(crate) since: Timestamp,
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
        let mut open: Vec<(usize, NewJob)> = jobs.into_iter().enumerate().collect();
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
                        note_foreign(&found.job, &job.spec);
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

    /// Finds jobs of the system's own, by their first id and what they are. A foreign job under one of their ids is
    /// passed over, and so is one that was removed since.
    pub(crate) async fn find_own(&self, sought: &[SoughtOwn]) -> Result<Vec<Option<Versioned>>, StoreError> {
        let mut own: Vec<Option<Versioned>> = sought.iter().map(|_| None).collect();
        let mut open: Vec<(usize, JobId)> = sought.iter().map(|own| own.id.clone()).enumerate().collect();
        for round in 0..IDS {
            if open.is_empty() {
                break;
            }
            let look = open.iter().map(|(place, id)| Sought { id, since: Some(sought[*place].since) });
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
        let IdKey { key, looked_at } = &self.shared.own_ids;
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
}

/// A job of the system's own that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) id: JobId,
    /// Whether it was made by this submission.
    pub(crate) created: bool,
}

fn note_foreign(found: &Job, spec: &JobSpec) {
    metrics::counter!("leasehold_foreign_ids_total").increment(1);
    let due = spec.due.as_ref().map(|due| format!("{} at {}", due.schedule_id, due.due_at)).unwrap_or_default();
    let by = found.history.entries().first().map(|entry| entry.actor.to_string()).unwrap_or_default();
    let queue = found.spec.queue.as_str();
    tracing::warn!(
        job = %found.id, queue, by, wanted = spec.queue.as_str(), due,
        "another job has the id of one of the system's own, which is made under the next id"
    );
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::job::ScheduleId;

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
}
