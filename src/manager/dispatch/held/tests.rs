use std::sync::Arc;

use foldhash::quality::RandomState;

use super::*;
use crate::clock::Timestamp;
use crate::job::{Actor, Body, Concurrency, ConcurrencyKey, Conditions, JobSpec, Kind, Offers, Ordered, QueueName};
use crate::manager::dispatch::lane::Lane;
use crate::manager::dispatch::open_queues::OpenQueues;
use crate::manager::dispatch::room::{Resources, Wish};
use crate::manager::request::ClaimOrder;
use crate::store::{Place, Version};

fn now() -> Timestamp {
    Timestamp::from_millis(5)
}

fn name(text: &str) -> LimitName {
    text.parse().expect("a limit")
}

/// What holds the jobs of a limit in the queue of the candidates.
fn limit(text: &str) -> HeldBy {
    HeldBy::Limit(name(text), QueueName::system("q"))
}

/// Queues that claims take jobs from.
#[derive(Default)]
struct Claims {
    lanes: HashMap<QueueName, Lane, RandomState>,
    paused: HashSet<QueueName>,
}

impl Claims {
    fn of_all() -> Self {
        Self::default().with("q", &[])
    }

    fn with(mut self, queue: &str, kinds: &[&str]) -> Self {
        let kinds: Vec<Kind> = kinds.iter().map(|kind| Kind::new(*kind).expect("a kind")).collect();
        let (resources, labels, order) = (Resources::new(), Offers::new(), ClaimOrder::Dispatch);
        let wish =
            Wish { queues: &[], max_jobs: 1, resources: &resources, labels: &labels, kinds: &kinds, order: &order };
        let queue = QueueName::new(queue).expect("a queue");
        self.lanes.entry(queue).or_default().offers.note(&wish, now());
        self
    }

    fn open(&self) -> OpenQueues<'_> {
        OpenQueues { lanes: &self.lanes, paused: &self.paused, now: now() }
    }
}

fn in_line(number: usize, key: &str, seq: u64) -> Versioned {
    let key = OrderingKey::new(key).expect("a key");
    let mut candidate = candidate(number, "db", 0);
    let ordering = Some(Ordered { key, seq, first: seq });
    let conditions = Conditions { ordering, ..Conditions::default() }.stored();
    let job = Arc::make_mut(&mut candidate.job);
    job.spec = Arc::new(JobSpec { conditions, ..JobSpec::clone(&job.spec) });
    candidate
}

fn candidate(number: usize, key: &str, priority: i64) -> Versioned {
    let concurrency = Some(Concurrency { key: ConcurrencyKey::new(key).expect("a key"), max: 1 });
    let spec = JobSpec {
        priority: Priority::new(priority).expect("a priority"),
        conditions: Conditions { concurrency, ..Conditions::default() }.stored(),
        ..JobSpec::new(QueueName::system("q"), Kind::system("k"))
    };
    let id = JobId::new(format!("j{number:05}")).expect("an id");
    let at = Timestamp::from_millis(1);
    let job = Job::submit(id, Arc::new(spec), Body::Empty, (at, None), &Actor::system("a"), at);
    let version = Version { place: Place::Main, primary_term: 1, seq_no: 1 };
    Versioned { job: Arc::new(job), version }
}

/// The same candidate in another queue, and of this kind.
fn with(mut candidate: Versioned, queue: &str, kind: &str) -> Versioned {
    let job = Arc::make_mut(&mut candidate.job);
    let mut spec = JobSpec::clone(&job.spec);
    spec.queue = QueueName::new(queue).expect("a queue");
    spec.kind = Kind::new(kind).expect("a kind");
    job.spec = Arc::new(spec);
    candidate
}

fn all<'a>(held: impl Iterator<Item = &'a HeldBy>) -> Vec<HeldBy> {
    held.cloned().collect()
}

fn ids(jobs: &[Versioned]) -> Vec<&str> {
    jobs.iter().map(|held| held.job.id.as_str()).collect()
}

#[test]
fn jobs_are_held_behind_those_of_their_limit_and_go_on_in_the_order_of_dispatch() {
    let (mut held, claims) = (Held::default(), Claims::of_all());
    assert!(held.keep(candidate(1, "db", 0)).is_some(), "nothing is held yet");
    held.hold(&limit("key:db"), candidate(1, "db", 0));
    assert!(held.keep(candidate(2, "db", 0)).is_none() && held.keep(candidate(3, "db", 9)).is_none());
    assert!(held.keep(candidate(4, "other", 0)).is_some());
    let first = held.let_go(&name("key:db"), 1, &claims.open());
    assert_eq!(ids(&first), ["j00003"]);
    assert!(held.keep(first[0].clone()).is_some(), "it was let go");
    held.is_taken(&first[0].job);
    assert!(held.keep(first[0].clone()).is_none(), "it was taken, and came back without a slot");
    assert!(held.remove(&first[0].job.id) && !held.remove(&first[0].job.id));
    assert_eq!(ids(&held.let_go(&name("key:db"), 9, &claims.open())), ["j00001", "j00002"]);
    assert!(held.keep(candidate(5, "db", 0)).is_some(), "none is held any more");
}

#[test]
fn an_urgent_job_goes_on_while_a_limit_keeps_its_last_places_free_and_is_held_once_it_is_full() {
    let (mut held, db) = (Held::default(), limit("key:db"));
    held.hold(&db, candidate(1, "db", 0));
    held.is_full_below(&name("key:db"), Priority::new(50));
    assert!(held.keep(candidate(2, "db", 49)).is_none());
    assert!(held.keep(candidate(3, "db", 50)).is_some());
    held.hold(&db, candidate(4, "db", 50));
    held.is_full_below(&name("key:db"), None);
    assert!(held.keep(candidate(5, "db", 99)).is_none());
    assert_eq!(
        ids(&held.let_go(&name("key:db"), 9, &Claims::of_all().open())),
        ["j00005", "j00004", "j00002", "j00001"]
    );
}

#[test]
fn of_more_jobs_than_are_kept_the_first_stay_and_the_rest_is_searched_for() {
    let (mut held, claims) = (Held::default(), Claims::of_all());
    for number in (0..=MOST_HELD).rev() {
        held.hold(&limit("key:db"), candidate(number, "db", 0));
    }
    assert_eq!(all(held.with_more()), [limit("key:db")]);
    assert!(held.begin_searches(9, &claims.open()).is_empty());
    let gone = held.let_go(&name("key:db"), MOST_HELD - LOW + 1, &claims.open());
    assert_eq!((gone.len(), ids(&gone)[0]), (MOST_HELD - LOW + 1, "j00000"));
    let searches = held.begin_searches(9, &claims.open());
    assert_eq!(searches.len(), 1);
    held.hold_again(&limit("key:db"), vec![candidate(MOST_HELD, "db", 0)], false);
    assert!(all(held.with_more()).is_empty() && held.begin_searches(9, &claims.open()).is_empty());
    let last = held.let_go(&name("key:db"), MOST_HELD, &claims.open());
    assert_eq!(ids(&last).last(), Some(&"j01000"));

    held.hold(&limit("key:db"), candidate(1, "db", 0));
    held.forget();
    assert!(held.places.is_empty());
    let searches = held.begin_searches(9, &claims.open());
    assert_eq!(searches.len(), 1, "all are to be searched for");
    held.hold_again(&limit("key:db"), Vec::new(), false);
    assert!(held.keep(candidate(1, "db", 0)).is_some());
}

#[test]
fn only_jobs_go_on_that_somebody_can_take() {
    let mut held = Held::default();
    let in_queue = |number: usize, queue: &str, kind: &str| with(candidate(number, "db", 0), queue, kind);
    let by = |queue: &str| HeldBy::Limit(name("key:db"), QueueName::new(queue).expect("a queue"));
    for (number, queue, kind) in
        [(1, "paused", "k"), (2, "deserted", "k"), (3, "q", "other"), (4, "r", "k"), (5, "q", "k")]
    {
        held.hold(&by(queue), in_queue(number, queue, kind));
    }
    let mut claims = Claims::default().with("paused", &[]).with("q", &["k"]).with("r", &[]);
    claims.paused.insert(QueueName::new("paused").expect("a queue"));
    assert_eq!(held.next_of(&name("key:db"), &claims.open()).expect("one").id.as_str(), "j00004");
    assert_eq!(ids(&held.let_go(&name("key:db"), 9, &claims.open())), ["j00004", "j00005"]);
    // It has room for more, and holds nothing any more but in the paused queue.
    let (others, with_more) = held.take_apart(&name("key:db"), &claims.open());
    assert_eq!((ids(&others), with_more), (vec!["j00002", "j00003"], vec![]));
    assert!(held.keep(in_queue(3, "q", "other")).is_some() && held.keep(in_queue(6, "paused", "k")).is_none());
    claims.paused.clear();
    assert_eq!(ids(&held.let_go(&name("key:db"), 9, &claims.open())), ["j00001", "j00006"]);
    held.hold(&by("q"), in_queue(3, "q", "other"));
    assert!(held.let_go(&name("key:db"), 9, &claims.open()).is_empty());
    let claims = claims.with("q", &["other"]);
    assert_eq!(ids(&held.let_go(&name("key:db"), 9, &claims.open())), ["j00003"], "somebody takes it by now");
}

#[test]
fn in_a_line_what_comes_first_passes_and_the_others_are_held_behind_it() {
    let (mut held, key) = (Held::default(), OrderingKey::new("a").expect("a key"));
    let job = |seq: u64| in_line(seq as usize, "a", seq);
    assert!(held.keep(job(2)).is_some(), "nothing is known to come before it");
    held.is_taken(&job(2).job);
    assert!(held.keep(job(4)).is_none() && held.keep(job(3)).is_none() && held.keep(in_line(9, "b", 9)).is_some());
    assert!(held.keep(job(1)).is_some() && held.keep(job(2)).is_some(), "nothing comes before them");
    // It was not first after all.
    held.hold(&HeldBy::Line(key.clone()), job(2));
    held.is_first(&key, 1, &job(1).job.id);
    assert_eq!(held.next_in_line(&key, Some((3, &job(3).job.id))), None, "the first is handed out");
    let mut next = |ended: u64| held.next_in_line(&key, Some((ended, &job(ended).job.id)));
    assert_eq!(next(1), Some(job(2)));
    assert_eq!(next(2), Some(job(3)));
    assert_eq!(held.keep(job(5)), None, "one is still held before it");
    assert_eq!(held.next_in_line(&key, None), Some(job(4)));
    assert_eq!(held.next_in_line(&key, None), Some(job(5)));
    assert!(held.by.is_empty() && held.places.is_empty());
}

#[test]
fn what_was_handed_out_is_forgotten_once_nobody_waits_behind_it() {
    let mut held = Held::default();
    held.is_taken(&in_line(1, "a", 1).job);
    held.forget_idle_lines();
    assert!(held.keep(in_line(2, "a", 2)).is_none());
    held.is_taken(&in_line(3, "b", 3).job);
    for _ in 0..2 {
        held.forget_idle_lines();
    }
    assert!(held.keep(in_line(4, "b", 4)).is_some(), "it is forgotten");
    assert!(held.keep(in_line(5, "a", 5)).is_none(), "one is held");
}
