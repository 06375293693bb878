//! What is kept in memory of keys whose jobs are over.

use std::sync::Arc;

use super::*;
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::job::{
    Concurrency, ConcurrencyKey, Conditions, JobSpec, Kind, Offers, Ordered, OrderingKey, QueueName, UniqueKey,
    WorkerId,
};
use crate::manager::{Caller, ClaimOrder, ClaimRequest, Finish, ManagerConfig, NewJob, Outcome};
use crate::store::Store;
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};

/// How many keys there are, each of two jobs.
const KEYS: usize = 300;

/// The time between two sweeps in which nothing was removed, and a little more.
const AT_REST: Duration = Duration::from_secs(61);

/// The most rounds that it takes until all is forgotten: several sweeps.
const ROUNDS: usize = 20;

fn job(number: usize) -> NewJob {
    let name = format!("key-{number}");
    let concurrency = Some(Concurrency { key: ConcurrencyKey::new(&*name).expect("a key"), max: 1 });
    let conditions = match number % 3 {
        0 => Conditions { concurrency, ..Conditions::default() },
        1 => Conditions {
            concurrency,
            ordering: Some(Ordered::without_place(OrderingKey::new(name).expect("a key"))),
            ..Conditions::default()
        },
        _ => Conditions { concurrency, unique: Some(UniqueKey::new(name).expect("a key")), ..Conditions::default() },
    };
    let spec = JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"));
    NewJob::of(JobSpec { conditions: conditions.stored(), ..spec })
}

fn claim() -> ClaimRequest {
    ClaimRequest {
        worker_id: WorkerId::system("worker"),
        bearer: None,
        queues: vec![QueueName::new("q").expect("a name")],
        max_jobs: 50,
        resources: [].into(),
        labels: Offers::default(),
        kinds: Vec::new(),
        wait: Duration::from_millis(50),
        lease: Duration::from_secs(60),
        order: ClaimOrder::Dispatch,
        request_id: None,
        repeated: false,
    }
}

/// Every collection of the manager that has an entry for a key, a limit or a job of one, with how much is in it. Those
/// that have a bound of their own count from there.
fn kept(manager: &Manager) -> Vec<(&'static str, usize)> {
    let shared = &manager.shared;
    let mut kept = shared.dispatch.kept_by_key();
    kept.extend(shared.lines.kept_by_key());
    kept.push(("turns at unique keys", shared.unique.kept()));
    kept.push(("documents of limits", shared.limits.documents.lock().len()));
    kept.push(("limits without tokens", shared.limits.spent.len()));
    kept.push(("limits looked at soon", shared.limits.looks.len()));
    kept.retain(|(_, size)| *size > 0);
    kept
}

#[tokio::test]
async fn nothing_is_kept_of_keys_whose_jobs_are_over() {
    let place = tempfile::tempdir().expect("a directory");
    let store: Arc<dyn Store> =
        Arc::new(EmbeddedStore::open(place.path(), &EmbeddedOptions::default()).expect("the store opens"));
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
    let manager = Manager::start(store, Arc::clone(&clock) as Arc<dyn Clock>, ManagerConfig::default());
    let caller = Caller::system("ann");
    let mut waiting = 0;
    for number in (0..KEYS).flat_map(|number| [number; 2]) {
        // The second one of a unique key is refused.
        let Ok(submitted) = manager.submit(&caller, vec![job(number)]).await.remove(0) else { continue };
        waiting += 1;
        // Some end while they are held.
        if number % 7 == 0 {
            manager.cancel(&caller, &submitted.job.versioned.job.id, None).await.expect("cancelled");
            waiting -= 1;
        }
    }
    let mut seen = HashSet::new();
    while waiting > 0 {
        let claimed = manager.claim(claim()).await.expect("answered");
        seen.extend(kept(&manager).into_iter().map(|(name, _)| name));
        let finish = |job: &Versioned| Finish {
            id: job.job.id.clone(),
            fence: job.job.fence,
            outcome: Outcome::Completed { result: None },
        };
        let finishes: Vec<Finish> = claimed.jobs().iter().map(|job| finish(&job.versioned)).collect();
        claimed.delivered();
        waiting -= finishes.len();
        for finished in manager.finish(&WorkerId::system("worker"), finishes).await {
            finished.expect("finished");
        }
    }
    let looked_for = ["rows of held jobs", "queues of limits", "places of held jobs", "documents of limits"];
    assert!(looked_for.iter().all(|name| seen.contains(name)), "{seen:?}");
    for _ in 0..ROUNDS {
        if kept(&manager).is_empty() {
            return;
        }
        tokio::time::pause();
        tokio::time::advance(AT_REST).await;
        tokio::time::resume();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("kept: {:?}", kept(&manager));
}
