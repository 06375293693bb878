use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::super::arbitrary;
use super::*;
use crate::job::{Body, RecordName, State};
use crate::store::{Place, RecordKind};

/// A state that is all in memory.
#[derive(Debug, Default, PartialEq)]
struct Memory {
    heads: HashMap<JobId, Versioned>,
    records: HashMap<RecordKey, Record>,
    schedules: HashMap<ScheduleId, StoredSchedule>,
}

impl Heads for Memory {
    fn head(&self, id: &JobId) -> Result<Option<Versioned>, StoreError> {
        Ok(self.heads.get(id).cloned())
    }

    fn row(&self, _: &Versioned) -> Result<Option<Row>, StoreError> {
        Ok(None)
    }

    fn record(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        Ok(self.records.get(key).cloned())
    }

    fn schedule(&self, id: &ScheduleId) -> Result<Option<StoredSchedule>, StoreError> {
        Ok(self.schedules.get(id).cloned())
    }
}

impl Memory {
    fn take_over(&mut self, effects: &Effects) {
        for (id, change) in &effects.heads {
            match &change.after {
                Some(head) => self.heads.insert(id.clone(), head.clone()),
                None => self.heads.remove(id),
            };
        }
        for (key, change) in &effects.records {
            match &change.after {
                Some(record) => self.records.insert(key.clone(), record.clone()),
                None => self.records.remove(key),
            };
        }
        for (id, change) in &effects.schedules {
            match &change.after {
                Some(stored) => self.schedules.insert(id.clone(), stored.clone()),
                None => self.schedules.remove(id),
            };
        }
    }
}

fn apply(heads: &Memory, last: Version, commands: Vec<Command>) -> Applied {
    let mut batch = Batch::new(last);
    batch.decide(heads, commands);
    batch.end()
}

fn apply_to_jobs(heads: &Memory, last: Version, writes: Vec<Write>) -> Applied {
    apply(heads, last, writes.into_iter().map(Command::Job).collect())
}

const START: Version = Version { place: Place::Main, primary_term: 7, seq_no: 100 };

fn job() -> Job {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let job = arbitrary::job().new_tree(&mut runner).expect("a job").current();
    Job { payload: Body::Empty, state: State::Available, ..job }
}

fn body(text: &str) -> (Body, NewBody) {
    let (body, stored) = Body::place(Some(Json::parse(text.to_owned()).expect("JSON")), 0);
    (body, stored.expect("kept apart"))
}

#[test]
fn later_commands_see_earlier_ones() {
    let job = Arc::new(job());
    let version = |seq_no| Version { seq_no, ..START };
    let create = Write::Create { job: Arc::clone(&job), bodies: vec![] };
    let remove = |expected| Write::Remove { job: Arc::clone(&job), expected };
    let replace = |expected| Write::Replace { job: Arc::clone(&job), expected, bodies: vec![] };
    let commands = vec![
        create.clone(),
        create.clone(),
        replace(version(101)),
        replace(version(101)),
        remove(version(102)),
        create,
    ];

    let Applied { outcomes, effects } = apply_to_jobs(&Memory::default(), START, commands);

    let outcomes: Vec<_> = outcomes
        .jobs
        .into_iter()
        .map(|outcome| match outcome {
            Ok(version) => Ok(version.seq_no),
            Err(WriteError::Conflict(current)) => Err(current.map(|current| current.version.seq_no)),
            Err(other) => panic!("{other}"),
        })
        .collect();
    assert_eq!(outcomes, [Ok(101), Err(Some(101)), Ok(102), Err(Some(102)), Ok(102), Ok(104)]);
    assert_eq!(effects.last, version(104));
    let [change] = effects.heads.values().collect::<Vec<_>>()[..] else {
        panic!("one job has one change: {effects:?}")
    };
    assert_eq!((&change.before, change.after.as_ref().map(|head| head.version)), (&None, Some(version(104))));
}

#[test]
fn a_conflict_has_no_effect() {
    let job = Arc::new(job());
    let replace = Write::Replace { job, expected: START, bodies: vec![] };
    let Applied { effects, .. } = apply_to_jobs(&Memory::default(), START, vec![replace]);
    assert!(effects.heads.is_empty() && effects.bodies.is_empty());
    assert_eq!(effects.last, START);
}

#[test]
fn bodies_come_and_go_with_what_refers_to_them() {
    let (payload, kept) = body("1");
    let (result, dropped) = body("2");
    let (_, unrelated) = body("3");
    let waiting = Arc::new(Job { payload, ..job() });
    let finished_at = waiting.created_at;
    let done = Arc::new(Job { state: State::Completed { finished_at, result }, ..(*waiting).clone() });
    let mut memory = Memory::default();

    let bodies = vec![kept.clone(), dropped.clone(), unrelated];
    let Applied { effects, .. } = apply_to_jobs(&memory, START, vec![Write::Create { job: done, bodies }]);
    let written: BTreeMap<_, _> =
        [&kept, &dropped].map(|body| (body.reference.id, Some(body.json.clone()))).into_iter().collect();
    assert_eq!(effects.bodies, written);
    memory.take_over(&effects);

    let replace = Write::Replace { job: Arc::clone(&waiting), expected: effects.last, bodies: vec![] };
    let Applied { effects, .. } = apply_to_jobs(&memory, effects.last, vec![replace]);
    assert_eq!(effects.bodies, [(dropped.reference.id, None)].into());
    memory.take_over(&effects);

    let remove = Write::Remove { job: waiting, expected: effects.last };
    let Applied { effects, .. } = apply_to_jobs(&memory, effects.last, vec![remove]);
    assert_eq!(effects.bodies, [(kept.reference.id, None)].into());
}

#[test]
fn jobs_and_records_in_one_batch_are_decided_apart_under_versions_of_one_count() {
    let job = Arc::new(job());
    let key = RecordKey::new(RecordKind::Lease, RecordName::system("leader"));
    let body = Json::parse("1".to_owned()).expect("JSON");
    let version = |seq_no| Version { seq_no, ..START };
    let create = RecordWrite::Create { key: key.clone(), body: body.clone() };
    let remove = |expected| RecordWrite::Remove { key: key.clone(), expected };
    let commands = vec![
        Command::Record(create.clone()),
        Command::Job(Write::Create { job: Arc::clone(&job), bodies: vec![] }),
        Command::Record(create.clone()),
        Command::Record(remove(version(101))),
        Command::Job(Write::Create { job, bodies: vec![] }),
        Command::Record(create),
    ];

    let Applied { outcomes, effects } = apply(&Memory::default(), START, commands);

    let record = |seq_no| Record { key: key.clone(), body: body.clone(), version: version(seq_no) };
    let [Ok(first), Err(WriteError::Conflict(Some(current))), Ok(removed), Ok(last)] = &outcomes.records[..] else {
        panic!("{:?}", outcomes.records)
    };
    assert_eq!((first, current, removed, last), (&version(101), &record(101), &version(101), &version(104)));
    assert!(matches!(&outcomes.jobs[..], [Ok(_), Err(WriteError::Conflict(Some(_)))]), "{:?}", outcomes.jobs);
    assert_eq!((effects.last, effects.heads.len()), (version(104), 1));
    assert_eq!(effects.records, [(key.clone(), Change { before: None, after: Some(record(104)) })].into());
}

#[test]
fn a_record_that_comes_and_goes_or_is_only_read_is_no_change() {
    let key = RecordKey::new(RecordKind::Lease, RecordName::system("leader"));
    let create = RecordWrite::Create { key: key.clone(), body: Json::parse("1".to_owned()).expect("JSON") };
    let came_and_went = RecordWrite::Remove { key: key.clone(), expected: Version { seq_no: 101, ..START } };
    let batch = vec![Command::Record(create.clone()), Command::Record(came_and_went)];
    let Applied { effects, .. } = apply(&Memory::default(), START, batch);
    assert_eq!((effects.records.len(), effects.last.seq_no), (0, 102));

    let mut memory = Memory::default();
    memory.take_over(&apply(&memory, START, vec![Command::Record(create.clone())]).effects);
    let Applied { effects, .. } = apply(&memory, START, vec![Command::Record(create)]);
    assert_eq!((effects.records.len(), effects.last), (0, START));
}

#[test]
fn a_schedule_is_compared_and_swapped_as_a_job_is() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let schedule = arbitrary::schedule().new_tree(&mut runner).expect("a schedule").current().schedule;
    let (id, version) = (schedule.id.clone(), |seq_no| Version { seq_no, ..START });
    let create = ScheduleWrite::Create { schedule: Arc::clone(&schedule) };
    let replace = |expected| ScheduleWrite::Replace { schedule: Arc::clone(&schedule), expected };
    let remove = |expected| ScheduleWrite::Remove { id: id.clone(), expected };
    let writes = vec![
        create.clone(),
        create.clone(),
        replace(version(101)),
        replace(version(101)),
        remove(version(101)),
        remove(version(102)),
        remove(version(102)),
        create,
    ];

    let commands = writes.into_iter().map(Command::Schedule).collect();
    let Applied { outcomes, effects } = apply(&Memory::default(), START, commands);

    let outcomes = outcomes.schedules.into_iter().map(|outcome| match outcome {
        Ok(version) => Ok(version.seq_no),
        Err(WriteError::Conflict(current)) => Err(current.map(|current| current.version.seq_no)),
        Err(other) => panic!("{other}"),
    });
    let expected = [Ok(101), Err(Some(101)), Ok(102), Err(Some(102)), Err(Some(102)), Ok(102), Err(None), Ok(104)];
    assert_eq!(outcomes.collect::<Vec<_>>(), expected);
    let after = Some(StoredSchedule { schedule, version: version(104) });
    assert_eq!(effects.schedules, [(id, Change { before: None, after })].into());
    assert_eq!(effects.last, version(104));
}

proptest! {
    #[test]
    fn one_batch_does_what_its_commands_do_one_by_one(
        jobs in prop::collection::vec(arbitrary::job(), 1..4),
        keys in prop::collection::vec(arbitrary::record_key(), 1..3),
        schedules in prop::collection::vec(arbitrary::schedule(), 1..3),
        steps in prop::collection::vec(
            (any::<prop::sample::Index>(), 0..3_u8, 0..3_u8, 95..110_u64),
            1..30,
        ),
    ) {
        let jobs: Vec<Arc<Job>> = jobs.into_iter().map(Arc::new).collect();
        let commands: Vec<Command> = steps.into_iter().map(|(which, sort, kind, seq_no)| {
            let expected = Version { seq_no, ..START };
            if sort == 0 {
                let schedule = Arc::clone(&schedules[which.index(schedules.len())].schedule);
                return Command::Schedule(match kind {
                    0 => ScheduleWrite::Create { schedule },
                    1 => ScheduleWrite::Replace { schedule, expected },
                    _ => ScheduleWrite::Remove { id: schedule.id.clone(), expected },
                });
            }
            if sort == 1 {
                let key = keys[which.index(keys.len())].clone();
                let body = Json::of(&seq_no).expect("JSON");
                return Command::Record(match kind {
                    0 => RecordWrite::Create { key, body },
                    1 => RecordWrite::Replace { key, body, expected },
                    _ => RecordWrite::Remove { key, expected },
                });
            }
            let job = Arc::clone(&jobs[which.index(jobs.len())]);
            Command::Job(match kind {
                0 => Write::Create { job, bodies: vec![] },
                1 => Write::Replace { job, expected, bodies: vec![] },
                _ => Write::Remove { job, expected },
            })
        }).collect();
        let whole = apply(&Memory::default(), START, commands.clone());

        let (mut memory, mut last, mut outcomes) = (Memory::default(), START, Outcomes::default());
        for command in commands {
            let applied = apply(&memory, last, vec![command]);
            memory.take_over(&applied.effects);
            last = applied.effects.last;
            outcomes.jobs.extend(applied.outcomes.jobs);
            outcomes.records.extend(applied.outcomes.records);
            outcomes.schedules.extend(applied.outcomes.schedules);
        }

        let mut at_once = Memory::default();
        at_once.take_over(&whole.effects);
        prop_assert_eq!(at_once, memory);
        prop_assert_eq!(whole.effects.last, last);
        prop_assert_eq!(format!("{:?}", whole.outcomes), format!("{outcomes:?}"));
    }
}
