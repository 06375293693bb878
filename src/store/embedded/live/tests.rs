use std::sync::Arc;

use proptest::option;
use proptest::prelude::*;

use super::super::arbitrary;
use super::*;
use crate::job::{JobSpec, Kind, Owner};
use crate::query::dispatch_key;
use crate::store::{Place, Version};

const NO_VERSION: Version = Version { place: Place::Main, primary_term: 0, seq_no: 0 };

/// Live jobs with few ids, so that some replace others.
fn heads() -> impl Strategy<Value = Vec<Versioned>> {
    let head = (arbitrary::job(), 0..30_u8, -1..2_i64, 0..3_u8).prop_map(|(job, id, priority, queue)| {
        let state = if job.is_settled() { State::Available } else { job.state.clone() };
        let spec = JobSpec {
            queue: QueueName::new(format!("queue-{queue}")).expect("a name"),
            priority: crate::job::Priority::new(priority).expect("a priority"),
            ..(*job.spec).clone()
        };
        let id = JobId::new(format!("job-{id}")).expect("an id");
        Versioned { job: Arc::new(Job { id, state, spec: Arc::new(spec), ..job }), version: NO_VERSION }
    });
    prop::collection::vec(head, 0..40)
}

fn available(queues: &[u8], run_at_most: Option<i64>) -> Filter {
    Filter {
        states: vec![JobState::Available],
        queues: queues.iter().map(|queue| QueueName::new(format!("queue-{queue}")).expect("a name")).collect(),
        held: Some(false),
        run_at_most: run_at_most.map(Timestamp::from_millis),
        ..Filter::default()
    }
}

proptest! {
    // A case makes up to forty whole jobs.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 8, ..ProptestConfig::default() })]

    #[test]
    fn dispatch_goes_by_the_dispatch_key(
        heads in heads(),
        queues in prop::collection::vec(0..4_u8, 0..4),
        latest in option::of(0..5_i64),
        after in option::of(any::<prop::sample::Index>()),
    ) {
        let mut live = Live::default();
        let mut jobs = std::collections::HashMap::new();
        for head in heads {
            live.put(head.clone());
            jobs.insert(head.job.id.clone(), head.job);
        }
        let filter = available(&queues, latest);
        let mut keys: Vec<SortKey> = jobs.values().filter_map(|job| dispatch_key(job)).collect();
        let after = after.filter(|_| !keys.is_empty()).map(|place| keys[place.index(keys.len())].clone());
        keys.retain(|key| filter.matches(&jobs[key.id()]) && after.as_ref().is_none_or(|after| key > after));
        keys.sort();

        let found = live.dispatch(&filter, after.as_ref()).map(|head| head.job.id.clone());

        prop_assert_eq!(found.collect::<Vec<_>>(), keys.iter().map(|key| key.id().clone()).collect::<Vec<_>>());
    }

    #[test]
    fn an_index_by_owner_has_what_all_jobs_have_whenever_it_was_made(
        heads in heads(),
        made_after in 0..40_usize,
        owned_by in prop::collection::vec(0..3_u8, 40),
        wanted in prop::collection::vec(0..3_u8, 1..3),
        latest in option::of(0..5_i64),
    ) {
        let owner = |number: u8| (number > 0).then(|| Owner::new(format!("owner-{number}")).expect("a name"));
        let owners: Vec<Owner> = wanted.iter().filter_map(|number| owner(*number)).collect();
        let filter = Filter { without_owner: owners.is_empty(), owners, ..available(&[1], latest) };
        let queue = filter.queues[0].clone();
        let (mut plain, mut indexed) = (Live::default(), Live::default());
        for (number, (mut head, by)) in heads.into_iter().zip(owned_by).enumerate() {
            if number == made_after {
                indexed.make_index(Index::Owner, &queue);
            }
            let spec = JobSpec { owner: owner(by), ..(*head.job.spec).clone() };
            Arc::make_mut(&mut head.job).spec = Arc::new(spec);
            plain.put(head.clone());
            indexed.put(head);
        }
        indexed.make_index(Index::Owner, &queue);

        let found = |live: &Live| {
            let found = live.dispatch(&filter, None).filter(|head| filter.matches(&head.job));
            found.map(|head| head.job.id.clone()).collect::<Vec<_>>()
        };
        prop_assert_eq!(found(&plain), found(&indexed));
        let all = Filter { owners: Vec::new(), without_owner: false, ..filter.clone() };
        let mut counts: std::collections::BTreeMap<Option<String>, u64> = std::collections::BTreeMap::new();
        for head in plain.dispatch(&all, None) {
            *counts.entry(head.job.spec.owner.as_ref().map(ToString::to_string)).or_default() += 1;
        }
        let counted = indexed.count_by_owner(&queue, filter.run_at_most).expect("an index");
        let counted: std::collections::BTreeMap<Option<String>, u64> =
            counted.into_iter().map(|group| (group.values[0].clone(), group.count)).collect();
        prop_assert_eq!(counted, counts);
    }

    #[test]
    fn an_index_by_kind_has_what_all_jobs_have_whenever_it_was_made(
        heads in heads(),
        made_after in 0..40_usize,
        of_kinds in prop::collection::vec(0..3_u8, 40),
        wanted in prop::collection::vec(0..3_u8, 1..3),
        latest in option::of(0..5_i64),
    ) {
        let kind = |number: u8| Kind::new(format!("kind-{number}")).expect("a name");
        let kinds = wanted.into_iter().map(kind).collect();
        let filter = Filter { kinds, ..available(&[1], latest) };
        let queue = filter.queues[0].clone();
        let (mut plain, mut indexed) = (Live::default(), Live::default());
        for (number, (mut head, of_kind)) in heads.into_iter().zip(of_kinds).enumerate() {
            if number == made_after {
                indexed.make_index(Index::Kind, &queue);
            }
            let spec = JobSpec { kind: kind(of_kind), ..(*head.job.spec).clone() };
            Arc::make_mut(&mut head.job).spec = Arc::new(spec);
            plain.put(head.clone());
            indexed.put(head);
        }
        indexed.make_index(Index::Kind, &queue);
        let all = |live: &Live| live.dispatch(&filter, None).map(|head| head.job.clone()).collect::<Vec<_>>();
        let found = all(&indexed);
        prop_assert!(found.iter().all(|job| filter.matches(job)), "it has no jobs of other kinds");
        prop_assert_eq!(all(&plain).into_iter().filter(|job| filter.matches(job)).collect::<Vec<_>>(), found);
    }

    #[test]
    fn what_is_taken_out_leaves_nothing_behind(heads in heads()) {
        let mut live = Live::default();
        for head in &heads {
            live.put(head.clone());
        }
        let kept: std::collections::HashSet<&JobId> = heads.iter().map(|head| &head.job.id).collect();
        prop_assert_eq!(live.counts().map(|(_, _, count)| count).sum::<u64>(), kept.len() as u64);
        for head in &heads {
            live.remove(&head.job.id);
        }
        prop_assert!(live.all().iter().all(|shard| shard.is_empty()));
        prop_assert!(live.available.is_empty() && live.counts.is_empty());
        prop_assert!(live.by_worker.is_empty() && live.by_request.is_empty() && live.lines.is_empty());
    }
}
