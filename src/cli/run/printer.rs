//! Shows what jobs have written, each job's whole, and copies it for `--results`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::capture::{Loss, Outputs, Ran, Written, file_name};
use super::options::Shown;
use super::screen::Screen;
use super::source::Planned;
use super::untold::Untold;
use crate::cli::output::shorten;
use crate::worker::output::Stream;

/// How many characters of a job's arguments stand before each line.
const TAG_CHARACTERS: usize = 100;

/// Shows the output of jobs.
pub(super) struct Printer {
    outputs: Arc<Outputs>,
    shown: Shown,
    tag: bool,
    results: Option<PathBuf>,
    order: Option<Order>,
    untold: Arc<Untold>,
}

/// The order in which output is shown, by the places of the jobs in the list.
struct Order {
    /// The jobs whose output was not shown yet.
    left: BTreeSet<usize>,
    /// The jobs among them that have ended, with what is to be shown.
    ended: BTreeMap<usize, Output>,
}

/// The output of a job.
struct Output {
    tag: String,
    files: Vec<(Stream, PathBuf)>,
}

/// What is missing of the output of a job, by its place in the list.
pub(super) type Missing = (usize, Loss);

impl Printer {
    /// Creates a printer. With `order` the output of these jobs is shown in their order.
    pub(super) fn new(
        outputs: Arc<Outputs>,
        shown: Shown,
        tag: bool,
        results: Option<PathBuf>,
        order: Option<BTreeSet<usize>>,
    ) -> Self {
        let order = order.map(|left| Order { left, ended: BTreeMap::new() });
        let untold = Arc::new(Untold::new(outputs.clone()));
        Self { outputs, shown, tag, results, order, untold }
    }

    /// Returns the jobs that have ended and whose output was not passed on.
    pub(super) fn untold(&self) -> Arc<Untold> {
        self.untold.clone()
    }

    /// Returns the files of what is kept of an attempt.
    pub(super) fn written(&self, ran: &Ran) -> Vec<(Stream, PathBuf)> {
        let streams = [Stream::Stdout, Stream::Stderr].into_iter();
        streams.filter_map(|stream| Some((stream, self.outputs.written(ran, stream)?))).collect()
    }

    /// Keeps the output of an attempt that is not shown.
    pub(super) fn keep(&self, ran: &Ran) {
        let written = self.outputs.take(ran);
        self.outputs.passed_on(&written.whole);
        self.outputs.is_handled(&written);
    }

    /// Shows and copies the output of a job that has ended; `ran` is its last attempt, if it had one. Returns what is
    /// missing of that of this job and of others that were shown now.
    pub(super) fn ended(
        &mut self,
        screen: &Screen,
        index: usize,
        job: &Planned,
        ran: Option<&Ran>,
        well: bool,
    ) -> Vec<Missing> {
        let mut written = ran.map(|ran| self.outputs.take(ran)).unwrap_or_default();
        let mut missing: Vec<Missing> = written.losses.drain(..).map(|loss| (index, loss)).collect();
        if let (Some(results), Some(_)) = (&self.results, ran) {
            missing.extend(copy(results, job, &written).into_iter().map(|loss| (index, loss)));
        }
        let is_shown = match self.shown {
            Shown::None => false,
            Shown::Failed => !well,
            Shown::All => true,
        };
        let files = std::mem::take(&mut written.whole);
        let mut next = BTreeMap::new();
        if is_shown {
            next.insert(index, Output { tag: job.tag(), files });
        } else {
            self.outputs.passed_on(&files);
            self.untold.remove(index);
        }
        if let Some(order) = &mut self.order {
            let none = || Output { tag: String::new(), files: Vec::new() };
            order.ended.insert(index, next.remove(&index).unwrap_or_else(none));
            while let Some(first) = order.left.first().copied() {
                let Some(output) = order.ended.remove(&first) else { break };
                order.left.remove(&first);
                next.insert(first, output);
            }
        }
        for (index, output) in next {
            missing.extend(self.show(screen, index, &output));
        }
        self.outputs.is_handled(&written);
        missing
    }

    /// Shows the output that waits for jobs before it, which have not ended.
    pub(super) fn rest(&mut self, screen: &Screen) -> Vec<Missing> {
        let rest = self.order.as_mut().map(|order| std::mem::take(&mut order.ended)).unwrap_or_default();
        rest.iter().flat_map(|(index, output)| self.show(screen, *index, output)).collect()
    }

    fn show(&self, screen: &Screen, index: usize, output: &Output) -> Vec<Missing> {
        let tag = if self.tag { Some(output.tag.as_str()) } else { None };
        let losses = screen.show(&output.files, tag);
        self.outputs.passed_on(&output.files);
        self.untold.remove(index);
        losses.into_iter().map(|loss| (index, loss)).collect()
    }
}

/// Copies the output of a job, and returns what is missing of it.
fn copy(results: &Path, job: &Planned, written: &Written) -> Vec<Loss> {
    let mut folder = results.to_owned();
    for (index, argument) in job.arguments_or_label().enumerate() {
        folder = folder.join((index + 1).to_string()).join(file_name(argument));
    }
    let whole = |stream| written.whole.iter().find(|(of, _)| *of == stream).map(|(_, file)| file);
    let length = |file: &Path| file.metadata().map_or(0, |metadata| metadata.len());
    let made = fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join("seq"), job.number.to_string()));
    let streams = [Stream::Stdout, Stream::Stderr].into_iter();
    let copied = streams.filter_map(|stream| {
        let to = folder.join(stream.as_str());
        let copy = || match whole(stream) {
            Some(file) => fs::copy(file, &to).map(drop),
            None => fs::write(&to, ""),
        };
        let again = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
        let error = made.as_ref().map_err(again).map(drop).and_then(|()| copy()).err()?;
        let is = whole(stream).map_or(0, |file| length(file));
        let bytes = is.saturating_sub(length(&to));
        Some(Loss { stream, bytes, error: format!("{}: {error}", to.display()) })
    });
    copied.collect()
}

impl Planned {
    /// Returns what `--tag` puts before each line of the job's output.
    fn tag(&self) -> String {
        shorten(&self.arguments_or_label().collect::<Vec<_>>().join(" "), TAG_CHARACTERS)
    }

    fn arguments_or_label(&self) -> impl Iterator<Item = &str> {
        let label = Some(self.label.as_str()).filter(|_| self.arguments.is_empty());
        self.arguments.iter().map(AsRef::as_ref).chain(label)
    }
}
