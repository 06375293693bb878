//! Records of finished jobs read for a filter: only as much of each is made into a job as the filter asks for.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};

use super::{BodyV1, Corrupt, EntryV1, FORMAT_V1, RecordV1, SpecV1, StateV1, Versioned, decode, decode_as, in_field};
use crate::clock::Timestamp;
use crate::job::{
    Attempt, Body, BodyId, BodyRef, EventName, Fence, History, HistoryEntry, InvalidName, Job, JobError, JobId,
    JobSpec, Kind, Notice, Oversight, Owner, Priority, QueueName, RetryPolicy, State,
};
use crate::query::Filter;
use crate::query::fields::{HISTORY, LABELS};

/// How many names of a sort are kept, so that they need not be made for every job.
const NAMES: usize = 1_024;

/// Reads records for one filter.
pub(in crate::store::embedded) struct Skim<'f> {
    filter: &'f Filter,
    /// Stands in for ids that are not asked for.
    some_id: JobId,
    with_id: bool,
    with_labels: bool,
    with_history: bool,
    queues: Names<QueueName>,
    kinds: Names<Kind>,
    owners: Names<Owner>,
}

impl<'f> Skim<'f> {
    /// One for this filter.
    pub(in crate::store::embedded) fn new(filter: &'f Filter) -> Self {
        let asks_for = |name: &str| {
            let query = filter.query.as_ref();
            query.is_some_and(|query| !query.expression.asks_only(|field| field != name))
        };
        Self {
            filter,
            some_id: JobId::first(),
            with_id: asks_for("id"),
            with_labels: asks_for(LABELS),
            // How long it ran is told by its last entry.
            with_history: asks_for(HISTORY) || asks_for("run_time_ms"),
            queues: Names::default(),
            kinds: Names::default(),
            owners: Names::default(),
        }
    }

    /// The job, whole, if it matches.
    pub(in crate::store::embedded) fn matching(
        &mut self,
        id: &str,
        bytes: &[u8],
    ) -> Result<Option<Versioned>, Corrupt> {
        let broken = |why: String| Corrupt(format!("the record of job {id}: {why}"));
        let name = || JobId::new(id).map_err(|error| Corrupt(format!("the id of a finished job {error}")));
        let short = if self.with_id { name()? } else { self.some_id.clone() };
        let job = if self.with_history {
            let record: RecordV1<'_> = decode_as(FORMAT_V1, bytes).map_err(broken)?;
            let entries = |entries: Vec<EntryV1<'_>>| entries.into_iter().map(EntryV1::into_entry).collect();
            self.job(short, record, entries)
        } else {
            let record: RecordV1<'_, Passed<PassedEntry<'_>>> = decode_as(FORMAT_V1, bytes).map_err(broken)?;
            self.job(short, record, |_| Ok(Vec::new()))
        };
        if !self.filter.matches(&job.map_err(broken)?) {
            return Ok(None);
        }
        decode(&name()?, bytes).map(Some)
    }

    /// What no filter asks for is left out.
    fn job<H>(
        &mut self,
        id: JobId,
        record: RecordV1<'_, H>,
        entries: impl FnOnce(H) -> Result<Vec<HistoryEntry>, String>,
    ) -> Result<Job, String> {
        let untold = record.outbox.into_iter();
        let outbox = untold.map(|(number, entry)| Ok(Notice { number, entry: entry.into_entry()? }));
        Ok(Job {
            id,
            spec: Arc::new(self.spec(record.spec)?),
            payload: size(&record.payload),
            state: match record.state {
                StateV1::Completed { finished_at, result } => {
                    State::Completed { finished_at: Timestamp::from_millis(finished_at), result: size(&result) }
                }
                other => other.into_state()?,
            },
            run_at: Timestamp::from_millis(record.run_at),
            expires_at: record.expires_at.map(Timestamp::from_millis),
            attempt: Attempt::new(record.attempt),
            fence: Fence::new(record.fence),
            error: record
                .error
                .map(|error| JobError { code: error.code.to_owned(), message: error.message.to_owned() }),
            history: History::from_parts(entries(record.history)?, record.folded),
            outbox: outbox.collect::<Result<_, String>>()?,
            created_at: Timestamp::from_millis(record.created_at),
            updated_at: Timestamp::from_millis(record.updated_at),
            started_at: record.started_at.map(Timestamp::from_millis),
        })
    }

    fn spec(&mut self, spec: SpecV1<'_>) -> Result<JobSpec, String> {
        let labels = if self.with_labels { spec.labels } else { Vec::new() };
        Ok(JobSpec {
            queue: self.queues.get(spec.queue, |text| QueueName::new(text)).map_err(in_field("queue"))?,
            kind: self.kinds.get(spec.kind, |text| Kind::new(text)).map_err(in_field("kind"))?,
            priority: Priority::new(i64::from(spec.priority)).ok_or("a priority is out of bounds")?,
            owner: spec
                .owner
                .map(|owner| self.owners.get(owner, |text| Owner::new(text)))
                .transpose()
                .map_err(in_field("owner"))?,
            labels: labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            expected_runtime: spec.expected_runtime,
            timeout: spec.timeout,
            max_attempts: spec.max_attempts,
            retry: RetryPolicy::default(),
            resources: BTreeMap::new(),
            oversight: Oversight { orphan_policy: spec.orphan_policy, notify: Vec::new() },
            fingerprint: None,
        })
    }
}

/// A body as far as it can be asked for: how long it is, if it is kept apart.
fn size(body: &BodyV1<'_>) -> Body {
    match *body {
        BodyV1::Empty | BodyV1::Inline(_) => Body::Empty,
        BodyV1::Stored { id, bytes } => Body::Stored(BodyRef { id: BodyId(uuid::Uuid::from_bytes(id)), bytes }),
    }
}

/// Names that were made before.
struct Names<T>(HashMap<Box<str>, T>);

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Clone> Names<T> {
    fn get(&mut self, text: &str, name: impl Fn(&str) -> Result<T, InvalidName>) -> Result<T, InvalidName> {
        if let Some(known) = self.0.get(text) {
            return Ok(known.clone());
        }
        let made = name(text)?;
        if self.0.len() >= NAMES {
            self.0.clear();
        }
        self.0.insert(text.into(), made.clone());
        Ok(made)
    }
}

/// A list that is read and not kept.
struct Passed<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Passed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Passing<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Passing<T> {
            type Value = Passed<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                while list.next_element::<T>()?.is_some() {}
                Ok(Passed(PhantomData))
            }
        }

        deserializer.deserialize_seq(Passing(PhantomData))
    }
}

/// An [`EntryV1`] whose texts are not looked at.
#[derive(serde::Deserialize)]
#[expect(dead_code, reason = "it is read to get past it")]
struct PassedEntry<'a> {
    at: i64,
    from: Option<u8>,
    to: u8,
    fence: u64,
    attempt: u32,
    event: EventName,
    actor: &'a [u8],
    reason: Option<&'a [u8]>,
}
