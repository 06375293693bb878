//! Waits between tries that have no other bound.

use std::time::Duration;

use backon::ExponentialBuilder;

/// The wait after the first failure.
const FIRST: Duration = Duration::from_millis(70);
/// The longest wait, to which chance adds as much again at most.
pub(super) const LONGEST: Duration = Duration::from_secs(3);

/// Waits without end, each about twice as long as the one before.
pub(crate) fn waits() -> ExponentialBuilder {
    ExponentialBuilder::default().with_min_delay(FIRST).with_max_delay(LONGEST).with_jitter().without_max_times()
}
