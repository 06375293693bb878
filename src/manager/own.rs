//! Jobs of the system's own under ids that follow from what they are for, such as the triggers of schedules.
//!
//! Such an id makes one job of many submissions. But anybody can work it out, and submit another job under it. So
//! whoever finds a job under such an id looks whether it is the one that is meant. Where it is not, the id that follows
//! from the taken one is meant, and so on.

use uuid::Uuid;

use super::request::{Caller, NewJob};
use super::{Manager, ManagerError};
use crate::clock::Timestamp;
use crate::job::{Due, Job, JobId, JobSpec, QueueName};
use crate::store::{Sought, Store, StoreError, Versioned};

/// The namespace of ids that follow from taken ones (RFC 9562, section 5.5).
const NEXT: Uuid = Uuid::from_u128(0xd1a6_4f0e_52c8_4b3d_9e77_08c3_6b1f_42a5);
/// How many ids are tried. Whoever takes them all keeps the job from being made, and the log says so.
const IDS: usize = 8;
/// The bytes of an id that tell a time (UUIDv8).
const TIME: usize = 6;

/// Returns the id under which a job is meant whose id a foreign one has. A time at its beginning stays.
fn next(taken: &JobId) -> JobId {
    let name = Uuid::new_v5(&NEXT, taken.as_str().as_bytes());
    let time = taken.uuid().filter(|taken| taken.get_version_num() == 8);
    let Some(time) = time else { return JobId::of_uuid(name) };
    let mut bytes = name.into_bytes();
    bytes[..TIME].copy_from_slice(&time.as_bytes()[..TIME]);
    JobId::of_uuid(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

/// What a job of the system's own is. Nobody else submits into the system's queues, or says which due time of a schedule
/// a job is for.
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
    /// Submits jobs of the system's own, each under its id or the first one after that which no foreign job has. Returns
    /// the id of each, whether it was made now or before, in the same order.
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
                        answers[place] = Some(Err(ManagerError::SubmissionDiffers(id.clone())));
                        note_foreign(&found.job, &job.spec);
                        open.push((place, NewJob { id: Some(next(&id)), ..job }));
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
}

/// A job of the system's own that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) id: JobId,
    /// Whether it was made by this submission.
    pub(crate) created: bool,
}

/// Finds jobs of the system's own, by their first id and what they are. A foreign job under one of their ids is passed
/// over.
pub(crate) async fn find_own(store: &dyn Store, sought: &[SoughtOwn]) -> Result<Vec<Option<Versioned>>, StoreError> {
    let ids: Vec<Sought<'_>> = sought.iter().map(|own| Sought { id: &own.id, since: Some(own.since) }).collect();
    let found = store.look_up(&ids).await;
    let mut found: Vec<Option<Versioned>> = found.into_iter().collect::<Result<_, _>>()?;
    for (found, own) in found.iter_mut().zip(sought) {
        for _ in 1..IDS {
            let Some(foreign) = found.take_if(|found| !own.meaning.is_of(&found.job)) else { break };
            let id = next(&foreign.job.id);
            let look = store.look_up(&[Sought { id: &id, since: Some(own.since) }]).await;
            *found = look.into_iter().next().transpose()?.flatten();
        }
        found.take_if(|found| !own.meaning.is_of(&found.job));
    }
    Ok(found)
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
    use super::*;

    #[test]
    fn an_id_that_follows_from_a_taken_one_is_another_of_the_same_time() {
        let mut id = JobId::of_uuid(Uuid::from_u128(0x0196_4f0e_52c8_8b3d_9e77_08c3_6b1f_42a5));
        let first = id.clone();
        for _ in 0..IDS {
            let other = next(&id);
            assert_ne!(other, id);
            assert_eq!(other.as_str()[..13], first.as_str()[..13], "it begins with the time");
            assert_eq!(other.uuid().map(|uuid| uuid.get_version_num()), Some(8));
            id = other;
        }
        let named = JobId::of_uuid(Uuid::new_v5(&NEXT, b"a"));
        assert_eq!(next(&named).uuid().map(|uuid| uuid.get_version_num()), Some(5));
    }
}
