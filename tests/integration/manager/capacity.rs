//! Queues with far more jobs than the manager keeps candidates for.

use super::*;

async fn small_site(engine: Box<dyn Engine>) -> Site {
    Site::on(engine, ManagerConfig { candidates_per_queue: 8, ..config() }).await
}

async fn drain(site: &Site, expected: usize) -> Vec<Versioned> {
    let mut claimed = Vec::new();
    while claimed.len() < expected {
        let before = claimed.len();
        until("another job", async || {
            claimed.extend(site.claim(claim(3)).await);
            if claimed.len() == before {
                // Where searches lag, the queue is looked up again after the poll interval. Not so much later that jobs
                // which are to stay undue become due meanwhile.
                site.clock.advance(Duration::from_millis(60));
            }
            claimed.len() > before
        })
        .await;
    }
    assert!(site.claim(claim(3)).await.is_empty());
    claimed
}

async fn every_job_is_found_in_order_of_priority(site: Site) {
    assert!(site.claim(claim(1)).await.is_empty(), "the queue is known before the jobs come");
    let jobs =
        (0..100).map(|number| NewJob::of(JobSpec { priority: Priority::new(number % 7).expect("ok"), ..spec() }));
    for answer in site.manager.submit(&caller(), jobs.collect()).await {
        answer.expect("taken");
    }
    site.engine.settle().await;
    let claimed = drain(&site, 100).await;
    let priorities: Vec<i8> = claimed.iter().map(|found| found.job.spec.priority.get()).collect();
    assert_eq!(priorities.len(), 100);
    assert!(priorities.windows(2).all(|pair| pair[0] >= pair[1]), "{priorities:?}");
}

async fn jobs_due_at_one_moment_are_all_found(site: Site) {
    assert!(site.claim(claim(1)).await.is_empty(), "the queue is known before the jobs come");
    let run_at = Some(site.clock.now().plus(Duration::from_secs(30)));
    let jobs = (0..100).map(|_| NewJob { run_at, ..new_job() });
    for answer in site.manager.submit(&caller(), jobs.collect()).await {
        answer.expect("taken");
    }
    site.engine.settle().await;
    site.clock.advance(Duration::from_secs(30));
    assert_eq!(drain(&site, 100).await.len(), 100);
}

async fn urgent_jobs_that_are_not_due_do_not_hide_due_ones(site: Site) {
    let later = site.clock.now().plus(Duration::from_secs(50));
    let urgent = || NewJob::of(JobSpec { priority: Priority::new(9).expect("ok"), ..spec() });
    let urgent = (0..50).map(|_| NewJob { run_at: Some(later), ..urgent() });
    let jobs: Vec<NewJob> = urgent.chain((0..20).map(|_| new_job())).collect();
    for answer in site.manager.submit(&caller(), jobs).await {
        answer.expect("taken");
    }
    site.engine.settle().await;
    assert_eq!(drain(&site, 20).await.len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_every_job_is_found_in_order_of_priority() {
    every_job_is_found_in_order_of_priority(small_site(engines::embedded().await).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_jobs_due_at_one_moment_are_all_found() {
    jobs_due_at_one_moment_are_all_found(small_site(engines::embedded().await).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_urgent_jobs_that_are_not_due_do_not_hide_due_ones() {
    urgent_jobs_that_are_not_due_do_not_hide_due_ones(small_site(engines::embedded().await).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn elasticsearch_jobs_due_at_one_moment_are_all_found() {
    jobs_due_at_one_moment_are_all_found(small_site(engines::elasticsearch().await).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn elasticsearch_urgent_jobs_that_are_not_due_do_not_hide_due_ones() {
    urgent_jobs_that_are_not_due_do_not_hide_due_ones(small_site(engines::elasticsearch().await).await).await;
}
