//! The looks at what is amiss: queues that starve, and jobs that are held for long.

use std::sync::Arc;
use std::time::Duration;

use super::starving::LOOKS;
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::job::{
    Actor, Body, Conditions, Job, JobId, JobSpec, Kind, LimitName, LimitScope, Offers, QueueName, WorkerId,
};
use crate::manager::{Caller, ClaimOrder, ClaimRequest, Manager, ManagerConfig, NewJob, NewLimit};
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};
use crate::store::{Store, Versioned, Write};

const DAY: Duration = Duration::from_secs(24 * 3600);

struct Bed {
    _place: tempfile::TempDir,
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    manager: Manager,
    caller: Caller,
}

/// Starts a manager whose own looks are over.
async fn bed() -> Bed {
    let place = tempfile::tempdir().expect("a directory");
    let store: Arc<dyn Store> =
        Arc::new(EmbeddedStore::open(place.path(), &EmbeddedOptions::default()).expect("the store opens"));
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
    let config = ManagerConfig { survey_interval: Duration::from_secs(86_400), ..ManagerConfig::default() };
    let manager = Manager::start(Arc::clone(&store), Arc::clone(&clock) as Arc<dyn Clock>, config);
    while manager.survey().latest.is_none() {
        tokio::task::yield_now().await;
    }
    Bed { _place: place, store, clock, manager, caller: Caller::system("ann") }
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a name")
}

fn spec(name: &str, requires: &[&str]) -> JobSpec {
    let requires = requires.iter().map(|text| text.parse().expect("a requirement")).collect();
    let conditions = Conditions { requires, ..Conditions::default() }.stored();
    JobSpec { conditions, ..JobSpec::new(queue(name), Kind::new("k").expect("a name")) }
}

fn claim(queues: &[&str], max_jobs: usize, wait: Duration) -> ClaimRequest {
    ClaimRequest {
        worker_id: WorkerId::system("worker"),
        bearer: None,
        queues: queues.iter().map(|name| queue(name)).collect(),
        max_jobs,
        resources: [].into(),
        labels: Offers::default(),
        kinds: Vec::new(),
        wait,
        lease: Duration::from_secs(60),
        order: ClaimOrder::Dispatch,
        request_id: None,
        repeated: false,
    }
}

impl Bed {
    /// Writes a job to the store behind the manager's back, as if the dispatch had lost it.
    async fn lose(&self, id: &str, spec: JobSpec) -> Versioned {
        let (id, now) = (JobId::new(id).expect("an id"), self.clock.now());
        let actor = Actor::system("test");
        let job = Arc::new(Job::submit(id, Arc::new(spec), Body::Empty, (now, None), &actor, now));
        let create = Write::Create { job: Arc::clone(&job), bodies: Vec::new() };
        let version = self.store.write(vec![create]).await.remove(0).expect("written");
        Versioned { job, version }
    }

    /// Looks as a survey does. Returns how many queues starve.
    async fn look(&self) -> usize {
        self.manager.take_survey().await;
        self.manager.look_for_starving().await
    }

    async fn submit(&self, name: &str) -> JobId {
        let submitted = self.manager.submit(&self.caller, vec![NewJob::of(spec(name, &[]))]).await.remove(0);
        submitted.expect("submitted").job.versioned.job.id.clone()
    }

    async fn limit(&self, name: &str, new: NewLimit) {
        let name = LimitName::new(LimitScope::Queue, &queue(name));
        self.manager.set_limit(&self.caller, &name, new).await.expect("set");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_starves_when_a_job_that_suits_a_waiting_claim_is_handed_out_at_no_look() {
    let bed = bed().await;
    bed.manager.pause(&bed.caller, &queue("paused"), None).await.expect("paused");
    let paused_until = Some(bed.clock.now().plus(DAY));
    bed.limit("limited", NewLimit { paused_until, ..NewLimit::default() }).await;
    let (manager, queues) = (bed.manager.clone(), ["starved", "paused", "limited", "picky"]);
    let waiting = tokio::spawn(async move { manager.claim(claim(&queues, 1, Duration::from_secs(600))).await });
    while bed.manager.shared.dispatch.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    // More than one search finds, before the one that suits.
    for number in 0..60 {
        bed.lose(&format!("picky-{number}"), spec("starved", &["hw = fpga"])).await;
    }
    bed.clock.advance(Duration::from_millis(1));
    for name in ["paused", "limited", "deserted"] {
        bed.lose(name, spec(name, &[])).await;
    }
    bed.lose("picky", spec("picky", &["hw = fpga"])).await;
    let lost = bed.lose("lost", spec("starved", &[])).await;

    assert_eq!(bed.look().await, 0, "one look says nothing");
    for _ in 1..LOOKS {
        bed.look().await;
    }
    assert_eq!(bed.look().await, 1);
    bed.manager.shared.dispatch.add([lost]);
    let claimed = waiting.await.expect("it goes on").expect("claimed");
    assert_eq!(claimed.jobs().len(), 1);
    assert_eq!(bed.look().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_comes_to_a_part_of_the_queues_and_the_next_ones_to_the_others() {
    const QUEUES: usize = 25;
    let bed = bed().await;
    let names: Vec<String> = (0..QUEUES).map(|number| format!("q{number}")).collect();
    let (manager, queues) = (bed.manager.clone(), names.clone());
    let waiting = tokio::spawn(async move {
        let queues: Vec<&str> = queues.iter().map(String::as_str).collect();
        manager.claim(claim(&queues, 1, Duration::from_secs(600))).await
    });
    while bed.manager.shared.dispatch.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    for name in &names {
        bed.lose(name, spec(name, &[])).await;
    }
    let mut starving = Vec::new();
    for _ in 0..4 * LOOKS {
        starving.push(bed.look().await);
    }
    assert!(starving[LOOKS as usize - 1] < QUEUES, "a look asks for no more than a few: {starving:?}");
    assert_eq!(starving.last(), Some(&QUEUES), "{starving:?}");
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_held_for_long_by_people_pauses_and_limits_once_the_bound_is_over() {
    let bed = bed().await;
    let held = bed.submit("held").await;
    bed.manager.hold(&bed.caller, &held, None).await.expect("held");
    bed.submit("paused").await;
    bed.manager.pause(&bed.caller, &queue("paused"), None).await.expect("paused");
    bed.limit("limited", NewLimit { max_concurrent: Some(1), ..NewLimit::default() }).await;
    for _ in 0..3 {
        bed.submit("limited").await;
    }
    let claimed = bed.manager.claim(claim(&["limited"], 3, Duration::ZERO)).await.expect("claimed");
    assert_eq!(claimed.jobs().len(), 1);
    bed.clock.advance(DAY - Duration::from_millis(1));
    let counted = async || bed.manager.held_long(DAY).await.expect("counted");
    assert_eq!(counted().await, [("hold", 0), ("pause", 0), ("limit", 0)]);
    bed.clock.advance(Duration::from_millis(1));
    // Nobody waits for jobs that are submitted only now.
    bed.submit("paused").await;
    assert_eq!(counted().await, [("hold", 1), ("pause", 1), ("limit", 2)]);
}
