//! Replays of a load: how long each of its jobs waits where a queue's settings are these.
//!
//! The dispatch is that of a server, and decides for each free place which job is next; only the time is the replay's
//! own, so that a night takes seconds. There is no store: the dispatch knows all jobs that wait. A place that comes
//! free is taken at once, and no job fails. The same load gives the same waits.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use super::admin::queue_settings::QueueSettings;
use super::dispatch::{Dispatch, DispatchConfig, LookupResult, Resources, Rule, Wish};
use super::request::ClaimOrder;
use crate::clock::{Clock, ManualClock, Timestamp, millis};
use crate::job::{Actor, Body, Job, JobId, JobSpec, Offers, QueueName};
use crate::store::{Place, Version, Versioned};

/// When a replay begins, in milliseconds; any time will do.
const START: i64 = 1_893_456_000_000;

/// A job of a load.
#[derive(Clone, Debug)]
pub struct RecordedJob {
    /// How long after the beginning of the load the job is due.
    pub due: Duration,
    /// How long the job runs, whatever it is expected to.
    pub runtime: Duration,
    /// What the job is.
    pub spec: Arc<JobSpec>,
}

/// Returns how long each job of a load waits, from the time at which it is due, where so many jobs run at a time and
/// all queues have these settings. A pause of the queues does not count.
#[must_use]
pub fn replay(load: &[RecordedJob], settings: &QueueSettings, places: usize) -> Vec<Duration> {
    let mut replay = Replay::new(load, settings, places.max(1));
    let mut coming: Vec<usize> = (0..load.len()).collect();
    coming.sort_by_key(|number| load[*number].due);
    let mut coming = coming.into_iter().peekable();
    // Ends: each turn begins with a later moment, at which a job becomes due or ends.
    loop {
        let next_due = coming.peek().map(|number| millis(load[*number].due));
        let Some(now) = next_due.into_iter().chain(replay.next_end()).min() else { return replay.waits };
        replay.go_on_to(now);
        let mut due = Vec::new();
        while let Some(number) = coming.next_if(|number| millis(load[*number].due) <= now) {
            due.push(number);
        }
        replay.add(&due);
        replay.begin();
    }
}

/// A load that is being replayed.
struct Replay<'a> {
    load: &'a [RecordedJob],
    clock: Arc<ManualClock>,
    dispatch: Dispatch,
    queues: Vec<QueueName>,
    /// The time since the beginning, in milliseconds.
    now: u64,
    /// How many more jobs can run now.
    free: usize,
    /// When the jobs that run end.
    ends: BinaryHeap<Reverse<u64>>,
    waits: Vec<Duration>,
}

impl<'a> Replay<'a> {
    fn new(load: &'a [RecordedJob], settings: &QueueSettings, places: usize) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(START)));
        let config = DispatchConfig { capacity: usize::MAX, page: usize::MAX, poll_interval: None };
        let dispatch = Dispatch::new(config, Arc::clone(&clock) as Arc<dyn Clock>);
        let queues: BTreeSet<&QueueName> = load.iter().map(|job| &job.spec.queue).collect();
        let queues: Vec<QueueName> = queues.into_iter().cloned().collect();
        let rule = Rule { order: settings.order(), weights: Arc::new(settings.weights.clone()) };
        dispatch.go_by(queues.iter().map(|queue| (queue.clone(), rule.clone())).collect());
        // The workers ask, and the store has nothing: the jobs are submitted from now on.
        for queue in dispatch.stale(&queues) {
            if let Some(lookup) = dispatch.begin_lookup(queue) {
                dispatch.end_lookup(queue, &lookup, LookupResult::default(), |_| true);
            }
        }
        // A job waits for ever until it begins.
        let waits = vec![Duration::MAX; load.len()];
        Self { load, clock, dispatch, queues, now: 0, free: places, ends: BinaryHeap::new(), waits }
    }

    /// Returns when the next of the jobs that run ends.
    fn next_end(&self) -> Option<u64> {
        self.ends.peek().map(|Reverse(end)| *end)
    }

    /// Lets the time go on, and the jobs end that end by then.
    fn go_on_to(&mut self, now: u64) {
        self.clock.advance(Duration::from_millis(now.saturating_sub(self.now)));
        self.now = now;
        while self.next_end().is_some_and(|end| end <= now) {
            self.ends.pop();
            self.free += 1;
        }
    }

    /// Adds jobs that are due, by their numbers.
    fn add(&self, due: &[usize]) {
        let now = self.clock.now();
        let actor = Actor::system("replay");
        let job = |number: &usize| {
            // Jobs that are due at the same time go in the order of the load.
            let id = JobId::new(format!("{number:012}")).ok()?;
            let spec = Arc::clone(&self.load[*number].spec);
            let job = Job::submit(id, spec, Body::Empty, (now, None), &actor, now);
            let version = Version { place: Place::Main, primary_term: 1, seq_no: 1 };
            Some(Versioned { job: Arc::new(job), version })
        };
        self.dispatch.add(due.iter().filter_map(job));
    }

    /// Begins the jobs that are next, as many as can run.
    fn begin(&mut self) {
        let (resources, labels) = (Resources::new(), Offers::new());
        while self.free > 0 {
            let (queues, order) = (self.queues.as_slice(), &ClaimOrder::Dispatch);
            let wish = Wish { queues, max_jobs: self.free, resources: &resources, labels: &labels, kinds: &[], order };
            let Some(offer) = self.dispatch.take(&wish) else { return };
            for begun in offer.take() {
                self.dispatch.settle(&begun.job.id, None);
                let Ok(number) = begun.job.id.as_str().parse::<usize>() else { continue };
                let RecordedJob { due, runtime, .. } = &self.load[number];
                self.waits[number] = Duration::from_millis(self.now).saturating_sub(*due);
                self.ends.push(Reverse(self.now.saturating_add(millis(*runtime))));
                self.free -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Kind, Owner, Priority};
    use crate::manager::admin::queue_settings::{Fairness, JobOrder};

    fn job(owner: &str, due: u64, runtime: u64, priority: i64) -> RecordedJob {
        let spec = JobSpec {
            owner: Some(Owner::new(owner).expect("a name")),
            priority: Priority::new(priority).expect("a priority"),
            expected_runtime: Some(Duration::from_secs(runtime)),
            ..JobSpec::new(QueueName::system("q"), Kind::system("k"))
        };
        RecordedJob { due: Duration::from_secs(due), runtime: Duration::from_secs(runtime), spec: Arc::new(spec) }
    }

    fn waits(load: &[RecordedJob], settings: &QueueSettings, places: usize) -> Vec<u64> {
        replay(load, settings, places).into_iter().map(|wait| wait.as_secs()).collect()
    }

    #[test]
    fn by_default_each_waits_for_those_before_it_and_the_most_urgent_goes_first() {
        let load = [job("a", 0, 10, 0), job("a", 1, 10, 0), job("b", 2, 10, 0), job("b", 3, 10, 5)];
        assert_eq!(waits(&load, &QueueSettings::default(), 1), [0, 19, 28, 7]);
        assert_eq!(waits(&load, &QueueSettings::default(), 2), [0, 0, 9, 7]);
        assert_eq!(waits(&load, &QueueSettings::default(), 9), [0, 0, 0, 0]);
        assert!(waits(&[], &QueueSettings::default(), 1).is_empty());
    }

    #[test]
    fn an_owner_of_few_jobs_waits_less_where_owners_take_turns() {
        let load: Vec<RecordedJob> =
            (0..50).map(|_| job("many", 0, 10, 0)).chain((0..2).map(|_| job("few", 5, 10, 0))).collect();
        let few = |settings: &QueueSettings| waits(&load, settings, 1)[50..].to_vec();
        assert_eq!(few(&QueueSettings::default()), [495, 505]);
        let fair = QueueSettings { fairness: Fairness::Owner, ..QueueSettings::default() };
        assert_eq!(few(&fair), [5, 25]);
    }

    #[test]
    fn of_thousands_that_are_due_at_once_each_begins() {
        let load: Vec<RecordedJob> = (0..20_000).map(|_| job("a", 0, 1, 0)).collect();
        let expected: Vec<u64> = (0..20_000).map(|number| number / 4).collect();
        assert_eq!(waits(&load, &QueueSettings::default(), 4), expected);
        let fair = QueueSettings { fairness: Fairness::OwnerRuntime, ..QueueSettings::default() };
        assert_eq!(waits(&load, &fair, 4), expected);
    }

    #[test]
    fn shorter_jobs_go_first_and_what_is_idle_is_passed_over() {
        let shortest = QueueSettings { order: JobOrder::Shortest, ..QueueSettings::default() };
        let load = [job("a", 0, 100, 0), job("a", 10, 50, 0), job("a", 20, 5, 0), job("a", 100_000, 1, 0)];
        assert_eq!(waits(&load, &shortest, 1), [0, 95, 80, 0]);
    }
}
