//! The program on a terminal: what stands on its screen, at any width.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use parking_lot::Mutex;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::program::{DEADLINE, Started};

/// Whether a program may use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Yes,
    /// `NO_COLOR` is set.
    No,
}

/// A program whose standard streams are a terminal.
pub(crate) struct Terminal {
    process: Started,
    keyboard: File,
    seen: Arc<Mutex<Seen>>,
    /// Closed once the program and all that it started have closed the terminal.
    ended: Receiver<()>,
}

/// What a terminal has shown.
struct Seen {
    bytes: Vec<u8>,
    parser: vt100::Parser,
}

impl Seen {
    /// The text on the screen, a line for each row. (What vt100 gives as its contents joins rows that are full.)
    fn screen(&self) -> String {
        let screen = self.parser.screen();
        screen.rows(0, screen.size().1).map(|row| row.trim_end().to_owned() + "\n").collect()
    }
}

/// Opens a terminal of this size: the side of who looks at it, and that of the program. No program that another test
/// starts at the same time gets a copy, which would keep the terminal open.
pub(crate) fn open(rows: u16, columns: u16) -> std::io::Result<(File, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let outside = openpt(flags)?;
    grantpt(&outside)?;
    unlockpt(&outside)?;
    tcsetwinsize(&outside, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
    let inside = ioctl_tiocgptpeer(&outside, flags)?;
    Ok((File::from(outside), inside))
}

/// What is left of an ended program.
pub(crate) struct Shown {
    /// Its exit status.
    pub(crate) code: Option<i32>,
    /// Everything that it wrote.
    pub(crate) bytes: Vec<u8>,
    /// The text that stands on the screen.
    pub(crate) screen: String,
}

impl Shown {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl Terminal {
    /// Starts a program on a terminal of this size. One that says it has no columns is drawn with 80.
    pub(crate) fn start(command: &mut Command, rows: u16, columns: u16, colour: Colour) -> Self {
        let (master, slave) = open(rows, columns).expect("a terminal");
        match colour {
            Colour::Yes => command.env_remove("NO_COLOR"),
            Colour::No => command.env("NO_COLOR", "1"),
        };
        let handle = || Stdio::from(slave.try_clone().expect("another handle"));
        command.env("TERM", "xterm-256color").stdin(handle()).stdout(handle()).stderr(handle());
        let process = Started::of(command);
        // The handles of the terminal's other side that are left here would keep it open.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        drop(slave);
        let keyboard = master.try_clone().expect("another handle");
        let columns = if columns == 0 { 80 } else { columns };
        let parser = vt100::Parser::new(rows, columns, 0);
        let seen = Arc::new(Mutex::new(Seen { bytes: Vec::new(), parser }));
        let (sender, ended) = channel();
        let reader = seen.clone();
        std::thread::spawn(move || {
            let _sender = sender;
            let (mut terminal, mut chunk) = (master, [0; 4096]);
            // Reading fails once nobody has the other side open.
            while let Ok(read @ 1..) = terminal.read(&mut chunk) {
                let mut seen = reader.lock();
                seen.bytes.extend_from_slice(&chunk[..read]);
                seen.parser.process(&chunk[..read]);
            }
        });
        Self { process, keyboard, seen, ended }
    }

    /// Waits until the screen shows something, and returns its text.
    pub(crate) fn until(&mut self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let screen = self.seen.lock().screen();
            if condition(&screen) {
                return screen;
            }
            assert!(Instant::now() < deadline, "not in time: {what}; on the screen:\n{screen}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("it reads");
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for the end of the program, which must come in time.
    pub(crate) fn end(self) -> Shown {
        let code = self.process.end().code();
        let _ = self.ended.recv_timeout(DEADLINE);
        let seen = self.seen.lock();
        Shown { code, bytes: seen.bytes.clone(), screen: seen.screen() }
    }
}
