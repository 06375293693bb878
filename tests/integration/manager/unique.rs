//! Unique keys: of the jobs that name one key, at most one waits or runs.

use futures::future::join_all;
use leasehold::job::{Conditions, RecordName, UniqueKey};
use leasehold::manager::{BulkAction, BulkBounds, BulkOrder, BulkSelection, Duplicate, OnDuplicate, Submitted};
use leasehold::query::{Filter, Search, Sort};
use leasehold::store::{RecordKey, RecordKind, RecordWrite, Write, WriteError};

use super::stopped::{Pair, at_every_point, at_every_point_of};
use super::*;

/// How many submissions of one key race at each of two managers, and how often.
const RACING: usize = 6;
const RACES: usize = 12;

fn unique(key: &str) -> NewJob {
    let unique = Some(UniqueKey::new(key).expect("a key"));
    NewJob::of(JobSpec { conditions: Conditions { unique, ..Conditions::default() }.stored(), ..spec() })
}

fn of(key: &str, on_duplicate: OnDuplicate, payload: &str) -> NewJob {
    let duplicate = Duplicate { on_duplicate, longest_wait: None };
    NewJob { duplicate, payload: Some(json(payload)), ..unique(key) }
}

fn id(submitted: &Submitted) -> JobId {
    submitted.job.versioned.job.id.clone()
}

/// Returns the job that is in the way.
fn other(refused: Result<Submitted, ManagerError>) -> JobId {
    match refused {
        Err(ManagerError::Duplicate(other)) => other,
        answer => panic!("it is refused: {answer:?}"),
    }
}

/// The jobs that wait or run.
async fn live(store: &dyn Store) -> Vec<JobId> {
    engines::refresh(store).await;
    let filter = Filter { states: vec![JobState::Available, JobState::Running], ..Filter::default() };
    let search = Search { filter, sort: Sort::Dispatch, after: None, limit: 1_000 };
    let found = store.search(&search).await.expect("the jobs are found");
    let ids: Vec<JobId> = found.iter().map(|found| found.job.id.clone()).collect();
    let now = store.get(&ids).await.expect("the jobs are read");
    let is_live = |found: &Versioned| !found.job.state.name().is_final();
    now.into_iter().flatten().filter(is_live).map(|found| found.job.id.clone()).collect()
}

pub(super) async fn a_completed_job_that_is_removed_by_its_age_does_not_come_back_as_a_cancelled_one(site: Site) {
    let mut removed = Vec::new();
    for returns in [false, true] {
        let first = site.submit(unique("a")).await.versioned.job.id.clone();
        if returns {
            site.manager.cancel(&caller(), &first, None).await.expect("cancelled");
            site.manager.retry(&caller(), &first, None).await.expect("retried");
        }
        let claimed = site.claim_one().await;
        site.finish(&claimed, completed("1")).await.expect("accepted");
        let ended = site.job(&first).await.versioned;
        assert!(site.manager.remove(&[ended]).await.remove(0).expect("removed"));
        removed.push(first);
    }
    // The key is asked for right after the removal, by a manager that knows nothing of it.
    let next = site.another_manager().submit(&caller(), vec![unique("a")]).await.remove(0).expect("taken");
    assert!(next.created);
    assert_eq!(live(&*site.store).await, [id(&next)]);
    let stored = site.store.get(&removed).await.expect("read");
    assert_eq!(stored, [None, None], "no job stands for one that was completed and removed");
}

pub(super) async fn a_second_job_of_a_unique_key_is_refused_until_the_first_has_ended(site: Site) {
    let first = id(&site.try_submit(unique("a")).await.expect("taken"));
    site.submit(unique("A")).await;
    assert_eq!(other(site.try_submit(unique("a")).await), first, "it waits");
    let mut claimed = site.claim_one().await;
    if claimed.job.id != first {
        claimed = site.claim_one().await;
    }
    assert_eq!(other(site.another_manager().submit(&caller(), vec![unique("a")]).await.remove(0)), first, "it runs");
    site.finish(&claimed, failed(true)).await.expect("accepted");
    assert_eq!(other(site.try_submit(unique("a")).await), first, "it waits for its next attempt");
    site.manager.cancel(&caller(), &first, None).await.expect("cancelled");
    let second = id(&site.try_submit(unique("a")).await.expect("the first has ended"));
    assert_eq!(other(site.try_submit(unique("a")).await), second);
    assert_eq!(live(&*site.store).await.len(), 2);
}

pub(super) async fn a_second_job_of_a_unique_key_is_answered_with_the_first_if_it_asks_for_that(site: Site) {
    let first = site.try_submit(of("a", OnDuplicate::Existing, "1")).await.expect("taken");
    assert!(first.created);
    for _ in 0..2 {
        let again = site.try_submit(of("a", OnDuplicate::Existing, "2")).await.expect("answered");
        assert_eq!((id(&again), again.created, again.job.payload), (id(&first), false, Some(json("1"))));
        // The second time, it runs.
        site.claim(claim(1)).await;
    }
}

pub(super) async fn a_waiting_job_takes_over_the_input_of_a_later_one_and_is_put_off_no_longer_than_it_may(site: Site) {
    let start = site.clock.now();
    let after = |seconds| start.plus(Duration::from_secs(seconds));
    let replace = |payload: &str, seconds| {
        let duplicate = Duplicate { on_duplicate: OnDuplicate::Replace, longest_wait: Some(Duration::from_secs(60)) };
        NewJob { run_at: Some(after(seconds)), duplicate, ..of("a", OnDuplicate::Replace, payload) }
    };
    let first = site.try_submit(replace("1", 10)).await.expect("taken");
    let large = format!("\"{}\"", "x".repeat(200_000));
    for (payload, run_at, due) in [("2", 30, 30), (large.as_str(), 20, 20), ("3", 90, 60)] {
        let replaced = site.try_submit(replace(payload, run_at)).await.expect("answered");
        assert_eq!((id(&replaced), replaced.created), (id(&first), false));
        assert_eq!(replaced.job.versioned.job.run_at, after(due));
        assert_eq!(site.job(&id(&first)).await.payload, Some(json(payload)));
    }
    site.clock.advance(Duration::from_secs(59));
    assert!(site.claim(claim(1)).await.is_empty(), "it was put off");
    site.clock.advance(Duration::from_secs(1));
    let claimed = site.claim_one().await;
    assert_eq!((claimed.job.id.clone(), site.job(&claimed.job.id).await.payload), (id(&first), Some(json("3"))));
    let late = site.try_submit(replace("4", 100)).await.expect("answered");
    assert_eq!((id(&late), late.created, late.job.payload), (id(&first), false, Some(json("3"))), "it runs");
    assert_eq!(late.job.versioned.job.state.name(), JobState::Running);
}

pub(super) async fn jobs_of_one_call_and_one_unique_key_meet_the_first_of_them(site: Site) {
    use OnDuplicate::{Existing, Refuse, Replace};
    let jobs = vec![
        of("a", Refuse, "0"),
        new_job(),
        of("a", Existing, "2"),
        of("a", Refuse, "3"),
        of("a", Replace, "4"),
        of("a", Existing, "5"),
        of("b", Refuse, "6"),
        of("a", Refuse, "7"),
    ];
    let mut answers = site.manager.submit(&caller(), jobs).await.into_iter();
    let mut next = || answers.next().expect("an answer for each");
    let first = next().expect("taken");
    assert!(first.created && next().expect("taken").created);
    let second = next().expect("answered");
    assert_eq!((id(&second), second.created, second.job.payload), (id(&first), false, Some(json("0"))));
    assert_eq!(other(next()), id(&first));
    let replaced = next().expect("answered");
    assert_eq!((id(&replaced), replaced.created, replaced.job.payload), (id(&first), false, Some(json("4"))));
    let after = next().expect("answered");
    assert_eq!((id(&after), after.job.payload), (id(&first), Some(json("4"))), "it comes after what replaced it");
    assert!(next().expect("taken").created);
    assert_eq!(other(next()), id(&first));
    assert_eq!(live(&*site.store).await.len(), 3);
}

pub(super) async fn a_job_returns_only_if_no_other_has_its_unique_key(site: Site) {
    let first = id(&site.try_submit(unique("a")).await.expect("taken"));
    site.manager.cancel(&caller(), &first, None).await.expect("cancelled");
    let second = id(&site.try_submit(unique("a")).await.expect("taken"));
    let refused = site.manager.retry(&caller(), &first, None).await;
    assert!(matches!(&refused, Err(ManagerError::Duplicate(other)) if *other == second), "{refused:?}");
    let retry_all = async || {
        let order = BulkOrder { action: BulkAction::Retry, actor: caller().name, reason: "again".to_owned() };
        let selection = BulkSelection { filter: Filter::default(), ids: vec![first.clone()] };
        let bounds = BulkBounds { max_items: 10, within: PATIENCE, after: None };
        site.manager.bulk_change(order, &selection, bounds).await.expect("done")
    };
    let report = retry_all().await;
    assert_eq!((report.changed, report.skipped), (0, 1), "{report:?}");
    assert_eq!(site.state(&first).await, JobState::Cancelled);
    site.manager.cancel(&caller(), &second, None).await.expect("cancelled");
    site.manager.retry(&caller(), &first, None).await.expect("retried");
    assert_eq!(other(site.try_submit(unique("a")).await), first);
    site.manager.cancel(&caller(), &first, None).await.expect("cancelled");
    assert_eq!(retry_all().await.changed, 1);
    assert_eq!(other(site.try_submit(unique("a")).await), first);
    let again = site.manager.retry(&caller(), &first, None).await;
    assert!(matches!(again, Err(ManagerError::Refused(Refusal::NotRetryable(JobState::Available)))), "{again:?}");
    assert_eq!(live(&*site.store).await, [first]);
}

pub(super) async fn a_repeated_submission_comes_before_what_holds_its_unique_key(site: Site) {
    let named = |name: &str| NewJob { id: Some(JobId::new(name).expect("an id")), ..unique("a") };
    let keyed = || NewJob { idempotency_key: Some("once".to_owned()), ..unique("a") };
    let first = site.try_submit(named("first")).await.expect("taken");
    let again = site.try_submit(named("first")).await.expect("answered");
    assert_eq!((id(&again), again.created), (id(&first), false));
    assert_eq!(other(site.try_submit(keyed()).await), id(&first));
    site.manager.cancel(&caller(), &id(&first), None).await.expect("cancelled");
    let second = site.try_submit(keyed()).await.expect("taken");
    let ended = site.try_submit(named("first")).await.expect("answered");
    assert_eq!(ended.job.versioned.job.state.name(), JobState::Cancelled, "it is not submitted a second time");
    let again = site.try_submit(keyed()).await.expect("answered");
    assert_eq!((id(&again), again.created), (id(&second), false));
    let differs = site.try_submit(NewJob { payload: Some(json("1")), ..named("first") }).await;
    assert!(matches!(differs, Err(ManagerError::SubmissionDiffers(_))), "{differs:?}");
}

/// Writes the record of the key as a manager has that is about to create or return this job.
async fn is_about_to(site: &Site, job: &str, returns: bool) {
    let now = site.clock.now();
    let body = format!(
        r#"{{"job": "{job}", "queue": "q", "kind": "k", "at": "{now}", "creates": {}, "returns": {returns}}}"#,
        !returns
    );
    let key = RecordKey::new(RecordKind::Unique, RecordName::new("a").expect("a name"));
    let record = site.store.record(&key).await.expect("readable");
    let write = RecordWrite::put(key, json(&body), record.map(|record| record.version));
    site.store.write_record(write).await.expect("written");
}

pub(super) async fn a_key_is_taken_from_a_job_that_was_not_created_and_its_late_creation_meets_a_conflict(site: Site) {
    is_about_to(&site, "late", false).await;
    let second = id(&site.try_submit(unique("a")).await.expect("nobody completes the first submission"));
    let stands = site.job(&JobId::new("late").expect("an id")).await.versioned;
    assert!(stands.job.is_never_created(), "{stands:?}");
    let job = leasehold::job::Job { id: stands.job.id.clone(), ..(*site.job(&second).await.versioned.job).clone() };
    let late = site.store.write(vec![Write::Create { job: Arc::new(job), bodies: vec![] }]).await.remove(0);
    assert!(matches!(late, Err(WriteError::Conflict(Some(_)))), "{late:?}");
    let retried = site.manager.retry(&caller(), &stands.job.id, None).await;
    assert!(retried.is_err(), "there is nothing to run: {retried:?}");
    // Its client, who has no answer yet, submits it again.
    let again = || NewJob { id: Some(stands.job.id.clone()), ..of("a", OnDuplicate::Refuse, "[7]") };
    assert_eq!(other(site.try_submit(again()).await), second);
    site.manager.cancel(&caller(), &second, None).await.expect("cancelled");
    let created = site.try_submit(again()).await.expect("taken");
    assert_eq!((id(&created), created.created, created.job.payload), (stands.job.id.clone(), true, Some(json("[7]"))));
    assert_eq!(other(site.try_submit(unique("a")).await), stands.job.id);
    assert!(!site.try_submit(again()).await.expect("answered").created);
    assert_eq!(site.claim_one().await.job.id, stands.job.id);
}

pub(super) async fn a_key_is_taken_from_a_job_that_was_to_return_and_its_late_return_meets_a_conflict(site: Site) {
    let first = id(&site.try_submit(unique("a")).await.expect("taken"));
    let cancelled = site.manager.cancel(&caller(), &first, None).await.expect("cancelled");
    is_about_to(&site, first.as_str(), true).await;
    let second = id(&site.try_submit(unique("a")).await.expect("the first has ended"));
    let returned = cancelled.job.retry(&caller().name, None, site.clock.now()).expect("retryable");
    let late = Write::Replace { job: Arc::new(returned), expected: cancelled.version, bodies: vec![] };
    let late = site.store.write(vec![late]).await.remove(0);
    assert!(matches!(late, Err(WriteError::Conflict(Some(_)))), "{late:?}");
    assert_eq!(live(&*site.store).await, [second]);
}

pub(super) async fn a_job_with_a_unique_key_is_handed_to_a_worker_that_waits(site: Site) {
    let manager = site.manager.clone();
    let waiting = tokio::spawn(async move { manager.claim(ClaimRequest { wait: PATIENCE, ..claim(1) }).await });
    until("a waiting claim", async || site.manager.waiting_claims() == 1).await;
    let submitted = site.try_submit(unique("a")).await.expect("taken");
    let claimed = taken(waiting.await.expect("no panic").expect("the claim is answered")).remove(0);
    assert_eq!((claimed.job.id.clone(), claimed.job.fence), (id(&submitted), Fence::new(1)));
    assert_eq!(submitted.job.versioned.job.state.name(), JobState::Running);
    assert_eq!(other(site.try_submit(unique("a")).await), id(&submitted));
    site.finish(&claimed, completed("1")).await.expect("accepted");
    assert!(site.try_submit(unique("a")).await.expect("taken").created);
}

impl Pair {
    async fn submit(&self, manager: usize, job: NewJob) -> Result<Submitted, ManagerError> {
        self.managers[manager].submit(&caller(), vec![job]).await.remove(0)
    }

    /// Holds the first manager up after so many points of what it does, and lets the second one submit meanwhile. Returns
    /// whether it came to that point.
    async fn one_is_live(&self, points: i64, first: impl Future<Output = ()> + Send + 'static) -> bool {
        let meanwhile = async {
            // It either gets the key, or hears of the job that has it.
            match self.submit(1, unique("a")).await {
                Ok(_) | Err(ManagerError::Duplicate(_)) => {}
                Err(error) => panic!("stopped after {points}: {error}"),
            }
            let live = live(&*self.store).await;
            assert!(live.len() <= 1, "stopped after {points}: {live:?}");
        };
        let (is_stopped, ()) = self.stopped_after(points, first, meanwhile).await;
        let live = live(&*self.store).await;
        assert_eq!(live.len(), 1, "stopped after {points}, and gone on: {live:?}");
        is_stopped
    }
}

/// Wherever a manager stops in a submission, and however late it goes on, one job of the key is live.
async fn a_manager_that_stops_in_a_submission_makes_no_second_job_of_a_key(fresh: impl AsyncFn() -> Box<dyn Engine>) {
    at_every_point(4, async |points: i64| {
        let pair = Pair::on(fresh().await).await;
        let name = (points % 2 == 1).then(|| JobId::new("mine").expect("an id"));
        let manager = pair.managers[0].clone();
        let first = async move {
            let job = NewJob { id: name, ..unique("a") };
            match manager.submit(&caller(), vec![job]).await.remove(0) {
                Ok(_) | Err(ManagerError::Duplicate(_)) => {}
                Err(error) => panic!("stopped after {points}: {error}"),
            }
        };
        let is_stopped = pair.one_is_live(points, first).await;
        pair.end().await;
        is_stopped
    })
    .await;
}

/// The same for a job that returns from its end.
async fn a_manager_that_stops_in_a_retry_makes_no_second_job_of_a_key(fresh: impl AsyncFn() -> Box<dyn Engine>) {
    at_every_point(6, async |points: i64| {
        let pair = Pair::on(fresh().await).await;
        let ended = id(&pair.submit(1, unique("a")).await.expect("taken"));
        pair.managers[1].cancel(&caller(), &ended, None).await.expect("cancelled");
        let manager = pair.managers[0].clone();
        let first = async move {
            match manager.retry(&caller(), &ended, None).await {
                Ok(_) | Err(ManagerError::Duplicate(_)) => {}
                Err(error) => panic!("stopped after {points}: {error}"),
            }
        };
        let is_stopped = pair.one_is_live(points, first).await;
        pair.end().await;
        is_stopped
    })
    .await;
}

at_every_point_of!(
    a_manager_that_stops_in_a_submission_makes_no_second_job_of_a_key,
    a_manager_that_stops_in_a_retry_makes_no_second_job_of_a_key,
);

#[tokio::test(flavor = "multi_thread")]
async fn of_submissions_of_one_key_that_race_at_two_managers_one_makes_a_job() {
    let pair = Pair::on(engines::elasticsearch().await).await;
    for race in 0..RACES {
        let submissions = (0..2 * RACING).map(|number| pair.submit(number % 2, of("a", OnDuplicate::Existing, "1")));
        let answers = join_all(submissions).await;
        let submitted: Vec<Submitted> = answers.into_iter().map(|answer| answer.expect("answered")).collect();
        let created: Vec<JobId> = submitted.iter().filter(|one| one.created).map(id).collect();
        assert_eq!(created.len(), 1, "race {race}: {created:?}");
        assert!(submitted.iter().all(|one| id(one) == created[0]), "race {race}");
        assert_eq!(live(&*pair.store).await, created, "race {race}");
        pair.managers[race % 2].cancel(&caller(), &created[0], None).await.expect("cancelled");
    }
}
