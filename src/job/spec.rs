//! What a client submits: the specification of a job.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::body::Json;
use super::conditions::{Concurrency, Conditions, Ordered};
use super::names::{JobId, Kind, OrderingKey, Owner, QueueName, ScheduleId, UniqueKey};
use super::notice::NoticeTarget;
use super::requirement::Requirement;
use super::retry::RetryPolicy;
use super::word_enum::words;
use crate::clock::Timestamp;

/// How urgent a job is within its queue, from −100 to 100; the highest is claimed first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Priority(i8);

impl Priority {
    /// The lowest priority.
    pub const LOWEST: i64 = -100;
    /// The highest priority.
    pub const HIGHEST: i64 = 100;

    /// Makes a priority from a number between −100 and 100; returns `None` for any other number.
    #[must_use]
    pub fn new(value: i64) -> Option<Self> {
        (Self::LOWEST..=Self::HIGHEST).contains(&value).then(|| i8::try_from(value).ok().map(Self)).flatten()
    }

    /// Returns the priority as a number.
    #[must_use]
    pub const fn get(self) -> i8 {
        self.0
    }
}

words! {
    /// What becomes of a job whose lease has expired.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum OrphanPolicy: "an orphan policy", "policies" {
        /// The attempt counts as failed: the job waits for its next one, or fails when none is left.
        #[default]
        Requeue = "requeue",
        /// The job fails.
        Fail = "fail",
        /// The job is flagged as an orphan and left alone until a person decides.
        Flag = "flag",
    }
}

/// What happens when a job's lease expires, and who is notified about the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Oversight {
    /// What happens when the lease expires; if `None`, the policy of the queue applies.
    pub orphan_policy: Option<OrphanPolicy>,
    /// The receivers of notifications about the job.
    pub notify: Vec<NoticeTarget>,
}

/// A due time of a schedule, which belongs to a trigger and to the job that the trigger has submitted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Due {
    /// The schedule.
    pub schedule_id: ScheduleId,
    /// When the schedule was due.
    pub due_at: Timestamp,
}

/// A hash over everything that a client submits. Two submissions under one idempotency key or id are the same if their
/// fingerprints are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub u128);

impl Fingerprint {
    /// Returns the first 16 bytes of a SHA-256 over the specification as JSON, `run_at` and `expires_at` in
    /// milliseconds since the epoch as JSON, and the payload's text as it was sent, each preceded by its length in
    /// bytes (a big-endian 64-bit number). A default that is spelled out gives the same fingerprint as one that is left
    /// out.
    ///
    /// The fingerprint is stored with the job: the JSON must keep its form, or a submission that is repeated after an
    /// update of the program is refused as a different one.
    #[must_use]
    pub fn of(
        spec: &JobSpec,
        payload: Option<&Json>,
        run_at: Option<Timestamp>,
        expires_at: Option<Timestamp>,
    ) -> Self {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(bytes);
        };
        part(serde_json::json!(spec).to_string().as_bytes());
        let times = [run_at, expires_at].map(|time| time.map(Timestamp::as_millis));
        part(serde_json::json!(times).to_string().as_bytes());
        part(payload.map_or("", Json::as_str).as_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        let (high, _) = digest.split_at(16);
        Self(high.iter().fold(0, |value, byte| (value << 8) | u128::from(*byte)))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The part of a job that never changes after the submission, but for what [`Job::edit`](super::Job::edit) changes and
/// for its place in the line of an ordering key, which is another one each time the job returns from its end. Its JSON
/// is part of what the [`Fingerprint`] covers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobSpec {
    /// The queue that the job waits in.
    pub queue: QueueName,
    /// The kind of work, which names the handler.
    pub kind: Kind,
    /// How urgent the job is within its queue.
    pub priority: Priority,
    /// The team or person that the job belongs to, if the submission named one.
    pub owner: Option<Owner>,
    /// The labels that the job can be found by.
    pub labels: BTreeMap<String, String>,
    /// How long an attempt is expected to take, if known; a longer one is overdue.
    pub expected_runtime: Option<Duration>,
    /// How long an attempt may take at most, if there is a limit.
    pub timeout: Option<Duration>,
    /// How many attempts the job gets at most.
    pub max_attempts: u32,
    /// How long the job waits between attempts.
    pub retry: RetryPolicy,
    /// The amount of each resource that the job needs, by the resource's name: `cpu_millis`, `memory_mib`, `gpus`, …
    pub resources: BTreeMap<String, u64>,
    /// What happens when the job's lease expires, and who is notified about the job.
    pub oversight: Oversight,
    /// The due time for which the scheduler has made the job, if it has: nobody else sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<Box<Due>>,
    /// The ended job that this one runs again, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rerun_of: Option<JobId>,
    /// What must hold before the job may be claimed; `None` for a job that asks for nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Box<Conditions>>,
    /// The fingerprint of the submission, if the client can repeat it: under its own id or an idempotency key.
    #[serde(skip)]
    pub fingerprint: Option<Fingerprint>,
}

/// How many specifications a thread knows, to share them.
const MET_LATELY: usize = 256;
type Met = [Option<Arc<JobSpec>>; MET_LATELY];
/// Finds the place of each. It need not be hard to foresee: who makes two meet has them stored twice.
const HASHER: FixedState = FixedState::with_seed(0);

/// The longest name of a resource, in bytes.
pub const MAX_RESOURCE_NAME: usize = 64;
/// A regular expression (ECMA-262) that matches what [`is_resource_name`] accepts, whatever its length.
pub const RESOURCE_NAME_PATTERN: &str = "^[a-zA-Z0-9_-]+$";

/// Returns whether a resource may have this name: 1 to 64 letters (a-z, A-Z), digits, `_` or `-`. It is a field's name
/// in the index and in queries, where a dot would part it.
#[must_use]
pub fn is_resource_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=MAX_RESOURCE_NAME).contains(&name.len()) && name.bytes().all(is_allowed)
}

impl JobSpec {
    /// The number of attempts of a job whose submission names none.
    pub const DEFAULT_MAX_ATTEMPTS: u32 = 3;

    /// Returns what the job requires of a worker.
    #[must_use]
    pub fn requires(&self) -> &[Requirement] {
        self.conditions.as_ref().map_or(&[], |conditions| &conditions.requires)
    }

    /// Returns the key of which only so many jobs run at once, if the job names one.
    #[must_use]
    pub fn concurrency(&self) -> Option<&Concurrency> {
        self.conditions.as_ref()?.concurrency.as_ref()
    }

    /// Returns the key of which at most one job waits or runs, if the job names one.
    #[must_use]
    pub fn unique(&self) -> Option<&UniqueKey> {
        self.conditions.as_ref()?.unique.as_ref()
    }

    /// Returns the key whose jobs run one after another, and the job's place among them, if the job names a key.
    #[must_use]
    pub fn ordering(&self) -> Option<&Ordered> {
        self.conditions.as_ref()?.ordering.as_ref()
    }

    /// Returns the key whose jobs run one after another, if the job names one.
    #[must_use]
    pub fn ordering_key(&self) -> Option<&OrderingKey> {
        self.ordering().map(|ordering| &ordering.key)
    }

    /// Returns whether the job names a key for which something has to be written before the job becomes live.
    #[must_use]
    pub fn is_keyed(&self) -> bool {
        self.conditions.as_ref().is_some_and(|conditions| conditions.unique.is_some() || conditions.ordering.is_some())
    }

    /// Returns the specification with this place in the line of its ordering key; it names one.
    #[must_use]
    pub fn placed(&self, seq: u64, first: u64) -> Self {
        let mut placed = self.clone();
        if let Some(ordering) = placed.conditions.as_mut().and_then(|conditions| conditions.ordering.as_mut()) {
            (ordering.seq, ordering.first) = (seq, first);
        }
        placed
    }

    /// Returns the specification as it is shared by jobs that have the same one, as jobs that are submitted by the
    /// thousand have. Each thread knows those that it has met lately.
    #[must_use]
    pub fn shared(self) -> Arc<Self> {
        thread_local! {
            static MET: RefCell<Met> = const { RefCell::new([const { None }; MET_LATELY]) };
        }
        // It is of one submission.
        if self.fingerprint.is_some() || self.ordering().is_some() {
            return Arc::new(self);
        }
        let Self { queue, kind, priority, owner, labels, .. } = &self;
        let place = HASHER.hash_one((queue, kind, priority, owner, labels)) as usize % MET_LATELY;
        MET.with_borrow_mut(|met| match &met[place] {
            Some(known) if known.is_exactly(&self) => Arc::clone(known),
            _ => Arc::clone(met[place].insert(Arc::new(self))),
        })
    }

    /// Returns whether nothing tells the two apart; `==` takes a zero for its negative.
    pub(crate) fn is_exactly(&self, other: &Self) -> bool {
        let bits = |spec: &Self| [spec.retry.factor, spec.retry.jitter].map(f64::to_bits);
        self == other && bits(self) == bits(other)
    }

    /// Makes a specification with the defaults: priority 0, three attempts with the default waits between them, no
    /// limits, no owner, labels or resources, no receivers of notifications, the queue's orphan policy, no
    /// schedule and no conditions.
    #[must_use]
    pub fn new(queue: QueueName, kind: Kind) -> Self {
        Self {
            queue,
            kind,
            priority: Priority::default(),
            owner: None,
            labels: BTreeMap::new(),
            expected_runtime: None,
            timeout: None,
            max_attempts: Self::DEFAULT_MAX_ATTEMPTS,
            retry: RetryPolicy::default(),
            resources: BTreeMap::new(),
            oversight: Oversight::default(),
            due: None,
            rerun_of: None,
            conditions: None,
            fingerprint: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::ConcurrencyKey;

    #[test]
    fn priorities_end_at_a_hundred() {
        assert_eq!(Priority::new(100).map(Priority::get), Some(100));
        assert_eq!(Priority::new(-100).map(Priority::get), Some(-100));
        assert_eq!(Priority::new(101), None);
        assert_eq!(Priority::new(i64::MIN), None);
    }

    #[test]
    fn a_resource_is_named_by_letters_digits_and_two_signs() {
        for name in ["a", "GPU_0", "4-way", &"x".repeat(MAX_RESOURCE_NAME)] {
            assert!(is_resource_name(name), "{name}");
        }
        for name in ["", "a.b", "a b", "\u{e4}", &"x".repeat(MAX_RESOURCE_NAME + 1)] {
            assert!(!is_resource_name(name), "{name}");
        }
    }

    fn spec() -> JobSpec {
        JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"))
    }

    fn of(spec: &JobSpec) -> Fingerprint {
        Fingerprint::of(spec, None, None, None)
    }

    /// Returns a specification that differs from [`spec`] in every field.
    fn other() -> JobSpec {
        JobSpec {
            queue: QueueName::new("other").expect("a name"),
            kind: Kind::new("other").expect("a name"),
            priority: Priority::new(9).expect("a priority"),
            owner: Some(Owner::new("team").expect("a name")),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            expected_runtime: Some(Duration::from_secs(1)),
            timeout: Some(Duration::from_millis(1_500)),
            max_attempts: 4,
            retry: RetryPolicy { jitter: 0.1, ..RetryPolicy::default() },
            resources: [("gpus".to_owned(), 1)].into(),
            oversight: Oversight { orphan_policy: Some(OrphanPolicy::Flag), notify: Vec::new() },
            due: Some(Box::new(Due {
                schedule_id: ScheduleId::new("nightly").expect("an id"),
                due_at: Timestamp::from_millis(1),
            })),
            rerun_of: Some(JobId::new("first").expect("an id")),
            conditions: Conditions {
                requires: vec!["hw = fpga".parse().expect("a requirement")],
                concurrency: Some(Concurrency { key: ConcurrencyKey::new("db-7").expect("a key"), max: 5 }),
                unique: Some(UniqueKey::new("report-7").expect("a key")),
                ordering: Some(Ordered::without_place(OrderingKey::new("account-7").expect("a key"))),
            }
            .stored(),
            fingerprint: Some(Fingerprint(1)),
        }
    }

    #[test]
    fn equal_specifications_are_shared_and_those_of_one_submission_are_not() {
        assert!(Arc::ptr_eq(&spec().shared(), &spec().shared()));
        assert_eq!(*other().shared(), other());
        assert!(!Arc::ptr_eq(&other().shared(), &other().shared()));
        for number in 0..2 * MET_LATELY {
            let labels = BTreeMap::from([("n".to_owned(), number.to_string())]);
            let spec = JobSpec { labels, ..spec() };
            assert_eq!(*spec.clone().shared(), spec);
        }
        let of = |jitter| JobSpec { retry: RetryPolicy { jitter, ..RetryPolicy::default() }, ..spec() }.shared();
        assert_eq!([0.0, -0.0, 0.0].map(|jitter| of(jitter).retry.jitter.is_sign_negative()), [false, true, false]);
    }

    #[test]
    fn the_fingerprint_sees_every_field() {
        // Destructured, so that a new field does not compile until it is listed below.
        let JobSpec {
            queue,
            kind,
            priority,
            owner,
            labels,
            expected_runtime,
            timeout,
            max_attempts,
            retry,
            resources,
            oversight,
            due,
            rerun_of,
            conditions,
            fingerprint,
        } = other();
        let mut seen = vec![
            of(&spec()),
            of(&JobSpec { queue, ..spec() }),
            of(&JobSpec { kind, ..spec() }),
            of(&JobSpec { priority, ..spec() }),
            of(&JobSpec { owner, ..spec() }),
            of(&JobSpec { labels, ..spec() }),
            of(&JobSpec { expected_runtime, ..spec() }),
            of(&JobSpec { timeout, ..spec() }),
            of(&JobSpec { max_attempts, ..spec() }),
            of(&JobSpec { retry, ..spec() }),
            of(&JobSpec { resources, ..spec() }),
            of(&JobSpec { oversight, ..spec() }),
            of(&JobSpec { due, ..spec() }),
            of(&JobSpec { rerun_of, ..spec() }),
            of(&JobSpec { conditions, ..spec() }),
            Fingerprint::of(&spec(), Json::parse("1".to_owned()).ok().as_ref(), None, None),
            Fingerprint::of(&spec(), None, Some(Timestamp::from_millis(1)), None),
            Fingerprint::of(&spec(), None, None, Some(Timestamp::from_millis(1))),
        ];
        assert_eq!(of(&JobSpec { fingerprint, ..spec() }), of(&spec()), "it is not part of itself");
        let all = seen.len();
        seen.sort_by_key(|fingerprint| fingerprint.0);
        seen.dedup();
        assert_eq!(seen.len(), all, "two of them are alike");
    }

    #[test]
    fn the_fingerprint_is_the_same_in_every_version_of_the_program() {
        let payload = Json::parse("{\"n\": 1.50}".to_owned()).expect("JSON");
        let (run_at, expires_at) = (Timestamp::from_millis(1_000), Timestamp::from_millis(2_000));
        assert_eq!(of(&spec()), Fingerprint(0x37b8_dd55_40ea_0384_3335_cdbc_b450_8000));
        assert_eq!(
            // A submission does not say for which due time it is.
            Fingerprint::of(
                &JobSpec { due: None, rerun_of: None, conditions: None, ..other() },
                Some(&payload),
                Some(run_at),
                Some(expires_at)
            ),
            Fingerprint(0xf581_4ea1_961f_8930_328e_226c_f092_7469)
        );
        assert_eq!(
            // Nor which place in a line it gets.
            of(&JobSpec { conditions: other().conditions, ..spec() }.placed(7, 5)),
            Fingerprint(0x90f5_9616_483f_2ef6_a632_58c1_1456_71d1)
        );
    }
}
