use proptest::option;
use proptest::prelude::*;

use super::super::arbitrary;
use super::*;
use crate::clock::Timestamp;

fn filter() -> impl Strategy<Value = Filter> {
    let states = prop::collection::vec((0..6_usize).prop_map(|state| StateName::ALL[state]), 0..4);
    let names = || prop::collection::vec("[a-d]", 0..3);
    (states, names(), names(), names(), option::of(0..5_i64)).prop_map(|(states, queues, kinds, owners, latest)| {
        Filter {
            states,
            queues: queues.into_iter().map(|name| QueueName::new(name).expect("a name")).collect(),
            kinds: kinds.into_iter().map(|name| Kind::new(name).expect("a name")).collect(),
            owners: owners.into_iter().map(|name| Owner::new(name).expect("a name")).collect(),
            run_at_most: latest.map(Timestamp::from_millis),
            ..Filter::default()
        }
    })
}

proptest! {
    #[test]
    fn a_summary_says_of_a_finished_job_what_the_job_says(job in arbitrary::job(), filter in filter()) {
        prop_assume!(job.is_settled());
        let (key, mut value) = (key(&job), Vec::new());
        encode(&job, &mut value).expect("every summary can be written");
        let summary = decode(&key, &value).map_err(|Corrupt(what)| TestCaseError::fail(what))?;

        prop_assert_eq!(summary.id, job.id.as_str());
        prop_assert_eq!(summary.values, SortValues::from(&job));
        prop_assert_eq!(summary.matches(&filter), filter.matches(&job));
        for field in GroupField::ALL {
            prop_assert_eq!(summary.group(field), field.value(&job));
        }
    }

    #[test]
    fn keys_come_newest_first(one in arbitrary::job(), other in arbitrary::job()) {
        let place = |job: &Job| (std::cmp::Reverse(job.created_at), job.id.clone());
        prop_assert_eq!(key(&one).cmp(&key(&other)), place(&one).cmp(&place(&other)));
        prop_assert!(key(&one).starts_with(&key_prefix(one.created_at)));
    }

    #[test]
    fn no_bytes_make_reading_panic(key in any::<Vec<u8>>(), value in any::<Vec<u8>>()) {
        drop(decode(&key, &value));
    }
}
