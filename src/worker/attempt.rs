//! One attempt: its handler, its time limit, and its outcome.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinError;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::handler::{Attempt, Ending, Handler, HandlerError};
use super::roster::EndingHandle;
use crate::clock::LONGEST_STEP;
use crate::job::Json;
use crate::manager::Outcome;

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
                () = awake_for(timeout) => ending.end(Ending::TimedOut),
            }
        }
        None => ending.wait().await,
    }
}

/// Waits until this process was awake for so long: what keeps it from running for longer than a second has kept the
/// attempt from running as well.
async fn awake_for(mut left: Duration) {
    while !left.is_zero() {
        let begun = Instant::now();
        sleep(left.min(LONGEST_STEP / 2)).await;
        left = left.saturating_sub(begun.elapsed().min(LONGEST_STEP));
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
        Some(Ending::WorkerStops) => given_back(),
        Some(Ending::Cancelled) => {
            HandlerError::permanent("cancelled", format!("ended as asked: {}", failure.message)).into()
        }
        Some(Ending::TimedOut) => {
            let limit = timeout.unwrap_or_default().as_millis();
            let message = format!("the attempt ran for longer than {limit} ms: {}", failure.message);
            HandlerError::retryable("timeout", message).into()
        }
        Some(Ending::LeaseLost) | None => failure.into(),
    })
}

/// Returns the outcome of an attempt that is ended because the worker stops.
pub(super) fn given_back() -> Outcome {
    Outcome::Released { reason: "the worker stops".to_owned(), delay: Duration::ZERO }
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
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_time_limit_counts_the_time_in_which_the_worker_runs() {
        let limit = tokio::spawn(awake_for(Duration::from_secs(10)));
        sleep(Duration::from_millis(4_100)).await;
        // The machine sleeps, or the worker is stopped.
        tokio::time::advance(Duration::from_secs(600)).await;
        sleep(Duration::from_millis(4_000)).await;
        assert!(!limit.is_finished(), "of the gap a second counts");
        sleep(Duration::from_millis(2_000)).await;
        assert!(limit.is_finished());
    }
}
