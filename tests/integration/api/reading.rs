//! Reading: one job, lists, counts, queues.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::client::{AuditQuery, CountQuery, JobQuery};
use leasehold::wire::{AuditAnswer, CompleteJob, JobState, SubmitJob};

use super::server::{Server, WORKER, json, problem};

#[tokio::test]
async fn a_version_at_hand_is_not_sent_again() {
    let server = Server::start().await;
    let job = server.client().submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let http = reqwest::Client::new();
    let url = server.url(&format!("/v1/jobs/{}", job.id));
    let first = http.get(&url).send().await.expect("an answer");
    let tag = first.headers()["etag"].to_str().expect("text").to_owned();
    let with_tag = |tag: String| http.get(&url).header("if-none-match", tag).send();
    for at_hand in [tag.clone(), format!("\"0-0\", W/{tag}"), "*".to_owned()] {
        let answer = with_tag(at_hand).await.expect("an answer");
        assert_eq!((answer.status().as_u16(), answer.headers()["etag"].to_str().expect("text")), (304, tag.as_str()));
        assert!(answer.bytes().await.expect("a body").is_empty());
    }
    server.claimed("q").await;
    let changed = with_tag(tag.clone()).await.expect("an answer");
    assert_eq!(changed.status(), 200);
    assert_ne!(changed.headers()["etag"], tag.as_str());
}

#[tokio::test]
async fn whoever_waits_for_a_job_hears_of_its_end() {
    let server = Server::start().await;
    let client = server.client();
    let job = server.running("q").await;
    let (waiter, id) = (client.clone(), job.id.clone());
    let waiting = tokio::spawn(async move { waiter.wait(&id, Duration::from_secs(60)).await });
    let done = CompleteJob { worker_id: WORKER.to_owned(), fence: job.fence, result: Some(json("7")), next: None };
    client.complete(&job.id, &done).await.expect("completed");
    let told = waiting.await.expect("no panic").expect("an answer");
    assert_eq!((told.state, told.result.as_json()), (JobState::Completed, Some(&json("7"))));

    let other = client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let in_vain = client.wait(&other.id, Duration::from_millis(1)).await.expect("an answer");
    assert_eq!(in_vain.state, JobState::Available, "the time is up");
}

#[tokio::test]
async fn a_list_is_walked_page_by_page_without_gap_or_repetition() {
    let server = Server::start().await;
    let client = server.client();
    for number in 0..25_i64 {
        let job = SubmitJob { priority: Some(number % 5), ..SubmitJob::new(format!("q{}", number % 2), "k") };
        client.submit(&job).await.expect("submitted");
    }
    for sort in ["created_at", "-priority", "run_at", "-updated_at", "finished_at"] {
        let mut query = JobQuery { limit: Some(7), sort: Some(sort.to_owned()), ..JobQuery::default() };
        let mut seen = Vec::new();
        let mut pages = 0;
        loop {
            let page = client.jobs(&query).await.expect("a page");
            seen.extend(page.items.into_iter().map(|job| (job.priority, job.id)));
            pages += 1;
            query.cursor = page.next_cursor;
            if query.cursor.is_none() {
                break;
            }
        }
        let distinct: std::collections::BTreeSet<_> = seen.iter().map(|(_, id)| id).collect();
        assert_eq!((seen.len(), distinct.len(), pages), (25, 25, 4), "{sort}");
        if sort == "-priority" {
            assert!(seen.windows(2).all(|pair| pair[0].0 >= pair[1].0));
        }
    }
    let page = client.jobs(&JobQuery { limit: Some(1), ..JobQuery::default() }).await.expect("a page");
    let cursor = page.next_cursor.expect("there is more");
    let url = server.url(&format!("/v1/jobs?sort=priority&cursor={cursor}"));
    let refused = problem(reqwest::get(url).await.expect("an answer")).await;
    assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, "cursor"));
}

#[tokio::test]
async fn a_list_holds_what_its_filter_says() {
    let server = Server::start().await;
    let client = server.client();
    for (queue, kind, owner) in [("a,b", "x", "o1"), ("a,b", "y", "o2"), ("c", "x", "o1"), ("d", "z", "o3")] {
        let job = SubmitJob { owner: Some(owner.to_owned()), ..SubmitJob::new(queue, kind) };
        client.submit(&job).await.expect("submitted");
    }
    server.claimed("d").await;
    let found = async |query: &str| {
        let answer = reqwest::get(server.url(&format!("/v1/jobs?{query}"))).await.expect("an answer");
        super::server::value(answer).await["items"].as_array().expect("items").len()
    };
    assert_eq!(found("").await, 4);
    assert_eq!(found("queue=a%2Cb").await, 2);
    assert_eq!(found("queue=a%2Cb,c").await, 3);
    assert_eq!(found("queue=c&queue=d").await, 2);
    assert_eq!(found("kind=x&owner=o1").await, 2);
    assert_eq!(found("state=running").await, 1);
    assert_eq!(found("state=available,running&kind=z").await, 1);
    assert_eq!(found("state=failed").await, 0);
    let query = JobQuery { queues: vec!["a,b".to_owned()], ..JobQuery::default() };
    assert_eq!(client.jobs(&query).await.expect("a page").items.len(), 2);
}

#[tokio::test]
async fn a_long_payload_is_in_the_job_and_not_in_the_list() {
    let server = Server::start().await;
    let client = server.client();
    let payload = Some(json(&format!("\"{}\"", "x".repeat(300_000))));
    let job = SubmitJob { payload: payload.clone(), ..SubmitJob::new("q", "k") };
    let submitted = client.submit(&job).await.expect("submitted");
    assert_eq!(submitted.payload.as_json(), payload.as_ref());
    assert_eq!(client.job(&submitted.id).await.expect("the job").payload.as_json(), payload.as_ref());
    let listed = super::server::value(reqwest::get(server.url("/v1/jobs")).await.expect("an answer")).await;
    assert!(listed["items"][0].get("payload").is_none(), "left out, and not null as if there were none");
    assert!(listed["items"][0]["result"].is_null() && listed["items"][0].get("result").is_some());
    assert_eq!(server.claimed("q").await.payload.as_json(), payload.as_ref());
}

#[tokio::test]
async fn jobs_are_counted_in_all_and_by_group() {
    let server = Server::start().await;
    let client = server.client();
    for (queue, owner) in [("a", Some("o")), ("a", None), ("b", None), ("b", None), ("b", None)] {
        let job = SubmitJob { owner: owner.map(str::to_owned), ..SubmitJob::new(queue, "k") };
        client.submit(&job).await.expect("submitted");
    }
    server.claimed("b").await;
    let all = client.count(&CountQuery::default()).await.expect("a count");
    assert_eq!((all.total, all.groups.len()), (5, 0));
    let by = vec!["queue".to_owned(), "state".to_owned()];
    let grouped = client.count(&CountQuery { by, ..CountQuery::default() }).await.expect("a count");
    let seen: Vec<(u64, Option<&str>, Option<&str>)> = grouped
        .groups
        .iter()
        .map(|group| (group.count, group.by["queue"].as_deref(), group.by["state"].as_deref()))
        .collect();
    let expected =
        [(2, Some("a"), Some("available")), (2, Some("b"), Some("available")), (1, Some("b"), Some("running"))];
    assert_eq!(seen, expected);
    let jobs = JobQuery { queues: vec!["a".to_owned()], ..JobQuery::default() };
    let by_owner = client.count(&CountQuery { jobs, by: vec!["owner".to_owned()] }).await.expect("a count");
    let owners: BTreeMap<Option<String>, u64> =
        by_owner.groups.into_iter().map(|group| (group.by["owner"].clone(), group.count)).collect();
    assert_eq!(owners, BTreeMap::from([(None, 1), (Some("o".to_owned()), 1)]));
}

#[tokio::test]
async fn queues_tell_how_they_stand() {
    let server = Server::start().await;
    let client = server.client();
    let first = client.submit(&SubmitJob::new("a", "k")).await.expect("submitted");
    client.submit(&SubmitJob::new("a", "k")).await.expect("submitted");
    server.running("b").await;
    let queues = client.queues().await.expect("the queues").items;
    let seen: Vec<_> = queues
        .iter()
        .map(|queue| {
            (queue.name.as_str(), queue.paused, queue.jobs[&JobState::Available], queue.jobs[&JobState::Running])
        })
        .collect();
    assert_eq!(seen, [("a", false, 2, 0), ("b", false, 0, 1)]);
    assert_eq!(queues[0].oldest_waiting_since, Some(first.run_at));
    assert_eq!(queues[1].oldest_waiting_since, None);
}

#[tokio::test]
async fn metrics_name_routes_and_never_ids() {
    let server = Server::start().await;
    let client = server.client();
    let job = client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    client.job(&job.id).await.expect("the job");
    assert!(reqwest::get(server.url("/nowhere/17")).await.is_ok());
    let text = client.metrics().await.expect("metrics");
    let series = r#"leasehold_http_requests_total{route="/v1/jobs/{id}",method="GET",status="200"}"#;
    assert!(text.contains(series), "{text}");
    assert!(text.contains(r#"leasehold_http_request_duration_seconds_bucket{route="/v1/jobs/{id}",method="GET",le="#));
    assert!(!text.contains(&*job.id) && !text.contains("nowhere"));
}

#[tokio::test]
async fn the_audit_refuses_what_it_does_not_know_and_says_where_none_is_kept() {
    let server = Server::start().await;
    let page = server.client().audit(&AuditQuery::default()).await.expect("a page");
    assert_eq!(page, AuditAnswer { items: Vec::new(), next_cursor: None, kept: false });
    let of_another_store = "eyJpbl90aW1lIjp7ImF0IjowLCJzZXF1ZW5jZSI6MSwiaWQiOiJhIn19";
    for (query, field) in [
        ("event=done", "event"),
        ("kind=%0a", "kind"),
        ("from=soon", "from"),
        ("from=2030-01-02T00:00:00Z&to=2030-01-01T00:00:00Z", "to"),
        ("limit=1001", "limit"),
        ("cursor=x", "cursor"),
        ("who=ann", "who"),
    ] {
        let answer = reqwest::get(server.url(&format!("/v1/audit?{query}"))).await.expect("an answer");
        let refused = problem(answer).await;
        assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, field), "{query}");
    }
    let answer = reqwest::get(server.url(&format!("/v1/audit?cursor={of_another_store}"))).await.expect("an answer");
    assert_eq!(problem(answer).await.status, 422);
}
