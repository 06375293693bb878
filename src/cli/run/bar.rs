//! What the bar of a run says: how far it is, what runs and for how long, and how long the rest may take.

use std::time::{Duration, Instant};

use crossterm::style::Stylize as _;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::source::Name;
use crate::cli::duration;

/// How many of the running jobs are shown at most.
const MAX_RUNNING: usize = 8;
/// How many columns the bar itself takes at most, and at least.
const BAR_COLUMNS: (usize, usize) = (6, 40);
const BETWEEN: &str = " \u{b7} ";

/// How far a run is.
#[derive(Debug)]
pub(super) struct Progress {
    begun: Instant,
    /// How many jobs there are to run.
    total: usize,
    /// How many jobs run at the same time.
    slots: usize,
    ended: usize,
    failed: usize,
    /// How long the jobs that have ended took together.
    took: Duration,
    running: Vec<Running>,
    /// Whether no further job is started.
    pub(super) stopping: bool,
}

#[derive(Debug)]
struct Running {
    name: Name,
    since: Instant,
}

/// Where the bar is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) columns: usize,
    pub(super) rows: usize,
    pub(super) colour: bool,
}

impl Progress {
    /// Creates the state of a run that begins now.
    pub(super) fn new(total: usize, slots: usize, now: Instant) -> Self {
        let running = Vec::new();
        Self { begun: now, total, slots, ended: 0, failed: 0, took: Duration::ZERO, running, stopping: false }
    }

    /// Notes that an attempt of a job has begun.
    pub(super) fn start(&mut self, name: Name, now: Instant) {
        self.running.push(Running { name, since: now });
    }

    /// Notes that an attempt of a job has ended, whatever became of the job.
    pub(super) fn leave(&mut self, name: &Name) {
        self.running.retain(|running| running.name.id != name.id);
    }

    /// Counts a job that has ended, and how long its last attempt took if it had one.
    pub(super) fn end(&mut self, took: Option<Duration>, well: bool) {
        self.ended += 1;
        self.failed += usize::from(!well);
        self.took += took.unwrap_or_default();
    }

    /// Returns how many jobs run.
    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    /// Describes the progress in one line.
    pub(super) fn line(&self) -> String {
        format!("{} of {} done, {} failed", self.ended, self.total, self.failed)
    }

    /// Returns how long the rest may take, once a job has ended.
    ///
    /// Jobs that wait are taken to run as long as those that ended did on average, and running ones for the rest of
    /// that. One that has run for longer is a longer one: it may go on for a quarter of its age.
    pub(super) fn estimate(&self, now: Instant) -> Option<Duration> {
        let mean = self.took.checked_div(u32::try_from(self.ended).ok().filter(|ended| *ended > 0)?)?;
        let rest = |running: &Running| {
            let age = now.saturating_duration_since(running.since);
            mean.checked_sub(age).unwrap_or(age / 4)
        };
        let longest = self.running.iter().map(rest).max().unwrap_or_default();
        let waiting = self.total.saturating_sub(self.ended + self.running.len());
        let work = self.running.iter().map(rest).sum::<Duration>() + mean * u32::try_from(waiting).unwrap_or(u32::MAX);
        let at_once = u32::try_from(self.slots.clamp(1, (waiting + self.running.len()).max(1))).unwrap_or(u32::MAX);
        Some((work / at_once).max(longest))
    }

    /// Returns the lines to show, each narrower than the view, so that no terminal breaks one.
    pub(super) fn render(&self, now: Instant, view: View) -> Vec<String> {
        let columns = view.columns.saturating_sub(1);
        let mut lines = vec![self.head(now, columns, view.colour)];
        let shown = self.running.len().min(MAX_RUNNING).min(view.rows.saturating_sub(3));
        for running in &self.running[..shown] {
            let age = age(now.saturating_duration_since(running.since));
            let name = format!("  #{} {}", running.name.number, running.name.label);
            let name = fit(&name, columns.saturating_sub(age.width() + 1));
            let gap = " ".repeat(
                columns.saturating_sub(name.width() + age.width()).min(70_usize.saturating_sub(name.width()).max(1)),
            );
            lines.push(fit(&format!("{name}{gap}{age}"), columns));
        }
        if shown > 0 && shown < self.running.len() {
            lines.push(fit(&format!("  \u{2026} and {} more", self.running.len() - shown), columns));
        }
        lines
    }

    fn head(&self, now: Instant, columns: usize, colour: bool) -> String {
        let count = format!("{}/{}", self.ended, self.total);
        // In the order of their weight: what does not fit is left out from the end.
        let mut facts = Vec::new();
        if self.failed > 0 {
            facts.push((format!("{} failed", self.failed), true));
        }
        if self.stopping {
            facts.push(("stopping".to_owned(), false));
        } else if let Some(left) = self.estimate(now) {
            facts.push((format!("about {} left", age(left)), false));
        }
        facts.push((age(now.saturating_duration_since(self.begun)), false));
        let width = |facts: &[(String, bool)]| {
            facts.iter().map(|(fact, _)| fact.width()).sum::<usize>() + BETWEEN.width() * facts.len().saturating_sub(1)
        };
        while count.width() + 1 + width(&facts) > columns && facts.pop().is_some() {}
        let room = columns.saturating_sub(count.width() + width(&facts) + 2);
        let mut head = fit(&count, columns);
        if room >= BAR_COLUMNS.0 {
            let whole = room.min(BAR_COLUMNS.1);
            let full = (whole * self.ended).checked_div(self.total).unwrap_or(whole).min(whole);
            let (full, rest) = ("\u{2501}".repeat(full), "\u{2500}".repeat(whole - full));
            head.push(' ');
            head.push_str(&if colour {
                format!("{}{}", full.green(), rest.dark_grey())
            } else {
                full.replace('\u{2501}', "=") + &rest.replace('\u{2500}', "-")
            });
        }
        for (index, (fact, is_bad)) in facts.iter().enumerate() {
            head.push_str(if index == 0 { " " } else { BETWEEN });
            head.push_str(&if *is_bad && colour { fact.as_str().red().to_string() } else { fact.clone() });
        }
        head
    }
}

/// Formats how long something takes: whole seconds, since it changes while it is read.
fn age(duration: Duration) -> String {
    if duration < Duration::from_secs(60) { format!("{}s", duration.as_secs()) } else { duration::show(duration) }
}

/// Cuts a text to a number of columns.
fn fit(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut width = 1;
    let kept: String = text
        .chars()
        .take_while(|c| {
            width += c.width().unwrap_or(0);
            width <= columns
        })
        .collect();
    if columns == 0 { String::new() } else { kept + "\u{2026}" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobId;

    fn name(number: usize, label: &str) -> Name {
        Name { number, label: label.to_owned(), id: JobId::new(format!("job{number}")).expect("an id") }
    }

    fn view(columns: usize) -> View {
        View { columns, rows: 24, colour: false }
    }

    #[test]
    fn the_rest_is_estimated_from_the_first_job_on() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut progress = Progress::new(10, 2, begun);
        progress.start(name(1, "a"), at(0));
        progress.start(name(2, "b"), at(0));
        assert_eq!(progress.estimate(at(5)), None);
        progress.leave(&name(1, "a"));
        progress.end(Some(Duration::from_secs(10)), true);
        // Eight wait and one is at its end: two at a time.
        assert_eq!(progress.estimate(at(10)), Some(Duration::from_secs(40)));
        for _ in 0..8 {
            progress.end(Some(Duration::from_secs(10)), true);
        }
        // The last one takes longer than all others did.
        assert_eq!(progress.estimate(at(200)), Some(Duration::from_secs(50)));
    }

    #[test]
    fn every_line_fits_and_what_weighs_least_goes_first() {
        let begun = Instant::now();
        let mut progress = Progress::new(50, 12, begun);
        for number in 1..=12 {
            progress.start(name(number, &"\u{6f22}\u{5b57} wide ".repeat(9)), begun);
        }
        progress.end(Some(Duration::from_secs(30)), true);
        progress.end(Some(Duration::from_secs(30)), false);
        let now = begun + Duration::from_secs(83);
        for columns in [0, 1, 5, 10, 40, 80, 200] {
            for line in progress.render(now, view(columns)) {
                assert!(line.width() < columns.max(1), "{columns}: {line:?}");
            }
        }
        let head = |columns| progress.render(now, view(columns))[0].clone();
        assert!(head(80).contains("1m 23s") && head(80).contains("=-"), "{}", head(80));
        assert!(head(40).contains("1 failed \u{b7} about 1m 50s left") && !head(40).contains("1m 23s"), "{}", head(40));
        assert_eq!(head(16), "2/50 1 failed");
        assert_eq!(progress.render(now, view(80)).last().expect("lines"), "  \u{2026} and 4 more");
        let low = View { rows: 4, ..view(80) };
        assert_eq!(progress.render(now, low).len(), 3);
    }

    #[test]
    fn colours_are_there_only_when_they_are_wanted() {
        let begun = Instant::now();
        let mut progress = Progress::new(2, 1, begun);
        progress.end(None, false);
        let plain = progress.render(begun, view(80)).join("\n");
        assert!(!plain.contains('\u{1b}'), "{plain:?}");
    }
}
