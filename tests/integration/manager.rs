//! The manager over each engine: what workers and clients are promised, case by case.
//!
//! Every case runs on every engine. Time is the test's own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, ManualClock, Timestamp};
use leasehold::job::{
    Actor, AdminRelease, Fence, JobError, JobId, JobSpec, JobState, Json, Kind, Priority, QueueName, Refusal,
    RequestId, State, Then, WorkerId,
};
use leasehold::manager::{
    Caller, ClaimOrder, ClaimRequest, Claimed, Finish, Heartbeat, JobView, Manager, ManagerConfig, ManagerError,
    NewJob, Outcome,
};
use leasehold::store::{Store, Versioned};

use crate::engines::{self, Engine};
use admin::*;
use amend::*;
use events::{
    a_feed_goes_on_at_another_manager_with_what_the_store_has, a_feed_goes_on_in_the_ring_right_after_what_it_saw,
    a_feed_that_goes_on_elsewhere_says_that_something_may_be_missing_after_a_second_step,
    a_feed_that_goes_on_elsewhere_says_that_something_may_be_missing_after_the_clock_was_set_back,
    a_filter_lets_through_what_it_names, a_write_whose_caller_has_gone_is_published_and_handed_out_all_the_same,
    every_transition_is_told_once_and_in_order, what_another_manager_writes_after_the_clock_was_set_back_is_told,
    what_happened_since_a_time_is_told_before_what_happens,
    what_was_written_before_the_clock_was_set_back_is_not_told_as_live,
};
use limits::*;
use lines::*;
use named_claims::{
    a_named_claim_finds_its_jobs_again, a_named_claim_finds_its_jobs_again_at_another_manager,
    a_named_claim_made_anew_supersedes_the_one_that_waits, a_named_claim_that_is_delivered_again_has_its_whole_lease,
    a_named_claim_that_was_answered_with_none_takes_none, a_named_claim_whose_jobs_have_ended_takes_no_others,
};
use unique::*;

const LEASE: Duration = Duration::from_secs(60);

/// Long enough for a waiting claim to be answered; the tests do not wait for it.
const PATIENCE: Duration = Duration::from_secs(90);

struct Site {
    engine: Box<dyn Engine>,
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    manager: Manager,
}

impl Site {
    async fn on(engine: Box<dyn Engine>, config: ManagerConfig) -> Self {
        let store = engine.store();
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
        let manager = Manager::start(Arc::clone(&store), Arc::clone(&clock) as Arc<dyn Clock>, config);
        Self { engine, store, clock, manager }
    }

    /// Another manager over the same store, as after a crash or on another machine.
    fn another_manager(&self) -> Manager {
        Manager::start(Arc::clone(&self.store), Arc::clone(&self.clock) as Arc<dyn Clock>, config())
    }

    async fn submit(&self, job: NewJob) -> JobView {
        self.try_submit(job).await.expect("the job is taken").job
    }

    async fn try_submit(&self, job: NewJob) -> Result<leasehold::manager::Submitted, ManagerError> {
        self.manager.submit(&caller(), vec![job]).await.pop().expect("one answer")
    }

    async fn claim(&self, claim: ClaimRequest) -> Vec<Versioned> {
        taken(self.manager.claim(claim).await.expect("the claim is answered"))
    }

    async fn claim_one(&self) -> Versioned {
        self.claim(ClaimRequest { wait: PATIENCE, ..claim(1) }).await.pop().expect("a job")
    }

    async fn finish(&self, claimed: &Versioned, outcome: Outcome) -> Result<Versioned, ManagerError> {
        self.finish_as(&worker("w"), claimed, outcome).await
    }

    async fn finish_as(
        &self,
        worker: &WorkerId,
        claimed: &Versioned,
        outcome: Outcome,
    ) -> Result<Versioned, ManagerError> {
        let finish = Finish { id: claimed.job.id.clone(), fence: claimed.job.fence, outcome };
        self.manager.finish(worker, vec![finish]).await.pop().expect("one answer")
    }

    async fn beat(&self, claimed: &Versioned) -> Result<leasehold::manager::HeartbeatAnswer, ManagerError> {
        let beat = Heartbeat { id: claimed.job.id.clone(), fence: claimed.job.fence, progress: None };
        self.manager.heartbeat(&worker("w"), vec![beat]).await.pop().expect("one answer")
    }

    async fn job(&self, id: &JobId) -> JobView {
        self.manager.get(id).await.expect("the job is there")
    }

    async fn state(&self, id: &JobId) -> JobState {
        self.job(id).await.versioned.job.state.name()
    }
}

fn config() -> ManagerConfig {
    ManagerConfig { poll_interval: Duration::from_millis(50), ..ManagerConfig::default() }
}

fn caller() -> Caller {
    Caller::system("tester")
}

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

fn queue() -> QueueName {
    QueueName::new("q").expect("a name")
}

fn new_job() -> NewJob {
    NewJob::of(spec())
}

fn spec() -> JobSpec {
    JobSpec::new(queue(), Kind::new("k").expect("a name"))
}

fn claim(max_jobs: usize) -> ClaimRequest {
    ClaimRequest {
        worker_id: worker("w"),
        bearer: None,
        queues: vec![queue()],
        max_jobs,
        resources: BTreeMap::new(),
        labels: BTreeMap::new(),
        kinds: Vec::new(),
        wait: Duration::ZERO,
        lease: LEASE,
        order: ClaimOrder::default(),
        request_id: None,
        repeated: false,
    }
}

fn named(name: &str) -> ClaimRequest {
    ClaimRequest { request_id: Some(RequestId::new(name).expect("a name")), ..claim(10) }
}

fn taken(claimed: Claimed) -> Vec<Versioned> {
    let jobs = claimed.jobs().iter().map(|view| view.versioned.clone()).collect();
    claimed.delivered();
    jobs
}

fn json(text: &str) -> Json {
    Json::parse(text.to_owned()).expect("JSON")
}

fn completed(text: &str) -> Outcome {
    Outcome::Completed { result: Some(json(text)) }
}

fn failed(retryable: bool) -> Outcome {
    let error = JobError { code: "exit".to_owned(), message: "exit status 1".to_owned() };
    Outcome::Failed { error, retryable, retry_after: None }
}

fn is_lease_lost<T>(result: &Result<T, ManagerError>) -> bool {
    matches!(result, Err(ManagerError::Refused(Refusal::LeaseLost { .. })))
}

/// Waits until `condition` holds; the caller's own patience bounds it.
async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what} did not come about");
}

macro_rules! cases {
    ($($cases:tt)*) => {
        $crate::engines::on_both_engines! { |engine| super::Site::on(engine, super::config()).await; $($cases)* }
    };
}

cases! {
    a_job_is_submitted_claimed_and_completed,
    a_claim_that_waits_gets_the_job_submitted_meanwhile,
    a_dropped_answer_gives_the_job_back_attempt_and_all,
    a_dropped_claim_takes_no_job,
    a_named_claim_finds_its_jobs_again,
    a_named_claim_finds_its_jobs_again_at_another_manager,
    a_named_claim_made_anew_supersedes_the_one_that_waits,
    a_named_claim_that_is_delivered_again_has_its_whole_lease,
    a_named_claim_whose_jobs_have_ended_takes_no_others,
    a_named_claim_that_was_answered_with_none_takes_none,
    a_worker_whose_job_was_claimed_anew_is_refused_and_nothing_changes,
    a_worker_whose_job_was_released_is_refused,
    a_foreign_worker_is_refused,
    a_late_worker_is_heard_while_its_fence_is_the_current_one,
    the_same_finish_again_is_answered_as_the_first_time,
    a_cancelled_running_job_ends_when_its_worker_hears_of_it,
    a_cancelled_waiting_job_is_never_claimed,
    a_failed_job_waits_for_its_backoff_and_fails_when_attempts_are_used_up,
    a_failure_that_is_final_is_not_tried_again,
    a_failure_can_ask_for_a_longer_wait,
    a_released_job_keeps_its_attempts_and_gets_a_new_fence,
    a_job_past_its_start_deadline_expires_instead_of_being_claimed,
    a_job_due_later_is_not_claimed_before,
    the_same_submission_again_gives_the_first_job,
    the_same_submission_past_its_deadline_gives_the_first_job,
    another_submission_under_the_same_id_is_refused,
    a_large_payload_and_result_come_back_as_they_were,
    an_explicit_retry_gives_a_fresh_budget_and_the_fence_goes_on,
    a_watcher_hears_of_the_end,
    running_jobs_of_dead_workers_are_given_back,
    queues_show_their_depth_by_state,
    an_administrator_takes_a_job_from_its_worker_and_the_history_says_who_and_why,
    many_jobs_are_counted_before_they_are_changed_and_only_those_asked_for_are,
    many_failed_jobs_are_started_again,
    the_jobs_of_one_worker_are_taken_from_it_and_no_others,
    a_job_that_is_no_longer_as_asked_for_is_left_alone,
    a_job_that_is_already_asked_to_stop_is_not_asked_again,
    a_call_ends_in_time_and_the_next_one_goes_on_where_it_ended,
    a_call_goes_through_no_more_jobs_than_it_may,
    named_jobs_are_changed_each_once_and_only_where_they_match,
    an_order_that_can_be_done_to_none_of_those_asked_for_is_refused,
    flagged_jobs_are_shown_with_what_there_is_to_judge_them_by,
    a_held_job_is_not_claimed_and_goes_on_at_once_when_it_is_let_go,
    a_running_job_is_held_when_it_is_available_again,
    many_jobs_are_held_and_let_go,
    an_edited_job_goes_by_its_new_values_and_its_submission_is_still_recognised,
    an_edit_of_another_version_is_refused,
    a_deleted_job_is_gone_and_what_it_held_is_free,
    many_jobs_are_deleted_but_for_those_that_run,
    a_rerun_is_a_new_job_that_names_its_origin_and_is_made_once,
    every_transition_is_told_once_and_in_order,
    a_write_whose_caller_has_gone_is_published_and_handed_out_all_the_same,
    a_feed_goes_on_in_the_ring_right_after_what_it_saw,
    a_feed_goes_on_at_another_manager_with_what_the_store_has,
    what_another_manager_writes_after_the_clock_was_set_back_is_told,
    a_feed_that_goes_on_elsewhere_says_that_something_may_be_missing_after_the_clock_was_set_back,
    a_feed_that_goes_on_elsewhere_says_that_something_may_be_missing_after_a_second_step,
    what_was_written_before_the_clock_was_set_back_is_not_told_as_live,
    what_happened_since_a_time_is_told_before_what_happens,
    a_filter_lets_through_what_it_names,
    no_more_jobs_of_a_key_run_than_it_says,
    the_systems_own_jobs_are_under_no_limit_of_their_owner,
    a_limit_keeps_nobody_from_jobs_behind_those_that_nobody_takes,
    the_smallest_number_of_those_that_run_counts,
    jobs_that_a_limit_holds_do_not_hold_others_up,
    a_limit_that_is_set_counts_what_runs_and_wins_over_the_jobs,
    urgent_jobs_have_the_places_that_are_kept_free_for_them,
    an_urgent_job_is_found_behind_more_held_jobs_than_are_kept,
    an_urgent_job_that_is_due_later_begins_before_those_that_wait,
    an_urgent_job_that_is_due_later_begins_before_those_that_a_limit_holds,
    jobs_that_ran_before_places_were_kept_free_count_by_their_priority,
    a_slot_whose_claim_never_came_is_given_away_and_the_claim_is_refused,
    a_released_job_leaves_its_slot,
    a_rate_lets_no_more_jobs_begin_than_its_burst_and_the_time,
    a_key_that_is_paused_begins_nothing_before_its_time,
    a_completed_job_of_a_line_that_is_removed_by_its_age_does_not_come_back,
    a_completed_job_that_is_removed_by_its_age_does_not_come_back_as_a_cancelled_one,
    a_second_job_of_a_unique_key_is_refused_until_the_first_has_ended,
    a_second_job_of_a_unique_key_is_answered_with_the_first_if_it_asks_for_that,
    a_waiting_job_takes_over_the_input_of_a_later_one_and_is_put_off_no_longer_than_it_may,
    jobs_of_one_call_and_one_unique_key_meet_the_first_of_them,
    a_job_returns_only_if_no_other_has_its_unique_key,
    a_repeated_submission_comes_before_what_holds_its_unique_key,
    a_key_is_taken_from_a_job_that_was_not_created_and_its_late_creation_meets_a_conflict,
    a_key_is_taken_from_a_job_that_was_to_return_and_its_late_return_meets_a_conflict,
    a_job_with_a_unique_key_is_handed_to_a_worker_that_waits,
    jobs_of_a_key_run_one_after_another_in_the_order_of_their_submission,
    a_job_that_waits_for_its_time_or_its_retry_keeps_those_behind_it_waiting,
    every_end_lets_the_next_job_of_a_key_go_on,
    the_end_of_a_waiting_job_lets_none_overtake_the_one_that_runs,
    a_job_that_returns_from_its_end_goes_to_the_end_of_its_line,
    many_jobs_of_one_call_and_one_key_keep_their_order_and_hold_no_others_up,
    a_repeated_submission_takes_no_second_place,
    a_waiting_worker_is_given_the_next_job_of_a_key_once_the_one_before_has_ended,
    it_is_explained_which_job_comes_before_one_in_its_line,
    a_place_is_not_waited_for_whose_job_was_not_created_and_its_late_creation_meets_a_conflict,
    a_place_is_not_waited_for_whose_job_was_to_return_and_its_late_return_meets_a_conflict,
    of_one_call_a_later_job_waits_until_the_earlier_ones_are_created_or_given_up,
}

async fn a_job_is_submitted_claimed_and_completed(site: Site) {
    let submitted = site.submit(NewJob { payload: Some(json("{\"a\":1}")), ..new_job() }).await;
    let id = submitted.versioned.job.id.clone();
    let claimed = site.claim_one().await;
    assert_eq!(claimed.job.id, id);
    assert_eq!((claimed.job.fence, claimed.job.attempt.get()), (Fence::new(1), 1));
    site.clock.advance(Duration::from_secs(1));
    site.finish(&claimed, completed("[1,2]")).await.expect("accepted");
    let done = site.job(&id).await;
    assert_eq!(done.versioned.job.state.name(), JobState::Completed);
    assert_eq!((done.payload, done.result), (Some(json("{\"a\":1}")), Some(json("[1,2]"))));
    let steps: Vec<JobState> = done.versioned.job.history.entries().iter().map(|entry| entry.to).collect();
    assert_eq!(steps, [JobState::Available, JobState::Running, JobState::Completed]);
}

async fn a_claim_that_waits_gets_the_job_submitted_meanwhile(site: Site) {
    let manager = site.manager.clone();
    let waiting = tokio::spawn(async move { manager.claim(ClaimRequest { wait: PATIENCE, ..claim(1) }).await });
    until("a waiting claim", async || site.manager.waiting_claims() == 1).await;
    let id = site.submit(new_job()).await.versioned.job.id.clone();
    let claimed = taken(waiting.await.expect("no panic").expect("the claim is answered"));
    assert_eq!(claimed.iter().map(|found| found.job.id.clone()).collect::<Vec<_>>(), [id]);
}

async fn a_dropped_answer_gives_the_job_back_attempt_and_all(site: Site) {
    let id = site.submit(new_job()).await.versioned.job.id.clone();
    let claimed = site.manager.claim(claim(1)).await.expect("the claim is answered");
    assert_eq!(claimed.jobs().len(), 1);
    drop(claimed);
    until("the job's return", async || site.state(&id).await == JobState::Available).await;
    let job = site.job(&id).await.versioned.job;
    assert_eq!((job.attempt.get(), job.fence), (0, Fence::new(1)));
    assert_eq!(site.claim_one().await.job.fence, Fence::new(2));
}

async fn a_dropped_claim_takes_no_job(site: Site) {
    let manager = site.manager.clone();
    let waiting = tokio::spawn(async move { manager.claim(ClaimRequest { wait: PATIENCE, ..claim(1) }).await });
    until("a waiting claim", async || site.manager.waiting_claims() == 1).await;
    waiting.abort();
    until("the claim's end", async || site.manager.waiting_claims() == 0).await;
    let id = site.submit(new_job()).await.versioned.job.id.clone();
    assert_eq!(site.state(&id).await, JobState::Available);
    assert_eq!(site.claim_one().await.job.fence, Fence::new(1));
}

async fn a_worker_whose_job_was_claimed_anew_is_refused_and_nothing_changes(site: Site) {
    site.submit(new_job()).await;
    let stale = site.claim_one().await;
    site.finish(&stale, Outcome::Released { reason: "test".to_owned(), delay: Duration::ZERO })
        .await
        .expect("released");
    let current = site.claim_one().await;
    let before = site.job(&current.job.id).await.versioned;
    assert!(is_lease_lost(&site.beat(&stale).await));
    for outcome in
        [completed("1"), failed(true), Outcome::Released { reason: "again".to_owned(), delay: Duration::ZERO }]
    {
        assert!(is_lease_lost(&site.finish(&stale, outcome).await));
    }
    assert_eq!(site.job(&current.job.id).await.versioned, before);
    site.finish(&current, completed("2")).await.expect("the current holder is heard");
}

async fn a_worker_whose_job_was_released_is_refused(site: Site) {
    site.submit(new_job()).await;
    let claimed = site.claim_one().await;
    let order = AdminRelease {
        actor: caller().name,
        reason: "worker is gone".to_owned(),
        then: Then::Requeue,
        expected_fence: Some(claimed.job.fence),
    };
    let released = site.manager.admin_release(&claimed.job.id, order.clone()).await.expect("released");
    let last = released.job.history.entries().last().cloned().expect("an entry");
    assert_eq!((last.actor, last.reason.as_deref()), (caller().name, Some("worker is gone")));
    assert!(is_lease_lost(&site.beat(&claimed).await));
    assert!(is_lease_lost(&site.finish(&claimed, completed("1")).await));
    site.claim_one().await;
    let moved = site.manager.admin_release(&claimed.job.id, order).await;
    assert!(matches!(moved, Err(ManagerError::Refused(Refusal::FenceMoved(_)))), "{moved:?}");
}

async fn a_foreign_worker_is_refused(site: Site) {
    site.submit(new_job()).await;
    let claimed = site.claim_one().await;
    assert!(is_lease_lost(&site.finish_as(&worker("other"), &claimed, completed("1")).await));
    site.finish(&claimed, completed("1")).await.expect("its own worker is heard");
}

async fn a_late_worker_is_heard_while_its_fence_is_the_current_one(site: Site) {
    site.submit(new_job()).await;
    let claimed = site.claim_one().await;
    site.clock.advance(LEASE * 10);
    let answer = site.beat(&claimed).await.expect("heard");
    assert_eq!(answer.lease_expires_at, site.clock.now().plus(LEASE));
    site.clock.advance(LEASE * 10);
    site.finish(&claimed, completed("1")).await.expect("heard");
}

async fn the_same_finish_again_is_answered_as_the_first_time(site: Site) {
    for outcome in [
        completed("1"),
        failed(false),
        failed(true),
        Outcome::Released { reason: "r".to_owned(), delay: Duration::ZERO },
    ] {
        let id = site
            .submit(NewJob::of(JobSpec { priority: Priority::new(9).expect("ok"), ..spec() }))
            .await
            .versioned
            .job
            .id
            .clone();
        let claimed = site.claim(ClaimRequest { max_jobs: 10, ..claim(10) }).await;
        let claimed = claimed.iter().find(|found| found.job.id == id).expect("the new job");
        let first = site.finish(claimed, outcome.clone()).await.expect("accepted");
        let second = site.finish(claimed, outcome).await.expect("accepted again");
        assert_eq!(second, first, "nothing is written the second time");
        site.manager.cancel(&caller(), &id, None).await.map(drop).unwrap_or_default();
    }
}

async fn a_cancelled_running_job_ends_when_its_worker_hears_of_it(site: Site) {
    site.submit(new_job()).await;
    let claimed = site.claim_one().await;
    assert!(!site.beat(&claimed).await.expect("heard").cancel_requested);
    site.manager.cancel(&caller(), &claimed.job.id, Some("not needed".to_owned())).await.expect("asked");
    assert_eq!(site.state(&claimed.job.id).await, JobState::Running);
    assert!(site.beat(&claimed).await.expect("heard").cancel_requested);
    site.finish(&claimed, failed(true)).await.expect("accepted");
    assert_eq!(site.state(&claimed.job.id).await, JobState::Cancelled);
}

async fn a_cancelled_waiting_job_is_never_claimed(site: Site) {
    let id = site.submit(new_job()).await.versioned.job.id.clone();
    assert!(
        site.claim(ClaimRequest { queues: vec![QueueName::new("other").expect("ok")], ..claim(1) }).await.is_empty()
    );
    site.manager.cancel(&caller(), &id, None).await.expect("cancelled");
    assert!(site.claim(claim(1)).await.is_empty());
    assert_eq!(site.state(&id).await, JobState::Cancelled);
}

async fn a_failed_job_waits_for_its_backoff_and_fails_when_attempts_are_used_up(site: Site) {
    let id = site.submit(NewJob::of(JobSpec { max_attempts: 2, ..spec() })).await.versioned.job.id.clone();
    let first = site.claim_one().await;
    let waiting = site.finish(&first, failed(true)).await.expect("accepted");
    assert_eq!(waiting.job.state, State::Available);
    assert!(waiting.job.run_at > site.clock.now());
    assert!(site.claim(claim(1)).await.is_empty(), "not before its time");
    site.clock.advance(waiting.job.run_at.since(site.clock.now()));
    let second = site.claim_one().await;
    assert_eq!((second.job.attempt.get(), second.job.fence), (2, Fence::new(2)));
    site.finish(&second, failed(true)).await.expect("accepted");
    let job = site.job(&id).await.versioned.job;
    assert_eq!(job.state.name(), JobState::Failed);
    assert_eq!(job.error.as_ref().map(|error| error.code.as_str()), Some("exit"));
}

async fn a_failure_that_is_final_is_not_tried_again(site: Site) {
    let id = site.submit(new_job()).await.versioned.job.id.clone();
    let claimed = site.claim_one().await;
    site.finish(&claimed, failed(false)).await.expect("accepted");
    assert_eq!(site.state(&id).await, JobState::Failed);
}

async fn a_failure_can_ask_for_a_longer_wait(site: Site) {
    site.submit(new_job()).await;
    let claimed = site.claim_one().await;
    let error = JobError { code: "busy".to_owned(), message: "come back later".to_owned() };
    let retry_after = Some(Duration::from_secs(3_600));
    let waiting =
        site.finish(&claimed, Outcome::Failed { error, retryable: true, retry_after }).await.expect("accepted");
    assert_eq!(waiting.job.run_at, site.clock.now().plus(Duration::from_secs(3_600)));
}

async fn a_released_job_keeps_its_attempts_and_gets_a_new_fence(site: Site) {
    site.submit(NewJob::of(JobSpec { max_attempts: 1, ..spec() })).await;
    for fence in 1..=3 {
        let claimed = site.claim_one().await;
        assert_eq!((claimed.job.fence, claimed.job.attempt.get()), (Fence::new(fence), 1));
        site.finish(&claimed, Outcome::Released { reason: "shutting down".to_owned(), delay: Duration::ZERO })
            .await
            .expect("released");
    }
}

async fn a_job_past_its_start_deadline_expires_instead_of_being_claimed(site: Site) {
    let expires_at = Some(site.clock.now().plus(Duration::from_secs(5)));
    let id = site.submit(NewJob { expires_at, ..new_job() }).await.versioned.job.id.clone();
    site.clock.advance(Duration::from_secs(5));
    assert!(site.claim(claim(1)).await.is_empty());
    assert_eq!(site.state(&id).await, JobState::Expired);
}

async fn a_job_due_later_is_not_claimed_before(site: Site) {
    let run_at = site.clock.now().plus(Duration::from_secs(5));
    let id = site.submit(NewJob { run_at: Some(run_at), ..new_job() }).await.versioned.job.id.clone();
    site.engine.settle().await;
    assert!(site.claim(claim(1)).await.is_empty());
    site.clock.advance(Duration::from_millis(4_999));
    assert!(site.claim(claim(1)).await.is_empty());
    site.clock.advance(Duration::from_millis(1));
    assert_eq!(site.claim_one().await.job.id, id);
}

async fn the_same_submission_again_gives_the_first_job(site: Site) {
    let keyed = || NewJob { idempotency_key: Some("order 7".to_owned()), payload: Some(json("[7]")), ..new_job() };
    let first = site.try_submit(keyed()).await.expect("taken");
    let second = site.try_submit(keyed()).await.expect("taken");
    assert_eq!((first.created, second.created), (true, false));
    assert_eq!(second.job.versioned, first.job.versioned);
    assert_eq!(second.job.payload, Some(json("[7]")));
    let both = site.manager.submit(&caller(), vec![keyed(), keyed()]).await;
    assert!(both.into_iter().all(|answer| answer.is_ok_and(|answer| !answer.created)));
    assert_eq!(site.claim(claim(10)).await.len(), 1);
}

async fn the_same_submission_past_its_deadline_gives_the_first_job(site: Site) {
    let expires_at = Some(site.clock.now().plus(Duration::from_secs(5)));
    let keyed = || NewJob { idempotency_key: Some("order 7".to_owned()), expires_at, ..new_job() };
    site.submit(keyed()).await;
    let claimed = site.claim_one().await;
    site.clock.advance(Duration::from_secs(5));
    let again = site.try_submit(keyed()).await.expect("it was accepted before");
    assert_eq!((again.created, again.job.versioned), (false, claimed));

    let other = site.try_submit(NewJob { payload: Some(json("1")), ..keyed() }).await;
    assert!(matches!(other, Err(ManagerError::SubmissionDiffers(_))), "{other:?}");
    for late in [NewJob { idempotency_key: Some("order 8".to_owned()), ..keyed() }, NewJob { expires_at, ..new_job() }]
    {
        let refused = site.try_submit(late).await;
        assert!(matches!(refused, Err(ManagerError::Invalid { field: "expires_at", .. })), "{refused:?}");
    }
}

async fn another_submission_under_the_same_id_is_refused(site: Site) {
    let id = JobId::new("the-id").expect("a name");
    site.submit(NewJob { id: Some(id.clone()), ..new_job() }).await;
    let other = NewJob { id: Some(id.clone()), payload: Some(json("1")), ..new_job() };
    let refused = site.try_submit(other).await;
    assert!(matches!(&refused, Err(ManagerError::SubmissionDiffers(same)) if *same == id), "{refused:?}");
    assert_eq!(site.job(&id).await.payload, None);
}

async fn a_large_payload_and_result_come_back_as_they_were(site: Site) {
    let large = |word: &str| json(&format!("{{\"text\":\"{}\"}}", word.repeat(40_000)));
    let id = site.submit(NewJob { payload: Some(large("p")), ..new_job() }).await.versioned.job.id.clone();
    let claimed = site.manager.claim(claim(1)).await.expect("answered");
    assert_eq!(claimed.jobs()[0].payload, Some(large("p")));
    let held = claimed.jobs()[0].versioned.clone();
    claimed.delivered();
    let outcome = Outcome::Completed { result: Some(large("r")) };
    site.finish(&held, outcome).await.expect("accepted");
    let done = site.job(&id).await;
    assert_eq!((done.payload, done.result), (Some(large("p")), Some(large("r"))));
}

async fn an_explicit_retry_gives_a_fresh_budget_and_the_fence_goes_on(site: Site) {
    let id = site.submit(NewJob::of(JobSpec { max_attempts: 1, ..spec() })).await.versioned.job.id.clone();
    let claimed = site.claim_one().await;
    let early = site.manager.retry(&caller(), &id, None).await;
    assert!(matches!(early, Err(ManagerError::Refused(Refusal::NotRetryable(_)))), "{early:?}");
    site.finish(&claimed, failed(true)).await.expect("accepted");
    site.manager.retry(&caller(), &id, None).await.expect("retried");
    let again = site.claim_one().await;
    assert_eq!((again.job.fence, again.job.attempt.get()), (Fence::new(2), 1));
    assert!(is_lease_lost(&site.finish(&claimed, completed("1")).await));
}

async fn a_watcher_hears_of_the_end(site: Site) {
    let id = site.submit(new_job()).await.versioned.job.id.clone();
    let (manager, watched) = (site.manager.clone(), id.clone());
    let watcher = tokio::spawn(async move { manager.wait(&watched, PATIENCE).await });
    let claimed = site.claim_one().await;
    site.finish(&claimed, completed("1")).await.expect("accepted");
    let seen = watcher.await.expect("no panic").expect("the job is there");
    assert_eq!(seen.versioned.job.state.name(), JobState::Completed);
    let open = site.submit(new_job()).await.versioned.job.id.clone();
    let still_open = site.manager.wait(&open, Duration::from_millis(1)).await.expect("the job is there");
    assert_eq!(still_open.versioned.job.state.name(), JobState::Available);
}

async fn running_jobs_of_dead_workers_are_given_back(site: Site) {
    for _ in 0..3 {
        site.submit(new_job()).await;
    }
    assert_eq!(site.claim(claim(2)).await.len(), 2);
    site.engine.settle().await;
    assert_eq!(site.manager.reclaim_all("the process before this one ended").await.expect("given back"), 2);
    let again = site.claim(claim(10)).await;
    assert_eq!(again.len(), 3);
    assert!(again.iter().all(|found| found.job.attempt.get() == 1));
}

async fn queues_show_their_depth_by_state(site: Site) {
    for _ in 0..3 {
        site.submit(new_job()).await;
    }
    site.submit(NewJob::new(QueueName::new("other").expect("a name"), Kind::new("k").expect("a name"))).await;
    site.claim_one().await;
    site.engine.settle().await;
    let queues = site.manager.queues().await.expect("answered");
    let names: Vec<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
    assert_eq!(names, ["other", "q"]);
    assert_eq!((queues[1].jobs[&JobState::Available], queues[1].jobs[&JobState::Running]), (2, 1));
    assert_eq!(queues[1].jobs[&JobState::Completed], 0);
    assert_eq!(queues[1].oldest_waiting_since, Some(site.clock.now()));
}

mod admin;
mod amend;
mod capacity;
mod changes;
mod claims;
mod events;
mod fairness;
mod handover;
mod limits;
mod lines;
mod named_claims;
mod next;
mod queue_order;
mod queues;
mod rates;
mod sharing;
mod stopped;
mod unique;
