//! Simulations: what `hold` does with whole servers, with managers in memory over the model engine, in time that
//! passes at once, and from many seeds.
//!
//! A seed makes up what befalls each call and each process. It makes up the same again, but for what the program itself
//! leaves to chance: the order of its hash maps, ids that it generates, and which of several ready futures is polled
//! first. What must hold is checked at each write, by whoever watches the model, and once more at the end.
//!
//! What takes part is all that a server has but its sockets: the manager, and the scans of the monitor that leads. The
//! monitor's timetable goes by the machine's clock, so its scans are run here as its leadership allows.

mod crew;
mod duplicates;
mod limits;
mod lines;
mod notifications;
mod schedules;
mod sharing;

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, Timestamp};
use leasehold::manager::{Manager, ManagerConfig};
use leasehold::monitor::leader::Leader;
use leasehold::monitor::{MonitorConfig, Scan, Scans};
use leasehold::store::Store;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

use crate::machine::Budget;
use crate::model_engine::{Handle, Model, Odds, Spoilt};
use crate::{machine, seed};

/// The longest that a simulation takes in its own time.
const BOUND: Duration = Duration::from_secs(900);

/// How long a call of a client may take until the client gives it up.
const PATIENCE: Duration = Duration::from_secs(4);

/// The time between two scans of a monitor that leads.
const SCANNED_EVERY: Duration = Duration::from_millis(500);

/// How long searches lag.
const LAG: Duration = Duration::from_millis(800);

/// With so many seeds each simulation notices a store that does something wrong; fewer are never run.
const NOTICED_WITHIN: u64 = 20;

/// 2030-03-17T17:46:40Z
const START: i64 = 1_900_000_000_000;

/// What a simulation is made of.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    /// What the model does wrong, where the simulation is to notice it.
    spoilt: Option<Spoilt>,
}

/// Runs a simulation with as many seeds as a budget allows, or with the one that the environment names.
fn each_seed<S: Future<Output = ()>>(simulate: impl Fn(Plan) -> S) {
    let _share = machine::with_others();
    let run = |seed| run(Plan { seed, spoilt: None }, &simulate);
    if let Some(named) = seed::named() {
        return run(named);
    }
    // The same seeds for every change; the nightly script asks for more, which are others each time.
    let first = if machine::effort() > 1 { rand::random() } else { seed::usual() };
    let budget = Budget::begin();
    let mut ran = 0;
    while ran < NOTICED_WITHIN || budget.is_left() {
        run(first.wrapping_add(ran));
        ran += 1;
    }
    println!("{ran} seeds");
}

/// Runs a simulation over models that do something wrong, and fails if it does not notice that in time.
fn notices<S: Future<Output = ()>>(spoilt: Spoilt, simulate: impl Fn(Plan) -> S) {
    let _share = machine::with_others();
    for seed in 0..NOTICED_WITHIN {
        let ends = std::panic::AssertUnwindSafe(|| run(Plan { seed, spoilt: Some(spoilt) }, &simulate));
        if std::panic::catch_unwind(ends).is_err() {
            println!("{spoilt:?} is noticed with the seed {seed}");
            return;
        }
    }
    panic!("{spoilt:?} is not noticed with {NOTICED_WITHIN} seeds");
}

fn run<S: Future<Output = ()>>(plan: Plan, simulate: impl Fn(Plan) -> S) {
    let _named = Named(plan.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let ended = runtime.block_on(async { timeout(BOUND, simulate(plan)).await });
    ended.expect("it ends in time");
}

/// Names the seed of a simulation that fails.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}={} makes up the same again", seed::VARIABLE, self.0);
        }
    }
}

/// The time that a simulation shows: tokio's, from a fixed start.
struct SimulatedClock {
    begun: Instant,
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(START).plus(self.begun.elapsed())
    }
}

/// A process of the program: what a server has but its sockets.
struct Process {
    handle: Arc<Handle>,
    manager: Manager,
}

impl Process {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.handle) as Arc<dyn Store>
    }

    /// What a client hears of a call: nothing when the process ends meanwhile, or does not answer in time.
    async fn call<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        let answered = async {
            self.handle.lives().await;
            let answer = call.await;
            self.handle.lives().await;
            answer
        };
        tokio::select! {
            biased;
            () = self.handle.dies() => None,
            answer = timeout(PATIENCE, answered) => answer.ok(),
        }
    }
}

/// The processes that share a model, and the dice of a seed.
struct Site {
    seed: u64,
    model: Model,
    clock: Arc<dyn Clock>,
    odds: Odds,
    running: Mutex<Vec<Arc<Process>>>,
    started: Mutex<u64>,
    /// What is started in each process beside its manager.
    also: fn(&Site, &Process),
}

impl Site {
    /// Starts so many processes.
    fn new(plan: Plan, processes: usize, also: fn(&Site, &Process)) -> Arc<Self> {
        let model = Model::new(LAG);
        if let Some(spoilt) = plan.spoilt {
            model.spoil(spoilt);
        }
        let site = Arc::new(Self {
            seed: plan.seed,
            model,
            clock: Arc::new(SimulatedClock { begun: Instant::now() }),
            odds: Odds::OFTEN,
            running: Mutex::default(),
            started: Mutex::default(),
            also,
        });
        (0..processes).for_each(|_| site.start());
        site
    }

    /// Starts one more process.
    fn start(&self) {
        let number = {
            let mut started = self.started.lock();
            *started += 1;
            *started
        };
        let handle = self.model.handle(self.odds, self.dice(number).random());
        let store = Arc::clone(&handle) as Arc<dyn Store>;
        let manager = Manager::start(store, Arc::clone(&self.clock), ManagerConfig::default());
        let process = Arc::new(Process { handle, manager });
        tokio::spawn(scan(Arc::clone(&process), Arc::clone(&self.clock)));
        (self.also)(self, &process);
        self.running.lock().push(process);
    }

    /// The dice of one of those who take part: each has its own, so that what one does changes nothing for others.
    fn dice(&self, number: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// One of the processes, as clients number them.
    fn process(&self, number: usize) -> Arc<Process> {
        let running = self.running.lock();
        Arc::clone(&running[number % running.len()])
    }

    /// Kills processes, which are started again, and lets others stand still, so many times in all.
    async fn disturb(&self, times: usize) {
        let mut dice = self.dice(u64::MAX);
        for _ in 0..times {
            sleep(Duration::from_millis(dice.random_range(200..1_500))).await;
            let victim = dice.random_range(0..self.running.lock().len());
            if dice.random_ratio(1, 2) {
                self.kill(victim);
                sleep(Duration::from_millis(dice.random_range(0..1_000))).await;
                self.start();
            } else {
                self.freeze(victim, Duration::from_millis(dice.random_range(500..6_000)));
            }
        }
    }

    fn kill(&self, victim: usize) {
        let killed = self.running.lock().remove(victim);
        killed.handle.kill();
    }

    fn freeze(&self, victim: usize, lasts: Duration) {
        let handle = Arc::clone(&self.process(victim).handle);
        handle.freeze(true);
        tokio::spawn(async move {
            sleep(lasts).await;
            handle.freeze(false);
        });
    }

    /// Waits until what is asked for has come about, and fails once something was seen that must not be.
    async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + BOUND / 2;
        while !is_so() {
            self.check();
            assert!(Instant::now() < deadline, "never: {what}; there are {:#?}", self.left());
            sleep(Duration::from_millis(100)).await;
        }
        self.check();
    }

    /// The jobs that have not ended.
    fn left(&self) -> Vec<Arc<leasehold::job::Job>> {
        self.model.jobs().into_iter().filter(|job| !job.state.name().is_final()).collect()
    }

    fn check(&self) {
        if let Some(violation) = self.model.violation() {
            panic!("{violation}");
        }
    }
}

/// Stands for the lead of the monitors, and recovers jobs while it leads.
async fn scan(process: Arc<Process>, clock: Arc<dyn Clock>) {
    let config = MonitorConfig {
        orphan_grace: Duration::from_millis(500),
        clock_skew: Some(Duration::ZERO),
        ..MonitorConfig::default()
    };
    let monotonic = || Instant::now().into_std();
    let term = Duration::from_secs(2);
    let mut leader = Leader::timed_by(process.store(), Arc::clone(&clock), term, Arc::new(monotonic));
    let leadership = leader.leadership();
    let scans = Scans::new(process.manager.clone(), &config, false);
    while !process.handle.is_dead() {
        // What fails is tried again with the next round.
        drop(leader.step().await);
        for which in [Scan::Recovery, Scan::Watch] {
            let may_act = || leadership.holds_at(monotonic());
            if may_act() {
                drop(scans.run_while(which, clock.now(), &may_act).await);
            }
        }
        sleep(SCANNED_EVERY).await;
    }
}

/// Starts nothing beside the manager.
fn nothing(_: &Site, _: &Process) {}
