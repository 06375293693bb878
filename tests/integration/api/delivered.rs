//! Claims that are answered through a follower: the jobs are the client's once it has the answer, and otherwise they are
//! given back before their leases end.

use std::time::Duration;

use leasehold::peers::DELIVERIES_PATH;
use leasehold::store::SIGNED_HEADS;
use leasehold::wire::{ClaimAnswer, ClaimJobs, CompleteJob, JobState, SubmitJob};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::members::{Process, led, secret};
use super::messages::signed;
use super::server::{SOON, WORKER, claim, problem};

/// Longer than any of these tests.
const LEASE_MS: u64 = 600_000;

/// A claim of so many jobs.
fn of(max_jobs: u64) -> ClaimJobs {
    ClaimJobs { max_jobs: Some(max_jobs), lease_ms: Some(LEASE_MS), ..claim("q") }
}

async fn state(process: &Process, id: &str) -> JobState {
    process.client().job(id).await.expect("the job").state
}

/// Waits until a job waits for another claim.
async fn given_back(process: &Process, id: &str) {
    let given_back = async {
        while state(process, id).await != JobState::Available {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, given_back).await.expect("it is given back");
}

/// Calls the leader as another member does for its client.
async fn forwarded(leader: &Process, claim: &ClaimJobs) -> reqwest::Response {
    let call = reqwest::Client::new().post(leader.url("/v1/claims")).header("leasehold-forwarded", "2").json(claim);
    call.send().await.expect("an answer")
}

#[tokio::test]
async fn jobs_are_given_back_when_the_client_of_a_follower_goes_away_before_it_has_the_answer() {
    const JOBS: u64 = 16;
    let (leader, _manager, follower) = led().await;
    let mut ids = Vec::new();
    for _ in 0..JOBS {
        let long = SubmitJob {
            payload: Some(super::server::json(&json!("x".repeat(1_000_000)).to_string())),
            ..SubmitJob::new("q", "k")
        };
        ids.push(leader.client().submit(&long).await.expect("submitted").id);
    }
    // It takes the head of the answer, and as much as its machine reads ahead, which is not all.
    let mut client = TcpStream::connect(follower.address).await.expect("a connection");
    let body = serde_json::to_string(&of(JOBS)).expect("JSON");
    let head = format!("POST /v1/claims HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n", follower.address);
    let call = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    client.write_all(call.as_bytes()).await.expect("sent");
    let mut first = [0; 1_024];
    client.read_exact(&mut first).await.expect("the head of the answer");
    let head = String::from_utf8_lossy(&first);
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("content-length: 1"), "{head}");
    assert_eq!(state(&leader, &ids[0]).await, JobState::Running);
    drop(client);
    for id in &ids {
        given_back(&leader, id).await;
    }
    // Another one gets them whole.
    let claimed = follower.client().claim(&of(JOBS)).await.expect("an answer").jobs;
    assert_eq!(claimed.len() as u64, JOBS);
    let done = CompleteJob { worker_id: WORKER.to_owned(), fence: claimed[0].fence, result: None, next: None };
    follower.client().complete(&claimed[0].id, &done).await.expect("it has the lease");
}

#[tokio::test]
async fn the_leader_gives_jobs_back_when_the_follower_goes_away_that_has_not_delivered_them() {
    let (leader, _manager, _follower) = led().await;
    let job = leader.client().submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let mut answer = forwarded(&leader, &of(1)).await;
    assert!(answer.headers().contains_key("leasehold-delivery"), "{answer:?}");
    let text = answer.chunk().await.expect("an answer").expect("its only part");
    let claimed: ClaimAnswer = serde_json::from_slice(&text).expect("a claim's answer");
    assert_eq!(claimed.jobs[0].id, job.id);
    assert_eq!(state(&leader, &job.id).await, JobState::Running);
    drop(answer);
    given_back(&leader, &job.id).await;
}

#[tokio::test]
async fn jobs_are_delivered_when_the_follower_says_so() {
    let (leader, _manager, _follower) = led().await;
    let job = leader.client().submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let answer = forwarded(&leader, &of(1)).await;
    let delivery = answer.headers()["leasehold-delivery"].to_str().expect("text").to_owned();
    let (id, bytes) = delivery.split_once(' ').expect("an id and a length");
    let tell = async |id: &str| signed(&leader, DELIVERIES_PATH, id.to_owned().into(), &secret()).await;
    for other in ["", "none", "00000000-0000-4000-8000-000000000000"] {
        assert_eq!(problem(tell(other).await).await.status, 404, "{other}");
    }
    assert_eq!(tell(id).await.status(), 204);
    let text = timeout(SOON, answer.text()).await.expect("the answer ends").expect("whole");
    assert_eq!(text.len().to_string(), bytes);
    assert_eq!(problem(tell(id).await).await.status, 404, "it is done with");
    assert_eq!(state(&leader, &job.id).await, JobState::Running);
}

#[tokio::test]
async fn a_signed_delivery_counts_while_those_of_earlier_versions_do() {
    let (leader, _manager, _follower) = led().await;
    leader.agrees_on(SIGNED_HEADS - 1);
    leader.client().submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let answer = forwarded(&leader, &of(1)).await;
    let delivery = answer.headers()["leasehold-delivery"].to_str().expect("text").to_owned();
    let id = delivery.split(' ').next().expect("an id").to_owned();
    // The question for the opening is no delivery.
    assert_eq!(signed(&leader, DELIVERIES_PATH, id.into(), &secret()).await.status(), 204);
    timeout(SOON, answer.text()).await.expect("the answer ends").expect("whole");
}

#[tokio::test]
async fn a_follower_of_an_earlier_version_says_so_without_a_signature() {
    let (leader, _manager, _follower) = led().await;
    leader.client().submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let answer = forwarded(&leader, &of(1)).await;
    let delivery = answer.headers()["leasehold-delivery"].to_str().expect("text").to_owned();
    let tell = async || {
        let id = delivery.split(' ').next().expect("an id").to_owned();
        reqwest::Client::new().post(leader.url(DELIVERIES_PATH)).body(id).send().await.expect("an answer").status()
    };
    assert_eq!(tell().await, 401, "no member has an earlier version");
    leader.agrees_on(SIGNED_HEADS - 1);
    assert_eq!(tell().await, 204);
    timeout(SOON, answer.text()).await.expect("the answer ends").expect("whole");
    assert_eq!(tell().await, 404, "it is done with");
}

#[tokio::test]
async fn nothing_is_held_of_an_answer_without_jobs_or_of_a_claim_with_a_name() {
    let (leader, _manager, _follower) = led().await;
    let answer = forwarded(&leader, &of(1)).await;
    assert!(!answer.headers().contains_key("leasehold-delivery"), "{answer:?}");
    leader.client().submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let named = ClaimJobs { request_id: Some("mine".to_owned()), ..of(1) };
    let answer = forwarded(&leader, &named).await;
    assert!(!answer.headers().contains_key("leasehold-delivery"), "{answer:?}");
    let claimed: ClaimAnswer = answer.json().await.expect("a claim's answer");
    assert_eq!(claimed.jobs.len(), 1);
}
