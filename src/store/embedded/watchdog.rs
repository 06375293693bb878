//! The watchdog: a thread of its own that notices when the store hangs, whichever of its threads does so and why.
//!
//! It looks at the age of the oldest write from its acceptance to its answer, and makes a write of its own where there
//! is none. Beside that it looks at whether the thread of a member that hears the others goes on, and those that write
//! what these send and apply what they agree on, since a member that does not lead has no writes. It takes no lock in
//! which another thread does more than to count, so that it hangs with none of them.
//!
//! Want of a majority and want of room are no hangs. A leader that hears no majority ceases to lead within two seconds,
//! which answers its writes. One that is heard by members that acknowledge nothing, since they receive a whole state,
//! leads on, and its writes wait: it has a word of its own for that. Without room writes are refused.
//!
//! What it has found is acted on before a line of the log says so, which another thread writes: the log may be read
//! by nobody any more.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::exits::{FailOnExit, log_aside};
use super::periodic::Periodic;
use super::writer::Queue;
use crate::clock::{LONGEST_STEP, TICK};
use crate::store::Member as _;
use rules::{Rules, Seen, Times};

mod rules;

/// Starts the watchdog, to which a write hangs that has not come any further for so long. It ends by itself when the
/// engine is gone.
///
/// # Errors
/// An error when the thread cannot be started.
pub(super) fn start(
    engine: Weak<Engine>,
    queue: Arc<Queue>,
    hangs_after: Duration,
    guard: FailOnExit,
) -> io::Result<Periodic> {
    let times = Times::of(hangs_after);
    let (mut rules, mut looked) = (Rules::new(times), Instant::now());
    Periodic::start("store-watchdog", TICK, guard, move || {
        let Some(engine) = engine.upgrade() else { return false };
        // A process that was stopped has not hung: what is longer than a step has not counted.
        let passed = looked.elapsed().min(LONGEST_STEP);
        looked = Instant::now();
        look(&engine, &queue, &mut rules, passed);
        // Without room there are writes enough, and none is to take what was kept.
        let is_idle = queue.unanswered().idle_for().is_some_and(|idle| idle >= times.tries_after);
        if is_idle && queue.new_jobs_refused().is_none() {
            queue.try_a_write();
        }
        true
    })
}

fn look(engine: &Engine, queue: &Queue, rules: &mut Rules, passed: Duration) {
    let unanswered = queue.unanswered();
    unanswered.go_on(passed);
    let seen = gather(engine, queue);
    let goes_on = rules.goes_on(&seen, passed);
    if goes_on {
        unanswered.moves();
    }
    let seen = if goes_on { Seen { oldest: unanswered.oldest(), applied: None, ..seen } } else { seen };
    // One that has stopped does nothing, and says so itself.
    let hang = rules.judge(&seen, passed).filter(|_| queue.closed().is_none());
    let age = seen.oldest.map_or(Duration::ZERO, |oldest| oldest.age);
    metrics::gauge!("leasehold_store_oldest_write_seconds").set(age.as_secs_f64());
    metrics::gauge!("leasehold_store_hangs").set(if hang.is_some() { 1.0 } else { 0.0 });
    if let Some(exchange) = &engine.exchange {
        exchange.give_up_lead(hang.is_some());
    }
    let why = hang.as_ref().map(|hang| hang.why.clone());
    let (is_change, is_lacking) = (unanswered.note_hang(hang), rules.lacks_majority());
    let is_new = unanswered.note_majority(is_lacking);
    match (is_change, why) {
        (true, Some(why)) => log_aside(move || tracing::error!("the store hangs: {why}")),
        (true, None) if queue.closed().is_none() => log_aside(|| tracing::info!("the store hangs no more")),
        (true, None) | (false, _) => {}
    }
    match (is_new, unanswered.want()) {
        (true, Some(want)) => log_aside(move || tracing::warn!("{want}")),
        (true, None) => log_aside(|| tracing::info!("no write waits for a majority any more")),
        (false, _) => {}
    }
}

fn gather(engine: &Engine, queue: &Queue) -> Seen {
    let oldest = queue.unanswered().oldest();
    let (following, flush) = (engine.agreed.awaited(), *engine.awaited.flush.lock());
    let seen = Seen { oldest, following, flush, append: *engine.awaited.append.lock(), ..Seen::default() };
    // It does nothing while the store is about to begin with the state of another member.
    let takes_part = engine.exchange.as_ref().filter(|_| !engine.gives_way.load(Ordering::Acquire));
    let Some(exchange) = takes_part else { return seen };
    let standing = *exchange.standing().borrow();
    let applied = (standing.applied < standing.committed).then_some(standing.applied);
    Seen { applied, to_write: engine.unwritten.to_write(), ticks: Some(engine.ticks.load(Ordering::Relaxed)), ..seen }
}

#[cfg(test)]
mod tests;
