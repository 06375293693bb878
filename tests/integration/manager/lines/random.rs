//! Random calls at several managers of one store at once, each of which stands still between two requests now and then:
//! of each key one job runs at a time, and none before one that was accepted before it was submitted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::yield_now;

use super::*;
use crate::interference::{Interfered, Interference};
use crate::{machine, seed};

const MANAGERS: usize = 3;
const SUBMITTERS: usize = 4;
const WORKERS: usize = 4;
const KEYS: usize = 3;

/// How many calls each submitter makes for every change.
const CALLS: usize = 40;

/// Between two requests, others go on for a while, and now and then for long.
struct Unsteady(Mutex<StdRng>);

#[async_trait]
impl Interference for Unsteady {
    async fn between(&self) {
        let turns = {
            let mut random = self.0.lock().expect("no panic");
            if random.random_ratio(1, 40) { random.random_range(200..2_000) } else { random.random_range(0..4) }
        };
        for _ in 0..turns {
            yield_now().await;
        }
    }
}

/// The time that a job spends in its line, from its submission or its return to its end, in calls of the test.
#[derive(Clone, Default)]
struct Stay {
    key: String,
    /// When the call was made that began it, and when it was answered.
    begun: u64,
    answered: Option<u64>,
    /// For how long the job certainly ran.
    ran: Vec<(u64, u64)>,
    /// When the call was made that ended it.
    ended: Option<u64>,
}

/// What has happened, by the job and its place.
#[derive(Default)]
struct Log {
    time: AtomicU64,
    stays: Mutex<HashMap<(JobId, u64), Stay>>,
}

fn place(job: &leasehold::job::Job) -> (JobId, u64) {
    (job.id.clone(), job.spec.ordering().expect("a place").seq)
}

impl Log {
    fn now(&self) -> u64 {
        self.time.fetch_add(1, Ordering::SeqCst)
    }

    fn stays(&self) -> MutexGuard<'_, HashMap<(JobId, u64), Stay>> {
        self.stays.lock().expect("no panic")
    }

    fn entered(&self, job: &leasehold::job::Job, begun: u64) {
        let key = job.spec.ordering_key().expect("a key").to_string();
        let answered = Some(self.now());
        let mut stays = self.stays();
        let stay = stays.entry(place(job)).or_default();
        (stay.key, stay.begun, stay.answered) = (key, begun, answered);
    }

    fn ran(&self, job: &leasehold::job::Job, from: u64, until: u64) {
        self.stays().entry(place(job)).or_default().ran.push((from, until));
    }

    /// Notes what a call has made of a job.
    fn written(&self, job: &leasehold::job::Job, called: u64) {
        if job.state.name().is_final() {
            let mut stays = self.stays();
            let ended = &mut stays.entry(place(job)).or_default().ended;
            *ended = Some(ended.map_or(called, |ended| ended.min(called)));
        }
    }

    /// Returns how many pairs of stays had an order that had to be kept.
    fn check(&self) -> usize {
        let stays = self.stays();
        let mut by_key: HashMap<&str, Vec<&Stay>> = HashMap::new();
        stays.values().for_each(|stay| by_key.entry(&stay.key).or_default().push(stay));
        let mut pairs = 0;
        for (key, stays) in by_key {
            let mut ran: Vec<(u64, u64)> = stays.iter().flat_map(|stay| stay.ran.iter().copied()).collect();
            ran.sort_unstable();
            assert!(ran.windows(2).all(|pair| pair[0].1 < pair[1].0), "{key}: two ran at once: {ran:?}");
            for first in &stays {
                let Some(answered) = first.answered else { continue };
                for later in stays.iter().filter(|later| later.begun > answered) {
                    let Some((began, _)) = later.ran.iter().min() else { continue };
                    pairs += 1;
                    let is_kept = first.ended.is_some_and(|ended| ended < *began);
                    assert!(is_kept, "{key}: one that was accepted at {answered} was overtaken at {began}");
                }
            }
        }
        pairs
    }
}

async fn submit_at_random(managers: Vec<Manager>, log: Arc<Log>, mut random: StdRng) {
    let mut known: Vec<JobId> = Vec::new();
    for _ in 0..CALLS * machine::effort() as usize {
        let manager = &managers[random.random_range(0..managers.len())];
        let called = log.now();
        match random.random_range(0..10) {
            0 if !known.is_empty() => {
                let of = &known[random.random_range(0..known.len())];
                if let Ok(cancelled) = manager.cancel(&caller(), of, None).await {
                    log.written(&cancelled.job, called);
                }
            }
            1 if !known.is_empty() => {
                let of = &known[random.random_range(0..known.len())];
                if let Ok(returned) = manager.retry(&caller(), of, None).await {
                    log.entered(&returned.job, called);
                }
            }
            _ => {
                let key = format!("key-{}", random.random_range(0..KEYS));
                let jobs: Vec<NewJob> =
                    (0..random.random_range(1..4)).map(|_| urgent(ordered(&key), random.random_range(0..3))).collect();
                // One may be refused that was given up, while later ones of the call were created.
                for submitted in manager.submit(&caller(), jobs).await.into_iter().flatten() {
                    log.entered(&submitted.job.versioned.job, called);
                    known.push(id(&submitted.job));
                }
            }
        }
        yield_now().await;
    }
}

async fn work_at_random(manager: Manager, log: Arc<Log>, mut random: StdRng, number: usize, done: Arc<Submitted>) {
    let name = worker(&format!("w{number}"));
    loop {
        let request = ClaimRequest { worker_id: name.clone(), wait: Duration::from_millis(20), ..claim(2) };
        let was_over = done.is_over();
        let claimed = taken(manager.claim(request).await.expect("answered"));
        let from = log.now();
        if claimed.is_empty() && was_over && done.none_is_left().await {
            return;
        }
        for one in claimed {
            for _ in 0..random.random_range(0..10) {
                yield_now().await;
            }
            let outcome = match random.random_range(0..4) {
                0 => Outcome::Released { reason: "r".to_owned(), delay: Duration::ZERO },
                1 => failed(false),
                _ => completed("1"),
            };
            let called = log.now();
            log.ran(&one.job, from, called);
            let finish = Finish { id: one.job.id.clone(), fence: one.job.fence, outcome };
            let finished = manager.finish(&name, vec![finish]).await.remove(0).expect("accepted");
            log.written(&finished.job, called);
        }
    }
}

/// Whether all was submitted, and has ended.
struct Submitted {
    store: Arc<dyn Store>,
    left: AtomicU64,
}

impl Submitted {
    fn is_over(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    async fn none_is_left(&self) -> bool {
        let states = vec![JobState::Available, JobState::Running];
        let filter = Filter { states, ..Filter::default() };
        self.store.count(&filter, &[]).await.expect("counted").iter().all(|group| group.count == 0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_calls_at_several_managers_that_stand_still_now_and_then_keep_the_order() {
    let mut seeds = StdRng::seed_from_u64(seed::any());
    let mut next = || StdRng::seed_from_u64(seeds.random());
    let engine = engines::embedded().await;
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
    let mut start = || {
        let store = Interfered::around(engine.store(), &Arc::new(Unsteady(Mutex::new(next()))));
        Manager::start(store, Arc::clone(&clock) as Arc<dyn Clock>, config())
    };
    let managers: Vec<Manager> = (0..MANAGERS).map(|_| start()).collect();
    let log = Arc::new(Log::default());
    let submitted = Arc::new(Submitted { store: engine.store(), left: AtomicU64::new(SUBMITTERS as u64) });
    let submitting: Vec<_> = (0..SUBMITTERS)
        .map(|_| {
            let (managers, log, random, submitted) =
                (managers.clone(), Arc::clone(&log), next(), Arc::clone(&submitted));
            tokio::spawn(async move {
                submit_at_random(managers, log, random).await;
                submitted.left.fetch_sub(1, Ordering::SeqCst);
            })
        })
        .collect();
    let working: Vec<_> = (0..WORKERS)
        .map(|number| {
            let manager = managers[number % MANAGERS].clone();
            tokio::spawn(work_at_random(manager, Arc::clone(&log), next(), number, Arc::clone(&submitted)))
        })
        .collect();
    for ended in join_all(submitting).await.into_iter().chain(join_all(working).await) {
        ended.expect("no panic");
    }
    let pairs = log.check();
    println!("{pairs} pairs of jobs kept their order");
    assert!(pairs > 1_000, "{pairs}");
}
