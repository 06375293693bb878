//! Jobs to test with.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Timestamp;
use leasehold::job::{
    Actor, Attempt, Body, Claim, Concurrency, ConcurrencyKey, Conditions, Due, EventName, Fence, Fingerprint, History,
    HistoryEntry, Hold, Job, JobError, JobId, JobSpec, JobState, Json, Kind, Lease, Notice, NoticeFormat, NoticeTarget,
    Ordered, OrderingKey, Orphan, OrphanPolicy, Oversight, Owner, Priority, Progress, QueueName, RequestId,
    RetryPolicy, Running, ScheduleId, State, UniqueKey, WorkerId,
};

/// The time at which sample jobs are submitted.
pub(crate) const NOW: i64 = 1_800_000_000_000;

/// `NOW` and some milliseconds.
pub(crate) fn at(offset: i64) -> Timestamp {
    Timestamp::from_millis(NOW + offset)
}

pub(crate) fn id(text: &str) -> JobId {
    JobId::new(text).expect("a job id")
}

pub(crate) fn queue(text: &str) -> QueueName {
    QueueName::new(text).expect("a queue's name")
}

pub(crate) fn kind(text: &str) -> Kind {
    Kind::new(text).expect("a kind")
}

pub(crate) fn owner(text: &str) -> Owner {
    Owner::new(text).expect("an owner")
}

pub(crate) fn worker(text: &str) -> WorkerId {
    WorkerId::new(text).expect("a worker's id")
}

pub(crate) fn request(text: &str) -> RequestId {
    RequestId::new(text).expect("a request's id")
}

pub(crate) fn json(text: &str) -> Json {
    Json::parse(text.to_owned()).expect("JSON")
}

pub(crate) fn actor(text: &str) -> Actor {
    Actor::new(text).expect("an actor")
}

/// A specification with nothing optional in it.
pub(crate) fn plain_spec() -> JobSpec {
    JobSpec::new(queue("default"), kind("sample"))
}

/// A job as it is submitted.
pub(crate) fn submitted(name: &str) -> Arc<Job> {
    Arc::new(submit(name, plain_spec(), at(0), at(0)))
}

/// A job of this specification, submitted at one time and due at another.
pub(crate) fn submit(name: &str, spec: JobSpec, run_at: Timestamp, now: Timestamp) -> Job {
    Job::submit(id(name), Arc::new(spec), Body::Empty, (run_at, None), &actor("tester"), now)
}

/// A due time of a schedule, so many milliseconds after the beginning.
pub(crate) fn due(schedule: &str, millis: i64) -> Box<Due> {
    let schedule_id = ScheduleId::new(schedule).expect("an id");
    Box::new(Due { schedule_id, due_at: at(millis) })
}

/// The job after a claim.
pub(crate) fn claimed(job: &Job) -> Arc<Job> {
    let claim = Claim {
        worker_id: worker("worker-1"),
        holder: None,
        request_id: None,
        term: Duration::from_secs(60),
        margin: Duration::ZERO,
    };
    Arc::new(job.claim(&claim, job.run_at).expect("an available job can be claimed"))
}

/// The job in a state it may not have come to by itself.
pub(crate) fn in_state(job: &Job, state: State) -> Arc<Job> {
    Arc::new(Job { state, ..job.clone() })
}

/// The job with one more attempt: a change that nothing else makes.
pub(crate) fn counted(job: &Job) -> Arc<Job> {
    Arc::new(Job { attempt: job.attempt.next(), ..job.clone() })
}

/// Every state, with all that it can hold.
pub(crate) fn full_states() -> Vec<State> {
    let finished_at = at(9_007);
    vec![
        State::Available,
        State::Running(Box::new(Running {
            lease: Lease {
                worker_id: worker("bauer-ü/7 [rack 3]"),
                holder: None,
                request_id: Some(request("anfrage №1")),
                acquired_at: at(1),
                heartbeat_at: at(2),
                expires_at: at(3),
                term: Duration::from_millis(86_400_123),
            },
            progress: Some(Progress {
                percent: Some(33.333_333_333_333_336),
                message: Some("zeile\n\"2\" \\ 🦀".into()),
            }),
            cancel_requested_at: Some(at(4)),
            orphan: Some(Orphan {
                flagged_at: at(5),
                reason: "kein Lebenszeichen: <b>&amp;</b>".to_owned(),
                held: true,
            }),
            overdue_at: Some(at(6)),
        })),
        State::Completed { finished_at, result: Body::Inline(json("{\"ok\": true,  \"n\": 1.0}")) },
        State::Failed { finished_at },
        State::Cancelled { finished_at },
        State::Expired { finished_at },
    ]
}

/// Every state, with as little as it can hold.
pub(crate) fn bare_states() -> Vec<State> {
    let finished_at = at(0);
    let lease = Lease {
        worker_id: worker("w"),
        holder: None,
        request_id: None,
        acquired_at: at(0),
        heartbeat_at: at(0),
        expires_at: at(0),
        term: Duration::ZERO,
    };
    vec![
        State::Available,
        State::Running(Box::new(Running {
            lease,
            progress: None,
            cancel_requested_at: None,
            orphan: None,
            overdue_at: None,
        })),
        State::Completed { finished_at, result: Body::Empty },
        State::Failed { finished_at },
        State::Cancelled { finished_at },
        State::Expired { finished_at },
    ]
}

/// A job with everything a job can have, at its bounds.
pub(crate) fn full(name: &str, state: State) -> Job {
    let entry = |number: i64| HistoryEntry {
        at: at(number),
        from: (number > 0).then_some(JobState::ALL[number as usize % 6]),
        to: JobState::ALL[(number as usize + 1) % 6],
        fence: Fence::new(number as u64),
        attempt: Attempt::new(number as u32),
        event: EventName::ALL[number as usize % 12],
        actor: actor("jürgen@example.org"),
        worker_id: (number % 3 == 0).then(|| worker("host 7/1")),
        reason: (number % 2 == 0).then(|| format!("Grund {number}: „weil“\t'darum'")),
    };
    let spec = JobSpec {
        queue: queue("Nachtlauf / Süd 7"),
        kind: kind("übersetzung:v2"),
        priority: Priority::new(Priority::LOWEST).expect("a priority"),
        owner: Some(owner("团队 β")),
        labels: [
            ("app.kubernetes.io/name", "leasehold"),
            ("a.b", "dotted"),
            ("a", "and the prefix of a dotted one"),
            ("a..b", "two dots"),
            ("empty", ""),
            ("Größe", "„groß“ 🦀 \\ \" / \n"),
            ("with space", " kept "),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect(),
        expected_runtime: Some(Duration::from_millis(1)),
        timeout: Some(Duration::from_millis(31_536_000_001)),
        max_attempts: u32::MAX,
        retry: RetryPolicy {
            base: Duration::from_millis(1),
            factor: 1.000_000_000_000_000_2,
            max: Duration::from_millis(604_800_000),
            jitter: 0.1,
        },
        resources: [("cpu_millis", 1), ("memory_mib", 9_007_199_254_740_993), ("gpus", 0)]
            .into_iter()
            .map(|(name, amount)| (name.to_owned(), amount))
            .collect(),
        oversight: Oversight {
            orphan_policy: Some(OrphanPolicy::Flag),
            notify: vec![NoticeTarget {
                url: "https://example.org/häken?a=1#b".to_owned(),
                events: EventName::NOTIFIABLE.to_vec(),
                format: NoticeFormat::Alertmanager,
            }],
        },
        due: Some(due("nächtlich/7", -1)),
        rerun_of: Some(id("früher")),
        conditions: Conditions {
            requires: ["gpu", "note not in (\"größe\", b)", "build >= 20261124110052001.5"]
                .map(|text| text.parse().expect("a requirement"))
                .to_vec(),
            concurrency: Some(Concurrency { key: ConcurrencyKey::new("db-7").expect("a key"), max: 5 }),
            unique: Some(UniqueKey::new("report-7").expect("a key")),
            ordering: Some(Ordered { key: OrderingKey::new("account-7").expect("a key"), seq: 8, first: 7 }),
        }
        .stored(),
        fingerprint: Some(Fingerprint(u128::MAX - 1)),
    };
    Job {
        id: id(name),
        spec: Arc::new(spec),
        payload: Body::Inline(json("{\"a\":[1.0,1e400,12345678901234567890,\"\\u00e9é\"]}")),
        state,
        run_at: at(-123_456_789),
        expires_at: Some(Timestamp::MAX),
        hold: Some(Box::new(Hold { at: at(-7), by: actor("jürgen"), reason: Some("„falsch“".to_owned()) })),
        attempt: Attempt::new(u32::MAX),
        fence: Fence::new(9_223_372_036_854_775_807),
        error: Some(JobError { code: "exit".to_owned(), message: "Fehler: \"nein\"\n\tat line 1 🦀".to_owned() }),
        history: History::from_parts((0..50).map(entry).collect(), 4_000_000_000),
        outbox: [7, u32::MAX].map(|number| Notice { number, entry: entry(i64::from(number % 50)) }).to_vec(),
        created_at: at(-999),
        updated_at: at(999),
        started_at: Some(at(77)),
    }
}
