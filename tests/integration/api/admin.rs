//! What administrators ask over HTTP.

use leasehold::client::OrphanQuery;
use leasehold::job::{Actor, Change, JobId};
use leasehold::wire::{AdminRelease, BulkChange, BulkFilter, OrphanAction, SubmitJob, Then};
use serde_json::{Value, json};

use super::server::{Server, problem, value};

async fn post(server: &Server, path: &str, body: &Value) -> reqwest::Response {
    reqwest::Client::new().post(server.url(path)).json(body).send().await.expect("an answer")
}

async fn flag(server: &Server, id: &str, held: bool) {
    let id = JobId::new(id).expect("an id");
    let monitor = Actor::system("monitor");
    let flag =
        |job: &leasehold::job::Job, now| -> Result<Change, _> { job.flag_orphan(&monitor, "no heartbeat", held, now) };
    server.manager.change_each(&[id], flag).await.pop().expect("one").expect("flagged");
}

fn queue(name: &str) -> BulkFilter {
    BulkFilter { queues: vec![name.to_owned()], ..BulkFilter::default() }
}

#[tokio::test]
async fn a_release_of_a_newer_claim_than_the_one_looked_at_is_refused_with_the_current_fence() {
    let server = Server::start().await;
    let job = server.running("q").await;
    let path = format!("/v1/admin/jobs/{}/release", job.id);
    let body = json!({"reason": "gone", "then": "requeue", "expected_fence": 7});
    let refused = problem(post(&server, &path, &body).await).await;
    assert_eq!((refused.status, refused.code.as_str(), refused.fence), (409, "fence_moved", Some(job.fence)));
    let order = AdminRelease { reason: "gone".to_owned(), then: Then::Fail, expected_fence: Some(job.fence) };
    let released = server.client().admin_release(&job.id, &order).await.expect("released");
    let entry = released.history.last().expect("an entry");
    assert_eq!((entry.actor.as_str(), entry.reason.as_deref()), ("anonymous", Some("gone")));
}

#[tokio::test]
async fn an_order_over_many_jobs_is_a_dry_run_unless_it_says_otherwise() {
    let server = Server::start().await;
    let client = server.client();
    for _ in 0..25 {
        client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    }
    client.submit(&SubmitJob::new("other", "k")).await.expect("submitted");
    let seen = value(post(&server, "/v1/admin/jobs/cancel", &json!({"filter": {"queues": ["q"]}})).await).await;
    assert_eq!((&seen["dry_run"], &seen["matched"], &seen["changed"]), (&json!(true), &json!(25), &json!(0)));
    assert_eq!(seen["sample"].as_array().map(Vec::len), Some(20));
    assert_eq!(seen["sample"][0]["state"], "available");

    let reason = Some("wrong month".to_owned());
    let order = BulkChange { filter: queue("q"), reason, dry_run: false, ..BulkChange::default() };
    let done = client.cancel_many(&order).await.expect("an answer");
    assert_eq!((done.matched, done.changed, done.skipped, done.failed_total), (25, 25, 0, 0));
    assert!(done.done && done.next_cursor.is_none() && done.sample.is_empty());
    let again = client.retry_many(&order).await.expect("an answer");
    assert_eq!(again.changed, 25);
    let first = client.job(seen["sample"][0]["id"].as_str().expect("an id")).await.expect("the job");
    let said: Vec<_> = first.history.iter().filter_map(|entry| entry.reason.as_deref()).collect();
    assert_eq!(said, ["wrong month", "wrong month"]);
}

#[tokio::test]
async fn an_order_goes_on_where_the_one_before_ended() {
    let server = Server::start().await;
    let client = server.client();
    for _ in 0..5 {
        client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    }
    let mut order = BulkChange {
        filter: BulkFilter { all: true, ..BulkFilter::default() },
        reason: Some("all over".to_owned()),
        dry_run: false,
        max_jobs: Some(3),
        ..BulkChange::default()
    };
    let first = client.cancel_many(&order).await.expect("an answer");
    assert_eq!((first.changed, first.done), (3, false));
    order.cursor = first.next_cursor;
    let second = client.cancel_many(&order).await.expect("an answer");
    assert_eq!((second.changed, second.done, second.next_cursor), (2, true, None));
    order.cursor = Some("nonsense".to_owned());
    assert_eq!(client.cancel_many(&order).await.expect_err("refused").code(), Some("invalid_request"));
}

#[tokio::test]
async fn an_order_that_cannot_be_meant_is_refused_and_changes_nothing() {
    let server = Server::start().await;
    let job = server.client().submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    for (action, body, field) in [
        ("cancel", json!({"filter": {}, "reason": "r", "dry_run": false}), "filter"),
        ("cancel", json!({"filter": {"queues": ["q"]}, "dry_run": false}), "reason"),
        ("cancel", json!({"filter": {"queues": ["q"], "all": true}, "reason": "r"}), "filter.all"),
        ("cancel", json!({"filter": {"queue": ["q"]}, "reason": "r"}), "filter.queue"),
        ("cancel", json!({"filter": {"all": true}, "reason": "r", "then": "fail"}), "then"),
        ("release", json!({"filter": {"states": ["available"]}, "reason": "r"}), "filter.states"),
        ("release", json!({"filter": {"all": true}, "then": "explode"}), "then"),
        ("retry", json!({"filter": {"all": true}, "max_jobs": 0}), "max_jobs"),
        ("retry", json!({"filter": {"all": true}, "cursor": "x"}), "cursor"),
        ("retry", json!({"reason": "r"}), "filter"),
    ] {
        let refused = problem(post(&server, &format!("/v1/admin/jobs/{action}"), &body).await).await;
        let fields: Vec<&str> = refused.errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!((refused.status, fields.as_slice()), (422, &[field][..]), "{action} {body}");
    }
    assert_eq!(server.client().job(&job.id).await.expect("the job").history.len(), 1);
    let named = SubmitJob { id: Some("release".to_owned()), ..SubmitJob::new("q", "k") };
    let reserved = server.client().submit(&named).await;
    assert_eq!(reserved.expect_err("refused").code(), Some("invalid_request"));
}

#[tokio::test]
async fn many_jobs_are_taken_from_one_worker() {
    let server = Server::start().await;
    let jobs = [server.running("a").await, server.running("b").await];
    let order = BulkChange {
        filter: BulkFilter { worker_id: Some("w1".to_owned()), queues: vec!["a".to_owned()], ..BulkFilter::default() },
        reason: Some("host7 burnt down".to_owned()),
        then: Some(Then::Cancel),
        ..BulkChange::default()
    };
    assert_eq!(server.client().release_many(&order).await.expect("an answer").changed, 1);
    let states = [&jobs[0], &jobs[1]].map(|job| job.id.clone());
    assert_eq!(server.client().job(&states[0]).await.expect("the job").state.as_str(), "cancelled");
    assert_eq!(server.client().job(&states[1]).await.expect("the job").state.as_str(), "running");
}

#[tokio::test]
async fn orphans_are_listed_page_by_page_with_why_and_what_happens_next() {
    let server = Server::start().await;
    let client = server.client();
    assert!(client.orphans(&OrphanQuery::default()).await.expect("a list").items.is_empty());
    let jobs = [server.running("a").await, server.running("a").await, server.running("b").await];
    for (index, job) in jobs.iter().enumerate() {
        flag(&server, &job.id, index == 2).await;
    }
    let mut query = OrphanQuery { limit: Some(2), ..OrphanQuery::default() };
    let first = client.orphans(&query).await.expect("a list");
    query.cursor = first.next_cursor;
    let second = client.orphans(&query).await.expect("a list");
    let ids: Vec<&str> = first.items.iter().chain(&second.items).map(|job| job.id.as_str()).collect();
    assert_eq!(ids, jobs.each_ref().map(|job| &*job.id));
    assert_eq!(second.next_cursor, None);
    let (flagged, held) = (&first.items[0], &second.items[0]);
    assert_eq!((flagged.reason.as_str(), flagged.worker_id.as_str(), flagged.fence), ("no heartbeat", "w1", 1));
    assert_eq!((flagged.held, flagged.next.action), (false, OrphanAction::AwaitWorker));
    assert_eq!((held.held, held.next.action), (true, OrphanAction::AwaitPerson));
    assert_eq!(flagged.evidence.lease_expired_for_ms, None);
    assert_eq!(flagged.evidence.acquired_at, jobs[0].lease.as_ref().expect("a lease").acquired_at);

    let of_b = OrphanQuery { queues: vec!["b".to_owned()], worker: Some("w1".to_owned()), ..OrphanQuery::default() };
    assert_eq!(client.orphans(&of_b).await.expect("a list").items.len(), 1);
    let of_nobody = OrphanQuery { worker: Some("w2".to_owned()), ..OrphanQuery::default() };
    assert!(client.orphans(&of_nobody).await.expect("a list").items.is_empty());
}
