//! Random interleavings of what clients and the mover do, the mover dying where it likes, held against a map: at every
//! moment each job is found once and is what was last acknowledged.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold::job::{Job, JobSpec, Priority, State};
use leasehold::store::{Version, Write, WriteError};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use super::interrupted::MANY;
use super::{HOUR, Site, end, on_both, retried};
use crate::store::sample::{id, plain_spec, queue, submit};

on_both!([every_night_on_opensearch] each_job_is_in_one_place_whatever_happens_in_whatever_order);

/// How many sequences are tried.
const SEQUENCES: u32 = 12;
/// Few ids, so that things meet.
const IDS: u8 = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    Submit(u8),
    Finish(u8),
    Retry(u8),
    Remove(u8),
    /// A retry and a removal under a version that the job had before.
    Outdated(u8),
    /// A run of the mover, so many hours later, that dies after so many requests.
    Move {
        hours: u32,
        requests: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let requests = prop_oneof![2 => Just(MANY), 3 => 2..10_u64];
    let step = prop_oneof![
        3 => (0..IDS).prop_map(Step::Submit),
        4 => (0..IDS).prop_map(Step::Finish),
        2 => (0..IDS).prop_map(Step::Retry),
        1 => (0..IDS).prop_map(Step::Remove),
        1 => (0..IDS).prop_map(Step::Outdated),
        5 => (0..3_u32, requests).prop_map(|(hours, requests)| Step::Move { hours, requests }),
    ];
    prop::collection::vec(step, 8..28)
}

async fn each_job_is_in_one_place_whatever_happens_in_whatever_order(site: Site) {
    let handle = Handle::current();
    let config = Config {
        cases: SEQUENCES,
        max_shrink_iters: 40,
        failure_persistence: None,
        rng_seed: crate::seed::of_cases(),
        ..Config::default()
    };
    let clock = std::sync::atomic::AtomicU32::new(1);
    let outcome = block_in_place(|| {
        TestRunner::new(config).run(&steps(), |steps| {
            let hours = clock.load(std::sync::atomic::Ordering::Relaxed);
            let mut model = Model { site: &site, jobs: BTreeMap::new(), before: BTreeMap::new(), hours, made: 0 };
            let outcome = handle.block_on(model.run(&steps));
            clock.store(model.hours + 2, std::sync::atomic::Ordering::Relaxed);
            outcome
        })
    });
    outcome.expect("the store agrees with the model");
}

struct Model<'a> {
    site: &'a Site,
    /// The jobs as they should be.
    jobs: BTreeMap<u8, Arc<Job>>,
    /// A version that each had before.
    before: BTreeMap<u8, Version>,
    hours: u32,
    made: i64,
}

impl Model<'_> {
    async fn run(&mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        let outcome = self.try_all(steps).await;
        // The next sequence begins with nothing, also after one that failed.
        for number in 0..IDS {
            if let Some(found) = self.site.get(&id(&format!("{number}"))).await {
                let removal = Write::Remove { job: found.job, expected: found.version };
                self.site.write(removal).await.expect("removed");
            }
        }
        self.site.archive(self.hours + 1).await;
        outcome?;
        prop_assert_eq!(self.site.whole().await.len(), 0);
        Ok(())
    }

    async fn try_all(&mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        for step in steps {
            self.take(*step).await?;
            for number in 0..IDS {
                let found = self.site.get(&id(&format!("{number}"))).await.map(|found| found.job);
                prop_assert_eq!(found.as_ref(), self.jobs.get(&number), "after {:?}", step);
            }
        }
        self.site.archive(self.hours).await;
        self.site.archive(self.hours + 1).await;
        self.hours += 1;
        let found: Vec<Arc<Job>> = self.site.whole().await.into_values().map(|found| found.job).collect();
        prop_assert_eq!(found, self.jobs.values().cloned().collect::<Vec<_>>());
        self.site.counts(self.jobs.len() as u64).await;
        Ok(())
    }

    async fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        let now = self.site.now.plus(self.hours * HOUR);
        match step {
            Step::Move { hours, requests } => {
                self.hours += hours;
                self.site.move_until(requests, self.hours).await;
            }
            Step::Submit(number) => self.submit(number).await?,
            Step::Finish(number) => {
                self.change(number, |job| (job.state == State::Available).then(|| end(job, now))).await;
            }
            Step::Retry(number) => {
                let ended = |job: &Job| job.state.name().is_final();
                self.change(number, |job| ended(job).then(|| retried(job, now))).await;
            }
            Step::Remove(number) => {
                if let Some(job) = self.jobs.remove(&number) {
                    let expected = self.version(number).await;
                    self.site.write(Write::Remove { job, expected }).await.expect("the version is current");
                    self.before.insert(number, expected);
                }
            }
            Step::Outdated(number) => self.outdated(number).await?,
        }
        Ok(())
    }

    async fn submit(&mut self, number: u8) -> Result<(), TestCaseError> {
        self.made += 1;
        let priority = Priority::new(self.made % 100).expect("a priority");
        let spec = JobSpec { queue: queue("model"), priority, ..plain_spec() };
        let job = Arc::new(submit(&format!("{number}"), spec, self.site.now, self.site.now));
        let answer = self.site.write(Write::Create { job: job.clone(), bodies: vec![] }).await;
        match (answer, self.jobs.get(&number)) {
            (Ok(_), None) => {
                self.jobs.insert(number, job);
            }
            (Err(WriteError::Conflict(Some(current))), Some(existing)) => prop_assert_eq!(&current.job, existing),
            (answer, existing) => prop_assert!(false, "{:?} where there was {:?}", answer, existing),
        }
        Ok(())
    }

    async fn change(&mut self, number: u8, change: impl FnOnce(&Job) -> Option<Arc<Job>>) {
        let Some(job) = self.jobs.get(&number).and_then(|job| change(job)) else { return };
        let expected = self.version(number).await;
        let write = Write::Replace { job: job.clone(), expected, bodies: vec![] };
        self.site.write(write).await.expect("the version is current");
        self.before.insert(number, expected);
        self.jobs.insert(number, job);
    }

    async fn outdated(&mut self, number: u8) -> Result<(), TestCaseError> {
        let (Some(expected), Some(job)) = (self.before.get(&number).copied(), self.jobs.get(&number)) else {
            return Ok(());
        };
        let writes = [
            Write::Replace { job: job.clone(), expected, bodies: vec![] },
            Write::Remove { job: job.clone(), expected },
        ];
        for write in writes {
            match self.site.write(write).await {
                Err(WriteError::Conflict(Some(current))) => prop_assert_eq!(&current.job, job),
                answer => prop_assert!(false, "an outdated version was answered with {:?}", answer),
            }
        }
        Ok(())
    }

    async fn version(&self, number: u8) -> Version {
        self.site.get(&id(&format!("{number}"))).await.expect("the model has it").version
    }
}
