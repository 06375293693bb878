//! Asking for jobs: figures, exports, some fields of them, and what can be asked.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::api::Limits;
use leasehold::client::{ClientError, CountQuery, Export, JobQuery, StatsQuery};
use leasehold::job::{Kind, QueueName};
use leasehold::manager::{Caller, NewJob};
use leasehold::wire::{BulkChange, BulkFilter, CompleteJob, StatsRow, SubmitJob};
use serde_json::Value;

use super::server::{SOON, Server, Setup, WORKER, json, problem, value};

async fn get(server: &Server, path: &str) -> Value {
    value(reqwest::get(server.url(path)).await.expect("an answer")).await
}

async fn refused(server: &Server, path: &str) -> (u16, String, String) {
    let mut problem = problem(reqwest::get(server.url(path)).await.expect("an answer")).await;
    let fault = problem.errors.remove(0);
    (problem.status, fault.field, fault.message)
}

fn asked(kql: &str) -> JobQuery {
    JobQuery { kql: Some(kql.to_owned()), ..JobQuery::default() }
}

async fn completed(server: &Server, queue: &str) {
    let job = server.running(queue).await;
    let done = CompleteJob { worker_id: WORKER.to_owned(), fence: job.fence, result: None, next: None };
    server.client().complete(&job.id, &done).await.expect("completed");
}

async fn lines(mut export: Export) -> Vec<Value> {
    let mut text = Vec::new();
    while let Some(bytes) = export.next().await.expect("the export goes on") {
        text.extend_from_slice(&bytes);
    }
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).expect("a job a line")).collect()
}

#[tokio::test]
async fn figures_are_told_in_all_by_group_and_over_time() {
    let server = Server::start().await;
    let client = server.client();
    for queue in ["a", "a", "b"] {
        completed(&server, queue).await;
    }
    client.submit(&SubmitJob::new("b", "k")).await.expect("submitted");
    let query = StatsQuery {
        jobs: asked("queue: (a or b)"),
        by: vec!["queue".to_owned(), "state".to_owned()],
        interval: Some("1d".to_owned()),
        time: Some("created_at".to_owned()),
        percentiles: vec![50.0, 99.9],
        sums: vec![],
    };
    let stats = client.stats(&query).await.expect("figures");
    assert_eq!((stats.total.count, stats.total.wait_ms.count, stats.total.run_time_ms.count), (4, 3, 3));
    let counts: u64 = stats.rows.iter().map(|row| row.figures.count).sum();
    assert!(counts == 4 && stats.rows.iter().all(|row| row.at.is_some()), "{stats:?}");
    let first = &stats.rows.iter().find(|row| row.by["queue"].as_deref() == Some("a")).expect("a row");
    assert_eq!((first.by["state"].as_deref(), first.figures.count), (Some("completed"), 2));
    let told: Vec<&str> = first.figures.run_time_ms.percentiles.keys().map(String::as_str).collect();
    assert_eq!(told, ["50", "99.9"]);
    let plain = client.stats(&StatsQuery::default()).await.expect("figures");
    assert_eq!((plain.rows.len(), plain.total.count, plain.total.wait_ms.percentiles.len()), (0, 4, 3));
    for (query, field) in [
        ("by=nothing", "by"),
        ("by=queue&by=queue", "by"),
        ("by=payload", "by"),
        ("interval=1y", "interval"),
        ("interval=1h&time=queue", "time"),
        ("time=created_at", "time"),
        ("percentiles=101", "percentiles"),
        ("sum=gpus", "sum"),
        ("kql=stat%3Arunning", "kql"),
        ("sort=queue", "sort"),
    ] {
        let (status, at, _) = refused(&server, &format!("/v1/jobs/stats?{query}")).await;
        assert_eq!((status, at.as_str()), (422, field), "{query}");
    }
}

#[tokio::test]
async fn days_begin_where_the_time_zone_says() {
    let server = Server::start().await;
    let client = server.client();
    client
        .submit(&SubmitJob { run_at: Some("2030-01-31T23:30:00Z".to_owned()), ..SubmitJob::new("q", "k") })
        .await
        .expect("submitted");
    let count = async |day: &str, zone: Option<&str>| {
        let jobs = JobQuery { time_zone: zone.map(str::to_owned), ..asked(&format!("run_at: {day}")) };
        client.count(&CountQuery { jobs, by: Vec::new() }).await.expect("a count").total
    };
    assert_eq!((count("2030-01-31", None).await, count("2030-02-01", None).await), (1, 0));
    for zone in ["Europe/Berlin", "+01:00"] {
        assert_eq!((count("2030-01-31", Some(zone)).await, count("2030-02-01", Some(zone)).await), (0, 1), "{zone}");
    }
    let (status, field, _) = refused(&server, "/v1/jobs?kql=run_at%3A+now%2Fd&time_zone=Mars%2FOlympus").await;
    assert_eq!((status, field.as_str()), (422, "time_zone"));
}

#[tokio::test]
async fn jobs_are_counted_by_any_groupable_field() {
    let server = Server::start().await;
    let client = server.client();
    for (priority, team) in [(1, "x"), (1, "y"), (5, "x")] {
        let labels = [("team".to_owned(), team.to_owned())].into();
        let job = SubmitJob { priority: Some(priority), labels, ..SubmitJob::new("q", "k") };
        client.submit(&job).await.expect("submitted");
    }
    let by = vec!["priority".to_owned()];
    let counted = client.count(&CountQuery { by, ..CountQuery::default() }).await.expect("a count");
    let groups: Vec<_> = counted.groups.iter().map(|group| (group.by["priority"].as_deref(), group.count)).collect();
    assert_eq!((counted.total, groups), (3, vec![(Some("1"), 2), (Some("5"), 1)]));
    let by = vec!["labels.team".to_owned(), "queue".to_owned()];
    let counted = client.count(&CountQuery { by, jobs: asked("priority: 1") }).await.expect("a count");
    assert_eq!((counted.total, counted.groups.len()), (2, 2));
}

#[tokio::test]
async fn what_jobs_need_is_searched_and_added_up_as_numbers() {
    let server = Server::start().await;
    let client = server.client();
    for (queue, owner, gpus) in [("a", "x", 1), ("a", "x", 4), ("a", "y", 8), ("b", "x", 16)] {
        let resources = [("gpus".to_owned(), gpus), ("memory_mib".to_owned(), 512)].into();
        let job = SubmitJob { owner: Some(owner.to_owned()), resources, ..SubmitJob::new(queue, "k") };
        client.submit(&job).await.expect("submitted");
    }
    client.submit(&SubmitJob::new("b", "k")).await.expect("submitted");
    let found = client.jobs(&asked("resources.gpus >= 4 and resources.gpus < 10")).await.expect("a page");
    assert_eq!(found.items.len(), 2);

    let query = StatsQuery {
        by: vec!["queue".to_owned(), "owner".to_owned()],
        sums: vec!["resources.gpus".to_owned()],
        ..StatsQuery::default()
    };
    let stats = client.stats(&query).await.expect("figures");
    assert_eq!(stats.total.sums, [("resources.gpus".to_owned(), 29.0)].into());
    let sum = |queue: &str, owner: Option<&str>| {
        let of = |row: &&StatsRow| row.by["queue"].as_deref() == Some(queue) && row.by["owner"].as_deref() == owner;
        stats.rows.iter().find(of).expect("a row").figures.sums["resources.gpus"]
    };
    assert_eq!([sum("a", Some("x")), sum("a", Some("y")), sum("b", Some("x")), sum("b", None)], [5.0, 8.0, 16.0, 0.0]);
    assert!(client.stats(&StatsQuery::default()).await.expect("figures").total.sums.is_empty());
}

#[tokio::test]
async fn only_the_fields_asked_for_are_given() {
    let server = Server::start().await;
    let client = server.client();
    let payload = Some(json(r#"{"big": 123456789012345678901234567890, "other": [1.50]}"#));
    let labels = [("a.b".to_owned(), "x".to_owned()), ("c".to_owned(), "y".to_owned())].into();
    let job = SubmitJob { payload, labels, ..SubmitJob::new("q", "k") };
    let id = client.submit(&job).await.expect("submitted").id;
    let text = async |path: String| reqwest::get(server.url(&path)).await.expect("an answer").text().await;
    let one = text(format!("/v1/jobs/{id}?fields=state,labels.a.b,payload.big,lease.worker_id,history.to")).await;
    let expected = r#"{"payload":{"big":123456789012345678901234567890},"state":"available","labels":{"a.b":"x"},"lease":null,"history":[{"to":"available"}]}"#;
    assert_eq!(one.expect("a body"), expected);
    let list = text("/v1/jobs?fields=id&fields=queue".to_owned()).await.expect("a body");
    assert_eq!(list, format!(r#"{{"items":[{{"id":"{id}","queue":"q"}}],"next_cursor":null}}"#));
    for path in [format!("/v1/jobs/{id}"), "/v1/jobs".to_owned(), "/v1/jobs/export".to_owned()] {
        let (status, field, message) = refused(&server, &format!("{path}?fields=lease.workr_id")).await;
        assert_eq!((status, field.as_str()), (422, "fields"), "{path}");
        assert!(message.contains("`lease.worker_id`"), "{message}");
    }
}

#[tokio::test]
async fn a_path_to_a_field_that_leads_deeper_than_any_is_refused_and_not_followed() {
    let server = Server::start().await;
    let payload = Some(json(&format!("{}{}", r#"[{"a":"#.repeat(49), "1".to_owned() + &"}]".repeat(49))));
    server.client().submit(&SubmitJob { payload, ..SubmitJob::new("q", "k") }).await.expect("submitted");
    let deep = format!("payload{}", ".a".repeat(49));
    assert_eq!(reqwest::get(server.url(&format!("/v1/jobs?fields={deep}"))).await.expect("an answer").status(), 200);
    for (path, says) in
        [(".".repeat(16_000), "1024 bytes"), (".a".repeat(200), "101 names"), ("a".repeat(30_000), "1024 bytes")]
    {
        for list in ["/v1/jobs", "/v1/jobs/export", "/v1/jobs/a"] {
            let (status, field, message) = refused(&server, &format!("{list}?fields=payload.{path}")).await;
            assert_eq!((status, field.as_str()), (422, "fields"), "{list}");
            assert!(message.contains(says), "{message}");
        }
    }
    server.goes_on().await;
}

#[tokio::test]
async fn a_list_is_in_the_order_of_any_sortable_field() {
    let server = Server::start().await;
    let client = server.client();
    for (id, owner) in [("1", Some("b")), ("2", None), ("3", Some("a")), ("4", Some("b"))] {
        let job = SubmitJob { id: Some(id.to_owned()), owner: owner.map(str::to_owned), ..SubmitJob::new("q", "k") };
        client.submit(&job).await.expect("submitted");
    }
    for (sort, expected) in [("owner", ["3", "1", "4", "2"]), ("-owner", ["1", "4", "3", "2"])] {
        let mut query = JobQuery { sort: Some(sort.to_owned()), limit: Some(1), ..JobQuery::default() };
        let mut seen = Vec::new();
        for _ in expected {
            let page = client.jobs(&query).await.expect("a page");
            seen.extend(page.items.into_iter().map(|job| job.id.into_owned()));
            query.cursor = page.next_cursor;
        }
        assert_eq!((seen.as_slice(), query.cursor.is_none()), (&expected.map(str::to_owned)[..], true), "{sort}");
    }
    let (status, field, message) = refused(&server, "/v1/jobs?sort=ownr").await;
    assert_eq!((status, field.as_str()), (422, "sort"));
    assert!(message.contains("is `owner` meant?"), "{message}");
}

#[tokio::test]
async fn an_export_gives_every_job_once_with_its_bodies() {
    let server = Server::start().await;
    let client = server.client();
    // Several pages, and bodies that are kept apart.
    for number in 0..450 {
        let payload = (number % 9 == 0).then(|| json(&format!("\"{}\"", "x".repeat(10_000))));
        let job = SubmitJob { payload, ..SubmitJob::new(format!("q{}", number % 2), "k") };
        client.submit(&job).await.expect("submitted");
    }
    let all = lines(client.export(&JobQuery::default(), &[]).await.expect("an export")).await;
    let ids: BTreeSet<&str> = all.iter().map(|job| job["id"].as_str().expect("an id")).collect();
    assert_eq!((all.len(), ids.len()), (450, 450));
    assert_eq!(all.iter().filter(|job| job["payload"].as_str().is_some_and(|text| text.len() == 10_000)).count(), 50);
    assert!(all.is_sorted_by(|one, next| one["created_at"].as_str() >= next["created_at"].as_str()));
    let some = client.export(&asked("queue: q1"), &["id".to_owned()]).await.expect("an export");
    let some = lines(some).await;
    assert!(some.len() == 225 && some.iter().all(|job| job.as_object().is_some_and(|job| job.len() == 1)));
    assert!(lines(client.export(&asked("queue: none"), &[]).await.expect("an export")).await.is_empty());
    let answer = reqwest::get(server.url("/v1/jobs/export")).await.expect("an answer");
    assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
    let (status, field, _) = refused(&server, "/v1/jobs/export?limit=1").await;
    assert_eq!((status, field.as_str()), (422, "limit"));
}

/// More than what lies in sockets and pieces on the way.
async fn much(server: &Server) {
    let client = server.client();
    for _ in 0..100 {
        let payload = Some(json(&format!("\"{}\"", "x".repeat(500_000))));
        client.submit(&SubmitJob { payload, ..SubmitJob::new("q", "k") }).await.expect("submitted");
    }
}

#[tokio::test]
async fn an_export_that_is_cut_off_does_not_look_whole() {
    let server = Server::start().await;
    much(&server).await;
    let mut export = server.client().export(&JobQuery::default(), &[]).await.expect("an export");
    assert!(export.next().await.expect("the first piece").is_some());
    // The store ends, and the server that hands the export out lives on.
    server.manager.shutdown().await;
    let failed = loop {
        match export.next().await {
            Ok(Some(_)) => {}
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    assert!(matches!(failed, Some(ClientError::Broken(_))), "{failed:?}");
    server.goes_on().await;
}

#[tokio::test]
async fn exports_have_places_and_whoever_leaves_gives_its_place_back() {
    let limits = Limits { exports: 1, ..Limits::default() };
    let server = Server::start_with(Setup { limits, ..Setup::default() }).await;
    much(&server).await;
    let client = server.client();
    let first = client.export(&JobQuery::default(), &[]).await.expect("an export");
    let second = client.export(&JobQuery::default(), &[]).await.expect_err("no place");
    assert_eq!(second.code(), Some("overloaded"));
    drop(first);
    let deadline = std::time::Instant::now() + SOON;
    while client.export(&JobQuery::default(), &[]).await.is_err() {
        assert!(std::time::Instant::now() < deadline, "the place is not given back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_export_that_is_not_read_holds_up_no_other() {
    let limits = Limits { export_readers: 1, ..Limits::default() };
    let server = Server::start_with(Setup { limits, ..Setup::default() }).await;
    much(&server).await;
    let client = server.client();
    let unread = client.export(&JobQuery::default(), &[]).await.expect("an export");
    let other = client.export(&JobQuery::default(), &[]).await.expect("an export");
    assert_eq!(tokio::time::timeout(SOON, lines(other)).await.expect("in time").len(), 100);
    drop(unread);
}

#[tokio::test]
async fn every_field_is_described() {
    let server = Server::start().await;
    let fields = server.client().fields().await.expect("the fields");
    let named = |name: &str| fields.iter().find(|field| field.name == name).expect("the field");
    let state = named("state");
    assert_eq!((state.r#type.as_str(), state.sortable, state.groupable, state.default), ("keyword", true, true, true));
    assert_eq!(state.values, ["available", "running", "completed", "failed", "cancelled", "expired"]);
    assert_eq!(named("history.to").nested_in.as_deref(), Some("history"));
    assert_eq!((named("payload").r#type.as_str(), named("payload").sortable), ("kept", false));
    let fields = get(&server, "/v1/fields").await["items"].clone();
    assert!(fields[0]["example"].is_string());
    // It stands for a query about other fields, and is completed in editors as they are.
    let phase = fields.as_array().expect("a list").iter().find(|field| field["name"] == "phase").expect("the phase");
    assert!(phase["values"].as_array().expect("values").contains(&"retrying".into()), "{phase}");
}

#[tokio::test]
async fn a_query_says_which_jobs_are_changed() {
    let server = Server::start().await;
    let client = server.client();
    for priority in [1, 2, 3] {
        client.submit(&SubmitJob { priority: Some(priority), ..SubmitJob::new("q", "k") }).await.expect("submitted");
    }
    let filter = |kql: &str| BulkFilter { kql: Some(kql.to_owned()), ..BulkFilter::default() };
    let look = BulkChange { filter: filter("priority >= 2 and created_at <= now"), ..BulkChange::default() };
    assert!(look.dry_run || client.cancel_many(&BulkChange { dry_run: true, ..look.clone() }).await.is_ok());
    let reason = Some("wrong month".to_owned());
    let order = BulkChange { reason, dry_run: false, ..look };
    let done = client.cancel_many(&order).await.expect("an answer");
    assert_eq!((done.matched, done.changed), (2, 2));
    for (kql, field) in [("*", "filter"), ("priorty: 1", "filter.kql")] {
        let error = client.cancel_many(&BulkChange { filter: filter(kql), ..order.clone() }).await;
        let Err(ClientError::Problem { problem, .. }) = error else { panic!("{error:?}") };
        assert_eq!(problem.errors[0].field, field, "{kql}");
    }
    let left = client.jobs(&asked("state: available")).await.expect("a page").items;
    assert_eq!((left.len(), left[0].priority), (1, 1));
}

#[tokio::test]
async fn the_systems_own_jobs_are_seen_only_by_those_who_ask_for_them() {
    let server = Server::start().await;
    let client = server.client();
    completed(&server, "q").await;
    client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let of_the_system =
        || NewJob::new(QueueName::system("leasehold.notifications"), Kind::system("leasehold.delivery"));
    let submitted = server.manager.submit(&Caller::system("system"), vec![of_the_system(), of_the_system()]).await;
    let id = submitted[0].as_ref().expect("submitted").job.versioned.job.id.to_string();

    let count = async |jobs: JobQuery| client.count(&CountQuery { jobs, by: Vec::new() }).await.expect("a count").total;
    let queue = |name: &str| JobQuery { queues: vec![name.to_owned()], ..JobQuery::default() };
    assert_eq!(count(JobQuery::default()).await, 2);
    assert_eq!(count(asked("kind: *")).await, 2);
    assert_eq!(count(queue("leasehold.notifications")).await, 2);
    assert_eq!(count(asked("queue: leasehold.*")).await, 2);
    assert_eq!(count(asked(&format!("id: {id}"))).await, 1);
    assert_eq!(client.jobs(&JobQuery::default()).await.expect("a list").items.len(), 2);
    assert_eq!(client.jobs(&queue("leasehold.notifications")).await.expect("a list").items.len(), 2);
    let groups = get(&server, "/v1/jobs/count?by=queue").await;
    assert_eq!(groups["groups"].as_array().map(Vec::len), Some(1), "{groups}");
    let stats = client.stats(&StatsQuery::default()).await.expect("figures");
    assert_eq!(stats.total.count, 2);
    assert_eq!(lines(client.export(&JobQuery::default(), &[]).await.expect("an export")).await.len(), 2);

    let every = BulkFilter { all: true, ..BulkFilter::default() };
    let order = BulkChange { filter: every, dry_run: true, ..BulkChange::default() };
    assert_eq!(
        client.cancel_many(&order).await.expect("an answer").matched,
        1,
        "a delivery is cancelled with the jobs"
    );
    let named = BulkFilter { queues: vec!["leasehold.notifications".to_owned()], ..BulkFilter::default() };
    let order = BulkChange { filter: named, dry_run: true, ..BulkChange::default() };
    assert_eq!(client.cancel_many(&order).await.expect("an answer").matched, 2);
}
