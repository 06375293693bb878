//! A finished job as far as a block's columns know it, for queries that ask for nothing else.

use std::sync::Arc;

use super::Corrupt;
use super::block::{Column, Reader, States, Values};
use super::column::{Ids, Names};
use crate::clock::Timestamp;
use crate::job::{
    Attempt, Body, Fence, History, InvalidName, Job, JobId, JobSpec, JobState, Kind, Owner, QueueName, State,
};
use crate::store::StoreError;

/// Puts together one job after the other, each in the place of the one before it.
pub(super) struct Probe {
    job: Job,
    ids: Ids,
    states: States,
    values: Values,
    queues: Named<QueueName>,
    kinds: Named<Kind>,
    owners: Named<Owner>,
}

/// A column of names, each made once.
struct Named<T> {
    column: Names,
    names: Vec<Option<T>>,
}

impl<T: Clone> Named<T> {
    fn read(column: Names, name: impl Fn(&str) -> Result<T, InvalidName>) -> Result<Self, Corrupt> {
        let names = column.all().map(|text| text.map(&name).transpose()).collect::<Result<_, _>>();
        let names = names.map_err(|error| Corrupt(format!("a name of a finished job {error}")))?;
        Ok(Self { column, names })
    }

    fn get(&self, row: u32) -> Option<T> {
        self.names.get(self.column.code(row as usize)).cloned().flatten()
    }
}

impl Probe {
    /// One for the jobs of a block.
    pub(super) fn of(block: &Reader<'_>) -> Result<Self, StoreError> {
        let queues = Named::read(block.names(Column::Queue)?, |text| QueueName::new(text))?;
        let kinds = Named::read(block.names(Column::Kind)?, |text| Kind::new(text))?;
        Ok(Self {
            job: blank(),
            ids: block.ids()?,
            states: block.states()?,
            values: block.all_values()?,
            queues,
            kinds,
            owners: Named::read(block.names(Column::Owner)?, |text| Owner::new(text))?,
        })
    }

    /// The job in a row.
    pub(super) fn job(&mut self, row: u32) -> Result<&Job, StoreError> {
        let missing = || Corrupt("a finished job has no queue or no kind".to_owned());
        let values = self.values.get(row);
        let finished_at = values.finished_at.unwrap_or_default();
        let job = &mut self.job;
        let spec = Arc::make_mut(&mut job.spec);
        spec.queue = self.queues.get(row).ok_or_else(missing)?;
        spec.kind = self.kinds.get(row).ok_or_else(missing)?;
        spec.owner = self.owners.get(row);
        spec.priority = values.priority;
        job.id = self.ids.get(row as usize)?;
        job.state = match self.states.get(row)? {
            JobState::Completed => State::Completed { finished_at, result: Body::Empty },
            JobState::Failed => State::Failed { finished_at },
            JobState::Cancelled => State::Cancelled { finished_at },
            JobState::Expired => State::Expired { finished_at },
            live @ (JobState::Available | JobState::Running) => {
                return Err(Corrupt(format!("a finished job is {live}")).into());
            }
        };
        job.run_at = values.run_at;
        job.created_at = values.created_at;
        job.updated_at = values.updated_at;
        Ok(job)
    }
}

fn blank() -> Job {
    Job {
        id: JobId::first(),
        spec: Arc::new(JobSpec::new(QueueName::system("-"), Kind::system("-"))),
        payload: Body::Empty,
        state: State::Available,
        run_at: Timestamp::default(),
        expires_at: None,
        attempt: Attempt::default(),
        fence: Fence::default(),
        error: None,
        history: History::default(),
        outbox: Vec::new(),
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
        started_at: None,
    }
}
