use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::super::arbitrary;
use super::super::equality::hashes::Hashes;
use super::super::golden::samples;
use super::super::machine::Row;
use super::*;
use crate::golden::{Files, check, hex_of};
use crate::store::StoreError;

/// A state that is all in memory.
#[derive(Debug, Default, PartialEq)]
struct Memory {
    jobs: BTreeMap<JobId, Versioned>,
    records: BTreeMap<RecordKey, Record>,
    schedules: BTreeMap<ScheduleId, StoredSchedule>,
}

impl Heads for Memory {
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

const LAST: Version = Version { place: Place::Main, primary_term: 7, seq_no: 1_000 };

fn versioned(job: crate::job::Job, back: u64) -> Versioned {
    Versioned { job: Arc::new(job), version: Version { seq_no: LAST.seq_no - back, ..LAST } }
}

/// A state, and a batch that changes it.
fn change() -> impl Strategy<Value = (Memory, Effects)> {
    use prop::collection::vec;
    use proptest::option::of;
    let job = (arbitrary::job(), of(arbitrary::job()), any::<bool>(), 0..100_u64);
    let record = (arbitrary::record(), of(arbitrary::record()), any::<bool>(), 0..100_u64);
    let schedule = (arbitrary::schedule(), of((arbitrary::schedule(), any::<bool>())), any::<bool>(), 0..100_u64);
    let body = (any::<u128>(), of(any::<String>()));
    let changes = (vec(job, 0..5), vec(record, 0..3), vec(schedule, 0..3), vec(body, 0..3));
    changes.prop_map(|(jobs, records, schedules, bodies)| {
        let mut memory = Memory::default();
        let (mut heads, mut changed) = (Changes::default(), Changes::default());
        for (job, after, is_new, back) in jobs {
            let id = job.id.clone();
            let before = (!is_new).then(|| versioned(job, 500));
            memory.jobs.extend(before.clone().map(|before| (id.clone(), before)));
            if before.is_none() {
                memory.jobs.remove(&id);
            }
            let after = after.map(|after| versioned(crate::job::Job { id: id.clone(), ..after }, back));
            heads.insert(id, Change { before, after });
        }
        for (record, after, is_new, back) in records {
            let key = record.key.clone();
            memory.records.remove(&key);
            let before = (!is_new).then(|| record.clone());
            memory.records.extend(before.clone().map(|before| (key.clone(), before)));
            let version = Version { seq_no: LAST.seq_no - back, ..LAST };
            let after = after.map(|after| Record { key: key.clone(), version, ..after });
            changed.insert(key, Change { before, after });
        }
        let mut written = Changes::default();
        for (stored, after, is_new, back) in schedules {
            let id = stored.schedule.id.clone();
            memory.schedules.remove(&id);
            let definition = stored.schedule.definition.clone();
            let before = (!is_new).then_some(stored);
            memory.schedules.extend(before.clone().map(|before| (id.clone(), before)));
            let version = Version { seq_no: LAST.seq_no - back, ..LAST };
            let after = after.map(|(after, is_defined_anew)| {
                let after = (*after.schedule).clone();
                let definition = if is_defined_anew { after.definition.clone() } else { definition };
                StoredSchedule { schedule: Arc::new(Schedule { id: id.clone(), definition, ..after }), version }
            });
            written.insert(id, Change { before, after });
        }
        let body = |(id, text): (u128, Option<String>)| {
            (BodyId(Uuid::from_u128(id)), text.map(|text| Json::of(&text).expect("JSON")))
        };
        let bodies = bodies.into_iter().map(body).collect();
        let left = BTreeSet::new();
        (memory, Effects { heads, left, bodies, records: changed, schedules: written, last: LAST })
    })
}

fn encoded(effects: &Effects) -> Vec<u8> {
    encode(effects).expect("every batch can be written")
}

proptest! {
    #[test]
    fn every_batch_is_read_as_it_was_written((memory, effects) in change()) {
        let read = Entry::decode(&encoded(&effects)).and_then(|entry| entry.effects(&memory, 0));
        let read = read.map_err(TestCaseError::fail)?;
        let sum = |effects: &Effects| {
            Hashes::default().of_effects(effects).map_err(|error| TestCaseError::fail(error.0))
        };
        prop_assert_eq!(sum(&read)?, sum(&effects)?, "its documents lie on disk as others");
        prop_assert_eq!((read.heads, read.bodies, read.records), (effects.heads, effects.bodies, effects.records));
        prop_assert_eq!(read.schedules, effects.schedules);
        prop_assert_eq!(read.last, effects.last);
    }

    #[test]
    fn no_damage_makes_reading_panic(
        (memory, effects) in change(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = encoded(&effects);
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        // Some damage makes another batch that is as good; all other is an error.
        drop(Entry::decode(&bytes).and_then(|entry| entry.effects(&memory, 0)));
    }
}

#[test]
fn batches_lie_in_the_log_as_recorded() {
    let batches = samples(&change()).into_iter().enumerate();
    let batches = batches.map(|(number, (_, effects))| (number.to_string(), encoded(&effects)));
    check("embedded/entries", &Files::from([("batches.txt".to_owned(), hex_of(batches))]));
}

#[test]
fn an_id_that_is_a_uuid_takes_half_the_bytes_and_is_spelled_again_as_it_was() {
    let uuid = "0190a3b2-7d1c-7e40-9c55-0123456789ab";
    let upper = uuid.to_uppercase();
    for (text, bytes) in [(uuid, 17), (upper.as_str(), 38), ("job-7", 7)] {
        let id = JobId::new(text).expect("an id");
        let mut buffer = Vec::new();
        put_id(&id, &mut buffer).expect("writable");
        assert_eq!(buffer.len(), bytes, "{text}");
        assert_eq!(Reader { rest: &buffer }.id(), Ok(id));
    }
}

#[test]
fn an_entry_that_begins_a_term_changes_nothing_else() {
    let mut bytes = Vec::new();
    stored::append(&300_u64, &mut bytes).expect("writable");
    let read = Entry::decode(&bytes).and_then(|entry| entry.effects(&Memory::default(), 41)).expect("readable");
    assert_eq!(read.last, Version { place: Place::Main, primary_term: 300, seq_no: 41 });
    assert!(read.heads.is_empty() && read.records.is_empty() && read.schedules.is_empty() && read.bodies.is_empty());
}

#[test]
fn an_unknown_kind_of_item_is_reported() {
    let bytes = [7, 100, 9];
    assert_eq!(Entry::decode(&bytes).map(drop), Err("it has an item of the unknown kind 9".to_owned()));
}

/// What a batch makes of a schedule.
fn of_schedule(before: Option<StoredSchedule>, after: Option<StoredSchedule>) -> Effects {
    let id = before.as_ref().or(after.as_ref()).map(|stored| stored.schedule.id.clone());
    Effects {
        heads: Changes::default(),
        left: BTreeSet::new(),
        bodies: BTreeMap::new(),
        records: Changes::default(),
        schedules: id.map(|id| (id, Change { before, after })).into_iter().collect(),
        last: LAST,
    }
}

fn a_schedule() -> StoredSchedule {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    arbitrary::schedule().new_tree(&mut runner).expect("a schedule").current()
}

#[test]
fn an_item_of_a_schedule_that_is_cut_short_or_is_none_is_reported() {
    let stored = a_schedule();
    let begin = encoded(&of_schedule(None, None)).len();
    let all = [
        of_schedule(None, Some(stored.clone())),
        of_schedule(Some(stored.clone()), Some(stored.clone())),
        of_schedule(Some(stored.clone()), None),
    ];
    for bytes in all.map(|effects| encoded(&effects)) {
        for length in begin + 1..bytes.len() {
            assert!(Entry::decode(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
        }
    }
    let mut bytes = encoded(&of_schedule(None, None));
    bytes.push(SCHEDULE);
    stored::append(&(0_u64, "{}"), &mut bytes).expect("writable");
    let refusal = Entry::decode(&bytes).map(drop).expect_err("it is no schedule");
    assert!(refusal.starts_with("a schedule: "), "{refusal}");

    let goes_on = encoded(&of_schedule(Some(stored.clone()), Some(stored)));
    let entry = Entry::decode(&goes_on).expect("readable");
    let refusal = entry.effects(&Memory::default(), 0).map(drop).expect_err("there is no such schedule");
    assert!(refusal.contains("does not exist"), "{refusal}");
}

#[test]
fn a_schedule_that_goes_on_takes_as_many_bytes_whatever_its_definition_has() {
    let text = |body: usize| {
        serde_json::json!({
            "id": "nightly-report", "revision": 3, "period_since": "2030-01-01T00:00:00Z",
            "created_at": "2030-01-01T00:00:00Z", "updated_at": "2030-01-02T00:00:00Z",
            "definition": {
                "action": {"type": "http", "url": "https://example.org/run", "body": "x".repeat(body)},
                "period": {"cron": "0 2 * * *", "time_zone": "Europe/Berlin"}, "margin_of_error_ms": 60_000,
            },
            "course": {"next_due_at": "2030-01-03T01:00:00Z", "last_due_at": "2030-01-02T01:00:00Z"},
        })
    };
    let schedule = |body| serde_json::from_value::<Schedule>(text(body)).expect("a schedule");
    let stored = |schedule| StoredSchedule { schedule: Arc::new(schedule), version: LAST };
    let bytes = |body: usize| {
        let before = schedule(body);
        let mut after = before.clone();
        (after.course.last_due_at, after.course.next_due_at) = (before.course.next_due_at, None);
        let whole = encoded(&of_schedule(None, Some(stored(after.clone())))).len();
        (encoded(&of_schedule(Some(stored(before)), Some(stored(after)))).len(), whole)
    };
    let ((small, small_whole), (large, large_whole)) = (bytes(10), bytes(200 << 10));
    assert_eq!(small, large);
    assert!(small < 150 && small_whole > 400 && large_whole > 200 << 10, "{small}, {small_whole} and {large_whole}");
}
