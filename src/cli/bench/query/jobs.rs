//! Made-up jobs, most of them ended, of about the variety of real ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::job::{
    Actor, Attempt, Body, EventName, Fence, History, HistoryEntry, Job, JobError, JobId, JobSpec, JobState, Json, Kind,
    Lease, Owner, Priority, QueueName, Running, State, WorkerId,
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

/// Returns a name from a literal that is a valid name.
fn named<T, E: std::fmt::Debug>(name: Result<T, E>) -> T {
    name.expect("a name")
}

fn job(number: u32, created_at: Timestamp, is_live: bool) -> Job {
    let is_one_in = |count: u64, purpose: u64| mixed(number, purpose).is_multiple_of(count);
    let delay = if is_one_in(DELAYED, 1) { 60_000 + mixed(number, 2) % 3_600_000 } else { 0 };
    let run_at = created_at.plus(Duration::from_millis(delay));
    let worker = named(WorkerId::new(format!("worker-{}", one_of(WORKERS, number, 3))));
    let started_at = run_at.plus(Duration::from_millis(5 + mixed(number, 4) % 30_000));
    let finished_at = started_at.plus(Duration::from_millis(10 + mixed(number, 5) % 60_000));
    let end = match () {
        () if is_live && is_one_in(RUNNING, 6) => End::Runs,
        () if is_live => End::Waits,
        () if is_one_in(EXPIRED, 6) => End::Expired,
        () if is_one_in(FAILED, 6) => End::Failed,
        () => End::Completed,
    };
    let id = uuid_at(created_at, number);
    let history = history(number, &end, created_at, started_at, finished_at, &worker);
    let error = matches!(end, End::Failed).then(|| JobError {
        code: "exit".to_owned(),
        message: format!("exit status {}: the disk of node {} is full", 1 + number % 3, number % 97),
    });
    let is_claimed = matches!(end, End::Runs | End::Failed | End::Completed);
    Job {
        id: JobId::of_uuid(id),
        spec: Arc::new(spec(number)),
        payload: Body::Inline(named(Json::parse(format!(
            "{{\"page\":{number},\"of\":\"document-{}\",\"format\":\"pdf\"}}",
            number / 12
        )))),
        state: end.state(worker, started_at, finished_at),
        run_at,
        expires_at: None,
        attempt: Attempt::new(u32::from(is_claimed)),
        fence: Fence::new(u64::from(is_claimed)),
        error,
        updated_at: history.entries().last().map_or(created_at, |entry| entry.at),
        history,
        outbox: Vec::new(),
        created_at,
        started_at: is_claimed.then_some(started_at),
    }
}

/// The stage that a job has reached.
enum End {
    Waits,
    Runs,
    Completed,
    Failed,
    Expired,
}

impl End {
    fn state(&self, worker_id: WorkerId, started_at: Timestamp, finished_at: Timestamp) -> State {
        match self {
            Self::Waits => State::Available,
            Self::Runs => State::Running(Box::new(Running {
                lease: Lease {
                    worker_id,
                    request_id: None,
                    acquired_at: started_at,
                    heartbeat_at: started_at,
                    expires_at: started_at.plus(SPAN),
                    term: SPAN,
                },
                progress: None,
                cancel_requested_at: None,
                orphan: None,
                overdue_at: None,
            })),
            Self::Completed => State::Completed { finished_at, result: Body::Empty },
            Self::Failed => State::Failed { finished_at },
            Self::Expired => State::Expired { finished_at },
        }
    }
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
        owner: Some(named(Owner::new(format!("owner-{:03}", one_of(OWNERS, number, 12))))),
        labels: BTreeMap::from(labels),
        ..JobSpec::new(
            named(QueueName::new(format!("queue-{:02}", one_of(QUEUES, number, 9)))),
            named(Kind::new(format!("kind-{:02}", one_of(KINDS, number, 10)))),
        )
    }
}

fn history(
    number: u32,
    end: &End,
    created_at: Timestamp,
    started_at: Timestamp,
    finished_at: Timestamp,
    worker: &WorkerId,
) -> History {
    use JobState::{Available, Completed, Expired, Failed, Running};
    let client = named(Actor::new(format!("client-{}", number % 7)));
    let entry = |at, from, to, event, actor: &Actor, fence: u32| HistoryEntry {
        at,
        from,
        to,
        fence: Fence::new(u64::from(fence)),
        attempt: Attempt::new(fence),
        event,
        actor: actor.clone(),
        reason: None,
    };
    let worker = Actor::from(worker);
    let mut history = History::default();
    history.push(entry(created_at, None, Available, EventName::Submitted, &client, 0));
    if matches!(end, End::Runs | End::Completed | End::Failed) {
        history.push(entry(started_at, Some(Available), Running, EventName::Claimed, &worker, 1));
    }
    match end {
        End::Waits | End::Runs => {}
        End::Completed => history.push(entry(finished_at, Some(Running), Completed, EventName::Completed, &worker, 1)),
        End::Failed => {
            let mut failed = entry(finished_at, Some(Running), Failed, EventName::Failed, &worker, 1);
            failed.reason = Some("no attempt is left".to_owned());
            history.push(failed);
        }
        End::Expired => {
            let monitor = Actor::system("leasehold.monitor");
            history.push(entry(finished_at, Some(Available), Expired, EventName::Expired, &monitor, 0));
        }
    }
    history
}

fn uuid_at(created_at: Timestamp, number: u32) -> uuid::Uuid {
    let mut random = [0; 10];
    random[..8].copy_from_slice(&mixed(number, 13).to_be_bytes());
    uuid::Builder::from_unix_timestamp_millis(created_at.as_millis().unsigned_abs(), &random).into_uuid()
}
