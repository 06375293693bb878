//! Asking for a backfill.

use std::time::Duration;

use uuid::Uuid;

use super::order::{KIND, MAX_DUE_TIMES, Order};
use crate::clock::Timestamp;
use crate::job::{Actor, IdempotencyKey, JobId, JobSpec, Json, Kind, QueueName, RetryPolicy, ScheduleId};
use crate::manager::own::{Meaning, Own, SoughtOwn};
use crate::manager::{Caller, ManagerError, NewJob};
use crate::schedule::{Fault, HORIZON, Timetable};
use crate::scheduler::refusal::{ScheduleError, check_own};
use crate::scheduler::schedules::{Schedules, timetable};
use crate::scheduler::trigger;
use crate::store::Versioned;

/// The label that names the schedule of a backfill: it is for many due times, and so has no `due_at`.
const SCHEDULE_LABEL: &str = "schedule_id";

/// The namespace of the ids of backfills (RFC 9562, section 5.5).
const NAMESPACE: Uuid = Uuid::from_u128(0xd2c8_7f35_0be1_4f96_a4c3_68f0_3b17_95ed);

/// How many backfills of the same due times are kept side by side; of more, the one that ended first gives way.
const NUMBERED: usize = 16;
/// A backfill goes on elsewhere when its process ends, and tries again while the store does not answer.
const MAX_ATTEMPTS: u32 = 1_000;
/// How long it waits at the most before it tries again.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A backfill that is asked for.
#[derive(Clone, Debug)]
pub struct NewBackfill {
    /// The moment from which on due times are run.
    pub from: Timestamp,
    /// The moment up to which they are.
    pub to: Timestamp,
    /// How many due times may be under way at once; at least one.
    pub max_concurrent: usize,
    /// The caller's key, under which the request can be repeated.
    pub idempotency_key: Option<IdempotencyKey>,
}

/// A backfill that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedBackfill {
    /// The id of its job.
    pub id: JobId,
    /// How many due times it has.
    pub due: u64,
    /// Whether this request has started it. Otherwise it was under way, or started under the same key.
    pub is_new: bool,
}

impl Schedules {
    /// Starts a backfill: runs the due times of a schedule between two moments that were not performed.
    ///
    /// The same due times are not backfilled twice at once: while that is under way, the same request finds it. With a
    /// key it is found whenever the request is repeated.
    ///
    /// # Errors
    /// [`ScheduleError`] says why it is not started.
    pub async fn backfill(
        &self,
        caller: &Caller,
        id: &ScheduleId,
        new: NewBackfill,
    ) -> Result<StartedBackfill, ScheduleError> {
        let schedule = self.get(id).await?.schedule;
        check_own(caller, &schedule)?;
        let (from, to, max_concurrent) = (new.from, new.to, new.max_concurrent);
        let due = count(&timetable(&schedule)?, (from, to), self.clock.now());
        let due = due.map_err(|fault| ScheduleError::Invalid(vec![fault]))?;
        let (created_at, changed_at) = (schedule.created_at, schedule.updated_at);
        let order = Order { schedule_id: id.clone(), created_at, changed_at, from, to, max_concurrent, due };
        let unwritable = |error: serde_json::Error| ManagerError::Unknown(error.to_string());
        let job = NewJob {
            payload: Some(Json::of(&order).map_err(unwritable)?),
            ..NewJob::of(JobSpec {
                owner: schedule.definition.owner.clone(),
                labels: [(SCHEDULE_LABEL.to_owned(), id.to_string())].into(),
                max_attempts: MAX_ATTEMPTS,
                retry: RetryPolicy { max: LONGEST_WAIT, ..RetryPolicy::default() },
                ..JobSpec::new(QueueName::system(trigger::QUEUE), Kind::system(KIND))
            })
        };
        match &new.idempotency_key {
            Some(key) => self.start_under_key(caller, id_of_key(&caller.name, id, key), (order, job)).await,
            None => self.start_numbered(caller, &order, job).await,
        }
    }

    /// Starts a backfill under an id that a key gives, or finds the one that was started under it.
    async fn start_under_key(
        &self,
        caller: &Caller,
        id: JobId,
        (order, job): (Order, NewJob),
    ) -> Result<StartedBackfill, ScheduleError> {
        let mut found = self.found(std::slice::from_ref(&id)).await?.pop().flatten();
        if found.is_none() {
            let own = self.submit_backfill(caller, &id, job).await?;
            if own.created {
                return Ok(StartedBackfill { id: own.id, due: order.due, is_new: true });
            }
            // Another caller was first.
            found = self.store.get(&[own.id]).await?.pop().flatten();
        }
        let Some(found) = found else { return Err(ManagerError::SubmissionDiffers(id).into()) };
        let id = found.job.id.clone();
        let payload = self.manager.view(vec![found]).await?.pop().and_then(|view| view.payload);
        let found = payload.and_then(|payload| serde_json::from_str::<Order>(payload.as_str()).ok());
        if found.is_some_and(|found| found.is_asked_alike(&order)) {
            Ok(StartedBackfill { id, due: order.due, is_new: false })
        } else {
            Err(ManagerError::SubmissionDiffers(id).into())
        }
    }

    /// Starts a backfill under the first free number, or finds one of the same due times that is under way.
    async fn start_numbered(
        &self,
        caller: &Caller,
        order: &Order,
        job: NewJob,
    ) -> Result<StartedBackfill, ScheduleError> {
        let ids: Vec<JobId> = (0..NUMBERED).map(|number| numbered_id(order, number)).collect();
        let found = self.found(&ids).await?;
        let started = |id: JobId, is_new| StartedBackfill { id, due: order.due, is_new };
        let id = match choose(&ids, &found) {
            Choice::UnderWay(found) => return Ok(started(found.job.id.clone(), false)),
            Choice::Free(id) => id,
            Choice::InPlaceOf(id, ended) => {
                for removed in self.manager.remove(std::slice::from_ref(ended)).await {
                    removed?;
                }
                id
            }
        };
        // Where another caller was first, who wants another number at once, that is the one.
        let own = self.submit_backfill(caller, id, job).await?;
        Ok(started(own.id, own.created))
    }

    /// Finds the backfills of these first ids. A job of somebody else under one of them is passed over.
    async fn found(&self, ids: &[JobId]) -> Result<Vec<Option<Versioned>>, ScheduleError> {
        let queue = Some((QueueName::system(trigger::QUEUE), Kind::system(KIND)));
        let meaning = Meaning { queue, due: None };
        let sought = ids.iter().map(|id| SoughtOwn { id: id.clone(), since: None, meaning: meaning.clone() });
        Ok(self.manager.find_own(&sought.collect::<Vec<_>>()).await?)
    }

    /// Submits a backfill under its first id, or the one after it that nobody else's job has.
    async fn submit_backfill(&self, caller: &Caller, id: &JobId, job: NewJob) -> Result<Own, ScheduleError> {
        let job = NewJob { id: Some(id.clone()), ..job };
        let answer = self.manager.submit_own(caller, vec![job]).await.pop();
        Ok(answer.unwrap_or_else(|| Err(ManagerError::Unknown("the manager gave no answer".to_owned())))?)
    }
}

/// Returns how many due times are from `from` to `to`, in bounded time.
fn count(timetable: &Timetable, (from, to): (Timestamp, Timestamp), now: Timestamp) -> Result<u64, Fault> {
    let fault = |field: &str, message: String| Err(Fault { field: field.to_owned(), message });
    if from >= to {
        return fault("to", "is not after `from`".to_owned());
    }
    if to > now {
        return fault("to", "is in the future: due times that are still to come run by themselves".to_owned());
    }
    if to.since(from) > HORIZON {
        return fault("from", "is more than a hundred years before `to`".to_owned());
    }
    let due = timetable.due_after(Timestamp::from_millis(from.as_millis() - 1)).take_while(|due| *due <= to);
    let (mut count, mut last) = (0, from);
    for due in due.take(MAX_DUE_TIMES + 1) {
        if count == MAX_DUE_TIMES as u64 {
            let message =
                format!("leaves more than {MAX_DUE_TIMES} due times since `from`; the last possible is {last}");
            return fault("to", message);
        }
        (count, last) = (count + 1, due);
    }
    if count == 0 { fault("from", "is not followed by any due time up to `to`".to_owned()) } else { Ok(count) }
}

/// The id for a backfill, by what is stored of the same due times.
#[derive(Debug, PartialEq)]
enum Choice<'a> {
    /// It is under way.
    UnderWay(&'a Versioned),
    /// It may be started under this id.
    Free(&'a JobId),
    /// It may be started under this id, once this one is removed, which has ended.
    InPlaceOf(&'a JobId, &'a Versioned),
}

/// Chooses by the backfills that were found for each of the first ids.
fn choose<'a>(ids: &'a [JobId], found: &'a [Option<Versioned>]) -> Choice<'a> {
    if let Some(found) = found.iter().flatten().find(|found| !found.job.state.name().is_final()) {
        return Choice::UnderWay(found);
    }
    let both = || ids.iter().zip(found);
    let free = both().find(|(_, found)| found.is_none()).map(|(id, _)| Choice::Free(id));
    let ended = both().filter_map(|(id, found)| Some((id, found.as_ref()?)));
    let first_ended = ended.min_by_key(|(_, found)| found.job.updated_at);
    free.or_else(|| first_ended.map(|(id, ended)| Choice::InPlaceOf(id, ended))).unwrap_or(Choice::Free(&ids[0]))
}

fn id_of_key(caller: &Actor, schedule: &ScheduleId, key: &IdempotencyKey) -> JobId {
    derived(&format!("key\u{0}{schedule}\u{0}{caller}\u{0}{key}"))
}

fn numbered_id(order: &Order, number: usize) -> JobId {
    let Order { schedule_id, created_at, changed_at, from, to, .. } = order;
    let times = [created_at, changed_at, from, to].map(|time| time.as_millis().to_string()).join("\u{0}");
    derived(&format!("range\u{0}{schedule_id}\u{0}{times}\u{0}{number}"))
}

fn derived(name: &str) -> JobId {
    JobId::of_uuid(Uuid::new_v5(&NAMESPACE, name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{Clock, ManualClock};
    use crate::executor::TargetPolicy;
    use crate::job::{Actor, Body, Job};
    use crate::manager::{Manager, ManagerConfig};
    use crate::schedule::{Definition, PeriodText, Schedule};
    use crate::scheduler::NewSchedule;
    use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};
    use crate::store::{Place, Store, Version};

    const NOW: i64 = 1_900_000_000_000;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(NOW + millis)
    }

    fn counted(period: PeriodText, from: i64, to: i64) -> Result<u64, (String, String)> {
        let definition: Definition = serde_json::from_value(serde_json::json!({
            "action": {"type": "job", "job": {"queue": "q", "kind": "k"}}, "period": period,
            "margin_of_error_ms": 60_000,
        }))
        .expect("a definition");
        let id = ScheduleId::new("s").expect("an id");
        let timetable = definition.timetable(&id, &mut Vec::new()).expect("a timetable");
        count(&timetable, (at(from), at(to)), at(0)).map_err(|fault| (fault.field, fault.message))
    }

    fn every_second() -> PeriodText {
        PeriodText { every_ms: Some(1_000), ..PeriodText::default() }
    }

    #[test]
    fn due_times_are_counted_with_both_ends_and_up_to_the_most_that_may_be() {
        assert_eq!(counted(every_second(), -10_000, 0), Ok(11));
        assert_eq!(counted(every_second(), -9_999, -1), Ok(9));
        assert_eq!(counted(every_second(), -99_999_000, 0), Ok(100_000));
        let (field, message) = counted(every_second(), -100_000_000, 0).expect_err("too many");
        assert_eq!(field, "to");
        assert!(message.contains("100000") && message.contains(&at(-1_000).to_rfc3339()), "{message}");
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_field() {
        let rare = || PeriodText { cron: Some("0 0 29 2 *".to_owned()), ..PeriodText::default() };
        for (period, from, to, expected) in [
            (every_second(), 0, 0, "to"),
            (every_second(), -1, 1, "to"),
            (every_second(), -200 * 366 * 86_400_000, 0, "from"),
            (rare(), -86_400_000, 0, "from"),
        ] {
            assert_eq!(counted(period, from, to).expect_err("it is refused").0, expected, "{from} to {to}");
        }
    }

    fn stored(id: &JobId, updated_at: i64, is_final: bool) -> Option<Versioned> {
        let spec = JobSpec::new(QueueName::system(trigger::QUEUE), Kind::system(KIND)).shared();
        let (then, actor) = (at(updated_at), Actor::system("test"));
        let mut job = Job::submit(id.clone(), spec, Body::Empty, (then, None), &actor, then);
        if is_final && let Ok(crate::job::Change::To(cancelled)) = job.cancel(&actor, None, then) {
            job = *cancelled;
        }
        let version = Version { place: Place::Main, primary_term: 1, seq_no: 1 };
        Some(Versioned { job: Arc::new(job), version })
    }

    #[test]
    fn one_that_is_under_way_is_found_and_else_there_is_an_id_for_another() {
        let ids: Vec<JobId> = ["a", "b", "c"].map(|id| JobId::new(id).expect("an id")).into();
        let [a, b, c] = &ids[..] else { panic!("three ids") };
        let ended = |id: &JobId, at| stored(id, at, true);
        for (found, expected) in
            [(vec![None, None, None], Choice::Free(a)), (vec![ended(a, 1), None, ended(c, 1)], Choice::Free(b))]
        {
            assert_eq!(choose(&ids, &found), expected);
        }
        let one = [None, ended(b, 1), stored(c, 1, false)];
        assert!(matches!(choose(&ids, &one), Choice::UnderWay(found) if found.job.id == *c));
        let full = [ended(a, 2), ended(b, 1), ended(c, 3)];
        assert!(matches!(choose(&ids, &full), Choice::InPlaceOf(id, found) if id == b && found.job.id == *b));
    }
    fn asked(idempotency_key: Option<&str>, to: i64) -> NewBackfill {
        let idempotency_key = idempotency_key.map(|key| key.parse().expect("a key"));
        NewBackfill { from: at(-10_000), to: at(to), max_concurrent: 1, idempotency_key }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn jobs_of_somebody_else_under_the_ids_of_backfills_neither_block_them_nor_stand_for_them() {
        let place = tempfile::tempdir().expect("a directory");
        let store: Arc<dyn Store> =
            Arc::new(EmbeddedStore::open(place.path(), &EmbeddedOptions::default()).expect("the store opens"));
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(at(0)));
        let manager = Manager::start(Arc::clone(&store), Arc::clone(&clock), ManagerConfig::default());
        let policy = TargetPolicy { allow_private: false, allow: Vec::new() };
        let schedules = Schedules::new(manager.clone(), store, clock, policy);
        let definition = serde_json::from_value(serde_json::json!({
            "action": {"type": "job", "job": {"queue": "q", "kind": "k"}}, "period": {"every_ms": 1_000},
            "margin_of_error_ms": 60_000,
        }));
        let id = ScheduleId::new("s").expect("an id");
        let new = NewSchedule { id: id.clone(), definition: definition.expect("a definition"), paused: true };
        let caller = Caller::system("ann");
        let (stored, _) = schedules.put(&caller, new, true, None).await.expect("stored");
        let Schedule { created_at, updated_at: changed_at, .. } = *stored.schedule;
        let (from, to, max_concurrent, due) = (at(-10_000), at(-1), 1, 10);
        let order = Order { schedule_id: id.clone(), created_at, changed_at, from, to, max_concurrent, due };
        let key = "mine".parse().expect("a key");
        let of_key = id_of_key(&caller.name, &id, &key);
        let ids: Vec<JobId> = (0..NUMBERED).map(|number| numbered_id(&order, number)).chain([of_key]).collect();
        let foreign = |id: &JobId| NewJob {
            id: Some(id.clone()),
            payload: Json::of(&order).ok(),
            ..NewJob::new(QueueName::new("theirs").expect("a name"), Kind::new("k").expect("a name"))
        };
        for submitted in manager.submit(&Caller::system("somebody"), ids.iter().map(foreign).collect()).await {
            submitted.expect("the id is free");
        }

        let ask = async |key, to| schedules.backfill(&caller, &id, asked(key, to)).await;
        for key in [None, Some("mine")] {
            let started = ask(key, -1).await.expect("started");
            assert!(started.is_new && !ids.contains(&started.id), "{started:?}");
            let again = ask(key, -1).await.expect("found");
            assert_eq!(again, StartedBackfill { is_new: false, ..started }, "{key:?}");
        }
        let differs = ask(Some("mine"), -2_000).await;
        assert!(matches!(differs, Err(ScheduleError::Manager(ManagerError::SubmissionDiffers(_)))), "{differs:?}");
    }
}
