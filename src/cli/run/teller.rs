//! Tells of a run, in a thread of its own: shows what jobs write, and says how they end.
//!
//! The reader may be slow or stand still. What waits for it is in files (`capture`), and once that is too much,
//! commands wait; the jobs' leases and ends go on meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::oneshot;

use super::capture::{Loss, Ran};
use super::event::{EndedJob, Event, Lost};
use super::halt::Halt;
use super::printer::{Missing, Printer};
use super::screen::Screen;
use super::source::{Name, Planned};
use super::untold::Untold;
use crate::cli::output::shorten;
use crate::clock::millis;
use crate::job::shell::quote;
use crate::job::{JobError, JobState};
use crate::worker::output::Stream;

/// How many characters of a failure are shown while others run.
pub(super) const MESSAGE_CHARACTERS: usize = 200;
/// How long what waits may still be shown once the running jobs are to end at once.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The end of a job for programs.
#[derive(Serialize)]
struct EndLine<'a> {
    r#type: &'static str,
    #[serde(flatten)]
    name: &'a Name,
    state: JobState,
    attempt: Option<u32>,
    took_ms: Option<u64>,
    error: Option<&'a JobError>,
    stdout: Option<PathBuf>,
    stderr: Option<PathBuf>,
}

/// How a run is reported.
pub(super) struct Telling {
    pub(super) screen: Arc<Screen>,
    pub(super) printer: Printer,
    pub(super) halt: Halt,
    /// Whether a line of JSON is printed for each job that ends.
    pub(super) json: bool,
    /// The command that runs failed jobs again.
    pub(super) again: String,
    /// The jobs that a former start has ended whose output it has not passed on, by their places in the list.
    pub(super) left: Vec<(usize, Ran)>,
}

/// The thread that tells.
pub(super) struct Teller {
    events: Mutex<Sender<Event>>,
    planned: Arc<[Planned]>,
    screen: Arc<Screen>,
    untold: Arc<Untold>,
    lost: Arc<Mutex<Lost>>,
}

impl Teller {
    /// Starts to tell of these jobs.
    pub(super) fn start(planned: Arc<[Planned]>, mut telling: Telling) -> Self {
        let (events, receiver) = mpsc::channel();
        let screen = telling.screen.clone();
        screen.tell_by(Some(events.clone()));
        let (left, untold) = (std::mem::take(&mut telling.left), telling.printer.untold());
        let lost = Arc::<Mutex<Lost>>::default();
        let mut voice = Voice { planned: planned.clone(), screen: screen.clone(), telling, lost: lost.clone() };
        std::thread::spawn(move || voice.tell(&receiver));
        let teller = Self { events: Mutex::new(events), planned, screen, untold, lost };
        for (index, ran) in left {
            teller.tell(Event::Left(index, ran));
        }
        teller
    }

    /// Tells this after all before it, without a wait.
    pub(super) fn tell(&self, event: Event) {
        match &event {
            Event::Ended(job) => job.ran.iter().for_each(|(ran, _)| self.untold.add(job.index, ran)),
            Event::Left(index, ran) => self.untold.add(*index, ran),
            Event::Kept(_) | Event::Line(_) | Event::End(_) => {}
        }
        // After the end of the thread nobody hears it.
        drop(self.events.lock().send(event));
    }

    /// Waits until all was shown, and returns what is missing of the output. Once `at_once` is over the reader has
    /// little time left, and what waits for it then is missing.
    pub(super) async fn end(&self, at_once: impl Future<Output = ()>) -> Lost {
        let (answer, is_told) = oneshot::channel();
        self.tell(Event::End(answer));
        let patience = async {
            at_once.await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::select! {
            biased;
            _ = is_told => self.screen.tell_by(None),
            () = patience => {
                let mut lost = self.lost.lock();
                lost.is_cut_short = true;
                for (index, loss) in self.untold.losses("its reader stands still") {
                    lost.add(self.planned[index].name(), loss);
                }
            }
        }
        std::mem::take(&mut *self.lost.lock())
    }
}

/// What the thread works with.
struct Voice {
    planned: Arc<[Planned]>,
    screen: Arc<Screen>,
    telling: Telling,
    lost: Arc<Mutex<Lost>>,
}

impl Voice {
    fn tell(&mut self, events: &Receiver<Event>) {
        for event in events {
            match event {
                Event::Ended(job) => self.ended(&job),
                Event::Kept(ran) => self.telling.printer.keep(&ran),
                Event::Left(index, ran) => self.left(index, &ran),
                Event::Line(line) => self.screen.line(&line),
                Event::End(answer) => {
                    let missing = self.telling.printer.rest(&self.screen);
                    self.say_losses(missing);
                    // The caller may be gone.
                    let _ = answer.send(());
                    return;
                }
            }
        }
    }

    /// Passes on the output of a job that a former start has completed. A part of it may have been shown then.
    fn left(&mut self, index: usize, ran: &Ran) {
        let missing = self.telling.printer.ended(&self.screen, index, &self.planned[index], Some(ran), true);
        self.say_losses(missing);
    }

    fn ended(&mut self, job: &EndedJob) {
        let planned = &self.planned[job.index];
        let name = planned.name();
        let ran = job.ran.as_ref().map(|(ran, _)| ran);
        let well = job.state == JobState::Completed;
        let printer: &mut Printer = &mut self.telling.printer;
        let mut missing = printer.ended(&self.screen, job.index, planned, ran, well);
        if self.telling.json {
            missing.extend(self.print_json(&name, job).map(|loss| (job.index, loss)));
        }
        if let Some(error) = &job.error {
            self.say_failure(&name, error, ran);
        }
        self.say_losses(missing);
        self.screen.advance();
    }

    fn say_losses(&mut self, missing: Vec<Missing>) {
        for (index, loss) in missing {
            let name = self.planned[index].name();
            let Loss { stream, bytes, error } = &loss;
            let (who, stream) = (describe(&name), stream.as_str());
            let line = format!("{who}: {bytes} bytes of its {stream} are lost: {error}");
            if self.lost.lock().add(name, loss) {
                self.screen.line(&line);
            }
        }
    }

    fn say_failure(&self, name: &Name, error: &JobError, ran: Option<&Ran>) {
        let said = shorten(&error.message, MESSAGE_CHARACTERS);
        let mut text = format!("{}: {}: {said}", describe(name), error.code);
        let files = ran.map(|ran| self.telling.printer.written(ran)).unwrap_or_default();
        if !files.is_empty() {
            let files: Vec<_> = files.iter().map(|(_, file)| quote(&from_here(file)).into_owned()).collect();
            text = format!("{text}\n  output: less {}", files.join(" "));
        }
        self.screen.line(&format!("{text}\n  again:  {}", self.telling.again));
    }

    fn print_json(&self, name: &Name, job: &EndedJob) -> Option<Loss> {
        let files = job.ran.as_ref().map(|(ran, _)| self.telling.printer.written(ran)).unwrap_or_default();
        let file = |of| files.iter().find(|(stream, _)| *stream == of).map(|(_, file)| file.clone());
        let line = EndLine {
            r#type: "job",
            name,
            state: job.state,
            attempt: job.ran.as_ref().map(|(ran, _)| ran.attempt),
            took_ms: job.ran.as_ref().map(|(_, took)| millis(*took)),
            error: job.error.as_ref(),
            stdout: file(Stream::Stdout),
            stderr: file(Stream::Stderr),
        };
        match serde_json::to_string(&line) {
            Ok(line) => self.screen.json(&line),
            Err(error) => Some(Loss { stream: Stream::Stdout, bytes: 0, error: error.to_string() }),
        }
    }
}

/// Returns a path as it is reached from the current directory.
fn from_here(path: &Path) -> String {
    let here = std::env::current_dir().and_then(|here| here.canonicalize()).unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).to_string_lossy().into_owned()
}

pub(super) fn describe(name: &Name) -> String {
    format!("#{} {}", name.number, name.label)
}
