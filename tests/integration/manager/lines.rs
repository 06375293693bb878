//! Lines: the jobs of an ordering key run one after another, in the order in which their submissions were accepted.

use std::collections::HashMap;

use leasehold::job::{Conditions, Ordered, OrderingKey, RecordName};
use leasehold::manager::{BulkAction, BulkBounds, BulkOrder, BulkSelection};
use leasehold::query::Filter;
use leasehold::store::{RecordKey, RecordKind, RecordWrite, Write, WriteError};

mod random;

use super::stopped::{Pair, at_every_point, at_every_point_of};
use super::*;

fn ordered(key: &str) -> NewJob {
    let ordering = Some(Ordered::without_place(OrderingKey::new(key).expect("a key")));
    NewJob::of(JobSpec { conditions: Conditions { ordering, ..Conditions::default() }.stored(), ..spec() })
}

fn urgent(job: NewJob, priority: i64) -> NewJob {
    NewJob { spec: JobSpec { priority: Priority::new(priority).expect("a priority"), ..job.spec }, ..job }
}

fn id(view: &JobView) -> JobId {
    view.versioned.job.id.clone()
}

fn ids(claimed: &[Versioned]) -> Vec<JobId> {
    claimed.iter().map(|claimed| claimed.job.id.clone()).collect()
}

impl Site {
    /// Claims until there is one job of a line, and checks that it is this one.
    async fn next_is(&self, expected: &JobId) -> Versioned {
        let line = |job: &leasehold::job::Job| job.spec.ordering().map(|ordering| ordering.key.clone());
        let key = line(&self.job(expected).await.versioned.job);
        let mut claimed = Vec::new();
        until("a job of the line is claimed", async || {
            claimed.extend(self.claim(ClaimRequest { wait: Duration::from_millis(20), ..claim(1) }).await);
            claimed.retain(|claimed| line(&claimed.job) == key);
            // What another manager comes first for is left to it for a while.
            self.clock.advance(Duration::from_millis(100));
            !claimed.is_empty()
        })
        .await;
        assert_eq!(claimed[0].job.id, *expected);
        claimed.remove(0)
    }

    /// Claims all that may run now, a few times.
    async fn claim_all(&self) -> Vec<Versioned> {
        let mut claimed = Vec::new();
        for _ in 0..3 {
            claimed.extend(self.claim(claim(100)).await);
        }
        claimed
    }
}

pub(super) async fn a_completed_job_of_a_line_that_is_removed_by_its_age_does_not_come_back(site: Site) {
    let first = id(&site.submit(ordered("a")).await);
    let claimed = site.claim_one().await;
    site.finish(&claimed, completed("1")).await.expect("accepted");
    let ended = site.job(&first).await.versioned;
    assert!(site.manager.remove(&[ended]).await.remove(0).expect("removed"));
    let next = site.another_manager().submit(&caller(), vec![ordered("a")]).await.remove(0).expect("taken");
    assert_eq!(next.job.versioned.job.spec.ordering().expect("a place").seq, 2, "the line goes on");
    assert_eq!(site.store.get(&[first]).await.expect("read"), [None], "no job stands for it");
}

pub(super) async fn jobs_of_a_key_run_one_after_another_in_the_order_of_their_submission(site: Site) {
    // The later one is the more urgent, and every other one is submitted by a manager whose clock is behind.
    let behind = Arc::new(ManualClock::at(site.clock.now().minus(Duration::from_secs(3_600))));
    let behind = Manager::start(Arc::clone(&site.store), behind, config());
    let mut expected = Vec::new();
    for number in 0..6 {
        let manager = if number % 2 == 0 { &site.manager } else { &behind };
        let submitted = manager.submit(&caller(), vec![urgent(ordered("a"), number)]).await.remove(0);
        expected.push(id(&submitted.expect("taken").job));
    }
    let other = id(&site.submit(urgent(ordered("b"), -100)).await);
    site.engine.settle().await;
    for expected in &expected {
        let claimed = site.next_is(expected).await;
        assert!(ids(&site.claim_all().await).iter().all(|id| *id == other), "one of each key runs");
        site.complete(&claimed).await;
    }
    until("the job of the other key runs", async || {
        assert!(ids(&site.claim_all().await).iter().all(|id| *id == other), "none is left of the first");
        site.state(&other).await == JobState::Running
    })
    .await;
}

pub(super) async fn a_job_that_waits_for_its_time_or_its_retry_keeps_those_behind_it_waiting(site: Site) {
    let due = site.clock.now().plus(Duration::from_secs(60));
    let first = id(&site.submit(NewJob { run_at: Some(due), ..ordered("a") }).await);
    let second = id(&site.submit(ordered("a")).await);
    site.engine.settle().await;
    assert!(site.claim_all().await.is_empty(), "the first is not due");
    site.clock.advance(Duration::from_secs(60));
    let claimed = site.next_is(&first).await;
    let waits = site.finish(&claimed, failed(true)).await.expect("accepted");
    assert!(site.claim_all().await.is_empty(), "the first waits for its retry");
    site.clock.advance(waits.job.run_at.since(site.clock.now()));
    let again = site.next_is(&first).await;
    let reason = "later".to_owned();
    let outcome = Outcome::Released { reason, delay: Duration::from_secs(7) };
    site.finish(&again, outcome).await.expect("accepted");
    assert!(site.claim_all().await.is_empty(), "the first was put off");
    site.clock.advance(Duration::from_secs(7));
    let again = site.next_is(&first).await;
    site.finish(&again, failed(false)).await.expect("accepted");
    site.next_is(&second).await;
}

pub(super) async fn every_end_lets_the_next_job_of_a_key_go_on(site: Site) {
    let soon = Some(site.clock.now().plus(Duration::from_secs(5)));
    let expiring = id(&site.submit(NewJob { expires_at: soon, ..ordered("a") }).await);
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(id(&site.submit(ordered("a")).await));
    }
    site.engine.settle().await;
    site.clock.advance(Duration::from_secs(5));
    // The claim finds that the first has expired.
    let completed = site.next_is(&waiting[0]).await;
    assert_eq!(site.state(&expiring).await, JobState::Expired);
    site.complete(&completed).await;
    let dead = site.next_is(&waiting[1]).await;
    site.finish(&dead, failed(false)).await.expect("accepted");
    let cancelled = site.next_is(&waiting[2]).await;
    site.manager.cancel(&caller(), &cancelled.job.id, None).await.expect("asked");
    assert!(site.claim_all().await.is_empty(), "it was only asked to stop");
    site.finish(&cancelled, failed(true)).await.expect("accepted");
    site.manager.cancel(&caller(), &waiting[3], None).await.expect("cancelled");
    site.next_is(&waiting[4]).await;
}

pub(super) async fn the_end_of_a_waiting_job_lets_none_overtake_the_one_that_runs(site: Site) {
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(id(&site.submit(ordered("a")).await));
    }
    site.engine.settle().await;
    let first = site.next_is(&jobs[0]).await;
    for middle in &jobs[1..3] {
        site.manager.cancel(&caller(), middle, None).await.expect("cancelled");
        assert!(site.claim_all().await.is_empty(), "the first still runs");
    }
    site.complete(&first).await;
    site.next_is(&jobs[3]).await;
}

pub(super) async fn a_job_that_returns_from_its_end_goes_to_the_end_of_its_line(site: Site) {
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(id(&site.submit(ordered("a")).await));
    }
    site.manager.cancel(&caller(), &jobs[0], None).await.expect("cancelled");
    site.manager.cancel(&caller(), &jobs[1], None).await.expect("cancelled");
    let returned = site.manager.retry(&caller(), &jobs[0], None).await.expect("retried");
    let seq = |job: &leasehold::job::Job| job.spec.ordering().expect("a place").seq;
    assert_eq!(seq(&returned.job), 4);
    let order = BulkOrder { action: BulkAction::Retry, actor: caller().name, reason: "again".to_owned() };
    let selection = BulkSelection { filter: Filter::default(), ids: vec![jobs[1].clone()] };
    let bounds = BulkBounds { max_items: 10, within: PATIENCE, after: None };
    assert_eq!(site.manager.bulk_change(order, &selection, bounds).await.expect("done").changed, 1);
    site.engine.settle().await;
    for expected in [2, 0, 1] {
        let claimed = site.next_is(&jobs[expected]).await;
        assert!(site.claim_all().await.is_empty());
        site.complete(&claimed).await;
    }
}

pub(super) async fn many_jobs_of_one_call_and_one_key_keep_their_order_and_hold_no_others_up(site: Site) {
    let mut jobs: Vec<NewJob> = (0..500).map(|number| urgent(ordered("a"), i64::from(number % 7))).collect();
    jobs.extend((0..20).map(|_| urgent(new_job(), -1)));
    let answers = site.manager.submit(&caller(), jobs).await;
    let submitted: Vec<JobId> = answers.into_iter().map(|answer| id(&answer.expect("taken").job)).collect();
    let (line, others) = submitted.split_at(500);
    site.engine.settle().await;
    let claimed = site.claim_until(21).await;
    assert!(claimed.iter().any(|one| one.job.id == line[0]), "the first runs");
    assert!(others.iter().all(|other| claimed.iter().any(|one| one.job.id == *other)), "and all others beside it");
    let mut current = claimed.into_iter().find(|one| one.job.id == line[0]).expect("the first");
    // Another manager, which knows of nothing, goes on in the same order.
    let other = site.another_manager();
    for (number, expected) in line.iter().enumerate().skip(1).take(12) {
        site.complete(&current).await;
        let manager = if number == 6 { &other } else { &site.manager };
        // What a manager comes second for it leaves to the first for a while.
        site.clock.advance(Duration::from_secs(2));
        let mut next = Vec::new();
        until("the next job", async || {
            let wait = Duration::from_millis(20);
            next.extend(taken(manager.claim(ClaimRequest { wait, ..claim(1) }).await.expect("answered")));
            // What it leaves to the other one from now on, it takes once time has passed.
            site.clock.advance(wait);
            !next.is_empty()
        })
        .await;
        assert_eq!(next[0].job.id, *expected, "the job {number}");
        current = next.remove(0);
    }
}

pub(super) async fn a_repeated_submission_takes_no_second_place(site: Site) {
    let named = || NewJob { id: Some(JobId::new("first").expect("an id")), ..ordered("a") };
    let keyed = || NewJob { idempotency_key: Some("once".to_owned()), ..ordered("a") };
    let first = site.try_submit(named()).await.expect("taken");
    let second = site.try_submit(keyed()).await.expect("taken");
    for (again, of) in [(named(), &first), (keyed(), &second)] {
        let again = site.try_submit(again).await.expect("answered");
        assert_eq!((id(&again.job), again.created), (id(&of.job), false));
    }
    let differs = site.try_submit(NewJob { id: Some(id(&first.job)), ..ordered("b") }).await;
    assert!(matches!(differs, Err(ManagerError::SubmissionDiffers(_))), "{differs:?}");
    let third = site.submit(ordered("a")).await;
    let seqs = [&first.job, &second.job, &third].map(|view| view.versioned.job.spec.ordering().expect("a place").seq);
    assert_eq!(seqs, [1, 2, 3]);
}

pub(super) async fn a_waiting_worker_is_given_the_next_job_of_a_key_once_the_one_before_has_ended(site: Site) {
    let first = id(&site.submit(ordered("a")).await);
    let claimed = site.next_is(&first).await;
    let manager = site.manager.clone();
    let waiting = tokio::spawn(async move { manager.claim(ClaimRequest { wait: PATIENCE, ..claim(1) }).await });
    until("a waiting claim", async || site.manager.waiting_claims() == 1).await;
    let second = id(&site.submit(ordered("a")).await);
    until("the claim waits again", async || site.manager.waiting_claims() == 1).await;
    assert_eq!(site.state(&second).await, JobState::Available);
    site.complete(&claimed).await;
    let next = taken(waiting.await.expect("no panic").expect("answered"));
    assert_eq!(ids(&next), [second]);
    // An end and the claim of the next in one call.
    let third = id(&site.submit(ordered("a")).await);
    let finish = Finish { id: next[0].job.id.clone(), fence: next[0].job.fence, outcome: completed("1") };
    let request = ClaimRequest { wait: PATIENCE, ..claim(1) };
    let (ended, claimed) = site.manager.finish_and_claim(&worker("w"), vec![finish], request).await;
    assert!(ended[0].is_ok(), "{ended:?}");
    assert_eq!(ids(&taken(claimed.expect("answered"))), [third]);
}

pub(super) async fn it_is_explained_which_job_comes_before_one_in_its_line(site: Site) {
    let first = id(&site.submit(ordered("a")).await);
    let second = id(&site.submit(ordered("a")).await);
    site.engine.settle().await;
    let told = async |of: &JobId| {
        let explanation = site.manager.explain(of).await.expect("explained");
        let reason = explanation.reasons.into_iter().find(|reason| reason.code == "behind_in_line");
        reason.map(|reason| (reason.evidence["ordering_key"].clone(), reason.evidence["job"].clone()))
    };
    assert_eq!(told(&second).await, Some(("a".into(), first.as_str().into())));
    assert_eq!(told(&first).await, None);
    let claimed = site.next_is(&first).await;
    assert_eq!(told(&second).await, Some(("a".into(), first.as_str().into())));
    site.complete(&claimed).await;
    assert_eq!(told(&second).await, None, "the one before it has ended");
}

fn line_of(key: &str) -> RecordKey {
    RecordKey::new(RecordKind::Line, RecordName::new(key).expect("a name"))
}

/// Writes the document of the line `a` as a manager has that is about to write these jobs.
async fn is_about_to(site: &Site, next: u64, jobs: &[&str], returns: bool) {
    let (now, jobs) = (site.clock.now(), jobs.join(r#"", ""#));
    let run = format!(r#"{{"queue": "q", "kind": "k", "returns": {returns}, "jobs": ["{jobs}"]}}"#);
    let body = format!(r#"{{"next": {next}, "at": "{now}", "allotted": [{run}]}}"#);
    let record = site.store.record(&line_of("a")).await.expect("readable");
    let write = RecordWrite::put(line_of("a"), json(&body), record.map(|record| record.version));
    site.store.write_record(write).await.expect("written");
}

fn placed(job: &leasehold::job::Job, name: &str, seq: u64, first: u64) -> leasehold::job::Job {
    let id = JobId::new(name).expect("an id");
    leasehold::job::Job { id, spec: Arc::new(job.spec.placed(seq, first)), ..job.clone() }
}

pub(super) async fn a_place_is_not_waited_for_whose_job_was_not_created_and_its_late_creation_meets_a_conflict(
    site: Site,
) {
    is_about_to(&site, 2, &["late"], false).await;
    let second = site.submit(ordered("a")).await;
    assert_eq!(second.versioned.job.spec.ordering().map(|ordered| ordered.seq), Some(2));
    let stands = site.job(&JobId::new("late").expect("an id")).await.versioned;
    assert!(stands.job.is_never_created(), "{stands:?}");
    let late = Arc::new(placed(&second.versioned.job, "late", 1, 1));
    let late = site.store.write(vec![Write::Create { job: late, bodies: vec![] }]).await.remove(0);
    assert!(matches!(late, Err(WriteError::Conflict(Some(_)))), "{late:?}");
    // Its client, who has no answer yet, submits it again, and it gets a new place.
    let again = NewJob { id: Some(stands.job.id.clone()), ..ordered("a") };
    let created = site.try_submit(again).await.expect("taken");
    assert_eq!(created.job.versioned.job.spec.ordering().map(|ordered| ordered.seq), Some(3));
    site.engine.settle().await;
    let claimed = site.next_is(&id(&second)).await;
    site.complete(&claimed).await;
    site.next_is(&stands.job.id).await;
}

pub(super) async fn a_place_is_not_waited_for_whose_job_was_to_return_and_its_late_return_meets_a_conflict(site: Site) {
    let first = id(&site.submit(ordered("a")).await);
    let cancelled = site.manager.cancel(&caller(), &first, None).await.expect("cancelled");
    is_about_to(&site, 3, &[first.as_str()], true).await;
    let second = id(&site.submit(ordered("a")).await);
    let returned = cancelled.job.retry(&caller().name, None, site.clock.now()).expect("retryable");
    let returned = Arc::new(placed(&returned, first.as_str(), 2, 2));
    let late = Write::Replace { job: returned, expected: cancelled.version, bodies: vec![] };
    let late = site.store.write(vec![late]).await.remove(0);
    assert!(matches!(late, Err(WriteError::Conflict(Some(_)))), "{late:?}");
    site.engine.settle().await;
    site.next_is(&second).await;
}

pub(super) async fn of_one_call_a_later_job_waits_until_the_earlier_ones_are_created_or_given_up(site: Site) {
    let model = site.submit(ordered("b")).await.versioned.job;
    site.manager.cancel(&caller(), &model.id, None).await.expect("cancelled");
    is_about_to(&site, 4, &["one", "two", "three"], false).await;
    let of_call = |name: &str, seq| {
        let job = placed(&model, name, seq, 1);
        let conditions = Conditions {
            ordering: Some(Ordered { key: OrderingKey::new("a").expect("a key"), seq, first: 1 }),
            ..Conditions::default()
        };
        let spec = Arc::new(JobSpec { conditions: conditions.stored(), ..JobSpec::clone(&job.spec) });
        Arc::new(leasehold::job::Job { spec, ..job })
    };
    let third = site.store.write(vec![Write::Create { job: of_call("three", 3), bodies: vec![] }]).await.remove(0);
    third.expect("created");
    site.engine.settle().await;
    if !site.store.is_exclusive() {
        let claimed = site.claim_all().await;
        assert!(claimed.is_empty(), "the others may still come: {claimed:?}");
        let first = site.store.write(vec![Write::Create { job: of_call("one", 1), bodies: vec![] }]).await.remove(0);
        first.expect("created");
        site.engine.settle().await;
        let claimed = site.next_is(&JobId::new("one").expect("an id")).await;
        site.complete(&claimed).await;
    }
    site.next_is(&JobId::new("three").expect("an id")).await;
    assert!(site.job(&JobId::new("two").expect("an id")).await.versioned.job.is_never_created());
}

impl Pair {
    /// Submits a job of the line at the second manager.
    async fn submit_next(&self) -> JobId {
        id(&self.managers[1].submit(&caller(), vec![ordered("a")]).await.remove(0).expect("taken").job)
    }

    /// Runs all jobs to their ends at the second manager. Returns them in the order in which they began.
    async fn run_all(&self, count: usize) -> Vec<JobId> {
        let mut ran = Vec::new();
        until("all jobs have run", async || {
            let request = ClaimRequest { wait: Duration::from_millis(20), ..claim(10) };
            let claimed = taken(self.managers[1].claim(request).await.expect("answered"));
            assert!(claimed.len() <= 1, "one runs at a time: {claimed:?}");
            for one in claimed {
                let finish = Finish { id: one.job.id.clone(), fence: one.job.fence, outcome: completed("1") };
                self.managers[1].finish(&worker("w"), vec![finish]).await.remove(0).expect("accepted");
                ran.push(one.job.id.clone());
            }
            ran.len() >= count
        })
        .await;
        ran
    }
}

/// Wherever a manager stops in a submission, the jobs that were accepted before and meanwhile run in their order, and
/// those of the submission in theirs.
async fn a_manager_that_stops_in_a_submission_does_not_change_the_order(fresh: impl AsyncFn() -> Box<dyn Engine>) {
    at_every_point(6, async |points: i64| {
        let pair = Pair::on(fresh().await).await;
        let before = pair.submit_next().await;
        let manager = pair.managers[0].clone();
        let first = async move {
            let answers = manager.submit(&caller(), vec![ordered("a"), ordered("a")]).await;
            answers.into_iter().map(|answer| id(&answer.expect("taken").job)).collect::<Vec<JobId>>()
        };
        let meanwhile = std::cell::OnceCell::new();
        let submit = async {
            meanwhile.set((pair.submit_next().await, pair.submit_next().await)).expect("once");
        };
        let (is_stopped, of_call) = pair.stopped_after(points, first, submit).await;
        let after = pair.submit_next().await;
        let mut expected: Vec<&JobId> = vec![&before];
        let (one, other) = meanwhile.get().map_or((None, None), |(one, other)| (Some(one), Some(other)));
        expected.extend(one.into_iter().chain(other));
        let ran = pair.run_all(expected.len() + 3).await;
        let at: HashMap<&JobId, usize> = ran.iter().zip(0..).collect();
        let place = |id: &JobId| *at.get(id).unwrap_or_else(|| panic!("stopped after {points}: {id} has run: {ran:?}"));
        let is_ordered = |ids: &[&JobId]| ids.windows(2).all(|pair| place(pair[0]) < place(pair[1]));
        assert!(is_ordered(&expected), "stopped after {points}: {ran:?}, expected {expected:?}");
        assert!(is_ordered(&[&before, &of_call[0], &of_call[1], &after]), "stopped after {points}: {ran:?}");
        pair.end().await;
        is_stopped
    })
    .await;
}

/// The same for a job that returns from its end.
async fn a_manager_that_stops_in_a_retry_does_not_change_the_order(fresh: impl AsyncFn() -> Box<dyn Engine>) {
    at_every_point(6, async |points: i64| {
        let pair = Pair::on(fresh().await).await;
        let (ended, before) = (pair.submit_next().await, pair.submit_next().await);
        pair.managers[1].cancel(&caller(), &ended, None).await.expect("cancelled");
        let (manager, returning) = (pair.managers[0].clone(), ended.clone());
        let first = async move {
            manager.retry(&caller(), &returning, None).await.expect("retried");
        };
        let meanwhile = std::cell::OnceCell::new();
        let submit = async { meanwhile.set(pair.submit_next().await).expect("once") };
        let (is_stopped, ()) = pair.stopped_after(points, first, submit).await;
        let ran = pair.run_all(if is_stopped { 3 } else { 2 }).await;
        assert_eq!(ran[0], before, "stopped after {points}: {ran:?}");
        assert!(ran.contains(&ended) && meanwhile.get().is_none_or(|id| ran.contains(id)), "{points}: {ran:?}");
        pair.end().await;
        is_stopped
    })
    .await;
}

/// Wherever a manager stops in a claim, no two jobs of the key run at once, and none overtakes another.
async fn a_manager_that_stops_in_a_claim_lets_none_run_beside_another(fresh: impl AsyncFn() -> Box<dyn Engine>) {
    at_every_point(4, async |points: i64| {
        let pair = Pair::on(fresh().await).await;
        let answers = pair.managers[1].submit(&caller(), (0..3).map(|_| ordered("a")).collect()).await;
        let jobs: Vec<JobId> = answers.into_iter().map(|answer| id(&answer.expect("taken").job)).collect();
        engines::refresh(&*pair.store).await;
        let manager = pair.managers[0].clone();
        let first = async move { taken(manager.claim(claim(1)).await.expect("answered")) };
        let ran = std::cell::RefCell::new(Vec::new());
        let run = async {
            // What the stopped manager has claimed already keeps the others waiting.
            let request = ClaimRequest { wait: Duration::from_millis(20), ..claim(1) };
            for _ in 0..20 {
                let claimed = taken(pair.managers[1].claim(request.clone()).await.expect("answered"));
                for one in claimed {
                    let finish = Finish { id: one.job.id.clone(), fence: one.job.fence, outcome: completed("1") };
                    pair.managers[1].finish(&worker("w"), vec![finish]).await.remove(0).expect("accepted");
                    ran.borrow_mut().push(one.job.id.clone());
                }
            }
        };
        let (is_stopped, claimed) = pair.stopped_after(points, first, run).await;
        let ran = ran.into_inner();
        // What was claimed by the stopped one is the first that has not ended.
        assert_eq!(ran, jobs[..ran.len()], "stopped after {points}");
        assert!(claimed.iter().all(|one| one.job.id == jobs[ran.len()]), "stopped after {points}: {claimed:?}");
        pair.end().await;
        is_stopped
    })
    .await;
}

at_every_point_of!(
    a_manager_that_stops_in_a_submission_does_not_change_the_order,
    a_manager_that_stops_in_a_retry_does_not_change_the_order,
    a_manager_that_stops_in_a_claim_lets_none_run_beside_another,
);
