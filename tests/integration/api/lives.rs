//! What becomes of jobs, call by call.

use std::sync::Arc;
use std::time::Duration;

use leasehold::client::JobQuery;
use leasehold::clock::{ManualClock, Timestamp};
use leasehold::manager::OnDuplicate;
use leasehold::wire::{
    AdminRelease, ClaimJobs, ClaimNext, CompleteJob, Completion, FailJob, FinishJobs, HeartbeatJob, HeartbeatJobs, Job,
    JobAndNext, JobError, JobState, LeaseBeat, Progress, ReleaseJob, RetryOptions, SubmitJob, Then,
};

use serde::Serialize;

use super::server::{Server, Setup, WORKER, claim, json, problem, value};

fn complete(job: &Job) -> CompleteJob {
    CompleteJob { worker_id: WORKER.to_owned(), fence: job.fence, result: Some(json("{\"pages\": 40}")), next: None }
}

fn failure(job: &Job) -> FailJob {
    let error = JobError { code: "exit".to_owned(), message: "status 2".to_owned() };
    FailJob { worker_id: WORKER.to_owned(), fence: job.fence, error, retryable: None, retry_after_ms: None, next: None }
}

async fn post(server: &Server, path: &str, body: &impl Serialize) -> reqwest::Response {
    let body = serde_json::to_vec(body).expect("JSON");
    let request = reqwest::Client::new().post(server.url(path)).header("content-type", "application/json").body(body);
    request.send().await.expect("an answer")
}

fn beat(job: &Job) -> HeartbeatJob {
    HeartbeatJob { worker_id: WORKER.to_owned(), fence: job.fence, progress: None }
}

fn steps(job: &Job) -> Vec<(Option<JobState>, JobState, String)> {
    job.history.iter().map(|entry| (entry.from, entry.to, entry.actor.to_string())).collect()
}

#[tokio::test]
async fn a_job_is_submitted_claimed_kept_alive_and_completed() {
    let server = Server::start().await;
    let client = server.client();
    let submission = SubmitJob {
        payload: Some(json("{\"month\":  \"2030-01\", \"rate\": 1.50}")),
        priority: Some(7),
        owner: Some("billing".to_owned()),
        labels: [("customer".to_owned(), "17".to_owned())].into(),
        expected_runtime_ms: Some(60_000),
        timeout_ms: Some(600_000),
        max_attempts: Some(5),
        retry: Some(RetryOptions { base_ms: Some(10), ..RetryOptions::default() }),
        resources: [("gpus".to_owned(), 1)].into(),
        ..SubmitJob::new("reports", "render")
    };
    let submitted = client.submit(&submission).await.expect("submitted");
    assert_eq!((submitted.state, submitted.fence, submitted.attempt), (JobState::Available, 0, 0));
    assert_eq!((submitted.priority, submitted.max_attempts, submitted.retry.base), (7, 5, Duration::from_millis(10)));
    assert_eq!(submitted.payload.as_json(), submission.payload.as_ref(), "as it was written, spaces and all");

    let claim = ClaimJobs { lease_ms: Some(5000), max_jobs: Some(10), ..claim("reports") };
    let jobs = client.claim(&claim).await.expect("claimed").jobs;
    let [job] = &jobs[..] else { panic!("one job: {jobs:?}") };
    assert_eq!((&job.id, job.state, job.fence, job.attempt), (&submitted.id, JobState::Running, 1, 1));
    assert_eq!(job.payload.as_json(), submission.payload.as_ref());
    let lease = job.lease.as_ref().expect("a running job has a lease");
    assert_eq!((&*lease.worker_id, lease.fence), (WORKER, 1));
    assert_eq!(lease.expires_at.since(lease.acquired_at), Duration::from_secs(5));

    let progress = Progress { percent: Some(42.5), message: Some("page 17".to_owned()) };
    let told = HeartbeatJob { progress: Some(progress.clone()), ..beat(job) };
    let heard = client.heartbeat(&job.id, &told).await.expect("heard");
    assert!(heard.lease_expires_at >= lease.expires_at && !heard.cancel_requested);
    assert_eq!(client.job(&job.id).await.expect("the job").progress.as_deref(), Some(&progress));

    let done = client.complete(&job.id, &complete(job)).await.expect("completed");
    assert_eq!(
        (done.state, done.lease.is_none(), done.result.as_json()),
        (JobState::Completed, true, Some(&json("{\"pages\": 40}")))
    );
    assert_eq!(done, client.job(&job.id).await.expect("the job"), "the answer is the job as it is");
    let expected = [
        (None, JobState::Available, "anonymous".to_owned()),
        (Some(JobState::Available), JobState::Running, WORKER.to_owned()),
        (Some(JobState::Running), JobState::Completed, WORKER.to_owned()),
    ];
    assert_eq!(steps(&done), expected);
}

#[tokio::test]
async fn a_submission_again_gives_the_first_job_and_another_under_its_key_is_refused() {
    let server = Server::start().await;
    let http = reqwest::Client::new();
    let submit = |key: &'static str, body: &'static str| {
        let request = http.post(server.url("/v1/jobs")).header("idempotency-key", key);
        request.header("content-type", "application/json").body(body).send()
    };
    let first = submit("k1", r#"{"queue": "q", "kind": "k", "payload": [1]}"#).await.expect("an answer");
    assert_eq!(first.status(), 201);
    let location = first.headers()["location"].to_str().expect("text").to_owned();
    let first = value(first).await;
    assert_eq!(location, format!("/v1/jobs/{}", first["id"].as_str().expect("an id")));

    let again = submit("k1", r#"{"kind": "k", "queue": "q", "payload": [1]}"#).await.expect("an answer");
    assert_eq!(again.status(), 200);
    assert_eq!(value(again).await["id"], first["id"]);

    let other = submit("k1", r#"{"queue": "q", "kind": "k", "payload": [2]}"#).await.expect("an answer");
    let other = super::server::problem(other).await;
    assert_eq!((other.status, other.code.as_str()), (409, "submission_differs"));
    let fresh = submit("k2", r#"{"queue": "q", "kind": "k", "payload": [1]}"#).await.expect("an answer");
    assert_eq!(fresh.status(), 201);

    let named = SubmitJob { id: Some("nightly/2030 01".to_owned()), ..SubmitJob::new("q", "k") };
    let client = server.client();
    assert_eq!(client.submit(&named).await.expect("submitted").id, "nightly/2030 01");
    assert_eq!(client.submit(&named).await.expect("submitted before").id, "nightly/2030 01");
    assert_eq!(client.job("nightly/2030 01").await.expect("the job").kind, "k");
    let other = SubmitJob { kind: "other".to_owned(), ..named };
    assert_eq!(client.submit(&other).await.expect_err("refused").code(), Some("submission_differs"));
}

#[tokio::test]
async fn a_second_job_of_a_unique_key_is_told_of_the_first() {
    let server = Server::start().await;
    let client = server.client();
    let unique = SubmitJob { unique_key: Some("report 7".to_owned()), ..SubmitJob::new("q", "k") };
    let first = client.submit(&unique).await.expect("submitted");
    assert_eq!(first.unique_key.as_deref(), Some("report 7"));
    let refused = problem(post(&server, "/v1/jobs", &unique).await).await;
    assert_eq!((refused.status, refused.code.as_str()), (409, "duplicate_job"));
    assert_eq!(refused.job_id.as_deref(), Some(&*first.id));

    let existing = SubmitJob { on_duplicate: Some(OnDuplicate::Existing), ..unique.clone() };
    let answer = post(&server, "/v1/jobs", &existing).await;
    assert_eq!((answer.status().as_u16(), value(answer).await["id"].as_str()), (200, Some(&*first.id)));
    let replace = SubmitJob {
        on_duplicate: Some(OnDuplicate::Replace),
        payload: Some(json("[2]")),
        longest_wait_ms: Some(1_000),
        ..unique.clone()
    };
    assert_eq!(client.submit(&replace).await.expect("replaced").id, first.id);
    assert_eq!(client.job(&first.id).await.expect("the job").payload.as_json(), Some(&json("[2]")));
    let items = client.submit_bulk(&[unique.clone(), existing, unique.clone()]).await.expect("answered");
    assert_eq!(items.iter().map(|item| item.status).collect::<Vec<_>>(), [409, 200, 409]);
    let error = items[0].error.as_ref().expect("refused");
    assert!(error.code == "duplicate_job" && error.message.contains(&*first.id), "{error:?}");

    let found =
        client.jobs(&JobQuery { kql: Some("unique_key: \"report 7\"".to_owned()), ..JobQuery::default() }).await;
    assert_eq!(found.expect("a page").items.len(), 1);
    client.cancel(&first.id, None).await.expect("cancelled");
    let second = client.submit(&unique).await.expect("the first has ended");
    let refused = problem(post(&server, &format!("/v1/jobs/{}/retry", first.id), &serde_json::json!({})).await).await;
    assert_eq!((refused.code.as_str(), refused.job_id.as_deref()), ("duplicate_job", Some(&*second.id)));
}

#[tokio::test]
async fn a_bulk_submission_answers_each_line_in_its_place() {
    let server = Server::start().await;
    let body = concat!(
        r#"{"queue": "q", "kind": "k", "id": "a"}"#,
        "\n",
        r#"{"queue": "q", "kind": "k", "priority": 101}"#,
        "\r\n",
        "\n",
        "{nonsense\n",
        r#"{"queue": "q", "kind": "k", "id": "a"}"#,
        "\n",
        r#"{"queue": "q", "kind": "other", "id": "a"}"#,
        "\n",
        r#"{"queue": "q", "kind": "k", "idempotency_key": "x", "colour": 1}"#,
        "\n",
        r#"{"queue": "q", "kind": "k", "idempotency_key": "x"}"#,
    );
    let request = reqwest::Client::new().post(server.url("/v1/jobs/bulk"));
    let answer = request.header("content-type", "application/x-ndjson").body(body).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let answer = value(answer).await;
    let items = answer["items"].as_array().expect("items");
    let seen: Vec<(u64, Option<&str>, Option<&str>)> = items
        .iter()
        .map(|item| {
            (
                item["status"].as_u64().expect("a status"),
                item["error"]["code"].as_str(),
                item["error"]["field"].as_str(),
            )
        })
        .collect();
    let expected = [
        (201, None, None),
        (422, Some("invalid_request"), Some("priority")),
        (400, Some("malformed_json"), None),
        (200, None, None),
        (409, Some("submission_differs"), None),
        (422, Some("invalid_request"), Some("colour")),
        (201, None, None),
    ];
    assert_eq!(seen, expected);
    assert_eq!(items[0]["id"], "a");

    let many: Vec<SubmitJob> = (0..10_000).map(|number| SubmitJob::new(format!("many{}", number % 7), "k")).collect();
    let items = server.client().submit_bulk(&many).await.expect("an answer");
    assert!(items.len() == 10_000 && items.iter().all(|item| item.status == 201));
}

#[tokio::test]
async fn a_failure_is_tried_again_until_it_is_final_and_a_retry_begins_anew() {
    let server = Server::start().await;
    let client = server.client();
    let retry = Some(RetryOptions { base_ms: Some(0), ..RetryOptions::default() });
    client.submit(&SubmitJob { retry, ..SubmitJob::new("q", "k") }).await.expect("submitted");
    let first = server.claimed("q").await;
    let waiting = client.fail(&first.id, &failure(&first)).await.expect("failed once");
    assert_eq!((waiting.state, waiting.attempt), (JobState::Available, 1));
    assert_eq!(waiting.error.as_ref().map(|error| error.code.as_str()), Some("exit"));

    let second = server.claimed("q").await;
    assert_eq!((second.fence, second.attempt), (2, 2));
    let asked = FailJob { retry_after_ms: Some(3_600_000), ..failure(&second) };
    let waiting = client.fail(&second.id, &asked).await.expect("failed twice");
    assert!(waiting.run_at.since(waiting.updated_at) >= Duration::from_secs(3600), "the wait it asked for is kept");
    client.cancel(&second.id, None).await.expect("cancelled");

    client.submit(&SubmitJob::new("r", "k")).await.expect("submitted");
    let job = server.claimed("r").await;
    let last = FailJob { retryable: Some(false), ..failure(&job) };
    assert_eq!(client.fail(&job.id, &last).await.expect("failed").state, JobState::Failed);
    assert_eq!(client.cancel(&job.id, None).await.expect_err("refused").code(), Some("already_final"));

    let again = client.retry(&job.id, None).await.expect("retried");
    assert_eq!((again.state, again.attempt, again.fence), (JobState::Available, 0, 1));
    assert_eq!(client.retry(&job.id, None).await.expect_err("refused").code(), Some("not_retryable"));
    assert_eq!(server.claimed("r").await.fence, 2);
}

#[tokio::test]
async fn a_release_gives_the_attempt_back_and_the_fence_goes_on() {
    let server = Server::start().await;
    let job = server.running("q").await;
    let release =
        ReleaseJob { worker_id: WORKER.to_owned(), fence: 1, reason: Some("going home".to_owned()), delay_ms: None };
    let released = server.client().release(&job.id, &release).await.expect("released");
    assert_eq!((released.state, released.attempt, released.fence), (JobState::Available, 0, 1));
    assert_eq!(released.history.last().and_then(|entry| entry.reason.as_deref()), Some("going home"));
    let again = server.claimed("q").await;
    assert_eq!((again.fence, again.attempt), (2, 1));
}

#[tokio::test]
async fn a_waiting_job_is_cancelled_at_once_and_a_running_one_through_its_heartbeat() {
    let server = Server::start().await;
    let client = server.client();
    let waiting = client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let cancelled = client.cancel(&waiting.id, Some("not needed")).await.expect("cancelled");
    assert_eq!(cancelled.state, JobState::Cancelled);
    assert_eq!(cancelled.history.last().and_then(|entry| entry.reason.as_deref()), Some("not needed"));
    assert_eq!(client.cancel(&waiting.id, None).await.expect("already so").state, JobState::Cancelled);

    let running = server.running("q").await;
    let asked = client.cancel(&running.id, None).await.expect("asked");
    assert!(asked.state == JobState::Running && asked.cancel_requested_at.is_some());
    assert!(client.heartbeat(&running.id, &beat(&running)).await.expect("heard").cancel_requested);
    let ended = client.fail(&running.id, &failure(&running)).await.expect("ended");
    assert_eq!(ended.state, JobState::Cancelled);
}

#[tokio::test]
async fn a_stale_fence_loses_and_changes_nothing() {
    let server = Server::start().await;
    let client = server.client();
    let old = server.running("q").await;
    let order = AdminRelease { reason: "host burnt down".to_owned(), then: Then::Requeue, expected_fence: Some(1) };
    let released = client.admin_release(&old.id, &order).await.expect("released");
    assert_eq!(released.state, JobState::Available);
    assert_eq!(released.history.last().and_then(|entry| entry.reason.as_deref()), Some("host burnt down"));
    let new = server.claimed("q").await;
    assert_eq!(client.admin_release(&new.id, &order).await.expect_err("refused").code(), Some("fence_moved"));

    let before = client.job(&new.id).await.expect("the job");
    let release = ReleaseJob { worker_id: WORKER.to_owned(), fence: old.fence, reason: None, delay_ms: None };
    let other = HeartbeatJob { worker_id: "w2".to_owned(), ..beat(&new) };
    let lost = [
        client.complete(&old.id, &complete(&old)).await.expect_err("a stale completion"),
        client.fail(&old.id, &failure(&old)).await.expect_err("a stale failure"),
        client.release(&old.id, &release).await.expect_err("a stale release"),
        client.heartbeat(&old.id, &beat(&old)).await.expect_err("a stale heartbeat"),
        client.heartbeat(&new.id, &other).await.expect_err("another worker's heartbeat"),
    ];
    for error in lost {
        assert_eq!((error.status(), error.code()), (Some(409), Some("lease_lost")));
    }
    assert_eq!(client.job(&new.id).await.expect("the job"), before);
}

#[tokio::test]
async fn a_late_call_under_the_current_fence_is_accepted_and_again_as_the_first_time() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
    let setup = Setup { clock: Arc::clone(&clock) as _, ..Setup::default() };
    let server = Server::start_with(setup).await;
    let client = server.client();
    let job = server.running("q").await;
    clock.advance(Duration::from_secs(3600));
    assert!(client.heartbeat(&job.id, &beat(&job)).await.is_ok(), "late, but nobody took the job");
    clock.advance(Duration::from_secs(3600));
    let done = client.complete(&job.id, &complete(&job)).await.expect("late, but nobody took the job");
    assert_eq!(done.state, JobState::Completed);
    let again = client.complete(&job.id, &complete(&job)).await.expect("the same again");
    assert_eq!(again, done, "the same again changes nothing");
    let foreign = CompleteJob { fence: 7, ..complete(&job) };
    assert_eq!(client.complete(&job.id, &foreign).await.expect_err("refused").status(), Some(409));
}

#[tokio::test]
async fn a_named_claim_again_gives_the_same_jobs() {
    let server = Server::start().await;
    let client = server.client();
    for _ in 0..4 {
        client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    }
    let named = ClaimJobs { max_jobs: Some(2), request_id: Some("r1".to_owned()), ..claim("q") };
    let ids = |jobs: &[Job]| jobs.iter().map(|job| (job.id.clone(), job.fence)).collect::<Vec<_>>();
    let first = client.claim(&named).await.expect("claimed").jobs;
    let again = client.claim(&ClaimJobs { repeated: true, ..named.clone() }).await.expect("claimed").jobs;
    assert_eq!(first.len(), 2);
    assert_eq!(ids(&first), ids(&again));
    let other = ClaimJobs { request_id: Some("r2".to_owned()), ..named };
    let others = client.claim(&other).await.expect("claimed").jobs;
    assert!(others.len() == 2 && ids(&others).iter().all(|id| !ids(&first).contains(id)));
}

#[tokio::test]
async fn bulk_heartbeats_and_completions_answer_each_item_in_its_place() {
    let server = Server::start().await;
    let client = server.client();
    let (one, two, three) = (server.running("q").await, server.running("q").await, server.running("q").await);
    let lease = |job: &Job, fence: u64| LeaseBeat { id: job.id.to_string(), fence, progress: None };
    let absurd = Some(Progress { percent: Some(101.0), message: None });
    let missing = LeaseBeat { id: "nobody".to_owned(), fence: 1, progress: None };
    let leases = vec![
        lease(&one, 1),
        missing,
        LeaseBeat { progress: absurd, ..lease(&two, 1) },
        lease(&two, 9),
        lease(&three, 1),
    ];
    let beats = HeartbeatJobs { worker_id: WORKER.to_owned(), leases };
    let items = client.heartbeats(&beats).await.expect("an answer");
    let seen: Vec<_> =
        items.iter().map(|item| (item.id.as_str(), item.status, item.cancel_requested.is_some())).collect();
    let expected = [
        (&*one.id, 200, true),
        ("nobody", 404, false),
        (&*two.id, 422, false),
        (&*two.id, 409, false),
        (&*three.id, 200, true),
    ];
    assert_eq!(seen, expected);
    assert_eq!(items[2].error.as_ref().and_then(|error| error.field.as_deref()), Some("progress.percent"));
    assert_eq!(items[3].error.as_ref().map(|error| error.code.as_str()), Some("lease_lost"));

    let done = |job: &Job| Completion { id: job.id.to_string(), fence: 1, ..Completion::default() };
    let error = Some(JobError { code: "exit".to_owned(), message: "status 2".to_owned() });
    let both = Completion { result: Some(json("1")), error: error.clone(), ..done(&three) };
    let failed = Completion { error, retryable: Some(false), ..done(&two) };
    let items = vec![done(&one), both, failed, Completion { fence: 9, ..done(&three) }, done(&one)];
    let finishes = FinishJobs { worker_id: WORKER.to_owned(), items, next: None };
    let items = client.finish(&finishes).await.expect("an answer");
    let seen: Vec<_> = items.iter().map(|item| (item.status, item.state)).collect();
    let expected = [
        (200, Some(JobState::Completed)),
        (422, None),
        (200, Some(JobState::Failed)),
        (409, None),
        (200, Some(JobState::Completed)),
    ];
    assert_eq!(seen, expected);
    assert_eq!(client.job(&three.id).await.expect("the job").state, JobState::Running);
}

#[tokio::test]
async fn a_call_that_ends_an_attempt_claims_the_next_job_as_well() {
    let server = Server::start().await;
    let client = server.client();
    let mut job = server.running("q").await;
    let next = |name: &str| {
        Some(ClaimNext { queues: vec!["q".to_owned()], request_id: name.to_owned(), ..ClaimNext::default() })
    };
    for name in ["a", "b"] {
        client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
        let done = CompleteJob { next: next(name), ..complete(&job) };
        let answer = client.complete_and_claim(&job.id, &done).await.expect("completed");
        assert_eq!((&answer.job.id, answer.job.state), (&job.id, JobState::Completed));
        assert_eq!(answer.job.result.as_json(), Some(&json("{\"pages\": 40}")));
        let [claimed] = &answer.next.jobs[..] else { panic!("one job: {:?}", answer.next) };
        assert_eq!((claimed.state, claimed.fence), (JobState::Running, 1));
        assert_eq!(client.complete_and_claim(&job.id, &done).await.expect("again").next.jobs[0].id, claimed.id);
        job = claimed.clone();
    }

    client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let failed = FailJob { retryable: Some(false), next: next("c"), ..failure(&job) };
    let answer = post(&server, &format!("/v1/jobs/{}/fail", job.id), &failed).await;
    assert_eq!(answer.status(), 200);
    let answer: JobAndNext = serde_json::from_value(value(answer).await).expect("both");
    assert_eq!((answer.job.state, answer.next.jobs.len()), (JobState::Failed, 1));

    client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let item = |job: &Job| Completion { id: job.id.to_string(), fence: job.fence, ..Completion::default() };
    let items = vec![item(&answer.next.jobs[0]), Completion { fence: 7, ..item(&job) }];
    let finishes = FinishJobs { worker_id: WORKER.to_owned(), items, next: next("d") };
    let answer = client.finish_and_claim(&finishes).await.expect("completed");
    assert_eq!(answer.items.iter().map(|item| item.status).collect::<Vec<_>>(), [200, 409]);
    assert_eq!(answer.next.map(|next| next.jobs.len()), Some(1));
}

#[tokio::test]
async fn a_claim_beside_an_end_is_checked_as_a_whole_before_anything_is_done() {
    let server = Server::start().await;
    let job = server.running("q").await;
    let path = format!("/v1/jobs/{}/complete", job.id);
    let next = ClaimNext { wait_ms: Some(60_001), request_id: " ".to_owned(), ..ClaimNext::default() };
    let done = CompleteJob { next: Some(next), ..complete(&job) };
    let refused = problem(post(&server, &path, &done).await).await;
    let fields: Vec<&str> = refused.errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["next.queues", "next.wait_ms", "next.request_id"]);
    assert_eq!(server.client().job(&job.id).await.expect("the job").state, JobState::Running);
}

#[tokio::test]
async fn an_administrator_ends_a_lease_as_told() {
    let server = Server::start().await;
    let client = server.client();
    for (then, state) in [(Then::Fail, JobState::Failed), (Then::Cancel, JobState::Cancelled)] {
        let job = server.running("q").await;
        let order = AdminRelease { reason: "told so".to_owned(), then, expected_fence: None };
        assert_eq!(client.admin_release(&job.id, &order).await.expect("released").state, state);
        assert_eq!(client.admin_release(&job.id, &order).await.expect_err("refused").code(), Some("not_running"));
    }
}
