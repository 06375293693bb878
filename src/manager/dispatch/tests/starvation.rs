//! Whenever a claim could have a job, it has one within a few looks, whatever is before it: jobs of queues that are
//! paused or that nobody takes from, of other kinds, with requirements that others or none meet, or under a limit.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::job::{JobState, LimitName, Owner};
use crate::query::{Filter, Search};

/// The most looks from one job to the next.
const LOOKS: usize = 16;

const LABELS: [&str; 3] = ["gpu", "ssd", "zone"];

/// Jobs that are alike, all before those of the next group.
#[derive(Clone, Debug)]
struct Jobs {
    queue: &'static str,
    kind: &'static str,
    requires: Option<&'static str>,
    is_limited: bool,
    count: usize,
}

#[derive(Clone, Debug)]
struct Worker {
    kinds: Vec<&'static str>,
    labels: Vec<&'static str>,
    /// Whether it claims now and then only.
    is_busy: bool,
}

/// A store, a limit, and the manager's loops over a dispatch, look by look.
struct World {
    bench: Bench,
    available: Vec<Versioned>,
    running: Vec<Versioned>,
    limit: LimitName,
    max: usize,
}

impl World {
    fn of(groups: &[Jobs], (max, page): (usize, usize)) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(START)));
        let config = DispatchConfig { capacity: 2 * page, page, poll_interval: None };
        let dispatch = Dispatch::new(config, Arc::clone(&clock) as Arc<dyn Clock>);
        let mut available = Vec::new();
        for (order, group) in groups.iter().enumerate() {
            let requires = group.requires.map(|text| text.parse().expect("a requirement")).into_iter().collect();
            let spec = Arc::new(JobSpec {
                owner: group.is_limited.then(|| Owner::new("ann").expect("a name")),
                priority: Priority::new(9 - order as i64).expect("a priority"),
                conditions: Conditions { requires, ..Conditions::default() }.stored(),
                ..JobSpec::new(queue(group.queue), Kind::new(group.kind).expect("a name"))
            });
            let at = Timestamp::from_millis(START);
            let version = Version { place: Place::Main, primary_term: 1, seq_no: 1 };
            available.extend((0..group.count).map(|number| {
                let id = JobId::new(format!("{order}-{number:05}")).expect("an id");
                let job = Job::submit(id, Arc::clone(&spec), Body::Empty, (at, None), &Actor::system("test"), at);
                Versioned { job: Arc::new(job), version }
            }));
        }
        dispatch.hold_back([queue("paused")].into());
        let limit = "owner:ann".parse().expect("a limit");
        Self { bench: Bench { clock, dispatch }, available, running: Vec::new(), limit, max }
    }

    fn search(&self, search: &Search) -> Vec<Versioned> {
        let hits = self.available.iter().filter(|hit| search.filter.matches(&hit.job));
        let after = |hit: &&Versioned| search.after.as_ref().is_none_or(|after| *after < Sort::Dispatch.key(&hit.job));
        hits.filter(after).take(search.limit).cloned().collect()
    }

    fn room(&self) -> usize {
        self.max.saturating_sub(self.running.iter().filter(|job| job.job.spec.owner.is_some()).count())
    }

    fn look_up(&self, queue: &QueueName) {
        let dispatch = &self.bench.dispatch;
        let of_queue = |now| {
            let (states, queues) = (vec![JobState::Available], vec![queue.clone()]);
            dispatch.without_held(queue, Filter { states, queues, run_at_most: Some(now), ..Filter::default() })
        };
        if let Some(lookup) = dispatch.begin_lookup(queue) {
            let (filter, after) = (of_queue(lookup.now), lookup.resume.clone());
            let due = self.search(&Search { filter, sort: Sort::Dispatch, after, limit: lookup.limit });
            dispatch.end_lookup(queue, &lookup, LookupResult { due, later: Vec::new() }, |_| true);
        }
        let Some(kinds) = dispatch.begin_look_for_kinds(queue) else { return };
        for wanted in &kinds.searches {
            let filter = Filter { kinds: vec![wanted.kind.clone()], ..of_queue(kinds.now) };
            let search = Search { filter, sort: Sort::Dispatch, after: wanted.after.clone(), limit: wanted.limit };
            dispatch.end_look_for_kind(queue, wanted, self.search(&search), |_| true);
        }
    }

    fn look(&mut self) {
        self.bench.clock.advance(Duration::from_millis(250));
        let dispatch = &self.bench.dispatch;
        for queue in dispatch.plan().lookups {
            self.look_up(&queue);
        }
        if dispatch.next_of(&self.limit).is_none() {
            dispatch.let_go(&self.limit, 1);
        } else if self.room() > 0 {
            dispatch.let_go_after_a_while(&self.limit, self.room());
        }
        for wanted in dispatch.begin_limit_searches(16) {
            let (states, queues) = (vec![JobState::Available], vec![wanted.queue.clone()]);
            let filter = Filter { states, queues, under: vec![wanted.limit.clone()], ..Filter::default() };
            let found = self.search(&Search { filter, sort: Sort::Dispatch, after: None, limit: MOST_HELD });
            let is_cut_off = found.len() >= MOST_HELD;
            dispatch.end_limit_search(wanted, found, is_cut_off);
        }
    }

    /// Claims for a worker, and returns how many jobs it has begun.
    fn claim(&mut self, worker: &Worker) -> usize {
        let (queues, labels) = (queues(&["q", "paused"]), worker.offers());
        let kinds: Vec<Kind> = worker.kinds.iter().map(|kind| Kind::new(*kind).expect("a name")).collect();
        let resources = Resources::new();
        let wish = Wish { kinds: &kinds, ..wish(&queues, 2, &resources, &labels) };
        for queue in self.bench.dispatch.stale(&queues) {
            self.look_up(queue);
        }
        let taken = self.bench.dispatch.take(&wish).map_or_else(Vec::new, Offer::take);
        let mut begun = 0;
        for candidate in taken {
            assert!(wish.suits(&candidate.job, &resources) && candidate.job.spec.queue == queue("q"));
            if candidate.job.spec.owner.is_some() && self.room() == 0 {
                self.bench.dispatch.hold(&self.limit, candidate, None);
                continue;
            }
            self.bench.dispatch.settle(&candidate.job.id, None);
            self.available.retain(|other| other.job.id != candidate.job.id);
            self.running.push(candidate);
            begun += 1;
        }
        begun
    }

    fn end_all(&mut self) {
        for ended in std::mem::take(&mut self.running) {
            if ended.job.spec.owner.is_some() {
                self.bench.dispatch.let_go(&self.limit, 1);
            }
        }
    }

    fn suits_somebody(&self, workers: &[Worker]) -> bool {
        let suits = |job: &Job| {
            job.spec.queue == queue("q")
                && workers.iter().filter(|worker| !worker.is_busy).any(|worker| {
                    let takes = worker.kinds.is_empty() || worker.kinds.contains(&job.spec.kind.as_str());
                    takes && meets(&worker.offers(), job)
                })
        };
        self.available.iter().any(|available| suits(&available.job))
    }
}

impl Worker {
    fn offers(&self) -> Offers {
        self.labels.iter().map(|label| ((*label).to_owned(), "a".to_owned())).collect()
    }
}

fn jobs() -> impl Strategy<Value = Jobs> {
    let requires = prop_oneof![Just(None), select(&LABELS[..]).prop_map(Some)];
    let count = prop_oneof![3 => 1_usize..20, 1 => Just(1_200), 1 => Just(4_000)];
    let of = (select(&["q", "q", "q", "paused", "deserted"][..]), select(&["k", "other"][..]), requires, any::<bool>());
    (of, count).prop_map(|((queue, kind, requires, is_limited), count)| Jobs {
        queue,
        kind,
        requires,
        is_limited,
        count,
    })
}

fn worker() -> impl Strategy<Value = Worker> {
    let labels = proptest::sample::subsequence(&LABELS[..2], 0..=2);
    (select(vec![vec![], vec!["k"]]), labels, proptest::bool::weighted(0.3))
        .prop_map(|(kinds, labels, is_busy)| Worker { kinds, labels, is_busy })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_claim_that_could_have_a_job_has_one_within_a_few_looks(
        groups in proptest::collection::vec(jobs(), 1..8),
        workers in proptest::collection::vec(worker(), 1..4),
        max in 1_usize..4,
        page in select(&[500_usize, 2_000][..]),
    ) {
        let mut world = World::of(&groups, (max, page));
        let mut since = 0;
        // It goes on for a while only, where there are thousands of jobs that somebody can take.
        for round in 0..400 {
            if !world.suits_somebody(&workers) {
                break;
            }
            world.end_all();
            world.look();
            let claiming = workers.iter().filter(|worker| !worker.is_busy || round % 100 == 0);
            let begun: usize = claiming.map(|worker| world.claim(worker)).sum();
            since = if begun > 0 { 0 } else { since + 1 };
            prop_assert!(since <= LOOKS, "nothing for {since} looks, {} are left", world.available.len());
        }
    }
}
