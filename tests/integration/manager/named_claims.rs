//! Claims that their worker can ask for again, under a `request_id`.

use leasehold::store::elasticsearch::ElasticsearchOptions;

use super::*;
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::servers::{self, IndexSet};
use crate::store::elasticsearch::{connect, patient};

pub(super) async fn a_named_claim_finds_its_jobs_again(site: Site) {
    let id = site.submit(new_job()).await.versioned.job.id.clone();
    drop(site.manager.claim(named("call")).await.expect("the claim is answered"));
    site.submit(new_job()).await;
    let again = site.claim(named("call")).await;
    assert_eq!(
        again.iter().map(|found| (found.job.id.clone(), found.job.fence)).collect::<Vec<_>>(),
        [(id, Fence::new(1))]
    );
    assert_eq!(site.claim(named("next call")).await.len(), 1);
}

pub(super) async fn a_named_claim_finds_its_jobs_again_at_another_manager(site: Site) {
    let id = site.submit(new_job()).await.versioned.job.id.clone();
    drop(site.manager.claim(named("call")).await.expect("the claim is answered"));
    site.submit(new_job()).await;
    let other = site.another_manager();
    let again = taken(other.claim(ClaimRequest { repeated: true, ..named("call") }).await.expect("answered"));
    assert_eq!(again.iter().map(|found| found.job.id.clone()).collect::<Vec<_>>(), [id]);
}

pub(super) async fn a_named_claim_made_anew_supersedes_the_one_that_waits(site: Site) {
    let manager = site.manager.clone();
    let first = tokio::spawn(async move { manager.claim(ClaimRequest { wait: PATIENCE, ..named("call") }).await });
    until("a waiting claim", async || site.manager.waiting_claims() == 1).await;
    let manager = site.manager.clone();
    let second = tokio::spawn(async move { manager.claim(ClaimRequest { wait: PATIENCE, ..named("call") }).await });
    assert!(taken(first.await.expect("no panic").expect("answered")).is_empty());
    site.submit(new_job()).await;
    assert_eq!(taken(second.await.expect("no panic").expect("answered")).len(), 1);
}

pub(super) async fn a_named_claim_that_is_delivered_again_has_its_whole_lease(site: Site) {
    site.submit(new_job()).await;
    drop(site.manager.claim(named("call")).await.expect("the claim is answered"));
    site.clock.advance(LEASE - Duration::from_secs(1));
    let again = site.claim(named("call")).await.pop().expect("the job");
    assert_eq!(again.job.lease().map(|lease| lease.expires_at), Some(site.clock.now().plus(LEASE)));
    assert_eq!((again.job.fence, again.job.attempt.get()), (Fence::new(1), 1));
    assert_eq!(site.job(&again.job.id).await.versioned, again);
}

pub(super) async fn a_named_claim_whose_jobs_have_ended_takes_no_others(site: Site) {
    site.submit(new_job()).await;
    let claimed = site.claim(named("call")).await.pop().expect("the job");
    site.finish(&claimed, completed("1")).await.expect("accepted");
    let next = site.submit(new_job()).await.versioned.job.id.clone();
    assert!(site.claim(named("call")).await.is_empty(), "the call comes late, and nobody waits for its answer");
    assert_eq!(site.state(&next).await, JobState::Available);
    assert_eq!(site.claim(named("next call")).await.len(), 1);
}

pub(super) async fn a_named_claim_that_was_answered_with_none_takes_none(site: Site) {
    assert!(site.claim(named("call")).await.is_empty());
    site.submit(new_job()).await;
    assert!(site.claim(named("call")).await.is_empty());
    assert_eq!(site.claim(named("next call")).await.len(), 1);
}

fn start(store: Arc<dyn Store>, clock: &Arc<ManualClock>) -> Manager {
    Manager::start(store, Arc::clone(clock) as Arc<dyn Clock>, config())
}

/// A manager whose answers from Elasticsearch can be swallowed, and one with a good network.
struct CutOff {
    proxy: FaultProxy,
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    here: Manager,
    there: Manager,
    _set: IndexSet,
}

impl CutOff {
    async fn start() -> Self {
        let server = servers::elasticsearch().await;
        let faults = Faults { one_in: 1, seed: 2, kinds: vec![Fault::Swallow] };
        let proxy = FaultProxy::start(server.url(), faults).await;
        let set = server.index_set().await;
        let good = patient(set.url(), set.prefix());
        let bad = ElasticsearchOptions {
            urls: vec![proxy.url()],
            request_timeout: Duration::from_secs(1),
            read_timeout: Duration::from_secs(2),
            write_timeout: Duration::from_secs(2),
            ..good.clone()
        };
        // The clock stands still unless a search is to be made again, so that no decision can rest on it.
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
        let store: Arc<dyn Store> = Arc::new(connect(good).await);
        let there = start(Arc::clone(&store), &clock);
        let here = start(Arc::new(connect(bad).await), &clock);
        until("the queues are known", async || here.know_queues().await.is_ok()).await;
        until("the other manager is known", async || here.know_members().await.is_ok()).await;
        Self { proxy, store, clock, here, there, _set: set }
    }

    /// Claims a job without hearing of it, by this request or another one like it, which is returned.
    async fn claim_unheard(&self, mut request: ClaimRequest) -> (JobId, ClaimRequest) {
        let id = self.submit().await;
        // The claim's write, and what it is looked up with.
        self.proxy.inject_into(&["_bulk", "_mget"]);
        let (mut unheard, mut tries) = (Ok(Vec::new()), 0);
        until("a claim that is written", async || {
            unheard = self.here.claim(request.clone()).await.map(taken);
            let is_written = match &unheard {
                Err(error) => !matches!(error, ManagerError::Store(_)),
                Ok(jobs) => !jobs.is_empty(),
            };
            if !is_written {
                // A busy server may not find the job in so short a time. It is searched again a second later.
                tries += 1;
                self.clock.advance(Duration::from_secs(1));
                request.request_id = request.request_id.as_ref().and(named(&format!("call {tries}")).request_id);
            }
            is_written
        })
        .await;
        assert!(matches!(unheard, Err(ManagerError::Unknown(_))), "{unheard:?}");
        let claimed = async || self.store.get(std::slice::from_ref(&id)).await.expect("read").remove(0).expect("there");
        until("the claim's write", async || claimed().await.job.state.name() == JobState::Running).await;
        (id, request)
    }

    /// Submits a job by a third manager, which waits until it is written, so that neither of the two knows of it.
    async fn submit(&self) -> JobId {
        let elsewhere = start(Arc::clone(&self.store), &self.clock);
        let submitted = elsewhere.submit(&caller(), vec![new_job()]).await.pop().expect("one answer");
        engines::refresh(&*self.store).await;
        submitted.expect("the job is taken").job.versioned.job.id.clone()
    }

    /// Gives the cut-off manager its network back, and waits until it has done all that it had left to do.
    async fn heal(&self) {
        self.proxy.inject(false);
        self.here.shutdown().await;
    }

    async fn job(&self, id: &JobId) -> Versioned {
        self.there.get(id).await.expect("the job is there").versioned
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_delivered_again_is_not_taken_back() {
    let site = CutOff::start().await;
    let (id, request) = site.claim_unheard(named("call")).await;
    let again = site.there.claim(ClaimRequest { repeated: true, ..request }).await.expect("answered");
    let again = taken(again).pop().expect("the job");
    assert_eq!((&again.job.id, again.job.fence), (&id, Fence::new(1)));
    site.heal().await;
    assert_eq!(site.job(&id).await, again, "its worker runs it");
    let finish = Finish { id, fence: again.job.fence, outcome: completed("1") };
    let finished = site.there.finish(&worker("w"), vec![finish]).await.pop().expect("one answer");
    assert_eq!(finished.expect("accepted").job.state.name(), JobState::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_nobody_heard_of_is_given_back() {
    for request in [claim(1), named("call")] {
        let site = CutOff::start().await;
        let (id, _) = site.claim_unheard(request).await;
        site.heal().await;
        let job = site.job(&id).await.job;
        assert_eq!((job.state.name(), job.fence, job.attempt.get()), (JobState::Available, Fence::new(1), 0));
    }
}

/// Nobody heard of the job: neither who submitted it nor the worker that waited for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_created_as_claimed_and_of_which_nobody_heard_is_given_back() {
    for request in [claim(1), named("call")] {
        let site = CutOff::start().await;
        let wait = || {
            let (here, request) = (site.here.clone(), ClaimRequest { wait: PATIENCE, ..request.clone() });
            tokio::spawn(async move { here.claim(request).await })
        };
        let mut waiting = wait();
        until("a waiting claim", async || {
            // A busy server may not say in so short a time that there is no job.
            if waiting.is_finished() {
                let ended = std::mem::replace(&mut waiting, wait()).await.expect("no panic");
                assert!(matches!(&ended, Err(ManagerError::Store(_))), "{:?}", ended.map(taken));
            }
            site.here.waiting_claims() == 1
        })
        .await;
        site.proxy.inject_into(&["_bulk", "_mget"]);
        let unheard = site.here.submit(&caller(), vec![new_job()]).await.pop().expect("one answer");
        assert!(matches!(unheard, Err(ManagerError::Unknown(_))), "{unheard:?}");
        site.heal().await;
        assert!(taken(waiting.await.expect("no panic").expect("answered")).is_empty());
        engines::refresh(&*site.store).await;
        let next = taken(site.there.claim(claim(1)).await.expect("answered")).pop().expect("the job");
        assert_eq!((next.job.fence, next.job.attempt.get()), (Fence::new(2), 1));
    }
}
