//! A manager that is held up between any two of its requests, while another one of the same store goes on.

use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use futures::future::join_all;

use super::*;
use crate::interference::{Gate, Interfered, Interference};

/// More requests than any call here makes.
const MOST_REQUESTS: i64 = 60;

/// How many managers are held up at a time, each over a store of its own.
const AT_ONCE: usize = 10;

pub(super) struct Stop {
    /// How many points are passed before; none is while this is negative.
    pub(super) left: AtomicI64,
    pub(super) gate: Gate,
}

#[async_trait]
impl Interference for Stop {
    async fn between(&self) {
        if self.left.load(Ordering::SeqCst) >= 0 && self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.gate.pass().await;
        }
    }
}

/// Two managers on one store, of which the first can be held up.
pub(super) struct Pair {
    pub(super) store: Arc<dyn Store>,
    pub(super) managers: [Manager; 2],
    pub(super) clock: Arc<ManualClock>,
    stop: Arc<Stop>,
    engine: Box<dyn Engine>,
}

impl Pair {
    pub(super) async fn on(engine: Box<dyn Engine>) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
        let store = engine.store();
        let stop = Arc::new(Stop { left: AtomicI64::new(-1), gate: Gate::default() });
        let managers = [Interfered::around(Arc::clone(&store), &stop), Arc::clone(&store)]
            .map(|store| Manager::start(store, Arc::clone(&clock) as Arc<dyn Clock>, config()));
        Self { store, managers, clock, stop, engine }
    }

    /// Ends the managers, so that another pair can have what the store stands on.
    pub(super) async fn end(self) {
        join_all(self.managers.iter().map(Manager::shutdown)).await;
        self.engine.give_back();
    }

    /// Holds the first manager up after so many points of what it does, runs `meanwhile` then, and lets the first go
    /// on. Returns whether it came to that point, and what it has come to.
    pub(super) async fn stopped_after<T: Send + 'static>(
        &self,
        points: i64,
        first: impl Future<Output = T> + Send + 'static,
        meanwhile: impl Future<Output = ()>,
    ) -> (bool, T) {
        self.stop.left.store(points, Ordering::SeqCst);
        let mut doing = tokio::spawn(first);
        let ended = tokio::select! {
            biased;
            () = self.stop.gate.reached.cancelled() => None,
            ended = &mut doing => Some(ended),
        };
        let is_stopped = ended.is_none();
        let ended = match ended {
            Some(ended) => ended,
            None => {
                meanwhile.await;
                self.stop.gate.open.cancel();
                doing.await
            }
        };
        self.stop.left.store(-1, Ordering::SeqCst);
        (is_stopped, ended.expect("no panic"))
    }
}

/// Runs a case with a stop after each of its points, some at a time, until there are no more. Fails if there are fewer
/// than `least`.
pub(super) async fn at_every_point<F: Future<Output = bool>>(least: usize, run: impl Fn(i64) -> F) {
    let mut stopped = Vec::new();
    for some in (0..MOST_REQUESTS).collect::<Vec<_>>().chunks(AT_ONCE) {
        stopped.extend(join_all(some.iter().map(|points| run(*points))).await);
        if stopped.contains(&false) {
            break;
        }
    }
    let points = stopped.iter().filter(|came| **came).count();
    assert!(points >= least, "what decides and the job are written: {stopped:?}");
    assert!(stopped.contains(&false), "nothing makes so many requests");
}

/// Makes tests of cases that stop a manager at every point: over a model of a shared store, in time that passes at once,
/// and every night on Elasticsearch, where two managers for each point take long.
macro_rules! at_every_point_of {
    ($($case:ident),* $(,)?) => {
        mod stopped_on_model {
            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                super::$case(crate::engines::model).await;
            })*
        }
        mod stopped_on_elasticsearch {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "every night"]
            async fn $case() {
                super::$case(crate::engines::elasticsearch).await;
            })*
        }
    };
}
pub(super) use at_every_point_of;
