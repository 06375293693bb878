//! The terminal of a run: a bar on standard error, and above it what is said and what jobs have written.
//!
//! Where standard error is no terminal there is no bar, but a line now and then.

use std::io::{self, IsTerminal as _, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressState, ProgressStyle};
use parking_lot::Mutex;
use terminal_size::{Height, Width, terminal_size_of};

use super::bar::{Progress, View};
use crate::cli::output::{clean, complain};

/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// How often the bar is drawn.
const TICK: Duration = Duration::from_millis(200);
/// The size of a terminal that does not say it.
const USUAL_SIZE: (Width, Height) = (Width(80), Height(24));

/// The terminal of a run. The bar is gone when it is dropped.
pub(super) struct Screen {
    bar: ProgressBar,
    progress: Arc<Mutex<Progress>>,
    printed_at: Mutex<Instant>,
    /// Whether the reader of standard output has closed it.
    closed: AtomicBool,
}

impl Screen {
    /// Creates the screen, still without a bar.
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            bar: ProgressBar::hidden().with_finish(ProgressFinish::AndClear),
            progress: Arc::new(Mutex::new(Progress::new(0, 1, now))),
            printed_at: Mutex::new(now),
            closed: AtomicBool::new(false),
        }
    }

    /// Shows the bar of a run with so many jobs, of which `slots` run at once.
    pub(super) fn begin(&self, total: usize, slots: usize) {
        *self.progress.lock() = Progress::new(total, slots, Instant::now());
        if !io::stderr().is_terminal() || std::env::var_os("TERM").is_some_and(|kind| kind == "dumb") {
            return;
        }
        let progress = self.progress.clone();
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let draw = move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
            let (Width(columns), Height(rows)) = terminal_size_of(io::stderr()).unwrap_or(USUAL_SIZE);
            let view = View { columns: columns.into(), rows: rows.into(), colour };
            let lines = progress.lock().render(Instant::now(), view);
            // Writing to the bar's own text cannot fail.
            let _ = out.write_str(&lines.join("\n"));
        };
        if let Ok(style) = ProgressStyle::with_template("{run}") {
            self.bar.set_style(style.with_key("run", draw));
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.enable_steady_tick(TICK);
        }
    }

    /// Changes what the bar says.
    pub(super) fn update(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock());
    }

    /// Shows that a job has ended.
    pub(super) fn advance(&self, took: Option<Duration>, well: bool) {
        self.update(|progress| progress.end(took, well));
        let mut printed_at = self.printed_at.lock();
        if self.bar.is_hidden() && printed_at.elapsed() >= LINE_EVERY {
            *printed_at = Instant::now();
            complain(&self.progress.lock().line());
        }
    }

    /// Returns how many jobs run.
    pub(super) fn running(&self) -> usize {
        self.progress.lock().running()
    }

    /// Prints a line to standard error, above the bar. What could control the terminal is replaced.
    pub(super) fn line(&self, text: &str) {
        self.bar.suspend(|| complain(&clean(text)));
    }

    /// Lets `write` write to standard output and standard error while the bar is away.
    pub(super) fn write(&self, write: impl FnOnce(&mut dyn Write, &mut dyn Write) -> io::Result<()>) {
        if self.is_closed() {
            return;
        }
        let (mut out, mut errors) = (io::stdout().lock(), io::stderr());
        let written = self.bar.suspend(|| write(&mut out, &mut errors).and_then(|()| out.flush()));
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.closed.store(true, Ordering::Relaxed),
            Err(error) => self.line(&format!("cannot show what a job wrote: {error}")),
            Ok(()) => {}
        }
    }

    /// Returns whether the reader of standard output has closed it.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
