//! Made-up jobs, most of them ended, of about the variety of real ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::job::{
    Actor, Body, Change, Claim, Failure, Job, JobError, JobId, JobSpec, Json, Kind, LeaseProof, Owner, Priority,
    QueueName, WorkerId,
};

const QUEUES: u32 = 50;
const KINDS: u32 = 20;
const OWNERS: u32 = 200;
const WORKERS: u32 = 100;
/// How far back the first job was created.
const SPAN: Duration = Duration::from_hours(30 * 24);
/// One in so many expires before it is started, fails, or waits for its time.
const EXPIRED: u64 = 5_000;
const FAILED: u64 = 100;
const DELAYED: u64 = 10;
/// One in so many of those that have not ended is running.
const RUNNING: u64 = 10;

/// Returns this many jobs in the order of their creation, of which the last `live` have not ended. Except for `now`,
/// they are the same every time.
pub(crate) fn made_up(jobs: u32, live: u32, now: Timestamp) -> impl Iterator<Item = Job> {
    let begun = now.as_millis() - SPAN.as_millis() as i64;
    let step = SPAN.as_millis() as f64 / f64::from(jobs.max(1));
    (0..jobs).map(move |number| {
        let created_at = Timestamp::from_millis(begun + (step * f64::from(number)) as i64);
        job(number, created_at, number >= jobs - live)
    })
}

/// Returns a query by a time field that matches one job in three hundred.
pub(super) fn window(field: &str, now: Timestamp) -> String {
    let at = |hours: u64| now.minus(Duration::from_hours(hours));
    format!("{field} >= \"{}\" and {field} < \"{}\"", at(362), at(360))
}

/// Returns a pseudorandom number: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
fn mixed(number: u32, purpose: u64) -> u64 {
    let seed = (u64::from(number) << 8 | purpose).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    seed ^ (seed >> 31)
}

fn one_of(count: u32, number: u32, purpose: u64) -> u32 {
    (mixed(number, purpose) % u64::from(count)) as u32
}

/// Returns a name, a document or a transition that is valid as it is made here.
pub(crate) fn valid<T, E: std::fmt::Debug>(made: Result<T, E>) -> T {
    made.expect("valid as it is made")
}

/// Makes the job with this number, by the transitions that a real one goes through.
fn job(number: u32, created_at: Timestamp, is_live: bool) -> Job {
    let is_one_in = |count: u64, purpose: u64| mixed(number, purpose).is_multiple_of(count);
    let delay = if is_one_in(DELAYED, 1) { 60_000 + mixed(number, 2) % 3_600_000 } else { 0 };
    let run_at = created_at.plus(Duration::from_millis(delay));
    let started_at = run_at.plus(Duration::from_millis(5 + mixed(number, 4) % 30_000));
    let finished_at = started_at.plus(Duration::from_millis(10 + mixed(number, 5) % 60_000));
    let expires_at = (!is_live && is_one_in(EXPIRED, 6)).then_some(finished_at);

    let client = valid(Actor::new(format!("client-{}", number % 7)));
    let id = JobId::of_uuid(uuid_at(created_at, number));
    let document = number / 12;
    let payload = format!("{{\"page\":{number},\"of\":\"document-{document}\",\"format\":\"pdf\"}}");
    let payload = Body::Inline(valid(Json::parse(payload)));
    let submitted = Job::submit(id, Arc::new(spec(number)), payload, (run_at, expires_at), &client, created_at);
    if expires_at.is_some() {
        return valid(submitted.expire(&Actor::system("leasehold.monitor"), finished_at));
    }
    if is_live && !is_one_in(RUNNING, 6) {
        return submitted;
    }
    let worker_id = valid(WorkerId::new(format!("worker-{}", one_of(WORKERS, number, 3))));
    let claim =
        Claim { worker_id: worker_id.clone(), holder: None, request_id: None, term: SPAN, margin: Duration::ZERO };
    let running = valid(submitted.claim(&claim, started_at));
    if is_live {
        return running;
    }
    let proof = LeaseProof { worker_id, fence: running.fence, bearer: None };
    let change = match is_one_in(FAILED, 6) {
        true => running.fail(&proof, &failure(number), finished_at),
        false => running.complete(&proof, &Body::Empty, finished_at),
    };
    match valid(change) {
        Change::To(ended) => *ended,
        Change::Already => running,
    }
}

fn failure(number: u32) -> Failure {
    let message = format!("exit status {}: the disk of node {} is full", 1 + number % 3, number % 97);
    let error = JobError { code: "exit".to_owned(), message };
    Failure { error, retryable: false, retry_after: None, chance: 0.0 }
}

fn spec(number: u32) -> JobSpec {
    let label = |name: &str, values: &[&str], purpose: u64| {
        let value = values[one_of(values.len() as u32, number, purpose) as usize];
        (name.to_owned(), value.to_owned())
    };
    let labels = [
        label("team", &["blue", "red", "green", "yellow"], 7),
        label("region", &["eu-west-1", "eu-north-1", "us-east-2"], 8),
    ];
    JobSpec {
        priority: Priority::new(i64::from(one_of(5, number, 11)) - 2).unwrap_or_default(),
        owner: Some(valid(Owner::new(format!("owner-{:03}", one_of(OWNERS, number, 12))))),
        labels: BTreeMap::from(labels),
        ..JobSpec::new(
            valid(QueueName::new(format!("queue-{:02}", one_of(QUEUES, number, 9)))),
            valid(Kind::new(format!("kind-{:02}", one_of(KINDS, number, 10)))),
        )
    }
}

fn uuid_at(created_at: Timestamp, number: u32) -> uuid::Uuid {
    let mut random = [0; 10];
    random[..8].copy_from_slice(&mixed(number, 13).to_be_bytes());
    uuid::Builder::from_unix_timestamp_millis(created_at.as_millis().unsigned_abs(), &random).into_uuid()
}
