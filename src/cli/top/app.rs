//! What is shown, and what keys make of it: pure functions, without a terminal and without a server.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::view::View;
use crate::wire::{Job, Then};

/// The orders of the list of jobs, which `s` goes through.
pub(super) const SORTS: [&str; 4] = ["-created_at", "created_at", "-priority", "run_at"];
/// The query that the list begins with.
pub(super) const FIRST_QUERY: &str = "state: running";
/// The longest query that can be typed, in characters.
const MAX_QUERY: usize = 1_000;
/// The most bytes of an open job's output that are kept for the screen.
const MAX_OUTPUT: usize = 64 * 1024;
/// How far a page goes.
const PAGE: usize = 10;

/// The lists between which keys choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Jobs,
    Queues,
    Workers,
}

impl Tab {
    pub(super) const ALL: [Self; 3] = [Self::Jobs, Self::Queues, Self::Workers];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Jobs => "1 jobs",
            Self::Queues => "2 queues",
            Self::Workers => "3 workers",
        }
    }
}

/// What the keys act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// A list.
    Browse,
    /// The query, which is being typed.
    Filter(String),
    /// A question whether something is to be done.
    Confirm(Change),
    /// A job.
    Opened(Box<OpenJob>),
    /// The list of keys.
    Help,
}

/// A job that is open, with its output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenJob {
    pub(super) id: String,
    /// Everything about the job, as text.
    pub(super) page: String,
    /// The end of what the latest attempt wrote.
    pub(super) output: String,
    /// How far the output was read.
    pub(super) read: (u64, u64),
    /// The fence of the attempt.
    pub(super) fence: u64,
    /// How many lines the page is scrolled down.
    pub(super) scrolled: u16,
}

impl OpenJob {
    /// Adds output; the beginning of a long one is dropped.
    pub(super) fn add_output(&mut self, text: &str) {
        self.output.push_str(text);
        if self.output.len() > MAX_OUTPUT {
            let cut = self.output.len() - MAX_OUTPUT;
            let cut = (cut..self.output.len()).find(|at| self.output.is_char_boundary(*at)).unwrap_or(0);
            self.output.drain(..cut);
        }
    }
}

/// A change that a person asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Cancel(String),
    Retry(String),
    Release { id: String, fence: u64, then: Then },
    Pause(String),
    Resume(String),
}

impl Change {
    /// Returns the question before the change.
    pub(super) fn question(&self) -> String {
        match self {
            Self::Cancel(id) => format!("cancel {id}?"),
            Self::Retry(id) => format!("retry {id}?"),
            Self::Release { id, .. } => format!("take {id} from its worker, for another to run?"),
            Self::Pause(queue) => format!("pause the queue {queue}?"),
            Self::Resume(queue) => format!("resume the queue {queue}?"),
        }
    }
}

/// What is to be done after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Todo {
    /// To draw what has changed here.
    Draw,
    /// To ask the server anew, since something else is wanted of it.
    Read,
    /// To change something, and then to ask anew.
    Change(Change),
    /// To end the view.
    Quit,
    /// To end as after a signal.
    Interrupt,
}

/// The state of the view.
#[derive(Debug)]
pub(super) struct App {
    pub(super) view: Option<View>,
    pub(super) tab: Tab,
    pub(super) query: String,
    pub(super) sort: usize,
    /// The chosen row of each list.
    pub(super) chosen: [usize; 3],
    pub(super) mode: Mode,
    /// What came of the last change, or what is wrong with the query.
    pub(super) message: Option<String>,
    /// Why the server does not answer, while it does not.
    pub(super) trouble: Option<String>,
}

impl App {
    pub(super) fn new() -> Self {
        Self {
            view: None,
            tab: Tab::Jobs,
            query: FIRST_QUERY.to_owned(),
            sort: 0,
            chosen: [0; 3],
            mode: Mode::Browse,
            message: None,
            trouble: None,
        }
    }

    /// Takes the server's answer.
    pub(super) fn take(&mut self, view: View) {
        self.trouble = None;
        self.view = Some(view);
        for (place, tab) in Tab::ALL.into_iter().enumerate() {
            self.chosen[place] = self.chosen[place].min(self.rows(tab).saturating_sub(1));
        }
    }

    pub(super) fn rows(&self, tab: Tab) -> usize {
        self.view.as_ref().map_or(0, |view| match tab {
            Tab::Jobs => view.jobs.len(),
            Tab::Queues => view.queues.len(),
            Tab::Workers => view.workers.items.len(),
        })
    }

    pub(super) fn chosen_job(&self) -> Option<&Job> {
        self.view.as_ref()?.jobs.get(self.chosen[0]).filter(|_| self.tab == Tab::Jobs)
    }

    /// Takes a key, and returns what is to be done.
    pub(super) fn key(&mut self, key: KeyEvent) -> Todo {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Todo::Interrupt;
        }
        match std::mem::replace(&mut self.mode, Mode::Browse) {
            Mode::Browse => self.browse(key.code),
            Mode::Filter(text) => self.type_query(text, key.code),
            Mode::Help => Todo::Draw,
            Mode::Confirm(change) => match key.code {
                KeyCode::Char('y' | 'Y') => Todo::Change(change),
                _ => Todo::Draw,
            },
            Mode::Opened(job) => self.read_job(job, key.code),
        }
    }

    fn browse(&mut self, key: KeyCode) -> Todo {
        self.message = None;
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Todo::Quit,
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('1') => self.tab = Tab::Jobs,
            KeyCode::Char('2') => self.tab = Tab::Queues,
            KeyCode::Char('3') => self.tab = Tab::Workers,
            KeyCode::Tab => self.tab = Tab::ALL[(self.tab as usize + 1) % Tab::ALL.len()],
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::PageDown => self.go(PAGE as isize),
            KeyCode::PageUp => self.go(-(PAGE as isize)),
            KeyCode::Home => self.chosen[self.tab as usize] = 0,
            KeyCode::End => self.go(isize::MAX),
            KeyCode::Char('/') => {
                self.tab = Tab::Jobs;
                self.mode = Mode::Filter(self.query.clone());
            }
            KeyCode::Char('s') => {
                self.sort = (self.sort + 1) % SORTS.len();
                return Todo::Read;
            }
            KeyCode::Enter => {
                if let Some(job) = self.chosen_job() {
                    self.mode = Mode::Opened(Box::new(OpenJob { id: job.id.to_string(), ..OpenJob::default() }));
                    return Todo::Read;
                }
            }
            KeyCode::Char('p') => self.ask_about_queue(),
            key => {
                let job = self.chosen_job().map(|job| (job.id.to_string(), job.fence));
                self.ask_about_job(job, key);
            }
        }
        Todo::Draw
    }

    fn read_job(&mut self, mut job: Box<OpenJob>, key: KeyCode) -> Todo {
        self.message = None;
        match key {
            KeyCode::Char('q') | KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => return Todo::Draw,
            KeyCode::Down | KeyCode::Char('j') => job.scrolled = job.scrolled.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => job.scrolled = job.scrolled.saturating_sub(1),
            key => {
                self.ask_about_job(Some((job.id.clone(), job.fence)), key);
                if self.mode != Mode::Browse {
                    return Todo::Draw;
                }
            }
        }
        self.mode = Mode::Opened(job);
        Todo::Draw
    }

    fn ask_about_job(&mut self, job: Option<(String, u64)>, key: KeyCode) {
        let Some((id, fence)) = job else { return };
        self.mode = Mode::Confirm(match key {
            KeyCode::Char('c') => Change::Cancel(id),
            KeyCode::Char('t') => Change::Retry(id),
            KeyCode::Char('r') => Change::Release { id, fence, then: Then::Requeue },
            _ => return,
        });
    }

    fn ask_about_queue(&mut self) {
        let chosen = self.view.as_ref().and_then(|view| view.queues.get(self.chosen[Tab::Queues as usize]));
        if let Some(queue) = chosen.filter(|_| self.tab == Tab::Queues) {
            let name = queue.name.to_string();
            self.mode = Mode::Confirm(if queue.paused { Change::Resume(name) } else { Change::Pause(name) });
        }
    }

    fn type_query(&mut self, mut text: String, key: KeyCode) -> Todo {
        match key {
            KeyCode::Enter => {
                self.query = text;
                self.chosen[0] = 0;
                return Todo::Read;
            }
            KeyCode::Esc => return Todo::Draw,
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char(character) if text.chars().count() < MAX_QUERY => text.push(character),
            _ => {}
        }
        self.mode = Mode::Filter(text);
        Todo::Draw
    }

    fn go(&mut self, by: isize) {
        let last = self.rows(self.tab).saturating_sub(1);
        let chosen = &mut self.chosen[self.tab as usize];
        *chosen = chosen.saturating_add_signed(by).min(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(app: &mut App, keys: &str) -> Todo {
        let mut todo = Todo::Draw;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\u{8}' => KeyCode::Backspace,
                '\u{1b}' => KeyCode::Esc,
                key => KeyCode::Char(key),
            };
            todo = app.key(code.into());
        }
        todo
    }

    #[test]
    fn a_query_is_typed_and_asked_or_given_up() {
        let mut app = App::new();
        assert_eq!(press(&mut app, "/"), Todo::Draw);
        let erased = "\u{8}".repeat(FIRST_QUERY.len());
        assert_eq!(press(&mut app, &format!("{erased}queue: q\n")), Todo::Read);
        assert_eq!((app.query.as_str(), &app.mode), ("queue: q", &Mode::Browse));
        assert_eq!(press(&mut app, "/xyz\u{1b}"), Todo::Draw);
        assert_eq!(app.query, "queue: q");
    }

    #[test]
    fn nothing_is_changed_without_a_job_or_an_answer() {
        let mut app = App::new();
        assert_eq!((press(&mut app, "c"), &app.mode), (Todo::Draw, &Mode::Browse));
        app.mode = Mode::Confirm(Change::Pause("q".to_owned()));
        assert_eq!(press(&mut app, "n"), Todo::Draw);
        app.mode = Mode::Confirm(Change::Pause("q".to_owned()));
        assert_eq!(press(&mut app, "y"), Todo::Change(Change::Pause("q".to_owned())));
    }

    #[test]
    fn an_open_job_is_left_by_escape_and_acted_upon_by_its_fence() {
        let mut app = App::new();
        app.mode = Mode::Opened(Box::new(OpenJob { id: "a".to_owned(), fence: 7, ..OpenJob::default() }));
        press(&mut app, "jj");
        assert!(matches!(&app.mode, Mode::Opened(job) if job.scrolled == 2));
        press(&mut app, "r");
        let release = Change::Release { id: "a".to_owned(), fence: 7, then: Then::Requeue };
        assert_eq!(app.mode, Mode::Confirm(release));
        app.mode = Mode::Opened(Box::default());
        press(&mut app, "\u{1b}");
        assert_eq!(app.mode, Mode::Browse);
        assert_eq!(press(&mut app, "q"), Todo::Quit);
    }

    #[test]
    fn of_much_output_the_end_is_kept() {
        let mut job = OpenJob::default();
        job.add_output(&"\u{e9}".repeat(MAX_OUTPUT));
        job.add_output("end");
        assert!(job.output.len() <= MAX_OUTPUT && job.output.ends_with("end"));
    }
}
