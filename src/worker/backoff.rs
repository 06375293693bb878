//! The waits between repeated tries.

use std::time::Duration;

use backon::ExponentialBuilder;

/// The wait after the first failure.
const FIRST: Duration = Duration::from_millis(70);
/// The longest wait before jitter, which at most doubles it.
pub(super) const LONGEST: Duration = Duration::from_secs(3);

/// Returns an unlimited sequence of waits, each about twice as long as the one before, up to [`LONGEST`].
pub(crate) fn waits() -> ExponentialBuilder {
    ExponentialBuilder::default().with_min_delay(FIRST).with_max_delay(LONGEST).with_jitter().without_max_times()
}
