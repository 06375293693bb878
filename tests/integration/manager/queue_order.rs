//! Claims that say from which of their queues they take next.

use super::*;

cases! {
    a_strict_claim_takes_from_the_queues_as_they_are_named,
    a_claim_finds_what_the_store_has_of_a_queue_that_nobody_asked_for,
    a_strict_claim_finds_what_the_store_has_of_a_queue_that_nobody_asked_for,
    what_waits_in_the_store_goes_before_what_was_submitted_where_nobody_asked_yet,
    queues_give_jobs_by_their_weights_over_many_workers,
    a_claim_that_waits_is_given_jobs_of_one_submission_by_its_order_of_queues,
    an_end_takes_the_next_job_by_the_order_of_queues,
}

fn named_queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a name")
}

fn of(queue: &str, priority: i64) -> NewJob {
    let priority = Priority::new(priority).expect("a priority");
    NewJob::of(JobSpec { priority, ..JobSpec::new(named_queue(queue), Kind::new("k").expect("a name")) })
}

fn from(queues: &[&str], order: &ClaimOrder, max_jobs: usize) -> ClaimRequest {
    let queues = queues.iter().map(|name| named_queue(name)).collect();
    ClaimRequest { queues, order: order.clone(), wait: PATIENCE, ..claim(max_jobs) }
}

fn weighted(weights: &[(&str, u32)]) -> ClaimOrder {
    ClaimOrder::Weighted(Arc::new(weights.iter().map(|(name, weight)| (named_queue(name), *weight)).collect()))
}

async fn submit(site: &Site, jobs: impl IntoIterator<Item = NewJob>) {
    for answer in site.manager.submit(&caller(), jobs.into_iter().collect()).await {
        answer.expect("the job is taken");
    }
}

fn queues_of(claimed: &[Versioned]) -> Vec<&str> {
    claimed.iter().map(|found| found.job.spec.queue.as_str()).collect()
}

async fn a_strict_claim_takes_from_the_queues_as_they_are_named(site: Site) {
    submit(&site, [of("a", 0), of("b", 9), of("a", 0), of("b", 9)]).await;
    site.engine.settle().await;
    let claimed = site.claim(from(&["b", "a"], &ClaimOrder::Strict, 1)).await;
    assert_eq!(queues_of(&claimed), ["b"]);
    let claimed = site.claim(from(&["a", "b"], &ClaimOrder::Strict, 9)).await;
    assert_eq!(queues_of(&claimed), ["a", "a", "b"]);
}

async fn a_claim_finds_what_the_store_has_of_a_queue_that_nobody_asked_for(site: Site) {
    what_the_store_has_is_found(&site, &ClaimOrder::Dispatch, 9).await;
}

async fn a_strict_claim_finds_what_the_store_has_of_a_queue_that_nobody_asked_for(site: Site) {
    what_the_store_has_is_found(&site, &ClaimOrder::Strict, -9).await;
}

async fn what_the_store_has_is_found(site: &Site, order: &ClaimOrder, priority: i64) {
    submit(site, [of("a", priority), of("b", 0), of("b", 0)]).await;
    site.engine.settle().await;
    // Another manager knows nothing of either queue; then it knows one of them. What it comes second for it leaves to
    // this one for a while.
    let other = site.another_manager();
    let from_b = from(&["b"], &ClaimOrder::Dispatch, 1);
    assert_eq!(queues_of(&taken(other.claim(from_b).await.expect("answered"))), ["b"]);
    site.clock.advance(Duration::from_secs(2));
    let from_both = from(&["a", "b"], order, 1);
    assert_eq!(queues_of(&taken(other.claim(from_both).await.expect("answered"))), ["a"]);
}

async fn what_waits_in_the_store_goes_before_what_was_submitted_where_nobody_asked_yet(site: Site) {
    submit(&site, [of("a", 9)]).await;
    site.engine.settle().await;
    // This manager knows of a job before anybody asks it for one, as does one that nobody has asked for long.
    let other = site.another_manager();
    other.submit(&caller(), vec![of("a", 0)]).await.remove(0).expect("taken");
    let claimed = taken(other.claim(from(&["a"], &ClaimOrder::Dispatch, 1)).await.expect("answered"));
    assert_eq!(claimed[0].job.spec.priority.get(), 9);
}

async fn queues_give_jobs_by_their_weights_over_many_workers(site: Site) {
    submit(&site, (0..60).flat_map(|_| [of("a", 0), of("b", 9)])).await;
    site.engine.settle().await;
    let order = weighted(&[("a", 3), ("b", 1)]);
    let mut from_a = 0;
    for number in 0..40 {
        let request = ClaimRequest { worker_id: worker(&format!("w{number}")), ..from(&["a", "b"], &order, 1) };
        from_a += queues_of(&site.claim(request).await).iter().filter(|name| **name == "a").count();
    }
    assert!((29..=31).contains(&from_a), "{from_a}");
    let claimed = site.claim(from(&["a", "b"], &order, 16)).await;
    let from_a = queues_of(&claimed).iter().filter(|name| **name == "a").count();
    assert!((11..=13).contains(&from_a), "{from_a}");
}

async fn a_claim_that_waits_is_given_jobs_of_one_submission_by_its_order_of_queues(site: Site) {
    let manager = site.manager.clone();
    let request = from(&["b", "a"], &ClaimOrder::Strict, 1);
    let waiting = tokio::spawn(async move { manager.claim(request).await });
    while site.manager.waiting_claims() == 0 {
        tokio::task::yield_now().await;
    }
    submit(&site, [of("a", 9), of("b", 0)]).await;
    let claimed = taken(waiting.await.expect("no panic").expect("answered"));
    assert_eq!(queues_of(&claimed), ["b"]);
}

async fn an_end_takes_the_next_job_by_the_order_of_queues(site: Site) {
    submit(&site, [of("a", 0), of("b", 0), of("a", 9)]).await;
    site.engine.settle().await;
    let claimed = site.claim(from(&["a"], &ClaimOrder::Dispatch, 1)).await.pop().expect("a job");
    let finish =
        Finish { id: claimed.job.id.clone(), fence: claimed.job.fence, outcome: Outcome::Completed { result: None } };
    let next = from(&["b", "a"], &ClaimOrder::Strict, 1);
    let (ended, next) = site.manager.finish_and_claim(&worker("w"), vec![finish], next).await;
    assert!(ended[0].is_ok(), "{ended:?}");
    assert_eq!(queues_of(&taken(next.expect("answered"))), ["b"]);
}
