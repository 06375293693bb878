//! Submitting jobs with keys: takes unique keys ([`crate::manager::unique`]) and allots places in lines
//! ([`crate::manager::lines`]) before the jobs are created, and answers for a unique key's job that waits or runs.
//!
//! The submissions of one call go in rounds, each with one submission of each unique key, so that a later one meets the
//! job of the earlier one. Those of one ordering key keep their order: none goes before one that is left for later.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures::future::join_all;
use futures::stream::{self, StreamExt};

use super::submit::Prepared;
use super::write::JobWrite;
use crate::job::{Job, JobId, JobState, OrderingKey, Replacement, UniqueKey};
use crate::manager::Manager;
use crate::manager::lines::{Places, Wanted};
use crate::manager::request::{Caller, JobView, ManagerError, OnDuplicate, Submitted};
use crate::manager::unique::{TRIES, Taken};
use crate::store::{Sought, StoreError, Version, Versioned, WriteError};

/// A submission that waits for its round.
struct Waiting {
    /// Its place in the call, and so in its line.
    number: usize,
    ready: Prepared,
    /// How often it has begun anew.
    tries: usize,
}

/// What a round has done for a submission.
enum Step {
    Done(Result<Submitted, ManagerError>),
    /// It begins anew: the job of its unique key ended, its own creation was given up by another manager, or one before
    /// it in its line begins anew.
    Again(Prepared),
}

/// The live job of a key, as the round just before has met it.
struct Met {
    id: JobId,
    view: Option<JobView>,
}

impl Met {
    fn of(answer: &Result<Submitted, ManagerError>) -> Option<Self> {
        match answer {
            Ok(Submitted { job, .. }) if !job.versioned.job.state.name().is_final() => {
                Some(Self { id: job.versioned.job.id.clone(), view: Some(job.clone()) })
            }
            Err(ManagerError::Duplicate(id)) => Some(Self { id: id.clone(), view: None }),
            _ => None,
        }
    }

    /// Returns the answer to another submission of the key, unless more has to be known or done for it.
    fn answer(&self, ready: &Prepared) -> Option<Result<Submitted, ManagerError>> {
        // One under the id of the job itself repeats its submission.
        if ready.refusal.is_some() || ready.job.id == self.id {
            return None;
        }
        match ready.duplicate.on_duplicate {
            OnDuplicate::Refuse => Some(Err(ManagerError::Duplicate(self.id.clone()))),
            OnDuplicate::Existing => Some(Ok(Submitted { job: self.view.clone()?, created: false })),
            OnDuplicate::Replace => None,
        }
    }
}

/// How many lines places are allotted in at once.
const LINES_AT_ONCE: usize = 128;

/// Why a job is not created that was given up by another manager while later ones of its line and call were created.
const OVERTAKEN: &str = "its place in the line of its ordering key was given up, since this server stood still; later \
                         jobs of the same call were created";

/// Whether a submission may begin anew.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Perhaps,
    /// A later one of its line and call has been created.
    Never,
}

/// Returns the submissions of each line that break no rule, by their numbers.
fn by_line(prepared: &[Prepared]) -> BTreeMap<OrderingKey, Vec<usize>> {
    let mut lines: BTreeMap<OrderingKey, Vec<usize>> = BTreeMap::new();
    for (number, ready) in prepared.iter().enumerate().filter(|(_, ready)| ready.refusal.is_none()) {
        if let Some(line) = line_of(ready) {
            lines.entry(line.clone()).or_default().push(number);
        }
    }
    lines
}

/// Returns the number of the last submission of each line whose job was created.
fn last_created(
    prepared: &[Prepared],
    results: &[Option<Result<Versioned, WriteError>>],
) -> HashMap<OrderingKey, usize> {
    let created = prepared.iter().zip(results).enumerate().filter(|(_, (_, result))| matches!(result, Some(Ok(_))));
    created.filter_map(|(number, (ready, _))| Some((line_of(ready)?.clone(), number))).collect()
}

/// Returns which of the submissions go in the next round, and which later.
fn next_round(mut waiting: Vec<Waiting>) -> (Vec<Waiting>, Vec<Waiting>) {
    waiting.sort_by_key(|one| one.number);
    let (mut keys, mut left): (BTreeSet<UniqueKey>, BTreeSet<OrderingKey>) = Default::default();
    waiting.into_iter().partition(|one| {
        let line = line_of(&one.ready);
        let is_in_order = line.is_none_or(|line| !left.contains(line));
        let is_next = is_in_order && key_of(&one.ready).is_none_or(|key| keys.insert(key.clone()));
        left.extend(line.filter(|_| !is_next).cloned());
        is_next
    })
}

fn line_of(ready: &Prepared) -> Option<&OrderingKey> {
    ready.job.spec.ordering_key()
}

fn key_of(ready: &Prepared) -> Option<&UniqueKey> {
    ready.job.spec.unique()
}

impl Manager {
    /// Submits jobs of which some have keys, and returns the answers in the same order.
    pub(super) async fn submit_keyed(
        &self,
        caller: &Caller,
        prepared: Vec<Prepared>,
    ) -> Vec<Result<Submitted, ManagerError>> {
        let mut answers: Vec<Option<Result<Submitted, ManagerError>>> = prepared.iter().map(|_| None).collect();
        let mut waiting: Vec<Waiting> = Vec::with_capacity(prepared.len());
        for (number, one) in self.answer_repeated(caller, prepared).await.into_iter().enumerate() {
            match one {
                Ok(ready) => waiting.push(Waiting { number, ready, tries: 0 }),
                Err(answer) => answers[number] = Some(answer),
            }
        }
        // Each round answers the first submission of each key, or is one of its few tries.
        while !waiting.is_empty() {
            let (round, later) = next_round(std::mem::take(&mut waiting));
            let keys: BTreeSet<UniqueKey> = round.iter().filter_map(|one| key_of(&one.ready).cloned()).collect();
            let _turns = self.shared.unique.turns(&keys).await;
            let mut met: HashMap<UniqueKey, Met> = HashMap::new();
            let (places, ready): (Vec<_>, Vec<_>) =
                round.into_iter().map(|one| ((one.number, one.tries, key_of(&one.ready).cloned()), one.ready)).unzip();
            for ((number, tries, key), step) in places.into_iter().zip(self.submit_round(caller, ready).await) {
                match step {
                    Step::Done(answer) => {
                        met.extend(key.zip(Met::of(&answer)));
                        answers[number] = Some(answer);
                    }
                    Step::Again(ready) if tries < TRIES => waiting.push(Waiting { number, ready, tries: tries + 1 }),
                    Step::Again(_) => answers[number] = Some(Err(ManagerError::Contended { tries: TRIES })),
                }
            }
            for one in later {
                let known = key_of(&one.ready).and_then(|key| met.get(key));
                match known.and_then(|known| known.answer(&one.ready)) {
                    Some(answer) => answers[one.number] = Some(answer),
                    None => {
                        // Those after it come after what it does.
                        if let Some(key) = key_of(&one.ready) {
                            met.remove(key);
                        }
                        waiting.push(one);
                    }
                }
            }
        }
        let none = || Err(ManagerError::Unknown("the submission was not answered".to_owned()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(none)).collect()
    }

    /// Submits jobs of which no two have the same unique key.
    async fn submit_round(&self, caller: &Caller, round: Vec<Prepared>) -> Vec<Step> {
        let taken = join_all(round.iter().map(|ready| self.take_key_of(ready))).await;
        let mut steps: Vec<Option<Step>> = Vec::with_capacity(round.len());
        let (mut places, mut prepared, mut held) = (Vec::new(), Vec::new(), Vec::new());
        // The lines of submissions that begin anew, before which no later ones go.
        let mut left: BTreeSet<OrderingKey> = BTreeSet::new();
        for (place, (ready, taken)) in round.into_iter().zip(taken).enumerate() {
            let line = line_of(&ready).cloned();
            steps.push(match taken {
                Err(error) => Some(Step::Done(Err(error))),
                Ok(Some(Taken::ByOther(live))) => Some(self.answer_duplicate(caller, ready, live).await),
                Ok(_) if line.as_ref().is_some_and(|line| left.contains(line)) => Some(Step::Again(ready)),
                Ok(taken) => {
                    places.push(place);
                    held.push((Arc::clone(&ready.job), taken));
                    prepared.push(ready);
                    None
                }
            });
            if let Some(Some(Step::Again(_))) = steps.last() {
                left.extend(line);
            }
        }
        let lines = by_line(&prepared);
        // After those at unique keys, so that no two calls wait for each other.
        let _turns = self.shared.lines.turns.turns(lines.keys()).await;
        let allotted = self.allot_places(lines, &mut prepared).await;
        // It may have taken long, and a job that is claimed with its creation has its lease from now on.
        let results = self.create(&mut prepared, self.shared.clock.now()).await;
        self.end_allotting(allotted, &results).await;
        let created = last_created(&prepared, &results);
        let written = places.into_iter().zip(held).zip(prepared.into_iter().zip(results));
        for (number, ((place, (job, taken)), (ready, result))) in written.enumerate() {
            let version = taken.and_then(|taken| if let Taken::Held(version) = taken { Some(version) } else { None });
            let is_overtaken =
                line_of(&ready).is_some_and(|line| created.get(line).is_some_and(|created| *created > number));
            let again = if is_overtaken { Again::Never } else { Again::Perhaps };
            steps[place] = Some(self.step_after(caller, (job, version), (ready, again), result).await);
        }
        let none = || Step::Done(Err(ManagerError::Unknown("the submission was not answered".to_owned())));
        steps.into_iter().map(|step| step.unwrap_or_else(none)).collect()
    }

    /// Answers those submissions with keys that repeat one under a client's id or key, since what a submission
    /// has made comes before what holds its key.
    async fn answer_repeated(
        &self,
        caller: &Caller,
        prepared: Vec<Prepared>,
    ) -> Vec<Result<Prepared, Result<Submitted, ManagerError>>> {
        let may_repeat = |ready: &Prepared| !ready.own_id && ready.refusal.is_none() && ready.job.spec.is_keyed();
        let sought: Vec<Sought<'_>> =
            prepared.iter().filter(|ready| may_repeat(ready)).map(|ready| sought(&ready.job)).collect();
        if sought.is_empty() {
            return prepared.into_iter().map(Ok).collect();
        }
        let mut found = self.shared.store.look_up(&sought).await.into_iter();
        let mut answered = Vec::with_capacity(prepared.len());
        for ready in prepared {
            if !may_repeat(&ready) {
                answered.push(Ok(ready));
                continue;
            }
            answered.push(match found.next().unwrap_or(Ok(None)) {
                Ok(Some(stands)) if stands.job.is_never_created() => Ok(self.over(caller, ready, stands)),
                Ok(Some(existing)) => Err(self.answer_existing(ready, existing).await),
                Ok(None) => Ok(ready),
                Err(error) => Err(Err(ManagerError::Store(error))),
            });
        }
        answered
    }

    /// Returns the submission as one that is written over what stands under its id.
    fn over(&self, caller: &Caller, mut ready: Prepared, stands: Versioned) -> Prepared {
        ready.job = Arc::new(stands.job.submitted_again(&ready.job, &caller.name, self.shared.clock.now()));
        ready.over = Some(stands);
        ready
    }

    /// Takes the unique key of a submission, if it has one and breaks no rule.
    async fn take_key_of(&self, ready: &Prepared) -> Result<Option<Taken>, ManagerError> {
        match key_of(ready).filter(|_| ready.refusal.is_none()) {
            Some(key) => self.take_key(key, &ready.job, ready.over.is_some()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Allots places in lines to these submissions, which are given by their numbers. One that gets none is refused.
    async fn allot_places(
        &self,
        lines: BTreeMap<OrderingKey, Vec<usize>>,
        prepared: &mut [Prepared],
    ) -> Vec<(Places, Vec<usize>)> {
        let all: &[Prepared] = prepared;
        let allot = |(line, numbers): (OrderingKey, Vec<usize>)| async move {
            let wanted = numbers.iter().map(|number| &all[*number]);
            let wanted: Vec<Wanted<'_>> =
                wanted.map(|ready| Wanted { job: &ready.job, returns: ready.over.is_some() }).collect();
            let places = self.allot(&line, &wanted).await;
            (places, numbers)
        };
        let answers: Vec<_> = stream::iter(lines).map(allot).buffered(LINES_AT_ONCE).collect().await;
        let mut allotted = Vec::with_capacity(answers.len());
        for (places, numbers) in answers {
            match places {
                Ok(places) => {
                    for (number, seq) in numbers.iter().zip(places.first..) {
                        let job = &mut prepared[*number].job;
                        let spec = Arc::new(job.spec.placed(seq, places.first));
                        Arc::make_mut(job).spec = spec;
                    }
                    allotted.push((places, numbers));
                }
                Err(error) => numbers.iter().for_each(|number| prepared[*number].refusal = Some(error.clone())),
            }
        }
        allotted
    }

    /// Takes note of the places whose jobs were all written or refused.
    async fn end_allotting(
        &self,
        allotted: Vec<(Places, Vec<usize>)>,
        results: &[Option<Result<Versioned, WriteError>>],
    ) {
        let is_decided = |number: &usize| !matches!(results[*number], Some(Err(WriteError::Unknown(_))) | None);
        let settled = allotted.into_iter().filter(|(_, numbers)| numbers.iter().all(is_decided));
        let settled = stream::iter(settled.map(|(places, _)| self.places_are_settled(places)));
        settled.buffered(LINES_AT_ONCE).collect::<()>().await;
    }

    /// Returns what becomes of a submission after the write of its job, which was this, and the record of its key.
    async fn step_after(
        &self,
        caller: &Caller,
        (job, record): (Arc<Job>, Option<Version>),
        (mut ready, again): (Prepared, Again),
        result: Option<Result<Versioned, WriteError>>,
    ) -> Step {
        let is_not_written = matches!(result, None | Some(Err(WriteError::Refused(_))));
        if let Some((key, record)) = job.spec.unique().zip(record)
            // Nobody else can have created a job under an id of this call's own.
            && is_not_written
            && ready.own_id
        {
            self.give_key_back(key, record).await;
        }
        match result {
            Some(Err(WriteError::Conflict(Some(stands)))) if job.spec.is_keyed() && stands.job.is_never_created() => {
                // Another manager thought that this one was dead. The job may have been claimed before it was written.
                ready.job = job;
                if again == Again::Never {
                    return Step::Done(Err(ManagerError::Store(StoreError::Unavailable(OVERTAKEN.to_owned()))));
                }
                if ready.own_id {
                    ready.job = Arc::new(Job { id: JobId::generate(), ..Job::clone(&ready.job) });
                    return Step::Again(ready);
                }
                Step::Again(self.over(caller, ready, stands))
            }
            result => Step::Done(self.answer(ready, result).await),
        }
    }

    /// Answers a submission whose key this live job holds.
    async fn answer_duplicate(&self, caller: &Caller, ready: Prepared, live: Versioned) -> Step {
        self.shared.work.known.learn(&live);
        match ready.duplicate.on_duplicate {
            OnDuplicate::Refuse => Step::Done(Err(ManagerError::Duplicate(live.job.id.clone()))),
            OnDuplicate::Existing => Step::Done(self.answer_live(live).await),
            OnDuplicate::Replace => match self.check_own(caller, &live.job).await {
                Ok(()) => self.replace_waiting(caller, ready, live).await,
                Err(error) => Step::Done(Err(error)),
            },
        }
    }

    async fn answer_live(&self, live: Versioned) -> Result<Submitted, ManagerError> {
        let id = live.job.id.clone();
        let job = self.view(vec![live]).await?.pop().ok_or(ManagerError::NotFound(id))?;
        Ok(Submitted { job, created: false })
    }

    /// Gives the payload and the times of a submission to the job of its key while that waits.
    async fn replace_waiting(&self, caller: &Caller, ready: Prepared, mut live: Versioned) -> Step {
        let (run_at, expires_at) = ready.times;
        let longest_wait = ready.duplicate.longest_wait;
        let with = Replacement { payload: ready.job.payload.clone(), run_at, expires_at, longest_wait };
        for _ in 0..TRIES {
            let Some(replaced) = live.job.replaced(&with, self.shared.clock.now()) else {
                let is_running = live.job.state.name() == JobState::Running;
                return if is_running { Step::Done(self.answer_live(live).await) } else { Step::Again(ready) };
            };
            if replaced.expires_at.is_some_and(|deadline| deadline <= replaced.run_at) {
                let message = "is not before the `expires_at` of the job that waits".to_owned();
                return Step::Done(Err(ManagerError::Invalid { field: "run_at", message }));
            }
            let write = JobWrite::replace(live, Arc::new(replaced), ready.body.iter().cloned().collect());
            match self.write_one(write).await {
                Ok(versioned) => {
                    let job = JobView { versioned, payload: ready.payload, result: None };
                    return Step::Done(Ok(Submitted { job, created: false }));
                }
                Err(WriteError::Conflict(Some(current))) => live = current,
                Err(WriteError::Conflict(None)) => return Step::Again(ready),
                Err(WriteError::Refused(error)) => return Step::Done(Err(ManagerError::Store(error))),
                Err(WriteError::Unknown(why)) => return Step::Done(Err(ManagerError::Unknown(why))),
            }
            // It may have been removed, and another one submitted under its id.
            if let Err(error) = self.check_own(caller, &live.job).await {
                return Step::Done(Err(error));
            }
        }
        Step::Done(Err(ManagerError::Contended { tries: TRIES }))
    }
}

/// Returns the job that may be there under the id of a submission. One of a schedule has not ended before it was due.
fn sought(job: &Job) -> Sought<'_> {
    Sought { id: &job.id, since: job.spec.due.as_ref().map(|due| due.due_at) }
}
