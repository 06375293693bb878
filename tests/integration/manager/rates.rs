//! Rates over virtual time: as many jobs begin as are set, and never more.

use std::sync::Arc;

use leasehold::job::Owner;
use leasehold::manager::{NewLimit, Rate};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::model_engine::{Model, Odds};

/// How long jobs begin.
const SPAN: Duration = Duration::from_secs(10);

/// A manager over a model of a store, which takes no time for anything.
fn manager() -> Manager {
    let store = Model::new(Duration::ZERO).handle(Odds::default(), 0);
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
    Manager::start(store, clock, config())
}

async fn set(manager: &Manager, name: &str, limit: NewLimit) {
    manager.set_limit(&caller(), &name.parse().expect("a limit"), limit).await.expect("set");
}

/// Submits jobs of this specification.
async fn submit(manager: &Manager, count: usize, spec: &JobSpec) {
    let jobs: Vec<NewJob> = (0..count).map(|_| NewJob::of(spec.clone())).collect();
    for some in jobs.chunks(500) {
        for answer in manager.submit(&caller(), some.to_vec()).await {
            answer.expect("the job is taken");
        }
    }
}

fn waiting(queue: &QueueName, number: usize) -> ClaimRequest {
    let worker_id = worker(&format!("w{number}"));
    ClaimRequest { worker_id, queues: vec![queue.clone()], wait: Duration::from_secs(30), ..claim(1) }
}

/// Claims by so many workers at once for a while, and returns when jobs began.
async fn begun(manager: &Manager, workers: usize, queue: &QueueName) -> Vec<Duration> {
    let (started, begun) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let mut claiming = JoinSet::new();
    for number in 0..workers {
        let (manager, begun, request) = (manager.clone(), Arc::clone(&begun), waiting(queue, number));
        claiming.spawn(async move {
            loop {
                let claimed = taken(manager.claim(request.clone()).await.expect("answered"));
                let at = started.elapsed();
                begun.lock().extend(claimed.iter().map(|_| at));
            }
        });
    }
    sleep(SPAN).await;
    claiming.shutdown().await;
    let mut begun = std::mem::take(&mut *begun.lock());
    begun.sort_unstable();
    begun
}

/// How much later than another one a job's claim may be answered after its token was taken, in the model.
const ANSWERED_WITHIN: f64 = 0.1;

fn is_what_is_set(rate: Rate, begun: &[Duration]) {
    let per = Duration::from_millis(rate.per_ms).as_secs_f64();
    let most = |span: f64| f64::from(rate.burst) + f64::from(rate.count) * span / per;
    for (first, from) in begun.iter().enumerate() {
        for (last, to) in begun.iter().enumerate().skip(first) {
            let count = (last - first + 1) as f64;
            let most = most((*to - *from).as_secs_f64() + ANSWERED_WITHIN);
            assert!(count <= most, "{count} from {from:?} to {to:?} of {rate:?}");
        }
    }
    let expected = f64::from(rate.count) * SPAN.as_secs_f64() / per;
    assert!(begun.len() as f64 >= 0.98 * expected, "{} of {expected} at {rate:?}", begun.len());
}

#[tokio::test(start_paused = true)]
async fn as_many_jobs_begin_as_a_rate_says_and_never_more() {
    for (count, burst) in [(1, 1), (7, 1), (50, 5), (200, 20)] {
        let (manager, rate) = (manager(), Rate { count, per_ms: 1_000, burst });
        set(&manager, "kind:k", NewLimit { rate: Some(rate), ..NewLimit::default() }).await;
        submit(&manager, (count * 11 + burst) as usize, &spec()).await;
        is_what_is_set(rate, &begun(&manager, 8, &queue()).await);
        timeout(SPAN, manager.shutdown()).await.expect("it ends");
    }
}

#[tokio::test(start_paused = true)]
async fn claims_that_wait_under_another_limit_do_not_slow_a_rate_down() {
    let (manager, rate) = (manager(), Rate { count: 5, per_ms: 1_000, burst: 1 });
    set(&manager, "kind:k", NewLimit { rate: Some(rate), ..NewLimit::default() }).await;
    set(&manager, "owner:ann", NewLimit { max_concurrent: Some(1), ..NewLimit::default() }).await;
    let crowded = QueueName::new("crowded").expect("a name");
    let owner = Some(Owner::new("ann").expect("a name"));
    let of_ann = JobSpec { owner, ..JobSpec::new(crowded.clone(), Kind::new("other").expect("a name")) };
    submit(&manager, 300, &of_ann).await;
    submit(&manager, 60, &spec()).await;
    let mut claiming = JoinSet::new();
    for number in 0..64 {
        let (manager, request) = (manager.clone(), waiting(&crowded, 100 + number));
        claiming.spawn(async move {
            loop {
                // One of them runs for as long as this takes.
                drop(taken(manager.claim(request.clone()).await.expect("answered")));
            }
        });
    }
    let begun = begun(&manager, 1, &queue()).await;
    claiming.shutdown().await;
    is_what_is_set(rate, &begun);
    timeout(SPAN, manager.shutdown()).await.expect("it ends");
}
