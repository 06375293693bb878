//! Servers are killed while jobs end and a receiver fails: whoever asked to be told is told of every one.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::StatusCode;
use leasehold::client::Client;
use leasehold::executor::webhook::Secret;
use leasehold::job::EventName;
use leasehold::wire::{ClaimJobs, CompleteJob, SubmitJob, Subscribe};

use super::site::{Site, Trouble};
use crate::machine;
use crate::notify::receiver::{Receiver, machine_time};

/// How often the server is killed, and how many jobs end in between.
const KILLS: usize = 3;
const JOBS_BETWEEN: usize = 20;

const OPTIONS: [&str; 1] = ["--allow-private-targets"];

#[tokio::test(flavor = "multi_thread")]
async fn no_notification_is_lost_when_the_embedded_server_is_killed() {
    let _share = machine::with_others();
    every_end_is_told(Site::embedded(&OPTIONS).await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: most of a minute of three members"]
async fn no_notification_is_lost_when_the_member_that_leads_is_killed() {
    let _share = machine::with_others();
    every_end_is_told(Site::members(&OPTIONS).await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a minute of a server on Elasticsearch"]
async fn no_notification_is_lost_when_a_server_on_elasticsearch_is_killed() {
    let _share = machine::with_others();
    every_end_is_told(Site::elasticsearch(&OPTIONS).await).await;
}

async fn every_end_is_told(mut site: Site) {
    let receiver = Receiver::listening().await;
    let client = Client::with_servers(&site.urls(), None).expect("a client");
    let subscribed = client
        .subscribe(&Subscribe {
            url: receiver.url(),
            events: vec![EventName::Completed.into()],
            ..Subscribe::default()
        })
        .await
        .expect("subscribed");
    let secret: Secret = subscribed.secret.expect("told once").parse().expect("a secret");

    let mut ended = BTreeSet::new();
    for round in 0..KILLS {
        receiver.answer_next(std::iter::repeat_n(StatusCode::INTERNAL_SERVER_ERROR, 5));
        for number in 0..JOBS_BETWEEN {
            let mut job = SubmitJob::new("a", "k");
            job.id = Some(format!("job-{round}-{number}"));
            client.submit(&job).await.expect("submitted");
            let claim = ClaimJobs {
                worker_id: "w".to_owned(),
                queues: vec!["a".to_owned()],
                request_id: Some(format!("claim-{round}-{number}")),
                wait_ms: Some(20_000),
                ..ClaimJobs::default()
            };
            let claimed = client.claim(&claim).await.expect("claimed").jobs.remove(0);
            let fence = claimed.fence;
            let done = CompleteJob { worker_id: "w".to_owned(), fence, result: None, next: None };
            client.complete(&claimed.id, &done).await.expect("completed");
            ended.insert(claimed.id.into_owned());
        }
        // Right after the last acknowledged end: some of them are told of, some are under way, some still in an outbox.
        let victim = site.first().await;
        site.make(Trouble::Kill, victim, Duration::ZERO).await;
    }
    receiver.until(|receiver| receiver.told().len() >= ended.len(), || {}).await;
    let told: BTreeSet<String> = receiver.told().into_iter().map(|(id, _)| id).collect();
    assert_eq!(told, ended);
    for delivered in receiver.came() {
        delivered.verified(&secret, machine_time());
    }
    for server in &site.servers {
        assert!(server.counter("leasehold_notifications_dead_total").await < 1.0, "there is no dead letter");
    }
}
