//! Jobs that come with the answer to the ends of those before.

use std::collections::VecDeque;

use super::*;
use crate::manager::{Caller, ClaimOrder, ManagerError};
use crate::worker::in_process::delivered;

/// What happens to a call that ends attempts.
enum Trouble {
    /// The service does not hear the call.
    Unheard,
    /// The service carries out the call, and its answer is lost.
    Unanswered,
    /// The answer says that the claim failed, though it took jobs.
    ClaimFails,
    /// No end is recorded.
    Undecided,
    /// The service carries out the call and answers when the test lets it.
    Held,
    /// The same, but the answer is lost.
    HeldAndUnanswered,
}

/// The name of a claim, whether it is a repetition, and how many jobs it asks for.
type Call = (Option<RequestId>, bool, usize);

/// A manager whose answers can get lost.
struct Service {
    manager: Manager,
    troubles: Mutex<VecDeque<Trouble>>,
    claims: Mutex<Vec<Call>>,
    /// The claims that came along with ends, by call.
    next: Mutex<Vec<Option<Call>>>,
    held: tokio::sync::Semaphore,
    go_on: tokio::sync::Semaphore,
}

impl Service {
    fn new(bed: &Bed, troubles: impl IntoIterator<Item = Trouble>) -> Arc<Self> {
        Arc::new(Self {
            manager: bed.manager.clone(),
            troubles: Mutex::new(troubles.into_iter().collect()),
            claims: Mutex::default(),
            next: Mutex::default(),
            held: tokio::sync::Semaphore::new(0),
            go_on: tokio::sync::Semaphore::new(0),
        })
    }

    fn claims(&self) -> Vec<Call> {
        self.claims.lock().clone()
    }

    fn next(&self) -> Vec<Option<Call>> {
        self.next.lock().clone()
    }
}

fn call(request: &ClaimRequest) -> Call {
    (request.request_id.clone(), request.repeated, request.max_jobs)
}

fn unavailable() -> ServiceError {
    ServiceError::Unavailable("the cable is out".to_owned())
}

fn answer(ended: Result<Versioned, ManagerError>) -> FinishAnswer {
    ended.map_or(FinishAnswer::Lost, |ended| FinishAnswer::Accepted { state: Some(ended.job.state.name()) })
}

#[async_trait]
impl JobService for Service {
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError> {
        self.claims.lock().push(call(request));
        delivered(self.manager.claim(request.clone()).await)
    }

    async fn recover_claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError> {
        delivered(self.manager.claim(ClaimRequest { wait: Duration::ZERO, ..request.clone() }).await)
    }

    async fn heartbeat(&self, worker: &WorkerId, beats: &[Heartbeat]) -> Result<Vec<Beat>, ServiceError> {
        JobService::heartbeat(&self.manager, worker, beats).await
    }

    async fn finish(
        &self,
        worker: &WorkerId,
        finishes: &[Finish],
        next: Option<&ClaimRequest>,
    ) -> Result<Finished, ServiceError> {
        self.next.lock().push(next.map(call));
        let trouble = self.troubles.lock().pop_front();
        match trouble {
            Some(Trouble::Unheard) => return Err(unavailable()),
            Some(Trouble::Undecided) => {
                let again = |_: &Finish| FinishAnswer::Again("the disk is full".to_owned());
                return Ok(Finished { answers: finishes.iter().map(again).collect(), next: Ok(Vec::new()) });
            }
            _ => {}
        }
        let Some(next) = next else { return JobService::finish(&self.manager, worker, finishes, None).await };
        let (ended, claimed) = self.manager.finish_and_claim(worker, finishes.to_vec(), next.clone()).await;
        let finished = Finished { answers: ended.into_iter().map(answer).collect(), next: delivered(claimed) };
        if let Some(Trouble::Held | Trouble::HeldAndUnanswered) = trouble {
            self.held.add_permits(1);
            self.go_on.acquire().await.expect("open").forget();
        }
        match trouble {
            Some(Trouble::Unanswered | Trouble::HeldAndUnanswered) => Err(unavailable()),
            Some(Trouble::ClaimFails) => Ok(Finished { next: Err(unavailable()), ..finished }),
            _ => Ok(finished),
        }
    }
}

/// A worker with one slot.
fn narrow() -> WorkerConfig {
    WorkerConfig { slots: 1, ..config() }
}

impl Bed {
    async fn submit_quick<const N: usize>(&self) -> [JobId; N] {
        let mut ids = Vec::new();
        for _ in 0..N {
            ids.push(self.submit("quick", None).await);
        }
        ids.try_into().expect("as many as were submitted")
    }

    /// Waits until the job is completed, and checks that it was claimed once.
    async fn completed_once(&self, id: &JobId) {
        let job = self.ended(id).await;
        assert_eq!((job.state.name(), job.fence.get()), (JobState::Completed, 1), "{:?}", job.history);
    }
}

#[tokio::test]
async fn a_busy_worker_makes_no_call_for_its_next_job_alone() {
    let bed = Bed::start();
    let jobs = bed.submit_quick::<20>().await;
    let service = Service::new(&bed, []);
    let mut running = Running::start(service.clone(), narrow());
    for job in &jobs {
        bed.completed_once(job).await;
    }
    running.stop.request(Stop::Drain);
    let mut begun = Vec::new();
    while let Some(id) = running.begun.recv().await {
        begun.push(id);
    }
    assert_eq!(running.stopped().await, Ok(()));
    assert_eq!(begun, jobs, "each once, in their order");
    assert!(service.claims().len() <= 2, "the first, and the one that waits in the end: {:?}", service.claims());
    assert_eq!(service.next().len(), 20);
}

#[tokio::test]
async fn a_worker_that_waits_for_jobs_anyway_claims_none_with_its_ends() {
    let bed = Bed::start();
    let service = Service::new(&bed, []);
    let mut running = Running::start(service.clone(), config());
    let held = bed.submit("held", None).await;
    running.begun().await;
    let [quick] = bed.submit_quick().await;
    bed.completed_once(&quick).await;
    let deadline = Instant::now() + DEADLINE;
    while bed.manager.waiting_claims() == 0 {
        assert!(Instant::now() < deadline, "the worker does not wait for jobs");
        tokio::task::yield_now().await;
    }
    let before = service.next().len();
    running.go_on.add_permits(1);
    bed.completed_once(&held).await;
    running.stop.request(Stop::Drain);
    assert_eq!(running.stopped().await, Ok(()));
    assert_eq!(service.next()[before..], [None]);
}

#[tokio::test]
async fn ends_without_an_answer_are_sent_again_with_the_same_claim_and_bring_the_same_jobs() {
    for trouble in [|| Trouble::Unheard, || Trouble::Unanswered] {
        let bed = Bed::start();
        let jobs = bed.submit_quick::<2>().await;
        let service = Service::new(&bed, [trouble(), trouble()]);
        let running = Running::start(service.clone(), narrow());
        for job in &jobs {
            bed.completed_once(job).await;
        }
        running.stop.request(Stop::Drain);
        assert_eq!(running.stopped().await, Ok(()));
        let next: Vec<Call> = service.next().into_iter().flatten().collect();
        assert!(next[0].0.is_some() && next[..3].iter().all(|(name, ..)| *name == next[0].0), "{next:?}");
        assert_eq!(next[..3].iter().map(|(_, again, _)| *again).collect::<Vec<_>>(), [false, true, true]);
        assert!(next[3..].iter().all(|(name, again, _)| *name != next[0].0 && !again), "{next:?}");
    }
}

#[tokio::test]
async fn jobs_of_an_unanswered_call_are_not_forgotten_when_its_ends_do_not_count_any_more() {
    let bed = Bed::start();
    let (failed, next) = (bed.submit("panic", None).await, bed.submit("quick", None).await);
    let service = Service::new(&bed, [Trouble::HeldAndUnanswered]);
    let running = Running::start(service.clone(), narrow());
    service.held.acquire().await.expect("open").forget();
    bed.manager.retry(&Caller::system("test"), &failed, None).await.expect("retried");
    let elsewhere = ClaimRequest {
        worker_id: name("elsewhere"),
        bearer: None,
        queues: vec![name("q")],
        max_jobs: 1,
        resources: BTreeMap::new(),
        labels: BTreeMap::new(),
        kinds: Vec::new(),
        wait: Duration::ZERO,
        lease: DEADLINE,
        order: ClaimOrder::default(),
        request_id: None,
        repeated: false,
    };
    let claimed = delivered(bed.manager.claim(elsewhere).await).expect("claimed");
    assert_eq!(claimed.iter().map(|job| &job.id).collect::<Vec<_>>(), [&failed]);
    service.go_on.add_permits(1);
    bed.completed_once(&next).await;
    running.stop.request(Stop::Drain);
    assert_eq!(running.stopped().await, Ok(()));
}

#[tokio::test]
async fn a_claim_that_failed_beside_ends_is_made_again_under_its_name() {
    let bed = Bed::start();
    let jobs = bed.submit_quick::<2>().await;
    let service = Service::new(&bed, [Trouble::ClaimFails]);
    let running = Running::start(service.clone(), narrow());
    for job in &jobs {
        bed.completed_once(job).await;
    }
    running.stop.request(Stop::Drain);
    assert_eq!(running.stopped().await, Ok(()));
    let (name, _, max_jobs) = service.next()[0].clone().expect("a claim");
    assert_eq!(service.claims()[1], (name, true, max_jobs));
}

#[tokio::test]
async fn an_end_that_is_not_recorded_yet_keeps_its_slot() {
    let bed = Bed::start();
    let jobs = bed.submit_quick::<2>().await;
    let service = Service::new(&bed, [Trouble::Undecided, Trouble::Undecided]);
    let mut running = Running::start(service.clone(), narrow());
    assert_eq!(running.begun().await, jobs[0]);
    assert_eq!(running.begun().await, jobs[1]);
    assert!(service.next().len() >= 3, "the second job has begun before the end of the first was recorded");
    bed.completed_once(&jobs[1]).await;
    running.stop.request(Stop::Drain);
    assert_eq!(running.stopped().await, Ok(()));
}

#[tokio::test]
async fn a_worker_that_stops_takes_no_job_with_its_last_end() {
    let bed = Bed::start();
    let service = Service::new(&bed, []);
    let mut running = Running::start(service.clone(), narrow());
    let held = bed.submit("held", None).await;
    running.begun().await;
    let [untouched] = bed.submit_quick().await;
    running.stop.request(Stop::Drain);
    running.go_on.add_permits(1);
    assert_eq!(running.stopped().await, Ok(()));
    bed.completed_once(&held).await;
    let untouched = bed.job(&untouched).await;
    assert_eq!((&untouched.state, untouched.fence.get()), (&State::Available, 0));
    assert_eq!(service.next(), [None]);
}

#[tokio::test]
async fn a_job_that_comes_to_a_worker_that_stops_is_given_back_unharmed() {
    let bed = Bed::start();
    let jobs = bed.submit_quick::<2>().await;
    let service = Service::new(&bed, [Trouble::Held]);
    let mut running = Running::start(service.clone(), narrow());
    assert_eq!(running.begun().await, jobs[0]);
    service.held.acquire().await.expect("open").forget();
    assert_eq!(bed.job(&jobs[1]).await.state.name(), JobState::Running);
    running.stop.request(Stop::Drain);
    service.go_on.add_permits(1);
    assert_eq!(running.begun.recv().await, None, "no other job begins");
    assert_eq!(running.stopped().await, Ok(()));
    let job = bed.job(&jobs[1]).await;
    assert_eq!((job.state.name(), job.attempt.get(), job.fence.get()), (JobState::Available, 0, 1));
}
