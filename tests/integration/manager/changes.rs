//! What the managers of one Elasticsearch learn of each other's changes, and what it costs the server.

use std::collections::BTreeSet;

use leasehold::clock::SystemClock;
use leasehold::job::LimitName;
use leasehold::manager::NewLimit;
use tokio::time::Instant;

use super::*;
use crate::servers::{self, IndexSet};
use crate::store::elasticsearch::{connect, patient};

/// The queues that claims wait for.
const QUEUES: usize = 10;
/// For how long requests are counted.
const COUNTED: Duration = Duration::from_secs(8);
/// How old what a claim goes by is at most, and a little more.
const KNOWN_AFTER: Duration = Duration::from_millis(600);

/// Two managers of one store, by the time of this machine.
async fn pair(set: &IndexSet) -> [Manager; 2] {
    let mut managers = Vec::new();
    for _ in 0..2 {
        let store: Arc<dyn Store> = Arc::new(connect(patient(set.url(), set.prefix())).await);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        managers.push(Manager::start(store, clock, ManagerConfig::default()));
    }
    managers.try_into().unwrap_or_else(|_| unreachable!("there are two"))
}

fn queues() -> Vec<QueueName> {
    (0..QUEUES).map(|number| QueueName::new(format!("q{number}")).expect("a name")).collect()
}

/// Returns how many searches and how many reads by id the server has made for these indices.
async fn counted(set: &IndexSet) -> (u64, u64) {
    let url = format!("{}/{}*/_stats/search,get", set.url(), set.prefix());
    let answer = reqwest::get(url).await.expect("an answer").bytes().await.expect("a body");
    let stats: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
    let of = |path: &str| stats.pointer(path).and_then(serde_json::Value::as_u64).expect("a number");
    (of("/_all/primaries/search/query_total"), of("/_all/primaries/get/total"))
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_with_claims_waiting_in_ten_queues_cost_the_server_little_and_settings_nothing() {
    let server = servers::elasticsearch().await;
    let set = server.index_set().await;
    let managers = pair(&set).await;
    for (number, queue) in queues().into_iter().enumerate() {
        let weights = Some([(leasehold::job::Owner::new("ann").expect("a name"), 2)].into());
        let change = leasehold::manager::QueueChange { weights, ..Default::default() };
        managers[0].set_up_queue(&queue, &change).await.expect("set up");
        let limit: LimitName = format!("key:k{number}").parse().expect("a limit");
        let new = NewLimit { max_concurrent: Some(3), ..NewLimit::default() };
        managers[0].set_limit(&caller(), &limit, new).await.expect("set");
    }
    let waiting = managers.iter().cloned().enumerate().map(|(number, manager)| {
        let worker_id = worker(["first", "second"][number]);
        let request = ClaimRequest { worker_id, queues: queues(), wait: PATIENCE, ..claim(1) };
        tokio::spawn(async move { manager.claim(request).await.map(taken) })
    });
    let waiting: Vec<_> = waiting.collect();
    until("both claims wait", async || managers.iter().all(|manager| manager.waiting_claims() == 1)).await;
    // Until the managers know each other's workers.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (before, began) = (counted(&set).await, Instant::now());
    tokio::time::sleep(COUNTED).await;
    let (after, seconds) = (counted(&set).await, began.elapsed().as_secs_f64());
    let rate = |before: u64, after: u64| (after - before) as f64 / seconds;
    let (searches, gets) = (rate(before.0, after.0), rate(before.1, after.1));
    assert!(searches <= 4.0, "{searches:.1} searches a second");
    assert!(gets <= 5.0, "{gets:.1} reads a second");
    for waiting in waiting {
        waiting.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_paused_or_limited_at_one_manager_holds_at_the_other_for_a_claim_that_waits_there() {
    let server = servers::elasticsearch().await;
    let set = server.index_set().await;
    let [here, there] = pair(&set).await;
    let claims = |queue: &str, max_jobs: usize| {
        let queues = vec![QueueName::new(queue).expect("a name")];
        ClaimRequest { queues, wait: Duration::from_secs(2), ..claim(max_jobs) }
    };
    let job = |queue: &str| NewJob::of(JobSpec::new(QueueName::new(queue).expect("a name"), spec().kind));
    // Both know of no settings, and claims have come for both queues.
    for (manager, queue) in [(&here, "paused"), (&there, "paused"), (&here, "limited"), (&there, "limited")] {
        let none = ClaimRequest { wait: Duration::ZERO, ..claims(queue, 1) };
        assert_eq!(taken(manager.claim(none).await.expect("answered")), []);
    }
    let paused = QueueName::new("paused").expect("a name");
    let limit: LimitName = "queue:limited".parse().expect("a limit");
    for round in 0..3 {
        let claiming = tokio::spawn({
            let (there, request) = (there.clone(), claims("paused", 1));
            async move { there.claim(request).await.map(taken) }
        });
        here.pause(&caller(), &paused, None).await.expect("paused");
        tokio::time::sleep(KNOWN_AFTER).await;
        let submitted = there.submit(&caller(), vec![job("paused")]).await.remove(0).expect("taken");
        assert_eq!(claiming.await.expect("it ends").expect("answered"), [], "round {round}");
        here.resume(&paused).await.expect("resumed");
        let mut claimed = Vec::new();
        until("the job is handed out", async || {
            claimed.extend(taken(there.claim(claims("paused", 1)).await.expect("answered")));
            claimed.extend(taken(here.claim(claims("paused", 1)).await.expect("answered")));
            !claimed.is_empty()
        })
        .await;
        assert_eq!(claimed[0].job.id, submitted.job.versioned.job.id);
    }
    let new = NewLimit { max_concurrent: Some(1), ..NewLimit::default() };
    here.set_limit(&caller(), &limit, new).await.expect("set");
    tokio::time::sleep(KNOWN_AFTER).await;
    for submitted in there.submit(&caller(), vec![job("limited"); 6]).await {
        submitted.expect("taken");
    }
    let mut running = BTreeSet::new();
    for manager in [&there, &here, &there] {
        let claimed = taken(manager.claim(claims("limited", 6)).await.expect("answered"));
        running.extend(claimed.into_iter().map(|claimed| claimed.job.id.clone()));
    }
    assert_eq!(running.len(), 1, "one runs at once");
}
