//! Waits between tries that have no other bound.

use std::time::Duration;

/// The wait after the first failure.
const FIRST: Duration = Duration::from_millis(100);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(5);

/// Doubles the wait after each failure, up to 5 s, with a random reduction of up to a third.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    /// Waits, longer each time.
    pub(crate) async fn wait(&mut self) {
        let share = 1.0 - rand::random::<f64>() / 3.0;
        tokio::time::sleep(self.0.mul_f64(share)).await;
        self.0 = (self.0 * 2).min(LONGEST);
    }

    /// Starts over after a success.
    pub(crate) fn reset(&mut self) {
        self.0 = FIRST;
    }
}
