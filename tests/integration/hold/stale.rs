//! A member that has led, and does not know yet that another one does: it must not refuse what that one would do, nor
//! acknowledge what writes nothing as far as it knows.

use futures::future::join_all;
use leasehold::client::Client;
use leasehold::manager::OnDuplicate;
use leasehold::wire::{ClaimJobs, SubmitJob};
use nix::sys::signal::Signal;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::site::{ONE_CLOCK, Site};
use super::ways::Passage;
use crate::machine;
use crate::program::DEADLINE;

/// The codes of what a member answers that may not lead any more, itself or by its store.
const NOT_KNOWN_TO_LEAD: [&str; 4] = ["not_leader", "no_leader", "outcome_unknown", "store_unavailable"];

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_led_answers_no_call_on_what_is_not_so_any_more() {
    let _share = machine::with_others();
    let mut site = Site::members(&ONE_CLOCK).await;
    let old = site.a_leader().await;
    let client = |member: usize| Client::new(&site.servers[member].url(), None).expect("a client");
    let named = |id: &str, queue: &str| SubmitJob { id: Some(id.to_owned()), ..SubmitJob::new(queue, "k") };
    client(old).submit(&named("early", "q")).await.expect("taken");
    let unique = SubmitJob {
        unique_key: Some("one".to_owned()),
        on_duplicate: Some(OnDuplicate::Existing),
        ..SubmitJob::new("unique", "k")
    };
    client(old).submit(&unique).await.expect("taken");
    client(old).submit(&named("gone", "gone")).await.expect("taken");
    client(old).submit(&named("writes", "writes")).await.expect("taken");
    let writes = ClaimJobs { worker_id: "w".to_owned(), queues: vec!["writes".to_owned()], ..ClaimJobs::default() };
    let writes = client(old).claim(&writes).await.expect("claimed").jobs.remove(0);
    let http = reqwest::Client::builder().timeout(DEADLINE).build().expect("a client");
    let schedule = |id: &str| {
        let action = json!({"type": "job", "job": {"queue": "q", "kind": "k"}});
        json!({"id": id, "period": {"cron": "0 0 1 1 *"}, "action": action})
    };
    let done = async |call: reqwest::RequestBuilder| {
        let answer = call.send().await.expect("an answer").error_for_status().expect("it is done");
        answer.json::<Value>().await.unwrap_or_default()
    };
    let put = schedule("away");
    done(http.post(format!("{}/v1/schedules", site.servers[old].url())).json(&put)).await;
    site.caught_up().await;
    let (one, other) = ((old + 1) % site.servers.len(), (old + 2) % site.servers.len());

    // It stands still at once, so that it counts no time without an answer.
    site.network.as_ref().expect("members").set_around(old, Passage::Silent);
    site.servers[old].signal(Signal::SIGSTOP);
    site.another_leads(old).await;
    let client = Client::with_servers(&[one, other].map(|member| site.servers[member].url()), None).expect("a client");
    let claim = ClaimJobs { worker_id: "w".to_owned(), queues: vec!["q".to_owned()], ..ClaimJobs::default() };
    let claimed = client.claim(&claim).await.expect("claimed").jobs.remove(0);
    client.submit(&named("late", "q")).await.expect("taken");
    client.submit(&named("to-cancel", "to-cancel")).await.expect("taken");

    client.submit(&SubmitJob::new("named", "k")).await.expect("taken");
    let named_claim = ClaimJobs { queues: vec!["named".to_owned()], request_id: Some("r".to_owned()), ..claim };
    let given = client.claim(&named_claim).await.expect("claimed").jobs.remove(0);

    let at = |path: &str| format!("{}{path}", site.servers[one].url());
    done(http.post(at("/v1/schedules")).json(&schedule("yearly"))).await;
    done(http.delete(at("/v1/schedules/away"))).await;
    let first = ClaimJobs { queues: vec!["unique".to_owned()], request_id: None, ..named_claim.clone() };
    let first = client.claim(&first).await.expect("claimed").jobs.remove(0);
    let held = json!({"worker_id": "w", "fence": first.fence});
    done(http.post(at(&format!("/v1/jobs/{}/complete", first.id))).json(&held)).await;
    done(http.post(at("/v1/jobs/gone/cancel")).json(&json!({}))).await;
    done(http.delete(at("/v1/jobs/gone"))).await;
    done(http.post(at("/v1/queues/q/pause")).json(&json!({}))).await;
    done(http.post(at("/v1/admin/jobs/writes/release")).json(&json!({"reason": "r", "then": "requeue"}))).await;

    site.servers[old].signal(Signal::SIGCONT);
    let url = site.servers[old].url();
    let held = json!({"worker_id": "w", "fence": claimed.fence});
    let beats = json!({"worker_id": "w", "leases": [{"id": claimed.id, "fence": claimed.fence}]});
    let output = json!({"worker_id": "w", "fence": writes.fence, "stream": "stdout", "offset": 0, "text": "x"});
    let outputs = json!({"worker_id": "w", "outputs": [
        {"id": "writes", "fence": writes.fence, "stream": "stdout", "offset": 0, "text": "x"},
    ]});
    let to_cancel = json!({"filter": {"queues": ["to-cancel"]}, "reason": "r"});
    let line = json!(json!(named("gone", "gone")).to_string());
    let calls = [
        // What it would refuse.
        (Method::POST, format!("/v1/jobs/{}/heartbeat", claimed.id), held.clone()),
        (Method::POST, "/v1/heartbeats".to_owned(), beats),
        (Method::POST, format!("/v1/jobs/{}/complete", claimed.id), held),
        (Method::POST, "/v1/jobs/late/cancel".to_owned(), json!({})),
        (Method::POST, "/v1/schedules/yearly/run".to_owned(), json!({})),
        (
            Method::POST,
            "/v1/claims".to_owned(),
            json!({"worker_id": "w", "queues": ["named"], "request_id": "r", "repeated": true}),
        ),
        // What it would say to have done, since there is nothing to write as far as it knows.
        (Method::POST, "/v1/jobs".to_owned(), json!(unique)),
        (Method::POST, "/v1/jobs".to_owned(), json!(named("gone", "gone"))),
        (Method::POST, "/v1/jobs/bulk".to_owned(), line),
        (Method::PUT, "/v1/schedules/away".to_owned(), schedule("away")),
        (Method::POST, "/v1/queues/q/resume".to_owned(), json!({})),
        (Method::POST, "/v1/admin/jobs/cancel".to_owned(), to_cancel),
        (Method::POST, "/v1/jobs/writes/output".to_owned(), output),
        (Method::POST, "/v1/outputs".to_owned(), outputs),
        (Method::POST, "/v1/claims".to_owned(), json!({"worker_id": "w", "queues": ["to-cancel"]})),
        (Method::GET, "/v1/jobs/to-cancel".to_owned(), Value::Null),
        (Method::GET, "/v1/jobs/export".to_owned(), Value::Null),
    ];
    // All at once, while it believes to lead: it notices within a second or two.
    let asked = calls.into_iter().map(|(method, path, body)| {
        let call = http.request(method, format!("{url}{path}"));
        let call = match body {
            Value::Null => call,
            Value::String(lines) => call.header(CONTENT_TYPE, "application/x-ndjson").body(lines),
            body => call.json(&body),
        };
        (call, path)
    });
    let asked = asked.map(|(call, path)| async move {
        let answer = call.send().await.expect("an answer");
        let (status, answer): (_, Value) = (answer.status(), answer.json().await.expect("JSON"));
        let item = &answer["items"][0];
        let status = item["status"].as_u64().unwrap_or_else(|| status.as_u16().into());
        assert_eq!(status, u64::from(StatusCode::SERVICE_UNAVAILABLE.as_u16()), "{path}: {answer}");
        // Not for want of room, or of a place: since nobody knows whether it leads.
        let code = item["error"]["code"].as_str().or_else(|| answer["code"].as_str());
        assert!(code.is_some_and(|code| NOT_KNOWN_TO_LEAD.contains(&code)), "{path}: {answer}");
    });
    join_all(asked).await;
    site.network.as_ref().expect("members").open();
    site.are_ready().await;
    let again = client.claim(&named_claim).await.expect("claimed").jobs.remove(0);
    assert_eq!((&again.id, again.fence), (&given.id, given.fence));
    site.end_equal().await;
}
