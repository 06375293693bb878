//! Shows a command's progress on standard error: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use super::output::{clean, complain};

/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
const TEMPLATE: &str = "{pos}/{len} {wide_bar} {elapsed} gone, {eta} to go {msg}";

/// Counts what is done.
pub(super) struct Meter {
    bar: Option<ProgressBar>,
    state: Mutex<State>,
}

struct State {
    total: u64,
    done: u64,
    failed: u64,
    printed_at: Instant,
}

impl Meter {
    /// Creates a meter for `total` items.
    pub(super) fn start(total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total);
            if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { bar, state: Mutex::new(State { total, done: 0, failed: 0, printed_at: Instant::now() }) }
    }

    /// Counts one more item; `well` says whether it succeeded.
    pub(super) fn advance(&self, well: bool) {
        let mut state = self.state.lock();
        state.done += 1;
        state.failed += u64::from(!well);
        match &self.bar {
            Some(bar) => {
                bar.inc(1);
                if !well {
                    bar.set_message(format!("{} failed", state.failed));
                }
            }
            None if state.printed_at.elapsed() >= LINE_EVERY => {
                state.printed_at = Instant::now();
                complain(&format!("{} of {} done, {} failed", state.done, state.total, state.failed));
            }
            None => {}
        }
    }

    /// Prints a line without disturbing the bar.
    pub(super) fn print_line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| complain(&clean(text))),
            None => complain(&clean(text)),
        }
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
