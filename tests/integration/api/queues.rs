//! Queues held back, workers seen, and why a job does not run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold::api::access::{Access, Role, Token, token_hash};
use leasehold::client::{ClientError, JobQuery};
use leasehold::job::{Actor, OrphanPolicy};
use leasehold::wire::{ChangeQueue, ClaimJobs, ClaimNext, CompleteJob, HeartbeatJob, JobState, SubmitJob};
use serde_json::json;

use super::server::{Server, Setup, WORKER, claim, eventually, problem, value};

fn codes(explanation: &leasehold::wire::Explanation) -> Vec<&str> {
    explanation.reasons.iter().map(|reason| reason.code.as_str()).collect()
}

#[tokio::test]
async fn a_paused_queue_says_who_paused_it_and_gives_its_jobs_to_those_who_wait_once_it_is_resumed() {
    let server = Server::start().await;
    let client = server.client();
    let paused = client.pause_queue("reports", Some("repairs")).await.expect("paused");
    let pause = paused.pause.expect("paused");
    assert_eq!((paused.paused, pause.by.as_str(), pause.reason.as_deref()), (true, "anonymous", Some("repairs")));
    let job = client.submit(&SubmitJob::new("reports", "k")).await.expect("a paused queue takes jobs");
    assert!(client.claim(&claim("reports")).await.expect("an answer").jobs.is_empty());
    let (waiter, call) = (client.clone(), ClaimJobs { wait_ms: Some(60_000), ..claim("reports") });
    let waiting = tokio::spawn(async move { waiter.claim(&call).await });
    eventually("a waiting claim", || server.manager.waiting_claims() == 1).await;

    let why = client.explain(&job.id).await.expect("explained");
    assert_eq!((why.runnable, codes(&why)), (false, vec!["queue_paused"]));
    assert_eq!(
        (&why.reasons[0].evidence["by"], &why.reasons[0].evidence["reason"]),
        (&json!("anonymous"), &json!("repairs"))
    );

    let resumed = client.resume_queue("reports").await.expect("resumed");
    assert!(!resumed.paused && resumed.pause.is_none());
    let claimed = waiting.await.expect("no panic").expect("an answer").jobs;
    assert_eq!(claimed.iter().map(|claimed| &claimed.id).collect::<Vec<_>>(), [&job.id]);
    let why = client.explain(&job.id).await.expect("explained");
    assert_eq!((why.state, codes(&why)), (JobState::Running, vec!["running"]));
}

#[tokio::test]
async fn only_administrators_set_anything_for_a_queue() {
    let token = |role: Role| Token {
        name: Actor::new(format!("{}-token", role.as_str())).expect("a name"),
        roles: BTreeSet::from([role]),
        sha256: token_hash(&format!("secret-{}", role.as_str())),
        may_edit_others: false,
    };
    let tokens = [Role::Read, Role::Submit, Role::Work, Role::Admin].map(token).to_vec();
    let access = Access::new(tokens).expect("tokens");
    let server = Server::start_with(Setup { access, ..Setup::default() }).await;
    let change = ChangeQueue { orphan_policy: Some(Some(OrphanPolicy::Flag)), ..ChangeQueue::default() };
    for role in ["read", "submit", "work"] {
        let client = server.client_with(Some(&format!("secret-{role}")));
        let refused = [
            client.pause_queue("q", None).await,
            client.resume_queue("q").await,
            client.change_queue("q", &change).await,
        ];
        for answer in refused {
            assert_eq!(answer.expect_err("refused").code(), Some("forbidden"), "{role}");
        }
    }
    let admin = server.client_with(Some("secret-admin"));
    assert_eq!(admin.pause_queue("q", None).await.expect("paused").pause.expect("paused").by.as_str(), "admin-token");
    assert_eq!(admin.change_queue("q", &change).await.expect("changed").orphan_policy, Some(OrphanPolicy::Flag));
    let reader = server.client_with(Some("secret-read"));
    assert!(reader.queue("q").await.expect("shown").paused);
}

#[tokio::test]
async fn a_change_that_names_no_rule_is_refused_and_null_removes_it() {
    let server = Server::start().await;
    let http = reqwest::Client::new();
    let change = |body: &'static str| {
        let request = http.patch(server.url("/v1/queues/a%2Fb")).header("content-type", "application/json");
        request.body(body).send()
    };
    for (wrong, field) in [("{}", "orphan_policy"), (r#"{"orphan_policy": "burn"}"#, "orphan_policy")] {
        let refused = problem(change(wrong).await.expect("an answer")).await;
        assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, field), "{wrong}");
    }
    let set = value(change(r#"{"orphan_policy": "fail"}"#).await.expect("an answer")).await;
    assert_eq!((&set["name"], &set["orphan_policy"]), (&json!("a/b"), &json!("fail")));
    let removed = value(change(r#"{"orphan_policy": null}"#).await.expect("an answer")).await;
    assert!(removed["orphan_policy"].is_null());
}

#[tokio::test]
async fn a_queues_owners_take_turns_by_weights_within_bounds_until_that_is_ended() {
    let server = Server::start().await;
    let http = reqwest::Client::new();
    let change = |body: &serde_json::Value| http.patch(server.url("/v1/queues/q")).json(body).send();
    for (wrong, field) in [
        (json!({"weights": {"a": 0}}), "weights.a"),
        (json!({"weights": {"a": 1_001, "b": 3}}), "weights.a"),
        (json!({"weights": {" a": 1}}), "weights. a"),
        (json!({"weights": (0..101).map(|number| (number.to_string(), 1)).collect::<BTreeMap<_, _>>()}), "weights"),
        (json!({"fairness": "kind"}), "fairness"),
        (json!({"order": "longest"}), "order"),
        (json!({"fairness": "owner", "weight": {}}), "weight"),
    ] {
        let refused = problem(change(&wrong).await.expect("an answer")).await;
        assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, field), "{wrong}");
    }
    let set = value(change(&json!({"fairness": "owner", "weights": {"b": 1_000}})).await.expect("an answer")).await;
    assert_eq!((&set["fairness"], &set["weights"]), (&json!("owner"), &json!({"b": 1_000})));
    let client = server.client();
    for owner in ["a", "a", "a", "b"] {
        let job = SubmitJob { owner: Some(owner.to_owned()), ..SubmitJob::new("q", "k") };
        client.submit(&job).await.expect("submitted");
    }
    let jobs = client.claim(&ClaimJobs { max_jobs: Some(2), ..claim("q") }).await.expect("an answer").jobs;
    let owners: Vec<Option<String>> = jobs.into_iter().map(|job| job.owner.map(|owner| owner.to_string())).collect();
    assert_eq!(owners, [Some("a".to_owned()), Some("b".to_owned())]);
    let set = value(change(&json!({"orphan_policy": "fail"})).await.expect("an answer")).await;
    assert_eq!((&set["fairness"], &set["orphan_policy"]), (&json!("owner"), &json!("fail")), "what is not named stays");
    let shortest = json!({"fairness": "owner_runtime", "order": "shortest"});
    let set = value(change(&shortest).await.expect("an answer")).await;
    assert_eq!((&set["fairness"], &set["order"]), (&json!("owner_runtime"), &json!("shortest")));
    let ended =
        value(change(&json!({"fairness": "none", "weights": {}, "order": "dispatch"})).await.expect("an answer")).await;
    assert_eq!((&ended["fairness"], &ended["weights"]), (&json!("none"), &json!({})));
}

#[tokio::test]
async fn a_queue_tells_how_many_of_its_jobs_have_ended_lately() {
    let server = Server::start().await;
    let client = server.client();
    for number in 0..4 {
        let job = server.running("q").await;
        if number == 0 {
            let error = leasehold::wire::JobError { code: "exit".to_owned(), message: String::new() };
            let failure = leasehold::wire::FailJob {
                worker_id: WORKER.to_owned(),
                fence: job.fence,
                error,
                retryable: Some(false),
                retry_after_ms: None,
                next: None,
            };
            client.fail(&job.id, &failure).await.expect("failed");
        } else {
            let done = CompleteJob { worker_id: WORKER.to_owned(), fence: job.fence, result: None, next: None };
            client.complete(&job.id, &done).await.expect("completed");
            client.complete(&job.id, &done).await.expect("the same again counts once");
        }
    }
    let queue = client.queue("q").await.expect("the queue");
    let windows: Vec<u64> = queue.throughput.iter().map(|ended| ended.window_ms).collect();
    assert_eq!(windows, [60_000, 300_000, 900_000]);
    let last = queue.throughput[2];
    assert_eq!((last.completed, last.failed, last.failure_rate), (3, 1, Some(0.25)));
    assert_eq!(client.queues().await.expect("the queues").items, [queue]);
    let other = client.queue("other").await.expect("any name is a queue's");
    assert_eq!((other.jobs[&JobState::Available], other.throughput[0].failure_rate), (0, None));
}

#[tokio::test]
async fn workers_show_what_they_ask_for_offer_and_run() {
    let server = Server::start().await;
    let client = server.client();
    let offering = ClaimJobs { resources: [("gpus".to_owned(), 2)].into(), ..claim("q") };
    for _ in 0..2 {
        client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    }
    let first = client.claim(&offering).await.expect("an answer").jobs.remove(0);
    let second = client.claim(&offering).await.expect("an answer").jobs.remove(0);
    let (waiter, call) = (client.clone(), ClaimJobs { wait_ms: Some(60_000), ..offering });
    let waiting = tokio::spawn(async move { waiter.claim(&call).await });
    eventually("a waiting claim", || server.manager.waiting_claims() == 1).await;

    let workers = client.workers().await.expect("the workers");
    let [worker] = &workers.items[..] else { panic!("one worker: {workers:?}") };
    assert_eq!((worker.id.as_str(), worker.running, worker.waiting, workers.truncated), (WORKER, 2, true, false));
    assert_eq!((worker.queues[0].as_str(), worker.queues.len(), worker.resources["gpus"]), ("q", 1, 2));
    assert_eq!(worker.oldest_heartbeat_at, first.lease.as_ref().map(|lease| lease.heartbeat_at));
    waiting.abort();
    eventually("no waiting claim", || server.manager.waiting_claims() == 0).await;

    let beat = HeartbeatJob { worker_id: "w2".to_owned(), fence: 1, progress: None };
    client.heartbeat(&first.id, &beat).await.expect_err("not its job");
    let workers = client.workers().await.expect("the workers").items;
    assert_eq!(workers.iter().map(|worker| worker.id.as_str()).collect::<Vec<_>>(), [WORKER, "w2"]);

    let known = client.worker(WORKER).await.expect("known");
    assert!(!known.worker.waiting);
    assert_eq!(known.items.iter().map(|job| &job.id).collect::<Vec<_>>(), [&first.id, &second.id]);
    let url = server.url(&format!("/v1/workers/{WORKER}?limit=1"));
    let page = value(reqwest::get(url).await.expect("an answer")).await;
    assert_eq!(page["items"].as_array().map(Vec::len), Some(1));
    assert!(page["next_cursor"].is_string());
    let unknown = problem(reqwest::get(server.url("/v1/workers/nobody")).await.expect("an answer")).await;
    assert_eq!((unknown.status, unknown.code.as_str()), (404, "no_such_worker"));
}

#[tokio::test]
async fn a_job_is_given_to_the_worker_that_offers_what_it_requires_and_later_ones_overtake_it() {
    let server = Server::start().await;
    let client = server.client();
    let requires = ["hw=fpga", "os in (linux,darwin)", "build>=042", "!broken"].map(str::to_owned).to_vec();
    let picky = SubmitJob { id: Some("picky".to_owned()), requires, ..SubmitJob::new("q", "k") };
    let picky = client.submit(&picky).await.expect("submitted");
    let normal = json!(["hw = fpga", "os in (linux, darwin)", "build >= 42", "!broken"]);
    assert_eq!(json!(picky.requires), normal);
    let again = SubmitJob {
        id: Some("picky".to_owned()),
        requires: picky.requires.iter().map(ToString::to_string).collect(),
        ..SubmitJob::new("q", "k")
    };
    assert_eq!(client.submit(&again).await.expect("the same submission").version, picky.version);
    let later = client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");

    let ids = |jobs: &[leasehold::wire::Job]| jobs.iter().map(|job| job.id.to_string()).collect::<Vec<_>>();
    let all = ClaimJobs { max_jobs: Some(9), ..claim("q") };
    let overtaken = client.claim(&all).await.expect("an answer").jobs;
    assert_eq!(ids(&overtaken), [&*later.id], "who offers nothing is given what requires nothing");
    let why = client.explain(&picky.id).await.expect("explained");
    assert_eq!((why.runnable, codes(&why)), (true, vec!["requirements_not_met"]));
    assert!(why.reasons[0].message.contains("offers hw = fpga; os in (linux, darwin); build >= 42."), "{why:?}");

    let offered = [("hw", "fpga"), ("os", "linux"), ("build", "43")];
    let labels: BTreeMap<String, String> = offered.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let broken = [("broken".to_owned(), String::new())].into_iter().chain(labels.clone()).collect();
    assert!(client.claim(&ClaimJobs { labels: broken, ..all.clone() }).await.expect("an answer").jobs.is_empty());
    let next = ClaimNext {
        queues: vec!["q".to_owned()],
        request_id: "next".to_owned(),
        labels: labels.clone(),
        ..ClaimNext::default()
    };
    let done = CompleteJob { worker_id: WORKER.to_owned(), fence: 1, result: None, next: Some(next) };
    let url = server.url(&format!("/v1/jobs/{}/complete", later.id));
    let ended = value(reqwest::Client::new().post(url).json(&done).send().await.expect("an answer")).await;
    assert_eq!((&ended["next"]["jobs"][0]["id"], &ended["next"]["jobs"][0]["requires"]), (&json!("picky"), &normal));
    assert_eq!(client.worker(WORKER).await.expect("known").worker.labels, labels);
    let found = client.jobs(&JobQuery { kql: Some("requires: \"hw = fpga\"".to_owned()), ..JobQuery::default() }).await;
    assert_eq!(ids(&found.expect("a page").items), ["picky"]);
}

#[tokio::test]
async fn a_claim_names_the_kinds_that_it_takes() {
    let server = Server::start().await;
    let client = server.client();
    let mail = client.submit(&SubmitJob::new("q", "mail")).await.expect("submitted");
    let report = client.submit(&SubmitJob::new("q", "report")).await.expect("submitted");
    let kinds = vec!["report".to_owned(), "print".to_owned(), "report".to_owned()];
    let claimed = client.claim(&ClaimJobs { kinds: kinds.clone(), max_jobs: Some(9), ..claim("q") }).await;
    let claimed = claimed.expect("an answer").jobs;
    assert_eq!(claimed.iter().map(|job| &*job.id).collect::<Vec<_>>(), [&*report.id]);
    let seen = client.worker(WORKER).await.expect("known").worker.kinds;
    assert_eq!(seen.iter().map(|kind| kind.as_str()).collect::<Vec<_>>(), ["print", "report"]);
    let why = client.explain(&mail.id).await.expect("explained");
    assert_eq!((why.runnable, codes(&why)), (true, vec!["kind_not_taken"]));
    let next = ClaimNext {
        queues: vec!["q".to_owned()],
        request_id: "next".to_owned(),
        kinds: vec!["mail".to_owned()],
        ..ClaimNext::default()
    };
    let done = CompleteJob { worker_id: WORKER.to_owned(), fence: 1, result: None, next: Some(next) };
    let url = server.url(&format!("/v1/jobs/{}/complete", report.id));
    let ended = value(reqwest::Client::new().post(url).json(&done).send().await.expect("an answer")).await;
    assert_eq!(ended["next"]["jobs"][0]["id"], json!(mail.id));
    for (kinds, field) in [(vec![String::new()], "kinds[0]"), (vec!["k".to_owned(); 65], "kinds")] {
        let refused = client.claim(&ClaimJobs { kinds, ..claim("q") }).await.expect_err("refused");
        let ClientError::Problem { problem, .. } = refused else { panic!("{refused}") };
        assert_eq!((problem.status, problem.errors[0].field.as_str()), (422, field));
    }
}

#[tokio::test]
async fn a_job_nobody_asks_for_and_one_nobody_has_room_for_say_so() {
    let server = Server::start().await;
    let client = server.client();
    let large = SubmitJob { resources: [("memory_mib".to_owned(), 4096)].into(), ..SubmitJob::new("q", "k") };
    let large = client.submit(&large).await.expect("submitted");
    assert_eq!(codes(&client.explain(&large.id).await.expect("explained")), ["no_worker_since_start"]);
    let small = ClaimJobs { resources: [("memory_mib".to_owned(), 1024)].into(), ..claim("q") };
    assert!(client.claim(&small).await.expect("an answer").jobs.is_empty());
    let why = client.explain(&large.id).await.expect("explained");
    assert_eq!((why.runnable, codes(&why)), (true, vec!["needs_more_than_offered"]));
    assert_eq!(why.reasons[0].evidence["most_offered"], json!({"memory_mib": 1024}));
    let behind = client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let why = client.explain(&behind.id).await.expect("explained");
    assert_eq!(codes(&why), ["workers_busy", "jobs_ahead"]);
    assert_eq!(why.reasons[1].evidence["ahead"], 1);
    let later = SubmitJob { run_at: Some("2999-01-01T00:00:00Z".to_owned()), ..SubmitJob::new("q", "k") };
    let later = client.submit(&later).await.expect("submitted");
    assert_eq!(codes(&client.explain(&later.id).await.expect("explained"))[0], "not_due");
    assert_eq!(client.explain("none").await.expect_err("no such job").code(), Some("not_found"));
    assert!(client.wait(&large.id, Duration::from_millis(1)).await.expect("the job").lease.is_none());
}
