use proptest::prelude::*;

use super::super::arbitrary;
use super::*;
use crate::query::{Filter, Query};

fn encoded(head: &Versioned) -> Vec<u8> {
    let mut buffer = b"what was there before".to_vec();
    encode(head, &mut buffer).expect("every job can be written");
    buffer
}

proptest! {
    #[test]
    fn every_job_is_read_as_it_was_written(head in arbitrary::head()) {
        let read = decode(&head.job.id, &encoded(&head)).map_err(|Corrupt(what)| TestCaseError::fail(what))?;
        prop_assert_eq!(read, head);
    }

    #[test]
    fn a_record_that_is_skimmed_matches_when_the_whole_does(
        head in arbitrary::head(),
        query in prop::sample::select(&["labels: *a*", "run_time_ms > 9", "wait_ms > 9", "error.code: *", "history: { reason: * }", "*.actor: a", "id: a", "attempt > 9",
            "queue: a", "owner: *", "*_ref.bytes > 9", "finished_at: *", "history_folded > 9", "priority > 0 and expected_runtime_ms: *", "orphan_policy: *"][..]),
    ) {
        let query = Query { expression: Arc::new(query.parse().expect("a query")), now: Timestamp::from_millis(3) };
        let filter = Filter { query: Some(query), ..Filter::default() };
        let read = Skim::new(&filter).matching(head.job.id.as_str(), &encoded(&head));
        let read = read.map_err(|Corrupt(what)| TestCaseError::fail(what))?;
        prop_assert_eq!(read, filter.matches(&head.job).then_some(head));
    }

    #[test]
    fn a_record_cut_short_or_prolonged_is_reported(head in arbitrary::head(), cut in any::<prop::sample::Index>()) {
        let mut bytes = encoded(&head);
        prop_assert!(decode(&head.job.id, &bytes[..cut.index(bytes.len())]).is_err());
        bytes.push(0);
        prop_assert!(decode(&head.job.id, &bytes).is_err());
    }

    #[test]
    fn no_damage_makes_reading_panic(
        head in arbitrary::head(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = encoded(&head);
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        // Some damage makes another job that is as good; all other is an error.
        drop(decode(&head.job.id, &bytes));
    }
}

#[test]
fn a_record_of_another_format_is_reported() {
    let id = JobId::new("job-7").expect("a job id");
    let Err(Corrupt(what)) = decode(&id, &[FORMAT_V1 + 1, 0, 0]) else { panic!("it was read") };
    assert_eq!(what, "the record of job job-7: it has format 2, this version reads 1");
}

#[test]
fn each_state_has_a_number_of_its_own() {
    for state in JobState::ALL {
        assert_eq!(state_of(state_code(state)), Ok(state));
    }
    assert!(state_of(6).is_err());
}
