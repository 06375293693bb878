//! Shows a command's progress on standard error: a bar on a terminal, a line now and then elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use super::output::complain;

/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
const TEMPLATE: &str = "{pos}/{len} {wide_bar} {elapsed} gone, {eta} to go {msg}";

/// Counts what is done.
pub(super) struct Meter {
    /// Hidden where there is no terminal.
    bar: ProgressBar,
    state: Mutex<State>,
}

struct State {
    failed: u64,
    printed_at: Instant,
}

impl Meter {
    /// Creates a meter for `total` items.
    pub(super) fn start(total: u64) -> Self {
        let bar = ProgressBar::new(total);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, state: Mutex::new(State { failed: 0, printed_at: Instant::now() }) }
    }

    /// Counts one more item; `well` says whether it succeeded.
    pub(super) fn advance(&self, well: bool) {
        let mut state = self.state.lock();
        self.bar.inc(1);
        if !well {
            state.failed += 1;
            self.bar.set_message(format!("{} failed", state.failed));
        }
        if self.bar.is_hidden() && state.printed_at.elapsed() >= LINE_EVERY {
            state.printed_at = Instant::now();
            let (done, total) = (self.bar.position(), self.bar.length().unwrap_or_default());
            complain(&format!("{done} of {total} done, {} failed", state.failed));
        }
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
