//! A member that has led, and does not know yet that another one does: it must not refuse what that one would do.

use futures::future::join_all;
use leasehold::client::Client;
use leasehold::wire::{ClaimJobs, SubmitJob};
use nix::sys::signal::Signal;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::site::{ONE_CLOCK, Site};
use super::ways::Passage;
use crate::machine;
use crate::program::DEADLINE;

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_led_refuses_no_call_for_want_of_what_it_has_not_heard() {
    let _share = machine::with_others();
    let mut site = Site::members(&ONE_CLOCK).await;
    let old = site.a_leader().await;
    let client = |member: usize| Client::new(&site.servers[member].url(), None).expect("a client");
    client(old).submit(&SubmitJob { id: Some("early".to_owned()), ..SubmitJob::new("q", "k") }).await.expect("taken");
    site.caught_up().await;
    let (one, other) = ((old + 1) % site.servers.len(), (old + 2) % site.servers.len());

    // It stands still at once, so that it counts no time without an answer.
    site.network.as_ref().expect("members").set_around(old, Passage::Silent);
    site.servers[old].signal(Signal::SIGSTOP);
    site.another_leads(old).await;
    let client = Client::with_servers(&[one, other].map(|member| site.servers[member].url()), None).expect("a client");
    let claim = ClaimJobs { worker_id: "w".to_owned(), queues: vec!["q".to_owned()], ..ClaimJobs::default() };
    let claimed = client.claim(&claim).await.expect("claimed").jobs.remove(0);
    client.submit(&SubmitJob { id: Some("late".to_owned()), ..SubmitJob::new("q", "k") }).await.expect("taken");

    client.submit(&SubmitJob::new("named", "k")).await.expect("taken");
    let named = ClaimJobs { queues: vec!["named".to_owned()], request_id: Some("r".to_owned()), ..claim };
    let given = client.claim(&named).await.expect("claimed").jobs.remove(0);

    let yearly = json!({
        "id": "yearly", "period": {"cron": "0 0 1 1 *"}, "action": {"type": "job", "job": {"queue": "q", "kind": "k"}},
    });
    let http = reqwest::Client::builder().timeout(DEADLINE).build().expect("a client");
    let stored = http.post(format!("{}/v1/schedules", site.servers[one].url())).json(&yearly).send().await;
    assert!(stored.expect("an answer").status().is_success());

    site.servers[old].signal(Signal::SIGCONT);
    let url = site.servers[old].url();
    let held = json!({"worker_id": "w", "fence": claimed.fence});
    let beats = json!({"worker_id": "w", "leases": [{"id": claimed.id, "fence": claimed.fence}]});
    let calls = [
        (format!("/v1/jobs/{}/heartbeat", claimed.id), held.clone()),
        ("/v1/heartbeats".to_owned(), beats.clone()),
        (format!("/v1/jobs/{}/complete", claimed.id), held),
        ("/v1/jobs/late/cancel".to_owned(), json!({})),
        ("/v1/schedules/yearly/run".to_owned(), json!({})),
        ("/v1/claims".to_owned(), json!({"worker_id": "w", "queues": ["named"], "request_id": "r", "repeated": true})),
    ];
    // All at once, while it believes to lead: it notices within a second or two.
    let asked = calls.into_iter().map(|(path, body)| (http.post(format!("{url}{path}")).json(&body), path));
    let asked = asked.map(|(call, path)| async move {
        let answer = call.send().await.expect("an answer");
        let (status, answer): (_, Value) = (answer.status(), answer.json().await.expect("JSON"));
        let status = answer["items"][0]["status"].as_u64().unwrap_or_else(|| status.as_u16().into());
        assert_eq!(status, u64::from(StatusCode::SERVICE_UNAVAILABLE.as_u16()), "{path}: {answer}");
    });
    join_all(asked).await;
    site.network.as_ref().expect("members").open();
    site.are_ready().await;
    let again = client.claim(&named).await.expect("claimed").jobs.remove(0);
    assert_eq!((&again.id, again.fence), (&given.id, given.fence));
    site.end_equal().await;
}
