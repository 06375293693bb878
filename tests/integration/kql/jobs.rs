//! Jobs to be asked for: of few words, so that most queries find some and not all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Timestamp;
use leasehold::job::{
    Actor, Attempt, Body, Concurrency, ConcurrencyKey, Conditions, Due, EventName, Fence, History, HistoryEntry, Hold,
    Job, JobError, JobId, JobSpec, JobState, Json, Kind, Lease, NewBody, Notice, Ordered, OrderingKey, Orphan,
    OrphanPolicy, Oversight, Owner, Priority, Progress, QueueName, RequestId, RetryPolicy, Running, ScheduleId, State,
    UniqueKey, WorkerId,
};

pub(super) const QUEUES: &[&str] = &["alpha", "beta", "Beta", "nacht lauf", "a:b", "a*b"];
pub(super) const KINDS: &[&str] = &["render", "Render", "encode-4k", "not", "and or", "e(x)"];
pub(super) const OWNERS: &[&str] = &["team a", "team-b", "true", "null", "größe", "🦀 x", "a\\b"];
pub(super) const WORKERS: &[&str] = &["w-1", "w-2", "w-10", "rack 3/7"];
pub(super) const SCHEDULES: &[&str] = &["nightly", "Nightly", "ping me"];
pub(super) const REASONS: &[&str] = &["no heartbeat", "lease ended", "asked by anna", "No"];
pub(super) const CODES: &[&str] = &["exit", "timeout", "Exit", "5"];
pub(super) const MESSAGES: &[&str] = &[
    "Out of Memory: killed",
    "exit status 1",
    "exit status 12",
    "disk full, the disk is FULL",
    "",
    "!!!",
    "connection refused by 10.0.0.1:9200",
    "Größe überschritten; can't go on",
    "see /tmp/a_b.txt or foo.com/x?y=1",
    "漢字 カタカナ error 🦀",
    "AND then NOT one OR two",
];
/// The keys that jobs name.
pub(super) const CONCURRENCY_KEYS: &[&str] = &["db-7", "db 8", "customer"];

/// The keys of which at most one job waits or runs, which only the manager sees to.
pub(super) const ORDERING_KEYS: &[&str] = &["account-7", "account 8", "Account-7"];
pub(super) const UNIQUE_KEYS: &[&str] = &["report-7", "report 8", "Report-7"];

/// What jobs require, each in its normal form.
pub(super) const REQUIRES: &[&str] = &["gpu", "hw = fpga", "hw != fpga", "os in (linux, \"a b\")"];
pub(super) const RESOURCES: &[&str] = &["gpus", "memory_mib"];
pub(super) const LABELS: &[(&str, &[&str])] = &[
    ("team", &["blue", "red", "bl ue", ""]),
    ("a.b", &["dotted", "blue"]),
    ("a", &["x", "dotted"]),
    ("größe", &["XL", "xl"]),
    ("size", &["5", "10"]),
];
pub(super) const PERCENTS: &[f64] = &[0.0, 33.5, 99.999, 100.0];
pub(super) const MILLIS: &[u64] = &[0, 1, 60_000, 3_600_000];
/// Minutes from now.
pub(super) const MINUTES: &[i64] =
    &[-600_000, -60_000, -11_000, -1_500, -1_440, -61, -59, -1, 1, 30, 90, 1_440, 4_400, 50_000];

/// Numbers that look thrown: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    pub(super) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub(super) fn perhaps<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(2) == 0).then(|| make(self))
    }

    pub(super) fn time(&mut self, now: Timestamp) -> Timestamp {
        let offset = self.one(MINUTES) * 60_000 + self.below(90_000) as i64;
        Timestamp::from_millis(now.as_millis() + offset)
    }

    pub(super) fn duration(&mut self) -> Duration {
        Duration::from_millis(self.one(MILLIS))
    }

    fn attempt(&mut self) -> Attempt {
        Attempt::new(self.below(4) as u32)
    }

    fn fence(&mut self) -> Fence {
        Fence::new(self.one(&[0, 1, 2, 3, 10, i64::MAX as u64]))
    }

    fn state_name(&mut self) -> JobState {
        self.one(&JobState::ALL)
    }

    fn due(&mut self, now: Timestamp) -> Box<Due> {
        let schedule_id = ScheduleId::new(self.one(SCHEDULES)).expect("a schedule");
        Box::new(Due { schedule_id, due_at: self.time(now) })
    }

    pub(super) fn labels(&mut self) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        for (name, values) in LABELS {
            if let Some(value) = self.perhaps(|dice| dice.one(values)) {
                labels.insert((*name).to_owned(), value.to_owned());
            }
        }
        if self.below(20) == 0 {
            labels.insert("long".to_owned(), "x".repeat(1_024 + self.below(2)));
        }
        labels
    }

    /// One of four forms of a name with a number in it.
    pub(super) fn name(prefix: &str, number: usize) -> String {
        match number % 4 {
            0 => format!("{}-{number}", prefix.to_lowercase()),
            1 => format!("{prefix} {number}"),
            2 => format!("{number}"),
            _ => format!("nightly:{number}*"),
        }
    }

    fn conditions(&mut self) -> Conditions {
        let mut requires = Vec::new();
        for text in REQUIRES {
            requires.extend(self.perhaps(|_| text.parse().expect("a requirement")));
        }
        let concurrency = self.perhaps(|some| Concurrency {
            key: ConcurrencyKey::new(some.one(CONCURRENCY_KEYS)).expect("a key"),
            max: 1 + some.below(3) as u32,
        });
        let unique = self.perhaps(|some| UniqueKey::new(some.one(UNIQUE_KEYS)).expect("a key"));
        let ordering = self.perhaps(|some| Ordered {
            key: OrderingKey::new(some.one(ORDERING_KEYS)).expect("a key"),
            seq: some.below(9) as u64,
            first: 1,
        });
        Conditions { requires, concurrency, unique, ordering }
    }

    fn spec(&mut self, now: Timestamp) -> JobSpec {
        let labels = self.labels();
        let mut resources = BTreeMap::new();
        for name in RESOURCES {
            if let Some(amount) = self.perhaps(|dice| dice.one(&[0, 1, 5, 10, 60_000, i64::MAX as u64])) {
                resources.insert((*name).to_owned(), amount);
            }
        }
        JobSpec {
            queue: QueueName::new(self.one(QUEUES)).expect("a queue"),
            kind: Kind::new(self.one(KINDS)).expect("a kind"),
            priority: Priority::new(self.one(&[-100, -5, 0, 1, 5, 100])).expect("a priority"),
            owner: self.perhaps(|dice| Owner::new(dice.one(OWNERS)).expect("an owner")),
            labels,
            expected_runtime: self.perhaps(Self::duration),
            timeout: self.perhaps(Self::duration),
            max_attempts: 1 + self.below(3) as u32,
            retry: RetryPolicy::default(),
            resources,
            oversight: Oversight {
                orphan_policy: self.perhaps(|dice| dice.one(&OrphanPolicy::ALL)),
                ..Oversight::default()
            },
            due: self.perhaps(|dice| dice.due(now)),
            rerun_of: self.perhaps(|dice| JobId::new(format!("Job-{}", dice.below(5))).expect("an id")),
            conditions: self.conditions().stored(),
            fingerprint: None,
        }
    }

    fn running(&mut self, now: Timestamp) -> Running {
        Running {
            lease: Lease {
                worker_id: WorkerId::new(self.one(WORKERS)).expect("a worker"),
                holder: None,
                request_id: self.perhaps(|dice| RequestId::new(dice.one(&["c-1", "c-2"])).expect("a request")),
                acquired_at: self.time(now),
                heartbeat_at: self.time(now),
                expires_at: self.time(now),
                term: self.duration(),
            },
            progress: self.perhaps(|dice| Progress {
                percent: dice.perhaps(|dice| dice.one(PERCENTS)),
                message: dice.perhaps(|_| "page 7".to_owned()),
            }),
            cancel_requested_at: self.perhaps(|dice| dice.time(now)),
            overdue_at: self.perhaps(|dice| dice.time(now)),
            orphan: self.perhaps(|dice| Orphan {
                flagged_at: dice.time(now),
                reason: dice.one(REASONS).to_owned(),
                held: dice.below(2) == 0,
            }),
        }
    }

    fn state(&mut self, now: Timestamp) -> State {
        let finished_at = self.time(now);
        match self.state_name() {
            JobState::Available => State::Available,
            JobState::Running => State::Running(Box::new(self.running(now))),
            JobState::Completed => State::Completed { finished_at, result: Body::Empty },
            JobState::Failed => State::Failed { finished_at },
            JobState::Cancelled => State::Cancelled { finished_at },
            JobState::Expired => State::Expired { finished_at },
        }
    }

    fn entry(&mut self, now: Timestamp) -> HistoryEntry {
        HistoryEntry {
            at: self.time(now),
            from: self.perhaps(Self::state_name),
            to: self.state_name(),
            event: self.one(&EventName::ALL),
            fence: self.fence(),
            attempt: self.attempt(),
            actor: Actor::new(self.one(WORKERS)).expect("an actor"),
            worker_id: None,
            reason: self.perhaps(|dice| dice.one(REASONS).to_owned()),
        }
    }

    fn error(&mut self) -> JobError {
        let message = match self.below(40) {
            0 => "y".repeat(1_024 + self.below(2)),
            _ => self.one(MESSAGES).to_owned(),
        };
        JobError { code: self.one(CODES).to_owned(), message }
    }

    fn hold(&mut self, now: Timestamp) -> Hold {
        let by = Actor::new(self.one(WORKERS)).expect("an actor");
        Hold { at: self.time(now), by, reason: self.perhaps(|dice| dice.one(REASONS).to_owned()) }
    }

    fn job(&mut self, number: usize, now: Timestamp) -> (Arc<Job>, Vec<NewBody>) {
        let name = Self::name("Job", number);
        let (payload, body) = match self.below(6) {
            0 => Body::place(Some(Json::parse(format!("\"{}\"", "p".repeat(self.below(300)))).expect("JSON")), 0),
            _ => (Body::Empty, None),
        };
        let entries = (0..self.below(4)).map(|_| self.entry(now)).collect();
        let job = Job {
            id: JobId::new(name).expect("an id"),
            spec: Arc::new(self.spec(now)),
            payload,
            state: self.state(now),
            run_at: self.time(now),
            expires_at: self.perhaps(|dice| dice.time(now)),
            hold: self.perhaps(|dice| Box::new(dice.hold(now))),
            attempt: self.attempt(),
            fence: self.fence(),
            error: self.perhaps(Self::error),
            history: History::from_parts(entries, self.one(&[0, 0, 7])),
            outbox: (0..self.one(&[0, 0, 2])).map(|number| Notice { number, entry: self.entry(now) }).collect(),
            created_at: self.time(now),
            updated_at: self.time(now),
            started_at: self.perhaps(|dice| dice.time(now)),
        };
        (Arc::new(job), body.into_iter().collect())
    }
}

/// So many jobs, with the bodies that they refer to, around the time `now`; the same for the same seed.
pub(super) fn made_up(seed: u64, count: usize, now: Timestamp) -> Vec<(Arc<Job>, Vec<NewBody>)> {
    let mut dice = Dice(seed);
    (0..count).map(|number| dice.job(number, now)).collect()
}
