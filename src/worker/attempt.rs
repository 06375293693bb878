//! One attempt: its handler, its time limit, and its outcome.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::task::JoinError;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::handler::{Attempt, Ending, Handler, HandlerError};
use super::roster::EndingHandle;
use crate::clock::{AwakeClock, Clock, LONGEST_STEP, SystemClock};
use crate::job::Json;
use crate::manager::Outcome;

/// The reason of a release without an attempt.
pub(crate) const NOT_BEGUN: &str = "the worker stops, and did not begin it";

/// The handler's result or panic; `None` when it did not end in time.
type Answer = Option<Result<Result<Option<Json>, HandlerError>, JoinError>>;

/// Runs an attempt to its end and returns its outcome, or `None` when the lease was lost, since the service would
/// refuse an outcome.
///
/// A handler that was requested to end has `grace` to do so; then it is dropped.
pub(super) async fn run(
    handler: Arc<dyn Handler>,
    attempt: Attempt,
    ending: &EndingHandle,
    grace: Duration,
) -> Option<Outcome> {
    let timeout = attempt.job.timeout;
    let mut task = AbortOnDropHandle::new(tokio::spawn(async move { handler.run(attempt).await }));
    let answer = tokio::select! {
        answer = &mut task => Some(answer),
        () = end_called_for(ending, timeout) => tokio::time::timeout(grace, task).await.ok(),
    };
    outcome(ending.said(), answer, timeout)
}

/// Waits until the attempt is ended by its handle or by the time limit.
async fn end_called_for(ending: &EndingHandle, timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => {
            tokio::select! {
                () = ending.wait() => {}
                () = awake_for(timeout, &**AWAKE) => ending.end(Ending::TimedOut),
            }
        }
        None => ending.wait().await,
    }
}

/// How long this process was awake. A thread of its own counts that: a handler that holds up the runtime runs.
static AWAKE: LazyLock<Arc<AwakeClock>> = LazyLock::new(|| AwakeClock::start(Arc::new(SystemClock::default())));

/// Waits until this process was awake for so long: what keeps it from running for longer than a second has kept the
/// attempt from running as well.
async fn awake_for(limit: Duration, clock: &dyn Clock) {
    let since = clock.awake().now();
    loop {
        let left = limit.saturating_sub(clock.awake().now().since(since));
        if left.is_zero() {
            return;
        }
        sleep(left.min(LONGEST_STEP / 2)).await;
    }
}

/// Returns the outcome of an attempt. Completed work counts even when the attempt was requested to end meanwhile; a
/// failure gets the reason for which the attempt was ended.
fn outcome(ending: Option<Ending>, answer: Answer, timeout: Option<Duration>) -> Option<Outcome> {
    if ending == Some(Ending::LeaseLost) {
        return None;
    }
    let failure = match answer {
        Some(Ok(Ok(result))) => return Some(Outcome::Completed { result }),
        Some(Ok(Err(failure))) => failure,
        Some(Err(panic)) => HandlerError::retryable("panic", panic_message(panic)),
        None => HandlerError::retryable("unresponsive", "the handler did not end when it was asked to"),
    };
    Some(match ending {
        // What the handler itself has put off had not begun.
        Some(Ending::WorkerStops) if !failure.not_begun => given_back(),
        Some(Ending::Cancelled) => {
            HandlerError::permanent("cancelled", format!("ended as asked: {}", failure.message)).into()
        }
        Some(Ending::TimedOut) => {
            let limit = timeout.unwrap_or_default().as_millis();
            let message = format!("the attempt ran for longer than {limit} ms: {}", failure.message);
            HandlerError::retryable("timeout", message).into()
        }
        Some(Ending::WorkerStops | Ending::LeaseLost) | None => failure.into(),
    })
}

/// Returns the outcome of an attempt that is ended because the worker stops. It had begun, and may have done its work.
fn given_back() -> Outcome {
    Outcome::Released { reason: "the worker stops".to_owned(), delay: Duration::ZERO }
}

/// Returns the outcome of a job that came to a worker that stops.
pub(super) fn not_begun() -> Outcome {
    Outcome::Released { reason: NOT_BEGUN.to_owned(), delay: Duration::ZERO }
}

fn panic_message(error: JoinError) -> String {
    let said = error.try_into_panic().ok().and_then(|panic| {
        let literal = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        literal.or_else(|| panic.downcast_ref::<String>().cloned())
    });
    format!("the handler panicked: {}", said.as_deref().unwrap_or("it did not say why"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    use tokio::time::timeout;

    use super::*;
    use crate::clock::{ManualClock, Timestamp};

    #[tokio::test(start_paused = true)]
    async fn a_time_limit_counts_the_time_in_which_the_worker_runs() {
        let (passed, start) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let millis = Arc::clone(&passed);
        let monotonic = move || start + Duration::from_millis(millis.load(Ordering::SeqCst));
        let wall = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
        let clock = Arc::new(AwakeClock::timed_by(wall, Arc::new(monotonic)));
        let of_limit = Arc::clone(&clock);
        let limit = tokio::spawn(async move { awake_for(Duration::from_secs(10), &*of_limit).await });
        let run = async |millis: u64| {
            for _ in 0..millis / 100 {
                passed.fetch_add(100, Ordering::SeqCst);
                clock.tick();
                sleep(Duration::from_millis(100)).await;
            }
        };
        run(4_100).await;
        // The machine sleeps, or the worker is stopped.
        passed.fetch_add(600_000, Ordering::SeqCst);
        run(4_000).await;
        assert!(!limit.is_finished(), "of the gap a second counts");
        run(2_000).await;
        assert!(limit.is_finished());
    }

    #[tokio::test]
    async fn a_handler_that_holds_up_the_runtime_has_no_more_time_for_that() {
        let limit = tokio::spawn(awake_for(Duration::from_secs(2), &**AWAKE));
        tokio::task::yield_now().await;
        std::thread::sleep(Duration::from_secs(3));
        assert!(timeout(Duration::from_millis(500), limit).await.is_ok());
    }
}
