//! Notifications over each engine, to receivers on real sockets. Time is the test's own.

mod foreign;
pub(crate) mod receiver;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use axum::http::StatusCode;
use leasehold::clock::{Clock, ManualClock, Timestamp};
use leasehold::executor::webhook::{EventData, Secret};
use leasehold::executor::{HttpExecutor, Limits, TargetPolicy};
use leasehold::job::{
    Actor, EventName, JobError, JobId, JobSpec, JobState, Kind, NoticeFormat, NoticeTarget, Oversight, Owner, Priority,
    QueueName, WorkerId,
};
use leasehold::manager::{Caller, ClaimRequest, Finish, Manager, ManagerConfig, NewJob, Outcome};
use leasehold::notify::{NewSubscription, Notifier, NotifyConfig, QUEUE, Subscription, SubscriptionError};
use leasehold::query::kql::Expression;
use leasehold::query::{Filter, Search, Sort};
use leasehold::store::{Versioned, Write};

use crate::engines::Engine;
use crate::interference::{InterferedEngine, Interference};
use receiver::{Delivered, Receiver};

/// How far the clock goes on while something is waited for, each time it is looked for.
const STEP: Duration = Duration::from_millis(500);

struct Site {
    engine: Box<dyn Engine>,
    clock: Arc<ManualClock>,
    manager: Manager,
}

impl Site {
    fn on(engine: Box<dyn Engine>) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
        let manager = Manager::start(engine.store(), Arc::clone(&clock) as Arc<dyn Clock>, ManagerConfig::default());
        Self { engine, clock, manager }
    }

    /// A process of its own on the same store.
    fn another_manager(&self) -> Manager {
        Manager::start(self.engine.store(), Arc::clone(&self.clock) as Arc<dyn Clock>, ManagerConfig::default())
    }

    async fn notifier(&self) -> Notifier {
        self.notifier_of(&self.manager, TargetPolicy { allow_private: true, allow: Vec::new() }).await
    }

    async fn notifier_of(&self, manager: &Manager, policy: TargetPolicy) -> Notifier {
        self.configured(manager, policy, NotifyConfig::default()).await
    }

    async fn configured(&self, manager: &Manager, policy: TargetPolicy, config: NotifyConfig) -> Notifier {
        let limits = Limits { max_timeout: config.timeout, ..Limits::default() };
        let executor = HttpExecutor::new(policy, limits).expect("an executor");
        let config = NotifyConfig { period: Duration::from_millis(100), ..config };
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        Notifier::start(manager.clone(), self.engine.store(), clock, executor, config).await.expect("it starts")
    }

    /// Submits a job, takes it and ends it.
    async fn end_one(&self, job: NewJob, outcome: Outcome) -> JobId {
        let submitted = self.manager.submit(&Caller::system("test"), vec![job.clone()]).await.remove(0);
        let id = submitted.expect("submitted").job.versioned.job.id.clone();
        let claim = ClaimRequest {
            worker_id: worker(),
            bearer: None,
            queues: vec![job.spec.queue],
            max_jobs: 1,
            resources: Default::default(),
            labels: Default::default(),
            kinds: Vec::new(),
            wait: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            order: leasehold::manager::ClaimOrder::default(),
            request_id: None,
            repeated: false,
        };
        let claimed = self.manager.claim(claim).await.expect("claimed");
        let fence = claimed.jobs()[0].versioned.job.fence;
        claimed.delivered();
        let ended = self.manager.finish(&worker(), vec![Finish { id: id.clone(), fence, outcome }]).await.remove(0);
        ended.expect("ended");
        id
    }

    /// The deliveries in this state.
    async fn deliveries(&self, state: JobState) -> Vec<Versioned> {
        self.engine.settle().await;
        let filter = Filter { states: vec![state], queues: vec![QueueName::system(QUEUE)], ..Filter::default() };
        let search = Search { filter, sort: Sort::default(), after: None, limit: 1_000 };
        self.engine.store().search(&search).await.expect("searched")
    }

    /// Waits until there are so many deliveries in this state.
    async fn until_deliveries(&self, state: JobState, count: usize) -> Vec<Versioned> {
        for _ in 0..600 {
            let found = self.deliveries(state).await;
            if found.len() >= count {
                return found;
            }
            self.clock.advance(STEP);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("there are never {count} {state} deliveries");
    }

    async fn until_told(&self, receiver: &Receiver, count: usize) {
        receiver.until(|receiver| receiver.told().len() >= count, || self.clock.advance(STEP)).await;
    }
}

fn worker() -> WorkerId {
    WorkerId::new("w").expect("a name")
}

fn job(queue: &str) -> NewJob {
    NewJob::of(spec(queue))
}

fn spec(queue: &str) -> JobSpec {
    JobSpec::new(QueueName::new(queue).expect("a name"), Kind::new("k").expect("a name"))
}

const COMPLETED: Outcome = Outcome::Completed { result: None };

fn failed() -> Outcome {
    let error = JobError { code: "exit".to_owned(), message: "status 2".to_owned() };
    Outcome::Failed { error, retryable: false, retry_after: None }
}

async fn subscribe(notifier: &Notifier, receiver: &Receiver, events: &[EventName]) -> Subscription {
    let new = NewSubscription { events: events.iter().copied().map(Into::into).collect(), ..all_for(receiver) };
    notifier.subscriptions().create(&Actor::system("admin"), new).await.expect("subscribed")
}

/// A subscription to all events of all jobs.
fn all_for(receiver: &Receiver) -> NewSubscription {
    NewSubscription {
        url: receiver.url(),
        format: NoticeFormat::CloudEvents,
        events: BTreeSet::new(),
        queues: Vec::new(),
        kinds: Vec::new(),
        owners: Vec::new(),
        query: None,
        secret: None,
    }
}

macro_rules! cases {
    ($($cases:tt)*) => {
        $crate::engines::on_both_engines! { |engine| super::Site::on(engine); $($cases)* }
    };
}

mod schedules;

cases! {
    what_is_subscribed_to_is_told_signed_and_nothing_else,
    jobs_are_selected_by_their_owner_and_by_a_query,
    a_receiver_that_never_answers_keeps_no_other_from_being_told,
    a_receiver_that_is_down_for_a_minute_then_fails_then_answers_is_told_of_everything,
    a_receiver_that_is_gone_is_told_nothing_more_and_that_is_reported,
    a_job_tells_whom_it_names_itself,
    what_a_dead_process_left_in_an_outbox_is_told_by_another_one,
    two_notifiers_tell_of_an_event_once,
    a_private_target_is_refused_at_once_or_ends_as_a_dead_letter,
    a_changed_secret_signs_beside_the_former_one,
    what_another_process_subscribes_is_heard_of,
}

/// Refuses the first so many deliveries that are to be submitted.
struct RefusedDeliveries(AtomicUsize);

impl Interference for RefusedDeliveries {
    fn refuses(&self, write: &Write) -> bool {
        let is_delivery = matches!(write, Write::Create { job, .. } if job.spec.queue == QueueName::system(QUEUE));
        is_delivery && self.0.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notice_stays_until_all_its_deliveries_are_submitted() {
    let refused = Arc::new(RefusedDeliveries(AtomicUsize::new(1)));
    let site = Site::on(InterferedEngine::around(crate::engines::embedded().await, &refused));
    let (notifier, one, other) = (site.notifier().await, Receiver::listening().await, Receiver::listening().await);
    for receiver in [&one, &other] {
        subscribe(&notifier, receiver, &[EventName::Completed]).await;
    }
    let id = site.end_one(job("a"), COMPLETED).await;
    for receiver in [&one, &other] {
        site.until_told(receiver, 1).await;
    }
    site.until_deliveries(JobState::Completed, 2).await;
    notifier.shutdown().await;
    assert_eq!(refused.0.load(SeqCst), 0, "a delivery was refused");
    assert_eq!((one.came().len(), other.came().len()), (1, 1), "each is told once");
    let job = site.engine.store().get(&[id]).await.expect("read").remove(0).expect("there").job;
    assert!(job.outbox.is_empty(), "what was handed on is taken out");
}

async fn what_is_subscribed_to_is_told_signed_and_nothing_else(site: Site) {
    let (notifier, receiver) = (site.notifier().await, Receiver::listening().await);
    let subscription = subscribe(&notifier, &receiver, &[EventName::Failed]).await;
    site.end_one(job("a"), COMPLETED).await;
    let failed_job = site.end_one(job("b"), failed()).await;
    site.until_told(&receiver, 1).await;
    notifier.shutdown().await;

    let came = receiver.came();
    assert_eq!(came.len(), 1, "one event, told once: {came:?}");
    let event = came[0].verified(&subscription.secrets[0], site.clock.now());
    assert_eq!((event.subject.as_str(), event.event_type.as_str()), (failed_job.as_str(), "dev.leasehold.job.failed"));
    let EventData::Job(told) = event.data else { panic!("it is of a job") };
    assert_eq!(told.job.error.map(|error| error.code), Some("exit".to_owned()));
    let job = site.engine.store().get(&[failed_job]).await.expect("read").remove(0).expect("there").job;
    assert!(job.outbox.is_empty(), "what was handed on is taken out");
}

async fn a_receiver_that_is_down_for_a_minute_then_fails_then_answers_is_told_of_everything(site: Site) {
    const JOBS: usize = 12;
    let (notifier, mut receiver) = (site.notifier().await, Receiver::silent());
    let subscription = subscribe(&notifier, &receiver, &[EventName::Completed]).await;
    let mut jobs = BTreeSet::new();
    for _ in 0..JOBS {
        jobs.insert(site.end_one(job("a"), COMPLETED).await);
    }
    // Down: every delivery fails and is put off, for a minute and for as long as it takes each to have failed twice.
    let until = site.clock.now().plus(Duration::from_secs(60));
    let failed_twice = async || {
        let waiting = site.deliveries(JobState::Available).await;
        waiting.iter().filter(|found| found.job.attempt.get() >= 2 && found.job.error.is_some()).count()
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(240);
    while site.clock.now() < until || failed_twice().await < JOBS {
        assert!(std::time::Instant::now() < deadline, "not every delivery was tried in vain");
        site.clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(receiver.came().is_empty());
    receiver.answer_next(std::iter::repeat_n(StatusCode::INTERNAL_SERVER_ERROR, 2 * JOBS));
    receiver.listen().await;
    receiver.until(|receiver| receiver.told().len() >= JOBS, || site.clock.advance(Duration::from_secs(60))).await;
    site.until_deliveries(JobState::Completed, JOBS).await;
    notifier.shutdown().await;

    let told: BTreeSet<JobId> = receiver.told().into_iter().map(|(id, _)| JobId::new(id).expect("an id")).collect();
    assert_eq!(told, jobs, "every event arrives");
    for delivered in receiver.came() {
        // Each try is signed with its own time, by a clock that was moved on far.
        let signed_at = seconds(&delivered);
        delivered.verified(&subscription.secrets[0], signed_at);
    }
    assert_eq!(site.deliveries(JobState::Failed).await, []);
}

async fn jobs_are_selected_by_their_owner_and_by_a_query(site: Site) {
    let (notifier, by_owner, by_query) =
        (site.notifier().await, Receiver::listening().await, Receiver::listening().await);
    let owner = || Owner::new("team-a").expect("a name");
    let query = Expression::parse("labels.team: blue and priority > 50 and state: completed").expect("a query");
    for new in [
        NewSubscription { owners: vec![owner()], ..all_for(&by_owner) },
        NewSubscription { query: Some(query), ..all_for(&by_query) },
    ] {
        let made = notifier.subscriptions().create(&Actor::system("admin"), new).await.expect("subscribed");
        assert_eq!(notifier.subscriptions().get(&made.id).await.expect("read"), made, "it is kept as it was made");
    }
    let blue = |priority: i64| {
        let labels = [("team".to_owned(), "blue".to_owned())].into();
        NewJob::of(JobSpec { labels, priority: Priority::new(priority).expect("a priority"), ..spec("a") })
    };
    site.end_one(job("a"), COMPLETED).await;
    site.end_one(blue(10), COMPLETED).await;
    let urgent = site.end_one(blue(60), COMPLETED).await;
    let owned = site.end_one(NewJob::of(JobSpec { owner: Some(owner()), ..spec("a") }), COMPLETED).await;
    site.until_told(&by_owner, 1).await;
    site.until_told(&by_query, 1).await;
    site.until_deliveries(JobState::Completed, 2).await;
    notifier.shutdown().await;
    let told = |receiver: &Receiver| receiver.told().into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!((told(&by_owner), told(&by_query)), (vec![owned.to_string()], vec![urgent.to_string()]));
}

async fn a_receiver_that_never_answers_keeps_no_other_from_being_told(site: Site) {
    let policy = TargetPolicy { allow_private: true, allow: Vec::new() };
    let config = NotifyConfig { concurrency: 4, timeout: Duration::from_secs(3_600), ..NotifyConfig::default() };
    let notifier = site.configured(&site.manager, policy, config).await;
    // Calls are accepted by the system and never read.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent = format!("http://{}/", silent.local_addr().expect("an address"));
    let telling = |url: &str| {
        let target = NoticeTarget { url: url.to_owned(), events: Vec::new(), format: NoticeFormat::CloudEvents };
        let oversight = Oversight { notify: vec![target], ..Oversight::default() };
        NewJob::of(JobSpec { oversight, ..spec("a") })
    };
    for _ in 0..20 {
        site.end_one(telling(&silent), COMPLETED).await;
    }
    let mut receiver = Receiver::silent();
    receiver.listen().await;
    site.end_one(telling(&receiver.url()), COMPLETED).await;
    receiver.until(|receiver| receiver.told().len() == 1, || site.clock.advance(STEP)).await;
    let put_off = site.deliveries(JobState::Available).await;
    assert!(put_off.iter().all(|found| found.job.attempt.get() == 0), "being put off counts as no attempt");
    notifier.shutdown().await;
}

fn seconds(delivered: &Delivered) -> Timestamp {
    let text = delivered.headers["webhook-timestamp"].to_str().expect("text");
    Timestamp::from_millis(text.parse::<i64>().expect("seconds") * 1_000)
}

async fn a_receiver_that_is_gone_is_told_nothing_more_and_that_is_reported(site: Site) {
    let (notifier, receiver) = (site.notifier().await, Receiver::listening().await);
    let subscription = subscribe(&notifier, &receiver, &[EventName::Completed]).await;
    receiver.answer_always(StatusCode::GONE);
    site.end_one(job("a"), COMPLETED).await;
    let dead = site.until_deliveries(JobState::Failed, 1).await;
    assert_eq!(dead[0].job.error.as_ref().map(|error| error.code.as_str()), Some("gone"));
    let off = notifier.subscriptions().get(&subscription.id).await.expect("it is kept").switched_off;
    assert!(off.is_some_and(|off| off.reason.contains("410")), "why it is told nothing can be read");

    let later = site.end_one(job("a"), COMPLETED).await;
    let later = site.engine.store().get(&[later]).await.expect("read").remove(0).expect("there");
    assert!(later.job.outbox.is_empty(), "nobody wants to hear of it");
    assert_eq!(receiver.came().len(), 1);

    receiver.answer_always(StatusCode::OK);
    notifier.subscriptions().switch_on(&subscription.id).await.expect("switched on");
    site.end_one(job("a"), COMPLETED).await;
    site.until_told(&receiver, 1).await;
    notifier.shutdown().await;
}

async fn a_job_tells_whom_it_names_itself(site: Site) {
    let (notifier, events, chat) = (site.notifier().await, Receiver::listening().await, Receiver::listening().await);
    let target = |receiver: &Receiver, format| NoticeTarget { url: receiver.url(), events: Vec::new(), format };
    let notify = vec![
        target(&events, NoticeFormat::CloudEvents),
        target(&events, NoticeFormat::CloudEvents),
        target(&chat, NoticeFormat::Slack),
    ];
    let named = NewJob::of(JobSpec { oversight: Oversight { notify, ..Oversight::default() }, ..spec("a") });
    let id = site.end_one(named, COMPLETED).await;
    site.end_one(job("a"), COMPLETED).await;
    site.until_told(&events, 1).await;
    chat.until(|chat| !chat.came().is_empty(), || site.clock.advance(STEP)).await;
    let key: Secret = notifier.subscriptions().signing_key().await.expect("the key");
    notifier.shutdown().await;

    let came = events.came();
    assert_eq!(came.len(), 1, "named twice, told once");
    assert_eq!(came[0].verified(&key, site.clock.now()).subject, id.as_str());
    let message: serde_json::Value = serde_json::from_slice(&chat.came()[0].body).expect("JSON");
    assert!(message["text"].as_str().is_some_and(|text| text.contains("completed")), "{message}");
}

async fn what_a_dead_process_left_in_an_outbox_is_told_by_another_one(site: Site) {
    let receiver = Receiver::listening().await;
    let first = site.notifier().await;
    subscribe(&first, &receiver, &[EventName::Completed]).await;
    first.shutdown().await;
    // The manager still knows who wants to be told, and nobody hands it on any more: as if the process had died here.
    let mut ids = BTreeSet::new();
    for _ in 0..3 {
        ids.insert(site.end_one(job("a"), COMPLETED).await.to_string());
    }
    site.engine.settle().await;
    let after = site.another_manager();
    let second = site.notifier_of(&after, TargetPolicy { allow_private: true, allow: Vec::new() }).await;
    site.until_told(&receiver, 3).await;
    second.shutdown().await;
    assert_eq!(receiver.told().into_iter().map(|(id, _)| id).collect::<BTreeSet<_>>(), ids);
}

async fn two_notifiers_tell_of_an_event_once(site: Site) {
    let receiver = Receiver::listening().await;
    let first = site.notifier().await;
    subscribe(&first, &receiver, &[EventName::Completed]).await;
    let other = site.another_manager();
    let second = site.notifier_of(&other, TargetPolicy { allow_private: true, allow: Vec::new() }).await;
    for _ in 0..5 {
        site.end_one(job("a"), COMPLETED).await;
        site.clock.advance(STEP);
    }
    site.until_told(&receiver, 5).await;
    site.until_deliveries(JobState::Completed, 5).await;
    first.shutdown().await;
    second.shutdown().await;
    assert_eq!(receiver.came().len(), 5, "both hand it on, and it is one delivery");
}

async fn a_private_target_is_refused_at_once_or_ends_as_a_dead_letter(site: Site) {
    let receiver = Receiver::listening().await;
    let notifier = site.notifier_of(&site.manager, TargetPolicy { allow_private: false, allow: Vec::new() }).await;
    let refused = notifier.subscriptions().create(&Actor::system("admin"), all_for(&receiver)).await;
    assert!(matches!(refused, Err(SubscriptionError::Url(_))), "{refused:?}");
    let target = NoticeTarget { url: receiver.url(), events: Vec::new(), format: NoticeFormat::CloudEvents };
    let oversight = Oversight { notify: vec![target], ..Oversight::default() };
    site.end_one(NewJob::of(JobSpec { oversight, ..spec("a") }), COMPLETED).await;
    let dead = site.until_deliveries(JobState::Failed, 1).await;
    notifier.shutdown().await;
    assert_eq!(dead[0].job.error.as_ref().map(|error| error.code.as_str()), Some("refused"));
    assert!(receiver.came().is_empty(), "no connection was made");
}

async fn a_changed_secret_signs_beside_the_former_one(site: Site) {
    let (notifier, receiver) = (site.notifier().await, Receiver::listening().await);
    let before = subscribe(&notifier, &receiver, &[]).await;
    let after = notifier.subscriptions().change_secret(&before.id).await.expect("changed");
    assert_ne!(after.secrets[0], before.secrets[0]);
    site.end_one(job("a"), COMPLETED).await;
    site.until_told(&receiver, 1).await;
    notifier.shutdown().await;
    for secret in [&before.secrets[0], &after.secrets[0]] {
        receiver.came()[0].verified(secret, site.clock.now());
    }
    let stranger = Secret::generate();
    let delivered = &receiver.came()[0];
    let wrong = leasehold::executor::webhook::verify(
        std::slice::from_ref(&stranger),
        &delivered.headers,
        &delivered.body,
        site.clock.now(),
    );
    assert!(wrong.is_err(), "no other secret fits");
}

async fn what_another_process_subscribes_is_heard_of(site: Site) {
    let receiver = Receiver::listening().await;
    let mine = site.notifier().await;
    // An embedded store belongs to one process: there is no other whose subscriptions could be missed.
    if !site.engine.store().is_exclusive() {
        let other = site.another_manager();
        let theirs = site.notifier_of(&other, TargetPolicy { allow_private: true, allow: Vec::new() }).await;
        subscribe(&theirs, &receiver, &[EventName::Completed]).await;
        receiver.until(|_| !mine.subscriptions().all().is_empty(), || {}).await;
        theirs.shutdown().await;
    } else {
        subscribe(&mine, &receiver, &[EventName::Completed]).await;
    }
    site.end_one(job("a"), COMPLETED).await;
    site.until_told(&receiver, 1).await;
    mine.shutdown().await;
}
