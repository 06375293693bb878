//! The terminal of a run: a bar on standard error, and above it what is said and what jobs have written.
//!
//! Where standard error is no terminal there is no bar, but a line now and then.
//!
//! The reader of what is shown may be slow. So only the thread that tells of the run (`teller`) writes, and everybody
//! else hands it what is to be said; nothing that keeps jobs and their leases going waits for a reader.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressState, ProgressStyle};
use parking_lot::Mutex;
use terminal_size::{Height, Width, terminal_size_of};

use super::bar::{Progress, View};
use super::capture::Loss;
use super::event::Event;
use super::pass_on::{Target, Unwritten};
use crate::cli::output::{clean, complain};
use crate::worker::output::Stream;

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
    /// Whether nobody reads standard output any more.
    closed: AtomicBool,
    stdout: Target,
    stderr: Target,
    /// Takes what is to be said, while there is a thread for it.
    teller: Mutex<Option<Sender<Event>>>,
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
            stdout: Target::new(&io::stdout(), "standard output"),
            stderr: Target::new(&io::stderr(), "standard error"),
            teller: Mutex::default(),
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

    /// Has what is said from now on told by a thread; `None` ends that.
    pub(super) fn tell_by(&self, teller: Option<Sender<Event>>) {
        *self.teller.lock() = teller;
    }

    /// Shows how far the run is, where there is no bar and nothing was shown for a while.
    pub(super) fn advance(&self) {
        let mut printed_at = self.printed_at.lock();
        if self.bar.is_hidden() && printed_at.elapsed() >= LINE_EVERY {
            *printed_at = Instant::now();
            let line = self.progress.lock().line();
            complain(&line);
        }
    }

    /// Returns how many jobs run.
    pub(super) fn running(&self) -> usize {
        self.progress.lock().running()
    }

    /// Says a line on standard error, above the bar, behind what is to be shown before it.
    pub(super) fn say(&self, text: &str) {
        let teller = self.teller.lock().clone();
        match teller {
            Some(teller) => drop(teller.send(Event::Line(text.to_owned()))),
            None => self.line(text),
        }
    }

    /// Prints a line to standard error, above the bar. What could control the terminal is replaced.
    pub(super) fn line(&self, text: &str) {
        self.bar.suspend(|| complain(&clean(text)));
    }

    /// Shows files of output, and returns what is missing of them.
    pub(super) fn show(&self, files: &[(Stream, PathBuf)], tag: Option<&str>) -> Vec<Loss> {
        let mut losses = Vec::new();
        if files.is_empty() {
            return losses;
        }
        self.bar.suspend(|| {
            for (stream, file) in files {
                let target = match stream {
                    Stream::Stdout => &self.stdout,
                    Stream::Stderr => &self.stderr,
                };
                if *stream == Stream::Stdout && self.is_closed() {
                    continue;
                }
                losses.extend(self.failed(*stream, target, target.pass_on(file, tag)));
            }
        });
        losses
    }

    /// Prints a line of JSON to standard output, and returns what is missing of it.
    pub(super) fn json(&self, line: &str) -> Option<Loss> {
        if self.is_closed() {
            return None;
        }
        let written = self.bar.suspend(|| self.stdout.text(format!("{line}\n").as_bytes()));
        self.failed(Stream::Stdout, &self.stdout, written)
    }

    fn failed(&self, stream: Stream, target: &Target, written: Result<(), Unwritten>) -> Option<Loss> {
        let Unwritten { bytes, error } = written.err()?;
        if !target.is_closed_after(&error) {
            return Some(Loss { stream, bytes, error: format!("{}: {error}", target.name()) });
        }
        if stream == Stream::Stdout {
            self.closed.store(true, Ordering::Relaxed);
        }
        None
    }

    /// Returns whether nobody reads standard output any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
