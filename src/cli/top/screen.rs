//! The terminal while a live view uses it: the alternate screen, and keys as they are pressed. It is restored when
//! dropped, however the view ends.

use std::io::{Read as _, Stdout, Write as _};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::terminal::{
    self, Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use tokio::sync::mpsc;

use crate::cli::failure::Failure;

/// The most keys that wait to be handled; further ones are dropped.
const KEYS: usize = 16;
/// The assumed size of a terminal that does not report it.
const USUAL_SIZE: (u16, u16) = (80, 24);
/// The character that Ctrl-C sends while the terminal is in raw mode.
const CTRL_C: u8 = 3;

/// The meaning of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// The key ends the view.
    Quit,
    /// The key ends the view as a signal does.
    Interrupt,
}

/// The terminal.
pub(super) struct Screen {
    out: Stdout,
    keys: mpsc::Receiver<Key>,
}

impl Screen {
    /// Switches the terminal to the live view.
    pub(super) fn open() -> Result<Self, Failure> {
        terminal::enable_raw_mode()?;
        let (pressed, keys) = mpsc::channel(KEYS);
        // The screen is made before anything else can fail, so that dropping it restores the terminal.
        let mut screen = Self { out: std::io::stdout(), keys };
        execute!(screen.out, EnterAlternateScreen, DisableLineWrap, Hide)?;
        // The thread ends with the process, or when the receiver is gone: a read of the terminal cannot be cancelled.
        std::thread::spawn(move || {
            for byte in std::io::stdin().lock().bytes() {
                let key = match byte {
                    Ok(b'q' | b'Q') => Key::Quit,
                    Ok(CTRL_C) => Key::Interrupt,
                    Ok(_) => continue,
                    Err(_) => return,
                };
                if let Err(mpsc::error::TrySendError::Closed(_)) = pressed.try_send(key) {
                    return;
                }
            }
        });
        Ok(screen)
    }

    /// Waits for the next key that has a meaning.
    pub(super) async fn key(&mut self) -> Key {
        match self.keys.recv().await {
            Some(key) => key,
            // The terminal is gone; a signal will end the view.
            None => std::future::pending().await,
        }
    }

    /// Shows the frame, made for the number of lines of the terminal.
    pub(super) fn show(&mut self, frame: impl FnOnce(usize) -> String) -> Result<(), Failure> {
        let size = terminal::size().ok().filter(|(columns, rows)| *columns > 0 && *rows > 0);
        let (columns, rows) = size.unwrap_or(USUAL_SIZE);
        let frame = frame(usize::from(rows));
        queue!(self.out, MoveTo(0, 0))?;
        for (row, line) in (0..rows).zip(frame.lines()) {
            let line: String = line.chars().take(usize::from(columns)).collect();
            queue!(self.out, MoveTo(0, row))?;
            write!(self.out, "{line}")?;
            queue!(self.out, Clear(ClearType::UntilNewLine))?;
        }
        queue!(self.out, Clear(ClearType::FromCursorDown))?;
        Ok(self.out.flush()?)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A failure cannot be reported any more.
        drop(execute!(self.out, Show, EnableLineWrap, LeaveAlternateScreen));
        drop(terminal::disable_raw_mode());
    }
}
