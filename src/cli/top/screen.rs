//! The terminal while a live view uses it: the alternate screen, and keys as they are pressed. It is restored when
//! dropped, however the view ends.

use std::io::Stdout;

use crossterm::event::{Event, KeyEvent, KeyEventKind};
use crossterm::execute;
use crossterm::terminal::{self, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use tokio::sync::mpsc;

use super::app::App;
use super::draw::draw;
use crate::cli::failure::Failure;

/// The most keys that wait to be handled; further ones are dropped.
const KEYS: usize = 64;

/// The terminal.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    /// Keys, and `None` when the terminal has another size.
    keys: mpsc::Receiver<Option<KeyEvent>>,
    has_colours: bool,
}

impl Screen {
    /// Switches the terminal to the live view.
    pub(super) fn open() -> Result<Self, Failure> {
        let terminal = Terminal::new(CrosstermBackend::new(std::io::stdout()))?;
        let (pressed, keys) = mpsc::channel(KEYS);
        terminal::enable_raw_mode()?;
        // The screen is made before anything else can fail, so that dropping it restores the terminal.
        let mut screen = Self { terminal, keys, has_colours: std::env::var_os("NO_COLOR").is_none() };
        execute!(screen.terminal.backend_mut(), EnterAlternateScreen)?;
        screen.terminal.hide_cursor()?;
        // The thread ends with the process, or when the receiver is gone: a read of the terminal cannot be cancelled.
        std::thread::spawn(move || {
            while let Ok(event) = crossterm::event::read() {
                let key = match event {
                    Event::Key(key) if key.kind != KeyEventKind::Release => Some(key),
                    Event::Resize(..) => None,
                    _ => continue,
                };
                if let Err(mpsc::error::TrySendError::Closed(_)) = pressed.try_send(key) {
                    return;
                }
            }
        });
        Ok(screen)
    }

    /// Waits for the next key; `None` when the view is to be drawn anew.
    pub(super) async fn key(&mut self) -> Option<KeyEvent> {
        match self.keys.recv().await {
            Some(key) => key,
            // The terminal is gone; a signal will end the view.
            None => std::future::pending().await,
        }
    }

    /// Draws the view.
    pub(super) fn show(&mut self, app: &App) -> Result<(), Failure> {
        self.terminal.draw(|frame| draw(frame, app, self.has_colours))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A failure cannot be reported any more.
        drop(self.terminal.show_cursor());
        drop(execute!(self.terminal.backend_mut(), LeaveAlternateScreen));
        drop(terminal::disable_raw_mode());
    }
}
