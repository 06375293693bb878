use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::super::arbitrary;
use super::*;
use crate::job::{Body, State};

/// A state that is all in memory.
#[derive(Default)]
struct Memory(HashMap<JobId, Versioned>);

impl Heads for Memory {
    fn head(&self, id: &JobId) -> Result<Option<Versioned>, StoreError> {
        Ok(self.0.get(id).cloned())
    }
}

impl Memory {
    fn take_over(&mut self, effects: &Effects) {
        for change in &effects.heads {
            match &change.after {
                Some(head) => self.0.insert(change.id.clone(), head.clone()),
                None => self.0.remove(&change.id),
            };
        }
    }
}

const START: Version = Version { primary_term: 7, seq_no: 100 };

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

    let Applied { outcomes, effects } = apply(&Memory::default(), START, commands);

    let outcomes: Vec<_> = outcomes
        .into_iter()
        .map(|outcome| match outcome {
            Ok(version) => Ok(version.seq_no),
            Err(WriteError::Conflict(current)) => Err(current.map(|current| current.version.seq_no)),
            Err(other) => panic!("{other}"),
        })
        .collect();
    assert_eq!(outcomes, [Ok(101), Err(Some(101)), Ok(102), Err(Some(102)), Ok(102), Ok(104)]);
    assert_eq!(effects.last, version(104));
    let [change] = &effects.heads[..] else { panic!("one job has one change: {effects:?}") };
    assert_eq!((&change.before, change.after.as_ref().map(|head| head.version)), (&None, Some(version(104))));
}

#[test]
fn a_conflict_has_no_effect() {
    let job = Arc::new(job());
    let replace = Write::Replace { job, expected: START, bodies: vec![] };
    let Applied { effects, .. } = apply(&Memory::default(), START, vec![replace]);
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
    let Applied { effects, .. } = apply(&memory, START, vec![Write::Create { job: done, bodies }]);
    let written: BTreeMap<_, _> =
        [&kept, &dropped].map(|body| (body.reference.id, Some(body.json.clone()))).into_iter().collect();
    assert_eq!(effects.bodies, written);
    memory.take_over(&effects);

    let replace = Write::Replace { job: Arc::clone(&waiting), expected: effects.last, bodies: vec![] };
    let Applied { effects, .. } = apply(&memory, effects.last, vec![replace]);
    assert_eq!(effects.bodies, [(dropped.reference.id, None)].into());
    memory.take_over(&effects);

    let remove = Write::Remove { job: waiting, expected: effects.last };
    let Applied { effects, .. } = apply(&memory, effects.last, vec![remove]);
    assert_eq!(effects.bodies, [(kept.reference.id, None)].into());
}

proptest! {
    #[test]
    fn one_batch_does_what_its_commands_do_one_by_one(
        jobs in prop::collection::vec(arbitrary::job(), 1..4),
        steps in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8, 95..110_u64), 1..30),
    ) {
        let jobs: Vec<Arc<Job>> = jobs.into_iter().map(Arc::new).collect();
        let commands: Vec<Write> = steps.into_iter().map(|(job, kind, seq_no)| {
            let job = Arc::clone(&jobs[job.index(jobs.len())]);
            let expected = Version { seq_no, ..START };
            match kind {
                0 => Write::Create { job, bodies: vec![] },
                1 => Write::Replace { job, expected, bodies: vec![] },
                _ => Write::Remove { job, expected },
            }
        }).collect();
        let whole = apply(&Memory::default(), START, commands.clone());

        let (mut memory, mut last, mut outcomes) = (Memory::default(), START, Vec::new());
        for command in commands {
            let applied = apply(&memory, last, vec![command]);
            memory.take_over(&applied.effects);
            last = applied.effects.last;
            outcomes.extend(applied.outcomes);
        }

        let mut at_once = Memory::default();
        at_once.take_over(&whole.effects);
        prop_assert_eq!(at_once.0, memory.0);
        prop_assert_eq!(whole.effects.last, last);
        prop_assert_eq!(format!("{:?}", whole.outcomes), format!("{outcomes:?}"));
    }
}
