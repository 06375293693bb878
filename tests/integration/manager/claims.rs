//! Claims that are made again, made elsewhere, or whose outcome nobody knows; and a job that two managers work on.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use leasehold::query::Search;
use leasehold::store::elasticsearch::ElasticsearchOptions;

use super::*;
use crate::interference::{Gate, Interfered, InterferedEngine, Interference};
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::servers;
use crate::store::elasticsearch::{connect, patient};

cases! {
    a_named_claim_finds_its_jobs_again_at_the_next_process,
    a_job_lives_across_two_managers,
}

/// Holds up every search for the jobs of one queue that is made for a claim. (A survey asks for the oldest one only.)
#[derive(Default)]
struct HeldSearches(Gate);

#[async_trait]
impl Interference for HeldSearches {
    async fn before_search(&self, search: &Search) {
        if search.filter.queues == [queue()] && search.limit > 1 {
            self.0.pass().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_dropped_while_it_searches_hides_no_job() {
    let site = Site::on(engines::embedded().await, config()).await;
    let later = NewJob { run_at: Some(site.clock.now().plus(Duration::from_secs(1))), ..new_job() };
    let ids = [site.submit(new_job()).await, site.submit(later).await].map(|job| job.versioned.job.id.clone());
    site.engine.settle().await;
    let gate = Arc::new(HeldSearches::default());
    let gated = Interfered::around(Arc::clone(&site.store), &gate);
    let manager = Manager::start(gated, Arc::clone(&site.clock) as Arc<dyn Clock>, config());
    let dropped = {
        let manager = manager.clone();
        tokio::spawn(async move { manager.claim(claim(1)).await })
    };
    gate.0.reached.cancelled().await;
    dropped.abort();
    assert!(dropped.await.is_err_and(|error| error.is_cancelled()));
    gate.0.open.cancel();
    for id in ids {
        let claimed = taken(manager.claim(claim(1)).await.expect("answered"));
        assert_eq!(claimed.iter().map(|found| &found.job.id).collect::<Vec<_>>(), [&id]);
        site.clock.advance(Duration::from_secs(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_made_anew_while_it_searched_takes_nothing() {
    let site = Site::on(engines::embedded().await, config()).await;
    let id = site.submit(new_job()).await.versioned.job.id.clone();
    site.engine.settle().await;
    let gate = Arc::new(HeldSearches::default());
    let gated = Interfered::around(Arc::clone(&site.store), &gate);
    let manager = Manager::start(gated, Arc::clone(&site.clock) as Arc<dyn Clock>, config());
    let first = {
        let manager = manager.clone();
        tokio::spawn(async move { manager.claim(named("call")).await })
    };
    gate.0.reached.cancelled().await;
    // The worker has lost its connection and asks anew, elsewhere this time: nobody reads the first answer any more.
    let elsewhere = ClaimRequest { queues: vec![QueueName::new("other").expect("a name")], ..named("call") };
    assert!(taken(manager.claim(elsewhere).await.expect("answered")).is_empty());
    gate.0.open.cancel();
    assert!(taken(first.await.expect("no panic").expect("answered")).is_empty());
    let job = site.job(&id).await.versioned.job;
    assert_eq!((job.state.name(), job.fence), (JobState::Available, Fence::default()));
    assert_eq!(taken(manager.claim(named("next call")).await.expect("answered")).len(), 1);
}

async fn a_named_claim_finds_its_jobs_again_at_the_next_process(site: Site) {
    let id = site.submit(new_job()).await.versioned.job.id.clone();
    drop(site.manager.claim(named("call")).await.expect("the claim is answered"));
    site.submit(new_job()).await;
    // Its worker did not hear that the process ended, and does not say that it has asked before.
    let next = site.another_manager();
    let again = taken(next.claim(named("call")).await.expect("answered"));
    assert_eq!(again.iter().map(|found| found.job.id.clone()).collect::<Vec<_>>(), [id]);
}

/// Counts the searches for the jobs of a named claim.
#[derive(Default)]
struct SearchesByName(AtomicUsize);

#[async_trait]
impl Interference for SearchesByName {
    async fn before_search(&self, search: &Search) {
        self.0.fetch_add(usize::from(search.filter.request_id.is_some()), Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_under_a_new_name_costs_no_search_once_none_can_be_from_before_the_start() {
    let searches = Arc::new(SearchesByName::default());
    let engine = InterferedEngine::around(engines::embedded().await, &searches);
    let site = Site::on(engine, config()).await;
    let searched = async |request: ClaimRequest| {
        site.claim(request).await;
        searches.0.swap(0, Ordering::Relaxed)
    };
    assert_eq!(searched(named("first")).await, 1);
    site.clock.advance(Duration::from_secs(599));
    assert_eq!(searched(named("second")).await, 1);
    site.clock.advance(Duration::from_secs(1));
    assert_eq!(searched(named("third")).await, 0);
    assert_eq!(searched(ClaimRequest { repeated: true, ..named("fourth") }).await, 1, "another manager may have it");
}

/// Whatever one manager remembers of a job, what it answers is so.
async fn a_job_lives_across_two_managers(site: Site) {
    let other = Site {
        engine: engines::embedded().await,
        store: Arc::clone(&site.store),
        clock: Arc::clone(&site.clock),
        manager: site.another_manager(),
    };
    let id = site.submit(NewJob::of(JobSpec { max_attempts: 2, ..spec() })).await.versioned.job.id.clone();
    site.engine.settle().await;
    let first = other.claim_one().await;
    site.clock.advance(Duration::from_secs(1));
    let heard = site.beat(&first).await.expect("the first manager has seen it wait, and hears its worker");
    assert_eq!(heard.lease_expires_at, site.clock.now().plus(LEASE));
    let waiting = other.finish(&first, failed(true)).await.expect("accepted");
    assert!(is_lease_lost(&site.beat(&first).await), "the first manager has seen it run, and it runs no more");

    // A second longer, since the job may be in the share of the other manager, which has had workers too.
    site.clock.advance(waiting.job.run_at.since(site.clock.now()) + Duration::from_secs(1));
    site.engine.settle().await;
    let second = site.claim_one().await;
    assert_eq!((&second.job.id, second.job.fence), (&id, Fence::new(2)));
    assert!(is_lease_lost(&other.beat(&first).await));
    other.beat(&second).await.expect("heard at the other one");
    site.manager.cancel(&caller(), &id, None).await.expect("asked for");
    assert!(other.beat(&second).await.expect("heard").cancel_requested);
    let done = other.finish(&second, completed("1")).await.expect("the work is done");
    let again = site.finish(&second, completed("1")).await.expect("it is the same finish");
    assert_eq!(again, done, "nothing is written the second time");
    let refused = site.manager.cancel(&caller(), &id, None).await;
    assert!(matches!(refused, Err(ManagerError::Refused(Refusal::AlreadyFinal(_)))), "{refused:?}");

    for here in [&site, &other] {
        assert_eq!(here.job(&id).await.versioned, done);
    }
    let steps: Vec<_> = done.job.history.entries().iter().map(|entry| (entry.from, entry.to)).collect();
    assert!(steps.windows(2).all(|pair| pair[1].0 == Some(pair[0].1)), "no gap: {steps:?}");
    assert_eq!(steps.len(), 6, "{steps:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn elasticsearch_a_claim_that_was_written_and_never_answered_is_given_back() {
    let server = servers::elasticsearch().await;
    let faults = Faults { one_in: 1, seed: 1, kinds: vec![Fault::Swallow] };
    let proxy = FaultProxy::start(server.url(), faults).await;
    let set = server.index_set().await;
    let clean = patient(set.url(), set.prefix());
    let hasty = ElasticsearchOptions {
        urls: vec![proxy.url()],
        request_timeout: Duration::from_millis(1_000),
        read_timeout: Duration::from_millis(1_500),
        write_timeout: Duration::from_millis(1_500),
        ..clean.clone()
    };
    let clean: Arc<dyn Store> = Arc::new(connect(clean).await);
    let time = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
    let clock: Arc<dyn Clock> = Arc::clone(&time) as Arc<dyn Clock>;
    // By a manager that waits until it is written.
    let elsewhere = Manager::start(Arc::clone(&clean), Arc::clone(&clock), config());
    let submitted = elsewhere.submit(&caller(), vec![new_job()]).await.pop().expect("one answer").expect("taken");
    let id = submitted.job.versioned.job.id.clone();
    engines::refresh(&*clean).await;
    let manager = Manager::start(Arc::new(connect(hasty).await), clock, config());
    until("the queues are known", async || manager.know_queues().await.is_ok()).await;
    until("the other manager is known", async || manager.know_members().await.is_ok()).await;

    // The claim's write, and what it is looked up with.
    proxy.inject_into(&["_bulk", "_mget"]);
    let mut unknown = Ok(Vec::new());
    until("a claim that is written", async || {
        unknown = manager.claim(claim(1)).await.map(taken);
        // A busy server may not find the job in so short a time: then nothing was written.
        !matches!(&unknown, Err(ManagerError::Store(_))) && !unknown.as_ref().is_ok_and(Vec::is_empty)
    })
    .await;
    assert!(matches!(unknown, Err(ManagerError::Unknown(_))), "{unknown:?}");
    let job = async || clean.get(std::slice::from_ref(&id)).await.expect("read").remove(0).expect("there").job;
    until("the claim's write", async || job().await.state.name() == JobState::Running).await;
    proxy.inject(false);
    until("the job's return", async || job().await.state == State::Available).await;
    let job = job().await;
    assert_eq!((job.fence, job.attempt.get()), (Fence::new(1), 0), "the attempt does not count");
    // The job may be in the share of the manager that gave it back, and is then left to it for a second.
    time.advance(Duration::from_secs(1));
    engines::refresh(&*clean).await;
    let again = elsewhere.claim(ClaimRequest { wait: PATIENCE, ..claim(1) }).await.expect("answered");
    assert_eq!(taken(again).iter().map(|found| found.job.fence).collect::<Vec<_>>(), [Fence::new(2)]);
}
