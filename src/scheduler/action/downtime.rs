//! Schedules that call a host which is down for some time, in time that passes at once.

use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::{Instant, sleep};

use super::*;
use crate::scheduler::trigger::retry_within;

/// How much later than its host may be called a trigger may come: it waits for a place, and looks again.
const SLACK: Duration = Duration::from_millis(1_500);

/// The time that tokio shows.
struct Passing(Instant);

impl Clock for Passing {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_900_000_000_000).plus(self.0.elapsed())
    }
}

/// A host that is down until some time, and those who call it.
struct World {
    hosts: Hosts,
    clock: Passing,
    up_at: Timestamp,
    /// When each call began.
    calls: Mutex<Vec<Timestamp>>,
    ends: Mutex<Vec<(Timestamp, Timestamp, Option<MissReason>)>>,
}

impl World {
    /// Performs one trigger as [`Actions`] does, with the tries of its job.
    async fn perform(&self, schedule: usize, margin: Duration, seed: u64) {
        let (mut random, due) = (StdRng::seed_from_u64(seed), self.clock.now());
        let until = Until { at: due.plus(margin), is_missed_then: true };
        let mut attempt = 1;
        let mut reason = None;
        while self.clock.now() <= until.at {
            let party = Party::new(None, &schedule.to_string());
            let caller = HostCaller { host: "a", party, margin, until: until.at };
            let admission = self.hosts.admit(&caller, &self.clock).await;
            let now = self.clock.now();
            let wait = match admission {
                Admission::Call(place) => {
                    self.calls.lock().push(now);
                    sleep(Duration::from_millis(random.random_range(0..30))).await;
                    let heard = if now < self.up_at { Heard::NoConnection } else { Heard::Answer };
                    self.hosts.ended(place, heard, self.clock.now());
                    if heard == Heard::Answer {
                        self.ends.lock().push((due, now, None));
                        return;
                    }
                    attempt += 1;
                    sleep(retry_within(margin).backoff(attempt - 1, random.random())).await;
                    continue;
                }
                Admission::Later(wait) => (MissReason::Limit, wait),
                Admission::Trying(wait) | Admission::Down(wait) => (MissReason::HostDown, wait.min(LOOK_AGAIN)),
            };
            reason = Some(wait.0);
            sleep(until.look_again_after(wait.1, until.at.since(now))).await;
        }
        self.ends.lock().push((due, until.at, reason));
    }
}

/// Lets schedules with these margins and distances call a host that is down for so long. Returns for how long it was
/// up before it was called.
async fn run(seed: u64, down: Duration, schedules: &[(Duration, Duration)]) -> Duration {
    let clock = Passing(Instant::now());
    let up_at = clock.now().plus(down);
    let world = World { hosts: Hosts::new(512, 128), clock, up_at, calls: Mutex::default(), ends: Mutex::default() };
    let (world, mut tasks) = (Arc::new(world), Vec::new());
    for (number, (margin, every)) in schedules.iter().copied().enumerate() {
        let world = Arc::clone(&world);
        tasks.push(tokio::spawn(async move {
            let mut triggers = Vec::new();
            while world.clock.now() < world.up_at.plus(every) {
                let one = Arc::clone(&world);
                triggers.push(tokio::spawn(async move { one.perform(number, margin, seed).await }));
                sleep(every).await;
            }
            for trigger in triggers {
                trigger.await.expect("it ends");
            }
        }));
    }
    for task in tasks {
        task.await.expect("it ends");
    }
    let first = world.calls.lock().iter().copied().filter(|call| *call >= up_at).min().expect("it is called");
    let settled = first.plus(LOOK_AGAIN + SLACK);
    for (due, end, missed) in world.ends.lock().iter() {
        let is_in_time = *end >= settled || (*due > first && missed.is_some());
        assert!(missed.is_none() || !is_in_time, "seed {seed}: due {due} was missed at {end}, {first} was called");
    }
    first.since(up_at)
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_back_is_called_within_a_quarter_of_the_margins_that_wait() {
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let down = Duration::from_millis(random.random_range(10_000..700_000));
        let schedules: Vec<(Duration, Duration)> = (0..random.random_range(1..5))
            .map(|_| {
                let margin = random.random_range(2_000..120_000_u64);
                // There is always one that waits.
                (Duration::from_millis(margin), Duration::from_millis(margin / random.random_range(2..8)))
            })
            .collect();
        let smallest = schedules.iter().map(|(margin, _)| *margin).min().unwrap_or_default();
        let after = run(seed, down, &schedules).await;
        let most = (smallest / 4).max(Duration::from_secs(1)) + SLACK;
        assert!(after <= most, "seed {seed}: {schedules:?} called after {after:?}, down for {down:?}");
    }
}

/// The first call came 62 s after a downtime of 200 s, and 223 s after one of 600 s.
#[tokio::test(start_paused = true)]
async fn margins_of_a_minute_do_not_run_out_after_long_downtimes() {
    for down in [200, 600, 3_600] {
        let every_half_minute = (Duration::from_secs(60), Duration::from_secs(30));
        let after = run(1, Duration::from_secs(down), &[every_half_minute]).await;
        assert!(after <= Duration::from_secs(15) + SLACK, "{down}: {after:?}");
    }
}
