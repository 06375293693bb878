//! The document of a line: which place is allotted next, and the jobs that the last write of it announced.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::job::{Job, JobId, JobState, Kind, OrderingKey, QueueName};
use crate::manager::announced::Announced;
use crate::query::Filter;
use crate::store::{RecordKey, RecordKind};

/// The first place of a new line.
const FIRST: u64 = 1;

/// A job for which a place is wanted.
#[derive(Clone, Copy)]
pub(in crate::manager) struct Wanted<'a> {
    pub(in crate::manager) job: &'a Job,
    /// Whether the job exists and returns from its end. Else it is created.
    pub(in crate::manager) returns: bool,
}

/// The document of a line. A new line has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Line {
    /// The place that is allotted next.
    pub(super) next: u64,
    /// When the document was written.
    pub(super) at: Timestamp,
    /// The jobs for which the last write of the document allotted the places before the next one, in their order; none
    /// once it is known that they were all created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allotted: Vec<Run>,
}

/// Jobs in a row that have their queue and kind in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    queue: QueueName,
    kind: Kind,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    returns: bool,
    jobs: Vec<JobId>,
}

impl Run {
    fn of(wanted: Wanted<'_>) -> Self {
        let spec = &wanted.job.spec;
        Self { queue: spec.queue.clone(), kind: spec.kind.clone(), returns: wanted.returns, jobs: Vec::new() }
    }

    fn is_of(&self, wanted: Wanted<'_>) -> bool {
        let spec = &wanted.job.spec;
        self.queue == spec.queue && self.kind == spec.kind && self.returns == wanted.returns
    }
}

/// A job that was to have a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) seq: u64,
    pub(super) announced: Announced,
}

impl Entry {
    /// Returns whether the write that was to give the job its place was made, or can be made no more: a job that is
    /// live in another place was not ended as that write takes it to be.
    pub(super) fn is_made(&self, job: &Job) -> bool {
        job.spec.ordering().is_some_and(|ordered| ordered.seq == self.seq) || !job.state.name().is_final()
    }
}

impl Line {
    /// Returns the document in which these jobs have the places from `next` on; `None` for a new line.
    pub(super) fn allot(next: Option<u64>, wanted: &[Wanted<'_>], at: Timestamp) -> Self {
        let mut allotted: Vec<Run> = Vec::new();
        for one in wanted {
            if allotted.last().is_none_or(|run| !run.is_of(*one)) {
                allotted.push(Run::of(*one));
            }
            if let Some(run) = allotted.last_mut() {
                run.jobs.push(one.job.id.clone());
            }
        }
        Self { next: next.unwrap_or(FIRST) + wanted.len() as u64, at, allotted }
    }

    /// Returns the document once all jobs that it announces were created.
    pub(super) fn settled(&self) -> Self {
        Self { allotted: Vec::new(), ..self.clone() }
    }

    /// Returns the places of the jobs that the document announces.
    pub(super) fn places(&self) -> Range<u64> {
        let count: usize = self.allotted.iter().map(|run| run.jobs.len()).sum();
        self.next.saturating_sub(count as u64)..self.next
    }

    /// Returns whether the document announces any of these jobs.
    pub(super) fn announces(&self, jobs: &[&JobId]) -> bool {
        self.allotted.iter().flat_map(|run| &run.jobs).any(|job| jobs.contains(&job))
    }

    /// Returns the jobs that the document announces, in the order of their places.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let jobs = self.allotted.iter().flat_map(|run| run.jobs.iter().map(move |job| (run, job)));
        self.places().zip(jobs).map(|(seq, (run, job))| {
            let Run { queue, kind, returns, .. } = run;
            let (queue, kind) = (queue.clone(), kind.clone());
            let announced = Announced { job: job.clone(), queue, kind, creates: !returns, returns: *returns };
            Entry { seq, announced }
        })
    }
}

/// Returns the filter that selects the jobs among which heads are.
pub(super) fn live() -> Filter {
    Filter { states: vec![JobState::Available, JobState::Running], ..Filter::default() }
}

/// Returns the key of the document of a line.
pub(super) fn record_key(key: &OrderingKey) -> RecordKey {
    RecordKey::new(RecordKind::Line, key.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::job::{Actor, Body, Conditions, JobSpec, Ordered};

    fn job(id: &str, queue: &str) -> Job {
        let at = Timestamp::from_millis(1_000);
        let spec = JobSpec::new(QueueName::new(queue).expect("a name"), Kind::new("k").expect("a name"));
        let ordering = Some(Ordered::without_place(OrderingKey::new("a").expect("a key")));
        let spec = JobSpec { conditions: Conditions { ordering, ..Conditions::default() }.stored(), ..spec };
        let id = JobId::new(id).expect("an id");
        Job::submit(id, Arc::new(spec), Body::Empty, (at, None), &Actor::system("tester"), at)
    }

    #[test]
    fn places_follow_each_other_and_a_document_is_read_as_it_was_written() {
        let jobs = [job("a", "q"), job("b", "q"), job("c", "other"), job("d", "other")];
        let wanted: Vec<Wanted<'_>> = jobs.iter().map(|job| Wanted { job, returns: job.id.as_str() == "d" }).collect();
        let at = Timestamp::from_millis(1_000);
        let first = Line::allot(None, &wanted[..1], at);
        assert_eq!((first.places(), first.next), (1..2, 2));
        let second = Line::allot(Some(first.next), &wanted[1..], at);
        assert_eq!(second.places(), 2..5);
        let text = concat!(
            r#"{"next":5,"at":"1970-01-01T00:00:01.000Z","allotted":[{"queue":"q","kind":"k","jobs":["b"]},"#,
            r#"{"queue":"other","kind":"k","jobs":["c"]},{"queue":"other","kind":"k","returns":true,"jobs":["d"]}]}"#
        );
        assert_eq!(serde_json::to_string(&second).expect("JSON"), text);
        assert_eq!(serde_json::from_str::<Line>(text).expect("a document"), second);
        let entries: Vec<Entry> = second.entries().collect();
        let told: Vec<(u64, &str, bool)> = entries
            .iter()
            .map(|Entry { seq, announced }| (*seq, announced.job.as_str(), announced.returns && !announced.creates))
            .collect();
        assert_eq!(told, [(2, "b", false), (3, "c", false), (4, "d", true)]);
        let settled = second.settled();
        assert_eq!((settled.places(), settled.next, settled.entries().count()), (5..5, 5, 0));
    }

    #[test]
    fn a_write_was_made_if_the_job_has_its_place_or_is_live_in_another() {
        let at = Timestamp::from_millis(1_000);
        let live = job("a", "q");
        let entry = Line::allot(Some(7), &[Wanted { job: &live, returns: true }], at).entries().next().expect("one");
        let ended = |seq: u64| {
            let placed = Job { spec: Arc::new(live.spec.placed(seq, seq)), ..live.clone() };
            match placed.cancel(&Actor::system("tester"), None, at) {
                Ok(crate::job::Change::To(ended)) => *ended,
                other => panic!("it is cancelled: {other:?}"),
            }
        };
        assert!(entry.is_made(&ended(7)) && entry.is_made(&live) && !entry.is_made(&ended(6)));
    }
}
