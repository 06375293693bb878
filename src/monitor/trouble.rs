//! A failure that may repeat: logged when it begins and when it is over, not each time.

use std::time::Instant;

/// The state of an operation that may fail repeatedly.
pub(super) struct Trouble {
    what: &'static str,
    since: Option<Instant>,
}

impl Trouble {
    pub(super) const fn of(what: &'static str) -> Self {
        Self { what, since: None }
    }

    /// Records a failure, and logs the first of a series.
    pub(super) fn begin(&mut self, why: &str) {
        if self.since.is_none() {
            self.since = Some(Instant::now());
            tracing::warn!(what = self.what, why, "the monitor cannot do its work; it tries again");
        }
    }

    /// Records a success, and logs it when it follows a failure.
    pub(super) fn end(&mut self) {
        if let Some(since) = self.since.take() {
            tracing::info!(what = self.what, seconds = since.elapsed().as_secs(), "the monitor works again");
        }
    }
}
