//! Histories of writes that are made up.

use super::*;
use crate::job::{Actor, Body, Claim, JobError, JobSpec, Json, NewBody, RecordName, RequestId, State, Then, WorkerId};
use crate::schedule::{Action, ActionType, Course, Definition, Overlap, PeriodText, Schedule, SchedulePause};

/// How many schedules there may be: so few that lists often change.
const SCHEDULES: u32 = 40;

/// Who schedules belong to, if to anybody. One name begins with the other.
pub(super) const OWNERS: [&str; 2] = ["team", "team-a"];

/// A history that is made up as it goes.
pub(super) struct History {
    pub(super) random: StdRng,
    pub(super) now: Timestamp,
    /// The jobs and records as they were when they were last written, some of them by a write that was refused.
    jobs: BTreeMap<JobId, Versioned>,
    records: BTreeMap<RecordKey, Version>,
    schedules: BTreeMap<ScheduleId, StoredSchedule>,
}

impl History {
    pub(super) fn new(seed: u64) -> Self {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let random = StdRng::seed_from_u64(seed);
        Self { random, now, jobs: BTreeMap::new(), records: BTreeMap::new(), schedules: BTreeMap::new() }
    }

    /// Returns another history that begins as this one does so far.
    pub(super) fn branch(&mut self) -> Self {
        let random = StdRng::seed_from_u64(self.random.random());
        let (jobs, records, schedules) = (self.jobs.clone(), self.records.clone(), self.schedules.clone());
        Self { random, now: self.now, jobs, records, schedules }
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    pub(super) fn batch(&mut self) -> Vec<Command> {
        let count = self.random.random_range(1..=WRITES_IN_A_BATCH);
        (0..count).map(|_| self.command()).collect()
    }

    fn command(&mut self) -> Command {
        self.now = self.now.plus(Duration::from_millis(self.random.random_range(0..50)));
        if self.chance(3) {
            return Command::Record(self.record());
        }
        if self.chance(5) {
            return Command::Schedule(self.schedule());
        }
        if self.jobs.is_empty() || self.chance(20) {
            return Command::Job(self.creation());
        }
        let id = self.id();
        let next = self.jobs.range(id..).next().or_else(|| self.jobs.first_key_value());
        let head = next.expect("a job").1.clone();
        let mut expected = head.version;
        if self.chance(2) {
            expected.seq_no += 1;
        }
        if self.chance(if head.job.is_settled() { 30 } else { 2 }) {
            return Command::Job(Write::Remove { job: head.job, expected });
        }
        let (job, bodies) = self.next(&head.job);
        Command::Job(Write::Replace { job: Arc::new(job), expected, bodies })
    }

    fn id(&mut self) -> JobId {
        let number: u32 = self.random.random_range(0..IDS);
        match number % 2 {
            0 => JobId::new(format!("job-{number}")).expect("an id"),
            _ => JobId::of_uuid(uuid::Uuid::from_u128(u128::from(number) << 64)),
        }
    }

    pub(super) fn creation(&mut self) -> Write {
        let id = self.id();
        let queue = ["reports", "mails"][usize::from(self.chance(50))];
        let spec = JobSpec::new(queue.parse().expect("a name"), "kind".parse().expect("a name"));
        let (payload, stored) = self.body();
        let run_at = self.now;
        let job = Job::submit(id, Arc::new(spec), payload, (run_at, None), &Actor::system("test"), self.now);
        Write::Create { job: Arc::new(job), bodies: stored.into_iter().collect() }
    }

    fn body(&mut self) -> (Body, Option<NewBody>) {
        let text = "x".repeat(self.random.random_range(0..40));
        let json = Json::of(&text).expect("JSON");
        let most = if self.chance(50) { 20 } else { 1_000 };
        let (body, new) = Body::place(Some(json), most);
        // A made up history is the same again, with the same ids of bodies.
        let id = crate::job::BodyId(uuid::Uuid::from_u128(self.random.random()));
        match (body, new) {
            (Body::Stored(reference), Some(new)) => {
                let reference = crate::job::BodyRef { id, ..reference };
                (Body::Stored(reference), Some(NewBody { reference, ..new }))
            }
            (body, _) => (body, None),
        }
    }

    /// What becomes of a job next.
    fn next(&mut self, job: &Job) -> (Job, Vec<NewBody>) {
        let actor = Actor::system("test");
        let now = self.now;
        let Some(lease) = job.lease().cloned() else {
            if job.state == State::Available {
                let request_id = self.chance(50).then(|| RequestId::new("request").expect("a name"));
                let worker_id = WorkerId::new("worker").expect("a name");
                let claim = Claim {
                    worker_id,
                    holder: None,
                    request_id,
                    term: Duration::from_secs(30),
                    margin: Duration::ZERO,
                };
                return (job.claim(&claim, now).expect("it is due"), vec![]);
            }
            // Whatever it is, it starts again.
            let again = Job { state: State::Available, updated_at: now, ..job.clone() };
            return (again, vec![]);
        };
        let proof = crate::job::LeaseProof { worker_id: lease.worker_id, fence: job.fence, bearer: None };
        match self.random.random_range(0..4) {
            0 => (job.heartbeat(&proof, None, Duration::ZERO, now).expect("it holds the lease"), vec![]),
            1 => {
                let (result, stored) = self.body();
                let crate::job::Change::To(done) = job.complete(&proof, &result, now).expect("it holds the lease")
                else {
                    panic!("it has not ended before");
                };
                (*done, stored.into_iter().collect())
            }
            2 => {
                let error = JobError { code: "exit".to_owned(), message: "it ended".to_owned() };
                let failed = Job { state: State::Failed { finished_at: now }, error: Some(error), ..job.clone() };
                (Job { updated_at: now, ..failed }, vec![])
            }
            _ => {
                let order = crate::job::AdminRelease {
                    actor,
                    reason: "test".to_owned(),
                    then: Then::Requeue,
                    expected_fence: None,
                };
                (job.admin_release(&order, now).expect("it runs"), vec![])
            }
        }
    }

    fn record(&mut self) -> RecordWrite {
        let name = format!("record-{}", self.random.random_range(0..5));
        let key = RecordKey::new(RecordKind::Queue, RecordName::new(name).expect("a name"));
        let body = Json::of(&self.random.random::<u32>()).expect("JSON");
        match self.records.get(&key).copied() {
            None => RecordWrite::Create { key, body },
            Some(expected) if self.chance(30) => RecordWrite::Remove { key, expected },
            Some(expected) => RecordWrite::Replace { key, body, expected },
        }
    }

    /// A write of a schedule: it is created, has come further, is changed by people, or is removed.
    pub(super) fn schedule(&mut self) -> ScheduleWrite {
        let id = ScheduleId::new(format!("schedule-{}", self.random.random_range(0..SCHEDULES))).expect("an id");
        let Some(StoredSchedule { schedule, version }) = self.schedules.get(&id).cloned() else {
            return ScheduleWrite::Create { schedule: Arc::new(self.new_schedule(id)) };
        };
        let mut expected = version;
        if self.chance(5) {
            expected.seq_no += 1;
        }
        let next = match self.random.random_range(0..10) {
            0 => return ScheduleWrite::Remove { id, expected },
            1 => self.new_schedule(id),
            _ => {
                let (last, next) = (schedule.course.next_due_at, self.due());
                let course = Course { next_due_at: next, last_due_at: last, ..schedule.course.clone() };
                Schedule { course, ..(*schedule).clone() }
            }
        };
        ScheduleWrite::Replace { schedule: Arc::new(next), expected }
    }

    pub(super) fn new_schedule(&mut self, id: ScheduleId) -> Schedule {
        let owner = OWNERS.get(self.random.random_range(0..OWNERS.len() + 1));
        let job = Json::of(&self.random.random::<u32>()).expect("JSON");
        let now = self.now;
        let pause = SchedulePause { at: now, by: Actor::system("test"), reason: String::new() };
        let paused = self.chance(20).then_some(pause);
        let definition = Arc::new(definition(owner.map(|owner| Owner::new(owner).expect("a name")), job));
        let course = Course { next_due_at: self.due(), ..Course::default() };
        let created_by = self.chance(50).then(|| Actor::system("test"));
        Schedule {
            id,
            definition,
            revision: 1,
            period_since: now,
            paused,
            created_at: now,
            created_by,
            updated_at: now,
            course,
        }
    }

    /// A due time of few, so that some are equal.
    fn due(&mut self) -> Option<Timestamp> {
        let wait = Duration::from_millis(1_000 * self.random.random_range(0..20));
        let second = Timestamp::from_millis(self.now.as_millis() / 1_000 * 1_000);
        (!self.chance(10)).then(|| second.plus(wait))
    }

    /// Learns what became of a batch.
    pub(super) fn learn(&mut self, commands: &[Command], outcomes: Outcomes) {
        let Outcomes { jobs, records, schedules } = outcomes;
        let (mut jobs, mut records, mut schedules) = (jobs.into_iter(), records.into_iter(), schedules.into_iter());
        for command in commands {
            match command {
                Command::Job(write) => {
                    let id = write.job().id.clone();
                    let now = match (jobs.next().expect("an answer"), write) {
                        (Ok(_), Write::Remove { .. }) => None,
                        (Ok(version), _) => Some(Versioned { job: Arc::clone(write.job()), version }),
                        (Err(WriteError::Conflict(now)), _) => now,
                        (Err(other), _) => panic!("{other}"),
                    };
                    self.jobs.remove(&id);
                    self.jobs.extend(now.map(|head| (id, head)));
                }
                Command::Record(write) => {
                    let now = match (records.next().expect("an answer"), write) {
                        (Ok(_), RecordWrite::Remove { .. }) => None,
                        (Ok(version), _) => Some(version),
                        (Err(WriteError::Conflict(now)), _) => now.map(|record| record.version),
                        (Err(other), _) => panic!("{other}"),
                    };
                    self.records.remove(write.key());
                    self.records.extend(now.map(|version| (write.key().clone(), version)));
                }
                Command::Schedule(write) => {
                    let id = write.id().clone();
                    let now = match (schedules.next().expect("an answer"), write.schedule()) {
                        (Ok(version), Some(schedule)) => {
                            Some(StoredSchedule { schedule: Arc::clone(schedule), version })
                        }
                        (Ok(_), None) => None,
                        (Err(WriteError::Conflict(now)), _) => now,
                        (Err(other), _) => panic!("{other}"),
                    };
                    self.schedules.remove(&id);
                    self.schedules.extend(now.map(|stored| (id, stored)));
                }
            }
        }
    }
}

/// A definition of which only these differ.
fn definition(owner: Option<Owner>, job: Json) -> Definition {
    let (url, method, headers, body, timeout_ms, expect_status) = (None, None, None, None, None, None);
    let kind = ActionType::Job;
    let action = Action { kind, job: Some(job), url, method, headers, body, timeout_ms, expect_status };
    Definition {
        owner,
        labels: BTreeMap::new(),
        action,
        period: PeriodText { every_ms: Some(60_000), ..PeriodText::default() },
        margin_of_error_ms: 60_000,
        spread_ms: 0,
        overlap: Overlap::Allow,
        pause_after_errors: None,
        start_at: None,
        end_at: None,
        exclude: Vec::new(),
        notify: Vec::new(),
    }
}
