//! The end of an attempt and the claim of the next job in one call.

use leasehold::store::Write;

use super::handover::Hampered;
use super::*;
use crate::interference::{InterferedEngine, Interference};

cases! {
    an_end_and_the_next_claim_go_in_one_call_and_again_with_the_same_answer,
    an_end_that_is_refused_takes_no_job,
    many_ends_and_the_next_claims_go_in_one_call,
}

type FinishedAndClaimed = (Vec<Result<Versioned, ManagerError>>, Result<Claimed, ManagerError>);

impl Site {
    async fn finish_and_claim(&self, finishes: Vec<Finish>, next: ClaimRequest) -> FinishedAndClaimed {
        self.manager.finish_and_claim(&worker("w"), finishes, next).await
    }
}

fn done(claimed: &Versioned) -> Finish {
    Finish { id: claimed.job.id.clone(), fence: claimed.job.fence, outcome: completed("1") }
}

fn ids(jobs: &[Versioned]) -> Vec<JobId> {
    jobs.iter().map(|found| found.job.id.clone()).collect()
}

async fn an_end_and_the_next_claim_go_in_one_call_and_again_with_the_same_answer(site: Site) {
    for _ in 0..3 {
        site.submit(new_job()).await;
    }
    let first = site.claim_one().await;
    let next = || ClaimRequest { max_jobs: 1, wait: PATIENCE, ..named("call") };
    let (ended, claimed) = site.finish_and_claim(vec![done(&first)], next()).await;
    let claimed = taken(claimed.expect("answered"));
    assert_eq!(claimed.len(), 1);
    assert_eq!(ended[0].as_ref().expect("accepted").job.state.name(), JobState::Completed);
    assert_eq!((claimed[0].job.state.name(), claimed[0].job.fence), (JobState::Running, Fence::new(1)));

    let (again, claimed_again) = site.finish_and_claim(vec![done(&first)], next()).await;
    assert_eq!(again[0].as_ref().expect("accepted"), ended[0].as_ref().expect("accepted"));
    assert_eq!(ids(&taken(claimed_again.expect("answered"))), ids(&claimed), "it takes no other");
}

async fn an_end_that_is_refused_takes_no_job(site: Site) {
    site.submit(new_job()).await;
    let stale = site.claim_one().await;
    let released = Outcome::Released { reason: "test".to_owned(), delay: Duration::ZERO };
    site.finish(&stale, released).await.expect("released");
    let id = stale.job.id.clone();
    let (ended, claimed) = site.finish_and_claim(vec![done(&stale)], ClaimRequest { wait: PATIENCE, ..claim(9) }).await;
    assert!(is_lease_lost(&ended[0]), "{ended:?}");
    assert!(taken(claimed.expect("answered")).is_empty());
    let job = site.job(&id).await.versioned.job;
    assert_eq!((job.state.name(), job.fence), (JobState::Available, Fence::new(1)));
    assert_eq!(ids(&site.claim(claim(1)).await), [id], "the candidate is offered to others");
}

async fn many_ends_and_the_next_claims_go_in_one_call(site: Site) {
    for _ in 0..5 {
        site.submit(new_job()).await;
    }
    site.engine.settle().await;
    let mut first = site.claim(claim(3)).await;
    assert_eq!(first.len(), 3);
    let lost = first.pop().expect("a job");
    let order =
        AdminRelease { actor: caller().name, reason: "test".to_owned(), then: Then::Fail, expected_fence: None };
    site.manager.admin_release(&lost.job.id, order).await.expect("released");
    let finishes = first.iter().chain([&lost]).map(done).collect();
    let (ended, claimed) = site.finish_and_claim(finishes, claim(9)).await;
    assert_eq!(ended.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(taken(claimed.expect("answered")).len(), 2, "one that is lost keeps the worker from nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_and_the_next_claim_are_one_write_where_a_job_is_there() {
    let (site, hampered) = Hampered::site().await;
    for _ in 0..4 {
        site.submit(new_job()).await;
    }
    let first = site.claim_one().await;
    hampered.writes.lock().clear();
    let (ended, claimed) = site.finish_and_claim(vec![done(&first)], ClaimRequest { max_jobs: 2, ..named("a") }).await;
    ended[0].as_ref().expect("accepted");
    assert_eq!(taken(claimed.expect("answered")).len(), 2);
    assert_eq!(*hampered.writes.lock(), [3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_written_at_once_however_long_the_claim_waits() {
    let (site, _) = Hampered::site().await;
    site.submit(new_job()).await;
    let first = site.claim_one().await;
    let id = first.job.id.clone();
    let (manager, finishes) = (site.manager.clone(), vec![done(&first)]);
    let call = tokio::spawn(async move {
        let next = ClaimRequest { wait: PATIENCE, ..named("call") };
        manager.finish_and_claim(&worker("w"), finishes, next).await
    });
    until("a waiting claim", async || site.manager.waiting_claims() == 1).await;
    assert_eq!(site.state(&id).await, JobState::Completed);
    // The worker goes away, which undoes nothing but the claim.
    call.abort();
    until("the claim's end", async || site.manager.waiting_claims() == 0).await;
    let next = site.submit(new_job()).await.versioned.job;
    assert_eq!(next.state.name(), JobState::Available);
    let (again, claimed) = site.finish_and_claim(vec![done(&first)], named("call")).await;
    assert_eq!(again[0].as_ref().expect("accepted").job.state.name(), JobState::Completed);
    assert_eq!(ids(&taken(claimed.expect("answered"))), std::slice::from_ref(&next.id), "its call had no answer yet");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_goes_away_while_both_are_written_finds_them_again() {
    let (site, hampered) = Hampered::site().await;
    for _ in 0..3 {
        site.submit(new_job()).await;
    }
    let first = site.claim_one().await;
    let gate = hampered.hold_up();
    let (manager, finishes) = (site.manager.clone(), vec![done(&first)]);
    let next = || ClaimRequest { max_jobs: 1, ..named("call") };
    let call = tokio::spawn(async move { manager.finish_and_claim(&worker("w"), finishes, next()).await });
    gate.reached.cancelled().await;
    call.abort();
    assert!(call.await.is_err_and(|error| error.is_cancelled()));
    gate.open.cancel();
    let (again, claimed) = site.finish_and_claim(vec![done(&first)], next()).await;
    assert_eq!(again[0].as_ref().expect("accepted").job.state.name(), JobState::Completed);
    let claimed = taken(claimed.expect("answered"));
    assert_eq!((claimed.len(), claimed[0].job.fence), (1, Fence::new(1)));
    assert_eq!(site.claim(claim(9)).await.len(), 1, "one job was taken, and one is left");
}

/// Refuses to write ends.
struct RefusedEnds;

impl Interference for RefusedEnds {
    fn refuses(&self, write: &Write) -> bool {
        write.job().state.name() == JobState::Completed
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_written_with_an_end_that_was_not_is_given_back() {
    let engine = InterferedEngine::around(engines::embedded().await, &Arc::new(RefusedEnds));
    let site = Site::on(engine, config()).await;
    let ids = [site.submit(new_job()).await, site.submit(new_job()).await].map(|job| job.versioned.job.id.clone());
    let first = site.claim_one().await;
    let (ended, claimed) = site.finish_and_claim(vec![done(&first)], named("call")).await;
    assert!(matches!(ended[0], Err(ManagerError::Store(_))), "{ended:?}");
    assert!(taken(claimed.expect("answered")).is_empty());
    let other = ids.iter().find(|id| **id != first.job.id).expect("the other job");
    let job = site.job(other).await.versioned.job;
    assert_eq!((job.state.name(), job.attempt.get(), job.fence), (JobState::Available, 0, Fence::new(1)));
    assert_eq!(site.state(&first.job.id).await, JobState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_written_when_nothing_can_be_claimed() {
    let (site, _) = Hampered::site().await;
    site.submit(new_job()).await;
    let first = site.claim_one().await;
    site.manager.stop_claims();
    let (ended, claimed) = site.finish_and_claim(vec![done(&first)], named("call")).await;
    assert_eq!(ended[0].as_ref().expect("accepted").job.state.name(), JobState::Completed);
    assert!(matches!(claimed, Err(ManagerError::ShuttingDown)));
}
