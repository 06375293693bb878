use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::super::arbitrary;
use super::super::machine::{Batch, Heads, Row};
use super::*;
use crate::job::{Job, Json, NewBody};
use crate::store::{Place, Record, RecordWrite, ScheduleWrite, StoreError, StoredSchedule, Version, Versioned};

/// The state before a batch.
#[derive(Default)]
struct Before {
    jobs: BTreeMap<JobId, Versioned>,
    records: BTreeMap<RecordKey, Record>,
    schedules: BTreeMap<ScheduleId, StoredSchedule>,
}

impl Heads for Before {
    fn head(&self, id: &JobId) -> Result<Option<Versioned>, StoreError> {
        Ok(self.jobs.get(id).cloned())
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

fn version(seq_no: u64) -> Version {
    Version { place: Place::Main, primary_term: 1, seq_no }
}

/// Writes of a document: one over that which is there, one over that, and one that conflicts.
fn job_writes(
    before: &mut Before,
    number: u64,
    first: Job,
    second: Job,
    third: Job,
    bodies: Vec<Json>,
) -> Vec<Command> {
    let with_id = |job: Job| Arc::new(Job { id: first.id.clone(), ..job });
    let (second, third) = (with_id(second), with_id(third));
    let bodies: Vec<NewBody> =
        second.stored_bodies().zip(bodies).map(|(reference, json)| NewBody { reference: *reference, json }).collect();
    let expected = version(number);
    before.jobs.insert(first.id.clone(), Versioned { job: Arc::new(first), version: expected });
    [
        Write::Replace { job: second, expected, bodies },
        Write::Replace { job: Arc::clone(&third), expected: version(number + 1_000_000), bodies: vec![] },
        Write::Create { job: third, bodies: vec![] },
    ]
    .map(Command::Job)
    .into()
}

proptest! {
    #[test]
    fn an_entry_has_no_more_bytes_than_were_counted(
        jobs in prop::collection::vec((arbitrary::job(), arbitrary::job(), arbitrary::job()), 0..4),
        new in prop::collection::vec(arbitrary::job(), 0..4),
        records in prop::collection::vec(arbitrary::record(), 0..4),
        schedules in prop::collection::vec(arbitrary::schedule(), 0..4),
        is_measured: bool,
    ) {
        let mut before = Before::default();
        let body = || Json::parse(format!("\"{}\"", "x".repeat(3_000))).expect("JSON");
        let mut commands = Vec::new();
        for (number, (first, second, third)) in (1..).zip(jobs) {
            commands.extend(job_writes(&mut before, number, first, second, third, vec![body(), body()]));
        }
        commands.extend(new.into_iter().map(|job| Command::Job(Write::Create { job: Arc::new(job), bodies: vec![] })));
        let record = |Record { key, body, .. }| Command::Record(RecordWrite::Create { key, body });
        commands.extend(records.into_iter().map(record));
        for stored in schedules {
            let (schedule, expected) = (Arc::clone(&stored.schedule), stored.version);
            let with = |revision| Arc::new(crate::schedule::Schedule { revision, ..(*schedule).clone() });
            commands.push(Command::Schedule(ScheduleWrite::Replace { schedule: with(u64::MAX), expected }));
            commands.push(Command::Schedule(ScheduleWrite::Create { schedule: with(7) }));
            before.schedules.insert(schedule.id.clone(), stored);
        }
        let (mut batch, mut counted, mut scratch) = (Batch::new(version(500)), ENTRY_BYTES, Vec::new());
        for command in commands {
            let (key, Weighed { command, most }) = (Key::of(&command), Weighed::of(command));
            batch.decide(&before, [command]);
            counted += if is_measured { measured(batch.effects(), &key, &mut scratch).min(most) } else { most };
        }
        let entry = entry::encode(&batch.end().effects).map_err(|error| TestCaseError::fail(error.0))?;
        prop_assert!(entry.len() <= counted, "{} > {counted}", entry.len());
    }
}
