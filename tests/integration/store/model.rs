//! Random commands, held against a map.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::job::{Job, JobId, JobSpec, JobState, Priority};
use leasehold::query::{Filter, GroupField, Search, Sort};
use leasehold::store::{Place, Version, Write, WriteError};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use super::Engine;
use super::sample::{at, bare_states, full_states, id, in_state, plain_spec, queue, submit};

/// How many sequences of commands are tried.
const SEQUENCES: u32 = 24;

/// Few ids, so that commands meet.
const IDS: u8 = 5;

#[derive(Clone, Debug)]
enum Command {
    Create(Shape),
    Replace(Shape, Expected),
    Remove(u8, Expected),
}

/// A job of few possible ones.
#[derive(Clone, Debug)]
struct Shape {
    id: u8,
    state: u8,
    full: bool,
    priority: i64,
}

#[derive(Clone, Copy, Debug)]
enum Expected {
    /// The version that the job had before the batch.
    Current,
    /// Some other version that was given before.
    Old(u8),
}

fn commands() -> impl Strategy<Value = Vec<Vec<Command>>> {
    let shape = || {
        (0..IDS, 0..6_u8, any::<bool>(), -3..3_i64).prop_map(|(id, state, full, priority)| Shape {
            id,
            state,
            full,
            priority,
        })
    };
    let expected = || prop_oneof![4 => Just(Expected::Current), 1 => any::<u8>().prop_map(Expected::Old)];
    let command = prop_oneof![
        3 => shape().prop_map(Command::Create),
        5 => (shape(), expected()).prop_map(|(shape, expected)| Command::Replace(shape, expected)),
        2 => (0..IDS, expected()).prop_map(|(id, expected)| Command::Remove(id, expected)),
    ];
    prop::collection::vec(prop::collection::vec(command, 1..8), 1..10)
}

pub(crate) async fn random_commands_agree_with_a_simple_model(engine: &impl Engine) {
    let handle = Handle::current();
    let config =
        Config { cases: SEQUENCES, failure_persistence: None, rng_seed: crate::seed::of_cases(), ..Config::default() };
    let sequences = AtomicU32::new(0);
    let outcome = block_in_place(|| {
        TestRunner::new(config).run(&commands(), |batches| {
            let sequence = sequences.fetch_add(1, Ordering::Relaxed);
            handle.block_on(Model::new(sequence).run(engine, batches))
        })
    });
    outcome.expect("the store agrees with the model");
}

/// What the store should hold. Each sequence has names of its own, so that all can share one store.
struct Model {
    sequence: u32,
    jobs: HashMap<JobId, (Arc<Job>, Version)>,
    given: Vec<Version>,
}

impl Model {
    fn new(sequence: u32) -> Self {
        Self { sequence, jobs: HashMap::new(), given: Vec::new() }
    }

    async fn run(mut self, engine: &impl Engine, batches: Vec<Vec<Command>>) -> Result<(), TestCaseError> {
        for batch in batches {
            self.write(engine, &batch).await?;
            self.agrees_by_id(engine).await?;
        }
        engine.settle().await;
        self.agrees_by_search(engine).await
    }

    async fn write(&mut self, engine: &impl Engine, batch: &[Command]) -> Result<(), TestCaseError> {
        let writes: Vec<Write> = batch.iter().map(|command| self.write_of(command)).collect();
        let answers = engine.store().write(writes.clone()).await;
        prop_assert_eq!(answers.len(), writes.len());
        for (write, answer) in writes.into_iter().zip(answers) {
            let id = write.job().id.clone();
            let current = self.jobs.get(&id).map(|(_, version)| *version);
            let (met, removed) = match &write {
                Write::Create { .. } => (current.is_none(), false),
                Write::Replace { expected, .. } => (current == Some(*expected), false),
                Write::Remove { expected, .. } => (current == Some(*expected), true),
            };
            match answer {
                Ok(version) if met && removed => {
                    prop_assert_eq!(Some(version), current);
                    self.jobs.remove(&id);
                }
                Ok(version) if met => {
                    prop_assert!(!self.given.contains(&version), "{:?} was given before", version);
                    prop_assert!(current.is_none_or(|current| version > current));
                    self.given.push(version);
                    self.jobs.insert(id, (Arc::clone(write.job()), version));
                }
                Err(WriteError::Conflict(_)) if !met => {}
                other => prop_assert!(false, "{:?} was answered with {:?}", write, other),
            }
        }
        Ok(())
    }

    async fn agrees_by_id(&self, engine: &impl Engine) -> Result<(), TestCaseError> {
        let ids: Vec<JobId> = (0..IDS).map(|number| self.id(number)).collect();
        let found = engine.store().get(&ids).await.expect("readable");
        for (id, found) in ids.iter().zip(found) {
            let found = found.map(|found| (found.job, found.version));
            prop_assert_eq!(found.as_ref(), self.jobs.get(id));
        }
        Ok(())
    }

    async fn agrees_by_search(&self, engine: &impl Engine) -> Result<(), TestCaseError> {
        let filter = Filter { queues: vec![queue(&self.queue())], ..Filter::default() };
        let available = Filter { states: vec![JobState::Available], ..filter.clone() };
        for (filter, sort) in [(&filter, Sort::default()), (&filter, Sort::Dispatch), (&available, Sort::Dispatch)] {
            let search = Search { filter: filter.clone(), sort, after: None, limit: 100 };
            let found = engine.store().search(&search).await.expect("searchable");
            let found: Vec<_> = found.into_iter().map(|found| (found.job, found.version)).collect();
            let mut wanted: Vec<_> = self.jobs.values().filter(|(job, _)| filter.matches(job)).cloned().collect();
            wanted.sort_by_key(|(job, _)| sort.key(job));
            prop_assert_eq!(found, wanted);
        }
        let groups = engine.store().count(&filter, &[GroupField::State]).await.expect("countable");
        for group in &groups {
            let state = group.values[0].as_deref();
            let wanted = self.jobs.values().filter(|(job, _)| Some(job.state.name().as_str()) == state).count();
            prop_assert_eq!(group.count, wanted as u64);
        }
        prop_assert_eq!(groups.iter().map(|group| group.count).sum::<u64>(), self.jobs.len() as u64);
        Ok(())
    }

    fn write_of(&self, command: &Command) -> Write {
        match command {
            Command::Create(shape) => Write::Create { job: self.job(shape), bodies: vec![] },
            Command::Replace(shape, expected) => {
                let job = self.job(shape);
                Write::Replace { expected: self.version(&job.id, *expected), job, bodies: vec![] }
            }
            Command::Remove(number, expected) => {
                let shape = Shape { id: *number, state: 0, full: false, priority: 0 };
                let job = self.job(&shape);
                Write::Remove { expected: self.version(&job.id, *expected), job }
            }
        }
    }

    fn version(&self, id: &JobId, expected: Expected) -> Version {
        // Out of reach, so that no write of the same batch is given it.
        let never = Version { place: Place::Main, primary_term: 1, seq_no: 1 << 40 };
        let old = |number: u8| self.given.get(usize::from(number) % self.given.len().max(1)).copied();
        match expected {
            Expected::Current => self.jobs.get(id).map(|(_, version)| *version).or_else(|| old(0)).unwrap_or(never),
            Expected::Old(number) => old(number).unwrap_or(never),
        }
    }

    fn id(&self, number: u8) -> JobId {
        id(&format!("sequence-{}-job-{number}", self.sequence))
    }

    fn queue(&self) -> String {
        format!("sequence-{}", self.sequence)
    }

    fn job(&self, shape: &Shape) -> Arc<Job> {
        let priority = Priority::new(shape.priority).expect("a priority");
        let spec = JobSpec { queue: queue(&self.queue()), priority, ..plain_spec() };
        let job = submit(self.id(shape.id).as_str(), spec, at(shape.priority), at(i64::from(shape.id % 2)));
        let states = if shape.full { full_states() } else { bare_states() };
        in_state(&job, states[usize::from(shape.state)].clone())
    }
}
